"""Which code is one's own (a script, a notebook, a file beside them), and what it reads while it runs.

Code of installed packages is told by their versions; one's own only by its content. Nothing here runs any of it.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import itertools
import os
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_READ_A_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_OF_AN_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_COMPILED = tuple(EXTENSION_SUFFIXES)
_MOST_HELD = 10_000
_MADE_BY_A_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a statement `class` made it


def names_of_globals(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code, and the code inside it, reads from its module: `self.t` is not the module's `t`."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in (*_READ_A_GLOBAL, "IMPORT_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_of_globals(constant)


def _steps(code: types.CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]  # part of the next one


def names_handed_on(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the module that code, and the code inside it, uses otherwise than as in `name.attribute`."""
    for step, following in itertools.pairwise(_steps(code)):
        if step.opname in _READ_A_GLOBAL and following.opname not in _OF_AN_ATTRIBUTE:
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_handed_on(constant)


def imported_code(function: types.FunctionType) -> Iterator[types.CodeType | str]:
    """Yield the code of the modules of one's own that a function imports when it is called, in the order of names.

    Of a compiled module, it is the digest of its file.
    """
    found: dict[str, types.CodeType | str] = {}
    _import_code(function.__code__, str(function.__globals__.get("__package__") or ""), found)
    yield from (found[name] for name in sorted(found))


def _import_code(code: types.CodeType, package: str, found: dict[str, types.CodeType | str]) -> None:
    """Add the code of the modules of one's own that code imports when it runs, and of those that these import.

    None of them is run, so that it does not matter whether one was imported before.

    Args:
        code: of a function or a module.
        package: that of its module, for relative imports.
        found: the code of each module by its name.
    """
    steps = _steps(code)
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, parts = steps[i - 2].argval, steps[i - 1].argval or ()
            try:
                name = importlib.util.resolve_name("." * level + step.argval, package)
            except ImportError:  # beyond the package
                continue
            for module in (name, *(f"{name}.{part}" for part in parts)):
                _add_code_of(module, found)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _import_code(constant, package, found)


def _add_code_of(module: str, found: dict[str, types.CodeType | str]) -> None:
    spec: ModuleSpec | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        try:
            spec = PathFinder.find_spec(name, None if spec is None else spec.submodule_search_locations)
            if spec is None or not _is_own_spec(spec):
                return
            code = None if name in found else spec.loader.get_code(name)  # type: ignore[union-attr]
        except Exception:  # it cannot be read, or is no Python
            return
        if code is None and name not in found and str(spec.origin).endswith(_COMPILED):
            found[name] = _digest_of_file(str(spec.origin))
        elif code is not None:
            found[name] = code
            _import_code(code, name if spec.submodule_search_locations is not None else name.rpartition(".")[0], found)


def _is_own_spec(spec: ModuleSpec) -> bool:
    file = spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
    return file is not None and spec.name.split(".")[0] != "steadyrl" and _is_own_file(file)


def compiled_content(value: Any) -> Iterator[str]:
    """Yield the digest of the file, if a function or class is of a compiled module (C, C++, Cython) of one's own."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and file.endswith(_COMPILED) and is_own(value):
        yield _digest_of_file(file)


def library_content(name: str | None) -> str:
    """Return what tells a library that ctypes loaded: the digest of its file, if it is one's own, or else its name."""
    own = name is not None and os.path.isfile(name) and _is_own_file(os.path.abspath(name))
    return _digest_of_file(str(name)) if own else os.path.basename(name or "")


def _digest_of_file(file: str) -> str:
    """Return the SHA-256 of a file's content; "" if it is gone."""
    try:
        return _digest_of_version(file, os.stat(file).st_mtime_ns)
    except OSError:
        return ""


@functools.lru_cache(64)  # a module may have many functions
def _digest_of_version(file: str, modified: int) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def held_code(values: Iterable[Any]) -> frozenset[Any]:
    """Return the classes, functions and modules of one's own of which values hold instances, at any depth.

    They tell what an environment was made of by names that no code shows: importlib.import_module, globals()[name] and
    eval. It is code alone and no state; of what holds more than 10,000 objects, the beginning.
    """
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    waiting = deque(values)
    while waiting and len(seen) < _MOST_HELD:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, types.MethodType):
            waiting += (value.__func__, value.__self__)
        elif isinstance(value, types.FunctionType):
            part: Any = value.__code__ if value.__closure__ else value  # a closure may hold any state
            found |= {id(part): part} if is_own(value) else {}
        elif isinstance(value, types.ModuleType):
            found |= {id(value): value} if is_own_module(value.__name__) else {}
        elif isinstance(value, type):
            found |= {id(value): value} if is_own(value) else {}
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif is_own(type(value)):
            waiting += (type(value), *getattr(value, "__dict__", {}).values())
    return frozenset(found.values())


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code, and the code inside it, may read from its module or, as attributes, from others."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def module_of(value: Any) -> str:
    """Return the name of an installed module; of others, whose names depend on how they are run, none."""
    return "" if is_own(value) else str(value.__module__)


def is_own(value: Any) -> bool:
    """Whether a function or class is of a script, a notebook or a file beside them, whose content no version tells."""
    module = getattr(value, "__module__", None)
    if module in (None, "builtins"):  # so says, too, what `exec` makes without a name for its module
        return isinstance(value, types.FunctionType) or bool(getattr(value, "__flags__", 0) & _MADE_BY_A_CLASS)
    return isinstance(module, str) and is_own_module(module)


def is_own_module(module: str) -> bool:
    """Whether a module is not an installed package's; one that is not loaded was run by `exec`, as notebooks are."""
    if module in ("__main__", "__mp_main__") or module not in sys.modules:
        return True
    found = sys.modules[module]
    file = getattr(found, "__file__", None) or next(iter(getattr(found, "__path__", ())), None)
    if file is None or module.split(".")[0] == "steadyrl":
        return False
    return _is_own_file(file)


def _is_own_file(file: str) -> bool:
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and not any(path.is_relative_to(folder) for folder in _libraries())


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of installed packages and of Python itself."""
    return tuple({path for name, path in sysconfig.get_paths().items() if "lib" in name or "pack" in name})
