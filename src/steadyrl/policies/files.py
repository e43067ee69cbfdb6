"""Policy files: safetensors files whose metadata describe the policy.

A policy file is a safetensors file (a JSON header, then raw arrays) whose metadata says

    {"format": "steadyrl policy", "version": "1", "kind": "gaussian" | "categorical", "activation": "tanh"}

and which holds `layers.0.weight` [out, in], `layers.0.bias` [out], `layers.1.weight`, ... up to the output layer
(the mean, or the logits of all actions), and for a Gaussian policy `log_std` [actions].

A policy that normalises its observations, or has MultiDiscrete actions, is of version "2". With normalisation the file
also holds `observations.mean` and `observations.std` [in], and the metadata have "limit", the absolute value that
normalised observations are clipped to. With MultiDiscrete actions the metadata have "choices", as in "3,2": the number
of actions in each choice. Metadata of any version may have "environment", the id of the environment that the policy was
trained on, and "sha256", the digest of everything else in the file, which is verified when the file is loaded.
"""

from __future__ import annotations

import itertools
import os

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import shown
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.errors import FileFormatError, PolicyError
from steadyrl.policies.networks import (
    FORMAT,
    NetworkPolicy,
    Normalisation,
    action_shape,
    action_start,
    require_codecs,
    require_fit,
)
from steadyrl.policies.tensors import read_safetensors

Array = NDArray[np.float64]


def load_policy(path: str | os.PathLike[str], observations: ObservationCodec, actions: ActionCodec) -> NetworkPolicy:
    """Read a policy file and check that it fits the environment."""
    if not isinstance(path, str | os.PathLike) or not os.path.isfile(path):
        name = os.fspath(path) if isinstance(path, os.PathLike) else path
        raise PolicyError(
            f"policy is {shown(name, 300)}; it must be the path of a policy file, as policy.save(path) writes it"
        )
    require_codecs(observations, actions)
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") != FORMAT or metadata.get("version") not in ("1", "2"):
        raise FileFormatError(
            f"{os.fspath(path)!r} is a safetensors file, but its metadata {metadata} are not those of a steadyrl "
            "policy of version 1 or 2; save the policy with steadyrl"
        )
    if metadata.get("activation") != "tanh" or metadata.get("kind") not in ("gaussian", "categorical"):
        raise FileFormatError(f"{os.fspath(path)!r} holds a policy that this steadyrl does not know: {metadata}")
    depth = sum(name.endswith(".weight") for name in tensors)
    normalisation = None
    try:
        weights = tuple(np.array(tensors[f"layers.{i}.weight"].T, dtype=float, order="C") for i in range(depth))
        biases = tuple(tensors[f"layers.{i}.bias"].astype(float) for i in range(depth))
        log_std = tensors["log_std"].astype(float) if metadata["kind"] == "gaussian" else None
        if "limit" in metadata:
            mean, std = (tensors[f"observations.{name}"].astype(float) for name in ("mean", "std"))
            normalisation = Normalisation(mean, std, float(metadata["limit"]))
        choices = tuple(map(int, metadata["choices"].split(","))) if "choices" in metadata else None
    except KeyError as error:
        raise FileFormatError(f"{os.fspath(path)!r} has no tensor {error}; save the policy again") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise FileFormatError(f"{os.fspath(path)!r} is damaged ({error}); save the policy again") from error
    policy = NetworkPolicy(
        weights,
        biases,
        log_std,
        action_start(actions),
        action_shape(actions),
        normalisation,
        choices,
        environment=metadata.get("environment", ""),
    )
    _require_whole(policy, path)
    require_fit(policy, observations, actions, f" in {os.fspath(path)!r}")
    return policy


def _require_whole(policy: NetworkPolicy, path: str | os.PathLike[str]) -> None:
    """Raise FileFormatError if the shapes of the arrays do not fit each other, or some number is not finite."""
    layers = list(zip(policy.weights, policy.biases, strict=True))
    sound_layers = [weight.ndim == 2 and bias.shape == weight.shape[1:] for weight, bias in layers]
    wrong = [f"layer {i}" for i, sound in enumerate(sound_layers) if not sound]
    if not wrong:
        sizes = itertools.pairwise(weight.shape for weight in policy.weights)
        wrong = [f"layer {i + 1}" for i, (one, following) in enumerate(sizes) if one[1] != following[0]]
    if not wrong and layers:
        seen, log_std = policy.normalisation, policy.log_std
        inputs, outputs = policy.weights[0].shape[:1], policy.weights[-1].shape[1:]
        wrong += ["log_std"] if log_std is not None and log_std.shape != outputs else []
        if seen is not None:
            sound = seen.mean.shape == seen.std.shape == inputs and bool((seen.std > 0).all()) and seen.limit > 0
            wrong += [] if sound else ["the normalisation of observations"]
    wrong += [name for name, values in policy.tensors().items() if not np.isfinite(values).all()]
    if wrong:
        raise FileFormatError(
            f"{os.fspath(path)!r} is damaged: {', '.join(wrong)} cannot be what a policy has; save the policy again"
        )
