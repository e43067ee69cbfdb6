"""The estimator against exact gradients: unbiased with the factor, off by exactly E[T] - 1 without it.

Each number of a gradient is compared at 5 standard errors: a false alarm in 6e-7 for each of fewer than 200 numbers in
all, so one in 10,000 runs with other seeds. Seeds are fixed.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from steadyrl import (
    LearningProcess,
    Perturbation,
    Samples,
    average_episode_length,
    classic_gradient,
    collect_episodes,
    collect_samples,
    gradient_bias,
    mixing_time,
    policy_gradient,
    softmax_policy,
    state_values,
    steady_state_gradient,
    stream_episode_length,
)
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.errors import LengthsError, PolicyError
from steadyrl.exact import gallery
from steadyrl.policies.modules import CategoricalPolicy, SoftmaxTable
from steadyrl.sspg.recent_episodes import RecentEpisodes

SIGMAS = 5.0


def winding_walk():
    """Six states, two actions, several ways to the end, rewards on the way; episodes of very different lengths."""
    rng = np.random.default_rng(57)
    n = 6
    transitions = np.zeros((2, n, n))
    for a in range(2):
        for s in range(1, n):
            transitions[a, s] = rng.dirichlet(np.ones(n) * 0.5)
            transitions[a, s, 0] += 0.05
        transitions[a, 0, 1:4] = [0.5, 0.3, 0.2]
    transitions /= transitions.sum(axis=2, keepdims=True)
    rewards = rng.normal(size=n) + 0.5  # values away from zero, so that a baseline helps
    initial = np.eye(n)[0]
    return LearningProcess(transitions, rewards, initial), rng.normal(size=(n, 2))


def drawn(process, logits, rollouts, *, perturbation=None, times=None, seed=0):
    policy = SoftmaxTable(logits)
    if times is None:
        times = [mixing_time(process, softmax_policy(logits), tolerance=1e-4)]
    samples = collect_samples(
        process, policy.numpy(), rollouts, times, perturbation=perturbation, backend="serial", seed=seed
    )
    return policy, samples


def agree(found, truth, sigmas=SIGMAS):
    gap = np.abs(found.vector - truth.ravel())
    assert (gap <= sigmas * found.standard_error + 1e-12).all(), (gap / found.standard_error).max()


@pytest.mark.parametrize("make", [winding_walk, lambda: (gallery.two_terminals()[0], np.array([[0.3, 0]] * 4))])
def test_the_estimate_is_the_true_gradient_and_without_the_factor_off_by_exactly_it(make):
    process, logits = make()
    policy, samples = drawn(process, logits, 12_000)
    length = average_episode_length(process, softmax_policy(logits))
    found = steady_state_gradient(policy, samples, length)
    truth = policy_gradient(process, logits)
    agree(found, truth)
    assert np.linalg.norm(found.standard_error) < 0.25 * np.linalg.norm(truth)  # or the comparison would say little
    without = steady_state_gradient(policy, samples, length, episode_length_factor=False)
    np.testing.assert_allclose(without.vector * (length - 1), found.vector, rtol=1e-12)
    np.testing.assert_allclose(without.standard_error * (length - 1), found.standard_error, rtol=1e-12)
    assert length - 1 > 1.4  # the factor is felt: without it the estimate is far off
    seen = without.standard_error > 0
    assert (np.abs(without.vector - truth.ravel())[seen] / without.standard_error[seen]).max() > 2 * SIGMAS


def test_a_state_value_baseline_keeps_it_unbiased_and_makes_it_less_noisy():
    process, logits = winding_walk()
    pi = softmax_policy(logits)
    policy, samples = drawn(process, logits, 8_000)
    length = average_episode_length(process, pi)
    values = state_values(process, pi)
    plain = steady_state_gradient(policy, samples, length)
    better = steady_state_gradient(policy, samples, length, baseline=lambda states: values[states])
    as_numbers = steady_state_gradient(policy, samples, length, baseline=values[samples.observations])
    agree(better, policy_gradient(process, logits))
    np.testing.assert_allclose(better.vector, as_numbers.vector, rtol=1e-12)
    assert np.linalg.norm(better.standard_error) < 0.9 * np.linalg.norm(plain.standard_error)


def test_null_states_are_left_out_and_the_length_is_the_raw_processs():
    process, logits = winding_walk()
    length = average_episode_length(process, softmax_policy(logits))
    policy, samples = drawn(process, logits, 8_000, perturbation=Perturbation(0.8), times=[40, 50])
    assert samples.null.mean() > 0.2
    agree(steady_state_gradient(policy, samples, length), policy_gradient(process, logits))
    assert steady_state_gradient(policy, samples, length).samples == int((~samples.null & ~samples.terminal).sum())


def test_several_times_of_a_rollout_count_as_one_observation():
    # The same states twice: the error must not shrink.
    process, logits = winding_walk()
    policy, samples = drawn(process, logits, 4000)
    columns = ("observations", "actions", "returns", "ages", "terminal")
    twice = replace(samples, **{name: np.repeat(getattr(samples, name), 2, axis=1) for name in columns})
    once, again = (steady_state_gradient(policy, each, 5.0) for each in (samples, twice))
    np.testing.assert_allclose(once.vector, again.vector, rtol=1e-12)
    np.testing.assert_allclose(once.standard_error, again.standard_error, rtol=1e-12)


def test_the_standard_error_is_that_of_repeated_estimates():
    process, logits = winding_walk()
    policy, samples = drawn(process, logits, 60 * 200, times=[8])
    found = []
    for part in np.split(np.arange(len(samples)), 60):
        columns = ("observations", "actions", "returns", "ages", "terminal")
        few = replace(samples, **{name: getattr(samples, name)[part] for name in columns})
        found.append(steady_state_gradient(policy, few, 5.0))
    spread = np.std([each.vector for each in found], axis=0, ddof=1)
    stated = np.sqrt(np.mean([each.standard_error**2 for each in found], axis=0))
    seen = stated > 0
    # A standard deviation of 60 has a relative error of 1 / sqrt(118) = 9%.
    assert (np.abs(spread[seen] / stated[seen] - 1) < SIGMAS * 0.1).all()


def discounted_samples(process, logits, gamma, episodes):
    """Whole episodes as samples, one a rollout, with returns discounted to the end of the episode."""
    policy = SoftmaxTable(logits)
    found = collect_episodes(process, policy.numpy(), episodes, backend="serial", trajectories=True, seed=3)
    trajectories, width = found.trajectories, int(found.lengths.max())
    shape = (episodes, width)
    states, actions, ages = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    returns = np.zeros(shape)
    for i, length in enumerate(found.lengths):
        seen, taken, rewards = trajectories.of(i)
        to_go = np.zeros(length + 1)
        for t in range(length - 1, -1, -1):
            to_go[t] = rewards[t] + gamma * to_go[t + 1]
        states[i, :length] = seen[:length].argmax(axis=1)
        actions[i, :length], returns[i, :length] = taken, to_go[:length]
        ages[i, :length] = np.arange(1, length + 1)
    times = np.arange(1, width + 1)
    lengths, totals = found.lengths[:, None], found.returns[:, None]
    nothing = np.zeros(shape, dtype=bool)
    return policy, Samples(times, states, actions, returns, ages, nothing, lengths, totals)


def test_a_constant_discount_biases_the_direction_by_what_classic_gradient_says():
    process, logits = winding_walk()
    gamma = 0.5
    length = average_episode_length(process, softmax_policy(logits))
    policy, samples = discounted_samples(process, logits, gamma, 6_000)
    found = steady_state_gradient(policy, samples, length, episode_length_factor=False)
    discount = gamma * ~process.terminal
    classic = classic_gradient(process, logits, discount)
    # The classic average is over all states, and terminal ones, a share 1/E[T], add nothing.
    agree(replace(found, vector=found.vector * (1 - 1 / length)), classic)
    truth = policy_gradient(process, logits).ravel()
    cosine = found.vector @ truth / np.linalg.norm(found.vector) / np.linalg.norm(truth)
    bias = gradient_bias(process, logits, discount)
    assert bias.angle > 10
    assert np.degrees(np.arccos(cosine)) == pytest.approx(bias.angle, abs=3)
    undiscounted = steady_state_gradient(*discounted_samples(process, logits, 1.0, 6_000), length)
    agree(undiscounted, policy_gradient(process, logits))


def test_networks_on_finite_processes_agree_with_the_exact_gradient_through_their_score():
    process, _ = winding_walk()
    n = process.n_states
    policy = CategoricalPolicy(observation_codec(Discrete(n)), action_codec(Discrete(2)), hidden=(4,), seed=1).double()
    with torch.no_grad():
        policy.layers[-1].weight *= 100  # away from the uniform policy
    states = np.arange(n)
    probabilities = policy.outputs(policy.features(states)).softmax(dim=1).detach().numpy()
    score = np.zeros((n, 2, sum(p.numel() for p in policy.parameters())))
    for s in states:
        for a in range(2):
            log_prob = policy.log_prob(states[s : s + 1], np.array([a])).sum()
            score[s, a] = torch.cat([g.ravel() for g in torch.autograd.grad(log_prob, list(policy.parameters()))])
    truth = policy_gradient(process, policy=probabilities, score=score)
    samples = collect_samples(process, policy.numpy(), 8000, [30, 45], backend="serial", seed=2)
    found = steady_state_gradient(policy, samples, average_episode_length(process, probabilities))
    agree(found, truth)
    assert set(found.by_parameter) == {name for name, _ in policy.named_parameters()}
    assert found.by_parameter["layers.0.weight"].shape == (4, n)


def test_bad_input_is_refused():
    process, logits = winding_walk()
    policy, samples = drawn(process, logits, 10)
    with pytest.raises(PolicyError, match="log_prob"):
        steady_state_gradient(policy.numpy(), samples, 5.0)
    with pytest.raises(LengthsError, match="above 1"):
        steady_state_gradient(policy, samples, 1.0)
    with pytest.raises(LengthsError, match="null or terminal"):
        steady_state_gradient(policy, replace(samples, ages=0 * samples.ages), 5.0)
    with pytest.raises(PolicyError, match="baseline has shape"):
        steady_state_gradient(policy, samples, 5.0, baseline=np.zeros(3))


# E[T] of streams


def streams(lengths, steps, copies, rng):
    """Renewal streams at steady state, cut off on both sides: [steps, copies], whether a transition ends an episode."""
    ends = np.zeros((steps, copies), dtype=bool)
    values, probabilities = np.array(list(lengths)), np.array(list(lengths.values()))
    for copy in range(copies):
        first = rng.choice(values, p=values * probabilities / (values @ probabilities))  # length-biased
        t = int(rng.integers(1, first + 1)) - 1  # what is left of it
        while t < steps:
            ends[t, copy] = True
            t += int(rng.choice(values, p=probabilities))
    return ends


class Shaped(torch.nn.Module):
    """A policy whose log-probabilities are handed on in another shape."""

    def __init__(self, inner, shaped):
        super().__init__()
        self.inner, self.shaped = inner, shaped

    def log_prob(self, observations, actions):
        return self.shaped(self.inner.log_prob(observations, actions))


@pytest.mark.parametrize(
    "shaped",
    [
        lambda found: found[:, None],  # a column, which broadcasting would multiply with the returns of all samples
        lambda found: found[None],
        lambda found: found.sum(),
        lambda found: torch.stack([found, found], dim=1),
        lambda found: found.detach(),
        lambda found: found.tolist(),
        lambda found: found * float("nan"),
        lambda found: found - float("inf"),
        lambda found: None,
    ],
)
def test_log_prob_is_one_finite_number_with_a_gradient_for_each_sample_or_refused(shaped):
    process, logits = winding_walk()
    policy, samples = drawn(process, logits, 300)
    with pytest.raises(PolicyError, match="log_prob"):
        steady_state_gradient(Shaped(policy, shaped), samples, samples.average_episode_length)


@pytest.mark.parametrize(
    "baseline",
    [
        "zero",
        float("nan"),
        lambda states: np.zeros((len(states), 1)),
        lambda states: torch.zeros(len(states), 1),
        lambda states: np.zeros(3),
        lambda states: np.full(len(states), np.nan),
        lambda states: None,
        lambda: 0.0,
        torch.nn.Linear(1, 1),
        torch.zeros(300, 1, requires_grad=True),
        np.ma.masked_array(np.zeros((300, 1)), mask=True),
    ],
)
def test_a_baseline_is_one_finite_number_for_each_sample_or_refused(baseline):
    process, logits = winding_walk()
    policy, samples = drawn(process, logits, 300)
    with pytest.raises(PolicyError, match="baseline"):
        steady_state_gradient(policy, samples, samples.average_episode_length, baseline=baseline)


def test_the_values_of_a_torch_critic_may_have_gradients_and_a_baseline_may_be_one_number():
    process, logits = winding_walk()
    policy, samples = drawn(process, logits, 300)
    ones, length = torch.nn.Parameter(torch.ones(6)), samples.average_episode_length
    of_critic = steady_state_gradient(policy, samples, length, baseline=lambda states: ones[states])
    assert np.array_equal(of_critic.vector, steady_state_gradient(policy, samples, length, baseline=1).vector)


@pytest.mark.parametrize("length", ["3.5", None, [3.0], np.array([3.0, 4.0]), 3j, True, 10**400])
def test_an_episode_length_that_is_no_number_is_refused(length):
    process, logits = winding_walk()
    policy, samples = drawn(process, logits, 300)
    with pytest.raises(LengthsError, match="average_episode_length is"):
        steady_state_gradient(policy, samples, length)


def test_samples_and_the_factor_are_checked():
    process, logits = winding_walk()
    policy, samples = drawn(process, logits, 300)
    with pytest.raises(LengthsError, match="samples is None"):
        steady_state_gradient(policy, None, 3.0)
    with pytest.raises(LengthsError, match="episode_length_factor is 'no'"):
        steady_state_gradient(policy, samples, 3.0, episode_length_factor="no")


def test_steps_over_ends_is_right_where_the_mean_of_finished_lengths_is_not():
    rng = np.random.default_rng(0)
    lengths = {4: 0.5, 80: 0.5}  # E[T] = 42
    rates, finished, covered = [], [], 0
    for _ in range(300):
        ends = streams(lengths, 100, 32, rng)
        found = stream_episode_length(ends)
        rates.append(1 / found.value)
        covered += found.low <= 42 <= found.high
        whole = [np.diff(np.flatnonzero(column)) for column in ends.T]
        finished.append(np.concatenate(whole).mean())
    error = np.std(rates, ddof=1) / np.sqrt(300)
    assert abs(np.mean(rates) - 1 / 42) < SIGMAS * error  # ends over steps is unbiased for 1/E[T]
    assert np.mean(finished) < 30  # the long ones are cut off
    # 95% intervals: 285 of 300, standard deviation 3.8; the interval is approximate, so 6 of them.
    assert covered > 285 - 6 * 3.8


def test_streams_without_an_end_only_say_that_episodes_are_long():
    found = stream_episode_length(np.zeros((50, 4), dtype=bool))
    assert found.value == found.high == np.inf
    assert found.low == pytest.approx(200 / -np.log(0.05))  # (1 - 1/E[T])^200 = 0.05, nearly
    assert stream_episode_length(np.zeros((50, 4), dtype=bool), level=0.5).low > 4 * found.low
    for level in (0, 1, 2, np.nan, "a"):
        with pytest.raises(LengthsError, match="level is"):
            stream_episode_length(np.zeros((50, 4), dtype=bool), level=level)
    with pytest.raises(LengthsError, match="booleans"):
        stream_episode_length(np.zeros((50, 4)))


def test_copies_that_agree_by_chance_do_not_make_the_interval_a_point():
    # T = 20 always, 16 steps: a copy sees one end or none, and often all see one. 95% asked, 300 repeats: 5 deviations.
    rng = np.random.default_rng(2)
    for copies in (2, 8):
        found = [stream_episode_length(streams({20: 1.0}, 16, copies, rng)) for _ in range(300)]
        assert sum(one.low <= 20 <= one.high for one in found) > 285 - 5 * 3.8


def test_cutting_episodes_short_does_not_lengthen_them():
    # T = 10 always; half of the copies are cut now and then, which takes ends away but not steps.
    rng = np.random.default_rng(1)
    running, age = RecentEpisodes(8), np.ones(8, dtype=np.int64)
    restart = np.zeros(8, dtype=bool)
    steps = ends_seen = 0
    for _ in range(60):
        ages, ends = np.empty((16, 8), dtype=np.int64), np.empty((16, 8), dtype=bool)
        for t in range(16):
            age = np.where(restart, 1, age + 1)
            ages[t], ends[t] = age, age == 10
            restart = ends[t] | (rng.random(8) < 0.1) & (np.arange(8) < 4)
        running.add(ages, ends, np.ones((16, 8)))
        steps, ends_seen = steps + ends.size, ends_seen + int(ends.sum())
    assert running.average_episode_length == pytest.approx(10, rel=1e-9)
    assert running.reward_rate == pytest.approx(1)
    assert steps / ends_seen > 11
