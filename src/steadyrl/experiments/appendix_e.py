"""Section 6.1's comparison with A3C and appendix E: what discounted few-step estimators compute, and their bias.

    E[Q_gamma(s, a) grad log pi(s, a)] = (1 - gamma)/gamma E[grad Q_gamma(s, a)],       s, a ~ rho

The left-hand side is what they compute; appendix E says that the right-hand side is proportional to the gradient of the
steady-state performance if the policy does not change rho. Everything here is exact. Along the training of a small
process the direction that they compute is compared with the true gradient, and ascents along either are compared by
where they lead. Phase is a second bias: an estimator that does not wait samples rho^(t), not rho.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.figures import PERTURBED, QUIET, RAW, new_figure
from steadyrl.exact import gallery
from steadyrl.exact.gradients import classic_gradient, gradient_bias, policy_gradient, steady_state_policy_gradient
from steadyrl.exact.mixing import marginals
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.stationary import average_episode_length, stationary_distribution
from steadyrl.exact.tabular import softmax_policy
from steadyrl.exact.values import action_values, episode_performance, steady_state_performance
from steadyrl.experiments.experiment import Experiment, Finding, Result
from steadyrl.experiments.workspace import Workspace

Array = NDArray[np.float64]

_COLOURS = ("#c1440e", "#d98032", "#8f7fb0", PERTURBED)


@dataclass(frozen=True)
class Settings:
    """The discounts, and the training of two small processes."""

    discounts: tuple[float, ...] = (0.9, 0.95, 0.99)
    updates: int = 400
    lake_rate: float = 20.0
    """Step size of the ascent in FrozenLake-v1 (without time limit); its gradients are small."""
    trap_updates: int = 400
    trap_rate: float = 0.2
    """Step size of the ascent in the process in which the discounted update goes the wrong way."""
    delay: int = 24
    """Steps by which the larger reward of that process comes later."""


def run(settings: Settings, workspace: Workspace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check appendix E, follow the bias over training, and compare where ascents lead."""
    numbers: dict[str, Any] = {"identity": _identity(settings), "theorem 5": 0.0}
    arrays: dict[str, Any] = {}
    lake = LearningProcess.from_gymnasium("FrozenLake-v1", None)
    trap, _ = gallery.wrong_way(delay=settings.delay)
    for name, process, rate, updates in (
        ("lake", lake, settings.lake_rate, settings.updates),
        ("trap", trap, settings.trap_rate, settings.trap_updates),
    ):
        workspace.say(f"appendix-e: ascents in {name}")
        found = _follow(process, rate, updates, settings.discounts)
        numbers["theorem 5"] = max(numbers["theorem 5"], found.pop("theorem 5"))
        numbers[name] = {key: value for key, value in found.items() if not isinstance(value, np.ndarray)}
        arrays |= {f"{name} {key}": value for key, value in found.items() if isinstance(value, np.ndarray)}
    numbers["phase"], arrays["phase cosine"] = _phase_bias()
    return numbers, arrays


def _identity(settings: Settings) -> dict[str, Any]:
    """Compute both sides of appendix E's equation (the right-hand one by differences), and when it is grad J_avg."""
    rng = np.random.default_rng(0)
    process, _ = gallery.wrong_way(delay=3)
    logits = rng.normal(size=(process.n_states, process.n_actions))
    residual = 0.0
    for gamma in settings.discounts:
        left = classic_gradient(process, logits, gamma)
        rho = stationary_distribution(process, softmax_policy(logits))
        weights = rho[:, None] * softmax_policy(logits)
        right = np.zeros_like(left)
        for place in np.ndindex(left.shape):
            step = np.zeros_like(logits)
            step[place] = 1e-5
            higher, lower = (action_values(process, softmax_policy(logits + s * step), gamma) for s in (1, -1))
            right[place] = (1 - gamma) / gamma * (weights * (higher - lower) / 2e-5).sum()
        residual = max(residual, float(np.abs(left - right).max() / np.abs(left).max()))
    fixed, free = _bandit(moves=False), _bandit(moves=True)
    return {
        "residual": residual,
        "cosine where rho is fixed": _cosine_with_average(fixed, 0.5),
        "cosine where it is not": _cosine_with_average(free, 0.5),
    }


def _bandit(*, moves: bool) -> LearningProcess:
    """Return a process of three states in a row; actions earn rewards and, if `moves`, also skip a state."""
    forward = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]], dtype=float)
    skip = np.array([[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0]], dtype=float)
    rewards = np.array([[0, 0], [1, 0.2], [0.3, 1], [6, 5.0]])
    return LearningProcess([forward, skip if moves else forward], rewards, [1, 0, 0, 0])


def _cosine_with_average(process: LearningProcess, gamma: float) -> float:
    """Return the cosine between what the estimator computes and grad J_avg, by differences."""
    logits = np.random.default_rng(1).normal(size=(process.n_states, process.n_actions))
    gradient = np.zeros_like(logits)
    for place in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-5
        higher, lower = (steady_state_performance(process, softmax_policy(logits + s * step)) for s in (1, -1))
        gradient[place] = (higher - lower) / 2e-5
    return _cosine(classic_gradient(process, logits, gamma), gradient)


def _cosine(a: Array, b: Array) -> float:
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


def _follow(process: LearningProcess, rate: float, updates: int, discounts: Sequence[float]) -> dict[str, Any]:
    """Ascend along the true gradient and watch the bias; ascend along the discounted ones and see where that leads.

    Discounted returns stop at the end of the episode, as in every implementation. For the ascents the discounted
    direction is scaled to the true gradient's length, so that only the direction differs.
    """
    shape = (process.n_states, process.n_actions)
    stop = {gamma: gamma * ~process.terminal for gamma in discounts}
    logits = np.zeros(shape)
    cosine, ratio = np.zeros((len(discounts), updates)), np.zeros((len(discounts), updates))
    true, lengths, theorem = np.zeros(updates), np.zeros(updates), 0.0
    for update in range(updates):
        policy = softmax_policy(logits)
        gradient = policy_gradient(process, logits)
        true[update], lengths[update] = episode_performance(process, policy), average_episode_length(process, policy)
        if update % 50 == 0:
            other = steady_state_policy_gradient(process, logits)
            theorem = max(theorem, float(np.abs(gradient - other).max() / np.abs(gradient).max()))
        for i, gamma in enumerate(discounts):
            bias = gradient_bias(process, logits, stop[gamma])
            cosine[i, update], ratio[i, update] = bias.cosine, bias.length_ratio
        logits = logits + rate * gradient
    reached = np.zeros((len(discounts), updates))
    for i, gamma in enumerate(discounts):
        logits = np.zeros(shape)
        for update in range(updates):
            reached[i, update] = episode_performance(process, softmax_policy(logits))
            truth, direction = policy_gradient(process, logits), classic_gradient(process, logits, stop[gamma])
            length = np.linalg.norm(direction)
            logits = logits + (rate * np.linalg.norm(truth) / length * direction if length > 0 else 0.0)
    return {
        "theorem 5": theorem,
        "performance": {"first": float(true[0]), "last": float(true[-1])},
        "length": {"first": float(lengths[0]), "last": float(lengths[-1])},
        "least cosine": {f"{gamma:g}": float(cosine[i].min()) for i, gamma in enumerate(discounts)},
        "last cosine": {f"{gamma:g}": float(cosine[i, -1]) for i, gamma in enumerate(discounts)},
        "reached": {f"{gamma:g}": float(reached[i, -1]) for i, gamma in enumerate(discounts)},
        "length ratio": {
            f"{gamma:g}": [float(ratio[i].min()), float(ratio[i].max())] for i, gamma in enumerate(discounts)
        },
        "true performance": true,
        "average episode length": lengths,
        "cosine": cosine,
        "ratio": ratio,
        "reached performance": reached,
    }


def _phase_bias() -> tuple[dict[str, Any], Array]:
    """Compare the undiscounted estimator at time t after a common reset with the true gradient, in direction.

    In the sweep-like process below two decisions are at different ages, so a few-step batch of phase-locked copies sees
    one of them only.
    """
    process = _two_decisions()
    logits = np.zeros((process.n_states, process.n_actions))
    policy = softmax_policy(logits)
    truth = policy_gradient(process, logits)
    q = action_values(process, policy)
    advantage = q - (policy * q).sum(axis=1, keepdims=True)
    cosines = []
    for rho in marginals(process, policy, 60)[1:]:
        seen = np.where(process.terminal, 0.0, rho)[:, None] * policy * advantage
        cosines.append(_cosine(seen, truth) if np.abs(seen).max() > 0 else 0.0)
    values = np.array(cosines)
    return {"least": float(values.min()), "largest": float(values.max()), "mean": float(values.mean())}, values


def _two_decisions() -> LearningProcess:
    """Return a process of ten states in a row (T = 10 always) in which decisions in states 2 and 7 earn rewards."""
    n = 10
    shift = np.roll(np.eye(n), 1, axis=1)
    rewards = np.zeros((n, 2))
    rewards[2], rewards[7] = (1.0, 0.0), (0.0, 1.0)
    return LearningProcess([shift, shift], rewards, np.eye(n)[0])


def draw(result: Result) -> Any:
    """Draw cosines over training, where ascents lead, and the bias of copies in lockstep."""
    figure, axes = new_figure(2, 3, (12.0, 6.4))
    arrays, discounts = result.arrays, result.settings["discounts"]
    for row, (name, title) in enumerate((("lake", "FrozenLake-v1"), ("trap", "little now or much later"))):
        for i, gamma in enumerate(discounts):
            axes[3 * row].plot(
                arrays[f"{name} cosine"][i], color=_COLOURS[i], linewidth=1.2, label=f"gamma = {gamma:g}"
            )
            axes[3 * row + 1].plot(arrays[f"{name} reached performance"][i], color=_COLOURS[i], linewidth=1.2)
        axes[3 * row + 1].plot(arrays[f"{name} true performance"], color="black", linewidth=1.4, label="true gradient")
        axes[3 * row].set_title(f"{title}: cosine with the true gradient", fontsize=9)
        axes[3 * row + 1].set_title("J_epi along each direction", fontsize=9)
        axes[3 * row].set_ylim(-1.05, 1.05)
        for axis in axes[3 * row : 3 * row + 2]:
            axis.set_xlabel("update")
            axis.legend(frameon=False, fontsize=7)
    axes[2].plot(arrays["lake average episode length"], color=QUIET, linewidth=1.2)
    axes[2].set_title("FrozenLake-v1: E[T] along the true gradient", fontsize=9)
    axes[2].set_xlabel("update")
    axes[5].plot(np.arange(1, len(arrays["phase cosine"]) + 1), arrays["phase cosine"], ".-", color=RAW, linewidth=0.7)
    axes[5].axhline(1, color=QUIET, linestyle="--", linewidth=0.8)
    axes[5].set_title("phase-locked one-step batches: cosine", fontsize=9)
    axes[5].set_xlabel("time t after a common reset (T = 10)")
    return figure


def findings(result: Result) -> Sequence[Finding]:
    """Judge what section 6.1 and appendix E say."""
    identity, trap, lake, phase = (result.numbers[key] for key in ("identity", "trap", "lake", "phase"))
    discounts = [f"{gamma:g}" for gamma in result.settings["discounts"]]
    wrong = [gamma for gamma in discounts if trap["least cosine"][gamma] < 0]
    return [
        Finding(
            "appendix E: the estimator computes (1 - gamma)/gamma E[grad Q_gamma]",
            f"both sides agree to {identity['residual']:.1e}, relatively (differences of Q, step 1e-5)",
            identity["residual"] < 1e-6,
        ),
        Finding(
            "which is proportional to grad J_avg if the policy does not change rho",
            f"cosine {identity['cosine where rho is fixed']:.10f} where rho is fixed, "
            f"{identity['cosine where it is not']:.3f} in the same process where actions also move (gamma = 0.5)",
            abs(identity["cosine where rho is fixed"] - 1) < 1e-6 and identity["cosine where it is not"] < 0.99,
        ),
        Finding(
            "Theorem 5: SSPG's expectation is the gradient of J_epi",
            f"equal to {result.numbers['theorem 5']:.1e} along two trainings",
            result.numbers["theorem 5"] < 1e-9,
        ),
        Finding(
            "A3C's discounted estimator does not compute the policy gradient",
            f"least cosine over training: FrozenLake-v1 {_by(lake['least cosine'], discounts)}; a small reward now "
            f"or a large one later {_by(trap['least cosine'], discounts)}. Ascents along it end at J_epi "
            f"{_by(trap['reached'], discounts)} there, along the true gradient at {trap['performance']['last']:.3g}",
            bool(wrong),
            f"the update points exactly the wrong way at gamma = {', '.join(wrong)}" if wrong else "",
        ),
        Finding(
            "A3C does not wait for steady state; few-step data is then biased by phase",
            f"one-step batches of phase-locked copies: cosine from {phase['least']:.3g} to {phase['largest']:.3g} with "
            "time, periodic for ever",
            phase["least"] < 0.5 and phase["largest"] < 0.999,
        ),
    ]


def _by(entry: Any, discounts: Sequence[str]) -> str:
    return ", ".join(f"{entry[gamma]:.3g} (gamma = {gamma})" for gamma in discounts)


def rows(result: Result) -> Sequence[tuple[str, str]]:
    """Return how training went, and the length of the estimates relative to the gradient."""
    found = []
    for name, title in (("lake", "FrozenLake-v1, no time limit"), ("trap", "now or later")):
        entry = result.numbers[name]
        found.append(
            (
                title,
                f"J_epi {entry['performance']['first']:.4g} to {entry['performance']['last']:.4g}, E[T] "
                f"{entry['length']['first']:.4g} to {entry['length']['last']:.4g}; estimate / gradient in length: "
                + ", ".join(
                    f"{low:.2g} to {high:.2g} (gamma = {g})" for g, (low, high) in entry["length ratio"].items()
                ),
            )
        )
    return found


EXPERIMENT = Experiment(
    name="appendix-e",
    title="Section 6.1 and appendix E: what discounted few-step estimators compute",
    claim="A3C's estimator is not the policy gradient: it discounts, drops E[T] - 1, and does not wait.",
    settings={
        "quick": Settings(updates=40, trap_updates=30),
        "laptop": Settings(),
        "paper": Settings(),
    },
    run=run,
    draw=draw,
    findings=findings,
    rows=rows,
    departures=lambda result: ("the paper gives no experiment here; processes and trainings are ours, and exact",),
)
