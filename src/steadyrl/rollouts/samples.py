"""The paper's sampler: endless rollouts, and the state of each of them at given times of the perturbed process.

An episode of a rollout begins at a terminal state at time b, spends its detour of G null steps at b + 1, ..., b + G,
and is at age k at time b + G + k; its last age T is the next episode's b. So no null step is ever simulated: episodes
are run one after the other and their times renumbered. The first episode has its detour too, since
a learning process starts at a terminal state, at time 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.detours import Perturbation
from steadyrl.common.values import hash_values, same_values
from steadyrl.environments.codecs import whole_dtype
from steadyrl.errors import RolloutError
from steadyrl.rollouts.blocks import Arrays, Block, BlockCollector, Skipped
from steadyrl.rollouts.engine import Episode, Failure, Job
from steadyrl.rollouts.files import read_collected, write_collected
from steadyrl.rollouts.repeatability import beginning_of

Array = NDArray[np.float64]

_KIND = "samples"


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """The states of K rollouts at M times; where a rollout is in its null state, everything is zero.

    Example:
        >>> from steadyrl import Perturbation, collect_samples
        >>> samples = collect_samples("steadyrl/StateSweep-v0", "uniform", 3, [1, 60], perturbation=Perturbation(0.9))
        >>> samples.observations.shape, samples.null[:, 0].tolist()
        ((3, 2), [True, True, True])
    """

    times: NDArray[np.int64]
    """[M]: times of the perturbed process; time 0 is the terminal state before the first episode."""
    observations: Any
    """[K, M, d]: flattened observations, or [K, M]: their numbers if they are Discrete."""
    actions: Any
    """[K, M, ...]: actions as the policy returned them; zero at terminal states, where they are ignored."""
    returns: Array
    """[K, M]: the sum of rewards from the action on to the episode's end; 0 at its terminal state."""
    ages: NDArray[np.int32]
    """[K, M]: transitions since the episode's start, 1, ..., T; 0 where the process is null."""
    terminal: NDArray[np.bool_]
    """[K, M]: whether the state is the one that ends its episode."""
    episode_lengths: NDArray[np.int64]
    """[K, m]: Gymnasium's lengths of the first m episodes of each rollout, all of them finished."""
    episode_returns: Array
    """[K, m]: returns of these episodes."""
    steps: int = 0
    """Environment steps of all rollouts; 0 if all episodes are known to be the same, so that none was simulated."""
    skipped: tuple[Skipped, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __len__(self) -> int:
        return len(self.ages)

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        about = f" of {name}" if (name := self.provenance.get("environment")) else ""
        left_out = f", {len(self.skipped):,} left out" if self.skipped else ""
        return f"Samples({len(self):,} rollouts{about} at {len(self.times)} times{left_out})"

    @property
    def null(self) -> NDArray[np.bool_]:
        """[K, M]: whether the perturbed process is in its null state."""
        null: NDArray[np.bool_] = self.ages == 0
        return null

    @property
    def average_episode_length(self) -> float:
        """The mean of T = l + 1 over `episode_lengths`; detours do not count, as Theorem 5 needs it."""
        return float(self.episode_lengths.mean()) + 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an npz file; it is replaced only once it is complete, and the same samples give the same bytes."""
        write_collected(path, _KIND, self, self._arrays())

    def _arrays(self) -> Arrays:
        return {name: getattr(self, name) for name in ("times", *COLUMNS)} | {"steps": np.int64(self.steps)}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Samples:
        """Read what `save` wrote.

        Raises:
            FileFormatError: if the file is damaged or holds something else.
        """
        return read_collected(path, _KIND, cls._of_arrays)

    @classmethod
    def _of_arrays(cls, arrays: Arrays, **about: Any) -> Samples:
        columns = {name: arrays[name] for name in ("times", *COLUMNS)}
        _require_sound(columns)
        return cls(**columns, steps=int(arrays["steps"]), **about)


COLUMNS = ("observations", "actions", "returns", "ages", "terminal", "episode_lengths", "episode_returns")


def _require_sound(columns: Arrays) -> None:
    """Raise ValueError unless the arrays of a file are what samples have and fit each other."""
    times, shape = columns["times"], columns["ages"].shape
    if times.ndim != 1 or times.dtype.kind not in "iu" or len(shape) != 2 or shape[1] != len(times):
        raise ValueError(f"times have shape {times.shape} and ages {shape}")
    for name, kinds in (("returns", "f"), ("ages", "iu"), ("terminal", "b")):
        if columns[name].dtype.kind not in kinds or columns[name].shape != shape:
            raise ValueError(f"{name} has type {columns[name].dtype} and shape {columns[name].shape}")
    whole = columns["episode_lengths"].shape == columns["episode_returns"].shape
    if not whole or any(columns[name].shape[:2] != shape for name in ("observations", "actions")):
        raise ValueError("observations, actions or episodes do not fit the ages")
    if (columns["ages"] < 0).any() or (columns["episode_lengths"] < 0).any():
        raise ValueError("an age or a length is negative")


@dataclass(frozen=True)
class SampleWork:
    """Collect the states of rollouts at given times."""

    total: int
    times: tuple[int, ...] = ()
    """The times, increasing."""
    perturbation: Perturbation | None = None
    episodes: int = 1
    """The smallest number of episodes that every rollout runs."""

    def collector(self, block: Block) -> BlockCollector:
        """Return what collects one block."""
        return SampleCollector(block, self)


@dataclass
class _Rollout:
    """A rollout that is being run in a lane."""

    number: int
    begin: int
    """The time of the terminal state before the present episode."""
    detour: int
    episode: int


class SampleCollector:
    """Collects the rollouts of one block."""

    def __init__(self, block: Block, work: SampleWork) -> None:
        self._block, self._work = block, work
        self.largest = block.task.observations.largest()
        self._times = np.array(work.times)
        self._started = self._steps = 0
        self._of_lane: dict[int, _Rollout] = {}
        self._dropped: set[int] = set()
        self._columns = _empty_columns(block, work)
        self.first: Episode | None = None

    def next(self, lane: int) -> Job | None:
        """Go on with the lane's rollout, or begin the next one."""
        rollout = self._of_lane.get(lane)
        if rollout is not None and not self._over(rollout):
            return Job(rollout.number, None)
        if self._started == self._block.count:
            return None
        number = self._started
        self._started += 1
        self._of_lane[lane] = _Rollout(number, 0, self._detour(), 0)
        return Job(number, int(self._block.seeds[number]))

    def finish(self, lane: int, episode: Episode) -> None:
        """Record the states at the times that fall into this episode, and begin the rollout's next episode."""
        rollout, ages = self._of_lane[lane], len(episode.observations)
        self._steps += ages - 1
        if rollout.number == rollout.episode == 0 and self._block.task.check_repeatable:
            self.first = beginning_of(episode)
        start = rollout.begin + rollout.detour
        first, last = np.searchsorted(self._times, (start + 1, start + ages + 1))
        if last > first:
            self._note(rollout.number, slice(first, last), self._times[first:last] - start, episode)
        if rollout.episode < self._work.episodes:
            self._columns["episode_lengths"][rollout.number, rollout.episode] = ages - 1
            self._columns["episode_returns"][rollout.number, rollout.episode] = episode.rewards.sum()
        rollout.begin, rollout.detour, rollout.episode = start + ages, self._detour(), rollout.episode + 1

    def fail(self, lane: int, failure: Failure) -> None:
        """Raise, or leave the rollout out."""
        rollout = self._of_lane.pop(lane)
        self._block.fail(rollout.number, failure)
        self._dropped.add(rollout.number)

    def arrays(self) -> Arrays:
        """Return what was collected, in the order in which rollouts were started."""
        kept = np.setdiff1d(np.arange(self._block.count), list(self._dropped))
        return {"steps": np.int64(self._steps)} | {name: column[kept] for name, column in self._columns.items()}

    def _note(self, rollout: int, places: slice, ages: Any, episode: Episode) -> None:
        columns, codec = self._columns, self._block.task.observations
        to_go = np.append(np.cumsum(episode.rewards[::-1])[::-1], 0.0)
        columns["observations"][rollout, places] = codec.kept(episode.observations[ages - 1])
        columns["ages"][rollout, places] = ages
        columns["returns"][rollout, places] = to_go[ages - 1]
        at_end = ages == len(episode.observations)
        columns["terminal"][rollout, places] = at_end
        acts = np.flatnonzero(~at_end)
        columns["actions"][rollout, places.start + acts] = episode.actions[ages[acts] - 1]

    def _over(self, rollout: _Rollout) -> bool:
        """Whether a rollout is complete: the remaining times, if any, fall into the detour."""
        return rollout.episode >= self._work.episodes and int(self._times[-1]) <= rollout.begin + rollout.detour

    def _detour(self) -> int:
        perturbation = self._work.perturbation
        return 0 if perturbation is None else int(perturbation.draw(1, rng=self._block.rng)[0])


class SampleFold:
    """Joins blocks of samples in order."""

    def __init__(self, work: SampleWork) -> None:
        self._work = work
        self._columns: Arrays = {}
        self._count = self._steps = 0
        self._skipped: list[Skipped] = []

    def add(self, block: Arrays) -> tuple[int, NDArray[np.int64], int]:
        """Add the next block; return its rollouts, the lengths of their first episodes and its steps, for display."""
        count = len(block["ages"])
        if not self._columns:
            try:
                self._columns = {
                    name: np.empty((self._work.total, *block[name].shape[1:]), block[name].dtype) for name in COLUMNS
                }
            except (MemoryError, ValueError) as error:
                raise _too_large(self._work.total, self._work) from error
        for name, column in self._columns.items():
            column[self._count : self._count + count] = block[name]
        self._count += count
        self._skipped.extend(block["skipped"])
        steps = int(block["steps"])
        self._steps += steps
        return count, block["episode_lengths"].ravel(), steps

    def result(self, provenance: Mapping[str, Any], notes: Sequence[str]) -> Samples:
        """Return the whole."""
        columns: Arrays = {name: column[: self._count] for name, column in self._columns.items()}
        about: Any = {"skipped": tuple(self._skipped), "provenance": provenance, "notes": tuple(notes)}
        return Samples(np.array(self._work.times), **columns, steps=self._steps, **about)


def _empty_columns(block: Block, work: SampleWork) -> Arrays:
    try:
        return _zeros(block, work)
    except (MemoryError, ValueError) as error:
        raise _too_large(block.count, work) from error


def _too_large(rollouts: int, work: SampleWork) -> RolloutError:
    """Return the error of samples that memory cannot hold."""
    return RolloutError(
        f"{rollouts:,} rollouts with {len(work.times):,} times and {work.episodes:,} episodes each need more memory "
        "than there is; give fewer times, episodes or rollouts"
    )


def _zeros(block: Block, work: SampleWork) -> Arrays:
    seen, acted = block.task.observations, block.task.actions
    shape = (block.count, len(work.times))
    return {
        "observations": np.zeros(shape if seen.discrete else (*shape, seen.size), seen.sample_dtype()),
        "actions": np.zeros(
            (*shape, *acted.shape), whole_dtype(acted.first, acted.end) if acted.low is None else np.float64
        ),
        "returns": np.zeros(shape),
        "ages": np.zeros(shape, dtype=np.int32),
        "terminal": np.zeros(shape, dtype=bool),
        "episode_lengths": np.zeros((block.count, work.episodes), dtype=np.int64),
        "episode_returns": np.zeros((block.count, work.episodes)),
    }
