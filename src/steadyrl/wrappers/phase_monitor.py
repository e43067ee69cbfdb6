"""Watches whether the environments of a vector environment run in lockstep, and changes nothing."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from steadyrl.common.checks import check_flag
from steadyrl.errors import PhaseLockWarning, WrapperError
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.live.phase import LOOK, PhaseReport, PhaseTracker
from steadyrl.wrappers.vectors import AnyVectorWrapper, autoreset_mode, cut_copies, ended_copies, reset_some


class _Cure(Protocol):
    @property
    def settled(self) -> bool: ...


class PhaseMonitor(AnyVectorWrapper):
    """Reports how far the ages in each batch are from those in the long run, and warns once about lockstep.

    It does not warn while a `StaggeredVectorEnv`, inside or around it, is still at work.

    Args:
        env: the vector environment.
        n_steps: number of steps in a batch; give that of your algorithm's updates.
        tolerance: distance (total variation) up to which batches count as fair.
        warn: whether to warn, once, when the environments run in lockstep.

    Example:
        >>> import gymnasium, numpy as np
        >>> envs = gymnasium.make_vec("steadyrl/StateSweep-v0", num_envs=8, vectorization_mode="sync", n=10)
        >>> envs = PhaseMonitor(envs, n_steps=1, warn=False)
        >>> _ = envs.reset(seed=0)
        >>> for _ in range(100):
        ...     _ = envs.step(np.zeros(8, dtype=int))
        >>> envs.phase.verdict, round(envs.phase.average_episode_length, 6)
        ('in lockstep', 10.0)
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], *, n_steps: int = 16, tolerance: float = 0.01, warn: bool = True
    ) -> None:
        mode = autoreset_mode(env)
        super().__init__(env)
        self._tracker = PhaseTracker(
            self.num_envs, same_step=mode != AutoresetMode.NEXT_STEP, n_steps=n_steps, tolerance=tolerance
        )
        self._warn = check_flag("warn", warn, WrapperError)
        self._unseen = 0  # steps since it last looked
        self._cure = _inside(env)

    @property
    def phase(self) -> PhaseReport:
        """How far the ages in the last batch are from those in the long run."""
        return self._tracker.report()

    def report(self) -> PhaseReport:
        """Return `phase`."""
        return self.phase

    @property
    def lengths(self) -> EpisodeLengths | None:
        """Distribution of T of recent episodes, running ones included; None if none has ended yet."""
        return self._tracker.lengths

    @property
    def ages(self) -> Any:
        """Ages of the states that the environments are in; 1 after a reset."""
        return self._tracker.ages.copy()

    def cured_by(self, cure: _Cure) -> None:
        """Take note of a `StaggeredVectorEnv` around this wrapper."""
        self._cure = cure

    def restarted(self, mask: NDArray[np.bool_]) -> None:
        """Take note of environments that a `StaggeredVectorEnv` around this wrapper has restarted in the last step."""
        self._tracker.reset(mask)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of options["reset_mask"]."""
        found, mask = reset_some(self.env, seed, options)
        self._tracker.reset(mask)
        return found

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        found: tuple[Any, Any, Any, Any, dict[str, Any]] = self.env.step(actions)
        cut = cut_copies(found[4]) if found[4] else None
        if cut is None:
            complete = self._tracker.watch(found[2], found[3])
        else:
            complete = self._tracker.update(ended_copies(found[2], found[3], self.num_envs) & ~cut, cut)
        if complete and self._warn:
            self._unseen += self._tracker.n_steps
            if self._unseen >= LOOK:
                self._unseen = 0
                if self._tracker.phase_locked and (self._cure is None or self._cure.settled):
                    self._warn_once()
        return found

    def _warn_once(self) -> None:
        report, self._warn = self.phase, False
        what = (
            "stagger the episodes: steadyrl.StaggeredVectorEnv(envs)"
            if self._cure is None
            else "the delays given to StaggeredVectorEnv do not fit these episodes, so use 'auto', the default"
        )
        warnings.warn(
            f"the {self.num_envs} environments run through their episodes in lockstep: ages in the last batch of "
            f"{self._tracker.n_steps} steps differ by {report.distance:.0%} (total variation) from the long run, at a "
            f"mean episode length of {report.average_episode_length - 1:.4g} steps, so batches are no fair sample of "
            f"the policy's data; {what}",
            PhaseLockWarning,
            stacklevel=3,
        )


def _inside(env: Any) -> _Cure | None:
    """Return the `StaggeredVectorEnv` inside, if there is one; it is known by what it can tell."""
    while isinstance(env, VectorWrapper):
        if isinstance(getattr(type(env), "settled", None), property):
            return env  # type: ignore[return-value]  # checked in the line before
        env = env.env
    return None
