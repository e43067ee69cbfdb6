"""How truncating episodes early changes the ages of environments that were reset together.

After an early truncation the copy is at a terminal state, and its next step is the reset. Three kinds are covered: the
first episode of each copy is truncated at a random time (random counters), every episode is truncated with some
probability (random truncation), and each copy is truncated once at a designed time (stagger).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steadyrl.lengths.delays import Delays
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.renewal import renewal_sequence
from steadyrl.numerics.convolution import fftconvolve

Array = NDArray[np.float64]

_WINDOWS = 4_000_000  # operations for ages at single times; beyond it, times are thinned out


def cut(lengths: EpisodeLengths, horizons: Array) -> EpisodeLengths:
    """Return the distribution of T if episodes are truncated after H actions, where P(H = h) is horizons[h].

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
    """Return d(1), ..., d(steps) if the first episode and later ones have other lengths than the true process.

    d compares with the stationary ages of the true process. Ages k < t belong to later episodes, which start at t - k
    with probability e(t - k), e = f_first * v_later; age t belongs to the first episode. With
    w = P(T_later >= k) and s = P(T >= k) / E[T],

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
    """Return sum_{k < t} |starts(t - k) survival(k) - stationary(k)| for t = 1, ..., steps."""
    total = np.zeros(steps)
    ratio = np.divide(stationary, survival, out=np.zeros_like(stationary), where=survival > 0)
    if (
        np.ptp(ratio[survival > 0]) < 1e-15 and (survival[stationary > 0] > 0).all()
    ):  # the ratio is constant: a convolution
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
    """Return d(1), ..., d(steps) while copies are truncated once each, at C = W - D + offset; steps <= W + offset.

    With NEXT_STEP autoreset `StaggeredVectorEnv` has offset 2, because its first observation (time 1) cannot be an end.

    P(age at t = k) = P(T >= k) [ sum_{C <= t - k} q(C) v(t - k - C) + P(C >= t) v(t - k) ]; C = 0 is no truncation.
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
    """Return the times at which a computation of n operations each is done: all of them, unless that is too many."""
    count = int(np.clip(_WINDOWS // max(n, 1), 64, steps)) if steps else 0
    return np.unique(np.linspace(1, steps, count).astype(np.int64)) if steps else np.zeros(0, np.int64)


def _interpolated(values: Array, steps: int, n: int) -> Array:
    at = _grid(steps, n)
    return values if len(at) == steps else np.interp(np.arange(1, steps + 1), at, values[at - 1])
