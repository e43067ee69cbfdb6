"""Arguments of public functions and methods that are nothing of the kind: each is refused with a sentence."""

import math
import multiprocessing
import os
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import sparse
from stable_baselines3.common.vec_env import DummyVecEnv

import steadyrl
from steadyrl import EpisodeLengths, Perturbation, SteadyrlError, gallery, sspg
from steadyrl.environments import ProcessEnv
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.integrations.sb3 import EnvPoolVecEnv, SteadyStateCallback, SteadyVecEnv, make_steady_vec_env
from steadyrl.integrations.torch import CounterStagger
from steadyrl.policies import (
    GaussianPolicy,
    SoftmaxTable,
    as_module,
    load_policy,
    make_policy,
    random_gaussian_policy,
)

BOX, DISCRETE = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
DIAGNOSIS = steadyrl.diagnose_lengths([3, 5, 9, 9, 4, 7] * 10)


def a_policy():
    return make_policy(observation_codec(BOX), action_codec(DISCRETE), hidden=(4,))


@pytest.mark.parametrize("ages", [b"3", "3", -1, 0, 2.5, [1.0, 2.0, 3.0], [1, 2], [[1, 2, 3]], True, math.nan, 10**30])
def test_ages_of_a_tracker_are_whole_numbers(ages):
    tracker = steadyrl.PhaseTracker(3, same_step=True)
    with pytest.raises(SteadyrlError, match="ages is"):
        tracker.reset(ages=ages)
    assert tracker.ages.tolist() == [1, 1, 1]  # as before


def test_ages_of_a_tracker_are_those_of_the_masked_environments():
    tracker = steadyrl.PhaseTracker(3, same_step=True)
    tracker.reset(ages=[4, 5, 6])
    tracker.reset(np.array([True, False, True]), ages=np.array([7, 8, 9]))
    assert tracker.ages.tolist() == [7, 5, 9]
    tracker.reset(np.array([True, False, False]))
    assert tracker.ages.tolist() == [1, 5, 9]


@pytest.mark.parametrize("process", [None, 3.0, "corridor", gallery.corridor(), gallery])
def test_an_environment_of_something_else_than_a_process(process):
    with pytest.raises(SteadyrlError, match="LearningProcess"):
        ProcessEnv(process)


@pytest.mark.parametrize("action", [-1, 2, 1.5, "1", None, [1], math.nan, np.array([0, 1])])
def test_an_action_that_is_none(action):
    env = ProcessEnv(gallery.two_terminals()[0])
    env.reset(seed=0)
    with pytest.raises(SteadyrlError, match=r"action is .* 0 to 1"):
        env.step(action)


@pytest.mark.parametrize("action", [1, np.int64(1), np.array(1)])
def test_an_action_is_taken(action):
    env = ProcessEnv(gallery.two_terminals()[0])
    env.reset(seed=0)
    assert env.step(action)[:3] == (0, 0.0, True)


@pytest.mark.parametrize(
    "call",
    [
        lambda: DIAGNOSIS.code_of("anytime"),
        lambda: DIAGNOSIS.recommendation.chosen.lost("100"),
        lambda: DIAGNOSIS.recommendation.chosen.lost(-1),
        lambda: DIAGNOSIS.recommendation.chosen.lost(math.nan),
        lambda: DIAGNOSIS.mixing_time.times(-1.0),  # its ends would change places
        lambda: DIAGNOSIS.mixing_time.times(1 + 2j),
        lambda: DIAGNOSIS.mixing_time.times([2.0]),
        lambda: steadyrl.diagnose_lengths([3, 5] * 20, name=10**9),
        lambda: gallery.wrong_way(late=[2.0]),
        lambda: gallery.wrong_way(early="1"),
        lambda: gallery.wrong_way(delay=2**32),
        lambda: Perturbation(detour=(0.5, 0.5), recursive="no"),
        lambda: steadyrl.Delays([0.0, 0.5, 0.5], 2.0),
        lambda: steadyrl.Delays([0.0, 0.5, 0.5], -0.1),
        lambda: sspg.Settings().resolved(continuous="no"),
        lambda: sspg.train("steadyrl/StateSweep-v0", after_update="print"),
        lambda: SteadyStateCallback(n_steps="16"),
        lambda: SteadyStateCallback(tolerance=2),
    ],
)
def test_each_is_refused(call):
    with pytest.raises(SteadyrlError):
        call()


@pytest.mark.parametrize(
    "arguments",
    [
        {"n_envs": "3"},
        {"n_envs": 0},
        {"n_envs": 10**400},
        {"seed": sspg.Settings()},
        {"seed": np.arange(2)},
        {"seed": -1},
        {"env_kwargs": "n"},
        {"env_kwargs": 3.0},
        {"monitor_dir": np.array([1, None])},
        {"monitor_dir": {"a": 1}},
        {"monitor_dir": __file__},
        {"wrapper_class": 1.5},
        {"wrapper_class": print},
        {"backend": np.array(["dummy", "auto"])},
        {"backend": ["dummy"]},
    ],
)
def test_arguments_of_make_steady_vec_env(arguments):
    with pytest.raises(SteadyrlError, match=next(iter(arguments))):
        make_steady_vec_env("steadyrl/StateSweep-v0", **({"n_envs": 2, "backend": "dummy"} | arguments))


def test_processes_of_environments_that_cannot_be_staggered_are_ended():
    with pytest.raises(SteadyrlError, match="tolerance"):
        make_steady_vec_env("CartPole-v1", 2, backend="subproc", tolerance=2.0)
    assert not multiprocessing.active_children()


def test_survival_that_is_one_up_to_rounding():
    probabilities = np.array([0.0, 0.1, 0.2, 0.7])
    survival = np.array([1.0, 1.0 - 2.0**-53, 0.9, 0.7])
    assert EpisodeLengths.from_survival(survival).probabilities == pytest.approx(probabilities)


def test_a_time_limit_that_does_not_fit_into_memory(monkeypatch):
    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr(np, "tile", no_memory)
    with pytest.raises(SteadyrlError, match="do not fit into memory"):
        gallery.two_terminals()[0].with_time_limit(1000)


@pytest.mark.parametrize("window", ["6", 2.5, 0, 5])
def test_a_window_beside_delays_that_have_their_own(window):
    env = gymnasium.make("steadyrl/StateSweep-v0", n=5)
    with pytest.raises(SteadyrlError, match="window is"):
        steadyrl.StaggeredStart(env, [0.0, 0.5, 0.5], window=window)
    steadyrl.StaggeredStart(env, [0.0, 0.5, 0.5], window=2)


def test_a_warm_up_of_four_billion_steps():
    with pytest.raises(SteadyrlError, match="the delay is 4294967296"):
        steadyrl.PreRolledStart(gymnasium.make("steadyrl/StateSweep-v0", n=5), 2**32)


@pytest.mark.parametrize("warn", ["no", 1, None, np.zeros(2)])
def test_warn_is_true_or_false(warn):
    envs = gymnasium.make_vec("steadyrl/StateSweep-v0", num_envs=2, vectorization_mode="sync", n=5)
    with pytest.raises(SteadyrlError, match="warn is"):
        steadyrl.PhaseMonitor(envs, warn=warn)


@pytest.mark.parametrize("same_step", [math.nan, "yes", [True, True], None])
def test_a_state_says_how_resets_are_made(same_step):
    controller = steadyrl.StaggerController(3, same_step=True, seed=0)
    with pytest.raises(SteadyrlError, match="same_step"):
        controller.restore(controller.state() | {"same_step": same_step})


@pytest.mark.parametrize(
    "arguments",
    [
        {"mean": range(10**12)},
        {"mean": np.zeros(2)},
        {"mean": [0.0, math.nan, 0.0]},
        {"std": np.zeros(3)},
        {"std": [1.0, -1.0, 1.0]},
        {"std": "1"},
        {"limit": "10"},
        {"limit": -1.0},
        {"limit": math.nan},
    ],
)
def test_a_policy_is_not_normalised_by_nonsense(arguments):
    policy = a_policy()
    with pytest.raises(SteadyrlError, match=next(iter(arguments))):
        policy.normalise(**({"mean": np.zeros(3), "std": np.ones(3)} | arguments))
    assert policy.limit is None


@pytest.mark.parametrize("observations", [[0.1, 0.2, 0.3], np.zeros((2, 4)), "no", None, np.zeros((2, 3, 1))])
def test_observations_of_a_policy_are_rows(observations):
    policy, rng = a_policy(), np.random.default_rng(0)
    for call in (lambda: policy.act(observations, rng), lambda: policy.entropy(observations)):
        with pytest.raises(SteadyrlError, match="observations"):
            call()
    with pytest.raises(SteadyrlError, match="observations"):
        policy.numpy().act(observations, rng)


def test_policies_act_with_a_generator_and_a_table_on_unit_vectors():
    table = SoftmaxTable(np.zeros((4, 2))).numpy()
    assert table.act(np.eye(4)[[0, 3]], np.random.default_rng(0)).shape == (2,)
    with pytest.raises(SteadyrlError, match="unit vector"):
        table.act(np.array([[3]]), np.random.default_rng(0))  # it was taken for state 0
    with pytest.raises(SteadyrlError, match="unit vector"):
        table.act(np.array([0, 1]), np.random.default_rng(0))
    for policy, rows in ((table, np.eye(4)), (a_policy(), np.zeros((1, 3))), (a_policy().numpy(), np.zeros((1, 3)))):
        with pytest.raises(SteadyrlError, match="rng is 7"):
            policy.act(rows, 7)


@pytest.mark.parametrize(
    "call",
    [
        lambda: make_policy(BOX, DISCRETE),
        lambda: make_policy(observation_codec(BOX), DISCRETE),
        lambda: make_policy(observation_codec(BOX), action_codec(BOX), seed=range(10**12)),
        lambda: make_policy(observation_codec(BOX), action_codec(BOX), hidden=8),
        lambda: make_policy(observation_codec(BOX), action_codec(BOX), hidden=(8.5,)),
        lambda: GaussianPolicy(observation_codec(BOX), action_codec(BOX), log_std="0"),
        lambda: GaussianPolicy(observation_codec(BOX), action_codec(BOX), log_std=-1e308),
        lambda: as_module("policy.safetensors", observation_codec(BOX), action_codec(BOX)),
        lambda: random_gaussian_policy("3", (2,), seed=0),
        lambda: random_gaussian_policy(3, 2, seed=0),
        lambda: random_gaussian_policy(3, (2,), seed=None),
        lambda: random_gaussian_policy(2**31, (2,), seed=0),
    ],
)
def test_policies_are_made_of_codecs_sizes_and_seeds(call):
    with pytest.raises(SteadyrlError):
        call()


def test_a_policy_file_is_read_with_codecs(tmp_path):
    a_policy().save(tmp_path / "policy.safetensors")
    with pytest.raises(SteadyrlError, match=r"observation_codec\(space\)"):
        load_policy(tmp_path / "policy.safetensors", BOX, DISCRETE)


def test_the_name_of_counters_does_not_control_the_terminal():
    class Simulator:
        episode_length_buf, max_episode_length = torch.zeros(3, dtype=torch.long), 5

    with pytest.raises(SteadyrlError) as caught:
        CounterStagger(Simulator(), counters="\x1b[2J")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("kind", [np.longdouble, Fraction])
def test_levels_of_every_kind_of_number(kind):
    """Long doubles raised scipy's TypeError."""
    level, lengths, rng = kind(0.75), EpisodeLengths.from_gymnasium([3, 5, 9]), np.random.default_rng(0)
    assert steadyrl.steady_state_mean([3, 5, 9], [3, 5, 9], level=level).value == pytest.approx(17 / 20)
    assert steadyrl.bootstrap(lengths, 9, rng=rng, level=level, resamples=9).level == 0.75
    if kind is np.longdouble:
        assert steadyrl.stream_episode_length(rng.random((50, 4)) < 0.2, level=level).low > 1


@pytest.mark.parametrize("mask", ["no", None, 1.5, np.array([True]), np.ma.masked_array([True, False], [True, False])])
def test_restarting_copies_are_flags(mask):
    """Anything was taken, and every later step failed."""
    envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    envs = steadyrl.RecordFairStatistics(envs)
    envs.reset(seed=0)
    with pytest.raises(SteadyrlError, match="mask"):
        envs.restarting(mask)
    envs.step(np.zeros(2, dtype=int))


def test_a_time_limit_of_steps_is_no_flag():
    """True was one second; whole numbers of numpy were refused."""
    process, policy = gallery.corridor()
    with pytest.raises(SteadyrlError, match="step_timeout is True"):
        steadyrl.collect_episodes(process, policy, 2, step_timeout=True, backend="serial")
    assert len(steadyrl.collect_episodes(process, policy, 2, step_timeout=np.int64(9), backend="serial")) == 2


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_counts_of_a_diagnosis_are_small_integers(kind):
    """Sizes of blocks were computed in eight bits, which raised an OverflowError."""
    found, same = (
        steadyrl.diagnose("FrozenLake-v1", episodes=n, num_envs=n, n_steps=n, backend="serial") for n in (kind(40), 40)
    )
    assert found.as_json() == same.as_json()


def test_a_factor_of_half_precision():
    """It rounded the ends of the interval to its own precision, and large ones to infinity."""
    assert steadyrl.Interval(1e6, 1e5 + 1, 1e7).times(np.float16(2)) == steadyrl.Interval(2e6, 2e5 + 2, 2e7)


def test_no_file_takes_the_place_of_a_pipe(tmp_path):
    """A save replaced pipes and devices by a file: run as root, it replaced /dev/null of the whole machine."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(SteadyrlError, match="is a pipe or a device"):
        gallery.corridor()[0].save(path)
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


def test_a_policy_of_five_thousand_letters():
    """The file system refused to look for such a name."""
    with pytest.raises(SteadyrlError, match="policy is 'xxx"):
        steadyrl.collect_episodes(gallery.corridor()[0], "x" * 5000, 2, backend="serial")


def test_ragged_ages_of_a_state():
    """They raised numpy's ValueError."""
    controller = steadyrl.StaggerController(2, same_step=True)
    with pytest.raises(SteadyrlError, match="ages must be an array"):
        controller.restore(controller.state() | {"ages": [[1, 2], 3]})


@pytest.mark.parametrize("name", ["new_visits", "visits"])
def test_ragged_tables_of_a_controllers_state(name):
    """They raised numpy's ValueError."""
    controller = steadyrl.StaggerController(2, same_step=True)
    with pytest.raises(SteadyrlError, match=f"{name} must be an array"):
        controller.restore(controller.state() | {name: [[1, 2], 3]})


@pytest.mark.parametrize("name", ["ages", "tables"])
def test_ragged_arrays_of_the_state_of_statistics(name):
    """They raised numpy's ValueError."""
    statistics = steadyrl.FairStatistics(2, same_step=True)
    with pytest.raises(SteadyrlError, match=f"{name} must be an array"):
        statistics.restore(statistics.state() | {name: [[1, 2], 3]})


@pytest.mark.parametrize("seed", [np.array(3), np.array(3, dtype=object)])
def test_a_seed_in_an_array_is_that_seed(seed):
    """It was taken for a list of seeds, which determine another one."""
    controllers = [steadyrl.StaggerController(8, same_step=True, seed=0) for _ in "ab"]
    for controller, given in zip(controllers, (seed, 3), strict=True):
        controller.reset(seed=given)
    assert all(
        np.array_equal(*[controller.step(np.arange(8) == step % 8) for controller in controllers]) for step in range(40)
    )


def test_a_tolerance_that_is_a_fraction_can_be_shown():
    """The diagnosis was made, and could not be printed."""
    found = steadyrl.diagnose_lengths([3, 5, 9, 9, 4, 7] * 10, tolerance=Fraction(1, 100))
    assert str(found) == str(DIAGNOSIS)
    assert found.as_json() == DIAGNOSIS.as_json()


def test_sparse_scores_that_are_no_matrix_of_real_numbers():
    """Three dimensions raised SciPy's ValueError, and complex scores gave a complex gradient."""
    process, policy = gallery.two_terminals()
    for score in (sparse.coo_array(np.ones((4, 2, 3))), sparse.coo_array(np.ones(8)), sparse.csr_array(np.eye(8) + 1j)):
        with pytest.raises(SteadyrlError, match="score is a sparse array of shape"):
            steadyrl.policy_gradient(process, policy=policy, score=score)
    long = steadyrl.policy_gradient(process, policy=policy, score=sparse.csr_array(np.eye(8, dtype=np.longdouble)))
    assert long.dtype == np.float64


@pytest.mark.parametrize("flag", [True, False, np.False_])
def test_a_discount_that_is_a_flag(flag):
    """False, which may be meant as no discounting, was taken for a discount of 0."""
    with pytest.raises(SteadyrlError, match="the discount is"):
        steadyrl.state_values(*gallery.two_terminals(), flag)


LIMITS = np.array([4, 5, 6, 7])


@pytest.mark.parametrize("limit", [LIMITS[::-1], LIMITS.astype(">i8"), LIMITS.astype(np.longdouble), np.uint64(4)])
def test_limits_of_which_torch_makes_no_tensor(limit):
    """They raised at the first truncation, in the middle of training."""

    class Simulator:
        episode_length_buf, max_episode_length = torch.zeros(4, dtype=torch.long), limit

    cut = CounterStagger(Simulator(), seed=0).step(torch.zeros(4, dtype=torch.bool))
    limits = torch.tensor(np.broadcast_to(limit, 4).astype(float)).long()
    assert cut.any()
    assert torch.equal(Simulator.episode_length_buf, torch.where(cut, limits, 0))


@pytest.mark.parametrize("actions", [np, memoryview(b"1")])
def test_a_policy_that_returns_something_with_a_shape_and_no_type(actions):
    """It raised AttributeError."""
    env = steadyrl.StationaryStart(gymnasium.make("CartPole-v1"), lambda _: actions)
    with pytest.raises(SteadyrlError, match="the policy returned actions"):
        env.reset(seed=0)


def test_samples_that_no_memory_holds():
    """They raised MemoryError."""
    with pytest.raises(SteadyrlError, match="more memory than there is"):
        steadyrl.collect_samples(*gallery.two_terminals(), 5, [1], episodes=10**15, backend="serial")


def test_settings_that_pytorch_cannot_compute_with():
    """They raised OverflowError and RuntimeError in the first update."""
    with pytest.raises(SteadyrlError, match=r"learning_rate is 1e\+300"):
        sspg.Settings(learning_rate=1e300, optimiser="sgd")
    settings = sspg.Settings(updates=1, num_envs=2, n_steps=8, backend="serial", cure="none", entropy=2**64 + 1)
    assert sspg.train("CartPole-v1", settings).updates == 1


@pytest.mark.parametrize("indices", [[2], [-1], 7, -1, [1e308], object(), ["a"], np.array([0.0]), [True]])
def test_indices_of_environments_in_envpool_are_those_that_are_there(indices):
    """EnvPool looked them up beyond its memory, and the process crashed."""
    env = EnvPoolVecEnv("CartPole-v1", 2, seed=0)
    env.reset()
    for call in (
        lambda: env.env_method("reset", indices=indices),
        lambda: env.get_attr("spec", indices=indices),
        lambda: env.env_is_wrapped(gymnasium.Wrapper, indices=indices),
    ):
        with pytest.raises(SteadyrlError, match="0 to 1"):
            call()
    assert len(env.env_method("reset", indices=np.array([1]))) == len(env.get_attr("spec", 0)) == 1
    assert len(env.env_method("reset")) == 2
    env.close()


def test_names_of_attributes_and_methods_in_envpool_are_text():
    env = EnvPoolVecEnv("CartPole-v1", 2, seed=0)
    for name in (["spec"], np.ones(2), "x"):
        with pytest.raises(AttributeError, match="environments in EnvPool have"):
            env.get_attr(name)
        with pytest.raises(AttributeError, match="environments in EnvPool have"):
            env.env_method(name)
    env.close()


@pytest.mark.parametrize("address", [np.array(["1", "2"]), torch.ones(2), 0, ()])
def test_an_address_is_a_name(address):
    with pytest.raises(SteadyrlError, match="address is"):
        sspg.Settings(address=address)


@pytest.mark.parametrize("entry", [math.nan, math.inf])
@pytest.mark.parametrize("form", [lambda score: score, lambda score: sparse.csr_array(score.reshape(8, 2))])
def test_scores_are_finite(entry, form):
    """The gradient was nan."""
    process, policy = gallery.two_terminals()
    score = np.tile([[[0.5, -0.5], [-0.5, 0.5]]], (4, 1, 1)).reshape(4, 2, 2)
    steadyrl.policy_gradient(process, policy=policy, score=form(score))
    score[0, 0, 0] = entry
    with pytest.raises(SteadyrlError, match="nan or inf"):
        steadyrl.policy_gradient(process, policy=policy, score=form(score))


def test_delays_beyond_whole_numbers_of_64_bits_are_refused():
    """They were taken for negative ones, and the environment was truncated at once."""
    envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(SteadyrlError, match="from 1 to"):
        steadyrl.StaggeredVectorEnv(envs, np.array([2**64 - 1, 1], np.uint64)).reset(seed=0)


def test_a_null_observation_has_no_masked_entries():
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(SteadyrlError, match="masked array"):
        steadyrl.PerturbedStarts(
            env, Perturbation(0.5), null_observation=np.ma.array(np.zeros(4, "f4"), mask=[0, 1, 1, 1])
        )


def test_delays_with_a_fraction_are_shown():
    assert "0.286" in repr(steadyrl.Delays([0, 0.5, 0.5], Fraction(2, 7)))


def several_steps(envs):
    for _ in range(9):
        envs.step(np.zeros(2, dtype=int))


class Careless(gymnasium.vector.VectorEnv):
    """Two copies whose episodes have ten steps; it returns `flags` as terminated in the fifth step."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, flags):
        self.num_envs, self.flags, self.steps = 2, flags, 0
        self.single_observation_space = spaces.Box(-1, 1, (1,))
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        self.steps += 1
        ended = self.flags if self.steps % 10 == 5 else np.full(2, self.steps % 10 == 0)
        return np.zeros((2, 1), np.float32), np.ones(2), ended, np.zeros(2, bool), {"x": np.zeros(2)}


@pytest.mark.parametrize("wrapper", [steadyrl.RecordFairStatistics, steadyrl.StaggeredVectorEnv, steadyrl.PhaseMonitor])
@pytest.mark.parametrize(
    "flags", [["False", "False"], [0.5, 0.5], [math.nan, 0], [2, 0], np.array([True]), False, None]
)
def test_flags_of_a_vector_environment_are_booleans(wrapper, flags):
    """Where there were infos, text and fractions were taken for true, and one flag for all environments."""
    envs = wrapper(Careless(flags))
    envs.reset(seed=0)
    with pytest.raises(SteadyrlError):
        several_steps(envs)


@pytest.mark.parametrize("flags", [[False, False], np.zeros(2, int), np.zeros(2, np.uint8), [False, True]])
def test_flags_of_a_vector_environment_may_be_lists_or_zeros_and_ones(flags):
    for wrapper in (steadyrl.RecordFairStatistics, steadyrl.StaggeredVectorEnv):
        envs = wrapper(inner := Careless(flags))
        envs.reset(seed=0)
        several_steps(envs)
        assert inner.steps >= 9


def test_training_does_not_depend_on_who_switched_gradients_off():
    settings = sspg.Settings(updates=2, num_envs=2, n_steps=4, backend="serial")
    expected = sspg.train("CartPole-v1", settings).history
    with torch.no_grad():
        found = sspg.train("CartPole-v1", settings).history
        assert not torch.is_grad_enabled()
    assert all(np.array_equal(found[name], expected[name], equal_nan=True) for name in expected)


class Forgetful(gymnasium.Env):
    """Endless; every reset but the first returns `answer`."""

    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)

    def __init__(self, answer):
        self.answer, self.resets = answer, 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return self.answer if self.resets > 1 else (np.zeros(3, np.float32), {})

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(
    "answer", [None, (), "no", (np.zeros(3),), (None, {}), (1.0, {}), (["1", "2", "3"], {}), (np.zeros(3), None)]
)
def test_a_reset_after_a_truncation_returns_an_observation_and_infos(answer):
    """None became nan, a number filled the row, and the rest were raw errors."""
    env = SteadyVecEnv(DummyVecEnv([lambda: Forgetful(answer)] * 2), [2, 5])
    env.reset()
    with pytest.raises(SteadyrlError, match="the reset of environment"):
        several_steps(env)


@pytest.mark.parametrize(
    "names",
    [{2: "hall", 1: "room", 0: "exit"}, {"exit": 0, "room": 1, "hall": 2}, {"exit", "room", "hall"}, b"abc"],
)
def test_names_of_states_are_in_their_order(names):
    """Keys of a dictionary became the names of other states."""
    with pytest.raises(SteadyrlError, match="names is"):
        steadyrl.LearningProcess([[[0, 1, 0], [0, 0, 1], [1, 0, 0]]], [1.0, 0, 0], [1.0, 0, 0], names=names)


def test_transitions_are_matrices_and_no_recommendation():
    with pytest.raises(SteadyrlError, match="transitions must be numbers"):
        steadyrl.LearningProcess(DIAGNOSIS.recommendation, [1, 0, 0], [1, 0, 0])


def test_a_policy_is_not_its_class():
    samples = steadyrl.collect_samples("CartPole-v1", "uniform", 2, [3], backend="serial")
    with pytest.raises(SteadyrlError, match="policy is"):
        steadyrl.steady_state_gradient(SoftmaxTable, samples, 20.0)
