"""Cures for many copies: every transition against a simulation by hand, ages against the computed distribution.

Ages are compared by chi-square tests at level 1e-4 with fixed seeds; delays are spread over the copies more evenly than
independent draws would be, so the true false-alarm rate is lower.
"""

import os
import signal
from dataclasses import dataclass
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics
from scipy.stats import chisquare

from scripted import Drawn, Scripted, code
from steadyrl import Delays, EpisodeLengths, PhaseMonitor, StaggeredVectorEnv, design_delays, pre_roll
from steadyrl.errors import CopyLostError, DelaysError, PolicyError, ToleranceError, WrapperError
from steadyrl.lengths.delays import stationary_ages
from steadyrl.lengths.next_step_delays import allowing_for_resets, unforeseen_ends
from steadyrl.wrappers import vectors

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
MODES = pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP, DISABLED], ids=lambda mode: mode.value)
VECTORS = pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
LENGTHS = ((5, 3, 1, 7), (4, 2, 6), (1, 1, 9, 2), (8, 5, 3))  # of four copies
DELAYS = [4, 9, 6, 3]
DRAWN = EpisodeLengths.from_gymnasium(np.repeat([2, 5, 9], [5, 3, 2]))  # of Drawn


def scripted(vector, mode, kind="box", **options):
    makers = [partial(Scripted, copy, lengths, kind) for copy, lengths in enumerate(LENGTHS)]
    return vector(makers, autoreset_mode=mode, **options)


@dataclass
class ByHand:
    """One copy of Scripted under a cut at a step, written down again without any of the library's code."""

    copy: int
    mode: AutoresetMode
    due: int
    episode: int = 0
    steps: int = 0
    clock: int = 0
    ended: bool = False

    def restart(self):
        self.episode, self.steps, self.ended = self.episode + 1, 0, False
        return code(self.copy, self.episode, 0), {"start": self.episode}

    def step(self):
        """Return where it is seen, reward, terminated, truncated and info."""
        self.clock += 1
        if self.ended:
            assert self.mode == NEXT_STEP
            where, info = self.restart()
            return where, 0.0, False, False, info
        self.steps += 1
        where = code(self.copy, self.episode, self.steps)
        terminated = self.steps == LENGTHS[self.copy][self.episode % len(LENGTHS[self.copy])]
        truncated = self.clock == self.due and not terminated
        self.ended = terminated or truncated
        info = Scripted.info(where)
        if truncated:
            info["staggered"] = True
        reward = Scripted.reward(where)
        if self.mode == SAME_STEP and self.ended:
            final, final_info = where, info
            where, info = self.restart()
            info |= {"final_obs": final, "final_info": final_info}
            if truncated:
                info["staggered"] = True
        return where, reward, terminated, truncated, info


def by_hand(mode):
    shift = 1 if mode == NEXT_STEP else 0
    return [ByHand(copy, mode, max(DELAYS) - delay + shift) for copy, delay in enumerate(DELAYS)]


def info_of(infos, i, kind="box"):
    """What batched infos say of one copy."""
    found = {}
    for key, mask in infos.items():
        if key.startswith("_") and key[1:] in infos and mask[i]:
            value = infos[key[1:]]
            if key == "_final_obs":
                found["final_obs"] = Scripted.read(kind, batch_of_one(value[i]))[0]
            else:
                found[key[1:]] = info_of(value, i) if isinstance(value, dict) else value[i]
    return found


def batch_of_one(value):
    if isinstance(value, dict):
        return {key: batch_of_one(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(batch_of_one(part) for part in value)
    return [value] if isinstance(value, str) else np.asarray(value)[None]


def assert_infos(infos, expected, kind):
    for key in ("even", "staggered"):
        if key in infos:
            assert infos[key].dtype == bool
    for i, info in enumerate(expected):
        found = info_of(infos, i, kind)
        np.testing.assert_equal(found, info)
        assert "final_obs" in infos or "final_obs" not in info
    for key in [key for key in infos if not key.startswith("_")]:
        assert infos[f"_{key}"].tolist() == [key in info for info in expected]


def assert_transcript(envs, mode, kind, steps, masks, first_episode=0):
    """Step through, with masked resets after some steps; every number is checked."""
    copies = by_hand(mode)
    for copy in copies:
        copy.episode = first_episode if isinstance(first_episode, int) else first_episode[copy.copy]
    for t in range(1, steps + 1):
        observations, rewards, terminated, truncated, infos = envs.step(np.zeros(4, dtype=int))
        expected = [copy.step() for copy in copies]
        assert Scripted.read(kind, observations) == [e[0] for e in expected], t
        assert rewards.tolist() == [e[1] for e in expected], t
        assert terminated.tolist() == [e[2] for e in expected], t
        assert truncated.tolist() == [e[3] for e in expected], t
        assert_infos(infos, [e[4] for e in expected], kind)
        mask = np.isin(np.arange(4), masks.get(t, []))
        if mode == DISABLED:
            mask |= terminated | truncated
        if mask.any():
            options = {"reset_mask": mask, "wish": 1}
            observations, infos = envs.reset(options=options)
            assert options["reset_mask"] is mask
            assert list(options) == ["reset_mask", "wish"]
            reset = [copy.restart() if flag else None for copy, flag in zip(copies, mask, strict=True)]
            found = Scripted.read(kind, observations)
            assert [found[i] for i in np.flatnonzero(mask)] == [r[0] for r in reset if r]
            assert_infos(infos, [r[1] if r else {} for r in reset], kind)
    return [copy.episode for copy in copies]


@pytest.mark.parametrize("kind", ["box", "discrete", "dict", "tuple", "text"])
@MODES
@VECTORS
def test_every_transition_is_as_by_hand(vector, mode, kind):
    if vector is AsyncVectorEnv and kind == "text":
        pytest.skip("Gymnasium's shared memory shows the first Text observations for ever")
    envs = StaggeredVectorEnv(scripted(vector, mode, kind), DELAYS)
    observations, infos = envs.reset(seed=3, options={"wish": 1})
    assert Scripted.read(kind, observations) == [code(copy, 0, 0) for copy in range(4)]
    assert infos["start"].tolist() == [0] * 4
    episodes = assert_transcript(envs, mode, kind, 14, masks={})
    assert envs.settled
    cuts = envs.cuts
    assert cuts > 0
    # A reset of all starts the staggering anew.
    observations, _ = envs.reset()
    assert Scripted.read(kind, observations) == [code(copy, episodes[copy] + 1, 0) for copy in range(4)]
    shift = 1 if mode == NEXT_STEP else 0
    masks = {2: [0, 1], 3 + shift: [2], 6 + shift: [0, 3], 11: [1, 2, 3], 12: [0, 1, 2, 3]}
    assert_transcript(envs, mode, kind, 20, masks, [episode + 1 for episode in episodes])
    assert envs.settled
    assert envs.cuts > cuts
    envs.close()


@pytest.mark.parametrize("options", [{"copy": False}, {"shared_memory": False}, {"shared_memory": True, "copy": False}])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
def test_without_copies_and_without_shared_memory(mode, options):
    vector = AsyncVectorEnv if "shared_memory" in options else SyncVectorEnv
    envs = scripted(vector, mode, "dict", **options)
    if mode == NEXT_STEP and options.get("shared_memory") is False:
        with pytest.raises(WrapperError, match="shared_memory=True"):
            StaggeredVectorEnv(envs, DELAYS)
        with pytest.raises(WrapperError, match="shared_memory=True"):
            pre_roll(envs, DELAYS)
    else:
        staggered = StaggeredVectorEnv(envs, DELAYS)
        staggered.reset(seed=0)
        assert_transcript(staggered, mode, "dict", 14, masks={4: [1]})
    envs.close()


def test_disabled_autoreset_without_a_reset_is_refused_for_cuts_and_ends():
    for delays, ended in ([1, 1, 2, 2], [2, 0, 1]), ([1, 1, 1, 1], [2]):
        envs = StaggeredVectorEnv(scripted(SyncVectorEnv, DISABLED), delays)  # copy 2 ends by itself in the first step
        envs.reset(seed=0)
        envs.step(np.zeros(4, dtype=int))
        with pytest.raises(WrapperError, match=rf"copies \{sorted(ended)}.*reset_mask"):
            envs.step(np.zeros(4, dtype=int))


def test_a_full_mask_of_ended_copies_does_not_start_the_staggering_anew():
    # Two copies with episodes of one action: both always end together, and both are always reset by a mask.
    makers = [partial(Scripted, copy, (1,)) for copy in range(2)]
    envs = StaggeredVectorEnv(SyncVectorEnv(makers, autoreset_mode=DISABLED), [3, 1])
    envs.reset(seed=0)
    for _ in range(6):
        _, _, terminated, truncated, infos = envs.step(np.zeros(2, dtype=int))
        assert terminated.all()
        assert not truncated.any()
        assert "staggered" not in infos
        envs.reset(options={"reset_mask": terminated})
    assert envs.settled


def test_a_copy_that_was_just_cut_can_be_reset_by_hand():
    makers = [partial(Scripted, copy, (9,)) for copy in range(2)]
    envs = StaggeredVectorEnv(SyncVectorEnv(makers), [2, 4])  # copy 1 is cut in step 1, copy 0 in step 3
    envs.reset(seed=0)
    seen, cut = [], []
    for _ in range(6):
        observations, _, _, truncated, _ = envs.step(np.zeros(2, dtype=int))
        cut.append(truncated.tolist())
        if truncated[0]:
            assert envs.reset(options={"reset_mask": truncated})[0][0] == code(0, 1, 0)
            assert envs.ages.tolist() == [1, 2]
        seen.append(observations[:, 0].tolist())
    assert cut == [[False, True], [False, False], [True, False], *[[False, False]] * 3]
    assert seen[2:5] == [[code(0, 0, 3), code(1, 1, 1)], [code(0, 1, 1), code(1, 1, 2)], [code(0, 1, 2), code(1, 1, 3)]]


@VECTORS
@pytest.mark.parametrize("seed", [7, [3, 1, 4]])
def test_seeds_are_gymnasiums(vector, seed):
    makers = [partial(gymnasium.make, "CartPole-v1")] * 3
    plain, staggered = vector(makers), StaggeredVectorEnv(vector(makers), [1, 2, 3])
    expected, found = plain.reset(seed=seed)[0], staggered.reset(seed=seed)[0]
    np.testing.assert_array_equal(found, expected)
    first = [gymnasium.make("CartPole-v1").reset(seed=s)[0] for s in ([7, 8, 9] if seed == 7 else seed)]
    np.testing.assert_array_equal(found, first)
    plain.close()
    staggered.close()


def stream(envs, steps, seed):
    """All that a run shows, as one list."""
    envs.action_space.seed(0)
    found = [envs.reset(seed=seed)[0]]
    for _ in range(steps):
        observations, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
        found.append(np.concatenate([observations.ravel(), terminated, truncated]))
    return np.concatenate([part.ravel() for part in found])


@pytest.mark.parametrize("seed", [None, 5])
def test_a_seeded_reset_reproduces_and_another_seed_differs(seed):
    def run(reset_seed, twice=False):
        envs = gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="sync")
        envs = StaggeredVectorEnv(envs, design_delays(EpisodeLengths.from_gymnasium([12, 20, 31])), seed=seed)
        if twice:
            stream(envs, 17, reset_seed)
        return stream(envs, 60, reset_seed)

    np.testing.assert_array_equal(run(1), run(1))
    np.testing.assert_array_equal(run(1), run(1, twice=True))
    assert not np.array_equal(run(1), run(2))


# Ages after the window


def exact_ages(lengths, due, steps, *, next_step):
    """P(age) after so many steps of a copy that is cut at a step, by the ages themselves; row 1: it stands at its end.

    A copy's state is its age and whether it stands at its end. With NEXT_STEP a step takes it to the next age, where
    it ends with probability h(age), and an end to age 1, where no cut is possible; a copy whose end is likely one
    step before the cut is cut a step before that, so that its reset is over in time.
    """
    n = lengths.longest
    hazard = np.append(lengths.probabilities[: n + 1] / np.maximum(lengths.survival[: n + 1], 1e-300), 1.0)
    alive, ended = np.zeros(n + 2), np.zeros(n + 2)
    alive[1] = 1.0
    for t in range(1, steps + 1):
        if next_step:
            moved = np.append(0.0, alive[:-1])
            reset = ended.sum()
            ended = moved * hazard
            alive = moved - ended
            cut = np.zeros(n + 2, dtype=bool)
            if t == due:
                cut[2:] = True
            elif t == due - 2:
                cut[2:-1] = hazard[3:] > 0.5
            ended[cut] += alive[cut]
            alive[cut] = 0.0
            alive[1] += reset
        else:
            over = alive * hazard
            alive = np.append(0.0, (alive - over)[:-1])
            alive[1] += over.sum()
            if t == due:
                alive = np.append([0.0, alive.sum()], np.zeros(n))
    return np.stack([alive, ended])


def steady_ages(lengths, next_step):
    """P(A = k) = P(T >= k) / E[T], of which the end (row 1) has P(T = k) / E[T]."""
    ages = np.append(stationary_ages(lengths), 0.0)
    ends = np.append(lengths.probabilities, 0.0) / lengths.mean * next_step
    return np.stack([ages - ends, ends])


NORMAL = np.exp(-0.5 * ((np.arange(40) - 20.3) / 2.15) ** 2)  # as HumanoidBulletEnv-v0


@pytest.mark.parametrize("next_step", [True, False])
@pytest.mark.parametrize(
    "lengths",
    [
        DRAWN,
        EpisodeLengths(NORMAL / NORMAL.sum() * (np.arange(40) > 1) / (NORMAL[2:].sum() / NORMAL.sum())),
        EpisodeLengths.from_gymnasium([19, 199]),
        EpisodeLengths.from_gymnasium([4]),
        EpisodeLengths.from_gymnasium([1, 2, 2, 7]),
    ],
    ids=["drawn", "normal", "two", "fixed", "short"],
)
def test_cuts_bring_each_copy_to_the_stationary_ages_exactly(lengths, next_step):
    # Every delay with the probability that is asked for, and the cuts as they are made, against the steady state.
    delays = design_delays(lengths, window=lengths.longest)
    if next_step:
        ones, never = np.ones(1, dtype=int), np.zeros(1, dtype=bool)
        delays = allowing_for_resets(delays, unforeseen_ends(lengths, delays.window, ones, never))
    else:
        delays, lengths = delays.for_same_step(), EpisodeLengths(lengths.probabilities[1:])
    shift = 1 if next_step else 0
    mixed = sum(
        share * exact_ages(lengths, delays.window - delay + shift, delays.window + shift, next_step=next_step)
        for delay, share in enumerate(delays.probabilities)
        if share
    )
    np.testing.assert_allclose(mixed.sum(axis=0), steady_ages(lengths, next_step).sum(axis=0), atol=1e-10)


def assert_counts(found, expected):
    """A chi-square test of counts at level 1e-4; what is impossible must not happen."""
    found, expected = np.ravel(found), np.ravel(expected)
    possible = expected > 1e-12
    assert found[~possible].sum() == 0
    share = expected[possible] / expected[possible].sum()
    assert chisquare(found[possible], share * found.sum()).pvalue > 1e-4


def drawn_copies(vector, mode, copies, probabilities=None):
    maker = Drawn if probabilities is None else partial(Drawn, tuple(probabilities))
    return vector([maker] * copies, autoreset_mode=mode)


def step_and_reset(envs, mode):
    observations, _, terminated, truncated, _ = envs.step(np.zeros(envs.num_envs, dtype=int))
    done = terminated | truncated
    if mode == DISABLED and done.any():
        observations, _ = envs.reset(options={"reset_mask": done})
    return observations, done


@MODES
def test_after_the_window_ages_match_the_computed_distribution(mode):
    next_step = mode == NEXT_STEP
    stream_lengths = DRAWN if next_step else EpisodeLengths(DRAWN.probabilities[1:])
    delays = design_delays(DRAWN, window=DRAWN.longest)
    own = delays if next_step else delays.for_same_step()
    exact = steady_ages(stream_lengths, next_step)
    counts = np.zeros_like(exact)
    envs = StaggeredVectorEnv(drawn_copies(SyncVectorEnv, mode, 64), delays)
    for seed in range(40):
        envs.reset(seed=1000 * seed)
        for _ in range(own.window + (1 if next_step else 0)):
            observations, done = step_and_reset(envs, mode)
        at_end = done if next_step else np.zeros(64, dtype=bool)
        np.testing.assert_array_equal(envs.ages, observations)
        np.add.at(counts, (at_end.astype(int), observations), 1)
    assert_counts(counts, exact)


@MODES
@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_copies_of_fixed_length_are_spread_exactly_evenly(mode, n):
    lengths = EpisodeLengths.from_gymnasium([n])
    period = n + 1 if mode == NEXT_STEP else n
    probabilities = np.eye(n + 1)[n]
    envs = drawn_copies(SyncVectorEnv, mode, 3 * period, probabilities)
    envs = StaggeredVectorEnv(envs, design_delays(lengths))
    envs.reset(seed=n)
    for t in range(4 * period):
        observations, _ = step_and_reset(envs, mode)
        if t > period:
            assert np.bincount(observations, minlength=period + 1)[1:].tolist() == [3] * period


@MODES
@VECTORS
def test_a_pre_roll_ends_at_the_computed_ages(vector, mode):
    next_step = mode == NEXT_STEP
    stream_lengths = DRAWN if next_step else EpisodeLengths(DRAWN.probabilities[1:])
    delays = design_delays(DRAWN, window=DRAWN.longest)
    n = stream_lengths.longest
    counts = np.zeros((2, n + 2))
    sync = vector is SyncVectorEnv
    copies, repeats = (50, 40) if sync else (4, 60)
    envs = drawn_copies(vector, mode, copies)
    own, rng = (delays if next_step else delays.for_same_step()), np.random.default_rng(0)
    for seed in range(repeats):  # four copies are too few to be spread evenly: independent draws
        observations, infos = pre_roll(envs, delays if sync else own.draw(copies, rng), seed=1000 * seed)
        assert infos["_done"].all()
        assert next_step or not infos["done"].any()
        np.add.at(counts, (infos["done"].astype(int), observations), 1)
        done = step_and_reset(envs, mode)[0]
        if next_step:  # after an end the next step is the reset
            assert (done[infos["done"]] == 1).all()
    assert_counts(counts, steady_ages(stream_lengths, next_step))
    envs.close()


@MODES
def test_a_pre_roll_of_given_delays_ends_where_it_is_told_to(mode):
    envs = scripted(SyncVectorEnv, mode)
    observations, infos = pre_roll(envs, [2, 9, 6, 1])
    # By hand, copy 1 (delay 9, never restarted): with NEXT_STEP its states are 4 + 1, 2 + 1, then one more; otherwise
    # (4, 2, 6): episode 2 at its third state. The others are restarted 7, 3 and 8 steps after the start.
    expected = {1: code(1, 2, 0) if mode == NEXT_STEP else code(1, 2, 2)}
    for copy, run in ((0, 2), (2, 6), (3, 1)):
        hand = ByHand(copy, mode, due=-1)
        for _ in range(9 - run):
            where = hand.step()[0]
            if mode == DISABLED and hand.ended:
                where = hand.restart()[0]
        # A restart in the step of a reset is another episode.
        where = hand.restart()[0] if not (mode == DISABLED and hand.steps == 0) else where
        for _ in range(run - 1):
            where = hand.step()[0]
            if mode == DISABLED and hand.ended:
                where = hand.restart()[0]
        expected[copy] = where
        assert infos["done"][copy] == (mode == NEXT_STEP and hand.ended)
    assert Scripted.read("box", observations) == [expected[copy] for copy in range(4)]


class Remembering:
    """A policy with `act`, which keeps what it is given."""

    def __init__(self):
        self.calls = []

    def act(self, observations, rng):
        self.calls.append(observations.shape)
        return rng.integers(2, size=len(observations))


def test_pre_rolls_take_policies_of_all_kinds_and_reproduce():
    delays = design_delays(EpisodeLengths.from_gymnasium([9, 14, 30]))

    def run(policy, seed):
        envs = gymnasium.make_vec("CartPole-v1", 6, vectorization_mode="sync")
        return pre_roll(envs, delays, policy, seed=seed)[0]

    def leaning(observations):
        return (observations[:, 2] > 0).astype(int)

    for policy in None, Remembering(), leaning:
        np.testing.assert_array_equal(run(policy, 1), run(policy, 1))
        assert not np.array_equal(run(policy, 1), run(policy, 2))
    remembering = Remembering()
    run(remembering, 1)
    assert remembering.calls == [(6, 4)] * (int(delays.assign(6).max()) - 1)
    with pytest.raises(PolicyError, match="'left'"):
        run("left", 1)


# Statistics around the cures: Gymnasium's issues 1451, 1624, 1668 and 1696


class Twin(Scripted):
    """Scripted, whose episodes are truncated by itself where the cure would cut them."""

    def __init__(self, copy, mode):
        super().__init__(copy, LENGTHS[copy])
        hand = by_hand(mode)[copy]
        self.cut = None
        for _ in range(hand.due):
            before = hand.episode, hand.steps
            if hand.step()[3]:
                self.cut = before[0], before[1] + 1

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, (self.episode, self.steps) == self.cut, info


def twins(mode):
    return SyncVectorEnv([partial(Twin, copy, mode) for copy in range(4)], autoreset_mode=mode)


@pytest.mark.parametrize("monitored", [False, True])
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
def test_statistics_around_the_cure_are_as_if_the_environment_had_cut_by_itself(mode, monitored):
    def wrapped(envs):
        envs = PhaseMonitor(envs, warn=False) if monitored else envs
        envs = NormalizeObservation(envs) if mode == NEXT_STEP else envs  # Gymnasium has it for no other mode
        return RecordEpisodeStatistics(NormalizeReward(envs))

    cured, native = wrapped(StaggeredVectorEnv(scripted(SyncVectorEnv, mode), DELAYS)), wrapped(twins(mode))
    cured.reset(seed=0)
    native.reset(seed=0)
    for _ in range(40):
        ours, theirs = cured.step(np.zeros(4, dtype=int)), native.step(np.zeros(4, dtype=int))
        for one, other in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(one, other)
        assert ("episode" in ours[4]) == ("episode" in theirs[4])
        if "episode" in ours[4]:
            np.testing.assert_array_equal(ours[4]["_episode"], theirs[4]["_episode"])
            for key in "rl":
                np.testing.assert_array_equal(ours[4]["episode"][key], theirs[4]["episode"][key])


@MODES
def test_episode_statistics_without_cut_copies_are_those_of_whole_episodes(mode):
    envs = RecordEpisodeStatistics(StaggeredVectorEnv(scripted(SyncVectorEnv, mode), DELAYS))
    envs.reset(seed=0)
    copies = by_hand(mode)
    whole, expected, cut = [], [], 0
    for _ in range(40):
        _, _, terminated, truncated, infos = envs.step(np.zeros(4, dtype=int))
        done = terminated | truncated
        staggered = infos.get("staggered", np.zeros(4, dtype=bool))
        cut += int(staggered.sum())
        for i in np.flatnonzero(done & ~staggered):
            whole.append((i, int(infos["episode"]["l"][i]), float(infos["episode"]["r"][i])))
        for copy in copies:
            episode = copy.episode
            _, _, ended, _, _ = copy.step()
            if ended:
                length = LENGTHS[copy.copy][episode % len(LENGTHS[copy.copy])]
                total = sum(Scripted.reward(code(copy.copy, episode, step)) for step in range(1, length + 1))
                expected.append((copy.copy, length, pytest.approx(total)))
            if mode == DISABLED and copy.ended:
                copy.restart()
        if mode == DISABLED and done.any():
            envs.reset(options={"reset_mask": done})
    assert whole == expected
    assert cut == 2  # copies 0 and 2 end by themselves in time (NEXT_STEP), or copy 0 does and copy 1 is never due


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
def test_normalised_rewards_count_each_action_once_and_no_reset(mode):
    envs = NormalizeReward(StaggeredVectorEnv(scripted(SyncVectorEnv, mode), DELAYS), gamma=0.9)
    envs.reset(seed=0)
    copies, running, seen = by_hand(mode), [0.0] * 4, []
    for _ in range(40):
        rewards = envs.step(np.zeros(4, dtype=int))[1]
        acted = []
        for i, copy in enumerate(copies):
            resets = copy.ended
            _, reward, terminated, _, _ = copy.step()
            acted.append(reward)
            if resets:
                continue
            # Gymnasium's own rule: the return starts anew at a terminal state, with SAME_STEP after every end.
            running[i] = np.float32(np.float32(running[i] * 0.9 * (not terminated)) + reward)
            seen.append(running[i])
            if mode == SAME_STEP and copy.steps == 0:
                running[i] = 0.0
        assert envs.return_rms.count == pytest.approx(len(seen), abs=1e-3)
        assert envs.return_rms.mean == pytest.approx(np.mean(seen), rel=1e-3)
        np.testing.assert_allclose(rewards, np.array(acted) / np.sqrt(envs.return_rms.var + 1e-8))


def test_a_masked_reset_around_the_cure_leaves_the_statistics_of_other_copies():
    # Gymnasium 1696: what is inside takes the mask out of the options, and everybody's statistics are wiped.
    for cure in (partial(StaggeredVectorEnv, delays=[1] * 4), partial(PhaseMonitor, warn=False)):
        envs = RecordEpisodeStatistics(cure(scripted(SyncVectorEnv, NEXT_STEP)))
        envs.reset(seed=0)
        for _ in range(3):
            envs.step(np.zeros(4, dtype=int))
        before = envs.episode_lengths.copy()
        envs.reset(options={"reset_mask": np.array([True, False, False, False])})
        assert envs.episode_lengths.tolist() == [0, *before[1:]]


@pytest.mark.parametrize("wrapper", [RecordEpisodeStatistics, NormalizeReward, NormalizeObservation])
def test_statistics_inside_the_cure_are_refused(wrapper):
    inside = wrapper(scripted(SyncVectorEnv, NEXT_STEP))
    with pytest.raises(WrapperError, match=f"{wrapper.__name__} is inside StaggeredVectorEnv"):
        StaggeredVectorEnv(PhaseMonitor(inside), DELAYS)
    with pytest.raises(WrapperError, match=f"{wrapper.__name__} is inside pre_roll"):
        pre_roll(inside, DELAYS)


# Learning re-locks


class Lives(VectorEnv):
    """Copies whose episodes have normal lengths, in numpy; their mean can be changed at any time."""

    def __init__(self, copies, mean, cv=0.1, mode=NEXT_STEP, seed=0):
        self.num_envs, self.mean, self.cv, self.mode = copies, mean, cv, mode
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = self.single_action_space = spaces.Discrete(10**6)
        self.observation_space = self.action_space = spaces.MultiDiscrete([10**6] * copies)
        self.rng = np.random.default_rng(seed)
        self.ages, self.lengths = np.ones(copies, dtype=int), np.zeros(copies, dtype=int)
        self.over = np.zeros(copies, dtype=bool)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        self.restart(mask)
        return self.ages.copy(), {}

    def restart(self, mask):
        drawn = self.rng.normal(self.mean, self.cv * self.mean, self.num_envs).round().astype(int)
        self.lengths[mask] = np.maximum(drawn, 2)[mask]  # T, or T - 1 with SAME_STEP
        self.ages[mask] = 1
        self.over[mask] = False

    def step(self, actions):
        if self.mode == NEXT_STEP:
            before = self.over.copy()
            self.ages += 1
            self.restart(before)
            self.over = self.ages >= self.lengths
            done = self.over.copy()
        else:
            done = self.ages >= self.lengths
            self.ages += 1
            self.restart(done)
        return self.ages.copy(), np.ones(self.num_envs), done, np.zeros(self.num_envs, dtype=bool), {}


def spread(ages, mean, groups=8):
    """How far ages are from the stationary ones of nearly fixed lengths, which are even up to the mean."""
    found = np.bincount(np.minimum(ages * groups // (mean + 1), groups - 1).astype(int), minlength=groups) / len(ages)
    return 0.5 * np.abs(found - 1 / groups).sum()


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
def test_auto_staggers_at_the_start_and_after_learning_and_at_no_other_time(mode):
    # Chance shows 8 groups of 256 copies some 0.05 apart; copies in step are 7/8 apart.
    inside = Lives(256, 20, mode=mode)
    envs = StaggeredVectorEnv(inside)

    def run(steps):
        cut = 0
        for _ in range(steps):
            infos = envs.step(np.zeros(256, dtype=int))[4]
            cut += int(infos["staggered"].sum()) if "staggered" in infos else 0
        return cut

    envs.reset(seed=1)
    assert spread(envs.ages, 20) > 0.8
    assert run(40) > 0
    assert spread(envs.ages, 20) < 0.15
    before = envs.cuts
    assert 1.5 < before / 256 < 4  # ln 20 = 3
    run(60)
    late = run(20 * 200)
    assert late / 256 / 200 < 0.05  # at steady state hardly anything is cut
    inside.mean = 500
    assert run(500 * 2) > 0
    assert spread(envs.ages, 500) < 0.15
    assert envs.phase.average_episode_length == pytest.approx(500 if mode == NEXT_STEP else 501, rel=0.05)
    assert envs.lengths.mean == pytest.approx(500 if mode == NEXT_STEP else 501, rel=0.05)
    assert not envs.phase.phase_locked
    assert run(500 * 12) / 256 / 12 < 0.05


def test_auto_reproduces_and_a_reset_of_all_begins_anew():
    def run(seed):
        envs = StaggeredVectorEnv(Lives(32, 20), "auto", n_steps=8)
        found = []
        for _ in range(2):
            envs.reset(seed=seed)
            for _ in range(300):
                found.append(envs.step(np.zeros(32, dtype=int))[3])
        assert envs.cuts >= 1
        return np.array(found)

    np.testing.assert_array_equal(run(1), run(1))
    np.testing.assert_array_equal(run(1)[:300], run(1)[300:])
    assert run(1).any()
    assert not np.array_equal(run(1), run(2))


# Bad input


@pytest.mark.parametrize(
    "delays", [[1, 2, 3], [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0], "often", None, [True] * 4, [[1, 2, 3, 4]]]
)
def test_wrong_delays_are_refused(delays):
    envs = scripted(SyncVectorEnv, NEXT_STEP)
    for build in (StaggeredVectorEnv, pre_roll):
        with pytest.raises(DelaysError, match="4 whole numbers"):
            build(envs, delays)


def test_lengths_are_not_delays():
    for build in (StaggeredVectorEnv, pre_roll):
        with pytest.raises(
            DelaysError, match=r"delays is EpisodeLengths \(E\[T\] = 5.3\).*give design_delays\(lengths\)"
        ):
            build(scripted(SyncVectorEnv, NEXT_STEP), DRAWN)


@pytest.mark.parametrize("seed", ["foo", -1, 1.5, True])
def test_bad_seeds_are_refused(seed):
    envs = scripted(SyncVectorEnv, NEXT_STEP)
    staggered = StaggeredVectorEnv(envs, DELAYS)
    for use in (
        partial(StaggeredVectorEnv, envs, DELAYS, seed=seed),
        partial(pre_roll, envs, DELAYS, seed=seed),
        partial(staggered.reset, seed=seed),
        partial(staggered.reset, seed=[1, 2, 3, seed]),
    ):
        with pytest.raises(WrapperError, match=f"seed is {seed!r}; it must be a whole number") as caught:
            use()
        assert not isinstance(caught.value, CopyLostError)
    with pytest.raises(WrapperError, match="2 seeds for 4 copies"):
        staggered.reset(seed=[1, 2])


def test_seeds_may_be_numbers_of_numpy():
    envs = StaggeredVectorEnv(gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync"), DELAYS)
    for seed in (3, [3, 4, 5, 6]):
        expected = envs.reset(seed=seed)[0]
        np.testing.assert_array_equal(envs.reset(seed=np.asarray(seed)[()])[0], expected)


@pytest.mark.parametrize("delays", [DELAYS, "auto"], ids=repr)
@pytest.mark.parametrize("vector", ["sync", "async", "vector_entry_point"])
def test_a_step_before_the_first_reset_says_what_to_do_and_breaks_nothing(vector, delays):
    envs = StaggeredVectorEnv(gymnasium.make_vec("CartPole-v1", 4, vectorization_mode=vector), delays)
    with pytest.raises(WrapperError, match="call reset first") as caught:
        envs.step(np.zeros(4, dtype=int))
    assert not isinstance(caught.value, CopyLostError)
    envs.reset(seed=0)
    assert envs.step(np.zeros(4, dtype=int))[0].shape == (4, 4)
    envs.close()


def test_what_a_policy_raises_in_a_pre_roll_says_that_it_was_the_policy():
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    for policy in (lambda observations: 1 / 0, lambda: 0):
        with pytest.raises(PolicyError, match=r"the policy raised (ZeroDivision|Type)Error"):
            pre_roll(envs, [1, 3], policy, seed=0)


@pytest.mark.parametrize("actions", [np.zeros(3, dtype=int), np.zeros((4, 2), dtype=int), np.zeros(4), None], ids=repr)
def test_a_pre_roll_names_the_policy_whose_actions_do_not_fit(actions):
    with pytest.raises(PolicyError, match=r"policy returned actions of shape .* needs shape \(4,\) and whole numbers"):
        pre_roll(scripted(SyncVectorEnv, NEXT_STEP), DELAYS, lambda observations: actions)


def test_delays_for_episodes_without_an_action_do_not_fit_a_stream_without_ends():
    delays = design_delays(EpisodeLengths([0.0, 0.5, 0.5]))
    with pytest.raises(DelaysError, match="T = 1"):
        StaggeredVectorEnv(scripted(SyncVectorEnv, SAME_STEP), delays)


def test_bad_settings_are_refused():
    envs = scripted(SyncVectorEnv, NEXT_STEP)
    with pytest.raises(ToleranceError, match="tolerance is 0"):
        StaggeredVectorEnv(envs, "auto", tolerance=0)
    with pytest.raises(DelaysError, match="n_steps is 0"):
        PhaseMonitor(envs, n_steps=0)


def test_an_unknown_autoreset_mode_and_a_single_environment_are_refused():
    envs = scripted(SyncVectorEnv, NEXT_STEP)
    for build in (partial(StaggeredVectorEnv, delays=DELAYS), PhaseMonitor, partial(pre_roll, delays=DELAYS)):
        with pytest.raises(WrapperError, match=r"Scripted, not a gymnasium\.vector\.VectorEnv"):
            build(Scripted())
        for mode in (None, "NextStep", 3):
            envs.metadata["autoreset_mode"] = mode
            with pytest.raises(WrapperError, match=f"'autoreset_mode'.*is {mode!r}"):
                build(envs)
        envs.metadata["autoreset_mode"] = NEXT_STEP


class EndsAtReset(VectorWrapper):
    """Copy 2 ends in the very step of its second reset."""

    def step(self, actions):
        before = self.unwrapped._autoreset_envs.copy()
        observations, rewards, terminated, truncated, infos = super().step(actions)
        terminated[2] |= before[2]
        return observations, rewards, terminated, truncated, infos


def test_an_episode_of_no_action_is_refused():
    envs = StaggeredVectorEnv(EndsAtReset(scripted(SyncVectorEnv, NEXT_STEP)), [1] * 4)
    envs.reset(seed=0)
    envs.step(np.zeros(4, dtype=int))
    with pytest.raises(WrapperError, match=r"copies \[2\] ended in the very step of their reset"):
        envs.step(np.zeros(4, dtype=int))


class Unchecked(Lives):
    """A vector environment that does not compare its copies' spaces."""

    def __init__(self, envs):
        super().__init__(len(envs), 20)
        self.envs = envs
        self.single_observation_space, self.single_action_space = envs[0].observation_space, envs[0].action_space


@pytest.mark.parametrize("space", ["observation_space", "action_space"])
def test_copies_with_other_spaces_are_refused(space):
    envs = [Scripted(copy, kind="dict") for copy in range(3)]
    other = spaces.Discrete(3) if space == "action_space" else spaces.Dict({"a": spaces.Discrete(10**6)})
    setattr(envs[2], space, other)
    for build in (StaggeredVectorEnv, pre_roll):
        with pytest.raises(WrapperError, match=f"copy 2 has the {space.replace('_', ' ')}"):
            build(Unchecked(envs), [1, 2, 3])


class Maskless(Lives):
    """A vector environment that resets all copies, whatever the mask says."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class Fussy(Lives):
    """A vector environment that takes no options."""

    def reset(self, *, seed=None, options=None):
        if options:
            raise RuntimeError("no options, please")
        return super().reset(seed=seed)


@pytest.mark.parametrize("inside", [Maskless, Fussy])
def test_a_vector_environment_that_cannot_restart_single_copies_is_refused_at_once(inside):
    for cure in (StaggeredVectorEnv, pre_roll):
        with pytest.raises(WrapperError, match=rf"{inside.__name__} cannot restart single .*vectorization_mode='sync'"):
            cure(inside(4, 20), [1, 2, 3, 4])
    alone = StaggeredVectorEnv(inside(1, 20), [3])  # a reset of one is a reset of all
    alone.reset(seed=0)


def test_a_vector_environment_that_says_it_honours_masks_is_not_tried_out():
    inside = Lives(4, 20)
    state = inside.rng.bit_generator.state
    inside.metadata["reset_mask"] = True
    StaggeredVectorEnv(inside)
    assert inside.rng.bit_generator.state == state


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_worker_is_named_and_nothing_hangs(victim):
    acts = {
        "step": lambda envs: envs.step(np.zeros(4, dtype=int)),
        "reset": lambda envs: envs.reset(),
        "pre-roll": lambda envs: pre_roll(envs.unwrapped, DELAYS),
    }
    for act in acts.values():
        inside = scripted(AsyncVectorEnv, NEXT_STEP)
        envs = StaggeredVectorEnv(inside, DELAYS)
        envs.reset(seed=0)
        os.kill(inside.processes[victim].pid, signal.SIGKILL)
        with pytest.raises(CopyLostError, match=f"copy {victim} of AsyncVectorEnv died") as caught:
            act(envs)
        assert caught.value.copies == (victim,)
        assert not any(process.is_alive() for process in inside.processes)
        envs.close()


@pytest.mark.filterwarnings("ignore:.*(Received the following error|Traceback|Raising the last exception)")
@MODES
@VECTORS
def test_a_copy_that_raises_is_named(vector, mode):
    makers = [partial(Scripted, copy, (6,), "box", 4 if copy == 1 else None) for copy in range(3)]
    envs = StaggeredVectorEnv(vector(makers, autoreset_mode=mode), [3, 1, 1])
    envs.reset(seed=0)

    def run():
        for _ in range(10):
            step_and_reset(envs, mode)

    with pytest.raises(CopyLostError, match=r"copy 1 of .*the gripper is stuck") as caught:
        run()
    assert caught.value.copies == (1,)
    envs.close()


def test_mistakes_of_the_caller_are_not_blamed_on_a_copy():
    for vector in (SyncVectorEnv, AsyncVectorEnv):
        envs = StaggeredVectorEnv(scripted(vector, NEXT_STEP), DELAYS)
        envs.reset(seed=0)
        with pytest.raises(TypeError, match="must be a numpy array"):
            envs.reset(options={"reset_mask": [True, False, False, False]})
        with pytest.raises(ValueError, match="zip") as caught:
            envs.step(np.zeros(3, dtype=int))
        assert not isinstance(caught.value, CopyLostError)
        envs.close(terminate=True)


def test_delays_that_were_not_designed_are_steps_of_the_stream():
    probabilities = np.array([0.0, 0.5, 0.5])
    delays = Delays(probabilities, 0.1)
    assert delays.for_same_step() is delays


def test_a_step_looks_at_every_environment_once_however_many_are_truncated(monkeypatch):
    looked_at, iterate = [], vectors.iterate

    def counted(space, batch):
        for row in iterate(space, batch):
            looked_at.append(row)
            yield row

    monkeypatch.setattr(vectors, "iterate", counted)
    envs = StaggeredVectorEnv(SyncVectorEnv([partial(Scripted, 0, (30,))] * 32, autoreset_mode=SAME_STEP), seed=0)
    envs.reset(seed=0)
    for _ in range(4):
        cuts = envs.cuts
        looked_at.clear()
        envs.step(envs.action_space.sample())
        assert len(looked_at) == (32 if envs.cuts > cuts else 0)
    assert envs.cuts > 8
