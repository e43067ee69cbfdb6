"""Long lengths and long mixing times: quick ways give the answers of slow ones; wrong arguments get a sentence."""

import math

import numpy as np
import pytest

import steadyrl
from steadyrl import (
    Delays,
    EpisodeLengths,
    MarginalMoments,
    Perturbation,
    batch_distance,
    bootstrap,
    compare_strategies,
    design_delays,
    marginal_moments,
    phase_distance,
    phase_mixing_time,
    recommend,
    renewal_sequence,
    uniform_delays,
)
from steadyrl.errors import DelaysError, LengthsError, MixingTimeError, PerturbationError, ToleranceError
from steadyrl.lengths import renewal
from steadyrl.lengths.age_sums import AgeSums
from steadyrl.lengths.confidence import mixing_time_or_never
from steadyrl.lengths.strategies import RANKING

TWO = EpisodeLengths.from_gymnasium([19, 199])
RNG = np.random.default_rng(0)


def plain_mixing_time(lengths, tolerance, steps):
    below = np.flatnonzero(phase_distance(lengths, steps) < tolerance)
    return int(below[0]) if len(below) else math.inf


def nearly_fixed(seed):
    """Lengths that hardly vary, so that the mixing time is hundreds or thousands of times the longest length."""
    rng = np.random.default_rng(seed)
    base = int(rng.integers(3, 60))
    return EpisodeLengths.from_gymnasium(base + (rng.random(400) < 0.02) + 2 * (rng.random(400) < 0.01))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("tolerance", [0.3, 0.01])
def test_a_mixing_time_found_by_doubling_is_the_first_time_below_the_tolerance(seed, tolerance):
    lengths = nearly_fixed(seed)
    found = phase_mixing_time(lengths, tolerance)
    assert found > 20 * lengths.longest  # so there were jumps
    assert found == plain_mixing_time(lengths, tolerance, int(1.2 * found))
    assert mixing_time_or_never(lengths, tolerance, int(found)) == found
    assert mixing_time_or_never(lengths, tolerance, int(found) - 1) == math.inf


@pytest.mark.parametrize("seed", range(12))
def test_a_mixing_time_within_a_few_blocks_is_the_first_time_below_the_tolerance(seed):
    rng = np.random.default_rng(seed)
    p = np.append(0, rng.dirichlet(np.full(int(rng.integers(2, 300)), 0.5)))
    lengths = EpisodeLengths(p / p.sum())
    for tolerance in (0.5, 0.05, 1e-3):
        found = phase_mixing_time(lengths, tolerance)
        assert found == plain_mixing_time(lengths, tolerance, int(2 * found + 10))
        assert isinstance(found, int)


@pytest.mark.parametrize("seed", range(12))
def test_a_perturbed_mixing_time_found_between_bounds_follows_the_last_time_above_the_tolerance(seed, monkeypatch):
    monkeypatch.setattr(renewal, "_DIRECT_WORK", 1)  # so that bounds decide wherever they can
    rng = np.random.default_rng(seed)
    lengths = EpisodeLengths.from_gymnasium(rng.integers(0, int(rng.integers(2, 80)), 4))
    detours = (
        Perturbation(float(rng.uniform(0.2, 0.97))),
        Perturbation(float(rng.uniform(0.2, 0.8)), recursive=False),
        Perturbation.from_detour(rng.dirichlet(np.ones(int(rng.integers(2, 40))))),
    )
    for perturbation in detours:
        for tolerance in (0.3, 0.01, 0.001):
            try:
                found = phase_mixing_time(lengths, tolerance, perturbation, longest=20_000)
            except MixingTimeError:
                continue
            if math.isfinite(found):
                above = np.flatnonzero(phase_distance(lengths, int(found) + 500, perturbation) >= tolerance)
                assert found == above[-1] + 1


def test_a_perturbed_mixing_time_of_long_lengths_adds_up_few_sums_over_ages(monkeypatch):
    terms, exact = [], renewal._Perturbed._exact

    def counted(self, first, end):
        terms.append((end - first) * len(self.survival))
        return exact(self, first, end)

    monkeypatch.setattr(renewal._Perturbed, "_exact", counted)
    lengths = EpisodeLengths.from_gymnasium(np.random.default_rng(0).integers(1, 20_000, 1000))
    found = phase_mixing_time(lengths, 0.01, Perturbation(0.999))
    assert found > 2 * lengths.longest
    assert sum(terms) < 0.02 * found * lengths.longest


def test_a_detour_with_many_steps_and_many_lengths_have_a_period():
    lengths = EpisodeLengths.from_gymnasium(2 * np.arange(1, 200_000) - 1)  # T is even
    detour = np.zeros(20_001)
    detour[::2] = 1 / 10_001
    assert phase_mixing_time(lengths, 0.3, Perturbation.from_detour(detour)) == math.inf


def test_a_mixing_time_beyond_reach_is_given_up_whatever_the_reach():
    lengths = EpisodeLengths.from_gymnasium([999] * 9999 + [1000])  # mixes after some 10^9 steps
    for longest in (10, 5_000, 1 << 26):
        with pytest.raises(MixingTimeError, match="still above"):
            phase_mixing_time(lengths, longest=longest)


def test_batches_of_one_step_are_moments_and_take_no_longer_to_compute():
    lengths = EpisodeLengths.from_gymnasium(np.random.default_rng(0).integers(1, 200_000, 300))
    found = batch_distance(lengths, 1, 200_000)  # as many batches as steps: one by one they would take minutes
    np.testing.assert_allclose(found, phase_distance(lengths, 200_000)[1:], atol=1e-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: phase_distance(x, 10),
        lambda x: phase_mixing_time(x),
        lambda x: renewal_sequence(x, 10),
        lambda x: batch_distance(x, 10),
        lambda x: bootstrap(x, 10, rng=RNG),
        lambda x: recommend(x),
        lambda x: compare_strategies(x),
        lambda x: design_delays(x),
        lambda x: uniform_delays(x),
    ],
)
def test_bare_numbers_are_refused_where_a_distribution_is_wanted(call):
    for wrong in ([3, 4, 5], np.array([3, 4, 5]), None, "lengths.csv", 7):
        with pytest.raises((LengthsError, DelaysError), match="from_gymnasium"):
            call(wrong)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: phase_distance(TWO, 10, 0.5), PerturbationError, "perturbation is float"),
        (lambda: phase_mixing_time(TWO, 0.01, [0.5]), PerturbationError, "perturbation is list"),
        (lambda: phase_distance(TWO, 2.5), LengthsError, "steps is 2.5"),
        (lambda: phase_distance(TWO, 10**12), LengthsError, "steps is 1000000000000"),
        (lambda: batch_distance(TWO, 0), LengthsError, "n_steps is 0"),
        (lambda: bootstrap(TWO, 10, rng=RNG, tolerance=math.nan), ToleranceError, "tolerance is nan"),
        (lambda: bootstrap(TWO, 10, rng=3), LengthsError, "rng is 3"),
        (lambda: bootstrap(TWO, 2.5, rng=RNG), LengthsError, "episodes is 2.5"),
        (lambda: recommend(TWO, math.nan), ToleranceError, "tolerance is nan"),
        (lambda: design_delays(TWO, tolerance=math.nan), ToleranceError, "tolerance is nan"),
        (lambda: uniform_delays(TWO, window=2.5), DelaysError, "window is 2.5"),
        (lambda: design_delays(TWO, window=2.5), DelaysError, "window is 2.5"),
        (lambda: design_delays(TWO).draw(3, 0), DelaysError, "rng is 0"),
        (lambda: design_delays(TWO).assign(10**12), DelaysError, "100000000 at most"),
        (lambda: Delays(np.array([0, np.nan, 1]), 0.0), DelaysError, "sum"),
        (lambda: Delays("x", 0.0), DelaysError, "array of real numbers"),
        (lambda: EpisodeLengths("abc"), LengthsError, "array of real numbers"),
        (lambda: EpisodeLengths.from_gymnasium([9e8]), LengthsError, "cannot be a length"),
        (lambda: EpisodeLengths.from_gymnasium([[1], [1, 2]]), LengthsError, "array of numbers|whole numbers"),
        (lambda: EpisodeLengths.from_gymnasium(np.ma.masked_array([1, 2], [0, 1])), LengthsError, "masked"),
        (lambda: EpisodeLengths.from_gymnasium([3, 4], censored=["a", "b"]), LengthsError, "True and False"),
        (lambda: EpisodeLengths.from_episodes([3]), LengthsError, "no lengths"),
        (lambda: marginal_moments([3], [1]), LengthsError, "AgeSums"),
        (lambda: AgeSums.merge([]), LengthsError, "at least one"),
    ],
)
def test_a_wrong_argument_gets_a_sentence_that_names_it(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_episodes_without_actions_get_an_answer():
    none = EpisodeLengths.from_gymnasium([0, 0, 0])
    assert phase_mixing_time(none) == 1
    assert recommend(none, num_envs=8).strategy == "nothing"
    assert steadyrl.diagnose_lengths([0] * 50).recommendation.strategy == "nothing"


def test_survival_that_rises_by_rounding_is_no_negative_probability():
    # a walk by +-1 that ends at +-8 or after 100 steps: between two ages of equal parity nothing ends, and the average
    # over groups of the same counts came out larger at the later age by 1e-16
    for seed in range(5):
        rng = np.random.default_rng(seed)
        walks = np.abs(np.cumsum(rng.choice([-1, 1], (1000, 100)), axis=1)) >= 8
        ends = np.where(walks.any(axis=1), walks.argmax(axis=1) + 1, 100)
        groups = []
        for part in [*np.array_split(ends[:512], 16), *np.array_split(ends[512:], 16)]:
            groups += AgeSums.split(part, np.ones((int((part + 1).sum()), 1)), 1)
        found = marginal_moments(groups, [5, 50])
        np.testing.assert_allclose(found.mean, 1.0)


def test_results_compare_hash_and_print_briefly():
    def results():
        sums = AgeSums.merge(list(AgeSums.split(np.array([2, 3, 4]), np.arange(12.0)[:, None], 2)))
        rng = np.random.default_rng(0)
        return [
            EpisodeLengths.from_gymnasium([19, 199]),
            design_delays(TWO),
            bootstrap(TWO, 100, rng=rng),
            sums,
            marginal_moments(sums, [1, 2]),
            recommend(TWO),
            recommend(TWO).chosen,
        ]

    for one, same in zip(results(), results(), strict=True):
        assert one == same
        assert hash(one) == hash(same)
        assert one != 3
        assert len(repr(one)) < 220
    assert EpisodeLengths.from_gymnasium([19, 199]) != EpisodeLengths.from_gymnasium([19, 198])
    assert design_delays(TWO) != uniform_delays(TWO)
    assert repr(TWO) == "EpisodeLengths(mean=110, cv=0.818, distinct=2, longest=200)"
    assert isinstance(results()[4], MarginalMoments)


FIXED = EpisodeLengths.from_gymnasium([199])


def test_what_is_not_in_lockstep_is_not_told_to_stagger():
    single = recommend(FIXED, num_envs=1, n_steps=2048)
    assert single.strategy == "nothing"
    assert single.harmless
    assert "single environment" in single.reason
    assert recommend(FIXED, num_envs=64, n_steps=16).strategy == "anytime"
    assert recommend(FIXED).strategy == "anytime"  # many environments, unless told otherwise
    long = recommend(FIXED, num_envs=8, n_steps=2048)  # 10.24 mean episode lengths in every batch
    assert long.strategy == "nothing"
    assert "10.2 mean episode lengths" in long.reason
    whole = recommend(FIXED, num_envs=8, n_steps=400)  # every batch is exactly two episodes of each environment
    assert whole.strategy == "nothing"
    assert recommend(FIXED, num_envs=8, n_steps=300).strategy == "anytime"


@pytest.mark.parametrize("num_envs", [None, 1, 64])
@pytest.mark.parametrize("n_steps", [1, 16, 128, 2048])
@pytest.mark.parametrize("lengths", [TWO, FIXED, EpisodeLengths.from_gymnasium([9, 14, 11, 8, 12, 15, 10])])
def test_the_order_of_the_ways_is_the_stated_one(lengths, n_steps, num_envs):
    found = recommend(lengths, num_envs=num_envs, n_steps=n_steps)
    assert "Doing nothing comes first where it is harmless" in RANKING
    assert found.strategies[0] is found.chosen
    rest = found.strategies[1:] if found.harmless else found.strategies
    keys = [(math.isinf(way.steady_after), round(way.lost(found.horizon) / found.horizon, 3)) for way in rest]
    assert keys == sorted(keys)
    assert found.reason.startswith("since ")


def test_only_the_perturbations_are_for_readers_of_the_paper():
    ways = compare_strategies(TWO)
    assert {way.name for way in ways if way.paper_only} == {"one-step-epsilon", "recursive-epsilon"}
    titles = {way.name: way.title for way in ways}
    assert titles["stagger"] == "stagger episodes (one early truncation per environment)"
    assert not any("delays" in title or "pre-roll" in title for title in titles.values())
