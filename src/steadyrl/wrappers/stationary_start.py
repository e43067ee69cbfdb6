"""One environment whose first reset is an exact draw from the steady state."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from steadyrl.common.checks import whole_number
from steadyrl.errors import WrapperError
from steadyrl.wrappers.acting import generator_after_reset, single_actor
from steadyrl.wrappers.arguments import check_single

_MOST = 100_000  # episodes tried before giving up


class StationaryStart(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Draws the first state exactly from the steady state, given that it is not terminal; later resets are unchanged.

    An episode of l actions is accepted with probability l / limit, which makes long episodes likelier in proportion to
    their steps (the inspection paradox). The accepted one is replayed from its seed up to one of its l states, drawn
    uniformly. This needs limit / E[l] trials on average, a limit on the steps of an episode, and an environment that
    replays exactly, which is checked. A TimeLimit belongs inside: one around this wrapper does not count the
    steps that were replayed.

    Args:
        env: the environment.
        policy: the policy that acts: an object with `act(observations, rng)`, a function of one observation, or None
            for random actions.
        limit: maximum number of actions in an episode; by default the environment's own (`spec.max_episode_steps`).

    Example:
        >>> env = StationaryStart(gymnasium.make("steadyrl/StateSweep-v0", n=10), limit=9)
        >>> env.reset(seed=0)[0] in range(1, 10), env.reset()[0]
        (True, 1)
    """

    def __init__(self, env: gymnasium.Env[Any, Any], policy: Any = None, *, limit: int | None = None) -> None:
        check_single(env, "StationaryStart", "call pre_roll(envs, design_delays(lengths), policy) instead of its reset")
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, policy=policy, limit=limit)
        gymnasium.Wrapper.__init__(self, env)
        if limit is not None:
            whole_number("the limit on an episode's actions", limit, WrapperError)
        spec = env.spec
        found = limit if limit is not None else (None if spec is None else spec.max_episode_steps)
        if found is None or found < 1:
            raise WrapperError(
                f"the limit on an episode's actions is {found}; an exact stationary start accepts episodes with "
                "probability length / limit, so give limit=..., or add a TimeLimit"
            )
        self.limit = int(found)
        self._policy = policy
        self._started = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the first time, to a state drawn from the steady state."""
        if self._started:
            return self.env.reset(seed=seed, options=options)
        self._started = True
        self.env.reset(seed=seed, options=options)
        drawn = generator_after_reset(self, seed, None).integers(2**63)
        rng = np.random.default_rng(int(drawn))  # trials reseed the environment's own
        for _ in range(_MOST):
            trial = int(rng.integers(2**31))
            length, last, _ = self._play(trial, options, self.limit)
            if rng.random() * self.limit < length:
                break
        else:
            raise WrapperError(f"none of {_MOST:,} episodes was accepted; is the limit of {self.limit:,} far too high?")
        self._check_replay(trial, options, length, last)
        step = int(rng.integers(length))
        _, observation, info = self._play(trial, options, step)
        return observation, info

    def _play(self, seed: int, options: dict[str, Any] | None, steps: int) -> tuple[int, Any, dict[str, Any]]:
        """Play an episode for at most `steps` steps; return the steps taken, the last observation and its info."""
        act = single_actor(self._policy, self.action_space, np.random.default_rng([seed, 1]))
        observation, info = self.env.reset(seed=seed, options=options)
        for step in range(1, steps + 1):
            observation, _, terminated, truncated, info = self.env.step(act(observation))
            if terminated or truncated:
                return step, observation, info
        if steps == self.limit:
            raise WrapperError(f"an episode goes on after {self.limit:,} actions, the limit given; raise the limit")
        return steps, observation, info

    def _check_replay(self, seed: int, options: dict[str, Any] | None, steps: int, observation: Any) -> None:
        """Raise if playing the episode once more from its seed ends differently."""
        taken, again, _ = self._play(seed, options, self.limit)
        if taken != steps or not _same(observation, again):
            raise WrapperError(
                f"the environment (or the policy) is not deterministic: an episode from seed {seed} ended after "
                f"{steps} steps in {observation!r}, and replayed after {taken} in {again!r}; a stationary start "
                "replays episodes from their seeds, so use PreRolledStart instead"
            )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"))
