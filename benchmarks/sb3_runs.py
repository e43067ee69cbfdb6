"""Stable-Baselines3's A2C and PPO, on EnvPool's copies or in processes, with snapshots that steadyrl can evaluate.

Settings are those of rl_zoo3 (hyperparams/a2c.yml and ppo.yml), which for A2C on MuJoCo are SB3's defaults with
normalised observations and rewards. On MuJoCo they are meant for one copy; here both have 16, as SSPG has. PPO then has
SB3's defaults, normalised, and 2,048 steps an update.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from steadyrl.integrations.sb3 import EnvPoolVecEnv
from steadyrl.policies.networks import NetworkPolicy, Normalisation

A2C_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"copies": 8, "normalise": False},
    "Acrobot-v1": {"copies": 16, "normalise": True},
    "Hopper-v5": {"copies": 16, "normalise": True},
    "HalfCheetah-v5": {"copies": 16, "normalise": True},
}
PPO_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "copies": 8,
        "normalise": False,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "learning_rate": lambda left: left * 1e-3,
        "clip_range": lambda left: left * 0.2,
    },
    "Acrobot-v1": {"copies": 16, "normalise": True, "n_steps": 256, "gae_lambda": 0.94, "n_epochs": 4},
    "Hopper-v5": {"copies": 16, "normalise": True, "n_steps": 128},
    "HalfCheetah-v5": {"copies": 16, "normalise": True, "n_steps": 128},
}


def make_model(algorithm: str, name: str, seed: int, *, processes: bool = False) -> Any:
    """Return a model with its copies."""
    settings = dict((A2C_SETTINGS if algorithm == "a2c" else PPO_SETTINGS)[name])
    copies, normalise = settings.pop("copies"), settings.pop("normalise")
    if processes:
        envs: Any = make_vec_env(name, copies, seed=seed, vec_env_cls=SubprocVecEnv)
    else:
        envs = EnvPoolVecEnv(name, copies, seed=seed, num_threads=1)
    if normalise:
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    kind = A2C if algorithm == "a2c" else PPO
    return kind("MlpPolicy", envs, seed=seed, device="cpu", **settings)


def train(model: Any, steps: int, every: int, look: Callable[[int, NetworkPolicy], None]) -> float:
    """Train, and look at the policy every so many steps; return the seconds that training alone took."""
    watcher = _Watcher(every, look)
    begun = time.perf_counter()
    model.learn(steps, callback=watcher)
    return time.perf_counter() - begun - watcher.seconds


class _Watcher(BaseCallback):
    def __init__(self, every: int, look: Callable[[int, NetworkPolicy], None]) -> None:
        super().__init__()
        self._every, self._next, self._look = every, every, look
        self.seconds = 0.0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._see()

    def _on_training_end(self) -> None:
        self._see()

    def _see(self) -> None:
        if self.num_timesteps >= self._next:
            begun = time.perf_counter()
            self._next = self.num_timesteps - self.num_timesteps % self._every + self._every
            self._look(self.num_timesteps, resolve_policy(self.model))
            self.seconds += time.perf_counter() - begun


def resolve_policy(model: Any) -> NetworkPolicy:
    """Return the numpy twin of an SB3 policy with tanh layers."""
    policy = model.policy
    linear = [layer for layer in policy.mlp_extractor.policy_net if isinstance(layer, torch.nn.Linear)]
    linear.append(policy.action_net)
    weights = tuple(layer.weight.detach().double().numpy().T.copy() for layer in linear)
    biases = tuple(layer.bias.detach().double().numpy().copy() for layer in linear)
    log_std = policy.log_std.detach().double().numpy().copy() if hasattr(policy, "log_std") else None
    seen, envs = None, model.get_env()
    if isinstance(envs, VecNormalize):
        seen = Normalisation(envs.obs_rms.mean.copy(), np.sqrt(envs.obs_rms.var + envs.epsilon), envs.clip_obs)
    return NetworkPolicy(weights, biases, log_std, normalisation=seen)
