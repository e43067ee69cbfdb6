"""`steadyrl audit-config`: which ages a configuration of brax's PPO ever trains on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyrl.cli.options import AsJson
from steadyrl.common.figures import check_picture
from steadyrl.common.terminal import clean, console
from steadyrl.diagnosis.trainer_schedule import TrainerSchedule, from_config, playground_schedules, plot_schedules
from steadyrl.errors import TrainingError


def audit_config(
    task: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tasks of MuJoCo Playground, whose tuned PPO configuration is audited; 'all' for every task. Options "
            "replace its numbers. Without a task, the options alone are audited."
        ),
    ] = None,
    num_timesteps: Annotated[int | None, typer.Option(help="Steps of the whole run, over all environments.")] = None,
    num_envs: Annotated[int | None, typer.Option(help="Number of environments.")] = None,
    episode_length: Annotated[int | None, typer.Option(help="Time limit of an episode, in simulator steps.")] = None,
    unroll_length: Annotated[int | None, typer.Option(help="Steps of an unroll; brax's default is 10.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Unrolls in a minibatch; brax's default is 32.")] = None,
    num_minibatches: Annotated[int | None, typer.Option(help="Minibatches per update; brax's default is 16.")] = None,
    num_evals: Annotated[int | None, typer.Option(help="Evaluations in the run; brax's default is 1.")] = None,
    num_resets_per_eval: Annotated[
        int | None,
        typer.Option(help="Resets of all environments between two evaluations; brax's default is 0: none."),
    ] = None,
    action_repeat: Annotated[int | None, typer.Option(help="Simulator steps per action; brax's default is 1.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the shares of an episode (.png, .svg or .pdf).")] = None,
    as_json: AsJson = False,
) -> None:
    """Audit a PPO configuration of brax or MuJoCo Playground: which ages does it ever train on?

    Between evaluations brax resets all environments together, often before a single episode can end; what comes later
    in an episode is then never trained on.

    Examples:
    `steadyrl audit-config Go1JoystickFlatTerrain`

    `steadyrl audit-config all --plot playground.svg`

    `steadyrl audit-config --num-timesteps 100000000 --num-envs 8192 --episode-length 1000 --unroll-length 20
    --batch-size 256 --num-minibatches 32 --num-evals 10 --num-resets-per-eval 10`
    """
    if plot is not None:
        check_picture(plot)
    given = {
        "num_timesteps": num_timesteps,
        "num_envs": num_envs,
        "episode_length": episode_length,
        "unroll_length": unroll_length,
        "batch_size": batch_size,
        "num_minibatches": num_minibatches,
        "num_evals": num_evals,
        "num_resets_per_eval": num_resets_per_eval,
        "action_repeat": action_repeat,
    }
    numbers = {name: value for name, value in given.items() if value is not None}
    schedules = _schedules(task or [], numbers)
    if as_json:
        typer.echo(json.dumps({name: as_dict(found) for name, found in schedules.items()}, indent=2))
    elif len(schedules) == 1:
        for name, found in schedules.items():
            console().print(clean(f"{name}: {found.message}"))
    else:
        _print_table(schedules)
    if plot is not None:  # after the answer, which a full disk must not cost
        plot_schedules(schedules, plot)
        if not as_json:
            console().print(clean(f"picture: {plot}"))


def _schedules(tasks: list[str], numbers: dict[str, int]) -> dict[str, TrainerSchedule]:
    if tasks:
        found = playground_schedules([] if "all" in tasks else tasks)
        return {name: from_config(asdict(schedule) | numbers) for name, schedule in found}
    missing = [name for name in ("num_timesteps", "num_envs", "episode_length") if name not in numbers]
    if missing:
        options = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise TrainingError(
            f"{options} not given; name a task of MuJoCo Playground, or give the numbers of your configuration"
        )
    return {"this configuration": from_config(numbers)}


def as_dict(found: TrainerSchedule) -> dict[str, Any]:
    """Return the settings and what follows from them, for JSON."""
    names = "episode_steps", "update_steps", "updates_between_resets", "reset_every", "run_steps", "oldest_age"
    return asdict(found) | {
        **{name: getattr(found, name) for name in names},
        "reset_before_an_end": found.reset_before_an_end,
        "message": found.message,
    }


def _print_table(schedules: dict[str, TrainerSchedule]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("task")
    for name in ("episode", "reset every", "oldest age", "never trained on", "per update"):
        table.add_column(name, justify="right")
    for name, found in schedules.items():
        table.add_row(
            clean(name),
            f"{found.episode_steps:,}",
            "never" if found.reset_every is None else f"{found.reset_every:,}",
            f"{found.oldest_age:,}",
            f"{1 - found.oldest_age / found.episode_steps:.0%}" if found.oldest_age < found.episode_steps else "",
            f"{min(found.update_steps / found.episode_steps, 1):.0%}",
        )
    console().print(table)
    early = sum(found.reset_before_an_end for found in schedules.values())
    console().print(
        f"{early} of {len(schedules)} configurations reset all environments before an episode can last until its time "
        "limit; what comes after is never trained on. Steps are actions of one environment."
    )
