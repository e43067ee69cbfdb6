"""How much of the age shows in an observation: whether lockstep can be felt in the data that a learner sees.

The phase distance compares ages, so it is a worst case for states: where states hardly depend on the age, a batch in
lockstep is nearly a fair one all the same. Here ages are put into G groups of equal share in the long run. How far the
observations of group g are from those of the long run (total variation) is at least

    P(A_g | group g) - P(A_g),       for every set A_g of observations,

and the best set has the observations that group g is more likely to make than others are. A forest of trees
(scikit-learn's) learns the sets from two thirds of the episodes, and the probabilities are counted on the others, so
that the estimate is not flattered by what was learnt by heart: without information it is 0 on average, and it
never exceeds the truth but by chance. If observations told the age exactly, it would be 1 - 1/G.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import check_seed, plain_array, whole_number
from steadyrl.common.intervals import Interval
from steadyrl.errors import LengthsError, MissingExtraError

Array = NDArray[np.float64]

GROUPS = 8
"""Groups of ages that are told apart."""
STUDY = "no"
"""Whether the distance in observations told beforehand where staggering helped, in the study of learning
(docs/evidence.md): "incomplete" until all its runs are there, then "yes" or "no". It is the entry "verdict" of
"prediction" in benchmarks/learning/results.json, which protocol.md defines, and benchmarks/learning/analysis.py writes
it here; tests/test_evidence.py holds the two together."""
LARGE, SMALL = 0.2, 0.05
"""Distances in observations from which lockstep is expected to matter, and to matter a little, if STUDY is "yes"; they
were fixed in protocol.md before any gain was known."""
_FOLDS = 3
_MOST = 6000  # observations that are used
_RESAMPLES = 400
_LARGEST = float(np.finfo(np.float32).max)  # the trees compute with 32 bits


@dataclass(frozen=True)
class SeenAges:
    """How much of the age shows in an observation, under one policy."""

    distance: Interval
    """Mean total variation between the observations of one group of ages and those of the long run, from below."""
    bound: float
    """The same for the ages themselves, which no estimate exceeds: 1 - 1/groups."""
    accuracy: float
    """Share of held-out observations whose group of ages is told correctly."""
    chance: float
    """The accuracy without looking: the share of the largest group."""
    groups: int
    """Number of groups of ages."""
    observations: int
    """Number of observations that were used."""

    @property
    def share(self) -> float:
        """The part of the distance between ages that shows in observations, 0 to 1."""
        return float(min(max(self.distance.value / self.bound, 0.0), 1.0))


def seen_ages(observations: Any, ages: Any, episodes: Any, *, groups: int = GROUPS, seed: int = 0) -> SeenAges | None:
    """Return how much of the age shows in an observation; None if there are too few episodes or ages to tell.

    Args:
        observations: [n, d], the observations of all steps of complete episodes, or a fair sample of them.
        ages: [n], the age of each, 1 for the first of an episode.
        episodes: [n], the number of the episode that each is from. Episodes are never split between learning and
            counting, since neighbouring observations are alike.
        groups: number of groups of ages.
        seed: seed of the forest, and of the choice of observations if there are more than 6,000.

    Raises:
        LengthsError: if the arrays do not fit together.
        MissingExtraError: if scikit-learn is not installed.

    Example:
        >>> ages = np.tile(np.arange(1, 41), 30)
        >>> found = seen_ages(ages[:, None], ages, np.repeat(np.arange(30), 40))
        >>> found.groups, found.bound, round(found.share, 2)  # observations that tell the age
        (8, 0.875, 1.0)
    """
    rows, age, episode = _checked(observations, ages, episodes)
    wanted = whole_number("groups", groups, LengthsError, least=2)
    seed = check_seed(seed, LengthsError)
    rows = np.clip(rows, -_LARGEST, _LARGEST) if rows.shape[1] else np.zeros((len(rows), 1))  # d = 0: all are alike
    rng = np.random.default_rng([seed, 7])
    if len(age) > _MOST:
        chosen = rng.choice(len(age), _MOST, replace=False)
        rows, age, episode = rows[chosen], age[chosen], episode[chosen]
    group = _groups(age, wanted)
    count = int(group.max()) + 1
    _, episode = np.unique(episode, return_inverse=True)
    if count < 2 or int(episode.max()) + 1 < 2 * _FOLDS:
        return None
    likely, told = _held_out(rows, group, episode, count, seed)
    counts = np.zeros((int(episode.max()) + 1, count, count + 1))  # by episode and group: members, and in each set
    np.add.at(counts, (episode, group), np.concatenate([likely, np.ones((len(group), 1))], axis=1))
    value = _distance(counts.sum(axis=0))
    weights = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=_RESAMPLES)
    resampled = [_distance(np.tensordot(weight, counts, axes=1)) for weight in weights.astype(np.float64)]
    low, high = np.quantile(resampled, (0.05, 0.95))
    interval = Interval(value, float(min(low, value)), float(max(high, value)))
    chance = float(np.bincount(group).max() / len(group))
    return SeenAges(interval, 1 - 1 / count, float(told.mean()), chance, count, len(age))


def sample_steps(
    lengths: NDArray[np.int64], observations: Array, *, rng: np.random.Generator
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """Return observations, ages and episodes of steps drawn from complete episodes, every step with the same chance.

    Terminal observations are left out, since no action is taken there.

    Args:
        lengths: [e], the number of actions in each episode.
        observations: [sum of lengths + 1, d], all observations of one episode after the other, terminal ones included.
        rng: Random generator.

    Example:
        >>> rows, ages, episodes = sample_steps(
        ...     np.array([2, 1]), np.arange(5.0)[:, None], rng=np.random.default_rng(0)
        ... )
        >>> rows.ravel().tolist(), ages.tolist(), episodes.tolist()
        ([0.0, 1.0, 3.0], [1, 2, 1], [0, 0, 1])
    """
    ends = np.cumsum(lengths)
    step = np.arange(ends[-1]) if ends[-1] <= _MOST else np.sort(rng.choice(ends[-1], _MOST, replace=False))
    episode = np.searchsorted(ends, step, side="right")
    ages = step - (ends - lengths)[episode] + 1
    return observations[step + episode], ages, episode  # earlier episodes have one terminal observation each


def _groups(ages: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    """Return the group of each age: groups have about equal shares, and an age is in one group only."""
    found, share = np.unique(ages, return_counts=True)
    middle = (np.cumsum(share) - share / 2) / share.sum()
    _, group = np.unique(np.minimum((middle * groups).astype(np.int64), groups - 1), return_inverse=True)
    result: NDArray[np.int64] = group[np.searchsorted(found, ages)]
    return result


def _held_out(
    rows: Array, group: NDArray[np.int64], episode: NDArray[np.int64], groups: int, seed: int
) -> tuple[Array, NDArray[np.bool_]]:
    """Return, for observations that were not learnt from, which sets A_g they are in, and whether g is told."""
    forest, folds = _scikit_learn()
    likely = np.zeros((len(group), groups))
    told = np.zeros(len(group), dtype=bool)
    for learn, count in folds(_FOLDS).split(rows, group, episode):
        model = forest(100, min_samples_leaf=5, random_state=seed % 2**32, n_jobs=1).fit(rows[learn], group[learn])
        probability = np.zeros((len(count), groups))
        probability[:, model.classes_] = model.predict_proba(rows[count])
        likely[count] = probability > np.bincount(group[learn], minlength=groups) / len(learn)
        told[count] = probability.argmax(axis=1) == group[count]
    return likely, told


def _distance(counts: Array) -> float:
    """Return the mean over groups of P(A_g | g) - P(A_g), from counts [group, sets and members]."""
    members, inside = counts[:, -1], counts[:, :-1]
    some = members > 0
    own = np.diagonal(inside)[some] / members[some]
    return float(np.mean(own - inside.sum(axis=0)[some] / members.sum()))


def _checked(observations: Any, ages: Any, episodes: Any) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    rows = plain_array("observations", observations, LengthsError)
    age, episode = plain_array("ages", ages, LengthsError), plain_array("episodes", episodes, LengthsError)
    if rows.ndim != 2 or age.shape != (len(rows),) or episode.shape != (len(rows),) or not len(rows):
        raise LengthsError(
            f"observations have shape {rows.shape}, ages {age.shape}, episodes {episode.shape}; they must be [n, d], "
            "[n] and [n], one row for each observation"
        )
    if age.dtype.kind not in "iu" or age.min() < 1:
        raise LengthsError("ages must be whole numbers, 1 for the first observation of an episode")
    if rows.dtype.kind not in "biuf" or not np.isfinite(rows).all():
        raise LengthsError("observations must be finite numbers; leave out episodes that have others")
    return rows.astype(np.float64), age.astype(np.int64), episode


def _scikit_learn() -> tuple[Any, Any]:
    try:
        from sklearn.ensemble import ExtraTreesClassifier
        from sklearn.model_selection import GroupKFold
    except ImportError as error:
        raise MissingExtraError(
            "telling ages from observations needs scikit-learn, which is not installed; pip install "
            '"steadyrl[diagnose]"'
        ) from error
    return ExtraTreesClassifier, GroupKFold
