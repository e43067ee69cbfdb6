"""Drift: whether episode lengths change over a log, and where its latest homogeneous stretch begins.

A log of a whole training mixes the episodes of many policies, and no single distribution of lengths describes them.
Under one fixed policy episodes are independent and identically distributed, so their order carries no information. The
test compares, for every split of the log into an earlier and a later part, the means of several scores of the lengths
in the two parts: the rank (longer or shorter), the distance of the rank from the median (more or less spread), and
whether the length exceeds each of a few quantiles (any other change). The largest standardised difference

    |S_k - (k/n) S_n| / (sigma sqrt(k (n - k) / n)),       S_k the sum of the first k scores,

over all splits and scores is compared with the same statistic of random permutations of the log. Without a drift all
orders are equally likely, so the false-alarm rate is at most the one asked for, whatever the lengths' distribution.

After an alarm the part behind the best split is tested in the same way, until it passes: that is the latest homogeneous
stretch. Long logs are cut into blocks of consecutive episodes, and blocks are permuted.

Several logs that do not belong together are tested at once (the largest difference within any of them, each permuted by
itself), and only then one by one; and they are compared with each other in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import check_level, check_rng
from steadyrl.errors import LengthsError
from steadyrl.lengths.distribution import as_gymnasium_lengths

Array = NDArray[np.float64]

FALSE_ALARMS = 0.01
"""Probability of an alarm if nothing drifts, by default."""
FEWEST = 40
"""Stretches with fewer episodes are not tested."""
_RAREST = 1e-4  # alarms: more seldom ones would take more than 20,000 permutations
_BLOCKS = 1000  # a longer log is cut into as many blocks
_COMPARED = 2000  # episodes of a run that are compared with other runs
_EDGE = 5  # episodes on the shorter side of a split, at least
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Drift:
    """Whether episode lengths drift over a log, and its latest homogeneous stretch."""

    found: bool
    """Whether the distribution of lengths changes over the log."""
    start: int
    """Index of the first episode of the latest homogeneous stretch; 0 if nothing drifts."""
    episodes: int
    """Number of episodes in the log."""
    p_value: float
    """Probability of a difference at least as large without a drift, by permutations: 1/200 at least."""
    false_alarms: float
    """Probability of an alarm if nothing drifts."""
    earlier_mean: float
    """Gymnasium's mean length before the latest stretch; NaN if nothing drifts."""
    latest_mean: float
    """Gymnasium's mean length in the latest stretch."""

    @property
    def latest(self) -> int:
        """Number of episodes in the latest homogeneous stretch."""
        return self.episodes - self.start

    @property
    def message(self) -> str:
        """The finding in one sentence."""
        if not self.found:
            return (
                f"no drift of episode lengths over {self.episodes:,} episodes (false-alarm rate {self.false_alarms:g})"
            )
        return (
            f"episode lengths drift over these {self.episodes:,} episodes: their mean is {self.latest_mean:.4g} in the "
            f"latest {self.latest:,}, which show no drift, and {self.earlier_mean:.4g} before (false-alarm rate "
            f"{self.false_alarms:g})"
        )


def find_drift(
    gymnasium_lengths: ArrayLike, *, false_alarms: float = FALSE_ALARMS, rng: np.random.Generator | None = None
) -> Drift:
    """Test whether episode lengths change over a log, and find its latest homogeneous stretch.

    Args:
        gymnasium_lengths: Episode lengths in the order in which the episodes ended.
        false_alarms: Probability of an alarm if nothing drifts, 0.0001 or more.
        rng: Random generator for the permutations; by default one with a fixed seed, so that the answer is always the
            same.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> log = np.concatenate([rng.integers(15, 25, 300), rng.integers(400, 500, 300)])  # before and after learning
        >>> found = find_drift(log)
        >>> found.found, found.start, find_drift(log[300:]).found
        (True, 300, False)
    """
    lengths = as_gymnasium_lengths(gymnasium_lengths)
    level = check_level(false_alarms, LengthsError)
    if level < _RAREST:
        raise LengthsError(
            f"false_alarms is {level:g}; it must be {_RAREST:g} or more, since it takes 2 / false_alarms permutations "
            "to tell chances that small"
        )
    draw = np.random.default_rng(0) if rng is None else check_rng(rng, LengthsError)
    start, p_value = 0, 1.0
    while len(lengths) - start >= FEWEST:
        p, split = _test(lengths[start:], level, draw)
        if start == 0:
            p_value = p
        if p > level:
            break
        start += split
    earlier = float(lengths[:start].mean()) if start else math.nan
    return Drift(start > 0, start, len(lengths), p_value, level, earlier, float(lengths[start:].mean()))


def find_drifts(runs: Sequence[NDArray[np.int64]], *, false_alarms: float = FALSE_ALARMS) -> list[Drift]:
    """Return the drift within each of several logs; the rate of false alarms is that of any alarm at all.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> short, long = rng.integers(5, 9, 90), rng.integers(15, 25, 90)
        >>> [drift.start for drift in find_drifts([long, np.concatenate([short, long])])]
        [0, 90]
    """
    if len(runs) > 1:
        draw = np.random.default_rng(0)
        tests = [test for test in (_Splits.of(run) for run in runs if len(run) >= FEWEST) if test is not None]
        seen = max((float(test.differences(test.sums).max()) for test in tests), default=math.inf)
        permutations = _permutations(false_alarms)
        above = sum(
            max((float(test.differences(draw.permutation(test.sums)).max()) for test in tests), default=math.inf)
            >= seen - 1e-9
            for _ in range(permutations)
        )
        if (1 + above) / (1 + permutations) > false_alarms:
            return [
                Drift(False, 0, len(run), (1 + above) / (1 + permutations), false_alarms, math.nan, float(run.mean()))
                for run in runs
            ]
    return [find_drift(run, false_alarms=false_alarms) for run in runs]


def differ(runs: Sequence[NDArray[np.int64]], *, false_alarms: float = FALSE_ALARMS) -> bool:
    """Return whether lengths are distributed differently in some of the runs.

    The largest standardised difference between the mean score of a run and that of all is compared with the same
    statistic after random permutations of all episodes. Of long runs 2,000 episodes each are looked at.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> one, other, longer = rng.integers(15, 25, 300), rng.integers(15, 25, 200), rng.integers(20, 30, 300)
        >>> differ([one, other]), differ([one, longer])
        (False, True)
    """
    draw = np.random.default_rng(0)
    seen = [run if len(run) <= _COMPARED else draw.choice(run, _COMPARED, replace=False) for run in runs]
    counts = np.array([len(run) for run in seen])
    total = int(counts.sum())
    scores = _scores(np.concatenate(seen), 0, 1)
    if len(runs) < 2 or not scores.shape[1]:
        return False
    centred = (scores - scores.mean(axis=0)) / scores.std(axis=0)
    starts = np.cumsum(counts) - counts
    scale = np.sqrt(total / (counts * np.maximum(total - counts, 1)))[:, None]

    def largest(order: Array) -> float:
        return float((np.abs(np.add.reduceat(order, starts, axis=0)) * scale).max())

    found = largest(centred)
    permutations = _permutations(false_alarms)
    above = sum(largest(draw.permutation(centred)) >= found - 1e-9 for _ in range(permutations))
    return (1 + above) / (1 + permutations) <= false_alarms


@dataclass(frozen=True)
class _Splits:
    """All splits of a log into an earlier and a later part."""

    sums: Array
    """[blocks, scores]: the scores of each block, less their mean."""
    scale: Array
    edge: int
    dropped: int
    size: int

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> _Splits | None:
        """Return the splits of a log, or None if all its lengths are the same."""
        size = -(-len(lengths) // _BLOCKS)
        blocks = len(lengths) // size
        dropped = len(lengths) - blocks * size  # the oldest few, so that all blocks are alike
        sums = _scores(lengths, dropped, size)
        if not sums.shape[1]:
            return None
        edge = min(max(-(-_EDGE // size), 1), blocks // 2)
        k = np.arange(edge, blocks - edge + 1)
        scale = np.sqrt(blocks / (k * (blocks - k)))[:, None] / sums.std(axis=0)
        return cls(sums - sums.mean(axis=0), scale, edge, dropped, size)

    def differences(self, sums: Array) -> Array:
        """Return the standardised difference for each split and score, with the blocks in the order given."""
        found: Array = np.abs(np.cumsum(sums, axis=0)[self.edge - 1 : len(sums) - self.edge]) * self.scale
        return found

    def start(self, split: int) -> int:
        """Return the index of the first episode of the later part."""
        blocks = self.edge + split + (self.size > 1)  # the block at the split may hold episodes of both parts
        return min(self.dropped + blocks * self.size, self.dropped + len(self.sums) * self.size - _EDGE)


def _permutations(level: float) -> int:
    return max(199, math.ceil(2 / level) - 1)


def _test(lengths: NDArray[np.int64], level: float, rng: np.random.Generator) -> tuple[float, int]:
    """Return the p-value of a drift, and the index at which the later part begins."""
    permutations = _permutations(level)
    splits = _Splits.of(lengths)
    if splits is None:
        return 1.0, 0
    seen = splits.differences(splits.sums).max(axis=1)
    best = int(seen.argmax())
    above = sum(
        float(splits.differences(rng.permutation(splits.sums)).max()) >= float(seen[best]) - 1e-9
        for _ in range(permutations)
    )
    return (1 + above) / (1 + permutations), splits.start(best)


def _scores(lengths: NDArray[np.int64], dropped: int, size: int) -> Array:
    """Return [blocks, scores]: sums of each score over blocks of episodes; scores that never vary are left out."""
    counts = np.bincount(lengths)
    below = np.cumsum(counts) - counts
    rank = (below + 0.5 * counts) / len(lengths)  # of each length, ties shared
    upto = np.cumsum(counts) / len(lengths)
    tables = [rank, np.abs(rank - 0.5), *((upto > share).astype(float) for share in _QUANTILES)]
    kept = lengths[dropped:]
    sums = np.array([table[kept].reshape(-1, size).sum(axis=1) for table in tables])
    varying = np.ptp(sums, axis=1) > 1e-9
    result: Array = sums[varying].T
    return result
