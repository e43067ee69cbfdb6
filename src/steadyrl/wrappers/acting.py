"""What acts in an environment, and what it draws from: policies of any kind as one function, and generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from steadyrl.errors import PolicyError


def batch_actor(policy: Any, action_space: Any, rng: np.random.Generator) -> Callable[[Any], Any]:
    """Return a function from batched observations to batched actions.

    `policy` has `act(observations, rng)`, as the policies of rollouts have, or is a function of the observations, or
    None: then actions are drawn from the space.
    """
    if policy is None:
        action_space.seed(int(rng.integers(2**31)))
        return lambda observations: action_space.sample()
    if hasattr(policy, "act"):
        return lambda observations: policy.act(observations, rng)
    if callable(policy):
        found: Callable[[Any], Any] = policy
        return found
    raise PolicyError(
        f"policy is {policy!r}; it must have act(observations, rng), be a function of the observations, or be None for "
        "random actions"
    )


def single_actor(policy: Any, action_space: Any, rng: np.random.Generator) -> Callable[[Any], Any]:
    """Return a function from one observation to one action; a policy with `act` is given a batch of one."""
    if not hasattr(policy, "act"):
        return batch_actor(policy, action_space, rng)
    return lambda observation: policy.act(_as_batch(observation), rng)[0]


def generator_after_reset(
    env: gymnasium.Env[Any, Any], seed: int | None, before: np.random.Generator | None
) -> np.random.Generator:
    """Return what a wrapper draws from after its environment was reset with this seed.

    It is `env.np_random`. Some environments do not seed that in a reset with a seed, or not as Gymnasium does: then it
    is a generator of the wrapper's own with that seed, so that what is drawn can be had again.
    """
    if seed is None:
        return env.np_random if before is None else before
    return env.np_random if env.np_random_seed == seed else np.random.default_rng([seed, 1])


def _as_batch(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: _as_batch(value) for key, value in observation.items()}
    return np.asarray(observation)[None]
