"""Environments that are stepped together: one vector environment in NEXT_STEP mode, the learning process itself."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
import warnings
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from steadyrl.common.machine import Process, cores
from steadyrl.environments.codecs import ObservationCodec
from steadyrl.environments.returned import as_flag, as_info, as_parts, as_reward
from steadyrl.environments.sources import Description, Source, close_quietly
from steadyrl.errors import RolloutError, StepTimeoutError, TrainingError
from steadyrl.integrations.envpool.twins import against_envpool
from steadyrl.integrations.envpool.vector_env import EnvPoolVectorEnv
from steadyrl.rollouts.planning import MOST_WORKERS, Backend, Options, choose_backend
from steadyrl.rollouts.repeatability import STEPS
from steadyrl.rollouts.worker import end_with
from steadyrl.sspg.interrupts import Interrupts
from steadyrl.sspg.settings import ResolvedSettings
from steadyrl.wrappers.phase_monitor import PhaseMonitor
from steadyrl.wrappers.staggered_vector_env import StaggeredVectorEnv

_SEEDS = 7
"""First spawn key of the environments' seeds."""
_MOST_ENVS = 1_000_000


def choose(source: Source, description: Description, settings: ResolvedSettings) -> tuple[Backend, str]:
    """Return the backend that steps the environments of a run, and the reason for it."""
    options = Options(backend=settings.backend, workers=settings.workers)
    return choose_for(source, description, settings.num_envs, options)


def choose_for(source: Source, description: Description, num_envs: int, options: Options) -> tuple[Backend, str]:
    """Return the backend that steps so many environments together, and the reason for it."""
    backend, reason = choose_backend(source, description, num_envs, options)
    if options.backend == "auto" and backend != "envpool":
        # All environments step together, so a process for each only pays where a step takes longer than a message.
        against = against_envpool(source, description)
        return "serial", f"a step of each environment is a short one (--backend processes if not), and {against}"
    return backend, reason


def make_vector_env(source: Source, backend: Backend, settings: ResolvedSettings, *, restart: int) -> tuple[Any, int]:
    """Return the environments, watched or staggered, and the seed of their reset.

    `restart` counts how often they were made anew.
    """
    sequence = np.random.SeedSequence(settings.seed, spawn_key=(_SEEDS, restart))
    seed, staggering = (int(number) >> 1 for number in sequence.generate_state(2))
    envs = bare_vector_env(
        source,
        backend,
        settings.num_envs,
        seed=seed,
        workers=settings.workers,
        step_timeout=settings.step_timeout,
    )
    how: dict[str, Any] = {"tolerance": settings.tolerance, "n_steps": settings.n_steps}
    if settings.cure == "auto":
        return StaggeredVectorEnv(envs, "auto", seed=staggering, **how), seed
    return PhaseMonitor(envs, warn=False, **how), seed


def bare_vector_env(
    source: Source,
    backend: Backend,
    num_envs: int,
    *,
    seed: int,
    workers: int | None = None,
    step_timeout: float | None = None,
) -> Any:
    """Return so many environments that are stepped together, in NEXT_STEP mode, to be reset with the same seed."""
    most = MOST_WORKERS if backend == "processes" else _MOST_ENVS
    if num_envs > most:
        raise RolloutError(f"num_envs is {num_envs:,}; with the backend {backend!r} it may be {most:,} at most")
    if backend == "envpool":
        assert source.id is not None
        threads = min(workers or cores(), num_envs)
        return EnvPoolVectorEnv(source.id, num_envs, seed=seed, num_threads=threads, **source.arguments)
    if backend == "serial":
        return SyncVectorEnv([partial(_checked, source)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    if backend == "processes":
        return TimedVectorEnv([partial(_make, source, os.getpid())] * num_envs, step_timeout)
    raise TrainingError(f"environments that never stop cannot be stepped by {backend!r}; use 'envpool'")


def repeats_itself(source: Source, observations: ObservationCodec, *, seed: int) -> bool:
    """Return whether an episode of random actions, or its first 200 steps, is the same for the same seed again."""
    traces = [_trace(source, observations, seed) for _ in range(2)]
    return all(np.array_equal(one, other, equal_nan=True) for one, other in zip(*traces, strict=True))


def _trace(source: Source, observations: ObservationCodec, seed: int) -> tuple[Any, Any]:
    """Return the rows of observations and the rewards of an episode, up to where the environment fails, if it does."""
    write, rows, rewards = observations.writer(), [np.zeros(observations.width)], []
    env = _checked(source)
    try:
        write(rows[0], env.reset(seed=seed)[0])
        env.action_space.seed(seed)
        for _ in range(STEPS):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            rows.append(np.zeros(observations.width))
            write(rows[-1], observation)
            rewards.append(reward)
            if terminated or truncated:
                break
    except Exception:  # it will fail again where that is told
        pass
    finally:
        close_quietly(env)
    return np.array(rows), np.array(rewards)


class TimedVectorEnv(AsyncVectorEnv):
    """Processes that have to answer within some seconds; None waits for ever."""

    def __init__(self, makers: Any, timeout: float | None) -> None:
        self._timeout = timeout
        with Interrupts() as interrupts:  # Python drops a KeyboardInterrupt that comes while it forks
            super().__init__(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
        if interrupts.asked:
            self.close(terminate=True)
            raise KeyboardInterrupt

    def step(self, actions: Any) -> Any:
        """Step all environments."""
        self.step_async(actions)
        return self._in_time("step", self.step_wait)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all environments, or those of options["reset_mask"]."""
        self.reset_async(seed=seed, options=options)
        return self._in_time("reset", self.reset_wait)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the processes; where one still owes an answer, nobody waits for it."""
        if self._state != AsyncState.DEFAULT:
            self._state, terminate = AsyncState.DEFAULT, True
        if terminate:
            for process in self.processes:
                process.kill()  # an environment may not listen to SIGTERM
        super().close_extras(timeout, terminate)

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        """Wait for all answers; raise EOFError if a process is gone, even if a child of it holds its pipe open."""
        self._assert_is_running()
        until = math.inf if timeout is None else time.monotonic() + timeout
        for pipe, process in zip(self.parent_pipes, self.processes, strict=True):
            if pipe is None or pipe.closed:
                return timeout is None
            while not pipe.poll(min(1.0, max(0.0, until - time.monotonic()))):
                if not process.is_alive() and not pipe.poll():
                    raise EOFError("its process has ended")
                if time.monotonic() >= until:
                    return False
        return True

    def _raise_if_errors(self, successes: Any) -> None:
        if not all(successes):
            with warnings.catch_warnings():  # Gymnasium's, that a process is shut down
                warnings.simplefilter("ignore")
                super()._raise_if_errors(successes)

    def _in_time(self, what: str, wait: Any) -> Any:
        try:
            return wait(timeout=self._timeout)
        except multiprocessing.TimeoutError as error:
            self.close_extras(terminate=True)
            self.closed = True
            raise StepTimeoutError(
                f"a {what} of the environments took longer than step_timeout, {self._timeout:g} s; their processes "
                "were ended: allow more time (--step-timeout), or mend the environment"
            ) from error


def _make(source: Source, trainer: int) -> Any:
    """Make an environment; in a process of its own, leave signals to the trainer, and end when that does."""
    if os.getpid() != trainer:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all processes
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with(os.getppid())
    return _checked(source)


def _checked(source: Source) -> Any:
    return _Checked(source.make())


class _Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Refuses what vector environments would turn into numbers: the reward "1.5", an observation of another shape.

    An environment that calls sys.exit gets an error as well, which would otherwise end the program or its process; and
    where it forks, the child ends here, so that it does not go on with the run.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._process = Process()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, and look at what came back."""
        observation, info = self._call(self.env.reset, seed=seed, options=options)
        return self._looked_at(observation), as_info(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step, and look at what came back."""
        observation, reward, terminated, truncated, info = self._call(self.env.step, action)
        observation = self._looked_at(observation)
        ends = as_flag("terminated", terminated), as_flag("truncated", truncated)
        return observation, as_reward(reward), *ends, as_info(info)

    def _call(self, method: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except SystemExit as error:
            raise RolloutError(
                f"the environment called sys.exit({error.code!r}); have it raise an error, or end the episode, instead"
            ) from error
        finally:
            self._process.end_child()

    def _looked_at(self, observation: Any) -> Any:
        return as_parts(self.env.observation_space, observation)
