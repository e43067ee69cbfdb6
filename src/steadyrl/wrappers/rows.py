"""Rows of batched observations: arrays, or dictionaries and tuples of them."""

from __future__ import annotations

from typing import Any

import numpy as np


def write_rows(into: Any, at: Any, rows: Any) -> None:
    """Write rows (arrays, or dicts of them) into a batch, in place."""
    if isinstance(into, dict):
        for key, part in into.items():
            write_rows(part, at, rows[key])
    elif isinstance(into, tuple):
        for part, row in zip(into, rows, strict=True):
            write_rows(part, at, row)
    else:
        into[at] = rows


def empty_like(rows: Any, count: int) -> Any:
    """Return a batch of zeros (arrays, or dicts of them) with rows like these."""
    if isinstance(rows, dict):
        return {key: empty_like(part, count) for key, part in rows.items()}
    return np.zeros((count, *rows.shape[1:]), rows.dtype)


def copied(rows: Any) -> Any:
    """Return a copy of a batch (arrays, or dicts of them)."""
    return {key: copied(part) for key, part in rows.items()} if isinstance(rows, dict) else rows.copy()


def row_of(rows: Any, i: int) -> Any:
    """Return a copy of one row of a batch (arrays, or dicts of them); a number of a batch of numbers."""
    if isinstance(rows, dict):
        return {key: row_of(part, i) for key, part in rows.items()}
    if isinstance(rows, tuple):
        return tuple(row_of(part, i) for part in rows)
    return rows[i].copy()
