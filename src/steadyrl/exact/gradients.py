"""Exact policy gradients: the true one, Theorem 5's, and what classic estimators compute instead.

J_epi depends on the policy through the linear system of an episode; differentiating that system gives the true
gradient with one adjoint solve, whose solution is the expected visits:

    true:       dJ_epi/dtheta = sum_s x(s) sum_a Q(s, a) dpi(s, a)/dtheta,     x = b + x Q
    Theorem 5:                = (E[T] - 1) E[Q(s, a) grad log pi(s, a) | s not terminal],   s, a ~ rho
    classic:      E[Q_gamma(s, a) grad log pi(s, a)],   s, a ~ rho,   a constant discount gamma (appendix E)

Policies are softmax over logits [S, A], or any other differentiable policy through its score matrix
grad log pi(s, a).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import as_numbers
from steadyrl.errors import PolicyError
from steadyrl.exact.chain import episode_chain
from steadyrl.exact.process import LearningProcess, check_process
from steadyrl.exact.stationary import expected_visits, visits_of
from steadyrl.exact.tabular import as_policy, softmax_policy
from steadyrl.exact.values import as_discount, average_over_actions, require_one_reset_reward, values_of

Array = NDArray[np.float64]


def policy_gradient(
    process: LearningProcess, logits: ArrayLike | None = None, *, policy: ArrayLike | None = None, score: Any = None
) -> Array:
    """Return the true gradient of J_epi, by the adjoint of the episode's linear system.

    Args:
        process: the learning process.
        logits: the logits [S, A] of a softmax policy; the gradient then has the same shape.
        policy: the probabilities [S, A] of any other differentiable policy; give `score` with it, and no logits.
        score: grad log pi(s, a) for the policy's D parameters, [S, A, D], or sparse [S * A, D] with row s * A + a.

    Returns:
        [S, A] for logits, [D] for a policy with its score.

    Example:
        >>> from steadyrl import gallery
        >>> process, _ = gallery.two_terminals()
        >>> policy_gradient(process, np.zeros((4, 2)))[1].tolist()
        [0.5, -0.5]
    """
    pi, score = _parameterisation(process, logits, policy, score)
    visits, q = _visits_and_values(process, pi)
    # Terminal states: only the very first reset is part of J_epi, and its action is ignored unless an
    # [S, A] reward says otherwise.
    adjoint = np.where(process.terminal, process.initial, visits)
    return _along_scores(adjoint, pi, q, score)


def steady_state_policy_gradient(
    process: LearningProcess, logits: ArrayLike | None = None, *, policy: ArrayLike | None = None, score: Any = None
) -> Array:
    """Return (E[T] - 1) E[Q(s, a) grad log pi(s, a) | s not terminal], the right-hand side of Theorem 5.

    For a perturbed process the expectation is over states that are neither terminal nor null, and E[T] is that of
    the raw process. Arguments and result as for `policy_gradient`.
    """
    pi, score = _parameterisation(process, logits, policy, score)
    visits, q = _visits_and_values(process, pi)
    rho = visits / visits.sum()
    real = ~process.terminal & ~process.null_states
    raw_average_episode_length = float(1 + rho[real].sum() / rho[process.terminal].sum())  # Proposition 4
    given_not_terminal = np.where(real, rho, 0.0) / rho[real].sum() if rho[real].any() else np.zeros_like(rho)
    return (raw_average_episode_length - 1) * _along_scores(given_not_terminal, pi, q, score)


def classic_gradient(
    process: LearningProcess,
    logits: ArrayLike | None = None,
    discount: float | ArrayLike = 0.99,
    *,
    policy: ArrayLike | None = None,
    score: Any = None,
) -> Array:
    """Return E[Q_gamma(s, a) grad log pi(s, a)], s, a ~ rho: what few-step estimators compute (appendix E).

    It equals (1 - gamma)/gamma E[grad Q_gamma(s, a)], not the gradient of J_epi. With a number as discount, Q_gamma
    runs on through resets, as in the paper. For estimators whose returns stop at the end of an episode give the
    discount of each state: `discount=gamma * ~process.terminal`. Other arguments as for `policy_gradient`.
    """
    pi, score = _parameterisation(process, logits, policy, score)
    visits = expected_visits(process, pi)
    q = values_of(episode_chain(process, pi, as_discount(process, discount)))
    return _along_scores(visits / visits.sum(), pi, q, score)


@dataclass(frozen=True, repr=False)
class GradientBias:
    """How an estimated direction of ascent compares with the true gradient."""

    cosine: float
    """Cosine of the angle between them: 1 is the same direction; below 0, an ascent step makes performance worse."""
    angle: float
    """Angle between them, in degrees."""
    length_ratio: float
    """Length of the estimate over the length of the true gradient."""

    def __repr__(self) -> str:
        numbers = f"cosine={self.cosine:.4g}, angle={self.angle:.4g} degrees, length_ratio={self.length_ratio:.4g}"
        return f"GradientBias({numbers})"


def gradient_bias(
    process: LearningProcess,
    logits: ArrayLike | None = None,
    discount: float | ArrayLike = 0.99,
    *,
    policy: ArrayLike | None = None,
    score: Any = None,
) -> GradientBias:
    """Return how far `classic_gradient` is from `policy_gradient`, in direction and in length.

    The classic estimate lacks the factor E[T] - 1, so its length is usually too small. Where either gradient is zero,
    the direction is nan.
    """
    truth = policy_gradient(process, logits, policy=policy, score=score).ravel()
    classic = classic_gradient(process, logits, discount, policy=policy, score=score).ravel()
    lengths = float(np.linalg.norm(truth)), float(np.linalg.norm(classic))
    if 0.0 in lengths:
        return GradientBias(np.nan, np.nan, np.nan if lengths[0] == 0 else 0.0)
    unit, other = truth / lengths[0], classic / lengths[1]
    # Half-angle form: acos loses half the digits near 0 and 180 degrees.
    angle = 2 * np.arctan2(np.linalg.norm(unit - other), np.linalg.norm(unit + other))
    return GradientBias(float(np.cos(angle)), float(np.degrees(angle)), lengths[1] / lengths[0])


def _visits_and_values(process: LearningProcess, pi: Array) -> tuple[Array, Array]:
    require_one_reset_reward(process, pi)
    chain = episode_chain(process, pi)
    if process.layers is not None or process.n_states < 100_000:
        return visits_of(chain), values_of(chain)
    chain.require_finite()
    _ = chain.solver  # built once, then used from both sides at once
    with ThreadPoolExecutor(2) as pool:
        visits, q = pool.submit(visits_of, chain), pool.submit(values_of, chain)
        return visits.result(), q.result()


def _parameterisation(
    process: LearningProcess, logits: ArrayLike | None, policy: ArrayLike | None, score: Any
) -> tuple[Array, Any]:
    """Return the policy [S, A] and its score matrix, sparse [S * A, D], or None for softmax logits."""
    check_process(process)
    shape = (process.n_states, process.n_actions)
    if (logits is None) == (policy is None) or (policy is None) != (score is None):
        raise PolicyError("give either logits, or policy together with its score matrix")
    if logits is not None:
        pi = softmax_policy(logits)
        if pi.shape != shape:
            raise PolicyError(f"logits have shape {pi.shape}, but the process needs {shape}")
        return pi, None
    assert policy is not None
    pi = as_policy(process, policy)
    if sp.issparse(score):
        if score.ndim != 2 or score.dtype.kind not in "biuf":
            raise PolicyError(
                f"score is a sparse array of shape {score.shape} and type {score.dtype}; it must be real numbers "
                f"({shape[0]} x {shape[1]}, parameters), with a row for each state and action"
            )
        matrix = score.tocsr().astype(float)
    else:
        dense = as_numbers("score", score, PolicyError)
        if dense.shape[:2] != shape or dense.ndim != 3:
            raise PolicyError(f"score has shape {dense.shape}; it must be {shape} followed by the parameters")
        matrix = dense.reshape(-1, dense.shape[2])
    if not np.isfinite(matrix.data if sp.issparse(matrix) else matrix).all():
        raise PolicyError(
            "score has entries that are nan or inf; it must be d log pi(s, a) / d parameters, finite numbers"
        )
    if matrix.shape[0] != shape[0] * shape[1]:
        raise PolicyError(f"score has {matrix.shape[0]} rows; it needs one for each of {shape[0]} x {shape[1]}")
    return pi, matrix


def _along_scores(weights: Array, pi: Array, q: Array, score: Any) -> Array:
    """Return sum_s weights(s) sum_a pi(s, a) q(s, a) grad log pi(s, a)."""
    here = np.where(weights > 0, weights, 0.0)[:, None]
    advantage = np.where((here > 0) & (pi > 0), q - average_over_actions(pi, q)[:, None], 0.0)
    signal = here * pi * advantage
    if score is None:  # softmax: d log pi(s, a) / d logits(s, b) = 1(a = b) - pi(s, b)
        result: Array = signal
        return result
    # The score averages to zero in every state, so subtracting V changes nothing but rounding.
    gradient: Array = np.asarray(score.T @ signal.ravel()).ravel()
    return gradient
