"""Constructor arguments of wrappers as JSON, so that an environment's spec can be saved and made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from steadyrl.common.checks import as_numbers, plain_array, shown
from steadyrl.errors import DelaysError, WrapperError
from steadyrl.lengths.delays import Delays, refuse_lengths
from steadyrl.lengths.distribution import EpisodeLengths

_WRITTEN = {"probabilities", "distance", "lengths"}  # what `as_plain` makes of Delays


def as_plain(value: Any) -> Any:
    """Return a value as plain numbers, text, lists and dictionaries, as JSON can hold it."""
    try:
        return _plain(value)
    except RecursionError as error:
        raise WrapperError(
            f"an argument of the wrapper contains itself ({shown(value)}); give plain numbers"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Delays):
        lengths = None if value.lengths is None else value.lengths.probabilities.tolist()
        return {"probabilities": value.probabilities.tolist(), "distance": value.distance, "lengths": lengths}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def as_element(space: spaces.Space[Any], value: Any) -> Any:
    """Return a value as an element of the space: lists become arrays and tuples."""
    if isinstance(space, spaces.Dict) and isinstance(value, Mapping):
        return {key: as_element(space[key], one) if key in space.spaces else one for key, one in value.items()}
    if isinstance(space, spaces.Tuple) and isinstance(value, list | tuple) and len(value) == len(space.spaces):
        return tuple(as_element(part, one) for part, one in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary) and isinstance(
        value, list | tuple | range | int | float
    ):
        try:
            return plain_array("null_observation", value, WrapperError).astype(space.dtype)
        except (OverflowError, TypeError, ValueError) as error:
            raise WrapperError(
                f"null_observation is {shown(value)}, which is not in the observation space {space} ({error})"
            ) from error
    lossy = hasattr(value, "requires_grad") or isinstance(value, np.ma.MaskedArray)
    return plain_array("null_observation", value, WrapperError) if lossy else value


def as_delays(value: Any) -> Delays:
    """Return `Delays` from `Delays`, from what `as_plain` made of them, or from P(D = k), k = 0, 1, ..., as a list."""
    if isinstance(value, Delays):
        return value
    refuse_lengths(value)
    if isinstance(value, Mapping) and {"probabilities", "distance"} <= value.keys() <= _WRITTEN:
        lengths = value.get("lengths")
        return Delays(value["probabilities"], value["distance"], None if lengths is None else EpisodeLengths(lengths))
    if isinstance(value, Mapping | str):
        raise DelaysError(
            f"delays is {shown(value)}; give Delays (as from design_delays(lengths)), P(D = k) for k = 0, 1, ... as a "
            "list, or one delay, a whole number of steps ('auto' is for vector environments: StaggeredVectorEnv)"
        )
    return Delays(as_numbers("delays", value, DelaysError), float("nan"))


def check_single(env: Any, wrapper: str, for_vectors: str) -> None:
    """Raise if this is not a single environment, and say what to use for vector environments."""
    if isinstance(env, gymnasium.Env):
        return
    if isinstance(env, VectorEnv):
        raise WrapperError(
            f"this is a vector environment ({type(env.unwrapped).__name__}, {env.num_envs} copies), and {wrapper} is "
            f"for a single one; {for_vectors}"
        )
    raise WrapperError(f"env is {shown(env)}, not a gymnasium.Env; make one with gymnasium.make, and wrap that")
