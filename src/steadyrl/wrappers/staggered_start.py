"""One environment whose running episode is cut short once, at a designed time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode

from steadyrl.common.checks import is_whole, shown, whole_number
from steadyrl.errors import DelaysError, WrapperError
from steadyrl.lengths.delays import Delays
from steadyrl.lengths.distribution import LONGEST
from steadyrl.live.designed_staggering import CutSchedule, for_next_step, hazards_of
from steadyrl.wrappers.acting import generator_after_reset
from steadyrl.wrappers.arguments import as_delays, as_plain, check_single

_ONE, _NEVER = np.ones(1, dtype=np.int64), np.zeros(1, dtype=bool)


class StaggeredStart(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Cuts the running episode short once, at a designed time, and changes nothing afterwards.

    The cut is a truncation: `truncated` is True, and so is `info["staggered"]`.

    Use it for the environments inside a vector environment: each draws its own delay from `self.np_random`.
    `StaggeredVectorEnv` spreads the delays more evenly than independent draws can. (As there, an episode that would
    probably end just before the cut, so that its reset would be in the way, is cut two steps earlier as well.)

    Args:
        env: the environment.
        delays: `Delays` (as from `design_delays`), P(D = k) for k = 0, 1, ... as a list, or one delay D <= window.
        window: length of the window in steps; needed with one delay.
        autoreset_mode: autoreset mode of the vector environment (or loop) around this environment. With NEXT_STEP a
            reset counts as a step; otherwise it does not.

    Raises:
        DelaysError: if the delays are none of these.
        WrapperError: if `env` is not a single environment, or the autoreset mode is not known.

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
        RecordConstructorArgs.__init__(
            self, _disable_deepcopy=True, delays=as_plain(delays), window=window, autoreset_mode=mode.value
        )
        gymnasium.Wrapper.__init__(self, env)
        self._same_step = mode != AutoresetMode.NEXT_STEP
        found = _as_delays(delays, window)
        self._schedule = CutSchedule(1)
        if self._same_step:
            self._delays = found.for_same_step()
        else:
            self._delays = for_next_step(found, _ONE, _NEVER)
            self._schedule.hazard = hazards_of(found)
        self._started = False
        self._age = 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; the first time, draw the delay."""
        found = self.env.reset(seed=seed, options=options)
        self._age = 1
        if not self._started:
            self._started = True
            delay = self._delays.draw(1, generator_after_reset(self, seed, None))
            # Where a reset is a step, the first observation cannot be an end, so all restart one step later.
            self._schedule.plan(delay, window=self._delays.window, offset=0 if self._same_step else 1)
        elif not self._same_step and self._schedule.steps_left:
            self._schedule.tick()
        return found

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take an action, and cut the episode if its time has come."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._schedule.steps_left:
            done = np.array([bool(terminated or truncated)])
            if self._schedule.step(done, _NEVER, np.array([self._age]))[0]:
                truncated, info = True, {**info, "staggered": True}
            self._age += 1
        return observation, reward, terminated, truncated, info


def _as_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except Exception as error:  # an enumeration asks what it does not know for its repr
        known = [known.value for known in AutoresetMode]
        raise WrapperError(
            f"autoreset_mode is {shown(mode)}; it must be one of {known}, the mode of the vector environment around"
        ) from error


def _as_delays(delays: Any, window: int | None) -> Delays:
    if window is not None:
        window = whole_number("window", window, DelaysError, most=LONGEST)
    if not is_whole(delays):
        found = as_delays(delays)
        if window not in (None, found.window):
            raise DelaysError(
                f"window is {window}, and the delays have one of their own: {found.window}; give window with one delay "
                "only, or design_delays(lengths, window)"
            )
        return found
    if window is None or not 1 <= delays <= window:
        raise DelaysError(
            f"the delay is {shown(delays)} and the window {window}; give a window of at least the delay: the episode "
            "is cut window - delay steps after the start"
        )
    probabilities = np.zeros(window + 1)
    probabilities[delays] = 1.0
    return Delays(probabilities, float("nan"))
