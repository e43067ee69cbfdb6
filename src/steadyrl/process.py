"""Learning processes: the endless loop of episodes in which an agent learns, as a finite model.

The paper's M_L goes terminal state -> ... -> terminal state -> ... for ever. Its terminal states are
not declared but found (Definition 1): the largest set of states that contains the initial ones
and in which all states and actions have the same transition probabilities, which are those of a
reset. An episode's length T counts the transitions from one terminal state to the next, the
reset included, so an episode of l actions in Gymnasium has T = l + 1.

    state 0 (terminal) --reset--> state 1 --action--> ... --action--> state 0 or another terminal

A reward belongs to the state in which it arrives (`rewards` [S]), or is the expected reward of a
transition (`rewards` [S, A], Gymnasium's way).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from steadyrl import layers as time_limit_layers
from steadyrl.errors import FileFormatError, ProcessError
from steadyrl.layers import Layers
from steadyrl.storage import load_arrays, save_arrays

_Scalar = TypeVar("_Scalar", bound=np.generic)
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

SUM_TOLERANCE = 1e-9
"""How far a row may be from summing to one; within it, the row is divided by its sum."""

ROW_TOLERANCE = 1e-9
"""Two rows are the same if they have the same support and entries that differ by this fraction at most."""


class LearningProcess:
    """A finite learning process, immutable; its terminal states are found, not declared.

    Args:
        transitions: probabilities [A, S, S], or one [S, S] matrix an action, dense or sparse.
        rewards: [S], received on arrival in a state, or [S, A], the expected reward of an action.
        initial: [S], the distribution of the state at time 0, on terminal states.
        names: a name for each state, for messages and tables; by default their numbers.
        null: the number of the null state, or of several, of a perturbed process (see `perturb`). A null
            state never counts as terminal, though its row may be that of a terminal state.
        nonterminal: other states to leave out of the terminal ones. Definition 1's set is the largest, so it takes
            in a state of mid-episode from which every action happens to lead where a reset does; an environment
            that says where its episodes end knows better.

    Raises:
        ProcessError: if an array has the wrong shape, a row is not a distribution, or a value is not finite.

    Example:
        >>> step_or_end = [[[0, 1], [1, 0]]]  # one action: 0 -> 1 -> 0 -> 1 -> ...
        >>> process = LearningProcess(step_or_end, rewards=[0, 5], initial=[1, 0])
        >>> process.terminal.tolist()
        [True, False]
    """

    def __init__(
        self,
        transitions: Any,
        rewards: ArrayLike,
        initial: ArrayLike,
        *,
        names: Sequence[str] | None = None,
        null: int | Sequence[int] | None = None,
        nonterminal: Sequence[int] | None = None,
    ) -> None:
        matrices = _as_matrices(transitions)
        n_actions, n_states = len(matrices), int(matrices[0].shape[0])
        self._n_states, self._n_actions = n_states, n_actions
        self._layers: Layers | None = None
        self._names = None if names is None else tuple(str(name) for name in names)
        if self._names is not None and len(self._names) != n_states:
            raise ProcessError(f"names has {len(self._names)} entries, but there are {n_states} states")
        self._initial = _frozen(_as_initial(initial, n_states))
        self._rewards = _frozen(_as_rewards(rewards, n_states, n_actions))
        self._null = _as_mask("null", null, n_states)
        self._nonterminal = _as_mask("nonterminal", nonterminal, n_states)
        self._matrices: tuple[Any, ...] | None = tuple(_normalised(m, a) for a, m in enumerate(matrices))
        self._terminal = _frozen(_terminal_states(self._matrices, self._initial, self._null | self._nonterminal))

    @property
    def n_states(self) -> int:
        """The number of states, terminal, null and unreachable ones included."""
        return self._n_states

    @property
    def n_actions(self) -> int:
        """The number of actions, the same in every state."""
        return self._n_actions

    @property
    def transitions(self) -> tuple[Any, ...]:
        """One sparse [S, S] matrix (csr_array) of probabilities an action."""
        if self._matrices is None:
            assert self._layers is not None
            self._matrices = tuple(_read_only(m) for m in time_limit_layers.materialise(self._layers))
        return self._matrices

    @property
    def rewards(self) -> Array:
        """Rewards as given: [S] on arrival, or [S, A] expected."""
        return self._rewards

    @cached_property
    def expected_rewards(self) -> Array:
        """Expected reward [S, A] of each action, whichever way the rewards were given."""
        if self._rewards.ndim == 2:
            return self._rewards
        return _frozen(expected(self, self._rewards))

    @property
    def initial(self) -> Array:
        """The distribution [S] of the state at time 0."""
        return self._initial

    @property
    def terminal(self) -> Mask:
        """Which states are terminal, [S]; none if the initial states differ (Definition 1 fails)."""
        return self._terminal

    @property
    def null(self) -> int | None:
        """The null state of a perturbed process (the first, if a detour has several), or None."""
        return int(np.flatnonzero(self._null)[0]) if self._null.any() else None

    @property
    def null_states(self) -> Mask:
        """Which states are null states, [S]."""
        return self._null

    @property
    def nonterminal(self) -> Mask:
        """Which states were declared not to be terminal, [S]."""
        return self._nonterminal

    @property
    def layers(self) -> Layers | None:
        """What a time-limited process is made of; None for any other."""
        return self._layers

    @cached_property
    def reset(self) -> Array:
        """The distribution [S] of the state after a terminal one; zeros if there is none."""
        row = np.zeros(self._n_states)
        if self._layers is not None:
            n_inside = len(self._layers.inside)
            row[:n_inside] = self._layers.start_inside
            row[-len(self._layers.start_out) :] = self._layers.start_out
        elif self._terminal.any():
            row = self.transitions[0][[int(np.argmax(self._terminal))]].toarray()[0]
        return _frozen(row)

    def name(self, state: int) -> str:
        """Return a readable name of a state."""
        if self._layers is not None:
            return self._layers.name(state)
        return str(state) if self._names is None else self._names[state]

    def with_time_limit(self, n: int) -> LearningProcess:
        """Return the process whose episodes are cut after `n` actions (Gymnasium's TimeLimit).

        States become (state, step): state number k * N + i is the i-th of this process's N non-terminal
        states after k actions, k = 0, ..., n - 1; then come N states in which the limit cut the
        episode, terminal too; then the terminal states of this process. T is at most n + 1. The
        transitions are built only if asked for: the analysis passes over the layers instead.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ProcessError(f"a time limit is a positive number of actions, not {n!r}")
        if self._null.any():
            raise ProcessError(
                "this process is perturbed, and whether null steps count towards a time limit is ambiguous; "
                "set the limit first: perturb(process.with_time_limit(n), perturbation)"
            )
        if not self._terminal.any():
            raise ProcessError(
                "this process has no terminal states (its initial states differ in their transitions), so "
                "its episodes have no start from which a limit could count; see check_episodic(process)"
            )
        if self._layers is not None:
            shorter = min(int(n), self._layers.limit)
            return self if shorter == self._layers.limit else self._layers.base.with_time_limit(shorter)
        limited = object.__new__(LearningProcess)
        layers = Layers.of(self, int(n))
        limited._layers = layers
        limited._n_states, limited._n_actions = layers.n_states, self._n_actions
        limited._names = None
        limited._matrices = None
        limited._initial = _frozen(layers.outside(self._initial))
        limited._rewards = _frozen(layers.rewards())
        limited._null = limited._nonterminal = _as_mask("null", None, layers.n_states)
        limited._terminal = _frozen(np.arange(layers.n_states) >= layers.limit * len(layers.inside))
        return limited

    @classmethod
    def from_gymnasium(
        cls,
        env_or_id: Any,
        time_limit: Literal["spec"] | int | None = "spec",
        **make_arguments: Any,
    ) -> LearningProcess:
        """Return the learning process of a Gymnasium environment that carries its model.

        Any environment will do whose unwrapped object has `P` and `initial_state_distrib` (the toy-text
        ones). States keep Gymnasium's numbers; a transition flagged terminated leads to a terminal state of
        its own, numbered after them. See `steadyrl.toytext`.

        Args:
            env_or_id: an environment, or the id of one (then `make_arguments` go to gymnasium.make).
            time_limit: "spec" takes the limit from the environment's spec, if it has one; a number sets
                it; None ignores it. A limit makes states (state, step): see `with_time_limit`.
            make_arguments: for gymnasium.make, such as map_name="8x8".
        """
        from steadyrl.toytext import read_model

        model, limit = read_model(env_or_id, time_limit, make_arguments)
        process = cls(model.transitions, model.rewards, model.initial, names=model.names, nonterminal=model.nonterminal)
        return process if limit is None else process.with_time_limit(limit)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the process to an npz file, without pickle, all or nothing."""
        if self._layers is not None:
            base, limit = self._layers.base, self._layers.limit
        else:
            base, limit = self, None
        arrays: dict[str, Any] = {"rewards": base._rewards, "initial": base._initial}
        for action, matrix in enumerate(base.transitions):
            for part in ("data", "indices", "indptr"):
                arrays[f"{part}_{action}"] = getattr(matrix, part)
        if base._names is not None:
            arrays["names"] = np.array(base._names, dtype=str)
        for kind, mask in (("null", base._null), ("nonterminal", base._nonterminal)):
            if mask.any():
                arrays[kind] = np.flatnonzero(mask)
        header = {"n_states": base.n_states, "n_actions": base.n_actions, "time_limit": limit}
        save_arrays(path, "learning process", header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LearningProcess:
        """Read a process that `save` wrote.

        Raises:
            FileFormatError: if the file is truncated, damaged, or not a saved process.
        """
        header, arrays = load_arrays(path, "learning process")
        try:
            shape = (int(header["n_states"]),) * 2
            matrices = [
                sp.csr_array(tuple(arrays[f"{part}_{a}"] for part in ("data", "indices", "indptr")), shape)
                for a in range(int(header["n_actions"]))
            ]
            names = arrays["names"].tolist() if "names" in arrays else None
            kept_out = {kind: arrays[kind].tolist() for kind in ("null", "nonterminal") if kind in arrays}
            process = cls(matrices, arrays["rewards"], arrays["initial"], names=names, **kept_out)
            limit = header["time_limit"]
            return process if limit is None else process.with_time_limit(int(limit))
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"{os.fspath(path)!r} does not hold a whole learning process ({error}); save it again"
            ) from error

    def __repr__(self) -> str:
        limit = "" if self._layers is None else f", time limit {self._layers.limit}"
        return (
            f"LearningProcess({self._n_states} states, {self._n_actions} actions, "
            f"{int(self._terminal.sum())} terminal{limit})"
        )


def expected(process: LearningProcess, arrival: Array) -> Array:
    """Return [S, A]: the expected value of `arrival` [S] in the state that an action leads to."""
    if process.layers is not None:
        return time_limit_layers.expected(process.layers, arrival)
    return np.column_stack([matrix @ arrival for matrix in process.transitions])


def _as_matrices(transitions: Any) -> list[Any]:
    if sp.issparse(transitions):
        raise ProcessError(
            f"transitions is one sparse matrix of shape {transitions.shape}; give one an action, in a list"
        )
    try:
        given = [m if sp.issparse(m) else np.asarray(m, dtype=float) for m in transitions]
    except (TypeError, ValueError) as error:
        raise ProcessError(f"transitions must be numbers [A, S, S] or A matrices [S, S]: {error}") from error
    if not given:
        raise ProcessError("transitions is empty; a process needs at least one action")
    shape = given[0].shape
    for action, matrix in enumerate(given):
        if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
            raise ProcessError(f"transitions of action {action} have shape {matrix.shape}; they must be [S, S], S >= 1")
        if matrix.shape != shape:
            raise ProcessError(
                f"transitions of action {action} have shape {matrix.shape}, those of action 0 {shape}; every "
                "action needs the same states"
            )
    return [sp.csr_array(matrix, dtype=float, copy=True) for matrix in given]


def _normalised(matrix: Any, action: int) -> Any:
    """Return the matrix with rows that sum to one, or say which row does not."""
    matrix.sum_duplicates()
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    bad = ~(np.isfinite(matrix.data) & (matrix.data >= 0))
    if bad.any():
        entry = int(np.argmax(bad))
        raise ProcessError(
            f"the probability of going from state {rows[entry]} to state {matrix.indices[entry]} with action "
            f"{action} is {matrix.data[entry]}; it must be a number from 0 to 1"
        )
    sums = matrix.sum(axis=1)
    off = np.abs(sums - 1)
    if off.max() > SUM_TOLERANCE:
        state = int(np.argmax(off > SUM_TOLERANCE))
        raise ProcessError(
            f"the probabilities of state {state}, action {action} sum to {float(sums[state])!r}, not to 1; "
            "every row must be a distribution (a state that ends an episode leads to the next start)"
        )
    # Sums that are off by rounding alone stay as they are, so that saving and loading changes no bit.
    scale = np.where(off > 1e-14, sums, 1.0)
    matrix.data /= scale[rows]
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return _read_only(matrix)


def _as_initial(initial: ArrayLike, n_states: int) -> Array:
    values = np.array(initial, dtype=float)
    if values.shape != (n_states,):
        raise ProcessError(f"initial has shape {values.shape}; with {n_states} states it must be ({n_states},)")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        state = int(np.argmax(bad))
        raise ProcessError(f"initial[{state}] is {values[state]}; it must be a number from 0 to 1")
    if abs(values.sum() - 1) > SUM_TOLERANCE:
        raise ProcessError(f"initial sums to {float(values.sum())!r}, not to 1; it must be a distribution")
    return values


def _as_rewards(rewards: ArrayLike, n_states: int, n_actions: int) -> Array:
    values = np.array(rewards, dtype=float)
    if values.shape not in {(n_states,), (n_states, n_actions)}:
        raise ProcessError(
            f"rewards has shape {values.shape}; it must be ({n_states},), received on arrival in a state, or "
            f"({n_states}, {n_actions}), the expected reward of an action"
        )
    if not np.isfinite(values).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ProcessError(f"rewards[{', '.join(map(str, place))}] is {values[place]}; rewards must be finite")
    return values


def _as_mask(what: str, given: int | Sequence[int] | None, n_states: int) -> Mask:
    mask = np.zeros(n_states, dtype=bool)
    if given is not None and np.size(given):
        states = np.atleast_1d(np.asarray(given))
        if states.dtype.kind not in "iu" or (states < 0).any() or (states >= n_states).any():
            raise ProcessError(f"{what} is {given!r}; it must be a state from 0 to {n_states - 1}, or several")
        mask[states] = True
    mask.flags.writeable = False
    return mask


def _terminal_states(matrices: Sequence[Any], initial: Array, kept_out: Mask) -> Mask:
    """Return Definition 1's maximal set: the states whose every action has the row of a reset."""
    start = int(np.argmax(initial > 0))
    row = matrices[0][[start]].toarray()[0]
    same = np.ones(len(initial), dtype=bool)
    for matrix in matrices:
        rows = np.repeat(np.arange(len(initial)), np.diff(matrix.indptr))
        expected = row[matrix.indices]
        alike = np.abs(matrix.data - expected) <= ROW_TOLERANCE * expected
        same &= np.bincount(rows, weights=alike, minlength=len(initial)) == np.count_nonzero(row)
        same &= np.diff(matrix.indptr) == np.count_nonzero(row)
    same &= ~kept_out
    return same if same[initial > 0].all() else np.zeros_like(same)


def _frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    array.flags.writeable = False
    return array


def _read_only(matrix: Any) -> Any:
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    return matrix
