"""Rewards that follow from others: expected rewards of actions, and the reward of the reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steadyrl.errors import ProcessError
from steadyrl.exact import time_limits

if TYPE_CHECKING:
    from steadyrl.exact.process import LearningProcess

Array = NDArray[np.float64]


def reset_reward(process: LearningProcess) -> Array:
    """Return the expected reward [A] of the reset, which rewards [S, A] must give alike to all terminal states.

    Raises:
        ProcessError: if it depends on the terminal state, so that the return of an episode depends on how the previous
            one ended.
    """
    states = np.flatnonzero(process.terminal)
    rows = process.rewards[states] if process.rewards.ndim == 2 else np.zeros((len(states), process.n_actions))
    differs = ~np.isclose(rows, rows[0], rtol=1e-9, atol=0.0).all(axis=1)
    if differs.any():
        odd = int(states[np.argmax(differs)])
        raise ProcessError(
            f"the reset has the expected rewards {rows[0].tolist()} after {process.name(int(states[0]))}, but "
            f"{process.rewards[odd].tolist()} after {process.name(odd)}, another terminal state, so the return of an "
            "episode depends on how the previous one ended; give rewards for ending in a state as rewards [S], "
            "received on arrival, or as the expected reward of the action that leads there"
        )
    result: Array = rows[0]
    return result


def expected(process: LearningProcess, arrival: Array) -> Array:
    """Return the expected value [S, A] of `arrival` [S] in the state that an action leads to."""
    if process.layers is not None:
        return time_limits.expected(process.layers, arrival)
    return np.column_stack([matrix @ arrival for matrix in process.transitions])
