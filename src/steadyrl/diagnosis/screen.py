"""A diagnosis on one screen: why it matters, the verdict, the numbers, the strategies, the code to paste."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from steadyrl.common.tables import add_row, columns, two_columns
from steadyrl.common.terminal import clean_code, clean_line, styled
from steadyrl.diagnosis import wording
from steadyrl.diagnosis.result import Diagnosis

_SHOWN = 4  # strategies on the screen; the report and --json have all


def print_diagnosis(found: Diagnosis, console: Console, *, paper: bool = False) -> None:
    """Print a diagnosis on one screen.

    Args:
        found: The diagnosis.
        console: Where to print it.
        paper: Whether to add the paper's numbers (E[T], perturbation, epsilon) and strategies.
    """
    console.print(styled(wording.WHY, "dim"))
    console.print(styled(clean_line(wording.verdict(found)), "bold"))
    if found.selection:
        console.print(clean_line(found.selection))
    console.print()
    console.print(two_columns(wording.rows(found) + (wording.paper_rows(found) if paper and found.enough else [])))
    if found.enough:
        console.print()
        _print_strategies(found, console, paper=paper)
        console.print()
    for i, line in enumerate(found.code.splitlines()):
        console.print(Text.assemble(("  " if i else "do", "bold green"), "  ", clean_code(line)), soft_wrap=True)
    if wording.in_sb3(found):
        console.print(styled(f"    {wording.in_sb3(found)}", "dim"), soft_wrap=True)
    for warning in found.warnings:
        console.print(Text.assemble(("warning: ", "bold yellow"), clean_line(warning)), soft_wrap=True)
    if wording.is_random(found):
        console.print(styled(wording.POLICY_HINT, "dim"), soft_wrap=True)


def _print_strategies(found: Diagnosis, console: Console, *, paper: bool) -> None:
    table = columns(
        ("fair after; thrown away once, always (in mean lengths)", "fair", "once", "always"), numbers_from=1, gap=1
    )
    for way in wording.strategies(found, paper=paper)[: _SHOWN + 2 * paper]:
        chosen = way is found.recommendation.chosen
        cells = wording.strategy_cells(found, way)
        add_row(table, ("> " if chosen else "  ") + way.title, *cells, style="bold" if chosen else "")
    console.print(table)
    console.print(styled(wording.RANKING, "dim"))
