"""The command line: arguments in, function calls out, one command per module.

- `commands`: the program `steadyrl`, and how its errors and signals end it
- `check`, `collect`, `diagnose`, `audit`, `audit_config`, `train`, `evaluate`, `reproduce`: the commands
- `options`: the options that several commands share
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any


def main() -> None:
    """Run the command line. Ctrl-C and SIGTERM end it with one line, also while its modules are being imported."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is finished is kept
        atexit.register(_keep_the_status)  # what is registered first is called last
        from steadyrl.cli.commands import run

        run()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, AttributeError):  # standard error may be full, or not there
            sys.stderr.write("interrupted\n")
            sys.stderr.flush()
        os._exit(130)  # nothing is open yet, and Python would end by SIGINT if it came inside an exec of some import
    except SystemExit as error:
        _end_without_threads(error.code)
        raise


def _keep_the_status() -> None:
    """Ignore signals while Python clears its modules: all is done, and the status would say that it was not."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


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
