"""Which ages a configuration of brax's PPO ever trains on; MuJoCo Playground's configurations are of that kind.

brax resets all environments together `num_resets_per_eval` times between two evaluations, after a number of steps that
follows from six other settings. Each environment takes

    u = unroll_length * batch_size * num_minibatches / num_envs

steps per update, and between two such resets there are

    n = ceil(num_timesteps / (evals * resets * batch_size * num_minibatches * unroll_length * action_repeat))

updates, with evals = max(num_evals - 1, 1) and resets = max(num_resets_per_eval, 1). So no age above n * u is ever
trained on, whatever the episode length. Steps are actions here: with an action repeat of k, an episode of
`episode_length` steps of the simulator has episode_length / k of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from steadyrl.common.checks import whole_number
from steadyrl.common.figures import PERTURBED, QUIET, RAW, check_picture, new_figure, save_figure
from steadyrl.errors import MissingExtraError, TrainingError


@dataclass(frozen=True)
class TrainerSchedule:
    """The settings of brax's PPO that decide which ages are trained on; defaults are brax's.

    Raises:
        TrainingError: if a setting is not a whole number, or brax would refuse it.

    Example:
        >>> schedule = TrainerSchedule(100_000_000, 8192, 1000, unroll_length=20, batch_size=256,
        ...                            num_minibatches=32, num_evals=10, num_resets_per_eval=10)
        >>> schedule.reset_every, schedule.oldest_age, schedule.reset_before_an_end
        (140, 140, True)
    """

    num_timesteps: int
    num_envs: int
    episode_length: int
    unroll_length: int = 10
    batch_size: int = 32
    num_minibatches: int = 16
    num_evals: int = 1
    num_resets_per_eval: int = 0
    action_repeat: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name in ("num_evals", "num_resets_per_eval") else 1
            whole_number(field.name, getattr(self, field.name), TrainingError, least=least)
        if self.batch_size * self.num_minibatches % self.num_envs:
            raise TrainingError(
                f"batch_size * num_minibatches is {self.batch_size * self.num_minibatches:,}, which num_envs = "
                f"{self.num_envs:,} does not divide, so brax refuses it; every environment gives as many unrolls to an "
                "update as any other"
            )

    @property
    def episode_steps(self) -> int:
        """Actions in an episode that lasts until its time limit."""
        return math.ceil(self.episode_length / self.action_repeat)

    @property
    def update_steps(self) -> int:
        """Steps that each environment takes per update."""
        return self.unroll_length * self.batch_size * self.num_minibatches // self.num_envs

    @property
    def updates_between_resets(self) -> int:
        """Updates between two resets of all environments, or between two evaluations if there are no such resets."""
        parts = max(self.num_evals - 1, 1) * max(self.num_resets_per_eval, 1)
        return -(-self.num_timesteps // (parts * self.update_steps * self.num_envs * self.action_repeat))

    @property
    def run_steps(self) -> int:
        """Steps that each environment takes in the whole run."""
        parts = max(self.num_evals - 1, 1) * max(self.num_resets_per_eval, 1)
        return parts * self.updates_between_resets * self.update_steps

    @property
    def reset_every(self) -> int | None:
        """Steps after which all environments are reset together, again and again; None if they never are."""
        return self.updates_between_resets * self.update_steps if self.num_resets_per_eval else None

    @property
    def oldest_age(self) -> int:
        """The oldest age that is ever trained on, if no episode ends early."""
        return min(self.episode_steps, self.reset_every or self.run_steps)

    @property
    def reset_before_an_end(self) -> bool:
        """Whether everybody is reset, every time, before an episode can last until its time limit."""
        return self.reset_every is not None and self.reset_every < self.episode_steps

    @property
    def message(self) -> str:
        """What follows from the settings, in sentences."""
        episode, oldest, update = self.episode_steps, self.oldest_age, self.update_steps
        found = []
        if self.reset_every is None:
            found.append("The environments are reset together once, at the start.")
        else:
            found.append(f"All {self.num_envs:,} environments are reset together every {self.reset_every:,} steps.")
        if oldest < episode:
            found.append(
                f"An episode lasts up to {episode:,} steps, so ages {oldest + 1:,} to {episode:,} are never trained "
                f"on: {1 - oldest / episode:.0%} of an episode."
            )
        elif self.reset_every is not None and self.reset_every % episode:
            whole, rest = divmod(self.reset_every, episode)
            found.append(
                f"All {episode:,} ages are trained on; if episodes last until their time limit, ages 1 to {rest:,} are "
                f"{(whole + 1) / whole:.3g} times as often."
            )
        else:
            found.append(f"All {episode:,} ages are trained on.")
        if update < episode:
            found.append(
                f"An update has {update:,} steps of each environment: in lockstep, {update / episode:.1%} of the ages."
            )
        if self.run_steps < episode:
            found.append(
                f"The whole run has {self.run_steps:,} steps of each environment, less than an episode, and no "
                "staggering mends that: use fewer environments, or more timesteps."
            )
        elif self.reset_before_an_end:
            found.append(
                "Set num_resets_per_eval=0, and stagger the episodes instead "
                "(steadyrl.integrations.jax.brax.stagger_wrap_fn)."
            )
        elif update < episode:
            found.append("Stagger the episodes (steadyrl.integrations.jax.brax.stagger_wrap_fn).")
        return " ".join(found)


def from_config(config: Mapping[str, Any]) -> TrainerSchedule:
    """Return the schedule of keyword arguments for brax's PPO; other arguments are not looked at."""
    names = [field.name for field in fields(TrainerSchedule)]
    return TrainerSchedule(**{name: config[name] for name in names if name in config})


def playground_schedules(tasks: Sequence[str] = ()) -> Iterator[tuple[str, TrainerSchedule]]:
    """Yield the tasks of MuJoCo Playground, or the given ones, with the schedules of their tuned PPO configurations.

    Raises:
        MissingExtraError: if MuJoCo Playground is not installed.
        TrainingError: if there is no such task.
    """
    try:
        from mujoco_playground import dm_control_suite, locomotion, manipulation
        from mujoco_playground.config import dm_control_suite_params, locomotion_params, manipulation_params
    except ImportError as error:
        raise MissingExtraError(
            "the configurations of a task are in MuJoCo Playground; install it with: "
            'pip install "steadyrl[playground]", or give the numbers as options'
        ) from error
    suites = (
        (dm_control_suite, dm_control_suite_params),
        (locomotion, locomotion_params),
        (manipulation, manipulation_params),
    )
    configs = {task: module.brax_ppo_config for suite, module in suites for task in suite.ALL_ENVS}
    for task in tasks or configs:
        if task not in configs:
            raise TrainingError(f"{task!r} is not a task of MuJoCo Playground; they are: {', '.join(configs)}")
        yield task, from_config(configs[task](task).to_dict())


def plot_schedules(schedules: Mapping[str, TrainerSchedule], path: Path) -> None:
    """Draw, task by task, which share of an episode is ever trained on, and which share an update sees."""
    suffix = check_picture(path)
    figure, (axes,) = new_figure(size=(7.2, 0.6 + 0.17 * len(schedules)))
    order = sorted(schedules, key=lambda name: schedules[name].oldest_age / schedules[name].episode_steps)
    for row, name in enumerate(order):
        found = schedules[name]
        trained, update = (min(n / found.episode_steps, 1.0) for n in (found.oldest_age, found.update_steps))
        axes.barh(row, 1.0, color="#eeeeee", height=0.8)
        axes.barh(row, trained, color=RAW if found.reset_before_an_end else QUIET, alpha=0.55, height=0.8)
        axes.barh(row, update, color=PERTURBED, height=0.35)
    axes.set_yticks(range(len(order)), order, fontsize=6)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.set_xlim(0, 1)
    axes.set_xlabel(
        "share of an episode: ever trained on (red: everybody is reset before it can end), and in one update (blue)",
        fontsize=7,
    )
    save_figure(figure, path, suffix)
