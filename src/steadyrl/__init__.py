"""Steady-state analysis of episodic reinforcement learning.

The endless loop of episodes in which an agent learns has one steady state; steadyrl computes it, says when data
is at it, and brings environments to it. Start with `steadyrl check FrozenLake-v1` on the command line, or:

    >>> import steadyrl
    >>> process = steadyrl.LearningProcess.from_gymnasium("FrozenLake-v1")
    >>> policy = steadyrl.uniform_policy(process)
    >>> round(steadyrl.average_episode_length(process, policy), 3)
    8.673
"""

from importlib.metadata import version
from typing import Any

from steadyrl import environments, errors, gallery
from steadyrl.batches import batch_distance
from steadyrl.conditions import EpisodicCheck, check_episodic
from steadyrl.confidence import Interval, LengthsConfidence, bootstrap, steady_state_mean
from steadyrl.delays import Delays, design_delays, uniform_delays
from steadyrl.diagnosis import Diagnosis, diagnose, diagnose_lengths
from steadyrl.errors import (
    AccuracyError,
    CopyLostError,
    DelaysError,
    DiscountError,
    EnvironmentRaisedError,
    EpisodeError,
    EpisodeTooLongError,
    FigureError,
    FileFormatError,
    LengthsError,
    MissingExtraError,
    MixingTimeError,
    NonFiniteError,
    NotEpisodicError,
    PerturbationError,
    PhaseLockWarning,
    PolicyError,
    PoolError,
    ProcessError,
    ResetMaskError,
    RolloutError,
    SteadyrlError,
    StepTimeoutError,
    TrainingError,
    WorkerLostError,
    WrapperError,
)
from steadyrl.gradients import (
    GradientBias,
    classic_gradient,
    gradient_bias,
    policy_gradient,
    steady_state_policy_gradient,
)
from steadyrl.lengthfiles import load_lengths
from steadyrl.mixing import distances, marginals, mixing_time, spectral_gap, total_variation
from steadyrl.moments import MarginalMoments, marginal_moments
from steadyrl.perturbation import (
    CoupledSample,
    Perturbation,
    coupled_sampling,
    perturb,
    renumber,
    sample_path,
)
from steadyrl.phase import PhaseReport, PhaseTracker
from steadyrl.process import LearningProcess
from steadyrl.renewal import EpisodeLengths, phase_distance, phase_mixing_time, renewal_sequence
from steadyrl.rollouts import Episodes, Samples, collect_episodes, collect_samples
from steadyrl.sspg import Settings, SteadyStateGradient, steady_state_gradient, stream_episode_length
from steadyrl.stationary import (
    average_episode_length,
    expected_visits,
    mean_recurrence_times,
    period,
    stationary_distribution,
)
from steadyrl.strategies import Recommendation, Strategy, compare_strategies, recommend
from steadyrl.tabular import extend_policy, softmax_policy, uniform_policy
from steadyrl.values import action_values, episode_performance, state_values, steady_state_performance
from steadyrl.wrappers import (
    EnvPoolVectorEnv,
    PerturbedStarts,
    PhaseMonitor,
    PreRolledStart,
    StaggeredStart,
    StaggeredVectorEnv,
    StationaryStart,
    pre_roll,
)

__version__ = version("steadyrl")

__all__ = [
    "AccuracyError",
    "CopyLostError",
    "CoupledSample",
    "Delays",
    "DelaysError",
    "Diagnosis",
    "DiscountError",
    "EnvPoolVectorEnv",
    "EnvironmentRaisedError",
    "EpisodeError",
    "EpisodeLengths",
    "EpisodeTooLongError",
    "Episodes",
    "EpisodicCheck",
    "FigureError",
    "FileFormatError",
    "GradientBias",
    "Interval",
    "LearningProcess",
    "LengthsConfidence",
    "LengthsError",
    "MarginalMoments",
    "MissingExtraError",
    "MixingTimeError",
    "NonFiniteError",
    "NotEpisodicError",
    "Perturbation",
    "PerturbationError",
    "PerturbedStarts",
    "PhaseLockWarning",
    "PhaseMonitor",
    "PhaseReport",
    "PhaseTracker",
    "PolicyError",
    "PoolError",
    "PreRolledStart",
    "ProcessError",
    "Recommendation",
    "ResetMaskError",
    "RolloutError",
    "Samples",
    "Settings",
    "StaggeredStart",
    "StaggeredVectorEnv",
    "StationaryStart",
    "SteadyStateGradient",
    "SteadyrlError",
    "StepTimeoutError",
    "Strategy",
    "Trained",
    "TrainingError",
    "WorkerLostError",
    "WrapperError",
    "action_values",
    "average_episode_length",
    "batch_distance",
    "bootstrap",
    "check_episodic",
    "classic_gradient",
    "collect_episodes",
    "collect_samples",
    "compare_strategies",
    "coupled_sampling",
    "design_delays",
    "diagnose",
    "diagnose_lengths",
    "distances",
    "environments",
    "episode_performance",
    "errors",
    "evaluate",
    "expected_visits",
    "extend_policy",
    "gallery",
    "gradient_bias",
    "load_lengths",
    "marginal_moments",
    "marginals",
    "mean_recurrence_times",
    "mixing_time",
    "period",
    "perturb",
    "phase_distance",
    "phase_mixing_time",
    "policy_gradient",
    "pre_roll",
    "recommend",
    "renewal_sequence",
    "renumber",
    "sample_path",
    "softmax_policy",
    "spectral_gap",
    "state_values",
    "stationary_distribution",
    "steady_state_gradient",
    "steady_state_mean",
    "steady_state_performance",
    "steady_state_policy_gradient",
    "stream_episode_length",
    "total_variation",
    "train",
    "uniform_delays",
    "uniform_policy",
]


def __getattr__(name: str) -> Any:
    """Load what needs PyTorch when it is first used."""
    if name in ("Trained", "evaluate", "train"):
        from steadyrl import sspg

        return getattr(sspg, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
