"""How long check_episodic takes and how much memory it needs, with a million states and many actions.

    python benchmarks/large_process.py            10^6 states x 10 and x 100 actions, about 5 minutes
    python benchmarks/large_process.py --quick    small sizes: does it run?

Three models, each measured in a fresh process:

- *grid*: actions move to one of four neighbours of a square grid, and a policy can stay on it for ever;
- *random*: actions lead to random states, and almost all of them form one end component;
- *ladder*: actions lead to random states further on, so that every policy's episodes end.

Results go to benchmarks/results/large_process.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

SEED = 0
MODELS = ("grid", "random", "ladder")
SIZES = [(1_000_000, 10), (1_000_000, 100)]
QUICK = [(2_500, 3)]


def main() -> None:
    """Measure every model and size, and write the results."""
    parser = argparse.ArgumentParser(description="Benchmark of check_episodic on large processes.")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "STATES", "ACTIONS"), help="measure one, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_measure(options.one[0], int(options.one[1]), int(options.one[2]))))
        return
    import measure
    import report

    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    rows = []
    for states, actions in QUICK if options.quick else SIZES:
        for model in MODELS:
            found = measure._run([sys.executable, __file__, "--one", model, str(states), str(actions)])
            rows.append({"model": model, "states": states, "actions": actions} | found)
            print(rows[-1], flush=True)
    command = shlex.join(["python", "benchmarks/large_process.py", *sys.argv[1:]])
    result = report.provenance(command, SEED, started, {}) | {"measurements": rows}
    name = "large_process-quick.json" if options.quick else "large_process.json"
    path = Path(__file__).parent / "results" / name
    path.write_text(json.dumps(result, indent=2) + "\n")


def _measure(model: str, states: int, actions: int) -> dict[str, Any]:
    from steadyrl import LearningProcess, check_episodic

    matrices, initial = _model(model, states, actions)
    begun = time.perf_counter()
    process = LearningProcess(matrices, [0.0] * states, initial)
    built = time.perf_counter()
    entries = sum(matrix.nnz for matrix in matrices)
    del matrices
    before = _peak_gb()
    check_begun = time.perf_counter()
    check = check_episodic(process)
    seconds = time.perf_counter() - check_begun
    return {
        "transitions": entries,
        "construction_seconds": round(built - begun, 2),
        "peak_gb_after_construction": round(before, 2),
        "check_seconds": round(seconds, 2),
        "peak_gb": round(_peak_gb(), 2),
        "finite": check.finite,
        "states_in_witness": len(check.witness),
    }


def _model(model: str, n: int, actions: int) -> tuple[list[Any], Any]:
    """Return the transitions and the initial distribution; state 0 is terminal and leads to state 1."""
    import numpy as np
    import scipy.sparse as sp

    rng = np.random.default_rng(SEED)
    states = np.arange(n)
    matrices = []
    for _ in range(actions):
        if model == "grid":
            step = rng.choice([1, -1, int(n**0.5), -int(n**0.5)], n)
            target = np.clip(states + step, 0, n - 1)
        elif model == "random":
            target = rng.integers(1, n, n)
            target[rng.random(n) < 1e-3] = 0
        else:
            target = states + rng.integers(1, 1000, n)
            target[target >= n] = 0
        target[0] = 1
        matrices.append(sp.csr_array((np.ones(n), target.astype(np.int32), np.arange(n + 1, dtype=np.int32)), (n, n)))
    initial = np.zeros(n)
    initial[0] = 1
    return matrices, initial


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
