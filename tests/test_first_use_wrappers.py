"""What people run into first: Gymnasium's default vector environments, few environments, evaluation under VecNormalize.

Statistical tests have fixed seeds and say how often chance alone would fail them.
"""

import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from scripted import Clock, Drawn, Scripted
from steadyrl import EpisodeLengths, PhaseMonitor, StaggerController, StaggeredVectorEnv, design_delays, pre_roll
from steadyrl.errors import PhaseLockWarning, SteadyrlError, WrapperError
from steadyrl.integrations.sb3 import SteadyStateCallback, SteadyVecEnv
from steadyrl.live.ages import follow_ages
from steadyrl.live.lockstep import ALARM, level_of_look, scan_p_value
from steadyrl.live.phase import PhaseTracker

torch.set_num_threads(1)
VECTORISED = sorted(id for id, spec in gymnasium.registry.items() if spec.vector_entry_point is not None)


# Gymnasium's own vectorised environments


def make_vectorised(id, num_envs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old versions
        try:
            return gymnasium.make_vec(id, num_envs=num_envs)
        except ModuleNotFoundError as error:
            pytest.skip(f"{id} needs {error.name}")


def balance(observations):
    """Actions that keep most poles up for a while."""
    observations = np.asarray(observations)
    return (observations[:, 2] + 0.5 * observations[:, 3] > 0).astype(int)


@pytest.mark.parametrize("id", VECTORISED)
def test_every_vectorised_environment_of_gymnasium_is_staggered_or_refused_at_once(id):
    envs = make_vectorised(id, 64)
    if not isinstance(envs.metadata.get("autoreset_mode"), AutoresetMode):
        with pytest.raises(WrapperError, match="autoreset_mode"):
            StaggeredVectorEnv(envs)
        return
    limit = envs.spec.max_episode_steps
    staggered = StaggeredVectorEnv(envs, design_delays(EpisodeLengths.from_gymnasium([limit])), seed=0)
    observations, _ = staggered.reset(seed=0)
    cut = np.zeros(64, dtype=int)
    before = np.zeros(64, dtype=bool)
    for _ in range(2 * limit):
        actions = balance(observations) if "CartPole" in id else staggered.action_space.sample()
        observations, rewards, _, truncated, infos = staggered.step(actions)
        # The step after a cut is the reset, as after any end: no reward, and a state from which episodes start.
        assert (np.asarray(rewards)[before] == 0).all()
        if "CartPole" in id:
            assert (np.abs(np.asarray(observations)[before]) <= 0.05).all()
        before = infos.get("staggered", np.zeros(64, dtype=bool))
        assert (np.asarray(truncated) >= before).all()
        cut += before
    assert 0 < cut.sum() == staggered.cuts
    assert len(np.unique(staggered.ages)) > 16


def test_the_default_cartpole_runs_with_auto_for_as_long_as_you_like():
    envs = StaggeredVectorEnv(gymnasium.make_vec("CartPole-v1", num_envs=64))
    observations, _ = envs.reset(seed=1)
    lengths, age = [], np.zeros(64, dtype=int)
    for _ in range(1500):
        observations, _, terminated, truncated, infos = envs.step(balance(observations))
        age += 1
        own = (terminated | truncated) & ~infos.get("staggered", np.zeros(64, dtype=bool))
        lengths += age[own].tolist()
        age[terminated | truncated] = -1
    assert envs.cuts > 0
    assert max(lengths) <= 500
    with pytest.raises(WrapperError, match="ignores options"):
        envs.reset(options={"reset_mask": np.arange(64) == 3})


def test_ages_of_the_default_cartpole_are_those_of_its_own_step_counter():
    inside = gymnasium.make_vec("CartPole-v1", num_envs=8)
    envs = StaggeredVectorEnv(PhaseMonitor(inside, warn=False), np.arange(1, 9))
    monitor = envs.env
    envs.reset(seed=0)
    for _ in range(60):
        envs.step(np.ones(8, dtype=int))
        np.testing.assert_array_equal(envs.ages, inside.unwrapped.steps + 1)
        np.testing.assert_array_equal(monitor.ages, inside.unwrapped.steps + 1)


def test_a_pre_roll_of_the_default_cartpole_ends_at_the_ages_asked_for():
    envs = gymnasium.make_vec("CartPole-v1", num_envs=6)
    observations, infos = pre_roll(envs, [1, 2, 3, 4, 5, 6], balance, seed=0)
    assert (envs.unwrapped.steps + 1).tolist() == [1, 2, 3, 4, 5, 6]
    assert observations.shape == (6, 4)
    assert not infos["done"].any()


# Verdicts


def pendulum_like(num_envs, n_steps, batches, length=200):
    tracker = PhaseTracker(num_envs, same_step=True, n_steps=n_steps)
    for step in range(1, batches * n_steps + 1):
        tracker.update(np.full(num_envs, step % length == 0))
    return tracker.report()


@pytest.mark.parametrize("num_envs", [4, 8, 64])
def test_lockstep_of_fixed_lengths_is_found_in_a_few_batches(num_envs):
    assert pendulum_like(num_envs, 128, 3).verdict == "cannot tell yet"
    for batches in (4, 40):
        report = pendulum_like(num_envs, 128, batches)
        assert report.phase_locked
        assert report.verdict == "in lockstep"
        assert report.distance == pytest.approx(1 - 128 / 200)  # 128 of 200 ages, all environments as one


@pytest.mark.parametrize("n_steps", [200, 1024, 2048])
def test_batches_of_whole_episodes_are_fair_in_lockstep_too(n_steps):
    for num_envs in (4, 100):
        report = pendulum_like(num_envs, n_steps, 12)
        assert not report.phase_locked
        assert report.verdict == "at steady state"


def test_a_single_environment_and_a_pair_cannot_be_judged():
    for num_envs in (1, 2):
        report = pendulum_like(num_envs, 128, 40)
        assert report.verdict == "cannot tell yet"
        assert not report.phase_locked


def test_steady_state_is_claimed_only_where_a_distance_of_a_third_is_ruled_out():
    # Six environments within a quarter of the episode, as lengths of 96 to 104 leave them: 0.75 from the long run, and
    # too few for a proof. 64 of them are proof.
    for num_envs, verdict in ((6, "cannot tell yet"), (64, "in lockstep")):
        tracker = PhaseTracker(num_envs, same_step=True, n_steps=1)
        rng = np.random.default_rng(0)
        age = 1 + (rng.random(num_envs) * 25).astype(int)
        tracker.ages[:] = age
        for _ in range(640):
            done = age >= 100
            tracker.update(done)
            age = np.where(done, 1, age + 1)
        assert tracker.report().verdict == verdict


@pytest.mark.parametrize("num_envs", [8, 16])
def test_few_environments_that_are_cured_are_hardly_ever_called_in_lockstep(num_envs):
    # 160 looks at a rate of at most 0.001 each: one seed in six sees an alarm at most; these see none. With the
    # noise of many environments instead of an exact test, two looks in a hundred were alarms.
    rng = np.random.default_rng(num_envs)
    verdicts = []
    for seed in range(4):
        controller = StaggerController(num_envs, same_step=True, seed=seed)
        age, length = np.ones(num_envs, dtype=int), rng.geometric(0.05, num_envs)
        for step in range(1300):
            done = age >= length
            done |= controller.step(done)
            age = np.where(done, 1, age + 1)
            length = np.where(done, rng.geometric(0.05, num_envs), length)
            if step >= 500 and step % 20 == 0:
                verdicts.append(controller.phase.verdict)
    assert verdicts.count("in lockstep") == 0
    assert verdicts.count("at steady state") > 100


def steady_training(num_envs, n_steps, draw, steps, rng):
    """Whether a training at steady state raises an alarm; lengths are drawn by `draw(count)`."""
    tracker = PhaseTracker(num_envs, same_step=True, n_steps=n_steps)
    pool = draw(4000)
    length = rng.choice(pool, num_envs, p=pool / pool.sum())  # an episode as likely as it is long
    age = 1 + (rng.random(num_envs) * length).astype(int)
    tracker.ages[:] = age
    for _ in range(steps):
        done = age >= length
        if tracker.update(done) and tracker.phase_locked:
            return True
        age = np.where(done, 1, age + 1)
        length = np.where(done, draw(num_envs), length)
    return False


@pytest.mark.parametrize("family", ["fixed", "normal", "two", "geometric"])
def test_false_alarms_in_a_whole_training_are_as_rare_as_stated(family):
    # 45 trainings per family at a rate of at most 0.001: two or more alarms happen once in 1,000 times.
    rng = np.random.default_rng(["fixed", "normal", "two", "geometric"].index(family))
    draw = {
        "fixed": lambda n: np.full(n, 25),
        "normal": lambda n: np.maximum(rng.normal(25, 3, n).round().astype(int), 1),
        "two": lambda n: rng.choice([5, 40], n),
        "geometric": lambda n: rng.geometric(0.05, n),
    }[family]
    alarms = 0
    for num_envs, n_steps in ((4, 16), (8, 8), (40, 8)):
        alarms += sum(steady_training(num_envs, n_steps, draw, 300, rng) for _ in range(15))
    assert alarms <= 1


def test_the_scan_test_is_right_for_uniform_ages():
    # 10,000 sets of 6 ages: p-values below 0.01 have probability at most 0.01; 150 or more happen once in 10^6 times.
    rng = np.random.default_rng(0)
    ages = rng.integers(1, 101, (10_000, 6))
    p_values = np.array([scan_p_value(row, np.ones(100)) for row in ages])
    assert (p_values < 0.01).sum() < 150
    assert sum(level_of_look(k) for k in range(1, 10_000)) < ALARM
    # By hand: six of one age are in an arc of 1/100, at three sizes of crowds: 3 * 6 / 100^5.
    assert scan_p_value(np.full(6, 42), np.ones(100)) == pytest.approx(18 * 0.01**5)


def test_ages_and_visits_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    for trial in range(300):
        steps, num_envs, same_step = int(rng.integers(1, 7)), int(rng.integers(1, 5)), bool(trial % 2)
        done = rng.random((steps, num_envs)) < rng.choice([0.0, 0.2, 0.8])
        cut = (rng.random((steps, num_envs)) < 0.1) & ~done
        ages = rng.integers(1, 9, num_envs)
        restarting = (rng.random(num_envs) < 0.3) & (not same_step)
        found = follow_ages(ages, restarting, done, cut, same_step=same_step)
        visits, ends = np.zeros((2, 30), dtype=int)
        for t in range(steps):
            for i in range(num_envs):
                if not same_step:
                    ages[i] = 1 if restarting[i] else ages[i] + 1
                    restarting[i] = done[t, i] | cut[t, i]
                visits[ages[i]] += 1
                ends[ages[i]] += done[t, i]
                if same_step:
                    ages[i] = 1 if done[t, i] | cut[t, i] else ages[i] + 1
        np.testing.assert_array_equal(found.ages, ages)
        np.testing.assert_array_equal(found.restarting, restarting)
        np.testing.assert_array_equal(found.visits, visits[: len(found.visits)])
        assert found.visits.sum() == steps * num_envs
        np.testing.assert_array_equal(found.ends, ends[: len(found.ends)])
        assert found.ends.sum() == ends.sum()


@pytest.mark.parametrize(
    "flags", ["no", 1, None, np.zeros(3, dtype=bool), np.zeros(4, dtype=int), np.full(4, np.nan), [[True] * 4], {}]
)
def test_flags_that_are_none_are_refused(flags):
    tracker = PhaseTracker(4, same_step=True)
    nobody = np.zeros(4, dtype=bool)
    for use in (
        lambda: tracker.update(flags),
        lambda: tracker.watch(flags, nobody),
        lambda: tracker.watch(nobody, flags),
        *([] if flags is None else [lambda: tracker.update(nobody, flags), lambda: tracker.reset(flags)]),
    ):
        with pytest.raises(SteadyrlError, match="array of booleans"):
            use()
    with pytest.raises(SteadyrlError, match=r"environments \[2\] are in done and in cut"):
        tracker.update(np.arange(4) == 2, np.arange(4) >= 2)
    assert tracker.update([False] * 4) is False  # lists of booleans will do


# One vocabulary


def test_watcher_and_cures_tell_the_same_things_by_the_same_names():
    sync = partial(SyncVectorEnv, [Drawn] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    watcher, cure, sb3 = PhaseMonitor(sync()), StaggeredVectorEnv(sync()), SteadyVecEnv(DummyVecEnv([Clock] * 4))
    for envs in (watcher, cure, sb3):
        assert envs.lengths is None
        envs.reset()
        for _ in range(64):
            envs.step(np.zeros(4, dtype=int))
        assert envs.phase.steps == 64 * 4
        assert isinstance(envs.lengths, EpisodeLengths)
        assert envs.ages.shape == (4,)
    assert watcher.phase == watcher.report()
    assert cure.cuts >= 0
    assert sb3.cuts >= 0


def scripted(copies=32):
    return SyncVectorEnv([partial(Scripted, copy, (9,)) for copy in range(copies)])


@pytest.mark.parametrize("inside", [True, False])
def test_a_monitor_does_not_recommend_the_cure_that_is_there(inside):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if inside:
            envs = StaggeredVectorEnv(PhaseMonitor(scripted(), n_steps=1))
        else:
            envs = PhaseMonitor(StaggeredVectorEnv(scripted()), n_steps=1)
        envs.reset(seed=0)
        for _ in range(120):
            envs.step(np.zeros(32, dtype=int))
        assert not envs.phase.phase_locked


@pytest.mark.parametrize("inside", [True, False])
def test_a_monitor_says_when_the_delays_that_are_there_do_not_fit(inside):
    if inside:
        envs = StaggeredVectorEnv(PhaseMonitor(scripted(), n_steps=1), [1] * 32)
    else:
        envs = PhaseMonitor(StaggeredVectorEnv(scripted(), [1] * 32), n_steps=1)
    envs.reset(seed=0)

    def run():
        for _ in range(120):
            envs.step(np.zeros(32, dtype=int))

    with pytest.warns(PhaseLockWarning, match="do not fit these episodes, so use 'auto'"):
        run()


# Stable-Baselines3


def small_ppo(env, n_steps):
    settings = {"batch_size": n_steps * env.num_envs, "n_epochs": 1, "device": "cpu", "seed": 0}
    return PPO("MlpPolicy", env, n_steps=n_steps, **settings)


@pytest.mark.parametrize("num_envs", [4, 8])
def test_pendulum_in_the_sizes_that_people_use_is_warned_of(num_envs):
    model = small_ppo(make_vec_env("Pendulum-v1", num_envs, seed=0), 128)
    with pytest.warns(PhaseLockWarning, match=rf"{num_envs} environments .* lockstep: in batches of 128 steps.* 36%"):
        model.learn(128 * num_envs * 5, callback=SteadyStateCallback())


def test_four_pendulums_are_cured_and_called_so():
    env = SteadyVecEnv(make_vec_env("Pendulum-v1", 4, seed=0), seed=0, n_steps=128)
    callback = SteadyStateCallback()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PhaseLockWarning)
        small_ppo(env, 128).learn(128 * 4 * 12, callback=callback)
    assert env.cuts > 0
    assert callback.phase.verdict == "at steady state"
    assert callback.phase.average_episode_length == env.phase.average_episode_length
    assert callback.phase.verdict == env.phase.verdict


@pytest.mark.parametrize("layers", [VecNormalize, lambda venv: VecNormalize(VecFrameStack(venv, 2))])
def test_evaluation_under_vec_normalize_needs_no_special_environment(layers, tmp_path):
    env = layers(SteadyVecEnv(make_vec_env("CartPole-v1", 4, seed=0)))
    evaluation = layers(make_vec_env("CartPole-v1", 2, seed=1))
    evaluation.training = False
    callback = EvalCallback(evaluation, eval_freq=32, n_eval_episodes=4, verbose=0, log_path=str(tmp_path))
    small_ppo(env, 32).learn(32 * 4 * 4, callback=callback)
    assert len(np.load(tmp_path / "evaluations.npz")["results"]) == 4
    # The statistics are those of the training, as synchronised at the last evaluation, after which nothing was trained.
    np.testing.assert_allclose(evaluation.obs_rms.mean, env.obs_rms.mean)
    assert evaluation.obs_rms.count == env.obs_rms.count > 500


def test_a_steady_vec_env_passes_on_what_is_asked_of_the_environments():
    inside = DummyVecEnv([Clock] * 3)
    env = VecNormalize(SteadyVecEnv(inside))
    assert env.unwrapped is inside
    assert env.get_attr("length") == [8, 8, 8]
    env.set_attr("length", 5, [1])
    assert env.get_attr("length") == [8, 5, 8]
    assert env.envs is inside.envs
    assert env.has_attr("length")
    assert not env.has_attr("width")
    assert env.cuts == 0
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = env.no_such_thing
    assert env.seed(3) == [3, 4, 5]


# Which environment failed


class Odd(gymnasium.Wrapper):
    """A wrapper whose methods call their object and their counters as they like."""

    def step(this, action):  # noqa: N805
        i = 0
        return this.env.step(action)[:5] if i == 0 else None


def test_the_environment_that_raised_is_known_by_its_object_whatever_names_are_used():
    makers = [lambda c=c: Odd(Scripted(c, (6,), "box", 3 if c == 2 else None)) for c in range(4)]
    envs = StaggeredVectorEnv(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP), [1] * 4)
    envs.reset(seed=0)
    envs.step(np.zeros(4, dtype=int))
    envs.step(np.zeros(4, dtype=int))
    with pytest.raises(WrapperError, match="copy 2 of SyncVectorEnv") as caught:
        envs.step(np.zeros(4, dtype=int))
    assert caught.value.copies == (2,)
