"""Results of compilations, remembered by what went in: a warm start runs no front end.

Theory. The cubin's key in the disk cache is its bytecode, which is right whatever the kernel reaches, but to
have it the front end must run, and the compiler be imported: 100 to 200 ms in a new process. So for each
compilation a *recollection* is kept as well. Its key is what is known before any of that: the code of the
kernel's function, the specs of the arguments, options, target, assembler, and this package's own files.
It names the cubin's entry and holds the launch checks and the list of captures: every value the kernel read
of the program around it, by where it was read and a *mark* that tells it from others. Kernels made by one
factory have one key and differ in captures, so up to 16 recollections share a key, the latest first.

A recollection is used if every capture, read again in this process, has the same mark. There is none of a
kernel that reads values without a mark (objects of classes that are not ours), calls functions at compile
time instead of compiling them, or uses `tk.static_eval`, whose expression reads what it likes: it takes the
long way, which is always right. So does anything that fails here.

Code is marked by what Python compiled of it, line table included: the same text elsewhere in its file is
other code, since messages name lines.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from cuda_async import Module

from ..dtypes import DType
from ..frontend import Capture
from ..frontend._captures import MAX_CONTENT, frozen, is_trusted
from ..tileir import find_toolchain
from ._portable import NotPortable, from_portable, to_portable
from ._timings import CompileTimings
from ._variant import Variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..frontend import ParameterSpec
    from ..tileir import Toolchain
    from ._disk_cache import DiskCache
    from ._options import KernelOptions

__all__ = ["Mark", "mark_of", "recall", "recall_key", "remember"]

Mark = str | int | None | list["Mark"]

_EVALUATE = "static_eval"

MAX_PER_KEY = 16
"""Recollections that share a key; beyond, the oldest goes."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def recall_key(
    function: types.FunctionType,
    specs: tuple[ParameterSpec, ...],
    options: KernelOptions,
    target: str,
    toolchain: Toolchain,
) -> bytes | None:
    """What a compilation is remembered by; None if something in it has no meaning in another process."""
    try:
        parts = [
            "recall 1",
            _package_mark(),
            [sys.version, np.__version__],
            [function.__module__, function.__qualname__, mark_of(function.__code__)],
            to_portable(specs),
            to_portable(options),
            [target, toolchain.fingerprint],
        ]
    except NotPortable:
        return None
    parts[5][2].pop("compile_timeout_s")
    return json.dumps(parts).encode()


def recall(
    function: types.FunctionType,
    specs: tuple[ParameterSpec, ...],
    target: str,
    key: bytes,
    disk_cache: DiskCache,
) -> Variant | None:
    """The variant that was remembered, if it is still right."""
    for entry in _kept(disk_cache, key):
        try:
            captures = _captures_now(function, entry["captures"])
            if captures is None:
                continue
            checks = tuple([from_portable(check) for check in entry["checks"]])
            name, signature = entry["name"], tuple(entry["signature"])
            cubin = disk_cache.get_named(entry["cubin"])
        except (NotPortable, ValueError, TypeError, KeyError, IndexError, RecursionError):
            continue
        if cubin is not None:
            loaded = Module.from_cubin(cubin, name=name).function(name, signature=signature)
            timings = CompileTimings(name, target, "recalled", 0.0, 0.0, 0.0, 0.0, 0.0)
            return Variant(loaded, checks, specs, target, captures, timings, signature, entry["cubin"])
    return None


def _kept(disk_cache: DiskCache, key: bytes) -> list[Any]:
    text = disk_cache.get(key)
    try:
        entries = json.loads(text) if text is not None else []
    except (ValueError, RecursionError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def remember(function: types.FunctionType, variant: Variant, key: bytes, disk_cache: DiskCache) -> bool:
    """Keep what a compilation gave; whether it was."""
    try:
        entry = {
            "name": variant.function.name,
            "signature": list(variant.signature),
            "cubin": variant.cubin_name,
            "checks": [to_portable(check) for check in variant.checks],
            "captures": _describe(function, variant.captures),
        }
    except NotPortable:
        return False
    about: dict[str, Any] = {
        "kernel": variant.function.name,
        "target": variant.target,
        "kind": "recollection",
    }
    # two processes that do this at once lose one of their entries: it is made again
    others = [
        e for e in _kept(disk_cache, key) if e.get("captures") != json.loads(json.dumps(entry["captures"]))
    ]
    return disk_cache.put(key, json.dumps([entry, *others[: MAX_PER_KEY - 1]]).encode(), about)


# ------------------------------------------------------------------ captures


def _describe(function: types.FunctionType, captures: Sequence[Capture]) -> list[Any]:
    """Captures as JSON: where each is read, and its mark."""
    compiled = {id(c.owner) for c in captures if c.name == "__code__"}
    described: list[Any] = []
    codes = [function.__code__, *[c.value for c in captures if isinstance(c.value, types.CodeType)]]
    if any(_evaluates(code) for code in codes) or any(
        getattr(c.value, "__name__", "") == _EVALUATE for c in captures
    ):
        raise NotPortable("what static_eval reads is not known")
    for position, capture in enumerate(captures):
        value = capture.value
        if (
            isinstance(value, types.FunctionType)
            and id(value) not in compiled
            and not is_trusted(value.__module__ or "")
        ):
            raise NotPortable(f"{value.__qualname__} was called, not compiled: what it reads is not known")
        owner = _owner(function, captures[:position], capture)
        described.append([capture.kind, owner, capture.name, mark_of(value)])
    return described


def _evaluates(code: types.CodeType) -> bool:
    return _EVALUATE in code.co_names or any(
        _evaluates(part) for part in code.co_consts if isinstance(part, types.CodeType)
    )


def _owner(function: types.FunctionType, before: Sequence[Capture], capture: Capture) -> list[Any]:
    """How another process finds the place a capture was read from."""
    owner = capture.owner
    if capture.kind == "global":
        if owner is function.__globals__:
            return ["kernel"]
        for position, other in enumerate(before):
            if getattr(other.value, "__globals__", None) is owner:
                return ["globals of", position]
        module = sys.modules.get(str(owner.get("__name__")))
        if module is not None and vars(module) is owner:
            return ["module", module.__name__]
    elif capture.kind == "cell":
        if (name := _cell_name(function, owner)) is not None:
            return ["cell", name]
        for position, other in enumerate(before):
            if (
                isinstance(other.value, types.FunctionType)
                and (name := _cell_name(other.value, owner)) is not None
            ):
                return ["cell of", position, name]
    else:
        for position, other in enumerate(before):
            if other.value is owner:
                return ["value of", position]
            if (key := _key_in(other.value, owner)) is not None:
                return ["item of", position, key]
        if isinstance(owner, types.ModuleType) and sys.modules.get(owner.__name__) is owner:
            return ["module", owner.__name__]
    raise NotPortable(f"{capture.name} was read from a place that another process cannot find")


def _key_in(container: object, owner: object) -> str | int | None:
    """Under which key a tuple, list or dict holds an object, such as a table of helpers."""
    items: Any = ()
    if isinstance(container, dict):
        items = container.items()
    elif isinstance(container, tuple | list):
        items = enumerate(container)
    return next((key for key, value in items if value is owner and type(key) in (str, int)), None)


def _cell_name(function: types.FunctionType, cell: object) -> str | None:
    for name, own in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if own is cell:
            return name
    return None


def _captures_now(function: types.FunctionType, described: list[Any]) -> tuple[Capture, ...] | None:
    """The captures as they are in this process; None if one differs."""
    found: list[Capture] = []
    for kind, where, name, mark in described:
        try:
            owner = _find_owner(function, found, kind, where)
            capture = Capture(kind, owner, name, None, None)
            value = capture.read()
            if mark_of(value) != mark:
                return None
        except Exception:  # gone, or it fails to be read: it is not what it was
            return None
        found.append(Capture(kind, owner, name, value, frozen(value)))
    return tuple(found)


def _find_owner(function: types.FunctionType, found: list[Capture], kind: str, where: list[Any]) -> Any:
    how = where[0]
    if how == "kernel":
        return function.__globals__
    if how == "module":
        module = sys.modules[where[1]]
        return vars(module) if kind == "global" else module
    if how == "cell":
        return _cell(function, where[1])
    value: Any = found[where[1]].value
    if how == "item of":
        return value[where[2]]
    if how == "globals of":
        return value.__globals__
    return _cell(value, where[2]) if how == "cell of" else value


def _cell(function: types.FunctionType, name: str) -> types.CellType:
    assert function.__closure__ is not None
    return function.__closure__[function.__code__.co_freevars.index(name)]


# ------------------------------------------------------------------ marks


def mark_of(value: object) -> Mark:
    """What tells a value from all others, in every process that has it.

    Raises:
        NotPortable: nothing does.
    """
    kind = type(value)
    if kind in _PLAIN:
        return [kind.__name__, repr(value)]
    if isinstance(value, DType):
        return ["dtype", value.name]
    if kind in (tuple, list):
        return [kind.__name__, *map(mark_of, value)]  # type: ignore[call-overload]  # one of the two
    if isinstance(value, set | frozenset) and kind in (set, frozenset):
        return [kind.__name__, *sorted(map(mark_of, value), key=repr)]
    if isinstance(value, dict) and kind is dict:
        return ["dict", *[[mark_of(k), mark_of(v)] for k, v in value.items()]]
    if isinstance(value, np.ndarray | np.generic) and value.size <= MAX_CONTENT and not value.dtype.hasobject:
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return [kind.__name__, value.dtype.name, list(value.shape), digest]
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if isinstance(value, types.CodeType):
        return ["code", _code_digest(value)]
    if isinstance(value, enum.Enum) and not isinstance(value.value, enum.Enum):
        return ["enum", kind.__module__, kind.__qualname__, value.name, mark_of(value.value)]
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return _mark_of_callable(value)
    raise NotPortable(f"{kind.__name__} {value!r} has no mark")


def _mark_of_callable(value: Any) -> Mark:
    module, name = value.__module__ or "", value.__qualname__
    if is_trusted(module):
        return ["trusted", module, name]
    if isinstance(value, types.FunctionType):
        defaults = [mark_of(value.__defaults__), mark_of(value.__kwdefaults__)]
        return ["function", module, name, *defaults, _code_digest(value.__code__)]
    if isinstance(value, type) and issubclass(value, enum.Enum):
        members: list[Mark] = [[key, mark_of(member.value)] for key, member in value.__members__.items()]
        return ["enumeration", module, name, *members]
    raise NotPortable(f"{name} of {module} has no mark")


def _code_digest(code: types.CodeType) -> str:
    return hashlib.sha256(json.dumps(_code_parts(code)).encode()).hexdigest()


def _code_parts(code: types.CodeType) -> list[Any]:
    constants = [_code_parts(c) if isinstance(c, types.CodeType) else mark_of(c) for c in code.co_consts]
    return [
        code.co_filename,
        code.co_qualname,
        code.co_firstlineno,
        code.co_flags,
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount],
        [list(code.co_names), list(code.co_varnames), list(code.co_freevars), list(code.co_cellvars)],
        code.co_code.hex(),
        code.co_linetable.hex(),
        constants,
    ]


def get_ready() -> None:
    """Work out what every recollection needs, so that the first one is found sooner.

    Raises:
        CompilerNotFoundError: there is no assembler.
    """
    _package_mark()
    find_toolchain()


_package: str = ""


def _package_mark() -> str:
    """Changes when a file of this package does."""
    global _package
    if not _package:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        found: list[str] = []
        folders = [root]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name.endswith(".py"):
                        about = entry.stat()
                        found.append(f"{entry.path} {about.st_size} {about.st_mtime_ns}")
                    elif entry.is_dir() and entry.name != "__pycache__":
                        folders.append(entry.path)
        _package = hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()
    return _package
