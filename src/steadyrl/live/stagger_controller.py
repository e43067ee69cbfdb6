"""`StaggerController`: decides, step by step, whose episode to truncate, so that the ages are as steady as they can be.

A thin shell around the pure functions of `stagger_law`: it checks its arguments, makes room for older ages, and while
the law is quiet it only writes down who ended, which costs little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import MOST_ENVS, check_flag, check_seed, plain_array, shown, whole_number
from steadyrl.errors import StaggerError
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.live import stagger_law as law
from steadyrl.live.array_library import count
from steadyrl.live.lockstep import RARE, scan_p_value
from steadyrl.live.phase import KNOWN, LEAST_BATCHED, RESOLVED, PhaseReport, Verdict
from steadyrl.live.stagger_law import StaggerState
from steadyrl.live.states import check_stagger, check_way, restored

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_NEVER = -(2**62)


class StaggerController:
    """Staggers the episodes of environments that were reset together, at the theoretical bound at every step.

    Nothing needs to be known beforehand: episode lengths are learnt from the environments themselves (Kaplan-Meier),
    and a policy that changes is followed. On average an environment is truncated about ln(mean episode length) times in
    its first episode, and hardly ever after it.

    Args:
        num_envs: number of environments.
        same_step: whether environments are reset within the step that ends an episode (SAME_STEP, Stable-Baselines3).
            Otherwise (NEXT_STEP) the step after an end is the reset.
        seed: seed of the choice between environments of the same age; None takes another one every time.
        late_cuts: whether the episodes that `step` returns are truncated in the next step, as by setting the counter of
            a time limit. That costs one step of the best distance. Only with `same_step`.

    Raises:
        StaggerError: if an argument cannot be used.

    Example:
        >>> controller = StaggerController(6, same_step=True, seed=0)
        >>> for _ in range(3):  # episodes last three steps, always
        ...     cut = controller.step(controller.ages == 3)
        >>> sorted(controller.ages.tolist())
        [1, 1, 2, 2, 3, 3]
    """

    def __init__(self, num_envs: int, *, same_step: bool, seed: int | None = None, late_cuts: bool = False) -> None:
        self.num_envs = whole_number("num_envs", num_envs, StaggerError, most=MOST_ENVS)
        if not isinstance(same_step, bool | np.bool_):
            raise StaggerError(
                f"same_step is {shown(same_step)}; it must be True (resets happen within the step that ends an "
                "episode) or False (the step after an end is the reset)"
            )
        self.same_step, self.late_cuts = bool(same_step), check_flag("late_cuts", late_cuts, StaggerError)
        if self.late_cuts and not self.same_step:
            raise StaggerError(
                "late_cuts needs same_step=True; where the reset is a step of its own, truncate in the step itself"
            )
        # While the law is quiet, steps are only written down: who ended in them, and later the ages that they reached.
        self._ended = np.zeros((law.GLANCE, self.num_envs), dtype=bool)
        self._rows = np.zeros((law.GLANCE, self.num_envs), dtype=np.int64)
        self._numbers = np.arange(law.GLANCE)[:, None]
        self._filled = self._followed = 0  # steps written down, and those of them through which ages were followed
        self._oldest = 0
        self._lived: NDArray[np.int64] = np.zeros(self.num_envs, dtype=np.int64)  # ages less 1, after those followed
        self._restarting: Flags = np.zeros(self.num_envs, dtype=bool)
        self._nobody: Flags = np.zeros(self.num_envs, dtype=bool)
        self._pace, self._end_rate, self._known, self._wait = 0.0, 0.0, 0, 0  # of the state (`_remember`)
        self._late: Flags | None = None  # who is being truncated in this step (late cuts)
        self.reset(seed=int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed)

    def reset(self, mask: Any = None, *, seed: int | list[int] | None = None) -> None:
        """Tell the controller that environments were reset from outside.

        Args:
            mask: which ones; None means all of them, so that they are in lockstep again.
            seed: begin anew with this seed (or one for each environment), as after the construction: lengths are
                forgotten, too. With a mask the seed is not looked at.
        """
        if mask is not None:
            flags = self._flags(mask, "mask")
            self._follow()
            self._late = None if self._late is None else self._late & ~flags
            self._lived[flags] = 0
            self._restarting = self._restarting & ~flags
            return
        if seed is not None:
            one = small_seed(seed) if not isinstance(seed, list | tuple | np.ndarray) else _one_of(seed)
            self._filled = self._followed = 0
            self._remember(law.init(self.num_envs, seed=one))
        self._count()
        self._remember(self._state._replace(active=np.bool_(True), carry=np.float64(0.0)))
        self._lived = np.zeros(self.num_envs, dtype=np.int64)
        self._restarting = np.zeros(self.num_envs, dtype=bool)
        self._late = None
        self._oldest = 0 if self.same_step else 1  # at most, among the ages reached in the last step

    def step(self, done: Any) -> Flags:
        """Take in one step of all environments; return whose episode to truncate in it.

        Args:
            done: whose episode ended by itself in this step (terminated, or truncated by the time limit); with late
                cuts, also those that were to be truncated in it.

        Returns:
            Booleans, one for each environment; never True for one whose episode has just ended, nor, with NEXT_STEP,
            for one that is being reset in this step.

        Raises:
            StaggerError: if `done` is not one boolean for each environment; with late cuts, if an environment that was
                to be truncated in this step goes on.
        """
        done = self._flags(done, "done")
        if self._late is not None:
            done = self._without_late(done, self._late)
        self._ended[self._filled] = done
        self._filled += 1
        self._new_steps += 1
        self._oldest += 1
        self._pace = law.follow_pace(self._pace, np.count_nonzero(done))
        if not (
            self._active
            or self._new_steps >= self._wait
            or self._new_steps % law.GLANCE == 0
            or self._filled == law.GLANCE
            or law.unusual(self._pace, self._end_rate)
            or (self._oldest > self._known and self._outgrown())  # `_oldest` is an upper bound
        ):
            return np.zeros_like(self._nobody)  # `law.looks` is False
        self._follow()
        ended = self._ended[self._filled - 1]
        ages, here, over_here = self._count()
        if not (self._active or law.looks(self._state, ages)):
            return np.zeros_like(self._nobody)
        found: tuple[StaggerState, Flags]
        going = self._lived if self.same_step else np.where(ended, 0, ages)
        found = law.decide(self._state, going, here, over_here, same_step=self.same_step)
        state, cut = found
        self._remember(state)
        if self.late_cuts:
            np.putmask(self._lived, cut, -1)
            self._late = cut if np.count_nonzero(cut) else None
        elif self.same_step:
            np.putmask(self._lived, cut, 0)
        else:
            self._restarting = self._restarting | cut
        return cut

    def _without_late(self, done: Flags, late: Flags) -> Flags:
        """Return whose episode ended by itself, given who was truncated in this step by a late cut."""
        self._late = None
        if np.greater(late, done).any():
            raise StaggerError(
                f"environments {np.flatnonzero(late & ~done).tolist()} were to be truncated in this step and went on; "
                "whoever truncates them (as by the counter of a time limit) has no effect"
            )
        natural: Flags = np.greater(done, late)
        return natural

    def _outgrown(self) -> bool:
        """`law.outgrown`; the oldest age is known exactly afterwards."""
        self._follow()
        ages = self._rows[self._filled - 1] + 1
        self._oldest = int(ages.max())
        return bool(law.outgrown(self._state, ages))

    def _follow(self) -> None:
        """Follow the ages through the steps that were written down."""
        first, steps = self._followed, self._filled
        if first == steps:
            return
        ended, rows = self._ended[first:steps], self._rows[first:steps]
        if steps == first + 1:  # the usual case while environments are truncated
            rows[0] = self._lived if self.same_step else np.where(self._restarting, 0, self._lived + 1)
            lived = np.where(ended[0], 0, rows[0] + 1)
        else:
            # last[r] is the last step before r in which an environment ended; ages count the steps since then.
            last = np.empty((steps - first + 1, self.num_envs), dtype=np.int64)
            last[0] = -self._lived - 1 if self.same_step else np.where(self._restarting, -1, -self._lived - 2)
            last[1:] = np.where(ended, self._numbers[: steps - first], _NEVER)
            np.maximum.accumulate(last, axis=0, out=last)
            np.subtract(self._numbers[: steps - first] - 1, last[:-1], out=rows)
            lived = steps - first - 1 - last[-1]
        self._followed = steps
        if self.same_step:
            self._lived = lived
            return
        if np.count_nonzero(ended & (rows == 0)):
            at_reset = np.flatnonzero((ended & (rows == 0)).any(axis=0)).tolist()
            raise StaggerError(
                f"environments {at_reset} ended in the step of their reset; an episode has at least one action"
            )
        self._lived, self._restarting = rows[-1].copy(), ended[-1].copy()

    def _count(self) -> tuple[Any, Any, Any]:
        """Count the steps that were written down, and make room for the ages seen.

        Returns:
            The ages in the last of the steps, how many environments were at each age, and how many of these ended.
        """
        steps = self._filled
        self._follow()
        ages, ended = self._rows[:steps] + 1, self._ended[:steps]
        self._filled = self._followed = 0
        state = self._state
        if steps > 1 or self._oldest + 2 >= len(state.new_visits):  # `_oldest` is an upper bound for the last step
            state = law.with_room(state, int(ages.max(initial=1)) + 2)
        size, at = len(state.new_visits), ages[ended]
        visits, ends = count(ages.ravel(), size), count(at, size)
        self._remember(
            state._replace(
                new_visits=state.new_visits + visits,
                new_ends=state.new_ends + ends,
                new_steps=np.int64(self._new_steps),
                pace=np.float64(self._pace),
                time=state.time + steps,
                natural_ends=state.natural_ends + len(at),
            )
        )
        if steps <= 1:
            return ages.reshape(-1), visits, ends
        return ages[-1], count(ages[-1], size), count(ages[-1][ended[-1]], size)

    def _remember(self, state: StaggerState) -> None:
        """Keep a state, and what every step needs of it at hand."""
        self._state, self._active = state, bool(state.active)
        self._new_steps, self._pace = int(state.new_steps), float(state.pace)
        self._known, self._wait, self._end_rate = int(state.known), int(state.wait), float(state.end_rate)

    def _flags(self, flags: Any, name: str) -> Flags:
        if type(flags) is np.ndarray and flags.dtype == np.bool_ and flags.shape == (self.num_envs,):
            return flags
        values = plain_array(name, flags, StaggerError)
        if values.shape != (self.num_envs,):
            raise StaggerError(
                f"{name} has shape {values.shape}; for {self.num_envs} environments it must be ({self.num_envs},)"
            )
        if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
            raise StaggerError(f"{name} is {shown(flags)}; it must hold booleans, one for each environment")
        return values.astype(bool)

    @property
    def ages(self) -> NDArray[np.int64]:
        """The age of the state that each environment is in: 1 after a reset, 0 before the step of a late cut."""
        self._follow()
        ages: NDArray[np.int64] = self._lived + 1
        return ages

    @property
    def restarting(self) -> Flags:
        """Which environments are reset by their next step (NEXT_STEP only)."""
        self._follow()
        restarting: Flags = self._restarting.copy()
        return restarting

    @property
    def cuts(self) -> int:
        """Truncations so far, over all environments."""
        return int(self._state.cuts)

    @property
    def active(self) -> bool:
        """Whether environments are being brought to steady state; False while nobody needs to be truncated."""
        return bool(self._state.active)

    @property
    def settled(self) -> bool:
        """False: a controller goes on watching, since learning may bring environments back into lockstep."""
        return False

    @property
    def lengths(self) -> EpisodeLengths | None:
        """The distribution of T of recent episodes, running ones included (Kaplan-Meier); None before the first end.

        What is not known to end is put one step after the longest age seen.
        """
        self._count()
        state = law.learn(self._state)
        if not state.ends[-1].sum() > 0:
            return None
        survival = state.survival[: int(state.known) + 2]
        probabilities = np.append(np.maximum(-np.diff(survival[1:]), 0.0), survival[-1])
        return EpisodeLengths(np.concatenate([np.zeros(1 + int(self.same_step)), probabilities / probabilities.sum()]))

    @property
    def phase(self) -> PhaseReport:
        """How far the ages of this moment are from the steady state, as far as lengths are known."""
        self._count()
        state = self._state
        found = law.phase(state._replace(ages=self._lived + 1))
        steps, ends = int(state.time) * self.num_envs, int(state.natural_ends)
        distance, noise, unresolved = float(found.distance), float(found.noise), float(found.unresolved)
        if not found.known:
            return PhaseReport(math.nan, math.nan, math.inf, steps, ends, False, 1.0)
        locked = distance > max(noise, 0.01) and unresolved <= 1 - KNOWN
        if locked and self.num_envs < LEAST_BATCHED:  # the noise is that of many; few need a test that is exact
            learned = law.learn(state)
            locked = scan_p_value(self._lived + 1, learned.survival[1 : int(learned.known) + 1]) <= RARE
        steady = unresolved <= 1 - KNOWN and min(float(found.measured), noise) <= RESOLVED
        verdict: Verdict = "in lockstep" if locked else "at steady state" if steady else "cannot tell yet"
        length = float(found.average_episode_length) + self.same_step
        return PhaseReport(distance, noise, length, steps, ends, locked, unresolved, verdict)

    def state(self) -> dict[str, Any]:
        """Return all that a controller made anew needs to go on from here (`restore`), as arrays."""
        self._count()
        found = {name: np.asarray(value) for name, value in self._state._asdict().items()}
        now = {"ages": self._lived + 1, "restarting": self._restarting.copy(), "same_step": np.array(self.same_step)}
        return found | now

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            StaggerError: if the state is not that of a controller of as many environments.
        """
        missing = [name for name in StaggerState._fields if not isinstance(state, Mapping) or name not in state]
        shape = None if missing else plain_array("ages", state["ages"], StaggerError).shape
        if shape != (self.num_envs,):
            raise StaggerError(
                f"this is not the state of a controller of {self.num_envs} environments"
                + (f"; {', '.join(missing)} is missing" if missing else f": ages have shape {shape}")
            )
        check_way(state, self.same_step, StaggerError)
        like = law.init(
            self.num_envs, max(plain_array("new_visits", state["new_visits"], StaggerError).size - 1, 1)
        )._asdict()
        found = restored(state, like, StaggerError, signed=("carry",))
        check_stagger(found, self.num_envs, late_cuts=self.late_cuts)
        ages = found["ages"]
        self._remember(StaggerState(**found))
        self._lived = ages.astype(np.int64) - 1
        self._restarting = found["restarting"]
        late: Flags = self._lived < 0
        self._late = late if late.any() else None
        self._oldest = int(self._lived.max()) + (0 if self.same_step else 1)
        self._filled = self._followed = 0


def small_seed(seed: Any) -> int:
    """Return a seed of 32 bits, as the law takes it: the seed itself, or one that a larger seed determines."""
    checked = check_seed(seed, StaggerError)
    return checked if checked < 1 << 32 else int(np.random.SeedSequence(checked).generate_state(1)[0])


def _one_of(seeds: Any) -> int:
    """Return one seed that several whole numbers determine, or the seed itself if it is one number in an array."""
    several = plain_array("seed", seeds, StaggerError)
    if several.ndim == 0:
        return small_seed(several.item())
    checked = [check_seed(seed, StaggerError) for seed in several.ravel().tolist()]
    return int(np.random.SeedSequence(checked).generate_state(1)[0])
