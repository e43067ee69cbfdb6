"""`stagger_wrap_fn`: brax's own PPO trains on staggered episodes, and evaluates on complete ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brax import envs
from brax.envs.base import Env, State
from brax.training.agents.ppo import networks
from brax.training.agents.ppo import train as ppo
from jax.experimental import io_callback

from steadyrl.diagnosis.trainer_schedule import from_config
from steadyrl.errors import WrapperError
from steadyrl.integrations.jax import brax as staggering

LENGTH = 24


class Walk(Env):
    """Counts its steps, and falls with a given probability in each step."""

    def __init__(self, falls=0.0, record=None):
        self.falls, self.record = falls, record

    def reset(self, rng):
        zero = jnp.zeros(())
        return State(jnp.zeros(1), jnp.zeros(1), zero, zero, {}, {"rng": rng})

    def step(self, state, action):
        rng, key = jax.random.split(state.info["rng"])
        position = state.pipeline_state + 1
        done = jax.random.bernoulli(key, self.falls).astype(float)
        return state.replace(
            pipeline_state=position, obs=position, reward=jnp.ones(()), done=done, info={**state.info, "rng": rng}
        )

    @property
    def observation_size(self):
        return 1

    @property
    def action_size(self):
        return 1

    @property
    def backend(self):
        return "none"


def unevenness(positions, every=1):
    """Largest difference between the distribution functions of positions and of the uniform one on 0, ..., LENGTH - 1.

    The law rests below 1.2 sqrt(2 / N), as long as lengths are known from one episode of each of N environments: 0.11
    for 240 of them, 0.22 for 60, 0.25 for 48. In lockstep it is 0.5 or more.
    """
    places = LENGTH // every
    found = np.bincount(np.asarray(positions).astype(int) // every, minlength=places)
    return np.abs(np.cumsum(found) / len(positions) - np.arange(1, places + 1) / places).max()


def wrapped(env, **options):
    return staggering.stagger_wrap_fn()(env, **{"episode_length": LENGTH, "action_repeat": 1, **options})


@functools.partial(jax.jit, static_argnames=("env", "steps"))
def rollout(env, keys, steps):
    def step(state, _):
        state = env.step(state, jnp.zeros((len(keys), 1)))
        return state, (state.obs[:, 0], state.done, state.info["truncation"], state.info["steadyrl"]["late"])

    return jax.lax.scan(step, env.reset(keys), length=steps)


def test_the_episode_wrapper_truncates_and_all_ages_are_equally_often():
    state, (position, done, truncation, late) = rollout(
        wrapped(Walk()), jax.random.split(jax.random.PRNGKey(0), 240), 60
    )
    position, done, late = (np.asarray(x) for x in (position, done, late))
    np.testing.assert_array_equal(done, truncation)  # nobody falls
    assert late.any()
    assert done[1:][late[:-1]].all()
    assert all(unevenness(row) < 0.11 for row in position[LENGTH:])
    assert late[LENGTH + 1 :].sum() <= 24
    assert staggering.phase(state).distance <= staggering.phase(state).noise


def test_falls_are_ends_and_truncations_are_not():
    keys = jax.random.split(jax.random.PRNGKey(0), 240)
    state, (_, done, _truncation, late) = rollout(wrapped(Walk(falls=0.1)), keys, 60)
    late = np.asarray(late)
    natural = np.asarray(done, dtype=bool)
    natural[1:] &= ~late[:-1]
    law = state.info["steadyrl"]["law"]
    assert law.natural_ends == natural.sum()
    assert law.cuts == late.sum()
    assert late[:5].any()
    # E[L] of min(geometric(0.1), 24) is (1 - 0.9^24) / 0.1 = 9.2; 14,400 steps have about 1,570 ends, so three
    # standard errors are below 8%.
    assert staggering.phase(state).average_episode_length == pytest.approx(9.2, rel=0.08)


def test_with_repeated_actions_ages_count_actions():
    keys = jax.random.split(jax.random.PRNGKey(0), 60)
    _, (position, *_) = rollout(wrapped(Walk(), action_repeat=4), keys, 30)
    found = np.asarray(position)[10:].astype(int)
    np.testing.assert_array_equal(np.unique(found), np.arange(0, LENGTH, 4))
    assert all(unevenness(row, every=4) < 0.22 for row in found)


@pytest.mark.filterwarnings("ignore")  # brax's own, about what JAX is going to remove
@pytest.mark.parametrize("resets", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_ppo_trains_on_all_ages_and_evaluates_complete_episodes(resets):
    seen, evaluations = [], []

    def watch(wrap):
        def wrap_env_fn(env, **options):
            inner = wrap(env, **options)
            if not isinstance(inner, staggering.StaggeredBrax):
                return inner
            step = inner.step

            def watched(state, action):
                io_callback(lambda x: seen.append(np.array(x)), None, state.obs[:, 0], ordered=False)
                return step(state, action)

            inner.step = watched
            return inner

        return wrap_env_fn

    settings = {
        "num_timesteps": 48 * 5 * 24,
        "num_envs": 48,
        "episode_length": LENGTH,
        "unroll_length": 5,
        "batch_size": 24,
        "num_minibatches": 2,
        "num_evals": 2,
        "num_resets_per_eval": resets,
    }
    ppo.train(
        environment=Walk(),
        wrap_env_fn=watch(staggering.stagger_wrap_fn()),
        **settings,
        num_updates_per_batch=1,
        num_eval_envs=8,
        network_factory=functools.partial(
            networks.make_ppo_networks, policy_hidden_layer_sizes=(4,), value_hidden_layer_sizes=(4,)
        ),
        progress_fn=lambda step, metrics: evaluations.append(metrics["eval/avg_episode_length"]),
    )
    np.testing.assert_array_equal(evaluations, LENGTH)
    ages = np.array(seen).astype(int)
    assert ages.shape == (120, 48)
    together = [t for t in range(120) if (ages[t] == 0).all()]
    schedule = from_config(settings)
    assert schedule.run_steps == 120
    assert together == list(range(0, 120, schedule.reset_every or 120)) == ([0, 60] if resets else [0])
    for start in together:
        assert unevenness(ages[start + 5]) > 0.5
        assert all(unevenness(ages[t]) < 0.25 for t in range(start + LENGTH, start + 60))


@pytest.mark.filterwarnings("ignore")
def test_a_real_environment_of_brax_is_staggered():
    env = envs.get_environment("fast")
    state, (_, _, _truncation, late) = rollout(wrapped(env), jax.random.split(jax.random.PRNGKey(0), 48), 40)
    assert late.any()
    assert staggering.phase(state).distance <= staggering.phase(state).noise


def test_what_cannot_be_staggered_is_refused_with_the_reason():
    bare = staggering.StaggeredBrax(envs.training.VmapWrapper(Walk()), LENGTH)
    with pytest.raises(WrapperError, match=r"no info\['steps'\]"):
        bare.reset(jax.random.split(jax.random.PRNGKey(0), 4))
    with pytest.raises(WrapperError, match="one for each environment"):
        wrapped(Walk()).reset(jax.random.split(jax.random.PRNGKey(0), (2, 4)))
    wrap = staggering.stagger_wrap_fn()
    wrap(Walk()), wrap(Walk())
    with pytest.raises(WrapperError, match="again for each call of a trainer"):
        wrap(Walk())
