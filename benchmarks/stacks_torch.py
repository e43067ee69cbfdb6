"""Staggering in each stack: the distance of the ages live, beside the bound, and what a step costs.

    python benchmarks/stacks_torch.py              all stacks
    python benchmarks/stacks_torch.py torchrl sb3  some of them

Every stack steps 4,096 copies of CartPole-v1 under uniform random actions. The ages are counted here, from the flags
of ends or the environment's own count, not by the controller. After one and two mean episode lengths they are compared
with the stationary ages, in nine groups of equal share up to the age that is possible at that time, one beyond, and
with NEXT_STEP one for the age that nobody can have then;
chance is not taken out, and adds about 0.02 for independent copies at steady state.

The cost is that of the controller in a step, the writing of counters included, for copies that are lengths of
episodes alone: on average over the first three mean episode lengths, and over the 20th to the 40th, when it is quiet.
Of nine equal runs each step has the shortest time, since whatever else runs on a machine only adds to it.

`results/stacks/NAME.json` has one stack each; `python docs/generate.py stacks` makes the table of docs/stacks.md of
them. What is not run here (`UNTESTED`) has `tested: false`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from league import as_lengths, distance_at
from stagger import in_stream
from steadyrl import EnvPoolVectorEnv, StaggerController, StaggeredVectorEnv
from steadyrl.lengths.anytime import anytime_distance

SEED, COPIES, NAME = 0, 4096, "CartPole-v1"
RESULTS = Path(__file__).parent / "results"
LENGTHS = as_lengths(json.loads((RESULTS / "league_lengths.json").read_text())[NAME])
EARLY, QUIET = 3, (20, 40)
"""Mean episode lengths over which the two costs are averages."""
REPEATS = 9
ALL = {"stagger": True, "monitor": True, "fair statistics": True}


Ages = Iterator[np.ndarray]
"""The ages at times 1, 2, ... as they come."""


def counted(step: Callable[[], np.ndarray], *, same_step: bool, over: Any = None) -> Ages:
    """Yield the ages at times 1, 2, ..., given a function that steps and returns whose episode is over.

    `over` is what the first step returned, if there was one already.
    """
    age, restarting = np.ones(COPIES, dtype=np.int64), np.zeros(COPIES, dtype=bool)
    while True:
        yield age
        over = np.asarray(step() if over is None or age.max() > 1 else over, dtype=bool)
        if same_step:
            age = np.where(over, 1, age + 1)
        else:
            age, restarting = np.where(restarting, 1, age + 1), over


def gymnasium_run(envs: Any) -> Ages:
    rng = np.random.default_rng(SEED)
    envs = StaggeredVectorEnv(envs, seed=SEED)
    envs.reset(seed=SEED)

    def step() -> np.ndarray:
        _, _, terminated, truncated, _ = envs.step(rng.integers(0, 2, COPIES))
        return np.asarray(terminated | truncated)

    return counted(step, same_step=False)


def run_gymnasium() -> Ages:
    return gymnasium_run(gymnasium.make_vec(NAME, COPIES, vectorization_mode="sync"))


def run_envpool() -> Ages:
    return gymnasium_run(EnvPoolVectorEnv(NAME, num_envs=COPIES))


def run_sb3() -> Ages:
    from stable_baselines3.common.env_util import make_vec_env

    from steadyrl.integrations.sb3 import SteadyVecEnv

    rng, env = np.random.default_rng(SEED), SteadyVecEnv(make_vec_env(NAME, COPIES, seed=SEED), seed=SEED)
    env.reset()
    return counted(lambda: env.step(rng.integers(0, 2, COPIES))[2], same_step=True)


def random_forces() -> Callable[[], torch.Tensor]:
    """Return a function that draws one number for each copy; positive numbers push to the right."""
    generator = torch.Generator().manual_seed(SEED)
    return lambda: torch.rand(COPIES, 1, generator=generator) - 0.5


def run_rsl_rl(way: str = "steadyrl") -> Ages:
    from simulators import GymnasiumVecEnv
    from steadyrl.integrations.torch.rsl_rl import StaggeredVecEnv

    bare, forces = GymnasiumVecEnv(NAME, COPIES, 500), random_forces()
    env = StaggeredVecEnv(bare, seed=SEED, log_interval=0) if way == "steadyrl" else bare
    if way == "random counters":  # what the runner does with init_at_random_ep_len=True
        torch.manual_seed(SEED)
        bare.episode_length_buf = torch.randint_like(bare.episode_length_buf, high=int(bare.max_episode_length))

    def ages() -> Ages:
        while True:
            yield bare.lived.numpy() + 1
            env.step(forces())

    return ages()


def run_skrl() -> Ages:
    from skrl.envs.wrappers.torch import wrap_env

    from simulators import Simulator
    from steadyrl.integrations.torch.skrl import StaggeredWrapper

    simulator, forces = Simulator(NAME, COPIES, 500), random_forces()
    env = StaggeredWrapper(wrap_env(simulator, wrapper="isaaclab"), seed=SEED, log_interval=0)
    env.reset()

    def ages() -> Ages:
        while True:
            yield simulator.inside.lived.numpy() + 1
            env.step(forces())

    return ages()


def run_torchrl(way: str = "steadyrl") -> Ages:
    from torchrl.collectors import Collector
    from torchrl.envs import Compose, GymWrapper, RandomTruncationTransform, StepCounter, TransformedEnv

    from steadyrl.integrations.torch.torchrl import StaggerTransform

    mode = {"autoreset_mode": AutoresetMode.DISABLED}
    envs = gymnasium.make_vec(NAME, COPIES, vectorization_mode="sync", vector_kwargs=mode)
    ways = {"steadyrl": [StaggerTransform(seed=SEED)], "random horizons": [RandomTruncationTransform(1, 500)]}
    transforms = Compose(StepCounter(), *ways.get(way, []))
    env = TransformedEnv(GymWrapper(envs, categorical_action_encoding=True), transforms)
    env.set_seed(SEED)
    torch.manual_seed(SEED)
    collector = Collector(env, None, frames_per_batch=COPIES, total_frames=-1)

    def ages() -> Ages:
        for batch in collector:
            yield batch["step_count"].flatten().numpy() + 1

    return ages()


def live(ages: Ages, *, same_step: bool) -> dict[str, list[float]]:
    """Follow the ages; return their distance and the bound after one and two mean episode lengths."""
    stream = in_stream(LENGTHS, same_step)
    times = {int(stream.mean): "1", int(2 * stream.mean): "2"}
    bound = anytime_distance(LENGTHS, max(times), same_step=same_step)
    share = stream.survival[1:] / stream.mean
    found = {}
    for t, now in enumerate(ages, start=1):
        if t in times:
            distance = distance_at(now, share, t, same_step=same_step)
            found[times[t]] = [round(distance, 4), round(float(bound[t - 1]), 4)]
        if t == max(times):
            break
    return found


class Lengths:
    """Copies that are lengths of episodes alone."""

    def __init__(self, *, same_step: bool) -> None:
        self.same_step, self.rng = same_step, np.random.default_rng(SEED)
        self.edges = np.cumsum(LENGTHS.probabilities)
        self.lived, self.late = np.zeros(COPIES, dtype=np.int64), np.zeros(COPIES, dtype=bool)
        self.restarting = np.zeros(COPIES, dtype=bool)
        self.length = self.draw(COPIES)

    def draw(self, count: int) -> Any:
        """Return lengths of new episodes."""
        return np.searchsorted(self.edges, self.rng.random(count), side="right") - 1

    def step(self) -> Any:
        """Return whose episode is over."""
        self.lived = np.where(self.restarting, 0, self.lived + 1)
        return ((self.lived >= self.length) & ~self.restarting) | self.late

    def end(self, over: Any, late: Any = None) -> None:
        """Begin new episodes where the old ones are over; those of late cuts are over in the next step."""
        self.late = np.zeros(COPIES, dtype=bool) if late is None else late
        self.length[over] = self.draw(int(over.sum()))
        if self.same_step:
            self.lived[over] = 0
        else:
            self.restarting = over


class Counters:
    """The counters of a simulator."""

    max_episode_length = 10**6

    def __init__(self) -> None:
        self.episode_length_buf = torch.zeros(COPIES, dtype=torch.long)


def cost(way: str) -> dict[str, int]:
    """Return the microseconds of a step, on average at the beginning and when quiet."""
    from steadyrl.integrations.torch import CounterStagger, TorchStagger

    steps = int(QUIET[1] * (LENGTHS.mean - 1))
    spent = np.full(steps, np.inf)
    for _ in range(REPEATS):
        copies = Lengths(same_step=way != "NEXT_STEP")
        stagger: Any
        if way in ("SAME_STEP", "NEXT_STEP"):
            stagger = StaggerController(COPIES, same_step=copies.same_step, seed=SEED)
        else:
            stagger = CounterStagger(Counters(), seed=SEED) if way == "counters" else TorchStagger(COPIES, seed=SEED)
        for t in range(steps):
            over = copies.step()
            given = torch.from_numpy(over) if way in ("counters", "torch") else over
            start = time.perf_counter()
            cut = stagger.step(given)
            spent[t] = min(spent[t], time.perf_counter() - start)
            cut = np.asarray(cut)
            copies.end(*(over, cut) if way == "counters" else (over | cut,))
    first, quiet = int(EARLY * (LENGTHS.mean - 1)), int(QUIET[0] * (LENGTHS.mean - 1))
    return {
        "first 3 mean lengths": round(spent[:first].mean() * 1e6),
        "quiet, mean": round(spent[quiet:].mean() * 1e6),
        "quiet, median": round(float(np.median(spent[quiet:])) * 1e6),
        "40 mean lengths": round(spent.mean() * 1e6),
    }


STACKS: dict[str, dict[str, Any]] = {
    "gymnasium": {
        "stack": "Gymnasium",
        "package": "gymnasium",
        "run": run_gymnasium,
        "way": "NEXT_STEP",
        "same_step": False,
        "supported": ALL,
        "lines": ["envs = steadyrl.StaggeredVectorEnv(envs)", "envs = steadyrl.RecordFairStatistics(envs)"],
    },
    "envpool": {
        "stack": "EnvPool",
        "package": "envpool",
        "run": run_envpool,
        "way": "NEXT_STEP",
        "same_step": False,
        "supported": ALL,
        "lines": [
            'envs = steadyrl.EnvPoolVectorEnv("Hopper-v5", num_envs=256)',
            "envs = steadyrl.StaggeredVectorEnv(envs)",
            "envs = steadyrl.RecordFairStatistics(envs)",
        ],
    },
    "sb3": {
        "stack": "Stable-Baselines3",
        "package": "stable-baselines3",
        "run": run_sb3,
        "way": "SAME_STEP",
        "same_step": True,
        "supported": ALL,
        "lines": [
            "from stable_baselines3 import PPO",
            "from steadyrl.integrations.sb3 import FairStatisticsCallback, SteadyStateCallback, make_steady_vec_env",
            'env = make_steady_vec_env("Hopper-v5", n_envs=256)',
            "callbacks = [SteadyStateCallback(), FairStatisticsCallback()]",
            'PPO("MlpPolicy", env, n_steps=16).learn(1_000_000, callback=callbacks)',
        ],
    },
    "rsl_rl": {
        "stack": "rsl_rl",
        "package": "rsl-rl-lib",
        "run": run_rsl_rl,
        "way": "counters",
        "peers": {
            "`init_at_random_ep_len`": lambda: run_rsl_rl("random counters"),
            "nothing": lambda: run_rsl_rl("nothing"),
        },
        "same_step": True,
        "supported": ALL,
        "lines": [
            "from steadyrl.integrations.torch.rsl_rl import StaggeredVecEnv",
            "env = StaggeredVecEnv(env)",
            "OnPolicyRunner(env, settings, log_dir).learn(1500)",
        ],
    },
    "torchrl": {
        "stack": "TorchRL",
        "package": "torchrl",
        "run": run_torchrl,
        "way": "torch",
        "peers": {
            "`RandomTruncationTransform`": lambda: run_torchrl("random horizons"),
            "nothing": lambda: run_torchrl("nothing"),
        },
        "same_step": True,
        "supported": ALL,
        "lines": [
            "from steadyrl.integrations.torch.torchrl import StaggerTransform",
            "stagger = StaggerTransform()",
            "env = TransformedEnv(ParallelEnv(256, make_env), stagger)",
            "for name, value in stagger.log().items():  # after a batch",
            "    logger.log_scalar(name, value.item())",
        ],
    },
    "skrl": {
        "stack": "skrl",
        "package": "skrl",
        "run": run_skrl,
        "way": "counters",
        "same_step": True,
        "supported": ALL,
        "lines": [
            "from steadyrl.integrations.torch.skrl import StaggeredWrapper",
            "env = StaggeredWrapper(wrap_env(env))  # a simulator with counters, as Isaac Lab's",
            "env = wrap_env(steadyrl.StaggeredVectorEnv(envs))  # or Gymnasium's vector environments",
            "settings = PPO_CFG(time_limit_bootstrap=True)",
        ],
    },
}
"""What is run here."""

UNTESTED: dict[str, dict[str, Any]] = {
    "isaac": {
        "stack": "Isaac Lab, mjlab, Genesis, legged_gym (with rsl_rl)",
        "supported": ALL,
        "lines": [
            "from steadyrl.integrations.torch.rsl_rl import StaggeredVecEnv",
            "env = StaggeredVecEnv(RslRlVecEnvWrapper(env))  # Isaac Lab, mjlab; the others: StaggeredVecEnv(env)",
        ],
    },
    "maniskill": {
        "stack": "ManiSkill",
        "supported": ALL,
        "lines": [
            "from steadyrl.integrations.torch import CounterStagger",
            'stagger = CounterStagger(envs.unwrapped, counters="_elapsed_steps", limit=max_episode_steps)',
            "observations, rewards, terminated, truncated, infos = envs.step(actions)",
            "stagger.step(terminated | truncated, rewards, terminated)",
        ],
    },
    "rl_games": {
        "stack": "rl_games (IsaacGymEnvs, Isaac Lab)",
        "supported": ALL,
        "lines": [
            "from steadyrl.integrations.torch import CounterStagger",
            'stagger = CounterStagger(env.unwrapped, counters="progress_buf")  # Isaac Lab: "episode_length_buf"',
            "observations, rewards, dones, infos = env.step(actions)  # in the VecEnv given to rl_games",
            "stagger.step(dones, rewards)  # and stagger.log() for what is known of ages and episodes",
        ],
    },
    "pufferlib": {
        "stack": "PufferLib",
        "version": "3.0.0, not installed",
        "supported": {"stagger": False, "monitor": False, "fair statistics": False},
        "lines": [],
        "note": "PufferLib could not be installed here, so nothing was tried. It is a source distribution whose build "
        "downloads raylib and Box2D from GitHub, which the machine of these tests does not reach (`URLError: Name or "
        "service not known`). Built without them (`NO_OCEAN=1`), its setup.py stops with `NameError: name "
        "'c_extension_paths' is not defined`. It also wants gymnasium 0.29.1 or earlier, and steadyrl 1.3 or later.",
    },
}
"""What could not be installed here. Of those with lines, the contract was read in their sources."""


def save(name: str, entry: dict[str, Any], script: str = "") -> None:
    command = f"python benchmarks/{script or f'stacks_torch.py {name}'}"
    entry = entry | {"command": command, "seed": SEED, "steadyrl": version("steadyrl")}
    path = RESULTS / "stacks" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(entry, indent=1) + "\n")
    print(name, entry.get("cost"), entry.get("distance"), entry.get("peers"), flush=True)


def run(name: str, *, keep_cost: bool) -> None:
    stack, before = STACKS[name], RESULTS / "stacks" / f"{name}.json"
    costs = json.loads(before.read_text())["microseconds"] if keep_cost else cost(stack["way"])
    entry = {
        "stack": stack["stack"],
        "version": version(stack["package"]),
        "supported": stack["supported"],
        "lines": stack["lines"],
        "cost": f"{costs['first 3 mean lengths']} µs at first, {costs['quiet, mean']} µs later",
        "microseconds": costs,
        "distance": live(stack["run"](), same_step=stack["same_step"]),
        "tested": True,
    }
    if "peers" in stack:
        ways = stack["peers"].items()
        entry["peers"] = {name: live(start(), same_step=stack["same_step"]) for name, start in ways}
    save(name, entry)


def main() -> None:
    names = [*STACKS, "cleanrl", *UNTESTED]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names)}; all if none is given")
    parser.add_argument("--keep-cost", action="store_true", help="measure distances only; the cost stays as it is")
    given = parser.parse_args()
    chosen = given.names or names
    torch.set_num_threads(1)
    for name in chosen:
        if name == "cleanrl":
            lines = (Path(__file__).parents[1] / "examples" / "cleanrl_ppo.py").read_text().splitlines()
            marked = [line.removesuffix("  # cure").strip() for line in lines if "StaggeredVectorEnv" in line]
            entry = {"stack": "CleanRL", "version": "single files", "supported": ALL, "lines": marked, "tested": True}
            save(name, entry | {"cost": "as Gymnasium", "distance": {}})
        elif name in UNTESTED:
            save(name, {"version": "read, not run", **UNTESTED[name], "cost": "", "distance": {}, "tested": False})
        else:
            run(name, keep_cost=given.keep_cost)


if __name__ == "__main__":
    main()
