"""A compiled variant of a kernel: one specialisation for one target, ready to load on devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda_async import Module
from cuda_async.driver import HostImage

from ..frontend import Capture, ConstantSpec, FunctionSource, LaunchCheck, ParameterSpec, Program, translate
from ..ir import Function, PointerType, TileType
from ..passes import ORDER, PIPELINE, run_passes
from ._written import constant_key

if TYPE_CHECKING:
    from cuda_async import Function as DeviceFunction

    from ..tileir import Toolchain
    from ._disk_cache import DiskCache
    from ._options import KernelOptions

__all__ = ["HOST", "Variant", "build_program", "compile_variant", "spec_key", "target_of"]

HOST = "host"
"""The target that stands for the interpreter."""


def target_of(kind: str, compute_capability: tuple[int, int]) -> str:
    """What kernels are compiled for on a device."""
    major, minor = compute_capability
    return HOST if kind == "host" else f"sm_{major}{minor}"


@dataclass(frozen=True, eq=False)
class Variant:
    """Compiled code.

    Attributes:
        function: loads and launches it.
        checks: what every launch must satisfy.
        specs: what it was compiled for.
        target: "host" or an architecture.
        captures: what is compiled in of the program around the kernel.
    """

    function: DeviceFunction
    checks: tuple[LaunchCheck, ...]
    specs: tuple[ParameterSpec, ...]
    target: str
    captures: tuple[Capture, ...]

    def is_current(self) -> bool:
        """True while what was captured is what it was."""
        return all(capture.holds() for capture in self.captures)


def build_program(
    source: FunctionSource, specs: tuple[ParameterSpec, ...], options: KernelOptions, *, for_device: bool
) -> Program:
    """Translate a kernel and run the passes; with tokens where it is to be compiled."""
    program = translate(source, specs, options.hints)
    run_passes(program.function, PIPELINE + ORDER if for_device else PIPELINE)
    return program


def compile_variant(
    source: FunctionSource,
    specs: tuple[ParameterSpec, ...],
    options: KernelOptions,
    target: str,
    disk_cache: DiskCache,
) -> Variant:
    """Compile; slow. On a CUDA target by the assembler, or from the disk cache.

    Raises:
        KernelError: the kernel is wrong. tileir.errors.AssemblerError: the assembler did not make a cubin.
    """
    program = build_program(source, specs, options, for_device=target != HOST)
    name = program.function.name
    if target == HOST:
        from ..interpreter import TileHostFunction

        host = TileHostFunction(program.function)
        module = Module.from_host_image(HostImage(functions={name: host}, name=name))
    else:
        module = Module.from_cubin(_cubin(program.function, options, target, disk_cache), name=name)
    function = module.function(name, signature=_signature(program.function))
    return Variant(function, program.checks, specs, target, program.captures)


def _signature(function: Function) -> tuple[str, ...]:
    """Parameter types as the launcher checks them; a bfloat16 goes as its bits."""
    found = []
    for value in function.body.arguments:
        kind = value.type
        assert isinstance(kind, TileType)
        short = "ptr" if isinstance(kind.dtype, PointerType) else kind.dtype.short
        found.append({"bf16": "u16"}.get(short, short))
    return tuple(found)


def _cubin(function: Function, options: KernelOptions, target: str, disk_cache: DiskCache) -> bytes:
    from ..lowering import lower
    from ..tileir import assemble, find_toolchain
    from ..tileir.errors import ArchitectureError, RejectedError

    bytecode = lower(function)
    toolchain = find_toolchain()
    key = _disk_key(bytecode, target, options.opt_level, toolchain)
    cubin = disk_cache.get(key)
    if cubin is not None:
        return cubin
    try:
        cubin = assemble(
            bytecode, target, kernel=function.name, opt_level=options.opt_level, toolchain=toolchain
        ).cubin
    except (ArchitectureError, RejectedError):
        # once more with source locations in it, so that the error names the user's line
        assemble(
            lower(function, locations=True),
            target,
            kernel=function.name,
            opt_level=options.opt_level,
            toolchain=toolchain,
        )
        raise
    disk_cache.put(key, cubin, {"kernel": function.name, "target": target})
    return cubin


def _disk_key(bytecode: bytes, target: str, opt_level: int, toolchain: Toolchain) -> bytes:
    """All that the cubin depends on. The bytecode holds the source, what it reaches, and constants."""
    head = f"cubin 1\0{target}\0{opt_level}\0{toolchain.fingerprint}\0".encode()
    return head + bytecode


def spec_key(specs: tuple[ParameterSpec, ...]) -> object:
    """A key for specs: constants are told apart by type as well as value."""
    return tuple([constant_key(s.value) if isinstance(s, ConstantSpec) else s for s in specs])
