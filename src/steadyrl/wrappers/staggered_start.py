"""One environment whose running episode is cut short once, at a designed time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode

from steadyrl.errors import DelaysError, WrapperError
from steadyrl.lengths.delays import Delays
from steadyrl.lengths.next_step_delays import LIKELY, allowing_for_resets, hazards, unforeseen_ends
from steadyrl.wrappers.acting import generator_after_reset
from steadyrl.wrappers.arguments import as_delays, as_plain, check_single


class StaggeredStart(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Cuts the running episode short once (`truncated`, `info["staggered"]`), and is transparent ever after.

    For copies in a vector environment: each draws its own delay from `self.np_random`. `StaggeredVectorEnv` spreads
    delays over the copies more evenly than independent draws can. (As there, an episode whose end is about to be in
    the way of the cut is cut two steps earlier as well.)

    Args:
        env: the environment.
        delays: `Delays` (as from `design_delays`), or P(D = k) for k = 0, 1, ... as a list, or one delay D <= window.
        window: the step of the window's end, for a fixed delay.
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
        check_single(env, "StaggeredStart", "use StaggeredVectorEnv(envs, delays)")
        mode = _as_mode(autoreset_mode)
        RecordConstructorArgs.__init__(self, delays=as_plain(delays), window=window, autoreset_mode=mode.value)
        gymnasium.Wrapper.__init__(self, env)
        self._same_step = mode != AutoresetMode.NEXT_STEP
        found = _as_delays(delays, window)
        self._delays = found.for_same_step() if self._same_step else _allowing_for_resets(found)
        known = None if self._same_step else found.lengths
        self._hazard = np.zeros(1) if known is None else hazards(known)
        self._due: int | None = None  # once known: the step of the cut
        self._over = False
        self._clock = 0  # steps of the stream since the first reset
        self._age = 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the first time, draw the delay."""
        found = self.env.reset(seed=seed, options=options)
        self._age = 1
        if self._due is None:
            delay = int(self._delays.draw(1, generator_after_reset(self, seed, None))[0])
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
            self._age += 1
            self._over = self._clock == self._due
            if (self._over or self._in_the_way()) and not (terminated or truncated):
                truncated, info = True, {**info, "staggered": True}
        return observation, reward, terminated, truncated, info

    def _in_the_way(self) -> bool:
        """Whether the reset would fall on the step of the cut: the episode probably ends in the next step."""
        next_age = min(self._age + 1, len(self._hazard) - 1)
        return self._due is not None and self._clock + 2 == self._due and bool(self._hazard[next_age] > LIKELY)


def _as_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        known = [known.value for known in AutoresetMode]
        raise WrapperError(f"autoreset_mode is {mode!r}; it must be one of {known}, that of the loop around") from error


def _as_delays(delays: Any, window: int | None) -> Delays:
    if isinstance(delays, bool) or not isinstance(delays, int | np.integer):
        return as_delays(delays)
    if window is None or not 1 <= delays <= window:
        raise DelaysError(
            f"the delay is {delays} and the window {window}; give a window of at least the delay: the episode is cut "
            "window - delay steps after the start"
        )
    probabilities = np.zeros(window + 1)
    probabilities[delays] = 1.0
    return Delays(probabilities, float("nan"))


def _allowing_for_resets(delays: Delays) -> Delays:
    if delays.lengths is None:
        return delays
    start = np.ones(1, dtype=np.int64), np.zeros(1, dtype=bool)
    return allowing_for_resets(delays, unforeseen_ends(delays.lengths, delays.window, *start))
