"""`steadyrl train`: train a policy with the steady-state policy gradient. Its options are the fields of `Settings`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from steadyrl.cli.options import EnvironmentId, Make, make_arguments, named_path
from steadyrl.common.quiet import output_to_stderr
from steadyrl.common.tables import two_columns
from steadyrl.common.terminal import clean_command, console
from steadyrl.errors import MissingExtraError
from steadyrl.sspg.settings import CHOICES, HELP, Settings

_Out = Annotated[
    Path,
    typer.Option(
        parser=named_path,
        metavar="PATH",
        help="Directory for policy, history and checkpoint; it is created if it does not exist.",
    ),
]
_Policy = Annotated[Path | None, typer.Option(help="Policy file to start from; by default a new policy.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in OUT.")]


def run_training(
    environment: str, out: Path, policy: Path | None, make: list[str] | None, resume: bool, **options: Any
) -> None:
    """Train a policy with the steady-state policy gradient (SSPG, Theorem 5).

    Environments run without end, are brought to steady state by staggering their episodes, and give a few steps each to
    every update of the policy. OUT holds the policy (for `evaluate`, `collect` and `diagnose`), a history of the run,
    and a checkpoint: an interrupted run goes on with --resume, to the same bytes.

    Examples:
    `steadyrl train CartPole-v1 --out cartpole`

    `steadyrl train Hopper-v5 --out hopper --num-envs 16 --steps 1000000`

    `steadyrl train HopperBulletEnv-v0 --out paper --method fresh --optimiser sgd --learning-rate 5e-4`
    """
    settings = Settings(**options)
    try:
        from steadyrl.sspg.training import Trained, train
    except MissingExtraError:
        raise
    except ImportError as error:
        raise MissingExtraError("training needs PyTorch; install it with: pip install 'steadyrl[train]'") from error
    with output_to_stderr():  # what the environment prints is no part of the answer
        found: Trained = train(
            environment,
            settings,
            policy=policy,
            out=out,
            resume=resume,
            make_arguments=make_arguments(make),
            progress=True,
        )
    _print_training(found, environment, out, make)


def _print_training(found: Any, environment: str, out: Path, make: list[str] | None) -> None:
    command = ["steadyrl", "evaluate", environment, str(out / "policy.safetensors")]
    command += [word for argument in make or () for word in ("--make", argument)]
    rows = [
        ("updates", f"{found.updates:,}, {int(found.history['steps'][-1]):,} steps"),
        ("return", f"{found.history['return'][-1]:.5g} while training"),
        ("mean episode length", f"{found.history['average_episode_length'][-1] - 1:.5g}"),
        ("policy", str(out / "policy.safetensors")),
    ]
    console().print(two_columns(rows))
    console().print(f"next  {clean_command(command)}", soft_wrap=True)  # to paste, so not folded


def _option(entry: Field[Any], kind: Any) -> inspect.Parameter:
    """Return the option of one field of the settings."""
    flag = "--" + entry.name.replace("_", "-")
    names = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
    if entry.name in CHOICES:
        kind = str
    help_text, more = entry.metadata[HELP], {}
    if kind is bool:  # in a panel of their own: their second names would squeeze all others at 80 columns
        help_text += " By default on." if entry.default else " By default off."
        more = {"rich_help_panel": "Switches", "metavar": "", "show_default": False}
    annotation = Annotated[kind, typer.Option(*names, help=help_text, **more)]
    default = inspect.Parameter.empty if entry.default is MISSING else entry.default
    return inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _command() -> Callable[..., None]:
    """Return the command: what every run needs, then an option for each field of the settings."""
    keyword, required = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    own = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, default, annotation in (
            ("environment", required, EnvironmentId),
            ("out", required, _Out),
            ("policy", None, _Policy),
            ("make", None, Make),
            ("resume", False, _Resume),
        )
    ]
    kinds = get_type_hints(Settings)
    parameters = own + [_option(entry, kinds[entry.name]) for entry in fields(Settings)]

    def train(**arguments: Any) -> None:
        run_training(**arguments)

    train.__doc__ = re.sub(
        r"`evaluate`, `collect` and `diagnose`", "evaluate, collect and diagnose", run_training.__doc__ or ""
    )
    train.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    train.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return train


train = _command()
