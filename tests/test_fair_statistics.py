"""Fair statistics: the formula, its intervals, forgetting, what is refused, and the wrapper in every autoreset mode."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from scripted import Clock, Drawn
from steadyrl import FairStatistics, RecordFairStatistics, StaggeredVectorEnv
from steadyrl.errors import StatisticsError, WrapperError
from steadyrl.live import fair_law as law
from steadyrl.live.fair_report import jackknife_interval
from steadyrl.live.fair_statistics import tracking_memory


def stream(lengths, num_envs, steps, rng, *, rewards=None, steady=False, cuts=0.0, same_step=True):
    """Return first ages, rewards, ends and cuts of environments whose lengths are drawn from a list, all alike."""
    rewards = rewards or (lambda length, rng: np.ones(length))
    shape = steps, num_envs
    r, ended, cut, ages = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape, bool), np.ones(num_envs, int)
    lengths = np.asarray(lengths)
    for i in range(num_envs):
        t, first, length = 0, 1, int(rng.choice(lengths))
        if steady:
            length = int(rng.choice(lengths, p=lengths / lengths.sum()))
            first = ages[i] = int(rng.integers(1, length + 1))
        while t < steps:
            left = length - first + 1
            until = int(rng.geometric(cuts)) if cuts else left
            taken = min(left, until, steps - t)
            r[t : t + taken, i] = rewards(length, rng)[first - 1 : first - 1 + taken]
            if taken == min(left, until):
                (ended if left <= until else cut)[t + taken - 1, i] = True
            t, first, length = t + taken + (not same_step), 1, int(rng.choice(lengths))
    return ages, r, ended, cut


def watch(found, ages, rewards, ended, cut, **arguments):
    """Return fair statistics of a whole stream."""
    statistics = FairStatistics(rewards.shape[1], ages=ages, **arguments)
    for row in zip(rewards, ended, cut, strict=True):
        statistics.update(*row)
    return statistics if found is None else getattr(statistics, found)()


def by_definition(ages, rewards, ended, cut, same_step):
    """Return J, E[L], the unresolved share and the mean over finished episodes, from dictionaries of visits."""
    visits, finished = {}, []
    for i in range(rewards.shape[1]):
        age, total, whole = int(ages[i]), 0.0, ages[i] == 1
        for t in range(len(rewards)):
            if age:
                visits.setdefault(age, []).append((rewards[t, i], ended[t, i]))
                total += rewards[t, i]
            over = ended[t, i] or cut[t, i]
            finished += [total] if ended[t, i] and whole else []
            age = int(same_step) if over else age + 1
            total, whole = (0.0, True) if over else (total, whole)
    survival, value, length = 1.0, 0.0, 0.0
    for age in range(1, max(visits) + 1):
        at = np.array(visits[age], dtype=float)
        value, length = value + survival * at[:, 0].mean(), length + survival
        survival *= 1 - at[:, 1].mean()
    return value, length, survival, np.mean(finished)


@pytest.mark.parametrize("same_step", [True, False])
@pytest.mark.parametrize(("steady", "cuts"), [(False, 0.0), (True, 0.0), (False, 0.05), (True, 0.05)])
def test_the_mean_return_is_survival_times_reward_summed_over_ages(same_step, steady, cuts):
    rng = np.random.default_rng(5)
    drawn = stream(
        range(1, 13),
        20,
        300,
        rng,
        rewards=lambda n, r: r.normal(n, 1, n),
        steady=steady,
        cuts=cuts,
        same_step=same_step,
    )
    report = watch("report", *drawn, same_step=same_step)
    value, length, unresolved, finished = by_definition(*drawn, same_step)
    assert report.mean_return.value == pytest.approx(value, rel=1e-12)
    assert report.mean_gymnasium_length.value == pytest.approx(length, rel=1e-12)
    assert report.average_episode_length.value == pytest.approx(length + 1, rel=1e-12)
    assert report.unresolved == pytest.approx(unresolved, abs=1e-12)
    assert report.finished_only == pytest.approx(finished, rel=1e-12)
    assert report.mean_return.low < value < report.mean_return.high


@pytest.mark.parametrize("num_envs", [1, 7])
@pytest.mark.parametrize("memory", [None, 30.0])
@pytest.mark.parametrize("same_step", [True, False])
def test_the_shell_counts_as_the_law_does_step_by_step(num_envs, memory, same_step):
    rng = np.random.default_rng(2)
    ages, rewards, ended, cut = stream(range(1, 9), num_envs, 700, rng, cuts=0.05, steady=True, same_step=same_step)
    success = rng.random(ended.shape) < 0.5
    statistics = FairStatistics(num_envs, same_step=same_step, ages=ages, memory=memory)
    state = law.init(num_envs, ages)
    for r, e, c, s in zip(rewards, ended, cut, success, strict=True):
        statistics.update(r, e, c, s)
        state = law.step(state, r, e, c, s, same_step=same_step, memory=memory or math.inf)
    found = statistics.state()
    for name in ("tables", "finished", "last_rewards"):
        one, other = found[name] / found["weight"], getattr(state, name) / state.weight
        np.testing.assert_allclose(one[..., 1:], other[..., 1:], rtol=1e-9, atol=1e-12)
    for name in ("ages", "whole", "returns", "groups", "range", "steps", "ended", "cut", "complete"):
        np.testing.assert_allclose(found[name], getattr(state, name), rtol=1e-9, atol=1e-12)


def test_finished_episodes_show_three_quarters_of_the_truth_and_fair_statistics_all_of_it():
    # Lengths 50 or 400, half each: 225. One repeat has a standard deviation of 5.3%, the mean of 40 one of 0.84%, so
    # 3.4% are 4 standard errors: a false alarm in 16,000.
    rng = np.random.default_rng(0)
    reports = [watch("report", *stream([50, 400], 64, 600, rng), same_step=True) for _ in range(40)]
    fair = np.mean([report.mean_return.value for report in reports]) / 225
    finished = np.mean([report.finished_only for report in reports]) / 225
    assert abs(fair - 1) < 0.034
    assert 0.7 < finished < 0.8


PARETO = np.ceil(8 * (1 - np.arange(0.5, 2000) / 2000) ** (-1 / 2.5)).astype(int)  # 8, ..., 221; heavy-tailed
SCALES = 10.0 ** (np.arange(25) // 5 % 4)  # rewards of the k-th step are about 1, 10, 100, 1000, 1

COVERED = {
    "in lockstep": ([8, 40], 16, 100, {}, 24.0),
    "at steady state": ([8, 40], 16, 100, {"steady": True}, 24.0),
    "with cuts, NEXT_STEP": ([8, 40], 16, 100, {"cuts": 0.02, "same_step": False}, 24.0),
    "few environments": (range(5, 26), 4, 150, {}, 15.0),
    "one environment": (range(5, 26), 1, 600, {}, 15.0),
    "heavy tails": (range(5, 16), 32, 60, {"rewards": lambda n, r: np.full(n, r.lognormal())}, 10 * math.exp(0.5)),
    "rewards at the end": (
        range(5, 26),
        24,
        60,
        {"rewards": lambda n, r: np.append(np.zeros(n - 1), r.random() < n / 30)},
        0.5,
    ),
    "negative rewards": (range(10, 31), 8, 90, {"rewards": lambda n, r: r.normal(-1, 1, n), "steady": True}, -20.0),
    "mean length near the window": (range(20, 61), 24, 62, {}, 40.0),
    "Pareto lengths": (PARETO, 24, 120, {"cuts": 0.01, "steady": True, "same_step": False}, PARETO.mean()),
    "scales by age": (
        range(5, 26),
        24,
        60,
        {"rewards": lambda n, r: SCALES[:n] * r.normal(1, 0.5, n)},
        np.mean([SCALES[:n].sum() for n in range(5, 26)]),
    ),
    "two environments": (range(5, 26), 2, 300, {"steady": True, "cuts": 0.02}, 15.0),
    "a memory": ([8, 40], 16, 250, {"memory": 100}, 24.0),
}


@pytest.mark.parametrize("setting", COVERED)
def test_nine_tenths_of_the_intervals_contain_the_truth(setting):
    lengths, num_envs, steps, arguments, truth = COVERED[setting]
    watched = {"same_step": arguments.get("same_step", True), "memory": arguments.get("memory")}
    drawn = {name: value for name, value in arguments.items() if name != "memory"}
    inside = 0
    for seed in range(150):
        rng = np.random.default_rng([seed, 3])
        interval = watch("report", *stream(lengths, num_envs, steps, rng, **drawn), **watched).mean_return
        inside += interval.low <= truth <= interval.high
    # 150 intervals that cover 87 to 93% are outside of these limits about once in 1,000.
    assert 117 <= inside <= 148


def test_an_unseen_rest_of_episodes_is_said_in_words_and_bounded():
    drawn = stream([50, 400], 64, 300, np.random.default_rng(0))
    report = watch("report", *drawn, same_step=True)
    _, _, unresolved, _ = by_definition(*drawn, same_step=True)
    assert report.unresolved == pytest.approx(unresolved)
    assert 0.3 < unresolved < 0.7
    assert report.oldest_age == 300
    assert report.return_bounds[0] <= 225
    assert report.return_bounds[1] == math.inf
    assert "outlive the oldest age seen (300 steps)" in str(report)
    assert "or more" in str(report)
    limited = watch("report", *drawn, same_step=True, max_episode_steps=400)
    assert limited.return_bounds[0] < 225 < limited.return_bounds[1] < 400
    assert "between" in str(limited)
    assert limited.mean_return.low < 225 < limited.mean_return.high


def test_a_small_rest_goes_on_like_the_oldest_ages():
    # Dictionaries of visits again: the ages with 20 ends, from the oldest down, have a hazard and a reward.
    rng = np.random.default_rng(4)
    lengths = np.minimum(rng.geometric(0.1, 20_000), 200)
    ages, rewards, ended, cut = stream(
        lengths, 128, 32, rng, rewards=lambda n, r: np.append(r.normal(2, 1, n - 1), r.normal(-5, 1))
    )
    report = watch("report", ages, rewards, ended, cut, same_step=True)
    value, length, unresolved, _ = by_definition(ages, rewards, ended, cut, True)
    assert 0.01 < unresolved < 0.05
    age, visits = ages.copy(), []
    for r, e in zip(rewards, ended, strict=True):
        visits += zip(age, r, e, strict=True)
        age = np.where(e, 1, age + 1)
    ends = sorted(a for a, _, e in visits if e)
    old = [(r, e) for a, r, e in visits if a >= ends[-20]]
    assert ends[-20] > 16
    assert report.oldest_age == 32
    last, inner = np.mean([r for _, r, e in visits if e]), np.mean([r for _, r, e in visits if not e])
    more = len(old) / (sum(e for _, e in old) + 0.5)
    rate = (sum(r for r, _ in old) - (last - inner) * sum(e for _, e in old)) / len(old)
    assert report.extrapolated == pytest.approx((unresolved * (more * rate + last - inner), unresolved * more))
    assert report.mean_return.value == pytest.approx(value + report.extrapolated[0])
    assert report.mean_gymnasium_length.value == pytest.approx(length + report.extrapolated[1])
    assert f"go on for {more:.4g} more steps" in str(report)
    limited = watch("report", ages, rewards, ended, cut, same_step=True, max_episode_steps=33)
    assert limited.extrapolated[1] == pytest.approx(unresolved)  # one more step at most


def test_in_a_window_of_three_mean_lengths_a_constant_hazard_is_known_without_bias():
    # The first 60 steps alone are 4% short. One repeat has a standard deviation of 7.5%, the mean of 200 one of 0.53%,
    # so 2.2% are 4 standard errors: a false alarm in 16,000.
    rng = np.random.default_rng(0)
    lengths = rng.geometric(1 / 20, 100_000)
    reports = [watch("report", *stream(lengths, 64, 60, rng), same_step=True) for _ in range(200)]
    assert abs(np.mean([report.mean_return.value for report in reports]) / lengths.mean() - 1) < 0.022
    assert np.mean([report.finished_only for report in reports]) / lengths.mean() < 0.75


def test_nothing_is_unresolved_once_every_episode_has_been_seen_to_its_end():
    report = watch("report", *stream([3, 5], 16, 50, np.random.default_rng(0)), same_step=True)
    assert report.unresolved == 0
    assert report.return_bounds == (report.mean_return.low, report.mean_return.high)
    assert "outlive" not in str(report)


def test_episodes_that_never_end_are_unresolved():
    statistics = FairStatistics(4, same_step=False)
    for _ in range(10):
        statistics.update(np.full(4, -1.0), np.zeros(4, bool))
    report = statistics.report()
    assert (report.unresolved, report.oldest_age, report.finished_episodes) == (1.0, 10, 0)
    assert math.isnan(report.finished_only)
    assert report.mean_return.value == pytest.approx(-10)
    assert report.mean_return.low < -20
    assert report.return_bounds == (-math.inf, pytest.approx(-11))
    assert report.average_episode_length.value == pytest.approx(11)


def test_a_gap_in_the_ages_is_bridged_if_it_is_short_and_else_the_rest_is_unresolved():
    # Ages 1 to 4 are seen, and 6 to 9: one unseen age is bridged. Ages 60 to 63 are too far away.
    statistics = FairStatistics(2, same_step=True, ages=[1, 6])
    for t in range(4):
        statistics.update([1.0, 1.0], [False, t == 3])
    report = statistics.report()
    assert report.oldest_age == 9
    assert report.mean_return.value == pytest.approx(5 + 4 * 7 / 8)  # the pooled hazard is 1/8, at age 5
    assert report.unresolved == 0
    far = FairStatistics(2, same_step=True, ages=[1, 60])
    for _ in range(4):
        far.update([1.0, 1.0], [False, False])
    assert (far.report().oldest_age, far.report().unresolved) == (4, 1.0)


def test_environments_that_are_met_in_old_age_only_leave_everything_unresolved():
    statistics = FairStatistics(3, same_step=True, ages=[100, 101, 102])
    statistics.update(np.ones(3), [False, True, False])
    report = statistics.report()
    assert (report.unresolved, report.oldest_age, report.mean_return.value) == (1.0, 0, 0.0)


def test_a_memory_follows_a_policy_that_learns():
    rng = np.random.default_rng(1)
    before = stream([10], 32, 1000, rng)
    after = stream([60], 32, 1000, rng, rewards=lambda n, r: np.full(n, 2.0))
    both = [np.ones(32, int), *(np.concatenate([x, y]) for x, y in zip(before[1:], after[1:], strict=True))]
    fresh = watch("report", *both, same_step=True, memory=150)
    stale = watch("report", *both, same_step=True)
    # At the end the old policy's steps weigh exp(-1000 / 150) = 0.13% together, but all of the ends at age 10.
    assert fresh.mean_return.value == pytest.approx(120, rel=0.05)
    assert fresh.finished_only == pytest.approx(120, rel=0.05)
    assert stale.mean_return.value < 60
    assert fresh.window == pytest.approx(150, rel=0.01)
    assert stale.window == 2000


def learning(num_envs, steps, rng):
    """Return by how many steps the fair mean, and that of the last 100 finished, lag while lengths grow to 60."""
    statistics, ages, finished, late = FairStatistics(num_envs, same_step=True), np.ones(num_envs, int), [], []
    for step in range(steps):
        length = 10 + 50 * step / steps
        ended = rng.random(num_envs) < 1 / length
        statistics.update(np.ones(num_envs), ended)
        finished = [*finished, *ages[ended]][-100:]
        ages = np.where(ended, 1, ages + 1)
        if step % 50 == 49:
            report = statistics.report()
            statistics.memory = tracking_memory(100, num_envs, report.mean_gymnasium_length.value)
            late.append((length - report.mean_return.value, length - np.mean(finished)))
    return np.mean(late[len(late) // 4 :], axis=0) / (50 / steps)


def test_with_the_memory_for_training_the_fair_mean_follows_more_closely_than_finished_episodes():
    # The mean of 12 lags is 110 steps with a standard error of 29, and 182 with 28; their difference is 72 with one of
    # 6. Four standard errors: a false alarm in 15,000.
    fair, finished = np.mean([learning(16, 3000, np.random.default_rng([seed, 8])) for seed in range(12)], axis=0)
    assert abs(fair - 110) < 116
    assert finished - fair > 48


def test_what_was_last_seen_long_ago_is_forgotten_altogether():
    rng = np.random.default_rng(1)
    before, after = stream([90], 8, 900, rng), stream([10], 8, 2000, rng)
    both = [np.ones(8, int), *(np.concatenate([x, y]) for x, y in zip(before[1:], after[1:], strict=True))]
    report = watch("report", *both, same_step=True, memory=100)
    assert report.mean_return.value == pytest.approx(10)
    assert report.unresolved == 0


def test_forget_drops_the_counts_and_keeps_the_ages():
    statistics = watch(None, *stream([7], 4, 10, np.random.default_rng(0)), same_step=True)
    statistics.forget()
    assert statistics.ages.tolist() == [4] * 4
    with pytest.raises(StatisticsError, match="nothing to report"):
        statistics.report()
    for t in range(11):
        statistics.update(np.full(4, 5.0), np.full(4, t in (3, 10)))
    report = statistics.report()
    assert (report.mean_return.value, report.finished_episodes) == (35.0, 4)  # the first four were not whole


def test_success_is_a_probability_with_an_interval_inside_zero_and_one():
    rng = np.random.default_rng(0)
    ages, rewards, ended, cut = stream([5, 9], 16, 90, rng)
    statistics = FairStatistics(16, same_step=True)
    for r, e in zip(rewards, ended, strict=True):
        statistics.update(r, e, success=e & (statistics.ages == 9))
    success = statistics.report().success
    assert abs(success.value - 0.5) < 0.15
    assert 0 < success.low < success.value < success.high < 1
    always = FairStatistics(16, same_step=True)
    for r, e in zip(rewards, ended, strict=True):
        always.update(r, e, success=np.ones(16, bool))
    assert always.report().success.value == pytest.approx(1)
    assert 0.9 < always.report().success.low < 1
    assert watch("report", ages, rewards, ended, cut, same_step=True).success is None


def test_rewards_of_resets_belong_to_no_episode():
    statistics = FairStatistics(2, same_step=False)
    for t in range(12):
        reward = 1.0 if t % 4 < 3 else math.nan  # the fourth step is the reset
        statistics.update(np.full(2, reward), np.full(2, t % 4 == 2))
    report = statistics.report()
    assert (report.mean_return.value, report.finished_only, report.reward_range) == (3.0, 3.0, (1.0, 1.0))
    assert report.average_episode_length.value == 4


def test_environments_may_be_reset_from_outside():
    statistics = FairStatistics(2, same_step=False)
    statistics.update([1.0, 1.0], [False, True])
    statistics.reset([True, True])
    assert statistics.ages.tolist() == [1, 1]
    for t in range(3):
        statistics.update([1.0, 1.0], [t == 2, t == 2])
    assert statistics.report().mean_return.value == pytest.approx(1 + 2 * 0.75)  # one of four ended at age 1
    assert statistics.report().finished_episodes == 3


def test_statistics_go_on_from_a_saved_state():
    drawn = stream(range(1, 9), 6, 300, np.random.default_rng(2))
    whole, first = watch("report", *drawn, same_step=True), FairStatistics(6, same_step=True)
    for row in zip(*(x[:130] for x in drawn[1:]), strict=True):
        first.update(*row)
    second = FairStatistics(6, same_step=True)
    second.restore(first.state())
    for row in zip(*(x[130:] for x in drawn[1:]), strict=True):
        second.update(*row)
    assert repr(second.report()) == repr(whole)
    with pytest.raises(StatisticsError, match="5 environments"):
        FairStatistics(5, same_step=True).restore(first.state())


def test_groups_are_merged_before_tables_become_too_large(monkeypatch):
    drawn = stream(range(100, 200), 64, 500, np.random.default_rng(2))
    separate = watch("report", *drawn, same_step=True)
    monkeypatch.setattr(law, "_LARGEST_TABLE", 5_000)
    merged = watch(None, *drawn, same_step=True)
    assert merged.report().mean_return.value == pytest.approx(separate.mean_return.value, rel=1e-12)
    assert merged.state()["tables"].shape[1] == 16
    width, before = (r.mean_return.high - r.mean_return.low for r in (merged.report(), separate))
    assert 0.5 < width / before < 2


def test_environments_that_run_for_ever_take_bounded_memory(monkeypatch):
    monkeypatch.setattr(law, "LONGEST", 100)
    statistics = FairStatistics(3, same_step=True, ages=[1, 1, 10**9])
    for _ in range(300):
        statistics.update(np.ones(3), np.zeros(3, bool))
    report = statistics.report()
    assert (report.oldest_age, report.unresolved, report.mean_return.value) == (100, 1.0, 100.0)
    assert statistics.state()["tables"].shape == (4, 3, 101)


def test_the_jackknife_of_a_mean_is_students_interval_or_wider():
    x = np.random.default_rng(0).exponential(size=12)
    found = jackknife_interval(x.mean(), (x.sum() - x) / 11, 0.9)
    reach = 1.7958848 * x.std(ddof=1) / math.sqrt(12)  # Student's t with 11 degrees of freedom, 0.95
    assert found.low == pytest.approx(x.mean() - reach)
    assert found.high > x.mean() + reach  # skewed to the right
    assert jackknife_interval(1.0, np.ones(1), 0.9).high == math.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"same_step": 1}, "same_step is 1"),
        ({"ages": [1, 0, 1]}, r"ages\[1\] is 0"),
        ({"ages": [1, 2.5, 1]}, r"ages\[1\] is 2.5"),
        ({"ages": [1, math.nan, 1]}, r"ages\[1\] is nan"),
        ({"ages": [1, 2]}, r"shape \(2,\)"),
        ({"memory": 0}, "memory is 0"),
        ({"memory": math.nan}, "memory is nan"),
        ({"reward_range": (1, 0)}, "reward_range"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, message):
    with pytest.raises(StatisticsError, match=message):
        FairStatistics(**{"num_envs": 3, "same_step": True} | arguments)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (([1.0, 2.0], [False] * 3), r"rewards have shape \(2,\)"),
        ((1.0, [False] * 3), "rewards have shape"),
        ((np.ones((3, 1)), [False] * 3), "rewards have shape"),
        (([1.0, math.nan, 1.0], [False] * 3), "reward of environment 1 is nan"),
        (([1.0, 1.0, -math.inf], [False] * 3), "reward of environment 2 is -inf"),
        ((["a"] * 3, [False] * 3), "rewards must be an array of real numbers"),
        ((np.ones(3), [False] * 4), r"ended has shape \(4,\)"),
        ((np.ones(3), [0, 2, 0]), "must hold booleans"),
        ((np.ones(3), [True] * 3, [False, True, False]), r"both set for environments \[1\]"),
        ((np.ones(3), [False] * 3, [True]), r"cut has shape \(1,\)"),
        ((np.ones(3), [False] * 3, None, [True]), r"success has shape \(1,\)"),
    ],
)
def test_a_step_that_cannot_be_used_is_refused_and_changes_nothing(step, message):
    statistics = FairStatistics(3, same_step=True)
    statistics.update(np.ones(3), [True, False, False])
    before = repr(statistics.report()), statistics.ages.tolist()
    with pytest.raises(StatisticsError, match=message):
        statistics.update(*step)
    assert (repr(statistics.report()), statistics.ages.tolist()) == before


def test_an_end_in_the_step_of_a_reset_is_refused():
    statistics = FairStatistics(2, same_step=False)
    statistics.update(np.ones(2), [True, False])
    with pytest.raises(StatisticsError, match=r"environments \[0\] ended in the step of their reset"):
        statistics.update(np.ones(2), [True, False])
    with pytest.raises(StatisticsError, match="level"):
        statistics.report(level=2)


def test_watching_counts_as_updating_does_and_is_checked_in_blocks():
    drawn = stream(range(1, 9), 6, 300, np.random.default_rng(2), same_step=False)
    updated, watched = watch(None, *drawn, same_step=False), FairStatistics(6, same_step=False)
    for r, e in zip(drawn[1], drawn[2], strict=True):
        watched.watch(r, e, np.zeros(6, bool))
    assert repr(watched.report()) == repr(updated.report())
    watched.watch([1.0, 1.0, math.nan, 1.0, 1.0, 1.0], np.zeros(6, bool), np.zeros(6, bool))
    with pytest.raises(StatisticsError, match="reward of environment 2 is nan"):
        watched.report()
    early = FairStatistics(2, same_step=False)
    for _ in range(2):
        early.watch(np.ones(2), [False, True], [False, False])
    with pytest.raises(StatisticsError, match=r"environments \[1\] ended in the step of their reset"):
        early.report()


@pytest.mark.parametrize("same_step", [True, False])
def test_steps_that_were_resets_are_not_counted(same_step):
    statistics = FairStatistics(2, same_step=same_step)
    for _ in range(3):
        statistics.update([1.0, 1.0], [False, False])
    statistics.update([100.0, 1.0], [False, False])
    statistics.restarted([True, False])
    assert statistics.ages.tolist() == [1, 5]
    for t in range(4):
        statistics.update([1.0, 1.0], [t == 3, t == 0])
    report = statistics.report()
    assert report.reward_range == (1.0, 1.0)
    assert report.mean_return.value == pytest.approx(4.5)  # at age 4 one of two episodes ends, at age 5 the other
    assert report.finished_only == pytest.approx(4.5)


def drive(envs, steps, *, mode):
    """Step a vector environment, with the resets that its autoreset mode leaves to the caller."""
    envs.reset(seed=0)
    for _ in range(steps):
        _, _, terminated, truncated, infos = envs.step(np.zeros(envs.num_envs, dtype=int))
        over = terminated | truncated
        if mode == AutoresetMode.DISABLED and over.any():
            envs.reset(options={"reset_mask": over})
    return infos


def clocks(mode, number=5, **arguments):
    return SyncVectorEnv([lambda: Clock(8, **arguments)] * number, autoreset_mode=mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("truncates", [False, True])
def test_the_wrapper_is_right_in_every_autoreset_mode(mode, truncates):
    envs = RecordFairStatistics(clocks(mode, truncates=truncates))  # rewards 1, 2, ..., 8
    drive(envs, 50, mode=mode)
    report = envs.report()
    assert report.mean_return.value == pytest.approx(36, rel=1e-12)
    assert report.average_episode_length.value == pytest.approx(9, rel=1e-12)
    assert report.finished_only == pytest.approx(36, rel=1e-12)
    assert report.unresolved == 0


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("inside", [False, True])
def test_the_wrapper_is_right_around_and_inside_staggered_environments(mode, inside):
    delays = [1, 2, 4, 5, 7]
    if inside:
        fair = RecordFairStatistics(clocks(mode))
        envs = StaggeredVectorEnv(fair, delays)
    else:
        fair = envs = RecordFairStatistics(StaggeredVectorEnv(clocks(mode), delays))
    drive(envs, 60, mode=mode)
    report = fair.report()
    assert report.mean_return.value == pytest.approx(36, rel=1e-12)
    assert report.mean_gymnasium_length.value == pytest.approx(8, rel=1e-12)
    assert report.finished_only == pytest.approx(36, rel=1e-12)
    assert len(set(fair.statistics.ages.tolist())) > 1
    assert fair.statistics.state()["cut"] > 0 or inside


def test_resets_by_flag_are_no_steps_of_an_episode():
    inner = RecordFairStatistics(gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="vector_entry_point"))
    outer = RecordFairStatistics(StaggeredVectorEnv(inner, [1, 2, 3, 5, 7, 8, 9, 11]))
    drive(outer, 80, mode=AutoresetMode.NEXT_STEP)
    one, other = inner.statistics.state(), outer.statistics.state()
    assert other["cut"] > 0
    np.testing.assert_array_equal(one["tables"][..., 1:], other["tables"][..., 1:])


def test_masked_resets_cut_running_episodes_short():
    mode = AutoresetMode.DISABLED
    envs = RecordFairStatistics(clocks(mode))
    envs.reset(seed=0)
    for t in range(40):
        _, _, terminated, _, _ = envs.step(np.zeros(5, dtype=int))
        mask = terminated | (np.arange(5) == t)
        if mask.any():
            envs.reset(options={"reset_mask": mask})
    assert envs.report().mean_return.value == pytest.approx(36, rel=1e-12)
    assert envs.report().finished_only == pytest.approx(36, rel=1e-12)


class Goal(Drawn):
    """Episodes of 2 steps fail, longer ones succeed; the info says so in the last step."""

    def step(self, action):
        age, reward, terminated, truncated, info = super().step(action)
        return age, reward, terminated, truncated, {"is_success": self.length > 2} if terminated else info


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("says", ["is_success", "function"])
def test_success_is_read_from_the_infos_or_by_a_function(mode, says):
    def longer(rewards, terminated, truncated, infos):
        return envs.statistics.ages > 2

    success = says if says == "is_success" else longer
    envs = RecordFairStatistics(SyncVectorEnv([Goal] * 16, autoreset_mode=mode), success=success)
    drive(envs, 150, mode=mode)
    report = envs.report()
    # Half of the episodes have 2 steps. About 500 episodes: 0.12 is more than 5 standard deviations.
    assert abs(report.success.value - 0.5) < 0.12
    assert report.success.low < 0.5 < report.success.high
    plain = RecordFairStatistics(SyncVectorEnv([Goal] * 2, autoreset_mode=mode), success=None)
    drive(plain, 20, mode=mode)
    assert plain.report().success is None


def test_a_summary_is_in_the_infos_only_if_it_is_asked_for():
    mode = AutoresetMode.SAME_STEP
    assert "fair" not in drive(RecordFairStatistics(clocks(mode)), 8, mode=mode)
    infos = drive(RecordFairStatistics(clocks(mode), summary=True), 8, mode=mode)
    assert infos["_fair"].all()
    assert infos["fair"]["r"].tolist() == [36.0] * 5
    assert infos["fair"]["l"].tolist() == [8.0] * 5


def test_the_time_limit_of_the_environments_bounds_what_is_unresolved():
    envs = RecordFairStatistics(gymnasium.make_vec("Pendulum-v1", 3, vectorization_mode="sync"))
    envs.reset(seed=0)
    for _ in range(100):
        envs.step(np.zeros((3, 1), dtype=np.float32))
    report = envs.report()
    assert envs.statistics.max_episode_steps == 200
    assert report.unresolved == 1
    assert math.isfinite(report.return_bounds[0])


def test_the_wrapper_refuses_what_it_cannot_use():
    with pytest.raises(WrapperError, match=r"not a gymnasium\.vector\.VectorEnv"):
        RecordFairStatistics(Clock())
    with pytest.raises(WrapperError, match="success is 3"):
        RecordFairStatistics(clocks(AutoresetMode.NEXT_STEP), success=3)
    with pytest.raises(WrapperError, match="level"):
        RecordFairStatistics(clocks(AutoresetMode.NEXT_STEP), level=1)


@pytest.mark.parametrize("memory", [None, 300.0])
def test_reports_change_no_digit_of_later_reports(memory):
    # `evaluate` reports once a second, by the clock; the same seed must give the same numbers all the same.
    rng = np.random.default_rng(0)
    watched, other = (FairStatistics(8, same_step=True, memory=memory) for _ in range(2))
    for t in range(1500):
        rewards, ended, cut = rng.normal(size=8), rng.random(8) < 0.02, rng.random(8) < 0.01
        for statistics in (watched, other):
            statistics.update(rewards, ended, cut & ~ended, success=ended)
        if t % 101 == 0:
            assert watched.report().steps == (t + 1) * 8
    assert watched.report() == other.report()
