"""Textbook MDPs, whose episodes end in absorbing states, as learning processes.

A textbook stops the clock where an episode ends: its terminal states lead to themselves for ever. A learning process
goes on, since the agent starts the next episode. So the rows of the absorbing states are replaced by the reset, which
leads to the textbook's start states, and the process starts at a terminal state:

    textbook:           start -> ... -> goal -> goal -> goal -> ...
    learning process:   goal --reset--> start -> ... -> goal --reset--> start -> ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from steadyrl.common.checks import as_distribution, as_numbers, plain_array, shown
from steadyrl.errors import ProcessError
from steadyrl.exact.toy_text import Model, read_table
from steadyrl.exact.validation import normalised, sparse_copy, square_matrices

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def convert(P: Any, R: Any, start: Any, terminal: Any) -> Model:
    """Return the learning process's arrays; see `LearningProcess.from_mdp` for the arguments."""
    flagged = None
    if _is_table(P):
        P, rewards, flagged = _read_table(P)
        terminal = flagged if terminal is None else terminal
        R = rewards if R is None else R
    if R is None or terminal is None:
        missing = "R" if R is None else "terminal"
        raise ProcessError(f"{missing} is None; only a table P[state][action] of tuples holds it already")
    given, tolerance = square_matrices(P)
    n_states = given[0].shape[0]
    ends = _as_terminal(terminal, n_states)
    if flagged is not None and (flagged & ~ends).any():
        raise ProcessError(
            f"transitions to state {np.argmax(flagged & ~ends)} are flagged as terminated in P, but terminal does not "
            "name it; name it, or use LearningProcess.from_gymnasium, where a state may also occur in mid-episode"
        )
    reset = _as_start(start, ends)
    expected = _as_rewards(R, given, ends)
    keep = sp.diags_array((~ends).astype(float))
    restart = sp.csr_array(ends.astype(float)[:, None]) @ sp.csr_array(reset[None, :])
    matrices = []
    for action, each in enumerate(given):
        matrix = sparse_copy(each)
        _require_absorbing(matrix, action, ends)
        matrices.append(normalised((keep @ matrix + restart).tocsr(), action, tolerance))
    initial = np.zeros(n_states)
    initial[np.argmax(ends)] = 1.0
    return Model(matrices, expected, initial, None, np.flatnonzero(~ends).tolist())


def _as_terminal(terminal: Any, n_states: int) -> Mask:
    """Return the terminal states as a mask [S], from a state, several, or a mask."""
    values = plain_array("terminal", terminal, ProcessError)
    if values.dtype == bool and values.shape == (n_states,):
        mask: Mask = values.copy()
    else:
        mask = _mask_of("terminal", values, n_states, "or a mask of booleans [S]")
    if not mask.any():
        raise ProcessError(
            "terminal names no state, so episodes would never end; name the states in which they do, or cut episodes "
            "with a time limit (process.with_time_limit)"
        )
    return mask


def _as_start(start: Any, ends: Mask) -> Array:
    """Return the distribution [S] of an episode's first state, from a state, several, a mask or a distribution."""
    n_states = len(ends)
    values = plain_array("start", start, ProcessError)
    # Whole numbers are states, except those of a distribution on one state, which would be states named twice.
    one_hot = values.dtype.kind in "iu" and bool(np.isin(values, (0, 1)).all()) and values.sum() == 1
    if values.shape == (n_states,) and (values.dtype.kind == "f" or one_hot):
        reset = np.maximum(as_distribution("start", values, ProcessError), 0.0)
        reset /= reset.sum()
    elif values.shape == (n_states,) and values.dtype == bool and values.any():
        reset = values / values.sum()
    else:
        mask = _mask_of("start", values, n_states, "or a distribution [S]")
        reset = mask / mask.sum()
    both = np.flatnonzero((reset > 0) & ends)
    if len(both):
        raise ProcessError(
            f"state {both[0]} is a start state and terminal too, so an episode could end before its first action; name "
            "the states in which episodes begin as start, and those in which they end as terminal"
        )
    return reset


def _mask_of(what: str, values: NDArray[Any], n_states: int, other: str) -> Mask:
    states = np.atleast_1d(values)
    numbers = states.ndim == 1 and states.dtype.kind in "iu"
    if not numbers or (states < 0).any() or (states >= n_states).any():
        raise ProcessError(
            f"{what} is {shown(values.tolist())}; it must be a state from 0 to {n_states - 1}, several states, {other}"
        )
    if len(np.unique(states)) < len(states):
        raise ProcessError(f"{what} is {shown(values.tolist())}, which names a state twice; give each once, {other}")
    mask = np.zeros(n_states, dtype=bool)
    mask[states] = True
    return mask


def _as_rewards(R: Any, given: list[Any], ends: Mask) -> Array:
    """Return rewards [S] on arrival or [S, A] expected, with no reward for leaving a terminal state."""
    n_states, n_actions = len(ends), len(given)
    sparse = isinstance(R, list | tuple) and any(sp.issparse(each) for each in R)
    values = None if sparse else as_numbers("R", R, ProcessError)
    shapes = [each.shape for each in R] if values is None else [values.shape]
    if values is not None and values.shape == (n_states,):
        return values
    if values is not None and values.shape == (n_states, n_actions):
        expected = values
    elif shapes in ([(n_actions, n_states, n_states)], [(n_states, n_states)] * n_actions):
        of_actions = R if values is None else values.reshape(n_actions, n_states, n_states)
        expected = np.column_stack([_expected(p, r) for p, r in zip(given, of_actions, strict=True)])
    else:
        raise ProcessError(
            f"R has shape {shapes[0] if len(shapes) == 1 else shapes}; it must be ({n_states},), received on arrival "
            f"in a state, ({n_states}, {n_actions}), the reward of an action, or ({n_actions}, {n_states}, "
            f"{n_states}), the reward of a transition"
        )
    paid = np.argwhere((expected != 0) & ends[:, None])
    if len(paid):
        state, action = (int(i) for i in paid[0])
        raise ProcessError(
            f"R gives action {action} in state {state} the reward {expected[state, action]}, but episodes end in state "
            f"{state}, and no action is taken there; give the reward to the transitions that lead there, or give R as "
            f"({n_states},), received on arrival in a state"
        )
    return expected


def _expected(matrix: Any, rewards: Any) -> Array:
    """Return sum_t P(s, t) R(s, t), [S]; transitions of probability zero do not count, whatever their reward."""
    probability, reward = sp.csr_array(matrix, dtype=float), sp.csr_array(rewards, dtype=float)
    if not np.isfinite(reward.data).all():
        raise ProcessError("R has an entry that is not finite; rewards must be finite")
    total: Array = np.asarray(probability.multiply(reward).sum(axis=1)).ravel()
    return total


def _require_absorbing(matrix: Any, action: int, ends: Mask) -> None:
    """Raise if a terminal state leads to one that is not: its episode would go on."""
    rows = np.repeat(np.arange(len(ends)), np.diff(matrix.indptr))
    leaks = np.flatnonzero(ends[rows] & ~ends[matrix.indices] & (matrix.data != 0))
    if len(leaks):
        state, target = int(rows[leaks[0]]), int(matrix.indices[leaks[0]])
        raise ProcessError(
            f"state {state} is terminal, but action {action} leads from it to state {target} with probability "
            f"{matrix.data[leaks[0]]}; a terminal state of an MDP leads to itself. If that row is the reset, give the "
            "arrays to LearningProcess(transitions, rewards, initial) instead"
        )


def _is_table(P: Any) -> bool:
    """Return whether P is Gymnasium's P[state][action] = [(probability, next state, reward, terminated), ...]."""
    if not isinstance(P, Mapping | list | tuple) or not len(P):
        return False
    try:
        first = P[0][0][0]
    except (KeyError, IndexError, TypeError, NotImplementedError):
        return isinstance(P, Mapping)
    return isinstance(first, tuple | list)


def _read_table(table: Any) -> tuple[list[Any], Array, Mask]:
    """Return transitions, expected rewards [S, A] and the states [S] that transitions flagged as terminated lead to."""
    used, n_states, n_actions = read_table(table, with_ends=False)
    state, action, target = (used[:, i].astype(np.int64) for i in (0, 1, 3))
    rewards = np.zeros((n_states, n_actions))
    np.add.at(rewards, (state, action), used[:, 2] * used[:, 4])
    matrices = []
    for a in range(n_actions):
        here = action == a
        matrices.append(sp.coo_array((used[here, 2], (state[here], target[here])), (n_states, n_states)).tocsr())
    flagged = np.zeros(n_states, dtype=bool)
    flagged[target[used[:, 5] != 0]] = True
    return matrices, rewards, flagged
