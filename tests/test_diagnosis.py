"""`diagnose` as a function, on processes whose answer is known, and on files."""

import json
import math
import re

import numpy as np
import pytest

import steadyrl
from steadyrl import (
    EpisodeLengths,
    MissingExtraError,
    average_episode_length,
    batch_distance,
    collect_episodes,
    diagnose,
    diagnose_lengths,
    load_lengths,
    phase_mixing_time,
    renewal_sequence,
)
from steadyrl.diagnosis.collection import concatenate, gather
from steadyrl.diagnosis.mcmc import convergence
from steadyrl.diagnosis.stopping import is_sure
from steadyrl.errors import FileFormatError, LengthsError, RolloutError, ToleranceError
from steadyrl.exact import gallery
from steadyrl.lengths.age_sums import AgeSums
from steadyrl.lengths.files import read_lengths, write_lengths

KEYS = {
    "environment",
    "policy",
    "episodes",
    "average_episode_length",
    "coefficient_of_variation",
    "period",
    "mixing_time",
    "perturbed_mixing_time",
    "seen_ages",
    "recommendation",
    "strategies",
}


def test_json_has_exactly_the_stable_keys_and_never_is_null():
    found = diagnose("steadyrl/StateSweep-v0", episodes=100, backend="serial", num_envs=8, n_steps=4)
    written = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert set(written) == KEYS
    assert written["average_episode_length"] == {"value": 20.0, "low": 20.0, "high": 20.0}
    assert written["coefficient_of_variation"] == 0
    assert written["period"] == 20
    assert written["mixing_time"] == {"steps": None, "episodes": None, "low": None, "high": None}
    assert written["perturbed_mixing_time"]["episodes"] == pytest.approx(2.7)  # the paper: 3 AEL
    assert set(written["perturbed_mixing_time"]) == {"steps", "episodes", "low", "high", "epsilon"}
    assert written["perturbed_mixing_time"]["low"] == written["perturbed_mixing_time"]["high"] == 54  # no doubt
    numbers = {"distance", "one_off_cost", "waste"}
    assert set(written["recommendation"]) == {"strategy", "parameters", "code", "sure", *numbers}
    assert written["recommendation"]["sure"] is True
    assert written["recommendation"]["distance"] < 0.01
    assert written["recommendation"]["waste"] == 0
    assert "StaggeredVectorEnv" in written["recommendation"]["code"]
    assert len(written["strategies"]) == 11


def test_a_finite_process_is_diagnosed_as_the_exact_analysis_says():
    process, policy = gallery.wrong_way(delay=4)
    found = diagnose(process, policy, episodes=2000, backend="serial", seed=2, n_steps=1)
    mean = found.confidence.average_episode_length
    error = (mean.high - mean.low) / (2 * 1.645)
    assert abs(mean.value - average_episode_length(process, policy)) < 4.5 * error  # a false alarm in 150,000
    # T is 2 or 6, half each: period 2
    assert found.lengths.period == 2
    assert found.mixing_time.value == math.inf
    assert found.phase_locked
    assert found.marginals is not None
    assert all(math.isinf(slow.settles) for slow in found.marginals.dimensions[:1])


def test_collecting_goes_on_until_the_mixing_time_is_known_or_the_recommendation_is_sure():
    found = diagnose("CartPole-v1", backend="serial", seed=1)
    sure = is_sure(found.recommendation, found.confidence, found.n_steps)
    assert found.mixing_time.relative_error <= 0.15 or sure  # it stops at 0.1 by 59 resamples; here there are 199
    assert found.episodes < 20_000
    loose = diagnose("CartPole-v1", backend="serial", seed=1, episodes=64)
    assert loose.episodes == 64
    assert "few" in loose.warnings[0]
    short = diagnose("CartPole-v1", backend="serial", max_episodes=100)
    assert short.episodes == 100


def test_the_same_seed_gives_the_same_diagnosis_and_one_policy_for_all_rounds():
    first, second = (
        diagnose("InvertedPendulum-v5", "gaussian", episodes=700, backend="serial", seed=5).as_json() for _ in range(2)
    )
    assert first == second
    # 512 + 188 episodes in two rounds: were the second round another random network, lengths would differ in law.
    parts = gather("InvertedPendulum-v5", "gaussian", lambda lengths: False, at_most=1024, backend="serial", seed=5)
    early, late = parts.lengths[:512], parts.lengths[512:]
    error = math.sqrt(early.var() / 512 + late.var() / 512)
    assert abs(early.mean() - late.mean()) < 4.5 * error  # a false alarm in 150,000


def test_batches_are_averages_over_their_times():
    lengths = EpisodeLengths.from_gymnasium([3, 5, 5, 9])
    n, ends = lengths.longest, renewal_sequence(lengths, 60)
    for update in range(3):
        ages = np.zeros(n + 1)
        for t in range(update * 7 + 1, update * 7 + 8):
            for k in range(1, min(t, n) + 1):
                ages[k] += ends[t - k] * lengths.survival[k] / 7
        stationary = np.append(0, lengths.survival[1:]) / lengths.mean
        expected = 0.5 * np.abs(ages - stationary).sum()
        assert batch_distance(lengths, 7, 3)[update] == pytest.approx(expected, abs=1e-12)
    with pytest.raises(LengthsError, match="n_steps is 0"):
        batch_distance(lengths, 0)


def test_groups_add_up_to_the_sums_of_all_episodes():
    episodes = collect_episodes("CartPole-v1", "uniform", 40, backend="serial", trajectories=True)
    groups = list(AgeSums.split(episodes.lengths, episodes.trajectories.observations, 7))
    assert sum(int(group.count[0]) for group in groups) == 40
    total = np.zeros_like(episodes.ages.total)
    for group in groups:
        total[: len(group.total)] += group.total
    np.testing.assert_allclose(total, episodes.ages.total)
    streams = concatenate(episodes.trajectories, 5)
    np.testing.assert_array_equal(streams[0, : episodes.lengths[0] + 1], episodes.trajectories.of(0)[0])


def test_arviz_sees_copies_that_differ_but_not_copies_in_step():
    rng = np.random.default_rng(0)
    fair = convergence(rng.normal(size=(8, 400, 1)))
    assert fair.r_hat < 1.02
    assert fair.effective_samples > 1500
    apart = convergence(rng.normal(size=(8, 400, 1)) + 3 * np.arange(8)[:, None, None])
    assert apart.r_hat > 1.5
    locked = convergence(np.tile(np.arange(400)[None, :, None] % 20.0, (8, 1, 1)))
    assert locked.r_hat < 1.02  # blind to it, as the docstring says
    assert convergence(np.ones((8, 400, 2))) is None


def test_without_arviz_the_diagnosis_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "arviz", None)
    with pytest.raises(MissingExtraError, match=r"steadyrl\[diagnose\]"):
        convergence(np.ones((8, 400, 2)))
    found = diagnose("CartPole-v1", episodes=100, backend="serial")
    assert found.convergence is None
    assert any("pip install" in text for text in found.warnings)


def test_warnings_name_what_does_not_hold():
    cut = diagnose("MountainCar-v0", episodes=20, backend="serial")
    assert any("time limit cuts 100%" in text for text in cut.warnings)
    odd = diagnose_lengths([3] * 98 + [4] * 2)  # one resample in eight has none of the odd ones: period 4
    assert any("hardly vary" in text for text in odd.warnings)
    wide = diagnose_lengths(np.random.default_rng(0).normal(100, 8, 150).astype(int))
    assert any("too few episodes" in text for text in wide.warnings)


def test_the_number_of_episodes_that_a_warning_asks_for_is_enough():
    rng = np.random.default_rng(2)
    few = diagnose_lengths(rng.geometric(0.1, 300), tolerance=0.05)
    words = next(text for text in few.warnings if "too few episodes" in text)
    wanted = int(re.search(r"about ([\d,]+) episodes", words)[1].replace(",", ""))
    enough = diagnose_lengths(rng.geometric(0.1, wanted), tolerance=0.05)
    assert enough.mixing_time.relative_error <= 0.13  # an error is itself known to a quarter or so


def test_code_that_needs_lengths_brings_them():
    found = diagnose("steadyrl/StateSweep-v0", episodes=30, backend="serial", seed=3)
    assert found.code == found.recommendation.code == "envs = steadyrl.StaggeredVectorEnv(envs)"  # needs none
    designed = found.recommendation["stagger"]
    first, second = found.code_of(designed).splitlines()
    scope = {"steadyrl": steadyrl}
    exec(first, scope)
    np.testing.assert_array_equal(scope["lengths"].probabilities, found.lengths.probabilities)
    assert second == designed.code
    assert found.as_json()["recommendation"]["code"] == found.code
    by_name = {way["strategy"]: way["code"] for way in found.as_json()["strategies"]}
    assert by_name["pre-roll"].splitlines()[1].startswith("observations, infos = steadyrl.pre_roll(envs, ")
    assert by_name["burn-in"] == "# no burn-in is long enough"


def test_lengths_are_written_so_that_they_can_be_read_again(tmp_path):
    lengths = np.random.default_rng(0).integers(0, 40, 77)
    exact = EpisodeLengths.from_gymnasium(lengths)
    write_lengths(exact, 77, tmp_path / "lengths.txt")
    np.testing.assert_array_equal(read_lengths(tmp_path / "lengths.txt").lengths, np.sort(lengths))
    np.testing.assert_array_equal(load_lengths(tmp_path / "lengths.txt").probabilities, exact.probabilities)


def test_an_environment_with_bad_numbers_is_named():
    import gymnasium

    class Bad(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(1, dtype=np.float32), {}

        def step(self, action):
            self.steps += 1
            value = np.nan if self.always or self.np_random.random() < 0.01 else 0.5
            return np.array([value], dtype=np.float32), 0.0, self.steps == 5 + int(action), False, {}

    Bad.always = False
    found = diagnose(Bad, episodes=120, backend="serial")
    assert any("failed and were left out" in text for text in found.warnings)
    Bad.always = True
    with pytest.raises(RolloutError, match="not one episode"):
        diagnose(Bad, episodes=5, backend="serial")


LENGTHS = [12, 15, 11, 19, 30, 12]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lengths.txt", "12\n15\n11\n\n19\n30\n12\n"),
        ("line.txt", "12 15 11 19 30 12"),
        ("plain.csv", "12,15,11,19,30,12\n"),
        ("column.csv", "return,length\n" + "".join(f"1.5,{n}\n" for n in LENGTHS)),
        (
            "0.monitor.csv",
            '#{"t_start": 1.0, "env_id": "Hopper-v5"}\nr,l,t\n' + "".join(f"3.2,{n},9\n" for n in LENGTHS),
        ),
    ],
)
def test_lengths_are_read_from_text_csv_and_monitor_files(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    found = read_lengths(tmp_path / name)
    assert found.lengths.tolist() == LENGTHS
    assert found.environment == ("Hopper-v5" if "monitor" in name else name)


def test_lengths_are_read_from_arrays_and_saved_episodes(tmp_path):
    np.save(tmp_path / "lengths.npy", np.array(LENGTHS))
    assert read_lengths(tmp_path / "lengths.npy").lengths.tolist() == LENGTHS
    episodes = collect_episodes("CartPole-v1", "uniform", 200, backend="serial")
    episodes.save(tmp_path / "episodes.npz")
    found = read_lengths(tmp_path / "episodes.npz")
    np.testing.assert_array_equal(found.lengths, episodes.lengths)
    assert (found.environment, found.policy, len(found.groups)) == ("CartPole-v1", "uniform", 1)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "no lengths"),
        ("a.txt", b"12\nlong\n", "not a list of lengths"),
        ("a.txt", b"12\n-3\n", r"lengths\[1\] is -3"),
        ("a.txt", b"12\n3.5\n", r"lengths\[1\] is 3.5"),
        ("a.txt", b"12\nnan\n", r"lengths\[1\] is nan"),
        ("a.txt", b"\xff\xfe\x00", "not a text file"),
        ("a.csv", b"l,r\n12,1\n,\n", "not a list of lengths"),
        ("a.csv", b"1e15,3\n", "cannot be a length"),
        ("a.npy", b"\x93NUMPY broken", "not an array"),
        ("a.npz", b"PK broken", "not a file that steadyrl wrote"),
    ],
)
def test_files_that_hold_no_lengths_are_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=words):
        read_lengths(tmp_path / name)
    with pytest.raises(FileFormatError, match="is not a file"):
        read_lengths(tmp_path / "missing.txt")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tolerance": 0}, "tolerance is 0"),
        ({"episodes": 0}, "episodes is 0"),
        ({"num_envs": -1}, "num_envs is -1"),
        ({"n_steps": 1.5}, "n_steps is 1.5"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_collected(arguments, words):
    with pytest.raises(LengthsError if "tolerance" not in arguments else ToleranceError, match=words):
        diagnose("NoSuchEnvironment-v0", **arguments)


def test_plain_lengths_give_the_plain_formulas():
    lengths = np.random.default_rng(3).integers(8, 30, 1000)
    found = diagnose_lengths(lengths, tolerance=0.02)
    exact = EpisodeLengths.from_gymnasium(lengths)
    assert found.confidence.mixing_time.value == phase_mixing_time(exact, 0.02)
    assert found.mixing_time.low <= found.mixing_time.value <= found.mixing_time.high
    assert found.as_json()["average_episode_length"]["value"] == exact.mean
    assert found.marginals is None
