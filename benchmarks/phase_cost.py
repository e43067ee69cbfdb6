"""What following the ages costs: nanoseconds per environment and step of `PhaseTracker`, for 10^2 to 10^6 environments.

    python benchmarks/phase_cost.py

Episodes have 50 steps, and environments are at steady state; a report is made after every batch of 16 steps. The time
of each size is the shortest CPU time of some rounds. Results go to
benchmarks/results/phase_cost.json, and as a table to phase_cost.md, with command and versions.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ratios import main
from steadyrl import PhaseTracker

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
N_STEPS, LENGTH = 16, 50


def seconds_per_step(num_envs: int, rounds: int) -> float:
    """Return the seconds that one step of all environments takes, reports included."""
    rng = np.random.default_rng(0)
    phase = rng.integers(LENGTH, size=num_envs)
    flags = [phase == step for step in range(LENGTH)]
    tracker = PhaseTracker(num_envs, same_step=True, n_steps=N_STEPS)
    shortest = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        for done in flags:
            if tracker.update(done):
                tracker.report()
        shortest = min(shortest, (time.process_time() - begin) / LENGTH)
    return shortest


def sizes(rounds: int) -> list[dict[str, Any]]:
    """Measure every size."""
    found = []
    for num_envs in SIZES:
        seconds = seconds_per_step(num_envs, rounds)
        row = {"num_envs": num_envs, "milliseconds_per_step": round(1e3 * seconds, 4)}
        row |= {"nanoseconds_per_environment_and_step": round(1e9 * seconds / num_envs, 2), "rounds": rounds}
        print(row, flush=True)
        found.append(row)
    return found


def table(results: dict[str, Any]) -> str:
    lines = ["# PhaseTracker: what following the ages costs", "", "Made by `python benchmarks/phase_cost.py`.", ""]
    lines += ["| environments | ms per step | ns per environment and step |", "|---|---|---|"]
    for row in results["sizes"]["results"]:
        cost = row["nanoseconds_per_environment_and_step"]
        lines.append(f"| {row['num_envs']:,} | {row['milliseconds_per_step']} | {cost} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main("phase_cost", __doc__, {"sizes": sizes}, ("steadyrl", "numpy"), table, rounds=5)
