"""The mixing time of the unperturbed process, in time that grows with the longest length and not with the mixing time.

The phase distance d(t) never increases and depends on v(t - n), ..., v(t - 1) alone, with n the longest length. Let
r_t(j) be the probability that the first end of an episode at or after time t is at t + j. Then

    r_t(j) = sum_k v(t - k) f(k + j),        v(t + s) = sum_j r_t(j) v(s - j),

two convolutions of positive numbers, which are as stable as the renewal equation itself. They continue v by one *block*
of n steps at a time. They also jump: from v near t and r_u follows v near t + u. So if d is still above the tolerance
after some blocks, t is doubled until d is below it, and a binary search finds the block in which that happens. Each
jump uses up n of the values of v that are known before the time it starts from, so more blocks than jumps are computed
first.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Array = NDArray[np.float64]

_STORED = 30_000_000  # values of v up to which jumps are prepared; beyond it all blocks are computed
_SMALLEST = 64  # steps of a block, at least


def raw_mixing_time(probabilities: Array, ends: Array, tolerance: float, longest: int) -> float:
    """Return the first t with d(t) < tolerance, or inf if there is none up to `longest`.

    Args:
        probabilities: P(T = k) for k = 0, ..., n.
        ends: v(0), ..., v(block) with `block_size` steps.
        tolerance: The phase distance to fall below.
        longest: Last time to look at.
    """
    return _Search(probabilities, ends, tolerance, longest).mixing_time()


def block_size(longest_length: int) -> int:
    """Return the number of steps in a block."""
    return max(longest_length, _SMALLEST)


class _Search:
    def __init__(self, probabilities: Array, ends: Array, tolerance: float, longest: int) -> None:
        self.n, self.block = len(probabilities) - 1, len(ends) - 1
        self.ends, self.tolerance, self.longest = ends, tolerance, longest
        survival = probabilities[::-1].cumsum()[::-1][1:]  # P(T >= k), k = 1, ..., n
        self.rate = 1 / float(survival.sum())
        self.size = fft.next_fast_len(self.n + max(self.n, self.block) + 2, real=True)
        self.lengths = fft.rfft(probabilities, self.size)
        self.base = fft.rfft(ends, self.size)
        self.survival = survival
        self.smoother = fft.rfft(survival, self.size)

    def mixing_time(self) -> float:
        levels = max(math.ceil(math.log2(max(self.longest / self.block, 1))), 1)
        stored = (2 * levels + 3) * self.block  # enough for all jumps
        limit = min(self.longest, stored) if stored <= _STORED else self.longest
        window = np.concatenate([np.zeros(self.n), self.ends])
        found = self._first_below(window, 0)
        kept, time = [self.ends], self.block
        while found is None and time < limit:
            window = self._advance(window[-self.n - 1 : -1])
            found = self._first_below(window, time)
            time += self.block
            if stored <= _STORED:
                kept.append(window[self.n + 1 :])
        if found is None and time < self.longest:
            found = self._search(np.concatenate(kept), time)
        return math.inf if found is None or found > self.longest else found

    def _advance(self, window: Array) -> Array:
        """Return v(t - n), ..., v(t + block) from v(t - n), ..., v(t - 1)."""
        following = fft.irfft(fft.rfft(self._residual(window), self.size) * self.base, self.size)[: self.block + 1]
        return np.concatenate([window, np.maximum(following, 0.0)])

    def _residual(self, window: Array) -> Array:
        """Return r_t(0), ..., r_t(n - 1) from v(t - n), ..., v(t - 1)."""
        found = fft.irfft(fft.rfft(window, self.size) * self.lengths, self.size)[self.n : 2 * self.n]
        found = np.maximum(found, 0.0)
        result: Array = found / found.sum()
        return result

    def _first_below(self, window: Array, time: int) -> int | None:
        """Return the first time after `time` with d below the tolerance, from v(time - n), ..., v(time + block)."""
        gaps = np.abs(window - self.rate)
        if time == 0:
            gaps[: self.n] = self.rate  # before time 0 nothing ends
        if 0.5 * float(gaps[-self.n - 1 : -1][::-1] @ self.survival) >= self.tolerance:
            return None
        size = fft.next_fast_len(len(gaps) + self.n, real=True)
        smoother = self.smoother if size == self.size else fft.rfft(self.survival, size)
        curve = 0.5 * fft.irfft(fft.rfft(gaps, size) * smoother, size)[self.n : self.n + self.block]  # d(time + 1), ...
        below = np.flatnonzero(np.minimum.accumulate(curve) < self.tolerance)
        return time + 1 + int(below[0]) if len(below) else time + self.block

    def _distance(self, window: Array) -> float:
        """Return d(t) from v up to t."""
        return 0.5 * float(np.abs(window[-self.n - 1 : -1][::-1] - self.rate) @ self.survival)

    def _search(self, ends: Array, time: int) -> int | None:
        """Return the first time with d below the tolerance, if it is beyond `time`, up to which v is known."""
        window, jumps = ends, []  # v up to some time, and r at time, 2 time, 4 time, ...
        reached = time
        while reached < self.longest:
            jumps.append((reached, self._residual(window[-self.n - 1 : -1])))
            further = _jump(jumps[-1][1], window)
            if self._distance(further) < self.tolerance:
                break
            reached, window = 2 * reached, further
        else:
            return None
        for step, residual in reversed(jumps[:-1]):
            further = _jump(residual, window)
            if self._distance(further) >= self.tolerance:
                reached, window = reached + step, further
        found, last = None, reached + jumps[0][0]
        while found is None and reached <= last:  # less than the smallest jump is left, but for rounding
            window = self._advance(window[-self.n - 1 : -1])
            found = self._first_below(window, reached)
            reached += self.block
        return found


def _jump(residual: Array, window: Array) -> Array:
    """Return v up to t + u from r_t and v up to u; it reaches n - 1 steps less far back."""
    size = fft.next_fast_len(len(window), real=True)
    found = fft.irfft(fft.rfft(residual, size) * fft.rfft(window, size), size)  # what wraps around is not used
    result: Array = np.maximum(found[len(residual) - 1 : len(window)], 0.0)
    return result
