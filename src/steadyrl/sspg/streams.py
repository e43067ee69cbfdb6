"""The average episode length of streams that are cut off anywhere: steps over ends (Proposition 5).

At steady state every transition ends an episode with probability 1/E[T], so over any stretch of time, however short
and wherever it is cut,

    E[ends] = steps / E[T]:      E[T] is estimated by steps / ends.

The mean of the lengths of finished episodes is not: in a stretch of time short ones finish more often.
Copies are independent of each other, so the spread of their numbers of ends says how sure the estimate is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from steadyrl.common.intervals import Interval
from steadyrl.errors import LengthsError
from steadyrl.lengths.life_table import LifeTable
from steadyrl.sspg.line import Line

Array = NDArray[np.float64]

_MEMORY = 2.0  # episodes of each copy after which an observation counts 1/e
_RECENT = 0.25  # the same, for the reward per step that the critic goes by: it must not lag behind a policy that learns
_RARE = 0.01  # early ends in memory below which there are none: the last was some nine episodes of each copy ago
_FAINT = 1e-9


def stream_episode_length(ends: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return E[T] from streams at steady state, with its confidence interval.

    Args:
        ends: [steps, copies], whether the transition of each copy at each step led to an episode's end. In the manner
            of NEXT_STEP, where the reset is a step of its own: T = l + 1.
        level: the probability that the interval covers the truth, for many copies and steps.

    Raises:
        LengthsError: if there is nothing to go by.

    Example:
        >>> ends = np.tile([[False], [False], [False], [True]], (3, 2))  # T = 4
        >>> stream_episode_length(ends).value
        4.0
    """
    seen = np.asarray(ends)
    if seen.ndim != 2 or seen.dtype != bool or not seen.size:
        raise LengthsError(f"ends have shape {seen.shape} and type {seen.dtype}; give booleans [steps, copies]")
    if not isinstance(level, float | np.floating) or not 0 < level < 1:
        raise LengthsError(f"level is {level!r}; it must be a probability above 0 and below 1, such as 0.95")
    counts = seen.sum(axis=0).astype(float)
    return episode_length_of_counts(counts, float(len(seen)), level=level)


def episode_length_of_counts(ends: Array, steps: float, *, level: float = 0.95) -> Interval:
    """Return E[T] from the ends of each copy in so many steps of each; infinite ends of the interval where unknown."""
    total, copies = float(ends.sum()), len(ends)
    if total == 0:
        least = steps * copies / -math.log1p(-level)  # the "rule of three", at 95%
        return Interval(math.inf, max(least, 1.0), math.inf)
    rate = total / (steps * copies)
    if copies == 1:
        return Interval(1 / rate, 1.0, math.inf)
    # Copies may agree by chance: one end more or less is the least that is not known.
    error = max(float(np.std(ends, ddof=1)) / math.sqrt(copies), 1 / copies) / steps
    reach = float(stdtrit(copies - 1, 0.5 + level / 2)) * error
    low = 1 / (rate + reach)
    return Interval(1 / rate, max(low, 1.0), 1 / (rate - reach) if rate > reach else math.inf)


class RunningLength:
    """E[T] and the reward per step of a policy that changes, from its last few episodes, finished or not.

    Copies that are being brought to steady state are not at it yet, and cutting an episode short takes its end away. So
    steps are not simply divided by ends: a life table asks at each age how many of its visits were the last, and the
    ages are then weighted as at steady state.
    """

    def __init__(self, copies: int, horizon: int | None = None) -> None:
        self._horizon = horizon  # steps after which an episode is over in any case, if that counts as an end
        self._table = LifeTable(memory=float(max(_MEMORY * copies, 16)))
        self._rewards = self._steps = 0.0
        self._late_rewards = self._late_steps = 0.0  # the same with a shorter memory, resets left out
        self._early = 0.0  # ends before the horizon
        self._by_age = np.zeros((2, 64))  # rewards of the transitions from each age, and how many

    def add(self, ages: NDArray[np.int64], ends: NDArray[np.bool_], rewards: Array) -> None:
        """Add [steps, copies] of a stream: the ages of the states arrived at, and whether these end their episodes."""
        self._table.add(np.bincount(ages.ravel()), np.bincount(ages[ends], minlength=1))
        length = self.average_episode_length
        fade, fade_late = (math.exp(-len(ages) / (memory * length)) for memory in (_MEMORY, _RECENT))
        self._steps = self._steps * fade + ages.size
        self._rewards = self._rewards * fade + float(rewards.sum())
        self._early = self._early * fade + int((ends & (ages <= (self._horizon or 0))).sum())
        acted = ages > 1
        self._late_steps = self._late_steps * fade_late + int(acted.sum())
        self._late_rewards = self._late_rewards * fade_late + float(rewards[acted].sum())
        missing = int(ages.max()) + 1 - self._by_age.shape[1]
        if missing > 0:
            self._by_age = np.pad(self._by_age, ((0, 0), (0, max(missing, self._by_age.shape[1]))))
        self._by_age *= fade
        room = self._by_age.shape[1]
        self._by_age[0] += np.bincount(ages[acted] - 1, weights=rewards[acted], minlength=room)
        self._by_age[1] += np.bincount(ages[acted] - 1, minlength=room)

    @property
    def average_episode_length(self) -> float:
        """E[T]; before any episode has ended, what is known of it: that it is longer than any age seen."""
        survival = self._table.survival()
        return float(max(survival[1:].sum(), 2.0))

    @property
    def reward_rate(self) -> float:
        """J_avg, the reward per step; times E[T] it is J_epi (Theorem 4)."""
        return self._rewards / self._steps

    @property
    def line(self) -> Line | None:
        """The return that a number of steps left promises; None without a horizon.

        One more step left is worth one more reward to a state whose episode goes to its horizon, and nothing to one
        that ends before. So the rate is the reward per step times the share of the former; and at steady state the
        line's mean is that of what ages promise,

            promise(a) = sum over k >= a of P(alive at age k | alive at age a) reward(k)

        It is not the line through these promises: where a policy runs into the same end at much the same age, that
        would explain by the age what is the fault of the state, and hide it from the policy.
        Rewards at each age are those of the last few episodes, all moved alike to agree with the last steps.
        """
        if self._horizon is None:
            return None
        late = self._late_rewards / max(self._late_steps, 1.0)
        if self._early < _RARE:
            return Line(0.0, late)
        alive = self._table.survival()[2:]  # P(age a is reached and not the last), a = 1, ..., n
        rewards, seen = self._by_age[:, 1 : len(alive) + 1]
        known = seen > _FAINT
        by_age = np.divide(rewards, seen, out=np.zeros(len(alive)), where=known)
        by_age = np.where(known, by_age - by_age[known] @ seen[known] / max(seen[known].sum(), 1.0), 0.0) + late
        unseen = max(self._horizon - len(alive), 0)
        acting = float(alive.sum())
        if not acting:
            return Line(0.0, 0.0, 0.0)
        to_the_end = float(alive[min(len(alive), self._horizon) - 1])
        share = self._horizon * to_the_end / (acting + to_the_end * unseen)
        promises = np.cumsum((alive * by_age)[::-1])[::-1] + to_the_end * unseen * late  # times alive
        left = self._horizon - np.arange(len(alive))
        mean_left = float(alive @ left) / acting
        return Line(float(promises.sum()) / acting - late * share * mean_left, late * share, share)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            **self._table.state(),
            "sums": np.array([self._steps, self._rewards, self._late_steps, self._late_rewards, self._early]),
            "by_age": self._by_age,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._table.restore(state)
        self._steps, self._rewards, self._late_steps, self._late_rewards, self._early = state["sums"].tolist()
        self._by_age = np.array(state["by_age"])
