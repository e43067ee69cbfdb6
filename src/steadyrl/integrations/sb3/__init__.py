"""Stable-Baselines3: vector environments with staggered episodes, and a callback that logs whether batches are fair.

    env = make_steady_vec_env("Hopper-v5", n_envs=256)
    PPO("MlpPolicy", env, n_steps=16).learn(1_000_000, callback=SteadyStateCallback())

Stable-Baselines3 resets environments within the step that ends an episode, so terminal states are not in the stream.
Episodes are staggered by early truncations.

- `steady_vec_env`: `SteadyVecEnv` staggers the episodes of a bare VecEnv
- `make_vec_env`: `make_steady_vec_env` makes such a VecEnv in one line
- `callback`: `SteadyStateCallback` logs whether environments run in lockstep, and warns
- `fair_callback`: `FairStatisticsCallback` logs mean return and length of all episodes, running ones included
"""

from steadyrl.errors import MissingExtraError

try:
    import stable_baselines3  # noqa: F401
except ImportError as error:
    raise MissingExtraError('this needs Stable-Baselines3; install it with: pip install "steadyrl[sb3]"') from error

from steadyrl.integrations.envpool.sb3_vec_env import EnvPoolVecEnv
from steadyrl.integrations.sb3.callback import SteadyStateCallback
from steadyrl.integrations.sb3.fair_callback import FairStatisticsCallback
from steadyrl.integrations.sb3.make_vec_env import make_steady_vec_env
from steadyrl.integrations.sb3.steady_vec_env import SteadyVecEnv

__all__ = ["EnvPoolVecEnv", "FairStatisticsCallback", "SteadyStateCallback", "SteadyVecEnv", "make_steady_vec_env"]
