"""Convolution by transforms, and a recursive filter.

scipy.signal has both, but importing it takes longer than all the rest of steadyrl together, so the transforms are used
directly and the filter is imported where it is called.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Array = NDArray[np.float64]


def fftconvolve(a: Array, b: Array) -> Array:
    """Return sum_j a(j) b(i - j), for i = 0, ..., len(a) + len(b) - 2, along the first axis."""
    if not len(a) or not len(b):
        return np.zeros((0, *b.shape[1:]))
    size = len(a) + len(b) - 1
    fast = fft.next_fast_len(size, real=True)
    found: Array = fft.irfft(fft.rfft(a, fast, axis=0) * fft.rfft(b, fast, axis=0), fast, axis=0)[:size]
    return found


def recursion(coefficients: Array, impulse: Array) -> Array:
    """Return y with sum_k coefficients(k) y(t - k) = impulse(t), coefficients(0) = 1."""
    from scipy.signal import lfilter

    found: Array = lfilter([1.0], coefficients, impulse)
    return found
