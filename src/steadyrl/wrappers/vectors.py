"""What the wrappers for vector environments share: autoreset modes, seeds, and infos of single environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics
from numpy.typing import NDArray

from steadyrl.common.checks import as_numbers, is_whole, shown
from steadyrl.errors import WrapperError
from steadyrl.wrappers.rows import copied

Flags = NDArray[np.bool_]

if TYPE_CHECKING:
    AnyVectorWrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    AnyVectorWrapper = VectorWrapper  # which is not generic in Gymnasium 1.3


def autoreset_mode(envs: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the autoreset mode that a vector environment declares, or raise if it declares none."""
    if not isinstance(envs, VectorEnv):
        raise WrapperError(
            f"this is a {type(envs).__name__}, not a gymnasium.vector.VectorEnv; make one with gymnasium.make_vec or "
            "SyncVectorEnv (for a single environment use StaggeredStart or PerturbedStarts)"
        )
    mode = (envs.metadata or {}).get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise WrapperError(
            f"metadata['autoreset_mode'] of {type(envs.unwrapped).__name__} is {mode!r}; whether a reset takes a step "
            f"of its own changes every age, so it must be one of {[str(known) for known in AutoresetMode]}"
        )
    return mode


def check_copies(envs: VectorEnv[Any, Any, Any]) -> None:
    """Raise if the environments have different spaces, where these can be seen."""
    single = envs.unwrapped.single_observation_space, envs.unwrapped.single_action_space
    for i, env in enumerate(getattr(envs.unwrapped, "envs", ())):
        for name, expected, found in zip(
            ("observation", "action"), single, (env.observation_space, env.action_space), strict=True
        ):
            # Gymnasium lets the bounds of observations differ (observation_mode="different").
            if expected != found and (name == "action" or not is_space_dtype_shape_equiv(expected, found)):
                raise WrapperError(
                    f"copy {i} has the {name} space {found}, the others {expected}; all must have the same spaces"
                )


def check_inside(envs: VectorEnv[Any, Any, Any], name: str) -> None:
    """Raise if restarting single environments would spoil a wrapper inside, or is not possible in an AsyncVectorEnv."""
    layer: Any = envs
    while isinstance(layer, VectorWrapper):
        if isinstance(layer, RecordEpisodeStatistics | NormalizeReward | NormalizeObservation):
            wrapper = type(layer).__name__
            raise WrapperError(
                f"{wrapper} is inside {name}, where restarting one environment would wipe or change its statistics of "
                f"the others; wrap the other way round, with {wrapper} outermost"
            )
        layer = layer.env
    mode = layer.metadata.get("autoreset_mode")
    if isinstance(layer, AsyncVectorEnv) and mode == AutoresetMode.NEXT_STEP and not layer.shared_memory:
        raise WrapperError(
            "an AsyncVectorEnv without shared memory resets an environment twice if it is reset in the step after its "
            "end; use shared_memory=True, or autoreset_mode=AutoresetMode.SAME_STEP"
        )


def as_seed(seed: Any) -> int | None:
    """Return a seed as an int (None stays None), or raise WrapperError."""
    if seed is None:
        return None
    if not is_whole(seed) or seed < 0:
        raise WrapperError(
            f"seed is {shown(seed)}; it must be a whole number, 0 or more, or None for a new one every time"
        )
    return int(seed)


def as_seeds(seed: Any, num_envs: int) -> int | list[int | None] | None:
    """Return what `reset` of a vector environment takes: a seed, or a list with one per environment."""
    if not isinstance(seed, list | tuple) and not (isinstance(seed, np.ndarray) and seed.ndim):
        return as_seed(seed)
    if len(seed) != num_envs:
        raise WrapperError(f"there are {len(seed)} seeds for {num_envs} copies; give one for each, or a single number")
    return [as_seed(one) for one in seed]


def read_mask(options: dict[str, Any] | None) -> Flags | None:
    """Return the reset mask in the options, which are left as they are; raise WrapperError if they are no options."""
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise WrapperError(f"options is {shown(options)}; reset takes a dictionary of options, or None")
    return options.get("reset_mask")


def reset_some(
    envs: VectorEnv[Any, Any, Any], seed: int | list[int | None] | None, options: dict[str, Any] | None
) -> tuple[tuple[Any, dict[str, Any]], Flags | None]:
    """Reset all environments, or those of options["reset_mask"]; return what that gives, and the mask."""
    mask = read_mask(options)  # before the reset, which may take it out of the options
    found: tuple[Any, dict[str, Any]] = envs.reset(
        seed=as_seeds(seed, envs.num_envs),  # type: ignore[arg-type]  # Gymnasium's own take lists
        options=None if options is None else dict(options),
    )
    return found, mask


def single_observations(envs: VectorEnv[Any, Any, Any], batch: Any, copies: Flags) -> list[Any]:
    """Return the observations of some environments out of a batch."""
    rows = zip(iterate(envs.observation_space, batch), copies.tolist(), strict=True)
    return [copied(row) for row, wanted in rows if wanted]


def ended_copies(terminated: Any, truncated: Any, num_envs: int) -> Flags:
    """Return whose episodes ended in a step, or raise WrapperError if the flags are no booleans (or zeros and ones).

    Gymnasium's vector environments return arrays of booleans; one's own may return anything, and text would be true.
    """
    for flags in (terminated, truncated):
        if type(flags) is not np.ndarray or flags.dtype != np.bool_ or flags.shape != (num_envs,):
            return _as_flags("terminated", terminated, num_envs) | _as_flags("truncated", truncated, num_envs)
    ended: Flags = np.logical_or(terminated, truncated)
    return ended


def _as_flags(name: str, flags: Any, num_envs: int) -> Flags:
    found = as_numbers(name, flags, WrapperError)
    if found.shape != (num_envs,) or not np.isin(found, (0, 1)).all():
        raise WrapperError(
            f"the vector environment returned {name} = {shown(flags)}; it must be an array of {num_envs} booleans, one "
            "for each environment"
        )
    return found.astype(bool)


def cut_copies(infos: dict[str, Any]) -> Flags | None:
    """Return whose episodes were cut short in this step, from batched infos; None if there are none."""
    found = [part["staggered"] for part in (infos, infos.get("final_info", {})) if "staggered" in part]
    return np.logical_or.reduce(np.array(found, dtype=bool)) if found else None


def take_infos(infos: dict[str, Any], copies: Sequence[int]) -> list[dict[str, Any]]:
    """Take the infos of some environments out of batched infos: they are removed there, and returned as given."""
    taken: list[dict[str, Any]] = [{} for _ in copies]
    for key in [key for key in infos if f"_{key}" in infos]:
        mask: Any = infos.get(f"_{key}")
        if key not in infos or getattr(mask, "dtype", None) != np.bool_:  # an environment has keys of such names itself
            continue
        mask = infos[f"_{key}"] = mask.copy()
        places = [place for place, copy in enumerate(copies) if mask[copy]]
        if not places:
            continue
        value, having = infos[key], [copies[place] for place in places]
        found: Sequence[Any]
        if isinstance(value, dict):
            infos[key] = value = dict(value)
            found = take_infos(value, having)
        else:
            infos[key] = value.copy()
            # Gymnasium batches only Python's booleans as flags
            found = [bool(value[copy]) if isinstance(value[copy], np.bool_) else value[copy] for copy in having]
            infos[key][having] = None if value.dtype == object else np.zeros((), value.dtype)[()]
        for place, one in zip(places, found, strict=True):
            taken[place][key] = one
        mask[having] = False
        if not mask.any():
            del infos[key], infos[f"_{key}"]
    return taken


def put_info(envs: Any, infos: dict[str, Any], info: dict[str, Any], copy: int) -> None:
    """Add one environment's info as Gymnasium does: values in `infos[key]`, and who has one in `infos["_" + key]`."""
    infos.update(envs._add_info(infos, info, copy))
