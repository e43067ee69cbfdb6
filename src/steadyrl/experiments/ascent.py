"""Plain stochastic gradient ascent with the steady-state policy gradient, as the paper's gradient check ran it.

    theta <- theta + alpha g,        g an unbiased estimate of grad J_epi (Theorem 5)

Theorem 5's average over rho given that the state is not terminal, times E[T] - 1, is the sum over an episode, averaged
over episodes. So all steps of complete episodes are used, each of them as good as the paper's one step a rollout.

Noise inflates the squared length of an estimate, E|g|^2 = |grad J|^2 + noise; products of independent estimates are not
inflated. Episodes come in groups, g_i, and over all pairs

    |grad J|^2 is estimated by  (|sum_i g_i|^2 - sum_i |g_i|^2) / (G (G - 1)),        with a jackknife error.

The state-value baseline is fitted to the episodes of the update before, so it is independent of all groups. The change
of performance is measured with common random numbers: the same episode seeds and action noise before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from steadyrl.environments.sources import as_source
from steadyrl.experiments.workspace import Workspace
from steadyrl.rollouts.episodes import Trajectories
from steadyrl.rollouts.samples import Samples

Array = NDArray[np.float64]

_RIDGE = 1e-3


@dataclass(frozen=True)
class CommonNoise:
    """Makes an environment that adds the policy's Gaussian noise to actions itself, from the episode's seed.

    With it the noise of an episode depends on its seed alone, whatever policy runs in it.
    """

    environment: str
    deviation: tuple[float, ...]

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Return a new environment."""
        return NoisyActions(as_source(self.environment).make(), np.array(self.deviation))


class NoisyActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds Gaussian noise to actions, from a generator that every seeded reset starts afresh."""

    def __init__(self, env: gymnasium.Env[Any, Any], deviation: Array) -> None:
        super().__init__(env)
        self._deviation = deviation
        self._noise = np.random.default_rng(0)
        inner: Any = env.action_space
        self._low, self._high = inner.low, inner.high
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, inner.shape, np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, and the generator of its noise."""
        if seed is not None:
            self._noise = np.random.default_rng([seed, 11])
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Take the action plus noise, clipped to the action space."""
        noisy = np.asarray(action) + self._deviation * self._noise.standard_normal(len(self._deviation))
        return self.env.step(np.clip(noisy, self._low, self._high))


class Ascent:
    """Gradient ascent of a Gaussian policy, whose trained parameters are one flat vector.

    Its deviation stays what it is (one) unless `train_deviation`: as it falls, performance becomes a steeper function
    of the mean, and a constant learning rate ends up stepping from one side of the ridge to the other.
    """

    def __init__(self, environment: str, workspace: Workspace, *, train_deviation: bool = False) -> None:
        from steadyrl.policies.modules import as_module

        task = workspace.task(environment, "gaussian")
        self.environment, self._workspace = environment, workspace
        policy: Any = task.policy
        self.module = as_module(policy, task.observations, task.actions).double()
        self.module.log_std.requires_grad_(train_deviation)
        self._trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    @property
    def parameters(self) -> Array:
        """All trained parameters as a flat vector."""
        import torch

        flat: Array = torch.nn.utils.parameters_to_vector(self._trained).detach().numpy().copy()
        return flat

    @parameters.setter
    def parameters(self, flat: Array) -> None:
        import torch

        torch.nn.utils.vector_to_parameters(torch.as_tensor(flat), self._trained)

    def gradients(
        self, label: str, episodes: int, *, seed: int, baseline: Baseline, chunk: int, groups: int
    ) -> tuple[Array, Any, Baseline]:
        """Estimate the gradient from each of several groups of episodes.

        Returns:
            [G, D] gradients of independent groups, all episodes' lengths, and a baseline fitted to the last chunk.
        """
        found, lengths, fitted = [], [], baseline
        for i in range(-(-episodes // chunk)):
            name, size = f"{label}-{i}", min(chunk, episodes - i * chunk)
            compute = partial(self._gradients_of_chunk, name, size, seed + 7919 * i, baseline, groups)
            kept = self._workspace.arrays(name, compute)
            found.append(kept["gradients"])
            lengths.append(kept["lengths"])
            fitted = Baseline(kept["centre"], kept["scale"], kept["weights"])
        return np.concatenate(found), np.concatenate(lengths), fitted

    def _gradients_of_chunk(self, name: str, size: int, seed: int, baseline: Baseline, groups: int) -> dict[str, Any]:
        """Return the gradient of each group of one chunk of episodes, their lengths, and a baseline fitted to them."""
        data = self._workspace.episodes(
            name,
            self.environment,
            self.module.numpy(),
            size,
            seed=seed,
            trajectories=True,
            observation_sums=False,
            block_size=max(8, -(-size // 8)) if size > 200 else None,
        )
        assert data.trajectories is not None
        parts = [every_step(data.trajectories, part)[0] for part in np.array_split(np.arange(size), groups)]
        gradients = np.array([self.estimate(samples, baseline) for samples in parts])
        samples, _ = every_step(data.trajectories, np.arange(size))
        fitted = Baseline.fit(samples.observations[:, 0], samples.returns[:, 0])
        return {"gradients": gradients, "lengths": data.lengths, **vars(fitted)}

    def estimate(self, samples: Samples, baseline: Callable[[Any], Any] | None, length: float | None = None) -> Array:
        """Return steady_state_gradient's estimate, with E[T] of the samples' own episodes unless it is given."""
        from steadyrl.sspg import steady_state_gradient

        mean = samples.average_episode_length if length is None else length
        vector: Array = steady_state_gradient(self.module, samples, mean, baseline=baseline).vector
        return vector

    def returns(self, label: str, episodes: int, *, seed: int) -> Array:
        """Return episodes' returns under the present policy, with the noise that belongs to their seeds."""
        policy: Any = self.module.numpy()
        environment = CommonNoise(self.environment, tuple(np.exp(policy.log_std).tolist()))
        quiet = replace(policy, log_std=np.full_like(policy.log_std, -np.inf))
        found = self._workspace.episodes(
            label,
            environment,
            quiet,
            episodes,
            seed=seed,
            observation_sums=False,
            block_size=max(8, -(-episodes // 8)) if episodes > 200 else None,
        )
        return found.returns


@dataclass(frozen=True)
class Baseline:
    """An estimate of V(s), quadratic in the observation, by ridge regression."""

    centre: Array
    scale: Array
    weights: Array

    @classmethod
    def zero(cls, size: int) -> Baseline:
        """Return the baseline that is 0."""
        return cls(np.zeros(size), np.ones(size), np.zeros(1 + size + size * (size + 1) // 2))

    @classmethod
    def fit(cls, observations: Array, returns: Array) -> Baseline:
        """Return the quadratic function with the least squared error to the returns."""
        centre, scale = observations.mean(axis=0), observations.std(axis=0) + 1e-8
        features = _features(observations, centre, scale)
        gram = features.T @ features / len(features)
        weights = np.linalg.solve(gram + _RIDGE * np.eye(len(gram)), features.T @ returns / len(features))
        return cls(centre, scale, weights)

    def __call__(self, observations: Any) -> Array:
        """Return V for observations [B, d]."""
        values: Array = _features(np.asarray(observations, dtype=float), self.centre, self.scale) @ self.weights
        return values


def _features(observations: Array, centre: Array, scale: Array) -> Array:
    x = np.clip((observations - centre) / scale, -5, 5)
    rows, columns = np.triu_indices(x.shape[1])
    return np.concatenate([np.ones((len(x), 1)), x, x[:, rows] * x[:, columns]], axis=1)


def every_step(trajectories: Trajectories, episodes: Any) -> tuple[Samples, Any]:
    """Return all steps of complete episodes as samples, one per row, and the episode of each."""
    lengths = trajectories.lengths
    first = np.concatenate([[0], np.cumsum(lengths)])
    owner = np.repeat(episodes, lengths[episodes])
    steps = np.concatenate([np.arange(first[i], first[i + 1]) for i in episodes])
    to_go = np.cumsum(trajectories.rewards[::-1])[::-1]
    after = np.append(to_go, 0.0)[first[1:]]  # what is to go when an episode is over
    ages = steps - first[owner] + 1
    column = (len(steps), 1)
    samples = Samples(
        times=np.array([1]),
        observations=trajectories.observations[steps + owner][:, None],
        actions=np.asarray(trajectories.actions)[steps][:, None],
        returns=(to_go[steps] - after[owner]).reshape(column),
        ages=ages.astype(np.int32).reshape(column),
        terminal=np.zeros(column, dtype=bool),
        episode_lengths=lengths[episodes].reshape(-1, 1),
        episode_returns=np.zeros((len(episodes), 1)),
    )
    return samples, owner


def squared_length(gradients: Array) -> tuple[float, float]:
    """Return an unbiased estimate of |grad J|^2 from gradients of independent groups [G, D], and its standard error.

    Example:
        >>> squared_length(np.array([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]]))
        (25.0, 0.0)
    """
    total, own = gradients.sum(axis=0), np.square(gradients).sum(axis=1)
    n = len(gradients)
    value = float((total @ total - own.sum()) / (n * (n - 1)))
    if n < 3:
        return value, float("nan")
    left = total @ total - 2 * gradients @ total + own  # |sum without i|^2
    without = (left - (own.sum() - own)) / ((n - 1) * (n - 2))
    error = float(np.sqrt((n - 1) / n * np.square(without - without.mean()).sum()))
    return value, error
