"""`steadyrl evaluate`: how good a policy is, over complete episodes or with any budget, and a video of an episode."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyrl.cli.options import AsJson, Backend, EnvironmentId, Make, Seed, StepTimeout, Workers, make_arguments
from steadyrl.common.checks import check_count
from steadyrl.common.intervals import Interval
from steadyrl.common.quiet import output_to_stderr
from steadyrl.common.storage import plain
from steadyrl.common.tables import two_columns
from steadyrl.common.terminal import console
from steadyrl.errors import RolloutError, SteadyrlError
from steadyrl.live.fair_report import FairReport
from steadyrl.sspg.budgets import BudgetRun
from steadyrl.sspg.evaluation import Evaluation
from steadyrl.sspg.evaluation import evaluate as run_episodes
from steadyrl.sspg.video import Video, check_video, record_video


def evaluate(
    environment: EnvironmentId,
    policy: Annotated[str, typer.Argument(help="A policy file, 'uniform', or 'gaussian'.")],
    episodes: Annotated[
        int | None, typer.Option(help="Number of complete episodes; 100 if no other budget is given.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Stop after so many environment steps over all environments, resets included; running episodes count."
        ),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds; running episodes count.")] = None,
    until: Annotated[
        float | None,
        typer.Option(
            help="Stop when the interval of the mean return is that wide, from its lower to its upper end; with "
            "--steps or --seconds as a limit."
        ),
    ] = None,
    num_envs: Annotated[
        int | None,
        typer.Option(help="Number of environments for --steps, --seconds and --until; by default 8 to 64."),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Take the mean, or the most likely action, instead of drawing actions."),
    ] = False,
    seed: Seed = 0,
    backend: Backend = "auto",
    workers: Workers = None,
    step_timeout: StepTimeout = None,
    video: Annotated[
        Path | None,
        typer.Option(help="Write a video (.mp4 or .gif) of the episode with the median return. Not with EnvPool."),
    ] = None,
    make: Make = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a policy: its mean return and mean episode length, with 95% confidence intervals.

    With --steps, --seconds or --until, environments run side by side and stop when the budget is spent. Running
    episodes count, so that the numbers are unbiased; Ctrl-C ends the run early with what is known by then.

    Examples:
    `steadyrl evaluate Hopper-v5 hopper/policy.safetensors --episodes 100`

    `steadyrl evaluate Hopper-v5 hopper/policy.safetensors --until 20 --seconds 60`

    `steadyrl evaluate Hopper-v5 hopper/policy.safetensors --deterministic --video hop.mp4`
    """
    if Path(environment).is_file() and not Path(policy).is_file():  # the order of version 0.1
        environment, policy = policy, environment
    arguments = make_arguments(make)
    check_count("episodes", episodes)
    if video is not None:
        place = video.absolute()  # an environment may change the working directory (os.chdir)
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
            steps=steps,
            seconds=seconds,
            until=until,
            num_envs=num_envs,
            deterministic=deterministic,
            seed=seed,
            backend=backend,
            workers=workers,
            step_timeout=step_timeout,
            make_arguments=arguments,
            trajectories=video is not None,
            progress=not as_json,
        )
    film: Video | None = None
    failure: BaseException | None = None
    if video is not None:
        try:
            with output_to_stderr():
                film = replace(record_video(environment, found, place, make_arguments=arguments), path=video)
        except BaseException as error:  # no full disk, no renderer and no Ctrl-C may cost the answer
            failure = error
    if as_json:
        typer.echo(json.dumps(_as_json(found, film, policy, environment), indent=2))
    else:
        _print_evaluation(found, film, policy)
    if isinstance(failure, KeyboardInterrupt):
        raise failure
    if failure is not None:
        raise RolloutError(f"the video {str(video)!r} was not made ({_reason(failure)})") from failure
    if found.run is not None and found.run.stopped == "interrupted":
        raise KeyboardInterrupt


def _reason(error: BaseException) -> str:
    known = isinstance(error, SteadyrlError | OSError)
    return str(error) if known else f"{type(error).__name__}: {error}"


def _print_evaluation(found: Evaluation, film: Video | None, policy: str) -> None:
    manner = "deterministic" if found.deterministic else "actions drawn"
    length = found.average_episode_length
    rows = [("policy", f"{policy}, {manner}")]
    if found.episodes is not None:
        rows.append(("episodes", f"{len(found.episodes):,}"))
    if found.run is not None:
        rows += _budget_rows(found.run)
    rows += [
        ("return", _words(found.mean_return)),
        ("mean episode length", _words(Interval(length.value - 1, length.low - 1, length.high - 1))),
    ]
    if found.report is not None:
        rows += _fair_rows(found.report)
    if film is not None and found.episodes is not None:
        episode = f"episode {film.episode + 1:,} of {len(found.episodes):,}, the one with the median return"
        rows.append(("video", f"{film.path}: {episode}, {film.episode_return:.6g}; {film.pictures:,} pictures"))
    console().print(two_columns(rows))


def _budget_rows(run: BudgetRun) -> list[tuple[str, str]]:
    reasons = {
        "until": "the interval was narrow enough",
        "steps": "all steps were taken",
        "seconds": "the time was up",
        "interrupted": "it was interrupted",
    }
    return [
        (
            "stopped",
            f"{reasons[run.stopped]}, after {run.report.steps:,} steps of {run.num_envs:,} environments in "
            f"{run.seconds:.3g} s",
        )
    ]


def _fair_rows(report: FairReport) -> list[tuple[str, str]]:
    rows = []
    if report.success is not None:
        low, high = report.success.low, report.success.high
        rows.append(("success", f"{report.success.value:.1%}, {report.level:.0%} interval {low:.1%} to {high:.1%}"))
    if report.finished_episodes:
        rows.append(
            (
                "finished episodes",
                f"{report.finished_episodes:,}; their own mean return, {report.finished_only:.6g}, is biased "
                "(short ones finish first)",
            )
        )
    if report.unresolved > 0:
        rows.append(("unresolved", report.message.splitlines()[-1]))
    return rows


def _words(interval: Interval) -> str:
    return f"{interval.value:.6g}, 95% interval {interval.low:.6g} to {interval.high:.6g}"


def _as_json(found: Evaluation, film: Video | None, policy: str, environment: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"policy": policy, "environment": environment, "deterministic": found.deterministic}
    if found.episodes is not None:
        shown["episodes"] = len(found.episodes)
    shown["return"] = plain(vars(found.mean_return))
    shown["average_episode_length"] = plain(vars(found.average_episode_length))
    if found.run is not None:
        shown |= _budget_json(found.run)
    if film is not None:
        shown["video"] = {
            "path": str(film.path),
            "episode": film.episode,
            "return": film.episode_return,
            "pictures": film.pictures,
        }
    return shown


def _budget_json(run: BudgetRun) -> dict[str, Any]:
    report = run.report
    return {
        "steps": report.steps,
        "num_envs": run.num_envs,
        "stopped": run.stopped,
        "success": None if report.success is None else plain(vars(report.success)),
        "unresolved": report.unresolved,
        "return_bounds": plain(list(report.return_bounds)),
        "finished_episodes": report.finished_episodes,
        "finished_only": plain(report.finished_only),
        "level": report.level,
    }
