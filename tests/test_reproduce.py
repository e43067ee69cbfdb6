"""The paper, measured again: `quick` runs end to end, and its claims hold where that size can tell.

Exact claims hold to rounding. Sampled ones are asserted with bounds that a correct program misses once in a thousand
runs or less, and the seed is fixed.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from typer.testing import CliRunner

from steadyrl import EpisodeLengths, Perturbation, collect_episodes, errors, phase_distance, policy_gradient
from steadyrl.cli import app
from steadyrl.common.storage import from_json, save_arrays, to_json
from steadyrl.exact import gallery
from steadyrl.experiments import elsewhere, figure_2, figure_3, figure_3b
from steadyrl.experiments.ascent import Ascent, Baseline, CommonNoise, every_step, squared_length
from steadyrl.experiments.catalogue import EXPERIMENTS, named
from steadyrl.experiments.convergence_curves import CurveSettings
from steadyrl.experiments.experiment import Experiment, Finding, Result, interval_text
from steadyrl.experiments.pages import page_of, render_markdown, render_markdown_index, verdict
from steadyrl.experiments.running import UNFINISHED, cost_text, draw, reproduce
from steadyrl.experiments.workspace import Workspace
from steadyrl.policies.modules import SoftmaxTable
from steadyrl.sspg import steady_state_gradient

pytestmark = pytest.mark.slow  # these take long together; continuous integration runs them

COMMITTED = Path(__file__).parent.parent / "docs" / "reproduction"
RESULTS = sorted(COMMITTED.glob("*.npz"))


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """All experiments at the quick scale: the folder, and the pages by name."""
    out = tmp_path_factory.mktemp("quick")
    pages = reproduce(EXPERIMENTS, "quick", out, known=EXPERIMENTS)
    return out, {page.name: page for page in pages}


def test_quick_writes_result_figure_and_page_of_every_item_and_an_index(quick):
    out, pages = quick
    assert list(pages) == [experiment.name for experiment in EXPERIMENTS]
    index = (out / "index.html").read_text()
    for experiment in EXPERIMENTS:
        for suffix in ("npz", "json", "svg", "png", "html"):
            assert (out / f"{experiment.name}.{suffix}").stat().st_size > 500
        assert f'href="{experiment.name}.html"' in index
        page = (out / f"{experiment.name}.html").read_text()
        assert f"steadyrl reproduce {experiment.name} --scale quick" in page
        assert "http://" not in page.replace("http://www.w3.org", "")
        assert "https://" not in page
        found = json.loads((out / f"{experiment.name}.json").read_text())
        assert {"settings", "seed", "versions", "numbers", "command"} <= found.keys()
    assert not (out / UNFINISHED).exists()


@pytest.mark.parametrize("name", ["figure-1", "figure-3b", "appendix-e"])
def test_exact_claims_agree(quick, name):
    _, pages = quick
    assert [found.verdict for found in pages[name].findings if found.agrees is not True] == []


def test_table_1_holds_exactly_and_in_samples(quick):
    # Sampled differences: the largest |z| of each environment against its Bonferroni bound, false alarm 0.001 each.
    _, pages = quick
    assert all(found.agrees for found in pages["table-1"].findings)


def test_convergence_claims_that_a_small_sample_can_tell(quick):
    _, pages = quick
    found = {entry.claim[:3]: entry for entry in pages["figure-3"].findings}
    assert found["(d)"].agrees, "T is always 1001: never"
    for perturbed in ("(e)", "(f)"):
        assert found[perturbed].agrees, "perturbed means settle by 3 AEL: at 2 AEL they are close"
    assert found["(ou"].agrees, "brute force: Bonferroni, false alarm 0.001"


def test_gradient_check_says_when_it_cannot_tell(quick):
    _, pages = quick
    assert "cannot tell" in pages["figure-2"].verdict


def test_results_are_the_same_bytes_for_any_number_of_workers(tmp_path):
    plan = CurveSettings(
        "CartPole-v1", "uniform", episodes=120, chunk=60, groups=4, points=20, rollouts=40, checks=(1.0,)
    )
    small = replace(elsewhere.EXPERIMENT, settings={"quick": elsewhere.Settings((plan,))})
    contents = []
    for i, (backend, workers) in enumerate((("serial", None), ("processes", 2))):
        out = tmp_path / str(i)
        reproduce([small], "quick", out, backend=backend, workers=workers)
        contents.append([(out / f"elsewhere.{suffix}").read_bytes() for suffix in ("npz", "json", "svg", "html")])
    assert contents[0] == contents[1]


@dataclass(frozen=True)
class Steps:
    """Settings of a scripted experiment."""

    parts: int = 3


def scripted(calls, interrupt_at=None):
    """An experiment of several parts, which can be interrupted at one of them."""

    def part(i):
        if i == interrupt_at:
            raise KeyboardInterrupt
        calls.append(i)
        return {"value": float(i)}

    def run(settings, workspace):
        found = [float(workspace.arrays(f"part-{i}", lambda i=i: part(i))["value"]) for i in range(settings.parts)]
        return {"sum": sum(found)}, {"parts": np.array(found)}

    def picture(result):
        from steadyrl.common.figures import new_figure

        return new_figure()[0]

    finding = lambda result: [Finding("the sum is 3", f"{result.numbers['sum']}", result.numbers["sum"] == 3)]  # noqa: E731
    return Experiment("scripted", "Scripted", "One claim.", {"quick": Steps()}, run, picture, finding)


def test_an_interrupted_run_goes_on_where_it_stopped_and_ends_with_the_same_bytes(tmp_path):
    calls: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce([scripted(calls, interrupt_at=2)], "quick", tmp_path / "a")
    with pytest.raises(errors.RolloutError, match="--resume"):
        reproduce([scripted(calls)], "quick", tmp_path / "a")
    reproduce([scripted(calls)], "quick", tmp_path / "a", resume=True)
    assert calls == [0, 1, 2], "finished parts ran once"
    reproduce([scripted(calls)], "quick", tmp_path / "b")
    assert (tmp_path / "a" / "scripted.npz").read_bytes() == (tmp_path / "b" / "scripted.npz").read_bytes()


def test_parts_of_other_versions_are_not_joined_in_one_result(tmp_path):
    calls: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce([scripted(calls, interrupt_at=2)], "quick", tmp_path)
    part = next(tmp_path.glob(".unfinished/*/part-1.npz"))
    save_arrays(part, "unfinished work", {"versions": {"numpy": "1.0"}}, {"value": np.array(1.0)})
    with pytest.raises(errors.RolloutError, match=r"part-1.*other versions \(numpy: 1.0 then, .* now\)"):
        reproduce([scripted(calls)], "quick", tmp_path, resume=True)
    assert part.exists()


def test_experiments_run_on_one_thread_of_linear_algebra_whose_number_the_last_digits_depend_on(tmp_path):
    seen: list[int] = []

    def run(settings, workspace):
        seen.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return {"sum": 3.0}, {"parts": np.zeros(1)}

    with threadpool_limits(limits=2, user_api="blas"):
        reproduce([replace(scripted([]), run=run)], "quick", tmp_path)
    assert seen
    assert set(seen) == {1}


def test_a_file_in_the_place_of_the_results_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "results").touch()
    with pytest.raises(errors.RolloutError, match="name a folder for the results"):
        reproduce([scripted([])], "quick", tmp_path / "results")


def test_numbers_that_a_kill_left_out_are_written_when_a_finished_experiment_is_resumed(tmp_path):
    reproduce([scripted([])], "quick", tmp_path)
    numbers = (tmp_path / "scripted.json").read_bytes()
    (tmp_path / "scripted.json").unlink()  # as if it was killed right after scripted.npz
    reproduce([scripted([])], "quick", tmp_path, resume=True)
    assert (tmp_path / "scripted.json").read_bytes() == numbers


def test_resume_skips_what_is_finished_and_runs_what_was_asked_differently(tmp_path):
    calls: list[int] = []
    experiment = scripted(calls)
    reproduce([experiment], "quick", tmp_path)
    reproduce([experiment], "quick", tmp_path, resume=True)
    assert calls == [0, 1, 2]
    reproduce([experiment], "quick", tmp_path, resume=True, seed=1)
    assert calls == [0, 1, 2, 0, 1, 2]


def test_an_empty_folder_of_unfinished_work_that_a_kill_left_is_deleted(tmp_path):
    experiment = scripted([])
    reproduce([experiment], "quick", tmp_path)
    (tmp_path / ".unfinished").mkdir()
    reproduce([experiment], "quick", tmp_path, resume=True)
    assert not (tmp_path / ".unfinished").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_a_result_of_a_larger_scale_is_not_replaced_by_one_of_a_smaller(tmp_path, resume):
    calls: list[int] = []
    experiment = scripted(calls)
    experiment = replace(experiment, settings=dict.fromkeys(("quick", "laptop"), experiment.settings["quick"]))
    reproduce([experiment], "quick", tmp_path)
    reproduce([experiment], "laptop", tmp_path)
    finished = (tmp_path / "scripted.npz").read_bytes()
    with pytest.raises(errors.RolloutError, match=r"--scale laptop --seed 0, which this run .* would replace"):
        reproduce([experiment], "quick", tmp_path, resume=resume)
    assert calls == [0, 1, 2, 0, 1, 2]
    assert (tmp_path / "scripted.npz").read_bytes() == finished
    reproduce([experiment], "laptop", tmp_path)  # the same again may be replaced, by the same bytes
    assert (tmp_path / "scripted.npz").read_bytes() == finished


def test_finished_blocks_of_a_collection_survive_an_interruption(tmp_path):
    workspace = Workspace(0, tmp_path)
    seen = []

    class Interrupting:
        steadyrl_identity = "the same policy, whenever it interrupts"

        def __init__(self, after):
            self.left = after

        def act(self, observations, rng):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return rng.integers(0, 2, len(observations))

    def episodes(policy):
        return workspace.episodes("part", "CartPole-v1", policy, 64, seed=1, block_size=16, backend="serial")

    with pytest.raises(KeyboardInterrupt):
        episodes(Interrupting(120))
    assert (tmp_path / "part.partial").stat().st_size > 1000
    policy = Interrupting(10**9)
    seen = episodes(policy)
    steps_left = 10**9 - policy.left
    fresh = Interrupting(10**9)
    whole = collect_episodes("CartPole-v1", fresh, 64, seed=1, block_size=16, backend="serial")
    np.testing.assert_array_equal(seen.lengths, whole.lengths)
    assert steps_left < 10**9 - fresh.left, "the blocks that were finished did not run again"


class Counting:
    """A policy that counts how often it is asked."""

    steadyrl_identity = "the same policy, however often it was asked"

    def __init__(self):
        self.asked = 0

    def act(self, observations, rng):
        self.asked += 1
        return rng.integers(0, 2, len(observations))


def test_collected_episodes_survive_an_interruption_before_what_is_computed_of_them_is_saved(tmp_path):
    workspace, policy = Workspace(0, tmp_path, "serial"), Counting()

    def compute(interrupted):
        found = workspace.episodes("episodes", "CartPole-v1", policy, 32, seed=1, block_size=16)
        rollouts = workspace.samples("rollouts", "CartPole-v1", policy, 8, [5], seed=2)
        if interrupted:
            raise KeyboardInterrupt
        return {"lengths": found.lengths, "ages": rollouts.ages}

    with pytest.raises(KeyboardInterrupt):
        workspace.arrays("part", lambda: compute(interrupted=True))
    before = policy.asked
    kept = workspace.arrays("part", lambda: compute(interrupted=False))
    assert policy.asked == before, "nothing that was finished ran again"
    assert len(kept["lengths"]) == 32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part.npz"]


def test_finished_chunks_of_a_gradient_survive_an_interruption(tmp_path):
    def ascent():
        workspace = Workspace(0, tmp_path, "serial")
        asked = []
        workspace.say = asked.append
        return Ascent("Pendulum-v1", workspace), asked

    def gradients(ascent, episodes):
        baseline = Baseline.zero(ascent.module.observations.size)
        return ascent.gradients("gradient", episodes, seed=1, baseline=baseline, chunk=2, groups=2)

    one, _ = ascent()
    first, _, _ = gradients(one, 2)
    again, asked = ascent()
    both, lengths, _ = gradients(again, 4)
    assert asked == ["gradient-1: 2 episodes"], "the first chunk did not run again"
    np.testing.assert_array_equal(both[:2], first)
    assert len(lengths) == 4


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_committed_figure_can_be_redrawn_and_its_page_follows_from_the_result(path, tmp_path):
    result = Result.load(path)
    [experiment] = named(result.experiment)
    svg = draw(experiment, result, tmp_path)
    assert svg.startswith("<?xml")
    assert (tmp_path / f"{path.stem}.png").stat().st_size > 5000
    assert path.with_suffix(".svg").exists()
    assert path.with_suffix(".png").exists()
    assert render_markdown(page_of(experiment, result)) == path.with_suffix(".md").read_text()
    assert json.loads(path.with_suffix(".json").read_text()) == json.loads(json.dumps(result.header()))


def test_the_committed_index_follows_from_the_results():
    pages = [
        page_of(e, Result.load(COMMITTED / f"{e.name}.npz"))
        for e in EXPERIMENTS
        if (COMMITTED / f"{e.name}.npz").exists()
    ]
    assert render_markdown_index(pages) == (COMMITTED / "index.md").read_text()
    assert {path.stem for path in RESULTS} == {page.name for page in pages}


def test_a_damaged_or_outdated_result_is_an_error_that_says_what_to_do(tmp_path):
    (tmp_path / "figure-1.npz").write_bytes(b"nonsense")
    with pytest.raises(errors.FileFormatError):
        Result.load(tmp_path / "figure-1.npz")
    outdated = Result("figure-1", "quick", 0, {"epsilon": 0.5}, {}, {})
    with pytest.raises(errors.FileFormatError, match="another version"):
        page_of(named("figure-1")[0], outdated)


def test_a_damaged_result_that_is_to_be_replaced_does_not_stop_the_run(tmp_path):
    """It did after the first experiment, whose index could not be written, and the other ones did not run."""
    first, second = (replace(scripted([]), name=name) for name in ("first", "second"))
    (tmp_path / "second.npz").write_bytes(b"nonsense")
    assert [page.name for page in reproduce([first, second], "quick", tmp_path)] == ["first", "second"]
    (tmp_path / "second.npz").write_bytes(b"nonsense")
    with pytest.raises(errors.FileFormatError, match="second"):
        reproduce([first], "quick", tmp_path, known=[first, second])
    assert (tmp_path / "first.html").exists()


def test_verdicts_are_counted():
    yes, no, open_question = (Finding("c", "m", agrees) for agrees in (True, False, None))
    assert verdict([yes]) == "agrees"
    assert verdict([yes, yes]) == "agrees, in all 2 claims"
    assert verdict([yes, no, open_question]) == "agrees in 1, differs in 1, cannot tell in 1 of 3 claims"


def test_infinities_survive_json():
    numbers = {"a": math.inf, "b": [1.5, -math.inf], "c": np.float64(2.0), "d": "text"}
    assert from_json(json.loads(json.dumps(to_json(numbers), allow_nan=False))) == {
        "a": math.inf,
        "b": [1.5, -math.inf],
        "c": 2.0,
        "d": "text",
    }


def test_the_sweeps_limit_is_that_of_long_sweeps():
    n = 4000
    lengths = EpisodeLengths.from_gymnasium([n - 1])
    distance = phase_distance(lengths, 3 * n, Perturbation.for_average_episode_length(n))
    for multiple in (1, 2, 3):
        assert figure_3b.limit_distance(multiple) == pytest.approx(distance[multiple * n], rel=0.01)


def test_the_squared_length_is_not_inflated_by_noise():
    # Mean of 2000 estimates; each has standard deviation about 12, so the bound is 5 standard errors: 1 in a million.
    rng = np.random.default_rng(0)
    truth = rng.normal(size=50)
    found = np.array([squared_length(truth + 3 * rng.normal(size=(8, 50)))[0] for _ in range(2000)])
    plain_ones = np.array([np.square(truth + 3 * rng.normal(size=(8, 50)).mean(axis=0)).sum() for _ in range(2000)])
    error = found.std() / math.sqrt(len(found))
    assert abs(found.mean() - truth @ truth) < 5 * error
    assert plain_ones.mean() > truth @ truth + 20 * error
    one, its_error = squared_length(truth + 3 * rng.normal(size=(64, 50)))
    assert abs(one - truth @ truth) < 5 * its_error


def test_every_step_of_complete_episodes_estimates_the_true_gradient():
    # 5 standard errors of 4000 episodes: a false alarm in a million.
    process, _ = gallery.two_terminals()
    logits = np.array([[0.0, 0.0], [0.3, -0.2], [0.0, 0.0], [0.0, 0.0]])
    policy = SoftmaxTable(logits)
    found = collect_episodes(process, policy.numpy(), 4000, seed=3, backend="serial", trajectories=True)
    samples, owner = every_step(found.trajectories, np.arange(4000))
    samples = replace(samples, observations=samples.observations.argmax(axis=2))
    assert len(owner) == found.lengths.sum()
    np.testing.assert_allclose(samples.returns[samples.ages == 1], found.returns)
    estimate = steady_state_gradient(policy, samples, samples.average_episode_length)
    truth = policy_gradient(process, logits)[1, 0]
    assert abs(estimate.by_parameter["logits"][1, 0] - truth) < 5 * estimate.standard_error_by_parameter["logits"][1, 0]


def test_common_noise_gives_the_same_episodes_to_the_same_policy_and_nearly_the_same_to_a_near_one(tmp_path):
    ascent = Ascent(figure_2.HOPPER, Workspace(0, tmp_path))
    first, again = (ascent.returns(f"r{i}", 12, seed=5) for i in range(2))
    np.testing.assert_array_equal(first, again)
    ascent.parameters = ascent.parameters + 1e-6
    near = ascent.returns("near", 12, seed=5)
    assert np.corrcoef(first, near)[0, 1] > 0.9
    assert repr(CommonNoise("Hopper-v5", (1.0,))) == "CommonNoise(environment='Hopper-v5', deviation=(1.0,))"


def test_an_interval_never_seems_to_exclude_its_own_value():
    assert interval_text({"value": 2.5, "low": 2.0, "high": 3.0}) == "2.5 (2 to 3)"
    assert interval_text({"value": math.inf, "low": math.inf, "high": math.inf}) == "never"
    assert interval_text({"value": 3.5, "low": 2.0, "high": 3.0}).startswith("2 to 3 (as observed")


def test_the_baseline_is_the_nearest_quadratic():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    values = 1 + x[:, 0] - 2 * x[:, 1] * x[:, 2]
    np.testing.assert_allclose(Baseline.fit(x, values)(x), values, atol=0.02)
    assert (Baseline.zero(3)(x) == 0).all()


def test_costs_are_shown_where_they_matter():
    assert cost_text(EXPERIMENTS, "quick") == ""
    paper = cost_text([figure_2.EXPERIMENT], "paper")
    assert "core-hours" in paper
    assert "HopperBulletEnv-v0" in paper
    laptop = sum(cost.hours for e in EXPERIMENTS for cost in e.cost(e.settings["laptop"]))
    assert laptop / 2 < 1.5, "by the measured rates, two cores need less than 90 minutes"


def test_the_papers_sizes():
    settings = figure_2.EXPERIMENT.settings["paper"]
    assert settings.windows == ((0, 30), (100, 130))
    assert settings.learning_rate == 5e-4
    assert set(settings.gradient_episodes) == {10_000_000}
    assert figure_3b.EXPERIMENT.settings["laptop"].rollouts == 30_000_000
    assert {plan.rollouts for plan in figure_3.EXPERIMENT.settings["paper"].plans} == {100_000}
    share = max(figure_2.EXPERIMENT.settings["laptop"].gradient_episodes) / 10_000_000
    assert share <= 0.01


def test_the_command_lists_runs_and_complains(tmp_path):
    runner = CliRunner()
    listed = runner.invoke(app, ["reproduce", "list"])
    assert [line.split()[0] for line in listed.output.splitlines()] == [experiment.name for experiment in EXPERIMENTS]
    done = runner.invoke(app, ["reproduce", "figure-1", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert "agrees" in done.output
    wrong = runner.invoke(app, ["reproduce", "figure-9", "--out", str(tmp_path)])
    assert isinstance(wrong.exception, errors.RolloutError)
    assert "figure-3b" in str(wrong.exception)
    scale = runner.invoke(app, ["reproduce", "figure-1", "--scale", "huge", "--out", str(tmp_path)])
    assert isinstance(scale.exception, errors.RolloutError)


def ascent_of_known_slope(settings, *, noise):
    """What a run of Figure 2 collects, if |grad J|^2 and E[T] are known at every update."""
    rng = np.random.default_rng(0)
    performance, table, common = 0.0, [], {i: rng.normal(size=(2, 4000)) for i in range(len(settings.windows))}
    for update in range(settings.windows[-1][1] + 1):
        window = next((i for i, (first, last) in enumerate(settings.windows) if first <= update <= last), None)
        squared = 200.0 + 20 * update
        lengths = rng.poisson(11 * (1 + 0.06 * update), 500)
        begun = table[0]["lengths"] if table else lengths
        shrink = begun.mean() / lengths.mean() if settings.step == "without" else 1.0
        shared = np.zeros((2, 0)) if window is None else performance + 10 * common[window] + rng.normal(size=(2, 4000))
        table.append(
            {
                "squared": squared + noise * rng.normal(),
                "squared error": noise,
                "inflated": 2 * squared,
                "lengths": lengths,
                "shrink": shrink,
                "returns": shared[0],
                "ends": shared[1],
                "parameters": np.zeros(3),
                "gradient": np.array([math.sqrt(squared), 0.0, 0.0]),
            }
        )
        performance += settings.learning_rate * shrink * squared
    return table


@pytest.mark.parametrize(("step", "power"), [("without", 1), ("with", 2)])
def test_figure_2_finds_what_is_there(step, power):
    # Ratios are known to a few percent here; the bounds are far outside.
    settings = replace(figure_2.EXPERIMENT.settings["laptop"], step=step)
    table = ascent_of_known_slope(settings, noise=20.0)
    checks = {"0": {"time": 36, "rollouts": 100, "ratio": {"value": 1.0, "low": 0.9, "high": 1.1}}}
    numbers, arrays = figure_2._summarise(settings, table, checks)
    result = Result("figure-2", "laptop", 0, to_json(vars(settings)), from_json(to_json(numbers)), arrays)
    page = page_of(figure_2.EXPERIMENT, result)
    assert page.verdict == "agrees, in all 5 claims"
    late = numbers["windows"][1]
    assert late["ratio with"]["value"] == pytest.approx(1, abs=0.05)
    shrink = np.array([(table[0]["lengths"].mean() / row["lengths"].mean()) ** power for row in table[100:130]])
    assert late["ratio without"]["value"] == pytest.approx(shrink.mean(), rel=0.1)
    assert numbers["growth"]["100"] == pytest.approx(7 - 6 / 12, rel=0.1)  # T = l + 1
    assert figure_2.draw(result) is not None
    assert len(page.departures) == 7


def test_figure_2_does_not_agree_with_a_wrong_gradient():
    settings = figure_2.EXPERIMENT.settings["laptop"]
    table = ascent_of_known_slope(settings, noise=20.0)
    for row in table:
        row["squared"] *= 2
    numbers, arrays = figure_2._summarise(settings, table, {})
    result = Result("figure-2", "laptop", 0, to_json(vars(settings)), from_json(to_json(numbers)), arrays)
    assert [found.verdict for found in figure_2.findings(result)][:2] == ["differs", "differs"]
