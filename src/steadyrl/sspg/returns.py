"""Returns of a stretch of a stream that never stops: lambda-returns with gamma = 1 inside an episode, 0 past its end.

    delta_t = r_t + V(s_{t+1}) [s_{t+1} does not end the episode] - V(s_t)
    A_t     = delta_t + lambda [...] A_{t+1}                                  the advantage; Q = V + A

The stream is the learning process itself (NEXT_STEP): a terminal state is one of its states, and the
transition out of it is the reset, which belongs to no episode's return.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def lambda_advantages(rewards: Array, values: Array, ends: Flags, breaks: Flags, trace: float) -> Array:
    """Return the advantages A_t, [n, K].

    Args:
        rewards: [n, K], of the transitions t -> t + 1.
        values: [n + 1, K], V of the states at t = 0, ..., n.
        ends: [n, K], whether the state at t + 1 is worth nothing more: its episode is over.
        breaks: [n, K], whether what follows the state at t + 1 does not continue the episode; ends are breaks, and so
            are time limits at which V(s_{t+1}) is taken instead.
        trace: lambda.

    Example:
        >>> one = np.ones((3, 1))
        >>> over = np.array([[False], [False], [True]])
        >>> lambda_advantages(one, 0 * np.ones((4, 1)), over, over, 1.0).ravel().tolist()
        [3.0, 2.0, 1.0]
    """
    advantages = rewards + np.where(ends, 0.0, values[1:]) - values[:-1]
    carry = np.where(breaks, 0.0, trace)
    for t in range(len(rewards) - 2, -1, -1):
        advantages[t] += carry[t] * advantages[t + 1]
    return advantages
