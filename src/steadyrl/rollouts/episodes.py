"""Episodes: the result of collecting, and the collector of one block of them.

The states of an episode have ages k = 1, ..., T, the terminal one included, and T = l + 1 for an episode of l actions.
Sums of the observation and of its square at each age are all that marginals at *every* time need (by the renewal
equation), in memory that grows with the longest episode and not with the number of episodes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import shown, whole_number
from steadyrl.common.values import hash_values, same_values
from steadyrl.errors import RolloutError
from steadyrl.lengths.age_sums import AgeSums, count_ages
from steadyrl.rollouts.blocks import Arrays, Block, BlockCollector, Skipped
from steadyrl.rollouts.engine import Episode, Failure, Job
from steadyrl.rollouts.files import read_collected, write_collected
from steadyrl.rollouts.repeatability import beginning_of

Array = NDArray[np.float64]

_KIND = "episodes"


@dataclass(frozen=True, eq=False, repr=False)
class Trajectories:
    """Whole episodes, stored one after the other; `of(i)` returns episode i."""

    lengths: NDArray[np.int64]
    observations: Array
    """The observations of all episodes, terminal ones included, [sum of T, d]."""
    actions: Any
    """The actions as the policy returned them, [sum of l, ...]."""
    rewards: Array
    """The rewards, [sum of l]."""

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        return f"Trajectories({len(self.lengths):,} episodes, {len(self.rewards):,} steps)"

    def of(self, episode: int) -> tuple[Array, Any, Array]:
        """Return observations [l + 1, d], actions [l, ...] and rewards [l] of one episode, counted from 0.

        Raises:
            RolloutError: if there is no such episode.
        """
        number = whole_number("episode", episode, RolloutError, least=0, most=len(self.lengths) - 1)
        first, end = int(self._ends[number - 1]) if number else 0, int(self._ends[number])
        seen, taken = slice(first + number, end + number + 1), slice(first, end)
        return self.observations[seen], self.actions[taken], self.rewards[taken]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where each episode's actions end among those of all."""
        return np.cumsum(self.lengths, dtype=np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Episodes:
    """Complete episodes, in the order in which they were started; every episode that was started is included.

    Example:
        >>> from steadyrl import collect_episodes
        >>> episodes = collect_episodes("steadyrl/StateSweep-v0", "uniform", 3)
        >>> episodes.lengths.tolist(), episodes.average_episode_length
        ([19, 19, 19], 20.0)
    """

    lengths: NDArray[np.int64]
    """Number of actions in each episode, as Gymnasium counts: l = T - 1."""
    returns: Array
    """Sum of rewards of each episode."""
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    seeds: NDArray[np.uint32]
    """Seed of each episode's reset; zeros with EnvPool, which seeds whole pools."""
    ages: AgeSums | None = None
    """Sums of the observation and its square at each age."""
    trajectories: Trajectories | None = None
    skipped: tuple[Skipped, ...] = ()
    """Episodes that failed and were left out (on_error="skip")."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What determines the data: environment, policy, seed, versions, and the command that makes it again."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """How this run went: the backend and why, blocks that ran again. Notes are not saved."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        about = f" of {name}" if (name := self.provenance.get("environment")) else ""
        mean = f", mean length {self.lengths.mean():.6g}" if len(self) else ""
        left_out = f", {len(self.skipped):,} left out" if self.skipped else ""
        return f"Episodes({len(self):,}{about}, {self.steps:,} steps{mean}{left_out})"

    @property
    def average_episode_length(self) -> float:
        """The mean of T = l + 1."""
        return float(self.lengths.mean()) + 1

    @property
    def steps(self) -> int:
        """The number of actions in all episodes."""
        return int(self.lengths.sum())

    def merge(self, *others: Episodes) -> Episodes:
        """Return these episodes and others of the same environment and policy as one.

        Raises:
            RolloutError: if environments or policies differ, or if two runs had the same seed, since the same episodes
                twice are not more data.
        """
        return merge([self, *others])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an npz file; it is replaced only once it is complete, and the same episodes give the same bytes."""
        arrays: Arrays = {name: getattr(self, name) for name in _COLUMNS}
        if self.ages is not None:
            arrays |= {f"ages_{name}": value for name, value in vars(self.ages).items()}
        if self.trajectories is not None:
            arrays |= {f"trajectories_{name}": getattr(self.trajectories, name) for name in _TRACKS}
        write_collected(path, _KIND, self, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Episodes:
        """Read what `save` wrote.

        Raises:
            FileFormatError: if the file is damaged or holds something else.
        """
        return read_collected(path, _KIND, cls._of_arrays)

    @classmethod
    def _of_arrays(cls, arrays: Arrays, **about: Any) -> Episodes:
        ages = tracks = None
        columns = {name: arrays[name] for name in _COLUMNS}
        if any(name.startswith("ages_") for name in arrays):
            ages = AgeSums(*(arrays[f"ages_{name}"] for name in ("count", "total", "total_squares")))
        if any(name.startswith("trajectories_") for name in arrays):
            tracks = Trajectories(arrays["lengths"], *(arrays[f"trajectories_{name}"] for name in _TRACKS))
        _require_sound(columns, ages, tracks)
        return cls(**columns, ages=ages, trajectories=tracks, **about)


_COLUMNS = ("lengths", "returns", "terminated", "truncated", "seeds")
_TRACKS = ("observations", "actions", "rewards")
_OF_ONE_RUN = ("seed", "total", "command")


def _require_sound(columns: Arrays, ages: AgeSums | None, tracks: Trajectories | None) -> None:
    """Raise ValueError unless the arrays of a file are what episodes have and fit each other."""
    lengths = columns["lengths"]
    for name, kinds in zip(_COLUMNS, ("iu", "f", "b", "b", "iu"), strict=True):
        column = columns[name]
        if column.dtype.kind not in kinds or column.shape != lengths.shape or column.ndim != 1:
            raise ValueError(f"{name} has type {column.dtype} and shape {column.shape}")
    if (lengths < 0).any() or not np.isfinite(columns["returns"]).all():
        raise ValueError("a length is negative, or a return is not finite")
    if not (columns["terminated"] | columns["truncated"]).all():
        raise ValueError("an episode has neither terminated nor been truncated")
    if ages is not None:
        ages.require_sums_of(lengths)
    if tracks is not None:
        steps = int(lengths.sum())
        if (len(tracks.observations), len(tracks.actions), len(tracks.rewards)) != (steps + len(lengths), steps, steps):
            raise ValueError("the trajectories do not fit the lengths")


def merge(parts: Sequence[Episodes]) -> Episodes:
    """Return several runs of one environment and policy as one."""
    strange = [part for part in parts if not isinstance(part, Episodes)]
    if strange:
        raise RolloutError(f"{shown(strange[0])} cannot be merged; give Episodes, as collect_episodes returns them")
    if not parts:
        raise RolloutError("no episodes were given to merge; give at least one Episodes")
    first = parts[0]
    for key in ("environment", "environment_digest", "make_arguments", "policy", "policy_digest"):
        values = [part.provenance.get(key) for part in parts]
        if any(value != values[0] for value in values):
            raise RolloutError(
                f"these episodes differ in {key}: {values}; merge only runs with the same environment and policy"
            )
    runs = [run for part in parts for run in _single_runs(part.provenance)]
    seeds = [(run.get("seed"), run.get("family")) for run in runs]
    if len(set(map(repr, seeds))) < len(seeds):
        twice = next(seed for i, seed in enumerate(seeds) if seed in seeds[:i])
        raise RolloutError(f"two of these runs have the same seed {twice}: the same episodes twice are not more data")
    if any((part.ages is None) != (first.ages is None) for part in parts):
        raise RolloutError(
            "some of these runs have sums at each age and some do not; collect all with the same observation_sums"
        )
    if any((part.trajectories is None) != (first.trajectories is None) for part in parts):
        raise RolloutError(
            "some of these runs have trajectories and some do not, so that some would be lost; collect all with the "
            "same trajectories"
        )
    columns: Arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    tracks = [part.trajectories for part in parts if part.trajectories is not None]
    together = None
    if tracks:
        joined = (_joined([getattr(track, name) for track in tracks]) for name in _TRACKS)
        together = Trajectories(columns["lengths"], *joined)
    sums = [part.ages for part in parts if part.ages is not None]
    ages = AgeSums.merge(sums) if sums else None
    provenance = {key: value for key, value in first.provenance.items() if key not in _OF_ONE_RUN}
    provenance["merged"] = runs
    skipped = tuple(entry for part in parts for entry in part.skipped)
    return Episodes(**columns, ages=ages, trajectories=together, skipped=skipped, provenance=provenance)


def _joined(parts: Sequence[Any]) -> Any:
    """Return arrays one after the other; those of no episode, as where all were left out, do not know the shape."""
    return np.concatenate([part for part in parts if len(part)] or parts)


def _single_runs(provenance: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the provenance of every run that was merged, also of those that were merged before."""
    found: list[dict[str, Any]] = []
    waiting = [dict(provenance)]
    while waiting:
        run = waiting.pop()
        if isinstance(run.get("merged"), list):
            waiting += reversed(run["merged"])
        else:
            found.append(run)
    return found


@dataclass(frozen=True)
class EpisodeWork:
    """Collect single episodes."""

    total: int
    sums: bool = True
    trajectories: bool = False

    def collector(self, block: Block) -> BlockCollector:
        """Return what collects one block."""
        return EpisodeCollector(block, self)


class EpisodeCollector:
    """Collects the episodes of one block."""

    largest = float(np.finfo(np.float64).max)

    def __init__(self, block: Block, work: EpisodeWork) -> None:
        self._block, self._work = block, work
        self._started = 0
        self._of_lane: dict[int, int] = {}
        n = block.count
        self._lengths = np.full(n, -1, dtype=np.int64)  # -1 stays where an episode was left out
        self._returns = np.zeros(n)
        self._terminated, self._truncated = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        size = block.task.observations.size if work.sums else 0
        self._total, self._squares, self._longest = np.zeros((64, size)), np.zeros((64, size)), 0
        self._tracks: dict[int, tuple[Array, Any, Array]] = {}
        self.first: Episode | None = None

    def next(self, lane: int) -> Job | None:
        """Return the block's next episode, whichever lane asks for it."""
        number = self._started
        if number == self._block.count:
            return None
        self._started += 1
        self._of_lane[lane] = number
        return Job(number, int(self._block.seeds[number]))

    def finish(self, lane: int, episode: Episode) -> None:
        """Count an episode, and add its observations to the sums at their ages."""
        number, ages = self._of_lane[lane], len(episode.observations)
        self._lengths[number] = ages - 1
        self._returns[number] = episode.rewards.sum()
        self._terminated[number], self._truncated[number] = episode.terminated, episode.truncated
        if number == 0 and self._block.task.check_repeatable:
            self.first = beginning_of(episode)
        if self._work.sums:
            if ages > len(self._total):
                self._grow(ages)
            self._longest = max(self._longest, ages)
            self._add(episode.observations)
        if self._work.trajectories:
            rows, actions, rewards = episode[:3]
            flat = self._block.task.observations.flattened(rows)
            self._tracks[number] = flat.copy(), actions.copy(), rewards.copy()

    def fail(self, lane: int, failure: Failure) -> None:
        """Raise, or leave the episode out."""
        self._block.fail(self._of_lane[lane], failure)

    def arrays(self) -> Arrays:
        """Return what was collected, in the order in which episodes were started."""
        kept = self._lengths >= 0
        seeds = self._block.seeds if self._block.task.family == "gymnasium" else np.zeros_like(self._block.seeds)
        result: Arrays = {
            "lengths": self._lengths[kept],
            "returns": self._returns[kept],
            "terminated": self._terminated[kept],
            "truncated": self._truncated[kept],
            "seeds": seeds[kept],
        }
        if self._work.sums:
            result |= {"total": self._total[: self._longest], "total_squares": self._squares[: self._longest]}
        if self._work.trajectories:
            tracks = [self._tracks[number] for number in np.flatnonzero(kept).tolist()]
            for i, name in enumerate(_TRACKS):
                result[name] = np.concatenate([track[i] for track in tracks]) if tracks else np.zeros(0)
        return result

    def _add(self, rows: Array) -> None:
        """Add an episode's observations to the sums; a Discrete observation is a unit vector and adds to one place."""
        ages = len(rows)
        if self._block.task.observations.discrete:
            places = np.arange(ages), rows[:, 0].astype(np.int64)
            self._total[places] += 1.0
            self._squares[places] += 1.0
        else:
            with np.errstate(over="ignore", invalid="ignore"):  # the fold drops sums that are not finite
                self._total[:ages] += rows
                self._squares[:ages] += rows * rows

    def _grow(self, ages: int) -> None:
        room = max(ages, 2 * len(self._total))
        for name in ("_total", "_squares"):
            old = getattr(self, name)
            new = np.zeros((room, old.shape[1]))
            new[: len(old)] = old
            setattr(self, name, new)


class EpisodeFold:
    """Joins blocks in order, in memory that grows by 22 bytes per episode."""

    def __init__(self, work: EpisodeWork, size: int) -> None:
        self._work = work
        n = work.total
        types = {"lengths": np.int64, "returns": np.float64, "terminated": bool, "truncated": bool, "seeds": np.uint32}
        try:
            self._columns: Arrays = {name: np.empty(n, dtype) for name, dtype in types.items()}
        except (MemoryError, ValueError) as error:
            raise RolloutError(
                f"{n:,} episodes need {22 * n / 2**30:,.0f} GiB of memory, which is not there; collect fewer at once, "
                "with several seeds"
            ) from error
        self._count = 0
        self._sums = AgeSums.empty(size)
        self._tracks: dict[str, list[Any]] = {name: [] for name in _TRACKS}
        self._skipped: list[Skipped] = []

    def add(self, block: Arrays) -> tuple[int, NDArray[np.int64], int]:
        """Add the next block; return its number of episodes, their lengths and its steps, for the progress display."""
        count = len(block["lengths"])
        for name, column in self._columns.items():
            column[self._count : self._count + count] = block[name]
        self._count += count
        if self._work.sums:
            with np.errstate(over="ignore", invalid="ignore"):
                self._sums += AgeSums(count_ages(block["lengths"]), block["total"], block["total_squares"])
        if self._work.trajectories:
            for name, parts in self._tracks.items():
                parts.append(block[name])
        self._skipped.extend(block["skipped"])
        return count, block["lengths"], int(block["lengths"].sum())

    def result(self, provenance: Mapping[str, Any], notes: Sequence[str]) -> Episodes:
        """Return the whole."""
        columns = {name: column[: self._count] for name, column in self._columns.items()}
        ages = self._sums if self._work.sums else None
        if ages is not None and not (np.isfinite(ages.total).all() and np.isfinite(ages.total_squares).all()):
            ages, notes = None, (*notes, "no sums at each age: observations are so large that their squares overflow")
        tracks = None
        if self._work.trajectories:
            joined = (_joined(parts) for parts in self._tracks.values())
            tracks = Trajectories(columns["lengths"], *joined)
        return Episodes(
            **columns,
            ages=ages,
            trajectories=tracks,
            skipped=tuple(self._skipped),
            provenance=provenance,
            notes=tuple(notes),
        )
