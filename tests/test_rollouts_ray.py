"""Ray: a real cluster of two nodes, one of which goes away."""

import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray

from scripted import Dice, Faulty, NodeDice, OneRaisesOneHangs, same
from steadyrl import collect_episodes
from steadyrl.errors import EnvironmentRaisedError, RolloutError, StepTimeoutError
from steadyrl.rollouts import ray_tasks

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.second = nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.parametrize(
    ("error", "address", "words"),
    [
        (
            ValueError("Invalid address format: foo"),
            "foo",
            r"cannot be reached at the address 'foo' \(ValueError: .*host",
        ),
        (Exception("timed out"), None, r"Ray did not start \(Exception: timed out\)"),
    ],
)
def test_a_ray_that_cannot_be_started_is_said_in_a_sentence(monkeypatch, error, address, words):
    def init(**options):
        raise error

    monkeypatch.setattr(ray_tasks, "import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=init))
    with pytest.raises(RolloutError, match=words):
        collect_episodes("CartPole-v1", "uniform", 4, backend="ray", address=address)


def test_sigterm_while_ray_starts_is_an_interrupt(monkeypatch):
    def init(**options):  # as Ray does
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray_tasks, "import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=init))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            collect_episodes("CartPole-v1", "uniform", 4, backend="ray")
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_two_nodes_give_the_bytes_of_this_process(cluster):
    for environment, policy, episodes in (("CartPole-v1", "uniform", 300), ("HumanoidBulletEnv-v0", "gaussian", 16)):
        collect = partial(collect_episodes, environment, policy, episodes, seed=3, block_size=episodes // 4)
        assert same(collect(backend="serial"), collect(backend="ray", address=cluster.address))


def test_an_error_on_a_node_names_the_place(cluster):
    with pytest.raises(EnvironmentRaisedError, match=r"gripper is stuck.*episode seed \d+, step 5"):
        collect_episodes(partial(Faulty, "raise"), "uniform", 100, seed=5, block_size=10, backend="ray")


def test_a_hang_on_a_node_is_stopped(cluster):
    with pytest.raises(StepTimeoutError, match="step 5"):
        collect_episodes(partial(Faulty, "hang"), "uniform", 40, seed=5, block_size=20, backend="ray", step_timeout=2.0)


def test_an_error_ends_the_run_but_not_the_process_nor_leaves_work(cluster, tmp_path):
    # Blocks that end at the very moment at which another fails: cancelled through Ray, they aborted this process, once
    # in some hundred runs. And a block that would go on for an hour is given up.
    for k in range(10):
        with pytest.raises(EnvironmentRaisedError):
            collect_episodes(partial(Faulty, "raise", 1), "uniform", 40, seed=k, block_size=1 + k, backend="ray")
    busy = tmp_path / "busy"
    with pytest.raises(EnvironmentRaisedError, match="left hand"):
        collect_episodes(partial(OneRaisesOneHangs, str(busy)), "uniform", 2, seed=1, block_size=1, backend="ray")
    deadline = time.monotonic() + 60
    while running(int(busy.read_text())) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not running(int(busy.read_text()))


def running(pid):
    """Whether a process is there, and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_node_removed_in_mid_run_costs_nothing_but_time(cluster, tmp_path):
    # The last test: the cluster has one node afterwards.
    notes = tmp_path / "nodes"
    notes.touch()
    removed = []

    def remove():
        deadline = time.monotonic() + 60
        while len(set(notes.read_text().split())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # in the middle of its block
        cluster.remove_node(cluster.second, allow_graceful=False)
        removed.append(time.monotonic())

    thread = threading.Thread(target=remove)
    thread.start()
    make = partial(NodeDice, 0.005, str(notes))
    episodes = collect_episodes(make, "uniform", 160, seed=6, block_size=20, backend="ray")
    finished = time.monotonic()
    thread.join()
    assert len(set(notes.read_text().split())) == 2
    assert removed[0] < finished
    here = collect_episodes(Dice, "uniform", 160, seed=6, block_size=20, backend="serial")
    for name in ("lengths", "returns", "seeds"):
        np.testing.assert_array_equal(getattr(episodes, name), getattr(here, name))
    np.testing.assert_array_equal(episodes.ages.total, here.ages.total)
