"""The law of fair numbers: mean return, length and success of all episodes, from a stream of steps at any moment.

Finished episodes are a biased sample, since short ones finish first. Every step is a fair one of its age: an
environment's k-th action in an episode is a draw from "episodes that last k steps or more", whenever the episode began,
and whether or not it ends, is cut short from outside, or still runs when observation stops. So with

    r(k) = mean reward over all visits to age k,           h(k) = ends at age k / visits to age k,
    S(k) = (1 - h(1)) ... (1 - h(k - 1)) = P(L >= k)        (Kaplan-Meier; L counts the actions of an episode)

the mean return is J = sum_k S(k) r(k), and the mean length is E[L] = sum_k S(k), that is J for a reward of 1. The
probability of success is J for a reward of 1 in a successful last step. Environments that were already running when
observation began (late entry, left truncation) need no other formula: their first visit is to a later age.

Where nobody was seen at an age but others were seen later, the gap is bridged by the pooled hazard and reward, if it is
not longer than what was seen before it. S(K + 1) for K, the oldest age so reached, is the share of episodes that is
*unresolved*: J and E[L] are then those of the first K steps of an episode. If that share is 10% or less, and at least
three ends were seen in the older half of the ages, the rest of these episodes is extrapolated: they go on at the
hazard and the reward of the oldest ages with 20 ends, or of the older half of all ages if it has fewer.

*Uncertainty.* Environments are independent, their steps are not. Visits, ends and sums are therefore kept for each
environment (in up to 64 groups, if there are more), and estimates are repeated with each one left out (jackknife). A
single environment's episodes are dealt out to 32 groups in turn.

*Memory.* With a memory of M steps, what was seen n steps ago counts exp(-n / M). Weights grow instead of old counts
shrinking, since all that matters is their ratio.

`init`, `step` and `means` are the same for numpy, PyTorch and JAX (`array_library`): the state decides which. `fold`
takes in many steps at once in numpy, and overwrites the state's arrays; `estimate` is for reports, in numpy.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadyrl.live.array_library import added, array_numpy, library, number_types, running_max

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]

VISITS, ENDS, REWARDS, SUCCESSES = range(4)
RETURN, LENGTH, SUCCESS = range(3)

LONGEST = 1 << 18
"""The oldest age that is counted; of episodes that go on, no more than that is known, and memory stays bounded."""
LATEST = 1 << 62
"""No age is older than this."""
_MOST_GROUPS, _FEWEST_GROUPS, _ROTATING_GROUPS = 64, 8, 32
_LARGEST_TABLE = 1 << 20  # entries; groups are merged before a table becomes larger
_RESOLVED = 1e-9  # a share of unresolved episodes below it is rounding
_EXTRAPOLATED = 0.1  # a larger one is not extrapolated
_FEWEST_ENDS, _ENOUGH_ENDS = 3, 20  # that a hazard is extrapolated from
_FAINT = 1e-4  # of a visit: with a memory, an age that nobody visited for nine memories is not known any more
_ROUNDING = 1e-9  # relative; what is left of a sum when all of it is taken away
_LARGEST_WEIGHT = 1e60


class FairState(NamedTuple):
    """Everything that the law remembers; tables have a place for each age 0, 1, ..., `max_age`; age 0 is not used."""

    ages: Counts
    """[N]: which action of its episode each environment takes next, 1 for the first; 0 if its next step is a reset."""
    whole: Flags
    """[N]: whether the running episode was seen from its first action on."""
    returns: Array
    """[N]: rewards of the running episode so far."""
    groups: Counts
    """[N]: the group that each environment's steps are counted in."""
    tables: Array
    """[4, G, max_age + 1]: visits, ends, sums of rewards, and successes, by group and age."""
    finished: Array
    """[3]: weight of episodes that were seen from start to end, and the sums of their returns and lengths."""
    last_rewards: Array
    """[2]: weight of all ends, and the sum of the rewards in these last steps."""
    range: Array
    """[2]: smallest and largest reward so far."""
    weight: float
    """Weight of the newest step."""
    steps: int
    ended: int
    """Natural ends so far."""
    cut: int
    """Episodes cut short from outside so far."""
    complete: int
    """Episodes seen from start to end so far."""


class FairEstimate(NamedTuple):
    """What a state says; rows are mean return, mean length (actions), and probability of success."""

    values: Array
    """[3]: estimates from all environments, of the first `oldest` steps of an episode."""
    left_out: Array
    """[3, G]: the same with one group left out, for groups that have been visited."""
    unresolved: float
    """Share of episodes that outlive the oldest age seen."""
    oldest: int
    """Oldest age up to which episodes are known."""
    rest: Array
    """[3]: what unresolved episodes add beyond the oldest age, extrapolated; 0 where that cannot be."""
    rest_left_out: Array
    """[3, G]: the same with one group left out."""
    tail: Array
    """[3]: what one unresolved episode may add, on the safe side: half an end is added to those seen."""


def init(
    num_envs: int, ages: Counts | None = None, max_age: int = 64, *, xp: Any = array_numpy, device: Any = None
) -> FairState:
    """Return the state of environments that have just been reset, or that are about to take action `ages` of theirs.

    Args:
        num_envs: number of environments.
        ages: [num_envs]; None means that all take their first action next.
        max_age: the oldest age that there is room for.
        xp: functions of the array library.
        device: where the arrays are to be; None means the library's default.
    """
    real, integer = number_types(xp)
    place = {} if device is None else {"device": device}
    groups = min(num_envs, _MOST_GROUPS) if num_envs > 1 else _ROTATING_GROUPS
    first = xp.ones(num_envs, dtype=integer, **place) if ages is None else xp.astype(ages, integer)
    whole, none = (1.0, 0) if xp is array_numpy else (xp.asarray(1.0, dtype=real, **place), xp.asarray(0, **place))
    return FairState(
        ages=first,
        whole=first <= 1,
        returns=xp.zeros(num_envs, dtype=real, **place),
        groups=xp.arange(num_envs, dtype=integer, **place) * groups // num_envs,
        tables=xp.zeros((4, groups, max_age + 1), dtype=real, **place),
        finished=xp.zeros(3, dtype=real, **place),
        last_rewards=xp.zeros(2, dtype=real, **place),
        range=xp.asarray([math.inf, -math.inf], dtype=real, **place),
        weight=whole,
        steps=none,
        ended=none,
        cut=none,
        complete=none,
    )


def step(
    state: FairState,
    rewards: Array,
    ended: Flags,
    cut: Flags,
    success: Flags,
    *,
    same_step: bool,
    memory: float = math.inf,
) -> FairState:
    """Take in one step of all environments; the state given is left as it is.

    Args:
        state: the law's state before the step, with room for its ages (`with_room`).
        rewards: [N], of this step.
        ended: [N], whose episode ended by itself.
        cut: [N], whose episode was cut short from outside.
        success: [N], whose episode ended in success.
        same_step: whether a reset takes no step of its own (SAME_STEP, Stable-Baselines3).
        memory: steps after which old data is mostly forgotten.
    """
    xp, acted, real, integer = library(rewards), state.ages > 0, state.returns.dtype, state.ages.dtype
    rewards = xp.where(acted, xp.astype(rewards, real), 0.0)
    w, keep, over = state.weight, math.exp(-1 / memory), ended | cut
    ends, successes = xp.astype(ended, real), xp.astype(ended & success, real)
    _, size, width = state.tables.shape
    place = state.groups * width + xp.where(state.ages > min(LONGEST, width - 1), 0, state.ages)
    seen = xp.concat([xp.ones_like(rewards), ends, rewards, successes]) * w
    places = xp.concat([place + i * size * width for i in range(4)])
    tables = state.tables if math.isinf(memory) else state.tables * keep
    returns = state.returns + rewards
    full = xp.astype(ended & state.whole, real)
    found = xp.stack([xp.sum(full), xp.sum(full * returns), xp.sum(full * xp.astype(state.ages, real))])
    last = xp.stack([xp.sum(ends), xp.sum(rewards * ends)])
    lowest = xp.min(xp.where(acted, rewards, math.inf))
    highest = xp.max(xp.where(acted, rewards, -math.inf))

    def number(flags: Flags) -> Any:
        return xp.sum(xp.astype(flags, integer))

    return state._replace(
        ages=xp.where(over, int(same_step), state.ages + 1),
        whole=state.whole | over,
        returns=xp.where(over, 0.0, returns),
        groups=(state.groups + xp.astype(over, integer)) % size if len(rewards) == 1 else state.groups,
        tables=xp.reshape(added(xp.reshape(tables, (-1,)), places, seen), tables.shape),
        finished=state.finished * keep + w * found,
        last_rewards=state.last_rewards * keep + w * last,
        range=xp.stack(
            [
                xp.where(lowest < state.range[0], lowest, state.range[0]),
                xp.where(highest > state.range[1], highest, state.range[1]),
            ]
        ),
        steps=state.steps + 1,
        ended=state.ended + number(ended),
        cut=state.cut + number(cut),
        complete=state.complete + number(ended & state.whole),
    )


class FairMeans(NamedTuple):
    """The estimates alone, of the first `max_age` steps of an episode; nan before anything was seen."""

    mean_return: Any
    mean_length: Any
    """In actions: E[T] - 1."""
    success: Any
    unresolved: Any
    """Share of episodes that outlive the oldest age seen."""


def means(state: FairState) -> FairMeans:
    """Return the estimates of `estimate`, without what intervals and extrapolation need."""
    total = library(state.tables).sum(state.tables, axis=1)[:, 1:]
    values, unresolved, _ = _life_sums(total, _FAINT * state.weight + 0.0 * total[VISITS])
    return FairMeans(values[RETURN], values[LENGTH], values[SUCCESS], unresolved)


def fold(
    state: FairState, ages: Counts, rewards: Array, ended: Flags, over: Flags, success: Flags, memory: float = math.inf
) -> FairState:
    """Take in many steps at once, as that many calls of `step` would; the arrays of the state are overwritten.

    Args:
        state: the law's state before the first step. Its `ages` are not looked at, and are for the caller to replace.
        ages: [steps, N], which action of its episode each environment took; 0 for what is not to be counted (`follow`).
        rewards: [steps, N]; 0 where ages are 0.
        ended: [steps, N], whose episode ended by itself.
        over: [steps, N], whose episode ended or was cut short.
        success: [steps, N], whose episode ended in success.
        memory: steps after which old data is mostly forgotten.
    """
    steps, n = rewards.shape
    acted = ages > 0
    found = np.where(acted, rewards, np.inf).min(), np.where(acted, rewards, -np.inf).max()
    state = with_room(state, int(ages.max()))
    _, size, width = state.tables.shape
    weights = state.weight * np.exp(np.arange(1, steps + 1) / memory)
    groups = (state.groups + np.cumsum(over, axis=0) - over) % size if n == 1 else state.groups
    place = (groups * width + np.where(ages > LONGEST, 0, ages)).ravel()
    each: Array | float = 1.0 if math.isinf(memory) else np.repeat(weights, n)
    flat = state.tables.reshape(4, size * width)
    np.add.at(flat[VISITS], place, each)
    np.add.at(flat[REWARDS], place, each * rewards.ravel())
    at = np.flatnonzero(ended)
    np.add.at(flat[ENDS], place[at], weights[at // n])
    np.add.at(flat[SUCCESSES], place[at], weights[at // n] * success.ravel()[at])
    last = np.array([weights[at // n].sum(), weights[at // n] @ rewards.ravel()[at]])
    state = _finish(state, ages, rewards, ended, over, weights)
    return _rescaled(
        state._replace(
            groups=(state.groups + over.sum(axis=0)) % size if n == 1 else state.groups,
            last_rewards=state.last_rewards + last,
            range=np.array([min(state.range[0], found[0]), max(state.range[1], found[1])]),
            weight=float(weights[-1]),
            steps=state.steps + steps,
            ended=state.ended + len(at),
            cut=state.cut + int(np.count_nonzero(over)) - len(at),
        )
    )


def follow(first: Counts, over: Flags, same_step: bool) -> tuple[Counts, Counts]:
    """Return which action of its episode each environment takes in each step, and in the one after them.

    An episode that is over in one step begins anew in the next, or with NEXT_STEP one step later, after the reset.
    """
    row = np.arange(len(over) + 1, dtype=np.int64)[:, None]
    begun = np.full((len(over) + 1, len(first)), -LATEST, dtype=np.int64)
    begun[0] = 1 - first  # the step in which the running episode began
    np.copyto(begun[1:], row[1:] + (not same_step), where=over)
    ages = row + 1 - np.maximum.accumulate(begun, axis=0)
    return ages[:-1], ages[-1]


def _finish(state: FairState, ages: Counts, rewards: Array, ended: Flags, over: Flags, weights: Array) -> FairState:
    """Sum the returns of the episodes that ended within these steps, and of those that go on."""
    steps, n = rewards.shape
    closed = np.ascontiguousarray(over.T)  # by environment, and for each of them in the order of time
    opens = np.ones((n, steps), dtype=bool)
    opens[:, 1:] = closed[:, :-1]
    first = np.flatnonzero(opens)  # each stretch of one episode of one environment
    last = np.append(first[1:], n * steps) - 1
    env, begins = np.divmod(first, steps)
    row = last - env * steps
    returns = np.add.reduceat(rewards.T.ravel(), first) + np.where(begins == 0, state.returns[env], 0.0)
    counted = ended[row, env] & ((begins > 0) | state.whole[env])
    weight = weights[row] * counted
    rest, going = np.zeros(n), ~closed.ravel()[last]
    rest[env[going]] = returns[going]
    found = np.array([weight.sum(), weight @ returns, weight @ ages[row, env]])
    return state._replace(
        returns=rest,
        whole=state.whole | closed.any(axis=1),
        finished=state.finished + found,
        complete=state.complete + int(np.count_nonzero(counted)),
    )


def _rescaled(state: FairState) -> FairState:
    """Return the same state with a weight of 1, if weights have become very large."""
    if state.weight < _LARGEST_WEIGHT:
        return state
    w = state.weight
    return state._replace(
        tables=state.tables / w, finished=state.finished / w, last_rewards=state.last_rewards / w, weight=1.0
    )


def with_room(state: FairState, max_age: int) -> FairState:
    """Return the state with room for ages up to `max_age` or `LONGEST`, at least doubled where there was less.

    Neighbouring groups are merged where tables would become too large otherwise.
    """
    _, groups, width = state.tables.shape
    if min(max_age, LONGEST) < width:
        return state
    wider = min(max(max_age + 1, 2 * width), LONGEST + 1)
    tables, owner = state.tables, state.groups
    while wider * groups > _LARGEST_TABLE and groups >= 2 * _FEWEST_GROUPS:
        tables = np.add.reduceat(tables, np.arange(0, groups, 2), axis=1)
        owner, groups = owner // 2, tables.shape[1]
    return state._replace(tables=np.pad(tables, ((0, 0), (0, 0), (0, wider - width))), groups=owner)


def estimate(state: FairState, longest: float = math.inf) -> FairEstimate:
    """Return the estimates from a state in which something was seen.

    Args:
        state: the law's state.
        longest: the most actions that an episode can have (a time limit), if that is known.
    """
    used = np.flatnonzero(state.tables[VISITS].sum(axis=0)[1:])
    tables = state.tables[:, :, 1 : int(used[-1]) + 2 if len(used) else 2]
    total = tables.sum(axis=1)
    faint = _FAINT * state.weight
    values, survivors, known = _life_sums(total, np.full(total.shape[1], faint))
    present = tables[VISITS].sum(axis=1) > 0
    others = total[:, None, :] - tables[:, present]
    left_out, surviving, reached = _life_sums(others, np.maximum(faint, _ROUNDING * total[VISITS]))
    oldest, share = int(known), float(survivors)
    age = np.arange(1, total.shape[1] + 1)
    older = np.cumsum((total[ENDS] * (age <= oldest))[::-1])[::-1]  # ends at each age or an older one
    enough = np.count_nonzero(older >= _ENOUGH_ENDS * state.weight)
    first = np.array([max(oldest // 2, int(enough) - 1)])
    known, half = np.array([oldest]), np.array([oldest // 2])
    clear = _RESOLVED < share <= _EXTRAPOLATED and older[age > half].max(initial=0.0) >= _FEWEST_ENDS * state.weight
    rest = share * _tails(state, total[:, None], total, first, known, longest, 0.0)[:, 0]
    rest_left_out = surviving * _tails(
        state, others, total, reached * first // np.maximum(known, 1), reached, longest, 0.0
    )
    cautious = _tails(state, total[:, None], total, half, known, longest, state.weight)[:, 0]
    return FairEstimate(
        values,
        left_out,
        share,
        oldest,
        rest=rest if clear else np.zeros_like(rest),
        rest_left_out=rest_left_out if clear else np.zeros_like(rest_left_out),
        tail=cautious,
    )


def _life_sums(tables: Array, faint: Array) -> tuple[Array, Array, Counts]:
    """Return sum_k S(k) r(k) for rewards, steps and successes, then S(K + 1), then K.

    Args:
        tables: [4, ..., ages], from age 1 on.
        faint: [ages], visits that count as none.
    """
    xp, visits, ends = library(tables), tables[VISITS], tables[ENDS]
    seen = visits > faint
    age = xp.cumulative_sum(xp.ones_like(visits), axis=-1)
    before = running_max(xp.where(seen, age, 0.0))
    after = -xp.flip(running_max(xp.flip(xp.where(seen, -age, -math.inf), axis=-1)), axis=-1)
    gap = xp.astype(after - before - 1 > before, visits.dtype)  # longer than what was seen before it
    known = running_max(gap) == 0
    divisor = xp.where(seen, visits, 1.0)
    sums = xp.stack([tables[REWARDS], visits, tables[SUCCESSES]])
    pooled = xp.sum(xp.where(seen, visits, 0.0), axis=-1, keepdims=True)
    pooled = xp.where(pooled > xp.min(faint), pooled, xp.min(faint))
    hazard = xp.where(seen, ends / divisor, xp.sum(xp.where(seen, ends, 0.0), axis=-1, keepdims=True) / pooled)
    mean = xp.where(seen, sums / divisor, xp.sum(xp.where(seen, sums, 0.0), axis=-1, keepdims=True) / pooled)
    lived = xp.where(known, xp.clip(1 - hazard, 0.0, 1.0), 1.0)
    survival = xp.cumulative_prod(lived, axis=-1)
    alive = xp.concat([xp.ones_like(survival[..., :1]), survival[..., :-1]], axis=-1)
    oldest = xp.sum(xp.astype(known, xp.int64 if xp is array_numpy else number_types(xp)[1]), axis=-1)
    return xp.sum(xp.where(known, alive * mean, 0.0), axis=-1), survival[..., -1], oldest


def _tails(
    state: FairState, tables: Array, total: Array, first: Counts, oldest: Counts, longest: float, more: float
) -> Array:
    """Return [3, G]: the further return, steps and success of an episode that outlives the oldest age.

    It goes on at the hazard and with the rewards of the ages first + 1, ..., oldest, and the last step's reward is as
    it is at other ends.

    Args:
        state: the law's state.
        tables: [4, G, ages], from age 1 on.
        total: [4, ages], of all environments.
        first: [G], the last age that is not looked at.
        oldest: [G], the oldest age.
        longest: the most actions that an episode can have.
        more: visits to add to those seen, without an end.
    """
    w = state.weight
    sums = np.concatenate([np.zeros_like(tables[..., :1]), np.cumsum(tables, axis=-1)], axis=-1)
    group = np.arange(tables.shape[1])
    seen = sums[:, group, oldest] - sums[:, group, first]
    visits = np.maximum(seen[VISITS], w)
    steps = np.minimum((visits + more) / (seen[ENDS] + 0.5 * w), np.maximum(longest - oldest, 0.0))
    ends, last = state.last_rewards
    everything = total.sum(axis=1)
    others = max(float(everything[VISITS]) - ends, w)
    bonus = last / ends - (float(everything[REWARDS]) - last) / others if ends > 0 else 0.0
    success = float(everything[SUCCESSES]) / ends if ends > 0 else 0.0
    rate = (seen[REWARDS] - bonus * seen[ENDS]) / visits
    return np.stack([steps * rate + bonus, steps, np.full(len(group), success)])
