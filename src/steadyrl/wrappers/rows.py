"""Rows of batched observations: arrays, or dictionaries and tuples of arrays, nested as deep as the space is."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


def write_rows(into: Any, at: Any, rows: Any) -> None:
    """Write rows into a batch, in place."""
    if isinstance(into, dict):
        for key, part in into.items():
            write_rows(part, at, rows[key])
    elif isinstance(into, tuple):
        for part, row in zip(into, rows, strict=True):
            write_rows(part, at, row)
    else:
        into[at] = rows


def take_rows(batch: Any, at: Any) -> Any:
    """Return a copy of the rows at an index, a mask or an array of indices; one row of a batch of numbers is a number.

    Example:
        >>> take_rows({"a": np.array([5, 6, 7])}, np.array([0, 2]))
        {'a': array([5, 7])}
    """
    if isinstance(batch, dict):
        return {key: take_rows(part, at) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(take_rows(part, at) for part in batch)
    return np.asarray(batch)[at].copy()


def zeros_like_rows(rows: Any, count: int) -> Any:
    """Return a batch of `count` zero rows in the shape and type of these."""
    if isinstance(rows, dict):
        return {key: zeros_like_rows(part, count) for key, part in rows.items()}
    if isinstance(rows, tuple):
        return tuple(zeros_like_rows(part, count) for part in rows)
    return np.zeros((count, *rows.shape[1:]), rows.dtype)


def copied(value: Any) -> Any:
    """Return a copy of a batch, or of one observation."""
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(copied(part) for part in value)
    return value.copy() if isinstance(value, np.ndarray) else value


def replace_rows(space: spaces.Space[Any], batch: Any, other: Any, mask: Flags) -> Any:
    """Return the batch with the rows of the mask taken from another; neither is changed.

    The space is that of one environment: where observations are no arrays (as in a Text space), a batch is a tuple with
    one entry per environment, which without the space could not be told from a Tuple of batches.
    """
    if isinstance(space, spaces.Dict):
        return {key: replace_rows(part, batch[key], other[key], mask) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            replace_rows(part, one, two, mask) for part, one, two in zip(space.spaces, batch, other, strict=True)
        )
    if isinstance(batch, np.ndarray):
        result = batch.copy()
        result[mask] = other[mask]
        return result
    return tuple(two if flag else one for one, two, flag in zip(batch, other, mask, strict=True))


def same_rows(space: spaces.Space[Any], one: Any, other: Any, mask: Flags) -> bool:
    """Return whether the numbers in the rows of the mask are the same; what is not a number is not compared."""
    if isinstance(space, spaces.Dict):
        return all(same_rows(part, one[key], other[key], mask) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return all(same_rows(part, a, b, mask) for part, a, b in zip(space.spaces, one, other, strict=True))
    if isinstance(one, np.ndarray) and one.dtype.kind in "biuf":
        return bool(np.array_equal(one[mask], other[mask], equal_nan=True))
    return True
