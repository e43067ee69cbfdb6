"""One line instead of `make_vec_env`: staggered environments, in EnvPool where it has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np  # noqa: F401  (for the example)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from steadyrl.common.checks import MOST_ENVS, as_keywords, as_path, check_seed, shown, whole_number
from steadyrl.environments.sources import as_source, describe
from steadyrl.errors import WrapperError
from steadyrl.integrations.envpool.sb3_vec_env import EnvPoolVecEnv
from steadyrl.integrations.envpool.twins import against_envpool
from steadyrl.integrations.sb3.steady_vec_env import SteadyVecEnv
from steadyrl.live.designed_staggering import DelaysLike

_CLASSES: dict[str, Any] = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}


def make_steady_vec_env(
    env_id: Any,
    n_envs: int = 1,
    *,
    delays: DelaysLike = "auto",
    seed: int | None = 0,
    backend: str = "auto",
    tolerance: float = 0.01,
    n_steps: int = 16,
    env_kwargs: Mapping[str, Any] | None = None,
    wrapper_class: Callable[[Any], Any] | None = None,
    monitor_dir: str | None = None,
) -> SteadyVecEnv:
    """Return a VecEnv for Stable-Baselines3 with a Monitor and staggered episodes.

    Args:
        env_id: a Gymnasium id, a spec, or a function that makes an environment.
        n_envs: number of environments.
        delays: delays of `SteadyVecEnv`; "auto" needs to know nothing beforehand.
        seed: seed of the first environment; environment i gets seed + i.
        backend: "envpool", "dummy" (all in this process), "subproc" (one process per environment), or "auto", which
            takes EnvPool where that is known to have the same environment and nothing speaks against it, else "dummy",
            as `make_vec_env` does.
        tolerance: distance (total variation) up to which `phase` calls batches fair.
        n_steps: number of steps in the batches that `phase` reports on; give the n_steps of PPO or A2C.
        env_kwargs: arguments of `gymnasium.make`, or of EnvPool.
        wrapper_class: wrapper of each environment, on top of its Monitor (not with EnvPool).
        monitor_dir: directory in which each Monitor writes its file (not with EnvPool).

    Raises:
        WrapperError: if the backend is none of these, or does not support the other arguments.
        PoolError: if EnvPool was asked for and does not have the environment.

    Example:
        >>> env = make_steady_vec_env("CartPole-v1", 4, backend="dummy")
        >>> observations = env.reset()
        >>> observations, rewards, dones, infos = env.step(np.array([0, 1, 0, 1]))
        >>> rewards.tolist(), env.phase.steps
        ([1.0, 1.0, 1.0, 1.0], 4)
    """
    if not isinstance(backend, str) or backend not in ("auto", "envpool", *_CLASSES):
        raise WrapperError(f"backend is {shown(backend)}; it must be 'auto', 'envpool', 'dummy' or 'subproc'")
    n_envs = whole_number("n_envs", n_envs, WrapperError, most=MOST_ENVS)
    seed = None if seed is None else check_seed(seed, WrapperError)
    monitor_dir = None if monitor_dir is None else as_path("monitor_dir", monitor_dir, WrapperError)
    if monitor_dir is not None and os.path.exists(monitor_dir) and not os.path.isdir(monitor_dir):
        raise WrapperError(
            f"monitor_dir is {shown(monitor_dir)}, which is a file; name a folder for the Monitors' files"
        )
    arguments = as_keywords("env_kwargs", env_kwargs, WrapperError)
    if wrapper_class is not None and not callable(wrapper_class):
        raise WrapperError(
            f"wrapper_class is {shown(wrapper_class)}; it must be a wrapper, or a function of an environment"
        )
    given = (("wrapper_class", wrapper_class), ("monitor_dir", monitor_dir))
    extras = [name for name, value in given if value is not None]
    if backend == "auto":
        backend = "dummy" if extras or _against_envpool(env_id, arguments) else "envpool"
    venv: VecEnv
    if backend == "envpool":
        if extras:
            raise WrapperError(
                f"backend is 'envpool' and {' and '.join(extras)} was given; EnvPool's environments have no "
                "wrappers of their own: use 'dummy' or 'subproc', or wrap the VecEnv instead (VecMonitor, ...)"
            )
        if not isinstance(env_id, str):
            raise WrapperError(
                f"backend is 'envpool' and env_id is {env_id!r}; EnvPool makes environments by name only"
            )
        venv = EnvPoolVecEnv(env_id, n_envs, seed=seed, **arguments)
    else:
        source = as_source(env_id, arguments)
        venv = make_vec_env(
            source.make,
            n_envs,
            seed=seed,
            monitor_dir=monitor_dir,
            wrapper_class=None if wrapper_class is None else partial(_wrapped, wrapper_class),
            vec_env_cls=_CLASSES[backend],
        )
    try:
        return SteadyVecEnv(venv, delays, seed=seed, tolerance=tolerance, n_steps=n_steps)
    except BaseException:  # processes would go on without an owner
        venv.close()
        raise


def _wrapped(wrapper_class: Callable[[Any], Any], env: Any) -> Any:
    wrapped = wrapper_class(env)
    if not isinstance(wrapped, gymnasium.Env):
        raise WrapperError(
            f"wrapper_class is {shown(wrapper_class)}, which returned {shown(wrapped)}; it must return an environment "
            "of Gymnasium"
        )
    return wrapped


def _against_envpool(env_id: Any, arguments: Mapping[str, Any]) -> str | None:
    """Return why "auto" does not take EnvPool, or None if it does."""
    if not isinstance(env_id, str):
        return "EnvPool makes environments by name"
    source = as_source(env_id, arguments)
    return against_envpool(source, describe(source))
