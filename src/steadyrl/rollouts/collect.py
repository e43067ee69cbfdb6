"""Collects episodes and samples, from any environment, by any backend.

plan -> blocks, wherever they are run -> joined in order -> Episodes or Samples
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TextIO, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import check_count
from steadyrl.common.detours import Perturbation
from steadyrl.common.files import why_no_such_file
from steadyrl.common.progress import MeanLength, Rate, progress_for
from steadyrl.errors import RolloutError
from steadyrl.rollouts import planning
from steadyrl.rollouts.blocks import Arrays, run_block
from steadyrl.rollouts.checkpoints import Checkpoint
from steadyrl.rollouts.commands import episodes_command, samples_call
from steadyrl.rollouts.episodes import EpisodeFold, Episodes, EpisodeWork
from steadyrl.rollouts.jumping import jump_blocks
from steadyrl.rollouts.planning import Options, Plan, make_plan
from steadyrl.rollouts.processes import run_in_processes
from steadyrl.rollouts.ray_tasks import run_on_ray
from steadyrl.rollouts.repeatability import MESSAGE
from steadyrl.rollouts.samples import SampleFold, Samples, SampleWork
from steadyrl.rollouts.schedule import Schedule

T = TypeVar("T", bound="Saved", covariant=True)

MOST_EPISODES = 1 << 32

WIDEST = 10_000
"""Number of observed values above which sums at each age are not kept unless asked for."""


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


def collect_episodes(
    environment: Any,
    policy: Any,
    episodes: int,
    *,
    seed: int = 0,
    backend: str = "auto",
    workers: int | None = None,
    address: str | None = None,
    block_size: int | None = None,
    max_episode_steps: int | None = None,
    step_timeout: float | None = None,
    on_error: str = "raise",
    observation_sums: bool | None = None,
    trajectories: bool = False,
    make_arguments: Mapping[str, Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    out: str | os.PathLike[str] | None = None,
    progress: bool | TextIO = False,
) -> Episodes:
    """Run complete episodes and return their lengths, returns and ends.

    Every episode that is started is finished and counted, so lengths and returns are a fair sample of the policy's.
    The result depends on (environment, policy, episodes, seed, block_size), on whether EnvPool or Gymnasium simulates,
    and on nothing else. A warning is given if the environment does not repeat its first episode with the same seed.

    Args:
        environment: a Gymnasium id ("CartPole-v1", "module:Name-v0"), a spec, a LearningProcess, or a function that
            makes an environment.
        policy: "uniform", "gaussian" (the paper's: a random network with two hidden layers of 64 gives the mean, the
            covariance is diagonal), a policy file, an array [S, A] for Discrete observations, or an object with
            act(observations, rng) for batches of flattened observations.
        episodes: the number of episodes.
        seed: the seed of everything random in the run.
        backend: "serial" (this process), "processes", "envpool", "ray", or "auto" (the fastest available; the
            result's `notes` say which and why).
        workers: the number of processes, or of EnvPool's threads; by default one per core.
        address: the address of a Ray cluster; without it, "ray" starts a local one.
        block_size: the number of episodes that are run together in one place; by default 512 in Gymnasium, 1024 in
            EnvPool.
        max_episode_steps: an episode longer than this is an error; by default the environment's own limit, or 100,000.
        step_timeout: the seconds that one environment step may take. Blocks then run in processes that can be killed.
        on_error: "raise", or "skip" to leave out episodes that fail and list them in `skipped`.
        observation_sums: whether to keep sums of the observation at each age; by default they are kept unless an
            observation has more than 10,000 values.
        trajectories: whether to keep whole trajectories, which takes memory for every step.
        make_arguments: keyword arguments for gymnasium.make, if `environment` is an id or a spec.
        checkpoint: a file for finished blocks, so that an interrupted run can be resumed. It is locked during the run,
            and deleted when the run is complete and, if `out` is given, saved.
        resume: whether to go on from the checkpoint. `episodes` may be more than in the interrupted run, not fewer.
        out: a file to save the result to. Whether it can be written is checked before the first episode. With a
            checkpoint, give it: nothing is lost then if saving fails, or is interrupted.
        progress: True to show progress on standard error, or a stream to show it on.

    Raises:
        RolloutError: if an option, a file or the environment cannot be used.
        EpisodeError: if an episode fails; it names environment, block, episode seed and step.

    Example:
        >>> episodes = collect_episodes("CartPole-v1", "uniform", 100, seed=1, backend="serial")
        >>> len(episodes), bool(episodes.terminated.all())
        (100, True)
    """
    check_count("episodes", episodes)
    _require_few_enough("episodes", episodes)
    options = Options(
        seed, backend, workers, address, block_size, max_episode_steps, step_timeout, on_error, make_arguments
    )
    work = EpisodeWork(int(episodes), observation_sums is not False, trajectories)
    plan = make_plan(environment, policy, work, options)
    return run_episodes(plan, observation_sums, Keeping(checkpoint, resume, out), progress)


def run_episodes(
    plan: Plan,
    observation_sums: bool | None = None,
    keeping: Keeping | None = None,
    progress: bool | TextIO = False,
    *,
    announce: bool = True,
) -> Episodes:
    """Collect the episodes of a plan, which may be one of several rounds (`Plan.for_round`).

    Args:
        plan: the plan; its work is an EpisodeWork.
        observation_sums: as for `collect_episodes`.
        keeping: the files that the run keeps.
        progress: as for `collect_episodes`.
        announce: whether to show the backend and the reason for it.
    """
    work, notes = plan.task.work, []
    assert isinstance(work, EpisodeWork)
    size = plan.task.observations.size
    if observation_sums is None and size > WIDEST and work.sums:
        work = replace(work, sums=False)
        plan = replace(plan, task=replace(plan.task, work=work))
        notes.append(f"no sums at each age: an observation has {size:,} values (observation_sums=True keeps them)")
    limit, given = plan.options.max_episode_steps, observation_sums
    command = episodes_command(
        plan.task, plan.policy, limit, total=work.total, sums=given, trajectories=work.trajectories
    )
    kind = {"kind": "episodes", "total": work.total, "sums": work.sums, "trajectories": work.trajectories}
    fold = EpisodeFold(work, size if work.sums else 0)
    return _execute(
        plan, fold, {"command": command, **kind}, "episodes", keeping or Keeping(), progress, notes, announce
    )


def collect_samples(
    environment: Any,
    policy: Any,
    rollouts: int,
    times: ArrayLike,
    *,
    seed: int = 0,
    perturbation: Perturbation | None = None,
    episodes: int = 1,
    backend: str = "auto",
    workers: int | None = None,
    address: str | None = None,
    block_size: int | None = None,
    max_episode_steps: int | None = None,
    step_timeout: float | None = None,
    on_error: str = "raise",
    make_arguments: Mapping[str, Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    out: str | os.PathLike[str] | None = None,
    progress: bool | TextIO = False,
) -> Samples:
    """Run endless rollouts and return the state of each at the given times, like the paper's sampler.

    With a perturbation, times are those of the perturbed process; times are renumbered and no null step is simulated.
    In an environment whose episodes are all the same (StateSweep-v0) nothing is simulated at all: rollouts jump from
    episode to episode, unless a backend other than "auto" is given.

    Args:
        environment: as for `collect_episodes`; so are all arguments not listed here.
        policy: as for `collect_episodes`.
        rollouts: the number of independent rollouts.
        times: whole numbers from 1 on; time 0 is the terminal state before the first episode, which is not shown.
        seed: the seed of everything random in the run.
        perturbation: the detour at the start of every episode, the first included.
        episodes: the smallest number of whole episodes in every rollout; their lengths and returns are part of the
            result, so that E[T] can be estimated from the same run without bias.
        backend: as for `collect_episodes`.
        workers: as for `collect_episodes`.
        address: as for `collect_episodes`.
        block_size: the number of rollouts that are run together in one place.
        max_episode_steps: as for `collect_episodes`.
        step_timeout: as for `collect_episodes`.
        on_error: "raise", or "skip" to leave out rollouts in which an episode fails.
        make_arguments: as for `collect_episodes`.
        checkpoint: as for `collect_episodes`.
        resume: as for `collect_episodes`.
        out: as for `collect_episodes`.
        progress: as for `collect_episodes`.

    Example:
        >>> samples = collect_samples("CartPole-v1", "uniform", 8, [10, 20], backend="serial")
        >>> samples.observations.shape, samples.returns.shape
        ((8, 2, 4), (8, 2))
    """
    check_count("rollouts", rollouts)
    _require_few_enough("rollouts", rollouts)
    check_count("episodes", episodes)
    options = Options(
        seed, backend, workers, address, block_size, max_episode_steps, step_timeout, on_error, make_arguments
    )
    work = SampleWork(int(rollouts), _as_times(times), perturbation, int(episodes))
    plan = make_plan(environment, policy, work, options)
    more: dict[str, Any] = {"perturbation": perturbation} if perturbation is not None else {}
    more |= {"episodes": int(episodes)} if episodes != 1 else {}
    limit = plan.options.max_episode_steps
    call = samples_call(plan.task, plan.policy, limit, total=work.total, times=work.times, more=more)
    kind = {"kind": "samples", "total": work.total, "times": list(work.times), "perturbation": repr(perturbation)}
    kind |= {"command": call}
    keeping = Keeping(checkpoint, resume, out)
    if plan.description.fixed_episode is not None and backend == "auto":
        keeping.check()
        found = jump_blocks(plan, work, call)
        keeping.save(found, None)
        return found
    return _execute(plan, SampleFold(work), kind, "rollouts", keeping, progress, [], announce=True)


@dataclass(frozen=True)
class Keeping:
    """The files that a run keeps: finished blocks while it runs, and its result."""

    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    out: str | os.PathLike[str] | None = None

    def check(self) -> None:
        """Raise RolloutError if the files could not be written at the end, before anything is run for them."""
        for name, path in (("out", self.out), ("checkpoint", self.checkpoint)):
            reason = None if path is None else why_no_such_file(path)
            if reason is not None:
                raise RolloutError(f"{name} is {os.fspath(path or '')!r}, which cannot be written: {reason}")

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
        if saved is not None:
            saved.remove()


def _execute(
    plan: Plan,
    fold: Fold[T],
    kind: Mapping[str, Any],
    unit: str,
    keeping: Keeping,
    progress: bool | TextIO,
    notes: list[str],
    announce: bool,
) -> T:
    """Run all blocks and join them."""
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
    """Say so if the first episode did not repeat; remember environments that do."""
    source = plan.task.source
    if bool(block.get("repeats", True)):
        if "repeats" in block:
            planning.checked.add((source.name, source.digest))
        return
    text = MESSAGE.format(name=source.name)
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


def _require_few_enough(name: str, value: int) -> None:
    if value > MOST_EPISODES:
        raise RolloutError(f"{name} is too large; a run has at most 2**32, since each needs a seed of its own")


def _as_times(times: ArrayLike) -> tuple[int, ...]:
    values = np.atleast_1d(np.asarray(times))
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values) or (np.diff(values) <= 0).any():
        raise RolloutError(f"times are {times!r}; they must be whole numbers, increasing, at least one")
    if values[0] < 1:
        raise RolloutError(
            f"times begin at {values[0]}; time 0 is the terminal state before the first episode, which an environment "
            "does not show: begin at 1"
        )
    return tuple(int(t) for t in values)
