"""MuJoCo Playground: its installed configurations, and a task of it, staggered."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from steadyrl.cli.audit_config import as_dict
from steadyrl.diagnosis.trainer_schedule import playground_schedules
from steadyrl.errors import TrainingError

pytest.importorskip("mujoco_playground")
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def test_the_committed_table_is_that_of_the_installed_configurations():
    committed = json.loads((RESULTS / "playground_configs.json").read_text())
    if version("playground") != committed["versions"]["playground"]:
        pytest.skip("another version of MuJoCo Playground is installed")
    assert {name: as_dict(found) for name, found in playground_schedules()} == committed["tasks"]


def test_an_unknown_task_is_refused_with_those_that_there_are():
    with pytest.raises(TrainingError, match=r"'Go2' is not a task.*Go1Getup"):
        list(playground_schedules(["Go2"]))
