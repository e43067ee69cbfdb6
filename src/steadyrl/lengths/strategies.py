"""Ways to de-synchronise many copies of an environment, compared by speed and by waste.

Each way is data: what it does to the ages of the copies, as the distance d(t) after t steps of training, what it costs
once, and what it wastes for ever. Steps are those of one copy, resets counted.

A total variation is the share of samples that would have to be replaced to make them fair, so unfair samples,
discarded steps and null steps can be added up. Over a horizon of H steps a way *loses*

    one-off cost + sum of d(t) up to where it stays below the tolerance + waste x H

steps per copy, and `recommend` takes the one that loses least among those that reach the tolerance for good; it
leaves things as they are where that loses less than a thousandth of H more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.detours import Perturbation
from steadyrl.errors import DelaysError
from steadyrl.lengths.confidence import mixing_time_or_never
from steadyrl.lengths.delays import (
    Delays,
    assigned_distance,
    check_lengths,
    delayed_distance,
    design_delays,
    drawn_distance,
    stationary_ages,
    uniform_delays,
)
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.renewal import phase_distance
from steadyrl.lengths.truncated_episodes import cut, first_cut_distance, stagger_distance

Array = NDArray[np.float64]

LONGEST_EXACT = 1000
"""Lengths above this are counted in units of several steps where a detour is involved."""
UPDATES = 1000
"""Updates of training after which costs are compared, unless told otherwise."""
_SPAN = 30  # average episode lengths over which d(t) is computed for every way
_MOST = 100_000
NEGLIGIBLE = 1e-3
"""Share of all steps by which a cure must beat the raw process; below it things are left as they are."""


@dataclass(frozen=True)
class Strategy:
    """One way to de-synchronise copies."""

    name: str
    title: str
    distance: Array
    """d(1), d(2), ... at each step of training: entry t - 1 is time t."""
    steady_after: float
    """Steps of training after which d stays below the tolerance; inf if it never does."""
    one_off_cost: float
    """Steps per copy that are run and thrown away, once."""
    waste: float
    """The share of all steps that is thrown away for ever."""
    code: str
    """The line that applies it, to `envs` or `env`, with `lengths` the distribution that was given."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def limit(self) -> float:
        """The distance at which it ends up."""
        return float(self.distance[-1])

    @property
    def reached(self) -> float:
        """The distance from where on it is steady; where it never is, the one at which it ends up."""
        if math.isinf(self.steady_after):
            return self.limit
        return float(self.distance[min(max(int(self.steady_after) - 1, 0), len(self.distance) - 1)])

    def lost(self, horizon: int) -> float:
        """Steps per copy that are unfair, thrown away or null in `horizon` steps of training."""
        unsteady = int(min(horizon, self.steady_after))  # later ones are fair, to the tolerance
        seen = self.distance[:unsteady]
        beyond = (unsteady - len(seen)) * self.limit  # d goes on falling there: a bound
        return self.one_off_cost + float(seen.sum()) + beyond + self.waste * horizon


@dataclass(frozen=True)
class Recommendation:
    """The cheapest way to the tolerance, and all the others."""

    chosen: Strategy
    strategies: tuple[Strategy, ...]
    """All ways, the chosen one included, cheapest first; those that miss the tolerance last."""
    tolerance: float
    horizon: int
    sampling: Mapping[str, float] = field(default_factory=dict)
    """With finitely many copies, the distance of their expected ages: `assigned` by quantile, `drawn` independently."""

    @property
    def strategy(self) -> str:
        """The name of the chosen way."""
        return self.chosen.name

    @property
    def code(self) -> str:
        """The line that applies it."""
        return self.chosen.code

    @property
    def distance(self) -> float:
        """At which distance it puts the data, at first; it only falls from there."""
        return self.chosen.reached

    @property
    def steady_after(self) -> float:
        """Steps of training after which its data is steady."""
        return self.chosen.steady_after

    @property
    def one_off_cost(self) -> float:
        """Steps per copy thrown away, once."""
        return self.chosen.one_off_cost

    @property
    def waste(self) -> float:
        """The share of steps thrown away for ever."""
        return self.chosen.waste

    def __getitem__(self, name: str) -> Strategy:
        for strategy in self.strategies:
            if strategy.name == name:
                return strategy
        raise KeyError(f"{name!r} is none of {[strategy.name for strategy in self.strategies]}")


def recommend(
    lengths: EpisodeLengths,
    tolerance: float = 0.01,
    num_envs: int = 1,
    n_steps: int = 1,
    *,
    time_limit: int | None = None,
    updates: int = UPDATES,
) -> Recommendation:
    """Return the cheapest way to bring copies to steady state, with the numbers for all the others.

    Args:
        lengths: the distribution of T.
        tolerance: the distance at which data counts as steady.
        num_envs: how many copies run side by side.
        n_steps: steps of each copy between two updates.
        time_limit: the environment's, in Gymnasium's count; None takes the longest length.
        updates: how many updates the comparison looks ahead.

    Example:
        >>> found = recommend(EpisodeLengths.from_gymnasium([19, 199]), num_envs=64, n_steps=16)
        >>> found.strategy, found.steady_after, found.waste
        ('stagger', 198.0, 0.0)
    """
    check_lengths(lengths)
    for name, value in (("num_envs", num_envs), ("n_steps", n_steps), ("updates", updates)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise DelaysError(f"{name} is {value!r}; it must be a whole number, 1 or more")
    if not 0 < tolerance <= 1:
        raise DelaysError(f"tolerance is {tolerance!r}; it must be a distance above 0 and at most 1")
    horizon = int(updates * n_steps)
    found = compare_strategies(lengths, tolerance, time_limit=time_limit)
    ranked = sorted(found, key=lambda way: (math.isinf(way.steady_after), way.lost(horizon)))
    raw = found[0]
    extra = raw.lost(horizon) - ranked[0].lost(horizon)
    well = raw.steady_after <= n_steps or (math.isfinite(raw.steady_after) and extra <= NEGLIGIBLE * horizon)
    chosen = raw if well else ranked[0]
    delays = design_delays(lengths, tolerance=tolerance)
    sampling = {
        "assigned": assigned_distance(lengths, delays, num_envs),
        "drawn": drawn_distance(lengths, delays, num_envs),
    }
    ordered = (chosen, *(way for way in ranked if way is not chosen))
    return Recommendation(chosen, ordered, tolerance, horizon, sampling)


def compare_strategies(
    lengths: EpisodeLengths, tolerance: float = 0.01, *, steps: int | None = None, time_limit: int | None = None
) -> tuple[Strategy, ...]:
    """Return every way that steadyrl knows, the raw process first."""
    span = int(min(_SPAN * lengths.mean, _MOST)) + 1 if steps is None else steps
    limit = lengths.longest - 1 if time_limit is None else time_limit
    raw = nothing(lengths, tolerance, span)
    return (
        raw,
        burn_in(lengths, tolerance, span, raw),
        perturbed(lengths, tolerance, span, Perturbation(0.5, recursive=False)),
        *_paper(lengths, tolerance, span),
        random_counters(lengths, tolerance, span, limit),
        random_truncation(lengths, tolerance, span, limit),
        pre_roll(lengths, tolerance, span, uniform_delays(lengths), "uniform-pre-roll"),
        pre_roll(lengths, tolerance, span, design_delays(lengths, tolerance=tolerance), "pre-roll"),
        stagger(lengths, tolerance, span, design_delays(lengths, tolerance=tolerance)),
        stationary_start(lengths, span),
    )


def nothing(lengths: EpisodeLengths, tolerance: float, steps: int) -> Strategy:
    """All copies are reset together and left alone."""
    distance = phase_distance(lengths, steps)[1:]
    wait = mixing_time_or_never(lengths, tolerance, _longest(lengths))
    return _strategy("nothing", "as it is", distance, tolerance, code="# nothing to do", after=wait)


def burn_in(lengths: EpisodeLengths, tolerance: float, steps: int, raw: Strategy) -> Strategy:
    """Run all copies for the mixing time and throw that away."""
    wait = raw.steady_after
    length = steps if math.isinf(wait) else int(wait)
    distance = phase_distance(lengths, length + steps)[length + 1 :]
    note = "" if math.isfinite(wait) else "it would have to wait for ever"
    return _strategy(
        "burn-in",
        "burn-in",
        distance,
        tolerance,
        cost=wait,
        code=f"for _ in range({length}): observations, *_ = envs.step(policy(observations))  # and throw them away"
        if math.isfinite(wait)
        else "# no burn-in is long enough",
        parameters={"steps": None if math.isinf(wait) else length},
        note=note,
        after=0.0 if math.isfinite(wait) else math.inf,
    )


def perturbed(
    lengths: EpisodeLengths, tolerance: float, steps: int, perturbation: Perturbation, title: str = ""
) -> Strategy:
    """A detour at the start of every episode; null steps are thrown away."""
    epsilon = perturbation.epsilon
    kind = "recursive" if perturbation.recursive else "one-step"
    mean = perturbation.mean_detour
    distance, after, note = _perturbed_distance(lengths, tolerance, steps, perturbation)
    arguments = f"{epsilon:.6g}" + ("" if perturbation.recursive else ", recursive=False")
    return _strategy(
        f"{kind}-epsilon",
        title or f"{kind} epsilon = {epsilon:.4g}",
        distance,
        tolerance,
        waste=mean / (lengths.mean + mean),
        after=after,
        note=note,
        code=f"env = steadyrl.PerturbedStarts(env, steadyrl.Perturbation({arguments}))",
        parameters={"epsilon": epsilon, "recursive": perturbation.recursive},
    )


def random_counters(lengths: EpisodeLengths, tolerance: float, steps: int, time_limit: int) -> Strategy:
    """Start each copy's step counter at random below the time limit, as rsl_rl does (`init_at_random_ep_len`).

    That moves the time limit of the first episode only: it is cut after U actions, U even on 1, ..., limit. Where
    termination ends episodes long before the limit, nothing happens.
    """
    first = cut(lengths, np.append(0.0, np.full(time_limit, 1 / time_limit)))
    distance = _far_enough(lambda span: first_cut_distance(lengths, first, lengths, span), lengths, steps, tolerance)
    return _strategy(
        "random-counters",
        "random counters (rsl_rl)",
        distance,
        tolerance,
        code="env.episode_length_buf = torch.randint_like(env.episode_length_buf, high=int(env.max_episode_length))",
        parameters={"time_limit": time_limit},
    )


def random_truncation(
    lengths: EpisodeLengths,
    tolerance: float,
    steps: int,
    time_limit: int,
    *,
    probability: float = 0.1,
    shortest: int | None = None,
) -> Strategy:
    """Cut the first episode as random counters do, and later ones with some probability, as TorchRL can.

    `RandomTruncationTransform(min_horizon, max_horizon, prob)`: the first horizon is even on 1, ..., max_horizon; a
    later one is, with probability `prob`, even on min_horizon, ..., max_horizon, else max_horizon. Its default, 0, is
    `random_counters`. With prob > 0 it never stops: episodes become shorter, and rho is not the environment's any more.
    """
    low = max(time_limit // 2, 1) if shortest is None else shortest
    first = cut(lengths, np.append(0.0, np.full(time_limit, 1 / time_limit)))
    horizons = np.zeros(time_limit + 1)
    horizons[low:] = probability / (time_limit + 1 - low)
    horizons[time_limit] += 1 - probability
    later = cut(lengths, horizons)
    return _strategy(
        "random-truncation",
        f"random truncation (TorchRL, prob = {probability:g})",
        first_cut_distance(lengths, first, later, steps),
        tolerance,
        code=f"RandomTruncationTransform(min_horizon={low}, max_horizon={time_limit}, prob={probability:g})",
        parameters={"min_horizon": low, "max_horizon": time_limit, "prob": probability},
        note="it goes on cutting episodes, so its steady state is another",
    )


def pre_roll(lengths: EpisodeLengths, tolerance: float, steps: int, delays: Delays, name: str) -> Strategy:
    """Run D steps in each copy before training, and throw them away."""
    designed = name == "pre-roll"
    title = "designed delays, pre-roll" if designed else f"uniform delays over {delays.window} steps, pre-roll"
    made = "design_delays" if designed else "uniform_delays"
    return _strategy(
        name,
        title,
        _far_enough(lambda span: delayed_distance(lengths, delays.probabilities, span)[1:], lengths, steps, tolerance),
        tolerance,
        cost=delays.mean,
        code=f"observations, infos = steadyrl.pre_roll(envs, steadyrl.{made}(lengths, window={delays.window}), policy)",
        parameters={"window": delays.window},
    )


def stagger(lengths: EpisodeLengths, tolerance: float, steps: int, delays: Delays) -> Strategy:
    """Train from the start, and cut each copy's episode short once, at W - D: steady after the window W."""
    window = delays.window
    later = delayed_distance(lengths, delays.probabilities, steps)
    before = stagger_distance(lengths, delays, min(window, steps))
    distance = np.concatenate([before, later[1 : steps - len(before) + 1]])
    return _strategy(
        "stagger",
        "designed delays, stagger",
        distance,
        tolerance,
        code=f"envs = steadyrl.StaggeredVectorEnv(envs, steadyrl.design_delays(lengths, window={window}))",
        parameters={"window": window},
    )


def stationary_start(lengths: EpisodeLengths, steps: int) -> Strategy:
    """Start each copy at a uniform step of a size-biased episode, replayed from its seed: exact at once."""
    ages = stationary_ages(lengths)
    return Strategy(
        name="stationary-start",
        title="exact stationary start",
        distance=np.zeros(steps),
        steady_after=0,
        one_off_cost=_replay_cost(lengths, ages),
        waste=0.0,
        code="env = steadyrl.StationaryStart(env, policy)",
        note="needs an environment that replays exactly from its seed",
    )


def _perturbed_distance(
    lengths: EpisodeLengths, tolerance: float, steps: int, perturbation: Perturbation
) -> tuple[Array, float, str]:
    """d(1), ..., d(steps), its mixing time, and a word on coarsening: it takes lengths x time, so both are kept small.

    Lengths above 1,000 are counted in units of c steps, and a detour in as many units on average; d at a multiple of
    c is off by some c / E[T] (up to 4 were seen), and it is the same in between.
    """
    unit = -(-lengths.longest // LONGEST_EXACT)
    if unit == 1:
        after = mixing_time_or_never(lengths, tolerance, min(_longest(lengths), LONGEST_EXACT * 100), perturbation)
        return phase_distance(lengths, steps, perturbation)[1:], after, ""
    coarse = np.bincount(-(-np.arange(len(lengths.probabilities)) // unit), lengths.probabilities)
    rough = EpisodeLengths(coarse / coarse.sum())
    mean = perturbation.mean_detour / unit
    detour = Perturbation(mean / (1 + mean)) if perturbation.recursive else Perturbation(mean, recursive=False)
    distance = np.repeat(phase_distance(rough, steps // unit + 1, detour)[1:], unit)[:steps]
    after = unit * mixing_time_or_never(rough, tolerance, min(_longest(rough), LONGEST_EXACT * 100), detour)
    return distance, after, f"computed in units of {unit} steps: good to about {4 * unit / lengths.mean:.1g}"


def _replay_cost(lengths: EpisodeLengths, ages: Array) -> float:
    """Episodes accepted with probability T / longest take longest / E[T] trials of E[T] steps; then A are replayed."""
    return float(lengths.longest + np.arange(len(ages)) @ ages)


def _paper(lengths: EpisodeLengths, tolerance: float, steps: int) -> tuple[Strategy, ...]:
    if lengths.mean <= 1:
        return ()
    paper = Perturbation.for_average_episode_length(lengths.mean)
    return (perturbed(lengths, tolerance, steps, paper, f"recursive epsilon = {paper.epsilon:.4g} (the paper's)"),)


def _strategy(
    name: str,
    title: str,
    distance: Array,
    tolerance: float,
    *,
    code: str,
    cost: float = 0.0,
    waste: float = 0.0,
    parameters: Mapping[str, Any] | None = None,
    note: str = "",
    after: float | None = None,
) -> Strategy:
    steady = _steady_after(distance, tolerance) if after is None else after
    return Strategy(name, title, distance, steady, cost, waste, code, dict(parameters or {}), note)


def _steady_after(distance: Array, tolerance: float) -> float:
    """The first time from which d stays below the tolerance, as far as it was computed."""
    above = np.flatnonzero(distance >= tolerance)
    if not len(above):
        return 0.0
    return math.inf if above[-1] == len(distance) - 1 else float(above[-1] + 2)


def _far_enough(compute: Callable[[int], Array], lengths: EpisodeLengths, steps: int, tolerance: float) -> Array:
    """d(1), ..., up to `steps`, and further if it is not yet below the tolerance: these ways end as the raw process."""
    found = compute(steps)
    further = min(_longest(lengths), _MOST)
    return found if found[-1] < tolerance or lengths.period > 1 or further <= steps else compute(further)


def _longest(lengths: EpisodeLengths) -> int:
    return int(1000 * lengths.mean) + 1


def names_to_come(code: str) -> list[str]:
    """Return the names in a line of code that this version of steadyrl does not have yet."""
    module = import_module("steadyrl")
    return [name for name in re.findall(r"steadyrl\.(\w+)", code) if not hasattr(module, name)]
