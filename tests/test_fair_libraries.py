"""Fair statistics in PyTorch are those of numpy, step by step (tests_jax has JAX)."""

import math

import numpy as np
import pytest

from random_streams import MAX_AGE, random_stream
from steadyrl.live import fair_law

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("memory", [math.inf, 40.0])
def test_torch_has_the_numbers_of_numpy(memory):
    import array_api_compat.torch as xp

    for seed in range(8):
        same_step, ended, cut = random_stream(seed, sizes=(1, 8, 64, 100))
        rng = np.random.default_rng(seed)
        rewards, success = rng.normal(1, 1, ended.shape), rng.random(ended.shape) < 0.3
        n = ended.shape[1]
        state, other = fair_law.init(n, max_age=MAX_AGE, xp=xp), fair_law.init(n, max_age=MAX_AGE)
        for now in zip(rewards, ended, cut & ~ended, success, strict=True):
            state = fair_law.step(state, *map(torch.from_numpy, now), same_step=same_step, memory=memory)
            other = fair_law.step(other, *now, same_step=same_step, memory=memory)
        for name in other._fields:
            np.testing.assert_allclose(getattr(state, name), getattr(other, name), rtol=1e-9, atol=1e-9, err_msg=name)
        for got, wanted in zip(fair_law.means(state), fair_law.means(other), strict=True):
            assert float(got) == pytest.approx(float(wanted), rel=1e-9)


def test_the_means_are_those_of_the_estimate():
    for seed in range(8):
        same_step, ended, cut = random_stream(seed, sizes=(1, 64))
        rewards = np.random.default_rng(seed).normal(1, 1, ended.shape)
        state = fair_law.init(ended.shape[1], max_age=MAX_AGE)
        for r, e, c in zip(rewards, ended, cut & ~ended, strict=True):
            state = fair_law.step(state, r, e, c, e, same_step=same_step)
        estimate = fair_law.estimate(state)
        np.testing.assert_allclose(fair_law.means(state)[:3], estimate.values, rtol=1e-12)
        assert fair_law.means(state).unresolved == pytest.approx(estimate.unresolved)
