"""Reads logs of episodes with their place in time: who ran them, when they began and ended, and their return.

A Monitor file has the episodes of one environment one after the other, so each begins where the last one ended. A
directory of such files has one environment per file. Other csv files say at which step each episode ended, and episodes
are then dealt out to environments so that none overlap.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import as_path, whole_number
from steadyrl.errors import FileFormatError
from steadyrl.lengths.columns import find_column

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_RETURNS = ("r", "return", "returns", "reward", "ep_rew", "ep_return", "episode_return", "episodic_return", "score")
_STEPS = ("step", "steps", "global_step", "end", "ended", "timestep", "timesteps", "total_steps")
_ENVS = ("env", "env_index", "env_id", "environment", "worker")
_FASTEST = 1e6  # steps per second; no single environment in Python is faster
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
    files = _files(path)
    tables = [_read(file) for file in files]
    if len(tables) > 1:
        return _of_monitors(tables, files)
    table = tables[0]
    if table.steps is None:
        if num_envs not in (None, 1):
            raise FileFormatError(
                f"{files[0].name} does not say at which step each episode ended, so the episodes of {num_envs} "
                "environments cannot be told apart; log with a Monitor around each environment, or give a csv with a "
                "column `step`"
            )
        _refuse_mixed(table, files[0])
        return _of_monitors(tables, files)
    return _of_steps(table, files[0], num_envs)


@dataclass(frozen=True)
class _Table:
    lengths: Counts
    returns: Array
    clock: Array | None
    steps: Array | None
    envs: NDArray[Any] | None


def _files(path: Any) -> list[Path]:
    given = list(path) if isinstance(path, list | tuple) else [path]
    found: list[Path] = []
    for one in (Path(as_path("log", name, FileFormatError)) for name in given):
        inside = sorted(one.glob("*monitor.csv"), key=_by_number) if one.is_dir() else [one]
        if not inside:
            raise FileFormatError(f"the directory {str(one)!r} has no monitor.csv; name the file with the episodes")
        found += inside
    if not found:
        raise FileFormatError("no log was given; give a monitor.csv, or a directory of them")
    return found


def _by_number(file: Path) -> tuple[int, str]:
    number = file.name.split(".")[0]
    return (int(number) if number.isdigit() else -1, file.name)


def _read(file: Path) -> _Table:
    where = repr(str(file))
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.reader(line for line in stream if not line.startswith("#")) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"{where} cannot be read as csv ({error})") from error
    if not rows:
        raise FileFormatError(f"{where} is empty; it must have a line of names and one line for each episode")
    names, body = [name.strip() for name in rows[0]], rows[1:]
    if body and len(body[-1]) < len(names):
        body = body[:-1]  # a run that was killed while it wrote
    if not body:
        raise FileFormatError(f"{where} has no episodes")
    length = find_column(names, None, where)
    returns = _column(names, _RETURNS)
    if returns is None:
        raise FileFormatError(f"{where} has no column of returns, such as {', '.join(_RETURNS[:3])}")
    places = {"t": _column(names, ("t",)), "steps": _column(names, _STEPS)}
    lengths = _numbers(body, length, names, where)
    if not ((lengths >= 1) & (lengths == np.floor(lengths)) & (lengths < 2**40)).all():
        raise FileFormatError(f"{where} has lengths that are not whole numbers, 1 or more")
    env = _column(names, _ENVS)
    return _Table(
        lengths.astype(np.int64),
        _numbers(body, returns, names, where),
        None if places["t"] is None else _numbers(body, places["t"], names, where),
        None if places["steps"] is None else _numbers(body, places["steps"], names, where),
        None if env is None else np.array([row[env] for row in body]),
    )


def _column(names: Sequence[str], wanted: Sequence[str]) -> int | None:
    plain = [name.rsplit("/", 1)[-1].strip().lower() for name in names]
    return next((plain.index(name) for name in wanted if name in plain), None)


def _numbers(body: list[list[str]], column: int, names: Sequence[str], where: str) -> Array:
    try:
        values = np.array([float(row[column]) for row in body])
    except (ValueError, IndexError) as error:
        raise FileFormatError(f"{where}: column {names[column]!r} has something that is no number ({error})") from error
    if not np.isfinite(values).all():
        raise FileFormatError(f"{where}: column {names[column]!r} has a value that is not finite")
    return values


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


def _of_monitors(tables: list[_Table], files: list[Path]) -> EpisodeLog:
    env = np.repeat(np.arange(len(tables)), [len(table.lengths) for table in tables])
    start = np.concatenate([np.cumsum(table.lengths) - table.lengths for table in tables])
    clocks = [table.clock for table in tables if table.clock is not None]
    clock = np.concatenate(clocks) if len(clocks) == len(tables) else None
    kind = f"{len(files)} files, one environment each" if len(files) > 1 else f"{files[0].name}, one environment"
    lengths, returns = (np.concatenate([getattr(table, name) for table in tables]) for name in ("lengths", "returns"))
    return _sorted(env, start, lengths, returns, clock, len(tables), kind)


def _of_steps(table: _Table, file: Path, num_envs: int | None) -> EpisodeLog:
    """Deal out episodes to environments: each to the one that became free last before it began.

    Loggers disagree by a step about when an episode ended, and whether a reset takes a step. So the episodes of an
    environment are then laid end to end, with a step in between if most had one.
    """
    assert table.steps is not None
    known = None if table.envs is None else np.unique(table.envs, return_inverse=True)
    count = num_envs if num_envs is not None else 1 if known is None else len(known[0])
    count = whole_number("num_envs", count, FileFormatError)
    own = known[1] if known is not None and len(known[0]) == count else None
    start = np.rint(table.steps / count).astype(np.int64) - table.lengths
    order = np.argsort(start, kind="stable")
    free, env, gaps = np.zeros(count, dtype=np.int64), np.zeros(len(start), dtype=np.int64), []
    for i in order:
        ready = np.flatnonzero(free <= start[i] + 1)
        ready = ready if own is None else ready[ready == own[i]]
        if start[i] < -1 or not len(ready):
            raise FileFormatError(
                f"{file.name}: the episode of {table.lengths[i]} steps that ended at step {table.steps[i]:.0f} "
                f"overlaps with those of all {count} environments; steps are counted over all environments together, "
                "so give their number: num_envs=... (--num-envs)"
            )
        env[i] = ready[np.argmax(free[ready])]
        if free[env[i]]:
            gaps.append(start[i] - free[env[i]])
        free[env[i]] = start[i] + table.lengths[i]
    gap = int(bool(gaps) and float(np.median(gaps)) >= 1)
    free[:] = 0
    for i in order:
        start[i] = free[env[i]]
        free[env[i]] = start[i] + table.lengths[i] + gap
    about = f"{file.name}, {count} environments"
    return _sorted(env, start, table.lengths, table.returns, table.clock, count, about, same_step=not gap)


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
