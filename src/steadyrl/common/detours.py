"""The detour at the start of an episode: how many null steps the paper's perturbation inserts.

After every terminal state the perturbed process spends G steps in a null state before the first state of the next
episode, with G independent of everything else:

    one-step epsilon (Definition 2):   P(G = 1) = epsilon, P(G = 0) = 1 - epsilon
    recursive epsilon (section 6.2):   P(G = k) = (1 - epsilon) epsilon^k,  E[G] = epsilon / (1 - epsilon)

`exact.perturb` builds the perturbed process, `lengths.renewal` computes its phase distance from episode lengths, and
`wrappers.PerturbedStarts` perturbs a live environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import as_numbers, check_flag, check_rng, is_number, shown, whole_number
from steadyrl.errors import PerturbationError

Array = NDArray[np.float64]


MOST = 10**8
"""Most detours that are drawn at once: 0.8 GB of them."""


@dataclass(frozen=True)
class Perturbation:
    """A distribution of the detour at episode start.

    Args:
        epsilon: the probability of a detour, strictly between 0 and 1.
        recursive: whether each null step is followed by another with probability epsilon, so that the detour's length
            is geometric; otherwise a detour has at most one step.
        detour: the probabilities P(G = k), k = 0, 1, ..., of any other detour; give it or epsilon. See `from_detour`.

    Example:
        >>> Perturbation.for_average_episode_length(20).epsilon
        0.95
    """

    epsilon: float | None = None
    recursive: bool = True
    detour: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.detour is None):
            raise PerturbationError("give either epsilon or detour probabilities, and not both")
        check_flag("recursive", self.recursive, PerturbationError)
        if self.detour is not None:
            object.__setattr__(self, "detour", _as_detour(self.detour))
            return
        epsilon = self.epsilon
        if epsilon is None or not is_number(epsilon) or not 0 < epsilon < 1:
            raise PerturbationError(
                f"epsilon is {shown(epsilon)}; it must lie strictly between 0 (no detour, no mixing) and 1 (a detour "
                "that never ends); the paper uses Perturbation.for_average_episode_length(E[T]), that is 1 - 1/E[T]"
            )
        object.__setattr__(self, "epsilon", float(epsilon))
        object.__setattr__(self, "recursive", check_flag("recursive", self.recursive, PerturbationError))

    @classmethod
    def for_average_episode_length(cls, average_episode_length: float) -> Perturbation:
        """Return the paper's choice: recursive with epsilon = 1 - 1/E[T], which makes about half of all steps null."""
        if not is_number(average_episode_length) or not 1 < average_episode_length < float("inf"):
            raise PerturbationError(
                f"average_episode_length is {shown(average_episode_length)}; E[T] must be finite and above 1, since "
                "epsilon = 1 - 1/E[T] must lie between 0 and 1 (mind that E[T] counts the reset: Gymnasium's mean "
                "length plus one)"
            )
        return cls(1 - 1 / float(average_episode_length))

    @classmethod
    def from_detour(cls, probabilities: ArrayLike) -> Perturbation:
        """Return the perturbation whose detour has k null steps with probability probabilities[k]."""
        values = as_numbers("detour probabilities", probabilities, PerturbationError)
        if values.ndim != 1:
            raise PerturbationError(f"detour probabilities must be a list P(G = 0), P(G = 1), ...; got {values.shape}")
        return cls(detour=tuple(values.tolist()))

    @property
    def mean_detour(self) -> float:
        """E[G], the expected number of null steps per episode."""
        if self.detour is not None:
            return float(np.arange(len(self.detour)) @ np.array(self.detour))
        assert self.epsilon is not None
        return self.epsilon / (1 - self.epsilon) if self.recursive else self.epsilon

    def detour_probabilities(self, longest: int) -> Array:
        """Return P(G = k) for k = 0, ..., longest."""
        longest = whole_number("longest", longest, PerturbationError, least=0, most=MOST)
        k = np.arange(longest + 1)
        if self.detour is not None:
            return np.append(self.detour, np.zeros(longest + 1))[: longest + 1]
        assert self.epsilon is not None
        if self.recursive:
            return (1 - self.epsilon) * np.power(self.epsilon, k, dtype=float)
        return np.where(k == 0, 1 - self.epsilon, np.where(k == 1, self.epsilon, 0.0))

    def draw(self, count: int, *, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return `count` independent detour lengths."""
        count = whole_number("count", count, PerturbationError, least=0, most=MOST)
        rng = check_rng(rng, PerturbationError)
        if self.detour is not None:
            edges = np.cumsum(self.detour)
            return np.searchsorted(edges / edges[-1], rng.random(count), side="right")
        assert self.epsilon is not None
        if self.recursive:
            return rng.geometric(1 - self.epsilon, count) - 1
        return (rng.random(count) < self.epsilon).astype(np.int64)

    def _stages(self) -> tuple[Array, Array, Array]:
        """Return, for terminal states and then each null state, P(on to the next null), P(stay), P(to the start)."""
        if self.detour is None:
            assert self.epsilon is not None
            stay = self.epsilon if self.recursive else 0.0
            return np.array([self.epsilon, 0.0]), np.array([0.0, stay]), np.array([1 - self.epsilon, 1 - stay])
        left = np.cumsum(self.detour[::-1])[::-1]  # P(G >= k)
        onward = np.append(left[1:] / left[:-1], 0.0)  # P(G >= k + 1 | G >= k)
        return onward, np.zeros(len(onward)), np.array(self.detour) / left


def check_perturbation(perturbation: Any) -> Perturbation:
    """Return the perturbation, or raise PerturbationError if it is something else, such as a bare epsilon."""
    if not isinstance(perturbation, Perturbation):
        raise PerturbationError(
            f"perturbation is {shown(perturbation)}; it must be a Perturbation, such as Perturbation(0.9)"
        )
    return perturbation


def _as_detour(detour: tuple[float, ...]) -> tuple[float, ...]:
    values = as_numbers("detour probabilities", detour, PerturbationError)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any() or abs(values.sum() - 1) > 1e-9:
        raise PerturbationError(
            f"detour probabilities must be non-negative and sum to 1, P(G = k) for k = 0, 1, ...; got {shown(detour)}"
        )
    last = int(np.flatnonzero(values)[-1])
    if last == 0:
        raise PerturbationError(
            "the detour always has length 0, which perturbs nothing; give P(G = k) > 0 for some k >= 1"
        )
    kept = values[: last + 1] / values.sum()
    return tuple(kept.tolist())
