"""Whether EnvPool has the same environment as Gymnasium, under the same name."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from steadyrl.environments.sources import Description, Source
from steadyrl.errors import MissingExtraError, RolloutError
from steadyrl.integrations.envpool.pool import pool_maker


def why_not_envpool(source: Source, description: Description) -> str | None:
    """Return why EnvPool cannot run this environment, or None if it can."""
    if find_spec("envpool") is None:
        return "EnvPool is not installed (pip install 'steadyrl[envpool]')"
    if source.id is None:
        return "EnvPool runs environments by their Gymnasium id, and this is a spec, a factory or a process"
    if set(source.arguments) - {"max_episode_steps"}:
        return f"EnvPool may not know the arguments {sorted(source.arguments)}"
    if source.id not in _import().list_all_envs():
        return f"EnvPool has no {source.id}"
    return _differences(source, description)


def require_envpool(source: Source, description: Description) -> None:
    """Raise if EnvPool cannot run this environment."""
    if find_spec("envpool") is None:
        raise MissingExtraError("backend 'envpool' needs EnvPool; install it with: pip install 'steadyrl[envpool]'")
    reason = why_not_envpool(source, description)
    if reason is not None:
        raise RolloutError(f"backend 'envpool' cannot run {source.name}: {reason}; use 'processes' or 'serial'")


def _differences(source: Source, description: Description) -> str | None:
    """Return how EnvPool's environment of this name differs, in spaces or time limit; None if it does not."""
    try:
        pool = pool_maker(source, np.zeros(1, dtype=np.int32), 1)()
    except Exception as error:  # a time limit beyond its 32 bits, for one; the message lists all its settings
        arguments = f" with the arguments {dict(source.arguments)}" if source.arguments else ""
        return f"EnvPool cannot make {source.id}{arguments} ({type(error).__name__})"
    try:
        theirs = pool.observation_space, pool.action_space
        ours = description.observation_space, description.action_space
        for mine, other in zip(ours, theirs, strict=True):
            same_count = getattr(mine, "n", None) == getattr(other, "n", None)
            if type(mine) is not type(other) or mine.shape != other.shape or not same_count:
                return f"EnvPool's {source.id} has {other} where Gymnasium's has {mine}"
        limit = pool.config["max_episode_steps"]
        if limit != description.max_episode_steps:
            return f"EnvPool's {source.id} has the time limit {limit}, Gymnasium's {description.max_episode_steps}"
    finally:
        pool.close()
    return None


def _import() -> Any:
    import envpool

    return envpool


def against_envpool(source: Source, description: Description) -> str | None:
    """Return why `auto` does not take EnvPool, or None; it takes EnvPool for Gymnasium's own environments only."""
    own = ("gymnasium.envs.classic_control", "gymnasium.envs.mujoco", "gymnasium.envs.toy_text")
    if find_spec("envpool") is not None and source.id is not None and not description.module.startswith(own):
        return f"EnvPool's twin of {source.id}, if any, is not known to be the same"
    return why_not_envpool(source, description)
