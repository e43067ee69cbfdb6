"""What each of the two ways to draw data hands to the learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.sources import Description, Source
from steadyrl.errors import TrainingError
from steadyrl.policies.modules import NetworkModule
from steadyrl.policies.networks import Normalisation
from steadyrl.rollouts.planning import Options, choose_backend
from steadyrl.sspg.copies import choose
from steadyrl.sspg.fresh import draw_fresh
from steadyrl.sspg.learner import Data, Learner
from steadyrl.sspg.online import Batch, Online
from steadyrl.sspg.returns import lambda_advantages
from steadyrl.sspg.settings import Settings
from steadyrl.sspg.streams import RunningLength

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Drawn:
    """The data of an update, and what they say about the policy."""

    data: Data
    observations: Array
    """[B, d], for the normaliser."""
    average_episode_length: float
    mean_return: float
    """J_epi, by Theorem 4 where streams are cut off: E[T] times the reward per step."""
    phase_distance: float
    steps: int


@dataclass(frozen=True)
class Scene:
    """What data are drawn from."""

    source: Source
    description: Description
    observations: ObservationCodec
    actions: ActionCodec


class Drawing(Protocol):
    """A way to draw data."""

    about: str

    def draw(self, learner: Learner, update: int) -> Drawn:
        """Draw the data of an update."""

    def header(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as JSON."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as arrays."""

    def restore(self, arrays: dict[str, Any], header: dict[str, Any]) -> None:
        """Go on from a checkpoint."""

    def close(self) -> None:
        """Give up what was opened."""


class OnlineDrawing:
    """Copies that never stop."""

    def __init__(self, scene: Scene, settings: Settings) -> None:
        source, description = scene.source, scene.description
        backend, reason = choose(source, description, settings)
        self.about = f"backend {backend}: {reason}"
        self._settings, self._seen = settings, scene.observations
        self._online = Online(source, backend, scene.observations, scene.actions, settings)
        horizon = description.max_episode_steps if settings.truncation == "terminal" else None
        self._length = RunningLength(settings.copies_used, horizon)
        self._extra = 0
        if settings.returns == "monte-carlo":
            if description.max_episode_steps is None:
                raise TrainingError(
                    f"returns 'monte-carlo' let every copy run on until its episode is over, and {source.name} has no "
                    "time limit; give it one (--make max_episode_steps=n), or use returns 'critic'"
                )
            self._extra = description.max_episode_steps

    def draw(self, learner: Learner, update: int) -> Drawn:
        """Run all copies for the steps of an update."""
        settings = self._settings
        batch = self._online.draw(learner.policy.numpy(), settings.steps_per_update_used + self._extra)
        self._length.add(batch.ages[1:], batch.terminated | batch.truncated, batch.rewards)
        return Drawn(
            data=self._data(batch, learner),
            observations=self._seen.flattened(batch.rows[:-1].reshape(-1, self._seen.width)),
            average_episode_length=self._length.average_episode_length,
            mean_return=self._length.reward_rate * self._length.average_episode_length,
            phase_distance=float(self._online.phase.distance),
            steps=batch.rewards.size,
        )

    def _data(self, batch: Batch, learner: Learner) -> Data:
        """Returns by the critic, and of all states those whose action counts."""
        n, settings = self._settings.steps_per_update_used, self._settings
        m, count = batch.rewards.shape
        features = see(self._seen.flattened(batch.rows.reshape((m + 1) * count, -1)), learner.policy)
        inputs = learner.critic.inputs(features, batch.ages.reshape(-1))
        values = learner.critic.values(inputs).reshape(m + 1, count)
        over = batch.terminated | batch.truncated
        ends = batch.terminated if settings.truncation == "bootstrap" else over
        trace = 1.0 if settings.returns == "monte-carlo" else settings.trace
        advantages = lambda_advantages(batch.rewards, values, ends, over | batch.cut, trace)[:n]
        returns = advantages + values[:n]
        used = batch.alive[:n].ravel()
        acted = inputs[: n * count][used]
        weights = advantages if settings.baseline == "critic" else returns
        return Data(
            features=features[: n * count][used],
            actions=batch.actions[:n].reshape(n * count, *batch.actions.shape[2:])[used],
            weights=weights.ravel()[used],
            inputs=acted,
            apart=returns.ravel()[used] - learner.critic.on_line(acted),
            line=self._length.line,
        )

    def header(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as JSON."""
        return {"noise": self._online.noise}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as arrays."""
        return self._online.state() | {f"length_{name}": value for name, value in self._length.state().items()}

    def restore(self, arrays: dict[str, Any], header: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        found = {name.removeprefix("length_"): value for name, value in arrays.items() if name.startswith("length_")}
        self._length.restore(found)
        self._online.restore(arrays, header["noise"])

    def close(self) -> None:
        """Give up the copies."""
        self._online.close()


class FreshDrawing:
    """New rollouts for every update."""

    def __init__(self, scene: Scene, settings: Settings) -> None:
        options = Options(backend=settings.backend, workers=settings.workers, address=settings.address)
        backend, reason = choose_backend(scene.source, scene.description, settings.copies_used, options)
        self.about = f"backend {backend}: {reason}"
        self._source, self._seen, self._settings = scene.source, scene.observations, settings

    def draw(self, learner: Learner, update: int) -> Drawn:
        """Collect episodes for t* and E[T], then samples at t*."""
        settings = self._settings
        drawn = draw_fresh(self._source, learner.policy.numpy(), settings, update)
        samples = drawn.samples
        used = ~samples.null & ~samples.terminal
        if not used.any():
            raise TrainingError("every sample is null or terminal; take more rollouts (copies)")
        rows = samples.observations[used].astype(float)
        rows = rows[:, None] - int(self._seen.space.start) if self._seen.discrete else rows
        observations = self._seen.flattened(rows)
        features = see(observations, learner.policy)
        inputs = learner.critic.inputs(features, samples.ages[used].astype(np.int64))
        returns = samples.returns[used]
        # The critic has not seen these samples yet, so as a baseline it leaves the gradient unbiased.
        taken_off = learner.critic.values(inputs) if settings.baseline == "critic" and update else 0.0
        line = learner.critic.line_through(inputs, returns)
        apart = returns - learner.critic.on_line(inputs, line)
        data = Data(features, samples.actions[used], returns - taken_off, inputs, apart, line)
        mean_return = float(drawn.episodes.returns.mean())
        return Drawn(data, observations, drawn.length.value, mean_return, drawn.when.distance, drawn.steps)

    def header(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as JSON."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as arrays: nothing, since an update's data depend on its number alone."""
        return {}

    def restore(self, arrays: dict[str, Any], header: dict[str, Any]) -> None:
        """Go on from a checkpoint."""

    def close(self) -> None:
        """Nothing is open."""


def see(observations: Array, policy: NetworkModule) -> Any:
    """Return observations as the policy's network sees them, in single precision."""
    if policy.limit is None:
        return observations.astype(np.float32)
    mean, std = policy.mean.cpu().numpy(), policy.std.cpu().numpy()
    return Normalisation(mean, std, policy.limit)(observations).astype(np.float32)
