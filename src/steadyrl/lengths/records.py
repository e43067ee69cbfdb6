"""A set of complete episodes as a diagnosis needs it, from a collection, a training log or a saved file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import whole_number
from steadyrl.errors import LengthsError
from steadyrl.lengths.age_sums import AgeSums

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LoggedLengths:
    """Lengths as one file states them, before they are checked."""

    lengths: NDArray[Any]
    """Number of actions in each episode, in the order of the file."""
    environment: str | None = None
    """The environment that the file names, if it names one."""
    ended: Array | None = None
    """Time at which each episode ended, in seconds since the epoch, if the file tells."""
    sb3: bool = False
    """Whether Stable-Baselines3 wrote the file."""
    ordered: bool = True
    """Whether the file lists episodes in the order in which they ended; False if it is sorted by length."""


@dataclass(frozen=True, eq=False)
class EpisodeRecords:
    """Complete episodes of one environment and policy."""

    environment: str
    """Name of the environment, or of the file if the environment is unknown."""
    policy: str
    """Name of the policy; "unknown" if the source does not say."""
    lengths: NDArray[np.int64]
    """Number of actions in each episode, as Gymnasium counts them."""
    truncated: NDArray[np.bool_] | None = None
    """Whether a time limit ended each episode; None if the source does not say, as with most logs."""
    groups: tuple[AgeSums, ...] = ()
    """Sums by age for groups of episodes; the scatter between groups gives error bands."""
    streams: Array | None = None
    """[num_envs, steps, d]: observations of consecutive episodes, terminal states included."""
    aged: tuple[Array, NDArray[np.int64], NDArray[np.int64]] | None = None
    """A fair sample of steps: their observations [n, d], ages (1 for the first of an episode) and episodes."""
    not_aged: str = ""
    """Why there is no such sample; empty if there is, or if nobody looked."""
    time_limit: int | None = None
    """The environment's time limit in actions; None if there is none, or it is unknown."""
    skipped: int = 0
    """Number of episodes that failed and were left out."""
    first_failure: str = ""
    """Error message of the first episode that failed."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the episodes come from: environment, policy, seed, versions."""
    runs: tuple[int, ...] = ()
    """Numbers of episodes in the runs that follow each other in `lengths`. Those of a run are in the order in which
    they ended while a policy may have been learning, as in a training log, so that a drift can be looked for
    (`find_drift`). Empty if there is none to be looked for."""
    sorted: bool = False
    """Whether `lengths` are sorted, so that none are the latest."""
    sb3: bool = False
    """Whether the episodes are those of Stable-Baselines3: its logs, or one of its models."""
    files: tuple[str, ...] = ()
    """The files that were read."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        known = "unknown" if self.truncated_share is None else f"{self.truncated_share:.3g}"
        mean = f"{self.lengths.mean():.4g}" if len(self.lengths) else "nan"
        return f"EpisodeRecords({self.environment!r}, episodes={len(self)}, mean length={mean}, truncated={known})"

    @property
    def truncated_share(self) -> float | None:
        """Share of episodes that a time limit ended; None if the source does not say."""
        if self.truncated is None or not len(self.truncated):
            return None
        return float(self.truncated.mean())

    @property
    def ordered(self) -> bool:
        """Whether all `lengths` are in the order in which the episodes ended."""
        return len(self.runs) == 1

    def last(self, episodes: int) -> EpisodeRecords:
        """Return only the latest episodes, without sums by age (which cover all); everything if there are no more.

        Several runs are taken to cover the same time, so each gives its latest episodes, in proportion to its size.

        Raises:
            LengthsError: If the lengths are sorted.
        """
        count = whole_number("episodes", episodes, LengthsError)
        if count >= len(self):
            return self
        if self.sorted:
            raise LengthsError(
                f"{', '.join(self.files) or 'this list'} is sorted by length, so its last {count:,} episodes are the "
                "longest, not the latest; give the log itself"
            )
        if len(self.runs) <= 1:
            return self.latest((count,))
        ends = np.rint(np.cumsum(self.runs) * (count / len(self))).astype(np.int64)
        return self.latest(tuple(np.diff(ends, prepend=0).tolist()))

    def latest(self, counts: tuple[int, ...]) -> EpisodeRecords:
        """Return the latest `counts` episodes of each run, without sums by age."""
        runs = self.runs or (len(self),)
        ends = np.cumsum(runs)
        kept = np.concatenate([np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)])
        truncated = None if self.truncated is None else self.truncated[kept]
        return replace(
            self,
            lengths=self.lengths[kept],
            truncated=truncated,
            groups=(),
            streams=None,
            runs=counts if self.runs else (),
        )
