"""Ways to de-synchronise: by simulation of many copies, by linear programming, and by cases with known answers."""

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from steadyrl import (
    Delays,
    EpisodeLengths,
    compare_strategies,
    design_delays,
    phase_distance,
    phase_mixing_time,
    recommend,
    renewal_sequence,
    uniform_delays,
)
from steadyrl.errors import DelaysError, ToleranceError
from steadyrl.lengths.delays import assigned_distance, delayed_distance, drawn_distance, stationary_ages
from steadyrl.lengths.truncated_episodes import cut, first_cut_distance, stagger_distance


def bell(mean, deviation, longest):
    k = np.arange(longest + 1)
    p = norm.cdf(k + 0.5, mean, deviation) - norm.cdf(k - 0.5, mean, deviation)
    p[0] = 0
    return EpisodeLengths(p / p.sum())


def random_lengths(seed, longest=12):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(longest, 0.4))
    return EpisodeLengths(np.append(0, p / p.sum()))


def programme(lengths, window):
    """The smallest distance within a window, by HiGHS: minimise 1/2 sum_k |sum_D q(D) P(age at D = k) - P(A = k)|."""
    n, ends = lengths.longest, renewal_sequence(lengths, window)
    ages = np.zeros((n, window))
    for delay in range(1, window + 1):
        k = np.arange(1, min(delay, n) + 1)
        ages[k - 1, delay - 1] = ends[delay - k] * lengths.survival[k]
    target = stationary_ages(lengths)[1:]
    identity = np.eye(n)
    solution = linprog(
        np.append(np.zeros(window), np.full(n, 0.5)),
        A_ub=np.block([[ages, -identity], [-ages, -identity]]),
        b_ub=np.append(target, -target),
        A_eq=np.append(np.ones(window), np.zeros(n))[None],
        b_eq=[1.0],
        method="highs",
    )
    assert solution.status == 0
    return solution.fun


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("window", [1, 3, 7, 12, 20])
def test_designed_delays_solve_the_linear_programme(seed, window):
    lengths = random_lengths(seed)
    delays = design_delays(lengths, window)
    assert delays.distance == pytest.approx(programme(lengths, window), abs=1e-9)
    assert delayed_distance(lengths, delays.probabilities, 0)[0] == pytest.approx(delays.distance, abs=1e-12)


def test_normal_lengths_in_a_window_of_one_and_a_half_average_lengths():
    lengths = bell(200, 60, 800)
    delays = design_delays(lengths, int(1.5 * lengths.mean))
    assert delays.distance == pytest.approx(0.0057, abs=4e-4)
    assert delays.distance == pytest.approx(programme(lengths, delays.window), abs=1e-5)  # HiGHS is good to 1e-7 a row


@pytest.mark.parametrize("n", [2, 20, 1000])
def test_a_fixed_length_reaches_zero_with_a_window_of_itself(n):
    lengths = EpisodeLengths.from_gymnasium([n - 1])
    delays = design_delays(lengths, n)
    assert (delays.window, delays.distance) == (n, 0.0)
    np.testing.assert_allclose(delays.probabilities[1:], 1 / n)
    assert sorted(delays.assign(n)) == list(range(1, n + 1))
    assert assigned_distance(lengths, delays, n) < 1e-9
    assert uniform_delays(lengths).distance < 1e-9  # and here uniform delays are exact


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("tolerance", [0.2, 0.01, 1e-6])
def test_the_window_found_is_the_smallest_that_reaches_the_tolerance(seed, tolerance):
    lengths = random_lengths(seed)
    delays = design_delays(lengths, tolerance=tolerance)
    assert delays.distance < tolerance
    if delays.window > 1:
        assert design_delays(lengths, delays.window - 1).distance >= tolerance


def test_uniform_delays_do_not_suffice_in_general():
    lengths = EpisodeLengths.from_gymnasium([19, 199])
    found = recommend(lengths, num_envs=64, n_steps=16)
    assert uniform_delays(lengths).distance > 0.3
    assert found["uniform-pre-roll"].steady_after == math.inf
    assert found["nothing"].steady_after == math.inf  # CV 0.82, and yet it never mixes
    assert found["burn-in"].one_off_cost == math.inf
    assert found.strategy == "anytime"
    assert found.distance < 0.01
    assert found.waste == 0


def test_random_counters_do_nothing_where_termination_ends_episodes():
    lengths = bell(20, 2, 40)
    raw, counters = phase_distance(lengths, 400)[1:], compare_strategies(lengths, time_limit=100_000)
    moved = next(way for way in counters if way.name == "random-counters")
    assert np.abs(moved.distance[:400] - raw).max() < 1e-3
    assert moved.steady_after > 15 * lengths.mean
    # Where the limit ends every episode they are as good as uniform delays, but for the length 1.
    fixed = EpisodeLengths.from_gymnasium([99])
    moved = recommend(fixed)["random-counters"]
    assert moved.limit == pytest.approx(1 / 100, abs=1e-12)


def simulated_distance(lengths, copies, steps, rng, *, cut_at=None, first=None, later=None):
    """Ages of many copies, step by step; each is cut once at `cut_at`; `first` and `later` draw lengths."""
    f = lengths.probabilities

    def draw(n):
        return rng.choice(len(f), n, p=f)

    left = draw(copies) if first is None else first(copies)  # transitions until the episode's end
    age = np.zeros(copies, dtype=int)
    stationary = stationary_ages(lengths)
    ended = np.ones(copies, dtype=bool)
    result = []
    for t in range(1, steps + 1):
        age = np.where(ended, 1, age + 1)
        left = left - 1
        seen = np.bincount(age, minlength=len(f)) / copies
        result.append(0.5 * np.abs(seen - stationary).sum())
        ended = left == 0
        if cut_at is not None:
            ended |= cut_at == t
        left[ended] = draw(ended.sum()) if later is None else later(ended.sum())
    return np.array(result)


COPIES = 40_000
# An age's share has a standard deviation of at most 1/2 / sqrt(40,000) = 0.0025 and there are 12 of them, so a distance
# is off by at most 6 * 0.0025 / 2 or so on average; 0.02 is far beyond it (false alarms below one in a million).
NEAR = 0.02


@pytest.mark.parametrize("seed", range(4))
def test_pre_rolled_copies_have_the_computed_ages(seed):
    lengths, rng = random_lengths(seed), np.random.default_rng(seed)
    delays = design_delays(lengths, 5)
    drawn = delays.draw(COPIES, rng)
    full = np.zeros(lengths.longest + 1)
    for delay in range(1, 6):  # ages at D by the recursion, for the share of copies with that delay
        k = np.arange(1, delay + 1)
        ends = renewal_sequence(lengths, delay)
        full[k] += (drawn == delay).mean() * ends[delay - k] * lengths.survival[k]
    assert 0.5 * np.abs(full - stationary_ages(lengths)).sum() == pytest.approx(delays.distance, abs=NEAR)
    curve = delayed_distance(lengths, delays.probabilities, 30)
    assert (np.diff(curve) <= 1e-12).all()  # once there, the raw process only comes closer


@pytest.mark.parametrize("seed", range(6))
def test_staggered_copies_have_the_computed_ages_all_along(seed):
    lengths, rng = random_lengths(seed), np.random.default_rng(seed)
    delays = design_delays(lengths, 8)
    seen = simulated_distance(lengths, COPIES, 24, rng, cut_at=delays.window - delays.draw(COPIES, rng))
    window = delays.window
    np.testing.assert_allclose(stagger_distance(lengths, delays, window), seen[:window], atol=NEAR)
    later = delayed_distance(lengths, delays.probabilities, 24 - window)
    np.testing.assert_allclose(later[1:], seen[window:], atol=NEAR)
    assert seen[window:].max() < delays.distance + NEAR


@pytest.mark.parametrize("seed", range(6))
def test_random_counters_and_truncation_have_the_computed_ages(seed):
    lengths, rng = random_lengths(seed), np.random.default_rng(seed)
    limit = lengths.longest - 1
    f = lengths.probabilities

    def first(n):
        return np.minimum(rng.choice(len(f), n, p=f), rng.integers(1, limit + 1, n) + 1)

    def later(n):
        horizon = np.where(rng.random(n) < 0.3, rng.integers(2, limit + 1, n), limit)
        return np.minimum(rng.choice(len(f), n, p=f), horizon + 1)

    spread = cut(lengths, np.append(0.0, np.full(limit, 1 / limit)))
    horizons = np.zeros(limit + 1)
    horizons[2:] = 0.3 / (limit - 1)
    horizons[limit] += 0.7
    for after, draws in ((lengths, None), (cut(lengths, horizons), later)):
        seen = simulated_distance(lengths, COPIES, 30, rng, first=first, later=draws)
        np.testing.assert_allclose(first_cut_distance(lengths, spread, after, 30), seen, atol=NEAR)


@pytest.mark.parametrize(
    "lengths", [bell(200, 60, 800), bell(20, 2, 40), EpisodeLengths.from_gymnasium([99]), random_lengths(3)]
)
def test_the_recommendation_reaches_the_tolerance_and_loses_least(lengths):
    found = recommend(lengths, 0.01, num_envs=256, n_steps=16)
    assert found.chosen.steady_after < math.inf
    reaching = [way for way in found.strategies if way.steady_after < math.inf]
    best = min(way.lost(found.horizon) for way in reaching)
    assert found.chosen.lost(found.horizon) <= best + 1e-3 * found.horizon
    assert len({way.name for way in found.strategies}) == len(found.strategies) == 11
    for way in reaching:
        after = int(way.steady_after)
        assert (way.distance[max(after - 1, 0) :] < 0.01).all()
    raw = found["nothing"]
    assert raw.steady_after == phase_mixing_time(lengths, 0.01)
    assert found["recursive-epsilon"].waste == pytest.approx((lengths.mean - 1) / (2 * lengths.mean - 1))
    assert found["stagger"].one_off_cost == 0
    assert found["pre-roll"].one_off_cost == pytest.approx(design_delays(lengths).mean)


def test_what_is_steady_within_the_first_update_is_left_alone():
    lengths = EpisodeLengths.from_gymnasium(np.random.default_rng(0).geometric(0.3, 3000))
    found = recommend(lengths, 0.05, n_steps=2048)
    assert found.strategy == "nothing"
    assert found.one_off_cost == found.waste == 0


def test_quantiles_beat_independent_draws():
    lengths = bell(200, 60, 800)
    delays = design_delays(lengths)
    rng = np.random.default_rng(0)
    for copies in (128, 1024):
        assigned, drawn = assigned_distance(lengths, delays, copies), drawn_distance(lengths, delays, copies)
        assert assigned < drawn
        seen = [
            delayed_distance(lengths, np.bincount(delays.draw(copies, rng), minlength=delays.window + 1) / copies, 0)[0]
            for _ in range(60)
        ]
        assert drawn == pytest.approx(np.mean(seen), rel=0.1)
    assert assigned_distance(lengths, delays, 100_000) == pytest.approx(delays.distance, abs=1e-3)
    shuffled = delays.assign(16, rng=rng)
    assert sorted(shuffled) == delays.assign(16).tolist()


def test_long_lengths_take_no_coarsening():
    lengths = EpisodeLengths.from_gymnasium(np.random.default_rng(0).integers(5_000, 50_000, 4000))
    delays = design_delays(lengths)
    assert delayed_distance(lengths, delays.probabilities, 0)[0] == pytest.approx(delays.distance, abs=1e-9)
    found = recommend(lengths)
    assert found.chosen.limit < 0.01
    assert "units of" in found["recursive-epsilon"].note


def test_coarse_units_change_little():
    lengths = EpisodeLengths.from_gymnasium(np.random.default_rng(0).integers(300, 900, 4000))
    fine, coarse = compare_strategies(lengths, steps=8000), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("steadyrl.lengths.ways.LONGEST_EXACT", 150)
        coarse = compare_strategies(lengths, steps=8000)
    for a, b in zip(fine, coarse, strict=True):
        assert np.abs(a.distance[:8000] - b.distance[:8000]).max() < 4 * 6 / lengths.mean


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: design_delays([3, 4]), "from_gymnasium"),
        (lambda: design_delays(bell(20, 2, 40), 0), "window is 0"),
        (lambda: design_delays(bell(20, 2, 40), tolerance=0), "tolerance is 0"),
        (lambda: uniform_delays(bell(20, 2, 40), 0), "window is 0"),
        (lambda: uniform_delays(bell(20, 2, 40), 2.5), "window is 2.5; it must be a whole number"),
        (lambda: recommend(bell(20, 2, 40), 2), "tolerance is 2"),
        (lambda: recommend(bell(20, 2, 40), num_envs=0), "num_envs is 0"),
        (lambda: recommend(bell(20, 2, 40), n_steps=True), "n_steps is True"),
        (lambda: Delays(np.array([0.5, 0.5]), 0.0), "P\\(D = 0\\) is 0.5"),
        (lambda: Delays(np.array([0, 0.5]), 0.0), "sum"),
        (lambda: Delays([0, 0.5, 0.5], None), "distance is None"),
        (lambda: Delays([0, 0.5, 0.5], "near"), "distance is 'near'"),
        (lambda: Delays([0, 0.5, 0.5], 0.0, [3, 4]), "lengths is list; give EpisodeLengths"),
        (lambda: design_delays(bell(20, 2, 40)).draw(0, np.random.default_rng(0)), "copies is 0"),
    ],
)
def test_bad_arguments_are_refused_with_the_value(make, words):
    with pytest.raises((DelaysError, ToleranceError), match=words):
        make()


def test_an_unknown_strategy_is_a_key_error_that_lists_the_known():
    with pytest.raises(KeyError, match="stagger"):
        recommend(bell(20, 2, 40))["magic"]
