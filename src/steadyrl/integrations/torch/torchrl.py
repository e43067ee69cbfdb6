"""TorchRL: a transform that staggers the episodes of a batched environment.

    env = TransformedEnv(ParallelEnv(256, make_env), StaggerTransform())

The transform sits on the batched environment, sees whose episode ended, and marks those that are too many at their age
as truncated, in that very step. TorchRL then resets them as it resets any copy whose episode is over; `GAE` and the
other estimators bootstrap from the observation before that reset, since they are not terminated.

TorchRL has a transform for the same purpose, `RandomTruncationTransform`: it draws the length of each first episode
uniformly, up to a horizon that the user states. That is right for episodes of a fixed length, after that length; not
for copies that end by themselves.
"""

from __future__ import annotations

from typing import Any

import torch

from steadyrl.errors import MissingExtraError, WrapperError
from steadyrl.integrations.torch.stagger import TorchStagger
from steadyrl.integrations.torch.statistics import TorchFairStatistics

try:
    from torchrl.data import Binary, Composite
    from torchrl.envs import Compose, Transform, TransformedEnv
    from torchrl.envs.transforms import VecGymEnvTransform
except ImportError as error:
    raise MissingExtraError('this needs TorchRL; install it with: pip install "steadyrl[torchrl]"') from error


class StaggerTransform(Transform):
    """Staggers the copies of a batched environment, so that every batch is a fair sample, and stays one.

    Put it on the environment that holds all copies (a `ParallelEnv`, a `SerialEnv`, a batched simulator), after a
    `StepCounter` with a time limit if there is one. TorchRL must be the one who resets copies: a vector environment of
    Gymnasium has to have `AutoresetMode.DISABLED`.

    Args:
        seed: seed of the choice between copies of the same age; None takes another one every time.
        max_age: on a device, the oldest age that is told apart from older ones; a time limit, if there is one.
        memory: steps of each copy after which the fair means mostly forget; a few mean episode lengths.

    Raises:
        WrapperError: at the first reset, if the environment has one copy only, has no entry "done" for whole copies, or
            resets copies by itself.
    """

    invertible = False

    def __init__(self, *, seed: int | None = None, max_age: int = 1 << 12, memory: float = 1000) -> None:
        super().__init__()
        self.seed, self.max_age, self.memory = seed, max_age, memory
        self._staggering: TorchStagger | None = None
        self._statistics: TorchFairStatistics | None = None
        self._over: torch.Tensor | None = None  # who is to be reset after the last step

    @property
    def staggering(self) -> TorchStagger:
        """What decides about truncations, and reports: `log()`, `phase`, `lengths`, `cuts`.

        Raises:
            WrapperError: before the first reset.
        """
        if self._staggering is None:
            raise WrapperError("the environment has not been reset, so nothing is known of its copies; reset it first")
        return self._staggering

    def log(self) -> dict[str, torch.Tensor]:
        """Return what loggers write down of ages (`steady/`) and episodes (`fair/`), as tensors; does not wait."""
        found = self.staggering.log()
        return found if self._statistics is None else found | self._statistics.log()

    @property
    def statistics(self) -> TorchFairStatistics:
        """Mean return and length of all episodes, running ones included: `report()`.

        Raises:
            WrapperError: before the first step, or if there is not one reward for each copy.
        """
        if self._statistics is None:
            raise WrapperError("there was no step with one reward for each copy, so nothing is known of returns")
        return self._statistics

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        done = _entry(tensordict_reset, "done")
        if self._staggering is None:
            if _resets_itself(self.container):
                raise WrapperError(
                    "the environment resets its copies by itself, so TorchRL cannot reset those that are truncated; "
                    "make it with AutoresetMode.DISABLED if it is Gymnasium's, or use a SerialEnv or ParallelEnv"
                )
            if done.numel() == 1:
                raise WrapperError(
                    "the environment has one copy, and copies are staggered against each other; put StaggerTransform "
                    "on the environment that holds them all: TransformedEnv(ParallelEnv(...), StaggerTransform())"
                )
            self._staggering = TorchStagger(done.numel(), device=done.device, max_age=self.max_age, seed=self.seed)
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            self._staggering.reset()
            if self._statistics is not None:
                self._statistics.reset()
        elif not self._expected(mask):
            self._staggering.reset(mask.flatten())
            if self._statistics is not None:
                self._statistics.reset(mask.flatten())
        return tensordict_reset

    def _expected(self, mask: torch.Tensor) -> bool:
        """Whether those are reset whose episode is over, which is known already; on a device it is not looked at."""
        if self._over is None or mask.device.type != "cpu":
            return False
        return torch.equal(mask.flatten(), self._over)

    def _step(self, tensordict: Any, next_tensordict: Any) -> Any:
        done, truncated = _entry(next_tensordict, "done"), next_tensordict.get("truncated", None)
        cut = self.staggering.step(done.flatten())
        self._over = cut | done.flatten()
        self._count(next_tensordict.get("reward", None), done.flatten(), cut)
        cut = cut.view_as(done)
        next_tensordict.set("truncated", cut if truncated is None else cut | truncated)
        next_tensordict.set("done", cut | done)
        return next_tensordict

    def _count(self, rewards: torch.Tensor | None, done: torch.Tensor, cut: torch.Tensor) -> None:
        """Take a step into the statistics, if there is one reward for each copy."""
        if rewards is None or rewards.numel() != done.numel():
            return
        if self._statistics is None:
            self._statistics = TorchFairStatistics(
                done.numel(), device=done.device, memory=self.memory, max_age=self.max_age
            )
        self._statistics.update(rewards.flatten(), done, cut)

    def transform_output_spec(self, output_spec: Any) -> Any:
        """Add the entry "truncated", where the environment has none."""
        spec: Composite = output_spec["full_done_spec"]
        if spec.get("truncated", None) is None and spec.get("done", None) is not None:
            spec["truncated"] = Binary(n=None, shape=spec["done"].shape, dtype=torch.bool, device=output_spec.device)
        return super().transform_output_spec(output_spec)

    def forward(self, tensordict: Any) -> Any:
        """Data that was stored is left as it is: staggering happens where environments run."""
        return tensordict


def _resets_itself(env: Any) -> bool:
    """Whether copies are reset within a step by the environment, not by TorchRL."""
    while isinstance(env, TransformedEnv):
        transforms = env.transform.transforms if isinstance(env.transform, Compose) else [env.transform]
        if any(isinstance(transform, VecGymEnvTransform) for transform in transforms):
            return True
        env = env.base_env
    return getattr(env, "_torchrl_native_autoreset", False) is True  # a ParallelEnv answers any name with a function


def _entry(tensordict: Any, name: str) -> torch.Tensor:
    found = tensordict.get(name, None)
    if found is None:
        entries = sorted(map(str, tensordict.keys(True)))
        raise WrapperError(
            f"the environment has no entry {name!r} for whole copies; it has {entries}. StaggerTransform truncates "
            "whole copies, not single agents"
        )
    return found  # type: ignore[no-any-return]
