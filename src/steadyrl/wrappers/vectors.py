"""What the cures for many copies share: autoreset modes, masked resets, batched observations and infos."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics
from numpy.typing import NDArray

from steadyrl.errors import CopyLostError, WrapperError

Flags = NDArray[np.bool_]
VectorPolicy = Callable[[Any], Any]

_DYING = 5.0  # seconds in which a process whose pipe is closed has ended


def autoreset_mode(envs: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the mode that a vector environment declares, or say that it declares none."""
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
    """Compare the spaces of the copies, where they can be seen."""
    single = envs.unwrapped.single_observation_space, envs.unwrapped.single_action_space
    for i, env in enumerate(getattr(envs.unwrapped, "envs", ())):
        for name, expected, found in zip(
            ("observation", "action"), single, (env.observation_space, env.action_space), strict=True
        ):
            # Gymnasium lets the bounds of observations differ (observation_mode="different").
            if expected != found and (name == "action" or not is_space_dtype_shape_equiv(expected, found)):
                raise WrapperError(
                    f"copy {i} has the {name} space {found}, the others {expected}; copies must be alike"
                )


def check_inside(envs: VectorEnv[Any, Any, Any], name: str) -> None:
    """Refuse what cannot stand that single copies are restarted: statistics of all copies, and Gymnasium's own gaps."""
    layer: Any = envs
    while isinstance(layer, VectorWrapper):
        if isinstance(layer, RecordEpisodeStatistics | NormalizeReward | NormalizeObservation):
            wrapper = type(layer).__name__
            raise WrapperError(
                f"{wrapper} is inside {name}, where restarting a copy would wipe or change what it knows of the "
                f"others; wrap the other way round, {wrapper} outermost"
            )
        layer = layer.env
    mode = layer.metadata.get("autoreset_mode")
    if isinstance(layer, AsyncVectorEnv) and mode == AutoresetMode.NEXT_STEP and not layer.shared_memory:
        raise WrapperError(
            "an AsyncVectorEnv without shared memory resets a copy twice if it is reset in the step after its end; "
            "use shared_memory=True, or autoreset_mode=AutoresetMode.SAME_STEP"
        )


def as_seed(seed: Any) -> int | None:
    """Return a seed as an int (None stays None), or say what is wrong with it."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise WrapperError(f"seed is {seed!r}; it must be a whole number, 0 or more, or None for another every time")
    return int(seed)


def as_seeds(seed: Any, num_envs: int) -> int | list[int | None] | None:
    """Return what `reset` of a vector environment takes: a seed, or a list of one for each copy."""
    if not isinstance(seed, list | tuple | np.ndarray):
        return as_seed(seed)
    if len(seed) != num_envs:
        raise WrapperError(f"there are {len(seed)} seeds for {num_envs} copies; give one for each, or a single number")
    return [as_seed(one) for one in seed]


def read_mask(options: dict[str, Any] | None) -> Flags | None:
    """Return the reset mask in the options, which are left as they are."""
    return None if options is None else options.get("reset_mask")


def masked_reset(envs: VectorEnv[Any, Any, Any], mask: Flags, before: Any) -> tuple[Any, dict[str, Any]]:
    """Reset some copies; return their observations among those of the others, and infos of theirs."""
    observations, infos = envs.reset(options={"reset_mask": mask.copy()})
    space = envs.single_observation_space
    if not _same_rows(space, observations, before, ~mask):
        raise WrapperError(
            f"{type(envs.unwrapped).__name__} has reset copies outside options['reset_mask']; single copies cannot be "
            "restarted in it, so use SyncVectorEnv or AsyncVectorEnv (make_vec(id, vectorization_mode='sync'))"
        )
    return replace_rows(space, before, observations, mask), infos


def replace_rows(space: spaces.Space[Any], batch: Any, other: Any, mask: Flags) -> Any:
    """Return the batch with the rows of the mask taken from another; neither is changed. The space is a copy's."""
    if isinstance(space, spaces.Dict):
        return {key: replace_rows(part, batch[key], other[key], mask) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            replace_rows(part, one, two, mask) for part, one, two in zip(space.spaces, batch, other, strict=True)
        )
    if isinstance(batch, np.ndarray):
        result = batch.copy()
        result[mask] = other[mask]
        return result
    return tuple(two if flag else one for one, two, flag in zip(batch, other, mask, strict=True))


def single_observation(envs: VectorEnv[Any, Any, Any], batch: Any, copy: int) -> Any:
    """Return a copy of one row of batched observations."""
    for i, row in enumerate(iterate(envs.observation_space, batch)):
        if i == copy:
            return _copied(row)
    raise IndexError(copy)


def cut_copies(infos: dict[str, Any]) -> Flags | None:
    """Return which copies were cut short in this step, from batched infos; None if none was."""
    found = [part["staggered"] for part in (infos, infos.get("final_info", {})) if "staggered" in part]
    return np.logical_or.reduce(np.array(found, dtype=bool)) if found else None


def take_info(infos: dict[str, Any], copy: int) -> dict[str, Any]:
    """Take what belongs to one copy out of batched infos: it is cleared there, and returned as the copy gave it."""
    taken: dict[str, Any] = {}
    for key in [key for key in infos if f"_{key}" in infos]:
        mask = infos[f"_{key}"] = infos[f"_{key}"].copy()
        if not mask[copy]:
            continue
        value = infos[key]
        if isinstance(value, dict):
            infos[key] = value = dict(value)
            taken[key] = take_info(value, copy)
        else:
            infos[key] = value.copy()
            one = value[copy]
            taken[key] = bool(one) if isinstance(one, np.bool_) else one  # Gymnasium batches only Python's as flags
            infos[key][copy] = None if value.dtype == object else np.zeros((), value.dtype)[()]
        mask[copy] = False
        if not mask.any():
            del infos[key], infos[f"_{key}"]
    return taken


def put_info(envs: Any, infos: dict[str, Any], info: dict[str, Any], copy: int) -> None:
    """Add one copy's info, Gymnasium's way: values in `infos[key]`, and who has one in `infos["_" + key]`."""
    infos.update(envs._add_info(infos, info, copy))


class NamingLostCopies:
    """A context that turns the death of a copy into an error that says which one it was.

    Workers of an AsyncVectorEnv are shut down then: one that died leaves the others' answers unread, and Gymnasium's
    own `close` would wait for ever.
    """

    def __init__(self, envs: Any) -> None:
        self._envs = envs

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, WrapperError):
            return
        envs = self._envs.unwrapped
        copies = _lost_workers(envs, error) if hasattr(envs, "processes") else _raising(self._envs, error)
        if not copies:
            return
        if isinstance(envs, AsyncVectorEnv):
            _shut_down(envs, copies)
        which = f"copy {copies[0]}" if len(copies) == 1 else f"copies {list(copies)}"
        lost = CopyLostError(
            f"{which} of {type(envs).__name__} died or raised ({type(error).__name__}: {error}); its episode is lost "
            "and the batch incomplete: close the environments, mend the cause, and start again"
        )
        lost.copies = copies
        raise lost from error


def _lost_workers(envs: Any, error: Exception) -> tuple[int, ...]:
    if envs.closed:
        return ()
    broken = [i for i, pipe in enumerate(getattr(envs, "parent_pipes", ())) if pipe is None]  # raised, and was shut
    sentinels = [process.sentinel for process in envs.processes]
    dying = isinstance(error, EOFError | OSError) and not broken  # its pipe is closed before it is gone
    dead = wait(sentinels, timeout=_DYING if dying else 0.0)
    return tuple(i for i, sentinel in enumerate(sentinels) if i in broken or sentinel in dead)


def _shut_down(envs: Any, copies: tuple[int, ...]) -> None:
    for i in copies:
        if envs.parent_pipes[i] is not None:
            envs.parent_pipes[i].close()
            envs.parent_pipes[i] = None
    with warnings.catch_warnings():  # that a step is pending
        warnings.simplefilter("ignore")
        envs.close(terminate=True)


def _raising(envs: Any, error: Exception) -> tuple[int, ...]:
    trace = error.__traceback__
    while trace is not None:  # a loop over copies in this process: its counter says which one raised
        frame = trace.tb_frame
        counter = frame.f_locals.get("i", frame.f_locals.get("env_idx"))  # Gymnasium's name, Stable-Baselines3's
        inside = frame.f_locals.get("self") is envs.unwrapped and trace.tb_next is not None
        if inside and isinstance(counter, int):
            return (counter,)
        trace = trace.tb_next
    return ()


def _same_rows(space: spaces.Space[Any], after: Any, before: Any, kept: Flags) -> bool:
    """Whether numbers in these rows are the same; what is not numbers is not compared."""
    if isinstance(space, spaces.Dict):
        return all(_same_rows(part, after[key], before[key], kept) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return all(_same_rows(part, a, b, kept) for part, a, b in zip(space.spaces, after, before, strict=True))
    if isinstance(after, np.ndarray) and after.dtype.kind in "biuf":
        return bool(np.array_equal(after[kept], before[kept], equal_nan=True))
    return True


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_copied(part) for part in value)
    return np.array(value) if isinstance(value, np.ndarray) else value
