"""The tables of the study, as Markdown."""

from __future__ import annotations

from typing import Any

from analysis import Row
from runs import BOTH

TITLES = {
    "regimes": "Longer rollouts, 256 environments",
    "a2c": "A2C, 256 x 8",
    "few": "8 environments x 256 steps",
    "normalised": "VecNormalize, 256 x 8",
    "end-rewards": "All rewards at the end of an episode, 256 x 8",
    "no-bootstrap": "Anytime with truncations taken for ends, against anytime, 256 x 8",
}


def number(value: float) -> str:
    """Return a number with as many digits as it deserves."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(row: Row) -> str:
    """Return a difference with its interval."""
    low, high = row["interval"]
    return f"{number(row['difference'])} ({number(low)} to {number(high)})"


def table(*columns: str) -> list[str]:
    """Return the head of a table."""
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def cells(*values: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(values)} |"


def comparison(name: str, row: Row) -> str:
    """Return anytime against as it is as a row."""
    p = row.get("corrected p", row["p"])
    wins = f"{row['wins']} of {row['pairs']}"
    return cells(name, number(row["other"]), number(row["one"]), spread(row), wins, f"{p:.3f}")


def main_tables(main: dict[str, Any]) -> list[str]:
    """Return the comparison on all tasks."""
    lines = ["## Anytime against as it is, PPO, 256 x 8", ""]
    lines += ["Return, averaged over training:", ""]
    lines += table("task", "as it is", "anytime", "difference", "anytime higher", "corrected p")
    lines += [comparison(task, row) for task, row in main["tasks"].items()]
    overall = main["over tasks"]
    if overall:
        means = [f"{arm} {v[0]:.3f} ({v[1]:.3f} to {v[2]:.3f})" for arm, v in overall["interquartile mean"].items()]
        value, low, high = overall["probability of improvement"]
        lines += [
            "",
            f"Over {overall['tasks']} tasks and {overall['seeds']} seeds (rliable): interquartile mean, scaled, "
            f"{', '.join(means)}; probability of improvement {value:.2f} ({low:.2f} to {high:.2f}).",
        ]
    lines += [
        "",
        "The first of the ten evaluations and the last, and steps to the median last value of as it is (median over "
        'seeds, so it can lie half-way between two evaluations; "never": most seeds do not reach it; "-": as it is '
        "ends below its first evaluation):",
        "",
    ]
    arms = [f"{what}, {arm}" for what in ("first", "last", "steps") for arm in BOTH]
    lines += table("task", *arms[:4], "difference of the last", "anytime higher", *arms[4:])
    for task, row in main["tasks"].items():
        end, steps = row["last"], [row["steps to threshold"][arm] for arm in BOTH]
        wins = f"{end['wins']} of {end['pairs']}"
        times = ["-" if fallen(row) else "never" if s is None else f"{s:,.0f}" for s in steps]
        starts = [number(row["first"][arm]) for arm in BOTH]
        lines.append(cells(task, *starts, number(end["other"]), number(end["one"]), spread(end), wins, *times))
    return lines


def fallen(row: Row) -> bool:
    """Return whether as it is ends lower, on average over seeds, than at its first evaluation."""
    return bool(row["last"]["other"] < row["first"]["as it is"])


def arm_tables(arms: dict[str, Any]) -> list[str]:
    """Return all arms, task by task."""
    lines = [
        "",
        'Here anytime has the ten seeds of main, the other arms five, each compared over its own seeds; "against '
        'anytime" is over the same five. No p is corrected.',
    ]
    for task, found in arms.items():
        lines += ["", f"### {task}", ""]
        lines += table("arm", "seeds", "against as it is", "p", "against anytime", "p")
        for arm, row in found.items():
            other = row.get("against anytime")
            more = ("-", "-") if other is None else (spread(other), f"{other['p']:.3f}")
            lines.append(cells(arm, str(row["pairs"]), spread(row), f"{row['p']:.3f}", *more))
    return lines


def prediction_table(found: dict[str, Any]) -> list[str]:
    """Return what was predicted, and what came."""
    low, high = found["interval"]
    lines = [
        "",
        "## Prediction",
        "",
        f"Rank correlation between what shows of the age and the gain over {len(found['tasks'])} tasks: "
        f"{found['rank correlation']:.2f} (95% interval {low:.2f} to {high:.2f}, p = {found['p']:.3f}).",
        "",
    ]
    lines += table("task", "distance of observations", "gain, scaled")
    return lines + [cells(task, f"{x:.3f}", f"{y:.3f}") for task, (x, y) in found["tasks"].items()]
