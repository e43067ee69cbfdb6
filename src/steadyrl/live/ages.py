"""Ages of running environments, and how often each age was visited, from the flags that say whose episode ended.

The *age* of an environment counts the states of its running episode. It grows by one with every step and starts again
at 1 after an end or a cut, so between two restarts the ages visited are consecutive whole numbers. A batch is therefore
a set of intervals of ages, about one for each restart, and counting visits takes time in proportion to the
number of environments plus the number of restarts, not to the number of steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import plain_array, shown
from steadyrl.errors import WrapperError

Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


class Followed(NamedTuple):
    """What `follow_ages` found in some steps."""

    ages: Counts
    """Age of each environment's state after these steps."""
    restarting: Flags
    """Environments whose next step is their reset (NEXT_STEP only)."""
    visits: Counts
    """Number of visits to ages 0, 1, 2, ... during these steps; age 0 is never visited."""
    ends: Counts
    """Number of episodes that ended by themselves at ages 0, 1, 2, ..."""


def follow_ages(ages: Counts, restarting: Flags, done: Flags, cut: Flags | None, *, same_step: bool) -> Followed:
    """Follow the ages through some steps.

    With SAME_STEP, a step counts as a visit to the age in which its action was taken. With NEXT_STEP it counts as a
    visit to the age of the state that it led to, terminal states and resets included.

    Args:
        ages: the age of each environment's state before the first step. It is not changed.
        restarting: environments whose first step here is their reset (NEXT_STEP only).
        done: episodes that ended by themselves, one row per step, shape (steps, num_envs).
        cut: episodes that were cut short, in the same shape; None if there were none.
        same_step: whether an environment is reset within the step that ends its episode.

    Example:
        >>> done = np.array([[False, False], [True, False], [False, False]])
        >>> found = follow_ages(np.array([1, 4]), np.zeros(2, bool), done, None, same_step=True)
        >>> found.ages.tolist(), found.visits.tolist(), found.ends.tolist()
        ([2, 7], [0, 2, 1, 0, 1, 1, 1], [0, 0, 1])
    """
    steps = len(done)
    first = ages if same_step else np.where(restarting, 1, ages + 1)  # age that the first step visits
    restarts = np.flatnonzero(done if cut is None else done | cut)
    row, env = np.divmod(restarts, len(ages))
    order = np.argsort(env.astype(np.int32), kind="stable")  # by environment; its restarts stay in the order of time
    row, env = row[order], env[order]
    follows = np.zeros(len(env), dtype=bool)  # whether the environment has restarted before, within these steps
    follows[1:] = env[1:] == env[:-1]
    last = ~np.append(follows[1:], False) if len(env) else follows
    before = np.append(-1, row[:-1])[: len(row)]
    age_at_end = np.where(follows, row - before, first[env] + row)

    final = first + (steps - 1)  # ages in the last step
    restarted, left = env[last], steps - 1 - row[last]  # steps since the last restart of those that have restarted
    final[restarted] = np.where(left == 0, age_at_end[last], left)
    visits = _visits(first, first[env[~follows]], age_at_end, left[left > 0], int((row < steps - 1).sum()), steps)
    ended = age_at_end if cut is None else age_at_end[done.ravel()[restarts[order]]]
    ends = np.bincount(ended, minlength=1)
    if same_step:
        final += 1
        final[restarted[left == 0]] = 1
        return Followed(final, restarting, visits, ends)
    resets = np.zeros(len(ages), dtype=bool)
    resets[restarted[left == 0]] = True
    return Followed(final, resets, visits, ends)


def _visits(first: Counts, disturbed: Counts, ended: Counts, running: Counts, begun: int, steps: int) -> Counts:
    """Sum intervals of ages: +1 where an interval starts, -1 behind its end, and then a running sum.

    Args:
        first: the age that each environment visits first.
        disturbed: the same for those that restart within these steps; the others visit `steps` ages in a row.
        ended: the last age of each episode that ends or is cut.
        running: the last age of each episode that began within these steps and is still running.
        begun: the number of episodes that began within these steps.
        steps: the number of steps.
    """
    starts = np.bincount(first)
    edges = np.zeros(len(starts) + steps + 1, dtype=np.int64)  # nobody can be older
    edges[: len(starts)] = starts
    edges[1] += begun
    edges[steps : steps + len(starts)] -= starts
    if len(ended):
        counts = np.bincount(disturbed + steps)
        edges[: len(counts)] += counts
        counts = np.bincount(np.concatenate([ended, running]) + 1)
        edges[: len(counts)] -= counts
    visits = edges.cumsum()
    return visits[: int(visits.nonzero()[0][-1]) + 1]


def checked_flags(name: str, flags: Any, num_envs: int) -> Flags:
    """Return flags as a boolean array with one entry per environment, or say what is wrong with them.

    Example:
        >>> checked_flags("done", [True, False], 2)
        array([ True, False])
    """
    if type(flags) is np.ndarray and flags.dtype == np.bool_ and flags.shape == (num_envs,):
        return flags
    found = plain_array(name, flags, WrapperError)
    if found.dtype != np.bool_ or found.shape != (num_envs,):
        what = shown(flags) if found.ndim == 0 else f"an array of {found.dtype} with shape {found.shape}"
        raise WrapperError(
            f"{name} is {what}; it must be an array of booleans with one entry per environment, shape ({num_envs},)"
        )
    return found
