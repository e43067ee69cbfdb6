"""Learning curves over seeds: interquartile means with bootstrap intervals, as rliable has them, and a figure.

rliable 1.2.0 needs a version of `arch` that does not import beside pandas 3, so its two formulas are written out here:
the mean of the middle half of the runs (scipy's 25% trimmed mean), and percentiles of it over resampled seeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import trim_mean

COLOURS = {"sspg": "#1b6ca8", "a2c": "#c1502e", "ppo": "#7a7a7a"}
NAMES = {"sspg": "SSPG (steadyrl)", "a2c": "A2C (SB3)", "ppo": "PPO (SB3)"}


def iqm(scores: Any, *, rng: np.random.Generator, resamples: int = 2000) -> tuple[float, float, float]:
    """Return the interquartile mean over seeds and its 95% bootstrap interval."""
    values = np.asarray(scores, dtype=float)
    again = trim_mean(values[rng.integers(len(values), size=(resamples, len(values)))], 0.25, axis=1)
    low, high = np.percentile(again, [2.5, 97.5])
    return float(trim_mean(values, 0.25)), float(low), float(high)


def solved_at(row: dict[str, Any], goal: float) -> float:
    """Return the steps at the first evaluation that reached the goal; inf if none did."""
    reached = [steps for steps, value in zip(row["steps"], row["returns"], strict=True) if value >= goal]
    return float(reached[0]) if reached else float("inf")


def figure(rows: dict[str, dict[str, Any]], environments: dict[str, Any], path: Path) -> None:
    """Draw the curves of all environments side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(environments), figsize=(4.2 * len(environments), 3.4), constrained_layout=True)
    rng = np.random.default_rng(0)
    for ax, (name, task) in zip(np.atleast_1d(axes), environments.items(), strict=True):
        for algorithm, colour in COLOURS.items():
            mine = [row for row in rows.values() if row["environment"] == name and row["algorithm"] == algorithm]
            if not mine:
                continue
            grid = np.linspace(task["every"], min(max(row["steps"]) for row in mine), 40)
            values = np.array([np.interp(grid, row["steps"], row["returns"]) for row in mine])
            found = np.array([iqm(column, rng=rng, resamples=500) for column in values.T])
            ax.plot(grid, found[:, 0], color=colour, label=f"{NAMES[algorithm]}, {len(mine)} seeds")
            ax.fill_between(grid, found[:, 1], found[:, 2], color=colour, alpha=0.2, linewidth=0)
        if task["goal"] is not None:
            ax.axhline(task["goal"], color="black", linewidth=0.8, linestyle=":")
        ax.set_title(name)
        ax.set_xlabel("environment steps")
        ax.legend(fontsize=7, loc="lower right")
        ax.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(axes)[0].set_ylabel("return of an episode, actions drawn")
    fig.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(fig)
