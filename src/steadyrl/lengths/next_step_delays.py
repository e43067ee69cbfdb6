"""Corrects delays for NEXT_STEP autoreset, where a copy cannot be truncated during its reset step.

If an episode ends by itself one step before its truncation is due, the copy is being reset in the step in which it
should be truncated. It is then one step ahead, as if its delay were D + 1. Let u(C) be the probability of such an end
at step C of the window, one step before a truncation that is due at C + 1 = W - D + 1. Delays requested with
probabilities q are realised with probabilities

    p(D) = q(D) (1 - u(W - D)) + q(D - 1) u(W - D + 1),

so q follows from the desired p by one pass over the delays. Ends that are more likely than not are anticipated: the
copy is truncated two steps before the due time as well, so that its reset is over in time, and such an end is not
counted in u. Then u <= 1/2, which makes q >= 0: p increases with D, and
q(D - 1) u <= p(D - 1) u / (1 - u) <= p(D - 1) <= p(D).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steadyrl.lengths.delays import Delays
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.renewal import renewal_sequence
from steadyrl.numerics.convolution import fftconvolve

Array = NDArray[np.float64]

LIKELY = 0.5
"""Probability above which an end in the next step is anticipated."""


def hazards(lengths: EpisodeLengths) -> Array:
    """Return the hazard rates P(T = k | T >= k) for k = 0, 1, ..., the longest length."""
    hazard: Array = lengths.probabilities / np.maximum(lengths.survival, 1e-300)
    return hazard


def unforeseen_ends(
    lengths: EpisodeLengths, window: int, ages: NDArray[np.int64], restarting: NDArray[np.bool_]
) -> Array:
    """Return u(0), ..., u(window): the share of copies whose episode ends, unanticipated, that many steps from now.

    Args:
        lengths: Distribution of T.
        window: Number of steps to look ahead.
        ages: Current age of each copy.
        restarting: Whether each copy's episode has just ended, so that its next step is the reset.
    """
    n = lengths.longest
    inside = np.minimum(ages[~restarting], n)
    here = np.bincount(inside, minlength=n + 1) / len(ages)
    beyond = np.append(lengths.survival[1:], 0.0)  # entry a: P(T > a)
    weight = np.divide(here, beyond, out=np.zeros(n + 1), where=beyond > 1e-12)
    seen = hazards(lengths) > LIKELY
    seen[:3] = False  # an episode of one action cannot be truncated before its end
    unseen = np.where(seen, 0.0, lengths.probabilities)
    first = _from_ages(weight, lengths.probabilities, window)
    first[0] = float(restarting.mean())
    ends = fftconvolve(first, renewal_sequence(lengths, window))[: window + 1]
    found = fftconvolve(unseen, ends)[: window + 1] + _from_ages(weight, unseen, window)
    found[0] = first[0]
    chance: Array = np.clip(found, 0.0, LIKELY)
    return chance


def allowing_for_resets(delays: Delays, chance: Array) -> Delays:
    """Return the delays to request so that the given ones are realised, although some truncations come too late.

    Args:
        delays: The delays that should be realised.
        chance: u(0), ..., u(window) from `unforeseen_ends`.

    Example:
        >>> wanted = Delays(np.array([0, 0.5, 0.5]), 0.0)
        >>> allowing_for_resets(wanted, np.array([0.0, 0.2])).probabilities.tolist()
        [0.0, 0.625, 0.375]
    """
    wanted, window = delays.probabilities, delays.window
    asked = np.zeros(window + 1)
    for delay in range(1, window + 1):
        moved = asked[delay - 1] * chance[window - delay + 1] if delay > 1 else 0.0
        asked[delay] = max(0.0, wanted[delay] - moved) / (1 - chance[window - delay])
    return Delays(asked / asked.sum(), delays.distance, delays.lengths)


def _from_ages(weight: Array, probabilities: Array, window: int) -> Array:
    """sum_a weight(a) probabilities(a + c) for c = 0, ..., window; 0 for c = 0, which is now."""
    found = np.zeros(window + 1)
    whole = fftconvolve(probabilities, weight[::-1])[len(weight) - 1 :]
    count = min(len(whole), window + 1)
    found[1:count] = np.maximum(whole[1:count], 0.0)
    return found
