"""Converts observations into rows of numbers, and a policy's actions into what an environment takes.

A policy sees batches [B, d] of observations flattened by Gymnasium's rules (a Discrete one becomes a unit
vector, a Dict is flattened key by key) and returns batches of actions: [B, *shape] for Box and MultiDiscrete, [B] for
Discrete. Actions outside a Box are clipped to it on their way into the environment, not in what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import utils
from numpy.typing import NDArray

from steadyrl.common.checks import shown
from steadyrl.environments.returned import as_observation, as_parts, as_state
from steadyrl.errors import PolicyError, RolloutError

Array = NDArray[np.float64]
Write = Callable[[Array, Any], None]


@dataclass(frozen=True)
class ObservationCodec:
    """Writes one observation, or a batch of them, into rows of numbers.

    A Discrete observation is kept as its number, counted from 0, and becomes a unit vector only where a policy needs
    one, since a process may have thousands of states.
    """

    space: Any
    size: int
    """d, the number of values in a flattened observation."""
    discrete: bool

    @property
    def width(self) -> int:
        """The number of values in a row."""
        return 1 if self.discrete else self.size

    def flattened(self, rows: Array) -> Array:
        """Return rows [B, width] as flattened observations [B, d]."""
        if not self.discrete:
            return rows
        try:
            flat = np.zeros((len(rows), self.size))
        except (MemoryError, ValueError) as error:
            raise RolloutError(
                f"observations are {self.space}, which a policy sees as vectors of {self.size:,} values: these take "
                f"more memory than there is ({error}); wrap the environment so that they are a Box, or fewer"
            ) from error
        flat[np.arange(len(rows)), rows[:, 0].astype(np.int64)] = 1.0
        return flat

    @property
    def plain(self) -> bool:
        """Whether an observation is a vector, and so a row of numbers already."""
        return isinstance(self.space, spaces.Box) and len(self.space.shape) == 1

    def writer(self) -> Write:
        """Return the function that writes an observation into a row."""
        space = self.space
        if isinstance(space, spaces.Discrete):
            start, count = int(space.start), int(space.n)

            def write_number(row: Array, observation: Any) -> None:
                row[0] = as_state(observation, start, count)

            return write_number
        if isinstance(space, spaces.Box):
            shape, dtype = space.shape, space.dtype

            def write_box(row: Array, observation: Any) -> None:
                row[:] = as_observation(observation, shape, dtype).reshape(-1)

            return write_box
        size = (self.size,)

        def write_any(row: Array, observation: Any) -> None:
            row[:] = as_observation(utils.flatten(space, as_parts(space, observation)), size)

        return write_any

    def rows(self, observations: Any, out: Array) -> None:
        """Write a batch of observations, as EnvPool and Gymnasium's vector environments return them, into rows."""
        space = self.space
        if self.discrete:
            out[:, 0] = np.asarray(observations) - int(space.start)
        elif isinstance(space, spaces.Box):
            out[:] = observations.reshape(len(out), -1)
        elif isinstance(space, spaces.Dict) and all(isinstance(part, spaces.Box) for part in space.values()):
            parts = [np.asarray(observations[key]).reshape(len(out), -1) for key in space.spaces]
            out[:] = np.concatenate(parts, axis=1)
        else:
            for i in range(len(out)):
                flat: Any = utils.flatten(space, _one_of(space, observations, i))
                out[i] = flat

    def sample_dtype(self) -> Any:
        """Return the type in which samples of observations are kept."""
        if self.discrete:
            return whole_dtype(self.space.start, self.space.start + self.space.n)
        return np.dtype(getattr(utils.flatten_space(self.space), "dtype", np.float64))

    def largest(self) -> float:
        """Return the largest value that samples can keep: finite in their type, or a whole number that is exact."""
        dtype = self.sample_dtype()
        if dtype.kind == "f":
            return float(min(np.finfo(dtype).max, np.finfo(np.float64).max))
        return float((1 << 53) - 1)

    def kept(self, rows: Array) -> Any:
        """Return rows in the form in which samples keep them: Discrete ones as numbers, all others unchanged."""
        return rows[..., 0].astype(np.int64) + int(self.space.start) if self.discrete else rows


@dataclass(frozen=True)
class ActionCodec:
    """Converts a batch of a policy's actions into what each environment copy takes."""

    space: Any
    shape: tuple[int, ...]
    dtype: Any
    low: Any
    high: Any
    first: Any = 0
    """The smallest number of a Discrete action, or of each part of a MultiDiscrete one."""
    end: Any = 0
    """The number after the largest."""

    def checked(self, actions: Any, batch: int) -> Any:
        """Return a batch of actions as an array, or raise PolicyError if shape or type do not fit the action space."""
        if isinstance(actions, np.ma.MaskedArray):
            raise PolicyError(
                "the policy's act returned a masked array, whose masked entries have no value; return an ordinary array"
            )
        shape = np.shape(actions)
        if shape != (batch, *self.shape):
            raise PolicyError(
                f"the policy's act returned actions of shape {shape} for {batch} observations; this environment's "
                f"actions are {self.space}, so the shape must be {(batch, *self.shape)}"
            )
        found = np.asarray(actions)
        if found.dtype.kind not in ("iu" if self.low is None else "iufb"):
            raise PolicyError(
                f"the policy's act returned actions of type {found.dtype}; this environment's actions are "
                f"{self.space}, so they must be {'whole ' if self.low is None else ''}numbers"
            )
        return found

    def require_actions(self, actions: Any, places: Iterable[int]) -> None:
        """Raise PolicyError if one of the actions at these places is none of the environment's.

        Values outside a Box are allowed, since they are clipped on their way into the environment.
        """
        fits = np.isfinite(actions) if self.low is not None else (actions >= self.first) & (actions < self.end)
        if fits.all():
            return
        wrong = next((place for place in places if not fits[place].all()), None)
        if wrong is not None:
            why = "is not finite" if self.low is not None else "is not one of them"
            raise PolicyError(
                f"the policy chose the action {shown(actions[wrong].tolist())}; this environment's actions are "
                f"{self.space}, and it {why}: mend the policy"
            )

    def sent(self, actions: Any) -> Any:
        """Return the actions as environments take them: clipped to the bounds of a Box, in the type of the space."""
        if self.low is None:  # numpy's integers: Gymnasium checks them faster than Python's
            return np.array(actions, dtype=self.dtype)  # a copy: an environment may change its action in place
        clipped = np.maximum(actions, self.low)
        np.minimum(clipped, self.high, out=clipped)
        return clipped.astype(self.dtype, copy=False)


def whole_dtype(first: Any, end: Any) -> Any:
    """Return the type in which samples keep whole numbers from `first` on and below `end`."""
    return np.dtype(np.int32 if np.min(first) >= -1 << 31 and np.max(end) <= 1 << 31 else np.int64)


def observation_codec(space: Any) -> ObservationCodec:
    """Return the codec of an observation space, or raise RolloutError if it cannot be flattened."""
    if _has_no_parts(space):
        raise RolloutError(
            f"observations are {space}, and Gymnasium cannot flatten a Dict or Tuple of nothing; leave it out"
        )
    try:
        size = int(utils.flatdim(space))
    except (NotImplementedError, ValueError) as error:
        raise RolloutError(
            f"observations are {space}, which Gymnasium cannot flatten to a fixed number of values ({error}); wrap "
            "the environment so that they are Box, Discrete or Dict"
        ) from error
    return ObservationCodec(space, size, isinstance(space, spaces.Discrete))


def _has_no_parts(space: Any) -> bool:
    """Return whether a space is a Dict or Tuple of nothing, or has one inside."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return False
    parts = list(space.values()) if isinstance(space, spaces.Dict) else space.spaces
    return not parts or any(map(_has_no_parts, parts))


def action_codec(space: Any) -> ActionCodec:
    """Return the codec of an action space, or raise RolloutError if it is of another kind."""
    if isinstance(space, spaces.Box):
        return ActionCodec(space, space.shape, space.dtype, space.low.astype(float), space.high.astype(float))
    if isinstance(space, spaces.Discrete):
        return ActionCodec(space, (), space.dtype, None, None, int(space.start), int(space.start + space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return ActionCodec(space, space.shape, space.dtype, None, None, space.start, space.start + space.nvec)
    raise RolloutError(
        f"actions are {space}; steadyrl knows Box, Discrete and MultiDiscrete: wrap the environment to have "
        "one of these"
    )


def _one_of(space: Any, batch: Any, i: int) -> Any:
    """Return the i-th observation of a batch."""
    if isinstance(space, spaces.Dict):
        return {key: _one_of(part, batch[key], i) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_one_of(part, batch[k], i) for k, part in enumerate(space.spaces))
    return batch[i]
