"""The study of learning: makes every run of the plan, two at a time, and can be stopped and started at any moment.

    python benchmarks/learning/study.py                  what is missing of the whole study
    python benchmarks/learning/study.py --scale quick    a test of the machinery in a few minutes; no evidence
    python benchmarks/learning/study.py --part main      one part

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runs import Run, plan, quick_plan

HERE = Path(__file__).parent
ROWS = HERE / "rows.jsonl"


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


def start(run: Run, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a run in a process of its own, which writes its row into the folder."""
    out = folder / f"{abs(hash(run.key))}.json"
    command = [sys.executable, str(HERE / "one_run.py"), json.dumps(asdict(run)), str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE), out


def make(runs: list[Run], path: Path, workers: int) -> None:
    """Make the runs that are missing, and say after each how long the rest will take."""
    rows = read_rows(path)
    there = {key_of(row) for row in rows}
    missing = [run for run in runs if run.key not in there]
    print(
        f"{len(runs)} runs: {len(runs) - len(missing)} are there, {len(missing)} to make, {workers} at a time",
        flush=True,
    )
    begin, done, queue = time.perf_counter(), 0, iter(missing)
    running: dict[Run, tuple[subprocess.Popen[bytes], Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            while True:
                for run in itertools.islice(queue, workers - len(running)):
                    running[run] = start(run, Path(folder))
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
                    rows.append(json.loads(out.read_text()))
                    write_rows(path, rows)
                    done += 1
                    report(rows[-1], done, len(missing), begin)
        finally:
            for process, _ in running.values():
                process.kill()


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
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--out", type=Path, help="file of the rows; by default rows.jsonl beside this script")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    runs = quick_plan() if options.scale == "quick" else plan()
    if options.part:
        runs = [run for run in runs if run.part == options.part]
    path = options.out or (HERE / "quick.jsonl" if options.scale == "quick" else ROWS)
    if options.scale == "quick" and options.out is None:
        path.unlink(missing_ok=True)  # a test begins anew
    try:
        make(runs, path, options.workers)
    except KeyboardInterrupt:
        print("stopped; the rows so far are kept, and the same command goes on from here", flush=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
