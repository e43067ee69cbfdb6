"""Graph algorithms for Markov chains and decision processes: reachability, periods, end components."""

from __future__ import annotations

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


def end_components(actions: Any, n_actions: int, candidates: Mask) -> dict[int, tuple[int, ...]]:
    """Return the states in maximal end components among `candidates`, each with its actions.

    Row s * n_actions + a of the matrix `actions` holds where action a may lead from state s. In an end
    component, a policy that keeps to the listed actions stays for ever and can go from every state
    to every other.
    """
    n = len(candidates)
    alive, allowed = _safe_region(actions, n_actions, candidates)
    while alive.any():
        pairs = np.flatnonzero(allowed)
        edges = actions[pairs].tocoo()
        graph = sp.csr_array((np.ones(edges.nnz, dtype=np.int32), (pairs[edges.row] // n_actions, edges.col)), (n, n))
        _, label = connected_components(graph, directed=True, connection="strong")
        leaving = label[pairs[edges.row] // n_actions] != label[edges.col]
        if not leaving.any():
            break
        keep = allowed.copy()
        keep[pairs[edges.row[leaving]]] = False
        # Dropping those actions may leave a state without any, and so on backwards.
        alive, allowed = _safe_region(actions, n_actions, alive, keep)
    table = allowed.reshape(n, n_actions)
    return {int(s): tuple(np.flatnonzero(table[s]).tolist()) for s in np.flatnonzero(alive)}


def _safe_region(actions: Any, n_actions: int, candidates: Mask, allowed: Mask | None = None) -> tuple[Mask, Mask]:
    """Return the largest set of candidates in which some choice of actions stays for ever.

    Every transition is looked at once: removing a state removes the actions that may lead to it, and
    a state without actions is removed in turn.
    """
    into = actions.tocsc()
    alive = candidates.copy()
    allowed = np.ones(len(candidates) * n_actions, dtype=bool) if allowed is None else allowed.copy()
    allowed &= np.repeat(alive, n_actions)
    alive &= allowed.reshape(-1, n_actions).any(axis=1)
    frontier = np.flatnonzero(~alive)
    while len(frontier):
        hit = into[:, frontier].indices
        allowed[hit] = False
        owners = np.unique(hit // n_actions)
        left = allowed.reshape(-1, n_actions)[owners].any(axis=1)
        frontier = owners[alive[owners] & ~left]
        alive[frontier] = False
    return alive, allowed
