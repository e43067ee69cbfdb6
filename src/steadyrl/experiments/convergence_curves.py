"""Marginal means over time of one environment, three ways: the renewal estimator, brute force, the phase distance.

The renewal estimator has the means at every time, raw and perturbed, from single episodes; brute force rolls out as the
paper did, on a coarser grid of times, and checks it; the phase distance bounds every distribution of states from
episode lengths alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from steadyrl.common.detours import Perturbation
from steadyrl.common.figures import PERTURBED, QUIET, RAW
from steadyrl.diagnosis.observed import slowest
from steadyrl.experiments.workspace import Workspace
from steadyrl.lengths.age_sums import AgeSums
from steadyrl.lengths.confidence import bootstrap, perturbed_mixing_time
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.moments import marginal_moments
from steadyrl.lengths.renewal import phase_distance

Array = NDArray[np.float64]

SETTLED = 0.05
"""A mean has settled when it stays within this many of its steady-state standard deviations: what an eye can see."""
SPAN = 6.0
"""Time shown for the perturbed process, in average episode lengths."""
_HALVES, _FEW_HALVES = 40, 8  # half-samples of groups, for the interval of settling times; where there are few groups
_LEVEL = 0.001  # chance that the largest of all differences to brute force is called one although there is none


@dataclass(frozen=True)
class CurveSettings:
    """Episodes, rollouts and times for the curves of one environment."""

    environment: str
    policy: str = "gaussian"
    episodes: int = 1000
    chunk: int = 1000
    """Episodes held in memory at once."""
    groups: int = 24
    span: float = 6.0
    """Time shown for the raw process, in average episode lengths."""
    rollouts: int = 0
    """Rollouts of the brute-force check; 0 leaves it out."""
    checks: tuple[float, ...] = ()
    """Times of the check for the raw process, in average episode lengths."""
    perturbed_checks: tuple[float, ...] = ()
    """Times of the check for the perturbed process."""
    width: int = 45
    """Number of observed values, counted from the first, that are analysed."""
    points: int = 150


def measure(plan: CurveSettings, workspace: Workspace, part: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the numbers and arrays of one environment."""
    policy = workspace.policy(plan.environment, plan.policy)
    sums, gymnasium_lengths = workspace.age_sums(
        plan.environment,
        plan.environment,
        policy,
        plan.episodes,
        seed=workspace.derived_seed(1000 * part),
        chunk=plan.chunk,
        groups=plan.groups,
        width=plan.width,
    )
    numbers, arrays = analyse_lengths(gymnasium_lengths, plan, workspace.seed + part)
    numbers["observed values"] = int(sums[0].total.shape[1])
    lengths = EpisodeLengths.from_gymnasium(gymnasium_lengths)
    paper = Perturbation.for_average_episode_length(lengths.mean)
    for kind, perturbation, span in (("raw", None, plan.span), ("perturbed", paper, SPAN)):
        moments = marginal_moments(sums, _shown(lengths, span, plan.points), perturbation)
        numbers[kind] |= _settling(sums, lengths, perturbation, span, workspace.seed + part)
        numbers[kind]["apart at"] = _apart_at(sums, lengths, perturbation, span)
        arrays[f"{kind} mean"] = moments.mean.astype(np.float32)
        arrays[f"{kind} error"] = moments.mean_error.astype(np.float32)
        arrays[f"{kind} stationary"] = moments.stationary_mean.astype(np.float32)
        arrays[f"{kind} deviation"] = moments.stationary_deviation.astype(np.float32)
        checks = plan.checks if kind == "raw" else plan.perturbed_checks
        if plan.rollouts and checks:
            found = _check(plan, workspace, policy, sums, lengths, perturbation, checks, 1000 * part + 500)
            arrays |= {f"{kind} {name}": value for name, value in found.pop("arrays").items()}
            numbers[kind]["brute force"] = found
    return numbers, arrays


def analyse_lengths(gymnasium_lengths: Any, plan: CurveSettings, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what episode lengths alone say: numbers with intervals, and the phase distance, raw and perturbed."""
    lengths = EpisodeLengths.from_gymnasium(gymnasium_lengths)
    paper = Perturbation.for_average_episode_length(lengths.mean)
    count = len(gymnasium_lengths)
    sure = bootstrap(lengths, count, rng=np.random.default_rng([seed, 0]), resamples=100, steps=1)
    numbers: dict[str, Any] = {
        "policy": plan.policy,
        "episodes": count,
        "E[T]": vars(sure.average_episode_length),
        "CV": vars(sure.coefficient_of_variation),
        "period": lengths.period,
        "mixing time": vars(sure.mixing_time),
        "perturbed mixing time": vars(
            perturbed_mixing_time(lengths, count, paper, rng=np.random.default_rng([seed, 1]))
        ),
        "epsilon": paper.epsilon,
    }
    arrays: dict[str, Any] = {}
    for kind, perturbation, span in (("raw", None, plan.span), ("perturbed", paper, SPAN)):
        times = _shown(lengths, span, plan.points)
        distance = phase_distance(lengths, int(times[-1]), perturbation)
        numbers[kind] = {
            "distance at": {f"{c:g}": float(distance[int(c * lengths.mean)]) for c in (1, 2, 3, 24) if c <= span}
        }
        arrays[f"{kind} time"] = (times / lengths.mean).astype(np.float32)
        arrays[f"{kind} distance"] = distance[times].astype(np.float32)
    return numbers, arrays


def _shown(lengths: EpisodeLengths, span: float, points: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(1, int(span * lengths.mean) + 1, points).astype(np.int64))


def _settling(
    sums: list[AgeSums], lengths: EpisodeLengths, perturbation: Perturbation | None, span: float, seed: int
) -> dict[str, Any]:
    """Return when the last mean settles, in average episode lengths, with an interval from half-samples of the groups.

    Half-samples scatter about the whole as much as that does about the truth; their median's offset is bias.
    """
    times = _grid(lengths, span)
    whole = _last_to_settle(sums, times, perturbation, lengths.mean)
    rng = np.random.default_rng(seed)
    halves = []
    count = _HALVES if len(sums) >= 16 else _FEW_HALVES if len(sums) >= 8 else 0
    for _ in range(count if math.isfinite(whole) else 0):
        half = rng.permutation(len(sums))[: len(sums) // 2]
        halves.append(_last_to_settle([sums[i] for i in half], times, perturbation, lengths.mean))
    # Some may never settle: no interpolation, which has no answer between two infinities.
    low, high = np.quantile(halves, [0.05, 0.95], method="inverted_cdf") if halves else (whole, whole)
    return {"settles": {"value": whole, "low": float(min(low, whole)), "high": float(max(high, whole))}}


def _grid(lengths: EpisodeLengths, span: float) -> NDArray[np.int64]:
    steps = int(span * lengths.mean) + 1
    return np.unique(np.linspace(1, steps, min(steps, 1200)).astype(np.int64))


def _last_to_settle(sums: list[AgeSums], times: Any, perturbation: Perturbation | None, mean: float) -> float:
    moments = marginal_moments(AgeSums.merge(sums), times, perturbation)
    slow = slowest(moments, mean, SETTLED)
    return max((found.settles for found in slow), default=0.0) / mean


def _apart_at(
    sums: list[AgeSums], lengths: EpisodeLengths, perturbation: Perturbation | None, span: float
) -> dict[str, float]:
    """Return the largest deviation of any mean from its steady value after some times, in standard deviations."""
    times = _grid(lengths, span)
    moments = marginal_moments(AgeSums.merge(sums), times, perturbation)
    deviation = moments.stationary_deviation
    moving = deviation > 1e-9 * (1 + np.abs(moments.stationary_mean))
    apart = (np.abs(moments.mean - moments.stationary_mean)[:, moving] / deviation[moving]).max(axis=1)
    after = np.maximum.accumulate(apart[::-1])[::-1]
    result = {}
    for c in (1, 2, 3, 12, 24):
        later = times >= c * lengths.mean
        if c <= span and later.any():
            result[f"{c:g}"] = float(after[np.argmax(later)])
    return result


def _check(
    plan: CurveSettings,
    workspace: Workspace,
    policy: Any,
    sums: list[AgeSums],
    lengths: EpisodeLengths,
    perturbation: Perturbation | None,
    checks: tuple[float, ...],
    number: int,
) -> dict[str, Any]:
    """Compare the means of rollouts with those of the renewal estimator."""
    times = np.unique(np.maximum(np.rint(np.array(checks) * lengths.mean), 1).astype(np.int64))
    label = f"{plan.environment} {'raw' if perturbation is None else 'perturbed'} rollouts"

    def compute() -> dict[str, Any]:
        found = workspace.samples(
            label,
            plan.environment,
            policy,
            plan.rollouts,
            times,
            seed=workspace.derived_seed(number + (perturbation is not None)),
            perturbation=perturbation,
            block_size=max(1, -(-plan.rollouts // 8)),
        )
        real = ~found.null
        count = real.sum(axis=0)
        values = np.where(real[:, :, None], found.observations[:, :, : plan.width], 0.0)
        mean = values.sum(axis=0) / np.maximum(count, 1)[:, None]
        squares = (values**2).sum(axis=0) / np.maximum(count, 1)[:, None] - mean**2
        return {
            "count": count,
            "mean": mean,
            "error": np.sqrt(np.maximum(squares, 0) / np.maximum(count - 1, 1)[:, None]),
        }

    found = workspace.arrays(label, compute)
    other = marginal_moments(sums, times, perturbation)
    usable = (found["count"] >= 30)[:, None] & (found["error"] > 1e-9 * (1 + np.abs(found["mean"])))
    spread = np.hypot(found["error"], other.mean_error)
    z = ((found["mean"] - other.mean) / np.where(usable, spread, 1.0))[usable]
    return {
        "rollouts": plan.rollouts,
        "values compared": int(usable.sum()),
        "inside 90%": float((np.abs(z) < ndtri(0.95)).mean()) if len(z) else math.nan,
        "largest |z|": float(np.abs(z).max()) if len(z) else math.nan,
        "bound for |z|": float(ndtri(1 - _LEVEL / 2 / max(len(z), 1))),
        "arrays": {
            "check time": (times / lengths.mean).astype(np.float32),
            "check mean": found["mean"].astype(np.float32),
            "check error": found["error"].astype(np.float32),
        },
    }


def draw_means(axes: Any, arrays: Any, kind: str) -> None:
    """Draw every marginal mean, standardised, with its band, and brute force as dots."""
    time = arrays[f"{kind} time"]
    centre, scale = arrays[f"{kind} stationary"], arrays[f"{kind} deviation"]
    moving = scale > 1e-6 * (1 + np.abs(centre))
    mean = (arrays[f"{kind} mean"] - centre)[:, moving] / scale[moving]
    error = 1.645 * arrays[f"{kind} error"][:, moving] / scale[moving]
    colours = palette(mean.shape[1])
    checked = f"{kind} check time" in arrays
    dots = (arrays[f"{kind} check mean"] - centre)[:, moving] / scale[moving] if checked else None
    for j, colour in enumerate(colours):
        axes.fill_between(
            time, mean[:, j] - error[:, j], mean[:, j] + error[:, j], color=colour, alpha=0.15, lw=0, rasterized=True
        )
        axes.plot(time, mean[:, j], color=colour, linewidth=0.7, rasterized=mean.shape[1] > 12)
        if dots is not None:
            axes.plot(arrays[f"{kind} check time"], dots[:, j], ".", color=colour, markersize=2.5)
    axes.axhspan(-SETTLED, SETTLED, color=QUIET, alpha=0.12, linewidth=0)
    high = float(np.nanquantile(np.abs(mean), 0.998)) if mean.size else 1.0
    axes.set_ylim(-1.15 * high - 0.02, 1.15 * high + 0.02)
    axes.set_xlim(0, float(time[-1]))


def draw_distance(axes: Any, arrays: Any, kind: str) -> None:
    """Draw the phase distance under the means."""
    distance = np.maximum(arrays[f"{kind} distance"], 1e-5)
    axes.plot(arrays[f"{kind} time"], distance, color=RAW if kind == "raw" else PERTURBED, linewidth=1.2)
    axes.axhline(0.01, color=QUIET, linewidth=0.7, linestyle="--")
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 1.5)
    axes.set_xlim(0, float(arrays[f"{kind} time"][-1]))


def palette(count: int) -> list[Any]:
    """Return so many colours, dark to light."""
    import matplotlib

    shades = matplotlib.colormaps["viridis"]
    return [shades(0.92 * j / max(count - 1, 1)) for j in range(count)]
