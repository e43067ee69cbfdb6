"""How much of the age shows in an observation: known cases, an exact total variation, and chance alone."""

import numpy as np
import pytest
from scipy.stats import norm

from steadyrl.diagnosis.seen_ages import seen_ages
from steadyrl.errors import LengthsError

LENGTH, EPISODES = 80, 60
AGES = np.tile(np.arange(1, LENGTH + 1), EPISODES)
EPISODE = np.repeat(np.arange(EPISODES), LENGTH)


def test_observations_that_tell_the_age_reach_the_bound():
    found = seen_ages(np.stack([np.sin(AGES / 9), np.cos(AGES / 9), AGES], axis=1), AGES, EPISODE)
    assert found.groups == 8
    assert found.bound == 0.875
    assert found.distance.value == pytest.approx(0.875, abs=0.02)
    assert found.accuracy > 0.97


def test_observations_without_information_show_nothing():
    """Ten samples: each has its interval above 0 once in twenty, so four or more by chance once in a thousand."""
    above = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        walk = rng.normal(size=(EPISODES, 1)) + rng.normal(size=(EPISODES, LENGTH)) * 0.1  # an episode has a level
        found = seen_ages(walk.reshape(-1, 1), AGES, EPISODE, seed=seed)
        assert abs(found.distance.value) < 0.05
        above += found.distance.low > 0
    assert above < 4


@pytest.mark.parametrize("shift", [0.5, 2.0, 8.0])
def test_a_shift_of_the_mean_is_as_far_as_it_is_by_quadrature(shift):
    rng = np.random.default_rng(3)
    found = seen_ages((shift * AGES / LENGTH + rng.normal(size=len(AGES)))[:, None], AGES, EPISODE)
    grid = np.linspace(-6, shift + 6, 4000)
    density = norm.pdf(grid[None, :], loc=shift * np.arange(1, LENGTH + 1)[:, None] / LENGTH)
    groups = density.reshape(8, LENGTH // 8, -1).mean(axis=1)
    exact = 0.5 * np.abs(groups - density.mean(axis=0)).sum(axis=1).mean() * (grid[1] - grid[0])
    assert found.distance.low < exact + 0.02  # a lower bound, but for chance
    assert found.distance.value > 0.7 * exact - 0.02


def test_short_and_long_episodes_have_groups_of_equal_share():
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 60, 200)
    ages = np.concatenate([np.arange(1, n + 1) for n in lengths])
    found = seen_ages(ages[:, None], ages, np.repeat(np.arange(200), lengths))
    assert found.groups == 8
    assert found.share > 0.95


def test_too_few_episodes_or_a_single_age_is_an_answer():
    assert seen_ages(AGES[:160, None], AGES[:160], EPISODE[:160]) is None
    assert seen_ages(np.zeros((100, 1)), np.ones(100, dtype=int), np.arange(100)) is None


def test_the_same_seed_gives_the_same_numbers():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(len(AGES), 2)) + AGES[:, None] / LENGTH
    assert seen_ages(rows, AGES, EPISODE, seed=4) == seen_ages(rows, AGES, EPISODE, seed=4)


@pytest.mark.parametrize(
    "arguments",
    [
        (AGES, AGES, EPISODE),
        (AGES[:, None], AGES[:-1], EPISODE),
        (AGES[:, None], AGES - 1, EPISODE),
        (AGES[:, None], AGES + 0.5, EPISODE),
        (np.full((len(AGES), 1), np.nan), AGES, EPISODE),
        (np.zeros((0, 1)), np.zeros(0, dtype=int), np.zeros(0, dtype=int)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments):
    with pytest.raises(LengthsError):
        seen_ages(*arguments)


def test_observations_of_no_numbers_show_nothing():
    found = seen_ages(np.zeros((len(AGES), 0)), AGES, EPISODE)
    assert abs(found.distance.value) < 0.01
