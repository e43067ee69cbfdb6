"""`diagnose` says how much of the age shows in an observation, and never more than the study of learning has shown."""

import json
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import steadyrl
from steadyrl import diagnose, diagnose_lengths
from steadyrl.diagnosis import result, seen_ages, wording
from steadyrl.diagnosis.analysis import analyse
from steadyrl.diagnosis.report import render
from steadyrl.diagnosis.seen_ages import sample_steps
from steadyrl.lengths.records import EpisodeRecords


class Clock(gymnasium.Env):
    """Episodes of forty steps whose observations are the age, or noise."""

    def __init__(self, shows, width=1):
        self.observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float64)
        self.action_space = spaces.Discrete(2)
        self._shows, self._width = shows, width

    def _observation(self):
        value = self._shows(self._age, self.np_random)
        return np.full(self._width, value, dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._age = 1
        return self._observation(), {}

    def step(self, action):
        self._age += 1
        return self._observation(), 0.0, False, self._age > 40, {}


def found_for(shows, **options):
    return diagnose(lambda: Clock(shows, **options), episodes=60, backend="serial")


def test_an_observation_that_is_the_age_tells_it_and_noise_does_not():
    told = found_for(lambda age, rng: age).seen_ages
    assert told.accuracy > 0.95  # between groups there is a threshold to be learnt
    assert told.distance.value == pytest.approx(told.bound, abs=0.02)
    # Noise: accuracies of 2,400 guesses have a standard error of 0.007, and 0.03 is four of them: once in 30,000.
    blind = found_for(lambda age, rng: rng.normal()).seen_ages
    assert abs(blind.accuracy - blind.chance) < 0.03
    assert abs(blind.distance.value) < 0.05


def test_the_sample_is_of_the_steps_of_episodes_with_their_ages_and_without_terminal_observations():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 400)  # more than 6,000 steps
    number = np.repeat(np.arange(400), lengths + 1)
    age = np.concatenate([np.arange(1, n + 2) for n in lengths])
    rows, ages, episodes = sample_steps(lengths, np.stack([number, age], axis=1).astype(float), rng=rng)
    assert len(rows) == 6000
    np.testing.assert_array_equal(rows[:, 0], episodes)
    np.testing.assert_array_equal(rows[:, 1], ages)
    assert (ages <= lengths[episodes]).all()
    assert len(np.unique(rows, axis=0)) == 6000


def test_screen_report_and_json_have_the_number():
    found = found_for(lambda age, rng: age)
    rows = dict(wording.rows(found))
    seen = found.seen_ages
    assert rows["age observed"].startswith(f"{seen.accuracy:.0%} told right (chance {seen.chance:.0%}); distance ")
    assert rows["age observed"].endswith(f"ages {seen.bound:.0%}")
    assert f"is right for {seen.accuracy:.1%} of them" in render(found)
    written = json.loads(json.dumps(found.as_json(), allow_nan=False))["seen_ages"]
    assert written["accuracy"] == seen.accuracy
    assert written["distance"]["low"] <= written["distance"]["value"] <= written["bound"] + 1e-9
    assert written["study"] == seen_ages.STUDY


def test_the_same_seed_gives_the_same_bytes():
    first, second = (json.dumps(diagnose("CartPole-v1", episodes=40, seed=3, backend="serial").as_json()) for _ in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("study", "shows", "expected", "said"),
    [
        ("incomplete", lambda age, rng: age, None, "nobody can tell yet, the study goes on (docs/evidence.md)"),
        ("no", lambda age, rng: age, None, "nobody can tell; on most tasks no difference was found (docs/evidence.md)"),
        ("yes", lambda age, rng: age, "yes", "yes, by the distance of observations (docs/evidence.md)"),
        ("yes", lambda age, rng: rng.normal(), "no", "no, by the distance of observations (docs/evidence.md)"),
    ],
)
def test_what_is_expected_follows_the_verdict_of_the_study(monkeypatch, study, shows, expected, said):
    for module in (seen_ages, result, wording):
        monkeypatch.setattr(module, "STUDY", study)
    found = found_for(shows)
    assert found.recommendation.strategy != "nothing"  # episodes of one length stay in lockstep
    assert found.expected_to_matter == expected
    assert dict(wording.rows(found))["expected to matter"] == said


def test_where_nothing_needs_to_be_done_nothing_is_expected_to_matter():
    found = diagnose("steadyrl/StateSweep-v0", episodes=40, num_envs=1, backend="serial")
    assert found.recommendation.strategy == "nothing"
    assert found.expected_to_matter == "no"


def test_without_scikit_learn_the_rest_of_the_diagnosis_is_there_and_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    found = found_for(lambda age, rng: age)
    assert found.seen_ages is None
    assert found.as_json()["seen_ages"] is None
    assert found.mixing_time.value == np.inf
    assert 'pip install "steadyrl[diagnose]"' in dict(wording.rows(found))["age observed"]
    assert dict(wording.rows(found))["expected to matter"].startswith("nobody can tell")
    monkeypatch.setattr(wording, "STUDY", "yes")
    assert "without the distance of observations" in dict(wording.rows(found))["expected to matter"]


def test_what_cannot_be_searched_is_left_out_with_a_reason():
    wide = found_for(lambda age, rng: age, width=1001)
    assert "1,001 values" in dict(wording.rows(wide))["age observed"]
    ages = np.tile(np.arange(1, 41), 60)
    aged = (np.where(ages == 7, np.inf, ages)[:, None], ages, np.repeat(np.arange(60), 40))
    records = EpisodeRecords("clock", "uniform", np.full(60, 40), aged=aged)
    odd = analyse(records, rng=np.random.default_rng(0))
    assert "infinite" in dict(wording.rows(odd))["age observed"]
    assert odd.seen_ages is None
    log = diagnose_lengths([19, 199] * 200)
    assert log.seen_ages is None
    assert "age observed" not in dict(wording.rows(log))


def test_numbers_beyond_32_bits_are_no_obstacle():
    ages = np.tile(np.arange(1, 41), 60)
    found = seen_ages.seen_ages(1e300 * ages[:, None], ages, np.repeat(np.arange(60), 40))
    assert found is not None


def test_a_discrete_and_a_finite_process_are_searched_too():
    found = diagnose("steadyrl/StateSweep-v0", episodes=40, backend="serial")
    assert found.seen_ages.accuracy > 0.9  # the state is the age
    process = steadyrl.LearningProcess.from_gymnasium("FrozenLake-v1", time_limit=None)
    assert diagnose(process, "uniform", episodes=100, backend="serial").seen_ages is not None
