"""Time limits and Gymnasium's models: layered passes against materialised matrices and against real episodes."""

import gymnasium
import numpy as np
import pytest

from processes import dense_chain, random_process, stationary_by_null_space, values_by_full_system
from steadyrl import (
    LearningProcess,
    Perturbation,
    action_values,
    average_episode_length,
    check_episodic,
    distances,
    episode_performance,
    expected_visits,
    extend_policy,
    marginals,
    mixing_time,
    period,
    perturb,
    policy_gradient,
    stationary_distribution,
    steady_state_performance,
    steady_state_policy_gradient,
    total_variation,
    uniform_policy,
)
from steadyrl.errors import PolicyError, ProcessError
from steadyrl.exact import gallery


def limited_case(seed, kind=None, arrival=True):
    rng = np.random.default_rng(seed)
    base, _ = random_process(rng, kind, max_states=5, arrival=arrival)
    process = base.with_time_limit(int(rng.integers(1, 7)))
    return process, rng.dirichlet(np.ones(process.n_actions), size=process.n_states)


def flat(process):
    """The same process from its matrices: nothing knows of its layers any more."""
    return LearningProcess(process.transitions, process.rewards, process.initial)


@pytest.mark.parametrize("arrival", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_passes_over_layers_agree_with_the_materialised_process(seed, arrival):
    process, policy = limited_case(seed, arrival=arrival)
    plain = flat(process)
    assert plain.layers is None
    # The limit may make more states terminal in name only; Definition 1 finds the same ones.
    np.testing.assert_array_equal(plain.terminal, process.terminal)
    np.testing.assert_array_equal(plain.reset, process.reset)
    np.testing.assert_allclose(plain.expected_rewards, process.expected_rewards, atol=1e-14)
    np.testing.assert_allclose(expected_visits(process, policy), expected_visits(plain, policy), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(
        stationary_distribution(process, policy), stationary_by_null_space(plain, policy), atol=1e-9
    )
    assert period(process, policy) == period(plain, policy)
    rng = np.random.default_rng(seed)
    for discount in (None, 0.0, 0.9, rng.uniform(0, 0.99, process.n_states)):
        gamma = (
            np.where(process.terminal, 0.0, 1.0) if discount is None else np.broadcast_to(discount, process.n_states)
        )
        q = action_values(process, policy, discount)
        np.testing.assert_allclose(q, action_values(plain, policy, discount), rtol=1e-10, atol=1e-12)
        v = values_by_full_system(plain, policy, gamma)
        np.testing.assert_allclose((policy * q).sum(axis=1), v, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(distances(process, policy, 40), distances(plain, policy, 40), atol=1e-13)
    assert mixing_time(process, policy, 0.05) == mixing_time(plain, policy, 0.05)
    logits = rng.normal(size=policy.shape)
    for gradient in (policy_gradient, steady_state_policy_gradient):
        np.testing.assert_allclose(gradient(process, logits), gradient(plain, logits), atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_a_time_limit_cuts_episodes_after_that_many_actions(seed):
    base, policy = random_process(np.random.default_rng(seed), "dense", max_states=6)
    limit = 4
    process = base.with_time_limit(limit)
    # By hand: the distribution over one episode of the base, of which only `limit` actions happen.
    chain, inside = dense_chain(base, policy), ~base.terminal
    now, steps, reward = base.reset.copy(), 0.0, 0.0
    for k in range(limit + 1):
        steps += now.sum()
        reward += now @ base.rewards
        now = (now * inside) @ chain if k < limit else now
    full = extend_policy(process, policy)
    assert average_episode_length(process, full) == pytest.approx(steps, rel=1e-13)
    assert average_episode_length(process, full) <= limit + 1
    assert episode_performance(process, full) == pytest.approx(reward, rel=1e-12, abs=1e-13)
    assert check_episodic(process).ok


def test_a_limit_beyond_every_episode_changes_nothing_that_can_be_seen():
    base, policy = gallery.two_terminals()
    process = base.with_time_limit(50)
    full = extend_policy(process, policy)
    assert average_episode_length(process, full) == pytest.approx(2.5, rel=1e-15)
    assert episode_performance(process, full) == pytest.approx(1.0, rel=1e-15)


def test_layered_states_have_readable_names_and_the_documented_numbers():
    process = gallery.two_terminals()[0].with_time_limit(3)
    assert (process.n_states, int(process.terminal.sum())) == (2 * 4 + 2, 4)
    assert [process.name(s) for s in (0, 1, 2, 6, 7, 8, 9)] == [
        "decide at step 0",
        "pause at step 0",
        "decide at step 1",
        "decide cut by the limit",
        "pause cut by the limit",
        "loss",
        "win",
    ]
    assert repr(process) == "LearningProcess(10 states, 2 actions, 4 terminal, time limit 3)"


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "3"])
def test_a_limit_that_is_no_number_of_actions_is_refused(bad):
    with pytest.raises(ProcessError, match=r"the time limit is .*; it must be a whole number, 1 or more"):
        gallery.corridor()[0].with_time_limit(bad)


def test_a_shorter_limit_wins_and_a_perturbed_process_takes_none():
    process = gallery.corridor(5)[0].with_time_limit(4)
    assert process.with_time_limit(9) is process
    assert process.with_time_limit(2).layers.limit == 2
    with pytest.raises(ProcessError, match="set the limit first"):
        perturb(gallery.corridor()[0], Perturbation(0.5)).with_time_limit(4)
    with pytest.raises(PolicyError, match="extend_policy"):
        average_episode_length(process, uniform_policy(process.layers.base))


def test_a_perturbed_time_limited_process_keeps_rho_and_mixes():
    process, policy = limited_case(4, "dense")
    perturbed = perturb(process, Perturbation(0.8))
    extended = np.vstack([policy, policy[:1]])
    rho = stationary_distribution(perturbed, extended)
    np.testing.assert_allclose(
        rho[:-1] / (1 - rho[-1]), stationary_distribution(process, policy), rtol=1e-11, atol=1e-15
    )
    assert mixing_time(perturbed, extended) < np.inf


def test_frozen_lake_needs_its_time_limit():
    free = LearningProcess.from_gymnasium("FrozenLake-v1", time_limit=None)
    check = check_episodic(free)
    assert (check.ok, check.homogeneous, check.finite) == (False, True, False)
    top_row = {0, 1, 2, 3}
    up = 3
    assert set(check.witness) >= top_row
    assert all(up in check.witness[s] for s in top_row)
    assert "0" in check.message
    limited = LearningProcess.from_gymnasium("FrozenLake-v1")
    assert limited.layers.limit == 100
    assert check_episodic(limited).ok


def play(env, episodes, seed):
    """Lengths and returns of real episodes under uniform actions."""
    rng = np.random.default_rng(seed)
    lengths, returns = [], []
    env.reset(seed=seed)
    for _ in range(episodes):
        env.reset()
        total, length, done = 0.0, 0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
            total, length, done = total + float(reward), length + 1, terminated or truncated
        lengths.append(length)
        returns.append(total)
    return np.array(lengths), np.array(returns)


@pytest.mark.parametrize(
    ("name", "arguments", "limit", "episodes"),
    [
        ("FrozenLake-v1", {}, "spec", 4000),
        ("FrozenLake-v1", {"is_slippery": False}, "spec", 4000),
        ("FrozenLake-v1", {"desc": ["SFF", "FHF", "FFG"]}, 12, 4000),
        ("Taxi-v4", {}, "spec", 300),
        ("CliffWalking-v1", {}, 60, 1500),
    ],
)
def test_models_agree_with_episodes_of_the_real_environment(name, arguments, limit, episodes):
    # Ten z-tests at |z| < 4.5 over the five cases: false-alarm rate below 1e-4.
    env = gymnasium.make(name, **arguments)
    if limit != "spec":
        env = gymnasium.wrappers.TimeLimit(env.unwrapped, limit)
    process = LearningProcess.from_gymnasium(env, limit)
    policy = uniform_policy(process)
    lengths, returns = play(env, episodes, seed=11)
    for sample, exact in (
        (lengths + 1, average_episode_length(process, policy)),
        (returns, episode_performance(process, policy)),
    ):
        error = sample.std(ddof=1) / np.sqrt(len(sample)) + 1e-9
        assert abs(sample.mean() - exact) / error < 4.5


def test_taxi_states_that_end_an_episode_are_kept_apart_from_the_same_number_in_mid_episode():
    process = LearningProcess.from_gymnasium("Taxi-v4", time_limit=None)
    ends = [process.name(int(s)) for s in np.flatnonzero(process.terminal)]
    assert ends == ["0 terminated", "85 terminated", "410 terminated", "475 terminated"]
    assert not process.terminal[[0, 85, 410, 475]].any()


class Table(gymnasium.Env):
    """An environment that is nothing but its model."""

    def __init__(self, table, start):
        self.P, self.initial_state_distrib = table, np.array(start)


def test_a_state_number_can_both_end_an_episode_and_occur_in_the_middle_of_one():
    # 0 -> 1; in 1 a coin decides between staying in 1 and ending in 1: lengths 1 + geometric(1/2).
    table = {0: {0: [(1.0, 1, 0.0, False)]}, 1: {0: [(0.5, 1, 1.0, False), (0.5, 1, 10.0, True)]}}
    process = LearningProcess.from_gymnasium(Table(table, [1.0, 0.0]))
    assert [process.name(s) for s in range(3)] == ["0", "1", "1 terminated"]
    assert process.terminal.tolist() == [False, False, True]
    policy = uniform_policy(process)
    np.testing.assert_allclose(expected_visits(process, policy), [1, 2, 1], rtol=1e-15)
    assert average_episode_length(process, policy) == 4  # three actions on average, and the reset
    assert episode_performance(process, policy) == pytest.approx(11)


def test_taxi_with_its_limit_has_a_hundred_thousand_layered_states():
    process = LearningProcess.from_gymnasium("Taxi-v4")
    policy = uniform_policy(process)
    assert process.n_states == 500 * 201 + 4
    assert episode_performance(process, policy) == pytest.approx(
        steady_state_performance(process, policy) * average_episode_length(process, policy), rel=1e-12
    )
    rho = stationary_distribution(process, policy)
    chain = sum(matrix for matrix in process.transitions) / process.n_actions
    assert np.abs(rho @ chain - rho).sum() < 1e-14


def test_an_environment_object_brings_its_own_limit():
    made = gymnasium.make("FrozenLake-v1", max_episode_steps=9)
    assert LearningProcess.from_gymnasium(made).layers.limit == 9
    assert LearningProcess.from_gymnasium(made, None).layers is None
    assert LearningProcess.from_gymnasium(made.unwrapped, 5).layers.limit == 5
    assert LearningProcess.from_gymnasium("CliffWalking-v1").layers is None  # its spec has no limit
    assert LearningProcess.from_gymnasium("FrozenLake-v1", map_name="8x8", time_limit=None).n_states == 75


def test_environments_without_a_model_are_refused():
    with pytest.raises(ProcessError, match="CartPole-v1 carries no model"):
        LearningProcess.from_gymnasium("CartPole-v1")
    with pytest.raises(ProcessError, match="'sometimes'"):
        LearningProcess.from_gymnasium("FrozenLake-v1", "sometimes")
    with pytest.raises(ProcessError, match="map_name"):
        LearningProcess.from_gymnasium(gymnasium.make("FrozenLake-v1"), map_name="8x8")


def test_a_model_that_never_terminates_still_has_a_start():
    # State 1 leads where a reset does, but Gymnasium does not call it an end, so it is none.
    table = {0: {0: [(1.0, 1, 0.0, False)]}, 1: {0: [(1.0, 0, 1.0, False)]}}
    process = LearningProcess.from_gymnasium(Table(table, [1.0, 0.0]))
    assert process.terminal.tolist() == [False, False, True]
    assert process.name(2) == "start"
    assert not check_episodic(process).finite
    limited = process.with_time_limit(5)
    assert average_episode_length(limited, uniform_policy(limited)) == 6
    assert episode_performance(limited, uniform_policy(limited)) == 2


def test_marginals_of_a_time_limited_process_sum_to_one_and_start_at_the_terminal_state():
    process, policy = limited_case(7, "sparse")
    rows = marginals(process, policy, 30)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-12)
    assert rows[0][process.terminal].sum() == 1
    rho = stationary_distribution(process, policy)
    np.testing.assert_allclose(distances(process, policy, 30), [total_variation(r, rho) for r in rows], atol=1e-13)


def test_policies_are_extended_to_terminal_null_and_layered_states():
    process = LearningProcess.from_gymnasium("FrozenLake-v1")
    gymnasium_policy = np.tile([0.1, 0.2, 0.3, 0.4], (16, 1))
    full = extend_policy(process, gymnasium_policy)
    assert full.shape == (process.n_states, 4)
    np.testing.assert_array_equal(full[:1600], np.tile(gymnasium_policy, (100, 1)))
    np.testing.assert_array_equal(extend_policy(process, full), full)
    perturbed = perturb(process, Perturbation(0.5))
    assert extend_policy(perturbed, full).shape == (process.n_states + 1, 4)
    with pytest.raises(PolicyError, match="shape"):
        extend_policy(process, gymnasium_policy[:10])  # states of mid-episode are missing


def test_periods_follow_supports_even_where_probabilities_underflow():
    # Episodes of 4 (almost surely) or, with probability 1e-400, of 5.
    rows = np.zeros((5, 5))
    rows[0, 1] = rows[3, 0] = rows[4, 3] = 1
    rows[1, 2] = 1
    rows[2, 3], rows[2, 4] = 1 - 1e-200, 1e-200
    process = LearningProcess([rows], np.zeros(5), np.eye(5)[0])
    for limited in (process, process.with_time_limit(9)):
        assert period(limited, np.ones((limited.n_states, 1))) == 1


def test_a_process_of_terminal_states_alone_has_a_time_limit_too():
    process = LearningProcess([[[0.5, 0.5], [0.5, 0.5]]], [0, 1], [1, 0]).with_time_limit(3)
    assert process.name(1) == "1"
    assert perturb(process, Perturbation(0.5)).n_states == 3


def test_a_fickle_passenger_is_not_in_the_model():
    with pytest.raises(ProcessError, match="fickle"):
        LearningProcess.from_gymnasium("Taxi-v4", fickle_passenger=True)
