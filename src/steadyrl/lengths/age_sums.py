"""Sums of the observation at each age of an episode, which are all that marginal means at every time need.

The states of an episode have ages k = 1, ..., T, the terminal one included. Sums of the observation and of its square
at each age take memory that grows with the longest episode, not with the number of episodes. Sums of groups of episodes
are added, split and merged here; their scatter gives standard errors (`moments`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from steadyrl.common.values import hash_values, same_values
from steadyrl.errors import LengthsError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AgeSums:
    """Sums over episodes of the flattened observation at each age; entry k - 1 is age k.

    Example:
        >>> two, three = AgeSums.split(np.array([1, 2]), np.ones((5, 1)), 2)  # episodes of one and of two actions
        >>> (two + three).count.tolist(), (two + three).mean.ravel().tolist()
        ([2, 2, 1], [1.0, 1.0, 1.0])
    """

    count: NDArray[np.int64]
    """[ages]: number of episodes with T >= k."""
    total: Array
    """[ages, d]: sum of the observation."""
    total_squares: Array
    """[ages, d]: sum of the squared observation."""

    @classmethod
    def empty(cls, dimensions: int) -> AgeSums:
        """Return the sums over no episodes."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros((0, dimensions)), np.zeros((0, dimensions)))

    @classmethod
    def split(cls, lengths: NDArray[np.int64], observations: Array, groups: int) -> Iterator[AgeSums]:
        """Yield the sums of consecutive groups of episodes, whose sizes are as equal as possible.

        Args:
            lengths: Gymnasium's length l of each episode.
            observations: [sum of l + 1, d]: observations of all episodes, one episode after the other.
            groups: Number of groups; with fewer episodes than that, each episode is a group.
        """
        ends = np.concatenate([[0], np.cumsum(lengths + 1)])
        for part in np.array_split(np.arange(len(lengths)), min(groups, len(lengths))):
            rows = observations[ends[part[0]] : ends[part[-1] + 1]]
            ages = np.concatenate([np.arange(lengths[i] + 1) for i in part])
            adds = sp.csr_array((np.ones(len(ages)), (ages, np.arange(len(ages)))))
            yield cls(count_ages(lengths[part]), adds @ rows, adds @ rows**2)

    @classmethod
    def merge(cls, groups: Sequence[AgeSums]) -> AgeSums:
        """Return the sums over all episodes of several groups."""
        require_alike(groups)
        n = max(len(group.count) for group in groups)
        merged = cls(
            np.zeros(n, dtype=np.int64), np.zeros((n, groups[0].dimensions)), np.zeros((n, groups[0].dimensions))
        )
        for group in groups:
            merged._add(group)
        return merged

    @classmethod
    def coarsen(cls, groups: Sequence[AgeSums], most: int = 32) -> list[AgeSums]:
        """Return at most `most` groups, merged from neighbouring ones; more hardly improve standard errors."""
        parts = np.array_split(np.arange(len(groups)), min(most, len(groups)))
        return [cls.merge([groups[i] for i in part]) for part in parts]

    def __add__(self, other: AgeSums) -> AgeSums:
        if not isinstance(other, AgeSums):
            return NotImplemented
        return self.merge([self, other])

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        episodes = int(self.count[0]) if len(self.count) else 0
        return f"AgeSums(episodes={episodes}, longest={len(self.count)}, dimensions={self.dimensions})"

    @property
    def dimensions(self) -> int:
        """Number of values in the flattened observation."""
        return int(self.total.shape[1])

    @property
    def mean(self) -> Array:
        """[ages, d]: E[s_k | T >= k]."""
        return self.total / self.count[:, None]

    @property
    def second_moment(self) -> Array:
        """[ages, d]: E[s_k^2 | T >= k] of each value."""
        return self.total_squares / self.count[:, None]

    def select(self, dimensions: Any) -> AgeSums:
        """Return the sums of some dimensions of the observation, given by their indices or a slice."""
        return AgeSums(self.count, self.total[:, dimensions], self.total_squares[:, dimensions])

    def require_sums_of(self, lengths: NDArray[np.int64]) -> None:
        """Raise ValueError unless these can be the sums over episodes of Gymnasium's lengths `lengths`."""
        longest = int(lengths.max()) + 1 if len(lengths) else 0
        total, squares = self.total, self.total_squares
        if not (total.ndim == 2 and len(total) == longest and total.shape == squares.shape):
            raise ValueError("the sums at each age do not fit the lengths")
        if not (self.count.dtype.kind in "iu" and np.array_equal(self.count, count_ages(lengths))):
            raise ValueError("the numbers of episodes at each age do not fit the lengths")
        if not (total.dtype.kind == squares.dtype.kind == "f") or np.isnan(total).any() or not (squares >= 0).all():
            raise ValueError("the sums at each age are not numbers, or those of squares are negative")

    def _add(self, other: AgeSums) -> None:
        """Add sums that reach no greater age, in place; only `merge` does, to arrays of its own."""
        ages = len(other.count)
        for name in _COLUMNS:
            getattr(self, name)[:ages] += getattr(other, name)


_COLUMNS = ("count", "total", "total_squares")


def require_alike(groups: Sequence[object]) -> None:
    """Raise LengthsError unless these are sums of observations of one width, at least one."""
    if not groups:
        raise LengthsError("there are no groups of sums; give at least one AgeSums")
    for group in groups:
        if not isinstance(group, AgeSums):
            raise LengthsError(
                f"sums is {type(group).__name__}; give AgeSums, such as Episodes.ages, or a list of them"
            )
    widths = sorted({group.dimensions for group in groups if isinstance(group, AgeSums)})
    if len(widths) > 1:
        raise LengthsError(
            f"the groups are of observations of {' and '.join(map(str, widths))} values; only sums of one environment "
            "can be put together"
        )


def count_ages(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many episodes reach each age k = 1, 2, ...: those with l + 1 >= k."""
    ends = np.bincount(lengths + 1)
    at_least: NDArray[np.int64] = ends[::-1].cumsum()[::-1]
    return at_least[1:]
