"""All experiments, in the paper's order."""

from __future__ import annotations

from collections.abc import Sequence

from steadyrl.errors import RolloutError
from steadyrl.experiments import (
    discounting,
    elsewhere,
    gradient_check,
    illustration,
    mixing_figures,
    stages,
    sweep,
    unification,
)
from steadyrl.experiments.frame import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    illustration.EXPERIMENT,
    unification.EXPERIMENT,
    gradient_check.EXPERIMENT,
    mixing_figures.EXPERIMENT,
    sweep.EXPERIMENT,
    discounting.EXPERIMENT,
    stages.EXPERIMENT,
    elsewhere.EXPERIMENT,
)


def named(name: str) -> Sequence[Experiment]:
    """Return the experiment with this name, or all of them."""
    if name == "all":
        return EXPERIMENTS
    found = [experiment for experiment in EXPERIMENTS if experiment.name == name]
    if not found:
        names = ", ".join(experiment.name for experiment in EXPERIMENTS)
        raise RolloutError(f"there is no experiment {name!r}; it must be 'all' or one of {names}")
    return found
