"""Plans a collection: checks the options, makes the policy, chooses the backend, records what determines the data."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np

from steadyrl.common.checks import check_choice, check_count, check_seed, is_number, shown
from steadyrl.common.identity import content_text, fingerprint
from steadyrl.common.machine import cores
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import LONGEST, Description, Source, as_source, describe
from steadyrl.errors import RolloutError
from steadyrl.integrations.envpool.twins import against_envpool, require_envpool
from steadyrl.policies.choosing import resolve_policy
from steadyrl.policies.networks import NetworkPolicy, Policy, UniformPolicy
from steadyrl.policies.tables import TabularPolicy
from steadyrl.rollouts.blocks import BLOCK_SIZE, HEAVY_NUM_ENVS, NUM_ENVS, Task, Work
from steadyrl.rollouts.ray_tasks import import_ray

LARGEST_SEED, MOST_WORKERS = 1 << 128, 1000

BACKENDS = ("auto", "serial", "processes", "envpool", "ray")

Backend = Literal["serial", "processes", "envpool", "ray"]


@dataclass(frozen=True)
class Options:
    """The options of a collection; `collect_episodes` explains them."""

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
        if check_seed(self.seed) >= LARGEST_SEED:
            raise RolloutError("seed is too large; it must be below 2**128")
        check_choice("backend", self.backend, BACKENDS, RolloutError)
        check_choice("on_error", self.on_error, ("raise", "skip"), RolloutError)
        for name in ("workers", "block_size", "max_episode_steps"):
            check_count(name, getattr(self, name))
        timeout = self.step_timeout
        if timeout is not None and not (is_number(timeout) and 0 < timeout < float("inf")):
            raise RolloutError(f"step_timeout is {shown(timeout)}; it must be a positive number of seconds, or None")
        if self.address is not None and self.backend not in ("auto", "ray"):
            raise RolloutError(
                f"an address of a Ray cluster was given, but backend is {self.backend!r}; use backend='ray'"
            )


@dataclass(frozen=True)
class Plan:
    """A task, and how it will be run."""

    task: Task
    backend: Backend
    workers: int
    reason: str
    """Why it is this backend."""
    provenance: Mapping[str, Any]
    """What determines the data."""
    description: Description
    options: Options
    policy: str
    """The name under which the policy is recorded."""
    against: str | None
    """Why "auto" did not choose EnvPool; None if it did, or if a backend was named."""

    def for_round(self, work: Work, seed: int) -> Plan:
        """Return the plan of another round with the same environment and policy, without making either again."""
        backend, reason = self.backend, self.reason
        if self.against is not None:  # a small round is faster in this process, a large one in several
            backend, reason, _ = _choose(self.task.source, self.description, work.total, self.options, self.against)
        first = seed == self.task.seed
        checks: dict[str, Any] = {
            name: first and getattr(self.task, name) for name in ("check_repeatable", "check_policy")
        }
        task = replace(self.task, work=work, seed=int(seed), **checks)
        return replace(self, task=task, backend=backend, reason=reason, provenance={**self.provenance, "seed": seed})


def make_plan(environment: Any, policy: Any, work: Work, options: Options) -> Plan:
    """Check everything that can be checked before anything is run."""
    source = as_source(environment, options.make_arguments)
    description = describe(source)
    source = source.described(description)
    backend, reason, against = _choose(source, description, work.total, options, None)
    family: Literal["gymnasium", "envpool"] = "envpool" if backend == "envpool" else "gymnasium"
    observations, actions = observation_codec(description.observation_space), action_codec(description.action_space)
    chosen, policy_name = resolve_policy(policy, observations, actions, seed=options.seed)
    workers = int(options.workers or cores())
    if workers > MOST_WORKERS and backend in ("processes", "envpool"):
        raise RolloutError(f"workers is {workers:,}; on one machine it may be {MOST_WORKERS:,} at most")
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
        num_envs=next((number for name, number in HEAVY_NUM_ENVS.items() if name in description.module), NUM_ENVS),
        threads=workers,
        check_repeatable=family == "gymnasium" and (source.name, source.digest) not in checked,
        check_policy=not isinstance(chosen, NetworkPolicy | TabularPolicy | UniformPolicy),
    )
    provenance = describe_run(task, policy_name, description)
    return Plan(task, backend, workers, reason, provenance, description, options, policy_name, against)


checked: set[tuple[str, str]] = set()
"""Environments, by name and fingerprint, whose episodes were found to repeat, or not to, in this process."""


def choose_backend(source: Source, description: Description, total: int, options: Options) -> tuple[Backend, str]:
    """Return the backend, and why it is that one."""
    return _choose(source, description, total, options, None)[:2]


def _choose(
    source: Source, description: Description, total: int, options: Options, against: str | None
) -> tuple[Backend, str, str | None]:
    """Return the backend, the reason, and why EnvPool is not used; `against` is the latter, if it is known already."""
    if options.backend == "envpool":
        require_envpool(source, description)
        return "envpool", "it was asked for", None
    if options.backend == "ray" or options.address is not None:
        import_ray()
        return "ray", "it was asked for" if options.backend == "ray" else "an address was given", None
    if options.backend == "serial":
        return "serial", "it was asked for", None
    if options.backend == "processes":
        return "processes", "it was asked for", None
    against = against_envpool(source, description) if against is None else against
    if against is None:
        return "envpool", f"EnvPool has {source.id} and its threads are fastest", None
    if (options.workers or cores()) == 1:
        return "serial", f"there is one core to use, and {against}", against
    size = int(options.block_size or BLOCK_SIZE["gymnasium"])
    if total <= size:
        reason = f"all fits into one block of {size} (a smaller block size would use more cores), and {against}"
        return "serial", reason, against
    return "processes", f"there are {options.workers or cores()} cores to use, and {against}", against


def describe_run(task: Task, policy_name: str, description: Description) -> dict[str, Any]:
    """Return what determines the data, and no more: the same data carry the same provenance."""
    found = {
        "environment": task.source.name,
        "make_arguments": {key: content_text(value) for key, value in task.source.arguments.items()},
        "policy": policy_name,
        "policy_digest": digest(task.policy),
        "seed": task.seed,
        "block_size": task.block_size,
        "family": task.family,
        "max_episode_steps": task.limit,
        "on_error": task.on_error,
        "versions": _versions(task, description),
    }
    return found | ({"environment_digest": task.source.digest} if task.source.digest else {})


def digest(policy: Policy) -> str:
    """Return a fingerprint of what a policy is made of: the same policy has the same one in every process."""
    if isinstance(policy, NetworkPolicy):
        arrays = list(policy.tensors().values())
        arrays += [] if policy.sampled else [np.zeros(1)]
        arrays += [] if policy.normalisation is None else [np.array(float(policy.normalisation.limit))]
    elif isinstance(policy, TabularPolicy):
        arrays = [policy.cumulative]
    elif isinstance(policy, UniformPolicy):
        return ""
    else:
        return fingerprint(policy)
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def _versions(task: Task, description: Description) -> dict[str, str]:
    names = {"steadyrl", "numpy", "gymnasium", description.module.split(".")[0]}
    names |= {"envpool"} if task.family == "envpool" else set()
    names |= {"mujoco"} if ".mujoco" in description.module else set()
    names |= {"pybullet"} if "bullet" in description.module else set()
    return installed_versions(names)


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of those of the packages that are installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in sorted(set(names) - {"python"}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a module of the user's own
            continue
    return found
