"""`steadyrl diagnose`: is this data at steady state, when will it be, and what is the cheapest cure?"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from steadyrl.cli.options import AsJson, Backend, Make, PolicyName, Seed, Workers, check_out, make_arguments, named_path
from steadyrl.common.checks import check_seed
from steadyrl.common.quiet import output_to_stderr
from steadyrl.common.storage import locked, why_no_such_file, write_atomically, written_atomically
from steadyrl.common.terminal import clean_command, console, say
from steadyrl.diagnosis import analysis
from steadyrl.diagnosis.report import write_report
from steadyrl.diagnosis.result import Diagnosis
from steadyrl.diagnosis.screen import print_diagnosis
from steadyrl.diagnosis.selection import select_episodes
from steadyrl.errors import RolloutError
from steadyrl.lengths.files import read_lengths, write_lengths

_FILES = ("report.html", "diagnosis.json", "lengths.txt")


def diagnose(
    environment: Annotated[
        str | None, typer.Argument(help="A Gymnasium id: CartPole-v1, Humanoid-v5, or package:Name-v0.")
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="Diagnose episode lengths from a log instead: a file (csv, monitor.csv, json, jsonl, TensorBoard "
            "events, npy, npz, text), a directory of monitor.csv files, or - for standard input. Repeat it to take "
            "several.",
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="Name or index (counted from 0) of the column with the lengths, if --from cannot find it."),
    ] = None,
    last: Annotated[
        int | None, typer.Option(help="Analyse only the latest N episodes of the log.", metavar="N")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Pool all episodes of the log, even if lengths drift; by default the latest stretch is taken."
        ),
    ] = False,
    policy: PolicyName = "uniform",
    episodes: Annotated[
        int | None,
        typer.Option(help="Number of episodes; by default until more could not change the recommendation."),
    ] = None,
    num_envs: Annotated[int, typer.Option(help="Number of environments that run side by side in training.")] = 64,
    n_steps: Annotated[int, typer.Option(help="Steps of each environment per update (PPO's n_steps).")] = 16,
    tolerance: Annotated[
        float, typer.Option(help="Distance to the long run (total variation) below which data counts as fair.")
    ] = 0.01,
    max_episodes: Annotated[
        int, typer.Option(help="Number of episodes after which collecting stops in any case.")
    ] = 20_000,
    seed: Seed = 0,
    backend: Backend = "auto",
    workers: Workers = None,
    make: Make = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=named_path,
            metavar="PATH",
            help="Write report.html, diagnosis.json and lengths.txt to this directory, which is created if need be.",
        ),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Add the paper's terms: E[T], the perturbation, epsilon, null steps.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Diagnose an environment or a log: is its data at steady state, when will it be, and what is the cheapest cure?

    Collects episodes of the environment (or reads their lengths), computes how long environments that are reset
    together stay in lockstep, compares the ways to avoid it, and recommends one, with the code to paste.

    The answer depends on the policy, which is random unless you give yours.

    Examples:
    `steadyrl diagnose Humanoid-v5 --num-envs 256 --n-steps 16 --policy model.zip --out report/`

    `steadyrl diagnose --from monitor.csv`
    """
    if (environment is None) == (not source):
        raise RolloutError("name an environment, or give --from FILE with episode lengths: one of the two")
    if not source and (column is not None or last is not None or everything):
        raise RolloutError("--column, --last and --all are for logs; they need --from FILE")
    given = {"--policy": policy != "uniform", "--episodes": episodes is not None, "--backend": backend != "auto"}
    given |= {"--max-episodes": max_episodes != 20_000, "--workers": workers is not None, "--make": bool(make)}
    if source and any(given.values()):
        names = ", ".join(name for name, there in given.items() if there)
        raise RolloutError(f"{names}: for episodes that are to be run; --from FILE takes those that are in the log")
    check_seed(seed)
    place = None if out is None else out.absolute()  # an environment may change the working directory (os.chdir)
    if out is not None:
        _check_directory(out)
    if source:
        found = _diagnose_log(
            source, column, last, everything, tolerance=tolerance, num_envs=num_envs, n_steps=n_steps, seed=seed
        )
    else:
        with output_to_stderr():  # what the environment prints is no part of the answer
            found = analysis.diagnose(
                environment,
                policy,
                episodes=episodes,
                tolerance=tolerance,
                num_envs=num_envs,
                n_steps=n_steps,
                seed=seed,
                max_episodes=max_episodes,
                backend=backend,
                workers=workers,
                make_arguments=make_arguments(make),
                progress=not as_json,
            )
    if out is not None:
        found = replace(found, lengths_code=f"lengths = steadyrl.load_lengths({str(out / 'lengths.txt')!r})")
    try:
        _show(found, as_json=as_json, paper=paper)
    finally:  # a reader that has gone (| head), or a full disk behind standard output, must not cost the report
        if out is not None and place is not None:
            _write(found, out, place)


def _diagnose_log(
    source: list[str],
    column: str | None,
    last: int | None,
    everything: bool,
    *,
    tolerance: float,
    num_envs: int,
    n_steps: int,
    seed: int,
) -> Diagnosis:
    records = read_lengths(source, column=_as_column(column))
    taken, selection = select_episodes(records, last=last, everything=everything)
    with console(stderr=True).status(f"analysing {len(taken):,} episodes"):
        rng = np.random.default_rng([seed, 4])
        found = analysis.analyse(
            taken, tolerance=tolerance, num_envs=num_envs, n_steps=n_steps, rng=rng, selection=selection
        )
    return replace(
        found, lengths_code=_lengths_code(source, column, len(taken), len(records), in_order=len(records.runs) <= 1)
    )


def _as_column(column: str | None) -> str | int | None:
    """Return a column as its index if it is a number, else as its name."""
    return int(column) if column is not None and column.isdecimal() and len(column) < 10 else column


def _lengths_code(source: list[str], column: str | None, taken: int, there: int, *, in_order: bool) -> str:
    """Return the line that reads the analysed lengths again; `in_order` if those left out came before them."""
    if "-" in source or (taken != there and not in_order):
        return "lengths = steadyrl.load_lengths('lengths.txt')  # --out DIRECTORY writes this file"
    files = repr(source[0] if len(source) == 1 else source)
    more = "" if column is None else f", column={_as_column(column)!r}"
    if taken == there:
        return f"lengths = steadyrl.load_lengths({files}{more})"
    return (
        "from steadyrl.lengths.files import read_lengths\n"
        f"lengths = steadyrl.EpisodeLengths.from_gymnasium(read_lengths({files}{more}).last({taken}).lengths)"
    )


def _check_directory(out: Path) -> None:
    """Raise RolloutError if the report could not be written in the end, before anything is run."""
    there = next(place for place in (out.absolute(), *out.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        what = "a file" if there.exists() else "a link to what is not there"
        raise RolloutError(f"--out is {str(out)!r}, but {str(there)!r} is {what}; name a directory for the report")
    check_out(out, there)
    for name in _FILES if out.is_dir() else ():
        if (reason := why_no_such_file(out / name)) is not None:
            raise RolloutError(f"--out is {str(out)!r}, but {name!r} cannot be written there: {reason}; name another")


def _show(found: Diagnosis, *, as_json: bool, paper: bool) -> None:
    if not as_json:
        print_diagnosis(found, console(), paper=paper)
        return
    typer.echo(json.dumps(found.as_json(), indent=2))
    for sentence in (found.selection, *found.warnings):
        if sentence:
            say(f"warning: {sentence}")


def _write(found: Diagnosis, out: Path, place: Path) -> None:
    """Write the report in `place`, which is where `out` was when the command began."""
    place.mkdir(parents=True, exist_ok=True)
    with (  # all three are replaced once all are written, and no other run writes there: so they are of one run
        locked(place, patience=30.0),
        written_atomically(place / "report.html") as page,
        written_atomically(place / "diagnosis.json") as numbers,
        written_atomically(place / "lengths.txt") as lengths,
    ):
        write_report(found, page, command=clean_command(["steadyrl", *sys.argv[1:]]))
        write_atomically(numbers, json.dumps(found.as_json(), indent=2).encode())
        write_lengths(found.lengths, found.episodes, lengths)
    say(f"wrote {out / 'report.html'}, diagnosis.json and lengths.txt")
