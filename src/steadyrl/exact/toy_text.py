"""Learning processes from the models that Gymnasium's toy-text environments carry.

Such an environment has `P[state][action] = [(probability, next state, reward, terminated), ...]` and
`initial_state_distrib`. Gymnasium's states keep their numbers; a state that ends an episode gets a second number of
its own, since the same number may also occur in mid-episode (in Taxi, a passenger dropped at the
destination ends the episode, but the taxi can also stand there before).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from steadyrl.common.checks import as_distribution, check_id, in_words, shortened, shown, whole_number
from steadyrl.common.terminal import clean
from steadyrl.errors import ProcessError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Model:
    """The arguments of a learning process."""

    transitions: list[Any]
    rewards: Array
    initial: Array
    names: list[str] | None
    nonterminal: list[int]
    """The mid-episode states: the model says where episodes end, so none of these is terminal, whatever its row."""


def read_model(
    env_or_id: Any, time_limit: Literal["spec"] | int | None, make_arguments: dict[str, Any]
) -> tuple[Model, int | None]:
    """Return the model of an environment and the time limit to put on it."""
    import gymnasium

    if time_limit is not None and not (isinstance(time_limit, str) and time_limit == "spec"):
        if isinstance(time_limit, str):
            raise ProcessError(f'time_limit is {shown(time_limit)}; it must be "spec", None, or a number of actions')
        whole_number("the time limit", time_limit, ProcessError)
    if not isinstance(env_or_id, gymnasium.Env | str | gymnasium.envs.registration.EnvSpec):
        raise ProcessError(f"{shown(env_or_id)} is neither a Gymnasium environment nor the id of one")
    check_id(env_or_id, ProcessError)
    if isinstance(env_or_id, gymnasium.Env):
        if make_arguments:
            raise ProcessError(f"{sorted(make_arguments)} are for gymnasium.make and need an id, not an Env")
        env, made = env_or_id, False
    else:
        try:
            env, made = gymnasium.make(env_or_id, **make_arguments), True
        except Exception as error:  # whatever Gymnasium or the environment's own constructor raises
            raise ProcessError(
                f"the environment {shown(env_or_id)} cannot be made ({clean(in_words(error))})"
            ) from error
    try:
        spec_limit = None if env.spec is None else env.spec.max_episode_steps
        limit = spec_limit if isinstance(time_limit, str) else time_limit
        name = env.unwrapped if env.spec is None else env.spec.id
        try:
            table, start = (getattr(env.unwrapped, what, None) for what in ("P", "initial_state_distrib"))
        except Exception as error:  # they may be properties
            raise ProcessError(
                f"the model of {name} cannot be read: its P or initial_state_distrib raised {clean(in_words(error))}; "
                "repair the environment"
            ) from error
        if table is None or start is None:
            raise ProcessError(
                f"{name} carries no model: its unwrapped object needs P[state][action] and initial_state_distrib, as "
                "Gymnasium's toy-text environments have; for others, build LearningProcess from arrays, or diagnose "
                "the environment from its episodes"
            )
        if getattr(env.unwrapped, "fickle_passenger", False):
            raise ProcessError(
                "a fickle passenger changes the destination by a rule that is in the environment's step() but not in "
                "its model P, so the model would be wrong; make the environment with fickle_passenger=False"
            )
        return _convert(table, start), limit
    finally:
        if made:
            with contextlib.suppress(Exception):  # the model has been read; what closing raises must not cost it
                env.close()


def read_table(table: Any, *, with_ends: bool = True) -> tuple[Array, int, int]:
    """Return what is in P[state][action], one row for each entry whose probability is not 0.

    Args:
        table: P[state][action] = [(probability, next state, reward, terminated), ...].
        with_ends: whether every entry has to say if it terminates the episode.

    Returns:
        Rows [state, action, probability, next state, reward, terminated], and the numbers of states and of actions.

    Raises:
        ProcessError: if the table does not hold that.
    """
    try:
        n_states, n_actions = len(table), len(table[0])
        entries = [
            (state, action, *entry[:3], entry[3] if with_ends or len(entry) > 3 else False)
            for state in range(n_states)
            for action in range(n_actions)
            for entry in table[state][action]
        ]
        numbers = np.array(entries, dtype=float).reshape(-1, 6)
        counts = [len(table[state]) for state in range(n_states)]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ProcessError(
            "P must hold, for each state 0, 1, ... and each action 0, 1, ..., a list of tuples (probability, next "
            f"state, reward, terminated): {type(error).__name__} {shortened(error)}"
        ) from error
    if max(counts) > n_actions:
        raise ProcessError(
            f"P has {max(counts)} actions in state {int(np.argmax(counts))} and {n_actions} in state 0; every state "
            "needs the same actions"
        )
    for column, what, fine in (
        (2, "gives the probability", (numbers[:, 2] >= 0) & (numbers[:, 2] < np.inf)),
        (3, "leads to state", (numbers[:, 3] % 1 == 0) & (numbers[:, 3] >= 0) & (numbers[:, 3] < n_states)),
        (4, "gives the reward", np.isfinite(numbers[:, 4])),
    ):
        if not fine.all():
            row = numbers[int(np.argmin(fine))]
            raise ProcessError(
                f"P {what} {row[column]:g} in state {int(row[0])}, action {int(row[1])}; its entries are (probability, "
                f"next state, reward, terminated), with states from 0 to {n_states - 1}"
            )
    return numbers[numbers[:, 2] > 0], n_states, n_actions


def _convert(table: Any, initial_state_distrib: Any) -> Model:
    entries, n, n_actions = read_table(table)
    start = as_distribution("initial_state_distrib", initial_state_distrib, ProcessError)
    if start.shape != (n,):
        raise ProcessError(f"initial_state_distrib has shape {start.shape}; with {n} states in P it must be ({n},)")
    state, action, after = (entries[:, i].astype(np.int64) for i in (0, 1, 3))
    probability, reward, terminated = entries[:, 2], entries[:, 4], entries[:, 5] > 0
    ends = np.unique(after[terminated])
    terminals = max(len(ends), 1)  # an episode that never ends still has a start
    target = after.copy()
    target[terminated] = n + np.searchsorted(ends, after[terminated])
    rewards = np.zeros((n + terminals, n_actions))
    np.add.at(rewards, (state, action), probability * reward)
    reset = sp.csr_array(np.tile(np.append(start, np.zeros(terminals)), (terminals, 1)))
    transitions = []
    for a in range(n_actions):
        here = action == a
        onward = sp.coo_array((probability[here], (state[here], target[here])), (n, n + terminals))
        transitions.append(sp.vstack([onward, reset]).tocsr())
    initial = np.zeros(n + terminals)
    initial[n] = 1.0
    names = [str(s) for s in range(n)]
    names += [f"{s} terminated" for s in ends] if len(ends) else ["start"]
    return Model(transitions, rewards, initial, names, list(range(n)))
