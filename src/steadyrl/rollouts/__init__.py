"""Rollouts: complete episodes and steady-state samples from real environments, reproducible to the byte.

A run is a task cut into blocks; a block depends on (environment, policy, seed, index) alone, so its bytes are the same
whoever runs it, wherever, and however often.

- `collect`: `collect_episodes`, `collect_samples`
- `running`: runs the blocks of a plan by its backend, joins them in order, and keeps what is finished on disk
- `planning`: checks the options, chooses a backend, and records what determines the data
- `commands`: the command, or the Python call, that makes the data again
- `blocks`: the unit of work; `engine` is the loop inside a block; `schedule` says which block is next
- `episodes`, `samples`: the results, and the collectors of one block of them; `files` saves the results
- `processes` and `worker`: blocks in worker processes; `ray_tasks`: blocks on a Ray cluster
- `checkpoints`: finished blocks on disk, so that an interrupted run can be resumed
- `repeatability`: whether an environment gives the same episode again for the same seed
- `jumping`: rollouts of an environment whose episodes are all the same
"""

from steadyrl.rollouts.blocks import Skipped
from steadyrl.rollouts.collect import collect_episodes, collect_samples
from steadyrl.rollouts.episodes import Episodes, Trajectories
from steadyrl.rollouts.samples import Samples

__all__ = ["Episodes", "Samples", "Skipped", "Trajectories", "collect_episodes", "collect_samples"]
