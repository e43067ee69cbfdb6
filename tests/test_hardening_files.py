"""Files under attack: what is saved is never lost, mixed, half-written or silently changed.

Every test here failed, or could not have been written, before the fault that it names was mended.
"""

import argparse
import collections
import ctypes
import dataclasses
import functools
import gc
import importlib
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import time
import types
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import scipy.sparse
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, WrapperSpec

import steadyrl
from scripted import Dice, same
from steadyrl import (
    EpisodeLengths,
    Episodes,
    LearningProcess,
    Samples,
    Settings,
    collect_episodes,
    collect_samples,
    gallery,
    train,
)
from steadyrl.cli.check import _load_policy
from steadyrl.common import files, storage
from steadyrl.common.identity import content_text, fingerprint, readable_name
from steadyrl.common.storage import array_digest, load_arrays, locked, save_arrays, write_atomically, written_atomically
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import as_source, describe
from steadyrl.errors import FileFormatError, ProcessError, RolloutError, SteadyrlError, TrainingError
from steadyrl.experiments.catalogue import named
from steadyrl.experiments.experiment import Result
from steadyrl.experiments.pages import page_of, render_html
from steadyrl.experiments.running import draw as draw_result
from steadyrl.experiments.running import reproduce
from steadyrl.lengths.files import read_lengths, write_lengths
from steadyrl.policies.files import load_policy
from steadyrl.policies.networks import random_gaussian_policy
from steadyrl.policies.tensors import read_safetensors
from steadyrl.rollouts.checkpoints import Checkpoint

MANIFEST = {"block_size": 4, "total": 40, "seed": 0}


def flipped(content, generator):
    """The content with one bit changed."""
    place = generator.randrange(8 * len(content))
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def command(out, *more, episodes=600):
    words = [sys.executable, "-m", "steadyrl", "collect", "CartPole-v1", "--episodes", str(episodes), "--out", str(out)]
    return [*words, "--backend", "serial", "--block-size", "100", *more]


# Finished work is not lost at the very end.


def test_the_result_is_saved_before_the_checkpoint_is_deleted(tmp_path, monkeypatch):
    out, partial = tmp_path / "a.npz", tmp_path / "a.npz.partial"

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    collect = functools.partial(
        collect_episodes, Dice, "uniform", 40, block_size=10, backend="serial", checkpoint=partial, out=out
    )
    with monkeypatch.context() as broken:
        broken.setattr(storage, "write_atomically", full)
        with pytest.raises(OSError, match=r"No space left.*a\.npz"):
            collect()
    assert partial.exists()
    found = collect(resume=True)
    assert not partial.exists()
    assert same(found, Episodes.load(out))
    assert same(found, collect_episodes(Dice, "uniform", 40, block_size=10, backend="serial"))


@pytest.mark.parametrize("length", [242, 247, 248])
def test_a_long_name_is_written_or_refused_before_the_first_episode(tmp_path, length):
    out = tmp_path / ("n" * (length - 4) + ".npz")
    done = subprocess.run(command(out, episodes=200), capture_output=True, text=True, timeout=120, check=False)
    if length <= 247:  # with ".partial", 255 bytes
        assert done.returncode == 0, done.stderr
        assert len(Episodes.load(out)) == 200
    else:
        assert done.returncode == 2
        assert "its name has" in done.stderr or "name too long" in done.stderr.lower()
        assert "Traceback" not in done.stderr
        assert "episodes  " not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ([out.name] if length <= 247 else [])


def test_a_file_that_cannot_be_written_is_named_before_anything_runs(tmp_path):
    ran = []

    def make():
        ran.append(1)
        return Dice()

    for out in (tmp_path / "no such folder" / "a.npz", tmp_path):
        with pytest.raises(RolloutError, match="cannot be written"):
            collect_episodes(make, "uniform", 4, backend="serial", out=out)
    assert len(ran) <= 2  # made to read its spaces, and no more


# Two runs into one place.


def test_a_second_run_into_the_same_file_is_refused_and_changes_nothing(tmp_path):
    out, partial = tmp_path / "a.npz", tmp_path / "a.npz.partial"
    first = Checkpoint(partial, MANIFEST, resume=False)
    first.write({"block": 0, "skipped": [], "lengths": np.arange(4)})
    before = partial.read_bytes()
    for more in ((), ("--resume",)):
        done = subprocess.run(command(out, *more), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2
        assert "in use by another run" in " ".join(done.stderr.split())
        assert partial.read_bytes() == before
    with pytest.raises(RolloutError, match="in use by another run"):
        Checkpoint(partial, MANIFEST, resume=True)
    first.close()
    Checkpoint(partial, MANIFEST, resume=True).close()


def test_blocks_of_another_run_are_refused(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    for path, seed in ((mine, 0), (other, 1)):
        checkpoint = Checkpoint(path, MANIFEST | {"seed": seed}, resume=False)
        checkpoint.write({"block": seed, "skipped": [], "lengths": np.arange(4)})
        checkpoint.close()
    foreign = other.read_bytes()
    start = foreign.rfind(b"\xc5rec")  # its last record, a block
    with open(mine, "ab") as file:
        file.write(foreign[start:])
    with pytest.raises(RolloutError, match="blocks of another run"):
        Checkpoint(mine, MANIFEST, resume=True)


def test_folders_and_files_are_locked_against_other_processes_and_set_free_at_the_end(tmp_path):
    code = (
        "import sys; from steadyrl.common.storage import locked; from steadyrl.errors import TrainingError\n"
        "try:\n with locked(sys.argv[1], TrainingError): print('mine')\n"
        "except TrainingError as error: print(error)\n"
    )

    def other(path):
        words = [sys.executable, "-c", code, str(path)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout

    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    for path in (folder, file):
        with locked(path):
            assert "in use by another run" in other(path)
            with pytest.raises(TrainingError, match="in use"), locked(path, TrainingError):
                pass
        assert other(path) == "mine\n"


def test_a_process_that_an_environment_forks_does_not_keep_the_lock(tmp_path):
    ours, theirs = os.pipe()
    with locked(tmp_path):
        child = os.fork()
        if child == 0:
            os.write(theirs, b"here")
            time.sleep(30)
            os._exit(0)
        os.read(ours, 4)  # the child is running
    try:
        with locked(tmp_path):
            assert os.waitpid(child, os.WNOHANG) == (0, 0)  # taken while the child lives
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


# Identity by content.

SCRIPT = """
import functools, sys
sys.path.insert(0, {tests!r})
from scripted import Dice
from steadyrl import collect_episodes
class Biased:
    def __init__(self, level):
        self.level = level
    def act(self, observations, rng):
        return (rng.random(len(observations)) < self.level).astype(int)
environment = {environment}
found = collect_episodes(environment, {policy}, {episodes}, block_size=10, backend="serial", checkpoint={partial!r},
                         resume={resume}, out={out!r})
"""


def run_script(tmp_path, name, *, environment="Dice", policy="'uniform'", episodes=40, resume=False, kill=False):
    """Run a script that collects; with `kill`, only as far as the second block."""
    out = str(tmp_path / f"{name}.npz")
    text = SCRIPT.format(
        tests=str(Path(__file__).parent),
        environment=environment,
        policy=policy,
        episodes=episodes,
        partial=str(tmp_path / "partial"),
        resume=resume,
        out=out,
    )
    if kill:
        stop = (
            "import os; from steadyrl.rollouts.checkpoints import Checkpoint as C; w = C.write\n"
            "def write(self, block):\n w(self, block)\n if block['block'] == 1: os._exit(9)\n"
            "C.write = write\n"
        )
        text = stop + text
    return out, subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "environment", ["lambda: Dice(0.0)", "functools.partial(Dice, 0.0)", "Dice", "(lambda x: lambda: Dice(x))(0.0)"]
)
def test_the_same_factory_gives_the_same_bytes_and_can_be_resumed(tmp_path, environment):
    first, done = run_script(tmp_path, "first", environment=environment)
    assert done.returncode == 0, done.stderr
    _, killed = run_script(tmp_path, "second", environment=environment, kill=True)
    assert killed.returncode == 9
    second, done = run_script(tmp_path, "second", environment=environment, resume=True)
    assert done.returncode == 0, done.stderr
    assert Path(first).read_bytes() == Path(second).read_bytes()
    assert "0x" not in json.dumps(dict(Episodes.load(first).provenance))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({"environment": "lambda: Dice(0.0)"}, {"environment": "lambda: Dice(1e-9)"}),
        ({"environment": "functools.partial(Dice, 0.0)"}, {"environment": "functools.partial(Dice, 1e-9)"}),
        ({"environment": "(lambda x: lambda: Dice(x))(0.0)"}, {"environment": "(lambda x: lambda: Dice(x))(1e-9)"}),
        ({"policy": "Biased(0.3)"}, {"policy": "Biased(0.6)"}),
    ],
)
def test_another_factory_or_policy_is_not_resumed(tmp_path, then, now):
    assert run_script(tmp_path, "a", **then, kill=True)[1].returncode == 9
    refused = run_script(tmp_path, "a", **now, resume=True)[1]
    assert refused.returncode == 1
    assert "is of another run (" in refused.stderr
    assert run_script(tmp_path, "a", **then, resume=True)[1].returncode == 0


@dataclasses.dataclass
class Size:
    wide: int


def _reading(value, **more):
    """Return a function of a script that reads one global value."""
    return eval("lambda: read", {"read": value, "__name__": "__main__", **more})


def _class_with(value):
    class Made:
        part = value

    return Made


def _cached(number):
    @functools.lru_cache
    def inner():
        return number

    return inner


class Scaled:
    """A decorator with a parameter, written as a class."""

    def __init__(self, function, scale):
        functools.update_wrapper(self, function)
        self.scale = scale


def _with_attribute(made, number):
    made.number = number
    return made


def _class_inside(number):
    class Inner:
        size = number

    return Inner


@pytest.mark.parametrize(
    "kind",
    [
        lambda n: _reading(argparse.Namespace(n=n)),
        lambda n: _reading(Size(n)),
        lambda n: _reading(functools.partial(dict, n=n)),
        lambda n: _reading(_cached(n)),
        lambda n: _reading(collections.deque([n])),
        lambda n: _reading(torch.full((2,), float(n))),
        lambda n: _reading(torch.full((2,), float(n), dtype=torch.bfloat16)),
        lambda n: _reading(torch.full((2,), float(n)).to_sparse()),
        lambda n: _reading(torch.full((2,), complex(0, n)).conj()),
        lambda n: _reading(np.ma.array([1, 2], mask=[n == 1, False])),
        lambda n: _reading(np.zeros(2, dtype=[(f"field_{n}", float)])),
        lambda n: _reading(re.compile(f"room_{n}")),
        lambda n: _reading(Scaled(len, n)),
        lambda n: _with_attribute(functools.partial(dict), n),
        lambda n: _with_attribute(lambda: 0, n),
        lambda n: _class_with(property(None, _cached(n).__wrapped__)),
        lambda n: functools.reduce(lambda made, _: functools.partial(dict, made), range(60), n),
        lambda n: _class_with(frozenset([n])),
        lambda n: _class_with(_class_inside(n)),
        lambda n: _class_with(Size(n)),
    ],
)
def test_what_a_factory_reads_enters_its_fingerprint(kind):
    assert fingerprint(kind(1)) == fingerprint(kind(1))
    assert fingerprint(kind(1)) != fingerprint(kind(2))


def test_what_a_factory_reads_from_a_module_of_ones_own_enters_its_fingerprint(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_settings.py").write_text(
        "import types\nCONF = types.SimpleNamespace(v=1)\ndef read(): return CONF.v"
    )
    own = importlib.import_module("own_settings")
    by_name = eval("lambda: own.CONF.v", {"own": own, "__name__": "__main__"})
    before = fingerprint(by_name), fingerprint(_reading(own.read))
    own.CONF.v = 2
    after = fingerprint(by_name), fingerprint(_reading(own.read))
    assert before[0] != after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize(
    "factory",
    [
        "def factory(): import own_late; return own_late.SPEED",
        "def factory(): import own_late as late; return late.SPEED",
        "def factory(): from own_late import SPEED; return SPEED",
        "def factory(): from own_between import SPEED; return SPEED",
        "class factory:\n    def __init__(self): from own_late import SPEED; self.speed = SPEED",
    ],
)
def test_a_module_that_a_factory_imports_when_it_is_called_enters_its_fingerprint(tmp_path, monkeypatch, factory):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_between.py").write_text("from own_late import SPEED")

    def digest(speed):
        (tmp_path / "own_late.py").write_text(f"SPEED = {speed}\nraise SystemExit('it must not be run')")
        importlib.invalidate_caches()
        variables = {"__name__": "__main__"}
        exec(factory, variables)
        return fingerprint(variables["factory"])

    assert digest(7) == digest(7)
    assert digest(7) != digest(123)


@pytest.mark.parametrize(
    "factory",
    [
        lambda own: functools.partial(dict, settings=own),
        lambda own: _class_with(own),
        lambda own: lambda: own.SPEED,
        lambda own: eval("lambda: getattr(own, 'SPEED')", {"own": own, "__name__": "__main__"}),
        lambda own: eval("lambda: dict(settings=own)", {"own": own, "__name__": "__main__"}),
    ],
)
def test_a_module_that_is_handed_on_enters_with_all_that_it_holds(tmp_path, monkeypatch, factory):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_values.py").write_text("import os, sys\nSPEED = 1")
    own = importlib.import_module("own_values")
    monkeypatch.setattr(own, "SPEED", 1)
    before = fingerprint(factory(own))
    assert fingerprint(factory(own)) == before
    monkeypatch.setattr(own, "SPEED", 2)
    assert fingerprint(factory(own)) != before


class Compiled(torch.nn.Module):
    def __init__(self, number: float, times: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), number))
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.times


@pytest.mark.parametrize("way", ["trace", "script", "load"])
def test_policies_that_torch_compiled_are_told_apart_by_what_they_hold(way):
    def digest(number, times):
        module = Compiled(number, times)
        made = torch.jit.trace(module, torch.ones(2)) if way == "trace" else torch.jit.script(module)
        return fingerprint(torch.jit.load(io.BytesIO(made.save_to_buffer())) if way == "load" else made)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is deprecated, and in use
        assert digest(1.0, 3) == digest(1.0, 3)
        assert len({digest(1.0, 3), digest(2.0, 3), digest(1.0, 4)}) == 3


MADE_BY_NAME = """
import importlib

import scripted


class Sim:
    def length(self):
        return {length}


def reward(action):
    return {length}


class Walk(scripted.Dice):
    def __init__(self):
        super().__init__()
        self.parts = {{"part": {made}}}
"""


@pytest.mark.parametrize(
    "made",
    [
        'globals()["S" + "im"]()',
        'eval("S" + "im")()',
        'getattr(importlib.import_module(__name__), "rew" + "ard")',
        'importlib.import_module("tasks_" + "by_name")',
        'importlib.import_module("tasks_" + "by_name").Task()',
    ],
)
def test_what_an_environment_makes_by_a_name_enters_its_digest(tmp_path, monkeypatch, made):
    """As task and simulator of a configuration; another simulator was gone on with silently."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def digest(length):
        (tmp_path / "made_by_name.py").write_text(MADE_BY_NAME.format(length=length, made=made))
        (tmp_path / "tasks_by_name.py").write_text(f"class Task:\n    def length(self):\n        return {length}\n")
        for name in ("made_by_name", "tasks_by_name"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        source = as_source(lambda: importlib.import_module("made_by_name").Walk())
        return source.described(describe(source)).digest

    assert digest(3) == digest(3) != digest(4)


def test_a_compiled_module_of_ones_own_enters_by_its_file(tmp_path, monkeypatch):
    """A simulator in C++ or Cython that was built again with another wind was gone on with silently."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / f"windy_sim{importlib.machinery.EXTENSION_SUFFIXES[0]}"

    def late():
        import windy_sim

        return windy_sim.make()

    def fingerprints(content):
        file.write_bytes(content)
        importlib.invalidate_caches()
        loaded = types.ModuleType("windy_sim")
        loaded.__file__, loaded.Sim = str(file), type("Sim", (), {"__module__": "windy_sim"})
        monkeypatch.setitem(sys.modules, "windy_sim", loaded)
        return fingerprint(late), fingerprint(loaded.Sim)

    first = fingerprints(b"one")
    assert fingerprints(b"one") == first
    assert [a == b for a, b in zip(first, fingerprints(b"another"), strict=True)] == [False, False]


def test_neither_the_shell_nor_the_place_of_a_file_enters_a_fingerprint(monkeypatch):
    """What reads `environ`, or a file beside its own, could not be resumed from another shell or folder."""
    from os import environ

    def debug():
        return environ.get("DEBUG")

    there = {"debug": debug, "os": os, "__name__": "walk", "__file__": "/a/walk.py"}
    exec("def make():\n    return os.path.dirname(__file__), __name__, debug()", there)
    before = fingerprint(there["make"])
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    there |= {"__name__": "__main__", "__file__": "/b/walk.py"}
    assert fingerprint(there["make"]) == before


def test_what_lies_deep_inside_enters_a_fingerprint():
    def digest(number):
        return fingerprint(functools.reduce(lambda made, _: (made,), range(1500), number))

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_the_class_of_a_class_and_the_kind_of_a_method_enter_its_fingerprint():
    def made(number, kind):
        of_classes = type("OfClasses", (type,), {"__call__": eval(f"lambda cls: {number}"), "__module__": "__main__"})
        return of_classes("Made", (), {"part": kind(len), "__module__": "__main__"})

    assert fingerprint(made(1, staticmethod)) == fingerprint(made(1, staticmethod))
    assert fingerprint(made(1, staticmethod)) != fingerprint(made(2, staticmethod))
    assert fingerprint(made(1, staticmethod)) != fingerprint(made(1, classmethod))


def test_an_object_that_raises_when_it_is_asked_for_its_identity_has_a_fingerprint():
    class Refusing:
        def __getattr__(self, name):
            raise RuntimeError(name)

    assert fingerprint(Refusing()) == fingerprint(Refusing())


def test_an_attribute_is_not_the_variable_of_that_name_in_the_script():
    script = """
class Walk:
    def step(self):
        self.t += 1
        return [self.t > limit for _ in range(2)]
"""

    def digest(t, limit):
        variables = {"__name__": "__main__", "t": t, "limit": limit}
        exec(script, variables)
        return fingerprint(variables["Walk"])

    assert digest(t=1.0, limit=9) == digest(t=2.0, limit=9)  # t = time.time(), for one, is another in every run
    assert digest(t=1.0, limit=9) != digest(t=1.0, limit=8)


@pytest.mark.parametrize("first", [["__init__.py"], []])
def test_what_a_factory_reads_from_modules_of_a_package_enters_its_fingerprint(tmp_path, monkeypatch, first):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_folder_{len(first)}"
    (tmp_path / name).mkdir()
    for file in [*first, "settings.py"]:
        (tmp_path / name / file).write_text(f"import {name}\nSPEED = 1")
    settings = importlib.import_module(f"{name}.settings")
    factory = eval("lambda: own.settings.SPEED", {"own": sys.modules[name], "__name__": "__main__"})
    before = fingerprint(factory)
    settings.SPEED = 2
    assert fingerprint(factory) != before


@pytest.mark.parametrize(
    "environment", ["Edited-v0", lambda: gymnasium.make("Edited-v0"), functools.partial(gymnasium.make, "Edited-v0")]
)
def test_an_id_whose_class_or_registered_arguments_were_changed_is_another_environment(environment, monkeypatch):
    def found(entry_point, **kwargs):
        monkeypatch.setitem(gymnasium.registry, "Edited-v0", EnvSpec("Edited-v0", entry_point, kwargs=kwargs))
        return collect_episodes(environment, "uniform", 2, backend="serial").provenance

    class Edited(Dice):
        pass

    assert found(Dice) == found(Dice)
    assert found(Dice) != found(Edited)
    assert found(Dice, pause=0.0) != found(Dice, pause=1e-9)


@pytest.mark.parametrize("name", ["max_episode_steps", "scale"])
def test_an_id_that_was_registered_anew_with_another_limit_or_wrapper_is_another_environment(name, monkeypatch):
    def found(value):
        kwargs = {"min_reward": -1.0, "max_reward": value if name == "scale" else 1.0}
        wrapper = WrapperSpec("ClipReward", "gymnasium.wrappers:ClipReward", kwargs)
        limit = value if name == "max_episode_steps" else 50
        spec = EnvSpec("Anew-v0", Dice, additional_wrappers=(wrapper,), max_episode_steps=limit)
        monkeypatch.setitem(gymnasium.registry, "Anew-v0", spec)
        made = collect_episodes("Anew-v0", "uniform", 2, backend="serial", max_episode_steps=100)
        return made.provenance["environment_digest"]

    assert found(60) == found(60) != found(70)


CAR = """
SPEED = 1
class Car:
    wheels = {"front", "rear"}
    def drive(self): return SPEED * SPEED_LIMIT
def tuned(): return Car()
def factory(): return tuned()
"""


def test_a_script_is_the_same_however_it_is_run_and_another_when_it_was_edited(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_script.py").write_text(CAR)
    imported = fingerprint(importlib.import_module("own_script").factory)
    for name in ({"__name__": "__main__"}, {"__name__": "a notebook"}, {}):  # run, exec with a name, exec without one
        before, edited = dict(name), dict(name)
        exec(CAR, before)
        exec(CAR.replace("SPEED * SPEED", "SPEED + SPEED"), edited)
        assert fingerprint(before["factory"]) == imported
        assert fingerprint(edited["factory"]) != imported


class Place:
    """A place that knows its neighbours, in no order."""

    def __init__(self, name, kind):
        self.name, self.near = name, kind()


def _grid(side, kind, name=0):
    places = {(i, j): Place((i, j), kind) for i in range(side) for j in range(side)}
    for (i, j), place in places.items():
        around = [places.get(at) for at in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1))]
        place.near = kind((other, 1) if kind is dict else other for other in around if other is not None)
    places[side - 1, side - 1].name = name
    return places


@pytest.mark.parametrize("kind", [set, frozenset, dict])
def test_places_that_know_each_other_without_order_have_a_fingerprint(kind):
    found = {fingerprint(_grid(6, kind)) for _ in range(5)}  # at other addresses, so in another order, each time
    assert len(found) == 1
    assert fingerprint(_grid(6, kind, name=1)) not in found


def test_arguments_are_told_apart_by_content_and_not_by_the_order_of_a_set():
    def around(values):
        return content_text(np.concatenate([np.zeros(2000), values, np.zeros(2000)]))

    assert around([1]) == around([1]) != around([2])  # a repr leaves out the middle
    names = [f"name {i}" for i in range(50)]
    assert content_text({"a": set(names)}) == content_text({"a": {*names[::-1]}})
    assert content_text([1, "a", {"b": np.float64(2)}]) == repr([1, "a", {"b": np.float64(2)}])
    assert "0x" not in content_text({"f": lambda: 0})


def test_neither_file_nor_command_has_an_address_of_an_argument(monkeypatch):
    class Told(Dice):
        def __init__(self, told):
            super().__init__()

    monkeypatch.setitem(gymnasium.registry, "Told-v0", EnvSpec("Told-v0", Told))
    arguments = {"told": lambda: 0}
    found = collect_episodes("Told-v0", "uniform", 2, backend="serial", make_arguments=arguments).provenance
    assert "0x" not in json.dumps(found)


def test_a_factory_that_names_its_identity_is_taken_at_its_word():
    def found(kind):
        factory = functools.partial(kind)
        factory.steadyrl_identity = "dice"
        return collect_episodes(factory, "uniform", 2, backend="serial").provenance["environment_digest"]

    assert found(Dice) == found(Wandering)


class Wandering(Dice):
    """Changes the working directory, as some simulators do to find their files."""

    def __init__(self):
        super().__init__()
        os.chdir("/")


def test_an_environment_that_changes_the_directory_does_not_move_the_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = collect_episodes(Wandering, "uniform", 3, backend="serial", out="found.npz", checkpoint="found.partial")
    assert same(Episodes.load(tmp_path / "found.npz"), found)
    assert not (tmp_path / "found.partial").exists()


def test_the_error_of_a_constructor_is_told_for_ids_with_a_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_package.py").write_text(
        "import gymnasium\n"
        "def make(mode): raise ValueError('no such mode')\n"
        "gymnasium.register('Own-v0', entry_point=make)\n"
    )
    with pytest.raises(RolloutError, match=r"ValueError: no such mode.*it takes mode"):
        collect_episodes("own_package:Own-v0", "uniform", 2, make_arguments={"mode": 1}, backend="serial")


def test_fingerprints_are_of_content():
    space = spaces.Box(-1, 1, (3,))
    before = fingerprint(functools.partial(dict, space=space))
    space.sample()  # which draws a seed by chance
    assert fingerprint(functools.partial(dict, space=space)) == before
    values = [1, 1.0, "1", True, None, (1,), [1], {1}, {1: 1}, np.ones(1), np.ones(1, np.float32), Dice, Dice(), len]
    assert len(set(map(fingerprint, values))) == len(values)
    circle = []
    circle.append(circle)
    assert fingerprint(circle) == fingerprint(circle)
    assert "0x" not in readable_name(functools.partial(Dice, pause=object()))


class Named(set):
    def __init__(self, name):
        self.name = name


class NamedSlot(frozenset):
    __slots__ = ("name",)

    def __new__(cls, name):
        made = super().__new__(cls)
        made.name = name
        return made


class NamedArray(np.ndarray):
    def __new__(cls, name):
        made = np.zeros(2).view(cls)
        made.name = name
        return made


def begun(n):
    """Return a generator that has begun: what is left of its iterator is in no variable."""
    made = (value for value in iter([1, 2, 3, 4][:n]))
    next(made)
    return made


def library(name, *, path=None):
    found = ctypes.CDLL(path)
    found._name = name
    return found


UNSEEN = {
    "memoryview": (memoryview(b"abcd")[:2], memoryview(b"abcd")[2:]),
    "match": (re.search("a", "ba"), re.search("a", "aa")),
    "struct": (struct.Struct("<i"), struct.Struct("<q")),
    "property": (property(lambda self: 1), property(lambda self: 2)),
    "ufunc": (np.frompyfunc(lambda x: x + 1, 1, 1), np.frompyfunc(lambda x: x + 2, 1, 1)),
    "fill value": (np.ma.array([1, 2], fill_value=3), np.ma.array([1, 2], fill_value=4)),
    "set": (Named(1), Named(2)),
    "slot": (NamedSlot(1), NamedSlot(2)),
    "array": (NamedArray(1), NamedArray(2)),
    "generator": (begun(2), begun(3)),
    "library": (library("libone.so"), library("libtwo.so")),
}


@pytest.mark.parametrize("kind", UNSEEN)
def test_what_pickle_does_not_see_is_told_apart(kind):
    one, other = UNSEEN[kind]
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)


def test_the_address_of_a_library_that_ctypes_loaded_does_not_enter(tmp_path):
    """No run of an environment that steps a simulator of its own in C could be resumed."""
    one, other = library("libwalk.so"), library("libwalk.so", path=scipy.sparse._sparsetools.__file__)
    assert one._handle != other._handle
    assert fingerprint(one) == fingerprint(other)
    file = tmp_path / "libwalk.so"
    file.write_bytes(b"one")
    before = fingerprint(library(str(file)))
    file.write_bytes(b"another")
    os.utime(file, ns=(1, 1))
    assert fingerprint(library(str(file))) != before


def test_an_explicit_identity_takes_the_place_of_content():
    def named(name, level):
        made = functools.partial(Dice, level)
        made.steadyrl_identity = name
        return fingerprint(made)

    assert named("a", 0.0) == named("a", 1.0) != named("b", 0.0)


# Damage.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file of every kind, and how it is loaded into something that can be compared."""
    folder = tmp_path_factory.mktemp("saved")
    episodes = collect_episodes(Dice, "uniform", 6, backend="serial", trajectories=True)
    episodes.save(folder / "episodes")
    collect_samples(Dice, "uniform", 3, [2, 9], backend="serial").save(folder / "samples")
    gallery.corridor(3)[0].save(folder / "process")
    random_gaussian_policy(2, (1,), seed=0).save(folder / "policy")
    seen, acted = observation_codec(spaces.Box(-1, 1, (2,))), action_codec(spaces.Box(-1, 1, (1,)))
    loaders = {
        "episodes": Episodes.load,
        "samples": Samples.load,
        "process": lambda path: LearningProcess.load(path).digest,
        "policy": lambda path: {k: v.tolist() for k, v in load_policy(path, seen, acted).tensors().items()},
    }
    return {name: ((folder / name).read_bytes(), load) for name, load in loaders.items()}


@pytest.mark.parametrize("kind", ["episodes", "samples", "process", "policy"])
def test_a_flipped_bit_is_noticed_or_changes_nothing(saved, kind, tmp_path):
    content, load = saved[kind]
    path, generator = tmp_path / "a", random.Random(kind)
    path.write_bytes(content)
    whole = load(path)
    refused = 0
    for _ in range(150):
        path.write_bytes(flipped(content, generator))
        try:
            found = load(path)
        except FileFormatError:
            refused += 1
        else:
            assert found == whole
    assert refused > 75


@pytest.mark.parametrize("kind", ["episodes", "samples", "process", "policy"])
def test_a_truncated_file_is_refused(saved, kind, tmp_path):
    content, load = saved[kind]
    path, generator = tmp_path / "a", random.Random(kind)
    for _ in range(40):
        path.write_bytes(content[: generator.randrange(len(content))])
        with pytest.raises(FileFormatError):
            load(path)


def rezipped(content, change):
    """An npz archive whose entries were changed by somebody who knows zip, checksums and all."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = change({name: archive.read(name) for name in archive.namelist()})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in entries.items():
            archive.writestr(name, value)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: {k: v for k, v in entries.items() if not k.startswith("ages_")},
        lambda entries: {k: v for k, v in entries.items() if not k.startswith("trajectories_")},
        lambda entries: entries | {"more.npy": entries["lengths.npy"]},
        lambda entries: entries | {"returns.npy": entries["returns.npy"][:-1] + b"\x01"},
        lambda entries: {
            k.replace("terminated", "tmp").replace("truncated", "terminated"): v for k, v in entries.items()
        },
    ],
)
def test_arrays_cannot_be_hidden_added_changed_or_exchanged(saved, change, tmp_path):
    (tmp_path / "a").write_bytes(rezipped(saved["episodes"][0], change))
    with pytest.raises(FileFormatError):
        Episodes.load(tmp_path / "a")


def test_a_disk_that_is_full_from_the_start_leaves_no_beginning_of_a_checkpoint(tmp_path, monkeypatch):
    def half_written(self, content):
        self._file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device", str(self.path))

    monkeypatch.setattr(Checkpoint, "_write", half_written)
    with pytest.raises(OSError, match="No space left"):
        collect_episodes(Dice, "uniform", 4, backend="serial", out=tmp_path / "a", checkpoint=tmp_path / "a.partial")
    assert list(tmp_path.iterdir()) == []


def test_episodes_whose_header_is_hidden_are_not_read_as_a_log_of_lengths(saved, tmp_path):
    file = tmp_path / "a.npz"
    content = saved["episodes"][0]
    file.write_bytes(rezipped(content, lambda entries: {k: v for k, v in entries.items() if k != "steadyrl.npy"}))
    with pytest.raises(FileFormatError, match="damaged"):
        read_lengths(file)
    place = content.rindex(b"steadyrl.npy")  # in the directory at the end of the archive
    file.write_bytes(content[:place] + b"r" + content[place + 1 :])
    with pytest.raises(FileFormatError, match="damaged"):
        read_lengths(file)


def old_file(path, episodes, **changed):
    """A file as version 1 wrote it: without digests."""
    arrays = {name: getattr(episodes, name) for name in ("lengths", "returns", "terminated", "truncated", "seeds")}
    header = {"kind": "episodes", "version": 1, "provenance": {}, "skipped": []}
    with open(path, "wb") as file:
        np.savez_compressed(file, steadyrl=np.array(json.dumps(header)), **(arrays | changed))


def test_files_of_version_1_still_load(tmp_path):
    episodes = collect_episodes(Dice, "uniform", 6, backend="serial")
    old_file(tmp_path / "a", episodes)
    assert (Episodes.load(tmp_path / "a").lengths == episodes.lengths).all()


@pytest.mark.parametrize(
    "changed",
    [
        {"lengths": np.arange(6.0)},
        {"lengths": -np.arange(6)},
        {"lengths": np.arange(5)},
        {"lengths": np.arange(6).reshape(2, 3)},
        {"returns": np.full(6, np.nan)},
        {"returns": np.array(["1"] * 6)},
        {"terminated": np.arange(6)},
        {"truncated": np.zeros(7, dtype=bool)},
        {"seeds": np.zeros(6)},
        {"ages_count": np.arange(3)},
        {"ages_count": np.arange(3), "ages_total": np.zeros((3, 2)), "ages_total_squares": np.zeros((3, 2))},
        {"trajectories_rewards": np.zeros(3)},
    ],
)
def test_episodes_check_what_a_file_holds(tmp_path, changed):
    old_file(tmp_path / "a", collect_episodes(Dice, "uniform", 6, backend="serial"), **changed)
    with pytest.raises(FileFormatError, match="does not hold whole episodes"):
        Episodes.load(tmp_path / "a")


def test_old_policy_files_without_a_digest_still_load(tmp_path):
    from safetensors.numpy import save_file

    policy = random_gaussian_policy(2, (1,), seed=0)
    metadata = {"format": "steadyrl policy", "version": "1", "kind": "gaussian", "activation": "tanh"}
    tensors = {name: np.ascontiguousarray(value) for name, value in policy.tensors().items()}
    save_file(tensors, tmp_path / "old", metadata)
    found, about = read_safetensors(tmp_path / "old")
    assert about == metadata
    assert all((found[name] == value).all() for name, value in tensors.items())


def test_the_same_policy_gives_the_same_bytes(tmp_path):
    for name in "ab":
        random_gaussian_policy(2, (1,), seed=0).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def bomb(path, shape, dtype, size):
    """An archive whose array says that it is larger than it is."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    header = io.BytesIO()
    np.save(header, np.array(json.dumps({"kind": "episodes", "version": 1, "provenance": {}, "skipped": []})))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("steadyrl.npy", header.getvalue())
        archive.writestr("lengths.npy", head.getvalue() + b"\0" * size)


@pytest.mark.parametrize("end", ["close", "remove"])
def test_a_run_whose_checkpoint_was_moved_away_does_not_delete_that_of_the_next(tmp_path, end):
    path = tmp_path / "a.partial"
    first = Checkpoint(path, {"total": 1}, resume=False)
    path.rename(tmp_path / "aside")
    second = Checkpoint(path, {"total": 1}, resume=False)
    getattr(first, end)()
    assert path.exists()
    getattr(second, end)()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"[" * 100_000], ids=["empty", "nested"])
def test_a_zip_file_that_is_no_model_is_refused_with_a_sentence(tmp_path, content):
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", content)
    with pytest.raises(FileFormatError, match="not one that Stable-Baselines3"):
        collect_episodes("CartPole-v1", path, 1)


@pytest.mark.parametrize("place", [6, 8], ids=["encrypted", "compression"])
def test_a_model_whose_zip_entry_is_damaged_is_refused_with_a_sentence(tmp_path, place):
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {"__module__": "stable_baselines3.common"}}))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 2 + place] ^= 1  # flags, or the method, in the zip's directory
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="or it is damaged"):
        collect_episodes("CartPole-v1", path, 1)


def test_a_small_zip_cannot_ask_for_all_memory_as_a_policy(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MOST", 1 << 20)
    monkeypatch.setattr(storage, "RATIO", 100)
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", b" " * (1 << 22))
    with pytest.raises(FileFormatError, match="more than 1000 times its size"):
        collect_episodes("CartPole-v1", tmp_path / "model.zip", 1)
    np.savez_compressed(tmp_path / "policy.npz", policy=np.zeros((1 << 10, 1 << 10)))
    with pytest.raises(FileFormatError, match="more than 1000 times its size"):
        _load_policy(gallery.corridor(rooms=3)[0], str(tmp_path / "policy.npz"))


def test_a_policy_file_without_arrays_is_refused_with_a_sentence(tmp_path):
    with zipfile.ZipFile(tmp_path / "policy.npz", "w"):
        pass
    with pytest.raises(FileFormatError, match="it holds no array"):
        _load_policy(gallery.corridor(rooms=3)[0], str(tmp_path / "policy.npz"))


def test_a_small_file_cannot_ask_for_all_memory(tmp_path, monkeypatch):
    path = tmp_path / "a"
    bomb(path, (10**13,), np.int64, 80)
    with pytest.raises(FileFormatError, match="does not fit its size"):
        Episodes.load(path)
    monkeypatch.setattr(storage, "MOST", 1 << 20)
    monkeypatch.setattr(storage, "RATIO", 100)
    bomb(path, (1 << 18,), np.int64, 1 << 21)
    assert path.stat().st_size < 1 << 14
    with pytest.raises(FileFormatError, match="more than 1000 times"):
        Episodes.load(path)


def test_what_is_very_regular_is_still_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MOST", 1 << 16)
    monkeypatch.setattr(storage, "RATIO", 10)
    zeros = np.zeros(1 << 15)
    save_arrays(tmp_path / "a", "zeros", {}, {"zeros": zeros})
    assert array_digest(load_arrays(tmp_path / "a", "zeros")[1]["zeros"]) == array_digest(zeros)


# Damaged checkpoints.


def filled(path, blocks=5):
    checkpoint = Checkpoint(path, MANIFEST, resume=False)
    for block in range(blocks):
        checkpoint.write({"block": block, "skipped": [], "lengths": np.arange(4) + 10 * block})
    checkpoint.close()
    return path.read_bytes()


def test_a_flipped_bit_in_a_checkpoint_costs_one_block_at_most_and_is_reported(tmp_path):
    path, generator = tmp_path / "partial", random.Random(1)
    content = filled(path)
    lost = 0
    for _ in range(300):
        changed = flipped(content, generator)
        path.write_bytes(changed)
        try:
            checkpoint = Checkpoint(path, MANIFEST, resume=True)
        except (FileFormatError, RolloutError):
            assert path.read_bytes() == changed
            continue
        assert len(checkpoint.blocks) >= 4
        assert len(checkpoint.blocks) == 5 or checkpoint.damage
        for block in checkpoint.blocks:
            assert checkpoint.read(block)["lengths"].tolist() == (np.arange(4) + 10 * block).tolist()
        lost += 5 - len(checkpoint.blocks)
        checkpoint._file.close()
    assert lost > 100


def test_a_damaged_length_asks_for_no_memory_and_later_blocks_are_found(tmp_path):
    path = tmp_path / "partial"
    content = filled(path)
    second = content.find(b"\xc5rec", content.find(b"PK"))
    path.write_bytes(content[: second + 4] + b"\xff" * 8 + content[second + 12 :])
    checkpoint = Checkpoint(path, MANIFEST, resume=True)
    assert sorted(checkpoint.blocks) == [0, 2, 3, 4]
    assert "are damaged" in checkpoint.damage[0]
    checkpoint.write({"block": 1, "skipped": [], "lengths": np.arange(4) + 10})
    checkpoint.close()
    again = Checkpoint(path, MANIFEST, resume=True)
    assert sorted(again.blocks) == [0, 1, 2, 3, 4]
    again.close()


@pytest.mark.parametrize("resume", [False, True])
def test_a_damaged_checkpoint_is_never_overwritten(tmp_path, resume):
    path, generator = tmp_path / "partial", random.Random(2)
    content = filled(path, blocks=1)
    places = [generator.randrange(len(content)) for _ in range(60)]
    for place in [*places, 0, 30, len(content) - 1]:
        changed = bytearray(content)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        try:
            checkpoint = Checkpoint(path, MANIFEST, resume=resume)
        except (FileFormatError, RolloutError):
            assert path.read_bytes() == bytes(changed)
        else:
            assert resume
            checkpoint.close()


def test_damage_is_reported_by_collect_and_mended_to_the_same_bytes(tmp_path, monkeypatch):
    partial = tmp_path / "partial"
    collect = functools.partial(
        collect_episodes, Dice, "uniform", 60, block_size=10, backend="serial", checkpoint=partial, trajectories=True
    )

    def write(self, block, _write=Checkpoint.write):
        _write(self, block)
        if block["block"] == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(Checkpoint, "write", write)
        with pytest.raises(KeyboardInterrupt):
            collect()
    content = bytearray(partial.read_bytes())
    content[len(content) // 2] ^= 1
    partial.write_bytes(content)
    with pytest.raises(RolloutError, match="finished blocks"):
        collect()
    assert partial.read_bytes() == bytes(content)
    found = collect(resume=True)
    assert [note for note in found.notes if "are damaged" in note]
    assert same(found, collect_episodes(Dice, "uniform", 60, block_size=10, backend="serial", trajectories=True))


# Temporary files.


def test_temporary_files_of_dead_processes_are_deleted_and_of_living_ones_are_not(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    name = f".steadyrl-{files._machine()}-{{}}-0123abcd.npz"
    stale, living = tmp_path / name.format(dead.pid), tmp_path / name.format(os.getppid())
    strange = tmp_path / f".steadyrl-00000000-{dead.pid}-0123abcd.npz"  # of another machine
    for path in (stale, living, strange):
        path.write_bytes(b"half")
    write_atomically(tmp_path / "a", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a", living.name, strange.name])


def test_a_kill_while_a_file_is_written_leaves_the_old_one_and_the_next_start_cleans_up(tmp_path):
    path = tmp_path / "a.gif"
    path.write_bytes(b"good")
    code = (
        "import os, sys; from steadyrl.common.storage import written_atomically\n"
        "with written_atomically(sys.argv[1]) as temporary:\n"
        " temporary.write_bytes(b'ha'); assert temporary.suffix == '.gif'; os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60)
    assert path.read_bytes() == b"good"
    assert len(list(tmp_path.iterdir())) == 2
    with written_atomically(path) as temporary:
        temporary.write_bytes(b"better")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"better"]


def test_errors_in_writing_name_the_file_and_leave_nothing(tmp_path):
    def write():
        with written_atomically(tmp_path / "a") as temporary:
            temporary.write_bytes(b"ha")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*a'"):
        write()
    assert not list(tmp_path.iterdir())


# What was collected compares, hashes and prints.


def test_results_compare_hash_and_print_briefly():
    one = collect_episodes(Dice, "uniform", 30, backend="serial", trajectories=True)
    two = collect_episodes(Dice, "uniform", 30, backend="serial", trajectories=True)
    other = collect_episodes(Dice, "uniform", 30, seed=1, backend="serial", trajectories=True)
    assert one == two != other
    assert len({one, two, other}) == 2
    assert one.trajectories == two.trajectories != other.trajectories
    assert one != replace(one, trajectories=None)
    assert one != 3
    samples = [collect_samples(Dice, "uniform", 5, [3], seed=seed, backend="serial") for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    for value in (one, one.trajectories, samples[0]):
        assert len(repr(value)) < 120
        assert "array" not in repr(value)


def test_the_recorded_command_makes_the_same_data_again(tmp_path):
    found = collect_episodes(
        "CartPole-v1",
        "uniform",
        30,
        seed=2,
        backend="serial",
        block_size=10,
        on_error="skip",
        trajectories=True,
        make_arguments={"max_episode_steps": 20, "sutton_barto_reward": True, "render_mode": "rgb_array"},
    )
    import shlex

    words = shlex.split(found.provenance["command"])
    assert words[0] == "steadyrl"
    out = tmp_path / "a.npz"
    subprocess.run([sys.executable, "-m", *words, "--out", str(out)], check=True, capture_output=True, timeout=120)
    assert same(Episodes.load(out), found)


def test_the_recorded_call_makes_the_same_samples_again():
    import steadyrl
    from steadyrl import Perturbation

    found = collect_samples(
        "CartPole-v1", "uniform", 5, [3, 9], seed=2, perturbation=Perturbation(0.5), backend="serial"
    )
    call = found.provenance["command"]
    assert call.startswith("steadyrl.collect_samples('CartPole-v1', 'uniform', 5, [3, 9]")
    assert eval(call, {"steadyrl": steadyrl, "Perturbation": Perturbation}) == found


HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", f"[1, 2, {HUGE}]"),
        ("a.jsonl", f'{{"episode_length": 3}}\n{{"episode_length": {HUGE}}}\n'),
        ("a.json", '{"hist_stats": {"episode_lengths": ["a", [1], {}]}}'),
        ("a.json", '{"hist_stats": {"episode_lengths": [3, true]}}'),
    ],
    ids=["digits", "digits in a line", "kinds", "a truth value"],
)
def test_logs_with_values_that_are_no_lengths_are_named(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(FileFormatError, match=name):
        read_lengths(tmp_path / name)


@pytest.mark.parametrize("start", [HUGE, "1" + "0" * 400], ids=["5,000 digits", "beyond a float"])
def test_a_monitor_header_with_an_impossible_time_is_left_out(tmp_path, start):
    (tmp_path / "monitor.csv").write_text(f'#{{"t_start": {start}, "env_id": "x"}}\nr,l,t\n1,10,1\n1,20,2\n')
    np.testing.assert_array_equal(read_lengths(tmp_path / "monitor.csv").lengths, [10, 20])


def test_diagnose_looks_at_collected_episodes_as_episodes_do(tmp_path):
    """Files whose digests fit, but not their content: `Episodes.load` refused what `read_lengths` fell over."""
    collect_episodes(Dice, "uniform", 20, backend="serial", observation_sums=True).save(tmp_path / "a.npz")
    header, arrays = load_arrays(tmp_path / "a.npz", "episodes")
    header = {name: value for name, value in header.items() if name not in ("kind", "version")}
    cases = [({**header, "provenance": value}, arrays) for value in (None, [], "no")]
    for name in ("lengths", "truncated", "ages_count", "ages_total", "ages_total_squares"):
        array = arrays[name]
        spoilt = [array[:0], array[:-1], array.dtype.type(0), array.astype("U8")]
        spoilt += [np.full(array.shape, np.nan)] + [-1 - array.astype(float)] * (name != "ages_total")
        cases += [(header, arrays | {name: value}) for value in spoilt]
        cases.append((header, {other: value for other, value in arrays.items() if other != name}))
    for head, content in cases:
        save_arrays(tmp_path / "b.npz", "episodes", head, content)
        for read in (read_lengths, Episodes.load):
            with pytest.raises(FileFormatError):
                read(tmp_path / "b.npz")
    save_arrays(tmp_path / "b.npz", "episodes", header, arrays)
    assert read_lengths(tmp_path / "b.npz").lengths.tolist() == Episodes.load(tmp_path / "b.npz").lengths.tolist()


def test_a_process_with_impossible_indices_is_refused(tmp_path):
    """SciPy read beyond the ends of its arrays, and the interpreter crashed."""
    gallery.corridor(rooms=3)[0].save(tmp_path / "a.npz")
    header, arrays = load_arrays(tmp_path / "a.npz", "learning process")
    header = {name: value for name, value in header.items() if name not in ("kind", "version")}
    ends, places = arrays["indptr_0"], arrays["indices_0"]
    spoilt = [{"indptr_0": np.where(np.arange(len(ends)) == 2, end, ends)} for end in (10**6, -3)]
    spoilt += [{"indices_0": np.full_like(places, index)} for index in (2**31 - 1, -1)]
    for name, values in [({}, part) for part in spoilt] + [({"n_states": 10**30}, {}), ({"n_actions": 10**30}, {})]:
        save_arrays(tmp_path / "b.npz", "learning process", header | name, arrays | values)
        with pytest.raises(FileFormatError, match="does not hold a whole learning process"):
            LearningProcess.load(tmp_path / "b.npz")
    broken = scipy.sparse.csr_array(np.eye(3))
    broken.indices = np.array([0, 1, 10**6], dtype=np.int32)
    with pytest.raises(ProcessError, match="indices"):
        LearningProcess([broken], np.zeros(3), [1, 0, 0])


def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path):
    """It was waited for, for ever."""
    os.mkfifo(tmp_path / "a.npz.partial")
    os.mkfifo(tmp_path / "b.npz")
    with pytest.raises(RolloutError, match="is a pipe or a device"):
        collect_episodes(Dice, "uniform", 5, backend="serial", checkpoint=tmp_path / "a.npz.partial")
    for load in (Episodes.load, LearningProcess.load):
        with pytest.raises(FileFormatError, match="is a pipe or a device"):
            load(tmp_path / "b.npz")


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "disk").mkdir()
    link, there = tmp_path / "a.txt", tmp_path / "disk" / "a.txt"
    link.symlink_to(there)
    for content in (b"old", b"new"):
        write_atomically(link, content)
        assert link.is_symlink()
        assert there.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "disk"]


def test_a_patient_lock_waits_for_its_turn(tmp_path):
    with locked(tmp_path):
        code = f"from steadyrl.common.files import locked\nwith locked({str(tmp_path)!r}, patience=60.0): print('mine')"
        other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        assert other.poll() is None
    assert other.communicate(timeout=60)[0] == "mine\n"


EDITED = """
import gymnasium
import numpy as np
from gymnasium import spaces

GOAL = {goal}


class Walk(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 99, (1,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        self.place += 1
        return np.full(1, self.place, np.float32), 1.0, self.place >= GOAL, False, {{}}


gymnasium.register("EditedWalk-v0", {entry})
"""


@pytest.mark.parametrize("entry", ["Walk", '"edited_walk:Walk"'])
def test_an_environment_whose_file_was_edited_is_not_gone_on_with(tmp_path, entry):
    """Its id is the same, and no version tells that its code is another."""
    module, out = tmp_path / "edited_walk.py", tmp_path / "walk.npz"
    module.write_text(EDITED.format(goal=5, entry=entry))
    more = ["--block-size", "4", "--backend", "serial", "--out", str(out)]

    def collect(episodes, *options):
        command = [sys.executable, "-m", "steadyrl", "collect", "edited_walk:EditedWalk-v0", "--episodes", episodes]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [*command, *more, *options], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    first = collect("8")
    assert first.returncode == 0, first.stderr
    provenance = Episodes.load(out).provenance
    manifest = {key: value for key, value in provenance.items() if key != "command"}
    kept = Checkpoint(tmp_path / "walk.npz.partial", manifest, resume=False)
    kept.write({"block": 0, "skipped": [], "lengths": np.full(4, 5)})
    kept.close()
    module.write_text(EDITED.format(goal=7, entry=entry))
    second = collect("8", "--resume")
    assert second.returncode == 2
    said = " ".join(second.stderr.split())
    assert "the environment's code, or a value that it reads, is not what it was" in said
    assert "steadyrl_identity" in said
    assert Episodes.load(out).lengths.tolist() == [5] * 8


def test_versions_that_are_not_those_of_packages_are_refused(tmp_path):
    file = tmp_path / "episodes.npz"
    collect_episodes("CartPole-v1", "uniform", 40, backend="serial", out=file)
    header, arrays = load_arrays(file, "episodes")
    about = {"skipped": header["skipped"], "provenance": {**header["provenance"], "versions": 7}}
    save_arrays(file, "episodes", about, arrays)
    with pytest.raises(FileFormatError, match="versions"):
        read_lengths(file)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_interrupt_while_arrays_are_packed_stays_an_interrupt(monkeypatch, compressed):
    """A signal while a member was being closed came out of savez as a ValueError about an open writing handle."""
    arrays = {"lengths": np.arange(1000) * 7919 % 1013, "empty": np.empty((0, 2))}
    close, packed = zipfile._ZipWriteFile.close, storage.pack_archive({}, arrays, compressed=compressed)

    def interrupted(self):
        monkeypatch.setattr(zipfile._ZipWriteFile, "close", close)
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile._ZipWriteFile, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        storage.pack_archive({}, arrays, compressed=compressed)
    gc.collect()  # what is printed when an archive is deleted would fail this test, too
    loaded = np.load(io.BytesIO(packed))
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **{name: loaded[name] for name in loaded.files})
    assert buffer.getvalue() == packed


@pytest.mark.parametrize("limit", [2, 12])
def test_blocks_whose_episodes_were_all_left_out_do_not_cost_the_trajectories(tmp_path, limit):
    """Their empty arrays had another number of dimensions, which ended the run, and each --resume, in a ValueError."""
    found = [
        collect_episodes(
            "CartPole-v1",
            "uniform",
            20,
            seed=seed,
            backend="serial",
            block_size=1,
            max_episode_steps=longest,
            on_error="skip",
            trajectories=True,
            out=tmp_path / f"{seed}.npz",
        )
        for seed, longest in ((0, limit), (1, 500))
    ]
    assert len(found[0]) < 20 == len(found[1])
    for part in (*found, found[0].merge(found[1]), found[1].merge(found[0])):
        assert len(part.trajectories.actions) == part.lengths.sum()
        assert part is found[0] or part.trajectories.actions.dtype == found[1].trajectories.actions.dtype
    assert same(Episodes.load(tmp_path / "0.npz"), found[0])


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """A folder with the results of figure-1."""
    out = tmp_path_factory.mktemp("reproduced")
    reproduce(named("figure-1"), "quick", out)
    return out


@pytest.mark.parametrize(
    "changes",
    [
        {"versions": None},
        {"versions": {"numpy": 2}},
        {"seed": "0"},
        {"scale": "huge"},
        {"numbers": []},
        {"settings": {"epsilon": 1, "steps": 40}},
        {"numbers": {}},
        {"experiment": "table-1"},
        {"arrays": {"raw chain": np.zeros((9, 9, 9))}},
        {"arrays": {"raw distance": np.array("far")}},
        {"arrays": {"raw terminal": np.zeros(0)}},
    ],
    ids=str,
)
def test_a_result_whose_digests_fit_but_not_its_content_is_refused(reproduced, tmp_path, changes):
    """It raised whatever the numbers led to, as AttributeError or ZeroDivisionError, also on the command line."""

    def page(path):
        result = Result.load(path)
        return render_html(page_of(named("figure-1")[0], result), draw_result(named("figure-1")[0], result, tmp_path))

    header, arrays = load_arrays(reproduced / "figure-1.npz", "reproduction")
    header = {name: value for name, value in (header | changes).items() if name not in ("arrays", "kind", "version")}
    save_arrays(tmp_path / "figure-1.npz", "reproduction", header, arrays | changes.get("arrays", {}))
    with pytest.raises(FileFormatError, match=r"figure-1\.npz.* make it again"):
        page(tmp_path / "figure-1.npz")


@pytest.mark.parametrize("name", ["figure-1.svg", "figure-1.npz", "index.html"])
def test_a_directory_where_reproduce_will_write_is_noticed_before_the_run(tmp_path, name):
    (tmp_path / name).mkdir()
    ran = []
    experiment = replace(named("figure-1")[0], run=lambda settings, workspace: ran.append(1))
    with pytest.raises(RolloutError, match=rf"{re.escape(name)}' cannot be written \(it is a directory\)"):
        reproduce([experiment], "quick", tmp_path)
    assert not ran


def test_a_report_that_cannot_be_written_whole_leaves_the_files_of_the_one_before(tmp_path, monkeypatch):
    """An interrupt or a full disk between its files left the page of one run beside the numbers of another."""
    before = steadyrl.diagnose_lengths([5, 6, 7, 9] * 20)
    cli_diagnose = importlib.import_module("steadyrl.cli.diagnose")
    cli_diagnose._write(before, tmp_path, tmp_path)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(lengths, episodes, path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(cli_diagnose, "write_lengths", full)
    with pytest.raises(OSError, match=r"No space left on device.*/lengths\.txt"):
        cli_diagnose._write(steadyrl.diagnose_lengths([50, 60, 7, 9] * 20), tmp_path, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept


def test_a_name_in_a_deleted_working_directory_is_refused_with_a_sentence(tmp_path, monkeypatch):
    """It was "No such file or directory", without a name."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for write in (
        lambda: gallery.corridor()[0].save("a.npz"),
        lambda: collect_episodes("CartPole-v1", "uniform", 2, backend="serial", out="a.npz"),
        lambda: train(gallery.corridor()[0], Settings(updates=1), out="a"),
    ):
        with pytest.raises(SteadyrlError, match=r"'a.*has been deleted"):
            write()


@pytest.mark.parametrize("kind", ["episodes", "process", "a log"])
def test_files_that_are_joined_into_one_are_not_read_as_the_last_of_them(kind, tmp_path):
    """`cat one.npz two.npz > both.npz` loaded as the second file, and what was in the first was left out silently."""
    one, two, both = (tmp_path / f"{name}.npz" for name in ("one", "two", "both"))
    load = {"episodes": Episodes.load, "process": LearningProcess.load, "a log": read_lengths}[kind]
    for seed, path in enumerate((one, two)):
        if kind == "episodes":
            collect_episodes(Dice, "uniform", 5, seed=seed, backend="serial", out=path)
        elif kind == "process":
            gallery.corridor(4 + seed)[0].save(path)
        else:
            np.savez(path, lengths=np.arange(3, 9 + seed))
        load(path)
    both.write_bytes(one.read_bytes() + two.read_bytes())
    with pytest.raises(FileFormatError, match="joined into one"):
        load(both)


def test_lengths_that_diagnose_wrote_load_as_they_were_written_or_are_refused(tmp_path):
    """A flipped digit in lengths.txt, which a report's code reads, was another length; a cut file had fewer of them."""
    path, generator = tmp_path / "lengths.txt", random.Random(0)
    write_lengths(EpisodeLengths.from_gymnasium([3, 8, 8, 14, 97]), 5, path)
    content, whole = path.read_bytes(), read_lengths(path)
    assert whole.lengths.tolist() == [3, 8, 8, 14, 97]
    assert whole.sorted
    damages = [flipped(content, generator) for _ in range(300)]
    damages += [content[:end] for end in range(len(content) - 8, len(content) - 1)]
    for damaged in damages:
        path.write_bytes(damaged)
        try:
            found = read_lengths(path)
        except FileFormatError:
            continue
        assert found.lengths.tolist() == whole.lengths.tolist()
        assert found.sorted
    path.write_bytes(content.replace(b"\n", b"\r\n"))  # another system's line breaks are no damage
    assert read_lengths(path).lengths.tolist() == whole.lengths.tolist()
    path.write_bytes(b"".join(content.splitlines(keepends=True)[:1]) + b"3\n")
    with pytest.raises(FileFormatError, match="edited on purpose"):
        read_lengths(path)
    write_lengths(EpisodeLengths.from_gymnasium([7]), 1, path)
    assert read_lengths(path).lengths.tolist() == [7]
    path.write_bytes(path.read_bytes().replace(b"\n7\n", b"\n5\n"))
    with pytest.raises(FileFormatError, match="damaged"):
        read_lengths(path)
