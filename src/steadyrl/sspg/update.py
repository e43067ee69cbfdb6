"""One update of the steady-state policy gradient, from top to bottom (`update`), and the parts that it changes.

loss = -(E[T] - 1) mean(A log pi(s, a) + entropy bonus),     s, a ~ rho given s not terminal      (Theorem 5)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steadyrl.common.storage import unprefixed, with_prefix
from steadyrl.errors import TrainingError
from steadyrl.policies.modules import NetworkModule
from steadyrl.policies.networks import Normalisation
from steadyrl.sspg.batch import Sampler
from steadyrl.sspg.checkpoints import require_numbers
from steadyrl.sspg.critic import Critic
from steadyrl.sspg.natural import natural_step
from steadyrl.sspg.normaliser import Normaliser
from steadyrl.sspg.settings import ResolvedSettings

Array = NDArray[np.float64]

_ADVICE = "a smaller learning rate or a limit on the gradient (max_gradient_norm) would help"


class Learner:
    """All that an update changes: policy, critic, their optimisers, and the normalisation of observations.

    Args:
        policy: the policy to train.
        critic: its value function.
        normaliser: the running mean and deviation of observations; None if they are left as they are.
        settings: the settings of the run, resolved.
        rng: draws the critic's minibatches.
    """

    def __init__(
        self,
        policy: NetworkModule,
        critic: Critic,
        normaliser: Normaliser | None,
        settings: ResolvedSettings,
        *,
        rng: np.random.Generator,
    ) -> None:
        self.policy, self.critic, self.normaliser, self.settings, self.rng = policy, critic, normaliser, settings, rng
        natural = settings.optimiser == "natural"
        self.optimiser = None if natural else make_optimiser(policy, settings.optimiser, settings.learning_rate)
        self.critic_optimiser = make_optimiser(critic, "adam", settings.critic_learning_rate)

    def update(self, sampler: Sampler, number: int, remaining: float) -> dict[str, float]:
        """Draw a batch and learn from it; return the numbers to show.

        Args:
            sampler: draws states and actions at steady state.
            number: the number of updates before this one.
            remaining: the share of training still to come, from 1 to 0, which the learning rate may follow.
        """
        settings, policy, critic = self.settings, self.policy, self.critic

        # Draw s, a ~ rho; acted are the rows of states that are neither terminal nor null.
        batch = sampler.draw(policy, number)
        acted = batch.acted
        if not len(batch.actions):
            raise TrainingError(
                "no environment took an action, since all were being reset together; give more n_steps (--n-steps)"
            )
        features = as_seen(batch.observations, policy)

        with torch.enable_grad():  # an environment, or who called, may have switched gradients off
            # Q(s, a) and A(s, a): lambda-returns (GAE without a discount), or returns to the end of the episode.
            inputs = critic.inputs(features, batch.ages)
            returns, advantages = batch.returns(critic.values(inputs))
            weights = advantages if settings.baseline == "critic" else returns
            if settings.normalise_advantages:
                weights = (weights - weights.mean()) / max(float(weights.std()), 1e-8)

            # The policy takes one step along (E[T] - 1) mean(A grad log pi).
            factor = batch.average_episode_length - 1 if settings.episode_length_factor else 1.0
            states = self._tensor(features[acted])
            log_prob, entropy = policy.log_prob_and_entropy(states, batch.actions)
            bonus = float(settings.entropy) * entropy.mean() if settings.entropy else 0.0
            loss = -factor * ((self._tensor(weights).to(log_prob.dtype) * log_prob).mean() + bonus)
            gradient_norm = self._step(loss, states, remaining)

            # The critic takes several epochs towards the returns, around the line as measured now.
            line = batch.line(critic.baseline, critic.time_left(inputs[acted]), returns)
            critic_loss = critic.fit(
                inputs[acted],
                returns,
                self.critic_optimiser,
                settings.critic_epochs,
                line=line,
                bootstrapped=batch.bootstrapped,
                rng=self.rng,
            )

        # Mean and deviation of observations are part of the policy, and move between updates only.
        if self.normaliser is not None:
            self.normaliser.add(batch.observations[: batch.visited])
            policy.normalise(self.normaliser.mean, self.normaliser.std)

        return {
            "steps": batch.steps,
            "return": batch.mean_return,
            "average_episode_length": batch.average_episode_length,
            "phase_distance": batch.phase_distance,
            "entropy": float(entropy.detach().mean()),
            "gradient_norm": gradient_norm,
            "critic_loss": critic_loss,
        }

    def _step(self, loss: Tensor, states: Tensor, remaining: float) -> float:
        """Take one step of the policy; return the gradient's norm before any clipping."""
        settings = self.settings
        scale = remaining if settings.learning_rate_decay == "linear" else 1.0
        if self.optimiser is None:
            norm = natural_step(self.policy, loss, states, settings.max_kl * scale)
        else:
            norm = gradient_step(
                self.policy, loss, self.optimiser, settings.learning_rate * scale, settings.max_gradient_norm
            )
        if not math.isfinite(norm):
            raise TrainingError(f"the gradient's norm is {norm}; {_ADVICE}")
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.policy.parameters()):
            raise TrainingError(f"the policy's weights are no longer finite numbers; {_ADVICE}")
        return norm

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.policy.mean.device)

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        own = {} if self.optimiser is None else {"optimiser": self.optimiser}  # a natural step remembers nothing
        return {**own, "critic_optimiser": self.critic_optimiser}

    def state(self) -> dict[str, Any]:
        """Return every number that a checkpoint keeps, as arrays."""
        found: dict[str, Any] = {}
        for part, module in (("policy", self.policy), ("critic", self.critic)):
            found |= with_prefix(part, {name: _array(tensor) for name, tensor in module.state_dict().items()})
        for part, optimiser in self._optimisers().items():
            for number, entries in optimiser.state_dict()["state"].items():
                arrays = {name: _array(value) for name, value in entries.items() if value is not None}
                found |= with_prefix(f"{part}/{number}", arrays)
        return found | ({} if self.normaliser is None else with_prefix("normaliser", self.normaliser.state()))

    def restore(self, arrays: dict[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            ValueError: if an array is not what it must be. Torch does not look at the shapes of what an optimiser
                remembers, and would write beyond their ends.
        """
        require_numbers(*arrays.values())
        for part, module in (("policy", self.policy), ("critic", self.critic)):
            module.load_state_dict({name: torch.as_tensor(value) for name, value in unprefixed(part, arrays).items()})
        require_numbers(arrays["critic/moments"][[0, 2, 4]], least=0.0)  # a count, and means of squares
        for part, optimiser in self._optimisers().items():
            state: dict[int, dict[str, Any]] = {}
            for name, value in unprefixed(part, arrays).items():
                number, entry = name.split("/")
                state.setdefault(int(number), {})[entry] = torch.as_tensor(value)
            _require_fitting(state, [p for group in optimiser.param_groups for p in group["params"]])
            optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
        if self.normaliser is not None:
            self.normaliser.restore(unprefixed("normaliser", arrays))


def _require_fitting(state: dict[int, dict[str, Any]], parameters: list[Tensor]) -> None:
    """Raise ValueError unless an optimiser (Adam) can go on from this state of its parameters."""
    if state and sorted(state) != list(range(len(parameters))):
        raise ValueError("the optimiser's state is of other parameters")
    for number, entries in state.items():
        parameter, step = parameters[number], entries["step"]
        if set(entries) != {"step", "exp_avg", "exp_avg_sq"} or step.shape != () or not step >= 0:
            raise ValueError("the optimiser's state is not that of Adam")
        for name in ("exp_avg", "exp_avg_sq"):
            if entries[name].shape != parameter.shape or entries[name].dtype != parameter.dtype:
                raise ValueError(f"{name} of parameter {number} has another shape or type than the parameter")
        if (entries["exp_avg_sq"] < 0).any():
            raise ValueError(f"exp_avg_sq of parameter {number} is negative")


def as_seen(observations: Array, policy: NetworkModule) -> Any:
    """Return observations as the policy's network sees them: normalised, in single precision."""
    if policy.limit is None:
        return observations.astype(np.float32)
    mean, std = policy.mean.cpu().numpy(), policy.std.cpu().numpy()
    return Normalisation(mean, std, policy.limit)(observations).astype(np.float32)


def gradient_step(
    policy: NetworkModule, loss: Tensor, optimiser: torch.optim.Optimizer, rate: float, max_norm: float | None
) -> float:
    """Take a step of the optimiser, unless the gradient is not finite; return its norm before any clipping."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), math.inf if max_norm is None else max_norm))
    if math.isfinite(norm):
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
    return norm


def make_optimiser(module: torch.nn.Module, name: str, rate: float) -> torch.optim.Optimizer:
    """Return an optimiser of a module's parameters."""
    if name == "sgd":
        return torch.optim.SGD(module.parameters(), lr=rate)
    return torch.optim.Adam(module.parameters(), lr=rate, eps=1e-8, fused=True)


def _array(value: Any) -> Any:
    return value.cpu().numpy() if hasattr(value, "cpu") else np.asarray(value)
