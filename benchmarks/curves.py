"""Learning curves over seeds: rliable's interquartile means with its bootstrap intervals, and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import trim_mean

COLOURS = {"sspg": "#1b6ca8", "a2c": "#c1502e", "ppo": "#7a7a7a"}
NAMES = {"sspg": "SSPG (steadyrl)", "a2c": "A2C (SB3)", "ppo": "PPO (SB3)"}


def iqm(scores: Any, *, resamples: int = 2000) -> np.ndarray:
    """Return the interquartile mean over seeds (rows) and the ends of its 95% interval, for each column of scores."""
    from rliable import library  # here, so that rows can be made without it

    values = np.asarray(scores, dtype=float)
    np.random.seed(0)  # noqa: NPY002  rliable draws from numpy's global state, whatever random_state it is given
    mean, interval = library.get_interval_estimates(
        {"": values[:, None, :]},  # seeds, one task, columns
        lambda drawn: trim_mean(drawn[:, 0], 0.25, axis=0),  # metrics.aggregate_iqm, of all columns at once
        reps=resamples,
    )
    return np.vstack([mean[""], interval[""]])


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
    for ax, (name, task) in zip(np.atleast_1d(axes), environments.items(), strict=True):
        for algorithm, colour in COLOURS.items():
            mine = [row for row in rows.values() if row["environment"] == name and row["algorithm"] == algorithm]
            if not mine:
                continue
            grid = np.linspace(task["every"], min(max(row["steps"]) for row in mine), 40)
            values = np.array([np.interp(grid, row["steps"], row["returns"]) for row in mine])
            mean, low, high = iqm(values, resamples=500)
            ax.plot(grid, mean, color=colour, label=f"{NAMES[algorithm]}, {len(mine)} seeds")
            ax.fill_between(grid, low, high, color=colour, alpha=0.2, linewidth=0)
        if task["goal"] is not None:
            ax.axhline(task["goal"], color="black", linewidth=0.8, linestyle=":")
        ax.set_title(name)
        ax.set_xlabel("environment steps")
        ax.legend(fontsize=7, loc="lower right")
        ax.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(axes)[0].set_ylabel("return of an episode, actions drawn")
    fig.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(fig)
