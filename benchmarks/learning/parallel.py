"""Thousands of environments: PPO in JAX as it is and with anytime staggering, ten seeds in one program.

    .venv-jax/bin/python benchmarks/learning/parallel.py              makes the cells that are missing
    .venv-jax/bin/python benchmarks/learning/parallel.py --quick      a small cell, as a test of the machinery

`make testjax` makes the virtual environment. `protocol.md` ("Added later") fixes tasks, sizes, measures and
predictions. The update is that of `examples/jax_ppo.py`. A cell (task, size, arm) is ten rows of parallel.jsonl, beside
this script; cells that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")  # one core

import gymnax
import jax
import jax.numpy as jnp
import optax

import jax_ppo as ppo
from steadyrl.integrations.jax.gymnax import StaggeredGymnax

OUT = Path(__file__).parent / "parallel.jsonl"
SEEDS = 10
MOMENTS, EPISODES = 5, 32
TIME = 1000  # steps of each environment
GRIDS: dict[str, Any] = {  # continuous actions on a grid; None for actions that are discrete
    "Pendulum-v1": [[x] for x in (-2.0, -1.0, 0.0, 1.0, 2.0)],
    "Swimmer-misc": [[x, y] for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)],
    "CartPole-v1": None,
    "Acrobot-v1": None,
}
SIZES = ((1024, 16), (4096, 8))
ARMS = ("as it is", "anytime")
PACKAGES = ("steadyrl", "jax", "gymnax", "optax", "numpy")


class Cell(NamedTuple):
    """One task, size and arm."""

    task: str
    num_envs: int
    n_steps: int
    arm: str
    updates: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells cells apart."""
        return self.task, self.num_envs, self.n_steps, self.arm, self.updates


def planned() -> list[Cell]:
    """Return the cells in the order in which they are made."""
    return [
        Cell(task, n, steps, arm, -(-TIME // (steps * MOMENTS)) * MOMENTS)
        for n, steps in SIZES
        for task in GRIDS
        for arm in ARMS
    ]


def train(cell: Cell, key: Any) -> tuple[Any, Any]:
    """Train one policy; return mean returns at five moments, and the number of cuts."""
    env, params_of_env = gymnax.make(cell.task)
    grid = None if GRIDS[cell.task] is None else jnp.array(GRIDS[cell.task])
    settings = ppo.Settings(cell.task, cell.num_envs, cell.n_steps, cell.updates, staggered=cell.arm == "anytime")
    number = cell.num_envs
    reset, step = jax.vmap(env.reset, in_axes=(0, None)), jax.vmap(env.step, in_axes=(0, 0, 0, None))
    evaluation_reset, evaluation_step = reset, step
    if settings.staggered:
        staggered = StaggeredGymnax(env, number)
        reset, step = staggered.reset, staggered.step
    key, first, second, third = jax.random.split(key, 4)
    inputs = env.observation_space(params_of_env).shape[0]
    actions = env.num_actions if grid is None else len(grid)
    network = {
        "policy": ppo.init_network(first, (inputs, 64, 64, actions)),
        "value": ppo.init_network(second, (inputs, 64, 64, 1)),
    }
    optimiser = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(settings.learning_rate))
    observation, state = reset(jax.random.split(third, number), params_of_env)

    def sent(action: Any) -> Any:
        return action if grid is None else grid[action]

    def act(carry: Any, key: Any) -> Any:
        network, state, observation, cuts = carry
        first, second = jax.random.split(key)
        action = jax.random.categorical(first, ppo.apply(network["policy"], observation))
        log_prob, value, _ = ppo.evaluate_actions(network, observation, action)
        following, state, reward, terminated, truncated, info = step(
            jax.random.split(second, number), state, sent(action), params_of_env
        )
        last_value = ppo.apply(network["value"], info["final_observation"])[..., 0]
        row = ppo.Step(observation, action, log_prob, value, reward, terminated, terminated | truncated, last_value)
        cuts = cuts + (info["cut"].sum() if settings.staggered else 0)
        return (network, state, following, cuts), row

    def update(carry: Any, key: Any) -> Any:
        network, optimiser_state, state, observation, cuts = carry
        key, first = jax.random.split(key)
        (_, state, observation, cuts), batch = jax.lax.scan(
            act, (network, state, observation, cuts), jax.random.split(first, cell.n_steps)
        )
        advantage = ppo.advantages(batch, settings)
        data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (batch, advantage, advantage + batch.value))

        def minibatch(carry: Any, rows: Any) -> Any:
            network, optimiser_state = carry
            gradient = jax.grad(ppo.loss_of)(network, *jax.tree.map(lambda x: x[rows], data), settings)
            change, optimiser_state = optimiser.update(gradient, optimiser_state)
            return (optax.apply_updates(network, change), optimiser_state), None

        def epoch(carry: Any, key: Any) -> Any:
            rows = jax.random.permutation(key, number * cell.n_steps).reshape(settings.minibatches, -1)
            return jax.lax.scan(minibatch, carry, rows)

        (network, optimiser_state), _ = jax.lax.scan(
            epoch, (network, optimiser_state), jax.random.split(key, settings.epochs)
        )
        return (network, optimiser_state, state, observation, cuts), None

    def evaluate(network: Any, key: Any) -> Any:
        """Return the mean return of fresh full episodes under the most likely actions."""
        first, second = jax.random.split(key)
        observation, state = evaluation_reset(jax.random.split(first, EPISODES), params_of_env)

        def one(carry: Any, key: Any) -> Any:
            state, observation, total, running = carry
            action = ppo.apply(network["policy"], observation).argmax(-1)
            observation, state, reward, terminated, truncated, _ = evaluation_step(
                jax.random.split(key, EPISODES), state, sent(action), params_of_env
            )
            return (state, observation, total + reward * running, running & ~(terminated | truncated)), None

        start = state, observation, jnp.zeros(EPISODES), jnp.ones(EPISODES, dtype=bool)
        keys = jax.random.split(second, int(params_of_env.max_steps_in_episode))
        return jax.lax.scan(one, start, keys)[0][2].mean()

    carry = network, optimiser.init(network), state, observation, jnp.zeros((), jnp.int32)

    def moment(carry: Any, key: Any) -> Any:
        first, second = jax.random.split(key)
        carry, _ = jax.lax.scan(update, carry, jax.random.split(first, cell.updates // MOMENTS))
        return carry, evaluate(carry[0], second)

    carry, found = jax.lax.scan(moment, carry, jax.random.split(key, MOMENTS))
    return found, carry[4]


@partial(jax.jit, static_argnames="cell")
def train_seeds(cell: Cell, keys: Any) -> tuple[Any, Any]:
    """Train one policy for each key, all in one program."""
    return jax.vmap(partial(train, cell))(keys)


def rows_of(cell: Cell, seeds: int) -> list[dict[str, Any]]:
    """Make a cell; return its rows."""
    begin = time.perf_counter()
    returns, cuts = train_seeds(cell, jax.random.split(jax.random.key(0), seeds))
    returns, cuts = jax.device_get((returns, cuts))
    seconds = round((time.perf_counter() - begin) / seeds, 1)
    at = [(m + 1) * cell.updates // MOMENTS * cell.num_envs * cell.n_steps for m in range(MOMENTS)]
    return [
        {
            **cell._asdict(),
            "part": "parallel",
            "seed": seed,
            "evaluations": [{"steps": s, "mean": round(float(x), 4)} for s, x in zip(at, returns[seed], strict=True)],
            "cuts": int(cuts[seed]),
            "seconds": seconds,
            "versions": {name: version(name) for name in PACKAGES},
        }
        for seed in range(seeds)
    ]


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a test of the machinery, without a result")
    options = parser.parse_args()
    if options.quick:
        for arm in ARMS:
            print(json.dumps(rows_of(Cell("Pendulum-v1", 64, 16, arm, 10), 2)), flush=True)
        return
    rows = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    there = {tuple(row[name] for name in Cell._fields) for row in rows}
    cells = planned()
    for i, cell in enumerate(cells):
        if cell.key in there:
            continue
        rows += rows_of(cell, SEEDS)
        temporary = OUT.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.replace(temporary, OUT)
        print(f"[{i + 1}/{len(cells)}] {cell.key}: {rows[-1]['seconds'] * SEEDS:.0f} s", flush=True)


if __name__ == "__main__":
    main()
