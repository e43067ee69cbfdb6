"""Calls every public function, constructor and method with hostile arguments: a value or a SteadyrlError comes back.

A call starts from arguments that work, and one to three of them (sometimes all) are replaced. Calls run in a process of
their own with limits of time and memory; if it dies, that is a finding, and the next process goes on after that call.
"""

from __future__ import annotations

import contextlib
import decimal
import fractions
import inspect
import json
import math
import os
import random
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import TimeLimit, Trial, limit_memory, main, time_limit

SECONDS = 60.0
"""Time for one call. A call that takes longer is a finding, unless it was asked for something large."""
LARGE = 50_000
"""A number from which on an argument is large."""
GIGABYTES = 4.0
OTHERWISE = "calls that ended otherwise: findings, of which those alike count once"

Target = tuple[Callable[..., Any], Callable[[], dict[str, Any]]]


class Hostile:
    """An object whose every special method raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __len__(self) -> int:
        raise RuntimeError("no len")

    def __bool__(self) -> bool:
        raise RuntimeError("no bool")


def pool() -> list[Any]:
    """Return the hostile values."""
    import numpy as np
    import scipy.sparse as sp

    import steadyrl

    nested: list[Any] = []
    for _ in range(200):
        nested = [nested]
    values: list[Any] = [None, True, False, np.bool_(True), math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3, 7, -0.0, 0.5]
    values += [1.0, 2.5, 1e-300, 1e300, 1e308, -1e308, 10**6, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**5000, 1j]
    values += [np.float32(0.5), np.float64("nan"), np.int8(3), np.uint64(2**64 - 1), np.datetime64("2020-01-01")]
    values += [
        decimal.Decimal("0.5"),
        decimal.Decimal("NaN"),
        fractions.Fraction(1, 3),
        object(),
        Hostile(),
        print,
        int,
    ]
    values += [
        "",
        "no",
        "nan",
        "uniform",
        "gaussian",
        "serial",
        "auto",
        "CartPole-v1",
        "a:b:c-v0",
        "\x00",
        "../..",
        "spec",
    ]
    values += ["x" * 5000, "\ud800", "\x1b[2J", "state_sweep", b"bytes", bytearray(b"x"), [], (), {}, set(), {1: 2}]
    values += [
        [1],
        [0],
        [1, 2],
        [0.5, 0.5],
        [3, 4, 5],
        [-1, 2],
        [math.nan],
        [math.inf],
        [[1, 2], [3]],
        [None],
        ["1"],
        nested,
    ]
    values += [[10**30], [2**63], list(range(20_000)), [1] * 100_000, (1, 2), range(5), range(10**12), iter([1, 2])]
    values += [lambda *a, **k: None, lambda: 1 / 0, {"a": [1]}, {"epsilon": 0.5}, Path("nowhere"), Path("/")]
    values += [np.array(3), np.array([]), np.zeros((0, 3)), np.zeros((3, 0)), np.ones(4) / 4, np.ones((3, 3)) / 3]
    values += [np.zeros((2, 3, 4)), np.full((4, 2), 0.5), np.full((4, 2), np.nan), np.full(4, np.inf), np.eye(4)[None]]
    values += [
        np.array([1, "a", None], dtype=object),
        np.array([1, 2], dtype=object),
        np.array(["a", "b"]),
        np.array([1j]),
    ]
    values += [
        np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]),
        np.ma.masked,
        np.array([True, False]),
        np.arange(5)[::-2],
    ]
    values += [
        np.zeros(4, dtype=[("a", int)]),
        np.zeros(3, dtype="M8[s]"),
        np.float16([1, 2]),
        np.array([2**63], np.uint64),
    ]
    values += [
        np.array([1e308, 1e308]),
        np.array([5e-324]),
        np.ones(3, ">f8"),
        np.broadcast_to(np.float64(1), (1000, 1000)),
    ]
    values += [sp.csr_matrix(np.eye(4)), sp.coo_array(np.eye(3)), np.random.default_rng(0), np.random.RandomState(0)]
    process, policy = steadyrl.gallery.corridor(3)[:2]
    values += [
        process,
        policy,
        steadyrl.gallery.never_ending()[0],
        steadyrl.gallery.periodic()[0],
        steadyrl.Perturbation(0.5),
    ]
    values += [steadyrl.Perturbation(1 - 1e-12), steadyrl.EpisodeLengths([0.0, 0.5, 0.5]), steadyrl.Interval(1, 0, 2)]
    values += [steadyrl.EpisodeLengths.from_gymnasium([1, 3000]), steadyrl.uniform_delays(values[-2])]
    with contextlib.suppress(ImportError):
        import torch

        values += [torch.ones(3, requires_grad=True), torch.tensor([0.5, 0.5]), torch.tensor(3), torch.nn.Linear(2, 2)]
        values += [torch.ones(3, dtype=torch.bfloat16), torch.ones(3).to_sparse()]
        values += [torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16), torch.ones(2).to_sparse()]
        values += [torch.full((2,), math.nan), torch.ones(2, dtype=torch.complex64), torch.ones(2, device="meta")]
        values += [torch.device("cpu"), torch.ones(2, 1), torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)]
    return values


def targets() -> dict[str, Target]:
    """Return everything that is called, each with arguments that work."""
    import gymnasium
    import numpy as np
    from gymnasium.vector import SyncVectorEnv

    import steadyrl
    from steadyrl import gallery
    from steadyrl.diagnosis.episode_logs import read_episode_log
    from steadyrl.diagnosis.seen_ages import seen_ages
    from steadyrl.environments import ProcessEnv, StateSweepEnv
    from steadyrl.environments.codecs import action_codec, observation_codec
    from steadyrl.lengths import find_drift, read_lengths

    def make() -> Any:
        return gymnasium.make("CartPole-v1")

    def vector() -> Any:
        return SyncVectorEnv([make, make])

    process, policy = gallery.corridor(3)[:2]
    lengths = steadyrl.EpisodeLengths.from_gymnasium([3, 4, 5, 5])
    logits, rng = np.zeros((process.n_states, process.n_actions)), np.random.default_rng
    episodes = steadyrl.collect_episodes("CartPole-v1", "uniform", 12, backend="serial")
    others = steadyrl.collect_episodes("CartPole-v1", "uniform", 2, seed=1, backend="serial")
    samples = steadyrl.collect_samples("CartPole-v1", "uniform", 4, [3, 9], backend="serial")
    episodes.save("episodes.npz")
    samples.save("samples.npz")
    process.save("process.npz")
    Path("lengths.txt").write_text("3\n4\n5\n")
    Path("monitor.csv").write_text("r,l,t\n" + "".join(f"{n}.0,{n},{i}.5\n" for i, n in enumerate([3, 4, 5] * 20)))
    gaussian = steadyrl.Perturbation(0.5)
    diagnosis = steadyrl.diagnose_lengths([3, 4, 5] * 20)
    exact = {"process": process, "policy": policy}
    good: dict[str, dict[str, Any]] = {
        "Delays": {"probabilities": [0, 0.5, 0.5], "distance": 0.1, "lengths": lengths},
        "Delays.draw": {"n": 3, "rng": rng(0)},
        "Delays.assign": {"n": 3, "rng": rng(0)},
        "Delays.for_same_step": {},
        "Diagnosis.code_of": {"way": diagnosis.recommendation.chosen},
        "EnvPoolVectorEnv": {"id": "CartPole-v1", "num_envs": 2, "seed": 0},
        "EnvPoolVectorEnv.reset": {"seed": 0, "options": None},
        "EnvPoolVectorEnv.step": {"actions": np.array([0, 1])},
        "EpisodeLengths": {"probabilities": [0, 0.5, 0.5]},
        "EpisodeLengths.from_gymnasium": {"lengths": [3, 4, 5], "censored": [False, False, True]},
        "EpisodeLengths.from_survival": {"survival": [1.0, 1.0, 0.5, 0.2]},
        "EpisodeLengths.from_episodes": {"episodes": episodes},
        "EpisodeLengths.from_file": {"path": "lengths.txt", "column": None},
        "Episodes": {k: getattr(episodes, k) for k in ("lengths", "returns", "terminated", "truncated", "seeds")},
        "Episodes.merge": {"others": others},
        "Episodes.save": {"path": "saved.npz"},
        "Episodes.load": {"path": "episodes.npz"},
        "FairStatistics": {"num_envs": 2, "same_step": True, "ages": None, "memory": None, "max_episode_steps": 9},
        "FairStatistics.update": {"rewards": [1.0, 1.0], "ended": [True, False], "cut": None, "success": None},
        "FairStatistics.reset": {"mask": [True, False], "ages": None},
        "FairStatistics.restarted": {"mask": [True, False]},
        "FairStatistics.report": {"level": 0.9},
        "FairStatistics.restore": {"state": steadyrl.FairStatistics(2, same_step=True).state()},
        "FairStatistics.update_many": {"rewards": [[1.0, 2.0]] * 3, "ended": [[True, False]] * 3},
        "FairStatistics.watch": {"rewards": [1.0, 1.0], "terminated": [True, False], "truncated": [False, False]},
        "Interval.times": {"factor": 2.0},
        "LearningProcess": {"transitions": [[[0, 1], [1, 0]]], "rewards": [0, 1], "initial": [1, 0], "names": None},
        "LearningProcess.name": {"state": 1},
        "LearningProcess.with_time_limit": {"n": 3},
        "LearningProcess.from_gymnasium": {"env_or_id": "FrozenLake-v1", "time_limit": None},
        "LearningProcess.from_mdp": {"P": np.eye(3)[None], "R": np.zeros(3), "start": [1, 0, 0], "terminal": [2]},
        "LearningProcess.save": {"path": "saved.npz"},
        "LearningProcess.load": {"path": "process.npz"},
        "Perturbation": {"epsilon": 0.5, "recursive": True, "detour": None},
        "Perturbation.for_average_episode_length": {"average_episode_length": 10.0},
        "Perturbation.from_detour": {"probabilities": [0.5, 0.5]},
        "Perturbation.detour_probabilities": {"longest": 5},
        "Perturbation.draw": {"count": 3, "rng": rng(0)},
        "PerturbedStarts": {"env": make, "perturbation": gaussian, "null_observation": None},
        "PhaseMonitor": {"env": vector, "n_steps": 4, "tolerance": 0.01, "warn": False},
        "PhaseTracker": {"num_envs": 2, "same_step": True, "n_steps": 4, "tolerance": 0.01},
        "PhaseTracker.update": {"done": [True, False], "cut": None},
        "PhaseTracker.watch": {"terminated": [True, False], "truncated": [False, False]},
        "PhaseTracker.reset": {"mask": [True, False], "ages": 1},
        "PreRolledStart": {"env": make, "delays": 3, "policy": None},
        "ProcessEnv": {"process": process},
        "ProcessEnv.step": {"action": 0},
        "RecordFairStatistics": {"env": vector, "memory": None, "level": 0.9, "summary": False},
        "StaggeredVectorEnv.reset": {"seed": 0, "options": None},
        "PhaseMonitor.reset": {"seed": 0, "options": None},
        "RecordFairStatistics.reset": {"seed": 0, "options": None},
        "Samples.save": {"path": "saved.npz"},
        "Samples.load": {"path": "samples.npz"},
        "Settings": {"method": "online", "steps": 100, "num_envs": 2, "n_steps": 4, "seed": 0, "learning_rate": 1e-3},
        "Settings.resolved": {"continuous": False},
        "StaggerController": {"num_envs": 2, "same_step": True, "seed": 0},
        "StaggerController.step": {"done": [True, False]},
        "StaggerController.reset": {"mask": [True, False], "seed": 0},
        "StaggerController.restore": {"state": steadyrl.StaggerController(2, same_step=True, seed=0).state()},
        "StaggeredStart": {"env": make, "delays": 3, "window": 6},
        "StateSweepEnv": {"n": 4},
        "StateSweepEnv.step": {"action": 0},
        "Strategy.lost": {"horizon": 100},
        "StaggeredVectorEnv": {"env": vector, "delays": "auto", "seed": 0, "tolerance": 0.01, "n_steps": 4},
        "StationaryStart": {"env": make, "policy": None, "limit": None},
        "action_values": {**exact, "discount": None},
        "batch_distance": {"lengths": lengths, "n_steps": 4, "updates": 3},
        "bootstrap": {"lengths": lengths, "episodes": 20, "rng": rng(0), "steps": 5, "level": 0.9, "resamples": 9},
        "check_episodic": exact,
        "classic_gradient": {"process": process, "logits": logits, "discount": 0.9, "policy": None, "score": None},
        "collect_episodes": {
            "environment": "CartPole-v1",
            "policy": "uniform",
            "episodes": 2,
            "seed": 0,
            "backend": "serial",
            "max_episode_steps": 600,
            "out": None,
            "workers": 1,
        },
        "collect_samples": {
            "environment": "CartPole-v1",
            "policy": "uniform",
            "rollouts": 2,
            "times": [3],
            "perturbation": None,
            "backend": "serial",
            "episodes": 1,
            "out": None,
        },
        "compare_strategies": {"lengths": lengths, "tolerance": 0.01, "steps": None, "time_limit": None},
        "coupled_sampling": {**exact, "perturbation": gaussian, "steps": 5, "rng": rng(0)},
        "design_delays": {"lengths": lengths, "window": None, "tolerance": 0.01},
        "diagnose": {
            "environment": "CartPole-v1",
            "policy": "uniform",
            "episodes": 40,
            "tolerance": 0.01,
            "num_envs": 4,
            "n_steps": 4,
            "backend": "serial",
            "max_episodes": 100,
        },
        "diagnose_lengths": {"gymnasium_lengths": [3, 4, 5] * 20, "tolerance": 0.01, "num_envs": 4, "n_steps": 4},
        "distances": {**exact, "steps": 5, "given_not_null": False},
        "evaluate": {
            "environment": "CartPole-v1",
            "policy": "uniform",
            "episodes": 3,
            "backend": "serial",
            "level": 0.9,
            "deterministic": False,
            "steps": None,
        },
        "evaluate with a budget": {
            "environment": "CartPole-v1",
            "policy": "uniform",
            "steps": 60,
            "seconds": None,
            "until": None,
            "num_envs": 2,
            "backend": "serial",
            "level": 0.9,
            "seed": 0,
        },
        "audit_log": {"log": "monitor.csv", "num_envs": None, "window": 100, "memory": None, "level": 0.9, "points": 9},
        "read_episode_log": {"path": "monitor.csv", "num_envs": None},
        "Audit.plot": {"path": "audit.png"},
        "find_drift": {"gymnasium_lengths": [3, 4, 5] * 20, "false_alarms": 0.01, "rng": rng(0)},
        "read_lengths": {"paths": "lengths.txt", "column": None},
        "seen_ages": {
            "observations": np.arange(80.0)[:, None],
            "ages": np.tile(np.arange(1, 9), 10),
            "episodes": np.repeat(np.arange(10), 8),
            "groups": 2,
            "seed": 0,
        },
        "RecordFairStatistics.report": {"level": 0.9},
        "finished_mean": {"lengths": lengths, "steps": 9, "rewards": None, "start": "together", "window": None},
        "gradient_bias": {"process": process, "logits": logits, "discount": 0.9, "policy": None, "score": None},
        "load_lengths": {"path": "lengths.txt", "column": None},
        "marginal_moments": {"sums": episodes.ages, "times": [1, 2], "perturbation": None},
        "marginals": {**exact, "steps": 5},
        "mixing_time": {**exact, "tolerance": 0.01, "given_not_null": False, "max_steps": 1000},
        "perturb": {"process": process, "perturbation": gaussian},
        "phase_distance": {"lengths": lengths, "steps": 5, "perturbation": None},
        "phase_mixing_time": {"lengths": lengths, "tolerance": 0.01, "perturbation": None, "longest": 1000},
        "policy_gradient": {"process": process, "logits": logits, "policy": None, "score": None},
        "pre_roll": {"envs": vector, "delays": [1, 3], "policy": None, "seed": 0},
        "recommend": {"lengths": lengths, "tolerance": 0.01, "num_envs": 4, "n_steps": 2, "updates": 10},
        "renewal_sequence": {"lengths": lengths, "steps": 5, "perturbation": None},
        "renumber": {"ends": [1, 0, 0, 1], "perturbation": gaussian, "rng": rng(0)},
        "sample_path": {**exact, "steps": 5, "rng": rng(0)},
        "softmax_policy": {"logits": logits},
        "steady_state_mean": {"sums": [1.0, 2.0, 3.0], "gymnasium_lengths": [3, 4, 5], "level": 0.9},
        "steady_state_policy_gradient": {"process": process, "logits": logits, "policy": None, "score": None},
        "stream_episode_length": {"ends": [[False, True, False], [True, False, False]], "level": 0.9},
        "total_variation": {"p": [0.5, 0.5], "q": [1.0, 0.0]},
        "train": {
            "environment": "CartPole-v1",
            "settings": steadyrl.Settings(updates=1, num_envs=2, n_steps=4, backend="serial"),
            "policy": None,
            "out": None,
            "resume": False,
        },
        "uniform_delays": {"lengths": lengths, "window": None},
        "uniform_policy": {"process": process},
    }
    for name in (
        "average_episode_length",
        "episode_performance",
        "expected_visits",
        "extend_policy",
        "period",
        "mean_recurrence_times",
        "spectral_gap",
        "stationary_distribution",
        "steady_state_performance",
    ):
        good[name] = exact
    good["state_values"] = good["action_values"]

    def pool() -> Any:
        envs = steadyrl.EnvPoolVectorEnv("CartPole-v1", 2, seed=0, num_threads=1)
        envs.reset()
        return envs

    def updated() -> Any:
        statistics = steadyrl.FairStatistics(2, same_step=True)
        statistics.update([1.0, 1.0], [True, False])
        return statistics

    owners = {
        "Delays": lambda: steadyrl.uniform_delays(lengths),
        "Episodes": lambda: episodes,
        "Samples": lambda: samples,
        "LearningProcess": lambda: process,
        "Perturbation": lambda: gaussian,
        "FairStatistics": updated,
        "PhaseTracker": lambda: steadyrl.PhaseTracker(2, same_step=True),
        "StaggerController": lambda: steadyrl.StaggerController(2, same_step=True, seed=0),
    }

    def recorded() -> Any:
        envs = steadyrl.RecordFairStatistics(vector())
        envs.reset(seed=0)
        envs.step([0, 1])
        return envs

    owners |= {
        "Audit": lambda: steadyrl.audit_log("monitor.csv", points=3),
        "RecordFairStatistics": recorded,
        "StaggeredVectorEnv": lambda: steadyrl.StaggeredVectorEnv(vector(), seed=0),
        "PhaseMonitor": lambda: steadyrl.PhaseMonitor(vector()),
    }
    owners["EnvPoolVectorEnv"] = pool
    elsewhere = {
        "evaluate with a budget": steadyrl.evaluate,
        "find_drift": find_drift,
        "read_episode_log": read_episode_log,
        "read_lengths": read_lengths,
        "seen_ages": seen_ages,
        "ProcessEnv": ProcessEnv,
        "StateSweepEnv": StateSweepEnv,
        "Diagnosis.code_of": diagnosis.code_of,
        "Interval.times": diagnosis.mixing_time.times,
        "Settings.resolved": steadyrl.Settings().resolved,
        "Strategy.lost": diagnosis.recommendation.chosen.lost,
    }

    def begun(env: Any) -> Any:
        env.reset(seed=0)
        return env

    owners |= {"ProcessEnv": lambda: begun(ProcessEnv(process)), "StateSweepEnv": lambda: begun(StateSweepEnv(4))}
    with contextlib.suppress(ImportError):
        import torch

        from steadyrl.integrations.torch import CounterStagger, TorchFairStatistics, TorchStagger
        from steadyrl.integrations.torch.rsl_rl import StaggeredVecEnv, write_delays
        from steadyrl.policies import (
            CategoricalPolicy,
            GaussianPolicy,
            SoftmaxTable,
            TabularPolicy,
            as_module,
            load_module,
            load_policy,
            make_policy,
            random_gaussian_policy,
        )

        def simulator() -> Any:
            counters = torch.zeros(2, dtype=torch.long)
            return types.SimpleNamespace(episode_length_buf=counters, max_episode_length=5, num_envs=2, device="cpu")

        def torch_updated() -> Any:
            statistics = TorchFairStatistics(2)
            statistics.update(torch.ones(2), torch.tensor([True, False]))
            return statistics

        seen, box = observation_codec(make().observation_space), gymnasium.spaces.Box(-1, 1, (2,))
        chooser, gauss = (
            CategoricalPolicy(seen, action_codec(make().action_space)),
            GaussianPolicy(seen, action_codec(box)),
        )
        good["steady_state_gradient"] = {
            "policy": chooser,
            "samples": samples,
            "average_episode_length": 9.0,
            "episode_length_factor": True,
            "baseline": None,
        }
        good["SoftmaxTable"] = {"logits": np.zeros((3, 2))}
        good["SoftmaxTable.log_prob"] = {"observations": np.array([0, 2]), "actions": np.array([1, 0])}
        good["CategoricalPolicy.log_prob"] = {"observations": np.zeros((3, 4)), "actions": np.array([0, 1, 1])}
        good["GaussianPolicy.log_prob"] = {"observations": np.zeros((3, 4)), "actions": np.zeros((3, 2))}
        gauss.save("policy.safetensors")
        codecs = {"observations": seen, "actions": action_codec(box)}
        good["GaussianPolicy"] = {**codecs, "hidden": (8,), "seed": 0, "log_std": 0.0}
        good["CategoricalPolicy"] = {"observations": seen, "actions": action_codec(make().action_space), "seed": 0}
        good["make_policy"] = {**codecs, "hidden": (8,), "seed": 0}
        good["load_policy"] = good["load_module"] = {"path": "policy.safetensors", **codecs}
        good["as_module"] = {"policy": gauss.numpy(), **codecs}
        good["random_gaussian_policy"] = {"observation_size": 4, "action_shape": (2,), "seed": 0}
        for name in ("GaussianPolicy", "CategoricalPolicy"):
            good[f"{name}.act"] = {"observations": np.zeros((3, 4)), "rng": rng(0)}
            good[f"{name}.entropy"] = {"observations": np.zeros((3, 4))}
        good["GaussianPolicy.normalise"] = {"mean": np.zeros(4), "std": np.ones(4), "limit": 5.0}
        good["GaussianPolicy.save"] = {"path": "saved.safetensors"}
        good["TabularPolicy.act"] = {"observations": np.eye(3), "rng": rng(0)}
        elsewhere |= {
            "TabularPolicy": TabularPolicy,
            "as_module": as_module,
            "load_module": load_module,
            "load_policy": load_policy,
            "make_policy": make_policy,
            "random_gaussian_policy": random_gaussian_policy,
        }
        owners["TabularPolicy"] = lambda: TabularPolicy.of(np.full((3, 2), 0.5))
        owners |= {
            "SoftmaxTable": lambda: SoftmaxTable(np.zeros((3, 2))),
            "CategoricalPolicy": lambda: chooser,
            "GaussianPolicy": lambda: GaussianPolicy(seen, action_codec(box)),
        }
        elsewhere |= {
            "SoftmaxTable": SoftmaxTable,
            "CategoricalPolicy": CategoricalPolicy,
            "GaussianPolicy": GaussianPolicy,
            "CounterStagger": CounterStagger,
            "TorchFairStatistics": TorchFairStatistics,
            "TorchStagger": TorchStagger,
        }
        good["TorchFairStatistics"] = {"num_envs": 2, "device": "cpu", "memory": None, "max_age": 9}
        tensors = {"rewards": torch.ones(2), "ended": torch.tensor([True, False]), "cut": torch.tensor([False, False])}
        good["TorchFairStatistics.update"] = tensors
        good["TorchFairStatistics.report"] = {"level": 0.9}
        owners["TorchFairStatistics"] = torch_updated
        good["TorchStagger"] = {"num_envs": 2, "same_step": True, "seed": 0}
        good["TorchStagger.step"] = {"done": torch.tensor([True, False])}
        good["TorchStagger.reset"] = {"mask": torch.tensor([True, False]), "seed": 0}
        owners["TorchStagger"] = lambda: TorchStagger(2, same_step=True, seed=0)
        elsewhere |= {"StaggeredVecEnv": StaggeredVecEnv, "write_delays": write_delays}
        good["CounterStagger"] = {"env": simulator, "counters": "episode_length_buf", "limit": 5, "log_interval": 4}
        ended = torch.tensor([True, False])
        good["CounterStagger.step"] = {"dones": ended, "rewards": torch.ones(2), "terminated": ended}
        owners["CounterStagger"] = lambda: CounterStagger(simulator(), seed=0)
        good["StaggeredVecEnv"] = {"env": simulator, "seed": 0, "log_interval": 4}
        good["write_delays"] = {"env": simulator, "delays": [1, 2], "seed": 0}
    with contextlib.suppress(ImportError):
        from stable_baselines3.common.vec_env import DummyVecEnv

        from steadyrl.integrations.sb3 import (
            FairStatisticsCallback,
            SteadyStateCallback,
            SteadyVecEnv,
            make_steady_vec_env,
        )

        def dummy() -> Any:
            return DummyVecEnv([make, make])

        elsewhere |= {
            "FairStatisticsCallback": FairStatisticsCallback,
            "SteadyStateCallback": SteadyStateCallback,
            "SteadyVecEnv": SteadyVecEnv,
            "make_steady_vec_env": make_steady_vec_env,
        }
        good["make_steady_vec_env"] = {
            "env_id": "CartPole-v1",
            "n_envs": 2,
            "delays": "auto",
            "seed": 0,
            "backend": "dummy",
            "tolerance": 0.01,
            "n_steps": 4,
            "env_kwargs": None,
        }
        good["FairStatisticsCallback"] = {"memory": None, "level": 0.9, "reward_range": None, "max_episode_steps": 9}
        good["SteadyStateCallback"] = {"n_steps": 4, "tolerance": 0.01}
        good["SteadyVecEnv"] = {"venv": dummy, "delays": "auto", "seed": 0, "tolerance": 0.01, "n_steps": 4}
    for name in ("corridor", "nearly_decomposable", "self_loops", "state_sweep", "two_terminals", "wrong_way"):
        wanted = inspect.signature(getattr(gallery, name)).parameters.values()
        good[f"gallery.{name}"] = {parameter.name: parameter.default for parameter in wanted}
    for name in steadyrl.__all__:
        thing = getattr(steadyrl, name)
        if callable(thing) and name not in good and not (inspect.isclass(thing) and issubclass(thing, Exception)):
            good[name] = {}  # results: they take what they are given
    found: dict[str, Target] = {}
    for name, arguments in good.items():
        owner, _, method = name.partition(".")
        if name in elsewhere:
            found[name] = (elsewhere[name], lambda arguments=arguments: dict(arguments))
        elif owner in elsewhere or (
            method and owner != "gallery" and not inspect.ismethod(getattr(getattr(steadyrl, owner), method))
        ):

            def call(owner: str = owner, method: str = method, **given: Any) -> Any:
                if method == "merge":
                    return episodes.merge(given["others"])
                return getattr(owners[owner](), method)(**given)

            found[name] = (call, lambda arguments=arguments: dict(arguments))
        else:
            function = getattr(steadyrl, owner)
            found[name] = (
                getattr(function, method) if method else function,
                lambda arguments=arguments: dict(arguments),
            )
    return found


def made(value: Any) -> Any:
    """Return a good argument: environments are made anew for every call."""
    return value() if getattr(value, "__name__", "") in ("make", "vector", "dummy", "simulator") else value


def parameters(function: Callable[..., Any], good: dict[str, Any]) -> list[str]:
    """Return the names of a function's arguments."""
    names = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    return names if names and names[0] != "owner" else list(good)


LEFT_OUT = {"address", "progress", "step_timeout", "device", "after_update"}
"""Arguments that start other programs, or print."""


def build(generator: random.Random, names: list[str], function: Any, good: dict[str, Any], values: list[Any]) -> Any:
    """Return the arguments of a call, and those of them that are hostile."""
    given = good
    known = [name for name in names if name not in LEFT_OUT]
    if not known:
        return given, {}
    number = generator.choice([1, 1, 1, 2, 2, 3, len(known)]) if good else len(known)
    bad = {name: generator.choice(values) for name in generator.sample(known, min(number, len(known)))}
    return given | bad, bad


def is_large(value: Any, depth: int = 0) -> bool:
    """Return whether an argument asks for something large."""
    if isinstance(value, (int, float)) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0):
        with contextlib.suppress(Exception):
            return abs(value) >= LARGE
    if isinstance(value, (list, tuple, range)) and depth < 2:
        return len(value) >= 10_000 or any(is_large(item, depth + 1) for item in value[:5])
    return getattr(value, "epsilon", 0) not in (None, 0) and getattr(value, "epsilon", 0) > 0.999999


def shown(value: Any) -> str:
    """Return a value in a few words."""
    try:
        text = " ".join(f"{type(value).__name__} {value!r}".split())
    except Exception:
        text = type(value).__name__
    return text if len(text) < 70 else f"{text[:60]}..."


def outcome(function: Callable[..., Any], given: dict[str, Any], bad: dict[str, Any]) -> tuple[str, str]:
    """Make a call, and return how it ended: "value", "error", "long", or "FOUND" with what it was."""
    from steadyrl import SteadyrlError

    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = function(**{name: made(item) for name, item in given.items()})
            with contextlib.suppress(AttributeError):
                value.close()
        return "a value", ""
    except SteadyrlError as error:
        text = str(error)
        if not text.strip() or "\x1b" in text or len(text) > 3000:
            return "FOUND", f"a message of {len(text)} characters: {text[:80]!r}"
        return "an error with a sentence", ""
    except OSError as error:
        paths = {"path", "out", "checkpoint", "policy", "env_or_id", "log"} & set(given)
        return (
            ("an error with a sentence", "") if paths and error.errno else ("FOUND", f"{type(error).__name__}: {error}")
        )
    except TimeLimit:
        whole_training = bad.get("settings", 0) is None  # the default settings of `train`
        asked = whole_training or any(is_large(value) for value in bad.values())
        return ("stopped: a large task", "") if asked else ("FOUND", f"more than {SECONDS:g} s")
    except BaseException as error:
        import traceback

        where = [f for f in traceback.extract_tb(error.__traceback__) if "steadyrl" in f.filename][-1:]
        place = f" [{Path(where[0].filename).name}:{where[0].lineno}]" if where else ""
        return "FOUND", f"{type(error).__name__}: {str(error)[:120]}{place}"


def child(seed: int, start: int, stop: int, log: str, only: str) -> None:
    """Make the calls `start` to `stop`; each is noted before it is made, and how it ended after."""
    things, values = targets(), pool()
    limit_memory(GIGABYTES)
    names = sorted(name for name in things if not only or name in only.split(","))
    sys.stdin = open(os.devnull)  # noqa: SIM115  (until the process ends)
    with open(log, "w", buffering=1) as file:
        for number in range(start, stop):
            generator = random.Random(f"{seed} calls {number}")
            name = names[number % len(names)]
            function, arguments = things[name]
            good = arguments()
            given, bad = build(generator, parameters(function, good), function, good, values)
            words = ", ".join(f"{key}={shown(value)}" for key, value in bad.items())
            file.write(json.dumps([number, name, words]) + "\n")
            how, what = outcome(function, given, bad)
            file.write(json.dumps([how, what]) + "\n")


def attack(trial: Trial, only: str = "") -> None:
    """Fuzz calls: `trial.count` of them."""
    log, start = trial.folder / "log", 0
    seen: set[tuple[str, str]] = set()
    while start < trial.count and not trial.time_is_up():
        command = [sys.executable, __file__, "child", str(trial.seed), str(start), str(trial.count), str(log), only]
        (trial.folder / "here").mkdir(exist_ok=True)
        log.write_text("")
        rest = max(5.0, trial.seconds - trial.elapsed())
        try:
            said = subprocess.run(command, cwd=trial.folder / "here", capture_output=True, text=True, timeout=rest)
            died: int | None = said.returncode
        except subprocess.TimeoutExpired:
            died = None
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        if not lines and died is None:
            return
        if not lines:
            trial.found(f"the calls did not begin: {said.stderr[-2000:]}")
            return
        functions = set()
        for call, end in zip(lines[::2], lines[1::2], strict=False):
            functions.add(call[1])
            trial.tried[OTHERWISE if end[0] == "FOUND" else f"calls that ended in {end[0]}"] += 1
            place = (call[1], end[1].rpartition("[")[2] or end[1])
            if end[0] == "FOUND" and place not in seen:
                seen.add(place)
                trial.found(f"call {call[0]}: {call[1]}({call[2]}): {end[1]}")
        trial.tried["functions, constructors and methods"] = max(
            len(functions), trial.tried["functions, constructors and methods"]
        )
        start = lines[-2 if len(lines) % 2 == 0 else -1][0] + 1
        if len(lines) % 2 and died is not None:
            trial.found(f"call {lines[-1][0]}: {lines[-1][1]}({lines[-1][2]}): the process ended with {died}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6])
    else:
        main("calls", attack, count=10_000, seconds=1500)
