"""Linear systems of one absorbing Markov chain: expected visits from the left, values from the right.

    visits:  x = b + x Q        values:  y = c + Q y

Q holds the probabilities between the n states inside, `leave` those of going out; from every state
there must be a way out. The matrix of both systems is A = diag(d) - (Q without its diagonal), where
d(i) = sum_{j != i} Q(i, j) + leave(i) is a sum and not 1 - Q(i, i), so it keeps its digits. The
cheapest way that is accurate is chosen:

- *substitution*: the states have a topological order (time-limited processes): one pass;
- *elimination*: up to `DENSE_STATES` states: subtraction-free, small error in every entry;
- *factorisation*: sparse LU where the fill-in is bounded by a small envelope;
- *multigrid*: for all others.

The last two are followed by refinement with residuals that are as good as in twice the precision, so that a long
mean time to absorption (a tiny smallest eigenvalue of A) costs no digits. Where refinement does not converge, the
next method takes over: factorisation after multigrid, elimination after factorisation. If the chain is too large for
elimination, an error is raised rather than an inaccurate result returned.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from scipy.sparse.linalg import splu, spsolve_triangular

from steadyrl.errors import AccuracyError
from steadyrl.numerics import elimination, multigrid

Array = NDArray[np.float64]

DENSE_STATES = 600
LARGEST_ELIMINATION = 6000  # states for which elimination is tried when all else fails: some 15 seconds
_ENVELOPE_WORK = 1e10  # multiplications of a banded factorisation, above which multigrid goes first
_REFINEMENTS = 25
_KRYLOV_RTOL = (1e-9, 1e-5)  # relative residuals: of the first multigrid solve, and of each refinement
_ACCURACY = 1e-14  # the error at which refinement stops, relative to the largest entry
_ROUNDING = 1e-12  # once changes are this small, refinement that stalls has not failed

BEYOND_NUMBERS = (
    "the expected length of an episode is beyond 1e308 transitions, the largest number in double precision; add a time "
    "limit (process.with_time_limit), or leave out transitions of negligible probability"
)

_Solve = Callable[[Array, float], Array | None]


class AbsorbingChain:
    """A solver for x = b + x Q and y = c + Q y; `method` names the method in use."""

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
        self._lock = Lock()
        self._order = _topological_order(off)
        if self._order is not None:
            self._use("substitution")
        elif self._n <= DENSE_STATES:
            self._use("elimination")
        elif _envelope_work(off) <= _ENVELOPE_WORK:
            self._use("factorisation")
        else:
            self._use("multigrid")

    def left(self, b: Array) -> Array:
        """Return x = b + x Q, the expected visits from the start weights b."""
        return self._solve(np.asarray(b, dtype=float), left=True)

    def right(self, c: Array) -> Array:
        """Return y = c + Q y, the expected sum of c until the chain leaves."""
        return self._solve(np.asarray(c, dtype=float), left=False)

    def _solve(self, rhs: Array, left: bool) -> Array:
        while True:
            method, solvers = self.method, self._solvers
            solve = solvers[0 if left else 1]
            if method in ("substitution", "elimination"):
                y = solve(rhs, 0.0)
            else:
                y = self._refine(rhs, solve, self._left_residual if left else self._right_residual)
            if y is not None and self._certain(y, rhs, left):
                return y
            with self._lock:  # the two sides may be solved in two threads
                if self.method == method:
                    self._fall_back()

    def _certain(self, y: Array, rhs: Array, left: bool) -> bool:
        """Return whether a solution is plausible: non-negative for non-negative data, and as much leaves as enters."""
        if self.method in ("substitution", "elimination") or rhs.min() < 0:
            return True
        largest = float(np.abs(y).max())
        flows = not left or abs(float(y @ self._leave) - float(rhs.sum())) <= 1e-10 * float(rhs.sum())
        return bool(y.min() >= -_ROUNDING * largest) and flows

    def _fall_back(self) -> None:
        if self.method == "multigrid":
            self._use("factorisation")
        elif self._n <= LARGEST_ELIMINATION:
            self._use("elimination")
        else:
            raise AccuracyError(
                f"this chain of {self._n} states is so stiff (leaving it takes so long from some states) that a sparse "
                f"factorisation loses its digits, and above {LARGEST_ELIMINATION} states subtraction-free elimination "
                "is too large; split the process, or leave out transitions of negligible probability"
            )

    def _use(self, method: str) -> None:
        build = {
            "substitution": self._substitution,
            "elimination": self._elimination,
            "factorisation": self._factorisation,
            "multigrid": self._multigrid,
        }[method]
        self._solvers: tuple[_Solve, _Solve] = build()
        self.method = method

    def _matrix(self) -> Any:
        return sp.diags_array(self._total).tocsr() - self._off

    def _substitution(self) -> tuple[_Solve, _Solve]:
        order = self._order
        a = self._matrix()[order][:, order].tocsr()  # upper triangular, non-positive off it

        def solve(rhs: Array, left: bool) -> Array:
            triangle = _with_c_integers(a.T.tocsr() if left else a)
            parts = [np.maximum(rhs, 0), np.maximum(-rhs, 0)] if rhs.min(initial=0) < 0 else [rhs]
            # Positive and negative parts are solved for separately, so that nothing is ever subtracted.
            solved = spsolve_triangular(triangle, np.column_stack([part[order] for part in parts]), lower=left)
            result = np.empty(self._n)
            result[order] = solved[:, 0] - solved[:, 1] if len(parts) == 2 else solved[:, 0]
            return result

        return lambda b, _: solve(b, True), lambda c, _: solve(c, False)

    def _elimination(self) -> tuple[_Solve, _Solve]:
        factors = elimination.factor(self._off.toarray(), self._leave)
        if not (np.diag(factors.upper) > 0).all():
            raise AccuracyError(BEYOND_NUMBERS)
        return lambda b, _: factors.solve_left(b), lambda c, _: factors.solve_right(c)

    def _factorisation(self) -> tuple[_Solve, _Solve]:
        # An M-matrix needs no pivoting; without it the symmetric ordering keeps the fill-in low.
        try:
            lu = splu(
                self._matrix().tocsc(),
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        except RuntimeError:  # singular to working precision
            return lambda b, _: None, lambda c, _: None
        return lambda b, _: lu.solve(b, "T"), lambda c, _: lu.solve(c)

    def _multigrid(self) -> tuple[_Solve, _Solve]:
        hierarchy = multigrid.build(self._matrix())
        return (
            lambda b, rtol: multigrid.solve(hierarchy.transposed, b, rtol=rtol),
            lambda c, rtol: multigrid.solve(hierarchy, c, rtol=rtol),
        )

    def _refine(self, rhs: Array, solve: _Solve, residual: Callable[[Array, Array], Array]) -> Array | None:
        """Improve solve(rhs) until rounding stops it; None if it does not converge."""
        if not rhs.any():
            return np.zeros_like(rhs)
        y, last = solve(rhs, _KRYLOV_RTOL[0]), np.inf
        if y is None or not np.isfinite(y).all() or not y.any():
            return None
        for _ in range(_REFINEMENTS):
            r = residual(y, rhs)
            correction = solve(r, _KRYLOV_RTOL[1]) if r.any() else r
            if correction is None or not np.isfinite(correction).all():
                return y if last < _ROUNDING else None
            change = float(np.abs(correction).max()) / float(np.abs(y).max())
            if change > last / 2:
                return y if last < _ROUNDING else None
            y = y + correction
            shrinks = change / last if np.isfinite(last) else max(change, _KRYLOV_RTOL[1])
            last = change
            if change * shrinks < _ACCURACY:  # what the next correction would be
                return y
        return None

    def _right_residual(self, y: Array, c: Array) -> Array:
        """Return c - A y from differences of neighbours, so that rounding is relative to those and not to y."""
        drop = self._off.data * (y[self._rows] - y[self._off.indices])
        residual: Array = c - self._sums(self._rows, drop) - self._leave * y
        return residual

    def _left_residual(self, x: Array, b: Array) -> Array:
        """Return b - x A as what enters each state less what leaves it, each flow rounded alike in both.

        In a nearly decomposable chain the large flows inside a part must cancel exactly, or their rounding would drown
        the small flow that leaves it. So each flow is a product without rounding error (Dekker), cut into a high
        part, whose sums are exact, and the low rest (Rump's extraction).
        """
        flow, error = _exact_product(x[self._rows], self._off.data)
        room = float(np.abs(flow).max(initial=0.0)) * (np.diff(self._off.indptr).max(initial=0) + self._n)
        anchor = 2.0 ** np.ceil(np.log2(room)) if room > 0 else 1.0
        high = (flow + anchor) - anchor
        low = (flow - high) + error

        into, out_of = self._off.indices, self._rows
        high_net = self._sums(into, high) - self._sums(out_of, high)
        low_net = self._sums(into, low) - self._sums(out_of, low)
        residual: Array = b + high_net + low_net - x * self._leave
        return residual

    def _sums(self, states: NDArray[np.integer[Any]], parts: Array) -> Array:
        """Return the sum of the parts that belong to each state."""
        return np.asarray(np.bincount(states, weights=parts, minlength=self._n), dtype=float)


def _with_c_integers(matrix: Any) -> Any:
    """Return the matrix with the index type that SuperLU insists on in some releases of SciPy."""
    parts = (matrix.data, matrix.indices.astype(np.intc), matrix.indptr.astype(np.intc))
    return sp.csr_array(parts, matrix.shape)


def _exact_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return p and e with a b = p + e exactly (Dekker)."""
    product = a * b
    a_high, b_high = (_upper_half(v) for v in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _upper_half(values: Array) -> Array:
    """Return the upper 26 bits of each value (Veltkamp)."""
    scaled = 134217729.0 * values
    return scaled - (scaled - values)


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
    ones = sp.csr_array((np.ones(graph.nnz, dtype=np.int8), graph.indices, graph.indptr), graph.shape)
    pattern = ones + ones.T.tocsr()
    order = reverse_cuthill_mckee(pattern, symmetric_mode=True)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    nonempty = np.diff(pattern.indptr) > 0
    first = np.arange(n)
    first[nonempty] = np.minimum.reduceat(position[pattern.indices], pattern.indptr[:-1][nonempty])
    width = np.maximum(position - first, 0).astype(float)
    return float(width @ width)
