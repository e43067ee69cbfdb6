"""Copies of an existing VecEnv brought to steady state, and kept there.

Each copy's episode is cut short once, at the time that its delay says. To the learner a cut is a time limit:
`dones[i]` with `TimeLimit.truncated` and the `terminal_observation` from which it bootstraps, so that every transition
is a real one and none is wasted. The copy goes on with a fresh episode at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from steadyrl.errors import WrapperError
from steadyrl.live.phase import PhaseReport
from steadyrl.live.staggering import DelaysLike, Restagger
from steadyrl.wrappers.rows import row_of, write_rows
from steadyrl.wrappers.vectors import NamingLostCopies, as_seed


class SteadyVecEnv(VecEnvWrapper):
    """A bare VecEnv whose copies are staggered.

    Wrap it first, and put `VecNormalize`, `VecFrameStack`, `VecMonitor` and the like on top. Episodes that were
    cut have `infos[i]["staggered"]`; a `Monitor` underneath leaves them out of its statistics, a `VecMonitor` on
    top does not.

    Under `VecNormalize`, Stable-Baselines3's `EvalCallback` wants the evaluation environment to have the same layers:
    `VecNormalize(SteadyVecEnv(eval_venv, [1] * n))` cuts nothing.

    Args:
        venv: a DummyVecEnv, SubprocVecEnv, EnvPoolVecEnv, or another that is no wrapper.
        delays: "auto" watches the copies' ages and staggers them whenever they are out of step; `Delays`, as from
            `design_delays`, or one whole number a copy, stagger them once after each reset of all.
        seed: of the order in which copies get their delays.
        tolerance: the distance from steady state that "auto" puts up with.
        n_steps: steps of the batches that "auto" watches.

    Raises:
        WrapperError: if `venv` is a wrapper, or its copies cannot be reset before an episode's end.
        DelaysError: if the delays are none of these.
        CopyLostError: later, if a copy raises or its process dies; its message says which one.
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
        self.staggering = Restagger(
            venv.num_envs,
            delays,
            same_step=True,
            tolerance=tolerance,
            n_steps=n_steps,
            rng=np.random.default_rng(as_seed(seed)),
        )
        super().__init__(venv)
        self._ready = False  # whether there was a reset

    @property
    def phase(self) -> PhaseReport:
        """How far the copies' ages are from steady state."""
        return self.staggering.tracker.report()

    def reset(self) -> Any:
        """Reset all copies; they are in step, and their delays start anew."""
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
        """Finish the step, and cut those whose time has come."""
        with NamingLostCopies(self.venv):
            observations, rewards, found, infos = self.venv.step_wait()
        dones = np.asarray(found, dtype=bool)  # SubprocVecEnv passes on whatever the environments call true
        for i in np.flatnonzero(dones):
            self.reset_infos[i] = self.venv.reset_infos[i]
        cut = self.staggering.cuts(dones)
        if cut.any():
            infos = list(infos)
            ids = np.flatnonzero(cut).tolist()
            with NamingLostCopies(self.venv):
                fresh = self.venv.env_method("reset", indices=ids)
            for i, (first, info) in zip(ids, fresh, strict=True):
                infos[i].update(
                    {
                        "terminal_observation": row_of(observations, i),
                        "TimeLimit.truncated": True,
                        "staggered": True,
                    }
                )
                write_rows(observations, i, first)
                self.reset_infos[i] = info
            dones = dones | cut
        return observations, rewards, dones, infos


def _check_bare(venv: VecEnv) -> None:
    if not isinstance(venv, VecEnv):
        raise WrapperError(
            f"venv is {type(venv).__name__}, not a VecEnv of Stable-Baselines3; make one with make_vec_env, or use "
            "make_steady_vec_env. For Gymnasium's vector environments there is steadyrl.StaggeredVectorEnv"
        )
    if isinstance(venv, VecEnvWrapper):
        name = type(venv).__name__
        raise WrapperError(
            f"venv is a {name}; when a copy is cut its reset would go past the {name}, which would miss it. Wrap the "
            f"bare VecEnv first and put the {name} on top: {name}(SteadyVecEnv(venv), ...)"
        )
    if any(venv.env_is_wrapped(EpisodicLifeEnv)):
        raise WrapperError(
            "these environments are wrapped in EpisodicLifeEnv, whose reset goes on with the running game while "
            "lives are left, so that a copy cannot restart; make them with terminal_on_life_loss=False"
        )
    if venv.has_attr("allow_early_resets") and not all(venv.get_attr("allow_early_resets")):
        raise WrapperError(
            "the environments' Monitor has allow_early_resets=False, so that no episode can be cut short; leave "
            "that out"
        )
