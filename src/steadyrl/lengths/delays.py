"""Designed delays: start times that put environment copies at steady state, where they then stay.

If copy i has run D_i steps since its (re)start, their ages follow the mixture sum_D q(D) P(age at D). Choosing q on
D = 1, ..., W so that it comes closest to the stationary ages P(A = k) = P(T >= k) / E[T] is a linear programme with a
solution in closed form:

    D = W + 1 - A,  with A a stationary age given that A <= W;      distance  P(A > W).

*Lower bound:* after at most W steps no age is above W, so the total variation is at least P(A > W). *Attained:* with
this q, episode starts at time -s, h(s) = sum_D q(D) v(D - s), are equally likely at every s <= W (a renewal process
delayed by its own stationary age), so P(age = k) = h(k) P(T >= k) is proportional to P(A = k) for k <= W.

So the smallest window for a tolerance is a quantile of the stationary age, and the whole design takes one pass over the
distribution of lengths. The distance is 0 if W is the longest length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import as_numbers, check_rng, check_tolerance, is_number, shown, whole_number
from steadyrl.common.values import hash_values, same_values
from steadyrl.errors import DelaysError
from steadyrl.lengths.distribution import LONGEST, EpisodeLengths, check_lengths
from steadyrl.lengths.renewal import renewal_sequence
from steadyrl.numerics.convolution import fftconvolve

Array = NDArray[np.float64]

_MOST_COPIES = 100_000_000


@dataclass(frozen=True, eq=False, repr=False)
class Delays:
    """A distribution of delays, and how far from steady state the copies are after them.

    Example:
        >>> delays = design_delays(EpisodeLengths.from_gymnasium([3]))  # T = 4, always
        >>> delays.window, delays.distance, delays.assign(4).tolist()
        (4, 0.0, [1, 2, 3, 4])
    """

    probabilities: Array
    """P(D = k) for k = 0, 1, ..., window; P(D = 0) = 0."""
    distance: float
    """Total variation between the copies' age distribution and the stationary one, in the limit of many copies."""
    lengths: EpisodeLengths | None = None
    """Distribution of T for which the delays were designed; `for_same_step` needs it."""

    def __post_init__(self) -> None:
        values = as_numbers("probabilities", self.probabilities, DelaysError)
        if values.ndim != 1 or len(values) < 2 or not (values >= 0).all() or abs(values.sum() - 1) > 1e-9:
            raise DelaysError(
                f"delays need probabilities P(D = 0), P(D = 1), ..., that sum to 1; got shape {values.shape}, sum "
                f"{float(values.sum())!r}"
            )
        if values[0] != 0:
            raise DelaysError(
                f"P(D = 0) is {values[0]}; delays are at least 1 step, since a copy that has not started has no age"
            )
        if not is_number(self.distance) or not (0 <= self.distance <= 1 or math.isnan(self.distance)):
            raise DelaysError(
                f"distance is {shown(self.distance)}; it must be a number from 0 to 1, the distance of the ages from "
                "the long run, or math.nan where it is not known"
            )
        if self.lengths is not None:
            check_lengths(self.lengths, DelaysError)
        values.flags.writeable = False
        object.__setattr__(self, "probabilities", values)
        object.__setattr__(self, "distance", float(self.distance))  # a Fraction cannot be formatted

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        return f"Delays(window={self.window}, mean={self.mean:.6g}, distance={self.distance:.3g})"

    @property
    def window(self) -> int:
        """The longest delay in steps."""
        return len(self.probabilities) - 1

    @property
    def mean(self) -> float:
        """Mean delay E[D]: the steps per copy that a warm-up (pre-roll) discards."""
        return float(np.arange(len(self.probabilities)) @ self.probabilities)

    def for_same_step(self) -> Delays:
        """Return the delays for a stream without terminal states (SAME_STEP autoreset, Stable-Baselines3).

        In such a stream an episode takes T - 1 steps and its ages are 1, ..., T - 1, so delays designed for T do not
        fit. The new window is the smallest with at most the same distance. Delays that were not designed from lengths
        are returned unchanged: they count steps of whatever stream they are used in.

        Example:
            >>> design_delays(EpisodeLengths.from_gymnasium([3])).for_same_step().assign(3).tolist()
            [1, 2, 3]
        """
        if self.lengths is None:
            return self
        if self.lengths.longest < 2 or self.lengths.probabilities[1] > 0:
            raise DelaysError(
                "some episodes have T = 1 (a reset and no action), which a SAME_STEP stream does not show; "
                "leave them out of the lengths"
            )
        shorter = EpisodeLengths(self.lengths.probabilities[1:])
        beyond = _beyond(stationary_ages(shorter))
        return design_delays(shorter, window=max(int(np.argmax(beyond <= self.distance + 1e-12)), 1))

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return n independent delays; `assign` spreads them more evenly, which matters with few copies."""
        count = whole_number("the number of copies", n, DelaysError, most=_MOST_COPIES)
        return self._at(check_rng(rng, DelaysError).random(count))

    def assign(self, n: int, *, rng: np.random.Generator | None = None) -> NDArray[np.int64]:
        """Return n delays at the quantiles (i + 1/2) / n, as evenly spread as possible; in random order with `rng`."""
        count = whole_number("the number of copies", n, DelaysError, most=_MOST_COPIES)
        found = self._at((np.arange(count) + 0.5) / count)
        return found if rng is None else check_rng(rng, DelaysError).permutation(found)

    def _at(self, levels: Array) -> NDArray[np.int64]:
        edges = np.cumsum(self.probabilities)
        return np.searchsorted(edges / edges[-1], levels, side="right").astype(np.int64)


def design_delays(lengths: EpisodeLengths, window: int | None = None, tolerance: float = 0.01) -> Delays:
    """Return the delays that bring environment copies closest to steady state within a window.

    Args:
        lengths: Distribution of T.
        window: Longest delay in steps; None takes the shortest window whose distance is below the tolerance.
        tolerance: Total variation to stay strictly below; only used without a window.

    Example:
        >>> lengths = EpisodeLengths.from_gymnasium([19, 199])  # 20 or 200: as it is, never at steady state
        >>> delays = design_delays(lengths)
        >>> delays.window, round(delays.distance, 4)
        (198, 0.0091)
    """
    check_lengths(lengths, DelaysError)
    ages = stationary_ages(lengths)
    beyond = _beyond(ages)
    if window is None:
        tolerance = check_tolerance(tolerance)
        window = max(int(np.argmax(beyond < tolerance)), 1)
    window = min(
        whole_number("window", window, DelaysError), lengths.longest
    )  # the distance is 0 there, so a longer window gains nothing
    inside = ages[: window + 1]
    probabilities = np.append(0.0, inside[:0:-1] / inside.sum())
    return Delays(probabilities, float(beyond[window]), lengths)


def uniform_delays(lengths: EpisodeLengths, window: int | None = None) -> Delays:
    """Return delays spread evenly over 1, ..., window; the default window is one average episode length."""
    check_lengths(lengths, DelaysError)
    size = int(np.ceil(lengths.mean)) if window is None else whole_number("window", window, DelaysError, most=LONGEST)
    probabilities = np.append(0.0, np.full(size, 1 / size))
    return Delays(probabilities, delayed_distance(lengths, probabilities, 0)[0])


def stationary_ages(lengths: EpisodeLengths) -> Array:
    """Return P(A = k) for k = 0, 1, ..., the longest: the ages at steady state, P(T >= k) / E[T]."""
    ages = lengths.survival / lengths.mean
    ages[0] = 0.0
    return ages


def _beyond(ages: Array) -> Array:
    """Return P(A > W) for W = 0, 1, ..., the longest."""
    return np.append(ages[::-1].cumsum()[::-1][1:], 0.0)


def delayed_distance(lengths: EpisodeLengths, probabilities: Array, steps: int, ends: Array | None = None) -> Array:
    """Return the phase distance d(0), ..., d(steps) of copies that started D steps before time 0, for random D.

    d(t) = 1/2 sum_k |h(t - k) - 1/E[T]| P(T >= k), with h(s) = sum_D q(D) v(s + D). `ends` is
    v(0), ..., v(window + steps), if it is already known.
    """
    window = len(probabilities) - 1
    ends = renewal_sequence(lengths, window + steps) if ends is None else ends
    # h at -window, ..., steps - 1: the start after a delay of D is at -D
    h = fftconvolve(ends, probabilities[::-1])[: window + steps] if window else ends[:steps]
    rate, n = 1 / lengths.mean, lengths.longest
    gap = np.abs(np.concatenate([np.zeros(n), h]) - rate)
    found = 0.5 * fftconvolve(gap, lengths.survival[1:])
    first = n + window - 1  # index of s = -1, which is age 1 at time 0
    distance: Array = np.clip(found[first : first + steps + 1], 0.0, 1.0)
    return distance


def assigned_distance(lengths: EpisodeLengths, delays: Delays, num_envs: int) -> float:
    """Return the distance from steady state of the expected ages of `num_envs` copies with delays by quantile."""
    share = np.bincount(delays.assign(num_envs), minlength=delays.window + 1) / num_envs
    return float(delayed_distance(lengths, share, 0)[0])


def drawn_distance(lengths: EpisodeLengths, delays: Delays, num_envs: int) -> float:
    """Return the same distance for independently drawn delays, averaged over 20 draws."""
    rng = np.random.default_rng(0)
    found = [np.bincount(delays.draw(num_envs, rng), minlength=delays.window + 1) / num_envs for _ in range(20)]
    ends = renewal_sequence(lengths, delays.window)
    return float(np.mean([delayed_distance(lengths, share, 0, ends)[0] for share in found]))


def refuse_lengths(delays: object) -> None:
    """Raise DelaysError if episode lengths were given where delays are expected."""
    if isinstance(delays, EpisodeLengths):
        raise DelaysError(
            f"delays is EpisodeLengths (E[T] = {delays.mean:.6g}), which says how long episodes are, not when copies "
            "should start; give design_delays(lengths)"
        )
