"""Runs blocks as Ray tasks, on a cluster or on this machine.

Ray runs a task again when the node that ran it is gone; tasks that Ray gives up are submitted again here. Every node
needs steadyrl and the environment's packages.

A run that ends early leaves blocks behind. They are not cancelled: `ray.cancel` aborts the whole process if a task ends
at that moment (Ray 2.60, "Tried to complete task that was not pending"). Instead, an actor lives as long as the run,
and a worker that finds it gone leaves its block.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from steadyrl.common.checks import in_words
from steadyrl.errors import MissingExtraError, RolloutError, WorkerLostError
from steadyrl.rollouts.blocks import Arrays, Block, Task, run_block
from steadyrl.rollouts.engine import Failure
from steadyrl.rollouts.schedule import Schedule
from steadyrl.rollouts.worker import RemoteError, failure

ATTEMPTS = 5
"""Number of times that a block may be lost with its node, beyond Ray's own retries."""

AHEAD = 2
"""Number of blocks submitted per processor, so that none waits for the next."""

LOOK = 1.0
"""Seconds between a worker's looks whether its run has ended."""


def run_on_ray(
    task: Task,
    schedule: Schedule,
    *,
    address: str | None = None,
    workers: int | None = None,
    step_timeout: float | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[tuple[int, Arrays]]:
    """Yield blocks as they are finished, in any order."""
    with connected(address, workers) as ray:
        yield from _run(ray, task, schedule, workers, step_timeout, note)


@contextlib.contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """Connect to a cluster, or start a local one, unless Ray is connected already; disconnect at the end."""
    ray = import_ray()
    ours = _connect(ray, address, workers)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def import_ray() -> Any:
    """Return the Ray module, or raise MissingExtraError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError as error:
        raise MissingExtraError("backend 'ray' needs Ray; install it with: pip install 'steadyrl[ray]'") from error
    return ray


def _connect(ray: Any, address: str | None, workers: int | None) -> bool:
    """Connect to a cluster unless Ray is connected already; return whether this call connected."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"address": "local", "num_cpus": workers, "include_dashboard": False}
    else:
        options |= {"address": address}
    try:
        with warnings.catch_warnings(), _our_sigterm():
            warnings.simplefilter("ignore")
            ray.init(**options)
    except ConnectionError as error:
        raise RolloutError(
            f"no Ray cluster answers at {address!r} ({error}); start one with `ray start --head`, or leave --address "
            "out for a local one"
        ) from error
    except Exception as error:  # Ray raises any kind, bare Exceptions too
        said = in_words(error)
        raise RolloutError(
            f"Ray did not start ({said}); try again, or use backend='processes'"
            if address is None
            else f"Ray cannot be reached at the address {address!r} ({said}); it is host:port, ray://host:port or auto"
        ) from error
    return True


@contextlib.contextmanager
def _our_sigterm() -> Iterator[None]:
    """Keep what SIGTERM does here: Ray would have it call sys.exit, which looks as if an environment had."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:  # Ray's answer to a signal that came in between
        if callable(before):
            before(signal.SIGTERM, None)
        raise
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _run(
    ray: Any,
    task: Task,
    schedule: Schedule,
    workers: int | None,
    step_timeout: float | None,
    note: Callable[[str], None],
) -> Iterator[tuple[int, Arrays]]:
    payload = ray.put(cloudpickle.dumps(task))
    remote = ray.remote(num_cpus=1, max_retries=3)(_run_remotely)
    name = f"steadyrl run {uuid.uuid4()}"
    alive = ray.remote(num_cpus=0)(_Run).options(name=name, max_restarts=-1).remote()  # its node may go, too
    flying: dict[Any, int] = {}
    lost: dict[int, int] = {}
    places, counted = 0, -1e9
    try:
        while not schedule.finished:
            if time.monotonic() - counted > 5:  # nodes come and go
                places, counted = workers or int(ray.cluster_resources().get("CPU", 1)), time.monotonic()
            while len(flying) < AHEAD * max(1, places) and (block := schedule.take()) is not None:
                flying[remote.remote(name, payload, sys.path, block, step_timeout)] = block
            ready, _ = ray.wait(list(flying), num_returns=1, timeout=5.0)
            for reference in ready:
                block = flying.pop(reference)
                try:
                    answer = ray.get(reference)
                except ray.exceptions.RayError as error:
                    _note_loss(task, block, lost, error, note)
                    schedule.give_back(block)
                    continue
                if answer[0] == "failed":
                    raise answer[1] from RemoteError(answer[2])
                schedule.done(block)
                yield block, answer[1]
    finally:
        ray.kill(alive)


class _Run:
    """Lives as long as a run wants its blocks."""


def _run_remotely(run: str, payload: bytes, path: list[str], block: int, step_timeout: float | None) -> Any:
    """Run one block in a Ray worker; in a process of its own if it may have to be killed, or skipped after a crash."""
    if not _is_wanted(run):
        return None
    sys.path += [entry for entry in path if entry not in sys.path]  # where the user's own modules are, on one machine
    with _leaving_with(run):
        try:
            task = cloudpickle.loads(payload)
            if step_timeout is None and task.on_error == "raise":
                return "done", run_block(task, block)
            from steadyrl.rollouts.processes import run_in_processes

            [(_, arrays)] = run_in_processes(task, Schedule([block]), workers=1, step_timeout=step_timeout)
            return "done", arrays
        except Exception as error:
            return failure(error)


def _is_wanted(run: str) -> bool:
    try:
        import_ray().get_actor(run)
    except ValueError:  # Ray's word for an actor that is not there
        return False
    return True


@contextlib.contextmanager
def _leaving_with(run: str) -> Iterator[None]:
    """End this worker, in the middle of a step if need be, when the run has ended. Ray starts another one."""
    ended, leaving = threading.Event(), threading.Lock()

    def look() -> None:
        while not ended.wait(LOOK):
            if not _is_wanted(run):
                with leaving:
                    if not ended.is_set():
                        os._exit(0)

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        with leaving:
            ended.set()


def _note_loss(task: Task, block: int, lost: dict[int, int], error: Exception, note: Callable[[str], None]) -> None:
    lost[block] = lost.get(block, 0) + 1
    reason = type(error).__name__
    if lost[block] >= ATTEMPTS:
        where = Block.of(task, block).error(0, Failure("crashed", 0, ""))
        raise WorkerLostError(f"{where} (Ray: {reason}: {error})") from error
    note(f"block {block} runs again: Ray lost it ({reason})")
