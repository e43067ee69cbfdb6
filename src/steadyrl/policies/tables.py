"""Tabular policies: one row of action probabilities for each state of a finite process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import as_numbers, check_rng
from steadyrl.errors import PolicyError
from steadyrl.policies.networks import require_rows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TabularPolicy:
    """A policy [S, A] of a finite process, for environments with Discrete observations."""

    cumulative: Array
    start: int = 0
    """The number of the first action."""

    @classmethod
    def of(cls, probabilities: Any) -> TabularPolicy:
        """Return the policy with these rows of probabilities."""
        table = as_numbers("policy [S, A]", probabilities, PolicyError)
        if table.ndim != 2 or not table.size or not (table >= 0).all() or np.abs(table.sum(axis=1) - 1).max() > 1e-9:
            raise PolicyError(
                f"a policy array must be [S, A] with rows of probabilities that sum to one; got shape {table.shape}, "
                f"entries from {table.min(initial=np.inf):g} to {table.max(initial=-np.inf):g}, row sums "
                f"{np.unique(table.sum(axis=-1)).tolist()[:3]}"
            )
        edges = np.cumsum(table, axis=1)
        return cls(edges / edges[:, -1:])

    def likeliest(self) -> TabularPolicy:
        """Return the deterministic policy that takes the most likely action, and the first of several such actions."""
        probabilities = np.diff(self.cumulative, axis=1, prepend=0.0).round(12)
        return replace(self, cumulative=np.cumsum(np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)], axis=1))

    def act(self, observations: Array, rng: np.random.Generator) -> Any:
        """Return one action for each observation."""
        n = len(self.cumulative)
        require_rows(observations, n, f"a unit vector for each state, np.eye({n})[states]")
        edges = self.cumulative[observations.argmax(axis=1)]
        return (check_rng(rng, PolicyError).random(len(observations))[:, None] >= edges).sum(axis=1) + self.start
