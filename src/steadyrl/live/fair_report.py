"""`FairReport`: mean return, length and success of all episodes with intervals, beside what finished episodes show.

Intervals are made from estimates with one environment left out at a time (jackknife). Of Student's interval and that of
Hall (1992), which corrects for skewness, the lower of the lower ends and the higher of the higher ends is taken: few
environments and heavy tails make each of them too short on one side. Probabilities have Wilson's interval, for as many
episodes as would explain the jackknife's variance.

Where some episodes outlive the oldest age seen, what they add beyond it is extrapolated if they are 10% of all or fewer
and enough ends were seen in old age (`fair_law`); else the value is that of the first steps. If up to 5% go on, the
jackknife repeats the extrapolation, or without one the interval is extended by what they may add. If more go on, the
ends of the interval are what is sure for rewards within their range and episodes within the time limit, and infinite
without a limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from steadyrl.common.intervals import Interval, student_interval
from steadyrl.errors import StatisticsError
from steadyrl.live.fair_law import LENGTH, RETURN, SUCCESS, FairEstimate, FairState

Array = NDArray[np.float64]

_RESOLVED = 1e-9  # a share of unresolved episodes below it is rounding
_SMALL = 0.05  # share of unresolved episodes up to which an interval is extended by what they may add


@dataclass(frozen=True, repr=False)
class FairReport:
    """Mean return, length and success of all episodes: finished, cut short and running ones."""

    mean_return: Interval
    """Mean return of an episode."""
    average_episode_length: Interval
    """E[T], the mean number of transitions from one reset to the next, the reset included: Gymnasium's mean episode
    length plus one, in every autoreset mode."""
    mean_gymnasium_length: Interval
    """Mean number of actions in an episode, as Gymnasium counts: E[T] - 1."""
    success: Interval | None
    """Probability that an episode ends in success; None if nobody said what success is."""
    unresolved: float
    """Share of episodes that outlive the oldest age seen, so that the rest of their rewards and steps is not known."""
    extrapolated: tuple[float, float]
    """How much of the mean return, and of the mean length, is extrapolated: what unresolved episodes add beyond the
    oldest age, if they go on like those that ended in old age. (0, 0) if none is unresolved, or if too little is known
    for that: then the values are those of the first `oldest_age` steps of an episode."""
    oldest_age: int
    """The number of steps up to which episodes were seen."""
    return_bounds: tuple[float, float]
    """Between which the mean return lies, whatever unresolved episodes do, if rewards stay in `reward_range` and
    episodes within the time limit; the ends of `mean_return` if no episode is unresolved."""
    reward_range: tuple[float, float]
    """Smallest and largest reward: as given, or else as seen so far."""
    finished_only: float
    """Mean return of the episodes that have finished, as it is commonly logged; biased, since short ones finish first.
    nan before the first."""
    finished_length: float
    """Mean length of the episodes that have finished, in actions."""
    finished_episodes: int
    """Number of episodes seen from start to end."""
    steps: int
    """Steps of all environments so far, resets included."""
    window: float
    """Steps of each environment that the numbers rest on: all, or with a memory the sum of their weights."""
    level: float
    """Confidence level of the intervals."""

    @property
    def message(self) -> str:
        """The report in sentences."""
        lines = [
            f"mean return {_shown(self.mean_return)}, mean episode length {_shown(self.mean_gymnasium_length)} steps "
            f"({self.level:.0%} intervals; E[T] = {self.average_episode_length.value:.6g} with the reset)"
        ]
        if self.success is not None:
            lines.append(f"success {_shown(self.success, percent=True)}")
        if self.finished_episodes:
            lines.append(
                f"the {self.finished_episodes:,} finished episodes alone show a mean return of "
                f"{self.finished_only:.6g} and a mean length of {self.finished_length:.6g} steps"
            )
        else:
            lines.append("no episode has finished yet")
        if self.unresolved > 0:
            lines.append(self._unresolved())
        return "\n".join(lines)

    def _unresolved(self) -> str:
        low, high = self.return_bounds
        smallest, largest = self.reward_range
        if math.isfinite(low) and math.isfinite(high):
            bounds = f"it lies between {low:.6g} and {high:.6g}"
        elif math.isfinite(low) or math.isfinite(high):
            bounds = f"it is {low:.6g} or more" if math.isfinite(low) else f"it is {high:.6g} or less"
        else:
            bounds = "it can be anything"
        more = self.extrapolated[1] / self.unresolved
        values = (
            f"The values suppose that they go on for {more:.4g} more steps on average, like those that ended in old age"
            if more > 0
            else f"The values are those of the first {self.oldest_age:,} steps of an episode"
        )
        return (
            f"{self.unresolved:.2%} of all episodes outlive the oldest age seen ({self.oldest_age:,} steps). {values}. "
            f"Of the mean return of whole episodes, with rewards from {smallest:.6g} to {largest:.6g}, this much is "
            f"sure: {bounds}"
        )

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        success = "" if self.success is None else f"success={_shown(self.success)}, "
        return (
            f"FairReport(mean_return={_shown(self.mean_return)}, "
            f"average_episode_length={_shown(self.average_episode_length)}, {success}unresolved={self.unresolved:.3g}, "
            f"finished_only={self.finished_only:.6g} of {self.finished_episodes})"
        )


def make_report(
    state: FairState,
    found: FairEstimate,
    *,
    level: float,
    with_success: bool,
    reward_range: tuple[float, float] | None,
    longest: float,
) -> FairReport:
    """Return the report on a state and its estimates.

    Raises:
        StatisticsError: if rewards are so large that their sums overflow.
    """
    whole, whole_left_out = found.values + found.rest, found.left_out + found.rest_left_out
    if not all(np.isfinite(part).all() for part in (whole, whole_left_out, state.finished)):
        raise StatisticsError(
            f"the sum of rewards overflows: they go from {state.range[0]:.6g} to {state.range[1]:.6g}; scale them down"
        )
    unresolved = found.unresolved if found.unresolved > _RESOLVED else 0.0
    first, first_steps = (
        jackknife_interval(float(found.values[i]), found.left_out[i], level) for i in (RETURN, LENGTH)
    )
    returns, lengths = (jackknife_interval(float(whole[i]), whole_left_out[i], level) for i in (RETURN, LENGTH))
    smallest, largest = reward_range if reward_range is not None else (float(state.range[0]), float(state.range[1]))
    bounds, most = (returns.low, returns.high), max(longest - found.oldest, 1.0)
    if unresolved:
        bounds = (
            first.low + unresolved * (min(smallest, smallest * most) if smallest else 0.0),
            first.high + unresolved * (max(largest, largest * most) if largest else 0.0),
        )
    unknown = unresolved if unresolved > _SMALL or not found.rest[LENGTH] else 0.0
    if unknown > _SMALL:
        returns = Interval(returns.value, min(bounds[0], returns.value), max(bounds[1], returns.value))
        lengths = Interval(lengths.value, first_steps.low, max(first_steps.high + unresolved * most, lengths.value))
    elif unknown:
        returns = _extended(returns, unresolved * float(found.tail[RETURN]))
        lengths = _extended(lengths, unresolved * float(found.tail[LENGTH]))
    lengths = Interval(lengths.value, max(lengths.low, min(lengths.value, 1.0)), lengths.high)
    weight, finished_returns, finished_lengths = (float(x) for x in state.finished)
    return FairReport(
        mean_return=returns,
        average_episode_length=Interval(lengths.value + 1, lengths.low + 1, lengths.high + 1),
        mean_gymnasium_length=lengths,
        success=_success(state, whole, whole_left_out, unknown, level) if with_success else None,
        unresolved=unresolved,
        extrapolated=(float(found.rest[RETURN]), float(found.rest[LENGTH])),
        oldest_age=found.oldest,
        return_bounds=bounds,
        reward_range=(smallest, largest),
        finished_only=finished_returns / weight if weight > 0 else math.nan,
        finished_length=finished_lengths / weight if weight > 0 else math.nan,
        finished_episodes=state.complete,
        steps=state.steps * len(state.ages),
        window=float(state.tables[0].sum()) / state.weight / len(state.ages),
        level=level,
    )


def jackknife_interval(value: float, left_out: Array, level: float) -> Interval:
    """Return the interval of an estimate from its values with one independent unit left out; infinite for one unit.

    Example:
        >>> x = np.array([1.0, 2.0, 3.0, 6.0])
        >>> found = jackknife_interval(x.mean(), (x.sum() - x) / 3, 0.9)
        >>> round(found.low, 2), round(found.high, 2)
        (0.46, 6.26)
    """
    value, n = float(value), len(left_out)
    if n < 2:
        return Interval(value, -math.inf, math.inf)
    apart = (n - 1) * (float(left_out.mean()) - left_out)  # what each unit adds, as if the estimate were a mean
    scale = float(np.abs(apart).max())  # so that squares do not overflow
    if not scale > 0:
        return Interval(value, value, value)
    apart /= scale
    deviation = scale * math.sqrt(float(apart @ apart) / (n - 1))
    student = student_interval(value, deviation / math.sqrt(n), n - 1, level)
    skewness = float(np.mean((apart * (scale / deviation)) ** 3))
    quantile = float(stdtrit(n - 1, 0.5 + level / 2)) / math.sqrt(n)
    low, high = (value - deviation * _unskewed(x, skewness, n) for x in (quantile, -quantile))
    return Interval(value, min(student.low, low), max(student.high, high))


def _unskewed(x: float, skewness: float, n: int) -> float:
    """Return u with u + g u^2 / 3 + g^2 u^3 / 27 + g / (6 n) = x: Hall's cubic transformation, inverted."""
    if abs(skewness) < 1e-6:
        return x
    return 3 * (float(np.cbrt(1 + skewness * (x - skewness / (6 * n)))) - 1) / skewness


def _extended(interval: Interval, extra: float) -> Interval:
    """Return the interval, extended by what may be added to the value."""
    return Interval(interval.value, interval.low + min(extra, 0.0), interval.high + max(extra, 0.0))


def _success(state: FairState, values: Array, estimates: Array, unknown: float, level: float) -> Interval:
    p, left_out = min(max(float(values[SUCCESS]), 0.0), 1.0), estimates[SUCCESS]
    n = len(left_out)
    if n < 2:
        return Interval(p, 0.0, 1.0)
    variance = float(((left_out - left_out.mean()) ** 2).sum()) * (n - 1) / n
    ends = float(state.last_rewards[0]) / state.weight
    mixed = 0 < p < 1 and variance > 0
    episodes = max(p * (1 - p) / variance if mixed else ends, 1.0)
    q = float(stdtrit(n - 1, 0.5 + level / 2)) ** 2 / episodes
    middle, reach = (p + q / 2) / (1 + q), math.sqrt(q * (p * (1 - p) + q / 4)) / (1 + q)
    return Interval(p, max(min(middle - reach, p), 0.0), min(max(middle + reach, p) + unknown, 1.0))


def _shown(interval: Interval, *, percent: bool = False) -> str:
    value, low, high = (f"{x:.1%}" if percent else f"{x:.5g}" for x in (interval.value, interval.low, interval.high))
    return f"{value} [{low}, {high}]"
