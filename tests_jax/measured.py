"""How far ages are from the steady state, measured: shared by the tests of the stacks."""

import math

import numpy as np

from steadyrl import EpisodeLengths
from steadyrl.lengths.anytime import anytime_distance

GROUPS = 20


def first_lengths(ended):
    """The length of the first episode of each environment, from flags [steps, N]; all must have ended."""
    assert ended.any(axis=0).all()
    return np.argmax(ended, axis=0) + 1


def distance_and_bound(ages, lengths, time):
    """Total variation of the ages from the stationary ones in groups of equal share; the bound; what chance may add.

    The last is exceeded by independent environments at steady state less than once in 10,000 looks (4 standard errors
    of the total variation of a multinomial sample).
    """
    law = EpisodeLengths.from_gymnasium(lengths)
    share = law.survival[2:] / law.survival[2:].sum()
    group = np.minimum(((np.cumsum(share) - share / 2) * GROUPS).astype(int), GROUPS - 1)
    wanted = np.bincount(group, weights=share, minlength=GROUPS)
    found = np.bincount(group[np.minimum(ages, len(share)) - 1], minlength=GROUPS) / len(ages)
    error = np.sqrt(wanted * (1 - wanted) / len(ages))
    chance = 0.5 * math.sqrt(2 / math.pi) * error.sum() + 2 * math.sqrt((1 - 2 / math.pi) * (error**2).sum())
    return 0.5 * np.abs(found - wanted).sum(), float(anytime_distance(law, time)[-1]), chance
