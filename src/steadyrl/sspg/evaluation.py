"""How good is a policy: mean return and E[T], with confidence intervals, over complete episodes or with any budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TextIO

from steadyrl.common.checks import check_count, check_flag, check_level, plain_array
from steadyrl.common.intervals import Interval, mean_interval
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import as_source, describe
from steadyrl.errors import PolicyError, RolloutError
from steadyrl.live.fair_report import FairReport
from steadyrl.policies.choosing import resolve_policy
from steadyrl.policies.networks import NetworkPolicy, Policy
from steadyrl.policies.tables import TabularPolicy
from steadyrl.rollouts.collect import collect_episodes
from steadyrl.rollouts.episodes import Episodes
from steadyrl.sspg.budgets import Budget, BudgetRun, run_budget


@dataclass(frozen=True)
class Evaluation:
    """Mean return and average episode length of a policy, with confidence intervals."""

    mean_return: Interval
    average_episode_length: Interval
    """E[T], T = Gymnasium's length + 1."""
    episodes: Episodes | None
    """The complete episodes; None if the evaluation had a budget of steps, seconds or precision."""
    deterministic: bool
    seed: int = 0
    level: float = 0.95
    """Confidence level of the intervals."""
    run: BudgetRun | None = None
    """How the budget was spent, with the whole `FairReport`; None for complete episodes."""

    @property
    def report(self) -> FairReport | None:
        """The fair numbers of an evaluation with a budget: also success, what is unresolved, and bounds."""
        return None if self.run is None else self.run.report


def evaluate(
    environment: Any,
    policy: Any,
    episodes: int | None = None,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    until: float | None = None,
    num_envs: int | None = None,
    deterministic: bool = False,
    seed: int = 0,
    backend: str = "auto",
    workers: int | None = None,
    step_timeout: float | None = None,
    make_arguments: Mapping[str, Any] | None = None,
    trajectories: bool = False,
    level: float = 0.95,
    progress: bool | TextIO = False,
) -> Evaluation:
    """Return the mean return and the average episode length of a policy, with confidence intervals.

    Give a number of complete episodes, or one budget: `steps`, `seconds` or `until`. With a budget, environments run
    side by side and stop wherever they are; running episodes count, so the estimate is unbiased (`FairStatistics`), and
    environments are the independent unit of the interval. Ctrl-C ends it early with what is known by then. The same
    seed, `steps` and backend give the same numbers.

    Args:
        environment: a Gymnasium id, a spec, a LearningProcess, or a function that makes an environment.
        policy: a policy file, "uniform", "gaussian", an array [S, A], a trained policy, or an object with
            act(observations, rng).
        episodes: number of episodes, 100 by default; every one that is started is finished and counted.
        steps: number of steps of all environments together, resets included (rounded up to a multiple of `num_envs`).
            Give enough for each environment to see episodes end; otherwise `report.unresolved` is not 0.
        seconds: number of seconds to run.
        until: width of the interval of the mean return, from its lower to its upper end, at which to stop. `steps` or
            `seconds` beside it are limits.
        num_envs: number of environments for a budget; by default 32, or 8 to 64 if `steps` and the time limit are
            known, so that each has time for four episodes of that length.
        deterministic: whether to take the mean, or the most likely action, instead of drawing; for networks and tables.
        seed: seed of everything random.
        backend: as for `collect_episodes`; with a budget not "ray".
        workers: as for `collect_episodes`.
        step_timeout: the seconds that one step may take; a slower one is an error. Environments then run in processes
            that can be ended.
        make_arguments: arguments for gymnasium.make, if `environment` is an id or a spec.
        trajectories: whether to keep observations, actions and rewards, as a video needs them; for complete episodes.
        level: confidence level of the intervals: Student's t for episodes, the jackknife over environments for budgets.
        progress: True to show progress on standard error, or a stream to show it on.

    Raises:
        PolicyError: if the policy does not fit the environment, or cannot be made deterministic.
        RolloutError: if several of episodes, steps, seconds and until are given that exclude each other, or another
            argument cannot be used.

    Example:
        >>> found = evaluate("steadyrl/StateSweep-v0", "uniform", 10)
        >>> found.mean_return.value, found.average_episode_length
        (189.0, Interval(value=20.0, low=20.0, high=20.0))
        >>> found = evaluate("steadyrl/StateSweep-v0", "uniform", steps=1000, num_envs=8)
        >>> found.mean_return.value, found.average_episode_length.value
        (189.0, 20.0)
    """
    check_count("episodes", episodes)
    level = check_level(level, RolloutError)
    budget = None
    if not (steps is None and seconds is None and until is None):
        if episodes is not None or trajectories is not False:
            raise RolloutError(
                "episodes and trajectories are for complete episodes, and steps, seconds and until for budgets; give "
                "one or the other"
            )
        budget = Budget(steps, seconds, until)
    elif num_envs is not None:
        raise RolloutError("num_envs is for budgets: give steps, seconds or until with it, or `workers` for episodes")
    for name, flag in (("deterministic", deterministic), ("trajectories", trajectories)):
        check_flag(name, flag, RolloutError)
    source = as_source(environment, make_arguments)
    chosen = chosen_policy(policy, source, deterministic=deterministic, seed=seed)
    if budget is not None:
        run = run_budget(
            source,
            describe(source),
            chosen,
            budget,
            num_envs=num_envs,
            seed=seed,
            backend=backend,
            workers=workers,
            step_timeout=step_timeout,
            level=level,
            progress=progress,
        )
        report = run.report
        return Evaluation(report.mean_return, report.average_episode_length, None, deterministic, seed, level, run)
    found = collect_episodes(
        environment,
        chosen,
        100 if episodes is None else episodes,
        seed=seed,
        backend=backend,
        workers=workers,
        step_timeout=step_timeout,
        make_arguments=make_arguments,
        observation_sums=False,
        trajectories=trajectories,
        progress=progress,
    )
    mean_return, length = mean_interval(found.returns, level), mean_interval(found.lengths + 1.0, level)
    return Evaluation(mean_return, length, found, deterministic, seed, level)


def chosen_policy(policy: Any, source: Any, *, deterministic: bool, seed: int) -> Policy:
    """Return the policy that was named, made deterministic if that was asked for."""
    description = describe(source)
    observations, actions = observation_codec(description.observation_space), action_codec(description.action_space)
    if hasattr(policy, "requires_grad"):  # a tensor
        policy = plain_array("policy", policy, PolicyError)
    policy = policy.numpy() if callable(getattr(policy, "numpy", None)) else policy
    chosen, name = resolve_policy(policy, observations, actions, seed=seed)
    if not deterministic:
        return chosen
    if isinstance(chosen, TabularPolicy):
        return chosen.likeliest()
    if not isinstance(chosen, NetworkPolicy):
        raise PolicyError(f"the policy {name!r} cannot be made deterministic; only networks and tables [S, A] can")
    return replace(chosen, sampled=False)
