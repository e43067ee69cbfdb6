"""Which column of a table, or field of a record, holds episode lengths."""

from __future__ import annotations

import re
from collections.abc import Sequence

from steadyrl.common.checks import shown
from steadyrl.errors import FileFormatError

NAMES = ("l", "length", "lengths", "ep_len", "ep_length", "episode_length", "episode_lengths", "episodic_length")
"""Names of columns that hold lengths, as error messages list them; case, spaces and hyphens do not matter."""

_ALSO = ("len", "ep_lens", "ep_lengths", "episode_len", "episode_lens", "episodic_lengths", "eplen")
_MEANS = re.compile(r"mean|avg|average")


def find_column(names: Sequence[str], column: str | None, where: str) -> int:
    """Return the index of the column with episode lengths.

    A name such as `charts/episodic_length` counts by what follows its last slash. Training episodes are preferred to
    those of an evaluation (`eval/...`).

    Args:
        names: Names of all columns.
        column: Name that the user gave; None looks for a name that says "length".
        where: The file, for error messages.

    Raises:
        FileFormatError: If there is no such column, if all that there is are means over several episodes, or if several
            columns could be meant.
    """
    if column is not None:
        for key in (str, _plain, _last):
            found = [i for i, name in enumerate(names) if key(name) == key(column)]
            if len(found) == 1:
                return found[0]
        raise FileFormatError(f"{where} has no column {shown(column)}; its columns are {_listed(names)}")
    wanted = (*NAMES, *_ALSO)
    for key in (_plain, _last):
        found = [i for i, name in enumerate(names) if key(name) in wanted]
        training = [i for i in found if "eval" not in _plain(names[i])] or found
        if len({_last(names[i]) for i in training}) > 1 and key is _plain:
            training.sort(key=lambda i: wanted.index(_plain(names[i])))
            return training[0]
        if len(training) == 1:
            return training[0]
        if training:
            raise FileFormatError(
                f"{where} has several columns of lengths: {_listed([names[i] for i in training])}; name one: column=..."
            )
    means = [name for name in names if "len" in _plain(name) and _MEANS.search(_plain(name))]
    if means:
        raise FileFormatError(
            f"{where} has {_listed(means)}, a mean over several episodes, but no lengths of single episodes, which a "
            "diagnosis needs: log them with Gymnasium's RecordEpisodeStatistics or Stable-Baselines3's Monitor"
        )
    raise FileFormatError(
        f"{where} has no column of episode lengths, such as {', '.join(NAMES)}; its columns are {_listed(names)}. Name "
        "the right one: column=..."
    )


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().strip("\"'").strip().lower())


def _last(name: str) -> str:
    return re.split(r"[/.]", _plain(name))[-1]


def _listed(names: Sequence[str], most: int = 12) -> str:
    text = ", ".join(shown(name) for name in names[:most])
    return text + (f" and {len(names) - most} more" if len(names) > most else "")
