r"""Time limits: processes whose states carry the number of actions taken, stored in parts rather than as one matrix.

Within an episode such a process only goes forward, from one layer (all states after k actions) to the
next, so every quantity takes one pass over the layers with the matrices of the process without
the limit. A million layered states never become a million-row linear system.

    layer 0 --actions--> layer 1 --actions--> ... --actions--> layer n-1 --actions--> cut by the limit
       \                   \                                     \
        `-------------------`---------> terminal states <----------'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

if TYPE_CHECKING:
    from steadyrl.exact.process import LearningProcess

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Layers:
    """The parts of a time-limited process; see `LearningProcess.with_time_limit` for the numbering."""

    base: LearningProcess
    limit: int
    inside: NDArray[np.int64]
    """The base's non-terminal states, N of them."""
    outside_states: NDArray[np.int64]
    """The base's terminal states, K of them."""
    onward: tuple[Any, ...]
    """Transitions [N, N] between non-terminal states, one matrix per action."""
    ending: tuple[Any, ...]
    """Transitions [N, K] to terminal states, one matrix per action."""
    start_inside: Array
    """The probability [N] that a reset leads to each non-terminal state."""
    start_out: Array
    """The probability [K] that a reset leads to each terminal state."""

    @classmethod
    def of(cls, base: LearningProcess, limit: int) -> Layers:
        """Split the base's transitions into those that continue and those that end an episode."""
        inside, outside = np.flatnonzero(~base.terminal), np.flatnonzero(base.terminal)
        rows = [matrix[inside] for matrix in base.transitions]
        return cls(
            base,
            limit,
            inside,
            outside,
            tuple(row[:, inside].tocsr() for row in rows),
            tuple(row[:, outside].tocsr() for row in rows),
            base.reset[inside],
            base.reset[outside],
        )

    @property
    def n_states(self) -> int:
        """The number of states: all layers, the states truncated by the limit, and the terminal states."""
        return (self.limit + 1) * len(self.inside) + len(self.outside_states)

    def outside(self, values: Array) -> Array:
        """Return a vector over the layered states that is `values` on terminal ones, else zero."""
        result = np.zeros(self.n_states)
        result[self.n_states - len(self.outside_states) :] = values[self.outside_states]
        return result

    def rewards(self) -> Array:
        """Return the base's rewards on every layer; in a truncated state, rewards [S, A] are those of the reset."""
        rewards = self.base.rewards
        if rewards.ndim == 1:
            return np.concatenate([np.tile(rewards[self.inside], self.limit + 1), rewards[self.outside_states]])
        reset = np.broadcast_to(rewards[self.outside_states[0]], (len(self.inside), rewards.shape[1]))
        return np.concatenate([np.tile(rewards[self.inside], (self.limit, 1)), reset, rewards[self.outside_states]])

    def name(self, state: int) -> str:
        """Return a readable name: the base state's, with the step or the reason for the end."""
        if state >= (self.limit + 1) * len(self.inside):
            return self.base.name(int(self.outside_states[state - (self.limit + 1) * len(self.inside)]))
        step, i = divmod(state, len(self.inside))
        base = self.base.name(int(self.inside[i]))
        return f"{base} cut by the limit" if step == self.limit else f"{base} at step {step}"


def spread_policy(layers: Layers, policy: Array) -> Array:
    """Return the policy that acts at every step as `policy` [base states, A] does."""
    ends = np.broadcast_to(policy[layers.outside_states[0]], (len(layers.inside), policy.shape[1]))
    return np.concatenate([np.tile(policy[layers.inside], (layers.limit, 1)), ends, policy[layers.outside_states]])


def visits(layers: Layers, policy: Array) -> Array:
    """Return the expected visits to every layered state in one episode, in one pass forward."""
    n, actions = len(layers.inside), layers.base.n_actions
    by_layer = policy[: layers.limit * n].reshape(layers.limit, n, actions)
    within = np.empty((layers.limit + 1, n))
    within[0] = layers.start_inside
    taken = np.zeros((n, actions))
    forward = _forward(layers, by_layer)
    for k in range(layers.limit):
        taken += within[k][:, None] * by_layer[k]
        within[k + 1] = forward(k, within[k])
    ends = layers.start_out.copy()
    for action, matrix in enumerate(layers.ending):
        ends += taken[:, action] @ matrix
    return np.concatenate([within.ravel(), ends])


def length_probabilities(layers: Layers, policy: Array) -> Array:
    """Return P(T = k) for k = 0, ..., limit + 1."""
    n = len(layers.inside)
    alive = visits(layers, policy)[: (layers.limit + 1) * n].reshape(layers.limit + 1, n)
    by_layer = policy[: layers.limit * n].reshape(layers.limit, n, policy.shape[1])
    leaving = np.column_stack([matrix.sum(axis=1) for matrix in layers.ending])
    ends = np.einsum("ki,kia,ia->k", alive[:-1], by_layer, leaving)
    result = np.zeros(layers.limit + 2)
    result[1] = layers.start_out.sum()
    result[2:] = ends
    result[-1] += alive[-1].sum()
    return result


def possible_lengths(layers: Layers, policy: Array) -> NDArray[np.int64]:
    """Return every T of positive probability, however small: supports are propagated, not probabilities."""
    n = len(layers.inside)
    taken = policy[: layers.limit * n].reshape(layers.limit, n, policy.shape[1]) > 0
    into = [matrix.astype(bool).T.tocsr() for matrix in layers.onward]
    ends = np.column_stack([matrix.sum(axis=1) > 0 for matrix in layers.ending])
    alive, lengths = layers.start_inside > 0, [1] if (layers.start_out > 0).any() else []
    for k in range(layers.limit):
        chosen = alive[:, None] & taken[k]
        if (chosen & ends).any():
            lengths.append(k + 2)
        alive = np.any([matrix @ chosen[:, a] for a, matrix in enumerate(into)], axis=0)
    if alive.any():
        lengths.append(layers.limit + 1)
    return np.array(lengths)


def expected(layers: Layers, arrival: Array) -> Array:
    """Return the expected value [S, A] of `arrival` [S] in the state that an action leads to."""
    n = len(layers.inside)
    ahead = arrival[n : (layers.limit + 1) * n].reshape(layers.limit, n).T
    out = arrival[(layers.limit + 1) * n :]
    columns = [
        (onward @ ahead + (ending @ out)[:, None]).T.ravel()
        for onward, ending in zip(layers.onward, layers.ending, strict=True)
    ]
    reset = layers.start_inside @ arrival[:n] + layers.start_out @ out
    ends = np.full((n + len(out), len(columns)), reset)
    return np.concatenate([np.column_stack(columns), ends])


def action_values(
    layers: Layers, policy: Array, rewards: Array, discount: Array, terminal_values: Array
) -> tuple[Array, float]:
    """Return Q [S, A] in one pass backward, and the discounted value of what a reset leads to.

    Args:
        layers: the time-limited process.
        policy: probabilities [S, A] over layered states.
        rewards: expected rewards [S, A] over layered states.
        discount: gamma(s) over layered states, [S].
        terminal_values: the value of each terminal state, those truncated by the limit first.
    """
    n = len(layers.inside)
    last = layers.limit * n
    q = np.empty(policy.shape)
    gain = discount[last:] * terminal_values
    ended = np.column_stack([matrix @ gain[n:] for matrix in layers.ending])
    onward = gain[:n]
    for k in reversed(range(layers.limit)):
        here = slice(k * n, (k + 1) * n)
        future = np.column_stack([matrix @ onward for matrix in layers.onward])
        q[here] = rewards[here] + ended + future
        onward = discount[here] * (policy[here] * q[here]).sum(axis=1)
    after_reset = float(layers.start_inside @ onward + layers.start_out @ gain[n:])
    q[last:] = rewards[last:] + after_reset
    return q, after_reset


def materialise(layers: Layers) -> list[Any]:
    """Return the transitions as sparse [S, S] matrices, one per action, built in blocks."""
    n, k = len(layers.inside), len(layers.outside_states)
    total, limit = layers.n_states, layers.limit
    reset = np.concatenate([layers.start_inside, np.zeros(limit * n), layers.start_out])
    restart = sp.vstack([sp.csr_array(reset[None, :])] * (n + k)).tocsr()
    shift = sp.eye_array(limit, limit + 1, k=1)
    result = []
    for onward, ending in zip(layers.onward, layers.ending, strict=True):
        forward = sp.kron(shift, onward, format="csr")
        out = sp.vstack([ending] * limit).tocsr()
        matrix = sp.vstack([sp.hstack([forward, out]), restart]).tocsr()
        matrix.eliminate_zeros()
        matrix.sort_indices()
        result.append(sp.csr_array(matrix, shape=(total, total)))
    return result


def _forward(layers: Layers, by_layer: Array) -> Any:
    """Return the map of visits in layer k to visits in layer k + 1."""
    if (by_layer == by_layer[0]).all():  # the same policy at every step: one matrix for all layers
        parts = zip(by_layer[0].T, layers.onward, strict=True)
        chain = sum(sp.diags_array(weights) @ matrix for weights, matrix in parts)
        into = chain.T.tocsr()
        return lambda k, x: into @ x
    intos = [matrix.T.tocsr() for matrix in layers.onward]
    return lambda k, x: sum(into @ (x * by_layer[k, :, a]) for a, into in enumerate(intos))
