"""Compiling one variant of a kernel: front end, passes, and then the interpreter, or bytecode and the assembler.

Imported when something has to be compiled: it brings the whole compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from cuda_async import Module
from cuda_async.driver import HostImage

from .._terms import Argument, encoded
from ..frontend import FunctionSource, LaunchCheck, ParameterSpec, Program, Requires, translate
from ..ir import Function, PointerType, TileType
from ..passes import CheckBounds, LaunchCondition, Placement, pipeline, run_passes
from ._dependent import check_waits_first, wait_at_the_beginning
from ._disk_cache import name_of
from ._timings import CompileTimings, Origin
from ._variant import HOST, Variant

if TYPE_CHECKING:
    from ..tileir import Assembly, Toolchain
    from ._disk_cache import DiskCache
    from ._options import KernelOptions

__all__ = [
    "assembled",
    "build_program",
    "bytecode_of",
    "compile_variant",
    "entry_signature",
    "toolchain_for",
]


@dataclass
class _Clock:
    """Measures steps that follow each other, in milliseconds."""

    began: float
    last: float
    steps: dict[str, float]

    @classmethod
    def start(cls, began: float | None = None) -> _Clock:
        now = perf_counter()
        return cls(now if began is None else began, now if began is None else began, {})

    def step(self, name: str) -> None:
        now = perf_counter()
        self.steps[name] = self.steps.get(name, 0.0) + (now - self.last) * 1e3
        self.last = now

    def timings(self, kernel: str, target: str, origin: Origin) -> CompileTimings:
        steps = [self.steps.get(name, 0.0) for name in ("front_end", "passes", "lowering", "assembler")]
        front_end, passes, lowering, assembler = steps
        total = (perf_counter() - self.began) * 1e3
        return CompileTimings(kernel, target, origin, front_end, passes, lowering, assembler, total)


def build_program(
    source: FunctionSource,
    specs: tuple[ParameterSpec, ...],
    options: KernelOptions,
    *,
    for_device: bool,
    clock: _Clock | None = None,
    placement: Placement | None = None,
) -> Program:
    """Translate a kernel and run the passes; with tokens where it is to be compiled.

    Args:
        placement: gets where bounds are checked.
    """
    clock = clock or _Clock.start()
    grid = options.const_grid if isinstance(options.const_grid, tuple) else None
    program = translate(source, specs, options.hints, grid, options.preconditions)
    if options.programmatic_dependent_launch:
        wait_at_the_beginning(program.function)
    clock.step("front_end")
    check = CheckBounds(
        program.facts,
        deny=options.deny_in_kernel_checks,
        unchecked=options.unchecked,
        in_place=options.checks_in_place,
        variants=options.check_variants,
    )
    passes = pipeline(
        check, fuse=options.fuse_multiply_add, for_device=for_device, allow_tma=options.allow_tma
    )
    run_passes(program.function, passes)
    if options.programmatic_dependent_launch:
        check_waits_first(program.function)
    checks = (*program.checks, *map(_launch_check, check.placement.conditions))
    if placement is not None:
        placement.axes[:], placement.conditions[:] = check.placement.axes, check.placement.conditions
    clock.step("passes")
    return replace(program, checks=checks)


def _launch_check(condition: LaunchCondition) -> LaunchCheck:
    """A launch check from what the bounds pass found."""
    terms = (*condition.at_least, *condition.guards, *condition.shown)
    flats = {a.position for term in terms for a in term.atoms() if isinstance(a, Argument)}
    return Requires(
        encoded(condition.at_least),
        encoded(condition.guards),
        condition.decides,
        condition.reason,
        encoded(condition.shown),
        tuple(sorted(flats)),
        condition.location,
    )


def compile_variant(
    source: FunctionSource,
    specs: tuple[ParameterSpec, ...],
    options: KernelOptions,
    target: str,
    disk_cache: DiskCache,
    began: float | None = None,
) -> Variant:
    """Compile; slow. On a CUDA target by the assembler, or from the disk cache.

    Args:
        began: when the work for it began, on `perf_counter`'s clock; now, if not given.
    Raises:
        KernelError: the kernel is wrong. tileir.errors.AssemblerError: the assembler did not make a cubin.
    """
    clock = _Clock.start(began)
    program = build_program(source, specs, options, for_device=target != HOST, clock=clock)
    name = program.function.name
    origin: Origin
    cubin_name = ""
    if target == HOST:
        from ..interpreter import TileHostFunction

        host = TileHostFunction(program.function)
        module, origin = Module.from_host_image(HostImage(functions={name: host}, name=name)), "interpreted"
    else:
        cubin, origin, cubin_name = _cubin(program.function, options, target, disk_cache, clock)
        module = Module.from_cubin(cubin, name=name)
    signature = entry_signature(program.function)
    function = module.function(name, signature=signature)
    timings = clock.timings(name, target, origin)
    return Variant(function, program.checks, specs, target, program.captures, timings, signature, cubin_name)


def entry_signature(function: Function) -> tuple[str, ...]:
    """Parameter types as the launcher checks them; a bfloat16 goes as its bits."""
    found = []
    for value in function.body.arguments:
        kind = value.type
        assert isinstance(kind, TileType)
        short = "ptr" if isinstance(kind.dtype, PointerType) else kind.dtype.short
        found.append({"bf16": "u16"}.get(short, short))
    return tuple(found)


def bytecode_of(function: Function, options: KernelOptions) -> bytes:
    """The bytecode that is assembled; with source lines where the options ask for them."""
    from ..lowering import lower

    return lower(function, locations=options.line_info or options.debug)


def assembled(
    function: Function,
    bytecode: bytes,
    options: KernelOptions,
    target: str,
    toolchain: Toolchain,
    *,
    remarks: bool = False,
    keep_ptx: bool = False,
) -> Assembly:
    """What the assembler makes of a kernel.

    Raises:
        KernelTypeError: the target does not have something the kernel uses.
        AssemblerError: it made nothing; the error has the user's line where there is one at fault.
    """
    from .. import tileir
    from ..lowering import check_target, lower
    from ..tileir.errors import ArchitectureError, RejectedError

    check_target(function, target)

    def run(module: bytes) -> Assembly:
        return tileir.assemble(
            module,
            target,
            kernel=function.name,
            source=_place(function),
            opt_level=0 if options.debug else options.level(target),
            line_info=options.line_info,
            debug=options.debug,
            remarks=remarks,
            keep_ptx=keep_ptx,
            timeout_s=options.compile_timeout_s,
            toolchain=toolchain,
        )

    try:
        return run(bytecode)
    except (ArchitectureError, RejectedError) as error:
        if error.location is None:
            # once more with source locations in it, so that the error names the user's line
            run(lower(function, locations=True))
        raise


def toolchain_for(function: Function, target: str, disk_cache: DiskCache | None = None) -> Toolchain:
    """The assembler; where there is none, the error says for which kernel it was needed."""
    from ..tileir import find_toolchain
    from ..tileir.errors import CompilerNotFoundError

    try:
        return find_toolchain(disk_cache)
    except CompilerNotFoundError as error:
        raise CompilerNotFoundError(
            str(error), kernel=function.name, source=_place(function), architecture=target
        ) from None


def _place(function: Function) -> str:
    location = function.location
    return f"{location.file}:{location.line}" if location else ""


def _cubin(
    function: Function, options: KernelOptions, target: str, disk_cache: DiskCache, clock: _Clock
) -> tuple[bytes, Origin, str]:
    """The machine code, where it came from, and its name in the disk cache."""
    bytecode = bytecode_of(function, options)
    clock.step("lowering")
    toolchain = toolchain_for(function, target, disk_cache)
    key = _disk_key(bytecode, target, options, toolchain)
    name = name_of(key)
    cubin = disk_cache.get_named(name)
    if cubin is not None:
        return cubin, "disk cache", name
    began = perf_counter()
    clock.last = began
    cubin = assembled(function, bytecode, options, target, toolchain).cubin
    clock.step("assembler")
    disk_cache.put(
        key,
        cubin,
        {
            "kernel": function.name,
            "source": _place(function),
            "target": target,
            "opt_level": options.level(target),
            "assembler": toolchain.assembler,
            "assembler_ms": round((perf_counter() - began) * 1e3, 1),
            "cubin_bytes": len(cubin),
        },
    )
    return cubin, "assembled", name


def _disk_key(bytecode: bytes, target: str, options: KernelOptions, toolchain: Toolchain) -> bytes:
    """All that the cubin depends on. The bytecode holds the source, what it reaches, and constants."""
    kind = f"{options.opt_level} {options.line_info} {options.debug}"
    head = f"cubin 3\0{target}\0{kind}\0{toolchain.fingerprint}\0".encode()
    return head + bytecode
