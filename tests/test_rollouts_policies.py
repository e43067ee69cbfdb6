"""Policies in numpy: draws follow the distribution they should, and files round-trip."""

import numpy as np
import pytest
from gymnasium import spaces

from steadyrl import collect_episodes, collect_samples, evaluate
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.errors import FileFormatError, PolicyError
from steadyrl.policies import NetworkPolicy, TabularPolicy, random_gaussian_policy
from steadyrl.policies.files import load_policy
from steadyrl.policies.tensors import read_safetensors, write_safetensors

N = 20_000  # draws in each test; comparisons at 5 standard errors, a false alarm in 6e-7 each


def test_the_papers_policy_has_two_tanh_layers_of_64_and_a_diagonal_gaussian():
    policy = random_gaussian_policy(5, (3,), seed=1)
    assert [weight.shape for weight in policy.weights] == [(5, 64), (64, 64), (64, 3)]
    x = np.random.default_rng(0).normal(size=5)
    by_hand = x
    for weight, bias in zip(policy.weights[:2], policy.biases[:2], strict=True):
        by_hand = np.tanh(by_hand @ weight + bias)
    by_hand = by_hand @ policy.weights[2] + policy.biases[2]
    draws = policy.act(np.tile(x, (N, 1)), np.random.default_rng(1))
    assert (np.abs(draws.mean(axis=0) - by_hand) < 5 / np.sqrt(N)).all()
    np.testing.assert_allclose(np.cov(draws.T), np.eye(3), atol=5 * np.sqrt(2 / N))


def test_the_seed_makes_the_policy():
    one, same, other = (random_gaussian_policy(4, (1,), seed=seed) for seed in (1, 1, 2))
    assert (one.weights[0] == same.weights[0]).all()
    assert (one.weights[0] != other.weights[0]).all()


def test_categorical_draws_follow_the_softmax():
    policy = NetworkPolicy((np.array([[0.0, 1.0, 2.0]]),), (np.zeros(3),), None, start=4)
    draws = policy.act(np.ones((N, 1)), np.random.default_rng(0)) - 4
    expected = np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum()
    error = np.sqrt(expected * (1 - expected) / N)
    assert (np.abs(np.bincount(draws, minlength=3) / N - expected) < 5 * error).all()


def test_tabular_draws_follow_their_row():
    policy = TabularPolicy.of([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    rows = np.eye(2)[np.arange(N) % 2]
    draws = policy.act(rows, np.random.default_rng(0))
    assert (draws[::2] == 1).all()
    error = np.sqrt(0.25 / (N / 2))
    assert (np.abs(np.bincount(draws[1::2], minlength=3) / (N / 2) - [0.2, 0.3, 0.5]) < 5 * error).all()


def test_rows_that_are_not_distributions_are_refused():
    with pytest.raises(PolicyError, match="sum to one"):
        TabularPolicy.of([[0.5, 0.6]])


BOX, CHOICE = action_codec(spaces.Box(-1, 1, (2,))), action_codec(spaces.Discrete(3, start=1))
SEEN = observation_codec(spaces.Box(-1, 1, (4,)))


def test_gaussian_policies_round_trip(tmp_path):
    policy = random_gaussian_policy(4, (2,), seed=1)
    policy.save(tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors", SEEN, BOX)
    x = np.random.default_rng(0).normal(size=(8, 4))
    draws = [p.act(x, np.random.default_rng(1)) for p in (policy, loaded)]
    np.testing.assert_array_equal(*draws)


def test_categorical_policies_round_trip_and_count_actions_from_the_spaces_start(tmp_path):
    policy = NetworkPolicy((np.zeros((4, 3)),), (np.array([0.0, 0.0, 99.0]),), None)
    policy.save(tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors", SEEN, CHOICE)
    assert (loaded.act(np.zeros((5, 4)), np.random.default_rng(0)) == 3).all()


def test_a_policy_file_can_be_collected_with(tmp_path):
    policy = NetworkPolicy((np.zeros((4, 2)),), (np.array([99.0, 0.0]),), None)  # always left
    policy.save(tmp_path / "left.safetensors")
    episodes = collect_episodes("CartPole-v1", tmp_path / "left.safetensors", 20, backend="serial", trajectories=True)
    assert (episodes.trajectories.actions == 0).all()
    assert episodes.provenance["policy"] == "left.safetensors"
    assert episodes.provenance["policy_digest"]


def test_files_that_do_not_fit_or_are_not_policies_are_refused(tmp_path):
    path = tmp_path / "policy.safetensors"
    random_gaussian_policy(4, (2,), seed=1).save(path)
    with pytest.raises(PolicyError, match="observed values"):
        load_policy(path, observation_codec(spaces.Box(-1, 1, (5,))), BOX)
    with pytest.raises(PolicyError, match="gaussian policy"):
        load_policy(path, SEEN, CHOICE)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileFormatError, match="damaged"):
        load_policy(path, SEEN, BOX)
    write_safetensors(path, {"a": np.ones(2)}, {})
    with pytest.raises(FileFormatError, match="not those of a steadyrl policy"):
        load_policy(path, SEEN, BOX)


def test_the_safetensors_library_reads_what_is_written(tmp_path):
    from safetensors import numpy as numpy_safetensors

    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"w": np.arange(6.0).reshape(2, 3)}, {"kind": "test"})
    np.testing.assert_array_equal(numpy_safetensors.load_file(path)["w"], np.arange(6.0).reshape(2, 3))
    numpy_safetensors.save_file({"w": np.ones((2, 2), np.float32)}, path, {"kind": "other"})
    tensors, metadata = read_safetensors(path)
    np.testing.assert_array_equal(tensors["w"], np.ones((2, 2)))
    assert metadata == {"kind": "other"}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (np.ma.array(np.full((16, 4), 0.25), mask=np.eye(16, 4)), "masked array"),
        ([["0.25"] * 4] * 16, "real numbers"),
        (type("Forgetful", (), {"act": lambda self, observations: observations})(), r"act\(observations, rng\)"),
    ],
)
def test_policies_that_would_be_misread_are_refused(policy, words):
    with pytest.raises(PolicyError, match=words):
        collect_episodes("FrozenLake-v1", policy, 3, backend="serial")


class _Balance:
    def act(self, observations, rng):
        return (observations[:, 2] > 0).astype(int)


class _BalanceInPlace(_Balance):
    def act(self, observations, rng):
        chosen = super().act(observations, rng)
        observations -= 7.0  # as one that normalises in place does
        return chosen


def test_a_policy_that_changes_observations_in_place_does_not_change_what_is_recorded():
    pure, rude = (
        collect_episodes("CartPole-v1", policy, 5, backend="serial", trajectories=True, observation_sums=True)
        for policy in (_Balance(), _BalanceInPlace())
    )
    assert np.array_equal(pure.trajectories.observations, rude.trajectories.observations)
    assert np.array_equal(pure.ages.total, rude.ages.total)
    pure, rude = (
        collect_samples("CartPole-v1", policy, 5, [1, 2, 3], backend="serial")
        for policy in (_Balance(), _BalanceInPlace())
    )
    assert np.array_equal(pure.observations, rude.observations)
    pure, rude = (
        evaluate("CartPole-v1", policy, steps=200, num_envs=4, backend="serial").report.mean_return
        for policy in (_Balance(), _BalanceInPlace())
    )
    assert pure == rude


@pytest.mark.parametrize("run", [collect_episodes, evaluate])
def test_a_name_that_is_too_long_for_any_file_is_no_policy(run):
    with pytest.raises(PolicyError, match="the path of a policy file"):
        run("CartPole-v1", "x" * 300, 2)
