"""EnvPool: many environments stepped in C++ threads. All code that uses it is here.

- `twins`: whether EnvPool has the same environment as Gymnasium
- `pool`: a pool with Gymnasium's spaces, dtypes, seeds and ends
- `vector_env`: `EnvPoolVectorEnv`, for Gymnasium
- `sb3_vec_env`: `EnvPoolVecEnv`, for Stable-Baselines3
- `lanes`: collecting episodes
"""

from steadyrl.integrations.envpool.vector_env import EnvPoolVectorEnv

__all__ = ["EnvPoolVectorEnv"]
