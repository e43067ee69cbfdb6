"""`FairStatistics`: mean return, length and success of the policy as it is, unbiased, at any moment.

A thin shell around the pure functions of `fair_law`: it checks its arguments and writes steps down, which takes a few
microseconds; they are counted in blocks, and estimates are made when a report is asked for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import (
    MOST_ENVS,
    as_numbers,
    check_flag,
    check_level,
    is_number,
    plain_array,
    shown,
    whole_number,
)
from steadyrl.errors import StatisticsError
from steadyrl.live import fair_law as law
from steadyrl.live.fair_law import FairState, Flags
from steadyrl.live.fair_report import FairReport, make_report
from steadyrl.live.states import check_fair, check_way, restored

Array = NDArray[np.float64]

_BLOCK = 1 << 13  # entries that are written down before they are counted
_FEWEST_ROWS, _MOST_ROWS = 16, 256
_LARGEST_POWER = 100  # of e, by which weights may grow before they are scaled back


class FairStatistics:
    """Mean return, length and success over all episodes of running environments, with intervals.

    Means over finished episodes are biased: short episodes finish first, and running ones are left out. Here every step
    counts, those of running and truncated episodes too: with r(k) the mean reward in the k-th step of an episode
    and S(k) the share of episodes that last k steps or more (Kaplan-Meier), the mean return is sum_k S(k) r(k). It
    holds whatever the environments' ages, in lockstep or not. Environments are the independent unit of the intervals.

    Args:
        num_envs: number of environments.
        same_step: whether environments are reset within the step that ends an episode (SAME_STEP, Stable-Baselines3).
            Otherwise (NEXT_STEP) the step after an end is the reset, whose reward belongs to no episode.
        ages: which action of its episode each environment takes next, 1 or more, if they are already running; by
            default all have just been reset.
        memory: steps of each environment after which old data is mostly forgotten, so that a policy that learns is
            followed: data of n steps ago counts exp(-n / memory). That is as noisy, and lags as far behind, as a window
            of 2 * memory steps. By default nothing is forgotten. See `tracking_memory` for a choice in training.
        reward_range: smallest and largest possible reward, for bounds; by default those seen so far.
        max_episode_steps: the time limit, in steps (Gymnasium's count), for bounds.

    Raises:
        StatisticsError: if an argument cannot be used.

    Example:
        >>> statistics = FairStatistics(2, same_step=True)
        >>> statistics.update([1.0, 1.0], [True, False])   # the first environment's episode has one step
        >>> statistics.update([1.0, 1.0], [False, False])
        >>> statistics.update([1.0, 1.0], [False, True])   # the second one's has three, and the first one runs on
        >>> report = statistics.report()
        >>> round(report.mean_return.value, 3), report.finished_only  # 1 + 2/3 + 2/3
        (2.333, 2.0)
    """

    def __init__(
        self,
        num_envs: int,
        *,
        same_step: bool,
        ages: Any = None,
        memory: float | None = None,
        reward_range: tuple[float, float] | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        self.num_envs = whole_number("num_envs", num_envs, StatisticsError, most=MOST_ENVS)
        if not isinstance(same_step, bool | np.bool_):
            raise StatisticsError(
                f"same_step is {shown(same_step)}; it must be True (resets happen within the step that ends an "
                "episode) or False (the step after an end is the reset)"
            )
        self.same_step = bool(same_step)
        self.memory = _as_memory(memory)
        self.reward_range = _as_range(reward_range)
        self.max_episode_steps = (
            None if max_episode_steps is None else whole_number("max_episode_steps", max_episode_steps, StatisticsError)
        )
        rows = min(max(_BLOCK // self.num_envs, _FEWEST_ROWS), _MOST_ROWS)
        self._shape = (self.num_envs,)
        self._rewards = np.zeros((rows, self.num_envs))
        self._ended = np.zeros((rows, self.num_envs), dtype=bool)
        self._cut = np.zeros((rows, self.num_envs), dtype=bool)
        self._hidden = np.zeros((rows, 1), dtype=bool)
        self._succeeded = np.zeros((rows, self.num_envs), dtype=bool)
        self._finite = np.ones(self.num_envs, dtype=bool)
        self._reward_rows, self._ended_rows = list(self._rewards), list(self._ended)
        self._filled = 0
        self._any_cut = self._with_success = self._unchecked = False
        self._state = law.init(self.num_envs, self._as_ages(ages))
        self._restarting = self._state.ages == 0  # NEXT_STEP: whose next step is the reset

    def update(self, rewards: Any, ended: Any, cut: Any = None, success: Any = None, *, hidden: bool = False) -> None:
        """Take in one step of all environments.

        Args:
            rewards: the rewards of this step.
            ended: whose episode ended by itself in this step: terminated, or truncated by the environment's time limit.
            cut: whose episode was truncated from outside, for reasons that have nothing to do with its state.
            success: whose episode ended in success; looked at where `ended` is set. Ends for which nobody says so
                are failures, once this was given at all.
            hidden: whether a cut, decided before the step, hides who would have ended in it by himself; steps of cuts
                are then not counted, since they would count as survived.

        Raises:
            StatisticsError: if these are not one finite number or boolean for each environment, if `ended` and `cut`
                are both set, or if an episode ends in the step of its reset (NEXT_STEP). The step is then not taken in.
        """
        at = self._take(rewards)
        row = self._reward_rows[at]
        if np.count_nonzero(np.isfinite(row, self._finite)) < self.num_envs:
            self._refuse_infinite(row)
        over = ended = self._flags(ended, "ended")
        if cut is not None:
            cut = self._flags(cut, "cut")
            hidden = check_flag("hidden", hidden, StatisticsError)
            if ended.dot(cut):
                both = np.flatnonzero(ended & cut).tolist()
                raise StatisticsError(
                    f"ended and cut are both set for environments {both}; an episode that ended by itself was not cut "
                    "short"
                )
            over = ended | cut
        if not self.same_step and over.dot(self._restarting):
            self._refuse_early(over)
        if success is not None:
            self._succeeded[at] = self._flags(success, "success")
            self._with_success = True
        if cut is not None:
            self._cut[at], self._hidden[at] = cut, hidden
            self._any_cut = True
        row = self._ended_rows[at]
        row[:] = ended
        self._restarting = row if cut is None else over
        self._filled = at + 1

    def watch(self, rewards: Any, terminated: Any, truncated: Any) -> None:
        """Take in one step in which no episode was truncated from outside, as `update` does.

        It is faster, since rewards and ends are checked in blocks: an error comes some steps late, or with the report.
        """
        at = self._take(rewards)
        row = self._ended_rows[at]
        np.logical_or(self._flags(terminated, "terminated"), self._flags(truncated, "truncated"), row)
        self._restarting = row
        self._unchecked = True
        self._filled = at + 1

    def update_many(self, rewards: Any, ended: Any) -> None:
        """Take in many steps at once, as that many calls of `update` would.

        Args:
            rewards: the rewards, shape (steps, num_envs).
            ended: whose episode ended by itself in each step, in the same shape.

        Raises:
            StatisticsError: as `update`; none of the steps is then taken in.
        """
        values = as_numbers("rewards", rewards, StatisticsError)
        flags = as_numbers("ended", ended, StatisticsError)
        if values.ndim != 2 or values.shape[1:] != self._shape or flags.shape != values.shape:
            raise StatisticsError(
                f"rewards have shape {values.shape} and ended has {flags.shape}; both must be (steps, {self.num_envs})"
            )
        if not np.isin(flags, (0, 1)).all():
            raise StatisticsError(f"ended is {shown(ended)}; it must hold booleans")
        self._fold()
        over = flags.astype(bool)
        ages, following = law.follow(self._state.ages, over, self.same_step)
        values = np.where(ages > 0, values, 0.0)
        self._check_block(ages, values, over)
        memory, nobody = math.inf if self.memory is None else self.memory, np.zeros_like(over)
        most = max(int(min(_LARGEST_POWER * memory, len(over))), 1)
        for first in range(0, len(over), most):  # weights grow by exp(steps / memory)
            part = slice(first, first + most)
            parts = (ages[part], values[part], over[part], over[part], nobody[part])
            with np.errstate(over="ignore"):  # report() says so
                self._state = law.fold(self._state, *parts, memory)
        self._state = self._state._replace(ages=following)
        self._restarting = following == 0

    def reset(self, mask: Any = None, *, ages: Any = None) -> None:
        """Take note that environments were reset from outside: their running episodes are cut short.

        Args:
            mask: which ones; None means all of them.
            ages: which action of its episode each environment takes next, if it is not the first.
        """
        flags = np.ones(self.num_envs, dtype=bool) if mask is None else self._flags(mask, "mask")
        first = self._as_ages(ages)
        self._fold()
        self._restart(flags, np.ones(self.num_envs, dtype=np.int64) if first is None else first)

    def restarted(self, mask: Any) -> None:
        """Take note that the last step of these environments was a reset from outside, and is not to be counted."""
        flags = self._flags(mask, "mask")
        if not self._filled:
            raise StatisticsError("restarted is about the last step: call it right after update, before anything else")
        self._fold(void=flags)
        self._restart(flags, np.ones(self.num_envs, dtype=np.int64))

    def _restart(self, flags: Flags, ages: NDArray[np.int64]) -> None:
        """Let these environments begin anew before the steps that are not counted yet."""
        state = self._state
        self._state = state._replace(
            ages=np.where(flags, ages, state.ages),
            returns=np.where(flags, 0.0, state.returns),
            whole=np.where(flags, ages <= 1, state.whole),
        )
        self._restarting = self._state.ages == 0

    def forget(self) -> None:
        """Forget everything that was counted, as for another policy; the environments run on."""
        ages = self.ages
        self._state = law.init(self.num_envs, ages, self._state.tables.shape[2] - 1)

    def report(self, level: float = 0.9) -> FairReport:
        """Return mean return, length and success of the policy's episodes, as far as they are known now.

        Args:
            level: confidence level of the intervals.

        Raises:
            StatisticsError: if there was no step yet.
        """
        level = check_level(level, StatisticsError)
        state = self._as_of_now()
        if not state.range[0] <= state.range[1]:
            raise StatisticsError("there is nothing to report: call update(rewards, ended) for each step first")
        longest = math.inf if self.max_episode_steps is None else float(self.max_episode_steps)
        with np.errstate(over="ignore", invalid="ignore"):  # make_report refuses sums that overflow
            estimate = law.estimate(state, longest)
        return make_report(
            state,
            estimate,
            level=level,
            with_success=self._with_success,
            reward_range=self.reward_range,
            longest=longest,
        )

    @property
    def ages(self) -> NDArray[np.int64]:
        """Which action of its episode each environment takes next; 1 after a reset, 0 if its next step is the reset."""
        self._fold()
        return np.array(self._state.ages)

    @property
    def steps(self) -> int:
        """Number of steps taken in, each of all environments."""
        return self._state.steps + self._filled

    def state(self) -> dict[str, Any]:
        """Return all that fair statistics made anew need to go on from here (`restore`), as arrays."""
        self._fold()
        found = {name: np.array(value) for name, value in self._state._asdict().items()}
        return found | {"with_success": np.array(self._with_success), "same_step": np.array(self.same_step)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            StatisticsError: if the state is not that of statistics of as many environments.
        """
        names = [*FairState._fields, "with_success"]
        missing = [name for name in names if not isinstance(state, Mapping) or name not in state]
        shape = None if missing else plain_array("ages", state["ages"], StatisticsError).shape
        if shape != self._shape:
            raise StatisticsError(
                f"this is not the state of statistics of {self.num_envs} environments"
                + (f"; {', '.join(missing)} is missing" if missing else f": ages have shape {shape}")
            )
        tables = plain_array("tables", state["tables"], StatisticsError).shape
        like = law.init(self.num_envs, max_age=tables[-1] - 1 if len(tables) == 3 and tables[-1] else 1)._asdict()
        if len(tables) == 3 and 0 < tables[1] <= like["tables"].shape[1]:  # groups may have been merged
            like["tables"] = like["tables"][:, : tables[1]]
        like = {name: np.asarray(value) for name, value in like.items()} | {"with_success": np.zeros((), dtype=bool)}
        check_way(state, self.same_step, StatisticsError)
        found = restored(
            state, like, StatisticsError, signed=("returns", "tables", "finished", "last_rewards", "range")
        )
        check_fair(found, self.num_envs)
        self._with_success = bool(found.pop("with_success"))
        numbers = {name: found[name].item() for name in ("weight", "steps", "ended", "cut", "complete")}
        self._filled = 0
        self._any_cut = self._unchecked = False
        self._cut[:] = self._succeeded[:] = False
        self._state = FairState(**found | numbers)
        self._restarting = self._state.ages == 0

    def __repr__(self) -> str:
        return f"FairStatistics({self.num_envs}, same_step={self.same_step}, memory={self.memory}, steps={self.steps})"

    def _as_of_now(self) -> FairState:
        """Return the state with all steps counted, and leave what is kept as it is.

        Steps are counted in blocks, and sums of other blocks differ in the last digit. So reports, which may come at
        any time (in `evaluate` once a second), must not begin a new block.
        """
        if not self._filled:
            return self._state
        seen = copy.copy(self)
        seen._cut, seen._succeeded = self._cut.copy(), self._succeeded.copy()
        seen._state = self._state._replace(tables=self._state.tables.copy())
        try:
            seen._fold()
        except StatisticsError:
            self._fold()  # which raises it again, and leaves these steps out from now on
            raise
        return seen._state

    def _fold(self, void: Flags | None = None) -> None:
        """Count what was written down, but not the last step of those environments for which it is void."""
        if not self._filled:
            return
        rows = slice(0, self._filled)
        rewards, ended = self._rewards[rows], self._ended[rows]
        over = ended | self._cut[rows] if self._any_cut else ended
        ages, following = law.follow(self._state.ages, over, self.same_step)
        if void is not None:
            over = ended | self._cut[rows]
            ages[-1, void], ended[-1, void], over[-1, void] = 0, False, False
        if void is not None or not self.same_step:
            rewards = np.where(ages > 0, rewards, 0.0)
        self._filled = 0
        if self._unchecked:
            self._unchecked = False
            try:
                self._check_block(ages, rewards, over)
            except StatisticsError:
                self._drop(following)
                raise
        if self._any_cut and self._hidden[rows].any():
            ages = np.where(self._cut[rows] & self._hidden[rows], 0, ages)
            rewards = np.where(ages > 0, rewards, 0.0)
        memory = math.inf if self.memory is None else self.memory
        with np.errstate(over="ignore"):  # report() says so
            state = law.fold(self._state, ages, rewards, ended, over, self._succeeded[rows], memory)
        self._state = state._replace(ages=following)
        if self._any_cut:
            self._cut[:] = False
            self._any_cut = False
        if self._with_success:
            self._succeeded[:] = False
        self._restarting = following == 0

    def _drop(self, ages: NDArray[np.int64]) -> None:
        """Go on behind steps that are not counted: ages are known, the returns of running episodes are not."""
        self._state = self._state._replace(ages=ages, whole=ages <= 1, returns=np.zeros(self.num_envs))
        self._restarting = ages == 0
        self._cut[:] = self._succeeded[:] = False
        self._any_cut = False

    def _take(self, rewards: Any) -> int:
        """Write rewards down, and return in which row."""
        at = self._filled
        if at == len(self._reward_rows):
            self._fold()
            at = 0
        row = self._reward_rows[at]
        if type(rewards) is np.ndarray and rewards.shape == self._shape and rewards.dtype.kind in "fiu":
            row[:] = rewards
        else:
            row[:] = self._numbers(rewards)
        return at

    def _check_block(self, ages: NDArray[np.int64], rewards: Array, over: Flags) -> None:
        """Make the checks that `watch` has left out; what was written down is dropped if one fails."""
        finite = np.isfinite(rewards)
        if not finite.all():
            row = int(np.argmin(finite.all(axis=1)))
            self._restarting = ages[row] == 0
            self._refuse_infinite(rewards[row].copy())
        if not self.same_step and (over & (ages == 0)).any():
            row = int(np.argmax((over & (ages == 0)).any(axis=1)))
            self._restarting = ages[row] == 0
            self._refuse_early(over[row])

    def _refuse_early(self, over: Flags) -> None:
        early = np.flatnonzero(over & self._restarting).tolist()
        raise StatisticsError(
            f"episodes of environments {early} ended in the step of their reset; with NEXT_STEP autoreset the step "
            "after an end is the reset. If yours are reset within the step that ends an episode, same_step is True"
        )

    def _refuse_infinite(self, row: Array) -> None:
        counted = np.full(self.num_envs, True) if self.same_step else ~self._restarting
        bad = np.flatnonzero(~np.isfinite(row) & counted)
        if len(bad):
            raise StatisticsError(
                f"the reward of environment {bad[0]} is {row[bad[0]]}; one such reward would spoil all means. Mend the "
                "environment, or replace it (numpy.nan_to_num) if you know what it stands for"
            )
        row[~counted] = 0.0  # of a reset, which belongs to no episode

    def _numbers(self, rewards: Any) -> Array:
        values = as_numbers("rewards", rewards, StatisticsError)
        if values.shape != self._shape:
            raise StatisticsError(
                f"rewards have shape {values.shape}; for {self.num_envs} environments it must be ({self.num_envs},)"
            )
        return values

    def _flags(self, flags: Any, name: str) -> Flags:
        if type(flags) is np.ndarray and flags.dtype == np.bool_ and flags.shape == self._shape:
            return flags
        values = as_numbers(name, flags, StatisticsError)
        if values.shape != self._shape:
            raise StatisticsError(
                f"{name} has shape {values.shape}; for {self.num_envs} environments it must be ({self.num_envs},)"
            )
        if not np.isin(values, (0, 1)).all():
            raise StatisticsError(f"{name} is {shown(flags)}; it must hold booleans, one for each environment")
        return values.astype(bool)

    def _as_ages(self, ages: Any) -> NDArray[np.int64] | None:
        if ages is None:
            return None
        values = as_numbers("ages", ages, StatisticsError)
        if values.shape != self._shape:
            raise StatisticsError(
                f"ages have shape {values.shape}; for {self.num_envs} environments it must be ({self.num_envs},)"
            )
        bad = np.flatnonzero(~((values >= 1) & (values == np.floor(values)) & (values < 2**62)))
        if len(bad):
            raise StatisticsError(
                f"ages[{bad[0]}] is {values[bad[0]]:g}; an age is the number of an action in its episode, a whole "
                "number, 1 or more"
            )
        return values.astype(np.int64)


def tracking_memory(window: float, num_envs: int, mean_length: float) -> float:
    """Return the memory with which `FairStatistics` follow a policy that learns, in steps of each environment.

    Its effective window, 2 * memory steps, has as many steps as `window` episodes, and two mean lengths of each
    environment at least, so that all ages were seen lately.

    Args:
        window: number of episodes, over all environments; logs of finished episodes usually take 100.
        num_envs: number of environments.
        mean_length: mean number of actions in an episode.

    Example:
        >>> tracking_memory(100, 8, 200.0), tracking_memory(100, 64, 200.0)
        (1250.0, 200.0)
    """
    return max(window / (2 * num_envs), 1.0) * mean_length


def _as_memory(memory: Any) -> float | None:
    if memory is None:
        return None
    if not is_number(memory) or not 1 <= memory < math.inf:
        raise StatisticsError(
            f"memory is {shown(memory)}; it must be a number of steps of each environment, 1 or more, or None, to "
            "forget nothing"
        )
    return float(memory)


def _as_range(reward_range: Any) -> tuple[float, float] | None:
    if reward_range is None:
        return None
    values = as_numbers("reward_range", reward_range, StatisticsError)
    if values.shape != (2,) or not values[0] <= values[1]:
        raise StatisticsError(
            f"reward_range is {shown(reward_range)}; it must be the smallest and the largest reward that is possible, "
            "as in (0, 1)"
        )
    return float(values[0]), float(values[1])
