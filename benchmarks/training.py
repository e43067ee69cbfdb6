"""Training with the steady-state policy gradient against Stable-Baselines3: learning curves, speed, gradient quality.

    pip install -e '.[bench]'                              once: rliable, and a pandas that it can import
    python benchmarks/training.py                          everything that is not in results/training.json yet
    python benchmarks/training.py --environments CartPole-v1 --algorithms sspg a2c --seeds 5
    python benchmarks/training.py --only curves            rows only: neither page nor picture
    python benchmarks/training.py --only speed             steps per second, on a quiet machine
    python benchmarks/training.py --only gradients
    python benchmarks/training.py --only report            page and picture from what is in the file so far
    python benchmarks/training.py --only check             do the rows of SSPG come out of the code as it is now?

Every row (an environment, an algorithm, a seed) is written as soon as it is finished, so an interrupted benchmark goes
on where it was. All algorithms are evaluated alike: complete episodes of the policy as it is, actions drawn, at fixed
numbers of steps. SB3's steps count actions; ours also count resets, which are steps of their own in NEXT_STEP mode.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from curves import figure, iqm, solved_at
from steadyrl import Settings, evaluate, train
from steadyrl.common.storage import write_atomically

RESULTS = Path(__file__).parent / "results"
FILE, PAGE, PICTURE = RESULTS / "training.json", RESULTS / "training.md", RESULTS / "training.png"

FIRST_SEED = {"sspg": 10, "a2c": 5, "ppo": 5}
"""Settings and code of SSPG changed while somebody looked at seeds 0 to 9 and 20 to 22, so that others are reported.
Nothing was chosen for A2C and PPO. On Pendulum-v1 seeds 0 to 4, and 20 once, were looked at; 25 to 29 are reported."""
ADAM = {"optimiser": "adam", "critic_epochs": 4}
FEW_STEPS = {**ADAM, "n_steps": 8, "normalise_advantages": True}
CONTROL = {"every": 5_000, "episodes": 100}
MUJOCO = {"every": 100_000, "episodes": 20, "goal": None, "steps": 1_000_000}
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        **CONTROL,
        "goal": 475.0,
        "steps": {"sspg": 500_000, "a2c": 500_000, "ppo": 100_000},
        "settings": {**ADAM, "num_envs": 8},
    },
    "Acrobot-v1": {
        **CONTROL,
        "goal": -100.0,
        "steps": {"sspg": 100_000, "a2c": 500_000, "ppo": 500_000},
        "settings": {
            **FEW_STEPS,
            "num_envs": 8,
            "learning_rate": 3e-3,
            "critic_learning_rate": 1e-3,
            "truncation": "bootstrap",
        },
    },
    "Pendulum-v1": {
        **CONTROL,
        "goal": -200.0,
        "first_seed": 25,
        "also_deterministic": True,
        "steps": {"sspg": 100_000, "a2c": 1_000_000, "ppo": 100_000},
        "settings": {},
    },
    "Hopper-v5": {**MUJOCO, "settings": {**ADAM, "num_envs": 16, "learning_rate": 2e-3}},
    "HalfCheetah-v5": {**MUJOCO, "settings": {**FEW_STEPS, "num_envs": 16}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--environments", nargs="*", default=list(ENVIRONMENTS), choices=list(ENVIRONMENTS))
    parser.add_argument("--algorithms", nargs="*", default=["sspg", "a2c", "ppo"], choices=["sspg", "a2c", "ppo"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=None)
    parser.add_argument("--only", choices=["curves", "speed", "gradients", "report", "check"])
    arguments = parser.parse_args()
    if arguments.only == "check":
        check(load()["rows"])
        return
    if arguments.only in (None, "curves"):
        for algorithm in arguments.algorithms:
            for name in arguments.environments:
                first = ENVIRONMENTS[name].get("first_seed", FIRST_SEED[algorithm])
                first = first if arguments.first_seed is None else arguments.first_seed
                for seed in range(first, first + arguments.seeds):
                    one_row(name, algorithm, seed)
    if arguments.only == "speed" or (arguments.only is None and "speed" not in load()):
        found = speed()
        save(load() | {"speed": found})  # rows may have been written meanwhile
    if arguments.only == "gradients" or (arguments.only is None and "gradients" not in load()):
        from gradient_quality import gradient_quality

        found = gradient_quality()
        save(load() | {"gradients": found})
    if arguments.only != "curves":
        report(load())


def one_row(name: str, algorithm: str, seed: int) -> None:
    """Train once and evaluate on the way, unless that has been done."""
    key = f"{name}/{algorithm}/{seed}"
    task = ENVIRONMENTS[name]
    steps = task["steps"][algorithm] if isinstance(task["steps"], dict) else task["steps"]
    made_with = (
        asdict(Settings(steps=steps, seed=seed, **task["settings"])) if algorithm == "sspg" else {"steps": steps}
    )
    before = load().get("rows", {}).get(key)
    if before is not None and before["settings"].items() <= made_with.items():  # later settings have defaults
        return
    row: dict[str, Any] = {"environment": name, "algorithm": algorithm, "seed": seed, "settings": made_with}
    row |= {"steps": [], "returns": [], "lengths": []}

    def look(at: int, policy: Any) -> None:
        if skipped(row, task, at, steps):
            return
        worth, length = evaluated(name, policy, seed)
        row["steps"].append(at)
        row["returns"].append(worth)
        row["lengths"].append(length)
        if task.get("also_deterministic") and at >= steps:
            row["last_deterministic"] = evaluated(name, without_noise(policy), seed)[0]

    seconds = (ours if algorithm == "sspg" else theirs)(name, algorithm, seed, steps, task, look)
    row |= {"seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 1), "versions": versions()}
    data = load()
    data.setdefault("rows", {})[key] = row
    save(data)
    goal = task["goal"]
    words = "" if goal is None else f", {goal:g} at {solved_at(row, goal):,.0f}"
    print(f"{key}: last {row['returns'][-1]:.1f}{words}, {steps / seconds:,.0f} steps/s", flush=True)


def evaluated(name: str, policy: Any, seed: int) -> tuple[float, float]:
    """Return mean return and E[T]."""
    found = evaluate(name, policy, ENVIRONMENTS[name]["episodes"], seed=1000 + seed, workers=1)
    return round(found.mean_return.value, 3), round(found.average_episode_length.value, 3)


def without_noise(policy: Any) -> Any:
    """Return the policy that takes the mean of its Gaussian."""
    if hasattr(policy, "deviations"):  # SB3's state-dependent noise
        return replace(policy, deviations=0 * policy.deviations)
    return replace(policy, sampled=False)


def check(rows: dict[str, Any]) -> None:
    """Train again up to the first evaluation of each row of SSPG, and compare."""
    for key, row in rows.items():
        if row["algorithm"] != "sspg":
            continue
        name, seed = row["environment"], row["seed"]

        first = tuple(row[column][0] for column in ("steps", "returns", "lengths"))

        def compare(at: int, policy: Any, name: str = name, seed: int = seed, first: Any = first) -> None:
            raise SeenError((at, *evaluated(name, policy, seed)) == first)

        try:
            ours(name, "sspg", seed, row["settings"]["steps"], ENVIRONMENTS[name], compare)
        except SeenError as seen:
            print(f"{key}: {'as recorded' if seen.args[0] else 'ANOTHER: make it again'}", flush=True)


class SeenError(Exception):
    """The first evaluation is done."""


def skipped(row: dict[str, Any], task: dict[str, Any], at: int, steps: int) -> bool:
    """Once solved, evaluations are five times as far apart; the last one is always made."""
    solved = task["goal"] is not None and max(row["returns"], default=-np.inf) >= task["goal"]
    return bool(solved and at < steps and at - row["steps"][-1] < 5 * task["every"])


def ours(name: str, algorithm: str, seed: int, steps: int, task: dict[str, Any], look: Any) -> float:
    spent = [0.0]
    following = [task["every"]]

    def after_update(progress: Any) -> None:
        if progress.steps >= min(following[0], steps):
            begun = time.perf_counter()
            following[0] += task["every"]
            look(progress.steps, progress.policy.numpy())
            spent[0] += time.perf_counter() - begun

    begun = time.perf_counter()
    train(name, Settings(steps=steps, seed=seed, workers=1, **task["settings"]), after_update=after_update)
    return time.perf_counter() - begun - spent[0]


def theirs(name: str, algorithm: str, seed: int, steps: int, task: dict[str, Any], look: Any) -> float:
    import torch

    import sb3_runs

    torch.set_num_threads(1)
    model = sb3_runs.make_model(algorithm, name, seed)
    seconds = sb3_runs.train(model, steps, task["every"], look)
    model.get_env().close()
    return seconds


def speed(repeats: int = 3) -> dict[str, Any]:
    """Steps per second of training on Hopper-v5 with 16 environments, ours and A2C's with a process for each."""
    import sb3_runs

    found: dict[str, Any] = {"sspg": [], "a2c, SubprocVecEnv": [], "load before": os.getloadavg()[0]}
    for seed in range(repeats):
        settings = Settings(steps=160_000, num_envs=16, seed=seed, optimiser="adam")
        times: list[float] = []
        train("Hopper-v5", settings, after_update=lambda progress, times=times: times.append(time.perf_counter()))
        per_update = 16 * 32
        found["sspg"].append((len(times) - 1) * per_update / (times[-1] - times[0]))
        model = sb3_runs.make_model("a2c", "Hopper-v5", seed, processes=True)
        model.learn(2_000)
        begun = time.perf_counter()
        model.learn(40_000, reset_num_timesteps=False)
        found["a2c, SubprocVecEnv"].append(40_000 / (time.perf_counter() - begun))
        model.get_env().close()
    return found | {"cores": os.cpu_count(), "versions": versions()}


def load() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def save(data: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    write_atomically(FILE, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode())


def versions() -> dict[str, str]:
    names = ("steadyrl", "torch", "gymnasium", "envpool", "stable_baselines3", "mujoco", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def report(data: dict[str, Any]) -> None:
    """Write the page and the picture."""
    rows = data.get("rows", {})
    lines = ["# Training with the steady-state policy gradient: benchmark", ""]
    lines += [
        "Made by `python benchmarks/training.py`; rows are in training.json, each with the versions and the machine's",
        "load, SSPG's with their settings, too (SB3's are in sb3_runs.py). Returns are means over complete episodes,",
        "actions drawn.",
        "",
    ]
    lines += ["![learning curves](training.png)", ""] if rows else []
    lines += control_lines(rows) + mujoco_lines(rows) + speed_lines(data) + gradient_lines(data)
    write_atomically(PAGE, ("\n".join(lines).rstrip() + "\n").encode())
    shown = {
        name: task for name, task in ENVIRONMENTS.items() if any(row["environment"] == name for row in rows.values())
    }
    if shown:
        figure(rows, shown, PICTURE)


def groups(rows: dict[str, Any], *names: str) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """The rows of each environment and algorithm of which there are some."""
    for name, algorithm in itertools.product(names, ("sspg", "a2c", "ppo")):
        mine = [row for row in rows.values() if (row["environment"], row["algorithm"]) == (name, algorithm)]
        if mine:
            yield name, algorithm, mine


def control_lines(rows: dict[str, Any]) -> list[str]:
    lines = [
        "## Steps to a solution",
        "",
        "The first evaluation (100 episodes, every 5,000 steps) at or above the goal. Returns are interquartile means",
        "over seeds with 95% intervals, at the end of the budget of steps.",
        "",
    ]
    lines += [
        "| environment | goal | algorithm | seeds | solved | median steps | steps of each seed | last return | budget |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for name, algorithm, mine in groups(rows, "CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
        goal = ENVIRONMENTS[name]["goal"]
        at = [solved_at(row, goal) for row in mine]
        last = [row["returns"][-1] for row in mine]
        each = ", ".join(f"{x:,.0f}" for x in sorted(at))
        solved = f"{sum(np.isfinite(at))} of {len(at)}"
        cells = [name, f"{goal:g}", algorithm, numbers(mine), solved, f"{np.median(at):,.0f}", each, averaged(last)]
        cells += [f"{mine[0]['settings']['steps']:,}"]
        lines += [f"| {' | '.join(cells)} |"]
    lines += [""]
    for name, algorithm, mine in groups(rows, "CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
        if all("last_deterministic" in row for row in mine):
            lines += [
                f"With the mean action instead of drawn ones, the last return of {algorithm} on {name} is "
                f"{averaged([row['last_deterministic'] for row in mine])}.",
                "",
            ]
    return lines


def mujoco_lines(rows: dict[str, Any]) -> list[str]:
    lines = [
        "## One million steps, 16 environments",
        "",
        "Interquartile mean over seeds of the last evaluation (20 episodes), 95% interval; E[T] is a plain mean.",
        "",
    ]
    lines += ["| environment | algorithm | seeds | return | each seed | E[T] |", "|---|---|---|---|---|---|"]
    for name, algorithm, mine in groups(rows, "Hopper-v5", "HalfCheetah-v5"):
        last = [row["returns"][-1] for row in mine]
        length = np.mean([row["lengths"][-1] for row in mine])
        each = ", ".join(f"{x:,.0f}" for x in sorted(last))
        lines += [f"| {name} | {algorithm} | {numbers(mine)} | {averaged(last)} | {each} | {length:.0f} |"]
    return [*lines, ""]


def speed_lines(data: dict[str, Any]) -> list[str]:
    if "speed" not in data:
        return []
    found = data["speed"]
    mine, other = (float(np.median(found[key])) for key in ("sspg", "a2c, SubprocVecEnv"))
    lines = [
        "## Speed of training",
        "",
        "Hopper-v5, 16 environments, steps per second, median of three runs (and their range);",
    ]
    lines += [f"the machine's load was {found['load before']:.1f} on {found['cores']} cores when they began."]
    lines += ["SSPG's steps include resets, some 5% of them at first and fewer as episodes grow longer.", ""]
    lines += ["| | steps/s |", "|---|---|"]
    for name, key, middle in (("SSPG", "sspg", mine), ("SB3's A2C, SubprocVecEnv", "a2c, SubprocVecEnv", other)):
        lines += [f"| {name} | {middle:,.0f} ({min(found[key]):,.0f} to {max(found[key]):,.0f}) |"]
    return [*lines, f"| ratio (to reach: 3) | {mine / other:.1f} |", ""]


def gradient_lines(data: dict[str, Any]) -> list[str]:
    if "gradients" not in data:
        return []
    from gradient_quality import lines

    return lines(data["gradients"])


def numbers(rows: list[dict[str, Any]]) -> str:
    """Which seeds."""
    seeds = sorted(row["seed"] for row in rows)
    return f"{seeds[0]} to {seeds[-1]}" if seeds == list(range(seeds[0], seeds[-1] + 1)) else str(seeds)


def averaged(returns: list[float]) -> str:
    """The interquartile mean over seeds, with its interval."""
    if len(returns) == 1:
        return "one seed only"
    mean, low, high = iqm(np.array(returns)[:, None])[:, 0]
    return f"{mean:,.1f} [{low:,.1f}, {high:,.1f}]"


if __name__ == "__main__":
    main()
