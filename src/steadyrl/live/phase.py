"""Are live copies at steady state? Their ages say so.

The *age* of a copy counts the states of its episode so far. At steady state the ages in a batch of n steps and N copies
are distributed as P(L >= k) / E[L]; copies that march in step crowd at a few ages instead. The distance is the
total variation between the two over groups of ages, about N / 4 of them with equal stationary shares.

N copies are a sample, so at steady state, too, what is found is not 0 but some floor. For a normal x with mean delta
and standard error s, E|x| is about sqrt(delta^2 + 2 s^2 / pi): squares add. So

    distance = sqrt(max(0, found^2 - floor^2)),

with the floor from copies simulated at steady state (steps of one copy are not independent). What chance alone
reaches about once in a thousand batches is reported beside it, as `noise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from steadyrl.errors import DelaysError
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.life_table import LifeTable

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_SIMULATED = 256  # copies whose spread is measured
_DRAWS = 512
_MEMORY = 8  # episodes a copy from which the stationary ages are known
_RARE = 3.09  # standard errors that a normal variable exceeds once in a thousand
_REFRESH = 0.1  # relative change of E[L] after which the floor is computed anew
_MOST_GROUPS = 64
LOOK = 32
"""Steps after which those who only watch look again, if batches are shorter: measuring takes time."""


@dataclass(frozen=True)
class PhaseReport:
    """What the last batch showed."""

    distance: float
    """Of the batch's ages from the stationary ones, free of the bias of finitely many copies; nan if unknown yet."""
    noise: float
    """The distance that copies at steady state show once in a thousand batches."""
    average_episode_length: float
    """E[T] of recent episodes, from steps and ends; inf if none has ended."""
    steps: int
    """Steps of all copies, since the start."""
    ends: int
    """Episodes that came to their own end, since the start."""
    phase_locked: bool
    """Whether the distance is above the tolerance and beyond chance."""
    unresolved: float
    """The share of episodes that outlive every age seen, so that their length is not known."""


class PhaseTracker:
    """Follows the ages of N copies, step by step.

    Args:
        num_envs: N.
        same_step: whether resets happen within the step that ends an episode (SAME_STEP, Stable-Baselines3), so
            that terminal states are not in the stream. Otherwise (NEXT_STEP) they are, with age T.
        n_steps: steps of a batch.
        tolerance: the distance above which copies count as phase-locked, if chance does not explain it.

    Example:
        >>> tracker = PhaseTracker(64, same_step=False, n_steps=1)
        >>> for t in range(1, 100):
        ...     _ = tracker.update(np.full(64, t % 10 == 9))  # all end together, T = 10
        >>> report = tracker.report()
        >>> report.phase_locked, round(report.distance, 2), round(report.average_episode_length, 6)
        (True, 0.89, 10.0)
    """

    def __init__(self, num_envs: int, *, same_step: bool, n_steps: int = 16, tolerance: float = 0.01) -> None:
        for name, value in (("num_envs", num_envs), ("n_steps", n_steps)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise DelaysError(f"{name} is {value!r}; it must be a whole number, 1 or more")
        if not 0 < tolerance <= 1:
            raise DelaysError(f"tolerance is {tolerance!r}; it must be a distance above 0 and at most 1")
        self.num_envs, self.n_steps = int(num_envs), int(n_steps)
        self.same_step, self.tolerance = same_step, tolerance
        self._now = np.ones(self.num_envs, dtype=np.int64)  # ages before the steps that are not worked off yet
        self.table = LifeTable(memory=max(_MEMORY * num_envs, 256.0))
        self._restarting = np.zeros(self.num_envs, dtype=bool)  # NEXT_STEP: their next step is the reset
        self._ages = np.empty((self.n_steps, self.num_envs), dtype=np.int64)
        self._done = np.empty((self.n_steps, self.num_envs), dtype=bool)
        self._cut = np.zeros((self.n_steps, self.num_envs), dtype=bool)
        self._any_cut = False  # in this batch
        self._filled = self._worked_off = 0  # rows of the batch with flags, and with ages
        self._steps = self._ends = 0
        self._distance = self._noise = math.nan
        self._batch: NDArray[np.int64] | None = None  # visits to each age in the last batch, while not measured
        self._floor = _Floor()
        self._floor_due = 0  # in steps
        self._survival: Array | None = None  # the table's, once it was asked for

    @property
    def ages(self) -> NDArray[np.int64]:
        """Of the states that the copies are in now."""
        self._work_off()
        return self._now

    @property
    def restarting(self) -> Flags:
        """Which copies' next step is their reset."""
        if self.same_step or self._worked_off == self._filled:
            return self._restarting
        last: Flags = self._done[self._filled - 1] | self._cut[self._filled - 1]
        return last

    @property
    def phase_locked(self) -> bool:
        """Whether the distance of the last complete batch is above the tolerance and beyond chance."""
        self._measure()
        return bool(self._distance > max(self.tolerance, self._noise))

    def reset(self, mask: Flags | None = None) -> None:
        """All copies, or those of the mask, were reset."""
        at = slice(None) if mask is None else mask
        self._work_off()
        self._now[at] = 1
        self._restarting[at] = False

    def update(self, done: Flags, cut: Flags | None = None) -> bool:
        """Take in one step of all copies; return whether it completed a batch.

        Args:
            done: whose episode ended by itself (terminated or truncated).
            cut: whose episode was cut short from outside; `done` is not set for these.
        """
        self._done[self._filled] = done
        if cut is not None:
            self._cut[self._filled] = cut
            self._any_cut = True
        return self._count_row()

    def watch(self, terminated: Flags, truncated: Flags) -> bool:
        """Take in one step in which nobody was cut, as `update` does."""
        np.logical_or(terminated, truncated, out=self._done[self._filled])
        return self._count_row()

    def _count_row(self) -> bool:
        self._filled += 1
        if self._filled < self.n_steps:
            return False
        self._finish_batch()
        return True

    def report(self) -> PhaseReport:
        """Return what the last complete batch showed."""
        self._measure()
        survival = self.table.survival()
        return PhaseReport(
            distance=self._distance,
            noise=self._noise,
            average_episode_length=self._average_episode_length(survival),
            steps=self._steps,
            ends=self._ends,
            phase_locked=self.phase_locked,
            unresolved=float(survival[-1]),
        )

    def lengths(self) -> EpisodeLengths | None:
        """Return the distribution of T of recent episodes, or None if none has ended yet."""
        return self.table.lengths(reset_steps=int(self.same_step))

    def stream_lengths(self) -> EpisodeLengths | None:
        """Return the distribution of steps per episode in this stream: T, or T - 1 where resets take no step."""
        return self.table.lengths()

    def _average_episode_length(self, survival: Array) -> float:
        """Steps over ends, each age weighted as at steady state; of an unknown tail only that it is not shorter."""
        ends = self.table.ends.sum()
        if ends <= 0:
            return math.inf
        plain = self.table.visits.sum() / ends if survival[-1] > self.tolerance else 0.0
        return float(max(survival[1:].sum(), plain)) + self.same_step

    def _work_off(self) -> None:
        """Find the ages in the rows whose flags have come in since: 1 after a restart, and else one more."""
        first, last = self._worked_off, self._filled
        if first == last:
            return
        restart = self._done[first:last] | self._cut[first:last] if self._any_cut else self._done[first:last]
        row = np.arange(last - first)[:, None]
        since = np.empty((last - first, self.num_envs), dtype=np.int64)  # the row after the last restart; -1 for none
        if self.same_step:  # ages where the action was taken
            since[0] = -1
            since[1:] = np.where(restart[:-1], row[1:], -1)
            before = self._now
        else:  # ages of what it led to
            since[0] = np.where(self._restarting, 0, -1)
            since[1:] = np.where(restart[:-1], row[1:], -1)
            before = self._now + 1
        np.maximum.accumulate(since, axis=0, out=since)
        ages = np.where(since >= 0, row - since + 1, before + row)
        self._ages[first:last] = ages
        self._worked_off = last
        if self.same_step:
            self._now = np.where(restart[-1], 1, ages[-1] + 1)
        else:
            self._now, self._restarting = ages[-1].copy(), restart[-1].copy()

    def _finish_batch(self) -> None:
        self._work_off()
        ages, done = self._ages.ravel(), self._done.ravel()
        visits = np.bincount(ages)
        ends = np.bincount(ages[done], minlength=1)
        self.table.add(visits, ends)
        self._survival = None
        self._steps += len(ages)
        self._ends += int(ends.sum())
        self._filled = self._worked_off = 0
        if self._any_cut:
            self._cut[:] = False
            self._any_cut = False
        self._batch = visits if self._ends else None
        if self._ends and self._steps >= self._floor_due:
            self._renew_floor()

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
            groups = min(max(self.num_envs // 4, 4), _MOST_GROUPS)
            self._floor = _Floor.simulated(alive, groups, self.num_envs, self.n_steps)

    def _measure(self) -> None:
        """Compare the last batch with the table, unless that is done; it takes longer than taking the batch in."""
        if self._batch is None:
            return
        visits, alive = self._batch, self._alive()
        self._batch = None
        found = self._floor.distance(visits, alive / alive.sum())
        floor, spread = self._floor.floor, self._floor.spread
        self._distance = math.sqrt(max(0.0, found**2 - floor**2))
        self._noise = math.sqrt((floor + self._floor.rare * spread) ** 2 - floor**2)


@cache
def _normals() -> Array:
    return np.random.default_rng(1).standard_normal((_DRAWS, _SIMULATED))


class _Floor:
    """Groups of ages, and the distance that a sample of copies shows at steady state."""

    def __init__(self) -> None:
        self.mean = math.nan
        self.floor = self.spread = 0.0
        self.rare = _RARE  # standard errors that chance exceeds once in a thousand
        self._group = np.zeros(1, dtype=np.int64)

    def stale(self, mean: float) -> bool:
        return not abs(mean - self.mean) <= _REFRESH * mean

    @classmethod
    def simulated(cls, alive: Array, groups: int, copies: int, n_steps: int) -> _Floor:
        found = cls()
        found.mean = float(alive.sum())
        share = alive / found.mean
        found._group = np.minimum(((np.cumsum(share) - share / 2) * groups).astype(np.int64), groups - 1)
        share = found._shares(alive, n_steps)
        share -= share.mean(axis=0)
        # Normal samples with the covariance of the shares: neighbouring groups go together in the steps of one copy.
        draws = _normals() @ share
        distances = 0.5 * np.abs(draws).sum(axis=1) * math.sqrt((1 + 1 / _MEMORY) / (_SIMULATED * copies))
        found.floor, found.spread = float(distances.mean()), float(distances.std())
        # A sum of few independent parts is skewed, which moves its quantiles (Cornish-Fisher).
        skew = float((((distances - found.floor) / max(found.spread, 1e-12)) ** 3).mean())
        found.rare = _RARE + (_RARE**2 - 1) / 6 * max(skew, 0.0)
        return found

    def distance(self, visits: NDArray[np.int64], share: Array) -> float:
        """Half the sum of differences over groups; ages that the table does not know count as different."""
        inside = visits[1 : len(share) + 1]
        found = np.bincount(self._groups(len(inside)), weights=inside) / visits.sum()
        wanted = np.bincount(self._groups(len(share)), weights=share)
        found = np.append(found, np.zeros(max(0, len(wanted) - len(found))))
        outside = float(visits[len(share) + 1 :].sum() / visits.sum())
        return float(0.5 * (np.abs(found[: len(wanted)] - wanted).sum() + outside))

    def _groups(self, count: int) -> NDArray[np.int64]:
        """The groups of ages 1, ..., count; ages past those that were grouped belong to the last."""
        known = self._group[:count]
        return np.append(known, np.full(count - len(known), self._group[-1])) if count > len(known) else known

    def _shares(self, alive: Array, n_steps: int) -> Array:
        """Shares of the groups in n steps of each of some copies at steady state, [copies, groups]."""
        rng = np.random.default_rng(0)
        edges = np.cumsum(alive) / alive.sum()
        age = np.searchsorted(edges, (np.arange(_SIMULATED) + rng.random(_SIMULATED)) / _SIMULATED, side="right")
        age = np.minimum(age, len(alive) - 1)
        hazard = np.append(1 - alive[1:] / np.maximum(alive[:-1], 1e-300), 1.0)
        share = np.zeros((_SIMULATED, int(self._group[-1]) + 1))
        row = np.arange(_SIMULATED)
        for _ in range(n_steps):
            share[row, self._group[age]] += 1 / n_steps
            age = np.where(rng.random(_SIMULATED) < hazard[age], 0, age + 1)
        return share
