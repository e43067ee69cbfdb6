"""All settings of a training run, in one place: the command line's options are made from this class."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from steadyrl.common.checks import check_count, check_seed
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
        >>> Settings(copies=8, learning_rate=1e-3).copies
        8
    """

    method: Literal["online", "fresh"] = _option(
        "online", "'online': copies that never stop; 'fresh': the paper's, new rollouts for each update."
    )
    steps: int | None = _option(
        1_000_000,
        "Stop after the update that reaches so many steps of all copies; online with resets, fresh with the diagnosis.",
    )
    updates: int | None = _option(None, "Stop after so many updates, instead of steps.")
    copies: int | None = _option(None, "Copies of the environment (16), or rollouts for each update if fresh (1000).")
    steps_per_update: int | None = _option(
        None, "Steps of each copy for an update (32); if fresh, steps of each rollout from t* on (1)."
    )
    seed: int = _option(0, "Of everything random: the same seed gives the same policy, to the byte.")
    optimiser: Literal["adam", "sgd"] = _option("adam", "'adam', which is blind to the gradient's length, or 'sgd'.")
    learning_rate: float = _option(1e-3, "Of the policy.")
    learning_rate_decay: Literal["none", "linear"] = _option("linear", "'linear': down to 0 at the end; 'none'.")
    average_episode_length: bool = _option(True, "Whether the gradient has its factor E[T] - 1 (Theorem 5).")
    baseline: Literal["critic", "none"] = _option("critic", "Taken off the returns: the critic's value, or nothing.")
    returns: Literal["critic", "monte-carlo"] = _option(
        "critic",
        "How online returns end: by the critic (lambda-returns), or 'monte-carlo': every copy runs on for one time "
        "limit after the steps of an update, so that all their episodes are over, but those that the cure cuts.",
    )
    trace: float = _option(0.95, "lambda of the lambda-returns: 0 trusts the critic, 1 the rewards.")
    critic_learning_rate: float = _option(3e-3, "Of the critic, by Adam.")
    critic_passes: int = _option(4, "Of the critic over the data of an update.")
    entropy: float = _option(0.0, "Weight of the entropy bonus, in rewards per step.")
    max_gradient_norm: float | None = _option(None, "A longer gradient (with its factor) is shortened to this.")
    truncation: Literal["terminal", "bootstrap"] = _option(
        "terminal",
        "At a time limit: 'terminal', an end like any other, as J_epi has it; 'bootstrap' by the critic's value.",
    )
    normalise_observations: bool = _option(True, "Whether the policy sees observations with mean 0 and deviation 1.")
    normalise_advantages: bool = _option(
        False, "Whether the advantages of each update are brought to mean 0 and deviation 1; changes the length."
    )
    cure: Literal["auto", "none"] = _option(
        "auto", "Of phase-locked copies: 'auto', delays designed from the lengths seen; 'none'."
    )
    tolerance: float = _option(0.01, "The distance from steady state below which data counts as steady.")
    diagnosis_episodes: int = _option(500, "Episodes from which t* and E[T] of each fresh update are had.")
    backend: str = _option("auto", "'auto', 'serial', 'processes', 'envpool'; if fresh also 'ray'.")
    workers: int | None = _option(None, "Processes, or EnvPool's threads; by default one a core.")
    address: str | None = _option(None, "Of a Ray cluster, if fresh.")
    device: str = _option("cpu", "PyTorch's, as in 'cuda'; for networks as small as these the processor is faster.")
    restart_every: int = _option(
        1_000_000,
        "Steps of all copies after which they are made anew, if online: a resumed run repeats the steps since then.",
    )
    checkpoint_every: float = _option(60.0, "Seconds between checkpoints.")

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, entry.name, value.item())
            if isinstance(entry.default, bool) and not isinstance(getattr(self, entry.name), bool):
                raise TrainingError(f"{entry.name} is {value!r}; it must be True or False")
        self._check_counts()
        for name in ("method", "optimiser", "learning_rate_decay", "baseline", "returns", "truncation", "cure"):
            self._check_choice(name)
        if self.steps is None and self.updates is None:
            raise TrainingError("neither steps nor updates is given, so training would never stop; give one of them")
        for name in ("learning_rate", "critic_learning_rate", "max_gradient_norm", "checkpoint_every"):
            self._check_range(name, 0.0, math.inf, "positive", ends=False)
        self._check_range("trace", 0.0, 1.0, "between 0 and 1", ends=True)
        self._check_range("entropy", 0.0, math.inf, "0 or more", ends=True)
        self._check_range("tolerance", 0.0, 1.0, "above 0 and below 1", ends=False)
        if self.backend not in BACKENDS:
            raise TrainingError(f"backend is {self.backend!r}; it must be one of {', '.join(BACKENDS)}")
        if self.method == "online" and (self.backend == "ray" or self.address is not None):
            raise TrainingError(
                "copies that never stop run on one machine; use method 'fresh' (--method fresh) for a Ray cluster, or "
                "backend 'envpool' or 'processes' here"
            )
        if self.returns == "monte-carlo" and self.truncation == "bootstrap":
            raise TrainingError("returns 'monte-carlo' add rewards up to the end, so truncation cannot be 'bootstrap'")
        if self.method == "fresh" and self.truncation == "bootstrap":
            raise TrainingError(
                "method 'fresh' takes the return to the end of the episode, as the paper does, so a time limit is an "
                "end like any other; use truncation 'terminal', or method 'online'"
            )

    @property
    def copies_used(self) -> int:
        """The copies, or the default of the method."""
        return self.copies or (16 if self.method == "online" else 1000)

    @property
    def steps_per_update_used(self) -> int:
        """The steps per update, or the default of the method."""
        return self.steps_per_update or (32 if self.method == "online" else 1)

    def _check_counts(self) -> None:
        counts = ("copies", "steps_per_update", "updates", "steps", "critic_passes", "diagnosis_episodes", "workers")
        try:
            check_seed(self.seed)
            for name in (*counts, "restart_every"):
                check_count(name, getattr(self, name))
        except RolloutError as error:
            raise TrainingError(str(error)) from error

    def _check_choice(self, name: str) -> None:
        choices = CHOICES[name]
        if getattr(self, name) not in choices:
            words = " or ".join(repr(choice) for choice in choices)
            raise TrainingError(f"{name} is {getattr(self, name)!r}; it must be {words}")

    def _check_range(self, name: str, low: float, high: float, words: str, *, ends: bool) -> None:
        value = getattr(self, name)
        if value is None and next(f.default for f in fields(self) if f.name == name) is None:
            return
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not (low <= value <= high if ends else low < value < high):
            raise TrainingError(f"{name} is {value!r}; it must be a number, {words}")


CHOICES: dict[str, tuple[str, ...]] = {
    "method": ("online", "fresh"),
    "optimiser": ("adam", "sgd"),
    "learning_rate_decay": ("none", "linear"),
    "baseline": ("critic", "none"),
    "returns": ("critic", "monte-carlo"),
    "truncation": ("terminal", "bootstrap"),
    "cure": ("auto", "none"),
}
