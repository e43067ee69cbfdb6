"""The critic predicts returns around a running line in the time left."""

import numpy as np
import pytest
import torch

from steadyrl.errors import TrainingError
from steadyrl.sspg.critic import Critic
from steadyrl.sspg.learner import make_optimiser


def data(rng, count=2000, horizon=1000):
    """Returns that are 0.7 for each step left, plus 3 times an observed value, plus noise of deviation 1."""
    features = rng.normal(size=(count, 2))
    ages = rng.integers(1, horizon + 1, count)
    returns = 0.7 * (horizon + 1 - ages) + 3 * features[:, 0] + rng.normal(size=count)
    return features, ages, returns


@pytest.mark.parametrize("horizon", [1000, None])
def test_predictions_stay_when_line_and_deviation_move(horizon):
    rng = np.random.default_rng(0)
    critic = Critic(2, horizon, rng=rng)
    features, ages, returns = data(rng)
    inputs = critic.inputs(features, ages)
    critic.rescale(inputs, returns)
    before, unit = critic.values(inputs), critic.line()
    critic.rescale(inputs, 5 * returns - 100 + (ages if horizon else 0))
    assert critic.line() != unit
    np.testing.assert_allclose(critic.values(inputs), before, rtol=1e-4, atol=1e-3)


def test_the_line_is_that_of_least_squares():
    rng = np.random.default_rng(1)
    critic = Critic(2, 1000, rng=rng)
    features, ages, returns = data(rng)
    inputs = critic.inputs(features, ages)
    critic.rescale(inputs, returns)
    slope, middle = np.polyfit(inputs[:, -1].astype(float), returns, 1)
    apart = returns - middle - slope * inputs[:, -1]
    np.testing.assert_allclose(critic.line(), (middle, slope, apart.std()), rtol=1e-6)
    assert critic.line()[2] < 4  # and not the 200 of the returns themselves


def test_what_an_observation_is_worth_is_learnt_beside_a_far_larger_trend():
    rng = np.random.default_rng(2)
    critic = Critic(2, 1000, rng=rng)
    optimiser = make_optimiser(critic, "adam", 1e-3)
    for _ in range(20):
        features, ages, returns = data(rng)
        loss = critic.fit(critic.inputs(features, ages), returns, optimiser, 4, rng=rng)
    features, ages, returns = data(rng)
    expected = 0.7 * (1001 - ages) + 3 * features[:, 0]
    assert np.abs(critic.values(critic.inputs(features, ages)) - expected).mean() < 0.5  # of a deviation of 200
    assert loss < 0.2  # 0.1 is noise: 1 of 1 + 9


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
            rng=np.random.default_rng(0),
        )
