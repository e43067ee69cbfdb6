"""The study of learning: makes every run of the plan, two at a time, and can be stopped and started at any moment.

    python benchmarks/learning/study.py                  what is missing of the whole study
    python benchmarks/learning/study.py --scale quick    a test of the machinery in a few minutes; no evidence
    python benchmarks/learning/study.py --part main      one part
    python benchmarks/learning/study.py --check          makes every row again up to its second evaluation, and compares
                                                         (rows made on another kind of processor differ)

A row is written when its run has ended (rows.jsonl, beside this script), so a kill loses two runs at most. Rows that
are there are not made again. `python benchmarks/learning/analysis.py` makes tables, figures and docs/evidence.md of
them; mechanism.py and parallel.py, beside this script, measure what the protocol added later.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runs import EVALUATIONS, Run, plan, quick_plan

HERE = Path(__file__).parent
ROWS = HERE / "rows.jsonl"
CHECKED = 2  # evaluations


def key_of(row: dict[str, Any]) -> str:
    """Return the name of the run that a row is of."""
    return Run(**{name: row[name] for name in Run.__dataclass_fields__}).key


def read_rows(path: Path = ROWS) -> list[dict[str, Any]]:
    """Return the rows of a file; a last line that a kill has cut off is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{path.name}: an incomplete line is ignored, its run is made again", flush=True)
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the file in one step, so that it is never half-written."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(temporary, path)


def start(run: Run, folder: Path, moments: int) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a run in a process of its own, which writes its row into the folder."""
    out = folder / f"{abs(hash(run.key))}.json"
    command = [sys.executable, str(HERE / "one_run.py"), json.dumps(asdict(run)), str(out), str(moments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE), out


def rows_of(runs: list[Run], workers: int, moments: int = EVALUATIONS) -> Iterator[dict[str, Any]]:
    """Make runs, so many at a time, and yield the row of each when it has ended; one that fails has none."""
    queue = iter(runs)
    running: dict[Run, tuple[subprocess.Popen[bytes], Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            while True:
                for run in itertools.islice(queue, workers - len(running)):
                    running[run] = start(run, Path(folder), moments)
                if not running:
                    return
                time.sleep(0.5)
                for run, (process, out) in list(running.items()):
                    if process.poll() is None:
                        continue
                    del running[run]
                    if process.returncode != 0 or not out.exists():
                        why = process.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
                        print(f"{run.key} failed ({' '.join(why)}); the same command makes it again", flush=True)
                        continue
                    yield json.loads(out.read_text())
        finally:
            for process, _ in running.values():
                process.kill()


def make(runs: list[Run], path: Path, workers: int) -> None:
    """Make the runs that are missing, and say after each how long the rest will take."""
    rows = read_rows(path)
    there = {key_of(row) for row in rows}
    missing = [run for run in runs if run.key not in there]
    print(
        f"{len(runs)} runs: {len(runs) - len(missing)} are there, {len(missing)} to make, {workers} at a time",
        flush=True,
    )
    begin = time.perf_counter()
    for done, row in enumerate(rows_of(missing, workers), 1):
        rows.append(row)
        write_rows(path, rows)
        report(row, done, len(missing), begin)


def check(runs: list[Run], path: Path, workers: int) -> int:
    """Make rows again up to their second evaluation; return how many differ from what is recorded."""
    recorded = {key_of(row): row for row in read_rows(path)}
    there = [run for run in runs if run.key in recorded]
    different = 0
    for done, row in enumerate(rows_of(there, workers, CHECKED), 1):
        old = recorded[key_of(row)]
        same = row["evaluations"] == old["evaluations"][:CHECKED]
        different += not same
        print(f"[{done}/{len(there)}] {key_of(row)}: {'as recorded' if same else 'DIFFERENT'}", flush=True)
    print(f"{different} of {len(there)} rows differ from those recorded")
    return different


def report(row: dict[str, Any], done: int, total: int, begin: float) -> None:
    """Say what a run gave, and when the rest will be there."""
    left = (time.perf_counter() - begin) / done * (total - done)
    last = row["evaluations"][-1]["mean"]
    area = statistics.mean(e["mean"] for e in row["evaluations"])
    print(
        f"[{done}/{total}, {left / 3600:.1f} h left] {key_of(row)}: last {last:.1f}, mean over training {area:.1f}, "
        f"{row['cuts']} cuts, {row['seconds']:.0f} s",
        flush=True,
    )


def main() -> None:
    """Read the command line, and make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=("whole", "quick"), default="whole", help="the study, or a short test of it")
    parser.add_argument("--part", help="only runs of this part: main, arms, regimes, a2c, few, normalised, ...")
    parser.add_argument("--arm", help="only runs of this arm: 'as it is', anytime, designed, ...")
    parser.add_argument("--check", action="store_true", help="compare rows with new runs of their first fifth")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--out", type=Path, help="file of the rows; by default rows.jsonl beside this script")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    runs = quick_plan() if options.scale == "quick" else plan()
    if options.part:
        runs = [run for run in runs if run.part == options.part]
    if options.arm:
        runs = [run for run in runs if run.arm == options.arm]
    path = options.out or (HERE / "quick.jsonl" if options.scale == "quick" else ROWS)
    if options.scale == "quick" and options.out is None and not options.check:
        path.unlink(missing_ok=True)  # a test begins anew
    try:
        if options.check:
            sys.exit(min(1, check(runs, path, options.workers)))
        make(runs, path, options.workers)
    except KeyboardInterrupt:
        print("stopped; the rows so far are kept, and the same command goes on from here", flush=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
