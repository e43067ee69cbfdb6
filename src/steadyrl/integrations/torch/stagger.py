"""`TorchStagger`: staggering beside environments whose tensors are on a device, without waiting for it.

On a CPU a tensor and a numpy array share their memory, so `StaggerController` decides, which is fastest there. On any
other device the state is tensors, a step is tensor operations (`live.stagger_law`), and nothing is copied to the host
before a report is asked for. Both give the same truncations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from array_api_compat import torch as array_torch

from steadyrl.common.checks import shown, whole_number
from steadyrl.errors import StaggerError, SteadyrlError
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.live import stagger_law as law
from steadyrl.live.phase import PhaseReport
from steadyrl.live.stagger_controller import StaggerController, small_seed

_FIRST_ROOM = 64  # ages, in tables that grow


class TorchStagger:
    """Staggers the episodes of environments that were reset together; all that it is told and returns are tensors.

    Nothing needs to be known beforehand: episode lengths are learnt from the environments themselves, and a policy that
    changes is followed. See `StaggerController`, whose truncations these are.

    Args:
        num_envs: number of environments.
        device: where the flags of ends are and the truncations are wanted.
        same_step: whether environments are reset within the step that ends an episode, as torch simulators do.
        late_cuts: whether the episodes that `step` returns are truncated in the next step, as by setting the counter of
            a time limit (`rsl_rl`).
        max_age: the oldest age that is told apart from older ones; a time limit, if there is one. On a CPU tables grow
            as needed, and this is not looked at.
        seed: seed of the choice between environments of the same age; None takes another one every time.

    Raises:
        StaggerError: if an argument cannot be used.

    Example:
        >>> import torch
        >>> stagger = TorchStagger(6, seed=0)
        >>> for _ in range(3):  # episodes last three steps, always
        ...     cut = stagger.step(stagger.ages == 3)
        >>> sorted(stagger.ages.tolist())
        [1, 1, 2, 2, 3, 3]
    """

    def __init__(
        self,
        num_envs: int,
        *,
        device: Any = "cpu",
        same_step: bool = True,
        late_cuts: bool = False,
        max_age: int = 1 << 16,
        seed: int | None = None,
    ) -> None:
        self.device = as_device(device)
        own = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else small_seed(seed)
        self._host = StaggerController(num_envs, same_step=same_step, late_cuts=late_cuts, seed=own)
        self.num_envs, self.same_step, self.late_cuts = self._host.num_envs, self._host.same_step, self._host.late_cuts
        self.max_age = whole_number("max_age", max_age, StaggerError)
        self._state: law.StaggerState | None = None  # on a device
        self._begin(own)

    def _begin(self, seed: int) -> None:
        """Start anew with lengths unknown."""
        self._host.reset(seed=seed)
        self._steps = 0  # since the last reset of all: no age is above it
        if self.device.type != "cpu":
            room = min(self.max_age, _FIRST_ROOM)
            self._state = law.init(self.num_envs, room, seed=seed, xp=array_torch, device=self.device)
            self._late = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
            self._refused = self._late

    def step(self, done: torch.Tensor) -> torch.Tensor:
        """Take in one step of all environments; return whose episode to truncate in it (late cuts: in the next one).

        Args:
            done: [num_envs], whose episode ended by itself in this step (terminated, or truncated by the time limit);
                with late cuts, also those that were to be truncated in it.

        Raises:
            StaggerError: if `done` has another shape or is elsewhere. With late cuts, if an environment that was to be
                truncated goes on: at once on a CPU, with the next report on another device.
        """
        flags = self._flags(done, "done")
        if self._state is None:
            return torch.from_numpy(self._host.step(flags.numpy()))
        self._steps += 1
        if self._steps + 2 > self._state.new_visits.shape[0] and self._state.new_visits.shape[0] <= self.max_age:
            self._state = law.with_room(self._state, min(self._steps + 2, self.max_age))
        if self.late_cuts:
            self._refused = self._refused | (self._late & ~flags)
            flags = flags & ~self._late
        self._state, cut = law.step(self._state, flags, same_step=self.same_step, late_cuts=self.late_cuts)
        self._late = cut
        return cut  # type: ignore[no-any-return]

    def reset(self, mask: torch.Tensor | None = None, *, seed: int | None = None) -> None:
        """Tell the controller that environments were reset from outside.

        Args:
            mask: which ones; None means all of them, so that they are in lockstep again.
            seed: begin anew with this seed, as after the construction: lengths are forgotten, too.
                With a mask the seed is not looked at.
        """
        if mask is None and seed is not None:
            self._begin(small_seed(seed))
        elif self._state is None:
            self._host.reset(None if mask is None else self._flags(mask, "mask").numpy())
        elif mask is None:
            state, nobody = self._state, torch.zeros_like(self._late)
            ones = torch.ones_like(state.ages)
            active, carry = torch.ones_like(state.active), torch.zeros_like(state.carry)
            self._state = state._replace(ages=ones, restarting=nobody, active=active, carry=carry)
            self._late = nobody
        else:
            flags = self._flags(mask, "mask")
            ages = torch.where(flags, 1, self._state.ages)
            self._state = self._state._replace(ages=ages, restarting=self._state.restarting & ~flags)
            self._late = self._late & ~flags

    @property
    def ages(self) -> torch.Tensor:
        """The age of the state that each environment is in: 1 after a reset, 0 before the step of a late cut."""
        return torch.from_numpy(self._host.ages) if self._state is None else self._state.ages

    def log(self) -> dict[str, torch.Tensor]:
        """Return what loggers write down of the ages of this moment, as tensors on the device; does not wait.

        - `steady/phase_distance`: total variation between the ages and the long run, without what chance adds;
        - `steady/in_lockstep`: 1 if the environments run in lockstep, 0 if there is no evidence of it;
        - `steady/ep_len_mean`: mean length of recent episodes in steps, running ones included.

        Before the first end of an episode they are nan.
        """
        if self._state is not None:
            found = law.phase(self._state)
            locked = (found.distance > found.noise.clamp(min=0.01)) & (found.unresolved <= 0.05)
            distance, mean = found.distance, found.average_episode_length - (0 if self.same_step else 1)
            values = [torch.where(found.known, x.to(mean.dtype), torch.nan) for x in (distance, locked, mean)]
        else:
            report = self._host.phase
            known = report.ends > 0
            mean = report.average_episode_length - 1 if known else float("nan")
            numbers = report.distance, float(report.phase_locked) if known else float("nan"), mean
            values = [torch.tensor(x, dtype=torch.float64) for x in numbers]
        return dict(zip(("steady/phase_distance", "steady/in_lockstep", "steady/ep_len_mean"), values, strict=True))

    @property
    def cuts(self) -> int:
        """Truncations so far, over all environments; waits for the device."""
        return self.on_host().cuts

    @property
    def phase(self) -> PhaseReport:
        """How far the ages of this moment are from the steady state, as far as lengths are known; waits."""
        return self.on_host().phase

    @property
    def lengths(self) -> EpisodeLengths | None:
        """Distribution of T of recent episodes, running ones included; None before the first end; waits."""
        return self.on_host().lengths

    def on_host(self) -> StaggerController:
        """Return a controller on the host with the state of this moment; waits for the device.

        Raises:
            StaggerError: if, with late cuts, an environment went on that was to be truncated.
        """
        if self._state is not None:
            if bool(self._refused.any()):
                raise StaggerError(
                    f"environments {self._refused.nonzero().flatten().tolist()} were to be truncated and went on; "
                    "whoever truncates them (as by the counter of a time limit) has no effect"
                )
            self._host.restore({name: value.cpu().numpy() for name, value in self._state._asdict().items()})
        return self._host

    def _flags(self, flags: torch.Tensor, name: str) -> torch.Tensor:
        """Check what can be checked without waiting."""
        return plain_flags(name, flags, self.num_envs, self.device, StaggerError)


def plain_tensor(
    name: str, value: Any, num_envs: int, device: torch.device, error: type[SteadyrlError]
) -> torch.Tensor:
    """Return a tensor with one number for each environment, without its gradient; or raise `error`."""
    if not isinstance(value, torch.Tensor):
        raise error(f"{name} is {shown(value)}; it must be a tensor with one number for each environment")
    if value.is_nested:
        raise error(f"{name} is a nested tensor; it must have one number for each environment")
    if value.shape != (num_envs,):
        raise error(f"{name} has shape {tuple(value.shape)}; for {num_envs} environments it must be ({num_envs},)")
    if value.device.type != device.type:
        raise error(
            f"{name} is on {value.device}, and what it is given to on {device}; make that with "
            f"device={str(value.device)!r}, since a copy in every step would make the device wait"
        )
    if value.layout != torch.strided or value.is_quantized or value.is_complex():
        raise error(f"{name} is {shown(value)}; it must be a dense tensor of real numbers or of booleans")
    return value.detach()


def plain_flags(name: str, value: Any, num_envs: int, device: torch.device, error: type[SteadyrlError]) -> torch.Tensor:
    """Return a tensor with one boolean for each environment, made of booleans or of zeros and ones; or raise `error`.

    Other numbers are refused on a CPU. Elsewhere looking at them would wait for the device, and all but 0 are true.
    """
    found = plain_tensor(name, value, num_envs, device, error)
    if found.dtype == torch.bool:
        return found
    flags = found != 0
    if device.type == "cpu" and not torch.equal(flags.to(found.dtype), found):
        raise error(f"{name} is {shown(value)}; it must hold booleans, one for each environment")
    return flags


def as_device(device: Any) -> torch.device:
    """Return a torch device.

    Raises:
        StaggerError: if there is none of that name, or if it cannot compute in 64 bits.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise StaggerError(f"device is {shown(device)}, which torch does not know; give 'cpu' or 'cuda:0'") from error
    if found.type == "mps":
        raise StaggerError("device 'mps' has no 64-bit numbers, which staggering needs; keep the flags on 'cpu'")
    return found
