"""Episode lengths from the files that people have; no environment needs to be installed to read them.

Text and csv (`text_files`), Stable-Baselines3's monitor.csv and a directory of them, its evaluations.npz, JSON, JSON
lines, RLlib's result.json and TensorBoard event files (`log_files`), npy arrays, and what `Episodes.save` wrote.
Lengths are Gymnasium's: the number of actions in an episode.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import as_path, shown
from steadyrl.common.storage import is_joined, load_arrays, read_whole_array, too_dense, write_atomically
from steadyrl.errors import FileFormatError, LengthsError
from steadyrl.lengths.age_sums import AgeSums
from steadyrl.lengths.columns import find_column
from steadyrl.lengths.distribution import EpisodeLengths, as_gymnasium_lengths
from steadyrl.lengths.log_files import read_events, read_json
from steadyrl.lengths.records import EpisodeRecords, LoggedLengths
from steadyrl.lengths.text_files import UNORDERED, read_text, with_digest

PathLike = str | os.PathLike[str]

FORMATS = (
    "text or csv, monitor.csv or a directory of them, json, jsonl, RLlib's result.json, TensorBoard event files, "
    "evaluations.npz, npy, or what Episodes.save wrote"
)
"""What can be read, for messages and help texts."""
_IN_DIRECTORY = ("*monitor.csv", "result.json", "*tfevents*", "evaluations.npz")  # the first kind that is there is read
_COLLECTED = {"lengths", "terminated", "truncated", "seeds"}  # arrays of what Episodes.save wrote, besides its header
_EVALUATIONS = {"timesteps", "results", "ep_lengths"}  # arrays of Stable-Baselines3's evaluations.npz
_UNPACKED = 1 << 32  # bytes; a larger array in an archive is refused
_PIPED = 1 << 30  # bytes that are taken from standard input


def read_lengths(paths: PathLike | Sequence[PathLike], *, column: str | int | None = None) -> EpisodeRecords:
    """Return the episodes in one or several files.

    Lengths are in the order in which the episodes ended where the files tell it: episodes of several monitor.csv or
    event files that were written at the same time, as those of parallel environments are, are merged by the time of
    their end; others are runs that follow each other as the files were given.

    Args:
        paths: A file, a directory, or several of them; "-" is standard input.
        column: Name of the column (or tag, or field) with the lengths, or its index in a csv, counted from 0. None
            finds it by a name such as l, length, ep_len or episode_length.

    Raises:
        FileFormatError: If a file cannot be read, or holds something other than lengths.
        MissingExtraError: If TensorBoard is needed and not installed.
    """
    if isinstance(column, bool) or not (column is None or isinstance(column, str | int)):
        raise FileFormatError(f"column is {shown(column)}; give a name, or an index counted from 0")
    if not isinstance(paths, str | os.PathLike | list | tuple):
        raise FileFormatError(f"path is {shown(paths)}; it must be the name of a file or folder, or a list of names")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise FileFormatError("no files were given; give at least one with episode lengths")
    files = [file for path in given for file in _files(path)]
    if len(files) == 1 and str(files[0]) != "-" and _opening(files[0]).startswith(b"PK"):
        return _from_archive(files[0], column)
    parts = [_checked(_read(file, column), file) for file in files]
    return _joined(parts, files)


def load_lengths(path: PathLike | Sequence[PathLike], *, column: str | int | None = None) -> EpisodeLengths:
    """Return the distribution of T in one or several files of episodes or lengths (see `read_lengths`).

    Raises:
        FileFormatError: If a file cannot be read, or holds something other than lengths.
    """
    return EpisodeLengths.from_gymnasium(read_lengths(path, column=column).lengths)


def write_lengths(lengths: EpisodeLengths, episodes: int, path: PathLike) -> None:
    """Write Gymnasium's lengths of the episodes in which the distribution was observed, one a line, shortest first."""
    counts = np.rint(lengths.probabilities * episodes).astype(np.int64)
    numbers = np.repeat(np.arange(len(counts)) - 1, counts)
    text = with_digest(f"# episode lengths (actions), {UNORDERED}", [str(number) for number in numbers])
    write_atomically(path, text.encode())


def _files(path: PathLike) -> list[Path]:
    """Return the files that a path stands for: itself, or those of the first known kind in a directory."""
    file = Path(as_path("path", path, FileFormatError))
    if str(file) == "-" != str(path):
        file = file.absolute()  # ./- is a file of that name, not standard input
    try:
        if str(path) == "-" or file.is_file():
            return [file]
        known = file.is_dir()
    except OSError:  # a name that is too long for any file
        known = False
    if not known:
        raise FileFormatError(
            f"{shown(os.fspath(path), 300)} is not a file or directory; give episode lengths as {FORMATS}"
        )
    for pattern in _IN_DIRECTORY:
        found = sorted(inside for inside in file.glob(pattern) if inside.is_file())
        if found:
            return found
    raise FileFormatError(
        f"the directory {os.fspath(path)!r} has no monitor.csv, result.json, TensorBoard event file or "
        "evaluations.npz; name the file with the lengths"
    )


def _read(file: Path, column: str | int | None) -> LoggedLengths:
    """Return the lengths in one file, whose kind is seen from its first bytes."""
    where = "standard input" if str(file) == "-" else repr(str(file))
    if "tfevents" in file.name:
        return read_events(file, _name(column))
    try:
        with _open(file) as stream:
            head = stream.peek(64)[:64].lstrip()
            if head.startswith(b"PK") and str(file) == "-":
                raise FileFormatError("standard input is an npz archive; give the name of the file instead")
            if head.startswith(b"PK"):
                found = _from_archive(file, column)
                return LoggedLengths(found.lengths, found.environment, sb3=found.sb3)
            if head.startswith(b"\x93NUMPY"):
                return LoggedLengths(_array(stream, where))
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline=None)
            if head.startswith((b"{", b"[")):
                return read_json(text, where, _name(column))
            return read_text(text, where, column)
    except (UnicodeDecodeError, OSError) as error:
        raise FileFormatError(f"{where} is not a text file ({error})") from error


def _open(file: Path) -> io.BufferedReader:
    if str(file) == "-":
        if sys.stdin is None:
            raise FileFormatError("there is no standard input to read from; name a file instead")
        content = sys.stdin.buffer.read(_PIPED + 1)
        if len(content) > _PIPED:
            raise FileFormatError(f"standard input has more than {_PIPED:,} bytes; give the name of a file instead")
        return io.BufferedReader(io.BytesIO(content))
    return open(file, "rb")


def _opening(file: Path) -> bytes:
    try:
        with open(file, "rb") as stream:
            return stream.read(2)
    except OSError as error:
        raise FileFormatError(f"{str(file)!r} cannot be read ({error.strerror})") from error


def _name(column: str | int | None) -> str | None:
    if isinstance(column, int):
        raise FileFormatError(f"column is {column}, but only csv and text files have numbered columns; give a name")
    return column


def _array(stream: BinaryIO, where: str) -> Any:
    try:
        return read_whole_array(stream).reshape(-1)
    except Exception as error:  # NumPy parses the header as Python, which raises a dozen types
        raise FileFormatError(f"{where} is not an array of lengths ({error})") from error


def _checked(found: LoggedLengths, file: Path) -> LoggedLengths:
    where = "standard input" if str(file) == "-" else repr(str(file))
    try:
        lengths = as_gymnasium_lengths(found.lengths)
    except LengthsError as error:
        raise FileFormatError(f"{where}: {error}") from error
    return replace(found, lengths=lengths)


def _joined(parts: list[LoggedLengths], files: list[Path]) -> EpisodeRecords:
    """Return the episodes of all files, in the order of their ends where all files tell it."""
    lengths = np.concatenate([part.lengths for part in parts])
    ordered = all(part.ordered for part in parts)
    runs = tuple(len(part.lengths) for part in parts) if ordered else ()
    clocks = [part.ended for part in parts if part.ended is not None and np.isfinite(part.ended).all()]
    if ordered and len(parts) > 1 and len(clocks) == len(parts) and _at_the_same_time(clocks):
        lengths = lengths[np.argsort(np.concatenate(clocks), kind="stable")]
        runs = (len(lengths),)
    names = list(dict.fromkeys(part.environment for part in parts if part.environment))
    standard = ["standard input" if str(file) == "-" else file.name for file in files]
    fallback = standard[0] if len(files) == 1 else f"{len(files)} files"
    return EpisodeRecords(
        environment=", ".join(names) or fallback,
        policy="unknown",
        lengths=lengths,
        runs=runs,
        sorted=not ordered,
        sb3=any(part.sb3 for part in parts),
        files=tuple(str(file) for file in files),
    )


def _at_the_same_time(clocks: list[NDArray[np.float64]]) -> bool:
    """Return whether the files were written side by side: each begins before those that began earlier have ended."""
    spans = sorted((float(clock.min()), float(clock.max())) for clock in clocks)
    ended = spans[0][1]
    for begun, end in spans[1:]:
        if begun > ended:
            return False
        ended = max(ended, end)
    return True


def _from_archive(file: Path, column: str | int | None) -> EpisodeRecords:
    """Return what `Episodes.save` wrote, or the lengths in another npz file, such as SB3's evaluations.npz."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            size = max((entry.file_size for entry in archive.infolist()), default=0)
            dense, joined = too_dense(archive, os.path.getsize(file)), is_joined(archive)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        return _from_collected(file)  # which says what is wrong
    if "steadyrl" in names or not names or set(names) >= _COLLECTED:  # without its header it is damaged
        return _from_collected(file)
    if joined:
        raise FileFormatError(
            f"{str(file)!r} has something before its beginning, as when several files are joined into one, of which "
            "only the last could be read; name each file (--from may be repeated)"
        )
    name = names[find_column(names, _name(column), repr(str(file)))]
    if size > _UNPACKED or dense:
        raise FileFormatError(f"{str(file)!r} would unpack to {size:,} bytes; that cannot be a list of lengths")
    try:
        with np.load(file, allow_pickle=False) as archive:
            values = np.asarray(archive[name]).reshape(-1)
    except Exception as error:  # zipfile, zlib and numpy raise a dozen types on damaged files
        raise FileFormatError(f"{str(file)!r} is damaged ({error})") from error
    return _joined([_checked(LoggedLengths(values, sb3=set(names) >= _EVALUATIONS), file)], [file])


def _from_collected(file: Path) -> EpisodeRecords:
    """Return the episodes that `Episodes.save` wrote."""
    header, arrays = load_arrays(file, "episodes")
    try:
        lengths, truncated, origin = arrays["lengths"], arrays["truncated"], header["provenance"]
        skipped = [str(entry["message"]) for entry in header["skipped"]]
        limit, environment, policy = (origin.get(name) for name in ("max_episode_steps", "environment", "policy"))
        if not (
            lengths.ndim == 1
            and lengths.shape == truncated.shape
            and lengths.dtype.kind in "iu"
            and truncated.dtype.kind == "b"
        ):
            raise ValueError("lengths and truncated are not one number and one flag for each episode")
        if (lengths < 0).any():
            raise ValueError("a length is negative")
        if not isinstance(origin.get("versions", {}), dict):
            raise ValueError("its versions are not those of packages")
        ages = None
        if any(name.startswith("ages_") for name in arrays):
            ages = AgeSums(arrays["ages_count"], arrays["ages_total"], arrays["ages_total_squares"])
            ages.require_sums_of(lengths)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileFormatError(f"{os.fspath(file)!r} does not hold whole episodes ({error}); collect again") from error
    if not len(lengths):
        raise FileFormatError(f"{os.fspath(file)!r} holds no episodes")
    return EpisodeRecords(
        environment="unknown" if environment is None else str(environment),
        policy="unknown" if policy is None else str(policy),
        lengths=lengths,
        truncated=truncated,
        groups=() if ages is None else (ages,),
        time_limit=int(limit) if isinstance(limit, int) and truncated.any() else None,
        skipped=len(skipped),
        first_failure=skipped[0] if skipped else "",
        provenance=dict(origin),
        files=(str(file),),
    )
