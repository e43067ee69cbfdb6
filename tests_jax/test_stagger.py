"""`integrations.jax.stagger`: pure functions for jit, scan and vmap that copy nothing to the host."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from random_streams import MAX_AGE, random_stream
from steadyrl.errors import StaggerError
from steadyrl.integrations.jax import stagger
from steadyrl.live import stagger_law


def fixed_length(state, _, *, length, **options):
    return stagger.step(state, state.ages >= length, **options)


def test_with_a_fixed_length_all_ages_are_equally_often_after_one_episode():
    state = stagger.init(60, 32, jax.random.key(0))
    state, cuts = jax.lax.scan(partial(fixed_length, length=12), state, length=12)
    np.testing.assert_array_equal(np.bincount(state.ages, minlength=13)[1:], 5)
    state, cuts = jax.lax.scan(partial(fixed_length, length=12), state, length=60)
    assert not cuts.any()
    assert stagger.phase(state).distance <= stagger.phase(state).noise
    assert stagger.phase(state).average_episode_length == pytest.approx(12)


def test_it_is_the_law_with_the_seed_of_the_key():
    key = jax.random.key(5)
    _, ended, _ = random_stream(1, sizes=(64,))
    state = stagger.init(64, MAX_AGE, key)
    law = stagger_law.init(64, MAX_AGE, seed=5)
    _, found = jax.lax.scan(stagger.step, state, jnp.asarray(ended))
    wanted = []
    for done in ended:
        law, cut = stagger_law.step(law, done, same_step=True)
        wanted.append(cut)
    np.testing.assert_array_equal(found, wanted)
    assert np.sum(wanted) > 100


def test_keys_of_both_kinds_and_seeds_give_the_same():
    states = [stagger.init(8, 16, key) for key in (7, np.int64(7), jax.random.key(7), jax.random.PRNGKey(7))]
    assert len({int(state.seed) for state in states}) == 1


@pytest.mark.parametrize("options", [{}, {"same_step": False}, {"late_cuts": True}])
def test_nothing_is_copied_to_the_host_in_a_step(options):
    step = partial(stagger.step, **options)
    state, done = stagger.init(64, 32, jax.random.key(0)), jnp.zeros(64, dtype=bool)
    names = set(primitives(jax.make_jaxpr(step)(state, done).jaxpr))
    assert "cond" in names
    assert "scatter-add" in names
    assert not [name for name in names if "callback" in name or "infeed" in name or "outfeed" in name]
    compiled = jax.jit(step)
    compiled(state, done)
    with jax.transfer_guard("disallow"):
        for _ in range(40):
            state, cut = compiled(state, done)
    assert cut.shape == (64,)


def primitives(jaxpr):
    """The names of all primitives of a jaxpr, those of its inner ones included."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                    yield from primitives(getattr(inner, "jaxpr", inner))


def test_a_callback_would_be_found_in_the_jaxpr():
    def step(x):
        return jax.lax.cond(x > 0, lambda x: jax.pure_callback(lambda y: y, x, x), lambda x: x, x)

    assert "pure_callback" in set(primitives(jax.make_jaxpr(step)(1.0).jaxpr))


def test_many_seeds_under_vmap_are_the_single_ones():
    def run(key):
        return jax.lax.scan(partial(fixed_length, length=9), stagger.init(32, 16, key), length=20)

    keys = jax.random.split(jax.random.key(1), 5)
    many = jax.vmap(run)(keys)
    for i, key in enumerate(keys):
        one = run(key)
        jax.tree.map(np.testing.assert_array_equal, one, jax.tree.map(lambda x, i=i: x[i], many))


def test_restart_puts_everybody_at_age_one_and_keeps_the_lengths():
    state, _ = jax.lax.scan(partial(fixed_length, length=12), stagger.init(60, 32, 0), length=60)
    again = stagger.restart(state)
    assert (again.ages == 1).all()
    np.testing.assert_array_equal(again.survival, state.survival)
    again, cuts = jax.lax.scan(partial(fixed_length, length=12), again, length=60)
    assert cuts.any()
    assert again.distance < 1.8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: stagger.init(0, 8, 0), "num_envs is 0"),
        (lambda: stagger.init(8, 0.5, 0), "max_age is 0.5"),
        (lambda: stagger.init(8, 8, 0.5), "key is 0.5; it must be a single key of jax.random"),
        (lambda: stagger.init(8, 8, jnp.int32(5)), "must be a single key"),
        (lambda: stagger.init(8, 8, jax.random.split(jax.random.key(0), 8)), "must be a single key"),
        (lambda: stagger.step(stagger.init(8, 8, 0), jnp.zeros(7)), r"done has shape \(7,\).*must be \(8,\)"),
        (
            lambda: stagger.step(stagger.init(8, 8, 0), jnp.zeros(8), same_step=False, late_cuts=True),
            "late_cuts is for",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(call, words):
    with pytest.raises(StaggerError, match=words):
        call()
