"""The order of blocks: one after the other, and not too far ahead of the first one that is still missing.

Results are joined in block order, since sums of floating-point numbers depend on it; a bound on how far workers may run
ahead keeps results that wait for a slow block from filling the memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Schedule:
    """Hands out blocks, takes lost ones back."""

    def __init__(self, blocks: Iterable[int], window: int = 1 << 62) -> None:
        self._waiting = sorted(blocks)
        self._missing = set(self._waiting)
        self._window = window
        self._first = 0

    @property
    def finished(self) -> bool:
        """Whether every block is done."""
        return not self._missing

    def take(self) -> int | None:
        """Return the next block, or None if no block can be run now."""
        if not self._waiting or self._waiting[0] >= self._first + self._window:
            return None
        return heapq.heappop(self._waiting)

    def give_back(self, block: int) -> None:
        """Put a lost block back in its place."""
        heapq.heappush(self._waiting, block)

    def done(self, block: int) -> None:
        """Note that a block is done."""
        self._missing.discard(block)

    def folded(self, first: int) -> None:
        """Note that all blocks before `first` have been joined."""
        self._first = first
