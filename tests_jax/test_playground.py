"""MuJoCo Playground: its installed configurations, and tasks in its own wrapper, staggered."""

import functools
import json
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brax.training.agents.ppo import networks
from brax.training.agents.ppo import train as ppo
from jax.experimental import io_callback

from steadyrl.cli.audit_config import as_dict
from steadyrl.diagnosis.trainer_schedule import from_config, playground_schedules
from steadyrl.errors import TrainingError
from steadyrl.integrations.jax import brax as staggering

pytest.importorskip("mujoco_playground")
from mujoco_playground import MjxEnv, State, registry
from mujoco_playground import wrapper as playground

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
LENGTH, COPIES = 24, 48


class Walk(MjxEnv):
    """A task without physics that counts its steps: what it shares with Playground's is the state and the wrappers."""

    def __init__(self):
        pass

    def reset(self, rng):
        zero = jnp.zeros(())
        return State(jnp.zeros(1), jnp.zeros(1), zero, zero, {}, {"rng": rng})

    def step(self, state, action):
        position = state.data + 1
        return state.replace(data=position, obs=position, reward=jnp.ones(()), done=jnp.zeros(()))

    observation_size = action_size = 1
    xml_path = mj_model = mjx_model = None


def unevenness(ages):
    """Largest difference between the distribution functions of ages and of the uniform one on 0, ..., LENGTH - 1.

    The law rests below 1.2 sqrt(2 / N), as long as lengths are known from one episode of each of N environments: 0.25
    for 48 of them. In lockstep it is 0.5 or more.
    """
    found = np.bincount(np.asarray(ages).astype(int), minlength=LENGTH)
    assert len(found) == LENGTH
    return np.abs(np.cumsum(found) / len(ages) - np.arange(1, LENGTH + 1) / LENGTH).max()


@pytest.mark.parametrize("full_reset", [False, True])
def test_in_playgrounds_own_wrapper_all_ages_are_equally_often(full_reset):
    wrap = staggering.stagger_wrap_fn(functools.partial(playground.wrap_for_brax_training, full_reset=full_reset))
    env = wrap(Walk(), episode_length=LENGTH)

    def step(state, _):
        state = env.step(state, jnp.zeros((COPIES, 1)))
        return state, (state.obs[:, 0], state.done, state.info["truncation"], state.info["steadyrl"]["late"])

    state = env.reset(jax.random.split(jax.random.PRNGKey(0), COPIES))
    state, found = jax.jit(functools.partial(jax.lax.scan, step, length=80))(state)
    ages, done, truncation, late = (np.asarray(x) for x in found)
    np.testing.assert_array_equal(done, truncation)  # nobody falls
    assert late.any()
    assert done[1:][late[:-1]].all()
    assert unevenness(ages[5]) > 0.5
    assert all(unevenness(row) < 0.25 for row in ages[LENGTH:])
    np.testing.assert_array_equal(state.info["AutoResetWrapper_done_count"], done.sum(axis=0))


def test_playground_itself_takes_time_limits_for_ends_after_a_full_reset():
    # If this fails, a newer Playground keeps the mark, and `_with_time_limits` is not needed any more.
    env = playground.wrap_for_brax_training(Walk(), episode_length=3, full_reset=True)
    state = env.reset(jax.random.split(jax.random.PRNGKey(0), 2))
    for _ in range(3):
        state = env.step(state, jnp.zeros((2, 1)))
    np.testing.assert_array_equal(state.done, 1)
    np.testing.assert_array_equal(state.info["truncation"], 0)


def test_after_a_full_reset_a_fall_is_still_an_end():
    info = {"steps": jnp.array([3.0, 2.0, 1.0]), "truncation": jnp.zeros(3), "episode_done": jnp.zeros(3)}
    state = State(None, None, None, jnp.array([1.0, 1.0, 0.0]), {}, info)  # the limit, a fall, one that goes on
    np.testing.assert_array_equal(staggering._with_time_limits(state, 3)["truncation"], [1, 0, 0])


@pytest.mark.slow
def test_ppo_on_a_task_of_playground_is_staggered_again_after_every_reset_of_all():
    seen = []
    task = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    wrap = staggering.stagger_wrap_fn(playground.wrap_for_brax_training)

    def watched_wrap(env, **options):
        inner = wrap(env, **options)
        if isinstance(inner, staggering.StaggeredBrax):
            step = inner.step

            def watched(state, action):  # the clock of the simulation: neither its wrappers nor the law count by it
                io_callback(lambda x: seen.append(np.array(x)), None, state.data.time / task.dt, ordered=True)
                return step(state, action)

            inner.step = watched
        return inner

    settings = {
        "num_timesteps": COPIES * 5 * 24,
        "num_envs": COPIES,
        "episode_length": LENGTH,
        "unroll_length": 5,
        "batch_size": COPIES // 2,
        "num_minibatches": 2,
        "num_evals": 2,
        "num_resets_per_eval": 2,
    }
    ppo.train(
        environment=task,
        wrap_env_fn=watched_wrap,
        **settings,
        num_updates_per_batch=1,
        run_evals=False,
        network_factory=functools.partial(
            networks.make_ppo_networks, policy_hidden_layer_sizes=(4,), value_hidden_layer_sizes=(4,)
        ),
    )
    ages = np.rint(np.array(seen)).astype(int)
    assert ages.shape == (120, COPIES)
    together = [t for t in range(120) if (ages[t] == 0).all()]
    assert together == list(range(0, 120, from_config(settings).reset_every)) == [0, 60]
    for start in together:
        assert unevenness(ages[start + 5]) > 0.5
        assert all(unevenness(ages[t]) < 0.25 for t in range(start + LENGTH, start + 60))


def test_the_committed_table_is_that_of_the_installed_configurations():
    committed = json.loads((RESULTS / "playground_configs.json").read_text())
    if version("playground") != committed["versions"]["playground"]:
        pytest.skip("another version of MuJoCo Playground is installed")
    assert {name: as_dict(found) for name, found in playground_schedules()} == committed["tasks"]


def test_an_unknown_task_is_refused_with_those_that_there_are():
    with pytest.raises(TrainingError, match=r"'Go2' is not a task.*Go1Getup"):
        list(playground_schedules(["Go2"]))
