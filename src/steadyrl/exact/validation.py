"""The arrays of a learning process are checked once, when it is made; then they are trusted and read-only.

Every error names the place and the value, and the usual mistake behind it where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import as_numbers, plain_array, shown
from steadyrl.errors import ProcessError

_Scalar = TypeVar("_Scalar", bound=np.generic)
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

SUM_TOLERANCE = 1e-9
"""How far the sum of a row may be from one; the row is then divided by its sum."""

SINGLE_SUM_TOLERANCE = 1e-6
"""The same for arrays in single precision, which has fewer digits."""

ROW_TOLERANCE = 1e-9
"""Two rows are the same if they have the same support and entries that differ by this fraction at most."""


def as_matrices(transitions: Any) -> list[Any]:
    """Return one sparse [S, S] matrix per action, with rows that sum to one."""
    given, tolerance = square_matrices(transitions)
    return [normalised(sparse_copy(matrix), action, tolerance) for action, matrix in enumerate(given)]


def square_matrices(transitions: Any) -> tuple[list[Any], float]:
    """Check the shapes and return the matrices as given, and how far the sum of a row may be from one."""
    if sp.issparse(transitions):
        raise ProcessError(
            f"transitions is one sparse matrix of shape {transitions.shape}; give one per action, in a list"
        )
    try:
        given: list[Any] = []
        for matrix in transitions:
            given.append(matrix if sp.issparse(matrix) else plain_array("transitions", matrix, ProcessError))
            if len(given[-1].shape) != 2:  # found below; there may be no end of them
                break
        single = any(matrix.dtype in (np.float32, np.float16) for matrix in given)
        if any(matrix.dtype.kind not in "biuf" for matrix in given):
            raise TypeError("they are not real numbers")
        for matrix in given:
            if sp.issparse(matrix) and matrix.format in ("csr", "csc"):
                matrix.check_format(full_check=True)  # scipy would read beyond the ends of wrong indices
    except ProcessError:
        raise
    except (TypeError, ValueError, RuntimeError, LookupError) as error:
        raise ProcessError(f"transitions must be numbers [A, S, S] or A matrices [S, S]: {error}") from error
    if not given:
        raise ProcessError("transitions is empty; a process needs at least one action")
    shape = given[0].shape
    for action, matrix in enumerate(given):
        if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
            hint = "; if they are [S, A, S], give transitions.transpose(1, 0, 2)" if len(matrix.shape) == 2 else ""
            raise ProcessError(
                f"transitions of action {action} have shape {matrix.shape}; they must be [S, S], S >= 1{hint}"
            )
        if matrix.shape != shape:
            raise ProcessError(
                f"transitions of action {action} have shape {matrix.shape}, those of action 0 {shape}; every "
                "action needs the same states"
            )
    return given, SINGLE_SUM_TOLERANCE if single else SUM_TOLERANCE


def sparse_copy(matrix: Any) -> Any:
    """Return a sparse copy of a matrix in double precision."""
    return sp.csr_array(matrix, dtype=float, copy=True)


def normalised(matrix: Any, action: int, tolerance: float) -> Any:
    """Return the matrix with rows that sum to one, or raise an error that names the row that does not."""
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
    if off.max() > tolerance:
        state = int(np.argmax(off > tolerance))
        columns_do = np.abs(matrix.sum(axis=0) - 1).max() <= tolerance
        hint = "; the columns do: the matrix seems to be transposed" if columns_do else ""
        raise ProcessError(
            f"the probabilities of state {state}, action {action} sum to {float(sums[state])!r}, not to 1; every row "
            f"must be a distribution (a state that ends an episode leads to the first states of the next){hint}"
        )
    # Sums that are off by rounding alone stay as they are, so that saving and loading changes no bit.
    scale = np.where(off > 1e-14, sums, 1.0)
    matrix.data /= scale[rows]
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return read_only(matrix)


def as_initial(initial: ArrayLike, n_states: int) -> Array:
    """Return the distribution [S] at time 0."""
    values = as_numbers("initial", initial, ProcessError)
    if values.shape != (n_states,):
        raise ProcessError(f"initial has shape {values.shape}; with {n_states} states it must be ({n_states},)")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        state = int(np.argmax(bad))
        raise ProcessError(f"initial[{state}] is {values[state]}; it must be a number from 0 to 1")
    single = getattr(initial, "dtype", None) in (np.float32, np.float16)
    if abs(values.sum() - 1) > (SINGLE_SUM_TOLERANCE if single else SUM_TOLERANCE):
        raise ProcessError(f"initial sums to {float(values.sum())!r}, not to 1; it must be a distribution")
    return values if abs(values.sum() - 1) <= 1e-14 else values / values.sum()


def as_rewards(rewards: ArrayLike, n_states: int, n_actions: int) -> Array:
    """Return rewards [S] on arrival, or [S, A] expected."""
    values = as_numbers("rewards", rewards, ProcessError)
    if values.shape not in {(n_states,), (n_states, n_actions)}:
        hint = ""
        if values.shape == (n_actions, n_states, n_states):
            hint = '; for rewards of transitions give np.einsum("ast,ast->sa", transitions, rewards)'
        raise ProcessError(
            f"rewards has shape {values.shape}; it must be ({n_states},), received on arrival in a state, or "
            f"({n_states}, {n_actions}), the expected reward of an action{hint}"
        )
    if not np.isfinite(values).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ProcessError(f"rewards[{', '.join(map(str, place))}] is {values[place]}; rewards must be finite")
    return values


def as_mask(what: str, given: int | Sequence[int] | None, n_states: int) -> Mask:
    """Return the states given by their numbers as a mask [S]."""
    mask = np.zeros(n_states, dtype=bool)
    if given is not None:
        states = np.atleast_1d(as_numbers(what, given, ProcessError))
        whole = np.asarray(given).dtype.kind in "iu" or not states.size
        if not whole or states.ndim != 1 or (states < 0).any() or (states >= n_states).any():
            raise ProcessError(f"{what} is {shown(given)}; it must be a state from 0 to {n_states - 1}, or several")
        mask[states.astype(np.int64)] = True
    mask.flags.writeable = False
    return mask


def as_names(names: Sequence[str] | None, n_states: int) -> tuple[str, ...] | None:
    """Return one name per state, or None for numbers as names."""
    if names is None:
        return None
    unordered = isinstance(names, bytes | Mapping | set | frozenset)  # whose order is not that of the states
    try:
        result = () if unordered else tuple(str(name) for name in islice(names, n_states + 1))
    except TypeError:
        unordered = True
    if unordered:
        raise ProcessError(
            f"names is {shown(names)}; it must be a list of names, one for each state in the order of the states"
        )
    if len(result) != n_states:
        many = f"more than {n_states}" if len(result) > n_states else len(result)
        raise ProcessError(f"names has {many} entries, but there are {n_states} states")
    return result


def terminal_states(matrices: Sequence[Any], initial: Array, kept_out: Mask) -> Mask:
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


def frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Return the array, now read-only."""
    array.flags.writeable = False
    return array


def read_only(matrix: Any) -> Any:
    """Return the sparse matrix, now read-only."""
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    return matrix


def one_row(matrices: Sequence[Any], terminal: Mask) -> tuple[Any, ...]:
    """Return the matrices with exactly the same row in all terminal states, where rows differ within the tolerance."""
    states = np.flatnonzero(terminal)
    if not len(states):
        return tuple(matrices)
    row = matrices[0][[int(states[0])]]
    result = []
    for matrix in matrices:
        rows = matrix[states]
        same = rows.nnz == len(states) * row.nnz and (rows.data.reshape(len(states), -1) == row.data).all()
        if not same:
            keep = sp.diags_array((~terminal).astype(float)) @ matrix
            matrix = read_only((keep + sp.csr_array(terminal.astype(float)[:, None]) @ row).tocsr())
        result.append(matrix)
    return tuple(result)
