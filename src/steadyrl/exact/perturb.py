"""Perturbation of episode starts: a detour through null states that mixes phases and changes nothing else.

After every terminal state the process spends G steps in a null state, G independent of everything else, before
the episode's first state. Values do not change (null steps have reward 0 and gamma 1) and neither does the
stationary distribution of the other states, for *any* distribution of G (Theorem 3):

    one-step epsilon (Definition 2):   P(G = 1) = epsilon, P(G = 0) = 1 - epsilon
    recursive epsilon (section 6.2):   P(G = k) = (1 - epsilon) epsilon^k,  E[G] = epsilon / (1 - epsilon)

No new simulation is needed: a recorded trajectory is perturbed by renumbering its times (`renumber`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import as_numbers, as_steps, check_rng, shown
from steadyrl.common.detours import Perturbation, check_perturbation
from steadyrl.common.values import hash_values, same_values
from steadyrl.errors import PerturbationError
from steadyrl.exact.chain import induced_chain, require_terminal
from steadyrl.exact.process import LearningProcess, check_process
from steadyrl.exact.rewards import reset_reward

Array = NDArray[np.float64]


def perturb(process: LearningProcess, perturbation: Perturbation) -> LearningProcess:
    """Return the perturbed process M+, the null state last.

    A detour distribution that is neither one-step nor geometric needs one null state per step of the longest
    detour; they come last, in order. Null states are not terminal, though in the recursive model the null row
    *is* the row of a terminal state: Definition 1's maximal set would swallow it, cut every value at the
    detour and count each null step as an episode.

    Raises:
        NotEpisodicError: if the process has no terminal states.
        PerturbationError: if the process is perturbed already.

    Example:
        >>> from steadyrl import gallery
        >>> process, _ = gallery.state_sweep(3)
        >>> perturb(process, Perturbation(0.5)).null
        3
    """
    require_terminal(check_process(process))
    check_perturbation(perturbation)
    if process.null is not None:
        raise PerturbationError(
            "the process is already perturbed; describe both detours as one with Perturbation.from_detour"
        )
    onward, stay, direct = perturbation._stages()
    n, n_null = process.n_states, len(onward) - 1
    reset = sp.csr_array(process.reset[None, :])
    ends = np.flatnonzero(process.terminal)
    to_null = sp.csr_array((np.full(len(ends), onward[0]), (ends, np.zeros_like(ends))), (n, n_null))
    among = sp.diags_array([stay[1:], onward[1:-1]], offsets=[0, 1], shape=(n_null, n_null))
    null_rows = sp.hstack([sp.vstack([reset * weight for weight in direct[1:]]), among])
    shorten = np.where(process.terminal, direct[0], 1.0)
    matrices = [
        sp.vstack([sp.hstack([sp.diags_array(shorten) @ matrix, to_null]), null_rows]).tocsr()
        for matrix in process.transitions
    ]
    rewards = np.append(process.rewards, np.zeros((n_null, *process.rewards.shape[1:])), axis=0)
    if rewards.ndim == 2:  # the reset's reward comes with the step that leads to the first state
        reward = reset_reward(process)
        rewards[:n][process.terminal] = direct[0] * reward
        rewards[n:] = direct[1:, None] * reward
    names = [process.name(s) for s in range(n)]
    names += ["null"] if n_null == 1 else [f"null {k}" for k in range(1, n_null + 1)]
    initial = np.append(process.initial, np.zeros(n_null))
    kept_out = np.flatnonzero(~process.terminal).tolist()  # what was not terminal before is not terminal now
    return LearningProcess(matrices, rewards, initial, names=names, null=range(n, n + n_null), nonterminal=kept_out)


@dataclass(frozen=True, eq=False, repr=False)
class CoupledSample:
    """The four sequences of Algorithm 1; the null state has the number that it has in `perturb(process, ...)`."""

    zeta: NDArray[np.int64]
    """The states s_0, ..., s_steps of the raw process."""
    zeta_plus: NDArray[np.int64]
    """The same trajectory with null states inserted, which is a trajectory of the perturbed process."""
    delta: NDArray[np.int64]
    """Delta_t, the number of null states among zeta_plus_0, ..., zeta_plus_{t-1}, for t = 0, ..., steps."""
    z: NDArray[np.int64]
    """The states z_t = s_{t - Delta_t}; z_t is zeta_plus_t wherever the latter is not null."""

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        inserted = len(self.zeta_plus) - len(self.zeta)
        return f"CoupledSample({len(self.zeta)} states of the raw process, {inserted} null states inserted)"


def coupled_sampling(
    process: LearningProcess,
    policy: ArrayLike,
    perturbation: Perturbation,
    steps: int,
    *,
    rng: np.random.Generator,
) -> CoupledSample:
    """Run Algorithm 1 for t = 0, ..., steps.

    A detour follows each terminal state of zeta. (The paper's line 7 asks whether s+_{t-1} is terminal; as its own
    table shows, the last state appended so far, s_{t-1}, is meant.) A recursive perturbation inserts as many
    null states as its detour has steps.
    """
    require_terminal(check_process(process))
    check_perturbation(perturbation)
    if process.null is not None:
        raise PerturbationError("the process is already perturbed; Algorithm 1 starts from the raw process")
    steps = as_steps(steps, PerturbationError)
    zeta = sample_path(process, policy, steps, rng=rng)
    times = renumber(process.terminal[zeta], perturbation, rng=rng)
    zeta_plus = np.full(int(times[-1]) + 1, process.n_states)
    zeta_plus[times] = zeta
    nulls_before = np.concatenate([[0], np.cumsum(zeta_plus == process.n_states)])
    delta = nulls_before[: steps + 1]
    return CoupledSample(zeta, zeta_plus, delta, zeta[np.arange(steps + 1) - delta])


def sample_path(
    process: LearningProcess, policy: ArrayLike, steps: int, *, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the states s_0, ..., s_steps of one rollout of the process."""
    steps = as_steps(steps, PerturbationError)
    chain = induced_chain(process, policy)
    uniform = check_rng(rng, PerturbationError).random(steps + 1)
    rows: dict[int, tuple[Array, NDArray[np.int64]]] = {-1: (np.cumsum(process.initial), np.arange(process.n_states))}
    state, path = -1, np.empty(steps + 1, dtype=np.int64)
    for t in range(steps + 1):
        if state not in rows:
            entries = slice(chain.indptr[state], chain.indptr[state + 1])
            rows[state] = np.cumsum(chain.data[entries]), chain.indices[entries]
        cumulative, targets = rows[state]
        state = int(targets[np.searchsorted(cumulative, uniform[t] * cumulative[-1], side="right")])
        path[t] = state
    return path


def renumber(ends: ArrayLike, perturbation: Perturbation, *, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the times at which the perturbed process is in each state of a recorded trajectory.

    Args:
        ends: whether the state at each time of the trajectory is terminal; the first state must be, since a
            learning process starts at a terminal state and its first episode has a detour too.
        perturbation: the distribution of the detour after each terminal state.
        rng: the random generator that draws the detours.

    Returns:
        Increasing times, one for each recorded state; at the times between them the process is null.

    Example:
        >>> ends = [True, False, False, True, False]
        >>> renumber(ends, Perturbation.from_detour([0, 0, 1]), rng=np.random.default_rng(0)).tolist()
        [0, 3, 4, 5, 8]
    """
    check_perturbation(perturbation)
    values = as_numbers("ends", ends, PerturbationError)
    if not np.isin(values, (0, 1)).all():
        raise PerturbationError(
            f"ends is {shown(ends)}; it must hold booleans: whether the state at each time is terminal, as in "
            "process.terminal[path]"
        )
    terminal = values.astype(bool)
    if terminal.ndim != 1 or not len(terminal) or not terminal[0]:
        raise PerturbationError(
            "ends must be a list of flags, one per time step, and the first True: a learning process starts at a "
            "terminal state, and the first episode has its detour too"
        )
    detours = np.zeros(len(terminal), dtype=np.int64)
    detours[terminal] = perturbation.draw(int(terminal.sum()), rng=rng)
    inserted = np.concatenate([[0], np.cumsum(detours)[:-1]])
    times: NDArray[np.int64] = np.arange(len(terminal)) + inserted
    return times
