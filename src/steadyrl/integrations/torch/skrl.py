"""skrl: staggered episodes for simulators with step counters, as those of Isaac Lab.

    env = StaggeredWrapper(wrap_env(env))
    SequentialTrainer(cfg=settings, env=env, agents=PPO(...)).train()

Episodes are truncated through the simulator's own counters (`counters`). skrl bootstraps from truncations if the agent
has `time_limit_bootstrap`. For Gymnasium's vector environments nothing is needed from here:
`wrap_env(steadyrl.StaggeredVectorEnv(envs))`.
"""

from __future__ import annotations

from typing import Any

import torch

from steadyrl.common.checks import shown
from steadyrl.errors import MissingExtraError, WrapperError
from steadyrl.integrations.torch.counters import CounterStagger

try:
    from skrl.envs.wrappers.torch.base import Wrapper
except ImportError as error:
    raise MissingExtraError('this needs skrl; install it with: pip install "steadyrl[skrl]"') from error


class StaggeredWrapper(Wrapper):
    """An environment for skrl whose episodes are staggered, so that every batch is a fair sample, and stays one.

    A truncation takes effect in the step after the decision, which costs one step of the best possible distance. Two
    groups of numbers go to the trainer's log: `steady/phase_distance`, `steady/in_lockstep` and `steady/ep_len_mean`
    (`TorchStagger.log`), and the fair means `fair/return`, `fair/length` and `fair/unresolved`
    (`TorchFairStatistics.log`).

    Args:
        env: what `wrap_env` returns for a simulator with step counters.
        counters: name of the simulator's tensor of counters.
        limit: the time limit in steps, or the name under which the simulator has it.
        seed: seed of the choice between copies of the same age; None takes another one every time.
        log_interval: steps between two entries in the log; 0 leaves it alone.
        environment_info: where the log is among the infos, as in the trainer's settings.

    Raises:
        WrapperError: if the simulator has no such counters.
        StaggerError: later, if a copy goes on whose counter was written.
    """

    def __init__(
        self,
        env: Any,
        *,
        counters: str = "episode_length_buf",
        limit: Any = "max_episode_length",
        seed: int | None = None,
        log_interval: int = 16,
        environment_info: str = "episode",
    ) -> None:
        super().__init__(env)
        self._stagger = CounterStagger(
            self._unwrapped, counters=counters, limit=limit, seed=seed, log_interval=log_interval
        )
        self.staggering, self.statistics = self._stagger.staggering, self._stagger.statistics
        self.log_interval = self._stagger.log_interval
        if not isinstance(environment_info, str):
            raise WrapperError(f"environment_info is {shown(environment_info)}; it must be a name among the infos")
        self.environment_info = environment_info

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Any]:
        """Step all copies; those that are too many at their age are truncated in the next step."""
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        self._stagger.step(terminated | truncated, rewards, terminated)
        if self._stagger.log_now:
            log = {**infos.get(self.environment_info, {}), **self._stagger.log()}
            infos = {**infos, self.environment_info: log}
        return observations, rewards, terminated, truncated, infos

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Reset all copies, if that is what the environment does: skrl resets simulators only once."""
        found = self._env.reset()
        if not self._stagger.counters.any():
            self._stagger.reset()
        return found  # type: ignore[no-any-return]

    @property
    def observation_space(self) -> Any:
        """Observation space of a copy."""
        return self._env.observation_space

    @property
    def action_space(self) -> Any:
        """Action space of a copy."""
        return self._env.action_space

    @property
    def state_space(self) -> Any:
        """State space of a copy."""
        return self._env.state_space

    def state(self) -> Any:
        """Return the states."""
        return self._env.state()

    def render(self, *arguments: Any, **options: Any) -> Any:
        """Render the environment."""
        return self._env.render(*arguments, **options)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
