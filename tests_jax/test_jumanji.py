"""jumanji: the lines of docs/jax.md stagger a real environment, in the place of its auto-reset."""

import jax
import jax.numpy as jnp
import numpy as np
from jumanji.environments import RubiksCube

from measured import distance_and_bound
from steadyrl.integrations.jax import stagger

LIMIT, COPIES = 20, 400


def test_three_lines_in_the_place_of_the_auto_reset_stagger_a_cube():
    env = RubiksCube(time_limit=LIMIT)  # random turns do not solve it: all episodes have 20 steps

    def act(carry, key):
        state, law = carry
        first, second = jax.random.split(key)
        actions = jax.random.randint(first, (COPIES, 3), 0, jnp.asarray([6, 1, 3]))
        before = law.ages
        state, timestep = jax.vmap(env.step)(state, actions)
        law, cut = stagger.step(law, timestep.last())
        fresh, start = jax.vmap(env.reset)(jax.random.split(second, COPIES))
        state, observation = stagger.select(
            timestep.last() | cut, (fresh, start.observation), (state, timestep.observation)
        )
        return (state, law), (before, observation.step_count, timestep.last())

    keys = jax.random.split(jax.random.PRNGKey(0), COPIES)
    first = jax.vmap(env.reset)(keys)[0], stagger.init(COPIES, LIMIT, jax.random.PRNGKey(1))
    _, (ages, counts, last) = jax.lax.scan(act, first, jax.random.split(jax.random.PRNGKey(2), 60))
    np.testing.assert_array_equal(np.asarray(ages)[1:], np.asarray(counts)[:-1] + 1)  # its own counter agrees
    for time in (LIMIT, 2 * LIMIT):
        distance, bound, _ = distance_and_bound(np.asarray(ages)[time - 1], np.full(10, LIMIT), time)
        assert distance == bound == 0
    np.testing.assert_array_equal(np.asarray(last)[LIMIT:].sum(axis=1), COPIES // LIMIT)
