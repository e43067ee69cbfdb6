"""What staggering costs and reaches in JAX's stacks: 4,096 copies, raw against staggered, alternating in one run.

    python benchmarks/stacks_jax.py gymnax brax playground jumanji      in .venv-jax (steadyrl[testjax])

Writes results/stacks/<stack>.json, from which docs/stacks.md has its table. *Distance* is the total variation between
the ages of staggered copies and the stationary ones, after one and two mean episode lengths, in nine groups of equal
share up to the age that is possible then and one beyond; the bound is the smallest distance that is possible. The
lengths are those of the first episode of each copy in a run without staggering, which all have to end.

*Cost* is the wall-clock time of a staggered step over that of a raw one, from the same states of staggered copies: the
median of the ratios of alternating blocks, with its 95% interval. Raw copies in lockstep are timed beside them: their
steps may be cheaper or dearer for reasons of the simulator, whose solver goes on until the last copy has converged.
Other work on the machine moves it by percents, in either direction, beyond that interval; so the ratio of CPU times,
the law alone in the same alternation, and the load of the machine are in the file, too. Random actions are part of
both; of a trainer's step, the share is smaller still. For gymnax, the fastest of four of its environments is measured
beside CartPole-v1.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import binom

from league import distance_at
from steadyrl import EpisodeLengths, __version__
from steadyrl.integrations.jax import stagger
from steadyrl.lengths.anytime import anytime_distance

OUT = Path(__file__).parent / "results" / "stacks"
COPIES, SEED = 4096, 0
FASTEST = "DiscountingChain-bsuite"
"""The fastest of four that were timed: 0.4 ms a step; CartPole-v1 takes 0.6, MountainCar-v0 0.7, Catch-bsuite 1.0."""
Step = Callable[[Any, jax.Array], tuple[Any, jax.Array]]


class Stack(NamedTuple):
    """One stack: the start and the step of its copies, as they are and staggered.

    A step returns the state and whose episode is over; `ages` reads the law's ages from a staggered state.
    """

    package: str
    environment: str
    raw: tuple[Any, Step]
    staggered: tuple[Any, Step]
    ages: Callable[[Any], jax.Array]
    bare: Callable[[Any], Any]
    """The state of raw copies that are where those of a staggered state are."""
    lines: list[str]
    longest: int
    """Steps after which every first episode is over."""
    block: int
    """Steps of a block, when the time is taken."""


def gymnax_stack(name: str = "CartPole-v1") -> Stack:
    import gymnax

    from steadyrl.integrations.jax.gymnax import StaggeredGymnax

    env, params = gymnax.make(name)
    many = StaggeredGymnax(env, COPIES)
    keys = jax.random.split(jax.random.PRNGKey(SEED), COPIES)

    def stepped(step: Any, state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        first, second = jax.random.split(key)
        actions = jax.vmap(env.action_space(params).sample)(jax.random.split(first, COPIES))
        _, state, _, terminated, truncated, _ = step(jax.random.split(second, COPIES), state, actions, params)
        return state, terminated | truncated

    return Stack(
        "gymnax",
        name,
        (
            jax.vmap(env.reset, in_axes=(0, None))(keys, params)[1],
            partial(stepped, jax.vmap(env.step, in_axes=(0, 0, 0, None))),
        ),
        (many.reset(keys, params)[1], partial(stepped, many.step)),
        lambda state: state.stagger.ages,
        lambda state: state.environments,
        [
            "from steadyrl.integrations.jax.gymnax import StaggeredGymnax",
            "env = StaggeredGymnax(env, num_envs)",
            "observations, state = env.reset(keys, params)  # without jax.vmap",
            "observations, state, reward, terminated, truncated, info = env.step(keys, state, actions, params)",
        ],
        longest=500,
        block=200,
    )


def brax_stack(name: str = "inverted_pendulum", length: int = 50) -> Stack:
    from brax import envs

    from steadyrl.integrations.jax.brax import StaggeredBrax

    raw = envs.training.wrap(envs.get_environment(name, backend="spring"), episode_length=length)
    lines = [
        "from brax.training.agents.ppo import train as ppo",
        "from steadyrl.integrations.jax.brax import stagger_wrap_fn",
        "ppo.train(environment=env, wrap_env_fn=stagger_wrap_fn(), **settings)  # a new one for each call",
    ]
    environment = f"{name} (spring), episodes of at most {length} steps"
    return _wrapped("brax", environment, raw, StaggeredBrax(raw, length), lines, length)


def playground_stack(name: str = "CartpoleBalance", length: int = 50) -> Stack:
    """A task of MuJoCo Playground in its own wrapper, simulated by MJX in JAX (its default, Warp, is made for GPUs)."""
    from mujoco_playground import registry, wrapper

    from steadyrl.integrations.jax.brax import StaggeredBrax

    task = registry.load(name, config_overrides={"impl": "jax"})
    raw = wrapper.wrap_for_brax_training(task, episode_length=length)
    lines = [
        "from brax.training.agents.ppo import train as ppo",
        "from mujoco_playground import wrapper",
        "from steadyrl.integrations.jax.brax import stagger_wrap_fn",
        "wrap = stagger_wrap_fn(wrapper.wrap_for_brax_training)  # a new one for each call",
        "ppo.train(environment=env, wrap_env_fn=wrap, **settings)",
    ]
    environment = f"{name} (MJX), episodes of {length} steps"
    return _wrapped("playground", environment, raw, StaggeredBrax(raw, length), lines, length)


def _wrapped(package: str, environment: str, raw: Any, many: Any, lines: list[str], length: int) -> Stack:
    """Environments that are wrapped for brax's trainers."""
    keys = jax.random.split(jax.random.PRNGKey(SEED), COPIES)

    def stepped(env: Any, state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        actions = jax.random.uniform(key, (COPIES, raw.action_size), minval=-1.0)
        state = env.step(state, actions)
        return state, state.done.astype(bool)

    return Stack(
        package,
        environment,
        (jax.jit(raw.reset)(keys), partial(stepped, raw)),
        (jax.jit(many.reset)(keys), partial(stepped, many)),
        lambda state: state.info["steadyrl"]["law"].ages,
        lambda state: state.replace(info={name: value for name, value in state.info.items() if name != "steadyrl"}),
        lines,
        longest=length,
        block=25,
    )


def jumanji_stack(limit: int = 100) -> Stack:
    """Snake, whose reset is cheap: in RubiksCube, which the tests have, it is nearly all of a step (1.4 s for all)."""
    from jumanji.environments import Snake

    env = Snake(num_rows=6, num_cols=6, time_limit=limit)
    keys = jax.random.split(jax.random.PRNGKey(SEED), COPIES)
    first = jax.vmap(env.reset)(keys)[0]

    def stepped(staggered: bool, carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        state, law = carry
        one, two = jax.random.split(key)
        actions = jax.random.randint(one, (COPIES,), 0, 4)
        state, timestep = jax.vmap(env.step)(state, actions)
        over = timestep.last()
        if staggered:
            law, cut = stagger.step(law, over)
            over = over | cut
        fresh, start = jax.vmap(env.reset)(jax.random.split(two, COPIES))
        state, _ = stagger.select(over, (fresh, start.observation), (state, timestep.observation))
        return (state, law), over

    law = stagger.init(COPIES, limit, jax.random.PRNGKey(SEED))
    return Stack(
        "jumanji",
        f"Snake, 6 by 6, episodes of at most {limit} steps",
        ((first, law), partial(stepped, False)),
        ((first, law), partial(stepped, True)),
        lambda carry: carry[1].ages,
        lambda carry: carry,
        [
            "law, cut = stagger.step(law, timestep.last())",
            "fresh, start = jax.vmap(env.reset)(keys)  # instead of the AutoResetWrapper",
            "new, old = (fresh, start.observation), (state, timestep.observation)",
            "state, observation = stagger.select(timestep.last() | cut, new, old)",
        ],
        longest=limit,
        block=25,
    )


STACKS = {"gymnax": gymnax_stack, "brax": brax_stack, "playground": playground_stack, "jumanji": jumanji_stack}
TITLES = {"playground": "MuJoCo Playground"}


def distances(stack: Stack) -> tuple[dict[str, list[float]], float]:
    """Return distance and bound after 1 and 2 mean episode lengths, and that mean."""
    keys = jax.random.split(jax.random.PRNGKey(SEED + 1), stack.longest)
    _, over = jax.jit(partial(jax.lax.scan, stack.raw[1]))(stack.raw[0], keys)
    over = np.asarray(over)
    if not over.any(axis=0).all():
        raise RuntimeError(f"{stack.package}: some first episodes outlast {stack.longest} steps")
    lengths = np.argmax(over, axis=0) + 1
    law = EpisodeLengths.from_gymnasium(lengths)
    mean = float(lengths.mean())

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        return stack.staggered[1](state, key)[0], stack.ages(state)

    times = {str(n): round(n * mean) for n in (1, 2)}
    keys = jax.random.split(jax.random.PRNGKey(SEED + 2), times["2"] + 1)
    _, ages = jax.jit(partial(jax.lax.scan, step))(stack.staggered[0], keys)
    stream = EpisodeLengths(law.probabilities[1:])  # T - 1 steps: a reset takes none
    share = stream.survival[1:] / stream.mean
    bound = anytime_distance(law, times["2"], same_step=True)
    found = {
        n: [distance_at(np.asarray(ages[t - 1]), share, t, same_step=True), float(bound[t - 1])]
        for n, t in times.items()
    }
    return {n: [round(x, 4) for x in pair] for n, pair in found.items()}, mean


def costs(stack: Stack, rounds: int) -> dict[str, float]:
    """Return microseconds of a raw, of a quiet staggered step and of the law alone, and ratios of the first two."""
    return timed(compiled(stack), stack.block, rounds) | {"law at first": law_at_first(stack.longest)}


def compiled(stack: Stack) -> dict[str, list[Any]]:
    """Return a block of steps and a state for each way, the copies staggered."""
    ways = {}
    for name, (state, step) in (("raw", stack.raw), ("staggered", stack.staggered), ("law", law_alone(stack.longest))):

        def block(state: Any, key: jax.Array, step: Step = step) -> tuple[Any, jax.Array]:
            def one(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
                state, over = step(state, key)
                return state, jnp.sum(over)

            return jax.lax.scan(one, state, jax.random.split(key, stack.block))

        ways[name] = [jax.jit(block), state]
    for i in range(-(-3 * stack.longest // stack.block)):  # compile, and run until the copies are staggered
        for way in ways.values():
            way[1] = jax.block_until_ready(way[0](way[1], jax.random.PRNGKey(i)))[0]
    ways["in lockstep"] = list(ways["raw"])
    ways["raw"][1] = stack.bare(ways["staggered"][1])
    return ways


def timed(ways: dict[str, list[Any]], steps: int, rounds: int) -> dict[str, float]:
    """Time blocks of so many steps, alternating."""
    wall: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(rounds):
        for name, way in list(ways.items())[:: 1 if i % 2 else -1]:
            begun, used = time.perf_counter(), time.process_time()
            way[1] = jax.block_until_ready(way[0](way[1], jax.random.PRNGKey(1000 + i)))[0]
            wall[name].append((time.perf_counter() - begun) / steps * 1e6)
            busy[name].append((time.process_time() - used) / steps * 1e6)
    found = {name: round(float(np.median(taken)), 1) for name, taken in wall.items()}
    raw, staggered = np.array(wall["raw"]), np.array(wall["staggered"])
    found |= _ratios("wall clock", staggered / raw)
    found |= _ratios("CPU time", np.array(busy["staggered"]) / np.array(busy["raw"]))
    found["ratio of the fastest blocks"] = round(float(staggered.min() / raw.min()), 4)
    return found | {"rounds": rounds, "load": round(os.getloadavg()[0], 1)}


def law_alone(length: int) -> tuple[Any, Step]:
    """Return the law without an environment: all episodes have this length."""

    def step(state: Any, _: jax.Array) -> tuple[Any, jax.Array]:
        return stagger.step(state, state.ages >= length)

    return stagger.init(COPIES, length, SEED), step


def law_at_first(length: int) -> float:
    """Return the microseconds of the law alone, while it truncates: in the first episode."""
    state, step = law_alone(length)
    block = jax.jit(lambda state: jax.lax.scan(step, state, jnp.arange(length)))
    taken = []
    for _ in range(8):
        begun = time.perf_counter()
        jax.block_until_ready(block(state))
        taken.append((time.perf_counter() - begun) / length * 1e6)
    return round(float(np.median(taken[1:])), 1)


def _ratios(name: str, ratios: np.ndarray) -> dict[str, float]:
    low, high = median_interval(ratios)
    numbers = {"": float(np.median(ratios)), " from": low, " to": high}
    return {f"{name}{end}": round(number, 4) for end, number in numbers.items()}


def median_interval(values: np.ndarray) -> tuple[float, float]:
    """Return an interval that has the median with probability 95% or more, between two of the values in order."""
    ordered, count = np.sort(values), len(values)
    outside = max(int(binom.ppf(0.025, count, 0.5)) - 1, 0)  # values beyond either end
    return float(ordered[outside]), float(ordered[-1 - outside])


def cost_in_words(cost: dict[str, float], environment: str) -> str:
    """Return the share of a step with its interval, and what the law takes by itself."""
    share, low, high = (100 * (cost[f"wall clock{end}"] - 1) for end in ("", " from", " to"))
    alone = f"the law alone takes {cost['law']:.0f} of {cost['raw']:,.0f} µs, {cost['law at first']:.0f} at first"
    return f"{share:+.1f}% ({low:+.1f} to {high:+.1f}) of a step of {environment}; {alone}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stacks", nargs="*", choices=[*STACKS, []], default=list(STACKS))
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    for name in given.stacks:
        stack = STACKS[name]()
        reached, mean = distances(stack)
        cost = costs(stack, given.rounds)
        own_loop = name in ("gymnax", "jumanji")  # where the state of the law is at hand
        result = {
            "stack": TITLES.get(name, name),
            "version": version(stack.package),
            "environment": stack.environment,
            "copies": COPIES,
            "mean_episode_length": round(mean, 2),
            "supported": {"stagger": True, "monitor": own_loop, "fair statistics": own_loop},
            "lines": stack.lines,
            "cost": cost_in_words(cost, stack.environment),
            "microseconds": cost,
            "distance": reached,
            "tested": True,
            "command": f"python benchmarks/stacks_jax.py {name} --rounds {given.rounds}",
            "seed": SEED,
            "jax": version("jax"),
            "steadyrl": __version__,
        }
        if name == "gymnax":
            result["fastest environment"] = {FASTEST: costs(gymnax_stack(FASTEST), given.rounds)}
        (OUT / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(name, result["cost"], cost, reached, flush=True)


if __name__ == "__main__":
    main()
