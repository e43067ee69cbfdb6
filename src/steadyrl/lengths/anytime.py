"""The best that can be done at every time, and the rule that attains it.

Copies start together at time 1 with age 1. Let L be the steps of an episode in the stream, S(k) = P(L >= k), and
Z(t) = S(1) + ... + S(t); at steady state P(A = k) = S(k) / E[L].

*SAME_STEP*, where a reset takes no step of its own. No copy is older than t at time t, so the ages are at least

    P(A > t)

away from the steady state, whatever one does. Truncating, after step t, each episode that goes on with probability
c(t) = S(t+1) / Z(t+1) attains it at every t: if the ages at t are S(k) / Z(t) for k <= t, then S(k+1) / Z(t) reach age
k + 1, a share Z(t) / Z(t+1) of which stays, and age 1 gets what is missing, 1 / Z(t+1). By induction the ages are the
stationary ones given that A <= t, always.

*NEXT_STEP*, where the step after an end is the reset, terminal states are in the stream, and L = T. A copy cannot be
truncated in the step of its reset. So nobody is truncated at time 1, no episode begins at time 2, and at time t nobody
can have age t - 1. Hence the ages are at least

    P(A > t) + P(A = t - 1),    t >= 2

away. If every episode has two actions or more (T >= 3), that is attained at every t, too: with Z'(t) = Z(t) - S(t-1),
let 1 / Z'(t+1) of the copies begin an episode at time t, and bring the ages from 3 on to a common multiple of S(k) by
truncating the rest. (Episodes of one action leave no moment at which they could be truncated.)

*From any ages.* When lengths change, copies that have the share n(k) at age k at that moment can have age k + t after t
more steps for a share n(k) S(k+t) / S(k) at most, and every age up to t by truncation. So after t steps they are at
least

    sum over j > t of max(0, P(A = j) - n(j-t) S(j) / S(j-t))

away from the steady state of the new lengths.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import as_numbers, as_steps
from steadyrl.errors import LengthsError
from steadyrl.lengths.distribution import EpisodeLengths, check_lengths

Array = NDArray[np.float64]


def anytime_distance(lengths: EpisodeLengths, steps: int, *, same_step: bool = True) -> Array:
    """Return the smallest possible distance of the ages from the steady state at times 1, ..., steps.

    It is attained at every time by anytime-optimal staggering (`StaggerController`), in the limit of many copies.

    Args:
        lengths: the distribution of T; with `same_step` an episode takes T - 1 steps in the stream.
        steps: the last time.
        same_step: whether resets happen within the step that ends an episode (SAME_STEP, Stable-Baselines3).

    Example:
        >>> anytime_distance(EpisodeLengths.from_gymnasium([4]), 5).tolist()
        [0.75, 0.5, 0.25, 0.0, 0.0]
    """
    survival = stream_survival(lengths, same_step=same_step)
    steps = as_steps(steps, LengthsError)
    ages = survival / survival.sum()
    beyond = np.append(ages[::-1].cumsum()[::-1], 0.0)  # entry t - 1: P(A >= t)
    time = np.arange(1, steps + 1)
    found = beyond[np.minimum(time, len(ages))]
    if not same_step:
        hole = np.where((time >= 2) & (time - 1 <= len(ages)), ages[np.clip(time - 2, 0, len(ages) - 1)], 0.0)
        found = found + hole
    distance: Array = np.clip(found, 0.0, 1.0)
    return distance


def least_distance(lengths: EpisodeLengths, steps: int) -> Array:
    """Return P(A > t) for t = 1, ..., steps, resets counted: what no way whatsoever can be below at time t.

    Example:
        >>> least_distance(EpisodeLengths.from_gymnasium([3]), 5).tolist()  # T = 4
        [0.75, 0.5, 0.25, 0.0, 0.0]
    """
    check_lengths(lengths)
    ages = lengths.survival[1:] / lengths.mean
    beyond = np.append(ages[::-1].cumsum()[::-1], 0.0)
    found: Array = np.clip(beyond[np.minimum(np.arange(1, as_steps(steps, LengthsError) + 1), len(ages))], 0.0, 1.0)
    return found


def truncation_probabilities(lengths: EpisodeLengths, steps: int) -> Array:
    """Return c(t) = S(t+1) / Z(t+1), t = 1, ..., steps: the share to truncate of those who go on after step t.

    This is the rule for SAME_STEP.

    Example:
        >>> truncation_probabilities(EpisodeLengths.from_gymnasium([4]), 5).round(3).tolist()
        [0.5, 0.333, 0.25, 0.0, 0.0]
    """
    survival = stream_survival(lengths, same_step=True)
    steps = as_steps(steps, LengthsError)
    padded = np.append(survival, np.zeros(max(steps + 1 - len(survival), 0)))
    probabilities: Array = (padded / np.cumsum(padded))[1 : steps + 1]
    return probabilities


def expected_truncations(lengths: EpisodeLengths, steps: int | None = None) -> float:
    """Return how often a copy is truncated in the first `steps` steps, on average (by default in all), with SAME_STEP.

    In step t a share 1 / Z(t+1) of the copies begins an episode, of which (1 - S(t+1)) / Z(t) after a natural end.

    Example:
        >>> round(expected_truncations(EpisodeLengths.from_gymnasium([200])), 2)  # ln 200 = 5.3
        4.88
    """
    survival = stream_survival(lengths, same_step=True)
    last = len(survival) if steps is None else as_steps(steps, LengthsError)
    padded = np.append(survival, np.zeros(max(last + 1 - len(survival), 0)))
    total = np.cumsum(padded)
    return float((1 / total[1 : last + 1] - (1 - padded[1 : last + 1]) / total[:last]).sum())


def reachable_distance(ages: ArrayLike, lengths: EpisodeLengths, steps: int, *, same_step: bool = True) -> Array:
    """Return the smallest possible distance after 1, ..., steps more steps, from any ages, under these lengths.

    Args:
        ages: the share (or number) of copies at age 1, 2, ... at this moment.
        lengths: the distribution of T from now on.
        steps: the last time.
        same_step: whether resets happen within the step that ends an episode.

    Example:
        >>> fixed = EpisodeLengths.from_gymnasium([4])
        >>> reachable_distance([1, 1, 0, 0], fixed, 4).tolist()  # two ages of four are there
        [0.25, 0.0, 0.0, 0.0]
    """
    survival = stream_survival(lengths, same_step=same_step)
    shares = as_numbers("ages", ages, LengthsError)
    if shares.ndim != 1 or not len(shares) or (shares < 0).any() or not shares.sum() > 0:
        raise LengthsError(f"ages have shape {shares.shape}; give the share of copies at age 1, 2, ..., none negative")
    shares = shares / shares.sum()
    stationary = survival / survival.sum()
    n = len(stationary)
    known = np.append(shares, np.zeros(n))[:n]
    alive = np.where(survival > 0, known / np.where(survival > 0, survival, 1.0), 0.0)
    result = np.zeros(as_steps(steps, LengthsError))
    for t in range(1, len(result) + 1):
        if t >= n:
            break
        supply = alive[: n - t] * survival[t:]
        result[t - 1] = np.maximum(stationary[t:] - supply, 0.0).sum()
    return result


def stream_survival(lengths: EpisodeLengths, *, same_step: bool) -> Array:
    """Return S(1), S(2), ...: the probability that an episode takes k steps or more in the stream.

    Raises:
        LengthsError: if, with `same_step`, some episodes are a reset and no action: they leave no trace in the stream.
    """
    check_lengths(lengths)
    if same_step and (lengths.longest < 2 or lengths.probabilities[1] > 0):
        raise LengthsError("some episodes have T = 1, a reset and no action: they leave no trace in this stream")
    survival: Array = lengths.survival[1 + int(same_step) :].copy()
    return survival
