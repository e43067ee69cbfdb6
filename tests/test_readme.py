"""The README's Python runs and says the truth."""

import re
from pathlib import Path

import gymnasium
import pytest

import steadyrl
from steadyrl.diagnosis.wording import verdict

README = Path(__file__).parent.parent / "README.md"


def example(number):
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[number]


def test_the_readmes_cure_runs():
    envs = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
    scope = {"steadyrl": steadyrl, "envs": envs}
    exec(example(0), scope)
    scope["envs"].reset(seed=0)
    scope["envs"].step(envs.action_space.sample())
    assert scope["envs"].report().phase_locked is False
    envs.close()


def test_the_readmes_first_example_says_the_truth():
    code = example(1)
    scope = {"steadyrl": steadyrl}
    exec(code, scope)
    lengths = scope["lengths"]
    assert steadyrl.phase_mixing_time(lengths) == float("inf")
    assert round(lengths.cv, 2) == 0.82
    assert f"# {steadyrl.design_delays(lengths).window}: staggered" in code


def test_the_readmes_screen_is_what_the_command_prints():
    found = steadyrl.diagnose("steadyrl/StateSweep-v0", backend="serial")
    shown = " ".join(README.read_text().split())
    assert " ".join(verdict(found).split()) in shown
    assert found.recommendation.code in shown


def test_the_readmes_exact_example_computes_the_numbers_beside_it():
    code = example(2)
    scope = {}
    exec(code, scope)
    process, policy = scope["process"], scope["policy"]
    assert steadyrl.check_episodic(process).ok
    assert f"E[T] = {steadyrl.average_episode_length(process, policy):.2f}" in code
    assert f"# {steadyrl.mixing_time(process, policy)} steps" in code
    assert f"J_epi = {steadyrl.episode_performance(process, policy):.4f}" in code


def test_the_readmes_second_example_computes_the_gradient_beside_it():
    code = example(3)
    scope = {"steadyrl": steadyrl}
    exec(code, scope)
    gradient = steadyrl.policy_gradient(scope["process"], scope["logits"])
    assert gradient.tolist() == [[0, 0], [0.5, -0.5], [0, 0]]
    assert f"J_epi: {[[float(f'{x:g}') for x in row] for row in gradient]}".replace(".0", "") in code
    assert scope["perturbed"].null == 3


def test_the_readmes_claim_about_taxi():
    process = steadyrl.LearningProcess.from_gymnasium("Taxi-v4")
    policy = steadyrl.uniform_policy(process)
    mean = steadyrl.average_episode_length(process, policy)
    assert steadyrl.mixing_time(process, policy) / mean == pytest.approx(100, rel=0.01)
    perturbed = steadyrl.perturb(process, steadyrl.Perturbation.for_average_episode_length(mean))
    given = steadyrl.mixing_time(perturbed, steadyrl.uniform_policy(perturbed), given_not_null=True)
    assert given / mean < 3
