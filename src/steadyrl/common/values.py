"""Equality, hash and repr of dataclasses that hold arrays.

`==` between arrays gives an array, so the equality that `dataclass` writes raises for them. A class declared with
`@dataclass(frozen=True, eq=False, repr=False)` uses these functions instead:

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        return short_repr(self)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def same_values(one: Any, other: Any) -> bool:
    """Return whether two dataclasses are of one class and hold the same values; two NaN at one place are the same."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    return all(_same(getattr(one, part.name), getattr(other, part.name)) for part in fields(one) if part.compare)


def hash_values(value: Any) -> int:
    """Return a hash that is the same for the same values: of the class and the shapes of its arrays, which is quick."""
    shapes = (np.shape(getattr(value, part.name)) for part in fields(value) if part.compare and _is_array(value, part))
    return hash((type(value).__qualname__, *shapes))


def short_repr(value: Any) -> str:
    """Return the class, and for every field that is neither empty nor internal its value, or the shape of an array."""
    shown = [f"{part.name}={_short(getattr(value, part.name))}" for part in fields(value) if part.repr]
    return f"{type(value).__qualname__}({', '.join(text for text in shown if not text.endswith('=None'))})"


def _is_array(value: Any, part: Any) -> bool:
    return isinstance(getattr(value, part.name), np.ndarray)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        return bool(a.shape == b.shape and ((a == b) | ((a != a) & (b != b))).all())
    if is_dataclass(a) and not isinstance(a, type):
        return bool(a == b) if type(a).__eq__ is not object.__eq__ else same_values(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b) or bool(a != a and b != b)


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype}[{', '.join(map(str, value.shape))}]>" if value.size > 4 else repr(value.tolist())
    if isinstance(value, Mapping):
        return f"<{len(value)} entries>"
    if isinstance(value, tuple | list) and len(value) > 4:
        return f"<{len(value)} entries>"
    return repr(value)
