"""One run of the study: train with Stable-Baselines3, and evaluate on fresh full episodes at ten moments.

python benchmarks/learning/one_run.py RUN OUT [MOMENTS]

RUN is the run as JSON (`runs.Run`); its row is written to OUT. With MOMENTS it ends after so many evaluations.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from arms import ARMS
from assets import small_sky
from gymnasium import spaces
from runs import A2C_SETTINGS, EVALUATION_EPISODES, EVALUATIONS, PPO_SETTINGS, TASKS, Run
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize

from steadyrl.integrations.sb3 import EnvPoolVecEnv

PACKAGES = ("steadyrl", "stable-baselines3", "torch", "envpool", "gymnasium", "numpy")


class Flat(VecEnvWrapper):
    """Observations as one row of numbers: what DM Control and MiniGrid give as a dictionary, joined."""

    def __init__(self, venv: VecEnv) -> None:
        self._keys = [key for key in venv.observation_space.spaces if key != "mission"]  # the text never changes
        self._scale = {"image": 0.1, "direction": 0.25}
        size = sum(int(np.prod(venv.observation_space[key].shape)) or 1 for key in self._keys)
        super().__init__(venv, observation_space=spaces.Box(-np.inf, np.inf, (size,), np.float32))

    def _flat(self, observations: Any, count: int) -> Any:
        parts = [np.reshape(observations[k], (count, -1)) * self._scale.get(k, 1.0) for k in self._keys]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def reset(self) -> Any:
        """Reset all environments."""
        return self._flat(self.venv.reset(), self.num_envs)

    def step_wait(self) -> Any:
        """Finish a step."""
        observations, rewards, dones, infos = self.venv.step_wait()
        for i in np.flatnonzero(dones):
            last = infos[i]["terminal_observation"]
            infos[i]["terminal_observation"] = self._flat({k: np.asarray(last[k])[None] for k in self._keys}, 1)[0]
        return self._flat(observations, self.num_envs), rewards, dones, infos


class EndRewards(VecEnvWrapper):
    """All rewards of an episode at its end, as where only the outcome counts; an episode that is cut has none."""

    def reset(self) -> Any:
        """Reset all environments."""
        self._sum = np.zeros(self.num_envs, dtype=np.float64)
        return self.venv.reset()

    def step_wait(self) -> Any:
        """Finish a step."""
        observations, rewards, dones, infos = self.venv.step_wait()
        self._sum += rewards
        cut = np.array([info.get("staggered", False) for info in infos])
        given = np.where(dones & ~cut, self._sum, 0.0).astype(np.float32)
        self._sum[dones] = 0.0
        return observations, given, dones, infos


def environments(run: Run, num_envs: int, seed: int, arm: str) -> Any:
    """Return the environments of a run, staggered as its arm says."""
    env: Any = EnvPoolVecEnv(run.task, num_envs, seed=seed, num_threads=1, **small_sky(run.task))
    horizon = TASKS[run.task].horizon
    env = ARMS[arm](env, seed=run.seed, horizon=horizon, n_steps=run.n_steps, task=run.task)
    if isinstance(env.observation_space, spaces.Dict):
        env = Flat(env)
    return env


class Evaluations(BaseCallback):
    """Evaluates the policy on fresh full episodes, ten times."""

    def __init__(self, run: Run, moments: int) -> None:
        super().__init__()
        self._run, self._moments = run, moments
        self._envs = environments(run, EVALUATION_EPISODES, 50_000 + run.seed, "as it is")
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0

    def _on_rollout_start(self) -> None:
        due = (len(self.rows) + 1) * self._run.total_steps / EVALUATIONS
        if self.num_timesteps >= due and len(self.rows) < EVALUATIONS:
            self.evaluate()

    def _on_training_end(self) -> None:
        if len(self.rows) < self._moments:
            self.evaluate()

    def _on_step(self) -> bool:
        return len(self.rows) < self._moments

    def evaluate(self) -> None:
        """Append the returns of one episode of each evaluation environment."""
        begin = time.perf_counter()
        normaliser = self.model.get_vec_normalize_env()
        observations = self._envs.reset()
        returns, running = np.zeros(EVALUATION_EPISODES), np.ones(EVALUATION_EPISODES, dtype=bool)
        length = 0
        while running.any():
            if normaliser is not None:
                observations = normaliser.normalize_obs(observations)
            actions, _ = self.model.predict(observations, deterministic=True)
            observations, rewards, dones, _ = self._envs.step(actions)
            returns += rewards * running
            length += int(running.sum())
            running &= ~dones
        self.rows.append(
            {
                "steps": int(self.num_timesteps),
                "mean": round(float(returns.mean()), 4),
                "deviation": round(float(returns.std(ddof=1)), 4),
                "length": round(length / EVALUATION_EPISODES, 2),
            }
        )
        self.seconds += time.perf_counter() - begin


def commit() -> str:
    """Return the commit of the code that runs, with a plus sign if the code (not the rows) was changed since."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", str(here.parents[1] / "src"), *map(str, here.glob("*.py")))
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + "+" * bool(changed)


def processor() -> str:
    """Return what decides on the last bits of a result: the processor, and the instructions that PyTorch uses of it."""
    known = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    words = dict(re.findall(r"(?m)^(cpu family|model|model name)\s*: (.+)$", known))
    name = " ".join(words[key] for key in ("model name", "cpu family", "model") if key in words) or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def train(run: Run, moments: int = EVALUATIONS) -> dict[str, Any]:
    """Train, and return the row: settings, versions, returns at ten moments, cuts, seconds."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    begin = time.perf_counter()
    env = environments(run, run.num_envs, run.seed, run.arm)
    bare = env
    if run.end_rewards:
        env = EndRewards(env)
    if run.normalise:
        env = VecNormalize(env)
    kind, settings = (PPO, dict(PPO_SETTINGS)) if run.algorithm == "PPO" else (A2C, dict(A2C_SETTINGS))
    model = kind("MlpPolicy", env, n_steps=run.n_steps, seed=run.seed, device="cpu", **settings)
    callback = Evaluations(run, moments)
    model.learn(run.total_steps, callback=callback)
    row = run.as_dict() | {
        "settings": settings,
        "evaluations": callback.rows,
        "cuts": int(getattr(bare, "cuts", 0) if run.arm not in ("as it is", "full length") else 0),
        "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(time.process_time(), 1),  # of all threads: what it takes on a machine that is not shared
        "evaluation_seconds": round(callback.seconds, 1),
        "versions": {name: version(name) for name in PACKAGES},
        "commit": commit(),
        "processor": processor(),
    }
    env.close()
    return row


if __name__ == "__main__":
    found = train(Run(**json.loads(sys.argv[1])), *map(int, sys.argv[3:]))
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)
