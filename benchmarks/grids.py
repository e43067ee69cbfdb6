"""Part 1: slippery grids, from 900 to a million states, against SciPy's direct solver and other libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
from report import Part, number, seconds

SAME = 1e-6  # a peer gave the same answer if every entry of rho agrees to this fraction
NOTE = (
    "rho and E[T]: one call of expected_visits. Time: best of up to five calls, one if long, in a fresh process; "
    "construction apart. Residuals: |rho M - rho|_1 (rho), Bellman over max |V| (values), relative difference "
    "from a central difference (gradient). Difference: largest |rho - rho of steadyrl|, absolute and relative. "
    "Times faster: steadyrl's rho and E[T], by analysis alone and with construction. Peers may take 60 s, construction "
    "included, and 8 GB; one that fails at a size is left out of the larger ones."
)


def run(sizes: list[int], peers: bool, progress: Callable[[str], None]) -> Part:
    columns = ["states", "what", "construction", "time", "peak GB", "residual", "difference", "steadyrl times faster"]
    part = Part("Slippery grids", NOTE, columns)
    names: list[str] = measure.peer("names") if peers else []
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            names = _one_size(part, n, names, Path(folder), progress)
    _figures(part)
    return part


def _one_size(part: Part, n: int, names: list[str], folder: Path, progress: Callable[[str], None]) -> list[str]:
    """Measure everything on the n x n grid; return the peers that are still in the running."""
    files = folder / "chain.npz", folder / "rho.npy"
    progress(f"{n * n} states: steadyrl")
    ours = measure.task("grid_distribution", n, *files)
    _add(part, n, "steadyrl: rho and E[T]", ours, None)
    _add(part, n, "steadyrl: values", measure.attempt("grid_values", n), None)
    _add(part, n, "steadyrl: gradient", measure.attempt("grid_gradient", n), None)
    progress(f"{n * n} states: spsolve")
    _add(part, n, "scipy spsolve", measure.attempt("grid_spsolve", n), ours)
    left = []
    for name in names:
        progress(f"{n * n} states: {name}")
        found = measure.peer(name, *files)
        _add(part, n, name, found, ours)
        if "failed" not in found:
            left.append(name)
    return left


def _add(part: Part, n: int, what: str, found: dict[str, Any], ours: dict[str, Any] | None) -> None:
    states = n * n
    record = {"states": states, "what": what} | found
    part.measurements.append(record)
    if "failed" in found:
        part.rows.append([f"{states:,}", what, "", found["failed"], "", "", "", ""])
        return
    faster = ""
    if ours is not None:
        record["ratio"] = found["seconds"] / ours["seconds"]
        faster = number(record["ratio"])
        if "construction" in found:
            total, our_total = (times["construction"] + times["seconds"] for times in (found, ours))
            record["ratio_with_construction"] = total / our_total
            faster += f" ({number(total / our_total)} with construction)"
    difference = ""
    if "difference" in found:
        difference = f"{number(found['difference'])} ({number(found['relative_difference'])} relative)"
    part.rows.append(
        [
            f"{states:,}",
            what,
            seconds(found.get("construction")),
            seconds(found["seconds"]),
            number(found["peak_gb"]),
            number(found.get("residual")),
            difference,
            faster,
        ]
    )


def _figures(part: Part) -> None:
    at = {(record["states"], record["what"]): record for record in part.measurements}
    for what in ("rho and E[T]", "values", "gradient"):
        record = at.get((10**6, f"steadyrl: {what}"), {})
        if "seconds" in record:
            part.require(f"10^6 states, {what}: time", record["seconds"], 10, " s")
            part.require(f"10^6 states, {what}: peak memory", record["peak_gb"], 3, " GB")
            if what != "gradient":
                part.require(f"10^6 states, {what}: residual", record["residual"], 1e-12)
    spsolve = at.get((10**6, "scipy spsolve"), {})
    if "ratio" in spsolve:
        part.require("10^6 states: times faster than scipy's spsolve", spsolve["ratio"], 1, above=True)
    _peer_figures(part)


def _peer_figures(part: Part) -> None:
    """How many times faster than the best peer at 10^4 states, of those that answer the same."""
    same = [
        record
        for record in part.measurements
        if record["states"] == 10**4 and record.get("relative_difference", 1.0) < SAME
    ]
    if not same:
        return
    best = min(same, key=lambda record: record["seconds"])
    part.require(f"10^4 states: times faster than the best peer ({best['what']})", best["ratio"], 100, above=True)
    best = min(same, key=lambda record: record["seconds"] + record["construction"])
    what = f"10^4 states: times faster than the best peer with construction ({best['what']})"
    part.require(what, best["ratio_with_construction"], 100, above=True)
