"""Running mean and deviation of observations, which are part of the policy; they change between updates only."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd
from numpy.typing import NDArray

from steadyrl.policies.networks import Normalisation
from steadyrl.sspg.checkpoints import require_numbers

Array = NDArray[np.float64]

_KNOWN = 10_000.0  # observations that the normalisation of a trained policy counts for
_SMALLEST = 1e-4  # deviation below which a value counts as constant


class Normaliser:
    """Mean and deviation of all observations so far, by Gymnasium's RunningMeanStd.

    It differs from Gymnasium's wrapper in where it starts: with nothing instead of a ten-thousandth of an observation,
    or with the normalisation of a trained policy; and in that deviations are bounded below instead of variances.
    """

    def __init__(self, size: int, known: Normalisation | None = None) -> None:
        self._running: Any = RunningMeanStd(epsilon=0.0 if known is None else _KNOWN, shape=(size,))  # type: ignore[no-untyped-call]
        if known is not None:
            self._running.mean, self._running.var = known.mean.copy(), np.square(known.std)

    @property
    def mean(self) -> Array:
        """The mean of each value."""
        return np.asarray(self._running.mean)

    @property
    def std(self) -> Array:
        """The standard deviation of each value."""
        deviations: Array = np.maximum(np.sqrt(self._running.var), _SMALLEST)
        return deviations

    def add(self, observations: Array) -> None:
        """Add [B, d]."""
        self._running.update(observations)

    def state(self) -> dict[str, Any]:
        """Return the arrays that a checkpoint keeps."""
        running = self._running
        return {"count": np.float64(running.count), "mean": running.mean, "variance": running.var}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the arrays of a checkpoint."""
        require_numbers(state["count"], shape=(), least=0.0)
        require_numbers(state["mean"], shape=self._running.mean.shape)
        require_numbers(state["variance"], shape=self._running.var.shape, least=0.0)
        self._running.count = float(state["count"])
        self._running.mean, self._running.var = (np.array(state[name], dtype=float) for name in ("mean", "variance"))
