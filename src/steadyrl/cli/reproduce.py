"""`steadyrl reproduce`: the paper's figures, tables and claims, measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli import interrupted
from steadyrl.cli.options import Address, Workers, named_path
from steadyrl.common.tables import add_row, columns
from steadyrl.common.terminal import console, say
from steadyrl.errors import FileFormatError
from steadyrl.experiments.catalogue import EXPERIMENTS, named
from steadyrl.experiments.pages import Page
from steadyrl.experiments.running import cost_text
from steadyrl.experiments.running import reproduce as run_experiments


def reproduce(
    name: Annotated[str, typer.Argument(help="The name of an experiment, or 'all'; 'list' prints all names.")] = "all",
    scale: Annotated[
        str,
        typer.Option(
            help="'quick' (minutes for all), 'laptop' (about 80 minutes on 2 cores) or 'paper' (the paper's sizes)."
        ),
    ] = "quick",
    out: Annotated[
        Path,
        typer.Option(
            parser=named_path, metavar="PATH", help="The folder for results; it is created if it does not exist."
        ),
    ] = Path("results"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip finished experiments in OUT and continue unfinished ones.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of all random numbers; the same seed and backend give the same files.")
    ] = 0,
    backend: Annotated[
        str,
        typer.Option(
            help="'auto', 'serial', 'processes' or 'ray'. All give the same files, but where EnvPool is installed and "
            "has an environment, 'auto' uses EnvPool, whose random numbers are others."
        ),
    ] = "auto",
    workers: Workers = None,
    address: Address = None,
) -> None:
    """Reproduce the paper: every figure, table and claim, beside what the paper says.

    Writes a result file (NAME.npz; its numbers also as NAME.json), a figure (NAME.svg, NAME.png) and a page (NAME.html)
    for each item, and index.html. Finished work survives Ctrl-C and SIGTERM; --resume continues from it.

    Examples:
    `steadyrl reproduce all --scale laptop --out results`

    `steadyrl reproduce figure-2 --scale paper --backend ray --address auto --out results --resume`
    """
    if name == "list":
        for experiment in EXPERIMENTS:
            typer.echo(f"{experiment.name:12}  {experiment.title}")
        return
    chosen = named(name)
    cost = cost_text(chosen, scale)
    if cost:
        say(f"this takes {cost}; Ctrl-C keeps finished work, and --resume continues from it")
    try:
        pages = run_experiments(
            chosen,
            scale,
            out,
            known=EXPERIMENTS,
            seed=seed,
            resume=resume,
            backend=backend,
            workers=workers,
            address=address,
            progress=True,
            say=say,
        )
    except (KeyboardInterrupt, FileFormatError) as error:
        if isinstance(error, FileFormatError) and not interrupted():  # else drawing made such an error of a signal
            raise
        say(f"interrupted; finished work is kept in {out}: repeat the command with --resume to continue from it")
        raise typer.Exit(130) from None
    _print_pages([page for page in pages if page.name in {experiment.name for experiment in chosen}], out)


def _print_pages(pages: list[Page], out: Path) -> None:
    table = columns(("item", "the paper", "measured", "verdict"))
    for page in pages:
        for i, found in enumerate(page.findings):
            add_row(table, page.name if i == 0 else "", found.claim, found.measured, found.verdict)
    console().print(table)
    say(f"wrote {out / 'index.html'}", stderr=False)
