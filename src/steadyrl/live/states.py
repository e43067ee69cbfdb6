"""States of laws as arrays: what was saved is looked at before a law goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from steadyrl.common.checks import plain_array
from steadyrl.errors import SteadyrlError

_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}  # of arrays that stand for booleans, whole and real numbers


def restored(state: Mapping[str, Any], like: Mapping[str, Any], error: type[SteadyrlError]) -> dict[str, Any]:
    """Return copies of the arrays of a state, each with the shape and type of the one in `like`, or raise `error`."""
    found = {}
    for name, wanted in like.items():
        value = plain_array(name, state[name], error)
        if value.shape != wanted.shape or value.dtype.kind not in _KINDS[wanted.dtype.kind]:
            raise error(
                f"{name} is an array of {value.dtype} with shape {value.shape}; in this state it must be of "
                f"{wanted.dtype} with shape {wanted.shape}"
            )
        if np.isnan(value).any():
            raise error(f"{name} holds a value that is not a number, so nothing can go on from this state")
        found[name] = value.astype(wanted.dtype)
    return found
