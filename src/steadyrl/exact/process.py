"""Learning processes: finite models of the endless loop of episodes in which an agent learns.

The paper's M_L goes terminal state -> ... -> terminal state -> ... for ever. Its terminal states are
not declared but found (Definition 1): the largest set of states that contains the initial ones
and in which all states and actions have the same transition probabilities, which are those of a
reset. An episode's length T counts the transitions from one terminal state to the next, the
reset included, so an episode of l actions in Gymnasium has T = l + 1.

    state 0 (terminal) --reset--> state 1 --action--> ... --action--> state 0 or another terminal

A reward belongs to the state in which it arrives (`rewards` [S]), or is the expected reward of a
transition (`rewards` [S, A], Gymnasium's way).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import shown, whole_number
from steadyrl.common.storage import load_arrays, save_arrays
from steadyrl.errors import FileFormatError, ProcessError, SteadyrlError
from steadyrl.exact import time_limits as time_limit_layers
from steadyrl.exact.rewards import expected, reset_reward
from steadyrl.exact.time_limits import Layers
from steadyrl.exact.validation import (
    as_initial,
    as_mask,
    as_matrices,
    as_names,
    as_rewards,
    frozen,
    one_row,
    read_only,
    terminal_states,
)

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_MOST_STATES = 2**31 - 1
_MOST_SAVED = 2**25
"""A file of a few kilobytes may hold a process of so many states and steps: with two actions, about 1 GiB of memory."""


class LearningProcess:
    """A finite learning process, immutable; its terminal states are found, not declared.

    Args:
        transitions: probabilities [A, S, S], or one [S, S] matrix for each action, dense or sparse; [a, s, t] is the
            probability of going from s to t with action a. A state that ends an episode leads to the first states
            of the next.
        rewards: rewards [S], received on arrival in a state, or [S, A], the expected reward of an action.
        initial: the distribution [S] of the state at time 0. A learning process starts at a terminal state, whose only
            way on is the reset; for a model with a start state in mid-episode, use `from_mdp`.
        names: a name for each state, used in messages and tables; by default its number.
        null: the null state, or states, of a perturbed process (see `perturb`). A null state never counts as terminal,
            though its row may be that of a terminal state.
        nonterminal: other states that do not count as terminal. Definition 1's set of terminal states is the largest
            possible, so it includes a mid-episode state from which every action happens to lead where a reset does.
            An environment that says where its episodes end can exclude such states.

    Raises:
        ProcessError: if an array has the wrong shape, a row is not a distribution, or a value is not finite.

    Example:
        >>> step_or_end = [[[0, 1], [1, 0]]]  # one action: 0 -> 1 -> 0 -> 1 -> ...
        >>> process = LearningProcess(step_or_end, rewards=[0, 5], initial=[1, 0])
        >>> process.terminal.tolist()
        [True, False]
    """

    def __init__(
        self,
        transitions: Any,
        rewards: ArrayLike,
        initial: ArrayLike,
        *,
        names: Sequence[str] | None = None,
        null: int | Sequence[int] | None = None,
        nonterminal: Sequence[int] | None = None,
    ) -> None:
        matrices = tuple(as_matrices(transitions))
        n_states = int(matrices[0].shape[0])
        names = as_names(names, n_states)
        start = as_initial(initial, n_states)
        kept_out = as_mask("null", null, n_states), as_mask("nonterminal", nonterminal, n_states)
        never = kept_out[0] | kept_out[1]
        if (never & (start > 0)).any():
            state = int(np.argmax(never & (start > 0)))
            raise ProcessError(
                f"initial puts probability {start[state]} on state {state if names is None else names[state]}, which "
                f"is declared {'null' if kept_out[0][state] else 'nonterminal'}, but a learning process starts at a "
                "terminal state, whose only way on is the reset; for an MDP with a start state and absorbing terminal "
                "states, use LearningProcess.from_mdp(P, R, start, terminal)"
            )
        terminal = terminal_states(matrices, start, never)
        self._assemble(
            n_actions=len(matrices),
            matrices=one_row(matrices, terminal),
            rewards=as_rewards(rewards, n_states, len(matrices)),
            initial=start,
            terminal=terminal,
            null=kept_out[0],
            nonterminal=kept_out[1],
            names=names,
            layers=None,
        )

    def _assemble(
        self,
        *,
        n_actions: int,
        matrices: tuple[Any, ...] | None,
        rewards: Array,
        initial: Array,
        terminal: Mask,
        null: Mask,
        nonterminal: Mask,
        names: tuple[str, ...] | None,
        layers: Layers | None,
    ) -> None:
        self._n_states, self._n_actions = len(initial), n_actions
        self._matrices = matrices
        self._rewards, self._initial = frozen(rewards), frozen(initial)
        self._terminal, self._null, self._nonterminal = frozen(terminal), null, nonterminal
        self._names, self._layers = names, layers

    @property
    def n_states(self) -> int:
        """The number of states, terminal, null and unreachable ones included."""
        return self._n_states

    @property
    def n_actions(self) -> int:
        """The number of actions, the same in every state."""
        return self._n_actions

    @property
    def transitions(self) -> tuple[Any, ...]:
        """The transition probabilities: one sparse [S, S] matrix (csr_array) per action."""
        if self._matrices is None:
            assert self._layers is not None
            self._matrices = tuple(read_only(m) for m in time_limit_layers.materialise(self._layers))
        return self._matrices

    @property
    def rewards(self) -> Array:
        """The rewards as given: [S] on arrival, or [S, A] expected."""
        return self._rewards

    @cached_property
    def expected_rewards(self) -> Array:
        """The expected reward [S, A] of each action, in whichever form the rewards were given."""
        if self._rewards.ndim == 2:
            return self._rewards
        return frozen(expected(self, self._rewards))

    @property
    def initial(self) -> Array:
        """The distribution [S] of the state at time 0."""
        return self._initial

    @property
    def terminal(self) -> Mask:
        """Which states are terminal, [S]; none if the initial states differ (Definition 1 fails)."""
        return self._terminal

    @property
    def null(self) -> int | None:
        """The null state of a perturbed process (the first, if a detour has several), or None."""
        return int(np.flatnonzero(self._null)[0]) if self._null.any() else None

    @property
    def null_states(self) -> Mask:
        """Which states are null states, [S]."""
        return self._null

    @property
    def nonterminal(self) -> Mask:
        """Which states were declared not to be terminal, [S]."""
        return self._nonterminal

    @property
    def layers(self) -> Layers | None:
        """The parts of a time-limited process; None for any other."""
        return self._layers

    @cached_property
    def reset(self) -> Array:
        """The distribution [S] of the state after a terminal one; all zeros if no state is terminal."""
        row = np.zeros(self._n_states)
        if self._layers is not None:
            n_inside = len(self._layers.inside)
            row[:n_inside] = self._layers.start_inside
            row[-len(self._layers.start_out) :] = self._layers.start_out
        elif self._terminal.any():
            row = self.transitions[0][[int(np.argmax(self._terminal))]].toarray()[0]
        return frozen(row)

    def name(self, state: int) -> str:
        """Return a readable name of a state."""
        state = whole_number("state", state, ProcessError, least=0, most=self._n_states - 1)
        if self._layers is not None:
            return self._layers.name(state)
        return str(state) if self._names is None else self._names[state]

    def with_time_limit(self, n: int) -> LearningProcess:
        """Return the process whose episodes are cut after `n` actions (Gymnasium's TimeLimit).

        States become (state, step): state number k * N + i is the i-th of this process's N non-terminal
        states after k actions, k = 0, ..., n - 1. After them come N terminal states in which the limit
        has truncated the episode, and then the terminal states of this process. T is at most n + 1. The
        large transition matrices are built only on request, since the analysis works layer by layer.
        """
        n = whole_number("the time limit", n, ProcessError)
        if self._null.any():
            raise ProcessError(
                "this process is perturbed, and whether null steps count towards a time limit is ambiguous; "
                "set the limit first: perturb(process.with_time_limit(n), perturbation)"
            )
        if not self._terminal.any():
            raise ProcessError(
                "this process has no terminal states (its initial states differ in their transitions), so "
                "its episodes have no start from which a limit could count; see check_episodic(process), and "
                "LearningProcess.from_mdp for an MDP with a start state"
            )
        if self._layers is not None:
            shorter = min(n, self._layers.limit)
            return self if shorter == self._layers.limit else self._layers.base.with_time_limit(shorter)
        if (n + 1) * (self._n_states - int(self._terminal.sum())) > _MOST_STATES:
            raise ProcessError(f"a limit of {n} actions on {self._n_states} states makes over {_MOST_STATES:,} states")
        reset_reward(self)
        limited, layers = object.__new__(LearningProcess), Layers.of(self, n)
        try:
            limited._assemble(
                n_actions=self._n_actions,
                matrices=None,
                rewards=layers.rewards(),
                initial=layers.outside(self._initial),
                terminal=np.arange(layers.n_states) >= layers.limit * len(layers.inside),
                null=as_mask("null", None, layers.n_states),
                nonterminal=as_mask("nonterminal", None, layers.n_states),
                names=None,
                layers=layers,
            )
        except MemoryError as error:
            raise ProcessError(
                f"a limit of {n} actions makes {layers.n_states:,} states, which do not fit into memory; give a "
                "shorter limit"
            ) from error
        return limited

    @classmethod
    def from_gymnasium(
        cls,
        env_or_id: Any,
        time_limit: Literal["spec"] | int | None = "spec",
        **make_arguments: Any,
    ) -> LearningProcess:
        """Return the learning process of a Gymnasium environment that carries its model.

        The environment's unwrapped object must have `P` and `initial_state_distrib`, as the toy-text environments
        do. States keep Gymnasium's numbers; a transition flagged terminated leads to a terminal state of
        its own, numbered after them. See `steadyrl.exact.toy_text`.

        Args:
            env_or_id: an environment, or the id of one.
            time_limit: "spec" takes the limit from the environment's spec, if it has one; a number sets
                it; None ignores it. A limit makes states (state, step): see `with_time_limit`.
            make_arguments: keyword arguments for gymnasium.make, such as map_name="8x8"; they need an id.
        """
        from steadyrl.exact.toy_text import read_model

        model, limit = read_model(env_or_id, time_limit, make_arguments)
        process = cls(model.transitions, model.rewards, model.initial, names=model.names, nonterminal=model.nonterminal)
        return process if limit is None else process.with_time_limit(limit)

    @classmethod
    def from_mdp(
        cls, P: Any, R: Any, start: Any, terminal: Any, *, names: Sequence[str] | None = None
    ) -> LearningProcess:
        """Return the learning process of a textbook MDP, whose terminal states are absorbing.

        The rows of the terminal states are replaced by the reset, which leads to the start states, and the process
        starts at a terminal state. States keep their numbers.

        Args:
            P: transition probabilities [A, S, S], or one [S, S] matrix per action, dense or sparse; or Gymnasium's
                P[state][action] = [(probability, next state, reward, terminated), ...]. The rows of terminal states
                lead to themselves, or are zero.
            R: rewards [S], received on arrival in a state, the start and the terminal state of an episode included;
                [S, A], the expected reward of an action; or [A, S, S], the reward of a transition. None takes the
                rewards of Gymnasium's P.
            start: the state in which episodes begin, several (each equally likely), or their distribution [S].
            terminal: the state in which episodes end, several, or a mask of booleans [S]. None takes the states that
                Gymnasium's P flags as terminated.
            names: a name for each state, used in messages and tables; by default its number.

        Raises:
            ProcessError: if an array has the wrong shape or a row is not a distribution, if a terminal state leads to
                another state or is paid for leaving it, if a start state is terminal, or if no state is terminal.

        Example:
            A walk on four cells starts in cell 1 and ends in cell 0, or in cell 3 with a reward of 1. With both
            directions equally likely it ends in cell 3 with probability 1/3 after 2 actions on average (gambler's
            ruin), and the reset is one transition more.

            >>> from steadyrl import average_episode_length, episode_performance, uniform_policy
            >>> left = [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
            >>> right = [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
            >>> walk = LearningProcess.from_mdp([left, right], R=[0, 0, 0, 1], start=1, terminal=[0, 3])
            >>> round(average_episode_length(walk, uniform_policy(walk)), 12)
            3.0
            >>> round(episode_performance(walk, uniform_policy(walk)), 12)
            0.333333333333
        """
        from steadyrl.exact.textbook import convert

        model = convert(P, R, start, terminal)
        return cls(model.transitions, model.rewards, model.initial, names=names, nonterminal=model.nonterminal)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the process to an npz file without pickle; the file is replaced only once the new one is complete."""
        if self._layers is not None:
            _require_saved_size(self._layers.base, self._layers.limit, ProcessError)
        save_arrays(path, "learning process", *self._content())

    @property
    def digest(self) -> str:
        """First 12 hex digits of the SHA-256 of the process."""
        header, arrays = self._content()
        found = sha256(repr(header).encode())
        for name, values in arrays.items():
            numbers = values.astype(np.int64) if values.dtype.kind in "iu" else values  # of one width
            found.update(f"{name} {numbers.dtype.kind} {numbers.shape}".encode())
            found.update(np.ascontiguousarray(numbers).tobytes())
        return found.hexdigest()[:12]

    def _content(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the header and the arrays that are saved."""
        if self._layers is not None:
            base, limit = self._layers.base, self._layers.limit
        else:
            base, limit = self, None
        arrays: dict[str, Any] = {"rewards": base._rewards, "initial": base._initial}
        for action, matrix in enumerate(base.transitions):
            for part in ("data", "indices", "indptr"):
                arrays[f"{part}_{action}"] = getattr(matrix, part)
        if base._names is not None:
            arrays["names"] = np.array(base._names, dtype=str)
        for kind, mask in (("null", base._null), ("nonterminal", base._nonterminal)):
            if mask.any():
                arrays[kind] = np.flatnonzero(mask)
        return {"n_states": base.n_states, "n_actions": base.n_actions, "time_limit": limit}, arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LearningProcess:
        """Read a process that `save` wrote.

        Raises:
            FileFormatError: if the file is truncated, damaged, or not a saved process.
        """
        header, arrays = load_arrays(path, "learning process")
        try:
            shape = (int(header["n_states"]),) * 2
            matrices = [
                sp.csr_array(tuple(arrays[f"{part}_{a}"] for part in ("data", "indices", "indptr")), shape)
                for a in range(int(header["n_actions"]))
            ]
            names = arrays["names"].tolist() if "names" in arrays else None
            kept_out = {kind: arrays[kind].tolist() for kind in ("null", "nonterminal") if kind in arrays}
            process = cls(matrices, arrays["rewards"], arrays["initial"], names=names, **kept_out)
            if (limit := header["time_limit"]) is None:
                return process
            _require_saved_size(process, int(limit), FileFormatError)
            return process.with_time_limit(int(limit))
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise FileFormatError(
                f"{os.fspath(path)!r} does not hold a whole learning process ({error}); save it again"
            ) from error

    def __repr__(self) -> str:
        limit = "" if self._layers is None else f", time limit {self._layers.limit}"
        actions = "1 action" if self._n_actions == 1 else f"{self._n_actions} actions"
        return f"LearningProcess({self._n_states} states, {actions}, {int(self._terminal.sum())} terminal{limit})"


def _require_saved_size(base: LearningProcess, limit: int, error: type[SteadyrlError]) -> None:
    """Raise if a time limit makes a process of many gigabytes out of one that fits into a small file."""
    size = (limit + 1) * (base.n_states - int(base.terminal.sum())) * max(1, base.n_actions // 2)
    if size > _MOST_SAVED:
        raise error(
            f"a time limit of {limit:,} actions on {base.n_states:,} states and {base.n_actions:,} actions would take "
            "gigabytes of memory on loading; save the process without it, and call with_time_limit when it is loaded"
        )


def check_process(process: Any) -> LearningProcess:
    """Return the process, or raise ProcessError if it is something else."""
    if isinstance(process, LearningProcess):
        return process
    hint = ""
    if isinstance(process, tuple) and process and isinstance(process[0], LearningProcess):
        hint = "; it is the first entry of this tuple, as in process, policy = gallery.corridor()"
    raise ProcessError(f"process is {shown(process)}; it must be a LearningProcess{hint}")
