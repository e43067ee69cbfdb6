"""Episode lengths from the files that people have: no environment needs to be installed to read them.

`.npz`: what `Episodes.save` wrote. `.npy`: an array of lengths. Text and csv: one length a line, or a column called
`l`, `length` or `lengths`, with or without the first line that Stable-Baselines3's Monitor writes. Lengths are
Gymnasium's.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.storage import load_arrays, write_atomically
from steadyrl.errors import FileFormatError, LengthsError
from steadyrl.lengths.age_sums import AgeSums
from steadyrl.lengths.distribution import EpisodeLengths, as_gymnasium_lengths
from steadyrl.lengths.records import EpisodeRecords

_NAMES = ("l", "length", "lengths", "episode_length", "episode_lengths")
_LARGEST = 1 << 30


def read_lengths(path: str | os.PathLike[str]) -> EpisodeRecords:
    """Return what a file says of episodes.

    Raises:
        FileFormatError: if the file is none of these, or holds something that is no length.
    """
    file = Path(path)
    if not file.is_file():
        raise FileFormatError(f"{os.fspath(path)!r} is not a file; give .npz, .npy, .txt or .csv with episode lengths")
    if file.suffix == ".npz":
        return _from_collected(file)
    environment = file.name
    if file.suffix == ".npy":
        try:
            values = np.load(file, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise FileFormatError(f"{os.fspath(path)!r} is not an array of lengths ({error})") from error
    else:
        values, monitored = _from_text(file)
        environment = monitored or environment
    try:
        lengths = as_gymnasium_lengths(values)
    except LengthsError as error:
        raise FileFormatError(f"{os.fspath(path)!r}: {error}") from error
    if lengths.max() > _LARGEST:
        raise FileFormatError(f"{os.fspath(path)!r} has an episode of {lengths.max()} actions; that cannot be a length")
    return EpisodeRecords(environment, "unknown", lengths, np.zeros(len(lengths), dtype=bool))


def load_lengths(path: str | os.PathLike[str]) -> EpisodeLengths:
    """Return the distribution of T in a file of episodes or lengths: what `steadyrl diagnose --from` reads.

    `.npz`: saved `Episodes`; `.npy`, text, csv (Stable-Baselines3's monitor.csv too): Gymnasium's lengths.

    Raises:
        FileFormatError: if the file is none of these, or holds something that is no length.
    """
    return EpisodeLengths.from_gymnasium(read_lengths(path).lengths)


def write_lengths(lengths: EpisodeLengths, episodes: int, path: str | os.PathLike[str]) -> None:
    """Write Gymnasium's lengths of the episodes that the distribution was observed in, one a line, shortest first."""
    counts = np.rint(lengths.probabilities * episodes).astype(np.int64)
    numbers = np.repeat(np.arange(len(counts)) - 1, counts)
    write_atomically(path, "".join(f"{number}\n" for number in numbers).encode())


def _from_collected(file: Path) -> EpisodeRecords:
    """What `Episodes.save` wrote."""
    header, arrays = load_arrays(file, "episodes")
    try:
        lengths, truncated, origin = arrays["lengths"], arrays["truncated"], header["provenance"]
        skipped = [entry["message"] for entry in header["skipped"]]
        ages = None
        if "ages_count" in arrays:
            ages = AgeSums(arrays["ages_count"], arrays["ages_total"], arrays["ages_total_squares"])
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{os.fspath(file)!r} does not hold whole episodes ({error}); collect again") from error
    if not len(lengths):
        raise FileFormatError(f"{os.fspath(file)!r} holds no episodes")
    limit = origin.get("max_episode_steps")
    return EpisodeRecords(
        environment=str(origin.get("environment", "unknown")),
        policy=str(origin.get("policy", "unknown")),
        lengths=lengths,
        truncated=truncated,
        groups=() if ages is None else (ages,),
        time_limit=int(limit) if isinstance(limit, int) and truncated.any() else None,
        skipped=len(skipped),
        first_failure=skipped[0] if skipped else "",
        provenance=dict(origin),
    )


def _from_text(file: Path) -> tuple[NDArray[np.float64], str | None]:
    """The numbers of a text or csv file, and the environment if a Monitor wrote it."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (UnicodeDecodeError, OSError) as error:
        raise FileFormatError(f"{os.fspath(file)!r} is not a text file ({error})") from error
    environment = None
    if lines and lines[0].startswith("#"):
        try:
            environment = json.loads(lines[0][1:]).get("env_id")
        except (json.JSONDecodeError, AttributeError):
            environment = None
        lines = lines[1:]
    if not lines:
        raise FileFormatError(f"{os.fspath(file)!r} holds no lengths")
    rows = list(csv.reader(lines)) if "," in lines[0] else [line.split() for line in lines]
    names = [word.strip().strip('"').lower() for word in rows[0]]
    column = next((names.index(name) for name in _NAMES if name in names), None)
    try:
        if column is not None:
            return np.array([float(row[column]) for row in rows[1:]]), environment
        return np.array([float(word) for row in rows for word in row]), environment
    except (ValueError, IndexError) as error:
        raise FileFormatError(
            f"{os.fspath(file)!r} is not a list of lengths ({error}); give one number a line, or a csv with a column "
            f"named {', '.join(_NAMES)}"
        ) from error
