"""What is measured beside the study's rows: the mechanism (mechanism.json) and thousands of copies (parallel.jsonl)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from study import HERE, read_rows

MECHANISM_TASKS = ("CartpoleSwingup-v1", "Hopper-v5")
MECHANISM_RUNS = 8
PARALLEL_TASKS = ("Pendulum-v1", "Swimmer-misc", "CartPole-v1", "Acrobot-v1")
PARALLEL_SIZES = ((1024, 16), (4096, 8))
PARALLEL_SEEDS = 10
HARMONICS = (1, 2, 3)
Row = dict[str, Any]


def mechanism_runs(path: Path = HERE / "mechanism.json") -> list[Row]:
    """Return the runs of the mechanism that are there."""
    return json.loads(path.read_text()) if path.exists() else []


def parallel_rows(path: Path = HERE / "parallel.jsonl") -> list[Row]:
    """Return the rows of the massively parallel runs that are there."""
    return read_rows(path)


def share_at_period(series: Any, period: int) -> float:
    """Return the share of a series' variance, its trend removed, at a period and its second and third harmonics.

    The series should hold a whole number of periods; what is beyond that is left out.
    """
    values = np.asarray(series, dtype=float)
    values = values[: len(values) // period * period]
    values = np.where(np.isfinite(values), values, np.nanmean(np.where(np.isfinite(values), values, np.nan)))
    time = np.arange(len(values))
    rest = values - np.polyval(np.polyfit(time, values, 1), time)
    power = np.abs(np.fft.rfft(rest)) ** 2
    power[0] = 0.0
    if power.sum() <= 1e-12 * float((values**2).sum() + 1e-300):
        return 0.0
    return float(power[[len(values) // period * k for k in HARMONICS]].sum() / power.sum())


def mean_of(checkpoints: list[Row], name: str) -> float | None:
    """Return the mean of a measure over the checkpoints that have it."""
    found = [one[name] for one in checkpoints if one.get(name) is not None]
    return float(np.mean(found)) if found else None


def mechanism_part(runs: list[Row]) -> dict[str, Any]:
    """Return each measure by task, arm and seed."""
    found: dict[str, Any] = {}
    for run in sorted(runs, key=lambda run: (run["task"], run["arm"], run["seed"])):
        series, at = run["series"], run["checkpoints"]
        measures = {
            "value loss at the period": share_at_period(series["value_loss"], run["period"]),
            "explained variance at the period": share_at_period(series["explained_variance"], run["period"]),
            "cosine of consecutive gradients": float(np.nanmean(series["consecutive_cosine"])),
            "cosine with the steady state": mean_of(at, "cosine"),
            "the same, a fair batch": mean_of(at, "cosine of a fair batch"),
            "groups of ages in a batch": mean_of(at, "groups present"),
            "policy change, ages present": mean_of(at, "policy change, present"),
            "policy change, ages absent": mean_of(at, "policy change, absent"),
            "value error change, ages present": mean_of(at, "value error change, present"),
            "value error change, ages absent": mean_of(at, "value error change, absent"),
        }
        for name, value in measures.items():
            found.setdefault(run["task"], {}).setdefault(name, {}).setdefault(run["arm"], {})[str(run["seed"])] = value
    return found


def cells_part(rows: list[Row], paired: Any, select: Any, holm: Any) -> dict[str, Any]:
    """Return anytime against as it is in each cell of the massively parallel runs that is complete."""
    found: dict[str, Any] = {}
    for num_envs, n_steps in PARALLEL_SIZES:
        for task in PARALLEL_TASKS:
            one, other = (select(rows, task=task, num_envs=num_envs, arm=arm) for arm in ("anytime", "as it is"))
            row = paired(one, other)
            if row is not None:
                found[f"{task}, {num_envs:,} x {n_steps}"] = row
    for name, p in holm({name: row["p"] for name, row in found.items()}).items():
        found[name]["corrected p"] = p
    return found
