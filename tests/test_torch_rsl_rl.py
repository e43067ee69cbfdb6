"""rsl_rl: its own runner trains on staggered copies, which the environment's own time limit truncates."""

import copy

import numpy as np
import pytest
import torch
from rsl_rl.runners import OnPolicyRunner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pretend_device import DEVICE, elsewhere, pretend_device, waiting_allowed
from simulators import SETTINGS, GymnasiumVecEnv
from steadyrl import EpisodeLengths, design_delays
from steadyrl.errors import DelaysError, StaggerError, WrapperError
from steadyrl.integrations.torch.rsl_rl import StaggeredVecEnv, write_delays

N, LIMIT = 120, 40


class Watched:
    """Passes everything on, and keeps what a step returned."""

    def __init__(self, env):
        self.env, self.dones, self.time_outs, self.lived = env, [], [], []

    def step(self, actions):
        lived = self.env.lived + 1
        found = self.env.step(actions)
        self.dones.append(found[2])
        self.time_outs.append(found[3]["time_outs"])
        self.lived.append(lived)
        return found

    def __getattr__(self, name):
        return getattr(self.env, name)

    @property
    def episode_length_buf(self):
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, counters):
        self.env.episode_length_buf = counters


def train(env, iterations, folder=None, **options):
    torch.manual_seed(0)
    runner = OnPolicyRunner(env, copy.deepcopy(SETTINGS), log_dir=None if folder is None else str(folder))
    runner.learn(iterations, **options)
    return runner


def spread(env):
    """How many copies have each age, from the environment's own count."""
    return torch.bincount(env.lived, minlength=env.max_episode_length)


@pytest.mark.parametrize("random_counters", [False, True])
def test_the_runner_trains_on_copies_of_every_age(random_counters, tmp_path):
    bare = GymnasiumVecEnv("Pendulum-v1", N, LIMIT)
    env = StaggeredVecEnv(bare, seed=0)
    train(env, 4, tmp_path, init_at_random_ep_len=random_counters)
    counts = spread(bare)
    assert 0.5 * (counts / N - 1 / LIMIT).abs().sum() < 0.1  # in lockstep it is 1 - 1 / LIMIT
    assert env.phase.verdict == "at steady state"
    np.testing.assert_array_equal(env.ages[env.ages > 0], bare.lived[env.ages > 0] + 1)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Scalars("steady/in_lockstep")[-1].value == 0
    assert events.Scalars("fair/return")[-1].value < 0
    # With random counters first episodes were short, and lengths are still being learnt.
    assert events.Scalars("steady/ep_len_mean")[-1].value == pytest.approx(LIMIT, rel=0.15 * random_counters, abs=1e-3)


def test_without_it_the_runner_trains_on_copies_of_one_age():
    bare = GymnasiumVecEnv("Pendulum-v1", N, LIMIT)
    train(bare, 4)
    assert spread(bare).max() == N


def test_copies_that_fall_are_truncated_too_and_every_truncation_is_a_time_out_of_the_environment():
    bare = Watched(GymnasiumVecEnv("CartPole-v1", N, 10**6))
    env = StaggeredVecEnv(bare, seed=0)
    train(env, 4)
    ends, time_outs = torch.stack(bare.dones), torch.stack(bare.time_outs)
    pending = int((env.ages == 0).sum())
    fell_in_that_step = env.cuts - pending - int(time_outs.sum())  # it fell before the time limit was looked at
    assert 0 <= fell_in_that_step <= 0.1 * env.cuts
    assert env.cuts > N
    assert ends.sum() > time_outs.sum()
    assert torch.stack(bare.lived)[time_outs].max() < 100  # nobody reaches the time limit by itself
    assert env.phase.distance < env.phase.noise
    # CartPole's reward is 1 a step, so its mean return is its mean length; the controller's estimate is another route.
    report = env.statistics.report()
    assert report.mean_return.value == pytest.approx(report.average_episode_length.value - 1)
    assert report.mean_return.value == pytest.approx(env.phase.average_episode_length - 1, rel=0.1)
    assert env.cuts - pending == int(env.statistics._host._state.cut)


def test_written_counters_are_even_and_so_are_ages_one_time_limit_later():
    env = GymnasiumVecEnv("Pendulum-v1", N, LIMIT)
    counters = write_delays(env, seed=0)
    assert counters is env.episode_length_buf
    assert torch.bincount(counters).tolist() == [N // LIMIT] * LIMIT
    for _ in range(LIMIT):
        env.step(torch.zeros(N, 1))
    assert spread(env).tolist() == [N // LIMIT] * LIMIT


def test_designed_delays_are_written_as_counters():
    delays = design_delays(EpisodeLengths.from_gymnasium([LIMIT]))
    env = GymnasiumVecEnv("Pendulum-v1", N, LIMIT)
    write_delays(env, delays, seed=0)
    for _ in range(delays.window):
        env.step(torch.zeros(N, 1))
    assert 0.5 * (spread(env) / N - 1 / LIMIT).abs().sum() < 0.06  # one age is off by a step: its copies are not cut
    with pytest.raises(DelaysError, match="time limit is 40"):
        write_delays(env, np.arange(1, N + 1))


def test_a_limit_for_each_copy():
    env = GymnasiumVecEnv("Pendulum-v1", 4, torch.tensor([10, 10, 20, 20]))
    assert (write_delays(env, seed=0) < env.max_episode_length).all()
    staggered = StaggeredVecEnv(env, seed=0)
    for _ in range(60):
        staggered.step(torch.zeros(4, 1))
    assert (env.lived < env.max_episode_length).all()
    assert staggered.cuts > 0


def test_a_reset_of_all_copies_starts_anew_and_other_names_are_those_of_the_environment():
    bare = GymnasiumVecEnv("Pendulum-v1", 8, LIMIT)
    bare.reset = lambda: bare.get_observations()
    env = StaggeredVecEnv(bare, seed=0, log_interval=0)
    for _ in range(5):
        *_, extras = env.step(torch.zeros(8, 1))
    assert "log" not in extras
    env.reset()
    assert env.ages.tolist() == [1] * 8
    assert env.envs is bare.envs
    assert env.num_actions == 1


def test_a_counter_without_effect_is_an_error():
    bare = GymnasiumVecEnv("Pendulum-v1", N, LIMIT)
    inner = bare.step

    def step(actions):
        bare.episode_length_buf.zero_()
        return inner(actions)

    bare.step = step
    env = StaggeredVecEnv(bare, seed=0)
    env.step(torch.zeros(N, 1))
    assert env.cuts > 0
    with pytest.raises(StaggerError, match="has no effect"):
        env.step(torch.zeros(N, 1))


def test_counters_that_the_runner_writes_later_do_not_undo_a_truncation():
    bare = GymnasiumVecEnv("Pendulum-v1", N, LIMIT)
    env = StaggeredVecEnv(bare, seed=0)
    env.step(torch.zeros(N, 1))
    due = env.ages == 0
    env.episode_length_buf = torch.zeros(N, dtype=torch.long)  # as init_at_random_ep_len does in a second `learn`
    env.step(torch.zeros(N, 1))
    assert due.any()
    assert (bare.lived[due] == 0).all()


def test_an_environment_that_does_not_report_time_outs_gets_a_warning():
    bare = GymnasiumVecEnv("Pendulum-v1", N, LIMIT)
    inner = bare.step
    bare.step = lambda actions: (*inner(actions)[:3], {})
    env = StaggeredVecEnv(bare, seed=0)
    env.step(torch.zeros(N, 1))
    with pytest.warns(UserWarning, match="does not bootstrap"):
        env.step(torch.zeros(N, 1))


def test_an_environment_without_counters_is_refused():
    bare = GymnasiumVecEnv("Pendulum-v1", 2, LIMIT)
    del bare.episode_length_buf
    with pytest.raises(WrapperError, match="has 'episode_length_buf' None"):
        StaggeredVecEnv(bare)


class OnDevice:
    """Copies on a device, that know nothing but their counters."""

    def __init__(self):
        self.num_envs, self.max_episode_length = 16, 10
        self.episode_length_buf = torch.zeros(16, dtype=torch.long, device=DEVICE)

    def step(self, actions):
        self.episode_length_buf = self.episode_length_buf + 1
        dones = self.episode_length_buf >= self.max_episode_length
        self.episode_length_buf = torch.where(dones, 0, self.episode_length_buf)
        return {}, torch.zeros(16, device=DEVICE), dones, {"episode": {}, "time_outs": dones}


def test_nobody_waits_for_the_device():
    with pretend_device():
        env = StaggeredVecEnv(OnDevice(), seed=0, log_interval=1)
        for _ in range(25):
            *_, extras = env.step(elsewhere(torch.zeros(16, 1)))
        with waiting_allowed():
            assert env.phase.verdict == "at steady state"
            assert env.ages.unique().numel() >= 9
            assert extras["episode"]["steady/ep_len_mean"].item() == pytest.approx(10)
            assert extras["episode"]["fair/length"].item() == pytest.approx(10)
            assert env.statistics.report().mean_return.value == 0
