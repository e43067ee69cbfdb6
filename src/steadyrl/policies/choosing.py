"""Turns what a user gives as a policy into one: a name, a file, an array, a model, a function, an object with `act`."""

from __future__ import annotations

import inspect
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steadyrl.common.checks import shown
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.errors import PolicyError
from steadyrl.policies.files import load_policy
from steadyrl.policies.foreign import as_foreign_policy, is_zip, load_sb3_model
from steadyrl.policies.networks import (
    NetworkPolicy,
    Policy,
    UniformPolicy,
    action_start,
    random_gaussian_policy,
    require_fit,
)
from steadyrl.policies.tables import TabularPolicy

Array = NDArray[np.float64]


def resolve_policy(
    policy: Any, observations: ObservationCodec, actions: ActionCodec, *, seed: int
) -> tuple[Policy, str]:
    """Return the policy that the user asked for, and the name under which it is recorded."""
    if isinstance(policy, str) and policy == "uniform":
        return UniformPolicy(actions.space), "uniform"
    if isinstance(policy, str) and policy == "gaussian":
        if not isinstance(actions.space, spaces.Box):
            raise PolicyError(
                f'the "gaussian" policy needs Box actions, and this environment has {actions.space}; use "uniform", or '
                "a categorical policy file"
            )
        return random_gaussian_policy(observations.size, actions.shape, seed=seed), "gaussian"
    if isinstance(policy, str | os.PathLike):
        if not os.path.isfile(policy):  # False also where a name is too long for any file
            raise PolicyError(
                f'policy is {shown(os.fspath(policy), 300)}; it must be "uniform", "gaussian", or the path of a policy '
                "file or of a Stable-Baselines3 model (.zip)"
            )
        if is_zip(policy):
            return load_sb3_model(policy, observations, actions), Path(policy).name
        return load_policy(policy, observations, actions), Path(policy).name
    if isinstance(policy, TabularPolicy | np.ndarray | list):
        return _as_tabular(policy, observations, actions), "tabular"
    if isinstance(policy, NetworkPolicy):
        require_fit(policy, observations, actions, "")
    foreign = as_foreign_policy(policy, observations, actions)
    if foreign is not None:
        return foreign
    if callable(getattr(policy, "act", None)):
        _require_act(policy)
        chosen: Policy = policy
        return chosen, type(policy).__qualname__
    raise PolicyError(
        f'policy is {shown(policy)}; give "uniform", "gaussian", a policy file, a Stable-Baselines3 model, a torch '
        "module, a function of observations, an array [S, A] for a finite process, or an object with "
        "act(observations, rng)"
    )


def _require_act(policy: Any) -> None:
    """Raise PolicyError if a policy's act cannot be called with observations and a random generator."""
    try:
        signature = inspect.signature(policy.act)
    except (TypeError, ValueError):  # it was compiled, and does not say what it takes
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise PolicyError(
            f"the policy {type(policy).__qualname__} has act{signature}, which cannot be called as act(observations, "
            f"rng) ({error}); give it these two arguments: a batch of observations and a numpy random generator"
        ) from error


def _as_tabular(table: Any, observations: ObservationCodec, actions: ActionCodec) -> TabularPolicy:
    policy = table if isinstance(table, TabularPolicy) else TabularPolicy.of(table)
    shape, expected = policy.cumulative.shape, (observations.size, int(getattr(actions.space, "n", -1)))
    if not observations.discrete or shape != expected:
        raise PolicyError(
            f"a policy array needs Discrete observations and actions and the shape [S, A]; this one has shape {shape}, "
            f"the environment observations {observations.space} and actions {actions.space}"
        )
    return replace(policy, start=action_start(actions))
