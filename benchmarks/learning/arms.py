"""The arms: how the environments of a run are staggered, or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from assets import small_sky
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from steadyrl import EpisodeLengths, StaggerController, design_delays
from steadyrl.integrations.sb3 import EnvPoolVecEnv, SteadyVecEnv

Flags = NDArray[np.bool_]


class ScriptedCuts:
    """Cuts that a function of the step and of who ended decides about; `SteadyVecEnv.staggering` can be one.

    Args:
        num_envs: number of environments.
        rule: called with the step (1, 2, ...), whose episode ended in it, and the ages; returns whom to cut.
    """

    settled = False

    def __init__(self, num_envs: int, rule: Callable[[int, Flags, NDArray[np.int64]], Flags]) -> None:
        self._rule, self._num_envs = rule, num_envs
        self.cuts = 0
        self.reset()

    def reset(self, mask: Any = None, *, seed: Any = None) -> None:
        """All environments were reset."""
        self._time = 0
        self.ages = np.ones(self._num_envs, dtype=np.int64)

    def step(self, done: Flags) -> Flags:
        """Return whom to cut."""
        self._time += 1
        cut = self._rule(self._time, done, self.ages) & ~done
        self.cuts += int(cut.sum())
        self.ages = np.where(done | cut, 1, self.ages + 1)
        return cut


def staggered(env: VecEnv, rule: Callable[[int, Flags, NDArray[np.int64]], Flags]) -> VecEnv:
    """Return the environments with scripted cuts."""
    steady = SteadyVecEnv(env)
    steady.staggering = ScriptedCuts(env.num_envs, rule)
    return steady


def as_it_is(env: VecEnv, *, seed: int, horizon: int, n_steps: int, task: str) -> VecEnv:
    """All environments are reset together, and nothing is done about it."""
    return env


def anytime(env: VecEnv, *, seed: int, horizon: int, n_steps: int, task: str) -> VecEnv:
    """Anytime-optimal staggering, steadyrl's default."""
    return SteadyVecEnv(env, seed=seed)


def designed(env: VecEnv, *, seed: int, horizon: int, n_steps: int, task: str) -> VecEnv:
    """One truncation per environment at a designed time, from the lengths of 200 episodes under random actions."""
    lengths = first_lengths(EnvPoolVecEnv(task, 200, seed=10_000 + seed, num_threads=1, **small_sky(task)), seed)
    return SteadyVecEnv(env, design_delays(EpisodeLengths.from_gymnasium(lengths)), seed=seed)


def first_lengths(env: VecEnv, seed: int) -> NDArray[np.int64]:
    """Return the length of each environment's first episode under random actions: all that were started count."""
    env.reset()
    env.action_space.seed(seed)
    lengths = np.zeros(env.num_envs, dtype=np.int64)
    time = 0
    while not lengths.all():
        time += 1
        _, _, dones, _ = env.step(np.array([env.action_space.sample() for _ in range(env.num_envs)]))
        lengths[dones & (lengths == 0)] = time
    env.close()
    return lengths


def counters(env: VecEnv, *, seed: int, horizon: int, n_steps: int, task: str) -> VecEnv:
    """Step counters start at random (rsl_rl's init_at_random_ep_len): the first time limit comes early."""
    first = np.random.default_rng([seed, 1]).integers(0, horizon, env.num_envs)

    def rule(time: int, done: Flags, ages: NDArray[np.int64]) -> Flags:
        return (ages == time) & (time + first >= horizon)  # the first episode only: its counter began at `first`

    return staggered(env, rule)


def blocks(env: VecEnv, *, seed: int, horizon: int, n_steps: int, task: str) -> VecEnv:
    """Blocks of environments are restarted at multiples of n_steps in the first horizon (after arXiv 2511.21011)."""
    count = max(horizon // n_steps, 1)
    offset = (np.arange(env.num_envs) * count // env.num_envs) * n_steps

    def rule(time: int, done: Flags, ages: NDArray[np.int64]) -> Flags:
        return (offset == time) & (offset > 0)

    return staggered(env, rule)


def random_choice(env: VecEnv, *, seed: int, horizon: int, n_steps: int, task: str) -> VecEnv:
    """As many cuts as anytime makes, at the same times, in environments chosen without regard to their ages.

    How many are cut when is what a controller of as many environments decides that sees the same ends.
    """
    rng = np.random.default_rng([seed, 2])
    controller = StaggerController(env.num_envs, same_step=True, seed=seed)
    shadow = np.ones(env.num_envs, dtype=np.int64)

    def rule(time: int, done: Flags, ages: NDArray[np.int64]) -> Flags:
        nonlocal shadow
        # The controller watches environments of its own, which end at the horizon or when theirs ends early.
        ended = (shadow >= horizon) | (done & (ages < horizon))
        wanted = controller.step(ended)
        shadow = np.where(ended | wanted, 1, shadow + 1)
        running = np.flatnonzero(~done)
        cut = np.zeros(env.num_envs, dtype=bool)
        cut[rng.choice(running, min(int(wanted.sum()), len(running)), replace=False)] = True
        return cut

    return staggered(env, rule)


def restarts_in_lockstep(env: VecEnv, *, seed: int, horizon: int, n_steps: int, task: str) -> VecEnv:
    """As many restarts per environment as anytime makes, but of all environments together: young states, in lockstep.

    Anytime makes 1/2 + ... + 1/t cuts per environment by time t; here everybody is cut when that passes 1, 2, ...
    """
    cuts = np.cumsum(1 / np.arange(2, horizon + 1))
    times = {int(np.searchsorted(cuts, count)) + 1 for count in range(1, int(cuts[-1]) + 1)}

    def rule(time: int, done: Flags, ages: NDArray[np.int64]) -> Flags:
        return np.full(env.num_envs, time in times)

    return staggered(env, rule)


def anytime_as_ends(env: VecEnv, *, seed: int, horizon: int, n_steps: int, task: str) -> VecEnv:
    """Anytime-optimal staggering whose truncations are taken for ends: nothing is bootstrapped there, by mistake."""
    return AsEnds(SteadyVecEnv(env, seed=seed))


class AsEnds(VecEnvWrapper):
    """Takes the mark of a truncation away where an episode was cut."""

    def reset(self) -> Any:
        """Reset all environments."""
        return self.venv.reset()

    def step_wait(self) -> Any:
        """Finish a step."""
        observations, rewards, dones, infos = self.venv.step_wait()
        for i in np.flatnonzero(dones):
            if infos[i].get("staggered"):
                infos[i]["TimeLimit.truncated"] = False
        return observations, rewards, dones, infos


ARMS: dict[str, Callable[..., VecEnv]] = {
    "as it is": as_it_is,
    "anytime": anytime,
    "designed": designed,
    "counters": counters,
    "blocks": blocks,
    "full length": as_it_is,  # two environments for a whole horizon: `runs.py` has the sizes
    "random choice": random_choice,
    "lockstep restarts": restarts_in_lockstep,
    "anytime as ends": anytime_as_ends,
}
