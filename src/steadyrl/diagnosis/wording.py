"""The sentences of a diagnosis, for screen and report alike, in the words of people who train with PPO.

What only readers of the paper need (E[T], perturbation, epsilon, null steps) is in `paper_rows` alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from steadyrl.common.intervals import Interval
from steadyrl.common.terminal import clean_line
from steadyrl.diagnosis.observed import SlowDimension
from steadyrl.diagnosis.result import FEWEST, Diagnosis
from steadyrl.diagnosis.seen_ages import STUDY
from steadyrl.lengths.drift import FALSE_ALARMS, Drift
from steadyrl.lengths.strategies import RANKING as RANKING
from steadyrl.lengths.strategies import Strategy

WHY = (
    "Why it matters: environments that are reset together run in lockstep, so a batch shows one stretch of the "
    "episode, not the long run, and updates are biased."
)
"""The sentence that says why a practitioner should care."""
POLICY_HINT = (
    "The answer depends on the policy, and this one is random: a trained policy often runs every episode into the time "
    "limit, which keeps environments in lockstep. Give yours: --policy model.zip (Stable-Baselines3) or a policy file; "
    "in Python, steadyrl.diagnose(env, model) also takes a torch module or a function of observations."
)
"""What to do about a verdict on a random policy."""
MONITOR = (
    "PhaseMonitor measures finitely many environments and compares groups of ages, to keep chance apart from lockstep; "
    "its number for the same batches is therefore lower than the one given here."
)
"""Why the live monitor shows other numbers."""
NOT_FINITE = "not looked for: some observations are infinite or not a number"
NOT_TOLD = "not looked for: there are fewer than six episodes, or all ages are the same"
_RANDOM = {"uniform": "a random policy", "gaussian": "a random policy (a Gaussian network)"}
SEVERAL = "several"
"""Name of the policy of a log that mixes several."""
_LEVEL = 0.9  # of the interval of a distance of observations
_LISTED = 3  # files that are named in a sentence
PAPER_STRATEGIES = ("one-step-epsilon", "recursive-epsilon")
"""Names of the strategies that only the paper needs."""


def verdict(found: Diagnosis) -> str:
    """Return the answer in two or three sentences."""
    who = f"{found.environment} {under(found)}"
    if not found.enough:
        return (
            f"{who}: too few episodes to tell. There are {found.episodes}; at least {FEWEST} are needed, and 100 or "
            "more give useful intervals."
        )
    if found.num_envs == 1:
        return f"{who}: nothing needs to be done, {found.recommendation.reason}."
    time, mean = found.mixing_time.value, found.lengths.mean
    within = f"{found.tolerance:.2g}" if found.tolerance < 0.001 else f"{100 * found.tolerance:g}%"
    if math.isinf(time):
        practice = "" if found.lengths.period > 1 else " in practice"
        when = f"environments that are reset together never leave lockstep{practice}"
    else:
        when = f"environments that are reset together are within {within} of the long run after {steps(time, mean)}"
    size = f"{found.n_steps} steps x {_count(found.num_envs, 'env')}"
    what = "it" if math.isfinite(time) else "the long run"
    first = (
        f"the first {len(found.batches)} batches ({size}) differ from {what} by {found.batches.mean():.0%} on average"
    )
    return " ".join(part for part in (f"{who}: {when}, and {first}.", advice(found), doubt(found)) if part)


def advice(found: Diagnosis) -> str:
    """Return what to do, in one sentence."""
    best, mean = found.recommendation.chosen, found.lengths.mean
    if best.name == "nothing":
        if not found.phase_locked:
            return "Leave it as it is: the batches are fair from the start."
        return f"Leave it as it is: lockstep is harmless here, {_reason(found)}."
    after = "at once" if best.steady_after == 0 else f"after {steps(best.steady_after, mean)}"
    return f"Recommended: {best.title}; fair {after}, {_price(best)}."


def doubt(found: Diagnosis) -> str:
    """Return how sure the recommendation is, if more episodes could change it; else nothing."""
    if found.sure:
        return ""
    other = "a cure" if found.recommendation.strategy == "nothing" else "leaving it as it is"
    return (
        f"This is not certain: by the {found.confidence.level:.0%} intervals of these {found.episodes:,} episodes, "
        f"more of them might recommend {other}."
    )


def how_sure(found: Diagnosis) -> str:
    """Return whether more episodes could change the recommendation."""
    if found.recommendation.settled:
        return "the recommendation does not depend on the lengths, and more episodes could not change it"
    if found.sure:
        return f"all of the {found.confidence.level:.0%} band of these episodes leads to the same recommendation"
    return f"not all of the {found.confidence.level:.0%} band of these episodes leads to the same recommendation"


def in_sb3(found: Diagnosis) -> str:
    """Return where users of Stable-Baselines3 find the recommended cure, if the code shown is not theirs already."""
    if found.sb3 or not found.enough or not found.recommendation.chosen.sb3_code:
        return ""
    return "In Stable-Baselines3: env = steadyrl.integrations.sb3.SteadyVecEnv(venv), around the bare VecEnv."


def under(found: Diagnosis) -> str:
    """Return "under a random policy", or under which other one."""
    if found.policy == SEVERAL:
        return "under several policies, pooled"
    if found.policy == "unknown":
        return "under the logged policy"
    return f"under {_RANDOM.get(found.policy, f'the policy {found.policy}')}"


def is_random(found: Diagnosis) -> bool:
    """Return whether the policy is one of the random ones, so that the verdict may not hold for a trained one."""
    return found.policy in _RANDOM


def rows(found: Diagnosis) -> list[tuple[str, str]]:
    """Return the numbers for practitioners, as names and text."""
    c, mean = found.confidence, found.lengths.mean
    result = [("episodes", f"{found.episodes:,}{truncated_text(found)}")]
    if not found.enough:
        return [*result, ("mean length", f"{mean - 1:.4g} steps; too few episodes for an interval")]
    low, high = (end - 1 for end in (c.average_episode_length.low, c.average_episode_length.high))
    result.append(("mean length", f"{mean - 1:.4g} steps ({low:.4g} to {high:.4g}, {c.level:.0%} interval)"))
    period = found.lengths.period
    result.append(
        (
            "variation",
            f"standard deviation / mean = {found.lengths.cv:.3g}"
            + ("" if period == 1 else f"; every length is a multiple of {period}, resets counted"),
        )
    )
    result.append((f"time to within {100 * found.tolerance:g}%", time_text(found)))
    result.append(("first batches", _batches(found)))
    if found.marginals is not None:
        slow = ", ".join(f"[{d.index}] {_settles(d.settles, mean)}" for d in found.marginals.dimensions[:2])
        result.append(("slow observations", f"means settle after (in mean lengths): {slow}"))
    result += age_rows(found)
    if found.convergence is not None:
        seen = found.convergence
        result.append(
            (
                "second opinion",
                f"R-hat {seen.r_hat:.3f}, {seen.effective_samples:,.0f} of {seen.samples:,} effective "
                "(blind to lockstep)",
            )
        )
    return result


def age_rows(found: Diagnosis) -> list[tuple[str, str]]:
    """Return how much of the age shows in observations, and whether that is expected to matter, as names and text."""
    seen, name = found.seen_ages, "age observed"
    matter = [("expected to matter", matters(found))] if found.enough else []
    if seen is None:
        return [(name, found.unseen_ages), *matter] if found.unseen_ages else matter
    text = f"{seen.accuracy:.0%} told right (chance {seen.chance:.0%}); distance {_within(seen.distance)}"
    return [(name, f"{text}, ages {seen.bound:.0%}"), *matter]


def seen_ages_text(found: Diagnosis) -> str:
    """Return what the row on ages in observations means, in whole sentences; nothing if there is no such row."""
    seen = found.seen_ages
    if seen is None:
        return ""
    return (
        f"Age in observations: a forest of trees puts {seen.observations:,} held-out observations into {seen.groups} "
        f"groups of ages, and is right for {seen.accuracy:.1%} of them; chance is right for {seen.chance:.1%}. The "
        f"observations of one group are at least {_within(seen.distance)} (total variation, {_LEVEL:.0%} interval) "
        f"from those of the long run; the ages themselves are {seen.bound:.1%} from it. Where the first number is "
        "small, a batch in lockstep looks much like a fair one. Whether learning feels it is another question: "
        f"expected to matter: {matters(found)}."
    )


def matters(found: Diagnosis) -> str:
    """Return whether learning is expected to feel lockstep, with the evidence behind it."""
    expected = found.expected_to_matter
    if found.recommendation.strategy == "nothing":
        return "no, nothing needs to be done here"
    if expected is not None:
        return f"{expected}, by the distance of observations (docs/evidence.md)"
    if STUDY == "no":
        return "nobody can tell; on most tasks no difference was found (docs/evidence.md)"
    if STUDY == "yes":
        return "nobody can tell without the distance of observations (docs/evidence.md)"
    return "nobody can tell yet, the study goes on (docs/evidence.md)"


def paper_rows(found: Diagnosis) -> list[tuple[str, str]]:
    """Return the numbers in the paper's terms, as names and text."""
    c, mean = found.confidence, found.lengths.mean
    result = [
        (
            "E[T]",
            f"{mean:.4g} ({c.average_episode_length.low:.4g} to {c.average_episode_length.high:.4g}, {c.level:.0%}); "
            "T = Gymnasium's length + 1",
        ),
        (
            "CV of T",
            f"{found.lengths.cv:.3g} ({c.coefficient_of_variation.low:.3g} to {c.coefficient_of_variation.high:.3g})",
        ),
        (f"mixed to {found.tolerance:g}", _times_of_mean(found.mixing_time.value, mean)),
    ]
    if found.epsilon is not None:
        way = found.recommendation["recursive-epsilon"]
        result.append(
            (
                "  perturbed",
                f"{_times_of_mean(found.perturbed_mixing_time, mean)}, recursive epsilon = {found.epsilon:.4g}; "
                f"{way.waste:.0%} of all steps are null",
            )
        )
    return result


def strategies(found: Diagnosis, *, paper: bool) -> list[Strategy]:
    """Return the strategies in order; those of the paper only if asked for."""
    if not found.enough:
        return []
    chosen = found.recommendation.chosen
    return [
        way for way in found.recommendation.strategies if paper or way is chosen or way.name not in PAPER_STRATEGIES
    ]


def strategy_cells(found: Diagnosis, way: Strategy) -> tuple[str, str, str]:
    """Return when a strategy is fair, what it throws away once, and what for ever, with the mean length as unit."""
    mean, after = found.lengths.mean, steady_after(found, way)
    once = "-" if not way.one_off_cost or math.isinf(way.one_off_cost) else f"{way.one_off_cost / mean:.2g}"
    fair = "never" if math.isinf(after) else "at once" if after == 0 else f"{after / mean:.3g}"
    return fair, once, f"{way.waste:.1%}" if way.waste else "-"


def steady_after(found: Diagnosis, way: Strategy) -> float:
    """Return when a strategy is within the tolerance, in steps; for the raw process, as in the headline."""
    return found.mixing_time.value if way.name == "nothing" else way.steady_after


def steps(time: float, mean: float) -> str:
    """Return a time in steps and in mean episode lengths."""
    return "never" if math.isinf(time) else f"{time:,.0f} steps ({_lengths(time / mean)})"


def time_text(found: Diagnosis) -> str:
    """Return the mixing time with its interval."""
    time, mean = found.mixing_time, found.lengths.mean
    if math.isinf(time.value):
        return "never" if found.lengths.period > 1 else f"not within {1000:,} mean episode lengths"
    high = "never" if math.isinf(time.high) else f"{time.high:,.0f}"
    if time.low == time.high:
        return steps(time.value, mean)
    return (
        f"{time.value:,.0f} steps = {time.value / mean:.3g} mean lengths ({time.low:,.0f} to {high}, "
        f"{found.confidence.level:.0%} interval)"
    )


def settling(slow: SlowDimension, mean: float) -> str:
    """Return when the mean of an observed value settles."""
    return (
        "does not settle in the times shown"
        if math.isinf(slow.settles)
        else f"settles after {steps(slow.settles, mean)}"
    )


def truncated_text(found: Diagnosis) -> str:
    """Return the share of episodes that a time limit ended, if it is known."""
    return "" if found.truncated is None else f", {found.truncated:.0%} of them ended by a time limit"


def few_episodes(count: int) -> str:
    """Return the warning for a rough answer."""
    return f"{count} episodes are few: intervals are rough below 100; collect more"


def imprecise(error: float, wanted: int, sure: bool) -> str:
    """Return the warning for a mixing time that is not known well."""
    return (
        f"too few episodes for this precision: the mixing time is known to {error:.0%}; about {wanted:,} episodes "
        f"would bring it to 10%{_sure(sure)}"
    )


def odd_episodes(sure: bool) -> str:
    """Return the warning for a mixing time that a few episodes decide."""
    return (
        "the mixing time rests on a few odd episodes, since lengths hardly vary: it may be many times longer, or never "
        f"come; treat it as never, or collect more{_sure(sure)}"
    )


def time_limited(share: float) -> str:
    """Return the warning for episodes that the time limit ends."""
    return (
        f"a time limit cuts {share:.0%} of all episodes: the state then includes the step counter, and results hold "
        "for this limit only"
    )


def skipped_episodes(count: int, message: str) -> str:
    """Return the warning for episodes that failed."""
    return f"{count} episodes failed and were left out, which biases all of this (the first: {message})"


def drifting(found: Drift, taken: int, *, asked: bool) -> str:
    """Return the sentence on a log whose lengths change: what was found, and which episodes were taken."""
    return f"{found.message[:1].upper()}{found.message[1:]}; {_taken(taken, asked)}."


def drifting_files(found: Sequence[Drift], files: Sequence[str], *, asked: bool) -> str:
    """Return the sentence on several logs, some of whose lengths change."""
    names = [clean_line(os.path.basename(file)) for file in files]
    where = [
        f"{name} (mean {drift.latest_mean:.4g} in its latest {drift.latest:,}, {drift.earlier_mean:.4g} before)"
        for name, drift in zip(names, found, strict=True)
        if drift.found
    ]
    total = sum(drift.latest for drift in found)
    return f"Episode lengths drift within {_some(where)}, false-alarm rate {FALSE_ALARMS:g}; {_taken(total, asked)}."


def drifting_list(found: Drift) -> str:
    """Return the sentence on a list of lengths that changes in the order in which it was given."""
    return (
        f"The lengths change in the order given: their mean is {found.latest_mean:.4g} in the last {found.latest:,}, "
        f"and {found.earlier_mean:.4g} before (false-alarm rate {found.false_alarms:g}). If episodes ended in this "
        "order, they are those of several policies, and the result describes none: diagnose the last "
        f"{found.latest:,} alone."
    )


def differing(files: Sequence[str], means: Sequence[float]) -> str:
    """Return the sentence on logs that differ from each other."""
    named = [f"{mean:.4g} in {clean_line(os.path.basename(file))}" for file, mean in zip(files, means, strict=True)]
    return (
        f"The files differ from each other (mean length {_some(named)}; false-alarm rate {FALSE_ALARMS:g}), so that "
        "pooled they describe no single policy: diagnose each by itself."
    )


def _taken(count: int, asked: bool) -> str:
    if asked:
        return "they are pooled as asked, and the result describes none of their policies"
    return f"only the latest {count:,} are analysed (--last N takes another number, --all pools all)"


def _some(names: Sequence[str]) -> str:
    """Return up to three names, and how many more there are."""
    shown = [*names[:_LISTED], *([f"{len(names) - _LISTED} more"] if len(names) > _LISTED else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _sure(sure: bool) -> str:
    return "; the recommendation would stay the same" if sure else ""


def _lengths(number: float) -> str:
    return f"{number:.3g} mean episode length{'' if f'{number:.3g}' == '1' else 's'}"


def _within(distance: Interval) -> str:
    """Return a distance, which cannot be negative, with the half-width of its interval."""
    return f"{max(distance.value, 0.0):.0%} ± {(distance.high - distance.low) / 2:.0%}"


def _times_of_mean(time: float, mean: float) -> str:
    return "never" if math.isinf(time) else f"{time:,.0f} steps = {time / mean:.3g} E[T]"


def _settles(time: float, mean: float) -> str:
    return "never" if math.isinf(time) else f"{time / mean:.3g}"


def _batches(found: Diagnosis) -> str:
    first, mean = found.batches[0], found.batches.mean()
    text = (
        f"batch ages differ by {first:.0%} (total variation) from the long run at first, {mean:.0%} on average over "
        f"{len(found.batches)} updates"
    )
    if not found.phase_locked:
        return f"fair: {text}"
    return f"in lockstep{', harmlessly' if found.harmless else ''}: {text}"


def _reason(found: Diagnosis) -> str:
    """Return why lockstep is harmless; where it fades by itself, with the time of the headline."""
    advice, time = found.recommendation, found.mixing_time.value
    if advice.settled or not found.n_steps < time < math.inf or advice["nothing"].steady_after <= found.n_steps:
        return advice.reason
    cost = advice["nothing"].lost(advice.horizon) / advice.horizon
    updates = _count(math.ceil(time / found.n_steps), "update")
    return f"since it is over after {updates} and costs {cost:.2%} of the samples in 1,000"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _price(way: Strategy) -> str:
    if way.waste:
        return f"{way.waste:.0%} of all steps thrown away"
    return f"{way.one_off_cost:,.0f} steps per env thrown away once" if way.one_off_cost else "nothing thrown away"
