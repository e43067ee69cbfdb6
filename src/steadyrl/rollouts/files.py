"""Files of collected data: the arrays, what determines them, and which episodes were left out."""

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
    """What a file holds besides its arrays."""

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Episodes or rollouts that failed and were left out."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What determines the data."""


def write_collected(path: str | os.PathLike[str], kind: str, collected: Collected, arrays: Arrays) -> None:
    """Write an npz file, which is replaced only once it is complete."""
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
        if not isinstance(header["provenance"], dict):
            raise TypeError("its provenance is not an object")
        return build(arrays, skipped=skipped, provenance=dict(header["provenance"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{os.fspath(path)!r} does not hold whole {kind} ({error}); collect again") from error
