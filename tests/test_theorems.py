"""Each definition, lemma and theorem of the paper by name, on random processes, by two routes.

Numbering as in the paper: Proposition 1 (mean recurrence times), Lemma 1.1 (irreducible), 1.2 (positive recurrent),
Theorem 1 (unique stationary distribution), Lemma 2.1 (co-prime lengths), Theorems 2 and 3 (perturbation), Theorem 4
(J_epi = J_avg E[T]), Proposition 4 (E[T] = 1 / rho(terminal)), Theorem 5 (the steady-state policy gradient).
"""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from processes import (
    dense_chain,
    processes,
    random_process,
    reachable_states,
    stationary_by_null_space,
    values_by_full_system,
)
from steadyrl import (
    Perturbation,
    action_values,
    average_episode_length,
    check_episodic,
    classic_gradient,
    episode_performance,
    expected_visits,
    marginals,
    mean_recurrence_times,
    mixing_time,
    period,
    perturb,
    policy_gradient,
    softmax_policy,
    state_values,
    stationary_distribution,
    steady_state_performance,
    steady_state_policy_gradient,
    total_variation,
)

perturbations = st.one_of(
    st.builds(Perturbation, st.floats(0.01, 0.99), st.booleans()),
    st.lists(st.floats(0.01, 1), min_size=2, max_size=5).map(lambda w: Perturbation.from_detour(np.array(w) / sum(w))),
)


def extend(policy, perturbed):
    extra = perturbed.n_states - len(policy)
    return np.vstack([policy, np.full((extra, policy.shape[1]), 1 / policy.shape[1])])


@given(processes())
def test_definition_1_terminal_states_are_all_those_with_the_row_of_a_reset(case):
    process, _ = case
    stack = np.array([matrix.toarray() for matrix in process.transitions])
    start = int(np.argmax(process.initial))
    same = [np.allclose(stack[:, s], stack[0, start], rtol=1e-9, atol=0) for s in range(process.n_states)]
    assert process.terminal.tolist() == same


@given(processes())
def test_lemma_1_1_every_reachable_state_reaches_every_other(case):
    process, policy = case
    chain = dense_chain(process, policy)
    states = reachable_states(process, chain)
    # A terminal state that no episode ends in is initial but never returned to.
    recurrent = states & (chain[states].sum(axis=0) > 0)
    step = (chain[np.ix_(recurrent, recurrent)] > 0).astype(float)
    paths = np.linalg.matrix_power(step + np.eye(len(step)), len(step)) > 0
    assert paths.all()
    np.testing.assert_array_equal(recurrent, stationary_distribution(process, policy) > 0)


@given(processes())
def test_lemma_1_2_and_proposition_1_recurrence_times_are_finite_and_one_over_rho(case):
    process, policy = case
    chain = dense_chain(process, policy)
    rho = stationary_distribution(process, policy)
    times = mean_recurrence_times(process, policy)
    assert np.isinf(times[rho == 0]).all()
    for state in np.flatnonzero(rho > 1e-6):
        # First-step analysis: expected time to hit `state`, from everywhere it is hit from.
        others = np.flatnonzero((rho > 0) & (np.arange(len(rho)) != state))
        hitting = np.linalg.solve(np.eye(len(others)) - chain[np.ix_(others, others)], np.ones(len(others)))
        assert 1 + chain[state, others] @ hitting == pytest.approx(times[state], rel=1e-6)


@given(processes())
def test_theorem_1_the_stationary_distribution_is_the_only_fixed_point(case):
    process, policy = case
    rho = stationary_distribution(process, policy)
    assert np.abs(rho @ dense_chain(process, policy) - rho).max() < 1e-14
    assert rho.sum() == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(rho, stationary_by_null_space(process, policy), atol=1e-8)


@given(processes())
def test_time_share_is_visits_over_average_episode_length(case):
    process, policy = case
    # Visits by summing the distribution over one episode, step by step, until almost nothing is left of it.
    chain = dense_chain(process, policy)
    inside = np.where(process.terminal, 0.0, 1.0)
    now, visits = process.initial @ chain, np.zeros(process.n_states)
    for _ in range(20_000):
        visits += now
        now = (now * inside) @ chain
    assume(now.sum() < 1e-12)
    np.testing.assert_allclose(expected_visits(process, policy), visits, rtol=1e-9, atol=1e-10)
    assert average_episode_length(process, policy) == pytest.approx(visits.sum(), rel=1e-9)


@given(processes())
def test_lemma_2_1_the_period_is_the_gcd_of_possible_episode_lengths(case):
    process, policy = case
    now = (process.initial @ dense_chain(process, policy)) > 0
    step = dense_chain(process, policy) > 0
    lengths = []
    for t in range(1, 4 * process.n_states + 2):
        if (now & process.terminal).any():
            lengths.append(t)
        now = step[now & ~process.terminal].any(axis=0)
    assert period(process, policy) == math.gcd(*lengths)


@given(processes(), st.floats(0.001, 0.3))
def test_lemma_2_1_the_mixing_time_is_where_marginals_come_close_or_infinite(case, tolerance):
    process, policy = case
    found = mixing_time(process, policy, tolerance)
    if period(process, policy) > 1:
        assert found == math.inf
        return
    assume(found < 3000)
    rho = stationary_by_null_space(process, policy)
    distance = np.array([total_variation(row, rho) for row in marginals(process, policy, int(found) + 50)])
    assert (distance[int(found) :] < tolerance + 1e-9).all()
    assert found == 0 or distance[int(found) - 1] >= tolerance - 1e-9


@given(processes(), perturbations)
def test_theorem_2_every_perturbed_process_is_aperiodic_and_converges(case, perturbation):
    process, policy = case
    perturbed = perturb(process, perturbation)
    extended = extend(policy, perturbed)
    assert check_episodic(perturbed).ok
    assert period(perturbed, extended) == 1
    rho = stationary_distribution(perturbed, extended)
    power = dense_chain(perturbed, extended)
    for _ in range(40):
        power = power @ power
        power /= power.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(perturbed.initial @ power, rho, atol=1e-6)


@given(processes(), perturbations, st.sampled_from([None, 0.0, 0.5, 0.99]))
def test_theorem_3_a_detour_changes_neither_values_nor_the_distribution_of_real_states(case, perturbation, discount):
    process, policy = case
    perturbed = perturb(process, perturbation)
    extended, n = extend(policy, perturbed), process.n_states
    np.testing.assert_array_equal(perturbed.terminal[:n], process.terminal)
    assert not perturbed.terminal[n:].any()
    assert perturbed.null == n
    rho_plus = stationary_distribution(perturbed, extended)
    np.testing.assert_allclose(
        rho_plus[:n] / (1 - rho_plus[n:].sum()), stationary_distribution(process, policy), rtol=1e-9, atol=1e-14
    )
    q = action_values(process, policy, discount)
    q_plus = action_values(perturbed, extended, discount)[:n]
    np.testing.assert_allclose(q_plus, q, rtol=1e-9, atol=1e-9 * np.nanmax(np.abs(q)))
    assert average_episode_length(perturbed, extended) == pytest.approx(
        average_episode_length(process, policy) + perturbation.mean_detour, rel=1e-10
    )


@given(processes())
def test_theorem_4_episode_performance_is_reward_per_step_times_average_episode_length(case):
    process, policy = case
    per_episode = episode_performance(process, policy)
    per_step = steady_state_performance(process, policy)
    scale = np.abs(process.rewards).max() * average_episode_length(process, policy)
    assert abs(per_episode - per_step * average_episode_length(process, policy)) < 1e-12 * scale
    # The right-hand side by a route of its own: the null space and the full linear system.
    rho = stationary_by_null_space(process, policy)
    values = values_by_full_system(process, policy, np.where(process.terminal, 0.0, 1.0))
    assert process.initial @ values == pytest.approx(per_episode, rel=1e-6, abs=1e-8 * scale)
    assert 1 / rho[process.terminal].sum() == pytest.approx(average_episode_length(process, policy), rel=1e-5)


@given(processes())
def test_the_visitation_distribution_mu_1_is_rho(case):
    process, policy = case
    # Theorem 4 with the reward 1(s = s*): its J_epi is the expected visits to s*.
    for state in range(process.n_states):
        counting = type(process)(process.transitions, np.eye(process.n_states)[state], process.initial)
        share = episode_performance(counting, policy) / average_episode_length(process, policy)
        assert share == pytest.approx(stationary_distribution(process, policy)[state], rel=1e-10, abs=1e-14)


@given(processes())
def test_proposition_4_terminal_states_have_one_episode_lengths_share(case):
    process, policy = case
    share = stationary_distribution(process, policy)[process.terminal].sum()
    assert share * average_episode_length(process, policy) == pytest.approx(1, rel=1e-12)


@given(processes(), st.one_of(st.floats(0, 0.999), st.integers(0, 2**32 - 1)))
def test_values_solve_the_bellman_equation_for_every_discount_function(case, discount):
    process, policy = case
    if isinstance(discount, int):  # a random function of the state, 0 and 1 among its values
        rng = np.random.default_rng(discount)
        discount = np.clip(rng.uniform(-0.2, 1.2, process.n_states), 0, 1)
        assume((discount[process.terminal] < 1).all())
    gamma = np.broadcast_to(discount, process.n_states)
    v, q = state_values(process, policy, discount), action_values(process, policy, discount)
    expected = values_by_full_system(process, policy, gamma)
    np.testing.assert_allclose(v, expected, rtol=1e-6, atol=1e-8 * max(1, np.abs(expected).max()))
    backup = process.expected_rewards + np.column_stack([m @ (gamma * v) for m in process.transitions])
    np.testing.assert_allclose(q, backup, rtol=1e-12, atol=1e-12 * np.abs(q).max())


@given(processes(), st.integers(0, 2**32 - 1))
def test_theorem_5_holds_and_for_perturbed_processes_with_the_raw_episode_length(case, seed):
    process, _ = case
    logits = np.random.default_rng(seed).normal(size=(process.n_states, process.n_actions))
    truth = policy_gradient(process, logits)
    np.testing.assert_allclose(
        steady_state_policy_gradient(process, logits), truth, rtol=1e-10, atol=1e-12 * (np.abs(truth).max() + 1)
    )
    perturbed = perturb(process, Perturbation(0.7))
    longer = np.vstack([logits, np.zeros((1, process.n_actions))])
    steady = steady_state_policy_gradient(perturbed, longer)
    np.testing.assert_allclose(steady[:-1], truth, rtol=1e-8, atol=1e-9 * (np.abs(truth).max() + 1))
    assert np.abs(steady[-1]).max() < 1e-9 * (np.abs(truth).max() + 1)


def complex_step_gradient(process, logits, objective):
    """d objective / d logits by complex steps of 1e-30: exact to rounding, and no line in common with steadyrl."""
    gradient = np.zeros_like(logits)
    stack = np.array([matrix.toarray() for matrix in process.transitions])
    for place in np.ndindex(*logits.shape):
        moved = logits.astype(complex)
        moved[place] += 1e-30j
        weights = np.exp(moved - logits.max(axis=1, keepdims=True))
        pi = weights / weights.sum(axis=1, keepdims=True)
        gradient[place] = objective(pi, np.einsum("sa,ast->st", pi, stack)).imag / 1e-30
    return gradient


@pytest.mark.parametrize("seed", range(100))
def test_theorem_5_is_the_derivative_of_episode_performance(seed):
    # Three routes: adjoint, Theorem 5, complex step. The benchmark does the same on 1,000 processes.
    rng = np.random.default_rng(seed)
    process, _ = random_process(rng, max_states=6, arrival=bool(rng.integers(2)))
    logits = rng.normal(size=(process.n_states, process.n_actions))
    gamma = np.where(process.terminal, 0.0, 1.0)

    def performance(pi, chain):
        r = (pi * process.expected_rewards).sum(axis=1)
        return process.initial @ np.linalg.solve(np.eye(process.n_states) - chain * gamma, r)

    derivative = complex_step_gradient(process, logits, performance)
    scale = np.linalg.norm(derivative) + 1e-300
    for gradient in (policy_gradient(process, logits), steady_state_policy_gradient(process, logits)):
        if scale > 1e-12:
            assert np.linalg.norm(gradient - derivative) / scale < 1e-9
        else:
            assert np.linalg.norm(gradient) < 1e-10


@pytest.mark.parametrize("seed", range(30))
def test_appendix_e_the_classic_estimator_is_a_scaled_average_of_gradients_of_q(seed):
    # E[Q grad log pi] = (1 - g)/g E[grad Q], s, a ~ rho, where rho and pi are held fixed in the right-hand side.
    rng = np.random.default_rng(seed)
    process, _ = random_process(rng, max_states=5)
    logits = rng.normal(size=(process.n_states, process.n_actions))
    g = float(rng.uniform(0.3, 0.95))
    pi = softmax_policy(logits)
    rho = stationary_distribution(process, pi)
    stack = np.array([matrix.toarray() for matrix in process.transitions])

    def average_q(moved, chain):
        r = np.einsum("ast,t->sa", stack, process.rewards)
        v = np.linalg.solve(np.eye(process.n_states) - g * chain, (moved * r).sum(axis=1))
        q = r + g * np.einsum("ast,t->sa", stack, v)
        return (rho[:, None] * pi * q).sum()

    right = (1 - g) / g * complex_step_gradient(process, logits, average_q)
    left = classic_gradient(process, logits, g)
    np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-10 * (np.abs(right).max() + 1))
