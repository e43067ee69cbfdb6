"""EnvPool as a vector environment of Gymnasium, in NEXT_STEP mode.

EnvPool's own object is not quite one: it ignores seeds, returns only the masked rows from a masked reset, and has no
`info["_key"]`. Here the contract of `gymnasium.vector.VectorEnv` holds, at EnvPool's speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from steadyrl.common.checks import check_flag, shown
from steadyrl.errors import PoolError, ResetMaskError
from steadyrl.integrations.envpool.pool import Pool, seeds_of
from steadyrl.wrappers.rows import copied, take_rows, write_rows, zeros_like_rows

Flags = NDArray[np.bool_]


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """Many environments stepped in EnvPool's threads, as a vector environment of Gymnasium.

    The step after an end is the reset, with reward 0, and its action is ignored. `reset(seed=...)` makes a new pool,
    since EnvPool fixes seeds when a pool is made; later resets without a seed go on with the environments' generators.

    Args:
        id: name of the environment in EnvPool; most names are Gymnasium's.
        num_envs: number of environments.
        seed: seed of the first reset, if that is given none; environment i gets seed + i.
        num_threads: number of threads; by default one per core.
        copy: whether the observations returned are copies. Without copying, do not change them in place: a later masked
            reset returns them again for the environments that it leaves alone.
        **kwargs: more arguments of `envpool.make`, such as `max_episode_steps`.

    Raises:
        PoolError: if EnvPool has no environment of that name, or cannot make it with these arguments.
        MissingExtraError: if EnvPool is not installed.

    Example:
        >>> envs = EnvPoolVectorEnv("CartPole-v1", 3, num_threads=1)
        >>> observations, _ = envs.reset(seed=7)
        >>> observations, rewards, terminated, truncated, info = envs.step(np.array([0, 1, 0]))
        >>> observations.shape, rewards.tolist(), info["elapsed_step"].tolist()
        ((3, 4), [1.0, 1.0, 1.0], [1, 1, 1])
        >>> envs.close()
    """

    def __init__(
        self,
        id: str,
        num_envs: int,
        *,
        seed: int | None = None,
        num_threads: int | None = None,
        copy: bool = True,
        **kwargs: Any,
    ) -> None:
        self._pool = Pool(id, num_envs, num_threads, kwargs)
        self.num_envs = self._pool.num_envs
        self.single_observation_space = self._pool.single_observation_space
        self.single_action_space = self._pool.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode = self._pool.render_mode
        self.metadata = {
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "render_modes": ["rgb_array"],
            "reset_mask": True,  # honoured: see wrappers.partial_resets
        }
        self.spec = EnvSpec(
            id,
            vector_entry_point="steadyrl.integrations.envpool.vector_env:EnvPoolVectorEnv",
            max_episode_steps=self._pool.max_episode_steps,
            kwargs={"id": id, "num_envs": self.num_envs, "vectorization_mode": "vector_entry_point", **kwargs},
        )
        self._seed, self._copy = seed, check_flag("copy", copy, PoolError)
        self._observations: Any = None
        self._waiting = np.zeros(self.num_envs, dtype=bool)  # to be reset at the next step, which the pool would not

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of `options["reset_mask"]`; the others keep their last observations."""
        self._check_open()
        mask = self._checked_mask(options)
        if mask is not None:
            return self._reset_some(mask, seed)
        if seed is not None or not self._pool.made:
            self._pool.make(seeds_of(self._seed if seed is None else seed, self.num_envs))
        observations, info = self._pool.reset()
        self._waiting[:] = False
        return self._kept(observations), _masked(info, np.ones(self.num_envs, dtype=bool))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment; where the last step ended an episode, this step is the reset."""
        if not self._pool.made:
            self._check_open()
            raise PoolError("step was called before the first reset; call envs.reset(seed=...) first")
        actions = self._pool.checked_actions(actions)
        found = self._step_around_waiting(actions) if self._waiting.any() else self._pool.step(actions)
        observations, rewards, terminated, truncated, info = found
        self._waiting = self._pool.waiting(terminated, truncated)
        return (
            self._kept(observations),
            rewards,
            terminated,
            truncated,
            _masked(info, np.ones(self.num_envs, dtype=bool)),
        )

    def render(self) -> tuple[Any, ...] | None:
        """Return a picture of each environment, if it was made with a render mode."""
        return self._pool.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Stop EnvPool's threads."""
        self._pool.close()

    def _step_around_waiting(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Reset the environments that reached their time limit, step the others, and put the rows together."""
        late, rest = (np.flatnonzero(flags).astype(np.int32) for flags in (self._waiting, ~self._waiting))
        first, first_info = self._pool.reset(late)
        observations, info = zeros_like_rows(first, self.num_envs), zeros_like_rows(first_info, self.num_envs)
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=bool)
        write_rows(observations, late, first)
        write_rows(info, late, first_info)
        if len(rest):
            stepped, rewards[rest], terminated[rest], truncated[rest], later = self._pool.step(
                take_rows(actions, rest), rest
            )
            write_rows(observations, rest, stepped)
            write_rows(info, rest, later)
        return observations, rewards, terminated, truncated, info

    def _reset_some(self, mask: Flags, seed: Any) -> tuple[Any, dict[str, Any]]:
        if not self._pool.made:
            raise PoolError("the first reset must be of all environments; leave reset_mask out")
        if seed is not None:
            raise PoolError(
                f"reset was given the seed {seed!r} and a reset_mask; EnvPool fixes seeds when a pool is made, so "
                "single environments cannot be seeded again: leave the seed out, or reset all"
            )
        ids = np.flatnonzero(mask).astype(np.int32)
        rows, found = self._pool.reset(ids)
        observations = copied(self._observations)
        write_rows(observations, ids, rows)
        info = zeros_like_rows(found, self.num_envs)
        write_rows(info, ids, found)
        self._waiting = self._waiting & ~mask
        return self._kept(observations), _masked(info, mask)

    def _checked_mask(self, options: dict[str, Any] | None) -> Flags | None:
        if options is not None and not isinstance(options, dict):
            raise PoolError(f"options are {shown(options)}; they must be a dictionary, or None")
        other = sorted(map(str, set(options or {}) - {"reset_mask"}))
        if other:
            raise PoolError(f"reset was given the options {other}; EnvPool's resets take none but reset_mask")
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return None
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            what = f"{mask.dtype}, shape {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise ResetMaskError(
                f"options['reset_mask'] is {what}; it must be a numpy array of bool, shape ({self.num_envs},), that "
                "says which environments to reset"
            )
        if not mask.any():
            raise ResetMaskError("options['reset_mask'] selects no environment; set at least one entry")
        return mask

    def _check_open(self) -> None:
        if self.closed:
            raise PoolError("this vector environment was closed; make a new one")

    def _kept(self, observations: Any) -> Any:
        self._observations = observations
        return copied(observations) if self._copy else observations


def _masked(info: dict[str, Any], mask: Flags) -> dict[str, Any]:
    """Return infos in Gymnasium's form: beside each key, which environments have it."""
    found: dict[str, Any] = {}
    for key, value in info.items():
        found[key] = _masked(value, mask) if isinstance(value, dict) else value
        found[f"_{key}"] = mask.copy()
    return found
