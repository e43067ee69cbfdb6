"""Ways to bring environments out of lockstep, ranked by what they cost.

A total variation is the share of samples that would have to be replaced to make them fair, so unfair samples,
discarded steps and null steps can be added up. Over a horizon of H steps a way *loses*

    one-off cost + sum of d(t) up to where it stays below the tolerance + waste x H

steps per environment. `recommend` takes the way that loses least among those that reach the tolerance for good, and
leaves things as they are where lockstep is harmless:

- a single environment has no other to be in lockstep with;
- every batch covers so many episodes that it shows all ages alike, whatever the phase;
- lockstep fades by itself within the first batch, or soon enough that no way would save a thousandth of H.

It ranks by fair batches alone. The study of learning (docs/evidence.md) found no rule by which lengths, environments or
steps tell beforehand who learns more from them, so none is in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import check_tolerance, whole_number
from steadyrl.common.values import hash_values, same_values
from steadyrl.errors import DelaysError
from steadyrl.lengths.delays import assigned_distance, design_delays, drawn_distance
from steadyrl.lengths.distribution import EpisodeLengths, check_lengths
from steadyrl.lengths.renewal import batch_distance
from steadyrl.lengths.ways import LONGEST_EXACT, Strategy, compare_strategies

__all__ = [
    "LONGEST_EXACT",
    "NEGLIGIBLE",
    "RANKING",
    "Recommendation",
    "Strategy",
    "compare_strategies",
    "recommend",
]

Array = NDArray[np.float64]

RANKED_UPDATES = 1000
"""Updates of training over which losses are compared, unless told otherwise."""
NEGLIGIBLE = 1e-3
"""Share of the steps of training that a way must save to be recommended instead of doing nothing."""
RANKING = (
    "Ranked by the steps lost per environment in 1,000 updates (to 0.1%): samples that differ from the long run, and "
    "steps thrown away. Doing nothing comes first where it is harmless; what never gets within the tolerance is last."
)
"""The rule of the ranking, for tables of strategies."""
MANY_EPISODES = 10
"""Mean episode lengths from which on a batch is fair whatever the phase: its ages are off by 1 / (4 x 10) at most."""
_BATCHES = 10  # first batches whose ages are looked at
_MOST_BATCH_STEPS = 10_000_000  # beyond it batches are not looked at one by one


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation:
    """The recommended way, and all the others in order."""

    chosen: Strategy
    """The recommended way."""
    strategies: tuple[Strategy, ...]
    """All ways in the order of `RANKING`; the chosen one is the first."""
    tolerance: float
    """Phase distance at which data counts as steady."""
    horizon: int
    """Steps per environment over which losses are compared."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Distance of the expected ages of finitely many environments with delays `assigned` by quantile, or `drawn`."""
    reason: str = ""
    """Why this way is recommended, as a clause: "since ..."."""
    settled: bool = False
    """Whether more episodes could not change it: a single environment, or batches that cover many episodes."""

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        return f"Recommendation({self.strategy!r}, {self.reason}; {len(self.strategies)} ways compared)"

    @property
    def strategy(self) -> str:
        """Name of the chosen way."""
        return self.chosen.name

    @property
    def harmless(self) -> bool:
        """Whether leaving things as they are is recommended, because lockstep does no harm here."""
        return self.chosen.name == "nothing"

    @property
    def code(self) -> str:
        """Line of code that applies the chosen way."""
        return self.chosen.code

    @property
    def distance(self) -> float:
        """Distance from steady state at the time from which the chosen way is steady; it only falls later."""
        return self.chosen.reached

    @property
    def steady_after(self) -> float:
        """Steps of training after which the data of the chosen way is steady."""
        return self.chosen.steady_after

    @property
    def one_off_cost(self) -> float:
        """Steps per environment that the chosen way discards once."""
        return self.chosen.one_off_cost

    @property
    def waste(self) -> float:
        """Share of steps that the chosen way discards for ever."""
        return self.chosen.waste

    def __getitem__(self, name: str) -> Strategy:
        for strategy in self.strategies:
            if strategy.name == name:
                return strategy
        raise KeyError(f"{name!r} is none of {[strategy.name for strategy in self.strategies]}")


def recommend(
    lengths: EpisodeLengths,
    tolerance: float = 0.01,
    num_envs: int | None = None,
    n_steps: int = 1,
    *,
    time_limit: int | None = None,
    updates: int = RANKED_UPDATES,
) -> Recommendation:
    """Return the cheapest way to bring environments out of lockstep, with the numbers for all the others.

    Args:
        lengths: Distribution of T.
        tolerance: Phase distance (total variation) at which data counts as steady.
        num_envs: Number of environments that run side by side; None stands for many.
        n_steps: Steps of each environment between two updates.
        time_limit: The environment's time limit in actions; None takes the longest length.
        updates: Number of updates over which losses are compared.

    Example:
        >>> found = recommend(EpisodeLengths.from_gymnasium([19, 199]), num_envs=64, n_steps=16)
        >>> found.strategy, found.steady_after, found.waste
        ('anytime', 198.0, 0.0)
        >>> recommend(EpisodeLengths.from_gymnasium([19, 199]), num_envs=1, n_steps=2048).reason
        'since a single environment has no other to be in lockstep with'
    """
    check_lengths(lengths, DelaysError)
    tolerance = check_tolerance(tolerance)
    envs = None if num_envs is None else whole_number("num_envs", num_envs, DelaysError)
    batch = whole_number("n_steps", n_steps, DelaysError)
    horizon = whole_number("updates", updates, DelaysError) * batch
    found = compare_strategies(lengths, tolerance, time_limit=time_limit)
    # Rounded to a thousandth of the horizon, so that of ways that lose about the same the first is taken: anytime
    # staggering before designed delays, which have to know the lengths and are undone by learning, and before warm-ups.
    ranked = sorted(found, key=lambda way: (math.isinf(way.steady_after), round(way.lost(horizon) / horizon, 3)))
    raw = found[0]
    reason = _harmless(lengths, tolerance, envs, batch, raw, horizon, ranked[0].lost(horizon))
    if reason:
        ranked = [raw, *(way for way in ranked if way is not raw)]
    chosen = ranked[0]
    settled = bool(reason) and (envs == 1 or batch >= MANY_EPISODES * lengths.mean)
    reason = reason or f"since it loses least: {chosen.lost(horizon):,.0f} of {horizon:,} steps per environment"
    sampling = _sampling(lengths, tolerance, envs)
    return Recommendation(chosen, tuple(ranked), tolerance, horizon, sampling, reason, settled)


def _harmless(
    lengths: EpisodeLengths,
    tolerance: float,
    num_envs: int | None,
    n_steps: int,
    raw: Strategy,
    horizon: int,
    least: float,
) -> str:
    """Return why lockstep is harmless, or an empty string if it is not."""
    if num_envs == 1:
        return "since a single environment has no other to be in lockstep with"
    episodes = n_steps / lengths.mean
    if raw.steady_after <= n_steps:
        return "since lockstep is over by itself within the first batch"
    if episodes >= MANY_EPISODES:
        return f"since every batch covers {episodes:.3g} mean episode lengths and shows all ages alike"
    if episodes >= 1 and n_steps * _BATCHES <= _MOST_BATCH_STEPS:
        off = float(batch_distance(lengths, n_steps, _BATCHES).max())
        if off < tolerance:
            return f"since the ages in every batch differ by {off:.2%} at most from the long run"
    lost = raw.lost(horizon)
    if math.isfinite(raw.steady_after) and lost - least <= NEGLIGIBLE * horizon:
        return (
            f"since lockstep is over by itself after {raw.steady_after:,.0f} steps and costs {lost / horizon:.2%} of "
            f"the samples in {horizon:,} steps"
        )
    return ""


def _sampling(lengths: EpisodeLengths, tolerance: float, num_envs: int | None) -> dict[str, float]:
    delays = design_delays(lengths, tolerance=tolerance)
    if num_envs is None:
        return {"assigned": delays.distance, "drawn": delays.distance}
    return {
        "assigned": assigned_distance(lengths, delays, num_envs),
        "drawn": drawn_distance(lengths, delays, num_envs),
    }
