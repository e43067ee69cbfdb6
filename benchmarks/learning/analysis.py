"""Tables and figures of the study, from its rows alone.

    python benchmarks/learning/analysis.py     writes results.json, results.md beside this script, docs/evidence-*.svg

The statistics are those that `protocol.md` names. Parts that have no rows yet are left out and named.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from runs import BOTH, FIVE_TASKS, OTHER_ARMS, TASKS
from scipy.stats import spearmanr, wilcoxon
from study import HERE, read_rows

RESAMPLES = 10_000
Row = dict[str, Any]


def area(row: Row) -> float:
    """Return the mean of the ten evaluations: the area under the curve."""
    return statistics.mean(found["mean"] for found in row["evaluations"])


def last(row: Row) -> float:
    """Return the last evaluation."""
    return float(row["evaluations"][-1]["mean"])


def select(rows: list[Row], **wanted: Any) -> dict[int, Row]:
    """Return the rows with these settings by seed."""
    return {row["seed"]: row for row in rows if all(row[name] == value for name, value in wanted.items())}


def interval(values: Any, level: float = 0.95) -> tuple[float, float]:
    """Return the bootstrap interval of a mean."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(np.asarray(values, dtype=float), (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def paired(one: dict[int, Row], other: dict[int, Row], measure: Callable[[Row], float] = area) -> dict[str, Any] | None:
    """Return the paired difference one - other: its mean, interval and Wilcoxon p; None with fewer than three pairs."""
    seeds = sorted(one.keys() & other.keys())
    if len(seeds) < 3:
        return None
    differences = np.array([measure(one[s]) - measure(other[s]) for s in seeds])
    p = float(wilcoxon(differences).pvalue) if differences.any() else 1.0
    return {
        "pairs": len(seeds),
        "one": float(np.mean([measure(one[s]) for s in seeds])),
        "other": float(np.mean([measure(other[s]) for s in seeds])),
        "difference": float(differences.mean()),
        "interval": interval(differences),
        "p": p,
        "wins": int((differences > 0).sum()),
    }


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Return Holm's corrected p values."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    corrected, largest = {}, 0.0
    for i, name in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - i) * p_values[name]))
        corrected[name] = largest
    return corrected


def reached(row: Row, threshold: float) -> float:
    """Return the steps at which a run first reached a return; inf if it never did."""
    return next((float(e["steps"]) for e in row["evaluations"] if e["mean"] >= threshold), float("inf"))


def main_part(rows: list[Row]) -> dict[str, Any]:
    """Return the comparison of all tasks, and over tasks."""
    rows = [row for row in rows if row["part"] == "main"]
    found: dict[str, Any] = {}
    scaled: dict[str, list[Any]] = {arm: [] for arm in BOTH}
    for task in TASKS:
        both = {arm: select(rows, task=task, arm=arm) for arm in BOTH}
        compared = paired(both["anytime"], both["as it is"])
        if compared is None:
            continue
        ends = [last(row) for arm in BOTH for row in both[arm].values()]
        span = max(ends) - min(ends) or 1.0
        threshold = statistics.median(last(row) for row in both["as it is"].values())
        times = {arm: statistics.median(reached(row, threshold) for row in both[arm].values()) for arm in BOTH}
        compared["scaled"] = [x / span for x in (compared["difference"], *compared["interval"])]
        compared["last"] = paired(both["anytime"], both["as it is"], last)
        compared["threshold"] = threshold
        compared["steps to threshold"] = {arm: None if np.isinf(t) else t for arm, t in times.items()}
        found[task] = compared
        seeds = sorted(both["anytime"].keys() & both["as it is"].keys())
        for arm in BOTH:
            scaled[arm].append([(area(both[arm][s]) - min(ends)) / span for s in seeds])
    for task, p in holm({task: row["p"] for task, row in found.items()}).items():
        found[task]["corrected p"] = p
    return {"tasks": found, "over tasks": over_tasks(scaled)}


def over_tasks(scaled: dict[str, list[Any]]) -> dict[str, Any] | None:
    """Return rliable's interquartile means and probability of improvement, if all tasks have as many seeds."""
    from rliable import library, metrics

    count = min((len(x) for scores in scaled.values() for x in scores), default=0)
    if count < 3:
        return None
    scores = {arm: np.array([x[:count] for x in values]).T for arm, values in scaled.items()}
    np.random.seed(0)  # noqa: NPY002  rliable draws from numpy's global state
    mean, ends = library.get_interval_estimates(scores, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=5000)
    pair = {"anytime,as it is": (scores["anytime"], scores["as it is"])}
    better, better_ends = library.get_interval_estimates(pair, metrics.probability_of_improvement, reps=2000)
    name = "anytime,as it is"
    return {
        "seeds": count,
        "tasks": scores["anytime"].shape[1],
        "interquartile mean": {arm: [float(mean[arm][0]), *map(float, ends[arm].ravel())] for arm in scores},
        "probability of improvement": [float(better[name]), *map(float, np.ravel(better_ends[name]))],
    }


def arms_part(rows: list[Row]) -> dict[str, Any]:
    """Return every arm against as it is and against anytime, on five tasks."""
    found: dict[str, Any] = {}
    for task in FIVE_TASKS:
        known = {arm: select(rows, task=task, arm=arm, part="main") for arm in BOTH}
        known |= {arm: select(rows, task=task, arm=arm, part="arms") for arm in OTHER_ARMS}
        for arm in ("anytime", *OTHER_ARMS):
            row = paired(known[arm], {s: r for s, r in known["as it is"].items() if s in known[arm]})
            if row is not None and arm != "anytime":
                row["against anytime"] = paired(known[arm], known["anytime"])
            if row is not None:
                found.setdefault(task, {})[arm] = row
    return found


def simple_parts(rows: list[Row]) -> dict[str, Any]:
    """Return anytime against as it is in the other parts."""
    found: dict[str, Any] = {}
    for part in ("regimes", "a2c", "few", "normalised", "end-rewards"):
        mine = [row for row in rows if row["part"] == part]
        for task, n_steps in sorted({(row["task"], row["n_steps"]) for row in mine}):
            one, other = (select(mine, task=task, n_steps=n_steps, arm=arm) for arm in ("anytime", "as it is"))
            row = paired(one, other)
            if row is not None:
                found.setdefault(part, {})[f"{task}, n_steps {n_steps}"] = row
    for task in sorted({row["task"] for row in rows if row["part"] == "no-bootstrap"}):
        one = select(rows, part="no-bootstrap", task=task)
        row = paired(one, select(rows, part="main", task=task, arm="anytime"))
        if row is not None:
            found.setdefault("no-bootstrap", {})[f"{task}, against anytime"] = row
    return found


def prediction_part(tasks: dict[str, Any]) -> dict[str, Any] | None:
    """Return the rank correlation between what shows of the age and the gain, over tasks."""
    path = HERE / "prediction.json"
    if not path.exists():
        return None
    seen = {
        task: [x["distance"][0] for x in by_seed.values()] for task, by_seed in json.loads(path.read_text()).items()
    }
    names = [task for task in tasks if task in seen]
    if len(names) < 5:
        return None
    shown = np.array([statistics.mean(seen[task]) for task in names])
    gain = np.array([tasks[task]["scaled"][0] for task in names])
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(0, len(names), len(names))
        if len(set(chosen)) > 2:
            drawn.append(spearmanr(shown[chosen], gain[chosen]).statistic)
    rank = spearmanr(shown, gain)
    return {
        "tasks": {task: [float(x), float(y)] for task, x, y in zip(names, shown, gain, strict=True)},
        "rank correlation": float(rank.statistic),
        "p": float(rank.pvalue),
        "interval": [float(x) for x in np.nanquantile(drawn, (0.025, 0.975))],
    }


def main() -> None:
    """Read the rows, and write everything that follows from them."""
    from figures import draw_curves, draw_main, draw_prediction
    from tables import page

    rows = read_rows()
    found = main_part(rows)
    results = {
        "main": found,
        "arms": arms_part(rows),
        "others": simple_parts(rows),
        "prediction": prediction_part(found["tasks"]),
        "rows": len(rows),
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "results.md").write_text(page(results, rows))
    if found["tasks"]:
        draw_main(found["tasks"])
        draw_curves(rows)
    if results["prediction"]:
        draw_prediction(results["prediction"])
    print((HERE / "results.md").read_text())


if __name__ == "__main__":
    main()
