"""The measured baseline: the part of the value that is known without a network, a straight line in the steps left.

Where episodes run to a time limit, most of a return is the steps left times the reward per step, which says nothing
about actions. The critic must not learn that line: its returns end with its own predictions, and without a discount a
level that is learnt from them finds its way back from the ends of episodes too slowly, and meanwhile wanders by more
than actions are worth. So the line is measured from the stream of rewards (`of_stream`), or fitted to complete returns
(`through`), and the critic's network predicts only what a state adds to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steadyrl.sspg.recent_episodes import RecentEpisodes

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A return as a linear function of the steps left."""

    end: float
    """The value where no step is left."""
    rate: float
    """The value of each step left."""
    share: float = 1.0
    """The share of states whose episode reaches the time limit; for the others the steps left mean nothing."""


class MeasuredBaseline(nn.Module):
    """The line that the critic's predictions are based on; without a horizon it is zero.

    Times are given as the critic's network sees them: `time_left` runs from 1 (all steps left) to -1 (none left).
    """

    line: Tensor
    """The three numbers of the `Line` that predictions are made with."""

    def __init__(self, horizon: int | None) -> None:
        super().__init__()
        self.horizon = horizon
        self.register_buffer("line", torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))

    @property
    def share(self) -> float:
        """The share of states whose episode reaches the time limit."""
        return float(self.line[2])

    def use(self, line: Line) -> None:
        """Make predictions with this line from now on."""
        self.line.copy_(torch.tensor([line.end, line.rate, line.share], dtype=torch.float64))

    def at(self, time_left: Any, line: Line | None = None) -> Any:
        """Return the baseline, [B], by the line in use or by another one; 0 without a horizon."""
        if self.horizon is None:
            return 0.0
        end, rate = self.line[:2].tolist() if line is None else (line.end, line.rate)
        return end + rate * self.horizon * (1 + time_left) / 2

    def through(self, time_left: Any, returns: Array) -> Line | None:
        """Return the least-squares line through complete returns; None without a horizon."""
        if self.horizon is None:
            return None
        return line_through(self.horizon * (1 + time_left) / 2, returns)

    def of_stream(self, recent: RecentEpisodes) -> Line | None:
        """Return the line that recent rewards and episode lengths promise; None without a horizon.

        One more step left is worth one more reward to a state whose episode reaches its horizon, and nothing to one
        that ends before. So the rate is the reward per step times the share of the former. At steady state the line's
        mean is that of the expected rewards to come at each age,

            promise(a) = sum over k >= a of P(alive at age k | alive at age a) reward(k)

        It is not the line through these promises: where a policy runs into the same end at much the same age, that
        would explain by the age what is the fault of the state, and hide it from the policy.
        """
        if self.horizon is None:
            return None
        late = recent.latest_reward
        if not recent.any_early_ends:
            return Line(0.0, late)
        alive, by_age = recent.alive(), recent.rewards_by_age()
        unseen = max(self.horizon - len(alive), 0)
        acting = float(alive.sum())
        if not acting:
            return Line(0.0, 0.0, 0.0)
        to_the_end = float(alive[min(len(alive), self.horizon) - 1])
        share = self.horizon * to_the_end / (acting + to_the_end * unseen)
        promises = np.cumsum((alive * by_age)[::-1])[::-1] + to_the_end * unseen * late  # times alive
        left = self.horizon - np.arange(len(alive))
        mean_left = float(alive @ left) / acting
        return Line(float(promises.sum()) / acting - late * share * mean_left, late * share, share)


def line_through(left: Array, returns: Array) -> Line:
    """Return the least-squares line; a level one where the steps left do not vary.

    Example:
        >>> line_through(np.array([0.0, 1.0, 2.0]), np.array([3.0, 5.0, 7.0]))
        Line(end=3.0, rate=2.0, share=1.0)
    """
    centre, level = left.mean(), returns.mean()
    spread = ((left - centre) ** 2).mean()
    rate = ((left - centre) * (returns - level)).mean() / spread if spread > 0 else 0.0
    return Line(float(level - rate * centre), float(rate))
