"""How long episodes are just now, from copies that have not finished them.

Lengths of finished episodes lag behind a policy that learns to live longer: the long ones are still running. A *life
table* asks instead, of all visits to age k in the recent past, how many were the episode's last:

    h(k) = ends at age k / visits to age k,       P(L >= k + 1) = P(L >= k) (1 - h(k)).

It uses every step, running episodes included (they are censored, as in the product-limit estimate), and each
age's answer is as young as its last visits. What is old is forgotten: slowly as episodes end, and by half whenever a
batch contradicts the table, so that a changed policy shows within a few episodes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from steadyrl.renewal import EpisodeLengths

Array = NDArray[np.float64]

_SURPRISE = 4.0  # standard errors; a batch of an unchanged policy is that far off once in 16,000 batches
_FAINT = 1e-9


class LifeTable:
    """Recent visits and ends at each age of a stream."""

    def __init__(self, memory: float) -> None:
        self.memory = memory  # episodes' ends that it remembers
        self.visits = np.zeros(64)
        self.ends = np.zeros(64)

    def add(self, visits: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Take in a batch: counts at ages 0, 1, 2, ... (age 0 is not used)."""
        if len(visits) > len(self.visits):
            more = max(len(visits), 2 * len(self.visits)) - len(self.visits)
            self.visits = np.append(self.visits, np.zeros(more))
            self.ends = np.append(self.ends, np.zeros(more))
        n = len(visits)
        ended = int(ends.sum())
        keep = max(0.0, 1 - ended / self.memory)
        if self._contradicted(visits, ended):
            keep *= 0.5
        self.visits *= keep
        self.ends *= keep
        self.visits[:n] += visits
        self.ends[: len(ends)] += ends

    def _contradicted(self, visits: NDArray[np.int64], ended: int) -> bool:
        """Whether the ends in a batch are beyond chance under the table, its own uncertainty included."""
        known = self.visits[: len(visits)]
        seen = known > 1
        hazard = np.divide(self.ends[: len(visits)], known, out=np.zeros(len(visits)), where=seen)
        expected = float(visits @ hazard)
        chance = hazard * (1 - hazard)
        spread = visits @ chance + (visits.astype(float) ** 2 / np.maximum(known, 1.0)) @ chance
        unknown = float(visits[~seen].sum())  # there any number may end
        gap = max(0.0, abs(ended - expected) - unknown)
        return gap > _SURPRISE * math.sqrt(float(spread) + 1.0)

    @property
    def longest(self) -> int:
        """The greatest age in memory; 0 if there is none."""
        at = np.flatnonzero(self.visits > _FAINT)
        return int(at[-1]) if len(at) else 0

    def survival(self) -> Array:
        """P(L >= k) for k = 0, 1, ..., longest + 1; the last entry is what is not known to end."""
        n = self.longest
        visits = self.visits[1 : n + 1]
        hazard = np.divide(self.ends[1 : n + 1], visits, out=np.zeros(n), where=visits > _FAINT)
        return np.concatenate([[1.0, 1.0], np.cumprod(1 - np.minimum(hazard, 1.0))])

    def lengths(self, *, reset_steps: int = 0) -> EpisodeLengths | None:
        """Return the distribution of L + reset_steps, or None if none has ended; an unknown end is one step later."""
        if self.ends.sum() <= _FAINT:
            return None
        survival = self.survival()
        probabilities = np.append(-np.diff(survival), survival[-1])
        return EpisodeLengths(np.append(np.zeros(reset_steps), probabilities / probabilities.sum()))
