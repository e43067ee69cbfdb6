"""Running mean and deviation of observations, which are part of the policy; they change between updates only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.policies.networks import Normalisation

Array = NDArray[np.float64]

_KNOWN = 10_000.0  # observations that the normalisation of a trained policy counts for
_SMALLEST = 1e-4  # deviation below which a value counts as constant


class Normaliser:
    """Mean and variance of all observations so far, added batch by batch (Chan's update)."""

    def __init__(self, size: int, known: Normalisation | None = None) -> None:
        self.count = 0.0 if known is None else _KNOWN
        self.mean = np.zeros(size) if known is None else known.mean.copy()
        self._squares = np.zeros(size) if known is None else np.square(known.std) * _KNOWN

    @property
    def std(self) -> Array:
        """The standard deviation of each value."""
        return np.maximum(np.sqrt(self._squares / max(self.count, 1.0)), _SMALLEST)

    def add(self, observations: Array) -> None:
        """Add [B, d]."""
        n = len(observations)
        mean = observations.mean(axis=0)
        gap = mean - self.mean
        total = self.count + n
        self._squares += np.square(observations - mean).sum(axis=0) + gap**2 * (self.count * n / total)
        self.mean = self.mean + gap * (n / total)
        self.count = total

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"count": np.float64(self.count), "mean": self.mean, "squares": self._squares}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.count = float(state["count"])
        self.mean, self._squares = np.array(state["mean"], dtype=float), np.array(state["squares"], dtype=float)
