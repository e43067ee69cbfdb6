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

from steadyrl.common.checks import shown, whole_number
from steadyrl.errors import StaggerError
from steadyrl.live import stagger_law as law
from steadyrl.live.stagger_law import Phase, StaggerState, phase

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
    number = whole_number("num_envs", num_envs, StaggerError)
    oldest = whole_number("max_age", max_age, StaggerError)
    return law.init(number, oldest, seed=_seed(key), xp=jnp)


def _seed(key: Any) -> jax.Array:
    """Return the last 32 bits of a key: of `jax.random.key(seed)` the seed itself, as numpy and torch take it."""
    if isinstance(key, int | np.integer):
        key = jax.random.key(int(key))
    words = jax.random.key_data(key) if jnp.issubdtype(jnp.result_type(key), jax.dtypes.prng_key) else key
    if jnp.ndim(words) != 1 or words.dtype != jnp.uint32:
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
        StaggerError: if `done` has another shape, or if late cuts are wanted where a reset is a step of its own.
    """
    if jnp.shape(done) != state.ages.shape:
        raise StaggerError(
            f"done has shape {jnp.shape(done)}; for {state.ages.shape[0]} environments it must be {state.ages.shape}. "
            "The law looks at all environments at once: call it outside of the vmap over environments"
        )
    if late_cuts and not same_step:
        raise StaggerError("late_cuts is for environments that are reset within a step; use it with same_step=True")
    return law.step(state, jnp.asarray(done, dtype=bool), same_step=same_step, late_cuts=late_cuts)


def restart(state: StaggerState) -> StaggerState:
    """Return the state after all environments were reset together from outside; what was learnt of lengths is kept."""
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
    """

    def one(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(jnp.reshape(over, over.shape + (1,) * (jnp.ndim(new) - 1)), new, old)

    return jax.tree.map(one, fresh, current)
