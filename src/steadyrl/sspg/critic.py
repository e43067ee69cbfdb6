"""The critic: V(s), the expected return to the end of the episode, by a network of its own.

Where the environment has a time limit that counts as an end, what is left to gain depends on the steps left, which are
part of the learning process's state though not of the observation; so the critic also sees the age (the policy
does not). Most of a return is the steps left times the reward per step, which says nothing about actions and needs no
network: it is measured (`RunningLength.line`). So

    V(s) = a line in the time left, as measured + a trend, as learnt + deviation * what a network makes of the state.

Returns end with the critic's own predictions, so without a discount a level that is learnt only slowly finds its way
back from the ends of episodes, and meanwhile wanders, by far more than actions matter. Where every episode goes to its
time limit, the line is all there is to know about the level, and no trend is added to it. Where episodes end by
themselves, a line says too little, and so the trend is learnt, a running average of how far returns are from the line.
Whenever that or the deviation moves, the last layer is rescaled, which leaves the predictions as they are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from steadyrl.errors import TrainingError
from steadyrl.policies import forward, linears, network
from steadyrl.rollouts.policies import HIDDEN
from steadyrl.sspg.line import FLAT, Line, time_left

Array = NDArray[np.float64]

_PACE = 0.05  # weight of an update's returns in the running mean and deviation
_SMALLEST = 1e-4  # deviation of returns below which they count as constant
_MINIBATCH = 256


class Critic(nn.Module):
    """V(s), of normalised observations and, with a horizon, of the age."""

    line: Tensor
    """As measured: in the middle of the horizon, and the slope in the time left."""
    trend: Tensor
    """What is added to the line, likewise."""
    moments: Tensor
    """How many updates, and running means of y, y^2, x, x^2, x y: returns above the line y, time left x."""

    def __init__(self, size: int, horizon: int | None, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.horizon = horizon
        """Steps after which an episode is over in any case; None where nobody knows, or it is not an end."""
        inputs = size + (horizon is not None)
        self.layers = network((inputs, HIDDEN, HIDDEN, 1), rng=rng, last_gain=1.0)
        self.slope = nn.Parameter(torch.zeros(()))
        self.register_buffer("line", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("trend", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("moments", torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))

    def inputs(self, features: Array, ages: NDArray[np.int64]) -> Any:
        """Return [B, inputs] in single precision: features [B, d] and, with a horizon, the time left, from 1 to -1."""
        if self.horizon is None:
            return features.astype(np.float32)
        return np.concatenate([features, time_left(ages.reshape(-1, 1), self.horizon)], axis=1, dtype=np.float32)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's share of the predictions, in units of the deviation, [B]."""
        found = forward(self.layers, inputs)[:, 0]
        return found if self.horizon is None else found + self.slope * inputs[:, -1]

    def values(self, inputs: Any) -> Array:
        """Return V, [B]."""
        with torch.no_grad():
            found = self(torch.as_tensor(inputs, device=self.moments.device))
        _, _, deviation = self.apart()
        result: Array = found.double().cpu().numpy() * deviation + self.above(inputs, self.trend) + self.on_line(inputs)
        return result

    def on_line(self, inputs: Any, line: Line | None = None) -> Any:
        """Return what the line measured last says, or another, [B]; 0 without a horizon."""
        return self.above(inputs, self.line if line is None else (line.middle, line.slope))

    def above(self, inputs: Any, line: Any) -> Any:
        """Return a line at these inputs, [B]."""
        middle, slope = (float(value) for value in line)
        return middle + slope * self._left(inputs)

    def _left(self, inputs: Any) -> Any:
        return np.zeros(len(inputs)) if self.horizon is None else inputs[:, -1].astype(float)

    def apart(self) -> tuple[float, float, float]:
        """How far returns are from the line: in the middle, and the slope; and their deviation from both."""
        _, y, yy, x, xx, xy = self.moments.tolist()
        spread = max(xx - x * x, 0.0)
        slope = (xy - x * y) / spread if spread > FLAT else 0.0
        rest = yy - y * y - slope**2 * spread
        return y - slope * x, slope, max(math.sqrt(max(rest, 0.0)), _SMALLEST)

    def rescale(self, inputs: Any, apart: Array, *, certain: bool = False) -> None:
        """Move trend and deviation towards these distances from the line, and keep all predictions.

        If the line is certain there is no trend, and what the network says of one is not kept either.
        """
        first = not float(self.moments[0])
        _, _, old_deviation = self.apart()
        left = self._left(inputs)
        pace = max(_PACE, 1 / (1 + float(self.moments[0])))
        seen = [v.mean() for v in (apart, apart**2, left, left**2, left * apart)]
        self.moments[1:] += pace * (torch.as_tensor(seen, device=self.moments.device) - self.moments[1:])
        self.moments[0] += 1
        middle, slope, deviation = self.apart()
        old = self.trend.clone()
        self.trend.copy_(torch.tensor([0.0, 0.0] if certain else [middle, slope]))
        if first:
            return  # nothing has been learnt that would be lost
        moved = (0.0, 0.0) if certain else (old - self.trend).tolist()
        last = linears(self.layers)[-1]
        with torch.no_grad():
            last.weight *= old_deviation / deviation
            last.bias.copy_((last.bias * old_deviation + moved[0]) / deviation)
            self.slope.copy_((self.slope * old_deviation + moved[1]) / deviation)

    def fit(
        self,
        inputs: Any,
        apart: Array,
        optimiser: torch.optim.Optimizer,
        passes: int,
        *,
        line: Line | None,
        rng: np.random.Generator,
    ) -> float:
        """Take least-squares steps; return the mean squared error, in units of the variance.

        Args:
            inputs: [B, inputs].
            apart: [B], returns above the line: that which they ended with where they ended with a prediction.
            optimiser: of the network's weights.
            passes: over the data.
            line: as measured now; it holds for the next predictions.
            rng: of the minibatches.
        """
        self.rescale(inputs, apart, certain=line is not None and line.certain)
        middle, slope, deviation = self.apart()
        goal = (apart - self.above(inputs, (middle, slope))) / deviation
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
            self.line.copy_(torch.tensor([line.middle, line.slope]))
        return found
