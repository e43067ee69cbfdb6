"""The paper's way to draw data: new rollouts for each update, one step (or a few) of each at t*.

t* is that of the policy as it is now: a first set of episodes gives E[T] and the distribution of lengths, these
give the time from which the raw process is within the tolerance of its steady state, and the same for the perturbed
one. The earlier of the two is the cheaper: of the perturbed process only the share of time that is not null has to
be simulated, and only that share of rollouts gives a sample, so that a sample costs t* steps, and the rest of its
episode, either way (the perturbed one a little less, since it begins null).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from steadyrl.common.detours import Perturbation
from steadyrl.common.intervals import Interval
from steadyrl.errors import MixingTimeError
from steadyrl.lengths.confidence import mixing_time_or_never
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.renewal import phase_distance
from steadyrl.rollouts.collect import collect_episodes, collect_samples
from steadyrl.rollouts.episodes import Episodes
from steadyrl.rollouts.samples import Samples
from steadyrl.sspg.settings import Settings

_LONGEST = 1_000
"""Average episode lengths after which a process counts as one that does not mix."""
_SEEDS = 9
"""First spawn key of the seeds of updates."""


@dataclass(frozen=True)
class When:
    """Where in time the steady state is, for one policy."""

    time: int
    """t*, of the perturbed process if there is a perturbation."""
    perturbation: Perturbation | None
    distance: float
    """From the steady state, at t*."""


@dataclass(frozen=True)
class FreshData:
    """Samples at steady state, and the episodes from which t* and E[T] were had."""

    samples: Samples
    when: When
    length: Interval
    """E[T], from the lengths of whole episodes, independent of the samples."""
    episodes: Episodes
    steps: int
    """Of the environment, for episodes and samples."""


def when_steady(lengths: EpisodeLengths, tolerance: float) -> When:
    """Return the cheapest time at which this process is at steady state.

    Example:
        >>> when_steady(EpisodeLengths.from_gymnasium([3]), 0.01).perturbation.epsilon  # never, unless perturbed
        0.75
    """
    mean = lengths.mean
    longest = int(_LONGEST * mean) + 1
    raw = mixing_time_or_never(lengths, tolerance, longest)
    perturbation = Perturbation.for_average_episode_length(mean)
    perturbed = mixing_time_or_never(lengths, tolerance, longest, perturbation)
    if min(raw, perturbed) == math.inf:
        raise MixingTimeError(f"the process is not at steady state within {_LONGEST} E[T], perturbed or not")
    if raw <= perturbed:
        return When(int(raw), None, float(phase_distance(lengths, int(raw))[-1]))
    distance = float(phase_distance(lengths, int(perturbed), perturbation)[-1])
    return When(int(perturbed), perturbation, distance)


def draw_fresh(source: Any, policy: Any, settings: Settings, update: int) -> FreshData:
    """Draw the data of one update; they depend on (policy, settings, update) alone."""
    sequence = np.random.SeedSequence(settings.seed, spawn_key=(_SEEDS, update))
    first, second = (int(number) for number in sequence.generate_state(2))
    how: dict[str, Any] = {"backend": settings.backend, "workers": settings.workers, "address": settings.address}
    arguments = {"make_arguments": source.arguments} if source.id is not None and source.arguments else {}
    environment = source.id if source.id is not None else source.factory
    episodes = collect_episodes(
        environment, policy, settings.diagnosis_episodes, seed=first, observation_sums=False, **how, **arguments
    )
    when = when_steady(EpisodeLengths.from_gymnasium(episodes.lengths), settings.tolerance)
    times = np.arange(when.time, when.time + settings.steps_per_update_used)
    samples = collect_samples(
        environment,
        policy,
        settings.copies_used,
        times,
        seed=second,
        perturbation=when.perturbation,
        **how,
        **arguments,
    )
    mean = float(episodes.lengths.mean()) + 1
    reach = 1.96 * float(episodes.lengths.std(ddof=1)) / math.sqrt(len(episodes)) if len(episodes) > 1 else math.inf
    steps = episodes.steps + samples.steps
    return FreshData(samples, when, Interval(mean, mean - reach, mean + reach), episodes, steps)
