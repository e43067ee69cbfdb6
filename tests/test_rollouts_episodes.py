"""Episodes: what is counted, in which order, and what every kind of space and policy does to it."""

from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from scripted import Dice, Spaces, same
from steadyrl import Episodes, collect_episodes
from steadyrl.common.storage import save_arrays
from steadyrl.environments.seeding import episode_seeds
from steadyrl.errors import FileFormatError, PolicyError, RolloutError
from steadyrl.lengths.age_sums import count_ages
from steadyrl.rollouts.episodes import merge


@pytest.fixture(scope="module")
def cartpole():
    return collect_episodes("CartPole-v1", "uniform", 600, seed=1, backend="serial", trajectories=True)


def test_every_episode_can_be_replayed_from_its_seed_and_actions(cartpole):
    env = gymnasium.make("CartPole-v1")
    for i in (0, 1, 511, 512, 599):
        observations, actions, rewards = cartpole.trajectories.of(i)
        seen = [env.reset(seed=int(cartpole.seeds[i]))[0]]
        for action, reward in zip(actions, rewards, strict=True):
            observation, paid, terminated, truncated, _ = env.step(int(action))
            seen.append(observation)
            assert paid == reward
        assert (terminated, truncated) == (cartpole.terminated[i], cartpole.truncated[i])
        assert len(actions) == cartpole.lengths[i]
        assert rewards.sum() == cartpole.returns[i]
        np.testing.assert_array_equal(seen, observations)


def test_sums_at_each_age_are_those_of_the_trajectories_the_terminal_state_included(cartpole):
    ages = cartpole.lengths.max() + 1
    count, total, squares = np.zeros(ages), np.zeros((ages, 4)), np.zeros((ages, 4))
    for i in range(len(cartpole)):
        observations = cartpole.trajectories.of(i)[0]
        count[: len(observations)] += 1
        total[: len(observations)] += observations
        squares[: len(observations)] += observations**2
    np.testing.assert_array_equal(cartpole.ages.count, count)
    np.testing.assert_allclose(cartpole.ages.mean, total / count[:, None], atol=1e-12)
    np.testing.assert_allclose(cartpole.ages.second_moment, squares / count[:, None], atol=1e-12)
    assert cartpole.ages.count.sum() == (cartpole.lengths + 1).sum()  # T = l + 1


def test_ages_are_counted_from_lengths():
    assert count_ages(np.array([1, 3])).tolist() == [2, 2, 1, 1]


def test_terminated_and_truncated_are_kept_apart():
    episodes = collect_episodes(
        "CartPole-v1", "uniform", 300, seed=1, backend="serial", make_arguments={"max_episode_steps": 20}
    )
    assert episodes.truncated.any()
    assert episodes.terminated.any()
    assert (episodes.lengths[episodes.truncated] == 20).all()
    assert (episodes.lengths[~episodes.truncated] <= 20).all()
    assert (episodes.terminated | episodes.truncated).all()


def test_no_two_episodes_share_a_seed(cartpole):
    assert len(set(cartpole.seeds.tolist())) == len(cartpole)
    assert len(np.unique(episode_seeds(5, 10**6, 200_000))) == 200_000


def test_more_episodes_begin_with_the_same_whole_blocks(cartpole):
    more = collect_episodes("CartPole-v1", "uniform", 1000, seed=1, backend="serial")
    np.testing.assert_array_equal(more.lengths[:512], cartpole.lengths[:512])
    other = collect_episodes("CartPole-v1", "uniform", 600, seed=2, backend="serial")
    assert (other.lengths != cartpole.lengths).any()


# Dice has lengths 2 and 40 with probability 1/2: mean 21, standard deviation 19. The mean of n = 4096 lies within
# 5 * 19 / sqrt(4096) = 1.5 of 21 but for a chance of 6e-7.
def test_the_first_to_finish_are_short_but_those_started_are_fair():
    n, copies = 4096, 64
    envs = gymnasium.vector.SyncVectorEnv([Dice] * copies)
    envs.reset(seed=0)
    finished, lengths = [], np.zeros(copies, dtype=int)
    while len(finished) < copies:
        _, _, terminated, _, _ = envs.step(np.zeros(copies, dtype=int))
        lengths += 1
        finished += lengths[terminated].tolist()
        lengths[terminated] = -1  # the next step is the reset
    assert np.mean(finished[:copies]) < 10  # far below 21: long episodes are still under way
    episodes = collect_episodes(Dice, "uniform", n, seed=0, backend="serial", block_size=64)
    assert abs(episodes.lengths.mean() - 21) < 1.5
    assert len(episodes) == n


# Small blocks are where a biased rule would show: here the mean over 500 blocks of 8 is tested at 5 standard errors.
def test_every_block_is_fair_however_small():
    episodes = collect_episodes(Dice, "uniform", 4000, seed=1, backend="serial", block_size=8)
    means = episodes.lengths.reshape(-1, 8).mean(axis=1)
    assert abs(means.mean() - 21) < 5 * means.std() / np.sqrt(len(means))


OBSERVATIONS = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=2),
    "dict": spaces.Dict({"position": spaces.Box(-1, 1, (2,)), "door": spaces.Discrete(3)}),
    "binary": spaces.MultiBinary(4),
}
ACTIONS = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "half bounded": spaces.Box(np.array([0, -np.inf, -1], np.float32), np.array([np.inf, 3, 1], np.float32)),
    "unbounded": spaces.Box(-np.inf, np.inf, (1,), np.float64),
    "discrete": spaces.Discrete(3, start=-1),
    "multi-discrete": spaces.MultiDiscrete([2, 5]),
}


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_space_is_flattened_and_every_action_is_valid(observation, action):
    make = partial(Spaces, OBSERVATIONS[observation], ACTIONS[action])
    episodes = collect_episodes(make, "uniform", 6, seed=0, backend="serial", trajectories=True)
    size = spaces.flatdim(OBSERVATIONS[observation])
    assert episodes.ages.mean.shape[1] == size
    assert episodes.trajectories.actions.shape[1:] == ACTIONS[action].shape
    flat = spaces.flatten_space(OBSERVATIONS[observation])
    for row in episodes.trajectories.observations[:5]:
        assert flat.contains(row.astype(flat.dtype))


def test_uniform_actions_are_uniform():
    make = partial(Spaces, OBSERVATIONS["box"], ACTIONS["discrete"])
    episodes = collect_episodes(make, "uniform", 300, seed=0, backend="serial", trajectories=True)
    counts = np.bincount(episodes.trajectories.actions + 1, minlength=3)
    n = counts.sum()
    # Each count is binomial(n, 1/3): 5 standard deviations, a false alarm in 6e-7.
    assert (np.abs(counts - n / 3) < 5 * np.sqrt(n * 2 / 9)).all()


def test_gaussian_actions_are_recorded_as_drawn_and_sent_within_bounds():
    make = partial(Spaces, OBSERVATIONS["box"], ACTIONS["box"])  # which refuses actions outside
    episodes = collect_episodes(make, "gaussian", 50, seed=0, backend="serial", trajectories=True)
    assert (np.abs(episodes.trajectories.actions) > 1).any()


class Alternating:
    """A policy of the user's own: a function of the observation and of the block's generator."""

    def act(self, observations, rng):
        assert observations.ndim == 2
        return (observations[:, 0] > 0).astype(int) ^ rng.integers(0, 2, len(observations))


def test_any_object_with_act_is_a_policy():
    one = collect_episodes("CartPole-v1", Alternating(), 300, seed=1, backend="serial")
    two = collect_episodes("CartPole-v1", Alternating(), 300, seed=1, backend="processes", workers=2)
    assert same(one, two)
    assert one.provenance["policy"] == "Alternating"


def test_files_round_trip_and_merge(cartpole, tmp_path):
    cartpole.save(tmp_path / "a.npz")
    loaded = Episodes.load(tmp_path / "a.npz")
    assert same(loaded, cartpole)
    assert loaded.provenance["command"].startswith("steadyrl collect CartPole-v1 --episodes 600")
    assert loaded.provenance["versions"]["gymnasium"] == gymnasium.__version__
    other = collect_episodes("CartPole-v1", "uniform", 100, seed=2, backend="serial", trajectories=True)
    both = loaded.merge(other)
    assert len(both) == 700
    assert both.trajectories.of(650)[0].tolist() == other.trajectories.of(50)[0].tolist()
    np.testing.assert_array_equal(both.ages.count, count_ages(both.lengths))
    np.testing.assert_allclose(both.ages.total[0], cartpole.ages.total[0] + other.ages.total[0])
    both.save(tmp_path / "b.npz")
    assert same(Episodes.load(tmp_path / "b.npz"), both)
    assert not {"seed", "total", "command"} & set(both.provenance)  # no single command makes both again
    assert [run["command"] for run in both.provenance["merged"]] == [
        part.provenance["command"] for part in (cartpole, other)
    ]


def test_merging_the_same_or_different_things_is_an_error(cartpole):
    with pytest.raises(RolloutError, match="same seed"):
        cartpole.merge(cartpole)
    with pytest.raises(RolloutError, match="differ in environment"):
        cartpole.merge(collect_episodes("Acrobot-v1", "uniform", 4, seed=9, backend="serial"))
    without = collect_episodes("CartPole-v1", "uniform", 4, seed=9, backend="serial")
    for one, other in ((cartpole, without), (without, cartpole)):
        with pytest.raises(RolloutError, match="some of these runs have trajectories"):
            one.merge(other)


def test_files_without_some_of_their_arrays_are_recognised(tmp_path):
    save_arrays(tmp_path / "a.npz", "episodes", {"provenance": {}, "skipped": []}, {"lengths": np.ones(3)})
    with pytest.raises(FileFormatError, match=r"does not hold whole episodes \('returns'\)"):
        Episodes.load(tmp_path / "a.npz")


def test_wide_observations_are_not_summed_unless_asked_for():
    wide = partial(Spaces, spaces.Box(0.0, 1.0, (10_001,), np.float32), spaces.Discrete(2))
    found = collect_episodes(wide, "uniform", 2, backend="serial")
    assert found.ages is None
    assert "10,001 values (observation_sums=True keeps them)" in found.notes[0]
    assert collect_episodes(wide, "uniform", 2, backend="serial", observation_sums=True).ages.total.shape[1] == 10_001


def test_damaged_files_are_recognised(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK not quite")
    with pytest.raises(FileFormatError, match="damaged"):
        Episodes.load(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPole-v1", "uniform", 0), "episodes is 0"),
        (("CartPole-v1", "uniform", 2.5), "episodes is 2.5"),
        (("NoSuchThing-v0", "uniform", 1), "cannot make 'NoSuchThing-v0'"),
        (("nomodule:Thing-v0", "uniform", 1), "cannot make"),
        ((7, "uniform", 1), "environment is 7"),
        ((dict, "uniform", 1), "returned dict, not a gymnasium.Env"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(RolloutError, match=message):
        collect_episodes(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"backend": "gpu"}, "backend is 'gpu'"),
        ({"workers": 0}, "workers is 0"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"step_timeout": 0}, "step_timeout is 0"),
        ({"block_size": 0}, "block_size is 0"),
        ({"address": "auto", "backend": "serial"}, "Ray cluster"),
        ({"resume": True}, "resume needs a checkpoint"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(RolloutError, match=message):
        collect_episodes("CartPole-v1", "uniform", 2, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"foo": 1}, "CartPole-v1 takes no argument 'foo' .*; it takes sutton_barto_reward, render_mode, and"),
        ({"max_episode_steps": "long"}, "CartPole-v1 cannot be made with max_episode_steps='long' "),
    ],
)
@pytest.mark.parametrize("environment", ["CartPole-v1", gymnasium.spec("CartPole-v1")], ids=["id", "spec"])
def test_arguments_that_an_environment_does_not_take_are_named(environment, arguments, message):
    with pytest.raises(RolloutError, match=message):
        collect_episodes(environment, "uniform", 2, make_arguments=arguments)


def test_one_environment_is_not_enough():
    with pytest.raises(RolloutError, match="fresh copies"):
        collect_episodes(gymnasium.make("CartPole-v1"), "uniform", 2)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("gaussian", "needs Box actions"),
        ("nowhere.safetensors", "path of a policy file"),
        (3, "policy is 3"),
        (np.ones((4, 2)) / 2, "needs Discrete observations"),
    ],
)
def test_bad_policies_are_named(policy, message):
    with pytest.raises(PolicyError, match=message):
        collect_episodes("CartPole-v1", policy, 2)


class Wrong:
    def __init__(self, actions):
        self.actions = actions

    def act(self, observations, rng):
        return self.actions


@pytest.mark.parametrize(("actions", "message"), [(np.zeros(3, int), "shape"), (np.zeros(2), "whole numbers")])
def test_a_policy_that_returns_nonsense_is_told_so(actions, message):
    with pytest.raises(PolicyError, match=message):
        collect_episodes("CartPole-v1", Wrong(actions), 2, backend="serial")


def test_specs_and_module_ids_are_environments():
    by_id = collect_episodes("CartPole-v1", "uniform", 20, seed=1, backend="serial")
    by_spec = collect_episodes(gymnasium.spec("CartPole-v1"), "uniform", 20, seed=1, backend="serial")
    by_module = collect_episodes("gymnasium:CartPole-v1", "uniform", 20, seed=1, backend="serial")
    for other in (by_spec, by_module):
        np.testing.assert_array_equal(by_id.lengths, other.lengths)


def test_an_episode_that_is_not_there_has_no_trajectory():
    tracks = collect_episodes("CartPole-v1", "uniform", 3, backend="serial", trajectories=True).trajectories
    parts = [tracks.of(i) for i in range(3)]
    for place, name in enumerate(("observations", "actions", "rewards")):
        np.testing.assert_array_equal(np.concatenate([part[place] for part in parts]), getattr(tracks, name))
    for nowhere in (-1, 3, 1.5, "first"):
        with pytest.raises(RolloutError, match="episode is"):
            tracks.of(nowhere)


def test_nothing_cannot_be_merged():
    """It raised IndexError."""
    with pytest.raises(RolloutError, match="no episodes were given to merge"):
        merge([])


def test_merged_runs_can_be_merged_again_and_no_run_is_counted_twice(tmp_path):
    def run(seed):
        return replace(first, provenance={**first.provenance, "seed": seed})

    first = collect_episodes("steadyrl/StateSweep-v0", "uniform", 2, seed=0, backend="serial")
    pair, other = run(0).merge(run(1)), run(2).merge(run(3))
    assert [one["seed"] for one in pair.merge(other).provenance["merged"]] == [0, 1, 2, 3]
    for again in (run(1), run(2).merge(run(0))):
        with pytest.raises(RolloutError, match="not more data"):
            pair.merge(again)
    many = first
    for seed in range(1, 1200):  # more than JSON may be nested
        many = many.merge(run(seed))
    many.save(tmp_path / "many.npz")
    assert Episodes.load(tmp_path / "many.npz") == many
