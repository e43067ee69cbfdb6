"""torch stacks: staggering, monitor and fair statistics where the tensors are.

- `stagger`: `TorchStagger` decides whose episode is truncated, beside tensors on any device
- `statistics`: `TorchFairStatistics` has the mean return and length of all episodes, running ones included
- `counters`: `CounterStagger` truncates through the step counters of a simulator
- `rsl_rl`: `StaggeredVecEnv` does so for environments of its contract; `write_delays` writes the counters once
- `skrl`: `StaggeredWrapper` does so beneath skrl's trainers
- `torchrl`: `StaggerTransform` marks copies of a batched environment as truncated; TorchRL resets them
"""

from steadyrl.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError('this needs PyTorch; install it with: pip install "steadyrl[train]"') from error

from steadyrl.integrations.torch.counters import CounterStagger
from steadyrl.integrations.torch.stagger import TorchStagger
from steadyrl.integrations.torch.statistics import TorchFairStatistics

__all__ = ["CounterStagger", "TorchFairStatistics", "TorchStagger"]
