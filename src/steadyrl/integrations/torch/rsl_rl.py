"""rsl_rl: staggered episodes for every environment of its contract, without a reset of our own.

    env = StaggeredVecEnv(env)
    OnPolicyRunner(env, settings, log_dir).learn(1500)

Environments for rsl_rl count the steps of their episodes in `episode_length_buf`, and reset a copy at
`max_episode_length`. Both ways of staggering write these counters (`counters`).

- `StaggeredVecEnv` watches whose episode ended, and truncates through the counter whoever is too many at their age. So
  it serves copies that fall early, too, and a policy that learns.
- `write_delays` writes all counters once, before training. It replaces `init_at_random_ep_len=True` by counters that
  are spread evenly. Nothing runs beside the environment, and nothing is noticed of copies that fall early.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from steadyrl.common.checks import check_seed
from steadyrl.errors import DelaysError, MissingExtraError
from steadyrl.integrations.torch.counters import CounterStagger
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.live.designed_staggering import DelaysLike, assigned_delays
from steadyrl.live.phase import PhaseReport

try:
    from rsl_rl.env import VecEnv
except ImportError as error:
    raise MissingExtraError('this needs rsl_rl 5; install it with: pip install "steadyrl[rsl-rl]"') from error


class StaggeredVecEnv(VecEnv):
    """An environment for rsl_rl whose episodes are staggered, so that every batch is a fair sample, and stays one.

    A truncation takes effect in the step after the decision, which costs one step of the best possible distance. The
    environment reports it as a time-out, from which PPO bootstraps. Two groups of numbers go to the runner's logger
    through `extras["log"]`: `steady/phase_distance`, `steady/in_lockstep` and `steady/ep_len_mean`
    (`TorchStagger.log`), and the fair means `fair/return`, `fair/length` and `fair/unresolved`
    (`TorchFairStatistics.log`).

    Leave `init_at_random_ep_len` at False: random counters shorten first episodes, so lengths are learnt more slowly.

    Args:
        env: an environment of rsl_rl's contract that was just reset, and resets copies at `max_episode_length`.
        seed: seed of the choice between copies of the same age; None takes another one every time.
        log_interval: steps between two entries in `extras["log"]`; 0 leaves the log alone.

    Raises:
        WrapperError: if the environment has no counters.
        StaggerError: later, if a copy goes on whose counter was written.
    """

    def __init__(self, env: Any, *, seed: int | None = None, log_interval: int = 16) -> None:
        self.env, self._stagger = env, CounterStagger(env, seed=seed, log_interval=log_interval)
        self.staggering, self.statistics = self._stagger.staggering, self._stagger.statistics
        self.log_interval = self._stagger.log_interval

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step all copies; those that are too many at their age are truncated in the next step."""
        observations, rewards, dones, extras = self.env.step(actions)
        self._stagger.step(dones, rewards)  # a time-out may hide a fall, so who fell is not known in every simulator
        if self._stagger.steps == 2 and "time_outs" not in extras:  # the first truncations take effect in this step
            warnings.warn(
                'the environment has no extras["time_outs"], so PPO takes truncated episodes for ended ones and does '
                "not bootstrap from them; let its step return them (in Isaac Lab: is_finite_horizon = False)",
                stacklevel=2,
            )
        if self._stagger.log_now:
            name = "episode" if "episode" in extras else "log"  # the runner reads one of them
            extras = {**extras, name: {**extras.get(name, {}), **self._stagger.log()}}
        return observations, rewards, dones, extras

    def get_observations(self) -> Any:
        """Return the observations of this moment."""
        return self.env.get_observations()

    def reset(self, *arguments: Any, **options: Any) -> Any:
        """Reset all copies, if the environment can; they are in lockstep then, and staggering starts anew."""
        found = self.env.reset(*arguments, **options)
        self._stagger.reset()
        return found

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """The environment's counters of steps."""
        return self.env.episode_length_buf  # type: ignore[no-any-return]

    @episode_length_buf.setter
    def episode_length_buf(self, counters: torch.Tensor) -> None:
        self.env.episode_length_buf = counters
        self._stagger.write_limits()

    @property
    def ages(self) -> torch.Tensor:
        """Ages of the states that the copies are in: 1 after a reset, 0 before the step of a truncation."""
        return self.staggering.ages

    @property
    def cuts(self) -> int:
        """Number of episodes truncated so far; waits for the device."""
        return self.staggering.cuts

    @property
    def phase(self) -> PhaseReport:
        """How far the ages of this moment are from the steady state; waits for the device."""
        return self.staggering.phase

    @property
    def lengths(self) -> EpisodeLengths | None:
        """Distribution of T of recent episodes, running ones included; waits for the device."""
        return self.staggering.lengths

    def __getattr__(self, name: str) -> Any:
        """Look for other attributes in the environment inside."""
        if name.startswith("_") or name == "env":  # as while it is being unpickled
            raise AttributeError(f"StaggeredVecEnv has no attribute {name!r}")
        return getattr(self.env, name)


def write_delays(env: Any, delays: DelaysLike | None = None, *, seed: int | None = None) -> torch.Tensor:
    """Write the counters of copies that were just reset, so that their first episodes end at designed times.

    This is for episodes that end by the time limit. A copy that falls before is reset by the environment, and what was
    written is lost.

    Args:
        env: an environment of rsl_rl's contract.
        delays: None spreads the counters evenly over the time limit, which is exact one time limit later; `Delays` from
            `design_delays`, or one whole number of steps for each copy, say how many steps before the end of their
            window each copy is to start its second episode.
        seed: seed of which copy gets which delay; None takes another one every time.

    Returns:
        The counters.

    Raises:
        WrapperError: if the environment has no counters.
        DelaysError: if the delays are none of these, or need a copy to live longer than the time limit.
    """
    stagger = CounterStagger(env)
    counters, limit = stagger.counters, np.asarray(torch.as_tensor(env.max_episode_length).cpu())
    num_envs, rng = len(counters), np.random.default_rng(None if seed is None else check_seed(seed, DelaysError))
    if delays is None:
        written = np.floor((rng.permutation(num_envs) + 0.5) / num_envs * limit)
    else:
        found = assigned_delays(delays, num_envs, same_step=True, rng=rng)
        wait = found.max() - found
        if (wait >= limit).any():
            raise DelaysError(
                f"delays reach over {int(wait.max()) + 1} steps, and the time limit is {int(limit.min())}; counters "
                "can only shorten an episode: use StaggeredVecEnv(env), or delays of a shorter window"
            )
        written = np.where(wait > 0, limit - wait, 0)
    stagger.write(torch.from_numpy(written).to(counters))
    return stagger.counters  # type: ignore[no-any-return]
