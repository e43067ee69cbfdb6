"""Files that are never half-written, and files and folders that only one run uses at a time.

A file is written under a temporary name beside its own and then renamed. A process that is killed in between leaves the
temporary file behind; the next process that writes into the same folder deletes it, once the one that made it is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steadyrl.common.checks import as_path
from steadyrl.errors import RolloutError, SteadyrlError

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows has no such locks)
    fcntl = None  # type: ignore[assignment]

_TEMPORARY = re.compile(r"\.steadyrl-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}(\.\w+)?")
_swept: set[str] = set()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file under a temporary name and rename it, so that it is complete or not there at all.

    Raises:
        OSError: if it cannot be written; the error names the file.
    """
    with written_atomically(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


def lasting_name(name: str, path: Any, error: type[SteadyrlError]) -> str:
    """Return the absolute name of a path, which holds wherever an environment changes to (os.chdir)."""
    given = as_path(name, path, error)
    try:
        return os.path.abspath(given)
    except FileNotFoundError as problem:
        raise error(
            f"{name} is {given!r}, a name in the working directory, which has been deleted; change to another one"
        ) from problem


@contextlib.contextmanager
def written_atomically(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`, with the same suffix, and rename the file written there at the end.

    It is for libraries that write files by themselves. If the block raises, the temporary file is deleted and `path` is
    as it was before.

    Raises:
        SteadyrlError: if a pipe or a device has this name: a file would take its place, even that of /dev/null.
    """
    target = _followed(Path(lasting_name("path", path, SteadyrlError)))
    require_plain(target, SteadyrlError)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder of {os.fspath(path)!r} does not exist")
    delete_abandoned(target.parent)
    suffix = target.suffix if re.fullmatch(r"\.\w{1,16}", target.suffix) else ""
    temporary = target.parent / f".steadyrl-{_machine()}-{os.getpid()}-{secrets.token_hex(4)}{suffix}"
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(temporary)):
            raise type(error)(error.errno, error.strerror, os.fspath(path)) from error
        raise


def _followed(path: Path) -> Path:
    """Return where a symbolic link leads to, so that what it leads to is written, and the link stays."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def require_plain(path: str | os.PathLike[str], error: type[SteadyrlError]) -> None:
    """Raise `error` if a pipe or a device is where a file should be: reading might never end, writing replaces it."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise error(f"{os.fspath(path)!r} is a pipe or a device, not a file; name another file")


def delete_abandoned(folder: str | os.PathLike[str]) -> None:
    """Delete temporary files that killed processes left in a folder; it is looked through once per process."""
    where = os.path.realpath(folder)
    if where in _swept:
        return
    _swept.add(where)
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            match = _TEMPORARY.fullmatch(entry.name)
            if match and match["machine"] == _machine() and not _lives(int(match["process"])):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def why_not_writable(directory: Path) -> str | None:
    """Return why no file can be written in a directory, or None if one can."""
    try:
        delete_abandoned(directory)
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or str(error)


def why_no_such_file(path: str | os.PathLike[str]) -> str | None:
    """Return why a file with this name cannot be written, or None if it can: its folder, the length of its name."""
    target = Path(as_path("path", path, RolloutError))
    try:
        target = _followed(target)
        if target.is_dir():
            return "it is a directory"
        if target.exists() and not target.is_file():
            return "it is a pipe or a device"
        longest = os.pathconf(target.absolute().parent, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
        length = len(os.fsencode(target.name))
        if length > longest:
            return f"its name has {length} bytes, and names in this folder may have {longest} at most"
        with contextlib.suppress(FileNotFoundError):
            os.lstat(target)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return why_not_writable(target.absolute().parent)


@contextlib.contextmanager
def locked(
    path: str | os.PathLike[str], error: type[SteadyrlError] = RolloutError, *, patience: float = 0.0
) -> Iterator[None]:
    """Hold a file or a folder for this run alone; raise `error` if another run holds it for `patience` seconds.

    A file that does not exist is created, empty; a folder must exist. The lock ends with the process, however that
    ends, and is not inherited by processes that an environment starts. File systems without locks are used without.
    """
    until = time.monotonic() + patience
    while True:
        try:
            held = _open_folder_locked(path, error) if os.path.isdir(path) else open_locked(path, error)
            break
        except error:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)
    try:
        yield
    finally:
        held.close()


def _open_folder_locked(path: str | os.PathLike[str], error: type[SteadyrlError]) -> Any:
    held = _Descriptor(os.open(path, os.O_RDONLY))
    try:
        _lock(held, path, error)
    except BaseException:
        held.close()
        raise
    return held


def open_locked(path: str | os.PathLike[str], error: type[SteadyrlError] = RolloutError) -> Any:
    """Return a file, open for reading and writing without a buffer, that is locked until it is closed.

    A file that does not exist is created. If another run holds it, `error` is raised and nothing is changed.
    """
    while True:
        require_plain(path, error)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        try:
            _lock(file, path, error)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()  # the run that held it has deleted or replaced it in the meantime


def _lock(held: Any, path: str | os.PathLike[str], error: type[SteadyrlError]) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(held.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        raise error(
            f"{os.fspath(path)!r} is in use by another run, which would be mixed with this one; wait for its end, or "
            "name another place"
        ) from problem
    except OSError:
        return  # this file system has no locks
    _locks.add(held)


class _Descriptor:
    """A file descriptor of a folder, which Python's files do not open."""

    def __init__(self, number: int) -> None:
        self._number: int | None = number

    def fileno(self) -> int:
        assert self._number is not None
        return self._number

    def close(self) -> None:
        if self._number is not None:
            os.close(self._number)
            self._number = None


def _forget_locks() -> None:
    """In a forked process: close what is locked, since a copy of the descriptor would keep the lock alive."""
    for held in list(_locks):
        with contextlib.suppress(OSError):
            held.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def _machine() -> str:
    """Return eight letters for the machine and, in containers, the set of process numbers that we are in."""
    try:
        space: Any = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode()).hexdigest()[:8]


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
