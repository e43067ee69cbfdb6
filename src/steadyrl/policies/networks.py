"""Policies that act on batches and need numpy only: uniform actions, and networks with tanh hidden layers.

Anything with `act(observations, rng) -> actions` is a policy: observations [B, d], flattened, in; actions [B, ...]
out; all randomness from `rng`, the block's own generator.
"""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steadyrl.common.checks import check_rng, check_seed, shown, whole_number
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.seeding import policy_generator
from steadyrl.errors import PolicyError
from steadyrl.policies.tensors import write_safetensors

Array = NDArray[np.float64]


FORMAT = "steadyrl policy"
"""The `format` of a policy file's metadata."""

HIDDEN = 64
"""Units in each of the two hidden layers of the paper's policy."""

MOST = 10**7
"""Most values of an observation or an action, and most units of a layer."""


class Policy(Protocol):
    """The interface that collecting asks of a policy."""

    def act(self, observations: Array, rng: np.random.Generator) -> Any:
        """Return one action for each observation."""


@dataclass(frozen=True)
class UniformPolicy:
    """Draws actions uniformly from the action space, whatever the observation.

    Like Gymnasium's own `space.sample()`, it draws from a shifted exponential distribution where a Box has one bound,
    and from a standard normal one where it has none.
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
            kind: Any = np.uint64 if space.dtype == np.uint64 else np.int64
            low, high = space.low.astype(kind), space.high.astype(kind)
            return rng.integers(low, high, (batch, *space.shape), dtype=kind, endpoint=True)
        if space.is_bounded():
            return _between(space.low, space.high, (batch, *space.shape), rng)
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
        return np.where(both, _between(low, high, shape, rng), values)


def _between(low: Array, high: Array, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return uniform draws; bounds whose difference is no longer a number (1e308 and -1e308) are halved meanwhile."""
    low, high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    with np.errstate(over="ignore"):
        scale = np.where(np.isfinite(high - low), 1.0, 2.0)
    return np.asarray(scale * rng.uniform(low / scale, high / scale, shape))


def require_rows(observations: Any, size: int, how: str) -> None:
    """Raise PolicyError unless observations are an array [B, size]: others would be taken for another batch."""
    if not isinstance(observations, np.ndarray) or observations.ndim != 2 or observations.shape[1] != size:
        what = shown(getattr(observations, "shape", observations))
        raise PolicyError(f"observations are {type(observations).__name__} {what}; give an array [B, {size}], {how}")


@dataclass(frozen=True)
class Normalisation:
    """Normalises observations to (x - mean) / std and clips them to +-limit."""

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
    """A network with tanh hidden layers, whose outputs are the mean of a Gaussian or the logits of choices."""

    weights: tuple[Array, ...]
    """The weight matrix [in, out] of each layer."""
    biases: tuple[Array, ...]
    log_std: Array | None
    """Logarithm of a Gaussian's standard deviations; None for a categorical policy."""
    start: Any = 0
    """The number of a categorical policy's first action; for MultiDiscrete, one such number for each choice."""
    shape: tuple[int, ...] | None = None
    """The shape of one Gaussian or MultiDiscrete action, where it is not a plain vector."""
    normalisation: Normalisation | None = None
    choices: tuple[int, ...] | None = None
    """For MultiDiscrete actions, the number of actions in each choice; otherwise None."""
    sampled: bool = True
    """Whether actions are sampled; if not, the policy takes the mean, or the most likely action."""
    environment: str = ""
    """The id of the environment that the policy was trained on, or "" if that is not known."""

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
        require_rows(observations, len(self.weights[0]), "flattened")
        check_rng(rng, PolicyError)
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
        """Return all arrays of the policy, under the names that they have in a policy file."""
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
        metadata = {"format": FORMAT, "version": "1" if plain else "2", "kind": kind, "activation": "tanh"}
        if self.normalisation is not None:
            metadata["limit"] = repr(float(self.normalisation.limit))
        if self.choices is not None:
            metadata["choices"] = ",".join(map(str, self.choices))
        if self.environment:
            metadata["environment"] = self.environment
        write_safetensors(path, self.tensors(), metadata)


def random_gaussian_policy(observation_size: int, action_shape: tuple[int, ...], *, seed: int) -> NetworkPolicy:
    """Return the paper's policy: two hidden layers of 64, random weights, diagonal covariance.

    Weights and biases are uniform in +-1/sqrt(inputs), PyTorch's default for a linear layer; the standard
    deviations are one.
    """
    rng = policy_generator(check_seed(seed, PolicyError))
    try:
        action_shape = tuple(
            whole_number("a size in action_shape", size, PolicyError, most=MOST) for size in action_shape
        )
    except TypeError as error:
        raise PolicyError(f"action_shape is {shown(action_shape)}; it must be a tuple of whole numbers") from error
    whole_number("the number of actions' values", math.prod(action_shape), PolicyError, most=MOST)
    observation_size = whole_number("observation_size", observation_size, PolicyError, most=MOST)
    sizes = (observation_size, HIDDEN, HIDDEN, int(np.prod(action_shape)))
    weights, biases = [], []
    for n_in, n_out in itertools.pairwise(sizes):
        bound = 1 / np.sqrt(n_in)
        weights.append(rng.uniform(-bound, bound, (n_in, n_out)))
        biases.append(rng.uniform(-bound, bound, n_out))
    return NetworkPolicy(tuple(weights), tuple(biases), np.zeros(sizes[-1]), shape=_beyond_vector(action_shape))


def require_codecs(observations: Any, actions: Any) -> None:
    """Raise PolicyError unless these are codecs: a policy needs to know how spaces become rows of numbers."""
    for what, given, kind in (("observations", observations, ObservationCodec), ("actions", actions, ActionCodec)):
        if not isinstance(given, kind):
            raise PolicyError(
                f"{what} is {shown(given)}; it must be the codec of a space: "
                f"{what[:-1]}_codec(space) of steadyrl.environments.codecs"
            )


def action_outputs(actions: ActionCodec) -> tuple[int, tuple[int, ...] | None]:
    """Return the number of outputs that a network needs for these actions, and the sizes of MultiDiscrete choices."""
    if isinstance(actions.space, spaces.Box):
        return int(np.prod(actions.shape)), None
    if isinstance(actions.space, spaces.Discrete):
        return int(actions.space.n), None
    choices = tuple(int(n) for n in actions.space.nvec.ravel())
    return sum(choices), choices


def action_start(actions: ActionCodec) -> Any:
    """Return the number of the first action (for MultiDiscrete, of each choice), which is 0 for a Box."""
    if isinstance(actions.space, spaces.Discrete):
        return int(actions.space.start)
    return actions.space.start if isinstance(actions.space, spaces.MultiDiscrete) else 0


def action_shape(actions: ActionCodec) -> tuple[int, ...] | None:
    """Return the shape of an action, or None if it is a single number or a plain vector."""
    return None if isinstance(actions.space, spaces.Discrete) else _beyond_vector(actions.shape)


def _beyond_vector(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if len(shape) == 1 else shape


def require_fit(policy: NetworkPolicy, observations: ObservationCodec, actions: ActionCodec, where: str) -> None:
    """Raise PolicyError unless the policy takes this environment's observations and returns its actions."""
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
