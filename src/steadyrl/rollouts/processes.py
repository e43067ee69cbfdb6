"""Runs blocks in worker processes, under a supervisor that replaces workers which die or hang.

A worker notes in shared memory which step of which episode it is at. If that does not change for longer than the step
timeout, the worker is killed; if a worker dies, its block runs again, with the same result. A worker's death is noticed
by the process itself, not only by its connection, which a process that the environment forked may keep open. Workers
are killed together with the processes that their environments started, and die with their supervisor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from steadyrl.environments.lanes import AFTER, CLOSING, MAKING
from steadyrl.errors import EpisodeError, RolloutError, StepTimeoutError, WorkerLostError
from steadyrl.rollouts.blocks import Arrays, Block, Task
from steadyrl.rollouts.engine import Failure
from steadyrl.rollouts.schedule import Schedule
from steadyrl.rollouts.worker import BEAT_SIZE, RemoteError, shared_beat

ATTEMPTS = 3
"""Number of workers that a block may lose before it counts as the cause."""

MAKING_SECONDS = 300.0
"""Seconds that making one copy of an environment may take where steps have a timeout, unless that is longer."""

_APART = {
    MAKING: ("while {name} was made", "the environment's constructor"),
    CLOSING: ("while {name} was closed", "the environment's close method"),
    AFTER: ("when all copies of {name} were closed", "the policy, or what the environment left running"),
}

_START = "from steadyrl.rollouts.worker import main; main()"


def run_in_processes(
    task: Task,
    schedule: Schedule,
    *,
    workers: int,
    step_timeout: float | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[int, Arrays]]:
    """Yield blocks as they are finished, in any order."""
    supervisor = Supervisor(task, workers, step_timeout, note)
    try:
        while not schedule.finished:
            supervisor.hand_out(schedule)
            for block, arrays in supervisor.collect(schedule):
                schedule.done(block)
                yield block, arrays
    finally:
        supervisor.stop()


class Supervisor:
    """Worker processes, and what each is doing."""

    def __init__(self, task: Task, workers: int, step_timeout: float | None, note: Callable[[str], None]) -> None:
        self._task, self._timeout, self._note = task, step_timeout, note
        try:
            self._payload = cloudpickle.dumps(task)
        except Exception as error:
            raise RolloutError(
                f"the environment or the policy cannot be sent to another process ({error}); use backend='serial', or "
                "create what cannot be sent inside a function that makes the environment"
            ) from error
        self._slots = workers
        self._workers: list[Worker] = []
        self._lost: dict[int, int] = {}
        self._cuts: dict[int, tuple[int, str]] = {}

    def hand_out(self, schedule: Schedule) -> None:
        """Give every idle worker a block, and start workers as long as there are blocks for them."""
        idle = [worker for worker in self._workers if worker.block is None]
        while idle or len(self._workers) < self._slots:
            block = schedule.take()
            if block is None:
                return
            worker = idle.pop() if idle else self._new_worker()
            try:
                worker.begin(block, self._cuts)
            except OSError:  # it died while idle
                schedule.give_back(block)
                self._discard(worker)

    def collect(self, schedule: Schedule) -> list[tuple[int, Arrays]]:
        """Wait for news; return the blocks that are finished, and give back those that were lost."""
        busy = {worker.connection: worker for worker in self._workers if worker.block is not None}
        pause = 1.0 if self._timeout is None else min(1.0, self._timeout / 4)
        done: list[tuple[int, Arrays]] = []
        ready = set(wait(list(busy), timeout=pause))
        for connection, worker in busy.items():
            dead = worker.process.poll() is not None
            if connection not in ready and not (dead and not connection.poll()):
                continue
            try:
                if dead and not connection.poll():  # something that it started holds the connection open
                    raise EOFError
                answer = worker.connection.recv()
            except (EOFError, OSError):
                self._worker_died(worker, schedule)
                continue
            if answer[0] == "failed":
                raise answer[1] from RemoteError(answer[2])
            assert worker.block is not None
            done.append((worker.block, answer[1]))
            worker.block = None
        for worker in list(self._workers):
            limit = self._limit(worker)
            if limit is not None and worker.block is not None and worker.silent_for() > limit:
                self._worker_hung(worker, schedule)
        return done

    def stop(self) -> None:
        """Kill all workers, whose results are no longer needed."""
        for worker in list(self._workers):
            self._discard(worker)

    def _limit(self, worker: Worker) -> float | None:
        """Return the seconds that what a worker is doing may take, or None."""
        if self._timeout is None or worker.beat[0] == AFTER:
            return None
        return max(self._timeout, MAKING_SECONDS) if worker.beat[0] == MAKING else self._timeout

    def _new_worker(self) -> Worker:
        worker = Worker(self._payload)
        self._workers.append(worker)
        return worker

    def _worker_died(self, worker: Worker, schedule: Schedule) -> None:
        code = worker.process.wait()
        block = worker.block
        assert block is not None
        self._discard(worker)
        self._lost[block] = self._lost.get(block, 0) + 1
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if self._lost[block] < ATTEMPTS:
            self._note(f"block {block} runs again: its worker {how}")
        elif worker.beat[3] == 0:
            raise WorkerLostError(
                f"worker processes end before they begin their first block ({how}); see the messages above this one, "
                "and try backend='serial'"
            )
        else:
            self._fail(worker, block, "crashed", how)
            del self._lost[block]
        schedule.give_back(block)

    def _worker_hung(self, worker: Worker, schedule: Schedule) -> None:
        block = worker.block
        assert block is not None
        how = f"took longer than {self._limit(worker):g} s"
        worker.process.kill()
        self._discard(worker)
        self._fail(worker, block, "hung", how)
        schedule.give_back(block)

    def _fail(self, worker: Worker, index: int, kind: str, how: str) -> None:
        """Raise the error, or have the block run again with the episode cut off where it hung or crashed."""
        number, step = int(worker.beat[0]), int(worker.beat[1])
        if number < 0:  # there is no episode to leave out
            raise self._error_apart(index, kind, number, how)
        block = Block.of(self._task, index)
        error = block.error(number, Failure(kind, step, ""))
        uncertain = self._task.family == "envpool"  # which steps all lanes at once
        if self._task.on_error == "raise" or uncertain or (block.first + number) in self._cuts:
            raise error
        self._cuts[block.first + number] = (step, kind)
        self._note(f"block {index} runs again without episode {error.episode}, which {kind}")

    def _error_apart(self, index: int, kind: str, doing: int, how: str) -> EpisodeError:
        """Return the error about a worker that hung or crashed in no episode."""
        name = self._task.source.name
        while_it, where = _APART[doing]
        longer = "allow longer with step_timeout (--step-timeout)"
        advice = longer if kind == "hung" else "use fewer workers if memory ran out"
        error = (StepTimeoutError if kind == "hung" else WorkerLostError)(
            f"a worker process {how} {while_it.format(name=name)} [block {index}]; no episode is at fault, so none can "
            f"be left out: repair {where}, or {advice}"
        )
        error.environment, error.block = name, index
        return error

    def _discard(self, worker: Worker) -> None:
        worker.end()
        self._workers.remove(worker)


class Worker:
    """One worker process."""

    def __init__(self, payload: bytes) -> None:
        self.connection, theirs = Pipe()
        with tempfile.TemporaryFile() as shared:
            shared.truncate(8 * BEAT_SIZE)
            self.beat = shared_beat(shared.fileno())
            descriptors = (theirs.fileno(), shared.fileno())
            # One numerical thread a worker: there are as many workers as cores.
            single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, descriptors), str(os.getpid())],
                pass_fds=descriptors,
                start_new_session=True,  # a group of its own, which can be killed as a whole
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # PyBullet's greetings would tear the progress bar
                env=os.environ | single,
            )
        theirs.close()
        self.block: int | None = None
        self._count, self._since = -1, 0.0
        self._greeting: Any = (sys.path, payload)

    def begin(self, block: int, cuts: dict[int, tuple[int, str]]) -> None:
        """Ask for a block."""
        if self._greeting is not None:
            self.connection.send(self._greeting)
            self._greeting = None
        self.beat[0] = MAKING
        self.connection.send((block, cuts))
        self.block = block
        self._count, self._since = -1, time.monotonic()

    def silent_for(self) -> float:
        """Return the seconds that the present step, or making or closing a copy, has lasted so far."""
        count = int(self.beat[2])
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        return time.monotonic() - self._since

    def end(self) -> None:
        """Kill the process and all that it started, and close the connection."""
        with contextlib.suppress(OSError):  # there is nothing left of the group
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.connection.close()
