"""Stationary distributions of episodic learning processes, exactly.

Every terminal state restarts the process from the same distribution, so episodes
are the cycles of a renewal process, and a state's share of time is its expected
visits in one episode over the average episode length (Theorem 1, Proposition 4):

    rho(s) = E[visits to s] / E[T].

Nothing in this module samples.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from steadyrl.exact import time_limits
from steadyrl.exact.chain import EpisodeChain, episode_chain, require_finite_numbers
from steadyrl.exact.process import LearningProcess
from steadyrl.numerics import graphs

Array = NDArray[np.float64]


def expected_visits(process: LearningProcess, policy: ArrayLike) -> Array:
    """Return the expected number of visits to each state in one episode, [S].

    An episode's states are those after its start, so its last, terminal state counts and the terminal state
    from which it started does not; the visits to terminal states sum to one. Unreachable states get 0.

    Raises:
        NotEpisodicError: if, under this policy, some reachable state cannot reach a terminal state.

    Example:
        >>> from steadyrl import gallery
        >>> expected_visits(*gallery.corridor(rooms=3)).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    return visits_of(episode_chain(process, policy))


def visits_of(chain: EpisodeChain) -> Array:
    """Return the expected visits [S] in one episode, for a chain with the episodic discount."""
    process = chain.process
    if process.layers is not None:
        return time_limits.visits(process.layers, chain.policy)
    chain.require_finite()
    start = process.reset
    visits = np.zeros(process.n_states)
    visits[chain.inside] = np.maximum(chain.solver.left(start[chain.inside]), 0.0)
    visits *= chain.reachable  # rounding in iterative solvers must not invent visits
    outside = process.terminal
    visits[outside] = start[outside] + (visits @ chain.matrix)[outside]
    require_finite_numbers(visits)
    return visits


def average_episode_length(process: LearningProcess, policy: ArrayLike) -> float:
    """Return E[T], the expected number of transitions from one terminal state to the next.

    The reset counts: an episode of three actions in Gymnasium has T = 4.

    Raises:
        NotEpisodicError: if, under this policy, some reachable state cannot reach a terminal state.

    Example:
        >>> from steadyrl import gallery
        >>> average_episode_length(*gallery.corridor(rooms=3))
        4.0
    """
    return float(expected_visits(process, policy).sum())


def stationary_distribution(process: LearningProcess, policy: ArrayLike) -> Array:
    """Return rho, the only distribution with rho = rho M_pi, [S] (Theorem 1).

    It exists for every policy, whether or not the process ever converges to it. Unreachable states get 0.

    Raises:
        NotEpisodicError: if, under this policy, some reachable state cannot reach a terminal state.

    Example:
        >>> from steadyrl import gallery
        >>> stationary_distribution(*gallery.state_sweep(4)).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    visits = expected_visits(process, policy)
    rho: Array = visits / visits.sum()
    return rho


def mean_recurrence_times(process: LearningProcess, policy: ArrayLike) -> Array:
    """Return E[T_s], the expected number of steps from each state back to itself, [S]; inf where unreachable.

    Example:
        >>> from steadyrl import gallery
        >>> mean_recurrence_times(*gallery.corridor(rooms=3)).tolist()
        [4.0, 4.0, 4.0, 4.0]
    """
    visits = expected_visits(process, policy)
    with np.errstate(divide="ignore", over="ignore"):
        times: Array = visits.sum() / visits
    return times


def period(process: LearningProcess, policy: ArrayLike) -> int:
    """Return the greatest common divisor of all possible episode lengths.

    The process converges to its stationary distribution if and only if the period is 1 (Lemma 2.1).

    Example:
        >>> from steadyrl import gallery
        >>> period(*gallery.state_sweep(4))
        4
    """
    chain = episode_chain(process, policy)
    if process.layers is not None:
        return int(np.gcd.reduce(time_limits.possible_lengths(process.layers, chain.policy)))
    chain.require_finite()
    return graphs.cycle_gcd(*_merged(chain))


def cyclic_classes(chain: EpisodeChain) -> tuple[int, NDArray[np.int64]]:
    """Return the period d and, for each state, the times mod d at which the process can be in it (-1: never)."""
    graph, root = _merged(chain)
    d = graphs.cycle_gcd(graph, root)
    depth = graphs.depths(graph, root) % d
    terminal = chain.process.terminal
    classes = np.full(chain.process.n_states, -1)
    classes[chain.reachable & ~terminal] = depth[:-1]
    classes[chain.reachable & terminal] = 0
    return d, classes


def _merged(chain: EpisodeChain) -> tuple[sp.csr_array, int]:
    """Return the graph of reachable states with all terminal states merged into one, the last, and its number."""
    terminal = chain.process.terminal
    inside = np.flatnonzero(chain.reachable & ~terminal)
    label = np.full(chain.process.n_states, -1)
    label[inside] = np.arange(len(inside))
    label[terminal] = len(inside)
    source = chain.reachable & ~terminal
    source[np.argmax(terminal)] = True
    edges = chain.matrix[np.flatnonzero(source)].tocoo()
    rows = label[np.flatnonzero(source)][edges.row]
    n = len(inside) + 1
    graph = sp.csr_array((np.ones(edges.nnz, dtype=np.int32), (rows, label[edges.col])), (n, n))
    return graph, len(inside)
