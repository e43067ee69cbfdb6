"""The league's pictures and its page, from the result file alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw_figures(results: dict[str, Any]) -> None:
    """Redraw docs/ from the result file."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "steadyrl"
    from matplotlib import pyplot as plt

    docs = Path(__file__).parent.parent / "docs"
    figure, axes = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    for name, curve in results["relock"]["curves"].items():
        axes[0].plot(curve["times"], curve["distance"], label=name)
        axes[1].plot(curve["times"], curve["waste"], label=name)
    for axis in axes:
        axis.axvline(results["relock"]["switch"], color="grey", linestyle=":")
    axes[0].set_ylabel("distance from steady state")
    axes[1].set_ylabel("share of steps wasted so far")
    axes[1].set_xlabel("step; E[T] goes from 20 to 500 at the dotted line")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(docs / "cures-relock.svg", metadata={"Date": None})
    plt.close(figure)

    names = [way for way in next(iter(results["cells"].values())) if way != "_"]
    figure, axis = plt.subplots(figsize=(10, 5))
    never = 60.0
    for row, cells in enumerate(results["cells"].values()):
        for i, way in enumerate(names):
            value = cells[way]["measured_ael"]
            shown = never if value is None else max(value, 0.05)
            axis.scatter(
                shown,
                row,
                color=f"C{i}",
                marker="x" if value is None else "o",
                label=way if row == 0 else None,
                alpha=0.8,
            )
    axis.set_xscale("log")
    axis.set_yticks(range(len(results["cells"])), [name.split("/")[-1] for name in results["cells"]])
    axis.axvline(3, color="grey", linestyle=":")
    axis.set_xlabel("AEL until the measured distance stays below 1% (x: not within 30; at the left edge: at once)")
    axis.legend(frameon=False, bbox_to_anchor=(1, 1), loc="upper left", fontsize=8)
    figure.tight_layout()
    figure.savefig(docs / "league.svg", metadata={"Date": None})
    plt.close(figure)
    (docs / "league.md").write_text(table(results, names))


def table(results: dict[str, Any], names: list[str]) -> str:
    """The league as a page."""
    lines = [
        "# The league: how fast each way brings environments out of lockstep",
        "",
        "Mean episode lengths until the measured distance of the environments' ages from the stationary ones stays "
        "below 1%, within its sampling error (in brackets: computed). The column *bound* says when that is possible at "
        "all: no environment can be older than the time since its first reset. (Measured times may be a little below "
        "it: within sampling error, and ages are compared in groups.) Pre-rolls start before, and throw that away. "
        "Made by `python benchmarks/league.py`, seed 0; the numbers are in benchmarks/results/league.json. "
        "Environments live through lengths of real episodes; see the script's first lines, and the live runs below.",
        "",
        "![The league](league.svg)",
        "",
        "| environment | E[T] | CV | bound | " + " | ".join(names) + " |",
        "|---|---|---|---|" + "---|" * len(names),
    ]
    for environment, cells in results["cells"].items():
        about = cells["_"]
        row = [environment, f"{about['E[T]']:.4g}", f"{about['CV']:.3g}", f"{about['bound']:.3g}"]
        lines.append("| " + " | ".join(row + [_shown(cells[way]) for way in names]) + " |")
    some = next(iter(results["cells"].values()))
    waste = ["", "", "", ""] + [f"{some[way]['waste']:.0%}" for way in names]
    waste[0] = "wasted for ever (first row's environment)"
    lines.append("| " + " | ".join(waste) + " |")
    lines += [
        "",
        "## Distance to the bound, averaged over the first 3 mean episode lengths",
        "",
        "Below 0 for those ways that run environments before training begins, and throw these steps away.",
        "",
        "| environment | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for environment, cells in results["cells"].items():
        lines.append(f"| {environment} | " + " | ".join(f"{cells[way]['above_bound']:.3f}" for way in names) + " |")
    disagree = [
        f"{environment}, {way}"
        for environment, cells in results["cells"].items()
        for way in names
        if cells[way].get("agrees") is False
    ]
    where = "every cell" if not disagree else "all but: " + "; ".join(disagree)
    lines += ["", f"Measured and computed distances agree within sampling error in {where}."]
    if "live" in results:
        lines += [
            "",
            "## Live",
            "",
            "| environment | way | copies | at step | distance | chance | computed |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in results["live"].values():
            lines.append(
                "| "
                + " | ".join(
                    str(row[key]) for key in ("environment", "way", "copies", "step", "distance", "noise", "computed")
                )
                + " |"
            )
    return "\n".join(lines) + "\n"


def _shown(found: dict[str, Any]) -> str:
    def text(value: float | None) -> str:
        return "never" if value is None else f"{value:.3g}"

    return text(found["measured_ael"]) + (f" ({text(found['computed_ael'])})" if "computed" in found else "")
