"""Episode lengths from the logs of training libraries: JSON, JSON lines, RLlib's result.json, TensorBoard.

JSON may be a list of numbers, a list of records, a dictionary of lists or of records, or one record a line. RLlib
writes one line per iteration with the lengths of its episodes under `hist_stats/episode_lengths`; where an iteration
has few episodes, RLlib repeats earlier ones for smoothing, and only the new ones are counted here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from steadyrl.errors import FileFormatError, MissingExtraError
from steadyrl.lengths.columns import find_column
from steadyrl.lengths.records import LoggedLengths

_HISTORIES = ("hist_stats", "env_runners/hist_stats", "sampler_results/hist_stats")
_FRAME = struct.Struct("<QI")  # before a TensorBoard event: its length and a checksum of that; after it come 4 bytes
_NEW = ("episodes_this_iter", "env_runners/episodes_this_iter", "sampler_results/episodes_this_iter")


def read_json(stream: IO[str], where: str, column: str | None) -> LoggedLengths:
    """Return the lengths in a JSON file, or in a file with one JSON value a line."""
    first = stream.readline()
    while first and not first.strip():
        first = stream.readline()
    try:
        head = json.loads(first)
    except (ValueError, RecursionError):
        return _from_value(_parsed(first + stream.read(), where), where, column)
    lines = _json_lines(stream, where)
    second = next(lines, None)
    if second is None:
        return _from_value(head, where, column)
    return _from_records([head, second, *lines], where, column)


def read_events(path: Path, column: str | None) -> LoggedLengths:
    """Return the lengths in a TensorBoard event file: a scalar that is written once per episode."""
    where = repr(str(path))
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    except ImportError as error:
        raise MissingExtraError(
            f'reading {where} needs TensorBoard, which is not installed: pip install tensorboard (or "steadyrl[train]")'
        ) from error
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    size = path.stat().st_size  # of now: a run that goes on may add to the file
    try:
        stopped = sum(_FRAME.size + 4 + len(record) for record in RawEventFileLoader(str(path)).Load())
        events.Reload()
    except Exception as error:  # a damaged file raises what the reader's protocol buffers raise
        raise FileFormatError(f"{where} is not a TensorBoard event file ({error})") from error
    if stopped and not _is_cut(path, stopped, size):
        raise FileFormatError(
            f"{where} is damaged at byte {stopped:,} of {size:,}, and TensorBoard reads nothing from there on; to take "
            f"the episodes before it, copy what is whole to another file: head -c {stopped} (its name has to have "
            "'tfevents' in it, too)"
        )
    tags = events.Tags()
    names = [*tags["scalars"], *tags["tensors"]]
    if not names:
        raise FileFormatError(f"{where} holds no TensorBoard scalars")
    name = names[find_column(names, column, where)]
    if name in tags["scalars"]:
        found = events.Scalars(name)
        values = [event.value for event in found]
    else:
        found = events.Tensors(name)
        values = [_scalar(event.tensor_proto, name, where) for event in found]
    return LoggedLengths(np.array(values, dtype=float), ended=np.array([event.wall_time for event in found]))


def _is_cut(path: Path, place: int, size: int) -> bool:
    """Return whether an event file just ends at a place, or in a record that begins there: a run was killed then."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    with open(path, "rb") as file:
        file.seek(place)
        head = file.read(_FRAME.size)
    if size - place < _FRAME.size:
        return True
    length, checksum = _FRAME.unpack(head)
    return bool(masked_crc32c(head[:8]) == checksum and length + 4 > size - place - _FRAME.size)


def _scalar(tensor: Any, name: str, where: str) -> float:
    from tensorboard.util.tensor_util import make_ndarray

    value = make_ndarray(tensor)
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise FileFormatError(f"{where}: {name!r} is not a scalar")
    return float(value.reshape(()))


def _json_lines(stream: IO[str], where: str) -> Iterator[Any]:
    for number, line in enumerate(stream, start=2):
        if line.strip():
            yield _parsed(line, f"{where}, line {number},")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, brackets in brackets
        raise FileFormatError(f"{where} is not valid JSON ({error})") from error


def _from_value(value: Any, where: str, column: str | None) -> LoggedLengths:
    """Return the lengths in one JSON value."""
    if isinstance(value, list):
        return _from_records(value, where, column)
    if isinstance(value, Mapping):
        if _history(value) is not None:
            return _from_iterations([value], where)
        if value and all(isinstance(entry, Mapping) for entry in value.values()):
            return _from_records(list(value.values()), where, column)
        lists = {name: entry for name, entry in _flat(value).items() if isinstance(entry, list)}
        records = [entry for entry in lists.values() if entry and all(isinstance(one, Mapping) for one in entry)]
        if len(records) == 1:
            return _from_records(records[0], where, column)
        if lists:
            names = list(lists)
            return LoggedLengths(_as_numbers(lists[names[find_column(names, column, where)]], where))
        return _from_records([value], where, column)
    raise FileFormatError(f"{where} holds {type(value).__name__}, not a list of lengths or of records")


def _from_records(records: Sequence[Any], where: str, column: str | None) -> LoggedLengths:
    """Return the lengths in a list of numbers or of records."""
    if not records:
        raise FileFormatError(f"{where} holds no lengths")
    if not any(isinstance(record, Mapping) for record in records):
        return LoggedLengths(_as_numbers(records, where))
    if not all(isinstance(record, Mapping) for record in records):
        raise FileFormatError(f"{where} mixes records and other values; give one kind")
    if any(_history(record) is not None for record in records):
        return _from_iterations(records, where)
    flat = [_flat(record) for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record))
    name = names[find_column(names, column, where)]
    return LoggedLengths(_as_numbers([record[name] for record in flat if name in record], where))


def _from_iterations(records: Sequence[Mapping[str, Any]], where: str) -> LoggedLengths:
    """Return the lengths in RLlib's iterations, each episode once."""
    lengths: list[Any] = []
    before: list[Any] = []
    for record in records:
        flat = _flat(record)
        seen = _history(record) or []
        new = next((flat[name] for name in _NEW if isinstance(flat.get(name), int)), None)
        count = _beyond(before, seen) if new is None else min(new, len(seen))
        lengths += seen[len(seen) - count :]
        before = seen
    return LoggedLengths(_as_numbers(lengths, where))


def _history(record: Mapping[str, Any]) -> list[Any] | None:
    flat = _flat(record)
    for name in _HISTORIES:
        found = flat.get(f"{name}/episode_lengths")
        if isinstance(found, list):
            return found
    return None


def _beyond(before: list[Any], now: list[Any]) -> int:
    """Return how many of the values now are new, if it begins with a repetition of the last ones before.

    The repetition is found in linear time by the table of Knuth, Morris and Pratt: for every place, how many of the
    values up to there are a beginning of `now`.
    """
    values = [*now, object(), *before]  # nothing equals what is in between
    table = [0] * len(values)
    for place in range(1, len(values)):
        size = table[place - 1]
        while size and values[place] != values[size]:
            size = table[size - 1]
        table[place] = size + (values[place] == values[size])
    return len(now) - (table[-1] if before else 0)


def _flat(record: Mapping[str, Any], prefix: str = "", depth: int = 4) -> dict[str, Any]:
    """Return the fields of nested records under names with slashes."""
    result: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping) and depth:
            result |= _flat(value, f"{prefix}{name}/", depth - 1)
        else:
            result[f"{prefix}{name}"] = value
    return result


def _as_numbers(values: Sequence[Any], where: str) -> Any:
    for i, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FileFormatError(f"{where}: entry {i} is {value!r:.80}, not a length")
    try:
        return np.array(values, dtype=float)
    except OverflowError as error:
        raise FileFormatError(f"{where} holds numbers that cannot be lengths ({error})") from error
