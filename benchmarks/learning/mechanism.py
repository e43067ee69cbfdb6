"""Why lockstep may change learning: losses, gradients and forgetting, update by update, on two tasks.

    python benchmarks/learning/mechanism.py              makes the runs that are missing (half an hour of one core)
    python benchmarks/learning/mechanism.py --quick      two short runs into a file that is thrown away, as a test

`protocol.md` ("Added later") says what is measured, and what was predicted. A run is written to mechanism.json, beside
this script, when it has ended; runs that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from one_run import PACKAGES, environments
from runs import BOTH, PPO_SETTINGS, TASKS, Run
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

OUT = Path(__file__).parent / "mechanism.json"
MECHANISM_TASKS = ("CartpoleSwingup-v1", "Hopper-v5")
SEEDS = range(2)
EPISODES = 3  # horizons of training
CHECKPOINTS = 6
STEADY_ENVS = 64
GROUPS = 8
FAIR_BATCHES = 32


class Recorder(BaseCallback):
    """Writes down what every update sees, and compares some with the steady state under the same policy."""

    def __init__(self, run: Run, updates: int, steady_steps: int) -> None:
        super().__init__()
        self._run, self._steps = run, steady_steps
        self._due = {int(u) for u in np.linspace(0, updates - 1, CHECKPOINTS + 1)[1:]}
        self._steady_envs = environments(run, STEADY_ENVS, 60_000 + run.seed, "as it is")
        self._fair_envs = environments(run, STEADY_ENVS, 70_000 + run.seed, "as it is")
        self._previous: torch.Tensor | None = None
        self._open: dict[str, Any] | None = None
        self._update = -1
        self.series: dict[str, list[float]] = {"value_loss": [], "explained_variance": [], "consecutive_cosine": []}
        self.checkpoints: list[dict[str, Any]] = []

    def _on_training_start(self) -> None:
        self._age = np.ones(self._run.num_envs, dtype=np.int64)
        self._batch_ages: list[Any] = []

    def _on_step(self) -> bool:
        self._batch_ages.append(self._age)
        self._age = np.where(self.locals["dones"], 1, self._age + 1)
        return True

    def _on_rollout_start(self) -> None:
        self._close()  # the update after a checkpoint is over
        self._batch_ages = []

    def _on_training_end(self) -> None:
        self._close()
        self._steady_envs.close()
        self._fair_envs.close()

    def _on_rollout_end(self) -> None:
        self._update += 1
        buffer = self.model.rollout_buffer
        values, returns = buffer.values.ravel(), buffer.returns.ravel()
        self.series["value_loss"].append(float(np.mean((values - returns) ** 2)))
        self.series["explained_variance"].append(explained_variance(values, returns))
        rows = [x.reshape(-1, *x.shape[2:]) for x in (buffer.observations, buffer.actions, buffer.advantages)]
        gradient = self._gradient(*rows)
        if self._previous is not None:
            self.series["consecutive_cosine"].append(cosine(gradient, self._previous))
        self._previous = gradient
        if self._update in self._due:
            self._compare(gradient)

    def _gradient(self, observations: Any, actions: Any, advantages: Any) -> torch.Tensor:
        """Return the gradient of PPO's policy loss where the ratio is one, as a vector."""
        policy = self.model.policy
        scaled = torch.as_tensor((advantages - advantages.mean()) / (advantages.std() + 1e-8))
        _, log_prob, _ = policy.evaluate_actions(torch.as_tensor(observations), torch.as_tensor(actions))
        loss = -(scaled * log_prob).mean()
        wanted = [*policy.mlp_extractor.policy_net.parameters(), *policy.action_net.parameters(), policy.log_std]
        return torch.cat([g.ravel() for g in torch.autograd.grad(loss, wanted)])

    def _compare(self, gradient: torch.Tensor) -> None:
        """Measure the steady state under the present policy, and the batch against it."""
        kept = torch.get_rng_state()  # so that training goes on as it would have
        steady = self._steady(self._steady_envs)
        # Fair batches come from other environments, as a run's own batch does: they share no noise with `true`.
        others = self._steady(self._fair_envs)
        torch.set_rng_state(kept)
        true = self._gradient(steady["observations"], steady["actions"], steady["advantages"])
        rng = np.random.default_rng([self._run.seed, self._update])
        windows = len(others["window"]) // self._run.n_steps
        fair = []  # one batch's cosine is mostly chance, so a fair one's is the mean over many
        for _ in range(FAIR_BATCHES):
            some = np.isin(others["window"], rng.choice(windows, min(self._run.num_envs, windows), replace=False))
            batch = self._gradient(*(others[name][some] for name in ("observations", "actions", "advantages")))
            fair.append(cosine(batch, true))
        edges = np.quantile(steady["age"], np.arange(1, GROUPS) / GROUPS)
        share = np.bincount(np.searchsorted(edges, np.concatenate(self._batch_ages)), minlength=GROUPS)
        self._open = {
            "update": self._update,
            "cosine": cosine(gradient, true),
            "cosine of a fair batch": float(np.mean(fair)),
            "groups present": int((share / share.sum() >= 0.5 / GROUPS).sum()),
        }
        self._seen = share / share.sum() >= 0.5 / GROUPS
        self._steady_rows, self._group = steady, np.searchsorted(edges, steady["age"])
        self._before = self._state()

    def _state(self) -> tuple[Any, Any]:
        """Return squared errors of values, and the policy, on the steady states."""
        rows = torch.as_tensor(self._steady_rows["observations"])
        with torch.no_grad():
            values = self.model.policy.predict_values(rows).numpy().ravel()
            policy = self.model.policy.get_distribution(rows).distribution
        return (values - self._steady_rows["return"]) ** 2, policy

    def _close(self) -> None:
        """Compare values and policy on the steady states after an update with those before it."""
        if self._open is None:
            return
        before, after = self._before, self._state()
        changed = torch.distributions.kl_divergence(before[1], after[1]).sum(-1).numpy()
        scale = float(self._steady_rows["return"].var()) or 1.0
        for name, seen in (("present", True), ("absent", False)):
            inside = (self._seen == seen)[self._group]
            self._open[f"policy change, {name}"] = float(changed[inside].mean()) if inside.any() else None
            worse = float((after[0] - before[0])[inside].mean() / scale) if inside.any() else None
            self._open[f"value error change, {name}"] = worse
        self._open["value error change"] = float((after[0] - before[0]).mean() / scale)
        self._open["value error"] = float(before[0].mean() / scale)
        self.checkpoints.append(self._open)
        self._open = None

    def _steady(self, envs: Any) -> dict[str, Any]:
        """Return steps at steady state: fresh environments over one horizon, or, where lengths vary, after one.

        Over one horizon every age comes up equally often where lengths are fixed; where they vary, environments have
        left lockstep after it.
        """
        gamma, lam = self.model.gamma, self.model.gae_lambda
        observations, age, skip = envs.reset(), np.ones(STEADY_ENVS, dtype=np.int64), 0
        if self._run.task.startswith("Hopper"):
            skip = self._steps
        seen: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "dones", "age")}
        for t in range(skip + self._steps):
            with torch.no_grad():
                actions = self.model.policy(torch.as_tensor(observations))[0].numpy()
            # The gradient is of actions as they were drawn, as in the buffer; `predict` would have clipped them.
            following, rewards, dones, infos = envs.step(
                np.clip(actions, envs.action_space.low, envs.action_space.high)
            )
            rewards = rewards.astype(np.float32)
            for i in np.flatnonzero(dones):
                if infos[i].get("TimeLimit.truncated"):
                    rewards[i] += gamma * self._value(infos[i]["terminal_observation"][None])[0]
            if t >= skip:
                for name, x in zip(seen, (observations, actions, rewards, dones, age), strict=True):
                    seen[name].append(x)
            observations, age = following, np.where(dones, 1, age + 1)
        rows = {name: np.array(x) for name, x in seen.items()}
        values = np.array([self._value(x) for x in (*rows["observations"], observations)])
        n = self._run.n_steps
        advantages, returns = np.zeros_like(rows["rewards"]), np.zeros_like(rows["rewards"])
        following, after = np.zeros(STEADY_ENVS, np.float32), values[-1]
        for t in reversed(range(self._steps)):
            going = 1.0 - rows["dones"][t]
            delta = rows["rewards"][t] + gamma * going * values[t + 1] - values[t]
            following = delta + gamma * lam * going * following * ((t + 1) % n != 0)  # windows end, as batches do
            after = rows["rewards"][t] + gamma * going * after
            advantages[t], returns[t] = following, after
        window = np.arange(self._steps)[:, None] // n * STEADY_ENVS + np.arange(STEADY_ENVS)
        flat = {"window": window, "advantages": advantages, "return": returns}
        flat |= {name: rows[name] for name in ("observations", "actions", "age")}
        return {name: x.reshape(-1, *x.shape[2:]) for name, x in flat.items()}

    def _value(self, observations: Any) -> Any:
        with torch.no_grad():
            return self.model.policy.predict_values(torch.as_tensor(observations)).numpy().ravel()


def explained_variance(values: Any, returns: Any) -> float:
    """Return 1 - Var(returns - values) / Var(returns), as trainers log it."""
    variance = float(np.var(returns))
    return float("nan") if variance == 0 else 1 - float(np.var(returns - values)) / variance


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the cosine between two gradients."""
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def record(run: Run, updates: int, steady_steps: int) -> dict[str, Any]:
    """Train, and return what was seen."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    env = environments(run, run.num_envs, run.seed, run.arm)
    model = PPO("MlpPolicy", env, n_steps=run.n_steps, seed=run.seed, device="cpu", **PPO_SETTINGS)
    recorder = Recorder(run, updates, steady_steps)
    model.learn(updates * run.num_envs * run.n_steps, callback=recorder)
    env.close()
    return {
        "task": run.task,
        "arm": run.arm,
        "seed": run.seed,
        "updates": updates,
        "period": TASKS[run.task].horizon // run.n_steps,
        "series": {name: [float(f"{x:.4g}") for x in found] for name, found in recorder.series.items()},
        "checkpoints": [
            {name: x if not isinstance(x, float) else float(f"{x:.4g}") for name, x in one.items()}
            for one in recorder.checkpoints
        ],
        "seconds": round(time.perf_counter() - begin, 1),
        "versions": {name: version(name) for name in PACKAGES},
    }


def planned() -> list[Run]:
    """Return the runs, in the order in which they are made."""
    return [Run("mechanism", task, arm, seed) for seed in SEEDS for task in MECHANISM_TASKS for arm in BOTH]


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a test of the machinery, without a result")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            for arm in BOTH:
                found = record(Run("quick", "Hopper-v5", arm, 900, num_envs=16), 14, 160)
                (Path(folder) / "mechanism.json").write_text(json.dumps(found))
                print(json.dumps(found["checkpoints"][-1]), flush=True)
        return
    there = json.loads(OUT.read_text()) if OUT.exists() else []
    done = {(one["task"], one["arm"], one["seed"]) for one in there}
    for run in planned():
        if (run.task, run.arm, run.seed) in done:
            continue
        horizon = TASKS[run.task].horizon
        there.append(record(run, EPISODES * horizon // run.n_steps, horizon))
        temporary = OUT.with_suffix(".tmp")
        temporary.write_text("[\n" + ",\n".join(json.dumps(one) for one in there) + "\n]\n")
        os.replace(temporary, OUT)
        print(f"{run.key}: {there[-1]['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
