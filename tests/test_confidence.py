"""Intervals cover as often as they say."""

import math

import numpy as np
import pytest

from steadyrl import (
    EpisodeLengths,
    average_episode_length,
    bootstrap,
    collect_episodes,
    phase_distance,
    phase_mixing_time,
    stationary_distribution,
    steady_state_mean,
    steady_state_performance,
)
from steadyrl.common.intervals import Interval
from steadyrl.errors import LengthsError
from steadyrl.exact import gallery
from steadyrl.lengths.distance_bands import _distance, _gaps, distance_band


def covered(hits, repeats, level=0.9):
    """Whether a share of hits is within 4 standard errors of the level: a false alarm in 16,000."""
    return abs(hits / repeats - level) < 4 * math.sqrt(level * (1 - level) / repeats)


def geometric(mean, longest=400):
    tail = (1 - 1 / (mean - 1)) ** np.arange(longest)
    return EpisodeLengths(np.append([0, 0], tail / tail.sum()))


def bell(mean, deviation, longest):
    weights = np.append(0, np.exp(-0.5 * ((np.arange(1, longest) - mean) / deviation) ** 2))
    return EpisodeLengths(weights / weights.sum())


BELL, WIDE = bell(25, 6, 60), bell(200, 50, 400)
FLAT = EpisodeLengths(np.append(np.zeros(10), np.full(21, 1 / 21)))


def test_regenerative_intervals_cover_the_steady_state_mean():
    process, policy = gallery.two_terminals()
    truth = stationary_distribution(process, policy)[2]  # the share of time in the pause after winning
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        won = rng.random(100) < 0.5  # an episode that wins has T = 3 and one pause, one that loses T = 2 and none
        found = steady_state_mean(won.astype(float), np.where(won, 2, 1))
        hits += found.low <= truth <= found.high
    assert covered(hits, 1000)


def test_rewards_of_collected_episodes_give_the_steady_state_performance():
    process, policy = gallery.wrong_way()
    episodes = collect_episodes(process, policy, 500, seed=3, backend="serial")
    found = steady_state_mean(episodes.returns, episodes.lengths, level=0.9999)  # misses once in 10,000 seeds
    assert found.low < steady_state_performance(process, policy) < found.high
    assert found.value == pytest.approx(episodes.returns.sum() / (episodes.lengths + 1).sum())
    lengths = EpisodeLengths.from_episodes(episodes)
    assert lengths.mean == episodes.average_episode_length
    assert abs(lengths.mean / average_episode_length(process, policy) - 1) < 0.2


@pytest.mark.parametrize(
    ("truth", "episodes"), [(BELL, 400), (geometric(10), 3000), (geometric(10), 300)], ids=["bell", "many", "few"]
)
def test_intervals_cover_mean_cv_and_mixing_time(truth, episodes):
    rng = np.random.default_rng(1)
    time, hits, repeats = phase_mixing_time(truth), np.zeros(3), 100
    for _ in range(repeats):
        sample = EpisodeLengths(rng.multinomial(episodes, truth.probabilities) / episodes)
        found = bootstrap(sample, episodes, rng=rng, resamples=79)
        for i, (interval, value) in enumerate(
            [
                (found.average_episode_length, truth.mean),
                (found.coefficient_of_variation, truth.cv),
                (found.mixing_time, time),
            ]
        ):
            hits[i] += interval.low <= value <= interval.high
    assert all(covered(hit, repeats) for hit in hits), hits / repeats


@pytest.mark.parametrize(
    ("truth", "episodes", "times"),
    [(BELL, 1000, [15, 30, 60, 90]), (FLAT, 1000, [10, 20, 40, 60]), (WIDE, 300, [200, 300, 400])],
    ids=["bell", "flat", "most lengths seen once"],
)
def test_distance_bands_cover_the_true_curve_at_each_time(truth, episodes, times):
    rng, repeats = np.random.default_rng(5), 120
    curve, hits = phase_distance(truth, times[-1])[times], np.zeros(len(times))
    for _ in range(repeats):
        sample = EpisodeLengths(rng.multinomial(episodes, truth.probabilities) / episodes)
        found = distance_band(sample, episodes, times[-1], rng=rng, level=0.9, resamples=99)
        at = np.array(times) - 1
        hits += (found.low[at] <= curve) & (curve <= found.high[at])
    assert all(covered(hit, repeats) for hit in hits), hits / repeats


def test_what_never_mixes_is_known_for_sure():
    fixed = bootstrap(EpisodeLengths.from_gymnasium([999] * 50), 50, rng=np.random.default_rng(0))
    assert (fixed.mixing_time.low, fixed.mixing_time.value, fixed.mixing_time.high) == (math.inf,) * 3
    assert fixed.mixing_time.relative_error == 0
    # One odd episode in fifty: resamples often miss it, so "never" cannot be excluded.
    odd = EpisodeLengths.from_gymnasium([4] * 49 + [5])
    found = bootstrap(odd, 50, rng=np.random.default_rng(0), resamples=39)
    assert found.mixing_time.value < math.inf
    assert found.mixing_time.high == math.inf
    assert found.mixing_time.relative_error == math.inf


def test_lengths_that_hardly_vary_keep_their_mixing_time_though_the_phase_is_lost():
    # T = 50 +- 2: at t* (132 episodes) the phase of the sample's curve is off by 1.5 radians, its height by little.
    truth = bell(50, 2, 70)
    sample = EpisodeLengths(np.random.default_rng(4).multinomial(300, truth.probabilities) / 300)
    found = bootstrap(sample, 300, rng=np.random.default_rng(0), resamples=39).mixing_time
    assert found.low < found.value < found.high
    assert 0.7 * found.value < found.low
    assert found.high < 1.5 * found.value
    assert found.low < phase_mixing_time(truth) < found.high


@pytest.mark.parametrize("steps", [1, 3, 50, 2000])
def test_curves_of_many_samples_at_once_are_those_of_each(steps):
    rows = np.array([np.append(0, np.random.default_rng(seed).dirichlet(np.full(40, 0.3))) for seed in range(3)])
    found = _distance(np.abs(_gaps(rows, steps)), rows)
    for row, curve in zip(rows, found, strict=True):
        np.testing.assert_allclose(curve, phase_distance(EpisodeLengths(row), steps)[1:], atol=1e-8)


def test_relative_error_is_half_the_width_and_counts_the_estimate_in():
    assert Interval(10, 9, 12).relative_error == pytest.approx(0.15)
    assert Interval(10, 7, 9).relative_error == pytest.approx(0.15)
    assert Interval(0, -1, 1).relative_error == math.inf


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: steady_state_mean([1.0], [1, 2]), "sums have shape"),
        (lambda: steady_state_mean([1.0, np.nan], [1, 2]), r"sums\[1\] is nan"),
        (lambda: steady_state_mean([1.0], [1]), "at least two episodes"),
        (lambda: steady_state_mean([1.0, 2.0], [1, 2], level=1), "level is 1"),
        (lambda: bootstrap(BELL, 0, rng=np.random.default_rng(0)), "episodes is 0"),
        (lambda: bootstrap(BELL, 2**31, rng=np.random.default_rng(0)), "500000000 at most"),
        (lambda: bootstrap(BELL, 10, rng=np.random.default_rng(0), level=90), "level is 90"),
    ],
)
def test_bad_arguments_are_refused_with_the_value(make, words):
    with pytest.raises(LengthsError, match=words):
        make()
