"""A worker process: it receives block numbers and sends back blocks.

It is started as a new interpreter with two inherited file descriptors (the connection and the shared numbers), so that
it neither forks a process that has threads nor imports the user's script again. It ignores Ctrl-C, which its supervisor
handles, and it ends when the supervisor closes the connection, or dies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

BEAT_SIZE = 4
"""Numbers shared with the supervisor: episode in the block, step, steps so far, 1 while a block is run."""

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until the supervisor closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection_number, beat_number, supervisor = map(int, sys.argv[1:4])
    end_with(supervisor)
    connection = Connection(connection_number)
    beat = shared_beat(beat_number)
    os.set_inheritable(connection_number, False)  # programs that an environment starts must not keep it open
    os.close(beat_number)
    os.register_at_fork(after_in_child=connection.close)  # nor processes that it forks
    try:
        path, payload = connection.recv()
        sys.path[:] = path
        serve(connection, beat, payload)
    except (EOFError, OSError):
        pass  # the supervisor is gone
    os._exit(0)  # simulators' exit handlers may hang or crash, and nothing is left to save


def end_with(parent: int) -> None:
    """Have this process killed when its parent dies, however that happens: by the kernel, or else by a thread."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        except (OSError, AttributeError):
            threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    else:  # pragma: no cover
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before that
        os._exit(1)


def _watch(parent: int) -> None:  # pragma: no cover
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


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
        except BaseException as error:  # also KeyboardInterrupt, which is no Ctrl-C: that one is ignored here
            answer = failure(error)
        beat[3] = 0
        connection.send(answer)


def failure(error: BaseException) -> tuple[str, Exception, str]:
    """Return an error as an answer that can be sent, with the traceback that it had here."""
    import pickle

    from steadyrl.common.checks import in_words
    from steadyrl.errors import RolloutError

    text = traceback.format_exc()
    if not isinstance(error, Exception):
        error = RolloutError(
            f"the environment or the policy raised {in_words(error)}, so there is no result; have it raise "
            "an ordinary error, or end the episode, instead"
        )
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception that cannot be pickled
        error = RolloutError(in_words(error))
    return "failed", error, text


def shared_beat(descriptor: int) -> NDArray[np.int64]:
    """Return the numbers in the shared file as an array."""
    return np.frombuffer(mmap.mmap(descriptor, 8 * BEAT_SIZE), dtype=np.int64)


class RemoteError(Exception):
    """The traceback of an error in a worker, shown as the cause of the error."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])
