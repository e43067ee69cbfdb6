"""A verdict for each prediction of the protocol, computed from the results: holds, does not hold, not decided yet."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from analysis import student_interval
from beside import MECHANISM_TASKS, PARALLEL_SIZES, PARALLEL_TASKS
from runs import BOTH, FEWER_SEEDS, FIVE_TASKS, FOUR_TASKS, SEEDS, TASKS

GAINS = ("CartpoleSwingup-v1", "Swimmer-v5", "HalfCheetah-v5", "CheetahRun-v1")
NULLS = ("Hopper-v5", "Walker2d-v5", "MiniGrid-DoorKey-5x5-v0", "Reacher-v5", "Pusher-v5", "ReacherEasy-v1")
OPEN = ("PendulumSwingup-v1", "BallInCupCatch-v1", "FingerSpin-v1", "WalkerWalk-v1")
PARALLEL_GAINS = ("Pendulum-v1", "Swimmer-misc")
LARGER_AS_IT_IS = {  # predicted of each measure of the mechanism where a gain is predicted
    "value loss at the period": True,
    "explained variance at the period": True,
    "cosine of consecutive gradients": True,
    "cosine with the steady state": False,
}
FORGOTTEN = "value error change, ages absent"
FAIR_ARMS = ("designed", "counters", "blocks", "random choice")
LEVEL = 0.05
WAITING = "not decided yet"


class Verdict(NamedTuple):
    """What was predicted, whether it holds, and by which numbers."""

    claim: str
    verdict: str
    why: str


def outcome(row: dict[str, Any] | None, seeds: int = len(SEEDS)) -> str:
    """Return "gain", "harm", "no difference found", or that rows are missing, for a task of main."""
    if row is None or row["pairs"] < seeds:
        return WAITING
    if row["corrected p"] >= LEVEL:
        return "no difference found"
    return "gain" if row["difference"] > 0 else "harm"


def sign(row: dict[str, Any] | None, seeds: int = len(FEWER_SEEDS)) -> str:
    """Return where the interval of a difference lies: "above", "below" or "around" zero, or that rows are missing."""
    if row is None or row["pairs"] < seeds:
        return WAITING
    low, high = row["interval"]
    return "above" if low > 0 else "below" if high < 0 else "around"


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts on predictions 1 to 7, and on those that were added for thousands of copies and mechanism."""
    main = results["main"]["tasks"]
    all_tasks = {task: outcome(main.get(task)) for task in TASKS}
    return [
        _each("1. Gains", GAINS, all_tasks, "gain"),
        _each("2. Nulls", NULLS, all_tasks, "no difference found"),
        _open(all_tasks),
        _regimes(results),
        _explanations(results),
        _prediction(results["prediction"]),
        _hurts(results["others"]),
        _parallel(results["parallel"]),
        _mechanism(results["mechanism"]),
    ]


def _listed(found: dict[str, str]) -> str:
    if set(found.values()) == {WAITING}:
        return "rows are missing"
    kinds: dict[str, list[str]] = {}
    for task, kind in found.items():
        kinds.setdefault(kind, []).append(task)
    return "; ".join(f"{kind}: {', '.join(tasks)}" for kind, tasks in kinds.items())


def _each(name: str, tasks: tuple[str, ...], outcomes: dict[str, str], wanted: str) -> Verdict:
    found = {task: outcomes[task] for task in tasks}
    hits = sum(kind == wanted for kind in found.values())
    claim = f"{name} on {', '.join(tasks)}"
    if WAITING in found.values():
        return Verdict(claim, WAITING, _listed(found))
    verdict = "holds" if hits == len(tasks) else "does not hold" if not hits else f"holds on {hits} of {len(tasks)}"
    return Verdict(claim, verdict, _listed(found))


def _open(outcomes: dict[str, str]) -> Verdict:
    found = {task: outcomes[task] for task in OPEN}
    return Verdict(
        f"3. No prediction on {', '.join(OPEN)}", WAITING if WAITING in found.values() else "-", _listed(found)
    )


def _regimes(results: dict[str, Any]) -> Verdict:
    claim = "4. The gain shrinks as n_steps / H grows: smaller at 0.032, none at 0.128"
    main, others = results["main"]["tasks"], results["others"].get("regimes", {})
    means: list[float] = []
    far: dict[str, list[float]] = {}  # by seed, at 128 steps
    for n_steps in (8, 32, 128):
        scaled = []
        for task in FOUR_TASKS:
            row = main.get(task) if n_steps == 8 else others.get(f"{task}, n_steps {n_steps}")
            if task not in main or row is None or row["pairs"] < len(SEEDS if n_steps == 8 else FEWER_SEEDS):
                return Verdict(claim, WAITING, "rows are missing")
            scaled.append(row["difference"] / main[task]["span"])
            for seed, difference in row["differences"].items() if n_steps == 128 else ():
                far.setdefault(seed, []).append(difference / main[task]["span"])
        means.append(statistics.mean(scaled))
    low, high = student_interval([statistics.mean(x) for x in far.values()])
    holds = means[0] > means[1] > means[2] and low <= 0 <= high
    numbers = ", ".join(f"{x:.3f}" for x in means)
    why = f"mean scaled difference {numbers}; at 0.128 the interval is {low:.3f} to {high:.3f}"
    return Verdict(claim, "holds" if holds else "does not hold", why)


def explanation(arms: dict[str, Any]) -> str:
    """Return which explanation fits the arms of one task."""
    wanted = ("anytime", *FAIR_ARMS, "lockstep restarts")
    if any(sign(arms.get(arm)) == WAITING for arm in wanted):
        return WAITING
    if sign(arms["anytime"]) != "above":
        return "no gain to explain"
    as_well = {arm: sign(arms[arm]["against anytime"]) == "around" for arm in wanted[1:]}
    as_badly = {arm: sign(arms[arm]) == "around" for arm in wanted[1:]}
    fair = all(as_well[arm] for arm in FAIR_ARMS) and as_badly["lockstep restarts"]
    young = as_well["lockstep restarts"] and as_badly["designed"]
    return {
        (True, False): "fair batches",
        (False, True): "young states first",
        (True, True): "both fit",
        (False, False): "neither fits",
    }[fair, young]


def _explanations(results: dict[str, Any]) -> Verdict:
    found = {task: explanation(results["arms"].get(task, {})) for task in FIVE_TASKS}
    claim = "5. Fair batches, or young states first: the arms tell which"
    return Verdict(claim, WAITING if WAITING in found.values() else "see task by task", _listed(found))


def _prediction(found: dict[str, Any] | None) -> Verdict:
    claim = "6. What shows of the age ranks tasks by their gain, rank correlation above 0.5"
    if found is None or found["verdict"] == "incomplete":
        some = "" if found is None else f"; so far {_correlation(found)}"
        return Verdict(claim, WAITING, f"rows are missing{some}")
    return Verdict(claim, "holds" if found["verdict"] == "yes" else "does not hold", _correlation(found))


def _correlation(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    number = len(found["tasks"])
    return f"rank correlation {found['rank correlation']:.2f} ({low:.2f} to {high:.2f}) over {number} tasks"


def _hurts(others: dict[str, Any]) -> Verdict:
    claim = "7. No difference with few environments; harm with rewards at the end, and without bootstrapping"
    wanted = {"few": "around", "end-rewards": "below", "no-bootstrap": "below"}
    words = {"above": "better", "around": "no difference", "below": "worse"}
    found, hits, waiting = [], 0, False
    for part, expected in wanted.items():
        rows = others.get(part, {})
        signs = {name: sign(row) for name, row in rows.items()}
        waiting |= len(signs) < 2 or WAITING in signs.values()
        hits += all(kind == expected for kind in signs.values())
        found += [f"{part}, {name}: {words[kind]}" for name, kind in signs.items() if kind != WAITING]
    if waiting:
        return Verdict(claim, WAITING, "; ".join(["rows are missing", *found]))
    return Verdict(claim, "holds" if hits == 3 else f"holds in {hits} of 3 parts", "; ".join(found))


def _parallel(found: dict[str, Any]) -> Verdict:
    claim = (
        "8. Thousands of environments in JAX: gains on Pendulum-v1 and Swimmer-misc, none on CartPole-v1 and Acrobot-v1"
    )
    wanted = {
        f"{task}, {n:,} x {steps}": "gain" if task in PARALLEL_GAINS else "no difference found"
        for n, steps in PARALLEL_SIZES
        for task in PARALLEL_TASKS
    }
    outcomes = {name: outcome(found.get(name)) for name in wanted}
    if WAITING in outcomes.values():
        return Verdict(claim, WAITING, _listed(outcomes))
    hits = sum(outcomes[name] == kind for name, kind in wanted.items())
    return Verdict(
        claim, "holds" if hits == len(wanted) else f"holds in {hits} of {len(wanted)} cells", _listed(outcomes)
    )


def _mechanism(found: dict[str, Any]) -> Verdict:
    gain, null = MECHANISM_TASKS
    claim = (
        f"9. Mechanism on {gain}: in lockstep, losses follow the episode, gradients are further from that at steady "
        f"state and nearer to the one before, values of absent ages get worse; on {null} the arms do not differ"
    )
    seeds = {len(arms.get(arm, {})) for measures in found.values() for arms in measures.values() for arm in BOTH}
    if set(found) != set(MECHANISM_TASKS) or seeds != {2}:
        return Verdict(claim, WAITING, "runs are missing")
    said = {name: apart(found[gain][name], larger) for name, larger in LARGER_AS_IT_IS.items()}
    worse = [x for x in found[gain][FORGOTTEN]["as it is"].values() if x is not None]
    said[FORGOTTEN] = bool(worse) and min(worse) > 0
    differ = [name for name in LARGER_AS_IT_IS if beyond_seeds(found[null][name])]
    lines = [f"{name}: {'as predicted' if held else 'not as predicted'}" for name, held in said.items()]
    lines.append(f"{null}: {'differs in ' + ', '.join(differ) if differ else 'no difference beyond that of seeds'}")
    hits, total = sum(said.values()) + (not differ), len(said) + 1
    return Verdict(claim, "holds" if hits == total else f"holds in {hits} of {total} points", "; ".join(lines))


def apart(arms: dict[str, Any], larger_as_it_is: bool) -> bool:
    """Return whether every seed of one arm is above every seed of the other, in the predicted direction."""
    as_it_is, anytime = (list(arms[arm].values()) for arm in BOTH)
    return min(as_it_is) > max(anytime) if larger_as_it_is else max(as_it_is) < min(anytime)


def beyond_seeds(arms: dict[str, Any]) -> bool:
    """Return whether the arms' means differ by more than the two seeds of an arm do."""
    both = [list(arms[arm].values()) for arm in BOTH]
    return abs(statistics.mean(both[0]) - statistics.mean(both[1])) > max(max(x) - min(x) for x in both)
