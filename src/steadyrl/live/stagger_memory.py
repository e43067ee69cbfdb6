"""What the stagger law remembers: the state, and the survival of episodes by the environments' own visits and ends.

Survival S is the Kaplan-Meier estimate, with four memories: the last 3, 12 and 48 visits to an age, and 8 mean episode
lengths. Where a shorter memory contradicts the rest of the longest (a log likelihood ratio above 6, at one age or over
all ages up to one), it takes its place. `stagger_law` decides with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from steadyrl.live.array_library import (
    Array,
    array_numpy,
    at_least,
    beside,
    last,
    library,
    number_types,
    seed_type,
    when,
)

LOOK = 8, 512
"""Steps between two looks while the law is quiet: at first, or after something unusual, and at most; it doubles."""
_MEMORIES = (3.0, 12.0, 48.0)  # the shorter memories, in visits to an age
_EPISODES = 8.0  # the longest memory, in mean episode lengths
_AT_ONE_AGE, _UP_TO_AN_AGE = 6.0, 6.0  # logarithms of the likelihood ratio that contradict the longest memory
_SELDOM = 0.25  # hazards below this share of the mean one make an end a surprise
_FAINT = 0.5  # visits below which memories are not compared
_KNOWN = 0.01  # visits below which an age is not known: one visit lasts for some 37 mean episode lengths
TINY = 1e-30  # instead of a zero that would be divided by
ROOM = 1e-6  # by which rounding may move a number over a threshold, in 32 bits too


class StaggerState(NamedTuple):
    """Everything that the law remembers; arrays of ages have a place for each age 0, 1, ..., `max_age`."""

    ages: Array
    """[N]: the age of the state that each environment is in."""
    restarting: Array
    """[N]: whether the next step of the environment is its reset (NEXT_STEP only)."""
    new_visits: Array
    """[max_age + 1]: visits to each age since the last look."""
    new_ends: Array
    """[max_age + 1]: natural ends at each age since the last look."""
    new_steps: Array
    """Steps since the last look."""
    pace: Array
    """Running mean of natural ends per step."""
    visits: Array
    """[4, max_age + 1]: visits in the memories, the shortest first."""
    ends: Array
    """[4, max_age + 1]: natural ends in the memories."""
    survival: Array
    """[max_age + 2]: S(k) as of the last look; 0 beyond the longest known age + 1."""
    known: Array
    """The longest known age."""
    seldom: Array
    """[max_age + 1]: ages at which episodes hardly ever end; an end at one of them is a surprise."""
    end_rate: Array
    """Natural ends that are expected in a step."""
    surprise_rate: Array
    """Surprises that are expected in a step."""
    wait: Array
    """Steps from the last look to the next one, if nothing unusual happens before."""
    active: Array
    """Whether environments are being truncated."""
    carry: Array
    """Beginnings of episodes that are still owed, as a fraction of one."""
    distance: Array
    """Largest difference between the distribution functions of the ages and of the target, times sqrt(N)."""
    time: Array
    cuts: Array
    """Truncations so far, over all environments."""
    natural_ends: Array
    seed: Array


def init(num_envs: int, max_age: int = 64, *, seed: Any = 0, xp: Any = array_numpy, device: Any = None) -> StaggerState:
    """Return the state of environments that have all just been reset.

    Args:
        num_envs: number of environments.
        max_age: the oldest age that is told apart from older ones; a time limit, if there is one.
        seed: seed of the choice between environments of the same age, 32 bits.
        xp: functions of the array library.
        device: where the arrays are to be; None means the library's default.
    """
    real, whole = number_types(xp)
    place = {} if device is None else {"device": device}

    def zeros(*shape: int) -> Array:
        return xp.zeros(shape, dtype=real, **place)

    def number(value: Any, kind: Any) -> Array:
        return xp.asarray(value, dtype=kind, **place)

    return StaggerState(
        ages=xp.ones(num_envs, dtype=whole, **place),
        restarting=xp.zeros(num_envs, dtype=xp.bool, **place),
        new_visits=zeros(max_age + 1),
        new_ends=zeros(max_age + 1),
        new_steps=number(0, whole),
        pace=number(0.0, real),
        visits=zeros(len(_MEMORIES) + 1, max_age + 1),
        ends=zeros(len(_MEMORIES) + 1, max_age + 1),
        survival=xp.concat([number([0.0, 1.0], real), zeros(max_age)]),
        known=number(0, whole),
        seldom=xp.zeros(max_age + 1, dtype=xp.bool, **place),
        end_rate=number(float(num_envs), real),
        surprise_rate=number(0.0, real),
        wait=number(LOOK[0], whole),
        active=number(True, xp.bool),
        carry=number(0.0, real),
        distance=number(0.0, real),
        time=number(0, whole),
        cuts=number(0, whole),
        natural_ends=number(0, whole),
        seed=xp.asarray(seed, **place) if not isinstance(seed, int) else number(seed, seed_type(xp)),
    )


def learn(state: StaggerState) -> StaggerState:
    """Fold what was seen since the last look into the memories, and compute survival from the longest."""
    xp, new = library(state.survival), state.new_visits
    mean = at_least(xp.sum(state.survival), 1.0)
    by_time = xp.exp(-state.new_steps / (_EPISODES * mean))
    kept = [xp.where(new < size, xp.exp(-new / size), 0.0) for size in _MEMORIES]  # enough new visits are enough
    keep = xp.stack([*kept, xp.zeros_like(new) + by_time])
    visits, ends = state.visits * keep + new, state.ends * keep + state.new_ends
    visits, ends = when(xp.max(ends[-1, :]) > 0, _believed, _as_they_are, visits, ends)  # no end contradicts nothing
    seen, ended = visits[-1, :], ends[-1, :]
    hazard, survival, known = _survival(state, seen, ended)
    mean = at_least(xp.sum(survival), 1.0)
    seldom = (ended + 0.5) * mean < _SELDOM * seen  # half an end more: few visits prove nothing
    rate = state.ages.shape[0] / mean
    return state._replace(
        new_visits=xp.zeros_like(new),
        new_ends=xp.zeros_like(new),
        new_steps=xp.zeros_like(state.new_steps),
        visits=visits,
        ends=ends,
        survival=survival,
        known=known,
        seldom=seldom,
        end_rate=rate,
        surprise_rate=rate * xp.sum(xp.where(seldom, hazard * survival[:-1], 0.0)),
    )


def _believed(visits: Array, ends: Array) -> tuple[Array, Array]:
    """Return the memories, the longest one replaced where a shorter one contradicts the rest of it.

    The evidence is the logarithm of a likelihood ratio: at one age, of two hazards (the shorter memory's, and that of
    the rest) against a single one; over all ages up to one, of the number of ends against the number expected.
    """
    xp = library(visits)
    all_visits, all_ends, some, ended = visits[-1:, :], ends[-1:, :], visits[:-1, :], ends[:-1, :]
    rest, rest_ended = at_least(all_visits - some, 0.0), at_least(all_ends - ended, 0.0)
    hazard = all_ends / at_least(all_visits, TINY)
    here = _likelihood(some, ended, hazard) + _likelihood(rest, rest_ended, hazard)
    known = rest > _FAINT
    total = xp.cumulative_sum(xp.where(known, ended, 0.0), axis=1)
    expected = xp.cumulative_sum(xp.where(known, some * hazard, 0.0), axis=1)
    so_far = xp.max(_times_log(total, expected) - total + expected, axis=1)
    evidence = at_least(xp.where(known, here / _AT_ONE_AGE, 0.0), 0.0)
    overall = (so_far / _UP_TO_AN_AGE)[:, None]
    evidence = xp.where((evidence > overall) | (some == 0), evidence, overall)
    contradicted = xp.max(evidence, axis=0) > 1 + ROOM
    found: tuple[Array, Array]
    found = when(xp.any(contradicted), _replaced, _as_they_are, visits, ends, evidence, contradicted)
    return found


def _as_they_are(visits: Array, ends: Array, *_: Array) -> tuple[Array, Array]:
    return visits, ends


def _replaced(visits: Array, ends: Array, evidence: Array, contradicted: Array) -> tuple[Array, Array]:
    """Replace, at each age, all memories that are longer than the one with most evidence by that one."""
    xp, count = library(visits), visits.shape[0]
    believed = contradicted & (evidence >= xp.max(evidence, axis=0))
    rows, ended = [visits[j, :] for j in range(count)], [ends[j, :] for j in range(count)]
    for j in range(count - 1):
        for longer in range(j + 1, count):
            rows[longer] = xp.where(believed[j, :], rows[j], rows[longer])
            ended[longer] = xp.where(believed[j, :], ended[j], ended[longer])
    return xp.stack(rows), xp.stack(ended)


def _likelihood(visits: Array, ends: Array, hazard: Array) -> Array:
    """Return by how much the hazard of these visits explains their ends better than another one does."""
    survived = visits - ends
    return _times_log(ends, visits * hazard) + _times_log(survived, visits * (1 - hazard))


def _times_log(found: Array, expected: Array) -> Array:
    """Return found * log(found / expected), which is 0 where nothing was found."""
    xp = library(found)
    some = found > 1e-9
    return xp.where(some, found * xp.log(xp.where(some, found, 1.0) / at_least(expected, TINY)), 0.0)


def survive(state: StaggerState, *_: Array) -> StaggerState:
    """Bring survival alone up to date, with what was seen since the last look beside the longest memory."""
    _, survival, known = _survival(state, state.visits[-1, :] + state.new_visits, state.ends[-1, :] + state.new_ends)
    return state._replace(survival=survival, known=known)


def _survival(state: StaggerState, seen: Array, ended: Array) -> tuple[Array, Array, Array]:
    """Return the hazards, S (Kaplan-Meier), and the longest known age."""
    xp = library(seen)
    places = xp.arange(seen.shape[0] + 1, dtype=state.known.dtype, **beside(seen))
    known = last(seen >= _KNOWN)
    hazard = ended / at_least(seen, TINY)
    lived = xp.where(hazard < 1.0, 1 - hazard, 0.0)[1:]
    survival = xp.concat([state.survival[:1] * 0, state.survival[:1] * 0 + 1, xp.cumulative_prod(lived)])
    return hazard, xp.where(places <= known + 1, survival, 0.0), known


def with_room(state: StaggerState, max_age: int) -> StaggerState:
    """Return the state with room for ages up to `max_age`; where there was less, it grows by quarters until it fits.

    So the room depends on the oldest age alone, not on when it was asked for (reports ask for it, too): sums of tables
    of another length differ in the last digit.
    """
    size = room = state.new_visits.shape[0]
    if max_age < size:
        return state
    while room <= max_age:
        room += max(room // 4, 1)
    more = room - size
    names = "new_visits", "new_ends", "seldom", "visits", "ends", "survival"
    return state._replace(**{name: _wider(getattr(state, name), more) for name in names})


def _wider(table: Array, more: int) -> Array:
    xp = library(table)
    room = xp.zeros((*table.shape[:-1], more), dtype=table.dtype, **beside(table))
    return xp.concat([table, room], axis=-1)
