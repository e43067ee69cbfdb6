"""Reads logs of episodes with their place in time: who ran them, when they began and ended, and their return.

A Monitor file has the episodes of one environment one after the other, so each begins where the last one ended. A
directory of such files has one environment per file. Other csv files say at which step each episode ended, and episodes
are then dealt out to environments so that none overlap.
"""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import as_path, shown, whole_number
from steadyrl.errors import FileFormatError
from steadyrl.lengths.columns import find_column
from steadyrl.lengths.distribution import LONGEST

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_RETURNS = ("r", "return", "returns", "reward", "ep_rew", "ep_return", "episode_return", "episodic_return", "score")
_STEPS = ("step", "steps", "global_step", "end", "ended", "timestep", "timesteps", "total_steps")
_ENVS = ("env", "env_index", "env_id", "environment", "worker")
_MOST_ENVS = 1_000_000
_FASTEST = 1e6  # steps per second; no single environment in Python is faster
_FEW = 4  # episodes of each environment; with so few, equal numbers mean nothing
_GONE = 20  # longest episodes that nothing is logged of an environment, after which its log has ended
_SUSPICIOUS = 0.05  # share of episodes that were faster than that


@dataclass(frozen=True)
class EpisodeLog:
    """Episodes in the order in which they ended; times are steps of each environment, 0 for the first reset."""

    env: Counts
    """Which environment ran the episode."""
    start: Counts
    """Time of its first action, counted from 0."""
    length: Counts
    """Number of its actions, as Gymnasium counts; it ended at start + length."""
    returns: Array
    clock: Array | None
    """Wall-clock seconds at which it ended, where the log tells."""
    num_envs: int
    about: str
    """What was read, in a few words."""
    same_step: bool = True
    """Whether an episode begins in the step after the last one's end; otherwise the reset takes a step (NEXT_STEP)."""

    @property
    def end(self) -> Counts:
        """Time at which each episode ended."""
        return self.start + self.length

    @property
    def last(self) -> Counts:
        """Time at which the last logged episode of each environment ended: what runs after it is not in the log."""
        found = np.zeros(self.num_envs, dtype=np.int64)
        np.maximum.at(found, self.env, self.end)
        return found

    def while_all_ran(self) -> EpisodeLog:
        """Return the log as far as all its environments are logged.

        What runs after an environment's last logged end is taken for one long episode. That cannot be if it is twenty
        times as long as any episode that ended: then its log has ended, and it is left out, or the others' logs are
        cut there, whichever leaves more. Nor can it be if all environments have as many episodes and their ends are
        further apart than the longest episode, as in an evaluation of n episodes in each: then the log is cut at the
        first of these ends, since those that end early are the ones with short episodes.
        """
        last, longest = self.last, int(self.length.max())
        counts = np.bincount(self.env, minlength=self.num_envs)
        if _FEW < counts.min() == counts.max() and last.max() - last.min() > longest:
            return self._part(int(last.min()), np.ones(self.num_envs, dtype=bool)).while_all_ran()
        over = np.flatnonzero((counts > 0) & (int(self.end[-1]) - last > _GONE * longest))
        if not len(over):
            return self
        ends = np.append(np.sort(last[over]), int(self.end[-1]))  # those that end before one of these are left out
        rest = self.num_envs - np.searchsorted(ends[:-1], ends)
        until = int(ends[np.argmax(ends * rest)])
        kept = np.ones(self.num_envs, dtype=bool)
        kept[over[last[over] < until]] = False
        return self._part(until, kept).while_all_ran()

    def _part(self, until: int, envs: NDArray[np.bool_]) -> EpisodeLog:
        """Return the episodes of some environments that ended up to a time."""
        kept = (self.end <= until) & envs[self.env]
        number, gone = int(envs.sum()), int((~envs).sum())
        about = f"{self.about}; {gone:,} of these whose logs end early are left out" if gone else self.about
        if until < int(self.end[-1]):
            about += f"; up to {until * number:,} steps, where the log of an environment ends"
        return replace(
            self,
            env=(np.cumsum(envs) - 1)[self.env[kept]],
            start=self.start[kept],
            length=self.length[kept],
            returns=self.returns[kept],
            clock=None if self.clock is None else self.clock[kept],
            num_envs=number,
            about=about,
        )


def read_episode_log(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, num_envs: int | None = None
) -> EpisodeLog:
    """Return the episodes of a log.

    Args:
        path: a monitor.csv of one environment, a directory of N.monitor.csv files or several such files (one
            environment each), or one csv file with columns for length, return, and the step at which each episode
            ended (steps over all environments together, as in CleanRL's global_step).
        num_envs: number of environments of a csv file with steps; 1 by default, or as many as its `env` column has.

    Raises:
        FileFormatError: if this is no such log.
    """
    if num_envs is not None:
        num_envs = whole_number("num_envs", num_envs, FileFormatError, most=_MOST_ENVS)
    files = _files(path)
    tables = [_read(file) for file in files]
    if len(tables) == 1 and tables[0].steps is not None:
        return _of_steps(tables[0], files[0], num_envs)
    for table, file in zip(tables, files, strict=True):
        if table.steps is not None:
            raise FileFormatError(
                f"{file.name} says at which step each episode ended, so it is a log of its own; audit each such file "
                "by itself"
            )
    if len(tables) == 1 and tables[0].envs is not None:
        tables = _of_each(tables[0], tables[0].envs)
    if num_envs not in (None, len(tables)):
        if len(tables) > 1:
            raise FileFormatError(f"this log has {len(tables)} environments, but num_envs (--num-envs) is {num_envs}")
        raise FileFormatError(
            f"{files[0].name} does not say at which step each episode ended, so the episodes of {num_envs} "
            "environments cannot be told apart; log with a Monitor around each environment, or give a csv with a "
            "column `step`"
        )
    for table, file in zip(tables, files * len(tables), strict=False):
        _refuse_mixed(table, file)
    return _of_monitors(tables, files)


@dataclass(frozen=True)
class _Table:
    lengths: Counts
    returns: Array
    clock: Array | None
    steps: Array | None
    envs: Counts | None
    """Numbers of environments, in the order in which they first appear."""


def _files(path: Any) -> list[Path]:
    given = list(path) if isinstance(path, list | tuple) else [path]
    found: list[Path] = []
    for one in (Path(as_path("log", name, FileFormatError)) for name in given):
        inside = sorted(one.glob("*monitor.csv"), key=_by_number) if _is(Path.is_dir, one) else [one]
        if not inside:
            raise FileFormatError(f"the directory {str(one)!r} has no monitor.csv; name the file with the episodes")
        found += inside
    if not found:
        raise FileFormatError("no log was given; give a monitor.csv, or a directory of them")
    seen: set[Path] = set()
    for file in found:
        if not _is(Path.is_file, file):  # nor a pipe or a device, which may never end
            raise FileFormatError(f"{shown(str(file), 300)} is not a file or directory; give a monitor.csv")
        if file.resolve() in seen:
            raise FileFormatError(f"{str(file)!r} is given twice, and would be counted as two environments")
        seen.add(file.resolve())
    return found


def _is(what: Callable[[Path], bool], path: Path) -> bool:
    try:
        return what(path)
    except OSError:  # a name that is too long for any file
        return False


def _by_number(file: Path) -> tuple[int, str]:
    number = file.name.split(".")[0]
    return (int(number) if number.isascii() and number.isdigit() and len(number) < 20 else -1, file.name)


def _read(file: Path) -> _Table:
    """Return the columns of a csv file, which is read row by row: what is not needed is never in memory."""
    where = repr(str(file))
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            rows = (
                row for row in csv.reader((line for line in stream if not line.startswith("#")), strict=True) if row
            )
            names = [name.strip() for name in next(rows, [])]
            if not names:
                raise FileFormatError(f"{where} is empty; it must have a line of names and one line for each episode")
            found, envs = _columns(rows, _places(names, where), names, where)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"{where} cannot be read as csv ({error})") from error
    lengths = found["lengths"]
    if not len(lengths):
        raise FileFormatError(f"{where} has no episodes")
    if not ((lengths >= 1) & (lengths == np.floor(lengths)) & (lengths <= LONGEST)).all():
        raise FileFormatError(f"{where} has lengths that are not whole numbers from 1 to {LONGEST:,}")
    return _Table(lengths.astype(np.int64), found["returns"], found.get("t"), found.get("steps"), envs)


def _places(names: Sequence[str], where: str) -> dict[str, int]:
    """Return the columns that are of use, by what they are."""
    places = {"lengths": find_column(names, None, where)}
    wanted = {"returns": _RETURNS, "t": ("t",), "steps": _STEPS, "env": _ENVS}
    places |= {what: place for what, name in wanted.items() if (place := _column(names, name)) is not None}
    if "returns" not in places:
        raise FileFormatError(f"{where} has no column of returns, such as {', '.join(_RETURNS[:3])}")
    return places


def _columns(
    rows: Iterable[list[str]], places: dict[str, int], names: Sequence[str], where: str
) -> tuple[dict[str, Array], Counts | None]:
    """Return the columns of numbers, and which environment each row is of, if the file says so."""
    numbers = {what: (place, array("d")) for what, place in places.items() if what != "env"}
    env, known, envs = places.get("env"), dict[str, int](), array("q")
    short = 0  # the number of a row with too few cells
    for number, row in enumerate(rows, 1):
        if short:
            raise FileFormatError(f"{where}: row {short:,} has fewer cells than there are names in the first line")
        if any(row[len(names) :]):
            raise FileFormatError(f"{where}: row {number:,} has more cells than there are names in the first line")
        if len(row) < len(names):
            short = number  # the last row, if a run was killed while it wrote
            continue
        for place, column in numbers.values():
            try:
                column.append(float(row[place]))
            except ValueError as error:
                text = f"{where}: column {names[place]!r} has something that is no number ({error})"
                raise FileFormatError(text) from error
        if env is not None:
            envs.append(known.setdefault(row[env], len(known)))
    found = {what: np.array(column) for what, (_, column) in numbers.items()}
    for what, values in found.items():
        if not np.isfinite(values).all():
            raise FileFormatError(f"{where}: column {names[places[what]]!r} has a value that is not finite")
    return found, None if env is None else np.array(envs, dtype=np.int64)


def _column(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    plain = [name.rsplit("/", 1)[-1].strip().lower() for name in names]
    return next((plain.index(name) for name in wanted if name in plain), None)


def _refuse_mixed(table: _Table, file: Path) -> None:
    """Raise if episodes ended faster one after the other than any environment steps: then there were several."""
    if table.clock is None or len(table.clock) < 8:
        return
    fast = table.lengths[1:] > _FASTEST * np.maximum(np.diff(table.clock), 0.0)
    if fast.mean() > _SUSPICIOUS:
        raise FileFormatError(
            f"{file.name} has the episodes of several environments (they ended within less time than one environment "
            "needs), and does not say whose they are, as VecMonitor's files do. Log with a Monitor around each "
            "environment (make_vec_env(..., monitor_dir=...)), or give a csv with a column `step`"
        )


def _of_each(table: _Table, envs: Counts) -> list[_Table]:
    """Return the episodes of each environment, where a file says whose they are, but not when they ended."""
    order, clock = np.argsort(envs, kind="stable"), table.clock
    rows = np.split(order, np.flatnonzero(np.diff(envs[order])) + 1)
    return [_Table(table.lengths[r], table.returns[r], None if clock is None else clock[r], None, None) for r in rows]


def _of_monitors(tables: list[_Table], files: list[Path]) -> EpisodeLog:
    env = np.repeat(np.arange(len(tables)), [len(table.lengths) for table in tables])
    start = np.concatenate([np.cumsum(table.lengths) - table.lengths for table in tables])
    clocks = [table.clock for table in tables if table.clock is not None]
    clock = np.concatenate(clocks) if len(clocks) == len(tables) else None
    own = f"{files[0].name}, {len(tables)} environments" if len(tables) > 1 else f"{files[0].name}, one environment"
    kind = f"{len(files)} files, one environment each" if len(files) > 1 else own
    lengths, returns = (np.concatenate([getattr(table, name) for table in tables]) for name in ("lengths", "returns"))
    return _sorted(env, start, lengths, returns, clock, len(tables), kind)


def _of_steps(table: _Table, file: Path, num_envs: int | None) -> EpisodeLog:
    """Deal out episodes to environments: each to one that became free just then, or else last before it began.

    Loggers disagree by a step about when an episode ended, and whether a reset takes a step. So the episodes of an
    environment are then laid end to end, with a step in between if most had one.
    """
    assert table.steps is not None
    named = 1 if table.envs is None else int(table.envs.max()) + 1
    count = named if num_envs is None else num_envs
    own = table.envs if table.envs is not None and named == count else None
    if not ((table.steps >= 0) & (table.steps < 2**53)).all():
        raise FileFormatError(f"{file.name} has steps that are not numbers from 0 to 2^53")
    start = np.rint(table.steps / count).astype(np.int64) - table.lengths
    order = np.argsort(start, kind="stable")
    if own is None:
        env, gaps = _dealt(start, table.lengths, order, count, lambda i: _overlap(table, file, count, i))
    else:
        env, gaps = own, _gaps_of_own(start, table.lengths, order, own, lambda i: _overlap(table, file, count, i))
    gap = int(bool(gaps) and float(np.median(gaps)) >= 1)
    free = np.zeros(count, dtype=np.int64)
    for i in order.tolist():
        start[i] = free[env[i]]
        free[env[i]] = start[i] + table.lengths[i] + gap
    about = f"{file.name}, {count} environments" if count > 1 else f"{file.name}, one environment"
    return _sorted(env, start, table.lengths, table.returns, table.clock, count, about, same_step=not gap)


def _overlap(table: _Table, file: Path, count: int, i: int) -> FileFormatError:
    assert table.steps is not None
    return FileFormatError(
        f"{file.name}: the episode of {table.lengths[i]} steps that ended at step {table.steps[i]:.0f} overlaps with "
        f"those of all {count} environments; steps are counted over all environments together, so give their number: "
        "num_envs=... (--num-envs)"
    )


def _dealt(
    start: Counts, lengths: Counts, order: Counts, count: int, overlap: Callable[[int], Exception]
) -> tuple[Counts, list[int]]:
    """Return which environment ran each episode, and the steps between two episodes of one environment.

    A reset takes a step or none; that is taken with which fewer episodes begin at another time than just after an
    environment became free. (By chance many may begin where one of another environment has ended.)
    """
    found, problem = [], None
    for gap in (0, 1):
        try:
            found.append(_dealt_with(gap, start, lengths, order, count, overlap))
        except FileFormatError as error:
            problem = error
            continue
        if not found[-1][0]:
            break
    if not found:
        assert problem is not None
        raise problem
    return min(found, key=lambda one: one[0])[1:]


def _dealt_with(
    gap: int, start: Counts, lengths: Counts, order: Counts, count: int, overlap: Callable[[int], Exception]
) -> tuple[int, Counts, list[int]]:
    """Return how many episodes do not begin `gap` steps after a free environment's last; then what `_dealt` returns.

    An episode is that of an environment that became free just then, `gap` steps before it began, or else of the one
    that became free last before it began, or in the step after. Those that are free stand on a stack, last on top,
    the others in a heap by the time at which they become free: one episode takes log(count) comparisons.
    """
    env, gaps, strange = np.zeros(len(start), dtype=np.int64), [], 0
    last: list[int | None] = [None] * count
    first = min(int(start.min()), 0) - gap  # so that first episodes begin just then as well
    free, busy = list[tuple[int, int]](), [(first, -number) for number in range(count - 1, -1, -1)]
    begins, steps = start.tolist(), lengths.tolist()
    for i in order.tolist():
        begin = begins[i]
        _move(busy, free, begin - gap)
        if not free or free[-1][0] != begin - gap:
            strange += 1
            _move(busy, free, begin)
        if not free:
            _move(busy, free, begin + 1)
        if begin < -1 or not free:
            raise overlap(i)
        number = -free.pop()[1]
        since, last[number] = last[number], begin + steps[i]
        if since is not None:
            gaps.append(begin - since)
        env[i] = number
        heappush(busy, (begin + steps[i], -number))
    return strange, env, gaps


def _move(busy: list[tuple[int, int]], free: list[tuple[int, int]], now: int) -> None:
    while busy and busy[0][0] <= now:
        free.append(heappop(busy))


def _gaps_of_own(
    start: Counts, lengths: Counts, order: Counts, own: Counts, overlap: Callable[[int], Exception]
) -> list[int]:
    """Return the steps between two episodes of one environment, where the file says whose they are."""
    gaps, free = [], dict[int, int]()
    begins, steps, envs = start.tolist(), lengths.tolist(), own.tolist()
    for i in order.tolist():
        since = free.get(envs[i])
        if begins[i] < -1 or (since or 0) > begins[i] + 1:
            raise overlap(i)
        if since is not None:
            gaps.append(begins[i] - since)
        free[envs[i]] = begins[i] + steps[i]
    return gaps


def _sorted(
    env: Counts,
    start: Counts,
    length: Counts,
    returns: Array,
    clock: Array | None,
    num_envs: int,
    about: str,
    *,
    same_step: bool = True,
) -> EpisodeLog:
    order = np.argsort(start + length, kind="stable")
    clock = None if clock is None else clock[order]
    return EpisodeLog(env[order], start[order], length[order], returns[order], clock, num_envs, about, same_step)
