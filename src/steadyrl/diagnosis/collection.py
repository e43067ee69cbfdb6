"""Collects episodes for a diagnosis until its question is answered, in memory that does not grow with their number.

The trajectories of one round at a time are reduced to sums by age, in groups whose scatter gives error bands, and to a
few streams of consecutive episodes, as parallel environments would see them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from steadyrl.diagnosis.seen_ages import sample_steps
from steadyrl.errors import RolloutError
from steadyrl.lengths.age_sums import AgeSums
from steadyrl.lengths.records import EpisodeRecords
from steadyrl.policies.foreign import Sb3Policy
from steadyrl.rollouts.collect import WIDEST, run_episodes
from steadyrl.rollouts.commands import diagnose_command
from steadyrl.rollouts.episodes import Episodes, EpisodeWork, Trajectories
from steadyrl.rollouts.planning import Options, make_plan

Array = NDArray[np.float64]

FIRST = 512
"""Number of episodes in the first round; every later round doubles the total."""
_GROUPS = 16  # groups of episodes in a round
_STREAMS = 16  # streams for R-hat and effective sample size
_WIDE = 1000  # observed values up to which ages are looked for in observations
_ROOM = 20_000_000  # observed numbers kept at once
_SEEDS = 1_000_003  # apart, so that rounds of neighbouring seeds do not meet


def gather(
    environment: Any,
    policy: Any,
    enough: Callable[[NDArray[np.int64]], bool],
    *,
    at_most: int,
    seed: int = 0,
    backend: str = "auto",
    workers: int | None = None,
    make_arguments: Mapping[str, Any] | None = None,
    progress: bool | TextIO = False,
) -> EpisodeRecords:
    """Collect rounds of episodes until `enough(lengths)`, or until there are `at_most` of them.

    Raises:
        RolloutError: If the environment cannot be used, or no episode could be finished.
    """
    options = Options(seed, backend, workers, None, None, None, None, "skip", make_arguments)
    plan = make_plan(environment, policy, EpisodeWork(1), options)
    parts: list[Episodes] = []
    groups: list[AgeSums] = []
    streams: Array | None = None
    aged: tuple[Array, NDArray[np.int64], NDArray[np.int64]] | None = None
    have = 0
    size = plan.task.observations.size
    while have < at_most:
        wanted = min(max(FIRST, have), at_most - have, _fits(parts, size))
        work = EpisodeWork(wanted, sums=False, trajectories=size <= WIDEST)
        next_round = plan.for_round(work, seed + _SEEDS * len(parts))
        part = run_episodes(next_round, False, progress=progress, announce=not parts)
        if not len(part):
            why = part.skipped[0].message if part.skipped else "none was returned"
            raise RolloutError(f"not one episode of {plan.provenance['environment']} could be finished: {why}")
        if part.trajectories is not None:
            groups.extend(AgeSums.split(part.lengths, part.trajectories.observations, _GROUPS))
            streams = concatenate(part.trajectories, _STREAMS) if streams is None else streams
            if aged is None and size <= _WIDE:
                rng = np.random.default_rng([seed, 8])
                aged = sample_steps(part.lengths, part.trajectories.observations, rng=rng)
        parts.append(_slim(part))
        have += wanted
        if enough(np.concatenate([p.lengths for p in parts])):
            break
    failures = [entry for part in parts for entry in part.skipped]
    return EpisodeRecords(
        environment=str(plan.provenance["environment"]),
        policy=str(plan.provenance["policy"]),
        lengths=np.concatenate([part.lengths for part in parts]),
        truncated=np.concatenate([part.truncated for part in parts]),
        groups=tuple(groups),
        streams=streams,
        aged=aged,
        not_aged="" if aged is not None else _too_wide(size),
        time_limit=plan.description.max_episode_steps,
        sb3=isinstance(plan.task.policy, Sb3Policy),
        skipped=len(failures),
        first_failure=failures[0].message if failures else "",
        provenance={
            **plan.provenance,
            "command": diagnose_command(plan.task, plan.policy),
            "rounds": [len(part) for part in parts],
        },
    )


def concatenate(trajectories: Trajectories, num_envs: int) -> Array | None:
    """Return [num_envs, steps, d]: episodes end to end, as environments see them; None if there are too few."""
    lengths = trajectories.lengths
    parts = np.array_split(np.arange(len(lengths)), num_envs)
    if len(lengths) < 4 * num_envs:
        return None
    ends = np.concatenate([[0], np.cumsum(lengths + 1)])
    steps = min(int(ends[part[-1] + 1] - ends[part[0]]) for part in parts)
    steps = min(steps, 5000)
    return np.array([trajectories.observations[ends[part[0]] : ends[part[0]] + steps] for part in parts])


def _too_wide(size: int) -> str:
    return f"not looked for: an observation has {size:,} values, and at most {_WIDE:,} are searched"


def _fits(parts: list[Episodes], size: int) -> int:
    """Return how many episodes fit into memory at once, by the longest one seen so far."""
    if not parts:
        return FIRST if size <= 64 else 128
    longest = max(int(part.lengths.max()) for part in parts) + 1
    return max(_ROOM // (longest * max(size, 1)), 16)


def _slim(part: Episodes) -> Episodes:
    """Return episodes without their trajectories."""
    return Episodes(part.lengths, part.returns, part.terminated, part.truncated, part.seeds, None, None, part.skipped)
