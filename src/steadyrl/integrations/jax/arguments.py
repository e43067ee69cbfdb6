"""Checks of what the functions for JAX are given; inside jit, too, so they look at types and shapes, not at values."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from steadyrl.common.checks import plain_array, shown
from steadyrl.errors import SteadyrlError

State = TypeVar("State")


def as_array(name: str, value: Any, num_envs: int, error: type[SteadyrlError]) -> jax.Array:
    """Return an array with a real number or a boolean for each environment, or raise `error`."""
    given = value if isinstance(value, jax.Array) else plain_array(name, value, error)
    if given.shape != (num_envs,):
        raise error(
            f"{name} has shape {given.shape}; for {num_envs} environments it must be ({num_envs},): all are looked at "
            "together, outside of a vmap over environments"
        )
    times = np.issubdtype(given.dtype, np.timedelta64) if isinstance(given, np.ndarray) else False  # whole, to numpy
    if times or not any(jnp.issubdtype(given.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
        raise error(f"{name} has entries of type {given.dtype}; they must be numbers or booleans")
    return jnp.asarray(given)


def is_key(value: Any) -> bool:
    """Return whether a value is one or several keys, as of `jax.random.key`."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def check_rows(name: str, tree: Any, num_envs: int, error: type[SteadyrlError]) -> None:
    """Raise `error` unless all arrays of a structure are numbers with the environments in their first dimension."""
    leaves = jax.tree.leaves(tree)
    for leaf in leaves or [tree]:
        if not isinstance(leaf, jax.Array) and not (type(leaf) is np.ndarray and leaf.dtype.kind in "biufc"):
            raise error(f"{name} has {shown(leaf)}; it must be an array of numbers, or a structure of them")
        if leaf.shape[:1] != (num_envs,):
            raise error(
                f"{name} has an array of shape {leaf.shape}; its first dimension must be that of the {num_envs} "
                "environments"
            )


def check_keys(keys: Any, num_envs: int, error: type[SteadyrlError]) -> None:
    """Raise `error` unless there is one key of `jax.random` for each environment."""
    shape, kind = getattr(keys, "shape", ()), getattr(keys, "dtype", None)
    raw = isinstance(keys, jax.Array | np.ndarray) and kind == jnp.uint32 and len(shape) == 2
    if shape[:1] != (num_envs,) or not (raw or (is_key(keys) and len(shape) == 1)):
        raise error(
            f"keys have shape {shape}; there must be one for each of the {num_envs} environments: "
            f"jax.random.split(key, {num_envs})"
        )


def as_state(value: Any, kind: type[State], where: str, error: type[SteadyrlError]) -> State:
    """Return the state of one run, or raise `error`; `where` says which functions return one."""
    if not isinstance(value, kind):
        raise error(f"state is {shown(value)}; it must be what {where} returned")
    inside: Any = getattr(value, "law", value)
    shape = jnp.shape(inside.ages)
    if len(shape) != 1:
        raise error(
            f"the state has ages of shape {shape}, those of several runs, as from a vmap over seeds; take one of them, "
            "jax.tree.map(lambda x: x[0], state), or call this inside of that vmap"
        )
    return value
