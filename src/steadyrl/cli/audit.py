"""`steadyrl audit`: how biased the mean return in a log was at each moment."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from steadyrl.cli.options import AsJson
from steadyrl.common.figures import check_picture
from steadyrl.common.storage import plain
from steadyrl.common.terminal import clean, console
from steadyrl.diagnosis.audit import Audit, audit_log


def audit(
    log: Annotated[
        list[str],
        typer.Argument(
            help="A monitor.csv of Stable-Baselines3, a directory of them (one environment each), or a csv of episode "
            "lengths and returns with the step at which each ended."
        ),
    ],
    num_envs: Annotated[
        int | None, typer.Option(help="Number of environments, for a csv with steps (counted over all of them).")
    ] = None,
    window: Annotated[int, typer.Option(help="Number of finished episodes that the logged mean is taken over.")] = 100,
    memory: Annotated[
        float | None,
        typer.Option(
            help="Steps of each environment after which old data is mostly forgotten in the fair mean; 'inf' for a "
            "policy that does not learn. By default half as many as the window's episodes take."
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Number of moments at which the curves are compared.")] = 60,
    plot: Annotated[
        Path | None, typer.Option(help="Draw logged against fair mean return (.png, .svg or .pdf).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Audit a log: how biased was its mean return over finished episodes, at each moment?

    Short episodes finish first, so the usual curve shows mostly those, early on and whenever learning makes episodes
    longer. The log itself tells, afterwards, which episodes were running at each moment; the fair mean counts them.

    Examples:
    `steadyrl audit logs/ --plot audit.svg`

    `steadyrl audit episodes.csv --num-envs 8`
    """
    if plot is not None:
        check_picture(plot)
    found = audit_log(log, num_envs=num_envs, window=window, memory=memory, points=points)
    try:
        _show(found, plot, as_json=as_json)
    finally:  # neither costs the other: a full disk the answer, a reader that has gone (| head) the picture
        if plot is not None:
            found.plot(plot)
    if plot is not None and not as_json:
        console().print(clean(f"picture: {plot}"))


def _show(found: Audit, plot: Path | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_as_json(found, plot), indent=2))
    else:
        console().print(clean(found.message))
        _print_moments(found)


def _print_moments(found: Audit) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("steps", "logged", "fair", f"{found.level:.0%} interval", "bias"):
        table.add_column(name, justify="right")
    every = max(math.ceil(len(found.steps) / 10), 1)
    for i in sorted({*range(0, len(found.steps), every), len(found.steps) - 1}):
        table.add_row(
            f"{int(found.steps[i]):,}",
            f"{found.logged[i]:.5g}",
            f"{found.fair[i]:.5g}",
            f"{found.low[i]:.5g} to {found.high[i]:.5g}" if math.isfinite(found.high[i]) else "unknown",
            f"{found.bias[i]:+.0%}" if math.isfinite(found.bias[i]) else "",
        )
    console().print(table)


def _as_json(found: Audit, plot: Path | None) -> dict[str, Any]:
    columns = ("logged", "fair", "low", "high", "logged_length", "fair_length", "unresolved")
    shown: dict[str, Any] = {
        "episodes": len(found.log.length),
        "num_envs": found.log.num_envs,
        "window": found.window,
        "level": found.level,
        "known_until": found.known_until,
        "message": found.message,
        "steps": found.steps.tolist(),
        "seconds": None if found.clock is None else plain(found.clock.tolist()),
    }
    shown |= {name: plain(getattr(found, name).tolist()) for name in columns}
    shown["bounds"] = plain(found.bounds.tolist())
    shown["bias"] = plain(found.bias.tolist())
    if plot is not None:
        shown["plot"] = str(plot)
    return shown
