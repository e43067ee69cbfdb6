"""Checks of what an environment returns, each cheap enough for every step.

numpy would turn the text "1.5" into a reward, spread a single number over a whole observation, and take the text
"False" for true; Gymnasium takes -1 for the last number of a Discrete inside a Dict. All of these are refused with
`InvalidValueError`, which says what was returned and what it should have been.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

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


def as_observation(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None) -> Any:
    """Return an observation of a Box as an array of real numbers with the shape of the space.

    If the space has whole numbers, they must be some that its type can hold: 300 in a uint8 would become 44.
    """
    array = _as_array(value)
    if array is None or array.dtype.kind not in "biuf":
        raise InvalidValueError(f"the observation {shown(value)}, which is not an array of numbers")
    if array.shape != shape:
        raise InvalidValueError(f"an observation of shape {array.shape}, but the observation space has {shape}")
    if dtype is None or dtype.kind not in "iu" or array.dtype == dtype:
        return array
    return _as_whole(array, dtype)


def _as_whole(array: Any, dtype: np.dtype[Any]) -> Any:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    if not ((array >= least) & (array <= most) & (array == np.floor(array))).all():
        raise InvalidValueError(
            f"the observation {shown(array)}, but the space's type is {dtype}: whole numbers from {least} to {most}"
        )
    return array.astype(dtype)


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


def as_parts(space: Any, value: Any) -> Any:
    """Return an observation with each of its parts checked; those of whole numbers in the type of the space.

    Gymnasium's `flatten` looks at none of this: it takes -1 for the last of a Discrete, a number too large for one of
    the next part's, and parts of other shapes as long as the total fits.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or not set(space.spaces) <= set(value):
            raise InvalidValueError(f"the observation {shown(value)}, which lacks some of {list(space.spaces)}")
        return {key: as_parts(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise InvalidValueError(f"the observation {shown(value)}, which is not a tuple of {len(space.spaces)}")
        return tuple(as_parts(part, found) for part, found in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Discrete):
        return as_state(value, int(space.start), int(space.n)) + int(space.start)
    if isinstance(space, spaces.Box):
        return as_observation(value, space.shape, space.dtype)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return _as_choices(space, as_observation(value, space.shape))
    return value


def _as_choices(space: Any, numbers: Any) -> Any:
    """Return the numbers of a MultiDiscrete or MultiBinary observation, each of which must be one of its choices."""
    first, count = getattr(space, "start", 0), getattr(space, "nvec", 2)
    if not ((numbers >= first) & (numbers < first + count) & (numbers == np.floor(numbers))).all():
        raise InvalidValueError(f"the observation {shown(numbers)}, which is not in {space}")
    return numbers.astype(space.dtype)


def _as_array(value: Any) -> Any:
    """Return a value as an array, or None if it is none, or if a mask says that part of it has no value."""
    try:
        return None if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    except Exception:  # ragged lists, tensors on another device, objects with an __array__ of their own
        return None
