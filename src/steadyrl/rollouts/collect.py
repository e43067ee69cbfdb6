"""Collecting: episodes and samples, from any environment, by any backend.

plan -> blocks, wherever they are run -> put together in order -> Episodes or Samples
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TextIO, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import check_count
from steadyrl.common.detours import Perturbation
from steadyrl.common.progress import MeanLength, Progress, Rate, progress_for
from steadyrl.errors import RolloutError
from steadyrl.rollouts.blocks import Arrays, run_block
from steadyrl.rollouts.checkpoints import Checkpoint
from steadyrl.rollouts.episodes import EpisodeFold, Episodes, EpisodeWork
from steadyrl.rollouts.jumping import jump_blocks
from steadyrl.rollouts.planning import Options, Plan, make_plan
from steadyrl.rollouts.processes import run_in_processes
from steadyrl.rollouts.ray_tasks import run_on_ray
from steadyrl.rollouts.samples import SampleFold, Samples, SampleWork
from steadyrl.rollouts.schedule import Schedule

T = TypeVar("T", covariant=True)

WIDEST = 10_000
"""Observed values above which sums at each age are not kept unless asked for."""


class Fold(Protocol[T]):
    """Puts blocks together, in order."""

    def add(self, block: Arrays) -> tuple[int, NDArray[np.int64], int]:
        """Add the next block; return how many it holds, lengths of whole episodes, and all its steps."""

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
    progress: bool | TextIO = False,
) -> Episodes:
    """Run complete episodes and return what they were.

    Every episode that is started is finished and counted, so lengths and returns are a fair sample of the policy's;
    the result depends on (environment, policy, episodes, seed, block_size) and on whether EnvPool or Gymnasium
    simulates, and on nothing else.

    Args:
        environment: a Gymnasium id ("CartPole-v1", "module:Name-v0"), a spec, a LearningProcess, or a function that
            makes an environment.
        policy: "uniform", "gaussian" (the paper's: a random network with two hidden layers of 64 gives the mean, the
            covariance is diagonal), a policy file, an array [S, A] for Discrete observations, or an object with
            act(observations, rng) for batches of flattened observations.
        episodes: how many.
        seed: of everything random.
        backend: "serial" (this process), "processes", "envpool", "ray", or "auto" (the fastest available; the
            result's `notes` say which and why).
        workers: processes, or EnvPool's threads; by default one a core.
        address: of a Ray cluster; without it, "ray" starts a local one.
        block_size: episodes that are run together in one place; 512 in Gymnasium, 1024 in EnvPool.
        max_episode_steps: an episode longer than this is an error; by default the environment's own limit, or 100,000.
        step_timeout: seconds that one step may take. Blocks then run in processes that can be killed.
        on_error: "raise", or "skip" to leave out episodes that fail and list them in `skipped`.
        observation_sums: whether to keep sums of the observation at each age; by default, unless it has more
            than 10,000 values.
        trajectories: whether to keep whole trajectories, which takes memory for every step.
        make_arguments: for gymnasium.make, if `environment` is an id or a spec.
        checkpoint: a file for finished blocks, so that the run can go on after an interruption.
        resume: whether to go on from the checkpoint. `episodes` may be more than in the interrupted run, not fewer.
        progress: True to show progress on standard error, or a stream to show it on.

    Raises:
        RolloutError: if an option or the environment cannot be used.
        EpisodeError: if an episode fails; it names environment, block, episode seed and step.

    Example:
        >>> episodes = collect_episodes("CartPole-v1", "uniform", 100, seed=1, backend="serial")
        >>> len(episodes), bool(episodes.terminated.all())
        (100, True)
    """
    check_count("episodes", episodes)
    options = Options(
        seed, backend, workers, address, block_size, max_episode_steps, step_timeout, on_error, make_arguments
    )
    work = EpisodeWork(int(episodes), observation_sums is not False, trajectories)
    plan = make_plan(environment, policy, work, options, ["collect", str(environment), "--episodes", str(episodes)])
    notes = []
    size = plan.task.observations.size
    if observation_sums is None and size > WIDEST:
        work = replace(work, sums=False)
        plan = replace(plan, task=replace(plan.task, work=work))
        notes.append(f"no sums at each age: an observation has {size:,} values (observation_sums=True keeps them)")
    fold = EpisodeFold(work, size if work.sums else 0)
    kind = {"kind": "episodes", "total": work.total, "sums": work.sums, "trajectories": trajectories}
    return _execute(plan, fold, kind, _Run("episodes", checkpoint, resume, progress), notes)


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
    progress: bool | TextIO = False,
) -> Samples:
    """Run endless rollouts and return what each holds at the given times: the paper's sampler.

    With a perturbation, times are those of the perturbed process. It is had by renumbering: no null step is simulated.
    In an environment whose every episode is the same (StateSweep-v0) nothing is stepped at all: rollouts
    jump from episode to episode, unless a backend other than "auto" is named.

    Args:
        environment: as for `collect_episodes`; so are all arguments not listed here.
        policy: as for `collect_episodes`.
        rollouts: how many, independent of each other.
        times: whole numbers from 1 on; time 0 is the terminal state before the first episode, which is not shown.
        seed: of everything random.
        perturbation: the detour at the start of every episode, the first included.
        episodes: run at least this many whole episodes in every rollout; their lengths and returns come along, so
            that E[T] can be had from the same run without bias.
        backend: as for `collect_episodes`.
        workers: as for `collect_episodes`.
        address: as for `collect_episodes`.
        block_size: rollouts that are run together in one place.
        max_episode_steps: as for `collect_episodes`.
        step_timeout: as for `collect_episodes`.
        on_error: "raise", or "skip" to leave out rollouts in which an episode fails.
        make_arguments: as for `collect_episodes`.
        checkpoint: as for `collect_episodes`.
        resume: as for `collect_episodes`.
        progress: as for `collect_episodes`.

    Example:
        >>> samples = collect_samples("CartPole-v1", "uniform", 8, [10, 20], backend="serial")
        >>> samples.observations.shape, samples.returns.shape
        ((8, 2, 4), (8, 2))
    """
    check_count("rollouts", rollouts)
    check_count("episodes", episodes)
    options = Options(
        seed, backend, workers, address, block_size, max_episode_steps, step_timeout, on_error, make_arguments
    )
    work = SampleWork(int(rollouts), _as_times(times), perturbation, int(episodes))
    plan = make_plan(environment, policy, work, options, ["collect-samples", str(environment)])
    if plan.description.fixed_episode is not None and backend == "auto":
        return jump_blocks(plan, work)
    kind = {"kind": "samples", "total": work.total, "times": list(work.times), "perturbation": repr(perturbation)}
    return _execute(plan, SampleFold(work), kind, _Run("rollouts", checkpoint, resume, progress), [])


@dataclass(frozen=True)
class _Run:
    """What is kept and shown of a run while it goes on."""

    unit: str
    checkpoint: str | os.PathLike[str] | None
    resume: bool
    progress: bool | TextIO

    def kept(self, manifest: Mapping[str, Any]) -> Checkpoint | None:
        if self.checkpoint is not None:
            return Checkpoint(self.checkpoint, manifest, resume=self.resume)
        if self.resume:
            raise RolloutError("resume needs a checkpoint: the file that the interrupted run wrote")
        return None

    def shown(self) -> Progress:
        return progress_for(self.progress)


def _execute(plan: Plan, fold: Fold[T], kind: Mapping[str, Any], run: _Run, notes: list[str]) -> T:
    """Run all blocks and put them together."""
    shown = run.shown()

    def note(text: str) -> None:
        notes.append(text)
        shown.note(text)

    provenance = {**plan.provenance, **kind}
    manifest = {key: value for key, value in provenance.items() if key != "command"}
    saved = run.kept(manifest)
    note(f"backend {plan.backend}: {plan.reason}")
    shown.begin(plan.task.work.total, run.unit)
    try:
        rate, mean = Rate(), MeanLength()
        for block in _in_order(plan, saved, note):
            finished, lengths, steps = fold.add(block)
            mean.add(lengths)
            shown.advance(finished, f"{rate.add(steps):,.0f} steps/s  {mean} (95%)")
    except BaseException:
        if saved is not None:
            saved.close()
        raise
    finally:
        shown.end()
    if saved is not None:
        saved.remove()
    return fold.result(provenance, notes)


def _in_order(plan: Plan, saved: Checkpoint | None, note: Any) -> Iterator[Arrays]:
    """Yield all blocks in order, from the checkpoint or as they come in."""
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
