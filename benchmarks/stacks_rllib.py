"""Staggering in RLlib: PPO trains with the callback, and the distance of the ages live, as in stacks_torch.py.

    pip install "ray[rllib]==2.60.0" && pip install --no-deps steadyrl   # RLlib wants gymnasium 1.2.2 exactly
    python benchmarks/stacks_rllib.py

RLlib's EnvRunner steps one vector environment of Gymnasium. A callback puts StaggeredVectorEnv around it. steadyrl asks
for gymnasium 1.3 or later, so pip does not put the two into one environment by itself; staggering works with 1.2.2.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import ray
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback

import steadyrl
from stacks_torch import COPIES, NAME, SEED, cost, counted, live, save

LINES = [
    "class Stagger(RLlibCallback):",
    "    def on_environment_created(self, *, env_runner, **others):",
    "        env_runner.env = DictInfoToList(steadyrl.StaggeredVectorEnv(env_runner.env.env))",
    "config = PPOConfig().callbacks(Stagger)",
]


class Seen(VectorWrapper):
    """Keeps whose episode is over."""

    over: Any = None

    def step(self, actions: Any) -> Any:
        """Step the environments."""
        found = self.env.step(actions)
        self.over = np.asarray(found[2] | found[3])
        return found


class Stagger(RLlibCallback):
    """Puts the cure around RLlib's vector environment."""

    def on_environment_created(self, *, env_runner: Any, **others: Any) -> None:
        """Replace the environment that was made."""
        env_runner.env = DictInfoToList(Seen(steadyrl.StaggeredVectorEnv(env_runner.env.env, seed=SEED)))


def algorithm(copies: int) -> Any:
    config = PPOConfig().environment(NAME).callbacks(Stagger)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=copies)
    return config.training(train_batch_size_per_learner=16 * copies, minibatch_size=128, num_epochs=1).build_algo()


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    trained = algorithm(32)
    for _ in range(4):
        trained.train()
    verdict = trained.env_runner.env.env.env.phase.verdict
    trained.stop()
    runner = algorithm(COPIES).env_runner

    def step() -> Any:
        runner.sample(num_timesteps=1, random_actions=True)
        return runner.env.env.over

    runner.sample(num_timesteps=1, random_actions=True)  # this resets all copies, and steps once
    ages = counted(step, same_step=False, over=runner.env.env.over)
    costs = cost("NEXT_STEP")
    entry = {
        "stack": "RLlib",
        "version": version("ray"),
        "supported": {"stagger": True, "monitor": False, "fair statistics": False},
        "lines": LINES,
        "cost": f"{costs['first 3 mean lengths']} µs at first, {costs['quiet, mean']} µs later",
        "microseconds": costs,
        "distance": live(ages, same_step=False),
        "tested": True,
        "note": f"RLlib wants gymnasium {version('gymnasium')} exactly and steadyrl asks for 1.3 or later, so pip does "
        "not install both; install RLlib, then steadyrl with `pip install --no-deps .` and its other needs. It works "
        f"with {version('gymnasium')}: it was run in an environment of its own, by `benchmarks/stacks_rllib.py`; "
        f"after four iterations of PPO with 32 copies: {verdict}.",
    }
    save("rllib", entry, "stacks_rllib.py")


if __name__ == "__main__":
    main()
