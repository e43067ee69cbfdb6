"""Blocks: the unit of work. What a block gives depends on (environment, policy, seed, block index) alone.

A block makes its own copies of the environment and its own generator, runs a fixed number of episodes (or
rollouts) to their ends, and returns arrays. Whoever runs it, wherever, however often: the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.lanes import GymnasiumLanes, Lanes, Watch
from steadyrl.environments.seeding import block_generator, episode_seeds
from steadyrl.environments.sources import Source
from steadyrl.errors import (
    EnvironmentRaisedError,
    EpisodeError,
    EpisodeTooLongError,
    NonFiniteError,
    StepTimeoutError,
    WorkerLostError,
)
from steadyrl.integrations.envpool.lanes import EnvPoolLanes
from steadyrl.integrations.envpool.pool import pool_maker
from steadyrl.policies.networks import Policy
from steadyrl.rollouts.engine import Collector, Failure, run

Arrays = dict[str, Any]

COPIES, HEAVY_COPIES = 16, {"mujoco": 4, "bullet": 2}
"""Copies that a Gymnasium block steps together: policies are cheaper in batches, but physics simulators (known by the
module they are in) take time to make and crowd each other out of the processor's cache."""

ENVPOOL_LANES = 16
"""Copies in each of the two pools of an EnvPool block, which take turns."""

BLOCK_SIZE = {"gymnasium": 512, "envpool": 1024}
"""Episodes in a block: enough to pay for making its copies, few enough to share out and to lose."""


@dataclass(frozen=True)
class Skipped:
    """An episode (or rollout) that failed and was left out."""

    episode: int
    seed: int
    step: int
    message: str


class Work(Protocol):
    """What is to be collected in each block."""

    @property
    def total(self) -> int:
        """Episodes or rollouts in the whole run."""

    def collector(self, block: Block) -> BlockCollector:
        """Return what collects one block."""


class BlockCollector(Collector, Protocol):
    """A collector that ends up as arrays."""

    def arrays(self) -> Arrays:
        """Return what was collected."""


@dataclass(frozen=True)
class Task:
    """A whole run, as workers need to know it."""

    source: Source
    observations: ObservationCodec
    actions: ActionCodec
    policy: Policy
    work: Work
    seed: int
    block_size: int
    family: Literal["gymnasium", "envpool"]
    limit: int
    """The longest permitted episode, in actions."""
    on_error: Literal["raise", "skip"] = "raise"
    copies: int = COPIES
    """Of the environment in a Gymnasium block; like the block size, part of what determines the bytes."""
    threads: int = 1
    """EnvPool's; its results do not depend on it."""

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.work.total // self.block_size)


@dataclass
class Block:
    """One block at work: its place in the run, its generator, and what failed in it."""

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
        """Raise the error that a failure in the block's episode `number` is, or note that it is left out."""
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
        beat: three numbers shared with a supervisor, kept at the present episode, its step, and a count of steps.
        cuts: numbers (in the run) of episodes known to hang or crash, with the step where they do and what they do.
    """
    block = Block.of(task, index)
    local = {n - block.first: cut for n, cut in (cuts or {}).items() if block.first <= n < block.first + block.count}
    groups = _lanes(block, Watch(beat, local))
    collector = task.work.collector(block)
    try:
        run(groups, task.policy, task.observations, task.actions, collector, limit=task.limit, rng=block.rng)
    finally:
        for lanes in groups:
            lanes.close()
    return {"block": index, "skipped": block.skipped, **collector.arrays()}


def _lanes(block: Block, watch: Watch) -> list[Lanes]:
    task = block.task
    if task.family == "gymnasium":
        count = min(task.copies, block.count)
        return [GymnasiumLanes(task.source, task.observations, task.actions, count, watch)]
    assert task.source.id is not None
    seeds = episode_seeds(task.seed, 2 * ENVPOOL_LANES * block.index, 2 * ENVPOOL_LANES).view(np.int32)
    return [
        EnvPoolLanes(pool_maker(task.source, part, task.threads), task.observations, task.actions, watch)
        for part in (seeds[:ENVPOOL_LANES], seeds[ENVPOOL_LANES:])
    ]


def describe_failure(task: Task, failure: Failure) -> EpisodeError:
    """Return the error of the right type, with what happened, why it matters and what to do."""
    name = task.source.name
    if failure.kind == "not finite":
        return NonFiniteError(
            f"{name} returned {failure.detail}; no mean or policy survives that; repair the environment, or `collect` "
            "with on_error='skip' (--on-error skip), which leaves such episodes out"
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
            f"a step of {name} took longer than the step timeout and was stopped; repair the environment, or `collect` "
            "with a longer step_timeout (--step-timeout) or with on_error='skip' (--on-error skip), which leaves such "
            "episodes out"
        )
    if failure.kind == "crashed":
        return WorkerLostError(
            f"the process running {name} died at the same block again and again; if the environment crashes, repair "
            "it, or `collect` with on_error='skip' (--on-error skip), which leaves such episodes out; if memory ran "
            "out, use fewer workers"
        )
    return EnvironmentRaisedError(
        f"{name} raised {type(failure.cause).__name__}: {failure.cause}; repair the environment, or `collect` "
        "with on_error='skip' (--on-error skip), which leaves such episodes out"
    )


def place_of(error: EpisodeError) -> str:
    """Return where an error happened, in words."""
    seed = error.episode_seed if error.episode_seed >= 0 else "none: EnvPool seeds whole pools, run the block again"
    return (
        f"environment {error.environment}, block {error.block}, episode {error.episode}, episode seed {seed}, "
        f"step {error.step}"
    )
