"""Anytime-optimal staggering: how close it comes to the bound, with how many truncations, and what they cost.

    python benchmarks/stagger.py                 all of it
    python benchmarks/stagger.py bound few       parts: bound, few, change, resets, stall

- bound: 20,000 environments that live through the lengths of real episodes (the league's) and of five families, in
  SAME_STEP and NEXT_STEP: distance of the ages at 0.25 to 2 mean episode lengths beside the bound. Ages are compared
  in at most 100 groups of equal stationary share, without what chance adds for finitely many environments.
- few: 8 to 4,096 environments: largest difference of the distribution functions beside the best possible one, from
  the longest length to four mean lengths, over up to 128 seeds.
- change: after lengths change, beside what is possible from the ages at that moment.
- resets: resets per step, and the time they take, in the first three mean episode lengths, as it is and staggered.
- stall: the longest steps of a SubprocVecEnv whose environments are all reset together, and spread out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from league import as_lengths, groups, measure
from steadyrl import EnvPoolVectorEnv, EpisodeLengths, StaggerController, StaggeredVectorEnv
from steadyrl.lengths.anytime import anytime_distance, expected_truncations

SEED = 0
RESULTS = Path(__file__).parent / "results"
OUT = RESULTS / "stagger.json"
TIMES = (0.25, 0.5, 1.0, 1.5, 2.0)
COPIES = 20_000
REPEATS = 1024  # with few environments: so many of them in all


def families() -> dict[str, EpisodeLengths]:
    """Return the distribution of T of five families of lengths."""
    rng = np.random.default_rng(SEED)
    drawn = {
        "fixed, 200": np.full(10, 200),
        "normal, 200 +- 60": np.clip(np.rint(rng.normal(200, 60, 200_000)), 2, None).astype(int),
        "40 or 400": np.array([40, 400]),
        "geometric, 20": rng.geometric(1 / 20, 400_000) + 1,
        "uniform, 2 to 200": np.arange(2, 201),
    }
    return {name: EpisodeLengths.from_gymnasium(lengths) for name, lengths in drawn.items()}


def distributions() -> dict[str, EpisodeLengths]:
    counts = json.loads((RESULTS / "league_lengths.json").read_text())
    return families() | {name: as_lengths(found) for name, found in counts.items()}


def live(
    lengths: EpisodeLengths,
    num_envs: int,
    steps: int,
    *,
    same_step: bool,
    change: Any = None,
    running: bool = False,
    seed: int = SEED,
) -> Any:
    """Yield (time, ages, lengths of running episodes in the stream, controller).

    `change` is a time and the lengths from then on: of new episodes, and if `running` of running ones, too.
    """
    rng = np.random.default_rng(seed)

    def draw(law: EpisodeLengths, count: int) -> Any:
        edges = np.cumsum(law.probabilities)
        return np.searchsorted(edges / edges[-1], rng.random(count), side="right") - int(same_step)

    controller = StaggerController(num_envs, same_step=same_step, seed=seed)
    age, length = np.ones(num_envs, dtype=np.int64), draw(lengths, num_envs)
    restarting = np.zeros(num_envs, dtype=bool)
    for t in range(1, steps + 1):
        if running and change is not None and t == change[0]:
            length = np.maximum(draw(change[1], num_envs), age)
        yield t, age, length, controller
        law = lengths if change is None or t < change[0] else change[1]
        if same_step:
            done = age >= length
            over = done | controller.step(done)
            age = np.where(over, 1, age + 1)
            length[over] = draw(law, int(over.sum()))
        else:
            age = np.where(restarting, 1, age + 1)
            length[restarting] = draw(law, int(restarting.sum()))
            done = (age >= length) & ~restarting
            restarting = done | controller.step(done)


def in_stream(lengths: EpisodeLengths, same_step: bool) -> EpisodeLengths:
    return EpisodeLengths(lengths.probabilities[1:]) if same_step else lengths


def run_bound(results: dict[str, Any]) -> None:
    rows = results.setdefault("bound", {})
    for name, lengths in distributions().items():
        for same_step in (True, False):
            key = f"{name}, {'SAME_STEP' if same_step else 'NEXT_STEP'}"
            if key in rows:
                continue
            stream = in_stream(lengths, same_step)
            group, share = groups(stream)
            last = int(2 * stream.mean) + 1
            bound = anytime_distance(lengths, last, same_step=same_step)
            times = {max(int(c * stream.mean), 1): c for c in TIMES}
            row: dict[str, Any] = {}
            for t, ages, _, controller in live(lengths, COPIES, last, same_step=same_step):
                if t in times:
                    distance, chance = measure(ages, group, share)
                    row[f"{times[t]:g}"] = [round(float(x), 4) for x in (distance, bound[t - 1], chance)]
                cuts = controller.cuts
            rows[key] = {
                "at": row,
                "truncations": round(cuts / COPIES, 2),
                "expected": round(expected_truncations(lengths), 2),
                "mean": round(stream.mean, 2),
            }
            print(key, rows[key], flush=True)
            save(results)


def run_few(results: dict[str, Any]) -> None:
    rows = results.setdefault("few", {})
    for name, lengths in families().items():
        stream = in_stream(lengths, True)
        target = np.cumsum(stream.survival[1:]) / stream.mean
        for num_envs in (8, 16, 64, 256, 4096):
            found = []
            for seed in range(max(REPEATS // num_envs, 1)):
                for t, ages, _, _ in live(lengths, num_envs, int(4 * stream.mean), same_step=True, seed=seed):
                    if t > stream.longest and t % 3 == 0:
                        share = np.cumsum(np.bincount(ages, minlength=len(target) + 1)[1 : len(target) + 1]) / num_envs
                        found.append(np.abs(share - target).max())
            if found:
                rows.setdefault(name, {})[str(num_envs)] = round(float(np.mean(found)), 4)
        print(name, rows.get(name), flush=True)
        save(results)
    rows["best possible"] = {str(n): round(0.5 / n, 4) for n in (8, 16, 64, 256, 4096)}
    rows["independent"] = {str(n): round(0.8687 / n**0.5, 4) for n in (8, 16, 64, 256, 4096)}
    save(results)


def run_change(results: dict[str, Any]) -> None:
    """Lengths change once the ages are steady, for new episodes or for running ones, too.

    Beside the distance stands the smallest one that is possible from the ages at that moment for somebody who knows the
    new lengths; where only new episodes change, also the smallest for somebody who has to see a new episode end first.
    """
    known = families() | {f"fixed, {n}": EpisodeLengths.from_gymnasium([n]) for n in (20, 100, 500)}
    rows = results["change"] = {}
    for before, after in (
        ("fixed, 20", "fixed, 500"),
        ("fixed, 200", "fixed, 20"),
        ("geometric, 20", "normal, 200 +- 60"),
        ("fixed, 100", "40 or 400"),
        ("normal, 200 +- 60", "fixed, 100"),
    ):
        for running in (True, False):
            rows[f"{before} to {after}, {'running ones, too' if running else 'new ones only'}"] = row = one_change(
                known[before], known[after], running=running
            )
            print(before, after, running, row, flush=True)
            save(results)


def one_change(old: EpisodeLengths, new: EpisodeLengths, *, running: bool) -> dict[str, list[float]]:
    stream = in_stream(new, True)
    share = stream.survival[1:] / stream.mean
    group, grouped = groups(stream)
    at = int(5 * old.mean)
    seen = at if running else at + int(np.flatnonzero(stream.probabilities)[0])  # when the first new episode may end
    times = {at + int(c * stream.mean): c for c in (*TIMES, 3.0)}
    row, moments = {}, {}
    for t, ages, length, _ in live(old, COPIES, max(times) + 1, same_step=True, change=(at, new), running=running):
        if t in (at, seen):
            moments[t] = ages.copy(), length.copy()
        if t in times:
            found = [measure(ages, group, grouped)[0]]
            for moment in (at, seen):
                found.append(possible(share, *moments[moment], t - moment) if t >= moment else 1.0)
            row[f"{times[t]:g}"] = [round(float(x), 4) for x in found]
    return row


def possible(share: Any, ages: Any, lengths: Any, later: int) -> float:
    """Return the smallest distance that is possible so many steps after a moment, from the ages and lengths then."""
    there = np.bincount((ages + later)[lengths >= ages + later], minlength=len(share) + 1) / len(ages)
    return float(np.maximum(share - there[1 : len(share) + 1], 0.0)[later:].sum())


def environments(name: str, num_envs: int) -> Any:
    if name == "Hopper-v5":
        return EnvPoolVectorEnv(name, num_envs)
    if "Bullet" in name:
        import pybullet_envs_gymnasium  # noqa: F401
    return gymnasium.make_vec(name, num_envs, vectorization_mode="sync")


def run_resets(results: dict[str, Any]) -> None:
    """Resets per step and the processor's time in the first three mean episode lengths, raw and staggered."""
    mean = {"CartPole-v1": 23.0, "Hopper-v5": 20.0, "HopperBulletEnv-v0": 12.0}
    rows = results.setdefault("resets", {})
    for name in mean:
        for num_envs in (64, 256):
            key = f"{name}, {num_envs}"
            if key in rows:
                continue
            row: dict[str, Any] = {}
            for way in ("as it is", "anytime"):
                envs = environments(name, num_envs)
                if way == "anytime":
                    envs = StaggeredVectorEnv(envs, seed=SEED)
                envs.action_space.seed(SEED)
                resets, taken, steps, rounds = 0, 0.0, int(3 * mean[name]), 3
                for i in range(rounds):
                    envs.reset(seed=SEED + i)
                    actions = [envs.action_space.sample() for _ in range(steps)]
                    begin = time.perf_counter()
                    for action in actions:
                        _, _, terminated, truncated, _ = envs.step(action)
                        resets += int((terminated | truncated).sum())
                    taken += time.perf_counter() - begin
                envs.close()
                row[way] = {
                    "resets per 1000 steps": round(1000 * resets / (rounds * steps * num_envs), 1),
                    "microseconds per step": round(1e6 * taken / (rounds * steps * num_envs), 2),
                }
            rows[key] = row
            print(key, row, flush=True)
            save(results)


def run_stall(results: dict[str, Any]) -> None:
    """A SubprocVecEnv of Bullet Hoppers, whose resets take longer than steps: the slowest steps, raw and staggered."""
    import pybullet_envs_gymnasium  # noqa: F401
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from steadyrl.integrations.sb3 import SteadyVecEnv

    row = {}
    for way in ("as it is", "anytime"):
        env: Any = make_vec_env(
            "pybullet_envs_gymnasium:HalfCheetahBulletEnv-v0", 8, seed=SEED, vec_env_cls=SubprocVecEnv
        )
        env = SteadyVecEnv(env, seed=SEED) if way == "anytime" else env
        env.reset()
        times = []
        for _ in range(2200):
            actions = np.zeros((8, *env.action_space.shape), dtype=np.float32)
            begin = time.perf_counter()
            env.step(actions)
            times.append(time.perf_counter() - begin)
        env.close()
        late = np.array(times[1050:]) * 1000  # after the first episode
        row[way] = {
            "median step, ms": round(float(np.median(late)), 2),
            "slowest step, ms": round(float(late.max()), 1),
            "99.9th percentile, ms": round(float(np.quantile(late, 0.999)), 1),
            "seconds in all": round(float(np.sum(times)), 1),
        }
        print(way, row[way], flush=True)
    results["stall"] = {"HalfCheetahBulletEnv-v0, 8 processes, steps 1,050 to 2,200": row}
    save(results)


def save(results: dict[str, Any]) -> None:
    results["made"] = {"command": "python benchmarks/stagger.py", "seed": SEED, "steadyrl": version("steadyrl")}
    OUT.write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "stagger.md").write_text(page(results))


def page(results: dict[str, Any]) -> str:
    """Return the results as a page."""
    lines = [
        "# Anytime-optimal staggering, measured",
        "",
        f"`{results['made']['command']}`, seed {SEED}, steadyrl {results['made']['steadyrl']}.",
        "",
    ]
    if "bound" in results:
        lines += [
            f"## At the bound, {COPIES:,} environments",
            "",
            "Distance of the ages beside the bound, at so many mean episode lengths; truncations per environment, "
            "measured and expected.",
            "",
            "| lengths | " + " | ".join(f"{c:g}" for c in TIMES) + " | truncations |",
            "|---|" + "---|" * (len(TIMES) + 1),
        ]
        for name, row in results["bound"].items():
            cells = [
                f"{row['at'][k][0]:.4f} ({row['at'][k][1]:.4f})" if k in row["at"] else ""
                for k in (f"{c:g}" for c in TIMES)
            ]
            lines.append(f"| {name} | " + " | ".join(cells) + f" | {row['truncations']} ({row['expected']}) |")
        worst = max(v[0] - v[1] for row in results["bound"].values() for v in row["at"].values())
        lines += ["", f"Largest excess over the bound: {worst:.4f}.", ""]
    if "few" in results:
        lines += [
            "## Few environments",
            "",
            "Largest difference of the distribution functions of the ages, on average.",
            "",
            "| lengths | 8 | 16 | 64 | 256 | 4096 |",
            "|---|---|---|---|---|---|",
        ]
        for name, row in results["few"].items():
            lines.append(f"| {name} | " + " | ".join(f"{row.get(str(n), '')}" for n in (8, 16, 64, 256, 4096)) + " |")
        lines.append("")
    for title, key in (
        (
            "After lengths change (distance; possible for one who knows the new lengths; for one who has to see)",
            "change",
        ),
        ("Resets", "resets"),
        ("Stall", "stall"),
    ):
        if key in results:
            lines += [f"## {title}", ""]
            lines += [
                f"- {name}: " + "; ".join(f"{k}: {v}" for k, v in row.items()) for name, row in results[key].items()
            ]
            lines.append("")
    return "\n".join(lines)


PARTS = {"bound": run_bound, "few": run_few, "change": run_change, "resets": run_resets, "stall": run_stall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all by default")
    wanted = parser.parse_args().parts or list(PARTS)
    results = json.loads(OUT.read_text()) if OUT.exists() else {}
    for part in wanted:
        PARTS[part](results)


if __name__ == "__main__":
    sys.exit(main())
