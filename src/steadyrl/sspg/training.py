"""The training loop: draw data at steady state, estimate E[T], take a step, write things down.

    for each update:
        data, E[T]  <-  copies that never stop (online), or new rollouts (fresh)
        policy      <-  policy + rate (E[T] - 1) mean(A grad log pi)
        critic      <-  towards the returns

Everything random comes from the seed; nothing depends on the clock but when checkpoints are written.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import as_source, describe
from steadyrl.errors import SteadyrlError, TrainingError
from steadyrl.policies.files import load_policy
from steadyrl.policies.modules import NetworkModule, as_module, linears, make_policy
from steadyrl.policies.networks import NetworkPolicy
from steadyrl.sspg.checkpoints import POLICY, load_checkpoint, prepare_directory, save_checkpoint, save_history
from steadyrl.sspg.critic import Critic
from steadyrl.sspg.display import display_for, tensorboard_for
from steadyrl.sspg.drawing import Drawing, FreshDrawing, OnlineDrawing, Scene
from steadyrl.sspg.learner import Learner
from steadyrl.sspg.normaliser import Normaliser
from steadyrl.sspg.settings import Settings

COLUMNS = (
    "update",
    "steps",
    "return",
    "average_episode_length",
    "phase_distance",
    "entropy",
    "gradient_norm",
    "critic_loss",
)
_CRITIC = 10
"""First spawn key of the critic's weights and of its minibatches."""
_TENSORBOARD_EVERY = 0.5
"""Seconds between two updates that are shown in TensorBoard; the last one always is."""


@dataclass(frozen=True)
class Progress:
    """Where a run is after an update, for `after_update`."""

    update: int
    steps: int
    policy: NetworkModule
    shown: Mapping[str, float]
    """The update's line of the history."""


@dataclass(frozen=True)
class Trained:
    """What came out of training."""

    policy: NetworkModule
    history: Mapping[str, list[float]]
    """A column for each of `COLUMNS`, an entry for each update."""
    notes: tuple[str, ...] = ()

    @property
    def updates(self) -> int:
        """How many there were, over all interruptions."""
        return len(self.history["update"])


def train(
    environment: Any,
    settings: Settings | None = None,
    *,
    policy: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    make_arguments: Mapping[str, Any] | None = None,
    progress: bool | TextIO = False,
    after_update: Callable[[Progress], None] | None = None,
) -> Trained:
    """Train a policy with the steady-state policy gradient.

    Args:
        environment: a Gymnasium id, a spec, a LearningProcess, or a function that makes an environment.
        settings: see `Settings`.
        policy: a policy file to begin with; by default a new policy.
        out: a directory for checkpoint, policy and history; by default nothing is written.
        resume: whether to go on from the checkpoint in `out`; the result is the same to the byte as without the
            interruption.
        make_arguments: for gymnasium.make, if `environment` is an id or a spec.
        progress: True to show progress on standard error, or a stream to show it on.
        after_update: called after every update.

    Raises:
        TrainingError: before anything is run, if settings, checkpoint or directory cannot be used; later, with the
            number of the update, if a number is no longer finite, or its data cannot be had.
        PolicyError: if the policy file does not fit the environment.
        FileFormatError: if the policy file is damaged.

    Example:
        >>> from steadyrl import sspg
        >>> trained = sspg.train("CartPole-v1", sspg.Settings(updates=3, copies=4, backend="serial"))
        >>> trained.updates
        3
    """
    if not isinstance(settings, Settings | None):
        raise TrainingError(f"settings are {type(settings).__name__}; give steadyrl.Settings(...)")
    run = Run(environment, settings or Settings(), policy, out, resume, make_arguments, progress, after_update)
    with run.opened(), _one_thread(), _Interrupt() as interrupt:
        run.go_on(interrupt)
    return Trained(run.learner.policy, run.history, tuple(run.notes))


class Run:
    """One training run: its parts, and where it is."""

    def __init__(
        self,
        environment: Any,
        settings: Settings,
        policy: str | os.PathLike[str] | None,
        out: str | os.PathLike[str] | None,
        resume: bool,
        make_arguments: Mapping[str, Any] | None,
        progress: bool | TextIO,
        after_update: Callable[[Progress], None] | None,
    ) -> None:
        self.settings, self.after_update = settings, after_update
        self.source = as_source(environment, make_arguments)
        description = describe(self.source)
        observations, actions = observation_codec(description.observation_space), action_codec(description.action_space)
        begin = None if policy is None else load_policy(policy, observations, actions)
        self.out = None if out is None else Path(out)
        self._begun_with = "" if policy is None else sha256(Path(policy).read_bytes()).hexdigest()
        self._resumed = self._find(resume)
        module, normalised = self._first_policy(begin, observations, actions)
        module.environment = self.source.id or self.source.name
        device = _device(settings.device)
        self.rng = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(_CRITIC,)))
        limit = description.max_episode_steps
        critic = Critic(observations.size, limit if settings.truncation == "terminal" else None, rng=self.rng)
        self.learner = Learner(module.to(device), critic.to(device), settings)
        known = None if begin is None else begin.normalisation
        self.normaliser = Normaliser(observations.size, known) if normalised else None
        draw_from = OnlineDrawing if settings.method == "online" else FreshDrawing
        self.drawing: Drawing = draw_from(Scene(self.source, description, observations, actions), settings)
        self.update, self.steps = 0, 0
        self.history: dict[str, list[float]] = {name: [] for name in COLUMNS}
        self.notes: list[str] = []
        if self.out is not None and not resume:
            prepare_directory(self.out, resume=False)
        self.display = display_for(progress)
        self._writer: Any = None
        self._saved = self._written = time.monotonic()

    def _find(self, resume: bool) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return header and arrays of the checkpoint to go on from, if there is to be one."""
        if not resume:
            return None
        if self.out is None:
            raise TrainingError("resume needs out, the directory of the interrupted run")
        prepare_directory(self.out, resume=True)
        found = load_checkpoint(self.out, self._name, self.settings, self._begun_with)
        self._begun_with = found[0]["begun_with"]
        return found

    def _first_policy(self, begin: NetworkPolicy | None, observations: Any, actions: Any) -> tuple[NetworkModule, bool]:
        """Return the policy to begin with, and whether it follows the mean and deviation of observations."""
        normalised = self.settings.normalise_observations
        if self._resumed is not None:
            shape = self._resumed[0]["policy"]
            module = make_policy(observations, actions, hidden=shape["hidden"])
            module.limit = shape["limit"]
            return module, shape["normalised"]
        if begin is not None:
            return as_module(begin, observations, actions), normalised and begin.normalisation is not None
        return make_policy(observations, actions, seed=self.settings.seed), normalised

    @property
    def _name(self) -> str:
        arguments = "".join(f" {key}={value!r}" for key, value in sorted(self.source.arguments.items()))
        return (self.source.id or self.source.name) + arguments

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Make what has to be closed again."""
        try:
            self._note(self.drawing.about)
            if self.settings.normalise_observations and self.normaliser is None:
                self._note("the policy to begin with takes observations as they are, and goes on to")
            if self._resumed is not None:
                self._restore(*self._resumed)
            elif self.out is not None:
                self.save()
            self._writer = tensorboard_for(self.out, None if self._resumed is None else self.steps)
            yield
        finally:
            self.display.end()
            self.drawing.close()
            if self._writer is not None:
                self._writer.close()

    def go_on(self, interrupt: _Interrupt) -> None:
        """Update until the budget is spent."""
        total, unit = self._budget()
        self.display.begin(total, self._done(), unit)
        while self._done() < total:
            try:
                shown = self._one_update()
            except SteadyrlError as error:
                raise self._failed(error) from error
            self._record(shown)
            if self.after_update is not None:
                self.after_update(Progress(self.update, self.steps, self.learner.policy, shown))
            if interrupt.asked:
                self._stop_early()
            if self.out is not None and time.monotonic() - self._saved >= self.settings.checkpoint_every:
                self.save()
        if self.out is not None:
            self.save()

    def save(self) -> None:
        """Write checkpoint, policy and history."""
        assert self.out is not None
        header = {
            "environment": self._name,
            "settings": asdict(self.settings),
            "begun_with": self._begun_with,
            "policy": self._shape(),
            "update": self.update,
            "steps": self.steps,
            "rng": self.rng.bit_generator.state,
            "drawing": self.drawing.header(),
        }
        arrays = _under("learner", self.learner.state()) | _under("drawing", self.drawing.state())
        arrays |= _under("history", {name: np.array(column, dtype=float) for name, column in self.history.items()})
        if self.normaliser is not None:
            arrays |= _under("normaliser", self.normaliser.state())
        save_checkpoint(self.out, header, arrays)
        if self.update:  # a new policy does not know yet what it will see, and its file could not say so
            self.learner.policy.save(self.out / POLICY)
        save_history(self.out, self.history)
        self._saved = time.monotonic()

    def _shape(self) -> dict[str, Any]:
        """What of the policy is not in its arrays."""
        policy = self.learner.policy
        hidden = [layer.out_features for layer in linears(policy.layers)[:-1]]
        return {"hidden": hidden, "limit": policy.limit, "normalised": self.normaliser is not None}

    def _restore(self, header: dict[str, Any], arrays: dict[str, Any]) -> None:
        self.update, self.steps = int(header["update"]), int(header["steps"])
        self.rng.bit_generator.state = header["rng"]
        self.learner.restore(_of(arrays, "learner"))
        self.history = {name: column.tolist() for name, column in _of(arrays, "history").items()}
        if self.normaliser is not None:
            self.normaliser.restore(_of(arrays, "normaliser"))
        self.drawing.restore(_of(arrays, "drawing"), header["drawing"])
        self._note(f"resumed at update {self.update:,}, {self.steps:,} steps")

    def _one_update(self) -> dict[str, float]:
        total, _ = self._budget()
        left = 1 - self._done() / total
        drawn = self.drawing.draw(self.learner, self.update)
        found = self.learner.update(drawn.data, drawn.average_episode_length, left, rng=self.rng)
        if self.normaliser is not None:
            self.normaliser.add(drawn.observations)
            self.learner.policy.normalise(self.normaliser.mean, self.normaliser.std)
        self.update += 1
        self.steps += drawn.steps
        return found | {
            "update": self.update,
            "steps": self.steps,
            "return": drawn.mean_return,
            "average_episode_length": drawn.average_episode_length,
            "phase_distance": drawn.phase_distance,
        }

    def _record(self, shown: Mapping[str, float]) -> None:
        for name in COLUMNS:
            self.history[name].append(float(shown[name]))
        self.display.advance(self._done(), self.steps, shown)
        last = self._done() >= self._budget()[0]
        if self._writer is not None and (last or time.monotonic() - self._written >= _TENSORBOARD_EVERY):
            self._written = time.monotonic()
            for name in COLUMNS[2:]:
                if math.isfinite(shown[name]):
                    self._writer.add_scalar(name, shown[name], self.steps)

    def _budget(self) -> tuple[int, str]:
        """What is counted to the end, and its name: updates where they are given, else steps."""
        updates, steps = self.settings.updates, self.settings.steps
        if updates is not None:
            return updates, "updates"
        assert steps is not None
        return steps, "steps"

    def _done(self) -> int:
        return self.update if self.settings.updates is not None else self.steps

    def _failed(self, error: SteadyrlError) -> TrainingError:
        kept = "" if self.out is None else f"; the last good checkpoint is kept in {str(self.out)!r}"
        return TrainingError(f"update {self.update + 1}: {error}{kept}")

    def _stop_early(self) -> None:
        if self.out is not None:
            self.save()
            self._note(
                f"interrupted after update {self.update:,}; all is kept in {str(self.out)!r}: repeat with --resume"
            )
        raise KeyboardInterrupt

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.display.note(text)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise TrainingError(f"device is {name!r}, which PyTorch cannot use here ({error}); use 'cpu'") from error
    return device


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch use one thread: networks this small are faster so, and sums come out the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Interrupt:
    """The first Ctrl-C lets the present update finish, the second stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> _Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def _under(part: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{part}/{name}": value for name, value in arrays.items()}


def _of(arrays: Mapping[str, Any], part: str) -> dict[str, Any]:
    return {name.removeprefix(f"{part}/"): value for name, value in arrays.items() if name.startswith(f"{part}/")}
