"""Truncating episodes through the step counters of a batched simulator.

Torch simulators count the steps of their episodes in a tensor (`episode_length_buf` in Isaac Lab, mjlab, Genesis and
legged_gym, `progress_buf` in IsaacGymEnvs, `_elapsed_steps` in ManiSkill). At the time limit they reset a copy
themselves and report a time-out. Whoever writes the limit into the counter truncates an episode in the next step, by
the simulator's own way: no reset of our own, and whatever bootstraps at time limits bootstraps here.

A copy whose counter was written sees that counter for one step. Rewards and observations that are functions of the
counter (the phase of a gait, the time that is left) are off in that step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from steadyrl.common.checks import MOST_STEPS, as_numbers, shown, whole_number
from steadyrl.errors import WrapperError
from steadyrl.integrations.torch.stagger import TorchStagger, as_device, plain_flags, plain_tensor
from steadyrl.integrations.torch.statistics import TorchFairStatistics

_LONGEST = 1 << 12  # steps; of longer episodes the statistics know no more than that


class CounterStagger:
    """Staggers the copies of a simulator through its step counters; call `step` after each of its steps.

        stagger = CounterStagger(simulator)
        ...
        observations, rewards, terminated, truncated, infos = simulator.step(actions)
        stagger.step(terminated | truncated, rewards)

    `staggering` reports on the ages (`TorchStagger`), `statistics` on the mean return and length of all episodes
    (`TorchFairStatistics`), if rewards are given; their memory is the time limit, at most 4,096 steps.

    Args:
        env: the simulator that has the counters, just reset; what wrappers call `unwrapped`.
        counters: name of its tensor of counters, one for each copy.
        limit: its time limit in steps, one number or one for each copy; or the name under which the simulator has it.
        seed: seed of the choice between copies of the same age; None takes another one every time.
        log_interval: steps from one `log_now` to the next; 0 means none.

    Raises:
        WrapperError: if the simulator has no such counters or limit.
    """

    def __init__(
        self,
        env: Any,
        *,
        counters: str = "episode_length_buf",
        limit: Any = "max_episode_length",
        seed: int | None = None,
        log_interval: int = 16,
    ) -> None:
        if not isinstance(counters, str):
            raise WrapperError(f"counters is {shown(counters)}; it must be the name of the simulator's counters")
        self.env, self.name, self._limit = env, counters, limit
        self.log_interval = whole_number("log_interval", log_interval, WrapperError, least=0)
        self.steps = 0
        found = self.counters
        if not isinstance(found, torch.Tensor) or found.ndim != 1 or self.limit is None:
            raise WrapperError(
                f"{type(env).__name__} has {shown(counters)} {shown(found)} and time limit {shown(self.limit)}; a "
                "tensor with one counter for each copy, and a time limit, are needed to truncate episodes through them"
            )
        plain_tensor(counters, found, found.shape[0], as_device(found.device), WrapperError)
        longest = _longest(self.limit, found.shape[0])
        self.staggering = TorchStagger(
            found.shape[0], device=found.device, late_cuts=True, max_age=longest + 2, seed=seed
        )
        self.statistics = TorchFairStatistics(
            found.shape[0], device=found.device, memory=min(longest, _LONGEST), max_age=min(longest + 1, _LONGEST)
        )
        self._late = torch.zeros(found.shape[0], dtype=torch.bool, device=found.device)

    @property
    def counters(self) -> Any:
        """The simulator's counters."""
        return getattr(self.env, self.name, None)

    @property
    def limit(self) -> Any:
        """The time limit in steps."""
        return getattr(self.env, self._limit, None) if isinstance(self._limit, str) else self._limit

    def step(
        self, dones: torch.Tensor, rewards: torch.Tensor | None = None, terminated: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Take in whose episode ended in a step; return whose episode the simulator truncates in the next one.

        Args:
            dones: whose episode ended, for whatever reason.
            rewards: of this step, for the statistics; None leaves them out.
            terminated: whose episode ended by itself, if that is known even of those that are truncated in the same
                step; without it, the statistics leave out the steps of truncations.

        Raises:
            StaggerError: if a copy went on whose counter was written: at once on a CPU, else with the next report.
        """
        dones = self._flags("dones", dones)
        if rewards is not None:
            over = dones if terminated is None else dones & ~self._flags("terminated", terminated)
            cut = self._late & over
            self.statistics.update(self._rows("rewards", rewards), dones & ~cut, cut, hidden=terminated is None)
        self._late = cut = self.staggering.step(dones)
        self.steps += 1
        self.write_limits()
        return cut

    def _rows(self, name: str, values: Any) -> torch.Tensor:
        """Return one number for each copy as a vector."""
        return plain_tensor(name, _flat(values), len(self._late), self.staggering.device, WrapperError)

    def _flags(self, name: str, values: Any) -> torch.Tensor:
        """Return one boolean for each copy as a vector."""
        return plain_flags(name, _flat(values), len(self._late), self.staggering.device, WrapperError)

    def write_limits(self) -> None:
        """Write the limit into the counters of those that are truncated in the next step.

        `step` does so; it is needed again if somebody else writes all counters between two steps.
        """
        cut = self._late
        if self.staggering.device.type == "cpu" and not np.count_nonzero(cut.numpy()):  # elsewhere this would wait
            return
        counters, limit = self.counters, self.limit
        if isinstance(limit, int):
            counters.masked_fill_(cut, limit)
            setattr(self.env, self.name, counters)  # where it is a property that returns a copy
        else:
            if not isinstance(limit, torch.Tensor):  # such as a reversed array, of which torch makes no tensor
                limit = as_numbers("limit", limit, WrapperError)
            limit = torch.as_tensor(limit, device=counters.device).to(counters.dtype)
            self.write(torch.where(cut, limit, counters))

    def reset(self) -> None:
        """Take note that all copies were reset from outside."""
        self.staggering.reset()
        self.statistics.reset()
        self._late = torch.zeros_like(self._late)

    @property
    def log_now(self) -> bool:
        """Whether this is the step of an entry in the log."""
        return bool(self.log_interval) and self.steps % self.log_interval == 0

    def log(self) -> dict[str, torch.Tensor]:
        """Return what loggers write down of ages and episodes, as tensors on the device; does not wait."""
        return self.staggering.log() | self.statistics.log()

    def write(self, values: torch.Tensor) -> None:
        """Write the counters in place, so that they remain a tensor that the simulator may change anywhere.

        Raises:
            WrapperError: if the values are not a tensor with one number for each copy, or would be rounded.
        """
        counters, values = self.counters, self._rows("values", values)
        if not torch.can_cast(values.dtype, counters.dtype):
            raise WrapperError(
                f"values are of type {values.dtype}, and the counters of type {counters.dtype}, which would round "
                f"them; give values.to({counters.dtype})"
            )
        counters.copy_(values)
        setattr(self.env, self.name, counters)  # where it is a property that returns a copy


def _flat(values: Any) -> Any:
    """Return a tensor as a vector, since some simulators have columns; anything else as it is."""
    dense = isinstance(values, torch.Tensor) and values.layout == torch.strided and not values.is_nested
    return values.flatten() if dense else values


def _longest(limit: Any, num_envs: int) -> int:
    """Return the longest time limit, or raise WrapperError."""
    held = isinstance(limit, torch.Tensor) and not limit.is_meta and limit.layout == torch.strided
    values = as_numbers("limit", limit.detach().cpu() if held else limit, WrapperError)
    flag = isinstance(limit, bool) or getattr(limit, "dtype", None) in (torch.bool, np.bool_)
    if flag or values.size not in (1, num_envs) or not ((values >= 1) & (values <= MOST_STEPS)).all():
        raise WrapperError(
            f"the time limit is {shown(limit)}; it must be a number of steps from 1 to {MOST_STEPS:,}, or one for each "
            f"of the {num_envs} copies"
        )
    return int(values.max())
