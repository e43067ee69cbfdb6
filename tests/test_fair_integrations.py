"""Fair numbers where people read them: the log of Stable-Baselines3, evaluations with any budget, audits of logs.

Environments are scripted, so that the truth is known: `Dice` lasts 2 or 40 steps with a reward of 1 in each, 21 on
average. Seeds are fixed; where a test is statistical, its false-alarm rate is in a comment.
"""

import csv
import json
import os
import signal
from functools import partial

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.logger import configure as configure_logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize
from typer.testing import CliRunner

from scripted import Clock, Dice
from steadyrl import EpisodeLengths, audit_log, diagnose_lengths, evaluate, finished_mean
from steadyrl.cli import app
from steadyrl.diagnosis.logged_bias import logged_bias
from steadyrl.diagnosis.report import render
from steadyrl.errors import FileFormatError, RolloutError, StatisticsError
from steadyrl.integrations.sb3 import FairStatisticsCallback, SteadyVecEnv
from steadyrl.sspg.recent_episodes import RecentEpisodes

torch.set_num_threads(1)

SMALL = {"n_epochs": 1, "device": "cpu", "seed": 0, "policy_kwargs": {"net_arch": [4]}}


class Kept(KVWriter):
    """Keeps what was logged."""

    def __init__(self):
        self.rows = []

    def write(self, key_values, key_excluded, step=0):
        self.rows.append(dict(key_values))

    def close(self):
        pass


def learn(env, steps, callback, *, n_steps=16, **kwargs):
    model = PPO("MlpPolicy", env, n_steps=n_steps, batch_size=n_steps * env.num_envs, **SMALL)
    kept = Kept()
    model.set_logger(Logger(None, [kept]))
    model.learn(steps * env.num_envs, callback=callback, **kwargs)
    return model, kept.rows


def dice(n, vec=DummyVecEnv):
    return vec([Dice] * n)


def test_the_log_of_sb3_is_fair_where_finished_episodes_are_not():
    env = VecMonitor(dice(200))
    env.seed(0)
    _, rows = learn(env, 48, FairStatisticsCallback(memory=np.inf))
    last = rows[-1]
    # 200 environments: the standard error of the mean is below 19/sqrt(200) = 1.4; a false alarm in 1 of 10,000.
    assert abs(last["fair/return"] - 21) < 5
    expected = finished_mean(EpisodeLengths.from_gymnasium([2, 40]), 48, same_step=True)[48]
    assert expected < 16
    assert abs(last["fair/finished_only"] - expected) < 3
    assert last["fair/return_low"] < last["fair/return"] < last["fair/return_high"]
    assert last["fair/length"] == pytest.approx(last["fair/return"])  # a reward of 1 in each step; actions are counted
    assert last["fair/unresolved"] == 0
    assert rows[0]["fair/unresolved"] == pytest.approx(
        0.5, abs=0.2
    )  # after 16 steps, of the longer half nothing is known


@pytest.mark.parametrize("vec", [DummyVecEnv, SubprocVecEnv])
def test_cuts_of_staggering_are_not_ends_and_normalised_rewards_are_not_returns(vec):
    env = VecMonitor(VecNormalize(SteadyVecEnv(vec([Clock] * 4), seed=0)))
    callback = FairStatisticsCallback(memory=np.inf)
    learn(env, 48, callback)
    assert env.venv.venv.cuts > 0
    report = callback.report
    assert report.mean_gymnasium_length.value == 8  # each and every episode that was not cut
    assert report.mean_return.value == pytest.approx(36)  # 1 + ... + 8
    assert report.finished_only == pytest.approx(36)
    env.close()


def test_success_is_logged_where_infos_say_it():
    class Lucky(Clock):
        def step(self, action):
            *rest, info = super().step(action)
            return *rest, {**info, "is_success": self.episode % 2 == 0}

    _, rows = learn(DummyVecEnv([Lucky] * 2), 64, FairStatisticsCallback(memory=np.inf))
    assert rows[-1]["fair/success"] == 0.5
    assert "fair/success_low" in rows[-1]


def test_the_memory_follows_the_episodes_and_never_falls_below_a_rollout():
    callback = FairStatisticsCallback()
    assert callback.report is None
    learn(DummyVecEnv([Clock] * 2), 64, callback)
    assert callback.memory == 100 / 2 * 8 / 2  # half as many steps as 100 episodes take
    callback = FairStatisticsCallback()
    learn(DummyVecEnv([Clock] * 100), 64, callback, n_steps=32)
    assert callback.memory == 32
    callback = FairStatisticsCallback(50)
    learn(DummyVecEnv([Clock] * 2), 32, callback)
    assert callback.memory == 50


def test_environments_in_the_middle_of_an_episode_count_from_their_next_reset_on():
    env = DummyVecEnv([Clock] * 3)
    first, later = FairStatisticsCallback(memory=np.inf), FairStatisticsCallback(memory=np.inf)
    model, _ = learn(env, 20, first, n_steps=5)  # 20 steps: the third episode is at its fifth step
    model.learn(60, callback=later, reset_num_timesteps=False)
    assert later.report.mean_return.value == 36  # with ages taken for 1 it would be another
    assert later.report.finished_episodes == 3 * 2
    model.learn(60, callback=later, reset_num_timesteps=False)  # it goes on where it was
    assert later.report.finished_episodes == 3 * 4
    assert later.report.mean_return.value == 36
    model.learn(60, callback=later)  # environments are reset, running episodes are cut
    assert later.report.mean_return.value == 36


def test_off_policy_algorithms_log_when_they_log_episodes(tmp_path):
    env = DummyVecEnv([lambda: Monitor(Clock())])
    model = DQN("MlpPolicy", env, learning_starts=1000, buffer_size=100, device="cpu", seed=0)
    model.set_logger(configure_logger(str(tmp_path), ["csv"]))
    model.learn(100, callback=FairStatisticsCallback(), log_interval=4)
    model.logger.close()
    with open(tmp_path / "progress.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert [float(row["rollout/ep_rew_mean"]) for row in rows] == [36] * 3
    # A memory weighs steps by powers of exp(-1 / memory), so that sums are rounded in the last digit.
    np.testing.assert_allclose([float(row["fair/return"]) for row in rows], 36, rtol=1e-14)


def test_settings_that_cannot_be_used_are_refused_at_once():
    for settings in ({"memory": 0}, {"level": 2}, {"reward_range": (1, 0)}, {"max_episode_steps": 0}):
        with pytest.raises(StatisticsError):
            FairStatisticsCallback(**settings)


def test_the_return_that_train_logs_is_fair_in_lockstep_too():
    # Episodes of 50 actions with a reward of 1 in the last one, all environments in lockstep, 8 steps an update. From
    # the first end on the mean return is 1, at every update; the reward per step times E[T] rises and falls.
    recent, age, found, rates = RecentEpisodes(4), 1, [], []
    for _ in range(40):
        ages = (age + np.arange(8)) % 51 + 1  # of the states arrived at: 51 is the terminal state, 1 is the reset
        age = int(ages[-1])
        ages = np.repeat(ages[:, None], 4, axis=1)
        recent.add(ages, ages == 51, (ages == 51) * 1.0)
        found.append(recent.mean_return)
        rates.append(recent.reward_rate * recent.average_episode_length)
    assert found[:6] == [0] * 6
    np.testing.assert_allclose(found[7:], 1.0)
    assert max(rates[7:]) - min(rates[7:]) > 0.3


def test_any_budget_is_unbiased_where_finished_episodes_are_not():
    found = evaluate(Dice, "uniform", steps=48 * 200, num_envs=200, backend="serial")
    # The standard error is below 19 / sqrt(200) = 1.4: a false alarm in 1 of 10,000.
    assert abs(found.mean_return.value - 21) < 5
    assert found.mean_return.low < 21 < found.mean_return.high
    assert found.average_episode_length.value == pytest.approx(found.mean_return.value + 1)  # a reward of 1 a step
    assert found.report.finished_only < 18
    assert found.episodes is None
    assert found.report.steps == 48 * 200
    assert found.run.stopped == "steps"


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others():
    first, again, other = (evaluate(Dice, "uniform", steps=2000, seed=s, backend="serial").report for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_until_stops_at_the_first_interval_that_is_narrow_enough():
    found = evaluate(Dice, "uniform", until=6.0, seed=3, backend="serial")
    assert found.run.stopped == "until"
    assert found.mean_return.high - found.mean_return.low <= 6
    assert found.report.unresolved == 0
    capped = evaluate(Dice, "uniform", until=1e-9, steps=3200, seed=3, backend="serial")
    assert capped.run.stopped == "steps"
    assert capped.report.steps == 3200
    timed = evaluate(Dice, "uniform", seconds=0.2, backend="serial")
    assert timed.run.stopped == "seconds"


def test_a_budget_too_small_for_one_episode_says_what_is_not_known():
    found = evaluate(partial(Clock, 50), "uniform", steps=80, num_envs=8, backend="serial")
    assert found.report.unresolved == 1
    assert found.report.mean_gymnasium_length.value == 10
    assert "outlive" in found.report.message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"episodes": 5, "steps": 100}, "one or the other"),
        ({"steps": 100, "seconds": 1}, "both steps and seconds"),
        ({"steps": 0}, "steps is 0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"until": -1}, "until is -1"),
        ({"num_envs": 4}, "num_envs is for budgets"),
        ({"steps": 100, "num_envs": 0}, "num_envs is 0"),
        ({"steps": 100, "level": 1}, "level is 1"),
        ({"steps": 100, "trajectories": True}, "complete episodes"),
    ],
)
def test_budgets_that_exclude_each_other_or_are_none_are_refused(arguments, words):
    with pytest.raises(RolloutError, match=words):
        evaluate(Dice, "uniform", **arguments)


def test_an_environment_that_raises_ends_in_a_sentence():
    class Stuck(Dice):
        def step(self, action):
            raise RuntimeError("the gripper is stuck")

    with pytest.raises(RolloutError, match="RuntimeError: the gripper is stuck in step"):
        evaluate(Stuck, "uniform", steps=100)


def test_ctrl_c_ends_an_evaluation_with_what_is_known():
    class Interrupted(Clock):
        def step(self, action):
            if self.episode == 3 and self.age == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    found = evaluate(Interrupted, "uniform", until=1e-12, num_envs=1, backend="serial", seed=0)
    assert found.run.stopped == "interrupted"
    assert found.mean_return.value == 36


def test_the_command_line_takes_budgets():
    called = CliRunner().invoke(
        app, ["evaluate", "steadyrl/StateSweep-v0", "uniform", "--steps", "800", "--num-envs", "8", "--json"]
    )
    assert called.exit_code == 0, called.output
    shown = json.loads(called.stdout)
    assert shown["return"]["value"] == 189
    assert shown["steps"] == 800
    assert shown["unresolved"] == 0
    called = CliRunner().invoke(app, ["evaluate", "steadyrl/StateSweep-v0", "uniform", "--until", "1"])
    assert called.exit_code == 0, called.output
    assert "narrow enough" in called.stdout


def write_monitors(folder, lengths, returns=None, speed=1e-3):
    """Write one monitor.csv for each environment's list of lengths."""
    for i, mine in enumerate(lengths):
        of = returns[i] if returns else mine
        rows = zip(of, mine, np.cumsum(mine) * speed, strict=True)
        lines = [f"{r},{length},{t:.6f}" for r, length, t in rows]
        text = '#{"t_start": 0.0, "env_id": "Walk-v0"}\nr,l,t\n' + "\n".join(lines) + "\n"
        (folder / f"{i}.monitor.csv").write_text(text)


def two_lengths(n, steps, rng):
    """Return the lengths of the episodes of n environments that ended within so many steps."""
    found = []
    for _ in range(n):
        lengths = rng.choice([50, 400], 1 + steps // 50)
        found.append(lengths[np.cumsum(lengths) <= steps].tolist())
    return found


def test_an_audit_finds_the_bias_that_renewal_theory_predicts(tmp_path):
    write_monitors(tmp_path, two_lengths(200, 2000, np.random.default_rng(0)))
    audit = audit_log(tmp_path, window=10**6, memory=np.inf, points=40)  # the mean over all that finished
    lengths = EpisodeLengths.from_gymnasium([50, 400])
    expected = finished_mean(lengths, 2000, same_step=True)[audit.steps // 200]
    # 200 environments: a standard error of 175 / sqrt(200) = 12 in the first episode, less later; 4.5 of them.
    assert np.abs(audit.logged - expected).max() < 56
    assert np.abs(audit.fair - 225).max() < 56
    assert audit.bias[0] == pytest.approx(50 / 225 - 1, abs=0.1)
    assert "most wrong at step" in audit.message
    assert "below the fair mean" in audit.message
    assert (audit.low <= audit.fair).all()
    assert (audit.fair <= audit.high).all()


def test_steps_say_the_same_as_one_file_for_each_environment(tmp_path):
    lengths = two_lengths(5, 3000, np.random.default_rng(1))
    write_monitors(tmp_path, lengths)
    rows = sorted((5 * end, length) for mine in lengths for end, length in zip(np.cumsum(mine), mine, strict=True))
    lines = "".join(f"{step},{length},{float(length)}\n" for step, length in rows)
    (tmp_path / "steps.csv").write_text(f"global_step,episodic_length,episodic_return\n{lines}")
    first, second = audit_log(tmp_path), audit_log(tmp_path / "steps.csv", num_envs=5)
    np.testing.assert_array_equal(first.steps, second.steps)
    np.testing.assert_allclose(first.logged, second.logged)
    np.testing.assert_allclose(first.fair, second.fair)
    with pytest.raises(FileFormatError, match="num_envs"):
        audit_log(tmp_path / "steps.csv")


def test_returns_may_come_at_any_step_of_an_episode(tmp_path):
    # Long episodes fail: return 1 after 50 steps, 0 after 400. The log shows success at first; the truth is one half.
    lengths = two_lengths(200, 2000, np.random.default_rng(2))
    write_monitors(tmp_path, lengths, [[float(length == 50) for length in mine] for mine in lengths])
    audit = audit_log(tmp_path, window=10**6, memory=np.inf)
    assert audit.logged[0] == 1
    known = audit.steps <= audit.known_until
    assert np.abs(audit.fair[known] - 0.5).max() < 4.5 * 0.5 / np.sqrt(200)
    assert np.abs(audit.fair - 0.5).max() < 0.2  # running episodes that the log does not have


def test_what_is_not_in_the_log_gives_bounds(tmp_path):
    # The second environment's last logged episode ends at 10; returns per step are 1 and 3.
    write_monitors(tmp_path, [[10, 10, 10], [10]], [[10.0, 30.0, 10.0], [10.0]])
    audit = audit_log(tmp_path, memory=np.inf)
    assert audit.known_until == 2 * 10
    known = audit.steps <= 20
    np.testing.assert_allclose(audit.bounds[0, known], audit.bounds[1, known])
    assert audit.bounds[0, -1] < audit.fair[-1] < audit.bounds[1, -1]
    assert "never ended in the log" in audit.message


def test_episodes_of_several_environments_in_one_monitor_file_are_refused(tmp_path):
    file = tmp_path / "monitor.csv"
    rows = "".join(f"100.0,100,{1 + i // 8 + (i % 8) * 1e-6:.6f}\n" for i in range(64))
    file.write_text(f'#{{"t_start": 0}}\nr,l,t\n{rows}')
    with pytest.raises(FileFormatError, match="VecMonitor"):
        audit_log(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("r,l,t\n", "no episodes"),
        ("l,t\n5,1\n", "no column of returns"),
        ("r,l,t\nx,5,1\n", "no number"),
        ("r,l,t\n1,2.5,1\n", "whole numbers"),
        ("r,l,t\nnan,5,1\n", "not finite"),
    ],
)
def test_a_log_that_is_none_is_refused_with_words(tmp_path, text, words):
    file = tmp_path / "monitor.csv"
    file.write_text(text)
    with pytest.raises(FileFormatError, match=words):
        audit_log(file)


def test_the_audit_of_a_real_monitor_file_on_the_command_line(tmp_path):
    def make(i):
        return lambda: Monitor(Dice(), str(tmp_path / str(i)))

    env = DummyVecEnv([make(i) for i in range(4)])
    env.seed(0)
    env.reset()
    for _ in range(300):
        env.step(np.zeros(4, dtype=int))
    env.close()
    picture = tmp_path / "audit.svg"
    called = CliRunner().invoke(app, ["audit", str(tmp_path), "--plot", str(picture), "--json"])
    assert called.exit_code == 0, called.output
    shown = json.loads(called.stdout)
    assert shown["num_envs"] == 4
    assert len(shown["fair"]) == len(shown["steps"]) == len(shown["logged"]) > 20
    assert picture.read_text().startswith("<?xml")
    called = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert called.exit_code == 0, called.output
    assert "episodes (4 files, one environment each)" in called.stdout


def test_the_report_shows_what_a_log_will_show():
    found = diagnose_lengths(np.tile([50, 400], 100))
    page = render(found)
    assert "What your log will show" in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    x, y = np.array(data["log"]["together"]["x"]), np.array(data["log"]["together"]["y"])
    np.testing.assert_allclose(y[x < 400 / 226], 50 / 225, rtol=1e-4)  # before the first long episode ends
    assert 0.9 < y[-1] < 1
    assert "22% of the truth" in page
    assert logged_bias(EpisodeLengths([0, 1.0])) is None  # every episode is a reset alone


def test_an_audit_of_a_policy_that_learnt_does_not_say_who_is_right_and_of_two_episodes_that_they_are_few(tmp_path):
    rng = np.random.default_rng(0)
    lengths = ((20 + 480 * np.arange(600) / 600) * rng.uniform(0.5, 1.5, 600)).astype(int)
    rows = "".join(f"{length},{length},{i}\n" for i, length in enumerate(lengths))
    (tmp_path / "0.monitor.csv").write_text('#{"t_start": 0, "env_id": "Grows-v0"}\nr,l,t\n' + rows)
    message = audit_log(tmp_path / "0.monitor.csv").message
    assert "the policy learnt" in message
    assert "wrong at" not in message
    (tmp_path / "1.monitor.csv").write_text('#{"t_start": 0, "env_id": "Few-v0"}\nr,l,t\n3,3,1\n7,7,2\n')
    assert "too few episodes" in audit_log(tmp_path / "1.monitor.csv").message


def test_an_audit_notices_returns_that_change_at_constant_lengths(tmp_path):
    # The logged mean lags behind by about 50 episodes, the fair one by its memory: neither is wrong by being biased.
    rng = np.random.default_rng(0)
    rows = "".join(f"{0.1 * i + rng.normal():.3f},100,{i}\n" for i in range(600))
    (tmp_path / "0.monitor.csv").write_text('#{"t_start": 0, "env_id": "Learns-v0"}\nr,l,t\n' + rows)
    message = audit_log(tmp_path / "0.monitor.csv").message
    assert "Returns change over this log" in message
    assert "no change of lengths can be seen" in message
    assert "wrong at" not in message
    # Without a change: one alarm of either test in fifty.
    rows = "".join(f"{rng.normal():.3f},100,{i}\n" for i in range(600))
    (tmp_path / "0.monitor.csv").write_text('#{"t_start": 0, "env_id": "Learns-v0"}\nr,l,t\n' + rows)
    assert "learnt" not in audit_log(tmp_path / "0.monitor.csv").message


def test_an_audit_of_many_moments_calls_nothing_wrong_that_chance_explains(tmp_path):
    # One environment, lengths with heavy tails. At each moment for itself one interval in ten may miss, and 2 of these
    # 10 logs would be called wrong; all together miss in one log of ten at most, and in fewer since they share data.
    wrong = 0
    for seed in range(10):
        lengths = np.ceil(5 * (1 - np.random.default_rng(seed).random(200)) ** (-1 / 1.5)).astype(int)
        rows = "".join(f"{length},{length},{end}\n" for length, end in zip(lengths, np.cumsum(lengths), strict=True))
        (tmp_path / "0.monitor.csv").write_text('#{"t_start": 0, "env_id": "Heavy-v0"}\nr,l,t\n' + rows)
        wrong += "most wrong" in audit_log(tmp_path / "0.monitor.csv", points=40, window=30).message
    assert wrong == 0
