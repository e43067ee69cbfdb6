"""Running environments: their ages, whether they run in lockstep, which episodes to cut short when, and fair means.

Everything here sees the rewards and ends of episodes and nothing else of an environment: arrays in, arrays out.

- `ages`: the age of each environment, and visits to each age, from the flags that say whose episode ended
- `lockstep`: two tests for lockstep, with a stated rate of false alarms
- `phase`: `PhaseTracker` follows the ages and reports how far they are from the steady state
- `array_library`: what numpy, PyTorch and JAX have in common, and the few functions that the standard lacks
- `stagger_law`: anytime-optimal staggering as pure functions: who is truncated when; `stagger_memory` has its state and
  what it knows of lengths, `stagger_controller` has `StaggerController`, the shell around them
- `designed_staggering`: designed delays as a schedule of truncations, one for each environment
- `fair_law`: mean return, length and success of all episodes, running ones included, as pure functions;
  `fair_statistics` has `FairStatistics`, the shell around them, and `fair_report` its report with intervals
- `states`: states of these laws as arrays, checked before a law goes on from them
"""

from steadyrl.live.fair_report import FairReport
from steadyrl.live.fair_statistics import FairStatistics
from steadyrl.live.phase import PhaseReport, PhaseTracker
from steadyrl.live.stagger_controller import StaggerController

__all__ = ["FairReport", "FairStatistics", "PhaseReport", "PhaseTracker", "StaggerController"]
