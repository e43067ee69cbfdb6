"""SSPG: train with the steady-state policy gradient (Theorem 5), and evaluate policies.

- `settings`: all settings of a run, which are also the options of `steadyrl train`
- `training`: `train`, the loop around the updates, and the files of a run
- `update`: one update from top to bottom: batch, returns, policy step, critic epochs, normalisation
- `natural`: the natural gradient, the policy's optimiser for continuous actions
- `batch`: what a batch is, and who draws it: `online` (environments that never stop) or `fresh` (new rollouts)
- `stream`, `vector_envs`: the environments of an online run, and how a resumed run repeats them
- `returns`: lambda-returns (GAE without a discount)
- `recent_episodes`: E[T] and rewards of a policy that learns, from running episodes
- `critic`, `measured_baseline`: the value function, a network around a line that is measured
- `normaliser`: running mean and deviation of observations
- `checkpoints`, `interrupts`, `reporting`: resuming, signals, progress and TensorBoard
- `estimator`: `steady_state_gradient`, the gradient of given samples, without training
- `streams`: `stream_episode_length`, E[T] of streams that are cut off anywhere
- `evaluation`, `video`: `evaluate`, complete episodes of a policy, and a video of one
- `budgets`: evaluation within a number of steps or seconds, or until the interval is narrow, without bias
"""

from typing import Any

from steadyrl.sspg.estimator import SteadyStateGradient, steady_state_gradient
from steadyrl.sspg.settings import Settings
from steadyrl.sspg.streams import stream_episode_length

__all__ = [
    "Settings",
    "SteadyStateGradient",
    "Trained",
    "TrainingState",
    "evaluate",
    "steady_state_gradient",
    "stream_episode_length",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is first used."""
    if name in ("train", "Trained", "TrainingState"):
        try:
            from steadyrl.sspg import training
        except ModuleNotFoundError as error:
            from steadyrl.errors import MissingExtraError

            if error.name is None or error.name.split(".")[0] not in ("torch", "safetensors"):
                raise
            raise MissingExtraError("training needs PyTorch; install it with: pip install 'steadyrl[train]'") from error
        return getattr(training, name)
    if name == "evaluate":
        from steadyrl.sspg.evaluation import evaluate

        return evaluate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
