"""When to cut which copy's episode short, so that the copies' ages come to steady state and stay there.

A copy with delay D in a window W is restarted W - D steps after the start of the window, once; after it, the copies'
ages are those of copies that have run D steps. A cut is a truncation, so nothing is thrown away.

Learning undoes it: when episodes become ten times longer, all ages are small against them, and the copies march in
step again. With "auto" the ages are watched, and as soon as they are off by more than chance, new delays are designed
from recent lengths and each copy is cut once more.

Where a reset is a step of its own (NEXT_STEP), a copy that has just been reset cannot be cut in that very step. Where
lengths tell beforehand that this is about to happen (they are fixed, or a time limit ends most episodes), the copy is
cut two steps earlier as well, which makes room. Otherwise it is left one step ahead; that happens to a share of about
1 / E[T] of the copies, and the delays asked for allow for it (`resets`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.errors import DelaysError
from steadyrl.lengths.delays import Delays, design_delays, refuse_lengths
from steadyrl.lengths.next_step_delays import LIKELY, allowing_for_resets, hazards, unforeseen_ends
from steadyrl.live.phase import LOOK, Flags, PhaseTracker

DelaysLike: TypeAlias = Delays | ArrayLike | Literal["auto"]

KNOWN = 0.95
"""The share of episodes whose length must be known before "auto" designs delays."""


class Restagger:
    """Decides, step by step, which copies are cut.

    Args:
        num_envs: how many copies.
        delays: `Delays` (assigned to the copies by quantile, in random order), one whole number a copy, or "auto".
        same_step: whether a reset takes no step of its own in the stream.
        tolerance: the distance from steady state that "auto" puts up with.
        n_steps: steps of the batches that "auto" watches.
        rng: in which order copies get their delays.

    Example:
        >>> staggering = Restagger(3, [1, 2, 3], same_step=True)
        >>> [staggering.cuts(np.zeros(3, dtype=bool)).tolist() for _ in range(3)]
        [[False, True, False], [True, False, False], [False, False, False]]
    """

    def __init__(
        self,
        num_envs: int,
        delays: DelaysLike,
        *,
        same_step: bool,
        tolerance: float = 0.01,
        n_steps: int = 16,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.tracker = PhaseTracker(num_envs, same_step=same_step, n_steps=n_steps, tolerance=tolerance)
        self.auto = isinstance(delays, str) and delays == "auto"
        self.rng = np.random.default_rng() if rng is None else rng
        self._delays = delays
        self._none = np.zeros(num_envs, dtype=bool)
        self._due = np.full(num_envs, -1, dtype=np.int64)
        self._hazard = np.zeros(1)  # P(T = k | T >= k), as far as it is known
        self._step = self._last = self._look = 0
        self.staggerings = 0
        """How often the copies were staggered since all were reset."""
        self.reset()

    @property
    def window_left(self) -> int:
        """Steps until the last copy of the running window is cut; 0 if there is none."""
        return self._last - self._step if self._last > self._step else 0

    def reset(self, mask: Flags | None = None) -> None:
        """All copies were reset: they are in step again, and the delays start anew. Or those of the mask: go on."""
        self.tracker.reset(mask)
        if mask is not None:
            return
        self._step = self._last = self._look = self.staggerings = 0
        self._due[:] = -1
        if not self.auto:
            delays = self._allowing_for_resets(self._delays) if isinstance(self._delays, Delays) else self._delays
            assigned = assigned_delays(delays, len(self._due), same_step=self.tracker.same_step, rng=self.rng)
            # Where a reset is a step of its own, the first observation cannot be an end: all restart one step later.
            self._schedule(assigned, offset=0 if self.tracker.same_step else 1)

    def cuts(self, done: Flags) -> Flags:
        """Return who is cut in this step, given whose episode ended in it by itself; call it once a step."""
        cut = self.cuts_if_any(done)
        return self._none if cut is None else cut

    def cuts_if_any(self, done: Flags) -> Flags | None:
        """The same, but None if nobody is."""
        self._step += 1
        cut = self._cuts_in_window(done) if self._step <= self._last else None
        if self.tracker.update(done, cut):
            self._look_again()
        return cut

    def watch(self, terminated: Flags, truncated: Flags) -> None:
        """Take in a step outside the window, where nobody is cut; it takes less time than `cuts`."""
        self._step += 1
        if self.tracker.watch(terminated, truncated):
            self._look_again()

    def _look_again(self) -> None:
        if self.auto and self._step >= self._look:
            self._look = self._step + LOOK
            if self._step > self._last + self.tracker.n_steps and self.tracker.phase_locked:
                self._redesign()

    def _cuts_in_window(self, done: Flags) -> Flags | None:
        # A copy that ends by itself, or has just been reset, is where a cut would put it (or one step past).
        cut: Flags = ((self._due == self._step) | self._in_the_way()) & ~done & ~self.tracker.restarting
        return cut if cut.any() else None

    def _redesign(self) -> None:
        if self.tracker.report().unresolved > 1 - KNOWN:
            return
        lengths = self.tracker.stream_lengths()
        assert lengths is not None
        delays = self._allowing_for_resets(design_delays(lengths, tolerance=self.tracker.tolerance))
        self._schedule(delays.assign(len(self._due), rng=self.rng), offset=1)

    def _allowing_for_resets(self, delays: Delays) -> Delays:
        if delays.lengths is None or self.tracker.same_step:
            return delays
        self._hazard = hazards(delays.lengths)
        ends = unforeseen_ends(delays.lengths, delays.window, self.tracker.ages, self.tracker.restarting)
        return allowing_for_resets(delays, ends)

    def _in_the_way(self) -> Flags:
        """Whose reset would fall on the step of its cut: its episode probably ends in the next step."""
        soon = self._due == self._step + 2
        if not soon.any() or len(self._hazard) == 1:
            return self._none
        next_age = np.minimum(self.tracker.ages + 2, len(self._hazard) - 1)
        found: Flags = soon & (self._hazard[next_age] > LIKELY)
        return found

    def _schedule(self, delays: NDArray[np.int64], offset: int) -> None:
        wait = int(delays.max()) - delays + offset
        self._due = np.where(wait > 0, self._step + wait, -1)
        self._last = int(self._due.max())
        self.staggerings += 1


def assigned_delays(
    delays: DelaysLike, num_envs: int, *, same_step: bool, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return one delay a copy: those given, or by quantile, in random order."""
    if isinstance(delays, Delays):
        return (delays.for_same_step() if same_step else delays).assign(num_envs, rng=rng)
    refuse_lengths(delays)
    values = np.asarray(delays)
    if values.shape != (num_envs,) or values.dtype.kind not in "iu" or (values < 1).any():
        raise DelaysError(
            f"delays is {delays!r}; give Delays (as from design_delays(lengths)), or {num_envs} whole numbers, one a "
            "copy, each 1 or more (StaggeredVectorEnv takes 'auto' as well)"
        )
    return values.astype(np.int64)
