"""What several commands take: their options are declared once."""

from __future__ import annotations

import json
from typing import Any

from steadyrl.errors import RolloutError


def make_arguments(pairs: list[str]) -> dict[str, Any]:
    """Return KEY=VALUE pairs as arguments; a value is read as JSON, or else as the text that it is."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.isidentifier():
            raise RolloutError(f"--make is {pair!r}; it must be KEY=VALUE, as in max_episode_steps=200")
        try:
            arguments[key] = json.loads(value)
        except json.JSONDecodeError:
            arguments[key] = value
    return arguments
