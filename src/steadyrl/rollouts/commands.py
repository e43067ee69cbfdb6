"""The command, or the Python call, that makes collected data again.

It is recorded with the data. What the command line can express becomes a command; environments that are functions or
processes, policies that are objects, and samples, which have no command, become a call of the Python function.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from steadyrl.common.identity import content_text
from steadyrl.environments.sources import Source
from steadyrl.policies.networks import Policy, UniformPolicy
from steadyrl.rollouts.blocks import BLOCK_SIZE, Task


def episodes_command(
    task: Task, policy: str, limit: int | None, *, total: int, sums: bool | None, trajectories: bool
) -> str:
    """Return what makes these episodes again: `steadyrl collect ...` or `collect_episodes(...)`.

    Args:
        task: the run.
        policy: the recorded name of the policy.
        limit: `max_episode_steps`, if it was given.
        total: the number of episodes.
        sums: `observation_sums`, if it was given; the command line has no option for it.
        trajectories: whether whole trajectories are kept.
    """
    flags: dict[str, Any] = {"seed": task.seed, "backend": _backend(task)}
    flags |= _given(task, limit)
    if sums is None and _on_the_command_line(task.source, policy, task.policy):
        words = ["steadyrl", "collect", str(task.source.id), "--episodes", str(total), "--policy", policy]
        for name, value in flags.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        words += ["--trajectories"] if trajectories else []
        return shlex.join([*words, *_make(task.source)])
    more = {"observation_sums": sums} if sums is not None else {}
    more |= {"trajectories": True} if trajectories else {}
    return _call("collect_episodes", task, policy, [total], flags | more)


def samples_call(
    task: Task, policy: str, limit: int | None, *, total: int, times: Any, jumps: bool, more: Mapping[str, Any]
) -> str:
    """Return the call of `collect_samples` that makes these samples again; `jumps` is whether nothing is simulated."""
    flags = {"seed": task.seed, **more, "backend": "auto" if jumps else _backend(task), **_given(task, limit)}
    return _call("collect_samples", task, policy, [total, list(times)], flags)


def diagnose_command(task: Task, policy: str) -> str:
    """Return the diagnosis that collects these episodes: `steadyrl diagnose ...` or `diagnose(...)`."""
    flags = {"seed": task.seed, "backend": _backend(task)}
    if _on_the_command_line(task.source, policy, task.policy):
        words = ["steadyrl", "diagnose", str(task.source.id), "--policy", policy, "--seed", str(task.seed)]
        return shlex.join([*words, "--backend", _backend(task), *_make(task.source)])
    return _call("diagnose", task, policy, [], flags)


def _backend(task: Task) -> str:
    """Return the simplest backend that gives the same data."""
    return "envpool" if task.family == "envpool" else "serial"


def _given(task: Task, limit: int | None) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    options: dict[str, tuple[Any, Any]] = {
        "block_size": (task.block_size, BLOCK_SIZE[task.family]),
        "max_episode_steps": (limit, None),
    }
    options |= {"on_error": (task.on_error, "raise")}
    return {name: value for name, (value, default) in options.items() if value != default}


def _on_the_command_line(source: Source, name: str, policy: Policy) -> bool:
    """Whether the command line can name this environment and this policy."""
    named = isinstance(policy, UniformPolicy) or name == "gaussian" or name.endswith((".safetensors", ".zip"))
    return source.id is not None and named and all(_text(value) is not None for value in source.arguments.values())


def _make(source: Source) -> list[str]:
    return [word for key, value in source.arguments.items() for word in ("--make", f"{key}={_text(value)}")]


def _text(value: Any) -> str | None:
    """Return an argument of gymnasium.make as --make reads it, or None if it cannot be written there."""
    try:
        text = json.dumps(value)
        if json.loads(text) != value:
            return None
    except (TypeError, ValueError, RecursionError):
        return None
    if isinstance(value, str):
        try:
            json.loads(value)
        except (ValueError, RecursionError):  # as --make does: not JSON, or a number of thousands of digits
            return value  # text that JSON would not read as something else needs no quotes
    return text


def _call(function: str, task: Task, policy: str, positional: list[Any], named: Mapping[str, Any]) -> str:
    environment = task.source.name if task.source.id is None else repr(task.source.id)
    shown = policy if policy == "tabular" or not isinstance(task.policy, UniformPolicy) else repr(policy)
    shown = repr(policy) if policy == "gaussian" or policy.endswith((".safetensors", ".zip")) else shown
    words = [environment, shown, *map(repr, positional), *(f"{key}={value!r}" for key, value in named.items())]
    arguments = ", ".join(f"{key!r}: {content_text(value)}" for key, value in task.source.arguments.items())
    words += [f"make_arguments={{{arguments}}}"] if arguments else []
    return f"steadyrl.{function}({', '.join(words)})"
