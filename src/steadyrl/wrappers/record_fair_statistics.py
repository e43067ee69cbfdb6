"""Mean return, length and success of the policy as it is, for a vector environment: what to log instead of
RecordEpisodeStatistics, whose finished episodes are a biased sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from steadyrl.common.checks import check_flag, check_level, plain_array, shown
from steadyrl.errors import StatisticsError, WrapperError
from steadyrl.live.ages import checked_flags
from steadyrl.live.fair_report import FairReport
from steadyrl.live.fair_statistics import FairStatistics
from steadyrl.wrappers.vectors import AnyVectorWrapper, autoreset_mode, cut_copies, ended_copies, reset_some

Success = Callable[[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]], Any]


class RecordFairStatistics(AnyVectorWrapper):
    """Keeps unbiased statistics of all episodes: finished, running and truncated ones.

    Steps, rewards and observations are passed on as they are. It works in all autoreset modes, around or inside
    `StaggeredVectorEnv` (whose truncations, marked by `info["staggered"]`, are not ends), and with masked resets.

    Args:
        env: the vector environment.
        memory: steps of each environment after which old data is mostly forgotten (see `FairStatistics`); give a few
            mean episode lengths while a policy learns. By default nothing is forgotten.
        success: what success is: the name of an entry of the infos, looked at in the last step of an episode, where no
            entry means no success; or a function of (rewards, terminated, truncated, infos) that returns a boolean for
            each environment; or None. Without such an entry in any info, `report().success` is None.
        summary: whether to put a summary into the infos when an episode ends: infos["fair"] has the entries "r" (mean
            return), "l" (mean episode length), "low" and "high" (of the mean return) and "unresolved", as arrays with
            one entry per environment; infos["_fair"] says whose episode ended. A report takes some milliseconds.
        level: confidence level of intervals.
        reward_range: smallest and largest possible reward, for bounds; by default those seen so far.
        max_episode_steps: the time limit, for bounds; by default the one in the environments' spec, if there is one.

    Raises:
        WrapperError: if this is no vector environment, or its autoreset mode is not known.
        StatisticsError: if another argument cannot be used; later, if a reward is not finite.

    Example:
        >>> import gymnasium, numpy as np
        >>> envs = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
        >>> envs = RecordFairStatistics(envs)
        >>> _ = envs.reset(seed=0)
        >>> for _ in range(100):
        ...     _ = envs.step(np.ones(4, dtype=int))  # always to the right
        >>> report = envs.report()
        >>> 8 < report.mean_return.low <= report.mean_return.value <= report.mean_return.high < 11
        True
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        memory: float | None = None,
        success: str | Success | None = "is_success",
        summary: bool = False,
        level: float = 0.9,
        reward_range: tuple[float, float] | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        mode = autoreset_mode(env)
        super().__init__(env)
        if not (success is None or isinstance(success, str) or callable(success)):
            raise WrapperError(
                f"success is {shown(success)}; it must be the name of an entry of the infos, a function of (rewards, "
                "terminated, truncated, infos), or None"
            )
        self._same_step = mode == AutoresetMode.SAME_STEP
        self._success = success
        self._summary = summary = check_flag("summary", summary, WrapperError)
        self._plain = not (summary or callable(success))  # what it does depends on rewards, ends and infos only
        self._level = check_level(level, WrapperError)
        self._restarting: NDArray[np.bool_] | None = None
        self._statistics = FairStatistics(
            self.num_envs,
            same_step=mode != AutoresetMode.NEXT_STEP,
            memory=memory,
            reward_range=reward_range,
            max_episode_steps=_time_limit(env) if max_episode_steps is None else max_episode_steps,
        )

    @property
    def statistics(self) -> FairStatistics:
        """The statistics that are kept."""
        return self._statistics

    def report(self, level: float | None = None) -> FairReport:
        """Return mean return, length and success of all episodes so far, with intervals."""
        return self._statistics.report(self._level if level is None else level)

    def restarting(self, mask: NDArray[np.bool_]) -> None:
        """Take note that the next step is a reset of these environments, by a `StaggeredVectorEnv` around this one."""
        self._restarting = checked_flags("mask", mask, self.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of options["reset_mask"]; statistics are kept."""
        found, mask = reset_some(self.env, seed, options)
        self._statistics.reset(mask)
        return found

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        found: tuple[Any, Any, Any, Any, dict[str, Any]] = self.env.step(actions)
        if self._plain and not found[4] and self._restarting is None:  # no infos
            self._statistics.watch(found[1], found[2], found[3])
            return found
        observations, rewards, terminated, truncated, infos = found
        ended, cut = ended_copies(terminated, truncated, self.num_envs), cut_copies(infos)
        if cut is not None:
            ended = ended & ~cut
        some = bool(ended.any())
        said = self._succeeded(rewards, terminated, truncated, infos) if some else None
        self._statistics.update(rewards, ended, cut, said)
        if self._restarting is not None:  # before a summary: what is counted cannot be taken back
            self._statistics.restarted(self._restarting)
            self._restarting = None
        if self._summary and some:
            infos = {**infos, **self._summarised(ended)}
        return observations, rewards, terminated, truncated, infos

    def _succeeded(self, rewards: Any, terminated: Any, truncated: Any, infos: dict[str, Any]) -> Any:
        """Return who was successful, as far as the infos say; None if they say nothing."""
        if callable(self._success):
            return self._success(rewards, terminated, truncated, infos)
        last = infos.get("final_info", {}) if self._same_step else infos
        if self._success is None or self._success not in last:
            return None
        said = last.get(f"_{self._success}", np.ones(self.num_envs, dtype=bool))
        values = last[self._success]
        if np.shape(values)[:1] != (self.num_envs,):
            raise StatisticsError(
                f"the info {self._success!r} is {shown(values)}; it must say for each of {self.num_envs} environments "
                "whether its episode was a success"
            )
        return np.array([there and is_success(value) for value, there in zip(values, said, strict=True)])

    def _summarised(self, ended: NDArray[np.bool_]) -> dict[str, Any]:
        report = self.report()
        entries = {
            "r": report.mean_return.value,
            "l": report.mean_gymnasium_length.value,
            "low": report.mean_return.low,
            "high": report.mean_return.high,
            "unresolved": report.unresolved,
        }
        return {"fair": {name: np.where(ended, value, 0.0) for name, value in entries.items()}, "_fair": ended}


def is_success(value: Any) -> bool:
    """Return what an info says about success as a bool: True, False, or a number that is 0 or not.

    Raises:
        StatisticsError: if it says something else.

    Example:
        >>> is_success(np.float32(1.0)), is_success(np.array([False]))
        (True, False)
    """
    found = plain_array("is_success", value, StatisticsError)
    if found.size != 1 or found.dtype.kind not in "biuf" or found.reshape(-1)[0] != found.reshape(-1)[0]:
        raise StatisticsError(f"an info says {shown(value)} about success; it must be True or False, or 0 or 1")
    return bool(found.reshape(-1)[0])


def _time_limit(env: VectorEnv[Any, Any, Any]) -> int | None:
    """Return the time limit of the environments, if their specs have one and the same."""
    base: Any = env.unwrapped
    specs = [getattr(one, "spec", None) for one in getattr(base, "envs", ())] or [getattr(base, "spec", None)]
    limits = {getattr(spec, "max_episode_steps", None) for spec in specs}
    limit = limits.pop() if len(limits) == 1 else None
    return limit if isinstance(limit, int) and limit >= 1 else None
