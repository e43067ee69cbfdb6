"""A worker process: receives block numbers, sends back blocks.

Started as a new interpreter with two inherited file descriptors (the connection, the shared numbers), so that it
neither forks a process that has threads nor imports the user's script again. It ignores Ctrl-C, which
is its supervisor's to handle, and ends when the supervisor's end of the connection closes.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

BEAT_SIZE = 4
"""Numbers shared with the supervisor: episode in the block, step, steps so far, 1 while a block is run."""


def main() -> None:
    """Serve until the supervisor hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    beat = shared_beat(int(sys.argv[2]))
    try:
        path, payload = connection.recv()
        sys.path[:] = path
        serve(connection, beat, payload)
    except (EOFError, OSError):
        pass  # the supervisor is gone
    os._exit(0)  # simulators' exit handlers may hang or crash, and nothing is left to save


def serve(connection: Connection, beat: NDArray[np.int64], payload: bytes) -> None:
    """Run the blocks that are asked for."""
    import cloudpickle

    from steadyrl.rollouts.blocks import run_block

    try:
        task = cloudpickle.loads(payload)
    except Exception as error:
        connection.recv()
        connection.send(failure(error))
        return
    while True:
        block, cuts = connection.recv()
        beat[3] = 1
        try:
            answer: Any = ("done", run_block(task, block, beat=beat, cuts=cuts))
        except Exception as error:
            answer = failure(error)
        beat[3] = 0
        connection.send(answer)


def failure(error: Exception) -> tuple[str, Exception, str]:
    """Return an error as an answer that can be sent, with the traceback that it had here."""
    import pickle

    text = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception that cannot travel
        from steadyrl.errors import RolloutError

        error = RolloutError(f"{type(error).__name__}: {error}")
    return "failed", error, text


def shared_beat(descriptor: int) -> NDArray[np.int64]:
    """Return the numbers in the shared file as an array."""
    return np.frombuffer(mmap.mmap(descriptor, 8 * BEAT_SIZE), dtype=np.int64)


class RemoteError(Exception):
    """The traceback of an error in a worker, shown as its cause."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])
