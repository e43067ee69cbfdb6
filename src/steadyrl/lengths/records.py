"""What is known of a set of complete episodes, wherever they come from: a collection, a log, a saved file."""

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
    """Episodes of one environment and policy, as a diagnosis needs them."""

    environment: str
    policy: str
    lengths: NDArray[np.int64]
    """Actions in each episode, as Gymnasium counts them."""
    truncated: NDArray[np.bool_]
    """Whether a time limit ended the episode; all False where it is not known."""
    groups: tuple[AgeSums, ...] = ()
    """Sums at each age for groups of episodes, whose scatter gives error bands."""
    streams: Array | None = None
    """[copies, steps, d]: consecutive episodes, terminal states included."""
    time_limit: int | None = None
    skipped: int = 0
    first_failure: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
