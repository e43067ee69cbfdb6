"""Hostile arguments: every function gives a value or a sentence, and takes nothing for what it is not."""

import math
import warnings
from functools import partial

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steadyrl.errors import StaggerError, StatisticsError, SteadyrlError, WrapperError
from steadyrl.integrations.jax import stagger, statistics
from steadyrl.integrations.jax.brax import phase as brax_phase
from steadyrl.integrations.jax.brax import stagger_wrap_fn
from steadyrl.integrations.jax.gymnax import StaggeredGymnax

LAW, FAIR = stagger.init(2, 5, 0), statistics.init(2, 5)
NOBODY, ONES, KEYS = jnp.zeros(2, dtype=bool), jnp.ones(2), jax.random.split(jax.random.key(0), 2)
SEEN = statistics.step(FAIR, ONES, NOBODY)
CARTPOLE, PARAMS = gymnax.make("CartPole-v1")
GYMNAX = StaggeredGymnax(CARTPOLE, 2)
START = GYMNAX.reset(KEYS, PARAMS)[1]

HOSTILE = [
    None, "no", b"x", object(), [], {}, (), -1, 0, 1.5, math.nan, math.inf, 10**30, True, 1j, range(2), iter([1, 2]),
    np.array([1, 2]), np.array(["a", "b"]), np.array([None, 1], dtype=object), np.datetime64("2026-01-01"),
    np.ma.masked_array([1, 0], [1, 0]), jnp.array([1.0, jnp.nan]), jnp.ones((2, 1)), jax.random.key(0), KEYS, len, LAW,
]  # fmt: skip

CALLS = {
    "init, num_envs": lambda x: stagger.init(x, 5, 0),
    "init, max_age": lambda x: stagger.init(2, x, 0),
    "init, key": lambda x: stagger.init(2, 5, x),
    "step, state": lambda x: stagger.step(x, NOBODY),
    "step, done": lambda x: stagger.step(LAW, x),
    "step, same_step": lambda x: stagger.step(LAW, NOBODY, same_step=x),
    "step, late_cuts": lambda x: stagger.step(LAW, NOBODY, late_cuts=x),
    "restart": stagger.restart,
    "phase": stagger.phase,
    "select, over": lambda x: stagger.select(x, ONES, ONES),
    "select, fresh": lambda x: stagger.select(NOBODY, x, ONES),
    "select, current": lambda x: stagger.select(NOBODY, ONES, x),
    "statistics.init, num_envs": lambda x: statistics.init(x, 5),
    "statistics.init, max_age": lambda x: statistics.init(2, x),
    "statistics.step, state": lambda x: statistics.step(x, ONES, NOBODY),
    "statistics.step, rewards": lambda x: statistics.step(FAIR, x, NOBODY),
    "statistics.step, done": lambda x: statistics.step(FAIR, ONES, x),
    "statistics.step, cut": lambda x: statistics.step(FAIR, ONES, NOBODY, x),
    "statistics.step, success": lambda x: statistics.step(FAIR, ONES, NOBODY, None, x),
    "statistics.step, same_step": lambda x: statistics.step(FAIR, ONES, NOBODY, same_step=x),
    "statistics.step, memory": lambda x: statistics.step(FAIR, ONES, NOBODY, memory=x),
    "means": statistics.means,
    "report": statistics.report,
    "report, level": lambda x: statistics.report(SEEN, level=x),
    "report, with_success": lambda x: statistics.report(SEEN, with_success=x),
    "report, time_limit": lambda x: statistics.report(SEEN, time_limit=x),
    "StaggeredGymnax, env": lambda x: StaggeredGymnax(x, 2),
    "StaggeredGymnax, num_envs": lambda x: StaggeredGymnax(CARTPOLE, x),
    "StaggeredGymnax, max_age": lambda x: StaggeredGymnax(CARTPOLE, 2, max_age=x),
    "gymnax reset, keys": lambda x: GYMNAX.reset(x, PARAMS),
    "gymnax step, keys": lambda x: GYMNAX.step(x, START, NOBODY.astype(int), PARAMS),
    "gymnax step, state": lambda x: GYMNAX.step(KEYS, x, NOBODY.astype(int), PARAMS),
    "gymnax step, actions": lambda x: GYMNAX.step(KEYS, START, x, PARAMS),
    "gymnax phase": GYMNAX.phase,
    "stagger_wrap_fn": stagger_wrap_fn,
    "brax phase": brax_phase,
}


@pytest.mark.parametrize("what", CALLS)
def test_hostile_arguments_give_values_or_sentences(what):
    """They raised what JAX, numpy or Python raises, and "no" was True."""
    refused = 0
    for value in HOSTILE:
        if what == "gymnax step, actions" and (value is KEYS or getattr(value, "ndim", 0) == 2):
            continue  # an action that the environment itself cannot take
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                CALLS[what](value)
            except SteadyrlError:
                refused += 1
    assert refused >= 10


@pytest.mark.parametrize(
    ("error", "call", "words"),
    [
        (
            StaggerError,
            lambda: stagger.step(LAW, NOBODY, same_step="no"),
            "same_step is 'no'; it must be True or False",
        ),
        (StatisticsError, lambda: statistics.step(FAIR, ONES, NOBODY, same_step=0), "same_step is 0"),
        (StatisticsError, lambda: statistics.step(FAIR, ONES, NOBODY, memory=math.nan), "memory is nan"),
        (StaggerError, lambda: stagger.step(LAW, np.ma.masked_array([1, 0], [1, 0])), "masked"),
        (StaggerError, lambda: stagger.step(LAW, np.array(["no", "no"])), "must be numbers or booleans"),
        (StaggerError, lambda: stagger.step(LAW, np.array([1, 0], dtype="m8[s]")), "must be numbers or booleans"),
        (StaggerError, lambda: stagger.select(NOBODY, ONES, ONES[:, None]), r"shape \(2,\) .* in fresh, and \(2, 1\)"),
        (StaggerError, lambda: stagger.select(NOBODY, {"a": ONES}, {"b": ONES}), "structure"),
        (StaggerError, lambda: stagger.phase(jax.vmap(partial(stagger.init, 2, 5))(KEYS)), "several runs"),
        (StaggerError, lambda: stagger.init(2, 5, True), "key is True"),
        (StatisticsError, lambda: jax.jit(statistics.report)(SEEN), "not inside jit or vmap"),
        (
            WrapperError,
            lambda: GYMNAX.step(KEYS, START, jnp.zeros(3, dtype=int), PARAMS),
            "first dimension must be that of the 2",
        ),
        (WrapperError, lambda: stagger_wrap_fn("full"), "wrap is 'full'; it must be a function"),
        (WrapperError, lambda: brax_phase(START), "has no info"),
    ],
)
def test_what_is_refused_says_why(error, call, words):
    with pytest.raises(error, match=words):
        call()


def test_numpys_arrays_and_numbers_count_as_flags():
    for done in (np.array([True, False]), np.array([1.0, 0.0], np.float32), [1, 0], jnp.array([1, 0], jnp.bfloat16)):
        assert (stagger.step(LAW, done)[0].ages == jnp.array([1, 2])).all()
