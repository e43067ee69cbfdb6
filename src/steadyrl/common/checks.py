"""Checks of arguments, each written once: whole numbers, tolerances, confidence levels, seeds, arrays of numbers.

A check returns the value in the type that the code behind it expects, or raises an error that names the argument, shows
the value received and says what would do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from steadyrl.errors import RolloutError, SteadyrlError, ToleranceError

Array = NDArray[np.float64]


def whole_number(name: str, value: Any, error: type[SteadyrlError], *, least: int = 1) -> int:
    """Return a whole number as an int, or raise `error` if it is none, or below `least`.

    Example:
        >>> whole_number("num_envs", np.int64(8), RolloutError)
        8
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise error(f"{name} is {value!r}; it must be a whole number, {least} or more")
    return int(value)


def check_count(name: str, value: Any) -> None:
    """Raise RolloutError unless the value is None or a whole number, 1 or more."""
    if value is not None:
        whole_number(name, value, RolloutError)


def as_steps(steps: Any, error: type[SteadyrlError]) -> int:
    """Return a number of steps, 0 or more, as an int, or raise `error`."""
    return whole_number("steps", steps, error, least=0)


def check_seed(seed: Any, error: type[SteadyrlError] = RolloutError) -> int:
    """Return the seed as an int, or raise `error`: a run can only be repeated if its seed is a whole number."""
    if isinstance(seed, bool | np.bool_) or not isinstance(seed, int | np.integer) or seed < 0:
        raise error(f"seed is {seed!r}; it must be a whole number, 0 or more, so that the run can be repeated")
    return int(seed)


def check_tolerance(tolerance: Any) -> float:
    """Return the tolerance as a float, or raise ToleranceError: a total variation lies above 0 and is at most 1."""
    number = isinstance(tolerance, int | float | np.number) and not isinstance(tolerance, bool)
    if not number or not 0 < tolerance <= 1:
        raise ToleranceError(
            f"tolerance is {tolerance!r}; it must be a distance (total variation) above 0 and at most 1, as in 0.01"
        )
    return float(tolerance)


def check_level(level: Any, error: type[SteadyrlError]) -> float:
    """Return a confidence level as a float, or raise `error` unless it lies strictly between 0 and 1."""
    number = isinstance(level, int | float | np.number) and not isinstance(level, bool)
    if not number or not 0 < level < 1:
        raise error(f"level is {level!r}; a confidence level lies strictly between 0 and 1, as in 0.9")
    return float(level)


def as_numbers(what: str, given: Any, error: type[SteadyrlError]) -> Array:
    """Return an array of real numbers, or raise `error` saying what was given instead."""
    if sp.issparse(given):
        raise error(f"{what} is a sparse matrix; it must be an ordinary array: {what}.toarray()")
    try:
        values = np.asarray(given)
        if values.dtype.kind not in "biuf":
            raise TypeError(f"they are of type {values.dtype}")
        return values.astype(float)
    except (TypeError, ValueError) as problem:
        raise error(f"{what} must be an array of real numbers, not {type(given).__name__} ({problem})") from problem
