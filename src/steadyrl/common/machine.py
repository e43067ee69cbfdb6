"""The processors of this machine, and which process this is."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_forks = [0]
"""How often a fork has led to this process: a child has one more than its parent. Read as `_forks[0]`, in 20 ns."""


def _count_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Process:
    """What must be as it was after every call into an environment: the process, and how deep Python may recurse.

    An environment that forks must not have the rest done twice, or 2^n times; one that lowers the limit of recursion
    must not have the rest fail. (It may allow more.)
    """

    __slots__ = ("_born", "_deepest")

    def __init__(self) -> None:
        self._born, self._deepest = _forks[0], sys.getrecursionlimit()

    def back(self) -> None:
        """End at once if this is no longer the process, but a child of it that came back from a call."""
        if sys.getrecursionlimit() < self._deepest:
            sys.setrecursionlimit(self._deepest)
        if _forks[0] != self._born:
            os._exit(1)
