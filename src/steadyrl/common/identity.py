"""Identity by content: what tells two environment factories, or two policies, apart.

The fingerprint of a function is made of its code, its defaults, what it closes over and what it reads from its module
and from others that are not installed packages; of a module that it imports only when it is called, the whole code
enters, which is read and not run; of a compiled one, the file. The fingerprint of an object is made of its class and
its state. Memory addresses, file names, line numbers and the names of modules that are not installed do not enter, so
the same script gives the same fingerprint in every process, run or imported, and another lambda, or the same class with
other parameters, gives another one.

Where content does not say it all (a simulator behind a handle, state that changes while it acts), an attribute
`steadyrl_identity` of the object, any text, is used instead of its content.
"""

from __future__ import annotations

import copyreg
import ctypes
import functools
import gc
import hashlib
import io
import os
import pickletools
import re
import struct
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from steadyrl.common.own_code import (
    compiled_content,
    imported_code,
    is_own,
    is_own_module,
    library_content,
    module_of,
    names_handed_on,
    names_in,
    names_of_globals,
)

_SCALARS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_DEEPEST = 5000
_LEVELS_OF_A_THREAD = 200  # each has its own limit of recursion
_OF_EVERY_CLASS = (
    "__module__",
    "__doc__",
    "__firstlineno__",
    "__static_attributes__",
    "__dict__",
    "__weakref__",
    "__annotations__",
    "_abc_impl",
)
_OF_EVERY_MODULE = ("__name__", "__file__", "__package__", "__spec__", "__loader__", "__cached__", "__path__")
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_NUMBERED = re.compile(r"[./]___torch_mangle_\d+")  # of compiled modules: how many there were before
_UNSEEN = (memoryview, re.Match, struct.Struct, ctypes.CDLL, property, super, np.ufunc, types.GeneratorType)
_OF_EVERY_MASKED_ARRAY = tuple(vars(np.ma.array(0)))
_GENERATORS = ("_np_random", "_np_random_seed")  # of Gymnasium's spaces: seeded by chance, reseeded before use


def fingerprint(value: Any) -> str:
    """Return 16 hexadecimal digits that depend on the content of a value alone.

    Example:
        >>> fingerprint(lambda: 1) == fingerprint(lambda: 1), fingerprint(lambda: 1) == fingerprint(lambda: 2)
        (True, False)
    """
    return _digest(value, {}, []).hex()[:16]


def readable_name(value: Any) -> str:
    """Return a name for a function, class or object without a memory address, as in `partial(make_env, 3, wind=0.1)`.

    Example:
        >>> readable_name(functools.partial(sorted, reverse=True))
        'partial(sorted, reverse=True)'
    """
    if isinstance(value, functools.partial):
        named = (f"{key}={_shown(item)}" for key, item in value.keywords.items())
        return f"partial({', '.join((readable_name(value.func), *map(_shown, value.args), *named))})"
    if isinstance(value, types.MethodType):
        return f"{readable_name(value.__self__)}.{value.__func__.__name__}"
    return str(getattr(value, "__qualname__", None) or type(value).__qualname__)


def content_text(value: Any) -> str:
    """Return the repr of a value whose repr says it all, and otherwise its type and fingerprint.

    An address, the order of a set, the middle of a large array or a class's edited code are not in a repr, or not the
    same in every process.

    Example:
        >>> content_text([1, {"map": "4x4"}]), content_text({1, 2})
        ("[1, {'map': '4x4'}]", '<set 6d5254fdf14181ce>')
    """
    return repr(value) if _is_plain(value) else f"<{type(value).__qualname__} {fingerprint(value)}>"


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return type(value) in _SCALARS or isinstance(value, np.number | np.bool_)


def _shown(value: Any) -> str:
    if isinstance(value, _SCALARS):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return readable_name(value) if callable(value) else f"<{type(value).__qualname__}>"


def _digest(value: Any, known: dict[int, tuple[bytes, Any]], within: list[int]) -> bytes:
    """Return the SHA-256 of a value's type and of the digests of what it is made of.

    Args:
        value: anything.
        known: digests of objects that were met before, by address; the objects are kept alive with them.
        within: addresses of the objects that this one is a part of, so that a cycle is noticed.
    """
    if type(value) in _SCALARS:
        return _of_scalar(value)
    if id(value) in known:
        return known[id(value)][0]
    if id(value) in within or len(within) > _DEEPEST:
        return hashlib.sha256(b"cycle").digest()
    name = named_identity(value)
    if name is not None:
        return hashlib.sha256(f"identity {name}".encode(errors="surrogatepass")).digest()
    within.append(id(value))
    try:
        parts = list(_children(value))
    except Exception:  # state that cannot be looked at from outside
        parts = [type(value), "opaque"]
    if len(within) % _LEVELS_OF_A_THREAD:
        digests = [_digest(part, known, within) for part in parts]
    else:
        with ThreadPoolExecutor(1) as deeper:
            digests = deeper.submit(lambda: [_digest(part, known, within) for part in parts]).result()
    if isinstance(value, set | frozenset):
        digests.sort()
    within.pop()
    result = hashlib.sha256(b"".join([type(value).__qualname__.encode(), b" ", *digests])).digest()
    known[id(value)] = result, value
    return result


def named_identity(value: Any) -> str | None:
    """Return the text that an object gives as its `steadyrl_identity`, or None."""
    try:
        name = getattr(value, "steadyrl_identity", None)
    except Exception:  # somebody's own __getattr__
        return None
    return name if isinstance(name, str) else None


def _of_scalar(value: Any) -> bytes:
    return hashlib.sha256(f"{type(value).__name__} {value!r}".encode(errors="surrogatepass")).digest()


def _rough(value: Any, levels: int = 3) -> bytes:
    """Return a digest of the outer levels of a value, by which parts are ordered that have no order of their own.

    The order must not depend on hashes, and parts that refer to each other in a circle have to be met in the same order
    every time for their digests to be the same.
    """
    if type(value) in _SCALARS:
        return _of_scalar(value)
    if levels == 0 or isinstance(value, type | types.FunctionType | types.ModuleType):
        return hashlib.sha256(readable_name(value).encode(errors="surrogatepass")).digest()
    try:
        if isinstance(value, set | frozenset):
            parts = sorted(_rough(part, levels - 1) for part in value)
        elif isinstance(value, Mapping):
            parts = sorted(_rough(key, levels - 1) + _rough(part, levels - 1) for key, part in value.items())
        else:
            parts = [_rough(part, levels - 1) for part in _children(value)]
    except Exception:  # state that cannot be looked at from outside
        parts = []
    return hashlib.sha256(b"".join([type(value).__qualname__.encode(), b" ", *parts])).digest()


def _children(value: Any) -> Iterator[Any]:
    """Yield what a value is made of, in an order that does not depend on hashes."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield from (_kind_of(value.dtype), value.shape, np.ascontiguousarray(value).tobytes())
        if isinstance(value, np.ma.MaskedArray):
            yield from (np.ma.getmaskarray(value), value.fill_value)
        yield from _of_attributes(value)
    elif isinstance(value, _UNSEEN):
        yield from _of_unseen(value)
    elif isinstance(value, np.generic):
        yield from (_kind_of(value.dtype), value.tobytes())
    elif isinstance(value, types.ModuleType):
        yield from _of_module(value)
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.CodeType):
        yield from _of_code(value)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, types.BuiltinFunctionType):
        yield from (value.__module__, value.__qualname__, *compiled_content(value))
        if not isinstance(value.__self__, types.ModuleType | type(None)):
            yield value.__self__
    elif isinstance(value, types.CellType):
        yield from _of_cell(value)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
        if vars(value):
            yield vars(value)
    elif callable(getattr(value, "__wrapped__", None)) and not is_own(type(value)):  # a cached function
        yield from (type(value).__qualname__, value.__wrapped__)
    elif value is os.environ:  # as of any library, the name alone: it is another one in every shell
        yield "os.environ"
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=_rough)
        yield from _of_attributes(value)
    elif isinstance(value, tuple | list) and type(value) in (tuple, list):
        yield from value
    elif type(value) in (dict, types.MappingProxyType):
        yield from _of_mapping(value)
    elif callable(getattr(value, "detach", None)) and callable(getattr(value, "numpy", None)):  # a tensor
        yield from _of_tensor(value)
    elif callable(getattr(value, "save_to_buffer", None)) and type(value).__module__.startswith("torch."):
        yield from _of_compiled(value.save_to_buffer())
    else:
        yield from _of_object(value)


def _kind_of(dtype: np.dtype[Any]) -> str:
    return dtype.str if dtype.names is None else str(dtype)  # of fields, `str` has the names too


def _of_attributes(value: Any) -> Iterator[Any]:
    """Yield what a subclass has added to a set or an array."""
    found = {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in _OF_EVERY_MASKED_ARRAY}
    for kind in type(value).__mro__:
        slots = (name for name, part in vars(kind).items() if isinstance(part, types.MemberDescriptorType))
        found |= {name: getattr(value, name, None) for name in slots}
    if found:
        yield found


def _of_unseen(value: Any) -> Iterator[Any]:
    """Yield what pickle does not see of an object that is not made in Python, or sees as an address."""
    yield type(value)
    if isinstance(value, memoryview):
        yield from (value.format, value.shape, value.tobytes())
    elif isinstance(value, re.Match):
        yield from (value.re, value.string, value.pos, value.endpos, value.regs)
    elif isinstance(value, struct.Struct):
        yield value.format
    elif isinstance(value, ctypes.CDLL):
        yield library_content(value._name)
    else:
        if isinstance(value, np.ufunc):
            yield from (value.__name__, value.nin, value.nout)
        elif isinstance(value, types.GeneratorType) and value.gi_frame is not None:
            yield from (value.gi_frame.f_lasti, value.gi_frame.f_locals)
        for part in gc.get_referents(value):
            if not isinstance(part, types.FrameType):
                yield from _read(part, [])
        yield from _of_attributes(value)


def _of_tensor(value: Any) -> Iterator[Any]:
    """Yield a tensor's values, or the bytes of its file where numpy has no such type: bfloat16, sparse, quantised."""
    plain = value.detach().cpu()
    try:
        yield np.asarray(plain.numpy())
    except (TypeError, RuntimeError):
        file = io.BytesIO()
        sys.modules["torch"].save(plain, file)
        yield file.getvalue()


def _of_compiled(saved: bytes) -> Iterator[Any]:
    """Yield what a file of torch.jit holds: code, attributes and tensors, but not the lines of the source."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        found: list[tuple[str, Any]] = []
        for path in archive.namelist():
            name, content = _NUMBERED.sub("", path.partition("/")[2]), archive.read(path)
            if name.endswith(".pkl"):
                steps = ((step.name, argument) for step, argument, _ in pickletools.genops(content))
                found.append((name, [(s, _NUMBERED.sub("", a) if isinstance(a, str) else a) for s, a in steps]))
            elif name.endswith(".py"):
                found.append((name, _NUMBERED.sub("", content.decode())))
            elif not name.endswith(".debug_pkl") and not name.startswith(".data/"):
                found.append((name, content))
        yield from sorted(found, key=repr)


def _of_module(module: types.ModuleType) -> Iterator[Any]:
    """Yield all that a module holds that is handed on as a value, since it cannot be told what is read from it."""
    if not is_own_module(module.__name__):
        yield module.__name__
        return
    for name, part in sorted(vars(module).items()):
        if not name.startswith("__"):
            yield from (name, *_handed_on(part))


def _handed_on(value: Any) -> Iterator[Any]:
    """Yield what can be read from a value by functions that are not known."""
    if isinstance(value, types.ModuleType):
        yield value
    else:
        yield from _read(value, [])


def _of_mapping(value: Mapping[Any, Any]) -> Iterator[Any]:
    for key in sorted(value, key=_rough):
        if not (isinstance(key, str) and key in _GENERATORS):
            yield from (key, value[key])


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    """Yield a function's code, the values that it was made with, and what it reads from its module."""
    yield from (module_of(function), function.__qualname__, function.__code__)
    yield from (function.__defaults__, function.__kwdefaults__, function.__closure__)
    if vars(function):
        yield vars(function)
    names = sorted(set(names_in(function.__code__)))
    for name in sorted(set(names_of_globals(function.__code__))):
        if name in function.__globals__ and name not in _OF_EVERY_MODULE:
            yield from (name, *_read(function.__globals__[name], names))
    for name in sorted(set(names_handed_on(function.__code__))):
        if isinstance(function.__globals__.get(name), types.ModuleType):
            yield from (name, function.__globals__[name])
    yield from imported_code(function)


def _read(value: Any, names: list[str], within: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yield what a function sees that reads a value: of libraries, which have versions, the name alone.

    Args:
        value: what is read.
        names: all names that the function reads, some of them from modules.
        within: names of the modules that this one was read from, since modules of a package know each other.
    """
    if isinstance(value, types.FunctionType | type):
        yield value if is_own(value) else readable_name(value)
    elif isinstance(value, types.ModuleType):
        if not is_own_module(value.__name__):
            yield value.__name__
        elif value.__name__ not in within:
            for name in names:
                if name in vars(value):
                    yield from (name, *_read(vars(value)[name], names, (*within, value.__name__)))
    else:
        yield value


def _of_class(kind: type) -> Iterator[Any]:
    """Yield a class's name and, where it is not a library's, the functions and values in it."""
    yield from (module_of(kind), kind.__qualname__, *compiled_content(kind))
    if is_own(type(kind)):
        yield type(kind)
    if is_own(kind) or "<locals>" in kind.__qualname__:
        yield kind.__bases__
        for name, part in sorted(vars(kind).items()):
            if isinstance(part, staticmethod | classmethod):
                yield type(part).__name__
                part = part.__func__
            part = (part.fget, part.fset, part.fdel) if isinstance(part, property) else part
            if name not in _OF_EVERY_CLASS and not isinstance(part, _SLOTS):
                yield from (name, *_handed_on(part))


def _of_code(code: types.CodeType) -> Iterator[Any]:
    yield from (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags)
    yield from (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount)
    yield from code.co_consts


def _of_cell(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # not yet filled
        yield "empty"


def _of_object(value: Any) -> Iterator[Any]:
    """Yield an object's class and its state as pickle sees it; of what has no state that can be seen, the class."""
    yield type(value)
    try:
        reducer = copyreg.dispatch_table.get(type(value))  # of a compiled regular expression, for one
        reduced: Any = value.__reduce_ex__(4) if reducer is None else reducer(value)
    except Exception:  # a handle, a lock, a generator: nothing to be seen from outside
        yield vars(value) if hasattr(value, "__dict__") else "opaque"
        return
    if isinstance(reduced, str):  # the name of what is found in its module, as of a function that Cython compiled
        yield from (reduced, *compiled_content(value))
        return
    yield from _read(reduced[0], [])
    yield from (reduced[1], reduced[2] if len(reduced) > 2 else None)
    for items in reduced[3:5]:
        yield None if items is None else list(items)
