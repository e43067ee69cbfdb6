"""Benchmark of the exact analysis: speed, memory and digits, against SciPy, QuantEcon, PyDTMC and Storm.

    python benchmarks/exact.py            everything, about a quarter of an hour
    python benchmarks/exact.py --quick    small sizes, no peers: does it run?

Every measurement is a process of its own. Results go to benchmarks/results/exact.md and exact.json.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from datetime import datetime, timezone

from rich.console import Console

import accuracy
import grids
import measure
import report
import time_limits

SEED = 0
GRIDS = [30, 60, 100, 300, 1000]
LIMITED = [(32, 125), (32, 250), (32, 500), (32, 1000), (32, 2000), (64, 1000)]
STIFF = [(60, 5), (120, 3), (200, 2), (300, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of steadyrl's exact analysis.")
    parser.add_argument("--quick", action="store_true", help="small sizes and no peers, to see that it runs")
    parser.add_argument("--no-peers", action="store_true", help="without QuantEcon, PyDTMC and Storm")
    options = parser.parse_args()
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a log
    with console.status("...") as status:

        def progress(what: str) -> None:
            if console.is_terminal:
                status.update(what)
            else:
                console.print(what)

        versions = _peers(console, progress) if not (options.quick or options.no_peers) else {}
        parts = []
        for run in _parts(options.quick, bool(versions), progress):
            parts.append(run())
            parts[-1].show(console)
    report.figures_part(parts).show(console)
    command = shlex.join(["python", "benchmarks/exact.py", *sys.argv[1:]])
    made_by = report.provenance(command, SEED, started, versions)
    stem = "exact-quick" if options.quick else "exact"
    for path in report.write(measure.HERE / "results", stem, made_by, parts):
        console.print(f"wrote {path.relative_to(measure.HERE.parent)}")


def _parts(quick: bool, peers: bool, progress: Callable[[str], None]) -> list[Callable[[], report.Part]]:
    """The parts of the benchmark, each to be called."""
    if quick:
        return [
            lambda: grids.run([10, 50], False, progress),
            lambda: time_limits.run([(10, 100), (10, 200)], SEED, progress),
            lambda: accuracy.stiff([(40, 2)], SEED, progress),
            lambda: accuracy.gradients(20, SEED, progress),
        ]
    return [
        lambda: grids.run(GRIDS, peers, progress),
        lambda: time_limits.run(LIMITED, SEED, progress),
        lambda: accuracy.stiff(STIFF, SEED, progress),
        lambda: accuracy.gradients(1000, SEED, progress),
    ]


def _peers(console: Console, progress: Callable[[str], None]) -> dict[str, str]:
    """Return the peers' versions; none, with a word why, if their environment cannot be built."""
    progress("an environment for the peers")
    problem = measure.prepare_peers()
    if problem is not None:
        console.print(f"without peers: {problem}")
        return {}
    return measure.peer("versions")


if __name__ == "__main__":
    main()
