"""The league: real environments x ways to de-synchronise copies, by measured speed and waste.

    python benchmarks/league.py            all of it (collects episodes once, then some ten minutes)
    python benchmarks/league.py lengths    collect episodes only
    python benchmarks/league.py cells live figure

*Ages depend on the ends of episodes alone*, so in `cells` each of many copies lives through lengths of real episodes,
drawn from those collected, under the very code that cuts, delays or perturbs (StaggerController, designed delays,
Perturbation). A cell's measured distance is that of their ages from the stationary ones, free of the bias of finitely
many copies. Beside it the
computed one. `live` then runs the wrappers on the real simulators, with fewer copies. Time is counted in steps of
the learning process, resets included, in average episode lengths (AEL).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from league_figures import draw_figures
from steadyrl import (
    Delays,
    EnvPoolVectorEnv,
    EpisodeLengths,
    Perturbation,
    PhaseMonitor,
    StaggeredVectorEnv,
    collect_episodes,
    design_delays,
    pre_roll,
    uniform_delays,
)
from steadyrl.lengths.anytime import anytime_distance, least_distance
from steadyrl.lengths.delays import delayed_distance
from steadyrl.lengths.renewal import phase_distance, renewal_sequence
from steadyrl.lengths.truncated_episodes import cut, first_cut_distance, stagger_distance
from steadyrl.live.designed_staggering import make_staggering
from steadyrl.policies import UniformPolicy, random_gaussian_policy

SEED = 0
TOLERANCE = 0.01
GROUPS = 100  # of ages, at most
RESULTS = Path(__file__).parent / "results"
LENGTHS = RESULTS / "league_lengths.json"
OUT = RESULTS / "league.json"

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "HopperBulletEnv-v0": {"policy": "gaussian", "episodes": 20_000, "limit": 1000},
    "HumanoidBulletEnv-v0": {"policy": "gaussian", "episodes": 10_000, "limit": 1000},
    "HalfCheetahBulletEnv-v0": {"policy": "gaussian", "episodes": 8, "limit": 1000, "batches": 1},
    "Hopper-v5": {"policy": "gaussian", "episodes": 20_000, "limit": 1000},
    "Humanoid-v5": {"policy": "gaussian", "episodes": 10_000, "limit": 1000},
    "CartPole-v1": {"policy": "uniform", "episodes": 50_000, "limit": 500},
    "Acrobot-v1": {"policy": "uniform", "episodes": 5_000, "limit": 500, "batches": 2},
    "LunarLander-v3": {"policy": "uniform", "episodes": 20_000, "limit": 1000},
    "steadyrl/StateSweep-v0": {"policy": "uniform", "episodes": 8, "limit": 199, "make": {"n": 200}},
}


def collect_lengths() -> dict[str, list[int]]:
    """Return how many episodes had each length (Gymnasium's count), collecting what is not there yet."""
    found = json.loads(LENGTHS.read_text()) if LENGTHS.exists() else {}
    for name, settings in ENVIRONMENTS.items():
        if name not in found:
            episodes = collect_episodes(
                name,
                settings["policy"],
                settings["episodes"],
                seed=SEED,
                make_arguments=settings.get("make"),
                progress=True,
            )
            found[name] = np.bincount(episodes.lengths).tolist()
            LENGTHS.write_text(json.dumps(found))
    return found


def as_lengths(counts: list[int]) -> EpisodeLengths:
    values = np.append(0, counts).astype(float)  # T = l + 1
    return EpisodeLengths(values / values.sum())


@dataclass(frozen=True)
class Way:
    """One way, as what happens to the copies."""

    name: str
    computed: np.ndarray | None
    """d(1), d(2), ...: entry t - 1 is time t."""
    delays: Delays | None = None  # run before time 0, and thrown away
    first: np.ndarray | None = None  # P(horizon = h) of the first episode
    later: np.ndarray | None = None  # and of all others
    detour: Perturbation | None = None
    staggered: Any = None  # delays, or "auto" for a StaggerController
    waste: float = 0.0
    """The share of simulated steps that is thrown away for ever."""
    one_off: float = 0.0
    """Steps a copy that are thrown away once."""


def ways(lengths: EpisodeLengths, limit: int, steps: int) -> list[Way]:
    counters = np.append(0.0, np.full(limit, 1 / limit))
    low = max(limit // 2, 1)
    truncation = np.zeros(limit + 1)
    truncation[low:] = 0.1 / (limit + 1 - low)
    truncation[limit] += 0.9
    first, later = cut(lengths, counters), cut(lengths, truncation)
    designed, even = design_delays(lengths, tolerance=TOLERANCE), uniform_delays(lengths)
    blocks = block_delays()
    paper = Perturbation.for_average_episode_length(lengths.mean)
    found = [
        Way("nothing", phase_distance(lengths, steps)[1:]),
        Way("random counters (rsl_rl)", first_cut_distance(lengths, first, lengths, steps), first=counters),
        Way(
            "random truncation, prob = 0.1 (TorchRL)",
            first_cut_distance(lengths, first, later, steps),
            first=counters,
            later=truncation,
        ),
        Way(
            "blocks of random actions (Sample Factory)",
            delayed(lengths, blocks, steps),
            delays=blocks,
            one_off=blocks.mean,
        ),
    ]
    for name, perturbation in (("epsilon = 0.75", Perturbation(0.75)), ("the paper's epsilon", paper)):
        detour = perturbation.mean_detour
        found.append(
            Way(
                name,
                perturbed(lengths, steps, perturbation),
                detour=perturbation,
                waste=detour / (detour + lengths.mean),
            )
        )
    found.append(Way("uniform pre-roll", delayed(lengths, even, steps), delays=even, one_off=even.mean))
    found.append(
        Way("designed delays, pre-roll", delayed(lengths, designed, steps), delays=designed, one_off=designed.mean)
    )
    found.append(Way("designed delays, stagger", staggered(lengths, designed, steps), staggered=designed))
    computed = anytime_distance(lengths, steps, same_step=False)
    found.append(Way("anytime staggering", computed, staggered="auto"))
    return found


def block_delays(rollout: int = 32, copies: int = 16) -> Delays:
    """Sample Factory's: copy i of a worker runs rollout * (i + {0, ..., 4}) random actions, after its reset."""
    blocks = np.convolve(np.full(copies, 1 / copies), np.full(5, 0.2))
    probabilities = np.zeros(rollout * (len(blocks) - 1) + 2)
    probabilities[1::rollout] = blocks
    return Delays(probabilities, math.nan)


def delayed(lengths: EpisodeLengths, delays: Delays, steps: int) -> np.ndarray:
    return delayed_distance(lengths, delays.probabilities, steps)[1:]


def staggered(lengths: EpisodeLengths, delays: Delays, steps: int) -> np.ndarray:
    window = delays.window + 2
    before = stagger_distance(lengths, delays, min(window, steps), offset=2)
    return np.concatenate([before, delayed(lengths, delays, max(steps - window, 0))])[:steps]


def perturbed(lengths: EpisodeLengths, steps: int, perturbation: Perturbation) -> np.ndarray:
    return phase_distance(lengths, steps, perturbation)[1:]


def simulate(
    way: Way,
    lengths: EpisodeLengths,
    copies: int,
    steps: int,
    rng: np.random.Generator,
    *,
    switch: tuple[int, EpisodeLengths] | None = None,
) -> Iterator[np.ndarray]:
    """Yield the ages of the copies at times 1, ..., steps; 0 is null. From a time on lengths may be others."""

    def draw(probabilities: np.ndarray, count: int) -> np.ndarray:
        total = np.cumsum(probabilities)
        return np.searchsorted(total / total[-1], rng.random(count), side="right")

    age = np.zeros(copies, dtype=np.int64)
    length = np.zeros(copies, dtype=np.int64)  # of the running episode; age = length is its end
    null = np.zeros(copies, dtype=np.int64)  # null states still ahead
    begun = np.zeros(copies, dtype=bool)
    before = 0 if way.delays is None else way.delays.window
    start = -(np.zeros(copies, dtype=np.int64) if way.delays is None else way.delays.assign(copies, rng=rng))
    restagger = None
    if way.staggered is not None:
        seed = int(rng.integers(2**31))
        restagger = make_staggering(copies, way.staggered, same_step=False, tolerance=TOLERANCE, n_steps=1, seed=seed)
    for t in range(1 - before, steps + 1):
        active = start < t
        detour = active & (null > 0)
        null -= detour
        ended = active & ~detour & (age == length) & (null == 0)
        fresh = np.flatnonzero(ended)
        came_back = detour & (null == 0)
        age += active & ~ended & ~detour
        if len(fresh):
            law = lengths if switch is None or t < switch[0] else switch[1]
            new, late = draw(law.probabilities, len(fresh)), begun[fresh]
            for probabilities, of_these in ((way.first, ~late), (way.later, late)):
                if probabilities is not None:
                    new = np.where(of_these, np.minimum(new, draw(probabilities, len(fresh)) + 1), new)
            length[fresh], age[fresh], begun[fresh] = new, 1, True
            if way.detour is not None:
                null[fresh] = way.detour.draw(len(fresh), rng=rng)
                age[fresh[null[fresh] > 0]] = 0
        age[came_back] = 1
        if restagger is not None and t > 1:
            done = age == length
            now = restagger.step(done)
            length[now] = age[now]
        if t >= 1:
            yield np.where(null > 0, 0, age)


def measure(ages: np.ndarray, group: np.ndarray, share: np.ndarray) -> tuple[float, float]:
    """Return the distance, free of bias, and what chance reaches (4 standard errors) if it is 0."""
    real = ages[ages > 0]
    if not len(real):
        return 1.0, 0.0
    found = np.bincount(group[np.minimum(real, len(group) - 1)], minlength=len(share)) / len(real)
    error = np.sqrt(share * (1 - share) / len(real))
    floor = 0.5 * math.sqrt(2 / math.pi) * error.sum()
    spread = 0.5 * math.sqrt((1 - 2 / math.pi) * (error**2).sum())
    raw = 0.5 * np.abs(found - share).sum()
    return math.sqrt(max(0.0, raw**2 - floor**2)), math.sqrt((floor + 4 * spread) ** 2 - floor**2)


def groups(lengths: EpisodeLengths, most: int = GROUPS) -> tuple[np.ndarray, np.ndarray]:
    """Groups of ages with about equal stationary shares, single ages where there are few."""
    share = lengths.survival[1:] / lengths.mean
    if len(share) <= most:
        return np.append(0, np.arange(len(share))), share
    group = np.minimum(((np.cumsum(share) - share / 2) * most).astype(int), most - 1)
    group = np.unique(group, return_inverse=True)[1]
    return np.append(0, group), np.bincount(group, weights=share)


def cell(way: Way, lengths: EpisodeLengths, steps: int, copies: int) -> dict[str, Any]:
    """Measure one way in one environment."""
    rng = np.random.default_rng([SEED, len(way.name)])
    group, share = groups(lengths)
    grid = set(np.unique(np.concatenate([np.arange(1, 5), np.geomspace(4, steps, 60).astype(int)])).tolist())
    if math.isfinite(settled(way.computed)):
        grid |= {int(settled(way.computed)) + i for i in (-2, -1, 0, 1, 2)}
    times, measured, noise = [], [], []
    for t, ages in enumerate(simulate(way, lengths, copies, steps, rng), 1):
        if t in grid:
            distance, chance = measure(ages, group, share)
            times.append(t), measured.append(distance), noise.append(chance)
    found = {
        "way": way.name,
        "copies": copies,
        "waste": round(way.waste, 4),
        "one_off": round(way.one_off / lengths.mean, 4),
        "times": times,
        "measured": [round(x, 5) for x in measured],
        "noise": [round(x, 5) for x in noise],
    }
    found["bound"] = [round(float(x), 5) for x in least_distance(lengths, steps)[np.array(times) - 1]]
    found["above_bound"] = above_bound(times, measured, lengths)
    late = [t for t, d, e in zip(times, measured, noise, strict=True) if d - e > TOLERANCE]
    found["measured_ael"] = _ael(
        0 if not late else math.inf if late[-1] == times[-1] else _next(times, late[-1]), lengths
    )
    if way.computed is not None:
        computed = way.computed[np.array(times) - 1]
        found["computed"] = [round(float(x), 5) for x in computed]
        found["computed_ael"] = _ael(settled(way.computed), lengths)
        expected = computed
        if way.first is None and way.detour is None and way.staggered is None:
            delays = np.ones(1) if way.delays is None else way.delays.probabilities
            expected = grouped(delays, lengths, times, group, share)
        found["agrees"] = agrees(measured, noise, expected, share)
    return found


def above_bound(times: list[int], measured: list[float], lengths: EpisodeLengths) -> float:
    """Return the measured distance above the bound, on average over the first 3 AEL, interpolated between the times."""
    last = int(3 * lengths.mean)
    every = np.interp(np.arange(1, last + 1), times, measured)
    return round(float((every - least_distance(lengths, last)).mean()), 4)


def agrees(measured: list[float], noise: list[float], computed: np.ndarray, share: np.ndarray) -> bool:
    """Whether measured and computed distances differ by no more than chance, and what grouping ages may hide.

    Times at which next to all copies are null, so that chance alone would reach 0.3, say nothing.
    """
    hidden = float(share.max()) if len(share) >= GROUPS else 0.0
    return all(
        abs(m - c) <= math.hypot(e, 0.004) + hidden
        for m, e, c in zip(measured, noise, computed, strict=True)
        if e < 0.3
    )


def grouped(
    delays: np.ndarray, lengths: EpisodeLengths, times: list[int], group: np.ndarray, share: np.ndarray
) -> np.ndarray:
    """The distance over groups of ages, after delays: P(age at t = k) = sum_D q(D) v(t + D - k) P(T >= k)."""
    n, window = lengths.longest, len(delays) - 1
    ends = np.append(renewal_sequence(lengths, max(times) + window), np.zeros(n + 1))  # the zeros: before the start
    found = []
    for t in times:
        ages = np.zeros(n)
        for delay in np.flatnonzero(delays):
            ages += delays[delay] * ends[np.maximum(t + delay - np.arange(1, n + 1), -n - 1)]
        shares = np.bincount(group[1:], weights=ages * lengths.survival[1:], minlength=len(share))
        found.append(0.5 * np.abs(shares - share).sum())
    return np.array(found)


def settled(computed: np.ndarray | None) -> float:
    """The first time from which the computed distance stays below the tolerance."""
    if computed is None:
        return math.inf
    above = np.flatnonzero(computed >= TOLERANCE)
    if not len(above):
        return 0
    return math.inf if above[-1] == len(computed) - 1 else float(above[-1] + 2)


def distance_at(ages: np.ndarray, share: np.ndarray, t: int, *, same_step: bool) -> float:
    """Return the distance of the ages at time t, in nine groups of equal share up to age t and one beyond.

    With NEXT_STEP the age that nobody can have then, t - 1, is a group of its own. Chance is not taken out; it adds
    about 0.02 for 4,096 independent copies at steady state.
    """
    group = np.minimum((np.cumsum(share) - share / 2) / share[:t].sum() * 9, 8.999).astype(int)
    group[t:] = 9
    if not same_step:
        group[t - 2] = 10
    wanted = np.bincount(group, share, minlength=12)
    found = group[np.minimum(ages, len(group)) - 1]
    seen = np.bincount(np.where(ages < 1, 11, found), minlength=12) / len(ages)  # 0 is the step of a late truncation
    return 0.5 * float(np.abs(seen - wanted).sum())


def _next(times: list[int], t: int) -> int:
    return times[times.index(t) + 1]


def _ael(t: float, lengths: EpisodeLengths) -> float | None:
    return None if math.isinf(t) else round(t / lengths.mean, 3)


def run_cells(results: dict[str, Any]) -> None:
    counts = collect_lengths()
    for name, settings in ENVIRONMENTS.items():
        lengths = as_lengths(counts[name])
        steps = int(min(30 * lengths.mean, 15_000))
        copies = int(np.clip(4e7 / steps, 20_000, 400_000))
        rows = results.setdefault("cells", {}).setdefault(name, {})
        for row in rows.values():
            if "measured" in row and "above_bound" not in row:
                row["bound"] = [round(float(x), 5) for x in least_distance(lengths, steps)[np.array(row["times"]) - 1]]
                row["above_bound"] = above_bound(row["times"], row["measured"], lengths)
        for way in ways(lengths, settings["limit"], steps):
            if way.name in rows:
                continue
            begin = time.perf_counter()
            rows[way.name] = cell(way, lengths, steps, 20_000 if way.staggered == "auto" else copies)
            show = rows[way.name]
            print(
                f"{name}: {way.name}: measured {show['measured_ael']}, computed {show.get('computed_ael')} AEL, agrees "
                f"{show.get('agrees')} ({time.perf_counter() - begin:.0f} s)",
                flush=True,
            )
            save(results)
        results["cells"][name]["_"] = {
            "E[T]": round(lengths.mean, 3),
            "CV": round(lengths.cv, 4),
            "bound": round(settled(least_distance(lengths, lengths.longest + 1)) / lengths.mean, 3),
            "episodes": sum(counts[name]),
        }
        save(results)


def run_relock(results: dict[str, Any]) -> None:
    """Lengths switch from about 20 to about 500 at t = 1000: distance and waste over time, four ways."""
    short, long = (as_lengths(np.bincount(bell(*spread)).tolist()) for spread in ((19, 3), (499, 50)))
    switch, steps, copies = 1000, 6000, 20_000
    once = design_delays(short, tolerance=TOLERANCE)
    paper = Perturbation.for_average_episode_length(short.mean)
    found: dict[str, Any] = {"switch": switch, "E[T]": [short.mean, long.mean], "copies": copies, "curves": {}}
    for way in (
        Way("as it is", None),
        Way("staggered once", None, staggered=once),
        Way("the paper's epsilon, fixed", None, detour=paper),
        Way("anytime staggering", None, staggered="auto"),
    ):
        rng = np.random.default_rng(SEED)
        times, distances, wasted, null = [], [], [], 0
        for t, ages in enumerate(simulate(way, short, copies, steps, rng, switch=(switch, long)), 1):
            null += int((ages == 0).sum())
            if t % 10 == 0:
                distance, _ = measure(ages, *groups(short if t < switch else long))
                times.append(t), distances.append(round(distance, 4)), wasted.append(round(null / (t * copies), 4))
        found["curves"][way.name] = {"times": times, "distance": distances, "waste": wasted}
        print(f"relock: {way.name}: at the end {distances[-1]}, wasted {wasted[-1]:.0%}", flush=True)
    results["relock"] = found
    save(results)


def run_live(results: dict[str, Any]) -> None:
    """The wrappers on real simulators: ages counted from the flags that a training script sees."""
    counts = collect_lengths()
    rows = results.setdefault("live", {})
    for name, settings in ENVIRONMENTS.items():
        lengths = as_lengths(counts[name])
        delays = design_delays(lengths, tolerance=TOLERANCE)
        step = delays.window + 2  # of the learning process, the reset being the first: the window is over
        raw = phase_distance(lengths, step)[-1]
        for way, computed in (
            ("nothing", raw),
            ("designed delays, stagger", delays.distance),
            ("anytime staggering", anytime_distance(lengths, step, same_step=False)[-1]),
            ("pre-roll", delays.distance),
        ):
            key = f"{name}: {way}"
            if key in rows:
                continue
            ages = live_ages(name, settings, way, delays, step)
            group, share = groups(lengths, most=max(8, len(ages) // 8))
            distance, chance = measure(ages, group, share)
            rows[key] = {
                "environment": name,
                "way": way,
                "copies": len(ages),
                "step": 0 if way == "pre-roll" else step,
                "distance": round(distance, 3),
                "noise": round(chance, 3),
                "computed": round(float(computed), 4),
            }
            print(f"live: {rows[key]}", flush=True)
            save(results)


def live_ages(name: str, settings: dict[str, Any], way: str, delays: Delays, step: int) -> np.ndarray:
    """Run real copies to this time and return their ages."""
    found = []
    for batch in range(settings.get("batches", 4)):
        envs, policy = live_copies(name, settings, copies=64)
        rng = np.random.default_rng([SEED, batch])
        if way == "pre-roll":
            envs = PhaseMonitor(envs, warn=False)
            pre_roll(envs, delays, policy, seed=SEED + 1000 * batch)
            found.append(envs._tracker.ages.copy())
        else:
            if way != "nothing":
                envs = StaggeredVectorEnv(envs, "auto" if way == "anytime staggering" else delays)
            observations, _ = envs.reset(seed=SEED + 1000 * batch)
            age, ended = np.ones(envs.num_envs, dtype=np.int64), np.zeros(envs.num_envs, dtype=bool)
            for _ in range(step - 1):
                observations, _, terminated, truncated, _ = envs.step(policy.act(observations, rng))
                age = np.where(ended, 1, age + 1)
                ended = terminated | truncated
            found.append(age)
        envs.close()
    return np.concatenate(found)


def live_copies(name: str, settings: dict[str, Any], copies: int) -> tuple[Any, Any]:
    if name in ("Hopper-v5", "Humanoid-v5"):
        envs: Any = EnvPoolVectorEnv(name, copies)
    else:
        if "Bullet" in name:
            import pybullet_envs_gymnasium  # noqa: F401
        envs = gymnasium.make_vec(name, copies, vectorization_mode="sync", **settings.get("make", {}))
    if settings["policy"] == "uniform":
        return envs, UniformPolicy(envs.single_action_space)
    return envs, random_gaussian_policy(
        envs.single_observation_space.shape[0], envs.single_action_space.shape, seed=SEED
    )


def bell(mean: int, deviation: int) -> np.ndarray:
    return np.maximum(2, np.round(np.random.default_rng(SEED).normal(mean, deviation, 100_000))).astype(int)


def save(results: dict[str, Any]) -> None:
    results["made"] = {"command": "python benchmarks/league.py", "seed": SEED, "steadyrl": version("steadyrl")}
    OUT.write_text(json.dumps(results))


PARTS = {"cells": run_cells, "relock": run_relock, "live": run_live, "figure": draw_figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"lengths, {', '.join(PARTS)}; all by default")
    wanted = parser.parse_args().parts or ["lengths", *PARTS]
    results = json.loads(OUT.read_text()) if OUT.exists() else {}
    if "lengths" in wanted:
        collect_lengths()
    for part in wanted:
        if part in PARTS:
            PARTS[part](results)


if __name__ == "__main__":
    sys.exit(main())
