"""Runs experiments and writes results, figures, pages and the index to a folder that is complete at every moment.

A finished experiment has all its files; an unfinished one has only its folder of unfinished work, from which `resume`
continues.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from threadpoolctl import threadpool_limits

from steadyrl.common.figures import check_picture, save_figure
from steadyrl.common.storage import locked, why_no_such_file, write_atomically
from steadyrl.errors import FileFormatError, RolloutError
from steadyrl.experiments.experiment import SCALES, Experiment, Result, identity
from steadyrl.experiments.pages import (
    Page,
    page_of,
    render_html,
    render_index,
    render_markdown,
    render_markdown_index,
    understood,
)
from steadyrl.experiments.workspace import Workspace
from steadyrl.rollouts.planning import Options
from steadyrl.rollouts.ray_tasks import connected

UNFINISHED = ".unfinished"
"""Subfolder of the results for work in progress."""

_SUFFIXES = ("npz", "json", "svg", "png", "html")


def reproduce(
    experiments: Sequence[Experiment],
    scale: str,
    out: Path,
    *,
    known: Sequence[Experiment] = (),
    seed: int = 0,
    resume: bool = False,
    backend: str = "auto",
    workers: int | None = None,
    address: str | None = None,
    progress: bool | TextIO = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Page]:
    """Run experiments one after the other and write, for each, result, figure and page; then the index.

    Args:
        experiments: the experiments to run.
        scale: "quick", "laptop" or "paper".
        out: the folder of results; it is created if it does not exist.
        known: all experiments whose results the index lists; by default those that are run.
        seed: seed of all random numbers.
        resume: whether to skip finished experiments in the folder and to continue unfinished ones.
        backend: as for `collect_episodes`.
        workers: as for `collect_episodes`.
        address: as for `collect_episodes`.
        progress: True to show progress on standard error, or a stream.
        say: function that is called with each message about progress.

    Raises:
        RolloutError: if the scale is unknown, another run uses the folder, the folder holds unfinished work and
            `resume` is not set, or it holds results of a larger scale.
    """
    check_scale(scale)
    if backend == "envpool":
        raise RolloutError("EnvPool does not have all of these environments; 'auto' takes it where it has them")
    Options(seed=seed, backend=backend, workers=workers, address=address)  # some experiments take none, and check none
    if out.exists() and not out.is_dir():
        raise RolloutError(f"out is {str(out)!r}, which is a file; name a folder for the results")
    out.mkdir(parents=True, exist_ok=True)
    # one cluster for all parts: a local one takes seconds to start
    cluster = connected(address, workers) if backend == "ray" else contextlib.nullcontext()
    with locked(out), cluster:
        _check_names(experiments, out)
        check_picture(out / "figure.png")
        _clear_finished(experiments, scale, out, seed)
        _refuse_to_replace(experiments, scale, out, seed)
        if not resume:
            _refuse_to_lose(experiments, scale, out, seed)
        for experiment in experiments:
            wanted = identity(experiment.name, scale, seed, experiment.settings[scale])
            if resume and _finished(out, wanted):
                say(f"{experiment.name}: finished before")
                Result.load(out / f"{experiment.name}.npz").save_numbers(out)
                write_page(experiment, out)
                continue
            say(f"{experiment.name}: {experiment.title}")
            folder = _folder(out, wanted)
            folder.mkdir(parents=True, exist_ok=True)
            workspace = Workspace(seed, folder, backend, workers, address, progress, say)
            _run(experiment, scale, workspace, out, wanted)
            with contextlib.suppress(FileFormatError):  # a damaged result of another may be replaced by what follows
                write_index(known or experiments, out)
        return write_index(known or experiments, out)


def _check_names(experiments: Sequence[Experiment], out: Path) -> None:
    """Raise RolloutError if a file could not be written at the end, before anything is run for it."""
    names = [f"{experiment.name}.{suffix}" for experiment in experiments for suffix in _SUFFIXES]
    for path in (out / name for name in (*names, "index.html")):
        reason = why_no_such_file(path)
        if reason is not None:
            raise RolloutError(f"{str(path)!r} cannot be written ({reason}); delete it, or name another folder (--out)")


def _run(experiment: Experiment, scale: str, workspace: Workspace, out: Path, wanted: dict[str, Any]) -> None:
    """Run one experiment, save its result and page, and delete its unfinished work."""
    with threadpool_limits(limits=1, user_api="blas"):  # the last digits of large products depend on the threads
        numbers, arrays = experiment.run(experiment.settings[scale], workspace)
    versions = _own_versions() | workspace.versions
    Result(experiment.name, scale, workspace.seed, wanted["settings"], numbers, arrays, versions).save(out)
    write_page(experiment, out)
    _delete_unfinished(workspace.folder)


def check_scale(scale: str) -> None:
    """Raise RolloutError unless the scale is known."""
    if scale not in SCALES:
        raise RolloutError(f"scale is {scale!r}; it must be one of {', '.join(SCALES)}")


def write_page(experiment: Experiment, out: Path) -> None:
    """Draw the figure of a result in a folder and write its page."""
    result = Result.load(out / f"{experiment.name}.npz")
    svg = draw(experiment, result, out)
    write_atomically(out / f"{experiment.name}.html", render_html(page_of(experiment, result), svg).encode())


def write_index(experiments: Sequence[Experiment], out: Path) -> list[Page]:
    """Write the index of the results in a folder; return what their pages say."""
    pages = []
    for experiment in experiments:
        path = out / f"{experiment.name}.npz"
        if path.exists():
            pages.append(page_of(experiment, Result.load(path)))
    write_atomically(out / "index.html", render_index(pages).encode())
    return pages


def document(experiments: Sequence[Experiment], results: Path, out: Path) -> None:
    """Copy the results in a folder into the documentation: result, figure, page and index."""
    out.mkdir(parents=True, exist_ok=True)
    pages = []
    for experiment in experiments:
        path = results / f"{experiment.name}.npz"
        path = path if path.exists() else out / path.name
        if not path.exists():
            continue
        result = Result.load(path)
        result.save(out)
        draw(experiment, result, out)
        page = page_of(experiment, result)
        write_atomically(out / f"{experiment.name}.md", render_markdown(page).encode())
        pages.append(page)
    write_atomically(out / "index.md", render_markdown_index(pages).encode())


def draw(experiment: Experiment, result: Result, out: Path) -> str:
    """Draw a result's figure as NAME.svg and NAME.png; return the SVG."""
    import matplotlib

    style: Any = {
        "svg.hashsalt": experiment.name,
        "svg.fonttype": "none",
        "font.size": 9.0,
        "font.family": "sans-serif",
    }
    with matplotlib.rc_context(style), understood(experiment, result):
        figure = experiment.draw(result)
        for suffix in (".svg", ".png"):
            save_figure(figure, out / f"{experiment.name}{suffix}", suffix)
    return (out / f"{experiment.name}.svg").read_text(encoding="utf-8")


def cost_text(experiments: Sequence[Experiment], scale: str) -> str:
    """Return what a scale costs, in words; empty where it takes minutes."""
    check_scale(scale)
    costs = [cost for experiment in experiments for cost in experiment.cost(experiment.settings[scale])]
    hours = sum(cost.hours for cost in costs)
    if hours < 0.1:
        return ""
    largest = max(costs, key=lambda cost: cost.hours)
    return (
        f"about {hours:,.3g} core-hours of simulation ({sum(cost.steps for cost in costs):,.3g} steps; "
        f"{largest.hours / hours:.0%} of it in {largest.environment}), at rates measured on one machine"
    )


def _finished(out: Path, wanted: dict[str, Any]) -> bool:
    path = out / f"{wanted['experiment']}.npz"
    return path.exists() and Result.load(path).identity == wanted


def _folder(out: Path, wanted: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps([wanted, version("steadyrl")], sort_keys=True).encode()).hexdigest()[:12]
    return out / UNFINISHED / f"{wanted['experiment']}-{digest}"


def _clear_finished(experiments: Sequence[Experiment], scale: str, out: Path, seed: int) -> None:
    """Delete the unfinished work of finished experiments, which a run leaves if it is killed at its very end."""
    for experiment in experiments:
        wanted = identity(experiment.name, scale, seed, experiment.settings[scale])
        folder = _folder(out, wanted)
        if folder.exists() and _finished(out, wanted):
            _delete_unfinished(folder)
    _delete_if_empty(out / UNFINISHED)


def _delete_unfinished(folder: Path) -> None:
    shutil.rmtree(folder)
    _delete_if_empty(folder.parent)


def _delete_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is not there, or other experiments' work still is
        folder.rmdir()


def _refuse_to_lose(experiments: Sequence[Experiment], scale: str, out: Path, seed: int) -> None:
    for experiment in experiments:
        folder = _folder(out, identity(experiment.name, scale, seed, experiment.settings[scale]))
        if folder.exists():
            raise RolloutError(
                f"{str(folder)!r} holds the unfinished work of an interrupted run of {experiment.name}; go on from it "
                "with --resume, or delete the folder"
            )


def _refuse_to_replace(experiments: Sequence[Experiment], scale: str, out: Path, seed: int) -> None:
    """Raise RolloutError if a folder has a result of a larger scale, which may have taken days."""
    for experiment in experiments:
        path = out / f"{experiment.name}.npz"
        with contextlib.suppress(FileNotFoundError, FileFormatError):  # what is damaged is no loss
            there = Result.load(path)
            if there.scale in SCALES[SCALES.index(scale) + 1 :]:
                raise RolloutError(
                    f"{str(path)!r} is the result of --scale {there.scale} --seed {there.seed}, which this run with "
                    f"--scale {scale} --seed {seed} would replace; name another folder (--out), or delete the file"
                )


def _own_versions() -> dict[str, str]:
    names = ("steadyrl", "numpy", "scipy")
    return {"python": ".".join(map(str, sys.version_info[:3]))} | {name: version(name) for name in names}
