"""Policies with gradients: the same distribution as their numpy twins, the same file, the right log-probabilities."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.errors import FileFormatError, PolicyError
from steadyrl.policies.choosing import resolve_policy
from steadyrl.policies.files import load_policy
from steadyrl.policies.modules import (
    CategoricalPolicy,
    GaussianPolicy,
    SoftmaxTable,
    as_module,
    load_module,
    make_policy,
)
from steadyrl.policies.tables import TabularPolicy
from steadyrl.policies.tensors import read_safetensors, write_safetensors

SEEN = observation_codec(spaces.Box(-1, 1, (4,)))
SPACES = {
    "box": spaces.Box(-1, 1, (3,)),
    "matrix": spaces.Box(-1, 1, (2, 2)),
    "discrete": spaces.Discrete(3, start=2),
    "multi": spaces.MultiDiscrete([3, 2, 4], start=[0, 1, 5]),
    "table": spaces.MultiDiscrete([[2, 3], [4, 2]]),
}
N = 20_000  # draws; comparisons at 5 standard errors, a false alarm in 6e-7 each


def shaken(name, *, normalised=True):
    """A policy with random weights of a size that matters."""
    policy = make_policy(SEEN, action_codec(SPACES[name]), seed=3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    if normalised:
        policy.normalise([0.1, 0.2, -0.3, 0.0], [0.5, 2.0, 1.0, 0.1])
    return policy


@pytest.mark.parametrize("name", SPACES)
def test_files_round_trip_and_the_numpy_twin_acts_the_same(tmp_path, name):
    policy, acted = shaken(name), action_codec(SPACES[name])
    policy.environment = "Some-v0"
    policy.save(tmp_path / "policy.safetensors")
    twin = load_policy(tmp_path / "policy.safetensors", SEEN, acted)
    module = load_module(tmp_path / "policy.safetensors", SEEN, acted)
    x = np.random.default_rng(0).normal(size=(8, 4))
    draws = [each.act(x, np.random.default_rng(1)) for each in (policy, twin, module)]
    np.testing.assert_array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[0], draws[2])
    assert twin.environment == module.environment == "Some-v0"
    assert all(SPACES[name].contains(action) for action in acted.sent(draws[0]))
    outputs = policy.outputs(policy.features(x)).detach().numpy()
    np.testing.assert_allclose(twin.outputs(x), outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["discrete", "multi", "table"])
def test_log_probabilities_are_those_of_the_draws(name):
    policy = shaken(name)
    x = np.tile(np.random.default_rng(2).normal(size=4), (N, 1))
    draws = policy.act(x, np.random.default_rng(0)).reshape(N, -1)
    kinds, counts = np.unique(draws, axis=0, return_counts=True)
    shape = () if name == "discrete" else SPACES[name].shape
    with torch.no_grad():
        log_prob = policy.log_prob(x[: len(kinds)], kinds.reshape(len(kinds), *shape)).numpy()
        entropy = float(policy.entropy(x[:1])[0])
    expected = np.exp(log_prob)
    error = np.sqrt(expected * (1 - expected) / N)
    assert (np.abs(counts / N - expected) < 5 * error).all()
    assert expected.sum() == pytest.approx(1, abs=2e-3)  # kinds too rare to be drawn are missing
    assert -(expected * log_prob).sum() == pytest.approx(entropy, abs=2e-2)


def test_gaussian_log_probabilities_by_scipy():
    from scipy.stats import norm

    policy = shaken("matrix")
    x = np.random.default_rng(2).normal(size=(5, 4))
    actions = policy.act(x, np.random.default_rng(0))
    twin = policy.numpy()
    by_hand = norm.logpdf(actions.reshape(5, 4), twin.outputs(x), np.exp(twin.log_std)).sum(axis=1)
    np.testing.assert_allclose(policy.log_prob(x, actions).detach().numpy(), by_hand, rtol=1e-4)
    np.testing.assert_allclose(
        policy.entropy(x).detach().numpy(), norm.entropy(0, np.exp(twin.log_std)).sum(), rtol=1e-5
    )


def test_deterministic_policies_take_the_mean_or_the_likeliest():
    from dataclasses import replace

    x = np.random.default_rng(0).normal(size=(6, 4))
    rng = np.random.default_rng(0)
    gaussian = replace(shaken("box").numpy(), sampled=False)
    np.testing.assert_array_equal(gaussian.act(x, rng), gaussian.outputs(x))
    several = replace(shaken("multi").numpy(), sampled=False)
    by_hand = [part.argmax(axis=1) for part in np.split(several.outputs(x), [3, 5], axis=1)]
    np.testing.assert_array_equal(several.act(x, rng), np.stack(by_hand, axis=1) + np.array([0, 1, 5]))
    table = TabularPolicy.of([[0.2, 0.5, 0.3], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.1, 0.8]]).likeliest()
    np.testing.assert_array_equal(table.act(np.eye(3), rng), [1, 0, 2])


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"layers.0.bias": np.zeros(5)}, {}),
        ({"layers.2.bias": np.zeros(1)}, {}),
        ({"layers.1.weight": np.zeros((64, 31))}, {}),
        ({"layers.0.weight": np.zeros(4)}, {}),
        ({"layers.0.weight": np.full((64, 4), np.nan)}, {}),
        ({"log_std": np.zeros(2)}, {}),
        ({"observations.mean": np.zeros(1)}, {}),
        ({"observations.std": np.array([1.0, 1.0, 1.0, 0.0])}, {}),
        ({}, {"limit": "abc"}),
        ({}, {"limit": None}),
        ({}, {"limit": "nan"}),
        ({}, {"choices": "a,b"}),
    ],
)
def test_policy_files_whose_parts_do_not_fit_each_other_are_damaged(tmp_path, tensors, metadata):
    policy = shaken("box")
    policy.normalise(np.zeros(4), np.ones(4))
    policy.save(tmp_path / "a.safetensors")
    load_policy(tmp_path / "a.safetensors", SEEN, action_codec(SPACES["box"]))
    before = read_safetensors(tmp_path / "a.safetensors")
    write_safetensors(tmp_path / "a.safetensors", before[0] | tensors, before[1] | metadata)
    with pytest.raises(FileFormatError, match="damaged"):
        load_policy(tmp_path / "a.safetensors", SEEN, action_codec(SPACES["box"]))


def test_a_policy_of_one_output_can_be_trained_on(tmp_path):
    # its last weights are contiguous both ways, so that nothing copies them out of the file's read-only bytes
    actions = action_codec(spaces.Box(-1, 1, (1,)))
    policy = make_policy(SEEN, actions)
    policy.save(tmp_path / "a.safetensors")
    again = load_module(
        tmp_path / "a.safetensors", SEEN, actions
    )  # a warning, which is an error, if they are not copied
    assert torch.equal(again.layers[-1].weight, policy.layers[-1].weight)


def test_tables_fit_their_spaces_or_are_refused():
    seen, actions = observation_codec(spaces.Discrete(3)), action_codec(spaces.Discrete(2, start=5))
    table, _ = resolve_policy(np.array([[0.0, 1.0]] * 3), seen, actions, seed=0)
    assert (table.act(np.eye(3), np.random.default_rng(0)) == 6).all()
    assert (table.likeliest().act(np.eye(3), np.random.default_rng(0)) == 6).all()
    wrong = [np.full((3, 2), np.nan), [[2, -1]] * 3, [[1.0], [0.5, 0.5]], [["a", "b"]] * 3, np.full((2, 2), 0.5)]
    for bad in (*wrong, SoftmaxTable(np.zeros((3, 4))).numpy()):
        with pytest.raises(PolicyError, match=r"\[S, A\]"):
            resolve_policy(bad, seen, actions, seed=0)


def test_observations_that_are_numbers_become_unit_vectors():
    seen = observation_codec(spaces.Discrete(5, start=1))
    policy = make_policy(seen, action_codec(spaces.Discrete(2)), seed=0)
    np.testing.assert_array_equal(policy.features(np.array([1, 5])).numpy(), np.eye(5)[[0, 4]])


def test_the_seed_makes_the_policy_and_nobody_elses_generator_is_touched():
    before = torch.random.get_rng_state().clone(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, same, other = (make_policy(SEEN, action_codec(SPACES["box"]), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.layers[0].weight, same.layers[0].weight)
    assert not torch.equal(one.layers[0].weight, other.layers[0].weight)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002


def test_policies_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(PolicyError, match="Box"):
        GaussianPolicy(SEEN, action_codec(spaces.Discrete(2)))
    with pytest.raises(PolicyError, match="Discrete"):
        CategoricalPolicy(SEEN, action_codec(SPACES["box"]))
    shaken("multi").save(tmp_path / "policy.safetensors")
    for other in (spaces.MultiDiscrete([3, 4, 2]), spaces.Discrete(9)):  # as many outputs, other choices
        with pytest.raises(PolicyError, match="use the environment it was made for"):
            load_policy(tmp_path / "policy.safetensors", SEEN, action_codec(other))


def test_a_numpy_policy_becomes_a_module_and_back():
    policy = shaken("box").numpy()
    again = as_module(policy, SEEN, action_codec(SPACES["box"])).numpy()
    for name, value in policy.tensors().items():
        np.testing.assert_array_equal(again.tensors()[name], value)


@pytest.mark.parametrize("actions", [np.zeros((2, 5)), np.zeros(10), np.zeros((5, 3)), np.zeros((10, 1)), 0.0])
def test_actions_in_another_order_than_observations_are_refused_instead_of_reshaped(actions):
    policy = make_policy(observation_codec(spaces.Box(-1, 1, (3,))), action_codec(spaces.Box(-1, 1, (2,))))
    with pytest.raises(PolicyError, match=r"actions have shape .*\(5, 2\)"):
        policy.log_prob(np.zeros((5, 3)), actions)


@pytest.mark.parametrize("actions", [[0, 0, 0], [9, 2, 2], [2, 3], [[2, 3], [2, 3], [2, 3]]])
def test_actions_that_a_categorical_policy_does_not_have_are_refused(actions):
    policy = make_policy(observation_codec(spaces.Box(-1, 1, (3,))), action_codec(spaces.Discrete(4, start=2)))
    assert policy.log_prob(np.zeros((3, 3)), [2, 3, 5]).shape == (3,)
    with pytest.raises(PolicyError, match="actions"):
        policy.log_prob(np.zeros((3, 3)), actions)


def test_a_table_takes_one_whole_number_of_an_action_for_each_state():
    table = SoftmaxTable(np.zeros((4, 2)))
    for states, actions in (([0, 1, 2], [[0], [1], [0]]), ([0.9], [0]), ([0, 1], [1])):
        with pytest.raises(PolicyError, match="one action for each state"):
            table.log_prob(np.array(states), np.array(actions))
    for logits in ("x", [1.0, 2.0], [[np.nan, 0.0]], None):
        with pytest.raises(PolicyError, match="logits"):
            SoftmaxTable(logits)


@pytest.mark.parametrize(
    "wrong",
    [
        "no",
        None,
        2**63,
        torch.zeros(5, 3).to_sparse(),
        torch.zeros(5, 3, device="meta"),
        {"a": 1},
        ["1", "2"],
        [[1, 2], [3]],
        1j,
        np.zeros((5, 4)),
        3.0,
    ],
)
def test_what_is_no_batch_of_observations_is_refused(wrong):
    policy = make_policy(observation_codec(spaces.Box(-1, 1, (3,))), action_codec(spaces.Box(-1, 1, (2,))))
    table = SoftmaxTable(np.zeros((4, 2)))
    for refused in (lambda: policy.log_prob(wrong, np.zeros((5, 2))), lambda: table.log_prob(wrong, [0] * 5)):
        with pytest.raises(PolicyError, match=r"observations|states"):
            refused()


@pytest.mark.parametrize("wrong", [[0.5, 1.2, 0.9], [np.nan, 0, 0], [np.inf, 0, 0]])
def test_numbers_between_choices_are_refused_not_rounded(wrong):
    states, two = observation_codec(spaces.Discrete(3)), action_codec(spaces.Discrete(2))
    with pytest.raises(PolicyError, match=r"actions .* whole numbers"):
        CategoricalPolicy(SEEN, two, (4,)).log_prob(np.zeros((3, 4)), np.array(wrong))
    with pytest.raises(PolicyError, match=r"observations .* whole numbers"):
        CategoricalPolicy(states, two, (4,)).log_prob(np.array(wrong), np.zeros(3, dtype=int))


def test_flags_are_choices_and_long_doubles_observations():
    policy = CategoricalPolicy(SEEN, action_codec(spaces.Discrete(2)), (4,))
    found = policy.log_prob(np.zeros((2, 4), np.longdouble), np.array([True, False]))
    assert torch.equal(found, policy.log_prob(np.zeros((2, 4)), np.array([1, 0])))
