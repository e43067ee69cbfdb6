"""Figure 1: the perturbation trick, drawn from the model itself.

The example's episodes have 2 or 4 transitions, so as it is it never converges (period 2). The one-step and the
recursive perturbation add a null state after terminal states; every arrow is an entry of the transition matrix that
`perturb` returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steadyrl.common.detours import Perturbation
from steadyrl.common.figures import PERTURBED, QUIET, RAW, new_figure
from steadyrl.exact import gallery
from steadyrl.exact.chain import induced_chain
from steadyrl.exact.mixing import distances, mixing_time
from steadyrl.exact.perturb import perturb
from steadyrl.exact.stationary import period, stationary_distribution
from steadyrl.exact.tabular import extend_policy
from steadyrl.exact.values import action_values
from steadyrl.experiments.experiment import Experiment, Finding, Result
from steadyrl.experiments.workspace import Workspace


@dataclass(frozen=True)
class Settings:
    """The perturbation of the example, and how many steps are shown."""

    epsilon: float = 0.5
    steps: int = 40


_KINDS = ("raw", "one-step", "recursive")
_TITLES = {"raw": "as it is", "one-step": "epsilon-perturbed", "recursive": "recursively perturbed"}
_PLACES = {0: (0.0, 0.0), 1: (1.5, 0.0), 2: (1.5, 1.3), 3: (0.0, 1.3), 4: (0.75, -1.25)}
_NAMES = {0: "end", 1: "1", 2: "2", 3: "3", 4: "null"}


def run(settings: Settings, workspace: Workspace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Analyse the three models."""
    process, policy = gallery.periodic()
    rho, values = stationary_distribution(process, policy), action_values(process, policy)
    numbers: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for kind in _KINDS:
        model, pi = process, policy
        if kind != "raw":
            model = perturb(process, Perturbation(settings.epsilon, recursive=kind == "recursive"))
            pi = extend_policy(model, policy)
        found = stationary_distribution(model, pi)
        real = ~model.null_states
        inside = values.shape[0]
        numbers[kind] = {
            "period": period(model, pi),
            "null share": float(found[~real].sum()),
            "null steps an episode": float(found[~real].sum() / found[model.terminal].sum()),
            "change of rho": float(np.abs(found[real] / found[real].sum() - rho).max()),
            "change of Q": float(np.abs(action_values(model, pi)[:inside] - values).max()),
            "mixing time": mixing_time(model, pi, given_not_null=kind != "raw"),
        }
        arrays[f"{kind} chain"] = induced_chain(model, pi).toarray()
        arrays[f"{kind} terminal"] = model.terminal
        arrays[f"{kind} distance"] = distances(model, pi, settings.steps, given_not_null=kind != "raw")
    return numbers, arrays


def draw(result: Result) -> Any:
    """The three models as graphs, and under each its distance to the steady state."""
    figure, axes = new_figure(2, 3, (9.6, 6.2))
    for column, kind in enumerate(_KINDS):
        _draw_graph(axes[column], result.arrays[f"{kind} chain"], result.arrays[f"{kind} terminal"])
        axes[column].set_title(_TITLES[kind], fontsize=10)
        below, distance = axes[3 + column], np.maximum(result.arrays[f"{kind} distance"], 1e-6)
        below.plot(distance, color=RAW if kind == "raw" else PERTURBED, marker=".", markersize=3, linewidth=1)
        below.set_yscale("log")
        below.set_ylim(1e-5, 1.5)
        below.axhline(0.01, color=QUIET, linewidth=0.7, linestyle="--")
        below.set_xlabel("time t, steps")
    axes[3].set_ylabel("distance to the steady state")
    return figure


def _draw_graph(axes: Any, chain: Any, terminal: Any) -> None:
    """Draw a chain's states as circles, terminal ones filled, and its transitions as arrows with probabilities."""
    from matplotlib.patches import Circle, FancyArrowPatch

    axes.set_axis_off()
    axes.set_xlim(-0.5, 2.0)
    axes.set_ylim(-1.75, 1.75)
    axes.set_aspect("equal")
    for source, target in np.argwhere(chain > 0):
        a, b = np.array(_PLACES[int(source)]), np.array(_PLACES[int(target)])
        there_and_back = chain[target, source] > 0
        path: dict[str, Any]
        if source == target:
            path = {"posA": (*a, -0.1, -0.2), "posB": (*a, 0.1, -0.2), "connectionstyle": "arc3,rad=2.4"}
            label = a + np.array([0.0, -0.5])
        else:
            bend = 0.22 if there_and_back else 0.0
            path = {"posA": a, "posB": b, "connectionstyle": f"arc3,rad={bend}", "shrinkA": 13, "shrinkB": 13}
            across = np.array([(b - a)[1], -(b - a)[0]]) / np.linalg.norm(b - a)
            label = (a + b) / 2 + across * (0.12 + 0.11 * np.linalg.norm(b - a) * bend / 0.22 if bend else 0.17)
        axes.add_patch(FancyArrowPatch(arrowstyle="-|>", mutation_scale=9, linewidth=0.9, color=QUIET, **path))
        axes.text(*label, f"{chain[source, target]:g}", fontsize=7, ha="center", va="center")
    for state, place in _PLACES.items():
        if state < len(chain):
            fill = "#d7e6ec" if terminal[state] else "#f3e3d9" if state == len(_PLACES) - 1 else "white"
            axes.add_patch(Circle(place, 0.2, facecolor=fill, edgecolor="black", linewidth=0.9, zorder=3))
            axes.text(*place, _NAMES[state], ha="center", va="center", fontsize=8, zorder=4)


def findings(result: Result) -> Sequence[Finding]:
    """What the paper says of the trick, on this example."""
    numbers = result.numbers
    raw, one, recursive = (numbers[kind] for kind in _KINDS)
    epsilon = result.settings["epsilon"]
    expected = epsilon / (1 - epsilon)
    change_rho = max(one["change of rho"], recursive["change of rho"])
    change_q = max(one["change of Q"], recursive["change of Q"])
    times = one["mixing time"], recursive["mixing time"]
    return [
        Finding(
            "Theorem 2: every perturbed model converges, even where the raw one does not",
            f"period {raw['period']} raw (never converges), {one['period']} and {recursive['period']} perturbed "
            f"(within 1% after {times[0]} and {times[1]} steps)",
            raw["period"] > 1 and one["period"] == recursive["period"] == 1 and all(map(math.isfinite, times)),
        ),
        Finding(
            "Theorem 3: values do not change, and rho is that of the raw model given that the state is not null",
            f"Q changes by {change_q:.1e}, rho by {change_rho:.1e} at most",
            max(change_rho, change_q) < 1e-12,
        ),
        Finding(
            f"recursively perturbed, an episode spends epsilon / (1 - epsilon) = {expected:g} steps in the null state",
            f"{recursive['null steps an episode']:.12g} steps, {recursive['null share']:.1%} of all",
            abs(recursive["null steps an episode"] - expected) < 1e-10,
        ),
    ]


EXPERIMENT = Experiment(
    name="figure-1",
    title="Figure 1: the perturbation trick",
    claim="A detour through a null state at episode starts makes every process converge and changes nothing else.",
    settings=dict.fromkeys(("quick", "laptop", "paper"), Settings()),
    run=run,
    draw=draw,
    findings=findings,
)
