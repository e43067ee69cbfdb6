"""Figure 3 (a), (c), (d), (e), (f): how long Bullet's Hopper, Humanoid and HalfCheetah take to their steady state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from steadyrl.common.figures import new_figure
from steadyrl.experiments.convergence_curves import SETTLED, CurveSettings, draw_distance, draw_means, measure
from steadyrl.experiments.experiment import Cost, Experiment, Finding, Result, interval_text
from steadyrl.experiments.workspace import Workspace

HOPPER, HUMANOID, CHEETAH = "HopperBulletEnv-v0", "HumanoidBulletEnv-v0", "HalfCheetahBulletEnv-v0"


@dataclass(frozen=True)
class Panel:
    """One panel of the figure and the claim that it supports."""

    letter: str
    environment: str
    kind: str
    claim: float
    """Time after which the paper sees convergence, in average episode lengths."""


PANELS = (
    Panel("a", HOPPER, "raw", 2),
    Panel("c", HUMANOID, "raw", 24),
    Panel("d", CHEETAH, "raw", math.inf),
    Panel("e", HUMANOID, "perturbed", 3),
    Panel("f", CHEETAH, "perturbed", 3),
)


@dataclass(frozen=True)
class Settings:
    """Settings of the curves of each environment."""

    plans: tuple[CurveSettings, ...]


def run(settings: Settings, workspace: Workspace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure every environment."""
    numbers: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for part, plan in enumerate(settings.plans):
        numbers[plan.environment], found = measure(plan, workspace, part)
        arrays |= {f"{plan.environment} {name}": value for name, value in found.items()}
    return numbers, arrays


def arrays_of(result: Result, environment: str) -> dict[str, Any]:
    """Return the arrays of one environment, without its name."""
    start = f"{environment} "
    return {name.removeprefix(start): value for name, value in result.arrays.items() if name.startswith(start)}


def draw(result: Result) -> Any:
    """Draw one column per panel: marginal means of every observed value, and the phase distance under them."""
    figure, axes = new_figure(2, len(PANELS), (15.0, 5.6))
    for column, panel in enumerate(PANELS):
        arrays = arrays_of(result, panel.environment)
        top, below = axes[column], axes[len(PANELS) + column]
        draw_means(top, arrays, panel.kind)
        draw_distance(below, arrays, panel.kind)
        for axis in (top, below):
            if math.isfinite(panel.claim):
                axis.axvline(panel.claim, color="black", linewidth=0.7, linestyle=":")
        name = panel.environment.removesuffix("BulletEnv-v0")
        top.set_title(f"({panel.letter}) {name}, {'as it is' if panel.kind == 'raw' else 'perturbed'}", fontsize=9)
        below.set_xlabel("t / AEL")
    axes[0].set_ylabel("marginal means, standardised")
    axes[len(PANELS)].set_ylabel("phase distance")
    return figure


def findings(result: Result) -> Sequence[Finding]:
    """Judge the paper's five convergence times, and the check by brute force."""
    found = [panel_finding(result.numbers[panel.environment], panel) for panel in PANELS]
    checks = [
        (entry[kind]["brute force"], f"{name} {kind}")
        for name, entry in result.numbers.items()
        for kind in ("raw", "perturbed")
        if "brute force" in entry[kind]
    ]
    if checks:
        apart = [name for check, name in checks if check["largest |z|"] >= check["bound for |z|"]]
        count = sum(check["values compared"] for check, _ in checks)
        inside = sum(check["inside 90%"] * check["values compared"] for check, _ in checks)
        found.append(
            Finding(
                "(ours) means at every time follow from single episodes by the renewal equation",
                f"{inside:.0f} of {count} brute-force means inside their 90% interval ({0.9 * count:.0f} expected); "
                f"largest difference {max(check['largest |z|'] for check, _ in checks):.2f} standard errors",
                not apart,
                f"apart in {', '.join(apart)}" if apart else "",
            )
        )
    return found


def panel_finding(entry: Any, panel: Panel) -> Finding:
    """Judge one claim by when means settle and when the phase distance is small."""
    measured, kind = entry[panel.kind], panel.kind
    settles = measured["settles"]
    key = "mixing time" if kind == "raw" else "perturbed mixing time"
    mean = entry["E[T]"]["value"]
    time = {end: entry[key][end] / mean for end in ("value", "low", "high")}
    text = f"means settle {when_text(settles, entry)}; phase distance below 0.01 {when_text(time, entry)}"
    text += f" (CV of T {entry['CV']['value']:.3g})"
    letter = f"({panel.letter}) " if panel.letter else ""
    title = f"{letter}{panel.environment}{'' if kind == 'raw' else ' perturbed'}"
    if math.isinf(panel.claim):
        never = math.isinf(settles["value"]) and math.isinf(time["value"])
        return Finding(f"{title}: never converges", f"{text}; every episode has T = {mean:g}", never)
    claim = f"{title}: converges after {'about ' if kind == 'raw' else 'at most '}{panel.claim:g} AEL"
    late = settles["low"] > (1.25 if kind == "raw" else 1.0) * panel.claim
    early = kind == "raw" and settles["high"] < 0.5 * panel.claim
    why = ""
    if late or early:
        apart = measured["apart at"].get(f"{panel.claim:g}")
        why = f"by our measure ({SETTLED} standard deviations) means settle {'later' if late else 'sooner'}"
        why += (
            ""
            if apart is None or early
            else f"; at {panel.claim:g} AEL they are up to {apart:.2g} standard deviations off"
        )
    return Finding(claim, text, not (late or early), why)


def when_text(time: Any, entry: Any) -> str:
    """Return a time in average episode lengths, in words."""
    if math.isinf(time["value"]):
        return "never" if entry["period"] > 1 else "not within the times looked at"
    return f"after {interval_text(time)} AEL"


def rows(result: Result) -> Sequence[tuple[str, str]]:
    """Return lengths, distances and checks of each environment."""
    found = []
    for plan in result.settings["plans"]:
        name = plan["environment"]
        entry = result.numbers[name]
        found.append((name, numbers_text(entry)))
    return found


def numbers_text(entry: Any) -> str:
    """Return an environment's numbers in one line."""
    mean = entry["E[T]"]["value"]
    parts = [
        f"E[T] = {interval_text(entry['E[T]'], 4)}, CV {interval_text(entry['CV'])}, {entry['episodes']:,} episodes",
    ]
    for kind, key in (("raw", "mixing time"), ("perturbed", "perturbed mixing time")):
        distances = ", ".join(
            f"{value:.3g} at {c} AEL"
            for c, value in sorted(entry[kind]["distance at"].items(), key=lambda x: float(x[0]))
        )
        time = {end: entry[key][end] / mean for end in ("value", "low", "high")}
        label = "as it is" if kind == "raw" else f"perturbed (epsilon = {entry['epsilon']:.4g})"
        parts.append(f"{label}: phase distance {distances}, below 0.01 {when_text(time, entry)}")
    return "; ".join(parts)


def cost(plans: Sequence[CurveSettings], lengths: dict[str, float], rates: dict[str, float]) -> list[Cost]:
    """Return what curves cost: episodes, and rollouts to their last check (half of perturbed steps are null)."""
    result = []
    for plan in plans:
        length = lengths.get(plan.environment, 200)
        reach = max(plan.checks, default=0.0) + max(plan.perturbed_checks, default=0.0) / 2
        steps = (plan.episodes + plan.rollouts * reach) * length
        result.append(Cost(plan.environment, steps, rates.get(plan.environment, 2000)))
    return result


_GRID = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
_SLOW = (1.0, 3.0, 6.3, 12.0, 18.5, 24.0)


def _settings(hopper: int, humanoid: int, cheetah: int, rollouts: tuple[int, int, int]) -> Settings:
    return Settings(
        (
            CurveSettings(HOPPER, episodes=hopper, chunk=4000, span=6, rollouts=rollouts[0], checks=_GRID),
            CurveSettings(
                HUMANOID,
                episodes=humanoid,
                chunk=4000,
                span=30,
                rollouts=rollouts[1],
                checks=_SLOW,
                perturbed_checks=_GRID,
            ),
            CurveSettings(
                CHEETAH,
                episodes=cheetah,
                chunk=max(40, cheetah // 100),
                span=6,
                rollouts=rollouts[2],
                checks=(0.25, 0.75, 1.1, 1.6),
                perturbed_checks=(0.5, 1.0, 2.0, 3.0),
            ),
        )
    )


_QUICK = _settings(200, 160, 4, (60, 0, 0))
_QUICK = Settings(tuple(replace(plan, groups=8, points=60, checks=plan.checks[1:4]) for plan in _QUICK.plans))
_PAPER = _settings(100_000, 100_000, 100_000, (100_000, 100_000, 100_000))
_LENGTHS = {HOPPER: 11.5, HUMANOID: 19.5, CHEETAH: 1000.0}
_RATES = {HOPPER: 2000.0, HUMANOID: 700.0, CHEETAH: 1300.0}

EXPERIMENT = Experiment(
    name="figure-3",
    title="Figure 3 (a), (c) to (f): convergence in Bullet's environments",
    claim="Hopper converges after 2 AEL, Humanoid after 24, HalfCheetah never; perturbed, both after 3.",
    settings={"quick": _QUICK, "laptop": _settings(12_000, 10_000, 160, (2500, 400, 48)), "paper": _PAPER},
    run=run,
    draw=draw,
    findings=findings,
    rows=rows,
    departures=lambda result: (
        "the curves come from single episodes by the renewal equation, where the paper averages rollouts; rollouts, "
        "fewer than the paper's 100,000 below its own scale, check them on a coarser grid",
        "means are shown standardised, (mean - steady mean) / steady standard deviation, so that all fit one axis; the "
        f"grey strip is {SETTLED} standard deviations, our measure of having settled (the paper judges by eye)",
        "the policy is one random 64 x 64 Gaussian network with standard deviation one; the paper does not say its "
        "seed or its deviation",
    ),
    cost=lambda settings: cost(settings.plans, _LENGTHS, _RATES),
)
