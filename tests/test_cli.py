"""`steadyrl check` as a user runs it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from steadyrl import Episodes, LearningProcess, Perturbation, average_episode_length, perturb, uniform_policy
from steadyrl.cli import app
from steadyrl.errors import FileFormatError
from steadyrl.exact import gallery


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "steadyrl", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def assert_one_helpful_line(result, words):
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_check_prints_one_screen_and_exits_0_for_an_episodic_process():
    result = run("check", "FrozenLake-v1")
    assert result.returncode == 0, result.stderr
    for words in ("FrozenLake-v1", "1,621 states (21 terminal)", "E[T]", "8.6726", "J_epi", "Theorem 5"):
        assert words in result.stdout
    assert len(result.stdout.splitlines()) < 25


def test_check_exits_1_and_shows_the_witness_if_the_model_is_not_episodic():
    result = run("check", "FrozenLake-v1", "--time-limit", "none")
    assert result.returncode == 1, result.stderr
    assert "stay for ever in states 0, 1, 2, 3" in " ".join(result.stdout.split())


def test_check_json_has_stable_keys_and_every_residual_is_small():
    result = run("check", "FrozenLake-v1", "--json", "--epsilon", 0.5)
    found = json.loads(result.stdout)
    process = LearningProcess.from_gymnasium("FrozenLake-v1")
    assert found["ok"] is found["homogeneous"] is found["finite"] is True
    assert (found["states"], found["actions"], found["time_limit"], found["witness"]) == (1621, 4, 100, {})
    policy = found["policy"]
    assert policy["average_episode_length"] == average_episode_length(process, uniform_policy(process))
    assert policy["epsilon"] == 0.5
    assert set(policy) == {
        "average_episode_length",
        "episode_performance",
        "epsilon",
        "mixing_time",
        "notes",
        "period",
        "perturbed_mixing_time",
        "steady_state_performance",
        "theorems",
    }
    assert len(policy["theorems"]) == 7
    assert all(residual < 1e-9 for residual in policy["theorems"].values())


@pytest.mark.slow
def test_check_takes_saved_processes_policies_and_draws(tmp_path):
    process, policy = gallery.periodic()
    process.save(tmp_path / "process.npz")
    policy[1] = 0.2, 0.8
    np.save(tmp_path / "policy.npy", policy)
    (tmp_path / "policy.json").write_text(json.dumps(policy.tolist()))
    np.savetxt(tmp_path / "policy.csv", policy, delimiter=",")
    for name in ("policy.npy", "policy.json", "policy.csv"):
        result = run("check", tmp_path / "process.npz", "--policy", tmp_path / name, "--json")
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)["policy"]
        assert found["average_episode_length"] == pytest.approx(2 * 0.2 + 4 * 0.8)
        assert found["mixing_time"] is None  # periodic: never
        assert found["period"] == 2
    picture = tmp_path / "mixing.png"
    result = run("check", tmp_path / "process.npz", "--plot", picture)
    assert result.returncode == 0, result.stderr
    assert "never" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(picture.read_bytes()) > 10_000


def test_a_policy_without_steps_is_repeated_at_every_step(tmp_path):
    policy = np.tile([0.0, 0.5, 0.5, 0.0], (21, 1))
    np.save(tmp_path / "policy.npy", policy)
    result = run("check", "FrozenLake-v1", "--policy", tmp_path / "policy.npy", "--json")
    assert json.loads(result.stdout)["policy"]["average_episode_length"] < 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["FrozenLake-v1", "--epsilon", "1.5"], "epsilon is 1.5"),
        (["FrozenLake-v1", "--tolerance", "0"], "tolerance is 0"),
        (["FrozenLake-v1", "--time-limit", "soon"], "'soon'"),
        (["FrozenLake-v1", "--policy", "missing.npy"], "missing.npy"),
        (["FrozenLake-v1", "--plot", "picture.bmp"], ".png"),
        (["NoSuchLake-v1"], "NoSuchLake-v1"),
        (["CartPole-v1"], "carries no model"),
        ([__file__], "not a file that steadyrl wrote"),
    ],
)
def test_wrong_arguments_exit_2_with_one_helpful_line_and_no_traceback(arguments, words):
    assert_one_helpful_line(run("check", *arguments), words)


@pytest.mark.slow
def test_help_teaches():
    assert "steadyrl check FrozenLake-v1 --plot mixing.png" in run("check", "--help").stdout
    assert "check" in run("--help").stdout
    assert run("--version").stdout.startswith("steadyrl 0.")


def test_a_saved_process_takes_another_time_limit_or_none(tmp_path):
    LearningProcess.from_gymnasium("FrozenLake-v1").save(tmp_path / "lake.npz")
    for limit, expected in (("spec", 100), ("7", 7), ("500", 500), ("none", None)):
        result = run("check", tmp_path / "lake.npz", "--time-limit", limit, "--json")
        assert json.loads(result.stdout)["time_limit"] == expected


def test_policy_files_of_other_kinds_are_refused(tmp_path):
    process, policy = gallery.periodic()
    process.save(tmp_path / "process.npz")
    result = run("check", tmp_path / "process.npz", "--policy", tmp_path / "process.npz")
    assert (result.returncode, "one named policy" in result.stderr) == (2, True)
    (tmp_path / "empty.csv").write_text("")
    result = run("check", tmp_path / "process.npz", "--policy", tmp_path / "empty.csv")
    assert (result.returncode, "the file is empty" in result.stderr, "Warning" in result.stderr) == (2, True, False)
    np.savez(tmp_path / "many.npz", other=np.ones(3), policy=policy)
    assert run("check", tmp_path / "process.npz", "--policy", tmp_path / "many.npz").returncode == 0


def test_damaged_policy_files_are_refused_with_a_sentence(tmp_path):
    process, policy = gallery.periodic()
    process.save(tmp_path / "process.npz")
    np.savez_compressed(tmp_path / "whole.npz", policy=np.tile(policy, (20, 1)))
    np.save(tmp_path / "whole.npy", policy)
    zipped, plain = (bytearray((tmp_path / name).read_bytes()) for name in ("whole.npz", "whole.npy"))
    flipped, header = zipped.copy(), plain.copy()
    flipped[80] ^= 255
    header[20:25] = b"((((("
    damaged = {
        "cut.npz": zipped[: len(zipped) // 2],
        "flipped.npz": flipped,
        "header.npy": header,
        "two.npy": plain + plain,
        "large.npy": plain.replace(b"), }" + b" " * 12, b"0" * 12 + b"), }"),
        "huge.json": b"[[1" + b"0" * 400 + b", 0]]",
        "deep.json": b"[" * 100_000,
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileFormatError, match=f"{name}' does not hold an array of probabilities"):
            app(["check", str(tmp_path / "process.npz"), "--policy", str(tmp_path / name)], standalone_mode=False)


def test_a_perturbed_process_is_checked_as_it_is(tmp_path):
    perturbed = perturb(gallery.state_sweep(5)[0], Perturbation(0.5))
    perturbed.save(tmp_path / "perturbed.npz")
    found = json.loads(run("check", tmp_path / "perturbed.npz", "--json").stdout)["policy"]
    assert found["average_episode_length"] == pytest.approx(6)
    assert found["epsilon"] is None


def test_a_slow_process_is_checked_in_no_time_and_says_so(tmp_path):
    gallery.nearly_decomposable(1e-6)[0].save(tmp_path / "slow.npz")
    result = run("check", tmp_path / "slow.npz")
    assert "after 8,432,370 steps = 2.11 E[T]" in result.stdout
    assert "As it is, the process comes within 0.01 of its steady state after 2.11" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (".", "which is a directory; name a file in it"),
        ("episodes.txt", "name it 'episodes.npz'"),
        ("episodes", "name it 'episodes.npz'"),
        ("nowhere/episodes.npz", "there is no directory 'nowhere'"),
        ("/proc/episodes.npz", "--out is '/proc/episodes.npz', but no file can be written in '/proc' ("),
    ],
)
def test_collect_says_at_once_what_is_wrong_with_its_file(tmp_path, monkeypatch, out, words):
    monkeypatch.chdir(tmp_path)
    assert_one_helpful_line(run("collect", "CartPole-v1", "--episodes", 2, "--out", out), words)
    assert list(tmp_path.iterdir()) == []


def test_collect_replaces_a_file_only_by_a_whole_one_and_says_so(tmp_path):
    out = tmp_path / "episodes.npz"
    out.write_text("the old one")
    command = ["collect", "CartPole-v1", "--episodes", 2, "--out", out, "--backend", "serial"]
    failed = run(*command, "--max-episode-steps", 1)
    assert failed.returncode == 2
    assert out.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [out]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "in the place of the one that was there" in " ".join(done.stdout.split())
    assert len(Episodes.load(out)) == 2


def test_check_says_which_condition_fails_and_why(tmp_path):
    # Action 0 goes back and forth for ever.
    wait, leave = [[0, 1], [0, 1]], [[0, 1], [1, 0]]
    LearningProcess([wait, leave], [0, 1], [1, 0]).save(tmp_path / "stays.npz")
    shown = " ".join(run("check", tmp_path / "stays.npz").stdout.split())
    assert "homogeneous yes: all initial states are terminal states, and every episode starts alike" in shown
    assert "finite no: under some policies, episodes do not end; they do end under this one" in shown
    np.save(tmp_path / "wait.npy", [[1.0, 0.0], [1.0, 0.0]])
    shown = " ".join(run("check", tmp_path / "stays.npz", "--policy", tmp_path / "wait.npy").stdout.split())
    assert "finite no: under some policies, episodes do not end; this one is such a policy" in shown
    LearningProcess([wait, leave], [0, 1], [0, 1]).save(tmp_path / "textbook.npz")
    result = run("check", tmp_path / "textbook.npz")
    shown = " ".join(result.stdout.split())
    assert result.returncode == 1
    assert "homogeneous no: the initial states or their actions lead to different states" in shown
    assert "finite no: without terminal states, episodes have neither a start nor an end" in shown
    assert "LearningProcess.from_mdp(P, R, start, terminal)" in shown
    assert "starts alike" not in shown


@pytest.mark.slow
def test_the_same_picture_has_the_same_bytes(tmp_path):
    gallery.periodic()[0].save(tmp_path / "process.npz")
    for suffix in ("svg", "png", "pdf"):
        pictures = [tmp_path / f"{name}.{suffix}" for name in ("one", "two")]
        for picture in pictures:
            assert run("check", tmp_path / "process.npz", "--plot", picture).returncode == 0
        assert pictures[0].read_bytes() == pictures[1].read_bytes(), suffix
