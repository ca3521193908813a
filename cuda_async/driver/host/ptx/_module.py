"""Modules: parsed, and loaded into a device's memory."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ....errors import CompileError, LaunchError
from ..._protocol import FunctionInfo, HostLaunch, ParameterInfo, ParameterKind
from .._limits import LIMITS
from ._heap import DeviceHeap
from ._launch import Launch
from ._program import Program, SharedLayout, reachable_functions, symbols_of
from ._spaces import FUNCTION_WINDOW
from ._syntax import Function, Module, Symbol, Variable, is_float_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._memory import HostMemory
    from ._syntax import Initializer

__all__ = ["LoadedModule", "PtxFunction", "PtxModule"]

_MAX_THREADS = 1024
_MAX_LOCAL_BYTES = 512 << 10
"""Local memory of a thread, on every compute capability (CUDA C++ Programming Guide, "Technical specifications")."""
_function_numbers = itertools.count(1)


class PtxModule:
    """A parsed module, not yet on a device. Made by `parse_module`."""

    def __init__(self, module: Module) -> None:
        self._module = module

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._module.name

    @property
    def version(self) -> tuple[int, int]:
        """PTX version of the text."""
        return self._module.version

    @property
    def target(self) -> str:
        """Architecture the text was made for, such as `sm_90a`."""
        return self._module.target

    def load(self, memory: HostMemory) -> LoadedModule:
        """Give the module's variables memory and initial values.

        Raises:
            OutOfMemoryError: the variables do not fit.
        """
        return LoadedModule(self._module, memory)


class LoadedModule:
    """A module on a device.

    Attributes:
        functions: the entries, by name.
        globals: (address, size in bytes) of the variables in device memory, by name.
        heap: of `malloc` and `free` in kernels.
        is_watched: the device checks accesses.
    """

    def __init__(self, module: Module, memory: HostMemory) -> None:
        self.module = module
        self.name = module.name
        self._memory = memory
        self.is_watched = memory.checker is not None
        self.heap = DeviceHeap(memory)
        self._addresses: dict[Variable, int] = {}
        self._function_addresses: dict[Function, int] = {}
        self.addressed_functions = _addressed_functions(module)
        self.addressed_parameters = _addressed_parameters(module)
        self.variadic_bytes = _variadic_bytes(module)
        self.globals: dict[str, tuple[int, int]] = {}
        try:
            self._place_variables()
            self.functions: dict[str, PtxFunction] = {
                name: PtxFunction(self, function)
                for name, function in module.functions.items()
                if function.is_entry and function.body is not None
            }
        except BaseException:
            self.unload()
            raise

    def unload(self) -> None:
        """Give the variables' memory and the heap back. The functions must not be started any more."""
        self.heap.close()
        addresses, self._addresses = self._addresses, {}
        for address in addresses.values():
            self._memory.release(address)

    # ------------------------------------------------------------------------------ variables

    def _place_variables(self) -> None:
        placed = [
            variable
            for variable in _device_variables(self.module)
            if variable.linkage != "extern" and variable.size_bytes
        ]
        for variable in placed:
            size = variable.size_bytes
            address = self._memory.allocate(size, max(256, variable.alignment))
            self._addresses[variable] = address
            self._memory.view(address, size, "write")[:] = 0
            if self.module.variables.get(variable.name) is variable:
                self.globals[variable.name] = (address, size)
        for variable in placed:
            if variable.initializer:
                self._initialize(variable)

    def _initialize(self, variable: Variable) -> None:
        size = variable.element_bytes
        window = self._memory.view(self._addresses[variable], variable.size_bytes, "write")
        data = np.zeros(variable.size_bytes, np.uint8)
        for position, element in variable.initializer:
            value = self._value(element) & ((1 << 8 * size) - 1)
            data[position * size : (position + 1) * size] = np.frombuffer(
                value.to_bytes(size, "little"), np.uint8
            )
        window[:] = data

    def _value(self, element: Initializer) -> int:
        target = element.symbol
        if target is None:
            return element.value
        assert not isinstance(target, str)
        address = element.value
        if isinstance(target, Function):
            address += self.function_address(target)
        else:
            address += self.variable_address(target)
        if element.mask:
            shift = (element.mask & -element.mask).bit_length() - 1
            address = (address & element.mask) >> shift
        return address

    def variable_address(self, variable: Variable) -> int:
        """Where a variable lies in device memory."""
        address = self._addresses.get(variable)
        if address is None:
            raise CompileError(
                f"line {variable.line} of {self.name}: {variable.linkage} variable {variable.name!r} has no memory "
                "here; define it in this module, as the host device does not link modules"
            )
        return address

    def constant_ranges(self) -> list[tuple[int, int]]:
        """(address, size) of every constant."""
        return [(a, v.size_bytes) for v, a in self._addresses.items() if v.space == "const"]

    def function_address(self, function: Function) -> int:
        """The number that stands for a function in memory and registers."""
        function = function.resolved
        address = self._function_addresses.get(function)
        if address is None:
            address = FUNCTION_WINDOW + 16 * next(_function_numbers)
            self._function_addresses[function] = address
        return address

    def parameter_offsets(self, function: Function) -> dict[Variable, int]:
        """Where an entry's parameters lie in the argument block."""
        offsets = {}
        end = 0
        for parameter in function.parameters:
            align = max(1, parameter.alignment)
            end = -(-end // align) * align
            offsets[parameter] = end
            end += parameter.size_bytes
        return offsets


class PtxFunction:
    """An entry of a loaded module: a `HostFunction`."""

    def __init__(self, loaded: LoadedModule, function: Function) -> None:
        self._loaded = loaded
        self._function = function
        self._program: Program | None = None
        self._refusal: str | None = None
        self._info = self._describe()

    def __repr__(self) -> str:
        return f"<PtxFunction {self._function.name} of {self._loaded.name}>"

    @property
    def info(self) -> FunctionInfo:
        """Name, parameters and limits."""
        return self._info

    def _describe(self) -> FunctionInfo:
        function = self._function
        offsets = self._loaded.parameter_offsets(function)
        parameters = tuple(
            ParameterInfo(
                name=parameter.name,
                offset_bytes=offset,
                size_bytes=parameter.size_bytes,
                alignment_bytes=max(1, parameter.alignment),
                kind=_kind(parameter),
            )
            for parameter, offset in offsets.items()
        )
        limits = function.limits
        required = limits.get("reqntid")
        largest = _MAX_THREADS
        for bound in (limits.get("maxntid"), required):
            if bound:
                largest = min(largest, math.prod(bound))
        reachable = reachable_functions(function, self._loaded.addressed_functions)
        layout = SharedLayout(reachable, self._loaded.module.variables.values())
        local_bytes = sum(v.size_bytes for f in reachable for v in f.variables if v.space == "local")
        _check_local(function.name, local_bytes)
        if not self._is_tile_kernel:
            _check_shared(function.name, layout.static_bytes)
        return FunctionInfo(
            name=function.name,
            parameters=parameters,
            max_threads_per_block=largest,
            static_shared_bytes=layout.static_bytes,
            local_bytes=local_bytes,
            registers=len(function.registers),
            required_block=_block(required) if required and not self._is_tile_kernel else None,
        )

    def prepare(self) -> None:
        """Translate the entry and what it calls; `start` does it too, if nobody has.

        Takes milliseconds for a usual kernel and up to a tenth of a second for very large ones. Later calls
        cost nothing: they return, or raise the same error again.

        Raises:
            CompileError: something in it is not supported; names the instruction and its line.
        """
        if self._refusal is not None:
            raise CompileError(self._refusal)
        if self._program is None:
            try:
                program = Program(self._loaded, self._function)
                _check_local(self._function.name, program.local_bytes)
                self._program = program
            except CompileError as error:
                self._refusal = str(error)
                raise
            self._info = replace(self._info, local_bytes=self._program.local_bytes)

    def start(self, launch: HostLaunch) -> Iterator[None]:
        """Run a launch in steps of about a millisecond.

        Raises:
            CompileError: before the first step, as `prepare` does.
            LaunchError: before the first step: the launch does not fit the kernel.
        """
        self.prepare()
        assert self._program is not None
        if self._is_tile_kernel and launch.block == (1, 1, 1):
            launch = replace(launch, block=_block(self._function.limits["reqntid"]))
        self._check(launch)
        size = max((p.offset_bytes + p.size_bytes for p in self._info.parameters), default=0)
        return Launch(self._program, launch, size, self._info.name).run()

    @property
    def _is_tile_kernel(self) -> bool:
        """Made from Tile IR: launched with one thread a block, as for a GPU, it gets as many as it was compiled for.

        Source: the PTX that tileiras 13.5 makes, with `.language 7`, which the PTX ISA does not have.
        """
        limits = self._function.limits
        return limits.get("language") == (7,) and "reqntid" in limits

    def _check(self, launch: HostLaunch) -> None:
        info = self._info
        name = info.name
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        if min(launch.block) < 1 or min(launch.grid) < 1:
            raise LaunchError(f"{name}: grid {launch.grid} and block {launch.block} must be positive", name)
        if threads > info.max_threads_per_block:
            raise LaunchError(
                f"{name}: block {launch.block} has {threads} threads; this kernel takes at most "
                f"{info.max_threads_per_block}",
                name,
            )
        if info.required_block is not None and launch.block != info.required_block:
            raise LaunchError(
                f"{name}: block {launch.block}; this kernel requires {info.required_block} (.reqntid)", name
            )
        required = self._program.cluster if self._program is not None else None
        if required is not None and launch.cluster not in (None, required):
            raise LaunchError(
                f"{name}: cluster {launch.cluster}; this kernel requires {required} (.reqnctapercluster)",
                name,
            )
        wanted = max((p.offset_bytes + p.size_bytes for p in info.parameters), default=0)
        if len(launch.arguments) < wanted:
            raise LaunchError(
                f"{name}: {len(launch.arguments)} bytes of arguments; the parameters take {wanted}", name
            )


def _check_local(name: str, size_bytes: int) -> None:
    if size_bytes > _MAX_LOCAL_BYTES:
        raise CompileError(
            f"kernel {name!r} needs {size_bytes} bytes of local memory for each thread; the limit is {_MAX_LOCAL_BYTES}"
        )


def _check_shared(name: str, size_bytes: int) -> None:
    """Refuse what ptxas refuses. Tile kernels, which come from another assembler, may declare all that a block has."""
    limit = LIMITS.max_shared_bytes_per_block
    if size_bytes > limit:
        raise CompileError(
            f"kernel {name!r} declares {size_bytes} bytes of static shared memory; the limit is {limit}: "
            "declare it .extern and without a size, and ask for the bytes at the launch (shared_mem_bytes)"
        )


def _kind(parameter: Variable) -> ParameterKind:
    if parameter.shape or parameter.vector > 1 or parameter.type == "b128":
        return ParameterKind.STRUCT
    if parameter.is_pointer and parameter.type in ("u64", "s64", "b64"):
        return ParameterKind.POINTER
    return ParameterKind.FLOAT if is_float_type(parameter.type) else ParameterKind.INTEGER


def _block(extents: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _device_variables(module: Module) -> Iterator[Variable]:
    """Variables that live in device memory, those inside functions included."""
    for variable in module.variables.values():
        if variable.space in ("global", "const"):
            yield variable
    for function in dict.fromkeys(module.functions.values()):
        for variable in function.variables:
            if variable.space in ("global", "const"):
                yield variable


def _variadic_bytes(module: Module) -> dict[Variable, int]:
    """The most bytes that any call in the module passes for each parameter `[]`."""
    most: dict[Variable, int] = {}
    by_count: dict[int, int] = {}
    variadic = [f for f in module.functions.values() if f.alias is None and f.is_variadic]
    if not variadic:
        return most
    for function in module.functions.values():
        for instruction in function.body or ():
            call = instruction.call
            last = call.arguments[-1] if call is not None and call.arguments else None
            if call is None or not isinstance(last, Symbol) or not isinstance(last.target, Variable):
                continue
            count, size = len(call.arguments), last.target.size_bytes
            callee = call.callee.target if isinstance(call.callee, Symbol) else None
            if not isinstance(callee, Function):  # it may go to any function with as many parameters
                by_count[count] = max(size, by_count.get(count, 0))
            elif count == len(callee.resolved.parameters):
                formal = callee.resolved.parameters[-1]
                most[formal] = max(size, most.get(formal, 0))
    for function in variadic:
        formal = function.parameters[-1]
        most[formal] = max(most.get(formal, 0), by_count.get(len(function.parameters), 0))
    return most


def _addressed_functions(module: Module) -> list[Function]:
    """Functions whose address is taken anywhere: what an indirect call may reach."""
    found: dict[Function, None] = {}
    for variable in module.variables.values():
        for _, element in variable.initializer:
            if isinstance(element.symbol, Function):
                found[element.symbol] = None
    for function in module.functions.values():
        for instruction in function.body or ():
            for symbol in symbols_of(instruction.operands):
                if isinstance(symbol.target, Function):
                    found[symbol.target] = None
    return list(found)


def _addressed_parameters(module: Module) -> frozenset[Variable]:
    """Parameters of device functions that have to lie in local memory, as `mov` takes their address."""
    found = set()
    for function in module.functions.values():
        if function.is_entry or function.body is None:
            continue
        own = set(function.parameters)
        for instruction in function.body:
            if instruction.opcode == "call" or (
                instruction.opcode in ("ld", "st") and "local" not in instruction.modifiers
            ):
                continue
            for symbol in symbols_of(instruction.operands):
                if isinstance(symbol.target, Variable) and symbol.target in own:
                    found.add(symbol.target)
    return frozenset(found)
