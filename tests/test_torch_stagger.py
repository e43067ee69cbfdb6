"""Staggering beside tensors: the same truncations as in numpy, on a device that nobody waits for."""

import math

import numpy as np
import pytest
import torch

from pretend_device import DEVICE, Elsewhere, MixedError, WaitedError, elsewhere, here, pretend_device, waiting_allowed
from steadyrl import EpisodeLengths, StaggerController
from steadyrl.errors import StaggerError
from steadyrl.integrations.torch import TorchStagger
from steadyrl.lengths.anytime import anytime_distance

N = 48
MODES = [{"same_step": True}, {"same_step": False}, {"same_step": True, "late_cuts": True}]


class Copies:
    """Environments as their ends alone: episodes of so many steps, from a generator."""

    def __init__(self, draw, *, same_step=True, late_cuts=False, n=N, seed=0):
        self.draw, self.same_step, self.late_cuts, self.n = draw, same_step, late_cuts, n
        self.rng = np.random.default_rng(seed)
        self.lived = np.zeros(n, dtype=int)
        self.last = self.draw(self.rng, n)
        self.restarting = self.late = np.zeros(n, dtype=bool)

    def step(self):
        """Return whose episode ends now, those that are truncated late included."""
        self.lived = np.where(self.restarting, 0, self.lived + 1)
        return ((self.lived >= self.last) & ~self.restarting) | self.late

    def end(self, done, cut):
        """Begin anew where an episode ended or is truncated."""
        over = done if self.late_cuts else done | cut
        self.late = cut if self.late_cuts else self.late
        self.last = np.where(over, self.draw(self.rng, self.n), self.last)
        self.restarting = over if not self.same_step else self.restarting
        if self.same_step:
            self.lived = np.where(over, 0, self.lived)


def fixed(length):
    return lambda rng, n: np.full(n, length)


def spread(low, high):
    return lambda rng, n: rng.integers(low, high + 1, n)


@pytest.mark.parametrize(("mode", "draw"), list(zip(MODES, [spread(30, 90), fixed(20), spread(1, 30)], strict=True)))
def test_truncations_on_a_device_are_those_on_the_host_and_nobody_waits(mode, draw):
    copies = Copies(draw, **mode)
    numpy_controller = StaggerController(N, seed=5, **mode)
    on_cpu = TorchStagger(N, seed=5, **mode)
    with pretend_device():
        on_device = TorchStagger(N, device=DEVICE, seed=5, **mode)
        for _ in range(90):  # tables begin with 64 ages, and grow
            done = copies.step()
            cut = numpy_controller.step(done)
            np.testing.assert_array_equal(on_cpu.step(torch.from_numpy(done)).numpy(), cut)
            found = on_device.step(elsewhere(torch.from_numpy(done)))
            assert found.device == DEVICE
            np.testing.assert_array_equal(here(found).numpy(), cut)
            copies.end(done, cut)
        logged = on_device.log()
        with waiting_allowed():
            assert on_device.phase == on_cpu.phase == numpy_controller.phase
            assert on_device.cuts == numpy_controller.cuts > 0
            assert on_device.lengths == numpy_controller.lengths
    for name, value in on_cpu.log().items():
        assert here(logged[name]).item() == pytest.approx(value.item())
    assert on_cpu.log()["steady/ep_len_mean"] == pytest.approx(numpy_controller.phase.average_episode_length - 1)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: bool(x.any()),
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x],
        lambda x: x.to("cpu"),
        lambda x: x.long().bincount(),
        np.asarray,
    ],
)
def test_the_pretended_device_notices_whoever_waits(wait):
    with pytest.raises(WaitedError):
        wait(elsewhere(torch.ones(4, dtype=torch.bool)))
    with waiting_allowed():
        wait(elsewhere(torch.ones(4, dtype=torch.bool)))


def test_the_pretended_device_refuses_tensors_of_the_cpu():
    with pytest.raises(MixedError, match="scatter_add_ takes"):
        torch.zeros(4).scatter_add_(0, elsewhere(torch.arange(4)), torch.ones(4))


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_environments_reset_from_outside_begin_anew(device):
    with pretend_device(), waiting_allowed():
        stagger = TorchStagger(N, device=device, seed=1)
        nobody = torch.zeros(N, dtype=torch.bool, device=stagger.device)
        for _ in range(10):
            stagger.step(nobody)
        mask = torch.arange(N, device=stagger.device) < 3
        stagger.reset(mask)
        assert stagger.ages[:3].tolist() == [1, 1, 1]
        assert int(stagger.ages.max()) == 11
        stagger.reset()
        assert stagger.ages.tolist() == [1] * N
        assert stagger.on_host().active
        before = stagger.cuts
        stagger.reset(seed=3)
        assert before > stagger.cuts == 0


def test_late_cuts_reach_the_bound_one_step_later():
    """Lengths are fixed, so ages are not random. One age is missing for ever, and ages have whole numbers of copies."""
    n, length = 1000, 50
    copies = Copies(fixed(length), late_cuts=True, n=n)
    stagger = TorchStagger(n, late_cuts=True, seed=0)
    bound = anytime_distance(EpisodeLengths.from_gymnasium([length]), length, same_step=True)
    for t in range(1, 3 * length):
        counts = np.bincount(copies.lived + 1, minlength=length + 1)[1:]
        distance = 0.5 * np.abs(counts / n - 1 / length).sum()
        least = bound[min(t - 1, length - 1)] if t > 1 else 1 - 1 / length
        assert distance < least + 2 / length + 1e-9, t
        done = copies.step()
        copies.end(done, stagger.step(torch.from_numpy(done)).numpy())


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_a_late_cut_without_effect_is_an_error(device):
    with pretend_device(), waiting_allowed():
        stagger = TorchStagger(N, device=device, late_cuts=True, seed=0)
        nobody = torch.zeros(N, dtype=torch.bool, device=stagger.device)
        assert bool(stagger.step(nobody).any())
        with pytest.raises(StaggerError, match=r"were to be truncated .*and went on"):
            _ = stagger.step(nobody), stagger.phase


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"device": "nowhere"}, "torch does not know"),
        ({"device": "mps"}, "64-bit"),
        ({"late_cuts": True, "same_step": False}, "same_step=True"),
        ({"max_age": 0}, "max_age"),
        ({"seed": -1}, "seed"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments, message):
    with pytest.raises(StaggerError, match=message):
        TorchStagger(**{"num_envs": 4, **arguments})


@pytest.mark.parametrize(
    ("done", "message"),
    [
        (torch.zeros(3, dtype=torch.bool), r"shape \(3,\)"),
        ([False] * 4, "must be a tensor"),
        (torch.zeros(4, dtype=torch.bool, device="meta"), "is on meta"),
    ],
)
def test_flags_that_cannot_be_used_are_named(done, message):
    with pytest.raises(StaggerError, match=message):
        TorchStagger(4).step(done)


def test_whole_numbers_are_flags_and_the_log_is_unknown_at_first():
    stagger = TorchStagger(4, seed=0)
    assert all(math.isnan(value) for value in stagger.log().values())
    stagger.step(torch.tensor([0, 1, 0, 1]))
    assert stagger.on_host().phase.ends == 2


def test_operations_of_a_step_on_a_device_do_not_depend_on_what_happens():
    """What is launched must not depend on values, or somebody has looked at them."""
    with pretend_device():
        stagger = TorchStagger(N, device=DEVICE, seed=5, max_age=63)
        copies, found = Copies(spread(1, 40)), set()
        for _ in range(40):
            done, before = copies.step(), Elsewhere.operations
            cut = stagger.step(elsewhere(torch.from_numpy(done)))
            found.add(Elsewhere.operations - before)
            copies.end(done, here(cut).numpy())
    assert len(found) == 1
