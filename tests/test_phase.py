"""Watching ages: the distance of copies in step against the computed one, false alarms, and what is forgotten.

Copies are simulated in numpy with known lengths. `off` is said to be wrong about once in a thousand batches,
`phase_locked` once in a thousand trainings. Tests allow what a binomial at that rate exceeds once in 10,000; seeds are
fixed.
"""

import warnings
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scipy.stats import binom, norm

from scripted import Drawn, Scripted
from steadyrl import EpisodeLengths, PhaseMonitor, StaggeredVectorEnv, batch_distance, phase_distance
from steadyrl.errors import DelaysError, PhaseLockWarning, ToleranceError
from steadyrl.lengths.delays import stationary_ages
from steadyrl.lengths.life_table import LifeTable
from steadyrl.live.phase import PhaseTracker

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
CONVENTIONS = pytest.mark.parametrize("same_step", [False, True], ids=["next step", "same step"])


def normal_lengths(mean, deviation):
    k = np.arange(int(mean + 5 * deviation) + 2)
    probabilities = np.where(k >= 2, norm.pdf(k, mean, deviation), 0.0)
    return EpisodeLengths(probabilities / probabilities.sum())


GEOMETRIC = EpisodeLengths(np.append([0, 0], 0.9 ** np.arange(200)) / (0.9 ** np.arange(200)).sum())
LENGTHS = {
    "normal": normal_lengths(20, 2),
    "wide": normal_lengths(40, 12),
    "fixed": EpisodeLengths(np.eye(16)[15]),
    "geometric": GEOMETRIC,
    "two": EpisodeLengths.from_gymnasium([5, 40]),
}


class Copies:
    """Copies in numpy: who ends in each step. Their T is drawn from `lengths`; with same_step they take T - 1 steps."""

    def __init__(self, lengths, copies, *, same_step, steady, seed):
        self.lengths, self.same_step, self.rng = lengths, same_step, np.random.default_rng(seed)
        self.left = self.draw(copies) - 1  # steps until the end
        self.age = np.ones(copies, dtype=int)
        self.over = np.zeros(copies, dtype=bool)
        if (
            steady
        ):  # an episode as likely as it is long, and an even draw of its states; without the end, for simplicity
            weight = lengths.probabilities * np.maximum(np.arange(len(lengths.probabilities)) - 1, 0)
            length = self.rng.choice(len(weight), copies, p=weight / weight.sum())
            self.left = 1 + (self.rng.random(copies) * (length - 1)).astype(int)
            self.age = length - self.left

    def draw(self, count):
        return self.rng.choice(len(self.lengths.probabilities), count, p=self.lengths.probabilities)

    def restart(self, mask):
        self.left[mask] = self.draw(int(mask.sum())) - 1
        self.age[mask] = 1
        self.over[mask] = False

    def step(self):
        resets = self.over.copy()
        self.left -= 1
        self.age += 1
        self.restart(resets)
        self.over = (self.left == 0) & ~resets
        done = self.over.copy()
        if self.same_step:
            self.restart(done)
        return done


def stream_of(lengths, same_step):
    return EpisodeLengths(lengths.probabilities[1:]) if same_step else lengths


@CONVENTIONS
@pytest.mark.parametrize("name", ["normal", "wide", "fixed"])
def test_copies_in_step_are_as_far_off_as_computed(name, same_step):
    # 2,000 copies, so that chance is small: it adds some 0.5 sqrt(groups / copies) = 0.09, which is taken out.
    lengths, n, steps = LENGTHS[name], 2000, 160
    stream = stream_of(lengths, same_step)
    tracker = PhaseTracker(n, same_step=same_step, n_steps=1)
    copies = Copies(lengths, n, same_step=same_step, steady=False, seed=1)
    found = np.empty(steps)
    for t in range(steps):
        tracker.update(copies.step())
        found[t] = tracker.report().distance
    # What a batch holds: the states acted in (age 1 at first), or those that were led to (age 2 at first).
    distance = (
        phase_distance(stream, steps + 2)[1 : steps + 1]
        if same_step
        else phase_distance(stream, steps + 2)[2 : steps + 2]
    )
    known = 3 * int(lengths.mean)
    gap = np.abs(found - distance)[known:]
    # Ages are watched in 64 groups, which hides what differs within one.
    assert np.quantile(gap, 0.9) < 0.1
    assert tracker.report().average_episode_length == pytest.approx(lengths.mean, rel=0.03)


@pytest.mark.parametrize("n_steps", [4, 10, 16])
def test_longer_batches_are_as_far_off_as_computed(n_steps):
    lengths, n = LENGTHS["normal"], 1000
    tracker = PhaseTracker(n, same_step=True, n_steps=n_steps)
    copies = Copies(lengths, n, same_step=True, steady=False, seed=2)
    found = []
    for _ in range(160 // n_steps):
        for _ in range(n_steps):
            tracker.update(copies.step())
        found.append(tracker.report().distance)
    computed = batch_distance(stream_of(lengths, True), n_steps, len(found))
    late = slice(60 // n_steps, None)
    np.testing.assert_allclose(found[late], computed[late], atol=0.1)


@CONVENTIONS
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize(("n", "n_steps"), [(64, 16), (256, 4)])
def test_copies_at_steady_state_raise_few_false_alarms(name, same_step, n, n_steps):
    lengths = LENGTHS[name]
    tracker = PhaseTracker(n, same_step=same_step, n_steps=n_steps)
    copies = Copies(lengths, n, same_step=same_step, steady=True, seed=3)
    tracker.ages[:] = copies.age
    alarms, distances, known = [], [], int(10 * lengths.mean)
    for t in range(known + 400 * n_steps):
        if tracker.update(copies.step()) and t > known:
            report = tracker.report()
            alarms.append(tracker.off)
            assert not report.phase_locked
            distances.append(report.distance)
    # Neighbouring batches hold the same episodes, so alarms come in runs; a run counts as one.
    runs = np.sum(np.diff([0, *alarms]) > 0)
    assert runs <= binom.isf(1e-4, len(alarms), 1e-3)
    assert np.median(distances) < tracker.report().noise
    assert tracker.report().average_episode_length == pytest.approx(lengths.mean, rel=0.1)


def test_copies_in_step_are_called_so():
    for same_step in (False, True):
        tracker = PhaseTracker(64, same_step=same_step, n_steps=4)
        copies = Copies(LENGTHS["normal"], 64, same_step=same_step, steady=False, seed=4)
        for _ in range(60):
            tracker.update(copies.step())
        assert tracker.report().phase_locked


# Lengths


@CONVENTIONS
def test_the_average_episode_length_is_not_that_of_the_first_to_finish(same_step):
    # Lengths 6 and 41, evenly: after 30 steps only short ones have finished. What is known by then is that half go on.
    lengths = LENGTHS["two"]
    tracker = PhaseTracker(400, same_step=same_step, n_steps=1)
    copies = Copies(lengths, 400, same_step=same_step, steady=False, seed=5)
    for t in range(400):
        tracker.update(copies.step())
        if t == 29:
            assert tracker.report().unresolved == pytest.approx(0.5, abs=0.1)
            assert tracker.report().average_episode_length > 15  # the finished ones: 6
    assert tracker.report().average_episode_length == pytest.approx(lengths.mean, rel=0.05)
    found = tracker.lengths.probabilities
    np.testing.assert_allclose(found[[6, 41]], [0.5, 0.5], atol=0.06)
    assert tracker.stream_lengths.longest == (40 if same_step else 41)
    assert tracker.report().steps == 400 * 400


@CONVENTIONS
def test_cuts_are_not_ends(same_step):
    # Half of all copies are cut at age 4, again and again; lengths are what they are.
    lengths = LENGTHS["fixed"]
    tracker = PhaseTracker(200, same_step=same_step, n_steps=5)
    copies = Copies(lengths, 200, same_step=same_step, steady=True, seed=6)
    tracker.ages[:] = copies.age
    half = np.arange(200) < 100
    for _ in range(150):
        done = copies.step()
        cut = half & (copies.age == 4) & ~done
        if same_step:
            copies.restart(cut)
        else:
            copies.over |= cut
        tracker.update(done, cut if cut.any() else None)
        np.testing.assert_array_equal(tracker.ages, copies.age)
    assert tracker.report().average_episode_length == pytest.approx(lengths.mean)
    assert tracker.lengths.probabilities[lengths.longest] == pytest.approx(1)


def test_nothing_is_known_before_an_episode_has_ended():
    tracker = PhaseTracker(8, same_step=False, n_steps=2)
    assert np.isnan(tracker.report().distance)
    assert tracker.lengths is None
    for _ in range(10):
        tracker.update(np.zeros(8, dtype=bool))
    report = tracker.report()
    assert np.isnan(report.distance)
    assert (report.average_episode_length, report.ends, report.steps) == (np.inf, 0, 80)
    assert not report.phase_locked
    assert tracker.lengths is None


@CONVENTIONS
def test_a_longer_life_shows_within_a_few_episodes(same_step):
    tracker = PhaseTracker(128, same_step=same_step, n_steps=16)
    copies = Copies(normal_lengths(20, 3), 128, same_step=same_step, steady=True, seed=7)
    tracker.ages[:] = copies.age
    for _ in range(20 * 100):
        tracker.update(copies.step())
    assert tracker.report().average_episode_length == pytest.approx(20, rel=0.05)
    copies.lengths = normal_lengths(500, 50)
    for _ in range(3 * 500):
        tracker.update(copies.step())
    assert tracker.report().average_episode_length == pytest.approx(500, rel=0.1)
    for _ in range(3 * 500):
        tracker.update(copies.step())
    assert tracker.report().average_episode_length == pytest.approx(500, rel=0.05)
    assert tracker.lengths.survival[60] > 0.95  # little is left of lengths about 20
    copies.lengths = normal_lengths(20, 3)  # and back
    for _ in range(500 + 20 * 10):
        tracker.update(copies.step())
    assert tracker.report().average_episode_length == pytest.approx(20, rel=0.15)


def test_an_unchanged_policy_is_not_forgotten():
    # The table doubts itself once in some 10,000 looks: of 4,000, at most 4 (a binomial exceeds that once in 15,000).
    lengths = LENGTHS["wide"]
    copies = Copies(lengths, 64, same_step=True, steady=True, seed=8)
    table, doubts = LifeTable(memory=512), 0
    for _ in range(4000):
        before = copies.age.copy()
        done = copies.step()
        kept = table.visits.sum()
        table.add(np.bincount(before), np.bincount(before[done], minlength=1))
        doubts += table.visits.sum() < 0.8 * kept
    assert doubts <= 4
    assert table.lengths().mean == pytest.approx(lengths.mean - 1, rel=0.1)


# The monitor


def monitored(mode, copies=32, lengths=(9,), **arguments):
    makers = [partial(Scripted, copy, lengths) for copy in range(copies)]
    return PhaseMonitor(SyncVectorEnv(makers, autoreset_mode=mode), n_steps=4, **arguments)


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
def test_the_monitor_warns_once_and_changes_nothing(mode):
    envs, plain = monitored(mode), SyncVectorEnv([partial(Scripted, c, (9,)) for c in range(32)], autoreset_mode=mode)
    np.testing.assert_equal(envs.reset(seed=0), plain.reset(seed=0))
    caught = []
    for _ in range(80):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            ours = envs.step(np.zeros(32, dtype=int))
        caught += found
        np.testing.assert_equal(ours, plain.step(np.zeros(32, dtype=int)))
    assert len(caught) == 1
    assert caught[0].category is PhaseLockWarning
    assert caught[0].filename == __file__
    assert "32 environments run through their episodes in lockstep" in str(caught[0].message)
    assert "mean episode length of 9 steps" in str(caught[0].message)
    report = envs.report()
    assert report.phase_locked
    assert report.average_episode_length == pytest.approx(10)
    assert envs.lengths.probabilities[10] == pytest.approx(1)


def test_the_monitor_is_silent_if_told_so_and_around_a_cure():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = monitored(NEXT_STEP, warn=False)
        envs.reset(seed=0)
        for _ in range(60):
            envs.step(np.zeros(32, dtype=int))
        assert envs.report().phase_locked
        delays = 1 + np.arange(40) % 10
        makers = [partial(Scripted, copy, (9,)) for copy in range(40)]
        envs = PhaseMonitor(StaggeredVectorEnv(SyncVectorEnv(makers), delays), n_steps=4)
        envs.reset(seed=0)
        for _ in range(11):  # while they are being cut they are not yet spread
            envs.step(np.zeros(40, dtype=int))
        for _ in range(60):
            envs.step(np.zeros(40, dtype=int))
        assert envs.report().distance < 0.05


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.value)
def test_the_monitors_ages_are_right_under_masked_resets(mode):
    makers = [Drawn] * 16
    envs = PhaseMonitor(SyncVectorEnv(makers, autoreset_mode=mode), n_steps=3, warn=False)
    rng = np.random.default_rng(0)
    observations, _ = envs.reset(seed=0)
    for t in range(200):
        np.testing.assert_array_equal(envs._tracker.ages, observations)
        observations, _, terminated, truncated, _ = envs.step(np.zeros(16, dtype=int))
        mask = rng.random(16) < (0.2 if t % 7 == 0 else 0)
        if mode == AutoresetMode.DISABLED:
            mask |= terminated | truncated
        if mask.any():
            options = {"reset_mask": mask}
            observations, _ = envs.reset(options=options)
            assert list(options) == ["reset_mask"]
    # Episodes that were reset from outside are censored, as if cut: lengths are those of Drawn.
    expected = EpisodeLengths.from_gymnasium(np.repeat([2, 5, 9], [5, 3, 2]))
    np.testing.assert_allclose(envs.lengths.probabilities[[3, 6, 10]], expected.probabilities[[3, 6, 10]], atol=0.12)


def test_bad_settings_are_refused():
    for arguments, error, message in (
        ({"num_envs": 0}, DelaysError, "num_envs is 0"),
        ({"n_steps": 1.5}, DelaysError, "n_steps is 1.5"),
        ({"n_steps": True}, DelaysError, "n_steps is True"),
        ({"tolerance": 0}, ToleranceError, "tolerance is 0"),
        ({"tolerance": 2}, ToleranceError, "tolerance is 2"),
    ):
        with pytest.raises(error, match=message):
            PhaseTracker(**{"num_envs": 4, "same_step": True, **arguments})


def test_the_simulation_itself_is_at_steady_state():
    # By 3,000 copies, at 5 standard errors of each share (with ends left out of the start, after one episode).
    lengths = LENGTHS["wide"]
    copies = Copies(lengths, 3000, same_step=True, steady=True, seed=11)
    share = stationary_ages(stream_of(lengths, True))
    found = np.bincount(copies.age, minlength=len(share))[: len(share)] / 3000
    assert (np.abs(found - share) <= 5 * np.sqrt(share / 3000) + 1e-9).all()


def test_asking_for_reports_changes_nothing():
    rng = np.random.default_rng(0)
    asked, silent = (PhaseTracker(16, same_step=False, n_steps=4) for _ in range(2))
    for t in range(1000):
        done = rng.random(16) < (0.1 if t < 500 else 0.01)
        done &= ~asked.restarting
        asked.update(done)
        silent.update(done)
        asked.report()
    assert asked.report() == silent.report()
