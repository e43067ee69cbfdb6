"""Runs a plan: its blocks, by the backend that was chosen, joined in order; what is finished is kept on disk."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TextIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import as_path, check_flag
from steadyrl.common.files import lasting_name, why_no_such_file
from steadyrl.common.progress import MeanLength, Rate, progress_for
from steadyrl.errors import RolloutError
from steadyrl.rollouts import planning
from steadyrl.rollouts.blocks import Arrays, run_block
from steadyrl.rollouts.checkpoints import Checkpoint
from steadyrl.rollouts.planning import Plan
from steadyrl.rollouts.processes import run_in_processes
from steadyrl.rollouts.ray_tasks import run_on_ray
from steadyrl.rollouts.repeatability import MESSAGE, POLICY_MESSAGE
from steadyrl.rollouts.schedule import Schedule

T = TypeVar("T", bound="Saved", covariant=True)


class Saved(Protocol):
    """A result that can be saved."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file."""


class Fold(Protocol[T]):
    """Joins blocks in order."""

    def add(self, block: Arrays) -> tuple[int, NDArray[np.int64], int]:
        """Add the next block; return how many it holds, lengths of whole episodes, and its number of steps."""

    def result(self, provenance: Mapping[str, Any], notes: Sequence[str]) -> T:
        """Return the whole."""


@dataclass(frozen=True)
class Keeping:
    """The files that a run keeps: finished blocks while it runs, and its result."""

    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    out: str | os.PathLike[str] | None = None
    stays: bool = False
    """Whether the checkpoint stays when the run is complete, because its result is saved later, by whoever asked."""

    def in_place(self) -> Keeping:
        """Return the same files by names that hold wherever an environment changes to (os.chdir)."""
        found = [
            path if path is None else lasting_name(name, path, RolloutError)
            for name, path in (("checkpoint", self.checkpoint), ("out", self.out))
        ]
        return replace(self, checkpoint=found[0], out=found[1])

    def check(self) -> None:
        """Raise RolloutError if the files could not be written at the end, before anything is run for them."""
        check_flag("resume", self.resume, RolloutError)
        for name, path in (("out", self.out), ("checkpoint", self.checkpoint)):
            reason = None if path is None else why_no_such_file(path)
            if reason is not None:
                raise RolloutError(
                    f"{name} is {as_path(name, path, RolloutError)!r}, which cannot be written: {reason}"
                )

    def opened(self, manifest: Mapping[str, Any]) -> Checkpoint | None:
        """Return the checkpoint, open and locked, if there is to be one."""
        self.check()
        if self.checkpoint is not None:
            return Checkpoint(self.checkpoint, manifest, resume=self.resume)
        if self.resume:
            raise RolloutError("resume needs a checkpoint: the file that the interrupted run wrote")
        return None

    def save(self, found: Saved, saved: Checkpoint | None) -> None:
        """Save the result, and only then delete the checkpoint."""
        if self.out is not None:
            found.save(self.out)
        if saved is not None and self.stays:
            saved.close()
        elif saved is not None:
            saved.remove()


def run_plan(
    plan: Plan,
    fold: Fold[T],
    kind: Mapping[str, Any],
    unit: str,
    keeping: Keeping,
    progress: bool | TextIO,
    notes: list[str],
    announce: bool,
) -> T:
    """Run all blocks of a plan, wherever the plan says, and join them in order.

    Args:
        plan: the plan.
        fold: joins the blocks.
        kind: what is recorded with the data besides the plan's provenance.
        unit: what is counted on the screen, "episodes" or "rollouts".
        keeping: the files that the run keeps.
        progress: True to show progress on standard error, or a stream to show it on.
        notes: notes on the run so far, to which more are added.
        announce: whether to show the backend and the reason for it.
    """
    shown = progress_for(progress)

    def note(text: str) -> None:
        notes.append(text)
        shown.note(text)

    provenance = {**plan.provenance, **kind}
    saved = keeping.opened({key: value for key, value in provenance.items() if key != "command"})
    try:
        for text in saved.damage if saved is not None else ():
            note(text)
        if announce:
            note(f"backend {plan.backend}: {plan.reason}")
        shown.begin(plan.task.work.total, unit)
        try:
            rate, mean = Rate(), MeanLength()
            for block in _in_order(plan, saved, note):
                _see_whether_it_repeats(plan, block, note, warn=progress is False)
                finished, lengths, steps = fold.add(block)
                mean.add(lengths)
                shown.advance(finished, f"{rate.add(steps):,.0f} steps/s  {mean} (95%)")
        finally:
            shown.end()
        found = fold.result(provenance, notes)
        keeping.save(found, saved)
    except BaseException:
        if saved is not None:
            saved.close()
        raise
    return found


def _see_whether_it_repeats(plan: Plan, block: Arrays, note: Callable[[str], None], *, warn: bool) -> None:
    """Warn if the first episode, or the policy, did not repeat; remember environments whose episodes do."""
    source, texts = plan.task.source, []
    if not bool(block.get("repeats", True)):
        texts.append(MESSAGE.format(name=source.name))
    elif "repeats" in block:
        planning.checked.add((source.name, source.digest))
    if not bool(block.get("policy_repeats", True)):
        texts.append(POLICY_MESSAGE.format(name=plan.policy))
    for text in texts:
        note(f"warning: {text}")
        if warn:
            warnings.warn(text, stacklevel=5)


def _in_order(plan: Plan, saved: Checkpoint | None, note: Any) -> Iterator[Arrays]:
    """Yield all blocks in order, from the checkpoint or as they are finished."""
    on_disk = set() if saved is None else set(saved.blocks)
    schedule = Schedule(set(range(plan.task.blocks)) - on_disk, window=64 + 16 * plan.workers)
    waiting: dict[int, Arrays] = {}
    position = 0
    arriving = _run_blocks(plan, schedule, note)
    while position < plan.task.blocks:
        if position in on_disk:
            assert saved is not None
            yield saved.read(position)
        elif position in waiting:
            yield waiting.pop(position)
        else:
            index, block = next(arriving)
            waiting[index] = block
            if saved is not None:
                saved.write(block)
            continue
        position += 1
        schedule.folded(position)
    arriving.close()


def _run_blocks(plan: Plan, schedule: Schedule, note: Any) -> Generator[tuple[int, Arrays], None, None]:
    """Yield blocks from the plan's backend."""
    task, timeout = plan.task, plan.options.step_timeout
    if plan.backend == "ray":
        address, workers = plan.options.address, plan.options.workers
        yield from run_on_ray(task, schedule, address=address, workers=workers, step_timeout=timeout, note=note)
    elif plan.backend == "processes" or timeout is not None:
        if plan.backend != "processes":
            note("with a step timeout, blocks run in a process of their own, which can be killed")
        workers = plan.workers if plan.backend == "processes" else 1
        yield from run_in_processes(task, schedule, workers=workers, step_timeout=timeout, note=note)
    else:
        while (block := schedule.take()) is not None:
            yield block, run_block(task, block)
            schedule.done(block)
