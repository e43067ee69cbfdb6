"""Finite processes as Gymnasium environments: the interface, and agreement with the exact answers.

Sampled means are compared at 5 standard errors: each comparison raises a false alarm with probability 6e-7, and the
seeds are fixed.
"""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import steadyrl
from scripted import Spaces
from steadyrl import LearningProcess, Settings, collect_episodes, evaluate, train, uniform_policy
from steadyrl.environments.process_env import ProcessEnv, StateSweepEnv
from steadyrl.errors import ProcessError, RolloutError, TrainingError
from steadyrl.exact import gallery

ENTRIES = {
    "corridor": gallery.corridor(3),
    "two terminals": gallery.two_terminals(),
    "self loops": gallery.self_loops(0.7),
    "periodic": gallery.periodic(),
    "wrong way": gallery.wrong_way(),
}


def assert_means(samples, expected):
    samples = np.asarray(samples, dtype=float)
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    assert (np.abs(samples.mean(axis=0) - expected) <= 5 * error + 1e-12).all()


def test_state_sweep_is_registered_under_the_packages_name_and_passes_gymnasiums_check():
    env = gymnasium.make("steadyrl/StateSweep-v0", n=7)
    assert isinstance(env.unwrapped, StateSweepEnv)
    assert env.spec.id == "steadyrl/StateSweep-v0"
    check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize("name", ENTRIES)
def test_processes_as_environments_pass_gymnasiums_check(name):
    check_env(ProcessEnv(ENTRIES[name][0]), skip_render_check=True)


@pytest.mark.parametrize("n", [2, 5])
def test_state_sweep_is_the_gallerys_process(n):
    one, other = gymnasium.make("steadyrl/StateSweep-v0", n=n), ProcessEnv(gallery.state_sweep(n)[0])
    assert one.reset(seed=0)[0] == other.reset(seed=0)[0]
    for _ in range(n - 1):
        step = one.step(0)
        assert step[:4] == other.step(0)[:4]
    assert step[2]


@pytest.mark.parametrize("name", ENTRIES)
def test_sampled_lengths_visits_and_returns_agree_with_the_exact_ones(name):
    process, policy = ENTRIES[name]
    episodes = collect_episodes(process, policy, 2000, seed=3, backend="serial", trajectories=True)
    assert_means(episodes.lengths + 1, steadyrl.average_episode_length(process, policy))
    visits = np.stack([episodes.trajectories.of(i)[0].sum(axis=0) for i in range(len(episodes))])
    assert_means(visits, steadyrl.expected_visits(process, policy))
    # A reset pays nothing in Gymnasium, so the first state's reward is missing from the return.
    first = process.reset @ process.rewards
    assert_means(episodes.returns, steadyrl.episode_performance(process, policy) - first)


def test_a_time_limit_truncates_and_states_keep_the_processes_numbers():
    process = gallery.self_loops(0.7)[0].with_time_limit(4)
    policy = uniform_policy(process)
    episodes = collect_episodes(process, policy, 2000, seed=4, backend="serial", trajectories=True)
    assert (episodes.lengths[episodes.truncated] == 4).all()
    assert (episodes.terminated ^ episodes.truncated).all()
    assert_means(episodes.truncated, 0.7**4)
    visits = np.stack([episodes.trajectories.of(i)[0].sum(axis=0) for i in range(len(episodes))])
    assert_means(visits, steadyrl.expected_visits(process, policy))


def test_a_toy_text_environment_agrees_with_its_model():
    process = LearningProcess.from_gymnasium("FrozenLake-v1")
    policy = uniform_policy(process)
    episodes = collect_episodes("FrozenLake-v1", "uniform", 4000, seed=5, backend="serial")
    assert_means(episodes.lengths + 1, steadyrl.average_episode_length(process, policy))
    assert_means(episodes.returns, steadyrl.episode_performance(process, policy))


def test_an_episode_needs_an_action():
    with pytest.raises(ProcessError, match="no action"):
        ProcessEnv(gallery.state_sweep(1)[0])
    with pytest.raises(ProcessError, match="n is 1; it must be a whole number, 2 or more"):
        StateSweepEnv(1)


def test_a_process_without_terminal_states_has_no_episodes():
    process = LearningProcess([[[0, 1], [1, 0]]], [0, 0], [0.5, 0.5])
    assert not process.terminal.any()
    with pytest.raises(ProcessError, match="no terminal states"):
        ProcessEnv(process)


NOTHING, TWO = spaces.Box(0, 1, (0,)), spaces.Discrete(2)


@pytest.mark.parametrize("seen", [spaces.Tuple(()), spaces.Dict({}), spaces.Tuple((TWO, spaces.Dict({})))], ids=str)
def test_a_space_of_no_parts_is_refused_before_anything_is_run(seen):
    make = partial(Spaces, seen, TWO)
    for attempt in (
        lambda: collect_episodes(make, "uniform", 2, backend="serial"),
        lambda: evaluate(make, "uniform", steps=9, num_envs=2, backend="serial"),
        lambda: train(make, Settings(updates=1, num_envs=2, n_steps=4, backend="serial")),
    ):
        with pytest.raises(RolloutError, match="a Dict or Tuple of nothing"):
            attempt()


@pytest.mark.parametrize(("seen", "acted"), [(NOTHING, TWO), (TWO, NOTHING)], ids=["blind", "paralysed"])
def test_where_there_is_nothing_to_learn_training_says_so(seen, acted):
    with pytest.raises(TrainingError, match="nothing to learn"):
        train(partial(Spaces, seen, acted), Settings(updates=1, num_envs=2, n_steps=4, backend="serial"))
