"""How good are gradient estimates for the steps they cost: SSPG, REINFORCE over whole episodes, and A2C's.

Each estimate is made of the same number of environment steps, many times over, at one fixed policy. Compared with the
true gradient of J_epi are

    cosine      of single estimates, on average: what one update sees
    angle       between the mean of all estimates and the truth, in degrees; beside it what noise alone makes of that,
                if the estimates have no bias
    variance    trace of the covariance over the squared length of the mean, times the steps of an estimate: the
                steps after which noise is as long as the gradient

All three are blind to an estimate's length, so that leaving the factor E[T] - 1 out costs nothing here. On the finite
process all values are exact, the critic's too; on CartPole-v1 the truth is REINFORCE over a very large sample.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from steadyrl import (
    LearningProcess,
    Settings,
    average_episode_length,
    collect_episodes,
    policy_gradient,
    softmax_policy,
    state_values,
    stationary_distribution,
    train,
)
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import as_source, describe
from steadyrl.policies.modules import NetworkModule
from steadyrl.sspg.critic import Critic
from steadyrl.sspg.returns import lambda_advantages
from steadyrl.sspg.stream import Stream
from steadyrl.sspg.update import as_seen, make_optimiser

BUDGET, REPEATS, DISCOUNT = 4096, 60, 0.99
TRACES = (0.95, 0.8, 0.0)


def gradient_quality() -> list[dict[str, Any]]:
    """Return a row for each environment and estimator."""
    return finite_process() + cartpole()


def summary(where: str, estimator: str, estimates: Any, truth: Any) -> dict[str, Any]:
    """Compare repeated estimates [repeats, D] with the truth."""
    found = np.asarray(estimates, dtype=float)
    mean = found.mean(axis=0)
    cosines = found @ truth / np.linalg.norm(found, axis=1) / np.linalg.norm(truth)
    spread = found.var(axis=0, ddof=1).sum()
    # The mean is noisy too: take its own variance off its squared length.
    length = max(float(mean @ mean) - spread / len(found), 1e-300)
    angle = np.degrees(np.arccos(np.clip(mean @ truth / np.linalg.norm(mean) / np.linalg.norm(truth), -1, 1)))
    return {
        "where": where,
        "estimator": estimator,
        "cosine": float(cosines.mean()),
        "cosine_error": float(cosines.std(ddof=1) / np.sqrt(len(found))),
        "bias_degrees": float(angle),
        "variance_steps": float(spread / length * BUDGET),
        "repeats": len(found),
    }


# A finite process, where everything is exact


def districts(seed: int = 1) -> tuple[LearningProcess, Any]:
    """Four districts of six states: some are better places than others, and actions decide how soon one is left.

    What an action does shows over the rest of an episode of 150 steps or so.
    """
    rng = np.random.default_rng(seed)
    n = 25
    district = (np.arange(1, n) - 1) // 6
    transitions = np.zeros((3, n, n))
    for a in range(3):
        for s in range(1, n):
            inside = np.where(district == district[s - 1], rng.dirichlet(np.full(n - 1, 0.3)), 0.0)
            outside = np.where(district != district[s - 1], 1.0, 0.0)
            leave = rng.uniform(0.0, 0.06)
            transitions[a, s, 1:] = (1 - leave) * inside / inside.sum() + leave * outside / outside.sum()
            transitions[a, s] *= 1 - 1 / 150
            transitions[a, s, 0] = 1 / 150
        transitions[a, 0, 1:] = 1 / (n - 1)
    rewards = np.append(0.0, np.array([-0.1, 0.0, 0.1, 0.2])[district] + 0.1 * rng.normal(size=n - 1))
    return LearningProcess(transitions, rewards, np.eye(n)[0]), rng.normal(size=(n, 3)) * 0.5


def simulate(process: LearningProcess, pi: Any, states: Any, steps: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return states [steps + 1, K] and actions [steps, K] of environments that begin in these states."""
    edges = np.cumsum(np.array([matrix.toarray() for matrix in process.transitions]), axis=2)
    choices = np.cumsum(pi, axis=1)
    seen, taken = [states], []
    for _ in range(steps):
        now = seen[-1]
        taken.append((rng.random(len(now))[:, None] > choices[now]).sum(axis=1).clip(max=pi.shape[1] - 1))
        seen.append((rng.random(len(now))[:, None] > edges[taken[-1], now]).sum(axis=1).clip(max=len(pi) - 1))
    return np.array(seen), np.array(taken)


def along(pi: Any, states: Any, actions: Any, weights: Any) -> Any:
    """Return the sum of weights times the scores of softmax logits, flat."""
    total = np.zeros(pi.shape)
    np.add.at(total, (states, actions), weights)
    np.add.at(total, states, -weights[:, None] * pi[states])
    return total.ravel()


def finite_process() -> list[dict[str, Any]]:
    """All estimators on the districts."""
    process, logits = districts()
    pi, rng = softmax_policy(logits), np.random.default_rng(0)
    truth, length = policy_gradient(process, logits).ravel(), average_episode_length(process, pi)
    rho, values = stationary_distribution(process, pi), state_values(process, pi)
    discounted = state_values(process, pi, DISCOUNT * ~process.terminal)

    def stream(states: Any, steps: int, value: Any, gamma: float, trace: float = 1.0) -> tuple[Any, Any]:
        seen, taken = simulate(process, pi, states, steps, rng)
        ends, rewards = process.terminal[seen[1:]], process.rewards[seen[1:]]
        if gamma == 1:
            advantages = lambda_advantages(rewards, value[seen], ends, ends, trace)
        else:
            advantages = discounted_advantages(rewards, value[seen], ends)
        used = ~process.terminal[seen[:-1]]
        return along(pi, seen[:-1][used], taken[used], advantages[used]) / used.sum(), seen[-1]

    def sspg(trace: float) -> Any:
        states = rng.choice(len(rho), size=BUDGET // 16, p=rho)
        return stream(states, 16, values, 1.0, trace)[0]

    def a2c() -> Any:
        states, found = np.zeros(16, dtype=np.int64), []  # all environments start together
        for _ in range(BUDGET // 80):
            estimate, states = stream(states, 5, discounted, DISCOUNT)
            found.append(estimate)
        return np.mean(found, axis=0)

    def reinforce(baseline: Any) -> Any:
        episodes = round(BUDGET / length)
        seen, taken = simulate(process, pi, np.zeros(episodes, dtype=np.int64), 2500, rng)
        over = np.cumsum(process.terminal[seen[1:]], axis=0) > 0
        alive = np.vstack([np.zeros((1, episodes), dtype=bool), ~over[:-1]])  # step 0 is the reset
        to_go = np.cumsum((process.rewards[seen[1:]] * alive)[::-1], axis=0)[::-1]
        return along(pi, seen[:-1][alive], taken[alive], (to_go - baseline[seen[:-1]])[alive]) / episodes

    makers: dict[str, Any] = {f"SSPG, lambda {trace:g}": partial(sspg, trace) for trace in TRACES}
    makers |= {
        "REINFORCE": lambda: reinforce(np.zeros(len(rho))),
        "REINFORCE, baseline": lambda: reinforce(values),
        "A2C": a2c,
    }
    where = f"finite process, E[T] = {length:.0f}"
    return [summary(where, name, [make() for _ in range(REPEATS)], truth) for name, make in makers.items()]


def discounted_advantages(rewards: Any, values: Any, ends: Any, gamma: float = DISCOUNT) -> Any:
    """Return A2C's: n-step returns to the end of the batch, discounted, minus the value."""
    result = np.empty_like(rewards)
    following = values[-1]
    for t in range(len(rewards) - 1, -1, -1):
        following = rewards[t] + gamma * np.where(ends[t], 0.0, following)
        result[t] = following - values[t]
    return result


# CartPole-v1


class Pole:
    """A policy that has learnt a little, its critics, and ways to estimate its gradient."""

    def __init__(self) -> None:
        self.policy: NetworkModule = train("CartPole-v1", Settings(steps=15_000, num_envs=8, workers=1)).policy
        self.source = as_source("CartPole-v1")
        found = describe(self.source)
        self.seen, self.acted = observation_codec(found.observation_space), action_codec(found.action_space)
        self.rng = np.random.default_rng(0)
        many = collect_episodes("CartPole-v1", self.policy.numpy(), 4000, seed=9, trajectories=True, workers=1)
        self.length = many.average_episode_length
        self.critics = {gamma: self._critic(many, gamma) for gamma in (1.0, DISCOUNT)}

    def _critic(self, episodes: Any, gamma: float) -> Critic:
        rows, ages, returns = [], [], []
        for i in range(len(episodes)):
            observations, _, rewards = episodes.trajectories.of(i)
            rows.append(observations[:-1])
            ages.append(np.arange(1, len(rewards) + 1))
            nothing = np.zeros((len(rewards) + 1, 1))
            returns.append(discounted_advantages(rewards[:, None], nothing, _last(rewards), gamma)[:, 0])
        critic = Critic(self.seen.size, 500 if gamma == 1 else None, rng=self.rng)
        inputs = critic.inputs(as_seen(np.concatenate(rows), self.policy), np.concatenate(ages))
        goal = np.concatenate(returns)
        line = critic.baseline.through(critic.time_left(inputs), goal)
        optimiser = make_optimiser(critic, "adam", 1e-3)
        critic.fit(inputs, goal, optimiser, 3, line=line, bootstrapped=False, rng=self.rng)
        return critic

    def gradient(self, features: Any, actions: Any, weights: Any) -> Any:
        """Return the sum of weights times scores, flat."""
        log_prob, _ = self.policy.log_prob_and_entropy(torch.as_tensor(features), actions)
        total = (torch.as_tensor(weights).float() * log_prob).sum()
        found = torch.autograd.grad(total, list(self.policy.parameters()))
        return torch.cat([part.ravel() for part in found]).double().numpy()

    def values(self, gamma: float, rows: Any, ages: Any) -> Any:
        """Return a critic's values, in the shape of the ages."""
        critic = self.critics[gamma]
        flat = as_seen(rows.reshape(-1, rows.shape[-1]), self.policy)
        return critic.values(critic.inputs(flat, ages.reshape(-1))).reshape(ages.shape)

    def stream(self, num_envs: int, cure: Any, seed: int) -> Stream:
        """Return environments that never stop."""
        settings = Settings(num_envs=num_envs, cure=cure, seed=seed, n_steps=16, workers=1, restart_every=10**9)
        return Stream(self.source, "envpool", self.seen, self.acted, settings.resolved(continuous=False))

    def from_batch(self, batch: Any, gamma: float, trace: float = 1.0) -> Any:
        """Return the gradient from a few steps: ours for gamma = 1, A2C's below."""
        values = self.values(gamma, batch.rows, batch.ages)
        ends = batch.terminated | batch.truncated if gamma == 1 else batch.terminated
        over = batch.terminated | batch.truncated | batch.cut
        if gamma == 1:
            advantages = lambda_advantages(batch.rewards, values, ends, over, trace)
        else:
            advantages = discounted_advantages(batch.rewards, values, ends)
        used = batch.alive
        features = as_seen(batch.rows[:-1][used], self.policy)
        return self.gradient(features, batch.actions[used], advantages[used]) / used.sum()

    def reinforce(self, episodes: int, seed: int, *, baseline: bool) -> Any:
        """Return the gradient from whole episodes."""
        found = collect_episodes("CartPole-v1", self.policy.numpy(), episodes, seed=seed, trajectories=True, workers=1)
        rows, actions, weights = [], [], []
        for i in range(episodes):
            observations, taken, rewards = found.trajectories.of(i)
            to_go = np.cumsum(rewards[::-1])[::-1]
            ages = np.arange(1, len(rewards) + 1)
            rows.append(observations[:-1])
            actions.append(taken)
            weights.append(to_go - (self.values(1.0, observations[:-1], ages) if baseline else 0.0))
        features = as_seen(np.concatenate(rows), self.policy)
        total = self.gradient(features, np.concatenate(actions), np.concatenate(weights))
        return total / episodes


def _last(rewards: Any) -> Any:
    ends = np.zeros((len(rewards), 1), dtype=bool)
    ends[-1] = True
    return ends


def cartpole() -> list[dict[str, Any]]:
    """All estimators on CartPole-v1."""
    pole = Pole()
    truth = np.mean([pole.reinforce(2000, 50_000 + i, baseline=True) for i in range(20)], axis=0)
    quota = max(1, round(BUDGET / pole.length))
    steady = pole.stream(BUDGET // 16, "auto", 1)
    steady.draw(pole.policy.numpy(), int(6 * pole.length))
    batches = [steady.draw(pole.policy.numpy(), 16) for _ in range(REPEATS)]
    steady.close()
    a2c = []
    for i in range(REPEATS):
        envs = pole.stream(16, "none", 100 + i)
        few = [pole.from_batch(envs.draw(pole.policy.numpy(), 5), DISCOUNT) for _ in range(BUDGET // 80)]
        a2c.append(np.mean(few, axis=0))
        envs.close()
    makers: dict[str, Any] = {
        f"SSPG, lambda {trace:g}": [pole.from_batch(batch, 1.0, trace) for batch in batches] for trace in TRACES
    }
    makers["REINFORCE"] = [pole.reinforce(quota, 1000 + i, baseline=False) for i in range(REPEATS)]
    makers["REINFORCE, baseline"] = [pole.reinforce(quota, 2000 + i, baseline=True) for i in range(REPEATS)]
    makers["A2C"] = a2c
    where = f"CartPole-v1, E[T] = {pole.length:.0f}"
    return [summary(where, name, estimates, truth) for name, estimates in makers.items()]


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table for the page."""
    text = [
        "## Gradient quality",
        "",
        f"Estimates of {BUDGET:,} environment steps each, at one fixed policy; their mean is over {REPEATS} of them,",
        "and its angle with the true gradient stands beside the angle that noise alone would make. On the finite",
        "process critics and the steady state that SSPG draws from are exact. On CartPole-v1 critics are fitted to",
        "4,000 episodes, the true gradient is REINFORCE's over 40,000, and the 6 E[T] in which SSPG's copies come to",
        "steady state, once, are not counted.",
        "",
        "| where | estimator | cosine with the true gradient | angle of the mean | by noise alone "
        "| steps until noise = gradient |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cosine = f"{row['cosine']:.3f} ± {1.96 * row['cosine_error']:.3f}"
        steps = row["variance_steps"]
        noise = np.degrees(np.arctan(np.sqrt(steps / BUDGET / row["repeats"])))
        known = [f"{noise:.1f}°", f"{steps:,.0f}"] if steps < 1e9 else ["too large to tell", "too many to tell"]
        cells = [row["where"], row["estimator"], cosine, f"{row['bias_degrees']:.1f}°", *known]  # all may be noise
        text += [f"| {' | '.join(cells)} |"]
    return [*text, ""]


if __name__ == "__main__":
    print("\n".join(lines(gradient_quality())))
