"""Named arrays of floats with text metadata, as safetensors files."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.common.storage import write_atomically
from steadyrl.errors import FileFormatError


def write_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write float arrays as a safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor, dtype="<f8").tobytes()
        header[name] = {"dtype": "F64", "shape": list(np.shape(tensor)), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    head = json.dumps(header, sort_keys=True).encode()
    head += b" " * (-len(head) % 8)
    write_atomically(path, struct.pack("<Q", len(head)) + head + b"".join(parts))


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays and the metadata of a safetensors file of float32 or float64 tensors."""
    types = {"F64": "<f8", "F32": "<f4"}
    content = Path(path).read_bytes()
    try:
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        body = memoryview(content)[8 + length :]
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise TypeError("its metadata are not an object")
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(body[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is not a safetensors file of floats, or it is damaged ({error})"
        ) from error
    return tensors, metadata
