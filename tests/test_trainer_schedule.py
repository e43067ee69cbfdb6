"""`steadyrl audit-config`: which ages a PPO configuration trains on, against a loop that is brax's, written out."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from steadyrl.cli import app
from steadyrl.cli.audit_config import as_dict
from steadyrl.diagnosis.trainer_schedule import TrainerSchedule, from_config, plot_schedules
from steadyrl.errors import TrainingError

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
GO1 = {
    "num_timesteps": 200_000_000,
    "num_envs": 8192,
    "episode_length": 1000,
    "unroll_length": 20,
    "batch_size": 256,
    "num_minibatches": 32,
    "num_evals": 10,
    "num_resets_per_eval": 10,
}


def ages_trained_on(schedule):
    """Run through the loops of brax's train function with one environment whose episodes last until the time limit."""
    per_update = schedule.batch_size * schedule.unroll_length * schedule.num_minibatches * schedule.action_repeat
    evals, resets = max(schedule.num_evals - 1, 1), max(schedule.num_resets_per_eval, 1)
    updates = int(np.ceil(schedule.num_timesteps / (evals * per_update * resets)))
    seen, together, counter, time = set(), [], 0, 0
    for _ in range(evals * resets):
        for _ in range(updates * (schedule.batch_size * schedule.num_minibatches // schedule.num_envs)):
            for _ in range(schedule.unroll_length):
                seen.add(counter // schedule.action_repeat + 1)
                counter += schedule.action_repeat
                counter = 0 if counter >= schedule.episode_length else counter
                time += 1
        if schedule.num_resets_per_eval:
            counter = 0
            together.append(time)
    return seen, together, time


@pytest.mark.parametrize("seed", range(25))
def test_the_ages_are_those_of_the_loop_written_out(seed):
    rng = np.random.default_rng(seed)
    num_envs = int(rng.integers(1, 9))
    schedule = TrainerSchedule(
        num_timesteps=int(rng.integers(1, 4000)),
        num_envs=num_envs,
        episode_length=int(rng.integers(1, 60)),
        unroll_length=int(rng.integers(1, 6)),
        batch_size=num_envs * int(rng.integers(1, 3)),
        num_minibatches=int(rng.integers(1, 4)),
        num_evals=int(rng.integers(0, 4)),
        num_resets_per_eval=int(rng.integers(0, 3)),
        action_repeat=int(rng.integers(1, 4)),
    )
    seen, together, time = ages_trained_on(schedule)
    assert seen == set(range(1, schedule.oldest_age + 1))
    assert schedule.run_steps == time
    if together:
        assert schedule.reset_every == together[0]
    else:
        assert schedule.reset_every is None
    assert schedule.reset_before_an_end == (
        bool(together) and together[0] < math.ceil(schedule.episode_length / schedule.action_repeat)
    )


def test_go1_is_reset_at_step_280_of_1000():
    schedule = from_config({**GO1, "learning_rate": 3e-4})
    assert (schedule.update_steps, schedule.reset_every, schedule.oldest_age) == (20, 280, 280)
    assert "every 280 steps" in schedule.message
    assert "ages 281 to 1,000 are never trained on: 72% of an episode" in schedule.message
    assert "num_resets_per_eval=0" in schedule.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_resets_per_eval": 0}, "reset together once, at the start. All 1,000 ages are trained on."),
        ({"num_resets_per_eval": 1, "num_evals": 20}, "ages 1 to 300 are 2 times as often"),
        ({"num_resets_per_eval": 0, "num_timesteps": 1}, "ages 181 to 1,000 are never trained on"),
    ],
)
def test_other_settings_are_put_into_words(changes, words):
    message = from_config(GO1 | changes).message
    assert words in message
    assert "num_resets_per_eval=0" not in message


def test_the_command_works_without_playground(tmp_path):
    options = [part for name, value in GO1.items() for part in ("--" + name.replace("_", "-"), str(value))]
    result = CliRunner().invoke(app, ["audit-config", *options, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.output)["this configuration"] == as_dict(from_config(GO1))
    picture = tmp_path / "ages.svg"
    result = CliRunner().invoke(app, ["audit-config", *options, "--plot", str(picture)])
    assert "never trained on" in " ".join(result.output.split())
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_envs": 8191}, "num_envs = 8,191 does not divide"),
        ({"episode_length": 0}, "episode_length is 0"),
        ({"num_evals": -1}, "num_evals is -1"),
    ],
)
def test_what_brax_would_refuse_is_refused_with_the_reason(changes, words):
    with pytest.raises(TrainingError, match=words):
        from_config(GO1 | changes)


def test_numbers_that_are_missing_are_named():
    with pytest.raises(TrainingError, match=r"--num-timesteps, --episode-length not given"):
        CliRunner().invoke(app, ["audit-config", "--num-envs", "8"], catch_exceptions=False)


def test_the_committed_table_follows_from_its_settings(tmp_path):
    committed = json.loads((RESULTS / "playground_configs.json").read_text())
    tasks = {name: from_config(found) for name, found in committed["tasks"].items()}
    assert {name: as_dict(found) for name, found in tasks.items()} == committed["tasks"]
    assert committed["configurations"] == len(tasks) == 54
    assert committed["reset_before_an_end"] == sum(found.reset_before_an_end for found in tasks.values()) == 40
    plot_schedules(tasks, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").stat().st_size > 10_000


@pytest.mark.parametrize("resets", [0, 10])
def test_a_run_that_is_shorter_than_an_episode_is_not_told_to_stagger(resets):
    message = TrainerSchedule(10_000, 100, 1000, batch_size=100, num_minibatches=1, num_resets_per_eval=resets).message
    assert "The whole run has 100 steps of each environment, less than an episode" in message
    assert "stagger the" not in message.lower()
