"""`steadyrl evaluate`: how good a policy is, over complete episodes, and a video of one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyrl.cli.options import AsJson, Backend, EnvironmentId, Make, Seed, Workers, make_arguments
from steadyrl.common.checks import check_count
from steadyrl.common.intervals import Interval
from steadyrl.common.quiet import output_to_stderr
from steadyrl.common.storage import plain
from steadyrl.common.tables import two_columns
from steadyrl.common.terminal import console
from steadyrl.errors import RolloutError
from steadyrl.sspg.evaluation import Evaluation
from steadyrl.sspg.evaluation import evaluate as run_episodes
from steadyrl.sspg.video import Video, check_video, record_video


def evaluate(
    environment: EnvironmentId,
    policy: Annotated[str, typer.Argument(help="A policy file, 'uniform', or 'gaussian'.")],
    episodes: Annotated[int, typer.Option(help="Number of complete episodes.")] = 100,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Take the mean, or the most likely action, instead of drawing actions."),
    ] = False,
    seed: Seed = 0,
    backend: Backend = "auto",
    workers: Workers = None,
    video: Annotated[
        Path | None,
        typer.Option(help="Write a video (.mp4 or .gif) of the episode with the median return. Not with EnvPool."),
    ] = None,
    make: Make = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a policy: its mean return and mean episode length, with 95% confidence intervals.

    Examples:
    `steadyrl evaluate Hopper-v5 hopper/policy.safetensors --episodes 100`

    `steadyrl evaluate Hopper-v5 hopper/policy.safetensors --deterministic --video hop.mp4`
    """
    if Path(environment).is_file() and not Path(policy).is_file():  # the order of version 0.1
        environment, policy = policy, environment
    arguments = make_arguments(make)
    check_count("episodes", episodes)
    if video is not None:
        if backend == "envpool":
            raise RolloutError("EnvPool's environments cannot be shown as pictures; use --backend serial for a video")
        backend = "serial" if backend == "auto" else backend
        with output_to_stderr():
            check_video(environment, video, make_arguments=arguments)  # first: it may turn out that there can be none
    with output_to_stderr():  # what the environment prints is no part of the answer
        found = run_episodes(
            environment,
            policy,
            episodes,
            deterministic=deterministic,
            seed=seed,
            backend=backend,
            workers=workers,
            make_arguments=arguments,
            trajectories=video is not None,
            progress=not as_json,
        )
        film = None if video is None else record_video(environment, found, video, make_arguments=arguments)
    if as_json:
        typer.echo(json.dumps(_as_json(found, film, policy, environment), indent=2))
    else:
        _print_evaluation(found, film, policy)


def _print_evaluation(found: Evaluation, film: Video | None, policy: str) -> None:
    manner = "deterministic" if found.deterministic else "actions drawn"
    length = found.average_episode_length
    rows = [
        ("policy", f"{policy}, {manner}"),
        ("episodes", f"{len(found.episodes):,}"),
        ("return", _words(found.mean_return)),
        ("mean episode length", _words(Interval(length.value - 1, length.low - 1, length.high - 1))),
    ]
    if film is not None:
        episode = f"episode {film.episode + 1:,} of {len(found.episodes):,}, the one with the median return"
        rows.append(("video", f"{film.path}: {episode}, {film.episode_return:.6g}; {film.pictures:,} pictures"))
    console().print(two_columns(rows))


def _words(interval: Interval) -> str:
    return f"{interval.value:.6g}, 95% interval {interval.low:.6g} to {interval.high:.6g}"


def _as_json(found: Evaluation, film: Video | None, policy: str, environment: str) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "policy": policy,
        "environment": environment,
        "deterministic": found.deterministic,
        "episodes": len(found.episodes),
        "return": plain(vars(found.mean_return)),
        "average_episode_length": plain(vars(found.average_episode_length)),
    }
    if film is not None:
        shown["video"] = {
            "path": str(film.path),
            "episode": film.episode,
            "return": film.episode_return,
            "pictures": film.pictures,
        }
    return shown
