"""Files of what was collected: its arrays, where they came from, and what was left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from steadyrl.common.storage import load_arrays, save_arrays
from steadyrl.errors import FileFormatError
from steadyrl.rollouts.blocks import Arrays, Skipped

T = TypeVar("T")


class Collected(Protocol):
    """What a file says beside its arrays."""

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What failed and was left out."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What determines the data."""


def write_collected(path: str | os.PathLike[str], kind: str, collected: Collected, arrays: Arrays) -> None:
    """Write an npz file, all or nothing."""
    skipped = [asdict(entry) for entry in collected.skipped]
    save_arrays(path, kind, {"provenance": dict(collected.provenance), "skipped": skipped}, arrays)


def read_collected(path: str | os.PathLike[str], kind: str, build: Callable[..., T]) -> T:
    """Return `build(arrays, skipped=..., provenance=...)` of what `write_collected` wrote.

    Raises:
        FileFormatError: if the file is damaged or holds something else.
    """
    header, arrays = load_arrays(path, kind)
    try:
        skipped = tuple(Skipped(**entry) for entry in header["skipped"])
        return build(arrays, skipped=skipped, provenance=header["provenance"])
    except (KeyError, TypeError) as error:
        raise FileFormatError(f"{os.fspath(path)!r} does not hold whole {kind} ({error}); collect again") from error
