"""All experiments, in the order of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from steadyrl.errors import RolloutError
from steadyrl.experiments import appendix_e, elsewhere, figure_1, figure_2, figure_3, figure_3b, stages, table_1
from steadyrl.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    figure_1.EXPERIMENT,
    table_1.EXPERIMENT,
    figure_2.EXPERIMENT,
    figure_3.EXPERIMENT,
    figure_3b.EXPERIMENT,
    appendix_e.EXPERIMENT,
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
