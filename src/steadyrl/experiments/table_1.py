"""Table 1, by number: episodic and continual learning have one on-policy distribution and one performance.

    visits in an episode / E[T] = rho,        J_epi = J_avg E[T]        (Theorem 4)

Finite processes exactly, each side by a route of its own: visits and J_epi from the linear system of an episode, rho
from the fixed point rho = rho M. Real environments by two independent runs: separate episodes on one side, one endless
stream of steps (Gymnasium's NEXT_STEP autoreset, which *is* the learning process) on the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import spsolve
from scipy.special import ndtri

from steadyrl.common.detours import Perturbation
from steadyrl.common.figures import PERTURBED, QUIET, new_figure
from steadyrl.environments.sources import as_source
from steadyrl.exact import gallery
from steadyrl.exact.chain import episode_chain, induced_chain
from steadyrl.exact.perturb import perturb
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.stationary import average_episode_length, expected_visits
from steadyrl.exact.tabular import extend_policy, uniform_policy
from steadyrl.exact.values import episode_performance
from steadyrl.experiments.experiment import Cost, Experiment, Finding, Result
from steadyrl.experiments.workspace import Workspace

Array = NDArray[np.float64]

_TOLERANCE = 1e-8  # to which exact numbers must agree, relative to the largest
_LEVEL = 0.001  # chance that the largest of all sampled differences is called one although there is none


@dataclass(frozen=True)
class Settings:
    """Processes and environments, and how many episodes of each."""

    toy_texts: tuple[str, ...] = ("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4")
    environments: tuple[tuple[str, str, int], ...] = (
        ("CartPole-v1", "uniform", 20_000),
        ("Acrobot-v1", "uniform", 400),
        ("MountainCar-v0", "uniform", 500),
        ("HopperBulletEnv-v0", "gaussian", 6_000),
        ("HumanoidBulletEnv-v0", "gaussian", 2_000),
    )
    """Gymnasium id, policy, episodes; the stream on the other side is about as long."""
    copies: int = 16
    """Streams that run side by side; the key is part of saved results."""


def run(settings: Settings, workspace: Workspace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compute both sides for finite processes, and estimate them for environments."""
    numbers: dict[str, Any] = {"processes": {}, "environments": {}}
    arrays: dict[str, Any] = {}
    for name, (process, policy) in _processes(settings).items():
        workspace.say(f"table-1: {name}, {process.n_states:,} states")
        numbers["processes"][name] = _both_sides(process, policy)
    for part, (name, policy_name, episodes) in enumerate(settings.environments):
        found = workspace.arrays(name, partial(_sampled, workspace, name, policy_name, episodes, part, settings))
        entry, z = _compare(found)
        numbers["environments"][name] = {"policy": policy_name, "episodes": episodes, **entry}
        arrays[f"z {name}"] = z
    return numbers, arrays


def _processes(settings: Settings) -> dict[str, tuple[LearningProcess, Any]]:
    found = {
        "state sweep, n = 20 (never converges)": gallery.state_sweep(20),
        "two terminal states": gallery.two_terminals(),
        "lengths 2 or 4 (never converges)": gallery.periodic(),
        "nearly decomposable, leak 1e-4": gallery.nearly_decomposable(1e-4),
        "geometric lengths": gallery.self_loops(),
    }
    raw, policy = found["two terminal states"]
    model = perturb(raw, Perturbation(0.5))
    found["two terminal states, perturbed"] = model, extend_policy(model, policy)
    for name in settings.toy_texts:
        process = LearningProcess.from_gymnasium(name)
        found[f"{name}, uniform policy"] = process, uniform_policy(process)
    return found


def _both_sides(process: LearningProcess, policy: Any) -> dict[str, Any]:
    visits = expected_visits(process, policy)
    mean = average_episode_length(process, policy)
    rho = fixed_point(process, policy)
    rewards = (policy * process.rewards).sum(axis=1) if process.rewards.ndim == 2 else process.rewards
    epi, avg = episode_performance(process, policy), float(rho @ rewards)
    return {
        "states": process.n_states,
        "E[T]": mean,
        "relative difference of lengths": float(abs(1 / rho[process.terminal].sum() / mean - 1)),
        "largest difference of distributions": float(np.abs(visits / mean - rho).max() / rho.max()),
        "J_epi": epi,
        "J_avg E[T]": avg * mean,
        "relative difference of performance": abs(avg * mean - epi) / max(abs(epi), 1e-300) if epi else abs(avg * mean),
    }


def fixed_point(process: LearningProcess, policy: Any) -> Array:
    """Return the solution of rho = rho M, sum rho = 1, from the equations alone: nothing is known of episodes.

    Reachable states only: one of the equations is redundant and makes room for the sum.
    """
    chain = induced_chain(process, policy)
    kept = np.flatnonzero(episode_chain(process, policy).reachable)
    matrix = chain[kept][:, kept]
    n = len(kept)
    system = sp.vstack([(sp.eye_array(n) - matrix.T).tocsr()[:-1], np.ones((1, n))]).tocsc()
    rho = np.zeros(process.n_states)
    rho[kept] = spsolve(system, np.eye(1, n, n - 1)[0]) if n > 1 else 1.0
    return rho


def _sampled(
    workspace: Workspace, name: str, policy_name: str, episodes: int, part: int, settings: Settings
) -> dict[str, Any]:
    """Return sums over episodes, and over a stream, of the observation, the reward and ends."""
    policy = workspace.policy(name, policy_name)
    seed = workspace.derived_seed(100 * part)
    found = workspace.episodes(
        f"{name} episodes",
        name,
        policy,
        episodes,
        seed=seed,
        trajectories=True,
        observation_sums=False,
        block_size=max(200, -(-episodes // 16)),
    )
    track = found.trajectories
    assert track is not None
    edges = np.concatenate([[0], np.cumsum(found.lengths + 1)[:-1]])
    sums = np.add.reduceat(track.observations, edges, axis=0)
    workspace.say(f"{name}: a stream of {int(found.lengths.sum()):,} steps")
    steps = -(-int((found.lengths + 1).sum()) // settings.copies)
    stream = endless_stream(name, policy, settings.copies, steps, seed=seed + 1)
    return {
        "lengths": found.lengths,
        "returns": found.returns,
        "sums": np.column_stack([sums, found.returns, found.lengths + 1.0]),
        "stream": stream,
    }


def endless_stream(environment: str, policy: Any, num_envs: int, steps: int, *, seed: int) -> Array:
    """Return [cycles, d + 2]: sums of observation, reward and one over whole cycles of endless streams.

    Each copy runs through its episodes as NEXT_STEP autoreset does: after a terminal state, one step resets. A cycle is
    the steps of a copy after one terminal state up to the next; a stream ends with the cycle in which its step number
    `steps` falls, which is a stopping time, so that means over its cycles are unbiased (Wald's identity).
    """
    source = as_source(environment)
    rng = np.random.default_rng(seed)
    cycles: list[Array] = []
    for copy in range(num_envs):
        env = source.make()
        seen, first = 0, True
        while seen < steps:
            observation, _ = env.reset(seed=seed + copy if first else None)
            first, over, rows, reward_sum = False, False, [np.ravel(observation)], 0.0
            while not over:
                action = policy.act(rows[-1][None, :].astype(float), rng)[0]
                if hasattr(env.action_space, "low"):
                    action = np.clip(action, env.action_space.low, env.action_space.high)
                observation, reward, terminated, truncated, _ = env.step(action)
                rows.append(np.ravel(observation))
                reward_sum += float(reward)
                over = terminated or truncated
            seen += len(rows)
            cycles.append(np.concatenate([np.sum(rows, axis=0, dtype=float), [reward_sum, float(len(rows))]]))
        env.close()
    return np.array(cycles)


def _compare(found: dict[str, Any]) -> tuple[dict[str, Any], Array]:
    """Return both sides of Table 1 with 90% half-widths, and z of every difference."""
    sums, stream = found["sums"], found["stream"]
    ratio, error = _ratios(sums)
    other, other_error = _ratios(stream)
    spread = np.hypot(error, other_error)
    moving = spread > 1e-12 * (1 + np.abs(ratio))
    z = np.where(moving, (ratio - other) / np.where(moving, spread, 1.0), 0.0)
    reach = float(ndtri(0.95))
    n, mean = len(found["lengths"]), float(found["lengths"].mean()) + 1
    epi, epi_error = float(found["returns"].mean()), float(found["returns"].std(ddof=1) / math.sqrt(n))
    length_error = float(found["lengths"].std(ddof=1) / math.sqrt(n))
    avg_epi, avg_error = other[-1] * mean, math.hypot(other_error[-1] * mean, other[-1] * length_error)
    difference = math.hypot(epi_error, avg_error)
    z_performance = (epi - avg_epi) / difference if difference > 1e-12 * (1 + abs(epi)) else 0.0
    count = int(moving[:-1].sum()) + 1
    return {
        "E[T]": mean,
        "stream steps": int(stream[:, -1].sum()),
        "J_epi": epi,
        "J_epi half-width": reach * epi_error,
        "J_avg E[T]": float(avg_epi),
        "J_avg E[T] half-width": reach * avg_error,
        "values compared": count,
        "largest |z|": float(max(np.abs(z).max(), abs(z_performance))),
        "bound for |z|": float(ndtri(1 - _LEVEL / 2 / count)),
        "inside 90%": float((np.abs(np.append(z[:-1][moving[:-1]], z_performance)) < reach).mean()),
    }, np.append(z, z_performance)


def _ratios(sums: Array) -> tuple[Array, Array]:
    """Return steady-state means (the regenerative method) and their standard errors, for all columns but the last."""
    length = sums[:, -1]
    ratio = sums[:, :-1].sum(axis=0) / length.sum()
    scatter = sums[:, :-1] - ratio * length[:, None]
    return ratio, scatter.std(axis=0, ddof=1) / (length.mean() * math.sqrt(len(sums)))


def draw(result: Result) -> Any:
    """Draw how far the two sides are apart: exact ones relatively, sampled ones in standard errors."""
    figure, axes = new_figure(1, 2, (11.0, 4.0))
    exact = result.numbers["processes"]
    names = list(exact)
    for offset, key, colour, label in (
        (-0.15, "largest difference of distributions", PERTURBED, "on-policy distribution"),
        (0.15, "relative difference of performance", "#c1440e", "performance"),
    ):
        values = [max(exact[name][key], 1e-17) for name in names]
        axes[0].plot(values, np.arange(len(names)) + offset, "o", color=colour, markersize=4, label=label)
    axes[0].set_xscale("log")
    axes[0].set_xlim(5e-18, 1e-6)
    axes[0].axvline(_TOLERANCE, color=QUIET, linestyle="--", linewidth=0.8)
    axes[0].set_yticks(np.arange(len(names)), names, fontsize=7)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("relative difference of the two sides")
    axes[0].set_title("finite processes, exactly", fontsize=9)
    axes[0].legend(frameon=False, fontsize=7, loc="lower right")
    sampled = list(result.numbers["environments"])
    for i, name in enumerate(sampled):
        z = result.arrays[f"z {name}"]
        axes[1].plot(z[:-1], np.full(len(z) - 1, i) - 0.1, "|", color=PERTURBED, markersize=9)
        axes[1].plot(z[-1:], [i + 0.15], "o", color="#c1440e", markersize=4)
    for edge in (-1.645, 1.645):
        axes[1].axvline(edge, color=QUIET, linestyle="--", linewidth=0.8)
    axes[1].set_yticks(np.arange(len(sampled)), sampled, fontsize=7)
    axes[1].set_ylim(len(sampled) - 0.5, -0.5)
    axes[1].set_xlim(-5, 5)
    axes[1].set_xlabel("difference in standard errors (dashed: 90%)")
    axes[1].set_title("environments: episodes against an endless stream", fontsize=9)
    return figure


def findings(result: Result) -> Sequence[Finding]:
    """Judge the third row of Table 1."""
    exact, sampled = result.numbers["processes"].values(), result.numbers["environments"].values()
    worst = max(entry["largest difference of distributions"] for entry in exact)
    performance = max(entry["relative difference of performance"] for entry in exact)
    lengths = max(entry["relative difference of lengths"] for entry in exact)
    inside = sum(entry["inside 90%"] * entry["values compared"] for entry in sampled)
    count = sum(entry["values compared"] for entry in sampled)
    apart = [name for name, entry in result.numbers["environments"].items() if not _together(entry)]
    return [
        Finding(
            "on-policy distribution: visits in an episode / E[T] = rho",
            f"differ by {worst:.1e} of the largest probability at most, in {len(exact)} processes",
            worst < _TOLERANCE,
        ),
        Finding(
            "performance: J_epi = J_avg E[T]",
            f"differ by {performance:.1e} at most, relatively",
            performance < _TOLERANCE,
        ),
        Finding(
            "E[T] = 1 / rho(terminal states) (Proposition 4)",
            f"differ by {lengths:.1e} at most, relatively",
            lengths < _TOLERANCE,
        ),
        Finding(
            "the same in real environments",
            f"{inside:.0f} of {count} differences between separate episodes and an endless stream lie inside their 90% "
            f"interval ({0.9 * count:.0f} expected); largest "
            f"{max(entry['largest |z|'] for entry in sampled):.2f} standard errors",
            not apart,
            f"apart in {', '.join(apart)}" if apart else "",
        ),
    ]


def _together(entry: Any) -> bool:
    return bool(entry["largest |z|"] < entry["bound for |z|"])


def rows(result: Result) -> Sequence[tuple[str, str]]:
    """Return Table 1 filled in with numbers."""
    found = [
        (
            name,
            f"{entry['states']:,} states, E[T] = {entry['E[T]']:.6g}; J_epi = {entry['J_epi']:.10g}, "
            f"J_avg E[T] = {entry['J_avg E[T]']:.10g}",
        )
        for name, entry in result.numbers["processes"].items()
    ]
    found += [
        (
            f"{name}, {entry['policy']} policy",
            f"E[T] = {entry['E[T]']:.5g}; J_epi = {entry['J_epi']:.5g} +- {entry['J_epi half-width']:.2g}, "
            f"J_avg E[T] = {entry['J_avg E[T]']:.5g} +- {entry['J_avg E[T] half-width']:.2g} (90%); "
            f"{entry['episodes']:,} episodes, a stream of {entry['stream steps']:,} steps",
        )
        for name, entry in result.numbers["environments"].items()
    ]
    return found


_SMALL = Settings(
    toy_texts=("FrozenLake-v1",),
    environments=(("CartPole-v1", "uniform", 400), ("HopperBulletEnv-v0", "gaussian", 120)),
    copies=4,
)
_LARGE = Settings(environments=tuple((name, policy, 10 * count) for name, policy, count in Settings().environments))


def _cost(settings: Settings) -> Sequence[Cost]:
    lengths = {"CartPole-v1": 22, "Acrobot-v1": 500, "MountainCar-v0": 200, "HopperBulletEnv-v0": 12}
    rates = {"CartPole-v1": 40_000, "Acrobot-v1": 10_000, "MountainCar-v0": 40_000, "HopperBulletEnv-v0": 2000}
    return [
        Cost(name, 2.0 * count * lengths.get(name, 20), rates.get(name, 800))
        for name, _, count in settings.environments
    ]


EXPERIMENT = Experiment(
    name="table-1",
    title="Table 1: one on-policy distribution, one performance",
    claim="Episodic learning is continual learning: visits in an episode are rho, and J_epi = J_avg E[T].",
    settings={"quick": _SMALL, "laptop": Settings(), "paper": _LARGE},
    run=run,
    draw=draw,
    findings=findings,
    rows=rows,
    cost=_cost,
)
