"""Running copies of an environment: their ages, whether they are in step, and when to cut whose episode short.

Everything here sees the ends of episodes and nothing else of an environment: arrays in, arrays out.

- `phase`: `PhaseTracker` follows the ages and reports how far they are from the steady state
- `staggering`: decides which copies are cut, so that the ages come to steady state and stay there
"""

from steadyrl.live.phase import PhaseReport, PhaseTracker

__all__ = ["PhaseReport", "PhaseTracker"]
