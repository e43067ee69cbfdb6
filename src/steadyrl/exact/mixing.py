"""How the state's distribution approaches the steady state, step by step.

    rho^(t+1) = rho^(t) M_pi,    distance(t) = TV(rho^(t), rho)

For the process as given the distance never increases, so the mixing time is where it first falls below the
tolerance. It never does where the process is periodic: all mass then moves through the d cyclic classes
together, and the distance stays at 1 - 1/d or above.

With a time limit the state carries its age, the steps since the episode's start, and the distance follows from the
episode lengths alone (the renewal view): rho^(t)(s at age k) = v(t - k) P(at age k in s), where v(t) is the
probability that an episode ends at t.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import ArpackNoConvergence, eigs

from steadyrl.common.checks import as_distribution, as_steps, check_flag, check_tolerance, whole_number
from steadyrl.errors import MixingTimeError, SteadyrlError
from steadyrl.exact import time_limits
from steadyrl.exact.chain import EpisodeChain, episode_chain, induced_chain
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.stationary import cyclic_classes, period, visits_of
from steadyrl.numerics.powers import Powers

Array = NDArray[np.float64]

_DENSE = 400  # states up to which powers of M_pi are cheap
_PATIENCE = 10_000  # steps to look at one by one before powers of M_pi are used
_BLOCK = 1 << 22  # entries of a block of marginals
_RESTARTS = 200  # of Arnoldi iteration; by default they grow with the number of states, and time with its square


def total_variation(p: ArrayLike, q: ArrayLike) -> float:
    """Return half the sum of |p - q|, the largest difference in the probability of any event.

    Example:
        >>> total_variation([0.5, 0.5, 0.0], [0.5, 0.25, 0.25])
        0.25
    """
    one, other = as_distribution("p", p, SteadyrlError), as_distribution("q", q, SteadyrlError)
    if one.shape != other.shape:
        raise SteadyrlError(
            f"the distributions have shapes {one.shape} and {other.shape}; they must be over the same states"
        )
    return float(0.5 * np.abs(one - other).sum())


def marginals(process: LearningProcess, policy: ArrayLike, steps: int) -> Array:
    """Return rho^(0), ..., rho^(steps) as rows [steps + 1, S], from the initial distribution on.

    Example:
        >>> from steadyrl import gallery
        >>> marginals(*gallery.state_sweep(3), steps=2).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    steps = as_steps(steps, MixingTimeError)
    forward = induced_chain(process, policy).T.tocsr()
    try:
        result = np.empty((steps + 1, process.n_states))
    except (MemoryError, ValueError) as error:
        raise MixingTimeError(
            f"the distributions of {process.n_states} states at {steps} times do not fit into memory; ask for fewer"
        ) from error
    result[0] = process.initial
    for t in range(steps):
        result[t + 1] = forward @ result[t]
    return result


def distances(process: LearningProcess, policy: ArrayLike, steps: int, *, given_not_null: bool = False) -> Array:
    """Return TV(rho^(t), rho) for t = 0, ..., steps.

    Args:
        process: the learning process.
        policy: probabilities [S, A] of the actions in each state.
        steps: the last time step to compute.
        given_not_null: for a perturbed process, whether to compare the distributions given that the state is not null,
            which is how perturbed data is used.
    """
    steps = as_steps(steps, MixingTimeError)
    blocks, found = _Distances(episode_chain(process, policy), given_not_null).blocks(), 0
    result: list[Array] = []
    while found <= steps:
        distance, _ = next(blocks)
        result.append(distance)
        found += len(distance)
    return np.concatenate(result)[: steps + 1]


def mixing_time(
    process: LearningProcess,
    policy: ArrayLike,
    tolerance: float = 0.01,
    *,
    given_not_null: bool = False,
    max_steps: int = 10_000_000,
) -> float:
    """Return the first time from which TV(rho^(t), rho) stays below the tolerance; inf if there is none.

    Args:
        process: the learning process.
        policy: probabilities [S, A] of the actions in each state.
        tolerance: the total variation below which the process counts as mixed, above 0 and at most 1.
        given_not_null: for a perturbed process, whether to compare rho^(t) and rho given that the state is not null,
            which is how perturbed data is used. That distance may rise again; the time returned is after it last does.
        max_steps: the number of steps after which to give up. Processes of up to 400 states have no such limit: powers
            of M_pi reach any number of steps.

    Raises:
        MixingTimeError: if the distance is still above the tolerance after max_steps.
        NotEpisodicError: if, under this policy, episodes do not end.

    Example:
        >>> from steadyrl import gallery
        >>> mixing_time(*gallery.state_sweep(5))
        inf
    """
    tolerance = check_tolerance(tolerance)
    max_steps = whole_number("max_steps", max_steps, MixingTimeError, least=0)
    d = period(process, policy)
    stream = _Distances(episode_chain(process, policy), given_not_null)
    if d > 1 and given_not_null and process.null is not None:
        return _periodic_mixing_time(stream, tolerance, max_steps)
    if tolerance <= 1 - 1 / d:
        return math.inf
    above, t = -1, 0
    for distance, later in stream.blocks():
        certain = np.flatnonzero(later < tolerance)
        seen = distance[: int(certain[0]) + 1] if len(certain) else distance
        high = np.flatnonzero(seen >= tolerance)
        above = t + int(high[-1]) if len(high) else above
        if len(certain):
            return above + 1
        t += len(distance)
        if stream.powers is not None and t > _PATIENCE:
            return _far_ahead(stream, tolerance)
        if t > max_steps:
            break
    raise MixingTimeError(
        f"the distance to the steady state is still {distance[-1]:.3g} after {t - 1} steps, above the tolerance "
        f"{tolerance}; raise max_steps, or perturb the process, which brings it down within a few episodes"
    )


def spectral_gap(process: LearningProcess, policy: ArrayLike) -> float:
    """Return 1 - |second largest eigenvalue| of M_pi among reachable states: 0 where periodic.

    The distance falls at the rate (1 - gap)^t in the long run. Up to 2,000 states all eigenvalues are computed;
    beyond that the gap is an estimate by Arnoldi iteration. The eigenvalues of chains with long deterministic stretches
    are ill-conditioned (a shift is defective), and so is the gap; `mixing_time` does not depend on them.

    Example:
        >>> from steadyrl import gallery
        >>> spectral_gap(*gallery.state_sweep(5))
        0.0
    """
    chain = episode_chain(process, policy)
    if period(process, policy) > 1:
        return 0.0
    kept = np.flatnonzero(chain.reachable)
    matrix = chain.matrix[kept][:, kept]
    if len(kept) <= 2000:
        sizes = np.sort(np.abs(np.linalg.eigvals(matrix.toarray())))
        return float(1 - sizes[-2]) if len(sizes) > 1 else 1.0
    start = np.random.default_rng(0).random(len(kept))
    try:
        found = eigs(matrix.T, k=4, which="LM", v0=start, maxiter=_RESTARTS, return_eigenvectors=False)
    except ArpackNoConvergence as error:
        found = error.eigenvalues
        if len(found) < 2:
            raise MixingTimeError(
                f"Arnoldi iteration found no second eigenvalue of this chain of {len(kept)} states; use mixing_time"
            ) from error
    return float(1 - np.sort(np.abs(found))[-2])


class _Distances:
    """The distance to the steady state at times 0, 1, 2, ..., in blocks."""

    def __init__(self, chain: EpisodeChain, given_not_null: bool) -> None:
        check_flag("given_not_null", given_not_null, MixingTimeError)
        visits = visits_of(chain)
        self.rho = visits / visits.sum()
        self.start = chain.process.initial
        self.chain = chain
        self.real = ~chain.process.null_states if given_not_null else np.ones(len(self.rho), dtype=bool)
        small = chain.process.layers is None and chain.process.n_states <= _DENSE
        self.powers = Powers(chain.matrix.toarray()) if small else None

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield blocks of consecutive times: the distances, and bounds that hold from each time on."""
        if self.chain.process.layers is not None:
            for distance in _layered_distances(self.chain.process.layers, self.chain.policy, self.rho):
                yield np.array([distance]), np.array([distance])
        now, size = self.start, 32
        if self.powers is not None:
            while True:
                yield self.of(self.powers.path(now, size))
                now, size = self.powers.advance(now, size), min(2 * size, _BLOCK // len(now))
        forward = self.chain.matrix.T.tocsr()
        while True:
            yield self.of(now[None, :])
            now = forward @ now

    def of(self, rows: Array) -> tuple[Array, Array]:
        """Return the distance of each row, and a bound that holds from its time on."""
        distance = 0.5 * np.abs(rows - self.rho).sum(axis=1)
        if self.real.all():
            return distance, distance
        # |p/|p| - r/|r|| <= (|p - r| + ||p| - |r||) / |r|, and the numerator is twice the full distance.
        real, share = rows[:, self.real], self.rho[self.real].sum()
        mass = real.sum(axis=1, keepdims=True)
        given = np.divide(real, mass, out=np.zeros_like(real), where=mass > 0) - self.rho[self.real] / share
        return np.where(mass[:, 0] > 0, 0.5 * np.abs(given).sum(axis=1), 1.0), distance / share


def _layered_distances(parts: time_limits.Layers, policy: Array, rho: Array) -> Iterator[float]:
    """Yield the distance at t = 0, 1, ... of a time-limited process, from its episode lengths."""
    n, limit = len(parts.inside), parts.limit
    alive = time_limits.visits(parts, policy)[: (limit + 1) * n].reshape(limit + 1, n)
    survive = alive.sum(axis=1)  # P(T > k), k = 1, ..., limit + 1: still inside after k transitions
    by_end = _end_probabilities(parts, policy, alive)  # [age, terminal state] of the episodes that were not truncated
    mean = 1 / rho[limit * n :].sum()
    lengths = np.append(by_end.sum(axis=1), 0.0)
    lengths[limit] += survive[-1]  # index k - 1 holds P(T = k); truncated episodes have T = limit + 1
    initial = parts.base.initial[parts.outside_states]
    stationary_ends = rho[(limit + 1) * n :]
    recent = np.zeros(limit + 1)  # v(t - 1), v(t - 2), ..., v(t - limit - 1)
    v = 1.0
    at_start = 0.5 * (rho[: (limit + 1) * n].sum() + np.abs(initial - stationary_ends).sum())
    yield float(at_start)
    while True:
        recent = np.append(v, recent[:-1])
        v = float(lengths[: limit + 1] @ recent)
        inside = np.abs(recent - 1 / mean) @ survive
        ends = np.abs(recent[: len(by_end)] @ by_end - stationary_ends).sum()
        yield 0.5 * float(inside + ends)


def _end_probabilities(parts: time_limits.Layers, policy: Array, alive: Array) -> Array:
    """Return P(T = k, ends in s) for k = 1, ..., limit + 1 and the base's terminal states s."""
    n, limit = len(parts.inside), parts.limit
    result = np.zeros((limit + 1, len(parts.outside_states)))
    result[0] = parts.start_out
    by_layer = policy[: limit * n].reshape(limit, n, policy.shape[1])
    for action, matrix in enumerate(parts.ending):
        result[1:] += (matrix.T @ (alive[:limit] * by_layer[:, :, action]).T).T
    return result


def _far_ahead(stream: _Distances, tolerance: float) -> float:
    """Return the mixing time by powers of M_pi: the bound never increases, so it can be bisected."""
    assert stream.powers is not None
    powers, exponent = stream.powers, 0

    def bounded(row: Array) -> bool:
        return bool(stream.of(row[None, :])[1][0] < tolerance)

    while not bounded(stream.start @ powers.power(exponent)):
        exponent += 1
        if exponent > 62:
            raise MixingTimeError(
                f"the distance is above the tolerance {tolerance} even after 2^62 steps: either it mixes more slowly "
                "than that, or the tolerance is below the precision of the arithmetic"
            )
    now, last = stream.start, 0
    for bit in reversed(range(exponent)):
        ahead = now @ powers.power(bit)
        if not bounded(ahead):
            now, last = ahead, last + 2**bit
    # At `last` the bound is still above the tolerance, from last + 1 on below: look back for the last crossing.
    return _last_crossing(stream, tolerance, last)


def _last_crossing(stream: _Distances, tolerance: float, last: int) -> float:
    """Return the time after the last one, up to `last`, at which the distance reaches the tolerance."""
    assert stream.powers is not None
    size = 1
    while last >= 0:
        first = max(0, last - size + 1)
        row = stream.powers.advance(stream.start, first)
        above = np.flatnonzero(stream.of(stream.powers.path(row, last - first + 1))[0] >= tolerance)
        if len(above):
            return first + int(above[-1]) + 1
        last, size = first - 1, min(2 * size, _BLOCK // len(row))
    return 0


def _periodic_mixing_time(stream: _Distances, tolerance: float, max_steps: int) -> float:
    """Return the mixing time given not null of a process that a detour has left periodic.

    At times t = r mod d the distribution tends to rho on the r-th cyclic class, so the distance tends to the share of
    real states outside it; the distance to those limits never increases.
    """
    chain, rho, real = stream.chain, stream.rho, stream.real
    d, classes = cyclic_classes(chain)
    limits = np.array([np.where(classes == r, rho, 0.0) for r in range(d)]) * d
    shares = limits[:, real].sum(axis=1)
    furthest = float((1 - shares / d / rho[real].sum()).max())
    if furthest >= tolerance or shares.min() == 0:
        return math.inf
    forward, now, above = chain.matrix.T.tocsr(), stream.start, -1
    for t in range(max_steps + 1):
        if stream.of(now[None, :])[0][0] >= tolerance:
            above = t
        if furthest + 0.5 * np.abs(now - limits[t % d]).sum() / shares.min() < tolerance:
            return above + 1
        now = forward @ now
    raise MixingTimeError(f"the distance given not null has not settled within {max_steps} steps; raise max_steps")
