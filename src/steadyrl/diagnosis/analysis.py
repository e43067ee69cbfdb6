"""One environment, one policy: is its data at steady state, when will it be, and what is the cheapest cure.

collect until the mixing time is known -> lengths -> distance, mixing time, strategies -> a recommendation
                                       -> sums at each age -> marginal means over time -> the slowest observed values
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.detours import Perturbation
from steadyrl.common.intervals import Interval
from steadyrl.common.storage import plain
from steadyrl.diagnosis.collection import gather
from steadyrl.diagnosis.mcmc import Convergence, convergence
from steadyrl.errors import LengthsError, MissingExtraError
from steadyrl.lengths.age_sums import AgeSums
from steadyrl.lengths.confidence import LengthsConfidence, bootstrap, perturbed_mixing_time
from steadyrl.lengths.distribution import EpisodeLengths, as_gymnasium_lengths
from steadyrl.lengths.moments import MarginalMoments, marginal_moments
from steadyrl.lengths.records import EpisodeRecords
from steadyrl.lengths.renewal import batch_distance
from steadyrl.lengths.strategies import LONGEST_EXACT, Recommendation, Strategy, recommend

Array = NDArray[np.float64]

PRECISION = 0.1
"""The relative error of the mixing time at which collecting stops."""
UPDATES = 10
"""First updates over which the batches' distance is averaged."""
_POINTS = 320  # times at which marginal means are shown
_SHOWN = 6  # observed values that are shown
_WIDE = 400  # observed values looked at


@dataclass(frozen=True)
class SlowDimension:
    """An observed value and how long its mean takes to settle."""

    index: int
    settles: float
    """Steps after which its mean stays within the tolerance times its standard deviation; inf if it does not within
    the times looked at."""
    deviation: float
    """The largest distance of its mean from the steady one after one average episode length, in standard deviations."""


@dataclass(frozen=True)
class Marginals:
    """Marginal means of the slowest observed values, raw and under the paper's perturbation."""

    dimensions: tuple[SlowDimension, ...]
    raw: MarginalMoments
    """Of the dimensions listed, in their order."""
    perturbed: MarginalMoments
    sums: AgeSums
    """Of the dimensions listed, over all episodes."""


@dataclass(frozen=True)
class Diagnosis:
    """What is known of one environment under one policy."""

    environment: str
    policy: str
    episodes: int
    tolerance: float
    num_envs: int
    n_steps: int
    seed: int | None
    lengths: EpisodeLengths
    confidence: LengthsConfidence
    epsilon: float | None
    """The paper's, 1 - 1/E[T]."""
    perturbed: Interval
    """The mixing time under the paper's perturbation, in steps; its ends are not a number where they take too long."""
    batches: Array
    """The distance of the first updates' batches, if nothing is done."""
    recommendation: Recommendation
    truncated: float | None
    """Share of episodes that a time limit ended; None if the source does not say."""
    marginals: Marginals | None = None
    convergence: Convergence | None = None
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    lengths_code: str = "lengths = diagnosis.lengths  # of this Diagnosis"
    """The line that gets the lengths for those cures that need them."""

    @property
    def code(self) -> str:
        """What applies the recommendation, in a script that has `envs` (and `policy`)."""
        return self.complete(self.recommendation.chosen.code)

    def complete(self, code: str) -> str:
        """Return a strategy's code, after a line that defines the lengths if it uses them."""
        return f"{self.lengths_code}\n{code}" if "(lengths" in code else code

    @property
    def mixing_time(self) -> Interval:
        """The raw process's, in steps."""
        return self.confidence.mixing_time

    @property
    def perturbed_mixing_time(self) -> float:
        """Under the paper's perturbation, in steps."""
        return self.perturbed.value

    @property
    def phase_locked(self) -> bool:
        """Whether the batches of the first updates are, on average, further off than the tolerance allows."""
        return bool(self.batches.mean() >= self.tolerance)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values under stable keys; what is infinite (never) becomes null."""
        mean, time = self.confidence.average_episode_length, self.mixing_time
        perturbed = self.perturbed_mixing_time
        best = self.recommendation.chosen
        result: dict[str, Any] = plain(
            {
                "environment": self.environment,
                "policy": self.policy,
                "episodes": self.episodes,
                "average_episode_length": {"value": mean.value, "low": mean.low, "high": mean.high},
                "coefficient_of_variation": self.lengths.cv,
                "period": self.lengths.period,
                "mixing_time": {
                    "steps": time.value,
                    "episodes": time.value / mean.value,
                    "low": time.low,
                    "high": time.high,
                },
                "perturbed_mixing_time": {
                    "steps": perturbed,
                    "episodes": perturbed / mean.value,
                    "low": self.perturbed.low,
                    "high": self.perturbed.high,
                    "epsilon": self.epsilon,
                },
                "recommendation": {
                    "strategy": best.name,
                    "parameters": dict(best.parameters),
                    "code": self.code,
                    "distance": self.recommendation.distance,
                    "one_off_cost": best.one_off_cost,
                    "waste": best.waste,
                },
                "strategies": [
                    {**_strategy_json(way, mean.value), "code": self.complete(way.code)}
                    for way in self.recommendation.strategies
                ],
            }
        )
        return result


def diagnose(
    environment: Any,
    policy: Any = "uniform",
    *,
    episodes: int | None = None,
    tolerance: float = 0.01,
    num_envs: int = 64,
    n_steps: int = 16,
    seed: int = 0,
    max_episodes: int = 20_000,
    backend: str = "auto",
    workers: int | None = None,
    make_arguments: Mapping[str, Any] | None = None,
    progress: bool | TextIO = False,
) -> Diagnosis:
    """Collect episodes of an environment and say whether its data is at steady state, when it will be, and what helps.

    Args:
        environment: a Gymnasium id, a spec, a LearningProcess, or a function that makes an environment.
        policy: "uniform", "gaussian", a policy file, an array [S, A], or an object with act(observations, rng).
        episodes: how many; None collects until the mixing time is known within 10%.
        tolerance: the distance (total variation) at which data counts as steady.
        num_envs: copies that run side by side.
        n_steps: steps of each copy between two updates.
        seed: of everything random.
        max_episodes: where collecting stops in any case.
        backend: as for `collect_episodes`.
        workers: as for `collect_episodes`.
        make_arguments: for gymnasium.make.
        progress: True to show progress on standard error, or a stream.

    Example:
        >>> found = diagnose("steadyrl/StateSweep-v0", episodes=20, backend="serial")
        >>> found.mixing_time.value, found.recommendation.strategy
        (inf, 'stagger')
    """
    _check(tolerance, episodes, num_envs, n_steps, max_episodes)
    rng = np.random.default_rng([seed, 4])

    def enough(lengths: NDArray[np.int64]) -> bool:
        if episodes is not None:
            return False
        seen = EpisodeLengths.from_gymnasium(lengths)
        found = bootstrap(seen, len(lengths), rng=np.random.default_rng([seed, 4]), tolerance=tolerance, resamples=59)
        return found.mixing_time.relative_error <= PRECISION

    gathered = gather(
        environment,
        policy,
        enough,
        at_most=max_episodes if episodes is None else episodes,
        seed=seed,
        backend=backend,
        workers=workers,
        make_arguments=make_arguments,
        progress=progress,
    )
    found = analyse(gathered, tolerance=tolerance, num_envs=num_envs, n_steps=n_steps, seed=seed, rng=rng)
    if not (isinstance(environment, str) and isinstance(policy, str)):
        return found
    more = f", make_arguments={dict(make_arguments)!r}" if make_arguments else ""
    call = f"{environment!r}, {policy!r}, episodes={found.episodes}, seed={seed}{more}"
    line = f"lengths = steadyrl.diagnose({call}).lengths"
    return replace(found, lengths_code=line)


def diagnose_lengths(
    gymnasium_lengths: ArrayLike,
    *,
    tolerance: float = 0.01,
    num_envs: int = 64,
    n_steps: int = 16,
    name: str = "lengths",
) -> Diagnosis:
    """Diagnose from a plain list of Gymnasium's episode lengths.

    Example:
        >>> diagnose_lengths([19, 199] * 200).mixing_time.value  # CV 0.82, and yet never
        inf
    """
    _check(tolerance, None, num_envs, n_steps, 1)
    lengths = as_gymnasium_lengths(gymnasium_lengths)
    gathered = EpisodeRecords(name, "unknown", lengths)
    return analyse(gathered, tolerance=tolerance, num_envs=num_envs, n_steps=n_steps, rng=np.random.default_rng(0))


def analyse(
    gathered: EpisodeRecords,
    *,
    rng: np.random.Generator,
    tolerance: float = 0.01,
    num_envs: int = 64,
    n_steps: int = 16,
    seed: int | None = None,
) -> Diagnosis:
    """Diagnose what was gathered."""
    lengths = EpisodeLengths.from_gymnasium(gathered.lengths)
    count = len(gathered.lengths)
    steps = int(min(8 * lengths.mean + 1, 20_000))
    confidence = bootstrap(lengths, count, rng=rng, tolerance=tolerance, steps=steps, resamples=199)
    found = recommend(lengths, tolerance, num_envs, n_steps, time_limit=gathered.time_limit)
    paper = Perturbation.for_average_episode_length(lengths.mean) if lengths.mean > 1 else None
    marginals = _marginals(gathered, lengths, confidence, paper, tolerance)
    opinion, missing = _opinion(gathered)
    truncated = gathered.truncated_share
    return Diagnosis(
        environment=gathered.environment,
        policy=gathered.policy,
        episodes=count,
        tolerance=tolerance,
        num_envs=num_envs,
        n_steps=n_steps,
        seed=seed,
        lengths=lengths,
        confidence=confidence,
        epsilon=None if paper is None else paper.epsilon,
        perturbed=_perturbed(lengths, count, paper, found, tolerance, rng),
        batches=batch_distance(lengths, n_steps, UPDATES),
        recommendation=found,
        truncated=truncated,
        marginals=marginals,
        convergence=opinion,
        warnings=(*_warnings(gathered, confidence, truncated), *missing),
        provenance=gathered.provenance,
    )


def _perturbed(
    lengths: EpisodeLengths,
    episodes: int,
    paper: Perturbation | None,
    found: Recommendation,
    tolerance: float,
    rng: np.random.Generator,
) -> Interval:
    if paper is None:  # every episode is its reset alone: steady at once
        return Interval(0.0, 0.0, 0.0)
    if lengths.longest > LONGEST_EXACT:
        return Interval(found["recursive-epsilon"].steady_after, math.nan, math.nan)
    return perturbed_mixing_time(lengths, episodes, paper, rng=rng, tolerance=tolerance)


def _marginals(
    gathered: EpisodeRecords,
    lengths: EpisodeLengths,
    confidence: LengthsConfidence,
    paper: Perturbation | None,
    tolerance: float,
) -> Marginals | None:
    """Marginal means of the observed values that settle last."""
    if not gathered.groups or paper is None or gathered.groups[0].total.shape[1] == 0:
        return None
    time = confidence.mixing_time.value
    wait = time / lengths.mean if math.isfinite(time) else 0.0  # what never settles need not be shown for long
    span = int(min(max(8.0, min(1.5 * wait, 30.0)) * lengths.mean, 60_000)) + 1
    when = np.unique(np.linspace(1, span, min(span, 3 * _POINTS)).astype(np.int64))
    width = min(gathered.groups[0].total.shape[1], _WIDE)
    everything = AgeSums.merge(gathered.groups).select(np.arange(width))
    whole = marginal_moments(everything, when)
    slow = slowest(whole, lengths.mean, tolerance)[:_SHOWN]
    if not slow:
        return None
    index = np.array([dimension.index for dimension in slow])
    shown = np.unique(np.linspace(1, span, min(_POINTS, span)).astype(np.int64))
    groups = AgeSums.coarsen([group.select(index) for group in gathered.groups])
    return Marginals(
        tuple(slow),
        marginal_moments(groups, shown),
        marginal_moments(groups, shown, paper),
        everything.select(index),
    )


def slowest(moments: MarginalMoments, average_episode_length: float, tolerance: float) -> list[SlowDimension]:
    """Return the observed values, the one whose mean settles last first; those that never vary are left out."""
    deviation = moments.stationary_deviation
    varying = np.flatnonzero(deviation > 1e-9 * (1 + np.abs(moments.stationary_mean)))
    apart = np.abs(moments.mean - moments.stationary_mean)[:, varying] / deviation[varying]
    later = moments.times >= average_episode_length
    result = []
    for j, index in enumerate(varying):
        off = np.flatnonzero(apart[:, j] >= tolerance)
        last = -1 if not len(off) else int(off[-1])
        settled = 1.0 if last < 0 else math.inf if last == len(apart) - 1 else float(moments.times[last + 1])
        result.append(SlowDimension(int(index), settled, float(apart[later, j].max()) if later.any() else 0.0))
    return sorted(result, key=lambda found: (-found.settles, -found.deviation))


def _opinion(gathered: EpisodeRecords) -> tuple[Convergence | None, tuple[str, ...]]:
    if gathered.streams is None:
        return None, ()
    try:
        return convergence(gathered.streams[:, :, :32]), ()
    except MissingExtraError as error:
        return None, (str(error),)


def _warnings(gathered: EpisodeRecords, confidence: LengthsConfidence, truncated: float | None) -> tuple[str, ...]:
    """Where the analysis does not hold, or not well."""
    result = []
    error, count = confidence.mixing_time.relative_error, len(gathered.lengths)
    if count < 100:
        result.append(f"{count} episodes are few: intervals are rough below 100; collect more")
    elif error > PRECISION and math.isfinite(error):
        more = int(math.ceil(count * (error / PRECISION) ** 2 / 100) * 100)
        result.append(
            f"too few episodes for this precision: the mixing time is known to {error:.0%}; about {more:,} episodes "
            "would bring it to 10%"
        )
    elif error > PRECISION:
        result.append(
            "the mixing time rests on a few odd episodes, since lengths hardly vary: it may be many times longer, or "
            "never come; treat it as never, or collect more"
        )
    if truncated is not None and truncated > 0.5:
        result.append(
            f"a time limit cuts {truncated:.0%} of all episodes: the process then includes the step counter, and "
            "results hold for this limit only"
        )
    if gathered.skipped:
        result.append(
            f"{gathered.skipped} episodes failed and were left out, which biases all of this (the first: "
            f"{gathered.first_failure})"
        )
    return tuple(result)


def _check(tolerance: float, episodes: int | None, num_envs: int, n_steps: int, max_episodes: int) -> None:
    if not 0 < tolerance < 1:
        raise LengthsError(f"tolerance is {tolerance!r}; it must be a distance between 0 and 1, as in 0.01")
    counts = (("episodes", episodes), ("num_envs", num_envs), ("n_steps", n_steps), ("max_episodes", max_episodes))
    for name, value in counts:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise LengthsError(f"{name} is {value!r}; it must be a whole number, 1 or more")


def _strategy_json(way: Strategy, mean: float) -> dict[str, Any]:
    return {
        "strategy": way.name,
        "title": way.title,
        "parameters": dict(way.parameters),
        "steady_after": {"steps": way.steady_after, "episodes": way.steady_after / mean},
        "distance": way.reached,
        "one_off_cost": way.one_off_cost,
        "waste": way.waste,
        "code": way.code,
        "note": way.note,
    }
