"""Rollouts: complete episodes and steady-state samples from real environments, reproducible to the byte.

A run is a task cut into blocks; a block depends on (environment, policy, seed, index) alone, so it gives the same bytes
whoever runs it, wherever and however often.

- `collect`: `collect_episodes`, `collect_samples`; `planning` checks what was asked for and chooses a backend
- `blocks`: the unit of work; `engine` is the loop inside a block; `schedule` says which block is next
- `episodes`, `samples`: what comes back, and how one block of it is collected; `files` saves it
- `processes` and `worker`: blocks in worker processes; `ray_tasks`: blocks on a Ray cluster
- `checkpoints`: finished blocks on disk, so that an interrupted run can go on
- `jumping`: rollouts of an environment whose every episode is the same
"""

from steadyrl.rollouts.blocks import Skipped
from steadyrl.rollouts.collect import collect_episodes, collect_samples
from steadyrl.rollouts.episodes import Episodes, Trajectories
from steadyrl.rollouts.samples import Samples

__all__ = ["Episodes", "Samples", "Skipped", "Trajectories", "collect_episodes", "collect_samples"]
