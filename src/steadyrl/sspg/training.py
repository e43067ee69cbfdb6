"""The training loop: update until the budget is spent, and write things down.

    for each update:
        batch   <-  s, a ~ rho, and E[T]: environments that never stop (online), or new rollouts (fresh)
        policy  <-  policy + rate (E[T] - 1) mean(A grad log pi)
        critic  <-  towards the returns

The update itself is `Learner.update` (in `update`). Everything random comes from the seed; nothing depends on the clock
but when checkpoints are written.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from gymnasium import spaces

from steadyrl.common.checks import check_flag, shown
from steadyrl.common.files import lasting_name
from steadyrl.common.identity import content_text
from steadyrl.common.progress import Rate, progress_for
from steadyrl.common.storage import locked, unprefixed, with_prefix
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.sources import as_source, describe
from steadyrl.errors import FileFormatError, SteadyrlError, TrainingError
from steadyrl.policies.files import load_policy
from steadyrl.policies.modules import NetworkModule, as_module, linears, make_policy
from steadyrl.policies.networks import NetworkPolicy
from steadyrl.sspg.batch import Sampler
from steadyrl.sspg.checkpoints import (
    POLICY,
    damaged,
    load_checkpoint,
    prepare_directory,
    reading_content,
    require_numbers,
    save_checkpoint,
    save_history,
    saved_settings,
)
from steadyrl.sspg.critic import Critic
from steadyrl.sspg.fresh import FreshSampler
from steadyrl.sspg.interrupts import Interrupts
from steadyrl.sspg.normaliser import Normaliser
from steadyrl.sspg.online import OnlineSampler
from steadyrl.sspg.reporting import COLUMNS, TensorBoard, words
from steadyrl.sspg.settings import Settings
from steadyrl.sspg.update import Learner

_CRITIC = 10
"""First spawn key of the critic's weights and of its minibatches."""


@dataclass(frozen=True)
class TrainingState:
    """The state of a run after an update, as `after_update` gets it."""

    update: int
    steps: int
    policy: NetworkModule
    shown: Mapping[str, float]
    """The update's line of the history."""


@dataclass(frozen=True)
class Trained:
    """The result of training."""

    policy: NetworkModule
    history: Mapping[str, list[float]]
    """The columns of `history.csv`, with an entry for each update."""
    notes: tuple[str, ...] = ()

    @property
    def updates(self) -> int:
        """The number of updates, over all interruptions."""
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
    after_update: Callable[[TrainingState], None] | None = None,
) -> Trained:
    """Train a policy with the steady-state policy gradient.

    Ctrl-C and SIGTERM let the present update finish, write a checkpoint if there is a directory, and raise
    KeyboardInterrupt.

    Args:
        environment: a Gymnasium id, a spec, a LearningProcess, or a function that makes an environment.
        settings: see `Settings`.
        policy: a policy file to start from; by default a new policy.
        out: a directory for checkpoint, policy and history; by default nothing is written.
        resume: whether to go on from the checkpoint in `out`; the result is the same to the byte as without the
            interruption.
        make_arguments: arguments for gymnasium.make, if `environment` is an id or a spec.
        progress: True to show progress on standard error, or a stream to show it on.
        after_update: a function that is called after every update.

    Raises:
        TrainingError: before anything is run, if settings, checkpoint or directory cannot be used, or another run is
            using the directory; later, with the number of the update, if a number is no longer finite, the environment
            fails, or it calls sys.exit.
        PolicyError: if the policy file does not fit the environment.
        FileFormatError: if the policy file is damaged.

    Example:
        >>> from steadyrl import sspg
        >>> trained = sspg.train("CartPole-v1", sspg.Settings(updates=3, num_envs=4, backend="serial"))
        >>> trained.updates
        3
    """
    if not isinstance(settings, Settings | None):
        raise TrainingError(f"settings are {type(settings).__name__}; give steadyrl.Settings(...)")
    if after_update is not None and not callable(after_update):
        raise TrainingError(f"after_update is {shown(after_update)}; it must be a function, called after every update")
    with contextlib.ExitStack() as at_the_end:
        run = Run(environment, settings or Settings(), policy, out, resume, make_arguments, progress, at_the_end)
        at_the_end.enter_context(_one_thread())
        interrupts = at_the_end.enter_context(Interrupts())
        run.open()
        run.go_on(interrupts, after_update)
    return Trained(run.learner.policy, run.history, tuple(run.notes))


class Run:
    """One training run: its parts, its progress, and its files."""

    def __init__(
        self,
        environment: Any,
        settings: Settings,
        policy: str | os.PathLike[str] | None,
        out: str | os.PathLike[str] | None,
        resume: bool,
        make_arguments: Mapping[str, Any] | None,
        progress: bool | TextIO,
        at_the_end: contextlib.ExitStack,
    ) -> None:
        self._at_the_end = at_the_end
        source = as_source(environment, make_arguments)
        description = describe(source)
        self.source = source.described(description)
        self.settings = resolved = settings.resolved(continuous=isinstance(description.action_space, spaces.Box))
        observations, actions = observation_codec(description.observation_space), action_codec(description.action_space)
        if not observations.size or 0 in actions.shape:
            raise TrainingError(
                f"observations are {observations.space} and actions {actions.space}; one of them has no numbers, so "
                "there is nothing to learn: wrap the environment to have at least one of each"
            )
        begin = None if policy is None else load_policy(policy, observations, actions)
        # absolute, since an environment may change the working directory (os.chdir)
        self.out = None if out is None else Path(lasting_name("out", out, TrainingError))
        self._begun_with = "" if policy is None else sha256(Path(policy).read_bytes()).hexdigest()
        self._resumed = self._find(resume)
        module, normalised = self._first_policy(begin, observations, actions)
        module.environment = self.source.id or self.source.name
        device = _device(settings.device)
        rng = np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(_CRITIC,)))
        limit = description.max_episode_steps
        critic = Critic(observations.size, limit if settings.truncation == "terminal" else None, rng=rng)
        known = None if begin is None else begin.normalisation
        normaliser = Normaliser(observations.size, known) if normalised else None
        self.learner = Learner(module.to(device), critic.to(device), normaliser, resolved, rng=rng)
        sampler = OnlineSampler if settings.method == "online" else FreshSampler
        self.sampler: Sampler = sampler(self.source, description, observations, actions, resolved)
        self.update, self.steps = 0, 0
        self.history: dict[str, list[float]] = {name: [] for name in COLUMNS}
        self.notes: list[str] = []
        if self.out is not None and not resume:
            self._hold(self.out, resume=False)
        self.shown = progress_for(progress)
        self._rate: Rate | None = None
        self._saved = time.monotonic()

    def _find(self, resume: bool) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return header and arrays of the checkpoint to go on from; None for a new run."""
        if not check_flag("resume", resume, TrainingError):
            return None
        if self.out is None:
            raise TrainingError("resume needs out, the directory of the interrupted run")
        self._hold(self.out, resume=True)
        found = load_checkpoint(self.out, self._name, self.settings, self._begun_with)
        self._begun_with = found[0]["begun_with"]
        return found

    def _first_policy(self, begin: NetworkPolicy | None, observations: Any, actions: Any) -> tuple[NetworkModule, bool]:
        """Return the first policy, and whether its normalisation follows the observations."""
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
        arguments = "".join(f" {key}={content_text(value)}" for key, value in sorted(self.source.arguments.items()))
        digest = f" {self.source.digest}" if self.source.digest else ""
        return (self.source.id or self.source.name) + arguments + digest

    def _hold(self, out: Path, *, resume: bool) -> None:
        """Make the directory and keep other runs out of it; look again then, since one may have just ended there."""
        prepare_directory(out, resume=resume)
        self._at_the_end.enter_context(locked(out, TrainingError))
        prepare_directory(out, resume=resume)

    def open(self) -> None:
        """Write the first checkpoint, or go on from one; what is open is closed at the end."""
        self._at_the_end.callback(self.sampler.close)
        self._at_the_end.callback(self.shown.end)
        self._note(self.sampler.about)
        if self.settings.normalise_observations and self.learner.normaliser is None:
            self._note("the initial policy has no observation normalisation; normalise_observations is ignored")
        if self._resumed is not None:
            self._restore(*self._resumed)
        elif self.out is not None:
            self.save()
        self._tensorboard = TensorBoard(self.out, None if self._resumed is None else self.steps, self._note)
        self._at_the_end.callback(self._tensorboard.close)

    def go_on(self, interrupts: Interrupts, after_update: Callable[[TrainingState], None] | None) -> None:
        """Update until the budget is spent."""
        total, unit = self._budget()
        self.shown.begin(total, unit, self._done())
        while self._done() < total:
            shown = self._one_update(remaining=1 - self._done() / total)
            if after_update is not None:
                after_update(TrainingState(self.update, self.steps, self.learner.policy, shown))
            if interrupts.asked:
                self._stop_early()
            if self.out is not None and time.monotonic() - self._saved >= self.settings.checkpoint_every:
                self.save()
        if self.out is not None:
            self.save()

    def _one_update(self, remaining: float) -> dict[str, float]:
        """Update policy and critic, count it, and show it."""
        before = self._done()
        try:
            found = self.learner.update(self.sampler, self.update, remaining)
        except SteadyrlError as error:
            raise self._failed(str(error)) from error
        except SystemExit as error:
            raise self._failed(
                f"the environment called sys.exit({error.code!r}); have it raise an error, or end the episode, instead"
            ) from error
        self.update += 1
        self.steps += int(found["steps"])
        shown = found | {"update": self.update, "steps": self.steps}
        for name in COLUMNS:
            self.history[name].append(float(shown[name]))
        if self._rate is None:  # the first update includes the making of environments
            self._rate = Rate()
            rate = 0.0
        else:
            rate = self._rate.add(int(found["steps"]))
        self.shown.advance(self._done() - before, words(shown, rate))
        self._tensorboard.add(shown, self.steps, last=self._done() >= self._budget()[0])
        return shown

    def save(self) -> None:
        """Write checkpoint, policy and history."""
        assert self.out is not None
        header = {
            "environment": self._name,
            "settings": saved_settings(self.settings),
            "begun_with": self._begun_with,
            "policy": self._shape(),
            "update": self.update,
            "steps": self.steps,
            "rng": self.learner.rng.bit_generator.state,
            "sampler": self.sampler.header(),
        }
        history = {name: np.array(column, dtype=float) for name, column in self.history.items()}
        arrays = with_prefix("learner", self.learner.state()) | with_prefix("sampler", self.sampler.state())
        save_checkpoint(self.out, header, arrays | with_prefix("history", history))
        if self.update:  # a new policy does not know yet what it will see, and its file could not say so
            self.learner.policy.save(self.out / POLICY)
        save_history(self.out, self.history)
        self._saved = time.monotonic()

    def _shape(self) -> dict[str, Any]:
        """Return what is not in the policy's arrays."""
        policy = self.learner.policy
        hidden = [layer.out_features for layer in linears(policy.layers)[:-1]]
        return {"hidden": hidden, "limit": policy.limit, "normalised": self.learner.normaliser is not None}

    def _restore(self, header: dict[str, Any], arrays: dict[str, Any]) -> None:
        assert self.out is not None
        self.update, self.steps = header["update"], header["steps"]
        try:
            with reading_content():
                self.learner.rng.bit_generator.state = header["rng"]
                self.learner.restore(unprefixed("learner", arrays))
                history = unprefixed("history", arrays)
                require_numbers(history["update"], history["steps"], shape=(self.update,), least=1)
                require_numbers(*(np.where(np.isnan(history[name]), 0.0, history[name]) for name in COLUMNS))
                self.history = {name: history[name].astype(float).reshape(self.update).tolist() for name in COLUMNS}
            self.sampler.restore(unprefixed("sampler", arrays), header["sampler"])
        except FileFormatError as error:
            raise damaged(self.out) from error
        self._note(f"resumed at update {self.update:,}, {self.steps:,} steps")

    def _budget(self) -> tuple[int, str]:
        """Return the end of the count and its unit: updates if they are given, otherwise steps."""
        updates, steps = self.settings.updates, self.settings.steps
        if updates is not None:
            return updates, "updates"
        assert steps is not None
        return steps, "steps"

    def _done(self) -> int:
        return self.update if self.settings.updates is not None else self.steps

    def _failed(self, reason: str) -> TrainingError:
        kept = "" if self.out is None else f"; the last good checkpoint is kept in {str(self.out)!r}"
        return TrainingError(f"update {self.update + 1}: {reason}{kept}")

    def _stop_early(self) -> None:
        if self.out is not None:
            self.save()
            self._note(
                f"interrupted after update {self.update:,}; the run is kept in {str(self.out)!r}: repeat with --resume"
            )
        raise KeyboardInterrupt

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.shown.note(text)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise TrainingError(f"device is {name!r}, which PyTorch cannot use here ({error}); use 'cpu'") from error
    return device


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Have PyTorch use one thread: for small networks it is faster, and sums are the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
