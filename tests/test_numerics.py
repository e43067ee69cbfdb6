"""The linear algebra underneath: entrywise accuracy against mpmath, and every way to solve against the others."""

import itertools

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp

from processes import random_process, slippery_grid
from steadyrl import (
    LearningProcess,
    average_episode_length,
    check_episodic,
    expected_visits,
    policy_gradient,
    stationary_distribution,
    steady_state_policy_gradient,
    uniform_policy,
)
from steadyrl.errors import AccuracyError
from steadyrl.numerics import absorbing, graphs, multigrid
from steadyrl.numerics.absorbing import AbsorbingChain


def stiff_process(rng, n=60):
    """Four clusters, probabilities from 1 down to 1e-15, one weak way out of the last cluster."""
    rows = np.zeros((n, n))
    cluster = np.arange(n) * 4 // n
    for s in range(1, n):
        for t in rng.choice(np.arange(1, n), size=5, replace=False):
            same = cluster[s] == cluster[t]
            rows[s, t] += 10.0 ** (-rng.uniform(0, 2) if same else -rng.uniform(8, 15))
        rows[s, 1 + (s % (n - 1))] += 10.0 ** -rng.uniform(0, 3)  # a ring, so that all states are reached
    rows[n - 1, 0] = 1e-15
    off = rows.copy()
    np.fill_diagonal(off, 0)
    off /= np.maximum(1, off.sum(axis=1, keepdims=True) * 1.5)
    rows = off + np.diag(1 - off.sum(axis=1))
    rows[0] = 0
    rows[0, 1] = 1
    return LearningProcess([rows], np.zeros(n), np.eye(n)[0])


def exact_stationary(process):
    """rho to 60 digits, from the off-diagonal entries as they are stored; the diagonal is what is left to one."""
    with mpmath.workdps(80):
        p = process.transitions[0].toarray()
        n = len(p)
        a = mpmath.matrix(n, n)
        for s in range(n):
            for t in range(n):
                if s != t and p[s, t]:
                    a[t, s] = mpmath.mpf(float(p[s, t]))
            a[s, s] = -mpmath.fsum(mpmath.mpf(float(p[s, t])) for t in range(n) if t != s)
        for s in range(n):
            a[0, s] = 1
        rhs = mpmath.matrix(n, 1)
        rhs[0] = 1
        return mpmath.lu_solve(a, rhs)


@pytest.mark.parametrize("seed", range(5))
def test_every_entry_of_rho_is_accurate_on_stiff_processes(seed):
    process = stiff_process(np.random.default_rng(seed))
    rho = stationary_distribution(process, uniform_policy(process))
    exact = exact_stationary(process)
    assert rho.min() < 1e-13  # it is stiff: shares differ by many orders of magnitude
    error = max(abs(mpmath.mpf(float(x)) / y - 1) for x, y in zip(rho, exact, strict=True))
    assert error < 1e-13


def as_chain(process):
    policy = uniform_policy(process)
    matrix = sum(policy[0, 0] * m for m in process.transitions).tocsr()
    inside = np.flatnonzero(~process.terminal)
    within = matrix[inside][:, inside]
    leave = matrix[inside][:, np.flatnonzero(process.terminal)].sum(axis=1)
    return within, leave


def solve_by(method, within, leave, monkeypatch):
    monkeypatch.setattr(absorbing, "DENSE_STATES", 10**6 if method == "elimination" else 0)
    monkeypatch.setattr(absorbing, "_ENVELOPE_WORK", np.inf if method == "factorisation" else -1)
    monkeypatch.setattr(multigrid, "_COARSEST", 50)
    chain = AbsorbingChain(within, leave)
    assert chain.method == method
    return chain


def lattice(shape, rng):
    """A random walk on a lattice with a random drift and a weak way out at one corner."""
    index = np.arange(np.prod(shape)).reshape(shape)
    n = index.size
    rows, columns, data = [], [], []
    for axis in range(len(shape)):
        for step in (1, -1):
            target = np.roll(index, -step, axis=axis)
            rows.append(index.ravel())
            columns.append(target.ravel())
            data.append(rng.uniform(0.5, 1.5, size=n))
    matrix = sp.csr_array((np.concatenate(data), (np.concatenate(rows), np.concatenate(columns))), (n, n))
    leave = np.zeros(n)
    leave[0] = 0.1
    scale = 1 / (matrix.sum(axis=1) + leave)
    return sp.diags_array(scale) @ matrix, leave * scale


@pytest.mark.parametrize("shape", [(40, 40), (11, 11, 11), (6, 6, 6, 6)])
def test_multigrid_factorisation_and_elimination_agree(shape, monkeypatch):
    rng = np.random.default_rng(0)
    within, leave = lattice(shape, rng)
    b, c = rng.random(len(leave)), rng.normal(size=len(leave))
    chains = [solve_by(m, within, leave, monkeypatch) for m in ("elimination", "factorisation", "multigrid")]
    left, right = [chain.left(b) for chain in chains], [chain.right(c) for chain in chains]
    for other in (1, 2):
        np.testing.assert_allclose(left[other], left[0], rtol=1e-11)
        np.testing.assert_allclose(right[other], right[0], rtol=1e-9, atol=1e-11 * np.abs(right[0]).max())
    # What enters must leave, and an episode leaves for certain.
    for x, chain in zip(left, chains, strict=True):
        assert x @ leave == pytest.approx(b.sum(), rel=1e-12)
        np.testing.assert_allclose(chain.right(leave), 1, rtol=1e-11)


@pytest.mark.parametrize("coarse_levels", [True, False])
def test_expanders_are_solved_with_and_without_coarse_levels(coarse_levels, monkeypatch):
    rng = np.random.default_rng(1)
    n = 20_000
    columns = np.concatenate([rng.permutation(n) for _ in range(6)])
    within = sp.csr_array((np.full(6 * n, 0.99 / 6), (np.tile(np.arange(n), 6), columns)), (n, n))
    leave = np.full(n, 0.01)
    if not coarse_levels:
        monkeypatch.setattr(multigrid, "_MAX_GROWTH", 0.0)
    assert (multigrid.build((sp.eye_array(n) - within).tocsr()).coarsest is not None) == coarse_levels
    b = rng.random(n)
    chain = solve_by("multigrid", within, leave, monkeypatch)
    x = chain.left(b)
    np.testing.assert_allclose(b + x @ within, x, rtol=1e-12)
    assert x.sum() == pytest.approx(100 * b.sum(), rel=1e-12)  # every state leaves with probability 1/100
    np.testing.assert_allclose(chain.right(np.ones(n)), 100, rtol=1e-12)
    assert chain.method == "multigrid"


def test_where_multigrid_stalls_a_factorisation_takes_over(monkeypatch):
    within, leave = lattice((30, 30), np.random.default_rng(2))
    b = np.ones(len(leave))
    expected = solve_by("elimination", within, leave, monkeypatch).left(b)
    chain = solve_by("multigrid", within, leave, monkeypatch)
    monkeypatch.setattr(multigrid, "solve", lambda *_, **__: None)
    np.testing.assert_allclose(chain.left(b), expected, rtol=1e-11)
    assert chain.method == "factorisation"
    np.testing.assert_allclose(chain.right(leave), 1, rtol=1e-11)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 130, 200])
def test_blocked_elimination_is_right_at_every_block_boundary(n):
    rng = np.random.default_rng(n)
    q = rng.random((n, n)) / n
    np.fill_diagonal(q, 0)
    leave = rng.random(n)
    a = np.diag(q.sum(axis=1) + leave) - q
    factors = absorbing.elimination.factor(q, leave)
    b = rng.normal(size=n)
    np.testing.assert_allclose(a @ factors.solve_right(b), b, atol=1e-11)
    np.testing.assert_allclose(factors.solve_left(b) @ a, b, atol=1e-11)


def test_acyclic_chains_are_solved_by_substitution_in_any_numbering():
    rng = np.random.default_rng(4)
    n = 2000
    upper = np.triu(rng.random((n, n)) < 0.002, 1) * rng.random((n, n))
    shuffle = rng.permutation(n)
    within = sp.csr_array(upper[np.ix_(shuffle, shuffle)])
    within = within / (within.sum(axis=1) + 1)[:, None]
    leave = 1 - within.sum(axis=1)
    chain = AbsorbingChain(within, leave)
    assert chain.method == "substitution"
    b = rng.normal(size=n)
    dense = np.eye(n) - within.toarray()
    np.testing.assert_allclose(chain.left(b), np.linalg.solve(dense.T, b), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(chain.right(b), np.linalg.solve(dense, b), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n", "method"), [(20, "elimination"), (40, "factorisation")])
def test_grid_random_walks_have_the_known_mean_time(n, method):
    # From corner to opposite corner of an n x n grid with reflecting sides; by symmetry of the walk (uniform
    # stationary distribution of the chain that restarts at the goal's row only) no closed form: compare with numpy.
    process = slippery_grid(n)
    within, leave = as_chain(process)
    assert AbsorbingChain(within, leave).method == method
    mean = average_episode_length(process, uniform_policy(process))
    dense = np.eye(n * n - 1) - within.toarray()
    assert mean == pytest.approx(1 + np.linalg.solve(dense, np.ones(n * n - 1))[0], rel=1e-9)


def test_both_sides_of_a_large_process_are_solved_at_once():
    # Above 100,000 states the gradient's two solves run in two threads; the answer does not depend on it.
    process = slippery_grid(320)
    logits = np.zeros((process.n_states, 4))
    gradient = policy_gradient(process, logits)
    np.testing.assert_allclose(steady_state_policy_gradient(process, logits), gradient, rtol=1e-9, atol=1e-12)
    visits = expected_visits(process, uniform_policy(process))
    assert visits[process.terminal].sum() == pytest.approx(1, rel=1e-11)


def end_components_by_brute_force(process):
    """The union of all end components: every set of states is tried, with the actions that keep it."""
    stack = np.array([m.toarray() > 0 for m in process.transitions])
    n = process.n_states
    anywhere = stack.any(axis=0)
    reached = process.initial > 0
    for _ in range(n):
        reached = reached | anywhere[reached].any(axis=0)
    candidates = np.flatnonzero(reached & ~process.terminal)
    found = set()
    for size in range(1, len(candidates) + 1):
        for chosen in itertools.combinations(candidates.tolist(), size):
            outside = np.ones(n, dtype=bool)
            outside[list(chosen)] = False
            kept = [[a for a in range(len(stack)) if not stack[a, s][outside].any()] for s in chosen]
            if not all(kept):
                continue
            edges = np.array(
                [stack[actions, s].any(axis=0)[list(chosen)] for actions, s in zip(kept, chosen, strict=True)]
            )
            if (np.linalg.matrix_power(edges + np.eye(size), size) > 0).all():
                found |= set(chosen)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_end_components_are_where_a_policy_can_stay_for_ever(seed):
    rng = np.random.default_rng(seed)
    n, actions = int(rng.integers(2, 8)), int(rng.integers(1, 4))
    transitions = (rng.random((actions, n, n)) < 0.3).astype(float)
    transitions[:, np.arange(n), rng.integers(0, n, size=n)] = 1
    transitions[:, 0] = 0
    transitions[:, 0, 1:] = rng.random(n - 1) + 0.1
    transitions /= transitions.sum(axis=2, keepdims=True)
    process = LearningProcess(transitions, np.zeros(n), np.eye(n)[0])
    check = check_episodic(process)
    expected = end_components_by_brute_force(process)
    assert set(check.witness) == expected
    assert check.finite == (not expected)
    for state, kept in check.witness.items():
        assert kept
        for action in kept:
            assert set(np.flatnonzero(transitions[action, state]).tolist()) <= expected


def test_reachability_and_cycle_lengths_of_small_graphs():
    graph = sp.csr_array(np.array([[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]]))
    start = np.array([True, False, False, False])
    assert graphs.reachable(graph, start).tolist() == [True, True, True, False]
    assert graphs.reachable(graph, np.zeros(4, bool)).tolist() == [False] * 4
    ring = sp.csr_array(np.roll(np.eye(6), 1, axis=1))
    assert graphs.cycle_gcd(ring, 0) == 6
    chord = ring.tolil()
    chord[3, 0] = 1
    assert graphs.cycle_gcd(chord.tocsr(), 0) == 2


def test_long_chains_have_exact_periods():
    rng = np.random.default_rng(0)
    process, policy = random_process(rng, "acyclic")
    assert average_episode_length(process, policy) > 0
    n = 100_000
    ring = sp.csr_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), (n, n))
    assert graphs.cycle_gcd(ring, 0) == n


def two_clusters(n, leak, rng):
    """Two clusters of n/2 states with `leak` between them and out of the second: sparse and nearly decomposable."""
    half = n // 2
    rows, columns, data = [], [], []
    for _ in range(3):
        for first in (0, half):
            rows.append(np.arange(half) + first)
            columns.append(rng.permutation(half) + first)
            data.append(rng.random(half) + 0.1)
    rows.append([0, half])
    columns.append([half, 0])
    data.append([leak, 3 * leak])
    matrix = sp.csr_array((np.concatenate(data), (np.concatenate(rows), np.concatenate(columns))), (n, n))
    leave = np.zeros(n)
    leave[-1] = leak
    scale = 1 / (matrix.sum(axis=1) + leave)
    return sp.diags_array(scale) @ matrix, leave * scale


@pytest.mark.parametrize("leak", [1e-5, 1e-9, 1e-11])
def test_refined_factorisations_are_accurate_in_every_entry_of_nearly_decomposable_chains(leak, monkeypatch):
    within, leave = two_clusters(600, leak, np.random.default_rng(3))
    b, c = np.eye(600)[1], np.arange(600) % 7.0
    exact = solve_by("elimination", within, leave, monkeypatch)
    refined = solve_by("factorisation", within, leave, monkeypatch)
    np.testing.assert_allclose(refined.left(b), exact.left(b), rtol=1e-12)
    np.testing.assert_allclose(refined.right(c), exact.right(c), rtol=1e-12)
    assert refined.method == "factorisation"
    # Without refinement, digits are lost in proportion to 1/leak: the test can fail.
    plain = refined._solvers[0](b, 0.0)
    assert np.abs(plain / exact.left(b) - 1).max() > 1e-17 / leak


def test_where_a_factorisation_fails_elimination_takes_over_and_beyond_it_an_error(monkeypatch):
    within, leave = two_clusters(600, 1e-15, np.random.default_rng(3))
    b = np.eye(600)[1]
    expected = solve_by("elimination", within, leave, monkeypatch).left(b)
    chain = solve_by("factorisation", within, leave, monkeypatch)
    np.testing.assert_allclose(chain.left(b), expected, rtol=1e-13)
    assert chain.method == "elimination"
    monkeypatch.setattr(absorbing, "LARGEST_ELIMINATION", 100)
    with pytest.raises(AccuracyError, match="600 states is so stiff"):
        solve_by("factorisation", within, leave, monkeypatch).left(b)


@pytest.mark.parametrize("seed", range(20))
def test_end_components_of_larger_graphs_agree_with_the_definition(seed):
    # The slow way: drop states without actions, and actions that leave their strongly connected part, until none does.
    rng = np.random.default_rng(seed)
    n, n_actions = 120, 3
    stack = rng.random((n_actions, n, n)) < 0.004
    for matrix in stack:
        matrix[np.arange(n), rng.integers(0, n, n)] = True
    candidates = given = rng.random(n) < 0.7
    kept = np.repeat(candidates[None, :], n_actions, axis=0)
    while True:
        reach = np.linalg.matrix_power((stack & kept[:, :, None]).any(axis=0) | np.eye(n, dtype=bool), 128)
        together = reach & reach.T & candidates
        leaves = (stack & ~together[None]).any(axis=2) & kept
        if not leaves.any():
            break
        kept &= ~leaves
        candidates = candidates & kept.any(axis=0)
        kept &= candidates
    expected = {s: tuple(np.flatnonzero(kept[:, s]).tolist()) for s in range(n) if kept[:, s].any()}
    matrices = [sp.csr_array(matrix.astype(float)) for matrix in stack]
    assert graphs.end_components(matrices, given) == expected


def test_a_union_of_patterns_holds_the_chosen_rows_of_all():
    rng = np.random.default_rng(0)
    stack = rng.random((7, 9, 9)) < 0.2
    rows = rng.random((9, 7)) < 0.5
    matrices = [sp.csr_array(matrix.astype(float)) for matrix in stack]
    np.testing.assert_array_equal(graphs.union(matrices).toarray(), stack.any(axis=0))
    np.testing.assert_array_equal(graphs.union(matrices, rows).toarray(), (stack & rows.T[:, :, None]).any(axis=0))
