"""Anytime-optimal staggering: the bound by a linear programme, the rule in closed form, and the controller at work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from steadyrl import EpisodeLengths, StaggerController, compare_strategies
from steadyrl.errors import LengthsError, StaggerError
from steadyrl.lengths.anytime import (
    anytime_distance,
    expected_truncations,
    least_distance,
    reachable_distance,
    stream_survival,
    truncation_probabilities,
)
from steadyrl.live import stagger_law

AEL = (0.25, 0.5, 1.0, 1.5, 2.0)


def survival_of(draw, samples=400_000):
    counts = np.bincount(draw(np.random.default_rng(1), samples))
    return 1 - np.cumsum(counts)[:-1] / samples


def fixed(length):
    return lambda rng, count: np.full(count, length)


def normal(mean, deviation):
    return lambda rng, count: np.clip(np.rint(rng.normal(mean, deviation, count)), 1, None).astype(int)


def geometric(mean):
    return lambda rng, count: rng.geometric(1 / mean, count)


def either(one, other):
    return lambda rng, count: np.where(rng.random(count) < 0.5, one, other)


FAMILIES = {
    "fixed": fixed(100),
    "normal": normal(100, 30),
    "either": either(20, 200),
    "geometric": geometric(20),
    "uniform": lambda rng, count: rng.integers(1, 120, count),
}


@st.composite
def length_distributions(draw, shortest=2):
    """T from `shortest` on, up to eight different values, with any probabilities."""
    weights = draw(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any))
    return EpisodeLengths(np.append(np.zeros(shortest), np.array(weights) / sum(weights)))


def least_distances(lengths, steps, *, same_step):
    """The smallest sum of all distances up to `steps`, by a linear programme over every way to truncate.

    Variables: p(t, k), the share of copies at age k at time t, and the deficits q(k) - p(t, k) where positive.
    """
    survival = stream_survival(lengths, same_step=same_step)
    q = np.append(survival / survival.sum(), np.zeros(steps))[:steps]
    onward = np.append(survival[1:] / survival[:-1], np.zeros(steps))[:steps]
    n = steps * steps
    place = lambda t, k: (t - 1) * steps + k - 1  # noqa: E731
    upper, upper_b, equal, equal_b = [], [], [], []

    def row(*entries):
        found = np.zeros(2 * n)
        for index, value in entries:
            found[index] += value
        return found

    for t in range(1, steps + 1):
        equal.append(row(*[(place(t, k), 1.0) for k in range(1, steps + 1)]))
        equal_b.append(1.0)
        for k in range(1, steps + 1):
            upper.append(row((place(t, k), -1.0), (n + place(t, k), -1.0)))  # deficit >= q - p
            upper_b.append(-q[k - 1])
            if k > t:
                equal.append(row((place(t, k), 1.0)))
                equal_b.append(0.0)
            elif t > 1 and k > 1:
                entries = (place(t, k), 1.0), (place(t - 1, k - 1), -onward[k - 2])
                forced = not same_step and k == 2  # nobody is truncated in the step of a reset
                (equal if forced else upper).append(row(*entries))
                (equal_b if forced else upper_b).append(0.0)
    tail = float((survival / survival.sum())[steps:].sum())
    cost = np.append(np.zeros(n), np.ones(n))
    found = linprog(cost, np.array(upper), upper_b, np.array(equal), equal_b, bounds=(0, None), method="highs")
    assert found.status == 0
    return float(found.fun) + steps * tail


@given(lengths=length_distributions())
def test_no_way_is_better_than_the_bound_and_one_attains_it_at_every_time(lengths):
    bound = anytime_distance(lengths, 7)
    assert least_distances(lengths, 7, same_step=True) == pytest.approx(bound.sum(), abs=1e-7)


@given(lengths=length_distributions(shortest=3))
def test_where_a_reset_is_a_step_the_bound_is_attained_if_episodes_have_two_actions(lengths):
    bound = anytime_distance(lengths, 7, same_step=False)
    assert least_distances(lengths, 7, same_step=False) == pytest.approx(bound.sum(), abs=1e-7)


@given(lengths=length_distributions())
def test_where_a_reset_is_a_step_no_way_is_better_than_the_bound(lengths):
    bound = anytime_distance(lengths, 7, same_step=False)
    assert least_distances(lengths, 7, same_step=False) >= bound.sum() - 1e-7


@given(lengths=length_distributions())
def test_the_rule_keeps_the_ages_stationary_given_that_they_are_reached(lengths):
    survival = stream_survival(lengths, same_step=True)
    hazard = 1 - np.append(survival[1:], 0.0) / survival
    ages, cuts = np.array([1.0]), 0.0
    for t, cut in enumerate(truncation_probabilities(lengths, 12), start=1):
        known = min(t, len(survival))
        np.testing.assert_allclose(ages[:known], survival[:known] / survival[:known].sum(), atol=1e-12)
        chance = (
            hazard[: len(ages)] if len(ages) <= len(hazard) else np.append(hazard, np.ones(len(ages) - len(hazard)))
        )
        onward = ages * (1 - chance)
        cuts += cut * onward.sum()
        ages = np.append(0.0, onward * (1 - cut))
        ages[0] = 1 - ages[1:].sum()
    assert cuts == pytest.approx(expected_truncations(lengths, 12), abs=1e-12)


def test_a_fixed_length_is_truncated_about_ln_of_it_often():
    # 1/2 + 1/3 + ... + 1/L = H_L - 1, by hand.
    for length in (2, 10, 500):
        lengths = EpisodeLengths.from_gymnasium([length])
        assert expected_truncations(lengths) == pytest.approx(sum(1 / k for k in range(2, length + 1)))


@given(lengths=length_distributions())
def test_no_way_that_throws_nothing_away_is_below_the_bound(lengths):
    bound = least_distance(lengths, 40)
    for way in compare_strategies(lengths, steps=40):
        if way.one_off_cost == 0:
            assert (way.distance[:40] >= bound - 1e-9).all(), way.name
        if way.name in ("anytime", "stagger"):  # up to its window, a design for known lengths is at the bound, too
            reached = max(int(way.steady_after) - 1, 1)
            np.testing.assert_allclose(way.distance[:reached], bound[:reached], atol=1e-9)


def simulate(draw, num_envs, steps, *, same_step=True, seed=0, change=None, at=None):
    """Yield (ages at time t, old lengths) of environments under the controller, t = 1, 2, ..., and the controller."""
    rng = np.random.default_rng(seed)
    controller = StaggerController(num_envs, same_step=same_step, seed=seed)
    length, age, restarting = (
        draw(rng, num_envs) + (not same_step),
        np.ones(num_envs, dtype=int),
        np.zeros(num_envs, bool),
    )
    for t in range(1, steps + 1):
        np.testing.assert_array_equal(controller.ages, age)
        yield t, age, length, controller
        if t == at:
            draw = change
        if not same_step:
            age = np.where(restarting, 1, age + 1)
            length = np.where(restarting, draw(rng, num_envs) + 1, length)
        done = (age >= length) & ~restarting
        cut = controller.step(done)
        assert not (cut & (done | restarting)).any()
        over = done | cut
        if same_step:
            age = np.where(over, 1, age + 1)
            length = np.where(over, draw(rng, num_envs), length)
        else:
            restarting = over


def distance(ages, survival):
    share = survival / survival.sum()
    size = max(len(share), int(ages.max()))
    found = np.bincount(ages, minlength=size + 1)[1 : size + 1] / len(ages)
    return 0.5 * np.abs(found - np.append(share, np.zeros(size - len(share)))).sum()


def chance_alone(survival, num_envs):
    """E[TV] of independent environments at steady state: a mean absolute deviation for each age."""
    share = survival / survival.sum()
    return 0.5 * float(np.sqrt(2 * share * (1 - share) / (np.pi * num_envs)).sum())


@pytest.mark.parametrize("same_step", [True, False], ids=["SAME_STEP", "NEXT_STEP"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_controller_is_at_the_bound_at_every_time(family, same_step):
    # Squares of what is systematic and of chance add, so what is above the bound is compared with chance alone; where
    # truncations still go on, nothing is left to chance but ends, and 0.01 holds without it.
    num_envs = 20_000
    survival = survival_of(FAMILIES[family])
    stream = survival if same_step else np.append(1.0, survival)
    mean = stream.sum()
    lengths = EpisodeLengths(np.append(np.zeros(2 if same_step else 1), -np.diff(np.append(stream, 0.0))))
    bound = anytime_distance(lengths, int(2 * mean) + 1, same_step=same_step)
    times = {int(c * mean) for c in AEL}
    for t, ages, _, _ in simulate(FAMILIES[family], num_envs, int(2 * mean), same_step=same_step):
        if t in times:
            above = distance(ages, stream) - bound[t - 1]
            assert above < 0.01 + (chance_alone(stream, num_envs) if t > mean else 0.0)


@pytest.mark.parametrize("num_envs", [8, 16, 64, 256, 4096])
def test_few_environments_are_spread_nearly_as_evenly_as_they_can_be(num_envs):
    # The best that N environments can do is to stand at the quantiles (i - 1/2) / N: 1 / (2 N) in the distribution
    # function. Independent ones have 0.87 / sqrt(N) on average: 0.31, 0.22, 0.11, 0.054, 0.014.
    survival = survival_of(fixed(200))
    target = np.cumsum(survival) / survival.sum()
    found = []
    for t, ages, _, _ in simulate(fixed(200), num_envs, 600):
        if t > 200 and t % 7 == 0:
            share = np.cumsum(np.bincount(ages, minlength=201)[1:]) / num_envs
            found.append(np.abs(share - target).max())
    assert np.mean(found) < 4 / num_envs
    assert np.mean(found) < 0.75 * 0.87 / np.sqrt(num_envs)


@pytest.mark.parametrize("num_envs", [8, 64, 1024])
@pytest.mark.parametrize("family", ["normal", "either", "geometric", "uniform"])
def test_when_all_is_well_hardly_anybody_is_truncated(family, num_envs):
    # An alarm by chance alone has a probability of about 0.001 a look (Kolmogorov-Smirnov), and some sqrt(N)
    # truncations: 0.05 per environment and episode would take an alarm in every other episode. Seeds are fixed.
    survival = survival_of(FAMILIES[family])
    mean = survival.sum()
    begin, end = int(5 * mean), int(30 * mean)
    cuts = {}
    for t, _, _, controller in simulate(FAMILIES[family], num_envs, end + 1, seed=num_envs):
        cuts[t] = controller.cuts
    assert (cuts[end] - cuts[begin]) / num_envs / 25 < 0.05


CHANGES = {
    "20 to 500": (fixed(20), fixed(500)),
    "normal 50 to 300": (normal(50, 10), normal(300, 60)),
    "geometric 20 to 100": (geometric(20), geometric(100)),
    "fixed to either": (fixed(100), either(40, 400)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_after_lengths_grow_the_ages_are_as_good_as_they_can_be_from_where_they_were(change):
    before, after = CHANGES[change]
    num_envs, survival = 4096, survival_of(after)
    mean, at = survival.sum(), int(5 * survival_of(before).sum()) + 7
    times = {at + int(c * mean): int(c * mean) for c in AEL}
    share = survival / survival.sum()
    for t, ages, length, _ in simulate(before, num_envs, max(times) + 1, change=after, at=at):
        if t == at:
            first, old = ages.copy(), length.copy()
        if t in times:
            later = times[t]  # running episodes keep their old lengths: who can still be there is known exactly
            there = np.bincount((first + later)[old >= first + later], minlength=len(share) + 1) / num_envs
            possible = np.maximum(share - there[1 : len(share) + 1], 0.0)[later:].sum()
            assert distance(ages, survival) - possible < 0.05 + chance_alone(survival, num_envs)


def test_after_lengths_fall_from_200_to_20_the_ages_are_right_60_steps_later():
    for t, ages, _, _ in simulate(fixed(200), 4096, 1061, change=fixed(20), at=1000):
        if t == 1060:
            assert distance(ages, np.ones(20)) < 0.05


def test_reachable_from_the_start_is_the_bound_itself():
    lengths = EpisodeLengths.from_gymnasium([3, 5, 5, 9])
    np.testing.assert_allclose(
        reachable_distance([1.0], lengths, 10)[:9], anytime_distance(lengths, 10)[1:10], atol=1e-12
    )


@pytest.mark.parametrize("same_step", [True, False])
@pytest.mark.parametrize("num_envs", [1, 2, 7, 64])
def test_shell_and_law_truncate_the_same_and_reports_change_nothing(num_envs, same_step):
    state = stagger_law.init(num_envs, 512, seed=5)
    rng = np.random.default_rng(5)
    controller = StaggerController(num_envs, same_step=same_step, seed=5)
    watched = StaggerController(num_envs, same_step=same_step, seed=5)
    for t in range(600):
        ages = stagger_law.reached(state, same_step)
        done = (rng.random(num_envs) < 1 / 25) & (ages > 1)
        state, cut = stagger_law.step(state, done, same_step=same_step)
        np.testing.assert_array_equal(controller.step(done), cut, err_msg=f"step {t}")
        np.testing.assert_array_equal(watched.step(done), cut)
        if t % 11 == 0:
            assert watched.phase.steps == (t + 1) * num_envs
            assert watched.lengths is None or watched.lengths.mean > 1
    assert controller.cuts == state.cuts


@pytest.mark.parametrize("same_step", [True, False])
def test_reports_change_no_digit_of_later_reports(same_step):
    # Training reports after every update; a resumed run repeats the steps without, and must go on to the same bytes.
    for seed in range(4):
        rng = np.random.default_rng(seed)
        watched, other = (StaggerController(4, same_step=same_step, seed=seed) for _ in range(2))
        for t in range(1500):
            done = rng.random(4) < 0.1 / 3 ** (t / 300)  # episodes become longer and longer
            done &= watched.ages > (0 if same_step else 1)
            done &= ~watched.restarting
            np.testing.assert_array_equal(watched.step(done), other.step(done))
            if t % 32 == 31:
                assert watched.phase.steps == (t + 1) * 4
        assert watched.phase == other.phase
        states = watched.state(), other.state()
        assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def test_the_same_seed_truncates_the_same_and_a_saved_state_goes_on(tmp_path):
    rng = np.random.default_rng(0)
    flags = rng.random((900, 32)) < 1 / 40
    whole = StaggerController(32, same_step=True, seed=9)
    first = [whole.step(done) for done in flags]
    part = StaggerController(32, same_step=True, seed=9)
    for done, cut in zip(flags[:500], first, strict=False):
        np.testing.assert_array_equal(part.step(done), cut)
    np.savez(tmp_path / "state.npz", **part.state())
    other = StaggerController(32, same_step=True, seed=1)
    with np.load(tmp_path / "state.npz", allow_pickle=False) as saved:
        other.restore(saved)
    for done, cut in zip(flags[500:], first[500:], strict=True):
        np.testing.assert_array_equal(other.step(done), cut)
    assert other.cuts == whole.cuts


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (np.zeros(5, dtype=bool), r"shape \(5,\)"),
        (np.zeros((4, 1), dtype=bool), "shape"),
        (np.array([0.0, np.nan, 0.0, 1.0]), "booleans"),
        (np.array([0, 1, 2, 0]), "booleans"),
        ("no", "shape"),
        (None, "shape"),
        (["a", "b", "c", "d"], "booleans"),
        (True, "shape"),
    ],
)
def test_what_is_no_flag_for_each_environment_is_refused_and_changes_nothing(done, words):
    controller = StaggerController(4, same_step=True, seed=0)
    with pytest.raises(StaggerError, match=words):
        controller.step(done)
    assert controller.ages.tolist() == [1, 1, 1, 1]
    assert controller.phase.steps == 0


@pytest.mark.parametrize(
    "arguments",
    [{"num_envs": 0}, {"num_envs": 2.5}, {"num_envs": True}, {"same_step": "yes"}, {"seed": -1}, {"seed": 0.5}],
)
def test_arguments_that_make_no_sense_are_refused(arguments):
    with pytest.raises(StaggerError):
        StaggerController(**{"num_envs": 4, "same_step": True, "seed": 0} | arguments)


def test_an_end_in_the_step_of_a_reset_is_refused():
    controller = StaggerController(3, same_step=False, seed=0)
    controller.step([False, True, False])
    with pytest.raises(StaggerError, match="at least one action"):
        controller.step([False, True, False])


def test_a_state_of_other_environments_is_refused():
    with pytest.raises(StaggerError, match="4 environments"):
        StaggerController(4, same_step=True).restore(StaggerController(5, same_step=True).state())
    with pytest.raises(StaggerError, match="missing"):
        StaggerController(4, same_step=True).restore({"ages": np.ones(4)})


def test_episodes_of_no_action_have_no_place_in_a_stream_without_resets():
    with pytest.raises(LengthsError, match="no action"):
        anytime_distance(EpisodeLengths([0.0, 0.5, 0.5]), 3)


@pytest.mark.parametrize("num_envs", [12, 60, 240])
def test_after_a_reset_of_all_no_age_is_left_out(num_envs):
    """Lengths are known by then, and episodes of one length never fill a gap by themselves."""
    controller, length = StaggerController(num_envs, same_step=True, seed=0), 12
    for t in range(10 * length):
        if t == 5 * length:
            controller.reset()
        controller.step(controller.ages == length)
    assert np.bincount(controller.ages, minlength=length + 1)[1:].tolist() == [num_envs // length] * length


@pytest.mark.parametrize("num_envs", [2, 8, 64])
@pytest.mark.parametrize("steps", [20, 400])
def test_what_could_not_be_truncated_is_not_made_up_for_later(num_envs, steps):
    """Episodes of one action leave nobody to truncate. What was owed grew, and later every episode was truncated."""

    def run(controller, length, count):
        before = controller.cuts
        for _ in range(count):
            controller.step((controller.ages >= length) & ~controller.restarting)
        return controller.cuts - before

    controller = StaggerController(num_envs, same_step=False, seed=0)
    assert run(controller, 1, steps) == 0
    usual = run(StaggerController(num_envs, same_step=False, seed=0), 20, 600)
    assert run(controller, 20, 600) <= 3 * usual + 10 * num_envs  # 300 to 2,400 with 8 environments, before
    assert not controller.active


@pytest.mark.parametrize("late_cuts", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_two_environments_grow_old(late_cuts, seed):
    """The only candidate was truncated in every other step, for ever, in a quarter of these runs with late cuts."""
    rng = np.random.default_rng(seed)
    controller = StaggerController(2, same_step=True, late_cuts=late_cuts, seed=seed)
    lengths, late = 9 + rng.geometric(1 / 13, 2), np.zeros(2, dtype=bool)
    for step in range(1200):
        done = (controller.ages >= lengths) | late
        cut = controller.step(done)
        late = cut & late_cuts
        lengths = np.where(done | cut, 9 + rng.geometric(1 / 13, 2), lengths)
        assert step < 800 or not cut.any()
