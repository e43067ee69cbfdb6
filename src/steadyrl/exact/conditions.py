"""Definition 1, checked: is this model an episodic learning process, and if not, why not?

- *Homogeneity*: all initial states have one and the same row of transition probabilities, whatever the
  action. (The terminal states are then all states with that row.)
- *Finiteness*: the average episode length is finite, for every policy. In a finite process it fails if and
  only if some policy can stay for ever among reachable non-terminal states, that is, if there is an
  *end component* among them: states with actions that never lead out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

from steadyrl.common.values import hash_values, same_values
from steadyrl.exact.chain import FROM_MDP, episode_chain, name_states, why_not_homogeneous
from steadyrl.exact.process import LearningProcess, check_process
from steadyrl.exact.tabular import as_policy
from steadyrl.numerics import graphs

_TRIVIAL = (
    "but every episode has T = 1, since terminal states lead to terminal states alone: was the reset forgotten? The "
    "row of a state that ends an episode is where the next one begins (LearningProcess.from_mdp puts it there)."
)


@dataclass(frozen=True, eq=False, repr=False)
class EpisodicCheck:
    """What `check_episodic` found."""

    homogeneous: bool
    """Whether all initial states have one and the same row of transition probabilities, whatever the action."""
    finite: bool
    """Whether the average episode length is finite, for every policy or for the one given."""
    message: str
    """The result in a sentence."""
    witness: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Where finiteness fails: the states in which a policy can stay for ever, each with the actions that keep
    it there. Where homogeneity fails: the initial states, each with all its actions. Empty if both hold."""

    @property
    def ok(self) -> bool:
        """Whether both conditions hold."""
        return self.homogeneous and self.finite

    def __bool__(self) -> bool:
        return self.ok

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        where = f", witness: {_count(len(self.witness), 'state')}" if self.witness else ""
        return f"EpisodicCheck(homogeneous={self.homogeneous}, finite={self.finite}{where})"


def check_episodic(process: LearningProcess, policy: ArrayLike | None = None) -> EpisodicCheck:
    """Check Definition 1, for every policy or for the one given.

    Args:
        process: the model to check.
        policy: probabilities [S, A]; by default finiteness is checked for every policy at once.

    Example:
        >>> from steadyrl import gallery
        >>> process, policy = gallery.never_ending()
        >>> check_episodic(process).witness
        {1: (0,)}
        >>> check_episodic(process, policy).ok
        True
    """
    check_process(process)
    pi = None if policy is None else as_policy(process, policy)
    everything = tuple(range(process.n_actions))
    if not process.terminal.any():
        start = np.flatnonzero(process.initial > 0)
        return EpisodicCheck(
            False,
            False,
            f"Not an episodic learning process: {why_not_homogeneous(process)}. {FROM_MDP}.",
            {int(s): everything for s in start},
        )
    if process.layers is not None:
        return EpisodicCheck(
            True,
            True,
            f"An episodic learning process: every policy's episodes end after {process.layers.limit} actions at the "
            "latest.",
        )
    witness = _staying(process) if pi is None else _staying_under(process, pi)
    if not witness:
        whose = "every policy's" if pi is None else "this policy's"
        only_resets = process.reset[~process.terminal].sum() == 0
        return EpisodicCheck(
            True, True, f"An episodic learning process: {whose} episodes end{'; ' + _TRIVIAL if only_resets else '.'}"
        )
    states = np.array(sorted(witness))
    who = "a policy can" if pi is None else "this policy will"
    return EpisodicCheck(
        True,
        False,
        f"Not an episodic learning process: {who} stay for ever in {name_states(process, states)} (in "
        f"{process.name(int(states[0]))} with {_name_actions(witness[int(states[0])])}), so its average episode length "
        f"is infinite (finiteness); {_cure(process, states)}.",
        witness,
    )


def _staying(process: LearningProcess) -> dict[int, tuple[int, ...]]:
    """Return the end components among the non-terminal states that some policy reaches."""
    possible = graphs.union(process.transitions)
    reachable = graphs.reachable(possible, process.initial > 0)
    candidates = reachable & ~process.terminal
    if _acyclic(possible, candidates):
        return {}
    del possible
    return graphs.end_components(process.transitions, candidates)


def _staying_under(process: LearningProcess, policy: NDArray[np.float64]) -> dict[int, tuple[int, ...]]:
    """Return the reachable states from which this policy never reaches a terminal state."""
    chain = episode_chain(process, policy)
    ends = graphs.reachable(chain.matrix.T.tocsr(), process.terminal)
    stuck = np.flatnonzero(chain.reachable & ~ends)
    return {int(s): tuple(np.flatnonzero(policy[s] > 0).tolist()) for s in stuck}


def _acyclic(graph: sp.csr_array, states: NDArray[np.bool_]) -> bool:
    """Return whether no path among `states` comes back: then episodes end, whatever the policy."""
    within = graph[states][:, states]
    count, _ = connected_components(within, directed=True, connection="strong")
    return bool(count == within.shape[0] and not within.diagonal().any())


def _cure(process: LearningProcess, states: NDArray[np.int64]) -> str:
    limit = "a time limit would end such episodes (process.with_time_limit, --time-limit)"
    stays = np.ones(process.n_states, dtype=bool)
    for matrix in process.transitions:
        stays &= matrix.diagonal() == 1
    absorbing = states[stays[states]]
    if not len(absorbing):
        return limit
    return (
        f"if episodes are meant to end in {name_states(process, absorbing)}, which no action leaves, "
        f"LearningProcess.from_mdp makes such states terminal; else {limit}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _name_actions(actions: tuple[int, ...]) -> str:
    return f"action{'s' if len(actions) > 1 else ''} {', '.join(map(str, actions))}"
