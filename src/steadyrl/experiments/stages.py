"""Appendix F.2: policies at different stages of training mix at similar rates in Hopper.

Checkpoints of an ascent with the steady-state policy gradient, each diagnosed from fresh episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from steadyrl.common.figures import PERTURBED, QUIET, RAW, new_figure
from steadyrl.experiments.ascent import Ascent, Baseline
from steadyrl.experiments.convergence_curves import CurveSettings, analyse_lengths, draw_distance, palette
from steadyrl.experiments.experiment import Cost, Experiment, Finding, Result, interval_text
from steadyrl.experiments.figure_2 import HOPPER
from steadyrl.experiments.workspace import Workspace


@dataclass(frozen=True)
class Settings:
    """The training, and the episodes that diagnose its checkpoints."""

    checkpoints: tuple[int, ...] = (0, 25, 50, 75, 100)
    """Updates after which the policy is diagnosed."""
    learning_rate: float = 5e-4
    training_episodes: int = 400
    """Episodes for each update."""
    episodes: int = 3000
    """Episodes for each checkpoint."""


def run(settings: Settings, workspace: Workspace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a policy and diagnose its checkpoints."""
    ascent = Ascent(HOPPER, workspace)
    baseline = Baseline.zero(ascent.module.observations.size)
    numbers: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for update in range(settings.checkpoints[-1] + 1):
        if update in settings.checkpoints:
            plan = CurveSettings(HOPPER, episodes=settings.episodes, span=6)
            found = workspace.arrays(f"stage-{update}", partial(_episodes, ascent, workspace, settings, update))
            numbers[str(update)], curves = analyse_lengths(found["lengths"], plan, workspace.seed + update)
            numbers[str(update)]["return"] = float(found["returns"].mean())
            arrays |= {f"{update} {name}": value for name, value in curves.items()}
        if update == settings.checkpoints[-1]:
            break
        kept = workspace.arrays(f"update-{update:03d}", partial(_update, ascent, workspace, settings, update, baseline))
        baseline = Baseline(kept["centre"], kept["scale"], kept["weights"])
        ascent.parameters = kept["parameters"]
        workspace.say(f"update {update}: E[T] = {float(kept['length']):.4g}")
    return numbers, arrays


def _episodes(ascent: Ascent, workspace: Workspace, settings: Settings, update: int) -> dict[str, Any]:
    found = workspace.episodes(
        f"checkpoint-{update}",
        HOPPER,
        ascent.module.numpy(),
        settings.episodes,
        seed=workspace.derived_seed(9000 + update),
        observation_sums=False,
        block_size=max(8, -(-settings.episodes // 8)) if settings.episodes > 200 else None,
    )
    return {"lengths": found.lengths, "returns": found.returns}


def _update(
    ascent: Ascent, workspace: Workspace, settings: Settings, update: int, baseline: Baseline
) -> dict[str, Any]:
    gradients, lengths, fitted = ascent.gradients(
        f"gradient-{update:03d}",
        settings.training_episodes,
        seed=workspace.derived_seed(10 * update),
        baseline=baseline,
        chunk=10_000,
        groups=1,
    )
    step = settings.learning_rate * gradients.mean(axis=0)
    return {"parameters": ascent.parameters + step, "length": lengths.mean() + 1, **vars(fitted)}


def draw(result: Result) -> Any:
    """Draw the phase distance of each checkpoint over time, and the mixing times."""
    figure, axes = new_figure(1, 3, (12.0, 3.8))
    stages = result.settings["checkpoints"]
    colours = palette(len(stages))
    for i, stage in enumerate(stages):
        mean = result.numbers[str(stage)]["E[T]"]["value"]
        for axis, kind in ((axes[0], "raw"), (axes[1], "perturbed")):
            curves = {
                name.removeprefix(f"{stage} "): v for name, v in result.arrays.items() if name.startswith(f"{stage} ")
            }
            draw_distance(axis, curves, kind)
            axis.lines[-2].set_color(colours[i])
            axis.lines[-2].set_label(f"update {stage}, E[T] = {mean:.3g}")
    for axis, title in ((axes[0], "as it is"), (axes[1], "perturbed")):
        axis.set_title(f"Hopper, {title}", fontsize=9)
        axis.set_xlabel("t / AEL")
        axis.legend(frameon=False, fontsize=7)
    axes[0].set_ylabel("phase distance")
    for kind, colour in (("raw", RAW), ("perturbed", PERTURBED)):
        times = [_time(result.numbers[str(stage)], kind) for stage in stages]
        low, high = np.array([[time["low"], time["high"]] for time in times]).T
        axes[2].plot(stages, [time["value"] for time in times], "o", markersize=4, color=colour, label=kind)
        axes[2].vlines(stages, low, np.minimum(high, 2 * low), color=colour, linewidth=1.5)  # the value may be above it
    axes[2].axhline(2, color=QUIET, linewidth=0.8, linestyle="--")
    axes[2].set_ylim(bottom=0)
    axes[2].set_title("below 0.01 after, in AEL: as observed, and 90% with noise taken off", fontsize=7.5)
    axes[2].set_xlabel("update")
    axes[2].legend(frameon=False, fontsize=7)
    return figure


def _time(entry: Any, kind: str) -> dict[str, float]:
    key = "mixing time" if kind == "raw" else "perturbed mixing time"
    mean = entry["E[T]"]["value"]
    return {end: entry[key][end] / mean for end in ("value", "low", "high")}


def findings(result: Result) -> Sequence[Finding]:
    """Judge the sentence of appendix F.2."""
    stages = [str(stage) for stage in result.settings["checkpoints"]]
    times = {stage: _time(result.numbers[stage], "raw") for stage in stages}
    perturbed = {stage: _time(result.numbers[stage], "perturbed") for stage in stages}
    values = [time["value"] for time in times.values()]
    similar = max(values) <= 2 * min(values)
    surely_apart = max(time["low"] for time in times.values()) > 2 * min(time["high"] for time in times.values())
    first, last = (result.numbers[stage]["E[T]"]["value"] for stage in (stages[0], stages[-1]))
    return [
        Finding(
            "policies at different stages of training in Hopper converge at similar rates (2 AEL)",
            "phase distance below 0.01 after "
            + ", ".join(f"{interval_text(times[stage])} AEL (update {stage})" for stage in stages)
            + f"; E[T] from {first:.3g} to {last:.3g}",
            similar,
            ""
            if similar
            else ("the times differ more than twofold" + ("" if surely_apart else ", though intervals overlap")),
        ),
        Finding(
            "(ours) perturbed, 3 AEL suffice at every stage",
            "phase distance below 0.01 after "
            + ", ".join(f"{interval_text(perturbed[stage])} AEL (update {stage})" for stage in stages),
            all(time["value"] <= 3 for time in perturbed.values()),
        ),
    ]


def rows(result: Result) -> Sequence[tuple[str, str]]:
    """Return lengths and returns of each checkpoint."""
    return [
        (
            f"after {stage} updates",
            f"E[T] = {interval_text(entry['E[T]'], 4)}, CV {interval_text(entry['CV'])}, "
            f"mean return {entry['return']:.4g}",
        )
        for stage, entry in ((str(s), result.numbers[str(s)]) for s in result.settings["checkpoints"])
    ]


def _cost(settings: Settings) -> Sequence[Cost]:
    steps = 30.0 * (
        settings.checkpoints[-1] * settings.training_episodes + len(settings.checkpoints) * settings.episodes
    )
    return [Cost(HOPPER, steps, 2000)]


EXPERIMENT = Experiment(
    name="stages",
    title="Appendix F.2: mixing at different stages of training",
    claim="In Hopper, policies at different stages of training mix at similar rates.",
    settings={
        "quick": Settings(checkpoints=(0, 1), training_episodes=60, episodes=120),
        "laptop": Settings(),
        "paper": Settings(checkpoints=(0, 25, 50, 75, 100, 130), training_episodes=100_000, episodes=100_000),
    },
    run=run,
    draw=draw,
    findings=findings,
    rows=rows,
    departures=lambda result: (
        f"checkpoints are those of an ascent with {result.settings['training_episodes']:,} episodes an update and the "
        "learning rate of Figure 2; the paper does not say which policies it looked at",
    ),
    cost=_cost,
)
