"""What cutting episodes does to the ages of copies that were reset together.

Cutting an episode short is a truncation: the copy is at a terminal state, and the next step is its reset. Three cuts
matter: the first episode of each copy at a random time (random counters), every episode with some probability (random
truncation), and each copy once at a designed time (stagger).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steadyrl.lengths.delays import Delays
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.renewal import renewal_sequence
from steadyrl.numerics.convolution import fftconvolve

Array = NDArray[np.float64]

_WINDOWS = 4_000_000  # entries of ages that are computed one by one; beyond it, times are thinned out


def cut(lengths: EpisodeLengths, horizons: Array) -> EpisodeLengths:
    """Return the distribution of T where episodes are cut after h actions, h with these probabilities.

    P(min(T, H + 1) >= k) = P(T >= k) P(H + 1 >= k).
    """
    allowed = np.append(1.0, horizons[::-1].cumsum()[::-1])  # entry k: P(H + 1 >= k)
    size = max(len(lengths.survival), 2)
    keep = np.zeros(size)
    keep[: min(size, len(allowed))] = allowed[:size]
    survival = lengths.survival * keep
    probabilities = np.maximum(-np.diff(np.append(survival, 0.0)), 0.0)
    probabilities[0] = 0.0
    return EpisodeLengths(probabilities / probabilities.sum())


def first_cut_distance(truth: EpisodeLengths, first: EpisodeLengths, later: EpisodeLengths, steps: int) -> Array:
    """d(1), ..., d(steps) from the true stationary ages, if the first episode and later ones are distributed so.

    Ages k < t belong to later episodes, which start at t - k with probability e(t - k), e = f_first * v_later;
    age t is the first episode's. With w = P(T_later >= k) and s = P(T >= k) / E[T],

        2 d(t) = sum_{k < t} |e(t - k) w(k) - s(k)| + |P(T_first >= t) - s(t)| + sum_{k > t} s(k).
    """
    ends = fftconvolve(first.probabilities, renewal_sequence(later, steps))[: steps + 1]
    n = truth.longest
    stationary = np.zeros(max(n, steps) + 2)
    stationary[1 : n + 1] = truth.survival[1:] / truth.mean
    alive = np.zeros(max(n, steps) + 2)
    alive[: first.longest + 1] = first.survival
    beyond = np.append(stationary[::-1].cumsum()[::-1][1:], 0.0)
    still = np.zeros(n + 1)
    still[: later.longest + 1] = later.survival
    result = np.abs(alive[1 : steps + 1] - stationary[1 : steps + 1]) + beyond[1 : steps + 1]
    result += _sum_of_gaps(ends, still[1:], stationary[1 : n + 1], steps)
    distance: Array = np.clip(0.5 * result, 0.0, 1.0)
    return distance


def _sum_of_gaps(starts: Array, survival: Array, stationary: Array, steps: int) -> Array:
    """sum_{k < t} |starts(t - k) survival(k) - stationary(k)| for t = 1, ..., steps."""
    total = np.zeros(steps)
    ratio = np.divide(stationary, survival, out=np.zeros_like(stationary), where=survival > 0)
    if np.ptp(ratio[survival > 0]) < 1e-15 and (survival[stationary > 0] > 0).all():  # one rate: a convolution
        gaps = np.abs(starts[1:steps] - ratio[0])
        found = fftconvolve(gaps, survival)[: steps - 1] if len(gaps) else np.zeros(0)
        total[1:] = found
        return total
    padded = np.concatenate([np.zeros(len(survival)), starts[1:]])
    for t in _grid(steps, len(survival)):
        count = min(t - 1, len(survival))
        window = padded[len(survival) + t - 1 - count : len(survival) + t - 1][
            ::-1
        ]  # starts(t - 1), ..., starts(t - count)
        total[t - 1] = np.abs(window * survival[:count] - stationary[:count]).sum()
    return _interpolated(total, steps, len(survival))


def stagger_distance(lengths: EpisodeLengths, delays: Delays, steps: int, *, offset: int = 0) -> Array:
    """d(1), ..., d(steps) while copies are being cut, at C = W - D + offset; steps <= W + offset.

    Where a reset is a step, `StaggeredVectorEnv` has offset 2: its first observation (time 1) cannot be an end.

    P(age at t = k) = P(T >= k) [ sum_{C <= t - k} q(C) v(t - k - C) + P(C >= t) v(t - k) ]; C = 0 is no cut at all.
    """
    n, window = lengths.longest, delays.window + offset
    cuts = np.append(np.zeros(offset), delays.probabilities[:0:-1])  # P(C = 0), P(C = 1), ...
    ends = renewal_sequence(lengths, window)
    mixed = fftconvolve(cuts, ends)[: window + 1]
    waiting = np.append(cuts[::-1].cumsum()[::-1], np.zeros(2))  # entry t: P(C >= t)
    rate, survival = 1 / lengths.mean, lengths.survival[1:]
    beyond = np.append(survival[::-1].cumsum()[::-1], 0.0) * rate
    result = np.zeros(steps)
    for t in _grid(steps, n):
        count = min(t, n)
        starts = (mixed + waiting[t] * ends)[t - count : t][::-1]
        result[t - 1] = 0.5 * (np.abs(starts - rate) @ survival[:count] + beyond[count])
    return np.clip(_interpolated(result, steps, n), 0.0, 1.0)


def _grid(steps: int, n: int) -> NDArray[np.int64]:
    """The times at which what takes n operations a time is computed: all, if that is not too many."""
    count = int(np.clip(_WINDOWS // max(n, 1), 64, steps)) if steps else 0
    return np.unique(np.linspace(1, steps, count).astype(np.int64)) if steps else np.zeros(0, np.int64)


def _interpolated(values: Array, steps: int, n: int) -> Array:
    at = _grid(steps, n)
    return values if len(at) == steps else np.interp(np.arange(1, steps + 1), at, values[at - 1])
