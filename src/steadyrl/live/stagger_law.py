"""The stagger law: which environments to truncate now, so that their ages are the best that is possible at every step.

N environments start together. Let S(k) = P(an episode has k steps or more), Z(t) = S(1) + ... + S(t); at steady state
an environment has age k with probability S(k) / E[L]. No age exceeds the time since the start, so at time t the ages
are at least P(A > t) away from the steady state. Truncating, after step t, each running episode with probability
S(t+1) / Z(t+1) attains that bound at every t (`lengths.anytime` has the proof and the exact numbers).

As feedback, which also serves a policy that learns: with K the oldest age present, N / Z(K) episodes should begin in a
step. Natural ends supply most of them; what they do not supply is truncated where ages are most overfull against
S(k) / Z(K). The law has three parts.

*Survival* S is the Kaplan-Meier estimate from the environments' own visits and ends at each age, with three memories:
the last 8 and 64 visits to an age, and 8 mean episode lengths. Where the shorter memory contradicts the rest of the
longer one (5 standard errors at one age, 4.5 over all ages up to one), the longer one is replaced: an unchanged policy
has a long memory, and a changed one shows within a few episodes.

*When.* The law is active while the longest known age is still survived by more than half an environment, or when the
ages are further from the steady state than chance explains: by 2 / sqrt(N) in the distribution function, which N
independent environments exceed about once in a thousand looks. It is quiet again below 1.2 / sqrt(N). While it is quiet
nobody is truncated, and it looks every 16 steps, or at once if an age is new or unusually many episodes end together.

*Who.* Environments are truncated in whole numbers, the fraction is carried over. With the candidates in order of age,
let D(i) be how many of the first i are too many against the target. The non-decreasing function that is closest to D
is the mean of its running maximum from below and its running minimum from above; whoever stands where that passes a
whole number is truncated. So truncations are spread over the ages, and take away what is most overfull.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

LOOK = 16
"""Steps between two looks while the law is quiet."""
_PER_VISIT = np.log1p(-1 / np.array([[8.0], [64.0]]))  # memories in visits to an age: what one visit makes forgotten
_EPISODES = 8.0  # the longest memory, in mean episode lengths
_AT_ONE_AGE, _UP_TO_AN_AGE = 5.0, 4.5  # standard errors that contradict a longer memory
_KEPT = 4.0  # visits that a contradicted memory keeps of the shorter one
_ALARM, _CALM = 2.0, 1.2  # distances in units of 1 / sqrt(N)
_SURGE = 5.0  # standard deviations of the number of ends in a step
_FAINT = 0.5  # visits below which memories are not compared
_KNOWN = 0.01  # visits below which an age is not known: one visit lasts for some 37 mean episode lengths


class StaggerState(NamedTuple):
    """Everything that the law remembers; arrays of ages have a place for each age 0, 1, ..., `max_age`."""

    ages: NDArray[np.int64]
    """[N]: the age of the state that each environment is in."""
    restarting: Flags
    """[N]: whether the next step of the environment is its reset (NEXT_STEP only)."""
    new_visits: Array
    """[max_age + 1]: visits to each age since the last look."""
    new_ends: Array
    """[max_age + 1]: natural ends at each age since the last look."""
    new_steps: float
    visits: Array
    """[3, max_age + 1]: visits in the three memories, the shortest first."""
    ends: Array
    """[3, max_age + 1]: natural ends in the three memories."""
    survival: Array
    """[max_age + 2]: S(k) as of the last look; 0 beyond the longest known age + 1."""
    known: int
    """The longest known age."""
    active: bool
    carry: float
    """Beginnings of episodes that are still owed, as a fraction of one."""
    distance: float
    """Largest difference between the distribution functions of the ages and of the target, times sqrt(N)."""
    time: int
    cuts: int
    """Truncations so far, over all environments."""
    natural_ends: int
    seed: int


def init(num_envs: int, max_age: int = 64, *, seed: int = 0) -> StaggerState:
    """Return the state of environments that have all just been reset."""
    return StaggerState(
        ages=np.ones(num_envs, dtype=np.int64),
        restarting=np.zeros(num_envs, dtype=bool),
        new_visits=np.zeros(max_age + 1),
        new_ends=np.zeros(max_age + 1),
        new_steps=0.0,
        visits=np.zeros((3, max_age + 1)),
        ends=np.zeros((3, max_age + 1)),
        survival=np.append([0.0, 1.0], np.zeros(max_age)),
        known=0,
        active=True,
        carry=0.0,
        distance=0.0,
        time=0,
        cuts=0,
        natural_ends=0,
        seed=seed,
    )


def step(state: StaggerState, done: Flags, *, same_step: bool) -> tuple[StaggerState, Flags]:
    """Take in whose episode ended in this step, and return whose episode to truncate in it.

    Args:
        state: the law's state before the step.
        done: [N], whose episode ended by itself.
        same_step: whether a reset takes no step of its own (SAME_STEP, Stable-Baselines3).
    """
    ages = reached(state, same_step)
    state = state._replace(
        new_visits=state.new_visits + count(ages, len(state.new_visits)),
        new_ends=state.new_ends + count(ages[done], len(state.new_ends)),
        new_steps=state.new_steps + 1,
        time=state.time + 1,
        natural_ends=state.natural_ends + int(done.sum()),
    )
    cut = nobody(len(done))
    if looks(state, int(ages.max()), int(done.sum())):
        state, cut = decide(state, ages, done, state.restarting, same_step=same_step)
    return advance(state, ages, done, cut, same_step), cut


def reached(state: StaggerState, same_step: bool) -> NDArray[np.int64]:
    """Return the ages at which episodes end or go on in this step: of the actions, or of the states they lead to."""
    if same_step:
        return state.ages
    return np.where(state.restarting, 1, state.ages + 1)


def advance(state: StaggerState, ages: NDArray[np.int64], done: Flags, cut: Flags, same_step: bool) -> StaggerState:
    """Return the state after the step."""
    over = done | cut
    if same_step:
        return state._replace(ages=np.where(over, 1, ages + 1))
    return state._replace(ages=ages, restarting=over)


def looks(state: StaggerState, oldest: int, ends: int) -> bool:
    """Return whether this step is one in which ages are compared with their target."""
    return bool(state.active or state.time % LOOK == 0 or oldest > state.known or ends > most_ends(state))


def most_ends(state: StaggerState) -> float:
    """Return the number of ends in one step above which they are unusually many."""
    expected = len(state.ages) / max(float(state.survival.sum()), 1.0)
    return expected + _SURGE * float(np.sqrt(expected)) + 2


def decide(
    state: StaggerState, ages: NDArray[np.int64], done: Flags, restarting: Flags, *, same_step: bool
) -> tuple[StaggerState, Flags]:
    """Bring survival up to date, compare the ages with it, and choose whom to truncate.

    Args:
        state: the law's state, this step's visits and ends included.
        ages: [N], at which episodes end or go on in this step.
        done: [N], whose episode ended by itself in this step.
        restarting: [N], who is being reset in this step (NEXT_STEP only).
        same_step: whether a reset takes no step of its own.
    """
    n = len(done)
    state = learn(state)
    total = np.cumsum(state.survival)
    following = np.where(done, 1, ages + 1)
    share = np.cumsum(count(following, len(total))) / n
    distance = float(np.abs(share - total / total[-1]).max()) * np.sqrt(n)
    episodes = float(state.visits[-1].sum()) / max(float(total[-1]), 1.0) / n
    uncertain = np.sqrt(1 + 1 / max(episodes, 0.25))  # the target is an estimate, too
    unknown = float(state.survival[state.known + 1]) > 0.5 / n
    waking = not state.active and (unknown or distance > _ALARM * uncertain)
    calm = not unknown and distance <= _CALM * uncertain
    active = bool((state.active or waking) and not calm and n > 1)
    wanted = n / float(total[int(following.max())])
    carry = max((0.0 if waking else state.carry) + wanted - float(done.sum()), -1 - 2 * np.sqrt(wanted))
    candidates = ~done if same_step else ~done & ~restarting
    number = int(min(max(np.floor(carry), 0), candidates.sum())) if active else 0
    cut = nobody(n)
    if number:
        cut = choose(state, following, candidates, number, youngest=2 if same_step else 3)
    return (
        state._replace(
            active=active, carry=carry - number if active else 0.0, distance=distance, cuts=state.cuts + number
        ),
        cut,
    )


def learn(state: StaggerState) -> StaggerState:
    """Fold what was seen since the last look into the three memories, and compute survival from the longest."""
    mean = max(float(state.survival.sum()), 1.0)
    by_visits = np.exp(_PER_VISIT * state.new_visits)
    by_time = np.full((1, len(state.new_visits)), np.exp(-state.new_steps / (_EPISODES * mean)))
    keep = np.concatenate([by_visits, by_time])
    visits = state.visits * keep + state.new_visits
    ends = state.ends * keep + state.new_ends
    visits, ends = _believed(visits, ends)
    seen, ended = visits[-1], ends[-1]
    places = np.arange(len(seen) + 1)
    known = int((places[:-1] * (seen >= _KNOWN)).max())
    hazard = np.minimum(ended / np.maximum(seen, 1e-300), 1.0)
    survival = np.concatenate([[0.0, 1.0], np.cumprod(1 - hazard[1:])]) * (places <= known + 1)
    return state._replace(
        new_visits=np.zeros_like(state.new_visits),
        new_ends=np.zeros_like(state.new_ends),
        new_steps=0.0,
        visits=visits,
        ends=ends,
        survival=survival,
        known=known,
    )


def _believed(visits: Array, ends: Array) -> tuple[Array, Array]:
    """Return the memories, each replaced where the next shorter one contradicts the rest of it.

    Replacing goes upwards: the middle memory first, then the longest, by what the middle one is by then.
    """
    replaced, _ = _contradicted(visits[:-1], ends[:-1], visits[1:], ends[1:])
    if not replaced.any():  # then none of what follows changes anything
        return visits, ends
    visits, ends = visits.copy(), ends.copy()
    for j in range(1, len(visits)):
        pair = slice(j - 1, j), slice(j, j + 1)
        found, weights = _contradicted(visits[pair[0]], ends[pair[0]], visits[pair[1]], ends[pair[1]], first=j - 1)
        visits[j] = np.where(found[0], weights[0] * visits[j - 1], visits[j])
        ends[j] = np.where(found[0], weights[0] * ends[j - 1], ends[j])
    return visits, ends


def _contradicted(
    short_visits: Array, short_ends: Array, long_visits: Array, long_ends: Array, first: int = 0
) -> tuple[Flags, Array]:
    """Return where a longer memory (rows from `first` on) is contradicted, and the weight of what takes its place."""
    rest = np.maximum(long_visits - short_visits, 0.0)
    comparable = rest > _FAINT
    known = np.maximum(rest, _FAINT)
    compared = short_visits * comparable
    hazard = np.minimum(np.maximum(long_ends - short_ends, 0.0) / known, 1.0)
    expected = compared * hazard
    variance = expected * (1 - hazard) * (1 + compared / known)
    excess = short_ends * comparable - expected
    here = np.abs(excess) > _AT_ONE_AGE * np.sqrt(variance + 1)
    beyond = np.abs(np.cumsum(excess, axis=1)) > _UP_TO_AN_AGE * np.sqrt(np.cumsum(variance, axis=1) + 1)
    # The shortest memory has too few visits to an age to judge all of them together.
    everywhere = beyond.any(axis=1, keepdims=True) & (np.arange(first, first + len(beyond))[:, None] > 0)
    replaced = (here | everywhere) & (short_visits > 0)
    weight = np.where(here, np.minimum(1.0, _KEPT / np.maximum(short_visits, 1e-9)), 1.0)
    return replaced, weight


def choose(
    state: StaggerState, following: NDArray[np.int64], candidates: Flags, number: int, *, youngest: int
) -> Flags:
    """Return which `number` of the candidates to truncate, given the ages that follow if nobody is."""
    n = len(following)
    noise = hashed(state.seed, state.time, n)
    order = np.lexsort((noise, np.where(candidates, following, len(state.survival))))
    ages = following[order]
    place = np.arange(n)
    available = int(candidates.sum())
    kept = available - number
    reachable = np.arange(len(state.survival))
    target = np.where((reachable >= youngest) & (reachable <= following.max()), state.survival, 0.0)
    below = np.cumsum(target)
    whole = np.maximum(below[-1], 1e-300)
    crowd = count(following[candidates], len(target))
    first = np.cumsum(crowd) - crowd
    within = (place + 1 - first[ages]) / np.maximum(crowd[ages], 1.0)
    too_many = place + 1 - kept * ((below[ages] - target[ages]) + target[ages] * within) / whole
    too_many = np.where(place < available, too_many, float(number))
    rising = np.maximum(np.maximum.accumulate(too_many), 0.0)
    falling = np.minimum.accumulate(too_many[::-1])[::-1]
    level = np.clip((rising + np.minimum(falling, float(number))) / 2, 0.0, float(number))
    offset = hashed(state.seed, -state.time, 1)[0] / 2**32
    passed = np.floor(level + offset)
    chosen = (passed > np.concatenate([[0.0], passed[:-1]])) & (place < available)
    cut = np.zeros(n, dtype=bool)
    cut[order] = chosen
    return cut


def nobody(num_envs: int) -> Flags:
    """Return flags of which none is set."""
    return np.zeros(num_envs, dtype=bool)


def with_room(state: StaggerState, max_age: int) -> StaggerState:
    """Return the state with room for ages up to `max_age`, at least doubled where there was less."""
    more = max(max_age + 1, 2 * len(state.new_visits)) - len(state.new_visits)
    if max_age < len(state.new_visits):
        return state
    return state._replace(
        new_visits=np.pad(state.new_visits, (0, more)),
        new_ends=np.pad(state.new_ends, (0, more)),
        visits=np.pad(state.visits, ((0, 0), (0, more))),
        ends=np.pad(state.ends, ((0, 0), (0, more))),
        survival=np.pad(state.survival, (0, more)),
    )


def count(ages: NDArray[np.int64], size: int) -> Array:
    """Return how many have each age 0, ..., size - 1; older ones count as the oldest."""
    return np.bincount(np.minimum(ages, size - 1), minlength=size).astype(np.float64)


def hashed(seed: int, time: int, size: int) -> NDArray[np.int64]:
    """Return 32-bit pseudo-random numbers from (seed, time, 0), (seed, time, 1), ...

    Xor-shifts and odd multipliers, kept to 32 bits, are the same in every array library, and what is drawn does not
    depend on what was drawn before.
    """
    mask = 0xFFFFFFFF
    start = ((seed & mask) + (time & mask) * 0x85EBCA6B) & mask
    x = (np.arange(size, dtype=np.int64) * 0x9E3779B9 + start) & mask
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1)):
        x = ((x ^ (x >> shift)) * factor) & mask
    return x
