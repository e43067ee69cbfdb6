"""The README's Python runs and says the truth."""

import re
from pathlib import Path

import pytest

import steadyrl

README = Path(__file__).parent.parent / "README.md"


def test_the_readmes_first_example_computes_the_numbers_beside_it():
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    scope = {}
    exec(code, scope)
    process, policy = scope["process"], scope["policy"]
    assert steadyrl.check_episodic(process).ok
    assert f"E[T] = {steadyrl.average_episode_length(process, policy):.2f}" in code
    assert f"# {steadyrl.mixing_time(process, policy)} steps" in code
    assert f"J_epi = {steadyrl.episode_performance(process, policy):.4f}" in code


def test_the_readmes_second_example_runs():
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    given, _ = steadyrl.gallery.wrong_way()
    scope = {
        "steadyrl": steadyrl,
        "transitions": given.transitions,
        "rewards": given.rewards,
        "initial": given.initial,
        "logits": [[0.0, 0.0]] * given.n_states,
    }
    exec(code, scope)
    assert scope["perturbed"].null == given.n_states


def test_the_readmes_claim_about_taxi():
    process = steadyrl.LearningProcess.from_gymnasium("Taxi-v4")
    policy = steadyrl.uniform_policy(process)
    mean = steadyrl.average_episode_length(process, policy)
    assert steadyrl.mixing_time(process, policy) / mean == pytest.approx(100, rel=0.01)
    perturbed = steadyrl.perturb(process, steadyrl.Perturbation.for_average_episode_length(mean))
    given = steadyrl.mixing_time(perturbed, steadyrl.uniform_policy(perturbed), given_not_null=True)
    assert given / mean < 3
