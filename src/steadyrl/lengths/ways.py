"""Ways to bring environments out of lockstep, each with its effect on their ages and its cost.

Each way is data: the phase distance d(t) after t steps of training, the steps that it throws away once, and the share
of steps that it wastes for ever. Steps are those of one environment, resets included. `strategies` ranks the ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import check_tolerance, whole_number
from steadyrl.common.detours import Perturbation
from steadyrl.common.values import hash_values, same_values
from steadyrl.errors import DelaysError
from steadyrl.lengths.anytime import expected_truncations, least_distance
from steadyrl.lengths.confidence import mixing_time_or_never
from steadyrl.lengths.delays import Delays, delayed_distance, design_delays, stationary_ages, uniform_delays
from steadyrl.lengths.distribution import LONGEST, EpisodeLengths, check_lengths
from steadyrl.lengths.renewal import phase_distance
from steadyrl.lengths.truncated_episodes import cut, first_cut_distance, stagger_distance

Array = NDArray[np.float64]

LONGEST_EXACT = 1000
"""Lengths above this are counted in units of several steps where a detour is involved."""
_SPAN = 30  # average episode lengths over which d(t) is computed for every way
_MOST = 100_000  # steps over which d(t) is computed, at most
_SB3 = (
    "from steadyrl.integrations.sb3 import SteadyVecEnv\n"
    "env = SteadyVecEnv({})  # venv = make_vec_env(...); VecNormalize and other wrappers go around it"
)


@dataclass(frozen=True, eq=False, repr=False)
class Strategy:
    """One way to bring environments out of lockstep."""

    name: str
    """Stable identifier, such as "stagger"."""
    title: str
    """Name for people, such as "stagger episodes (one early truncation per environment)"."""
    distance: Array
    """Phase distance d(1), d(2), ... at each step of training: entry t - 1 is time t."""
    steady_after: float
    """Steps of training after which d stays below the tolerance; inf if it never does."""
    one_off_cost: float
    """Steps per environment that are run and discarded once."""
    waste: float
    """Share of all steps that is discarded for ever."""
    code: str
    """Line of code that applies it to `envs` or `env`; `lengths` is the distribution that was given."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Settings of this way, such as the window of the delays."""
    note: str = ""
    """What else one should know, such as a condition."""
    paper_only: bool = False
    """Whether only readers of the paper need it: the perturbation with its null steps."""
    sb3_code: str = ""
    """The same for the VecEnv `venv` of Stable-Baselines3; empty if steadyrl has nothing for it."""

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        return (
            f"Strategy({self.name!r}, steady_after={self.steady_after:.6g}, one_off_cost={self.one_off_cost:.6g}, "
            f"waste={self.waste:.3g})"
        )

    @property
    def limit(self) -> float:
        """Distance at the last time that was computed."""
        return float(self.distance[-1])

    @property
    def reached(self) -> float:
        """Distance at the time from which it is steady; if it never is, the last distance."""
        if math.isinf(self.steady_after):
            return self.limit
        return float(self.distance[min(max(int(self.steady_after) - 1, 0), len(self.distance) - 1)])

    def lost(self, horizon: int) -> float:
        """Return the steps per environment that are unfair, discarded or null in `horizon` steps of training."""
        horizon = whole_number("horizon", horizon, DelaysError, least=0)
        unsteady = int(min(horizon, self.steady_after))  # later steps are fair, up to the tolerance
        seen = self.distance[:unsteady]
        beyond = (unsteady - len(seen)) * self.limit  # an upper bound: d goes on falling there
        return self.one_off_cost + float(seen.sum()) + beyond + self.waste * horizon


def compare_strategies(
    lengths: EpisodeLengths, tolerance: float = 0.01, *, steps: int | None = None, time_limit: int | None = None
) -> tuple[Strategy, ...]:
    """Return every way that steadyrl knows, unranked, doing nothing first.

    Args:
        lengths: Distribution of T.
        tolerance: Phase distance at which data counts as steady.
        steps: Steps over which d(t) is computed; by default 30 average episode lengths.
        time_limit: The environment's time limit in actions; None takes the longest length.
    """
    check_lengths(lengths, DelaysError)
    tolerance = check_tolerance(tolerance)
    span = int(min(_SPAN * lengths.mean, _MOST)) + 1 if steps is None else whole_number("steps", steps, DelaysError)
    longest = max(lengths.longest - 1, 1)
    limit = longest if time_limit is None else whole_number("time_limit", time_limit, DelaysError, most=LONGEST)
    designed = design_delays(lengths, tolerance=tolerance)
    raw = nothing(lengths, tolerance, span)
    return (
        raw,
        anytime(lengths, tolerance, span),
        stagger(lengths, tolerance, span, designed),
        burn_in(lengths, tolerance, span, raw),
        perturbed(lengths, tolerance, span, Perturbation(0.5, recursive=False)),
        *_paper(lengths, tolerance, span),
        random_counters(lengths, tolerance, span, limit),
        random_truncation(lengths, tolerance, span, limit),
        pre_roll(lengths, tolerance, span, uniform_delays(lengths), "uniform-pre-roll"),
        pre_roll(lengths, tolerance, span, designed, "pre-roll"),
        stationary_start(lengths, span),
    )


def nothing(lengths: EpisodeLengths, tolerance: float, steps: int) -> Strategy:
    """Reset all environments together and change nothing."""
    distance = phase_distance(lengths, steps)[1:]
    wait = mixing_time_or_never(lengths, tolerance, _longest(lengths))
    return _strategy("nothing", "as it is", distance, tolerance, code="# nothing to do", after=wait)


def burn_in(lengths: EpisodeLengths, tolerance: float, steps: int, raw: Strategy) -> Strategy:
    """Run all environments for the mixing time and discard these steps."""
    wait = raw.steady_after
    length = steps if math.isinf(wait) else int(wait)
    distance = phase_distance(lengths, length + steps)[length + 1 :]
    note = "" if math.isfinite(wait) else "no burn-in is long enough"
    return _strategy(
        "burn-in",
        "burn-in (run and discard)",
        distance,
        tolerance,
        cost=wait,
        code=f"for _ in range({length}): observations, *_ = envs.step(policy(observations))  # discard them"
        if math.isfinite(wait)
        else "# no burn-in is long enough",
        parameters={"steps": None if math.isinf(wait) else length},
        note=note,
        after=0.0 if math.isfinite(wait) else math.inf,
    )


def perturbed(
    lengths: EpisodeLengths, tolerance: float, steps: int, perturbation: Perturbation, title: str = ""
) -> Strategy:
    """Insert the paper's detour at the start of every episode, and discard its null steps."""
    epsilon = perturbation.epsilon
    kind = "recursive" if perturbation.recursive else "one-step"
    mean = perturbation.mean_detour
    distance, after, note = _perturbed_distance(lengths, tolerance, steps, perturbation)
    arguments = f"{epsilon:.6g}" + ("" if perturbation.recursive else ", recursive=False")
    return _strategy(
        f"{kind}-epsilon",
        title or f"perturbed starts, {kind} epsilon = {epsilon:.4g}",
        distance,
        tolerance,
        waste=mean / (lengths.mean + mean),
        after=after,
        note=note,
        code=f"env = steadyrl.PerturbedStarts(env, steadyrl.Perturbation({arguments}))",
        parameters={"epsilon": epsilon, "recursive": perturbation.recursive},
        paper_only=True,
    )


def random_counters(lengths: EpisodeLengths, tolerance: float, steps: int, time_limit: int) -> Strategy:
    """Start each environment's step counter at random below the time limit, as rsl_rl does (`init_at_random_ep_len`).

    This moves the time limit of the first episode only: it is truncated after U actions, U uniform on 1, ..., limit. If
    episodes terminate long before the limit, it has no effect.
    """
    first = cut(lengths, np.append(0.0, np.full(time_limit, 1 / time_limit)))
    distance = _far_enough(lambda span: first_cut_distance(lengths, first, lengths, span), lengths, steps, tolerance)
    return _strategy(
        "random-counters",
        "random episode counters (rsl_rl)",
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
    """Truncate the first episode as random counters do, and later ones with some probability, as TorchRL can.

    `RandomTruncationTransform(min_horizon, max_horizon, prob)`: the first horizon is uniform on 1, ..., max_horizon; a
    later one is, with probability `prob`, uniform on min_horizon, ..., max_horizon, and otherwise max_horizon. With
    TorchRL's default, prob = 0, this is `random_counters`. With prob > 0 episodes stay shorter for ever, and the steady
    state is not the environment's own.
    """
    low = max(time_limit // 2, 1) if shortest is None else min(shortest, time_limit)
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
        note="it keeps truncating episodes, so its steady state is not the environment's own",
    )


def pre_roll(lengths: EpisodeLengths, tolerance: float, steps: int, delays: Delays, name: str) -> Strategy:
    """Run D steps in each environment before training, and discard them."""
    designed = name == "pre-roll"
    title = "warm-up with staggered offsets" if designed else "warm-up with uniform offsets"
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
    """Train from the start, and truncate one episode of each environment early, at W - D: steady after the window W."""
    window = delays.window
    later = delayed_distance(lengths, delays.probabilities, steps)
    before = stagger_distance(lengths, delays, min(window, steps))
    distance = np.concatenate([before, later[1 : steps - len(before) + 1]])
    return _strategy(
        "stagger",
        "stagger episodes (one early truncation per environment)",
        distance,
        tolerance,
        code=f"envs = steadyrl.StaggeredVectorEnv(envs, steadyrl.design_delays(lengths, window={window}))",
        sb3_code=_SB3.format(f"venv, steadyrl.design_delays(lengths, window={window})"),
        parameters={"window": window},
    )


def anytime(lengths: EpisodeLengths, tolerance: float, steps: int) -> Strategy:
    """Truncate episodes so that the ages are the best that is possible at every step (`StaggerController`).

    Its distance is P(A > t), which no way can be below (`lengths.anytime`).
    """
    needed = lengths.longest > 2 and lengths.probabilities[1] == 0
    truncations = expected_truncations(lengths) if needed else 0.0
    return _strategy(
        "anytime",
        "anytime staggering (a few early truncations each)",
        least_distance(lengths, max(steps, lengths.longest + 1)),
        tolerance,
        code="envs = steadyrl.StaggeredVectorEnv(envs)",
        sb3_code=_SB3.format("venv"),
        parameters={"truncations": round(truncations, 2)},
        note=f"about {truncations:.1f} early truncations per environment at first; no lengths need be known",
    )


def stationary_start(lengths: EpisodeLengths, steps: int) -> Strategy:
    """Start each environment at a uniform step of a size-biased episode, replayed from its seed: exact at once."""
    ages = stationary_ages(lengths)
    return Strategy(
        name="stationary-start",
        title="exact start (replay to a stationary state)",
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
    """Return d(1), ..., d(steps), the mixing time, and a note if lengths were coarsened.

    The exact computation takes (longest length) x time, so lengths above 1,000 are counted in units of c steps, and the
    detour likewise. This changes d by about c / E[T] (up to 4 c / E[T] were observed); d is constant within a unit.
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
    """Return the steps of rejection sampling (longest / E[T] trials of E[T] steps) and of the replay (A steps)."""
    return float(lengths.longest + np.arange(len(ages)) @ ages)


def _paper(lengths: EpisodeLengths, tolerance: float, steps: int) -> tuple[Strategy, ...]:
    if lengths.mean <= 1:
        return ()
    paper = Perturbation.for_average_episode_length(lengths.mean)
    return (
        perturbed(
            lengths, tolerance, steps, paper, f"perturbed starts, recursive epsilon = {paper.epsilon:.4g} (the paper's)"
        ),
    )


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
    paper_only: bool = False,
    sb3_code: str = "",
) -> Strategy:
    steady = _steady_after(distance, tolerance) if after is None else after
    settings = dict(parameters or {})
    return Strategy(name, title, distance, steady, cost, waste, code, settings, note, paper_only, sb3_code)


def _steady_after(distance: Array, tolerance: float) -> float:
    """Return the first time from which d stays below the tolerance, as far as it was computed."""
    above = np.flatnonzero(distance >= tolerance)
    if not len(above):
        return 0.0
    return math.inf if above[-1] == len(distance) - 1 else float(above[-1] + 2)


def _far_enough(compute: Callable[[int], Array], lengths: EpisodeLengths, steps: int, tolerance: float) -> Array:
    """Return d(1), ..., d(steps), and more of it if it is not yet below the tolerance but will be."""
    found = compute(steps)
    further = min(_longest(lengths), _MOST)
    return found if found[-1] < tolerance or lengths.period > 1 or further <= steps else compute(further)


def _longest(lengths: EpisodeLengths) -> int:
    return int(1000 * lengths.mean) + 1
