"""`steadyrl check`: analyses a finite model exactly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steadyrl.cli.options import AsJson
from steadyrl.common.checks import shown
from steadyrl.common.detours import Perturbation
from steadyrl.common.figures import check_picture
from steadyrl.common.quiet import output_to_stderr
from steadyrl.common.storage import read_whole_array, require_reasonable_size
from steadyrl.common.tables import two_columns
from steadyrl.common.terminal import clean_line, console, say, styled
from steadyrl.errors import FileFormatError, PolicyError, ProcessError
from steadyrl.exact.mixing_curves import mixing_curves
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.summary import PolicySummary, Summary, summarise
from steadyrl.exact.tabular import extend_policy, uniform_policy


def check(
    model: Annotated[
        str,
        typer.Argument(
            help="The Gymnasium id of an environment that carries its model (FrozenLake-v1, Taxi-v4, CliffWalking-v1), "
            "or a file saved with LearningProcess.save."
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="'uniform', or a file (.npy, .npz, .json, .csv) with the probability of each action in each state; "
            "terminal states may be left out, and with a time limit a policy [S, A] is used at every step."
        ),
    ] = "uniform",
    time_limit: Annotated[
        str,
        typer.Option(
            help="'spec' for the environment's own time limit, 'none', or the number of actions after which episodes "
            "are truncated."
        ),
    ] = "spec",
    epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon of the paper's recursive perturbation, between 0 and 1; by default 1 - 1/E[T]."),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Total variation below which the process counts as mixed.")] = 0.01,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the distance to the steady state over time, raw and perturbed, to this .png, .svg or .pdf file."
        ),
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
    screen = console(stderr=True)
    with screen.status(styled(clean_line(f"reading {model}"), "")):  # of a plain string, rich would read markup
        process = _load_model(model, time_limit)
        pi = _load_policy(process, policy)
    with screen.status(f"analysing {process.n_states:,} states"):
        summary = summarise(process, pi, epsilon=epsilon, tolerance=tolerance)
    try:
        if as_json:
            typer.echo(json.dumps({"model": model, "policy_name": policy, **summary.as_json()}, indent=2))
        else:
            _print_summary(model, policy, summary)
    finally:  # a reader that has gone (| head), or a full disk behind standard output, must not cost the picture
        if plot is not None:
            _draw(process, pi, summary, plot, title=f"{Path(model).name}, {Path(policy).name} policy")
    if not summary.ok:
        raise typer.Exit(1)


def _draw(process: LearningProcess, pi: Any, summary: Summary, plot: Path, *, title: str) -> None:
    """Draw the mixing curves, or say why there are none."""
    if summary.policy is None or summary.policy.epsilon is None:
        say(f"{plot} was not drawn: {_why_no_picture(summary)}")
        return
    with console(stderr=True).status("drawing"):
        perturbation = Perturbation(summary.policy.epsilon)
        mixing_curves(process, pi, perturbation, plot, title=title, tolerance=summary.tolerance)
    say(f"wrote {plot}")


def _load_model(model: str, time_limit: str) -> LearningProcess:
    limit: Any = None if time_limit == "none" else time_limit
    if time_limit not in ("none", "spec"):
        few = len(time_limit) < 20 and time_limit.isascii() and time_limit.isdigit()
        if not few or int(time_limit) < 1:
            raise ProcessError(
                f"--time-limit is {shown(time_limit)}; it must be 'spec', 'none', or a number of actions"
            )
        limit = int(time_limit)
    if Path(model).is_file():
        process = LearningProcess.load(model)
        if time_limit == "spec":
            return process
        free = process if process.layers is None else process.layers.base
        return free if limit is None else free.with_time_limit(limit)
    import gymnasium

    try:
        with output_to_stderr():  # what the environment prints is no part of the answer
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
        values = _read_array(path)
    except MemoryError:
        raise
    except Exception as error:  # zipfile, zlib, json and numpy raise a dozen types on damaged files
        raise FileFormatError(f"{policy!r} does not hold an array of probabilities [S, A] ({error})") from error
    return extend_policy(process, values)


def _read_array(path: Path) -> Any:
    if path.suffix == ".json":
        return np.array(json.loads(path.read_text()), dtype=float)
    if path.suffix in (".csv", ".txt"):
        if not path.read_text().strip():
            raise ValueError("the file is empty")
        return np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2)
    with open(path, "rb") as file:  # numpy would leave a damaged archive open
        if file.peek(6).startswith(b"\x93NUMPY"):
            return read_whole_array(file)
        with np.load(file, allow_pickle=False) as loaded:
            require_reasonable_size(loaded.zip, path.stat().st_size)
            if len(loaded.files) != 1 and "policy" not in loaded.files:
                held = ", ".join(loaded.files) or "no array"
                raise ValueError(f"it holds {held}; one array, or one named policy, was expected")
            return loaded["policy" if "policy" in loaded.files else loaded.files[0]]


def _why_no_picture(summary: Summary) -> str:
    if summary.policy is None:
        return "there is no steady state to approach"
    if summary.policy.average_episode_length == 1:
        return "every episode is a single reset, so the process is at its steady state from the start"
    return "the process is already perturbed"


def _print_summary(model: str, policy: str, summary: Summary) -> None:
    screen = console()
    limit = "" if summary.time_limit is None else f", time limit {summary.time_limit} actions"
    terminal = f"{summary.terminal_states:,} terminal"
    rows: list[tuple[str, Any]] = [
        ("model", f"{model}{limit}; {policy} policy"),
        ("size", f"{_count(summary.states, 'state')} ({terminal}), {_count(summary.actions, 'action')}"),
        ("homogeneous", _homogeneous(summary)),
        ("finite", _finite(summary)),
    ]
    if not summary.ok or "T = 1" in summary.message:
        rows.append(("", summary.message))
    if summary.policy is not None:
        rows += _policy_rows(summary.policy, summary.tolerance)
    _print_trimmed(screen, two_columns(rows))
    if summary.policy is not None:
        _print_trimmed(screen, _theorem_table(summary.policy))
    _print_trimmed(screen, styled(summary.verdict, "bold"))


def _policy_rows(found: PolicySummary, tolerance: float) -> list[tuple[str, Any]]:
    mean = found.average_episode_length
    note = "" if found.period == 1 else ", the common divisor of all lengths: the process never converges"
    rows = [
        ("E[T]", f"{mean:.6g} transitions, the reset included (Gymnasium's mean length: {mean - 1:.6g})"),
        ("period", f"{found.period}{note}"),
        ("J_epi", f"{found.episode_performance:.10g}, the expected reward of an episode"),
        ("J_avg x E[T]", f"{found.steady_state_performance * mean:.10g}, the same by Theorem 4"),
        (f"mixed to {tolerance:g}", _time(found.mixing_time, mean)),
    ]
    if found.epsilon is not None:
        epsilon = f"epsilon = 1 - {1 - found.epsilon:.4g}"
        rows.append(("  perturbed", f"{_time(found.perturbed_mixing_time, mean)}, {epsilon}"))
    return [*rows, *(("", remark) for remark in found.notes)]


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


def _homogeneous(summary: Summary) -> Text:
    if summary.homogeneous:
        return styled("yes", "green") + ": all initial states are terminal states, and every episode starts alike"
    return styled("no", "red") + ": the initial states or their actions lead to different states"


def _finite(summary: Summary) -> Text:
    if summary.finite:
        return styled("yes", "green") + ": episodes end, for every policy"
    if not summary.homogeneous:
        return styled("no", "red") + ": without terminal states, episodes have neither a start nor an end"
    this = "they do end under this one" if summary.finite_under_policy else "this one is such a policy"
    return styled("no", "red") + f": under some policies, episodes do not end; {this}"


def _time(steps: float | None, mean: float) -> str:
    if steps is None:
        return "not found"
    return "never" if math.isinf(steps) else f"after {steps:,.0f} steps = {steps / mean:.3g} E[T]"
