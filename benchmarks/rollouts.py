"""How fast rollouts are collected, as ratios to named peers measured in the same run.

    python benchmarks/rollouts.py            all of it, some ten minutes on two cores
    python benchmarks/rollouts.py sweep ray  parts, by name

Each part alternates between steadyrl and its peer and takes the median of the ratios, so that a busy machine slows both
alike; but two workers cannot be twice as fast as one where other programs hold the cores.
Results go to benchmarks/results/rollouts.json, and as a table to rollouts.md, with command and versions.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from ratios import SEED, Part, compare, main, ratio_table
from steadyrl import Perturbation, collect_episodes, collect_samples
from steadyrl.policies import UniformPolicy, random_gaussian_policy


def rate(environment: str, policy: str, episodes: int, **options: Any) -> float:
    """Return steps/s of a whole call of collect_episodes, making environments and starting workers included."""
    begin = time.perf_counter()
    found = collect_episodes(environment, policy, episodes, seed=SEED, **options)
    return found.steps / (time.perf_counter() - begin)


def network(env: Any) -> Any:
    return random_gaussian_policy(env.observation_space.shape[0], env.action_space.shape, seed=SEED)


def minimal_loop(id: str, policy_name: str, episodes: int) -> float:
    """Return steps/s of the loop that everybody writes: one environment, one observation at a time."""
    package = "pybullet_envs_gymnasium:" if "Bullet" in id else ""
    env = gymnasium.make(package + id, disable_env_checker=True)
    policy = UniformPolicy(env.action_space) if policy_name == "uniform" else network(env)
    rng, steps = np.random.default_rng(SEED), 0
    begin = time.perf_counter()
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        total, done = 0.0, False
        while not done:
            action = policy.act(observation[None], rng)[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            steps += 1
            done = terminated or truncated
    return steps / (time.perf_counter() - begin)


def serial(rounds: int) -> list[dict[str, Any]]:
    cases = (("CartPole-v1", "uniform", 2048), ("Hopper-v5", "gaussian", 512), ("HopperBulletEnv-v0", "gaussian", 1024))
    return [
        compare(
            f"{id}, {policy} policy: serial / a minimal hand-written Gymnasium loop",
            lambda id=id, policy=policy, n=n: rate(id, policy, n, backend="serial"),  # type: ignore[misc]
            lambda id=id, policy=policy, n=n: minimal_loop(id, policy, n),  # type: ignore[misc]
            0.95,
            rounds,
        )
        for id, policy, n in cases
    ]


def processor_seconds(environment: str, policy: str, episodes: int, **options: Any) -> float:
    """Return processor seconds per step, those of workers included: what a busy machine does not change much."""

    def spent() -> float:
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)

    begin = spent()
    found = collect_episodes(environment, policy, episodes, seed=SEED, **options)
    return (spent() - begin) / found.steps


def processes(rounds: int) -> list[dict[str, Any]]:
    id, n = "HopperBulletEnv-v0", 12288
    costs = [
        (
            processor_seconds(id, "gaussian", n, backend="serial"),
            processor_seconds(id, "gaussian", n, backend="processes", workers=2),
        )
        for _ in range(1)
    ]
    ratio = 2 * statistics.median(alone / shared for alone, shared in costs)
    name = f"{id}: processes with 2 workers / serial, by processor time (what two free cores would give)"
    print(f"{name}: {ratio:.3f}", flush=True)
    by_processor = {
        "name": name,
        "processor_ratio": round(ratio, 3),
        "microseconds_per_step": [round(1e6 * statistics.median(cost), 1) for cost in zip(*costs, strict=True)],
    }
    return [
        by_processor,
        compare(
            f"{id}: processes with 2 workers / serial",
            lambda: rate(id, "gaussian", n, backend="processes", workers=2),
            lambda: rate(id, "gaussian", n // 3, backend="serial"),
            1.8,
            max(1, rounds // 2),
        ),
    ]


def bare_envpool(id: str, copies: int = 32) -> float:
    import envpool

    pool = envpool.make(id, env_type="gymnasium", num_envs=copies, num_threads=2, seed=SEED)
    pool.reset()
    actions = np.full((copies, *pool.action_space.shape), 0.1)
    found = copies * calls_per_second(lambda: pool.step(actions))
    pool.close()
    return found


def calls_per_second(call: Callable[[], Any], seconds: float = 4.0) -> float:
    calls, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        call()
        calls += 1
    return calls / (time.perf_counter() - begin)


def acting(id: str, envs: Any, observations: Any) -> Callable[[], None]:
    """Return a function that takes one step in all copies, with the policy that steadyrl is measured with."""
    policy, rng = network(gymnasium.make(id)), np.random.default_rng(SEED)

    def step() -> None:
        nonlocal observations
        observations, *_ = envs.step(policy.act(observations, rng).astype(np.float32))

    return step


def async_vector_env(id: str, copies: int = 16) -> float:
    envs = gymnasium.make_vec(id, num_envs=copies, vectorization_mode="async")
    found = copies * calls_per_second(acting(id, envs, envs.reset(seed=SEED)[0]))
    envs.close()
    return found


def subproc_vec_env(id: str, copies: int = 16) -> float:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = make_vec_env(id, copies, seed=SEED, vec_env_cls=SubprocVecEnv)
    found = copies * calls_per_second(acting(id, envs, envs.reset()))
    envs.close()
    return found


def envpool(rounds: int) -> list[dict[str, Any]]:
    found = []
    peers = (
        ("bare EnvPool with constant actions", bare_envpool, 0.8),
        ("AsyncVectorEnv, 16 copies, same policy", async_vector_env, 4.0),
        ("Stable-Baselines3's SubprocVecEnv, 16 copies, same policy", subproc_vec_env, 4.0),
    )
    for id, n in (("Hopper-v5", 2048), ("HalfCheetah-v5", 64)):
        for name, peer, target in peers:
            found.append(
                compare(
                    f"{id}, 64x64 Gaussian policy: envpool / {name}",
                    lambda id=id, n=n: rate(id, "gaussian", n, backend="envpool", workers=2),  # type: ignore[misc]
                    lambda id=id, peer=peer: peer(id),  # type: ignore[misc]
                    target,
                    rounds,
                )
            )
    return found


def ray(rounds: int) -> list[dict[str, Any]]:
    id, n = "HopperBulletEnv-v0", 12288
    return [
        compare(
            f"{id}: ray on one machine / processes, 2 workers each, runs of 30 s and more",
            lambda: rate(id, "gaussian", n, backend="ray", workers=2),
            lambda: rate(id, "gaussian", n, backend="processes", workers=2),
            0.85,
            1,
        )
    ]


def memory(rounds: int) -> list[dict[str, Any]]:
    """Peak memory of a process that collects ten thousand, and a million, episodes."""
    code = (
        "import resource, sys; from steadyrl import collect_episodes\n"
        "e = collect_episodes('CartPole-v1', 'uniform', int(sys.argv[1]), backend='envpool')\n"
        "print(len(e), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    found = []
    for episodes in (10_000, 1_000_000):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, str(episodes)], capture_output=True, text=True, check=True
        )
        peak = round(float(done.stdout.split()[-1]), 1)
        found.append({"name": f"CartPole-v1, {episodes:,} episodes: peak memory", "mebibytes": peak})
        print(f"{found[-1]['name']}: {peak} MiB", flush=True)
    return found


def sweep(rounds: int) -> list[dict[str, Any]]:
    n, rollouts, slice_of = 2000, 30_000_000, 40
    perturbation, times = Perturbation.for_average_episode_length(n), [3 * n - 1, 3 * n]

    def seconds(count: int, backend: str) -> float:
        begin = time.perf_counter()
        collect_samples(
            "steadyrl/StateSweep-v0",
            "uniform",
            count,
            times,
            perturbation=perturbation,
            make_arguments={"n": n},
            backend=backend,
        )
        return time.perf_counter() - begin

    jumped = seconds(rollouts, "auto")
    stepped = seconds(slice_of, "serial") / slice_of * rollouts
    found = {
        "name": f"state sweep, n = {n}, t = 3n, {rollouts:,} rollouts: jumping",
        "seconds": round(jumped, 1),
        "stepping_hours": round(stepped / 3600, 1),
        "ratio": round(stepped / jumped),
        "note": f"stepping measured on {slice_of} rollouts",
    }
    print(f"{found['name']}: {found['seconds']} s, {found['ratio']:,} times as fast as stepping", flush=True)
    return [found]


PACKAGES = ("steadyrl", "numpy", "gymnasium", "envpool", "mujoco", "pybullet", "ray", "stable-baselines3")
PARTS: dict[str, Part] = {
    "serial": serial,
    "processes": processes,
    "envpool": envpool,
    "ray": ray,
    "memory": memory,
    "sweep": sweep,
}


def table(results: dict[str, Any]) -> str:
    lines = ["# Rollouts: measured rates", "", f"{os.cpu_count()} cores; made by `python benchmarks/rollouts.py`.", ""]
    lines += ratio_table(results)
    lines.append("")
    for part in results.values():
        for r in part["results"]:
            if "processor_ratio" in r:
                cost = " and ".join(f"{value:,}" for value in r["microseconds_per_step"])
                lines.append(f"- {r['name']}: {r['processor_ratio']} ({cost} µs a step)")
            elif "mebibytes" in r:
                lines.append(f"- {r['name']} {r['mebibytes']} MiB")
            elif "seconds" in r:
                lines.append(
                    f"- {r['name']} takes {r['seconds']} s, stepping would take {r['stepping_hours']:,} h: "
                    f"{r['ratio']:,} times ({r['note']})"
                )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main("rollouts", __doc__, PARTS, PACKAGES, table, rounds=5)
