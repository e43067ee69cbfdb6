"""Solving with one absorbing Markov chain: expected visits from the left, values from the right.

    visits:  x = b + x Q        values:  y = c + Q y

Q holds the probabilities between the n states inside, `leave` those of going out; from every state
there must be a way out. What is solved with is A = diag(d) - (Q without its diagonal), where
d(i) = sum_{j != i} Q(i, j) + leave(i) is a sum and not 1 - Q(i, i), so it keeps its digits. The
cheapest way that is accurate is chosen:

- *substitution*: the states have a topological order (time-limited processes): one pass;
- *elimination*: up to `DENSE_STATES` states: subtraction-free, small error in every entry;
- *factorisation*: sparse LU where the fill-in is bounded by a small envelope;
- *multigrid*: beyond it; sparse LU again where multigrid stalls.

The last two are followed by refinement with residuals taken in difference form, so that a long
mean time to absorption (a tiny smallest eigenvalue of A) costs no digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from scipy.sparse.linalg import splu, spsolve_triangular

from steadyrl.numerics import elimination, multigrid

Array = NDArray[np.float64]

DENSE_STATES = 1500
_ENVELOPE_WORK = 1e10  # multiplications of a banded factorisation, above which multigrid goes first
_REFINEMENTS = 4
_KRYLOV_RTOL = (1e-9, 1e-5)  # of the first multigrid solve, and of each refinement
_LAST_CHANGE = 1e-9  # a relative change after which refinement, itself right to 1e-5, has nothing left to gain

_Solve = Callable[[Array], Array]


class AbsorbingChain:
    """A solver for x = b + x Q and y = c + Q y; `method` names the way that was chosen."""

    def __init__(self, within: Any, leave: Array) -> None:
        off = sp.csr_array(within, dtype=float, copy=True)
        off.data[off.indices == np.repeat(np.arange(off.shape[0]), np.diff(off.indptr))] = 0.0
        off.eliminate_zeros()
        off.sort_indices()
        self._off = off
        self._leave = np.asarray(leave, dtype=float)
        self._total = off.sum(axis=1) + self._leave
        self._n = len(self._leave)
        self._rows = np.repeat(np.arange(self._n, dtype=off.indices.dtype), np.diff(off.indptr))
        self.method, self._left, self._right = self._choose()

    def left(self, b: Array) -> Array:
        """Return x = b + x Q, the expected visits from the start weights b."""
        return self._left(np.asarray(b, dtype=float))

    def right(self, c: Array) -> Array:
        """Return y = c + Q y, the expected sum of c until the chain leaves."""
        return self._right(np.asarray(c, dtype=float))

    def _choose(self) -> tuple[str, _Solve, _Solve]:
        order = _topological_order(self._off)
        if order is not None:
            return ("substitution", *self._substitution(order))
        if self._n <= DENSE_STATES:
            factors = elimination.factor(self._off.toarray(), self._leave)
            return "elimination", factors.solve_left, factors.solve_right
        if _envelope_work(self._off) <= _ENVELOPE_WORK:
            return ("factorisation", *self._factorisation())
        return ("multigrid", *self._multigrid())

    def _matrix(self) -> Any:
        return sp.diags_array(self._total).tocsr() - self._off

    def _substitution(self, order: NDArray[np.int64]) -> tuple[_Solve, _Solve]:
        a = self._matrix()[order][:, order].tocsr()  # upper triangular, non-positive off it

        def solve(rhs: Array, left: bool) -> Array:
            triangle = a.T.tocsr() if left else a
            parts = [np.maximum(rhs, 0), np.maximum(-rhs, 0)] if rhs.min(initial=0) < 0 else [rhs]
            # Signs apart: then nothing is ever subtracted.
            solved = spsolve_triangular(triangle, np.column_stack([part[order] for part in parts]), lower=left)
            result = np.empty(self._n)
            result[order] = solved[:, 0] - solved[:, 1] if len(parts) == 2 else solved[:, 0]
            return result

        return lambda b: solve(b, True), lambda c: solve(c, False)

    def _factorisation(self) -> tuple[_Solve, _Solve]:
        # An M-matrix needs no pivoting; without it the symmetric ordering keeps the fill-in low.
        lu = splu(
            self._matrix().tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )

        def left(b: Array) -> Array:
            x = self._refine(b, lambda r, _: lu.solve(r, "T"), self._left_residual)
            assert x is not None  # a factorisation always answers
            return x

        def right(c: Array) -> Array:
            y = self._refine(c, lambda r, _: lu.solve(r), self._right_residual)
            assert y is not None
            return y

        return left, right

    def _multigrid(self) -> tuple[_Solve, _Solve]:
        hierarchy = multigrid.build(self._matrix())
        fallback: list[tuple[_Solve, _Solve]] = []

        def solver(left: bool) -> _Solve:
            residual = self._left_residual if left else self._right_residual

            def approximate(r: Array, rtol: float) -> Array | None:
                return multigrid.solve(hierarchy.transposed if left else hierarchy, r, rtol=rtol)

            def solve(rhs: Array) -> Array:
                y = None if fallback else self._refine(rhs, approximate, residual)
                if y is not None:
                    return y
                if not fallback:
                    self.method = "factorisation"
                    fallback.append(self._factorisation())
                return fallback[0][0 if left else 1](rhs)

            return solve

        return solver(True), solver(False)

    def _refine(
        self,
        rhs: Array,
        solve: Callable[[Array, float], Array | None],
        residual: Callable[[Array, Array], Array],
    ) -> Array | None:
        """Improve solve(rhs) until rounding stops it; None if there is not even a first solution."""
        y = solve(rhs, _KRYLOV_RTOL[0])
        if y is None:
            return None
        last = np.inf
        for _ in range(_REFINEMENTS):
            r = residual(y, rhs)
            correction = solve(r, _KRYLOV_RTOL[1]) if r.any() else None
            if correction is None:
                break
            change = float(np.abs(correction).max()) / float(np.abs(y).max())
            if change > last / 2:  # the level of rounding
                break
            y = y + correction
            last = change
            if change < _LAST_CHANGE:
                break
        return y

    def _right_residual(self, y: Array, c: Array) -> Array:
        """Return c - A y by differences of neighbours: rounding is relative to those, not to y."""
        drop = self._off.data * (y[self._rows] - y[self._off.indices])
        summed = np.add.reduceat(np.append(drop, 0.0), self._off.indptr[:-1])
        summed[np.diff(self._off.indptr) == 0] = 0.0
        return c - summed - self._leave * y

    def _left_residual(self, x: Array, b: Array) -> Array:
        """Return b - x A, with the one sum that is known better: what enters must leave."""
        r = b + x @ self._off - x * self._total
        surplus = r.sum() - (b.sum() - x @ self._leave)
        balanced: Array = r - x * (surplus / x.sum())
        return balanced


def _topological_order(graph: Any) -> NDArray[np.int64] | None:
    """Return the states so that every transition goes forward, or None if there is a cycle."""
    n = graph.shape[0]
    count, label = connected_components(graph, directed=True, connection="strong")
    if count < n:
        return None
    order: NDArray[np.int64] = np.argsort(-label)
    # SciPy numbers components against the direction of the edges, but does not promise to.
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    rows = np.repeat(np.arange(n), np.diff(graph.indptr))
    return order if (position[rows] < position[graph.indices]).all() else None


def _envelope_work(graph: Any) -> float:
    """Return the multiplications of a factorisation within the Cuthill-McKee envelope."""
    n = graph.shape[0]
    pattern = (graph + graph.T).tocsr()
    order = reverse_cuthill_mckee(pattern, symmetric_mode=True)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    nonempty = np.diff(pattern.indptr) > 0
    first = np.arange(n)
    first[nonempty] = np.minimum.reduceat(position[pattern.indices], pattern.indptr[:-1][nonempty])
    width = np.maximum(position - first, 0).astype(float)
    return float(width @ width)
