"""Policies of any kind as one function of observations, and the random generators that wrappers draw from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from steadyrl.common.checks import shortened, shown
from steadyrl.errors import PolicyError, SteadyrlError


def batch_actor(policy: Any, action_space: Any, rng: np.random.Generator) -> Callable[[Any], Any]:
    """Return a function from batched observations to batched actions.

    Args:
        policy: an object with `act(observations, rng)`, a function of the observations, or None for actions drawn from
            the action space.
        action_space: the action space of the batch.
        rng: generator of the policy's noise, or of random actions.
    """
    if policy is None:
        action_space.seed(int(rng.integers(2**31)))
        return lambda observations: action_space.sample()
    if hasattr(policy, "act"):
        return _checked(lambda observations: policy.act(observations, rng), action_space)
    if callable(policy):
        return _checked(policy, action_space)
    raise PolicyError(
        f"policy is {shown(policy)}; it must have act(observations, rng), be a function of the observations, or be "
        "None for random actions"
    )


def single_actor(policy: Any, action_space: Any, rng: np.random.Generator) -> Callable[[Any], Any]:
    """Return a function from one observation to one action; a policy with `act` is given a batch of one."""
    if not hasattr(policy, "act"):
        return batch_actor(policy, action_space, rng)
    return _checked(lambda observation: policy.act(_as_batch(observation), rng)[0], action_space)


def generator_after_reset(
    env: gymnasium.Env[Any, Any], seed: int | None, before: np.random.Generator | None
) -> np.random.Generator:
    """Return the generator that a wrapper draws from after its environment was reset with this seed.

    This is `env.np_random`. Some environments do not seed that in a reset with a seed, or not as Gymnasium does. Then
    it is a generator of the wrapper's own with that seed, so that runs can be repeated.
    """
    if seed is None:
        return env.np_random if before is None else before
    return env.np_random if env.np_random_seed == seed else np.random.default_rng([seed, 1])


def _checked(act: Callable[[Any], Any], action_space: Any) -> Callable[[Any], Any]:
    """Return the same function with a check that its actions have the shape of the space and are numbers."""
    if not isinstance(action_space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return act
    fitting, what = ("biu", "whole numbers") if action_space.dtype.kind in "iu" else ("biuf", "numbers")

    def checked(observations: Any) -> Any:
        try:
            actions = act(observations)
            shaped = isinstance(getattr(actions, "shape", None), tuple) and hasattr(actions, "dtype")
            found = actions if shaped else np.asarray(actions)
        except SteadyrlError:
            raise
        except Exception as error:
            raise PolicyError(
                f"the policy raised {type(error).__name__}: {shortened(error)}; it is called with observations as the "
                f"environment returns them, and returns actions of {action_space}"
            ) from error
        kind = getattr(found.dtype, "kind", "i")  # PyTorch's have none
        if tuple(found.shape) != action_space.shape or kind not in fitting:
            raise PolicyError(
                f"the policy returned actions of shape {tuple(found.shape)} and type {found.dtype}; {action_space} "
                f"needs shape {action_space.shape} and {what}: one action for each observation"
            )
        return actions

    return checked


def _as_batch(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: _as_batch(value) for key, value in observation.items()}
    return np.asarray(observation)[None]
