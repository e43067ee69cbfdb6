"""Episode lengths from text and csv files, read in pieces: ten million rows take seconds and little memory.

One length a line, or a table with a header. Columns are separated by commas, semicolons, tabs or spaces. The first line
of a monitor.csv (`#{"t_start": ..., "env_id": ...}`) tells the environment and when recording began. A comment on top
may have the SHA-256 of the lines, as in the files that steadyrl writes; then it is verified.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import is_number, shown
from steadyrl.errors import FileFormatError
from steadyrl.lengths.columns import NAMES, find_column
from steadyrl.lengths.records import LoggedLengths

Array = NDArray[np.float64]

UNORDERED = "shortest first"
"""Words in a comment on the first line of files whose lengths are sorted."""
_DIGEST = re.compile(r", steadyrl sha256 ?(\S*)")  # also a part of one; no comment of another program has these words
_LONGEST_LINE = 1 << 26  # characters; a file without line breaks is a list of numbers at most


def read_text(stream: IO[str], where: str, column: str | int | None) -> LoggedLengths:
    """Return the lengths in a text or csv file.

    Args:
        stream: The open file.
        where: Its name, for error messages.
        column: Name of the column, or its index counted from 0; None finds it by its name.
    """
    comments, first = _opening(stream)
    about = _monitor_header(comments[0]) if comments else {}
    if not first:
        raise FileFormatError(f"{where} holds no lengths")
    second = _next_line(stream)
    delimiter = next((mark for mark in ("\t", ";", ",") if mark in first), None)
    row = _cells(first, delimiter, where)
    header = not _number(row[column] if isinstance(column, int) and 0 <= column < len(row) else row)
    lines = _as_written(chain([first, second] if second else [first], stream), comments, where)
    if not header and not second and column is None:  # all numbers on one line
        list(lines)
        return LoggedLengths(np.array([float(cell) for cell in row]))
    place = _place(row, column, where, header=header)
    clock = next((i for i, name in enumerate(row) if name == "t"), None) if "t_start" in about and header else None
    columns = [place] if clock is None else [place, clock]
    if header and not second:
        raise FileFormatError(f"{where} holds no lengths")
    if header:
        next(lines)
    lines = _closed_quotes(lines, where) if delimiter is None else _whole_rows(lines, delimiter, _filled(row), where)
    found = _numbers(lines, delimiter, columns, where)
    ended = None if clock is None else about["t_start"] + found[:, 1]
    environment = about.get("env_id")
    return LoggedLengths(
        found[:, 0],
        environment=environment if isinstance(environment, str) else None,
        ended=ended,
        sb3="t_start" in about,
        ordered=not any(UNORDERED in comment for comment in comments),
    )


def with_digest(comment: str, lines: Sequence[str]) -> str:
    """Return the text of a file: a comment with the SHA-256 of itself and of the lines, and the lines."""
    digest = sha256("".join(f"{line}\n" for line in (comment, *lines)).encode()).hexdigest()
    return "".join(f"{line}\n" for line in (f"{comment}, steadyrl sha256 {digest}", *lines))


def _as_written(lines: Iterator[str], comments: Sequence[str], where: str) -> Iterator[str]:
    """Return the lines; where a comment has their digest, they raise after the last one if it is not theirs."""
    given = next((found for comment in comments if (found := _DIGEST.search(comment))), None)
    return lines if given is None else _verified(lines, given, where)


def _verified(lines: Iterator[str], given: re.Match[str], where: str) -> Iterator[str]:
    digest = sha256(f"{_DIGEST.sub('', given.string).strip()}\n".encode())
    for line in lines:
        if line.strip():  # blank lines and the kind of line breaks do not matter
            digest.update(f"{line.strip()}\n".encode())
        yield line
    if digest.hexdigest() != given[1]:
        raise FileFormatError(
            f"{where} is damaged, or was edited: its lengths do not have the digest that was written with them; write "
            "it again (diagnose --out), or delete the digest in its first line if it was edited on purpose"
        )


def _opening(stream: IO[str]) -> tuple[list[str], str]:
    """Return the comments at the top of a file, and its first line after them."""
    comments: list[str] = []
    while line := _next_line(stream):
        if not line.startswith("#"):
            return comments, line
        comments.append(line)
    return comments, ""


def _next_line(stream: IO[str]) -> str:
    """Return the next line that is not blank, or an empty string at the end."""
    while line := stream.readline(_LONGEST_LINE):
        if line.strip():
            return line
    return ""


def _monitor_header(comment: str) -> dict[str, Any]:
    try:
        found = json.loads(comment[1:])
    except (ValueError, RecursionError):  # not JSON, or a number of thousands of digits
        return {}
    if not isinstance(found, dict):
        return {}
    start: Any = found.get("t_start")
    if not is_number(start) or not math.isfinite(start):
        found.pop("t_start", None)
    return found


def _cells(line: str, delimiter: str | None, where: str) -> list[str]:
    try:
        cells = line.split() if delimiter is None else next(csv.reader([line], delimiter=delimiter))
    except csv.Error as error:
        raise FileFormatError(f"{where} is not a list of lengths: its first line cannot be read ({error})") from error
    return [cell.strip().strip('"') for cell in cells]


def _number(cells: str | list[str]) -> bool:
    try:
        for cell in [cells] if isinstance(cells, str) else cells:
            float(cell)
    except ValueError:
        return False
    return True


def _place(row: list[str], column: str | int | None, where: str, *, header: bool) -> int:
    if isinstance(column, int):
        if not 0 <= column < len(row):
            given = shown(column)
            raise FileFormatError(f"{where} has {len(row)} columns; column={given} must be from 0 to {len(row) - 1}")
        return column
    if header:
        return find_column(row, column, where)
    if column is not None:
        raise FileFormatError(
            f"{where} has no header, so its columns have no names; give the index of the one with lengths, counted "
            f"from 0, instead of column={shown(column)}"
        )
    if len(row) > 1:
        raise FileFormatError(
            f"{where} has {len(row)} columns and no header, so it cannot be told which column holds the lengths; give "
            "its index, counted from 0 (--column 1, or column=1 in Python, for the second), or add a header line"
        )
    return 0


def _filled(row: list[str]) -> int:
    """Return the number of cells up to the last that is not empty."""
    return max((i for i, cell in enumerate(row, 1) if cell), default=0)


def _whole_rows(lines: Iterator[str], delimiter: str, cells: int, where: str) -> Iterator[str]:
    """Yield the rows, or raise if one has fewer or more cells than the first line: a cut number is another length.

    Empty cells too many do not matter. From a quote on, cells may hold delimiters and line breaks, which become spaces.
    """
    for number, line in enumerate(lines, 1):
        if '"' in line:
            yield from _quoted_rows(chain([line], lines), delimiter, cells, where, number)
            return
        if line.strip():
            _require_whole(line.split(delimiter), cells, where, number)
        yield line


def _quoted_rows(lines: Iterator[str], delimiter: str, cells: int, where: str, first: int) -> Iterator[str]:
    """Yield rows without quotes; a quote that is not closed raises, since it makes all that follows one cell."""
    spaces = str.maketrans(dict.fromkeys(f'{delimiter}"\r\n', " "))
    try:
        for number, row in enumerate(csv.reader(lines, delimiter=delimiter, strict=True), first):
            if "".join(row).strip():
                _require_whole(row, cells, where, number)
                yield delimiter.join(cell.translate(spaces) for cell in row)
    except csv.Error as error:
        raise FileFormatError(
            f"{where} has a quote that is not closed, or a cell that is too long ({error})"
        ) from error


def _require_whole(row: list[str], cells: int, where: str, number: int) -> None:
    if len(row) < cells or "".join(row[cells:]).strip():
        raise FileFormatError(
            f"{where}: row {number:,} has {len(row)} cells, and the first line {cells}, so it was cut, or two rows "
            "ran into one, as when a run is killed while it writes; remove that row"
        )


def _closed_quotes(lines: Iterator[str], where: str) -> Iterator[str]:
    """Yield the rows, or raise if a quote is not closed in its row: numpy would take all that follows for one cell."""
    for number, line in enumerate(lines, 1):
        if line.count('"') % 2:
            raise FileFormatError(f"{where}: row {number:,} has a quote that is not closed; remove that row")
        yield line


def _numbers(lines: Iterable[str], delimiter: str | None, columns: list[int], where: str) -> Array:
    """Return the columns as an array [rows, columns], parsed by numpy in pieces."""
    try:
        found: Array = np.loadtxt(lines, delimiter=delimiter, usecols=columns, comments=None, quotechar='"', ndmin=2)
    except UnicodeDecodeError:
        raise
    except (ValueError, IndexError) as error:
        raise FileFormatError(
            f"{where} is not a list of lengths ({str(error).removesuffix('.')}); give one number a line, or a csv with "
            f"a column named {', '.join(NAMES)}"
        ) from error
    return found
