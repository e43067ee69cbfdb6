"""The critic: V(s), the expected return to the end of the episode, by a network of its own.

Where the environment has a time limit that counts as an end, what is left to gain depends on the steps left, which are
part of the learning process's state though not of the observation; so the critic also sees the age (the policy
does not). Most of a return that a time limit ends is the time left times the reward per step, which says nothing about
actions; so the network predicts how far returns are from a straight line in the time left, in units of their
deviation from it. Line and deviation are running averages, since returns without a discount grow as a policy learns;
whenever they move the last layer is rescaled, which leaves its predictions as they are.
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

    moments: Tensor
    """How many updates, and running means of y, y^2, x, x^2, x y: returns y, time left x."""
    slope: Tensor
    """Of what the last layer adds to its hidden values: times x."""

    def __init__(self, size: int, horizon: int | None, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.horizon = horizon
        """Steps after which an episode is over in any case; None where nobody knows, or it is not an end."""
        inputs = size + (horizon is not None)
        self.layers = network((inputs, HIDDEN, HIDDEN, 1), rng=rng, last_gain=1.0)
        self.slope = nn.Parameter(torch.zeros(()))
        self.register_buffer("moments", torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))

    def inputs(self, features: Array, ages: NDArray[np.int64]) -> Any:
        """Return [B, inputs] in single precision: features [B, d] and, with a horizon, the time left, from 1 to -1."""
        if self.horizon is None:
            return features.astype(np.float32)
        left = 1.0 - (ages.reshape(-1, 1) - 1) / self.horizon
        return np.concatenate([features, 2.0 * left - 1.0], axis=1, dtype=np.float32)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return predictions in units of the returns' deviation from the line, [B]."""
        found = forward(self.layers, inputs)[:, 0]
        return found if self.horizon is None else found + self.slope * inputs[:, -1]

    def line(self) -> tuple[float, float, float]:
        """The running straight line of returns in the time left: its value in the middle, slope, deviation from it."""
        _, y, yy, x, xx, xy = self.moments.tolist()
        apart = max(xx - x * x, 0.0)
        slope = (xy - x * y) / apart if self.horizon is not None and apart > _FLAT else 0.0
        rest = yy - y * y - slope**2 * apart
        return y - slope * x, slope, max(math.sqrt(max(rest, 0.0)), _SMALLEST)

    def values(self, inputs: Any) -> Array:
        """Return V, [B]."""
        with torch.no_grad():
            found = self(torch.as_tensor(inputs, device=self.moments.device))
        _, _, deviation = self.line()
        result: Array = found.double().cpu().numpy() * deviation + self._on_line(inputs)
        return result

    def _on_line(self, inputs: Any) -> Any:
        middle, slope, _ = self.line()
        return middle + slope * inputs[:, -1].astype(float) if self.horizon is not None else middle

    def rescale(self, inputs: Any, returns: Array) -> None:
        """Move the line and the deviation towards these returns, and keep all predictions."""
        old_middle, old_slope, old_deviation = self.line()
        first = not float(self.moments[0])
        left = inputs[:, -1].astype(float) if self.horizon is not None else np.zeros(len(returns))
        pace = max(_PACE, 1 / (1 + float(self.moments[0])))
        seen = [v.mean() for v in (returns, returns**2, left, left**2, left * returns)]
        self.moments[1:] += pace * (torch.as_tensor(seen, device=self.moments.device) - self.moments[1:])
        self.moments[0] += 1
        if first:
            return  # nothing has been learnt that would be lost
        middle, slope, deviation = self.line()
        last = linears(self.layers)[-1]
        with torch.no_grad():
            last.weight *= old_deviation / deviation
            last.bias.copy_((last.bias * old_deviation + old_middle - middle) / deviation)
            self.slope.copy_((self.slope * old_deviation + old_slope - slope) / deviation)

    def fit(
        self, inputs: Any, returns: Array, optimiser: torch.optim.Optimizer, passes: int, *, rng: np.random.Generator
    ) -> float:
        """Take least-squares steps towards the returns; return the mean squared error, in units of their variance."""
        self.rescale(inputs, returns)
        goal = (returns - self._on_line(inputs)) / self.line()[2]
        goal = torch.as_tensor(goal.astype(np.float32), device=self.moments.device)
        seen = torch.as_tensor(inputs, device=self.moments.device)
        losses = []
        parts = max(1, round(len(returns) / _MINIBATCH))
        for _ in range(passes):
            for rows in torch.as_tensor(rng.permutation(len(returns)), device=seen.device).chunk(parts):
                loss = (self(seen[rows]) - goal[rows]).square().mean()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                losses.append(loss.detach())
        found = float(torch.stack(losses).mean())
        if not math.isfinite(found):
            raise TrainingError(f"the critic's loss is {found}; a smaller critic_learning_rate would help")
        return found
