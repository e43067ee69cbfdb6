"""Mean return, length and success of all episodes, running ones included, as pure functions in JAX.

    state = statistics.init(num_envs, max_age)
    state = statistics.step(state, rewards, done, cut)  # in every step; inside jit, scan and vmap
    statistics.means(state)                             # inside jit, too
    statistics.report(state)                            # with intervals; on the host

Finished episodes are a biased sample, since short ones finish first; `live.fair_law` has the law, which is the same in
numpy, PyTorch and JAX. An episode that is over is either `done`, by itself, or `cut`, by the law of staggering.

JAX counts in 32 bits unless it is told otherwise. Added up one by one, small rewards would be lost beside large sums
after some 100,000 visits to an age, so what rounding leaves out of a sum is kept and added later (Kahan's summation).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from steadyrl.common.checks import MOST_ENVS, MOST_STEPS, check_flag, check_level, is_number, shown, whole_number
from steadyrl.errors import StatisticsError
from steadyrl.integrations.jax.arguments import as_array, as_state
from steadyrl.live import fair_law as law
from steadyrl.live.fair_law import FairMeans
from steadyrl.live.fair_report import FairReport, make_report

__all__ = ["FairMeans", "FairReport", "FairState", "init", "means", "report", "step"]

_SUMS = "tables", "finished", "last_rewards"


class FairState(NamedTuple):
    """The state of the law, and what rounding has left out of its sums so far."""

    law: law.FairState
    lost: tuple[jax.Array, ...]
    """To be added to `tables`, `finished` and `last_rewards` of the law's state."""


def init(num_envs: int, max_age: int) -> FairState:
    """Return the state of environments that have all just been reset.

    Args:
        num_envs: number of environments.
        max_age: the oldest age that is told apart, in steps of an episode: the time limit, if there is one. What
            happens later in an episode is not counted, and the report has its share as unresolved.

    Raises:
        StatisticsError: if an argument is not a positive whole number.

    Example:
        >>> state = init(2, max_age=4)
        >>> for done in ([False, True], [False, True], [True, True]):  # one episode of three steps, three of one
        ...     state = step(state, jnp.ones(2), jnp.asarray(done))
        >>> round(float(means(state).mean_return), 6)  # 4 began, 1 of them survived, and again
        1.5
    """
    number = whole_number("num_envs", num_envs, StatisticsError, most=MOST_ENVS)
    oldest = whole_number("max_age", max_age, StatisticsError, most=MOST_STEPS)
    first = law.init(number, max_age=oldest, xp=jnp)
    return FairState(first, tuple(jnp.zeros_like(getattr(first, name)) for name in _SUMS))


def step(
    state: FairState,
    rewards: jax.Array,
    done: jax.Array,
    cut: jax.Array | None = None,
    success: jax.Array | None = None,
    *,
    same_step: bool = True,
    memory: float = math.inf,
) -> FairState:
    """Take in one step of all environments.

    Args:
        state: the state before the step.
        rewards: [num_envs], of this step.
        done: [num_envs], whose episode ended by itself: terminated, or truncated by the time limit.
        cut: [num_envs], whose episode was cut short from outside, as by `stagger.step`; None means nobody's.
        success: [num_envs], whose episode ended in success; None if nobody says what success is.
        same_step: whether environments are reset within the step that ends an episode. A Python bool.
        memory: steps after which old data is mostly forgotten, for a policy that learns. A Python number.

    Raises:
        StatisticsError: if an array has another shape, or an argument is of the wrong kind.
    """
    before = as_state(state, FairState, "init or step", StatisticsError).law
    same_step = check_flag("same_step", same_step, StatisticsError)
    if not is_number(memory) or not memory > 0:
        raise StatisticsError(f"memory is {shown(memory)}; it must be a positive number of steps")
    number = before.ages.shape[0]
    received = as_array("rewards", rewards, number, StatisticsError)
    nobody = jnp.zeros(number, dtype=bool)
    ended, cut_short, succeeded = (
        as_array(name, value, number, StatisticsError).astype(bool)
        for name, value in (
            ("done", done),
            ("cut", nobody if cut is None else cut),
            ("success", nobody if success is None else success),
        )
    )
    cut_short = cut_short & ~ended
    empty = before._replace(**{name: jnp.zeros_like(getattr(before, name)) for name in _SUMS})
    after = law.step(empty, received, ended, cut_short, succeeded, same_step=same_step)  # the sums of this step alone
    keep, sums, lost = math.exp(-1 / memory), {}, []
    for name, left_out in zip(_SUMS, state.lost, strict=True):
        sums[name], rest = _added(getattr(before, name) * keep, left_out * keep + getattr(after, name))
        lost.append(rest)
    return FairState(after._replace(**sums), tuple(lost))


def _added(total: jax.Array, more: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum, and what rounding has left out of it."""
    found = total + more
    return found, more - (found - total)


def means(state: FairState) -> FairMeans:
    """Return mean return, length and success so far, without intervals; inside jit and vmap, too."""
    return law.means(as_state(state, FairState, "init or step", StatisticsError).law)


def report(
    state: FairState, *, level: float = 0.9, with_success: bool = False, time_limit: float = math.inf
) -> FairReport:
    """Return mean return, length and success with intervals; copies the state to the host.

    Args:
        state: a state of one run (not of a vmap over seeds: take one of them).
        level: confidence level of the intervals.
        with_success: whether `step` was told who succeeded.
        time_limit: the most steps that an episode can have, if that is known.

    Raises:
        StatisticsError: if nothing was seen yet, or the level is not between 0 and 1.
    """
    level = check_level(level, StatisticsError)
    with_success = check_flag("with_success", with_success, StatisticsError)
    if not is_number(time_limit) or not time_limit >= 1:
        raise StatisticsError(f"time_limit is {shown(time_limit)}; it must be a number of steps, 1 or more")
    time_limit = time_limit if time_limit < MOST_STEPS else math.inf
    if isinstance(state, FairState) and isinstance(state.law.steps, jax.core.Tracer):
        raise StatisticsError("a report is made on the host, not inside jit or vmap; take means(state) there")
    state = as_state(state, FairState, "init or step", StatisticsError)
    host: dict[str, Any] = {name: np.asarray(value) for name, value in state.law._asdict().items()}
    if not host["steps"]:
        raise StatisticsError("nothing was seen yet: call step first")
    real = {name: host[name].astype(np.float64) for name in ("returns", "tables", "finished", "last_rewards", "range")}
    numbers: dict[str, Any] = {name: int(host[name]) for name in ("steps", "ended", "cut", "complete")}
    found = law.FairState(**host | real | numbers | {"weight": float(host["weight"])})
    return make_report(
        found,
        law.estimate(found, time_limit),
        level=level,
        with_success=with_success,
        reward_range=None,
        longest=time_limit,
    )
