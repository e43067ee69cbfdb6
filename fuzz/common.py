"""What all fuzzers share: arguments, limits, counting, and the file of results.

A fuzzer is a function of a `Trial`: it counts what it tried and tells what it found. It is seeded, and ends when its
count or its time is used up. The exit code is 1 if it found something.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

RESULTS = Path(__file__).with_name("results.json")


class Trial:
    """One run of a fuzzer: its random numbers, its bounds, what was tried and what was found."""

    def __init__(self, name: str, *, seed: int = 0, count: int, seconds: float = 600.0, folder: Path):
        self.name, self.seed, self.count, self.seconds, self.folder = name, seed, count, seconds, folder
        self.random = random.Random(seed)
        self.only = ""
        self.tried: collections.Counter[str] = collections.Counter()
        self.findings: list[str] = []
        self._start = time.monotonic()

    def generator(self, *words: object) -> random.Random:
        """Return random numbers of their own for one part, so that a part can be repeated alone."""
        return random.Random(" ".join(map(str, (self.seed, self.name, *words))))

    def time_is_up(self) -> bool:
        """Return whether the trial should end."""
        return time.monotonic() - self._start > self.seconds

    def elapsed(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._start

    def found(self, what: str) -> None:
        """Note a finding, and print it."""
        self.findings.append(what)
        print(f"FOUND {what}", flush=True)


class TimeLimit(BaseException):
    """A call took longer than it may."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimit after some seconds, whatever the block makes of it: an error of an environment, for example."""
    passed = False

    def stop(number: int, frame: object) -> None:
        nonlocal passed
        passed = True
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except BaseException:
        if not passed:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if passed:
        raise TimeLimit


def limit_memory(gigabytes: float) -> None:
    """Let this process have so much more address space, so that asking for all memory is an error and not a swap."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + int(gigabytes * 2**30), hard))


def main(name: str, attack: Callable[[Trial], None], *, count: int, seconds: float = 600.0) -> None:
    """Run a fuzzer from the command line."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=count, help=f"number of trials of each kind ({count})")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (0)")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"stop after so many seconds ({seconds:g})")
    parser.add_argument("--only", default="", help="of signals: the kinds of runs, separated by semicolons (all)")
    parser.add_argument("--record", action="store_true", help="write the counts to fuzz/results.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(name, seed=given.seed, count=given.count, seconds=given.seconds, folder=Path(folder))
        trial.only = given.only
        attack(trial)
    print(f"{name}: seed {given.seed}, {trial.elapsed():.0f} s")
    for what, number in sorted(trial.tried.items()):
        print(f"{number:>8,}  {what}")
    print(f"{len(trial.findings):>8,}  findings", flush=True)
    if given.record:
        record(trial)
    sys.exit(1 if trial.findings else 0)


def record(trial: Trial) -> None:
    """Write what a trial counted beside what other fuzzers, and this one with other seeds, counted."""
    import steadyrl

    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    command = f"python fuzz/{trial.name}.py --count {trial.count} --seed {trial.seed} --seconds {trial.seconds:g}"
    command += f" --only '{trial.only}'" if trial.only else ""
    results[f"{trial.name} {trial.seed}"] = {
        "command": command,
        "seed": trial.seed,
        "version": steadyrl.__version__,
        "tried": dict(sorted(trial.tried.items())),
        "findings": trial.findings,
    }
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
