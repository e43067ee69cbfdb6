"""What a training run survives: signals, other runs in its folder, environments that hang or exit; and videos."""

import errno
import functools
import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from scripted import Dice
from steadyrl import Settings, evaluate, train
from steadyrl.common.storage import load_arrays, save_arrays
from steadyrl.environments.seeding import episode_seeds
from steadyrl.errors import RolloutError, TrainingError
from steadyrl.policies.networks import Normalisation
from steadyrl.sspg import reporting
from steadyrl.sspg.normaliser import Normaliser
from steadyrl.sspg.video import check_video, record_video

SMALL = {"num_envs": 4, "n_steps": 8, "backend": "serial"}


def run(*arguments, **how):
    command = [sys.executable, "-m", "steadyrl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **how)


class Odd(gymnasium.Env):
    """Does something odd after so many steps of one environment."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what="exit", after=20):
        self.what, self.after, self.steps = what, after, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.after:
            if self.what == "exit":
                sys.exit(0)
            time.sleep(600)
        return np.zeros(2, np.float32), 1.0, self.steps % 7 == 0, False, {}


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_an_environment_that_exits_is_an_error_and_not_the_end_of_the_program(tmp_path, backend):
    settings = Settings(updates=9, **SMALL | {"backend": backend})
    with pytest.raises(TrainingError, match=r"update 3: .*last good checkpoint is kept"):
        train(functools.partial(Odd, "exit"), settings, out=tmp_path / "run")


def test_an_environment_that_hangs_is_ended_by_the_step_timeout(tmp_path):
    settings = Settings(updates=9, step_timeout=2.0, **SMALL | {"backend": "processes"})
    with pytest.raises(TrainingError, match=r"update 3: .*step_timeout, 2 s"):
        train(functools.partial(Odd, "hang"), settings, out=tmp_path / "run")
    assert not multiprocessing.active_children()


def test_two_runs_cannot_use_one_folder(tmp_path):
    settings = Settings(updates=3, **SMALL)
    entered, leave = threading.Event(), threading.Event()

    def wait(state):
        entered.set()
        leave.wait(60)

    with_folder = functools.partial(train, "CartPole-v1", settings, out=tmp_path / "run")
    first = threading.Thread(target=with_folder, kwargs={"after_update": wait})
    first.start()
    try:
        assert entered.wait(60)
        with pytest.raises(TrainingError, match="in use by another run"):
            with_folder(resume=True)
    finally:
        leave.set()
        first.join()
    with_folder(resume=True)  # it is free again


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "a closed terminal"])
def test_sigterm_and_a_closed_terminal_write_a_checkpoint_and_say_how_to_go_on(tmp_path, number):
    command = [sys.executable, "-m", "steadyrl", "train", "CartPole-v1", "--out", str(tmp_path / "run")]
    command += ["--num-envs", "4", "--backend", "serial", "--steps", "100000000", "--checkpoint-every", "0.05"]
    before = signal.signal(number, signal.SIG_DFL)  # under nohup a closed terminal is ignored, also by what is started
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(number, before)
    with process:
        try:
            while not (tmp_path / "run" / "policy.safetensors").exists():
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "repeat with --resume" in said
    assert "Traceback" not in said


def test_workers_and_times_between_checkpoints_do_not_change_any_file(tmp_path):
    how = [{"workers": 1}, {"workers": 2, "checkpoint_every": 0.001, "step_timeout": 1000.0}]
    for name, more in zip("ab", how, strict=True):
        train("CartPole-v1", Settings(updates=4, num_envs=4, n_steps=8, **more), out=tmp_path / name)
    for file in ("checkpoint.npz", "policy.safetensors", "history.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_redirected_training_prints_a_line_from_time_to_time(monkeypatch):
    monkeypatch.setattr("steadyrl.common.progress.LINE_EVERY", 0.0)
    said = io.StringIO()
    train("CartPole-v1", Settings(updates=3, **SMALL), progress=said)
    lines = [line for line in said.getvalue().splitlines() if re.match(r"\d/3 updates ", line)]
    assert len(lines) == 3
    assert "mean episode length" in lines[-1]
    assert "steps/s" in lines[-1]


def test_without_pytorch_training_names_the_extra_and_evaluation_works():
    code = """
import sys
sys.modules["torch"] = None
import steadyrl
for name in ("train", "Trained"):
    try:
        getattr(steadyrl, name)
    except steadyrl.MissingExtraError as error:
        assert "pip install 'steadyrl[train]'" in str(error), error
    else:
        raise AssertionError(name)
assert len(steadyrl.evaluate("CartPole-v1", "uniform", 2, backend="serial").episodes) == 2
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_running_mean_and_deviation_are_those_of_all_observations():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, size=(n, 2)) for n in (1, 7, 100)]
    running, together = Normaliser(2), np.concatenate(batches)
    for batch in batches:
        running.add(batch)
    np.testing.assert_allclose(running.mean, together.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(running.std, together.std(axis=0), rtol=1e-12)
    known = Normaliser(2, Normalisation(np.array([5.0, 5.0]), np.array([1.0, 2.0]), 10.0))
    np.testing.assert_allclose(known.std, [1.0, 2.0])


# Videos


def test_a_video_shows_an_episode_that_is_reported(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("steadyrl.sspg.video._write", lambda pictures, rate, target: seen.append(len(pictures)))
    found = evaluate("CartPole-v1", "uniform", 7, seed=3, backend="serial", trajectories=True)
    video = record_video("CartPole-v1", found, tmp_path / "a.mp4")
    assert video.episode_return == np.median(found.episodes.returns) == found.episodes.returns[video.episode]
    assert seen == [found.episodes.lengths[video.episode] + 1]
    # By the other route: an environment that begins with the same seed begins in the same state.
    env = gymnasium.make("CartPole-v1")
    first, _ = env.reset(seed=int(episode_seeds(3, video.episode, 1)[0]))
    np.testing.assert_array_equal(first, found.episodes.trajectories.of(video.episode)[0][0].astype(np.float32))
    third = record_video("CartPole-v1", found, tmp_path / "a.mp4", episode=2)
    assert (third.episode, third.episode_return) == (2, found.episodes.returns[2])
    with pytest.raises(RolloutError, match="trajectories=True"):
        record_video("CartPole-v1", evaluate("CartPole-v1", "uniform", 2, backend="serial"), tmp_path / "a.mp4")


def test_a_video_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    import moviepy

    def broken(clip, name, **_):
        with open(name, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(moviepy.ImageSequenceClip, "write_gif", broken)
    (tmp_path / "a.gif").write_bytes(b"good")
    found = evaluate("CartPole-v1", "uniform", 1, backend="serial", trajectories=True)
    with pytest.raises(OSError, match="No space left"):
        record_video("CartPole-v1", found, tmp_path / "a.gif")
    assert (tmp_path / "a.gif").read_bytes() == b"good"
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


class Drawn(gymnasium.Env):
    """Four steps, shown as the pictures that a function gives."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  (as Gymnasium has it)
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, draw, render_mode=None):
        self.draw, self.render_mode, self.t = draw, render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 4, False, {}

    def render(self):
        return self.draw(self.t)


def drawn(draw):
    return gymnasium.envs.registration.EnvSpec("Drawn-v0", entry_point=Drawn, kwargs={"draw": draw})


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda t: None, "returned NoneType"),
        (lambda t: np.zeros((8, 8, 3)), "returned float64"),
        (lambda t: np.zeros((8, 8), np.uint8), "returned uint8 "),
        (lambda t: np.zeros((1, 1, 3), np.uint8), "2 x 2 or more"),
    ],
)
def test_what_is_no_picture_is_refused_before_any_episode(tmp_path, draw, said):
    with pytest.raises(RolloutError, match=said):
        check_video(drawn(draw), tmp_path / "a.gif")


def test_pictures_of_a_video_have_one_size_and_are_those_of_their_steps(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("steadyrl.sspg.video._write", lambda pictures, rate, target: seen.extend(pictures))
    found = evaluate(drawn(None), "uniform", 1, backend="serial", trajectories=True)
    with pytest.raises(RolloutError, match="pictures of one size"):
        record_video(drawn(lambda t: np.zeros((8 + t, 8, 3), np.uint8)), found, tmp_path / "a.gif")
    canvas = np.zeros((8, 8, 3), np.uint8)

    def draw_into_the_same_array(t):
        canvas[:] = t
        return canvas

    record_video(drawn(draw_into_the_same_array), found, tmp_path / "a.gif")
    assert [int(picture.max()) for picture in seen] == [0, 1, 2, 3, 4]


def test_what_cannot_be_filmed_is_refused_before_any_episode(tmp_path):
    check_video("CartPole-v1", tmp_path / "a.mp4")
    with pytest.raises(RolloutError, match="cannot be shown as pictures"):
        check_video("steadyrl/StateSweep-v0", tmp_path / "b.mp4")
    with pytest.raises(RolloutError, match=r"name it .mp4"):
        check_video("CartPole-v1", tmp_path / "a.avi")
    with pytest.raises(RolloutError, match="no such directory"):
        check_video("CartPole-v1", tmp_path / "none" / "a.mp4")


def test_evaluate_on_the_command_line_says_which_episode_was_filmed(tmp_path):
    train("CartPole-v1", Settings(updates=1, **SMALL), out=tmp_path / "run")
    policy = tmp_path / "run" / "policy.safetensors"
    options = ["--episodes", 5, "--backend", "serial"]
    found = run("evaluate", "CartPole-v1", policy, *options, "--video", tmp_path / "a.gif", "--json")
    assert found.returncode == 0, found.stderr
    shown = json.loads(found.stdout)
    assert (tmp_path / "a.gif").stat().st_size > 1000
    returns = evaluate("CartPole-v1", policy, 5, backend="serial").episodes.returns
    assert shown["video"]["return"] == np.median(returns) == returns[shown["video"]["episode"]]
    other_way = run("evaluate", policy, "CartPole-v1", *options, env={**os.environ, "COLUMNS": "200"})
    assert other_way.returncode == 0, other_way.stderr
    assert f"{shown['return']['value']:.6g}, 95% interval" in other_way.stdout


class Returning(gymnasium.Env):
    """Returns something odd in its third step."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, place, value):
        self.place, self.value = place, value

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        found = [np.zeros(2, np.float32), 1.0, self.steps == 5, False, {}]
        if self.steps == 3:
            found[self.place] = self.value
        return tuple(found)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, np.float32(3), r"an observation of shape \(\)"),
        (1, "1.5", r"the reward '1\.5', which is not a number"),
        (1, object(), "which is not a number"),
        (2, "False", "terminated = 'False', which is neither True nor False"),
    ],
)
def test_training_refuses_what_is_not_an_observation_a_reward_or_a_flag(place, value, words):
    with pytest.raises(TrainingError, match=words):
        train(functools.partial(Returning, place, value), Settings(updates=3, **SMALL))


def test_a_checkpoint_whose_digests_fit_but_not_its_content_is_refused(tmp_path):
    """Arrays of other shapes made PyTorch's Adam write beyond its memory; header fields of other kinds were tracebacks.

    Every array is emptied, made a number, made twice as long, made infinite and removed; every field of the header is
    replaced and removed.
    """
    how = SMALL | {"learning_rate_decay": "none"}
    train("CartPole-v1", Settings(updates=3, **how), out=tmp_path)
    more = Settings(updates=5, **how)
    header, arrays = load_arrays(tmp_path / "checkpoint.npz", "training checkpoint")
    header = {name: value for name, value in header.items() if name not in ("kind", "version")}

    def resumed(header, arrays):
        save_arrays(tmp_path / "checkpoint.npz", "training checkpoint", header, arrays)
        return train("CartPole-v1", more, out=tmp_path, resume=True)

    def refused(header, arrays):
        with pytest.raises(TrainingError) as found:
            resumed(header, arrays)
        return "is not a checkpoint, or it is damaged" in str(found.value)

    for name, array in arrays.items():
        spoilt = [np.zeros(0, array.dtype), np.concatenate([np.atleast_1d(array)] * 2)]
        spoilt += [np.full(array.shape, np.inf)] if array.dtype.kind == "f" else []
        spoilt += [array.dtype.type(0)] if array.ndim else []
        spoilt += [array[..., 0]] if array.ndim > 1 and "policy" not in name else []
        replay = name in ("sampler/stream/log", "sampler/stream/seen")  # then what is repeated differs
        for value in spoilt:
            assert refused(header, arrays | {name: value}) or replay, (name, value)
        assert refused(header, {other: value for other, value in arrays.items() if other != name}), name
    for name in header:
        others = [value for value in (None, 7.5, "no", [], -7, 10**30) if not isinstance(value, type(header[name]))]
        others += [-7, 10**30] if isinstance(header[name], int) else []
        for value in others:
            assert refused(header | {name: value}, arrays) or name == "format", (name, value)
        assert refused({other: value for other, value in header.items() if other != name}, arrays) or name == "format"
    for name, value in (
        ("hidden", [{}, 64]),
        ("hidden", [10**6, 64]),
        ("hidden", "no"),
        ("limit", -1),
        ("normalised", 7),
    ):
        assert refused(header | {"policy": header["policy"] | {name: value}}, arrays), (name, value)
        assert refused(header | {"policy": {k: v for k, v in header["policy"].items() if k != name}}, arrays), name
    moments = arrays["learner/critic/moments"]
    assert refused(header, arrays | {"learner/critic/moments": np.append(-1.0, moments[1:])})
    assert resumed(header, arrays).updates == 5
    for name in [name for name, array in arrays.items() if array.dtype == np.float64]:  # whole numbers are numbers
        whole = np.ceil(np.nan_to_num(arrays[name])).astype("i8")
        assert resumed(header, arrays | {name: whole}).updates == 5, name


class Bandit(gymnasium.Env):
    """Every episode has one action."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}


def test_an_update_in_which_everybody_is_reset_is_refused_in_a_sentence():
    with pytest.raises(TrainingError, match="all were being reset together"):
        train(Bandit, Settings(updates=4, num_envs=5, n_steps=1, cure="none", backend="serial"))


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are text there")
def test_a_run_may_be_in_a_directory_whose_name_is_not_utf_8(tmp_path, capfd):
    out = tmp_path / os.fsdecode(b"run\xff")
    train("CartPole-v1", Settings(updates=1, num_envs=2, n_steps=4, backend="serial"), out=out, progress=True)
    assert (out / "policy.safetensors").exists()
    assert "goes on without TensorBoard's files" in capfd.readouterr().err


def test_training_goes_on_where_tensorboard_cannot_write(tmp_path, monkeypatch, capfd):
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    settings = Settings(updates=3, num_envs=2, backend="serial")
    whole = train("CartPole-v1", settings, out=tmp_path / "whole")
    hook = threading.excepthook
    monkeypatch.setattr(RecordWriter, "write", full)
    monkeypatch.setattr(reporting, "TENSORBOARD_EVERY", 0)
    found = train("CartPole-v1", settings, out=tmp_path / "full")
    assert [note for note in found.notes if "No space left" in note and "goes on" in note]
    assert "Traceback" not in capfd.readouterr().err
    assert threading.excepthook is hook
    assert found.history["return"] == whole.history["return"]
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "tensorboard").touch()
    assert train("CartPole-v1", settings, out=tmp_path / "taken").updates == 3


def test_a_run_whose_environment_is_made_with_a_function_is_resumed_and_with_another_is_not(tmp_path, monkeypatch):
    class Paid(Dice):
        def __init__(self, pay):
            super().__init__()

    monkeypatch.setitem(gymnasium.registry, "Paid-v0", EnvSpec("Paid-v0", Paid))

    def paid(by, updates, resume):
        settings = Settings(updates=updates, num_envs=2, n_steps=4, backend="serial", learning_rate_decay="none")
        return train("Paid-v0", settings, out=tmp_path / "run", resume=resume, make_arguments={"pay": by})

    def pay(amount):
        return lambda: amount

    paid(pay(1), 1, resume=False)
    assert paid(pay(1), 2, resume=True).updates == 2  # another function, at another address, that does the same
    with pytest.raises(TrainingError, match="resume it with the environment it was made for"):
        paid(pay(2), 3, resume=True)


class Changing(gymnasium.Env):
    """Changes the action that it is given, in place."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        action *= 0.5
        return action + 0.0, float(action[0]), self.steps == 9, False, {}


def test_a_run_whose_environment_changes_its_action_in_place_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Changing-v0", EnvSpec("Changing-v0", Changing))

    def changing(updates, **how):
        settings = Settings(updates=updates, learning_rate_decay="none", **SMALL)
        return train("Changing-v0", settings, **how).history["return"]

    whole = changing(3)
    changing(2, out=tmp_path / "run")
    assert changing(3, out=tmp_path / "run", resume=True) == whole


def test_a_film_that_ffmpeg_could_not_finish_leaves_the_old_one(tmp_path):
    """MoviePy does not ask how ffmpeg ended: the status was 0, and half a film took the place of the old one."""
    (tmp_path / "a.mp4").write_bytes(b"good")
    words = f"{sys.executable} -m steadyrl evaluate CartPole-v1 uniform --episodes 3 --video a.mp4"
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 1; {words}"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "mean episode length" in done.stdout
    assert "was not made" in done.stderr
    assert (tmp_path / "a.mp4").read_bytes() == b"good"
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (["train", "--steps", "64", "--num-envs", "2", "--out", "out"], ["checkpoint.npz", "policy.safetensors"]),
        (["diagnose", "--episodes", "64", "--out", "out"], ["report.html", "diagnosis.json", "lengths.txt"]),
    ],
)
def test_files_are_written_where_they_were_asked_for_though_the_environment_goes_elsewhere(tmp_path, command, files):
    """Training was lost at its end, and a report was written below the directory that the environment went to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "walks.py").write_text(
        "import os, gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Walks(CartPoleEnv):\n"
        f"    def step(self, action):\n        os.chdir({str(elsewhere)!r})\n        return super().step(action)\n"
        "gymnasium.register('Walks-v0', Walks, max_episode_steps=50)\n"
    )
    words = [sys.executable, "-m", "steadyrl", command[0], "walks:Walks-v0", "--backend", "serial", *command[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert set(files) <= {path.name for path in (tmp_path / "out").iterdir()}
    assert not list(elsewhere.iterdir())
