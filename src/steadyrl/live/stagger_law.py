"""The stagger law: which environments to truncate now, so that their ages are the best that is possible at every step.

N environments start together. Let S(k) = P(an episode has k steps or more), Z(t) = S(1) + ... + S(t); at steady state
an environment has age k with probability S(k) / E[L]. No age exceeds the time since the start, so at time t the ages
are at least P(A > t) away from the steady state. Truncating, after step t, each running episode with probability
S(t+1) / Z(t+1) attains that bound at every t (`lengths.anytime` has the proof and the exact numbers).

As feedback, which also serves a policy that learns: with K the oldest age present, N / Z(K) episodes should begin in a
step. Natural ends supply most of them; what they do not supply is truncated where ages are most overfull against
S(k) / Z(K). The law has three parts.

*Survival* S is estimated from the environments' own visits and ends at each age (`stagger_memory`): an unchanged policy
has a long memory, and a changed one shows within a few episodes. While environments are being truncated, memories are
compared every 8 steps, and in between what was seen since is added to the longest.

*When.* The law is active while the longest known age is still survived by more than half an environment, or when the
ages are further from the steady state than chance explains: by 1.8 / sqrt(N) in the distribution function, which N
independent environments exceed three times in a thousand looks. It is quiet again below 1.2 / sqrt(N). While it is
quiet nobody is truncated, and it looks after 8, 16, ..., 512 steps, or at once if two environments are older than any
age known, if unusually many or few episodes end, or if they end at unusual ages.

*Who.* Environments are truncated in whole numbers, the fraction is carried over. With the candidates in order of age,
let D(i) be how many of the first i are too many against the target. The non-decreasing function that is closest to D
is the mean of its running maximum from below and its running minimum from above; whoever stands where that passes a
whole number is truncated. So truncations are spread over the ages, and take away what is most overfull.

The functions are pure, and the same for numpy, PyTorch and JAX (`array_library`): the state decides which. Numbers that
would be equal if computed exactly are compared with some room, so that all three decide alike.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from steadyrl.live.array_library import (
    Array,
    at,
    at_least,
    beside,
    count,
    drawn,
    hashed,
    how_many,
    last,
    library,
    pick,
    running_max,
    running_min_from_above,
    when,
)
from steadyrl.live.stagger_memory import LOOK, ROOM, TINY, StaggerState, init, learn, survive, with_room

__all__ = [
    "GLANCE",
    "LOOK",
    "Phase",
    "StaggerState",
    "advance",
    "compare",
    "decide",
    "init",
    "learn",
    "phase",
    "quotas",
    "reached",
    "step",
    "with_room",
]

GLANCE = 64
"""Steps between two glances at the ages of episodes that ended, while the law is quiet."""
_ALARM, _CALM = 1.8, 1.2  # distances in units of 1 / sqrt(N)
_PACE = 8.0  # steps over which the number of ends is averaged
_SURGE = 5.0  # standard deviations of numbers of ends
_RARE = 3.09  # standard errors that a normal variable exceeds once in a thousand
_MOST_GROUPS = 64  # of ages, in a report


def step(state: StaggerState, done: Array, *, same_step: bool, late_cuts: bool = False) -> tuple[StaggerState, Array]:
    """Take in whose episode ended in this step, and return whose episode to truncate in it.

    Args:
        state: the law's state before the step.
        done: [N], whose episode ended by itself; with late cuts, False for those truncated in this step.
        same_step: whether a reset takes no step of its own (SAME_STEP, Stable-Baselines3).
        late_cuts: whether episodes are truncated in the next step instead, which is then not looked at (age 0); only
            where `same_step` is True.
    """
    xp = library(done)
    ages = reached(state, same_step)
    size = state.new_visits.shape[0]
    places = xp.where(ages < size, ages, size - 1)
    ends = xp.sum(xp.astype(done, state.time.dtype), dtype=state.time.dtype)
    here, over_here = count(places, size), count(places, size, done)
    state = state._replace(
        new_visits=state.new_visits + here,
        new_ends=state.new_ends + over_here,
        new_steps=state.new_steps + 1,
        pace=follow_pace(state.pace, ends),
        time=state.time + 1,
        natural_ends=state.natural_ends + ends,
    )

    def look(state: StaggerState, going: Array, here: Array, over_here: Array) -> tuple[StaggerState, Array]:
        return decide(state, going, here, over_here, same_step=same_step)

    def wait(state: StaggerState, going: Array, *_: Array) -> tuple[StaggerState, Array]:
        return state, xp.zeros_like(going, dtype=xp.bool)

    going = xp.where(done, 0, places)
    state, cut = when(state.active | looks(state, ages), look, wait, state, going, here, over_here)
    state = advance(state, ages, done, cut, same_step)
    return state._replace(ages=xp.where(cut, 0, state.ages)) if late_cuts else state, cut


def reached(state: StaggerState, same_step: bool) -> Array:
    """Return the ages at which episodes end or go on in this step: of the actions, or of the states they lead to."""
    if same_step:
        return state.ages
    return library(state.ages).where(state.restarting, 1, state.ages + 1)


def advance(state: StaggerState, ages: Array, done: Array, cut: Array, same_step: bool) -> StaggerState:
    """Return the state after the step."""
    over = done | cut
    if same_step:
        return state._replace(ages=library(ages).where(over, 1, ages + 1))
    return state._replace(ages=ages, restarting=over)


def looks(state: StaggerState, ages: Array) -> Array:
    """Return whether to compare the ages with their target in this step, though the law is quiet.

    Args:
        state: the law's state, this step's visits and ends included.
        ages: [N], at which episodes end or go on in this step.
    """
    steps = state.new_steps
    due = (steps >= state.wait) | ((steps % GLANCE == 0) & surprising(state))
    return due | outgrown(state, ages) | unusual(state.pace, state.end_rate)


def outgrown(state: StaggerState, ages: Array) -> Array:
    """Return whether two environments or more are older than any age known."""
    xp = library(ages)
    return xp.sum(xp.astype(ages > state.known, ages.dtype)) >= min(ages.shape[0], 2)


def follow_pace(pace: Array, ends: Array) -> Array:
    """Return the running mean of natural ends per step, this step's included."""
    return pace + (ends - pace) / _PACE


def unusual(pace: Array, rate: Array) -> Array:
    """Return whether chance does not explain how many episodes have ended in recent steps."""
    return abs(pace - rate) > _SURGE * (rate / (2 * _PACE - 1)) ** 0.5 + 2 / _PACE + ROOM


def surprising(state: StaggerState) -> Array:
    """Return whether chance does not explain how many have ended at ages at which episodes hardly ever end."""
    xp, usual = library(state.new_ends), state.new_steps * state.surprise_rate
    return xp.sum(xp.where(state.seldom, state.new_ends, 0.0)) > usual + _SURGE * usual**0.5 + 2 + ROOM


def decide(
    state: StaggerState, going: Array, here: Array, over_here: Array, *, same_step: bool
) -> tuple[StaggerState, Array]:
    """Bring survival up to date, compare the ages with it if that is due, and choose whom to truncate.

    Candidates are all whose episode goes on in this step and is not being reset in it. Nobody else is as old in the
    next state as the youngest of them, so that counts of ages are all that is needed to tell.

    Args:
        state: the law's state, this step's visits and ends included.
        going: [N], the age at which each episode goes on in this step, at most `max_age`; 0 where it ended by itself.
        here: [max_age + 1], how many episodes end or go on at each age.
        over_here: [max_age + 1], how many end by themselves at each age.
        same_step: whether a reset takes no step of its own.
    """
    xp, n, youngest = library(going), going.shape[0], 2 if same_step else 3
    ended = xp.sum(over_here)
    nobody = here[:1] * 0
    crowd = xp.concat([nobody, nobody + ended + here[0] - over_here[0], (here - over_here)[1:]])
    due = ~state.active | (state.new_steps >= LOOK[0])
    state = when(due, compare, survive, state, crowd, here)
    total = xp.cumulative_sum(state.survival)
    wanted = n / at(total, last(crowd > 0))
    owed = state.carry + wanted - ended
    least = -1 - 2 * wanted**0.5
    owed = pick(owed > least, owed, least)
    available = at_least(xp.sum(crowd[youngest:]) - 1, 0.0)  # somebody goes on, or two environments never grow old
    whole = xp.floor(at_least(owed, 0.0) + ROOM * n)
    number = pick(state.active & (n > 1), pick(whole < available, whole, available), 0.0)

    def some(state: StaggerState, going: Array, crowd: Array, number: Array) -> Array:
        quota = quotas(state, crowd, number, youngest=youngest)
        return drawn(state.seed, state.time, going, quota[1:])

    def none(state: StaggerState, going: Array, crowd: Array, number: Array) -> Array:
        return xp.zeros_like(going, dtype=xp.bool)

    cut = when(number > 0, some, none, state, going, crowd, number)
    left = owed - number  # more than a fraction where there were too few candidates, as with episodes of one action
    left = pick(left < -least, left, -least)
    carry = pick(state.active, left, 0.0)
    return state._replace(carry=carry, cuts=state.cuts + how_many(cut)), cut


def compare(state: StaggerState, crowd: Array, here: Array) -> StaggerState:
    """Bring the memories up to date, and decide by the ages whether environments are to be truncated, and when to look.

    Args:
        state: the law's state, this step's visits and ends included.
        crowd: how many environments will have each age if nobody is truncated.
        here: how many episodes end or go on at each age in this step.
    """
    xp, n = library(crowd), state.ages.shape[0]
    early = state.active | (state.new_steps < state.wait)
    wait = xp.where(early, LOOK[0], xp.where(state.wait < LOOK[1], 2 * state.wait, LOOK[1]))
    state = learn(state)
    total = xp.cumulative_sum(state.survival)
    distance = xp.max(xp.abs(xp.cumulative_sum(crowd) / n - total / total[-1])) * math.sqrt(n)
    episodes = xp.sum(state.visits[-1, :]) / at_least(total[-1], 1.0) / n
    uncertain = (1 + 1 / at_least(episodes, 0.25)) ** 0.5  # the target is an estimate, too
    unknown = at(state.survival, state.known + 1) > 0.5 / n + ROOM
    waking = ~state.active & (unknown | (distance > _ALARM * uncertain))
    lacking = 1 - at(total, last(here > 0)) / total[-1] > 0.75 / n  # older ages, for an environment or more
    calm = ~unknown & ~lacking & (distance <= _CALM * uncertain)
    active = (state.active | waking) & ~calm & (n > 1)
    return state._replace(wait=wait, active=active, carry=xp.where(waking, 0.0, state.carry), distance=distance)


def quotas(state: StaggerState, crowd: Array, number: Array, *, youngest: int) -> Array:
    """Return how many candidates of each age to truncate, `number` in all.

    Args:
        state: the law's state; survival is the target.
        crowd: how many environments will have each age if nobody is truncated.
        number: how many are truncated, at least one.
        youngest: the youngest age that candidates can have, and nobody else has.
    """
    xp = library(crowd)
    places = xp.arange(crowd.shape[0], dtype=state.known.dtype, **beside(crowd))
    crowd = xp.where(places >= youngest, crowd, 0.0)
    some = crowd > 0
    oldest = last(some)
    target = xp.where((places >= youngest) & (places <= oldest), state.survival, 0.0)
    wanted = (xp.sum(crowd) - number) * (target / at_least(xp.sum(target), TINY))
    too_many = xp.where((places < oldest) & some, xp.cumulative_sum(crowd - wanted), number)
    rising = running_max(xp.where(some, too_many, 0.0))
    falling = running_min_from_above(too_many)
    level = xp.where(some, (rising + falling) / 2, 0.0)
    level = running_max(at_least(xp.where(level < number, level, number), 0.0))
    offset = (hashed(xp, state.seed, -state.time, 0) >> 8) / 2.0**24
    passed = xp.floor(level + offset)
    return passed - xp.concat([passed[:1] * 0, passed[:-1]])


class Phase(NamedTuple):
    """How far the ages of a moment are from the steady state, as far as lengths are known."""

    distance: Array
    """Total variation between the ages and the stationary ones, without what chance adds for N environments."""
    noise: Array
    """Distance that N independent environments at steady state exceed once in a thousand."""
    average_episode_length: Array
    """Steps per episode in this stream: E[T], or E[T] - 1 where a reset takes no step."""
    unresolved: Array
    """Share of episodes that outlive every age seen."""
    known: Array
    """Whether an episode has ended; before that nothing can be said."""
    measured: Array
    """The total variation as it is, with what chance adds."""


def phase(state: StaggerState) -> Phase:
    """Return how far the ages are from the steady state.

    Ages are put into about N / 4 groups of equal stationary share. N independent environments at steady state show a
    total variation of about sqrt(G / (2 pi N)) in G groups; squares add.
    """
    state = learn(state)
    xp, n = library(state.survival), state.ages.shape[0]
    whole = state.ages.dtype
    survival, size = state.survival, state.survival.shape[0]
    places = xp.arange(size, dtype=whole, **beside(survival))
    inside = places <= state.known
    mean = xp.sum(xp.where(inside, survival, 0.0))
    share = xp.where(inside, survival, 0.0) / at_least(mean, TINY)
    most = min(max(n // 4, 2), _MOST_GROUPS)
    groups = xp.where(state.known > most, most, at_least(state.known, 1))
    middle = xp.cumulative_sum(share) - share / 2
    group = xp.astype(middle * groups, whole)
    group = xp.where(group < groups, group, groups - 1)
    group = xp.where(inside, group, most)  # older than any age known
    ages = xp.where(state.ages < size, state.ages, size - 1)
    found = count(xp.take(group, ages, axis=0), most + 1) / n
    wanted = count(group, most + 1, share)
    apart = 0.5 * xp.sum(xp.abs(found - wanted))
    spread = (wanted * (1 - wanted) / n) ** 0.5
    floor = 0.5 * math.sqrt(2 / math.pi) * xp.sum(spread)
    scatter = 0.5 * math.sqrt(1 - 2 / math.pi) * xp.sum(spread**2) ** 0.5
    return Phase(
        distance=at_least(apart**2 - floor**2, 0.0) ** 0.5,
        noise=at_least((floor + _RARE * scatter) ** 2 - floor**2, 0.0) ** 0.5,
        average_episode_length=mean + at(survival, state.known + 1),
        unresolved=at(survival, state.known + 1),
        known=xp.sum(state.ends[-1, :]) > 0,
        measured=apart,
    )
