"""Progress of a run: a live bar on a terminal, a plain line from time to time elsewhere, nothing in a library call.

A run calls `begin(total, unit)`, then `advance(finished, text)` whenever more units are finished, `note(text)` for a
line of its own, and `end()`.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from steadyrl.common.checks import shown
from steadyrl.common.terminal import clean
from steadyrl.errors import SteadyrlError

LINE_EVERY = 10.0
"""Seconds between two plain lines, and before the first one."""

BAR_EVERY = 0.2
"""Seconds between two drawings of the bar."""


class Progress(Protocol):
    """Shows how a run goes."""

    def begin(self, total: int, unit: str, done: int = 0) -> None:
        """Show that a run of `total` units begins, or goes on if some are done already."""

    def advance(self, finished: int, text: str = "") -> None:
        """Show that `finished` more units are done, and the latest text about the run."""

    def note(self, text: str) -> None:
        """Show a line of its own."""

    def end(self) -> None:
        """Show the last state of the run, however it ended."""


class Silent:
    """Shows nothing."""

    def begin(self, total: int, unit: str, done: int = 0) -> None:
        """Show nothing."""

    def advance(self, finished: int, text: str = "") -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""


class Lines:
    """Prints a plain line every ten seconds and at the end, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._done = self._total = 0
        self._unit = self._text = ""
        self._said = 0.0
        self._news = False

    def begin(self, total: int, unit: str, done: int = 0) -> None:
        """Remember what is counted; the first line comes after ten seconds."""
        self._total, self._unit, self._done, self._text = total, unit, done, ""
        self._said, self._news = time.monotonic(), True

    def advance(self, finished: int, text: str = "") -> None:
        """Count, and print a line if the last one is ten seconds old."""
        self._done += finished
        self._text, self._news = text, True
        if time.monotonic() - self._said >= LINE_EVERY:
            self._say()

    def note(self, text: str) -> None:
        """Print a line. One that cannot be written (a full disk, a closed file) is lost, and the run goes on."""
        try:
            print(clean(text), file=self._stream, flush=True)
        except BrokenPipeError:
            raise
        except (OSError, ValueError):
            return

    def end(self) -> None:
        """Print the last line, unless it has been printed."""
        if self._news and self._unit:
            self._say()

    def _say(self) -> None:
        self._said, self._news = time.monotonic(), False
        self.note(f"{self._done:,}/{self._total:,} {self._unit}  {self._text}".rstrip())


class Bar:
    """Draws a live bar, by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.fields[count]}", markup=False),
            BarColumn(10),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(),
            console=Console(file=stream, markup=False, emoji=False, highlight=False),
        )
        self._task: Any = None
        self._done = self._total = 0
        self._unit = self._text = ""
        self._drawn = 0.0

    def begin(self, total: int, unit: str, done: int = 0) -> None:
        """Draw the bar."""
        self._total, self._unit, self._done = total, unit, done
        self._bar.start()
        self._task = self._bar.add_task(unit, total=total, completed=done, count=self._count(), text="")

    def advance(self, finished: int, text: str = "") -> None:
        """Count, and redraw a few times a second."""
        self._done += finished
        self._text = clean(text)
        if time.monotonic() - self._drawn >= BAR_EVERY:
            self._draw()

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(clean(text))

    def end(self) -> None:
        """Draw the last state, and leave it."""
        if self._task is not None:
            self._draw()
        self._bar.stop()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._bar.update(self._task, completed=self._done, count=self._count(), text=self._text)

    def _count(self) -> str:
        return f"{self._done:,}/{self._total:,} {self._unit}"


class Rate:
    """Steps per second since the first call."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._steps = 0

    def add(self, steps: int) -> float:
        """Count further steps and return the rate."""
        self._steps += steps
        return self._steps / max(time.monotonic() - self._begun, 1e-9)


class MeanLength:
    """The running mean of episode lengths, with its 95% confidence interval."""

    def __init__(self) -> None:
        self.count, self._sum, self._squares = 0, 0, 0

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Add Gymnasium's lengths; the sums are of whole numbers, so they are exact."""
        self.count += len(lengths)
        self._sum += int(lengths.sum())
        self._squares += int((lengths * lengths).sum())

    def __str__(self) -> str:
        if self.count < 2:
            return "mean episode length ?"
        mean = self._sum / self.count
        variance = max(self._squares - self.count * mean * mean, 0.0) / (self.count - 1)
        reach = float(stdtrit(self.count - 1, 0.975)) * math.sqrt(variance / self.count)
        return f"mean episode length {mean:.2f} ± {reach:.2f}"


def progress_for(stream: TextIO | bool | None = None) -> Progress:
    """Return a live bar if the stream is a terminal and plain lines if not; True and None mean standard error.

    For False, nothing is shown.
    """
    if stream is False:
        return Silent()
    target = sys.stderr if stream is None or stream is True else stream
    if target is None:  # a program without standard error
        return Silent()
    if not callable(getattr(target, "write", None)):
        raise SteadyrlError(f"progress is {shown(stream)}; it must be True, False, or a stream to write to")
    try:
        terminal = callable(getattr(target, "isatty", None)) and target.isatty()
    except ValueError:  # the stream is closed
        return Silent()
    return Bar(target) if terminal else Lines(target)
