"""Part 2: time limits, a pass over the layers whose cost is linear in the number of transitions."""

from __future__ import annotations

from collections.abc import Callable

import measure
from report import Part, number, seconds

NOTE = (
    "An n x n grid whose episodes are cut after a number of actions; ns a transition: visits + values. Two policies: "
    "uniform, and one drawn at random for every state and step. Check: relative difference of E[T] from minus the "
    "value of a start, at a reward of -1 a step."
)


def run(sizes: list[tuple[int, int]], seed: int, progress: Callable[[str], None]) -> Part:
    columns = [
        "process",
        "states",
        "construction",
        "visits",
        "values",
        "gradient",
        "ns a transition",
        "peak GB",
        "check",
    ]
    part = Part("Time limits", NOTE, columns)
    slowest = 0.0
    for n, limit in sizes:
        progress(f"time limit {limit}, grid of {n} x {n}")
        found = measure.task("limited", n, limit, seed)
        part.measurements.append({"grid": n, "limit": limit} | found)
        for policy in ("uniform", "changing"):
            times = [found[f"{kind}_{policy}"] for kind in ("visits", "values")]
            rate = " + ".join(number(time / found["transitions"] * 1e9) for time in times)
            name = f"grid {n} x {n}, limit {limit}, {policy}"
            check = number(found[f"residual_{policy}"])
            row = [name, f"{found['states']:,}", seconds(found["construction"]), *map(seconds, times), "-", rate]
            part.rows.append([*row, number(found["peak_gb"]), check])
            if 10**6 <= found["states"] < 2 * 10**6:
                slowest = max(slowest, sum(times))
    if slowest:
        part.require("10^6 layered states: rho, E[T] and values, slower policy", slowest, 2, " s")
    _taxi(part, progress)
    return part


def _taxi(part: Part, progress: Callable[[str], None]) -> None:
    progress("Taxi-v4")
    found = measure.task("taxi")
    part.measurements.append({"environment": "Taxi-v4"} | found)
    times = [found[kind] for kind in ("visits", "values", "gradient")]
    row = ["Taxi-v4, limit 200", f"{found['states']:,}", seconds(found["construction"]), *map(seconds, times), "-"]
    part.rows.append([*row, number(found["peak_gb"]), "-"])
    part.require("Taxi-v4 with its limit: rho, E[T], values and gradient", sum(times), 1, " s")
