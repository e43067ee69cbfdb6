"""A set of complete episodes as a diagnosis needs it, from a collection, a training log or a saved file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.lengths.age_sums import AgeSums

Array = NDArray[np.float64]


@dataclass(frozen=True)
class EpisodeRecords:
    """Complete episodes of one environment and policy."""

    environment: str
    """Name of the environment, or of the file if the environment is unknown."""
    policy: str
    """Name of the policy; "unknown" if the source does not say."""
    lengths: NDArray[np.int64]
    """Number of actions in each episode, as Gymnasium counts them."""
    truncated: NDArray[np.bool_]
    """Whether a time limit ended the episode; all False where it is not known."""
    groups: tuple[AgeSums, ...] = ()
    """Sums by age for groups of episodes; the scatter between groups gives error bands."""
    streams: Array | None = None
    """[num_envs, steps, d]: observations of consecutive episodes, terminal states included."""
    time_limit: int | None = None
    """The environment's time limit in actions; None if there is none, or it is unknown."""
    skipped: int = 0
    """Number of episodes that failed and were left out."""
    first_failure: str = ""
    """Error message of the first episode that failed."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
