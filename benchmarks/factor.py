"""The factor E[T] - 1 is felt by sgd, and not by Adam: CartPole-v1 with and without it, the same seeds.

python benchmarks/factor.py        results/factor.json and results/factor.png, a few minutes
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from steadyrl import Settings, train
from steadyrl.common.storage import write_atomically

RESULTS = Path(__file__).parent / "results"
STEPS, SEEDS = 60_000, 5
RATES = {"sgd": {True: 1e-4, False: 1e-4 * 21}, "adam": {True: 1e-3, False: 1e-3}}
"""With sgd, the rate without the factor is the other times the first E[T] - 1, so that both begin alike."""


def main() -> None:
    file = RESULTS / "factor.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for seed in range(SEEDS):
        for optimiser in ("sgd", "adam"):
            for factor in (True, False):
                row = {"optimiser": optimiser, "factor": factor, "seed": seed}
                if not any(row.items() <= before.items() for before in rows):
                    rows.append(row | one(optimiser, factor, seed))
                    write_atomically(file, (json.dumps(rows) + "\n").encode())
    picture(rows)


def one(optimiser: Any, factor: bool, seed: int) -> dict[str, Any]:
    rate = RATES[optimiser][factor]
    settings = Settings(
        steps=STEPS,
        num_envs=16,
        seed=seed,
        optimiser=optimiser,
        learning_rate=rate,
        learning_rate_decay="none",
        episode_length_factor=factor,
        workers=1,
    )
    history = train("CartPole-v1", settings).history
    every = slice(None, None, 4)
    return {"steps": history["steps"][every], "returns": [round(value, 2) for value in history["return"][every]]}


def picture(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.2), sharey=True, constrained_layout=True)
    for ax, optimiser in zip(axes, ("sgd", "adam"), strict=True):
        for factor, colour in ((True, "#1b6ca8"), (False, "#c1502e")):
            mine = [row for row in rows if (row["optimiser"], row["factor"]) == (optimiser, factor)]
            values = np.array([row["returns"] for row in mine])
            steps = mine[0]["steps"]
            label = "with E[T] - 1" if factor else "without"
            ax.plot(steps, np.median(values, axis=0), color=colour, label=label)
            ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        ax.set_title(f"{optimiser}, constant learning rate")
        ax.set_xlabel("environment steps")
        ax.legend(loc="upper left", fontsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("return while training (median, range)")
    fig.savefig(RESULTS / "factor.png", dpi=110, metadata={"Software": None})
    plt.close(fig)


if __name__ == "__main__":
    main()
