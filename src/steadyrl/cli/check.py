"""`steadyrl check`: a finite model, analysed exactly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from steadyrl.cli.options import AsJson
from steadyrl.common.detours import Perturbation
from steadyrl.common.figures import check_picture
from steadyrl.errors import FileFormatError, PolicyError, ProcessError
from steadyrl.exact.mixing_curves import mixing_curves
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.summary import PolicySummary, Summary, summarise
from steadyrl.exact.tabular import extend_policy, uniform_policy


def check(
    model: Annotated[
        str,
        typer.Argument(
            help="A Gymnasium id of an environment that carries its model (FrozenLake-v1, Taxi-v4, CliffWalking-v1), "
            "or a file saved with LearningProcess.save."
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="'uniform', or a file (.npy, .npz, .json, .csv) with the probability of each action in each state; "
            "terminal states may be left out, and a policy without steps is repeated at every step of a time limit."
        ),
    ] = "uniform",
    time_limit: Annotated[
        str,
        typer.Option(
            help="'spec' (the environment's own), 'none', or a number of actions after which episodes are cut."
        ),
    ] = "spec",
    epsilon: Annotated[
        float | None,
        typer.Option(help="Of the recursive perturbation, between 0 and 1; by default the paper's 1 - 1/E[T]."),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="The distance at which the process counts as mixed.")] = 0.01,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the distance to the steady state, raw and perturbed, to this .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Check a finite model: is it an episodic learning process, how long are its episodes, does it mix?

    Everything is computed exactly, and every theorem of the paper is checked on the model; its residual is shown.
    The exit code is 1 if the model is not an episodic learning process (Definition 1), 2 if the arguments are wrong.

    For example:

    `steadyrl check FrozenLake-v1 --plot mixing.png`

    `steadyrl check Taxi-v4 --time-limit none`

    `steadyrl check process.npz --policy policy.npy --json`
    """
    if plot is not None:
        check_picture(plot)
    if epsilon is not None:
        Perturbation(epsilon)
    console = Console(stderr=True)
    with console.status(f"reading {model}"):
        process = _load_model(model, time_limit)
        pi = _load_policy(process, policy)
    with console.status(f"analysing {process.n_states:,} states"):
        summary = summarise(process, pi, epsilon=epsilon, tolerance=tolerance)
    if as_json:
        typer.echo(json.dumps({"model": model, "policy_name": policy, **summary.as_json()}, indent=2))
    else:
        _print_summary(model, policy, summary)
    if plot is not None and summary.policy is not None and summary.policy.epsilon is not None:
        with console.status("drawing"):
            title = f"{Path(model).name}, {Path(policy).name} policy"
            mixing_curves(process, pi, Perturbation(summary.policy.epsilon), plot, title=title, tolerance=tolerance)
        console.print(f"wrote {plot}", highlight=False, markup=False)
    elif plot is not None:
        console.print(f"{plot} was not drawn: {_why_no_picture(summary)}", highlight=False, markup=False)
    if not summary.ok:
        raise typer.Exit(1)


def _load_model(model: str, time_limit: str) -> LearningProcess:
    limit: Any = None if time_limit == "none" else time_limit
    if time_limit not in ("none", "spec"):
        if not (time_limit.isascii() and time_limit.isdigit()) or int(time_limit) < 1:
            raise ProcessError(f"--time-limit is {time_limit!r}; it must be 'spec', 'none', or a positive number")
        limit = int(time_limit)
    if Path(model).is_file():
        process = LearningProcess.load(model)
        if time_limit == "spec":
            return process
        free = process if process.layers is None else process.layers.base
        return free if limit is None else free.with_time_limit(limit)
    import gymnasium

    try:
        return LearningProcess.from_gymnasium(model, limit)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ProcessError(
            f"{model!r} is not a file, and Gymnasium cannot make an environment of it: {error}"
        ) from error


def _load_policy(process: LearningProcess, policy: str) -> Any:
    if policy == "uniform":
        return uniform_policy(process)
    path = Path(policy)
    if not path.is_file():
        raise PolicyError(f"--policy is {policy!r}; it must be 'uniform' or a file with probabilities [S, A]")
    try:
        return extend_policy(process, _read_array(path))
    except PolicyError:
        raise
    except (ValueError, OSError, EOFError, TypeError) as error:
        raise FileFormatError(f"{policy!r} does not hold an array of probabilities [S, A] ({error})") from error


def _read_array(path: Path) -> Any:
    if path.suffix == ".json":
        return np.array(json.loads(path.read_text()), dtype=float)
    if path.suffix in (".csv", ".txt"):
        return np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2)
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        if len(loaded.files) > 1 and "policy" not in loaded.files:
            raise ValueError(f"it holds {', '.join(loaded.files)}; one array, or one named policy, was expected")
        return loaded["policy" if "policy" in loaded.files else loaded.files[0]]


def _why_no_picture(summary: Summary) -> str:
    if summary.policy is None:
        return "there is no steady state to approach"
    if summary.policy.average_episode_length == 1:
        return "every episode is a single reset, at its steady state from the start"
    return "the process is perturbed already"


def _print_summary(model: str, policy: str, summary: Summary) -> None:
    console = Console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    limit = "" if summary.time_limit is None else f", time limit {summary.time_limit} actions"
    table.add_row("model", escape(f"{model}{limit}; {policy} policy"))
    terminal = f"{summary.terminal_states:,} terminal"
    table.add_row("size", f"{_count(summary.states, 'state')} ({terminal}), {_count(summary.actions, 'action')}")
    table.add_row("homogeneous", _yes_or_no(summary.homogeneous) + ": every episode starts alike")
    table.add_row("finite", _yes_or_no(summary.finite) + ": episodes end, for every policy" + _under_this(summary))
    if not summary.ok or "T = 1" in summary.message:
        table.add_row("", escape(summary.message))
    if summary.policy is not None:
        _add_policy_rows(table, summary.policy, summary.tolerance)
    _print_trimmed(console, table)
    if summary.policy is not None:
        _print_trimmed(console, _theorem_table(summary.policy))
    _print_trimmed(console, f"[bold]{escape(summary.verdict)}[/]")


def _add_policy_rows(table: Table, found: PolicySummary, tolerance: float) -> None:
    mean = found.average_episode_length
    table.add_row("E[T]", f"{mean:.6g} transitions, the reset included (Gymnasium's mean length: {mean - 1:.6g})")
    note = "" if found.period == 1 else ", the common divisor of all lengths: the process never converges"
    table.add_row("period", f"{found.period}{note}")
    table.add_row("J_epi", f"{found.episode_performance:.10g}, the expected reward of an episode")
    table.add_row("J_avg x E[T]", f"{found.steady_state_performance * mean:.10g}, the same by Theorem 4")
    table.add_row(f"mixed to {tolerance:g}", _time(found.mixing_time, mean))
    if found.epsilon is not None:
        epsilon = f"epsilon = 1 - {1 - found.epsilon:.4g}"
        table.add_row("  perturbed", f"{_time(found.perturbed_mixing_time, mean)}, {epsilon}")
    for remark in found.notes:
        table.add_row("", escape(remark))


def _theorem_table(found: PolicySummary) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    for name, residual in found.theorems.items():
        theorem, statement = name.split(": ")
        table.add_row(theorem, statement, f"residual {residual:.1e}")
    return table


def _print_trimmed(console: Console, what: Any) -> None:
    """Print without the spaces that pad a table's last column."""
    with console.capture() as captured:
        console.print(what, highlight=False)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _yes_or_no(holds: bool) -> str:
    return "[green]yes[/]" if holds else "[red]no[/]"


def _under_this(summary: Summary) -> str:
    if summary.finite:
        return ""
    return " (" + _yes_or_no(summary.finite_under_policy) + " for this one)"


def _time(steps: float | None, mean: float) -> str:
    if steps is None:
        return "not found"
    return "never" if math.isinf(steps) else f"after {steps:,.0f} steps = {steps / mean:.3g} E[T]"
