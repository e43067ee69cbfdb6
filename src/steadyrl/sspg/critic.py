"""The critic: V(s), the expected return to the end of the episode, by a network of its own.

Where the environment has a time limit that counts as an end, what is left to gain depends on the steps left, which are
part of the learning process's state though not of the observation; so the critic also sees the age (the policy
does not). Most of a return is the steps left times the reward per step, which says nothing about actions, and needs no
network: it is measured (`RunningLength.line`). So

    V(s) = a line in the steps left, as measured + deviation * what a network makes of the state.

The critic must not learn that line. Its returns end with its own predictions, and without a discount a level that is
learnt from them finds its way back from the ends of episodes too slowly, and meanwhile wanders, by more than actions
are worth. So what returns are above the line on average is taken off them, and a trend in the time left, too.

All this holds as far as episodes go to their time limit. If they end before, by what they did, the steps left mean
nothing; but they go along with the states that lead to the end, so a critic that sees them blames the age, finds all
actions equally good, and the policy stays where it is. So the line, the trend and what is shown of the age go by the
share of states whose episode goes to the limit (`Line.share`): where that is 0 the critic sees the observation alone.

Without a time limit there is no line, and the level is a running average of returns. When deviation or level move, the
last layer is rescaled, which leaves the predictions as they are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steadyrl.errors import TrainingError
from steadyrl.policies.modules import forward, linears, network
from steadyrl.policies.networks import HIDDEN
from steadyrl.sspg.line import Line, line_through

Array = NDArray[np.float64]

_PACE = 0.05  # weight of an update's returns in the running mean and deviation
_SMALLEST = 1e-4  # deviation of returns below which they count as constant
_FLAT = 1e-6  # variance of the time left below which it has no slope
_MINIBATCH = 256
_DOUBT = 4  # the age is shown to the network times share^4: in trials on CartPole-v1 (100,000 steps) 8 of 8 seeds were
# solved so, 4 of 5 with share^1, 3 of 5 without the age


class Critic(nn.Module):
    """V(s), of normalised observations and, with a horizon, of the age."""

    line: Tensor
    """Where no step is left, for each step left, and for which share of states: as measured last (`Line`)."""
    moments: Tensor
    """How many updates, and running means of y, y^2, x, x^2, x y: returns above the line y, time left x."""

    def __init__(self, size: int, horizon: int | None, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.horizon = horizon
        """Steps after which an episode is over in any case; None where nobody knows, or it is not an end."""
        inputs = size + (horizon is not None)
        self.layers = network((inputs, HIDDEN, HIDDEN, 1), rng=rng, last_gain=1.0)
        self.register_buffer("line", torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
        self.register_buffer("moments", torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))

    def inputs(self, features: Array, ages: NDArray[np.int64]) -> Any:
        """Return [B, inputs] in single precision: features [B, d] and, with a horizon, the time left, from 1 to -1."""
        if self.horizon is None:
            return features.astype(np.float32)
        left = 1.0 - (ages.reshape(-1, 1) - 1) / self.horizon
        return np.concatenate([features, 2.0 * left - 1.0], axis=1, dtype=np.float32)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's share of the predictions, in units of the deviation, [B]."""
        if self.horizon is not None:
            shown = float(self.line[2]) ** _DOUBT
            inputs = torch.cat([inputs[:, :-1], inputs[:, -1:] * shown], dim=1)
        return forward(self.layers, inputs)[:, 0]

    def values(self, inputs: Any) -> Array:
        """Return V, [B]."""
        with torch.no_grad():
            found = self(torch.as_tensor(inputs, device=self.moments.device))
        level, _, deviation = self.apart()
        result: Array = found.double().cpu().numpy() * deviation + self.on_line(inputs)
        return result if self.horizon is not None else result + level

    def on_line(self, inputs: Any, line: Line | None = None) -> Any:
        """Return what the line measured last says, or another one, [B]; 0 without a horizon."""
        if self.horizon is None:
            return 0.0
        end, rate = self.line[:2].tolist() if line is None else (line.end, line.rate)
        return end + rate * self.horizon * (1 + self._time_left(inputs)) / 2

    def line_through(self, inputs: Any, returns: Array) -> Line | None:
        """Return the line through returns that do not end with a prediction."""
        if self.horizon is None:
            return None
        return line_through(self.horizon * (1 + self._time_left(inputs)) / 2, returns)

    def _time_left(self, inputs: Any) -> Any:
        return np.zeros(len(inputs)) if self.horizon is None else inputs[:, -1].astype(float)

    def apart(self) -> tuple[float, float, float]:
        """How far returns are above the line: in the middle of the horizon, the slope, the deviation from both.

        Of a slope only the share counts in which episodes go to the time limit: the rest is for the network to explain.
        """
        _, y, yy, x, xx, xy = self.moments.tolist()
        share = float(self.line[2])
        spread = max(xx - x * x, 0.0)
        slope = (xy - x * y) / spread if spread > _FLAT else 0.0
        rest = yy - y * y - share * (2 - share) * slope**2 * spread
        return y - share * slope * x, share * slope, max(math.sqrt(max(rest, 0.0)), _SMALLEST)

    def rescale(self, inputs: Any, apart: Array, share: float = 1.0) -> None:
        """Move level and deviation towards these returns above the line, and keep all predictions."""
        first = not float(self.moments[0])
        old_level, _, old_deviation = self.apart()
        left = self._time_left(inputs)
        pace = max(_PACE, 1 / (1 + float(self.moments[0])))
        seen = [v.mean() for v in (apart, apart**2, left, left**2, left * apart)]
        self.moments[1:] += pace * (torch.as_tensor(seen, device=self.moments.device) - self.moments[1:])
        self.moments[0] += 1
        self.line[2] = share
        if first:
            return  # nothing has been learnt that would be lost
        level, _, deviation = self.apart()
        moved = old_level - level if self.horizon is None else 0.0
        last = linears(self.layers)[-1]
        with torch.no_grad():
            last.weight *= old_deviation / deviation
            last.bias.copy_((last.bias * old_deviation + moved) / deviation)

    def fit(
        self,
        inputs: Any,
        apart: Array,
        optimiser: torch.optim.Optimizer,
        passes: int,
        *,
        line: Line | None = None,
        rng: np.random.Generator,
    ) -> float:
        """Take least-squares steps; return the mean squared error, in units of the variance.

        Args:
            inputs: [B, inputs].
            apart: [B], returns above the line; if they end with a prediction, above that which it was made with.
            optimiser: of the network's weights.
            passes: over the data.
            line: as measured now; it holds for the next predictions.
            rng: of the minibatches.
        """
        self.rescale(inputs, apart, 1.0 if line is None else line.share)
        middle, slope, deviation = self.apart()
        goal = (apart - middle - slope * self._time_left(inputs)) / deviation
        goal = torch.as_tensor(goal.astype(np.float32), device=self.moments.device)
        seen = torch.as_tensor(inputs, device=self.moments.device)
        losses = []
        parts = max(1, round(len(apart) / _MINIBATCH))
        for _ in range(passes):
            for rows in torch.as_tensor(rng.permutation(len(apart)), device=seen.device).chunk(parts):
                loss = (self(seen[rows]) - goal[rows]).square().mean()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                losses.append(loss.detach())
        found = float(torch.stack(losses).mean())
        if not math.isfinite(found):
            raise TrainingError(f"the critic's loss is {found}; a smaller critic_learning_rate would help")
        if line is not None:
            self.line.copy_(torch.tensor([line.end, line.rate, line.share], dtype=torch.float64))
        return found
