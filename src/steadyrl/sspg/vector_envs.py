"""The environments of an online run: one vector environment in NEXT_STEP mode, which is the learning process itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from steadyrl.common.machine import cores
from steadyrl.environments.sources import Description, Source
from steadyrl.errors import StepTimeoutError, TrainingError
from steadyrl.integrations.envpool.twins import against_envpool
from steadyrl.integrations.envpool.vector_env import EnvPoolVectorEnv
from steadyrl.rollouts.planning import Backend, Options, choose_backend
from steadyrl.rollouts.worker import end_with
from steadyrl.sspg.settings import Settings
from steadyrl.wrappers.phase_monitor import PhaseMonitor
from steadyrl.wrappers.staggered_vector_env import StaggeredVectorEnv

_SEEDS = 7
"""First spawn key of the environments' seeds."""


def choose(source: Source, description: Description, settings: Settings) -> tuple[Backend, str]:
    """Return the backend that steps the environments, and the reason for it."""
    options = Options(backend=settings.backend, workers=settings.workers)
    backend, reason = choose_backend(source, description, settings.num_envs_used, options)
    if settings.backend == "auto" and backend != "envpool":
        # All environments step together, so a process for each only pays where a step takes longer than a message.
        against = against_envpool(source, description)
        return "serial", f"a step of each environment is a short one (--backend processes if not), and {against}"
    return backend, reason


def make_vector_env(source: Source, backend: Backend, settings: Settings, *, restart: int) -> tuple[Any, int]:
    """Return the environments, watched or staggered, and the seed of their reset.

    `restart` counts how often they were made anew.
    """
    sequence = np.random.SeedSequence(settings.seed, spawn_key=(_SEEDS, restart))
    seed, staggering = (int(number) >> 1 for number in sequence.generate_state(2))
    count = settings.num_envs_used
    if backend == "envpool":
        assert source.id is not None
        threads = min(settings.workers or cores(), count)
        envs: Any = EnvPoolVectorEnv(source.id, count, seed=seed, num_threads=threads, **source.arguments)
    elif backend == "serial":
        envs = SyncVectorEnv([source.make] * count, autoreset_mode=AutoresetMode.NEXT_STEP)
    elif backend == "processes":
        envs = TimedVectorEnv([partial(_make, source, os.getpid())] * count, settings.step_timeout)
    else:
        raise TrainingError(f"environments that never stop cannot be stepped by {backend!r}; use 'envpool'")
    how: dict[str, Any] = {"tolerance": settings.tolerance, "n_steps": settings.n_steps_used}
    if settings.cure == "auto":
        return StaggeredVectorEnv(envs, "auto", seed=staggering, **how), seed
    return PhaseMonitor(envs, warn=False, **how), seed


class TimedVectorEnv(AsyncVectorEnv):
    """Processes that have to answer within some seconds; None waits for ever."""

    def __init__(self, makers: Any, timeout: float | None) -> None:
        self._timeout = timeout
        super().__init__(makers, autoreset_mode=AutoresetMode.NEXT_STEP)

    def step(self, actions: Any) -> Any:
        """Step all environments."""
        self.step_async(actions)
        return self._in_time("step", self.step_wait)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all environments, or those of options["reset_mask"]."""
        self.reset_async(seed=seed, options=options)
        return self._in_time("reset", self.reset_wait)

    def _in_time(self, what: str, wait: Any) -> Any:
        try:
            return wait(timeout=self._timeout)
        except multiprocessing.TimeoutError as error:
            self.close_extras(terminate=True)
            self.closed = True
            raise StepTimeoutError(
                f"a {what} of the environments took longer than step_timeout, {self._timeout:g} s; their processes "
                "were ended: allow more time (--step-timeout), or mend the environment"
            ) from error


def _make(source: Source, trainer: int) -> Any:
    """Make an environment; in a process of its own, leave signals to the trainer, and end when that does."""
    if os.getpid() != trainer:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all processes
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with(os.getppid())
    return source.make()
