"""Standard output kept free for results: what environments print goes to standard error.

Simulators greet, and environments print, on standard output, where a command with --json writes its answer. Inside
`output_to_stderr()` everything that this process and its libraries write to standard output goes to standard error, by
file descriptor, so that C code cannot escape it, nor what C keeps in its buffer until the program ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send all that is written to standard output to standard error, until the block ends."""
    _flush()
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # there is no such descriptor: a process without a terminal
        with contextlib.redirect_stdout(_standard_error()):
            yield
        return
    try:
        with contextlib.redirect_stdout(_standard_error()):
            yield
    finally:
        _flush()
        with contextlib.suppress(OSError, AttributeError, TypeError):  # TypeError: Windows
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


class _KeptOpen:
    """Standard error in the place of standard output: what closes this leaves open where errors are told."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def close(self) -> None:
        """Do nothing."""


def _standard_error() -> Any:
    return None if sys.stderr is None else _KeptOpen()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
