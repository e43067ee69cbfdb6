"""skrl: its own PPO trainer runs on staggered copies of a simulator with counters, and of Gymnasium."""

import gymnasium
import pytest
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer, SequentialTrainerCfg
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from simulators import Simulator
from steadyrl import StaggeredVectorEnv
from steadyrl.errors import WrapperError
from steadyrl.integrations.torch.skrl import StaggeredWrapper

N, LIMIT = 60, 40
ROLLOUT = 16


class Policy(GaussianMixin, Model):
    def __init__(self, env):
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        GaussianMixin.__init__(self)
        self.net, self.log_std = nn.Linear(self.num_observations, self.num_actions), nn.Parameter(torch.zeros(1))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {"log_std": self.log_std.expand(self.num_actions)}


class Value(DeterministicMixin, Model):
    def __init__(self, env):
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        DeterministicMixin.__init__(self)
        self.net = nn.Linear(self.num_observations, 1)

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


def train(env, steps, folder):
    torch.manual_seed(0)
    settings = PPO_CFG(rollouts=ROLLOUT, learning_epochs=1, mini_batches=1, time_limit_bootstrap=True)
    settings.experiment.directory, settings.experiment.write_interval = str(folder), ROLLOUT
    settings.experiment.checkpoint_interval = 0
    agent = PPO(
        models={"policy": Policy(env), "value": Value(env)},
        memory=RandomMemory(memory_size=ROLLOUT, num_envs=env.num_envs, device=env.device),
        cfg=settings,
        observation_space=env.observation_space,
        action_space=env.action_space,
        device=env.device,
    )
    options = SequentialTrainerCfg(
        timesteps=steps, headless=True, disable_progressbar=True, close_environment_at_exit=False
    )
    SequentialTrainer(cfg=options, env=env, agents=agent).train()


def test_ppo_trains_on_copies_of_every_age(tmp_path):
    simulator = Simulator("Pendulum-v1", N, LIMIT)
    env = StaggeredWrapper(wrap_env(simulator, wrapper="isaaclab"), seed=0)
    train(env, 64, tmp_path)
    counts = torch.bincount(simulator.inside.lived, minlength=LIMIT)
    assert 0.5 * (counts / N - 1 / LIMIT).abs().sum() < 0.3  # of 60 copies at 40 ages; in lockstep 0.975
    assert env.staggering.phase.verdict == "at steady state"
    assert env.staggering.cuts > N
    events = EventAccumulator(str(next(tmp_path.iterdir()))).Reload()
    assert events.Scalars("steady/ep_len_mean")[-1].value == pytest.approx(LIMIT)
    assert events.Scalars("fair/length")[-1].value == pytest.approx(LIMIT)
    ages = env.staggering.ages
    train(env, 1, tmp_path / "again")  # skrl resets a simulator only once
    assert (env.staggering.ages - ages == 1).sum() > 0.9 * N
    env.close()


def test_gymnasium_vectors_are_staggered_before_skrl_wraps_them(tmp_path):
    inside = gymnasium.make_vec("Pendulum-v1", N, vectorization_mode="sync", max_episode_steps=LIMIT)
    envs = StaggeredVectorEnv(inside, seed=0)
    train(wrap_env(envs), 64, tmp_path)
    assert envs.phase.verdict == "at steady state"
    assert envs.cuts > N


def test_a_simulator_without_counters_is_refused():
    envs = gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync")
    with pytest.raises(WrapperError, match="has 'episode_length_buf' None"):
        StaggeredWrapper(wrap_env(envs))


def test_counters_of_another_name_and_a_limit_that_is_a_number():
    simulator = Simulator("CartPole-v1", N, LIMIT)
    simulator.progress_buf = simulator.inside.episode_length_buf
    env = StaggeredWrapper(wrap_env(simulator, wrapper="isaaclab"), counters="progress_buf", limit=LIMIT, seed=0)
    env.reset()
    for _ in range(10):
        env.step(torch.zeros(N, 1))
    assert env.staggering.cuts > 0
    assert env.state() is None
    assert env.num_envs == N
