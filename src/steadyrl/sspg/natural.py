"""The natural gradient: one step along the policy gradient, measured by how much it changes the policy.

    x = F^-1 g,       F = E[grad log pi grad log pi^T]            the Fisher information at the batch's states
    step = sqrt(2 max_kl / x.F x) x                               so that KL(before, after) is max_kl, nearly

The gradient is that of Theorem 5; only the ruler is another one, as with Adam. Its length cancels, the factor E[T] - 1
with it. F is never formed: F v is the derivative of (grad KL).v, and conjugate gradients need nothing else (as in TRPO,
whose line search is left out).

A Gaussian's deviation is a few numbers that every state agrees on, so that the natural gradient would move it far in
each step. On Pendulum-v1 it fell from 1 to 0.1 as soon as the task was learnt, the policy no longer found out what it
had got wrong, and returns fell from -180 to -680 (seed 0, 300,000 steps). So the deviation takes a tenth of its step;
returns then stay at -160.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from steadyrl.policies.modules import GaussianPolicy, NetworkModule

_ITERATIONS = 10  # of conjugate gradients
_DAMPING = 0.1  # added to F, which few states leave singular; trials on HalfCheetah-v5 went worse with 0.01
_DEVIATION = 0.1  # of its step, what a Gaussian's deviation takes
_SMALL = 1e-10  # squared residual, of a gradient of length 1, at which the iteration ends


def natural_step(policy: NetworkModule, loss: Tensor, features: Tensor, max_kl: float) -> float:
    """Take a step down the loss after which the policy differs by about `max_kl`; return the gradient's norm.

    Args:
        policy: the policy, which is changed.
        loss: the loss as a function of its parameters.
        features: [B, d], the states at which policies are compared.
        max_kl: the mean Kullback-Leibler divergence of the policies before and after, in nats.

    Returns a norm that is not finite, and takes no step, where the gradient is not finite.
    """
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    gradient = _flat(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))
    norm = float(gradient.norm())
    if not math.isfinite(norm) or norm == 0:
        return norm
    slope = _flat(torch.autograd.grad(divergence(policy, features), parameters, create_graph=True))

    def fisher(vector: Tensor) -> Tensor:
        product = _flat(torch.autograd.grad((slope * vector).sum(), parameters, retain_graph=True))
        return product + _DAMPING * vector

    along = conjugate_gradients(fisher, gradient / norm)
    step = along * torch.sqrt(2 * max_kl / (along @ fisher(along)))
    with torch.no_grad():
        for parameter, part in zip(parameters, torch.split(step, [p.numel() for p in parameters]), strict=True):
            part = part.reshape(parameter.shape)
            parameter.sub_(_DEVIATION * part if parameter is getattr(policy, "log_std", None) else part)
    return norm


def divergence(policy: NetworkModule, features: Tensor) -> Tensor:
    """Return the mean of KL(policy now, policy), a function of the parameters that is 0, and least, where they are."""
    outputs = policy.outputs(features)
    now = outputs.detach()
    if isinstance(policy, GaussianPolicy):
        log_std = policy.log_std
        variance_now = (2 * log_std.detach()).exp()
        each = ((outputs - now).square() + variance_now) / (2 * (2 * log_std).exp()) + log_std - log_std.detach() - 0.5
        return each.sum(dim=1).mean()
    edges = [0, outputs.shape[1]] if policy.choices is None else [0, *itertools.accumulate(policy.choices)]
    total = outputs.new_zeros(())
    for first, last in itertools.pairwise(edges):
        before, after = now[:, first:last].log_softmax(dim=1), outputs[:, first:last].log_softmax(dim=1)
        total = total + (before.exp() * (before - after)).sum(dim=1).mean()
    return total


def conjugate_gradients(product: Callable[[Tensor], Tensor], right: Tensor, iterations: int = _ITERATIONS) -> Tensor:
    """Return x with A x = right, nearly, for a positive definite A that is given as a product.

    Example:
        >>> conjugate_gradients(lambda v: torch.tensor([2.0, 4.0]) * v, torch.tensor([2.0, 2.0])).tolist()
        [1.0, 0.5]
    """
    found = torch.zeros_like(right)
    residual, direction = right.clone(), right.clone()
    squared = residual @ residual
    for _ in range(iterations):
        image = product(direction)
        length = squared / (direction @ image)
        found += length * direction
        residual -= length * image
        before, squared = squared, residual @ residual
        if float(squared) < _SMALL:
            break
        direction = residual + squared / before * direction
    return found


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])
