"""Evaluation with any budget: a number of steps or seconds, or until the interval is narrow enough.

Environments run side by side and are stopped when the budget is spent, wherever they are in their episodes. The mean
over those that finished would be that of short episodes; `FairStatistics` counts every step, so the estimate is
unbiased for every number of environments, and its interval has the environments as independent unit.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from steadyrl.common.checks import in_words, is_number, shown, whole_number
from steadyrl.common.progress import Progress, progress_for
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import Description, Source
from steadyrl.errors import CopyLostError, NonFiniteError, RolloutError, SteadyrlError
from steadyrl.live.fair_report import FairReport
from steadyrl.policies.networks import Policy
from steadyrl.rollouts.planning import Options, checked
from steadyrl.rollouts.repeatability import MESSAGE
from steadyrl.sspg.interrupts import Interrupts
from steadyrl.sspg.vector_envs import bare_vector_env, choose_for, repeats_itself
from steadyrl.wrappers.lost_copies import NamingLostCopies
from steadyrl.wrappers.record_fair_statistics import RecordFairStatistics

_SPAWN = 11
"""First spawn key of the seeds of an evaluation with a budget."""
_FEWEST, _USUAL, _MOST = 8, 32, 64  # environments by default
_EPISODES = 4  # of the time limit's length that each environment has time for, by default
_EARLIEST = 3  # finished episodes per environment, on average, before the width of an interval is believed
_LATER = 1.2  # the width is looked at after this many times the steps of the last look: few looks, little optimism
_REPORT_EVERY = 1.0  # seconds between two reports for the progress line


@dataclass(frozen=True)
class Budget:
    """When an evaluation stops: at the first of those that are given."""

    steps: int | None = None
    """Steps of all environments together, resets included."""
    seconds: float | None = None
    until: float | None = None
    """Width of the interval of the mean return, from its lower to its upper end."""

    def __post_init__(self) -> None:
        if self.steps is not None:
            whole_number("steps", self.steps, RolloutError)
        for name, unit in (("seconds", "number of seconds"), ("until", "width of the interval of the mean return")):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value < math.inf):
                raise RolloutError(f"{name} is {shown(value)}; it must be a positive {unit}")
        if self.steps is not None and self.seconds is not None and self.until is None:
            raise RolloutError("both steps and seconds were given; give one of them, or both with `until` as limits")

    def default_num_envs(self, max_episode_steps: int | None) -> int:
        """Return 8 to 64, so that each environment has time for four episodes of the time limit's length."""
        if self.steps is None:
            return _USUAL
        if max_episode_steps is None:
            return min(_USUAL, self.steps)
        return min(max(self.steps // (_EPISODES * max_episode_steps), _FEWEST), _MOST, self.steps)


@dataclass(frozen=True)
class BudgetRun:
    """What an evaluation with a budget found."""

    report: FairReport
    num_envs: int
    seconds: float
    backend: str
    """The backend and the reason for it."""
    stopped: str
    """Why it stopped: "steps", "seconds", "until" or "interrupted"."""


def run_budget(
    source: Source,
    description: Description,
    policy: Policy,
    budget: Budget,
    *,
    num_envs: int | None = None,
    seed: int = 0,
    backend: str = "auto",
    workers: int | None = None,
    step_timeout: float | None = None,
    level: float = 0.95,
    progress: bool | TextIO = False,
) -> BudgetRun:
    """Run environments side by side until the budget is spent, or until Ctrl-C, and return what is known then."""
    limit = description.max_episode_steps
    count = budget.default_num_envs(limit) if num_envs is None else whole_number("num_envs", num_envs, RolloutError)
    options = Options(seed=seed, backend=backend, workers=workers, step_timeout=step_timeout)
    if step_timeout is not None and backend == "envpool":
        raise RolloutError("EnvPool's threads cannot be ended, so they take no step_timeout; use backend 'processes'")
    kind, reason = choose_for(source, description, count, options)
    if step_timeout is not None:
        kind, reason = "processes", "a step timeout was given"
    sequence = np.random.SeedSequence(seed, spawn_key=(_SPAWN,))
    first = int(sequence.generate_state(1)[0]) >> 1
    shown_progress = progress_for(progress)
    if kind == "serial":
        _warn_unless_it_repeats(source, description, first, shown_progress, aloud=progress is False)
    envs = RecordFairStatistics(
        bare_vector_env(source, kind, count, seed=first, workers=workers, step_timeout=step_timeout),
        level=level,
        max_episode_steps=limit,
    )
    try:
        step = _stepper(envs, source, description, policy, first, np.random.default_rng(sequence))
        watch = _Watch(envs, budget)
        with Interrupts() as interrupts:
            shown_progress.begin(100, "%")
            while not watch.stopped:
                step()
                watch.look()
                shown_progress.advance(watch.percent(), watch.text)
                if interrupts.asked:
                    watch.stopped = watch.stopped or "interrupted"
    finally:
        shown_progress.end()
        envs.close()
    about = f"{kind}: {reason}"
    return BudgetRun(envs.report(), count, time.monotonic() - watch.begun, about, watch.stopped)


def _warn_unless_it_repeats(
    source: Source, description: Description, seed: int, shown_progress: Progress, *, aloud: bool
) -> None:
    """Say so if no seed can make the evaluation repeatable; environments that were looked at before are known."""
    known = (source.name, source.digest)
    if known in checked or repeats_itself(source, observation_codec(description.observation_space), seed=seed):
        checked.add(known)
        return
    text = MESSAGE.format(name=source.name)
    shown_progress.note(f"warning: {text}")
    if aloud:
        warnings.warn(text, stacklevel=4)


def _stepper(
    envs: Any, source: Source, description: Description, policy: Policy, seed: int, rng: np.random.Generator
) -> Callable[[], None]:
    """Reset the environments, and return a function that takes one step in all of them."""
    seen, codec = observation_codec(description.observation_space), action_codec(description.action_space)
    rows = np.empty((envs.num_envs, seen.width))

    naming = NamingLostCopies(envs)

    def observe(observations: Any) -> None:
        seen.rows(observations, rows)
        if not math.isfinite(rows.sum()) and not np.isfinite(rows).all():
            raise NonFiniteError(f"{source.name} returned an observation that is not finite; mend the environment")

    def step() -> None:
        actions = codec.checked(_acting(policy, seen.flattened(rows), rng), envs.num_envs)
        codec.require_actions(actions, range(envs.num_envs))
        observe(_calling(source, naming, envs.step, codec.sent(actions))[0])

    observe(_calling(source, naming, envs.reset, seed=seed)[0])
    codec.checked(_acting(policy, seen.flattened(rows), np.random.default_rng(0)), envs.num_envs)
    return step


def _acting(policy: Policy, observations: Any, rng: np.random.Generator) -> Any:
    try:
        return policy.act(observations.copy(), rng)  # it may change them in place
    except SystemExit as error:
        raise RolloutError(
            f"the policy called sys.exit({error.code!r}); have it raise an error instead, or return actions"
        ) from error


def _calling(source: Source, naming: NamingLostCopies, function: Any, *arguments: Any, **named: Any) -> Any:
    """Call a method of the environments; what they raise becomes an error that names them."""
    try:
        with naming:
            return function(*arguments, **named)
    except CopyLostError as error:
        which, cause = error.copies[0], error.__cause__
        if isinstance(cause, EOFError | ConnectionError) and hasattr(function.__self__.unwrapped, "processes"):
            raise RolloutError(
                f"the process of environment {which} of {source.name} ended; mend what ends it"
            ) from error
        did = str(cause) if isinstance(cause, SteadyrlError) else f"raised {in_words(cause or error)}"
        text = f"{source.name}, environment {which}: {did} in {function.__name__}; mend the environment"
        raise RolloutError(text) from error
    except (SteadyrlError, MemoryError):
        raise
    except Exception as error:
        raise RolloutError(
            f"{source.name} raised {in_words(error)} in {function.__name__}; mend the environment"
        ) from error


class _Watch:
    """Looks at how much of the budget is spent."""

    def __init__(self, envs: RecordFairStatistics, budget: Budget) -> None:
        self._envs, self._budget = envs, budget
        self._rounds = 0
        self._last = math.inf if budget.steps is None else math.ceil(budget.steps / envs.num_envs)
        self._next = 64  # step at which the width is looked at next
        self._reported = self.begun = time.monotonic()
        self._share = 0.0  # of the precision that is asked for
        self._percent = 0
        self.stopped = ""
        self.text = ""

    def look(self) -> None:
        """Take note of one more step of all environments."""
        self._rounds += 1
        budget, now = self._budget, time.monotonic()
        if budget.until is not None and self._rounds >= self._next:
            self._next = math.ceil(_LATER * self._rounds)
            self._look_at_width(budget.until)
        if self._rounds >= self._last:
            self.stopped = self.stopped or "steps"
        if budget.seconds is not None and now - self.begun >= budget.seconds:
            self.stopped = self.stopped or "seconds"
        if now - self._reported >= _REPORT_EVERY:
            self._reported = now
            found, steps = self._envs.report(), self._rounds * self._envs.num_envs
            value = found.mean_return
            self.text = (
                f"return {value.value:.4g} [{value.low:.4g}, {value.high:.4g}]  {steps:,} steps, "
                f"{steps / (now - self.begun):,.0f}/s"
            )

    def percent(self) -> int:
        """Return by how many percent of the budget the work has come nearer to its end since the last call."""
        share = max(self._rounds / self._last, self._share)
        if self._budget.seconds is not None:
            share = max(share, (time.monotonic() - self.begun) / self._budget.seconds)
        before, self._percent = self._percent, max(self._percent, min(int(100 * share), 100))
        return self._percent - before

    def _look_at_width(self, until: float) -> None:
        found = self._envs.report()
        width = found.mean_return.high - found.mean_return.low
        if found.unresolved > 0 or found.finished_episodes < _EARLIEST * self._envs.num_envs:
            return
        if width <= until:
            self.stopped = "until"
        self._share = 1.0 if width <= until else (until / width) ** 2
