"""The critic predicts returns around a line in the steps left that is measured, not learnt."""

import numpy as np
import pytest
import torch

from steadyrl.errors import TrainingError
from steadyrl.sspg.critic import Critic
from steadyrl.sspg.measured_baseline import Line, MeasuredBaseline
from steadyrl.sspg.recent_episodes import RecentEpisodes
from steadyrl.sspg.returns import lambda_advantages
from steadyrl.sspg.update import make_optimiser


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
    before, unit = critic.values(inputs), critic.scale()
    critic.rescale(inputs, 5 * returns - 100 + (ages if horizon else 0))
    assert critic.scale() != unit
    np.testing.assert_allclose(critic.values(inputs), before, rtol=1e-4, atol=1e-3)


def test_what_an_observation_is_worth_is_learnt_beside_a_far_larger_trend():
    rng = np.random.default_rng(2)
    critic = Critic(2, 1000, rng=rng)
    optimiser = make_optimiser(critic, "adam", 1e-3)
    for _ in range(20):
        features, ages, returns = data(rng)
        inputs = critic.inputs(features, ages)
        line = critic.baseline.through(critic.time_left(inputs), returns)
        loss = critic.fit(inputs, returns, optimiser, 4, line=line, bootstrapped=False, rng=rng)
    features, ages, returns = data(rng)
    expected = 0.7 * (1001 - ages) + 3 * features[:, 0]
    assert np.abs(critic.values(critic.inputs(features, ages)) - expected).mean() < 0.5  # of a deviation of 200
    assert loss < 0.2  # 0.1 is noise: 1 of 1 + 9


def test_values_do_not_run_away_from_what_is_measured():
    """Eight steps an update, and every return ends with the critic's own prediction: so its level must be measured."""
    rng, horizon, copies = np.random.default_rng(3), 200, 16
    critic, running = Critic(1, horizon, rng=rng), RecentEpisodes(copies, horizon)
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
        running.add(states[1:], over, rewards)
        used = alive.ravel()
        kept = inputs[: len(used)][used]
        line = critic.baseline.of_stream(running)
        critic.fit(kept, returns.ravel()[used], optimiser, 4, line=line, rng=rng)
        ages = states[-1]
    old = np.arange(1, horizon + 1)
    found = critic.values(critic.inputs(np.zeros((horizon, 1)), old))
    expected = paid * (horizon + 1 - old)
    assert np.abs(found - expected).mean() < 0.1 * expected.mean()


def test_the_line_is_the_reward_per_step_while_every_episode_goes_to_its_limit():
    running, horizon = RecentEpisodes(4, 10), 10
    baseline = MeasuredBaseline(horizon)
    ages = np.tile(np.arange(2, 12)[:, None], (1, 4))
    over = ages == horizon + 1
    reset = (np.ones((1, 4), dtype=np.int64), np.zeros((1, 4), dtype=bool), np.zeros((1, 4)))
    for _ in range(3):
        running.add(ages, over, np.full((10, 4), 2.0))
        running.add(*reset)
    assert baseline.of_stream(running) == Line(
        0.0, pytest.approx(2.0)
    )  # and not 20/11: resets are no steps of an episode
    early = np.zeros((10, 4), dtype=bool)
    early[3, 0] = True
    running.add(ages, over | early, np.full((10, 4), 2.0))
    assert baseline.of_stream(running).end != 0.0
    for _ in range(12):  # episodes of each copy, after which it is forgotten
        running.add(*reset)
        running.add(ages, over, np.full((10, 4), 3.0))
    assert baseline.of_stream(running) == Line(0.0, pytest.approx(3.0, abs=1e-6))


def stream(running, rng, copies, horizon, ends, rewards):
    """600 steps of copies, each of which ends at an age with probability ends(age), and at the horizon."""
    ages, over = np.ones(copies, dtype=np.int64), np.zeros(copies, dtype=bool)
    for _ in range(60):
        seen = []
        for _ in range(10):
            paid = np.where(over, 0.0, rewards(ages) + rng.normal(size=copies))
            ages = np.where(over, 1, ages + 1)
            over = (ages > 1) & ((rng.random(copies) < ends(ages)) | (ages == horizon + 1))
            seen.append((ages, over, paid))
        running.add(*(np.array(values) for values in zip(*seen, strict=True)))


def test_where_some_episodes_end_by_themselves_a_step_left_is_worth_a_reward_to_those_that_do_not():
    """Lengths are geometric up to a limit, rewards depend on the age: what is expected is a sum."""
    horizon, end = 50, 0.03
    running = RecentEpisodes(400, horizon)
    stream(running, np.random.default_rng(4), 400, horizon, lambda ages: end, lambda ages: 1 + 0.1 * ages)
    a = np.arange(1, horizon + 1)
    alive, rewards = (1 - end) ** (a - 1), 1 + 0.1 * a
    promise = np.cumsum((alive * rewards)[::-1])[::-1] / alive
    share = horizon * alive[-1] / alive.sum()  # P(the limit is reached | alive at a) is alive[-1] / alive[a]
    line = MeasuredBaseline(horizon).of_stream(running)
    assert 0.4 < share < 0.5
    assert line.share == pytest.approx(share, rel=0.05)
    assert line.rate == pytest.approx(share * np.average(rewards, weights=alive), rel=0.05)
    # The promise is 80 at most; with noise of 1 in rewards, and 20,000 steps in memory, it is known to 1 or so.
    mean_left = np.average(horizon + 1 - a, weights=alive)
    assert line.end + line.rate * mean_left == pytest.approx(np.average(promise, weights=alive), rel=0.03)


def test_where_every_episode_ends_by_itself_the_steps_left_are_worth_nothing():
    """All end at age 20 or 21, so the return falls with the age: by the fault of the states, which must be seen."""
    horizon = 50
    running = RecentEpisodes(400, horizon)
    stream(running, np.random.default_rng(5), 400, horizon, lambda ages: (ages >= 20) / 2, lambda ages: 1.0 + 0 * ages)
    line = MeasuredBaseline(horizon).of_stream(running)
    assert (line.rate, line.share) == (0.0, 0.0)
    assert line.end == pytest.approx(10.5, rel=0.05)  # half of 20 or so


def test_the_network_sees_the_time_left_as_far_as_it_matters():
    rng = np.random.default_rng(6)
    critic, rows = Critic(1, 100, rng=rng), np.zeros((2, 1))
    optimiser = make_optimiser(critic, "adam", 1e-3)
    early_and_late = critic.inputs(rows, np.array([1, 100]))
    for share, differ in ((1.0, True), (0.0, False)):
        critic.fit(early_and_late, np.array([1.0, 3.0]), optimiser, 1, line=Line(0.0, 0.0, share), rng=rng)
        early, late = critic.values(early_and_late)
        assert (early != late) == differ


def test_without_a_time_limit_there_is_no_line():
    running = RecentEpisodes(2)
    running.add(np.full((3, 2), 2), np.zeros((3, 2), dtype=bool), np.ones((3, 2)))
    assert MeasuredBaseline(None).of_stream(running) is None


def test_predictions_take_the_measured_line_over():
    rng = np.random.default_rng(5)
    critic = Critic(1, 100, rng=rng)
    inputs, optimiser = critic.inputs(np.zeros((100, 1)), np.arange(1, 101)), make_optimiser(critic, "adam", 1e-3)
    left = np.arange(100, 0, -1)
    critic.fit(inputs, np.zeros(100), optimiser, 1, line=Line(5.0, 7.0), rng=rng)
    before = critic.values(inputs)
    critic.fit(inputs, before, optimiser, 1, line=Line(3.0, 9.0), rng=rng)
    np.testing.assert_allclose(critic.values(inputs) - before, 2.0 * left - 2.0, atol=1.0)


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
