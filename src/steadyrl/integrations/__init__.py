"""steadyrl inside other libraries.

- `envpool`: EnvPool's pools as vector environments of Gymnasium and Stable-Baselines3, and as lanes for collecting
- `sb3`: Stable-Baselines3: staggered VecEnvs, and a callback that logs whether batches are at steady state
- `torch`: torch's stacks (rsl_rl, TorchRL, skrl): staggering and monitor where the tensors are
"""
