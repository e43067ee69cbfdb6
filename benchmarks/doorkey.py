"""The exact mean return and length of random actions in MiniGrid-DoorKey-5x5-v0, without minigrid.

The room has three cells on the left of a wall, where the agent and the key begin, and three on the right, with the goal
in the lower one; the door in the wall is in the first or the second row. Everything is a small Markov chain: the
agent's cell and direction, where the key is, and whether the door is locked, closed or open. Its distribution is moved
forward step by step, up to the time limit of 250. Reaching the goal in step t gives 1 - 0.9 t / 250.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import Any

LIMIT = 250
GOAL = (3, 3)
ACTIONS = (0.2, 0.2, 0.3, 0.15, 0.0, 0.15, 0.0)
"""Probabilities of left, right, forward, pick up, drop, toggle, done: neither drop nor done, forward most often."""
LOCKED, CLOSED, OPEN = range(3)
CARRIED = (0, 0)  # the place of a key that the agent has
AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))
ROWS = (1, 2, 3)

State = tuple[tuple[int, int], int, tuple[int, int], int, tuple[int, int]]
"""Agent's cell, direction, the key's cell, the door's state, the door's cell."""


def first_states() -> dict[State, float]:
    """Return the distribution after a reset: door in row 1 or 2, agent and key in two cells of the left column."""
    found: dict[State, float] = {}
    for door, agent, key, direction in product((1, 2), ROWS, ROWS, range(4)):
        if agent != key:
            found[(1, agent), direction, (1, key), LOCKED, (2, door)] = 1 / (2 * 3 * 2 * 4)
    return found


def next_state(state: State, action: int) -> State:
    """Return what an action does: left, right, forward, pick up, drop, toggle, done."""
    agent, direction, key, lock, door = state
    front = agent[0] + AHEAD[direction][0], agent[1] + AHEAD[direction][1]
    is_wall = not (front[0] in (1, 3) and front[1] in ROWS) and front != door
    is_empty = not is_wall and front not in (key, door, GOAL)
    if action in (0, 1):
        return agent, (direction + 2 * action - 1) % 4, key, lock, door
    if action == 2 and (is_empty or front == GOAL or (front == door and lock == OPEN)):
        return front, direction, key, lock, door
    if action == 3 and front == key:
        return agent, direction, CARRIED, lock, door
    if action == 4 and is_empty and key == CARRIED:
        return agent, direction, front, lock, door
    if action == 5 and front == door:
        turned = {LOCKED: OPEN if key == CARRIED else LOCKED, CLOSED: OPEN, OPEN: CLOSED}[lock]
        return agent, direction, key, turned, door
    return state


def exactly(actions: Sequence[float]) -> dict[str, Any]:
    """Return mean return, mean length, and the probability of success, for actions with given probabilities."""
    states, value, length, success = first_states(), 0.0, 0.0, 0.0
    for step in range(1, LIMIT + 1):
        following: dict[State, float] = defaultdict(float)
        length += sum(states.values())
        for state, weight in states.items():
            for action, probability in enumerate(actions):
                reached, share = next_state(state, action), weight * probability
                if reached[0] == GOAL:
                    success += share
                    value += share * (1 - 0.9 * step / LIMIT)
                elif share:
                    following[reached] += share
        states = following
    return {"mean_return": value, "mean_length": length, "success": success}


if __name__ == "__main__":
    print(exactly([1 / 7] * 7), exactly(ACTIONS))
