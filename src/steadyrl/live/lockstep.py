"""Two tests of whether environments run in lockstep, with a stated rate of false alarms.

At steady state the ages of N environments are N independent draws from P(L >= k) / E[L].

**The batch test** compares the ages in a batch with these shares: the total variation over groups of ages, about N / 4
of them with equal shares. A sample of N shows some distance by chance, the *floor*. For a normal x with mean delta
and standard error s, E|x| is about sqrt(delta^2 + 2 s^2 / pi): squares add. So

    distance = sqrt(max(0, found^2 - floor^2)),

with the floor from environments simulated at steady state (the steps of one environment are not independent). It needs
some dozens of environments.

**The scan test** looks at the ages at one moment, and is the one that has power for few environments. On a circle
on which the stationary ages are uniform (the end of an episode is next to its start), it finds the shortest arc that
holds m of the N ages. By chance, some arc of length x holds m of them with probability at most

    N P(Binomial(N - 1, x) >= m - 1),

since one of the N is the first in the arc. Four environments of the same age in episodes of 200 steps have x = 1/200,
and 4 x^3 is one in two million.

**Many looks.** Look k is made at the level ALARM / (k (k + 1)). These sum to ALARM, so a whole training, however long,
sees a false alarm with probability at most ALARM, whatever the dependence between looks.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, ndtri

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

ALARM = 1e-3
"""Probability of a false alarm in a whole training at steady state."""
RARE = 1e-3
"""Probability with which a batch at steady state exceeds what is reported as noise."""

_CROWD = 0.5  # longest arc that counts: a gap in the ages of many environments is no lockstep
_SIMULATED = 256  # environments whose spread is measured
_DRAWS = 512
_REFRESH = 0.1  # relative change of E[L] after which the floor is computed anew


def level_of_look(look: int) -> float:
    """Return the level of look 1, 2, ...; levels sum to ALARM.

    Example:
        >>> round(sum(level_of_look(k) for k in range(1, 100_000)), 6)
        0.001
    """
    return ALARM / (look * (look + 1))


def scan_p_value(ages: Counts, alive: Array) -> float:
    """Return the p-value of the scan test: how likely ages at steady state crowd together as much as these.

    Args:
        ages: the ages of all environments at one moment, each 1 or more.
        alive: P(L >= k) for k = 1, 2, ...

    Example:
        >>> four_of_one_age = np.array([70, 70, 70, 70])
        >>> bool(scan_p_value(four_of_one_age, np.ones(200)) < 2e-6)
        True
        >>> scan_p_value(np.array([1, 50, 101, 150]), np.ones(200))
        1.0
    """
    count = len(ages)
    edges = np.append(0.0, np.cumsum(alive)) / alive.sum()
    known = np.sort(np.minimum(ages, len(alive)))
    first, behind = edges[known - 1], edges[known]  # whole cells, so that ties are not counted as closer than they are
    first, behind = np.append(first, first + 1), np.append(behind, behind + 1)
    sizes = {m for m in (count, -(-3 * count // 4), -(-count // 2)) if m >= 2}
    p_value = 1.0
    for m in sizes:
        arc = float((behind[m - 1 : m - 1 + count] - first[:count]).min())
        if arc <= _CROWD:
            p_value = min(p_value, len(sizes) * count * float(bdtrc(m - 2, count - 1, arc)))
    return p_value


@cache
def _normals() -> Array:
    return np.random.default_rng(1).standard_normal((_DRAWS, _SIMULATED))


class Floor:
    """Groups of ages, and the distance that a batch of environments at steady state shows by chance."""

    def __init__(self) -> None:
        self.mean = math.nan
        self.floor = self.spread = self.skew = 0.0
        self._group = np.zeros(1, dtype=np.int64)

    def stale(self, mean: float) -> bool:
        """Whether E[L] has changed so much that the floor must be simulated again."""
        return not abs(mean - self.mean) <= _REFRESH * mean

    @classmethod
    def simulated(cls, alive: Array, groups: int, num_envs: int, n_steps: int, memory: float) -> Floor:
        """Simulate the floor of batches of `n_steps`; `memory` is the number of episodes that the shares come from."""
        found = cls()
        found.mean = float(alive.sum())
        share = alive / found.mean
        found._group = np.minimum(((np.cumsum(share) - share / 2) * groups).astype(np.int64), groups - 1)
        share = found._shares(alive, n_steps)
        share -= share.mean(axis=0)
        # Normal samples with the covariance of the shares: neighbouring groups go together in the steps of one copy.
        draws = _normals() @ share
        distances = 0.5 * np.abs(draws).sum(axis=1) * math.sqrt((1 + 1 / memory) / (_SIMULATED * num_envs))
        found.floor, found.spread = float(distances.mean()), float(distances.std())
        found.skew = max(0.0, float((((distances - found.floor) / max(found.spread, 1e-12)) ** 3).mean()))
        return found

    def corrected(self, found: float) -> float:
        """Return the distance without what chance adds to it."""
        return math.sqrt(max(0.0, found**2 - self.floor**2))

    def noise(self, level: float) -> float:
        """Return the corrected distance that chance alone exceeds with this probability."""
        z = -float(ndtri(level))
        z += (z**2 - 1) / 6 * self.skew  # a sum of few parts is skewed, which moves its quantiles (Cornish-Fisher)
        return math.sqrt((self.floor + z * self.spread) ** 2 - self.floor**2)

    def distance(self, visits: Counts, share: Array) -> float:
        """Return the total variation over groups; ages that the shares do not know count as different."""
        inside = visits[1 : len(share) + 1]
        found = np.bincount(self._groups(len(inside)), weights=inside) / visits.sum()
        wanted = np.bincount(self._groups(len(share)), weights=share)
        found = np.append(found, np.zeros(max(0, len(wanted) - len(found))))
        outside = float(visits[len(share) + 1 :].sum() / visits.sum())
        return float(0.5 * (np.abs(found[: len(wanted)] - wanted).sum() + outside))

    def _groups(self, count: int) -> Counts:
        """Return the groups of ages 1, ..., count; ages past those that were grouped belong to the last."""
        known = self._group[:count]
        return np.append(known, np.full(count - len(known), self._group[-1])) if count > len(known) else known

    def _shares(self, alive: Array, n_steps: int) -> Array:
        """Return the shares of the groups in n steps of environments at steady state, one row per environment."""
        rng = np.random.default_rng(0)
        edges = np.cumsum(alive) / alive.sum()
        age = np.searchsorted(edges, (np.arange(_SIMULATED) + rng.random(_SIMULATED)) / _SIMULATED, side="right")
        age = np.minimum(age, len(alive) - 1)
        hazard = np.append(1 - alive[1:] / np.maximum(alive[:-1], 1e-300), 1.0)
        share = np.zeros((_SIMULATED, int(self._group[-1]) + 1))
        row = np.arange(_SIMULATED)
        for _ in range(n_steps):
            share[row, self._group[age]] += 1 / n_steps
            age = np.where(rng.random(_SIMULATED) < hazard[age], 0, age + 1)
        return share
