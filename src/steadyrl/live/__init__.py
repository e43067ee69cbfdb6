"""Running environments: their ages, whether they run in lockstep, and which episodes to cut short when.

Everything here sees the ends of episodes and nothing else of an environment: arrays in, arrays out.

- `ages`: the age of each environment, and visits to each age, from the flags that say whose episode ended
- `lockstep`: two tests for lockstep, with a stated rate of false alarms
- `phase`: `PhaseTracker` follows the ages and reports how far they are from the steady state
- `stagger_law`: anytime-optimal staggering as pure functions; `stagger` has `StaggerController`, the shell around them
- `staggering`: designed delays as a schedule of truncations, one for each environment
"""

from steadyrl.live.phase import PhaseReport, PhaseTracker
from steadyrl.live.stagger import StaggerController

__all__ = ["PhaseReport", "PhaseTracker", "StaggerController"]
