"""Seeds of a run: every episode has its own seed and every block its own generator, all derived from one number.

A block's randomness depends on (seed, block index) alone. Episode seeds are a permutation of the 32-bit numbers
applied to the episode's number in the run, so no two episodes of a run share one: with independent draws, a run of
ten million would start more than ten thousand pairs of twins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steadyrl.errors import RolloutError

_POLICY, _KEYS, _NOISE = 0, 1, 2
"""First spawn key of the three streams of a run: initial policy weights, episode seeds, a block's noise."""


def policy_generator(seed: int) -> np.random.Generator:
    """Return the generator of a random policy's weights."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_POLICY,)))


def block_generator(seed: int, block: int) -> np.random.Generator:
    """Return the generator of a block, which is used for policy noise and detours only."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_NOISE, block)))


def episode_seeds(seed: int, first: int, count: int) -> NDArray[np.uint32]:
    """Return the seeds of episodes first, ..., first + count - 1; all of a run differ.

    Example:
        >>> len(set(episode_seeds(0, 0, 1000).tolist()))
        1000
    """
    if first + count > 2**32:
        raise RolloutError(f"a run has at most 2**32 episodes; {first + count} were asked for; use several seeds")
    keys = np.random.SeedSequence(seed, spawn_key=(_KEYS,)).generate_state(2)
    numbers = np.arange(first, first + count, dtype=np.uint64).astype(np.uint32)
    return _mix(_mix(numbers ^ keys[0]) + keys[1])


def _mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A bijection of the 32-bit numbers: xor-shifts and odd multipliers, each invertible."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    mixed: NDArray[np.uint32] = x ^ (x >> np.uint32(16))
    return mixed
