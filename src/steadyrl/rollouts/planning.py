"""From what a user asked for to a task: options checked, policy made, backend chosen, provenance written down."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np

from steadyrl.common.checks import check_count, check_seed
from steadyrl.common.machine import cores
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import LONGEST, Description, Source, as_source, describe
from steadyrl.errors import RolloutError
from steadyrl.integrations.envpool.twins import against_envpool, require_envpool
from steadyrl.policies.choosing import resolve_policy
from steadyrl.policies.networks import NetworkPolicy, Policy
from steadyrl.policies.tables import TabularPolicy
from steadyrl.rollouts.blocks import BLOCK_SIZE, COPIES, HEAVY_COPIES, Task, Work
from steadyrl.rollouts.ray_tasks import import_ray

BACKENDS = ("auto", "serial", "processes", "envpool", "ray")

Backend = Literal["serial", "processes", "envpool", "ray"]


@dataclass(frozen=True)
class Options:
    """How to collect; see `collect_episodes`."""

    seed: int = 0
    backend: str = "auto"
    workers: int | None = None
    address: str | None = None
    block_size: int | None = None
    max_episode_steps: int | None = None
    step_timeout: float | None = None
    on_error: str = "raise"
    make_arguments: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.backend not in BACKENDS:
            raise RolloutError(f"backend is {self.backend!r}; it must be one of {', '.join(BACKENDS)}")
        if self.on_error not in ("raise", "skip"):
            raise RolloutError(f"on_error is {self.on_error!r}; it must be 'raise' or 'skip'")
        for name in ("workers", "block_size", "max_episode_steps"):
            check_count(name, getattr(self, name))
        timeout = self.step_timeout
        if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < float("inf")):
            raise RolloutError(f"step_timeout is {timeout!r}; it must be a positive number of seconds, or None")
        if self.address is not None and self.backend not in ("auto", "ray"):
            raise RolloutError(f"address is that of a Ray cluster, but backend is {self.backend!r}; use backend='ray'")


@dataclass(frozen=True)
class Plan:
    """A task and how it will be run."""

    task: Task
    backend: Backend
    workers: int
    reason: str
    provenance: Mapping[str, Any]
    description: Description
    options: Options


def make_plan(environment: Any, policy: Any, work: Work, options: Options, command: list[str]) -> Plan:
    """Check everything that can be checked before anything is run."""
    source = as_source(environment, options.make_arguments)
    description = describe(source)
    backend, reason = choose_backend(source, description, work.total, options)
    family: Literal["gymnasium", "envpool"] = "envpool" if backend == "envpool" else "gymnasium"
    observations, actions = observation_codec(description.observation_space), action_codec(description.action_space)
    chosen, policy_name = resolve_policy(policy, observations, actions, seed=options.seed)
    workers = int(options.workers or cores())
    task = Task(
        source=source,
        observations=observations,
        actions=actions,
        policy=chosen,
        work=work,
        seed=int(options.seed),
        block_size=int(options.block_size or BLOCK_SIZE[family]),
        family=family,
        limit=int(options.max_episode_steps or description.max_episode_steps or LONGEST),
        on_error="skip" if options.on_error == "skip" else "raise",
        copies=next((copies for name, copies in HEAVY_COPIES.items() if name in description.module), COPIES),
        threads=workers,
    )
    provenance = describe_run(task, policy_name, description, options, command)
    return Plan(task, backend, workers, reason, provenance, description, options)


def choose_backend(source: Source, description: Description, total: int, options: Options) -> tuple[Backend, str]:
    """Return the backend, and why it is that one."""
    if options.backend == "envpool":
        require_envpool(source, description)
        return "envpool", "it was asked for"
    if options.backend == "ray" or options.address is not None:
        import_ray()
        return "ray", "it was asked for" if options.backend == "ray" else "an address was given"
    if options.backend == "serial":
        return "serial", "it was asked for"
    if options.backend == "processes":
        return "processes", "it was asked for"
    against = against_envpool(source, description)
    if against is None:
        return "envpool", f"EnvPool has {source.id} and its threads are fastest"
    if (options.workers or cores()) == 1:
        return "serial", f"there is one core to use, and {against}"
    size = int(options.block_size or BLOCK_SIZE["gymnasium"])
    if total <= size:
        return "serial", f"all fits into one block of {size} (a smaller block size would use more cores), and {against}"
    return "processes", f"there are {options.workers or cores()} cores to use, and {against}"


def describe_run(
    task: Task, policy_name: str, description: Description, options: Options, command: list[str]
) -> dict[str, Any]:
    """Return what determines the data, and no more: the same data carry the same provenance."""
    arguments = dict(task.source.arguments)
    words = ["steadyrl", *command, "--policy", policy_name, "--seed", str(task.seed)]
    words += ["--backend", "envpool" if task.family == "envpool" else "serial"]
    for flag, value, default in (
        ("--block-size", task.block_size, BLOCK_SIZE[task.family]),
        ("--max-episode-steps", options.max_episode_steps, None),
        ("--on-error", task.on_error, "raise"),
    ):
        words += [] if value == default else [flag, str(value)]
    for key, value in arguments.items():
        words += ["--make", f"{key}={value}"]
    return {
        "command": shlex.join(words),
        "environment": task.source.name,
        "make_arguments": {key: repr(value) for key, value in arguments.items()},
        "policy": policy_name,
        "policy_digest": digest(task.policy),
        "seed": task.seed,
        "block_size": task.block_size,
        "family": task.family,
        "max_episode_steps": task.limit,
        "on_error": task.on_error,
        "versions": _versions(task, description),
    }


def digest(policy: Policy) -> str:
    """Return a short fingerprint of the numbers in a policy of steadyrl's; "" for others."""
    if isinstance(policy, NetworkPolicy):
        arrays = list(policy.tensors().values())
        arrays += [] if policy.sampled else [np.zeros(1)]
    elif isinstance(policy, TabularPolicy):
        arrays = [policy.cumulative]
    else:
        return ""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def _versions(task: Task, description: Description) -> dict[str, str]:
    names = {"steadyrl", "numpy", "gymnasium", description.module.split(".")[0]}
    names |= {"envpool"} if task.family == "envpool" else set()
    names |= {"mujoco"} if ".mujoco" in description.module else set()
    names |= {"pybullet"} if "bullet" in description.module else set()
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in sorted(names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a module of the user's own
            continue
    return found
