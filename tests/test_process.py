"""LearningProcess: what it accepts, what it refuses and in which words, files, and immutability."""

import json

import numpy as np
import pytest
import scipy.sparse as sp

from processes import random_process
from steadyrl import (
    FileFormatError,
    LearningProcess,
    NotEpisodicError,
    Perturbation,
    PolicyError,
    ProcessError,
    SteadyrlError,
    action_values,
    average_episode_length,
    check_episodic,
    episode_performance,
    gallery,
    perturb,
    softmax_policy,
    stationary_distribution,
    uniform_policy,
)

LOOP = np.array([[[0.0, 1.0], [1.0, 0.0]]])


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
        (sp.eye_array(2), [0, 0], [1, 0], ["one an action"]),
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
    with pytest.raises(NotEpisodicError, match=r"state 1 never reach a terminal state") as error:
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
    with pytest.raises(ProcessError, match=r"0\.0 after terminal state loss, but 2\.0 after win"):
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
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :])
    with pytest.raises(FileFormatError):
        LearningProcess.load(path)
    np.savez(path, weights=np.ones(3))
    with pytest.raises(FileFormatError, match=r"not a file that steadyrl wrote"):
        LearningProcess.load(path)
    np.savez(path, steadyrl=np.array(json.dumps({"kind": "episodes", "version": 1})))
    with pytest.raises(FileFormatError, match=r"holds 'episodes'"):
        LearningProcess.load(path)
    np.savez(path, steadyrl=np.array(json.dumps({"kind": "learning process", "version": 9})))
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
