"""Collects episodes and samples, from any environment, by any backend.

plan -> blocks, wherever they are run -> joined in order -> Episodes or Samples
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

from steadyrl.common.checks import check_flag, plain_array, shown, whole_number
from steadyrl.common.detours import Perturbation
from steadyrl.errors import RolloutError
from steadyrl.rollouts.commands import episodes_command, samples_call
from steadyrl.rollouts.episodes import EpisodeFold, Episodes, EpisodeWork
from steadyrl.rollouts.jumping import jump_blocks
from steadyrl.rollouts.planning import Options, Plan, make_plan
from steadyrl.rollouts.running import Keeping, run_plan
from steadyrl.rollouts.samples import SampleFold, Samples, SampleWork

MOST_EPISODES = 1 << 32

WIDEST = 10_000
"""Number of observed values above which sums at each age are not kept unless asked for."""


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
    _require_few_enough("episodes", episodes)
    options = Options(
        seed, backend, workers, address, block_size, max_episode_steps, step_timeout, on_error, make_arguments
    )
    check_flag("trajectories", trajectories, RolloutError)
    if observation_sums is not None:
        check_flag("observation_sums", observation_sums, RolloutError)
    work = EpisodeWork(int(episodes), observation_sums is not False, trajectories)
    keeping = Keeping(checkpoint, resume, out).in_place()
    plan = make_plan(environment, policy, work, options)
    return run_episodes(plan, observation_sums, keeping, progress)


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
    return run_plan(
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
    _require_few_enough("rollouts", rollouts)
    least = whole_number("episodes", episodes, RolloutError)
    options = Options(
        seed, backend, workers, address, block_size, max_episode_steps, step_timeout, on_error, make_arguments
    )
    if perturbation is not None and not isinstance(perturbation, Perturbation):
        raise RolloutError(f"perturbation is {shown(perturbation)}; it must be a Perturbation, as in Perturbation(0.9)")
    work = SampleWork(int(rollouts), as_times(times), perturbation, least)
    keeping = Keeping(checkpoint, resume, out).in_place()
    return run_samples(make_plan(environment, policy, work, options), keeping, progress)


def run_samples(plan: Plan, keeping: Keeping | None = None, progress: bool | TextIO = False) -> Samples:
    """Collect the samples of a plan.

    Args:
        plan: the plan; its work is a SampleWork.
        keeping: the files that the run keeps.
        progress: as for `collect_episodes`.
    """
    work, keeping = plan.task.work, keeping or Keeping()
    assert isinstance(work, SampleWork)
    perturbation, limit = work.perturbation, plan.options.max_episode_steps
    more: dict[str, Any] = {"perturbation": perturbation} if perturbation is not None else {}
    more |= {"episodes": work.episodes} if work.episodes != 1 else {}
    jumps = plan.description.fixed_episode is not None and plan.options.backend == "auto"
    call = samples_call(plan.task, plan.policy, limit, total=work.total, times=work.times, jumps=jumps, more=more)
    kind = {"kind": "samples", "total": work.total, "times": list(work.times), "perturbation": repr(perturbation)}
    kind |= {"command": call}
    if jumps:
        keeping.check()
        found = jump_blocks(plan, work, call)
        keeping.save(found, None)
        return found
    return run_plan(plan, SampleFold(work), kind, "rollouts", keeping, progress, [], announce=True)


def _require_few_enough(name: str, value: int) -> None:
    if whole_number(name, value, RolloutError) > MOST_EPISODES:
        raise RolloutError(f"{name} is too large; a run has at most 2**32, since each needs a seed of its own")


def as_times(times: ArrayLike) -> tuple[int, ...]:
    """Return times of a collection as whole numbers, or raise RolloutError."""
    values = np.atleast_1d(plain_array("times", times, RolloutError))
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values) or (values[1:] <= values[:-1]).any():
        raise RolloutError(f"times are {shown(times)}; they must be whole numbers, increasing, at least one")
    if values[0] < 1:
        raise RolloutError(
            f"times begin at {values[0]}; time 0 is the terminal state before the first episode, which an environment "
            "does not show: begin at 1"
        )
    return tuple(int(t) for t in values)
