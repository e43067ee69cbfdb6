"""EnvPool: the same bytes at any number of threads, and the same distribution as Gymnasium.

Distributions are compared by the two-sample Kolmogorov-Smirnov test at level 1e-4 (conservative for whole numbers),
twice for each environment; seeds are fixed.
"""

from functools import partial

import numpy as np
import pytest
from scipy.stats import ks_2samp

from scripted import Dice, same
from steadyrl import MissingExtraError, collect_episodes, collect_samples
from steadyrl.errors import EpisodeTooLongError, RolloutError
from steadyrl.experiments.workspace import Workspace
from steadyrl.integrations.envpool import twins

TWINS = [
    ("CartPole-v1", "uniform", 2000, {}),
    ("FrozenLake-v1", "uniform", 2000, {}),
    ("Hopper-v5", "gaussian", 400, {}),
    ("HalfCheetah-v5", "gaussian", 64, {"max_episode_steps": 60}),
]


@pytest.mark.parametrize(("environment", "policy", "episodes", "arguments"), TWINS)
def test_envpool_agrees_with_gymnasium_in_distribution(environment, policy, episodes, arguments):
    collect = partial(collect_episodes, environment, policy, episodes, seed=1, make_arguments=arguments)
    ours, theirs = collect(backend="envpool"), collect(backend="serial")
    assert len(ours) == len(theirs) == episodes
    assert ks_2samp(ours.lengths, theirs.lengths).pvalue > 1e-4
    assert ks_2samp(ours.returns, theirs.returns).pvalue > 1e-4
    assert ours.truncated.mean() == pytest.approx(theirs.truncated.mean(), abs=5 * np.sqrt(0.5 / episodes))
    # The first ages, where every episode contributes: each value's mean at 5 standard errors of the difference.
    spread = theirs.ages.second_moment[:2] - theirs.ages.mean[:2] ** 2
    error = np.sqrt(2 * np.maximum(spread, 0) / episodes)
    assert (np.abs(ours.ages.mean[:2] - theirs.ages.mean[:2]) <= 5 * error + 1e-6).all()


@pytest.mark.parametrize(("environment", "policy"), [("CartPole-v1", "uniform"), ("Hopper-v5", "gaussian")])
def test_the_same_bytes_at_any_number_of_threads(environment, policy):
    collect = partial(collect_episodes, environment, policy, 150, seed=2, block_size=50, backend="envpool")
    one = collect(workers=1)
    assert same(one, collect(workers=2))
    assert same(one, collect(workers=5))
    assert not np.array_equal(
        one.lengths, collect_episodes(environment, policy, 150, seed=3, backend="envpool").lengths
    )


def test_a_process_of_its_own_changes_nothing():
    collect = partial(collect_episodes, "CartPole-v1", "uniform", 200, seed=2, backend="envpool")
    assert same(collect(), collect(step_timeout=20.0))


def test_every_started_episode_is_counted():
    # The longest of the first few may not be missing: small blocks, mean at 5 standard errors of a Gymnasium run.
    small = collect_episodes("CartPole-v1", "uniform", 2048, seed=4, backend="envpool", block_size=64)
    other = collect_episodes("CartPole-v1", "uniform", 2048, seed=4, backend="serial")
    error = np.sqrt((small.lengths.var() + other.lengths.var()) / 2048)
    assert abs(small.lengths.mean() - other.lengths.mean()) < 5 * error


def test_samples_come_from_envpool_too():
    collect = partial(collect_samples, "CartPole-v1", "uniform", 400, [10, 40], seed=1)
    ours, theirs = collect(backend="envpool"), collect(backend="serial")
    assert ks_2samp(ours.ages[:, 1], theirs.ages[:, 1]).pvalue > 1e-4
    assert ours.observations.shape == theirs.observations.shape


def test_auto_takes_envpool_where_it_has_the_environment():
    episodes = collect_episodes("CartPole-v1", "uniform", 10)
    assert episodes.notes[0].startswith("backend envpool: EnvPool has CartPole-v1")
    assert episodes.provenance["command"].endswith("--backend envpool")


def test_an_episode_past_the_limit_is_an_error_or_left_out():
    collect = partial(collect_episodes, "CartPole-v1", "uniform", 100, backend="envpool", max_episode_steps=20)
    with pytest.raises(EpisodeTooLongError, match="finiteness"):
        collect()
    episodes = collect(on_error="skip")
    assert episodes.skipped
    assert len(episodes) + len(episodes.skipped) == 100
    assert episodes.lengths.max() <= 20


@pytest.mark.parametrize(
    ("environment", "arguments", "words"),
    [
        (Dice, {}, "by their Gymnasium id"),
        ("steadyrl/StateSweep-v0", {}, "EnvPool has no"),
        ("FrozenLake-v1", {"is_slippery": False}, "may not know the arguments"),
    ],
)
def test_what_envpool_cannot_run_is_said(environment, arguments, words):
    with pytest.raises(RolloutError, match=words):
        collect_episodes(environment, "uniform", 5, backend="envpool", make_arguments=arguments)


def test_an_end_in_the_step_of_the_time_limit_is_both():
    """EnvPool says truncated only; of 3,000 such episodes some 90 terminate there, in either backend."""
    for backend in ("envpool", "serial"):
        found = collect_episodes(
            "CartPole-v1", "uniform", 3000, seed=0, backend=backend, make_arguments={"max_episode_steps": 10}
        )
        at_limit = found.lengths == found.lengths.max()
        assert found.truncated[at_limit].all()
        assert 50 < found.terminated[at_limit].sum() < 150  # 4 standard deviations and more: 1 in 10,000
        assert found.terminated[~at_limit].all()
        assert not found.truncated[~at_limit].any()


def test_what_envpool_cannot_make_is_made_by_gymnasium():
    limit = {"max_episode_steps": 2**31}  # beyond EnvPool's 32 bits
    collect = partial(collect_episodes, "CartPole-v1", "uniform", 4, max_episode_steps=1000, make_arguments=limit)
    with pytest.raises(RolloutError, match=r"EnvPool cannot make CartPole-v1 with the arguments .*2147483648"):
        collect(backend="envpool")
    assert "EnvPool cannot make CartPole-v1" in collect().notes[0]


def test_without_envpool_the_pip_line_is_named(monkeypatch):
    monkeypatch.setattr(twins, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'steadyrl\[envpool\]'"):
        collect_episodes("CartPole-v1", "uniform", 5, backend="envpool")
    assert "EnvPool is not installed" in collect_episodes("CartPole-v1", "uniform", 5).notes[0]


@pytest.mark.parametrize(("first", "then"), [("auto", "serial"), ("serial", "auto")])
def test_parts_of_one_result_are_not_made_with_and_without_envpool(tmp_path, first, then):
    """A run of `reproduce` that was resumed with another backend gave files that neither backend gives."""

    def part(backend):
        workspace = Workspace(0, tmp_path, backend)
        return workspace.arrays(
            "a", lambda: {"lengths": workspace.episodes("a", "CartPole-v1", "uniform", 4, seed=0).lengths}
        )

    part(first)
    with pytest.raises(RolloutError, match=f"another backend .*; now it is '{then}'"):
        part(then)
    assert len(part("processes" if first == "serial" else first)["lengths"]) == 4
    Workspace(0, tmp_path, first).arrays("b", lambda: {"one": 1})
    assert Workspace(0, tmp_path, then).arrays("b", dict)["one"] == 1
