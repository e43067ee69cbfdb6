"""`steadyrl collect`: complete episodes of a real environment, to a file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.options import Address, Backend, EnvironmentId, Make, PolicyName, Workers, check_out, make_arguments
from steadyrl.common.tables import two_columns
from steadyrl.common.terminal import console, say
from steadyrl.errors import RolloutError
from steadyrl.rollouts.collect import collect_episodes
from steadyrl.rollouts.episodes import Episodes


def collect(
    environment: EnvironmentId,
    episodes: Annotated[int, typer.Option(help="How many complete episodes.")],
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write (.npz); read it with steadyrl.Episodes.load. One that is there is replaced at the "
            "end, by a whole one."
        ),
    ],
    policy: PolicyName = "uniform",
    seed: Annotated[
        int, typer.Option(help="Of everything random; the same seed gives the same file (EnvPool's is another).")
    ] = 0,
    backend: Backend = "auto",
    workers: Workers = None,
    address: Address = None,
    step_timeout: Annotated[
        float | None, typer.Option(help="Seconds that one step of the environment may take.")
    ] = None,
    on_error: Annotated[str, typer.Option(help="'raise', or 'skip' to leave out episodes that fail.")] = "raise",
    max_episode_steps: Annotated[
        int | None,
        typer.Option(help="A longer episode is an error; by default the environment's limit, or 100,000."),
    ] = None,
    block_size: Annotated[int | None, typer.Option(help="Episodes that are run together in one place.")] = None,
    trajectories: Annotated[bool, typer.Option("--trajectories", help="Keep whole trajectories.")] = False,
    make: Make = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from the blocks of an interrupted run, to as many --episodes as it had, or more."
        ),
    ] = False,
) -> None:
    """Collect complete episodes of an environment: lengths, returns, and sums of the observation at each age.

    Every episode that is started is finished and counted. Finished blocks are kept in OUT.partial until the run is
    complete, so an interrupted run goes on with --resume, to the same bytes.

    Examples:
    `steadyrl collect CartPole-v1 --episodes 10000 --out cartpole.npz`

    `steadyrl collect HopperBulletEnv-v0 --policy gaussian --episodes 4000 --out hopper.npz --backend processes`
    """
    _check_file(out)
    partial = out.with_name(out.name + ".partial")
    with _saying_how_to_go_on(partial):
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
            progress=True,
        )
    replaces = out.exists()
    found.save(out)
    _print_episodes(found, f"{out}, in the place of the one that was there" if replaces else str(out))


def _check_file(out: Path) -> None:
    """Say why the file could not be written in the end, before anything is run."""
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


@contextmanager
def _saying_how_to_go_on(partial: Path) -> Iterator[None]:
    """On Ctrl-C, say what is kept and stop."""
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
        error = 1.96 * found.lengths.std(ddof=1) / math.sqrt(len(found))
        rows.append(("E[T]", f"{found.average_episode_length:.6g} ± {error:.3g} (95%; T = Gymnasium's length + 1)"))
        rows.append(("CV of T", f"{found.lengths.std(ddof=1) / found.average_episode_length:.3g}"))
        spread = 1.96 * found.returns.std(ddof=1) / math.sqrt(len(found))
        rows.append(("return", f"{found.returns.mean():.6g} ± {spread:.3g}"))
    rows.append(("ends", f"{int(found.terminated.sum()):,} terminated, {int(found.truncated.sum()):,} truncated"))
    if found.skipped:
        rows.append(("left out", f"{len(found.skipped):,}, the first: {found.skipped[0].message}"))
    rows.append(("file", file))
    console().print(two_columns(rows))
