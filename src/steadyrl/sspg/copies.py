"""Copies that never stop, as one vector environment in NEXT_STEP mode, which is the learning process itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from steadyrl.common.machine import cores
from steadyrl.environments.sources import Description, Source
from steadyrl.errors import TrainingError
from steadyrl.integrations.envpool.twins import against_envpool
from steadyrl.integrations.envpool.vector_env import EnvPoolVectorEnv
from steadyrl.rollouts.planning import Backend, Options, choose_backend
from steadyrl.sspg.settings import Settings
from steadyrl.wrappers.phase_monitor import PhaseMonitor
from steadyrl.wrappers.staggered_vector_env import StaggeredVectorEnv

_SEEDS = 7
"""First spawn key of the copies' seeds."""


def choose(source: Source, description: Description, settings: Settings) -> tuple[Backend, str]:
    """Return what steps the copies, and why it is that."""
    options = Options(backend=settings.backend, workers=settings.workers)
    backend, reason = choose_backend(source, description, settings.copies_used, options)
    if settings.backend == "auto" and backend != "envpool":
        # Copies step together, so a process for each only pays where a step takes longer than a message.
        against = against_envpool(source, description)
        return "serial", f"a step of each copy is a short one (--backend processes if not), and {against}"
    return backend, reason


def make_copies(source: Source, backend: Backend, settings: Settings, *, restart: int) -> tuple[Any, int]:
    """Return the copies and the seed of their reset; `restart` counts how often they were made anew."""
    sequence = np.random.SeedSequence(settings.seed, spawn_key=(_SEEDS, restart))
    seed, staggering = (int(number) >> 1 for number in sequence.generate_state(2))
    count = settings.copies_used
    if backend == "envpool":
        assert source.id is not None
        threads = min(settings.workers or cores(), count)
        envs: Any = EnvPoolVectorEnv(source.id, count, seed=seed, num_threads=threads, **source.arguments)
    elif backend == "serial":
        envs = SyncVectorEnv([source.make] * count, autoreset_mode=AutoresetMode.NEXT_STEP)
    elif backend == "processes":
        envs = AsyncVectorEnv([partial(_make, source)] * count, autoreset_mode=AutoresetMode.NEXT_STEP)
    else:
        raise TrainingError(f"copies that never stop cannot be stepped by {backend!r}; use 'envpool' or 'processes'")
    how: dict[str, Any] = {"tolerance": settings.tolerance, "n_steps": settings.steps_per_update_used}
    if settings.cure == "auto":
        return StaggeredVectorEnv(envs, "auto", seed=staggering, **how), seed
    return PhaseMonitor(envs, warn=False, **how), seed


def _make(source: Source) -> Any:
    return source.make()
