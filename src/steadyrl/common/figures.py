"""Figures drawn with matplotlib in the house style (`pip install "steadyrl[report]"`)."""

from __future__ import annotations

import io
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import as_path, shown
from steadyrl.common.storage import why_no_such_file, write_atomically
from steadyrl.errors import FigureError, MissingExtraError

Array = NDArray[np.float64]

_FORMATS = (".png", ".svg", ".pdf")
RAW, PERTURBED, QUIET = "#c1440e", "#1f6f8b", "#777777"
"""The colours of the process as it is, of the perturbed or cured one, and of guide lines."""


def check_picture(path: str | os.PathLike[str]) -> str:
    """Return the file's suffix; raise unless its format is known, it can be written and matplotlib is installed."""
    path = as_path("path", path, FigureError)
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise FigureError(
            f"{shown(os.fspath(path), 300)} is not a known picture format; the name must end in {', '.join(_FORMATS)}"
        )
    if not Path(path).parent.is_dir():
        raise FigureError(f"{os.fspath(path)!r} cannot be written: its folder does not exist")
    reason = why_no_such_file(path)
    if reason is not None:
        raise FigureError(f"{shown(os.fspath(path), 300)} cannot be written ({reason}); name another file")
    if find_spec("matplotlib") is None:
        raise MissingExtraError(
            'drawing needs matplotlib, which is not installed: pip install matplotlib (or "steadyrl[report]")'
        )
    return suffix


def save_figure(figure: Any, path: str | os.PathLike[str], suffix: str) -> None:
    """Write a figure, always with the same bytes; the file is replaced only once the new one is complete."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    with rc_context({"svg.hashsalt": "steadyrl"}):  # else matplotlib gives the parts of an svg random names
        figure.savefig(buffer, format=suffix[1:], dpi=160, bbox_inches="tight", metadata=metadata)
    write_atomically(path, buffer.getvalue())


def new_figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (7.2, 4.2)) -> tuple[Any, list[Any]]:
    """Return an empty figure in the house style and its axes, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained" if rows * columns > 1 else None)
    FigureCanvasAgg(figure)
    every = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for axes in every:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
    return figure, every
