"""One update: the policy along the steady-state policy gradient, then the critic towards the returns.

loss = -(E[T] - 1) mean(A log pi(s, a) + entropy bonus),     s, a ~ rho given s not terminal
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from steadyrl.errors import TrainingError
from steadyrl.policies.modules import NetworkModule
from steadyrl.sspg.critic import Critic
from steadyrl.sspg.line import Line
from steadyrl.sspg.settings import Settings

Array = NDArray[np.float64]


_ADVICE = "a smaller learning rate or a limit on the gradient (max_gradient_norm) would help"


@dataclass(frozen=True)
class Data:
    """What an update learns from: states at steady state that are neither null nor terminal."""

    features: Any
    """[B, d], in single precision, as the policy's network takes them."""
    actions: Any
    weights: Array
    """[B]: Q, or the advantage if there is a baseline."""
    inputs: Any
    """[B, inputs], the critic's."""
    apart: Array
    """[B], what the critic's network is to predict: returns above the line. If they end with a prediction, it is the
    line that this was made with."""
    line: Line | None
    """Returns as measured now, if the critic has a horizon."""


class Learner:
    """A policy, a critic, and their optimisers."""

    def __init__(self, policy: NetworkModule, critic: Critic, settings: Settings) -> None:
        self.policy, self.critic, self.settings = policy, critic, settings
        self.optimiser = make_optimiser(policy, settings.optimiser, settings.learning_rate)
        self.critic_optimiser = make_optimiser(critic, "adam", settings.critic_learning_rate)

    def update(
        self, data: Data, average_episode_length: float, left: float, *, rng: np.random.Generator
    ) -> dict[str, float]:
        """Learn from data; `left` is the share of training still to come. Return what to show of it."""
        settings = self.settings
        factor = average_episode_length - 1 if settings.average_episode_length else 1.0
        weights = data.weights
        if settings.normalise_advantages:
            weights = (weights - weights.mean()) / max(float(weights.std()), 1e-8)
        device = self.policy.mean.device
        features = torch.as_tensor(data.features, device=device)
        log_prob, entropy = self.policy.log_prob_and_entropy(features, data.actions)
        along = torch.as_tensor(weights, device=device).to(log_prob.dtype)
        bonus = settings.entropy * entropy.mean() if settings.entropy else 0.0
        loss = -factor * ((along * log_prob).mean() + bonus)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self.step(left)
        found = {"gradient_norm": norm, "entropy": float(entropy.detach().mean()), "loss": float(loss.detach())}
        found["critic_loss"] = self.critic.fit(
            data.inputs, data.apart, self.critic_optimiser, settings.critic_passes, line=data.line, rng=rng
        )
        return found

    def step(self, left: float) -> float:
        """Take a step along the gradients that the parameters hold; return their norm before any clipping."""
        settings = self.settings
        limit = math.inf if settings.max_gradient_norm is None else settings.max_gradient_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), limit))
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient's norm is {norm}; {_ADVICE}")
        rate = settings.learning_rate * (left if settings.learning_rate_decay == "linear" else 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.policy.parameters()):
            raise TrainingError(f"the policy's weights are no longer finite numbers; {_ADVICE}")
        return norm

    def state(self) -> dict[str, Any]:
        """Return every number that a checkpoint keeps, as arrays."""
        found: dict[str, Any] = {}
        for part, module in (("policy", self.policy), ("critic", self.critic)):
            found |= {f"{part}/{name}": tensor.cpu().numpy() for name, tensor in module.state_dict().items()}
        for part, optimiser in (("optimiser", self.optimiser), ("critic_optimiser", self.critic_optimiser)):
            for number, entries in optimiser.state_dict()["state"].items():
                found |= {
                    f"{part}/{number}/{name}": _plain(value) for name, value in entries.items() if value is not None
                }
        return found

    def restore(self, arrays: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        for part, module in (("policy", self.policy), ("critic", self.critic)):
            module.load_state_dict({name: torch.as_tensor(value) for name, value in _below(arrays, part).items()})
        for part, optimiser in (("optimiser", self.optimiser), ("critic_optimiser", self.critic_optimiser)):
            state: dict[int, dict[str, Any]] = {}
            for name, value in _below(arrays, part).items():
                number, entry = name.split("/")
                state.setdefault(int(number), {})[entry] = torch.as_tensor(value)
            optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def make_optimiser(module: torch.nn.Module, name: str, rate: float) -> torch.optim.Optimizer:
    """Return an optimiser of a module's parameters."""
    if name == "sgd":
        return torch.optim.SGD(module.parameters(), lr=rate)
    return torch.optim.Adam(module.parameters(), lr=rate, eps=1e-8, fused=True)


def _plain(value: Any) -> Any:
    return value.cpu().numpy() if hasattr(value, "cpu") else np.asarray(value)


def _below(arrays: dict[str, Any], part: str) -> dict[str, Any]:
    return {name.removeprefix(f"{part}/"): value for name, value in arrays.items() if name.startswith(f"{part}/")}
