"""Many copies, brought to steady state by cutting each one's episode short once: nothing is thrown away."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from steadyrl.errors import WrapperError
from steadyrl.live.phase import PhaseReport
from steadyrl.live.staggering import DelaysLike, Restagger
from steadyrl.wrappers.vectors import (
    NamingLostCopies,
    as_seed,
    as_seeds,
    autoreset_mode,
    check_copies,
    check_inside,
    masked_reset,
    put_info,
    read_mask,
    single_observation,
    take_info,
)


class StaggeredVectorEnv(VectorWrapper[Any, Any, Any, Any, Any]):
    """Cuts each copy's episode short once, at a designed time, and is transparent ever after.

    A cut is a truncation: `truncated` is True and `info["staggered"]` marks the copy, so that statistics can leave it
    out. Everything else happens as at a time limit, in the mode of the environment:

    * NEXT_STEP: the next step is the reset, its action is ignored and its reward 0. (The copy's simulator is stepped
      once more, for nothing, since Gymnasium has no other way to restart one copy.)
    * SAME_STEP: the observation is the reset's; the last one is in `info["final_obs"]`, its info in `final_info`.
    * DISABLED: reset it with `reset(options={"reset_mask": mask})`, as after any end.

    With `delays="auto"` no lengths need be known beforehand: ages are watched, delays are designed from recent lengths,
    and copies are cut again whenever learning has brought them back into step.

    Put wrappers that keep statistics of copies (RecordEpisodeStatistics, NormalizeReward, NormalizeObservation) around
    this one, not inside.

    Args:
        env: the vector environment.
        delays: `Delays` (as from `design_delays`), one whole number a copy, or "auto".
        seed: of which copy gets which delay; None takes the seed of `reset`.
        tolerance: the distance from steady state that "auto" puts up with.
        n_steps: steps of the batches that "auto" watches; take those of an update.

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
        delays: DelaysLike,
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
        self._restagger = Restagger(
            self.num_envs,
            delays,
            same_step=self._mode != AutoresetMode.NEXT_STEP,
            tolerance=tolerance,
            n_steps=n_steps,
            rng=np.random.default_rng(self._seed),
        )
        self._naming = NamingLostCopies(env)
        self._ready = False  # whether there was a reset
        self._any_cut = False  # whether any copy was cut in the last step
        self._cut = np.zeros(self.num_envs, dtype=bool)  # cut in the last step (DISABLED: or ended), and not yet reset

    @property
    def phase(self) -> PhaseReport:
        """What the ages of the last batch say."""
        return self._restagger.tracker.report()

    @property
    def ages(self) -> Any:
        """The ages of the copies now: 1 after a reset."""
        return self._restagger.tracker.ages.copy()

    @property
    def staggerings(self) -> int:
        """How often the copies were staggered since all were reset."""
        return self._restagger.staggerings

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all copies, and start staggering anew; or those of options["reset_mask"], and go on."""
        mask = read_mask(options)
        seeds = as_seeds(seed, self.num_envs)
        with self._naming:
            found: tuple[Any, dict[str, Any]] = self.env.reset(
                seed=seeds,  # type: ignore[arg-type]  # Gymnasium's own vector environments take lists
                options=None if options is None else dict(options),
            )
        if seeds is not None and mask is None:
            of_reset = seeds if isinstance(seeds, int) else [s or 0 for s in seeds]
            self._restagger.rng = np.random.default_rng(of_reset if self._seed is None else self._seed)
        self._ready = True
        self._restagger.reset(mask)
        self._cut[slice(None) if mask is None else mask] = False
        return found

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all copies, and cut those whose time has come."""
        if not self._ready:
            raise WrapperError("step was called before the first reset; call reset first: envs.reset(seed=...)")
        if self._mode == AutoresetMode.DISABLED and self._cut.any():
            raise WrapperError(
                f"copies {np.flatnonzero(self._cut).tolist()} ended in the last step and were not reset; with "
                "autoreset disabled, call reset(options={'reset_mask': terminated | truncated}) before the next step"
            )
        if not (self._any_cut or self._restagger.window_left):
            return self._watched_step(actions)
        with self._naming:
            observations, rewards, terminated, truncated, infos = self.env.step(actions)
            if self._any_cut and self._cut.any():  # NEXT_STEP: this step is their reset
                ended, self._cut = self._cut, np.zeros(self.num_envs, dtype=bool)
                observations, infos = self._restart(observations, infos, ended)
                rewards, terminated, truncated = (
                    np.where(ended, 0, x).astype(x.dtype) for x in (rewards, terminated, truncated)
                )
            done = terminated | truncated
            if self._mode == AutoresetMode.NEXT_STEP and (done & self._restagger.tracker.restarting).any():
                self._complain(done)
            cut = self._restagger.cuts_if_any(done)
            self._any_cut = cut is not None
            if cut is not None:
                truncated = truncated | cut
                observations, infos = self._end(observations, infos, cut)
            if self._mode == AutoresetMode.DISABLED:
                self._cut = terminated | truncated
        return observations, rewards, terminated, truncated, infos

    def _watched_step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all copies where nobody is to be cut: nothing changes."""
        with self._naming:
            found: tuple[Any, Any, Any, Any, dict[str, Any]] = self.env.step(actions)
        self._restagger.watch(found[2], found[3])
        if self._mode == AutoresetMode.DISABLED:
            self._cut = found[2] | found[3]
        return found

    def _restart(self, observations: Any, infos: dict[str, Any], cut: Any) -> tuple[Any, dict[str, Any]]:
        """Reset these copies; what their last step said is dropped."""
        infos = dict(infos)
        for i in np.flatnonzero(cut).tolist():
            take_info(infos, i)
        observations, reset_infos = masked_reset(self.env, cut, observations)
        for i in np.flatnonzero(cut).tolist():
            put_info(self, infos, take_info(reset_infos, i), i)
        return observations, infos

    def _end(self, observations: Any, infos: dict[str, Any], cut: Any) -> tuple[Any, dict[str, Any]]:
        """Show these copies as truncated, in the mode of the environment."""
        infos = dict(infos)
        if self._mode != AutoresetMode.SAME_STEP:
            self._cut = cut
            for i in np.flatnonzero(cut).tolist():
                put_info(self, infos, {"staggered": True}, i)
            return observations, infos
        final = [
            (i, single_observation(self.env, observations, i), take_info(infos, i))
            for i in np.flatnonzero(cut).tolist()
        ]
        observations, reset_infos = masked_reset(self.env, cut, observations)
        for i, observation, info in final:
            ended = {"final_obs": observation, "final_info": {**info, "staggered": True}, "staggered": True}
            put_info(self, infos, {**take_info(reset_infos, i), **ended}, i)
        return observations, infos

    def _complain(self, done: Any) -> None:
        copies = np.flatnonzero(done & self._restagger.tracker.restarting).tolist()
        raise WrapperError(
            f"copies {copies} ended in the very step of their reset, an episode of no action, which no policy acts in; "
            "mend the environment's reset, or draw another start there"
        )
