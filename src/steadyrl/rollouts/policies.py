"""Policies that act on batches, in numpy alone: uniform, random Gaussian, tabular, and networks from a file.

Anything with `act(observations, rng) -> actions` is a policy: observations [B, d], flattened, in; actions [B, ...]
out; all randomness from `rng`, the block's own generator.

A policy file is a safetensors file (a JSON header, then raw arrays) whose metadata says

    {"format": "steadyrl policy", "version": "1", "kind": "gaussian" | "categorical", "activation": "tanh"}

and which holds `layers.0.weight` [out, in], `layers.0.bias` [out], `layers.1.weight`, ... up to the output layer
(the mean, or the logits of all actions), and for a Gaussian policy `log_std` [actions].

A policy that normalises its observations, or makes several choices at once (MultiDiscrete), is of version "2": it also
holds `observations.mean` and `observations.std` [in] with "limit" in the metadata, the size that a normalised value is
kept within; and "choices" in the metadata, as in "3,2", the numbers of actions of each choice. Metadata of any version
may have "environment", the id of what the policy was trained on.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steadyrl.errors import FileFormatError, PolicyError
from steadyrl.rollouts.codecs import ActionCodec, ObservationCodec
from steadyrl.rollouts.seeding import policy_generator
from steadyrl.storage import write_atomically

Array = NDArray[np.float64]

HIDDEN = 64
"""Units in each of the two hidden layers of the paper's policy."""


class Policy(Protocol):
    """What the engine asks of a policy."""

    def act(self, observations: Array, rng: np.random.Generator) -> Any:
        """Return one action for each observation."""


@dataclass(frozen=True)
class UniformPolicy:
    """Actions drawn evenly from the action space, whatever the observation.

    As Gymnasium's own sample(): a Box with one bound draws from a shifted exponential, with none from a normal.
    """

    space: Any

    def act(self, observations: Array, rng: np.random.Generator) -> Any:
        """Return one action for each observation."""
        batch, space = len(observations), self.space
        if isinstance(space, spaces.Discrete):
            # Half the time of rng.integers on small batches, and even to within 2^-53 n.
            return (rng.random(batch) * int(space.n)).astype(np.int64) + int(space.start)
        if isinstance(space, spaces.MultiDiscrete):
            start = getattr(space, "start", np.zeros_like(space.nvec))
            return rng.integers(start, start + space.nvec, (batch, *space.shape))
        if space.dtype.kind in "iu":
            high = space.high.astype(np.int64) + 1
            return rng.integers(space.low.astype(np.int64), high, (batch, *space.shape))
        if space.is_bounded():
            return rng.uniform(space.low, space.high, (batch, *space.shape))
        return self._unbounded(batch, rng)

    def _unbounded(self, batch: int, rng: np.random.Generator) -> Array:
        space, shape = self.space, (batch, *self.space.shape)
        below, above = space.bounded_below, space.bounded_above
        values = rng.standard_normal(shape)
        tail = rng.exponential(size=shape)
        values = np.where(below & ~above, space.low + tail, values)
        values = np.where(above & ~below, space.high - tail, values)
        both = below & above
        low, high = np.where(both, space.low, 0.0), np.where(both, space.high, 1.0)
        return np.where(both, rng.uniform(low, high, shape), values)


@dataclass(frozen=True)
class TabularPolicy:
    """A policy [S, A] of a finite process, for environments with Discrete observations."""

    cumulative: Array
    start: int = 0
    """The number of the first action."""

    @classmethod
    def of(cls, probabilities: Any) -> TabularPolicy:
        """Return the policy with these rows of probabilities."""
        try:
            table = np.asarray(probabilities, dtype=float)
        except (ValueError, TypeError) as error:
            raise PolicyError(f"a policy array must be [S, A], of numbers ({error})") from error
        if table.ndim != 2 or not table.size or not (table >= 0).all() or np.abs(table.sum(axis=1) - 1).max() > 1e-9:
            raise PolicyError(
                f"a policy array must be [S, A] with rows of probabilities that sum to one; got shape {table.shape}, "
                f"entries from {table.min(initial=np.inf):g} to {table.max(initial=-np.inf):g}, row sums "
                f"{np.unique(table.sum(axis=-1)).tolist()[:3]}"
            )
        edges = np.cumsum(table, axis=1)
        return cls(edges / edges[:, -1:])

    def likeliest(self) -> TabularPolicy:
        """Return the policy that takes the likeliest action, the first of several."""
        probabilities = np.diff(self.cumulative, axis=1, prepend=0.0).round(12)
        return replace(self, cumulative=np.cumsum(np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)], axis=1))

    def act(self, observations: Array, rng: np.random.Generator) -> Any:
        """Return one action for each observation."""
        edges = self.cumulative[observations.argmax(axis=1)]
        return (rng.random(len(observations))[:, None] >= edges).sum(axis=1) + self.start


@dataclass(frozen=True)
class Normalisation:
    """Observations are seen as (x - mean) / std, kept within +-limit."""

    mean: Array
    std: Array
    limit: float = 10.0

    def __call__(self, observations: Array) -> Array:
        """Return normalised observations, [B, d]."""
        x = observations - self.mean
        x /= self.std
        np.maximum(x, -self.limit, out=x)
        return np.minimum(x, self.limit, out=x)


@dataclass(frozen=True)
class NetworkPolicy:
    """A network with tanh hidden layers; its outputs are a Gaussian's mean, or the logits of one or several choices."""

    weights: tuple[Array, ...]
    """[in, out] of each layer."""
    biases: tuple[Array, ...]
    log_std: Array | None
    """Logarithm of a Gaussian's standard deviations; None for a categorical policy."""
    start: Any = 0
    """The number of a categorical policy's first action; of each choice, for MultiDiscrete."""
    shape: tuple[int, ...] | None = None
    """The shape of one Gaussian or MultiDiscrete action, where it is not a plain vector."""
    normalisation: Normalisation | None = None
    choices: tuple[int, ...] | None = None
    """The numbers of actions of each choice of MultiDiscrete."""
    sampled: bool = True
    """Whether actions are drawn; if not, they are the mean, or the likeliest."""
    environment: str = ""
    """The id of the environment that the policy was trained on, where that is known."""

    def outputs(self, observations: Array) -> Array:
        """Return the network's outputs, [B, out]."""
        x = observations if self.normalisation is None else self.normalisation(observations)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = x @ weight
            x += bias
            np.tanh(x, out=x)
        x = x @ self.weights[-1]
        x += self.biases[-1]
        return x

    def act(self, observations: Array, rng: np.random.Generator) -> Any:
        """Return one action for each observation."""
        outputs = self.outputs(observations)
        if self.log_std is not None:
            if self.sampled:
                noise = rng.standard_normal(outputs.shape)
                noise *= np.exp(self.log_std)
                outputs += noise
            return outputs if self.shape is None else outputs.reshape(-1, *self.shape)
        if self.sampled:  # the largest of logits plus Gumbel noise is a draw from their softmax
            outputs += rng.gumbel(size=outputs.shape)
        if self.choices is None:
            choice: Any = outputs.argmax(axis=1)
            return choice + self.start
        edges = np.cumsum(self.choices)[:-1]
        several = np.stack([part.argmax(axis=1) for part in np.split(outputs, edges, axis=1)], axis=1)
        return (several if self.shape is None else several.reshape(-1, *self.shape)) + self.start

    def tensors(self) -> dict[str, Array]:
        """Return all numbers of the policy, under their names in a policy file."""
        found = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            found[f"layers.{i}.weight"], found[f"layers.{i}.bias"] = weight.T, bias
        if self.log_std is not None:
            found["log_std"] = self.log_std
        if self.normalisation is not None:
            found["observations.mean"], found["observations.std"] = self.normalisation.mean, self.normalisation.std
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a policy file."""
        kind = "categorical" if self.log_std is None else "gaussian"
        plain = self.normalisation is None and self.choices is None
        metadata = {"format": _FORMAT, "version": "1" if plain else "2", "kind": kind, "activation": "tanh"}
        if self.normalisation is not None:
            metadata["limit"] = repr(float(self.normalisation.limit))
        if self.choices is not None:
            metadata["choices"] = ",".join(map(str, self.choices))
        if self.environment:
            metadata["environment"] = self.environment
        write_safetensors(path, self.tensors(), metadata)


_FORMAT = "steadyrl policy"


def random_gaussian_policy(observation_size: int, action_shape: tuple[int, ...], *, seed: int) -> NetworkPolicy:
    """Return the paper's policy: two hidden layers of 64, random weights, diagonal covariance.

    Weights and biases are uniform in +-1/sqrt(inputs), PyTorch's default for a linear layer; the standard
    deviations are one.
    """
    rng = policy_generator(seed)
    sizes = (observation_size, HIDDEN, HIDDEN, int(np.prod(action_shape)))
    weights, biases = [], []
    for n_in, n_out in itertools.pairwise(sizes):
        bound = 1 / np.sqrt(n_in)
        weights.append(rng.uniform(-bound, bound, (n_in, n_out)))
        biases.append(rng.uniform(-bound, bound, n_out))
    return NetworkPolicy(tuple(weights), tuple(biases), np.zeros(sizes[-1]), shape=_beyond_vector(action_shape))


def load_policy(path: str | os.PathLike[str], observations: ObservationCodec, actions: ActionCodec) -> NetworkPolicy:
    """Read a policy file and check that it fits the environment."""
    if not isinstance(path, str | os.PathLike) or not Path(path).is_file():
        raise PolicyError(
            f"policy is {str(path)!r}; it must be the path of a policy file, as policy.save(path) writes it"
        )
    tensors, metadata = read_safetensors(path)
    if metadata.get("format") != _FORMAT or metadata.get("version") not in ("1", "2"):
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
    _require_fit(policy, observations, actions, f" in {os.fspath(path)!r}")
    return policy


def _require_whole(policy: NetworkPolicy, path: str | os.PathLike[str]) -> None:
    """Refuse a policy whose arrays do not fit each other, or that could only act on garbage."""
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


def _require_fit(policy: NetworkPolicy, observations: ObservationCodec, actions: ActionCodec, where: str) -> None:
    weights = policy.weights
    outputs, wanted = action_outputs(actions)
    fits = len(weights) > 0 and (weights[0].shape[0], weights[-1].shape[1]) == (observations.size, outputs)
    if fits and policy.choices == wanted and isinstance(actions.space, spaces.Box) == (policy.log_std is not None):
        return
    kind = "categorical" if policy.log_std is None else "gaussian"
    origin = f" trained on {policy.environment}" if policy.environment else ""
    raise PolicyError(
        f"the {kind} policy{where}{origin} has layers {[weight.shape for weight in weights]}; this environment has "
        f"{observations.size} observed values and actions {actions.space}; use the environment it was made for"
    )


def action_outputs(actions: ActionCodec) -> tuple[int, tuple[int, ...] | None]:
    """Return how many outputs a network needs for these actions, and the sizes of a MultiDiscrete's choices."""
    if isinstance(actions.space, spaces.Box):
        return int(np.prod(actions.shape)), None
    if isinstance(actions.space, spaces.Discrete):
        return int(actions.space.n), None
    choices = tuple(int(n) for n in actions.space.nvec.ravel())
    return sum(choices), choices


def action_start(actions: ActionCodec) -> Any:
    """Return the number of the first action, of each choice for MultiDiscrete; 0 for a Box."""
    if isinstance(actions.space, spaces.Discrete):
        return int(actions.space.start)
    return actions.space.start if isinstance(actions.space, spaces.MultiDiscrete) else 0


def action_shape(actions: ActionCodec) -> tuple[int, ...] | None:
    """Return the shape of an action that is neither a number nor a plain vector; else None."""
    return None if isinstance(actions.space, spaces.Discrete) else _beyond_vector(actions.shape)


def as_policy(policy: Any, observations: ObservationCodec, actions: ActionCodec, *, seed: int) -> tuple[Policy, str]:
    """Return the policy that a user named, and its name for the record."""
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
        if not Path(policy).is_file():
            raise PolicyError(
                f'policy is {os.fspath(policy)!r}; it must be "uniform", "gaussian", or the path of a policy file'
            )
        return load_policy(policy, observations, actions), Path(policy).name
    if isinstance(policy, TabularPolicy | np.ndarray | list):
        return _as_tabular(policy, observations, actions), "tabular"
    if isinstance(policy, NetworkPolicy):
        _require_fit(policy, observations, actions, "")
    if callable(getattr(policy, "act", None)):
        chosen: Policy = policy
        return chosen, type(policy).__qualname__
    raise PolicyError(
        f'policy is {policy!r}; give "uniform", "gaussian", a policy file, an array [S, A] for a finite process, or '
        "an object with act(observations, rng)"
    )


def _as_tabular(table: Any, observations: ObservationCodec, actions: ActionCodec) -> TabularPolicy:
    policy = table if isinstance(table, TabularPolicy) else TabularPolicy.of(table)
    shape, expected = policy.cumulative.shape, (observations.size, int(getattr(actions.space, "n", -1)))
    if not observations.discrete or shape != expected:
        raise PolicyError(
            f"a policy array needs Discrete observations and actions and the shape [S, A]; this one has shape {shape}, "
            f"the environment observations {observations.space} and actions {actions.space}"
        )
    return replace(policy, start=action_start(actions))


def _beyond_vector(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if len(shape) == 1 else shape


def write_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write float arrays as a safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor, dtype="<f8").tobytes()
        header[name] = {"dtype": "F64", "shape": list(np.shape(tensor)), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    head = json.dumps(header, sort_keys=True).encode()
    head += b" " * (-len(head) % 8)
    write_atomically(path, struct.pack("<Q", len(head)) + head + b"".join(parts))


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays and the metadata of a safetensors file of float32 or float64 tensors."""
    types = {"F64": "<f8", "F32": "<f4"}
    content = Path(path).read_bytes()
    try:
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        body = memoryview(content)[8 + length :]
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise TypeError("its metadata are not an object")
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(body[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f"{os.fspath(path)!r} is not a safetensors file of floats, or it is damaged ({error})"
        ) from error
    return tensors, metadata
