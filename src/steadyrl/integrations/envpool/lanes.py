"""Collecting episodes in EnvPool's threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.lanes import CLOSING, MAKING, Ending, Watch


class EnvPoolLanes:
    """Environments in EnvPool's threads, one per lane. Seeds are fixed when the pool is made; no lane ever stops."""

    def __init__(self, make: Callable[[], Any], codec: ObservationCodec, actions: ActionCodec, watch: Watch) -> None:
        watch.apart(MAKING)
        self._pool = make()
        count = len(self._pool)
        self._codec, self._actions, self._watch = codec, actions, watch
        self.observations = np.zeros((count, codec.width))
        self.rewards = np.zeros(count)
        self._numbers = [0] * count
        self._ticks = 0

    def start(self) -> list[Ending]:
        """Start the first episode of every lane."""
        self._watch(self._numbers[0], 0)
        observations, _ = self._pool.reset()
        self._codec.rows(observations, self.observations)
        return []

    def send(self, actions: Any) -> None:
        """Begin a step in every lane; it goes on in EnvPool's threads."""
        self._pool.send(self._actions.sent(actions))

    def receive(self) -> list[Ending]:
        """Wait for all lanes."""
        self._ticks += 1
        self._watch(self._numbers[0], self._ticks)
        observations, rewards, terminated, truncated, _ = self._pool.recv()
        self._codec.rows(observations, self.observations)
        self.rewards[:] = rewards
        over = np.flatnonzero(terminated | truncated)
        return [Ending(int(lane), bool(terminated[lane]), bool(truncated[lane])) for lane in over]

    def assign(self, lane: int, seed: int | None, number: int) -> None:
        """Note which episode the lane runs; EnvPool resets it by itself."""
        self._numbers[lane] = number

    def rest(self, lane: int) -> None:
        """Let the lane run on; its data is not used."""

    def replace(self, lane: int) -> bool:
        """Return False: single environments in EnvPool cannot be replaced, so the episode has to end first."""
        return False

    def close(self) -> None:
        """Stop the pool's threads."""
        self._watch.apart(CLOSING)
        self._pool.close()
