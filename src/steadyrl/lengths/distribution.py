"""The distribution of episode lengths: T, the transitions from one terminal state to the next.

T counts the reset, so an episode of l actions in Gymnasium has T = l + 1. Episodes that were still running when
observation stopped are censored, and enter through the Kaplan-Meier estimate.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import as_numbers, plain_array
from steadyrl.common.values import hash_values, same_values
from steadyrl.errors import LengthsError, SteadyrlError

Array = NDArray[np.float64]


LONGEST = 20_000_000
"""Longest episode that is accepted, in actions: distributions take memory in proportion to it."""

_ROUNDING = 1e-12  # negative probabilities up to this are rounding


class HasLengths(Protocol):
    """Anything with Gymnasium's lengths of complete episodes, such as `Episodes`."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of actions in each episode."""


@dataclass(frozen=True, eq=False, repr=False)
class EpisodeLengths:
    """The distribution of T, the transitions from one terminal state to the next.

    Args:
        probabilities: P(T = k) for k = 0, 1, 2, ...; P(T = 0) must be 0, since a reset is a transition.

    Example:
        >>> EpisodeLengths.from_gymnasium([19, 199, 19, 199]).mean
        110.0
    """

    probabilities: Array

    def __post_init__(self) -> None:
        values = as_numbers("probabilities", self.probabilities, LengthsError)
        if values.ndim != 1 or not len(values):
            raise LengthsError(f"probabilities must be a list P(T = 0), P(T = 1), ...; got shape {values.shape}")
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            k = int(np.argmax(bad))
            raise LengthsError(f"P(T = {k}) is {values[k]}; it must be a number from 0 to 1")
        if values[0] != 0:
            raise LengthsError(
                f"P(T = 0) is {values[0]}, but an episode has at least one transition, its reset; entry k of "
                "probabilities is P(T = k), so the first must be 0 (for Gymnasium's lengths use from_gymnasium)"
            )
        if abs(values.sum() - 1) > 1e-9:
            raise LengthsError(f"the probabilities of episode lengths sum to {float(values.sum())!r}, not to 1")
        values = values[: int(np.flatnonzero(values)[-1]) + 1] / values.sum()
        values.flags.writeable = False
        object.__setattr__(self, "probabilities", values)

    def __eq__(self, other: object) -> bool:
        return same_values(self, other)

    def __hash__(self) -> int:
        return hash_values(self)

    def __repr__(self) -> str:
        distinct = np.count_nonzero(self.probabilities)
        return f"EpisodeLengths(mean={self.mean:.6g}, cv={self.cv:.3g}, distinct={distinct}, longest={self.longest})"

    @classmethod
    def from_gymnasium(cls, lengths: ArrayLike, *, censored: ArrayLike | None = None) -> EpisodeLengths:
        """Return the observed distribution of T = l + 1 for episodes of l actions.

        Args:
            lengths: Number of actions in each episode, as Gymnasium counts them.
            censored: Whether each episode was still running when observation stopped, so that only T > l + 1 is known.
                An episode that a time limit ended is *not* censored: the process really resets there. Censored
                episodes enter through the Kaplan-Meier (product-limit) estimate; if the longest episode is censored,
                the remaining probability is put one step after it.
        """
        counts = as_gymnasium_lengths(lengths)
        running = np.zeros(len(counts), dtype=bool) if censored is None else _as_flags(censored)
        if running.shape != counts.shape:
            raise LengthsError(f"censored has shape {running.shape}, but there are {len(counts)} lengths")
        if running.all():
            raise LengthsError(
                "all episodes are censored (still running when observation stopped), so nothing is known about their "
                "lengths; observe until some have ended"
            )
        ended = np.bincount(counts[~running] + 1)
        if not running.any():
            return cls(ended / ended.sum())
        size = int(counts.max()) + 3
        ends = np.zeros(size)
        ends[: len(ended)] = ended
        lost = np.bincount(counts[running] + 1, minlength=size)
        at_risk = (ends + lost)[::-1].cumsum()[::-1]  # T >= k, or seen running after k transitions
        hazard = np.divide(ends, at_risk, out=np.zeros(size), where=at_risk > 0)
        survive = np.cumprod(1 - hazard)
        probabilities = hazard * np.append(1.0, survive[:-1])
        probabilities[-1] += 1 - probabilities.sum() if survive[-1] > 1e-15 else 0.0
        return cls(probabilities / probabilities.sum())

    @classmethod
    def from_survival(cls, survival: ArrayLike) -> EpisodeLengths:
        """Return the distribution with P(T >= k) = survival[k] for k = 0, 1, ...; survival[0] and survival[1] are 1.

        Differences of survival probabilities can come out as -1e-16 by rounding; they are taken as 0.
        """
        values = as_numbers("survival", survival, LengthsError)
        if values.ndim != 1:
            raise LengthsError(f"survival has shape {values.shape}; it must be a list P(T >= 0), P(T >= 1), ...")
        probabilities = -np.diff(np.append(values, 0.0))
        nothing = np.abs(probabilities) < _ROUNDING
        nothing[1:] &= probabilities[1:] < 0  # a tail may be as small, but nothing ends before its first transition
        return cls(np.where(nothing, 0.0, probabilities))

    @classmethod
    def from_episodes(cls, episodes: HasLengths) -> EpisodeLengths:
        """Return the distribution of T in collected `Episodes`, which are all complete: nothing is censored."""
        if not hasattr(episodes, "lengths"):
            raise LengthsError(f"episodes is {type(episodes).__name__}, which has no lengths; give collected Episodes")
        return cls.from_gymnasium(episodes.lengths)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, column: str | int | None = None
    ) -> EpisodeLengths:
        """Return the distribution of T in one or several files: logs, csv, saved episodes (see `read_lengths`).

        Args:
            path: A file, a directory of monitor.csv files, or several of them; "-" is standard input.
            column: Name of the column with the lengths, or its index, counted from 0; None finds it by its name.

        Raises:
            FileFormatError: If a file cannot be read, or holds something other than lengths.
        """
        from steadyrl.lengths.files import load_lengths

        return load_lengths(path, column=column)

    @cached_property
    def survival(self) -> Array:
        """P(T >= k) for k = 0, 1, ..., the longest length."""
        return self.probabilities[::-1].cumsum()[::-1]

    @property
    def longest(self) -> int:
        """The largest possible T."""
        return len(self.probabilities) - 1

    @cached_property
    def mean(self) -> float:
        """E[T], which includes the reset: Gymnasium's mean episode length plus one."""
        return float(np.arange(len(self.probabilities)) @ self.probabilities)

    @cached_property
    def cv(self) -> float:
        """Coefficient of variation of T (standard deviation over mean): a rule of thumb, not a certificate."""
        k = np.arange(len(self.probabilities))
        return float(np.sqrt(((k - self.mean) ** 2) @ self.probabilities) / self.mean)

    @cached_property
    def period(self) -> int:
        """Greatest common divisor of the possible values of T; if it is above 1, the raw process never mixes."""
        return int(np.gcd.reduce(np.flatnonzero(self.probabilities)))


def _as_flags(censored: ArrayLike) -> NDArray[np.bool_]:
    values = plain_array("censored", censored, LengthsError)
    if values.dtype.kind not in "biuf" or (values.dtype != bool and not np.isin(values, (0, 1)).all()):
        raise LengthsError("censored must be a list of True and False, one for each length")
    return values.astype(bool)


def check_lengths(lengths: object, error: type[SteadyrlError] = LengthsError) -> None:
    """Raise `error` unless these are EpisodeLengths: whether bare numbers count the reset cannot be told."""
    if not isinstance(lengths, EpisodeLengths):
        raise error(
            f"lengths is {type(lengths).__name__}; give EpisodeLengths: EpisodeLengths.from_gymnasium(counts) for "
            "Gymnasium's numbers of actions, or EpisodeLengths.from_file(path) for a log"
        )


def as_gymnasium_lengths(lengths: ArrayLike | Sequence[int]) -> NDArray[np.int64]:
    """Return Gymnasium's lengths as integers, or raise LengthsError naming the first that is not a whole number."""
    try:
        values = plain_array("lengths", lengths, LengthsError)
    except (TypeError, ValueError) as error:
        if isinstance(error, LengthsError):
            raise
        raise LengthsError(f"lengths must be a list of whole numbers ({error})") from error
    if values.ndim != 1 or not len(values):
        raise LengthsError(
            f"lengths must be a list with the number of actions of at least one episode; got shape {values.shape}"
        )
    if values.dtype.kind not in "iuf":
        raise LengthsError(f"lengths must be whole numbers, not {values.dtype}")
    bad = ~(values >= 0) | (values != np.floor(values)) | ~np.isfinite(values)
    if bad.any():
        i = int(np.argmax(bad))
        raise LengthsError(f"lengths[{i}] is {values[i]}; an episode's number of actions is a whole number, 0 or more")
    if float(values.max()) > LONGEST:  # half precision ends at 65,504
        raise LengthsError(
            f"lengths[{int(np.argmax(values))}] is {values.max():.10g}; that cannot be a length: more than {LONGEST:,} "
            "actions in an episode are not supported (count in units of several steps if they are real)"
        )
    return values.astype(np.int64)
