"""A vector environment brought to steady state by cutting episodes short at the right times: nothing is thrown away."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from steadyrl.errors import WrapperError
from steadyrl.lengths.distribution import EpisodeLengths
from steadyrl.live.designed_staggering import DelaysLike, make_staggering
from steadyrl.live.phase import PhaseReport
from steadyrl.wrappers.lost_copies import NamingLostCopies
from steadyrl.wrappers.partial_resets import PartialResets
from steadyrl.wrappers.phase_monitor import PhaseMonitor
from steadyrl.wrappers.record_fair_statistics import RecordFairStatistics
from steadyrl.wrappers.vectors import (
    AnyVectorWrapper,
    as_seed,
    as_seeds,
    autoreset_mode,
    check_copies,
    check_inside,
    ended_copies,
    put_info,
    read_mask,
    single_observations,
    take_infos,
)


class StaggeredVectorEnv(AnyVectorWrapper):
    """Staggers the episodes of a vector environment, by early truncations.

    A cut is a truncation: `truncated` is True and `info["staggered"]` marks the environment, so that statistics can
    leave it out. Everything else happens as at a time limit, in the autoreset mode of the vector environment:

    * NEXT_STEP: the next step is the reset, its action is ignored and its reward is 0. (In most vector environments the
      simulator is stepped once more for nothing, since Gymnasium has no other way to restart one environment.)
    * SAME_STEP: the observation is that of the reset; the last one is in `info["final_obs"]`, its info in `final_info`.
    * DISABLED: reset it with `reset(options={"reset_mask": mask})`, as after any end.

    With delays="auto", the default, nothing about the lengths of episodes needs to be known beforehand: a
    `StaggerController` keeps the ages of the environments as close to the steady state as they can be, at every step
    from the first on, also while a policy learns. It takes about ln(mean episode length) cuts per environment in the
    first episode, and hardly any after it.

    Put wrappers that keep statistics (RecordEpisodeStatistics, NormalizeReward, NormalizeObservation) around this one,
    not inside. A vector environment that is neither Gymnasium's nor steadyrl's is reset and stepped once when it is
    wrapped, to find out whether single environments can be restarted in it (`partial_resets`).

    Args:
        env: the vector environment.
        delays: "auto"; or `Delays` (as from `design_delays`), or one whole number of steps per environment, which
            stagger the episodes once after each reset of all.
        seed: seed of the choice of environments to cut; by default that of `reset`.
        tolerance: with delays, the distance (total variation) up to which `phase` calls batches fair.
        n_steps: with delays, the number of steps in the batches that `phase` reports on; with "auto" it reports on the
            ages of the moment.

    Raises:
        WrapperError: if single environments cannot be restarted, a wrapper inside keeps statistics, or the spaces of
            the environments differ.
        DelaysError: if the delays are none of these.
        CopyLostError: later, if an environment raises or its process dies; its message says which one.

    Example:
        >>> import gymnasium, steadyrl
        >>> envs = gymnasium.make_vec("steadyrl/StateSweep-v0", num_envs=4, vectorization_mode="sync", n=5)
        >>> envs = StaggeredVectorEnv(envs, steadyrl.design_delays(steadyrl.EpisodeLengths.from_gymnasium([4])))
        >>> _ = envs.reset(seed=0)
        >>> for _ in range(50):
        ...     _ = envs.step(np.zeros(4, dtype=int))
        >>> sorted(envs.ages.tolist())  # T = 5 always: without the wrapper all would have one age
        [1, 3, 4, 5]
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        delays: DelaysLike = "auto",
        *,
        seed: int | None = None,
        tolerance: float = 0.01,
        n_steps: int = 16,
    ) -> None:
        self._mode = autoreset_mode(env)
        super().__init__(env)
        check_copies(env)
        check_inside(env, "StaggeredVectorEnv")
        self._seed = as_seed(seed)
        self._staggering = make_staggering(
            self.num_envs,
            delays,
            same_step=self._mode != AutoresetMode.NEXT_STEP,
            tolerance=tolerance,
            n_steps=n_steps,
            seed=self._seed,
        )
        self._resets = PartialResets(env)
        self._naming = NamingLostCopies(env)
        self._recorders = [layer for layer in _layers(env) if isinstance(layer, RecordFairStatistics)]
        self._monitors = [layer for layer in _layers(env) if isinstance(layer, PhaseMonitor)]
        for monitor in self._monitors:
            monitor.cured_by(self)
        self._unready = True  # until the first reset
        self._over = np.zeros(self.num_envs, dtype=bool)  # ended or cut in the last step, and not reset yet
        self._cut: Any = None  # those of them that were cut and are to be reset by us (NEXT_STEP)

    @property
    def phase(self) -> PhaseReport:
        """How far the ages of the moment ("auto"), or in the last batch, are from those in the long run."""
        return self._staggering.phase

    @property
    def lengths(self) -> EpisodeLengths | None:
        """Distribution of T of recent episodes, running ones included; None if none has ended yet."""
        return self._staggering.lengths

    @property
    def ages(self) -> Any:
        """Ages of the states that the environments are in; 1 after a reset."""
        return self._staggering.ages.copy()

    @property
    def cuts(self) -> int:
        """Number of episodes cut short so far."""
        return self._staggering.cuts

    @property
    def settled(self) -> bool:
        """Whether no more cuts will come, however the ages look; never with "auto"."""
        return self._staggering.settled

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments and start staggering anew; or those of options["reset_mask"], and go on."""
        mask = read_mask(options)
        seeds = as_seeds(seed, self.num_envs)
        if mask is not None and self._resets.by_flag:
            raise WrapperError(
                f"{type(self.unwrapped).__name__} ignores options['reset_mask'] and would reset all environments; "
                "leave it out, or use SyncVectorEnv (make_vec(id, vectorization_mode='sync'))"
            )
        with self._naming:
            found: tuple[Any, dict[str, Any]] = self.env.reset(
                seed=seeds,  # type: ignore[arg-type]  # Gymnasium's own vector environments take lists
                options=None if options is None else dict(options),
            )
        own: int | list[int] | None = None
        if seeds is not None and mask is None:
            own = seeds if isinstance(seeds, int) else [s or 0 for s in seeds]
            own = own if self._seed is None else self._seed
        self._unready = False
        self._staggering.reset(mask, seed=own)
        kept = np.zeros(self.num_envs, dtype=bool) if mask is None else ~mask
        self._over = self._over & kept
        if self._cut is not None:
            self._cut = self._cut & kept if (self._cut & kept).any() else None
        return found

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments, and cut the episodes whose time has come."""
        if self._unready or self._mode is AutoresetMode.DISABLED:
            self._check_ready()
        try:
            if self._cut is None:
                observations, rewards, terminated, truncated, infos = self.env.step(actions)
            else:
                observations, rewards, terminated, truncated, infos = self._step_after_cuts(actions)
            done = ended_copies(terminated, truncated, self.num_envs)
            if self._mode is AutoresetMode.NEXT_STEP and np.count_nonzero(done & self._over):
                self._complain(done)
            cut = self._staggering.step(done)
            if not np.count_nonzero(cut):
                self._over = done
                return observations, rewards, terminated, truncated, infos
            self._over = done | cut
            observations, infos = self._end(observations, infos, cut)
            return observations, rewards, terminated, truncated | cut, infos
        except Exception as error:  # a context manager would cost more, at every step
            self._naming.name(error)
            raise

    def _step_after_cuts(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; for those that were cut in the step before, this step is their reset (NEXT_STEP)."""
        ended, self._cut = self._cut, None
        if self._resets.by_flag:
            self._resets.mark(ended)
            for recorder in self._recorders:
                recorder.restarting(ended)
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        observations, infos = self._restarted(observations, infos, ended)
        rewards, terminated, truncated = (
            np.where(ended, 0, x).astype(x.dtype) for x in (rewards, terminated, truncated)
        )
        return observations, rewards, terminated, truncated, infos

    def _check_ready(self) -> None:
        if self._unready:
            raise WrapperError("step was called before the first reset; call reset first: envs.reset(seed=...)")
        if self._mode == AutoresetMode.DISABLED and np.count_nonzero(self._over):
            raise WrapperError(
                f"copies {np.flatnonzero(self._over).tolist()} ended in the last step and were not reset; with "
                "autoreset disabled, call reset(options={'reset_mask': terminated | truncated}) before the next step"
            )

    def _restarted(self, observations: Any, infos: dict[str, Any], cut: Any) -> tuple[Any, dict[str, Any]]:
        """Return the step with these environments reset; what their last step said is dropped."""
        if self._resets.by_flag:
            for monitor in self._monitors:
                monitor.restarted(cut)
            return observations, infos
        infos, copies = dict(infos), np.flatnonzero(cut).tolist()
        take_infos(infos, copies)
        observations, reset_infos = self._resets.reset(cut, observations)
        for i, info in zip(copies, take_infos(reset_infos, copies), strict=True):
            put_info(self, infos, info, i)
        return observations, infos

    def _end(self, observations: Any, infos: dict[str, Any], cut: Any) -> tuple[Any, dict[str, Any]]:
        """Show these environments as truncated, in the autoreset mode of the vector environment."""
        infos, copies = dict(infos), np.flatnonzero(cut).tolist()
        if self._mode != AutoresetMode.SAME_STEP:
            self._cut = cut if self._mode == AutoresetMode.NEXT_STEP else None
            for i in copies:
                put_info(self, infos, {"staggered": True}, i)
            return observations, infos
        final, ended = single_observations(self.env, observations, cut), take_infos(infos, copies)
        observations, reset_infos = self._resets.reset(cut, observations)
        begun = take_infos(reset_infos, copies)
        for i, observation, info, first in zip(copies, final, ended, begun, strict=True):
            marks = {"final_obs": observation, "final_info": {**info, "staggered": True}, "staggered": True}
            put_info(self, infos, {**first, **marks}, i)
        return observations, infos

    def _complain(self, done: Any) -> None:
        copies = np.flatnonzero(done & self._over).tolist()
        raise WrapperError(
            f"copies {copies} ended in the very step of their reset: an episode without an action, in which no policy "
            "acts. Mend the environment's reset, or draw another start there"
        )


def _layers(env: Any) -> list[Any]:
    """Return the vector environment and all that it wraps, from the outside in."""
    found = [env]
    while isinstance(found[-1], VectorWrapper):
        found.append(found[-1].env)
    return found
