"""Are running environments at steady state? Their ages tell.

The *age* of an environment counts the states of its running episode. At steady state the ages in a batch of n_steps
and N environments are distributed as P(L >= k) / E[L]; environments in lockstep crowd at a few ages instead.

`PhaseTracker` follows the ages from the flags that say whose episode ended, learns the lengths of recent episodes
from a life table (Kaplan-Meier, running episodes included), and compares. Its verdict is one of three: the environments
are "in lockstep"; or "at steady state": no test speaks against it, and a distance of 0.3 is ruled out, because the ages
in the batch are nearer than that to those in the long run, or because that much would have been noticed; or it "cannot
tell yet", which few environments often stay at. `lockstep` has the two tests and their rates of false alarms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import MOST_ENVS, check_flag, check_tolerance, plain_array, shown, whole_number
from steadyrl.errors import DelaysError, WrapperError
from steadyrl.lengths.distribution import LONGEST, EpisodeLengths
from steadyrl.lengths.life_table import LifeTable
from steadyrl.live.ages import Flags, checked_flags, follow_ages
from steadyrl.live.lockstep import RARE, Floor, level_of_look, scan_p_value

Array = NDArray[np.float64]
Verdict: TypeAlias = Literal["in lockstep", "at steady state", "cannot tell yet"]

_LARGEST_BATCH = 10**9
_MEMORY = 8  # episodes per environment from which the stationary ages are known
_LEAST_GROUPS, _MOST_GROUPS = 4, 64  # of ages; fewer environments than groups cannot fill them
_MOST_SCANNED = 4096  # environments; with more of them the batch test is enough
_KNOWN_EPISODES = 2  # per environment, before the first look
_GONE = 0.05  # p-value above which an alarm is over
_FAIR = 0.05  # distance of a batch of whole episodes that is put up with: a remainder that starts anew every time
LOOK = 32
"""Minimum number of steps between two looks at the ages by those who only watch; a look takes some time."""
LEAST_BATCHED = 32
"""Environments from which on the batch test can be proof; with fewer, shares are far from normal."""
RESOLVED = 0.3
"""Distance that must be ruled out before environments are called "at steady state"."""
KNOWN = 0.95
"""Share of episodes whose length must be known before anything is concluded from lengths."""


@dataclass(frozen=True)
class PhaseReport:
    """What the ages of the environments in the last complete batch say."""

    distance: float
    """Total variation between the ages in the batch and those in the long run, without what chance adds for few
    environments; nan before the first episode has ended."""
    noise: float
    """Distance that batches at steady state exceed by chance once in a thousand."""
    average_episode_length: float
    """E[T] of recent episodes, the reset included, from steps over ends; inf before the first episode has ended."""
    steps: int
    """Steps of all environments since the start."""
    ends: int
    """Episodes that ended by themselves since the start."""
    phase_locked: bool
    """Whether the verdict is "in lockstep"."""
    unresolved: float
    """Share of episodes that last longer than any age seen so far, so that their length is not known."""
    verdict: Verdict = "cannot tell yet"
    """"in lockstep"; "at steady state", if there is no evidence against it and a distance of 0.3 is ruled out; or
    "cannot tell yet". Environments at steady state are called "in lockstep" with probability 0.001 at most: in a whole
    training by those that watch (`PhaseTracker`), at each look by those that cure (`StaggerController`)."""


class PhaseTracker:
    """Follows the ages of `num_envs` environments, step by step.

    Args:
        num_envs: number of environments.
        same_step: whether environments are reset within the step that ends an episode (SAME_STEP,
            Stable-Baselines3), so that terminal states are not in the stream. Otherwise (NEXT_STEP) they are.
        n_steps: number of steps in a batch.
        tolerance: distance (total variation) up to which batches count as fair.

    Raises:
        DelaysError: if `num_envs` or `n_steps` is not a whole number, 1 or more.
        ToleranceError: if the tolerance is not above 0 and at most 1.

    Example:
        >>> tracker = PhaseTracker(64, same_step=False, n_steps=1)
        >>> for t in range(1, 100):
        ...     _ = tracker.update(np.full(64, t % 10 == 9))  # all end together, T = 10
        >>> report = tracker.report()
        >>> report.verdict, round(report.distance, 2), round(report.average_episode_length, 6)
        ('in lockstep', 0.9, 10.0)
    """

    def __init__(self, num_envs: int, *, same_step: bool, n_steps: int = 16, tolerance: float = 0.01) -> None:
        self.num_envs = whole_number("num_envs", num_envs, DelaysError, most=MOST_ENVS)
        self.n_steps = whole_number("n_steps", n_steps, DelaysError)
        whole_number("n_steps x num_envs", self.n_steps * self.num_envs, DelaysError, most=_LARGEST_BATCH)
        self.same_step = check_flag("same_step", same_step, DelaysError)
        self.tolerance = check_tolerance(tolerance)
        self.table = LifeTable(memory=max(_MEMORY * self.num_envs, 256.0))
        self._now = np.ones(self.num_envs, dtype=np.int64)  # ages before the rows that are not followed yet
        self._restarting = np.zeros(self.num_envs, dtype=bool)  # NEXT_STEP: their next step is the reset
        self._done = np.empty((self.n_steps, self.num_envs), dtype=bool)
        self._cut = np.zeros((self.n_steps, self.num_envs), dtype=bool)
        self._any_cut = False  # in this batch
        self._filled = self._followed = 0  # rows of the batch with flags, and with ages
        self._visits = np.zeros(1, dtype=np.int64)  # of the rows that are followed
        self._ends_at = np.zeros(1, dtype=np.int64)
        self._steps = self._ends = 0
        self._survival: Array | None = None  # the table's, once it was asked for
        self._floor = Floor()
        self._floor_due = self._look_due = 0.0  # in steps of all environments
        self._looks = 0
        self._proven = False  # lockstep, by one of the looks
        self._batch: NDArray[np.int64] | None = None  # visits to each age in the last batch, while not measured
        self._last_ages = self._now
        self._found = self._exact = self._distance = self._noise = math.nan
        self._batch_alarm = self._locked = False

    @property
    def ages(self) -> NDArray[np.int64]:
        """Ages of the states that the environments are in now; 1 after a reset."""
        self._follow()
        return self._now

    @property
    def restarting(self) -> Flags:
        """Environments whose next step is their reset (NEXT_STEP only)."""
        if self.same_step or self._followed == self._filled:
            return self._restarting
        last: Flags = self._done[self._filled - 1] | self._cut[self._filled - 1]
        return last

    @property
    def phase_locked(self) -> bool:
        """Whether the environments run in lockstep, beyond doubt."""
        if self._proven:  # otherwise there is no need to measure
            self._measure()
        return self._locked

    @property
    def off(self) -> bool:
        """Whether the last batch looks unfair: in lockstep, or a distance that chance shows once in 1,000 batches."""
        self._measure()
        return self._locked or self._batch_alarm

    def reset(self, mask: Flags | None = None, *, ages: NDArray[np.int64] | int = 1) -> None:
        """Take note that all environments were reset, or those in the mask; or that all have these ages now.

        Raises:
            WrapperError: if the mask is not one boolean for each environment, or the ages are not whole numbers from 1
                on, one for all environments or one for each.
        """
        at: Any = slice(None) if mask is None else checked_flags("mask", mask, self.num_envs)
        now = self._as_ages(ages)[at]
        self._follow()
        self._now[at] = now
        self._restarting[at] = False

    def _as_ages(self, ages: Any) -> NDArray[np.int64]:
        found = plain_array("ages", ages, WrapperError)
        if (
            found.dtype.kind not in "iu"
            or found.shape not in ((), (self.num_envs,))
            or not ((found >= 1) & (found <= LONGEST)).all()
        ):
            raise WrapperError(
                f"ages is {shown(ages)}; it must be whole numbers, 1 or more (1 after a reset) and {LONGEST:,} at "
                f"most, one for all environments or one for each of {self.num_envs}"
            )
        return np.broadcast_to(found.astype(np.int64), (self.num_envs,))

    def update(self, done: Flags, cut: Flags | None = None) -> bool:
        """Take in one step of all environments; return whether it completed a batch.

        Args:
            done: environments whose episode ended by itself (terminated or truncated).
            cut: environments whose episode was cut short from outside; `done` is not set for these.

        Raises:
            WrapperError: if these are not boolean arrays with one entry per environment, or overlap.
        """
        self._done[self._filled] = checked_flags("done", done, self.num_envs)
        if cut is not None:
            self._take_cut(checked_flags("cut", cut, self.num_envs))
        return self._count_row()

    def watch(self, terminated: Flags, truncated: Flags) -> bool:
        """Take in one step in which no episode was cut, as `update` does."""
        np.logical_or(
            checked_flags("terminated", terminated, self.num_envs),
            checked_flags("truncated", truncated, self.num_envs),
            out=self._done[self._filled],
        )
        return self._count_row()

    def report(self) -> PhaseReport:
        """Return what the last complete batch shows."""
        self._measure()
        survival = self.table.survival()
        report = PhaseReport(
            distance=self._distance,
            noise=self._noise,
            average_episode_length=self._average_episode_length(survival),
            steps=self._steps,
            ends=self._ends,
            phase_locked=self._locked,
            unresolved=float(survival[-1]),
        )
        return replace(report, verdict=self._verdict(report))

    @property
    def lengths(self) -> EpisodeLengths | None:
        """Distribution of T of recent episodes, running ones included; None if none has ended yet."""
        return self.table.lengths(reset_steps=int(self.same_step))

    @property
    def stream_lengths(self) -> EpisodeLengths | None:
        """Distribution of the steps per episode in this stream: T, or T - 1 where resets take no step."""
        return self.table.lengths()

    def _average_episode_length(self, survival: Array) -> float:
        """Steps over ends, each age weighted as at steady state; of an unknown tail only that it is not shorter."""
        ends = self.table.ends.sum()
        if ends <= 0:
            return math.inf
        plain = self.table.visits.sum() / ends if survival[-1] > self.tolerance else 0.0
        return float(max(survival[1:].sum(), plain)) + self.same_step

    def _take_cut(self, cut: Flags) -> None:
        if not np.count_nonzero(cut):
            return
        both = np.flatnonzero(self._done[self._filled] & cut)
        if len(both):
            raise WrapperError(
                f"environments {both.tolist()} are in done and in cut; leave those that were cut out of done"
            )
        self._cut[self._filled] = cut
        self._any_cut = True

    def _count_row(self) -> bool:
        self._filled += 1
        if self._filled < self.n_steps:
            return False
        self._finish_batch()
        return True

    def _follow(self) -> None:
        """Find the ages in the rows whose flags have come in since the last time."""
        rows = slice(self._followed, self._filled)
        if self._followed == self._filled:
            return
        cut = self._cut[rows] if self._any_cut else None
        found = follow_ages(self._now, self._restarting, self._done[rows], cut, same_step=self.same_step)
        self._now, self._restarting = found.ages, found.restarting
        if self._followed:
            self._visits, self._ends_at = _sum(self._visits, found.visits), _sum(self._ends_at, found.ends)
        else:
            self._visits, self._ends_at = found.visits, found.ends
        self._followed = self._filled

    def _finish_batch(self) -> None:
        self._follow()
        visits, ends = self._visits, self._ends_at
        self.table.add(visits, ends)
        self._survival = None
        self._steps += self.n_steps * self.num_envs
        self._ends += int(ends.sum())
        self._filled = self._followed = 0
        if self._any_cut:
            self._cut[:] = False
            self._any_cut = False
        self._batch = visits if self._ends else None
        if self.num_envs <= _MOST_SCANNED:
            self._last_ages = self._now.copy()
        if self._ends and self._steps >= self._floor_due:
            self._renew_floor()
        if self._ends >= _KNOWN_EPISODES * self.num_envs and self._steps >= self._look_due:
            self._look()

    def _alive(self) -> Array:
        """P(L >= k) for k = 1, 2, ..., as far as it is above 0."""
        if self._survival is None:
            self._survival = self.table.survival()
        return self._survival[1:-1] if self._survival[-1] < 1e-12 else self._survival[1:]

    def _renew_floor(self) -> None:
        """Simulate the floor anew if E[L] has changed. This is done at fixed times, whoever asks for reports when."""
        self._floor_due = self._steps + 4 * LOOK * self.num_envs
        alive = self._alive()
        if self._floor.stale(float(alive.sum())):
            groups = min(max(self.num_envs // 4, _LEAST_GROUPS), _MOST_GROUPS)
            self._floor = Floor.simulated(alive, groups, self.num_envs, self.n_steps, _MEMORY)

    def _look(self) -> None:
        """Test for lockstep, at the level of this look; also done at fixed times, about once in an episode."""
        alive = self._alive()
        if self._survival is not None and self._survival[-1] > 1 - KNOWN:
            return
        self._look_due = self._steps + max(float(alive.sum()), 4 * LOOK) * self.num_envs
        self._looks += 1
        self._renew_floor()
        self._measure()
        level = level_of_look(self._looks) / 2  # two tests
        proven = self._crowding() <= level
        if self.num_envs >= LEAST_BATCHED:
            proven = proven or self._floor.corrected(self._found) > self._floor.noise(level)
        self._proven = proven or (self._proven and self._still_off())
        self._judge()

    def _measure(self) -> None:
        """Compare the last batch with the table, unless that is done; it takes longer than taking the batch in."""
        if self._batch is None:
            return
        alive = self._alive()
        self._found = self._floor.distance(self._batch, alive / alive.sum())
        self._exact = _total_variation(self._batch[1:] / self._batch.sum(), alive / alive.sum())
        self._batch = None
        self._noise = self._floor.noise(RARE)
        self._batch_alarm = self._floor.corrected(self._found) > max(self._tolerated(), self._noise)
        self._judge()

    def _judge(self) -> None:
        self._locked = self._proven and self._found > self._tolerated() and self._still_off()
        # What chance adds is computed for independent environments; those in lockstep are not.
        crowded = self._locked and self._crowding() <= _GONE
        self._distance = self._found if crowded else self._floor.corrected(self._found)
        if crowded and np.ptp(self._last_ages) == 0:  # they are as one, so that groups of ages are not needed
            self._distance = self._exact

    def _crowding(self) -> float:
        return scan_p_value(self._last_ages, self._alive()) if self.num_envs <= _MOST_SCANNED else 1.0

    def _still_off(self) -> bool:
        return self._batch_alarm or self._crowding() <= _GONE

    def _tolerated(self) -> float:
        """A batch longer than an episode holds whole episodes and a remainder, which is harmless if it is small."""
        return max(self.tolerance, _FAIR) if self.n_steps >= self._alive().sum() else self.tolerance

    def _verdict(self, report: PhaseReport) -> Verdict:
        if report.phase_locked:
            return "in lockstep"
        if report.ends < _KNOWN_EPISODES * self.num_envs or report.unresolved > 1 - KNOWN or not self._looks:
            return "cannot tell yet"
        alive = self._alive()
        harmless = self.n_steps * 4 * _FAIR >= float(alive.sum())  # the remainder is at most E[L] / (4 n_steps)
        resolved = self._noise <= RESOLVED or (self._found <= RESOLVED and self.num_envs >= _LEAST_GROUPS)
        return "at steady state" if harmless or resolved else "cannot tell yet"


def _total_variation(one: Array, other: Array) -> float:
    inside = min(len(one), len(other))
    return float(0.5 * (np.abs(one[:inside] - other[:inside]).sum() + one[inside:].sum() + other[inside:].sum()))


def _sum(counts: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    result = np.zeros(max(len(counts), len(more)), dtype=np.int64)
    result[: len(counts)] += counts
    result[: len(more)] += more
    return result
