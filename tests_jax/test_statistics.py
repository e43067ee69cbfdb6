"""Fair statistics in JAX: what numpy has, step by step, and reports from it."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from random_streams import MAX_AGE, random_stream
from steadyrl import FairStatistics
from steadyrl.errors import StatisticsError
from steadyrl.integrations.jax import statistics
from steadyrl.live import fair_law


@partial(jax.jit, static_argnames=("same_step", "memory"))
def followed(state, rewards, ended, cut, success, *, same_step, memory):
    def step(state, now):
        state = statistics.step(state, *now, same_step=same_step, memory=memory)
        return state, statistics.means(state)

    return jax.lax.scan(step, state, (rewards, ended, cut, success))


def streams(count):
    for seed in range(count):
        same_step, ended, cut = random_stream(seed, sizes=(1, 64))
        rng = np.random.default_rng(seed)
        rewards = rng.normal(1, 1, ended.shape)
        yield seed, same_step, rewards, ended, cut & ~ended, rng.random(ended.shape) < 0.3


@pytest.mark.parametrize("memory", [math.inf, 40.0])
def test_jax_has_the_numbers_of_numpy_after_every_step(memory):
    with jax.enable_x64(True):
        for seed, same_step, *arrays in streams(12):
            number = arrays[0].shape[1]
            first = statistics.init(number, MAX_AGE)
            state, found = followed(first, *map(jnp.asarray, arrays), same_step=same_step, memory=memory)
            other, wanted = fair_law.init(number, max_age=MAX_AGE), []
            for now in zip(*arrays, strict=True):
                other = fair_law.step(other, *now, same_step=same_step, memory=memory)
                wanted.append(fair_law.means(other))
            for name in other._fields:
                np.testing.assert_allclose(
                    getattr(state.law, name),
                    getattr(other, name),
                    rtol=1e-9,
                    atol=1e-9,
                    err_msg=f"{name}, stream {seed}",
                )
            for i, name in enumerate(found._fields):
                np.testing.assert_allclose(found[i], [step[i] for step in wanted], rtol=1e-9, err_msg=name)


def test_with_32_bits_the_means_have_five_digits():
    for seed, same_step, *arrays in streams(6):
        first = statistics.init(arrays[0].shape[1], MAX_AGE)
        state, found = followed(first, *map(jnp.asarray, arrays), same_step=same_step, memory=math.inf)
        assert state.law.tables.dtype == jnp.float32
        other = fair_law.init(arrays[0].shape[1], max_age=MAX_AGE)
        for now in zip(*arrays, strict=True):
            other = fair_law.step(other, *now, same_step=same_step)
        for got, wanted in zip(found, fair_law.means(other), strict=True):
            np.testing.assert_allclose(got[-1], wanted, rtol=1e-4, atol=1e-5, err_msg=f"stream {seed}")


@pytest.mark.parametrize("memory", [math.inf, 1e5])
def test_with_32_bits_small_rewards_are_not_lost_beside_large_sums(memory):
    # All 64 environments have a group of their own, and episodes of one step: a million visits to age 1 in each. Added
    # up one by one, 0.1 becomes 13 / 128 = 0.1016 beside a sum of 100,000, since 32 bits are 1 / 128 apart there.
    def step(state, _):
        return statistics.step(state, jnp.full(64, 0.1), jnp.ones(64, dtype=bool), memory=memory), None

    first = statistics.init(64, 1)
    seen = first.law.tables + jnp.asarray([1e6, 1e6, 1e5, 0])[:, None, None]
    first = first._replace(law=first.law._replace(tables=seen))
    state, _ = jax.jit(partial(jax.lax.scan, step, length=50_000))(first)
    assert statistics.means(state).mean_return == pytest.approx(0.1, rel=1e-5)
    visits, _, rewards, _ = np.asarray(state.law.tables, dtype=float)[:, 0, 1]
    old = 1e6 * math.exp(-50_000 / memory)
    assert rewards - old / 10 == pytest.approx(0.1 * (visits - old), rel=1e-3)


def test_the_report_is_that_of_fair_statistics():
    _, same_step, rewards, ended, cut, _ = next(s for s in streams(12) if s[1] and s[2].shape[1] == 64)
    shell = FairStatistics(64, same_step=same_step)
    for r, e, c in zip(rewards, ended, cut, strict=True):
        shell.update(r, e, c)
    state = statistics.init(64, MAX_AGE)
    state, _ = followed(state, *map(jnp.asarray, (rewards, ended, cut, cut)), same_step=same_step, memory=math.inf)
    found, wanted = statistics.report(state), shell.report()
    for name in ("mean_return", "average_episode_length"):
        for end in ("value", "low", "high"):
            assert getattr(getattr(found, name), end) == pytest.approx(getattr(getattr(wanted, name), end), rel=1e-3)
    assert found.finished_episodes == wanted.finished_episodes
    assert found.success is None


def test_ages_beyond_the_table_are_unresolved():
    state = statistics.init(4, 5)
    for _ in range(9):
        state = statistics.step(state, jnp.ones(4), jnp.zeros(4, dtype=bool))
    assert statistics.means(state).mean_return == 5
    assert statistics.means(state).unresolved == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: statistics.init(0, 5), "num_envs is 0"),
        (lambda: statistics.report(statistics.init(4, 5)), "nothing was seen yet"),
        (lambda: statistics.step(statistics.init(4, 5), jnp.ones(3), jnp.zeros(4)), r"rewards has shape \(3,\)"),
        (lambda: statistics.step(statistics.init(4, 5), jnp.ones(4), jnp.zeros(4), memory=0), "memory is 0"),
        (lambda: statistics.report(jax.vmap(lambda _: statistics.init(4, 5))(jnp.arange(3))), "several runs"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(call, words):
    with pytest.raises(StatisticsError, match=words):
        call()
