"""SSPG: train with the steady-state policy gradient (Theorem 5)."""

from typing import Any

from steadyrl.sspg.estimator import SteadyStateGradient, steady_state_gradient
from steadyrl.sspg.settings import Settings
from steadyrl.sspg.streams import stream_episode_length

__all__ = [
    "Settings",
    "SteadyStateGradient",
    "Trained",
    "evaluate",
    "steady_state_gradient",
    "stream_episode_length",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load what needs PyTorch when it is first used."""
    if name in ("train", "Trained"):
        from steadyrl.sspg import training

        return getattr(training, name)
    if name == "evaluate":
        from steadyrl.sspg.evaluation import evaluate

        return evaluate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
