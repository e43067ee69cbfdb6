"""The command line: its commands, and how their errors are shown."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from steadyrl import __version__
from steadyrl.cli.check import check
from steadyrl.cli.collect import collect
from steadyrl.cli.diagnose import diagnose
from steadyrl.cli.evaluate import evaluate
from steadyrl.cli.reproduce import reproduce
from steadyrl.cli.train import train
from steadyrl.errors import SteadyrlError

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def steadyrl(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Steady-state analysis of episodic reinforcement learning.

    Is your data at steady state, when will it be, and what is the cheapest cure? Every command explains itself with
    --help.
    """
    if version:
        typer.echo(f"steadyrl {__version__}")
        raise typer.Exit


for command in (check, collect, diagnose, train, evaluate, reproduce):
    app.command()(command)


def main() -> None:
    """Run the command line; errors that steadyrl raises on purpose are printed without a traceback."""
    try:
        app()
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (SteadyrlError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
