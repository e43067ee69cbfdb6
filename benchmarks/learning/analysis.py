"""Tables and figures of the study, from its rows alone.

    python benchmarks/learning/analysis.py

It writes results.json beside this script, docs/evidence.md and its figures, what README.md and docs/index.md say of it,
and the verdict that `diagnose` has (`STUDY` in src/steadyrl/diagnosis/seen_ages.py).

The statistics are those that `protocol.md` names. Parts that have no rows yet are left out and named.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from beside import cells_part, mechanism_part, mechanism_runs, parallel_rows
from runs import BOTH, FIVE_TASKS, OTHER_ARMS, SEEDS, TASKS, plan
from scipy.stats import rankdata, spearmanr, wilcoxon
from scipy.stats import t as student
from study import HERE, key_of, read_rows

RESAMPLES = 10_000
SEEN_AGES = HERE.parents[1] / "src" / "steadyrl" / "diagnosis" / "seen_ages.py"
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


def student_interval(values: Any, level: float = 0.95) -> tuple[float, float]:
    """Return Student's interval of a mean, for few values, of which a bootstrap interval would be too narrow."""
    values = np.asarray(values, dtype=float)
    half = float(student.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half


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
        "interval": (interval if len(seeds) >= len(SEEDS) else student_interval)(differences),
        "p": p,
        "wins": int((differences > 0).sum()),
        "differences": {str(s): float(d) for s, d in zip(seeds, differences, strict=True)},
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


def main_part(rows: list[Row], *, over: bool = True) -> dict[str, Any]:
    """Return the comparison of all tasks, and (with rliable) over tasks."""
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
        compared["span"] = span
        compared["scaled"] = [x / span for x in (compared["difference"], *compared["interval"])]
        compared["first"] = {
            arm: statistics.mean(row["evaluations"][0]["mean"] for row in both[arm].values()) for arm in BOTH
        }
        compared["last"] = paired(both["anytime"], both["as it is"], last)
        compared["threshold"] = threshold
        compared["steps to threshold"] = {arm: None if np.isinf(t) else t for arm, t in times.items()}
        found[task] = compared
        seeds = sorted(both["anytime"].keys() & both["as it is"].keys())
        for arm in BOTH:
            scaled[arm].append([(area(both[arm][s]) - min(ends)) / span for s in seeds])
    for task, p in holm({task: row["p"] for task, row in found.items()}).items():
        found[task]["corrected p"] = p
    return {"tasks": found, "over tasks": over_tasks(scaled) if over else None}


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
    chosen = rng.integers(0, len(names), (RESAMPLES, len(names)))
    drawn = rank_correlations(shown[chosen], gain[chosen])
    rank = spearmanr(shown, gain)
    return {
        "tasks": {task: [float(x), float(y)] for task, x, y in zip(names, shown, gain, strict=True)},
        "rank correlation": float(rank.statistic),
        "p": float(rank.pvalue),
        "interval": (ends := [float(x) for x in np.nanquantile(drawn, (0.025, 0.975))]),
        "verdict": prediction_verdict(tasks, names, float(rank.statistic), ends[0]),
    }


def rank_correlations(one: Any, other: Any) -> Any:
    """Return the rank correlation of each row of two arrays; NaN where all values of a row are the same."""
    ranks = [rankdata(x, axis=1) for x in (one, other)]
    left, right = (x - x.mean(axis=1, keepdims=True) for x in ranks)
    with np.errstate(invalid="ignore"):
        return (left * right).sum(axis=1) / np.sqrt((left**2).sum(axis=1) * (right**2).sum(axis=1))


def prediction_verdict(tasks: dict[str, Any], names: list[str], correlation: float, low: float) -> str:
    """Return "yes" or "no" as the protocol decides it, or "incomplete" until all pairs of all tasks are there."""
    if len(names) < len(TASKS) or any(tasks[task]["pairs"] < len(SEEDS) for task in names):
        return "incomplete"
    return "yes" if correlation > 0.5 and low > 0 else "no"


def analyse(rows: list[Row], *, over: bool = True) -> dict[str, Any]:
    """Return everything that follows from the rows; without the part over tasks, which needs rliable, if so asked."""
    known = {run.key for run in plan()}
    rows = list({key_of(row): row for row in rows if key_of(row) in known}.values())
    found = main_part(rows, over=over)
    parallel, mechanism = parallel_rows(), mechanism_runs()
    return {
        "rows": len(rows),
        "made": dict(Counter(row["part"] for row in rows)),
        "hours": round(sum(row["seconds"] for row in rows) / 3600, 2),
        "core seconds of a run": core_seconds(rows),
        "main": found,
        "arms": arms_part(rows),
        "others": simple_parts(rows),
        "prediction": prediction_part(found["tasks"]),
        "mechanism runs": len(mechanism),
        "mechanism": mechanism_part(mechanism),
        "parallel rows": len(parallel),
        "parallel": cells_part(parallel, paired, select, holm),
    }


def core_seconds(rows: list[Row]) -> float | None:
    """Return what a run takes of the processor on average, or None if no row has it (the first ones have not)."""
    found = [row["cpu_seconds"] for row in rows if "cpu_seconds" in row]
    return round(statistics.mean(found), 1) if found else None


def write_verdict(results: dict[str, Any], path: Path = SEEN_AGES) -> None:
    """Write into the package whether the number of `diagnose` predicts gains."""
    verdict = results["prediction"]["verdict"] if results["prediction"] else "incomplete"
    path.write_text(re.sub(r'(?m)^STUDY = "[a-z]*"$', f'STUDY = "{verdict}"', path.read_text()))


def write_part(path: Path, marks: tuple[str, str], text: str) -> None:
    """Replace what stands between two marks in a file."""
    before, rest = path.read_text().split(marks[0])
    path.write_text(f"{before}{marks[0]}\n{text}\n{marks[1]}{rest.partition(marks[1])[2]}")


def main() -> None:
    """Read the rows, and write everything that follows from them."""
    from evidence import MARKS, first_screen, page
    from figures import draw_arms, draw_curves, draw_main, draw_mechanism, draw_others, draw_prediction
    from tables import TITLES

    rows = read_rows()
    results = json.loads(json.dumps(analyse(rows)))
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    docs = HERE.parents[1] / "docs"
    (docs / "evidence.md").write_text(page(results))
    write_part(HERE.parents[1] / "README.md", MARKS, first_screen(results, "docs/"))
    write_part(docs / "index.md", MARKS, first_screen(results, ""))
    write_verdict(results)
    if results["main"]["tasks"]:
        draw_main(results["main"]["tasks"])
        draw_curves(rows)
    if results["arms"]:
        draw_arms(results["arms"], results["main"]["tasks"])
    if results["others"]:
        draw_others(results["others"], results["main"]["tasks"], TITLES)
    if results["prediction"]:
        draw_prediction(results["prediction"])
    if results["mechanism"]:
        draw_mechanism(mechanism_runs())
    print((docs / "evidence.md").read_text())


if __name__ == "__main__":
    main()
