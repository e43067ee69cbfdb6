"""The study of learning: makes every run of the plan, two at a time, and can be stopped and started at any moment.

    python benchmarks/learning/study.py                  what is missing of the whole study
    python benchmarks/learning/study.py --scale quick    a test of the machinery in a few minutes; no evidence
    python benchmarks/learning/study.py --part main      one part

A row is written when its run has ended (rows.jsonl, beside this script), so a kill loses two runs at most. Rows that
are there are not made again. `python benchmarks/learning/analysis.py` makes tables and figures of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
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


def one_run(run: Run) -> dict[str, Any]:
    """Make one run in a process of its own."""
    from one_run import train

    return train(run)


def make(runs: list[Run], path: Path, workers: int) -> None:
    """Make the runs that are missing, and say after each how long the rest will take."""
    rows = read_rows(path)
    there = {key_of(row) for row in rows}
    missing = [run for run in runs if run.key not in there]
    print(
        f"{len(runs)} runs, {len(runs) - len(missing)} are there, {len(missing)} to make, {workers} at a time",
        flush=True,
    )
    begin, done = time.perf_counter(), 0
    context = multiprocessing.get_context("spawn")
    # One run per process: EnvPool keeps threads, and memory is given back.
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        queue = iter(missing)
        running: dict[Future[dict[str, Any]], Run] = {}

        def start() -> None:
            run = next(queue, None)
            if run is not None:
                running[pool.submit(one_run, run)] = run

        for _ in range(workers):
            start()
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run = running.pop(future)
                try:
                    rows.append(future.result())
                except Exception as error:
                    print(f"{run.key} failed ({type(error).__name__}: {error}); it is made again next time", flush=True)
                else:
                    write_rows(path, rows)
                    done += 1
                    report(rows[-1], done, len(missing), begin)
                start()


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
    try:
        make(runs, path, options.workers)
    except KeyboardInterrupt:
        print("stopped; the rows so far are kept, and the same command goes on from here", flush=True)
        os._exit(130)


if __name__ == "__main__":
    main()
