"""The program `steadyrl`: its commands, and how errors and signals end it.

Whatever happens ends in a sentence on standard error and an exit code: 0 for success, 1 where `check` says no, 2 for an
error, 130 for Ctrl-C, SIGTERM and a closed terminal, 141 where the reader of the output has gone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from steadyrl import __version__
from steadyrl.cli.audit import audit
from steadyrl.cli.audit_config import audit_config
from steadyrl.cli.check import check
from steadyrl.cli.collect import collect
from steadyrl.cli.diagnose import diagnose
from steadyrl.cli.evaluate import evaluate
from steadyrl.cli.reproduce import reproduce
from steadyrl.cli.train import train
from steadyrl.common.terminal import clean_line, forget_impossible_sizes, never_fail_to_print, say, styled
from steadyrl.errors import RolloutError, SteadyrlError

_LONGEST = 2000  # letters of an error; values of thousands of digits are cut in the middle

_USAGE_ERROR: Any = typer.BadParameter.__base__  # Click's; recent Typers have a copy of Click that they do not export


class _CleanUsageErrors(TyperGroup):
    """Typer's group of commands, whose errors about arguments show them as text that controls nothing."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the arguments before the command's name."""
        with _clean_usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Read the arguments of the command, and run it."""
        with _clean_usage_errors():
            return super().invoke(ctx)


@contextlib.contextmanager
def _clean_usage_errors() -> Iterator[None]:
    try:
        yield
    except _USAGE_ERROR as error:
        error.message = clean_line(error.message)
        raise


app = typer.Typer(
    cls=_CleanUsageErrors, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


@app.callback(invoke_without_command=True)
def steadyrl(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Steady-state analysis of episodic reinforcement learning.

    Is your data at steady state, when will it be, and what is the cheapest cure? Every command explains itself with
    --help.
    """
    if version:
        typer.echo(f"steadyrl {__version__}")
        raise typer.Exit


class _ReaderGoneError(Exception):
    """The reader of the output has gone; Typer would make status 1 of a BrokenPipeError, which is `check`'s no."""


def _require_a_folder() -> None:
    """Raise RolloutError in a folder that has been deleted, where simulators and PyTorch crash."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise RolloutError(
            "the folder in which this command was started has been deleted, and simulators crash in none; change to "
            "another one (cd)"
        ) from error


def _own_exit_codes(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that ends with 130 on Ctrl-C, and whose status no environment can decide by sys.exit."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            if command not in (check, audit, audit_config) and not options.get("source"):  # what reads or computes
                _require_a_folder()
            command(*arguments, **options)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError as error:
            raise _ReaderGoneError from error
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(130) from None
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # rich's way to say so
                raise _ReaderGoneError from error
            raise RolloutError(
                f"the environment or the policy called sys.exit({error.code!r}), so there is no result; have it raise "
                "an error, or end the episode, instead"
            ) from error
        except Exception:
            raise
        except BaseException as error:
            said = f": {error}" if str(error) else ""
            raise RolloutError(
                f"the environment or the policy raised {type(error).__name__}{said}, so there is no result; have it "
                "raise an ordinary error, or end the episode, instead"
            ) from error

    return guarded


for command in (check, collect, diagnose, audit, audit_config, train, evaluate, reproduce):
    app.command()(_own_exit_codes(command))


def run() -> None:
    """Run the command line; what can go wrong outside steadyrl is said in a sentence, without a traceback."""
    never_fail_to_print()
    forget_impossible_sizes()
    try:
        _run()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # how rich and Typer say so, of help and of errors
            _end_without_reader()
        raise
    except (_ReaderGoneError, BrokenPipeError):
        _end_without_reader()


def _run() -> None:
    with contextlib.suppress(FileNotFoundError):  # the folder that we are in has been deleted
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # so that mypackage:Walk-v0 is found where the command is run
    try:
        app()
    except SystemExit as error:
        if isinstance(getattr(error.__context__, "__cause__", None), KeyboardInterrupt):
            say("interrupted")  # before a command began; Typer only sets the status
        raise
    except (_ReaderGoneError, BrokenPipeError):
        raise
    except (SteadyrlError, OSError) as error:
        _end(
            f"standard output, where the answer goes: {error}"
            if isinstance(error, OSError) and _answer_is_stuck()
            else str(error)
        )
    except MemoryError as error:
        more = f" ({error})" if str(error) else ""
        _end(f"this needs more memory than there is{more}; ask for less at once: fewer episodes, copies or states")
    except ValueError:
        if not getattr(sys.stdout, "closed", False):
            raise
        _end("the environment or the policy closed standard output, where the answer goes; have it leave it open")
    except RecursionError as error:
        _end(f"something is nested too deeply to be worked on ({error}): the environment, the policy or a file")


def _answer_is_stuck() -> bool:
    """Return whether standard output takes nothing more, as on a full disk."""
    if getattr(sys.stdout, "stuck", False):
        return True
    with contextlib.suppress(ValueError, AttributeError):  # it is closed, or there is none
        try:
            sys.stdout.flush()
        except OSError:
            return True
    return False


def _end_without_reader() -> None:
    """End where nobody reads any more; what is left in the streams must not be tried again, or the status is 120."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(141)


def _end(text: str) -> None:
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} [...] {text[-_LONGEST // 2 :]}"
    say(styled("error: ", "bold red"), text)
    sys.exit(2)
