"""Files that people exchange: npz and JSON, never pickle, never half-written."""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from steadyrl.errors import FileFormatError

_HEADER = "steadyrl"


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` under a temporary name beside `path`, then rename it: all or nothing."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder of {os.fspath(path)!r} does not exist")
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def why_not_writable(directory: Path) -> str | None:
    """Return why no file can be written in a directory; None if one can."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or str(error)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: numpy's numbers as Python's, and null for what is not finite.

    Example:
        >>> plain({"mixing time": np.inf, "lengths": (np.int64(3),)})
        {'mixing time': None, 'lengths': [3]}
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_arrays(path: str | os.PathLike[str], kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write arrays and a JSON header as one npz file; the same content gives the same bytes."""
    buffer = io.BytesIO()
    head = json.dumps({"kind": kind, "version": 1, **header}, sort_keys=True)
    np.savez_compressed(buffer, allow_pickle=False, **{_HEADER: np.array(head)}, **arrays)
    write_atomically(path, buffer.getvalue())


def load_arrays(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the arrays of a file that `save_arrays` wrote."""
    with open(path, "rb") as file:
        try:
            header, arrays = _read(file)
        except Exception as error:  # zipfile, zlib and numpy raise a dozen types on damaged files
            raise FileFormatError(
                f"{os.fspath(path)!r} is not a file that steadyrl wrote, or it is damaged ({type(error).__name__}); "
                "make it again"
            ) from error
    if header.get("kind") != kind:
        raise FileFormatError(
            f"{os.fspath(path)!r} holds {header.get('kind')!r}, but {kind!r} was expected; "
            "load it with the class that saved it"
        )
    if header.get("version") != 1:
        raise FileFormatError(
            f"{os.fspath(path)!r} has format version {header.get('version')!r} and this steadyrl reads "
            "version 1; upgrade steadyrl to read it"
        )
    return header, arrays


def _read(file: BinaryIO) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(str(arrays.pop(_HEADER)))
    if not isinstance(header, dict):
        raise TypeError("its header is not an object")
    return header, arrays


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
