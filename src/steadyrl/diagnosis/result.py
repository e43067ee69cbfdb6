"""The answer of a diagnosis: numbers with intervals, the strategies compared, and the code of the recommended one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import shown
from steadyrl.common.intervals import Interval
from steadyrl.common.storage import plain
from steadyrl.diagnosis.mcmc import Convergence
from steadyrl.diagnosis.observed import Marginals
from steadyrl.diagnosis.seen_ages import LARGE, SMALL, STUDY, SeenAges
from steadyrl.errors import LengthsError
from steadyrl.lengths.confidence import LengthsConfidence
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.strategies import Recommendation, Strategy

Array = NDArray[np.float64]

FEWEST = 30
"""Episodes below which the answer is that there are too few to tell."""


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """What is known of one environment under one policy."""

    environment: str
    """Name of the environment, or of the file that the lengths come from."""
    policy: str
    """Name of the policy; "unknown" if the source does not say."""
    episodes: int
    """Number of complete episodes that were analysed."""
    tolerance: float
    """Distance (total variation) below which data counts as steady."""
    num_envs: int
    """Number of environments that run side by side."""
    n_steps: int
    """Steps of each environment per update."""
    seed: int | None
    """Seed of the collection; None for lengths from a file."""
    lengths: EpisodeLengths
    """Observed distribution of T, Gymnasium's episode length plus one."""
    confidence: LengthsConfidence
    """Average episode length, mixing time and phase distance with confidence intervals."""
    epsilon: float | None
    """Epsilon of the paper's perturbation, 1 - 1/E[T]; None if every episode is a reset alone."""
    perturbed: Interval
    """Mixing time under the paper's perturbation, in steps; its ends are NaN where they take too long to compute."""
    batches: Array
    """Total variation between the ages in each of the first batches and the stationary ages, if nothing is done.

    It is exact for many environments, age by age. `PhaseMonitor` measures finitely many environments and compares
    groups of ages, so that chance does not look like lockstep: its number is lower.
    """
    recommendation: Recommendation
    """All strategies, the recommended one first. With too few episodes (`enough`) it means nothing."""
    truncated: float | None
    """Share of episodes that a time limit ended; None if the source does not say."""
    marginals: Marginals | None = None
    """Means over time of the observed values that settle last; None without observations."""
    convergence: Convergence | None = None
    """R-hat and effective sample size; None without observations."""
    seen_ages: SeenAges | None = None
    """How much of the age shows in an observation; None without observations, or where it cannot be told."""
    unseen_ages: str = ""
    """Why it cannot be told; empty if it can, or if there are no observations."""
    warnings: tuple[str, ...] = ()
    """Sentences on where the analysis does not hold, or not well."""
    selection: str = ""
    """Sentence on which episodes of a log were analysed; empty if all were."""
    sure: bool = True
    """Whether more episodes would lead to the same recommendation, by the confidence band of the phase distance."""
    sb3: bool = False
    """Whether the episodes are those of Stable-Baselines3, whose code is then shown."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the episodes come from."""
    lengths_code: str = "lengths = diagnosis.lengths  # of this Diagnosis"
    """Line of code that defines `lengths`, for those strategies whose code uses them."""

    @property
    def enough(self) -> bool:
        """Whether there are enough episodes for an answer: 30 at least."""
        return self.episodes >= FEWEST

    @property
    def code(self) -> str:
        """Code that applies the recommendation, in a script that has `envs` (and `policy`), or `venv` with SB3."""
        if not self.enough:
            return f"# too few episodes to tell: {self.episodes}, and at least {FEWEST} are needed"
        return self.code_of(self.recommendation.chosen)

    def code_of(self, way: Strategy) -> str:
        """Return a strategy's code, after a line that defines `lengths` if it uses them."""
        if not isinstance(way, Strategy):
            raise LengthsError(
                f"way is {shown(way)}; it must be a Strategy, such as one of diagnosis.recommendation.strategies"
            )
        code = way.sb3_code if self.sb3 and way.sb3_code else way.code
        return f"{self.lengths_code}\n{code}" if "(lengths" in code else code

    @property
    def mixing_time(self) -> Interval:
        """Mixing time of the raw process in steps: the centre of its confidence interval, and the interval.

        A finite sample of lengths mixes later than the distribution that it comes from, since its noise has to die out
        too; the interval has this bias removed. `confidence.mixing_time.value` is the time of the sample itself.
        """
        return _centred(self.confidence.mixing_time)

    @property
    def perturbed_mixing_time(self) -> float:
        """Mixing time under the paper's perturbation, in steps."""
        return self.perturbed.value

    @property
    def phase_locked(self) -> bool:
        """Whether the first batches differ from the long run by more than the tolerance, on average."""
        return bool(self.batches.mean() >= self.tolerance)

    @property
    def harmless(self) -> bool:
        """Whether environments start in lockstep, but leave it so soon that nothing needs to be done."""
        return self.phase_locked and self.recommendation.strategy == "nothing"

    @property
    def expected_to_matter(self) -> str | None:
        """Whether learning is expected to feel lockstep: "yes", "little" or "no"; None where nobody can tell.

        "no" needs no evidence where nothing needs to be done about it. Otherwise it takes the study of learning
        (`seen_ages.STUDY`) to have shown that the distance in observations tells gains beforehand.
        """
        if self.enough and self.recommendation.strategy == "nothing":
            return "no"
        if not self.enough or self.seen_ages is None or STUDY != "yes":
            return None
        distance = self.seen_ages.distance.value
        return "yes" if distance >= LARGE else "little" if distance >= SMALL else "no"

    def __repr__(self) -> str:
        from steadyrl.diagnosis.wording import verdict

        advice = self.recommendation.strategy if self.enough else "too few episodes to tell"
        head = f"Diagnosis({self.environment!r}, policy={self.policy!r}, episodes={self.episodes}, {advice!r})"
        return "\n".join(part for part in (head, verdict(self), self.selection) if part)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values under stable keys; what is infinite (never) or unknown becomes null."""
        mean, time = self.confidence.average_episode_length, self.mixing_time
        best = self.recommendation.chosen
        advice: dict[str, Any] = {
            "strategy": best.name,
            "parameters": dict(best.parameters),
            "code": self.code,
            "distance": self.recommendation.distance,
            "one_off_cost": best.one_off_cost,
            "waste": best.waste,
            "sure": self.sure,
        }
        unknown = Interval(math.nan, math.nan, math.nan)
        perturbed = self.perturbed
        if not self.enough:
            advice = {**dict.fromkeys(advice), "parameters": {}, "code": self.code}
            mean, time, perturbed = Interval(mean.value, math.nan, math.nan), unknown, unknown
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
                    "steps": perturbed.value,
                    "episodes": perturbed.value / mean.value,
                    "low": perturbed.low,
                    "high": perturbed.high,
                    "epsilon": self.epsilon,
                },
                "seen_ages": self._seen_ages_json(),
                "recommendation": advice,
                "strategies": [
                    {**_strategy_json(way, mean.value), "code": self.code_of(way)}
                    for way in self.recommendation.strategies
                    if self.enough
                ],
            }
        )
        return result

    def _seen_ages_json(self) -> dict[str, Any] | None:
        seen = self.seen_ages
        if seen is None:
            return None
        return {
            "accuracy": seen.accuracy,
            "chance": seen.chance,
            "groups": seen.groups,
            "observations": seen.observations,
            "distance": {"value": seen.distance.value, "low": seen.distance.low, "high": seen.distance.high},
            "bound": seen.bound,
            "expected_to_matter": self.expected_to_matter,
            "study": STUDY,
        }


def _centred(found: Interval) -> Interval:
    """Return an interval of steps whose value is the whole step next to its centre, on a logarithmic scale."""
    low, high = found.low, found.high
    if not (math.isfinite(found.value) and math.isfinite(high) and 0 < low < high):
        return found
    centre = min(math.ceil(math.sqrt(low * high) - 1e-9), math.floor(high))
    return Interval(max(centre, math.ceil(low)), low, high)


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
