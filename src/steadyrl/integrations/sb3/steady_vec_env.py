"""A VecEnv whose episodes are staggered, so that every batch is a fair sample, and stays one.

Episodes are cut short at the right times. To the learner a cut is a time limit: `dones[i]` with `TimeLimit.truncated`
and the `terminal_observation` from which it bootstraps, so that every transition is a real one and none is wasted. The
environment goes on with a fresh episode at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from steadyrl.common.checks import shown
from steadyrl.environments.returned import as_info, as_parts
from steadyrl.errors import WrapperError
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.live.designed_staggering import DelaysLike, make_staggering
from steadyrl.live.phase import PhaseReport
from steadyrl.wrappers.lost_copies import NamingLostCopies, notice_deaths
from steadyrl.wrappers.rows import take_rows, write_rows
from steadyrl.wrappers.vectors import as_seed


class SteadyVecEnv(VecEnv):
    """A bare VecEnv whose episodes are staggered.

    Wrap the bare VecEnv first, and put `VecNormalize`, `VecFrameStack`, `VecMonitor` and the like on top. Episodes that
    were cut have `infos[i]["staggered"]`; a `Monitor` underneath leaves them out of its statistics, a `VecMonitor` on
    top does not.

    To Stable-Baselines3 this is a VecEnv of its own, not a `VecEnvWrapper`. So an evaluation environment needs no such
    layer: with training in `VecNormalize(SteadyVecEnv(venv))`, an `EvalCallback` takes `VecNormalize(eval_venv)`.

    Args:
        venv: a DummyVecEnv, SubprocVecEnv, EnvPoolVecEnv, or another VecEnv that is no wrapper.
        delays: "auto" (the default) keeps the ages of the environments as close to the steady state as they can be at
            every step (`StaggerController`); `Delays`, as from `design_delays`, or one whole number of steps per
            environment, cut each environment once after each reset of all.
        seed: seed of the choice of environments to cut.
        tolerance: with delays, the distance (total variation) up to which `phase` calls batches fair.
        n_steps: with delays, the number of steps in the batches that `phase` reports on; with "auto" it reports on the
            ages of the moment.

    Raises:
        WrapperError: if `venv` is a wrapper, or its environments cannot be reset before an episode's end.
        DelaysError: if the delays are none of these.
        CopyLostError: later, if an environment raises or its process dies; its message says which one.
    """

    def __init__(
        self,
        venv: VecEnv,
        delays: DelaysLike = "auto",
        *,
        seed: int | None = None,
        tolerance: float = 0.01,
        n_steps: int = 16,
    ) -> None:
        _check_bare(venv)
        notice_deaths(venv)
        self.venv = venv
        self.staggering = make_staggering(
            venv.num_envs, delays, same_step=True, tolerance=tolerance, n_steps=n_steps, seed=as_seed(seed)
        )
        super().__init__(venv.num_envs, venv.observation_space, venv.action_space)
        self._ready = False  # whether there was a reset

    @property
    def phase(self) -> PhaseReport:
        """How far the ages of the moment ("auto"), or in the last batch, are from those in the long run."""
        return self.staggering.phase

    @property
    def lengths(self) -> EpisodeLengths | None:
        """Distribution of T of recent episodes, running ones included; None if none has ended yet."""
        return self.staggering.lengths

    @property
    def ages(self) -> Any:
        """Ages of the states that the environments are in; 1 after a reset."""
        return self.staggering.ages.copy()

    @property
    def cuts(self) -> int:
        """Number of episodes cut short so far."""
        return self.staggering.cuts

    @property
    def settled(self) -> bool:
        """Whether no more cuts will come, however the ages look; never with "auto"."""
        return self.staggering.settled

    @property
    def unwrapped(self) -> VecEnv:
        """The VecEnv inside."""
        return self.venv.unwrapped

    def reset(self) -> Any:
        """Reset all environments; they are in lockstep then, and staggering starts anew."""
        with NamingLostCopies(self.venv):
            observations = self.venv.reset()
        self._ready = True
        self.staggering.reset()
        self.reset_infos = list(self.venv.reset_infos)
        return observations

    def step_async(self, actions: Any) -> None:
        """Begin a step."""
        if not self._ready:
            raise WrapperError("step was called before the first reset; call reset first: env.reset()")
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        """Finish the step, and cut the episodes whose time has come."""
        with NamingLostCopies(self.venv):
            observations, rewards, found, infos = self.venv.step_wait()
        dones = np.asarray(found, dtype=bool)  # SubprocVecEnv passes on whatever the environments call true
        for i in np.flatnonzero(dones):
            self.reset_infos[i] = self.venv.reset_infos[i]
        cut = self.staggering.step(dones)
        if cut.any():
            infos = list(infos)
            ids = np.flatnonzero(cut).tolist()
            with NamingLostCopies(self.venv):
                fresh = self.venv.env_method("reset", indices=ids)
            for i, answer in zip(ids, fresh, strict=True):
                first, info = self._as_reset(i, answer)
                infos[i].update(
                    {
                        "terminal_observation": take_rows(observations, i),
                        "TimeLimit.truncated": True,
                        "staggered": True,
                    }
                )
                write_rows(observations, i, first)
                self.reset_infos[i] = info
            dones = dones | cut
        return observations, rewards, dones, infos

    def _as_reset(self, i: int, answer: Any) -> tuple[Any, Any]:
        """Return first observation and info of an environment that was reset, or raise WrapperError that names it."""
        try:
            first, info = answer
            return as_parts(self.observation_space, first), as_info(info)
        except (TypeError, ValueError) as error:
            raise WrapperError(
                f"the reset of environment {i} returned {shown(answer)}; it must return an observation of "
                f"{self.observation_space} and a dict of infos"
            ) from error

    def close(self) -> None:
        """Close the environments."""
        self.venv.close()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Set the seeds of the environments for the next reset."""
        return self.venv.seed(seed)

    def set_options(self, options: Any = None) -> None:
        """Set the options of the environments for the next reset."""
        self.venv.set_options(options)

    def render(self, mode: str | None = None) -> Any:
        """Render the environments."""
        return self.venv.render(mode=mode)

    def get_images(self) -> Sequence[Any]:
        """Return a picture of each environment, if it was made with a render mode."""
        return self.venv.get_images()

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all environments have this attribute."""
        return self.venv.has_attr(attr_name)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of each environment."""
        return self.venv.get_attr(attr_name, indices)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the environments."""
        self.venv.set_attr(attr_name, value, indices)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call a method of the environments."""
        return self.venv.env_method(method_name, *method_args, indices=indices, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return whether each environment is wrapped in this class."""
        return self.venv.env_is_wrapped(wrapper_class, indices=indices)

    def __getattr__(self, name: str) -> Any:
        """Look for other attributes in the VecEnv inside."""
        if name.startswith("_") or name == "venv":  # as while it is being unpickled
            raise AttributeError(f"SteadyVecEnv has no attribute {name!r}")
        return getattr(self.venv, name)


def find_steady_vec_env(env: Any) -> SteadyVecEnv | None:
    """Return the SteadyVecEnv under Stable-Baselines3's wrappers, or None if there is none."""
    while isinstance(env, VecEnvWrapper):
        env = env.venv
    return env if isinstance(env, SteadyVecEnv) else None


def _check_bare(venv: VecEnv) -> None:
    if not isinstance(venv, VecEnv):
        raise WrapperError(
            f"venv is {type(venv).__name__}, not a VecEnv of Stable-Baselines3; make one with make_vec_env, or use "
            "make_steady_vec_env. For Gymnasium's vector environments there is steadyrl.StaggeredVectorEnv"
        )
    if isinstance(venv, VecEnvWrapper | SteadyVecEnv):
        name = type(venv).__name__
        raise WrapperError(
            f"venv is a {name}; when an episode is cut, its reset would go past the {name}, which would miss it. Wrap "
            f"the bare VecEnv first and put the {name} on top: {name}(SteadyVecEnv(venv), ...)"
        )
    if any(venv.env_is_wrapped(EpisodicLifeEnv)):
        raise WrapperError(
            "these environments are wrapped in EpisodicLifeEnv, whose reset goes on with the running game while "
            "lives are left, so that single environments cannot restart; make them with terminal_on_life_loss=False"
        )
    if venv.has_attr("allow_early_resets") and not all(venv.get_attr("allow_early_resets")):
        raise WrapperError(
            "the environments' Monitor has allow_early_resets=False, so that no episode can be cut short; leave "
            "that argument out"
        )
