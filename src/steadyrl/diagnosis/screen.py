"""A diagnosis on one screen, in words first."""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from steadyrl.diagnosis.analysis import Diagnosis
from steadyrl.diagnosis.wording import rows, verdict
from steadyrl.lengths.strategies import names_to_come

_SHOWN = 6  # strategies on the screen; the report and --json have all


def print_diagnosis(found: Diagnosis, console: Console) -> None:
    """Print a diagnosis on one screen."""
    console.print(f"[bold]{escape(verdict(found))}[/]", highlight=False)
    console.print()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows(found):
        table.add_row(name, escape(text))
    console.print(table, highlight=False)
    console.print()
    console.print(_strategies(found), highlight=False)
    console.print()
    for i, line in enumerate(found.code.splitlines()):
        console.print(f"[bold green]{'  ' if i else 'do'}[/]  {escape(line)}", highlight=False, soft_wrap=True)
    for name in names_to_come(found.code):
        console.print(f"    ({name} is not in this version of steadyrl yet)", highlight=False, soft_wrap=True)
    for warning in found.warnings:
        console.print(f"[bold yellow]warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)


def _strategies(found: Diagnosis) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("strategy", "steady", "cost once", "for ever"):
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    mean = found.lengths.mean
    for i, way in enumerate(found.recommendation.strategies[:_SHOWN]):
        after = "never" if math.isinf(way.steady_after) else f"{way.steady_after / mean:.3g} E[T]"
        once = "-" if not way.one_off_cost or math.isinf(way.one_off_cost) else f"{way.one_off_cost / mean:.2g} E[T]"
        waste = "-" if not way.waste else f"{way.waste:.1%}"
        table.add_row(
            ("> " if i == 0 else "  ") + escape(way.title), after, once, waste, style="bold" if i == 0 else ""
        )
    return table
