"""steadyrl's multigrid against PyAMG: time and memory to the same residual, for x = b + x Q and y = c + Q y.

    python benchmarks/multigrid_peers.py                     in the peers' environment (peers/requirements.txt)
    python benchmarks/multigrid_peers.py --python PYTHON     with PyAMG from another interpreter's environment
    python benchmarks/multigrid_peers.py --quick             a small grid

The chains are slippery grids of 250,000 and 1,000,000 states (grids.py) under two policies: the uniform one, whose
matrix is symmetric, and a random one, whose matrix is not. BiCGSTAB runs to a relative residual of 1e-9 with one
multigrid cycle as preconditioner, in both libraries; each run is a process of its own. Seconds are of CPU time, which
other work on the machine changes little; both libraries run in one thread. "error" is the relative error of the
expected episode length, against steadyrl's refined solution. Results go to benchmarks/results/multigrid_peers.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

SEED = 0
RTOL = 1e-9
SIZES = [500, 1000]
PEER_METHODS = (
    "smoothed aggregation",
    "smoothed aggregation, energy",
    "smoothed aggregation, symmetric",
    "Ruge-Stuben",
    "AIR",
)


def main() -> None:
    """Run every method on every system, and write the results."""
    parser = argparse.ArgumentParser(description="steadyrl's multigrid against PyAMG.")
    parser.add_argument("--quick", action="store_true", help="one small grid, to see that it runs")
    parser.add_argument("--python", help="the interpreter that has PyAMG; by default the peers' environment")
    parser.add_argument("--one", nargs=2, metavar=("WHAT", "SYSTEM"), help="one step, in this process")
    parser.add_argument("--grid", nargs=2, metavar=("N", "POLICY"), help="with --one system: which")
    options = parser.parse_args()
    if options.one:
        what, path = options.one
        print(json.dumps(_write_system(path, *options.grid) if what == "system" else _ours(path)))
        return
    import measure
    import report

    peer = options.python or str(measure.PEERS_PYTHON)
    if options.python is None and (problem := measure.prepare_peers()) is not None:
        sys.exit(f"the peers' environment cannot be built: {problem}")
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    script = str(measure.HERE / "peers" / "amg.py")
    versions = measure._run([peer, script, "version", "-", "1"])
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "system.npz")
        for n in [60] if options.quick else SIZES:
            for policy in ("uniform", "random"):
                here = [sys.executable, __file__, "--one"]
                truth = measure._run([*here, "system", path, "--grid", str(n), policy])
                runs = {"steadyrl": [*here, "solve", path]}
                runs |= {f"PyAMG, {m}": [peer, script, m, path, str(RTOL)] for m in PEER_METHODS}
                for name, command in runs.items():
                    found = measure._run(command)
                    for side in ("left", "right"):
                        if f"{side}_sum" in found:
                            found[f"{side}_error"] = abs(found.pop(f"{side}_sum") / truth["length"] - 1)
                    rows.append({"states": n * n, "policy": policy, "method": name} | found)
                    print(rows[-1], flush=True)
                    _write(rows, report.provenance(_command(options.quick), SEED, started, versions), options.quick)


def _command(quick: bool) -> str:
    return "python benchmarks/multigrid_peers.py --quick" if quick else "python benchmarks/multigrid_peers.py"


def _write(rows: list[dict[str, Any]], made_by: dict[str, Any], quick: bool) -> None:
    """Write what is measured so far; a run that is stopped leaves a file that says so."""
    of = (1 if quick else len(SIZES)) * 2 * (1 + len(PEER_METHODS))
    result = made_by | {"rtol": RTOL, "complete": len(rows) == of, "measurements": rows}
    name = "multigrid_peers-quick.json" if quick else "multigrid_peers.json"
    (Path(__file__).parent / "results" / name).write_text(json.dumps(result, indent=2) + "\n")


def _write_system(path: str, n: str, policy: str) -> dict[str, Any]:
    """Write A, b and c of a grid; return the expected episode length, from the refined solution."""
    import numpy as np
    import scipy.sparse as sp

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from processes import slippery_grid
    from steadyrl import average_episode_length, uniform_policy
    from steadyrl.exact.chain import episode_chain

    process = slippery_grid(int(n))
    pi = uniform_policy(process)
    if policy == "random":
        pi = np.random.default_rng(SEED).dirichlet(np.full(process.n_actions, 5.0), process.n_states)
    chain = episode_chain(process, pi)
    q = chain.matrix[chain.inside][:, chain.inside].tocsr()
    leave = np.asarray(chain.matrix[chain.inside][:, process.terminal].sum(axis=1)).ravel()
    off = q - sp.diags_array(q.diagonal())
    a = (sp.diags_array(off.sum(axis=1) + leave) - off).tocsr()
    a.eliminate_zeros()
    np.savez(
        path, data=a.data, indices=a.indices, indptr=a.indptr, b=process.reset[chain.inside], c=np.ones(len(leave))
    )
    return {"length": average_episode_length(process, pi) - 1}


def _ours(path: str) -> dict[str, Any]:
    import resource
    import time

    import numpy as np
    import scipy.sparse as sp

    from steadyrl.numerics import multigrid

    with np.load(path) as stored:
        a = sp.csr_array((stored["data"], stored["indices"], stored["indptr"]))
        b, c = stored["b"], stored["c"]
    found: dict[str, Any] = {}
    begun = time.process_time()
    hierarchy = multigrid.build(a)
    found["right_setup_seconds"] = time.process_time() - begun
    for side, rhs, other in (("right", c, b), ("left", b, c)):
        begun = time.process_time()
        levels = hierarchy if side == "right" else hierarchy.transposed
        built = time.process_time()
        y = multigrid.solve(levels, rhs, rtol=RTOL)
        done = time.process_time()
        assert y is not None
        if side == "left":
            found["left_setup_seconds"] = built - begun
        found[f"{side}_solve_seconds"] = done - built
        found[f"{side}_residual"] = float(np.linalg.norm(rhs - levels.matrix @ y) / np.linalg.norm(rhs))
        found[f"{side}_sum"] = float(y @ other)
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return found


if __name__ == "__main__":
    main()
