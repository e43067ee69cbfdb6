"""Where environments come from, and copies of them stepped together. This is where Gymnasium enters.

- `sources`: a Gymnasium id, a spec, a factory or a learning process as something that can be made anywhere
- `process_env`: finite learning processes as Gymnasium environments; `StateSweep-v0`
- `codecs`: observations as rows of numbers, actions as what an environment takes
- `seeding`: every episode its own seed, every block its own generator, all from one number
- `lanes`: copies stepped together, each an endless loop of episodes
"""

from steadyrl.environments.process_env import ProcessEnv, StateSweepEnv

__all__ = ["ProcessEnv", "StateSweepEnv"]
