"""What an update is made from: a batch of states and actions at steady state, and who draws it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steadyrl.policies.modules import NetworkModule
from steadyrl.sspg.measured_baseline import Line, MeasuredBaseline

Array = NDArray[np.float64]


class Batch(Protocol):
    """States at steady state, the actions taken in them, and what they say about the policy."""

    @property
    def observations(self) -> Array:
        """Observations of all states, [S, d], those included that only end returns."""

    @property
    def ages(self) -> NDArray[np.int64]:
        """Ages of all states, [S]."""

    @property
    def acted(self) -> Any:
        """Rows of the states whose action counts, [B]: neither null nor terminal."""

    @property
    def actions(self) -> Any:
        """Actions taken in them, [B, ...]."""

    @property
    def visited(self) -> int:
        """Number of states, the first ones, that the normalisation of observations counts."""

    @property
    def bootstrapped(self) -> bool:
        """Whether returns end with the critic's predictions."""

    @property
    def average_episode_length(self) -> float:
        """E[T]."""

    @property
    def mean_return(self) -> float:
        """J_epi."""

    @property
    def phase_distance(self) -> float:
        """Total variation between the ages and the stationary ones."""

    @property
    def steps(self) -> int:
        """Environment steps that the batch took."""

    def returns(self, values: Array) -> tuple[Array, Array]:
        """Return Q(s, a) and the advantages A(s, a), [B] each, given V of all states, [S]."""

    def line(self, baseline: MeasuredBaseline, time_left: Array, returns: Array) -> Line | None:
        """Return the critic's measured line as of this batch."""


class Sampler(Protocol):
    """A way to draw batches."""

    about: str
    """One sentence on where the batches come from."""

    def draw(self, policy: NetworkModule, update: int) -> Batch:
        """Draw the batch of an update."""

    def header(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as JSON."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as arrays."""

    def restore(self, arrays: dict[str, Any], header: dict[str, Any]) -> None:
        """Go on from a checkpoint."""

    def close(self) -> None:
        """Close the environments."""
