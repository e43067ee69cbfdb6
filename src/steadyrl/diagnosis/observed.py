"""Means of observed values over time, by the renewal equation: which of them settle last, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from steadyrl.common.detours import Perturbation
from steadyrl.lengths.age_sums import AgeSums
from steadyrl.lengths.moments import MarginalMoments, marginal_moments

_POINTS = 320  # times at which means are shown
_SHOWN = 6  # observed values that are shown
_WIDE = 400  # observed values that are analysed


@dataclass(frozen=True)
class SlowDimension:
    """An observed value and how long its mean takes to settle."""

    index: int
    """Index in the flattened observation."""
    settles: float
    """Steps after which its mean stays within the tolerance times its standard deviation; inf if it does not within
    the times that were computed."""
    deviation: float
    """Largest deviation of its mean from the steady one after one average episode length, in standard deviations."""


@dataclass(frozen=True, eq=False)
class Marginals:
    """Means over time of the observed values that settle last, raw and under the paper's perturbation."""

    dimensions: tuple[SlowDimension, ...]
    """The observed values, the slowest first."""
    raw: MarginalMoments
    """Means of these values for the raw process."""
    perturbed: MarginalMoments
    """Means of these values under the paper's perturbation."""
    sums: AgeSums
    """Sums of these values by age, over all episodes."""

    def __repr__(self) -> str:
        return f"Marginals({', '.join(f'[{found.index}] {found.settles:g}' for found in self.dimensions)})"


def slowest_means(
    groups: tuple[AgeSums, ...],
    average_episode_length: float,
    mixing_time: float,
    perturbation: Perturbation,
    tolerance: float,
) -> Marginals | None:
    """Return the means over time of the observed values that settle last; None if no value varies."""
    mean = average_episode_length
    wait = mixing_time / mean if math.isfinite(mixing_time) else 0.0  # what never settles need not be shown for long
    span = int(min(max(8.0, min(1.5 * wait, 30.0)) * mean, 60_000)) + 1
    when = np.unique(np.linspace(1, span, min(span, 3 * _POINTS)).astype(np.int64))
    width = min(groups[0].dimensions, _WIDE)
    everything = AgeSums.merge(groups).select(np.arange(width))
    slow = slowest(marginal_moments(everything, when), mean, tolerance)[:_SHOWN]
    if not slow:
        return None
    index = np.array([dimension.index for dimension in slow])
    shown = np.unique(np.linspace(1, span, min(_POINTS, span)).astype(np.int64))
    few = AgeSums.coarsen([group.select(index) for group in groups])
    return Marginals(
        tuple(slow),
        marginal_moments(few, shown),
        marginal_moments(few, shown, perturbation),
        everything.select(index),
    )


def slowest(moments: MarginalMoments, average_episode_length: float, tolerance: float) -> list[SlowDimension]:
    """Return the observed values, the one whose mean settles last first; values that never vary are left out."""
    deviation = moments.stationary_deviation
    varying = np.flatnonzero(deviation > 1e-9 * (1 + np.abs(moments.stationary_mean)))
    apart = np.abs(moments.mean - moments.stationary_mean)[:, varying] / deviation[varying]
    later = moments.times >= average_episode_length
    result = []
    for j, index in enumerate(varying):
        off = np.flatnonzero(apart[:, j] >= tolerance)
        last = -1 if not len(off) else int(off[-1])
        settled = 1.0 if last < 0 else math.inf if last == len(apart) - 1 else float(moments.times[last + 1])
        result.append(SlowDimension(int(index), settled, float(apart[later, j].max()) if later.any() else 0.0))
    return sorted(result, key=lambda found: (-found.settles, -found.deviation))
