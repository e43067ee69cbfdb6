"""What the cures for many copies share: autoreset modes, masked resets, batched observations and infos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from steadyrl.errors import CopyLostError, WrapperError

Flags = NDArray[np.bool_]
VectorPolicy = Callable[[Any], Any]


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
            if expected.shape != found.shape or expected.dtype != found.dtype or type(expected) is not type(found):
                raise WrapperError(
                    f"copy {i} has the {name} space {found}, the others {expected}; copies must be alike"
                )


def read_mask(options: dict[str, Any] | None) -> Flags | None:
    """Return the reset mask in the options, which are left as they are."""
    return None if options is None else options.get("reset_mask")


def masked_reset(envs: VectorEnv[Any, Any, Any], mask: Flags, before: Any) -> tuple[Any, dict[str, Any]]:
    """Reset some copies; return their observations among those of the others, and infos of theirs."""
    observations, infos = envs.reset(options={"reset_mask": mask.copy()})
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in _kept_rows(observations, before, ~mask)):
        raise WrapperError(
            f"{type(envs.unwrapped).__name__} has reset copies outside options['reset_mask']; single copies cannot be "
            "restarted in it, so use SyncVectorEnv or AsyncVectorEnv (make_vec(id, vectorization_mode='sync'))"
        )
    return replace_rows(before, observations, mask), infos


def replace_rows(batch: Any, other: Any, mask: Flags) -> Any:
    """Return the batch with the rows of the mask taken from another; neither is changed."""
    if isinstance(batch, np.ndarray):
        result = batch.copy()
        result[mask] = other[mask]
        return result
    if isinstance(batch, dict):
        return {key: replace_rows(value, other[key], mask) for key, value in batch.items()}
    if isinstance(batch, tuple) and all(isinstance(part, np.ndarray) and len(part) == len(mask) for part in batch):
        return tuple(replace_rows(part, theirs, mask) for part, theirs in zip(batch, other, strict=True))
    return tuple(theirs if flag else ours for ours, theirs, flag in zip(batch, other, mask, strict=True))


def single_observation(envs: VectorEnv[Any, Any, Any], batch: Any, copy: int) -> Any:
    """Return a copy of one row of batched observations."""
    for i, row in enumerate(gymnasium.vector.utils.iterate(envs.observation_space, batch)):
        if i == copy:
            return _copied(row)
    raise IndexError(copy)


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
            taken[key] = value[copy]
            infos[key][copy] = None if value.dtype == object else 0
        mask[copy] = False
        if not mask.any():
            del infos[key], infos[f"_{key}"]
    return taken


def put_info(envs: Any, infos: dict[str, Any], info: dict[str, Any], copy: int) -> None:
    """Add one copy's info, Gymnasium's way: values in `infos[key]`, and who has one in `infos["_" + key]`."""
    infos.update(envs._add_info(infos, info, copy))


@contextmanager
def naming_lost_copies(envs: Any) -> Iterator[None]:
    """Turn the death of a copy into an error that says which one it was."""
    try:
        yield
    except WrapperError:
        raise
    except Exception as error:
        copies = _lost_copies(envs, error)
        if not copies:
            raise
        which = f"copy {copies[0]}" if len(copies) == 1 else f"copies {list(copies)}"
        lost = CopyLostError(
            f"{which} of {type(envs.unwrapped).__name__} died or raised ({type(error).__name__}: {error}); its episode "
            "is lost and the batch incomplete: close the environments, mend the cause, and start again"
        )
        lost.copies = copies
        raise lost from error


def _lost_copies(envs: Any, error: Exception) -> tuple[int, ...]:
    processes = getattr(envs.unwrapped, "processes", None)
    if processes is not None:
        living = [process.sentinel for process in processes if process is not None and process.is_alive()]
        if len(living) == len(processes) and isinstance(error, EOFError | ConnectionError):
            wait(living, timeout=5.0)  # its pipe is closed already: it is about to be gone
        return tuple(i for i, process in enumerate(processes) if process is None or not process.is_alive())
    trace = error.__traceback__
    while trace is not None:  # a loop over copies in this process: its counter says which one raised
        frame = trace.tb_frame
        counter = frame.f_locals.get("i", frame.f_locals.get("env_idx"))  # Gymnasium's name, Stable-Baselines3's
        if frame.f_locals.get("self") is envs.unwrapped and isinstance(counter, int):
            return (counter,)
        trace = trace.tb_next
    return ()


def _kept_rows(after: Any, before: Any, kept: Flags) -> Iterator[tuple[Any, Any]]:
    if isinstance(after, np.ndarray):
        if after.dtype.kind in "biuf":
            yield after[kept], before[kept]
    elif isinstance(after, dict):
        for key, value in after.items():
            yield from _kept_rows(value, before[key], kept)
    elif isinstance(after, tuple) and all(isinstance(part, np.ndarray) and len(part) == len(kept) for part in after):
        for one, other in zip(after, before, strict=True):
            yield from _kept_rows(one, other, kept)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_copied(part) for part in value)
    return np.array(value) if isinstance(value, np.ndarray) else value
