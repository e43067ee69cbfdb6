"""Rollouts that jump: if all episodes are the same, a rollout is determined by its detours.

If all episodes have length T, the i-th begins at time (i - 1) T plus the detours before it, so the state of a rollout
at time t follows from the detours alone. Blocks of rollouts are computed at once, in numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from steadyrl.environments.seeding import block_generator
from steadyrl.rollouts.planning import Plan
from steadyrl.rollouts.samples import Samples, SampleWork

JUMP_BLOCK = 1 << 16
"""Number of rollouts computed together, so that their times stay in the processor's cache."""


def jump_blocks(plan: Plan, work: SampleWork, command: str) -> Samples:
    """Return samples of an environment whose episodes are all the same; `command` is recorded with them."""
    states, rewards = plan.description.fixed_episode
    length = len(states)
    to_go = np.append(np.cumsum(rewards[::-1])[::-1], 0.0)
    times = np.array(work.times)
    ages = np.empty((work.total, len(times)), dtype=np.int32)
    size = int(plan.options.block_size or JUMP_BLOCK)
    for block, first in enumerate(range(0, work.total, size)):
        part = ages[first : first + size]
        part[:] = _ages(work, length, len(part), block_generator(plan.task.seed, block))
    # Entry 0 stands for null, entry k for age k: one look-up instead of masks.
    columns: dict[str, Any] = {
        "observations": np.append(0, states).astype(np.int32)[ages],
        "actions": np.zeros(ages.shape, dtype=np.int32),
        "returns": np.append(0.0, to_go)[ages],
        "ages": ages,
        "terminal": ages == length,
        "episode_lengths": np.broadcast_to(np.int64(length - 1), (work.total, work.episodes)),
        "episode_returns": np.broadcast_to(np.float64(rewards.sum()), (work.total, work.episodes)),
    }
    provenance = {**plan.provenance, "kind": "samples", "total": work.total, "times": list(work.times)}
    provenance |= {"command": command}
    provenance |= {"perturbation": repr(work.perturbation), "family": "jump", "block_size": size}
    note = "every episode of this environment is the same, so rollouts jump from episode to episode"
    return Samples(times, **columns, provenance=provenance, notes=(note,))


def _ages(work: SampleWork, length: int, count: int, rng: np.random.Generator) -> Any:
    """Return the age of each rollout at each time, 0 where it is null."""
    times, perturbation = np.array(work.times), work.perturbation
    ages = np.zeros((count, len(times)), dtype=np.int32)
    active = np.arange(count)
    begin = np.zeros(count, dtype=np.int64)
    while len(active):
        detours = 0 if perturbation is None else perturbation.draw(len(active), rng=rng)
        start = begin + detours
        for i, t in enumerate(times):
            age = t - start
            inside = (age >= 1) & (age <= length)
            ages[active[inside], i] = age[inside]
        begin = start + length
        onward = begin < times[-1]
        active, begin = active[onward], begin[onward]
    return ages
