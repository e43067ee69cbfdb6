"""Cures for one environment: what a learner sees, step by step, and ages and states against the exact answers.

Counts are compared by chi-square tests at level 1e-4, means at 5 standard errors (a false alarm in 6e-7), with fixed
seeds.
"""

import re
import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from scipy.stats import chisquare

import steadyrl
from scripted import Drawn, Scripted, Spaces
from steadyrl import (
    EpisodeLengths,
    Perturbation,
    PerturbedStarts,
    PhaseMonitor,
    PreRolledStart,
    StaggeredStart,
    StationaryStart,
    design_delays,
    perturb,
    phase_distance,
    stationary_distribution,
    total_variation,
)
from steadyrl.environments.process_env import ProcessEnv
from steadyrl.errors import DelaysError, PerturbationError, PolicyError, WrapperError
from steadyrl.exact import gallery
from steadyrl.lengths.delays import stationary_ages

SWEEP = "steadyrl/StateSweep-v0"
DRAWN = EpisodeLengths.from_gymnasium(np.repeat([2, 5, 9], [5, 3, 2]))  # of Drawn
STREAM = EpisodeLengths(DRAWN.probabilities[1:])  # the same without terminal states
NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


class Alternating(Perturbation):
    """Detours of 2, 0, 1, 2, 0, 1, ... null steps: a perturbation that does as it is told."""

    def draw(self, count, *, rng):
        rng.random()
        drawn = [2, 0, 1][getattr(self, "drawn", 0) % 3]
        object.__setattr__(self, "drawn", getattr(self, "drawn", 0) + 1)
        return np.array([drawn])


def assert_counts(found, share):
    """A chi-square test at level 1e-4; what is impossible must not happen, what is rare is counted together."""
    found, expected = np.asarray(found, dtype=float), np.asarray(share) / np.sum(share) * np.sum(found)
    assert found[expected == 0].sum() == 0
    rare = expected < 5
    found, expected = (np.append(x[~rare], x[rare].sum()) for x in (found, expected))
    keep = expected > 0
    assert chisquare(found[keep], expected[keep]).pvalue > 1e-4


# Perturbed starts


def test_every_episode_has_its_detour_and_is_unchanged_after_it():
    env = PerturbedStarts(Scripted(lengths=(2, 3), kind="discrete"), Alternating(0.5), null_observation=999_999)
    null = (999_999, 0.0, False, False, {"null": True})
    assert env.reset(seed=0) == (999_999, {"null": True})  # the first episode, too
    assert env.step(1) == null
    assert env.step(1) == (0, 0.0, False, False, {"start": 0})
    for where, over in ((1, False), (2, True)):
        found = env.step(1)
        assert found[:4] == (where, Scripted.reward(where), over, False)
        np.testing.assert_equal(found[4], Scripted.info(where))
    assert env.reset() == (100, {"start": 1})  # no detour: the reset itself
    assert [env.step(0)[0] for _ in range(3)] == [101, 102, 103]
    assert env.reset() == (999_999, {"null": True})
    assert env.step(0) == (200, 0.0, False, False, {"start": 2})


def test_the_action_on_a_null_state_is_ignored():
    env = PerturbedStarts(Spaces(spaces.Discrete(3), spaces.Discrete(2)), Perturbation.from_detour([0, 0, 0, 1]))
    env.reset(seed=0)
    for _ in range(3):
        env.step("not an action")
    with pytest.raises(ValueError, match="not an action"):
        env.step("not an action")


KINDS = {
    "box": spaces.Box(-1, 1, (2, 3)),
    "box above zero": spaces.Box(np.array([1.0, -4.0]), np.array([2.0, -3.0]), dtype=np.float64),
    "bytes": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "unbounded": spaces.Box(-np.inf, np.inf, ()),
    "discrete": spaces.Discrete(3),
    "discrete from 5": spaces.Discrete(3, start=5),
    "discrete from -5": spaces.Discrete(3, start=-5),
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "multidiscrete from": spaces.MultiDiscrete([2, 3], start=[4, -9]),
    "multibinary": spaces.MultiBinary([2, 2]),
    "dict": spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Dict({"c": spaces.Discrete(2)})}),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(2, 3, (1,)))),
    "text": spaces.Text(5),
    "sequence": spaces.Sequence(spaces.Discrete(2)),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_null_observation_is_in_the_space_and_always_the_same(kind):
    space = KINDS[kind]
    state = space.seed(3)
    before = space.sample()
    space.seed(3)
    env = PerturbedStarts(Spaces(space, spaces.Discrete(2)), Perturbation.from_detour([0, 0, 0, 1]))
    np.testing.assert_equal(env.observation_space.sample(), before)  # the space's generator is left alone
    assert state is not None
    first = env.reset(seed=0)[0]
    second = env.step(0)[0]
    assert space.contains(first)
    np.testing.assert_equal(first, second)
    if isinstance(first, np.ndarray):
        first += 1  # what a learner does to its observation stays with it
        np.testing.assert_equal(env.step(0)[0], second)
    assert space.contains(env.step(0)[0])


def test_a_null_observation_outside_the_space_is_refused():
    with pytest.raises(WrapperError, match=r"null_observation is 7, which is not in .*Discrete\(3\)"):
        PerturbedStarts(gymnasium.make(SWEEP, n=3), 0.5, null_observation=7)


@pytest.mark.parametrize("perturbation", [0, 1, 1.5, -0.1, float("nan"), True, "often", {"epsilon": 2}, [0.5], None])
def test_a_perturbation_outside_zero_and_one_is_refused(perturbation):
    with pytest.raises(PerturbationError):
        PerturbedStarts(gymnasium.make(SWEEP), perturbation)
    with pytest.raises(PerturbationError, match="average_episode_length is 1"):
        PerturbedStarts(gymnasium.make(SWEEP), "auto", average_episode_length=1.0)


@pytest.mark.parametrize("perturbation", [{"foo": 1}, {}, "foo", None, [0.5]])
def test_what_is_no_perturbation_is_shown_with_what_it_could_be(perturbation):
    with pytest.raises(PerturbationError, match=rf"perturbation is {re.escape(repr(perturbation))}; .*detour.*'auto'"):
        PerturbedStarts(gymnasium.make(SWEEP), perturbation)


class Unseeded(Drawn):
    """Does not seed `np_random` in its reset: it has a generator of its own."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.own = np.random.default_rng(seed)
        self.length, self.age = int(self.own.integers(1, 4)), 1
        return 1, {}


def transcript(env, seed, steps=60):
    found = [env.reset(seed=seed)[0]]
    env.action_space.seed(1)
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        found.append(np.append(observation, [reward, terminated, truncated, "null" in info]))
        if terminated or truncated:
            found.append(env.reset()[0])
    return np.concatenate([np.ravel(part) for part in found])


@pytest.mark.parametrize("name", ["CartPole-v1", "HopperBulletEnv-v0", "unseeded"])
@pytest.mark.parametrize("cure", [PerturbedStarts, StaggeredStart, PreRolledStart])
def test_seeded_resets_reproduce(name, cure):
    if name == "HopperBulletEnv-v0":
        import pybullet_envs_gymnasium  # noqa: F401  (registers it)
    delays = design_delays(EpisodeLengths.from_gymnasium([5, 9, 30]))

    def run(seed):
        env = Unseeded() if name == "unseeded" else gymnasium.make(name)
        env = cure(env, 0.8 if cure is PerturbedStarts else delays)
        found = transcript(env, seed)
        # Also in the same environment again (Bullet's own first reward differs there).
        if cure is PerturbedStarts and name != "HopperBulletEnv-v0":
            np.testing.assert_array_equal(found, transcript(env, seed))
        env.close()
        return found

    np.testing.assert_array_equal(run(4), run(4))
    assert not np.array_equal(run(4), run(5))


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")  # which every wrapper is told
@pytest.mark.parametrize("perturbation", [0.5, Perturbation(0.7, recursive=False), "auto"])
@pytest.mark.parametrize("name", ["Acrobot-v1", SWEEP])
def test_gymnasiums_checker_finds_nothing(name, perturbation):
    check_env(PerturbedStarts(gymnasium.make(name).unwrapped, perturbation), skip_render_check=True)


@pytest.mark.parametrize(
    ("perturbation", "arguments"),
    [
        (Perturbation(0.25), {}),
        (Perturbation(0.7, recursive=False), {"null_observation": np.array([0.1, 0, 0, 0], dtype=np.float32)}),
        (Perturbation.from_detour([0.5, 0, 0.5]), {}),
        ("auto", {"average_episode_length": 23.0}),
    ],
)
def test_the_spec_is_made_again_also_from_json(perturbation, arguments):
    env = PerturbedStarts(gymnasium.make("CartPole-v1"), perturbation, **arguments)
    for spec in (env.spec, gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())):
        again = gymnasium.make(spec)
        assert isinstance(again, PerturbedStarts)
        np.testing.assert_array_equal(transcript(again, 3), transcript(env, 3))
        assert again.perturbation == env.perturbation


@pytest.mark.parametrize("space", ["dict", "tuple", "multidiscrete from"])
def test_null_observations_survive_json(space):
    null = KINDS[space].sample()
    plain = steadyrl.wrappers.arguments.as_plain(null)
    env = PerturbedStarts(Spaces(KINDS[space], spaces.Discrete(2)), 0.5, null_observation=plain)
    np.testing.assert_equal(env.null_observation, null)
    with pytest.raises(WrapperError, match="not in the observation space"):
        PerturbedStarts(Spaces(KINDS[space], spaces.Discrete(2)), 0.5, null_observation={"z": 1})


def test_delays_survive_json():
    delays = design_delays(DRAWN, window=DRAWN.longest)
    env = gymnasium.make("CartPole-v1")
    for cure in (StaggeredStart, partial(StaggeredStart, autoreset_mode="SameStep"), PreRolledStart):
        wrapped = cure(env, delays)
        again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(wrapped.spec.to_json()))
        assert type(again) is type(wrapped)
        np.testing.assert_array_equal(again._delays.probabilities, wrapped._delays.probabilities)
    fixed = StaggeredStart(env, 3, window=9)
    again = gymnasium.make(fixed.spec)
    np.testing.assert_array_equal(again._delays.probabilities, fixed._delays.probabilities)


def test_auto_follows_the_average_episode_length_of_recent_episodes():
    inside = Scripted(lengths=(4,), kind="discrete")
    env = PerturbedStarts(inside, "auto", average_episode_length=50.0)
    assert env.perturbation == Perturbation.for_average_episode_length(50)
    env.reset(seed=0)
    for _ in range(3):
        while not env.step(0)[2]:
            pass
        env.reset()
    assert env.perturbation == Perturbation.for_average_episode_length(5)
    inside.lengths = (19,)
    for _ in range(100):
        while not env.step(0)[2]:
            pass
        env.reset()
    assert env.perturbation == Perturbation.for_average_episode_length(20)


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
def test_inside_vector_environments(vector):
    mode = {SyncVectorEnv: "sync", AsyncVectorEnv: "async"}[vector]
    envs = gymnasium.make_vec(
        SWEEP, 3, vectorization_mode=mode, wrappers=[partial(PerturbedStarts, perturbation=0.6)], n=4
    )
    single = [PerturbedStarts(gymnasium.make(SWEEP, n=4), 0.6) for _ in range(3)]
    observations, infos = envs.reset(seed=7)
    expected = [env.reset(seed=7 + i) for i, env in enumerate(single)]
    over = [False] * 3
    for _ in range(40):
        assert observations.tolist() == [e[0] for e in expected]
        nulls = [bool(e[-1].get("null")) for e in expected]
        assert infos.get("null", np.zeros(3, dtype=bool)).tolist() == nulls
        observations, _, terminated, _, infos = envs.step(np.zeros(3, dtype=int))
        expected = [env.reset() if end else env.step(0) for env, end in zip(single, over, strict=True)]
        over = [len(e) == 5 and e[2] for e in expected]
        assert terminated.tolist() == over
    envs.close()


def test_a_time_limit_inside_does_not_count_null_steps_and_one_around_does():
    detour = Perturbation.from_detour([0, 0, 0, 1])

    def steps(env):
        env.reset(seed=0)
        count = 1
        while not env.step(0)[3]:
            count += 1
        return count

    long = partial(Scripted, lengths=(50,))
    assert steps(PerturbedStarts(TimeLimit(long(), 10), detour)) == 13
    assert steps(TimeLimit(PerturbedStarts(long(), detour), 10)) == 10


@pytest.mark.parametrize("kind", ["recursive", "one step", "detour"])
@pytest.mark.parametrize("name", ["two_terminals", "self_loops", "wrong_way"])
def test_states_are_visited_as_the_perturbed_process_visits_them(name, kind):
    perturbation = {
        "recursive": Perturbation(0.6),
        "one step": Perturbation(0.3, recursive=False),
        "detour": Perturbation.from_detour([0.4, 0.1, 0, 0.5]),
    }[kind]
    process, policy = getattr(gallery, name)()
    env, rng = PerturbedStarts(ProcessEnv(process), perturbation), np.random.default_rng(1)
    visits, detours = [], []
    env.reset(seed=5)
    for _ in range(1000):  # one episode a row, with its detour and its end; null states last
        row = np.zeros(process.n_states + 1)
        observation, info = env.reset()
        over = False
        detours.append(0)
        while True:
            row[-1 if "null" in info else observation] += 1
            detours[-1] += "null" in info
            if over:
                break
            action = rng.choice(process.n_actions, p=policy[observation]) if "null" not in info else 0
            observation, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        visits.append(row)
    perturbed = perturb(process, perturbation)
    n_null = perturbed.n_states - process.n_states
    exact = stationary_distribution(perturbed, np.vstack([policy, np.tile(policy[:1], (n_null, 1))]))
    exact = np.append(exact[: process.n_states], exact[process.n_states :].sum())
    visits = np.array(visits)
    # A ratio of sums over independent episodes: visits / lengths, with the error of visits - exact * length.
    length = visits.sum(axis=1)
    error = (visits - exact * length[:, None]).std(axis=0, ddof=1) / np.sqrt(len(visits)) / length.mean()
    assert (np.abs(visits.sum(axis=0) / length.sum() - exact) <= 5 * error + 1e-12).all()
    assert_counts(np.bincount(detours, minlength=60), perturbation.detour_probabilities(max(59, max(detours))))


@pytest.mark.parametrize("perturbation", [Perturbation(0.8), Perturbation.from_detour([0.2, 0.2, 0.2, 0.2, 0.2])])
def test_distances_over_time_are_the_computed_ones(perturbation):
    # 3,000 sweeps of 5 states: ages are states, and off the null state each has a share known exactly. A time t of the
    # learning process, which starts at a terminal state, is step t - 1 after the reset.
    n, copies, steps = 5, 3000, 12
    envs = [PerturbedStarts(gymnasium.make(SWEEP, n=n).unwrapped, perturbation) for _ in range(copies)]
    process, policy = gallery.state_sweep(n)
    perturbed = perturb(process, perturbation)
    nulls = perturbed.n_states - n
    exact = steadyrl.marginals(perturbed, np.vstack([policy, np.tile(policy[:1], (nulls, 1))]), steps)
    distance = phase_distance(EpisodeLengths.from_gymnasium([n - 1]), steps, perturbation)
    now, over = [env.reset(seed=i) for i, env in enumerate(envs)], [False] * copies
    for t in range(1, steps + 1):
        states = np.array([n if "null" in step[-1] else step[0] for step in now])
        found = np.bincount(states, minlength=n + 1)
        assert_counts(found, np.append(exact[t, :n], exact[t, n:].sum()))
        share = found[:n] / found[:n].sum()
        # Each of 5 shares of at least 500 copies is off by less than 4 standard errors of at most 0.022.
        assert abs(total_variation(share, np.full(n, 1 / n)) - distance[t]) < 0.5 * n * 4 * np.sqrt(
            0.16 / found[:n].sum()
        )
        now = [env.reset() if end else env.step(0) for env, end in zip(envs, over, strict=True)]
        over = [len(step) == 5 and step[2] for step in now]


# Staggered, pre-rolled and stationary starts


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
def test_staggered_starts_end_at_the_stationary_ages(mode):
    delays = design_delays(DRAWN, window=DRAWN.longest)
    makers = [lambda: StaggeredStart(Drawn(), delays, autoreset_mode=mode)] * 1500
    envs = SyncVectorEnv(makers, autoreset_mode=mode)
    envs.reset(seed=0)
    window = delays.window + 1 if mode == NEXT_STEP else delays.for_same_step().window
    cut = np.zeros(1500, dtype=int)
    for t in range(3 * window):
        observations, _, _, truncated, infos = envs.step(np.zeros(1500, dtype=int))
        where = infos if mode == NEXT_STEP else infos.get("final_info", {})
        staggered = where.get("staggered", np.zeros(1500, dtype=bool))
        np.testing.assert_array_equal(truncated, staggered)
        cut += staggered
        if t == window - 1:
            share = stationary_ages(DRAWN if mode == NEXT_STEP else STREAM)
            assert_counts(np.bincount(observations, minlength=len(share)), share)
        assert t < window or not truncated.any()  # transparent ever after
    assert cut.max() <= 2  # twice where the end of an episode would have been in the way
    assert 0.3 < (cut > 0).mean() < 0.9


@pytest.mark.parametrize("n", [2, 7])
def test_staggered_starts_of_fixed_length_are_even(n):
    delays = design_delays(EpisodeLengths.from_gymnasium([n]))
    ages = []
    for delay in range(1, delays.window + 1):
        only = steadyrl.Delays(np.eye(delays.window + 1)[delay], 0.0, None)
        env = StaggeredStart(Drawn(tuple(np.eye(n + 1)[n])), delays)
        env._delays = only
        age, over = env.reset(seed=0)[0], False
        for _ in range(2 * n + 5):
            if over:
                age, over = env.reset()[0], False
            else:
                age, _, terminated, truncated, _ = env.step(0)
                over = terminated or truncated
        ages.append(age)
    assert sorted(ages) == list(range(1, n + 2))


def test_a_staggered_start_cuts_once_at_its_time_and_passes_everything_else():
    for delay, mode, due in ((3, "NextStep", 5), (3, "SameStep", 4), (7, "Disabled", None)):
        env = StaggeredStart(Scripted(lengths=(9,), kind="discrete"), delay, window=7, autoreset_mode=mode)
        plain = Scripted(lengths=(9,), kind="discrete")
        for episode in range(3):
            assert env.reset(seed=0) == plain.reset(seed=0)
            for step in range(1, 10):
                found, expected = env.step(1), plain.step(1)
                cut = episode == 0 and step == due
                np.testing.assert_equal(found[:3], expected[:3])
                assert found[3] == cut
                np.testing.assert_equal(found[4], {**expected[4], "staggered": True} if cut else expected[4])
                if cut:
                    break


def test_a_monitor_takes_cuts_inside_for_what_they_are():
    # T = 10 always. A cut that counted as an episode's end would make E[T] shorter.
    for mode in (NEXT_STEP, SAME_STEP):
        makers = [
            partial(StaggeredStart, Scripted(lengths=(9,)), 1 + i, window=9, autoreset_mode=mode) for i in range(8)
        ]
        envs = PhaseMonitor(SyncVectorEnv(makers, autoreset_mode=mode), n_steps=1, warn=False)
        envs.reset(seed=0)
        for _ in range(40):
            envs.step(np.zeros(8, dtype=int))
        assert envs.report().average_episode_length == pytest.approx(10)


class Greedy:
    def act(self, observations, rng):
        assert observations.shape == (1,)
        return rng.integers(2, size=1)


@pytest.mark.parametrize("policy", [None, Greedy(), lambda observation: 1], ids=["random", "act", "function"])
@pytest.mark.parametrize("cure", ["pre-rolled", "stationary"])
def test_first_resets_are_at_the_stationary_ages_and_later_ones_are_untouched(cure, policy):
    delays = design_delays(DRAWN, window=DRAWN.longest)
    ages, n = [], 800
    for seed in range(n):
        env = (
            PreRolledStart(Drawn(), delays, policy)
            if cure == "pre-rolled"
            else StationaryStart(Drawn(), policy, limit=9)
        )
        ages.append(env.reset(seed=seed)[0])
        if seed < 20:
            again = type(env)(
                Drawn(),
                *((delays, policy) if cure == "pre-rolled" else (policy,)),
                **({} if cure == "pre-rolled" else {"limit": 9}),
            )
            assert again.reset(seed=seed)[0] == ages[-1]
            first = ages[-1]
            observation = first
            while observation <= env.unwrapped.length:  # the episode goes on from there
                observation, _, terminated, truncated, info = env.step(0)
                assert observation == first + 1
                first += 1
                assert (not truncated, info) == (True, {})
            assert terminated
            assert env.reset()[0] == 1
            assert env.reset(seed=1)[0] == Drawn().reset(seed=1)[0]
    share = stationary_ages(STREAM)
    assert_counts(np.bincount(ages, minlength=len(share)), share)


def test_a_pre_rolled_start_of_one_delay():
    env = PreRolledStart(Scripted(lengths=(3, 4), kind="discrete"), 6)
    observation, info = env.reset(seed=0)
    assert observation == 102  # states 0, 1, 2 of episode 0, and 0, 1, 2 of episode 1
    np.testing.assert_equal(info, Scripted.info(102))


def test_dictionaries_reach_a_policy_as_a_batch_of_one():
    class Looking:
        def act(self, observations, rng):
            assert observations["b"]["c"].shape == (1, 2)
            return np.zeros(1, dtype=int)

    assert PreRolledStart(Scripted(kind="dict", lengths=(9,)), 4, Looking()).reset(seed=0)[0]["a"] == 3


class Restless(Drawn):
    """Steps that no seed determines."""

    noise = np.random.default_rng(0)

    def step(self, action):
        self.age += 1
        return self.age, 1.0, bool(self.age > 2 and (self.noise.random() < 0.3 or self.age == 10)), False, {}


def test_a_stationary_start_refuses_what_it_cannot_do():
    with pytest.raises(WrapperError, match=r"limit on an episode's actions is None.*TimeLimit"):
        StationaryStart(Drawn())
    with pytest.raises(WrapperError, match="actions is 0"):
        StationaryStart(Drawn(), limit=0)

    def try_seeds(environment, limit):
        for seed in range(20):
            StationaryStart(environment(), limit=limit).reset(seed=seed)

    with pytest.raises(WrapperError, match="goes on after 4 actions"):
        try_seeds(Drawn, 4)
    with pytest.raises(WrapperError, match="not deterministic"):
        try_seeds(Restless, 9)
    assert StationaryStart(gymnasium.make("CartPole-v1")).limit == 500
    assert StationaryStart(TimeLimit(Drawn(), 5), limit=5).reset(seed=0)[0] <= 5


@pytest.mark.parametrize("cure", [PreRolledStart, StaggeredStart])
@pytest.mark.parametrize("delays", ["auto", [0.5, 0.5], [0.0, 0.7], 0, None, True, [], [[0.0, 1.0]]])
def test_wrong_delays_are_refused(cure, delays):
    with pytest.raises(DelaysError):
        cure(Drawn(), delays)


def test_other_bad_input_is_refused():
    with pytest.raises(DelaysError, match="the delay is 5 and the window 4"):
        StaggeredStart(Drawn(), 5, window=4)
    with pytest.raises(WrapperError, match=r"autoreset_mode is 'Sometimes'.*NextStep"):
        StaggeredStart(Drawn(), 3, window=4, autoreset_mode="Sometimes")
    with pytest.raises(PolicyError, match="policy is 7"):
        PreRolledStart(Drawn(), 3, 7).reset(seed=0)


def test_lengths_and_bare_dictionaries_are_not_delays():
    for cure in (PreRolledStart, StaggeredStart):
        with pytest.raises(
            DelaysError, match=r"delays is EpisodeLengths \(E\[T\] = 5.3\).*give design_delays\(lengths\)"
        ):
            cure(Drawn(), DRAWN)
        with pytest.raises(DelaysError, match=r"delays is \{'foo': 1\}; give Delays"):
            cure(Drawn(), {"foo": 1})


@pytest.mark.parametrize(
    ("cure", "instead"),
    [
        (partial(PerturbedStarts, perturbation=0.5), r"wrappers=\[perturbed\]"),
        (partial(PreRolledStart, delays=3), "pre_roll"),
        (partial(StaggeredStart, delays=3, window=4), "StaggeredVectorEnv"),
        (partial(StationaryStart, limit=500), "pre_roll"),
    ],
)
def test_cures_for_one_environment_name_those_for_many(cure, instead):
    with pytest.raises(WrapperError, match=rf"SyncVectorEnv, 2 copies.* for a single one; .*{instead}"):
        cure(SyncVectorEnv([Drawn, Drawn]))
    with pytest.raises(WrapperError, match=r"env is 'CartPole-v1', not a gymnasium\.Env"):
        cure("CartPole-v1")


@pytest.mark.parametrize("action", [np.zeros(3, dtype=int), 0.5, None, "left"], ids=repr)
def test_a_policy_with_unfit_actions_is_told_so(action):
    with pytest.raises(
        PolicyError, match=r"policy returned actions of shape .*Discrete\(2\) needs shape \(\) and whole"
    ):
        PreRolledStart(Drawn(), 3, lambda observation: action).reset(seed=0)


class Locked:
    def __init__(self):
        self.lock = threading.Lock()

    def act(self, observations, rng):
        return np.zeros(len(observations), dtype=int)


@pytest.mark.parametrize("wrap", [partial(PreRolledStart, delays=3), partial(StationaryStart, limit=500)])
def test_a_policy_that_cannot_be_copied_warms_up_too(wrap):
    env = wrap(gymnasium.make("CartPole-v1"), policy=Locked())
    assert env.observation_space.contains(env.reset(seed=0)[0])


def test_a_policy_whose_error_cannot_be_shown_is_named():
    class SilentError(Exception):
        def __str__(self):
            raise KeyError

    def policy(observation):
        raise SilentError

    with pytest.raises(PolicyError, match="raised SilentError: a message that cannot be shown"):
        PreRolledStart(gymnasium.make("CartPole-v1"), 3, policy).reset(seed=0)


def test_an_argument_that_contains_itself_is_refused_with_a_sentence():
    itself = []
    itself.append(itself)
    for make in (
        lambda: StaggeredStart(gymnasium.make("CartPole-v1"), itself),
        lambda: PerturbedStarts(gymnasium.make("CartPole-v1"), Perturbation(0.5), null_observation=itself),
    ):
        with pytest.raises(WrapperError, match="contains itself"):
            make()
