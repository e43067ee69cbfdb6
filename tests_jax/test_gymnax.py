"""`StaggeredGymnax`: the bound is reached on real environments, in gymnax's own auto-reset."""

from functools import partial
from typing import NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.wrappers.purerl import FlattenObservationWrapper

from measured import distance_and_bound, first_lengths
from steadyrl.errors import WrapperError
from steadyrl.integrations.jax.gymnax import StaggeredGymnax

COPIES = 2048


@partial(jax.jit, static_argnames=("env", "steps", "number"))
def raw(env, params, key, *, steps, number):
    """Flags [steps, N] of ends without staggering."""

    def step(carry, key):
        first, second = jax.random.split(key)
        actions = jax.vmap(env.action_space(params).sample)(jax.random.split(first, number))
        keys = jax.random.split(second, number)
        _, state, _, *flags, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, carry, actions, params)
        return state, jnp.any(jnp.stack(flags), axis=0)

    key, first = jax.random.split(key)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(first, number), params)
    return jax.lax.scan(step, state, jax.random.split(key, steps))[1]


@partial(jax.jit, static_argnames=("env", "steps"))
def staggered(env, params, key, *, steps):
    """Ages, flags and observations of each step, and the last state."""

    def step(state, key):
        first, second = jax.random.split(key)
        actions = jax.vmap(env.action_space(params).sample)(jax.random.split(first, env.num_envs))
        keys = jax.random.split(second, env.num_envs)
        before = state.stagger.ages
        observations, state, _, *flags, info = env.step(keys, state, actions, params)
        return state, (before, jnp.stack(flags), info["cut"], observations, info["final_observation"])

    key, first = jax.random.split(key)
    _, state = env.reset(jax.random.split(first, env.num_envs), params)
    return jax.lax.scan(step, state, jax.random.split(key, steps))


@pytest.fixture(scope="module")
def cartpole():
    env, params = gymnax.make("CartPole-v1")
    lengths = first_lengths(np.asarray(raw(env, params, jax.random.key(1), steps=250, number=COPIES)))
    wrapped = StaggeredGymnax(env, COPIES)
    return env, params, wrapped, lengths, staggered(wrapped, params, jax.random.key(2), steps=250)


def test_ages_of_cartpole_reach_the_bound_after_one_and_two_mean_episode_lengths(cartpole):
    *_, lengths, (_, (ages, *_)) = cartpole
    mean = lengths.mean()
    assert mean == pytest.approx(22, abs=1.5)
    for episodes in (1, 2):
        time = round(episodes * mean)
        distance, bound, chance = distance_and_bound(np.asarray(ages)[time - 1], lengths, time)
        assert distance <= bound + chance, f"{distance} against {bound} at {episodes}"
    together = distance_and_bound(np.ones(COPIES, dtype=int), lengths, 1)[0]
    assert together > 0.9


def test_episodes_are_truncated_in_the_step_and_start_anew(cartpole):
    _, _, _, _, (_, (ages, flags, cut, observations, last)) = cartpole
    terminated, truncated = np.moveaxis(np.asarray(flags), 1, 0)
    cut, over = np.asarray(cut), terminated | truncated
    assert cut.any()
    assert not (cut & terminated).any()
    np.testing.assert_array_equal(truncated, cut)  # nobody lasts for 500 steps under random actions
    np.testing.assert_array_equal(np.asarray(ages)[1:][over[:-1]], 1)
    assert (np.abs(np.asarray(observations)[over]) <= 0.05).all()  # CartPole starts within 0.05
    assert not np.isclose(np.asarray(last)[cut], np.asarray(observations)[cut]).all(axis=1).any()
    np.testing.assert_array_equal(np.asarray(last)[~over], np.asarray(observations)[~over])


def test_without_truncations_the_wrapper_is_gymnax_step_by_step():
    env, params = gymnax.make("CartPole-v1")
    one = StaggeredGymnax(env, 1)  # a single environment is never truncated
    keys = jax.random.split(jax.random.key(3), 60)
    _observation, state = env.reset(keys[0], params)
    _observations, many = one.reset(keys[:1], params)
    step, ends = jax.jit(one.step), 0
    for key in keys[1:]:
        found = step(key[None], many, jnp.ones(1, dtype=int), params)
        wanted = env.step(key, state, 1, params)
        many, state = found[1], wanted[1]
        assert len(found) == len(wanted) == 6
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b), found[0], wanted[0])
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b), many.environments, state)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b), found[2:5], wanted[2:5])
        assert set(found[5]) == {*wanted[5], "cut"}
        ends += bool(wanted[3])
    assert ends >= 3


class Position(NamedTuple):
    time: jax.Array


class Limits(NamedTuple):
    max_steps_in_episode: int = 30


class OldEnvironment:
    """An environment in the form that gymnax had before 1.0: five values, `done` includes the time limit."""

    default_params = Limits()

    def step_env(self, key, state, action, params):
        state = Position(state.time + 1)
        return state.time, state, jnp.float32(1), state.time >= params.max_steps_in_episode, {}

    def reset_env(self, key, params):
        return jnp.int32(0), Position(jnp.int32(0))


def test_an_environment_with_five_values_is_staggered_and_returns_five():
    env = StaggeredGymnax(OldEnvironment(), 300)
    keys = jax.random.split(jax.random.key(0), 300)
    _, state = env.reset(keys)
    step = jax.jit(env.step)
    for _ in range(30):
        observations, state, _, done, info = step(keys, state, jnp.zeros(300))
        np.testing.assert_array_equal(observations, state.stagger.ages - 1)
    np.testing.assert_array_equal(np.bincount(observations, minlength=30), 10)
    for _ in range(30):
        observations, state, _, done, info = step(keys, state, jnp.zeros(300))
        assert not info["cut"].any()
        assert done.sum() == 10


def test_what_cannot_be_staggered_is_refused_with_the_reason():
    env, _ = gymnax.make("CartPole-v1")
    with pytest.raises(WrapperError, match=r"FlattenObservationWrapper has no step_env .*bare environment"):
        StaggeredGymnax(FlattenObservationWrapper(env), 8)
    with pytest.raises(WrapperError, match="DeepSea has an auto-reset of its own"):
        StaggeredGymnax(gymnax.make("DeepSea-bsuite")[0], 8)
    with pytest.raises(WrapperError, match=r"num_envs is 0"):
        StaggeredGymnax(env, 0)
    with pytest.raises(WrapperError, match=r"keys have shape \(\).*split\(key, 8\)"):
        StaggeredGymnax(env, 8).reset(jax.random.key(0))
    longer = env.default_params.replace(max_steps_in_episode=1000)
    with pytest.raises(
        WrapperError, match=r"up to 1,000 steps .*max_age is 500.*StaggeredGymnax\(env, 8, max_age=1000"
    ):
        StaggeredGymnax(env, 8).reset(jax.random.split(jax.random.key(0), 8), longer)
    StaggeredGymnax(env, 8, max_age=1000).reset(jax.random.split(jax.random.key(0), 8), longer)
