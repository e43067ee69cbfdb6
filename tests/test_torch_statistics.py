"""Fair statistics beside tensors: on a device the same numbers as on the host, and nobody waits."""

import numpy as np
import pytest
import torch

from pretend_device import DEVICE, elsewhere, here, pretend_device, waiting_allowed
from steadyrl import FairStatistics
from steadyrl.errors import StatisticsError
from steadyrl.integrations.torch import TorchFairStatistics

N = 12


@pytest.mark.parametrize("memory", [None, 20.0])
def test_a_device_has_the_numbers_of_the_host_and_nobody_waits(memory):
    rng = np.random.default_rng(0)
    plain = FairStatistics(N, same_step=True, memory=memory)
    on_cpu = TorchFairStatistics(N, memory=memory)
    with pretend_device():
        on_device = TorchFairStatistics(N, device=DEVICE, memory=memory, max_age=64)
        for step in range(50):
            rewards, ended = rng.normal(size=N), rng.random(N) < 0.1
            cut = (rng.random(N) < 0.05) & ~ended
            plain.update(rewards, ended, cut)
            given = [torch.from_numpy(x) for x in (rewards, ended, cut)]
            on_cpu.update(*given)
            on_device.update(*map(elsewhere, given))
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


def test_what_cannot_be_used_is_named():
    statistics = TorchFairStatistics(3)
    with pytest.raises(StatisticsError, match=r"rewards has shape \(2,\); .* must be \(3,\)"):
        statistics.update(torch.ones(2), torch.zeros(3, dtype=torch.bool))
    with pretend_device(), waiting_allowed(), pytest.raises(StatisticsError, match="nothing was seen yet"):
        TorchFairStatistics(3, device=DEVICE).report()
