"""LearningProcess: what it accepts, what it refuses and in which words, files, and immutability."""

import json

import numpy as np
import pytest
import scipy.sparse as sp

from processes import random_process
from steadyrl import (
    LearningProcess,
    NotEpisodicError,
    Perturbation,
    SteadyrlError,
    action_values,
    average_episode_length,
    check_episodic,
    episode_performance,
    perturb,
    softmax_policy,
    stationary_distribution,
    uniform_policy,
)
from steadyrl.common.storage import load_arrays, save_arrays
from steadyrl.errors import AccuracyError, FileFormatError, PolicyError, ProcessError
from steadyrl.exact import gallery

LOOP = np.array([[[0.0, 1.0], [1.0, 0.0]]])


def test_a_small_file_does_not_ask_for_gigabytes(tmp_path, monkeypatch):
    """A header of a few bytes could ask for 2^31 pairs of state and step."""
    process, path = gallery.corridor()[0], tmp_path / "p.npz"
    process.save(path)
    header, arrays = load_arrays(path, "learning process")
    save_arrays(path, "learning process", {**header, "time_limit": 10**8}, arrays)
    with pytest.raises(FileFormatError, match="gigabytes"):
        LearningProcess.load(path)
    save_arrays(path, "learning process", {**header, "time_limit": 10**4}, arrays)
    limited = LearningProcess.load(path)
    limited.save(path)
    assert LearningProcess.load(path).digest == limited.digest
    monkeypatch.setattr("steadyrl.exact.process._MOST_SAVED", 100)
    with pytest.raises(ProcessError, match="gigabytes"):  # what could not be loaded is not saved either
        limited.save(path)


def test_dense_and_sparse_transitions_give_the_same_process():
    dense, policy = random_process(np.random.default_rng(1), "sparse")
    stack = np.array([m.toarray() for m in dense.transitions])
    for convert in (sp.csr_array, sp.csc_matrix, sp.coo_array, np.asarray):
        other = LearningProcess([convert(m) for m in stack], dense.rewards, dense.initial)
        np.testing.assert_array_equal(stationary_distribution(other, policy), stationary_distribution(dense, policy))


def test_expected_rewards_of_actions_and_rewards_on_arrival_agree():
    process, policy = random_process(np.random.default_rng(2), "dense")
    other = LearningProcess(process.transitions, process.expected_rewards, process.initial)
    np.testing.assert_allclose(action_values(other, policy), action_values(process, policy), rtol=1e-12)
    assert episode_performance(other, policy) == pytest.approx(episode_performance(process, policy), rel=1e-12)


def test_a_process_is_immutable_and_keeps_no_reference_to_its_arguments():
    transitions, rewards, initial = LOOP.copy(), np.array([0.0, 1.0]), np.array([1.0, 0.0])
    process = LearningProcess(transitions, rewards, initial)
    transitions[0, 0] = 7
    rewards[:] = initial[:] = 7
    assert episode_performance(process, uniform_policy(process)) == 1
    for array in (process.rewards, process.initial, process.terminal, process.transitions[0].data, process.reset):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        process.rewards = rewards


def test_terminal_states_are_compared_within_a_relative_tolerance():
    third = 1 / 3
    rows = np.array([[0, third, third, third], [0, 1 - 2 * third, third, third], [1, 0, 0, 0], [1, 0, 0, 0]])
    assert LearningProcess([rows], np.zeros(4), [1, 0, 0, 0]).terminal.tolist() == [True, True, False, False]
    rows[1] = [0, third + 1e-6, third - 1e-6, third]
    assert LearningProcess([rows], np.zeros(4), [1, 0, 0, 0]).terminal.tolist() == [True, False, False, False]


def test_a_tiny_way_out_is_not_mistaken_for_a_terminal_state():
    # State 1 almost has the row of the terminal state 0; the 1e-15 is what ends episodes.
    process = LearningProcess([[[0, 1], [1e-15, 1 - 1e-15]]], [0, 1], [1, 0])
    assert process.terminal.tolist() == [True, False]
    assert average_episode_length(process, uniform_policy(process)) == pytest.approx(1e15 + 1, rel=1e-15)


@pytest.mark.parametrize(
    ("transitions", "rewards", "initial", "words"),
    [
        ([[[0, 1], [0.5, 0.4]]], [0, 0], [1, 0], ["state 1", "action 0", "0.9"]),
        ([[[0, 1], [1, 0]], [[0, 1], [1, 1e-6]]], [0, 0], [1, 0], ["state 1", "action 1", "1.000001"]),
        ([[[0, 1], [2, -1]]], [0, 0], [1, 0], ["state 1 to state 1", "action 0", "-1"]),
        ([[[0, 1], [np.nan, 1]]], [0, 0], [1, 0], ["state 1 to state 0", "nan"]),
        ([[[0, 1], [np.inf, 1]]], [0, 0], [1, 0], ["state 1 to state 0", "inf"]),
        ([[[0, 1]]], [0, 0], [1, 0], ["action 0", "(1, 2)"]),
        ([np.eye(2), np.eye(3)], [0, 0], [1, 0], ["action 1", "(3, 3)", "(2, 2)"]),
        ([], [0, 0], [1, 0], ["empty"]),
        ([[["a", "b"], [1, 0]]], [0, 0], [1, 0], ["numbers"]),
        (sp.eye_array(2), [0, 0], [1, 0], ["one per action"]),
        (LOOP, [0, 0, 0], [1, 0], ["rewards", "(3,)", "(2,)", "(2, 1)"]),
        (LOOP, [0, np.nan], [1, 0], ["rewards[1]", "nan"]),
        (LOOP, [[0], [np.inf]], [1, 0], ["rewards[1, 0]", "inf"]),
        (LOOP, [0, 0], [1, 0, 0], ["initial", "(3,)"]),
        (LOOP, [0, 0], [0.5, 0.4], ["initial", "0.9"]),
        (LOOP, [0, 0], [2, -1], ["initial[1]", "-1"]),
    ],
)
def test_bad_arrays_are_refused_with_the_place_and_the_value(transitions, rewards, initial, words):
    with pytest.raises(ProcessError) as error:
        LearningProcess(transitions, rewards, initial)
    for word in words:
        assert word in str(error.value)


def test_bad_null_states_and_names_are_refused():
    with pytest.raises(ProcessError, match="null is 5"):
        LearningProcess(LOOP, [0, 0], [1, 0], null=5)
    with pytest.raises(ProcessError, match="names has 1"):
        LearningProcess(LOOP, [0, 0], [1, 0], names=["only"])


def test_initial_mass_off_the_terminal_states_is_named():
    # Both states are initial, but they do not lead to the same place: there is no reset.
    process = LearningProcess(LOOP, [0, 0], [0.5, 0.5])
    check = check_episodic(process)
    assert (check.ok, check.homogeneous) == (False, False)
    assert set(check.witness) == {0, 1}
    assert "homogeneity" in check.message
    assert not process.terminal.any()
    with pytest.raises(NotEpisodicError, match=r"states 0, 1 can be the initial state"):
        stationary_distribution(process, uniform_policy(process))
    with pytest.raises(ProcessError, match="no terminal states"):
        process.with_time_limit(5)


def test_a_start_whose_actions_matter_is_not_a_terminal_state():
    stay, go = [[1, 0], [1, 0]], [[0, 1], [1, 0]]
    process = LearningProcess([stay, go], [0, 0], [1, 0])
    assert not check_episodic(process).homogeneous
    with pytest.raises(NotEpisodicError, match="state 0"):
        average_episode_length(process, uniform_policy(process))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ([[1.0], [1.0], [1.0]], ["(3, 1)", "(2, 1)"]),
        ([[1.0], [0.8]], ["state 1", "0.8"]),
        ([[1.0], [np.nan]], ["state 1", "action 0", "nan"]),
        ([[1.0], [-1.0]], ["state 1", "-1"]),
    ],
)
def test_a_policy_that_is_no_distribution_is_refused(policy, words):
    process = LearningProcess(LOOP, [0, 1], [1, 0])
    with pytest.raises(PolicyError) as error:
        stationary_distribution(process, policy)
    for word in words:
        assert word in str(error.value)


def test_single_precision_policies_are_accepted():
    process, _ = random_process(np.random.default_rng(5), "dense")
    policy = softmax_policy(np.random.default_rng(0).normal(size=(process.n_states, process.n_actions)))
    single = stationary_distribution(process, policy.astype(np.float32))
    np.testing.assert_allclose(single, stationary_distribution(process, policy), rtol=1e-5)


def test_bad_logits_are_refused():
    with pytest.raises(PolicyError, match=r"logits\[0, 1\] is nan"):
        softmax_policy([[0, np.nan]])
    with pytest.raises(PolicyError, match="state 1 is -inf"):
        softmax_policy([[0, 0], [-np.inf, -np.inf]])
    np.testing.assert_array_equal(softmax_policy([[0, -np.inf]]), [[1, 0]])


def test_a_policy_under_which_episodes_do_not_end_is_named():
    process, _ = gallery.never_ending()
    waiting = [[1, 0], [1, 0]]
    with pytest.raises(NotEpisodicError, match=r"state 1 never reaches a terminal state") as error:
        average_episode_length(process, waiting)
    assert "with_time_limit" in str(error.value)
    with pytest.raises(NotEpisodicError):
        episode_performance(process, waiting)
    assert check_episodic(process, waiting).witness == {1: (0,)}


def test_a_reset_reward_that_depends_on_the_terminal_state_has_no_episode_performance():
    process, policy = gallery.two_terminals()
    rewards = np.zeros((4, 2))
    rewards[3] = 2.0  # a reward for *leaving* the winning state, where one for arriving was meant
    odd = LearningProcess(process.transitions, rewards, process.initial, names=["loss", "decide", "pause", "win"])
    with pytest.raises(ProcessError, match=r"\[0\.0, 0\.0\] after loss, but \[2\.0, 2\.0\] after win"):
        episode_performance(odd, policy)


@pytest.mark.parametrize("kind", ["plain", "named", "expected rewards", "limited", "perturbed", "long detour"])
def test_saving_and_loading_changes_nothing(tmp_path, kind):
    process, _ = random_process(np.random.default_rng(3), "sparse", arrival=kind != "expected rewards")
    if kind == "named":
        process, _ = gallery.two_terminals()
    if kind == "limited":
        process = process.with_time_limit(7)
    if kind == "perturbed":
        process = perturb(process, Perturbation(0.9))
    if kind == "long detour":
        process = perturb(process, Perturbation.from_detour([0.5, 0, 0.5]))
    process.save(tmp_path / "process.npz")
    loaded = LearningProcess.load(tmp_path / "process.npz")
    for a, b in zip(process.transitions, loaded.transitions, strict=True):
        np.testing.assert_array_equal(a.toarray(), b.toarray())
    np.testing.assert_array_equal(loaded.rewards, process.rewards)
    np.testing.assert_array_equal(loaded.initial, process.initial)
    np.testing.assert_array_equal(loaded.terminal, process.terminal)
    np.testing.assert_array_equal(loaded.null_states, process.null_states)
    assert [loaded.name(s) for s in range(loaded.n_states)] == [process.name(s) for s in range(process.n_states)]
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "process.npz").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.npz", "process.npz"]


def test_a_saved_process_needs_no_pickle(tmp_path):
    gallery.two_terminals()[0].save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:
        assert json.loads(str(archive["steadyrl"]))["kind"] == "learning process"
        assert all(archive[name].dtype != object for name in archive.files)


def test_truncated_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "p.npz"
    gallery.corridor(50)[0].save(path)
    whole = path.read_bytes()
    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileFormatError, match=r"p\.npz"):
            LearningProcess.load(path)
    refused, digest = 0, gallery.corridor(50)[0].digest
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            assert LearningProcess.load(path).digest == digest  # a byte of the archive that means nothing
        except FileFormatError:
            refused += 1
    assert refused > 0.4 * len(whole) / 7
    np.savez(path, weights=np.ones(3))
    with pytest.raises(FileFormatError, match=r"not a file that steadyrl wrote"):
        LearningProcess.load(path)
    np.savez(path, steadyrl=np.array(json.dumps({"kind": "episodes", "version": 1})))
    with pytest.raises(FileFormatError, match=r"holds 'episodes'"):
        LearningProcess.load(path)
    np.savez(path, steadyrl=np.array(json.dumps({"kind": "learning process", "version": 9, "arrays": {}})))
    with pytest.raises(FileFormatError, match="version 9"):
        LearningProcess.load(path)
    np.savez(path, steadyrl=np.array(json.dumps({"kind": "learning process", "version": 1})))
    with pytest.raises(FileFormatError, match="does not hold a whole learning process"):
        LearningProcess.load(path)
    np.save(tmp_path / "q.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FileFormatError):
        LearningProcess.load(tmp_path / "q.npy")
    with pytest.raises(FileNotFoundError):
        LearningProcess.load(tmp_path / "missing.npz")


def test_the_digest_tells_processes_apart_and_nothing_else():
    ring = np.array([[[0, 1, 0], [0, 0, 1], [1, 0, 0]]], dtype=float)
    one = LearningProcess(ring, [0, 1, 5], [1, 0, 0])
    wide = sp.csr_array(ring[0])
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert one.digest == LearningProcess([wide], [0, 1, 5], [1, 0, 0]).digest
    others = [
        LearningProcess(ring, [[0], [1], [5]], [1, 0, 0]),  # rewards of actions, not of arrivals
        LearningProcess(ring, [0, 1, 6], [1, 0, 0]),
        LearningProcess(ring, [0, 1, 5], [1, 0, 0], names="abc"),
        one.with_time_limit(2),
    ]
    assert len({process.digest for process in (one, *others)}) == 5


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    process, _ = gallery.corridor()
    process.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        gallery.corridor(20)[0].save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


def test_every_error_is_a_value_error_of_one_family():
    assert issubclass(ProcessError, SteadyrlError)
    assert issubclass(SteadyrlError, ValueError)


def test_a_reset_reward_that_differs_has_no_perturbed_or_limited_process_either_unless_it_is_never_reached():
    rows = [[0, 0, 1], [0, 0, 1], [0.5, 0.5, 0]]
    process = LearningProcess([rows], [[1.0], [5.0], [0.0]], [1, 0, 0])
    for refused in (lambda: perturb(process, Perturbation(0.5)), lambda: process.with_time_limit(3)):
        with pytest.raises(ProcessError, match=r"\[1\.0\] after 0, but \[5\.0\] after 1"):
            refused()
    rows[2] = [1, 0, 0]  # state 1 still looks terminal, but no episode ends there
    unreached = LearningProcess([rows], [[1.0], [5.0], [0.0]], [1, 0, 0])
    assert episode_performance(unreached, uniform_policy(unreached)) == 1


def test_states_that_are_never_reached_and_never_end_do_not_spoil_the_rest():
    process = LearningProcess([[[0, 1, 0], [1, 0, 0], [0, 0, 1]]], [0, 1, 2], [1, 0, 0])
    policy = uniform_policy(process)
    assert check_episodic(process).ok
    assert episode_performance(process, policy) == 1
    assert np.isnan(action_values(process, policy)[2]).all()
    # A discount of 0 hides what lies behind it, even what has no value.
    hidden = LearningProcess([[[0, 1, 0], [0.5, 0, 0.5], [0, 0, 1]]], [0, 1, 2], [1, 0, 0])
    assert action_values(hidden, policy, [0.0, 1.0, 0.0])[1, 0] == 0.5 * 0 + 0.5 * 2


def test_actions_are_counted_beyond_a_byte():
    transitions = np.array([[[0, 1.0], [1.0, 0]]] * 256)
    transitions[0, 1] = [0, 1]  # action 0 waits for ever
    assert check_episodic(LearningProcess(transitions, [0, 1], [1, 0])).witness == {1: (0,)}


def test_terminal_rows_that_are_the_same_within_the_tolerance_become_the_same():
    rows = np.array([[0, 0.5, 0.5, 0], [0, 0.5 + 2e-10, 0.5 - 2e-10, 0], [0.3, 0.7, 0, 0], [0, 0, 0, 1]])
    process = LearningProcess([rows[[0, 2, 1, 3]][:, [0, 2, 1, 3]]], np.zeros(4), [1, 0, 0, 0])
    dense = process.transitions[0].toarray()
    assert process.terminal.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(dense[0], dense[2])


def test_single_precision_and_unnormalised_arrays_are_brought_to_sum_one():
    third = np.full((3, 3), 1 / 3, dtype=np.float32)
    process = LearningProcess([third], [0, 0, 1], [0, 0, 1])
    assert abs(process.transitions[0].sum(axis=1) - 1).max() < 1e-15
    with pytest.raises(ProcessError, match="sum to"):
        LearningProcess([third.astype(float)], [0, 0, 1], [0, 0, 1])
    nearly = LearningProcess(LOOP, [0, 5], [1 + 9e-10, 0])
    assert episode_performance(nearly, uniform_policy(nearly)) == 5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: LearningProcess(
                np.swapaxes([[[0, 0.5, 0.5], [0.5, 0, 0], [0.5, 0.5, 0.5]]], 1, 1), [0] * 3, [1, 0, 0]
            ),
            "transposed",
        ),
        (lambda: LearningProcess(np.zeros((3, 2, 3)), [0] * 3, [1, 0, 0]), r"transpose\(1, 0, 2\)"),
        (lambda: LearningProcess(LOOP, LOOP, [1, 0]), "einsum"),
        (lambda: LearningProcess(LOOP, ["a", "b"], [1, 0]), "rewards must be an array of real numbers"),
        (lambda: LearningProcess(LOOP, sp.eye_array(2), [1, 0]), "rewards is a sparse matrix"),
        (lambda: LearningProcess(LOOP, [0, 0], [[1], [0, 1]]), "initial must be an array"),
        (lambda: LearningProcess(LOOP * 1j, [0, 0], [1, 0]), "not real numbers"),
        (lambda: gallery.corridor()[0].with_time_limit(10**12), "makes over"),
    ],
)
def test_usual_mistakes_are_recognised(make, words):
    with pytest.raises(ProcessError, match=words):
        make()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ([0, 0], "np.eye"),
        (np.ones((1, 2)), "transposed"),
        ("uniform", "real numbers, not str"),
        ([[2.0], [-1.0]], "softmax_policy"),
        (lambda: None, "real numbers, not function"),
        ([[1.0]], "extend_policy"),
    ],
)
def test_usual_mistakes_with_policies_are_recognised(policy, words):
    process = LearningProcess(LOOP, [0, 1], [1, 0])
    with pytest.raises(PolicyError, match=words):
        average_episode_length(process, policy)


def test_a_forgotten_reset_is_pointed_out():
    right, left = [[0, 1, 0], [0, 0, 1], [0, 0, 1]], [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    process = LearningProcess([right, left], [0, 0, 1], [0, 0, 1])
    assert "was the reset forgotten?" in check_episodic(process).message
    assert average_episode_length(process, uniform_policy(process)) == 1


def test_episodes_longer_than_any_number_are_refused():
    # A walk that drifts away from the exit: E[T] grows by a factor 9 a state and passes 1e308 before 1,000 states.
    n = 1000
    rows = np.zeros((n + 1, n + 1))
    rows[0, 1] = 1
    for s in range(1, n + 1):
        rows[s, s - 1], rows[s, min(s + 1, n)] = 0.1, 0.9
    process = LearningProcess([rows], np.ones(n + 1), np.eye(n + 1)[0])
    with pytest.raises(AccuracyError, match="beyond 1e308"):
        average_episode_length(process, uniform_policy(process))
    with pytest.raises(AccuracyError, match="beyond 1e308"):
        episode_performance(process, uniform_policy(process))


def test_an_id_with_two_colons_is_told_what_an_id_is():
    with pytest.raises(ProcessError, match="one colon at most"):
        LearningProcess.from_gymnasium("a:b:c-v0")
