"""Attacks on fair statistics, evaluations with a budget and audits of logs.

Every test here failed before the fault that it names was mended.
"""

import multiprocessing
import os
import random
import signal
import sys
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from scripted import Clock, Dice
from steadyrl import (
    EnvPoolVectorEnv,
    EpisodeLengths,
    FairStatistics,
    LearningProcess,
    Perturbation,
    PerturbedStarts,
    PhaseMonitor,
    PhaseTracker,
    RecordFairStatistics,
    Settings,
    StaggerController,
    StaggeredStart,
    StaggeredVectorEnv,
    audit_log,
    collect_episodes,
    collect_samples,
    compare_strategies,
    coupled_sampling,
    evaluate,
    gallery,
    marginal_moments,
    steady_state_mean,
    train,
)
from steadyrl.common.figures import check_picture
from steadyrl.common.intervals import mean_interval
from steadyrl.common.progress import progress_for
from steadyrl.diagnosis.audit import _Fair, _mean_rates, _Tails
from steadyrl.diagnosis.episode_logs import EpisodeLog, read_episode_log
from steadyrl.diagnosis.seen_ages import seen_ages
from steadyrl.errors import (
    FigureError,
    FileFormatError,
    PolicyError,
    RolloutError,
    StatisticsError,
    SteadyrlError,
    TrainingError,
)
from steadyrl.exact.validation import as_names
from steadyrl.integrations.sb3 import FairStatisticsCallback
from steadyrl.integrations.torch import TorchFairStatistics, TorchStagger
from steadyrl.lengths import find_drift, read_lengths

MAIN = os.getpid()


def two_dice():
    return SyncVectorEnv([Dice, Dice])


class Rude(Dice):
    """Does something odd in its second step."""

    def __init__(self, deed):
        super().__init__()
        self.deed = deed

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.steps == 2:
            if self.deed == "exit":
                sys.exit(0)
            if self.deed == "die" and os.getpid() != MAIN:
                os._exit(0)
            if self.deed == "hang" and os.getpid() != MAIN:
                time.sleep(600)
            if self.deed == "fork" and os.fork() == 0:
                return observation, reward, terminated, truncated, info
            if self.deed == "info":
                info = None
            if self.deed == "masked":
                reward = np.ma.masked_array([1.0], [True])
        return observation, reward, terminated, truncated, info


class Cell(gymnasium.Env):
    """Its observation is a state that its space does not have."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 7, 1.0, False, False, {}


class Restless(Dice):
    """Draws from Python's global generator."""

    def step(self, action):
        observation, *rest = super().step(action)
        return observation + np.float32(random.random()), *rest


# Evaluations with a budget


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_an_environment_that_exits_is_named(backend):
    with pytest.raises(RolloutError, match=r"Rude.*environment 0.*sys\.exit\(0\)"):
        evaluate(partial(Rude, "exit"), "uniform", steps=100, num_envs=2, backend=backend)


def test_an_environment_whose_process_dies_is_named():
    with pytest.raises(RolloutError, match=r"the process of environment 0 of .* ended"):
        evaluate(partial(Rude, "die"), "uniform", steps=100, num_envs=2, backend="processes")


def test_an_environment_that_hangs_is_ended_by_the_step_timeout():
    began = time.monotonic()
    with pytest.raises(SteadyrlError, match=r"took longer than step_timeout, 0\.5 s"):
        evaluate(partial(Rude, "hang"), "uniform", steps=100, num_envs=2, step_timeout=0.5)
    assert time.monotonic() - began < 60  # it sleeps 600


def test_a_child_that_an_environment_forks_does_not_go_on_with_the_evaluation(tmp_path):
    found = evaluate(partial(Rude, "fork"), "uniform", steps=100, num_envs=2, backend="serial", seed=1)
    with open(tmp_path / f"{os.getpid()}", "x"):  # two processes that go on from here would write two files
        pass
    assert found.report.steps == 100
    assert [file.name for file in tmp_path.iterdir()] == [str(MAIN)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(Rude, "info"), "info None.*not a dictionary"),
        (partial(Rude, "masked"), "reward .*not a number"),
        (Cell, "observation 7, which is not in 0, ..., 2"),
    ],
)
def test_what_is_no_info_no_reward_and_no_state_is_refused(make, words):
    with pytest.raises(RolloutError, match=words):
        evaluate(make, "uniform", steps=100, num_envs=2, backend="serial")


@pytest.mark.parametrize("at", [0, 9])
def test_a_policy_that_exits_is_an_error(at):
    calls = []

    def leave(observations):
        calls.append(None)
        if len(calls) > at:
            sys.exit(0)
        return np.zeros(len(observations), dtype=int)

    with pytest.raises((RolloutError, PolicyError), match=r"SystemExit: 0|the policy called sys\.exit\(0\)"):
        evaluate(Dice, leave, steps=100, num_envs=2, backend="serial")


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_billion_environments_are_refused(backend):
    with pytest.raises(RolloutError, match="num_envs is 1,000,000,000"):
        evaluate(Dice, "uniform", steps=100, num_envs=10**9, backend=backend)


def test_an_evaluation_that_no_seed_repeats_is_warned_of():
    with pytest.warns(UserWarning, match="Restless"):
        evaluate(Restless, "uniform", steps=100, num_envs=2, backend="serial")


def test_ctrl_c_while_processes_are_started_is_not_lost():
    """Python only prints a KeyboardInterrupt that is raised while it forks, and goes on."""
    armed = [True]

    def press():
        if armed and os.getpid() == MAIN:
            armed.clear()
            os.kill(MAIN, signal.SIGINT)

    os.register_at_fork(after_in_parent=press)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Dice, "uniform", steps=100, num_envs=2, backend="processes")
    assert not armed
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("progress", ["yes", 3])
def test_progress_is_shown_on_a_stream_only(progress):
    with pytest.raises(SteadyrlError, match="progress is"):
        progress_for(progress)


def clocks_of(length):
    def make():
        return Clock(length)

    return make


def test_a_training_goes_on_with_the_same_environment_only(tmp_path):
    """Two factories of the same name that make different environments."""
    settings = Settings(updates=1, num_envs=2, n_steps=4, backend="serial", critic_epochs=1)
    train(clocks_of(8), settings, out=tmp_path / "run")
    with pytest.raises(TrainingError, match="make"):
        train(clocks_of(9), settings, out=tmp_path / "run", resume=True)


# Fair statistics


def test_intervals_of_huge_values_are_finite():
    values = 1e200 * np.array([1.0, 2.0, 3.0])
    for found, plain in (
        (mean_interval(values), mean_interval([1.0, 2.0, 3.0])),
        (steady_state_mean(values, [3, 4, 5]), steady_state_mean([1.0, 2.0, 3.0], [3, 4, 5])),
    ):
        np.testing.assert_allclose([found.low, found.high], np.array([plain.low, plain.high]) * 1e200, rtol=1e-12)


def test_rewards_as_large_as_can_be_squared_have_finite_intervals():
    reports = []
    for scale in (1.0, 1e200):
        statistics = FairStatistics(3, same_step=True)
        for step in range(12):
            statistics.update(
                scale * np.array([1.0, 2.0, 4.0]), np.array([step % 3 == 2, step % 4 == 3, step % 2 == 1])
            )
        reports.append(statistics.report().mean_return)
    np.testing.assert_allclose(
        [reports[1].value, reports[1].low, reports[1].high],
        1e200 * np.array([reports[0].value, reports[0].low, reports[0].high]),
        rtol=1e-9,
    )


def test_sums_that_overflow_are_an_error_and_not_infinite():
    def report():
        statistics = FairStatistics(2, same_step=True)
        for step in range(40):
            statistics.update([1.7e308, 1.7e308], [step % 4 == 3] * 2)
        return statistics.report()

    with pytest.raises(StatisticsError, match="overflow"):
        report()


@pytest.mark.parametrize(
    "call",
    [
        lambda flags: PhaseTracker(2, same_step=True).update(flags),
        lambda flags: StaggerController(2, same_step=True, seed=0).step(flags),
    ],
)
def test_masked_flags_are_refused(call):
    with pytest.raises(SteadyrlError, match="mask"):
        call(np.ma.masked_array([True, False], [True, False]))


@pytest.mark.parametrize("hidden", ["no", None, 2])
def test_whether_a_cut_hides_an_end_is_true_or_false(hidden):
    statistics = FairStatistics(2, same_step=True)
    with pytest.raises(StatisticsError, match=r"hidden is .*True or False"):
        statistics.update([1.0, 1.0], [False, False], [True, False], hidden=hidden)
    assert statistics.steps == 0


def test_a_mask_in_one_row_of_many_steps_is_not_lost():
    statistics = FairStatistics(2, same_step=True)
    with pytest.raises(StatisticsError, match="masked array"):
        statistics.update_many([np.ma.array([1.0, 1e9], mask=[False, True])], [[False, False]])
    assert statistics.steps == 0


def damaged_fair(name, value):
    statistics = FairStatistics(2, same_step=True)
    statistics.update([1.0, 1.0], [True, False])
    statistics.restore({**statistics.state(), name: value})


def damaged_controller(name, value):
    controller = StaggerController(2, same_step=True, seed=0)
    controller.step([True, False])
    controller.restore({**controller.state(), name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ages", np.array([1.5, 2.0])),
        ("ages", np.array([-1, 2])),
        ("weight", np.nan),
        ("weight", 0.0),
        ("groups", np.array([0, 99])),
        ("returns", np.zeros(3)),
        ("returns", np.array([np.nan, 0.0])),
        ("tables", np.zeros((1, 2))),
        ("with_success", "yes"),
    ],
)
def test_a_damaged_state_of_statistics_is_refused(name, value):
    with pytest.raises(StatisticsError):
        damaged_fair(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ages", np.array([-3, 2])),
        ("ages", np.array([1.5, 2.0])),
        ("known", np.array(10**6)),
        ("wait", np.array(0)),
        ("survival", np.zeros(3)),
        ("visits", np.array("no")),
        ("end_rate", np.array(np.nan)),
    ],
)
def test_a_damaged_state_of_a_controller_is_refused(name, value):
    with pytest.raises(SteadyrlError):
        damaged_controller(name, value)


@pytest.mark.parametrize("late", [False, True])
def test_a_controller_goes_on_from_its_state_at_every_step(late):
    rng, first = np.random.default_rng(0), StaggerController(8, same_step=True, seed=3, late_cuts=late)
    cut = np.zeros(8, dtype=bool)
    for _ in range(60):
        done = (rng.random(8) < 0.1) | (cut if late else False)
        second = StaggerController(8, same_step=True, seed=99, late_cuts=late)
        second.restore(first.state())
        cut = first.step(done).copy()
        np.testing.assert_array_equal(cut, second.step(done))


def test_restarted_is_about_the_last_step():
    statistics = FairStatistics(2, same_step=True)
    statistics.update([1.0, 1.0], [False, False])
    statistics.report()  # which changes nothing
    statistics.restarted([True, False])
    with pytest.raises(StatisticsError, match="right after update"):
        statistics.restarted([True, False])


def test_a_block_that_is_refused_is_not_counted_and_the_next_one_is():
    statistics = FairStatistics(2, same_step=True)
    never = np.zeros(2, dtype=bool)
    statistics.watch(np.array([np.nan, 1.0]), never, never)
    with pytest.raises(StatisticsError):
        statistics.report()
    assert statistics.ages.tolist() == [2, 2]
    for step in range(6):
        over = np.full(2, step % 3 == 2)
        statistics.watch(np.ones(2), over, never)
    # Ages 2, 3, 4 and then a whole episode of three steps, of which only ages 2 to 4 were seen before.
    assert np.isfinite(statistics.report().mean_return.value)


@pytest.mark.parametrize("value", ["False", np.nan, [1, 2], None])
def test_what_says_neither_yes_nor_no_is_no_success(value):
    class Says(Clock):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward, terminated, truncated, {"is_success": value} if terminated else info

    envs = RecordFairStatistics(SyncVectorEnv([partial(Says, 3)] * 2))
    envs.reset(seed=0)
    for _ in range(2):
        envs.step(np.zeros(2, dtype=int))
    with pytest.raises(StatisticsError, match="success"):
        envs.step(np.zeros(2, dtype=int))


def test_the_callback_refuses_a_memory_that_is_no_number():
    with pytest.raises(StatisticsError, match="memory"):
        FairStatisticsCallback(memory=np.array([1.0, 2.0]))


def test_many_steps_at_once_count_as_one_after_the_other():
    rng = np.random.default_rng(0)
    rewards, ended = rng.normal(size=(500, 4)), rng.random((500, 4)) < 0.1
    for same_step in (True, False):
        for memory in (None, 3.0, 40.0):
            if not same_step:
                for row, before in zip(ended[1:], ended, strict=False):
                    row[before] = False  # the step after an end is a reset
            one, many = (FairStatistics(4, same_step=same_step, memory=memory) for _ in range(2))
            for row, over in zip(rewards, ended, strict=True):
                one.update(row, over)
            many.update_many(rewards[:123], ended[:123])
            many.update_many(rewards[123:], ended[123:])
            a, b = one.report(), many.report()
            assert (a.steps, a.finished_episodes) == (b.steps, b.finished_episodes)
            np.testing.assert_allclose(
                [a.mean_return.value, a.mean_return.low, a.unresolved, a.finished_only],
                [b.mean_return.value, b.mean_return.low, b.unresolved, b.finished_only],
                rtol=1e-9,
            )


# Audits


def write(path, rows, names="r,l,t"):
    path.write_text(f"{names}\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("r,l,t\n1,3,1\n2,3\n1,3,2\n", "row 2 has fewer cells"),
        ("r,l,t\n1,3000000000,1\n", "whole numbers from 1 to"),
        ("step,l,r\n-5,3,1\n", "steps that are not numbers"),
        ("step,l,r\n1e300,3,1\n", "steps that are not numbers"),
    ],
)
def test_damaged_rows_and_numbers_beyond_all_bounds_are_refused(tmp_path, text, words):
    (tmp_path / "monitor.csv").write_text(text)
    with pytest.raises(FileFormatError, match=words):
        audit_log(tmp_path / "monitor.csv")


def test_a_file_that_is_given_twice_is_refused(tmp_path):
    file = write(tmp_path / "0.monitor.csv", [(1, 3, 1)] * 3)
    with pytest.raises(FileFormatError, match="given twice"):
        audit_log([file, tmp_path / "." / "0.monitor.csv"])


def test_names_that_only_look_like_numbers_are_no_trouble(tmp_path):
    for one in ("²", "1"):
        write(tmp_path / f"{one}.monitor.csv", [(3, 3, 0.1 * i) for i in range(40)])
    assert read_episode_log(tmp_path).num_envs == 2


@pytest.mark.parametrize("arguments", [{"points": 10**9}, {"points": 0}])
def test_a_billion_points_are_refused(tmp_path, arguments):
    file = write(tmp_path / "monitor.csv", [(3, 3, 0.1 * i) for i in range(40)])
    with pytest.raises(StatisticsError, match="points"):
        audit_log(file, **arguments)


def test_a_billion_environments_of_a_log_are_refused(tmp_path):
    file = write(tmp_path / "log.csv", [(3 * i, 3, 3) for i in range(1, 40)], "step,l,r")
    with pytest.raises(FileFormatError, match="num_envs"):
        audit_log(file, num_envs=10**9)


def test_a_picture_without_a_path_is_refused(tmp_path):
    file = write(tmp_path / "monitor.csv", [(3, 3, 0.1 * i) for i in range(40)])
    with pytest.raises(FigureError, match="path"):
        audit_log(file).plot(3)


def test_what_is_to_come_of_an_episode_is_the_sum_over_all_ages():
    """By the life table written out age by age, and by the entries at ages where something ended."""
    rng = np.random.default_rng(0)
    lengths, envs = rng.integers(1, 60, 300), np.sort(rng.integers(0, 4, 300))
    start = np.concatenate([np.cumsum(lengths[envs == i]) - lengths[envs == i] for i in range(4)])
    order = np.argsort(start + lengths, kind="stable")
    columns = (envs, start, lengths, rng.normal(size=300))
    log = EpisodeLog(*(column[order] for column in columns), None, 4, "made up", same_step=True)
    rest = np.array([0.5, -1.0, 2.0, 0.0])
    running = int(log.end[-1]) - log.last
    size = int(max(lengths.max(), running.max())) + 2
    ends, rates = np.zeros(size), np.zeros(size)
    visits = np.zeros(size)
    for age in range(1, size):
        ends[age] = np.sum(log.length == age)
        visits[age] = np.sum(log.length >= age) + np.sum(running >= age)
        rates[age] = np.sum((log.returns / log.length)[log.length >= age]) + np.sum(rest[running >= age])
    tails = _Tails(log, rest)
    for age in range(size):
        alive, returns, steps = 1.0, 0.0, 0.0
        for later in range(age + 1, size):
            if visits[later]:
                returns += alive * rates[later] / visits[later]
                steps += alive
                alive *= 1 - ends[later] / visits[later]
        assert tails.after(age) == pytest.approx((returns, steps), abs=1e-9)


@pytest.mark.parametrize("gap", [0, 1])
def test_a_hundred_thousand_episodes_of_a_thousand_environments_are_dealt_out(tmp_path, gap):
    """Each has as many as it ran, and they end when they did, with and without a step between them."""
    rng, count = np.random.default_rng(0), 1000
    lengths = rng.integers(50, 150, (count, 100))
    ends = np.cumsum(lengths + gap, axis=1) - gap
    rows = sorted(zip((ends * count).ravel().tolist(), lengths.ravel().tolist(), strict=True))
    log = read_episode_log(write(tmp_path / "log.csv", [(e, n, 1.0) for e, n in rows], "step,l,r"), num_envs=count)
    assert len(log.length) == 100 * count
    assert log.same_step == (not gap)
    order = np.lexsort((log.start, log.env))
    same = log.env[order][1:] == log.env[order][:-1]
    assert (log.start[order][1:] == log.end[order][:-1] + gap)[same].all()
    np.testing.assert_array_equal(np.sort(log.end), np.sort(ends.ravel()))


@pytest.mark.parametrize("counted_from", [-1, 0, 1])
@pytest.mark.parametrize("gap", [0, 1])
def test_episodes_are_dealt_out_to_the_environments_that_ran_them(tmp_path, gap, counted_from):
    """By chance many begin when one of another environment ended, and loggers differ in the first step's number."""
    rng = np.random.default_rng(0)
    for trial in range(100):
        count, longest = int(rng.integers(1, 7)), int(rng.choice([2, 4, 10, 50]))
        ran = []
        for _ in range(count):
            lengths = rng.integers(1 if trial % 2 else longest - 1, longest + 1, rng.integers(2, 12))
            ran += list(zip((np.cumsum(lengths + gap) - lengths - gap).tolist(), lengths.tolist(), strict=True))
        rows = sorted((count * (start + length + counted_from), length, 1.0) for start, length in ran)
        log = read_episode_log(write(tmp_path / "log.csv", rows, "step,l,r"), num_envs=count)
        assert sorted(zip(log.start.tolist(), log.length.tolist(), strict=True)) == sorted(ran), (trial, count)


def test_a_summary_inside_staggered_environments_does_not_disturb_the_count():
    """A summary looks at what is counted in the very step in which a staggered environment is reset by its flag."""
    reports = []
    for summary in (False, True):
        recorder = RecordFairStatistics(
            gymnasium.make_vec("CartPole-v1", 16, vectorization_mode="vector_entry_point"), summary=summary
        )
        envs = StaggeredVectorEnv(recorder, list(range(10, 42, 2)))
        envs.reset(seed=0)
        rng = np.random.default_rng(0)
        for _ in range(80):
            envs.step(rng.integers(0, 2, 16))
        reports.append(recorder.report())
    assert reports[0].mean_return == reports[1].mean_return
    assert reports[0].steps == reports[1].steps


# Calls with hostile arguments


class NoRepr:
    """An object that cannot be printed."""

    def __repr__(self):
        raise RuntimeError("no repr")


def nested(depth):
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: StaggerController(2, same_step=True, late_cuts=np.ones(3)), "late_cuts"),
        (lambda: StaggerController(2, same_step=True, late_cuts="no"), "late_cuts"),
        (lambda: StaggerController(2**31, same_step=True), "num_envs"),
        (lambda: FairStatistics(2**31, same_step=True), "num_envs"),
        (lambda: PhaseTracker(2**31, same_step=True), "num_envs"),
        (lambda: PhaseTracker(2, same_step=True, n_steps=2**31), "n_steps x num_envs"),
        (lambda: Perturbation(0.5).detour_probabilities(2**31), "longest"),
        (lambda: coupled_sampling(*gallery.corridor(3)[:2], Perturbation(0.5), 2**31, rng=None), "steps"),
        (lambda: read_lengths("x" * 5000), "not a file"),
        (lambda: collect_samples("CartPole-v1", "uniform", None, [3]), "rollouts is None"),
        (lambda: collect_episodes("x" * 5000, "uniform", 2), "Gymnasium cannot make"),
        (lambda: check_picture("x" * 5000), "picture format"),
        (
            lambda: PerturbedStarts(Dice(), 0.5, null_observation=torch.ones(2, requires_grad=True)),
            "requires grad",
        ),
        (lambda: compare_strategies(EpisodeLengths.from_gymnasium([3, 4]), time_limit=2**31), "time_limit"),
        (lambda: collect_episodes("\x1b[2J", "uniform", 2), r"^[^\x1b]*$"),
        (lambda: PerturbedStarts(Dice(), 0.5, null_observation=[nested(200)]), "null_observation"),
        (lambda: PerturbedStarts(Dice(), 0.5, null_observation=10**400), "null_observation"),
        (lambda: evaluate(Dice, torch.ones(3, requires_grad=True), steps=9), "requires grad"),
        (lambda: find_drift([3, 4, 5] * 20, rng=np.zeros(3)), "rng"),
        (lambda: marginal_moments(range(10**12), [1]), "sums is int"),
        (lambda: as_names(range(10**12), 2), "names has more than 2 entries"),
        (lambda: EnvPoolVectorEnv(NoRepr(), 2), "a NoRepr that cannot be shown"),
        (lambda: seen_ages(np.zeros((4, 1)), [1, 2, 1, 2], [0, 0, 1, 1], seed="no"), "seed"),
        (lambda: read_episode_log("nowhere.csv", num_envs=np.ones(3)), "num_envs"),
        (lambda: audit_log("nowhere.csv", num_envs=[1] * 100_000), "num_envs"),
        (lambda: PhaseMonitor(two_dice()).reset(options="../.."), "options"),
        (lambda: StaggeredVectorEnv(two_dice()).reset(options=1.5), "options"),
        (lambda: RecordFairStatistics(two_dice()).reset(seed=np.full((4, 2), 0.5)), "4 seeds for 2"),
        (lambda: PhaseMonitor(two_dice()).reset(seed=torch.ones(3)), "seed"),
        (lambda: RecordFairStatistics(two_dice()).reset(seed=np.array(3)), "seed"),
        (lambda: StaggeredVectorEnv(two_dice()).reset(seed=np.ma.masked), "seed"),
        (lambda: find_drift([3, 4, 5] * 20, false_alarms=1e-300), "permutations"),
        (lambda: collect_samples("CartPole-v1", "uniform", 2, [3], checkpoint="x" * 5000), "checkpoint"),
        (lambda: collect_samples("CartPole-v1", "uniform", 2, [3], episodes=None), "episodes is None"),
        (lambda: evaluate("CartPole-v1", torch.nn.Linear(2, 2), steps=9), "module Linear cannot act"),
        (lambda: PerturbedStarts(Dice(), 0.5, null_observation=range(10**12)), "takes too much memory"),
        (lambda: LearningProcess.from_mdp(range(10**12), [0], [1], terminal=[0]), r"shape \(\)"),
        (lambda: StaggeredStart(Dice(), 3, autoreset_mode=NoRepr()), "autoreset_mode"),
        (lambda: TorchStagger(2).step(torch.ones(2).to_sparse()), "dense"),
        (lambda: TorchFairStatistics(2).update(torch.ones(2), torch.ones(2, dtype=torch.complex64)), "real numbers"),
        (lambda: TorchFairStatistics(2).update(torch.ones(2, device="meta"), torch.zeros(2)), "rewards is on meta"),
    ],
)
def test_calls_that_a_fuzzer_found_end_in_a_sentence(call, words):
    with pytest.raises(SteadyrlError, match=words) as caught:
        call()
    assert len(str(caught.value)) < 1000


def test_a_checkpoint_may_be_named_in_bytes_and_a_memory_may_be_endless(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(collect_episodes("CartPole-v1", "uniform", 2, backend="serial", checkpoint=b"kept")) == 2
    statistics = FairStatistics(2, same_step=True, memory=1e308)
    statistics.update_many([[1.0, 2.0]] * 3, [[True, True]] * 3)
    assert statistics.report().mean_return.value == 1.5


def test_statistics_take_tensors_with_gradients_and_of_few_bits():
    statistics = TorchFairStatistics(2)
    statistics.update(torch.full((2,), 1.5, requires_grad=True), torch.tensor([1, 0]))
    statistics.update(torch.ones(2, dtype=torch.bfloat16), torch.tensor([1.0, 1.0]), torch.zeros(2))
    report = statistics.report()
    assert (report.mean_return.value, report.mean_gymnasium_length.value) == pytest.approx((5 / 3, 4 / 3), rel=1e-12)


def test_a_column_of_many_digits_is_refused(tmp_path):
    file = write(tmp_path / "lengths.csv", [(3, 1), (4, 2)], "l,t")
    with pytest.raises(FileFormatError, match="cannot be shown"):
        read_lengths(file, column=10**5000)


def test_a_seed_of_any_size_is_taken_and_repeats_itself():
    cuts = []
    for seed in (2**64, 2**64, 2**64 + 1):
        controller, rng = StaggerController(64, same_step=True, seed=seed), np.random.default_rng(0)
        cuts.append(np.array([controller.step(rng.random(64) < 0.05) for _ in range(40)]))
    np.testing.assert_array_equal(cuts[0], cuts[1])
    assert (cuts[0] != cuts[2]).any()


def test_rewards_of_transitions_of_the_only_action_may_be_one_matrix():
    transitions, rewards = np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([[0.0, 3.0], [0.0, 0.0]])
    one = LearningProcess.from_mdp(transitions[None], rewards, [1, 0], terminal=[1])
    other = LearningProcess.from_mdp(transitions[None], rewards[None], [1, 0], terminal=[1])
    assert one.digest == other.digest


def one_environment(returns):
    """The log of one environment whose episodes all have ten steps."""
    n = len(returns)
    whole = np.arange(n)
    return EpisodeLog(np.zeros(n, dtype=int), 10 * whole, np.full(n, 10), returns, None, 1, "a test")


def test_one_huge_return_does_not_spoil_the_means_after_it():
    """Differences of running sums lacked, in every later mean, the digits that 1e18 had taken."""
    returns = np.ones(300)
    returns[5] = 1e18
    assert audit_log(one_environment(returns), window=10).logged[-1] == 1.0


def test_returns_whose_sum_overflows_are_refused_without_a_warning(recwarn):
    with pytest.raises(StatisticsError, match="the sum of the returns overflows"):
        audit_log(one_environment(np.full(60, 1.7e308)))
    assert not recwarn


OUT_OF_RANGE = {
    "StaggerController": {
        "ages": [np.full(8, 2**62), np.full(8, 10**6)],
        "new_steps": [np.int64(2**63 - 1)],
        "time": [np.uint64(2**64 - 1), np.int64(-1)],
        "cuts": [np.int64(-1), np.int64(10**9)],
        "natural_ends": [np.uint64(2**64 - 1)],
        "visits": [np.inf, -1.0, 1e300],
        "ends": [np.inf, -1.0, 1e300],
        "new_visits": [np.inf, -1.0],
        "new_ends": [np.inf, -1.0, 1.0],
        "survival": [2.0, -1.0, np.inf],
        "pace": [np.inf, -1.0, 1e300],
        "end_rate": [np.inf, 1e300],
        "surprise_rate": [np.inf, 1e300],
        "carry": [np.inf, 1e300, -1e300],
    },
    "FairStatistics": {
        "ages": [np.full(8, 2**63 - 1), np.full(8, -1)],
        "weight": [np.inf, 0.0],
        "returns": [np.inf],
        "tables": [-1.0, -np.inf, np.inf],
        "finished": [-1.0, np.inf],
        "last_rewards": [-1.0],
        "complete": [np.int64(-1), np.int64(10**6)],
        "ended": [np.int64(10**6)],
        "steps": [np.int64(-1)],
        "range": [np.array([2.0, 1.0]), np.array([-np.inf, np.inf])],
    },
}


def after_some_steps(kind, same_step=True):
    """A controller, or statistics, of eight environments after a hundred steps."""
    made = StaggerController(8, same_step=same_step, seed=0) if kind == "StaggerController" else None
    made = FairStatistics(8, same_step=same_step) if made is None else made
    rng = np.random.default_rng(0)
    for _ in range(100):
        ended = (rng.random(8) < 0.1) & same_step
        made.step(ended) if kind == "StaggerController" else made.update(np.ones(8), ended)
    return made


@pytest.mark.parametrize("kind", list(OUT_OF_RANGE))
def test_a_state_with_a_number_out_of_range_is_refused(kind):
    """Such a state was taken, and ended in raw errors, negative numbers of steps, or means of negative weight."""
    state = after_some_steps(kind).state()
    for name, values in OUT_OF_RANGE[kind].items():
        for value in values:
            damaged = value if np.shape(value) else np.zeros_like(state[name], dtype=np.asarray(value).dtype) + value
            with pytest.raises(SteadyrlError, match=rf"{name}|ages"):
                after_some_steps(kind).restore({**state, name: damaged})
    after_some_steps(kind).restore(state)


@pytest.mark.parametrize("kind", list(OUT_OF_RANGE))
def test_a_state_of_tensors_is_gone_on_from(kind):
    """PyTorch's own way to load, which runs no code, takes tensors and no arrays."""
    state = after_some_steps(kind).state()
    again = after_some_steps(kind)
    again.restore({name: torch.as_tensor(value) for name, value in state.items()})
    np.testing.assert_equal(again.state(), state)


@pytest.mark.parametrize("kind", list(OUT_OF_RANGE))
def test_a_state_of_another_way_to_reset_is_refused(kind):
    with pytest.raises(SteadyrlError, match="saved with same_step=False"):
        after_some_steps(kind).restore(after_some_steps(kind, same_step=False).state())


def monitors(folder, lengths):
    """Monitor files of environments with episodes of these lengths; the return is the length."""
    folder.mkdir()
    for i, mine in enumerate(lengths):
        rows = "".join(f"{n},{n},{t}\n" for t, n in enumerate(mine))
        (folder / f"{i}.monitor.csv").write_text(f"#{{}}\nr,l,t\n{rows}")
    return folder


def test_environments_whose_logs_end_before_others_are_not_taken_to_run_on(tmp_path):
    """Twenty episodes in each of eight environments: the fair mean was 31.9, though the true one is 22.5."""
    rng = np.random.default_rng(0)
    each = rng.integers(5, 41, (8, 20))
    found = audit_log(monitors(tmp_path / "evaluation", each))
    first = int(each.sum(axis=1).min())
    assert int(found.steps[-1]) <= 8 * first
    assert f"up to {8 * first:,} steps, where the log of an environment ends" in found.message
    assert 18 < found.fair[-1] < 27  # 22.5, with a standard error of 1

    long = [rng.integers(5, 41, 200) for _ in range(7)]
    died = [*(mine[np.cumsum(mine) < 4000] for mine in long), rng.integers(5, 41, 20)]
    found = audit_log(monitors(tmp_path / "died", died))
    assert "1 of these whose logs end early are left out" in found.message
    assert found.log.num_envs == 7
    assert int(found.steps[-1]) > 7 * 3000
    assert 18 < found.fair[-1] < 27

    training = [rng.integers(5, 41, 200) for _ in range(8)]  # none of them ends long before the others
    whole = audit_log(monitors(tmp_path / "training", [mine[np.cumsum(mine) < 4000] for mine in training]))
    assert "where the log of an environment ends" not in whole.message


def test_legal_states_are_gone_on_from():
    """Rewards that were all taken back, and an environment that is older than any episode that can be counted."""
    statistics = FairStatistics(2, same_step=True)
    statistics.update([1.0, 1.0], [False, False])
    statistics.restarted([True, True])
    old = FairStatistics(2, same_step=True)
    old.reset(ages=[10**8, 1])
    for one in (statistics, old):
        again = FairStatistics(2, same_step=True)
        again.restore(one.state())
        np.testing.assert_equal(again.state(), one.state())
    controller = StaggerController(2, same_step=False, seed=0)
    for _ in range(50):
        controller.step((controller.ages >= 1) & ~controller.restarting)
    again = StaggerController(2, same_step=False)
    again.restore(controller.state())
    np.testing.assert_equal(again.state(), controller.state())


@pytest.mark.parametrize("idle", [0, 2])
def test_an_audit_of_many_environments_replays_the_log_of_each(idle):
    """All environments at once, and one after the other; the last ones have no episode in the log."""
    rng = np.random.default_rng(idle)
    lengths = rng.integers(1, 12, (5, 30))
    start = np.cumsum(lengths, axis=1) - lengths + rng.integers(0, 3, (5, 1))
    order = np.argsort((start + lengths).ravel(), kind="stable")
    columns = [x.ravel()[order] for x in (np.repeat(np.arange(5), 30), start, lengths, rng.normal(size=(5, 30)))]
    log = EpisodeLog(*columns, None, 5 + idle, "made up")
    rest, span = rng.normal(size=5 + idle), int(log.end[-1])
    rewards, ended = np.tile(rest, (span, 1)), np.zeros((span, 5 + idle), dtype=bool)
    for env in range(5):
        mine = np.flatnonzero(log.env == env)
        rewards[: log.start[mine[0]], env] = log.returns[mine[0]] / log.length[mine[0]]
        for i in mine:
            rewards[log.start[i] : log.end[i], env] = log.returns[i] / log.length[i]
            ended[log.end[i] - 1, env] = True
    fair = _Fair(log, 10, None, 0.9, _Tails(log, rest))
    for size in (1, 7, span):
        blocks = [fair._block(begin, min(begin + size, span), rest) for begin in range(0, span, size)]
        np.testing.assert_array_equal(np.concatenate([block[0] for block in blocks]), rewards)
        np.testing.assert_array_equal(np.concatenate([block[1] for block in blocks]), ended)


def test_the_return_per_step_of_what_is_not_logged_is_that_of_longer_episodes():
    lengths, rates = np.array([3, 1, 2, 2]), np.array([8.0, 1.0, 2.0, 4.0])
    found = _mean_rates(rates, lengths, np.array([0, 1, 2, 3, 99]))
    np.testing.assert_allclose(found, [15 / 4, 14 / 3, 8, 15 / 4, 15 / 4])  # of all, where none is longer
