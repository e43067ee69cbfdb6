"""Files that people exchange: npz archives with a JSON header, never pickle, never half-written.

The header holds the SHA-256 digest of every array (of its type, shape and bytes), so that damage anywhere in the file
is noticed when it is loaded: other numbers, arrays that are missing, arrays that were not there. Before an array is
read, its size is compared with that of the file, so that a small or damaged file cannot ask for all memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from steadyrl.common.checks import as_path
from steadyrl.common.files import (
    locked,
    require_plain,
    why_no_such_file,
    why_not_writable,
    write_atomically,
    written_atomically,
)
from steadyrl.errors import FileFormatError

__all__ = [
    "array_digest",
    "from_json",
    "is_joined",
    "load_arrays",
    "locked",
    "pack_archive",
    "plain",
    "read_whole_array",
    "require_reasonable_size",
    "save_arrays",
    "to_json",
    "too_dense",
    "unpack_archive",
    "unprefixed",
    "why_no_such_file",
    "why_not_writable",
    "with_prefix",
    "write_atomically",
    "written_atomically",
]

VERSION = 2
"""Version of the files written; version 1 has no digests."""

MOST, RATIO = 1 << 30, 1000
"""An archive that would unpack to more than 1 GiB and to more than 1000 times its own size is refused."""

_HEADER = "steadyrl"


def save_arrays(path: str | os.PathLike[str], kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write arrays and a JSON header as one npz file; the same content gives the same bytes."""
    write_atomically(path, pack_archive({**header, "kind": kind, "version": VERSION}, arrays))


def load_arrays(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the arrays of a file that `save_arrays` wrote.

    Raises:
        FileFormatError: if the file is damaged, or holds something else.
    """
    path = as_path("path", path, FileFormatError)
    require_plain(path, FileFormatError)
    with open(path, "rb") as file:
        header, arrays = unpack_archive(file, repr(path))
    if header.get("kind") != kind:
        raise FileFormatError(
            f"{os.fspath(path)!r} holds {header.get('kind')!r}, but {kind!r} was expected; "
            "load it with the class that saved it"
        )
    if header.get("version") not in (1, VERSION):
        raise FileFormatError(
            f"{os.fspath(path)!r} has format version {header.get('version')!r} and this steadyrl reads "
            f"versions 1 and {VERSION}; upgrade steadyrl to read it"
        )
    return header, arrays


def pack_archive(header: Mapping[str, Any], arrays: Mapping[str, Any], *, compressed: bool = True) -> bytes:
    """Return an npz archive of arrays, with a JSON header that has their digests."""
    values = {name: np.asarray(value) for name, value in arrays.items()}
    digests = {name: array_digest(value) for name, value in values.items()}
    head = np.array(json.dumps({**header, "arrays": digests}, sort_keys=True))
    content = {_HEADER: head, **values}
    if compressed:
        found = _zipped(content, zipfile.ZIP_DEFLATED)
        if not _too_large(
            sum(value.nbytes for value in content.values()), len(found)
        ):  # or it would be refused on loading
            return found
    return _zipped(content, zipfile.ZIP_STORED)


def _zipped(arrays: Mapping[str, Any], compression: int) -> bytes:
    """Return arrays as an npz archive, with the bytes of numpy's savez.

    An interrupt while a member is being written stays an interrupt. From savez a ValueError would come instead, since
    such an archive cannot be closed.
    """
    buffer = io.BytesIO()
    archive = zipfile.ZipFile(buffer, "w", compression)
    try:
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, value, allow_pickle=False)
        archive.close()
    except BaseException:
        archive.fp = None  # nothing is left to be closed, also when the archive is deleted
        raise
    return buffer.getvalue()


def unpack_archive(file: BinaryIO, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header, without the digests, and the arrays of what `pack_archive` made, or raise FileFormatError."""
    try:
        arrays = _read(file)
        header = json.loads(str(arrays.pop(_HEADER)))
        if not isinstance(header, dict):
            raise TypeError("its header is not an object")
        digests = header.pop("arrays", None)
        if digests is None and header.get("version") != 1:
            raise ValueError("its header has no digests")
        if digests is not None:
            _verify(arrays, digests)
    except MemoryError as error:
        raise FileFormatError(f"{name} holds more than fits into memory, or it is damaged; make it again") from error
    except Exception as error:  # zipfile, zlib and numpy raise a dozen types on damaged files
        raise FileFormatError(
            f"{name} is not a file that steadyrl wrote, or it is damaged ({type(error).__name__}: {error}); "
            "make it again"
        ) from error
    return header, arrays


def read_whole_array(file: BinaryIO) -> Any:
    """Return the array in an npy file, open at its start; raise ValueError if its header does not fit the file's size.

    Where it promises more, numpy would take memory for that; where it promises less, numpy would leave out the rest.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    _require_honest(file, size)
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)


def require_reasonable_size(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError if a zip archive of `size` bytes would unpack to far more than it has reason to."""
    if too_dense(archive, size):
        raise ValueError("it would unpack to more than 1000 times its size")


def too_dense(archive: zipfile.ZipFile, size: int) -> bool:
    """Return whether a zip archive of `size` bytes would unpack to far more than it has reason to."""
    return _too_large(sum(entry.file_size for entry in archive.infolist()), size)


def is_joined(archive: zipfile.ZipFile) -> bool:
    """Return whether something comes before the first array: of files joined into one, zipfile reads only the last."""
    return min((entry.header_offset for entry in archive.infolist()), default=0) > 0


def array_digest(value: Any) -> str:
    """Return the SHA-256 of an array's type, shape and bytes."""
    array = np.asarray(value)
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
    if array.size:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def with_prefix(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays under names "prefix/name", so that several parts fit into one file.

    Example:
        >>> with_prefix("learner", {"weights": 1.0})
        {'learner/weights': 1.0}
    """
    return {f"{prefix}/{name}": value for name, value in arrays.items()}


def unprefixed(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of one part, under their own names: the reverse of `with_prefix`.

    Example:
        >>> unprefixed("learner", {"learner/weights": 1.0, "critic/weights": 2.0})
        {'weights': 1.0}
    """
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: numpy's numbers become Python's, and what is not finite becomes null.

    Example:
        >>> plain({"mixing time": np.inf, "lengths": (np.int64(3),)})
        {'mixing time': None, 'lengths': [3]}
    """
    return _plain(value, lambda number: None if not math.isfinite(number) else number)


def to_json(value: Any, digits: int = 12) -> Any:
    """Return a value as JSON can hold it, with infinities as text and numbers to `digits` digits.

    Example:
        >>> to_json({"mixing time": np.inf, "mean": 0.1 + 0.2})
        {'mixing time': 'inf', 'mean': 0.3}
    """
    return _plain(
        value, lambda number: float(f"{number:.{digits}g}") if math.isfinite(number) else str(number), arrays=True
    )


def from_json(value: Any) -> Any:
    """Return the numbers that `to_json` turned into text as numbers again.

    Example:
        >>> from_json({"mixing time": "inf"})
        {'mixing time': inf}
    """
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def _plain(value: Any, number: Any, *, arrays: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item, number, arrays=arrays) for key, item in value.items()}
    if isinstance(value, list | tuple) or (arrays and isinstance(value, np.ndarray)):
        return [_plain(item, number, arrays=arrays) for item in value]
    if arrays and hasattr(value, "__dataclass_fields__"):
        return _plain(vars(value), number, arrays=arrays)
    if isinstance(value, np.generic):
        value = value.item()
    return number(value) if isinstance(value, float) else value


def _read(file: BinaryIO) -> dict[str, Any]:
    """Return all arrays of an npz archive, after a look at how much they say they hold."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(file) as archive:
        require_reasonable_size(archive, size)
        if is_joined(archive):
            raise ValueError("there is something before its beginning: are these several files, joined into one?")
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name == entry.filename or name in arrays:
                raise ValueError(f"its entry {entry.filename!r} is not an array, or is there twice")
            with archive.open(entry) as content:
                _require_honest(content, entry.file_size)
            with archive.open(entry) as content:
                arrays[name] = npy.read_array(content, allow_pickle=False)
                if content.read(1):
                    raise ValueError(f"its entry {entry.filename!r} holds more than an array")
    return arrays


def _require_honest(content: Any, size: int) -> None:
    """Raise unless an array's header promises as many bytes as there are: numpy takes memory for what it promises."""
    version = npy.read_magic(content)
    reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if reader is None:
        raise ValueError(f"an array has format version {version}")
    shape, _, dtype = reader(content)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != size - content.tell():
        raise ValueError("the header of an array does not fit its size")


def _verify(arrays: Mapping[str, Any], digests: Any) -> None:
    if not isinstance(digests, dict) or set(digests) != set(arrays):
        raise ValueError(f"it should hold {sorted(digests)} and holds {sorted(arrays)}")
    wrong = [name for name, value in arrays.items() if array_digest(value) != digests[name]]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} differ from what was written")


def _too_large(unpacked: int, packed: int) -> bool:
    return unpacked > MOST and unpacked > RATIO * packed
