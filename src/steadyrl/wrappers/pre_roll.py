"""Many copies, at steady state from the first step of training: run them for designed times, and throw that away."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from steadyrl.live.staggering import assigned_delays
from steadyrl.wrappers.acting import batch_actor
from steadyrl.wrappers.vectors import (
    NamingLostCopies,
    as_seed,
    autoreset_mode,
    check_copies,
    check_inside,
    masked_reset,
)


def pre_roll(
    envs: VectorEnv[Any, Any, Any], delays: Any, policy: Any = None, *, seed: int | None = None
) -> tuple[Any, dict[str, Any]]:
    """Reset all copies and run each for its delay; call it instead of `envs.reset`.

    All copies are stepped together, so it takes as many steps as the longest delay; each is restarted when its own
    delay is left to run.

    Args:
        envs: the vector environment.
        delays: `Delays` (as from `design_delays`), or one whole number a copy.
        policy: what acts: it has `act(observations, rng)`, or is a function of the batched observations; None
            takes random actions. Take the policy that is about to be trained: ages are distributed as under this one.
        seed: as for `envs.reset`, and of the order of the delays and the policy's noise.

    Returns:
        Observations and infos, as `reset` does. `infos["done"]` says which copies stand at the end of an episode:
        with NEXT_STEP their next step is the reset, as after any end, so start your script's `done` flags from it.

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
    act = batch_actor(policy, envs.action_space, rng)
    done = np.zeros(envs.num_envs, dtype=bool)
    with NamingLostCopies(envs):
        observations, infos = envs.reset(seed=seed)
        for step in range(1, longest):
            observations, _, terminated, truncated, infos = envs.step(act(observations))
            done = terminated | truncated
            restart = longest - delay == step
            if mode == AutoresetMode.DISABLED:
                restart |= done
            if restart.any():
                observations, infos = masked_reset(envs, restart, observations)
                done = done & ~restart
    left = done if mode == AutoresetMode.NEXT_STEP else np.zeros(envs.num_envs, dtype=bool)
    return observations, {**infos, "done": left, "_done": np.ones(envs.num_envs, dtype=bool)}
