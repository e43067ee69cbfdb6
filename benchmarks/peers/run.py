"""One peer on one slippery grid, in the peers' own environment; prints one line of JSON.

    python peers/run.py PEER CHAIN.npz RHO.npy

CHAIN holds the Markov chain as a sparse matrix, RHO the stationary distribution to compare with. `PEERS` lists
the peers. Construction and analysis may take 60 s, after which the system's alarm ends the process, and 8 GB.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from importlib.metadata import version

import numpy as np
import scipy.sparse as sp

LIMIT_SECONDS = 60
LIMIT_BYTES = 8 * 2**30


def quantecon(matrix):
    from quantecon import MarkovChain

    _ = MarkovChain(np.full((2, 2), 0.5)).stationary_distributions  # its compiled code, compiled
    return lambda: MarkovChain(matrix), lambda chain: chain.stationary_distributions[0]


def pydtmc(matrix):
    from pydtmc import MarkovChain

    return lambda: MarkovChain(matrix.toarray()), lambda chain: chain.stationary_distributions[0]


def storm(*options, solver=None):
    """Storm's steady state, with one of its solvers of linear equations and options of that solver."""

    def task(matrix):
        import stormpy

        stormpy.set_settings(list(options))
        environment = stormpy.Environment()
        if solver is not None:
            kind = getattr(stormpy.EquationSolverType, solver)
            environment.solver_environment.set_linear_equation_solver_type(kind)

        def analyse(model):
            return np.array(stormpy.compute_steady_state_distribution(environment, model).get_values())

        return lambda: _storm_model(stormpy, matrix), analyse

    return task


def _storm_model(stormpy, matrix):
    n = matrix.shape[0]
    builder = stormpy.SparseMatrixBuilder(rows=n, columns=n)
    rows = np.repeat(np.arange(n), np.diff(matrix.indptr)).tolist()
    for entry in zip(rows, matrix.indices.tolist(), matrix.data.tolist(), strict=True):
        builder.add_next_value(*entry)
    labels = stormpy.storage.StateLabeling(n)
    labels.add_label("init")
    labels.add_label_to_state("init", n - 1)
    components = stormpy.SparseModelComponents(transition_matrix=builder.build(), state_labeling=labels)
    return stormpy.storage.SparseDtmc(components)


PEERS = {
    "QuantEcon": quantecon,
    "PyDTMC": pydtmc,
    "Storm, as it comes": storm(),
    "Storm, state elimination": storm(solver="elimination"),
    "Storm, sparse LU": storm("--eigen:method", "sparselu", solver="eigen"),
    "Storm, BiCGSTAB to 1e-13": storm("--eigen:precision", "1e-13", "--eigen:maxiter", "100000", solver="eigen"),
}


def measure(task, matrix, expected, repeats=5, enough=2.0):
    """Best time of a few analyses, each of a model that has not been analysed before."""
    build, analyse = task(matrix)
    constructions, analyses = [], []
    while len(analyses) < repeats and sum(analyses) + sum(constructions) < enough:
        signal.alarm(LIMIT_SECONDS)
        start = time.perf_counter()
        model = build()
        built = time.perf_counter()
        rho = analyse(model)
        signal.alarm(0)
        constructions.append(built - start)
        analyses.append(time.perf_counter() - built)
    return {
        "construction": min(constructions),
        "seconds": min(analyses),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "difference": float(np.abs(rho - expected).max()),
        "relative_difference": float(np.abs(rho / expected - 1).max()),
    }


def main(name, chain, rho):
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    try:
        result = measure(PEERS[name], sp.load_npz(chain), np.load(rho))
    except MemoryError:
        result = {"failed": f"needs over {LIMIT_BYTES / 2**30:.0f} GB"}
    except Exception as error:
        result = {"failed": f"{type(error).__name__}: {error}"[:100]}
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:] == ["versions"]:
        print(json.dumps({name: version(name) for name in ("numpy", "scipy", "quantecon", "PyDTMC", "stormpy")}))
    elif sys.argv[1:] == ["names"]:
        print(json.dumps(list(PEERS)))
    else:
        main(*sys.argv[1:])
