"""What a log of finished episodes shows, by renewal: by hand, by simulation, and with the fair numbers beside it."""

from __future__ import annotations

import numpy as np
import pytest

from steadyrl import EpisodeLengths, FairStatistics, finished_mean
from steadyrl.errors import LengthsError

TWO = EpisodeLengths.from_gymnasium([50, 400])


def simulated(lengths, returns, steps, *, same_step, rng, copies=20_000):
    """Return the mean over all episodes that many environments, reset together, have finished by some time."""
    time, total, count = np.zeros(copies, dtype=int), 0.0, 0
    while (time < steps).any():
        drawn = rng.choice(lengths, size=copies)
        finished = time + drawn <= steps
        total, count = total + returns(drawn[finished]).sum(), count + finished.sum()
        time = time + drawn + (not same_step)
    return total / count


def test_two_lengths_by_hand():
    # SAME_STEP, lengths 50 or 400. Episodes begin at 0, 50, 100, 150, 200 with probability 1, 1/2, 1/4, 1/8, 1/16. That
    # is U(200) = 31/16: long ones that have finished by 600. Short ones began by 550: up to 350 the sum is 255/128, and
    # u(400) = 1/2 + 1/256 = 129/256, and u(t) = (u(t - 50) + u(t - 400)) / 2 gives 257/512, 385/1024 and 513/2048.
    short = 255 / 128 + 129 / 256 + 257 / 512 + 385 / 1024 + 513 / 2048
    long = 31 / 16
    found = finished_mean(TWO, 600, same_step=True)
    assert found[600] == pytest.approx((50 * short + 400 * long) / (short + long), rel=1e-12)
    assert found[600] / 225 == pytest.approx(0.7641, abs=1e-4)
    assert np.isnan(found[:50]).all()
    np.testing.assert_allclose(found[50:400], 50)


def test_at_steady_state_by_hand():
    # Episodes begin at every time 0, 1, ... with the same probability: 551 starts of short ones and 201 of long ones.
    for same_step in (True, False):
        found = finished_mean(TWO, 600, start="steady", same_step=same_step)
        assert found[600] == pytest.approx((50 * 551 + 400 * 201) / (551 + 201), rel=1e-12)


@pytest.mark.parametrize("same_step", [True, False])
@pytest.mark.parametrize("steps", [60, 137, 600])
def test_many_environments_show_what_is_computed(steps, same_step):
    lengths = [3, 8, 8, 20, 55, 130]
    rng = np.random.default_rng(0)
    rewards = np.linspace(-1, 3, 130)
    returns = np.append(0, np.cumsum(rewards))
    found = finished_mean(EpisodeLengths.from_gymnasium(lengths), steps, rewards=rewards, same_step=same_step)[steps]
    drawn = simulated(np.array(lengths), lambda n: returns[n], steps, same_step=same_step, rng=rng)
    # 20,000 environments with at least three episodes each, and a spread of at most five times the mean.
    assert drawn == pytest.approx(found, rel=0.05)


def test_the_bias_vanishes_like_one_over_the_time_and_a_window_sees_the_truth_sooner():
    mean = TWO.mean - 1
    together = finished_mean(TWO, 100_000)
    assert together[100_000] == pytest.approx(mean, rel=0.002)
    assert abs(together[2000] / mean - 1) == pytest.approx(10 * abs(together[20_000] / mean - 1), rel=0.2)
    recent = finished_mean(TWO, 20_000, window=1000)
    assert recent[20_000] == pytest.approx(mean, rel=1e-3)
    np.testing.assert_allclose(finished_mean(TWO, 900, window=1000), together[:901])


def test_many_lengths_by_transforms_agree_with_direct_sums(monkeypatch):
    from steadyrl.lengths import finished_bias

    lengths = EpisodeLengths.from_gymnasium(np.arange(20, 300))
    direct = finished_mean(lengths, 1000)
    monkeypatch.setattr(finished_bias, "_DIRECT", 0)
    np.testing.assert_allclose(finished_mean(lengths, 1000), direct, rtol=1e-9)


def test_a_log_of_100_steps_where_the_truth_is_600_is_reproduced_and_removed():
    # astooke/rlpyt#93: about 100 steps in the log, about 600 offline. Half of the episodes fall within 20 to 180 steps,
    # the others go on to 1,100; the log covers 300 steps of environments at steady state.
    falls, rng = np.arange(20, 181), np.random.default_rng(0)
    lengths = EpisodeLengths.from_gymnasium(np.append(falls, np.full(len(falls), 1100)))
    assert lengths.mean - 1 == 600
    logged = finished_mean(lengths, 300, start="steady", same_step=True)[300]
    assert 80 < logged < 105

    def draw(size):
        return np.where(rng.random(size) < 0.5, rng.choice(falls, size), 1100)

    num_envs = 512
    length = draw(num_envs * 40)
    length = rng.choice(length, num_envs, p=length / length.sum())  # those met at a random time are longer
    ages = rng.integers(1, length + 1)
    statistics = FairStatistics(num_envs, same_step=True, ages=ages)
    for _ in range(300):
        ended = ages == length
        statistics.update(np.ones(num_envs), ended)
        ages, length = np.where(ended, 1, ages + 1), np.where(ended, draw(num_envs), length)
    report = statistics.report()
    # About 250 episodes begin, so that the standard deviation is some 40 steps; 160 is four of them.
    assert report.finished_only == pytest.approx(logged, rel=0.2)
    assert abs(report.mean_return.value - 600) < 160
    assert report.mean_return.low > 2 * report.finished_only


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": -1}, "steps is -1"),
        ({"start": "now"}, "start is 'now'"),
        ({"rewards": [1.0, 2.0]}, r"shape \(2,\)"),
        ({"rewards": np.full(400, np.nan)}, "finite"),
        ({"rewards": np.full(400, 1e308)}, r"overflows: they go from 1e\+308"),
        ({"window": 0}, "window is 0"),
        ({"lengths": EpisodeLengths([0, 0.5, 0.5]), "same_step": True}, "no action"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments, message):
    with pytest.raises(LengthsError, match=message):
        finished_mean(**{"lengths": TWO, "steps": 10} | arguments)
