"""torch stacks: staggering, monitor and fair statistics where the tensors are.

- `stagger`: `TorchStagger` decides whose episode is truncated, beside tensors on any device
"""

from steadyrl.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError('this needs PyTorch; install it with: pip install "steadyrl[train]"') from error

from steadyrl.integrations.torch.stagger import TorchStagger

__all__ = ["TorchStagger"]
