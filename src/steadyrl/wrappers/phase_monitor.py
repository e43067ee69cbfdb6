"""Watches whether copies are at steady state, and changes nothing."""

from __future__ import annotations

import warnings
from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from steadyrl.errors import PhaseLockWarning
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.live.phase import LOOK, PhaseReport, PhaseTracker
from steadyrl.live.staggering import KNOWN
from steadyrl.wrappers.vectors import autoreset_mode, cut_copies, read_mask


class PhaseMonitor(VectorWrapper[Any, Any, Any, Any, Any]):
    """Reports how far the ages in each batch are from the stationary ones, and warns once if copies are in step.

    Args:
        env: the vector environment.
        n_steps: steps of a batch; take those of an update.
        tolerance: the distance above which copies count as phase-locked, if chance does not explain it.
        warn: whether to warn, once, when they are.

    Example:
        >>> import gymnasium, numpy as np
        >>> envs = gymnasium.make_vec("steadyrl/StateSweep-v0", num_envs=8, vectorization_mode="sync", n=10)
        >>> envs = PhaseMonitor(envs, n_steps=1, warn=False)
        >>> _ = envs.reset(seed=0)
        >>> for _ in range(100):
        ...     _ = envs.step(np.zeros(8, dtype=int))
        >>> report = envs.report()
        >>> report.phase_locked, round(report.average_episode_length, 6)
        (True, 10.0)
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], *, n_steps: int = 16, tolerance: float = 0.01, warn: bool = True
    ) -> None:
        mode = autoreset_mode(env)
        super().__init__(env)
        self._tracker = PhaseTracker(
            self.num_envs, same_step=mode != AutoresetMode.NEXT_STEP, n_steps=n_steps, tolerance=tolerance
        )
        self._warn = warn
        self._unseen = 0  # steps since it last looked

    @property
    def ages(self) -> Any:
        """The ages of the environments now: 1 after a reset."""
        return self._tracker.ages.copy()

    @property
    def phase(self) -> PhaseReport:
        """What the last complete batch showed, as `report` returns it."""
        return self._tracker.report()

    def report(self) -> PhaseReport:
        """Return what the last complete batch showed."""
        return self._tracker.report()

    def lengths(self) -> EpisodeLengths | None:
        """Return the distribution of T of recent episodes, running ones included; None if none has ended yet."""
        return self._tracker.lengths()

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all copies, or those of options["reset_mask"]."""
        mask = read_mask(options)
        found: tuple[Any, dict[str, Any]] = self.env.reset(
            seed=seed,  # type: ignore[arg-type]  # Gymnasium's own vector environments take lists
            options=None if options is None else dict(options),
        )
        self._tracker.reset(mask)
        return found

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all copies."""
        found: tuple[Any, Any, Any, Any, dict[str, Any]] = self.env.step(actions)
        cut = cut_copies(found[4]) if found[4] else None
        if cut is None:
            complete = self._tracker.watch(found[2], found[3])
        else:
            complete = self._tracker.update((found[2] | found[3]) & ~cut, cut)
        if complete and self._warn:
            self._unseen += self._tracker.n_steps
            if self._unseen >= LOOK:
                self._unseen = 0
                if self._tracker.phase_locked:
                    self._warn_once()
        return found

    def _warn_once(self) -> None:
        report = self._tracker.report()
        if report.unresolved > 1 - KNOWN:
            return  # lengths are not known well enough for a number
        self._warn = False
        warnings.warn(
            f"the {self.num_envs} copies march through their episodes in step: the ages in the last batch are "
            f"{report.distance:.2g} from the stationary ones (chance: {report.noise:.2g}; E[T] = "
            f"{report.average_episode_length:.4g}), so batches are not a fair sample; "
            "steadyrl.StaggeredVectorEnv(envs, 'auto') mends it",
            PhaseLockWarning,
            stacklevel=3,
        )
