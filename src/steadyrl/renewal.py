"""Episode lengths alone say when an endless loop of episodes is at steady state.

Episodes are independent and alike, so their ends are a renewal process. With f(k) = P(T = k), the start at a
terminal state at time 0, and the *age* of a state being its transitions since the episode's start (1, ..., T; the
terminal state that ends an episode has age T):

    v(t) = sum_k f(k) v(t - k),  v(0) = 1        probability that an episode ends at time t
    P(age at t is k) = v(t - k) P(T >= k)        stationary: P(T >= k) / E[T]

Given its age, a state's distribution does not depend on t. So the total variation between the age's distribution at t
and the stationary one, the *phase distance* d(t), bounds that of the states: TV(rho^(t), rho) <= d(t).

With a detour of G null steps after every terminal state, ends are a renewal process with lengths G + T, a real episode
starts at t with probability u(t) = sum_j v(t - j) P(G = j), and

    P(age at t is k) = u(t - k) P(T >= k),       the rest is null; d(t) compares given that it is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.errors import LengthsError, MixingTimeError
from steadyrl.mixing import check_tolerance
from steadyrl.numerics.convolution import fftconvolve, recursion
from steadyrl.perturbation import Perturbation

Array = NDArray[np.float64]

_FILTER_WORK = 2e8  # multiplications up to which a plain recursion is quicker than transforms
_TAIL = 1e-17  # detours longer than what leaves this probability are left out
_CHUNK = 1 << 16  # entries of a block of windows: they fit a core's cache
_PRECISION = 1e-8  # below it a perturbed distance is given by its bound
_LONGEST = 1 << 26  # steps after which a mixing time is given up


class HasLengths(Protocol):
    """What has Gymnasium's lengths of complete episodes: `Episodes`, for one."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Actions in each episode."""


@dataclass(frozen=True)
class EpisodeLengths:
    """The distribution of T, the transitions from one terminal state to the next.

    Args:
        probabilities: P(T = k) for k = 0, 1, 2, ...; P(T = 0) must be 0, since a reset is a transition.

    Example:
        >>> EpisodeLengths.from_gymnasium([19, 199, 19, 199]).mean
        110.0
    """

    probabilities: Array

    def __post_init__(self) -> None:
        values = np.array(self.probabilities, dtype=float)
        if values.ndim != 1 or not len(values):
            raise LengthsError(f"probabilities must be a list P(T = 0), P(T = 1), ...; got shape {values.shape}")
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            k = int(np.argmax(bad))
            raise LengthsError(f"P(T = {k}) is {values[k]}; it must be a number from 0 to 1")
        if values[0] != 0:
            raise LengthsError(
                f"P(T = 0) is {values[0]}, but an episode has at least one transition, its reset; entry k of "
                "probabilities is P(T = k), so the first must be 0 (for Gymnasium's lengths use from_gymnasium)"
            )
        if abs(values.sum() - 1) > 1e-9:
            raise LengthsError(f"the probabilities of episode lengths sum to {float(values.sum())!r}, not to 1")
        values = values[: int(np.flatnonzero(values)[-1]) + 1] / values.sum()
        values.flags.writeable = False
        object.__setattr__(self, "probabilities", values)

    @classmethod
    def from_gymnasium(cls, lengths: ArrayLike, *, censored: ArrayLike | None = None) -> EpisodeLengths:
        """Return the observed distribution of T = l + 1 for episodes of `lengths` l actions.

        Args:
            lengths: actions in each episode, as Gymnasium counts them.
            censored: which of them were still running when observation stopped, so that only T > l + 1 is known
                (an episode cut by a time limit is *not* one of these: the process really resets there). They are
                accounted for by the product-limit estimate (Kaplan and Meier); if the longest of all was
                still running, what is left of the probability is put one step after it.
        """
        counts = as_gymnasium_lengths(lengths)
        running = np.zeros(len(counts), dtype=bool) if censored is None else np.asarray(censored, dtype=bool)
        if running.shape != counts.shape:
            raise LengthsError(f"censored has shape {running.shape}, but there are {len(counts)} lengths")
        if running.all():
            raise LengthsError(
                "every episode was still running when observation stopped; nothing is known of their ends"
            )
        ended = np.bincount(counts[~running] + 1)
        if not running.any():
            return cls(ended / ended.sum())
        size = int(counts.max()) + 3
        ends = np.zeros(size)
        ends[: len(ended)] = ended
        lost = np.bincount(counts[running] + 1, minlength=size)
        at_risk = (ends + lost)[::-1].cumsum()[::-1]  # T >= k, or seen running after k transitions
        hazard = np.divide(ends, at_risk, out=np.zeros(size), where=at_risk > 0)
        survive = np.cumprod(1 - hazard)
        probabilities = hazard * np.append(1.0, survive[:-1])
        probabilities[-1] += 1 - probabilities.sum() if survive[-1] > 1e-15 else 0.0
        return cls(probabilities / probabilities.sum())

    @classmethod
    def from_episodes(cls, episodes: HasLengths) -> EpisodeLengths:
        """Return the distribution of T in collected `Episodes`: all of them complete, so nothing is censored."""
        return cls.from_gymnasium(episodes.lengths)

    @cached_property
    def survival(self) -> Array:
        """P(T >= k) for k = 0, 1, ..., the longest."""
        return self.probabilities[::-1].cumsum()[::-1]

    @property
    def longest(self) -> int:
        """The largest possible T."""
        return len(self.probabilities) - 1

    @property
    def mean(self) -> float:
        """E[T], the reset included: Gymnasium's mean length plus one."""
        return float(np.arange(len(self.probabilities)) @ self.probabilities)

    @property
    def cv(self) -> float:
        """The coefficient of variation, standard deviation over mean: a rule of thumb, not a certificate."""
        k = np.arange(len(self.probabilities))
        return float(np.sqrt(((k - self.mean) ** 2) @ self.probabilities) / self.mean)

    @property
    def period(self) -> int:
        """The greatest common divisor of the possible lengths; above 1 the raw process never converges."""
        return int(np.gcd.reduce(np.flatnonzero(self.probabilities)))


def as_gymnasium_lengths(lengths: ArrayLike | Sequence[int]) -> NDArray[np.int64]:
    """Return Gymnasium's counts as integers, or say which is none."""
    values = np.asarray(lengths)
    if values.ndim != 1 or not len(values):
        raise LengthsError(f"lengths must be a list of at least one episode's actions; got shape {values.shape}")
    if values.dtype.kind not in "iuf":
        raise LengthsError(f"lengths must be whole numbers, not {values.dtype}")
    bad = ~(values >= 0) | (values != np.floor(values)) | ~np.isfinite(values)
    if bad.any():
        i = int(np.argmax(bad))
        raise LengthsError(f"lengths[{i}] is {values[i]}; an episode's number of actions is a whole number, 0 or more")
    return values.astype(np.int64)


def renewal_sequence(lengths: EpisodeLengths, steps: int, perturbation: Perturbation | None = None) -> Array:
    """Return v(0), ..., v(steps), the probability that an episode ends at each time.

    Example:
        >>> renewal_sequence(EpisodeLengths([0, 0, 0.5, 0.5]), 5).tolist()
        [1.0, 0.0, 0.5, 0.5, 0.25, 0.5]
    """
    if steps < 0:
        raise LengthsError(f"steps is {steps}; it must be 0 or more")
    cycle = lengths.probabilities
    if perturbation is not None:
        cycle = fftconvolve(cycle, _detour(perturbation, steps))
        cycle = np.maximum(cycle, 0.0)
        cycle[0] = 0.0
    return _invert(cycle[: steps + 1], steps + 1)


def start_sequence(lengths: EpisodeLengths, steps: int, perturbation: Perturbation | None = None) -> Array:
    """Return u(0), ..., u(steps), the probability that a real episode starts after each time, its detour over.

    Without a perturbation an episode starts where the one before ends, and u = v.
    """
    ends = renewal_sequence(lengths, steps, perturbation)
    return ends if perturbation is None else _convolve(ends, _detour(perturbation, steps))[: steps + 1]


def phase_distance(lengths: EpisodeLengths, steps: int, perturbation: Perturbation | None = None) -> Array:
    """Return d(0), ..., d(steps), the distance of the age's distribution from the stationary one.

    At time 0 the process is at a terminal state whose age is unknown, so d(0) = 1. For the raw process d never
    increases; under a perturbation, where it compares what is left after null states are thrown away, it may.

    Example:
        >>> phase_distance(EpisodeLengths.from_gymnasium([3]), 6).tolist()  # T = 4, always: never
        [1.0, 0.75, 0.75, 0.75, 0.75, 0.75, 0.75]
    """
    if steps < 0:
        raise LengthsError(f"steps is {steps}; it must be 0 or more")
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
    """Return the first time from which the phase distance stays below the tolerance; inf if there is none.

    Raises:
        MixingTimeError: if that is more than `longest` steps away, by default 67 million.

    Example:
        >>> phase_mixing_time(EpisodeLengths.from_gymnasium([19, 199]))  # 20 or 200: CV 0.82, and yet never
        inf
    """
    check_tolerance(tolerance)
    period = lengths.period
    if perturbation is not None:
        detours = np.flatnonzero(_detour(perturbation, 64 + len(perturbation.detour or ())))
        period = int(np.gcd.reduce((np.flatnonzero(lengths.probabilities)[:, None] + detours[None, :]).ravel()))
    if tolerance <= 1 - 1 / period:
        return math.inf
    steps = max(64, int(8 * lengths.mean))
    tried = 0
    while tried < longest:
        tried = steps = min(steps, longest)
        if perturbation is None:
            distance = bound = _raw_distance(lengths, steps)
        else:
            perturbed = _Perturbed(lengths, perturbation, steps)
            bound = perturbed.bound()
            distance = perturbed.distance(min(_PRECISION, tolerance / 10)) if bound[-1] < tolerance else bound
        if bound[-1] < tolerance:
            below = int(np.argmax(bound < tolerance))  # the bound never increases: from here on all is well
            above = np.flatnonzero(distance[: below + 1] >= tolerance)
            return int(above[-1]) + 1 if len(above) else 0
        steps *= 4
    raise MixingTimeError(
        f"the phase distance is still above {tolerance} after {tried} steps ({tried / lengths.mean:.3g} average "
        "episode lengths): in practice it never mixes; perturb or stagger the episodes' starts"
    )


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
    """Ages and null stages at times 0, ..., steps under a detour."""

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
        """The distance between all stages, null ones included, over the share of real states: never increases."""
        stages = self.detour[::-1].cumsum()[::-1]  # P(G >= j)
        total = self._gap(self.starts, self.survival) + self._gap(self.ends, stages[1:])
        total[0] = np.inf
        return np.minimum.accumulate(total / (self.rate * self.mean))

    def distance(self, precision: float = _PRECISION) -> Array:
        """d(t) = 1/2 sum_k |u(t - k) / P(not null at t) - 1/E[T]| P(T >= k).

        From where its bound is below `precision` on, the bound instead.
        """
        n = len(self.survival)
        result = self.bound()
        above = np.flatnonzero(result >= precision)
        settled = int(above[-1]) + 1 if len(above) else 1
        padded = np.concatenate([np.zeros(n), self.starts])
        windows = np.lib.stride_tricks.sliding_window_view(padded, n)[: self.steps + 1]  # row t: u(t-n), ..., u(t-1)
        weights = 0.5 * self.survival[::-1].copy()
        size = max(1, _CHUNK // n)
        for first in range(1, settled, size):
            rows = slice(first, min(first + size, settled))
            real = self.real[rows]
            known = real > 1e-300  # else all is null
            share = windows[rows] * np.where(known, 1 / np.where(known, real, 1.0), 0.0)[:, None]
            share -= 1 / self.mean
            np.abs(share, out=share)
            result[rows] = np.where(known, share @ weights, 1.0)
        result[0] = 1.0
        return np.clip(result, 0.0, 1.0)

    def _gap(self, sequence: Array, survival: Array) -> Array:
        gap = np.abs(sequence - self.rate)
        tail = survival[::-1].cumsum()[::-1]
        result = np.zeros(self.steps + 1)
        result[: min(len(tail), self.steps + 1)] = 0.5 * self.rate * tail[: self.steps + 1]
        result[1:] += 0.5 * _convolve(gap[:-1], survival[: self.steps])[: self.steps]
        return result


def _detour(perturbation: Perturbation, steps: int) -> Array:
    """P(G = j) as far as it matters."""
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
    found: Array = recursion(denominator[:4096], np.append(1.0, np.zeros(4095)))
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
