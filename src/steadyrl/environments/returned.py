"""Checks of what an environment returns, each cheap enough for every step.

numpy would turn the text "1.5" into a reward, spread a single number over a whole observation, and take the text
"False" for true. All of these are refused with `InvalidValueError`, which says what was returned and what it should
have been.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from steadyrl.common.checks import shown

_WHOLE = (int, np.integer)


class InvalidValueError(TypeError):
    """An environment returned something that is not an observation, a reward or a flag."""


def as_reward(value: Any) -> float:
    """Return a reward as a float: a real number, or an array that holds one.

    Example:
        >>> as_reward(np.float32(1.5)), as_reward(np.array([2]))
        (1.5, 2.0)
    """
    if isinstance(value, float | int | np.floating | np.integer | np.bool_):
        return float(value)
    if isinstance(value, numbers.Real):
        return float(value)
    array = _as_array(value)
    if array is None or array.size != 1 or array.dtype.kind not in "biuf":
        raise InvalidValueError(f"the reward {shown(value)}, which is not a number")
    return float(array.reshape(-1)[0])


def as_flag(name: str, value: Any) -> bool:
    """Return `terminated` or `truncated` as a bool: True, False, numpy's own, or 0 and 1.

    Example:
        >>> as_flag("terminated", np.True_), as_flag("truncated", 0)
        (True, False)
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, _WHOLE) and value in (0, 1):
        return bool(value)
    array = _as_array(value)
    if array is not None and array.ndim == 0 and array.dtype.kind == "b":
        return bool(array)
    raise InvalidValueError(f"{name} = {shown(value)}, which is neither True nor False")


def as_observation(value: Any, shape: tuple[int, ...]) -> Any:
    """Return an observation of a Box as an array of real numbers with the shape of the space."""
    array = _as_array(value)
    if array is None or array.dtype.kind not in "biuf":
        raise InvalidValueError(f"the observation {shown(value)}, which is not an array of numbers")
    if array.shape != shape:
        raise InvalidValueError(f"an observation of shape {array.shape}, but the observation space has {shape}")
    return array


def as_info(value: Any) -> dict[str, Any]:
    """Return an info, which must be a dictionary."""
    if not isinstance(value, dict):
        raise InvalidValueError(f"the info {shown(value)}, which is not a dictionary")
    return value


def as_state(value: Any, start: int, size: int) -> int:
    """Return the number of a Discrete observation, counted from 0."""
    array = _as_array(value)
    if array is None or array.ndim or array.dtype.kind not in "iub":
        raise InvalidValueError(f"the observation {shown(value)}, which is not a whole number")
    number = int(array) - start
    if not 0 <= number < size:
        raise InvalidValueError(f"the observation {int(array)}, which is not in {start}, ..., {start + size - 1}")
    return number


def _as_array(value: Any) -> Any:
    """Return a value as an array, or None if it is none, or if a mask says that part of it has no value."""
    try:
        return None if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    except Exception:  # ragged lists, tensors on another device, objects with an __array__ of their own
        return None
