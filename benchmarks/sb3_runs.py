"""Stable-Baselines3's A2C and PPO, on EnvPool or in processes, with snapshots that steadyrl can evaluate.

Settings are those of rl_zoo3 (hyperparams/a2c.yml and ppo.yml), which for A2C on MuJoCo are SB3's defaults with
normalised observations and rewards. On MuJoCo they are meant for one environment; here both have 16, as SSPG has. PPO
then has SB3's defaults, normalised, and 2,048 steps an update. On Pendulum-v1 both explore by state-dependent noise
(gSDE), which is drawn anew at every step when they are evaluated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
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
    "CartPole-v1": {"n_envs": 8, "normalise": False},
    "Acrobot-v1": {"n_envs": 16, "normalise": True},
    "Pendulum-v1": {
        "n_envs": 8,
        "normalise": True,
        "n_steps": 8,
        "gamma": 0.9,
        "gae_lambda": 0.9,
        "vf_coef": 0.4,
        "learning_rate": lambda left: left * 7e-4,
        "use_sde": True,
        "policy_kwargs": {"log_std_init": -2, "ortho_init": False},
    },
    "Hopper-v5": {"n_envs": 16, "normalise": True},
    "HalfCheetah-v5": {"n_envs": 16, "normalise": True},
}
PPO_SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "n_envs": 8,
        "normalise": False,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "learning_rate": lambda left: left * 1e-3,
        "clip_range": lambda left: left * 0.2,
    },
    "Acrobot-v1": {"n_envs": 16, "normalise": True, "n_steps": 256, "gae_lambda": 0.94, "n_epochs": 4},
    "Pendulum-v1": {
        "n_envs": 4,
        "normalise": False,
        "n_steps": 1024,
        "gamma": 0.9,
        "gae_lambda": 0.95,
        "learning_rate": 1e-3,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    "Hopper-v5": {"n_envs": 16, "normalise": True, "n_steps": 128},
    "HalfCheetah-v5": {"n_envs": 16, "normalise": True, "n_steps": 128},
}


def make_model(algorithm: str, name: str, seed: int, *, processes: bool = False) -> Any:
    """Return a model with its environments."""
    settings = dict((A2C_SETTINGS if algorithm == "a2c" else PPO_SETTINGS)[name])
    n_envs, normalise = settings.pop("n_envs"), settings.pop("normalise")
    if processes:
        envs: Any = make_vec_env(name, n_envs, seed=seed, vec_env_cls=SubprocVecEnv)
    else:
        envs = EnvPoolVecEnv(name, n_envs, seed=seed, num_threads=1)
    if normalise:
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99))
    kind = A2C if algorithm == "a2c" else PPO
    return kind("MlpPolicy", envs, seed=seed, device="cpu", **settings)


def train(model: Any, steps: int, every: int, look: Callable[[int, Any], None]) -> float:
    """Train, and look at the policy every so many steps; return the seconds that training alone took."""
    watcher = _Watcher(every, look)
    begun = time.perf_counter()
    model.learn(steps, callback=watcher)
    return time.perf_counter() - begun - watcher.seconds


class _Watcher(BaseCallback):
    def __init__(self, every: int, look: Callable[[int, Any], None]) -> None:
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


@dataclass(frozen=True)
class StateDependentNoise:
    """A Gaussian whose deviation is linear in the last hidden layer, squared (gSDE), with noise drawn at every step."""

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]
    deviations: Any
    """[hidden, actions]."""
    normalisation: Normalisation | None

    def act(self, observations: Any, rng: np.random.Generator) -> Any:
        """Return an action for each observation."""
        x = observations if self.normalisation is None else self.normalisation(observations)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = np.tanh(x @ weight + bias)
        mean = x @ self.weights[-1] + self.biases[-1]
        return mean + np.sqrt(x**2 @ self.deviations**2 + 1e-6) * rng.standard_normal(mean.shape)


def resolve_policy(model: Any) -> NetworkPolicy | StateDependentNoise:
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
    if model.use_sde:
        return StateDependentNoise(weights, biases, np.exp(log_std), seen)
    return NetworkPolicy(weights, biases, log_std, normalisation=seen)
