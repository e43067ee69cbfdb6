"""Runs environments that misbehave: collect, evaluate and train end with a result or an error that names the place.

An environment forks, exits, hangs, prints, raises in its constructor, returns strings, arrays, NaN or observations of
other shapes, or uses the global random generator, at a random step, serially and in processes.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from common import TimeLimit, Trial, main, time_limit

SECONDS = 60.0
WHERE = ("observation", "reward", "terminated", "truncated", "info")
VALUES: list[Any] = [
    None, "1.5", "False", math.nan, math.inf, -math.inf, 1e308, 1j, [1.0, 2.0], np.zeros(3), np.zeros((2, 2)),
    np.float32(3), np.array(["a", "b"]), np.array([1, None], dtype=object), {}, object(), 10**400, np.ma.masked, b"x",
]  # fmt: skip
RAISED = ("exit", "exit1", "raise", "recursion", "tuple", "memory", "random")
APART = ("os._exit", "fork", "hang")
"""Deeds for environments in processes of their own; they are slow to try."""


BUDGET = "evaluate a budget"


class Rude(gymnasium.Env[Any, Any]):
    """An environment that does one deed at one step."""

    def __init__(self, deed: str, at: int, where: str = "reward", value: int = 0) -> None:
        self.deed, self.at, self.where, self.value = deed, at, where, value
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        if at == -1:
            self.misbehave()

    def misbehave(self) -> None:
        """Do the deed, unless it is a value to return."""
        if self.deed == "exit":
            sys.exit(0)
        if self.deed == "exit1":
            sys.exit("bye")
        if self.deed == "raise":
            raise RuntimeError("no wheels")
        if self.deed == "recursion":
            self.misbehave()
        if self.deed == "memory":
            raise MemoryError
        if self.deed == "os._exit" and os.environ.get("FUZZ_PARENT") != str(os.getpid()):
            os._exit(0)
        if self.deed == "fork" and os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        if self.deed == "hang" and os.environ.get("FUZZ_PARENT") != str(os.getpid()):
            time.sleep(600)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(3, 12))
        if self.at == 0:
            self.misbehave()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        """Take a step."""
        self.steps += 1
        observation = np.array([self.steps, self.length], np.float32)
        if self.deed == "random":
            observation = np.random.random(2).astype(np.float32)  # noqa: NPY002  (the fault under test)
        found = dict(zip(WHERE, (observation, 1.0, self.steps >= self.length, False, {}), strict=True))
        if self.steps == self.at:
            self.misbehave()
            if self.deed == "value":
                found[self.where] = VALUES[self.value]
            if self.deed == "tuple":
                return tuple(found.values())[:3]
        return tuple(found.values())


def attack(trial: Trial) -> None:
    """Run `trial.count` environments."""
    from steadyrl import Settings, SteadyrlError, collect_episodes, evaluate, train

    os.environ["FUZZ_PARENT"] = str(os.getpid())
    for number in range(trial.count):
        if trial.time_is_up():
            return
        generator = trial.generator(number)
        deed = generator.choice(("value",) * 40 + RAISED * 5 + APART)
        at, where = generator.choice([-1, 0, 1, 2, 5]), generator.choice(WHERE)
        value = generator.randrange(len(VALUES))
        make = functools.partial(Rude, deed, at, where, value)
        backend = "processes" if deed in APART else generator.choice(["serial"] * 30 + ["processes"])
        skip = generator.choice(["raise", "skip"])
        if at == -1 and deed in APART:
            at, make = 1, functools.partial(Rude, deed, 1, where, value)
        tasks = (
            ["collect", "collect", "evaluate", BUDGET, BUDGET, "train"] if backend == "serial" else ["collect", BUDGET]
        )
        task = generator.choice(tasks)
        words = f"{task}, number {number}: {deed} at {at}, {where} {VALUES[value]!r}, {backend}, {skip}"
        trial.tried[f"{task} with an environment that misbehaves: {deed}"] += 1
        try:
            with time_limit(SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if task == "collect":
                    found = collect_episodes(
                        make, "uniform", 12, block_size=4, backend=backend, workers=2, on_error=skip, step_timeout=2.0
                    )
                    if not (np.isfinite(found.returns).all() and len(found) + len(found.skipped) == 12):
                        trial.found(f"{words}: {found.returns}")
                elif task == "evaluate":
                    evaluate(make, "uniform", 6, backend=backend)
                elif task == BUDGET:
                    timeout = 2.0 if backend == "processes" else None
                    report = evaluate(
                        make, "uniform", steps=60, num_envs=2, backend=backend, step_timeout=timeout
                    ).report
                    if report is None or not math.isfinite(report.mean_return.value):
                        trial.found(f"{words}: {report}")
                else:
                    settings = Settings(updates=3, num_envs=2, n_steps=8, backend=backend, critic_epochs=1)
                    train(make, settings)
        except SteadyrlError:
            pass
        except MemoryError:
            if deed != "memory":  # whoever asked for too much hears of it
                trial.found(f"{words}: MemoryError")
        except TimeLimit:
            trial.found(f"{words}: more than {SECONDS:g} s")
        except BaseException as error:
            trial.found(f"{words}: {type(error).__name__}: {str(error)[:200]}")
    loud(trial)


def loud(trial: Trial) -> None:
    """Environments that print leave JSON valid; those that exit do not end with status 0."""
    (trial.folder / "rude.py").write_text(
        f"import sys, os; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import gymnasium\nfrom environments import Rude\n"
        "class Loud(Rude):\n"
        "    def step(self, action):\n"
        "        print('step'); os.write(1, b'C'); os.system('echo shell') if self.steps == 1 else None\n"
        "        return super().step(action)\n"
        "gymnasium.register('Loud-v0', entry_point=lambda: Loud('value', 99))\n"
        "gymnasium.register('Exit-v0', entry_point=lambda: Rude('exit', 2))\n"
    )
    commands = {
        "diagnose": ["--episodes", "100", "--backend", "serial", "--json"],
        "evaluate": ["uniform", "--episodes", "5", "--backend", "serial", "--json"],
        "evaluate ": ["uniform", "--steps", "60", "--num-envs", "2", "--backend", "serial", "--json"],
    }
    for command, more in commands.items():
        for name in ("Loud", "Exit"):
            words = [sys.executable, "-m", "steadyrl", command.strip(), f"rude:{name}-v0", *more]
            done = subprocess.run(words, cwd=trial.folder, capture_output=True, text=True, timeout=120)
            trial.tried[f"--json with an environment that {'prints' if name == 'Loud' else 'exits'}"] += 1
            try:
                valid = isinstance(json.loads(done.stdout), dict)
            except json.JSONDecodeError:
                valid = False
            if (done.returncode == 0, valid) != ((True, True) if name == "Loud" else (False, False)):
                trial.found(f"{command} --json, {name}: status {done.returncode}, {done.stdout[:200]!r}")


if __name__ == "__main__":
    main("environments", attack, count=300, seconds=600)
