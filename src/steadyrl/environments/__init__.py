"""Environments, and copies of them that are stepped together. This is where Gymnasium is first imported.

- `sources`: an environment given as an id, a spec, a function or a learning process, which can be made anywhere
- `process_env`: finite learning processes as Gymnasium environments; `StateSweep-v0`
- `codecs`: converts observations into rows of numbers, and actions into what an environment takes
- `returned`: checks of what an environment returns
- `seeding`: a seed for every episode and a generator for every block, all from one number
- `lanes`: copies stepped together, each an endless loop of episodes
"""

from steadyrl.environments.process_env import ProcessEnv, StateSweepEnv

__all__ = ["ProcessEnv", "StateSweepEnv"]
