"""Which episodes of a log are analysed: its latest homogeneous stretch, unless told otherwise.

The log of a training mixes many policies, whose lengths no single distribution describes. What matters is the policy as
it is now, so if lengths drift over a log (`lengths.drift`), the latest stretch in which they do not is taken.
"""

from __future__ import annotations

from steadyrl.diagnosis.wording import drifting
from steadyrl.errors import LengthsError
from steadyrl.lengths.drift import find_drift
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
    if not records.ordered:
        return taken, note
    drift = find_drift(taken.lengths)
    if not drift.found:
        return taken, note
    if last is not None or everything:
        return taken, drifting(
            drift.message, "they are pooled as asked, and the result describes none of their policies"
        )
    return records.last(drift.latest), drifting(
        drift.message, f"only the latest {drift.latest:,} are analysed (--last N takes another number, --all pools all)"
    )
