"""The critic: V(s), the expected return to the end of the episode, by a network of its own.

Where the environment has a time limit that counts as an end, what is left to gain depends on the steps left, which are
part of the learning process's state though not of the observation; so the critic also sees the age (the policy
does not). Most of a return that a time limit ends is the steps left times the reward per step, which says nothing about
actions; so a network predicts only how far returns are from a straight line in the time left, in units of their
deviation from it. Where does the line come from?

- Where every episode goes to its time limit it is known: the reward per step, as measured, times the steps left.
  The critic must not learn it then. Returns end with the critic's own predictions, and without a discount a level that
  is learnt from them finds its way back from the ends of episodes too slowly, and meanwhile wanders, by more than
  actions are worth.
- Otherwise it is a running average of the line through the returns. Whenever that moves, the last layer is rescaled,
  which leaves all predictions as they are.
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

Array = NDArray[np.float64]

_PACE = 0.05  # weight of an update's returns in the running mean and deviation
_SMALLEST = 1e-4  # deviation of returns below which they count as constant
_FLAT = 1e-6  # variance of the time left below which it has no slope
_MINIBATCH = 256


class Critic(nn.Module):
    """V(s), of normalised observations and, with a horizon, of the age."""

    rate: Tensor
    """Reward per step where it is known to last up to the horizon, or was last known."""
    trend: Tensor
    """The line in the time left that comes on top of the rate: in the middle, and the slope."""
    moments: Tensor
    """How many updates, and running means of y, y^2, x, x^2, x y: returns y, less the rate's share; time left x."""

    def __init__(self, size: int, horizon: int | None, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.horizon = horizon
        """Steps after which an episode is over in any case; None where nobody knows, or it is not an end."""
        inputs = size + (horizon is not None)
        self.layers = network((inputs, HIDDEN, HIDDEN, 1), rng=rng, last_gain=1.0)
        self.slope = nn.Parameter(torch.zeros(()))
        self.register_buffer("rate", torch.zeros((), dtype=torch.float64))
        self.register_buffer("trend", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("moments", torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))

    def inputs(self, features: Array, ages: NDArray[np.int64]) -> Any:
        """Return [B, inputs] in single precision: features [B, d] and, with a horizon, the time left, from 1 to -1."""
        if self.horizon is None:
            return features.astype(np.float32)
        left = 1.0 - (ages.reshape(-1, 1) - 1) / self.horizon
        return np.concatenate([features, 2.0 * left - 1.0], axis=1, dtype=np.float32)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's share of the predictions, in units of the deviation, [B]."""
        found = forward(self.layers, inputs)[:, 0]
        return found if self.horizon is None else found + self.slope * inputs[:, -1]

    def values(self, inputs: Any) -> Array:
        """Return V, [B]."""
        with torch.no_grad():
            found = self(torch.as_tensor(inputs, device=self.moments.device))
        middle, slope = self.trend.tolist()
        line = middle + slope * self._left(inputs) + self._promised(inputs)
        result: Array = found.double().cpu().numpy() * self.apart()[2] + line
        return result

    def _left(self, inputs: Any) -> Any:
        """The time left, from 1 to -1, [B]."""
        return np.zeros(len(inputs)) if self.horizon is None else inputs[:, -1].astype(float)

    def _promised(self, inputs: Any) -> Any:
        """The rate times the steps left, [B]."""
        return 0.0 if self.horizon is None else float(self.rate) * self.horizon * (1 + self._left(inputs)) / 2

    def apart(self) -> tuple[float, float, float]:
        """The running line through what the rate leaves of returns: in the middle, the slope, the deviation from it."""
        _, y, yy, x, xx, xy = self.moments.tolist()
        spread = max(xx - x * x, 0.0)
        slope = (xy - x * y) / spread if spread > _FLAT else 0.0
        rest = yy - y * y - slope**2 * spread
        return y - slope * x, slope, max(math.sqrt(max(rest, 0.0)), _SMALLEST)

    def rescale(self, inputs: Any, apart: Array, *, known: bool = False) -> None:
        """Move line and deviation towards what the rate leaves of returns, and keep all predictions.

        If the rate is known there is no line on top of it, and what the critic has learnt of one is not kept.
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
        self.trend.copy_(torch.tensor([0.0, 0.0] if known else [middle, slope]))
        if first:
            return  # nothing has been learnt that would be lost
        moved = (0.0, 0.0) if known else (old - self.trend).tolist()
        last = linears(self.layers)[-1]
        with torch.no_grad():
            last.weight *= old_deviation / deviation
            last.bias.copy_((last.bias * old_deviation + moved[0]) / deviation)
            self.slope.copy_((self.slope * old_deviation + moved[1]) / deviation)

    def fit(
        self,
        inputs: Any,
        returns: Array,
        optimiser: torch.optim.Optimizer,
        passes: int,
        *,
        rate: float | None = None,
        rng: np.random.Generator,
    ) -> float:
        """Take least-squares steps towards the returns; return the mean squared error, in units of their variance.

        Args:
            inputs: [B, inputs].
            returns: [B].
            optimiser: of the network's weights.
            passes: over the data.
            rate: reward per step as measured now, if every episode goes to its time limit. It holds for the next
                predictions; these returns ended with some that were made with the last one.
            rng: of the minibatches.
        """
        apart = returns - self._promised(inputs)
        self.rescale(inputs, apart, known=rate is not None)
        middle, slope, deviation = self.apart()
        goal = (apart - middle - slope * self._left(inputs)) / deviation
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
        if rate is not None:
            self.rate.fill_(rate)
        return found
