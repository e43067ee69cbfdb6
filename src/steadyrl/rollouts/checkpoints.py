"""Finished blocks on disk, so that an interrupted run can be resumed.

A checkpoint is one file that is only ever appended to: a line that says what it is, then records. The first record is
the manifest, which says what the run is; each further one is a block, with the digest of the manifest that it was
collected under. Only one run at a time may have the file open.

    record = marker, length, checksum of the content, checksum of these three; then the content

A record that was being written when the process was killed is the last one and too short: it is dropped. Anything else
that does not fit its checksum is damage. Damage is reported, the blocks after it are found again by their markers, and
those that were lost are run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from steadyrl.common.files import open_locked
from steadyrl.common.storage import pack_archive, unpack_archive
from steadyrl.errors import FileFormatError, RolloutError
from steadyrl.rollouts.blocks import Arrays, Skipped

_MAGIC = b"steadyrl checkpoint 2\n"
_FAMILY = b"steadyrl checkpoint "
_MARKER = b"\xc5rec"
_CODE = {"environment_digest": "environment", "policy_digest": "policy"}
_EDITED = (
    "; the {whose}'s code, or a value that it reads, is not what it was: bring it back, or, if it is one that changes "
    "while it runs (a counter, a cache), give the {whose} an attribute steadyrl_identity, any text, for the next run"
)
_RECORD = struct.Struct("<4sQI")
_CHECK = struct.Struct("<I")
_HEAD = _RECORD.size + _CHECK.size


class Checkpoint:
    """The finished blocks of one run.

    Args:
        path: the file. It is locked as long as the checkpoint is open.
        manifest: what determines the run's data, and its `total`, which may grow when a run is resumed.
        resume: whether finished blocks in the file are used. If not, a file that has any is refused.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: Mapping[str, Any], *, resume: bool) -> None:
        self.path = Path(os.fsdecode(path))
        self.damage: list[str] = []
        """What was found to be damaged in the file, in sentences."""
        self._places: dict[int, tuple[int, int]] = {}
        self._run = _digest(manifest)
        if resume and not self.path.exists():
            raise RolloutError(f"there is nothing to resume: {str(self.path)!r} does not exist; run without resume")
        self._file = open_locked(self.path)
        try:
            self._go_on(dict(manifest), resume)
        except BaseException:
            self._file.close()
            raise

    @property
    def blocks(self) -> list[int]:
        """The numbers of the blocks that are in the file."""
        return list(self._places)

    def write(self, block: Arrays) -> None:
        """Append a block."""
        header = {"block": int(block["block"]), "skipped": [asdict(entry) for entry in block["skipped"]]}
        arrays = {name: value for name, value in block.items() if name not in header}
        content = pack_archive({**header, "run": self._run, "version": 2}, arrays, compressed=False)
        self._places[int(block["block"])] = self._append(content)

    def read(self, block: int) -> Arrays:
        """Return a block."""
        return self._decode(self._places[block])

    def close(self) -> None:
        """Close the file. It stays if it holds a block, or damage that somebody may want to look at."""
        if not self._places and not self.damage and not self._file.closed:
            self._unlink()
        self._file.close()

    def remove(self) -> None:
        """Delete the file: what was collected is safe elsewhere."""
        self._unlink()
        self._file.close()

    def _unlink(self) -> None:
        """Delete the file by its name, unless another run's has come into its place: somebody moved or deleted ours."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path)):
                self.path.unlink(missing_ok=True)

    def _begin(self, manifest: Mapping[str, Any]) -> None:
        try:
            self._file.seek(0)
            self._file.truncate()
            self._write(_MAGIC)
            self._append(json.dumps(manifest, sort_keys=True).encode())
        except BaseException:  # a full disk: half a beginning is of no use to anybody
            self._unlink()
            raise

    def _append(self, content: bytes) -> tuple[int, int]:
        place = self._file.seek(0, os.SEEK_END)
        head = _RECORD.pack(_MARKER, len(content), zlib.crc32(content))
        self._write(head + _CHECK.pack(zlib.crc32(head)) + content)
        return place + _HEAD, len(content)

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(self.path)) from error

    def _go_on(self, manifest: dict[str, Any], resume: bool) -> None:
        """Find out what the file holds, and go on from there."""
        head = self._file.read(len(_MAGIC))
        if not _MAGIC.startswith(head):
            raise FileFormatError(
                f"{str(self.path)!r} is a checkpoint of another version of steadyrl, or damaged; finish the run with "
                "that version, or delete the file"
                if head.startswith(_FAMILY)
                else f"{str(self.path)!r} is not a checkpoint of steadyrl; delete it or use another name"
            )
        found = _scan(self._file) if head == _MAGIC else Found([], [], 0)
        self.damage = [
            f"{stop - start:,} bytes of {str(self.path)!r}, from byte {start:,} on, are damaged: the blocks in them "
            "are run again"
            for start, stop in found.damaged
        ]
        about = [record for record in found.records if self._content(record)[:1] == b"{"]
        blocks = [record for record in found.records if record not in about]
        if not blocks and self.damage:
            raise FileFormatError(
                f"{str(self.path)!r} is damaged, and no finished block in it can be read; it is left as it is: delete "
                "it, or use another name"
            )
        if not blocks:  # the run was interrupted before its first block was finished: there is nothing to lose
            self._begin(manifest)
            return
        if not resume:
            raise RolloutError(
                f"{str(self.path)!r} holds {len(blocks)} finished blocks of an interrupted run; go on from them "
                "with resume=True (--resume), or delete the file"
            )
        for record in about[:1]:
            self._compare(json.loads(self._content(record)), manifest)
        for record in blocks:
            self._take(record, manifest)
        self._file.truncate(found.end)

    def _take(self, record: tuple[int, int], manifest: dict[str, Any]) -> None:
        """Use a block again, if this run has it: the short last block of a smaller total is another one."""
        block = self._decode(record)
        size, total = int(manifest["block_size"]), int(manifest["total"])
        first = int(block["block"]) * size
        count = len(block["lengths"] if "lengths" in block else block["ages"]) + len(block["skipped"])
        if first + count > total:
            raise self._too_few(first + count, total)
        if count == min(size, total - first):
            self._places[int(block["block"])] = record

    def _decode(self, record: tuple[int, int]) -> Arrays:
        header, arrays = unpack_archive(io.BytesIO(self._content(record)), f"a block in {str(self.path)!r}")
        if header.get("run") != self._run:
            raise RolloutError(
                f"{str(self.path)!r} holds blocks of another run; its blocks would not fit; delete the file, or use "
                "another name"
            )
        return {"block": header["block"], "skipped": [Skipped(**entry) for entry in header["skipped"]], **arrays}

    def _content(self, record: tuple[int, int]) -> bytes:
        self._file.seek(record[0])
        content = bytearray()
        while len(content) < record[1] and (part := self._file.read(record[1] - len(content))):
            content += part
        return bytes(content)

    def _compare(self, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        ours = json.loads(json.dumps(ours))
        differ = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        if [key for key in differ if key != "total"]:
            shown = ", ".join(f"{key}: {theirs.get(key)!r} then, {ours.get(key)!r} now" for key in differ)
            edited = "".join(_EDITED.format(whose=whose) for key, whose in _CODE.items() if key in differ)
            raise RolloutError(
                f"{str(self.path)!r} is of another run ({shown}); its blocks would not fit{edited}; repeat the first "
                "command with --resume, or delete the file"
            )
        if ours["total"] < theirs["total"]:
            raise self._too_few(theirs["total"], ours["total"])

    def _too_few(self, theirs: int, ours: int) -> RolloutError:
        return RolloutError(
            f"{str(self.path)!r} is of a run of {theirs:,}, and {ours:,} are asked for now, so finished blocks would "
            f"be thrown away; go on with {theirs:,} or more, or delete the file"
        )


class Found(NamedTuple):
    """What a checkpoint's file holds."""

    records: list[tuple[int, int]]
    """Place and length of the content of every record that is whole."""
    damaged: list[tuple[int, int]]
    """First byte, and the one after the last, of what is neither a record nor the beginning of one."""
    end: int
    """Where the file ends, without the beginning of a record at its end."""


def _scan(file: Any) -> Found:
    """Look through a file for records."""
    records: list[tuple[int, int]] = []
    damaged: list[tuple[int, int]] = []
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place, size = len(_MAGIC), len(content)
        while place < size:
            length = _length(content, place)
            if size - place < _HEAD or (length is not None and length > size - place - _HEAD):
                return Found(records, damaged, place)
            if length is not None:
                start, stop = place + _HEAD, place + _HEAD + length
                if zlib.crc32(content[start:stop]) == _RECORD.unpack_from(content, place)[2]:
                    records.append((start, length))
                else:
                    damaged.append((place, stop))
            else:
                stop = content.find(_MARKER, place + 1)
                while stop >= 0 and _length(content, stop) is None:
                    stop = content.find(_MARKER, stop + 1)
                stop = size if stop < 0 else stop
                damaged.append((place, stop))
            place = stop
        return Found(records, damaged, size)


def _length(content: Any, place: int) -> int | None:
    """Return the length that a record's head at this place gives, or None if there is no head."""
    head = content[place : place + _HEAD]
    if len(head) < _HEAD or head[:4] != _MARKER or _CHECK.unpack(head[-4:])[0] != zlib.crc32(head[:-4]):
        return None
    return int(_RECORD.unpack(head[:-4])[1])


def _digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what determines a run's blocks: all but their number."""
    content = {key: value for key, value in manifest.items() if key != "total"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
