"""The steady-state policy gradient, estimated: Theorem 5 with expectations as averages.

    F_SSPG = (E[T] - 1) Q(s, a) grad log pi(s, a),        averaged over s ~ rho given s not terminal, a ~ pi(s)

Q is the return from the action to the end of its episode. What depends on the state alone may be taken off it (a
baseline): the score averages to zero in every state, so the estimate stays unbiased and becomes less noisy.

Rollouts are independent of each other, times of one rollout are not; the standard error comes from groups of rollouts
(batch means), as that of a ratio: the number of samples that are neither null nor terminal varies too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import as_numbers, check_flag, is_number, shortened, shown
from steadyrl.errors import LengthsError, PolicyError, SteadyrlError
from steadyrl.rollouts.samples import Samples

Array = NDArray[np.float64]

GROUPS = 128
"""Largest number of groups of rollouts for the standard error, which is then good to 6%."""


@dataclass(frozen=True)
class SteadyStateGradient:
    """An estimated gradient of J_epi, flat and by parameter, with the standard error of each of its numbers."""

    vector: Array
    """[D], all parameters one after the other, in the policy's order."""
    standard_error: Array
    """[D], given E[T]: of the average over samples, times the factor; nan for fewer than two rollouts."""
    shapes: Mapping[str, tuple[int, ...]]
    """The parameters' names and shapes, in order."""
    factor: float
    """E[T] - 1, or 1 if it was left out."""
    samples: int
    """States that were neither null nor terminal."""

    @property
    def by_parameter(self) -> dict[str, Array]:
        """The gradient of each parameter, in its shape."""
        return self._split(self.vector)

    @property
    def standard_error_by_parameter(self) -> dict[str, Array]:
        """The standard error for each parameter, in its shape."""
        return self._split(self.standard_error)

    def _split(self, flat: Array) -> dict[str, Array]:
        found, first = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            found[name] = flat[first : first + size].reshape(shape)
            first += size
        return found


def steady_state_gradient(
    policy: Any,
    samples: Samples,
    average_episode_length: float,
    *,
    episode_length_factor: bool = True,
    baseline: Callable[[Any], Any] | Any = None,
) -> SteadyStateGradient:
    """Estimate the gradient of J_epi from steady-state samples (Theorem 5).

    With independent samples at steady state and the true E[T] the estimate is unbiased. So it is with an estimate of
    E[T] that is independent of the samples.

    Args:
        policy: a PyTorch module with log_prob(observations, actions) -> [B], whose parameters the gradient is for.
        samples: drawn by that very policy, late enough (see `diagnose`); null and terminal states are left out.
        average_episode_length: E[T] of the raw process, T = Gymnasium's length + 1; as in
            `samples.average_episode_length`.
        episode_length_factor: whether to multiply by E[T] - 1. Without it, as is common, the estimate is that of the
            gradient divided by E[T] - 1, which changes as the policy does.
        baseline: taken off the returns: a function of observations [B, ...] that does not depend on these
            samples, or numbers in the shape of `samples.returns`.

    Raises:
        PolicyError: if the policy has no log_prob, or no parameters; if log_prob or the baseline does not return one
            finite number for each sample.
        LengthsError: if E[T] is not a length, or no sample is left.

    Example:
        >>> from steadyrl import collect_samples, gallery, sspg
        >>> from steadyrl.policies import SoftmaxTable
        >>> process, _ = gallery.two_terminals()
        >>> policy = SoftmaxTable(np.zeros((4, 2)))
        >>> samples = collect_samples(process, policy.numpy(), 20_000, [30], backend="serial")
        >>> found = sspg.steady_state_gradient(policy, samples, samples.average_episode_length)
        >>> found.by_parameter["logits"][1].round(1).tolist()  # policy_gradient says 0.5, -0.5
        [0.5, -0.5]
    """
    import torch

    named = _parameters(policy)
    if not isinstance(samples, Samples):
        raise LengthsError(f"samples is {shown(samples)}; give Samples, as from collect_samples")
    length = float(average_episode_length) if is_number(average_episode_length) else math.nan
    if not (math.isfinite(length) and length > 1):
        raise LengthsError(
            f"average_episode_length is {shown(average_episode_length)}; E[T] counts the reset (Gymnasium's mean "
            "length + 1), so it is a finite number above 1"
        )
    check_flag("episode_length_factor", episode_length_factor, LengthsError)
    usable = ~samples.null & ~samples.terminal
    if not usable.any():
        raise LengthsError("every sample is null or terminal, so there is no action to learn from; take more rollouts")
    weights = samples.returns - _baseline(baseline, samples, usable)
    factor = length - 1 if episode_length_factor else 1.0
    parameters = list(named.values())
    sums, counts = [], []
    for group in np.array_split(np.arange(len(samples)), min(GROUPS, len(samples))):
        rows = np.zeros_like(usable)
        rows[group] = usable[group]
        counts.append(int(rows.sum()))
        if not counts[-1]:
            sums.append(np.zeros(sum(p.numel() for p in parameters)))
            continue
        log_prob = _log_prob(policy, samples.observations[rows], samples.actions[rows])
        along = torch.as_tensor(weights[rows], dtype=log_prob.dtype, device=log_prob.device)
        found = torch.autograd.grad((along * log_prob).sum(), parameters, allow_unused=True, materialize_grads=True)
        sums.append(torch.cat([part.detach().reshape(-1).double().cpu() for part in found]).numpy())
    mean, error = _ratio(np.stack(sums), np.array(counts, dtype=float))
    shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
    return SteadyStateGradient(factor * mean, factor * error, shapes, factor, int(usable.sum()))


def _ratio(sums: Array, counts: Array) -> tuple[Array, Array]:
    """Return sum(sums) / sum(counts) over groups, and its standard error."""
    groups = len(counts)
    mean: Array = sums.sum(axis=0) / counts.sum()
    if groups < 2:
        return mean, np.full_like(mean, np.nan)
    error: Array = np.std(sums - np.outer(counts, mean), axis=0, ddof=1) / (counts.mean() * math.sqrt(groups))
    return mean, error


def _parameters(policy: Any) -> dict[str, Any]:
    able = all(callable(getattr(policy, name, None)) for name in ("log_prob", "named_parameters"))
    if not able or isinstance(policy, type):
        raise PolicyError(
            f"policy is {shown(policy)}; it must be a PyTorch module with log_prob(observations, actions), as "
            "those in steadyrl.policies"
        )
    named = {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}
    if not named:
        raise PolicyError("the policy has no parameters that require a gradient; there is nothing to differentiate")
    return named


def _called(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's; what it raises becomes an error that says what it was given."""
    try:
        return function(*arguments)
    except SteadyrlError:
        raise
    except Exception as error:
        shapes = " and ".join(str(np.shape(argument)) for argument in arguments)
        raise PolicyError(
            f"{what} raised {type(error).__name__}: {shortened(error)}; it is called with numpy arrays of shape "
            f"{shapes}, and returns one number for each of their {len(arguments[0])} rows"
        ) from error


def _log_prob(policy: Any, observations: Any, actions: Any) -> Any:
    """Return log pi(action | observation), or raise: a column would be multiplied with the returns of all samples."""
    import torch

    found = _called("log_prob", policy.log_prob, observations, actions)
    if not isinstance(found, torch.Tensor) or found.shape != (len(actions),) or not found.requires_grad:
        what = (
            f"a tensor of shape {tuple(found.shape)}{'' if found.requires_grad else ' without gradients'}"
            if isinstance(found, torch.Tensor)
            else shown(found)
        )
        raise PolicyError(
            f"log_prob returned {what} for {len(actions)} samples; it must return a tensor of shape "
            f"({len(actions)},) with gradients, one number for each sample: sum over the parts of an action "
            "(.sum(dim=1)), and take a last axis of length 1 off (.squeeze(1))"
        )
    if not bool(torch.isfinite(found).all()):
        at = int(torch.argmin(torch.isfinite(found).int()))
        raise PolicyError(
            f"log_prob is {found[at].item()} for the action {shown(actions[at])} at the observation "
            f"{shown(observations[at])}; samples must be drawn by the very policy whose gradient is asked for, and its "
            "parameters be finite"
        )
    return found


def _baseline(baseline: Any, samples: Samples, usable: NDArray[np.bool_]) -> Any:
    if baseline is None:
        return 0.0
    if callable(baseline):
        given = _called("the baseline", baseline, samples.observations[usable])
        given = given.detach().cpu() if hasattr(given, "detach") else given
        what, shape = "the baseline's result", (int(usable.sum()),)
    else:
        given, what, shape = baseline, "baseline", samples.returns.shape
    values = as_numbers(what, given, PolicyError)
    if values.shape not in ((), shape):
        raise PolicyError(
            f"{what} has shape {values.shape}; it must be one number for each sample, {shape}: give an array of them, "
            "or a function of observations that returns them"
        )
    found = np.zeros_like(samples.returns)
    found[usable] = values[usable] if values.ndim and not callable(baseline) else values
    if not np.isfinite(found).all():
        raise PolicyError(f"{what} has the value {found[~np.isfinite(found)][0]}; all must be finite numbers")
    return found
