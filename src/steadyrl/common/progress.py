"""Progress of a run: a live bar on a terminal, plain lines elsewhere, silence in a library call."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

LINE_EVERY = 5.0
"""Seconds between two plain lines."""


class Progress(Protocol):
    """Somebody who wants to know how a run goes."""

    def begin(self, total: int, unit: str) -> None:
        """A run begins."""

    def advance(self, finished: int, lengths: NDArray[np.int64], steps: int) -> None:
        """So many more are finished; `lengths` are those of whole episodes, in order and thus unbiased."""

    def note(self, text: str) -> None:
        """Something worth telling happened."""

    def end(self) -> None:
        """The run is over, one way or another."""


class Silent:
    """Nobody wants to know."""

    def begin(self, total: int, unit: str) -> None:
        """A run begins."""

    def advance(self, finished: int, lengths: NDArray[np.int64], steps: int) -> None:
        """So many more are finished."""

    def note(self, text: str) -> None:
        """Something happened."""

    def end(self) -> None:
        """The run is over."""


class RunningLength:
    """The running estimate of E[T], with its 95% confidence interval."""

    def __init__(self) -> None:
        self.count, self._sum, self._squares = 0, 0, 0

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Add Gymnasium's lengths; sums of whole numbers, so exact."""
        self.count += len(lengths)
        self._sum += int(lengths.sum())
        self._squares += int((lengths * lengths).sum())

    def __str__(self) -> str:
        if self.count < 2:
            return "E[T] ?"
        mean = self._sum / self.count
        variance = max(self._squares - self.count * mean * mean, 0.0) / (self.count - 1)
        reach = float(stdtrit(self.count - 1, 0.975)) * math.sqrt(variance / self.count)
        return f"E[T] {mean + 1:.2f} ± {reach:.2f}"


class Lines:
    """Plain lines, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._running = RunningLength()
        self._done = self._steps = self._total = 0
        self._unit = ""
        self._begun = self._said = 0.0

    def begin(self, total: int, unit: str) -> None:
        """A run begins."""
        self._total, self._unit = total, unit
        self._begun = self._said = time.monotonic()

    def advance(self, finished: int, lengths: NDArray[np.int64], steps: int) -> None:
        """So many more are finished."""
        self._done += finished
        self._steps += steps
        self._running.add(lengths)
        if time.monotonic() - self._said >= LINE_EVERY:
            self._say()

    def note(self, text: str) -> None:
        """Something happened."""
        print(text, file=self._stream, flush=True)

    def end(self) -> None:
        """The run is over."""
        self._say()

    def _say(self) -> None:
        self._said = time.monotonic()
        rate = self._steps / max(self._said - self._begun, 1e-9)
        self.note(f"{self._done:,}/{self._total:,} {self._unit}  {rate:,.0f} steps/s  {self._running} (95%)")


class Bar:
    """A live bar, by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._running = RunningLength()
        self._steps, self._begun = 0, 0.0
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[running]}"),
            TimeRemainingColumn(),
            console=Console(file=stream),
        )
        self._task: Any = None

    def begin(self, total: int, unit: str) -> None:
        """A run begins."""
        self._begun = time.monotonic()
        self._bar.start()
        self._task = self._bar.add_task(unit, total=total, rate="", running="")

    def advance(self, finished: int, lengths: NDArray[np.int64], steps: int) -> None:
        """So many more are finished."""
        self._steps += steps
        self._running.add(lengths)
        rate = self._steps / max(time.monotonic() - self._begun, 1e-9)
        fields: dict[str, Any] = {"rate": f"{rate:,.0f} steps/s", "running": f"{self._running} (95%)"}
        self._bar.update(self._task, advance=finished, **fields)

    def note(self, text: str) -> None:
        """Something happened."""
        self._bar.console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        """The run is over."""
        self._bar.stop()


def progress_for(stream: TextIO | None = None) -> Progress:
    """Return a live bar if the stream (standard error) is a terminal, plain lines if not."""
    stream = sys.stderr if stream is None else stream
    return Bar(stream) if stream.isatty() else Lines(stream)
