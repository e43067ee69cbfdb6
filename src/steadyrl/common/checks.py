"""Checks of arguments, each written once: whole numbers, tolerances, confidence levels, seeds, arrays of numbers.

A check returns the value in the type that the code behind it expects, or raises an error that names the argument, shows
the value received and says what would do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from steadyrl.errors import RolloutError, SteadyrlError, ToleranceError

Array = NDArray[np.float64]

LARGEST = 2**63 - 1
"""The largest whole number that arrays of 64-bit integers can hold."""

MOST_STEPS = MOST_ENVS = 10**8
"""Bounds of what is kept in memory for each step, or each environment."""

SUM_TOLERANCE = 1e-6
"""How far the sum of a distribution may be from one: single precision is common."""


SMALLEST_TOLERANCE = 1e-12
"""The smallest distance that double precision tells from 0, with a margin: it comes to rest near 1e-15."""


def shown(value: Any, most: int = 80) -> str:
    """Return the repr of a value for a message, on one line and shortened to about `most` characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a number of more than 4,300 digits, or somebody's own __repr__
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else f"{text[: most - 10]}...{text[-7:]}"


def shortened(text: object, most: int = 500) -> str:
    """Return a text of somebody else for a message, shortened to about `most` characters."""
    try:
        words = str(text)
    except Exception:  # somebody's own __str__
        words = "a message that cannot be shown"
    return words if len(words) <= most else f"{words[: most - 10]}...{words[-7:]}"


def in_words(error: BaseException) -> str:
    """Return an error's type and, if it has one, its message.

    Example:
        >>> in_words(ValueError("no wheels")), in_words(KeyboardInterrupt())
        ('ValueError: no wheels', 'KeyboardInterrupt')
    """
    said = shortened(error, LARGEST)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def is_number(value: Any) -> bool:
    """Return whether a value is one real number that a float can hold; True and False are not."""
    if isinstance(value, bool | np.bool_ | np.timedelta64) or not isinstance(value, Real):
        return False
    try:
        float(value)
    except Exception:  # a whole number beyond double precision, or somebody's own __float__
        return False
    return True


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a value is a whole number; True and False are not, nor are times, which numpy takes for such."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_ | np.timedelta64)


def whole_number(name: str, value: Any, error: type[SteadyrlError], *, least: int = 1, most: int = LARGEST) -> int:
    """Return a whole number as an int, or raise `error` if it is not one, below `least` or above `most`.

    Example:
        >>> whole_number("num_envs", np.int64(8), RolloutError)
        8
    """
    if not is_whole(value) or value < least:
        raise error(f"{name} is {shown(value)}; it must be a whole number, {least} or more")
    if value > most:
        raise error(f"{name} is {shown(value)}; it must be a whole number, {most} at most")
    return int(value)


def check_count(name: str, value: Any) -> None:
    """Raise RolloutError unless the value is None or a whole number, 1 or more."""
    if value is not None:
        whole_number(name, value, RolloutError)


def as_steps(steps: Any, error: type[SteadyrlError]) -> int:
    """Return a number of steps, 0 or more, as an int, or raise `error`."""
    return whole_number("steps", steps, error, least=0, most=MOST_STEPS)


def check_seed(seed: Any, error: type[SteadyrlError] = RolloutError) -> int:
    """Return the seed as an int, or raise `error`: a run can only be repeated if its seed is a whole number."""
    if not is_whole(seed) or seed < 0:
        raise error(f"seed is {shown(seed)}; it must be a whole number, 0 or more, so that the run can be repeated")
    return int(seed)


def check_tolerance(tolerance: Any) -> float:
    """Return the tolerance as a float, or raise ToleranceError: a total variation lies above 0 and is at most 1."""
    if not is_number(tolerance) or not 0 < tolerance <= 1:
        raise ToleranceError(
            f"tolerance is {shown(tolerance)}; it must be a distance (total variation) above 0 and at most 1, as in "
            "0.01"
        )
    if tolerance < SMALLEST_TOLERANCE:
        raise ToleranceError(
            f"tolerance is {shown(tolerance)}; distances below {SMALLEST_TOLERANCE:g} are rounding, so it would never "
            "be reached; give a larger one, as in 0.01"
        )
    return float(tolerance)


def check_level(level: Any, error: type[SteadyrlError]) -> float:
    """Return a confidence level as a float, or raise `error` unless it lies strictly between 0 and 1."""
    if not is_number(level) or not 0 < level < 1:
        raise error(f"level is {shown(level)}; a confidence level lies strictly between 0 and 1, as in 0.9")
    return float(level)


def check_flag(name: str, value: Any, error: type[SteadyrlError]) -> bool:
    """Return True or False as a bool, or raise `error` if the value is anything else: "no" is not False."""
    if not isinstance(value, bool | np.bool_):
        raise error(f"{name} is {shown(value)}; it must be True or False")
    return bool(value)


def check_choice(name: str, value: Any, choices: Iterable[str], error: type[SteadyrlError]) -> str:
    """Return a word, or raise `error` unless it is one of `choices`."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise error(f"{name} is {shown(value)}; it must be one of {', '.join(map(repr, known))}")
    return value


def as_path(name: str, value: Any, error: type[SteadyrlError]) -> str:
    """Return the name of a file or folder as text, or raise `error`: a number would be taken for an open file.

    Example:
        >>> as_path("out", b"run", RolloutError)
        'run'
    """
    try:
        found = os.fsdecode(os.fspath(value))
        os.fsencode(found)
    except TypeError as problem:
        raise error(f"{name} is {shown(value)}; it must be the name of a file or folder") from problem
    except UnicodeEncodeError as problem:
        raise error(f"{name} is {shown(value)}; no name of a file or folder holds such characters") from problem
    except Exception as problem:  # somebody's own __fspath__
        raise error(f"{name} is {shown(value)}, which does not say its name ({in_words(problem)})") from problem
    if not found:
        raise error(f"{name} is an empty name; it must be the name of a file or folder")
    if "\0" in found:
        raise error(f"{name} is {shown(value)}; no name of a file or folder holds a null character")
    return found


def as_keywords(name: str, value: Any, error: type[SteadyrlError]) -> dict[str, Any]:
    """Return keyword arguments as a dictionary, empty for None, or raise `error`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise error(f"{name} is {shown(value)}; it must be a dictionary of names and values")
    return dict(value)


def check_id(environment: Any, error: type[SteadyrlError]) -> None:
    """Raise an error for an environment's id with two colons, which Gymnasium answers with "too many values"."""
    if isinstance(environment, str) and environment.count(":") > 1:
        raise error(
            f"Gymnasium cannot make {shown(environment, 300)}: an id has one colon at most, between the package that "
            "registers the environment and its name, as in 'package:Name-v0'"
        )


def check_rng(rng: Any, error: type[SteadyrlError]) -> np.random.Generator:
    """Return the random generator, or raise `error` if it is something else, such as a seed."""
    if not isinstance(rng, np.random.Generator):
        raise error(f"rng is {shown(rng)}; it must be a numpy random generator, such as np.random.default_rng(0)")
    return rng


def _has_a_mask(given: Any) -> bool:
    """Return whether a value is a masked array, or a list of some: numpy would take what is under the masks."""
    if isinstance(given, list | tuple):
        kinds = set(map(type, given))
        return not kinds <= {int, float} and any(map(_has_a_mask, given))
    return np.ma.isMaskedArray(given)


_MOST_ENTRIES = 10**8  # of a range that is made an array


def plain_array(what: str, given: Any, error: type[SteadyrlError]) -> NDArray[Any]:
    """Return the value as a numpy array, or raise `error` if doing so would lose a mask, a gradient or sparsity."""
    if sp.issparse(given):
        raise error(f"{what} is a sparse matrix; it must be an ordinary array: {what}.toarray()")
    if isinstance(given, range) and len(given) > _MOST_ENTRIES:
        raise error(
            f"{what} is {shown(given)}, which has {len(given):,} entries; an array of them takes too much memory"
        )
    try:
        if _has_a_mask(given):
            raise error(
                f"{what} is a masked array, whose masked entries have no value here; give {what}.filled(value), or "
                f"{what}.compressed()"
            )
        if getattr(given, "requires_grad", False) is True:
            raise error(
                f"{what} is a tensor that requires grad, and no gradient flows through this function; give "
                f"{what}.detach().cpu().numpy()"
            )
        return np.asarray(given)
    except error:
        raise
    except Exception as problem:  # somebody's own __array__ raises anything; a list that contains itself
        raise error(
            f"{what} must be an array of numbers, not {type(given).__name__} ({shortened(problem)})"
        ) from problem


def as_numbers(what: str, given: Any, error: type[SteadyrlError]) -> Array:
    """Return an array of real numbers, or raise `error` saying what was given instead.

    Example:
        >>> as_numbers("rewards", [0, 1], SteadyrlError).tolist()
        [0.0, 1.0]
    """
    try:
        values = plain_array(what, given, error)
        if values.dtype.kind not in "biuf":
            raise TypeError(f"the entries are of type {values.dtype}")
        return values.astype(float)
    except SteadyrlError:
        raise
    except (TypeError, ValueError, OverflowError, RuntimeError) as problem:
        raise error(f"{what} must be an array of real numbers, not {type(given).__name__} ({problem})") from problem


def as_distribution(what: str, given: Any, error: type[SteadyrlError]) -> Array:
    """Return an array of probabilities, or raise `error` unless it is non-negative and sums to one.

    The array is returned as it is, not divided by its sum.

    Example:
        >>> as_distribution("p", [0.5, 0.5], SteadyrlError).tolist()
        [0.5, 0.5]
    """
    values = as_numbers(what, given, error)
    bad = ~(np.isfinite(values) & (values >= -SUM_TOLERANCE))
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise error(f"{what}[{', '.join(map(str, place))}] is {values[place]}; it must be a probability, from 0 to 1")
    total = float(values.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise error(f"{what} sums to {total!r}, not to 1; it must be a distribution")
    return values
