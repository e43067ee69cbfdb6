"""What a log will show: the mean over finished episodes relative to the truth, over time, for the report.

It is computed from the lengths alone (`finished_mean`), with a reward of 1 in each step.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.lengths.finished_bias import finished_mean

_POINTS = 240
_SPAN = 10.0  # mean episode lengths shown
_MOST = 200_000  # steps that are computed; where episodes are very long, fewer of them are shown
_WRONG = 0.05

Start = Literal["together", "steady"]


def logged_bias(lengths: EpisodeLengths) -> dict[str, dict[str, list[float]]] | None:
    """Return, for both starts, times in mean episode lengths and the share of the truth that a log shows then.

    None if every episode is a reset alone.
    """
    if lengths.mean <= 1:
        return None
    steps = max(min(int(_SPAN * lengths.mean), _MOST), 2)
    return {start: _curve(lengths, steps, start) for start in ("together", "steady")}


def _curve(lengths: EpisodeLengths, steps: int, start: Start) -> dict[str, list[float]]:
    shown = finished_mean(lengths, steps, start=start) / (lengths.mean - 1)
    at = np.unique(np.linspace(1, steps, _POINTS).astype(int))
    at = at[np.isfinite(shown[at])]
    return {"x": _short(at / lengths.mean), "y": _short(shown[at])}


def logged_bias_text(curves: dict[str, dict[str, list[float]]]) -> str:
    """Return the sentence above the picture."""
    x, y = (np.array(curves["together"][name]) for name in ("x", "y"))
    text = (
        "Logs such as ep_rew_mean average over finished episodes. Short ones finish first, so after environments are "
        "reset together the log shows this share of the true mean (for a reward of 1 in each step). "
    )
    wrong = np.flatnonzero(np.abs(y - 1) > _WRONG)
    if not len(x):
        return text + "No episode finishes within the time shown."
    if not len(wrong):
        return text + f"For these episodes it is right within {_WRONG:.0%} from the first end on."
    until = "beyond the time shown" if wrong[-1] == len(x) - 1 else f"until {x[wrong[-1]]:.2g} mean episode lengths"
    worst = y[wrong[np.argmax(np.abs(y[wrong] - 1))]]
    return text + (
        f"Here it is as wrong as {worst:.0%} of the truth, and more than {_WRONG:.0%} off {until}. Dashed: a log that "
        "begins at steady state. FairStatistics is right all along."
    )


def _short(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
