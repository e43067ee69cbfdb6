"""The errors that steadyrl raises on purpose; each is also a ValueError.

A message names the value, says why it matters, and what to do about it.
"""

from __future__ import annotations


class SteadyrlError(ValueError):
    """Base of every error that steadyrl raises on purpose."""


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


class NotEpisodicError(SteadyrlError):
    """Definition 1 fails: no terminal states, or episodes that do not end."""


class MixingTimeError(SteadyrlError):
    """The mixing time was not found within the permitted steps or precision."""


class AccuracyError(SteadyrlError):
    """The process is too stiff and too large for an answer with correct digits."""


class FileFormatError(SteadyrlError):
    """The file is truncated, damaged, or was not written by steadyrl."""


class FigureError(SteadyrlError):
    """The picture cannot be drawn under this name."""


class MissingExtraError(SteadyrlError):
    """An optional dependency is not installed; the message has the pip line."""
