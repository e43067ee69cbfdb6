"""The critic predicts returns around a line in the time left that is measured, not learnt."""

import numpy as np
import pytest
import torch

from steadyrl.errors import TrainingError
from steadyrl.sspg.critic import Critic
from steadyrl.sspg.learner import make_optimiser
from steadyrl.sspg.line import line_through, time_left
from steadyrl.sspg.returns import lambda_advantages
from steadyrl.sspg.streams import RunningLength


def data(rng, count=2000, horizon=1000):
    """Returns that are 0.7 for each step left, plus 3 times an observed value, plus noise of deviation 1."""
    features = rng.normal(size=(count, 2))
    ages = rng.integers(1, horizon + 1, count)
    returns = 0.7 * (horizon + 1 - ages) + 3 * features[:, 0] + rng.normal(size=count)
    return features, ages, returns


@pytest.mark.parametrize("horizon", [1000, None])
def test_predictions_stay_when_mean_and_deviation_move(horizon):
    rng = np.random.default_rng(0)
    critic = Critic(2, horizon, rng=rng)
    features, ages, returns = data(rng)
    inputs = critic.inputs(features, ages)
    critic.rescale(inputs, returns)
    before, unit = critic.values(inputs), critic.apart()
    critic.rescale(inputs, 5 * returns - 100 + (ages if horizon else 0))
    assert critic.apart() != unit
    np.testing.assert_allclose(critic.values(inputs), before, rtol=1e-4, atol=1e-3)


def test_what_an_observation_is_worth_is_learnt_beside_a_far_larger_trend():
    rng = np.random.default_rng(2)
    critic = Critic(2, 1000, rng=rng)
    optimiser = make_optimiser(critic, "adam", 1e-3)
    for _ in range(20):
        features, ages, returns = data(rng)
        line = line_through(time_left(ages, 1000), returns)
        inputs = critic.inputs(features, ages)
        loss = critic.fit(inputs, returns - critic.on_line(inputs, line), optimiser, 4, line=line, rng=rng)
    features, ages, returns = data(rng)
    expected = 0.7 * (1001 - ages) + 3 * features[:, 0]
    assert np.abs(critic.values(critic.inputs(features, ages)) - expected).mean() < 0.5  # of a deviation of 200
    assert loss < 0.2  # 0.1 is noise: 1 of 1 + 9


def test_values_do_not_run_away_from_what_is_measured():
    """Eight steps an update, and every return ends with the critic's own prediction: so its level must be measured."""
    rng, horizon, copies = np.random.default_rng(3), 200, 16
    critic, running = Critic(1, horizon, rng=rng), RunningLength(copies)
    optimiser = make_optimiser(critic, "adam", 1e-3)
    ages, paid = rng.integers(1, horizon + 1, copies), 1.0
    for update in range(300):
        paid = 1.0 + update / 100  # the policy learns: from 1 to 4 a step
        seen, features = [ages], [rng.normal(size=(copies, 1))]
        for _ in range(8):
            seen.append(np.where(seen[-1] == horizon + 1, 1, seen[-1] + 1))
            features.append(rng.normal(size=(copies, 1)))
        states, rows = np.array(seen), np.array(features)
        over = states[1:] == horizon + 1
        alive = states[:-1] <= horizon
        rewards = np.where(alive, paid + rows[:-1, :, 0] + rng.normal(size=alive.shape), 0.0)
        inputs = critic.inputs(rows.reshape(-1, 1), states.reshape(-1))
        values = critic.values(inputs).reshape(states.shape)
        returns = lambda_advantages(rewards, values, over, over, 0.95) + values[:-1]
        running.add(states[1:], over, rewards, early=np.zeros_like(over))
        used = alive.ravel()
        kept = inputs[: len(used)][used]
        apart = returns.ravel()[used] - critic.on_line(kept)
        critic.fit(kept, apart, optimiser, 4, line=running.line(horizon), rng=rng)
        ages = states[-1]
    old = np.arange(1, horizon + 1)
    found = critic.values(critic.inputs(np.zeros((horizon, 1)), old))
    expected = paid * (horizon + 1 - old)
    assert np.abs(found - expected).mean() < 0.1 * expected.mean()


def test_the_measured_line_is_that_of_the_true_promise():
    """Lengths are geometric up to a limit, rewards depend on the age: the promise of each age is a sum."""
    rng, horizon, copies, end = np.random.default_rng(4), 50, 400, 0.03
    running, ages, over = RunningLength(copies), np.ones(copies, dtype=np.int64), np.zeros(copies, dtype=bool)
    for _ in range(60):
        states, ends, rewards = [], [], []
        for _ in range(10):
            paid = np.where(over, 0.0, 1 + 0.1 * ages + rng.normal(size=copies))
            ages = np.where(over, 1, ages + 1)
            over = (ages > 1) & ((rng.random(copies) < end) | (ages == horizon + 1))
            states.append(ages)
            ends.append(over)
            rewards.append(paid)
        early = np.array(ends) & (np.array(states) <= horizon)
        running.add(np.array(states), np.array(ends), np.array(rewards), early=early)
    a = np.arange(1, horizon + 1)
    alive = (1 - end) ** (a - 1)
    promise = np.cumsum((alive * (1 + 0.1 * a))[::-1])[::-1] / alive
    expected = line_through(time_left(a, horizon), promise, alive)
    # 24,000 steps, and noise of 1 in rewards of 2 or so: the promise of 40 is known to about 1%
    found = running.line(horizon)
    np.testing.assert_allclose((found.middle, found.slope), (expected.middle, expected.slope), rtol=0.05)
    assert not found.certain


def test_before_any_episode_has_ended_the_time_limit_is_what_is_known():
    running = RunningLength(4)
    none = np.zeros((5, 4), dtype=bool)
    running.add(np.tile(np.arange(2, 7)[:, None], (1, 4)), none, np.full((5, 4), 2.0), early=none)
    found = running.line(100)
    np.testing.assert_allclose((found.middle, found.slope), (100.0, 100.0), rtol=0.02)  # 200 at the start, 0 at the end
    assert found.certain


def test_a_loss_that_is_not_finite_is_an_error():
    critic = Critic(1, None, rng=np.random.default_rng(0))
    with torch.no_grad():
        critic.layers[0].weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match="critic_learning_rate"):
        critic.fit(
            np.zeros((4, 1), dtype=np.float32),
            np.arange(4.0),
            make_optimiser(critic, "adam", 1e-3),
            1,
            line=None,
            rng=np.random.default_rng(0),
        )
