"""torch stacks: staggering and monitor where the tensors are.

- `stagger`: `TorchStagger` decides whose episode is truncated, beside tensors on any device
- `rsl_rl`: `StaggeredVecEnv` truncates through the environment's own counters; `write_delays` writes them once
"""

from steadyrl.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError('this needs PyTorch; install it with: pip install "steadyrl[train]"') from error

from steadyrl.integrations.torch.stagger import TorchStagger

__all__ = ["TorchStagger"]
