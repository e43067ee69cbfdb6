"""The Markov chain M_pi that a policy induces, cut at its terminal states into episodes.

Between two terminal states the chain moves among the states *inside*, and every question about an
episode is a linear system with the matrix of that part alone:

    visits x = b + x Q,      values y = c + Q y,      b: where a reset leads, Q: from inside to inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from steadyrl.errors import AccuracyError, NotEpisodicError
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.tabular import as_policy
from steadyrl.numerics import graphs
from steadyrl.numerics.absorbing import BEYOND_NUMBERS, AbsorbingChain

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

FROM_MDP = (
    "For an MDP with a start state and absorbing terminal states, use LearningProcess.from_mdp(P, R, start, terminal); "
    "else put the initial mass on states that end an episode, and let them lead to the first states of the next"
)


def induced_chain(process: LearningProcess, policy: ArrayLike) -> Any:
    """Return M_pi(s, s') = sum_a pi(s, a) P(s'|s, a) as a sparse matrix without explicit zeros."""
    pi = as_policy(process, policy)
    chain = None
    for action, matrix in enumerate(process.transitions):
        weights = np.repeat(pi[:, action], np.diff(matrix.indptr))
        part = sp.csr_array((matrix.data * weights, matrix.indices, matrix.indptr), matrix.shape)
        chain = part.copy() if chain is None else chain + part  # the process's own arrays are read-only
    assert chain is not None
    chain.eliminate_zeros()
    return chain


@dataclass(frozen=True, eq=False)
class EpisodeChain:
    """The chain M_pi with a discount, read as a probability: on arrival in s an episode is dropped with 1 - gamma(s).

    With the episodic discount (gamma = 0 in terminal states, 1 elsewhere) an episode is dropped exactly where it ends.
    """

    process: LearningProcess
    policy: Array
    discount: Array

    @cached_property
    def matrix(self) -> Any:
        """The transition matrix M_pi, sparse [S, S]."""
        return induced_chain(self.process, self.policy)

    @cached_property
    def reachable(self) -> Mask:
        """The states that the process can be in at some time, [S]."""
        return graphs.reachable(self.matrix, self.process.initial > 0)

    @cached_property
    def _cut(self) -> tuple[Any, Array]:
        """The discounted Q between all non-terminal states, and the probability of leaving each of them."""
        outside = self.process.terminal
        within = self.matrix[~outside]
        kept = np.where(outside, 0.0, self.discount)
        leave = within @ (1 - kept)
        q = within[:, ~outside].tocsr()
        q.data = q.data * kept[~outside][q.indices]
        q.eliminate_zeros()
        return q, leave

    @cached_property
    def inside(self) -> NDArray[np.int64]:
        """The non-terminal states whose episode ends with probability one."""
        q, leave = self._cut
        ends = graphs.reachable(q.T.tocsr(), leave > 0)
        safe = ends if ends.all() else ~graphs.reachable(q.T.tocsr(), ~ends)
        inside: NDArray[np.int64] = np.flatnonzero(~self.process.terminal)[safe]
        return inside

    @cached_property
    def solver(self) -> AbsorbingChain:
        """The solver of linear systems with Q over the states inside."""
        q, leave = self._cut
        nonterminal = np.flatnonzero(~self.process.terminal)
        if len(self.inside) < len(nonterminal):
            keep = np.searchsorted(nonterminal, self.inside)
            q, leave = q[keep][:, keep].tocsr(), leave[keep]
        return AbsorbingChain(q, leave)

    def require_finite(self) -> None:
        """Raise unless, under this policy, episodes end with probability one."""
        require_terminal(self.process)
        stuck = self.reachable & ~self.process.terminal
        stuck[self.inside] = False
        if stuck.any():
            q, leave = self._cut
            ends = graphs.reachable(q.T.tocsr(), leave > 0)
            never = np.zeros(self.process.n_states, dtype=bool)
            never[~self.process.terminal] = ~ends
            never &= self.reachable
            reach = "reaches" if never.sum() == 1 else "reach"
            raise NotEpisodicError(
                f"{name_states(self.process, np.flatnonzero(never))} never {reach} a terminal state under this policy,"
                " so episodes do not end and no average episode length exists; add a time limit "
                "(process.with_time_limit), or give some action there a way out: a state that ends an episode has the "
                "row of a reset (LearningProcess.from_mdp puts it into absorbing states)"
            )


def episode_chain(process: LearningProcess, policy: ArrayLike, discount: Array | None = None) -> EpisodeChain:
    """Check the policy and return its chain; `discount` None stands for the episodic discount."""
    pi = as_policy(process, policy)
    gamma = np.where(process.terminal, 0.0, 1.0) if discount is None else discount
    return EpisodeChain(process, pi, gamma)


def require_terminal(process: LearningProcess) -> None:
    """Raise unless the initial states are alike, so that terminal states exist (homogeneity)."""
    if not process.terminal.any():
        raise NotEpisodicError(
            f"{why_not_homogeneous(process)}; a learning process starts at a terminal state, whose only way on is the "
            f"reset. {FROM_MDP}"
        )


def require_finite_numbers(values: Array) -> None:
    """Raise if the visits have overflowed, because episodes end but are longer than the largest number."""
    if not np.isfinite(values).all():
        raise AccuracyError(BEYOND_NUMBERS)


def require_finite_returns(values: Array, rewards: Array) -> None:
    """Raise if values have overflowed: episodes are too long, or rewards too large."""
    if not np.isfinite(values).all():
        largest = float(np.abs(rewards).max(initial=0.0))
        if largest < 1e100:
            raise AccuracyError(BEYOND_NUMBERS)
        raise AccuracyError(
            f"with rewards as large as {largest:.3g}, the return of an episode is beyond 1e308, the largest number in "
            "double precision; divide the rewards by a constant"
        )


def why_not_homogeneous(process: LearningProcess) -> str:
    """Return a clause that names the initial states or actions that differ, so that there are no terminal states."""
    start = np.flatnonzero(process.initial > 0)
    if len(start) == 1:
        differ = (
            f"from state {process.name(int(start[0]))}, the initial one, different actions lead to different states"
        )
    else:
        differ = f"{name_states(process, start)} can be the initial state, but do not all lead to the same states"
    return f"{differ}, so Definition 1's homogeneity fails and there are no terminal states"


def name_states(process: LearningProcess, states: NDArray[np.int64], most: int = 6) -> str:
    """Return the names of the first few states, for a message."""
    shown = ", ".join(process.name(int(s)) for s in states[:most])
    more = f" and {len(states) - most} more" if len(states) > most else ""
    return f"state{'s' if len(states) > 1 else ''} {shown}{more}"
