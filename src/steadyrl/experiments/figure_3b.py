"""Figure 3 (b): the state sweep, the paper's worst case, under recursive perturbation with epsilon = 1 - 1/n.

A sweep's state *is* its age, so the phase distance is the total variation of the states, exactly; and everything at
time t = c n has a limit for n -> infinity. In units of n a detour is then exponential with mean a (a = 1 for the
paper's epsilon) and an episode takes 1, so episode j begins at a time with density

    u_j(x) = y^(j-1) e^(-y/a) / ((j-1)! a^j),   y = x - (j - 1) >= 0,        u = sum_j u_j,

a state is real at x with probability R(x) = integral of u over (x-1, x), and TV(x) = 1/2 integral |u/R(x) - 1| there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from steadyrl.common.detours import Perturbation
from steadyrl.common.figures import PERTURBED, QUIET, RAW, new_figure
from steadyrl.exact import gallery
from steadyrl.exact.mixing import distances
from steadyrl.exact.perturb import perturb
from steadyrl.exact.tabular import extend_policy
from steadyrl.experiments.experiment import Experiment, Finding, Result
from steadyrl.experiments.workspace import Workspace
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.renewal import phase_distance, phase_mixing_time, start_sequence

Array = NDArray[np.float64]

_CHUNK = 1_000_000  # rollouts held in memory at once
_COLOURS = ("#9bbfcc", "#5f9db5", PERTURBED, "#0c3c4f")


@dataclass(frozen=True)
class Settings:
    """Sizes of the state sweep, and how it is sampled."""

    sizes: tuple[int, ...] = (20, 100, 500, 2000)
    rollouts: int = 30_000_000
    """Rollouts for the largest size, as in the paper; other sizes get rollouts in proportion to n."""
    multiples: tuple[float, ...] = (1, 2, 3, 4, 5)
    detours: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
    """Mean detours in episode lengths, for speed against waste; the paper's is 1."""
    exact_up_to: int = 500
    """Sizes whose distance is also computed from the transition matrix, as a check."""


def run(settings: Settings, workspace: Workspace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compute marginals and distances exactly, and sample them as the paper did."""
    numbers: dict[str, Any] = {"sizes": {}}
    arrays: dict[str, Any] = {"multiples": np.linspace(0.5, 6, 111)}
    for part, n in enumerate(settings.sizes):
        lengths, paper = _sweep(n)
        distance = phase_distance(lengths, 6 * n, paper)
        rollouts = max(1000, settings.rollouts * n // settings.sizes[-1])
        counts, null = _sample(workspace, part, n, rollouts, paper)
        exact = marginal(lengths, 3 * n - 1, paper), marginal(lengths, 3 * n, paper)
        real = exact[0].sum(), exact[1].sum()
        pooled = (exact[0] + exact[1]) / (real[0] + real[1])
        sample = counts / counts.sum()
        entry: dict[str, Any] = {
            "epsilon": paper.epsilon,
            "TV at multiples": {f"{c:g}": float(distance[int(c * n)]) for c in settings.multiples},
            "mixing time": phase_mixing_time(lengths, 0.01, paper),
            "rollouts": rollouts,
            "real samples": int(counts.sum()),
            "null share": null / (2 * rollouts),
            "expected null share": float(1 - (real[0] + real[1]) / 2),
            "largest exact deviation": float(np.abs(pooled * n - 1).max()),
            "TV of exact pooled": float(0.5 * np.abs(pooled - 1 / n).sum()),
            "TV of sample": float(0.5 * np.abs(sample - 1 / n).sum()),
            "TV of a fair sample": _expected_noise(np.full(n, 1 / n), int(counts.sum())),
            "chi squared": _chi_squared(counts, pooled),
        }
        if n <= settings.exact_up_to:
            process, policy = gallery.state_sweep(n)
            model = perturb(process, paper)
            other = distances(model, extend_policy(model, policy), 6 * n, given_not_null=True)
            entry["two routes differ by"] = float(np.abs(other[1:] - distance[1:]).max())
        numbers["sizes"][str(n)] = entry
        arrays[f"exact {n}"], arrays[f"sample {n}"] = pooled * n, sample * n
        arrays[f"distance {n}"] = np.interp(arrays["multiples"] * n, np.arange(6 * n + 1), distance)
    arrays["limit"] = np.array([limit_distance(c) for c in arrays["multiples"]])
    numbers["limit"] = {f"{c:g}": limit_distance(c) for c in settings.multiples}
    _trade(settings, numbers, arrays)
    return numbers, arrays


def marginal(lengths: EpisodeLengths, time: int, perturbation: Perturbation) -> Array:
    """Return P(age at `time` is k) for k = 1, ..., T of a fixed length; the rest is null."""
    n = lengths.longest
    starts = start_sequence(lengths, time, perturbation)
    ages = np.arange(1, n + 1)
    return np.where(ages <= time, starts[np.maximum(time - ages, 0)], 0.0)


def limit_distance(multiple: float, detour: float = 1.0, points: int = 4000) -> float:
    """Return the total variation at `multiple` episode lengths in the limit n -> infinity.

    Args:
        multiple: the time, in episode lengths.
        detour: the mean detour, in episode lengths; 1 is the paper's.
        points: number of points of the midpoint rule.

    Example:
        >>> round(limit_distance(3.0), 4)
        0.0053
    """
    x = multiple - (np.arange(points) + 0.5) / points
    density = np.zeros(points)
    for j in range(1, int(multiple) + 2):
        y = x - (j - 1)
        late = y > 0
        log = (j - 1) * np.log(y[late]) - y[late] / detour - gammaln(j) - j * math.log(detour)
        density[late] += np.exp(log)
    return float(0.5 * np.abs(density / density.mean() - 1).mean())


def _sweep(n: int) -> tuple[EpisodeLengths, Perturbation]:
    return EpisodeLengths.from_gymnasium([n - 1]), Perturbation.for_average_episode_length(n)


def _sample(workspace: Workspace, part: int, n: int, rollouts: int, paper: Perturbation) -> tuple[Any, int]:
    """Return how often each age 1, ..., n occurs at 3n - 1 and 3n, and how often the null state."""
    counts = np.zeros(n + 1, dtype=np.int64)
    for chunk, first in enumerate(range(0, rollouts, _CHUNK)):
        size = min(_CHUNK, rollouts - first)

        def compute(chunk: int = chunk, size: int = size) -> dict[str, Any]:
            found = workspace.samples(
                f"sweep of {n}, part {chunk}",
                "steadyrl/StateSweep-v0",
                "uniform",
                size,
                [3 * n - 1, 3 * n],
                seed=workspace.derived_seed(1000 * part + chunk),
                perturbation=paper,
                make_arguments={"n": n},
                backend="auto",  # which jumps, whatever the other parts run on
                address=None,
            )
            return {"counts": np.bincount(found.ages.ravel(), minlength=n + 1)}

        counts += workspace.arrays(f"{n}-{chunk}", compute)["counts"]
    return counts[1:], int(counts[0])


def _expected_noise(probabilities: Array, samples: int) -> float:
    """Return about E[TV] between a distribution and its empirical one: a mean absolute deviation for each state."""
    return float(0.5 * np.sqrt(2 * probabilities * (1 - probabilities) / (math.pi * samples)).sum())


def _chi_squared(counts: Any, probabilities: Array) -> float:
    """Return chi squared over its degrees of freedom: near 1 if the sample is from the exact distribution.

    The two samples of a rollout are at neighbouring states, so a state's count has the variance of independent samples
    and correlates by 1/2 with its neighbours': chi squared / n has variance 3 / n.
    """
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum() / (len(counts) - 1))


def _trade(settings: Settings, numbers: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Compute the mixing time and the share of null steps for each mean detour: speed against waste."""
    n = min(max(settings.sizes), 500)
    lengths = EpisodeLengths.from_gymnasium([n - 1])
    arrays["detours"] = np.array(settings.detours)
    arrays["null share"] = arrays["detours"] / (1 + arrays["detours"])
    for tolerance in (0.05, 0.01):
        arrays[f"time to {tolerance:g}"] = np.array(
            [
                phase_mixing_time(lengths, tolerance, Perturbation(1 - 1 / (1 + a * n)), longest=400 * n) / n
                for a in settings.detours
            ]
        )
    best = int(np.argmin(arrays["time to 0.01"]))
    numbers["trade"] = {
        "n": n,
        "fastest detour": settings.detours[best],
        "fastest time": float(arrays["time to 0.01"][best]),
        "fastest null share": float(arrays["null share"][best]),
        "paper time": float(np.interp(1.0, arrays["detours"], arrays["time to 0.01"])),
    }


def draw(result: Result) -> Any:
    """Draw the marginal at 3n for each n, the distance over time, and speed against waste."""
    figure, axes = new_figure(1, 3, (12.0, 3.9))
    arrays, sizes = result.arrays, result.settings["sizes"]
    for n, colour in zip(sizes, _COLOURS, strict=False):
        x = (np.arange(n) + 0.5) / n
        sample = arrays[f"sample {n}"]
        axes[0].plot(x, sample, ".", color=colour, markersize=2.5 if n < 1000 else 1.0, label=f"n = {n:,}")
        axes[0].plot(x, arrays[f"exact {n}"], color=RAW, linewidth=0.9)
        axes[1].plot(arrays["multiples"], np.maximum(arrays[f"distance {n}"], 1e-7), color=colour, linewidth=1.2)
        axes[1].annotate(f"{n:,}", (6, max(arrays[f"distance {n}"][-1], 1e-7)), fontsize=7, color=colour)
    axes[0].axhline(1, color=QUIET, linewidth=0.8, linestyle="--")
    axes[0].set_ylim(0.95, 1.05)
    axes[0].set_title("at 3n - 1 and 3n: sampled, exact (red), uniform (dashed)", fontsize=9)
    axes[0].set_xlabel("state / n")
    axes[0].set_ylabel("probability x n")
    axes[0].legend(frameon=False, fontsize=7, markerscale=3)
    axes[1].plot(
        arrays["multiples"], np.maximum(arrays["limit"], 1e-7), color=RAW, linestyle=":", label="n to infinity"
    )
    axes[1].set_yscale("log")
    axes[1].set_title("distance to uniform", fontsize=9)
    axes[1].set_xlabel("time in episode lengths, t / n")
    axes[1].set_ylabel("total variation")
    axes[1].legend(frameon=False, fontsize=7)
    for tolerance, colour in ((0.05, _COLOURS[1]), (0.01, _COLOURS[3])):
        axes[2].plot(
            100 * arrays["null share"],
            arrays[f"time to {tolerance:g}"],
            "o-",
            markersize=3,
            color=colour,
            label=f"within {tolerance:g}",
        )
    axes[2].axvline(50, color=QUIET, linewidth=0.8, linestyle="--")
    axes[2].set_title("speed against waste (dashed: the paper's epsilon)", fontsize=9)
    axes[2].set_xlabel("null steps, % of all")
    axes[2].set_ylabel("steady after, t / n")
    axes[2].set_yscale("log")
    axes[2].legend(frameon=False, fontsize=7)
    return figure


def findings(result: Result) -> Sequence[Finding]:
    """Judge what the paper says of the state sweep."""
    sizes, limit = _by_size(result), result.numbers["limit"]
    at_three = {n: entry["TV at multiples"]["3"] for n, entry in sizes.items()}
    worst = max(at_three.values())
    largest = str(max(result.settings["sizes"]))
    entry = sizes[largest]
    null = [abs(found["null share"] - 0.5) for found in sizes.values()]
    return [
        Finding(
            "at t = 3n the marginal is uniform, for n = 20 to 2000",
            "TV to uniform "
            + ", ".join(f"{tv:.4f} (n = {n})" for n, tv in at_three.items())
            + f"; {limit['3']:.4f} as n goes to infinity",
            worst < 0.01,
            f"to half a percent, not exactly: single states are up to {_largest(sizes):.1%} off"
            if worst < 0.01
            else "",
        ),
        Finding(
            f"{entry['rollouts']:,} rollouts with n = {largest}, two samples each, show the uniform distribution",
            f"TV of the sample {entry['TV of sample']:.4f}; a fair sample of that size would have "
            f"{entry['TV of a fair sample']:.4f}; chi squared against the exact marginal {entry['chi squared']:.3f} "
            "per degree of freedom",
            abs(entry["chi squared"] - 1) < 5 * math.sqrt(3 / int(largest)),
            _seen(entry),
        ),
        Finding(
            "the null state takes half of all samples",
            f"{entry['null share']:.4f} at 3n (exactly {entry['expected null share']:.4f}), n = {largest}",
            max(null) < 0.02,
        ),
    ]


def _largest(sizes: dict[str, Any]) -> float:
    return float(max(entry["largest exact deviation"] for entry in sizes.values()))


def _seen(entry: Any) -> str:
    if entry["TV of sample"] < 1.3 * entry["TV of a fair sample"]:
        return "what is seen is sampling noise; the exact marginal needs none"
    return (
        f"uniform to {entry['largest exact deviation']:.1%} a state: at this size the departure can be seen, and it is "
        "that of the exact marginal"
    )


def rows(result: Result) -> Sequence[tuple[str, str]]:
    """Return distances for each n, and speed against waste."""
    found = []
    for n, entry in _by_size(result).items():
        found.append((f"TV, n = {n}", _distances(entry["TV at multiples"])))
    found.append(("TV, n to infinity", _distances(result.numbers["limit"])))
    entries = result.numbers["sizes"].values()
    checked = [entry["two routes differ by"] for entry in entries if "two routes differ by" in entry]
    if checked:
        found.append(("renewal against transition matrix", f"distances differ by {max(checked):.1e} at most"))
    trade = result.numbers["trade"]
    found.append(
        (
            "speed against waste",
            f"within 1% after {trade['paper time']:.2f} n with half of all steps null; fastest with a "
            f"mean detour of {trade['fastest detour']:g} n: {trade['fastest time']:.2f} n, "
            f"{trade['fastest null share']:.0%} null",
        )
    )
    return found


def _by_size(result: Result) -> dict[str, Any]:
    return {str(n): result.numbers["sizes"][str(n)] for n in result.settings["sizes"]}


def _distances(entry: Any) -> str:
    return ", ".join(f"{tv:.4f} at {c}n" for c, tv in entry.items())


EXPERIMENT = Experiment(
    name="figure-3b",
    title="Figure 3 (b): state sweep, perturbed",
    claim="With epsilon = 1 - 1/n even fully periodic episodes of any length n are uniformly mixed at t = 3n.",
    settings={
        "quick": Settings(sizes=(20, 100, 500), rollouts=400_000, detours=(0.3, 1.0, 3.0), exact_up_to=100),
        "laptop": Settings(),
        "paper": Settings(),
    },
    run=run,
    draw=draw,
    findings=findings,
    rows=rows,
    departures=lambda result: (
        "rollouts jump from episode to episode, since every episode of the sweep is the same: the distribution is that "
        "of stepping, thousands of times faster",
        "where the paper samples 30 million rollouts only for n = 2000, smaller n here get rollouts in proportion",
    ),
)
