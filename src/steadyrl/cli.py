"""The command line: arguments in, function calls out."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from steadyrl import __version__, diagnosis
from steadyrl.diagnosis import analyse
from steadyrl.errors import FileFormatError, PolicyError, ProcessError, RolloutError, SteadyrlError
from steadyrl.figures import check_picture, mixing_curves
from steadyrl.lengthfiles import read_lengths
from steadyrl.perturbation import Perturbation
from steadyrl.process import LearningProcess
from steadyrl.report import write_report
from steadyrl.rollouts.collect import collect_episodes
from steadyrl.rollouts.episodes import Episodes
from steadyrl.screen import print_diagnosis
from steadyrl.storage import write_atomically
from steadyrl.summary import PolicySummary, Summary, summarise
from steadyrl.tabular import extend_policy, uniform_policy

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def steadyrl(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Steady-state analysis of episodic reinforcement learning.

    Is your data at steady state, when will it be, and what is the cheapest cure? Every command explains itself with
    --help.
    """
    if version:
        typer.echo(f"steadyrl {__version__}")
        raise typer.Exit


@app.command()
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
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


@app.command()
def collect(
    environment: Annotated[
        str, typer.Argument(help="A Gymnasium id: CartPole-v1, HopperBulletEnv-v0, or package:Name-v0.")
    ],
    episodes: Annotated[int, typer.Option(help="How many complete episodes.")],
    out: Annotated[Path, typer.Option(help="The file to write (.npz); read it with steadyrl.Episodes.load.")],
    policy: Annotated[
        str,
        typer.Option(help="'uniform', 'gaussian' (the paper's: a random 64 x 64 network), or a policy file."),
    ] = "uniform",
    seed: Annotated[int, typer.Option(help="Of everything random; the same seed gives the same file.")] = 0,
    backend: Annotated[str, typer.Option(help="'auto', 'serial', 'processes', 'envpool' or 'ray'.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes, or EnvPool's threads; by default one a core.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; without it, 'ray' starts a local one.")] = None,
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
    make: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for gymnasium.make, as in max_episode_steps=200; repeatable.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the blocks of an interrupted run.")] = False,
) -> None:
    """Collect complete episodes of an environment: lengths, returns, and sums of the observation at each age.

    Every episode that is started is finished and counted. Finished blocks are kept in OUT.partial until the run is
    complete, so an interrupted run goes on with --resume, to the same bytes.

    Examples:
    `steadyrl collect CartPole-v1 --episodes 10000 --out cartpole.npz`

    `steadyrl collect HopperBulletEnv-v0 --policy gaussian --episodes 4000 --out hopper.npz --backend processes`
    """
    if not out.absolute().parent.is_dir():
        raise RolloutError(f"--out is {str(out)!r}, but there is no directory {str(out.parent)!r}; make it first")
    partial = out.with_name(out.name + ".partial")
    try:
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
            make_arguments=_make_arguments(make or []),
            checkpoint=partial,
            resume=resume,
            progress=True,
        )
    except KeyboardInterrupt:
        Console(stderr=True).print(
            f"interrupted; finished blocks are kept in {partial}: repeat the command with --resume to go on from them",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    found.save(out)
    _print_episodes(found, out)


@app.command()
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
    policy: Annotated[
        str, typer.Option(help="'uniform', 'gaussian' (a random 64 x 64 network), or a policy file.")
    ] = "uniform",
    episodes: Annotated[
        int | None, typer.Option(help="How many; by default until the mixing time is known within 10%.")
    ] = None,
    num_envs: Annotated[int, typer.Option(help="Copies that run side by side in training.")] = 64,
    n_steps: Annotated[int, typer.Option(help="Steps of each copy between two updates.")] = 16,
    tolerance: Annotated[float, typer.Option(help="The distance at which data counts as steady.")] = 0.01,
    max_episodes: Annotated[int, typer.Option(help="Where collecting stops in any case.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    backend: Annotated[str, typer.Option(help="'auto', 'serial', 'processes', 'envpool' or 'ray'.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes, or EnvPool's threads; by default one a core.")] = None,
    make: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for gymnasium.make, as in max_episode_steps=200; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write report.html and diagnosis.json to this directory (made if need be).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
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
    console = Console(stderr=True)
    if source is not None:
        gathered = read_lengths(source)
        with console.status(f"analysing {len(gathered.lengths):,} episodes"):
            found = analyse(
                gathered, tolerance=tolerance, num_envs=num_envs, n_steps=n_steps, rng=np.random.default_rng([seed, 4])
            )
    else:
        found = diagnosis.diagnose(
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
            make_arguments=_make_arguments(make or []),
            progress=not as_json,
        )
    text = json.dumps(found.as_json(), indent=2)
    if as_json:
        typer.echo(text)
        for warning in found.warnings:
            console.print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)
    else:
        print_diagnosis(found, Console())
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_report(found, out / "report.html", command=shlex.join(["steadyrl", *sys.argv[1:]]))
        write_atomically(out / "diagnosis.json", text.encode())
        console.print(f"wrote {out / 'report.html'} and diagnosis.json", highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Run the command line; errors that steadyrl raises on purpose are printed without a traceback."""
    try:
        app()
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (SteadyrlError, OSError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


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


def _make_arguments(pairs: list[str]) -> dict[str, Any]:
    """Return KEY=VALUE pairs as arguments; a value is read as JSON, or else as the text that it is."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.isidentifier():
            raise RolloutError(f"--make is {pair!r}; it must be KEY=VALUE, as in max_episode_steps=200")
        try:
            arguments[key] = json.loads(value)
        except json.JSONDecodeError:
            arguments[key] = value
    return arguments


def _print_episodes(found: Episodes, out: Path) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("episodes", f"{len(found):,}, {found.steps:,} steps")
    if len(found) > 1:
        error = 1.96 * found.lengths.std(ddof=1) / math.sqrt(len(found))
        table.add_row("E[T]", f"{found.average_episode_length:.6g} ± {error:.3g} (95%; T = Gymnasium's length + 1)")
        table.add_row("CV of T", f"{found.lengths.std(ddof=1) / found.average_episode_length:.3g}")
        spread = 1.96 * found.returns.std(ddof=1) / math.sqrt(len(found))
        table.add_row("return", f"{found.returns.mean():.6g} ± {spread:.3g}")
    table.add_row("ends", f"{int(found.terminated.sum()):,} terminated, {int(found.truncated.sum()):,} truncated")
    if found.skipped:
        table.add_row("left out", f"{len(found.skipped):,}, the first: {escape(found.skipped[0].message)}")
    table.add_row("file", escape(str(out)))
    Console().print(table, highlight=False)


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
