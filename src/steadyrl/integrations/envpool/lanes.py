"""Collecting episodes in EnvPool's threads.

A pool marks an episode that terminates in the very step of its time limit as truncated only. Where Gymnasium has the
limit in a wrapper, pools get one step more, as in `pool`, and the limit is kept here, so that both flags are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.lanes import CLOSING, MAKING, Ending, Watch
from steadyrl.wrappers.rows import take_rows


class EnvPoolLanes:
    """Environments in EnvPool's threads, one per lane. Seeds are fixed when the pool is made; no lane ever stops."""

    def __init__(
        self, make: Callable[[], Any], codec: ObservationCodec, actions: ActionCodec, watch: Watch, limit: int | None
    ) -> None:
        watch.apart(MAKING)
        self._pool = make()
        count = len(self._pool)
        self._codec, self._actions, self._watch, self._limit = codec, actions, watch, limit
        self.observations = np.zeros((count, codec.width))
        self.rewards = np.zeros(count)
        self._numbers = [0] * count
        self._ticks = 0
        self._late = self._rest = np.zeros(0, dtype=np.int32)  # those to be reset by us, and the others
        self._fresh: Any = None

    def start(self) -> list[Ending]:
        """Start the first episode of every lane."""
        self._watch(self._numbers[0], 0)
        observations, _ = self._pool.reset()
        self._codec.rows(observations, self.observations)
        return []

    def send(self, actions: Any) -> None:
        """Begin a step in every lane; it goes on in EnvPool's threads. Those that reached the time limit are reset."""
        sent = self._actions.sent(actions)
        if not len(self._late):
            self._pool.send(sent)
            return
        self._fresh = self._pool.reset(self._late)[0]
        if len(self._rest):
            self._pool.send(take_rows(sent, self._rest), self._rest)

    def receive(self) -> list[Ending]:
        """Wait for all lanes."""
        self._ticks += 1
        self._watch(self._numbers[0], self._ticks)
        if not len(self._late):
            observations, rewards, terminated, truncated, info = self._pool.recv()
            self._codec.rows(observations, self.observations)
            self.rewards[:] = rewards
            return self._ended(np.arange(len(rewards), dtype=np.int32), terminated, truncated, info)
        self._write(self._late, self._fresh)
        self.rewards[self._late] = 0.0
        rest, self._late = self._rest, self._late[:0]
        if not len(rest):
            return []
        observations, rewards, terminated, truncated, info = self._pool.recv()
        self._write(rest, observations)
        self.rewards[rest] = rewards
        return self._ended(rest, terminated, truncated, info)

    def _write(self, lanes: Any, observations: Any) -> None:
        rows = np.empty((len(lanes), self._codec.width))
        self._codec.rows(observations, rows)
        self.observations[lanes] = rows

    def _ended(self, lanes: Any, terminated: Any, truncated: Any, info: Any) -> list[Ending]:
        """Return the ends in these lanes, and note which of them the pool does not know of."""
        if self._limit is not None:
            truncated = info["elapsed_step"] >= self._limit
            unknown = truncated & ~terminated
            if unknown.any():
                self._late = lanes[unknown]
                self._rest = np.setdiff1d(np.arange(len(self.rewards), dtype=np.int32), self._late)
        over = np.flatnonzero(terminated | truncated)
        return [Ending(int(lanes[i]), bool(terminated[i]), bool(truncated[i])) for i in over]

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
