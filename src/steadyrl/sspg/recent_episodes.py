"""What recent episodes of a policy that learns were like: E[T], the reward per step, the reward at each age.

Environments that are being brought to steady state are not at it yet, and truncating an episode early takes its end
away. So steps are not simply divided by ends: a life table (Kaplan-Meier) asks at each age how many of its visits were
the last, and ages are then weighted as at steady state. Running episodes count as censored ones.

The environments' wrapper has a life table of its own. It remembers eight episodes of each environment, since it
measures distances, and is lost when the environments are made anew; this one remembers two, since the policy changes
all the while, and outlives them. Both are fed by the same ages, which the wrapper counts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.lengths.life_table import LifeTable
from steadyrl.sspg.checkpoints import require_numbers

Array = NDArray[np.float64]

_MEMORY = 2.0  # episodes of each environment after which an observation counts 1/e
_LATEST = 0.25  # the same, for the reward per step that the critic goes by: it must not lag behind a policy that learns
_RARE = 0.01  # early ends in memory below which there are none: the last was some nine episodes of each copy ago
_FAINT = 1e-9


class RecentEpisodes:
    """Running statistics of the last few episodes of a stream, finished or not.

    Args:
        num_envs: environments in the stream.
        horizon: steps after which an episode is over in any case, if that counts as an end.
    """

    def __init__(self, num_envs: int, horizon: int | None = None) -> None:
        self._horizon = horizon
        self._table = LifeTable(memory=float(max(_MEMORY * num_envs, 16)))
        self._rewards = self._steps = 0.0
        self._late_rewards = self._late_steps = 0.0  # the same with a shorter memory, resets left out
        self._early = 0.0  # ends before the horizon
        self._by_age = np.zeros((2, 64))  # rewards of the transitions from each age, and how many

    def add(self, ages: NDArray[np.int64], ends: NDArray[np.bool_], rewards: Array) -> None:
        """Add [n_steps, num_envs]: the ages of the states arrived at, and whether these end their episodes."""
        self._table.add(np.bincount(ages.ravel()), np.bincount(ages[ends], minlength=1))
        length = self.average_episode_length
        fade, fade_late = (math.exp(-len(ages) / (memory * length)) for memory in (_MEMORY, _LATEST))
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
        """E[T]; before any episode has ended, a lower bound: the longest age seen."""
        survival = self._table.survival()
        return float(max(survival[1:].sum(), 2.0))

    @property
    def reward_rate(self) -> float:
        """J_avg, the reward per step, resets included; times E[T] it is J_epi (Theorem 4)."""
        return self._rewards / self._steps

    @property
    def mean_return(self) -> float:
        """J_epi, the expected return of an episode: sum_k S(k) r(k), the fair mean, running episodes included.

        It is E[T] times the reward per step (Theorem 4) with ages weighted as at steady state. The stream's own reward
        per step has the stream's ages, and environments in lockstep have all the same one: with a reward of 1 in the
        last of 50 actions, E[T] times that swings between 0.55 and 1.26. This is what `FairStatistics` estimates, so
        there is no second column for it. Intervals are left to `evaluate`: a table for each environment, and an
        estimate without each, would take longer than an update.
        """
        alive = self.alive()
        rewards, seen = self._by_age[:, 1 : len(alive) + 1]
        known = seen > _FAINT
        pooled = rewards[known].sum() / max(seen[known].sum(), _FAINT)
        return float(alive @ np.divide(rewards, seen, out=np.full(len(alive), pooled), where=known))

    @property
    def latest_reward(self) -> float:
        """The reward per action in the last quarter of an episode length or so."""
        return self._late_rewards / max(self._late_steps, 1.0)

    @property
    def any_early_ends(self) -> bool:
        """Whether any episode in memory ended before the horizon."""
        return self._early >= _RARE

    def alive(self) -> Array:
        """Return P(age a is reached, and is not the last) for a = 1, ..., n."""
        return self._table.survival()[2:]

    def rewards_by_age(self) -> Array:
        """Return the mean reward of the action at age a = 1, ..., n, all moved alike to agree with the latest ones."""
        n = len(self.alive())
        rewards, seen = self._by_age[:, 1 : n + 1]
        known = seen > _FAINT
        by_age = np.divide(rewards, seen, out=np.zeros(n), where=known)
        mean = by_age[known] @ seen[known] / max(seen[known].sum(), 1.0)
        return np.where(known, by_age - mean, 0.0) + self.latest_reward

    def state(self) -> dict[str, Any]:
        """Return the arrays that a checkpoint keeps."""
        return {
            **self._table.state(),
            "sums": np.array([self._steps, self._rewards, self._late_steps, self._late_rewards, self._early]),
            "by_age": self._by_age,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the arrays of a checkpoint."""
        require_numbers(state["sums"], shape=(5,))
        require_numbers(state["by_age"], shape=(2, state["by_age"].shape[-1]))
        require_numbers(state["counts"], shape=(4, state["counts"].shape[-1]), least=0.0)
        self._table.restore(state)
        self._steps, self._rewards, self._late_steps, self._late_rewards, self._early = state["sums"].tolist()
        self._by_age = np.array(state["by_age"], dtype=float)
