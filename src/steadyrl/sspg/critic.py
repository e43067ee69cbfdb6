"""The critic: V(s), the expected return to the end of the episode, by a network of its own.

Where the environment has a time limit that counts as an end, what is left to gain depends on the steps left, which are
part of the learning process's state though not of the observation; so the critic also sees the age (the policy
does not). Returns without a discount grow as a policy learns to live longer, so the network predicts them in units
of their running mean and deviation, and its last layer is rescaled whenever these move, which leaves its
predictions as they are.
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
_MINIBATCH = 256


class Critic(nn.Module):
    """V(s), of normalised observations and, with a horizon, of the age."""

    count: Tensor
    mean: Tensor
    square: Tensor

    def __init__(self, size: int, horizon: int | None, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.horizon = horizon
        """Steps after which an episode is over in any case; None where nobody knows, or it is not an end."""
        inputs = size + (horizon is not None)
        self.layers = network((inputs, HIDDEN, HIDDEN, 1), rng=rng, last_gain=1.0)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("square", torch.ones((), dtype=torch.float64))

    def inputs(self, features: Array, ages: NDArray[np.int64]) -> Any:
        """Return [B, inputs] in single precision: features [B, d] and, with a horizon, the share of time left."""
        if self.horizon is None:
            return features.astype(np.float32)
        left = 1.0 - (ages.reshape(-1, 1) - 1) / self.horizon
        return np.concatenate([features, 2.0 * left - 1.0], axis=1, dtype=np.float32)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return predictions in units of the returns' deviation, [B]."""
        return forward(self.layers, inputs)[:, 0]

    @property
    def deviation(self) -> float:
        """The running standard deviation of returns."""
        return max(math.sqrt(max(float(self.square) - float(self.mean) ** 2, 0.0)), _SMALLEST)

    def values(self, inputs: Any) -> Array:
        """Return V, [B]."""
        with torch.no_grad():
            found = self(torch.as_tensor(inputs, device=self.mean.device))
        result: Array = found.double().cpu().numpy() * self.deviation + float(self.mean)
        return result

    def rescale(self, returns: Array) -> None:
        """Move the running mean and deviation towards these returns, and keep all predictions."""
        old_mean, old_deviation = float(self.mean), self.deviation
        self.count += 1
        pace = max(_PACE, 1 / float(self.count))
        self.mean += pace * (float(returns.mean()) - self.mean)
        self.square += pace * (float(np.square(returns).mean()) - self.square)
        if float(self.count) == 1:
            return  # nothing has been learnt that would be lost
        last, deviation = linears(self.layers)[-1], self.deviation
        with torch.no_grad():
            last.weight *= old_deviation / deviation
            last.bias.copy_((last.bias * old_deviation + old_mean - float(self.mean)) / deviation)

    def fit(
        self, inputs: Any, returns: Array, optimiser: torch.optim.Optimizer, passes: int, *, rng: np.random.Generator
    ) -> float:
        """Take least-squares steps towards the returns; return the mean squared error, in units of their variance."""
        self.rescale(returns)
        goal = torch.as_tensor(
            ((returns - float(self.mean)) / self.deviation).astype(np.float32), device=self.mean.device
        )
        seen = torch.as_tensor(inputs, device=self.mean.device)
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
