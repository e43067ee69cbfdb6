"""Confidence bands of a phase distance that was computed from a sample of episodes.

d(t) adds up absolute values, 1/2 sum_s |g(s)| P(T >= t - s) with g(s) = v(s) - 1/E[T]. Two things follow for the
estimate from n episodes.

*The estimate is too large.* Where g(s) is near 0, all of the observed |g(s)| is noise. The bootstrap cannot see that:
around the observed g, which is not 0, absolute values have no kink, so its resamples look unbiased (it is inconsistent
at such points: Andrews 2000, Fang and Santos 2019). For geometric lengths plain percentile intervals cover t* less than
half of the time.

*The noise can be estimated.* g is a smooth function of the lengths' distribution. The square of an observed g(s) is
g(s)^2 + noise^2 on average, but the product of the g(s) of two halves of the episodes, which are independent, is g(s)^2
on average. A second estimate is the excess of the resamples' squares over the sample's. The second alone recognises
that noise in the phase of g, which is large if lengths vary little, adds nothing to d; the first alone is right if
there are fewer episodes than distinct lengths. The smaller of the two is used. The noise is then removed by James-Stein
shrinkage, over the next half of an average episode length, which is the scale on which g^2 oscillates, so that the
large g at the start does not affect later times:

    shrunk g(s) = observed g(s) sqrt(1 - sum noise^2 / sum (observed g)^2),

and 0 if the observed sum is below 1.5 times that of the noise, where pure noise mostly stays. Before the shortest
length no episode can end: g(s) is -1/E[T] there and is kept.

*The band.* The bootstrap then takes place in a world whose truth is the shrunk g. The noise of the resamples is added
to it, and the whole estimate is repeated, including the shrinkage. The difference between the mean of these estimates
and that world's truth is the estimate's bias, which is subtracted; their percentiles around their mean are the band.
With R resamples, the percentile p is the (R + 1) p-th in order, which is exact for every R. The bias is estimated from
the same episodes, so subtracting it adds scatter, up to a sixth for uniform lengths. Some resamples are therefore
corrected in the same way, and the band is widened by the ratio of their scatter after and before. (This holds as far as
noise adds to g. If lengths hardly vary, it moves the phase of g instead, and resamples cancel each other; the share of
the observed g that their mean has lost is subtracted from the widening.)

*Few episodes.* If most lengths were observed once, g has no smooth part that is visible in single steps, and all of it
is taken for noise. With fewer than five episodes per distinct length the same is therefore done on a coarser time axis
too, in bins that hold about twenty episodes, and the larger result is taken at each time: bins cannot see that copies
in their first episode all have the same age, and single steps cannot see the rest.

The coverage is measured for several kinds of lengths and numbers of episodes (`benchmarks/diagnosis.py kinds early`) in
benchmarks/results/diagnosis.json. Bands of 90% hold the truth at 1, 2 and 3 average episode lengths in 80 to 97% of
samples of 300 episodes and more. Before that they need 1,000 episodes (71 to 98%); with 300 they hold it in 80% on
average and miss by 0.03 at most, with 50 in 67% and by 0.09, since the few ends seen so early are taken for more, or
less, than they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from steadyrl.lengths.distribution import EpisodeLengths

Array = NDArray[np.float64]

FEW_EPISODES = 1000
"""With fewer, the band is too narrow before one average episode length."""

_ROOM = 4_000_000  # numbers of a block of resamples
_NOISY = 1.5  # times the noise that there must be to count as more than noise
_WORLDS, _AROUND = 60, 8  # resamples that are corrected themselves, and pairs of resamples each is corrected by
_SEEN, _BINNED = 5.0, 20.0  # episodes for each different length below which lengths are binned, and then to have
_ALIAS = 1e-11  # the renewal sequence's error: small beside any distance that a sample can tell


@dataclass(frozen=True)
class DistanceBand:
    """The bias-corrected phase distance at t = 1, 2, ... and its pointwise confidence band."""

    middle: Array
    """Bias-corrected estimate of d(1), d(2), ..."""
    low: Array
    """Lower end of the band."""
    high: Array
    """Upper end of the band."""
    periods: NDArray[np.int64]
    """Period of the lengths in each resample; a resample with a period above 1 never mixes."""


def distance_band(
    lengths: EpisodeLengths, episodes: int, steps: int, *, rng: np.random.Generator, level: float, resamples: int
) -> DistanceBand:
    """Return d(1), ..., d(steps), estimated from a sample of `episodes` episodes, with its confidence band."""
    fine = _band(lengths, episodes, steps, rng=rng, level=level, resamples=resamples)
    width = _bin_width(lengths, episodes)
    if width == 1:
        return fine
    far = -(-steps // width) + 1
    coarse = _band(_binned(lengths, width), episodes, far, rng=rng, level=level, resamples=resamples)
    times, places = np.arange(1, steps + 1) / width, np.arange(far + 1)

    def larger(one: Array, other: Array) -> Array:
        result: Array = np.maximum(one, np.interp(times, places, np.append(1.0, other)))
        return result

    ends = larger(fine.low, coarse.low), larger(fine.high, coarse.high)
    return DistanceBand(larger(fine.middle, coarse.middle), *ends, fine.periods)


def _band(
    lengths: EpisodeLengths, episodes: int, steps: int, *, rng: np.random.Generator, level: float, resamples: int
) -> DistanceBand:
    sample = lengths.probabilities[None]
    support = np.flatnonzero(lengths.probabilities)
    seen = _gaps(sample, steps)
    if len(support) == 1:  # no noise at all
        exact = _distance(np.abs(seen), sample)[0]
        return DistanceBand(exact, exact, exact, support)
    drawn = np.zeros((resamples, len(lengths.probabilities)))
    drawn[:, support] = rng.multinomial(episodes, lengths.probabilities[support], resamples) / episodes
    blocks = _Blocks(drawn, steps)
    drawn_squares, drawn_mean = np.zeros(steps), np.zeros(steps)
    for _, gaps in blocks:
        drawn_squares += (gaps**2).sum(axis=0) / resamples
        drawn_mean += gaps.sum(axis=0) / resamples
    shrink = _Shrinkage(lengths)
    common = _common(lengths, episodes, steps, max(resamples // 4, 10), rng)
    truth = shrink(seen, np.minimum(shrink.ahead(drawn_squares - seen**2), shrink.ahead(seen**2 - common)))
    estimate = _distance(np.abs(truth), sample)[0]
    # the mean of (truth + gaps - seen)^2, less truth^2
    noise = shrink.ahead(drawn_squares - seen**2 + 2 * (truth - seen) * (drawn_mean - seen))
    again = np.concatenate([_distance(np.abs(shrink(gaps - seen + truth, noise)), part) for part, gaps in blocks])
    mean = again.mean(axis=0)
    middle = estimate - (mean - estimate)
    part, gaps = next(iter(blocks))
    adds = np.clip(shrink.ahead(drawn_mean * seen) / np.maximum(shrink.ahead(seen**2), 1e-300), 0.0, 1.0)[0]
    wider = 1 + adds * (_widening(part - sample, gaps - seen, truth, lengths, shrink) - 1)
    again.sort(axis=0)
    low, high = (middle + wider * (_percentile(again, share) - mean) for share in ((1 - level) / 2, (1 + level) / 2))
    periods = np.array([np.gcd.reduce(support[row > 0]) for row in drawn[:, support]])
    middle, low, high = (np.clip(curve, 0.0, 1.0) for curve in (middle, low, high))
    return DistanceBand(middle, low, high, periods)


def studentised(
    lengths: EpisodeLengths, episodes: int, *, rng: np.random.Generator, level: float, resamples: int
) -> tuple[float, float]:
    """Return the ends of the CV's confidence interval: a studentised bootstrap of log CV.

    The standard error comes from the influence function of log CV, 1/2 ((T - E[T])^2 / Var[T] - 1) - (T / E[T] - 1).
    Dividing by each resample's own error corrects for skewness, which is large if lengths have long tails.
    """
    support = np.flatnonzero(lengths.probabilities)
    if len(support) == 1:
        return 0.0, 0.0
    drawn = rng.multinomial(episodes, lengths.probabilities[support], resamples) / episodes
    drawn = drawn[(drawn > 0).sum(axis=1) > 1]  # a resample of one single length has no CV
    if not len(drawn):
        return 0.0, float("inf")
    value, error = (found[0] for found in _log_cv(lengths.probabilities[None, support], support))
    values, errors = _log_cv(drawn, support)
    ratios = np.sort((values - value) / np.maximum(errors, 1e-12))
    ends = [value - error * float(_percentile(ratios, share)) for share in ((1 + level) / 2, (1 - level) / 2)]
    return float(np.exp(ends[0])), float(np.exp(ends[1]))


def _log_cv(probabilities: Array, support: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return log CV of each row and the standard deviation of its influence."""
    mean = probabilities @ support
    apart = support - mean[:, None]
    variance = (probabilities * apart**2).sum(axis=1)
    influence = 0.5 * (apart**2 / variance[:, None] - 1) - apart / mean[:, None]
    error = np.sqrt((probabilities * influence**2).sum(axis=1))
    return 0.5 * np.log(variance) - np.log(mean), error


def _bin_width(lengths: EpisodeLengths, episodes: int) -> int:
    """Return the width of time bins that hold enough episodes: 1, unless most lengths were observed only once."""
    support = np.flatnonzero(lengths.probabilities)
    if lengths.period > 1 or episodes >= _SEEN * len(support):
        return 1
    return max(round(_BINNED * len(support) / episodes), 1)


def _binned(lengths: EpisodeLengths, width: int) -> EpisodeLengths:
    """Return lengths in units of `width`, each split between the two nearest multiples so that E[T] is kept."""
    place = np.maximum(np.flatnonzero(lengths.probabilities) / width, 1.0)
    seen = lengths.probabilities[lengths.probabilities > 0]
    below = place.astype(np.int64)
    weights = np.bincount(below, seen * (1 - (place - below)), minlength=int(below[-1]) + 2)
    weights += np.bincount(below + 1, seen * (place - below), minlength=len(weights))
    return EpisodeLengths(weights / weights.sum())


def _common(lengths: EpisodeLengths, episodes: int, steps: int, splits: int, rng: np.random.Generator) -> Array:
    """Return the product of the two halves' g, averaged over splits of the episodes: g^2 without noise."""
    support = np.flatnonzero(lengths.probabilities)
    counts = np.maximum(np.rint(lengths.probabilities[support] * episodes).astype(np.int64), 1)
    first = np.zeros((splits, len(lengths.probabilities)))
    first[:, support] = rng.multivariate_hypergeometric(counts, int(counts.sum()) // 2, splits, method="marginals")
    second = np.bincount(support, counts, minlength=first.shape[1]) - first
    halves = [_Blocks(half / half.sum(axis=1, keepdims=True), steps) for half in (first, second)]
    total = np.zeros(steps)
    for (_, one), (_, other) in zip(*halves, strict=True):
        total += (one * other).sum(axis=0)
    return total / splits


def _widening(apart: Array, noise: Array, truth: Array, lengths: EpisodeLengths, shrink: _Shrinkage) -> Array:
    """Return by which factor the bias-corrected estimate scatters more than the uncorrected one.

    Some resamples (which differ from the sample by `apart`, and their g by `noise`) are estimated and corrected again.
    The bias of each is estimated with the noise of the same few other resamples, taken with both signs.
    """
    worlds, around = apart[_AROUND : _AROUND + _WORLDS], range(min(_AROUND, len(apart)))
    if len(worlds) < 2:
        return np.ones(truth.shape[1])
    energy = shrink.ahead((noise**2).mean(axis=0, keepdims=True))
    shrunk = shrink(truth + noise[_AROUND : _AROUND + _WORLDS], energy)
    probabilities = lengths.probabilities + worlds
    plain = _distance(np.abs(shrunk), probabilities)
    again = np.zeros_like(plain)
    for j in around:
        for sign in (1, -1):
            again += _distance(np.abs(shrink(shrunk + sign * noise[j], energy)), probabilities + sign * apart[j])
    corrected = plain - (again / (2 * len(around)) - plain)
    before, after = plain.std(axis=0), corrected.std(axis=0)
    return np.where(before > 1e-12, after / np.maximum(before, 1e-12), 1.0)


class _Shrinkage:
    """Shrinks g by its noise, over windows of half an average episode length ahead of each time."""

    def __init__(self, lengths: EpisodeLengths) -> None:
        self.window = max(round(lengths.mean / 2), 1) + 1
        self.shortest = int(np.flatnonzero(lengths.probabilities)[0])

    def __call__(self, gaps: Array, noise: Array) -> Array:
        """Return the shrunk g, given the sum of the squared noise over each window."""
        energy = np.maximum(self.ahead(gaps**2), 1e-300)
        share = np.where(energy > _NOISY * noise, np.sqrt(np.clip(1 - noise / energy, 0.0, 1.0)), 0.0)
        share[:, : self.shortest] = 1.0
        return share * gaps

    def ahead(self, values: Array) -> Array:
        """Return the sum over the window that starts at each value."""
        total = np.cumsum(values[:, ::-1], axis=1)[:, ::-1]
        total[:, : -self.window] -= total[:, self.window :].copy()
        return total


class _Blocks:
    """Iterates over resamples and their g in blocks; they are computed only once if all fit into one block."""

    def __init__(self, drawn: Array, steps: int) -> None:
        count = max(_ROOM // max(steps, drawn.shape[1]), 1)
        self.parts = [drawn[first : first + count] for first in range(0, len(drawn), count)]
        self.steps = steps
        self.kept = _gaps(drawn, steps) if len(self.parts) == 1 else None

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        for part in self.parts:
            yield part, _gaps(part, self.steps) if self.kept is None else self.kept


def _gaps(probabilities: Array, steps: int) -> Array:
    """Return g(0), ..., g(steps - 1) for each row of probabilities.

    v has the Taylor series 1 / (1 - F(z)), which a Fourier transform evaluates on a circle inside the unit circle.
    """
    n = probabilities.shape[1]
    mean = probabilities @ np.arange(n)
    size = fft.next_fast_len(2 * max(steps, n), real=True)
    radius = _ALIAS ** (1 / size)
    cycle = fft.rfft(probabilities * radius ** np.arange(n), size, axis=1)
    ends = fft.irfft(1 / (1 - cycle), size, axis=1)[:, :steps] * radius ** -np.arange(float(steps))
    result: Array = ends - 1 / mean[:, None]
    return result


def _distance(gaps: Array, probabilities: Array) -> Array:
    """Return d(1), ..., d(steps) from |g| and the distribution of lengths, for each row."""
    steps = gaps.shape[1]
    survival = probabilities[:, ::-1].cumsum(axis=1)[:, -2::-1]  # P(T >= k), k = 1, 2, ...
    mean = survival.sum(axis=1)
    n = survival.shape[1]
    size = fft.next_fast_len(steps + n, real=True)
    product = fft.rfft(gaps, size, axis=1) * fft.rfft(survival, size, axis=1)
    result: Array = 0.5 * fft.irfft(product, size, axis=1)[:, :steps]
    unborn = survival[:, ::-1].cumsum(axis=1)[:, -2::-1][:, :steps]  # sum over k > t, t = 1, 2, ...
    result[:, : unborn.shape[1]] += 0.5 * unborn / mean[:, None]
    return result


def _percentile(ordered: Array, share: float) -> Array:
    """Return the (R + 1) share-th of R ordered values, interpolated between two of them."""
    place = float(np.clip((len(ordered) + 1) * share - 1, 0, len(ordered) - 1))
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    found: Array = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    return found
