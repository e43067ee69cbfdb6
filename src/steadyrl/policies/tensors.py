"""Named arrays of floats with text metadata, as safetensors files that know when they are damaged.

The metadata hold the SHA-256 digest of all names, types, shapes and bytes of the arrays and of all other metadata,
since safetensors itself has no checksum: a changed weight would load as another weight.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from steadyrl.common.storage import array_digest, write_atomically
from steadyrl.errors import FileFormatError

DIGEST = "sha256"
"""The name of the digest in the metadata; files of earlier versions have none."""


def write_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write float arrays as a safetensors file; the same content gives the same bytes."""
    arrays = {name: np.ascontiguousarray(tensor, dtype="<f8") for name, tensor in tensors.items()}
    words = {name: str(text) for name, text in metadata.items() if name != DIGEST}
    write_atomically(path, _in_order(save(arrays, {**words, DIGEST: content_digest(arrays, words)})))


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays and the metadata, without the digest, of a safetensors file of float32 or float64 tensors.

    Raises:
        FileFormatError: if it is not such a file, or does not have the digest that its metadata say.
    """
    try:
        with open(path, "rb"), safe_open(os.fspath(path), framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        if any(tensor.dtype not in (np.float32, np.float64) for tensor in tensors.values()):
            raise TypeError(f"it holds {sorted({str(tensor.dtype) for tensor in tensors.values()})}")
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is not a safetensors file of floats, or it is damaged ({error})"
        ) from error
    expected = metadata.pop(DIGEST, None)
    renamed = expected is None and any(re.fullmatch("[0-9a-f]{64}", text) for text in metadata.values())
    if renamed or expected not in (None, content_digest(tensors, metadata)):
        raise FileFormatError(
            f"{os.fspath(path)!r} is damaged: its content does not have the digest that was written with it; save the "
            "policy again"
        )
    return tensors, metadata


def content_digest(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of all names, types, shapes, bytes and metadata, whatever their order."""
    content = {"tensors": {name: array_digest(tensor) for name, tensor in tensors.items()}, "metadata": dict(metadata)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _in_order(content: bytes) -> bytes:
    """Return a safetensors file with its header sorted: the library writes metadata in an order that changes."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]
