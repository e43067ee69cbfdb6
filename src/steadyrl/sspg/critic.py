"""The critic: V(s), the expected return to the end of the episode.

    V(s) = measured baseline (a line in the steps left) + deviation * network(s)

Where the environment has a time limit that counts as an end, what is left to gain depends on the steps left, which are
part of the learning process's state though not of the observation. So the network also sees the age (the policy does
not), and the line is measured instead of learnt (`measured_baseline`). What returns are above the line on average is
taken off them, too, as is a trend in the time left.

All this holds as far as episodes reach their time limit. If they end before, by what they did, the steps left mean
nothing; but they go along with the states that lead to the end, so that a critic that sees them blames the age, finds
all actions equally good, and the policy stays where it is. So the line, the trend and what the network sees of the age
are scaled by the share of states whose episode reaches the limit (`Line.share`): where that is 0 the critic sees the
observation alone.

Without a time limit there is no line, and the level is a running average of returns. Returns are scaled to deviation 1
for the network; when deviation or level move, its last layer is rescaled so that predictions stay (PopArt).
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
from steadyrl.sspg.measured_baseline import Line, MeasuredBaseline

Array = NDArray[np.float64]

_PACE = 0.05  # weight of an update's returns in the running mean and deviation
_SMALLEST = 1e-4  # deviation of returns below which they count as constant
_FLAT = 1e-6  # variance of the time left below which it has no slope
_MINIBATCH = 256
_DOUBT = 4  # the age is shown to the network times share^4: in trials on CartPole-v1 (100,000 steps) 8 of 8 seeds were
# solved so, 4 of 5 with share^1, 3 of 5 without the age


class Critic(nn.Module):
    """V(s) from normalised observations and, with a horizon, the age.

    Args:
        size: numbers in an observation.
        horizon: steps after which an episode is over in any case; None if there is no such limit, or it is not an end.
        rng: draws the first weights.
    """

    moments: Tensor
    """Number of updates, then running means of y, y^2, x, x^2, x y: returns above the line y, time left x."""

    def __init__(self, size: int, horizon: int | None, *, rng: np.random.Generator) -> None:
        super().__init__()
        self.baseline = MeasuredBaseline(horizon)
        self.layers = network((size + (horizon is not None), HIDDEN, HIDDEN, 1), rng=rng, last_gain=1.0)
        self.register_buffer("moments", torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64))

    @property
    def horizon(self) -> int | None:
        """Steps after which an episode is over in any case, if that is known and counts as an end."""
        return self.baseline.horizon

    def inputs(self, features: Array, ages: NDArray[np.int64]) -> Any:
        """Return [B, inputs] in single precision: features [B, d] and, with a horizon, the time left, from 1 to -1."""
        if self.horizon is None:
            return features.astype(np.float32)
        left = 1.0 - (ages.reshape(-1, 1) - 1) / self.horizon
        return np.concatenate([features, 2.0 * left - 1.0], axis=1, dtype=np.float32)

    def time_left(self, inputs: Any) -> Any:
        """Return the time left, from 1 to -1, [B]; zeros without a horizon."""
        return np.zeros(len(inputs)) if self.horizon is None else inputs[:, -1].astype(float)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the network's part of the predictions, in units of the deviation, [B]."""
        if self.horizon is not None:
            shown = self.baseline.share**_DOUBT
            inputs = torch.cat([inputs[:, :-1], inputs[:, -1:] * shown], dim=1)
        return forward(self.layers, inputs)[:, 0]

    def values(self, inputs: Any) -> Array:
        """Return V, [B]."""
        with torch.no_grad():
            found = self(torch.as_tensor(inputs, device=self.moments.device))
        level, _, deviation = self.scale()
        result: Array = found.double().cpu().numpy() * deviation + self.baseline.at(self.time_left(inputs))
        return result if self.horizon is not None else result + level

    def scale(self) -> tuple[float, float, float]:
        """Return level, slope and deviation of returns above the line: the network predicts what is left, scaled.

        The level is that in the middle of the horizon. The slope counts only as far as episodes reach the time limit:
        the rest is for the network to explain.
        """
        _, y, yy, x, xx, xy = self.moments.tolist()
        share = self.baseline.share
        spread = max(xx - x * x, 0.0)
        slope = (xy - x * y) / spread if spread > _FLAT else 0.0
        rest = yy - y * y - share * (2 - share) * slope**2 * spread
        return y - share * slope * x, share * slope, max(math.sqrt(max(rest, 0.0)), _SMALLEST)

    def rescale(self, inputs: Any, above: Array, share: float = 1.0) -> None:
        """Move level and deviation towards these returns above the line, and keep all predictions (PopArt)."""
        first = not float(self.moments[0])
        old_level, _, old_deviation = self.scale()
        left = self.time_left(inputs)
        pace = max(_PACE, 1 / (1 + float(self.moments[0])))
        seen = [v.mean() for v in (above, above**2, left, left**2, left * above)]
        self.moments[1:] += pace * (torch.as_tensor(seen, device=self.moments.device) - self.moments[1:])
        self.moments[0] += 1
        self.baseline.line[2] = share
        if first:
            return  # nothing has been learnt that would be lost
        level, _, deviation = self.scale()
        moved = old_level - level if self.horizon is None else 0.0
        last = linears(self.layers)[-1]
        with torch.no_grad():
            last.weight *= old_deviation / deviation
            last.bias.copy_((last.bias * old_deviation + moved) / deviation)

    def fit(
        self,
        inputs: Any,
        returns: Array,
        optimiser: torch.optim.Optimizer,
        epochs: int,
        *,
        line: Line | None = None,
        bootstrapped: bool = True,
        rng: np.random.Generator,
    ) -> float:
        """Take least-squares steps towards returns; return the mean squared error, in units of their variance.

        Args:
            inputs: [B, inputs].
            returns: [B].
            optimiser: the optimiser of the network's weights.
            epochs: how often the network sees each return.
            line: the line as measured now; the next predictions are made with it.
            bootstrapped: whether returns end with the critic's own predictions. Then the network learns what they are
                above the line that these were made with, and otherwise above the new one.
            rng: draws the minibatches.

        Raises:
            TrainingError: if the loss is not finite.
        """
        above = returns - self.baseline.at(self.time_left(inputs), None if bootstrapped else line)
        self.rescale(inputs, above, 1.0 if line is None else line.share)
        middle, slope, deviation = self.scale()
        goal = (above - middle - slope * self.time_left(inputs)) / deviation
        goal = torch.as_tensor(goal.astype(np.float32), device=self.moments.device)
        seen = torch.as_tensor(inputs, device=self.moments.device)
        losses = []
        parts = max(1, round(len(above) / _MINIBATCH))
        for _ in range(epochs):
            for rows in torch.as_tensor(rng.permutation(len(above)), device=seen.device).chunk(parts):
                loss = (self(seen[rows]) - goal[rows]).square().mean()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                losses.append(loss.detach())
        found = float(torch.stack(losses).mean())
        if not math.isfinite(found):
            raise TrainingError(f"the critic's loss is {found}; a smaller critic_learning_rate would help")
        if line is not None:
            self.baseline.use(line)
        return found
