"""The errors that steadyrl raises on purpose; each is also a ValueError.

A message names the value, says why it matters, and what to do about it.
"""

from __future__ import annotations

from typing import Any

_MOST = 1200  # characters of a message: what was given may have millions


class SteadyrlError(ValueError):
    """Base of every error that steadyrl raises on purpose."""

    def __str__(self) -> str:
        """Return the message, without its middle if it is very long."""
        text = super().__str__()
        return text if len(text) <= _MOST else f"{text[: _MOST // 2]} ... {text[-_MOST // 4 :]}"


class ProcessError(SteadyrlError):
    """The arrays or the environment given do not describe a learning process."""


class PolicyError(SteadyrlError):
    """The policy is not a probability distribution over actions in every state."""


class DiscountError(SteadyrlError):
    """The discount is not a function of the state with values in [0, 1], or values diverge under it."""


class PerturbationError(SteadyrlError):
    """The perturbation is not a distribution of detours at episode start."""


class LengthsError(SteadyrlError):
    """The numbers given are not a distribution, or a sample, of episode lengths."""


class DelaysError(SteadyrlError):
    """The delays, the window or the number of environments cannot be used."""


class StaggerError(SteadyrlError):
    """What a stagger controller was given cannot be used."""


class StatisticsError(SteadyrlError):
    """What fair statistics were given cannot be used, or there is nothing to report yet."""


class NotEpisodicError(SteadyrlError):
    """Definition 1 fails: no terminal states, or episodes that do not end."""


class ToleranceError(SteadyrlError):
    """The tolerance is not a distance: a total variation lies above 0 and is at most 1."""


class MixingTimeError(SteadyrlError):
    """The mixing time was not found within the permitted steps or precision."""


class AccuracyError(SteadyrlError):
    """The process is too stiff and too large for an answer with correct digits."""


class FileFormatError(SteadyrlError):
    """The file is truncated, damaged, or was not written by steadyrl."""


class FigureError(SteadyrlError):
    """The figure cannot be written to this file."""


class MissingExtraError(SteadyrlError):
    """An optional dependency is not installed; the message gives the pip command that installs it."""


class TrainingError(SteadyrlError):
    """Training cannot start or go on: a bad setting or checkpoint, or numbers that are no longer finite."""


class WrapperError(SteadyrlError):
    """A cure cannot be applied to this environment, or the environment broke its contract."""


class CopyLostError(WrapperError):
    """A copy of a vector environment died or raised; `copies` has the numbers of such copies, where they are known."""

    copies: tuple[int, ...] = ()


class PoolError(WrapperError):
    """EnvPool cannot make, reset or step the environments asked for."""


class ResetMaskError(WrapperError, TypeError):
    """The reset mask is not a boolean array with one entry for each copy, at least one of them set."""


class PhaseLockWarning(UserWarning):
    """Environment copies run through their episodes in lockstep."""


class RolloutError(SteadyrlError):
    """Collecting cannot start or go on: a bad environment, option, backend or checkpoint."""


class EpisodeError(RolloutError):
    """An episode could not be finished; the attributes say where, so that it can be replayed.

    Attributes:
        environment: the environment's name.
        block: the number of the block, which with the run's seed determines everything in it.
        episode: the number of the episode (or rollout) in the whole run.
        episode_seed: the seed given to `env.reset(seed=...)`; -1 with EnvPool, which seeds whole pools.
        step: the number of actions taken in the episode when it failed, the failing one included; 0 is the reset.
        actions: these actions, as the policy returned them; None if they were lost in a hang or a crash.
    """

    environment: str = ""
    block: int = -1
    episode: int = -1
    episode_seed: int = -1
    step: int = -1
    actions: Any = None


class EnvironmentRaisedError(EpisodeError):
    """The environment raised an exception in reset or step."""


class NonFiniteError(EpisodeError):
    """The environment returned an observation or a reward that is not a finite number."""


class InvalidStepError(EpisodeError):
    """The environment returned something that is not an observation of its space, a number as reward, or a flag."""


class EpisodeTooLongError(EpisodeError, NotEpisodicError):
    """An episode did not end within max_episode_steps: the finiteness condition is in doubt."""


class StepTimeoutError(EpisodeError):
    """One step of the environment took longer than the step timeout."""


class WorkerLostError(EpisodeError):
    """The process running a block died, again and again, at the same block."""
