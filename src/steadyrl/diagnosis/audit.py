"""How biased a logged curve was: "the last 100 finished episodes" against the fair mean, at each moment of a log.

A log has finished episodes only, but afterwards it tells which ones were running at any earlier moment: those that
ended later. So the life table at time t (Kaplan-Meier) counts every step up to t, with running episodes censored, as
`FairStatistics` does. A log has no rewards of single steps. Each episode's return R is therefore spread evenly over
its l steps; that changes nothing, since R / l at age k is a mark of the whole episode, the episodes seen at age k are a
fair sample of those that last k steps or more, and sum_k S(k) E[R / L | L >= k] = E[R].

What cannot be told: where some episodes outlive the oldest age seen by t, the rest of them is taken from the life table
of the whole log. The episodes that ran when the log ended are not in it, so from the last end of some environment on
the fair mean is known within bounds only: those of the smallest and the largest return per step in the log. Its value
is that for the mean return per step of episodes that lasted longer than they had when the log ended.
"""

from __future__ import annotations

import copy
import math
import os
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import check_level, is_number, shown, whole_number
from steadyrl.common.figures import PERTURBED, QUIET, RAW, check_picture, new_figure, save_figure
from steadyrl.diagnosis.episode_logs import EpisodeLog, read_episode_log
from steadyrl.errors import StatisticsError
from steadyrl.lengths.drift import find_drift
from steadyrl.live.fair_statistics import FairStatistics, tracking_memory

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_BLOCK = 1 << 18  # entries that are counted at once
_SMALL = 0.05  # relative bias that is not worth mentioning
_MOST_POINTS = 100_000
_TOO_FEW = 30  # episodes below which nothing is said


@dataclass(frozen=True)
class Audit:
    """The logged curve and the fair one; all arrays have one entry for each moment."""

    steps: Counts
    """Steps of all environments together."""
    clock: Array | None
    """Wall-clock seconds, where the log tells."""
    logged: Array
    """Mean return over the last `window` finished episodes, as it was logged."""
    fair: Array
    """Fair mean return of the policy's episodes, running ones included."""
    low: Array
    """Lower ends of the intervals of the fair mean."""
    high: Array
    """Upper ends."""
    logged_length: Array
    """Mean length over the same finished episodes."""
    fair_length: Array
    """Fair mean length, in actions."""
    unresolved: Array
    """Share of episodes that outlived every age seen by then; their rest is taken from later episodes."""
    bounds: Array
    """[2, moments]: between which `fair` lies, whatever the episodes did that the log does not have."""
    log: EpisodeLog
    window: int
    level: float
    known_until: int
    """Steps of all environments up to which every running episode is in the log."""

    @property
    def bias(self) -> Array:
        """Relative bias of the logged curve: (logged - fair) / |fair|; nan where the fair mean is 0."""
        nowhere = np.full(len(self.fair), np.nan)
        np.divide(self.logged - self.fair, np.abs(self.fair), out=nowhere, where=self.fair != 0)
        return nowhere

    @property
    def _outside(self) -> NDArray[np.bool_]:
        """Where the logged mean is further off than chance would explain at any of these moments (Bonferroni)."""
        normal, rest = NormalDist(), 1 - self.level
        wider = normal.inv_cdf(1 - rest / 2 / len(self.steps)) / normal.inv_cdf(1 - rest / 2)
        apart, down, up = self.logged - self.fair, self.fair - self.low, self.high - self.fair
        outside: NDArray[np.bool_] = (apart < -wider * down) | (apart > wider * up)
        return outside

    @property
    def message(self) -> str:
        """The audit in sentences."""
        log, bias = self.log, np.abs(np.nan_to_num(self.bias))
        lines = [f"{len(log.length):,} episodes ({log.about}), {int(self.steps[-1]):,} steps over all environments."]
        beyond = np.flatnonzero((bias > _SMALL) & self._outside)
        change = _change(log)
        if change is None:
            lines.append(
                f"These are too few episodes to tell how wrong the logged mean was: an audit needs {_TOO_FEW} that "
                f"began at least {int(log.length.max()):,} steps (the longest episode) before the end of the log."
            )
        elif change:
            lines.append(
                f"{change}: the policy learnt. Both means look back and lag behind it, the fair one too, so where they "
                "differ neither is that of the policy at that moment, and nothing is said about which is nearer. Audit "
                "a stretch without drift to learn the bias."
            )
        elif not len(beyond):
            lines.append(
                f"The logged mean of the last {self.window} finished episodes was nowhere further than {_SMALL:.0%} "
                "from the fair mean, or not beyond chance."
            )
        else:
            worst = int(beyond[np.argmax(bias[beyond])])
            lines.append(
                f"The logged mean of the last {self.window} finished episodes was most wrong at step "
                f"{int(self.steps[worst]):,}: it showed {self.logged[worst]:.5g}, {self._words(worst)} the fair mean, "
                f"{self.fair[worst]:.5g} ({self.level:.0%} interval {self.low[worst]:.5g} to {self.high[worst]:.5g})."
            )
            last = int(beyond[-1])
            after = (
                f"From step {int(self.steps[last + 1]):,} on it was within {_SMALL:.0%} of the fair mean, or not "
                "further off than chance explains."
                if last + 1 < len(self.steps)
                else "It was still wrong when the log ended."
            )
            lines.append(f"It was wrong at {len(beyond)} of {len(self.steps)} moments. {after}")
        if (self.unresolved > 1e-9).any():
            until = int(self.steps[np.flatnonzero(self.unresolved > 1e-9)[-1]])
            lines.append(
                f"Up to step {until:,} some episodes outlived every age seen so far. Nobody could know the rest of "
                "them then; it is taken from later episodes of the log."
            )
        if self.known_until < self.steps[-1]:
            low, high = self.bounds[:, -1]
            lines.append(
                f"From step {self.known_until:,} on, some running episodes never ended in the log. At its end the fair "
                f"mean is between {low:.5g} and {high:.5g} if their return per step is one of those in the log."
            )
        return "\n".join(lines)

    def _words(self, i: int) -> str:
        bias = float(self.bias[i])
        return f"{abs(bias):.0%} {'below' if bias < 0 else 'above'}"

    def __str__(self) -> str:
        return self.message

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the logged mean against the fair one (.png, .svg or .pdf)."""
        suffix = check_picture(path)
        figure, (axes,) = new_figure()
        axes.fill_between(self.steps, self.low, self.high, color=PERTURBED, alpha=0.2, linewidth=0)
        axes.plot(self.steps, self.fair, color=PERTURBED, label=f"fair mean, {self.level:.0%} interval")
        label = f"logged: last {self.window} finished episodes"
        axes.plot(self.steps, self.logged, color=RAW, linestyle="--", label=label)
        if self.known_until < self.steps[-1]:
            late = self.steps >= self.known_until
            for side in self.bounds:
                axes.plot(self.steps[late], side[late], color=QUIET, linewidth=0.8, linestyle=":")
        axes.set_xlabel("steps over all environments")
        axes.set_ylabel("mean return")
        axes.legend(frameon=False)
        save_figure(figure, path, suffix)


def _change(log: EpisodeLog) -> str | None:
    """Say how lengths, or else returns, change with the time at which episodes began; None for too few of them.

    In the order of their ends short episodes come first, and long ones that began late are not in the log at all. The
    test of lengths looks at ranks only, so that returns can be put to it by theirs.
    """
    whole = log.start + log.length.max() <= log.end.max()
    began = np.lexsort((log.env[whole], log.start[whole]))
    if len(began) < _TOO_FEW:
        return None
    length, returns = log.length[whole][began], log.returns[whole][began]
    drift = find_drift(length)
    if drift.found:
        means = f"from {drift.earlier_mean:.4g} to {drift.latest_mean:.4g} actions on average"
        return f"Episode lengths change over this log, {means}"
    drift = find_drift(np.unique(returns, return_inverse=True)[1] + 1)
    if drift.found:
        means = f"from {returns[: drift.start].mean():.4g} to {returns[drift.start :].mean():.4g} on average"
        return f"Returns change over this log, {means}, while no change of lengths can be seen"
    return ""


def audit_log(
    log: Any,
    *,
    num_envs: int | None = None,
    window: int = 100,
    memory: float | None = None,
    points: int = 60,
    level: float = 0.9,
) -> Audit:
    """Return how biased the logged mean return was at each moment of a log.

    Args:
        log: an `EpisodeLog`, or what `read_episode_log` takes: a monitor.csv, a directory of them, a csv with steps.
        num_envs: number of environments, for a csv with steps.
        window: number of finished episodes that the logged mean is taken over; 100 in Stable-Baselines3.
        memory: steps of each environment after which old data is mostly forgotten in the fair mean; by default half
            as many as `window` episodes take, so that both means lag alike, and a mean episode length at least.
            math.inf is for a policy that does not learn.
        points: number of moments, evenly spaced from the first end of an episode to the end of the log.
        level: confidence level of the intervals; environments are the independent unit.

    Raises:
        FileFormatError: if the log cannot be read.
        StatisticsError: if another argument cannot be used.
    """
    found = (log if isinstance(log, EpisodeLog) else read_episode_log(log, num_envs=num_envs)).while_all_ran()
    window = whole_number("window", window, StatisticsError)
    points = whole_number("points", points, StatisticsError, most=_MOST_POINTS)
    level = check_level(level, StatisticsError)
    if memory is not None and not (is_number(memory) and memory >= 1):
        raise StatisticsError(f"memory is {shown(memory)}; it must be a number of steps, 1 or more, or math.inf")
    with np.errstate(over="ignore"):
        if not np.isfinite(np.abs(found.returns).sum()):
            raise StatisticsError(
                f"the sum of the returns overflows: they go from {found.returns.min():g} to {found.returns.max():g}; "
                "scale them down"
            )
    end = found.end
    times = np.unique(np.linspace(end[0], end[-1], points).astype(np.int64))
    finished = np.searchsorted(end, times, side="right")
    logged, logged_length = (_trailing_means(x, finished, window) for x in (found.returns, found.length.astype(float)))
    rates = found.returns / found.length
    middle = _mean_rates(rates, found.length, end[-1] - found.last)
    tails = _Tails(found, middle)
    ends = [np.full(found.num_envs, side) for side in (rates.min(), rates.max())]
    curves = _Fair(found, window, memory, level, tails).curves(times, [middle, *ends])
    fair = curves[0]
    bounds = np.stack([np.minimum.reduce([c[0] for c in curves]), np.maximum.reduce([c[0] for c in curves])])
    return Audit(
        steps=times * found.num_envs,
        clock=None if found.clock is None else np.maximum.accumulate(found.clock)[finished - 1],
        logged=logged,
        fair=fair[0],
        low=np.minimum(fair[1], bounds[0]),
        high=np.maximum(fair[2], bounds[1]),
        logged_length=logged_length,
        fair_length=fair[3],
        unresolved=fair[4],
        bounds=bounds,
        log=found,
        window=window,
        level=level,
        known_until=int(found.last.min()) * found.num_envs,
    )


def _mean_rates(rates: Array, lengths: Counts, lived: Counts) -> Array:
    """Return the mean return per step of the episodes longer than each of `lived`, or of all if none was longer."""
    order = np.argsort(lengths, kind="stable")
    first = np.searchsorted(lengths[order], lived, side="right")
    first = np.where(first < len(order), first, 0)
    from_the_longest = np.cumsum(rates[order][::-1])[::-1]
    means: Array = from_the_longest[first] / (len(order) - first)
    return means


def _trailing_means(values: Array, finished: Counts, window: int) -> Array:
    """Return the mean over the last `window` of the first `finished` values, for each entry of `finished`."""
    first = np.maximum(finished - window, 0)  # no differences of running sums: one huge return would spoil later means
    return np.array([values[i:j].mean() for i, j in zip(first, finished, strict=True)])


class _Fair:
    """The fair mean at given times."""

    def __init__(self, log: EpisodeLog, window: int, memory: float | None, level: float, tails: _Tails) -> None:
        self._log, self._window, self._memory, self._level, self._tails = log, window, memory, level, tails
        self._quantile = NormalDist().inv_cdf(0.5 + level / 2)
        order = np.lexsort((log.start, log.env))  # the episodes of an environment are neighbours
        self._start, self._length = log.start[order], log.length[order]
        self._rate = log.returns[order] / self._length
        self._span = int(log.end[-1]) + 1
        self._place = log.env[order] * self._span + self._start
        self._first = np.searchsorted(log.env[order], np.arange(log.num_envs + 1))

    def curves(self, times: Counts, rests: list[Array]) -> list[Array]:
        """Return [5, times] (value, low, high, mean length, unresolved) for each of `rests`.

        `rests` are guesses of the return per step of each environment's episode that is not logged. Up to the first of
        these episodes they make no difference.
        """
        given = None if self._memory is None or math.isinf(self._memory) else self._memory
        statistics = FairStatistics(self._log.num_envs, same_step=self._log.same_step, memory=given)
        moments = times.tolist()
        alike = int(np.searchsorted(times, self._log.last.min(), side="right"))
        begun = self._rows(statistics, 0, moments[:alike], rests[0])
        done = moments[alike - 1] if alike else 0
        return [
            np.array([*begun, *self._rows(copy.deepcopy(statistics), done, moments[alike:], rest)], dtype=float).T
            for rest in rests
        ]

    def _rows(self, statistics: FairStatistics, done: int, times: list[int], rest: Array) -> list[tuple[float, ...]]:
        rows: list[tuple[float, ...]] = []
        for time in times:
            self._advance(statistics, done, time, rest)
            done, report = time, statistics.report(self._level)
            value, length, share = report.mean_return.value, report.mean_gymnasium_length.value, report.unresolved
            low, high = value - report.mean_return.low, report.mean_return.high - value
            if share > 0:  # in the place of an extrapolation, later episodes are known
                more, longer = self._tails.after(report.oldest_age)
                # The share has an error of its own: a binomial one, of as many episodes as environments.
                apart = self._quantile * abs(more) * math.sqrt(max(share * (1 - share), 0.0) / self._log.num_envs)
                low = high = math.hypot(min(low, high), apart)
                value += share * more - report.extrapolated[0]
                length += share * longer - report.extrapolated[1]
            rows.append((value, value - low, value + high, length, share))
            if self._memory is None:
                statistics.memory = tracking_memory(self._window, self._log.num_envs, length)
        return rows

    def _advance(self, statistics: FairStatistics, done: int, time: int, rest: Array) -> None:
        size = max(_BLOCK // self._log.num_envs, 1)
        for begin in range(done, time, size):
            statistics.update_many(*self._block(begin, min(begin + size, time), rest))

    def _block(self, begin: int, until: int, rest: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Return rewards and ends of all environments in the steps begin + 1, ..., until."""
        time = np.arange(begin, until)[:, None]
        at = self._running(begin, until)
        age = time - self._start[at] + 1  # beyond the length in a reset, and in the last episode, which is not logged
        none = np.diff(self._first) == 0  # those whose first episode never ended in the log
        rewards = np.where(none | (time >= self._log.last), rest, self._rate[at])
        return rewards, (age == self._length[at]) & ~none

    def _running(self, begin: int, until: int) -> Counts:
        """Return which episode each environment runs in the steps begin + 1, ..., until: the last that has begun."""
        own = np.arange(self._log.num_envs) * self._span
        first, end = (np.searchsorted(self._place, own + time, side="right") for time in (begin, until - 1))
        count = end - first  # episodes that begin within these steps, after the first of them
        env = np.repeat(np.arange(self._log.num_envs), count)
        begun = np.arange(len(env)) + np.repeat(first - np.cumsum(count) + count, count)
        at = np.zeros((until - begin, self._log.num_envs), dtype=np.int64)
        at[0] = np.minimum(np.maximum(first - 1, self._first[:-1]), len(self._start) - 1)
        at[self._start[begun] - begin, env] = begun
        running: Counts = np.maximum.accumulate(at, axis=0)
        return running


class _Tails:
    """What is still to come of an episode that has outlived an age, by the life table of the whole log.

    Between two ages at which a logged episode ended, or one that is not logged was last seen, visits do not change. So
    there is one entry for each such age.
    """

    def __init__(self, log: EpisodeLog, rest: Array) -> None:
        running = np.maximum(int(log.end[-1]) - log.last, 0)
        ages, place = np.unique(np.concatenate([log.length, running]), return_inverse=True)
        rates = np.bincount(place, np.concatenate([log.returns / log.length, rest]))
        ended = np.bincount(place[: len(log.length)], minlength=len(ages))
        visits = np.bincount(place)[::-1].cumsum()[::-1]  # by those that reached an age
        self._ages, self._lived = ages, 1 - ended / visits
        self._rate = rates[::-1].cumsum()[::-1] / visits

    def after(self, age: int) -> tuple[float, float]:
        """Return the further return, and the further steps, of an episode that has outlived an age."""
        first = int(np.searchsorted(self._ages, age, side="right"))
        steps = np.diff(self._ages[first:], prepend=age)
        alive = np.append(1.0, np.cumprod(self._lived[first:]))[: len(steps)]
        return float((alive * steps) @ self._rate[first:]), float(alive @ steps)
