"""`TorchFairStatistics`: mean return and length of all episodes, running ones included, beside tensors on a device.

Runners log the mean over episodes that *finished*. Short ones finish first, so it is biased early on, and again
whenever learning makes episodes longer; truncations would bias it further. Here every step counts (`live.fair_law`). On
a CPU `FairStatistics` does the work; on any other device a step is tensor operations, and nothing waits for it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from array_api_compat import torch as array_torch

from steadyrl.common.checks import whole_number
from steadyrl.errors import StatisticsError
from steadyrl.integrations.torch.stagger import as_device, plain_flags, plain_tensor
from steadyrl.live import fair_law as law
from steadyrl.live.fair_report import FairReport, make_report
from steadyrl.live.fair_statistics import FairStatistics


class TorchFairStatistics:
    """Unbiased means over all episodes of copies that are reset within the step that ends an episode.

    Args:
        num_envs: number of copies.
        device: where rewards and flags are.
        memory: steps of each copy after which old data is mostly forgotten: data of n steps ago counts
            exp(-n / memory). By default nothing is forgotten; for a policy that learns take the time limit, or a few
            mean episode lengths.
        max_age: on a device, the oldest age that is told apart: the time limit, if there is one. What happens later in
            an episode is not counted. On a CPU tables grow as needed.

    Raises:
        StatisticsError: if an argument cannot be used.

    Example:
        >>> import torch
        >>> statistics = TorchFairStatistics(2)
        >>> for ended in ([True, False], [False, False], [False, True]):
        ...     statistics.update(torch.ones(2), torch.tensor(ended))
        >>> round(statistics.report().mean_return.value, 3)
        2.333
    """

    def __init__(
        self, num_envs: int, *, device: Any = "cpu", memory: float | None = None, max_age: int = 1 << 12
    ) -> None:
        self.device = as_device(device)
        self._host = FairStatistics(num_envs, same_step=True, memory=memory)
        self.num_envs, self.memory = self._host.num_envs, math.inf if memory is None else float(memory)
        age = whole_number("max_age", max_age, StatisticsError)
        self._state: Any = None  # on a device
        if self.device.type != "cpu":
            self._state = law.init(self.num_envs, max_age=age, xp=array_torch, device=self.device)
            self._nobody = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)

    def update(
        self, rewards: torch.Tensor, ended: torch.Tensor, cut: torch.Tensor | None = None, *, hidden: bool = False
    ) -> None:
        """Take in one step of all copies.

        Args:
            rewards: [num_envs], of this step.
            ended: [num_envs], whose episode ended by itself: terminated, or truncated by the time limit.
            cut: [num_envs], whose episode was truncated by staggering.
            hidden: whether a cut, decided before the step, hides who would have ended in it by himself; steps of cuts
                are then not counted, since they would count as survived.

        Raises:
            StatisticsError: if these are not tensors of that shape; on a CPU, if a reward is not finite.
        """
        rewards = self._given("rewards", rewards)
        ended, cut = self._given("ended", ended), None if cut is None else self._given("cut", cut)
        if self._state is None:
            cuts = None if cut is None else _on_host(cut)
            self._host.update(_on_host(rewards), _on_host(ended), cuts, hidden=hidden)
            return
        flags: Any = (ended != 0, self._nobody if cut is None else cut != 0, self._nobody)
        state = self._state
        if hidden:
            state = state._replace(ages=torch.where(flags[1], 0, state.ages))
        self._state = law.step(state, *(rewards, *flags), same_step=True, memory=self.memory)

    def _given(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return plain_tensor(name, value, self.num_envs, self.device, StatisticsError)

    def reset(self, mask: torch.Tensor | None = None) -> None:
        """Take note that copies were reset from outside: their running episodes are cut short.

        Args:
            mask: [num_envs], which ones; None means all of them.
        """
        flags = None if mask is None else plain_flags("mask", mask, self.num_envs, self.device, StatisticsError)
        if self._state is None:
            self._host.reset(None if flags is None else flags.numpy())
            return
        state, flags = self._state, ~self._nobody if flags is None else flags
        self._state = state._replace(
            ages=torch.where(flags, 1, state.ages),
            whole=state.whole | flags,
            returns=torch.where(flags, 0.0, state.returns),
        )

    def log(self) -> dict[str, torch.Tensor]:
        """Return what loggers write down, as tensors on the device; does not wait.

        - `fair/return`: mean return of an episode;
        - `fair/length`: mean number of steps in an episode;
        - `fair/unresolved`: share of episodes that outlive the oldest age seen; what they would add is left out.
        """
        state = self._state
        if state is None:
            self._host._fold()
            state = self._host._state
        found = law.means(state)
        values = found.mean_return, found.mean_length, found.unresolved
        return {
            name: torch.as_tensor(value, dtype=torch.float64)
            for name, value in zip(("fair/return", "fair/length", "fair/unresolved"), values, strict=True)
        }

    def report(self, level: float = 0.9) -> FairReport:
        """Return mean return and length with intervals; waits for the device.

        Raises:
            StatisticsError: if nothing was seen yet.
        """
        if self._state is None:
            return self._host.report(level)
        found: dict[str, Any] = {name: value.cpu().numpy() for name, value in self._state._asdict().items()}
        if not found["steps"]:
            raise StatisticsError("nothing was seen yet: call update first")
        numbers = {name: int(found[name]) for name in ("steps", "ended", "cut", "complete")}
        state = law.FairState(**found | numbers | {"weight": float(found["weight"])})
        return make_report(
            state,
            law.estimate(state, math.inf),
            level=level,
            with_success=False,
            reward_range=None,
            longest=math.inf,
        )


def _on_host(values: torch.Tensor) -> Any:
    """Return a tensor of the CPU as an array; numpy does not have all of its types."""
    return (values if values.dtype == torch.bool else values.to(torch.float64)).numpy()
