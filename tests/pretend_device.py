"""Tensors that say they are on a device other than the CPU, and refuse whatever would have to wait for it.

There is no accelerator on the machines that run the tests. `Elsewhere` computes on the CPU, so values can be compared;
its `device` is cuda:0, so code takes the way that it takes there; and every operation whose result the host would have
to see (`bool`, `item`, `nonzero`, a boolean index, a copy to the CPU) raises `WaitedError`. An operation on tensors of
both devices raises `MixedError`, as a real device does.
"""

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda:0")
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "allclose", "bincount"}
_WAITING |= {"_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"}
_MOVING = {"to", "copy_"}  # what brings tensors from the CPU to a device


class WaitedError(AssertionError):
    """The host would have waited for the device."""


class MixedError(AssertionError):
    """Tensors of two devices in one operation."""


def _leaves(values):
    """Yield what is in nested tuples and lists."""
    for value in values:
        yield from _leaves(value) if isinstance(value, tuple | list) else [value]


class Elsewhere(torch.Tensor):
    """A tensor that says it is on `DEVICE`."""

    allowed = False
    """Whether to wait is allowed for the moment."""
    operations = 0
    """Operations on the device so far."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name, given = getattr(func, "__name__", ""), (*args, *(kwargs or {}).values())
        if name == "__get__" and getattr(func, "__self__", None) is torch.Tensor.device:
            return DEVICE
        if any(isinstance(x, torch.Tensor) and not isinstance(x, cls) for x in _leaves(given)) and name not in _MOVING:
            raise MixedError(f"{name} takes a tensor on {DEVICE} and one on the CPU")
        copies = name in ("cpu", "numpy", "tolist", "__array__")
        copies = copies or any(isinstance(x, str | torch.device) and str(x) == "cpu" for x in given)
        if copies and not cls.allowed:
            raise WaitedError(f"{name} copies to the host")
        if copies:
            return func(here(args[0]), *args[1:], **(kwargs or {}))
        with _Watching():
            return super().__torch_function__(func, types, args, kwargs)


class _Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._overloadpacket.__name__
        by_flags = name in ("index", "index_put_", "index_put") and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        )
        if (name in _WAITING or by_flags) and not Elsewhere.allowed:
            raise WaitedError(f"{func} waits for the device")
        Elsewhere.operations += 1
        return func(*args, **(kwargs or {}))


class _Factories(TorchFunctionMode):
    """Makes new tensors that are asked for on `DEVICE`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            del kwargs["device"]
            return func(*args, **kwargs).as_subclass(Elsewhere)
        return func(*args, **kwargs)


def pretend_device():
    """Let `device="cuda:0"` give tensors of `Elsewhere`, within a with statement."""
    return _Factories()


@contextmanager
def waiting_allowed():
    """Let reports read from the device."""
    Elsewhere.allowed = True
    try:
        yield
    finally:
        Elsewhere.allowed = False


def elsewhere(tensor):
    """Return a tensor as one on `DEVICE`."""
    return tensor.as_subclass(Elsewhere)


def here(tensor):
    """Return the plain tensor with the values of one on `DEVICE`."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)
