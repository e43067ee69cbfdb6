"""Wrappers for Gymnasium that bring running environments to steady state, one per module.

For a vector environment:

- `staggered_vector_env`: `StaggeredVectorEnv` staggers episodes by early truncations; nothing is thrown away
- `phase_monitor`: `PhaseMonitor` only watches, and warns about lockstep
- `record_fair_statistics`: `RecordFairStatistics` keeps unbiased means of return, length and success
- `pre_roll`: a warm-up with staggered offsets, so that the first batch is fair

For a single environment: `perturbed_starts` (the paper's perturbation), `staggered_start`, `pre_rolled_start`,
`stationary_start`.

Shared: `vectors` (autoreset modes, seeds, infos), `partial_resets` (restarting single environments), `lost_copies`
(which environment failed), `rows` (batched observations), `acting` (policies of any kind as one function), `arguments`
(constructor arguments as JSON).
"""

from steadyrl.wrappers.perturbed_starts import PerturbedStarts
from steadyrl.wrappers.phase_monitor import PhaseMonitor
from steadyrl.wrappers.pre_roll import pre_roll
from steadyrl.wrappers.pre_rolled_start import PreRolledStart
from steadyrl.wrappers.record_fair_statistics import RecordFairStatistics
from steadyrl.wrappers.staggered_start import StaggeredStart
from steadyrl.wrappers.staggered_vector_env import StaggeredVectorEnv
from steadyrl.wrappers.stationary_start import StationaryStart

__all__ = [
    "PerturbedStarts",
    "PhaseMonitor",
    "PreRolledStart",
    "RecordFairStatistics",
    "StaggeredStart",
    "StaggeredVectorEnv",
    "StationaryStart",
    "pre_roll",
]
