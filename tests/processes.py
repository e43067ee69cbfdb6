"""Random learning processes for property tests, and slow, obvious versions of what steadyrl computes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from steadyrl import LearningProcess

KINDS = ("sparse", "dense", "periodic", "acyclic", "nearly decomposable", "partly unreachable", "one step")


def random_process(rng, kind=None, *, max_states=10, arrival=True):
    """Return a process that is episodic for every policy, and a random policy with some zeros.

    Every action in every non-terminal state goes, with some probability, to a state of a lower number or ends the
    episode, so no policy can stay for ever.
    """
    kind = KINDS[rng.integers(len(KINDS))] if kind is None else kind
    n = 0 if kind == "one step" else int(rng.integers(1, max_states + 1))
    k, actions = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    total = n + k
    level = rng.integers(0, 3, size=n)  # for periodic processes of period 3: terminal states have level 0
    transitions = np.zeros((actions, total, total))
    for a in range(actions):
        for s in range(n):
            transitions[a, s] = _row(rng, kind, s, n, k, level)
    reset = _reset(rng, kind, n, k, level)
    transitions[:, n:] = reset
    shuffle = rng.permutation(total)
    transitions = transitions[:, shuffle][:, :, shuffle]
    initial = np.zeros(total)
    terminal = np.flatnonzero(shuffle >= n)
    initial[terminal] = rng.dirichlet(np.ones(k))
    if arrival:
        rewards = rng.normal(size=total)
    else:
        rewards = rng.normal(size=(total, actions))
        # Small processes sometimes have other states with the row of a reset: Definition 1 makes them terminal.
        found = LearningProcess(transitions, np.zeros(total), initial).terminal
        rewards[found] = rng.normal()  # a reset's reward depends on nothing
    policy = rng.dirichlet(np.ones(actions), size=total)
    if actions > 1:
        policy[rng.random(total) < 0.2] = np.eye(actions)[0]
    return LearningProcess(transitions, rewards, initial), policy


def _row(rng, kind, s, n, k, level):
    row = np.zeros(n + k)
    if kind == "periodic":
        allowed = np.flatnonzero(np.append((level == (level[s] + 1) % 3) & (np.arange(n) < s), np.zeros(k, bool)))
        if level[s] == 2 or not len(allowed):
            # Only a state of level 2 may end the episode; one without a way down is sent to level 0 by ending late.
            row[n + rng.integers(k)] = 1.0
            return row
        row[allowed] = rng.dirichlet(np.ones(len(allowed)))
        return row
    if kind == "acyclic":
        down = np.append(np.arange(n) < s, np.ones(k, bool))
        support = down & (rng.random(n + k) < 0.6)
    elif kind == "dense":
        support = np.ones(n + k, bool)
    else:
        support = rng.random(n + k) < 0.4
    if kind == "partly unreachable" and s < n // 2:
        support[n // 2 : n] = False  # the upper half can be left, but not entered from below
    support[rng.integers(0, s) if s and rng.random() < 0.7 else n + rng.integers(k)] = True
    row[support] = rng.dirichlet(np.ones(int(support.sum())))
    if kind == "nearly decomposable":
        other = (np.arange(n + k) % 2) != s % 2
        row[other] *= 10.0 ** -rng.uniform(3, 9)
        row /= row.sum()
    return row


def _reset(rng, kind, n, k, level):
    row = np.zeros(n + k)
    if n == 0:
        row[:] = rng.dirichlet(np.ones(k))
        return row
    starts = np.arange(n)
    if kind == "periodic":
        starts = np.flatnonzero(level == 1)
    elif kind == "partly unreachable":
        starts = np.arange(max(n // 2, 1))
    if not len(starts):
        row[n] = 1.0
        return row
    row[starts] = rng.dirichlet(np.ones(len(starts)))
    return row


@st.composite
def processes(draw, arrival=None):
    """Hypothesis strategy: (process, policy) of any kind."""
    seed = draw(st.integers(0, 2**32 - 1))
    kind = draw(st.sampled_from(KINDS))
    given_arrival = draw(st.booleans()) if arrival is None else arrival
    return random_process(np.random.default_rng(seed), kind, arrival=given_arrival)


def dense_chain(process, policy):
    """M_pi by its definition."""
    stack = np.array([matrix.toarray() for matrix in process.transitions])
    return np.einsum("sa,ast->st", policy, stack)


def reachable_states(process, chain):
    reached = process.initial > 0
    while True:
        more = reached | (chain[reached].sum(axis=0) > 0)
        if (more == reached).all():
            return reached
        reached = more


def stationary_by_null_space(process, policy):
    """The left null vector of M - I on the reachable states, by least squares."""
    chain = dense_chain(process, policy)
    states = np.flatnonzero(reachable_states(process, chain))
    part = chain[np.ix_(states, states)]
    system = np.vstack([part.T - np.eye(len(states)), np.ones(len(states))])
    solution = np.linalg.lstsq(system, np.append(np.zeros(len(states)), 1.0), rcond=None)[0]
    rho = np.zeros(process.n_states)
    rho[states] = solution
    return rho


def values_by_full_system(process, policy, gamma):
    """V of every state from (I - M diag(gamma)) V = r, over all states at once."""
    chain = dense_chain(process, policy)
    r = (policy * process.expected_rewards).sum(axis=1)
    return np.linalg.solve(np.eye(process.n_states) - chain * gamma[None, :], r)


def slippery_grid(n):
    """n x n cells, one goal in a corner that restarts at the opposite one; each action moves to one neighbour."""
    import scipy.sparse as sp

    cell = np.arange(n * n).reshape(n, n)
    i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    matrices = []
    for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        target = cell[np.clip(i + di, 0, n - 1), np.clip(j + dj, 0, n - 1)].ravel().copy()
        target[-1] = 0
        matrices.append(sp.csr_array((np.ones(n * n), (np.arange(n * n), target)), (n * n, n * n)))
    initial = np.zeros(n * n)
    initial[-1] = 1
    rewards = np.zeros(n * n)
    rewards[-1] = 1
    return LearningProcess(matrices, rewards, initial)
