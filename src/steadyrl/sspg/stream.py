"""Environments that never stop, and how a resumed run finds them where the interrupted one left them.

The state of a simulator cannot be saved in general. So what a checkpoint keeps of the environments is how they were
seeded and every action since: a resumed run makes them anew, repeats the actions, and is where the interrupted one was.
A digest of all that was seen tells whether it is. To bound what has to be repeated, environments are made anew from
time to time (`restart_every`), in every run alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.sources import Source
from steadyrl.errors import NonFiniteError, TrainingError
from steadyrl.policies.networks import Policy
from steadyrl.rollouts.planning import Backend
from steadyrl.sspg.checkpoints import reading_content
from steadyrl.sspg.settings import ResolvedSettings
from steadyrl.sspg.vector_envs import make_vector_env

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_NOISE = 8
"""First spawn key of the actions' noise."""


@dataclass(frozen=True)
class Stretch:
    """m steps of K environments; entry t is a state, or the transition from it to the state at t + 1."""

    rows: Array
    """[m + 1, K, width], observations."""
    ages: NDArray[np.int64]
    """[m + 1, K], ages of the states: 1 after a reset, T at the terminal state."""
    actions: Any
    """[m, K, ...]."""
    rewards: Array
    """[m, K]."""
    terminated: Flags
    """[m, K]: whether the state at t + 1 is terminal."""
    truncated: Flags
    """[m, K]: whether a time limit ends the episode at t + 1."""
    cut: Flags
    """[m, K]: whether the episode is truncated early at t + 1, to bring the environments to steady state."""
    alive: Flags
    """[m, K]: whether the state at t is not the end of an episode, so that its action counts."""


class Stream:
    """The environments of an online run and where they are. Their wrapper counts the ages."""

    def __init__(
        self,
        source: Source,
        backend: Backend,
        observations: ObservationCodec,
        actions: ActionCodec,
        settings: ResolvedSettings,
    ) -> None:
        self._source, self._backend, self._settings = source, backend, settings
        self._seen, self._codec = observations, actions
        self.restarts = -1
        self._envs: Any = None
        self._since = 0
        self._log: list[Any] = []
        self._seen_so_far = blake2b()
        self._rows: Array = np.empty(0)
        self._over: Flags = np.empty(0, dtype=bool)
        self._rng = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(_NOISE,)))

    @property
    def phase_distance(self) -> float:
        """Total variation between the ages of the last batch and the stationary ones; nan while it is unknown."""
        return float(self._envs.phase.distance)

    def draw(self, policy: Policy, steps: int) -> Stretch:
        """Run all environments for so many steps."""
        if self._envs is None or self._since >= self._settings.restart_every:
            self._restart(self.restarts + 1)
        count, width = self._rows.shape
        rows, ages = np.empty((steps + 1, count, width)), np.empty((steps + 1, count), dtype=np.int64)
        rewards, flags = np.empty((steps, count)), np.zeros((4, steps, count), dtype=bool)
        terminated, truncated, cut, alive = flags
        actions: Any = None
        for t in range(steps):
            rows[t], ages[t] = self._rows, self._envs.ages
            np.logical_not(self._over, out=alive[t])
            chosen = policy.act(self._seen.flattened(self._rows), self._rng)
            if actions is None:
                actions = np.empty((steps, *chosen.shape), chosen.dtype)
            actions[t] = chosen
            if not math.isfinite(chosen.sum()):
                raise TrainingError("the policy chose an action that is not finite; a smaller learning rate would help")
            rewards[t], terminated[t], truncated[t], cut[t] = self._step(self._codec.sent(chosen))
        rows[steps], ages[steps] = self._rows, self._envs.ages
        self._require_finite(rows, rewards)
        return Stretch(rows, ages, actions, rewards, terminated, truncated, cut, alive)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the environments."""
        log = np.stack(self._log) if self._log else np.zeros((0, 0), dtype=self._codec.dtype)
        seen = np.frombuffer(self._seen_so_far.digest(), np.uint8)
        return {"log": log, "seen": seen, "restarts": np.int64(self.restarts)}

    @property
    def noise(self) -> dict[str, Any]:
        """The state of the generator of the actions' noise."""
        return dict(self._rng.bit_generator.state)

    def restore(self, arrays: dict[str, Any], noise: dict[str, Any]) -> None:
        """Bring new environments to where a checkpoint's were, by repeating their actions."""
        with reading_content():
            self._rng.bit_generator.state = noise
            restarts, log, seen = int(arrays["restarts"]), arrays["log"], arrays["seen"].tobytes()
            if log.ndim < 2 or log.dtype != self._codec.dtype or (len(log) and log.shape[1] != self._settings.num_envs):
                raise ValueError(f"the actions are an array of {log.dtype} with shape {log.shape}")
        if restarts < 0:
            return
        self._restart(restarts)
        for sent in log:
            self._step(sent)
        if self._seen_so_far.digest() != seen:
            raise TrainingError(
                f"{self._source.name} does not repeat itself: after the same seed and the same {len(self._log)} "
                "actions its observations, rewards or ends differ from those of the interrupted run, which cannot be "
                "resumed; start again, or make the environment depend on its seed alone"
            )

    def close(self) -> None:
        """Close the environments."""
        if self._envs is not None:
            envs, self._envs = self._envs, None
            envs.close()

    def _restart(self, number: int) -> None:
        self.close()
        self.restarts, self._since, self._log, self._seen_so_far = number, 0, [], blake2b()
        self._envs, seed = make_vector_env(self._source, self._backend, self._settings, restart=number)
        observations, _ = self._envs.reset(seed=seed)
        count = self._settings.num_envs
        self._rows = np.empty((count, self._seen.width))
        self._seen.rows(observations, self._rows)
        self._seen_so_far.update(self._rows.data)
        self._over = np.zeros(count, dtype=bool)

    def _step(self, sent: Any) -> tuple[Any, Any, Any, Any]:
        """Step all environments; return rewards, terminated, truncated by a time limit, truncated early."""
        self._log.append(sent.copy())  # an environment may change its action in place
        observations, rewards, terminated, truncated, infos = self._envs.step(sent)
        self._since += len(self._rows)
        self._seen.rows(observations, self._rows)
        cut = infos["_staggered"] if "staggered" in infos else np.zeros(len(self._over), dtype=bool)
        self._over = terminated | truncated
        self._seen_so_far.update(self._rows.data)
        self._seen_so_far.update(self._over.data)
        self._seen_so_far.update(np.ascontiguousarray(rewards, dtype=float).data)
        return rewards, terminated, truncated & ~cut, cut

    def _require_finite(self, rows: Array, rewards: Array) -> None:
        for what, values in (("an observation", rows), ("a reward", rewards)):
            if not np.isfinite(values).all():
                raise NonFiniteError(
                    f"{self._source.name} returned {what} that is not finite; no policy survives that, so mend the "
                    "environment"
                )
