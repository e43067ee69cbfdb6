"""Stable-Baselines3: cuts look like time limits, every transition is real, and the log says how it stands.

The one statistical test compares ages in groups by a chi-square test at level 1e-4 (delays are assigned by quantile, so
that it is conservative); seeds are fixed.
"""

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy.stats import chisquare
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from scripted import Clock, Dice, Mortal, Push
from steadyrl import EpisodeLengths, design_delays
from steadyrl.errors import CopyLostError, DelaysError, PhaseLockWarning, PoolError, WrapperError
from steadyrl.integrations.envpool.vector_env import EnvPoolVectorEnv
from steadyrl.integrations.sb3 import EnvPoolVecEnv, SteadyStateCallback, SteadyVecEnv, make_steady_vec_env

torch.set_num_threads(1)
multiprocessing.set_forkserver_preload(["stable_baselines3", "scripted"])  # imported once, not in every copy


def clocks(n=8, *, vec=DummyVecEnv, cls=Clock, monitor=True, **kwargs):
    def make():
        env = cls(**kwargs)
        return Monitor(env) if monitor else env

    return vec([make] * n)


def ppo(env, n_steps=16, **kwargs):
    settings = {"batch_size": n_steps * env.num_envs, "n_epochs": 1, "device": "cpu", "seed": 0}
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    return PPO(policy, env, n_steps=n_steps, **(settings | kwargs))


@pytest.fixture(params=[DummyVecEnv, SubprocVecEnv])
def vec(request):
    return request.param


def test_a_cut_is_a_time_limit_with_a_fresh_episode_at_once(vec):
    env = SteadyVecEnv(clocks(3, vec=vec), [1, 3, 2])
    env.reset()
    assert [info["episode_number"] for info in env.reset_infos] == [1, 1, 1]
    observations, rewards, dones, infos = env.step(
        np.zeros(3, dtype=int)
    )  # of a window of 3: D = 2 is cut after 1 step
    assert dones.tolist() == [False, False, True]
    assert rewards.tolist() == [1, 1, 1]
    assert observations.tolist() == [[2, 1], [2, 1], [1, 2]]
    assert infos[2]["terminal_observation"].tolist() == [2, 1]
    assert infos[2]["TimeLimit.truncated"] is True
    assert infos[2]["staggered"] is True
    assert "episode" not in infos[2]
    assert all("staggered" not in infos[i] and not infos[i]["TimeLimit.truncated"] for i in (0, 1))
    observations, _, dones, infos = env.step(np.zeros(3, dtype=int))
    assert dones.tolist() == [True, False, False]
    assert observations.tolist() == [[1, 2], [3, 1], [2, 2]]
    assert [info["episode_number"] for info in env.reset_infos] == [2, 1, 2]
    lengths = []
    for _ in range(30):
        _, _, dones, infos = env.step(np.zeros(3, dtype=int))
        assert not any("staggered" in info for info in infos)
        lengths += [info["episode"]["l"] for info in infos if "episode" in info]
        assert all(bool(done) == ("episode" in info) for done, info in zip(dones, infos, strict=True))
    assert set(lengths) == {8}  # what was cut is in nobody's statistics
    env.close()


def test_delays_by_design_give_every_age_its_share_for_good():
    env = SteadyVecEnv(clocks(8), design_delays(EpisodeLengths.from_gymnasium([8])), seed=1)
    for _ in range(2):  # and again after a reset of all, which puts the copies in step
        observations = env.reset()
        assert set(observations[:, 0]) == {1}
        for t in range(40):
            observations, *_ = env.step(np.zeros(8, dtype=int))
            if t >= 8:
                assert sorted(observations[:, 0]) == list(range(1, 9))
    assert env.phase.average_episode_length == 9.0


def test_ages_of_random_lengths_match_the_stationary_ones():
    # Episodes of 2 or 40 actions: ages 1-2, 3-21 and 22-40 have shares 4, 19 and 19 of 42.
    env = SteadyVecEnv(DummyVecEnv([Dice] * 600), design_delays(EpisodeLengths.from_gymnasium([2, 40])), seed=0)
    env.seed(0)
    env.reset()
    for _ in range(60):
        observations, *_ = env.step(np.zeros(600, dtype=int))
    ages = observations[:, 0]
    found = [(ages <= 2).sum(), ((ages > 2) & (ages <= 21)).sum(), (ages > 21).sum()]
    assert chisquare(found, np.array([4, 19, 19]) / 42 * 600).pvalue > 1e-4
    raw = DummyVecEnv([Dice] * 600)
    raw.seed(0)
    raw.reset()
    for _ in range(60):
        observations, *_ = raw.step(np.zeros(600, dtype=int))
    assert chisquare(np.bincount(observations[:, 0] > 21, minlength=2), np.array([23, 19]) / 42 * 600).pvalue < 1e-9


def test_auto_brings_copies_out_of_step_and_leaves_them_alone_then():
    env = SteadyVecEnv(clocks(32, length=20), seed=0)
    env.reset()
    cuts = 0
    for _ in range(600):
        _, _, _, infos = env.step(np.zeros(32, dtype=int))
        cuts += sum("staggered" in info for info in infos)
    assert not env.phase.phase_locked
    assert env.phase.distance < 0.1
    assert cuts == env.cuts
    assert 1.5 < cuts / 32 < 4  # ln 20 = 3


def test_the_rollout_buffer_holds_the_real_transitions_and_bootstraps_at_cuts():
    venv = clocks(4, length=15, monitor=False)
    env = SteadyVecEnv(venv, [1, 4, 8, 10])
    model = ppo(env, n_steps=24, gamma=0.9)
    buffer = model.rollout_buffer
    seen = {}

    class Look(SteadyStateCallback):
        def _on_rollout_end(self):
            seen["rewards"] = buffer.rewards.copy()
            seen["observations"], seen["starts"] = buffer.observations.copy(), buffer.episode_starts.copy()
            seen["actions"] = buffer.actions.copy()
            last = torch.tensor([[7.0, 1.0]])
            with torch.no_grad():
                seen["value"] = float(model.policy.predict_values(last))
            return super()._on_rollout_end()

    model.learn(24 * 4, callback=Look())
    assert not seen["observations"][:, :, 0].min() < 1  # no null state: ages begin at 1
    bootstrapped = 0
    for i, copy in enumerate(venv.envs):
        assert len(copy.history) == 24
        for t, (before, action, reward, _) in enumerate(copy.history):
            np.testing.assert_array_equal(seen["observations"][t, i], before)
            assert seen["actions"][t, i] == action
            assert seen["starts"][t, i] == (before[0] == 1)
            if seen["rewards"][t, i] != np.float32(reward):
                bootstrapped += 1
                following = copy.history[t + 1][0]
                assert following.tolist() == [1, before[1] + 1]  # a new episode follows, although this one was not over
                assert before[0] < 15
            if i == 1 and before.tolist() == [6, 1]:  # cut in this step, in a window of 10, with D = 4
                assert seen["rewards"][t, i] == pytest.approx(6 + 0.9 * seen["value"], rel=1e-5)
    assert bootstrapped == 3  # three copies are cut, the fourth (D = the window) never


@pytest.mark.parametrize("as_dict", [False, True])
def test_wrappers_of_stable_baselines3_work_on_top(as_dict):
    env = SteadyVecEnv(clocks(4, as_dict=as_dict, monitor=False), [1, 2, 3, 4])
    keys = {"norm_obs_keys": ["clock"]} if as_dict else {}
    env = VecNormalize(VecCheckNan(VecMonitor(env), raise_exception=True), **keys)
    env.reset()
    staggered = 0
    for _ in range(20):
        _, _, dones, infos = env.step(np.zeros(4, dtype=int))
        for done, info in zip(dones, infos, strict=True):
            assert done == ("terminal_observation" in info) == ("episode" in info)
            if info.get("staggered"):
                staggered += 1
                last = env.unnormalize_obs(info["terminal_observation"])
                clock = last["clock"] if as_dict else last
                np.testing.assert_allclose(clock, [info["episode"]["l"] + 1, 1], atol=1e-3)
    assert staggered == 3
    ppo(env).learn(256)
    if not as_dict:
        stacked = VecFrameStack(SteadyVecEnv(clocks(4), [1, 2, 3, 4]), 2)
        stacked.reset()
        observations, _, dones, _ = stacked.step(np.zeros(4, dtype=int))
        assert observations[dones][:, 0].tolist() == [0]  # the stack of a copy that was cut is cleared
        assert observations[~dones].tolist() == [[1, 1, 2, 1]] * 3


def test_dict_observations_are_cut_too(vec):
    env = SteadyVecEnv(clocks(2, vec=vec, as_dict=True), [1, 2])
    env.reset()
    observations, _, dones, infos = env.step(np.zeros(2, dtype=int))
    assert dones.tolist() == [True, False]
    assert observations["clock"].tolist() == [[1, 2], [2, 1]]
    assert observations["phase"].ravel().tolist() == [1, 0]
    assert infos[0]["terminal_observation"]["clock"].tolist() == [2, 1]
    env.close()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: VecNormalize(clocks(2)), r"VecNormalize\(SteadyVecEnv\(venv\), ...\)"),
        (lambda: VecMonitor(clocks(2, monitor=False)), "put the VecMonitor on top"),
        (lambda: SteadyVecEnv(clocks(2)), "put the SteadyVecEnv on top"),
        (lambda: gymnasium.make_vec("CartPole-v1", 2), "StaggeredVectorEnv"),
        (lambda: DummyVecEnv([lambda: EpisodicLifeEnv(Clock())] * 2), "terminal_on_life_loss=False"),
        (lambda: DummyVecEnv([lambda: Monitor(Clock(), allow_early_resets=False)]), "allow_early_resets"),
    ],
)
def test_what_cannot_be_staggered_is_refused(make, words):
    with pytest.raises(WrapperError, match=words):
        SteadyVecEnv(make())


@pytest.mark.parametrize("delays", ["often", [1, 2], [0, 1, 2, 3], [1.5, 1, 1, 1]])
def test_bad_delays_are_refused(delays):
    with pytest.raises(DelaysError):
        SteadyVecEnv(clocks(4), delays)


@pytest.mark.parametrize("vec", [DummyVecEnv, SubprocVecEnv])
def test_a_step_before_the_first_reset_says_what_to_do_and_breaks_nothing(vec):
    env = SteadyVecEnv(vec([partial(gymnasium.make, "CartPole-v1")] * 2))
    with pytest.raises(WrapperError, match="call reset first") as caught:
        env.step(np.zeros(2, dtype=int))
    assert not isinstance(caught.value, CopyLostError)
    env.reset()
    assert env.step(np.zeros(2, dtype=int))[0].shape == (2, 4)
    env.close()


def test_a_bad_seed_is_refused():
    with pytest.raises(WrapperError, match="seed is -1; it must be a whole number"):
        SteadyVecEnv(clocks(2), seed=-1)


def test_a_copy_that_dies_is_named(vec):
    env = SteadyVecEnv(vec([partial(Mortal, i, 2) for i in range(4)]), [4, 4, 4, 4])
    env.reset()
    env.step(np.zeros(4, dtype=int))
    env.step(np.zeros(4, dtype=int))
    with pytest.raises(CopyLostError, match="copy 2 of") as caught:
        env.step(np.zeros(4, dtype=int))
    assert caught.value.copies == (2,)
    env.close()  # as the error says; Stable-Baselines3 alone would wait for answers that have been read
    assert not any(process.is_alive() for process in getattr(env.venv, "processes", ()))


class Forking(Clock):
    """An environment whose process leaves a child behind when it ends at the first step."""

    def step(self, action):
        if os.fork() == 0:
            time.sleep(20)
        os._exit(3)


@pytest.mark.parametrize(("method", "mortal"), [("fork", partial(Mortal, 2, 2)), ("forkserver", Forking)])
def test_a_copy_whose_pipe_others_hold_open_is_missed(method, mortal):
    """Stable-Baselines3 alone waits for ever for the answer of a process that has ended."""
    makers = [partial(Mortal, 0, 2), partial(Mortal, 1, 2), mortal, partial(Mortal, 3, 2)]
    env = SteadyVecEnv(SubprocVecEnv(makers, start_method=method), [4, 4, 4, 4])
    env.reset()

    def run():
        for _ in range(3):
            env.step(np.zeros(4, dtype=int))

    with pytest.raises(CopyLostError, match="copy 2 of") as caught:
        run()
    assert caught.value.copies == (2,)
    env.close()


# EnvPool


def tilt(observations):
    """A policy that keeps poles up for a while."""
    return (observations[:, 2] + 0.3 * observations[:, 3] > 0).astype(np.int64)


@pytest.mark.parametrize("limit", [500, 12])
def test_envpool_in_one_step_and_in_the_next_are_the_same_episodes(limit):
    ours = EnvPoolVecEnv("CartPole-v1", 5, seed=3, num_threads=1, max_episode_steps=limit)
    theirs = EnvPoolVectorEnv("CartPole-v1", 5, num_threads=1, max_episode_steps=limit)
    first, second = ours.reset(), theirs.reset(seed=3)[0]
    rng = np.random.default_rng(0)
    same, following = [[row] for row in first], [[row] for row in second]
    noise = rng.random((300, 5)) < 0.4
    taken = np.zeros(5, dtype=int)  # each copy's number of real steps: both see the same actions at the same one
    ended = []
    for t in range(150):
        observations, rewards, dones, infos = ours.step(noise[t].astype(np.int64))
        assert rewards.dtype == np.float32
        for i in range(5):
            same[i].append(infos[i]["terminal_observation"] if dones[i] else observations[i])
            assert set(infos[i]) == {"TimeLimit.truncated"} or dones[i]
            if dones[i]:
                same[i].append(observations[i])
                ended.append(infos[i])
    for _ in range(150):
        observations, *_, info = theirs.step(noise[taken, np.arange(5)].astype(np.int64))
        for i in range(5):
            following[i].append(observations[i])
        taken += info["elapsed_step"] > 0
    for mine, other in zip(same, following, strict=True):
        np.testing.assert_array_equal(mine[: len(other)], other[: len(mine)])
    for info in ended:
        assert info["episode"]["l"] == info["episode"]["r"] == info["elapsed_step"]
        fallen = abs(info["terminal_observation"][2]) > 12 * np.pi / 180
        assert info["TimeLimit.truncated"] == (info["elapsed_step"] == limit and not fallen)
    assert len(ended) > 10
    if limit == 12:
        assert len({info["TimeLimit.truncated"] for info in ended}) == 2


def test_envpool_is_seeded_as_stable_baselines3_does():
    env = EnvPoolVecEnv("CartPole-v1", 3, seed=1, num_threads=1)
    first = env.reset()
    assert (env.reset() != first).any()
    env.seed(1)
    np.testing.assert_array_equal(env.reset(), first)
    env.seed(2)
    np.testing.assert_array_equal(env.reset()[:2], first[1:])
    assert [list(info) for info in env.reset_infos] == [["elapsed_step"]] * 3


@pytest.mark.parametrize("id", ["CartPole-v1", "Hopper-v5"])
def test_envpool_has_the_spaces_of_gymnasium_so_that_models_can_be_exchanged(tmp_path, id):
    gym, pool = DummyVecEnv([lambda: gymnasium.make(id)] * 2), EnvPoolVecEnv(id, 2, num_threads=1)
    assert (pool.observation_space, pool.action_space) == (gym.observation_space, gym.action_space)
    observations = gym.reset()
    for first, second in ((gym, pool), (pool, gym)):
        saved = ppo(first)
        saved.save(tmp_path / "model.zip")
        loaded = PPO.load(tmp_path / "model.zip", env=second, device="cpu")
        for actions in zip(
            *(model.predict(observations, deterministic=True) for model in (saved, loaded)), strict=True
        ):
            np.testing.assert_array_equal(*actions)
        assert loaded.learn(32).num_timesteps == 32


def test_envpool_answers_what_stable_baselines3_asks_and_no_more():
    env = EnvPoolVecEnv("CartPole-v1", 3, num_threads=1)
    with pytest.raises(PoolError, match="before the first reset"):
        env.step(np.zeros(3, dtype=int))
    env.reset()
    assert env.env_is_wrapped(Monitor) == [True] * 3
    assert env.get_attr("spec", [0, 2])[1].id == "CartPole-v1"
    assert not env.has_attr("allow_early_resets")
    with pytest.raises(AttributeError, match="gravity"):
        env.get_attr("gravity")
    with pytest.raises(AttributeError, match="gravity"):
        env.set_attr("gravity", 1)
    with pytest.raises(AttributeError, match="reset"):
        env.env_method("render")
    env.set_options({"low": 1})
    with pytest.raises(PoolError, match="no options"):
        env.reset()
    env.close()


def test_envpool_is_cut_like_any_other():
    env = SteadyVecEnv(EnvPoolVecEnv("CartPole-v1", 4, seed=0, num_threads=1), [1, 2, 3, 4])
    env.reset()
    lengths = np.zeros(4, dtype=int)
    staggered = 0
    for _ in range(300):
        _, _, dones, infos = env.step(env.action_space.sample() * np.ones(4, dtype=int))
        lengths += 1
        for i in np.flatnonzero(dones):
            staggered += infos[i].get("staggered", False)
            assert infos[i].get("staggered", False) == ("episode" not in infos[i])
            if "episode" in infos[i]:
                assert infos[i]["episode"]["l"] == lengths[i]
        lengths[dones] = 0
    assert staggered == 3


def test_policies_are_evaluated_in_envpool():
    env = EnvPoolVecEnv("CartPole-v1", 4, seed=0, num_threads=1)
    mean, _ = evaluate_policy(ppo(env), env, n_eval_episodes=8)
    assert mean > 5


# Making


def test_auto_takes_envpool_where_nothing_speaks_against_it():
    assert isinstance(make_steady_vec_env("CartPole-v1", 2).venv, EnvPoolVecEnv)
    for env in (
        make_steady_vec_env("steadyrl/StateSweep-v0", 2, env_kwargs={"n": 5}),
        make_steady_vec_env("CartPole-v1", 2, wrapper_class=gymnasium.wrappers.FlattenObservation),
        make_steady_vec_env(Clock, 2),
        make_steady_vec_env(gymnasium.spec("CartPole-v1"), 2),
        make_steady_vec_env("CartPole-v1", 2, backend="dummy"),
    ):
        assert type(env.venv) is DummyVecEnv
        assert env.env_is_wrapped(Monitor) == [True, True]
        env.reset()
    env = make_steady_vec_env("CartPole-v1", 1, backend="subproc")
    assert type(env.venv) is SubprocVecEnv
    env.close()


def test_seeds_make_the_whole_stream():
    def stream(backend, seed):
        env = make_steady_vec_env("CartPole-v1", 4, backend=backend, seed=seed, delays=design_delays(short))
        found = [env.reset()] + [env.step(np.ones(4, dtype=int))[0] for _ in range(30)]
        return np.array(found)

    short = EpisodeLengths.from_gymnasium([8, 9, 10])
    for backend in ("dummy", "envpool"):
        np.testing.assert_array_equal(stream(backend, 5), stream(backend, 5))
        assert (stream(backend, 5) != stream(backend, 6)).any()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"backend": "gpu"}, WrapperError, "'auto', 'envpool', 'dummy' or 'subproc'"),
        ({"backend": "envpool", "monitor_dir": "x"}, WrapperError, "monitor_dir was given"),
        ({"env_id": Clock, "backend": "envpool"}, WrapperError, "by name only"),
        ({"env_id": "CartPol-v1", "backend": "envpool"}, PoolError, "near names: CartPole-v1"),
    ],
)
def test_what_cannot_be_made_is_said(arguments, error, words):
    with pytest.raises(error, match=words):
        make_steady_vec_env(**{"env_id": "CartPole-v1", "n_envs": 2, **arguments})


# The callback


def test_evaluation_under_normalisation_may_have_the_same_layers_and_cuts_nothing(tmp_path):
    env = VecNormalize(SteadyVecEnv(clocks(4), [1, 2, 3, 4]))
    evaluation = VecNormalize(SteadyVecEnv(clocks(2), [1, 1]), training=False, norm_reward=False)
    callback = EvalCallback(evaluation, eval_freq=8, n_eval_episodes=4, verbose=0, log_path=str(tmp_path))
    ppo(env, 8).learn(4 * 8 * 2, callback=callback)
    assert (np.load(tmp_path / "evaluations.npz")["ep_lengths"] == 8).all()


class Record(KVWriter):
    def __init__(self):
        self.rows = []

    def write(self, key_values, key_excluded, step=0):
        self.rows.append(dict(key_values))

    def close(self):
        pass


def logged(model, steps, callback, **kwargs):
    record = Record()
    model.set_logger(Logger(None, [record]))
    model.learn(steps, callback=callback, **kwargs)
    return record.rows


@pytest.mark.parametrize("make", [lambda env: ppo(env, 8), lambda env: A2C("MlpPolicy", env, n_steps=8, device="cpu")])
def test_phase_locked_batches_are_logged_and_warned_of_once(make):
    model = make(clocks(16, length=20))
    words = r"16 environments .* batches of 8 steps.* SteadyVecEnv\(venv\)"
    with pytest.warns(PhaseLockWarning, match=words) as caught:
        rows = logged(model, 8 * 16 * 20, SteadyStateCallback(), log_interval=1)
    assert len([w for w in caught if w.category is PhaseLockWarning]) == 1
    assert len(rows) >= 19
    last = rows[-1]
    assert last["steady/phase_distance"] > 0.4
    assert last["steady/ep_len_mean"] == pytest.approx(20)
    assert last["steady/in_lockstep"] == 1
    assert "steady/phase_distance" not in rows[0]  # nothing has ended yet


@pytest.mark.parametrize("delays", ["auto", design_delays(EpisodeLengths.from_gymnasium([20]))])
def test_cured_batches_are_logged_as_such_without_a_warning(delays):
    env = SteadyVecEnv(clocks(32, length=20), delays, seed=0, n_steps=8)
    callback = SteadyStateCallback()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = logged(ppo(VecNormalize(env), 8), 8 * 32 * 30, callback)
    assert rows[-1]["steady/phase_distance"] < 0.1
    assert rows[-1]["steady/ep_len_mean"] == pytest.approx(20)
    assert rows[-1]["steady/in_lockstep"] == 0
    # Two routes: what the wrapper knows, and what the callback reads from the infos. (With "auto" the wrapper reports
    # on the ages of the moment, which chance moves by another amount than those of a batch.)
    seen, known = callback.report, env.phase
    assert (replace(seen, noise=known.noise) if delays == "auto" else seen) == known


def test_delays_that_do_not_fit_are_warned_of():
    env = SteadyVecEnv(clocks(16, length=20), np.ones(16, dtype=int))
    with pytest.warns(PhaseLockWarning, match="delays='auto'"):
        ppo(env, 8).learn(8 * 16 * 12, callback=SteadyStateCallback())


def test_learning_on_without_a_reset_keeps_the_ages():
    env = SteadyVecEnv(clocks(32, length=20), design_delays(EpisodeLengths.from_gymnasium([20])), seed=0, n_steps=8)
    model, callback = ppo(env, 8), SteadyStateCallback()
    model.learn(8 * 32 * 8, callback=callback)
    model.learn(8 * 32 * 8, callback=callback, reset_num_timesteps=False)
    assert callback.report == env.phase
    model.learn(8 * 32 * 8, callback=callback)  # resets all
    assert callback.report.average_episode_length == env.phase.average_episode_length


def test_ages_that_are_not_known_are_not_taken_for_others(tmp_path):
    model = ppo(SteadyVecEnv(clocks(16, length=20), seed=0), 8)
    model.learn(16 * 8 * 7)  # nobody watches
    later = logged(model, 16 * 8 * 12, SteadyStateCallback(), log_interval=1, reset_num_timesteps=False)
    model, callback = ppo(clocks(16, length=20), 8), SteadyStateCallback()
    logged(model, 16 * 8 * 4, callback)
    model.save(tmp_path / "model")
    model = PPO.load(tmp_path / "model", env=clocks(16, length=20), device="cpu")  # whose episodes begin anew
    with pytest.warns(PhaseLockWarning):
        loaded = logged(model, 16 * 8 * 16, callback, log_interval=1, reset_num_timesteps=False)
    for rows in (later, loaded):
        lengths = [row["steady/ep_len_mean"] for row in rows if "steady/ep_len_mean" in row]
        assert len(lengths) > 5
        assert lengths == pytest.approx([20.0] * len(lengths))


def test_off_policy_algorithms_can_have_it_too():
    settings = {"learning_starts": 20, "buffer_size": 500, "device": "cpu", "seed": 0}
    dqn = DQN("MlpPolicy", SteadyVecEnv(clocks(4), [1, 2, 3, 4]), **settings)
    rows = logged(dqn, 400, SteadyStateCallback(), log_interval=1)
    assert any("steady/phase_distance" in row for row in rows)
    # A cut is a time limit to the replay buffer as well.
    buffer = dqn.replay_buffer
    cut = (buffer.dones[: buffer.pos] > 0) & (buffer.timeouts[: buffer.pos] > 0)
    assert cut.sum() == 3
    assert buffer.next_observations[: buffer.pos][cut][:, 0].tolist() == [2, 3, 4]
    sac = SAC("MlpPolicy", SteadyVecEnv(clocks(2, cls=Push), [1, 2]), train_freq=4, gradient_steps=1, **settings)
    sac.learn(120, callback=SteadyStateCallback(n_steps=4))


def test_lengths_are_logged_as_gymnasium_counts_them():
    model = ppo(DummyVecEnv([Dice] * 32), 16)  # 2 or 40 actions, evenly
    with pytest.warns(PhaseLockWarning):
        rows = logged(model, 16 * 32 * 30, SteadyStateCallback())
    assert rows[-1]["steady/ep_len_mean"] == pytest.approx(21, rel=0.15)


def test_without_stable_baselines3_the_pip_line_is_named():
    code = "import sys; sys.modules['stable_baselines3'] = None\nimport steadyrl.integrations.sb3"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (
        'MissingExtraError: this needs Stable-Baselines3; install it with: pip install "steadyrl[sb3]"' in done.stderr
    )
