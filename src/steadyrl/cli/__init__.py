"""The command line: arguments in, function calls out, one command per module.

- `commands`: the program `steadyrl`, and how its errors and signals end it
- `check`, `collect`, `diagnose`, `audit`, `audit_config`, `train`, `evaluate`, `reproduce`: the commands
- `options`: the options that several commands share
"""

import atexit
import contextlib
import io
import os
import signal
import sys
import threading
import time
from typing import Any

_INTERRUPTING = ("SIGINT", "SIGTERM", "SIGHUP")
_INTERRUPTED = 130
_interrupted = [False]
"""Whether the command ended with that status: Python would end by SIGINT if the signal came inside an exec, as of
`dataclass` in some import, although it was dealt with."""

_noted: list[int] = []
"""Descriptors from which the numbers of signals are read."""


def main() -> None:
    """Run the command line.

    Ctrl-C, SIGTERM and a closed terminal end it with one line, also while its modules are being imported.
    """
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is finished is kept
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(signal.SIGHUP, signal.default_int_handler)
        _leave_half_made()
        _open_streams()
        _reserve_answer()
        _note_signals()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_end_by_signals)
        atexit.register(_keep_the_status)  # what is registered first is called last
        from steadyrl.cli.commands import run

        run()
    except KeyboardInterrupt:
        _end_interrupted()
    except Exception:
        if interrupted():
            _end_interrupted()
        raise
    except SystemExit as error:
        _interrupted[:] = [error.code == _INTERRUPTED]
        _end_answer()
        _end_without_threads(error.code)
        raise


def _end_interrupted() -> None:
    """End at once, with one line."""
    with contextlib.suppress(OSError, AttributeError):  # standard error may be full, or not there
        sys.stderr.write("interrupted\n")
    _end_now()


def _end_now() -> None:
    """End with the status of an interrupted command."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    os._exit(_INTERRUPTED)


def _note_signals() -> None:
    """Have the numbers of signals written to a pipe, for `interrupted`."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _noted.append(reading)


def _end_by_signals() -> None:
    """In a child that an environment forks, let signals end it without a traceback, and not count as the command's."""
    signal.set_wakeup_fd(-1)
    for name in _INTERRUPTING[1:]:
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is signal.default_int_handler:
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def interrupted() -> bool:
    """Return whether a signal came that interrupts; it is told once.

    C++ code that calls Python (matplotlib's, for one) makes another error of a KeyboardInterrupt that comes inside.
    """
    with contextlib.suppress(OSError):  # nothing came
        numbers = {getattr(signal, name) for name in _INTERRUPTING if hasattr(signal, name)}
        return any(not numbers.isdisjoint(os.read(reading, 4096)) for reading in _noted)
    return False


def _leave_half_made() -> None:
    """Say nothing of objects that cannot be deleted because an interrupt came while they were made."""
    say = sys.unraisablehook

    def hook(found: Any) -> None:
        if not (isinstance(found.exc_value, AttributeError) and getattr(found.object, "__name__", "") == "__del__"):
            say(found)

    sys.unraisablehook = hook


def _open_streams() -> None:
    """Open what is closed of descriptors 0 to 2, or files of ours get these numbers, and what simulators print."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class _Answer(io.TextIOWrapper):
    """Standard output for the answer; what threads that an environment left print there goes to standard error."""

    stuck = False
    """Whether a write has failed, as on a full disk; a long text is gone then, and a flush after it finds nothing."""

    def write(self, text: str) -> int:
        if threading.current_thread() is threading.main_thread():
            try:
                return super().write(text)
            except OSError:
                self.stuck = True
                raise
        return sys.stderr.write(text)


def _reserve_answer() -> None:
    """Have `sys.stdout` alone lead to standard output; what is written to descriptor 1 goes to standard error."""
    try:
        number, old = sys.stdout.fileno(), sys.stdout
    except (OSError, ValueError, AttributeError):  # there is none, or a test has put its own into its place
        return
    if number == 1:
        kept = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        through = bool(getattr(old, "write_through", False))
        sys.stdout = _Answer(
            kept, old.encoding, old.errors, line_buffering=bool(old.line_buffering), write_through=through
        )


def _end_answer() -> None:
    """Send what is printed from now on to standard error: simulators print when Python ends, after the answer."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # it is full or closed, and that has been said; what is left must not be tried again
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except AttributeError:  # there is none
        return
    answer, sys.stdout = sys.stdout, sys.stderr
    if isinstance(answer, _Answer):
        with contextlib.suppress(OSError, ValueError):
            answer.close()


def _keep_the_status() -> None:
    """Ignore signals while Python clears its modules: all is done, and the status would say that it was not.

    An interrupted command ends here, with its status.
    """
    for name in _INTERRUPTING:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if _interrupted[0]:
        _end_now()


def _end_without_threads(status: Any, patience: float = 5.0) -> None:
    """End now if an environment left a thread that runs on: all is saved and printed, and Python would wait for it."""
    deadline = time.monotonic() + patience
    left = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in left):
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.write("warning: the environment or the policy left a thread that runs on; it was ended\n")
            sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def __getattr__(name: str) -> Any:
    """Import the commands when `app` is first asked for."""
    if name == "app":
        from steadyrl.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
