"""Policies with gradients, in PyTorch: Gaussian, categorical, and a table for finite processes.

    log_prob(observations [B, d], actions [B, ...]) -> [B]      differentiable in the parameters
    entropy(observations) -> [B]
    numpy() -> the same policy without PyTorch, which acts, and is saved to a policy file

A network has two tanh layers of 64 (the paper's); its outputs are the mean of a Gaussian with diagonal covariance, or
the logits of a choice (Discrete) or of several (MultiDiscrete). Observations are normalised inside the policy: mean and
standard deviation are part of it, like its weights, but are not trained.
"""

from __future__ import annotations

import itertools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from steadyrl.common.checks import as_numbers, check_seed, is_number, plain_array, shown, whole_number
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.seeding import policy_generator
from steadyrl.errors import MissingExtraError, PolicyError
from steadyrl.policies.files import load_policy
from steadyrl.policies.networks import (
    HIDDEN,
    MOST,
    NetworkPolicy,
    Normalisation,
    action_outputs,
    action_shape,
    action_start,
    require_codecs,
)
from steadyrl.policies.tables import TabularPolicy

try:
    import torch
    from torch import Tensor, nn
except ImportError as _error:  # pragma: no cover
    raise MissingExtraError("training needs PyTorch; install it with: pip install 'steadyrl[train]'") from _error

_LARGEST_LOG_STD = 80
"""Its exponential and its inverse fit into single precision."""


class NetworkModule(nn.Module, ABC):
    """The common part of Gaussian and categorical policies: normalised observations, a tanh network, a numpy twin."""

    mean: Tensor
    std: Tensor

    def __init__(self, observations: ObservationCodec, actions: ActionCodec, hidden: Sequence[int], seed: int) -> None:
        super().__init__()
        self.observations, self.actions = observations, actions
        outputs, self.choices = action_outputs(actions)
        rng = policy_generator(check_seed(seed, PolicyError))
        try:
            sizes = [whole_number("a size in hidden", size, PolicyError, most=MOST) for size in hidden]
        except TypeError as error:
            raise PolicyError(
                f"hidden is {shown(hidden)}; it must be a list of whole numbers, as in (64, 64)"
            ) from error
        self.layers = network((observations.size, *sizes, outputs), rng=rng, last_gain=0.01)
        self.register_buffer("mean", torch.zeros(observations.size, dtype=torch.float64))
        self.register_buffer("std", torch.ones(observations.size, dtype=torch.float64))
        self.limit: float | None = None
        """The absolute value that normalised observations are clipped to; None if observations are not normalised."""
        self.environment = ""

    def normalise(self, mean: Any, std: Any, limit: float | None = None) -> None:
        """Normalise observations to (x - mean) / std, clipped to +-limit, by default the previous limit or 10."""
        size = len(self.mean)
        numbers = [_as_tensor(what, each).detach().to(self.mean) for what, each in (("mean", mean), ("std", std))]
        for what, found in zip(("mean", "std"), numbers, strict=True):
            if found.shape not in ((), (size,)) or not bool(found.isfinite().all()):
                raise PolicyError(f"{what} is {shown(found)}; it must be {size} finite numbers, one for each input")
        if not bool((numbers[1] > 0).all()):
            raise PolicyError(f"std is {shown(numbers[1])}; standard deviations must be above 0, since they divide")
        if limit is not None and not (is_number(limit) and 0 < limit < math.inf):
            raise PolicyError(f"limit is {shown(limit)}; it must be a positive number, or None")
        self.mean.copy_(numbers[0])
        self.std.copy_(numbers[1])
        self.limit = float(limit or self.limit or 10.0)

    def features(self, observations: Any) -> Tensor:
        """Return the network's inputs: observations, normalised, with the numbers of Discrete ones as unit vectors."""
        x = _as_tensor("observations", observations, self.mean.device)
        if self.observations.discrete and x.ndim == 1:
            numbers = _as_whole("observations", x) - int(self.observations.space.start)
            if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.observations.size:
                raise PolicyError(
                    f"observations go from {x.min().item()} to {x.max().item()}, which are not all in "
                    f"{self.observations.space}"
                )
            x = nn.functional.one_hot(numbers, self.observations.size)
        if x.ndim != 2 or x.shape[1] != self.observations.size:
            raise PolicyError(
                f"observations have shape {tuple(x.shape)}; they must be [B, {self.observations.size}], flattened"
            )
        if self.limit is not None:
            x = ((x - self.mean) / self.std).clamp(-self.limit, self.limit)
        return x.to(linears(self.layers)[0].weight.dtype)

    def outputs(self, features: Tensor) -> Tensor:
        """Return the network's outputs for features."""
        return forward(self.layers, features)

    def log_prob(self, observations: Any, actions: Any) -> Tensor:
        """Return log pi(action | observation), [B]."""
        return self.log_prob_and_entropy(self.features(observations), actions)[0]

    @abstractmethod
    def entropy(self, observations: Any) -> Tensor:
        """Return the entropy of the actions' distribution, [B]."""

    @abstractmethod
    def log_prob_and_entropy(self, features: Tensor, actions: Any) -> tuple[Tensor, Tensor]:
        """Return both from features, in one pass through the network."""

    def numpy(self) -> NetworkPolicy:
        """Return the same policy without PyTorch."""
        weights = tuple(np.ascontiguousarray(_array(layer.weight).T) for layer in linears(self.layers))
        biases = tuple(_array(layer.bias) for layer in linears(self.layers))
        log_std = _array(self.log_std) if isinstance(self, GaussianPolicy) else None
        seen = None if self.limit is None else Normalisation(_array(self.mean), _array(self.std), self.limit)
        start, shape = action_start(self.actions), action_shape(self.actions)
        return NetworkPolicy(weights, biases, log_std, start, shape, seen, self.choices, environment=self.environment)

    def act(self, observations: Any, rng: np.random.Generator) -> Any:
        """Return an action for each observation; for many calls, convert the policy once with `numpy()`."""
        return self.numpy().act(as_numbers("observations", observations, PolicyError), rng)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a policy file, which `collect`, `diagnose` and `evaluate` take."""
        self.numpy().save(path)


class GaussianPolicy(NetworkModule):
    """A Gaussian whose mean is the network's output; the diagonal covariance does not depend on the state.

    Actions outside the Box are clipped on their way into the environment; the log-probability is that of the action
    as drawn.
    """

    def __init__(
        self,
        observations: ObservationCodec,
        actions: ActionCodec,
        hidden: Sequence[int] = (HIDDEN, HIDDEN),
        *,
        seed: int = 0,
        log_std: float = 0.0,
    ) -> None:
        require_codecs(observations, actions)
        if not is_number(log_std) or not abs(log_std) <= _LARGEST_LOG_STD:
            raise PolicyError(
                f"log_std is {shown(log_std)}; it must be a number from {-_LARGEST_LOG_STD} to {_LARGEST_LOG_STD}, the "
                "logarithm of a standard deviation that single precision holds"
            )
        if not isinstance(actions.space, spaces.Box):
            raise PolicyError(f"a Gaussian policy needs Box actions, and these are {actions.space}")
        super().__init__(observations, actions, hidden, seed)
        self.log_std = nn.Parameter(torch.full((action_outputs(actions)[0],), float(log_std)))

    def log_prob_and_entropy(self, features: Tensor, actions: Any) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, [B] each."""
        mean = self.outputs(features)
        taken = _rows(actions, mean).to(mean.dtype)
        size = mean.shape[1]
        away = (taken - mean) * torch.exp(-self.log_std)
        log_prob = -0.5 * away.square().sum(dim=1) - self.log_std.sum() - 0.5 * size * math.log(2 * math.pi)
        return log_prob, self._entropy().expand(len(mean))

    def entropy(self, observations: Any) -> Tensor:
        """Return the entropy, the same for every observation, [B]."""
        return self._entropy().expand(len(self.features(observations)))

    def _entropy(self) -> Tensor:
        return self.log_std.sum() + 0.5 * len(self.log_std) * (1 + math.log(2 * math.pi))


class CategoricalPolicy(NetworkModule):
    """A softmax over the network's outputs: one choice for Discrete actions, independent ones for MultiDiscrete."""

    def __init__(
        self,
        observations: ObservationCodec,
        actions: ActionCodec,
        hidden: Sequence[int] = (HIDDEN, HIDDEN),
        *,
        seed: int = 0,
    ) -> None:
        require_codecs(observations, actions)
        if isinstance(actions.space, spaces.Box):
            raise PolicyError(
                f"a categorical policy needs Discrete or MultiDiscrete actions; these are {actions.space}"
            )
        super().__init__(observations, actions, hidden, seed)
        self._start = torch.as_tensor(action_start(actions)).reshape(1, -1)

    def log_prob_and_entropy(self, features: Tensor, actions: Any) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, [B] each."""
        outputs = self.outputs(features)
        taken = _rows(actions, outputs, 1 if self.choices is None else len(self.choices)).long()
        taken = taken - self._start.to(outputs.device)
        edges = [0, outputs.shape[1]] if self.choices is None else [0, *itertools.accumulate(self.choices)]
        log_prob = entropy = outputs.new_zeros(len(outputs))
        for i, (first, last) in enumerate(itertools.pairwise(edges)):
            all_of_them = outputs[:, first:last].log_softmax(dim=1)
            log_prob = log_prob + all_of_them.gather(1, taken[:, i : i + 1])[:, 0]
            entropy = entropy - (all_of_them.exp() * all_of_them).sum(dim=1)
        return log_prob, entropy

    def log_prob(self, observations: Any, actions: Any) -> Tensor:
        """Return log pi(action | observation), [B]."""
        features = self.features(observations)
        sizes = [linears(self.layers)[-1].out_features] if self.choices is None else list(self.choices)
        for i, size in enumerate(sizes):
            numbers = _as_whole("actions", _rows(actions, features, len(sizes)))[:, i]
            numbers = numbers - self._start.to(features.device)[0, i]
            if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < size:
                raise PolicyError(
                    f"actions of choice {i} go from {int(numbers.min())} to {int(numbers.max())}, counted from the "
                    f"space's first; there are {size}, so they must be 0 to {size - 1}"
                )
        return self.log_prob_and_entropy(features, actions)[0]

    def entropy(self, observations: Any) -> Tensor:
        """Return the entropy, [B]."""
        features = self.features(observations)
        first = self._start.expand(len(features), 1 if self.choices is None else len(self.choices))
        return self.log_prob_and_entropy(features, first)[1]


class SoftmaxTable(nn.Module):
    """A softmax policy of a finite process: one logit for each state and action."""

    def __init__(self, logits: Any) -> None:
        super().__init__()
        values = as_numbers("logits", logits, PolicyError)
        if values.ndim != 2 or np.isnan(values).any():
            raise PolicyError(f"logits have shape {values.shape}; they must be numbers [S, A], none of them nan")
        self.logits = nn.Parameter(torch.tensor(values))

    def log_prob(self, observations: Any, actions: Any) -> Tensor:
        """Return log pi(action | state), [B], for numbers of states and actions."""
        given = [_as_tensor(what, each) for what, each in (("states", observations), ("actions", actions))]
        if (
            given[0].ndim != 1
            or given[0].shape != given[1].shape
            or any(values.dtype.is_floating_point for values in given)
        ):
            of = [f"type {values.dtype} and shape {tuple(values.shape)}" for values in given]
            raise PolicyError(
                f"states are of {of[0]}, actions of {of[1]}; they must be whole numbers, one action for each state"
            )
        states, taken = (values.long() for values in given)
        for what, numbers, count in zip(("state", "action"), (states, taken), self.logits.shape, strict=True):
            if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
                raise PolicyError(
                    f"{what} {int(numbers.max())} is not in a table of shape {tuple(self.logits.shape)}; give a logit "
                    "for each state and action of the process"
                )
        return self.logits.log_softmax(dim=1)[states, taken]

    def numpy(self) -> TabularPolicy:
        """Return the same policy without PyTorch."""
        return TabularPolicy.of(_array(self.logits.softmax(dim=1)))


def make_policy(
    observations: ObservationCodec, actions: ActionCodec, *, hidden: Sequence[int] = (HIDDEN, HIDDEN), seed: int = 0
) -> NetworkModule:
    """Return a new policy for an environment's spaces: Gaussian for Box actions, else categorical."""
    require_codecs(observations, actions)
    kind = GaussianPolicy if isinstance(actions.space, spaces.Box) else CategoricalPolicy
    return kind(observations, actions, hidden, seed=seed)


def load_module(path: str | os.PathLike[str], observations: ObservationCodec, actions: ActionCodec) -> NetworkModule:
    """Read a policy file as a policy with gradients.

    Raises:
        PolicyError: if the policy does not fit the spaces.
        FileFormatError: if the file is not a policy's.
    """
    return as_module(load_policy(path, observations, actions), observations, actions)


def as_module(policy: NetworkPolicy, observations: ObservationCodec, actions: ActionCodec) -> NetworkModule:
    """Return a numpy policy as one with gradients."""
    if not isinstance(policy, NetworkPolicy):
        raise PolicyError(f"policy is {shown(policy)}; it must be a NetworkPolicy, as from load_policy")
    module = make_policy(observations, actions, hidden=[weight.shape[1] for weight in policy.weights[:-1]])
    with torch.no_grad():
        for layer, weight, bias in zip(linears(module.layers), policy.weights, policy.biases, strict=True):
            layer.weight.copy_(torch.as_tensor(weight.T))
            layer.bias.copy_(torch.as_tensor(bias))
        if isinstance(module, GaussianPolicy):
            module.log_std.copy_(torch.as_tensor(policy.log_std))
    if policy.normalisation is not None:
        module.normalise(policy.normalisation.mean, policy.normalisation.std, policy.normalisation.limit)
    module.environment = policy.environment
    return module


def network(sizes: Sequence[int], *, rng: np.random.Generator, last_gain: float) -> nn.ModuleList:
    """Return linear layers with orthogonal weights (gain sqrt 2, `last_gain` for the last) and zero biases."""
    layers = nn.ModuleList()
    for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        gain = last_gain if i == len(sizes) - 2 else math.sqrt(2)
        try:
            layer = nn.Linear(n_in, n_out, device="meta").to_empty(device="cpu")  # draws no random numbers
        except RuntimeError as error:  # so torch says that there is no memory
            raise PolicyError(
                f"a layer from {n_in:,} values to {n_out:,} takes more memory than there is; wrap the environment so "
                "that its observations and actions have fewer values"
            ) from error
        with torch.no_grad():
            layer.weight.copy_(torch.as_tensor(gain * _orthogonal(n_out, n_in, rng)))
            layer.bias.zero_()
        layers.append(layer)
    return layers


def linears(layers: nn.ModuleList) -> list[nn.Linear]:
    """Return the layers with their type, for the type checker."""
    return cast("list[nn.Linear]", list(layers))


def forward(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Return the outputs of linear layers with tanh between them."""
    last = len(layers) - 1
    for i, layer in enumerate(linears(layers)):
        x = nn.functional.linear(x, layer.weight, layer.bias)
        x = x if i == last else torch.tanh(x)
    return x


def _as_tensor(what: str, values: Any, device: Any = None) -> Tensor:
    """Return numbers as a tensor, or raise PolicyError."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_quantized or values.is_complex() or values.is_meta:
            raise PolicyError(f"{what} is {shown(values)}; it must be a dense tensor of real numbers")
        return values.to(device)
    found = plain_array(what, values, PolicyError)
    if found.dtype.kind not in "biuf":
        raise PolicyError(f"{what} is {shown(values)}; it must be an array or a tensor of numbers")
    if found.dtype == np.longdouble:  # torch does not have these
        found = found.astype(float)
    if found.dtype.kind == "u" and found.dtype.itemsize == 8:  # nor all of these
        found = found.astype(np.int64 if found.max(initial=0) < 1 << 63 else float)
    return torch.as_tensor(np.ascontiguousarray(found, dtype=found.dtype.newbyteorder("=")), device=device)


def _as_whole(what: str, values: Tensor) -> Tensor:
    """Return numbers of choices as whole numbers, or raise PolicyError: the fraction of others would be dropped."""
    found = values.long()
    if not torch.equal(found.to(values.dtype), values):
        raise PolicyError(f"{what} go from {values.min().item()} to {values.max().item()}; they must be whole numbers")
    return found


def _rows(actions: Any, like: Tensor, width: int | None = None) -> Tensor:
    """Return actions as [B, width] for rows [B, ...], or raise: those of another order would fit other observations."""
    rows, width = len(like), like.shape[1] if width is None else width
    given = _as_tensor("actions", actions, like.device)
    if given.ndim == 0 or len(given) != rows or given.numel() != rows * width:
        raise PolicyError(
            f"actions have shape {tuple(given.shape)}; for {rows} observations they must be {rows} actions of {width} "
            f"number{'s' if width > 1 else ''} each, shape ({rows}, {width})"
        )
    return given.reshape(rows, width)


def _orthogonal(rows: int, columns: int, rng: np.random.Generator) -> Any:
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))  # makes the draw uniform, and the same with every library of linear algebra
    return q if rows >= columns else q.T


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy().astype(float)
