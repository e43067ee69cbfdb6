"""Episode lengths against the exact process: the phase distance bounds that of states, and by how much."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given

from processes import dense_chain, processes, random_process
from steadyrl import (
    EpisodeLengths,
    Perturbation,
    average_episode_length,
    bootstrap,
    distances,
    period,
    perturb,
    phase_distance,
    phase_mixing_time,
    renewal_sequence,
)
from steadyrl.errors import LengthsError, MixingTimeError, ToleranceError
from steadyrl.exact import gallery, time_limits
from steadyrl.lengths.mixing import block_size, raw_mixing_time
from steadyrl.lengths.renewal import start_sequence


def exact_lengths(process, policy, longest=20_000):
    """P(T = k), by following one episode step by step."""
    chain, inside = dense_chain(process, policy), ~process.terminal
    now, probabilities = process.initial @ chain, [0.0]
    while len(probabilities) < longest and (now.sum() > 1e-15 or len(probabilities) == 1):
        probabilities.append(now[process.terminal].sum())
        now = (now * inside) @ chain
    return EpisodeLengths(np.array(probabilities) / np.sum(probabilities))


def extended(policy, perturbed):
    return np.vstack([policy] + [policy[:1]] * (perturbed.n_states - len(policy)))


@given(processes())
def test_the_phase_distance_bounds_the_distance_of_states(case):
    process, policy = case
    if average_episode_length(process, policy) > 300:
        return
    lengths = exact_lengths(process, policy)
    assert lengths.mean == pytest.approx(average_episode_length(process, policy), rel=1e-9)
    assert lengths.period == period(process, policy)
    bound = phase_distance(lengths, 60)
    assert (distances(process, policy, 60) <= bound + 1e-9).all()
    assert (np.diff(bound) <= 1e-15).all()
    perturbed = perturb(process, Perturbation(0.7))
    given = distances(perturbed, extended(policy, perturbed), 60, given_not_null=True)
    assert (given <= phase_distance(lengths, 60, Perturbation(0.7)) + 1e-9).all()


@pytest.mark.parametrize("seed", range(20))
def test_where_states_carry_their_age_the_phase_distance_is_the_distance(seed):
    # A time limit puts the age into the state; with one base state and one terminal state nothing else is in it but
    # the way an episode ends, so each end gets a state of its own by its age: compare on ages alone.
    base, _ = gallery.self_loops(0.1 + 0.04 * seed)
    process = base.with_time_limit(12)
    full = np.ones((process.n_states, 1))
    lengths = EpisodeLengths(time_limits.length_probabilities(process.layers, full))
    phase, states = phase_distance(lengths, 80), distances(process, full, 80)
    assert (states <= phase + 1e-12).all()
    # Ages of running episodes are states here; only the terminal state forgets its age, at most its share apart.
    assert (phase - states)[1:].max() <= 1 / lengths.mean


@pytest.mark.parametrize(
    "perturbation",
    [Perturbation(0.9), Perturbation(0.5, recursive=False), Perturbation.from_detour([0.2, 0.3, 0, 0.5])],
)
def test_the_sweeps_phase_distance_is_its_distance(perturbation):
    process, policy = gallery.state_sweep(15)
    perturbed = perturb(process, perturbation)
    lengths = EpisodeLengths.from_gymnasium([14])
    np.testing.assert_allclose(
        phase_distance(lengths, 300, perturbation)[1:],
        distances(perturbed, extended(policy, perturbed), 300, given_not_null=True)[1:],
        atol=1e-7,
    )
    np.testing.assert_allclose(phase_distance(lengths, 50)[1:], 1 - 1 / 15, rtol=1e-12)


@pytest.mark.parametrize("seed", range(15))
def test_ages_by_the_recursion_step_by_step(seed):
    rng = np.random.default_rng(seed)
    f = np.append(0, rng.dirichlet(np.ones(int(rng.integers(1, 9))) * 0.5))
    lengths = EpisodeLengths(f)
    f, n = lengths.probabilities, lengths.longest
    survival = f[::-1].cumsum()[::-1]
    ages = np.zeros(n + 1)  # P(age = k), before time 1 an episode has just ended
    ages[0] = 1.0
    stationary = np.append(0, survival[1:]) / lengths.mean
    found = phase_distance(lengths, 40)
    for t in range(1, 41):
        hazard = np.divide(f, survival, out=np.zeros(n + 1), where=survival > 0)
        ended = 1.0 if t == 1 else (ages * hazard).sum()
        onward = np.zeros(n + 1)
        if t > 1:
            onward[1:] = (ages * (1 - hazard))[:-1]
        onward[1] += ended
        onward[0] = 0
        ages = onward
        assert found[t] == pytest.approx(0.5 * np.abs(ages - stationary).sum(), abs=1e-12)


def test_transforms_and_recursion_give_the_same_sequence(monkeypatch):
    rng = np.random.default_rng(1)
    lengths = EpisodeLengths.from_gymnasium(rng.integers(50, 3000, size=5000))
    plain = renewal_sequence(lengths, 20_000)
    monkeypatch.setattr("steadyrl.lengths.renewal._FILTER_WORK", 0)
    np.testing.assert_allclose(renewal_sequence(lengths, 20_000), plain, atol=1e-13)
    assert renewal_sequence(lengths, 100_000)[-1] == pytest.approx(1 / lengths.mean, rel=1e-9)


def test_lengths_20_and_200_vary_and_yet_never_mix():
    lengths = EpisodeLengths.from_gymnasium([19, 199])
    assert lengths.cv == pytest.approx(0.818, abs=1e-3)
    assert lengths.period == 20
    assert phase_mixing_time(lengths) == math.inf
    assert phase_mixing_time(lengths, 0.96) < math.inf  # the distance goes down to 1 - 1/20
    assert phase_mixing_time(lengths, perturbation=Perturbation(0.01)) < math.inf


@pytest.mark.parametrize("seed", range(10))
def test_the_mixing_time_is_the_last_crossing(seed):
    rng = np.random.default_rng(seed)
    process, policy = random_process(rng, "dense", max_states=6)
    lengths = exact_lengths(process, policy)
    for perturbation in (None, Perturbation(0.9), Perturbation.from_detour([0.5, 0, 0, 0, 0, 0.5])):
        found = phase_mixing_time(lengths, 0.02, perturbation)
        curve = phase_distance(lengths, int(found) + 500, perturbation)
        assert (curve[int(found) :] < 0.02).all()
        assert curve[int(found) - 1] >= 0.02


def test_censored_lengths_by_the_product_limit():
    # 2, 3+, 4, 5+ (+: still running). KM: P(T=3) = 1/4; at risk after 3+: two; P(T=5) = 3/4 * 1/2; the rest later.
    lengths = EpisodeLengths.from_gymnasium([2, 3, 4, 5], censored=[False, True, False, True])
    np.testing.assert_allclose(lengths.probabilities, [0, 0, 0, 0.25, 0, 0.375, 0, 0.375])
    # Without censoring it is the plain histogram, and censoring that says nothing changes nothing.
    np.testing.assert_allclose(
        EpisodeLengths.from_gymnasium([2, 2, 7], censored=[False] * 3).probabilities,
        EpisodeLengths.from_gymnasium([2, 2, 7]).probabilities,
    )


def test_censoring_removes_the_bias_of_finished_episodes():
    # Geometric lengths observed for 50 steps each: the mean of the finished ones is too small by far.
    rng = np.random.default_rng(0)
    true = rng.geometric(1 / 60, size=20_000)
    seen = np.minimum(true, 300)
    lengths = EpisodeLengths.from_gymnasium(seen, censored=true > 300)
    assert np.mean(true[true <= 300]) < 58.5
    # E[min(T, 302)] of the estimate is within 4 standard errors of the truth.
    exact = 1 + sum((1 - 1 / 60) ** k for k in range(301))
    assert lengths.mean == pytest.approx(exact, abs=4 * true.std() / math.sqrt(len(true)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EpisodeLengths([0.5, 0.5]), "P\\(T = 0\\) is 0.5"),
        (lambda: EpisodeLengths([0, 0.5]), "sum to 0.5"),
        (lambda: EpisodeLengths([0, -1, 2]), "P\\(T = 1\\) is -1"),
        (lambda: EpisodeLengths([]), "shape"),
        (lambda: EpisodeLengths.from_survival([[1, 1], [0.5, 0.2]]), r"survival has shape \(2, 2\)"),
        (lambda: EpisodeLengths.from_gymnasium([]), "at least one"),
        (lambda: EpisodeLengths.from_gymnasium([3, -1]), r"lengths\[1\] is -1"),
        (lambda: EpisodeLengths.from_gymnasium([3, 1.5]), r"lengths\[1\] is 1.5"),
        (lambda: EpisodeLengths.from_gymnasium([3.0, np.nan]), r"lengths\[1\] is nan"),
        (lambda: EpisodeLengths.from_gymnasium(["a"]), "whole numbers"),
        (lambda: EpisodeLengths.from_gymnasium([3], censored=[True]), "still running"),
        (lambda: EpisodeLengths.from_gymnasium([3], censored=[True, False]), "censored has shape"),
        (lambda: phase_distance(EpisodeLengths([0, 1]), -1), "steps is -1"),
        (lambda: renewal_sequence(EpisodeLengths([0, 1]), -1), "steps is -1"),
    ],
)
def test_bad_lengths_are_refused_with_the_value(make, words):
    with pytest.raises(LengthsError, match=words):
        make()


def test_a_tolerance_below_rounding_is_refused():
    lengths = EpisodeLengths.from_gymnasium([2, 3, 4, 9, 9])
    for search in (phase_mixing_time, partial(bootstrap, episodes=5, rng=np.random.default_rng(0))):
        with pytest.raises(ToleranceError, match="are rounding"):
            search(lengths, tolerance=1e-17)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_for_a_mixing_time_has_an_end_where_rounding_hides_the_crossing(seed):
    lengths = EpisodeLengths.from_gymnasium(np.random.default_rng(seed).choice([2, 3, 4, 9], 5))
    ends = renewal_sequence(lengths, block_size(lengths.longest))
    found = raw_mixing_time(lengths.probabilities, ends, 1e-17, 6000)
    assert found == math.inf or found <= 6000


def test_a_mixing_time_beyond_the_longest_is_given_up():
    lengths = EpisodeLengths.from_gymnasium([99] * 999 + [100])
    with pytest.raises(MixingTimeError, match="after 5000 steps"):
        phase_mixing_time(lengths, longest=5000)
    mixed = EpisodeLengths.from_gymnasium([9, 10, 12])
    assert phase_mixing_time(mixed, longest=int(phase_mixing_time(mixed))) == phase_mixing_time(mixed)


def test_starts_are_ends_after_a_detour():
    lengths = EpisodeLengths.from_gymnasium([3, 5])
    np.testing.assert_array_equal(start_sequence(lengths, 30), renewal_sequence(lengths, 30))
    shifted = Perturbation.from_detour([0, 0, 1])  # two null steps, always
    ends = renewal_sequence(lengths, 30, shifted)
    np.testing.assert_allclose(start_sequence(lengths, 30, shifted)[2:], ends[:-2], atol=1e-12)


def test_bad_tolerances_are_refused():
    with pytest.raises(ToleranceError, match="tolerance is 0"):
        phase_mixing_time(EpisodeLengths([0, 1]), 0)


def test_lengths_in_half_precision_are_read_without_a_warning():
    assert EpisodeLengths.from_gymnasium(np.array([10, 2048], dtype=np.float16)).mean == 1030.0
