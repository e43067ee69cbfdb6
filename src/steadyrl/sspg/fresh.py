"""The fresh sampler, the paper's: new rollouts for each update, one step (or a few) of each at t*.

t* is that of the policy as it is now: a first set of episodes gives E[T] and the distribution of lengths. From these
follow the time from which the raw process is within the tolerance of its steady state, and the same for the perturbed
one. The earlier of the two is the cheaper: of the perturbed process only the share of time that is not null has to
be simulated, and only that share of rollouts gives a sample, so that a sample costs t* steps, and the rest of its
episode, either way (the perturbed one a little less, since it begins null).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.detours import Perturbation
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.sources import Description, Source
from steadyrl.errors import MixingTimeError, TrainingError
from steadyrl.lengths.confidence import mixing_time_or_never
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.renewal import phase_distance
from steadyrl.policies.modules import NetworkModule
from steadyrl.rollouts.collect import collect_episodes, collect_samples
from steadyrl.rollouts.planning import Options, choose_backend
from steadyrl.sspg.measured_baseline import Line, MeasuredBaseline
from steadyrl.sspg.settings import ResolvedSettings

Array = NDArray[np.float64]

_LONGEST = 1_000
"""Average episode lengths after which a process counts as one that does not mix."""
_SEEDS = 9
"""First spawn key of the seeds of updates."""


@dataclass(frozen=True)
class When:
    """The time at which a process is at steady state, under one policy."""

    time: int
    """t*, of the perturbed process if there is a perturbation."""
    perturbation: Perturbation | None
    distance: float
    """The phase distance at t*."""


@dataclass(frozen=True)
class FreshBatch:
    """Samples at steady state as the batch of an update (see `Batch`); null and terminal ones are left out."""

    observations: Array
    ages: NDArray[np.int64]
    actions: Any
    to_the_end: Array
    """[B], returns to the end of the episode."""
    critic_is_new: bool
    """Whether the critic has not learnt anything yet, so that it is no baseline."""
    average_episode_length: float
    """E[T], from complete episodes that are independent of the samples."""
    mean_return: float
    phase_distance: float
    steps: int
    bootstrapped: bool = False

    @property
    def acted(self) -> slice:
        """All samples."""
        return slice(None)

    @property
    def visited(self) -> int:
        """All samples."""
        return len(self.observations)

    def returns(self, values: Array) -> tuple[Array, Array]:
        """Return the returns to the end of the episode, and what they are above V.

        The critic has not seen these samples, so that as a baseline it leaves the gradient unbiased.
        """
        return self.to_the_end, self.to_the_end - (0.0 if self.critic_is_new else values)

    def line(self, baseline: MeasuredBaseline, time_left: Array, returns: Array) -> Line | None:
        """Return the line through these returns."""
        return baseline.through(time_left, returns)


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


class FreshSampler:
    """Collects episodes for t* and E[T], then samples at t*; a batch depends on (policy, settings, update) alone."""

    def __init__(
        self,
        source: Source,
        description: Description,
        observations: ObservationCodec,
        actions: ActionCodec,
        settings: ResolvedSettings,
    ) -> None:
        options = Options(backend=settings.backend, workers=settings.workers, address=settings.address)
        backend, reason = choose_backend(source, description, settings.num_envs, options)
        self.about = f"backend {backend}: {reason}"
        self._source, self._seen, self._settings = source, observations, settings

    def draw(self, policy: NetworkModule, update: int) -> FreshBatch:
        """Draw the batch of an update."""
        settings, acting = self._settings, policy.numpy()
        sequence = np.random.SeedSequence(settings.seed, spawn_key=(_SEEDS, update))
        first, second = (int(number) for number in sequence.generate_state(2))
        source = self._source
        environment = source.id if source.id is not None else source.factory
        how: dict[str, Any] = {"backend": settings.backend, "workers": settings.workers, "address": settings.address}
        how["step_timeout"] = settings.step_timeout
        if source.id is not None and source.arguments:
            how["make_arguments"] = source.arguments
        episodes = collect_episodes(
            environment, acting, settings.diagnosis_episodes, seed=first, observation_sums=False, **how
        )
        when = when_steady(EpisodeLengths.from_gymnasium(episodes.lengths), settings.tolerance)
        times = np.arange(when.time, when.time + settings.n_steps)
        samples = collect_samples(
            environment, acting, settings.num_envs, times, seed=second, perturbation=when.perturbation, **how
        )
        used = ~samples.null & ~samples.terminal
        if not used.any():
            raise TrainingError("every sample is null or terminal; take more rollouts (num_envs)")
        rows = samples.observations[used].astype(float)
        rows = rows[:, None] - int(self._seen.space.start) if self._seen.discrete else rows
        return FreshBatch(
            observations=self._seen.flattened(rows),
            ages=samples.ages[used].astype(np.int64),
            actions=samples.actions[used],
            to_the_end=samples.returns[used],
            critic_is_new=update == 0,
            average_episode_length=float(episodes.lengths.mean()) + 1,
            mean_return=float(episodes.returns.mean()),
            phase_distance=when.distance,
            steps=episodes.steps + samples.steps,
        )

    def header(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as JSON."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as arrays: nothing, since a batch depends on the number of its update."""
        return {}

    def restore(self, arrays: dict[str, Any], header: dict[str, Any]) -> None:
        """Go on from a checkpoint."""

    def close(self) -> None:
        """Nothing is open."""
