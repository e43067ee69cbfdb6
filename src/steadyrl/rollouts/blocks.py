"""Blocks: the unit of work. The result of a block depends on (environment, policy, seed, block index) alone.

A block makes its own copies of the environment and its own generator, runs a fixed number of episodes (or rollouts) to
their ends, and returns arrays. The bytes are the same whoever runs it, wherever, and however often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import in_words
from steadyrl.common.machine import Process
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.lanes import AFTER, GymnasiumLanes, Lanes, Watch
from steadyrl.environments.seeding import block_generator, episode_seeds
from steadyrl.environments.sources import Source
from steadyrl.errors import (
    EnvironmentRaisedError,
    EpisodeError,
    EpisodeTooLongError,
    InvalidStepError,
    NonFiniteError,
    RolloutError,
    StepTimeoutError,
    WorkerLostError,
)
from steadyrl.integrations.envpool.lanes import EnvPoolLanes
from steadyrl.integrations.envpool.pool import pool_maker, time_limit
from steadyrl.policies.networks import Policy
from steadyrl.rollouts.engine import Collector, Episode, Failure, run
from steadyrl.rollouts.repeatability import RememberingPolicy, repeats

Arrays = dict[str, Any]

NUM_ENVS, HEAVY_NUM_ENVS = 16, {"mujoco": 4, "bullet": 2}
"""Number of environment copies that a Gymnasium block steps together. Policies are cheaper in batches, but physics
simulators (recognised by their module) take time to make and compete for the processor's cache."""

ENVPOOL_LANES = 16
"""Number of copies in each of the two pools of an EnvPool block, which take turns."""

BLOCK_SIZE = {"gymnasium": 512, "envpool": 1024}
"""Number of episodes in a block: enough to be worth making copies for, few enough to share out and to lose."""


@dataclass(frozen=True)
class Skipped:
    """An episode (or rollout) that failed and was left out."""

    episode: int
    seed: int
    step: int
    message: str


class Work(Protocol):
    """What is collected in each block."""

    @property
    def total(self) -> int:
        """Number of episodes or rollouts in the whole run."""

    def collector(self, block: Block) -> BlockCollector:
        """Return the collector of one block."""


class BlockCollector(Collector, Protocol):
    """A collector whose result is a set of arrays."""

    def arrays(self) -> Arrays:
        """Return the collected arrays."""


@dataclass(frozen=True)
class Task:
    """Everything that a worker needs to know about a run."""

    source: Source
    observations: ObservationCodec
    actions: ActionCodec
    policy: Policy
    work: Work
    seed: int
    block_size: int
    family: Literal["gymnasium", "envpool"]
    limit: int
    """Number of actions after which an episode is an error."""
    on_error: Literal["raise", "skip"] = "raise"
    num_envs: int = NUM_ENVS
    """Number of environments in a Gymnasium block; like the block size, it determines the bytes."""
    threads: int = 1
    """Number of EnvPool's threads, on which the data do not depend."""
    check_repeatable: bool = False
    """Whether the first episode of the run is run twice, to see whether the environment repeats itself."""
    check_policy: bool = False
    """Whether the policy is asked again for the first actions of the run, to see whether it repeats itself."""

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.work.total // self.block_size)


@dataclass
class Block:
    """A block that is being run: its place in the run, its generator, and the episodes that failed in it."""

    task: Task
    index: int
    first: int
    count: int
    rng: np.random.Generator
    seeds: NDArray[np.uint32]
    skipped: list[Skipped] = field(default_factory=list)

    @classmethod
    def of(cls, task: Task, index: int) -> Block:
        """Return the block with this index."""
        first = index * task.block_size
        count = min(task.block_size, task.work.total - first)
        seeds = episode_seeds(task.seed, first, count)
        return cls(task, index, first, count, block_generator(task.seed, index), seeds)

    def fail(self, number: int, failure: Failure) -> None:
        """Raise the error of the block's episode `number`, or note that the episode is left out."""
        error = self.error(number, failure)
        if self.task.on_error == "raise":
            raise error from failure.cause
        self.skipped.append(Skipped(error.episode, error.episode_seed, error.step, str(error)))

    def error(self, number: int, failure: Failure) -> EpisodeError:
        """Return the error, which says where it happened."""
        error = describe_failure(self.task, failure)
        seed = int(self.seeds[number]) if self.task.family == "gymnasium" else -1
        error.environment, error.block = self.task.source.name, self.index
        error.episode, error.episode_seed, error.step = self.first + number, seed, failure.step
        error.actions = failure.actions
        error.args = (f"{error.args[0]} [{place_of(error)}]",)
        return error


def run_block(
    task: Task,
    index: int,
    *,
    beat: NDArray[np.int64] | None = None,
    cuts: Mapping[int, tuple[int, str]] | None = None,
) -> Arrays:
    """Run one block.

    Args:
        task: the run.
        index: the block's index.
        beat: numbers shared with a supervisor: the present episode, its step, and a count of all steps.
        cuts: episodes (by number in the run) that are known to hang or crash, with the step and which of the two.
    """
    block, process = Block.of(task, index), Process()
    local = {n - block.first: cut for n, cut in (cuts or {}).items() if block.first <= n < block.first + block.count}
    watch = Watch(beat, local)
    groups = _lanes(block, watch)
    collector = task.work.collector(block)
    asked = RememberingPolicy(task.policy, task.actions) if index == 0 and task.check_policy else None
    try:
        run(groups, asked or task.policy, task.observations, task.actions, collector, limit=task.limit, rng=block.rng)
    except SystemExit as error:  # an environment's own is caught where it is stepped
        raise RolloutError(
            f"the policy called sys.exit({error.code!r}); have it raise an error instead, or return actions"
        ) from error
    finally:
        for lanes in groups:
            lanes.close()
        process.back()
    watch.apart(AFTER)
    arrays = collector.arrays()
    first: Episode | None = getattr(collector, "first", None)
    if index == 0 and task.check_repeatable and first is not None:
        seed = int(block.seeds[0])
        arrays["repeats"] = np.bool_(repeats(task.source, task.observations, task.actions, seed, first, watch))
    if asked is not None:
        watch.apart(AFTER)  # no step of an environment: it may take its time
        arrays["policy_repeats"] = np.bool_(asked.repeats())
    return {"block": index, "skipped": block.skipped, **arrays}


def _lanes(block: Block, watch: Watch) -> list[Lanes]:
    task = block.task
    if task.family == "gymnasium":
        count = min(task.num_envs, block.count)
        return [GymnasiumLanes(task.source, task.observations, task.actions, count, watch)]
    assert task.source.id is not None
    seeds = episode_seeds(task.seed, 2 * ENVPOOL_LANES * block.index, 2 * ENVPOOL_LANES).view(np.int32)
    limit = time_limit(task.source)
    return [
        EnvPoolLanes(pool_maker(task.source, part, task.threads, limit), task.observations, task.actions, watch, limit)
        for part in (seeds[:ENVPOOL_LANES], seeds[ENVPOOL_LANES:])
    ]


def describe_failure(task: Task, failure: Failure) -> EpisodeError:
    """Return the error of the right type; it says what happened, why it matters and what to do."""
    name = task.source.name
    if failure.kind == "not finite":
        return NonFiniteError(
            f"{name} returned {failure.detail}; no mean or policy survives that; repair the environment, or collect "
            "with on_error='skip' (--on-error skip), which leaves such episodes out"
        )
    if failure.kind == "invalid":
        return InvalidStepError(
            f"{name} returned {failure.detail}; repair the environment, or collect with on_error='skip' "
            "(--on-error skip), which leaves such episodes out"
        )
    if failure.kind == "too long":
        return EpisodeTooLongError(
            f"an episode of {name} has not ended after {failure.step} actions; the finiteness condition (Definition 1: "
            "every episode ends) is in doubt, and without it no average episode length exists; add a time limit "
            "(gymnasium.make(..., max_episode_steps=n), --make max_episode_steps=n, or gymnasium.wrappers.TimeLimit), "
            "or allow longer episodes with max_episode_steps (--max-episode-steps)"
        )
    if failure.kind == "hung":
        return StepTimeoutError(
            f"a step of {name} took longer than the step timeout and was stopped; repair the environment, or collect "
            "with a longer step_timeout (--step-timeout) or with on_error='skip' (--on-error skip), which leaves such "
            "episodes out"
        )
    if failure.kind == "crashed":
        return WorkerLostError(
            f"the process running {name} died at the same block again and again; if the environment crashes, repair "
            "it, or collect with on_error='skip' (--on-error skip), which leaves such episodes out; if memory ran "
            "out, use fewer workers"
        )
    assert failure.cause is not None
    cause = failure.cause
    did = f"called sys.exit({cause.code!r})" if isinstance(cause, SystemExit) else None
    return EnvironmentRaisedError(
        f"{name} {did or f'raised {in_words(cause)}'}; repair the environment, or collect "
        "with on_error='skip' (--on-error skip), which leaves such episodes out"
    )


def place_of(error: EpisodeError) -> str:
    """Return where an error happened, in words."""
    seed = error.episode_seed if error.episode_seed >= 0 else "none: EnvPool seeds whole pools, run the block again"
    return (
        f"environment {error.environment}, block {error.block}, episode {error.episode}, episode seed {seed}, "
        f"step {error.step}"
    )
