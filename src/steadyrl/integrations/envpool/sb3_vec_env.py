"""EnvPool as a vector environment of Stable-Baselines3, with the infos that `Monitor` would add.

Stable-Baselines3 resets environments within the step that ends an episode, EnvPool in the step after. So environments
whose episode has ended are reset at once here, by one more call for these alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from steadyrl.common.checks import is_whole, shown
from steadyrl.errors import PoolError
from steadyrl.integrations.envpool.pool import Pool, seeds_of
from steadyrl.wrappers.rows import take_rows, write_rows


class EnvPoolVecEnv(VecEnv):
    """Many environments stepped in EnvPool's threads, as a VecEnv of Stable-Baselines3.

    In the step that ends an episode, an info holds EnvPool's own info, the `terminal_observation` and `episode`
    (return, length and time, as Stable-Baselines3's `Monitor` gives); in other steps only `TimeLimit.truncated`.

    Args:
        id: name of the environment in EnvPool; most names are Gymnasium's.
        n_envs: number of environments.
        seed: seed of the first reset, if `seed` was not called; environment i gets seed + i.
        num_threads: number of threads; by default one per core.
        **kwargs: more arguments of `envpool.make`, such as `max_episode_steps`.

    Raises:
        PoolError: if EnvPool has no environment of that name, or cannot make it with these arguments.
        MissingExtraError: if EnvPool is not installed.
    """

    def __init__(
        self, id: str, n_envs: int, *, seed: int | None = None, num_threads: int | None = None, **kwargs: Any
    ) -> None:
        self._pool = Pool(id, n_envs, num_threads, kwargs)
        self.spec = EnvSpec(id, max_episode_steps=self._pool.max_episode_steps, kwargs=kwargs)
        super().__init__(n_envs, self._pool.single_observation_space, self._pool.single_action_space)
        self._seed = seed
        self._actions: Any = None
        self._returns = np.zeros(n_envs)
        self._lengths = np.zeros(n_envs, dtype=np.int64)
        self._begin = time.time()

    def reset(self) -> Any:
        """Reset all environments; after `seed` with new generators."""
        if any(self._options):
            raise PoolError(f"set_options was given {self._options[0]}; EnvPool's resets take no options")
        if any(seed is not None for seed in self._seeds):
            self._pool.make(seeds_of(self._seeds, self.num_envs))
        elif not self._pool.made:
            self._pool.make(seeds_of(self._seed, self.num_envs))
        self._reset_seeds()
        return self._restart(None)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Note the actions."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Step every environment, and reset those whose episode has ended."""
        if not self._pool.made:
            raise PoolError("step was called before the first reset; call env.reset() first")
        observations, rewards, terminated, truncated, info = self._pool.step(self._pool.checked_actions(self._actions))
        dones = terminated | truncated
        self._returns += rewards
        self._lengths += 1
        # A dict of its own for each environment, at every step: wrappers and callbacks may write into it.
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        if dones.any():
            ended = np.flatnonzero(dones).astype(np.int32)
            for i in ended.tolist():
                infos[i].update(take_rows(info, i))
                infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
                infos[i]["terminal_observation"] = take_rows(observations, i)
                infos[i]["episode"] = self._episode(i)
            write_rows(observations, ended, self._restart(ended))
        return observations, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Stop EnvPool's threads."""
        self._pool.close()

    def get_images(self) -> Sequence[Any]:
        """Return a picture of each environment, if it was made with a render mode."""
        return self._pool.render() or [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return the render mode, spec or spaces; environments in EnvPool have no other attributes."""
        known = {
            "render_mode": self._pool.render_mode,
            "spec": self.spec,
            "observation_space": self._pool.single_observation_space,
            "action_space": self._pool.single_action_space,
        }
        if not isinstance(attr_name, str) or attr_name not in known:
            raise AttributeError(
                f"environments in EnvPool have no attribute {shown(attr_name)}, only {', '.join(known)}"
            )
        return [known[attr_name] for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse, since environments in EnvPool are no Python objects."""
        raise AttributeError(f"environments in EnvPool have no attribute {shown(attr_name)} that could be set")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call `reset`, the only method that environments in EnvPool have."""
        if not isinstance(method_name, str) or method_name != "reset" or method_args or method_kwargs:
            raise AttributeError(
                f"environments in EnvPool have reset() and no method {shown(method_name)} with these arguments"
            )
        ids = np.array(self._get_indices(indices), dtype=np.int32)
        observations = self._restart(ids)
        return [(take_rows(observations, row), self.reset_infos[i]) for row, i in enumerate(ids)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return True for Monitor, since infos hold what it adds."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def _get_indices(self, indices: Any) -> list[int]:
        """Return the numbers of environments; EnvPool would look up others beyond its memory."""
        if indices is None:
            return list(range(self.num_envs))
        try:
            wanted = [indices] if is_whole(indices) else list(indices)
        except TypeError:
            wanted = [indices]
        if not all(is_whole(i) and 0 <= i < self.num_envs for i in wanted):
            raise PoolError(
                f"indices are {shown(indices)}; they must be numbers of environments, 0 to {self.num_envs - 1}, or "
                "None for all of them"
            )
        return [int(i) for i in wanted]

    def _restart(self, ids: NDArray[np.int32] | None) -> Any:
        """Reset environments (all by default), and return their first observations."""
        observations, info = self._pool.reset(ids)
        for row, i in enumerate(range(self.num_envs) if ids is None else ids):
            self.reset_infos[i] = take_rows(info, row)
        at = slice(None) if ids is None else ids
        self._returns[at] = 0.0
        self._lengths[at] = 0
        return observations

    def _episode(self, i: int) -> dict[str, float]:
        elapsed = round(time.time() - self._begin, 6)
        return {"r": round(float(self._returns[i]), 6), "l": int(self._lengths[i]), "t": elapsed}
