"""Fair statistics beside tensors: on a device the same numbers as on the host, and nobody waits."""

import numpy as np
import pytest
import torch

from pretend_device import DEVICE, elsewhere, here, pretend_device, waiting_allowed
from steadyrl import FairStatistics
from steadyrl.errors import StatisticsError
from steadyrl.integrations.torch import CounterStagger, TorchFairStatistics

N = 12


@pytest.mark.parametrize(("memory", "hidden"), [(None, False), (20.0, False), (20.0, True)])
def test_a_device_has_the_numbers_of_the_host_and_nobody_waits(memory, hidden):
    rng = np.random.default_rng(0)
    plain = FairStatistics(N, same_step=True, memory=memory)
    on_cpu = TorchFairStatistics(N, memory=memory)
    with pretend_device():
        on_device = TorchFairStatistics(N, device=DEVICE, memory=memory, max_age=64)
        for step in range(50):
            rewards, ended = rng.normal(size=N), rng.random(N) < 0.1
            cut = (rng.random(N) < 0.05) & ~ended
            plain.update(rewards, ended, cut, hidden=hidden)
            given = [torch.from_numpy(x) for x in (rewards, ended, cut)]
            on_cpu.update(*given, hidden=hidden)
            on_device.update(*map(elsewhere, given), hidden=hidden)
            if step == 30:
                for statistics in (plain, on_cpu, on_device):
                    statistics.reset()
        logged = {name: here(value).item() for name, value in on_device.log().items()}
        with waiting_allowed():
            found = on_device.report()
    wanted = plain.report()
    for report in (found, on_cpu.report()):
        for name in ("mean_return", "average_episode_length"):
            interval, expected = getattr(report, name), getattr(wanted, name)
            assert (interval.value, interval.low, interval.high) == pytest.approx(
                (expected.value, expected.low, expected.high)
            )
    for name, value in on_cpu.log().items():
        assert logged[name] == pytest.approx(value.item())


def test_a_time_out_that_hides_a_fall_does_not_make_episodes_longer():
    class Simulator:
        """Copies that fall with probability 0.2 in every step; a time-out hides it."""

        max_episode_length, episode_length_buf = 1000, torch.zeros(20_000, dtype=torch.long)

    simulator, rng = Simulator(), np.random.default_rng(0)
    stagger = CounterStagger(simulator, seed=0)
    for _ in range(30):
        simulator.episode_length_buf += 1
        dones = torch.from_numpy(rng.random(20_000) < 0.2) | (simulator.episode_length_buf >= 1000)
        simulator.episode_length_buf[dones] = 0
        stagger.step(dones, torch.ones(20_000))
    # The standard deviation is sqrt(E[L] Var[L] / all steps) = 0.013.
    # If hidden falls counted as survived, it would be 5.19.
    assert stagger.statistics.report().mean_return.value == pytest.approx(5, abs=0.06)


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_copies_reset_from_outside_are_cut_short(device):
    with pretend_device(), waiting_allowed():
        statistics = TorchFairStatistics(2, device=device)
        mask, nobody = (torch.tensor(x, device=statistics.device) for x in ([True, False], [False, False]))
        statistics.update(torch.ones(2, device=statistics.device), nobody)
        statistics.reset(mask)
        statistics.update(torch.ones(2, device=statistics.device), ~nobody)
        # Of three first steps one ended, and the second step did: 1 + 2/3.
        assert statistics.report().mean_return.value == pytest.approx(5 / 3)


def test_what_cannot_be_used_is_named():
    statistics = TorchFairStatistics(3)
    with pytest.raises(StatisticsError, match=r"rewards has shape \(2,\); .* must be \(3,\)"):
        statistics.update(torch.ones(2), torch.zeros(3, dtype=torch.bool))
    with pretend_device(), waiting_allowed(), pytest.raises(StatisticsError, match="nothing was seen yet"):
        TorchFairStatistics(3, device=DEVICE).report()
