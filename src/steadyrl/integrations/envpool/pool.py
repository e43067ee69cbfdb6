"""An EnvPool pool with Gymnasium's spaces, dtypes, seeds and ends.

EnvPool steps many environments in threads, and differs from Gymnasium in small things that matter to a learner:

- an episode that terminates in the very step of its time limit is marked as truncated only, so a learner would
  bootstrap from a terminal state. Where Gymnasium has the limit in a wrapper, the pool gets one step more and the
  limit is kept here, so that both flags are exact;
- actions of MuJoCo are float64 where Gymnasium's are float32, Discrete observations int32 where they are int64, rewards
  float32: a model saved with one could not be loaded with the other;
- bounds of LunarLander's observations are from 1e-38 to 3e38: EnvPool means minus and plus infinity;
- seeds are fixed when a pool is made, so new seeds take a new pool.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steadyrl.common.checks import plain_array, shown, whole_number
from steadyrl.common.machine import cores
from steadyrl.environments.sources import Source, as_source
from steadyrl.errors import MissingExtraError, PoolError

Ids = NDArray[np.int32]

_SEEDS = 2**31  # EnvPool's seeds have 31 bits
_LARGEST_SEED = 2**62
_NO_LIMIT = 2**31 - 1
_BOOKKEEPING = ("env_id", "players")  # infos without use where rows are in the order of the environments


class Pool:
    """Many environments of one kind in EnvPool's threads. What it returns has one row per id given.

    Args:
        id: name of the environment in EnvPool.
        num_envs: number of environments.
        num_threads: number of threads; by default one per core.
        arguments: more arguments of `envpool.make`.
    """

    def __init__(self, id: str, num_envs: int, num_threads: int | None, arguments: Mapping[str, Any]) -> None:
        self.id, self.num_envs = id, whole_number("num_envs", num_envs, PoolError)
        self.num_threads = cores() if num_threads is None else whole_number("num_threads", num_threads, PoolError)
        self._arguments = dict(arguments)
        limit_given = self._arguments.get("max_episode_steps")
        if limit_given is not None:
            whole_number("max_episode_steps", limit_given, PoolError, most=_NO_LIMIT)
        config, *native = _known(id, self.num_envs, self._arguments)
        registered = _registered(id)
        twin = (None, None) if registered is None else _gymnasium_spaces(registered)
        self.single_observation_space, self.single_action_space = map(_agreed, native, twin)
        limit = int(config.max_episode_steps)
        self.max_episode_steps = None if limit >= _NO_LIMIT else limit
        self._limit = own_limit(id, limit)
        self.render_mode: str | None = self._arguments.get("render_mode")
        self._pool: Any = None

    @property
    def made(self) -> bool:
        """Whether the environments have been made yet."""
        return self._pool is not None

    def make(self, seeds: NDArray[np.int64]) -> None:
        """Make the environments with these seeds; earlier ones are closed."""
        self._pool = None  # the earlier threads end
        source = as_source(self.id, self._arguments)
        self._pool = pool_maker(source, (seeds % _SEEDS).astype(np.int32), self.num_threads, self._limit)()

    def reset(self, ids: Ids | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or these; return first observations and infos."""
        observations, info = self._pool.reset(ids)
        return _cast(self.single_observation_space, observations), _without_bookkeeping(info)

    def step(self, actions: Any, ids: Ids | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments, or these; return observations, rewards, terminated, truncated, infos.

        An environment whose episode has terminated resets itself instead. One that only reached its time limit
        does not (see `waiting`): reset it first.
        """
        observations, rewards, terminated, truncated, info = self._pool.step(actions, ids)
        if self._limit is not None:
            truncated = info["elapsed_step"] >= self._limit
        observations = _cast(self.single_observation_space, observations)
        return observations, rewards.astype(np.float64), terminated, truncated, _without_bookkeeping(info)

    def checked_actions(self, actions: Any) -> Any:
        """Return one action for each environment as an array, or raise PoolError.

        EnvPool would read past the end of a shorter array, and look up what no action is in its tables.
        """
        space = self.single_action_space
        if not isinstance(space, spaces.Box | spaces.Discrete):
            return actions
        found, shape = plain_array("actions", actions, PoolError), (self.num_envs, *(space.shape or ()))
        if found.shape != shape:
            raise PoolError(f"actions have shape {found.shape}; for {self.num_envs} environments it must be {shape}")
        if isinstance(space, spaces.Box):
            if found.dtype.kind not in "biuf":
                raise PoolError(f"actions have entries of type {found.dtype}; they must be numbers")
            return found
        if found.dtype.kind not in "biu":
            raise PoolError(f"actions have entries of type {found.dtype}; those of {space} are whole numbers")
        outside = (found < space.start) | (found >= space.start + space.n)
        if outside.any():
            place = int(np.flatnonzero(outside)[0])
            raise PoolError(f"action {found[place]} of environment {place} is none of {space}")
        return found

    def waiting(self, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the environments whose end the pool does not know of, so that it would not reset them by itself."""
        return truncated & ~terminated if self._limit is not None else np.zeros(len(truncated), dtype=bool)

    def render(self) -> tuple[Any, ...] | None:
        """Return a picture of each environment, if the pool was made with a render mode."""
        frames = self._pool.render(np.arange(self.num_envs)) if self.made and self.render_mode else None
        return None if frames is None else tuple(frames)

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None


def own_limit(id: str, limit: int) -> int | None:
    """Return the time limit that is kept here: None if there is none, or if it is the environment's own."""
    registered = _registered(id)
    return None if limit >= _NO_LIMIT or registered is None or registered.max_episode_steps is None else limit


def time_limit(source: Source) -> int | None:
    """Return the time limit of a source's environments that is kept here."""
    import envpool

    assert source.id is not None
    return own_limit(source.id, int(envpool.make_spec(source.id, **source.arguments).config.max_episode_steps))


def pool_maker(source: Source, seeds: NDArray[np.int32], threads: int, limit: int | None = None) -> Callable[[], Any]:
    """Return a function that makes a pool with one environment per seed, which leaves the time limit `limit` to us."""
    assert source.id is not None
    name = source.id
    arguments = dict(source.arguments) | ({} if limit is None else {"max_episode_steps": limit + 1})

    def make() -> Any:
        import envpool

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's, about the precision of EnvPool's bounds
            pool = envpool.make(
                name,
                env_type="gymnasium",
                num_envs=len(seeds),
                num_threads=max(1, min(threads, len(seeds))),
                seed=seeds.tolist(),
                **arguments,
            )
            _ = pool.observation_space, pool.action_space  # made once, and here is where they may warn
        return pool

    return make


def seeds_of(seed: int | list[int | None] | None, num_envs: int) -> NDArray[np.int64]:
    """Return one seed per environment as Gymnasium does: seed + i, or those of the list; None is drawn afresh."""
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0] % _SEEDS)
    if isinstance(seed, int | np.integer):
        first = whole_number("seed", seed, PoolError, least=0, most=_LARGEST_SEED)
        return first + np.arange(num_envs, dtype=np.int64)
    single = isinstance(seed, np.ndarray) and seed.ndim == 0
    if single or not isinstance(seed, Sequence | np.ndarray) or isinstance(seed, str | bytes):
        raise PoolError(f"seed is {shown(seed)}; it must be a whole number, a list with one for each copy, or None")
    if len(seed) != num_envs:
        raise PoolError(f"there are {len(seed)} seeds for {num_envs} copies; give one for each, or a single number")
    given = [
        None if one is None else whole_number("a seed", one, PoolError, least=0, most=_LARGEST_SEED) for one in seed
    ]
    fresh = seeds_of(None, num_envs)
    return np.array([new if one is None else one for one, new in zip(given, fresh, strict=True)], dtype=np.int64)


def _known(id: str, num_envs: int, arguments: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return EnvPool's settings, observation space and action space for this environment."""
    try:
        import envpool
    except ImportError as error:
        raise MissingExtraError(
            "this needs EnvPool; install it with: pip install 'steadyrl[envpool]' (it has wheels for Linux and macOS)"
        ) from error
    known = envpool.list_all_envs()
    if not isinstance(id, str) or id not in known:
        near = difflib.get_close_matches(id if isinstance(id, str) else "", known, n=4, cutoff=0.6)
        hint = f"near names: {', '.join(near)}" if near else "envpool.list_all_envs() lists them"
        raise PoolError(
            f"EnvPool has no environment {shown(id)}; {hint}. For what Gymnasium has, gymnasium.make_vec makes vector "
            "environments that every wrapper here takes"
        )
    if arguments.get("max_num_players", 1) != 1 or arguments.get("batch_size", num_envs) not in (0, num_envs):
        raise PoolError(
            "max_num_players and batch_size are for several players and for asynchronous steps; a vector environment "
            "has one row per environment in every step: leave them out"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's, about the precision of EnvPool's bounds
            spec = envpool.make_spec(id, num_envs=num_envs, **arguments)
            found = spec.config, spec.gymnasium_observation_space, spec.gymnasium_action_space
    except Exception as error:
        raise PoolError(f"EnvPool cannot make {id!r} with the arguments {dict(arguments)} ({error})") from error
    if spec.config.max_num_players != 1:
        raise PoolError(f"EnvPool's {id} is for {spec.config.max_num_players} players; only single ones are supported")
    return found


def _registered(id: str) -> Any:
    """Return Gymnasium's own specification under this name, or None."""
    try:
        return gymnasium.spec(id)
    except gymnasium.error.Error:
        return None


def _gymnasium_spaces(registered: Any) -> tuple[Any, Any]:
    """Return the spaces of Gymnasium's environment, if it can be made here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = registered.make(disable_env_checker=True)
    except Exception:
        return None, None  # deprecated, or its simulator is not installed: EnvPool's spaces will do
    found = env.observation_space, env.action_space
    env.close()
    return found


def _agreed(native: Any, twin: Any) -> Any:
    """Return Gymnasium's space if it has the kind and shape of EnvPool's; else EnvPool's, with proper bounds."""
    alike = type(native) is type(twin) and native.shape == twin.shape
    if alike and isinstance(native, spaces.Discrete):
        alike = native.n == twin.n and native.start == twin.start
    if alike and isinstance(native, spaces.Box | spaces.Discrete):
        return twin
    return _repaired(native)


def _repaired(space: Any) -> Any:
    if isinstance(space, dict | spaces.Dict):
        return spaces.Dict({key: _repaired(part) for key, part in space.items()})
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    low = np.where((space.low == limits.tiny) | (space.low <= limits.min), -np.inf, space.low)
    high = np.where(space.high >= limits.max, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), space.shape, space.dtype)


def _cast(space: Any, rows: Any) -> Any:
    """Return observations in the dtype that the space declares."""
    if isinstance(space, spaces.Dict):
        return {key: _cast(part, rows[key]) for key, part in space.items()}
    return rows if rows.dtype == space.dtype else rows.astype(space.dtype)


def _without_bookkeeping(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key not in _BOOKKEEPING}
