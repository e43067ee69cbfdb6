"""Ctrl-C, SIGTERM and a closed terminal let the present update finish, so that the run can be resumed from it.

A second one stops at once. Only signals that nobody else handles are taken over: those that would raise
KeyboardInterrupt, and a SIGTERM or SIGHUP that would end the process. Processes that an environment forks do not
inherit this: a simulator in one of them would go on, and `terminate()` and `join()` of it would wait for ever.
"""

from __future__ import annotations

import os
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


def _end_by_signals() -> None:
    """In a child that was forked, let signals do what they do in any process."""
    for number in _SIGNALS:
        if getattr(signal.getsignal(number), "__func__", None) is Interrupts._ask:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_by_signals)
