"""Getting a variant in the cheapest way there is: made ahead of time, remembered, or compiled now."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from ._variant import HOST, Variant

if TYPE_CHECKING:
    import types

    from ..frontend import ParameterSpec
    from ._compiled import CompiledKernels
    from ._disk_cache import DiskCache
    from ._kernel import Kernel
    from ._options import KernelOptions

__all__ = ["LOADED", "obtain"]

LOADED: list[CompiledKernels] = []
"""Folders of kernels compiled ahead of time that are in use; changed by `_compiled.py`, under its lock."""


def obtain(
    kernel: Kernel,
    function: types.FunctionType,
    specs: tuple[ParameterSpec, ...],
    options: KernelOptions,
    target: str,
    disk_cache: DiskCache,
) -> Variant:
    """The variant of a kernel for these specs; slow.

    Raises:
        CompiledKernelError: only kernels made ahead of time may be used, and none serves.
        KernelError: the kernel is wrong. tileir.errors.AssemblerError: the assembler did not make a cubin.
    """
    began = perf_counter()
    why_not = ""
    if target != HOST and LOADED:
        from ._compiled import find_compiled

        found, why_not = find_compiled(kernel, function, specs, options, target)
        if found is not None:
            return found
    key = None if target == HOST else _key(function, specs, options, target)
    if key is not None:
        from ._recall import recall

        variant = recall(function, specs, target, key, disk_cache)
        if variant is not None:
            elapsed_ms = (perf_counter() - began) * 1e3
            return replace(variant, timings=replace(variant.timings, total_ms=elapsed_ms))
    from . import _compile

    try:
        variant = _compile.compile_variant(kernel.source, specs, options, target, disk_cache, began)
    except Exception as error:
        if why_not:
            error.add_note(why_not)
        raise
    if key is not None:
        from ._recall import remember

        remember(function, variant, key, disk_cache)
    return variant


def _key(
    function: types.FunctionType, specs: tuple[ParameterSpec, ...], options: KernelOptions, target: str
) -> bytes | None:
    """What the compilation is remembered by; None without an assembler, whose identity is part of it."""
    from ..tileir import find_toolchain
    from ..tileir.errors import CompilerNotFoundError
    from ._recall import recall_key

    try:
        toolchain = find_toolchain()
    except CompilerNotFoundError:
        return None  # compiling says what is missing
    return recall_key(function, specs, options, target, toolchain)
