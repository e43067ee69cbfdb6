"""What the cures cost: steps/s with each wrapper over steps/s without, in turns within one run.

    python benchmarks/wrappers.py                 all of it, some five minutes on two cores
    python benchmarks/wrappers.py cartpole sb3    parts, by name

Both run side by side in one process and take turns of a tenth of a second; actions are drawn beforehand. Staggering
is over before the clock starts, for it is what a wrapper costs for ever that matters.
Results go to benchmarks/results/wrappers.json, and as a table to wrappers.md, with command and versions.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from ratios import SEED, Part, compare, main, ratio_table
from steadyrl import EnvPoolVectorEnv, EpisodeLengths, PhaseMonitor, StaggeredVectorEnv, design_delays

TURN = 0.1  # seconds; short, so that whatever else the machine does falls on both
WARM_UP = 400  # steps
N_STEPS = 16
TARGET = 0.97


def stepping(envs: Any, action_space: Any, copies: int) -> Callable[[], float]:
    """Return a function that steps for one turn and returns steps/s."""
    action_space.seed(SEED)
    actions = [np.array([action_space.sample() for _ in range(copies)]) for _ in range(64)]
    step, count = envs.step, 0
    envs.reset()
    for t in range(WARM_UP):
        step(actions[t % 64])

    def rate() -> float:
        nonlocal count
        steps, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < TURN:
            for _ in range(8):
                step(actions[count % 64])
                count += 1
            steps += 8
        return steps * copies / (time.perf_counter() - begin)

    return rate


def wrappers_for(lengths: list[int]) -> dict[str, Callable[[Any], Any]]:
    delays = design_delays(EpisodeLengths.from_gymnasium(lengths))
    return {
        "PhaseMonitor": partial(PhaseMonitor, n_steps=N_STEPS, warn=False),
        "StaggeredVectorEnv with designed delays": partial(StaggeredVectorEnv, delays=delays, n_steps=N_STEPS),
        "StaggeredVectorEnv with 'auto'": partial(StaggeredVectorEnv, delays="auto", n_steps=N_STEPS),
    }


def shares_inside(make: Callable[[], Any], name: str, lengths: list[int], rounds: int) -> list[dict[str, Any]]:
    """Measure what share of a wrapper's step the copies inside take.

    Two sets of copies differ by some percent for no reason (where they lie in memory), so both clocks run on one.
    """
    found = []
    for wrapper, wrap in wrappers_for(lengths).items():
        envs, inside = make(), [0.0]
        plain = envs.step

        def timed(actions: Any, plain: Any = plain, inside: list[float] = inside) -> Any:
            begin = time.perf_counter()
            result = plain(actions)
            inside[0] += time.perf_counter() - begin
            return result

        envs.step = timed
        rate = stepping(wrap(envs), envs.single_action_space, envs.num_envs)
        ratios, rates, peers = [], [], []
        for _ in range(rounds):
            inside[0], begin = 0.0, time.perf_counter()
            rates.append(rate())
            total = time.perf_counter() - begin
            ratios.append(inside[0] / total)
            peers.append(rates[-1] / ratios[-1])
        row = {"name": f"{name}: {wrapper} / the same copies without", "ratio": round(statistics.median(ratios), 3)}
        row |= {"target": TARGET, "lowest": round(min(ratios), 3), "highest": round(max(ratios), 3)}
        row |= {"steps_per_second": round(statistics.median(rates)), "rounds": rounds}
        row |= {"peer_steps_per_second": round(statistics.median(peers))}
        print(f"{row['name']}: {row['ratio']} (at least {TARGET}; {row['lowest']} to {row['highest']})", flush=True)
        found.append(row)
        envs.close()
    return found


def vector_rates(make: Callable[[], Any], name: str, lengths: list[int], rounds: int) -> list[dict[str, Any]]:
    """Measure each wrapper around the same vector environment."""
    bare = make()
    space, copies = bare.single_action_space, bare.num_envs
    peer = stepping(bare, space, copies)
    found = []
    for wrapper, wrap in wrappers_for(lengths).items():
        envs = wrap(make())
        found.append(compare(f"{name}: {wrapper} / without", stepping(envs, space, copies), peer, TARGET, rounds))
        envs.close()
    bare.close()
    return found


def cartpole(rounds: int) -> list[dict[str, Any]]:
    make = partial(gymnasium.make_vec, "CartPole-v1", num_envs=64, vectorization_mode="sync")
    return shares_inside(make, "64 CartPole-v1 (Sync)", list(range(9, 40)), rounds)


def hopper(rounds: int) -> list[dict[str, Any]]:
    make = partial(EnvPoolVectorEnv, "Hopper-v5", 256, seed=SEED)
    found = vector_rates(make, "256 Hopper-v5 (EnvPool)", list(range(9, 40)), rounds)
    envs, pool = make(), bare_pool()
    rates = (stepping(each, envs.single_action_space, 256) for each in (envs, pool))
    found.append(compare("256 Hopper-v5: EnvPoolVectorEnv / bare EnvPool", *rates, TARGET, rounds))
    return found


def bare_pool() -> Any:
    import envpool

    threads = len(os.sched_getaffinity(0))
    return envpool.make("Hopper-v5", env_type="gymnasium", num_envs=256, num_threads=threads, seed=SEED)


def sb3(rounds: int) -> list[dict[str, Any]]:
    from stable_baselines3.common.env_util import make_vec_env

    from steadyrl.integrations.sb3 import EnvPoolVecEnv, SteadyVecEnv

    cases: dict[str, tuple[Callable[[], Any], int]] = {
        "64 CartPole-v1 (DummyVecEnv)": (partial(make_vec_env, "CartPole-v1", 64, seed=SEED), 64),
        "256 Hopper-v5 (EnvPoolVecEnv)": (partial(EnvPoolVecEnv, "Hopper-v5", 256, seed=SEED), 256),
    }
    found = []
    for name, (make, copies) in cases.items():
        bare, steady = make(), SteadyVecEnv(make(), "auto", n_steps=N_STEPS, seed=SEED)
        rates = [stepping(envs, bare.action_space, copies) for envs in (steady, bare)]
        found.append(compare(f"{name}: SteadyVecEnv / without", rates[0], rates[1], TARGET, rounds))
    pool = stepping(bare_pool(), bare.action_space, 256)
    found.append(compare("256 Hopper-v5: EnvPoolVecEnv / bare EnvPool", rates[1], pool, 0.8, rounds))
    return found


def ppo(rounds: int) -> list[dict[str, Any]]:
    """PPO's own steps/s, updates included, with everything on and with nothing."""
    from stable_baselines3 import PPO

    from steadyrl.integrations.sb3 import EnvPoolVecEnv, SteadyStateCallback, SteadyVecEnv

    def training(steady: bool) -> Callable[[], float]:
        env: Any = EnvPoolVecEnv("Hopper-v5", 256, seed=SEED)
        env = SteadyVecEnv(env, "auto", n_steps=N_STEPS, seed=SEED) if steady else env
        model = PPO("MlpPolicy", env, n_steps=N_STEPS, batch_size=1024, n_epochs=2, device="cpu", seed=SEED)
        callback = SteadyStateCallback() if steady else None

        def rate() -> float:
            begin, steps = time.perf_counter(), 4 * N_STEPS * 256
            model.learn(steps, callback=callback, reset_num_timesteps=False)
            return steps / (time.perf_counter() - begin)

        rate()
        return rate

    name = "256 Hopper-v5 (EnvPoolVecEnv), PPO: SteadyVecEnv and SteadyStateCallback / without"
    return [compare(name, training(True), training(False), TARGET, rounds)]


PACKAGES = ("steadyrl", "numpy", "gymnasium", "envpool", "mujoco", "stable-baselines3", "torch")
PARTS: dict[str, Part] = {"cartpole": cartpole, "hopper": hopper, "sb3": sb3, "ppo": ppo}


def table(results: dict[str, Any]) -> str:
    lines = [
        "# Wrappers: what the cures cost",
        "",
        f"{os.cpu_count()} cores; made by `python benchmarks/wrappers.py`.",
        "",
    ]
    return "\n".join(lines + ratio_table(results)) + "\n"


if __name__ == "__main__":
    main("wrappers", __doc__, PARTS, PACKAGES, table, rounds=51)
