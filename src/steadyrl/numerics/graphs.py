"""Graph algorithms for Markov chains and decision processes: reachability, periods, end components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, connected_components

Mask = NDArray[np.bool_]
Indices = NDArray[np.int64]


def reachable(graph: Any, sources: Mask) -> Mask:
    """Return the states that can be reached from `sources` in zero or more steps."""
    n = graph.shape[0]
    if not sources.any():
        return np.zeros(n, dtype=bool)
    # One extra node with an edge to every source turns many sources into one.
    starts = np.flatnonzero(sources)
    indices = np.concatenate([graph.indices, starts.astype(graph.indices.dtype)])
    indptr = np.append(graph.indptr, graph.indptr[-1] + len(starts))
    extended = sp.csr_array((np.ones(len(indices), dtype=np.int8), indices, indptr), (n + 1, n + 1))
    order = breadth_first_order(extended, n, directed=True, return_predecessors=False)
    found = np.zeros(n + 1, dtype=bool)
    found[order] = True
    return found[:n]


def cycle_gcd(graph: Any, root: int) -> int:
    """Return the greatest common divisor of all cycle lengths of a strongly connected graph."""
    depth = depths(graph, root)
    rows = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
    return int(np.gcd.reduce(np.abs(depth[rows] + 1 - depth[graph.indices])))


def depths(graph: Any, root: int) -> Indices:
    """Return the length of a shortest path from the root to each node; all must be reachable."""
    _, parent = breadth_first_order(graph, root, directed=True)
    parent[root] = root
    depth = np.ones(graph.shape[0], dtype=np.int64)
    depth[root] = 0
    while (parent != root).any():  # pointer doubling: as many rounds as the depth has binary digits
        depth += depth[parent]
        parent = parent[parent]
    return depth


def union(matrices: Sequence[Any], rows: Mask | None = None) -> Any:
    """Return the pattern of all matrices together, as booleans; column a of `rows` [n, A] selects rows of matrix a.

    Patterns of about the same size are merged, as in a binary counter, so that no entry is copied more than log2(A)
    times and only patterns are held, not one matrix of all actions.
    """
    parts: list[tuple[int, Any]] = []  # how many matrices are in it, and their pattern
    for a, matrix in enumerate(matrices):
        size, pattern = 1, _pattern(matrix, None if rows is None else rows[:, a])
        while parts and parts[-1][0] == size:
            size, pattern = 2 * size, parts.pop()[1] + pattern
        parts.append((size, pattern))
    whole = parts.pop()[1]
    while parts:
        whole = parts.pop()[1] + whole
    return whole


def _pattern(matrix: Any, rows: Mask | None) -> Any:
    indices, indptr = matrix.indices, matrix.indptr
    if rows is not None:
        counts = np.where(rows, np.diff(indptr), 0)
        indices = indices[np.repeat(rows, np.diff(indptr))]
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(matrix.indptr.dtype)
    return sp.csr_array((np.ones(len(indices), dtype=bool), indices, indptr), matrix.shape)


def end_components(matrices: Sequence[Any], candidates: Mask) -> dict[int, tuple[int, ...]]:
    """Return the states in maximal end components among `candidates`, each with its actions.

    Row s of matrix a holds where action a may lead from state s. In an end component, a policy that keeps to the listed
    actions stays for ever and can go from every state to every other. The work is done action by action, so that it
    needs little memory beside the matrices.
    """
    allowed = np.repeat(candidates[:, None], len(matrices), axis=1)
    into = _Predecessors(matrices)
    alive = into.safe_region(candidates, allowed)
    while alive.any():
        _, label = connected_components(union(matrices, allowed), directed=True, connection="strong")
        lost = 0
        for a, matrix in enumerate(matrices):
            rows = np.repeat(np.arange(len(alive)), np.diff(matrix.indptr))
            leaving = rows[label[rows] != label[matrix.indices]]
            lost += int(allowed[leaving, a].any())
            allowed[leaving, a] = False
        if not lost:
            break
        # Dropping those actions may leave a state without any, and so on backwards.
        alive = into.safe_region(alive, allowed)
    return _as_witness(alive, allowed)


def _as_witness(alive: Mask, allowed: Mask) -> dict[int, tuple[int, ...]]:
    """Return the allowed actions of each state alive; states with the same actions share one tuple."""
    states = np.flatnonzero(alive)
    packed = np.packbits(allowed[states], axis=1)
    known: dict[bytes, tuple[int, ...]] = {}
    result: dict[int, tuple[int, ...]] = {}
    for state, bits in zip(states.tolist(), packed, strict=True):
        key = bits.tobytes()
        if key not in known:
            known[key] = tuple(np.flatnonzero(allowed[state]).tolist())
        result[state] = known[key]
    return result


class _Predecessors:
    """For each state, the pairs s * A + a of a state s and an action a that may lead to it."""

    def __init__(self, matrices: Sequence[Any]) -> None:
        n, self.n_actions = matrices[0].shape[0], len(matrices)
        counts = np.zeros(n, dtype=np.int64)
        for matrix in matrices:
            counts += np.bincount(matrix.indices, minlength=n)
        self.start = np.concatenate([[0], np.cumsum(counts)])
        kind = np.int32 if n * self.n_actions < 2**31 else np.int64
        self.pairs: NDArray[Any] = np.empty(self.start[-1], dtype=kind)
        free = self.start[:-1].copy()  # where the next pair of each state goes
        for a, matrix in enumerate(matrices):
            column = _pattern(matrix, None).tocsc()
            width = np.diff(column.indptr)
            place = np.repeat(free - column.indptr[:-1], width) + np.arange(column.nnz)
            self.pairs[place] = column.indices.astype(kind) * kind(self.n_actions) + kind(a)
            free += width

    def safe_region(self, candidates: Mask, allowed: Mask) -> Mask:
        """Return the largest set of candidates in which some choice of allowed actions stays for ever.

        `allowed` [n, A] is brought up to date. Every transition is looked at once: removing a state removes the actions
        that may lead to it, and a state without actions is removed in turn.
        """
        alive = candidates & allowed.any(axis=1)
        allowed[~alive] = False
        flat = allowed.reshape(-1)
        frontier = np.flatnonzero(~alive)
        while len(frontier):
            hit = self._into(frontier)
            flat[hit] = False
            owners = np.unique(hit // self.n_actions)
            frontier = owners[alive[owners] & ~allowed[owners].any(axis=1)]
            alive[frontier] = False
        return alive

    def _into(self, states: Indices) -> NDArray[Any]:
        """Return the pairs that may lead to any of the states."""
        if len(states) == 1:
            one: NDArray[Any] = self.pairs[self.start[states[0]] : self.start[states[0] + 1]]
            return one
        width = self.start[states + 1] - self.start[states]
        ends = np.cumsum(width)
        found: NDArray[Any] = self.pairs[np.repeat(self.start[states] - (ends - width), width) + np.arange(ends[-1])]
        return found
