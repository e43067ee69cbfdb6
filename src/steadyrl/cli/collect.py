"""`steadyrl collect`: collects complete episodes of an environment into a file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from steadyrl.cli.options import (
    Address,
    Backend,
    EnvironmentId,
    Make,
    PolicyName,
    StepTimeout,
    Workers,
    check_out,
    make_arguments,
)
from steadyrl.common.files import why_no_such_file
from steadyrl.common.quiet import output_to_stderr
from steadyrl.common.tables import two_columns
from steadyrl.common.terminal import console, say
from steadyrl.errors import RolloutError
from steadyrl.rollouts.collect import collect_episodes
from steadyrl.rollouts.episodes import Episodes


def collect(
    environment: EnvironmentId,
    episodes: Annotated[int, typer.Option(help="Number of complete episodes.")],
    out: Annotated[
        Path,
        typer.Option(
            help="File to write (.npz); read it with steadyrl.Episodes.load. An existing file is replaced once the run "
            "is complete."
        ),
    ],
    policy: PolicyName = "uniform",
    seed: Annotated[
        int,
        typer.Option(help="Seed of all random numbers. The same seed gives the same file; EnvPool gives another one."),
    ] = 0,
    backend: Backend = "auto",
    workers: Workers = None,
    address: Address = None,
    step_timeout: StepTimeout = None,
    on_error: Annotated[str, typer.Option(help="'raise', or 'skip' to leave out episodes that fail.")] = "raise",
    max_episode_steps: Annotated[
        int | None,
        typer.Option(
            help="Longest episode, in steps; a longer one is an error. By default the environment's limit, or 100,000."
        ),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Number of episodes that are run together in one process.")
    ] = None,
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="Keep all observations, actions and rewards.")
    ] = False,
    make: Make = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue an interrupted run from OUT.partial, with as many --episodes as it had, or more."
        ),
    ] = False,
) -> None:
    """Collect complete episodes of an environment: lengths, returns, and sums of the observation at each age.

    Every episode that is started is finished and counted. Finished blocks of episodes are kept in OUT.partial until OUT
    is saved, so an interrupted run continues with --resume and gives the same bytes. SIGTERM acts like Ctrl-C.

    Examples:
    `steadyrl collect CartPole-v1 --episodes 10000 --out cartpole.npz`

    `steadyrl collect HopperBulletEnv-v0 --policy gaussian --episodes 4000 --out hopper.npz --backend processes`
    """
    _check_file(out)
    partial = out.with_name(out.name + ".partial")
    replaces = out.exists()
    with _saying_how_to_go_on(partial), output_to_stderr():  # what the environment prints is no part of the answer
        found = collect_episodes(
            environment,
            policy,
            episodes,
            seed=seed,
            backend=backend,
            workers=workers,
            address=address,
            step_timeout=step_timeout,
            on_error=on_error,
            max_episode_steps=max_episode_steps,
            block_size=block_size,
            trajectories=trajectories,
            make_arguments=make_arguments(make),
            checkpoint=partial,
            resume=resume,
            out=out,
            progress=True,
        )
    _print_episodes(found, f"{out}, in the place of the one that was there" if replaces else str(out))
    if not len(found):  # what comes after this command must not take it for a success
        raise RolloutError(
            f"all {episodes:,} episodes failed and were left out, so {str(out)!r} has none; see the first"
        )


def _check_file(out: Path) -> None:
    """Raise RolloutError if the file could not be written at the end, before anything is run."""
    if out.is_dir():
        raise RolloutError(
            f"--out is {str(out)!r}, which is a directory; name a file in it, as {str(out / 'episodes.npz')!r}"
        )
    if out.suffix != ".npz":
        raise RolloutError(
            f"--out is {str(out)!r}, but what is written is NumPy's .npz; name it {str(out.with_suffix('.npz'))!r}"
        )
    if not out.absolute().parent.is_dir():
        raise RolloutError(f"--out is {str(out)!r}, but there is no directory {str(out.parent)!r}; make it first")
    check_out(out, out.absolute().parent)
    for path in (out, out.with_name(out.name + ".partial")):
        if (reason := why_no_such_file(path)) is not None:
            raise RolloutError(
                f"--out is {str(out)!r}, but {path.name!r} cannot be written: {reason}; use another name"
            )


@contextmanager
def _saying_how_to_go_on(partial: Path) -> Iterator[None]:
    """On Ctrl-C, say which blocks are kept, and stop with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"finished blocks are kept in {partial}: repeat the command with --resume to go on from them"
        text = f"interrupted; {kept if partial.exists() else 'no block was finished yet, so nothing is kept'}"
        say(text)
        raise typer.Exit(130) from None


def _print_episodes(found: Episodes, file: str) -> None:
    rows = [("episodes", f"{len(found):,}, {found.steps:,} steps")]
    if len(found) > 1:
        mean, error = _mean(found.lengths)
        rows.append(("mean episode length", f"{mean:.6g} ± {error:.3g} (95%)"))
        rows.append(("E[T]", f"{mean + 1:.6g} ± {error:.3g} (mean episode length + 1: the reset counts)"))
        rows.append(("CV of T", f"{found.lengths.std(ddof=1) / found.average_episode_length:.3g}"))
        rows.append(("mean return", "{:.6g} ± {:.3g} (95%)".format(*_mean(found.returns))))
    rows.append(("ends", f"{int(found.terminated.sum()):,} terminated, {int(found.truncated.sum()):,} truncated"))
    if found.skipped:
        rows.append(("left out", f"{len(found.skipped):,}, the first: {found.skipped[0].message}"))
    rows.append(("file", file))
    console().print(two_columns(rows))


def _mean(values: NDArray[Any]) -> tuple[float, float]:
    """Return the mean and half the width of its 95% interval, also where the sum of the values would overflow."""
    scale = float(np.abs(values).max()) or 1.0
    parts = values / scale
    return float(parts.mean()) * scale, 1.96 * float(parts.std(ddof=1)) / math.sqrt(len(values)) * scale
