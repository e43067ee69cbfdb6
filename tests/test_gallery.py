"""The gallery's answers, as derived by hand in its comments."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

from steadyrl import (
    LearningProcess,
    Perturbation,
    action_values,
    average_episode_length,
    check_episodic,
    distances,
    episode_performance,
    expected_visits,
    gradient_bias,
    marginals,
    mixing_time,
    period,
    perturb,
    policy_gradient,
    spectral_gap,
    state_values,
    stationary_distribution,
    steady_state_performance,
    uniform_policy,
)
from steadyrl.exact import gallery


@pytest.mark.parametrize("n", [1, 2, 7])
def test_state_sweep_visits_every_state_once_and_never_converges(n):
    process, policy = gallery.state_sweep(n)
    np.testing.assert_array_equal(stationary_distribution(process, policy), np.full(n, 1 / n))
    assert average_episode_length(process, policy) == n == period(process, policy)
    assert episode_performance(process, policy) == n * (n - 1) / 2
    assert steady_state_performance(process, policy) == pytest.approx((n - 1) / 2, rel=1e-15)
    np.testing.assert_array_equal(marginals(process, policy, 3 * n), np.eye(n)[np.arange(3 * n + 1) % n])
    assert mixing_time(process, policy) == (math.inf if n > 1 else 0)
    np.testing.assert_allclose(distances(process, policy, 2 * n), 1 - 1 / n)


def test_the_perturbed_sweep_of_2000_states_comes_within_half_a_percent_in_3_episode_lengths():
    # The anchor of the renewal view: TV to uniform at 1, ..., 5 E[T].
    n = 2000
    process, _ = gallery.state_sweep(n)
    perturbed = perturb(process, Perturbation.for_average_episode_length(n))
    found = distances(perturbed, uniform_policy(perturbed), 5 * n, given_not_null=True)[n::n]
    np.testing.assert_allclose(found, [0.123, 0.034, 0.0053, 0.0017, 0.0002], rtol=0.15, atol=0.0001)
    np.testing.assert_allclose(found[:3], [0.123, 0.034, 0.0053], rtol=0.01)


@pytest.mark.parametrize("rooms", [1, 3, 10])
def test_corridor(rooms):
    process, policy = gallery.corridor(rooms)
    assert average_episode_length(process, policy) == rooms + 1
    np.testing.assert_array_equal(action_values(process, policy), np.ones((rooms + 1, 1)))
    assert steady_state_performance(process, policy) == 1 / (rooms + 1)
    g = 0.9
    assert state_values(process, policy, g)[0] == pytest.approx(g**rooms / (1 - g ** (rooms + 1)), rel=1e-14)
    nearly_one = 1 - 1e-12  # V(exit) -> 1 / (rooms + 1) / (1 - g): the digits must survive 1 - g
    assert state_values(process, policy, nearly_one)[0] * (1 - nearly_one) == pytest.approx(1 / (rooms + 1), rel=1e-10)


@pytest.mark.parametrize("p", [0.5, 0.2])
def test_two_terminals(p):
    process, policy = gallery.two_terminals(win=2, loss=-1)
    policy[1] = p, 1 - p
    assert process.terminal.tolist() == [True, False, False, True]
    np.testing.assert_allclose(expected_visits(process, policy), [1 - p, 1, p, p], rtol=1e-15)
    assert average_episode_length(process, policy) == pytest.approx(2 + p, rel=1e-15)
    assert episode_performance(process, policy) == pytest.approx(2 * p - (1 - p), rel=1e-15)
    with np.errstate(divide="ignore"):
        gradient = policy_gradient(process, np.log(policy))
    expected = np.zeros((4, 2))
    expected[1] = p * (1 - p) * 3 * np.array([1, -1])
    np.testing.assert_allclose(gradient, expected, atol=1e-15)


@pytest.mark.parametrize("stay", [0.0, 0.5, 0.9])
def test_self_loops(stay):
    process, policy = gallery.self_loops(stay)
    mean = 1 + 1 / (1 - stay)
    assert average_episode_length(process, policy) == pytest.approx(mean, rel=1e-14)
    assert episode_performance(process, policy) == pytest.approx(1 / (1 - stay), rel=1e-14)
    t = np.arange(30)
    np.testing.assert_allclose(distances(process, policy, 29), (1 - 1 / mean) * (1 - stay) ** t, atol=1e-15)
    assert spectral_gap(process, policy) == pytest.approx(stay, abs=1e-12)


@pytest.mark.parametrize("leak", [1e-3, 1e-9, 1e-15])
def test_nearly_decomposable_keeps_every_digit(leak):
    process, policy = gallery.nearly_decomposable(leak)
    np.testing.assert_allclose(expected_visits(process, policy), [1] + [1 / leak] * 4, rtol=1e-15)
    assert average_episode_length(process, policy) == pytest.approx(1 + 4 / leak, rel=1e-15)
    assert episode_performance(process, policy) == pytest.approx(2 / leak, rel=1e-14)
    assert steady_state_performance(process, policy) == pytest.approx(2 / (4 + leak), rel=1e-14)


def test_mixing_times_of_any_size_are_found_by_powers():
    # The slow eigenvalue pair of the nearly decomposable process gives t* proportional to 1/leak.
    slow = mixing_time(*gallery.nearly_decomposable(1e-6))
    slower = mixing_time(*gallery.nearly_decomposable(1e-9))
    assert slower == pytest.approx(1000 * slow, rel=1e-4)
    found = distances(*gallery.nearly_decomposable(1e-3), 20_000)
    assert mixing_time(*gallery.nearly_decomposable(1e-3)) == np.argmax(found < 0.01)


def test_periodic_lengths_that_vary_do_not_mix():
    process, policy = gallery.periodic()
    assert average_episode_length(process, policy) == 3
    np.testing.assert_allclose(stationary_distribution(process, policy), [1 / 3, 1 / 3, 1 / 6, 1 / 6], rtol=1e-15)
    assert period(process, policy) == 2
    assert mixing_time(process, policy) == math.inf
    assert spectral_gap(process, policy) == 0
    assert (distances(process, policy, 200) >= 0.5 - 1e-12).all()
    # Above 1 - 1/period the distance does come down, and the definition says when.
    assert mixing_time(process, policy, 0.6) == np.argmax(distances(process, policy, 200) < 0.6)


def test_the_gap_of_ten_thousand_states_takes_a_limited_number_of_iterations():
    # Go on along a line or step off it and then end, with equal chances: T = M + 2 with M geometric, so
    # z^3 + z - 2 = (z - 1)(z^2 + z + 2) is zero at the reciprocals of the eigenvalues, and |z| = sqrt(2).
    line = np.arange(5_000)
    off, end = line + 5_000, 10_000
    rows = np.concatenate([line, line, off, [end]])
    columns = np.concatenate([line[1:], off[-1:], off, np.full(5_000, end), [0]])
    chances = np.append(np.full(10_000, 0.5), np.ones(5_001))
    matrix = sp.coo_array((chances, (rows, columns)), (10_001, 10_001)).tocsr()
    process = LearningProcess([matrix], np.zeros(10_001), np.eye(1, 10_001, end)[0])
    assert spectral_gap(process, np.ones((10_001, 1))) == pytest.approx(1 - math.sqrt(0.5), abs=1e-9)


def test_never_ending_is_not_episodic_though_its_uniform_policy_ends():
    process, policy = gallery.never_ending()
    check = check_episodic(process)
    assert (check.ok, check.homogeneous, check.finite) == (False, True, False)
    assert check.witness == {1: (0,)}
    assert check_episodic(process, policy).ok
    assert average_episode_length(process, policy) == 3


def test_wrong_way_the_discounted_update_points_away_from_the_gradient():
    process, _ = gallery.wrong_way(delay=4)
    logits = np.zeros((process.n_states, 2))
    stops_at_the_end = ~process.terminal
    wrong = gradient_bias(process, logits, 0.8 * stops_at_the_end)  # 0.8^4 = 0.41 < 1/2
    right = gradient_bias(process, logits, 0.9 * stops_at_the_end)  # 0.9^4 = 0.66 > 1/2
    assert (wrong.cosine, right.cosine) == pytest.approx((-1, 1), abs=1e-12)
    assert wrong.angle == pytest.approx(180)
    # Lengths: |Q(1,0) - Q(1,1)| over E[T] = 4 (rho of state 1 is 1/4) against |1 - 2|.
    assert wrong.length_ratio == pytest.approx(abs(1 - 2 * 0.8**4) / 4, rel=1e-12)
    assert average_episode_length(process, uniform_policy(process)) == 4
