"""Staggering as pure functions in JAX, for jit, scan and vmap: whose episode is to be truncated in this step.

    state = stagger.init(num_envs, max_age, key)

    def rollout_step(carry, _):
        ...
        state, cut = stagger.step(state, done)  # then reset where done | cut; bootstrap at `cut` as at a time limit

Nothing needs to be known beforehand: episode lengths are learnt from the environments themselves, and a policy that
changes is followed. `live.stagger_law` has the law, which is the same in numpy, PyTorch and JAX, and what it attains.

*Cost.* Once the environments are staggered, a step is a few counts; the law's work is behind `lax.cond`. `jax.vmap`
turns a condition that differs between the mapped runs into a selection, so that both sides are computed: under vmap
over seeds every step costs as much as one that truncates.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steadyrl.common.checks import MOST_ENVS, MOST_STEPS, check_flag, shown, whole_number
from steadyrl.errors import StaggerError
from steadyrl.integrations.jax.arguments import as_array, as_state, check_rows, is_key
from steadyrl.live import stagger_law as law
from steadyrl.live.stagger_controller import small_seed
from steadyrl.live.stagger_law import Phase, StaggerState

__all__ = ["Phase", "StaggerState", "init", "phase", "restart", "select", "step"]


def init(num_envs: int, max_age: int, key: jax.Array | int) -> StaggerState:
    """Return the state of environments that have all just been reset.

    Args:
        num_envs: number of environments.
        max_age: the most steps that an episode can have: the time limit, if there is one. Environments that get older
            are truncated again and again, so it must not be too small; memory and time grow with it.
        key: key of the choice between environments of the same age; a key of `jax.random`, or a seed. The truncations
            are those of `StaggerController(seed=5)` if it is `jax.random.key(5)`, or 5.

    Raises:
        StaggerError: if `num_envs` or `max_age` is not a positive whole number, or `key` is neither a single key nor a
            whole number.

    Example:
        >>> state = init(6, max_age=10, key=0)
        >>> for _ in range(3):  # episodes last three steps, always
        ...     state, cut = step(state, state.ages == 3)
        >>> sorted(state.ages.tolist())
        [1, 1, 2, 2, 3, 3]
    """
    number = whole_number("num_envs", num_envs, StaggerError, most=MOST_ENVS)
    oldest = whole_number("max_age", max_age, StaggerError, most=MOST_STEPS)
    return law.init(number, oldest, seed=_seed(key), xp=jnp)


def _seed(key: Any) -> jax.Array:
    """Return the last 32 bits of a key: of `jax.random.key(seed)` the seed itself, as numpy and torch take it."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        key = jax.random.key(small_seed(key))
    words = key
    if is_key(key):
        words = jax.random.key_data(key)
    if not isinstance(words, jax.Array | np.ndarray) or words.dtype != jnp.uint32 or words.ndim != 1 or not words.size:
        raise StaggerError(f"key is {shown(key)}; it must be a single key of jax.random, or a whole number as a seed")
    return jnp.asarray(words[-1])


def step(
    state: StaggerState, done: jax.Array, *, same_step: bool = True, late_cuts: bool = False
) -> tuple[StaggerState, jax.Array]:
    """Take in one step of all environments; return the new state, and whose episode to truncate in this step.

    Args:
        state: the state before the step.
        done: [num_envs], whose episode ended by itself (terminated, or truncated by the time limit); booleans or
            numbers.
        same_step: whether environments are reset within the step that ends an episode, as in gymnax, brax and jumanji;
            False for those whose reset is a step of its own. A Python bool.
        late_cuts: whether the episodes of `cut` are truncated in the next step instead, as by setting the counter of a
            time limit. The truncation itself is then not to be passed in `done`. A Python bool.

    Raises:
        StaggerError: if `done` has another shape, if an argument is of the wrong kind, or if late cuts are wanted
            where a reset is a step of its own.
    """
    state = as_state(state, StaggerState, "init or step", StaggerError)
    same_step, late_cuts = (
        check_flag(name, value, StaggerError) for name, value in (("same_step", same_step), ("late_cuts", late_cuts))
    )
    ended = as_array("done", done, state.ages.shape[0], StaggerError)
    if late_cuts and not same_step:
        raise StaggerError("late_cuts is for environments that are reset within a step; use it with same_step=True")
    return law.step(state, ended.astype(bool), same_step=same_step, late_cuts=late_cuts)


def phase(state: StaggerState) -> Phase:
    """Return how far the ages are from the steady state; inside jit and vmap, too."""
    return law.phase(as_state(state, StaggerState, "init or step", StaggerError))


def restart(state: StaggerState) -> StaggerState:
    """Return the state after all environments were reset together from outside; what was learnt of lengths is kept."""
    state = as_state(state, StaggerState, "init or step", StaggerError)
    return state._replace(
        ages=jnp.ones_like(state.ages),
        restarting=jnp.zeros_like(state.restarting),
        active=jnp.ones_like(state.active),
        carry=jnp.zeros_like(state.carry),
    )


def select(over: jax.Array, fresh: Any, current: Any) -> Any:
    """Return the fresh state of those environments whose episode is over, and the current one of the others.

    Args:
        over: [num_envs].
        fresh: arrays whose first dimension is the environment, in any structure, as from a vmapped reset.
        current: the same structure.

    Raises:
        StaggerError: if an array has another shape, or the structures differ.
    """
    number = (getattr(over, "shape", ()) or (0,))[0]
    chosen = as_array("over", over, number, StaggerError).astype(bool)
    if jax.tree.structure(fresh) != jax.tree.structure(current):
        raise StaggerError(
            f"fresh has the structure {shown(jax.tree.structure(fresh))}, and current "
            f"{shown(jax.tree.structure(current))}; they must be the same"
        )
    check_rows("fresh", fresh, number, StaggerError)
    check_rows("current", current, number, StaggerError)
    for new, old in zip(jax.tree.leaves(fresh), jax.tree.leaves(current), strict=True):
        if new.shape != old.shape or is_key(new) != is_key(old):
            raise StaggerError(
                f"an array has shape {new.shape} and type {new.dtype} in fresh, and {old.shape} and {old.dtype} in "
                "current; they must be alike"
            )

    def one(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(jnp.reshape(chosen, chosen.shape + (1,) * (jnp.ndim(new) - 1)), new, old)

    return jax.tree.map(one, fresh, current)
