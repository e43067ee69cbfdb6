"""How a training run goes: a live bar on a terminal, a line a minute elsewhere, TensorBoard beside."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TextIO

LINE_EVERY = 60.0
"""Seconds between two plain lines."""
BAR_EVERY = 0.2


class Display(Protocol):
    """Somebody who wants to know."""

    def begin(self, total: int, done: int, unit: str) -> None:
        """Training begins, or goes on."""

    def advance(self, done: int, steps: int, shown: Mapping[str, float]) -> None:
        """An update is finished."""

    def note(self, text: str) -> None:
        """Something worth telling happened."""

    def end(self) -> None:
        """Training is over, one way or another."""


def words(shown: Mapping[str, float], rate: float) -> str:
    """Return what there is to say, in one line."""
    distance = shown["phase_distance"]
    phase = f"{distance:.3f}" if math.isfinite(distance) else "?"
    return (
        f"return {shown['return']:.4g}  E[T] {shown['average_episode_length']:.4g}  phase distance {phase}  "
        f"{rate:,.0f} steps/s"
    )


class Nobody:
    """Nobody wants to know."""

    def begin(self, total: int, done: int, unit: str) -> None:
        """Training begins."""

    def advance(self, done: int, steps: int, shown: Mapping[str, float]) -> None:
        """An update is finished."""

    def note(self, text: str) -> None:
        """Something happened."""

    def end(self) -> None:
        """Training is over."""


class Lines:
    """A line a minute, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total, self._unit, self._last = 0, "", ""
        self._rate = _Rate()
        self._said = 0.0

    def begin(self, total: int, done: int, unit: str) -> None:
        """Training begins."""
        self._total, self._unit, self._said = total, unit, time.monotonic()

    def advance(self, done: int, steps: int, shown: Mapping[str, float]) -> None:
        """Say it, if a minute has passed."""
        rate = self._rate.add(steps)
        self._last = f"{done:,}/{self._total:,} {self._unit}  {words(shown, rate)}"
        if time.monotonic() - self._said >= LINE_EVERY:
            self._said = time.monotonic()
            self.note(self._last)
            self._last = ""

    def note(self, text: str) -> None:
        """Say it."""
        print(text, file=self._stream, flush=True)

    def end(self) -> None:
        """Say the last line."""
        if self._last:
            self.note(self._last)


class Bar:
    """A live bar, by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._rate = _Rate()
        self._shown = 0.0
        self._last: dict[str, Any] = {}
        self._bar = Progress(
            BarColumn(10),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(file=stream),
        )
        self._task: Any = None

    def begin(self, total: int, done: int, unit: str) -> None:
        """Training begins."""
        self._bar.start()
        self._task = self._bar.add_task(unit, total=total, completed=done)

    def advance(self, done: int, steps: int, shown: Mapping[str, float]) -> None:
        """Redraw, a few times a second."""
        self._last = {"completed": done, "description": words(shown, self._rate.add(steps))}
        if time.monotonic() - self._shown >= BAR_EVERY:
            self._shown = time.monotonic()
            self._bar.update(self._task, **self._last)

    def note(self, text: str) -> None:
        """Say it above the bar."""
        self._bar.console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        """Leave the bar as the last update has it."""
        if self._task is not None:
            self._bar.update(self._task, **self._last)
        self._bar.stop()


class _Rate:
    """Steps per second since the beginning of this run."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._first = 0

    def add(self, steps: int) -> float:
        if self._begun is None:
            self._begun, self._first = time.monotonic(), steps
            return 0.0
        return (steps - self._first) / max(time.monotonic() - self._begun, 1e-9)


def display_for(progress: bool | TextIO) -> Display:
    """Return a bar if the stream (standard error) is a terminal, lines if not, nobody for False."""
    if progress is False:
        return Nobody()
    stream = sys.stderr if progress is True else progress
    return Bar(stream) if stream.isatty() else Lines(stream)


def tensorboard_for(out: Path | None, resumed_at: int | None) -> Any:
    """Return a writer of TensorBoard's files, or None without a directory or without TensorBoard.

    What a killed run had shown past the step at which it is resumed is taken back.
    """
    if out is None or find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(out / "tensorboard"), purge_step=None if resumed_at is None else resumed_at + 1)
