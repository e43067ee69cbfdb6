"""One law for numpy, PyTorch and JAX: what the laws of this package need beyond the array API standard.

The laws are written once, with the functions of the array API standard (`array_api_compat` has them for each library),
and with the few below, which the standard does not have. Arrays stay where they are: nothing here copies an array to
the host, except that PyTorch on a CPU looks at a condition, which costs nothing there and saves the work behind it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_jax_namespace, is_torch_namespace
from array_api_compat import numpy as compatible_numpy

Array = Any
"""An array of any of the libraries."""


class _Numpy:
    """numpy's functions, with those of the law called directly: on their way np.sum and its like spend 5 us."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np if hasattr(np, name) else compatible_numpy, name)  # of the standard, since numpy 2.1
        setattr(self, name, found)
        return found

    def sum(self, values: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        reduce: Any = np.add.reduce
        return reduce(values, axis, dtype, None, keepdims)

    def max(self, values: Any, axis: Any = None) -> Any:
        return np.maximum.reduce(values, axis)

    def cumulative_sum(self, values: Any, axis: int = -1) -> Any:
        return np.add.accumulate(values, axis)

    def cumulative_prod(self, values: Any, axis: int = -1) -> Any:
        return np.multiply.accumulate(values, axis)

    def zeros_like(self, values: Any, dtype: Any = None) -> Any:
        return np.zeros(values.shape, values.dtype if dtype is None else dtype)


array_numpy: Any = _Numpy()


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
        if weights is not None and weights.dtype == np.bool_:  # few, as a rule
            places, weights = places[weights], None
        return np.bincount(places, weights, minlength=size).astype(np.float64)
    ones = xp.ones_like(places, dtype=real) if weights is None else xp.astype(weights, real)
    if is_torch_namespace(xp):
        return ones.new_zeros(size).scatter_add_(0, places, ones)
    return xp.zeros(size, dtype=real).at[places].add(ones)


def how_many(flags: Array) -> Array:
    """Return how many flags are True, as a whole number."""
    xp = library(flags)
    if xp is array_numpy:
        return np.count_nonzero(flags)
    whole = number_types(xp)[1]
    return xp.sum(xp.astype(flags, whole), dtype=whole)


def added(table: Array, places: Array, values: Array) -> Array:
    """Return a table of one dimension with values[i] added at places[i]; places may be repeated."""
    xp = library(table)
    if xp is array_numpy:
        return table + np.bincount(places, values, minlength=len(table))
    if is_torch_namespace(xp):
        return table.index_add(0, places, values)
    return table.at[places].add(values)


def at_least(values: Array, low: float) -> Array:
    """Return the values, and `low` instead of those below it."""
    xp = library(values)
    return np.maximum(values, low) if xp is array_numpy else xp.where(values > low, values, low)


def pick(condition: Array, one: Any, other: Any) -> Any:
    """Return one of two numbers."""
    if isinstance(condition, bool | np.bool_):
        return one if condition else other
    return library(condition).where(condition, one, other)


def running_max(values: Array) -> Array:
    """Return the largest of the first 1, 2, ... values along the last axis."""
    xp = library(values)
    if xp is array_numpy:
        return np.maximum.accumulate(values, axis=-1)
    if is_torch_namespace(xp):
        return values.cummax(-1).values
    return sys.modules["jax"].lax.cummax(values, axis=values.ndim - 1)


def running_min_from_above(values: Array) -> Array:
    """Return the smallest of the last 1, 2, ... values, at the place of the first of them."""
    xp = library(values)
    return np.minimum.accumulate(values[::-1])[::-1] if xp is array_numpy else -xp.flip(running_max(-xp.flip(values)))


def drawn(seed: Array, time: Array, places: Array, quota: Array) -> Array:
    """Return quota[k] of those at each place k: those to whom `hashed` gives the smallest numbers.

    Args:
        seed: seed of the numbers.
        time: of the draw; another time gives other numbers.
        places: [n], where everybody is; everybody has a number of his own, by his place in this array.
        quota: for each place, how many are drawn, at most as many as there are.
    """
    xp, n, size = library(places), places.shape[0], quota.shape[0]
    if xp is array_numpy:  # only those are looked at who are where somebody is drawn
        found = np.zeros(n, dtype=np.bool_)
        inside = np.flatnonzero((quota > 0).take(places))
        where = places.take(inside)
        keys = (where << 32) + hashed(xp, seed, time, inside)
        crowd = np.bincount(where, minlength=size)
        drawn_from = crowd.nonzero()[0]
        behind = np.add.accumulate(crowd) - crowd  # who is at a place before
        largest = crowd  # of the keys that are drawn, at each place
        largest[drawn_from] = np.sort(keys)[(behind + quota)[drawn_from].astype(np.int64) - 1]
        found[inside[keys <= largest.take(where)]] = True
        return found
    everybody = xp.arange(n, dtype=places.dtype, **beside(places))
    noise = hashed(xp, seed, time, everybody)
    if is_jax_namespace(xp) and sys.modules["jax"].default_backend() == "cpu" and 16 * size < n * math.log2(n + 1):
        return _drawn_by_bits(noise, places, quota)
    # No two numbers are equal, so it does not matter whether a sort is stable. JAX may have no 64 bits.
    ordered = xp.lexsort((noise, places)) if is_jax_namespace(xp) else xp.argsort(places * 2**32 + noise)
    where = xp.take(places, ordered, axis=0)
    crowd = count(places, size)
    rank = xp.astype(everybody, quota.dtype) - xp.take(xp.cumulative_sum(crowd) - crowd, where, axis=0)
    lucky = rank < xp.take(quota, where, axis=0)
    if is_jax_namespace(xp):
        return xp.zeros_like(lucky).at[ordered].set(lucky)
    found = xp.empty_like(lucky)
    found[ordered] = lucky
    return found


def _drawn_by_bits(noise: Array, places: Array, quota: Array) -> Array:
    """`drawn` in JAX without a sort, which takes XLA a millisecond for 4,096 numbers on a CPU; this takes a fifth.

    The numbers are compared four bits at a time, from the highest: how many at each place have each value of them says
    up to which value all are drawn; those with the next value are compared further.
    """
    jax = sys.modules["jax"]
    jnp, lax, size = jax.numpy, jax.lax, quota.shape[0]
    values = jnp.arange(16, dtype=places.dtype)

    def compare(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        left, undecided, lucky = carry
        bits = ((noise >> (jnp.uint32(28) - 4 * i.astype(jnp.uint32))) & jnp.uint32(15)).astype(places.dtype)
        table = jnp.zeros(size * 16, quota.dtype).at[places * 16 + bits].add(undecided.astype(quota.dtype))
        below = jnp.cumsum(table.reshape(size, 16), axis=1)
        next_value = jnp.sum(below < left[:, None], axis=1, dtype=places.dtype)  # below it, all are drawn
        drawn_below = jnp.max(jnp.where(values < next_value[:, None], below, 0), axis=1)
        mine = next_value[places]
        return left - drawn_below, undecided & (bits == mine), lucky | (undecided & (bits < mine))

    somewhere = (quota > 0)[places]
    start = quota, somewhere, jnp.zeros_like(somewhere)
    _, undecided, lucky = lax.fori_loop(0, 8, compare, start)
    return lucky | undecided


def last(flags: Array) -> Array:
    """Return the last place whose flag is True, or 0."""
    xp = library(flags)
    if xp is array_numpy:
        back = flags[::-1].argmax()  # 0 also if none is True
        return len(flags) - 1 - back if flags[-1 - back] else back * 0
    whole = number_types(xp)[1]
    return xp.max(xp.where(flags, xp.arange(flags.shape[0], dtype=whole, **beside(flags)), 0))


def at(values: Array, place: Array) -> Array:
    """Return values[place] for a place that only the device knows."""
    if isinstance(values, np.ndarray):
        return values[place]
    xp = library(values)
    return xp.take(values, xp.reshape(place, (1,)), axis=0)[0]


def seed_type(xp: Any) -> Any:
    """Return the type of whole numbers that `hashed` computes in."""
    return xp.uint32 if is_jax_namespace(xp) else xp.int64  # JAX may have no 64 bits


def hashed(xp: Any, seed: Array, time: Array, numbers: Array | int) -> Array:
    """Return a 32-bit pseudo-random number from (seed, time, k) for each k of `numbers`.

    Xor-shifts and odd multipliers, kept to 32 bits, are the same in every array library, and what is drawn does not
    depend on what was drawn before.
    """
    if xp is array_numpy:
        return _hashed_numpy(int(seed), int(time), numbers)
    wide = seed_type(xp)
    number = xp.uint32 if is_jax_namespace(xp) else int
    bits = number(0xFFFFFFFF)
    start = xp.astype(seed, wide) + xp.astype(time, wide) * number(0x85EBCA6B)
    x = (number(numbers) if isinstance(numbers, int) else xp.astype(numbers, wide)) * number(0x9E3779B9)
    x = (x + start) & bits
    for shift, factor in _ROUNDS:
        x = ((x ^ (x >> number(shift))) * number(factor)) & bits
    return x


_ROUNDS = (16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1)


def _hashed_numpy(seed: int, time: int, numbers: Array | int) -> Any:
    """`hashed` with Python's numbers, or in 32 bits, which overflow as they should."""
    start = (seed + time * 0x85EBCA6B) & 0xFFFFFFFF
    if isinstance(numbers, int):
        x: Any = (numbers * 0x9E3779B9 + start) & 0xFFFFFFFF
        for shift, factor in _ROUNDS:
            x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
        return x
    x = numbers.astype(np.uint32)
    x *= np.uint32(0x9E3779B9)
    x += np.uint32(start)
    for shift, factor in _ROUNDS:
        x ^= x >> np.uint32(shift)
        if factor != 1:
            x *= np.uint32(factor)
    return x


def beside(array: Array) -> dict[str, Any]:
    """Return the keyword that makes new arrays where this one is."""
    return {"device": array.device} if is_torch_namespace(library(array)) else {}
