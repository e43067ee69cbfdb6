"""Ctrl-C, SIGTERM and a closed terminal let the present update finish, so that the run can be resumed from it.

A second one stops at once. Only signals that nobody else handles are taken over: those that would raise
KeyboardInterrupt, and a SIGTERM or SIGHUP that would end the process.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """A context in which `asked` says whether the run was asked to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.getsignal(number)
                ours = before is signal.default_int_handler or (
                    number is not signal.SIGINT and before is signal.SIG_DFL
                )
                if ours:
                    self._before[number] = before
                    signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
