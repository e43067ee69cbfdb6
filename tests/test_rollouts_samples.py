"""The sampler: what rollouts hold at perturbed times, against renumbered trajectories and exact marginals.

Frequencies are compared with exact probabilities at 5 standard errors: a false alarm in 6e-7 for each state.
"""

from functools import partial

import gymnasium
import numpy as np
import pytest

import steadyrl
from scripted import Dice, Faulty, same
from steadyrl import EpisodeLengths, Perturbation, Samples, collect_episodes, collect_samples
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import as_source
from steadyrl.errors import NonFiniteError, RolloutError
from steadyrl.exact import gallery
from steadyrl.lengths.confidence import mixing_time_or_never
from steadyrl.policies.networks import UniformPolicy
from steadyrl.rollouts.blocks import Block, Task
from steadyrl.rollouts.engine import Episode
from steadyrl.rollouts.samples import SampleCollector, SampleWork
from steadyrl.sspg.fresh import when_steady

PERTURBATIONS = {
    "none": None,
    "one step": Perturbation(0.3, recursive=False),
    "recursive": Perturbation(0.8),
    "detour": Perturbation.from_detour([0.5, 0.0, 0.5]),
}


def frequencies(samples, column, process):
    """Return how often each state of the perturbed process was seen at a time; null last."""
    states = np.where(samples.null[:, column], process.n_states, samples.observations[:, column])
    return np.bincount(states, minlength=process.n_states + 1) / len(samples)


@pytest.mark.parametrize("kind", PERTURBATIONS)
@pytest.mark.parametrize("name", ["two_terminals", "self_loops", "periodic"])
def test_samples_follow_the_exact_marginals_of_the_perturbed_process(name, kind):
    process, policy = getattr(gallery, name)()
    times, n = [1, 2, 3, 7, 20], 4000
    perturbation = PERTURBATIONS[kind]
    samples = collect_samples(process, policy, n, times, seed=2, perturbation=perturbation, backend="serial")
    if perturbation is None:
        exact = np.pad(steadyrl.marginals(process, policy, 20), ((0, 0), (0, 1)))
    else:
        perturbed = steadyrl.perturb(process, perturbation)
        behaviour = np.vstack([policy, np.tile(policy[:1], (perturbed.n_states - process.n_states, 1))])
        exact = steadyrl.marginals(perturbed, behaviour, 20)
        nulls = exact[:, process.n_states :].sum(axis=1, keepdims=True)
        exact = np.hstack([exact[:, : process.n_states], nulls])
    for column, t in enumerate(times):
        error = np.sqrt(exact[t] * (1 - exact[t]) / n)
        assert (np.abs(frequencies(samples, column, process) - exact[t]) <= 5 * error + 1e-12).all(), t


def test_returns_from_a_state_and_action_average_to_the_action_values():
    process, policy = gallery.wrong_way()
    samples = collect_samples(process, policy, 4000, [1, 5, 9], seed=3, backend="serial")
    exact = steadyrl.action_values(process, policy)
    acting = ~samples.terminal & ~samples.null
    for s in range(process.n_states):
        for a in range(process.n_actions):
            found = samples.returns[acting & (samples.observations == s) & (samples.actions == a)]
            if len(found) > 30:
                assert abs(found.mean() - exact[s, a]) <= 5 * found.std(ddof=1) / np.sqrt(len(found)) + 1e-9
    assert (samples.returns[samples.terminal] == 0).all()
    assert process.terminal[samples.observations[samples.terminal]].all()


def test_renumbering_on_the_fly_is_renumbering():
    # One rollout through the collector, against steadyrl.renumber on the recorded trajectory with the same detours.
    rng = np.random.default_rng(4)
    lengths = rng.integers(1, 6, 12)
    perturbation = Perturbation(0.6)
    source = as_source(Dice)
    codecs = observation_codec(Dice().observation_space), action_codec(Dice().action_space)
    work = SampleWork(1, tuple(range(1, 40)), perturbation, 12)
    task = Task(source, *codecs, UniformPolicy(None), work, 9, 1, "gymnasium", 100)
    collector = SampleCollector(Block.of(task, 0), work)
    ends, path = [True], [(0, 0)]
    for i, length in enumerate(lengths):
        assert collector.next(0) is not None
        observations = np.column_stack([np.full(length + 1, i), np.arange(1, length + 2)]).astype(float)
        collector.finish(0, Episode(observations, np.zeros(length, int), np.ones(length), True, False))
        ends += [False] * length + [True]
        path += [(i, age) for age in range(1, length + 2)]

    class Recorded(Perturbation):
        """The detours that the collector drew, in the same order from the same generator."""

        def draw(self, count, *, rng):
            return np.array([int(perturbation.draw(1, rng=rng)[0]) for _ in range(count)])

    times = steadyrl.renumber(ends, Recorded(0.5), rng=Block.of(task, 0).rng)
    arrays = collector.arrays()
    expected = np.zeros((40, 2), dtype=int)
    for time, place in zip(times, path, strict=True):
        if time < 40:
            expected[time] = place
    np.testing.assert_array_equal(arrays["ages"][0], expected[1:, 1])
    seen = arrays["ages"][0] > 0
    np.testing.assert_array_equal(arrays["observations"][0, seen, 0], expected[1:][seen, 0])


def test_no_null_step_is_simulated_and_the_first_episode_has_its_detour():
    steps = []

    class Counting(Dice):
        def step(self, action):
            steps.append(1)
            return super().step(action)

    perturbation = Perturbation.from_detour([0] * 1000 + [1])  # a thousand null steps before every episode
    samples = collect_samples(Counting, "uniform", 5, [1, 1000, 1001], perturbation=perturbation, backend="serial")
    assert samples.null.tolist() == [[True, True, False]] * 5
    assert (samples.ages[:, 2] == 1).all()
    again = samples.episode_lengths[0, 0]  # the first episode, run once more to see whether it repeats
    assert len(steps) == samples.episode_lengths.sum() + again


def test_first_episodes_are_a_fair_sample_of_lengths():
    # Dice: mean 21, standard deviation 19; 5 standard errors.
    samples = collect_samples(Dice, "uniform", 1500, [30], seed=1, episodes=2, backend="serial")
    assert samples.episode_lengths.shape == (1500, 2)
    assert abs(samples.average_episode_length - 22) < 5 * 19 / np.sqrt(3000)


N = 50


def sweep(rollouts, times, **options):
    perturbation = Perturbation.for_average_episode_length(N)
    make = {"n": N}
    return collect_samples(
        "steadyrl/StateSweep-v0", "uniform", rollouts, times, perturbation=perturbation, make_arguments=make, **options
    )


@pytest.mark.parametrize("backend", ["auto", "serial"])
def test_jumping_and_stepping_follow_the_exact_marginals_of_the_sweep(backend):
    process = gallery.state_sweep(N)[0]
    times, n = [1, N, 3 * N - 1, 3 * N], 400_000 if backend == "auto" else 3000
    samples = sweep(n, times, seed=5, backend=backend)
    assert ("jump" in samples.notes[0]) == (backend == "auto")
    perturbed = steadyrl.perturb(process, Perturbation.for_average_episode_length(N))
    exact = steadyrl.marginals(perturbed, np.ones((N + 1, 1)), 3 * N)
    for column, t in enumerate(times):
        error = np.sqrt(exact[t] * (1 - exact[t]) / n)
        assert (np.abs(frequencies(samples, column, process) - exact[t]) <= 5 * error + 1e-12).all(), t


def test_samples_whose_block_size_is_a_number_of_numpy_are_saved(tmp_path):
    sweep(8, [60], block_size=np.int64(4), out=tmp_path / "a.npz")
    sweep(8, [60], block_size=4, out=tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_jumping_knows_ages_returns_and_ends():
    jumped, stepped = sweep(2000, [3 * N], seed=5), sweep(500, [3 * N], seed=5, backend="serial")
    for samples in (jumped, stepped):
        here = ~samples.null
        assert (samples.observations[here] == samples.ages[here] % N).all()
        assert (samples.terminal == (samples.ages == N)).all()
        to_go = (N * (N - 1) - samples.ages * (samples.ages + 1)) / 2  # the states still to come
        assert (samples.returns[here & ~samples.terminal] == to_go[here & ~samples.terminal]).all()
        assert samples.average_episode_length == N
    assert {a.dtype for a in (jumped.ages, stepped.ages)} == {np.dtype(np.int32)}
    for name in ("observations", "actions", "returns", "episode_lengths"):
        assert getattr(jumped, name).dtype == getattr(stepped, name).dtype


def test_samples_round_trip(tmp_path):
    samples = collect_samples("CartPole-v1", "uniform", 20, [5, 50], backend="serial")
    samples.save(tmp_path / "a.npz")
    loaded = Samples.load(tmp_path / "a.npz")
    assert same(samples, loaded)
    assert loaded.provenance["times"] == [5, 50]


class Numbered(gymnasium.Env):
    """Shows numbers from a first one on."""

    def __init__(self, space, first):
        self.observation_space, self.action_space, self.first = space, gymnasium.spaces.Discrete(2, start=2**40), first

    def shown(self):
        number = self.first + self.steps
        return number if self.observation_space.shape == () else np.array([number], self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(), {}

    def step(self, action):
        self.steps += 1
        return self.shown(), 0.0, self.steps == 3, False, {}


@pytest.mark.parametrize("first", [2**40, -(2**40)])
def test_large_numbers_of_states_and_actions_are_kept(first):
    make = partial(Numbered, gymnasium.spaces.Discrete(4, start=first), first)
    found = collect_samples(make, "uniform", 2, [1, 2], backend="serial")
    assert found.observations.tolist() == [[first, first + 1]] * 2
    assert (found.actions >= 2**40).all()


@pytest.mark.parametrize(("first", "dtype"), [(2**53 + 1, np.int64), (2**63 - 9, np.int64), (2**64 - 9, np.uint64)])
def test_whole_numbers_that_samples_cannot_keep_exactly_are_refused(first, dtype):
    """They became others: 2**64 - 9 was saved as 0."""
    make = partial(Numbered, gymnasium.spaces.Box(0, np.iinfo(dtype).max, (1,), dtype), first)
    with pytest.raises(NonFiniteError, match=r"too large to be kept exactly as u?int64"):
        collect_samples(make, "uniform", 2, [1, 2], backend="serial")


class Counting(gymnasium.Env):
    """Episodes of normal lengths; counts the steps that it is asked for, over all copies."""

    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)
    asked = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = max(1, round(self.np_random.normal(39, 13)))
        return 0, {}

    def step(self, action):
        Counting.asked += 1
        self._left -= 1
        return 0, 1.0, self._left == 0, False, {}


def test_steps_are_those_of_the_environment_and_the_earlier_t_star_is_the_cheaper(tmp_path):
    episodes = collect_episodes(Counting, "uniform", 5_000, backend="serial")
    lengths = EpisodeLengths.from_gymnasium(episodes.lengths)
    perturbation = Perturbation.for_average_episode_length(lengths.mean)
    cost = {}
    for way in (None, perturbation):
        time = int(mixing_time_or_never(lengths, 0.01, 10_000, way))
        Counting.asked = 0
        samples = collect_samples(Counting, "uniform", 1500, [time], backend="serial", perturbation=way)
        assert samples.steps == Counting.asked > 0
        cost[way] = time, samples.steps / (~samples.null & ~samples.terminal).sum()
    (raw, dear), (perturbed, cheap) = cost[None], cost[perturbation]
    assert raw > perturbed + 20
    # Each costs its t* and the rest of an episode, which is the same; the perturbed process begins null, which saves
    # it a part of a detour more. A standard error is about 0.6 steps.
    assert raw - perturbed - 3 < dear - cheap < raw - perturbed + perturbation.mean_detour
    assert when_steady(lengths, 0.01).perturbation == perturbation
    samples.save(tmp_path / "a.npz")
    assert Samples.load(tmp_path / "a.npz").steps == samples.steps


def test_rollouts_that_fail_are_left_out():
    # Faults happen in a rollout's first episode, the one with its seed.
    collect = partial(
        collect_samples, policy="uniform", rollouts=60, times=[50], seed=5, backend="serial", block_size=10
    )
    samples = collect(partial(Faulty, "raise"), on_error="skip")
    assert len(samples) + len(samples.skipped) == 60
    assert samples.skipped
    assert (samples.ages > 0).all()


@pytest.mark.parametrize("times", [[], [0, 5], [5, 5], [2.5], [[1, 2]], np.array([9, 5], dtype=np.uint8)])
def test_bad_times_are_named(times):
    with pytest.raises(RolloutError, match="times"):
        collect_samples("CartPole-v1", "uniform", 2, times)


def test_marginal_means_from_ages_agree_with_rollouts():
    # E[s_t] = sum_k v(t - k) E[s_k 1(T >= k)]: single episodes against rollouts, both sampled, at 5 standard errors.
    t = 30
    episodes = collect_episodes("CartPole-v1", "uniform", 4000, seed=1, backend="serial")
    samples = collect_samples("CartPole-v1", "uniform", 2000, [t], seed=2, backend="serial")
    f = np.bincount(episodes.lengths + 1, minlength=t + 1) / len(episodes)
    v = np.zeros(t + 1)
    v[0] = 1
    for time in range(1, t + 1):
        v[time] = f[1 : time + 1] @ v[time - 1 :: -1][:time]
    ages = np.arange(1, t + 1)
    mean = v[t - ages] @ (episodes.ages.total[:t] / len(episodes))
    second = v[t - ages] @ (episodes.ages.total_squares[:t] / len(episodes))
    sampled = samples.observations[:, 0].astype(float)
    error = np.sqrt(second) * np.sqrt(1 / 2000 + 30 / 4000)  # a renewal sum reuses each episode at up to t ages
    assert (np.abs(sampled.mean(axis=0) - mean) < 5 * error).all()
