"""Diagnoses an environment and a policy, or a log of lengths: is its data at steady state, when will it be, what helps?

collect until the recommendation cannot change -> lengths -> distance, mixing time, strategies -> a recommendation
                                               -> sums by age -> means over time -> the slowest observed values
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import check_seed, check_tolerance, shown, whole_number
from steadyrl.common.detours import Perturbation
from steadyrl.common.intervals import Interval
from steadyrl.diagnosis.collection import gather
from steadyrl.diagnosis.mcmc import Convergence, convergence
from steadyrl.diagnosis.observed import slowest_means
from steadyrl.diagnosis.result import FEWEST, Diagnosis
from steadyrl.diagnosis.seen_ages import SeenAges, seen_ages
from steadyrl.diagnosis.stopping import PRECISION, band_steps, enough_episodes, is_sure
from steadyrl.diagnosis.wording import (
    NOT_FINITE,
    NOT_TOLD,
    SEVERAL,
    drifting_list,
    few_episodes,
    imprecise,
    odd_episodes,
    skipped_episodes,
    time_limited,
)
from steadyrl.errors import LengthsError, MissingExtraError
from steadyrl.lengths.confidence import LengthsConfidence, bootstrap, perturbed_mixing_time
from steadyrl.lengths.distribution import EpisodeLengths, as_gymnasium_lengths
from steadyrl.lengths.drift import find_drift
from steadyrl.lengths.records import EpisodeRecords
from steadyrl.lengths.renewal import batch_distance
from steadyrl.lengths.strategies import LONGEST_EXACT, Recommendation, recommend

FIRST_BATCHES = 10
"""Number of first updates whose batches are compared with the long run."""


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

    The answer depends on the policy: a random one ends episodes at random times, and a trained one often runs all of
    them into the time limit, so that environments stay in lockstep. Give the policy that you train.

    Args:
        environment: A Gymnasium id, a spec, a LearningProcess, or a function that makes an environment.
        policy: "uniform" or "gaussian" (both random), a policy file, a Stable-Baselines3 model or its .zip file, a
            torch module, a function of a batch of observations, an array [S, A], or an object with
            act(observations, rng).
        episodes: Number of episodes; None collects until more of them could not change the recommendation, or the
            mixing time is known within 10%.
        tolerance: Distance (total variation) below which data counts as steady.
        num_envs: Number of environments that run side by side in training.
        n_steps: Steps of each environment per update.
        seed: Seed of all random numbers.
        max_episodes: Number of episodes after which collecting stops in any case.
        backend: As for `collect_episodes`.
        workers: As for `collect_episodes`.
        make_arguments: Keyword arguments for gymnasium.make.
        progress: True to show progress on standard error, or a stream to show it on.

    Example:
        >>> found = diagnose("steadyrl/StateSweep-v0", episodes=50, backend="serial")
        >>> found.mixing_time.value, found.recommendation.strategy
        (inf, 'anytime')
    """
    tolerance, num_envs, n_steps = _check(tolerance, num_envs, n_steps)
    most = whole_number("max_episodes", max_episodes, LengthsError)
    most = most if episodes is None else whole_number("episodes", episodes, LengthsError)
    seed = check_seed(seed)
    rng = np.random.default_rng([seed, 4])

    def enough(lengths: NDArray[np.int64]) -> bool:
        return episodes is None and enough_episodes(
            EpisodeLengths.from_gymnasium(lengths),
            len(lengths),
            rng=np.random.default_rng([seed, 4]),
            tolerance=tolerance,
            num_envs=num_envs,
            n_steps=n_steps,
        )

    gathered = gather(
        environment,
        policy,
        enough,
        at_most=most,
        seed=seed,
        backend=backend,
        workers=workers,
        make_arguments=make_arguments,
        progress=progress,
    )
    found = analyse(
        gathered,
        tolerance=tolerance,
        num_envs=num_envs,
        n_steps=n_steps,
        seed=seed,
        rng=rng,
        ended_when_sure=episodes is None,
    )
    if not (isinstance(environment, str) and isinstance(policy, str)):
        return found
    more = f", make_arguments={dict(make_arguments)!r}" if make_arguments else ""
    call = f"{environment!r}, {policy!r}, episodes={found.episodes}, seed={seed}{more}"
    return replace(found, lengths_code=f"lengths = steadyrl.diagnose({call}).lengths")


def diagnose_lengths(
    gymnasium_lengths: ArrayLike,
    *,
    tolerance: float = 0.01,
    num_envs: int = 64,
    n_steps: int = 16,
    name: str = "lengths",
) -> Diagnosis:
    """Diagnose a plain list of Gymnasium's episode lengths.

    Args:
        gymnasium_lengths: Number of actions in each episode, all under one policy; in the order in which they ended if
            that is known, so that it can be told if they are not.
        tolerance: Distance (total variation) below which data counts as steady.
        num_envs: Number of environments that run side by side in training.
        n_steps: Steps of each environment per update.
        name: Name of the environment, for the report.

    Example:
        >>> diagnose_lengths([19, 199] * 200).mixing_time.value  # CV 0.82, and yet never
        inf
    """
    if not isinstance(name, str):
        raise LengthsError(f"name is {shown(name)}; it must be text, the name of the environment in the report")
    counts = as_gymnasium_lengths(gymnasium_lengths)
    drift = find_drift(counts)
    return analyse(
        EpisodeRecords(name, SEVERAL if drift.found else "unknown", counts),
        tolerance=tolerance,
        num_envs=num_envs,
        n_steps=n_steps,
        rng=np.random.default_rng(0),
        selection=drifting_list(drift) if drift.found else "",
    )


def analyse(
    gathered: EpisodeRecords,
    *,
    rng: np.random.Generator,
    tolerance: float = 0.01,
    num_envs: int = 64,
    n_steps: int = 16,
    seed: int | None = None,
    selection: str = "",
    ended_when_sure: bool = False,
) -> Diagnosis:
    """Diagnose episodes that were collected or read.

    Args:
        gathered: The episodes.
        rng: Random generator for the resamples that give intervals.
        tolerance: Distance (total variation) below which data counts as steady.
        num_envs: Number of environments that run side by side in training.
        n_steps: Steps of each environment per update.
        seed: Seed of the collection, if there was one.
        selection: Sentence on which episodes of a log these are.
        ended_when_sure: Whether collecting ended by itself, once more episodes could not change the recommendation;
            then there is no warning that they leave the mixing time imprecise.
    """
    tolerance, num_envs, n_steps = _check(tolerance, num_envs, n_steps)
    lengths = EpisodeLengths.from_gymnasium(gathered.lengths)
    count = len(gathered.lengths)
    confidence = bootstrap(lengths, count, rng=rng, tolerance=tolerance, steps=band_steps(lengths), resamples=199)
    found = recommend(lengths, tolerance, num_envs, n_steps, time_limit=gathered.time_limit)
    paper = Perturbation.for_average_episode_length(lengths.mean) if lengths.mean > 1 else None
    marginals = None
    if gathered.groups and paper is not None and gathered.groups[0].dimensions:
        time = confidence.mixing_time.value
        marginals = slowest_means(gathered.groups, lengths.mean, time, paper, tolerance)
    opinion, missing = _opinion(gathered)
    seen, unseen = _seen_ages(gathered, 0 if seed is None else seed)
    sure = is_sure(found, confidence, n_steps)
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
        batches=batch_distance(lengths, n_steps, FIRST_BATCHES),
        recommendation=found,
        truncated=gathered.truncated_share,
        marginals=marginals,
        convergence=opinion,
        seen_ages=seen,
        unseen_ages=unseen,
        warnings=(*_warnings(gathered, confidence, sure, ended_when_sure and sure), *missing),
        selection=selection,
        sure=sure,
        sb3=gathered.sb3,
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


def _opinion(gathered: EpisodeRecords) -> tuple[Convergence | None, tuple[str, ...]]:
    if gathered.streams is None:
        return None, ()
    try:
        return convergence(gathered.streams[:, :, :32]), ()
    except MissingExtraError as error:
        return None, (str(error),)


def _seen_ages(gathered: EpisodeRecords, seed: int) -> tuple[SeenAges | None, str]:
    """Return how much of the age shows in observations, or None and why it cannot be told."""
    if gathered.aged is None:
        return None, gathered.not_aged
    if not np.isfinite(gathered.aged[0]).all():
        return None, NOT_FINITE
    try:
        found = seen_ages(*gathered.aged, seed=seed)
    except MissingExtraError as error:
        return None, f"not known: {error}"
    return found, "" if found is not None else NOT_TOLD


def _warnings(
    gathered: EpisodeRecords, confidence: LengthsConfidence, sure: bool, precise_enough: bool
) -> tuple[str, ...]:
    """Return sentences on where the analysis does not hold, or not well."""
    result = []
    error, count, truncated = confidence.mixing_time.relative_error, len(gathered), gathered.truncated_share
    if count < 100:
        result += [few_episodes(count)] if count >= FEWEST else []
    elif error <= PRECISION or precise_enough:
        pass
    elif math.isfinite(error):
        wanted = int(math.ceil(count * (error / PRECISION) ** 2 / 100) * 100)
        result.append(imprecise(error, wanted, sure))
    else:
        result.append(odd_episodes(sure))
    if truncated is not None and truncated > 0.5:
        result.append(time_limited(truncated))
    if gathered.skipped:
        result.append(skipped_episodes(gathered.skipped, gathered.first_failure))
    return tuple(result)


def _check(tolerance: float, num_envs: int, n_steps: int) -> tuple[float, int, int]:
    """Return the numbers as they are computed and written with: numpy's small integers overflow in products, and
    messages cannot format a Fraction.
    """
    tolerance = check_tolerance(tolerance)
    return tolerance, whole_number("num_envs", num_envs, LengthsError), whole_number("n_steps", n_steps, LengthsError)
