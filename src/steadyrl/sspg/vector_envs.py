"""Environments that are stepped together: one vector environment in NEXT_STEP mode, the learning process itself."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from steadyrl.common.checks import in_words
from steadyrl.common.machine import Process, cores
from steadyrl.environments.codecs import ObservationCodec
from steadyrl.environments.returned import as_flag, as_info, as_parts, as_reward
from steadyrl.environments.sources import Description, Source, close_quietly
from steadyrl.errors import RolloutError, SteadyrlError, StepTimeoutError, TrainingError
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
_CLOSING = 10.0
"""Seconds that environments in processes have to close themselves."""


def choose(source: Source, description: Description, settings: ResolvedSettings) -> tuple[Backend, str]:
    """Return the backend that steps the environments of a run, and the reason for it."""
    options = Options(backend=settings.backend, workers=settings.workers)
    backend, reason = choose_for(source, description, settings.num_envs, options)
    if backend == "serial" and settings.step_timeout is not None:
        return "processes", "a step timeout was given, and processes can be ended"
    return backend, reason


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
        return TimedVectorEnv([partial(_checked, source)] * num_envs, step_timeout)
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
        self._forking = Interrupts()  # Python drops a KeyboardInterrupt that comes while it forks
        try:
            with self._forking:
                super().__init__(makers, autoreset_mode=AutoresetMode.NEXT_STEP, worker=_serve)
        except BaseException:
            if getattr(self, "processes", None):
                self.close_extras(terminate=True)
                self.closed = True
            raise

    def _check_spaces(self) -> None:
        """Wait until all environments are made, which have then all been forked."""
        self._forking.__exit__()
        if self._forking.asked:
            raise KeyboardInterrupt
        spaces = self.observation_mode, self.single_observation_space, self.single_action_space
        try:
            for pipe in self.parent_pipes:
                pipe.send(("_check_spaces", spaces))
            self._poll_pipe_envs(None)
            answers, successes = zip(*[pipe.recv() for pipe in self.parent_pipes], strict=True)
        except (EOFError, ConnectionError) as error:
            raise RolloutError(
                "the process of an environment ended while the environment was made; mend what ends it"
            ) from error
        self._raise_if_errors(successes)
        if not all(same for answer in answers for same in answer):
            raise RolloutError("the environments have different spaces, so they cannot be stepped together")

    def step(self, actions: Any) -> Any:
        """Step all environments."""
        self.step_async(actions)
        return self._in_time("step", self.step_wait)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all environments, or those of options["reset_mask"]."""
        self.reset_async(seed=seed, options=options)
        return self._in_time("reset", self.reset_wait)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the processes, and all that their environments started.

        An environment has some seconds to close itself; where one still owes an answer, nobody waits for it.
        """
        if getattr(self, "_state", None) != AsyncState.DEFAULT:
            self._state, terminate = AsyncState.DEFAULT, True
        pipes = [pipe for pipe in self.parent_pipes if pipe is not None and not pipe.closed]
        if not terminate:
            for pipe in pipes:
                with contextlib.suppress(OSError):  # its process has ended
                    pipe.send(("close", None))
            until = time.monotonic() + _CLOSING
            for process in self.processes:
                process.join(max(0.0, until - time.monotonic()))
        for process in self.processes:
            if process.pid is None:  # it could not be started
                continue
            with contextlib.suppress(OSError):  # there is nothing left of the group
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()  # an environment may not listen to SIGTERM
            process.join()
        for pipe in pipes:
            pipe.close()

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


def _serve(index: int, make: Any, pipe: Any, parent_pipe: Any, shared: Any, errors: Any, *how: Any) -> None:
    """Run an environment in a process of its own, which leaves signals to its parent and ends when that does."""
    os.setsid()  # a group of its own, which can be killed as a whole
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with(os.getppid())
    try:
        try:
            env = make()
        except BaseException as error:
            pipe.recv()  # the question for its spaces
            errors.put((index, RolloutError, str(_sendable(error)), traceback.format_exc()))
            pipe.send((None, False))
        else:
            _async_worker(index, partial(_Apart, env), pipe, parent_pipe, shared, errors, *how)
    finally:
        errors.close()
        errors.join_thread()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)  # threads that the environment left would keep the process, and nothing is left to save


def _sendable(error: BaseException) -> Exception:
    """Return an error that another process can make again: many cannot be pickled, or take other arguments."""
    if isinstance(error, MemoryError):
        return MemoryError(str(error))
    if isinstance(error, SteadyrlError):
        return RolloutError(str(error))
    return RolloutError(in_words(error))


class _Apart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises errors that can be sent to the parent process, whatever the environment raises."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        try:
            return self.env.reset(seed=seed, options=options)
        except BaseException as error:
            raise _sendable(error) from error

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        try:
            return self.env.step(action)
        except BaseException as error:
            raise _sendable(error) from error


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

    def close(self) -> None:
        """Close the environment; that it fails to costs no result."""
        close_quietly(self.env)

    def _call(self, method: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except SystemExit as error:
            raise RolloutError(
                f"the environment called sys.exit({error.code!r}); have it raise an error, or end the episode, instead"
            ) from error
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # as asyncio's CancelledError
            raise RolloutError(
                f"the environment raised {in_words(error)}; have it raise an Exception instead"
            ) from error
        finally:
            self._process.back()

    def _looked_at(self, observation: Any) -> Any:
        return as_parts(self.env.observation_space, observation)
