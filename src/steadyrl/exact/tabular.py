"""Tabular policies: arrays [S, A] whose rows are distributions over actions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from steadyrl.common.checks import SUM_TOLERANCE, as_numbers
from steadyrl.errors import PolicyError
from steadyrl.exact.process import LearningProcess, check_process
from steadyrl.exact.time_limits import spread_policy

Array = NDArray[np.float64]


def uniform_policy(process: LearningProcess) -> Array:
    """Return the policy that takes every action with the same probability."""
    check_process(process)
    return np.full((process.n_states, process.n_actions), 1 / process.n_actions)


def softmax_policy(logits: ArrayLike) -> Array:
    """Return the policy pi(a|s) = exp(logits[s, a]) / sum_b exp(logits[s, b]).

    An action whose logit is -inf is never taken.
    """
    values = as_numbers("logits", logits, PolicyError)
    if values.ndim != 2:
        raise PolicyError(f"logits must be an array [S, A]; got shape {values.shape}")
    bad = np.isnan(values) | (values == np.inf)
    if bad.any():
        state, action = (int(i) for i in np.argwhere(bad)[0])
        raise PolicyError(
            f"logits[{state}, {action}] is {values[state, action]}; logits must be numbers below infinity"
        )
    if np.isneginf(values).all(axis=1).any():
        state = int(np.argmax(np.isneginf(values).all(axis=1)))
        raise PolicyError(f"every logit of state {state} is -inf, which leaves no action to take")
    result: Array = softmax(values, axis=1)
    return result


def extend_policy(process: LearningProcess, policy: ArrayLike) -> Array:
    """Return a policy for every state of the process, from one for fewer states.

    Rows at the end may be missing if they belong to terminal and null states, where actions are ignored. So a policy
    over Gymnasium's states is enough for `from_gymnasium`, and the raw process's policy for a perturbed process.
    For a process with a time limit, `policy` may be that of the process without it; it is then repeated at every step.

    Example:
        >>> from steadyrl import gallery
        >>> process, policy = gallery.corridor(rooms=3)
        >>> extend_policy(process.with_time_limit(5), policy).shape
        (19, 1)
    """
    check_process(process)
    values = as_numbers("the policy", policy, PolicyError)
    if values.ndim != 2:
        raise PolicyError(
            f"the policy has shape {values.shape}; it must be an array [S, A]{_shape_hint(values, (0, 0))}"
        )
    if process.layers is None or len(values) == process.n_states:
        return as_policy(process, _with_last_rows(process, values))
    base = process.layers.base
    return spread_policy(process.layers, as_policy(base, _with_last_rows(base, values)))


def _with_last_rows(process: LearningProcess, values: Array) -> Array:
    """Return the policy with uniform rows appended for terminal and null states that are missing at the end."""
    ignored = process.terminal | process.null_states
    if values.ndim != 2 or len(values) >= process.n_states or not ignored[len(values) :].all():
        return values
    return np.vstack([values, np.full((process.n_states - len(values), values.shape[1]), 1 / values.shape[1])])


def as_policy(process: LearningProcess, policy: ArrayLike) -> Array:
    """Return the policy as an array [S, A] whose rows sum to one.

    Raises:
        PolicyError: if the shape is wrong or a row is not a distribution; the message names the state.
    """
    check_process(process)
    values = as_numbers("the policy", policy, PolicyError)
    shape = (process.n_states, process.n_actions)
    if values.shape != shape:
        raise PolicyError(
            f"the policy has shape {values.shape}, but the process needs {shape}{_shape_hint(values, shape)}"
        )
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        state, action = (int(i) for i in np.argwhere(bad)[0])
        raise PolicyError(
            f"the policy's probability of action {action} in state {process.name(state)} is "
            f"{values[state, action]}; it must be a number from 0 to 1 (for logits, give softmax_policy(logits))"
        )
    sums = values.sum(axis=1)
    off = np.abs(sums - 1) > SUM_TOLERANCE
    if off.any():
        state = int(np.argmax(off))
        raise PolicyError(
            f"the policy's probabilities in state {process.name(state)} sum to {float(sums[state])!r}, not to "
            "1; every row must be a distribution over actions (for logits, give softmax_policy(logits))"
        )
    return values if (sums == 1).all() else values / sums[:, None]


def _shape_hint(values: Array, shape: tuple[int, int]) -> str:
    if values.ndim == 1:
        return "; for one action in each state, give np.eye(n_actions)[actions]"
    if values.shape == shape[::-1]:
        return "; it seems to be transposed"
    if values.ndim == 2 and values.shape[1] == shape[1] and len(values) < shape[0]:
        return (
            "; extend_policy(process, policy) fills in terminal and null states, and repeats it at every step of a "
            "time limit"
        )
    return ""
