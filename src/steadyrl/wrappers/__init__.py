"""The cures: wrappers that bring live environments to steady state, one a module."""

from steadyrl.wrappers.envpool_vector import EnvPoolVectorEnv
from steadyrl.wrappers.perturbed_starts import PerturbedStarts
from steadyrl.wrappers.phase_monitor import PhaseMonitor
from steadyrl.wrappers.pre_roll import pre_roll
from steadyrl.wrappers.pre_rolled_start import PreRolledStart
from steadyrl.wrappers.staggered_start import StaggeredStart
from steadyrl.wrappers.staggered_vector_env import StaggeredVectorEnv
from steadyrl.wrappers.stationary_start import StationaryStart

__all__ = [
    "EnvPoolVectorEnv",
    "PerturbedStarts",
    "PhaseMonitor",
    "PreRolledStart",
    "StaggeredStart",
    "StaggeredVectorEnv",
    "StationaryStart",
    "pre_roll",
]
