"""`stagger_wrap_fn`: staggered episodes in the trainers of brax and MuJoCo Playground.

    ppo.train(environment=env, wrap_env_fn=stagger_wrap_fn(), **settings)                # brax
    ppo.train(environment=env, wrap_env_fn=stagger_wrap_fn(wrap_for_brax_training), **settings)

Their EpisodeWrapper counts the steps of an episode in `info["steps"]` and truncates at the episode length. To truncate
an episode, its counter is set to the last step, so that the next step is the last one: truncated, reset and
bootstrapped by the trainer's own code; no reset more is computed.

`num_resets_per_eval` resets all environments together, from outside, so that they are in lockstep again; staggering
then begins anew, by itself. Where that happens before an episode can end, later ages are never trained on, whatever
staggers: see `steadyrl audit-config`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from steadyrl.common.checks import MOST_STEPS, shown, whole_number
from steadyrl.errors import MissingExtraError, WrapperError
from steadyrl.integrations.jax import stagger

try:
    from brax.envs.base import Wrapper
    from brax.envs.wrappers.training import wrap as brax_wrap
except ImportError as error:
    raise MissingExtraError('this needs brax; install it with: pip install "steadyrl[brax]"') from error

KEY = "steadyrl"
"""Where the state of the law is in `state.info`."""


class StaggeredBrax(Wrapper):  # type: ignore[misc]
    """Staggers the episodes of environments that are wrapped for training, by their own step counters.

    Args:
        env: the environments in brax's EpisodeWrapper and an auto-reset, as from `brax.envs.training.wrap`.
        episode_length: the episode length of the EpisodeWrapper, in steps of the simulator.
        action_repeat: steps of the simulator per action.
    """

    def __init__(self, env: Any, episode_length: int, action_repeat: int = 1) -> None:
        super().__init__(env)
        self._length = whole_number("episode_length", episode_length, WrapperError, most=MOST_STEPS)
        self._repeat = whole_number("action_repeat", action_repeat, WrapperError, most=MOST_STEPS)
        self._max_age = -(-self._length // self._repeat)

    def reset(self, rng: jax.Array) -> Any:
        """Reset all environments, from one key for each."""
        if getattr(rng, "ndim", 0) != 2:  # brax takes keys of the old kind only
            raise WrapperError(
                f"the keys have shape {getattr(rng, 'shape', ())}; there must be one for each environment: "
                "jax.random.split(jax.random.PRNGKey(seed), number)"
            )
        state = self.env.reset(rng)
        if "steps" not in state.info:
            raise WrapperError(
                "the state has no info['steps'], the counter of brax's EpisodeWrapper, so episodes cannot be truncated "
                "by it; wrap the environment with brax.envs.training.wrap or Playground's wrap_for_brax_training first"
            )
        number = rng.shape[0]
        law = stagger.init(number, self._max_age, jax.random.fold_in(rng[0], number))
        return state.replace(info={**state.info, KEY: {"law": law, "late": jnp.zeros(number, dtype=bool)}})

    def step(self, state: Any, action: jax.Array) -> Any:
        """Step all environments."""
        own = _own(state)
        before = state.replace(info={name: value for name, value in state.info.items() if name != KEY})
        after = self.env.step(before, action)
        over = after.done.astype(bool)
        law, cut = stagger.step(own["law"], over & ~own["late"], late_cuts=True)
        steps = after.info["steps"]
        last = jnp.asarray(self._length - self._repeat, dtype=steps.dtype)
        info = {**_with_time_limits(after, self._length), "steps": jnp.where(cut, last, steps)}
        return after.replace(info={**info, KEY: {"law": law, "late": cut}})


def _with_time_limits(state: Any, length: int) -> dict[str, Any]:
    """Return the information of a state, in which episodes that ended by the time limit are marked as truncated.

    Playground's `full_reset=True` replaces the information of those that are over by that of the new episode, and
    trainers would take all time limits for ends. That shows in `episode_done`, which is then 0 where `done` is 1.
    """
    info: dict[str, Any] = state.info
    if "episode_done" not in info or "truncation" not in info:
        return info
    erased = (state.done != 0) & (info["episode_done"] == 0) & (info["steps"] >= length)
    return {**info, "truncation": jnp.where(erased, jnp.ones_like(info["truncation"]), info["truncation"])}


def stagger_wrap_fn(wrap: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a `wrap_env_fn` for one call of a trainer of brax, as `brax.training.agents.ppo.train.train`.

    A trainer wraps two environments, first the one for training, then the one for evaluation. Only the first one is
    staggered: episodes of an evaluation are complete.

    Args:
        wrap: how environments are wrapped for training; by default `brax.envs.training.wrap`. For MuJoCo Playground
            `mujoco_playground.wrapper.wrap_for_brax_training`.
    """
    if wrap is not None and not callable(wrap):
        raise WrapperError(
            f"wrap is {shown(wrap)}; it must be a function that wraps environments for training, or None"
        )
    wrapped: list[int] = []

    def wrap_env_fn(env: Any, episode_length: int = 1000, action_repeat: int = 1, **options: Any) -> Any:
        inner = (wrap or brax_wrap)(env, episode_length=episode_length, action_repeat=action_repeat, **options)
        wrapped.append(1)
        if len(wrapped) > 2:
            raise WrapperError(
                "this wrap_env_fn has already wrapped an environment for training and one for evaluation; call "
                "stagger_wrap_fn() again for each call of a trainer"
            )
        return StaggeredBrax(inner, episode_length, action_repeat) if len(wrapped) == 1 else inner

    return wrap_env_fn


def phase(state: Any) -> stagger.Phase:
    """Return how far the ages of the environments are from the steady state, from a state of `StaggeredBrax`."""
    return stagger.phase(_own(state)["law"])


def _own(state: Any) -> dict[str, Any]:
    """Return what StaggeredBrax keeps in a state, or raise WrapperError."""
    info = getattr(state, "info", None)
    if not isinstance(info, dict) or KEY not in info:
        raise WrapperError(
            f"the state has no info[{KEY!r}], in which StaggeredBrax keeps the law; take a state that its reset or "
            "step returned (a trainer's second environment, for evaluation, is not staggered)"
        )
    found: dict[str, Any] = info[KEY]
    return found
