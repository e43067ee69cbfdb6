"""Checkpoints of a training run: one npz file with a JSON header, no pickle, written all or nothing.

A directory of a run holds

    checkpoint.npz        everything that a resumed run needs
    policy.safetensors    the policy as of the checkpoint, after the first update, for `evaluate`, `collect`, `diagnose`
    history.csv           a line for each update
    tensorboard/          the same for TensorBoard, at most twice a second

The first three are the same bytes for the same environment, settings and versions, however often the run was
interrupted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.common.checks import LARGEST, is_number
from steadyrl.common.storage import load_arrays, save_arrays, why_not_writable, write_atomically
from steadyrl.errors import FileFormatError, TrainingError
from steadyrl.sspg.settings import Settings

CHECKPOINT, POLICY, HISTORY = "checkpoint.npz", "policy.safetensors", "history.csv"
_KIND = "training checkpoint"
_FORMAT = 5  # of what the arrays mean: another critic or another header, another number
_FREE = ("workers", "address", "checkpoint_every", "step_timeout")
"""Settings that the result does not depend on, and that are not saved."""


def saved_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that the result depends on."""
    return {name: value for name, value in asdict(settings).items() if name not in _FREE}


def prepare_directory(out: Path, *, resume: bool) -> None:
    """Make the run's directory, and see that nothing in it would be lost."""
    try:
        _require_room(out, resume)
        out.mkdir(exist_ok=True)
        reason = why_not_writable(out)
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise TrainingError(f"out is {str(out)!r}, but no file can be written there ({reason}); name another directory")


def _require_room(out: Path, resume: bool) -> None:
    if not out.absolute().parent.is_dir():
        raise TrainingError(f"out is {str(out)!r}, but there is no directory {str(out.parent)!r}; make it first")
    if out.exists() and not out.is_dir():
        raise TrainingError(f"out is {str(out)!r}, which is a file; name a directory")
    there = (out / CHECKPOINT).exists()
    if there and not resume:
        raise TrainingError(
            f"{str(out)!r} holds a run already; go on with it by resume=True (--resume), or name another directory"
        )
    left = [name for name in (POLICY, HISTORY) if (out / name).exists()]
    if left and not there:
        raise TrainingError(
            f"{str(out)!r} holds {' and '.join(left)} of an earlier run, without its checkpoint, which this run would "
            "replace; name another directory, or move them away"
        )
    if resume and not there:
        raise TrainingError(f"there is nothing to resume: {str(out / CHECKPOINT)!r} does not exist")


def save_checkpoint(out: Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write the checkpoint."""
    save_arrays(out / CHECKPOINT, _KIND, {"format": _FORMAT, **header}, arrays)


def damaged(out: Path) -> TrainingError:
    """Return the error that says that a checkpoint cannot be resumed."""
    return TrainingError(
        f"{str(out / CHECKPOINT)!r} is not a checkpoint, or it is damaged, and cannot be resumed; train again in "
        f"another directory, beginning with {POLICY} from this one (--policy) if that is whole"
    )


@contextmanager
def reading_content() -> Iterator[None]:
    """Raise FileFormatError for all that content raises that is not a checkpoint's, though its digests fit."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        raise FileFormatError(f"the checkpoint holds what it cannot hold ({type(error).__name__}: {error})") from error


def require_numbers(*arrays: Any, shape: tuple[int, ...] | None = None, least: float = -math.inf) -> None:
    """Raise ValueError unless arrays hold finite numbers, not below `least`, and have the shape if one is given."""
    for array in arrays:
        if array.dtype.kind not in "iuf" or (shape is not None and array.shape != shape):
            raise ValueError(f"an array of {array.dtype} has shape {array.shape}")
        if not (np.isfinite(array) & (array >= least)).all():
            raise ValueError("a number is not finite, or negative")


def load_checkpoint(
    out: Path, environment: str, settings: Settings, begun_with: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and arrays of the checkpoint, if it is of this environment, these settings and this first policy.

    `begun_with` is the digest of the policy file that was named, or "": then the checkpoint's is not asked for.
    """
    path = out / CHECKPOINT
    try:
        header, arrays = load_arrays(path, _KIND)
    except FileFormatError as error:
        raise damaged(out) from error
    if header.get("format") != _FORMAT:
        raise TrainingError(
            f"{str(path)!r} was written by another version of steadyrl and cannot be resumed by this one; train again "
            f"in another directory, beginning with {POLICY} from this one (--policy)"
        )
    kinds = {"environment": str, "begun_with": str, "settings": dict, "policy": dict, "rng": dict, "sampler": dict}
    counts = all(type(header.get(name)) is int and 0 <= header[name] <= LARGEST for name in ("update", "steps"))
    if not counts or not all(isinstance(header.get(name), kind) for name, kind in kinds.items()):
        raise damaged(out)
    if not _fits(header["policy"], arrays):
        raise damaged(out)
    if header["environment"] != environment:
        raise TrainingError(
            f"{str(path)!r} is of a run on {header['environment']}, and this is {environment}; resume it with the "
            "environment it was made for, or name another directory"
        )
    if begun_with and begun_with != header["begun_with"]:
        raise TrainingError(
            f"{str(path)!r} is of a run that began with another policy; a resumed run goes on with its own: leave the "
            "policy out (--policy), or name another directory"
        )
    now, then = json.loads(json.dumps(saved_settings(settings))), header["settings"]
    free = ("steps", "updates") if settings.learning_rate_decay == "none" else ()
    differ = [name for name in now if name not in free and now[name] != then.get(name)]
    if differ:
        shown = ", ".join(f"{name}: {then.get(name)!r} then, {now[name]!r} now" for name in differ)
        longer = " (a longer run needs learning_rate_decay 'none')" if {"steps", "updates"} & set(differ) else ""
        raise TrainingError(
            f"{str(path)!r} was made with other settings ({shown}); repeat the first command with --resume{longer}, or "
            "name another directory"
        )
    return header, arrays


def _fits(shape: Mapping[str, Any], arrays: Mapping[str, Any]) -> bool:
    """Return whether what a header says of the policy is said as it should be, and is that of the arrays."""
    hidden, limit = shape.get("hidden"), shape.get("limit", math.nan)
    if not isinstance(hidden, list) or not isinstance(shape.get("normalised"), bool):
        return False
    if limit is not None and not (is_number(limit) and 0 < limit < math.inf):
        return False
    biases = [arrays.get(f"learner/policy/layers.{i}.bias") for i in range(len(hidden))]
    return all(
        type(size) is int and bias is not None and bias.shape == (size,)
        for size, bias in zip(hidden, biases, strict=True)
    )


def save_history(out: Path, history: Mapping[str, list[float]]) -> None:
    """Write the history as a table."""
    lines = [",".join(history)]
    lines += [",".join(_number(value) for value in row) for row in zip(*history.values(), strict=True)]
    write_atomically(out / HISTORY, ("\n".join(lines) + "\n").encode())


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
