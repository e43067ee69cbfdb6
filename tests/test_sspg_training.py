"""The trainer: it learns, it is reproducible to the byte, it survives being killed, and it says what is wrong."""

import csv
import functools
import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import register, registry

from steadyrl import Settings, collect_episodes, evaluate, train
from steadyrl.common.storage import load_arrays, save_arrays
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import as_source, describe
from steadyrl.errors import PolicyError, RolloutError, TrainingError
from steadyrl.exact import gallery
from steadyrl.policies.files import load_policy
from steadyrl.policies.modules import SoftmaxTable, make_policy
from steadyrl.sspg.online import OnlineSampler
from steadyrl.sspg.returns import lambda_advantages

FILES = ("checkpoint.npz", "policy.safetensors", "history.csv")


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


SMALL = {"num_envs": 4, "n_steps": 8, "backend": "serial"}


@pytest.mark.parametrize("environment", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1"])
def test_the_same_seed_gives_the_same_bytes(tmp_path, environment):
    arguments = {"max_episode_steps": 30}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        settings = Settings(updates=12, seed=seed, **SMALL)
        train(environment, settings, out=tmp_path / name, make_arguments=arguments)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")["policy.safetensors"] != contents(tmp_path / "c")["policy.safetensors"]


@pytest.mark.parametrize("method", ["online", "fresh"])
def test_a_resumed_run_gives_the_same_bytes(tmp_path, method):
    # restart_every: copies are made anew before, between and after the interruptions
    how = {"method": method, "restart_every": 200, "diagnosis_episodes": 40, **SMALL}
    how |= {"num_envs": 100, "n_steps": 1} if method == "fresh" else {}
    settings = Settings(updates=25 if method == "online" else 6, **how)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train("CartPole-v1", settings, out=whole)
    for stop in (1, 4, 17) if method == "online" else (1, 3):
        with pytest.raises(StopHereError):
            train("CartPole-v1", settings, out=parts, resume=parts.exists(), after_update=Stop(stop))
    train("CartPole-v1", settings, out=parts, resume=True)
    assert contents(parts) == contents(whole)


class StopHereError(Exception):
    pass


class Stop:
    """Writes a checkpoint at an update, runs on for a moment, and dies: what came after is lost."""

    def __init__(self, update):
        self.update = update

    def __call__(self, progress):
        if progress.update == self.update:
            import gc

            runs = [r for r in gc.get_objects() if type(r).__name__ == "Run" and hasattr(r, "learner")]
            run = next(r for r in runs if r.learner.policy is progress.policy)
            run.save()
        if progress.update == self.update + 1:
            raise StopHereError


@pytest.mark.slow
def test_killed_at_a_random_moment_it_goes_on_to_the_same_bytes(tmp_path):
    options = ["--updates", "80", "--num-envs", "4", "--n-steps", "16", "--backend", "serial"]
    options += ["--checkpoint-every", "0.02"]
    command = [sys.executable, "-m", "steadyrl", "train", "CartPole-v1", *options, "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True, timeout=120)
    out = tmp_path / "killed"
    rng = np.random.default_rng(3)
    resume = []
    for _ in range(2):
        with subprocess.Popen([*command, str(out), *resume], stderr=subprocess.DEVNULL) as process:
            wait_for(out / "history.csv", lines=len(resume) * 25 + 2 + int(rng.integers(20)), process=process)
            time.sleep(float(rng.uniform(0, 0.05)))
            process.kill()
        resume = ["--resume"]
    done = subprocess.run([*command, str(out), "--resume"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "resumed at update" in done.stderr
    assert contents(out) == contents(tmp_path / "whole")


def wait_for(path, *, lines, process):
    for _ in range(6000):
        if path.exists() and path.read_text().count("\n") > lines:
            return
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    raise AssertionError("it never got there")


def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(tmp_path):
    command = [
        sys.executable,
        "-m",
        "steadyrl",
        "train",
        "CartPole-v1",
        "--out",
        str(tmp_path / "run"),
        "--num-envs",
        "4",
    ]
    command += ["--backend", "serial", "--steps", "100000000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(tmp_path / "run" / "history.csv", lines=0, process=process)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "repeat with --resume" in said
    assert "Traceback" not in said
    with open(tmp_path / "run" / "history.csv") as file:
        assert len(list(csv.DictReader(file))) > 0


def test_it_learns_cartpole():
    settings = Settings(steps=40_000, num_envs=8, backend="serial", seed=1)
    trained = train("CartPole-v1", settings)
    found = evaluate("CartPole-v1", trained.policy, 50, deterministic=True, backend="serial")
    assert found.mean_return.value > 300  # uniform: 22
    assert trained.history["average_episode_length"][-1] > 100


def test_fresh_and_monte_carlo_learn_too():
    process, _ = gallery.two_terminals(win=1.0, loss=0.0)
    for how in (
        {"method": "fresh", "updates": 25, "num_envs": 200, "diagnosis_episodes": 50},
        {"returns": "monte-carlo", "updates": 25, "num_envs": 16, "n_steps": 16},
    ):
        settings = Settings(learning_rate=0.03, backend="serial", **how)
        trained = train(process.with_time_limit(6), settings)
        assert trained.history["return"][0] < 0.7
        assert evaluate(process.with_time_limit(6), trained.policy, 200, backend="serial").mean_return.value > 0.9


def test_the_factor_is_felt_by_sgd_and_not_by_adam():
    lengths = {}
    for optimiser in ("sgd", "adam"):
        for factor in (True, False):
            how = {"optimiser": optimiser, "learning_rate": 1e-5, "learning_rate_decay": "none", "baseline": "none"}
            settings = Settings(updates=1, episode_length_factor=factor, normalise_observations=False, **SMALL, **how)
            trained = train("CartPole-v1", settings)
            moved = torch.cat([p.detach().ravel() for p in trained.policy.parameters()])
            lengths[optimiser, factor] = moved.double().numpy(), trained.history["average_episode_length"][0]
    start = first_weights()
    with_it, length = lengths["sgd", True]
    ratio = np.linalg.norm(with_it - start) / np.linalg.norm(lengths["sgd", False][0] - start)
    assert ratio == pytest.approx(length - 1, rel=0.01)
    ratio = np.linalg.norm(lengths["adam", True][0] - start) / np.linalg.norm(lengths["adam", False][0] - start)
    assert ratio == pytest.approx(1, rel=0.01)


def first_weights():
    env = gymnasium.make("CartPole-v1")
    policy = make_policy(observation_codec(env.observation_space), action_codec(env.action_space), seed=0)
    return torch.cat([p.detach().ravel() for p in policy.parameters()]).double().numpy()


def test_lambda_returns_by_their_definition():
    rng = np.random.default_rng(0)
    n, copies, trace = 12, 3, 0.8
    rewards, values = rng.normal(size=(n, copies)), rng.normal(size=(n + 1, copies))
    ends, cuts = rng.random((n, copies)) < 0.2, rng.random((n, copies)) < 0.1
    found = lambda_advantages(rewards, values, ends, ends | cuts, trace)
    for k in range(copies):
        for t in range(n):
            total, weight = 0.0, 1.0
            for u in range(t, n):
                total += weight * (rewards[u, k] + (0 if ends[u, k] else values[u + 1, k]) - values[u, k])
                if ends[u, k] or cuts[u, k]:
                    break
                weight *= trace
            assert found[t, k] == pytest.approx(total)


@pytest.mark.parametrize(("truncation", "beyond"), [("terminal", 0.0), ("bootstrap", 7.0)])
def test_a_time_limit_is_an_end_or_is_bootstrapped(truncation, beyond):
    source = as_source(Clock)
    found = describe(source)
    seen, acted = observation_codec(found.observation_space), action_codec(found.action_space)
    settings = Settings(num_envs=2, n_steps=12, truncation=truncation, trace=1.0, cure="none", backend="serial")
    sampler = OnlineSampler(source, found, seen, acted, settings.resolved(continuous=False))
    batch = sampler.draw(make_policy(seen, acted), 0)
    sampler.close()
    returns, advantages = batch.returns(np.full(len(batch.observations), 7.0))
    # Two whole episodes of five actions, each followed by a reset that is left out.
    to_go = np.repeat(np.tile([5.0, 4.0, 3.0, 2.0, 1.0], 2), 2) + beyond
    np.testing.assert_allclose(returns, to_go, rtol=1e-6)
    np.testing.assert_allclose(advantages, to_go - 7.0, rtol=1e-6)
    assert len(batch.actions) == len(to_go)
    assert batch.average_episode_length == 6
    assert batch.mean_return == pytest.approx(5)


class Clock(gymnasium.Env):
    """A reward of 1 for each of five actions; then time is up."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps / 5, np.float32), 1.0, False, self.steps == 5, {}


@pytest.mark.parametrize(
    ("one", "other"), [({"backend": "serial"}, {"backend": "processes"}), ({"workers": 1}, {"workers": 2})]
)
def test_the_policy_does_not_depend_on_who_steps_the_copies(tmp_path, one, other):
    for name, how in (("one", one), ("other", other)):
        train("CartPole-v1", Settings(updates=8, num_envs=4, n_steps=8, **how), out=tmp_path / name)
    policies = [(tmp_path / name / "policy.safetensors").read_bytes() for name in ("one", "other")]
    assert policies[0] == policies[1]


# What goes wrong


class Poisoned(gymnasium.Env):
    """Returns a NaN after some steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, where="observation"):
        self.where, self.steps = where, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        bad = self.steps > 60
        seen = np.full(2, np.nan if bad and self.where == "observation" else 0.5, np.float32)
        reward = np.nan if bad and self.where == "reward" else 1.0
        return seen, reward, self.steps % 7 == 0, False, {}


if "tests/Poisoned-v0" not in registry:
    register("tests/Poisoned-v0", Poisoned)


@pytest.mark.parametrize("where", ["observation", "reward"])
def test_a_nan_stops_with_the_update_and_keeps_the_last_good_checkpoint(tmp_path, where):
    settings = Settings(updates=50, checkpoint_every=1e-9, **SMALL)
    with pytest.raises(TrainingError, match=r"update (8|9): .* not finite.*last good checkpoint") as raised:
        train("tests/Poisoned-v0", settings, out=tmp_path / "run", make_arguments={"where": where})
    with open(tmp_path / "run" / "history.csv") as file:
        assert f"update {len(list(csv.DictReader(file))) + 1}:" in str(raised.value)


def test_a_learning_rate_that_explodes_is_an_error_too():
    settings = Settings(updates=400, optimiser="sgd", learning_rate=1e38, learning_rate_decay="none", **SMALL)
    with pytest.raises(TrainingError, match=r"update \d+: "):
        train("Pendulum-v1", settings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be a number, positive"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"critic_learning_rate": -1.0}, "critic_learning_rate is -1.0"),
        ({"trace": 1.5}, "trace is 1.5"),
        ({"optimiser": "adm"}, "'adam' or 'sgd'"),
        ({"num_envs": 0}, "num_envs is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"steps": "abc"}, "steps is 'abc'"),
        ({"steps": None}, "neither steps nor updates"),
        ({"method": "fresh", "truncation": "bootstrap"}, "'fresh'"),
        ({"backend": "ray"}, "one machine"),
        ({"device": "abacus"}, "device is 'abacus'"),
        ({"device": torch.device("cpu")}, "device is device"),
        ({"device": b"cpu"}, "device is b'cpu'"),
        ({"address": 6379}, "address is 6379"),
        ({"restart_every": None}, "restart_every is None"),
        ({"diagnosis_episodes": None}, "diagnosis_episodes is None"),
        ({"returns": "monte-carlo", "truncation": "bootstrap"}, "monte-carlo"),
    ],
)
def test_bad_settings_are_refused(options, words):
    with pytest.raises(TrainingError, match=words):
        train("CartPole-v1", Settings(**options))


def test_numbers_of_every_kind_are_kept_in_a_checkpoint(tmp_path):
    """A Fraction trained, and then the checkpoint could not be written, so all was lost."""
    settings = Settings(updates=1, learning_rate=Fraction(1, 1000), trace=np.longdouble(0.5), **SMALL)
    train("CartPole-v1", settings, out=tmp_path / "run")
    assert (settings.learning_rate, settings.trace) == (0.001, 0.5)


def test_settings_that_are_no_settings_are_refused():
    with pytest.raises(TrainingError, match="settings are dict"):
        train("CartPole-v1", {"steps": 3})


def test_unknown_environments_and_policies_that_do_not_fit_are_refused_before_anything_is_run(tmp_path):
    with pytest.raises(RolloutError, match="Did you mean"):
        train("CartPol-v1", out=tmp_path / "run")
    train("CartPole-v1", Settings(updates=1, **SMALL), out=tmp_path / "cartpole")
    policy = tmp_path / "cartpole" / "policy.safetensors"
    with pytest.raises(PolicyError, match="trained on CartPole-v1"):
        train("Acrobot-v1", policy=policy, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(PolicyError, match="6 observed values"):
        evaluate("Acrobot-v1", load_cartpole_policy(policy), 2)


def load_cartpole_policy(path):
    described = describe(as_source("CartPole-v1"))
    return load_policy(path, observation_codec(described.observation_space), action_codec(described.action_space))


class Seen(gymnasium.Env):
    """Observations of any space; an action of 1 is paid."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.left = 5
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), float(action), self.left == 0, False, {}


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((spaces.Discrete(4, start=2), spaces.Box(-1, 1, (2, 2)))),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
        spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,))}),
        spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Box(-1, 1, (1, 3))}),
        spaces.Text(4),
    ],
    ids=["tuple", "multidiscrete", "multibinary", "dict", "boxes", "text"],
)
def test_any_observation_that_can_be_flattened_can_be_learnt_from(space, backend):
    settings = Settings(updates=3, num_envs=3, n_steps=7, backend=backend, workers=1)
    trained = train(functools.partial(Seen, space), settings)
    assert trained.policy.observations.size == gymnasium.spaces.utils.flatdim(space)


def test_a_batch_of_observations_is_read_as_one_at_a_time():
    space = spaces.Tuple((spaces.Discrete(4, start=2), spaces.Dict({"x": spaces.MultiDiscrete([2, 3])})))
    codec, batched = observation_codec(space), gymnasium.vector.utils.batch_space(space, 6)
    batch = batched.sample()
    rows, expected = np.empty((6, codec.width)), np.empty((6, codec.width))
    codec.rows(batch, rows)
    for row, observation in zip(expected, gymnasium.vector.utils.iterate(batched, batch), strict=True):
        codec.writer()(row, observation)
    np.testing.assert_array_equal(rows, expected)


def test_checkpoints_of_another_environment_or_other_settings_are_refused(tmp_path):
    out = tmp_path / "run"
    settings = Settings(updates=2, **SMALL)
    with pytest.raises(TrainingError, match="nothing to resume"):
        train("CartPole-v1", settings, out=out, resume=True)
    train("CartPole-v1", settings, out=out)
    with pytest.raises(TrainingError, match="holds a run already"):
        train("CartPole-v1", settings, out=out)
    with pytest.raises(TrainingError, match="is of a run on CartPole-v1, and this is Acrobot-v1"):
        train("Acrobot-v1", settings, out=out, resume=True)
    with pytest.raises(TrainingError, match="updates: 2 then, 3 now"):
        train("CartPole-v1", Settings(updates=3, **SMALL), out=out, resume=True)
    header, arrays = load_arrays(out / "checkpoint.npz", "training checkpoint")
    save_arrays(out / "checkpoint.npz", "training checkpoint", header | {"format": 1}, arrays)
    with pytest.raises(TrainingError, match="another version"):
        train("CartPole-v1", settings, out=out, resume=True)
    (out / "checkpoint.npz").write_bytes((out / "checkpoint.npz").read_bytes()[:1000])
    with pytest.raises(TrainingError, match=r"damaged.*another directory"):
        train("CartPole-v1", settings, out=out, resume=True)


@pytest.mark.parametrize("name", ["policy.safetensors", "history.csv"])
def test_a_policy_or_history_whose_checkpoint_is_gone_is_not_replaced(tmp_path, name):
    (tmp_path / name).write_bytes(b"of an earlier run")
    with pytest.raises(TrainingError, match=f"holds {name} of an earlier run, without its checkpoint"):
        train("CartPole-v1", Settings(updates=1, **SMALL), out=tmp_path)
    assert (tmp_path / name).read_bytes() == b"of an earlier run"


def test_a_run_that_began_with_a_policy_goes_on_with_it_and_no_other(tmp_path):
    for seed in (1, 2):
        train("CartPole-v1", Settings(updates=1, seed=seed, **SMALL), out=tmp_path / str(seed))
    first, other = (tmp_path / name / "policy.safetensors" for name in "12")
    settings, out = Settings(updates=3, **SMALL), tmp_path / "run"
    train("CartPole-v1", settings, out=out, policy=first)
    for again in (first, None):
        train("CartPole-v1", settings, out=out, policy=again, resume=True)
    with pytest.raises(TrainingError, match="another policy"):
        train("CartPole-v1", settings, out=out, policy=other, resume=True)


@pytest.mark.parametrize("hidden", [(64, 64), (32, 16)])
@pytest.mark.parametrize("seen", ["normalised", "left"])  # by the policy to begin with
@pytest.mark.parametrize("normalise", [True, False])
def test_a_run_that_began_with_a_policy_is_resumed_to_the_same_bytes(tmp_path, hidden, seen, normalise):
    spaces_of = describe(as_source("CartPole-v1"))
    first = make_policy(
        observation_codec(spaces_of.observation_space), action_codec(spaces_of.action_space), hidden=hidden, seed=3
    )
    if seen == "normalised":
        first.normalise(np.full(4, 0.1), np.full(4, 0.5), limit=3.0)
    first.save(tmp_path / "first.safetensors")
    settings = Settings(updates=8, normalise_observations=normalise, **SMALL)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trained = train("CartPole-v1", settings, out=whole, policy=tmp_path / "first.safetensors")
    with pytest.raises(StopHereError):
        train("CartPole-v1", settings, out=parts, policy=tmp_path / "first.safetensors", after_update=Stop(5))
    train("CartPole-v1", settings, out=parts, resume=True)
    assert contents(parts) == contents(whole)
    assert trained.policy.limit == (3.0 if seen == "normalised" else None)
    moved = not np.array_equal(trained.policy.mean.numpy(), first.mean.numpy())
    assert moved == (normalise and seen == "normalised")
    assert any("no observation normalisation" in note for note in trained.notes) == (normalise and seen == "left")


def test_tensorboard_keeps_what_came_before_a_resumption(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    # Files of the same second are read in the order of their numbers, as text: 9 after 10.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    monkeypatch.setattr("steadyrl.sspg.reporting.TENSORBOARD_EVERY", 0.0)
    settings = Settings(updates=6, **SMALL)
    with pytest.raises(StopHereError):
        train("CartPole-v1", settings, out=tmp_path / "run", after_update=Stop(3))
    train("CartPole-v1", settings, out=tmp_path / "run", resume=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("return")] == [32 * update for update in range(1, 7)]


def test_a_checkpoint_of_another_finite_process_is_refused(tmp_path):
    settings = Settings(updates=2, **SMALL)
    train(gallery.two_terminals()[0], settings, out=tmp_path / "run")
    train(gallery.two_terminals()[0], settings, out=tmp_path / "run", resume=True)
    with pytest.raises(TrainingError, match="is of a run on"):
        train(gallery.two_terminals(win=5.0)[0], settings, out=tmp_path / "run", resume=True)


class Unseeded(gymnasium.Env):
    """Draws what nobody seeded, but where an episode begins, which is every eighth step."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def __init__(self, what):
        self._what = what

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._steps += 1
        drawn = np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)
        seen, reward = (drawn, 1.0) if self._what == "observations" else (np.zeros(2, np.float32), float(drawn[0]))
        return seen, reward, self._steps == 7, False, {}


@pytest.mark.parametrize("what", ["observations", "rewards"])
def test_an_environment_that_does_not_repeat_itself_is_found_out(tmp_path, what):
    settings = Settings(updates=3, num_envs=2, n_steps=8, cure="none", backend="serial")
    make = functools.partial(Unseeded, what)
    train(make, settings, out=tmp_path / "run")
    with pytest.raises(TrainingError, match="does not repeat itself"):
        train(make, settings, out=tmp_path / "run", resume=True)


def test_files_and_folders_that_cannot_be_used_are_named_before_anything_is_run(tmp_path, monkeypatch):
    settings = Settings(updates=np.int64(2), **SMALL)  # numpy's numbers are numbers
    for wrong in (tmp_path, tmp_path / "nothing", "uniform", 3):
        with pytest.raises(PolicyError, match="policy is"):
            train("CartPole-v1", settings, policy=wrong, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    train("CartPole-v1", settings, out=tmp_path / "run")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    for resume in (True, False):
        with pytest.raises(TrainingError, match=r"no file can be written there \(No space left"):
            train("CartPole-v1", settings, out=tmp_path / ("run" if resume else "new"), resume=resume)


def test_a_run_without_decay_can_be_made_longer(tmp_path):
    for updates, resume in ((2, False), (5, True)):
        settings = Settings(updates=updates, learning_rate_decay="none", **SMALL)
        trained = train("CartPole-v1", settings, out=tmp_path / "run", resume=resume)
    train("CartPole-v1", Settings(updates=5, learning_rate_decay="none", **SMALL), out=tmp_path / "whole")
    assert trained.updates == 5
    assert (tmp_path / "run" / "policy.safetensors").read_bytes() == (
        tmp_path / "whole" / "policy.safetensors"
    ).read_bytes()


# The command line


def run(*arguments, columns=100):
    command = [sys.executable, "-W", "error", "-m", "steadyrl", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": str(columns)}
    )


def test_train_then_evaluate_then_collect_on_the_command_line(tmp_path):
    out = tmp_path / "run"
    result = run("train", "CartPole-v1", "--out", out, "--updates", 3, "--num-envs", 4, "--backend", "serial")
    assert result.returncode == 0, result.stderr
    assert "steadyrl evaluate" in result.stdout
    limited = run(
        *(
            "train",
            "CartPole-v1",
            "--out",
            tmp_path / "limited",
            "--updates",
            1,
            "--num-envs",
            2,
            "--backend",
            "serial",
        ),
        *("--make", "max_episode_steps=9"),
    )
    assert "--make max_episode_steps=9" in " ".join(limited.stdout.split())
    single = run(
        "evaluate", "CartPole-v1", out / "policy.safetensors", "--episodes", 1, "--backend", "serial", "--json"
    )
    assert json.loads(single.stdout, parse_constant=pytest.fail)["return"]["low"] is None
    policy = out / "policy.safetensors"
    found = run("evaluate", "CartPole-v1", policy, "--episodes", 20, "--backend", "serial", "--json")
    assert found.returncode == 0, found.stderr
    shown = json.loads(found.stdout)
    assert shown["return"]["low"] < shown["return"]["value"] < shown["return"]["high"]
    assert shown["average_episode_length"]["value"] == shown["return"]["value"] + 1
    episodes = collect_episodes("CartPole-v1", policy, 20, backend="serial")
    assert episodes.returns.mean() == shown["return"]["value"]
    wrong = run("train", "CartPole-v1", "--out", tmp_path / "other", "--learning-rate", "-1")
    assert wrong.returncode == 2
    assert "learning_rate is -1.0" in wrong.stderr
    assert not (tmp_path / "other").exists()


def test_every_setting_is_an_option_and_explained():
    from dataclasses import fields

    narrow, wide = run("train", "--help", columns=80), run("train", "--help", columns=100)
    assert narrow.returncode == 0, narrow.stderr
    for entry in fields(Settings):
        shown = wide if isinstance(entry.default, bool) else narrow  # a switch has two names
        assert f"--{entry.name.replace('_', '-')} " in shown.stdout
        assert entry.metadata["help"]


def test_tables_have_numpy_twins():
    table = SoftmaxTable(np.array([[0.0, 0.0], [0.0, 99.0]]))
    assert (table.numpy().act(np.eye(2)[[1, 1, 1]], np.random.default_rng(0)) == 1).all()
    with pytest.raises(PolicyError, match="state 2 is not in a table"):
        table.log_prob([0, 2], [0, 1])
    with pytest.raises(PolicyError, match="action 3 is not in a table"):
        table.log_prob([0, 1], [0, 3])


def test_training_goes_on_from_a_policy_file_with_its_normalisation(tmp_path):
    first = train("CartPole-v1", Settings(updates=30, **SMALL), out=tmp_path / "first").policy
    settings = Settings(updates=1, learning_rate=1e-12, **SMALL)
    again = train("CartPole-v1", settings, policy=tmp_path / "first" / "policy.safetensors").policy
    np.testing.assert_allclose(again.std.numpy(), first.std.numpy(), rtol=0.05)
    np.testing.assert_allclose(again.layers[0].weight.detach(), first.layers[0].weight.detach(), atol=1e-6)
