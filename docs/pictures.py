"""The pictures of the documentation, drawn by the code that they are about."""

from pathlib import Path

import numpy as np

import steadyrl
from steadyrl.common.figures import PERTURBED, QUIET, RAW, new_figure, save_figure
from steadyrl.lengths.anytime import anytime_distance

ENVS, STEPS = 24, 120


def committed(folder: Path) -> None:
    """Draw the picture of the first screen, which is committed: `python docs/generate.py pictures`."""
    _save({"lockstep": _lockstep}, folder)


def generated(folder: Path) -> None:
    """Draw the pictures that are drawn anew whenever the site is built."""
    folder.mkdir(exist_ok=True)
    pictures = {"loop": _loop, "length": _length, "distance": _distance, "staggering": _staggering, "bound": _bound}
    _save(pictures | {"fair": _fair}, folder)


def _save(pictures, folder: Path) -> None:
    import matplotlib

    for name, draw in pictures.items():
        with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 9.0, "font.family": "sans-serif"}):
            save_figure(draw(), folder / f"{name}.svg", ".svg")


def bell(mean: float, deviation: float) -> np.ndarray:
    """Return P(L = 0), P(L = 1), ...: a normal distribution, rounded."""
    k = np.arange(int(mean + 8 * deviation) + 2)
    weights = np.where(k > 0, np.exp(-0.5 * ((k - mean) / deviation) ** 2), 0.0)
    return weights / weights.sum()


def nobody(done: np.ndarray) -> np.ndarray:
    """Truncate no episode."""
    return np.zeros_like(done)


class Once:
    """Truncate each environment once, as designed delays do: environment i after step window - delay."""

    def __init__(self, delays: np.ndarray, window: int) -> None:
        self.at, self.time = window - delays, 0

    def __call__(self, done: np.ndarray) -> np.ndarray:
        """Return whom to truncate in this step."""
        self.time += 1
        return (self.at == self.time) & ~done


def ages_over_time(lengths: np.ndarray, num_envs: int, steps: int, seed: int, truncate=nobody) -> np.ndarray:
    """Return the ages [steps, environments] of a stream without terminal states (SAME_STEP).

    Args:
        lengths: P(L = 0), P(L = 1), ..., with L the number of actions in an episode.
        num_envs: number of environments, all reset together.
        steps: number of steps.
        seed: seed of the lengths.
        truncate: a function that is told whose episode ended and returns whose episode to truncate.
    """
    rng = np.random.default_rng(seed)
    ages, found = np.ones(num_envs, dtype=int), np.zeros((steps, num_envs), dtype=int)
    ends = rng.choice(len(lengths), num_envs, p=lengths)
    for t in range(steps):
        found[t] = ages
        done = ages >= ends
        over = done | truncate(done)
        ages = np.where(over, 1, ages + 1)
        ends[over] = rng.choice(len(lengths), int(over.sum()), p=lengths)
    return found


def _lengths() -> steadyrl.EpisodeLengths:
    """About 20 steps, give or take 2: much like Bullet's Humanoid under a random policy."""
    return steadyrl.EpisodeLengths(bell(20, 2))


def _designed(num_envs: int, lengths: np.ndarray) -> Once:
    delays = steadyrl.design_delays(steadyrl.EpisodeLengths(lengths))
    return Once(delays.draw(num_envs, rng=np.random.default_rng(1)), delays.window)


def _panels(figure, axes, ways) -> None:
    for axis, (title, truncate) in zip(axes, ways.items(), strict=True):
        ages = ages_over_time(bell(20, 2), ENVS, STEPS, 2, truncate).T
        shown = axis.imshow(ages, aspect="auto", cmap="viridis", interpolation="nearest", vmin=1, vmax=25)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.grid(False)
    axes[0].set_ylabel("environment")
    figure.colorbar(shown, ax=axes, label="age: steps since reset", shrink=0.9)


def _lockstep():
    """Rows are environments, colour is their age: in lockstep as they are, and staggered by the controller."""
    figure, axes = new_figure(1, 2, (10.0, 2.9))
    controller = steadyrl.StaggerController(ENVS, same_step=True, seed=0)
    _panels(figure, axes, {"reset together: in lockstep": nobody, "the same, staggered": controller.step})
    return figure


def _staggering():
    """Ages over time for three ways: as it is, with designed delays, and by the controller."""
    figure, axes = new_figure(1, 3, (12.0, 2.9))
    controller = steadyrl.StaggerController(ENVS, same_step=True, seed=0)
    ways = {"as it is": nobody, "designed delays": _designed(ENVS, bell(20, 2)), "anytime": controller.step}
    _panels(figure, axes, ways)
    return figure


def _bound():
    """The distance of the ages from the steady state over time, and the region that no way can enter."""
    figure, [axes] = new_figure(size=(8.0, 3.4))
    short, long = bell(20, 3), bell(80, 8)
    actions = 0.5 * (long + np.append(short, np.zeros(len(long) - len(short))))  # about 20 or about 80 steps
    number, mean = 20_000, 50
    steps = 3 * mean
    stream = steadyrl.EpisodeLengths(actions)  # of the stream without terminal states: ages 1, ..., L
    lengths = steadyrl.EpisodeLengths(np.append(0.0, actions))  # T = L + 1
    time = np.arange(1, steps + 1)
    bound = anytime_distance(lengths, steps)
    controller = steadyrl.StaggerController(number, same_step=True, seed=0)
    stationary = stream.survival[1:] / stream.mean

    def distance(truncate) -> np.ndarray:
        ages = ages_over_time(actions, number, steps, 2, truncate)
        shares = [np.bincount(row - 1, minlength=len(stationary)) / number for row in ages]
        return 0.5 * np.abs(np.array(shares) - stationary).sum(1)

    axes.fill_between(time / mean, 0, bound, color="#e5e5e5", label="impossible: below P(A > t)")
    axes.plot(time / mean, steadyrl.phase_distance(stream, steps)[1:], color=RAW, label="as it is")
    axes.plot(time / mean, distance(_designed(number, actions)), color=QUIET, label="designed delays")
    axes.plot(time / mean, distance(controller.step), color=PERTURBED, label="anytime (StaggerController)")
    axes.set_xlabel("time in mean episode lengths")
    axes.set_ylabel("distance of the ages (TV)")
    axes.set_xlim(0, 3)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, loc="upper right")
    return figure


def _fair():
    """What a log of finished episodes shows, exactly, and the fair mean of one run, with its interval."""
    figure, [axes] = new_figure(size=(8.0, 3.4))
    number, steps = 64, 1500
    actions = np.bincount([50, 400]) / 2
    lengths = steadyrl.EpisodeLengths(np.append(0.0, actions))
    statistics, found = steadyrl.FairStatistics(number, same_step=True), []

    def watch(done: np.ndarray) -> np.ndarray:
        statistics.update(np.ones(number), done)
        found.append(statistics.report() if statistics.steps % 10 == 0 else None)
        return nobody(done)

    ages_over_time(actions, number, steps, 2, watch)
    seen = [(t + 1, report) for t, report in enumerate(found) if report is not None]
    known = [(t, report.mean_return) for t, report in seen if not report.unresolved]
    open_ = [(t, report) for t, report in seen if report.unresolved]
    time = np.arange(steps + 1)
    axes.axhline(225, color=QUIET, linestyle="--", linewidth=0.8)
    axes.plot(
        time, steadyrl.finished_mean(lengths, steps, same_step=True), color=RAW, label="finished episodes, as logged"
    )
    at = [t for t, _ in known]
    axes.fill_between(
        at, [r.low for _, r in known], [r.high for _, r in known], color=PERTURBED, alpha=0.2, linewidth=0
    )
    axes.plot(at, [r.value for _, r in known], color=PERTURBED, label="fair, with its 90% interval")
    axes.plot(
        [t for t, _ in open_],
        [r.mean_return.value for _, r in open_],
        color=PERTURBED,
        linestyle=":",
        label="fair, of the first t steps: longer episodes are still unresolved",
    )
    axes.text(steps, 228, "truth", ha="right", color=QUIET)
    axes.set_xlabel("steps since all environments were reset")
    axes.set_ylabel("mean return")
    axes.set_xlim(0, steps)
    axes.set_ylim(0, 300)
    axes.legend(frameon=False, loc=(0.32, 0.05), fontsize=8)
    return figure


def _loop():
    """One environment: its age over time, episode after episode."""
    figure, [axes] = new_figure(size=(8.0, 2.4))
    ages = ages_over_time(bell(20, 2), 1, 90, 3)[:, 0]
    axes.plot(np.arange(1, 91), ages, color=PERTURBED, marker=".", markersize=4, linewidth=0.8)
    ends = np.flatnonzero(np.append(np.diff(ages) < 0, False))
    axes.plot(ends + 1, ages[ends], "o", color=RAW, markersize=6, label="terminal state; the next step is the reset")
    axes.set_xlabel("time t, steps")
    axes.set_ylabel("age in the episode")
    axes.set_ylim(0, 32)
    axes.legend(frameon=False, loc="upper right")
    return figure


def _length():
    """Lengths of episodes, their mean, and the ages at steady state."""
    figure, axes = new_figure(1, 2, (9.0, 2.8))
    lengths = _lengths()
    k = np.arange(lengths.longest + 1)
    axes[0].bar(k, lengths.probabilities, color=PERTURBED)
    axes[0].axvline(lengths.mean, color=RAW, linestyle="--")
    axes[0].set_title(f"episode length T; dashed: its mean, E[T] = {lengths.mean:.3g}", fontsize=9)
    axes[1].bar(k[1:], lengths.survival[1:] / lengths.mean, color=PERTURBED)
    axes[1].set_title("age at steady state: P(T >= k) / E[T]", fontsize=9)
    for axis in axes:
        axis.set_xlim(0, 32)
        axis.set_xlabel("steps")
    return figure


def _distance():
    """The distance of many environments' ages from the steady ones over time."""
    figure, [axes] = new_figure(size=(8.0, 3.2))
    lengths = _lengths()
    steps = int(30 * lengths.mean)
    paper = steadyrl.Perturbation.for_average_episode_length(lengths.mean)
    time = np.arange(steps + 1) / lengths.mean
    bound = np.append(1.0, anytime_distance(lengths, steps, same_step=False))
    axes.plot(time, steadyrl.phase_distance(lengths, steps), color=RAW, label="as it is")
    perturbed = np.maximum(steadyrl.phase_distance(lengths, steps, paper), 1e-5)
    axes.plot(time, perturbed, color=QUIET, label="perturbed starts (the paper's)")
    axes.plot(time, np.maximum(bound, 1e-5), color=PERTURBED, label="staggered (anytime)")
    axes.axhline(0.01, color=QUIET, linestyle="--", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 1.5)
    axes.set_xlim(0, 30)
    axes.set_xlabel("time in mean episode lengths, t / E[T]")
    axes.set_ylabel("distance to steady state")
    axes.legend(frameon=False)
    return figure
