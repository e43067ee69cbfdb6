"""R-hat and effective sample size of parallel environments, by ArviZ: a second opinion on a diagnosis.

They test whether chains forget where each of them started. Environments in lockstep all start alike, so R-hat is near
1 for them too: it can raise doubts about a diagnosis, but never overrule it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.errors import MissingExtraError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Convergence:
    """The largest R-hat and the smallest effective sample size over all observed values."""

    r_hat: float
    r_hat_dimension: int
    effective_samples: float
    effective_samples_dimension: int
    samples: int
    """Number of environments x steps, with which the effective sample size is to be compared."""


def convergence(streams: Array) -> Convergence | None:
    """Return rank-normalised R-hat and bulk effective sample size of streams [num_envs, steps, d].

    The result is None if no observed value varies, or streams are too short.

    Raises:
        MissingExtraError: If ArviZ is not installed.
    """
    arviz = _arviz()
    varying = np.flatnonzero(np.ptp(streams, axis=(0, 1)) > 0)
    if not len(varying) or streams.shape[1] < 8:
        return None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        r_hats = np.array([float(arviz.rhat(streams[:, :, j])) for j in varying])
        sizes = np.array([float(arviz.ess(streams[:, :, j])) for j in varying])
    if np.isnan(r_hats).all() or np.isnan(sizes).all():
        return None
    worst, least = int(np.nanargmax(r_hats)), int(np.nanargmin(sizes))
    return Convergence(
        float(r_hats[worst]),
        int(varying[worst]),
        float(sizes[least]),
        int(varying[least]),
        int(streams.shape[0] * streams.shape[1]),
    )


def _arviz() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import arviz
    except ImportError as error:
        raise MissingExtraError(
            'R-hat and effective sample size need ArviZ, which is not installed; pip install "steadyrl[diagnose]"'
        ) from error
    return arviz
