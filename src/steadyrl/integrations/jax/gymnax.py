"""`StaggeredGymnax`: many gymnax environments that are staggered in their own auto-reset.

A gymnax environment computes a fresh start in every step, and takes it where the episode is over. Here all environments
are stepped together, the episodes that the law truncates are over, too, and nothing more is computed than before:

    env = StaggeredGymnax(env, num_envs)
    observations, state = env.reset(keys, params)  # was: jax.vmap(env.reset, in_axes=(0, None))
    observations, state, reward, terminated, truncated, info = env.step(keys, state, actions, params)

gymnax 1.0 returns six values as above; before that it returned five, `done` in the place of the two flags, and so does
this wrapper around such an environment. `info["cut"]` says whose episode the law truncated, and
`info["final_observation"]` has the observation to bootstrap from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from steadyrl.common.checks import MOST_ENVS, MOST_STEPS, shown, whole_number
from steadyrl.errors import WrapperError
from steadyrl.integrations.jax import stagger
from steadyrl.integrations.jax.arguments import check_keys, check_rows

_MOST_AGES = 1 << 16  # for environments without a time limit, or with a huge one


class GymnaxState(NamedTuple):
    """The state of the environments and of the law."""

    environments: Any
    stagger: stagger.StaggerState


class StaggeredGymnax:
    """Steps `num_envs` copies of a gymnax environment and staggers their episodes by early truncations.

    Args:
        env: the bare environment, as from `gymnax.make`; other wrappers go around this one, or are applied to what it
            returns.
        num_envs: number of copies.
        max_age: the most steps that an episode can have; by default the time limit of `env.default_params`. Give it if
            your own parameters have a longer one.

    Raises:
        WrapperError: if the environment has no `step_env` and `reset_env` of its own, as a wrapper has not, or has an
            auto-reset of its own.
    """

    def __init__(self, env: Any, num_envs: int, *, max_age: int | None = None) -> None:
        self._env = env
        self.num_envs = whole_number("num_envs", num_envs, WrapperError, most=MOST_ENVS)
        lacking = [name for name in ("step_env", "reset_env") if not hasattr(type(env), name)]
        if lacking:
            raise WrapperError(
                f"{type(env).__name__} has no {' and no '.join(lacking)} of its own; give the bare environment of "
                "gymnax.make to StaggeredGymnax, and put other wrappers around what it returns"
            )
        base = _gymnax_environment(env)
        if base is not None and type(env).step is not base.step:
            raise WrapperError(
                f"{type(env).__name__} has an auto-reset of its own, which StaggeredGymnax would replace; call "
                "steadyrl.integrations.jax.stagger in your own loop instead"
            )
        self.six_values = hasattr(env, "is_truncated")
        limit = getattr(env.default_params, "max_steps_in_episode", None)
        found = min(int(limit), _MOST_AGES) if max_age is None and limit else max_age
        if found is None:
            raise WrapperError(
                f"{type(env).__name__} has no time limit in its default_params; say with max_age how many steps of an "
                "episode are to be told apart"
            )
        self.max_age = whole_number("max_age", found, WrapperError, most=MOST_STEPS)

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._env, name)

    def reset(self, keys: jax.Array, params: Any = None) -> tuple[Any, GymnaxState]:
        """Return the first observations and the state, from one key for each environment."""
        given = self._env.default_params if params is None else params
        check_keys(keys, self.num_envs, WrapperError)
        self._check_limit(given)
        observations, states = jax.vmap(self._env.reset_env, in_axes=(0, None))(keys, given)
        law = stagger.init(self.num_envs, self.max_age, jax.random.fold_in(keys[0], self.num_envs))
        return observations, GymnaxState(states, law)

    def step(self, keys: jax.Array, state: GymnaxState, actions: Any, params: Any = None) -> tuple[Any, ...]:
        """Step all environments with one key and one action each; the values are gymnax's, for all of them."""
        given = self._env.default_params if params is None else params
        check_keys(keys, self.num_envs, WrapperError)
        state = self._checked(state)
        check_rows("actions", actions, self.num_envs, WrapperError)
        split = jax.vmap(jax.random.split)(keys)
        last, after, reward, ended, info = jax.vmap(self._env.step_env, in_axes=(0, 0, 0, None))(
            split[:, 0], state.environments, actions, given
        )
        truncated = jnp.zeros_like(ended)
        if self.six_values:
            truncated = jax.vmap(self._env.is_truncated, in_axes=(0, None))(after, given)
        law, cut = stagger.step(state.stagger, ended | truncated)
        truncated = truncated | cut
        over = ended | truncated
        fresh = jax.vmap(self._env.reset_env, in_axes=(0, None))(split[:, 1], given)
        observations, states = stagger.select(over, fresh, (last, after))
        info = {**info, "cut": cut, "final_observation": last}
        found = observations, GymnaxState(states, law), reward
        if self.six_values:
            return *found, ended, truncated, {**info, "terminated": ended, "truncated": truncated}
        return *found, over, info

    def phase(self, state: GymnaxState) -> stagger.Phase:
        """Return how far the ages of the environments are from the steady state."""
        return stagger.phase(self._checked(state).stagger)

    def _checked(self, state: Any) -> GymnaxState:
        if not isinstance(state, GymnaxState):
            raise WrapperError(f"state is {shown(state)}; it must be what reset or step returned")
        return state

    def _check_limit(self, params: Any) -> None:
        """Refuse a time limit that is longer than `max_age`, unless only the device knows it."""
        limit = getattr(params, "max_steps_in_episode", None)
        if limit is None or isinstance(limit, jax.core.Tracer) or min(int(limit), _MOST_AGES) <= self.max_age:
            return
        raise WrapperError(
            f"episodes have up to {int(limit):,} steps by max_steps_in_episode of these parameters, and max_age is "
            f"{self.max_age:,}; whoever gets older than that would be truncated again and again. Write "
            f"StaggeredGymnax(env, {self.num_envs}, max_age={int(limit)})"
        )


def _gymnax_environment(env: Any) -> Any:
    """Return gymnax's own base class, if the environment is derived from it."""
    for kind in type(env).__mro__:
        if kind.__module__ == "gymnax.environments.environment" and kind.__name__ == "Environment":
            return kind
    return None
