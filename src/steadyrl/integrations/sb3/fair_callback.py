"""Fair numbers in the log of Stable-Baselines3: mean return and length of all episodes, running ones included.

`rollout/ep_rew_mean` is the mean over the last 100 episodes that *finished*. Short ones finish first, so it is biased
early on, and again whenever learning makes episodes longer (see `FairStatistics`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecNormalize

from steadyrl.common.checks import check_level
from steadyrl.common.intervals import Interval
from steadyrl.errors import StatisticsError
from steadyrl.live.fair_report import FairReport
from steadyrl.live.fair_statistics import FairStatistics, tracking_memory
from steadyrl.wrappers.record_fair_statistics import is_success


class FairStatisticsCallback(BaseCallback):
    """Logs unbiased means over all episodes: finished, running and truncated ones.

    It works with every VecEnv and algorithm, and logs when the algorithm does, beside `rollout/ep_rew_mean`:

    - `fair/return`, `fair/return_low`, `fair/return_high`: mean return of an episode and its interval;
    - `fair/length`, `fair/length_low`, `fair/length_high`: mean number of actions in an episode, as Gymnasium counts;
    - `fair/success`, `fair/success_low`, `fair/success_high`: probability of success, if infos say `is_success`;
    - `fair/finished_only`: mean return over finished episodes with the same memory, so that the bias can be seen;
    - `fair/unresolved`: share of episodes that outlive the oldest age seen. Up to 10% are extrapolated from those that
      ended in old age; beyond that `fair/return` and `fair/length` are those of the first so many steps.

    Rewards and episodes are those that the algorithm sees, before `VecNormalize` scales them. Episodes that
    `SteadyVecEnv` cut short are not ends.

    Args:
        memory: steps of each environment after which old data is mostly forgotten: data of n steps ago counts
            exp(-n / memory), which is as noisy, and lags as far behind, as a window of 2 * memory steps. By default
            the memory follows the episodes: that window has as many steps as the algorithm's `stats_window_size`
            episodes (100) take, and at least two mean episode lengths of each environment and two rollouts.
            math.inf forgets nothing.
        level: confidence level of the intervals; environments are the independent unit.
        reward_range: smallest and largest possible reward, for bounds; by default those seen so far.
        max_episode_steps: the time limit, for bounds; by default the one in the spec of a DummyVecEnv's environments.
        verbose: verbosity level, as for every callback.

    Raises:
        StatisticsError: if an argument cannot be used; later, if a reward is not finite.
    """

    def __init__(
        self,
        memory: float | None = None,
        *,
        level: float = 0.9,
        reward_range: tuple[float, float] | None = None,
        max_episode_steps: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self._level = check_level(level, StatisticsError)
        self._follows = memory is None
        self._memory = None if isinstance(memory, float) and memory == math.inf else memory
        self._range, self._limit = reward_range, max_episode_steps
        self._made(1, max_episode_steps)  # so that errors come at once
        self._statistics: FairStatistics | None = None
        self._unknown = np.zeros(0, dtype=bool)  # environments whose age is not known before their next reset
        self._last_obs: Any = None
        self._normaliser: VecNormalize | None = None

    @property
    def report(self) -> FairReport | None:
        """Mean return, length and success as far as they are known; None before the first step."""
        try:
            return None if self._statistics is None else self._statistics.report(self._level)
        except StatisticsError:  # no step yet
            return None

    @property
    def memory(self) -> float:
        """Steps of each environment after which old data is mostly forgotten, at present."""
        found = None if self._statistics is None else self._statistics.memory
        return math.inf if found is None else found

    def _made(self, num_envs: int, limit: int | None) -> FairStatistics:
        return FairStatistics(
            num_envs, same_step=True, memory=self._memory, reward_range=self._range, max_episode_steps=limit
        )

    def _on_training_start(self) -> None:
        envs = self.training_env
        self._normaliser = _innermost_normaliser(envs)
        fresh = self._statistics is None or self._statistics.num_envs != envs.num_envs
        if fresh:
            self._statistics = self._made(envs.num_envs, _time_limit(envs) if self._limit is None else self._limit)
        assert self._statistics is not None
        self._unknown = np.zeros(envs.num_envs, dtype=bool)
        if self.locals.get("reset_num_timesteps", True):  # then learn() has reset all environments
            self._statistics.reset()
        elif fresh or self.model._last_obs is not self._last_obs:  # they may be anywhere in their episodes
            self._statistics.reset()
            self._unknown[:] = True

    def _on_step(self) -> bool:
        assert self._statistics is not None
        rewards, dones = self.locals["rewards"], np.asarray(self.locals["dones"], dtype=bool)
        if self._normaliser is not None:
            rewards = self._normaliser.get_original_reward()
        cut = success = None
        if dones.any():
            cut, success = self._ends(dones, self.locals["infos"])
        self._statistics.update(rewards, dones if cut is None else dones & ~cut, cut, success)
        if self._unknown.any():
            self._statistics.restarted(self._unknown)
            self._unknown &= ~dones
        if not isinstance(self.model, OnPolicyAlgorithm) and self._is_due(int(dones.sum())):
            self._record()
        return True

    def _ends(self, dones: NDArray[np.bool_], infos: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
        """Return whose episode was cut short by `SteadyVecEnv`, and whose ended in success if anybody says so."""
        cut, success, said = np.zeros_like(dones), np.zeros_like(dones), False
        for i in np.flatnonzero(dones):
            cut[i] = infos[i].get("staggered", False)
            if infos[i].get("is_success") is not None:
                success[i], said = is_success(infos[i]["is_success"]), True
        return cut, success if said else None

    def _is_due(self, ended: int) -> bool:
        """Return whether an off-policy algorithm, which logs after so many episodes, is about to log."""
        every = self.locals.get("log_interval")
        before = getattr(self.model, "_episode_num", 0)
        return bool(ended and every and (before + ended) // every > before // every)

    def _on_rollout_end(self) -> None:
        if isinstance(self.model, OnPolicyAlgorithm):
            self._record()

    def _on_training_end(self) -> None:
        self._last_obs = self.model._last_obs

    def _record(self) -> None:
        report = self.report
        if report is None:
            return
        self._record_interval("return", report.mean_return)
        self._record_interval("length", report.mean_gymnasium_length)
        if report.success is not None:
            self._record_interval("success", report.success)
        if math.isfinite(report.finished_only):
            self.logger.record("fair/finished_only", report.finished_only)
        self.logger.record("fair/unresolved", report.unresolved)
        if self._follows:
            self._follow(report.mean_gymnasium_length.value)

    def _record_interval(self, name: str, interval: Interval) -> None:
        for end, value in (("", interval.value), ("_low", interval.low), ("_high", interval.high)):
            if math.isfinite(value):
                self.logger.record(f"fair/{name}{end}", value)

    def _follow(self, length: float) -> None:
        """Set the memory of the steps to come: what was seen so far counts as it did against each other."""
        assert self._statistics is not None
        window = getattr(self.model, "_stats_window_size", 100)
        rollout = self.model.n_steps if isinstance(self.model, OnPolicyAlgorithm) else 1
        self._statistics.memory = max(tracking_memory(window, self._statistics.num_envs, length), float(rollout))


def _innermost_normaliser(envs: VecEnv) -> VecNormalize | None:
    """Return the VecNormalize that is nearest to the environments, whose original rewards are theirs."""
    found, layer = None, envs
    while isinstance(layer, VecEnvWrapper):
        if isinstance(layer, VecNormalize):
            found = layer
        layer = layer.venv
    return found


def _time_limit(envs: VecEnv) -> int | None:
    """Return the time limit of the environments, if they are in this process and their specs have one and the same."""
    bare = envs.unwrapped
    if not isinstance(bare, DummyVecEnv):
        return None  # asking another process for a spec that cannot be pickled would end it
    limits = {getattr(env.spec, "max_episode_steps", None) for env in bare.envs}
    limit = limits.pop() if len(limits) == 1 else None
    return limit if isinstance(limit, int) and limit >= 1 else None
