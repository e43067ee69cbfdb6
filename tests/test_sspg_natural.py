"""The natural gradient: Fisher information by two routes, and steps that change the policy by what was asked."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from steadyrl import Settings, evaluate, train
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.policies.modules import GaussianPolicy, make_policy
from steadyrl.sspg.natural import conjugate_gradients, divergence, natural_step

ACTIONS = [spaces.Box(-1, 1, (2,)), spaces.Discrete(3), spaces.MultiDiscrete([2, 3])]


def policy_of(actions, *, hidden=(3,)):
    seen = observation_codec(spaces.Box(-1, 1, (2,)))
    policy = make_policy(seen, action_codec(actions), hidden=hidden, seed=1).double()
    with torch.no_grad():
        policy.layers[-1].weight *= 50  # away from the policy that is the same everywhere
        if isinstance(policy, GaussianPolicy):
            policy.log_std += torch.tensor([0.3, -0.4])
    return policy


def every_action(actions):
    """All actions of a discrete space, as rows."""
    if isinstance(actions, spaces.Discrete):
        return [np.array([a]) for a in range(actions.n)]
    return [np.array([[a, b]]) for a in range(2) for b in range(3)]


def flat(parts):
    return torch.cat([part.reshape(-1) for part in parts])


@pytest.mark.parametrize("actions", ACTIONS[1:], ids=str)
def test_the_curvature_of_the_divergence_is_the_mean_outer_product_of_scores(actions):
    policy = policy_of(actions)
    parameters = list(policy.parameters())
    features = torch.tensor([[0.3, -0.8], [0.5, 0.1]], dtype=torch.float64)
    fisher = 0.0
    for row in features:
        for action in every_action(actions):
            log_prob = policy.log_prob_and_entropy(row[None], action)[0].sum()
            score = flat(torch.autograd.grad(log_prob, parameters))
            fisher = fisher + float(log_prob.detach().exp()) * torch.outer(score, score) / len(features)
    slope = flat(torch.autograd.grad(divergence(policy, features), parameters, create_graph=True))
    rows = [flat(torch.autograd.grad(slope[i], parameters, retain_graph=True)) for i in range(len(slope))]
    assert float(divergence(policy, features).detach()) == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(torch.stack(rows).numpy(), fisher.numpy(), atol=1e-10)


def test_the_divergence_of_gaussians_is_that_of_pytorch():
    policy = policy_of(ACTIONS[0])
    features = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = torch.distributions.Normal(policy.outputs(features).detach(), policy.log_std.detach().exp().clone())
    with torch.no_grad():
        moved = [parameter.clone() for parameter in policy.parameters()]
        for parameter in policy.parameters():
            parameter += 0.1
    after = torch.distributions.Normal(policy.outputs(features).detach(), policy.log_std.detach().exp())
    expected = torch.distributions.kl_divergence(before, after).sum(dim=1).mean()
    assert float(expected) > 0.01
    with torch.no_grad():
        for parameter, old in zip(policy.parameters(), moved, strict=True):
            parameter.copy_(old)
    # The second-order part along the same direction, by the curvature: they agree for small moves only.
    parameters = list(policy.parameters())
    slope = flat(torch.autograd.grad(divergence(policy, features), parameters, create_graph=True))
    np.testing.assert_allclose(slope.detach().numpy(), 0.0, atol=1e-12)
    small = torch.full_like(slope, 1e-4).detach()
    curved = flat(torch.autograd.grad((slope * small).sum(), parameters))
    with torch.no_grad():
        for parameter in parameters:
            parameter += 1e-4
    after = torch.distributions.Normal(policy.outputs(features).detach(), policy.log_std.detach().exp())
    found = torch.distributions.kl_divergence(before, after).sum(dim=1).mean()
    assert float(small @ curved) / 2 == pytest.approx(float(found), rel=1e-2)


@pytest.mark.parametrize("actions", ACTIONS, ids=str)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_step_changes_the_policy_by_what_was_asked_whatever_the_gradients_length(actions, scale):
    policy, max_kl = policy_of(actions, hidden=(16,)), 1e-3
    features = torch.randn(64, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    taken = policy.numpy().act(features.numpy(), np.random.default_rng(0))
    worth = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def loss():
        return -scale * (worth * policy.log_prob_and_entropy(features, taken)[0]).mean()

    def outputs():
        found = policy.outputs(features).detach()
        return (found, policy.log_std.detach().clone()) if isinstance(policy, GaussianPolicy) else (found,)

    before, old = float(loss().detach()), outputs()
    norm = natural_step(policy, loss(), features, max_kl)
    assert norm > 0
    assert float(loss().detach()) < before
    # Damping makes the step a little shorter in KL than asked, never longer beyond second order.
    assert 0.2 * max_kl < between(policy, old, outputs()) < 1.2 * max_kl


def between(policy, old, new):
    """KL between two policies, from their outputs."""
    if isinstance(policy, GaussianPolicy):
        one, two = (torch.distributions.Normal(mean, log_std.exp()) for mean, log_std in (old, new))
        return float(torch.distributions.kl_divergence(one, two).sum(dim=1).mean())
    total, first = 0.0, 0
    for size in policy.choices or (old[0].shape[1],):
        one, two = (torch.distributions.Categorical(logits=found[0][:, first : first + size]) for found in (old, new))
        total, first = total + float(torch.distributions.kl_divergence(one, two).mean()), first + size
    return total


def test_conjugate_gradients_solve_a_system_in_as_many_steps_as_it_has_unknowns():
    rng = np.random.default_rng(4)
    root = rng.normal(size=(8, 8))
    matrix = torch.as_tensor(root @ root.T + np.eye(8))
    right = torch.as_tensor(rng.normal(size=8))
    found = conjugate_gradients(lambda v: matrix @ v, right, 8)
    np.testing.assert_allclose((matrix @ found).numpy(), right.numpy(), atol=1e-6)


def test_no_gradient_no_step():
    policy = policy_of(ACTIONS[1])
    before = flat(policy.parameters()).detach().clone()
    loss = 0.0 * flat(policy.parameters()).sum()
    assert natural_step(policy, loss, torch.zeros(2, 2, dtype=torch.float64), 0.01) == 0.0
    assert torch.equal(flat(policy.parameters()), before)


def test_by_default_pendulum_is_swung_up():
    """What the trainer used to fail at: -1,005 after 300,000 steps, where a random policy has about -1,200."""
    trained = train("Pendulum-v1", Settings(steps=80_000, learning_rate_decay="none", seed=0))
    found = evaluate("Pendulum-v1", trained.policy, 50, backend="serial")
    assert found.mean_return.value > -400
