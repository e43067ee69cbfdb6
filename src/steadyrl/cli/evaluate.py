"""`steadyrl evaluate`: how good a policy is, over complete episodes, and a video of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from steadyrl.cli.options import AsJson, Backend, EnvironmentId, Make, Seed, Workers, make_arguments
from steadyrl.common.checks import check_count
from steadyrl.common.intervals import Interval
from steadyrl.common.storage import plain
from steadyrl.common.tables import two_columns
from steadyrl.common.terminal import console, say
from steadyrl.sspg.evaluation import Evaluation, record_video
from steadyrl.sspg.evaluation import evaluate as run_episodes


def evaluate(
    policy: Annotated[str, typer.Argument(help="A policy file, 'uniform', or 'gaussian'.")],
    environment: EnvironmentId,
    episodes: Annotated[int, typer.Option(help="How many complete episodes.")] = 100,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Take the mean, or the likeliest action, instead of drawing.")
    ] = False,
    seed: Seed = 0,
    backend: Backend = "auto",
    workers: Workers = None,
    video: Annotated[Path | None, typer.Option(help="Write a video of one episode (.mp4 or .gif).")] = None,
    make: Make = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a policy: its mean return and average episode length, with 95% intervals.

    Examples:
    `steadyrl evaluate hopper/policy.safetensors Hopper-v5 --episodes 100`

    `steadyrl evaluate hopper/policy.safetensors Hopper-v5 --deterministic --video hop.mp4`
    """
    arguments = make_arguments(make)
    check_count("episodes", episodes)
    if video is not None:  # first: it may turn out that there can be none
        pictures = record_video(
            policy, environment, video, deterministic=deterministic, seed=seed, make_arguments=arguments
        )
        say(f"wrote {video}: {pictures:,} pictures")
    found = run_episodes(
        policy,
        environment,
        episodes,
        deterministic=deterministic,
        seed=seed,
        backend=backend,
        workers=workers,
        make_arguments=arguments,
        progress=not as_json,
    )
    if as_json:
        typer.echo(json.dumps(_as_json(found, policy, environment), indent=2))
    else:
        _print_evaluation(found, policy)


def _print_evaluation(found: Evaluation, policy: str) -> None:
    manner = "deterministic" if found.deterministic else "actions drawn"
    rows = [
        ("policy", f"{policy}, {manner}"),
        ("episodes", f"{len(found.episodes):,}"),
        ("return", _words(found.mean_return)),
        ("E[T]", f"{_words(found.average_episode_length)} (T = Gymnasium's length + 1)"),
    ]
    console().print(two_columns(rows))


def _words(interval: Interval) -> str:
    return f"{interval.value:.6g}, 95% interval {interval.low:.6g} to {interval.high:.6g}"


def _as_json(found: Evaluation, policy: str, environment: str) -> dict[str, object]:
    return {
        "policy": policy,
        "environment": environment,
        "deterministic": found.deterministic,
        "episodes": len(found.episodes),
        "return": plain(vars(found.mean_return)),
        "average_episode_length": plain(vars(found.average_episode_length)),
    }
