"""The loop in which a policy acts on all lanes at once and every episode that ends goes to a collector.

    observations -> policy -> actions -> lanes -> observations, rewards, endings

What happened is kept tick by tick, [time, lane], so that an episode is a slice of time in one lane. A collector hands
out episodes in a fixed order and every one that it hands out is run to its end, so no episode is
left out for being long. Several sets of lanes take turns: while one waits for its simulators, another's actions
are computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.lanes import CutError, Ending, Lanes
from steadyrl.environments.returned import InvalidValueError
from steadyrl.policies.networks import NetworkPolicy, Policy, UniformPolicy
from steadyrl.policies.tables import TabularPolicy

Array = NDArray[np.float64]


class Job(NamedTuple):
    """An episode to run: its number in the block, and its seed."""

    number: int
    seed: int | None
    """The seed of the reset; None if the environment's generator goes on, as in a rollout's later episodes."""


class Episode(NamedTuple):
    """A finished episode of l actions, as views of arrays that are valid until the next step."""

    observations: Array
    """Rows of the codec, [l + 1, width], at ages 1, ..., T; the last one is the terminal observation."""
    actions: Any
    """The actions as the policy returned them, [l, ...]."""
    rewards: Array
    """The rewards, [l]."""
    terminated: bool
    truncated: bool


class Failure(NamedTuple):
    """Why, and after how many actions, an episode could not be finished."""

    kind: str
    """"raised", "invalid", "not finite", "too long", "hung" or "crashed"."""
    step: int
    detail: str
    cause: BaseException | None = None
    actions: Any = None
    """The episode's actions so far, the failing one included, or None if they are not known."""


class Collector(Protocol):
    """Hands out episodes in a fixed order and receives the finished and failed ones."""

    largest: float
    """The largest value of an observation that is still finite in the type in which it is kept."""

    def next(self, lane: int) -> Job | None:
        """Return the lane's next episode, or None if there is no more work for it."""

    def finish(self, lane: int, episode: Episode) -> None:
        """Receive a finished episode."""

    def fail(self, lane: int, failure: Failure) -> None:
        """Receive a failed episode, or raise its error."""


def run(
    groups: Sequence[Lanes],
    policy: Policy,
    observations: ObservationCodec,
    actions: ActionCodec,
    collector: Collector,
    *,
    limit: int,
    rng: np.random.Generator,
) -> None:
    """Run lanes until the collector has no more episodes and every episode that it handed out is over."""
    sets, offset = [], 0
    for lanes in groups:
        sets.append(_LaneSet(lanes, policy, observations, actions, collector, limit, rng, offset))
        offset += len(lanes.rewards)
    for lane_set in sets:
        lane_set.begin()
    busy = [lane_set for lane_set in sets if lane_set.running]
    for lane_set in busy:
        lane_set.act()
    while busy:
        for lane_set in busy:
            lane_set.observe()
            if lane_set.running:
                lane_set.act()
        busy = [lane_set for lane_set in busy if lane_set.running]


class _LaneSet:
    """A set of lanes with the record of what happened in them."""

    def __init__(
        self,
        lanes: Lanes,
        policy: Policy,
        seen: ObservationCodec,
        codec: ActionCodec,
        collector: Collector,
        limit: int,
        rng: np.random.Generator,
        offset: int,
    ) -> None:
        self.lanes, self.policy, self.seen, self.codec, self.collector = lanes, policy, seen, codec, collector
        self.limit, self.rng, self.offset = limit, rng, offset
        self.count, size = lanes.observations.shape
        self.largest = collector.largest
        self.own = isinstance(policy, NetworkPolicy | TabularPolicy | UniformPolicy)  # whose actions always fit
        self.observations = np.empty((64, self.count, size))
        self.rewards = np.empty((64, self.count))
        self.actions: Any = None
        self.tick = 0
        self.starts: dict[int, int] = {}  # the tick of each busy lane's first observation
        self.draining: set[int] = set()  # lanes of EnvPool that first have to end an episode that failed
        self.oldest = 0

    @property
    def running(self) -> bool:
        """Whether some lane has an episode to finish."""
        return bool(self.starts or self.draining)

    def begin(self) -> None:
        """Start the first episodes."""
        for lane in range(self.count):
            self._take_next(lane, 0)
        failed = self.lanes.start()
        self.observations[0] = self.lanes.observations
        self._check_finite(failed)
        for ending in failed:
            self._fail(ending.lane, "raised", 0, "", ending.error)
        self._find_oldest()

    def act(self) -> None:
        """Choose actions for the present observations and send them off."""
        observations = self.seen.flattened(self.observations[self.tick])
        if not self.own:
            observations = observations.copy()  # it may change them in place, and ours are the record
        actions = self.policy.act(observations, self.rng)
        if self.actions is None or not self.own:
            actions = self.codec.checked(actions, self.count)
            self.codec.require_actions(actions, (lane for lane, start in self.starts.items() if start <= self.tick))
            self._make_room_for(actions)
        self.actions[self.tick] = actions
        self.lanes.send(actions)

    def _make_room_for(self, actions: Any) -> None:
        """Keep actions in a type that holds all of them: a policy may return whole numbers first and others later."""
        if self.actions is None:
            self.actions = np.empty((len(self.rewards), *actions.shape), actions.dtype)
        elif actions.dtype != self.actions.dtype:
            self.actions = self.actions.astype(np.result_type(self.actions, actions), copy=False)

    def observe(self) -> None:
        """Receive the results of the actions, and handle the lanes whose episode is over."""
        endings = self.lanes.receive()
        if self.tick + 2 > len(self.rewards):
            self._make_room()
        self.rewards[self.tick] = self.lanes.rewards
        self.tick += 1
        present = self.observations[self.tick]
        present[:] = self.lanes.observations
        flat = present.ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            square = flat.dot(flat)
        if not square <= self.largest:  # it is, unless a value is not finite or very large
            self._check_finite(endings)
        if endings:
            for ending in endings:
                self._end(ending)
            self._find_oldest()
        if self.tick - self.oldest >= self.limit:
            self._stop_long_ones()

    def _end(self, ending: Ending) -> None:
        lane = ending.lane
        start = self.starts.get(lane)
        if lane in self.draining:
            self.draining.remove(lane)
            self._take_next(lane, self.tick + 1)
            return
        if start is None:
            return  # nobody's episode: a lane that EnvPool keeps running
        if ending.error is not None:
            self._fail(lane, "raised", self.tick - start, "", ending.error)
            return
        rewards = self.rewards[start : self.tick, lane]
        with np.errstate(over="ignore", invalid="ignore"):
            finite = math.isfinite(rewards.sum())
        if not finite:
            self._fail(lane, "not finite", *_first_not_finite(rewards))
            return
        episode = Episode(
            self.observations[start : self.tick + 1, lane],
            self.actions[start : self.tick, lane],
            rewards,
            ending.terminated,
            ending.truncated,
        )
        self.collector.finish(self.offset + lane, episode)
        self._take_next(lane, self.tick + 1)

    def _take_next(self, lane: int, start: int) -> None:
        job = self.collector.next(self.offset + lane)
        if job is None:
            self.starts.pop(lane, None)
            self.lanes.rest(lane)
        else:
            self.starts[lane] = start
            self.lanes.assign(lane, job.seed, job.number)

    def _fail(self, lane: int, kind: str, step: int, detail: str, cause: BaseException | None = None) -> None:
        if isinstance(cause, CutError):
            kind = str(cause)
        elif isinstance(cause, InvalidValueError):
            kind, detail = "invalid", str(cause)
        taken = None if self.actions is None else self.actions[self.tick - step : self.tick, lane].copy()
        self.collector.fail(self.offset + lane, Failure(kind, step, detail, cause, taken))
        self.observations[self.tick, lane] = 0.0
        if self.lanes.replace(lane):
            self._take_next(lane, self.tick + 1)
        else:
            del self.starts[lane]
            self.draining.add(lane)

    def _check_finite(self, endings: list[Ending]) -> None:
        """Fail the lanes whose observation holds a NaN or an infinity, or a value that would be kept as one."""
        present = self.observations[self.tick]
        finite = np.abs(present) <= self.largest
        for lane in np.flatnonzero(~finite.all(axis=1)).tolist():
            if lane not in self.starts or any(e.lane == lane and e.error is not None for e in endings):
                continue
            place = int(np.argmin(finite[lane]))
            detail = f"{present[lane, place]} at place {place} of the observation"
            if np.isfinite(present[lane, place]):
                dtype = self.seen.sample_dtype()
                beyond = f"infinite in {dtype}" if dtype.kind == "f" else f"too large to be kept exactly as {dtype}"
                detail += f", which is {beyond}, the type of the space"
            endings[:] = [ending for ending in endings if ending.lane != lane]
            self._fail(lane, "not finite", self.tick - self.starts[lane], detail)
        self._find_oldest()

    def _stop_long_ones(self) -> None:
        for lane, start in list(self.starts.items()):
            if self.tick - start >= self.limit:
                self._fail(lane, "too long", self.tick - start, "")
        self._find_oldest()

    def _find_oldest(self) -> None:
        self.oldest = min(self.starts.values(), default=self.tick)

    def _make_room(self) -> None:
        """Move what is still needed to the front; if that is more than half, double the room."""
        kept = self.tick + 1 - min(self.oldest, self.tick)
        first = self.tick + 1 - kept
        room = len(self.rewards) * (2 if kept > len(self.rewards) // 2 else 1)
        for name in ("observations", "rewards", "actions"):
            old = getattr(self, name)
            new = np.empty((room, *old.shape[1:]), old.dtype)
            new[:kept] = old[first : first + kept]
            setattr(self, name, new)
        self.tick -= first
        self.starts = {lane: start - first for lane, start in self.starts.items()}
        self.oldest -= first


def _first_not_finite(rewards: Array) -> tuple[int, str]:
    """Return the step at which rewards, or their sum, are no longer finite, and what is wrong there."""
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if len(wrong):
        return int(wrong[0]) + 1, f"the reward {rewards[wrong[0]]}"
    with np.errstate(over="ignore", invalid="ignore"):
        step = int(np.argmin(np.isfinite(np.cumsum(rewards))))
    return step + 1, f"rewards so large that their sum overflows, the last of them {rewards[step]}"
