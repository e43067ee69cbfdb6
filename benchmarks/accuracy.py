"""Parts 3 and 4: the digits of rho on stiff processes, and three routes to the gradient."""

from __future__ import annotations

from collections.abc import Callable

import measure
from report import Part, number, seconds

STIFF_NOTE = (
    "Largest relative error of any entry of rho, against mpmath with 80 digits, on nearly decomposable processes: "
    "four clusters, off-diagonal probabilities taken as exact and the diagonal as what is left to one."
)
GRADIENT_NOTE = (
    "Largest relative difference, by norm, over random processes with normal logits: the adjoint solve "
    "(policy_gradient) against Theorem 5 (steady_state_policy_gradient) and against complex steps through "
    "dense solves. Processes whose gradient is zero up to rounding (below 1e-14 of rewards times E[T]) "
    "are counted apart."
)


def stiff(cases: list[tuple[int, int]], seed: int, progress: Callable[[str], None]) -> Part:
    columns = [
        "states",
        "seed",
        "smallest probability",
        "smallest share",
        "steadyrl",
        "numpy",
        "spsolve",
        "mpmath took",
    ]
    part = Part("Accuracy on stiff processes", STIFF_NOTE, columns)
    for n, repeats in cases:
        for i in range(repeats):
            progress(f"stiff process of {n} states, {i + 1} of {repeats}")
            found = measure.task("stiff", n, seed + i)
            part.measurements.append({"states": n, "seed": seed + i} | found)
            numbers = [found[key] for key in ("smallest_probability", "smallest_share", "steadyrl", "numpy", "spsolve")]
            part.rows.append([str(n), str(seed + i), *map(number, numbers), seconds(found["mpmath_seconds"])])
    worst = max(found["steadyrl"] for found in part.measurements)
    part.require("stiff processes: largest relative error of rho", worst, 1e-12)
    return part


def gradients(count: int, seed: int, progress: Callable[[str], None]) -> Part:
    columns = [
        "processes",
        "zero gradient, apart",
        "adjoint - Theorem 5",
        "adjoint - complex step",
        "worst pair",
        "took",
    ]
    part = Part("Three routes to the gradient", GRADIENT_NOTE, columns)
    progress(f"gradients of {count} processes")
    found = measure.task("gradients", count, seed)
    part.measurements.append(found)
    differences = [number(found[key]) for key in ("theorem", "complex", "worst")]
    part.rows.append([f"{found['processes']:,}", str(found["zero"]), *differences, seconds(found["seconds"])])
    part.require(f"gradients: worst pair of three routes, {count} processes", found["worst"], 1e-9)
    return part
