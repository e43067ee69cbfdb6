"""How much of the age shows in an observation on each task, under policies that have not learnt yet.

    python benchmarks/learning/prediction.py     writes prediction.json beside this script (a quarter of an hour)

For each task and seeds 0 to 2: the first episode of each of 48 environments (three, where lengths vary) under
Stable-Baselines3's initial stochastic policy, and `seen_ages` of their observations.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from one_run import environments
from runs import PPO_SETTINGS, TASKS, Run
from stable_baselines3 import PPO

from steadyrl.diagnosis.seen_ages import seen_ages

OUT = Path(__file__).parent / "prediction.json"
ENVIRONMENTS, SEEDS = 48, range(3)


def episodes_of(task: str, seed: int) -> tuple[Any, Any, Any]:
    """Return observations, ages and numbers of complete episodes; every episode that was started counts."""
    run = Run("prediction", task, "as it is", 2000 + seed)
    envs = environments(run, ENVIRONMENTS, run.seed, run.arm)
    model = PPO("MlpPolicy", envs, n_steps=8, seed=run.seed, device="cpu", **PPO_SETTINGS)
    observations = envs.reset()
    quota = 1 if TASKS[task].horizon == 1000 else 3
    count, age = np.zeros(ENVIRONMENTS, dtype=np.int64), np.ones(ENVIRONMENTS, dtype=np.int64)
    found: list[tuple[Any, Any, Any]] = []
    while (count < quota).any():
        going = count < quota
        number = np.arange(ENVIRONMENTS) * quota + count
        found.append((observations[going].copy(), age[going].copy(), number[going].copy()))
        actions, _ = model.predict(observations)
        observations, _, dones, _ = envs.step(actions)
        count += dones
        age = np.where(dones, 1, age + 1)
    envs.close()
    rows, ages, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
    return rows, ages, numbers


def main() -> None:
    """Measure what is missing."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    for task in TASKS:
        for seed in SEEDS:
            if str(seed) in results.get(task, {}):
                continue
            found = seen_ages(*episodes_of(task, seed), seed=seed)
            assert found is not None
            results.setdefault(task, {})[str(seed)] = {
                "distance": [round(x, 4) for x in (found.distance.value, found.distance.low, found.distance.high)],
                "bound": found.bound,
                "accuracy": round(found.accuracy, 4),
                "observations": found.observations,
            }
            print(task, seed, results[task][str(seed)], flush=True)
            temporary = OUT.with_suffix(".tmp")
            temporary.write_text(json.dumps(results, indent=1) + "\n")
            os.replace(temporary, OUT)


if __name__ == "__main__":
    main()
