"""Small learning processes whose answers are known by hand.

Each function returns (process, policy); comments in its body derive the answers. The gallery serves as examples, and
every algorithm is tested on it first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import is_number, shown, whole_number
from steadyrl.errors import ProcessError
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.tabular import uniform_policy

Entry = tuple[LearningProcess, NDArray[np.float64]]

MOST = 10_000
"""Most states of a process here: its matrix is dense, 0.8 GB at that size."""


def state_sweep(n: int = 20) -> Entry:
    """An episode passes through all n states in order, whatever the actions (the paper's worst case)."""
    # 0 -> 1 -> ... -> n-1 -> 0; state 0 is terminal. T = n always, so rho = 1/n everywhere, the period is n,
    # and rho^(t) is the point mass at t mod n: TV to rho is 1 - 1/n for ever. R(s) = s, so
    # J_epi = n (n - 1) / 2 and J_avg = (n - 1) / 2.
    n = whole_number("n", n, ProcessError, most=MOST)
    shift = np.roll(np.eye(n), 1, axis=1)
    process = LearningProcess([shift], np.arange(n), np.eye(n)[0])
    return process, uniform_policy(process)


def corridor(rooms: int = 3) -> Entry:
    """Walk through the rooms one by one to the exit, which rewards 1."""
    # exit 0 -> room 1 -> ... -> room `rooms` -> exit 0. T = rooms + 1 (Gymnasium would count `rooms` actions);
    # R(exit) = 1, so Q = V = 1 everywhere with the episodic discount, J_epi = 1, J_avg = 1 / (rooms + 1).
    # With a constant discount g: V(exit) = g^rooms + g^(rooms + 1) V(exit), so V(exit) = g^rooms / (1 - g^(rooms + 1)).
    rooms = whole_number("rooms", rooms, ProcessError, most=MOST)
    shift = np.roll(np.eye(rooms + 1), 1, axis=1)
    process = LearningProcess([shift], np.eye(rooms + 1)[0], np.eye(rooms + 1)[0])
    return process, uniform_policy(process)


def two_terminals(win: float = 2.0, loss: float = 0.0) -> Entry:
    """One decision: action 0 wins, action 1 loses; two terminal states with rewards of their own."""
    # States: 0 loss (terminal), 1 decide, 2 a pause after winning, 3 win (terminal).
    #     0, 3 -> 1;   1 --action 0--> 2 -> 3;   1 --action 1--> 0.
    # With p = P(action 0): visits (1 - p, 1, p, p), E[T] = 2 + p, rho = visits / (2 + p).
    # Q(1, 0) = win, Q(1, 1) = loss, J_epi = p win + (1 - p) loss. For logits (x, y) in state 1 the gradient of J_epi
    # is p (1 - p) (win - loss) (1, -1): at p = 1/2 with win = 2, loss = 0 it is (1/2, -1/2).
    # Lengths 2 and 3: period 1 for 0 < p < 1.
    win_path = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    lose_path = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    names = ["loss", "decide", "pause", "win"]
    process = LearningProcess([win_path, lose_path], [loss, 0, 0, win], [1, 0, 0, 0], names=names)
    return process, uniform_policy(process)


def self_loops(stay: float = 0.5) -> Entry:
    """One state that is left with probability 1 - stay at each step: lengths are geometric, without a maximum."""
    # 0 -> 1; 1 -> 1 with probability q = stay, 1 -> 0 with 1 - q. T = 1 + geometric: E[T] = 1 + 1/(1 - q),
    # visits (1, 1/(1 - q)). The eigenvalues of M are 1 and q - 1, so TV(rho^(t), rho) = (1 - rho(0)) (1 - q)^t.
    # R(1) = 1: J_epi = 1/(1 - q).
    if not is_number(stay) or not 0 <= stay < 1:
        raise ProcessError(f"stay is {shown(stay)}; it must be a probability, 0 or more and below 1")
    process = LearningProcess([[[0, 1], [1 - stay, stay]]], [0, 1], [1, 0])
    return process, uniform_policy(process)


def nearly_decomposable(leak: float = 1e-6) -> Entry:
    """Two pairs of states: the process moves freely inside a pair, and almost never between the pairs or out."""
    # 0 terminal -> 1. Pair A = {1, 2}, pair B = {3, 4}; with e = leak:
    #     1 -> 2 (1),   2 -> 1 (1 - e), 2 -> 3 (e),   3 -> 4 (1),   4 -> 3 (1 - e), 4 -> 0 (e).
    # Each round trip in A leaves it with probability e, so visits to 1 and 2 are 1/e each; the same in B.
    # visits (1, 1/e, 1/e, 1/e, 1/e), E[T] = 1 + 4/e, exactly. R = 1 in pair B: J_epi = 2/e, J_avg = 2/(4 + e).
    if not is_number(leak) or not 0 < leak < 1:
        raise ProcessError(f"leak is {shown(leak)}; it must be a probability, above 0 and below 1")
    e = leak
    rows = [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1 - e, 0, e, 0], [0, 0, 0, 0, 1], [e, 0, 0, 1 - e, 0]]
    process = LearningProcess([rows], [0, 0, 0, 1, 1], [1, 0, 0, 0, 0])
    return process, uniform_policy(process)


def periodic() -> Entry:
    """Episodes have length 2 or 4, each with probability 1/2: they vary, and yet the process never converges."""
    # 0 terminal -> 1; 1 -> 0 (action 0) or -> 2 -> 3 -> 0 (action 1). At the uniform policy T is 2 or 4 with
    # probability 1/2: E[T] = 3, visits (1, 1, 1/2, 1/2), rho (1/3, 1/3, 1/6, 1/6), period gcd(2, 4) = 2: even times are
    # spent in {0, 2} and odd ones in {1, 3}, so the distance to rho stays at 1/2 or above.
    short = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    long = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    process = LearningProcess([short, long], [0, 0, 0, 1], [1, 0, 0, 0])
    return process, uniform_policy(process)


def never_ending() -> Entry:
    """Action 0 always waits; the policy returned waits half the time, so *its* episodes end."""
    # 0 terminal -> 1; 1 --wait--> 1, 1 --leave--> 0. Not an episodic learning process: the policy "always wait" has
    # no finite episode. The uniform policy's T is 1 + geometric(1/2): E[T] = 3.
    wait = [[0, 1], [0, 1]]
    leave = [[0, 1], [1, 0]]
    process = LearningProcess([wait, leave], [0, 1], [1, 0])
    return process, uniform_policy(process)


def wrong_way(delay: int = 4, early: float = 1.0, late: float = 2.0) -> Entry:
    """A choice of a small reward now or a larger one later: the discounted update prefers the worse (Nota and Thomas).

    With discounts below (early / late)^(1 / delay) the classic discounted estimator with returns that stop at the
    end of the episode points away from the true gradient, exactly opposite.
    """
    # States: 0 start, 1 choose, 2 early end, then 3, ..., 3 + delay on the way to the late reward; 0, 2 and the last
    # are terminal. Action 0 in state 1 goes to 2 (`early` arrives, T = 2); action 1 goes along 3, 4, ..., 3 + delay,
    # where `late` arrives (T = 2 + delay).
    # Undiscounted: Q(1, 0) = early < late = Q(1, 1). Discounted, stopping at the end: Q(1, 0) = early,
    # Q(1, 1) = g^delay late: smaller as soon as g^delay < early / late. There is one decision, so the
    # gradient's direction is the sign of Q(1, 0) - Q(1, 1): truth (-, +), classic (+, -), cosine -1.
    # At the uniform policy: J_epi = (early + late) / 2, E[T] = 2 + delay / 2.
    delay = whole_number("delay", delay, ProcessError, most=MOST)
    for name, reward in (("early", early), ("late", late)):
        if not is_number(reward):
            raise ProcessError(f"{name} is {shown(reward)}; it must be a number, the reward of that end")
    n = 4 + delay
    soon, wait = np.zeros((n, n)), np.zeros((n, n))
    for matrix in (soon, wait):
        matrix[[0, 2, n - 1], 1] = 1
        matrix[np.arange(3, n - 1), np.arange(4, n)] = 1
    soon[1, 2] = wait[1, 3] = 1
    rewards = np.zeros(n)
    rewards[2], rewards[n - 1] = early, late
    process = LearningProcess([soon, wait], rewards, np.eye(n)[0])
    return process, uniform_policy(process)
