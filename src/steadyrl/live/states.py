"""States of laws as arrays: what was saved is looked at before a law goes on from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from steadyrl.common.checks import plain_array, shown
from steadyrl.errors import StaggerError, StatisticsError, SteadyrlError
from steadyrl.lengths.distribution import LONGEST

_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}  # of arrays that stand for booleans, whole and real numbers


def restored(
    state: Mapping[str, Any], like: Mapping[str, Any], error: type[SteadyrlError], *, signed: Collection[str] = ()
) -> dict[str, Any]:
    """Return copies of the arrays of a state, or raise `error`.

    Args:
        state: the arrays, by name.
        like: arrays of the shape and type that each must have.
        error: type of the error.
        signed: names of those that may be negative; only where `like` is infinite may they be infinite, too.
    """
    found = {}
    for name, wanted in like.items():
        value = plain_array(name, state[name], error)
        if value.shape != wanted.shape or value.dtype.kind not in _KINDS[wanted.dtype.kind]:
            raise error(
                f"{name} is an array of {value.dtype} with shape {value.shape}; in this state it must be of "
                f"{wanted.dtype} with shape {wanted.shape}"
            )
        if not (np.isfinite(value) | (np.isinf(wanted) & (value == wanted))).all():
            raise error(f"{name} holds a value that is not a finite number, so nothing can go on from this state")
        whole = value.astype(wanted.dtype)
        if (whole != value).any() or (name not in signed and (whole < 0).any()):
            raise error(f"{name} holds a value that is out of its range, so nothing can go on from this state")
        found[name] = whole
    return found


def check_way(state: Mapping[str, Any], same_step: bool, error: type[SteadyrlError]) -> None:
    """Raise `error` if a state was saved where resets are made in another way, by which ages differ by one."""
    if "same_step" not in state:
        return
    saved = plain_array("same_step", state["same_step"], error)
    if saved.size != 1 or saved.dtype.kind not in "biu":
        raise error(f"same_step is {shown(state['same_step'])}; in a state it is True or False")
    if bool(saved.all()) != same_step:
        raise error(f"this state was saved with same_step={not same_step}, and cannot go on with same_step={same_step}")


def check_stagger(found: Mapping[str, Any], num_envs: int, *, late_cuts: bool) -> None:
    """Raise StaggerError if no controller can have this state."""
    steps, size = float(found["time"]), len(found["new_visits"])
    if (found["ages"] < (0 if late_cuts else 1)).any() or not found["known"] < size or found["wait"] < 1:
        raise StaggerError("this is not the state of a controller: ages in it are out of range")
    rates, numbers = ("pace", "end_rate", "surprise_rate"), ("visits", "new_visits", "cuts", "natural_ends")
    most = {"ages": min(steps + 1, LONGEST), "new_steps": steps, "survival": 1.0, "seed": 2.0**32 - 1}
    most |= dict.fromkeys(rates, num_envs) | dict.fromkeys(numbers, num_envs * steps)
    most |= {"ends": found["visits"], "new_ends": found["new_visits"], "distance": num_envs}
    for name, bound in most.items():
        _check_at_most(name, found[name], bound, StaggerError)
    _check_at_most("survival", found["survival"][2:], found["survival"][1:-1], StaggerError)
    _check_at_most("carry", np.abs(found["carry"]), 10.0 * num_envs, StaggerError)


def check_fair(found: Mapping[str, Any], num_envs: int) -> None:
    """Raise StatisticsError if no statistics can have this state."""
    visits, ends, _, successes = found["tables"]
    for name, counts in (("finished", found["finished"][::2]), ("last_rewards", found["last_rewards"][:1])):
        _check_at_most(name, -counts, 0.0, StatisticsError)
    for counts, bound in ((-ends, 0.0), (-successes, 0.0), (ends, visits), (successes, visits)):
        _check_at_most("tables", counts, bound, StatisticsError)
    _check_at_most("ages", found["ages"], 2.0**62, StatisticsError)
    _check_at_most("groups", found["groups"], visits.shape[0] - 1, StatisticsError)
    _check_at_most("complete", found["complete"], found["ended"], StatisticsError)
    _check_at_most("ended", found["ended"], num_envs * float(found["steps"]), StatisticsError)
    if np.isfinite(found["range"]).all():  # there has been a reward
        _check_at_most("range", found["range"][0], found["range"][1], StatisticsError)
    if not found["weight"] > 0:
        raise StatisticsError(f"this is not the state of statistics: its weight is {found['weight']}")


def _check_at_most(name: str, values: Any, most: Any, error: type[SteadyrlError]) -> None:
    """Raise `error` if a value is above its bound by more than rounding."""
    if not np.all(values <= most + 1e-9 * np.abs(most) + 1e-9):
        raise error(f"{name} holds a value that is out of its range, so nothing can go on from this state")
