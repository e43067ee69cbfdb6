"""Algebraic multigrid for the M-matrix of a large absorbing Markov chain.

A direct solver's fill-in makes a million states on a grid slow, and a million states of a
higher-dimensional lattice impossible. Multigrid costs a few dozen passes over the transitions:
states are gathered into aggregates (a maximal set of states more than two steps apart, each with
its neighbourhood), the chain between aggregates is the coarse problem (Galerkin, with smoothed
interpolation; Vanek, Mandel, Brezina 1996), and a V-cycle over the levels preconditions BiCGSTAB.

Where states do not aggregate well (an expander: everything is close to everything) the coarse
levels are left out; what remains, BiCGSTAB with Jacobi sweeps, is then fast by itself.

PyAMG is not used because, to the same residual for both sides, its smoothed aggregation, which converged on every grid
measured, takes 1.9 to 2.5 times as long and up to 1.9 times the memory: here one hierarchy, in single precision, serves
both sides. Its Ruge-Stuben method is as fast on symmetric chains, but fails on the transposed
system of others (benchmarks/multigrid_peers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, bicgstab, splu

Array = NDArray[np.float64]

_DAMPING = 2 / 3
_COARSEST = 1000  # states that a direct solver takes over
_SWEEPS = 2
_MAX_GROWTH = 3.0  # most entries of a coarse level, as a multiple of those of the level above
_MAX_ITERATIONS = 100


@dataclass(frozen=True, eq=False)
class _Level:
    """One level, in single precision: a preconditioner need not be exact, and its cost is memory traffic."""

    a: Any  # csr_array
    step: NDArray[np.float32]  # damping over the diagonal
    interpolate: Any
    restrict: Any

    @classmethod
    def of(cls, a: Any, step: Array, interpolate: Any, restrict: Any) -> _Level:
        return cls(*(part.astype(np.float32) for part in (a, step, interpolate, restrict)))


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """The levels of a multigrid preconditioner, finest first; `transposed` is the one for x A = b."""

    matrix: Any
    levels: tuple[_Level, ...]
    coarsest: Callable[[Array], Array] | None

    def precondition(self, b: Array) -> Array:
        """Return an approximate solution of A y = b by one V-cycle."""
        scale = float(np.abs(b).max()) or 1.0
        return self._cycle((b / scale).astype(np.float32), 0).astype(float) * scale

    def _cycle(self, b: NDArray[np.float32], depth: int) -> NDArray[np.float32]:
        if depth == len(self.levels):
            coarse = np.zeros(len(b)) if self.coarsest is None else self.coarsest(b.astype(float))
            return coarse.astype(np.float32)
        level = self.levels[depth]
        y = level.step * b
        for _ in range(_SWEEPS - 1):
            y += level.step * (b - level.a @ y)
        y += level.interpolate @ self._cycle(level.restrict @ (b - level.a @ y), depth + 1)
        for _ in range(_SWEEPS):
            y += level.step * (b - level.a @ y)
        return y

    @cached_property
    def transposed(self) -> Hierarchy:
        """The same levels for the transposed matrix."""
        levels = tuple(
            _Level(level.a.T.tocsr(), level.step, level.restrict.T.tocsr(), level.interpolate.T.tocsr())
            for level in self.levels
        )
        coarsest = self.coarsest
        solve = None if coarsest is None else lambda b: coarsest(b, "T")  # type: ignore[call-arg]
        return Hierarchy(self.matrix.T.tocsr(), levels, solve)


def build(a: Any) -> Hierarchy:
    """Coarsen the M-matrix `a` until a direct solver can take over, or it no longer pays."""
    finest, levels = a, list[_Level]()
    rng = np.random.default_rng(0)  # ties between states: any fixed choice will do
    while a.shape[0] > _COARSEST:
        diagonal = a.diagonal()
        coarse = _coarsen(a, diagonal, rng)
        if coarse is None:
            none = sp.csr_array((a.shape[0], 1))
            levels.append(_Level.of(a, _DAMPING / diagonal, none, none.T.tocsr()))
            return Hierarchy(finest, tuple(levels), None)
        interpolate, restrict, smaller = coarse
        levels.append(_Level.of(a, _DAMPING / diagonal, interpolate, restrict))
        a = smaller
    lu = splu(a.tocsc())
    return Hierarchy(finest, tuple(levels), lu.solve)


def solve(hierarchy: Hierarchy, rhs: Array, *, rtol: float) -> Array | None:
    """Return y with A y = rhs to the relative residual `rtol`, or None if the iteration stalls."""
    a = hierarchy.matrix
    cycle = LinearOperator(a.shape, hierarchy.precondition, dtype=float)
    with np.errstate(all="ignore"):  # a breakdown shows as info != 0 or as a residual
        y, info = bicgstab(a, rhs, rtol=rtol, atol=0.0, maxiter=_MAX_ITERATIONS, M=cycle)
    return y if info == 0 and np.isfinite(y).all() else None


def _coarsen(a: Any, diagonal: Array, rng: np.random.Generator) -> tuple[Any, Any, Any] | None:
    n = a.shape[0]
    aggregate = _aggregates(_strong_neighbours(a), rng)
    m = int(aggregate.max()) + 1
    if m > n / 2:
        return None
    gather = sp.csr_array((np.ones(n), aggregate, np.arange(n + 1)), shape=(n, m))
    spread = gather.T.tocsr()
    plain = spread @ (a @ gather)
    if plain.nnz > _MAX_GROWTH / 4 * a.nnz:
        return None
    by_row, by_column = a.copy(), a.copy()
    by_row.data = a.data * np.repeat(_DAMPING / diagonal, np.diff(a.indptr))
    by_column.data = a.data * (_DAMPING / diagonal)[a.indices]
    interpolate = (gather - by_row @ gather).tocsr()
    restrict = (spread - spread @ by_column).tocsr()
    smooth = (restrict @ (a @ interpolate)).tocsr()
    if smooth.nnz > _MAX_GROWTH * a.nnz:
        return gather, spread, plain.tocsr()
    return interpolate, restrict, smooth


def _strong_neighbours(a: Any, strength: float = 0.25) -> Any:
    """Return the symmetric pattern of the couplings that matter, the diagonal included."""
    rows = np.repeat(np.arange(a.shape[0], dtype=a.indices.dtype), np.diff(a.indptr))
    coupling = np.where(rows == a.indices, 0.0, np.abs(a.data))
    largest = np.maximum.reduceat(coupling, a.indptr[:-1])
    keep = (coupling >= strength * largest[rows]) | (rows == a.indices)
    ends = np.concatenate([[0], np.cumsum(keep)])[a.indptr]
    pattern = sp.csr_array((np.ones(int(ends[-1]), dtype=np.int8), a.indices[keep], ends), a.shape)
    return pattern + pattern.T.tocsr()


def _aggregates(pattern: Any, rng: np.random.Generator) -> NDArray[np.int32]:
    """Return each state's aggregate: roots are more than two steps apart, and other states join a root nearby."""
    n = pattern.shape[0]

    def largest_near(values: NDArray[np.int32]) -> NDArray[np.int32]:
        near: NDArray[np.int32] = np.maximum.reduceat(values[pattern.indices], pattern.indptr[:-1])
        return near

    rank = rng.permutation(n).astype(np.int32) + 1
    root = np.zeros(n, dtype=bool)
    open_ = np.ones(n, dtype=bool)
    while open_.any():
        candidate = np.where(open_, rank, 0)
        chosen = open_ & (candidate == largest_near(largest_near(candidate)))
        root |= chosen
        open_ &= largest_near(largest_near(chosen.astype(np.int32))) == 0
    label = np.zeros(n, dtype=np.int32)
    label[root] = np.arange(1, int(root.sum()) + 1, dtype=np.int32)
    near = np.where(root, label, largest_near(label))
    return np.where(near > 0, near, largest_near(near)) - 1
