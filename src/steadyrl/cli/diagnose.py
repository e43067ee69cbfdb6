"""`steadyrl diagnose`: is this data at steady state, when will it be, and what is the cheapest cure?"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from steadyrl.cli.options import AsJson, Backend, Make, PolicyName, Seed, Workers, check_out, make_arguments
from steadyrl.common.storage import write_atomically
from steadyrl.diagnosis import analysis
from steadyrl.diagnosis.analysis import Diagnosis, analyse
from steadyrl.diagnosis.report import write_report
from steadyrl.diagnosis.screen import print_diagnosis
from steadyrl.errors import RolloutError
from steadyrl.lengths.files import read_lengths, write_lengths


def diagnose(
    environment: Annotated[
        str | None, typer.Argument(help="A Gymnasium id: CartPole-v1, Humanoid-v5, or package:Name-v0.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Diagnose saved episodes (.npz) or lengths (.txt, .csv, .npy, Stable-Baselines3's monitor.csv).",
        ),
    ] = None,
    policy: PolicyName = "uniform",
    episodes: Annotated[
        int | None, typer.Option(help="How many; by default until the mixing time is known within 10%.")
    ] = None,
    num_envs: Annotated[int, typer.Option(help="Copies that run side by side in training.")] = 64,
    n_steps: Annotated[int, typer.Option(help="Steps of each copy between two updates.")] = 16,
    tolerance: Annotated[float, typer.Option(help="The distance at which data counts as steady.")] = 0.01,
    max_episodes: Annotated[int, typer.Option(help="Where collecting stops in any case.")] = 20_000,
    seed: Seed = 0,
    backend: Backend = "auto",
    workers: Workers = None,
    make: Make = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write report.html, diagnosis.json and lengths.txt to this directory (made if need be)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Diagnose an environment: is its data at steady state, when will it be, and what is the cheapest cure?

    Collects episodes, computes from their lengths when the endless loop of episodes is at steady state, compares the
    ways to bring it there, and recommends one, with its line of code.

    Examples:
    `steadyrl diagnose Humanoid-v5 --num-envs 256 --n-steps 16 --policy gaussian --out report/`

    `steadyrl diagnose --from monitor.csv`
    """
    if (environment is None) == (source is None):
        raise RolloutError("name an environment, or give --from FILE with episode lengths: one of the two")
    if out is not None:
        _check_directory(out)
    if source is not None:
        found = _diagnose_file(source, tolerance=tolerance, num_envs=num_envs, n_steps=n_steps, seed=seed)
    else:
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
    file = source if out is None else out / "lengths.txt"
    if file is not None:
        found = replace(found, lengths_code=f"lengths = steadyrl.load_lengths({str(file)!r})")
    _show(found, as_json=as_json)
    if out is not None:
        _write(found, out)


def _diagnose_file(source: Path, *, tolerance: float, num_envs: int, n_steps: int, seed: int) -> Diagnosis:
    gathered = read_lengths(source)
    with Console(stderr=True).status(f"analysing {len(gathered.lengths):,} episodes"):
        rng = np.random.default_rng([seed, 4])
        return analyse(gathered, tolerance=tolerance, num_envs=num_envs, n_steps=n_steps, rng=rng)


def _check_directory(out: Path) -> None:
    """Say why the report could not be written in the end, before anything is run."""
    there = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
    if not there.is_dir():
        raise RolloutError(f"--out is {str(out)!r}, but {str(there)!r} is a file; name a directory for the report")
    check_out(out, there)


def _show(found: Diagnosis, *, as_json: bool) -> None:
    if not as_json:
        print_diagnosis(found, Console())
        return
    typer.echo(json.dumps(found.as_json(), indent=2))
    for warning in found.warnings:
        _say(f"warning: {warning}")


def _write(found: Diagnosis, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_report(found, out / "report.html", command=shlex.join(["steadyrl", *sys.argv[1:]]))
    write_atomically(out / "diagnosis.json", json.dumps(found.as_json(), indent=2).encode())
    write_lengths(found.lengths, found.episodes, out / "lengths.txt")
    _say(f"wrote {out / 'report.html'}, diagnosis.json and lengths.txt")


def _say(text: str) -> None:
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
