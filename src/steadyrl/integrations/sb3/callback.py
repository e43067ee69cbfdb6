"""Whether the batches that an algorithm of Stable-Baselines3 learns from are fair samples, in its own log."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from steadyrl.common.checks import check_tolerance, whole_number
from steadyrl.errors import DelaysError, PhaseLockWarning
from steadyrl.integrations.sb3.steady_vec_env import find_steady_vec_env
from steadyrl.live.phase import PhaseReport, PhaseTracker

_WITHOUT_ROLLOUTS = 16  # steps of a batch, for algorithms that have none of their own


class SteadyStateCallback(BaseCallback):
    """Logs at the end of every rollout whether the environments run in lockstep.

    It watches the ends of episodes alone, so it works with every vector environment and algorithm. It logs

    - `steady/phase_distance`: by how much the ages in the batch differ from the long run (total variation, 0 to 1),
      without what chance adds for few environments;
    - `steady/in_lockstep`: 1 if the environments run in lockstep, 0 if there is no evidence of it; left out as long
      as that cannot be told;
    - `steady/ep_len_mean`: mean length of recent episodes in steps, running ones included, so that it does not lag
      behind as `rollout/ep_len_mean` does.

    It warns once, by `PhaseLockWarning`, when the environments run in lockstep and no `SteadyVecEnv` is at work on it.

    Args:
        n_steps: number of steps in a batch; by default the algorithm's n_steps, or 16 if it has none (DQN, SAC).
        tolerance: distance (total variation) up to which batches count as fair.
        verbose: verbosity level, as for every callback.
    """

    def __init__(self, n_steps: int | None = None, *, tolerance: float = 0.01, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._n_steps = None if n_steps is None else whole_number("n_steps", n_steps, DelaysError)
        self._tolerance = check_tolerance(tolerance)
        self._tracker: PhaseTracker | None = None
        self._warned = False
        self._cut = False  # whether episodes were cut in this batch
        self._reported = 0
        self._last_obs: Any = None
        self._ages: NDArray[np.int64] | None = None  # 0 where not known before the next end; None if the tracker knows

    @property
    def phase(self) -> PhaseReport | None:
        """How far the ages in the last batch are from those in the long run; None before training."""
        return None if self._tracker is None else self._tracker.report()

    @property
    def report(self) -> PhaseReport | None:
        """The same as `phase`."""
        return self.phase

    def _on_training_start(self) -> None:
        num_envs = self.training_env.num_envs
        fresh = self._tracker is None or self._tracker.num_envs != num_envs
        if fresh:
            # Off-policy algorithms have an n_steps too, that of their returns.
            rollout = self.model.n_steps if isinstance(self.model, OnPolicyAlgorithm) else _WITHOUT_ROLLOUTS
            n_steps = rollout if self._n_steps is None else self._n_steps
            self._tracker = PhaseTracker(num_envs, same_step=True, n_steps=n_steps, tolerance=self._tolerance)
            self._reported = 0
        assert self._tracker is not None
        if self.locals.get("reset_num_timesteps", True):  # then learn() has reset all environments
            self._tracker.reset()
            self._ages = None
        elif fresh or self.model._last_obs is not self._last_obs:  # they may be anywhere in their episodes
            self._ages = np.zeros(num_envs, dtype=np.int64)

    def _on_rollout_start(self) -> None:
        assert self._tracker is not None
        if self._ages is not None and self._ages.all():
            self._tracker.reset(ages=self._ages)
            self._ages = None

    def _on_training_end(self) -> None:
        self._last_obs = self.model._last_obs

    def _on_step(self) -> bool:
        assert self._tracker is not None
        dones = np.asarray(self.locals["dones"], dtype=bool)
        if self._ages is not None:
            self._ages[self._ages > 0] += 1
            self._ages[dones] = 1
            return True
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
        report = self._tracker.report()
        batches = report.steps // (self._tracker.num_envs * self._tracker.n_steps)
        if batches == self._reported:  # rollouts may be shorter than a batch
            return
        self._reported = batches
        if math.isfinite(report.average_episode_length):
            self.logger.record("steady/ep_len_mean", report.average_episode_length - 1)
        if not math.isnan(report.distance):
            self.logger.record("steady/phase_distance", report.distance)
        if report.verdict != "cannot tell yet":
            self.logger.record("steady/in_lockstep", int(report.phase_locked))
        if report.phase_locked and not (self._cut or self._warned):
            self._warn(report)
        self._cut = False

    def _warn(self, report: PhaseReport) -> None:
        steady = find_steady_vec_env(self.training_env)
        if steady is not None and not steady.settled:
            return  # the cure is at work
        assert self._tracker is not None
        what = (
            "stagger the episodes: wrap the bare VecEnv, SteadyVecEnv(venv), or make it with make_steady_vec_env"
            if steady is None
            else "the delays of its SteadyVecEnv do not fit these episodes: use delays='auto', the default"
        )
        warnings.warn(
            f"the {self._tracker.num_envs} environments run through their episodes in lockstep: in batches of "
            f"{self._tracker.n_steps} steps, ages differ by {report.distance:.0%} (total variation) from the long run, "
            f"so each batch is a biased sample of the policy's data; {what}",
            PhaseLockWarning,
            stacklevel=2,
        )
        self._warned = True
