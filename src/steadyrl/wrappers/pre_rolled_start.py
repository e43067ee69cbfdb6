"""One environment with a warm-up: its first reset runs ahead by a designed number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from steadyrl.common.checks import is_whole, whole_number
from steadyrl.errors import DelaysError
from steadyrl.lengths.delays import Delays
from steadyrl.lengths.distribution import LONGEST
from steadyrl.wrappers.acting import generator_after_reset, single_actor
from steadyrl.wrappers.arguments import as_delays, as_plain, check_single


class PreRolledStart(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Runs D - 1 steps within the first reset and returns the observation reached; later resets are unchanged.

    An observation after a reset is never terminal, so delays are those of a stream without terminal states, and resets
    during the warm-up take no step. Environments that start so are at steady state where resets happen within a step
    (SAME_STEP, Stable-Baselines3). In a NEXT_STEP stream the terminal states are missing at first, a share of 1/E[T];
    `pre_roll` has these too. A TimeLimit belongs inside: one around this wrapper does not count the steps of
    the warm-up.

    Args:
        env: the environment.
        delays: `Delays` (as from `design_delays`), or P(D = k) for k = 0, 1, ... as a list, or one delay D, at least 1.
        policy: the policy that acts during the warm-up: an object with `act(observations, rng)`, a function of one
            observation, or None for random actions.

    Example:
        >>> env = PreRolledStart(gymnasium.make("steadyrl/StateSweep-v0", n=10), 4)
        >>> env.reset(seed=0)[0], env.reset()[0]
        (4, 1)
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], delays: Delays | Sequence[float] | int, policy: Any = None
    ) -> None:
        check_single(env, "PreRolledStart", "call pre_roll(envs, delays, policy) instead of its reset")
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, delays=as_plain(delays), policy=policy)
        gymnasium.Wrapper.__init__(self, env)
        self._delays: Delays | int
        if is_whole(delays):
            self._delays = whole_number("the delay", delays, DelaysError, most=LONGEST)
        else:
            self._delays = as_delays(delays).for_same_step()
        self._policy = policy
        self._started = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the first time, warm up."""
        observation, info = self.env.reset(seed=seed, options=options)
        if self._started:
            return observation, info
        self._started = True
        rng = generator_after_reset(self, seed, None)
        delay = self._delays if isinstance(self._delays, int) else int(self._delays.draw(1, rng)[0])
        act = single_actor(self._policy, self.action_space, rng)
        for _ in range(delay - 1):
            observation, _, terminated, truncated, info = self.env.step(act(observation))
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        return observation, info
