"""docs/evidence.md, from results.json alone: verdicts, tables, figures, and what is missing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from beside import MECHANISM_RUNS, PARALLEL_SEEDS, PARALLEL_SIZES, PARALLEL_TASKS
from runs import BOTH, SEEDS, TASKS, Run, plan
from tables import TITLES, arm_tables, cells, comparison, fallen, main_tables, number, prediction_table, table
from verdicts import FAIR_ARMS, LEVEL, WAITING, explanation, outcome, sign, verdicts

MARKS = ("<!-- What follows is written by `python benchmarks/learning/analysis.py`. -->", "<!-- Up to here. -->")
"""What stands before and after the generated part of README.md and docs/index.md."""
PARTS = {
    "main": "as it is against anytime, all tasks",
    "arms": "six other arms, five tasks",
    "regimes": "32 and 128 steps, four tasks",
    "a2c": "A2C, three tasks",
    "few": "8 environments x 256 steps",
    "normalised": "VecNormalize",
    "end-rewards": "all rewards at the end",
    "no-bootstrap": "truncations taken for ends",
}


SETTINGS = {
    "a2c": "A2C",
    "few": "8 environments",
    "normalised": "VecNormalize",
    "end-rewards": "rewards at the end",
}
"""How the headline names the other settings; those of regimes have their n_steps in their names."""


def planned() -> dict[str, list[Run]]:
    """Return the runs of each part."""
    found: dict[str, list[Run]] = {}
    for run in plan():
        found.setdefault(run.part, []).append(run)
    return found


def complete(results: dict[str, Any]) -> bool:
    """Return whether all pairs of main are there."""
    tasks = results["main"]["tasks"]
    return all(task in tasks and tasks[task]["pairs"] == len(SEEDS) for task in TASKS)


def headline(results: dict[str, Any]) -> str:
    """Return the answer in two sentences, or how far the study is."""
    have, wanted = results["made"].get("main", 0), len(planned()["main"])
    if not complete(results):
        return (
            f"**There is no verdict yet.** The study is under way: {have} of the {wanted} runs of its main comparison "
            "are made. Until it is complete nobody should claim, here or elsewhere, that staggering helps to learn."
        )
    kinds = Counter(outcome(results["main"]["tasks"][task]) for task in TASKS)
    gains, harms, total = kinds["gain"], kinds["harm"], len(TASKS)
    first = (
        "It was found to help on most tasks." if 2 * gains > total else "**On most tasks it was not found to help.**"
    )
    text = (
        f"{first} PPO with 256 environments x 8 steps, {len(SEEDS)} paired seeds, nothing normalised: after correction "
        f"for {total} tasks a gain was found on {gains}, harm on {harms}, no difference on "
        f"{kinds['no difference found']}."
    )
    return text + uncorrected(results) + not_lost(results) + elsewhere(results)


def uncorrected(results: dict[str, Any]) -> str:
    """Return which tasks show a difference before the correction for so many tasks, or "" if none does."""
    tasks = results["main"]["tasks"]
    clear = {task: row["interval"] for task, row in tasks.items() if row["p"] < LEVEL}
    found = {
        "a gain": [task for task, (low, _) in clear.items() if low > 0],
        "harm": [task for task, (_, high) in clear.items() if high < 0],
    }
    said = [f"{kind} on {', '.join(names)}" for kind, names in found.items() if names]
    start = f" Before it (95% interval, p below {LEVEL:g}): "
    return f"{start}{' and '.join(said)}." if said else ""


def not_lost(results: dict[str, Any]) -> str:
    """Return on which tasks a gain is return that was not lost, or "" if there is none."""
    tasks = results["main"]["tasks"]
    found = [task for task, row in tasks.items() if row["interval"][0] > 0 and row["p"] < LEVEL and fallen(row)]
    return (
        f" On {' and '.join(found)} the gain is return that was not lost: without it, training ended below its first "
        "evaluation."
        if found
        else ""
    )


def elsewhere(results: dict[str, Any]) -> str:
    """Return where the intervals of the other settings speak for or against it, or "" if none does."""
    found: dict[str, dict[str, list[str]]] = {"better": {}, "worse": {}}
    for part, rows in results["others"].items():
        for name, row in rows.items() if part != "no-bootstrap" else ():
            where = {"above": "better", "below": "worse"}.get(sign(row))
            if where:
                task, _, steps = name.partition(", ")
                found[where].setdefault(task, []).append(SETTINGS.get(part, steps))
    said = []
    for kind, tasks in found.items():
        named = [f"{task} ({', '.join(settings)})" for task, settings in tasks.items()]
        said += [f"{kind} on {', '.join(named)}"] if named else []
    return f" In other settings (five seeds, 95% intervals, uncorrected): {'; '.join(said)}." if said else ""


def first_screen(results: dict[str, Any], folder: str) -> str:
    """Return what README and home say about learning; `folder` leads to the docs."""
    if not complete(results):
        return (
            f"Does it change what is learnt? Nobody knows yet: a [study]({folder}evidence.md) with its protocol first "
            "is under way."
        )
    picture = f"![Gain in return on {len(TASKS)} tasks, with intervals]({folder}evidence-main.svg)"
    return f"{picture}\nDoes it change what is learnt? {headline(results)} [The study]({folder}evidence.md)."


def missing_part(results: dict[str, Any]) -> list[str]:
    """Return what is missing, part by part."""
    lines = ["## What is there, and what is missing", ""]
    lines += table("part", "what", "runs made", "planned", "seeds")
    for part, runs in planned().items():
        made, seeds = results["made"].get(part, 0), len({run.seed for run in runs})
        lines.append(cells(part, PARTS[part], str(made), str(len(runs)), str(seeds)))
    lines.append(cells("mechanism", "two tasks, two arms", str(results["mechanism runs"]), str(MECHANISM_RUNS), "2"))
    cells_there = results["parallel rows"]
    wanted = len(PARALLEL_TASKS) * len(PARALLEL_SIZES) * len(BOTH) * PARALLEL_SEEDS
    lines.append(cells("parallel", "JAX, 1,024 and 4,096 environments", str(cells_there), str(wanted), "10"))
    lines += [
        "",
        f"The runs of rows.jsonl took {results['hours']:.1f} hours by the clock, two or more beside each other.",
    ]
    if results["core seconds of a run"] is not None:
        total = results["core seconds of a run"] * len(plan()) / 3600
        lines[-1] += (
            f" On average one takes {results['core seconds of a run']:.0f} s of a core (where that was recorded), so "
            f"that all {len(plan())} take about {total:.0f} core-hours."
        )
    lacking = [task for task in TASKS if task not in results["main"]["tasks"]]
    if lacking:
        lines += ["", f"Fewer than three pairs of main, so that no interval is given: {', '.join(lacking)}."]
    return lines


def power() -> list[str]:
    """Return how strict the test of main is: the smallest p values that ten pairs can have, after the correction."""
    smallest = 2 / 2 ** len(SEEDS)
    second, tasks = 2 * smallest * (len(TASKS) - 1), len(TASKS)
    return [
        f'"No difference found" is not "no difference". The smallest p that {len(SEEDS)} pairs can have is '
        f"{smallest:.4f}, corrected {smallest * tasks:.3f}; the next, {2 * smallest:.4f}, is {second:.3f} after one "
        "task with the smallest. So only a difference in which (nearly) all pairs agree is found. "
        "The intervals say how large a difference may be."
    ]


def verdict_part(results: dict[str, Any]) -> list[str]:
    """Return a verdict for each prediction."""
    lines = ["## Verdicts on what was predicted", ""]
    lines += table("prediction", "verdict", "by")
    return lines + [cells(*one) for one in verdicts(results)]


def mechanism_lines(results: dict[str, Any]) -> list[str]:
    """Return the measures of the mechanism, by seed."""
    found = results["mechanism"]
    lines = ["## Mechanism", ""]
    if not found:
        return [*lines, "No run is there yet (`python benchmarks/learning/mechanism.py`)."]
    lines += [
        f"{results['mechanism runs']} of {MECHANISM_RUNS} runs; one number for each seed. A demonstration, not a test. "
        "Shares at the period are of the variance at the frequency of the episode and its two harmonics (about 2% in "
        "white noise, more in a series that changes slowly, so that a share of 0.15 is weak evidence); a batch can "
        "hold 8 groups of ages; changes are those of one update.",
        "",
        "Gradients at steady state and changes are measured at six updates of a run, which fall in the middle or at "
        "the end of an episode in lockstep, and at no other phase of it. Of anytime's six batches only the first lacks "
        "a group of ages, so that each number on absent ages is one update's there.",
        "",
        "![Explained variance over training, and cosines with the gradient at steady state](evidence-mechanism.svg)",
        "",
        "*Above: explained variance of the first seed; thin lines stand a horizon apart. Below: six updates of both "
        "seeds, and crosses for fair batches.*",
    ]
    for task, measures in found.items():
        lines += ["", f"**{task}**", "", *table("measure", *BOTH)]
        lines += [
            cells(name, *(", ".join(_value(x) for x in arms.get(arm, {}).values()) or "-" for arm in BOTH))
            for name, arms in measures.items()
        ]
    return lines


def _value(value: float | None) -> str:
    return "none" if value is None else number(value)


def parallel_lines(results: dict[str, Any]) -> list[str]:
    """Return the massively parallel cells."""
    lines = ["## Thousands of environments, in JAX", ""]
    found = results["parallel"]
    if not found:
        return [*lines, "No cell is complete yet (`benchmarks/learning/parallel.py`)."]
    lines += table("task, environments x steps", "as it is", "anytime", "difference", "anytime higher", "corrected p")
    lines += [comparison(name, row) for name, row in found.items()]
    wanted = [f"{task}, {n:,} x {steps}" for n, steps in PARALLEL_SIZES for task in PARALLEL_TASKS]
    lacking = [name for name in wanted if name not in found]
    lines += ["", "Predicted were gains on Pendulum-v1 and Swimmer-misc, and none on CartPole-v1 and Acrobot-v1."]
    return lines + (["", f"Missing: {'; '.join(lacking)}."] if lacking else [])


def prediction_lines(results: dict[str, Any]) -> list[str]:
    """Return whether gains can be told beforehand."""
    found = results["prediction"]
    if found is None:
        return [
            "## Prediction",
            "",
            "Not enough tasks have three pairs yet to compare gains with what shows of the age.",
        ]
    picture = "![Gain against what shows of the age, task by task](evidence-prediction.svg)"
    return [*prediction_table(found)[1:], "", picture]


def arm_lines(arms: dict[str, Any]) -> list[str]:
    """Return all arms against as it is, task by task."""
    if not arms:
        return []
    picture = "![What each arm gains over as it is, with its interval, task by task](evidence-arms.svg)"
    return ["", "## All arms", "", beside_anytime(arms), "", picture, *arm_tables(arms)]


def beside_anytime(arms: dict[str, Any]) -> str:
    """Return which arms the intervals set above anytime, and which below it."""
    found: dict[str, list[str]] = {"above": [], "below": []}
    for task, rows in arms.items():
        for side, said in found.items():
            named = [arm for arm, row in rows.items() if sign(row.get("against anytime")) == side]
            said += [f"{', '.join(named)} on {task}"] if named else []
    better, worse = ("; ".join(said) or "none" for said in found.values())
    text = f"Above anytime, by intervals that are not corrected: {better}. Below it: {worse}."
    unforeseen = [
        task
        for task, rows in arms.items()
        if explanation(rows) == "neither fits"
        and any(sign(rows[arm].get("against anytime")) == "above" for arm in FAIR_ARMS)
    ]
    if unforeseen:
        text += (
            f" On {', '.join(unforeseen)} neither explanation fits by the protocol's rule, which asks for arms that do "
            "as well as anytime, and did not foresee any above it."
        )
    return text


def other_lines(others: dict[str, Any]) -> list[str]:
    """Return anytime against as it is in the other parts."""
    if not others:
        return []
    lines = [
        "",
        "## Other settings",
        "",
        "![Differences in the other parts, with their intervals](evidence-others.svg)",
    ]
    for part, found in others.items():
        two = ("anytime", "truncations taken for ends") if part == "no-bootstrap" else ("as it is", "anytime")
        lines += ["", f"### {TITLES[part]}", "", *table("task", *two, "difference", f"{two[1]} higher", "p")]
        lines += [comparison(name, row) for name, row in found.items()]
    return lines


def page(results: dict[str, Any]) -> str:
    """Return docs/evidence.md."""
    lines = [
        "# Evidence: does it change learning?",
        "",
        headline(results),
        "",
        "*As it is*: all environments are reset together. *Anytime*: steadyrl's default, the one line of the",
        "README. Other arms: *designed*, one planned truncation of each environment; *counters*, random step",
        "counters at the start (rsl_rl's way); *blocks*, groups restarted one after the other; *full length*, 2",
        "environments x 1,024 steps; *random choice*, as many truncations as anytime at the same times, whatever",
        "the age; *lockstep restarts*, about as many restarts, of all environments at once.",
        "",
        f"This page is written by `python benchmarks/learning/analysis.py` from {results['rows']} rows of",
        "[rows.jsonl](../benchmarks/learning/rows.jsonl), each of which has its settings, seed and versions, and",
        "for two sections from mechanism.json and parallel.jsonl beside it. Questions and predictions are in the",
        "[protocol](../benchmarks/learning/protocol.md), committed before the first row; rules that were added",
        "later are marked there. A return is that of 16 fresh full episodes, averaged over ten moments of",
        "training (JAX: 32, five); differences are paired by seed, with 95% intervals (bootstrap with ten pairs,",
        "Student's with fewer). None of these rows is left out; seven were made again after the code had changed,",
        "and the runs of the mechanism as a whole (protocol, *Rows made again* and *thrown away*). Parts with",
        "five seeds are judged by their intervals alone, uncorrected, since no signed-rank test could reach 5%",
        "there. *Scaled* is in units of the task's range: that of its last returns over all runs of main.",
        "",
        *power(),
        "",
        *verdict_part(results),
        "",
        *missing_part(results),
    ]
    if results["main"]["tasks"]:
        pictures = [
            "",
            "![Gain on each task with its interval](evidence-main.svg)",
            "",
            "![Learning curves](evidence-curves.svg)",
            "",
            "*Mean return of fresh full episodes over ten seeds, with 95% bootstrap bands.*",
            "",
        ]
        lines += ["", *main_tables(results["main"])[:2], *pictures, *main_tables(results["main"])[2:]]
    lines += [*arm_lines(results["arms"]), *other_lines(results["others"])]
    lines += ["", *prediction_lines(results), "", *mechanism_lines(results), "", *parallel_lines(results)]
    lines += [
        "",
        "## Make it again",
        "",
        "    make study                  # all runs, mechanism, JAX, then this page; goes on where it was stopped",
        "    make study SCALE=quick      # a test of the machinery in five minutes; no evidence",
        "    .venv/bin/python benchmarks/learning/analysis.py     # tables, figures and this page, from what is there",
        "",
        f"Verdicts say *{WAITING}* until all rows of a prediction are there.",
    ]
    return "\n".join(lines) + "\n"
