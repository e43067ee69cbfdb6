"""Fair statistics: bias, coverage of the intervals, and cost.

    python benchmarks/fair.py                     all of it, about half an hour on two cores
    python benchmarks/fair.py coverage            parts, by name: coverage, log, cartpole, hopper
    python benchmarks/fair.py coverage --rounds 200   fewer repeats

Streams are drawn from distributions of lengths and rewards whose mean return is known exactly; each repeat is fed to
`FairStatistics`. Results go to benchmarks/results/fair.json, and as tables to fair.md, with command
and versions.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ratios import SEED, Part, main
from steadyrl import EnvPoolVectorEnv, EpisodeLengths
from steadyrl.lengths.finished_bias import finished_mean
from steadyrl.live.fair_statistics import FairStatistics
from steadyrl.wrappers.record_fair_statistics import RecordFairStatistics

Array = NDArray[np.float64]
LEVEL = 0.9
LOWEST, HIGHEST = 0.87, 0.93
REPEATS = 1000
COST = 0.02
_SCALES = 10.0 ** (np.arange(50) // 10 % 4)


def per_step(length: int, rng: np.random.Generator) -> Array:
    return np.ones(length)


def noisy_penalty(length: int, rng: np.random.Generator) -> Array:
    """-1 a step with noise, and -20 for a fall before step 200."""
    rewards = rng.normal(-1.0, 0.5, length)
    rewards[-1] -= 20.0 * (length < 200)
    return rewards


def only_at_end(length: int, rng: np.random.Generator) -> Array:
    """1 in the last step with probability length / 200."""
    rewards = np.zeros(length)
    rewards[-1] = rng.random() < length / 200
    return rewards


def scaled(length: int, rng: np.random.Generator) -> Array:
    """About 1 in the first ten steps, then about 10, 100, 1000, and 1 again."""
    return _SCALES[:length] * rng.normal(1.0, 0.5, length)


def scaled_mean(length: Array) -> Array:
    return np.append(0.0, np.cumsum(_SCALES))[length.astype(int)]


def lucky_episode(length: int, rng: np.random.Generator) -> Array:
    """All rewards of an episode are multiplied by one lognormal number."""
    return np.full(length, rng.lognormal(0.0, 1.0))


@dataclass(frozen=True)
class Setting:
    """A stream whose mean return is known."""

    name: str
    lengths: Array
    """P(L = l), l = 0, 1, ..."""
    num_envs: int
    steps: int
    rewards: Callable[[int, np.random.Generator], Array] = per_step
    mean_return: Callable[[Array], Array] = lambda length: length
    """Mean return of episodes of each length."""
    start: str = "together"
    cuts: float = 0.0
    """Probability that a running episode is cut short in a step."""
    same_step: bool = True

    @property
    def truth(self) -> float:
        """The mean return of an episode, exactly."""
        return float(self.lengths @ self.mean_return(np.arange(len(self.lengths), dtype=float)))

    def draw(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], Array, Any, Any]:
        """Return the ages before the first step, and rewards, ends and cuts of all steps."""
        shape = self.steps, self.num_envs
        rewards, ended, cut = np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        ages = np.ones(self.num_envs, dtype=np.int64)
        drawn = rng.choice(len(self.lengths), p=self.lengths, size=(self.num_envs, 64))
        longer = np.arange(len(self.lengths)) * self.lengths  # an episode met at a random time
        for i in range(self.num_envs):
            t = number = 0
            if self.start == "steady":
                drawn[i, 0] = rng.choice(len(longer), p=longer / longer.sum())
                ages[i] = rng.integers(1, drawn[i, 0] + 1)
            first = int(ages[i])
            while t < self.steps:
                length = int(drawn[i, number] if number < 64 else rng.choice(len(self.lengths), p=self.lengths))
                left = length - first + 1
                until = int(rng.geometric(self.cuts)) if self.cuts else left
                taken = min(left, until, self.steps - t)
                rewards[t : t + taken, i] = self.rewards(length, rng)[first - 1 : first - 1 + taken]
                if taken == min(left, until):
                    (ended if left <= until else cut)[t + taken - 1, i] = True
                t, first, number = t + taken + (not self.same_step), 1, number + 1
        return ages, rewards, ended, cut


def uniform(low: int, high: int) -> Array:
    return np.append(np.zeros(low), np.full(high - low + 1, 1 / (high - low + 1)))


def two_lengths(short: int = 50, long: int = 400) -> Array:
    probabilities = np.zeros(long + 1)
    probabilities[[short, long]] = 0.5
    return probabilities


def geometric(mean: float, longest: int) -> Array:
    """Falls at a constant hazard, with a time limit."""
    probabilities = np.append(0.0, (1 - 1 / mean) ** np.arange(longest) / mean)
    probabilities[-1] += 1 - probabilities.sum()
    return probabilities


def lognormal(median: float, sigma: float, longest: int) -> Array:
    edges = np.log(np.arange(1, longest + 1) / median) / sigma
    below = np.array([0.0, *(0.5 * (1 + np.vectorize(_erf)(edges / np.sqrt(2))))])
    probabilities = np.append(0.0, np.diff(below))
    probabilities[-1] += 1 - probabilities.sum()
    return probabilities


def pareto(shortest: int, index: float, longest: int) -> Array:
    """P(L > l) = (shortest / l) ** index from the shortest length on."""
    above = np.append(np.ones(shortest), (shortest / np.arange(shortest, longest)) ** index)
    return np.append(0.0, -np.diff(np.append(above, 0.0)))


def _erf(x: float) -> float:
    from math import erf

    return erf(x)


def _normal(mean: float, deviation: float, longest: int) -> Array:
    weights = np.exp(-0.5 * ((np.arange(longest + 1) - mean) / deviation) ** 2)
    weights[0] = 0.0
    return weights / weights.sum()


SETTINGS = (
    Setting("in lockstep: lengths 50 or 400", two_lengths(), 64, 600),
    Setting("at steady state: lengths 50 or 400", two_lengths(), 64, 300, start="steady"),
    Setting("with cuts, NEXT_STEP: lengths 50 or 400", two_lengths(), 64, 600, cuts=1 / 300, same_step=False),
    Setting("few environments (8): lengths 50 or 400", two_lengths(), 8, 1500),
    Setting("few environments (4): constant hazard", geometric(40, 400), 4, 800),
    Setting("one environment: constant hazard", geometric(40, 400), 1, 2000),
    Setting("heavy tails: lognormal lengths", lognormal(20, 1.0, 2000), 64, 400),
    Setting(
        "heavy tails: lognormal returns",
        uniform(10, 30),
        64,
        200,
        rewards=lucky_episode,
        mean_return=lambda length: length * np.exp(0.5),
    ),
    Setting(
        "rewards at the end only",
        uniform(10, 150),
        32,
        200,
        rewards=only_at_end,
        mean_return=lambda length: length / 200,
    ),
    Setting(
        "negative rewards, at steady state",
        _normal(200, 40, 400),
        16,
        300,
        rewards=noisy_penalty,
        mean_return=lambda length: -length - 20 * (length < 200),
        start="steady",
    ),
    Setting("mean length near the window, in lockstep", uniform(50, 250), 64, 260),
    Setting("mean length near the window, at steady state", uniform(50, 250), 64, 150, start="steady", same_step=False),
    Setting("window of one mean length, constant hazard", geometric(60, 1000), 64, 60, start="steady"),
    Setting("cuts at steady state, few environments (8)", two_lengths(20, 60), 8, 400, start="steady", cuts=1 / 50),
    Setting("window of three mean lengths, constant hazard, in lockstep", geometric(20, 400), 64, 60),
    Setting(
        "heavy tails: Pareto lengths, with cuts, NEXT_STEP", pareto(10, 2.5, 2000), 64, 300, cuts=0.01, same_step=False
    ),
    Setting("rewards of 1 to 1000, by age", uniform(5, 45), 64, 60, rewards=scaled, mean_return=scaled_mean),
)


def repeat(setting: Setting, number: int) -> Any:
    """Return the report on one stream."""
    ages, rewards, ended, cut = setting.draw(np.random.default_rng([SEED, number]))
    found = FairStatistics(setting.num_envs, same_step=setting.same_step, ages=ages)
    if setting.cuts:
        for row in zip(rewards, ended, cut, strict=True):
            found.update(*row)
    else:
        found.update_many(rewards, ended)
    return found.report(LEVEL)


def measure(setting: Setting, repeats: int) -> dict[str, Any]:
    reports = [repeat(setting, number) for number in range(repeats)]
    truth, length = setting.truth, float(setting.lengths @ np.arange(len(setting.lengths))) + 1
    values = np.array([report.mean_return.value for report in reports])
    finished = np.array([report.finished_only for report in reports])
    covers = [report.mean_return.low <= truth <= report.mean_return.high for report in reports]
    lengths = [report.average_episode_length for report in reports]
    width = [(report.mean_return.high - report.mean_return.low) / 2 / abs(truth) for report in reports]
    half = statistics.median(width)
    row = {
        "name": setting.name,
        "environments": setting.num_envs,
        "steps": setting.steps,
        "truth": round(truth, 4),
        "bias": round(float(values.mean()) / truth - 1, 4),
        "bias_standard_error": round(float(values.std()) / abs(truth) / repeats**0.5, 4),
        "finished_only_bias": round(float(np.nanmean(finished)) / truth - 1, 4),
        "coverage": round(float(np.mean(covers)), 3),
        "coverage_of_length": round(float(np.mean([one.low <= length <= one.high for one in lengths])), 3),
        "half_width": round(half, 4) if np.isfinite(half) else None,
        "unresolved": round(float(np.mean([report.unresolved for report in reports])), 4),
        "repeats": repeats,
    }
    print(row, flush=True)
    return row


def coverage(repeats: int) -> list[dict[str, Any]]:
    return [measure(setting, repeats) for setting in SETTINGS]


def evaluation() -> Array:
    """A policy that falls within 20 to 180 steps in half of its episodes, and else goes on to 1,100: 600 on average."""
    probabilities = np.zeros(1101)
    probabilities[20:181] = 0.5 / 161
    probabilities[1100] = 0.5
    return probabilities


def log(repeats: int) -> list[dict[str, Any]]:
    """What a log of finished episodes shows (astooke/rlpyt#93: about 100 where the truth is about 600), and fair."""
    found = []
    lengths = EpisodeLengths(np.append(0.0, evaluation()))
    for start, times in (("together", (300, 1000, 1150)), ("steady", (300, 1000))):
        exact = finished_mean(lengths, 1150, start=start, same_step=True)  # type: ignore[arg-type]
        for steps in times:
            name = "in lockstep" if start == "together" else "at steady state"
            setting = Setting(f"lengths 20 to 180 or 1100, {name}", evaluation(), 64, steps, start=start)
            row = measure(setting, max(repeats // 10, 20))
            found.append(row | {"finished_only_exactly": round(float(exact[steps]) / setting.truth - 1, 4)})
    return found


def cost_of(make: Callable[[], Any], name: str, rounds: int) -> list[dict[str, Any]]:
    """Measure what share of a step the wrapper takes, with both clocks on one set of environments."""
    envs, inside = make(), [0.0]
    plain = envs.step

    def timed(actions: Any) -> Any:
        begin = time.perf_counter()
        result = plain(actions)
        inside[0] += time.perf_counter() - begin
        return result

    envs.step = timed
    wrapped = RecordFairStatistics(envs)
    wrapped.reset(seed=SEED)
    envs.single_action_space.seed(SEED)
    actions = [np.array([envs.single_action_space.sample() for _ in range(envs.num_envs)]) for _ in range(64)]
    shares = []
    for _ in range(rounds):
        inside[0], begin = 0.0, time.perf_counter()
        for step in range(256):
            wrapped.step(actions[step % 64])
        shares.append(1 - inside[0] / (time.perf_counter() - begin))
    begin = time.perf_counter()
    wrapped.report()
    seconds = time.perf_counter() - begin
    row = {"name": name, "share_of_a_step": round(statistics.median(shares), 4), "at_most": COST}
    row |= {"lowest": round(min(shares), 4), "highest": round(max(shares), 4), "report_ms": round(1e3 * seconds, 1)}
    print(row, flush=True)
    envs.close()
    return [row]


def cartpole(repeats: int) -> list[dict[str, Any]]:
    make = partial(gymnasium.make_vec, "CartPole-v1", num_envs=64, vectorization_mode="sync")
    return cost_of(make, "64 CartPole-v1 (SyncVectorEnv)", 21)


def hopper(repeats: int) -> list[dict[str, Any]]:
    return cost_of(partial(EnvPoolVectorEnv, "Hopper-v5", 256, seed=SEED), "256 Hopper-v5 (EnvPool)", 21)


PACKAGES = ("steadyrl", "numpy", "scipy", "gymnasium", "envpool")
PARTS: dict[str, Part] = {"coverage": coverage, "log": log, "cartpole": cartpole, "hopper": hopper}


def table(results: dict[str, Any]) -> str:
    lines = ["# Fair statistics: bias, coverage, cost", "", "Made by `python benchmarks/fair.py`.", ""]
    for part, about in (("coverage", f"{LEVEL:.0%} intervals, {LOWEST:.0%} to {HIGHEST:.0%} wanted"), ("log", "")):
        if part in results:
            lines += [f"## {part.capitalize()}{': ' + about if about else ''}", ""]
            lines += ["| stream | environments | steps | finished only | fair | coverage | half width | unresolved |"]
            lines += ["|---|---|---|---|---|---|---|---|"]
            for r in results[part]["results"]:
                half = "open" if r["half_width"] is None else f"{r['half_width']:.1%}"
                bias = f"{r['bias']:+.2%} (standard error {r['bias_standard_error']:.2%})"
                lines.append(
                    f"| {r['name']} | {r['environments']} | {r['steps']:,} | {r['finished_only_bias']:+.1%} | {bias} | "
                    f"{r['coverage']:.1%} | {half} | {r['unresolved']:.2%} |"
                )
            lines.append("")
    costs = [r for part in ("cartpole", "hopper") if part in results for r in results[part]["results"]]
    if costs:
        lines += [
            "## Cost",
            "",
            "| what | share of a step | at most | lowest to highest | a report |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {r['name']} | {r['share_of_a_step']:.2%} | {r['at_most']:.0%} | {r['lowest']:.2%} to "
            f"{r['highest']:.2%} | {r['report_ms']} ms |"
            for r in costs
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main("fair", __doc__, PARTS, PACKAGES, table, rounds=REPEATS)
