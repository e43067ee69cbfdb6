"""PPO in JAX, in the shape of PureJaxRL: environments, updates and staggering in one jit, vmapped over seeds.

    pip install ".[gymnax]" optax
    python examples/jax_ppo.py                      # CartPole-v1, 4 seeds, with and without staggering

The three lines that stagger are numbered. An episode that is truncated, by the time limit or by staggering, bootstraps
from the value of its last observation. The mean return is that of all episodes, running ones included.
"""

import argparse
from functools import partial
from typing import NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax

from steadyrl.integrations.jax import statistics
from steadyrl.integrations.jax.gymnax import StaggeredGymnax


class Settings(NamedTuple):
    """What a run is made of."""

    environment: str = "CartPole-v1"
    num_envs: int = 256
    num_steps: int = 16
    updates: int = 200
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    staggered: bool = True


class Step(NamedTuple):
    """One step of all environments."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    over: jax.Array
    last_value: jax.Array
    """Value of the observation that the step led to, before any reset."""


def init_network(key, sizes):
    """Return the layers of a network with tanh units."""
    keys = jax.random.split(key, len(sizes))
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=False)
    return [(jax.random.normal(k, (a, b)) / jnp.sqrt(a), jnp.zeros(b)) for k, a, b in shapes]


def apply(layers, x):
    """Return the network's output."""
    for weights, bias in layers[:-1]:
        x = jnp.tanh(x @ weights + bias)
    return x @ layers[-1][0] + layers[-1][1]


def evaluate_actions(params, observation, action):
    """Return logarithms of probabilities, values and entropies."""
    log_probs = jax.nn.log_softmax(apply(params["policy"], observation))
    chosen = jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]
    return chosen, apply(params["value"], observation)[..., 0], -(jnp.exp(log_probs) * log_probs).sum(-1)


def advantages(batch, settings):
    """Return generalised advantage estimates [num_steps, num_envs]."""

    def back(following, step):
        target = step.reward + settings.discount * step.last_value * ~step.terminated
        found = target - step.value + settings.discount * settings.gae_lambda * ~step.over * following
        return found, found

    return jax.lax.scan(back, jnp.zeros_like(batch.reward[0]), batch, reverse=True)[1]


def loss_of(params, batch, advantage, target, settings):
    """Return PPO's clipped loss."""
    log_prob, value, entropy = evaluate_actions(params, batch.observation, batch.action)
    ratio = jnp.exp(log_prob - batch.log_prob)
    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip)
    policy = -jnp.minimum(ratio * scaled, clipped * scaled).mean()
    return policy + 0.5 * ((value - target) ** 2).mean() - settings.entropy * entropy.mean()


def train(settings, key):
    """Train one policy; return the fair mean return, and that of finished episodes, after each update."""
    env, env_params = gymnax.make(settings.environment)
    number = settings.num_envs
    if settings.staggered:
        env = StaggeredGymnax(env, number)  # 1: all environments in one
        reset, env_step = env.reset, env.step  # 2: no vmap of your own
    else:
        reset, env_step = jax.vmap(env.reset, in_axes=(0, None)), jax.vmap(env.step, in_axes=(0, 0, 0, None))
    key, first, second, third = jax.random.split(key, 4)
    inputs = env.observation_space(env_params).shape[0]
    params = {
        "policy": init_network(first, (inputs, 64, 64, env.num_actions)),
        "value": init_network(second, (inputs, 64, 64, 1)),
    }
    optimiser = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(settings.learning_rate))
    observation, env_state = reset(jax.random.split(third, number), env_params)
    fair = statistics.init(number, int(env_params.max_steps_in_episode))

    def act(carry, key):
        params, env_state, observation, fair = carry
        first, second = jax.random.split(key)
        action = jax.random.categorical(first, apply(params["policy"], observation))
        log_prob, value, _ = evaluate_actions(params, observation, action)
        following, env_state, reward, terminated, truncated, info = env_step(
            jax.random.split(second, number), env_state, action, env_params
        )
        last_value = apply(params["value"], info["final_observation"])[..., 0]
        over = terminated | truncated
        cut = info.get("cut", jnp.zeros_like(over))  # 3: for the mean return, these episodes did not end by themselves
        fair = statistics.step(fair, reward, over & ~cut, cut, memory=500)
        step = Step(observation, action, log_prob, value, reward, terminated, over, last_value)
        return (params, env_state, following, fair), step

    def update(carry, key):
        params, optimiser_state, env_state, observation, fair = carry
        key, first = jax.random.split(key)
        (_, env_state, observation, fair), batch = jax.lax.scan(
            act, (params, env_state, observation, fair), jax.random.split(first, settings.num_steps)
        )
        advantage = advantages(batch, settings)
        data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (batch, advantage, advantage + batch.value))

        def minibatch(carry, rows):
            params, optimiser_state = carry
            some = jax.tree.map(lambda x: x[rows], data)
            gradient = jax.grad(loss_of)(params, *some, settings)
            change, optimiser_state = optimiser.update(gradient, optimiser_state)
            return (optax.apply_updates(params, change), optimiser_state), None

        def epoch(carry, key):
            rows = jax.random.permutation(key, number * settings.num_steps).reshape(settings.minibatches, -1)
            return jax.lax.scan(minibatch, carry, rows)

        (params, optimiser_state), _ = jax.lax.scan(
            epoch, (params, optimiser_state), jax.random.split(key, settings.epochs)
        )
        finished = fair.law.finished[1] / jnp.maximum(fair.law.finished[0], 1e-9)
        return (params, optimiser_state, env_state, observation, fair), (statistics.means(fair).mean_return, finished)

    carry = params, optimiser.init(params), env_state, observation, fair
    return jax.lax.scan(update, carry, jax.random.split(key, settings.updates))[1]


@partial(jax.jit, static_argnames="settings")
def train_seeds(settings, keys):
    """Train one policy for each key, all in one program."""
    return jax.vmap(partial(train, settings))(keys)


def main():
    """Train with and without staggering, and print the mean returns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", default=Settings().environment)
    parser.add_argument("--num-envs", type=int, default=Settings().num_envs)
    parser.add_argument("--updates", type=int, default=Settings().updates)
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    keys = jax.random.split(jax.random.key(0), given.seeds)
    for staggered in (False, True):
        settings = Settings(given.environment, given.num_envs, updates=given.updates, staggered=staggered)
        fair, finished = train_seeds(settings, keys)
        print(
            f"staggered: {staggered}. Mean return of all episodes, and of finished ones (mean of {given.seeds} seeds)"
        )
        for i in range(given.updates // 5 - 1, given.updates, max(given.updates // 5, 1)):
            print(f"  update {i + 1:4d}: {fair[:, i].mean():8.2f} {finished[:, i].mean():8.2f}")


if __name__ == "__main__":
    main()
