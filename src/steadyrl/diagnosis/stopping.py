"""When enough episodes are known: once more of them could not change the recommendation.

A recommendation leaves things as they are or names a cure, by what each loses over a training (`lengths.strategies`).
What the raw process loses is the sum of its phase distance, which is known up to a confidence band. If the whole band
leads to the same decision, more episodes would narrow the interval of the mixing time and change nothing else.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from steadyrl.lengths.confidence import LengthsConfidence, bootstrap
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.strategies import NEGLIGIBLE, Recommendation, recommend

Array = NDArray[np.float64]

PRECISION = 0.1
"""Relative error of the mixing time at which no more episodes are collected in any case."""
_RESAMPLES = 59
_SPAN = 8  # average episode lengths over which the band is computed
_MOST = 20_000  # steps of the band


def band_steps(lengths: EpisodeLengths) -> int:
    """Return over how many steps the band of the phase distance is needed for the decision."""
    return int(min(_SPAN * lengths.mean + 1, _MOST))


def enough_episodes(
    lengths: EpisodeLengths,
    episodes: int,
    *,
    rng: np.random.Generator,
    tolerance: float,
    num_envs: int,
    n_steps: int,
) -> bool:
    """Return whether the mixing time is known well enough, or the recommendation cannot change any more."""
    found = bootstrap(lengths, episodes, rng=rng, tolerance=tolerance, resamples=_RESAMPLES, steps=band_steps(lengths))
    if found.mixing_time.relative_error <= PRECISION:
        return True
    return is_sure(recommend(lengths, tolerance, num_envs, n_steps), found, n_steps)


def is_sure(found: Recommendation, confidence: LengthsConfidence, n_steps: int) -> bool:
    """Return whether the whole confidence band of the raw process leads to the same recommendation."""
    if found.settled:
        return True
    cured = found.chosen.name != "nothing"
    if cured and (found.chosen.name == "burn-in" or not math.isfinite(found.chosen.steady_after)):
        return False
    best = min(way.lost(found.horizon) for way in found.strategies if way.name != "nothing")
    time, edge = confidence.mixing_time, confidence.distance_low if cured else confidence.distance_high
    end = time.low if cured else time.high
    if not cured and not math.isfinite(end):
        return False
    # Beyond the band the distance counts as 0 against a cure, and as the band's last value against doing nothing.
    lost = _lost(edge[1:], end, found.horizon, beyond=0.0 if cured else float(edge[-1]))
    harmless = end <= n_steps or lost - best <= NEGLIGIBLE * found.horizon
    return harmless != cured


def _lost(distance: Array, end: float, horizon: int, *, beyond: float) -> float:
    """Return the sum of the distance up to the mixing time, with a bound for each step beyond the band."""
    steps = int(min(horizon, end))
    seen = distance[:steps]
    return float(seen.sum()) + (steps - len(seen)) * beyond
