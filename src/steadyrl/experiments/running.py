"""Running experiments: results, figures, pages and the index, in a folder that is whole at every moment.

An experiment that is finished has all its files; one that is not has only its folder of unfinished work, from which
`resume` goes on.
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
from steadyrl.common.storage import write_atomically
from steadyrl.errors import RolloutError
from steadyrl.experiments.experiment import SCALES, Experiment, Result, identity
from steadyrl.experiments.pages import Page, page_of, render_html, render_index, render_markdown, render_markdown_index
from steadyrl.experiments.workspace import Lab
from steadyrl.rollouts.ray_tasks import connected

UNFINISHED = ".unfinished"
"""The folder, within that of the results, of work under way."""


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
        experiments: which.
        scale: "quick", "laptop" or "paper".
        out: the folder of results, made if need be.
        known: all experiments, for the index of the results that are there; by default those that are run.
        seed: of everything random.
        resume: whether to skip what is finished there, and to go on with what is not.
        backend: as for `collect_episodes`.
        workers: as for `collect_episodes`.
        address: as for `collect_episodes`.
        progress: True to show progress on standard error, or a stream.
        say: what tells the user where the run is.

    Raises:
        RolloutError: if the scale is none, or there is unfinished work in the folder and `resume` is not set.
    """
    check_scale(scale)
    if backend == "envpool":
        raise RolloutError("EnvPool does not have all of these environments; 'auto' takes it where it has them")
    out.mkdir(parents=True, exist_ok=True)
    check_picture(out / "figure.png")
    if not resume:
        _refuse_to_lose(experiments, scale, out, seed)
    # one cluster for all parts: a local one takes seconds to start
    with connected(address, workers) if backend == "ray" else contextlib.nullcontext():
        for experiment in experiments:
            wanted = identity(experiment.name, scale, seed, experiment.settings[scale])
            if resume and _finished(out, wanted):
                say(f"{experiment.name}: finished before")
                write_page(experiment, out)
                continue
            say(f"{experiment.name}: {experiment.title}")
            folder = _folder(out, wanted)
            folder.mkdir(parents=True, exist_ok=True)
            lab = Lab(seed, folder, backend, workers, address, progress, say)
            _run(experiment, scale, lab, out, wanted)
            write_index(known or experiments, out)
    return write_index(known or experiments, out)


def _run(experiment: Experiment, scale: str, lab: Lab, out: Path, wanted: dict[str, Any]) -> None:
    """Run one experiment, keep its result and its page, and clear away its unfinished work."""
    with threadpool_limits(limits=1, user_api="blas"):  # the last digits of large products depend on the threads
        numbers, arrays = experiment.run(experiment.settings[scale], lab)
    versions = _own_versions() | lab.versions
    Result(experiment.name, scale, lab.seed, wanted["settings"], numbers, arrays, versions).save(out)
    write_page(experiment, out)
    shutil.rmtree(lab.folder)
    if not any(lab.folder.parent.iterdir()):
        lab.folder.parent.rmdir()


def check_scale(scale: str) -> None:
    """Raise unless there is such a scale."""
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
    """Bring the results in a folder into the documentation, beside what is there: result, figure, page, index."""
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
    with matplotlib.rc_context(style):
        figure = experiment.draw(result)
        for suffix in (".svg", ".png"):
            save_figure(figure, out / f"{experiment.name}{suffix}", suffix)
    return (out / f"{experiment.name}.svg").read_text(encoding="utf-8")


def cost_text(experiments: Sequence[Experiment], scale: str) -> str:
    """Return what a scale costs, in words; empty where it is a matter of minutes."""
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


def _refuse_to_lose(experiments: Sequence[Experiment], scale: str, out: Path, seed: int) -> None:
    for experiment in experiments:
        folder = _folder(out, identity(experiment.name, scale, seed, experiment.settings[scale]))
        if folder.exists():
            raise RolloutError(
                f"{str(folder)!r} holds the unfinished work of an interrupted run of {experiment.name}; go on from it "
                "with --resume, or delete the folder"
            )


def _own_versions() -> dict[str, str]:
    names = ("steadyrl", "numpy", "scipy")
    return {"python": ".".join(map(str, sys.version_info[:3]))} | {name: version(name) for name in names}
