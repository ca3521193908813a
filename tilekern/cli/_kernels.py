"""From what the command line or a file says to operations that compile."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..jit import Kernel
from ..jit._argument_text import arguments_from_text

__all__ = ["UsageError", "Wanted", "from_file", "kernel_named", "options_from_text", "pairs", "wanted"]

DEFAULT_ARCHITECTURE = "sm_90"


class UsageError(Exception):
    """A command line, or a file of variants, that cannot be understood."""


class Wanted(NamedTuple):
    """One variant to compile, for some architectures."""

    kernel: Kernel
    arguments: dict[str, object]
    architectures: tuple[str, ...]


def wanted(
    name: str, texts: Mapping[str, object], options: Mapping[str, object], architectures: Sequence[str]
) -> Wanted:
    """A variant from its parts as text."""
    kernel = kernel_named(name)
    if options:
        kernel = kernel.with_options(**dict(options))  # type: ignore[arg-type]  # checked there
    return Wanted(kernel, arguments_from_text(kernel, texts), tuple(architectures) or (DEFAULT_ARCHITECTURE,))


def kernel_named(name: str) -> Kernel:
    """The kernel "module:name", or "path/to/file.py:name"."""
    module_name, colon, attribute = name.rpartition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{name!r} names no kernel; write module:kernel, such as mypackage.kernels:scale")
    try:
        module = _module(module_name)
    except (ImportError, SyntaxError) as error:
        raise UsageError(f"{module_name} cannot be imported: {error}") from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Kernel):
        kernels = [key for key, value in vars(module).items() if isinstance(value, Kernel)]
        raise UsageError(
            f"{module_name} has no kernel {attribute}; it has {', '.join(kernels) or 'no kernels'}"
        )
    return found


def _module(name: str) -> Any:
    """An imported module; of a file, under the name that importing it from its folder gives it."""
    folder = os.getcwd()
    if name.endswith(".py"):
        file = Path(name).resolve()
        if not file.is_file():
            raise ImportError(f"there is no file {name}")
        folder, name = str(file.parent), file.stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """NAME=VALUE words as a dict."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{what} is written NAME=VALUE, got {text!r}")
        if name in found:
            raise UsageError(f"{what} {name} is given twice")
        found[name] = value
    return found


def options_from_text(texts: Sequence[str]) -> dict[str, object]:
    """Compile options; numbers, True and False."""
    found: dict[str, object] = {}
    for name, value in pairs(texts, "an option").items():
        try:
            found[name] = ast.literal_eval(value.strip().capitalize() if value.isalpha() else value)
        except (ValueError, SyntaxError):
            raise UsageError(f"option {name} is a number, true or false, got {value!r}") from None
    return found


def from_file(file: str, architectures: Sequence[str]) -> list[Wanted]:
    """The variants a TOML or JSON file lists; `architectures` are those of variants that name none.

    [[variant]]
    kernel = "mypackage.kernels:scale"
    arch = ["sm_90", "sm_100"]
    options = { occupancy = 2 }
    arguments = { out = "float32[*16]/1024", x = "float32[*16]" }
    """
    try:
        text = Path(file).read_bytes()
        data = tomllib.loads(text.decode()) if file.endswith(".toml") else json.loads(text)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    listed = data.get("variant") if isinstance(data, dict) else None
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"{file} lists no variants; write them as [[variant]] tables")
    found = []
    for position, entry in enumerate(listed, 1):
        where = f"{file}: variant {position}"
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(key, {}), dict) for key in ("options", "arguments")
        ):
            raise UsageError(f"{where}: a variant, its options and its arguments are tables")
        unknown = set(entry) - {"kernel", "arch", "options", "arguments"}
        if unknown or not isinstance(entry.get("kernel"), str):
            wrong = f"has {', '.join(sorted(unknown))}, which mean nothing" if unknown else "names no kernel"
            raise UsageError(f"{where} {wrong}; it takes kernel, arch, options and arguments")
        arch = entry.get("arch", [])
        if not isinstance(arch, str) and not (
            isinstance(arch, list) and all(isinstance(name, str) for name in arch)
        ):
            raise UsageError(f"{where}: arch is a name such as 'sm_90', or a list of them, got {arch!r}")
        found.append(
            wanted(
                entry["kernel"],
                entry.get("arguments", {}),
                entry.get("options", {}),
                [arch] if isinstance(arch, str) else arch or architectures,
            )
        )
    return found
