"""One law for numpy, PyTorch and JAX: what the laws of this package need beyond the array API standard.

The laws are written once, with the functions of the array API standard (`array_api_compat` has them for each library),
and with the few below, which the standard does not have. Arrays stay where they are: nothing here copies an array to
the host, except that PyTorch on a CPU looks at a condition, which costs nothing there and saves the work behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_jax_namespace, is_torch_namespace
from array_api_compat import numpy as compatible_numpy

Array = Any
"""An array of any of the libraries."""

# numpy has had the standard's functions since 2.1; calling them directly takes half the time.
array_numpy: Any = np if hasattr(np, "cumulative_sum") else compatible_numpy


def library(array: Array) -> Any:
    """Return the functions of the library that an array belongs to, under their names in the array API standard."""
    kind = type(array)
    found = _LIBRARIES.get(kind)
    if found is None:
        found = array_numpy if isinstance(array, np.ndarray | np.generic) else array_namespace(array)
        _LIBRARIES[kind] = found
    return found


_LIBRARIES: dict[type, Any] = {}  # of the kinds of arrays seen so far; to find out takes longer than a small operation


def number_types(xp: Any) -> tuple[Any, Any]:
    """Return the types of real and of whole numbers: 64 bits, in JAX what it was configured for."""
    if is_jax_namespace(xp):
        kinds = xp.__array_namespace_info__().default_dtypes()
        return kinds["real floating"], kinds["integral"]
    return xp.float64, xp.int64


def when(condition: Array, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """Return `then(*operands)` if the condition holds, else `otherwise(*operands)`; results have the same structure.

    numpy, and PyTorch on a CPU, branch; JAX has `lax.cond`; PyTorch on another device computes both and selects, since
    looking at the condition would wait for the device.
    """
    if isinstance(condition, bool | np.bool_ | np.ndarray):
        return then(*operands) if condition else otherwise(*operands)
    xp = library(condition)
    if is_jax_namespace(xp):
        return sys.modules["jax"].lax.cond(condition, then, otherwise, *operands)
    if condition.device.type == "cpu":
        return then(*operands) if bool(condition) else otherwise(*operands)
    return _selected(xp, condition, then(*operands), otherwise(*operands))


def _selected(xp: Any, condition: Array, one: Any, other: Any) -> Any:
    if isinstance(one, tuple):
        found = [_selected(xp, condition, a, b) for a, b in zip(one, other, strict=True)]
        return type(one)(*found) if hasattr(one, "_fields") else tuple(found)
    return one if one is other else xp.where(condition, one, other)


def count(places: Array, size: int, weights: Array | None = None) -> Array:
    """Return how many are at each place 0, ..., size - 1, or the sum of their weights; places are within that range."""
    xp = library(places)
    real, _ = number_types(xp)
    if xp is array_numpy:
        return np.bincount(places, weights, minlength=size).astype(np.float64)
    ones = xp.ones(places.shape, dtype=real) if weights is None else xp.astype(weights, real)
    if is_torch_namespace(xp):
        return ones.new_zeros(size).scatter_add_(0, places, ones)
    return xp.zeros(size, dtype=real).at[places].add(ones)


def added(table: Array, places: Array, values: Array) -> Array:
    """Return a table of one dimension with values[i] added at places[i]; places may be repeated."""
    xp = library(table)
    if xp is array_numpy:
        return table + np.bincount(places, values, minlength=len(table))
    if is_torch_namespace(xp):
        return table.index_add(0, places, values)
    return table.at[places].add(values)


def scattered(places: Array, values: Array) -> Array:
    """Return an array with values[i] at places[i]; places are a permutation."""
    xp = library(values)
    if is_jax_namespace(xp):
        return xp.zeros_like(values).at[places].set(values)
    found = xp.empty_like(values)
    found[places] = values
    return found


def running_max(values: Array) -> Array:
    """Return the largest of the first 1, 2, ... values along the last axis."""
    xp = library(values)
    if xp is array_numpy:
        return np.maximum.accumulate(values, axis=-1)
    if is_torch_namespace(xp):
        return values.cummax(-1).values
    return sys.modules["jax"].lax.cummax(values, axis=values.ndim - 1)


def order(first: Array, second: Array) -> Array:
    """Return the places of the values in rising order of `first`, and where these are equal of `second` (32 bits).

    No two values of `second` are equal, so it does not matter whether a sort is stable.
    """
    xp = library(first)
    if is_jax_namespace(xp):  # it may have no 64 bits
        return xp.lexsort((second, first))
    return xp.argsort(first * 2**32 + second)


def at(values: Array, place: Array) -> Array:
    """Return values[place] for a place that only the device knows."""
    if isinstance(values, np.ndarray):
        return values[place]
    xp = library(values)
    return xp.take(values, xp.reshape(place, (1,)), axis=0)[0]


def seed_type(xp: Any) -> Any:
    """Return the type of whole numbers that `hashed` computes in."""
    return xp.uint32 if is_jax_namespace(xp) else xp.int64  # JAX may have no 64 bits


def hashed(xp: Any, seed: Array, time: Array, size: int) -> Array:
    """Return 32-bit pseudo-random numbers from (seed, time, 0), (seed, time, 1), ...

    Xor-shifts and odd multipliers, kept to 32 bits, are the same in every array library, and what is drawn does not
    depend on what was drawn before.
    """
    mask = 0xFFFFFFFF
    wide = seed_type(xp)
    number = xp.uint32 if is_jax_namespace(xp) else int
    bits = number(mask)
    start = xp.astype(seed, wide) + xp.astype(time, wide) * number(0x85EBCA6B)
    x = (xp.arange(size, dtype=wide, **beside(seed)) * number(0x9E3779B9) + start) & bits
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1)):
        x = ((x ^ (x >> number(shift))) * number(factor)) & bits
    return x


def beside(array: Array) -> dict[str, Any]:
    """Return the keyword that makes new arrays where this one is."""
    device = getattr(array, "device", None)
    return {"device": device} if type(array).__module__.startswith("torch") else {}
