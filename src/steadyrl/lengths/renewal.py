"""The phase distance: how far from steady state a process is, computed from episode lengths alone.

Episodes are independent and identically distributed, so their ends are a renewal process. With f(k) = P(T = k), a start
at a terminal state at time 0, and the *age* of a state being its transitions since the episode's start (1, ..., T; the
terminal state that ends an episode has age T):

    v(t) = sum_k f(k) v(t - k),  v(0) = 1        probability that an episode ends at time t
    P(age at t is k) = v(t - k) P(T >= k)        stationary: P(T >= k) / E[T]

Given its age, a state's distribution does not depend on t. So the total variation between the age's distribution at t
and the stationary one, the *phase distance* d(t), bounds that of the states: TV(rho^(t), rho) <= d(t).

With a detour of G null steps after every terminal state, ends are a renewal process with lengths G + T, a real episode
starts at t with probability u(t) = sum_j v(t - j) P(G = j), and

    P(age at t is k) = u(t - k) P(T >= k).       The remaining mass is null; d(t) compares ages given "not null".
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import check_tolerance, whole_number
from steadyrl.common.detours import Perturbation
from steadyrl.errors import LengthsError, MixingTimeError, PerturbationError
from steadyrl.lengths.distribution import EpisodeLengths, check_lengths
from steadyrl.lengths.mixing import block_size, raw_mixing_time
from steadyrl.numerics.convolution import fftconvolve, recursion

Array = NDArray[np.float64]

_FILTER_WORK = 2e7  # multiplications up to which a plain recursion is faster than transforms
_TAIL = 1e-17  # the tail of the detour's distribution below this probability is left out
_CHUNK = 1 << 16  # entries of a block of windows: they fit a core's cache
_PRECISION = 1e-8  # a perturbed distance below it is replaced by its upper bound
_DIRECT_WORK = 1 << 22  # terms of sums over ages that are added up rather than bounded first
_NULL = 1e-300  # a share of real steps up to this is none
_ROUNDING = 1e-11  # of a convolution, with a margin
_MOST_STEPS = 100_000_000  # steps of a sequence that is returned
_LONGEST = 1 << 26  # longest mixing time that is searched for, in steps


def renewal_sequence(lengths: EpisodeLengths, steps: int, perturbation: Perturbation | None = None) -> Array:
    """Return v(0), ..., v(steps), where v(t) is the probability that an episode ends at time t.

    Args:
        lengths: Distribution of T.
        steps: Last time.
        perturbation: Detour at the start of every episode; None for the unperturbed process.

    Example:
        >>> renewal_sequence(EpisodeLengths([0, 0, 0.5, 0.5]), 5).tolist()
        [1.0, 0.0, 0.5, 0.5, 0.25, 0.5]
    """
    steps = _check(lengths, steps, perturbation)
    cycle = lengths.probabilities
    if perturbation is not None:
        cycle = fftconvolve(cycle, _detour(perturbation, steps))
        cycle = np.maximum(cycle, 0.0)
        cycle[0] = 0.0
    return _invert(cycle[: steps + 1], steps + 1)


def start_sequence(lengths: EpisodeLengths, steps: int, perturbation: Perturbation | None = None) -> Array:
    """Return u(0), ..., u(steps), where u(t) is the probability that an episode's detour is over at time t.

    Without a perturbation an episode starts where the previous one ends, and u = v.
    """
    ends = renewal_sequence(lengths, steps, perturbation)
    return ends if perturbation is None else _convolve(ends, _detour(perturbation, steps))[: steps + 1]


def phase_distance(lengths: EpisodeLengths, steps: int, perturbation: Perturbation | None = None) -> Array:
    """Return d(0), ..., d(steps), the total variation between the age distribution at each time and the stationary one.

    At time 0 the process is at a terminal state of unknown age, so d(0) = 1. For the unperturbed process d never
    increases. Under a perturbation, where null states are discarded before the comparison, it may; then the time it
    takes to compute grows with steps x longest length (`phase_mixing_time` needs far less).

    Args:
        lengths: Distribution of T.
        steps: Last time.
        perturbation: Detour at the start of every episode; None for the unperturbed process.

    Example:
        >>> phase_distance(EpisodeLengths.from_gymnasium([3]), 6).tolist()  # T = 4, always: never
        [1.0, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75]
    """
    steps = _check(lengths, steps, perturbation)
    if perturbation is None:
        return _raw_distance(lengths, steps)
    return _Perturbed(lengths, perturbation, steps).distance()


def phase_mixing_time(
    lengths: EpisodeLengths,
    tolerance: float = 0.01,
    perturbation: Perturbation | None = None,
    *,
    longest: int = _LONGEST,
) -> float:
    """Return the first time from which the phase distance stays below the tolerance; inf if it never does.

    Args:
        lengths: Distribution of T.
        tolerance: Phase distance (total variation) at which the process counts as mixed.
        perturbation: Detour at the start of every episode; None for the unperturbed process.
        longest: Longest mixing time to search for, in steps.

    Raises:
        MixingTimeError: If the mixing time is finite but longer than `longest`.

    Example:
        >>> phase_mixing_time(EpisodeLengths.from_gymnasium([19, 199]))  # 20 or 200: CV 0.82, and yet never
        inf
    """
    _check(lengths, 0, perturbation)
    tolerance = check_tolerance(tolerance)
    longest = whole_number("longest", longest, LengthsError)
    period = lengths.period
    if perturbation is not None:
        detours = np.flatnonzero(_detour(perturbation, 64 + len(perturbation.detour or ())))
        values = np.flatnonzero(lengths.probabilities)
        steps = np.concatenate([[values[0] + detours[0]], np.diff(values), np.diff(detours)])
        period = int(np.gcd.reduce(steps))  # the common divisor of all sums of a length and a detour
    if tolerance <= 1 - 1 / period:
        return math.inf
    if perturbation is None:
        ends = renewal_sequence(lengths, block_size(lengths.longest))
        time = raw_mixing_time(lengths.probabilities, ends, tolerance, longest)
    else:
        time = _perturbed_mixing_time(lengths, tolerance, perturbation, longest)
    if math.isinf(time):
        raise MixingTimeError(
            f"the phase distance is still above {tolerance} after {longest} steps ({longest / lengths.mean:.3g} "
            "average episode lengths): in practice it never mixes; stagger or perturb the starts of episodes"
        )
    return time


def _perturbed_mixing_time(
    lengths: EpisodeLengths, tolerance: float, perturbation: Perturbation, longest: int
) -> float:
    """Return the mixing time under a perturbation, or inf if it is longer than `longest`."""
    steps, tried = max(64, int(8 * lengths.mean)), 0
    while tried < longest:
        tried = steps = min(steps, longest)
        perturbed = _Perturbed(lengths, perturbation, steps)
        bound = perturbed.bound()
        if bound[-1] < tolerance:
            below = int(np.argmax(bound < tolerance))  # the bound never increases, so d stays below from here on
            return perturbed.last_above(tolerance, 1, below + 1) + 1
        steps *= 4
    return math.inf


def batch_distance(lengths: EpisodeLengths, n_steps: int, updates: int = 10) -> Array:
    """Return the total variation between the ages in each of the first batches and the stationary ages.

    All environments are reset together before the first batch. Entry i is for update i + 1.

    Args:
        lengths: Distribution of T.
        n_steps: Steps per environment in each batch.
        updates: Number of batches.

    Example:
        >>> fixed = EpisodeLengths.from_gymnasium([9])  # T = 10, always
        >>> batch_distance(fixed, 5, 3).round(6).tolist(), batch_distance(fixed, 10, 2).round(6).tolist()
        ([0.5, 0.5, 0.5], [0.0, 0.0])
    """
    check_lengths(lengths)
    n_steps, updates = whole_number("n_steps", n_steps, LengthsError), whole_number("updates", updates, LengthsError)
    whole_number("n_steps x updates", n_steps * updates, LengthsError, most=_MOST_STEPS)
    n = lengths.longest
    # Age k is seen in a batch by those whose episode began k steps before one of its steps: sums of v over n_steps
    # times in a row, whose distance from 1/E[T] is weighted with P(T >= k), a convolution as in `_raw_distance`.
    total = np.concatenate([np.zeros(n), np.cumsum(renewal_sequence(lengths, n_steps * updates))])
    gap = np.abs((total[n_steps:-1] - total[: -n_steps - 1]) / n_steps - 1 / lengths.mean)
    result = 0.5 * _convolve(gap, lengths.survival[1:])[n - 1 :: n_steps][:updates]
    return np.clip(result, 0.0, 1.0)


def _raw_distance(lengths: EpisodeLengths, steps: int) -> Array:
    """d(t) = 1/2 sum_k |v(t - k) - 1/E[T]| P(T >= k), a convolution; v is 0 before time 0."""
    rate = 1 / lengths.mean
    survival = lengths.survival[1 : steps + 1]
    gap = np.abs(renewal_sequence(lengths, max(steps - 1, 0)) - rate)
    before = np.append(np.cumsum(lengths.survival[:0:-1])[::-1], 0.0)  # sum of P(T >= k) over k > t, t = 0, 1, ...
    unborn = np.zeros(steps + 1)
    unborn[: min(steps + 1, len(before))] = before[: steps + 1]
    distance = 0.5 * rate * unborn
    distance[1:] += 0.5 * _convolve(gap[:steps], survival)[:steps]
    distance[0] = 1.0
    return np.minimum.accumulate(np.clip(distance, 0.0, 1.0))  # it never increases; rounding might


class _Perturbed:
    """Distributions of ages and null stages at times 0, ..., steps under a perturbation."""

    def __init__(self, lengths: EpisodeLengths, perturbation: Perturbation, steps: int) -> None:
        self.steps = steps
        self.mean = lengths.mean
        self.survival = lengths.survival[1:]
        self.detour = _detour(perturbation, steps)
        self.rate = 1 / (lengths.mean + perturbation.mean_detour)
        self.ends = renewal_sequence(lengths, steps, perturbation)
        self.starts = start_sequence(lengths, steps, perturbation)
        self.real = np.zeros(steps + 1)  # P(not null at t)
        self.real[1:] = _convolve(self.starts, self.survival)[:steps]
        self.real[0] = 1.0

    def bound(self) -> Array:
        """Return an upper bound of d(t) that never increases: the distance of all stages over the real share."""
        stages = self.detour[::-1].cumsum()[::-1]  # P(G >= j)
        total = self._gap(self.starts, self.survival) + self._gap(self.ends, stages[1:])
        total[0] = np.inf
        return np.minimum.accumulate(total / (self.rate * self.mean))

    def distance(self, precision: float = _PRECISION) -> Array:
        """Return d(t) = 1/2 sum_k |u(t - k) / P(not null at t) - 1/E[T]| P(T >= k).

        From the time at which its upper bound falls below `precision`, the bound is returned instead.
        """
        result = self.bound()
        above = np.flatnonzero(result >= precision)
        settled = int(above[-1]) + 1 if len(above) else 1
        result[1:settled] = self._exact(1, settled)
        result[0] = 1.0
        return np.clip(result, 0.0, 1.0)

    def last_above(self, tolerance: float, first: int, end: int) -> int:
        """Return the last time in first, ..., end - 1 with d(t) >= tolerance, or first - 1 if there is none.

        Sums over ages take (longest length) x time. So d(t) is first put between two bounds, which take one
        convolution; only times that they do not decide are looked at closer, the latest first.
        """
        if first >= end:
            return first - 1
        lower, upper = self._between(first, end)
        sure = np.flatnonzero(lower >= tolerance)
        begin = first + int(sure[-1]) + 1 if len(sure) else first
        open_ = np.flatnonzero(upper[begin - first :] >= tolerance)
        end = begin + int(open_[-1]) + 1 if len(open_) else begin
        if (end - begin) * len(self.survival) <= max(_DIRECT_WORK, len(self.survival)):
            above = np.flatnonzero(self._exact(begin, end) >= tolerance)
            return begin + int(above[-1]) if len(above) else begin - 1
        middle = (begin + end) // 2
        found = self.last_above(tolerance, middle, end)
        return found if found >= middle else self.last_above(tolerance, begin, middle)

    def _between(self, first: int, end: int) -> tuple[Array, Array]:
        """Return bounds of d(first), ..., d(end - 1): the sum for one share r of real steps instead of all r(t).

        Since sum_k u(t - k) P(T >= k) is r(t), the two differ by |1 - r(t) / r| / 2 at most.
        """
        n, real = len(self.survival), self.real[first:end]
        share = (float(real.min()) + float(real.max())) / 2
        if share <= _NULL:  # all is null
            return np.ones(end - first), np.ones(end - first)
        gap = np.abs(self._padded[first : end - 1 + n] / share - 1 / self.mean)
        found = 0.5 * _convolve(gap, self.survival)[n - 1 : n - 1 + end - first]
        off = 0.5 * np.abs(1 - real / share) + _ROUNDING
        return np.where(real > _NULL, found - off, 1.0), np.where(real > _NULL, found + off, 1.0)

    def _exact(self, first: int, end: int) -> Array:
        """Return d(first), ..., d(end - 1), each as a sum over all ages."""
        n = len(self.survival)
        windows = np.lib.stride_tricks.sliding_window_view(self._padded, n)  # row t: u(t-n), ..., u(t-1)
        weights = 0.5 * self.survival[::-1].copy()
        result = np.zeros(end - first)
        size = max(1, _CHUNK // n)
        for begin in range(first, end, size):
            rows = slice(begin, min(begin + size, end))
            real = self.real[rows]
            known = real > _NULL
            share = windows[rows] * np.where(known, 1 / np.where(known, real, 1.0), 0.0)[:, None]
            share -= 1 / self.mean
            np.abs(share, out=share)
            result[rows.start - first : rows.stop - first] = np.where(known, share @ weights, 1.0)
        return result

    @cached_property
    def _padded(self) -> Array:
        """u(-n), ..., u(steps), where n is the longest length: zero before time 0."""
        return np.concatenate([np.zeros(len(self.survival)), self.starts])

    def _gap(self, sequence: Array, survival: Array) -> Array:
        gap = np.abs(sequence - self.rate)
        tail = survival[::-1].cumsum()[::-1]
        result = np.zeros(self.steps + 1)
        result[: min(len(tail), self.steps + 1)] = 0.5 * self.rate * tail[: self.steps + 1]
        result[1:] += 0.5 * _convolve(gap[:-1], survival[: self.steps])[: self.steps]
        return result


def _check(lengths: EpisodeLengths, steps: int, perturbation: Perturbation | None) -> int:
    """Return the number of steps, or raise if an argument of a public function cannot be used."""
    check_lengths(lengths)
    if perturbation is not None and not isinstance(perturbation, Perturbation):
        raise PerturbationError(
            f"perturbation is {type(perturbation).__name__}; give Perturbation(epsilon) or None, such as "
            "Perturbation.for_average_episode_length(lengths.mean)"
        )
    return whole_number("steps", steps, LengthsError, least=0, most=_MOST_STEPS)


def _detour(perturbation: Perturbation, steps: int) -> Array:
    """Return P(G = j) for j = 0, 1, ..., without a negligible tail."""
    if perturbation.detour is not None:
        return np.array(perturbation.detour)
    if not perturbation.recursive:
        return perturbation.detour_probabilities(1)
    assert perturbation.epsilon is not None
    longest = math.ceil(math.log(_TAIL) / math.log(perturbation.epsilon))
    return perturbation.detour_probabilities(max(1, min(longest, steps)))


def _invert(cycle: Array, size: int) -> Array:
    """Return the first `size` coefficients of 1 / (1 - F(z)), F(z) = sum_k cycle(k) z^k."""
    if len(cycle) * float(size) <= _FILTER_WORK:
        impulse = np.zeros(size)
        impulse[0] = 1.0
        result: Array = recursion(np.append(1.0, -cycle[1:]), impulse)
        return result
    denominator = -cycle
    denominator[0] = 1.0
    found: Array = recursion(denominator[:1024], np.append(1.0, np.zeros(1023)))
    while len(found) < size:  # Newton: g <- g + g (1 - h g) doubles the correct coefficients
        known = len(found)
        new = min(2 * known, size)
        error = -_convolve(denominator[:new], found)[known:new]
        if len(error) < new - known:
            error = np.append(error, np.zeros(new - known - len(error)))
        found = np.append(found, _convolve(found, error)[: new - known])
    return found[:size]


def _convolve(a: Array, b: Array) -> Array:
    if not len(a) or not len(b):
        return np.zeros(max(len(a), len(b), 1))
    if min(len(a), len(b)) <= 64:
        return np.convolve(a, b)
    result: Array = fftconvolve(a, b)
    return result
