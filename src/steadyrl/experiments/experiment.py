"""What an experiment is: settings for each scale, a run, a figure, findings.

    settings -> run -> Result (a file) -> figure, findings

A figure and its findings are functions of the result alone, so whoever has the file can draw and judge it again. The
same settings and seed give the same file, to the byte, on however many cores.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from steadyrl.common.checks import shown
from steadyrl.common.storage import from_json, load_arrays, save_arrays, to_json, write_atomically
from steadyrl.errors import FileFormatError
from steadyrl.experiments.workspace import Workspace

SCALES = ("quick", "laptop", "paper")

_KIND = "reproduction"
_HELD = {"experiment": str, "scale": str, "seed": int, "settings": dict, "numbers": dict, "versions": dict}


@dataclass(frozen=True)
class Finding:
    """One claim, and what was measured beside it."""

    claim: str
    """What the paper says, in one line."""
    measured: str
    """What was measured, with intervals."""
    agrees: bool | None
    """Whether the measurement supports the claim; None if this scale is too small to tell."""
    why: str = ""
    """The reason, if the measurement differs or cannot tell."""

    @property
    def verdict(self) -> str:
        """The finding in one or two words."""
        return "cannot tell" if self.agrees is None else "agrees" if self.agrees else "differs"


@dataclass(frozen=True)
class Result:
    """Numbers (JSON) and arrays that a run found, with everything that determines them."""

    experiment: str
    scale: str
    seed: int
    settings: Mapping[str, Any]
    numbers: Mapping[str, Any]
    arrays: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that makes this result again."""
        seed = f" --seed {self.seed}" if self.seed else ""
        return f"steadyrl reproduce {self.experiment} --scale {self.scale}{seed} --out results"

    @property
    def identity(self) -> dict[str, Any]:
        """What was asked for; with the same versions, the same identity means the same result."""
        return identity(self.experiment, self.scale, self.seed, self.settings)

    def header(self) -> dict[str, Any]:
        """Return all but the arrays, as JSON; what is infinite (never) or not a number becomes text."""
        result: dict[str, Any] = to_json(
            {
                **self.identity,
                "command": self.command,
                "versions": dict(self.versions),
                "numbers": dict(self.numbers),
            }
        )
        return result

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write NAME.npz, which is whole, and NAME.json, the same without arrays, for people."""
        target = Path(folder)
        save_arrays(target / f"{self.experiment}.npz", _KIND, self.header(), self.arrays)
        self.save_numbers(target)

    def save_numbers(self, folder: str | os.PathLike[str]) -> None:
        """Write NAME.json alone: a run that was killed after NAME.npz has none, or that of an earlier result."""
        text = json.dumps(self.header(), indent=1, sort_keys=True) + "\n"
        write_atomically(Path(folder) / f"{self.experiment}.json", text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read NAME.npz.

        Raises:
            FileFormatError: if the file is damaged or holds something else.
        """
        header, arrays = load_arrays(path, _KIND)
        for name, kind in _HELD.items():
            if type(header.get(name)) is not kind:
                there = shown(header[name]) if name in header else "missing"
                raise FileFormatError(f"{os.fspath(path)!r} is not a whole result: {name} is {there}; make it again")
        scale, versions = header["scale"], header["versions"]
        if scale not in SCALES or not all(isinstance(number, str) for number in versions.values()):
            raise FileFormatError(
                f"{os.fspath(path)!r} has scale {shown(scale)} and versions {shown(versions)}, which no result has; "
                "make it again"
            )
        numbers = from_json(header["numbers"])
        return cls(header["experiment"], scale, header["seed"], header["settings"], numbers, arrays, versions)


@dataclass(frozen=True)
class Cost:
    """Simulation steps that a run takes in one environment, and the rate at which a core makes them."""

    environment: str
    steps: float
    rate: float
    """Steps per second and core, as measured on one machine."""

    @property
    def hours(self) -> float:
        """Core-hours that the steps take."""
        return self.steps / self.rate / 3600


@dataclass(frozen=True)
class Experiment:
    """One figure, table or claim of the paper, as settings and functions."""

    name: str
    title: str
    claim: str
    """What the paper claims, in one line."""
    settings: Mapping[str, Any]
    """One dataclass of settings for each scale."""
    run: Callable[[Any, Workspace], tuple[dict[str, Any], dict[str, Any]]]
    """Takes settings and a workspace; returns numbers and arrays."""
    draw: Callable[[Result], Any]
    """Takes a result; returns a matplotlib figure."""
    findings: Callable[[Result], Sequence[Finding]]
    rows: Callable[[Result], Sequence[tuple[str, str]]] = lambda result: ()
    """Further numbers, as names and text."""
    departures: Callable[[Result], Sequence[str]] = lambda result: ()
    """What was done differently from the paper."""
    cost: Callable[[Any], Sequence[Cost]] = lambda settings: ()


def identity(experiment: str, scale: str, seed: int, settings: Any) -> dict[str, Any]:
    """Return what determines a result, as JSON."""
    chosen = settings if isinstance(settings, Mapping) else asdict(settings)
    result: dict[str, Any] = to_json({"experiment": experiment, "scale": scale, "seed": seed, "settings": chosen})
    return result


def interval_text(found: Mapping[str, float], digits: int = 3) -> str:
    """Return "value (low to high)" of an interval as it stands in a result's numbers.

    An interval that has the noise of a mixing time taken off may lie below the observed value: then it comes first.
    """
    value, low, high = (_number(found[key], digits) for key in ("value", "low", "high"))
    if value == low == high:
        return value
    if found["value"] > found["high"] and value != high:
        return f"{low} to {high} (as observed, noise included, {value})"
    return f"{value} ({low} to {high})"


def _number(value: float, digits: int) -> str:
    return "never" if math.isinf(value) and value > 0 else f"{value:.{digits}g}"
