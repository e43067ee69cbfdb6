"""Fair numbers where people read them: the log of Stable-Baselines3, evaluations with any budget, audits of logs.

Environments are scripted, so that the truth is known: `Dice` lasts 2 or 40 steps with a reward of 1 in each, 21 on
average. Seeds are fixed; where a test is statistical, its false-alarm rate is in a comment.
"""

import csv

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.logger import configure as configure_logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize

from scripted import Clock, Dice
from steadyrl import EpisodeLengths, finished_mean
from steadyrl.errors import StatisticsError
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
    assert callback.memory == 100 / 2 * 8  # as many steps as 100 episodes take
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
    assert all(float(row["fair/return"]) == float(row["rollout/ep_rew_mean"]) == 36 for row in rows)


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
