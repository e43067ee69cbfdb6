"""What a log of finished episodes shows: the bias of "finished episodes only", exactly, by renewal.

By time t an episode of l actions has finished if it began at t - l or before. With u(s) the probability that an episode
begins at time s, U(t) = u(0) + ... + u(t), p(l) = P(L = l) and g(l) the mean return of an episode of l actions, an
environment has finished p(l) U(t - l) episodes of l actions on average, so

    mean over finished episodes at t  =  sum_l p(l) g(l) U(t - l)  /  sum_l p(l) U(t - l).

U grows with time, so short episodes weigh more than long ones; episodes longer than t are not there at all. For
environments that were reset together, u(0) = 1 and u follows the renewal equation. At steady state u is constant, and
the bias does not vanish: of the episodes that begin after the log does, short ones finish first.

The ratio is one of expectations: the mean over the finished episodes of *many* environments. The expectation of the
ratio, the average log of few environments, differs by a term of the order of one over the number of environments.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import as_numbers, as_steps, check_choice, check_flag, whole_number
from steadyrl.errors import LengthsError
from steadyrl.lengths.distribution import EpisodeLengths, check_lengths
from steadyrl.lengths.renewal import renewal_sequence
from steadyrl.numerics.convolution import fftconvolve

Array = NDArray[np.float64]

_DIRECT = 2e7  # multiplications up to which sums are made directly
_LARGEST = 1e290  # return; weighted sums of larger ones could overflow
_NOTHING = 1e-12  # episodes; fewer are none, or rounding


def finished_mean(
    lengths: EpisodeLengths,
    steps: int,
    *,
    rewards: Any = None,
    start: Literal["together", "steady"] = "together",
    same_step: bool = False,
    window: int | None = None,
) -> Array:
    """Return the expected mean return over the episodes that have finished by each time 0, 1, ..., steps.

    The true mean is sum_l p(l) g(l); with the default rewards it is the mean number of actions, `lengths.mean` - 1.

    Args:
        lengths: distribution of T = l + 1, for episodes of l actions.
        steps: last time, in steps of each environment.
        rewards: mean reward of an episode's first, second, ... action; 1 for each by default, so that the mean is that
            of the lengths.
        start: "together", if all environments were reset at time 0; "steady", if they are at steady state and the log
            begins at time 0, with episodes that begin from then on. (A log that has been kept all along is unbiased
            at steady state.)
        same_step: whether environments are reset within the step that ends an episode (SAME_STEP, Stable-Baselines3);
            otherwise (NEXT_STEP) a reset takes a step.
        window: count only the episodes that finished in the last so many steps; by default all of them.

    Returns:
        One number for each time; nan while no episode can have finished.

    Raises:
        LengthsError: if an argument cannot be used.

    Example:
        >>> lengths = EpisodeLengths.from_gymnasium([50, 400])
        >>> found = finished_mean(lengths, 600, same_step=True)
        >>> [round(float(found[t]) / 225, 3) for t in (50, 399, 600)]
        [0.222, 0.222, 0.764]
    """
    check_lengths(lengths)
    steps = as_steps(steps, LengthsError)
    check_flag("same_step", same_step, LengthsError)
    check_choice("start", start, ("together", "steady"), LengthsError)
    actions = lengths.probabilities[1:]
    if same_step and actions[0] > 0:
        raise LengthsError(
            "some episodes have no action (T = 1), and with SAME_STEP they would take no time at all; leave same_step "
            "False"
        )
    returns = _returns(rewards, len(actions))
    if start == "together":
        cycle = EpisodeLengths(actions) if same_step else lengths
        begun = np.cumsum(renewal_sequence(cycle, steps))
    else:
        begun = np.arange(1.0, steps + 2) / (lengths.mean - same_step)
    count, total = _convolved(actions, begun), _convolved(actions * returns, begun)
    if window is not None:
        width = min(whole_number("window", window, LengthsError), len(count))
        count, total = (x - np.append(np.zeros(width), x)[: len(x)] for x in (count, total))
    some = count > _NOTHING
    return np.where(some, total / np.where(some, count, 1.0), np.nan)


def _returns(rewards: Any, size: int) -> Array:
    """Return g(0), ..., g(size - 1): the sum of the rewards of that many actions."""
    if rewards is None:
        return np.arange(size, dtype=float)
    each = as_numbers("rewards", rewards, LengthsError)
    if each.ndim != 1 or len(each) < size - 1 or not np.isfinite(each).all():
        raise LengthsError(
            f"rewards have shape {each.shape}; they must be finite numbers, one for each of the {size - 1} actions of "
            "the longest episode"
        )
    with np.errstate(over="ignore"):  # what overflows is refused
        returns = np.append(0.0, np.cumsum(each))[:size]
    if not (np.abs(returns) < _LARGEST).all():
        raise LengthsError(
            f"the sum of the rewards overflows: they go from {each.min():g} to {each.max():g}; scale them down"
        )
    return returns


def _convolved(weights: Array, begun: Array) -> Array:
    """Return sum_l weights(l) begun(t - l) for each t."""
    places = np.flatnonzero(weights[: len(begun)])
    if len(places) * float(len(begun)) > _DIRECT:
        return fftconvolve(weights[: len(begun)], begun)[: len(begun)]
    found = np.zeros(len(begun))
    for length in places.tolist():
        found[length:] += weights[length] * begun[: len(begun) - length]
    return found
