"""Functions of the exact analysis refuse what they cannot use, with an error of steadyrl's own family."""

import gymnasium
import numpy as np
import pytest

from steadyrl import (
    LearningProcess,
    Perturbation,
    SteadyrlError,
    action_values,
    average_episode_length,
    check_episodic,
    classic_gradient,
    coupled_sampling,
    episode_performance,
    expected_visits,
    extend_policy,
    gallery,
    gradient_bias,
    marginals,
    mean_recurrence_times,
    mixing_time,
    period,
    perturb,
    policy_gradient,
    softmax_policy,
    state_values,
    stationary_distribution,
    steady_state_performance,
    steady_state_policy_gradient,
    total_variation,
    uniform_policy,
)
from steadyrl.common.checks import as_numbers, check_level, check_tolerance, whole_number
from steadyrl.errors import AccuracyError, PerturbationError, ProcessError, ToleranceError
from steadyrl.exact import distances, renumber, sample_path, spectral_gap
from steadyrl.exact.mixing_curves import mixing_curves
from steadyrl.exact.summary import summarise

PROCESS, POLICY = gallery.two_terminals()
LOGITS = np.zeros((4, 2))
TAKE_A_POLICY = [
    action_values,
    average_episode_length,
    check_episodic,
    episode_performance,
    expected_visits,
    extend_policy,
    mean_recurrence_times,
    mixing_time,
    period,
    spectral_gap,
    state_values,
    stationary_distribution,
    steady_state_performance,
    summarise,
]
TAKE_LOGITS = [classic_gradient, gradient_bias, policy_gradient, steady_state_policy_gradient]
OF_A_PROCESS = [
    *(lambda process, f=f: f(process, POLICY) for f in TAKE_A_POLICY),
    *(lambda process, f=f: f(process, LOGITS) for f in TAKE_LOGITS),
    lambda process: uniform_policy(process),
    lambda process: check_episodic(process),
    lambda process: marginals(process, POLICY, 3),
    lambda process: distances(process, POLICY, 3),
    lambda process: perturb(process, Perturbation(0.5)),
    lambda process: sample_path(process, POLICY, 3, rng=np.random.default_rng(0)),
    lambda process: coupled_sampling(process, POLICY, Perturbation(0.5), 3, rng=np.random.default_rng(0)),
]
OF_A_PERTURBATION = [
    lambda perturbation: perturb(PROCESS, perturbation),
    lambda perturbation: coupled_sampling(PROCESS, POLICY, perturbation, 3, rng=np.random.default_rng(0)),
    lambda perturbation: renumber([True, False], perturbation, rng=np.random.default_rng(0)),
]


class TensorWithGradient:
    """As far as numpy can tell, a tensor of PyTorch that requires grad."""

    requires_grad = True

    def __array__(self, *_args, **_options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


@pytest.mark.parametrize("function", OF_A_PROCESS)
@pytest.mark.parametrize("given", [None, 3, "FrozenLake-v1", np.eye(2), (PROCESS, POLICY), LearningProcess, {}])
def test_what_is_not_a_process_is_refused_by_name(function, given):
    with pytest.raises(ProcessError, match=r"process is .*; it must be a LearningProcess"):
        function(given)


def test_a_whole_gallery_entry_in_the_place_of_its_process_is_recognised():
    with pytest.raises(ProcessError, match="first entry of this tuple"):
        period(gallery.corridor(), POLICY)


@pytest.mark.parametrize("function", OF_A_PERTURBATION)
@pytest.mark.parametrize("given", [None, 0.9, "0.9", [0.5, 0.5], Perturbation])
def test_what_is_not_a_perturbation_is_refused_by_name(function, given):
    with pytest.raises(PerturbationError, match=r"perturbation is .*; it must be a Perturbation"):
        function(given)


def test_a_curve_needs_a_perturbation_too(tmp_path):
    with pytest.raises(PerturbationError):
        mixing_curves(PROCESS, POLICY, 0.9, tmp_path / "curves.png")


@pytest.mark.parametrize("rng", [None, 0, np.random, np.random.RandomState(0)])
def test_a_seed_in_the_place_of_a_generator_is_refused(rng):
    for draw in (lambda: Perturbation(0.5).draw(3, rng=rng), lambda: sample_path(PROCESS, POLICY, 3, rng=rng)):
        with pytest.raises(PerturbationError, match=r"np\.random\.default_rng\(0\)"):
            draw()


@pytest.mark.parametrize(
    ("p", "q", "words"),
    [
        ([1, 2], [3, 4], r"p sums to 3\.0, not to 1"),
        ([0.5, 0.5], [0.5, 0.4], r"q sums to 0\.9, not to 1"),
        ([1.5, -0.5], [0.5, 0.5], r"p\[1\] is -0\.5"),
        ([np.nan, 1], [0.5, 0.5], r"p\[0\] is nan"),
        ([0.5, 0.5], [1.0], "shapes"),
        ([], [], "p sums to"),
    ],
)
def test_total_variation_is_between_distributions(p, q, words):
    with pytest.raises(SteadyrlError, match=words):
        total_variation(p, q)


def test_total_variation_takes_joint_distributions_and_single_precision():
    assert total_variation(np.full((2, 2), 0.25), [[0.5, 0], [0, 0.5]]) == 0.5
    third = np.full(3, 1 / 3, dtype=np.float32)
    assert total_variation(third, [1, 0, 0]) == pytest.approx(2 / 3, abs=1e-6)


TAKE_AN_ARRAY = [
    lambda values: total_variation(values, [0.5, 0.5]),
    lambda values: average_episode_length(PROCESS, values),
    lambda values: softmax_policy(values),
    lambda values: policy_gradient(PROCESS, values),
    lambda values: policy_gradient(PROCESS, policy=POLICY, score=values),
    lambda values: action_values(PROCESS, POLICY, values),
    lambda values: LearningProcess(PROCESS.transitions, values, PROCESS.initial),
    lambda values: LearningProcess(PROCESS.transitions, PROCESS.rewards, values),
    lambda values: LearningProcess([values], PROCESS.rewards, PROCESS.initial),
    lambda values: LearningProcess.from_mdp(PROCESS.transitions, values, 1, 0),
    lambda values: Perturbation.from_detour(values),
    lambda values: renumber(values, Perturbation(0.5), rng=np.random.default_rng(0)),
]


@pytest.mark.parametrize("function", TAKE_AN_ARRAY)
def test_masks_are_not_lost_in_silence(function):
    with pytest.raises(SteadyrlError, match="is a masked array"):
        function(np.ma.array([0.5, 0.5], mask=[True, False]))


@pytest.mark.parametrize("wrapped", [lambda row: [row, row], lambda row: ([0.5, 0.5], row), lambda row: [[row]]])
def test_masks_inside_lists_are_not_lost_in_silence(wrapped):
    with pytest.raises(SteadyrlError, match="is a masked array"):
        as_numbers("values", wrapped(np.ma.array([0.5, 0.5], mask=[True, False])), SteadyrlError)


@pytest.mark.parametrize("function", TAKE_AN_ARRAY)
def test_gradients_are_not_lost_in_silence(function):
    with pytest.raises(SteadyrlError, match=r"requires grad.*\.detach\(\)\.cpu\(\)\.numpy\(\)"):
        function(TensorWithGradient())


def test_tensors_of_pytorch_are_treated_alike():
    torch = pytest.importorskip("torch")
    assert total_variation(torch.tensor([0.5, 0.5]), [1, 0]) == 0.5
    with pytest.raises(SteadyrlError, match="requires grad"):
        total_variation(torch.tensor([0.5, 0.5], requires_grad=True), [1, 0])


@pytest.mark.parametrize(
    "tolerance",
    [0, -1, 2, np.nan, "0.1", None, True, 1j, np.complex128(0.5), 10**400, pytest.param(10**5000, id="huge")],
)
def test_a_bad_tolerance_is_one_error_everywhere(tolerance):
    for function in (
        check_tolerance,
        lambda value: mixing_time(PROCESS, POLICY, value),
        lambda value: summarise(PROCESS, POLICY, tolerance=value),
    ):
        with pytest.raises(ToleranceError, match="tolerance is"):
            function(tolerance)


@pytest.mark.parametrize("bad", [0, 2.5, "3", None, True, np.True_, [1], 2**63, pytest.param(10**5000, id="huge")])
def test_a_whole_number_is_whole_large_enough_and_fits(bad):
    with pytest.raises(ProcessError, match=r"n is .*whole number"):
        whole_number("n", bad, ProcessError)
    with pytest.raises(SteadyrlError):
        check_level(bad, SteadyrlError)


def test_messages_stay_short_whatever_was_given():
    with pytest.raises(ProcessError) as error:
        uniform_policy(list(range(10**5)))
    assert len(str(error.value)) < 200
    with pytest.raises(SteadyrlError, match="real numbers, not str"):
        as_numbers("values", "x", SteadyrlError)


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("reward", [1e308, -1e308])
def test_returns_beyond_the_largest_number_are_refused(limit, reward):
    process, policy = gallery.corridor(3)
    large = LearningProcess(process.transitions, np.full(4, reward), process.initial)
    if limit is not None:
        large = large.with_time_limit(limit)
    policy = extend_policy(large, policy)
    for function in (action_values, state_values, episode_performance):
        with pytest.raises(AccuracyError, match="rewards as large as 1e\\+308"):
            function(large, policy)
    assert steady_state_performance(large, policy) == pytest.approx(reward)


@pytest.mark.parametrize("given", [None, 3, [1, 2], object()])
def test_what_is_not_an_environment_has_no_model(given):
    with pytest.raises(ProcessError, match="neither a Gymnasium environment nor the id of one"):
        LearningProcess.from_gymnasium(given)


class UnspeakableError(Exception):
    """An error that has no message, only another error."""

    def __str__(self):
        raise RuntimeError("no words")


class Faulty(gymnasium.Env):
    """Raises in one place, as asked for."""

    def __init__(self, place):
        self._place = place
        if place == "constructor":
            raise UnspeakableError

    @property
    def P(self):  # noqa: N802  (Gymnasium's name)
        if self._place == "P":
            raise RuntimeError("no wheels\x1b[2J")
        return {0: {0: [(1.0, 0, 1.0, True)]}}

    @property
    def initial_state_distrib(self):
        return [1.0]

    def close(self):
        raise RuntimeError("cannot be closed")


@pytest.fixture
def faulty():
    """Return the id of an environment that raises where its argument `place` says."""
    gymnasium.register("Faulty-v0", entry_point=Faulty, disable_env_checker=True, order_enforce=False)
    yield "Faulty-v0"
    del gymnasium.registry["Faulty-v0"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("constructor", r"cannot be made \(UnspeakableError: a message that cannot be shown\)"),
        ("P", "RuntimeError: no wheels;"),
    ],
)
def test_an_environment_that_raises_while_its_model_is_read_ends_in_a_sentence(faulty, place, message):
    with pytest.raises(ProcessError, match=message):
        LearningProcess.from_gymnasium(faulty, place=place)


def test_a_model_is_read_though_its_environment_cannot_be_closed(faulty):
    assert LearningProcess.from_gymnasium(faulty, place="close").n_states == 2


@pytest.mark.parametrize("time", [np.timedelta64(3, "s"), np.timedelta64(1)])
def test_times_are_no_whole_numbers_though_numpy_takes_them_for_such(time):
    with pytest.raises(SteadyrlError, match=r"steps is .*timedelta64"):
        marginals(*gallery.corridor(3)[:2], steps=time)
    with pytest.raises(SteadyrlError, match=r"tolerance is .*timedelta64"):
        mixing_time(*gallery.corridor(3)[:2], tolerance=time)


class Broken:
    def __array__(self, *arguments, **options):
        raise KeyError("rows")

    __fspath__ = __array__


def test_an_object_that_fails_to_become_an_array_or_a_name_is_named():
    with pytest.raises(SteadyrlError, match="must be an array of numbers, not Broken"):
        softmax_policy(Broken())
    with pytest.raises(SteadyrlError, match=r"path is .*Broken"):
        LearningProcess.load(Broken())


def test_a_list_that_contains_itself_is_no_array():
    endless = []
    endless.append(endless)
    with pytest.raises(SteadyrlError, match="must be an array of numbers, not list"):
        softmax_policy(endless)
