"""Environments that do as they are told: how long episodes are, and what goes wrong when."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Dice(gymnasium.Env):
    """Episodes of length 2 or 40, by a coin at each reset; the observation is (age, length of the episode)."""

    short, long = 2, 40

    def __init__(self, pause: float = 0.0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.pause = pause

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = self.long if self.np_random.random() < 0.5 else self.short
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        if self.pause:
            time.sleep(self.pause)
        self.steps += 1
        return self.observe(), 1.0, self.steps == self.length, False, {}

    def observe(self):
        return np.array([self.steps + 1, self.length], dtype=np.float32)


class Clock(gymnasium.Env):
    """Episodes of one length; observations are (age, number of the episode), rewards the age that was left.

    `history` holds every transition: observation, action, reward, next observation.
    """

    def __init__(self, length=8, *, as_dict=False, truncates=False):
        self.length, self.truncates, self.as_dict = length, truncates, as_dict
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict({"clock": box, "phase": spaces.Discrete(2)}) if as_dict else box
        self.action_space = spaces.Discrete(2)
        self.episode = 0
        self.history = []

    def observe(self):
        clock = np.array([self.age, self.episode], dtype=np.float32)
        return {"clock": clock, "phase": self.age % 2} if self.as_dict else clock

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.episode = 1, self.episode + 1
        return self.observe(), {"episode_number": self.episode}

    def step(self, action):
        before, reward = self.observe(), float(self.age)
        self.age += 1
        self.history.append((before, action, reward, self.observe()))
        over = self.age > self.length
        return self.observe(), reward, over and not self.truncates, over and self.truncates, {}


class Push(Clock):
    """Clock for algorithms with continuous actions."""

    def __init__(self, length=8):
        super().__init__(length)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)


class Mortal(Clock):
    """The copy with this number dies in its third step."""

    def __init__(self, number, doomed):
        super().__init__()
        self.doomed = number == doomed

    def step(self, action):
        if self.doomed and self.age == 3:
            raise RuntimeError("the gripper is stuck")
        return super().step(action)


class Faulty(Dice):
    """Every long episode whose seed is divisible by `modulus` fails at its 5th action, in a way of its own.

    With `once`, a file, it happens one time only: the first process to make the file is the one to fail.
    """

    def __init__(self, fault: str, modulus: int = 7, once: str | None = None):
        super().__init__()
        self.fault, self.modulus, self.once = fault, modulus, once

    def reset(self, *, seed=None, options=None):
        self.bad = seed is not None and seed % self.modulus == 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        result = super().step(action)
        if self.bad and self.steps == 5 and self.may_fail():
            if self.fault == "raise":
                raise RuntimeError("the gripper is stuck")
            if self.fault == "nan":
                return np.array([np.nan, 0], dtype=np.float32), *result[1:]
            if self.fault == "nan reward":
                return result[0], float("nan"), *result[2:]
            if self.fault == "hang":
                time.sleep(3600)
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "endless":
                self.length = 10**9
        return result

    def may_fail(self):
        if self.once is None:
            return True
        try:
            Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Spaces(Dice):
    """Episodes as Dice's, with spaces of any kind; it refuses actions that are not in its action space."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space

    def observe(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not an action")
        return super().step(action)


class NodeDice(Dice):
    """Dice with a pause, which notes in a file on which Ray node it runs."""

    def __init__(self, pause: float, notes: str):
        super().__init__(pause)
        import ray

        with open(notes, "a") as file:
            file.write(ray.get_runtime_context().get_node_id() + "\n")


class OneRaisesOneHangs(Dice):
    """Of two, the first one to step notes its process in a file and hangs; the other one fails thereupon."""

    def __init__(self, busy: str):
        super().__init__()
        self.busy = Path(busy)

    def step(self, action):
        try:
            with open(self.busy, "x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            raise RuntimeError("the left hand has no grip") from None
        time.sleep(3600)


def same(a, b):
    """Whether two collections hold the same bytes."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        contents = []
        for i, part in enumerate((a, b)):
            path = Path(directory) / f"{i}.npz"
            part.save(path)
            contents.append(path.read_bytes())
    return contents[0] == contents[1]


def code(copy, episode, step):
    """Where a copy of Scripted is, as one number."""
    return 10_000 * copy + 100 * episode + step


class Scripted(gymnasium.Env):
    """Episode e of copy c has lengths[e % len(lengths)] actions; observations and infos say where it is."""

    SPACES: ClassVar = {
        "box": spaces.Box(0, 1e6, (1,), np.float64),
        "discrete": spaces.Discrete(10**6),
        "dict": spaces.Dict(
            {"a": spaces.Discrete(10**6), "b": spaces.Dict({"c": spaces.Box(0, 1e6, (2,), np.float64)})}
        ),
        "tuple": spaces.Tuple((spaces.Dict({"a": spaces.Discrete(10**6)}), spaces.Box(0, 1e6, (), np.float64))),
        "text": spaces.Text(6, charset="0123456789"),
    }

    def __init__(self, copy=0, lengths=(5,), kind="box", fault=None):
        self.copy, self.lengths, self.kind, self.fault = copy, lengths, kind, fault
        self.observation_space, self.action_space = self.SPACES[kind], spaces.Discrete(2)
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self.observe(), {"start": self.episode}

    def step(self, action):
        self.steps += 1
        if self.steps == self.fault:
            raise RuntimeError("the gripper is stuck")
        length = self.lengths[self.episode % len(self.lengths)]
        assert self.steps <= length, "stepped past the end"
        return self.observe(), self.reward(self.where()), self.steps == length, False, self.info(self.where())

    def where(self):
        return code(self.copy, self.episode, self.steps)

    @staticmethod
    def reward(where):
        return where / 10

    @staticmethod
    def info(where):
        return {
            "at": where,
            "even": where % 2 == 0,
            "name": str(where),
            "parts": {"x": where + 0.5, "y": np.ones(2) * where},
        }

    def observe(self):
        where = self.where()
        return {
            "box": lambda: np.array([where], dtype=np.float64),
            "discrete": lambda: where,
            "dict": lambda: {"a": where, "b": {"c": np.array([where, -where + 1e6])}},
            "tuple": lambda: ({"a": where}, np.array(where, dtype=np.float64)),
            "text": lambda: str(where),
        }[self.kind]()

    @staticmethod
    def read(kind, batch):
        """Where each copy of a batch of observations is."""
        if kind == "dict":
            assert (batch["b"]["c"] == np.stack([batch["a"], -batch["a"] + 1e6], axis=1)).all()
        if kind == "tuple":
            assert (batch[0]["a"] == batch[1]).all()
        found = {
            "box": lambda: batch[:, 0],
            "discrete": lambda: batch,
            "dict": lambda: batch["a"],
            "tuple": lambda: batch[1],
            "text": lambda: [int(text) for text in batch],
        }[kind]()
        return [int(value) for value in found]


class Drawn(gymnasium.Env):
    """Episodes of l actions, l with the probabilities given (from 0 on); the observation is the age."""

    def __init__(self, probabilities=(0, 0, 0.5, 0, 0, 0.3, 0, 0, 0, 0.2)):
        self.edges = np.cumsum(probabilities)
        self.observation_space, self.action_space = spaces.Discrete(len(probabilities) + 2), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = int(np.searchsorted(self.edges, self.np_random.random(), side="right"))
        self.age = 1
        return self.age, {}

    def step(self, action):
        self.age += 1
        return self.age, 1.0, self.age > self.length, False, {}
