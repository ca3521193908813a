"""`@tk.kernel`: a Python function that is compiled when it is first run with arguments of a kind.

A launch finds its code in two steps. The call key (shapes, strides and the like as they are) leads to a
written-out function that launches such calls; `_written.py` makes both. Where there is none, the specs of
the arguments lead to a `Variant`, compiled once per target however many calls ask for it. That and loading
the code is slow and happens in `prepare`, off the event loop.
"""

from __future__ import annotations

import sys
import threading
import types
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from cuda_async import BoundLaunch, CompileError, Device, MappedPartition, Mut, Partition, Read, Tensor
from cuda_async.scheduling import call_behind_opening

from ..errors import KernelArgumentError
from ._by_target import ByTarget
from ._grid import Grid, as_grid, grid_of
from ._launch import CompileOp, KernelLaunch
from ._options import KernelOptions
from ._parameters import Parameter, names_around, parameters_of
from ._versions import Versions
from ._written import (
    CallPath,
    Run,
    Slot,
    are_decided,
    flat_arguments,
    rule_of,
    run_checks,
    write_call_path,
    write_run,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ..frontend import FunctionSource, ParameterSpec
    from ._check_report import CheckReport
    from ._disk_cache import DiskCache
    from ._grouped import GroupedKernel
    from ._inspect import Report, Resources
    from ._timings import CompileTimings
    from ._variant import Variant

__all__ = ["Kernel", "kernel", "timed"]

_WHOLE = frozenset({Tensor, Mut, Read, Partition, MappedPartition, int, float, bool, str, type(None)})
"""Types of arguments that are no groups, looked at first."""

MAX_RUNS = 4096
"""Call keys a kernel remembers; beyond, it starts over."""

MAX_TIMINGS = 256
"""Compilations a kernel remembers the timings of, the latest."""


_listener: ContextVar[list[CompileTimings] | None] = ContextVar("tilekern_timings", default=None)


@contextmanager
def timed() -> Iterator[list[CompileTimings]]:
    """A list that gets the timings of all that is compiled in this context inside of the block."""
    found: list[CompileTimings] = []
    token = _listener.set(found)
    try:
        yield found
    finally:
        _listener.reset(token)


class Kernel:
    """A tile kernel. Made by `@tk.kernel`; calling it builds the operation that launches it.

    Attributes:
        name: the function's name.
        options: how it is compiled unless a call says otherwise.
    """

    is_tile_kernel = True

    def __init__(
        self,
        function: types.FunctionType,
        options: KernelOptions,
        names: Mapping[str, object] | None = None,
    ) -> None:
        """`names` are what annotations written as text refer to, besides globals and the closure."""
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"@tk.kernel marks a function, got {type(function).__name__}")
        if function.__name__ == "<lambda>":
            raise TypeError(
                "a kernel is a function made by def; a lambda has no statements to store a result"
            )
        if function.__code__.co_flags & 0x2A0:  # generator, coroutine, asynchronous generator
            raise TypeError(f"kernel {function.__name__} is a generator or coroutine; use a plain def")
        self.name = function.__name__
        self.options = options
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._function = function
        self._names = dict(names or {})
        self._parameters: tuple[Parameter, ...] | None = None
        self._constants: tuple[bool, ...] = ()
        self._source: FunctionSource | None = None
        self._variants = Versions()
        self._paths: dict[tuple[type, ...], CallPath] = {}
        self._runs: dict[object, Run] = {}
        self._used: dict[object, Variant] = {}
        """The variant of each of the runs."""
        self._undeclared: tuple[int, ...] = ()
        """Positions of the parameters whose arguments may be grouped."""
        self._by_structure: dict[object, GroupedKernel] = {}
        self._timings: deque[CompileTimings] = deque(maxlen=MAX_TIMINGS)

    # -- building operations

    def __call__(self, *args: Any, **kwargs: Any) -> KernelLaunch:
        """The operation that launches the kernel; yields its arguments, in order.

        Tensors are given as they are (read), as `t.partition(tile)` (one tile for each block) or as
        `ca.mut(t)` (whole, for `tk.store`); operations that yield those may take their place. Numbers and
        constants are given as they are. `mut(t)` comes back as `t`.

        Raises:
            KernelArgumentError: too few or too many arguments. All else is found when it runs.
        """
        parameters = self._parameters or self._declare()
        if kwargs or len(args) != len(parameters):
            args = self._bind(parameters, args, kwargs)
        for position in self._undeclared:
            if type(args[position]) not in _WHOLE and (grouped := self._grouped(args)) is not None:
                return grouped.launch(args)
        return KernelLaunch(self, args)

    def compile(self, *args: Any, **kwargs: Any) -> CompileOp:
        """An operation that compiles what a call with these arguments needs, and launches nothing.

        `tk.meta(shape, dtype)` stands for tensors that are not there yet. It yields None.
        """
        bound = self._bind(self._parameters or self._declare(), args, kwargs)
        grouped = self._grouped(bound)
        if grouped is not None:
            return CompileOp(grouped, grouped.parts(bound), self.options)
        return CompileOp(self, bound, self.options)

    def bind(self, *args: Any, device: Device, grid: Any = None, **kwargs: Any) -> BoundLaunch:
        """A launch whose arguments are checked and packed once; `bound.launch()` makes operations of it.

        They yield the arguments, as a call does. Alias, ordering and lifetime checks stay. Compiles the
        kernel and loads it on `device`, which is slow the first time: not for an event loop's thread.

        Args:
            grid: as for `KernelLaunch.grid`.
        """
        from ._specialize import specialize

        if not isinstance(device, Device):
            raise TypeError(f'device is {device!r}; expected a Device, such as ca.Device("cuda:0")')
        parameters = self.parameters
        bound = self._bind(parameters, args, kwargs)
        grouped = self._grouped(bound)
        if grouped is not None:
            return grouped.bind(*grouped.parts(bound), device=device, grid=grid)
        specs = specialize(self.name, parameters, bound, self.options.max_divisibility)
        blocks = grid_of(self.name, parameters, bound, None if grid is None else as_grid(grid))
        options = self.options.with_grid(blocks)
        variant, slots = self._loaded(
            lambda: self._variant_and_slots(specs, bound, blocks, device, options), device
        )
        values = flat_arguments(slots, bound)
        run_checks(self.name, variant.checks, values, blocks)
        outputs = self._regrouped(tuple([a.tensor if isinstance(a, Mut | Read) else a for a in bound]))
        loaded = variant.function.load(device)
        loaded.block.rule = rule_of(variant.checks, slots)
        return BoundLaunch(loaded, blocks, (1, 1, 1), tuple(values), 0, outputs)

    def with_options(self, **options: float | None) -> Kernel:
        """The same kernel compiled with some options changed; see `KernelOptions`."""
        other = Kernel(self._function, self.options.updated(options), self._names)
        # variants are told apart by options as well: one compilation serves all copies that ask for the same
        other._variants, other._timings = self._variants, self._timings
        return other

    # -- looking at it

    def ir(self, *args: Any, passes: bool = True, **kwargs: Any) -> str:
        """The kernel in the IR, as text, for arguments like these; `tk.meta` stands for tensors.

        Args:
            passes: as it is after all passes; without, as the front end makes it.
        """
        from ..frontend import translate
        from ._compile import build_program

        specs = self._specs(args, kwargs)
        if not passes:
            return str(translate(self.source, specs, self.options.hints).function)
        return str(build_program(self.source, specs, self.options, for_device=True).function)

    def tile_ir(self, *args: Any, by_nvidia: bool = False, locations: bool = False, **kwargs: Any) -> str:
        """The kernel as Tile IR text, for arguments like these; needs no assembler.

        Args:
            by_nvidia: as NVIDIA's `tileirdisasm` prints it, after verifying it.
            locations: with source lines; only by NVIDIA's.
        Raises:
            CompilerNotFoundError: `by_nvidia`, and there is no `tileirdisasm`.
        """
        from ..tileir import decode_module, disassemble, print_module

        bytecode = self.bytecode(*args, locations=locations, **kwargs)
        if by_nvidia or locations:
            return disassemble(bytecode, locations=locations, kernel=self.name)
        return print_module(decode_module(bytecode))

    def bytecode(self, *args: Any, locations: bool = False, **kwargs: Any) -> bytes:
        """The kernel as Tile IR bytecode, for arguments like these; with `locations`, source lines too."""
        from ..lowering import lower
        from ._compile import build_program

        program = build_program(self.source, self._specs(args, kwargs), self.options, for_device=True)
        return lower(program.function, locations=locations)

    def cubin(self, *args: Any, arch: str | None = None, **kwargs: Any) -> bytes:
        """The machine code for arguments like these; needs the assembler, but no GPU.

        Args:
            arch: target such as "sm_90"; that of the current device if not given, and sm_90 where that is the
                host device.
        """
        from ._inspect import cubin_of

        return cubin_of(self, self._specs(args, kwargs), arch)

    def ptx(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """The PTX that the assembler makes on its way to the cubin, for arguments like these; see `cubin`."""
        from ._inspect import ptx_of

        return ptx_of(self, self._specs(args, kwargs), arch)

    def sass(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """The machine code as text, for arguments like these; see `cubin`.

        Raises:
            CompilerNotFoundError: neither `nvdisasm` nor `cuobjdump` is there.
        """
        from ._inspect import sass_of

        return sass_of(self, self._specs(args, kwargs), arch)

    def resources(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Resources:
        """Registers, spills, shared memory and threads that the compiled kernel takes; see `cubin`."""
        from ._inspect import resources_of

        return resources_of(self, self._specs(args, kwargs), arch)

    def report(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Report:
        """How the kernel was compiled for arguments like these, line by line; `print` it. See `cubin`.

        Which loads and stores go through the tensor memory accelerator, and why not where they do not; which
        matrix products run on tensor cores; hints that were used; registers, spills and shared memory; warnings.
        """
        from ._inspect import report_of

        return report_of(self, self._specs(args, kwargs), arch)

    def check_report(self, *args: Any, **kwargs: Any) -> CheckReport:
        """Where the index of each load and store is checked, for arguments like these, and why there; `print` it.

        `tk.meta` stands for tensors. See "Bounds" in docs/language.md.
        """
        from ._check_report import check_report_of

        return check_report_of(self, self._specs(args, kwargs))

    @property
    def timings(self) -> tuple[CompileTimings, ...]:
        """What every compilation of this kernel in this process took, in order; the last 256 are kept."""
        return tuple(self._timings)

    @property
    def source(self) -> FunctionSource:
        """Its syntax tree.

        Raises:
            KernelSourceError: the text cannot be found.
        """
        if self._source is None:
            from ..frontend import source_of

            self._source = source_of(self._function)
        return self._source

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What its annotations declare."""
        return self._parameters or self._declare()

    def _specs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ParameterSpec, ...]:
        from ._specialize import specialize

        parameters = self.parameters
        bound = self._bind(parameters, args, kwargs)
        grouped = self._grouped(bound)
        if grouped is not None:
            return grouped.grouped_specs(grouped._specs(grouped.parts(bound), {}))
        return specialize(self.name, parameters, bound, self.options.max_divisibility)

    def grouped_specs(self, specs: Sequence[ParameterSpec]) -> tuple[ParameterSpec, ...]:
        """The specs of the function's parameters, from those of the arguments as they are passed: the same."""
        return tuple(specs)

    # -- from a call to code

    def _declare(self) -> tuple[Parameter, ...]:
        parameters = parameters_of(self._function, self._names)
        self._constants = tuple([p.kind == "constant" for p in parameters])
        self._undeclared = tuple([i for i, p in enumerate(parameters) if p.kind in ("any", "group")])
        self._parameters = parameters
        return parameters

    def _grouped(self, args: tuple[Any, ...]) -> GroupedKernel | None:
        """The kernel that takes the parts of these arguments, if one of them has any."""
        if all(type(args[position]) in _WHOLE for position in self._undeclared):
            return None
        from ._grouped import GroupedKernel, structure_of

        key = tuple([structure_of(args[i]) if i in self._undeclared else None for i in range(len(args))])
        if not any(key):
            return None
        found = self._by_structure.get(key)
        if found is None:
            found = self._by_structure[key] = GroupedKernel(self, args, key)
        return found

    def _regrouped(self, outputs: tuple[object, ...]) -> tuple[object, ...]:
        return outputs

    def _bind(
        self, parameters: tuple[Parameter, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Arguments in the order of the parameters."""
        if len(args) > len(parameters):
            raise KernelArgumentError(f"{self.name} takes {len(parameters)} arguments, got {len(args)}")
        unknown = set(kwargs) - {p.name for p in parameters}
        if unknown:
            raise KernelArgumentError(
                f"{self.name} has no parameter {', '.join(sorted(unknown))}; it has "
                f"{', '.join(p.name for p in parameters)}"
            )
        bound = list(args)
        for position, parameter in enumerate(parameters):
            name = parameter.name
            if position < len(args):
                if name in kwargs:
                    raise KernelArgumentError(f"{self.name} got {name} twice")
            elif name in kwargs:
                bound.append(kwargs[name])
            elif parameter.has_default:
                bound.append(parameter.default)
            else:
                raise KernelArgumentError(
                    f"{self.name} takes {len(parameters)} arguments ({', '.join(p.name for p in parameters)}), "
                    f"got no {name}"
                )
        return tuple(bound)

    def _find(
        self, args: tuple[Any, ...], device: Device, grid: Grid | None, options: KernelOptions
    ) -> Run | None:
        """What launches such a call, if that is known. Cheap."""
        path = self._paths.get(tuple(map(type, args)))
        if path is None:
            return None
        key = path.key(args, device, grid, options)
        variant = self._used.get(key)
        return self._runs.get(key) if variant is not None and variant.is_current() else None

    def _prepare(
        self, args: tuple[Any, ...], device: Device, grid: Grid | None, options: KernelOptions
    ) -> None:
        """Compile and load what such a call needs, and write the function that launches it. Slow."""
        from ._specialize import specialize

        parameters = self.parameters
        specs = specialize(self.name, parameters, args, options.max_divisibility)
        blocks = grid_of(self.name, parameters, args, grid)
        with_grid = options.with_grid(blocks)
        variant, slots = self._loaded(
            lambda: self._variant_and_slots(specs, args, blocks, device, with_grid), device
        )
        loaded = variant.function.load(device)
        loaded.block.rule = rule_of(variant.checks, slots)
        types = tuple(map(type, args))
        run = write_run(
            self.name,
            [p.name for p in parameters],
            types,
            slots,
            loaded,
            blocks,
            variant.checks,
            variant.captures,
            options.programmatic_dependent_launch and device.compute_capability >= (9, 0),
        )
        path = self._paths.get(types)
        if path is None:
            path = write_call_path(self.name, types, self._constants, self._runs.get)
            path = self._paths.setdefault(types, path)  # another thread may have been first
        if len(self._runs) >= MAX_RUNS:
            self._runs.clear()
            self._used.clear()
        key = path.key(args, device, grid, options)
        self._runs[key], self._used[key] = run, variant

    def _variant(self, specs: tuple[ParameterSpec, ...], device: Device, options: KernelOptions) -> Variant:
        from ._variant import spec_key, target_of

        target = target_of(device.kind, device.compute_capability)
        chosen = options.for_target(target)
        key = (spec_key(specs), target, chosen)
        return self._variants.get(key, lambda: self._make(specs, target, chosen))

    def _variant_and_slots(
        self,
        specs: tuple[ParameterSpec, ...],
        args: tuple[Any, ...],
        blocks: Grid,
        device: Device,
        options: KernelOptions,
    ) -> tuple[Variant, list[Slot]]:
        """The variant for a call, one that checks bounds itself where the other may not run; its flat arguments."""
        from ._specialize import flat_slots

        variant = self._variant(specs, device, options)
        slots = flat_slots(self.name, self.parameters, variant.specs, args)
        if not are_decided(variant.checks, slots, blocks):
            variant = self._variant(specs, device, replace(options, check_variants=False))
            slots = flat_slots(self.name, self.parameters, variant.specs, args)
        return variant, slots

    def _loaded(
        self, find: Callable[[], tuple[Variant, list[Slot]]], device: Device
    ) -> tuple[Variant, list[Slot]]:
        """What `find` gives, loaded; machine code from the disk cache that the device refuses is made anew, once."""
        found = find()
        try:
            found[0].function.load(device)
        except CompileError as error:
            variant = found[0]
            if variant.timings.origin not in ("disk cache", "recalled"):
                raise
            if self._variants.holds(variant):  # else another thread has done this
                disk_cache().remove_named(variant.cubin_name)
                self._variants.discard(variant)
            found = find()
            try:
                found[0].function.load(device)
            except CompileError as again:
                again.add_note(
                    f"it was made anew, since machine code from the disk cache was refused: {error}"
                )
                raise
        return found

    def _make(self, specs: tuple[ParameterSpec, ...], target: str, options: KernelOptions) -> Variant:
        """Compile a variant, or find it in a cache. Slow."""
        from ._obtain import obtain

        variant = obtain(self, self._function, specs, options, target, disk_cache())
        self._timings.append(variant.timings)
        if (listener := _listener.get()) is not None:
            listener.append(variant.timings)
        return variant

    def _warm_up(self, args: tuple[Any, ...], device: Device, options: KernelOptions) -> None:
        """Compile and load for a call with these arguments, which need no memory. Slow."""
        from ._specialize import specialize

        specs = specialize(self.name, self.parameters, args, options.max_divisibility)
        self._loaded(lambda: (self._variant(specs, device, options), []), device)

    def __repr__(self) -> str:
        return f"<tile kernel {self.__module__}.{self.__qualname__}>"


def _get_ready() -> None:
    """Import and find what a first launch with a warm disk cache needs: 20 to 30 ms."""
    from . import _obtain, _recall, _specialize  # noqa: F401

    disk_cache()
    _recall.get_ready()


call_behind_opening(_get_ready)

_disk_cache: DiskCache | None = None
_disk_cache_lock = threading.Lock()


def disk_cache() -> DiskCache:
    """The cache of compiled kernels that this process uses."""
    global _disk_cache
    with _disk_cache_lock:
        if _disk_cache is None:
            from ._disk_cache import DiskCache

            _disk_cache = DiskCache()
        return _disk_cache


@overload
def kernel(function: Callable[..., object], /) -> Kernel: ...
@overload
def kernel(
    *,
    occupancy: int | ByTarget | None = None,
    num_ctas: int | ByTarget | None = None,
    num_worker_warps: int | ByTarget | None = None,
    opt_level: int | ByTarget = 3,
    max_divisibility: int = 16,
    line_info: bool = False,
    debug: bool = False,
    compile_timeout_s: float | None = None,
    preconditions: Sequence[str] = (),
    deny_in_kernel_checks: bool = False,
    unchecked: bool = False,
    checks_in_place: bool | None = None,
    check_variants: bool = True,
    fuse_multiply_add: bool = False,
    allow_tma: bool = True,
    programmatic_dependent_launch: bool = False,
) -> Callable[[Callable[..., object]], Kernel]: ...
def kernel(
    function: Callable[..., object] | None = None,
    /,
    *,
    occupancy: int | ByTarget | None = None,
    num_ctas: int | ByTarget | None = None,
    num_worker_warps: int | ByTarget | None = None,
    opt_level: int | ByTarget = 3,
    max_divisibility: int = 16,
    line_info: bool = False,
    debug: bool = False,
    compile_timeout_s: float | None = None,
    preconditions: Sequence[str] = (),
    deny_in_kernel_checks: bool = False,
    unchecked: bool = False,
    checks_in_place: bool | None = None,
    check_variants: bool = True,
    fuse_multiply_add: bool = False,
    allow_tma: bool = True,
    programmatic_dependent_launch: bool = False,
) -> Kernel | Callable[[Callable[..., object]], Kernel]:
    """Make a function a tile kernel: `@tk.kernel`, or `@tk.kernel(occupancy=2)` with options.

    The options are those of `KernelOptions`. Nothing is compiled before the kernel first runs.
    """
    options = KernelOptions(
        occupancy=occupancy,
        num_ctas=num_ctas,
        num_worker_warps=num_worker_warps,
        opt_level=opt_level,
        max_divisibility=max_divisibility,
        line_info=line_info,
        debug=debug,
        compile_timeout_s=compile_timeout_s,
        preconditions=tuple(preconditions) if not isinstance(preconditions, str) else (preconditions,),
        deny_in_kernel_checks=deny_in_kernel_checks,
        unchecked=unchecked,
        check_variants=check_variants,
        fuse_multiply_add=fuse_multiply_add,
        allow_tma=allow_tma,
        programmatic_dependent_launch=programmatic_dependent_launch,
        **({} if checks_in_place is None else {"checks_in_place": checks_in_place}),
    )
    if function is not None:
        names = names_around(function, sys._getframe(1))
        return Kernel(function, options, names)  # type: ignore[arg-type]  # checked there

    def mark(marked: Callable[..., object]) -> Kernel:
        names = names_around(marked, sys._getframe(1))
        return Kernel(marked, options, names)  # type: ignore[arg-type]  # checked there

    return mark
