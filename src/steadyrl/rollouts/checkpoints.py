"""Finished blocks on disk, so that an interrupted run can go on.

One file, only ever appended to: a line that says what it is, then records of (length, checksum, content). The
first record is what the run is; each further one is a block. A record that was being written when the
power went is recognised by its checksum and dropped.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.errors import FileFormatError, RolloutError
from steadyrl.rollouts.blocks import Arrays, Skipped

_MAGIC = b"steadyrl checkpoint 1\n"
_RECORD = struct.Struct("<QI")


class Checkpoint:
    """The finished blocks of one run."""

    def __init__(self, path: str | os.PathLike[str], manifest: Mapping[str, Any], *, resume: bool) -> None:
        self.path = Path(path)
        self._places: dict[int, tuple[int, int]] = {}
        if self.path.exists():
            self._file = open(self.path, "r+b")  # noqa: SIM115  (closed by close)
            try:
                self._go_on(dict(manifest), resume)
            except BaseException:
                self._file.close()
                raise
        else:
            if resume:
                raise RolloutError(f"there is nothing to resume: {str(self.path)!r} does not exist; run without resume")
            self._file = open(self.path, "x+b")  # noqa: SIM115
            self._begin(manifest)

    @property
    def blocks(self) -> list[int]:
        """The blocks that are here."""
        return list(self._places)

    def write(self, block: Arrays) -> None:
        """Add a block."""
        header = {"block": block["block"], "skipped": [asdict(entry) for entry in block["skipped"]]}
        arrays = {name: value for name, value in block.items() if name not in header}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)
        self._places[int(block["block"])] = self._append(buffer.getvalue())

    def read(self, block: int) -> Arrays:
        """Return a block."""
        place, length = self._places[block]
        self._file.seek(place)
        return _decode(self._file.read(length))

    def close(self) -> None:
        """Close the file, which stays if there is a block in it."""
        if not self._places:
            self.remove()
        self._file.close()

    def remove(self) -> None:
        """Delete the file: the run is complete."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _begin(self, manifest: Mapping[str, Any]) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(_MAGIC)
        self._append(json.dumps(manifest, sort_keys=True).encode())

    def _append(self, content: bytes) -> tuple[int, int]:
        self._file.seek(0, os.SEEK_END)
        self._file.write(_RECORD.pack(len(content), zlib.crc32(content)) + content)
        self._file.flush()
        return self._file.tell() - len(content), len(content)

    def _go_on(self, manifest: dict[str, Any], resume: bool) -> None:
        head = self._file.read(len(_MAGIC))
        if not _MAGIC.startswith(head):
            raise FileFormatError(f"{str(self.path)!r} is not a checkpoint of steadyrl; delete it or use another name")
        records = self._scan() if head == _MAGIC else []
        if len(records) < 2:  # it was interrupted before its first block was finished: there is nothing to lose
            self._begin(manifest)
            return
        if not resume:
            raise RolloutError(
                f"{str(self.path)!r} holds {len(records) - 1} finished blocks of an interrupted run; go on from them "
                "with resume=True (--resume), or delete the file"
            )
        self._compare(json.loads(self._content(records[0])), manifest)
        for record in records[1:]:
            self._take(record, manifest)

    def _take(self, record: tuple[int, int], manifest: dict[str, Any]) -> None:
        """Use a block again, if the run has it: the short last one of a smaller total is another."""
        block = _decode(self._content(record))
        size, total = int(manifest["block_size"]), int(manifest["total"])
        first = int(block["block"]) * size
        count = len(block["lengths"] if "lengths" in block else block["ages"]) + len(block["skipped"])
        if first + count > total:
            raise self._too_few(first + count, total)
        if count == min(size, total - first):
            self._places[int(block["block"])] = record

    def _scan(self) -> list[tuple[int, int]]:
        """Return place and length of every whole record, and cut off what follows them."""
        records: list[tuple[int, int]] = []
        while True:
            place = self._file.tell()
            head = self._file.read(_RECORD.size)
            length, checksum = _RECORD.unpack(head) if len(head) == _RECORD.size else (0, 0)
            content = self._file.read(length)
            if len(head) < _RECORD.size or len(content) < length or zlib.crc32(content) != checksum:
                self._file.truncate(place)
                return records
            records.append((place + _RECORD.size, length))

    def _content(self, record: tuple[int, int]) -> bytes:
        self._file.seek(record[0])
        return self._file.read(record[1])

    def _compare(self, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        ours = json.loads(json.dumps(ours))
        differ = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        if [key for key in differ if key != "total"]:
            shown = ", ".join(f"{key}: {theirs.get(key)!r} then, {ours.get(key)!r} now" for key in differ)
            raise RolloutError(
                f"{str(self.path)!r} is of another run ({shown}); its blocks would not fit; repeat the first command "
                "with --resume, or delete the file"
            )
        if ours["total"] < theirs["total"]:
            raise self._too_few(theirs["total"], ours["total"])

    def _too_few(self, theirs: int, ours: int) -> RolloutError:
        return RolloutError(
            f"{str(self.path)!r} is of a run of {theirs:,}, and {ours:,} are asked for now, so finished blocks would "
            f"be thrown away; go on with {theirs:,} or more, or delete the file"
        )


def _decode(content: bytes) -> Arrays:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays: Arrays = {name: archive[name] for name in archive.files}
    header = json.loads(str(arrays.pop("header")))
    return {"block": header["block"], "skipped": [Skipped(**entry) for entry in header["skipped"]], **arrays}
