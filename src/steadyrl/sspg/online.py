"""The online sampler: environments never stop, and every update takes a few steps of each (GAE without a discount)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.storage import unprefixed, with_prefix
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.environments.sources import Description, Source
from steadyrl.errors import TrainingError
from steadyrl.policies.modules import NetworkModule
from steadyrl.sspg.checkpoints import reading_content
from steadyrl.sspg.measured_baseline import Line, MeasuredBaseline
from steadyrl.sspg.recent_episodes import RecentEpisodes
from steadyrl.sspg.returns import lambda_advantages
from steadyrl.sspg.settings import ResolvedSettings
from steadyrl.sspg.stream import Stream, Stretch
from steadyrl.sspg.vector_envs import choose

Array = NDArray[np.float64]


@dataclass(frozen=True)
class OnlineBatch:
    """A stretch of the stream as the batch of an update (see `Batch`).

    The first `n_steps` steps are learnt from; further ones, with Monte Carlo returns, only end the returns.
    """

    stretch: Stretch
    observations: Array
    acted: NDArray[np.int64]
    n_steps: int
    trace: float
    bootstrap_at_time_limits: bool
    recent: RecentEpisodes
    average_episode_length: float
    mean_return: float
    phase_distance: float
    bootstrapped: bool = True

    @property
    def ages(self) -> NDArray[np.int64]:
        """Ages of all states, [S]."""
        return self.stretch.ages.reshape(-1)

    @property
    def actions(self) -> Any:
        """The actions that count, [B, ...]."""
        taken = self.stretch.actions
        return taken.reshape(-1, *taken.shape[2:])[self.acted]

    @property
    def visited(self) -> int:
        """All states but those that the last step led to."""
        return self.stretch.rewards.size

    @property
    def steps(self) -> int:
        """Environment steps, resets included."""
        return self.stretch.rewards.size

    def returns(self, values: Array) -> tuple[Array, Array]:
        """Return lambda-returns and advantages, [B] each, given V of all states."""
        stretch, n = self.stretch, self.n_steps
        v = values.reshape(stretch.ages.shape)
        over = stretch.terminated | stretch.truncated
        ends = stretch.terminated if self.bootstrap_at_time_limits else over
        advantages = lambda_advantages(stretch.rewards, v, ends, over | stretch.cut, self.trace)[:n]
        returns = advantages + v[:n]
        return returns.ravel()[self.acted], advantages.ravel()[self.acted]

    def line(self, baseline: MeasuredBaseline, time_left: Array, returns: Array) -> Line | None:
        """Return the line as the stream shows it: these returns end with predictions, and cannot be trusted for it."""
        return baseline.of_stream(self.recent)


class OnlineSampler:
    """Draws batches from environments that never stop.

    Raises:
        TrainingError: if Monte Carlo returns are asked of an environment without a time limit.
    """

    def __init__(
        self,
        source: Source,
        description: Description,
        observations: ObservationCodec,
        actions: ActionCodec,
        settings: ResolvedSettings,
    ) -> None:
        backend, reason = choose(source, description, settings)
        self.about = f"backend {backend}: {reason}"
        self._settings, self._seen = settings, observations
        self._stream = Stream(source, backend, observations, actions, settings)
        horizon = description.max_episode_steps if settings.truncation == "terminal" else None
        self._recent = RecentEpisodes(settings.num_envs, horizon)
        self._extra = 0
        if settings.returns == "monte-carlo":
            if description.max_episode_steps is None:
                raise TrainingError(
                    f"returns 'monte-carlo' let every environment run on until its episode is over, and {source.name} "
                    "has no time limit; give it one (--make max_episode_steps=n), or use returns 'critic'"
                )
            self._extra = description.max_episode_steps

    def draw(self, policy: NetworkModule, update: int) -> OnlineBatch:
        """Run all environments for the steps of an update."""
        settings, n = self._settings, self._settings.n_steps
        stretch = self._stream.draw(policy.numpy(), n + self._extra)
        self._recent.add(stretch.ages[1:], stretch.terminated | stretch.truncated, stretch.rewards)
        return OnlineBatch(
            stretch=stretch,
            observations=self._seen.flattened(stretch.rows.reshape(-1, self._seen.width)),
            acted=np.flatnonzero(stretch.alive[:n]),
            n_steps=n,
            trace=1.0 if settings.returns == "monte-carlo" else settings.trace,
            bootstrap_at_time_limits=settings.truncation == "bootstrap",
            recent=self._recent,
            average_episode_length=self._recent.average_episode_length,
            mean_return=self._recent.mean_return,
            phase_distance=self._stream.phase_distance,
        )

    def header(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as JSON."""
        return {"noise": self._stream.noise}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps as arrays."""
        return with_prefix("stream", self._stream.state()) | with_prefix("recent", self._recent.state())

    def restore(self, arrays: dict[str, Any], header: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        with reading_content():
            self._recent.restore(unprefixed("recent", arrays))
            noise = header["noise"]
        self._stream.restore(unprefixed("stream", arrays), noise)

    def close(self) -> None:
        """Close the environments."""
        self._stream.close()
