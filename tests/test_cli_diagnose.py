"""`steadyrl diagnose` as a user runs it."""

import json

import numpy as np
import pytest

from steadyrl import load_lengths
from test_cli import assert_one_helpful_line, run


def test_diagnose_prints_one_screen_and_writes_the_report(tmp_path):
    result = run(
        "diagnose", "CartPole-v1", "--episodes", 200, "--backend", "serial", "--out", tmp_path / "deep" / "report"
    )
    assert result.returncode == 0, result.stderr
    words = " ".join(result.stdout.split())
    assert words.startswith("Why it matters: ")
    for part in (
        "CartPole-v1 under a random policy",
        "mean length",
        "time to within 1%",
        "first batches",
        "R-hat",
        "do ",
    ):
        assert part in words
    for part in ("E[T]", "epsilon", "perturbed", "null"):  # only readers of the paper need these: --paper
        assert part not in words
    assert len(result.stdout.splitlines()) <= 32
    page = (tmp_path / "deep" / "report" / "report.html").read_text()
    assert "steadyrl diagnose CartPole-v1" in page
    written = json.loads((tmp_path / "deep" / "report" / "diagnosis.json").read_text())
    assert written["episodes"] == 200
    saved = tmp_path / "deep" / "report" / "lengths.txt"
    assert load_lengths(saved).mean == written["average_episode_length"]["value"]
    stagger = next(way["code"] for way in written["strategies"] if way["strategy"] == "stagger")
    assert stagger.startswith(f"lengths = steadyrl.load_lengths({str(saved)!r})\nenvs = ")


def test_diagnose_from_a_file_prints_json_alone(tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([19, 199] * 300))
    result = run("diagnose", "--from", tmp_path / "lengths.npy", "--json", "--num-envs", 256, "--n-steps", 16)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["period"], found["mixing_time"]["steps"]) == (20, None)
    assert found["coefficient_of_variation"] == pytest.approx(0.818, abs=1e-3)
    assert found["recommendation"]["strategy"] == "anytime"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of the two"),
        (["CartPole-v1", "--from", "lengths.txt"], "one of the two"),
        (["--from", "missing.txt"], "missing.txt"),
        (["NoSuchEnvironment-v0"], "NoSuchEnvironment"),
        (["CartPole-v1", "--policy", "gaussian"], "Box actions"),
        (["CartPole-v1", "--tolerance", "2"], "tolerance is 2"),
        (["CartPole-v1", "--episodes", "0"], "episodes is 0"),
        (["CartPole-v1", "--out", "/proc/report"], "no file can be written in '/proc' ("),
        (["CartPole-v1", "--out", __file__], "is a file; name a directory"),
        (["CartPole-v1", "--make", "foo=1"], "CartPole-v1 takes no argument 'foo'"),
    ],
)
def test_wrong_arguments_exit_2_with_one_helpful_line_and_no_traceback(arguments, words):
    assert_one_helpful_line(run("diagnose", *arguments), words)


def test_help_teaches():
    assert "steadyrl diagnose --from monitor.csv" in run("diagnose", "--help").stdout


@pytest.mark.parametrize("name", ["report.html", "diagnosis.json", "lengths.txt"])
def test_a_report_that_could_not_be_written_is_refused_before_any_episode(tmp_path, name):
    """It was noticed at the end, when all episodes had been run, and none of the files after this one were written."""
    (tmp_path / "report" / name).mkdir(parents=True)
    result = run("diagnose", "CartPole-v1", "--backend", "serial", "--out", tmp_path / "report")
    assert_one_helpful_line(result, f"'{name}' cannot be written there: it is a directory")
    assert [path.name for path in (tmp_path / "report").iterdir()] == [name]


def test_a_link_that_leads_nowhere_is_no_place_for_a_report(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    result = run("diagnose", "CartPole-v1", "--backend", "serial", "--out", tmp_path / "link")
    assert_one_helpful_line(result, "is a link to what is not there; name a directory")
