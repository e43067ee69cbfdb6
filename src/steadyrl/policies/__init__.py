"""Policies that act and can be trained, and the files that hold them.

- `networks`: the policy protocol, uniform actions, and tanh networks in numpy
- `tables`: policies [S, A] of finite processes
- `foreign`: policies of Stable-Baselines3, of torch modules and of functions
- `choosing`: turns what a user gives (a name, a file, an array, an object) into a policy
- `files`: policy files; `tensors` reads and writes them with the safetensors library
- `modules`: the same policies with gradients, in PyTorch, which is imported when they are first used
"""

from typing import TYPE_CHECKING, Any

from steadyrl.errors import MissingExtraError
from steadyrl.policies.files import load_policy
from steadyrl.policies.networks import NetworkPolicy, Normalisation, Policy, UniformPolicy, random_gaussian_policy
from steadyrl.policies.tables import TabularPolicy

if TYPE_CHECKING:
    from steadyrl.policies.modules import (
        CategoricalPolicy,
        GaussianPolicy,
        NetworkModule,
        SoftmaxTable,
        as_module,
        load_module,
        make_policy,
    )

__all__ = [
    "CategoricalPolicy",
    "GaussianPolicy",
    "NetworkModule",
    "NetworkPolicy",
    "Normalisation",
    "Policy",
    "SoftmaxTable",
    "TabularPolicy",
    "UniformPolicy",
    "as_module",
    "load_module",
    "load_policy",
    "make_policy",
    "random_gaussian_policy",
]

_WITH_PYTORCH = (
    "CategoricalPolicy",
    "GaussianPolicy",
    "NetworkModule",
    "SoftmaxTable",
    "as_module",
    "load_module",
    "make_policy",
)


def __getattr__(name: str) -> Any:
    """Import PyTorch when a policy with gradients is first asked for."""
    if name in _WITH_PYTORCH:
        try:
            from steadyrl.policies import modules
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f'{name} needs PyTorch, which is not installed: pip install "steadyrl[train]"'
            ) from error
        return getattr(modules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
