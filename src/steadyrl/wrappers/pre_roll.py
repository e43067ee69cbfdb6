"""Warm-up with staggered offsets: a vector environment that is at steady state from the first step of training."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from steadyrl.live.designed_staggering import assigned_delays
from steadyrl.wrappers.acting import batch_actor
from steadyrl.wrappers.lost_copies import NamingLostCopies
from steadyrl.wrappers.partial_resets import PartialResets
from steadyrl.wrappers.vectors import as_seed, autoreset_mode, check_copies, check_inside


def pre_roll(
    envs: VectorEnv[Any, Any, Any], delays: Any, policy: Any = None, *, seed: int | None = None
) -> tuple[Any, dict[str, Any]]:
    """Reset all environments and run each for its delay; call it instead of `envs.reset`.

    All environments are stepped together, so it takes as many steps as the longest delay. Each is restarted when only
    its own delay is left to run. These steps are not used for learning.

    Args:
        envs: the vector environment.
        delays: `Delays` (as from `design_delays`), or one whole number of steps per environment.
        policy: the policy that acts: an object with `act(observations, rng)`, a function of the batched
            observations, or None for random actions. Give the policy that is about to be trained, since the ages become
            those under this policy.
        seed: seed for `envs.reset`, for the order of the delays and for the policy's noise.

    Returns:
        Observations and infos, as `reset` does. `infos["done"]` marks environments at the end of an episode: with
        NEXT_STEP their next step is the reset, as after any end, so start your script's `done` flags from it.

    Raises:
        WrapperError: if single environments cannot be restarted in this vector environment.
        DelaysError: if the delays are none of these.

    Example:
        >>> import gymnasium, steadyrl
        >>> envs = gymnasium.make_vec("steadyrl/StateSweep-v0", num_envs=5, vectorization_mode="sync", n=5)
        >>> lengths = steadyrl.EpisodeLengths.from_gymnasium([4])
        >>> observations, infos = pre_roll(envs, steadyrl.design_delays(lengths), seed=0)
        >>> sorted(observations.tolist()), int(infos["done"].sum())
        ([0, 1, 2, 3, 4], 1)
    """
    mode = autoreset_mode(envs)
    check_copies(envs)
    check_inside(envs, "pre_roll")
    seed = as_seed(seed)
    rng = np.random.default_rng(seed)
    delay = assigned_delays(delays, envs.num_envs, same_step=mode != AutoresetMode.NEXT_STEP, rng=rng)
    longest = int(delay.max())
    resets = PartialResets(envs)
    act = batch_actor(policy, envs.action_space, rng)
    done = np.zeros(envs.num_envs, dtype=bool)
    with NamingLostCopies(envs):
        observations, infos = envs.reset(seed=seed)
        for step in range(1, longest):
            restart = longest - delay == step
            if resets.by_flag and restart.any():
                resets.mark(restart)
            observations, _, terminated, truncated, infos = envs.step(act(observations))
            done = np.asarray(terminated | truncated)
            if mode == AutoresetMode.DISABLED:
                restart |= done
            if restart.any() and not resets.by_flag:
                observations, infos = resets.reset(restart, observations)
            done = done & ~restart
    left = done if mode == AutoresetMode.NEXT_STEP else np.zeros(envs.num_envs, dtype=bool)
    return observations, {**infos, "done": left, "_done": np.ones(envs.num_envs, dtype=bool)}
