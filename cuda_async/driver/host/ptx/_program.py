"""An entry with everything it may call, translated for one loaded module.

Shared memory is laid out per entry: the variables that the entry and the functions it can reach name, then
dynamic shared memory. So functions are translated anew for every entry that calls them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....errors import CompileError
from ._code import Code, Finish
from ._ops_atomic import HANDLERS as ATOMIC
from ._ops_control import finish
from ._ops_matrix import HANDLERS as MATRIX
from ._ops_mbarrier import HANDLERS as MBARRIER
from ._ops_memory import HANDLERS as MEMORY
from ._ops_moves import HANDLERS as MOVES
from ._ops_stack import HANDLERS as STACK
from ._ops_warp import HANDLERS as WARP
from ._ops_wgmma import HANDLERS as WARPGROUP
from ._ops_wmma import HANDLERS as WMMA
from ._semantics import UnsupportedInstruction
from ._special_registers import special_bits
from ._syntax import Address, Function, Operand, Pair, Symbol, Tuple, Variable
from ._translate import Translator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ._control_flow import BasicBlock
    from ._lanes import Array
    from ._module import LoadedModule
    from ._translate import Handler

__all__ = ["HANDLERS", "Program", "SharedLayout", "reachable_functions", "symbols_of"]

HANDLERS: dict[str, Handler] = {
    **MEMORY,
    **STACK,
    **MOVES,
    **ATOMIC,
    **WARP,
    **MBARRIER,
    **MATRIX,
    **WARPGROUP,
    **WMMA,
}
"""Opcodes that are more than functions of registers, and who translates them."""


def symbols_of(operands: Iterable[Operand]) -> Iterator[Symbol]:
    """Symbols named in operands."""
    for operand in operands:
        if isinstance(operand, Symbol):
            yield operand
        elif isinstance(operand, Address):
            if isinstance(operand.base, Symbol):
                yield operand.base
            elif isinstance(operand.base, Tuple):
                yield from symbols_of(operand.base.elements)
        elif isinstance(operand, Tuple):
            yield from symbols_of(operand.elements)
        elif isinstance(operand, Pair):
            yield from symbols_of((operand.first, operand.second))


def reachable_functions(entry: Function, addressed: Iterable[Function]) -> list[Function]:
    """The entry and all functions it may call; an indirect call may reach every `addressed` one."""
    found: dict[Function, None] = {}
    work = [entry]
    while work:
        function = work.pop().resolved
        if function in found or function.body is None:
            continue
        found[function] = None
        for instruction in function.body:
            call = instruction.call
            if call is None:
                continue
            if isinstance(call.callee, Symbol):
                if isinstance(call.callee.target, Function):
                    work.append(call.callee.target)
            else:
                work.extend(addressed)
    return list(found)


class SharedLayout:
    """Where the shared variables of an entry lie.

    Attributes:
        offsets: of every variable.
        static_bytes: before dynamic shared memory.
        dynamic_offset: where that starts.
    """

    def __init__(self, functions: Iterable[Function], module_variables: Iterable[Variable]) -> None:
        functions = list(functions)
        named: dict[Variable, None] = {}
        for function in functions:
            for variable in function.variables:
                if variable.space == "shared":
                    named[variable] = None
            for instruction in function.body or ():
                for symbol in symbols_of(instruction.operands):
                    if isinstance(symbol.target, Variable) and symbol.target.space == "shared":
                        named[symbol.target] = None
        order = [v for v in module_variables if v in named] + list(named)
        self.offsets: dict[Variable, int] = {}
        dynamic = []
        end = 0
        for variable in order:
            if variable in self.offsets:
                continue
            if variable.size_bytes == 0:
                dynamic.append(variable)
                continue
            start = -(-end // variable.alignment) * variable.alignment
            self.offsets[variable] = start
            end = start + variable.size_bytes
        self.static_bytes = end
        align = max([16, *(variable.alignment for variable in dynamic)])
        self.dynamic_offset = -(-end // align) * align if dynamic else end
        for variable in dynamic:
            self.offsets[variable] = self.dynamic_offset


class Program:
    """One entry, ready to run.

    Attributes:
        code: the entry's code.
        shared: layout of its shared memory.
        heap: of `malloc` and `free`.
        is_watched: the device checks accesses.
        addressed: parameters of device functions that lie in local memory.
        variadic_bytes: room that parameters of unknown size need, for the calls there are.
        lane_values: special registers that are the same in all blocks, kept from launch to launch.
    """

    handlers = HANDLERS

    def __init__(self, loaded: LoadedModule, entry: Function) -> None:
        self._loaded = loaded
        self._entry = entry
        self.module_name = loaded.name
        self.is_watched = loaded.is_watched
        self.heap = loaded.heap
        self.addressed = loaded.addressed_parameters
        self.variadic_bytes = loaded.variadic_bytes
        self.functions = reachable_functions(entry, loaded.addressed_functions)
        self.shared = SharedLayout(self.functions, loaded.module.variables.values())
        self._parameters = loaded.parameter_offsets(entry)
        self.lane_values: dict[tuple[tuple[int, int, int], int, str, str], Array] = {}
        self._codes: dict[Function, Code] = {}
        self._by_address: dict[int, Code | CompileError] = {}
        self.code = self.code_of(entry)
        if any(
            instruction.call is not None and not isinstance(instruction.call.callee, Symbol)
            for function in self.functions
            for instruction in function.body or ()
        ):
            for function in loaded.addressed_functions:
                if function.resolved.body is None:
                    continue
                address = loaded.function_address(function)
                try:
                    self._by_address[address] = self.code_of(function)
                except CompileError as error:  # matters only if it is called
                    self._by_address[address] = error

    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """The cluster that `.reqnctapercluster` asks for."""
        wanted = self._entry.limits.get("reqnctapercluster")
        if not wanted:
            return None
        x, y, z = (*wanted, 1, 1)[:3]
        return x, y, z

    @property
    def local_bytes(self) -> int:
        """Local memory a thread needs if no function calls itself."""
        return sum(code.local_bytes for code in self._codes.values())

    @property
    def register_count(self) -> int:
        """Registers of the largest function."""
        return max(len(code.registers) for code in self._codes.values())

    def code_of(self, function: Function) -> Code:
        """A function's code, translated now if it has not been."""
        function = function.resolved
        code = self._codes.get(function)
        if code is None:
            translator = Translator(self, function)
            self._codes[function] = translator.code
            try:
                code = translator.translate()
            except CompileError:
                del self._codes[function]
                raise
        return code

    def function_at(self, address: int) -> Code | None:
        """The function an address means, for an indirect call."""
        found = self._by_address.get(address)
        if isinstance(found, CompileError):
            raise found
        return found

    def address_of(self, target: Variable | Function) -> int:
        """The address of a symbol, as instructions of its state space count."""
        if isinstance(target, Function):
            return self._loaded.function_address(target)
        if target.space == "shared":
            return self.shared.offsets[target]
        if target.space == "param":
            offset = self._parameters.get(target)
            if offset is None:
                raise UnsupportedInstruction(f"the address of parameter {target.name}")
            return offset
        if target.space == "local":
            raise UnsupportedInstruction(f"module-level local variable {target.name}")
        return self._loaded.variable_address(target)

    def constant_ranges(self) -> list[tuple[int, int]]:
        """(address, size) of the module's constants."""
        return self._loaded.constant_ranges()

    def special_bits(self, name: str, part: str) -> int:
        """Width of a special register."""
        return special_bits(name)

    def finish(self, translator: Translator, basic: BasicBlock) -> Finish:
        """The callable that ends a block."""
        return finish(translator, basic)
