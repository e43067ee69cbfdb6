"""PyAMG on one linear system: python benchmarks/peers/amg.py METHOD SYSTEM.npz RTOL, in the peers' environment.

Prints one line of JSON: seconds of CPU time to set up and to solve for both sides, relative residuals, and peak memory.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyamg
import scipy.sparse as sp
from scipy.sparse.linalg import bicgstab

METHODS: dict[str, Callable[[Any], Any]] = {
    "smoothed aggregation": lambda a: pyamg.smoothed_aggregation_solver(a, symmetry="nonsymmetric"),
    "smoothed aggregation, energy": lambda a: pyamg.smoothed_aggregation_solver(
        a, symmetry="nonsymmetric", smooth=("energy", {"krylov": "gmres", "maxiter": 2})
    ),
    "smoothed aggregation, symmetric": lambda a: pyamg.smoothed_aggregation_solver(a, symmetry="symmetric"),
    "Ruge-Stuben": lambda a: pyamg.ruge_stuben_solver(a),
    "AIR": lambda a: pyamg.air_solver(a),
}


def main() -> None:
    """Solve A y = c and A' x = b by one method."""
    method, path, rtol = sys.argv[1], sys.argv[2], float(sys.argv[3])
    if method == "version":
        print(json.dumps({"pyamg": pyamg.__version__, "numpy": np.__version__}))
        return
    with np.load(path) as stored:
        a = sp.csr_matrix((stored["data"], stored["indices"], stored["indptr"]))
        sides = {"right": (a, stored["c"]), "left": (a.T.tocsr(), stored["b"])}
    found: dict[str, Any] = {}
    for side, (matrix, rhs) in sides.items():
        begun = time.process_time()
        solver = METHODS[method](matrix)
        built = time.process_time()
        # SciPy's BiCGSTAB, as in steadyrl, from the result of one cycle on: from zero, it breaks down for b, which has
        # a single entry, since a Gauss-Seidel sweep leaves no residual in the state that it visits last.
        cycle = solver.aspreconditioner(cycle="V")
        y, info = bicgstab(matrix, rhs, x0=cycle @ rhs, rtol=rtol, atol=0.0, maxiter=100, M=cycle)
        done = time.process_time()
        found[f"{side}_converged"] = info == 0
        found[f"{side}_setup_seconds"] = built - begun
        found[f"{side}_solve_seconds"] = done - built
        found[f"{side}_residual"] = float(np.linalg.norm(rhs - matrix @ y) / np.linalg.norm(rhs))
        found[f"{side}_sum"] = float(y @ sides["left" if side == "right" else "right"][1])  # b y = x c = E[sum of c]
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(found))


if __name__ == "__main__":
    main()
