"""The command line: arguments in, function calls out, one command per module.

- `commands`: the program `steadyrl`, and how its errors and signals end it
- `check`, `collect`, `diagnose`, `audit`, `audit_config`, `train`, `evaluate`, `reproduce`: the commands
- `options`: the options that several commands share
"""

import contextlib
import os
import signal
import sys
from typing import Any


def main() -> None:
    """Run the command line. Ctrl-C and SIGTERM end it with one line, also while its modules are being imported."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is finished is kept
        from steadyrl.cli.commands import run

        run()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, AttributeError):  # standard error may be full, or not there
            sys.stderr.write("interrupted\n")
            sys.stderr.flush()
        os._exit(130)  # nothing is open yet, and Python would end by SIGINT if it came inside an exec of some import


def __getattr__(name: str) -> Any:
    """Import the commands when `app` is first asked for."""
    if name == "app":
        from steadyrl.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
