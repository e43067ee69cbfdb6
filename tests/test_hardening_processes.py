"""Hostile environments and signals: collecting goes on, or ends with an error that names the place.

Every test here failed, or could not have been written, before the fault that it names was mended.
"""

import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from scripted import Dice, Faulty, same
from steadyrl import Episodes, Settings, collect_episodes, collect_samples, diagnose, evaluate, train
from steadyrl.cli import commands
from steadyrl.common.quiet import output_to_stderr
from steadyrl.errors import (
    EnvironmentRaisedError,
    EpisodeError,
    InvalidStepError,
    NonFiniteError,
    PolicyError,
    RolloutError,
    StepTimeoutError,
    TrainingError,
    WorkerLostError,
)
from steadyrl.policies.networks import UniformPolicy
from steadyrl.rollouts import planning, processes, ray_tasks

HERE = str(Path(__file__).parent)


class Forking(Dice):
    """Once, in a long episode, it forks: then the parent exits and the child stays, or both go on."""

    def __init__(self, once, both=False):
        super().__init__()
        self.once, self.both = once, both

    def step(self, action):
        if self.steps == 1 and self.length == self.long and not Path(self.once).exists():
            child = os.fork()
            Path(f"{self.once}.{os.getpid()}").touch()
            if child:
                Path(self.once).write_text(str(child))
            if not self.both:
                if child == 0:
                    time.sleep(600)
                os._exit(1)
        return super().step(action)


def is_gone(process, seconds=30):
    """Whether a process ends within some seconds; what is dead but not yet buried counts as gone."""
    for _ in range(int(seconds / 0.1)):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("both", [False, True], ids=["the parent exits", "both go on"])
def test_an_environment_that_forks_hangs_nothing_and_leaves_nothing_behind(tmp_path, both):
    once = str(tmp_path / "once")
    found = collect_episodes(partial(Forking, once, both), "uniform", 60, block_size=10, backend="processes", workers=2)
    np.testing.assert_array_equal(
        found.lengths, collect_episodes(Dice, "uniform", 60, block_size=10, backend="serial").lengths
    )
    assert is_gone(int(Path(once).read_text()))


def test_an_environment_that_forks_and_exits_does_not_hang_training(tmp_path):
    once, settings = tmp_path / "once", Settings(updates=20, num_envs=1, n_steps=32, backend="processes")
    with pytest.raises(TrainingError, match="its process has ended"):
        train(partial(Forking, str(once)), settings)
    assert is_gone(int(once.read_text()))  # it holds the pipe of its parent, which is gone


def test_a_child_that_an_environment_forks_does_not_go_on_with_our_work(tmp_path):
    once = str(tmp_path / "once")
    found = collect_episodes(partial(Forking, once, True), "uniform", 20, block_size=10, backend="serial")
    assert len(found) == 20
    child = int(Path(once).read_text())
    os.waitpid(child, 0)


def test_workers_die_with_the_run_that_started_them(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {HERE!r})\n"
        "from scripted import Dice; from steadyrl import collect_episodes\n"
        "collect_episodes(lambda: Dice(0.01), 'uniform', 10**6, block_size=100, backend='processes', workers=2)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    deadline = time.monotonic() + 60
    while len(found := children.read_text().split()) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)  # so that they are at work
    parent.kill()
    parent.wait()
    assert len(found) == 2
    assert all(is_gone(int(child)) for child in found)


def run_slowly(tmp_path, *more):
    (tmp_path / "slow.py").write_text(
        f"import sys; sys.path.insert(0, {HERE!r})\nimport gymnasium\nfrom scripted import Dice\n"
        "gymnasium.register('Slow-v0', entry_point=lambda: Dice(0.002))\n"
    )
    words = ["collect", "slow:Slow-v0", "--episodes", "150", "--block-size", "10", "--backend", "serial", *more]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, "-m", "steadyrl", *words, "--out", str(tmp_path / "a.npz")],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_sigterm_acts_like_ctrl_c(tmp_path):
    process, partial_file = run_slowly(tmp_path), tmp_path / "a.npz.partial"
    deadline = time.monotonic() + 60
    while not (partial_file.exists() and partial_file.stat().st_size > 5000) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert partial_file.exists()
    done = run_slowly(tmp_path, "--resume")
    _, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
    assert len(Episodes.load(tmp_path / "a.npz")) == 150
    assert not partial_file.exists()


class Exiting(Dice):
    """Calls sys.exit(0) somewhere."""

    def __init__(self, where):
        super().__init__()
        self.where = where
        if where == "make":
            sys.exit(0)

    def reset(self, **options):
        if self.where == "reset":
            sys.exit(0)
        return super().reset(**options)

    def step(self, action):
        if self.where == "step" and self.steps == 3:
            sys.exit(0)
        return super().step(action)

    def close(self):
        if self.where == "close":
            sys.exit(0)


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_exits_is_an_error_that_names_the_place(where, backend):
    with pytest.raises(EnvironmentRaisedError, match=r"called sys\.exit\(0\).*episode seed \d+") as caught:
        collect_episodes(partial(Exiting, where), "uniform", 20, block_size=10, backend=backend, workers=1)
    assert caught.value.step == (4 if where == "step" else 0)


def test_an_environment_that_exits_can_be_left_out():
    found = collect_episodes(partial(Exiting, "step"), "uniform", 20, backend="serial", on_error="skip")
    assert (found.lengths == Dice.short).all()
    assert len(found) + len(found.skipped) == 20


class SpeechlessError(Exception):
    def __str__(self):
        raise AttributeError("no such attribute")


class Wordless(Dice):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def step(self, action):
        raise self.kind()


def test_an_error_whose_message_cannot_be_shown_is_named_and_can_be_left_out():
    make = partial(Wordless, SpeechlessError)
    with pytest.raises(EnvironmentRaisedError, match="raised SpeechlessError: a message that cannot be shown"):
        collect_episodes(make, "uniform", 2, backend="serial")
    assert len(collect_episodes(make, "uniform", 2, backend="serial", on_error="skip").skipped) == 2
    with pytest.raises(RolloutError, match="raised SpeechlessError: a message that cannot be shown"):
        evaluate(make, "uniform", steps=20, num_envs=2, backend="serial")
    with pytest.raises(TrainingError, match="SpeechlessError: a message that cannot be shown"):
        train(make, Settings(updates=1, num_envs=2, n_steps=4, backend="serial"))


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
def test_what_an_environment_raises_that_is_no_exception_is_an_error_with_a_sentence(kind):
    """Collecting named it; an evaluation with a budget and training ended with it."""
    with pytest.raises(RolloutError, match=f"the environment raised {kind.__name__}"):
        evaluate(partial(Wordless, kind), "uniform", steps=20, num_envs=2, backend="serial")
    with pytest.raises(TrainingError, match=f"the environment raised {kind.__name__}"):
        train(partial(Wordless, kind), Settings(updates=1, num_envs=2, n_steps=4, backend="serial"))


def test_an_environment_that_exits_when_made_or_closed():
    with pytest.raises(RolloutError, match=r"called sys\.exit\(0\) while it was made"):
        collect_episodes(partial(Exiting, "make"), "uniform", 2)
    assert len(collect_episodes(partial(Exiting, "close"), "uniform", 2, backend="serial")) == 2


def test_a_policy_that_exits_is_an_error():
    class Leaving:
        def act(self, observations, rng):
            sys.exit(0)

    with pytest.raises(RolloutError, match=r"policy called sys\.exit"):
        collect_episodes(Dice, Leaving(), 2, backend="serial")


def test_a_constructor_that_raises_and_a_strange_id_are_named():
    def make():
        raise ZeroDivisionError("no wheels")

    with pytest.raises(RolloutError, match="ZeroDivisionError: no wheels while it was made"):
        collect_episodes(make, "uniform", 2)
    with pytest.raises(RolloutError, match="one colon at most"):
        collect_episodes("a:b:c-v0", "uniform", 2)
    for name in ("", ":", "-v0", "a/b/c-v0", "CartPole-v1:", "\x00-v1"):
        with pytest.raises(RolloutError):
            collect_episodes(name, "uniform", 2)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((10**5000,), {}),
        ((2**32 + 1,), {}),
        ((2,), {"seed": 10**5000}),
        ((2,), {"workers": 10**9, "backend": "processes"}),
    ],
)
def test_numbers_beyond_all_bounds_are_refused_with_words(arguments, options):
    with pytest.raises(RolloutError):
        collect_episodes("CartPole-v1", "uniform", *arguments, **options)


class Odd(Dice):
    """Returns something odd in long episodes, from the fifth step on."""

    def __init__(self, name, value):
        super().__init__()
        self.odd = {name: value}

    def step(self, action):
        names = ("observation", "reward", "terminated", "truncated", "info")
        result = dict(zip(names, super().step(action), strict=True))
        return tuple((result | (self.odd if self.steps >= 5 else {})).values())


ODD = [
    ("reward", "1.5", InvalidStepError, "the reward '1.5', which is not a number"),
    ("reward", None, InvalidStepError, "the reward None"),
    ("reward", [1.0, 2.0], InvalidStepError, "not a number"),
    ("reward", 1j, InvalidStepError, "not a number"),
    ("terminated", "False", InvalidStepError, "terminated = 'False'"),
    ("terminated", np.zeros(2, dtype=bool), InvalidStepError, "terminated = array"),
    ("truncated", np.array([False]), InvalidStepError, "truncated = array"),
    ("truncated", 0.5, InvalidStepError, "truncated = 0.5"),
    ("terminated", None, InvalidStepError, "terminated = None"),
    ("observation", np.float32(3), InvalidStepError, r"shape \(\), but the observation space has \(2,\)"),
    ("observation", np.zeros(1), InvalidStepError, r"shape \(1,\)"),
    ("observation", np.zeros((1, 2)), InvalidStepError, r"shape \(1, 2\)"),
    ("observation", np.array(["1", "2"]), InvalidStepError, "not an array of numbers"),
    ("observation", None, InvalidStepError, "not an array of numbers"),
    ("reward", 1e308, NonFiniteError, r"sum overflows.*step 6\]"),
    ("reward", -1e308, NonFiniteError, r"sum overflows.*step 6\]"),
]


@pytest.mark.parametrize(("name", "value", "error", "words"), ODD)
def test_odd_values_are_errors_that_name_the_right_episode(name, value, error, words):
    lengths = collect_episodes(Dice, "uniform", 30, seed=3, backend="serial")
    bad = lengths.seeds[lengths.lengths == Dice.long].tolist()
    make = partial(Odd, name, value)
    with pytest.raises(error, match=words) as caught:
        collect_episodes(make, "uniform", 30, seed=3, backend="serial")
    assert isinstance(caught.value, EpisodeError)
    assert caught.value.episode_seed in bad
    left = collect_episodes(make, "uniform", 30, seed=3, backend="serial", on_error="skip")
    assert sorted(entry.seed for entry in left.skipped) == sorted(bad)
    assert (left.lengths == Dice.short).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("reward", np.array([1.0])), ("reward", np.float32(1)), ("reward", True), ("terminated", np.bool_(False))],
)
def test_what_numpy_makes_of_numbers_and_flags_is_accepted(name, value):
    plain = collect_episodes(Dice, "uniform", 10, backend="serial")
    found = collect_episodes(partial(Odd, name, value), "uniform", 10, backend="serial") if name == "reward" else plain
    np.testing.assert_array_equal(found.returns, plain.returns)


class Seen(Dice):
    """Always returns the same observation."""

    def __init__(self, space, observation):
        super().__init__()
        self.observation_space, self.seen = space, observation

    def observe(self):
        return self.seen


ROOM = spaces.Dict(room=spaces.Discrete(3), at=spaces.Box(-1, 1, (2,)), wind=spaces.Box(-1, 1, (1,)))
PIXELS = spaces.Box(0, 255, (2,), np.uint8)
AT, WIND = np.zeros(2, np.float32), np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (ROOM, {"room": -1, "at": AT, "wind": WIND}, r"-1, which is not in 0, \.\.\., 2"),
        (ROOM, {"room": 1, "at": WIND, "wind": AT}, r"shape \(1,\)"),
        (ROOM, {"room": 1, "at": ["1", "0"], "wind": WIND}, "not an array of numbers"),
        (ROOM, {"room": 1, "at": np.ma.array(AT, mask=[True, False]), "wind": WIND}, "not an array of numbers"),
        (ROOM, {"room": 1, "at": AT}, "lacks some of"),
        (ROOM, AT, "lacks some of"),
        (spaces.Tuple([ROOM["room"]]), (1, 1), "not a tuple of 1"),
        (spaces.MultiDiscrete([3, 3]), np.array([4, 1]), "not in MultiDiscrete"),
        (spaces.MultiDiscrete([3, 3]), np.array([-1, 1]), "not in MultiDiscrete"),
        (spaces.MultiBinary(2), np.array([7, 0]), "not in MultiBinary"),
        (PIXELS, np.array([0, 300]), "uint8: whole numbers from 0 to 255"),
        (PIXELS, [0, -1], "uint8: whole numbers from 0 to 255"),
        (PIXELS, np.array([0.5, 0.0]), "uint8: whole numbers from 0 to 255"),
        (spaces.Dict(at=spaces.Box(-1, 1, (2,)), seen=PIXELS), {"at": AT, "seen": np.array([0, 300])}, "uint8"),
    ],
)
def test_a_part_of_an_observation_outside_its_space_is_an_error(space, observation, words):
    environment = partial(Seen, space, observation)
    with pytest.raises(InvalidStepError, match=words):
        collect_episodes(environment, "uniform", 4, backend="serial")
    with pytest.raises(RolloutError, match=words):
        evaluate(environment, "uniform", steps=20, num_envs=2, backend="serial")
    with pytest.raises(TrainingError, match=words):
        train(environment, Settings(updates=1, num_envs=2, n_steps=4, backend="serial"))


def test_a_step_with_pixels_that_fit_no_pixel_is_an_error_though_earlier_ones_fit():
    class Bright(Dice):
        def __init__(self):
            super().__init__()
            self.observation_space = PIXELS

        def observe(self):
            return np.array([100 * self.steps, 0])  # int64, where the space has uint8

    with pytest.raises(InvalidStepError, match="uint8"):
        collect_episodes(Bright, "uniform", 4, backend="serial")


def test_pixels_in_another_type_are_accepted_where_they_fit():
    environment = partial(Seen, PIXELS, [7, 255])
    assert collect_samples(environment, "uniform", 2, [1], backend="serial").observations.tolist() == [[[7, 255]]] * 2
    assert train(environment, Settings(updates=1, num_envs=2, n_steps=4, backend="serial")).updates == 1


def test_a_sample_that_is_infinite_in_the_type_of_its_space_is_an_error():
    with pytest.raises(NonFiniteError, match=r"1e\+39.*infinite in float32"):
        collect_samples(partial(Seen, ROOM["at"], np.array([0, 1e39])), "uniform", 2, [2], backend="serial")


class Turning:
    """Acts as the first function says twice, and then as the second one."""

    def __init__(self, first, then):
        self.first, self.then, self.calls = first, then, 0

    def act(self, observations, rng):
        self.calls += 1
        return (self.first if self.calls < 3 else self.then)(len(observations))


class Steered(Dice):
    """Takes two numbers as an action."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("environment", "first", "then", "words"),
    [
        (Dice, lambda n: np.zeros(n, int), lambda n: np.ma.array(np.zeros(n, int), mask=True), "masked"),
        (Dice, lambda n: np.zeros(n, int), lambda n: np.zeros(1, int), r"shape \(1,\)"),
        (Dice, lambda n: np.zeros(n, int), lambda n: 0, r"shape \(\)"),
        (Dice, lambda n: np.zeros(n, int), lambda n: np.full(n, 0.5), "whole numbers"),
        (Dice, lambda n: np.zeros(n, int), lambda n: np.full(n, -1), "action -1"),
        (Dice, lambda n: np.zeros(n, int), lambda n: np.full(n, 2), "action 2"),
        (Steered, lambda n: np.zeros((n, 2)), lambda n: np.full((n, 2), np.nan), "not finite"),
        (Steered, lambda n: np.zeros((n, 2)), lambda n: np.full((n, 2), "1"), "type <U1"),
    ],
)
def test_every_action_of_a_policy_is_looked_at_not_only_the_first(environment, first, then, words):
    with pytest.raises(PolicyError, match=words):
        collect_episodes(environment, Turning(first, then), 4, backend="serial")
    with pytest.raises(PolicyError, match=words):
        evaluate(environment, Turning(first, then), steps=40, num_envs=4, backend="serial")


def test_actions_are_recorded_as_they_were_sent_though_the_first_were_whole():
    policy = Turning(lambda n: np.zeros((n, 2), int), lambda n: np.full((n, 2), 0.5))
    with pytest.warns(UserWarning, match="did not choose the same actions again"):  # it counts its calls
        found = collect_episodes(Steered, policy, 4, backend="serial", trajectories=True)
    assert set(found.trajectories.actions.ravel()) == {0.0, 0.5}


def test_an_action_that_nobody_takes_may_be_anything():
    def act(observations, rng):  # nan for the observation 0 of a copy that has no episode left to run
        with np.errstate(invalid="ignore"):
            return observations / np.abs(observations)

    policy = type("Dividing", (), {"act": staticmethod(act)})()
    assert len(collect_episodes(Steered, policy, 30, backend="serial")) == 30


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.7e308, 1.7e308, (2,), np.float64),
        spaces.Box(np.array([-1.7e308, 0.0]), np.array([1.7e308, np.inf]), dtype=np.float64),
        spaces.Box(-np.inf, np.inf, (2,), np.int64),
        spaces.Box(0, 2**64 - 1, (2,), np.uint64),
    ],
)
def test_a_random_policy_draws_from_the_widest_boxes(space):
    actions = UniformPolicy(space).act(np.zeros((1000, 1)), np.random.default_rng(0))
    assert all(space.contains(action) for action in actions.astype(space.dtype))
    assert 0.4 < (actions[:, 0] / 2 > space.low[0] / 4 + space.high[0] / 4).mean() < 0.6  # wrong once in 10^9


def test_a_state_outside_its_space_is_an_error():
    class Lost(Dice):
        def __init__(self, state):
            super().__init__()
            self.state, self.observation_space = state, spaces.Discrete(3, start=1)

        def observe(self):
            return self.state

    assert len(collect_episodes(partial(Lost, np.int64(3)), "uniform", 2, backend="serial")) == 2
    for state in (0, 4, -1, 2.5, "2", np.array([2, 2])):
        with pytest.raises(InvalidStepError, match="the observation"):
            collect_episodes(partial(Lost, state), "uniform", 2, backend="serial")


def test_large_observations_cost_the_sums_and_nothing_else():
    class Large(Dice):
        def observe(self):
            return np.full(2, 1e200)

    found = collect_episodes(Large, "uniform", 5, backend="serial")
    assert found.ages is None
    assert [note for note in found.notes if "squares overflow" in note]


class Chancy(Dice):
    """Takes its randomness from numpy's global generator."""

    def observe(self):
        return np.random.random(2).astype(np.float32)  # noqa: NPY002  (the fault under test)


def test_an_environment_with_a_global_generator_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"first episode of Chancy did not repeat.*self\.np_random"):
        found = collect_episodes(Chancy, "uniform", 20, block_size=10, backend="serial")
    assert [note for note in found.notes if "did not repeat" in note]
    with open(tmp_path / "log", "w") as log:
        collect_episodes(Chancy, "uniform", 20, block_size=10, backend="processes", workers=2, progress=log)
    assert "warning: the first episode of Chancy did not repeat" in (tmp_path / "log").read_text()


def test_samples_of_an_environment_with_a_global_generator_are_warned_of():
    with pytest.warns(UserWarning, match=r"first episode of Chancy did not repeat"):
        found = collect_samples(Chancy, "uniform", 5, [3], backend="serial")
    assert [note for note in found.notes if "did not repeat" in note]


class ChancyEnds(gymnasium.Env):
    """Episodes that differ in nothing but their ends, which are due to chance, or to how many there were before."""

    observation_space, action_space = spaces.Box(0, 1e6, (1,), np.float32), spaces.Discrete(2)
    lengths = iter(())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.length = 0, next(self.lengths)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.age += 1
        return np.full(1, self.age, np.float32), 1.0, self.age == self.length, False, {}


@pytest.mark.parametrize("first", [3, 4, 250])
def test_an_environment_whose_ends_alone_do_not_repeat_is_warned_of(first):
    class Ends(ChancyEnds):
        lengths = iter((first, 7))

    with pytest.warns(UserWarning, match=r"first episode of .*Ends did not repeat"):
        collect_episodes(Ends, "uniform", 1, backend="serial")


def test_ends_after_the_steps_that_are_compared_are_not_looked_at():
    class Ends(ChancyEnds):
        lengths = iter((201, 250))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collect_episodes(Ends, "uniform", 1, backend="serial")


class WithAGenerator:
    """A policy that draws from a generator of its own."""

    def __init__(self) -> None:
        self.own = np.random.default_rng(0)

    def act(self, observations, rng):
        return self.own.integers(2, size=len(observations))


def global_generator(observations):
    return np.array([random.randrange(2) for _ in observations])


@pytest.mark.parametrize("policy", [WithAGenerator(), global_generator])
@pytest.mark.parametrize("collect", [collect_episodes, partial(collect_samples, times=[3])])
def test_a_policy_with_a_generator_or_a_memory_of_its_own_is_warned_of(tmp_path, policy, collect):
    with pytest.warns(UserWarning, match=r"policy \w+ did not choose the same actions again.*from the rng that act"):
        found = collect("CartPole-v1", policy, 20, block_size=10, backend="serial")
    assert [note for note in found.notes if "did not choose" in note]
    with open(tmp_path / "log", "w") as log:
        collect("CartPole-v1", policy, 20, block_size=10, backend="processes", workers=2, progress=log)
    assert "did not choose the same actions again" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "policy", [lambda observations, rng: rng.integers(2, size=len(observations)), torch.nn.Linear(4, 2)]
)
def test_a_policy_that_draws_from_the_given_generator_is_not_warned_of(policy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(collect_episodes("CartPole-v1", policy, 20, block_size=10, backend="serial")) == 20


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v5", "HopperBulletEnv-v0", "FrozenLake-v1"])
def test_environments_that_repeat_themselves_are_not_warned_of(name):
    planning.checked.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = collect_episodes(name, "uniform", 10, block_size=5, backend="serial", max_episode_steps=10**6)
    assert not [note for note in found.notes if "warning" in note]


def test_a_diagnosis_plans_once_and_says_once_which_backend_it_uses(tmp_path, monkeypatch):
    made = []

    class Counted(Dice):
        def __init__(self):
            made.append(1)
            super().__init__()

    with open(tmp_path / "log", "w") as log:
        diagnose(Counted, "uniform", episodes=1500, backend="serial", progress=log)
    assert (tmp_path / "log").read_text().count("backend serial:") == 1
    copies = 16
    rounds = (512, 512, 476)
    assert len(made) <= 1 + 1 + copies * sum(-(-n // 512) for n in rounds)  # described once, repeated once


def test_what_is_printed_does_not_reach_standard_output(capfd):
    with output_to_stderr():
        print("python speaks")
        os.system("echo a program speaks")
        os.write(1, b"C speaks\n")
    print(json.dumps({"answer": 42}))
    found = capfd.readouterr()
    assert json.loads(found.out) == {"answer": 42}
    for text in ("python speaks", "a program speaks", "C speaks"):
        assert text in found.err


@pytest.mark.parametrize("moment", range(2))
def test_a_kill_at_any_moment_loses_at_most_what_was_not_finished(tmp_path, moment):
    whole = collect_episodes("CartPole-v1", "uniform", 1500, block_size=50, backend="serial")
    out = tmp_path / "a.npz"
    words = ["collect", "CartPole-v1", "--episodes", "1500", "--block-size", "50", "--backend", "serial"]
    words = [sys.executable, "-m", "steadyrl", *words, "--out", str(out)]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    partial_file = tmp_path / "a.npz.partial"
    size = random.Random(moment).uniform(2_000, 120_000)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if partial_file.stat().st_size > size:
                break
        except FileNotFoundError:
            pass
    process.kill()
    process.wait()
    if partial_file.exists():
        subprocess.run([*words, "--resume"], check=True, capture_output=True, timeout=120)
    assert same(Episodes.load(out), whole)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ray_leaves_out_episodes_that_kill_their_process():
    pytest.importorskip("ray")
    collect = partial(collect_episodes, policy="uniform", episodes=20, seed=5, block_size=10, on_error="skip")
    raised = collect(partial(Faulty, "raise"), backend="serial")
    assert raised.skipped
    killed = collect(partial(Faulty, "kill"), backend="ray", workers=1)
    assert [entry.seed for entry in killed.skipped] == [entry.seed for entry in raised.skipped]
    np.testing.assert_array_equal(killed.lengths, raised.lengths)


def loud_environment(folder):
    """Write the module of an environment, loud:Loud-v0, that prints; return the variables with which it is found."""
    (folder / "loud.py").write_text(
        f"import os, sys; sys.path.insert(0, {HERE!r})\nimport gymnasium\nfrom scripted import Dice\n"
        "class Loud(Dice):\n"
        "    def step(self, action):\n"
        "        print('step'); os.write(1, b'C\\n')\n"
        "        return super().step(action)\n"
        "gymnasium.register('Loud-v0', entry_point=Loud)\n"
    )
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize("command", [("diagnose", "--episodes", "200"), ("evaluate", "uniform", "--episodes", "5")])
def test_an_environment_that_prints_leaves_json_valid(tmp_path, command):
    words = [
        sys.executable,
        "-m",
        "steadyrl",
        command[0],
        "loud:Loud-v0",
        *command[1:],
        "--backend",
        "serial",
        "--json",
    ]
    environment = loud_environment(tmp_path)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert isinstance(json.loads(done.stdout), dict)
    assert "step" in done.stderr


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_what_an_environment_prints_does_not_come_between_the_lines_of_a_training(tmp_path, backend):
    words = [sys.executable, "-m", "steadyrl", "train", "loud:Loud-v0", "--updates", "1", "--num-envs", "2"]
    words += ["--n-steps", "4", "--backend", backend, "--out", str(tmp_path / "out")]
    environment = loud_environment(tmp_path)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert done.stdout.startswith("updates ")
    assert "step\n" not in done.stdout
    assert "step\n" in done.stderr


class Apart(BaseException):
    """An error that `except Exception` does not catch."""


class Raising(Dice):
    """Raises what `except Exception` does not catch, in its constructor or in a step."""

    def __init__(self, where, what):
        super().__init__()
        self.where, self.what = where, what
        if where == "constructor":
            raise what

    def step(self, action):
        if self.where == "step":
            raise self.what
        return super().step(action)


@pytest.mark.parametrize("what", [GeneratorExit, Apart])
@pytest.mark.parametrize(("where", "error"), [("constructor", RolloutError), ("step", EnvironmentRaisedError)])
def test_an_environment_that_raises_what_few_catch_is_named(where, error, what):
    with pytest.raises(error, match=what.__name__):
        collect_episodes(partial(Raising, where, what), "uniform", 3, backend="serial")


def test_a_keyboard_interrupt_of_an_environment_in_a_worker_is_an_error():
    """It is no Ctrl-C there, and once killed the worker with its traceback, again and again."""
    with pytest.raises(RolloutError, match="raised KeyboardInterrupt, so there is no result"):
        collect_episodes(partial(Raising, "step", KeyboardInterrupt), "uniform", 3, backend="processes", workers=1)


def test_what_few_catch_ends_in_a_sentence_wherever_it_is_raised(tmp_path, monkeypatch, capsys):
    (tmp_path / "strange.py").write_text(
        "import gymnasium\nfrom scripted import Dice\nclass Apart(BaseException): pass\n"
        "class Strange(Dice):\n    @property\n    def fixed_episode(self): raise Apart('no')\n"
        "gymnasium.register('Strange-v0', entry_point=Strange)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = [
        "collect",
        "strange:Strange-v0",
        "--episodes",
        "3",
        "--backend",
        "serial",
        "--out",
        str(tmp_path / "a.npz"),
    ]
    monkeypatch.setattr(sys, "argv", ["steadyrl", *words])
    with pytest.raises(SystemExit) as end:
        commands.run()
    assert end.value.code == 2
    assert "Apart: no" in capsys.readouterr().err


class Multiplying(Dice):
    """Forks in every copy, in its constructor, its reset, a step or its close; children go on, or raise an error."""

    def __init__(self, folder, where, then):
        super().__init__()
        self.folder, self.where, self.then = Path(folder), where, then
        self.fork("constructor")

    def fork(self, where):
        if where == self.where and len(list(self.folder.iterdir())) < 200:  # so that a fault is no fork bomb
            child = os.fork()
            (self.folder / f"{child or os.getpid()}").touch()
            if child == 0 and self.then == "raises":
                raise ValueError("the child")

    def reset(self, **options):
        self.fork("reset")
        return super().reset(**options)

    def step(self, action):
        if self.steps == 1:
            self.fork("step")
        return super().step(action)

    def close(self):
        self.fork("close")


@pytest.mark.parametrize("then", ["goes on", "raises"])
@pytest.mark.parametrize("where", ["constructor", "reset", "step", "close"])
def test_children_that_environments_fork_fork_no_more(tmp_path, capfd, where, then):
    """A child went on through the other copies of its block, where it forked again: 2^n processes for n copies."""
    make = partial(Multiplying, str(tmp_path), where, then)
    found = collect_episodes(make, "uniform", 6, block_size=6, backend="serial")
    np.testing.assert_array_equal(
        found.lengths, collect_episodes(Dice, "uniform", 6, block_size=6, backend="serial").lengths
    )
    children = [int(path.name) for path in tmp_path.iterdir()]
    assert 6 <= len(children) <= 20  # copies of the block, of the description and of the look at repeatability
    assert all(is_gone(child) for child in children)
    assert "Traceback" not in capfd.readouterr().err


RUDE = """
import sys, threading, time, gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
class Rude(CartPoleEnv):
    def step(self, action):
        if not hasattr(sys, "was_rude"):
            sys.was_rude = True
            {rude}
        return super().step(action)
gymnasium.register("Rude-v0", Rude, max_episode_steps=50)
"""


def rude(tmp_path, what, *words):
    (tmp_path / "rude.py").write_text(RUDE.format(rude=what))
    command = [sys.executable, "-m", "steadyrl", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["evaluate", "rude:Rude-v0", "uniform", "--episodes", "5", "--backend", "serial"], 0),
        (["train", "rude:Rude-v0", "--steps", "64", "--num-envs", "2", "--backend", "serial", "--out", "out"], 0),
        (["collect", "rude:Rude-v0", "--episodes", "5", "--backend", "serial", "--out", "nowhere/a.npz"], 2),
    ],
)
def test_a_thread_that_an_environment_leaves_does_not_keep_a_command_from_ending(tmp_path, words, status):
    done = rude(tmp_path, "threading.Thread(target=time.sleep, args=(600,)).start()", *words)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("then", "status"), [("pass", 0), ("raise ValueError('after it')", 2)])
def test_an_environment_that_closes_standard_output_closes_neither_the_answer_nor_the_errors(tmp_path, then, status):
    """It closed standard error, which stands in its place: the command ended with status 2 and no message."""
    words = ["train", "rude:Rude-v0", "--steps", "64", "--num-envs", "2", "--backend", "serial", "--out", "out"]
    done = rude(tmp_path, f"sys.stdout.close(); {then}", *words)
    assert done.returncode == status, done.stderr
    assert ("after it" in done.stderr) is (status == 2)
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out" / "policy.safetensors").exists() is (status == 0)


class MotorError(Exception):
    """An error that cannot be pickled: it takes two arguments, and keeps one."""

    def __init__(self, part, state):
        super().__init__(f"{part} {state}")


class Unwilling(Dice):
    """Raises an error, or cannot be made again once there are some of it, or cannot be closed."""

    def __init__(self, fault, made):
        super().__init__()
        self.fault = fault
        made.mkdir(exist_ok=True)
        (made / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        if fault == "constructor" and len(list(made.iterdir())) > 3:
            raise OSError("the port is in use")

    def step(self, action):
        if self.fault == "arguments":
            raise MotorError("gripper", "stuck")
        if self.fault == "pickle":
            error = RuntimeError("gripper stuck")
            error.lock = threading.Lock()
            raise error
        if self.fault == "timeout":
            raise multiprocessing.TimeoutError("gripper stuck")
        if self.fault == "thread" and self.steps == 1:
            threading.Thread(target=time.sleep, args=(600,)).start()
        return super().step(action)

    def close(self):
        if self.fault == "close":
            raise RuntimeError("the display is gone")


@pytest.mark.parametrize("fault", ["arguments", "pickle", "timeout"])
def test_an_error_that_cannot_be_sent_between_processes_is_named(tmp_path, fault):
    """Training waited for it for ever, or ended in a TypeError about the error's own arguments."""
    with pytest.raises(RolloutError, match="gripper stuck in step"):
        evaluate(partial(Unwilling, fault, tmp_path / "made"), "uniform", steps=50, num_envs=2, backend="processes")


def test_an_environment_that_cannot_be_made_once_more_is_named(tmp_path):
    """It was "Connection reset by peer"."""
    how = {"steps": 50, "num_envs": 3, "backend": "processes"}
    with pytest.raises(RolloutError, match="the port is in use"):
        evaluate(partial(Unwilling, "constructor", tmp_path / "made"), "uniform", **how)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("fault", "backend"), [("close", "serial"), ("close", "processes"), ("thread", "processes")])
def test_an_environment_that_does_not_close_costs_no_result(tmp_path, fault, backend):
    """A thread that an environment left in its process kept it, and the answer, for ever."""
    make = partial(Unwilling, fault, tmp_path / "made")
    assert evaluate(make, "uniform", steps=50, num_envs=2, backend=backend).report.steps == 50
    assert train(make, Settings(updates=1, num_envs=2, n_steps=8, backend=backend)).updates == 1


class Countless(Dice):
    """Its states are too many for unit vectors."""

    def __init__(self, states):
        super().__init__()
        self.observation_space = spaces.Discrete(states)

    def observe(self):
        return self.steps


@pytest.mark.parametrize("states", [1 << 40, 1 << 61])
def test_states_too_many_for_memory_are_refused_with_words(states):
    make = partial(Countless, states)
    with pytest.raises(RolloutError, match="more memory than there is"):
        collect_episodes(make, "uniform", 4, backend="serial")
    with pytest.raises(RolloutError, match="more memory than there is"):
        evaluate(make, "uniform", steps=8, num_envs=2, backend="serial")
    with pytest.raises(PolicyError, match="more memory than there is"):
        train(make, Settings(updates=1, num_envs=2, n_steps=8, backend="serial"))


class Shallow(Dice):
    def __init__(self, deepest):
        super().__init__()
        sys.setrecursionlimit(deepest)


@pytest.mark.parametrize("deepest", [200, 5000])
def test_a_constructor_may_raise_the_limit_of_recursion_but_not_lower_it(deepest):
    """Training ended in a RecursionError somewhere in torch."""
    before = sys.getrecursionlimit()
    try:
        assert len(collect_episodes(partial(Shallow, deepest), "uniform", 4, backend="serial")) == 4
        assert sys.getrecursionlimit() == max(before, deepest)
    finally:
        sys.setrecursionlimit(before)


class ShallowStep(Dice):
    def step(self, action):
        found = super().step(action)
        for deepest in range(1, 1000):
            with suppress(RecursionError):  # less is refused
                sys.setrecursionlimit(deepest + 1)
                break
        return found


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_step_may_not_lower_the_limit_of_recursion(backend):
    """The run ended in a RecursionError, or in blame for `close`."""
    before = sys.getrecursionlimit()
    try:
        assert len(collect_episodes(ShallowStep, "uniform", 4, backend=backend, workers=1)) == 4
        assert sys.getrecursionlimit() == before
    finally:
        sys.setrecursionlimit(before)


class Elsewhere(Dice):
    """Hangs, or ends its process, in the constructor or in close, but not in the process that asks for the run."""

    def __init__(self, fault, where, asking):
        super().__init__()
        self.fault, self.where, self.asking = fault, where, asking
        self.misbehave("constructor")

    def close(self):
        self.misbehave("close")

    def misbehave(self, where):
        if where == self.where and os.getpid() != self.asking:
            if self.fault == "hang":
                time.sleep(600)
            os._exit(3)


@pytest.mark.parametrize("where", ["constructor", "close"])
@pytest.mark.parametrize("fault", ["hang", "exit"])
def test_a_worker_that_hangs_or_ends_in_no_episode_blames_none(monkeypatch, fault, where):
    """A constructor that hung in a worker hung the run; close blamed an episode, and advised to leave it out."""
    if (fault, where) == ("hang", "constructor"):
        monkeypatch.setattr(processes, "MAKING_SECONDS", 2.0)
    make = partial(Elsewhere, fault, where, os.getpid())
    how = {"backend": "processes", "workers": 1, "step_timeout": 1.0, "on_error": "skip"}
    error, what = {
        "hang": (StepTimeoutError, f"took longer than {2 if where == 'constructor' else 1} s"),
        "exit": (WorkerLostError, "ended with code 3"),
    }[fault]
    with pytest.raises(error, match=f"{what} while .*Elsewhere.* was .*no episode is at fault.*{where}") as caught:
        collect_episodes(make, "uniform", 4, block_size=2, **how)
    assert caught.value.episode == -1
    assert "on_error" not in str(caught.value)


def test_a_step_timeout_holds_for_training_with_any_backend():
    """It was ignored unless the backend was 'processes'."""
    with pytest.raises(TrainingError, match="step_timeout, 1 s"):
        train(partial(Faulty, "hang", 1), Settings(updates=9, num_envs=2, n_steps=8, step_timeout=1.0))


LATE = {
    "C": "ctypes.CDLL(None).printf(b'C speaks%c', 10)",
    "at exit": "atexit.register(print, 'it speaks')",
    "a thread": "threading.Thread(target=lambda: [print('it speaks') or time.sleep(1e-4) for _ in range(10**6)], "
    "daemon=True).start()",
}


@pytest.mark.parametrize("what", LATE.values(), ids=LATE)
def test_what_is_printed_late_leaves_json_valid(tmp_path, monkeypatch, what):
    """C keeps what it prints in a buffer, which was written after the answer."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    words = ["evaluate", "rude:Rude-v0", "uniform", "--episodes", "3", "--backend", "serial", "--json"]
    done = rude(tmp_path, f"import atexit, ctypes, os; {what}", *words)
    assert json.loads(done.stdout)["episodes"] == 3
    assert "speaks" in done.stderr


def test_what_an_environment_prints_reaches_no_file_of_ours_though_the_streams_are_closed(tmp_path):
    """The first files that were opened had the numbers of standard output and error."""
    what = "import os; os.write(1, b'x' * 99); os.write(2, b'x' * 99)"
    (tmp_path / "rude.py").write_text(RUDE.format(rude=what))
    words = "collect rude:Rude-v0 --episodes 40 --block-size 10 --backend serial --out a.npz"
    command = f"{sys.executable} -m steadyrl {words} <&- >&- 2>&-"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, timeout=120, check=False)
    assert (done.returncode, len(Episodes.load(tmp_path / "a.npz"))) == (0, 40)


def test_sigterm_does_what_it_did_once_ray_has_begun(monkeypatch):
    """Ray has it call sys.exit, and an environment was said to have done so."""

    class Ray:
        is_initialized = staticmethod(lambda: False)
        init = staticmethod(lambda **_: signal.signal(signal.SIGTERM, lambda *_: sys.exit(15)))

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray_tasks._connect(Ray, None, 1)
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)


class Simulated(Dice):
    """Episodes whose simulator is a process of its own, which is ended in the usual way at every reset."""

    simulator = None

    def reset(self, *, seed=None, options=None):
        self.close()
        self.simulator = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
        self.simulator.start()
        return super().reset(seed=seed)

    def close(self):
        if self.simulator is not None:
            time.sleep(0.05)  # it may be starting
            self.simulator.terminate()
            self.simulator.join(5)
            if self.simulator.is_alive():
                self.simulator.kill()
                raise RuntimeError("the simulator does not end by SIGTERM")
            assert self.simulator.exitcode == -signal.SIGTERM, "it does not end as any process does"


@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_a_process_that_an_environment_forks_ends_by_a_signal_while_signals_wait_for_the_update(method):
    """It inherited the handler that only notes a signal, and terminate() and join() of it waited for ever."""
    if method == "train":
        trained = train(Simulated, Settings(updates=2, num_envs=2, n_steps=64, cure="none", backend="serial"))
        assert trained.history["update"] == [1, 2]
    else:
        assert evaluate(Simulated, "uniform", steps=40, num_envs=2, backend="serial").mean_return.value > 0


def test_a_process_that_an_environment_forks_in_a_command_ends_by_sigterm_without_a_traceback(tmp_path):
    what = "import multiprocessing; p = multiprocessing.Process(target=time.sleep, args=(600,)); p.start(); "
    what += "time.sleep(0.5); p.terminate(); p.join(5); print('status', p.exitcode)"
    words = ["collect", "rude:Rude-v0", "--episodes", "5", "--backend", "serial", "--out", "a.npz"]
    done = rude(tmp_path, what, *words)
    assert done.returncode == 0, done.stderr
    assert "status -15" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_leaves_out_every_episode_ends_with_an_error(tmp_path):
    """It ended with status 0 and a file without episodes."""
    words = ["collect", "rude:Rude-v0", "--episodes", "5", "--backend", "serial", "--on-error", "skip"]
    done = rude(tmp_path, "pass\n        raise ValueError('always')", *words, "--out", "a.npz")
    assert done.returncode == 2, done.stderr
    assert "all 5 episodes failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(Episodes.load(tmp_path / "a.npz").skipped) == 5
