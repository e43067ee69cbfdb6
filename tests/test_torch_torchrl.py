"""TorchRL: a collector gathers staggered copies, PPO's loss takes the batches, and truncations are bootstrapped."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import (
    Compose,
    GymEnv,
    GymWrapper,
    ParallelEnv,
    RandomTruncationTransform,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.utils import check_env_specs
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
from torchrl.record import CSVLogger

from pretend_device import DEVICE, pretend_device, waiting_allowed
from steadyrl.errors import WrapperError
from steadyrl.integrations.torch.torchrl import StaggerTransform

N, STEPS, LIMIT = 60, 16, 20


def copies(*transforms, name="CartPole-v1", n=N, mode=AutoresetMode.DISABLED, seed=0):
    """Copies of a Gymnasium environment that TorchRL resets."""
    envs = gymnasium.make_vec(name, n, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    env = TransformedEnv(GymWrapper(envs, categorical_action_encoding=True), Compose(*transforms))
    env.set_seed(seed)
    return env


def batches(env, count, policy=None):
    torch.manual_seed(0)
    collector = Collector(
        env,
        policy,
        frames_per_batch=N * STEPS,
        total_frames=N * STEPS * count,
        auto_register_policy_transforms=False,
    )
    yield from collector
    collector.shutdown()


def from_even(counts):
    """Total variation between how many copies have each age and the same number of all."""
    return 0.5 * np.abs(counts / counts.sum() - 1 / len(counts)).sum()


def last_ages(batch):
    return np.bincount(batch["step_count"][:, -1].flatten(), minlength=LIMIT)


@pytest.mark.filterwarnings("ignore:Nested TransformedEnvs")
def test_ppo_trains_on_batches_whose_truncations_are_bootstrapped(tmp_path):
    torch.manual_seed(0)
    stagger = StaggerTransform(seed=0)
    env = copies(StepCounter(), stagger)
    actor = ProbabilisticActor(
        TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), in_keys=["observation"])
    gae = GAE(gamma=0.9, lmbda=0.0, value_network=critic)
    loss = ClipPPOLoss(actor, critic)
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3)
    logger = CSVLogger("run", log_dir=str(tmp_path))
    cuts, natural = 0, 0
    for batch in batches(env, 8, actor):
        with torch.no_grad():
            gae(batch)
            after = critic(batch["next"].select("observation"))["state_value"]
        cut = batch["next", "truncated"] & ~batch["next", "terminated"]
        expected = (batch["next", "reward"] + 0.9 * after)[cut]
        torch.testing.assert_close(batch["value_target"][cut], expected)
        assert batch["next", "done"][cut].all()
        cuts += int(cut.sum())
        natural += int(batch["next", "terminated"].sum())
        sum(value for key, value in loss(batch.reshape(-1)).items() if key.startswith("loss")).backward()
        optimiser.step()
        optimiser.zero_grad()
        for key, value in stagger.log().items():
            logger.log_scalar(key, value.item())
        # After the step of a truncation the copy begins anew, from another state.
        begun = batch["step_count"][:, 1:] == 0
        assert torch.equal(begun, batch["next", "done"][:, :-1])
    assert cuts == stagger.staggering.cuts > N
    assert natural == stagger.staggering.phase.ends
    assert stagger.staggering.phase.verdict == "at steady state"
    report = stagger.statistics.report()
    assert report.mean_return.value == pytest.approx(report.average_episode_length.value - 1)  # the reward is 1 a step
    assert (tmp_path / "run" / "scalars" / "fair").exists()


@pytest.mark.filterwarnings("ignore:Nested TransformedEnvs")
def test_fixed_lengths_are_even_after_one_episode_and_sooner_than_by_random_horizons():
    distances = {}
    for transform in (StaggerTransform(seed=0), RandomTruncationTransform(1, LIMIT)):
        env = copies(StepCounter(max_steps=LIMIT), transform, name="Pendulum-v1")
        first, second = (from_even(last_ages(batch)) for batch in batches(env, 2))
        distances[type(transform).__name__] = first, second
    # After 16 of 20 steps nobody is older than 16: 0.2 is the best that can be. After 32 steps 60 copies of random
    # horizons have a distance of about 0.23 by chance; the seed is fixed.
    assert distances["StaggerTransform"] == (pytest.approx(0.2, abs=0.05), pytest.approx(0.0, abs=0.05))
    assert distances["RandomTruncationTransform"][0] > 0.4
    assert distances["RandomTruncationTransform"][1] > 0.15


def cart():
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def test_copies_in_processes_of_their_own_are_staggered():
    stagger = StaggerTransform(seed=0)
    env = TransformedEnv(ParallelEnv(2, cart), stagger)
    env.rollout(40, break_when_any_done=False)
    assert stagger.staggering.cuts > 0
    env.close()


def test_serial_copies_and_specs():
    stagger = StaggerTransform(seed=0)
    env = TransformedEnv(
        SerialEnv(4, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True)), Compose(StepCounter(), stagger)
    )
    check_env_specs(env)
    env.rollout(60, break_when_any_done=False)
    assert stagger.staggering.cuts > 0
    env.reset()
    assert stagger.staggering.ages.tolist() == [1] * 4
    env.close()


def test_copies_reset_from_outside_begin_anew():
    stagger = StaggerTransform(seed=0)
    env = copies(stagger, n=4)
    state = env.reset()
    for _ in range(3):
        _, state = env.step_and_maybe_reset(env.rand_action(state))
    before = stagger.staggering.ages.tolist()
    mask = torch.tensor([[True], [False], [False], [False]])
    env.reset(state.set("_reset", mask))
    assert stagger.staggering.ages.tolist() == [1, *before[1:]]
    assert stagger.statistics._host.ages.tolist() == [1, *before[1:]]


def test_what_cannot_be_staggered_is_refused():
    with pytest.raises(WrapperError, match="has not been reset"):
        _ = StaggerTransform().staggering
    with pytest.raises(WrapperError, match="nothing is known of returns"):
        _ = StaggerTransform().statistics
    with pytest.raises(WrapperError, match="one copy"):
        TransformedEnv(GymEnv("CartPole-v1"), StaggerTransform()).reset()
    with pytest.raises(WrapperError, match="not single agents"):
        StaggerTransform()._step(None, TensorDict({"agents": {"done": torch.zeros(4, 1)}}, []))


@pytest.mark.filterwarnings("ignore:Nested TransformedEnvs")
def test_an_environment_that_resets_itself_is_refused():
    env = copies(StaggerTransform(), n=4, mode=AutoresetMode.SAME_STEP, seed=None)
    with pytest.raises(WrapperError, match=r"AutoresetMode\.DISABLED"):
        env.reset()


def test_nobody_waits_for_the_device():
    with pretend_device():
        stagger = StaggerTransform(seed=0)
        done = torch.zeros(16, 1, dtype=torch.bool, device=DEVICE)

        class State(dict):  # a TensorDict would look at the real device
            set = dict.__setitem__

        stagger._reset(State(), State(done=done))
        for step in range(12):
            found = stagger._step(State(), State(done=done if step % 6 else ~done))
            stagger._reset(State(_reset=found["done"]), State(done=done))
        with waiting_allowed():
            assert stagger.staggering.cuts > 0
