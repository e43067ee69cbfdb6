"""All settings of a training run, in one place: the command line's options are made from this class."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from steadyrl.common.checks import check_choice, check_count, check_flag, check_seed, is_number, shown, whole_number
from steadyrl.errors import RolloutError, TrainingError
from steadyrl.rollouts.planning import BACKENDS

HELP = "help"


def _option(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={HELP: help_text})


@dataclass(frozen=True)
class Settings:
    """How to train; every field is an option of `steadyrl train`, under the same name.

    Raises:
        TrainingError: if a value cannot be used; nothing has been run by then.

    Example:
        >>> Settings(num_envs=8, learning_rate=1e-3).num_envs
        8
    """

    method: Literal["online", "fresh"] = _option(
        "online",
        "'online': environments never stop, and each update takes a few steps of each; 'fresh': new rollouts for each "
        "update, as in the paper.",
    )
    steps: int | None = _option(
        1_000_000,
        "Total environment steps over all copies. 'online' counts resets; 'fresh' counts the diagnosis episodes.",
    )
    updates: int | None = _option(None, "Number of updates; if given, it is used instead of steps.")
    num_envs: int | None = _option(
        None, "Number of environments, 16 by default; with 'fresh', rollouts per update, 1000 by default."
    )
    n_steps: int | None = _option(
        None,
        "Steps of each environment per update, by default 128 with 'natural' and 32 otherwise; with 'fresh', steps of "
        "each rollout from t* on, by default 1.",
    )
    seed: int = _option(0, "Random seed; the same seed gives the same policy file, to the byte.")
    optimiser: Literal["auto", "natural", "adam", "sgd"] = _option(
        "auto",
        "Optimiser of the policy: 'natural' (natural gradient, steps of size max_kl), 'adam' or 'sgd'; 'auto' is "
        "'natural' for continuous actions and 'adam' for discrete ones.",
    )
    learning_rate: float = _option(1e-3, "Learning rate of the policy with 'adam' and 'sgd'.")
    max_kl: float = _option(
        0.03, "With 'natural': mean KL divergence between the policies before and after an update, in nats."
    )
    learning_rate_decay: Literal["none", "linear"] = _option(
        "linear", "'linear': learning_rate and max_kl fall to 0 over the run; 'none': they are constant."
    )
    episode_length_factor: bool = _option(True, "Multiply the gradient by its factor E[T] - 1 (Theorem 5).")
    baseline: Literal["critic", "none"] = _option(
        "critic", "'critic': subtract the critic's value from returns; 'none': use returns as they are."
    )
    returns: Literal["critic", "monte-carlo"] = _option(
        "critic",
        "'critic': returns end with the critic's value (lambda-returns, as in GAE); 'monte-carlo': each environment "
        "runs on for one time limit after the steps of an update, so that all episodes end, but those truncated early.",
    )
    trace: float = _option(0.95, "Lambda of GAE: 0 trusts the critic, 1 the rewards.")
    critic_learning_rate: float = _option(3e-3, "Learning rate of the critic, which is trained with Adam.")
    critic_epochs: int | None = _option(
        None, "Critic epochs per update; by default 12 with 'natural', whose policies change faster, and 4 otherwise."
    )
    entropy: float = _option(0.0, "Weight of the entropy bonus, in units of reward per step.")
    max_gradient_norm: float | None = _option(
        None, "With 'adam' and 'sgd': clip the gradient (with its factor) to this norm; by default it is not clipped."
    )
    truncation: Literal["terminal", "bootstrap"] = _option(
        "terminal",
        "At a time limit, 'terminal': the episode is over, as the objective has it; 'bootstrap': the return goes on "
        "with the critic's value.",
    )
    normalise_observations: bool = _option(
        True, "Normalise observations to mean 0 and deviation 1; both are saved with the policy."
    )
    normalise_advantages: bool = _option(
        False, "Normalise the advantages of each update to mean 0 and deviation 1; this changes the gradient's length."
    )
    cure: Literal["auto", "none"] = _option(
        "auto",
        "'auto': stagger episodes (one early truncation per environment) whenever they run in lockstep; 'none': only "
        "watch.",
    )
    tolerance: float = _option(0.01, "Distance from steady state (total variation) below which data counts as steady.")
    diagnosis_episodes: int = _option(
        500, "With 'fresh': complete episodes per update, which give the mean episode length and the time t*."
    )
    backend: str = _option("auto", "'auto', 'serial', 'processes' or 'envpool'; with 'fresh' also 'ray'.")
    workers: int | None = _option(None, "Number of processes, or of EnvPool's threads; by default one per core.")
    step_timeout: float | None = _option(
        None,
        "Seconds that one step of all environments may take, in processes that can be ended (not with EnvPool); by "
        "default no limit.",
    )
    address: str | None = _option(None, "With 'fresh': address of a Ray cluster.")
    device: str = _option("cpu", "PyTorch device, as in 'cuda'; for networks this small the processor is faster.")
    restart_every: int = _option(
        1_000_000,
        "Total steps after which 'online' makes its environments anew; a resumed run repeats the steps since then.",
    )
    checkpoint_every: float = _option(60.0, "Seconds between two checkpoints.")

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, entry.name, value.item())
            if isinstance(entry.default, bool) and not isinstance(getattr(self, entry.name), bool):
                raise TrainingError(f"{entry.name} is {shown(value)}; it must be True or False")
        self._check_counts()
        for name, found in (("device", self.device), ("address", "" if self.address is None else self.address)):
            if not isinstance(found, str):  # which could not be written into a checkpoint
                raise TrainingError(f"{name} is {shown(found)}; it must be a name, such as {_NAMES[name]!r}")
        for name in ("method", "optimiser", "learning_rate_decay", "baseline", "returns", "truncation", "cure"):
            self._check_choice(name)
        if self.steps is None and self.updates is None:
            raise TrainingError("neither steps nor updates is given, so training would never stop; give one of them")
        for name in ("max_kl", "max_gradient_norm", "step_timeout", "checkpoint_every"):
            self._check_range(name, 0.0, math.inf, "positive", ends=False)
        for name in ("learning_rate", "critic_learning_rate"):  # PyTorch's optimisers refuse larger ones
            self._check_range(name, 0.0, _SINGLE, f"positive and below {_SINGLE:.2g} (single precision)", ends=False)
        self._check_range("trace", 0.0, 1.0, "between 0 and 1", ends=True)
        self._check_range("entropy", 0.0, math.inf, "0 or more", ends=True)
        self._check_range("tolerance", 0.0, 1.0, "above 0 and below 1", ends=False)
        check_choice("backend", self.backend, BACKENDS, TrainingError)
        if self.method == "online" and (self.backend == "ray" or self.address is not None):
            raise TrainingError(
                "environments that never stop run on one machine; use method 'fresh' (--method fresh) for a Ray "
                "cluster, or backend 'envpool' or 'processes' here"
            )
        if self.returns == "monte-carlo" and self.truncation == "bootstrap":
            raise TrainingError("returns 'monte-carlo' add rewards up to the end, so truncation cannot be 'bootstrap'")
        if self.method == "fresh" and self.truncation == "bootstrap":
            raise TrainingError(
                "method 'fresh' takes the return to the end of the episode, as the paper does, so a time limit is an "
                "end like any other; use truncation 'terminal', or method 'online'"
            )

    def resolved(self, *, continuous: bool) -> ResolvedSettings:
        """Return the settings with every default that depends on others filled in, for continuous or discrete actions.

        Example:
            >>> found = Settings().resolved(continuous=False)
            >>> found.optimiser, found.num_envs, found.n_steps, found.critic_epochs
            ('adam', 16, 32, 4)
        """
        continuous = check_flag("continuous", continuous, TrainingError)
        online = self.method == "online"
        optimiser = self.optimiser if self.optimiser != "auto" else ("natural" if continuous else "adam")
        natural = optimiser == "natural"
        found = {entry.name: getattr(self, entry.name) for entry in fields(self)} | {
            "optimiser": optimiser,
            "num_envs": self.num_envs or (16 if online else 1000),
            "n_steps": self.n_steps or ((128 if natural else 32) if online else 1),
            "critic_epochs": self.critic_epochs or (12 if natural else 4),
        }
        return ResolvedSettings(**found)

    def _check_counts(self) -> None:
        counts = ("num_envs", "n_steps", "updates", "steps", "critic_epochs", "workers")
        try:
            check_seed(self.seed)
            for name in counts:
                check_count(name, getattr(self, name))
            for name in ("diagnosis_episodes", "restart_every"):
                whole_number(name, getattr(self, name), RolloutError)
        except RolloutError as error:
            raise TrainingError(str(error)) from error

    def _check_choice(self, name: str) -> None:
        choices = CHOICES[name]
        if not isinstance(getattr(self, name), str) or getattr(self, name) not in choices:
            words = " or ".join(repr(choice) for choice in choices)
            raise TrainingError(f"{name} is {shown(getattr(self, name))}; it must be {words}")

    def _check_range(self, name: str, low: float, high: float, words: str, *, ends: bool) -> None:
        value = getattr(self, name)
        if value is None and next(f.default for f in fields(self) if f.name == name) is None:
            return
        number = is_number(value) and math.isfinite(value)
        if not number or not (low <= value <= high if ends else low < value < high):
            raise TrainingError(f"{name} is {shown(value)}; it must be a number, {words}")
        if not isinstance(value, int | float):  # such as a Fraction, which could not be written into a checkpoint
            object.__setattr__(self, name, float(value))


@dataclass(frozen=True)
class ResolvedSettings(Settings):
    """Settings in which every default that depends on others is filled in (`Settings.resolved`)."""

    num_envs: int = 16
    n_steps: int = 32
    critic_epochs: int = 4


_SINGLE = float(np.finfo(np.float32).max)

_NAMES = {"device": "cpu", "address": "127.0.0.1:6379"}

CHOICES: dict[str, tuple[str, ...]] = {
    "method": ("online", "fresh"),
    "optimiser": ("auto", "natural", "adam", "sgd"),
    "learning_rate_decay": ("none", "linear"),
    "baseline": ("critic", "none"),
    "returns": ("critic", "monte-carlo"),
    "truncation": ("terminal", "bootstrap"),
    "cure": ("auto", "none"),
}
