"""One law in every array library: PyTorch truncates whom numpy truncates, step by step (tests_jax has JAX)."""

import numpy as np
import pytest

from random_streams import MAX_AGE, random_stream
from steadyrl.live import stagger_law

torch = pytest.importorskip("torch")


def truncations(ended, seed, same_step):
    import array_api_compat.torch as xp

    state, found = stagger_law.init(ended.shape[1], MAX_AGE, seed=seed, xp=xp), []
    for done in torch.from_numpy(ended):
        state, cut = stagger_law.step(state, done, same_step=same_step)
        found.append(cut.numpy())
    return np.array(found), state


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 100), marks=pytest.mark.slow)], ids=["12", "88"])
def test_torch_truncates_whom_numpy_truncates(seeds):
    for seed in seeds:
        same_step, ended, cuts = random_stream(seed)
        found, state = truncations(ended, seed, same_step)
        np.testing.assert_array_equal(found, cuts, err_msg=f"stream {seed}")
        assert int(state.cuts) == cuts.sum()


def test_the_streams_have_truncations_and_all_kinds_of_environments():
    streams = [random_stream(seed) for seed in range(12)]
    assert {same_step for same_step, _, _ in streams} == {True, False}
    assert sum(cuts.sum() for _, _, cuts in streams) > 500
    assert len({ended.shape[1] for _, ended, _ in streams}) >= 4
