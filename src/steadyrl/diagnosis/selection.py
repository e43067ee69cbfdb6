"""Which episodes of a log are analysed: its latest homogeneous stretch, unless told otherwise.

The log of a training mixes many policies, whose lengths no single distribution describes. What matters is the policy as
it is now, so if lengths drift over a log (`lengths.drift`), the latest stretch in which they do not is taken. Of
several logs that do not belong together each gives its latest stretch, and it is said if these differ.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steadyrl.diagnosis.wording import SEVERAL, differing, drifting, drifting_files
from steadyrl.errors import LengthsError
from steadyrl.lengths.drift import differ, find_drifts
from steadyrl.lengths.records import EpisodeRecords


def select_episodes(
    records: EpisodeRecords, *, last: int | None = None, everything: bool = False
) -> tuple[EpisodeRecords, str]:
    """Return the episodes to analyse, and a sentence that says which they are; empty if all are and nothing drifts.

    Args:
        records: The episodes of a log.
        last: Number of latest episodes to take, whatever the drift.
        everything: Whether to take all episodes, whatever the drift.
    """
    if last is not None and everything:
        raise LengthsError("--last takes the latest episodes and --all takes all of them; give one of the two")
    taken = records if last is None else records.last(last)
    note = (
        ""
        if len(taken) == len(records)
        else f"Only the latest {len(taken):,} of {len(records):,} episodes are analysed."
    )
    if not records.runs:
        return taken, note
    runs = _runs(taken)
    drifts = find_drifts(runs)
    drifting_found, asked = any(drift.found for drift in drifts), last is not None or everything
    if drifting_found:
        if not asked:
            taken = records.latest(tuple(drift.latest for drift in drifts))
        note = (
            drifting(drifts[0], len(taken), asked=asked)
            if len(drifts) == 1
            else drifting_files(drifts, records.files, asked=asked)
        )
    difference = _difference(taken)
    if difference or (drifting_found and asked):
        taken = replace(taken, policy=SEVERAL)
    return taken, " ".join(part for part in (note, difference) if part)


def _runs(records: EpisodeRecords) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return np.split(records.lengths, np.cumsum(records.runs)[:-1])


def _difference(records: EpisodeRecords) -> str:
    """Return a sentence on runs that differ from each other, or nothing."""
    runs = _runs(records)
    if not differ(runs):
        return ""
    means = [float(run.mean()) for run in runs]
    return differing(records.files, means)
