"""Marginal means from per-age sums: against exact marginals, and against brute-force rollouts."""

import numpy as np
import pytest

from processes import random_process
from steadyrl import (
    Perturbation,
    collect_episodes,
    collect_samples,
    marginal_moments,
    marginals,
    perturb,
    stationary_distribution,
)
from steadyrl.errors import LengthsError
from steadyrl.exact import gallery
from steadyrl.lengths.age_sums import AgeSums


def exact_sums(process, policy, values, ages=4000):
    """E[f(s_k) 1(T >= k)] for f = the columns of `values`, as sums over a million million episodes."""
    chain = np.einsum("sa,ast->st", policy, np.array([matrix.toarray() for matrix in process.transitions]))
    now, rows, scale = process.initial @ chain, [], 10**12
    while now.sum() > 1e-14 and len(rows) < ages:
        rows.append(now)
        now = (now * ~process.terminal) @ chain
    rows = np.array(rows)
    return AgeSums(np.rint(rows.sum(axis=1) * scale).astype(np.int64), rows @ values * scale, rows @ values**2 * scale)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("perturbation", [None, Perturbation(0.6), Perturbation(0.5, recursive=False)])
def test_marginal_means_are_those_of_the_exact_process(seed, perturbation):
    rng = np.random.default_rng(seed)
    process, policy = random_process(rng, "sparse", max_states=6)
    values = rng.normal(size=(process.n_states, 3))
    times = np.arange(1, 41)
    found = marginal_moments(exact_sums(process, policy, values), times, perturbation)
    if perturbation is None:
        exact = marginals(process, policy, 40)[1:]
    else:
        changed = perturb(process, perturbation)
        wide = np.vstack([policy, np.tile(policy[:1], (changed.n_states - process.n_states, 1))])
        exact = marginals(changed, wide, 40)[1:, : process.n_states]
        exact /= exact.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.mean, exact @ values, atol=1e-8)
    np.testing.assert_allclose(found.second_moment, exact @ values**2, atol=1e-8)
    rho = stationary_distribution(process, policy)
    np.testing.assert_allclose(found.stationary_mean, rho @ values, atol=1e-8)


def groups_of_two_terminals(rng, groups, size):
    """Episodes of gallery.two_terminals: decide, then lose (T = 2), or pause and win (T = 3)."""
    result = []
    for wins in rng.binomial(size, 0.5, groups):
        visits = np.array([[0, size, 0, 0], [size - wins, 0, wins, 0], [0, 0, 0, wins]], dtype=float)
        ages = 3 if wins else 2
        result.append(AgeSums(np.array([size, size, wins])[:ages], visits[:ages], visits[:ages]))
    return result


def test_error_bands_are_as_wide_as_the_scatter_of_repeated_runs():
    # 60 repeats: a standard deviation is known to 1 / sqrt(120) = 9%, and its estimate from 20 groups, averaged
    # over 60 repeats, to 2%; 40% is more than four of their standard deviations in every one of 24 places.
    rng = np.random.default_rng(0)
    times = [1, 2, 3, 5, 8, 13]
    for perturbation in (None, Perturbation(0.5)):
        runs = [marginal_moments(groups_of_two_terminals(rng, 20, 10), times, perturbation) for _ in range(60)]
        scatter = np.std([run.mean for run in runs], axis=0, ddof=1)
        claimed = np.sqrt(np.mean([run.mean_error**2 for run in runs], axis=0))
        seen = scatter > 0.1 * scatter.max()  # at p = 1/2 some derivatives vanish, and scatter is of second order
        assert seen.sum() >= 8
        np.testing.assert_allclose(claimed[seen], scatter[seen], rtol=0.4)
        assert (claimed[~seen] < 0.2 * scatter.max()).all()


@pytest.mark.parametrize("perturbation", [None, Perturbation(0.95)])
def test_they_agree_with_brute_force_rollouts_of_a_real_environment(perturbation):
    # 4 values x 4 times x 2 cases, each within 4.5 standard errors: a false alarm in 4,600.
    times = [5, 20, 40, 90]
    groups = [collect_episodes("CartPole-v1", "uniform", 50, seed=i, backend="serial").ages for i in range(20)]
    found = marginal_moments(groups, times, perturbation)
    samples = collect_samples(
        "CartPole-v1", "uniform", 800, times, seed=99, perturbation=perturbation, backend="serial"
    )
    for j in range(len(times)):
        real = samples.observations[~samples.null[:, j], j].astype(float)
        error = np.sqrt(real.var(axis=0) / len(real) + found.mean_error[j] ** 2)
        assert (np.abs(real.mean(axis=0) - found.mean[j]) < 4.5 * error).all()
        assert (found.mean_error[j] < 4 * real.std(axis=0) / np.sqrt(1000)).all()  # and the bands are no barn door


def test_bad_times_are_refused():
    process, policy = gallery.corridor()
    with pytest.raises(LengthsError, match="1 or more"):
        marginal_moments(exact_sums(process, policy, np.eye(4)), [0, 1])


def test_sums_of_different_environments_are_not_put_together():
    process, policy = gallery.corridor()
    wide, narrow = exact_sums(process, policy, np.eye(4)), exact_sums(process, policy, np.eye(4)[:, :3])
    for together in (lambda: wide + narrow, lambda: AgeSums.merge([wide, narrow]), lambda: AgeSums.merge([wide, None])):
        with pytest.raises(LengthsError, match=r"3 and 4 values|sums is NoneType"):
            together()
    with pytest.raises(LengthsError, match="3 and 4 values"):
        marginal_moments([wide, narrow], [1])
    with pytest.raises(LengthsError, match="no episodes"):
        marginal_moments([wide, AgeSums.empty(4)], [1])
