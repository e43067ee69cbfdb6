"""Figures of the diagnosis: coverage, the paper's environments, prediction against brute force, cost.

    python benchmarks/diagnosis.py [coverage coverage_again kinds early paper prediction efficiency times]

Each part writes its figures to benchmarks/results/diagnosis.json as it ends; parts that are not named keep theirs.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import steadyrl
from steadyrl.common.storage import write_atomically
from steadyrl.diagnosis.analysis import diagnose
from steadyrl.diagnosis.collection import gather
from steadyrl.lengths.confidence import crossing
from steadyrl.rollouts.episodes import EpisodeWork
from steadyrl.rollouts.planning import Options, make_plan

RESULTS = Path(__file__).parent / "results" / "diagnosis.json"


class Leaning:
    """A second policy for Discrete actions: the first action with probability 0.7, else evenly."""

    def __init__(self, actions):
        self.actions = actions

    def act(self, observations, rng):
        """Return one action for each observation."""
        even = rng.integers(0, self.actions, len(observations))
        return np.where(rng.random(len(observations)) < 0.7, 0, even)


def coverage():
    """Nominal 90% intervals over 1,000 repeats of gallery.self_loops(0.9): 1,000 episodes, tolerance 0.05."""
    process, policy = steadyrl.gallery.self_loops(0.9)
    rho = steadyrl.stationary_distribution(process, policy)
    tail = 0.1 * 0.9 ** np.arange(500)  # T - 1 is geometric
    truth = steadyrl.EpisodeLengths(np.append([0, 0], tail / tail.sum()))
    rng = np.random.default_rng(0)
    means, repeats, episodes = 0, 1000, 1000
    for _ in range(repeats):
        lengths = rng.geometric(0.1, episodes)  # Gymnasium's; the running state is seen l times, the end once
        found = steadyrl.steady_state_mean(lengths.astype(float), lengths)
        means += found.low <= rho[1] <= found.high
    covered = _cover(truth, episodes, 0.05, repeats, rng)
    return {"steady_state_mean": means / repeats, **covered, "repeats": repeats, "episodes": episodes}


def coverage_again():
    """The same intervals with another seed: a check, since choices were made while looking at the first."""
    tail = 0.1 * 0.9 ** np.arange(500)
    truth = steadyrl.EpisodeLengths(np.append([0, 0], tail / tail.sum()))
    return {**_cover(truth, 1000, 0.05, 1000, np.random.default_rng(1)), "repeats": 1000, "episodes": 1000, "seed": 1}


def kinds():
    """The same at a tolerance of 0.01 for other lengths and numbers of episodes, over 200 repeats; rows stay."""
    before = json.loads(RESULTS.read_text()).get("kinds", {}) if RESULTS.exists() else {}
    rows = before.get("figures", {}).get("rows", [])
    have = {(row["lengths"], row["episodes"]) for row in rows}
    for name, truth in LENGTHS.items():
        for episodes in (300, 1000, 4000):
            if (name, episodes) in have:
                continue
            covered = _cover(truth, episodes, 0.01, 200, np.random.default_rng(episodes))
            rows.append({"lengths": name, "episodes": episodes, **covered})
            print(rows[-1], flush=True)
            _keep("kinds", {"rows": rows, "repeats": 200})
    return {"rows": rows, "repeats": 200}


def early():
    """The band of the phase distance before one mean episode length: how often it holds the truth, and how far off."""
    at_means, repeats, rows = (0.25, 0.5, 0.75), 100, []
    for name, truth in LENGTHS.items():
        at = (np.array(at_means) * truth.mean).astype(int)
        distance = steadyrl.phase_distance(truth, at[-1])[at]
        for episodes in (50, 300, 1000, 4000):
            rng, hits, missed = np.random.default_rng(episodes), np.zeros(len(at)), []
            for _ in range(repeats):
                sample = steadyrl.EpisodeLengths(rng.multinomial(episodes, truth.probabilities) / episodes)
                c = steadyrl.bootstrap(sample, episodes, rng=rng, steps=at[-1], resamples=199)
                by = np.maximum(c.distance_low[at] - distance, distance - c.distance_high[at])
                hits += by <= 0
                missed.append(max(float(by.max()), 0.0))
            covered = dict(zip((f"at {m} AEL" for m in at_means), (hits / repeats).tolist(), strict=True))
            most = float(np.quantile(missed, 0.95))
            rows.append({"lengths": name, "episodes": episodes, **covered, "largest miss, 95% of samples": most})
            print(rows[-1], flush=True)
    return {"rows": rows, "repeats": repeats}


def _cover(truth, episodes, tolerance, repeats, rng):
    """How often intervals from so many episodes hold the truth: E[T], CV, t*, and d at 1, 2 and 3 E[T]."""
    at = (np.array([1, 2, 3]) * truth.mean).astype(int)
    time_, distance = steadyrl.phase_mixing_time(truth, tolerance), steadyrl.phase_distance(truth, at[-1])[at]
    crossing_ = crossing(steadyrl.phase_distance(truth, int(time_)), tolerance)  # between two steps
    hits = np.zeros(7)
    for _ in range(repeats):
        sample = steadyrl.EpisodeLengths(rng.multinomial(episodes, truth.probabilities) / episodes)
        c = steadyrl.bootstrap(sample, episodes, rng=rng, tolerance=tolerance, steps=at[-1], resamples=199)
        for i, (interval, value) in enumerate(
            (
                (c.average_episode_length, truth.mean),
                (c.coefficient_of_variation, truth.cv),
                (c.mixing_time, time_),
                (c.mixing_time, crossing_),
            )
        ):
            hits[i] += interval.low <= value <= interval.high
        hits[4:] += (c.distance_low[at] <= distance) & (distance <= c.distance_high[at])
    names = (
        "average_episode_length",
        "coefficient_of_variation",
        "mixing_time",
        "mixing_time_interpolated",
        "distance_at_1_AEL",
        "distance_at_2_AEL",
        "distance_at_3_AEL",
    )
    return dict(zip(names, (hits / repeats).tolist(), strict=True))


def _shape(weights):
    weights = np.append(0.0, weights[1:])
    return steadyrl.EpisodeLengths(weights / weights.sum())


def _bell(middle, width, size):
    return np.exp(-0.5 * ((np.arange(size) - middle) / width) ** 2) / width


LENGTHS = {
    "geometric, mean 11": _shape(np.append(0.0, 0.9 ** np.arange(400))),
    "geometric, mean 51": _shape(np.append(0.0, 0.98 ** np.arange(1500))),
    "uniform on 10, ..., 30": _shape((np.arange(31) >= 10).astype(float)),
    "normal, 25 +- 6": _shape(_bell(25, 6, 60)),
    "normal, 20 +- 2": _shape(_bell(20, 2, 60)),
    "normal, 200 +- 50": _shape(_bell(200, 50, 400)),
    "bimodal, 15 +- 3 and 50 +- 8": _shape(_bell(15, 3, 90) + _bell(50, 8, 90)),
}


def paper():
    """The paper's three environments under its policy: mixing times in AEL, raw and perturbed."""
    said = {
        "HopperBulletEnv-v0": (2, None),
        "HumanoidBulletEnv-v0": (24, 3),
        "HalfCheetahBulletEnv-v0": (None, 3),
    }
    result = {}
    for name, (raw, perturbed) in said.items():
        found = diagnose(name, "gaussian", episodes=4000 if raw else 60, tolerance=0.01)
        loose = steadyrl.phase_mixing_time(found.lengths, 0.02) / found.lengths.mean
        result[name] = {
            "average_episode_length": found.lengths.mean,
            "cv": found.lengths.cv,
            "raw_at_1_percent": _finite(found.mixing_time.value / found.lengths.mean),
            "raw_at_2_percent": _finite(loose),
            "perturbed_at_1_percent": _finite(found.perturbed_mixing_time / found.lengths.mean),
            "paper_raw": raw,
            "paper_perturbed": perturbed,
            "recommended": found.recommendation.strategy,
            "recommended_steady_after": found.recommendation.steady_after / found.lengths.mean,
        }
        print(name, result[name], flush=True)
    return result


ENVIRONMENTS = [
    ("CartPole-v1", ("uniform", Leaning(2))),
    ("FrozenLake-v1", ("uniform", Leaning(4))),
    ("FrozenLake8x8-v1", ("uniform", Leaning(4))),
    ("Blackjack-v1", ("uniform", Leaning(2))),
    ("Hopper-v5", ("uniform", "gaussian")),
    ("Walker2d-v5", ("uniform", "gaussian")),
    ("Humanoid-v5", ("uniform", "gaussian")),
    ("InvertedPendulum-v5", ("uniform", "gaussian")),
    ("InvertedDoublePendulum-v5", ("uniform", "gaussian")),
    ("InvertedPendulumBulletEnv-v0", ("uniform", "gaussian")),
    ("InvertedDoublePendulumBulletEnv-v0", ("uniform", "gaussian")),
    ("HopperBulletEnv-v0", ("uniform", "gaussian")),
    ("Walker2DBulletEnv-v0", ("uniform", "gaussian")),
    ("LunarLander-v3", ("uniform", Leaning(4))),
]
LEVEL = 0.25  # brute force cannot see small distances: n ages among K rollouts look sqrt(n / (2 pi K)) apart at best
STEPS = 120_000  # of one brute-force run
MORE = {"FrozenLake8x8-v1": 1_200_000, "LunarLander-v3": 600_000}  # where episodes are long and steps cheap
BULLET = 40_000  # where steps are dear and episodes short


def prediction():
    """t* from lengths against t* measured on the ages of rollouts, at a distance of 0.25; measured rows stay."""
    before = json.loads(RESULTS.read_text()).get("prediction", {}) if RESULTS.exists() else {}
    rows = [row for row in before.get("figures", {}).get("rows", []) if row.get("measured")]
    have = {(row["environment"], row["policy"]) for row in rows}
    for name, policies in ENVIRONMENTS:
        for policy in policies:
            label = policy if isinstance(policy, str) else "leaning"
            if (name, label) in have:
                continue
            try:
                rows.append(_predict(name, policy, label))
            except steadyrl.SteadyrlError as error:
                rows.append({"environment": name, "policy": label, "why": str(error)[:200]})
            print(rows[-1], flush=True)
            _keep("prediction", _summary(rows))
    return _summary(rows)


def _summary(rows):
    told = [row for row in rows if row.get("measured")]
    good = sum(abs(row["predicted"] / row["measured"] - 1) <= 0.2 for row in told)
    environments = len({row["environment"] for row in told})
    return {"rows": rows, "told": len(told), "environments": environments, "within_20_percent": good, "distance": LEVEL}


def _predict(name, policy, label):
    # one policy for both: a random Gaussian one depends on the seed
    policy = make_plan(name, policy, EpisodeWork(1), Options()).task.policy
    backend = "serial" if "Bullet" in name else "auto"  # little work: starting processes would take longer
    found = gather(name, policy, lambda lengths: False, at_most=1000, backend=backend)
    lengths = steadyrl.EpisodeLengths.from_gymnasium(found.lengths)
    predicted = steadyrl.phase_mixing_time(lengths, LEVEL)
    row = {
        "environment": name,
        "policy": label,
        "average_episode_length": lengths.mean,
        "predicted": _finite(predicted),
    }
    budget = BULLET if "Bullet" in name else MORE.get(name, STEPS)
    rollouts = int(np.clip(budget / max(2 * predicted, 1), 0, 10_000)) if math.isfinite(predicted) else 0
    if rollouts < 10 * lengths.mean**0.5:
        return {**row, "measured": None, "why": f"brute force would need more than {budget:,} steps"}
    times = np.unique(np.linspace(1, 2 * predicted + 4, 80).astype(int))
    samples = steadyrl.collect_samples(name, policy, rollouts, times, seed=12345, backend=backend)
    stationary = np.append(0, steadyrl.EpisodeLengths.from_gymnasium(samples.episode_lengths.ravel()).survival[1:])
    stationary = stationary / stationary.sum()
    size = max(len(stationary), int(samples.ages.max()) + 1)
    target = np.append(stationary, np.zeros(size - len(stationary)))
    ages = [np.bincount(samples.ages[:, j], minlength=size) / rollouts for j in range(len(times))]
    distance = np.array([0.5 * np.abs(seen - target).sum() for seen in ages])
    above = np.flatnonzero(distance >= LEVEL)
    if not len(above) or above[-1] == len(times) - 1:
        return {**row, "measured": None, "why": f"the distance is {distance[-1]:.3f} at the end: too few rollouts"}
    a, b = above[-1], above[-1] + 1  # where the line between two times crosses the level
    measured = times[a] + (distance[a] - LEVEL) / (distance[a] - distance[b]) * (times[b] - times[a])
    return {**row, "measured": float(measured), "rollouts": rollouts}


def efficiency():
    """Environment steps for marginal means of HumanoidBulletEnv-v0 to t*: rollouts over renewal, same error."""
    found = gather("HumanoidBulletEnv-v0", "gaussian", lambda lengths: False, at_most=3000)
    lengths = steadyrl.EpisodeLengths.from_gymnasium(found.lengths)
    end = int(steadyrl.phase_mixing_time(lengths, 0.01))
    when = np.arange(1, end + 1)
    moments = steadyrl.marginal_moments(list(found.groups), when)
    variance = moments.second_moment - moments.mean**2  # what one rollout has at each time
    shown = (moments.stationary_deviation > 1e-6)[None] & (variance > 1e-12) & (moments.mean_error > 0)
    rollouts = float(np.mean(variance[shown]) / np.mean(moments.mean_error[shown] ** 2))  # for the same mean square
    each = np.where(shown, variance, 0).sum(axis=0) / np.maximum(
        np.where(shown, moments.mean_error**2, 0).sum(axis=0), 1e-300
    )
    each = each[shown.any(axis=0)]
    steps = float((found.lengths + 1).sum())
    return {
        "mixing_time": end,
        "episodes": len(found.lengths),
        "renewal_steps": steps,
        "rollouts_for_the_same_error": rollouts,
        "ratio_pooled": rollouts * end / steps,
        "ratio_median_over_values": float(np.median(each)) * end / steps,
        "ratio_smallest_over_values": float(each.min()) * end / steps,
    }


def times():
    """Seconds of `steadyrl diagnose`, end to end, start of Python and all."""
    result = {}
    for name, policy in (("CartPole-v1", "uniform"), ("Humanoid-v5", "gaussian")):
        began = time.time()
        command = [
            sys.executable,
            "-m",
            "steadyrl",
            "diagnose",
            name,
            "--policy",
            policy,
            "--num-envs",
            "256",
            "--json",
        ]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        result[name] = {"seconds": time.time() - began, "episodes": json.loads(text)["episodes"]}
        print(name, result[name], flush=True)
    return result


def _finite(value):
    return None if not math.isfinite(value) else float(value)


def main():
    parts = {
        "coverage": coverage,
        "coverage_again": coverage_again,
        "kinds": kinds,
        "early": early,
        "paper": paper,
        "prediction": prediction,
        "efficiency": efficiency,
        "times": times,
    }
    for name in sys.argv[1:] or parts:
        began = time.time()
        figures = parts[name]()
        seconds = time.time() - began
        _keep(name, figures, seconds=seconds)
        print(name, f"{seconds:.0f} s", flush=True)


def _keep(name, figures, **more):
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    command = f"python benchmarks/diagnosis.py {name}"
    results[name] = {"figures": figures, **more, "command": command, "python": platform.python_version()}
    write_atomically(RESULTS, json.dumps(results, indent=2).encode() + b"\n")


if __name__ == "__main__":
    main()
