"""Fair statistics of a policy that learns: how far the fair mean, and that of the last 100 finished episodes, lag.

    python benchmarks/fair_learning.py                both parts, about three minutes on two cores
    python benchmarks/fair_learning.py lag            parts, by name: lag, sb3

`lag`: episodes fall at a constant hazard, and their mean length grows linearly from 20 to 200 steps, so that the mean
return of the policy at every moment is known. The lag is the time by which a curve is too late, averaged over the last
three quarters. `sb3`: PPO of Stable-Baselines3 learns CartPole-v1 with `FairStatisticsCallback`; the policy of every
fourth rollout is evaluated afterwards with 400 complete episodes. Results go to
benchmarks/results/fair_learning.json, and as tables to fair_learning.md.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from ratios import SEED, Part, main
from steadyrl.integrations.sb3 import FairStatisticsCallback
from steadyrl.live.fair_statistics import FairStatistics, tracking_memory

Array = NDArray[np.float64]
FINISHED = 100
SHORTEST, LONGEST, STEPS, ROLLOUT = 20.0, 200.0, 12_000, 128


def learn(num_envs: int, rng: np.random.Generator) -> Array:
    """Return [moments, 5]: true, fair and finished mean return, whether the interval has the truth, the memory."""
    statistics, ages, rows = FairStatistics(num_envs, same_step=True), np.ones(num_envs, dtype=int), []
    finished: deque[int] = deque(maxlen=FINISHED)
    for step in range(STEPS):
        length = SHORTEST + (LONGEST - SHORTEST) * step / STEPS
        ended = rng.random(num_envs) < 1 / length
        statistics.update(np.ones(num_envs), ended)
        finished.extend(ages[ended].tolist())
        ages = np.where(ended, 1, ages + 1)
        if (step + 1) % ROLLOUT == 0:
            report = statistics.report()
            memory = max(tracking_memory(FINISHED, num_envs, report.mean_gymnasium_length.value), ROLLOUT)
            statistics.memory = memory
            if step >= STEPS / 4:
                fair = report.mean_return
                rows.append((length, fair.value, np.mean(finished), fair.low <= length <= fair.high, memory))
    return np.array(rows)


def lag(repeats: int) -> list[dict[str, Any]]:
    found, slope = [], (LONGEST - SHORTEST) / STEPS
    for num_envs in (8, 64):
        runs = [learn(num_envs, np.random.default_rng([SEED, number])) for number in range(repeats)]
        late = np.array([[(run[:, 0] - run[:, column]).mean() / slope for column in (1, 2)] for run in runs])
        every = np.concatenate(runs)
        row = {
            "name": f"mean length from {SHORTEST:g} to {LONGEST:g} in {STEPS:,} steps",
            "environments": num_envs,
            "memory": round(float(every[:, 4].mean())),
            "lag": round(float(late[:, 0].mean())),
            "finished_lag": round(float(late[:, 1].mean())),
            "lag_standard_error": round(float(late[:, 0].std(ddof=1)) / repeats**0.5, 1),
            "coverage": round(float(every[:, 3].mean()), 3),
            "repeats": repeats,
        }
        print(row, flush=True)
        found.append(row)
    return found


class Checkpoints(FairStatisticsCallback):
    """Logs fair means, and keeps the policy of every fourth rollout with what was logged about it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[int, Any, float, float, float, float, float]] = []
        self.rollouts = 0

    def _on_rollout_end(self) -> None:
        super()._on_rollout_end()
        self.rollouts += 1
        if self.rollouts % 4 == 0 and len(self.model.ep_info_buffer or ()):
            finished = float(np.mean([info["r"] for info in self.model.ep_info_buffer or ()]))
            report = self.report
            assert report is not None
            fair, policy = report.mean_return, copy.deepcopy(self.model.policy)
            self.kept.append((self.num_timesteps, policy, fair.value, fair.low, fair.high, finished, self.memory))


def complete_returns(policy: Any, episodes: int, seed: int) -> Array:
    """Return the returns of the first, complete, episodes of as many CartPoles."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=episodes, vectorization_mode="vector_entry_point")
    observations, _ = envs.reset(seed=seed)
    returns, running = np.zeros(episodes), np.ones(episodes, dtype=bool)
    torch.manual_seed(seed)
    while running.any():
        actions, _ = policy.predict(observations, deterministic=False)
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        returns += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return returns


def sb3(repeats: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    callback, envs = Checkpoints(), make_vec_env("CartPole-v1", n_envs=8, seed=SEED)
    model = PPO("MlpPolicy", envs, n_steps=ROLLOUT, batch_size=256, n_epochs=5, device="cpu", seed=SEED)
    model.learn(49_152, callback=callback)
    found = []
    for steps, policy, fair, low, high, finished, memory in callback.kept:
        returns = complete_returns(policy, 400, SEED + 1)
        row = {
            "name": "PPO on CartPole-v1, 8 environments",
            "steps": steps,
            "evaluated": round(float(returns.mean()), 1),
            "evaluated_standard_error": round(float(returns.std()) / len(returns) ** 0.5, 1),
            "fair": round(fair, 1),
            "low": round(low, 1),
            "high": round(high, 1),
            "finished": round(finished, 1),
            "memory": round(memory),
        }
        print(row, flush=True)
        found.append(row)
    return found


PACKAGES = ("steadyrl", "numpy", "gymnasium", "stable-baselines3", "torch")
PARTS: dict[str, Part] = {"lag": lag, "sb3": sb3}


def behind(rows: list[dict[str, Any]], column: str) -> float:
    """Return by what share of the evaluated mean a curve is too low, on average."""
    return float(np.mean([1 - row[column] / row["evaluated"] for row in rows]))


def table(results: dict[str, Any]) -> str:
    lines = ["# Fair statistics of a policy that learns", "", "Made by `python benchmarks/fair_learning.py`.", ""]
    if "lag" in results:
        lines += [
            "| policy | environments | memory | lag of the fair mean | lag of the last 100 finished | coverage |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['name']} | {r['environments']} | {r['memory']} | {r['lag']} "
            f"± {1.645 * r['lag_standard_error']:.0f} | {r['finished_lag']} | {r['coverage']:.0%} |"
            for r in results["lag"]["results"]
        ]
        lines += ["", "Memory and lags are in steps of each environment.", ""]
    if "sb3" in results:
        rows = results["sb3"]["results"]
        lines += [
            f"{rows[0]['name']}: the policy of a rollout in 400 complete episodes, and what was logged then. On "
            f"average `fair/return` is {behind(rows, 'fair'):.1%} behind, and `rollout/ep_rew_mean` "
            f"{behind(rows, 'finished'):.1%}.",
            "",
            "| steps | evaluated | fair/return | its 90% interval | rollout/ep_rew_mean | memory |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['steps']:,} | {r['evaluated']} ± {1.645 * r['evaluated_standard_error']:.1f} | {r['fair']} | "
            f"{r['low']} to {r['high']} | {r['finished']} | {r['memory']} |"
            for r in rows
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main("fair_learning", __doc__, PARTS, PACKAGES, table, rounds=10)
