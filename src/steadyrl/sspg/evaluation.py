"""How good is a policy: mean return and E[T] over complete episodes, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TextIO

from steadyrl.common.checks import check_count
from steadyrl.common.intervals import Interval, mean_interval
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import as_source, describe
from steadyrl.errors import PolicyError
from steadyrl.policies.choosing import resolve_policy
from steadyrl.policies.networks import NetworkPolicy, Policy
from steadyrl.policies.tables import TabularPolicy
from steadyrl.rollouts.collect import collect_episodes
from steadyrl.rollouts.episodes import Episodes


@dataclass(frozen=True)
class Evaluation:
    """The result of complete episodes of a policy, with 95% confidence intervals (Student's t)."""

    mean_return: Interval
    average_episode_length: Interval
    """E[T], T = Gymnasium's length + 1."""
    episodes: Episodes
    deterministic: bool
    seed: int = 0


def evaluate(
    environment: Any,
    policy: Any,
    episodes: int | None = None,
    *,
    deterministic: bool = False,
    seed: int = 0,
    backend: str = "auto",
    workers: int | None = None,
    make_arguments: Mapping[str, Any] | None = None,
    trajectories: bool = False,
    progress: bool | TextIO = False,
) -> Evaluation:
    """Run complete episodes and return their mean return and average length.

    Args:
        environment: a Gymnasium id, a spec, a LearningProcess, or a function that makes an environment.
        policy: a policy file, "uniform", "gaussian", an array [S, A], a trained policy, or an object with
            act(observations, rng).
        episodes: number of episodes, 100 by default; every one that is started is finished and counted.
        deterministic: whether to take the mean, or the most likely action, instead of drawing; for networks and tables.
        seed: seed of everything random.
        backend: as for `collect_episodes`.
        workers: as for `collect_episodes`.
        make_arguments: arguments for gymnasium.make, if `environment` is an id or a spec.
        trajectories: whether to keep observations, actions and rewards, as a video needs them.
        progress: True to show progress on standard error, or a stream to show it on.

    Raises:
        PolicyError: if the policy does not fit the environment, or cannot be made deterministic.

    Example:
        >>> found = evaluate("steadyrl/StateSweep-v0", "uniform", 10)
        >>> found.mean_return.value, found.average_episode_length
        (189.0, Interval(value=20.0, low=20.0, high=20.0))
    """
    check_count("episodes", episodes)
    source = as_source(environment, make_arguments)
    chosen = chosen_policy(policy, source, deterministic=deterministic, seed=seed)
    found = collect_episodes(
        environment,
        chosen,
        100 if episodes is None else episodes,
        seed=seed,
        backend=backend,
        workers=workers,
        make_arguments=make_arguments,
        observation_sums=False,
        trajectories=trajectories,
        progress=progress,
    )
    mean_return, length = mean_interval(found.returns, 0.95), mean_interval(found.lengths + 1.0, 0.95)
    return Evaluation(mean_return, length, found, deterministic, seed)


def chosen_policy(policy: Any, source: Any, *, deterministic: bool, seed: int) -> Policy:
    """Return the policy that was named, made deterministic if that was asked for."""
    description = describe(source)
    observations, actions = observation_codec(description.observation_space), action_codec(description.action_space)
    policy = policy.numpy() if callable(getattr(policy, "numpy", None)) else policy
    chosen, name = resolve_policy(policy, observations, actions, seed=seed)
    if not deterministic:
        return chosen
    if isinstance(chosen, TabularPolicy):
        return chosen.likeliest()
    if not isinstance(chosen, NetworkPolicy):
        raise PolicyError(f"the policy {name!r} cannot be made deterministic; only networks and tables [S, A] can")
    return replace(chosen, sampled=False)
