"""Evaluating a policy with a vector environment: steadyrl's budgets, Stable-Baselines3, and "the first n finished".

    python benchmarks/evaluation.py                          all parts; about ten minutes on two cores
    python benchmarks/evaluation.py two-lengths --rounds 50  parts, by name: two-lengths, hopper, doorkey, until

Three ways to evaluate the same policy with 16 environments that start together:

- `steadyrl.evaluate(steps=...)`: every step counts, running episodes included;
- `stable_baselines3.common.evaluation.evaluate_policy`, which takes as many episodes of each environment;
- the first n episodes that finish, as in many scripts.

Each is repeated with other seeds. Reported are the bias against the truth, how often a 90% interval covers it, and
steps and seconds, as they are and for an interval of the same width (steps times the squared ratio of widths). The
truth is exact for two lengths and for DoorKey (doorkey.py). `hopper` takes a half-trained model of Stable-Baselines3
from $STEADYRL_HOPPER_MODEL, or trains one for 150,000 steps; its truth is the mean of 10,000 whole episodes in EnvPool,
whose standard error is part of the bias's. `doorkey` needs minigrid (the `bench` extra); its actions look at nothing
(their probabilities are in doorkey.py), so observations are not drawn, which would take nine tenths of the time.
`until` repeats evaluations that stop when their interval is narrow enough, as often as `--rounds` says.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper

from doorkey import ACTIONS, exactly
from ratios import SEED, Part, main
from steadyrl import collect_episodes, evaluate
from steadyrl.common.intervals import Interval, mean_interval

LEVEL = 0.9
NUM_ENVS = 16
MODEL = Path(os.environ.get("STEADYRL_HOPPER_MODEL", Path(gettempdir()) / "steadyrl-hopper-half.zip"))


class TwoLengths(gymnasium.Env[Any, Any]):
    """Half of the episodes last 50 steps, half 400; a reward of 1 in each."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Draw the length of the episode."""
        super().reset(seed=seed)
        self.left = 50 if self.np_random.random() < 0.5 else 400
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count down."""
        self.left -= 1
        return np.zeros(1, dtype=np.float32), 1.0, self.left == 0, False, {}


class Counted(VecEnvWrapper):
    """Counts steps of all environments."""

    taken = 0

    def reset(self) -> Any:
        """Reset all environments."""
        return self.venv.reset()

    def step_wait(self) -> Any:
        """Finish a step."""
        self.taken += self.num_envs
        return self.venv.step_wait()


class Random:
    """Actions with given probabilities: a model, as evaluate_policy wants one, and a policy of steadyrl."""

    def __init__(self, probabilities: Sequence[float], seed: int = 0) -> None:
        self.probabilities, self.rng = probabilities, np.random.default_rng(seed)

    def act(self, observations: Any, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return actions for steadyrl."""
        return rng.choice(len(self.probabilities), p=self.probabilities, size=len(observations))

    def predict(self, observations: Any, state: Any = None, **_: Any) -> tuple[NDArray[np.int64], Any]:
        """Return actions for Stable-Baselines3."""
        return self.act(observations, self.rng), state


def vector(make: Callable[[], Any], seed: int) -> Counted:
    envs = DummyVecEnv([lambda: Monitor(make())] * NUM_ENVS)
    envs.seed(seed)
    return Counted(envs)


def first_finished(model: Any, envs: VecEnv, episodes: int) -> list[float]:
    """Return the returns of the first episodes that finish."""
    observations, found = envs.reset(), []
    while len(found) < episodes:
        actions, _ = model.predict(observations, deterministic=False)
        observations, _, _, infos = envs.step(actions)
        found += [info["episode"]["r"] for info in infos if "episode" in info]
    return found[:episodes]


def peers(make: Callable[[], Any], model: Callable[[int], Any], episodes: int, seed: int) -> dict[str, Any]:
    """Return interval, steps and seconds of both peers."""
    found = {}
    for name in ("Stable-Baselines3 evaluate_policy", "first n finished"):
        envs, chosen = vector(make, seed), model(seed)
        begin = time.perf_counter()
        if name == "first n finished":
            returns = first_finished(chosen, envs, episodes)
        else:
            returns, _ = evaluate_policy(
                chosen, envs, n_eval_episodes=episodes, deterministic=False, return_episode_rewards=True
            )
        found[name] = mean_interval(returns, LEVEL), envs.taken, time.perf_counter() - begin
        envs.close()
    return found


def compared(
    name: str,
    make: Callable[[], Any],
    policy: Any,
    model: Callable[[int], Any],
    truth: float,
    *,
    steps: int,
    episodes: int,
    repeats: int,
    truth_error: float = 0.0,
) -> list[dict[str, Any]]:
    """Repeat the three evaluations, and return a row for each; `truth_error` is the truth's standard error."""
    runs: dict[str, list[tuple[Interval, int, float]]] = {}
    for number in range(repeats):
        seed = SEED + 1000 * (number + 1)
        begin = time.perf_counter()
        ours = evaluate(make, policy, steps=steps, num_envs=NUM_ENVS, seed=seed, level=LEVEL, backend="serial")
        assert ours.report is not None
        every = {"steadyrl evaluate --steps": (ours.mean_return, ours.report.steps, time.perf_counter() - begin)}
        for way, run in (every | peers(make, model, episodes, seed)).items():
            runs.setdefault(way, []).append(run)
        print(number + 1, {way: found[-1][0] for way, found in runs.items()}, flush=True)
    rows = [row(name, way, found, truth, truth_error) for way, found in runs.items()]
    for one in rows:
        ratio = (one["half_width"] / rows[0]["half_width"]) ** 2
        one["steps_for_same_width"] = round(one["steps"] * ratio)
        one["seconds_for_same_width"] = round(one["seconds"] * ratio, 3)
        print(one, flush=True)
    return rows


def row(
    name: str, way: str, runs: list[tuple[Interval, int, float]], truth: float, truth_error: float = 0.0
) -> dict[str, Any]:
    values = np.array([interval.value for interval, _, _ in runs])
    error = math.hypot(float(values.std(ddof=1)) / math.sqrt(len(runs)), truth_error)
    return {
        "name": name,
        "way": way,
        "truth": round(truth, 4),
        "bias": round(float(values.mean()) / truth - 1, 4),
        "bias_standard_error": round(error / abs(truth), 4),
        "coverage": round(float(np.mean([i.low <= truth <= i.high for i, _, _ in runs])), 3),
        "half_width": round(float(np.median([(i.high - i.low) / 2 for i, _, _ in runs])), 4),
        "steps": round(float(np.mean([steps for _, steps, _ in runs]))),
        "seconds": round(float(np.median([seconds for _, _, seconds in runs])), 3),
        "repeats": len(runs),
    }


def two_lengths(repeats: int) -> list[dict[str, Any]]:
    uniform = partial(Random, (0.5, 0.5))
    return compared(
        "lengths 50 or 400", TwoLengths, "uniform", uniform, 225.0, steps=16 * 800, episodes=48, repeats=repeats
    )


def hopper(repeats: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    if not MODEL.exists():
        envs = make_vec_env("Hopper-v5", n_envs=8, seed=SEED)
        trained = PPO("MlpPolicy", envs, n_steps=256, batch_size=256, n_epochs=5, device="cpu", seed=SEED)
        trained.learn(150_000)
        trained.save(MODEL)
    model = PPO.load(MODEL, device="cpu")
    make = partial(gymnasium.make, "Hopper-v5")
    many = collect_episodes("Hopper-v5", model, 10_000, seed=SEED + 1, backend="envpool", observation_sums=False)
    print("truth", mean_interval(many.returns), "mean length", many.lengths.mean(), flush=True)

    def seeded(seed: int) -> Any:
        torch.manual_seed(seed)
        return model

    truth, error = float(many.returns.mean()), float(many.returns.std()) / math.sqrt(len(many.returns))
    name = "Hopper-v5, PPO after 150,000 steps"
    return compared(name, make, model, seeded, truth, steps=16 * 320, episodes=32, repeats=repeats, truth_error=error)


def doorkey(repeats: int) -> list[dict[str, Any]]:
    from minigrid.wrappers import ImgObsWrapper

    def make() -> Any:
        env = gymnasium.make("MiniGrid-DoorKey-5x5-v0")
        seen = env.reset(seed=SEED)[0]
        env.unwrapped.gen_obs = lambda: seen  # type: ignore[attr-defined]
        return ImgObsWrapper(env)

    truth, name = exactly(ACTIONS)["mean_return"], "MiniGrid-DoorKey-5x5-v0, random actions"
    random = partial(Random, ACTIONS)
    return compared(name, make, random(), random, truth, steps=16 * 400, episodes=24, repeats=repeats)


def until(repeats: int) -> list[dict[str, Any]]:
    """Whether intervals still cover the truth if an evaluation stops when they are narrow enough."""
    found = []
    for width in (100.0, 60.0):
        runs = []
        for number in range(repeats):
            seed, begin = SEED + 1000 * (number + 1), time.perf_counter()
            one = evaluate(
                TwoLengths, "uniform", until=width, num_envs=NUM_ENVS, seed=seed, level=LEVEL, backend="serial"
            )
            assert one.report is not None
            runs.append((one.mean_return, one.report.steps, time.perf_counter() - begin))
        found.append(row("lengths 50 or 400", f"steadyrl evaluate --until {width:g}", runs, 225.0))
        print(found[-1], flush=True)
    return found


PACKAGES = ("steadyrl", "numpy", "gymnasium", "stable-baselines3", "torch", "mujoco", "minigrid")
PARTS: dict[str, Part] = {"two-lengths": two_lengths, "hopper": hopper, "doorkey": doorkey, "until": until}


def table(results: dict[str, Any]) -> str:
    lines = [
        f"# Evaluation with {NUM_ENVS} environments: bias, coverage of {LEVEL:.0%} intervals, cost",
        "",
        "Made by `python benchmarks/evaluation.py`. The last two columns are for intervals as narrow as steadyrl's.",
        "",
        "| what | way | bias | coverage | half width | steps | seconds | steps, same width | seconds, same width |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for part in results.values():
        lines += [
            f"| {r['name']} | {r['way']} | {r['bias']:+.1%} ± {1.645 * r['bias_standard_error']:.1%} | "
            f"{r['coverage']:.0%} of {r['repeats']} | {r['half_width']:.4g} | {r['steps']:,} | {r['seconds']} | "
            f"{r.get('steps_for_same_width', '')} | {r.get('seconds_for_same_width', '')} |"
            for r in part["results"]
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main("evaluation", __doc__, PARTS, PACKAGES, table, rounds=100)
