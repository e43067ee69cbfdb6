"""Backends: the same bytes from all of them, whatever dies, hangs or fails on the way."""

import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from scripted import Dice, Faulty, same
from steadyrl import Episodes, MissingExtraError, NotEpisodicError, collect_episodes, collect_samples
from steadyrl.errors import (
    EnvironmentRaisedError,
    EpisodeTooLongError,
    FileFormatError,
    NonFiniteError,
    RolloutError,
    StepTimeoutError,
    WorkerLostError,
)
from steadyrl.rollouts import planning
from steadyrl.rollouts.checkpoints import Checkpoint
from steadyrl.rollouts.schedule import Schedule

# Bullet environments do not come back to the same state by reset(seed=...): equal bytes need fresh copies.
REAL = [
    ("CartPole-v1", "uniform", 300, 64),
    ("FrozenLake-v1", "uniform", 300, 64),
    ("HumanoidBulletEnv-v0", "gaussian", 24, 8),
    ("Hopper-v5", "gaussian", 48, 16),
]


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "policy", "episodes", "block_size"), REAL)
def test_serial_and_any_number_of_processes_give_the_same_bytes(environment, policy, episodes, block_size):
    collect = partial(collect_episodes, environment, policy, episodes, seed=3, block_size=block_size)
    serial = collect(backend="serial")
    assert len(serial) == episodes
    for workers in (1, 2, 3):
        assert same(serial, collect(backend="processes", workers=workers))


def test_samples_too_are_the_same_bytes():
    collect = partial(collect_samples, "CartPole-v1", "uniform", 100, [10, 40], seed=3, block_size=16)
    assert same(collect(backend="serial"), collect(backend="processes", workers=2))


def test_factories_from_a_script_can_be_sent_to_workers():
    base = 1  # what a notebook's function closes over

    def make():
        return Dice(pause=0.0 * base)

    serial = collect_episodes(make, "uniform", 40, backend="serial", block_size=8)
    assert same(serial, collect_episodes(make, "uniform", 40, backend="processes", workers=2, block_size=8))


def test_a_killed_workers_blocks_run_again_to_the_same_bytes(tmp_path):
    healthy = collect_episodes(partial(Faulty, "none"), "uniform", 200, seed=5, block_size=10, backend="serial")
    make = partial(Faulty, "kill", once=str(tmp_path / "killed"))
    episodes = collect_episodes(make, "uniform", 200, seed=5, block_size=10, backend="processes", workers=2)
    assert (tmp_path / "killed").exists()
    assert [note for note in episodes.notes if "killed by signal 9" in note]
    for name in ("lengths", "returns", "seeds"):
        np.testing.assert_array_equal(getattr(episodes, name), getattr(healthy, name))
    np.testing.assert_array_equal(episodes.ages.total, healthy.ages.total)


def expected_failure(seed, episodes, modulus=7):
    """The seeds of the episodes in which Faulty fails: long ones whose seed is divisible."""
    healthy = collect_episodes(partial(Faulty, "none"), "uniform", episodes, seed=seed, block_size=10, backend="serial")
    return healthy.seeds[(healthy.seeds % modulus == 0) & (healthy.lengths == Dice.long)].tolist()


FAULTS = [
    ("raise", EnvironmentRaisedError, "gripper is stuck"),
    ("nan", NonFiniteError, "nan at place 0"),
    ("nan reward", NonFiniteError, "reward nan"),
]


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize(("fault", "error", "words"), FAULTS)
def test_a_fault_is_an_error_that_names_the_place(fault, error, words, backend):
    bad = expected_failure(5, 100)
    with pytest.raises(error, match=words) as caught:
        collect_episodes(partial(Faulty, fault), "uniform", 100, seed=5, block_size=10, backend=backend, workers=1)
    found = caught.value
    assert found.episode_seed in bad
    assert found.step == 5
    assert found.block == found.episode // 10
    for part in ("environment ", f"block {found.block}", f"episode seed {found.episode_seed}", "step 5"):
        assert part in str(found)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_failed_episode_can_be_replayed_from_its_error(backend):
    with pytest.raises(EnvironmentRaisedError) as caught:
        collect_episodes(partial(Faulty, "raise"), "uniform", 100, seed=5, backend=backend, workers=1)
    env = Faulty("raise")
    env.reset(seed=caught.value.episode_seed)
    assert len(caught.value.actions) == caught.value.step
    for action in caught.value.actions[:-1]:
        env.step(action)
    with pytest.raises(RuntimeError, match="gripper"):
        env.step(caught.value.actions[-1])


@pytest.mark.parametrize("fault", ["raise", "nan", "nan reward"])
def test_faults_can_be_left_out_and_are_reported(fault):
    bad = expected_failure(5, 100)
    episodes = collect_episodes(
        partial(Faulty, fault), "uniform", 100, seed=5, block_size=10, backend="serial", on_error="skip"
    )
    assert sorted(entry.seed for entry in episodes.skipped) == sorted(bad)
    assert len(episodes) == 100 - len(bad)
    assert not set(bad) & set(episodes.seeds.tolist())
    assert np.isfinite(episodes.ages.total).all()
    assert episodes.ages.count[0] == len(episodes)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_hang_is_stopped_and_named(backend):
    bad = expected_failure(5, 60)
    with pytest.raises(StepTimeoutError, match="step timeout") as caught:
        collect_episodes(
            partial(Faulty, "hang"), "uniform", 60, seed=5, block_size=10, backend=backend, workers=1, step_timeout=1.0
        )
    assert caught.value.episode_seed in bad
    assert caught.value.step == 5


@pytest.mark.parametrize("fault", ["hang", "kill"])
def test_episodes_that_hang_or_kill_their_worker_are_left_out_as_those_that_raise(fault):
    # One fault in the run, so that what is left out can be compared with an environment that raises there.
    seed = next(s for s in range(100) if len(expected_failure(s, 20)) == 1)
    collect = partial(collect_episodes, policy="uniform", episodes=20, seed=seed, block_size=10, on_error="skip")
    raised = collect(partial(Faulty, "raise"), backend="serial")
    stopped = collect(partial(Faulty, fault), backend="processes", workers=1, step_timeout=1.0)
    assert [entry.seed for entry in stopped.skipped] == [entry.seed for entry in raised.skipped]
    np.testing.assert_array_equal(stopped.lengths, raised.lengths)
    np.testing.assert_array_equal(stopped.ages.total, raised.ages.total)


def test_an_environment_that_kills_every_worker_is_named():
    with pytest.raises(WorkerLostError, match="again and again") as caught:
        collect_episodes(partial(Faulty, "kill"), "uniform", 60, seed=5, block_size=10, backend="processes", workers=1)
    assert caught.value.episode_seed in expected_failure(5, 60)


def test_an_endless_episode_is_an_error_that_speaks_of_finiteness():
    with pytest.raises(EpisodeTooLongError, match=r"finiteness condition.*max_episode_steps") as caught:
        collect_episodes(
            partial(Faulty, "endless"), "uniform", 60, seed=5, block_size=10, backend="serial", max_episode_steps=200
        )
    assert caught.value.step == 200
    assert isinstance(caught.value, NotEpisodicError)


def test_a_limit_is_the_specs_or_a_hundred_thousand():
    assert collect_episodes("CartPole-v1", "uniform", 2, backend="serial").provenance["max_episode_steps"] == 500
    assert collect_episodes(Dice, "uniform", 2, backend="serial").provenance["max_episode_steps"] == 100_000


def test_what_cannot_be_sent_says_so():
    lock = (i for i in range(3))  # generators cannot be pickled

    def make():
        next(lock)
        return Dice()

    with pytest.raises(RolloutError, match="cannot be sent"):
        collect_episodes(make, "uniform", 600, backend="processes", workers=1)


def test_auto_says_what_it_chose_and_why(monkeypatch):
    monkeypatch.setattr(planning, "cores", lambda: 2)
    small = collect_episodes(Dice, "uniform", 10)
    assert "backend serial: all fits into one block" in small.notes[0]
    assert "EnvPool" in small.notes[0]
    large = collect_episodes(Dice, "uniform", 600)
    assert large.notes[0].startswith("backend processes: there are 2 cores")
    assert same(large, collect_episodes(Dice, "uniform", 600, backend="serial"))


def test_missing_extras_name_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'steadyrl\[ray\]'"):
        collect_episodes("CartPole-v1", "uniform", 2, backend="ray")
    monkeypatch.setitem(sys.modules, "pybullet_envs_gymnasium", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'steadyrl\[bullet\]'"):
        collect_episodes("HopperBulletEnv-v0", "uniform", 2)


def command(out, *more):
    return [sys.executable, "-m", "steadyrl", "collect", "CartPole-v1", "--episodes", "8000", "--out", str(out), *more]


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "whole.npz"
    collect_episodes("CartPole-v1", "uniform", 8000, backend="processes").save(out)
    return out.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "backend"), [(1, "serial"), (2, "processes")])
def test_a_run_killed_at_a_random_moment_resumes_to_the_same_bytes(tmp_path, whole, seed, backend):
    out, partial_file = tmp_path / "episodes.npz", tmp_path / "episodes.npz.partial"
    options = ("--backend", backend, "--workers", "2")
    process = subprocess.Popen(command(out, *options), stderr=subprocess.DEVNULL)
    # A whole run writes some 370,000 bytes: by size, the moment is random and yet never after the end.
    moment = random.Random(seed).uniform(1_000, 200_000)
    wait_for(lambda: partial_file.exists() and partial_file.stat().st_size > moment)
    process.kill()
    process.wait()
    assert partial_file.exists()
    assert not out.exists()
    subprocess.run(command(out, *options, "--resume"), check=True, capture_output=True, timeout=120)
    assert out.read_bytes() == whole
    assert not partial_file.exists()


def test_ctrl_c_keeps_finished_blocks_and_says_how_to_go_on(tmp_path, whole):
    out, partial_file = tmp_path / "episodes.npz", tmp_path / "episodes.npz.partial"
    process = subprocess.Popen(
        command(out, "--backend", "processes", "--workers", "2"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: partial_file.exists() and partial_file.stat().st_size > 100_000)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    kept = partial_file.stat().st_size
    forgotten = subprocess.run(command(out), capture_output=True, text=True, timeout=120, check=False)
    assert forgotten.returncode == 2
    assert "--resume" in forgotten.stderr
    assert partial_file.stat().st_size == kept
    changed = subprocess.run(
        [*command(out, "--backend", "serial", "--resume"), "--seed", "7"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert changed.returncode == 2
    assert "another run (seed: 0 then, 7 now)" in changed.stderr
    done = subprocess.run(
        command(out, "--backend", "serial", "--resume"), capture_output=True, text=True, timeout=120, check=True
    )
    assert out.read_bytes() == whole
    assert re.search(r"E\[T\]\s+2\d\.\d+ ± 0\.\d+", done.stdout)


def test_a_half_written_record_is_dropped(tmp_path):
    path = tmp_path / "partial"
    manifest = {"block_size": 4, "total": 8}
    block = {"skipped": [], "lengths": np.arange(4)}
    first = Checkpoint(path, manifest, resume=False)
    first.write({"block": 0, **block})
    size = path.stat().st_size
    first.write({"block": 1, **block})
    first.close()
    os.truncate(path, path.stat().st_size - 3)
    again = Checkpoint(path, manifest, resume=True)
    assert again.blocks == [0]
    again.write({"block": 1, **block})
    assert again.read(1)["lengths"].tolist() == [0, 1, 2, 3]
    again.close()
    assert path.stat().st_size > size


def interrupted(checkpoint, episodes, monkeypatch, *, after):
    """Run Dice until so many blocks are finished, as far as Ctrl-C; return what goes on from there."""
    written = []

    def write(self, block, _write=Checkpoint.write):
        _write(self, block)
        written.append(block)
        if len(written) == after:
            raise KeyboardInterrupt

    collect = partial(collect_episodes, Dice, "uniform", block_size=10, backend="serial", checkpoint=checkpoint)
    monkeypatch.setattr(Checkpoint, "write", write)
    with pytest.raises(KeyboardInterrupt):
        collect(episodes)
    return collect


def test_a_resumed_run_may_grow_to_the_same_bytes_but_not_shrink(tmp_path, monkeypatch):
    checkpoint = tmp_path / "partial"
    collect = interrupted(checkpoint, 25, monkeypatch, after=3)  # the last block has 5 episodes, and 10 in a longer run
    with pytest.raises(RolloutError, match=r"of a run of 25, and 24 are asked for now.* go on with 25 or more"):
        collect(24, resume=True)
    assert same(collect(47, resume=True), collect_episodes(Dice, "uniform", 47, block_size=10, backend="serial"))
    assert not checkpoint.exists()


def test_a_run_that_grew_does_not_shrink_back_to_its_first_total(tmp_path):
    manifest = {"block_size": 4, "total": 8}
    first = Checkpoint(tmp_path / "partial", manifest, resume=False)
    first.write({"block": 0, "skipped": [], "lengths": np.arange(4)})
    first.close()
    grown = Checkpoint(tmp_path / "partial", {**manifest, "total": 12}, resume=True)
    grown.write({"block": 2, "skipped": [], "lengths": np.arange(4)})
    grown.close()
    with pytest.raises(RolloutError, match="of a run of 12, and 8 are asked for"):
        Checkpoint(tmp_path / "partial", manifest, resume=True)


def test_a_run_that_fails_in_its_first_block_leaves_nothing_behind(tmp_path):
    checkpoint = tmp_path / "partial"
    run = partial(collect_episodes, policy="uniform", episodes=20, block_size=20, seed=5, checkpoint=checkpoint)
    with pytest.raises(EnvironmentRaisedError):
        run(partial(Faulty, "raise"))
    assert not checkpoint.exists()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("size", [0, 5, 30, None])
def test_a_checkpoint_without_a_finished_block_is_begun_again(tmp_path, resume, size):
    path = tmp_path / "partial"
    killed = Checkpoint(path, {"block_size": 4, "total": 8, "seed": 1}, resume=False)
    killed._file.close()  # as a process that is killed leaves it
    if size is not None:
        os.truncate(path, size)
    again = Checkpoint(path, {"block_size": 4, "total": 8, "seed": 2}, resume=resume)
    assert again.blocks == []
    again.write({"block": 1, "skipped": [], "lengths": np.arange(4)})
    again.close()
    last = Checkpoint(path, {"block_size": 4, "total": 8, "seed": 2}, resume=True)
    assert last.blocks == [1]
    last.close()


def test_a_file_of_another_kind_is_not_overwritten_by_a_checkpoint(tmp_path):
    path = tmp_path / "partial"
    path.write_text("my notes")
    with pytest.raises(FileFormatError, match="not a checkpoint"):
        Checkpoint(path, {"block_size": 4, "total": 8}, resume=False)
    assert path.read_text() == "my notes"


def test_the_commands_output_when_there_is_no_terminal(tmp_path):
    out = tmp_path / "a.npz"
    options = ["--make", "max_episode_steps=15", "--policy", "uniform", "--seed", "3", "--backend", "serial"]
    arguments = ["collect", "CartPole-v1", "--episodes", "300", "--out", str(out), *options]
    done = subprocess.run(
        [sys.executable, "-m", "steadyrl", *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    assert "backend serial: it was asked for" in done.stderr
    assert re.search(r"300/300 episodes  [\d,]+ steps/s  mean episode length \d+\.\d\d ± \d\.\d\d", done.stderr)
    assert "\x1b" not in done.stderr
    episodes = Episodes.load(out)
    assert episodes.lengths.max() == 15
    # The command in the file makes the same file.
    again = tmp_path / "b.npz"
    words = episodes.provenance["command"].split()[1:]
    subprocess.run([sys.executable, "-m", "steadyrl", *words, "--out", str(again)], check=True, capture_output=True)
    assert again.read_bytes() == out.read_bytes()


def test_the_live_bar_shows_episodes_rate_and_the_running_average():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    collect_episodes("CartPole-v1", "uniform", 600, backend="serial", progress=stream)
    shown = stream.getvalue()
    assert "steps/s" in shown
    assert re.search(r"length\s+\d+\.\d\d\s+±\s+\d\.\d\d", shown)


def test_lost_blocks_come_first_and_workers_do_not_run_far_ahead():
    schedule = Schedule(range(10), window=3)
    assert [schedule.take() for _ in range(4)] == [0, 1, 2, None]
    schedule.give_back(1)
    assert schedule.take() == 1
    schedule.folded(1)
    assert [schedule.take(), schedule.take()] == [3, None]
    for block in range(10):
        assert not schedule.finished
        schedule.done(block)
    assert schedule.finished


def test_no_worker_outlives_its_run():
    with pytest.raises(EnvironmentRaisedError):
        collect_episodes(
            partial(Faulty, "raise"), "uniform", 100, seed=5, block_size=10, backend="processes", workers=2
        )
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert not [line for line in commands if b"steadyrl.rollouts.worker" in line]
