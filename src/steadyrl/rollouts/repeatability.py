"""Whether an environment gives the same episode again for the same seed and actions.

The first episode of a run is run once more, in a fresh copy of the environment and for at most 200 steps. If its
observations or rewards differ, the environment takes randomness from somewhere else than its own generator
(`self.np_random`), and no seed can make the run repeatable.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from steadyrl.common.machine import Process
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.lanes import Watch
from steadyrl.environments.returned import as_reward
from steadyrl.environments.sources import Source, close_quietly
from steadyrl.rollouts.engine import Episode

STEPS = 200
"""Steps of the first episode that are compared."""

MESSAGE = (
    "the first episode of {name} did not repeat with the same seed and the same actions, so another run with the same "
    "seed gives other data; draw all random numbers from self.np_random, which super().reset(seed=seed) seeds"
)


def beginning_of(episode: Episode) -> Episode:
    """Return a copy of the first steps of an episode, to compare with later."""
    rows, actions, rewards = episode[:3]
    first = rows[: STEPS + 1].copy(), np.array(actions[:STEPS]), rewards[:STEPS].copy()
    return Episode(*first, episode.terminated, episode.truncated)


def repeats(
    source: Source, observations: ObservationCodec, actions: ActionCodec, seed: int, first: Episode, watch: Watch
) -> bool:
    """Return whether the environment gives the episode's observations and rewards again.

    Args:
        source: the environment.
        observations: how its observations become rows.
        actions: how its actions are sent.
        seed: the seed of the episode.
        first: the beginning of the episode.
        watch: is told before each step, so that a supervisor sees that the block goes on.
    """
    write = observations.writer()
    row = np.zeros(observations.width)
    sent = actions.sent(first.actions)
    env, process = source.make(), Process()
    try:
        watch(0, 0)
        write(row, env.reset(seed=seed)[0])
        if not _same(row, first.observations[0]):
            return False
        for step, action in enumerate(sent):
            watch(0, step + 1)
            observation, reward = env.step(action)[:2]
            write(row, observation)
            if as_reward(reward) != first.rewards[step] or not _same(row, first.observations[step + 1]):
                return False
    except KeyboardInterrupt:
        raise
    except BaseException:  # it did not raise the first time
        return False
    finally:
        process.end_child()
        close_quietly(env)
    return True


def _same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=True))
