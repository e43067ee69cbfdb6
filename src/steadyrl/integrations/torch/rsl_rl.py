"""rsl_rl: staggered episodes for every environment of its contract, without a reset of our own.

Environments for rsl_rl count the steps of their episodes in `episode_length_buf`. At `max_episode_length` they reset a
copy themselves and report a time-out, from which PPO bootstraps. Whoever writes that counter truncates an episode in
the next step, by the environment's own way. There are two uses of it.

- `write_delays` writes all counters once, before training. It replaces `init_at_random_ep_len=True` by counters that
  are spread evenly. Nothing runs beside the environment, and nothing is noticed of copies that fall early.
- `StaggeredVecEnv` watches whose episode ended, and truncates through the counter whoever is too many at their age. So
  it serves copies that fall early, too, and a policy that learns.

A copy whose counter was written sees that counter for one step. Rewards and observations that are functions of the
counter (a phase of a gait, the time that is left) are off in that step, as they are with `init_at_random_ep_len`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from steadyrl.common.checks import check_seed, shown, whole_number
from steadyrl.errors import DelaysError, MissingExtraError, WrapperError
from steadyrl.integrations.torch.stagger import TorchStagger
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
    environment reports it as a time-out. Three numbers go to the runner's logger through `extras["log"]`:
    `steady/phase_distance`, `steady/in_lockstep` and `steady/ep_len_mean` (`TorchStagger.log`).

    Leave `init_at_random_ep_len` at False: random counters shorten first episodes, so lengths are learnt more slowly.

    Args:
        env: an environment of rsl_rl's contract that was just reset, and resets copies at `max_episode_length`.
        seed: seed of the choice between copies of the same age; None takes another one every time.
        log_interval: steps between two entries in `extras["log"]`; 0 leaves the log alone.

    Raises:
        WrapperError: if the environment has no counters.
        StaggerError: later, if a copy goes on whose counter was written.

    Example:
        >>> env = StaggeredVecEnv(env)  # doctest: +SKIP
        >>> OnPolicyRunner(env, settings).learn(1500)  # doctest: +SKIP
    """

    def __init__(self, env: Any, *, seed: int | None = None, log_interval: int = 16) -> None:
        counters = _counters(env)
        self.env = env
        self.log_interval = log_interval and whole_number("log_interval", log_interval, WrapperError)
        limit = torch.as_tensor(env.max_episode_length).max()
        self.staggering = TorchStagger(
            env.num_envs, device=counters.device, late_cuts=True, max_age=int(limit) + 2, seed=seed
        )
        self._steps = 0

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step all copies; those that are too many at their age are truncated in the next step."""
        observations, rewards, dones, extras = self.env.step(actions)
        cut = self.staggering.step(dones)
        counters = self.env.episode_length_buf
        limit = torch.as_tensor(self.env.max_episode_length, device=counters.device)
        _write(self.env, torch.where(cut, limit.to(counters.dtype), counters))
        self._steps += 1
        if self.log_interval and self._steps % self.log_interval == 0:
            name = "episode" if "episode" in extras else "log"  # the runner reads one of them
            extras = {**extras, name: {**extras.get(name, {}), **self.staggering.log()}}
        return observations, rewards, dones, extras

    def get_observations(self) -> Any:
        """Return the observations of this moment."""
        return self.env.get_observations()

    def reset(self, *arguments: Any, **options: Any) -> Any:
        """Reset all copies, if the environment can; they are in lockstep then, and staggering starts anew."""
        found = self.env.reset(*arguments, **options)
        self.staggering.reset()
        return found

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """The environment's counters of steps."""
        return self.env.episode_length_buf  # type: ignore[no-any-return]

    @episode_length_buf.setter
    def episode_length_buf(self, counters: torch.Tensor) -> None:
        self.env.episode_length_buf = counters

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
    counters, limit = _counters(env), np.asarray(torch.as_tensor(env.max_episode_length).cpu())
    rng = np.random.default_rng(None if seed is None else check_seed(seed, DelaysError))
    if delays is None:
        written = np.floor((rng.permutation(env.num_envs) + 0.5) / env.num_envs * limit)
    else:
        found = assigned_delays(delays, env.num_envs, same_step=True, rng=rng)
        wait = found.max() - found
        if (wait >= limit).any():
            raise DelaysError(
                f"delays reach over {int(wait.max()) + 1} steps, and the time limit is {int(limit.min())}; counters "
                "can only shorten an episode: use StaggeredVecEnv(env), or delays of a shorter window"
            )
        written = np.where(wait > 0, limit - wait, 0)
    _write(env, torch.from_numpy(written).to(counters))
    return env.episode_length_buf  # type: ignore[no-any-return]


def _counters(env: Any) -> torch.Tensor:
    """Return an environment's counters of steps, checked."""
    counters, limit = getattr(env, "episode_length_buf", None), getattr(env, "max_episode_length", None)
    if not isinstance(counters, torch.Tensor) or counters.shape != (env.num_envs,) or limit is None:
        raise WrapperError(
            f"env is {type(env).__name__} with episode_length_buf {shown(counters)} and max_episode_length "
            f"{shown(limit)}; rsl_rl's environments have a tensor with one counter for each copy, and a time limit, "
            "through which episodes are truncated"
        )
    return counters


def _write(env: Any, values: torch.Tensor) -> None:
    """Write the counters in place, so that they remain a tensor that the environment may change anywhere."""
    counters = env.episode_length_buf
    counters.copy_(values)
    env.episode_length_buf = counters  # where it is a property that returns a copy
