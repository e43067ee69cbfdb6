"""The league: real environments x ways to de-synchronise copies, by measured speed and waste.

    python benchmarks/league.py            all of it (collects episodes once, then some ten minutes)
    python benchmarks/league.py lengths    collect episodes only
    python benchmarks/league.py cells live figure

*Ages depend on the ends of episodes alone*, so in `cells` each of many copies lives through lengths of real episodes,
drawn from those collected, under the very code that cuts, delays or perturbs (Restagger, Delays, Perturbation); a cell's
measured distance is that of their ages from the stationary ones, free of the bias of finitely many copies. Beside it
the computed one. `live` then runs the wrappers on the real simulators, with fewer copies. Time is counted in steps of
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

import numpy as np

from steadyrl import Delays, EpisodeLengths, Perturbation, collect_episodes, design_delays, uniform_delays
from steadyrl.cuts import cut, first_cut_distance, stagger_distance
from steadyrl.delays import delayed_distance
from steadyrl.renewal import phase_distance
from steadyrl.restaggering import Restagger

SEED = 0
TOLERANCE = 0.01
RESULTS = Path(__file__).parent / "results"
LENGTHS = RESULTS / "league_lengths.json"
OUT = RESULTS / "league.json"

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "HopperBulletEnv-v0": {"policy": "gaussian", "episodes": 20_000, "limit": 1000},
    "HumanoidBulletEnv-v0": {"policy": "gaussian", "episodes": 10_000, "limit": 1000},
    "HalfCheetahBulletEnv-v0": {"policy": "gaussian", "episodes": 8, "limit": 1000},
    "Hopper-v5": {"policy": "gaussian", "episodes": 20_000, "limit": 1000},
    "Humanoid-v5": {"policy": "gaussian", "episodes": 10_000, "limit": 1000},
    "CartPole-v1": {"policy": "uniform", "episodes": 50_000, "limit": 500},
    "Acrobot-v1": {"policy": "uniform", "episodes": 5_000, "limit": 500},
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
    staggered: Any = None  # delays for Restagger
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
    found.append(Way("auto", None, staggered="auto"))
    return found


def block_delays(rollout: int = 32, copies: int = 16) -> Delays:
    """Sample Factory's: copy i of a worker runs rollout * (i + {0, ..., 4}) random actions; the reset is one step more."""
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
        restagger = Restagger(copies, way.staggered, same_step=False, rng=rng, tolerance=TOLERANCE, n_steps=1)
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
            now = restagger.cuts(done)
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


def groups(lengths: EpisodeLengths, most: int = 100) -> tuple[np.ndarray, np.ndarray]:
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
    late = [t for t, d, e in zip(times, measured, noise, strict=True) if d - e > TOLERANCE]
    found["measured_ael"] = _ael(
        0 if not late else math.inf if late[-1] == times[-1] else _next(times, late[-1]), lengths
    )
    if way.computed is not None:
        computed = way.computed[np.array(times) - 1]
        found["computed"] = [round(float(x), 5) for x in computed]
        found["computed_ael"] = _ael(settled(way.computed), lengths)
        found["agrees"] = agrees(measured, noise, computed, share)
    return found


def agrees(measured: list[float], noise: list[float], computed: np.ndarray, share: np.ndarray) -> bool:
    """Whether measured and computed distances differ by no more than chance, and what grouping ages may hide."""
    hidden = float(share.max()) if len(share) == 100 else 0.0
    return all(abs(m - c) <= math.hypot(e, 0.004) + hidden for m, e, c in zip(measured, noise, computed, strict=True))


def settled(computed: np.ndarray | None) -> float:
    """The first time from which the computed distance stays below the tolerance."""
    if computed is None:
        return math.inf
    above = np.flatnonzero(computed >= TOLERANCE)
    if not len(above):
        return 0
    return math.inf if above[-1] == len(computed) - 1 else float(above[-1] + 2)


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
        for way in ways(lengths, settings["limit"], steps):
            if way.name in rows:
                continue
            begin = time.perf_counter()
            rows[way.name] = cell(way, lengths, steps, copies)
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
        Way("auto", None, staggered="auto"),
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


def bell(mean: int, deviation: int) -> np.ndarray:
    return np.maximum(2, np.round(np.random.default_rng(SEED).normal(mean, deviation, 100_000))).astype(int)


def draw_figures(results: dict[str, Any]) -> None:
    """Redraw docs/ from the result file."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "steadyrl"
    from matplotlib import pyplot as plt

    docs = Path(__file__).parent.parent / "docs"
    figure, axes = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    for name, curve in results["relock"]["curves"].items():
        axes[0].plot(curve["times"], curve["distance"], label=name)
        axes[1].plot(curve["times"], curve["waste"], label=name)
    for axis in axes:
        axis.axvline(results["relock"]["switch"], color="grey", linestyle=":")
    axes[0].set_ylabel("distance from steady state")
    axes[1].set_ylabel("share of steps wasted so far")
    axes[1].set_xlabel("step; E[T] goes from 20 to 500 at the dotted line")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(docs / "cures-relock.svg", metadata={"Date": None})
    plt.close(figure)

    names = [way for way in next(iter(results["cells"].values())) if way != "_"]
    figure, axis = plt.subplots(figsize=(10, 5))
    never = 60.0
    for row, (environment, cells) in enumerate(results["cells"].items()):
        for i, way in enumerate(names):
            value = cells[way]["measured_ael"]
            shown = never if value is None else max(value, 0.05)
            axis.scatter(
                shown,
                row,
                color=f"C{i}",
                marker="x" if value is None else "o",
                label=way if row == 0 else None,
                alpha=0.8,
            )
    axis.set_xscale("log")
    axis.set_yticks(range(len(results["cells"])), [name.split("/")[-1] for name in results["cells"]])
    axis.axvline(3, color="grey", linestyle=":")
    axis.set_xlabel("AEL until the measured distance stays below 1% (x: not within 30; at the left edge: at once)")
    axis.legend(frameon=False, bbox_to_anchor=(1, 1), loc="upper left", fontsize=8)
    figure.tight_layout()
    figure.savefig(docs / "league.svg", metadata={"Date": None})
    plt.close(figure)
    (docs / "league.md").write_text(table(results, names))


def table(results: dict[str, Any], names: list[str]) -> str:
    """The league as a page."""
    lines = [
        "# The league: how fast each way brings copies to steady state",
        "",
        "AEL until the measured distance of the copies' ages from the stationary ones stays below 1%, within its sampling "
        "error (in brackets: computed). Made by `python benchmarks/league.py`, seed 0; the numbers are in "
        "benchmarks/results/league.json. Copies live through lengths of real episodes; see the script's first lines, and the "
        "live runs below.",
        "",
        "![The league](league.svg)",
        "",
        "| environment | E[T] | CV | " + " | ".join(names) + " |",
        "|---|---|---|" + "---|" * len(names),
    ]
    for environment, cells in results["cells"].items():
        about = cells["_"]
        row = [environment, f"{about['E[T]']:.4g}", f"{about['CV']:.3g}"]
        lines.append("| " + " | ".join(row + [_shown(cells[way]) for way in names]) + " |")
    some = next(iter(results["cells"].values()))
    waste = ["", "", ""] + [f"{some[way]['waste']:.0%}" for way in names]
    waste[0] = "wasted for ever (first row's environment)"
    lines.append("| " + " | ".join(waste) + " |")
    disagree = [
        f"{environment}, {way}"
        for environment, cells in results["cells"].items()
        for way in names
        if cells[way].get("agrees") is False
    ]
    lines += [
        "",
        f"Measured and computed distances agree within sampling error in {'every cell' if not disagree else 'all but: ' + '; '.join(disagree)}.",
    ]
    if "live" in results:
        lines += [
            "",
            "## Live",
            "",
            "| environment | way | copies | at step | distance | chance | computed |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in results["live"].values():
            lines.append(
                "| "
                + " | ".join(
                    str(row[key]) for key in ("environment", "way", "copies", "step", "distance", "noise", "computed")
                )
                + " |"
            )
    return "\n".join(lines) + "\n"


def _shown(found: dict[str, Any]) -> str:
    def text(value: float | None) -> str:
        return "never" if value is None else f"{value:.3g}"

    return text(found["measured_ael"]) + (f" ({text(found['computed_ael'])})" if "computed" in found else "")


def save(results: dict[str, Any]) -> None:
    results["made"] = {"command": "python benchmarks/league.py", "seed": SEED, "steadyrl": version("steadyrl")}
    OUT.write_text(json.dumps(results))


PARTS = {"cells": run_cells, "relock": run_relock, "figure": draw_figures}


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
