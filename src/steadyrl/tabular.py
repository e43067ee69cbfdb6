"""Tabular policies: arrays [S, A] whose rows are distributions over actions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from steadyrl.errors import PolicyError
from steadyrl.layers import spread_policy
from steadyrl.process import LearningProcess

Array = NDArray[np.float64]

SUM_TOLERANCE = 1e-6
"""How far a row may be from summing to one (single precision is common); it is then divided by its sum."""


def uniform_policy(process: LearningProcess) -> Array:
    """Return the policy that takes every action with the same probability."""
    return np.full((process.n_states, process.n_actions), 1 / process.n_actions)


def softmax_policy(logits: ArrayLike) -> Array:
    """Return the policy pi(a|s) = exp(logits[s, a]) / sum_b exp(logits[s, b]).

    A logit of -inf stands for an action that is never taken.
    """
    values = np.asarray(logits, dtype=float)
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


def repeat_policy(process: LearningProcess, policy: ArrayLike) -> Array:
    """Return the policy of a time-limited process that does at every step what `policy` does.

    `policy` [S, A] is over the states without their step, as before `with_time_limit`.
    """
    if process.layers is None:
        return as_policy(process, policy)
    return spread_policy(process.layers, as_policy(process.layers.base, policy))


def as_policy(process: LearningProcess, policy: ArrayLike) -> Array:
    """Return the policy as an array whose rows sum to one, or say which row is no distribution.

    Raises:
        PolicyError: naming the state, if shape, sign or sum is wrong.
    """
    values = np.asarray(policy, dtype=float)
    shape = (process.n_states, process.n_actions)
    if values.shape != shape:
        hint = ""
        if process.layers is not None and values.shape == (process.layers.base.n_states, shape[1]):
            hint = "; this process has a time limit: repeat_policy(process, policy) repeats it at every step"
        raise PolicyError(f"the policy has shape {values.shape}, but the process needs {shape}{hint}")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        state, action = (int(i) for i in np.argwhere(bad)[0])
        raise PolicyError(
            f"the policy's probability of action {action} in state {process.name(state)} is "
            f"{values[state, action]}; it must be a number from 0 to 1"
        )
    sums = values.sum(axis=1)
    off = np.abs(sums - 1) > SUM_TOLERANCE
    if off.any():
        state = int(np.argmax(off))
        raise PolicyError(
            f"the policy's probabilities in state {process.name(state)} sum to {float(sums[state])!r}, not to "
            "1; every row must be a distribution over actions"
        )
    return values if (sums == 1).all() else values / sums[:, None]
