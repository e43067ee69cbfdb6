"""The page on learning says what the rows say, and no more: verdicts wait for their rows."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import trim_mean

from steadyrl.diagnosis import seen_ages

ROOT = Path(__file__).parent.parent
LEARNING = ROOT / "benchmarks" / "learning"
RESULTS = json.loads((LEARNING / "results.json").read_text())


@pytest.fixture(scope="module")
def study():
    """The modules of the study, which are scripts that find each other in their folder."""
    before = set(sys.modules)
    sys.path.insert(0, str(LEARNING))
    try:
        import analysis
        import beside
        import evidence
        import runs
        import study
        import verdicts

        yield {m.__name__: m for m in (analysis, beside, evidence, runs, study, verdicts)}
    finally:
        sys.path.remove(str(LEARNING))
        for name in set(sys.modules) - before:
            if str(LEARNING) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def row_of(run, value):
    moments = [{"steps": 100 * i, "mean": value, "deviation": 1.0, "length": 9.0} for i in range(1, 11)]
    return run.as_dict() | {"evaluations": moments, "cuts": 0, "seconds": 36.0, "versions": {"steadyrl": "0"}}


def made_up_rows(study, effect):
    """All rows of the plan; `effect(run)` is what an arm adds to the level of a seed.

    Nothing is drawn, so that no verdict is chance: the rest of a difference is about 0.2 for even seeds and -0.2 for
    odd ones, and no two tasks have the same.
    """
    size = {task: 0.2 + 0.001 * i for i, task in enumerate(study["runs"].TASKS)}
    return [
        row_of(run, 10 * (run.seed % 3) + effect(run) + size[run.task] * (-1) ** run.seed * (run.arm != "as it is"))
        for run in study["runs"].plan()
    ]


def test_the_page_is_that_of_the_rows_it_names(study):
    rows = study["study"].read_rows()
    count = RESULTS["rows"]
    assert len(rows) >= count
    if len(rows) >= len(study["runs"].plan()):  # a study that goes on may be ahead of its page, a complete one not
        assert len(rows) == count
    again = json.loads(json.dumps(study["analysis"].analyse(rows[:count], over=False)))
    again["main"]["over tasks"] = RESULTS["main"]["over tasks"]
    assert study["evidence"].page(again) == (ROOT / "docs" / "evidence.md").read_text()
    marks = study["evidence"].MARKS
    for page, folder in ((ROOT / "README.md", "docs/"), (ROOT / "docs" / "index.md", "")):
        shown = page.read_text().split(marks[0])[1].split(marks[1])[0].strip()
        assert shown == study["evidence"].first_screen(again, folder), f"run benchmarks/learning/analysis.py: {page}"


def test_diagnose_claims_what_the_study_found_and_nothing_else():
    verdict = RESULTS["prediction"]["verdict"] if RESULTS["prediction"] else "incomplete"
    assert verdict == seen_ages.STUDY, "run benchmarks/learning/analysis.py, which writes the verdict into seen_ages.py"


def test_the_means_over_tasks_are_those_of_a_second_computation(study):
    """rliable's numbers on the page, without rliable: a trimmed mean of all scores, and wins of all pairs of runs."""
    said = RESULTS["main"]["over tasks"]
    if said is None:
        pytest.skip("fewer than three seeds of all tasks are there")
    rows = [row for row in study["study"].read_rows()[: RESULTS["rows"]] if row["part"] == "main"]
    scores = {"as it is": [], "anytime": []}
    for task in dict.fromkeys(row["task"] for row in rows):
        runs = {
            (row["arm"], row["seed"]): [e["mean"] for e in row["evaluations"]] for row in rows if row["task"] == task
        }
        both = sorted({seed for arm, seed in runs if ("anytime", seed) in runs and ("as it is", seed) in runs})
        if both:
            low, high = (side(means[-1] for means in runs.values()) for side in (min, max))
            for arm, values in scores.items():
                values.append([(np.mean(runs[arm, seed]) - low) / (high - low) for seed in both[: said["seeds"]]])
    for arm, values in scores.items():
        assert trim_mean(np.ravel(values), 0.25) == pytest.approx(said["interquartile mean"][arm][0])
    one, other = (np.array(scores[arm]) for arm in ("anytime", "as it is"))
    wins = (one[:, :, None] > other[:, None, :]) + 0.5 * (one[:, :, None] == other[:, None, :])
    assert wins.mean() == pytest.approx(said["probability of improvement"][0])
    assert said["tasks"] == len(one)


def test_without_rows_nothing_is_decided(study):
    found = study["analysis"].analyse([], over=False) | {"parallel": {}, "mechanism": {}}
    assert {one.verdict for one in study["verdicts"].verdicts(found)} == {"not decided yet"}
    assert "no verdict yet" in study["evidence"].page(found)


def test_a_pair_short_of_all_is_not_decided(study):
    rows = made_up_rows(study, lambda run: 3.0 * (run.arm != "as it is"))
    short = [row for row in rows if (row["task"], row["seed"], row["part"]) != ("CartpoleSwingup-v1", 9, "main")]
    decided = [study["verdicts"].verdicts(study["analysis"].analyse(x, over=False))[0] for x in (short, rows)]
    assert decided[0].verdict == "not decided yet"
    assert decided[1].verdict == "holds"
    assert not study["evidence"].complete(study["analysis"].analyse(short, over=False))


def test_a_study_as_predicted_is_found_so(study):
    seen = json.loads((LEARNING / "prediction.json").read_text())
    gains = study["verdicts"].GAINS

    def effect(run):
        if run.part == "regimes":
            return (0.5 if run.n_steps == 32 else 0.0) * (run.arm == "anytime")
        if run.part == "end-rewards":
            return -3.0 * (run.arm == "anytime")
        if run.part == "no-bootstrap":
            return -3.0
        if run.part in ("few", "normalised", "a2c") or run.arm in ("as it is", "full length", "lockstep restarts"):
            return 0.0
        return 3.0 * (run.task in gains)

    found = study["analysis"].analyse(made_up_rows(study, effect), over=False)
    one, two, three, four, five, six, seven, *_ = study["verdicts"].verdicts(found)
    assert (one.verdict, four.verdict, seven.verdict) == ("holds", "holds", "holds")
    assert two.verdict == "holds"
    assert "no difference found" in three.why
    explained = "fair batches: HalfCheetah-v5, CartpoleSwingup-v1, Swimmer-v5"
    assert five.why == f"{explained}; no gain to explain: BallInCupCatch-v1, Hopper-v5"
    assert six.verdict in ("holds", "does not hold")
    assert "after correction for 14 tasks a gain was found on 4, harm on 0," in study["evidence"].headline(found)
    assert study["evidence"].headline(found).startswith("**On most tasks it was not found to help.**")
    assert "evidence-main.svg" in study["evidence"].first_screen(found, "docs/")
    assert len(study["evidence"].first_screen(found, "docs/").splitlines()) <= 2  # the README has room for two lines
    assert set(seen) == set(study["runs"].TASKS)


@pytest.mark.parametrize(("slope", "verdict"), [(30.0, "yes"), (-30.0, "no")])
def test_the_number_of_diagnose_predicts_only_if_gains_follow_it(study, slope, verdict, tmp_path):
    seen = json.loads((LEARNING / "prediction.json").read_text())
    shown = {task: np.mean([one["distance"][0] for one in by_seed.values()]) for task, by_seed in seen.items()}
    rows = made_up_rows(study, lambda run: slope * shown[run.task] * (run.arm == "anytime"))
    found = study["analysis"].analyse(rows, over=False)
    assert found["prediction"]["verdict"] == verdict
    copy = tmp_path / "seen_ages.py"
    copy.write_text((ROOT / "src" / "steadyrl" / "diagnosis" / "seen_ages.py").read_text())
    study["analysis"].write_verdict(found, copy)
    assert f'\nSTUDY = "{verdict}"\n' in copy.read_text()
    short = study["analysis"].analyse([row for row in rows if row["seed"] < 9], over=False)
    assert short["prediction"]["verdict"] == "incomplete"


def test_what_diagnose_says_of_most_tasks_is_so(study):
    tasks = RESULTS["main"]["tasks"]
    unseen = sum(study["verdicts"].outcome(row) == "no difference found" for row in tasks.values())
    assert seen_ages.STUDY != "no" or 2 * unseen > len(tasks)  # wording.matters


def test_harm_is_named(study):
    found = study["analysis"].analyse(made_up_rows(study, lambda run: -3.0 * (run.arm == "anytime")), over=False)
    one, two, *_ = study["verdicts"].verdicts(found)
    assert one.verdict == two.verdict == "does not hold"
    assert one.why.startswith("harm: ")


def test_rank_correlations_are_those_of_scipy(study):
    from scipy.stats import spearmanr

    rng = np.random.default_rng(1)
    one, other = rng.integers(0, 5, (20, 14)), rng.integers(0, 5, (20, 14))  # with ties
    expected = [spearmanr(a, b).statistic for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(study["analysis"].rank_correlations(one, other), expected)


def test_the_share_at_a_period_is_that_of_the_oscillation(study):
    share = study["beside"].share_at_period
    time = np.arange(375)
    wave = np.sin(2 * np.pi * time / 125 + 0.3)
    assert share(wave, 125) > 0.9  # all but what the line takes
    assert share(wave + 5 * np.sin(2 * np.pi * time / 7.5), 125) == pytest.approx(1 / 26, abs=0.02)
    # Of white noise 3 of 187 frequencies have 1.6%; their sum is beyond 6% about once in 5,000 series.
    assert share(np.random.default_rng(0).normal(size=375), 125) < 0.06
    assert share(time * 2.0, 125) == 0.0


def test_every_run_of_the_plan_has_a_name_of_its_own(study):
    plan = study["runs"].plan()
    assert len({run.key for run in plan}) == len(plan)
    assert set(study["evidence"].PARTS) == {run.part for run in plan}


def test_few_pairs_have_students_interval(study):
    from scipy.stats import ttest_1samp

    values = [1.0, 2.5, -0.5, 3.0, 0.7]
    expected = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert study["analysis"].student_interval(values) == pytest.approx(tuple(expected))


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        ({"lockstep restarts": 0.0, "designed": 3.0}, "fair batches"),
        ({"lockstep restarts": 3.0, "designed": 0.0}, "young states first"),
        ({"lockstep restarts": 0.0, "designed": 0.0}, "neither fits"),
    ],
)
def test_the_arms_tell_the_explanations_apart(study, effects, expected):
    rows = made_up_rows(study, lambda run: effects.get(run.arm, 0.0 if run.arm in ("as it is", "full length") else 3.0))
    arms = study["analysis"].analyse(rows, over=False)["arms"]
    assert study["verdicts"].explanation(arms["HalfCheetah-v5"]) == expected


def made_up_mechanism(study, gain, null):
    """Measures of two tasks by arm and seed; each function gives the value of an arm and a seed."""
    names = (*study["verdicts"].LARGER_AS_IT_IS, study["verdicts"].FORGOTTEN)

    def of(value):
        return {
            name: {arm: {str(s): value(name, arm, s) for s in (0, 1)} for arm in ("as it is", "anytime")}
            for name in names
        }

    return dict(zip(study["beside"].MECHANISM_TASKS, (of(gain), of(null)), strict=True))


def test_the_mechanism_is_judged_by_both_seeds(study):
    larger = study["verdicts"].LARGER_AS_IT_IS

    def predicted(name, arm, seed):
        return (1.0 if (arm == "as it is") == larger.get(name, True) else 0.2) + 0.1 * seed

    def alike(name, arm, seed):
        return 0.5 * seed + 0.1 * (arm == "anytime")

    judge = study["verdicts"]._mechanism
    assert judge(made_up_mechanism(study, predicted, alike)).verdict == "holds"
    assert judge(made_up_mechanism(study, predicted, predicted)).verdict == "holds in 5 of 6 points"
    assert judge(made_up_mechanism(study, alike, alike)).verdict == "holds in 1 of 6 points"
    short = made_up_mechanism(study, predicted, alike)
    del short["Hopper-v5"]["value loss at the period"]["anytime"]["1"]
    assert judge(short).verdict == "not decided yet"


def test_thousands_of_environments_are_judged_cell_by_cell(study):
    rng = np.random.default_rng(0)
    gains = study["verdicts"].PARALLEL_GAINS
    rows = [
        {"task": task, "num_envs": n, "arm": arm, "seed": seed, "evaluations": [{"mean": value}]}
        for n, _ in study["beside"].PARALLEL_SIZES
        for task in study["beside"].PARALLEL_TASKS
        for seed in range(10)
        for arm, value in (
            ("as it is", 0.0),
            ("anytime", 1.0 + 0.01 * seed if task in gains else (-1.0) ** seed * (1.0 + rng.random() * 1e-3)),
        )
    ]
    judge, tools = study["verdicts"]._parallel, study["analysis"]
    cells = study["beside"].cells_part(rows, tools.paired, tools.select, tools.holm)
    assert judge(cells).verdict == "holds"
    assert judge({name: row for name, row in cells.items() if "4,096" not in name}).verdict == "not decided yet"
