"""Hostile arguments for what stands in other libraries' loops: a value or a sentence, and nothing taken for another."""

import math
import warnings

import numpy as np
import pytest
import torch

from steadyrl.errors import PoolError, StaggerError, StatisticsError, SteadyrlError, WrapperError
from steadyrl.integrations.envpool import EnvPoolVectorEnv
from steadyrl.integrations.envpool.sb3_vec_env import EnvPoolVecEnv
from steadyrl.integrations.torch import CounterStagger, TorchFairStatistics, TorchStagger
from steadyrl.integrations.torch.rsl_rl import StaggeredVecEnv, write_delays

HOSTILE = [
    None, "no", b"x", object(), [], {}, (), -1, 0, 1.5, math.nan, math.inf, 10**30, True, 1j, range(2), iter([1, 2]),
    np.array([1, 2]), np.array(["a", "b"]), np.array([None, 1], dtype=object), np.datetime64("2026-01-01"),
    np.ma.masked_array([1, 0], [1, 0]), torch.tensor([1.0, math.nan]), torch.ones(2, 1), len,
    torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.complex64), torch.ones(2, device="meta"),
    torch.ones(2).to_sparse(), torch.nested.nested_tensor([torch.ones(2)] * 2, layout=torch.jagged), np.array(3),
]  # fmt: skip


class Simulator:
    """Two copies that count their steps."""

    def __init__(self, counters=None, limit=5):
        self.episode_length_buf = torch.zeros(2, dtype=torch.long) if counters is None else counters
        self.max_episode_length, self.num_envs, self.device = limit, 2, "cpu"


def in_pool(make, use, *arguments, **options):
    envs = make(*arguments, **options)
    try:
        use(envs)
    finally:
        envs.close()


def stepped(make, actions):
    in_pool(make, lambda envs: (envs.reset(), envs.step(actions)), "CartPole-v1", 2)


def reset(**options):
    in_pool(EnvPoolVectorEnv, lambda envs: envs.reset(**options), "CartPole-v1", 2)


def begun(make, *arguments, **options):
    in_pool(make, lambda envs: envs.reset(), *arguments, **options)


def counted(*arguments):
    CounterStagger(Simulator(), seed=0).step(*arguments)


ENDED = torch.tensor([False, True])
CALLS = {
    "CounterStagger, env": CounterStagger,
    "CounterStagger, counters": lambda x: CounterStagger(Simulator(), counters=x),
    "CounterStagger, limit": lambda x: CounterStagger(Simulator(), limit=x),
    "CounterStagger, seed": lambda x: CounterStagger(Simulator(), seed=x),
    "CounterStagger, log_interval": lambda x: CounterStagger(Simulator(), log_interval=x),
    "simulator's counters": lambda x: CounterStagger(Simulator(counters=x)),
    "simulator's limit": lambda x: CounterStagger(Simulator(limit=x)),
    "CounterStagger.step, dones": counted,
    "CounterStagger.step, rewards": lambda x: counted(ENDED, x),
    "CounterStagger.step, terminated": lambda x: counted(ENDED, torch.ones(2), x),
    "CounterStagger.write": lambda x: CounterStagger(Simulator(), seed=0).write(x),
    "TorchStagger.step": lambda x: TorchStagger(2).step(x),
    "TorchFairStatistics, max_age": lambda x: TorchFairStatistics(2, max_age=x),
    "TorchFairStatistics.reset": lambda x: TorchFairStatistics(2).reset(x),
    "StaggeredVecEnv, env": StaggeredVecEnv,
    "write_delays, env": write_delays,
    "write_delays, delays": lambda x: write_delays(Simulator(), x),
    "write_delays, seed": lambda x: write_delays(Simulator(), seed=x),
    "EnvPoolVectorEnv, id": lambda x: begun(EnvPoolVectorEnv, x, 2),
    "EnvPoolVectorEnv, num_envs": lambda x: begun(EnvPoolVectorEnv, "CartPole-v1", x),
    "EnvPoolVectorEnv, seed": lambda x: begun(EnvPoolVectorEnv, "CartPole-v1", 2, seed=x),
    "EnvPoolVectorEnv, num_threads": lambda x: begun(EnvPoolVectorEnv, "CartPole-v1", 2, num_threads=x),
    "EnvPoolVectorEnv, copy": lambda x: begun(EnvPoolVectorEnv, "CartPole-v1", 2, copy=x),
    "EnvPoolVectorEnv, max_episode_steps": lambda x: begun(EnvPoolVectorEnv, "CartPole-v1", 2, max_episode_steps=x),
    "EnvPoolVectorEnv.reset, seed": lambda x: reset(seed=x),
    "EnvPoolVectorEnv.reset, options": lambda x: reset(options=x),
    "EnvPoolVectorEnv.reset, reset_mask": lambda x: reset(options={"reset_mask": x}),
    "EnvPoolVectorEnv.step": lambda x: stepped(EnvPoolVectorEnv, x),
    "EnvPoolVecEnv, n_envs": lambda x: begun(EnvPoolVecEnv, "CartPole-v1", x),
    "EnvPoolVecEnv, seed": lambda x: begun(EnvPoolVecEnv, "CartPole-v1", 2, seed=x),
    "EnvPoolVecEnv.step": lambda x: stepped(EnvPoolVecEnv, x),
}


@pytest.mark.parametrize("what", CALLS)
def test_hostile_arguments_give_values_or_sentences(what):
    """They raised what torch, numpy, EnvPool or Python raises."""
    refused = 0
    for value in HOSTILE:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                CALLS[what](value)
            except SteadyrlError:
                refused += 1
    assert refused >= 15


@pytest.mark.parametrize(
    ("error", "call", "words"),
    [
        (PoolError, lambda: begun(EnvPoolVectorEnv, "CartPole-v1", 2, copy="no"), "copy is 'no'"),
        (PoolError, lambda: begun(EnvPoolVectorEnv, "CartPole-v1", 2, max_episode_steps=-1), "max_episode_steps is -1"),
        (PoolError, lambda: begun(EnvPoolVecEnv, "CartPole-v1", 2, seed=[1, -1]), "a seed is -1"),
        (PoolError, lambda: stepped(EnvPoolVecEnv, np.array([1])), r"shape \(1,\); for 2 environments it must be"),
        (PoolError, lambda: stepped(EnvPoolVecEnv, np.array([1, 7])), "action 7 of environment 1 is none of Discrete"),
        (PoolError, lambda: stepped(EnvPoolVectorEnv, np.array([0.0, 1.0])), "are whole numbers"),
        (PoolError, lambda: stepped(EnvPoolVectorEnv, np.ma.masked_array([1, 0], [1, 0])), "masked"),
        (WrapperError, lambda: CounterStagger(Simulator(limit=math.nan)), "time limit is nan"),
        (WrapperError, lambda: CounterStagger(Simulator(limit=True)), "time limit is True"),
        (PoolError, lambda: reset(seed=np.array(3)), r"seed is array\(3\)"),
        (WrapperError, lambda: counted(torch.ones(3)), r"dones has shape \(3,\)"),
    ],
)
def test_what_is_refused_says_why(error, call, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("rewards", [torch.tensor([1.5, -0.2]), torch.tensor([2, 0]), torch.tensor([0.0, math.nan])])
def test_numbers_that_are_no_flags_are_refused(rewards):
    """Whatever was not 0 was an end: rewards in the place of flags ended all episodes in every step."""
    with pytest.raises(StaggerError, match=r"done is .*booleans"):
        TorchStagger(2).step(rewards)
    with pytest.raises(StaggerError, match=r"mask is .*booleans"):
        TorchStagger(2).reset(rewards)
    with pytest.raises(StatisticsError, match=r"mask is .*booleans"):
        TorchFairStatistics(2).reset(rewards)
    with pytest.raises(WrapperError, match=r"dones is .*booleans"):
        counted(rewards, ENDED)
    with pytest.raises(WrapperError, match=r"terminated is .*booleans"):
        counted(ENDED, torch.ones(2), rewards)


def test_written_counters_are_not_rounded():
    with pytest.raises(WrapperError, match=r"torch.float32, and the counters of type torch.int64.*round"):
        CounterStagger(Simulator(), seed=0).write(torch.tensor([0.5, 1.5]))


def test_columns_and_flags_of_other_types_are_taken():
    for dones in (torch.ones(2, 1), torch.tensor([1, 1]), torch.ones(2, dtype=torch.bfloat16)):
        stagger = CounterStagger(Simulator(limit=torch.tensor(5)), seed=0)
        stagger.step(dones, torch.ones(2, 1), dones)
        assert stagger.statistics.report().finished_episodes == 2
