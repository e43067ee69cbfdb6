"""The stagger law in JAX, inside jit, scan and vmap: it truncates whom numpy truncates, step by step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from random_streams import MAX_AGE, random_stream
from steadyrl.live import stagger_law

SIZES = (8, 64, 256)  # few, since each one is compiled


@pytest.fixture(scope="module")
def streams():
    return [random_stream(seed, sizes=SIZES) for seed in range(100)]


@partial(jax.jit, static_argnames="same_step")
def truncations(state, ended, *, same_step):
    return jax.lax.scan(partial(stagger_law.step, same_step=same_step), state, ended)


def first(num_envs, seed):
    return stagger_law.init(num_envs, MAX_AGE, seed=seed, xp=jnp)


def test_with_64_bits_jax_truncates_whom_numpy_truncates(streams):
    with jax.enable_x64(True):
        for seed, (same_step, ended, cuts) in enumerate(streams):
            state, found = truncations(first(ended.shape[1], seed), jnp.asarray(ended), same_step=same_step)
            np.testing.assert_array_equal(found, cuts, err_msg=f"stream {seed}")
            assert state.survival.dtype == jnp.float64
            assert state.cuts == cuts.sum()


def test_with_32_bits_as_many_are_truncated_and_nearly_always_the_same_ones(streams):
    # Survival has a rounding error of some 1e-7, so for N environments the number that is too many up to an age has one
    # of N * 1e-7, and whether a whole number lies between is decided otherwise about once in 1e7 / N decisions.
    same = 0
    for seed, (same_step, ended, cuts) in enumerate(streams):
        state, found = truncations(first(ended.shape[1], seed), jnp.asarray(ended), same_step=same_step)
        assert state.survival.dtype == jnp.float32
        differ = (np.asarray(found) != cuts).any(axis=1)
        at = int(np.argmax(differ)) if differ.any() else -1
        assert found[at].sum() == cuts[at].sum(), f"stream {seed}, step {at}"
        same += not differ.any()
    assert same >= 95


def test_many_seeds_under_vmap_are_the_single_ones():
    _, ended, _ = random_stream(3, sizes=(64,))
    seeds = jnp.arange(4, dtype=jnp.uint32)
    many = jax.vmap(lambda seed: truncations(first(64, seed), jnp.asarray(ended), same_step=True)[1])(seeds)
    for seed in range(4):
        np.testing.assert_array_equal(many[seed], truncations(first(64, seed), jnp.asarray(ended), same_step=True)[1])
    assert (many[0] != many[1]).any()


@pytest.mark.parametrize("bits", [32, 64])
def test_the_phase_is_that_of_numpy(streams, bits):
    with jax.enable_x64(bits == 64):
        for seed, (same_step, ended, _) in enumerate(streams[:8]):
            state, other = first(ended.shape[1], seed), stagger_law.init(ended.shape[1], MAX_AGE, seed=seed)
            state, _ = truncations(state, jnp.asarray(ended), same_step=same_step)
            for done in ended:
                other, _ = stagger_law.step(other, done, same_step=same_step)
            found, wanted = jax.jit(stagger_law.phase)(state), stagger_law.phase(other)
            for name in wanted._fields:
                np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-4, atol=1e-4)
