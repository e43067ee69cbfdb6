"""Cost of what is computed from episode lengths: mixing times of long lengths, a diagnosis, reading large logs, drift.

    python benchmarks/lengths_cost.py

Every case runs in a process of its own, so that its peak memory is its own. Figures go to
benchmarks/results/lengths_cost.json: seconds of processor time (which other programs on the machine hardly change) and
of the clock, and the growth of peak memory.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import steadyrl
from steadyrl.common.storage import write_atomically
from steadyrl.lengths import find_drift, read_lengths

RESULTS = Path(__file__).parent / "results" / "lengths_cost.json"
SEED = 0
FOLDER = tempfile.TemporaryDirectory()


def uniform(longest):
    """Return 5,000 lengths, evenly spread up to the longest."""
    return steadyrl.EpisodeLengths.from_gymnasium(np.random.default_rng(SEED).integers(1, longest, 5000))


def nearly_fixed(longest):
    """Return lengths of which 2% are a step longer than the rest: they mix after thousands of episodes."""
    return steadyrl.EpisodeLengths.from_gymnasium([longest - 1] * 98 + [longest] * 2)


def within(lengths):
    """Return the mixing time, or "given up" if it is beyond the default reach."""
    try:
        return steadyrl.phase_mixing_time(lengths)
    except steadyrl.SteadyrlError:
        return "given up"


def monitor(rows):
    """Return the name of a monitor.csv with so many rows."""
    file = Path(FOLDER.name) / "monitor.csv"
    lengths = np.random.default_rng(SEED).integers(20, 500, 100_000).tolist()
    block = "".join(f"{1.5 * n:.3f},{n},{0.01 * i:.2f}\n" for i, n in enumerate(lengths))
    with file.open("w") as out:
        out.write('#{"t_start": 1.0, "env_id": "Hopper-v5"}\nr,l,t\n')
        for _ in range(rows // len(lengths)):
            out.write(block)
    return file


def logged(episodes, longest=None):
    """Return the name of a csv of episodes with the step at which each ended, of 64 environments.

    If `longest` is given, one episode has so many steps.
    """
    file = Path(FOLDER.name) / "steps.csv"
    lengths = np.random.default_rng(SEED).integers(20, 500, (64, episodes // 64))
    if longest is not None:
        lengths[0, lengths.shape[1] // 2] = longest
    env = np.repeat(np.arange(64), episodes // 64)
    steps, ran = 64 * np.cumsum(lengths, axis=1).ravel(), lengths.ravel()
    with file.open("w") as out:
        out.write("global_step,l,r,env\n")
        out.writelines(f"{steps[i]},{ran[i]},{1.5 * ran[i]},{env[i]}\n" for i in np.argsort(steps, kind="stable"))
    return file


CASES = {
    "phase_mixing_time, uniform lengths up to 10^5": lambda: (within, uniform(10**5)),
    "phase_mixing_time, uniform lengths up to 10^6": lambda: (within, uniform(10**6)),
    "phase_mixing_time, uniform lengths up to 10^7": lambda: (within, uniform(10**7)),
    "phase_mixing_time, lengths 100 and 101": lambda: (within, nearly_fixed(100)),
    "phase_mixing_time, lengths 10^4 and 10^4 + 1": lambda: (within, nearly_fixed(10**4)),
    "diagnose_lengths, lengths 1 and 8000": lambda: (steadyrl.diagnose_lengths, [1, 8000] * 50),
    "diagnose_lengths, uniform lengths up to 10^4": lambda: (
        steadyrl.diagnose_lengths,
        np.random.default_rng(SEED).integers(1, 10**4, 2000),
    ),
    "diagnose_lengths, uniform lengths up to 10^5": lambda: (
        steadyrl.diagnose_lengths,
        np.random.default_rng(SEED).integers(1, 10**5, 2000),
    ),
    "monitor.csv of 10^6 rows": lambda: (read_lengths, monitor(10**6)),
    "monitor.csv of 10^7 rows": lambda: (read_lengths, monitor(10**7)),
    "audit of 10^4 episodes of 64 environments": lambda: (steadyrl.audit_log, logged(10**4)),
    "audit of 10^5 episodes of 64 environments": lambda: (steadyrl.audit_log, logged(10**5)),
    "audit of 10^4 episodes, one of 10^4 steps": lambda: (steadyrl.audit_log, logged(10**4, 10**4)),
    "audit of 10^4 episodes, one of 10^5 steps": lambda: (steadyrl.audit_log, logged(10**4, 10**5)),
    "find_drift, 10^6 episodes": lambda: (find_drift, np.random.default_rng(SEED).integers(20, 500, 10**6)),
}


def measure(name):
    """Run one case and print its figures."""
    steadyrl.diagnose_lengths([5, 6, 7] * 40)  # imports what is imported when first used
    call, argument = CASES[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, processor = time.perf_counter(), time.process_time()
    found = call(argument)
    figures = {
        "processor_seconds": round(time.process_time() - processor, 3),
        "seconds": round(time.perf_counter() - clock, 3),
        "megabytes": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024),
    }
    if call is within:
        figures["mixing_time"] = found
    print(json.dumps(figures))


def main():
    """Run all cases, and write their figures."""
    figures = {}
    for name in CASES:
        ran = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        figures[name] = json.loads(ran.stdout)
        print(name, figures[name], flush=True)
    about = {
        "command": "python benchmarks/lengths_cost.py",
        "seed": SEED,
        "version": steadyrl.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    write_atomically(RESULTS, (json.dumps({**about, "figures": figures}, indent=2) + "\n").encode())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        main()
