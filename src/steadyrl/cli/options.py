"""The options that several commands share, declared once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from steadyrl.common.checks import as_path
from steadyrl.common.storage import why_not_writable
from steadyrl.errors import RolloutError

EnvironmentId: TypeAlias = Annotated[
    str, typer.Argument(help="A Gymnasium id: CartPole-v1, Hopper-v5, HopperBulletEnv-v0, or package:Name-v0.")
]
PolicyName: TypeAlias = Annotated[
    str,
    typer.Option(
        help="'uniform' or 'gaussian' (random actions, or the paper's random 64 x 64 network), a policy file, or a "
        "Stable-Baselines3 model (.zip)."
    ),
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Backend: TypeAlias = Annotated[str, typer.Option(help="'auto', 'serial', 'processes', 'envpool' or 'ray'.")]
Workers: TypeAlias = Annotated[
    int | None, typer.Option(help="Number of processes, or of EnvPool's threads; by default one per core.")
]
StepTimeout: TypeAlias = Annotated[
    float | None, typer.Option(help="Seconds that one environment step may take; a slower step is an error.")
]
Address: TypeAlias = Annotated[
    str | None, typer.Option(help="Address of a Ray cluster; without it, 'ray' starts a local one.")
]
Make: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="KEY=VALUE argument for gymnasium.make, as in max_episode_steps=200; may be repeated."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def named_path(text: str) -> Path:
    """Return the file or folder of that name; an empty name would be taken for the folder that we are in."""
    try:
        return Path(as_path("--out", text, RolloutError))
    except RolloutError as error:
        raise typer.BadParameter(str(error)) from error


def make_arguments(pairs: list[str] | None) -> dict[str, Any]:
    """Return KEY=VALUE pairs as arguments; a value is read as JSON, or else as the text that it is."""
    arguments: dict[str, Any] = {}
    for pair in pairs or []:
        key, separator, value = pair.partition("=")
        if not separator or not key.isidentifier():
            raise RolloutError(f"--make is {pair!r}; it must be KEY=VALUE, as in max_episode_steps=200")
        try:
            arguments[key] = json.loads(value)
        except (ValueError, RecursionError):  # not JSON, or a number of thousands of digits
            arguments[key] = value
    return arguments


def check_out(out: Path, directory: Path) -> None:
    """Raise RolloutError if nothing can be written to the directory of --out, before anything is run for it."""
    reason = why_not_writable(directory)
    if reason is not None:
        raise RolloutError(
            f"--out is {str(out)!r}, but no file can be written in {str(directory)!r} ({reason}); name another place"
        )
