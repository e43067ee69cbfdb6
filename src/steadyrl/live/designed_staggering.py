"""Which episodes to cut short and when, so that the ages of the environments come to steady state: for the wrappers.

There are two ways, behind one interface (`Staggering`). With "auto" a `StaggerController` keeps the ages as steady as
they can be at every step, also while a policy learns. With designed delays each environment is cut once: with delay D
in a window of W steps it is restarted W - D steps after the start of the window, so that at the end of the window its
age is that of an environment that has run for D steps. That suits environments whose resets are expensive; learning
undoes it when episodes become much longer. A cut is a truncation, so nothing is thrown away.

Where a reset is a step of its own (NEXT_STEP), an environment that has just been reset cannot be cut in that very step.
Where lengths tell beforehand that this is about to happen (they are fixed, or a time limit ends most episodes), its
episode is cut two steps earlier as well, which makes room. Otherwise the environment is left one step ahead. That
happens to about 1 / E[T] of the environments, and the delays are corrected for it (`lengths.next_step_delays`).
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import MOST_STEPS, check_tolerance, plain_array, shown, whole_number
from steadyrl.errors import DelaysError
from steadyrl.lengths.delays import Delays, refuse_lengths
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.next_step_delays import LIKELY, allowing_for_resets, hazards, unforeseen_ends
from steadyrl.live.ages import Flags
from steadyrl.live.phase import PhaseReport, PhaseTracker
from steadyrl.live.stagger_controller import StaggerController

DelaysLike: TypeAlias = Delays | ArrayLike | Literal["auto"]
Ages: TypeAlias = NDArray[np.int64]


class Staggering(Protocol):
    """What wrappers ask of an object that decides which episodes are cut."""

    def step(self, done: Flags) -> Flags:
        """Return the environments to cut in this step, given those whose episode ended in it by itself."""

    def reset(self, mask: Flags | None = None, *, seed: int | list[int] | None = None) -> None:
        """Take note that all environments were reset, or those in the mask; a seed makes what follows reproducible."""

    @property
    def ages(self) -> Ages:
        """Ages of the states that the environments are in; 1 after a reset."""

    @property
    def phase(self) -> PhaseReport:
        """How far the ages of the moment, or in the last batch, are from those in the long run."""

    @property
    def lengths(self) -> EpisodeLengths | None:
        """Distribution of T of recent episodes, running ones included; None if none has ended yet."""

    @property
    def cuts(self) -> int:
        """Number of episodes cut short so far."""

    @property
    def settled(self) -> bool:
        """Whether no more cuts will come, however the ages look."""


class CutSchedule:
    """One window of steps in which each environment is cut once, at the step that its delay says.

    Args:
        num_envs: number of environments.

    Example:
        >>> schedule, nobody = CutSchedule(2), np.zeros(2, dtype=bool)
        >>> schedule.plan(np.array([1, 3]), window=3, offset=0)  # the delay 3 fills the window: no cut
        >>> [schedule.step(nobody, nobody, np.ones(2, dtype=int)).tolist() for _ in range(3)]
        [[False, False], [True, False], [False, False]]
    """

    def __init__(self, num_envs: int) -> None:
        self._nobody = np.zeros(num_envs, dtype=bool)
        self._due = np.full(num_envs, -1, dtype=np.int64)
        self.now = self._last = 0
        self.hazard = np.zeros(1)
        """P(T = k | T >= k) for k = 0, 1, ..., as far as known; used with NEXT_STEP only."""

    @property
    def steps_left(self) -> int:
        """Steps until the last environment of the window is cut; 0 outside a window."""
        return max(self._last - self.now, 0)

    def clear(self) -> None:
        """Forget the window."""
        self.now = self._last = 0
        self._due[:] = -1

    def plan(self, delays: Ages, *, window: int, offset: int) -> None:
        """Start a window now; each environment is cut after `window - delay + offset` steps (at 0: never)."""
        wait = window - delays + offset
        self._due = np.where(wait > 0, self.now + wait, -1)
        self._last = int(self._due.max())

    def tick(self) -> None:
        """Let a step pass in which nobody can be cut."""
        self.now += 1

    def step(self, done: Flags, restarting: Flags, ages: Ages) -> Flags:
        """Let a step pass; return who is cut in it.

        Args:
            done: environments whose episode ended in this step by itself.
            restarting: environments whose reset this step was (NEXT_STEP).
            ages: ages before this step.
        """
        self.now += 1
        # An environment that ends by itself, or has just been reset, is where a cut would put it (or one step past).
        cut: Flags = ((self._due == self.now) | self._in_the_way(ages)) & ~done & ~restarting
        return cut

    def _in_the_way(self, ages: Ages) -> Flags:
        """Whose reset would fall on the step of its cut: its episode probably ends in the next step."""
        soon = self._due == self.now + 2
        if not soon.any() or len(self.hazard) == 1:
            return self._nobody
        next_age = np.minimum(ages + 2, len(self.hazard) - 1)
        found: Flags = soon & (self.hazard[next_age] > LIKELY)
        return found


class DesignedStaggering:
    """Cuts each environment once after every reset of all, at the step that its delay says.

    Args:
        num_envs: number of environments.
        delays: `Delays` (assigned to the environments by quantile, in random order), or one whole number per
            environment.
        same_step: whether a reset takes no step of its own in the stream.
        tolerance: distance (total variation) up to which `phase` calls batches fair.
        n_steps: number of steps in the batches that `phase` reports on.
        seed: seed of the order in which environments get their delays.

    Example:
        >>> staggering = DesignedStaggering(3, [1, 2, 3], same_step=True)
        >>> [staggering.step(np.zeros(3, dtype=bool)).tolist() for _ in range(3)]
        [[False, True, False], [True, False, False], [False, False, False]]
    """

    def __init__(
        self,
        num_envs: int,
        delays: Delays | ArrayLike,
        *,
        same_step: bool,
        tolerance: float = 0.01,
        n_steps: int = 16,
        seed: int | None = None,
    ) -> None:
        self.tracker = PhaseTracker(num_envs, same_step=same_step, n_steps=n_steps, tolerance=tolerance)
        self._rng = np.random.default_rng(seed)
        self._delays = delays
        self._nobody = np.zeros(self.tracker.num_envs, dtype=bool)
        self._schedule = CutSchedule(self.tracker.num_envs)
        self._cuts = 0
        self.reset()

    @property
    def ages(self) -> Ages:
        """Ages of the states that the environments are in; 1 after a reset."""
        return self.tracker.ages

    @property
    def phase(self) -> PhaseReport:
        """How far the ages in the last batch are from those in the long run."""
        return self.tracker.report()

    @property
    def lengths(self) -> EpisodeLengths | None:
        """Distribution of T of recent episodes, running ones included; None if none has ended yet."""
        return self.tracker.lengths

    @property
    def cuts(self) -> int:
        """Number of episodes cut short so far."""
        return self._cuts

    @property
    def settled(self) -> bool:
        """Whether all delays have been carried out."""
        return not self._schedule.steps_left

    def reset(self, mask: Flags | None = None, *, seed: int | list[int] | None = None) -> None:
        """Take note that all environments were reset, so that the delays start anew; or those in the mask only."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.tracker.reset(mask)
        if mask is not None:
            return
        self._schedule.clear()
        tracker = self.tracker
        delays: Any = self._delays
        if isinstance(delays, Delays) and not tracker.same_step:
            self._schedule.hazard = hazards_of(delays)
            delays = for_next_step(delays, tracker.ages, tracker.restarting)
        assigned = assigned_delays(delays, tracker.num_envs, same_step=tracker.same_step, rng=self._rng)
        # Where a reset is a step of its own, the first observation cannot be an end: all restart one step later.
        self._schedule.plan(assigned, window=int(assigned.max()), offset=0 if tracker.same_step else 1)

    def step(self, done: Flags) -> Flags:
        """Return who is cut in this step, given whose episode ended in it by itself; call it once per step."""
        tracker, schedule = self.tracker, self._schedule
        if not schedule.steps_left:
            schedule.tick()
            tracker.update(done)
            return self._nobody
        cut = schedule.step(done, tracker.restarting, tracker.ages)
        self._cuts += int(cut.sum())
        tracker.update(done, cut)
        return cut


def make_staggering(
    num_envs: int, delays: DelaysLike, *, same_step: bool, tolerance: float, n_steps: int, seed: int | None
) -> Staggering:
    """Return what decides about cuts: a controller for "auto", a schedule for delays.

    A controller reports on the ages of the moment, a schedule on those in the last batch of `n_steps` steps.
    """
    tolerance = check_tolerance(tolerance)
    whole_number("n_steps", n_steps, DelaysError)
    if isinstance(delays, str) and delays == "auto":
        return StaggerController(num_envs, same_step=same_step, seed=seed)
    return DesignedStaggering(num_envs, delays, same_step=same_step, tolerance=tolerance, n_steps=n_steps, seed=seed)


def for_next_step(delays: Delays, ages: Ages, restarting: Flags) -> Delays:
    """Return delays corrected for NEXT_STEP autoreset, where an environment cannot be cut during its reset step.

    Args:
        delays: designed delays; those that do not come with lengths are returned as they are.
        ages: ages of the environments now.
        restarting: environments whose next step is their reset.
    """
    if delays.lengths is None:
        return delays
    return allowing_for_resets(delays, unforeseen_ends(delays.lengths, delays.window, ages, restarting))


def hazards_of(delays: Delays) -> NDArray[np.float64]:
    """Return P(T = k | T >= k) of the lengths that delays were designed for; an array of one zero if unknown."""
    return np.zeros(1) if delays.lengths is None else hazards(delays.lengths)


def assigned_delays(delays: DelaysLike, num_envs: int, *, same_step: bool, rng: np.random.Generator) -> Ages:
    """Return one delay per environment: those given, or by quantile, in random order."""
    if isinstance(delays, Delays):
        return (delays.for_same_step() if same_step else delays).assign(num_envs, rng=rng)
    refuse_lengths(delays)
    values = plain_array("delays", delays, DelaysError)
    whole = values.shape == (num_envs,) and values.dtype.kind in "iu"
    if not whole or not ((values >= 1) & (values <= MOST_STEPS)).all():
        raise DelaysError(
            f"delays is {shown(delays)}; give Delays (as from design_delays(lengths)), or {num_envs} whole numbers of "
            f"steps, one per environment, each from 1 to {MOST_STEPS:,} (StaggeredVectorEnv takes 'auto' as well)"
        )
    return values.astype(np.int64)
