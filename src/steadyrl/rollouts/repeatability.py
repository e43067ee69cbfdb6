"""Whether an environment gives the same episode again for the same seed and actions, and a policy the same actions.

The first episode of a run is run once more, in a fresh copy of the environment and for at most 200 steps. If its
observations, rewards or end differ, the environment takes randomness from somewhere else than its own generator
(`self.np_random`), and no seed can make the run repeatable.

A policy is asked again for its first actions, given the same observations and the same generator. If they differ, it
has a generator or a memory of its own, and what it does in a block depends on the blocks before it.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from steadyrl.common.machine import Process
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.lanes import CLOSING, MAKING, Watch
from steadyrl.environments.returned import as_flag, as_reward
from steadyrl.environments.sources import Source, close_quietly
from steadyrl.policies.networks import Policy
from steadyrl.rollouts.engine import Episode

STEPS = 200
"""Steps of the first episode that are compared."""

ACTS, BYTES = 10, 1 << 24
"""First calls of a policy that are compared, and the memory for their observations after which there are fewer."""

MESSAGE = (
    "the first episode of {name} did not repeat with the same seed and the same actions, so another run with the same "
    "seed gives other data; draw all random numbers from self.np_random, which super().reset(seed=seed) seeds"
)

POLICY_MESSAGE = (
    "the policy {name} did not choose the same actions again for the same observations and the same generator, so "
    "another run with the same seed, another number of workers, or a resumed run gives other data, and workers may "
    "draw the same noise; draw all random numbers from the rng that act(observations, rng) is given, and remember "
    "nothing from one call to the next"
)


class RememberingPolicy:
    """A policy that remembers its first calls."""

    def __init__(self, policy: Policy, actions: ActionCodec) -> None:
        self._policy, self._actions = policy, actions
        self._calls: list[tuple[Any, np.random.Generator, Any]] = []
        self._room = BYTES

    def act(self, observations: Any, rng: np.random.Generator) -> Any:
        """Return the policy's actions."""
        if len(self._calls) == ACTS or self._room < 0:
            return self._policy.act(observations, rng)
        self._room -= observations.nbytes
        before = observations.copy(), copy.deepcopy(rng)
        chosen = self._actions.checked(self._policy.act(observations, rng), len(observations))
        self._calls.append((*before, chosen.copy()))
        return chosen

    def repeats(self) -> bool:
        """Return whether the policy chooses the actions of its first calls again."""
        try:
            for observations, rng, chosen in self._calls:
                again = self._actions.checked(self._policy.act(observations, rng), len(observations))
                # nan, which may stand where no action is taken, is the same as nan
                if not np.array_equal(again, chosen, equal_nan=chosen.dtype.kind in "fc"):
                    return False
            return True
        except KeyboardInterrupt:
            raise
        except BaseException:  # it did not raise the first time
            return False


def beginning_of(episode: Episode) -> Episode:
    """Return a copy of the first steps of an episode, to compare with later."""
    rows, actions, rewards = episode[:3]
    first = rows[: STEPS + 1].copy(), np.array(actions[:STEPS]), rewards[:STEPS].copy()
    whole = len(rewards) <= STEPS
    return Episode(*first, whole and episode.terminated, whole and episode.truncated)


def repeats(
    source: Source, observations: ObservationCodec, actions: ActionCodec, seed: int, first: Episode, watch: Watch
) -> bool:
    """Return whether the environment gives the episode's observations, rewards and end again.

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
    last = len(first.rewards) - 1
    sent = actions.sent(first.actions)
    watch.apart(MAKING)
    env, process = source.make(), Process()
    try:
        watch(0, 0)
        write(row, env.reset(seed=seed)[0])
        if not _same(row, first.observations[0]):
            return False
        for step, action in enumerate(sent):
            watch(0, step + 1)
            observation, reward, terminated, truncated, _ = env.step(action)
            process.back()
            write(row, observation)
            if as_reward(reward) != first.rewards[step] or not _same(row, first.observations[step + 1]):
                return False
            ends = as_flag("terminated", terminated), as_flag("truncated", truncated)
            if ends != ((first.terminated, first.truncated) if step == last else (False, False)):
                return False
    except KeyboardInterrupt:
        raise
    except BaseException:  # it did not raise the first time
        return False
    finally:
        process.back()
        watch.apart(CLOSING)
        close_quietly(env)
    return True


def _same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=True))
