"""Rollouts: episodes and steady-state samples from real environments, reproducible to the byte."""

from steadyrl.rollouts.blocks import Skipped
from steadyrl.rollouts.collect import collect_episodes, collect_samples
from steadyrl.rollouts.episodes import AgeSums, Episodes, Trajectories
from steadyrl.rollouts.policies import NetworkPolicy, TabularPolicy, UniformPolicy, random_gaussian_policy
from steadyrl.rollouts.samples import Samples

__all__ = [
    "AgeSums",
    "Episodes",
    "NetworkPolicy",
    "Samples",
    "Skipped",
    "TabularPolicy",
    "Trajectories",
    "UniformPolicy",
    "collect_episodes",
    "collect_samples",
    "random_gaussian_policy",
]
