"""PPO in one file, in the manner of CleanRL, with environments in lockstep or with staggered episodes.

    python examples/cleanrl_ppo.py           all environments start together and stay in lockstep
    python examples/cleanrl_ppo.py --cure    episodes are staggered: this adds the lines marked "cure"

Actions may be Box or Discrete (--env-id CartPole-v1 --discount 0.99). Beside the mean return of the last 100 finished
episodes it prints the fair one, which counts running and truncated episodes, too.

Gymnasium's vector environments reset in the step after an end (NEXT_STEP), which has three consequences:
- that step is no transition, since its action is ignored, so it is left out of the loss (`real`);
- the last observation of an episode is in the stream, so a truncated episode bootstraps from it as it should;
- terminated and truncated are kept apart: only the former sets the value of what follows to zero.

Needs PyTorch.
"""

import argparse
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import nn
from torch.distributions import Categorical, Distribution, Independent, Normal

import steadyrl


@dataclass(frozen=True)
class Settings:
    """Settings of a run; every field is an option of the command line."""

    env_id: str = "Pendulum-v1"
    num_envs: int = 64
    n_steps: int = 16
    updates: int = 100
    seed: int = 0
    learning_rate: float = 1e-3
    discount: float = 0.9
    gae_lambda: float = 0.95
    epochs: int = 4
    minibatches: int = 4
    clip: float = 0.2
    entropy: float = 0.0
    value: float = 0.5
    max_gradient: float = 0.5


class Agent(nn.Module):
    """A policy and a value function, side by side."""

    def __init__(self, observations: Box, actions: Space) -> None:
        super().__init__()
        self.discrete = isinstance(actions, Discrete)
        inputs = int(np.prod(observations.shape))
        outputs = int(actions.n) if self.discrete else int(np.prod(actions.shape))
        self.policy = network(inputs, outputs, scale=0.01)
        self.log_deviation = None if self.discrete else nn.Parameter(torch.zeros(outputs))
        self.critic = network(inputs, 1, scale=1.0)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the value of each observation."""
        return self.critic(observations).squeeze(-1)

    def actions(self, observations: torch.Tensor) -> Distribution:
        """Return the distribution of actions at each observation."""
        found = self.policy(observations)
        return Categorical(logits=found) if self.discrete else Independent(Normal(found, self.log_deviation.exp()), 1)


def for_the_environments(actions: torch.Tensor, space: Space) -> np.ndarray:
    """Return actions as the environments take them: numbered from the first one, or within their bounds."""
    if isinstance(space, Discrete):
        return actions.numpy() + space.start
    return actions.numpy().reshape(-1, *space.shape).clip(space.low, space.high)


def network(inputs: int, outputs: int, scale: float) -> nn.Sequential:
    """Return two hidden layers of 64, initialised orthogonally."""
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, gain in zip(layers[::2], (2**0.5, 2**0.5, scale), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    terminated: torch.Tensor,
    ended: torch.Tensor,
    discount: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Return generalised advantage estimates [steps, environments]; `values` has one row more, for the states after."""
    found, following = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        surprise = rewards[t] + discount * values[t + 1] * ~terminated[t] - values[t]
        following = surprise + discount * gae_lambda * ~ended[t] * following
        found[t] = following
    return found


def main() -> list[float]:
    """Train, and return the phase distance at each update."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cure", action="store_true")  # cure
    for name, default in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    args = vars(parser.parse_args())
    cure = args.pop("cure", False)  # cure
    s = Settings(**args)

    torch.manual_seed(s.seed)
    envs = gymnasium.make_vec(s.env_id, num_envs=s.num_envs, vectorization_mode="sync")
    if cure:  # cure
        envs = steadyrl.StaggeredVectorEnv(envs)  # cure
    envs = monitor = steadyrl.PhaseMonitor(envs, n_steps=s.n_steps, warn=False)
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    envs = fair = steadyrl.RecordFairStatistics(envs, memory=1000)
    envs = gymnasium.wrappers.vector.NormalizeReward(envs, gamma=s.discount)

    agent = Agent(envs.single_observation_space, envs.single_action_space)
    optimiser = torch.optim.Adam(agent.parameters(), lr=s.learning_rate, eps=1e-5)

    shape = (s.n_steps, s.num_envs)
    observations = torch.zeros((*shape, *envs.single_observation_space.shape))
    actions = torch.zeros(shape if agent.discrete else (*shape, len(agent.log_deviation)))
    log_probs, rewards, values = torch.zeros(shape), torch.zeros(shape), torch.zeros((s.n_steps + 1, s.num_envs))
    terminated, ended, real = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))

    following = torch.as_tensor(envs.reset(seed=s.seed)[0], dtype=torch.float32)
    resets = torch.zeros(s.num_envs, dtype=torch.bool)
    finished: list[tuple[float, float]] = []  # return and length of each finished episode
    distances = []

    for update in range(s.updates):
        for t in range(s.n_steps):
            observations[t], real[t] = following, ~resets
            with torch.no_grad():
                choice = agent.actions(following)
                taken = choice.sample()
                actions[t], values[t], log_probs[t] = taken, agent.value(following), choice.log_prob(taken)
            taken = for_the_environments(taken, envs.single_action_space)
            batch, reward, over, cut_off, infos = envs.step(taken)
            following = torch.as_tensor(batch, dtype=torch.float32)
            rewards[t], terminated[t] = torch.as_tensor(reward), torch.as_tensor(over)
            ended[t] = resets = torch.as_tensor(over | cut_off)
            if "episode" in infos:
                whole = infos["_episode"] & ~infos.get("staggered", np.zeros(s.num_envs, dtype=bool))
                finished.extend(zip(infos["episode"]["r"][whole], infos["episode"]["l"][whole], strict=True))

        with torch.no_grad():
            values[-1] = agent.value(following)
        gains = advantages(rewards, values, terminated, ended, s.discount, s.gae_lambda)
        targets = gains + values[:-1]

        chosen = real.flatten().nonzero().squeeze(-1)  # steps that were resets are not learned from
        for _ in range(s.epochs):
            for rows in chosen[torch.randperm(len(chosen))].chunk(s.minibatches):
                seen, taken = observations.flatten(0, 1)[rows], actions.flatten(0, 1)[rows]
                choice = agent.actions(seen)
                ratio = (choice.log_prob(taken) - log_probs.flatten()[rows]).exp()
                gain = gains.flatten()[rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - s.clip, 1 + s.clip) * gain)
                error = (agent.value(seen) - targets.flatten()[rows]).pow(2)
                loss = (-surrogate + s.value * error - s.entropy * choice.entropy()).mean()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), s.max_gradient)
                optimiser.step()

        report = monitor.report()
        distances.append(report.distance)
        if update % 10 == 9 or update == s.updates - 1:
            usual = np.mean(finished[-100:], axis=0) if finished else (np.nan, np.nan)
            unbiased = fair.report()
            print(
                f"update {update + 1:3d}: return {usual[0]:8.1f} (fair {unbiased.mean_return.value:8.1f}), "
                f"length {usual[1]:6.1f} (fair {unbiased.mean_gymnasium_length.value:6.1f}), "
                f"phase distance {report.distance:.3f}"
            )
    envs.close()
    return distances


if __name__ == "__main__":
    main()
