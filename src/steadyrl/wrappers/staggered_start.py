"""One environment whose running episode is cut short once, at a designed time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode

from steadyrl.delays import Delays
from steadyrl.errors import DelaysError


class StaggeredStart(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Cuts the running episode short once (`truncated`, `info["staggered"]`), and is transparent ever after.

    For copies in a vector environment: each draws its own delay from `self.np_random`. `StaggeredVectorEnv` spreads
    delays over the copies more evenly than independent draws can.

    Args:
        env: the environment.
        delays: `Delays` (as from `design_delays`), or P(D = k) for k = 0, 1, ... as a list, or one delay D <= window.
        window: the step of the window's end; by default the longest delay. A fixed delay needs it.
        autoreset_mode: of the loop around it. NEXT_STEP: a reset counts as a step; otherwise it does not.

    Example:
        >>> env = StaggeredStart(gymnasium.make("steadyrl/StateSweep-v0", n=10), 3, window=6)
        >>> _ = env.reset(seed=0)
        >>> [env.step(0)[3] for _ in range(4)]  # cut at 4: the reset is a step, so that 3 steps later are 6 + 1
        [False, False, False, True]
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        delays: Delays | Sequence[float] | int,
        *,
        window: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        mode = AutoresetMode(autoreset_mode)
        self._same_step = mode != AutoresetMode.NEXT_STEP
        self._delays = _as_delays(delays, window, same_step=self._same_step)
        RecordConstructorArgs.__init__(
            self, delays=self._delays.probabilities.tolist(), window=None, autoreset_mode=mode.value
        )
        gymnasium.Wrapper.__init__(self, env)
        self._due: int | None = None
        self._over = False
        self._clock = 0  # steps of the stream since the first reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the first time, draw the delay."""
        found = self.env.reset(seed=seed, options=options)
        if self._due is None:
            delay = int(self._delays.draw(1, self.np_random)[0])
            # Where a reset is a step, the first observation cannot be an end, so all restart one step later.
            self._due = self._delays.window - delay + (0 if self._same_step else 1)
            self._over = self._due == 0
        elif not self._same_step:
            self._clock += 1
            self._over |= self._clock >= self._due
        return found

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action, and cut the episode if its time has come."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not self._over:
            self._clock += 1
            if self._clock == self._due:
                self._over = True
                if not (terminated or truncated):
                    truncated, info = True, {**info, "staggered": True}
        return observation, reward, terminated, truncated, info


def _as_delays(delays: Any, window: int | None, *, same_step: bool) -> Delays:
    if isinstance(delays, Delays):
        return delays.for_same_step() if same_step else delays
    if isinstance(delays, bool) or not isinstance(delays, int | np.integer):
        return Delays(np.asarray(delays, dtype=float), float("nan"))
    if window is None or not 1 <= delays <= window:
        raise DelaysError(
            f"the delay is {delays} and the window {window}; give a window of at least the delay: the episode is cut "
            "window - delay steps after the start"
        )
    probabilities = np.zeros(window + 1)
    probabilities[delays] = 1.0
    return Delays(probabilities, float("nan"))
