"""Lanes: copies of an environment stepped together, each an endless loop of episodes.

A lane resets as in Gymnasium's NEXT_STEP autoreset mode, which is the learning process itself: the step that ends an
episode returns its terminal observation, and the next step, whose action is ignored, returns the first observation of
the next episode.

Every block makes its own copies. Bullet environments do not come back to the same state by `reset(seed=...)`: what was
run in a copy before shows in later digits (HumanoidBulletEnv-v0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from steadyrl.common.machine import Process
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.returned import as_flag, as_reward
from steadyrl.environments.sources import Source, close_quietly

Array = NDArray[np.float64]

RESETS, RUNS, RESTS = 0, 1, 2
"""The state of a lane: at the next step it resets, takes a step, or does nothing."""


MAKING, CLOSING, AFTER = -1, -2, -3
"""What stands for the number of an episode while copies are made, while they are closed, and when none is left."""


class Ending(NamedTuple):
    """The end of a lane's episode, or its failure."""

    lane: int
    terminated: bool
    truncated: bool
    error: BaseException | None = None


class Lanes(Protocol):
    """The interface of a set of lanes; each lane has a row of `observations` and an entry of `rewards`."""

    observations: Array
    rewards: Array

    def start(self) -> list[Ending]:
        """Start the first episode of every lane."""

    def send(self, actions: Any) -> None:
        """Begin a step in every lane."""

    def receive(self) -> list[Ending]:
        """Finish the step, fill `observations` and `rewards`, and return the episodes that ended or failed."""

    def assign(self, lane: int, seed: int | None, number: int) -> None:
        """Have the lane's next step start the episode with this number; without a seed, the generator goes on."""

    def rest(self, lane: int) -> None:
        """Let the lane do nothing from now on."""

    def replace(self, lane: int) -> bool:
        """Replace a copy that failed by a new one; return False if the lane must end its episode first."""

    def close(self) -> None:
        """Close all copies."""


class Watch:
    """Notes, before each call into an environment, which episode and step it is, in memory shared with a supervisor.

    `cuts` has episodes that are known to hang or crash, with the step at which they do: they fail there instead.
    """

    def __init__(self, beat: NDArray[np.int64] | None, cuts: Mapping[int, tuple[int, str]]) -> None:
        self.beat = beat
        self.cuts = cuts

    def __call__(self, number: int, step: int) -> None:
        """Note that this step of this episode begins."""
        beat = self.beat
        if beat is not None:
            beat[0] = number
            beat[1] = step
            beat[2] += 1
        if self.cuts and self.cuts.get(number, (-1, ""))[0] == step:
            raise CutError(self.cuts[number][1])

    def apart(self, doing: int) -> None:
        """Note that what begins, MAKING, CLOSING or AFTER, is no step of an episode."""
        if self.beat is not None:
            self.beat[0] = doing
            self.beat[2] += 1


class CutError(Exception):
    """Stands for a hang or a crash that happened at this step when the block was run before."""


class GymnasiumLanes:
    """Lanes in this process, each with a Gymnasium environment of its own."""

    def __init__(self, source: Source, codec: ObservationCodec, actions: ActionCodec, count: int, watch: Watch) -> None:
        self._source, self._actions, self._watch = source, actions, watch
        self._write = codec.writer()
        self._shape = codec.space.shape if codec.plain else None
        self._whole = codec.plain and codec.space.dtype.kind in "iu"  # then other types are looked at every time
        self._dtype: Any = codec.space.dtype if self._whole else None  # of observations that need no more checks
        self._envs: list[Any] = []
        for _ in range(count):
            watch.apart(MAKING)
            self._envs.append(source.make())
        self._process = Process()
        self.observations = np.zeros((count, codec.width))
        self.rewards = np.zeros(count)
        self._rows = list(self.observations)
        self._state = [RESTS] * count
        self._seeds: list[int | None] = [None] * count
        self._numbers, self._steps = [0] * count, [0] * count
        self._sent: Any = None
        self._watched = watch.beat is not None or bool(watch.cuts)

    def start(self) -> list[Ending]:
        """Start the first episode of every lane."""
        ended: list[Ending] = []
        for lane in range(len(self._envs)):
            self._reset(lane, ended)
        return ended

    def send(self, actions: Any) -> None:
        """Begin a step in every lane."""
        self._sent = actions

    def receive(self) -> list[Ending]:
        """Step or reset each lane in turn."""
        ended: list[Ending] = []
        envs, rows, rewards, state, write = self._envs, self._rows, self.rewards, self._state, self._write
        back = self._process.back
        shape, dtype = self._shape, self._dtype
        for lane, action in enumerate(self._actions.sent(self._sent)):
            if state[lane] != RUNS:
                self._reset(lane, ended)
                continue
            try:
                if self._watched:
                    self._steps[lane] += 1
                    self._watch(self._numbers[lane], self._steps[lane])
                observation, reward, terminated, truncated, _ = envs[lane].step(action)
                back()
                rewards[lane] = reward if type(reward) is float else as_reward(reward)
                if type(observation) is ndarray and observation.dtype is dtype and observation.shape == shape:
                    rows[lane][:] = observation
                else:
                    write(rows[lane], observation)
                    if not self._whole:
                        self._dtype = getattr(observation, "dtype", None)
                if type(terminated) is not bool or type(truncated) is not bool:
                    terminated, truncated = as_flag("terminated", terminated), as_flag("truncated", truncated)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                back()
                ended.append(Ending(lane, False, False, error))
                continue
            if terminated or truncated:
                ended.append(Ending(lane, terminated, truncated))
        return ended

    def assign(self, lane: int, seed: int | None, number: int) -> None:
        """Have the lane's next step start this episode."""
        self._state[lane], self._seeds[lane], self._numbers[lane] = RESETS, seed, number

    def rest(self, lane: int) -> None:
        """Let the lane do nothing from now on."""
        self._state[lane] = RESTS
        self.observations[lane] = 0.0

    def replace(self, lane: int) -> bool:
        """Replace a copy that failed by a new one."""
        self._watch.apart(CLOSING)
        close_quietly(self._envs[lane])
        self._watch.apart(MAKING)
        self._envs[lane] = self._source.make()
        self.observations[lane] = 0.0
        return True

    def close(self) -> None:
        """Close all environments."""
        for env in self._envs:
            self._watch.apart(CLOSING)
            close_quietly(env)

    def _reset(self, lane: int, ended: list[Ending]) -> None:
        self.rewards[lane] = 0.0
        if self._state[lane] == RESTS:
            return
        self._state[lane], self._steps[lane] = RUNS, 0
        try:
            self._watch(self._numbers[lane], 0)
            observation, _ = self._envs[lane].reset(seed=self._seeds[lane])
            self._process.back()
            self._write(self._rows[lane], observation)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._process.back()
            ended.append(Ending(lane, False, False, error))
