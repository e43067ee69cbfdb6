"""How to restart single environments inside a vector environment, and whether that is possible at all.

There are two ways:

- **by mask**: `envs.reset(options={"reset_mask": mask})`, as SyncVectorEnv, AsyncVectorEnv and EnvPoolVectorEnv do.
  An environment of your own that honours masks may say so, by `metadata["reset_mask"] = True`;
- **by flag**: Gymnasium's own vectorised environments (`gymnasium.envs`: CartPole, and those in JAX) ignore masks, but
  keep in `prev_done` whose next step is the reset. Setting it makes them reset these environments themselves.

Other vector environments are tried out once, when they are wrapped: after a reset and a step, one environment is reset
by a mask, and the observations of the others must be as before.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from steadyrl.errors import WrapperError
from steadyrl.wrappers.rows import replace_rows, same_rows

Flags = NDArray[np.bool_]


class PartialResets:
    """Restarts single environments inside a vector environment.

    Args:
        envs: the vector environment.

    Raises:
        WrapperError: if single environments cannot be restarted in it.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        self._envs = envs
        base: Any = envs.unwrapped
        self.by_flag = not _honours_masks(base) and _has_flag(base)
        """Whether `mark` is the way, rather than `reset`."""
        if not (self.by_flag or _honours_masks(base)):
            _try_mask(base)

    def mark(self, mask: Flags) -> None:
        """Make the next step of these environments their reset (by flag only)."""
        base: Any = self._envs.unwrapped
        base.prev_done = base.prev_done | mask

    def reset(self, mask: Flags, before: Any) -> tuple[Any, dict[str, Any]]:
        """Reset these environments; return their observations among those of the others (`before`), and their infos."""
        observations, infos = self._envs.reset(options={"reset_mask": mask.copy()})
        space = self._envs.single_observation_space
        if not same_rows(space, observations, before, ~mask):
            raise _refusal(self._envs.unwrapped)
        return replace_rows(space, before, observations, mask), infos


def _honours_masks(base: Any) -> bool:
    declared = (base.metadata or {}).get("reset_mask") is True
    return declared or isinstance(base, SyncVectorEnv | AsyncVectorEnv) or base.num_envs == 1


def _has_flag(base: Any) -> bool:
    own = any(cls.__module__.startswith("gymnasium.envs.") for cls in type(base).__mro__)
    next_step = (base.metadata or {}).get("autoreset_mode") == AutoresetMode.NEXT_STEP
    return own and next_step and np.shape(getattr(base, "prev_done", False)) == (base.num_envs,)


def _try_mask(base: Any) -> None:
    mask = np.arange(base.num_envs) == 0
    try:
        base.reset()
        before = base.step(deepcopy(base.action_space).sample())[0]  # the space's own generator is left alone
        after, _ = base.reset(options={"reset_mask": mask.copy()})
    except Exception as error:
        raise _refusal(base) from error
    if not same_rows(base.single_observation_space, after, before, ~mask):
        raise _refusal(base)


def _refusal(base: Any) -> WrapperError:
    return WrapperError(
        f"{type(base).__name__} cannot restart single environments: reset(options={{'reset_mask': mask}}) is refused, "
        "or resets others as well. Use SyncVectorEnv or AsyncVectorEnv (make_vec(id, vectorization_mode='sync')), or "
        "wrap each environment in StaggeredStart"
    )
