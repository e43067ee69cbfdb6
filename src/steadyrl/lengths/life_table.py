"""Current episode lengths, estimated from running copies whose episodes have not all finished (Kaplan-Meier).

The lengths of finished episodes lag behind a policy that learns to survive longer, because the long episodes are still
running. A *life table* instead asks which share of all recent visits to age k was the episode's last step:

    h(k) = ends at age k / visits to age k,       P(L >= k + 1) = P(L >= k) (1 - h(k)).

It uses every step, including those of running episodes (which are censored, as in the Kaplan-Meier estimate), and the
hazard of each age is as recent as the last visits to it. Old data is forgotten: slowly as episodes end, and mostly at
once when recent data contradicts the table, so that a change of the policy shows within a few episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.lengths.distribution import EpisodeLengths

Array = NDArray[np.float64]

_SURPRISE = 4.5  # standard errors; an unchanged policy exceeds them, at some age, about once in 10,000 comparisons
_ENOUGH = 4096  # visits between two comparisons of recent data with the table
_FAINT = 1e-9


class LifeTable:
    """Counts of recent visits and ends at each age of a stream of steps.

    Args:
        memory: Number of episode ends after which old data is mostly forgotten.
    """

    def __init__(self, memory: float) -> None:
        self.memory = memory
        self.visits = np.zeros(64)
        self.ends = np.zeros(64)
        self._late_visits = np.zeros(64)  # since the last contradiction, or the last memory / 8 ends
        self._late_ends = np.zeros(64)
        self._unread = 0  # visits since recent data was last compared with the table

    def add(self, visits: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Add a batch of visits and ends, counted at ages 0, 1, 2, ... (age 0 is not used)."""
        self._make_room(len(visits))
        self._late_visits[: len(visits)] += visits
        self._late_ends[: len(ends)] += ends
        self._unread += int(visits.sum())
        expected, doubted = self._compare() if self._unread >= _ENOUGH else (0.0, False)
        keep = max(0.0, 1 - int(ends.sum()) / self.memory)
        self.visits *= keep
        self.ends *= keep
        self.visits[: len(visits)] += visits
        self.ends[: len(ends)] += ends
        if doubted:  # keep recent data, and an eighth of the older data
            self.visits = 0.125 * self.visits + 0.875 * self._late_visits
            self.ends = 0.125 * self.ends + 0.875 * self._late_ends
        if doubted or max(expected, float(self._late_ends.sum())) > self.memory / 8:
            self._late_visits[:] = 0.0
            self._late_ends[:] = 0.0

    def state(self) -> dict[str, Any]:
        """Return everything that `restore` needs to continue from here in a new table."""
        counts = np.stack([self.visits, self.ends, self._late_visits, self._late_ends])
        return {"counts": counts, "unread": np.array(self._unread)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self.visits, self.ends, self._late_visits, self._late_ends = np.array(state["counts"], dtype=float)
        self._unread = int(state["unread"])

    def _make_room(self, n: int) -> None:
        more = np.zeros(max(n, 2 * len(self.visits)) - len(self.visits))
        if n > len(self.visits):
            self.visits, self.ends = np.append(self.visits, more), np.append(self.ends, more)
            self._late_visits = np.append(self._late_visits, more)
            self._late_ends = np.append(self._late_ends, more)

    def _compare(self) -> tuple[float, bool]:
        """Return the recent ends that the table predicts, and whether the observed ones differ beyond chance."""
        self._unread = 0
        visits, known = self._late_visits, self.visits
        seen = known > 1
        hazard = np.divide(self.ends, known, out=np.zeros(len(known)), where=seen)
        expected = visits * hazard
        chance = hazard * (1 - hazard)
        spread = np.cumsum(
            visits * chance + visits**2 / np.maximum(known, 1.0) * chance
        )  # sampling error of the table included
        unknown = np.cumsum(np.where(seen, 0.0, visits))  # at unknown ages any number may end
        gap = np.abs(np.cumsum(self._late_ends - expected)) - unknown
        return float(expected.sum()), bool((gap > _SURPRISE * np.sqrt(spread + 1.0)).any())

    @property
    def longest(self) -> int:
        """Greatest age in memory; 0 if the table is empty."""
        at = np.flatnonzero(self.visits > _FAINT)
        return int(at[-1]) if len(at) else 0

    def survival(self) -> Array:
        """Return P(L >= k) for k = 0, 1, ..., longest + 1; the last entry is the share whose end was not observed."""
        n = self.longest
        visits = self.visits[1 : n + 1]
        hazard = np.divide(self.ends[1 : n + 1], visits, out=np.zeros(n), where=visits > _FAINT)
        return np.concatenate([[1.0, 1.0], np.cumprod(1 - np.minimum(hazard, 1.0))])

    def lengths(self, *, reset_steps: int = 0) -> EpisodeLengths | None:
        """Return the distribution of L + reset_steps, or None before the first end.

        Episodes whose end was not observed are counted as ending one step after the greatest age.
        """
        if self.ends.sum() <= _FAINT:
            return None
        survival = self.survival()
        probabilities = np.append(-np.diff(survival), survival[-1])
        return EpisodeLengths(np.append(np.zeros(reset_steps), probabilities / probabilities.sum()))
