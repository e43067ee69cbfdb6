"""Which environment failed: the death of one of many becomes an error that names it."""

from __future__ import annotations

import contextlib
import time
import warnings
from multiprocessing.connection import wait
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv

from steadyrl.common.checks import in_words
from steadyrl.errors import CopyLostError, SteadyrlError, WrapperError

_DYING = 5.0  # seconds within which a process whose pipe is closed has ended
_LOOK = 1.0  # seconds between two looks at whether a process that owes an answer is alive


class NamingLostCopies:
    """A context that turns the failure of an environment into an error that says which one it was.

    Worker processes of an AsyncVectorEnv or a SubprocVecEnv are then shut down: their own `close` would wait for ever,
    for answers of one that died, or that have been read.

    Args:
        envs: a vector environment of Gymnasium or Stable-Baselines3.
    """

    def __init__(self, envs: Any) -> None:
        self._envs = envs

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            self.name(error)

    def name(self, error: Exception) -> None:
        """Raise an error that names the environment that failed, if this error is that of an environment."""
        if isinstance(error, WrapperError):
            return
        envs = self._envs.unwrapped
        lost = _lost_workers(envs, error) if hasattr(envs, "processes") else _raised_in(envs, error)
        if not lost:
            return
        if isinstance(envs, AsyncVectorEnv):
            _shut_down(envs, lost)
        elif hasattr(envs, "remotes"):
            _shut_down_remotes(envs)
        which = f"copy {lost[0]}" if len(lost) == 1 else f"copies {list(lost)}"
        said = str(error) if isinstance(error, SteadyrlError) else in_words(error)
        named = CopyLostError(
            f"{which} of {type(envs).__name__} died or raised ({said}). Its episode is lost and the batch is "
            "incomplete: close the environments, mend the cause, and start again"
        )
        named.copies = lost
        raise named from error


def notice_deaths(envs: Any) -> None:
    """Have a SubprocVecEnv notice the death of a process while it waits for its answer; others are left as they are.

    Its own wait never ends if another process holds the pipe open: one that the environment forked, or, with the start
    method "fork", any process that was started before.
    """
    if hasattr(envs, "remotes") and hasattr(envs, "processes"):
        pairs = zip(envs.remotes, envs.processes, strict=True)
        envs.remotes = tuple(
            remote if isinstance(remote, _NoticingPipe) else _NoticingPipe(remote, process) for remote, process in pairs
        )


class _NoticingPipe:
    """The pipe to a process, whose `recv` raises EOFError once the process has ended without an answer."""

    def __init__(self, pipe: Any, process: Any) -> None:
        self._pipe, self._process = pipe, process

    def recv(self) -> Any:
        """Wait for an answer and return it."""
        while not self._pipe.poll(_LOOK):
            if not self._process.is_alive() and not self._pipe.poll():
                raise EOFError("its process has ended")
        return self._pipe.recv()

    def __getattr__(self, name: str) -> Any:
        if name in ("_pipe", "_process"):  # as while it is being copied
            raise AttributeError(name)
        return getattr(self._pipe, name)


def _lost_workers(envs: Any, error: Exception) -> tuple[int, ...]:
    if envs.closed:
        return ()
    broken = [i for i, pipe in enumerate(getattr(envs, "parent_pipes", ())) if pipe is None]  # raised, and was shut
    sentinels = [process.sentinel for process in envs.processes]
    gone = [i for i, process in enumerate(envs.processes) if not process.is_alive()]  # its children may hold its pipes
    dying = isinstance(error, EOFError | OSError) and not broken and not gone  # its pipe is closed before it is gone
    dead = wait(sentinels, timeout=_DYING if dying else 0.0)
    return tuple(i for i, sentinel in enumerate(sentinels) if i in broken or i in gone or sentinel in dead)


def _shut_down(envs: Any, lost: tuple[int, ...]) -> None:
    for i in lost:
        if envs.parent_pipes[i] is not None:
            envs.parent_pipes[i].close()
            envs.parent_pipes[i] = None
    with warnings.catch_warnings():  # Gymnasium's, that a step is pending
        warnings.simplefilter("ignore")
        envs.close(terminate=True)


def _shut_down_remotes(envs: Any) -> None:
    """End the processes of a SubprocVecEnv; each has some seconds to close its environment."""
    for remote in envs.remotes:
        with contextlib.suppress(OSError):  # its process is gone
            remote.send(("close", None))
    until = time.monotonic() + _DYING
    for process in envs.processes:
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
        process.join()
    for remote in envs.remotes:
        remote.close()
    envs.waiting, envs.closed = False, True


def _raised_in(envs: Any, error: Exception) -> tuple[int, ...]:
    """Return the environment in this process whose method was running: the method's object is known by identity."""
    owner: dict[int, set[int]] = {}
    for i, env in enumerate(getattr(envs, "envs", ())):
        layer: Any = env
        while layer is not None:
            owner.setdefault(id(layer), set()).add(i)
            layer = layer.env if isinstance(layer, gymnasium.Wrapper) else None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        first = frame.f_code.co_varnames[:1] if frame.f_code.co_argcount else ()
        found = owner.get(id(frame.f_locals.get(first[0])), set()) if first else set()
        if len(found) == 1:
            return tuple(found)
        trace = trace.tb_next
    return ()
