"""What a benchmark found, for a terminal, a reader and a program: tables, figures to reach, a result file."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """A figure to reach, and the figure reached."""

    what: str
    goal: str
    reached: str
    met: bool


@dataclass
class Part:
    """One part of a benchmark: a table for people, the measurements behind it, its figures."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    measurements: list[dict[str, Any]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Print the table."""
        table = Table(*self.columns, title=self.title, caption=self.note, title_justify="left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def require(self, what: str, value: float, goal: float, unit: str = "", *, above: bool = False) -> None:
        """Add a figure: `value` is to be at most `goal`, or above it."""
        met = value > goal if above else value <= goal
        sign = "over" if above else "at most"
        self.figures.append(Figure(what, f"{sign} {number(goal)}{unit}", f"{number(value)}{unit}", met))


def number(value: float | None) -> str:
    """A number of any size in few characters."""
    if value is None:
        return "-"
    return f"{value:,.3g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.1e}"


def seconds(value: float | None) -> str:
    """A time."""
    if value is None:
        return "-"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def provenance(command: str, seed: int, started: str, peers: dict[str, str]) -> dict[str, Any]:
    """What made the results: the command, the seed, versions, the machine."""
    return {
        "command": command,
        "seed": seed,
        "started": started,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("steadyrl", "numpy", "scipy", "mpmath", "gymnasium")},
        "peers' versions": peers,
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load in the last 15 minutes": round(
                os.getloadavg()[2], 1
            ),  # of others too: above the cores, times are high
        },
    }


def write(folder: Path, stem: str, made_by: dict[str, Any], parts: list[Part]) -> list[Path]:
    """Write STEM.json and STEM.md, each all or nothing."""
    data = made_by | {
        "figures": [vars(figure) for part in parts for figure in part.figures],
        "parts": [{"title": part.title, "measurements": part.measurements} for part in parts],
    }
    folder.mkdir(exist_ok=True)
    texts = {f"{stem}.json": json.dumps(data, indent=1) + "\n", f"{stem}.md": markdown(made_by, parts)}
    for name, text in texts.items():
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, folder / name)
    return [folder / name for name in texts]


def figures_part(parts: list[Part]) -> Part:
    """All figures in one table."""
    rows = [
        [figure.what, figure.goal, figure.reached, "yes" if figure.met else "NO"]
        for part in parts
        for figure in part.figures
    ]
    return Part("Figures to reach", "", ["figure", "to reach", "reached", "met"], rows)


def markdown(made_by: dict[str, Any], parts: list[Part]) -> str:
    """Return the page for a reader."""
    lines = ["# Exact analysis: benchmark", ""]
    lines += [f"Made by `{made_by['command']}` (seed {made_by['seed']}), {made_by['started']}.", ""]
    for name in ("versions", "peers' versions", "machine"):
        if made_by[name]:
            lines.append(f"- {name}: " + ", ".join(f"{key} {value}" for key, value in made_by[name].items()))
    for part in [figures_part(parts), *parts]:
        lines += ["", f"## {part.title}", "", *([part.note, ""] if part.note else [])]
        lines += [f"| {' | '.join(row)} |" for row in [part.columns, ["---"] * len(part.columns), *part.rows]]
    return "\n".join(lines) + "\n"
