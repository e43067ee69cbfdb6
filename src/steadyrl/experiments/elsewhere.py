"""Beyond the paper: the same figures for MuJoCo and classic control, and which of its claims change there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from steadyrl.common.figures import new_figure
from steadyrl.experiments.convergence_curves import CurveSettings, draw_distance, draw_means
from steadyrl.experiments.experiment import Experiment, Finding, Result
from steadyrl.experiments.figure_3 import Panel, Settings, arrays_of, cost, numbers_text, panel_finding, run, when_text

_CLAIMS = (
    Panel("", "Hopper-v5", "raw", 2),
    Panel("", "Humanoid-v5", "raw", 24),
    Panel("", "HalfCheetah-v5", "raw", math.inf),
)
"""What the paper claims of Bullet's environments of the same names."""


def draw(result: Result) -> Any:
    """Draw one row per environment: means and phase distance, as it is and perturbed."""
    plans = result.settings["plans"]
    figure, axes = new_figure(len(plans), 4, (11.0, 1.7 * len(plans)))
    for row, plan in enumerate(plans):
        arrays = arrays_of(result, plan["environment"])
        line = axes[4 * row : 4 * row + 4]
        for column, kind in ((0, "raw"), (2, "perturbed")):
            draw_means(line[column], arrays, kind)
            draw_distance(line[column + 1], arrays, kind)
            line[column].set_title(f"{plan['environment']}, {'as it is' if kind == 'raw' else 'perturbed'}", fontsize=8)
        for axis in line:
            axis.tick_params(labelsize=7)
    for axis in axes[-4:]:
        axis.set_xlabel("t / AEL")
    return figure


def findings(result: Result) -> Sequence[Finding]:
    """Judge the paper's claims in environments for which it does not make them."""
    numbers = result.numbers
    found = [panel_finding(numbers[panel.environment], panel) for panel in _CLAIMS if panel.environment in numbers]
    distances = {name: entry["perturbed"]["distance at"]["3"] for name, entry in numbers.items()}
    above = [name for name in numbers if distances[name] >= 0.01]
    late = [name for name, entry in numbers.items() if entry["perturbed"]["settles"]["low"] > 3]
    worst = max(distances, key=lambda name: distances[name])
    found.append(
        Finding(
            "recursive epsilon = 1 - 1/E[T] brings steady state within 3 AEL in various environments",
            f"phase distance at 3 AEL: {distances[worst]:.4f} at most ({worst}), in {len(distances)} environments; all "
            f"means settled by then in {len(distances) - len(late)}",
            not late,
            f"means settle later in {', '.join(late)}"
            if late
            else f"though in {', '.join(above)}, whose lengths vary most, the phase distance is not below 0.01 yet"
            if above
            else "",
        )
    )
    slow = {name: _raw_time(entry) for name, entry in numbers.items() if _raw_time(entry) > 10}
    never = [name for name, entry in numbers.items() if entry["period"] > 1]
    found.append(
        Finding(
            "without perturbation some environments never converge or take long: it is necessary in general",
            f"never: {', '.join(never) or 'none'}; more than 10 AEL: "
            + (", ".join(name for name in slow if name not in never) or "none"),
            bool(slow),
        )
    )
    return found


def _raw_time(entry: Any) -> float:
    return float(entry["mixing time"]["value"] / entry["E[T]"]["value"])


def rows(result: Result) -> Sequence[tuple[str, str]]:
    """Return the numbers of each environment."""
    found = []
    for plan in result.settings["plans"]:
        entry = result.numbers[plan["environment"]]
        settles = f"means settle {when_text(entry['raw']['settles'], entry)} as it is, "
        perturbed = entry["perturbed"]["settles"]
        settles += f"{when_text(perturbed, {'period': 1})} perturbed"
        found.append((f"{plan['environment']}, {plan['policy']} policy", f"{numbers_text(entry)}; {settles}"))
    return found


_GRID = (0.5, 1.0, 2.0, 3.0)
_LAPTOP = Settings(
    (
        CurveSettings("Hopper-v5", episodes=20_000, chunk=4000, rollouts=4000, checks=_GRID),
        CurveSettings("Walker2d-v5", episodes=10_000, chunk=4000),
        CurveSettings("Humanoid-v5", episodes=8_000, chunk=2000, span=30),
        CurveSettings("HalfCheetah-v5", episodes=128, chunk=64),
        CurveSettings("CartPole-v1", "uniform", episodes=40_000, chunk=20_000, rollouts=20_000, checks=_GRID),
        CurveSettings("Acrobot-v1", "uniform", episodes=600, chunk=200, span=10),
        CurveSettings("MountainCar-v0", "uniform", episodes=400, chunk=200),
        CurveSettings("Pendulum-v1", "uniform", episodes=400, chunk=200),
    )
)
_SMALL = {"Hopper-v5": 300, "CartPole-v1": 600, "Pendulum-v1": 24}
_QUICK = Settings(
    tuple(
        replace(plan, episodes=_SMALL[plan.environment], groups=8, rollouts=0, points=60)
        for plan in _LAPTOP.plans
        if plan.environment in _SMALL
    )
)
_LENGTHS = {"Hopper-v5": 20.0, "Walker2d-v5": 20.0, "Humanoid-v5": 23.0, "HalfCheetah-v5": 1000.0, "CartPole-v1": 22.0}
_RATES = {"Hopper-v5": 4000.0, "Humanoid-v5": 1500.0, "HalfCheetah-v5": 7000.0, "CartPole-v1": 40_000.0}

EXPERIMENT = Experiment(
    name="elsewhere",
    title="Beyond the paper: MuJoCo and classic control",
    claim="The convergence times of Figure 3, asked of environments that the paper does not have.",
    settings={
        "quick": _QUICK,
        "laptop": _LAPTOP,
        "paper": Settings(
            tuple(
                replace(plan, episodes=100_000, chunk=max(plan.chunk, 500), rollouts=100_000, checks=_GRID)
                for plan in _LAPTOP.plans
            )
        ),
    },
    run=run,
    draw=draw,
    findings=findings,
    rows=rows,
    departures=lambda result: (
        "policies are random: Gaussian networks where actions are continuous in MuJoCo, uniform in classic control",
        "a mean can be blind: CartPole's are zero at every age, by symmetry, so they seem settled at once; the phase "
        "distance is not",
        "of Humanoid-v5's 348 observed values the first 45, positions and velocities, are looked at",
    ),
    cost=lambda settings: cost(settings.plans, _LENGTHS, _RATES),
)
