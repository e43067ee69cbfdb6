"""The tasks that are measured, each run by itself: python benchmarks/tasks.py NAME ARGUMENT ...

Each prints one line of JSON. What a task checks, it checks after it has taken the time.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import spsolve

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from processes import random_process, slippery_grid
from steadyrl import (
    LearningProcess,
    action_values,
    average_episode_length,
    episode_performance,
    expected_visits,
    extend_policy,
    policy_gradient,
    softmax_policy,
    stationary_distribution,
    steady_state_policy_gradient,
    uniform_policy,
)


def clock(function: Callable[[], Any], repeats: int = 5, enough: float = 2.0) -> tuple[Any, float]:
    """Return a result and the best time of a few calls; of one, if it is long."""
    times: list[float] = []
    while len(times) < repeats and sum(times) < enough:
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return result, min(times)


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def grid(n: int) -> tuple[LearningProcess, float]:
    """The slippery grid with a reward of -1 a step, and the time it took to construct."""
    plain = slippery_grid(n)
    reward = np.full(n * n, -1.0)
    return clock(lambda: LearningProcess(plain.transitions, reward, plain.initial), repeats=1)


def chain_of(process: LearningProcess) -> sp.csr_array:
    """M of the uniform policy, without the library."""
    return sp.csr_array(sum(process.transitions) / process.n_actions)


def grid_distribution(n: int, chain_path: str = "", rho_path: str = "") -> dict[str, Any]:
    """One solve gives rho and E[T]: the expected visits, and their sum."""
    process, construction = grid(n)
    policy = uniform_policy(process)
    visits, seconds = clock(lambda: expected_visits(process, policy))
    memory = peak_gb()
    length = float(visits.sum())
    rho, chain = visits / length, chain_of(process)
    if chain_path:
        sp.save_npz(chain_path, sp.csr_matrix(chain))
        np.save(rho_path, rho)
    residual = float(np.abs(rho @ chain - rho).sum())
    return {"construction": construction, "seconds": seconds, "peak_gb": memory, "residual": residual, "length": length}


def grid_spsolve(n: int) -> dict[str, Any]:
    """SciPy's sparse direct solver on x = b + x Q, its matrix ready."""
    process, _ = grid(n)
    chain = chain_of(process)
    system = (sp.eye_array(n * n - 1) - chain[:-1, :-1]).T.tocsc()
    start = np.eye(1, n * n - 1)[0]
    x, seconds = clock(lambda: spsolve(system, start))
    memory = peak_gb()
    visits = np.append(x, 1.0)
    rho = visits / visits.sum()
    residual = float(np.abs(rho @ chain - rho).sum())
    return {"seconds": seconds, "peak_gb": memory, "residual": residual, "length": float(visits.sum())}


def grid_values(n: int) -> dict[str, Any]:
    process, _ = grid(n)
    policy = uniform_policy(process)
    q, seconds = clock(lambda: action_values(process, policy))
    memory = peak_gb()
    v = q.mean(axis=1)
    bellman = chain_of(process) @ np.where(process.terminal, -1.0, -1.0 + v)
    residual = float(np.abs(v - bellman).max() / np.abs(v).max())
    return {"seconds": seconds, "peak_gb": memory, "residual": residual, "length": float(-v[-1])}


def grid_gradient(n: int) -> dict[str, Any]:
    """The gradient at logits of zero, checked by a central difference of J_epi along it."""
    process, _ = grid(n)
    logits = np.zeros((n * n, 4))
    gradient, seconds = clock(lambda: policy_gradient(process, logits))
    memory = peak_gb()
    along, h = gradient / np.abs(gradient).max(), 1e-5
    up, down = (episode_performance(process, softmax_policy(sign * h * along)) for sign in (1, -1))
    slope = float((gradient * along).sum())
    return {"seconds": seconds, "peak_gb": memory, "residual": abs((up - down) / (2 * h) / slope - 1)}


def limited(n: int, limit: int, seed: int) -> dict[str, Any]:
    """The grid with a time limit, under the uniform policy and one that changes at every step."""
    base, _ = grid(n)
    process, construction = clock(lambda: base.with_time_limit(limit))
    uniform = extend_policy(process, uniform_policy(base))
    changing = np.random.default_rng(seed).dirichlet(np.ones(4), size=process.n_states)
    result: dict[str, Any] = {"states": process.n_states, "construction": construction}
    result["transitions"] = sum(matrix.nnz for matrix in base.transitions) * limit
    for name, policy in (("uniform", uniform), ("changing", changing)):
        visits, result[f"visits_{name}"] = clock(lambda policy=policy: expected_visits(process, policy))
        q, result[f"values_{name}"] = clock(lambda policy=policy: action_values(process, policy))
        length = float(visits.sum())
        # A reward of -1 a step: the value of a start is minus the episode's length, by the other pass.
        result[f"residual_{name}"] = abs(float((policy[-1] * q[-1]).sum()) + length) / length
    result["peak_gb"] = peak_gb()
    return result


def taxi() -> dict[str, Any]:
    import gymnasium

    environment = gymnasium.make("Taxi-v4")
    process, construction = clock(lambda: LearningProcess.from_gymnasium(environment))
    policy = uniform_policy(process)
    logits = np.zeros_like(policy)
    result: dict[str, Any] = {"states": process.n_states, "construction": construction}
    for name, function in (
        ("visits", lambda: expected_visits(process, policy)),
        ("values", lambda: action_values(process, policy)),
        ("gradient", lambda: policy_gradient(process, logits)),
    ):
        result[name] = clock(function)[1]
    result["peak_gb"] = peak_gb()
    return result


def stiff(n: int, seed: int) -> dict[str, Any]:
    """Entrywise relative errors of rho, against 80 digits."""
    import mpmath

    from test_numerics import exact_stationary, stiff_process

    process = stiff_process(np.random.default_rng(seed), n)
    start = time.perf_counter()
    exact = exact_stationary(process)
    seconds = time.perf_counter() - start

    def error(rho: np.ndarray) -> float:
        if not np.isfinite(rho).all():
            return float("inf")
        with mpmath.workdps(80):
            return float(max(abs(mpmath.mpf(float(x)) / y - 1) for x, y in zip(rho, exact, strict=True)))

    chain = process.transitions[0].toarray()
    system, b = (np.eye(n - 1) - chain[1:, 1:]).T, chain[0, 1:]
    ours = stationary_distribution(process, uniform_policy(process))
    dense, sparse = np.linalg.solve(system, b), spsolve(sp.csc_array(system), b)
    others = [np.append(1.0, x) / (1 + x.sum()) for x in (dense, sparse)]
    smallest = float(chain[(chain > 0) & ~np.eye(n, dtype=bool)].min())
    return {
        "smallest_probability": smallest,
        "smallest_share": float(min(exact)),
        "steadyrl": error(ours),
        "numpy": error(others[0]),
        "spsolve": error(others[1]),
        "mpmath_seconds": seconds,
    }


def complex_step(process: LearningProcess, logits: np.ndarray) -> np.ndarray:
    """The gradient of J_epi by complex steps: dense arrays, one solve a logit, nothing of the library's."""
    p = np.array([matrix.toarray() for matrix in process.transitions])  # [A, S, S]
    states, actions = logits.shape
    reset = p[0, int(np.argmax(process.initial))]
    ends = np.isclose(p, reset, rtol=1e-9, atol=0.0).all(axis=(0, 2))
    r = process.rewards if process.rewards.ndim == 2 else np.einsum("ast,t->sa", p, process.rewards)
    h = 1e-30
    theta = logits + 1j * h * np.eye(logits.size).reshape(-1, states, actions)
    pi = np.exp(theta)
    pi /= pi.sum(axis=2, keepdims=True)
    m = np.einsum("ksa,ast->kst", pi, p) * ~ends
    v = np.linalg.solve(np.eye(states) - m, np.einsum("ksa,sa->ks", pi, r)[..., None])[..., 0]
    return ((v @ process.initial).imag / h).reshape(states, actions)


def gradients(count: int, seed: int) -> dict[str, Any]:
    """Three routes to the gradient on `count` random processes whose gradient is not zero."""
    zeros, sizes, differences, drawn = [0.0], [], [], 0
    start = time.perf_counter()
    while len(sizes) < count:
        rng = np.random.default_rng([seed, drawn])
        process, _ = random_process(rng, arrival=drawn % 2 == 0)
        drawn += 1
        logits = rng.normal(size=(process.n_states, process.n_actions))
        routes = [route(process, logits) for route in (policy_gradient, steady_state_policy_gradient, complex_step)]
        length = max(float(np.linalg.norm(gradient)) for gradient in routes)
        scale = (1 + np.abs(process.rewards).max()) * average_episode_length(process, softmax_policy(logits))
        if length < 1e-14 * scale:  # one action, or actions that all do the same: zero up to rounding
            zeros.append(length / scale)
            continue
        sizes.append(length / scale)
        differences.append([float(np.linalg.norm(a - b)) / length for a, b in itertools.combinations(routes, 2)])
    theorem, complex_, other = np.max(differences, axis=0).tolist()
    return {
        "processes": len(sizes),
        "zero": drawn - count,
        "largest_zero": max(zeros),
        "smallest_nonzero": min(sizes),
        "theorem": theorem,
        "complex": complex_,
        "worst": max(theorem, complex_, other),
        "seconds": time.perf_counter() - start,
    }


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    task.__name__: task
    for task in (grid_distribution, grid_spsolve, grid_values, grid_gradient, limited, taxi, stiff, gradients)
}

if __name__ == "__main__":
    given = [int(argument) if argument.isdigit() else argument for argument in sys.argv[2:]]
    print(json.dumps(TASKS[sys.argv[1]](*given)))
