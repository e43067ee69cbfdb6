"""Tables on the screen: names with values, and columns under headings. Text is cleaned, styles are rich `Text`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from steadyrl.common.terminal import clean

if TYPE_CHECKING:
    from rich.table import Table


def two_columns(rows: Iterable[tuple[str, Any]]) -> Table:
    """Return a table of names, in bold, and their values."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(clean(name), _cell(value))
    return table


def columns(headings: Sequence[str], *, numbers_from: int | None = None, gap: int = 2) -> Table:
    """Return an empty table with headings; columns from `numbers_from` on are aligned to the right."""
    from rich.table import Table

    table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim")
    for i, heading in enumerate(headings):
        right = numbers_from is not None and i >= numbers_from
        table.add_column(heading, justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table


def add_row(table: Table, *cells: Any, style: str = "") -> None:
    """Add a row whose cells are cleaned."""
    table.add_row(*map(_cell, cells), style=style)


def _cell(value: Any) -> Any:
    return clean(value) if isinstance(value, str) else value
