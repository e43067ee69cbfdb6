"""Rates as ratios to a peer's, measured in turns within one run, and what is written of them.

A busy machine then slows both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import warnings
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

SEED = 0
RESULTS = Path(__file__).parent / "results"
Part = Callable[[int], list[dict[str, Any]]]


def compare(
    name: str, ours: Callable[[], float], peer: Callable[[], float], target: float, rounds: int
) -> dict[str, Any]:
    """Return the median ratio of two rates (steps/s), measured in turns: peer, ours, peer, ours, ..., peer."""
    rates, peers = [], [peer()]
    for _ in range(rounds):
        rates.append(ours())
        peers.append(peer())
    # Each of our runs is set against the mean of the peer's runs before and after it.
    ratios = [rate / ((before + after) / 2) for rate, before, after in zip(rates, peers[:-1], peers[1:], strict=True)]
    found = {
        "name": name,
        "ratio": round(statistics.median(ratios), 3),
        "target": target,
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "steps_per_second": round(statistics.median(rates)),
        "peer_steps_per_second": round(statistics.median(peers)),
        "rounds": rounds,
    }
    print(f"{name}: {found['ratio']} (at least {target}; {found['lowest']} to {found['highest']})", flush=True)
    return found


def main(
    script: str,
    about: str | None,
    parts: dict[str, Part],
    packages: Iterable[str],
    table: Callable[[dict[str, Any]], str],
    *,
    rounds: int,
) -> None:
    """Run the parts that the command line names, or all of them."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="which parts to run; all if none is named")
    parser.add_argument("--rounds", type=int, default=rounds, help="times that steadyrl and its peer take turns")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    run_parts(script, parts, arguments.parts or parts, arguments.rounds, packages, table)


def run_parts(
    script: str,
    parts: dict[str, Part],
    chosen: Iterable[str],
    rounds: int,
    packages: Iterable[str],
    table: Callable[[dict[str, Any]], str],
) -> None:
    """Run parts of a benchmark by name; results of the others stay as they are in its files."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{script}.json"
    results = json.loads(path.read_text())["parts"] if path.exists() else {}
    for name in chosen:
        load = os.getloadavg()[0]
        results[name] = {
            "command": f"python benchmarks/{script}.py {name} --rounds {rounds}",
            "seed": SEED,
            "load_average_before": round(load, 1),
            "date": datetime.now(timezone.utc).date().isoformat(),
            "results": parts[name](rounds),
        }
        path.write_text(json.dumps({"machine": machine(packages), "parts": results}, indent=2) + "\n")
        (RESULTS / f"{script}.md").write_text(table(results))


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def ratio_table(results: dict[str, Any]) -> list[str]:
    """Return the lines of a table of all ratios."""
    lines = ["| what | ratio | at least | lowest to highest | steps/s | peer's steps/s |", "|---|---|---|---|---|---|"]
    for part in results.values():
        for r in part["results"]:
            if "target" in r:
                spread = f"{r['lowest']} to {r['highest']}"
                rates = f"{r['steps_per_second']:,} | {r['peer_steps_per_second']:,}"
                lines.append(f"| {r['name']} | {r['ratio']} | {r['target']} | {spread} | {rates} |")
    return lines
