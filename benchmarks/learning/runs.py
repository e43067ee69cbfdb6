"""The study as data: tasks, arms, algorithms, and every run that is made. `protocol.md` says why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """An environment of EnvPool, and the steps of all environments that a run may take in it."""

    name: str
    horizon: int
    steps: int = 1_000_000


TASKS = {
    task.name: task
    for task in (
        Task("CartpoleSwingup-v1", 1000),
        Task("PendulumSwingup-v1", 1000),
        Task("BallInCupCatch-v1", 1000),
        Task("FingerSpin-v1", 1000),
        Task("ReacherEasy-v1", 1000),
        Task("CheetahRun-v1", 1000),
        Task("WalkerWalk-v1", 1000),
        Task("Swimmer-v5", 1000),
        Task("HalfCheetah-v5", 1000),
        Task("Hopper-v5", 1000),
        Task("Walker2d-v5", 1000),
        Task("Reacher-v5", 50, 500_000),
        Task("Pusher-v5", 100, 500_000),
        Task("MiniGrid-DoorKey-5x5-v0", 250, 500_000),
    )
}

# Stable-Baselines3's own defaults, but for minibatches and epochs, which are rsl_rl's: four minibatches of a batch of
# 256 x 8 steps, five epochs.
PPO_SETTINGS: dict[str, Any] = {
    "learning_rate": 3e-4,
    "batch_size": 512,
    "n_epochs": 5,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
A2C_SETTINGS: dict[str, Any] = {
    "learning_rate": 7e-4,
    "gamma": 0.99,
    "gae_lambda": 1.0,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
EVALUATIONS = 10
EVALUATION_EPISODES = 16


@dataclass(frozen=True)
class Run:
    """One training: everything that its result depends on, but for the versions of the libraries."""

    part: str
    task: str
    arm: str
    seed: int
    algorithm: str = "PPO"
    num_envs: int = 256
    n_steps: int = 8
    normalise: bool = False
    end_rewards: bool = False
    steps: int | None = None

    @property
    def key(self) -> str:
        """A name that no other run has."""
        extras = ("normalised",) * self.normalise + ("end-rewards",) * self.end_rewards
        named = (self.part, self.task, self.algorithm, f"{self.num_envs}x{self.n_steps}", *extras, self.arm, self.seed)
        return "_".join(str(part) for part in named)

    @property
    def total_steps(self) -> int:
        """Steps of all environments."""
        return TASKS[self.task].steps if self.steps is None else self.steps

    def as_dict(self) -> dict[str, Any]:
        """Return the run as plain values."""
        return asdict(self) | {"steps": self.total_steps}


SEEDS, FEWER_SEEDS = range(10), range(5)
FIVE_TASKS = ("HalfCheetah-v5", "CartpoleSwingup-v1", "Swimmer-v5", "BallInCupCatch-v1", "Hopper-v5")
FOUR_TASKS = ("HalfCheetah-v5", "CartpoleSwingup-v1", "Swimmer-v5", "Hopper-v5")
THREE_TASKS = ("HalfCheetah-v5", "CartpoleSwingup-v1", "Swimmer-v5")
BOTH = ("as it is", "anytime")
OTHER_ARMS = ("designed", "counters", "blocks", "full length", "random choice", "lockstep restarts")


def plan() -> list[Run]:
    """Return all runs that are reported, in the order in which they are made."""
    runs = [Run("main", task, arm, seed) for seed in SEEDS for task in TASKS for arm in BOTH]
    for seed in FEWER_SEEDS:
        for task in FIVE_TASKS:
            for arm in OTHER_ARMS:
                size = {"num_envs": 2, "n_steps": 1024} if arm == "full length" else {}
                runs.append(Run("arms", task, arm, seed, **size))
        runs += [Run("regimes", task, arm, seed, n_steps=n) for n in (32, 128) for task in FOUR_TASKS for arm in BOTH]
        runs += [Run("a2c", task, arm, seed, algorithm="A2C") for task in THREE_TASKS for arm in BOTH]
        for task in ("CartpoleSwingup-v1", "Hopper-v5"):
            runs += [Run("few", task, arm, seed, num_envs=8, n_steps=256) for arm in BOTH]
        for task in ("HalfCheetah-v5", "Hopper-v5"):
            runs += [Run("normalised", task, arm, seed, normalise=True) for arm in BOTH]
        for task in ("CartpoleSwingup-v1", "HalfCheetah-v5"):
            runs += [Run("end-rewards", task, arm, seed, end_rewards=True) for arm in BOTH]
            runs.append(Run("no-bootstrap", task, "anytime as ends", seed))
    return runs


def quick_plan() -> list[Run]:
    """Return a few short runs that try out every arm and every kind of run: a test of the machinery, no evidence."""
    some = {"seed": 900, "num_envs": 16, "steps": 4096}
    runs = [Run("quick", "Reacher-v5", arm, **some) for arm in (*BOTH, *OTHER_ARMS, "anytime as ends")]
    runs += [Run("quick", task, "anytime", **some) for task in ("MiniGrid-DoorKey-5x5-v0", "Hopper-v5")]
    runs += [Run("quick", "Reacher-v5", arm, algorithm="A2C", **some) for arm in BOTH]
    runs += [Run("quick", "Reacher-v5", "anytime", normalise=True, **some)]
    runs += [Run("quick", "Reacher-v5", "anytime", end_rewards=True, **some)]
    return runs
