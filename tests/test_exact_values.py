"""Results of the exact analysis are values: they compare, hash and print without surprises."""

import numpy as np
import pytest

from steadyrl import (
    GradientBias,
    LearningProcess,
    Perturbation,
    check_episodic,
    coupled_sampling,
    gallery,
    gradient_bias,
    uniform_policy,
)
from steadyrl.exact.chain import episode_chain
from steadyrl.exact.summary import summarise


def results():
    """Return pairs of functions that make the same result, and one that makes another of the same class."""
    process, policy = gallery.two_terminals()
    other, other_policy = gallery.periodic()

    def sample(seed):
        return coupled_sampling(process, policy, Perturbation(0.5), 50, rng=np.random.default_rng(seed))

    return {
        "CoupledSample": (lambda: sample(1), lambda: sample(2)),
        "EpisodicCheck": (lambda: check_episodic(process), lambda: check_episodic(gallery.never_ending()[0])),
        "Summary": (lambda: summarise(process, policy), lambda: summarise(other, other_policy)),
        "PolicySummary": (lambda: summarise(process, policy).policy, lambda: summarise(other, other_policy).policy),
        "GradientBias": (
            lambda: gradient_bias(process, np.zeros((4, 2)), 0.9),
            lambda: GradientBias(0.5, 60.0, 2.0),
        ),
        "Perturbation": (lambda: Perturbation(0.5), lambda: Perturbation.from_detour([0.5, 0.5])),
    }


@pytest.mark.parametrize("name", list(results()))
def test_results_with_the_same_values_are_equal_and_have_the_same_hash(name):
    same, other = results()[name]
    assert type(same()).__name__ == name
    assert same() == same()
    assert hash(same()) == hash(same())
    assert same() != other()
    assert same() != "another type"
    assert len({same(), same(), other()}) == 2


@pytest.mark.parametrize("name", list(results()))
def test_results_print_on_one_short_line(name):
    for make in results()[name]:
        assert repr(make()).startswith(f"{name}(")
        assert len(repr(make())) < 160
        assert "\n" not in repr(make())


def test_parts_that_hold_arrays_compare_and_hash_without_raising():
    process, policy = gallery.two_terminals()
    chains = episode_chain(process, policy), episode_chain(process, policy)
    limited = process.with_time_limit(3).layers, process.with_time_limit(3).layers
    for one, other in (chains, limited):
        assert one == one
        assert one != other  # parts are compared by identity
        assert len({one, other}) == 2


def test_an_angle_says_that_it_is_in_degrees():
    process, _ = gallery.wrong_way()
    assert repr(gradient_bias(process, np.zeros((8, 2)), 0.5 * ~process.terminal)).startswith(
        "GradientBias(cosine=-1, angle=180 degrees,"
    )


def test_a_process_prints_its_size():
    process = LearningProcess([[[0, 1], [1, 0]]], [0, 5], [1, 0])
    assert repr(process) == "LearningProcess(2 states, 1 action, 1 terminal)"
    assert uniform_policy(process).shape == (2, 1)
