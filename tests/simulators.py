"""Gymnasium environments as torch simulators: counters, a time limit, and resets within the step."""

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from rsl_rl.env import VecEnv
from tensordict import TensorDict

SETTINGS = {
    "num_steps_per_env": 16,
    "save_interval": 1000,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "actor": {
        "class_name": "MLPModel",
        "hidden_dims": [16],
        "activation": "elu",
        "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"},
    },
    "critic": {"class_name": "MLPModel", "hidden_dims": [16], "activation": "elu"},
    "algorithm": {"class_name": "PPO", "num_learning_epochs": 1, "num_mini_batches": 1},
}
"""A small PPO."""


class GymnasiumVecEnv(VecEnv):
    """Copies of a Gymnasium environment by rsl_rl's contract; a discrete action is 1 where the number is positive."""

    def __init__(self, name, num_envs, max_episode_length, seed=0):
        self.envs = gymnasium.make_vec(
            name,
            num_envs,
            vectorization_mode="sync",
            max_episode_steps=10**9,
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
        )
        self.num_envs, self.max_episode_length, self.device, self.cfg = num_envs, max_episode_length, "cpu", {}
        self.discrete = isinstance(self.envs.single_action_space, gymnasium.spaces.Discrete)
        self.num_actions = 1 if self.discrete else self.envs.single_action_space.shape[0]
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.lived = torch.zeros(num_envs, dtype=torch.long)  # steps since the last reset, whoever writes the counters
        self.observations, _ = self.envs.reset(seed=seed)

    def get_observations(self):
        return TensorDict({"policy": torch.from_numpy(self.observations.astype(np.float32))}, [self.num_envs])

    def step(self, actions):
        given = (actions[:, 0] > 0).long().numpy() if self.discrete else actions.numpy()
        self.observations, rewards, terminated, _, _ = self.envs.step(given)
        self.episode_length_buf += 1
        self.lived += 1
        fallen, time_outs = torch.from_numpy(terminated), self.episode_length_buf >= self.max_episode_length
        dones = fallen | time_outs
        if dones.any():
            self.observations, _ = self.envs.reset(options={"reset_mask": dones.numpy()})
            self.episode_length_buf[dones] = self.lived[dones] = 0
        rewards = torch.from_numpy(np.asarray(rewards, dtype=np.float32))
        return self.get_observations(), rewards, dones, {"time_outs": time_outs & ~fallen}


class Simulator:
    """A Gymnasium environment with the interface of Isaac Lab: tensors, counters, resets within the step."""

    def __init__(self, name, num_envs, max_episode_length):
        self.inside = GymnasiumVecEnv(name, num_envs, max_episode_length)
        self.num_envs, self.device, self.max_episode_length = num_envs, "cpu", max_episode_length
        spaces = self.inside.envs
        self.single_observation_space = gymnasium.spaces.Dict({"policy": spaces.single_observation_space})
        self.single_action_space = spaces.single_action_space

    unwrapped = property(lambda self: self)
    episode_length_buf = property(lambda self: self.inside.episode_length_buf)

    @episode_length_buf.setter
    def episode_length_buf(self, counters):
        self.inside.episode_length_buf = counters

    def observe(self):
        return {"policy": self.inside.get_observations()["policy"]}

    def reset(self, seed=None):
        return self.observe(), {}

    def step(self, actions):
        _, rewards, dones, extras = self.inside.step(actions)
        return self.observe(), rewards, dones & ~extras["time_outs"], extras["time_outs"], {}

    def close(self):
        self.inside.envs.close()
