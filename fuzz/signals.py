"""Kills and interrupts runs at random moments, goes on with --resume, and compares the bytes with an undisturbed run.

Runs of collect (serial and in processes), train, reproduce and evaluate get SIGKILL, SIGTERM or SIGINT, some of them
several times, and some while Python still starts. SIGTERM and SIGINT must end with status 130 and no traceback; an
evaluation with a budget then says what it knows. In the end the files, and the JSON, must be those of a run that nobody
disturbed, and neither a temporary file nor a process may be left. A second run into the same place must be refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import Trial, main

COLLECT = ["collect", "CartPole-v1", "--episodes", "1000", "--block-size", "25"]
TRAIN = ["train", "CartPole-v1", "--updates", "8", "--num-envs", "4", "--n-steps", "16", "--backend", "serial"]
EVALUATE = ["evaluate", "CartPole-v1", "uniform", "--json"]
RUNS = {
    "collect, serial": [*COLLECT, "--backend", "serial", "--out", "a.npz"],
    "collect, processes": [*COLLECT, "--backend", "processes", "--workers", "2", "--out", "a.npz"],
    "collect with trajectories": [*COLLECT, "--backend", "serial", "--trajectories", "--out", "a.npz"],
    "train": [*TRAIN, "--checkpoint-every", "0.05", "--out", "run"],
    "reproduce": ["reproduce", "figure-1", "--out", "figures"],
    "evaluate, episodes": [*EVALUATE, "--episodes", "1500", "--backend", "serial"],
    "evaluate, budget": [*EVALUATE, "--steps", "60000", "--num-envs", "16", "--backend", "serial"],
    "evaluate, budget in processes": [*EVALUATE, "--steps", "8000", "--num-envs", "4", "--backend", "processes"],
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
COMPARED = {".npz", ".safetensors", ".csv", ".json"}
"""Files whose bytes must be the same; pictures and event files hold times."""


STARTING = 6
"""One run in so many is a Python of its own, so that signals come while it imports."""


class Forked:
    """A command in a child of this process, which has imported everything already; it is used as a Popen is.

    It has a session of its own, by which the processes that it started are known.
    """

    def __init__(self, words: list[str], folder: Path, *, anew: bool = False) -> None:
        self._said, self._out = (folder.parent / f"{folder.name} {name}" for name in ("said", "out"))
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 70
            try:
                os.setsid()
                # as in a terminal; a shell that starts this in the background has them ignore Ctrl-C
                signal.signal(signal.SIGINT, signal.SIG_DFL if anew else signal.default_int_handler)
                os.chdir(folder)
                for path, number in ((self._out, 1), (self._said, 2)):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
                if anew:
                    os.execv(sys.executable, [sys.executable, "-m", "steadyrl", *words])
                sys.argv = ["steadyrl", *words]
                from steadyrl.cli import main as command

                command()
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1 if end.code else 0
            except BaseException as error:
                os.write(2, f"Traceback {error!r}".encode())
            finally:
                os._exit(status)

    def poll(self) -> int | None:
        """Return the status, if it has ended."""
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> None:
        """Wait until it has ended."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("steadyrl", timeout)
            time.sleep(0.002)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """Wait until it has ended; return what it said on its two outputs."""
        self.wait(timeout)
        out, said = (p.read_text(errors="replace") if p.exists() else "" for p in (self._out, self._said))
        return out, said

    def orphans(self, patience: float = 20.0) -> list[int]:
        """Return the processes of its session that are still there after some seconds."""
        deadline = time.monotonic() + patience
        while (found := members(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found


def members(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(path.parent.name))
    return found


def start(words: list[str], folder: Path, *, anew: bool = False) -> Forked:
    """Start a command in a folder."""
    return Forked(words, folder, anew=anew)


def answer(out: str) -> dict[str, Any] | None:
    """Return the JSON that an evaluation printed, without its times; None if there is none."""
    try:
        found = json.loads(out)
    except json.JSONDecodeError:
        return None
    return {name: value for name, value in found.items() if "seconds" not in name}


def content(folder: Path) -> dict[str, bytes]:
    """Return the results in a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.suffix in COMPARED)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def leftovers(folder: Path) -> list[str]:
    """Return the temporary files in a folder."""
    marks = (".partial", ".unfinished")
    return [p.name for p in folder.rglob("*") if p.name.startswith(".steadyrl-") or p.name.endswith(marks)]


def can_resume(run: str, folder: Path) -> bool:
    """Return whether an interrupted run left something to go on from."""
    if run.startswith("collect"):
        return (folder / "a.npz.partial").exists()
    if run.startswith("evaluate"):
        return False
    return (folder / "run" / "checkpoint.npz").exists() if run == "train" else (folder / "figures").exists()


def at_work(run: str, folder: Path) -> bool:
    """Return whether a run has begun, and holds its lock."""
    if run == "reproduce":
        return any(path.is_dir() for path in folder.glob("figures/*"))
    if run.startswith("collect"):
        partial = folder / "a.npz.partial"
        return partial.exists() and partial.stat().st_size > 0
    return can_resume(run, folder)


def disturb(trial: Trial, run: str, words: list[str], number: int, longest: float) -> None:
    """Send signals to one run, finish it, and look at what is there."""
    generator = trial.generator(run, number)
    folder = trial.folder / f"{run} {number}"
    folder.mkdir()
    for _ in range(generator.choice([1, 2, 3, 4])):
        more = ["--resume"] if can_resume(run, folder) else []
        kind, anew = generator.choice(SIGNALS), generator.randrange(STARTING) == 0
        process = start([*words, *more], folder, anew=anew)
        try:
            process.wait(generator.uniform(0.05, 4.0) if anew else generator.uniform(0.02, 0.9) * longest)
        except subprocess.TimeoutExpired:
            process.send_signal(kind)
            trial.tried[f"{run}: {kind.name}"] += 1
        try:
            out, said = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            trial.found(f"{run}, number {number}: still there 60 s after {kind.name}")
            continue
        if kind != signal.SIGKILL and process.returncode not in (0, 130, -kind):
            trial.found(f"{run}, number {number}: status {process.returncode} after {kind.name}: {said[-300:]}")
        if "Traceback" in said and process.returncode != -kind:  # Python's own, while it imports the package
            trial.found(f"{run}, number {number}: a traceback after {kind.name}: {said[-300:]}")
        if process.returncode == -kind and kind != signal.SIGKILL:
            trial.tried["signals before the command had begun"] += 1
        if "--json" in words and kind != signal.SIGKILL and out.strip():
            if (said_so := answer(out)) is None:
                trial.found(f"{run}, number {number}: no JSON after {kind.name}: {out[-300:]}")
            elif said_so.get("stopped") == "interrupted":
                trial.tried[f"{run}: answers after a signal"] += 1
        if left := process.orphans():
            trial.found(f"{run}, number {number}: processes {left} are left after {kind.name}")
        if process.returncode == 0:
            break
    if not complete(run, folder) or can_resume(run, folder):
        more = ["--resume"] if can_resume(run, folder) else []
        process = start([*words, *more], folder)
        out, said = process.communicate(timeout=300)
        if process.returncode:
            trial.found(f"{run}, number {number}: going on ended with {process.returncode}: {said[-300:]}")
            return
        if "--json" in words:
            (folder / "answer.json").write_text(json.dumps(answer(out)))
    trial.tried[f"{run}: results compared"] += 1
    ours, theirs = content(folder), content(trial.folder / f"{run} whole")
    differ = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if differ:
        trial.found(f"{run}, number {number}: {differ} differ from an undisturbed run")
    if leftovers(folder):
        trial.found(f"{run}, number {number}: {leftovers(folder)} are left")


def complete(run: str, folder: Path) -> bool:
    """Return whether the result of collect is there; others are always asked to go on."""
    return run.startswith("collect") and (folder / "a.npz").exists()


def second_run(trial: Trial, run: str, words: list[str]) -> None:
    """Start a second run into the same place while the first is at work: it must be refused."""
    folder = trial.folder / f"{run} twice"
    folder.mkdir()
    first = start(words, folder)
    deadline = time.monotonic() + 60
    while not at_work(run, folder) and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    first.send_signal(signal.SIGSTOP)  # it waits, and holds its lock
    if first.poll() is None:
        for more in ([], ["--resume"]):
            second = start([*words, *more], folder)
            _, said = second.communicate(timeout=120)
            trial.tried[f"{run}: second runs into one place"] += 1
            if second.returncode != 2 or "Traceback" in said:
                trial.found(f"{run}: a second run ended with {second.returncode}: {said[-300:]}")
    first.send_signal(signal.SIGCONT)
    _, said = first.communicate(timeout=300)
    if first.returncode or content(folder) != content(trial.folder / f"{run} whole"):
        trial.found(f"{run}: a second run disturbed the first: {first.returncode} {said[-300:]}")


def attack(trial: Trial, runs: dict[str, list[str]] = RUNS) -> None:
    """Disturb every kind of run, `trial.count` times each."""
    import steadyrl.cli.commands  # noqa: F401  (so that it is there in every child)

    with contextlib.suppress(ImportError):
        import torch  # noqa: F401
    lasted = {}
    runs = {run: words for run, words in runs.items() if not trial.only or run in trial.only.split(";")}
    for run, words in runs.items():
        whole = trial.folder / f"{run} whole"
        whole.mkdir()
        began = time.monotonic()
        process = start(words, whole)
        out, said = process.communicate(timeout=300)
        if "--json" in words:
            (whole / "answer.json").write_text(json.dumps(answer(out)))
        lasted[run] = time.monotonic() - began
        if process.returncode:
            trial.found(f"{run}: an undisturbed run ended with {process.returncode}: {said[-500:]}")
            return
        if "--out" in words:
            second_run(trial, run, words)
    for number in range(trial.count):
        for run, words in runs.items():
            if trial.time_is_up():
                return
            disturb(trial, run, words, number, lasted[run])


if __name__ == "__main__":
    main("signals", attack, count=6, seconds=900)
