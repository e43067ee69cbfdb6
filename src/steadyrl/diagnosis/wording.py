"""What a diagnosis says, in words: the screen and the report take their sentences from here."""

from __future__ import annotations

import math

from steadyrl.diagnosis.analysis import Diagnosis
from steadyrl.lengths.strategies import Strategy


def verdict(found: Diagnosis) -> str:
    """Return the answer in one or two sentences."""
    time, mean = found.mixing_time.value, found.lengths.mean
    best = found.recommendation.chosen
    if math.isinf(time):
        when = "is never at steady state as it is"
        if found.lengths.period == 1:
            when = "is in practice never at steady state as it is"
    else:
        when = f"reaches its steady state after {steps(time, mean)}"
    off = found.batches.mean()
    batch = (
        f"the first {len(found.batches)} batches of {found.n_steps} steps x {found.num_envs} copies are {off:.0%} off"
    )
    if best.name == "nothing":
        return f"{found.environment} {when}; {batch}. Leave it as it is."
    after = "at once" if best.steady_after == 0 else f"after {steps(best.steady_after, mean)}"
    return f"{found.environment} {when}; {batch}. Cure: {best.title}, steady {after}, {_price(best, mean)}."


def rows(found: Diagnosis) -> list[tuple[str, str]]:
    """Return the numbers, as names and text."""
    c, mean = found.confidence, found.lengths.mean
    level = f"{c.level:.0%}"
    result = [
        ("environment", f"{found.environment}, {found.policy} policy, {found.episodes:,} episodes"),
        (
            "E[T]",
            f"{mean:.4g} ({c.average_episode_length.low:.4g} to {c.average_episode_length.high:.4g}, {level}); "
            f"T = Gymnasium's length + 1",
        ),
        (
            "CV of T",
            f"{found.lengths.cv:.3g} ({c.coefficient_of_variation.low:.3g} to {c.coefficient_of_variation.high:.3g})"
            + ("" if found.lengths.period == 1 else f"; every length is a multiple of {found.lengths.period}"),
        ),
        (f"mixed to {found.tolerance:g}", _interval(found)),
        ("  perturbed", f"{steps(found.perturbed_mixing_time, mean)}" + _epsilon(found)),
        (
            "first batches",
            f"{'phase-locked' if found.phase_locked else 'fair'}: off by {found.batches[0]:.2g} at first, "
            f"{found.batches.mean():.2g} on average over {len(found.batches)} updates",
        ),
    ]
    if found.marginals is not None:
        slow = ", ".join(
            f"[{d.index}] {'never' if math.isinf(d.settles) else f'{d.settles / mean:.3g} E[T]'}"
            for d in found.marginals.dimensions[:3]
        )
        result.append(("slowest observed", slow))
    if found.convergence is not None:
        seen = found.convergence
        result.append(
            (
                "second opinion",
                f"R-hat {seen.r_hat:.3f}, effective samples {seen.effective_samples:,.0f} of {seen.samples:,} (ArviZ; "
                "R-hat is blind to copies in step)",
            )
        )
    return result


def steps(time: float, mean: float) -> str:
    """Return a time in steps and in average episode lengths."""
    return "never" if math.isinf(time) else f"{time:,.0f} steps = {time / mean:.3g} E[T]"


def _interval(found: Diagnosis) -> str:
    time, mean = found.mixing_time, found.lengths.mean
    if math.isinf(time.value):
        return "never" if found.lengths.period > 1 else f"not within {1000:,} E[T]"
    high = "never" if math.isinf(time.high) else f"{time.high:,.0f}"
    between = f"{time.low:,.0f} to {high} steps"
    if time.low <= time.value < time.high + 1:  # the first whole step after a crossing
        return f"after {steps(time.value, mean)} ({between}, {found.confidence.level:.0%})"
    return f"after {steps(time.value, mean)} as observed; noise taken off, {between} ({found.confidence.level:.0%})"


def _epsilon(found: Diagnosis) -> str:
    if found.epsilon is None:
        return ""
    return (
        f", epsilon = {found.epsilon:.4g}; {found.recommendation['recursive-epsilon'].waste:.0%} of all steps are null"
    )


def _price(way: Strategy, mean: float) -> str:
    once = f"{way.one_off_cost:,.0f} steps a copy thrown away once" if way.one_off_cost else "nothing thrown away"
    return once if not way.waste else f"{way.waste:.0%} of all steps thrown away"
