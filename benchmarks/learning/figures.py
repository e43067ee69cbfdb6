"""The figures of the study."""

from __future__ import annotations

from typing import Any

import numpy as np
from analysis import Row, interval, select
from runs import TASKS
from study import HERE

from steadyrl.common.figures import PERTURBED, QUIET, RAW, new_figure, save_figure

DOCS = HERE.parents[1] / "docs"
UNITS = "in units of the task's range (95% intervals, uncorrected; blue above 0, red below)"


def draw_main(tasks: dict[str, Any]) -> None:
    """Draw the gain on each task with its interval."""
    figure, (axes,) = new_figure(size=(7.2, 0.32 * len(tasks) + 1.2))
    names = sorted(tasks, key=lambda task: tasks[task]["scaled"][0])
    for i, task in enumerate(names):
        value, low, high = tasks[task]["scaled"]
        found = tasks[task]["corrected p"] < 0.05
        axes.plot([low, high], [i, i], color=PERTURBED if found else QUIET, linewidth=2)
        axes.plot([value], [i], "o", color=PERTURBED if found else QUIET, markersize=6)
    axes.axvline(0, color=RAW, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel(
        "gain in mean return over training, in units of the task's range\n"
        f"(95% intervals; in colour where a difference is found after correction for {len(tasks)} tasks)"
    )
    axes.grid(axis="y", visible=False)
    save_figure(figure, DOCS / "evidence-main.svg", ".svg")


def draw_differences(axes: Any, rows: dict[str, Row], span: dict[str, float]) -> None:
    """Draw paired differences with their intervals, one below the other, each in units of its task's range."""
    for i, (name, row) in enumerate(rows.items()):
        value, low, high = (x / span[name] for x in (row["difference"], *row["interval"]))
        colour = PERTURBED if low > 0 else RAW if high < 0 else QUIET
        axes.plot([low, high], [-i, -i], color=colour, linewidth=2)
        axes.plot([value], [-i], "o", color=colour, markersize=5)
    axes.axvline(0, color="black", linewidth=0.7)
    axes.set_yticks([-i for i in range(len(rows))], list(rows))
    axes.set_ylim(0.4 - len(rows), 0.6)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", visible=False)


def draw_arms(arms: dict[str, Any], tasks: dict[str, Any]) -> None:
    """Draw what each arm gains over as it is, task by task."""
    columns = 3
    count = -(-len(arms) // columns)
    figure, axes = new_figure(count, columns, (11, 2.6 * count))
    for ax in axes[len(arms) :]:
        ax.set_visible(False)
    scaled = [
        x / tasks[task]["span"] for task, found in arms.items() for row in found.values() for x in row["interval"]
    ]
    ends = min(scaled) - 0.05, max(scaled) + 0.05  # the same for all, so that panels can be compared
    for i, (ax, (task, found)) in enumerate(zip(axes, arms.items(), strict=False)):
        draw_differences(ax, found, dict.fromkeys(found, tasks[task]["span"]))
        ax.set_title(task, fontsize=9)
        ax.set_xlim(*ends)
        if i % columns:
            ax.set_yticklabels([])
    figure.supxlabel(f"difference from as it is, {UNITS}", fontsize=9)
    save_figure(figure, DOCS / "evidence-arms.svg", ".svg")


def draw_others(others: dict[str, Any], tasks: dict[str, Any], titles: dict[str, str]) -> None:
    """Draw anytime against as it is in the other parts, one panel each."""
    columns = 2
    count = -(-len(others) // columns)
    figure, axes = new_figure(count, columns, (11, 2.0 * count))
    for ax in axes[len(others) :]:
        ax.set_visible(False)
    for ax, (part, found) in zip(axes, others.items(), strict=False):
        draw_differences(ax, found, {name: tasks[name.partition(",")[0]]["span"] for name in found})
        ax.set_title(titles[part], fontsize=9)
    figure.supxlabel(f"difference, each panel with its own scale, {UNITS}", fontsize=9)
    save_figure(figure, DOCS / "evidence-others.svg", ".svg")


def draw_curves(rows: list[Row]) -> None:
    """Draw the learning curves of all tasks."""
    rows = [row for row in rows if row["part"] == "main"]
    names = [task for task in TASKS if select(rows, task=task, arm="anytime")]
    columns = 4
    count = -(-len(names) // columns)
    figure, axes = new_figure(count, columns, (11, 2.3 * count))
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    for ax, task in zip(axes, names, strict=False):
        for arm, colour in (("as it is", RAW), ("anytime", PERTURBED)):
            runs = list(select(rows, task=task, arm=arm).values())
            steps = np.mean([[e["steps"] for e in row["evaluations"]] for row in runs], axis=0) / 1e6
            values = np.array([[e["mean"] for e in row["evaluations"]] for row in runs])
            ax.plot(steps, values.mean(axis=0), color=colour, label=arm)
            ends = np.array([interval(column) for column in values.T])
            ax.fill_between(steps, ends[:, 0], ends[:, 1], color=colour, alpha=0.2, linewidth=0)
        ax.set_title(task, fontsize=9)
        ax.tick_params(labelsize=7)
    axes[0].legend(fontsize=7)
    figure.supxlabel("million steps", fontsize=9)
    save_figure(figure, DOCS / "evidence-curves.svg", ".svg")


def draw_prediction(found: dict[str, Any]) -> None:
    """Draw gain against what shows of the age."""
    figure, (axes,) = new_figure(size=(6.0, 4.2))
    for task, (x, y) in found["tasks"].items():
        axes.plot([x], [y], "o", color=PERTURBED)
        axes.annotate(task, (x, y), fontsize=7, xytext=(4, 3), textcoords="offset points")
    axes.axhline(0, color=RAW, linewidth=1)
    axes.set_xlabel("distance of observations between ages (seen_ages, initial policy)")
    axes.set_ylabel("gain, in units of the task's range")
    low, high = found["interval"]
    axes.set_title(f"rank correlation {found['rank correlation']:.2f} ({low:.2f} to {high:.2f})", fontsize=10)
    save_figure(figure, DOCS / "evidence-prediction.svg", ".svg")


def draw_mechanism(runs: list[Row]) -> None:
    """Draw explained variance over training, and cosines with the gradient at steady state, for the first seed."""
    names = sorted({run["task"] for run in runs})
    figure, axes = new_figure(2, len(names), (5.2 * len(names), 5.4))
    for column, task in enumerate(names):
        above, below = axes[column], axes[len(names) + column]
        for arm, colour in (("as it is", RAW), ("anytime", PERTURBED)):
            mine = sorted((run for run in runs if run["task"] == task and run["arm"] == arm), key=lambda r: r["seed"])
            if not mine:
                continue
            above.plot(np.clip(mine[0]["series"]["explained_variance"], -1, 1), color=colour, linewidth=1, label=arm)
            for run in mine:
                at = [one["update"] for one in run["checkpoints"]]
                below.plot(at, [one["cosine"] for one in run["checkpoints"]], "o", color=colour)
                fair = [one["cosine of a fair batch"] for one in run["checkpoints"]]
                below.plot(
                    at, fair, "x", color=QUIET, label=None if below.get_legend_handles_labels()[0] else "a fair batch"
                )
            for update in range(mine[0]["period"], mine[0]["updates"], mine[0]["period"]):
                above.axvline(update, color=QUIET, linewidth=0.6)
        above.set_title(task, fontsize=9)
        above.set_ylabel("explained variance", fontsize=8)
        below.set_ylabel("cosine with the steady state", fontsize=8)
        below.set_xlabel("update", fontsize=8)
    axes[0].legend(fontsize=7)
    axes[len(names)].legend(fontsize=7)
    save_figure(figure, DOCS / "evidence-mechanism.svg", ".svg")
