"""Perturbation: validation, Algorithm 1, renumbering, and the null state that looks terminal."""

import numpy as np
import pytest
from scipy import stats

from processes import dense_chain, random_process
from steadyrl import (
    LearningProcess,
    Perturbation,
    average_episode_length,
    coupled_sampling,
    distances,
    episode_performance,
    mixing_time,
    period,
    perturb,
    renumber,
    sample_path,
    stationary_distribution,
    uniform_policy,
)
from steadyrl.errors import PerturbationError
from steadyrl.exact import gallery


@pytest.mark.parametrize("epsilon", [0, 1, -0.1, 1.5, np.nan, np.inf, "0.5", None, True])
def test_epsilon_outside_the_open_unit_interval_is_refused(epsilon):
    with pytest.raises(PerturbationError, match="epsilon"):
        Perturbation(epsilon)


@pytest.mark.parametrize("length", [1, 0.5, np.inf, np.nan, -3])
def test_an_average_episode_length_without_an_epsilon_is_refused(length):
    with pytest.raises(PerturbationError, match=r"E\[T\]"):
        Perturbation.for_average_episode_length(length)


@pytest.mark.parametrize("detour", [[0.5, 0.4], [1.5, -0.5], [np.nan, 1], [1.0], [1.0, 0.0], []])
def test_a_detour_that_is_no_distribution_or_no_detour_is_refused(detour):
    with pytest.raises(PerturbationError):
        Perturbation.from_detour(detour)


@pytest.mark.parametrize(
    "perturbation",
    [Perturbation(0.6), Perturbation(0.6, recursive=False), Perturbation.from_detour([0.1, 0.2, 0.0, 0.7])],
)
def test_detour_lengths_have_the_stated_mean_and_distribution(perturbation):
    probabilities = perturbation.detour_probabilities(200)
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert np.arange(201) @ probabilities == pytest.approx(perturbation.mean_detour, rel=1e-12)
    n = 40_000
    drawn = np.bincount(perturbation.draw(n, rng=np.random.default_rng(3)), minlength=201)[:201]
    common = probabilities * n >= 10
    observed = np.append(drawn[common], drawn[~common].sum())
    expected = np.append(probabilities[common], probabilities[~common].sum()) * n
    keep = expected > 0
    assert (observed[~keep] == 0).all()
    # One chi-square test at level 1e-4 for each of three cases.
    assert stats.chisquare(observed[keep], expected[keep] * observed.sum() / expected.sum()).pvalue > 1e-4


def test_the_null_state_has_the_row_of_a_terminal_state_and_yet_is_none():
    process, _ = gallery.two_terminals()
    perturbed = perturb(process, Perturbation(0.4))
    rows = dense_chain(perturbed, uniform_policy(perturbed))
    np.testing.assert_allclose(rows[perturbed.null], rows[0], rtol=1e-15)
    assert perturbed.terminal.tolist() == [True, False, False, True, False]
    assert (perturbed.null, perturbed.n_states, perturbed.name(4)) == (4, 5, "null")
    # Declared as nothing special, it would be swallowed: an "episode" for each null step.
    naive = LearningProcess(perturbed.transitions, perturbed.rewards, perturbed.initial)
    assert naive.terminal[4]
    assert average_episode_length(naive, uniform_policy(naive)) < 2
    assert average_episode_length(perturbed, uniform_policy(perturbed)) == pytest.approx(2.5 + 0.4 / 0.6)


def test_definition_2_row_by_row():
    process, _ = random_process(np.random.default_rng(8), "dense")
    n, e = process.n_states, 0.3
    once = perturb(process, Perturbation(e, recursive=False))
    again = perturb(process, Perturbation(e))
    for a in range(process.n_actions):
        raw = process.transitions[a].toarray()
        for model, stay in ((once, 0.0), (again, e)):
            new = model.transitions[a].toarray()
            ends = process.terminal
            np.testing.assert_allclose(new[:n][ends][:, :n], (1 - e) * raw[ends], rtol=1e-14)
            np.testing.assert_allclose(new[:n][ends][:, n], e, rtol=1e-15)
            np.testing.assert_array_equal(new[:n][~ends][:, :n], raw[~ends])
            assert (new[:n][~ends][:, n] == 0).all()
            np.testing.assert_allclose(new[n, :n], (1 - stay) * process.reset, rtol=1e-14)
            assert new[n, n] == pytest.approx(stay, abs=1e-15)


def test_a_detour_of_fixed_length_lengthens_every_episode_by_it():
    process, policy = gallery.corridor(3)
    perturbed = perturb(process, Perturbation.from_detour([0, 0, 0, 1]))
    assert perturbed.n_states == 4 + 3
    assert [perturbed.name(s) for s in range(4, 7)] == ["null 1", "null 2", "null 3"]
    assert average_episode_length(perturbed, uniform_policy(perturbed)) == pytest.approx(7, rel=1e-14)
    assert episode_performance(perturbed, uniform_policy(perturbed)) == episode_performance(process, policy)


def test_a_process_is_perturbed_once():
    with pytest.raises(PerturbationError, match="already"):
        perturb(perturb(gallery.corridor()[0], Perturbation(0.5)), Perturbation(0.5))


def test_the_conditioned_distance_stays_below_the_tolerance_from_the_mixing_time_on():
    process, _ = gallery.state_sweep(12)
    for perturbation in (Perturbation(0.3), Perturbation.from_detour([0.4, 0, 0, 0.3, 0.3])):
        perturbed = perturb(process, perturbation)
        policy = uniform_policy(perturbed)
        found = mixing_time(perturbed, policy, 0.02, given_not_null=True)
        curve = distances(perturbed, policy, int(found) + 2000, given_not_null=True)
        assert (curve[int(found) :] < 0.02).all()
        assert curve[int(found) - 1] >= 0.02


def test_renumbering_inserts_the_detours_and_keeps_the_order():
    ends = np.array([True, False, True, True, False])
    times = renumber(ends, Perturbation.from_detour([0, 1]), rng=np.random.default_rng(0))
    assert times.tolist() == [0, 2, 3, 5, 7]
    with pytest.raises(PerturbationError, match="first True"):
        renumber([False, True], Perturbation(0.5), rng=np.random.default_rng(0))
    with pytest.raises(PerturbationError, match="first True"):
        renumber([], Perturbation(0.5), rng=np.random.default_rng(0))


def test_algorithm_1_on_the_papers_example():
    # Terminal states s0, s1, s2, s4; null states after s0 and s2: the table beside Algorithm 1.
    class Script(Perturbation):
        def draw(self, count, *, rng):
            assert count == 4
            return np.array([1, 0, 1, 0])

    rows = np.zeros((4, 4))  # states: 0, 1, 3 terminal with the same row, 2 in mid-episode; s = 0, 1, 3, 2, 0, ...
    rows[[0, 1, 3]] = [0, 0.4, 0.3, 0.3]
    rows[2, 0] = 1
    process = LearningProcess([rows], np.zeros(4), [1, 0, 0, 0])
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        sample = (
            coupled_sampling(process, uniform_policy(process), Script(0.5), 5, rng=rng)
            if _fits(process, seed)
            else None
        )
        if sample is not None:
            break
    s, null = sample.zeta, 4
    assert sample.zeta_plus.tolist() == [s[0], null, s[1], s[2], null, s[3], s[4], s[5]]
    assert sample.delta.tolist() == [0, 0, 1, 1, 1, 2]
    assert sample.z.tolist() == [s[0], s[1], s[1], s[2], s[3], s[3]]


def _fits(process, seed):
    path = sample_path(process, uniform_policy(process), 5, rng=np.random.default_rng(seed))
    return process.terminal[path].tolist() == [True, True, True, False, True, False]


@pytest.mark.parametrize("perturbation", [Perturbation(0.4, recursive=False), Perturbation(0.7)])
def test_algorithm_1_couples_the_raw_and_the_perturbed_process(perturbation):
    process, policy = random_process(np.random.default_rng(12), "sparse")
    steps = 60_000
    sample = coupled_sampling(process, policy, perturbation, steps, rng=np.random.default_rng(1))
    null = process.n_states
    assert len(sample.zeta) == len(sample.z) == len(sample.delta) == steps + 1
    np.testing.assert_array_equal(sample.zeta_plus[sample.zeta_plus != null], sample.zeta)
    head = sample.zeta_plus[: steps + 1]
    np.testing.assert_array_equal(sample.z[head != null], head[head != null])  # z_t = s+_t unless it is null
    np.testing.assert_array_equal(
        sample.delta, [np.count_nonzero(head[:t] == null) for t in range(200)] + sample.delta[200:].tolist()
    )
    np.testing.assert_array_equal(sample.z, sample.zeta[np.arange(steps + 1) - sample.delta])
    # zeta+ is a trajectory of the perturbed process: every transition that is seen is allowed, and in proportion.
    perturbed = perturb(process, perturbation)
    chain = dense_chain(perturbed, np.vstack([policy, policy[:1]]))
    counts = np.zeros_like(chain)
    np.add.at(counts, (sample.zeta_plus[:-1], sample.zeta_plus[1:]), 1)
    assert (counts[chain == 0] == 0).all()
    for state in np.flatnonzero(counts.sum(axis=1) > 1000):
        seen = chain[state] * counts[state].sum() > 5
        expected = np.append(chain[state][seen], chain[state][~seen].sum()) * counts[state].sum()
        observed = np.append(counts[state][seen], counts[state][~seen].sum())
        if (expected > 0).sum() > 1:
            # At most 13 states a case, two cases: a false alarm once in 4,000 at level 1e-5 each.
            assert stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-5


def test_theorem_3_by_sampling_z_has_the_stationary_distribution():
    # z_t for large t over many runs of Algorithm 1, against rho; a chi-square test at level 1e-4.
    process, policy = gallery.periodic()
    runs, t = 4000, 60
    rng = np.random.default_rng(5)
    last = [coupled_sampling(process, policy, Perturbation(0.6), t, rng=rng) for _ in range(runs)]
    real = np.array([s.z[-1] for s in last if s.zeta_plus[t] != process.n_states])
    observed = np.bincount(real, minlength=4)
    assert stats.chisquare(observed, stationary_distribution(process, policy) * len(real)).pvalue > 1e-4


def test_sampling_is_reproducible_and_uses_only_its_generator():
    process, policy = gallery.two_terminals()
    one, two = (
        coupled_sampling(process, policy, Perturbation(0.5), 50, rng=np.random.default_rng(9)) for _ in range(2)
    )
    np.testing.assert_array_equal(one.zeta_plus, two.zeta_plus)
    with pytest.raises(PerturbationError, match="steps is -1"):
        coupled_sampling(process, policy, Perturbation(0.5), -1, rng=np.random.default_rng(9))


def test_a_detour_may_leave_the_process_periodic_and_the_mixing_time_says_so():
    process, _ = gallery.state_sweep(2)
    perturbed = perturb(process, Perturbation.from_detour([0.5, 0, 0.5]))  # lengths 2 and 4
    policy = uniform_policy(perturbed)
    curve = distances(perturbed, policy, 100, given_not_null=True)
    assert mixing_time(perturbed, policy, 0.6, given_not_null=True) == np.argmax(curve < 0.6)
    assert mixing_time(perturbed, policy, 0.4, given_not_null=True) == np.inf
    fixed = perturb(gallery.state_sweep(3)[0], Perturbation.from_detour([0, 0, 0, 1]))
    assert mixing_time(fixed, uniform_policy(fixed), 0.9, given_not_null=True) == np.inf


def test_long_mixing_times_given_not_null_are_the_last_crossing():
    process, _ = gallery.state_sweep(40)
    perturbed = perturb(process, Perturbation(0.1, recursive=False))
    policy = uniform_policy(perturbed)
    found = int(mixing_time(perturbed, policy, given_not_null=True))
    assert found > 10_000  # so that powers of the chain were used
    curve = distances(perturbed, policy, found + 2000, given_not_null=True)
    assert (curve[found:] < 0.01).all()
    assert curve[found - 1] >= 0.01


def test_the_support_of_a_detour_survives_tiny_probabilities():
    process, _ = gallery.state_sweep(2)
    perturbed = perturb(process, Perturbation.from_detour([1e-17, 1]))
    assert period(perturbed, uniform_policy(perturbed)) == 1


def test_what_is_not_a_perturbation_is_refused():
    process, policy = gallery.corridor()
    with pytest.raises(PerturbationError, match="it must be a Perturbation"):
        perturb(process, 0.5)
    perturbed = perturb(process, Perturbation(0.5))
    with pytest.raises(PerturbationError, match="already"):
        coupled_sampling(perturbed, uniform_policy(perturbed), Perturbation(0.5), 3, rng=np.random.default_rng(0))
    with pytest.raises(PerturbationError, match=r"steps is 2\.5"):
        sample_path(process, policy, 2.5, rng=np.random.default_rng(0))
    with pytest.raises(PerturbationError, match="real numbers"):
        Perturbation.from_detour(["a"])
    for flag in ("no", None, 1):
        with pytest.raises(PerturbationError, match="recursive is"):
            Perturbation(0.5, recursive=flag)


@pytest.mark.parametrize("ends", [[3, 2, 0.5, 0], [1, np.nan, 0], [2, 0, 0], [1, -1]])
def test_states_or_other_numbers_are_not_taken_for_ends(ends):
    with pytest.raises(PerturbationError, match="must hold booleans"):
        renumber(ends, Perturbation(0.5), rng=np.random.default_rng(0))
