"""A figure of how a process approaches its steady state, drawn with matplotlib."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.detours import Perturbation
from steadyrl.common.figures import PERTURBED, QUIET, RAW, check_picture, new_figure, save_figure
from steadyrl.common.terminal import clean
from steadyrl.exact.mixing import distances
from steadyrl.exact.perturb import perturb
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.stationary import average_episode_length
from steadyrl.exact.tabular import as_policy, extend_policy

Array = NDArray[np.float64]

_MOST_STEPS = 100_000


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
    """Draw the distance to the steady state over time, for the raw and the perturbed process, in one figure.

    Args:
        process: the learning process.
        policy: probabilities [S, A] of the actions in each state.
        perturbation: the perturbation to compare with; its curve is the distance given that the state is not null.
        path: the .png, .svg or .pdf file to write.
        title: the title of the figure, such as the name of the process.
        tolerance: the distance at which to draw a dashed line.
        episodes: the length of the time axis, in mean episode lengths.
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
    axes.set_xlabel("time in mean episode lengths, t / E[T]")
    axes.set_ylabel("distance to the steady state (total variation)")
    heading = clean(f"{title}\nE[T] = {mean:.4g}" if title else f"E[T] = {mean:.4g}")
    axes.set_title(heading, loc="left", fontsize=11, parse_math=False)  # dollars in a file name are dollars
    axes.legend(frameon=False)
    save_figure(figure, path, suffix)


def _crossing(distance: Array, tolerance: float, mean: float) -> str:
    """Return from when on the curve stays below the tolerance, as far as it is drawn."""
    above = np.flatnonzero(distance >= tolerance)
    if len(above) and above[-1] == len(distance) - 1:
        return f"above {tolerance:g} all the time"
    return f"below {tolerance:g} from {(above[-1] + 1 if len(above) else 0) / mean:.3g} E[T] on"
