"""The paper's perturbation in a live environment: a detour through null states at the start of every episode."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from steadyrl.common.checks import is_number, shown
from steadyrl.common.detours import Perturbation
from steadyrl.errors import PerturbationError, WrapperError
from steadyrl.wrappers.acting import generator_after_reset
from steadyrl.wrappers.arguments import as_element, as_plain, check_single

_ARGUMENTS = {argument.name for argument in fields(Perturbation)}
_RECENT = 100  # episodes whose lengths "auto" averages


class PerturbedStarts(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Spends G steps in a null state before every episode, the first included.

    On the null state the observation is `null_observation`, the reward is 0, the action is ignored, and `info["null"]`
    is True; leave such steps out of the loss. After the detour the episode's first observation and the info of its
    reset are passed on unchanged, with reward 0.

    Null steps are not steps of the environment: a TimeLimit inside (as `gymnasium.make` puts it) does not count
    them, one around this wrapper does. Detours are drawn from `self.np_random`, so a reset with a seed is repeatable.

    Args:
        env: the environment.
        perturbation: a `Perturbation`, its epsilon (recursive), its arguments as a dictionary, or "auto": the paper's
            epsilon = 1 - 1/E[T], where E[T] is the mean over the last 100 episodes (since a reset with a seed).
        null_observation: the observation on the null state; by default the space's element nearest to zero.
        average_episode_length: E[T] that "auto" uses before the first episode has ended.

    Example:
        >>> env = PerturbedStarts(gymnasium.make("steadyrl/StateSweep-v0", n=3), Perturbation.from_detour([0, 0, 1]))
        >>> env.reset(seed=0)[1], env.step(0)[4]  # two null steps
        ({'null': True}, {'null': True})
        >>> env.step(0)  # the reset of the sweep
        (1, 0.0, False, False, {})
        >>> env.step(0)
        (2, 2.0, False, False, {})
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        perturbation: Perturbation | float | Mapping[str, Any] | str,
        *,
        null_observation: Any = None,
        average_episode_length: float = 10.0,
    ) -> None:
        check_single(
            env,
            "PerturbedStarts",
            "wrap every environment: make_vec(id, num_envs=n, vectorization_mode='sync', wrappers=[perturbed]), where "
            "perturbed is a function of one environment",
        )
        self._perturbation = _as_perturbation(perturbation)
        RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,
            perturbation="auto" if self._perturbation is None else _as_arguments(self._perturbation),
            null_observation=as_plain(null_observation),
            average_episode_length=average_episode_length,
        )
        gymnasium.Wrapper.__init__(self, env)
        Perturbation.for_average_episode_length(average_episode_length)
        space = env.observation_space
        self.null_observation = null_element(space) if null_observation is None else as_element(space, null_observation)
        if not space.contains(self.null_observation):
            raise WrapperError(
                f"null_observation is {shown(null_observation)}, which is not in the observation space {space}; a "
                "policy must be able to look at it (its action is ignored)"
            )
        self._rng: np.random.Generator | None = None
        self._lengths: deque[int] = deque(maxlen=_RECENT)
        self._first_guess = float(average_episode_length)
        self._left = 0  # null states still ahead, the present one included
        self._waiting: tuple[Any, dict[str, Any]] = (None, {})
        self._steps = 0

    @property
    def perturbation(self) -> Perturbation:
        """The perturbation that the next detour is drawn from."""
        if self._perturbation is not None:
            return self._perturbation
        mean = float(np.mean(self._lengths)) if self._lengths else self._first_guess
        return Perturbation.for_average_episode_length(mean)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and go on a detour before showing it."""
        found = self.env.reset(seed=seed, options=options)
        self._rng = generator_after_reset(self, seed, self._rng)
        if seed is not None:
            self._lengths.clear()  # so that the run can be repeated
        self._steps = 0
        self._left = int(self.perturbation.draw(1, rng=self._rng)[0])
        if self._left == 0:
            return found
        self._waiting = found
        return deepcopy(self.null_observation), {"null": True}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action; on the null state it is ignored."""
        if self._left > 0:
            self._left -= 1
            if self._left > 0:
                return deepcopy(self.null_observation), 0.0, False, False, {"null": True}
            observation, info = self._waiting
            self._waiting = (None, {})
            return observation, 0.0, False, False, info
        found = self.env.step(action)
        self._steps += 1
        if found[2] or found[3]:
            self._lengths.append(self._steps + 1)
        return found


def null_element(space: spaces.Space[Any]) -> Any:
    """Return the element of a space that is nearest to zero; for kinds without zero, a fixed sample.

    Example:
        >>> null_element(spaces.Box(1.0, 2.0, (2,))).tolist(), null_element(spaces.Discrete(3, start=5))
        ([1.0, 1.0], np.int64(5))
    """
    if isinstance(space, spaces.Box):
        return np.asarray(np.clip(0.0, space.low, space.high), dtype=space.dtype)
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(np.clip(0, space.start, space.start + space.n - 1))
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start, dtype=space.dtype).copy()
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, dtype=space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: null_element(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(null_element(part) for part in space.spaces)
    twin = deepcopy(space)  # the space's own generator is left alone
    twin.seed(0)
    return twin.sample()


def _as_perturbation(given: Any) -> Perturbation | None:
    if isinstance(given, Perturbation):
        return given
    if isinstance(given, str) and given == "auto":
        return None
    if isinstance(given, Mapping) and given and given.keys() <= _ARGUMENTS:
        return Perturbation(**given)
    if is_number(given):
        return Perturbation(float(given))
    raise PerturbationError(
        f"perturbation is {shown(given)}; it must be a Perturbation, its epsilon (strictly between 0 and 1), its "
        f"arguments as a dictionary ({', '.join(sorted(_ARGUMENTS))}), or 'auto', which takes 1 - 1/E[T] of recent "
        "episodes"
    )


def _as_arguments(perturbation: Perturbation) -> dict[str, Any]:
    """Return the arguments that make this perturbation again, as JSON can hold them."""
    if perturbation.detour is not None:
        return {"detour": list(perturbation.detour)}
    return {"epsilon": perturbation.epsilon, "recursive": perturbation.recursive}
