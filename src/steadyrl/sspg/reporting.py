"""What a training run shows while it goes: a line of text for the progress bar, and TensorBoard's scalars."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
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

    Args:
        out: the run's directory.
        resumed_at: the step at which the run is resumed; what a killed run had written past it is taken back.
    """

    def __init__(self, out: Path | None, resumed_at: int | None) -> None:
        self._writer: Any = None
        self._written = time.monotonic()
        if out is not None and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            purge = None if resumed_at is None else resumed_at + 1
            self._writer = SummaryWriter(str(out / "tensorboard"), purge_step=purge)

    def add(self, shown: Mapping[str, float], steps: int, *, last: bool) -> None:
        """Write the numbers of an update, at most twice a second."""
        if self._writer is None or not (last or time.monotonic() - self._written >= TENSORBOARD_EVERY):
            return
        self._written = time.monotonic()
        for name in COLUMNS[2:]:
            if math.isfinite(shown[name]):
                self._writer.add_scalar(name, shown[name], steps)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
