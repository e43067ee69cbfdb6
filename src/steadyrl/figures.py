"""Pictures of exact results, drawn with matplotlib (`pip install "steadyrl[report]"`)."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.errors import MissingExtraError, SteadyrlError
from steadyrl.mixing import distances
from steadyrl.perturbation import Perturbation, perturb
from steadyrl.process import LearningProcess
from steadyrl.stationary import average_episode_length
from steadyrl.storage import write_atomically
from steadyrl.tabular import as_policy

Array = NDArray[np.float64]

_FORMATS = (".png", ".svg", ".pdf")
_MOST_STEPS = 100_000
_RAW, _PERTURBED, _QUIET = "#c1440e", "#1f6f8b", "#777777"


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
    suffix = check_format(path)
    figure, axes = _new_figure()
    pi = as_policy(process, policy)
    mean = average_episode_length(process, pi)
    steps = int(min(max(np.ceil(episodes * mean), 20), _MOST_STEPS))
    perturbed = perturb(process, perturbation)
    n_null = perturbed.n_states - process.n_states
    extended = np.vstack([pi, np.full((n_null, process.n_actions), 1 / process.n_actions)])
    time = np.arange(steps + 1) / mean
    raw = distances(process, pi, steps)
    given = distances(perturbed, extended, steps, given_not_null=True)
    axes.plot(time, raw, color=_RAW, label="as it is")
    label = "perturbed" if perturbation.epsilon is None else f"perturbed, $\\epsilon$ = {perturbation.epsilon:.4g}"
    axes.plot(time, given, color=_PERTURBED, label=label)
    axes.axhline(tolerance, color=_QUIET, linewidth=0.8, linestyle="--")
    axes.annotate(f"{tolerance:g}", (time[-1], tolerance), color=_QUIET, ha="right", va="bottom")
    axes.set_yscale("log")
    axes.set_ylim(max(min(raw.min(), given.min()), tolerance / 30) / 1.5, 1.5)
    axes.set_xlim(0, time[-1])
    axes.set_xlabel("time in average episode lengths, t / E[T]")
    axes.set_ylabel("distance to the steady state (total variation)")
    axes.set_title(f"{title}\nE[T] = {mean:.4g}" if title else f"E[T] = {mean:.4g}", loc="left", fontsize=11)
    axes.legend(frameon=False)
    save_figure(figure, path, suffix)


def check_format(path: str | os.PathLike[str]) -> str:
    """Return the file's ending, if a picture can be written under it."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise SteadyrlError(f"{os.fspath(path)!r} is not a picture that can be drawn; end it in {', '.join(_FORMATS)}")
    return suffix


def save_figure(figure: Any, path: str | os.PathLike[str], suffix: str) -> None:
    """Write a figure, all or nothing."""
    buffer = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix)
    figure.savefig(buffer, format=suffix[1:], dpi=160, bbox_inches="tight", metadata=metadata)
    write_atomically(path, buffer.getvalue())


def _new_figure() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            'drawing needs matplotlib, which is not installed; pip install "steadyrl[report]"'
        ) from error
    figure = Figure(figsize=(7.2, 4.2))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
    return figure, axes
