"""How even the ages of few environments are: `python benchmarks/few_environments.py` (about two minutes).

N environments that are reset together run under `StaggerController` (SAME_STEP). The measure is the Kolmogorov
distance, the largest difference between the distribution functions of the N ages and of the stationary age. N ages can
come no closer to a continuous distribution than 1 / (2N); N independent environments at steady state are at
0.87 / sqrt(N) on average. Means are over steps from the first time on at which the stationary ages can be reached, and
over seeds.

Writes benchmarks/results/few_environments.json, and the table in docs/staggering.md.
"""

import json
import re
from pathlib import Path

import numpy as np

import steadyrl

NUMBERS = (8, 16, 64, 256, 4096)
RESULTS = Path(__file__).parent / "results" / "few_environments.json"
PAGE = Path(__file__).parents[1] / "docs" / "staggering.md"
MARKS = ("<!-- Written by `python benchmarks/few_environments.py`. -->", "<!-- End of the table. -->")


def fixed() -> np.ndarray:
    """Return P(L = k): 200 steps, always."""
    return np.append(np.zeros(200), 1.0)


def bell() -> np.ndarray:
    """Return P(L = k): about 200 steps, give or take 20."""
    k = np.arange(301)
    weights = np.where(k > 0, np.exp(-0.5 * ((k - 200) / 20) ** 2), 0.0)
    return weights / weights.sum()


def geometric() -> np.ndarray:
    """Return P(L = k): an episode ends in each step with probability 1/200."""
    k = np.arange(1, 4001)
    return np.append(0.0, (1 - 1 / 200) ** (k - 1)) / (1 - (1 - 1 / 200) ** 4000) / 200


FAMILIES = {"always 200 steps": (fixed, 200), "200 ± 20": (bell, 300), "geometric, mean 200": (geometric, 1000)}
"""Each with the step from which on ages are compared."""


def measure(lengths: np.ndarray, num_envs: int, first: int, steps: int, seed: int) -> tuple[float, float]:
    """Return the mean Kolmogorov distance over the steps from `first` on, and the truncations per environment."""
    rng = np.random.default_rng([seed, num_envs])
    controller = steadyrl.StaggerController(num_envs, same_step=True, seed=seed)
    survival = lengths[::-1].cumsum()[::-1][1:]
    stationary = np.cumsum(survival) / survival.sum()
    ages, found = np.ones(num_envs, dtype=int), []
    left = rng.choice(len(lengths), num_envs, p=lengths)
    for t in range(1, first + steps + 1):
        if t > first and t % 10 == 0:
            counts = np.bincount(ages - 1, minlength=len(stationary))
            found.append(np.abs(np.cumsum(counts) / num_envs - stationary).max())
        done = ages >= left
        over = done | controller.step(done)
        ages = np.where(over, 1, ages + 1)
        left[over] = rng.choice(len(lengths), int(over.sum()), p=lengths)
    return float(np.mean(found)), controller.cuts / num_envs


def row(num_envs: int, seeds: int | None = None) -> dict[str, float]:
    """Return one row of the table."""
    seeds = seeds or int(np.clip(2000 // num_envs, 2, 40))
    result: dict[str, float] = {"environments": num_envs, "seeds": seeds, "best possible": 1 / (2 * num_envs)}
    for name, (make, first) in FAMILIES.items():
        runs = [measure(make(), num_envs, first, 600, seed) for seed in range(seeds)]
        result[name] = float(np.mean([distance for distance, _ in runs]))
        result[f"truncations, {name}"] = float(np.mean([cuts for _, cuts in runs]))
    result["independent"] = 0.87 / np.sqrt(num_envs)
    return result


def table(rows: list[dict[str, float]]) -> str:
    """Return the table as Markdown."""
    names = ["best possible, 1/(2N)", *FAMILIES, "independent, 0.87/sqrt(N)"]
    keys = ["best possible", *FAMILIES, "independent"]
    lines = ["| N | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for found in rows:
        cells = [f"{found['environments']:,}", *(f"{found[key]:.3g}" for key in keys)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    rows = [row(num_envs) for num_envs in NUMBERS]
    command = "python benchmarks/few_environments.py"
    RESULTS.write_text(json.dumps({"command": command, "version": steadyrl.__version__, "rows": rows}, indent=1) + "\n")
    text = PAGE.read_text()
    new = f"{MARKS[0]}\n\n{table(rows)}\n\n{MARKS[1]}"
    PAGE.write_text(re.sub(re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1]), lambda _: new, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
