"""Finite learning processes as Gymnasium environments, so that exact results can be compared with samples.

    reset()       the first state of an episode, drawn as after a terminal state
    step(action)  the next state and its reward; arriving in a terminal state ends the episode

A process's reward R(s) [S] is received on arrival in the state. Gymnasium has no place for the reward of the first
state, which is received at the reset: it is in `info["reset_reward"]`, and an episode's return lacks it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import gymnasium
import numpy as np

from steadyrl.common.checks import shown, whole_number
from steadyrl.errors import ProcessError
from steadyrl.exact.process import LearningProcess, check_process


class ProcessEnv(gymnasium.Env[Any, Any]):
    """A learning process as an environment; observations and actions are the numbers of states and actions.

    In a process with a time limit (`process.with_time_limit`), episodes that reach the limit end as truncated, and all
    others as terminated.

    Raises:
        ProcessError: if the process has no terminal states, or if a reset may lead to one at once, since an episode
            in Gymnasium has at least one action; later, if an action is not in the action space.

    Example:
        >>> from steadyrl import gallery
        >>> env = ProcessEnv(gallery.corridor(rooms=2)[0])
        >>> env.reset(seed=0)[0], env.step(0)[0], env.step(0)[:3]
        (1, 2, (0, 1.0, True))
    """

    metadata = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(self, process: LearningProcess) -> None:
        check_process(process)
        if not process.terminal.any():
            raise ProcessError(
                "this process has no terminal states (its initial states differ in their transitions), so it "
                "has no episodes to run; see check_episodic(process)"
            )
        if process.reset[process.terminal].any():
            raise ProcessError(
                "after a terminal state this process may be in a terminal state again, an episode of no action, "
                "which Gymnasium cannot show; add a state before the end"
            )
        self.process = process
        self.observation_space = gymnasium.spaces.Discrete(process.n_states)
        self.action_space = gymnasium.spaces.Discrete(process.n_actions)
        layers = process.layers
        self._limit = self.max_episode_steps = None if layers is None else layers.limit
        self._base = process if layers is None else layers.base
        self._inside = np.flatnonzero(~self._base.terminal)
        self._rank = {int(s): i for i, s in enumerate(self._inside)}  # of a state among the non-terminal ones
        self._ends = {int(s): i for i, s in enumerate(np.flatnonzero(self._base.terminal))}
        self._rows: dict[tuple[int, int], tuple[list[float], list[int]]] = {}
        self._state, self._steps = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._state, self._steps = self._draw(-1, 0), 0
        rewards = self._base.rewards
        start = int(np.argmax(self._base.terminal))
        reward = float(rewards[self._state]) if rewards.ndim == 1 else float(rewards[start, 0])
        return self._number(), {"reset_reward": reward}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        if action not in self.action_space:  # a negative number would count from the last action
            raise ProcessError(
                f"action is {shown(action)}; it must be a whole number, 0 to {self.process.n_actions - 1}, as in "
                f"{self.action_space}"
            )
        before, action = self._state, int(action)
        self._state = self._draw(before, action)
        self._steps += 1
        rewards = self._base.rewards
        reward = float(rewards[self._state]) if rewards.ndim == 1 else float(rewards[before, action])
        terminated = self._state in self._ends
        truncated = not terminated and self._limit is not None and self._steps >= self._limit
        return self._number(), reward, terminated, truncated, {}

    def _draw(self, state: int, action: int) -> int:
        """Draw the next state; -1 stands for a terminal state, after which every action resets."""
        row = self._rows.get((state, action))
        if row is None:
            if state < 0:
                targets = np.flatnonzero(self._base.reset)
                probabilities = self._base.reset[targets]
            else:
                matrix = self._base.transitions[action]
                entries = slice(matrix.indptr[state], matrix.indptr[state + 1])
                targets, probabilities = matrix.indices[entries], matrix.data[entries]
            edges = np.cumsum(probabilities)
            row = self._rows[state, action] = (edges / edges[-1]).tolist(), targets.tolist()
        return row[1][bisect_right(row[0], self.np_random.random())]

    def _number(self) -> int:
        """Return the state's number in the process; with a time limit, every time step is a layer of states."""
        if self._limit is None:
            return self._state
        n = len(self._inside)
        if self._state in self._ends:
            return (self._limit + 1) * n + self._ends[self._state]
        return self._steps * n + self._rank[self._state]


class StateSweepEnv(gymnasium.Env[Any, Any]):
    """The paper's worst case: an episode passes through all n states in order, whatever the actions.

    T = n always (Gymnasium counts n - 1 actions), so without perturbation environments stay in lockstep for ever.
    The reward on arrival in state s is s; state 0 is terminal. `gallery.state_sweep(n)` is the same process.

    Example:
        >>> env = gymnasium.make("steadyrl/StateSweep-v0", n=3)
        >>> env.reset(seed=0)[0], env.step(0)[:3], env.step(0)[:3]
        (1, (2, 2.0, False), (0, 0.0, True))
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, n: int = 20) -> None:
        self.n = whole_number("n", n, ProcessError, least=2)  # with one state, episodes would have no action
        self.observation_space = gymnasium.spaces.Discrete(self.n)
        self.action_space = gymnasium.spaces.Discrete(1)
        self._state = 0

    def fixed_episode(self) -> tuple[Any, Any]:
        """Return what every episode is: observations at ages 1, ..., T and the rewards of its T - 1 actions."""
        states = np.arange(1, self.n + 1) % self.n
        return states, states[1:].astype(float)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in state 1."""
        super().reset(seed=seed)
        self._state = 1
        return 1, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on to the next state."""
        self._state = (self._state + 1) % self.n
        return self._state, float(self._state), self._state == 0, False, {}
