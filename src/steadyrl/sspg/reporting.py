"""What a training run shows while it goes: a line of text for the progress bar, and TensorBoard's scalars."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

COLUMNS = (
    "update",
    "steps",
    "return",
    "average_episode_length",
    "phase_distance",
    "entropy",
    "gradient_norm",
    "critic_loss",
)
"""The columns of a run's history."""
TENSORBOARD_EVERY = 0.5
"""Seconds between two updates that are shown in TensorBoard; the last one always is."""


def words(shown: Mapping[str, float], rate: float) -> str:
    """Return the numbers of an update in one line; episode lengths are Gymnasium's, without the reset."""
    distance = shown["phase_distance"]
    phase = f"{distance:.3f}" if math.isfinite(distance) else "?"
    return (
        f"return {shown['return']:.4g}  mean episode length {shown['average_episode_length'] - 1:.4g}  "
        f"phase distance {phase}  {rate:,.0f} steps/s"
    )


class TensorBoard:
    """Writes scalars into the run's directory; does nothing without a directory, or without TensorBoard.

    Where its files cannot be written, that is said once and training goes on without them: all their numbers are in
    the history, too.

    Args:
        out: the run's directory.
        resumed_at: the step at which the run is resumed; what a killed run had written past it is taken back.
        note: function that is called with what is to be said.
    """

    def __init__(self, out: Path | None, resumed_at: int | None, note: Callable[[str], None]) -> None:
        self._writer: Any = None
        self._written = time.monotonic()
        self._note = note
        if out is not None and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._folder = str(out / "tensorboard")
            self._hook, threading.excepthook = threading.excepthook, self._without_its_own
            purge = None if resumed_at is None else resumed_at + 1
            with self._going_on_without():
                self._writer = SummaryWriter(self._folder, purge_step=purge)

    def add(self, shown: Mapping[str, float], steps: int, *, last: bool) -> None:
        """Write the numbers of an update, at most twice a second."""
        if self._writer is None or not (last or time.monotonic() - self._written >= TENSORBOARD_EVERY):
            return
        self._written = time.monotonic()
        with self._going_on_without():
            for name in COLUMNS[2:]:
                if math.isfinite(shown[name]):
                    self._writer.add_scalar(name, shown[name], steps)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            with self._going_on_without():
                self._writer.close()
        if threading.excepthook == self._without_its_own:
            threading.excepthook = self._hook

    @contextmanager
    def _going_on_without(self) -> Iterator[None]:
        """Say so and write no more if a file cannot be written: a full disk is met again at the next checkpoint."""
        try:
            yield
        except (OSError, UnicodeError) as error:  # TensorBoard wants names in UTF-8
            self._writer = None
            reason = getattr(error, "strerror", None) or str(error)
            self._note(f"{self._folder!r} cannot be written ({reason}); training goes on without TensorBoard's files")

    def _without_its_own(self, problem: Any) -> None:
        """Report what went wrong in a thread, but for TensorBoard's: that is raised again by its writer."""
        if not type(problem.thread).__module__.startswith("tensorboard."):
            self._hook(problem)
