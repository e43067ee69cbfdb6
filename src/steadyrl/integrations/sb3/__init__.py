"""Stable-Baselines3: vector environments at steady state, and a callback that says whether batches are.

    env = make_steady_vec_env("Hopper-v5", n_envs=256)
    PPO("MlpPolicy", env, n_steps=16).learn(1_000_000, callback=SteadyStateCallback())

Resets happen within the step that ends an episode, so terminal states are not in the stream, and no null
state ever is: copies are brought to steady state by cutting each one's episode short once, as a truncation.
"""

from steadyrl.errors import MissingExtraError

try:
    import stable_baselines3  # noqa: F401
except ImportError as error:
    raise MissingExtraError('this needs Stable-Baselines3; install it with: pip install "steadyrl[sb3]"') from error

from steadyrl.integrations.envpool.sb3_vec_env import EnvPoolVecEnv
from steadyrl.integrations.sb3.callback import SteadyStateCallback
from steadyrl.integrations.sb3.make_vec_env import make_steady_vec_env
from steadyrl.integrations.sb3.steady_vec_env import SteadyVecEnv

__all__ = ["EnvPoolVecEnv", "SteadyStateCallback", "SteadyVecEnv", "make_steady_vec_env"]
