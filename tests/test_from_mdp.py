"""Textbook MDPs with absorbing terminal states become learning processes, and mistakes on the way are named."""

import gymnasium
import numpy as np
import pytest
import scipy.sparse as sp

from steadyrl import (
    LearningProcess,
    NotEpisodicError,
    average_episode_length,
    check_episodic,
    episode_performance,
    expected_visits,
    gallery,
    uniform_policy,
)
from steadyrl.errors import ProcessError

# Cells 0 to 3; 0 and 3 are terminal.
LEFT = [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
RIGHT = [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
WALK = np.array([LEFT, RIGHT], dtype=float)
ARRIVAL = [0, 0, 0, 1]


def walk(P=WALK, R=ARRIVAL, start=1, terminal=(0, 3)):
    return LearningProcess.from_mdp(P, R, start, terminal)


def answers(process):
    policy = uniform_policy(process)
    return average_episode_length(process, policy), episode_performance(process, policy)


def test_absorbing_states_become_terminal_and_lead_to_the_start():
    process = walk()
    assert process.terminal.tolist() == [True, False, False, True]
    assert process.reset.tolist() == [0, 1, 0, 0]
    assert process.initial.tolist() == [1, 0, 0, 0]
    assert check_episodic(process).ok is False  # left, right, left, right, ... for ever
    # Gambler's ruin from cell 1 of 0, ..., 3: P(3) = 1/3, and 1 * (3 - 1) = 2 actions, plus the reset.
    assert answers(process) == pytest.approx((3, 1 / 3))


@pytest.mark.parametrize(
    "P",
    [
        WALK,
        WALK.tolist(),
        WALK.astype(np.float32),
        [sp.csr_array(m) for m in WALK],
        [sp.coo_matrix(m) for m in WALK],
        WALK * [[0], [1], [1], [0]],  # rows of terminal states left at zero
    ],
)
def test_every_form_of_transitions_gives_the_same_process(P):
    assert walk(P).digest == walk().digest


def test_every_form_of_rewards_has_the_same_episode_performance():
    by_action = np.zeros((4, 2))
    by_action[2, 1] = 1
    by_transition = np.zeros((2, 4, 4))
    by_transition[1, 2, 3] = 1
    by_transition[0, 2, 3] = 7  # left does not lead there, so its reward is never received
    for R in (ARRIVAL, by_action, by_transition, [sp.csr_array(r) for r in by_transition]):
        assert answers(walk(R=R)) == pytest.approx((3, 1 / 3))


def test_rewards_on_arrival_count_the_start_state_as_textbooks_do():
    # -1 for every state visited: cells 1, ..., end. Two actions on average visit three states.
    assert answers(walk(R=[-1, -1, -1, -1])) == pytest.approx((3, -3))


@pytest.mark.parametrize(
    ("start", "reset"),
    [
        (2, [0, 0, 1, 0]),
        (np.int64(2), [0, 0, 1, 0]),
        ([2], [0, 0, 1, 0]),
        ([1, 2], [0, 0.5, 0.5, 0]),
        ([0, 0.25, 0.75, 0], [0, 0.25, 0.75, 0]),
        ([0, 0, 1, 0], [0, 0, 1, 0]),
        ([False, True, True, False], [0, 0.5, 0.5, 0]),
    ],
)
def test_a_start_is_a_state_several_or_a_distribution(start, reset):
    assert walk(start=start).reset.tolist() == reset


@pytest.mark.parametrize("terminal", [[0, 3], (3, 0), np.array([0, 3]), [True, False, False, True]])
def test_terminal_states_are_numbers_or_a_mask(terminal):
    assert walk(terminal=terminal).terminal.tolist() == [True, False, False, True]


def test_a_state_with_the_row_of_a_reset_is_not_terminal():
    # 0 -> 1 -> 0 or 2: state 1 is where episodes begin, and state 0 always leads there, but only 2 is terminal.
    P = [[[0, 1, 0], [0.5, 0, 0.5], [0, 0, 1]]]
    process = LearningProcess.from_mdp(P, [0, 0, 1], start=1, terminal=2)
    assert process.terminal.tolist() == [False, False, True]
    assert expected_visits(process, uniform_policy(process)).tolist() == pytest.approx([1, 2, 1])


def test_gymnasiums_table_gives_the_numbers_of_from_gymnasium():
    lake = gymnasium.make("FrozenLake-v1").unwrapped
    process = LearningProcess.from_mdp(lake.P, None, 0, None)
    assert process.n_states == 16
    assert np.flatnonzero(process.terminal).tolist() == [5, 7, 11, 12, 15]  # four holes and the goal
    assert answers(process) == pytest.approx(answers(LearningProcess.from_gymnasium("FrozenLake-v1", None)), rel=1e-12)
    as_lists = [[[list(entry) for entry in lake.P[s][a]] for a in range(4)] for s in range(16)]
    assert LearningProcess.from_mdp(as_lists, None, 0, None).digest == process.digest


def test_names_are_kept():
    process = LearningProcess.from_mdp(WALK, ARRIVAL, 1, [0, 3], names=["pit", "a", "b", "goal"])
    assert process.name(3) == "goal"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"terminal": [0, 2]}, r"state 2 is terminal, but action 0 leads from it to state 1 with probability 1\.0"),
        ({"terminal": []}, "terminal is .*must be a state|terminal names no state"),
        ({"terminal": [False] * 4}, "terminal names no state, so episodes would never end"),
        ({"terminal": 4}, r"terminal is 4; it must be a state from 0 to 3"),
        ({"terminal": [1, 0, 0, 1]}, "names a state twice"),
        ({"terminal": None}, "terminal is None"),
        ({"terminal": "goal"}, "terminal is 'goal'"),
        ({"start": 0}, "state 0 is a start state and terminal too"),
        ({"start": [0.5, 0.5, 0, 0]}, "state 0 is a start state and terminal too"),
        ({"start": [0, 0.5, 0.4, 0]}, r"start sums to 0\.9, not to 1"),
        ({"start": [0, -1, 2, 0]}, "start is .*must be a state"),
        ({"start": [0, np.nan, 1, 0]}, r"start\[1\] is nan"),
        ({"start": 1.5}, "start is 1.5"),
        ({"start": []}, "start is"),
        ({"R": [0, 0, 1]}, r"R has shape \(3,\); it must be \(4,\)"),
        ({"R": None}, "R is None"),
        ({"R": np.ones((4, 2))}, r"R gives action 0 in state 0 the reward 1\.0, but episodes end in state 0"),
        ({"R": np.ones((2, 4, 4))}, r"R gives action 0 in state 0 the reward 1\.0"),
        ({"R": np.full((2, 4, 4), np.nan)}, "not finite"),
        ({"R": [0, np.inf, 0, 0]}, r"rewards\[1\] is inf"),
        ({"P": WALK.transpose(1, 0, 2)}, r"transpose\(1, 0, 2\)"),
        ({"P": WALK * 0.5}, "state 1, action 0 sum to 0.5"),
        ({"P": 3}, "transitions must be numbers"),
        ({"P": {}}, "empty|must be numbers"),
        ({"P": {0: {0: [(1.0, 9, 0.0, False)]}}}, "P leads to state 9"),
        ({"P": {0: {0: [(1.0,)]}}}, "list of tuples"),
        ({"P": {1: {0: []}}}, "list of tuples"),
    ],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(ProcessError, match=words):
        walk(**arguments)


def sweep(**changed):
    """Gymnasium's table of a sweep over three states, with some states' entries changed."""
    return {
        0: {0: [(1.0, 1, 0.0, False)]},
        1: {0: [(1.0, 2, 0.0, False)]},
        2: {0: [(1.0, 0, 1.0, True)]},
    } | {int(state[1:]): entries for state, entries in changed.items()}


class Carrier(gymnasium.Env):
    """An environment that carries a model."""

    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(1)

    def __init__(self, table, start):
        self.P, self.initial_state_distrib = table, start


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            sweep(s1={0: [(1.0, 3, 0.0, False)]}),
            "leads to state 3 in state 1, action 0",
        ),  # was taken for a terminal one
        (sweep(s1={0: [(1.0, -1, 0.0, False)]}), "leads to state -1 in state 1"),
        (sweep(s1={0: [(1.0, 1.5, 0.0, False)]}), r"leads to state 1\.5"),
        (sweep(s1={0: [(1.0, 0.5, 2, False)]}), r"leads to state 0\.5"),  # reward and state the other way round
        (sweep(s2={0: [(1.0, 5, 1.0, True)]}), "leads to state 5 in state 2"),
        (sweep(s1={0: [(1.0, 2, 0.0, False), (-0.5, 0, 4.0, False)]}), r"the probability -0\.5 in state 1"),
        (sweep(s1={0: [(1.0, 2, 0.0, False), (np.nan, 0, 4.0, False)]}), "the probability nan in state 1"),
        (sweep(s1={0: [(1.0, 2, np.inf, False)]}), "the reward inf in state 1"),
        (
            sweep(s1={0: [(1.0, 2, 0.0, False)], 1: [(1.0, 2, 9.0, False)]}),
            "P has 2 actions in state 1 and 1 in state 0",
        ),
        (sweep(s1={}), "list of tuples"),
        (sweep(s1={0: [("a", 2, 0.0, False)]}), "list of tuples"),
    ],
)
def test_a_table_that_cannot_be_a_model_is_refused_wherever_it_comes_from(table, words):
    assert LearningProcess.from_gymnasium(Carrier(sweep(), [1, 0, 0])).n_states == 4
    with pytest.raises(ProcessError, match=words):
        LearningProcess.from_gymnasium(Carrier(table, [1, 0, 0]))
    with pytest.raises(ProcessError, match=words):
        LearningProcess.from_mdp(table, None, 0, 2)


@pytest.mark.parametrize(
    ("table", "start", "words"),
    [
        (sweep(s1={0: [(1.0, 2, 0.0)]}), [1, 0, 0], "list of tuples"),
        ({}, [1], "list of tuples"),
        (3, [1], "list of tuples"),
        (np.ones((1, 3, 3)) / 3, [1], "list of tuples"),
        (sweep(), [1, 0], r"initial_state_distrib has shape \(2,\)"),
        (sweep(), [[1, 0, 0]], r"initial_state_distrib has shape \(1, 3\)"),
        (sweep(), np.ma.masked_array([1.0, 0, 0], mask=[True, False, False]), "masked"),
        (sweep(), "first", "initial_state_distrib must be"),
        (sweep(), [0.5, 0, 0], r"sums to 0\.5"),
    ],
)
def test_an_environment_whose_model_is_not_whole_is_refused(table, start, words):
    with pytest.raises(ProcessError, match=words):
        LearningProcess.from_gymnasium(Carrier(table, start))


def test_a_flagged_transition_to_a_state_that_is_not_named_is_refused():
    table = {0: {0: [(1.0, 1, 0.0, False)]}, 1: {0: [(1.0, 2, 0.0, True)]}, 2: {0: [(1.0, 2, 0.0, True)]}}
    assert average_episode_length(walk(table, None, 0, None), np.ones((3, 1))) == 3
    with pytest.raises(ProcessError, match="state 2 are flagged as terminated"):
        walk(table, None, 0, 1)


def test_a_start_that_cannot_be_terminal_is_refused_at_construction():
    ring = [[[0, 1, 0], [0, 0, 1], [1, 0, 0]]]
    for declared in ({"nonterminal": [0]}, {"null": 0}):
        with pytest.raises(ProcessError, match=r"initial puts probability 1\.0 on state 0.*LearningProcess\.from_mdp"):
            LearningProcess(ring, [0, 0, 1], [1, 0, 0], **declared)
    LearningProcess(ring, [0, 0, 1], [1, 0, 0], nonterminal=[1, 2])


def test_a_textbook_mdp_in_the_plain_constructor_is_pointed_to_from_mdp():
    differ = LearningProcess(WALK, ARRIVAL, [0, 1, 0, 0])
    check = check_episodic(differ)
    assert check.homogeneous is False
    assert "LearningProcess.from_mdp(P, R, start, terminal)" in check.message
    with pytest.raises(NotEpisodicError, match="from_mdp"):
        average_episode_length(differ, uniform_policy(differ))
    with pytest.raises(ProcessError, match="from_mdp"):
        differ.with_time_limit(5)
    # One action: the start state has one row, so it counts as terminal, and the goal is never left.
    corridor = LearningProcess([[[0, 1, 0], [0, 0, 1], [0, 0, 1]]], [0, 0, 1], [1, 0, 0])
    assert (
        "meant to end in state 2, which no action leaves, LearningProcess.from_mdp" in check_episodic(corridor).message
    )
    assert "from_mdp" not in check_episodic(gallery.never_ending()[0]).message
