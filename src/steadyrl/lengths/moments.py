"""Marginal means at every time, computed from sums of the observation at each age instead of rollouts.

With g(k) = E[f(s_k) 1(T >= k)], the sum at age k over the number of episodes, and u(t) the probability that a (real)
episode starts at time t (`renewal`; without a detour u = v), the renewal equation says

    E[f(s_t); not null] = sum_k u(t - k) g(k) = (u * g)(t),    P(not null at t) = (u * P(T >= .))(t);

their ratio is the mean given that the state is not null.

Standard errors follow from the same sums, kept separately for groups of episodes. Replacing g and f by those of one
group changes u by u * df * u (the derivative of 1 / (1 - F)), so to first order

    d(u * g) = u * (dg + df * (u * g)),

and the scatter of this over groups is the standard error. At t -> infinity it is the regenerative method's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import as_numbers, shown
from steadyrl.common.detours import Perturbation
from steadyrl.common.values import hash_values, same_values
from steadyrl.errors import LengthsError
from steadyrl.lengths.age_sums import AgeSums, require_alike
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.renewal import start_sequence
from steadyrl.numerics.convolution import fftconvolve

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class MarginalMoments:
    """Means and second moments of each observed value over time, given that the state is not null."""

    times: NDArray[np.int64]
    mean: Array
    """[times, d]: mean at each time; NaN where every state is null."""
    second_moment: Array
    """[times, d]: second moment at each time."""
    mean_error: Array
    """[times, d]: standard error of the mean; NaN if there is only one group of episodes."""
    second_moment_error: Array
    """[times, d]: standard error of the second moment; NaN if there is only one group of episodes."""
    stationary_mean: Array
    """[d]: mean at steady state."""
    stationary_second_moment: Array
    """[d]: second moment at steady state."""

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        first, last = (int(self.times[0]), int(self.times[-1])) if len(self.times) else (0, 0)
        return f"MarginalMoments(times={len(self.times)} from {first} to {last}, dimensions={self.mean.shape[1]})"

    @property
    def stationary_deviation(self) -> Array:
        """[d]: standard deviation at steady state."""
        return np.sqrt(np.maximum(self.stationary_second_moment - self.stationary_mean**2, 0.0))


def marginal_moments(
    sums: AgeSums | Sequence[AgeSums], times: ArrayLike, perturbation: Perturbation | None = None
) -> MarginalMoments:
    """Return the mean and the second moment of every observed value at the given times.

    Args:
        sums: Sums by age (`Episodes.ages`), or a list of them for groups of episodes, which gives standard errors. With
            twenty groups or more these are accurate to about a sixth.
        times: Whole numbers from 1; time 0 is the terminal state before the first episode.
        perturbation: Detour at the start of every episode; None for the unperturbed process.

    Example:
        >>> from steadyrl import collect_episodes
        >>> ages = collect_episodes("CartPole-v1", "uniform", 200, backend="serial").ages
        >>> marginal_moments(ages, [1, 20, 100]).mean.shape
        (3, 4)
    """
    groups = sums if isinstance(sums, Sequence) else [sums]
    require_alike(groups)
    if not all(len(group.count) for group in groups):
        raise LengthsError("a group of sums has no episodes; leave it out")
    given = np.atleast_1d(as_numbers("times", times, LengthsError))
    when = given.astype(np.int64)
    if when.ndim != 1 or not len(when) or when.min() < 1 or (when != given).any():
        raise LengthsError(f"times are {shown(times)}; they must be whole numbers, 1 or more, at least one")
    n, d = max(len(group.count) for group in groups), groups[0].total.shape[1]
    weights = np.array([float(group.count[0]) for group in groups])
    weights /= weights.sum()
    columns = np.array([_columns(group, n) for group in groups])  # [groups, n, 1 + 2 d]: survival, g, g of squares
    whole = np.tensordot(weights, columns, 1)
    steps = int(when.max())
    lengths = EpisodeLengths.from_survival(np.append(whole[0, 0], whole[:, 0]))
    starts = start_sequence(lengths, steps, perturbation)[:steps]
    level = _convolve(starts, whole, steps)  # entry t - 1 is time t
    real = level[:, :1]
    known = real[:, 0] > 1e-12
    ratio = np.full_like(level, np.nan)
    ratio[known] = level[known] / real[known]
    errors = np.full((len(when), 2 * d), np.nan)
    if len(groups) > 1:
        errors = _errors(columns - whole, weights, starts, level, ratio, when)
    at = ratio[when - 1, 1:]
    stationary = whole[:, 1:].sum(axis=0) / lengths.mean
    return MarginalMoments(when, at[:, :d], at[:, d:], errors[:, :d], errors[:, d:], stationary[:d], stationary[d:])


def _columns(group: AgeSums, n: int) -> Array:
    """Return P(T >= k), g(k) and the g(k) of the squares for one group, padded to n ages."""
    episodes = group.count[0]
    result = np.zeros((n, 1 + 2 * group.total.shape[1]))
    parts = np.concatenate([group.count[:, None], group.total, group.total_squares], axis=1)
    result[: len(parts)] = parts / episodes
    return result


def _errors(shifts: Array, weights: Array, starts: Array, level: Array, ratio: Array, when: NDArray[np.int64]) -> Array:
    """Return standard errors of the ratios at the times `when`, from each group's first-order shift."""
    steps = len(starts)
    total = np.zeros((len(when), level.shape[1] - 1))
    for shift, weight in zip(shifts, weights, strict=True):
        # -diff of the survival's shift is that of f: f(k) = P(T >= k) - P(T >= k + 1), and df(0) = 0
        change = -np.diff(np.append(shift[:, 0], 0.0))
        inner = np.zeros_like(level)
        inner[: min(steps, len(shift))] = shift[:steps]
        inner[1:] += _convolve(change, level, steps)[:-1]
        moved = _convolve(starts, inner, steps)[when - 1]
        change_of_ratio = (moved[:, 1:] - ratio[when - 1, 1:] * moved[:, :1]) / level[when - 1, :1]
        total += (weight * change_of_ratio) ** 2
    groups = len(weights)
    return np.sqrt(total * groups / (groups - 1))


def _convolve(a: Array, columns: Array, steps: int) -> Array:
    result = np.zeros((steps, columns.shape[1]))
    if not len(a) or not len(columns):
        return result
    found = fftconvolve(a[:steps, None], columns[:steps])[:steps]
    result[: len(found)] = found
    return result
