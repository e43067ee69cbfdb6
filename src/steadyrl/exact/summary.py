"""The whole exact analysis of one process under one policy, with a residual for every theorem.

A residual is the difference between the two sides of an equation of the paper, computed by different routes. It
should be of the order of rounding (1e-12); for Theorem 5, of the error of a difference quotient (1e-7).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import check_tolerance
from steadyrl.common.detours import Perturbation
from steadyrl.common.storage import plain
from steadyrl.common.values import hash_values, same_values
from steadyrl.errors import MixingTimeError
from steadyrl.exact.chain import induced_chain
from steadyrl.exact.conditions import check_episodic
from steadyrl.exact.gradients import steady_state_policy_gradient
from steadyrl.exact.mixing import mixing_time, total_variation
from steadyrl.exact.perturb import perturb
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.stationary import expected_visits, period, stationary_distribution
from steadyrl.exact.tabular import as_policy, extend_policy, softmax_policy
from steadyrl.exact.values import action_values, episode_performance, steady_state_performance

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class PolicySummary:
    """The analysis of one policy whose episodes end."""

    average_episode_length: float
    """E[T], the reset included."""
    period: int
    """The greatest common divisor of all possible episode lengths."""
    episode_performance: float
    """J_epi, the expected sum of rewards in one episode."""
    steady_state_performance: float
    """J_avg, the expected reward per step at steady state."""
    mixing_time: float | None
    """The mixing time in steps, infinite for a periodic process; None if it was not found (see `notes`)."""
    epsilon: float | None
    """Epsilon of the recursive perturbation; None if E[T] = 1 leaves no choice or the process is already perturbed."""
    perturbed_mixing_time: float | None
    """The mixing time of the perturbed process given that the state is not null; None if there is none."""
    theorems: dict[str, float]
    """The residual of each statement of the paper."""
    notes: tuple[str, ...]
    """What could not be computed, and why."""

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        mixed = "not found" if self.mixing_time is None else f"{self.mixing_time:.10g}"
        return f"PolicySummary(E[T]={self.average_episode_length:.6g}, period={self.period}, mixing_time={mixed})"


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """The size of a process, whether Definition 1 holds, and the analysis of one policy."""

    states: int
    actions: int
    terminal_states: int
    time_limit: int | None
    """The number of actions after which episodes are truncated; None without a time limit."""
    homogeneous: bool
    """Whether all initial states lead to the same states with the same probabilities."""
    finite: bool
    """Whether the average episode length is finite for every policy."""
    finite_under_policy: bool
    """Whether the average episode length is finite for the policy given."""
    message: str
    """Whether Definition 1 holds, in a sentence."""
    witness: dict[int, tuple[int, ...]]
    """Where Definition 1 fails: the states, with actions (see `EpisodicCheck.witness`)."""
    tolerance: float
    """The total variation below which the process counts as mixed."""
    policy: PolicySummary | None
    """The analysis of the policy; None if its episodes do not end."""

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        return f"Summary({self.states} states, {self.actions} actions, ok={self.ok}, policy={self.policy!r})"

    @property
    def verdict(self) -> str:
        """When the data is at steady state, in a sentence."""
        found = self.policy
        if found is None:
            return "There is no steady state: under this policy episodes do not end."
        within = f"within {self.tolerance:g} of its steady state"
        if found.mixing_time is None:
            return f"Not {within} for a very long time."
        later = ""
        if found.perturbed_mixing_time is not None:
            after = found.perturbed_mixing_time / found.average_episode_length
            faster = found.perturbed_mixing_time < found.mixing_time
            later = (
                f"; perturbed starts bring it there in {after:.3g}" if faster else "; perturbed starts would not help"
            )
        if math.isinf(found.mixing_time):
            return f"As it is, the process never comes {within}{later}{' mean episode lengths' if later else ''}."
        before = found.mixing_time / found.average_episode_length
        return f"As it is, the process comes {within} after {before:.3g} mean episode lengths{later}."

    @property
    def ok(self) -> bool:
        """Whether this is an episodic learning process."""
        return self.homogeneous and self.finite

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values under stable keys; an infinite mixing time becomes null."""
        result: dict[str, Any] = plain({"ok": self.ok, **asdict(self)})
        return result


def summarise(
    process: LearningProcess, policy: ArrayLike, *, epsilon: float | None = None, tolerance: float = 0.01
) -> Summary:
    """Return the whole exact analysis of a process under a policy.

    Args:
        process: the learning process.
        policy: probabilities [S, A] of the actions in each state.
        epsilon: epsilon of the recursive perturbation; by default the paper's 1 - 1/E[T].
        tolerance: the total variation below which the process counts as mixed.
    """
    tolerance = check_tolerance(tolerance)
    pi = as_policy(process, policy)
    for_all = check_episodic(process)
    for_this = check_episodic(process, pi)
    return Summary(
        states=process.n_states,
        actions=process.n_actions,
        terminal_states=int(process.terminal.sum()),
        time_limit=None if process.layers is None else process.layers.limit,
        homogeneous=for_all.homogeneous,
        finite=for_all.finite,
        finite_under_policy=for_this.finite,
        message=for_all.message,
        witness=dict(for_all.witness),
        tolerance=tolerance,
        policy=_under(process, pi, epsilon, tolerance) if for_this.ok else None,
    )


def _under(process: LearningProcess, pi: Array, epsilon: float | None, tolerance: float) -> PolicySummary:
    visits = expected_visits(process, pi)
    mean = float(visits.sum())
    notes: list[str] = []

    def found(what: str, *arguments: Any, **options: Any) -> float | None:
        try:
            return mixing_time(*arguments, **options)
        except MixingTimeError as error:
            notes.append(f"{what}: {error}")
            return None

    perturbation = _perturbation(process, mean, epsilon)
    theorems = _theorems(process, pi, mean)
    mixed = None
    if perturbation is not None:
        perturbed = perturb(process, perturbation)
        extended = extend_policy(perturbed, pi)
        theorems |= _perturbed_theorems(process, pi, perturbed, extended)
        mixed = found("perturbed mixing time", perturbed, extended, tolerance, given_not_null=True)
    return PolicySummary(
        average_episode_length=mean,
        period=period(process, pi),
        episode_performance=episode_performance(process, pi),
        steady_state_performance=steady_state_performance(process, pi),
        mixing_time=found("mixing time", process, pi, tolerance),
        epsilon=None if perturbation is None else perturbation.epsilon,
        perturbed_mixing_time=mixed,
        notes=tuple(notes),
        theorems=dict(sorted(theorems.items(), key=lambda item: item[0].replace("Prop", "Z"))),
    )


def _perturbation(process: LearningProcess, mean: float, epsilon: float | None) -> Perturbation | None:
    if process.null is not None:
        return None
    if epsilon is not None:
        return Perturbation(epsilon)
    return Perturbation.for_average_episode_length(mean) if mean > 1 else None


def _theorems(process: LearningProcess, pi: Array, mean: float) -> dict[str, float]:
    rho = stationary_distribution(process, pi)
    chain = induced_chain(process, pi)
    per_episode = episode_performance(process, pi)
    per_step = steady_state_performance(process, pi)
    scale = max(abs(per_episode), float(np.abs(process.rewards).max()) or 1.0)
    return {
        "Theorem 1: rho = rho M": float(np.abs(rho @ chain - rho).sum()),
        "Proposition 4: E[T] rho(terminal) = 1": abs(mean * float(rho[process.terminal].sum()) - 1),
        "Theorem 4: J_epi = J_avg E[T]": abs(per_episode - per_step * mean) / scale,
        "Theorem 5: gradient = difference quotient": _gradient_residual(process, pi),
    }


def _perturbed_theorems(
    process: LearningProcess, pi: Array, perturbed: LearningProcess, extended: Array
) -> dict[str, float]:
    rho_plus = stationary_distribution(perturbed, extended)
    conditioned = rho_plus[: process.n_states] / (1 - rho_plus[process.n_states :].sum())
    q, q_plus = action_values(process, pi), action_values(perturbed, extended)[: process.n_states]
    scale = float(np.nanmax(np.abs(q))) or 1.0
    return {
        "Theorem 2: the perturbed period is 1": float(period(perturbed, extended) - 1),
        "Theorem 3: rho = rho+ given not null": total_variation(conditioned, stationary_distribution(process, pi)),
        "Theorem 3: Q = Q+": float(np.nanmax(np.abs(q - q_plus))) / scale,
    }


def _gradient_residual(process: LearningProcess, pi: Array) -> float:
    """Return the relative difference between Theorem 5's gradient and the slope of J_epi in its direction."""
    with np.errstate(divide="ignore"):
        logits = np.log(pi)
    gradient = steady_state_policy_gradient(process, logits)
    size = float(np.linalg.norm(gradient))
    if size == 0:
        return 0.0

    def slope(step: float) -> float:
        ahead, behind = (
            episode_performance(process, softmax_policy(logits + sign * step * gradient / size)) for sign in (1, -1)
        )
        return (ahead - behind) / (2 * step)

    # Richardson: the error of a central difference falls from h^2 to h^4.
    quotient = (4 * slope(5e-4) - slope(1e-3)) / 3
    return abs(quotient / size - 1)
