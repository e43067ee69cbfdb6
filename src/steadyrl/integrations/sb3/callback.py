"""Whether the batches that an algorithm of Stable-Baselines3 learns from are at steady state, in its own log."""

from __future__ import annotations

import math
import warnings

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import unwrap_vec_wrapper

from steadyrl.errors import MixingTimeError, PhaseLockWarning
from steadyrl.integrations.sb3.steady_vec_env import SteadyVecEnv
from steadyrl.lengths.renewal import phase_mixing_time
from steadyrl.live.phase import PhaseReport, PhaseTracker

_WITHOUT_ROLLOUTS = 16  # steps of a batch, for algorithms that have none of their own
_BEYOND_DOUBT = 1.5  # times the noise of one batch in a thousand: some 5 standard errors, for many batches
_NEVER = 100  # average episode lengths after which mixing is not worth waiting for
_MOVED = 0.02  # relative change of E[T] after which the mixing time is computed anew
_OLD = 50  # reports after which it is in any case


class SteadyStateCallback(BaseCallback):
    """Logs how far batches are from steady state, at the end of every rollout.

    It watches ends of episodes alone, so it works with every vector environment and algorithm, and logs

    - `steady/phase_distance`: of the ages in the batch from those at steady state, without the bias of few copies;
    - `steady/average_episode_length`: E[T] of recent episodes, the reset included: `ep_len_mean` + 1, without its lag;
    - `steady/mixing_time`: the steps after which copies that were all reset together would be at steady state by
      themselves; inf if they never are, or not within a hundred average episode lengths.

    It warns once, by `PhaseLockWarning`, when the copies are in step and no `SteadyVecEnv` is at work on it.

    Args:
        n_steps: steps of a batch; None takes the algorithm's n_steps, or 16 if it has none (DQN, SAC).
        tolerance: the distance that counts as steady state.
        verbose: as for every callback.
    """

    def __init__(self, n_steps: int | None = None, *, tolerance: float = 0.01, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._n_steps, self._tolerance = n_steps, tolerance
        self._tracker: PhaseTracker | None = None
        self._warned = False
        self._cut = False  # whether copies were cut in this batch
        self._reported = 0
        self._mixing_time, self._mixing_mean, self._mixing_at = math.nan, math.nan, 0

    @property
    def report(self) -> PhaseReport | None:
        """What the last complete batch showed; None before training."""
        return None if self._tracker is None else self._tracker.report()

    def _on_training_start(self) -> None:
        copies = self.training_env.num_envs
        if self._tracker is None or self._tracker.num_envs != copies:
            # Off-policy algorithms have an n_steps too, that of their returns.
            rollout = self.model.n_steps if isinstance(self.model, OnPolicyAlgorithm) else _WITHOUT_ROLLOUTS
            n_steps = rollout if self._n_steps is None else self._n_steps
            self._tracker = PhaseTracker(copies, same_step=True, n_steps=n_steps, tolerance=self._tolerance)
        elif self.locals.get("reset_num_timesteps", True):  # then learn() has reset all copies
            self._tracker.reset()

    def _on_step(self) -> bool:
        assert self._tracker is not None
        dones = np.asarray(self.locals["dones"], dtype=bool)
        cut = None
        if dones.any():
            cut = np.zeros_like(dones)
            for i in np.flatnonzero(dones):
                cut[i] = self.locals["infos"][i].get("staggered", False)
            dones = dones & ~cut
            self._cut = self._cut or bool(cut.any())
        self._tracker.update(dones, cut)
        return True

    def _on_rollout_end(self) -> None:
        assert self._tracker is not None
        batches = self._tracker.report().steps // (self._tracker.num_envs * self._tracker.n_steps)
        if batches == self._reported:  # rollouts may be shorter than a batch
            return
        self._reported = batches
        report = self._tracker.report()
        if math.isfinite(report.average_episode_length):
            self.logger.record("steady/average_episode_length", report.average_episode_length)
            self.logger.record("steady/mixing_time", self._current_mixing_time(report.average_episode_length))
        if not math.isnan(report.distance):
            self.logger.record("steady/phase_distance", report.distance)
        beyond_doubt = report.phase_locked and report.distance > _BEYOND_DOUBT * report.noise
        if beyond_doubt and not (self._cut or self._warned):
            self._warn(report)
        self._cut = False

    def _current_mixing_time(self, mean: float) -> float:
        """In steps of the stream; computed anew only if episodes have changed, since it can take a while."""
        assert self._tracker is not None
        unchanged = abs(mean - self._mixing_mean) <= _MOVED * mean
        if unchanged and self._reported - self._mixing_at < _OLD:
            return self._mixing_time
        self._mixing_mean, self._mixing_at = mean, self._reported
        lengths = self._tracker.stream_lengths()
        assert lengths is not None
        try:
            longest = max(int(_NEVER * lengths.mean), 64)
            self._mixing_time = phase_mixing_time(lengths, self._tolerance, longest=longest)
        except MixingTimeError:
            self._mixing_time = math.inf
        return self._mixing_time

    def _warn(self, report: PhaseReport) -> None:
        steady = unwrap_vec_wrapper(self.training_env, SteadyVecEnv)
        if steady is not None and (steady.staggering.auto or steady.staggering.window_left):
            return  # the cure is at work
        assert self._tracker is not None
        what = (
            "wrap the bare VecEnv: SteadyVecEnv(venv), or make it with make_steady_vec_env"
            if steady is None
            else "the delays of its SteadyVecEnv do not fit these episodes: use delays='auto'"
        )
        warnings.warn(
            f"batches of {self._tracker.n_steps} steps are phase-locked: the ages of the {self._tracker.num_envs} "
            f"copies are {report.distance:.2f} away from steady state (chance alone: {report.noise:.2f}), so each "
            f"batch is a biased sample of the policy's data; {what}",
            PhaseLockWarning,
            stacklevel=2,
        )
        self._warned = True
