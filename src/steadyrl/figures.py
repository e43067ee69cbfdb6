"""Pictures of exact results, drawn with matplotlib (`pip install "steadyrl[report]"`)."""

from __future__ import annotations

import io
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.errors import FigureError, MissingExtraError
from steadyrl.mixing import distances
from steadyrl.perturbation import Perturbation, perturb
from steadyrl.process import LearningProcess
from steadyrl.stationary import average_episode_length
from steadyrl.storage import write_atomically
from steadyrl.tabular import as_policy, extend_policy

Array = NDArray[np.float64]

_FORMATS = (".png", ".svg", ".pdf")
_MOST_STEPS = 100_000
RAW, PERTURBED, QUIET = "#c1440e", "#1f6f8b", "#777777"
"""The colours of what is as it is, of what is cured, and of what only helps the eye."""


def mixing_curves(
    process: LearningProcess,
    policy: ArrayLike,
    perturbation: Perturbation,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    tolerance: float = 0.01,
    episodes: float = 8.0,
) -> None:
    """Draw the distance to the steady state over time, raw and perturbed, in one picture.

    Args:
        process: the learning process.
        policy: [S, A].
        perturbation: what to compare with; its curve is that of the states that are not null.
        path: a .png, .svg or .pdf file.
        title: what the process is.
        tolerance: drawn as a line.
        episodes: how many average episode lengths to show.
    """
    suffix = check_picture(path)
    figure, [axes] = new_figure()
    pi = as_policy(process, policy)
    mean = average_episode_length(process, pi)
    steps = int(min(max(np.ceil(episodes * mean), 20), _MOST_STEPS))
    perturbed = perturb(process, perturbation)
    extended = extend_policy(perturbed, pi)
    time = np.arange(steps + 1) / mean
    raw = distances(process, pi, steps)
    given = distances(perturbed, extended, steps, given_not_null=True)
    axes.plot(time, raw, color=RAW, label=f"as it is: {_crossing(raw, tolerance, mean)}")
    axes.plot(time, given, color=PERTURBED, label=f"perturbed starts: {_crossing(given, tolerance, mean)}")
    axes.axhline(tolerance, color=QUIET, linewidth=0.8, linestyle="--")
    axes.annotate(f"{tolerance:g}", (time[-1], tolerance), color=QUIET, ha="right", va="bottom")
    axes.set_yscale("log")
    axes.set_ylim(max(min(raw.min(), given.min()), tolerance / 30) / 1.5, 1.5)
    axes.set_xlim(0, time[-1])
    axes.set_xlabel("time in average episode lengths, t / E[T]")
    axes.set_ylabel("distance to the steady state (total variation)")
    axes.set_title(f"{title}\nE[T] = {mean:.4g}" if title else f"E[T] = {mean:.4g}", loc="left", fontsize=11)
    axes.legend(frameon=False)
    save_figure(figure, path, suffix)


def _crossing(distance: Array, tolerance: float, mean: float) -> str:
    """Return when the curve stays below the tolerance, as far as it is drawn."""
    above = np.flatnonzero(distance >= tolerance)
    if len(above) and above[-1] == len(distance) - 1:
        return f"above {tolerance:g} all the time"
    return f"below {tolerance:g} from {(above[-1] + 1 if len(above) else 0) / mean:.3g} E[T] on"


def check_picture(path: str | os.PathLike[str]) -> str:
    """Return the file's ending, if a picture can be drawn there: known format, existing folder, matplotlib."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise FigureError(f"{os.fspath(path)!r} is not a picture that can be drawn; end it in {', '.join(_FORMATS)}")
    if not Path(path).parent.is_dir():
        raise FigureError(f"{os.fspath(path)!r} cannot be written: its folder does not exist")
    if find_spec("matplotlib") is None:
        raise MissingExtraError(
            'drawing needs matplotlib, which is not installed: pip install matplotlib (or "steadyrl[report]")'
        )
    return suffix


def save_figure(figure: Any, path: str | os.PathLike[str], suffix: str) -> None:
    """Write a figure, all or nothing."""
    buffer = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
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
