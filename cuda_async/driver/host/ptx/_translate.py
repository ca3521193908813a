"""From instructions to callables.

Each instruction becomes one Python closure, once per entry, with its operands resolved to slots of the
register list: constants and special registers have slots too. What a closure costs besides NumPy decides how
fast small kernels run, so the common shapes (one to three operands, one result, no guard) have their own.

Families that are more than a function of registers translate themselves: `HANDLERS` maps an opcode to the
function that does it; see the `_ops_*` modules. Everything else is looked up in `_semantics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from ....errors import CompileError
from ._code import Code, CodeBlock
from ._control_flow import build_flow_graph
from ._lanes import merge
from ._reader import float_bits
from ._semantics import FORMS, Operation, UnsupportedInstruction, operation, type_bits
from ._special_registers import AXED_REGISTERS
from ._syntax import (
    TYPE_BITS,
    Address,
    Function,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    RegisterOperand,
    Sink,
    Special,
    Symbol,
    Tuple,
    Variable,
    is_signed_type,
)
from ._watched import watched

if TYPE_CHECKING:
    from ._code import Step
    from ._lanes import Array, Group
    from ._program import Program

__all__ = ["Destination", "Handler", "Source", "Translator", "resize", "unsigned"]

Handler: TypeAlias = "Callable[[Translator, Instruction], Step | None]"

_UNSIGNED = {1: np.dtype(np.bool_), **{bits: np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)}}


def unsigned(bits: int) -> np.dtype[Any]:
    """The dtype of registers of a width: `bool` for 1."""
    return _UNSIGNED[bits]


def resize(bits: int, new_bits: int, signed: bool) -> Callable[[Array], Array] | None:
    """How to bring register values to another width: cut, or extended by zero or sign. None if the same."""
    if bits == new_bits:
        return None
    target = _UNSIGNED[new_bits]
    if new_bits < bits or not signed or bits == 1:
        return lambda value: value.astype(target)
    source, wide = np.dtype(f"i{bits // 8}"), np.dtype(f"i{new_bits // 8}")
    return lambda value: value.view(source).astype(wide).view(target)


class Source:
    """An operand to read: a slot, and how to bring it to the wanted width."""

    __slots__ = ("convert", "slot")

    def __init__(self, slot: int, convert: Callable[[Array], Array] | None = None) -> None:
        self.slot = slot
        self.convert = convert

    def read(self, group: Group) -> Array:
        """The value, with an element per position or one for all."""
        value = group.registers[self.slot]
        return value if self.convert is None else self.convert(value)


class Destination:
    """A register to write: its slot, its bit in `protect`, and how to widen a narrower value."""

    __slots__ = ("bit", "convert", "slot")

    def __init__(self, slot: int, convert: Callable[[Array], Array] | None = None) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.convert = convert

    def write(self, group: Group, value: Array) -> None:
        """Store a value for all active lanes."""
        registers = group.registers
        if self.convert is not None:
            value = self.convert(value)
        if group.protect & self.bit:
            value = group.select(value, registers[self.slot])
        registers[self.slot] = value

    def write_where(self, group: Group, value: Array, predicate: Array) -> None:
        """Store a value for the active lanes whose predicate is true."""
        registers = group.registers
        if self.convert is not None:
            value = self.convert(value)
        if group.protect & self.bit:
            assert group.mask is not None
            predicate = predicate & group.mask
        registers[self.slot] = merge(predicate, value, registers[self.slot])

    def scatter(self, group: Group, where: Any, values: Array, keep: bool) -> None:
        """Store values for the lanes at `where` (None: all); `keep` the others' in any case."""
        if self.convert is not None:
            values = self.convert(values)
        registers = group.registers
        if where is None:
            registers[self.slot] = values
            return
        old = registers[self.slot]
        if keep or group.protect & self.bit:
            new = old.copy() if old.size == group.size else np.repeat(old, group.size)
        else:
            new = np.zeros(group.size, old.dtype)
        new[where] = values
        registers[self.slot] = new


class Translator:
    """Translates one function for one program."""

    def __init__(self, program: Program, function: Function) -> None:
        self.program = program
        self.function = function
        self.code = Code(function)
        self.carry = len(function.registers)
        self._slots: list[Array] = [np.zeros(1, unsigned(r.bits)) for r in function.registers]
        self._slots.append(np.zeros(1, np.bool_))
        self._constants: dict[tuple[int, str], int] = {}
        self._specials: dict[tuple[str, str], int] = {}
        self._local_offsets = self.code.local_offsets
        self._local_bytes = 0
        self._read = -1
        self.blocks: list[CodeBlock] = []
        self.current: CodeBlock

    # ------------------------------------------------------------------------------ whole function

    def translate(self) -> Code:
        """The function's code.

        Raises:
            CompileError: an instruction is not supported; names it and its line.
        """
        self._lay_out_local()
        graph = build_flow_graph(self.function)
        self._read = graph.read
        self.blocks = [CodeBlock(b.order, b.live_in, b.spins) for b in graph.blocks]
        for basic, block in zip(graph.blocks, self.blocks):
            self.current = block
            block.code = self.code
            for instruction in basic.instructions:
                step = self._step(instruction)
                if self.program.is_watched:
                    step = watched(step, instruction)
                if step is not None:
                    block.steps.append(step)
                    block.instructions.append(instruction)
            block.instructions.append(basic.ender)
            try:
                block.finish = self.program.finish(self, basic)
            except UnsupportedInstruction as error:
                assert basic.ender is not None
                self.refuse(basic.ender, str(error))
        self.code.blocks = self.blocks
        self.code.registers = self._slots
        self.code.specials = [(slot, name, part) for (name, part), slot in self._specials.items()]
        self.code.local_bytes = -(-self._local_bytes // 16) * 16
        return self.code

    def _step(self, instruction: Instruction) -> Step | None:
        handler = self.program.handlers.get(instruction.opcode)
        try:
            if handler is not None:
                return handler(self, instruction)
            return self._pure(instruction)
        except UnsupportedInstruction as error:
            self.refuse(instruction, str(error))

    def refuse(self, instruction: Instruction, reason: str) -> NoReturn:
        """Raise the error for an instruction the interpreter does not know."""
        raise CompileError(
            f"line {instruction.line} of {self.program.module_name}: the host device cannot run "
            f"{instruction.text!r} (in {self.function.name}): {reason}"
        )

    # ------------------------------------------------------------------------------ slots

    def constant(self, value: int, dtype: np.dtype[Any]) -> int:
        """The slot of a constant."""
        if dtype.kind == "b":
            value = int(value != 0)
        else:
            value &= (1 << 8 * dtype.itemsize) - 1
        key = (value, dtype.char)
        slot = self._constants.get(key)
        if slot is None:
            slot = self._constants[key] = self._add_slot(np.array([value], dtype))
        return slot

    def special(self, name: str, part: str) -> int:
        """The slot of a special register."""
        slot = self._specials.get((name, part))
        if slot is None:
            slot = self._specials[name, part] = self._add_slot(np.zeros(1, np.uint32))
        return slot

    def _add_slot(self, value: Array) -> int:
        self._slots.append(value)
        return len(self._slots) - 1

    def _lay_out_local(self) -> None:
        variables = [v for v in self.function.variables if v.space == "local"]
        if not self.function.is_entry:
            # Parameters whose address is taken live in local memory.
            variables += [v for v in self.function.parameters if v in self.program.addressed]
        for variable in variables:
            align = max(1, variable.alignment)
            start = -(-self._local_bytes // align) * align
            self._local_offsets[variable] = start
            self._local_bytes = start + self.program.variadic_bytes.get(variable, variable.size_bytes)

    def local_offset(self, variable: Variable) -> int | None:
        """Offset of a variable within this function's local memory."""
        return self._local_offsets.get(variable)

    # ------------------------------------------------------------------------------ operands

    def source(self, operand: Operand, ptx_type: str) -> Source:
        """An operand of a type."""
        bits = 1 if ptx_type == "pred" else self.bits_of(ptx_type)
        dtype = unsigned(bits)
        if isinstance(operand, RegisterOperand):
            register = operand.register
            convert = resize(register.bits, bits, is_signed_type(ptx_type))
            if operand.negated:
                return Source(register.index, np.logical_not)
            return Source(register.index, convert)
        if isinstance(operand, Immediate):
            return Source(self.constant(float_bits(operand, ptx_type), dtype))
        if isinstance(operand, Special):
            if operand.name in AXED_REGISTERS and not operand.part:
                raise UnsupportedInstruction(f"{operand.name} as a vector; name one of its parts, such as .x")
            width = self.program.special_bits(operand.name, operand.part)
            return Source(self.special(operand.name, operand.part), resize(width, bits, False))
        if isinstance(operand, Symbol):
            return self.address_source(operand, bits)
        raise UnsupportedInstruction(f"an operand of type .{ptx_type} is expected here")

    def bits_of(self, ptx_type: str) -> int:
        """Width of an operand's type."""
        return TYPE_BITS.get(ptx_type) or type_bits(ptx_type)

    def address_source(self, symbol: Symbol, bits: int = 64) -> Source:
        """The address of a variable or function, as its own state space counts."""
        target = symbol.target
        if isinstance(target, Variable):
            local = self._local_offsets.get(target)
            if local is not None:
                return self._frame_address(local + symbol.offset, bits)
            if target.space in ("param", "reg") and not self.function.is_entry:
                raise UnsupportedInstruction(f"the address of parameter {target.name}")
        address = self.program.address_of(target) + symbol.offset
        return Source(self.constant(address, unsigned(bits)))

    def _frame_address(self, offset: int, bits: int) -> Source:
        # A function's local memory starts where its caller's ends, which is known at the call.
        slot = self.special("%local_base", "")
        dtype = unsigned(bits)
        return Source(slot, lambda base: (base + np.uint32(offset)).astype(dtype))

    def destination(self, operand: Operand, ptx_type: str) -> Destination | None:
        """A result of a type; None for `_`."""
        if isinstance(operand, Sink):
            return None
        if not isinstance(operand, RegisterOperand) or operand.negated:
            raise UnsupportedInstruction(f"a register for a .{ptx_type} result is expected here")
        register = operand.register
        bits = 1 if ptx_type == "pred" else self.bits_of(ptx_type)
        return Destination(register.index, resize(bits, register.bits, is_signed_type(ptx_type)))

    def is_wanted(self, destination: Destination | None) -> bool:
        """Whether anything reads the register; compilers often name one for a result nobody needs."""
        return destination is not None and bool(self._read >> destination.slot & 1)

    def register(self, operand: Operand) -> Register:
        """The register of an operand that has to be one."""
        if not isinstance(operand, RegisterOperand):
            raise UnsupportedInstruction("a register is expected here")
        return operand.register

    def address(self, operand: Operand) -> Callable[[Group], Array]:
        """A function that gives the addresses an address operand names, as uint64."""
        if not isinstance(operand, Address):
            raise UnsupportedInstruction("an address in brackets is expected here")
        base = operand.base
        if base is None:
            return Source(self.constant(operand.offset, unsigned(64))).read
        if isinstance(base, Symbol):
            return self.address_source(Symbol(base.target, base.offset + operand.offset)).read
        source = self._address_register(base)
        if operand.offset == 0:
            if source.convert is None:
                slot = source.slot
                return lambda group: group.registers[slot]
            return source.read
        offset = np.array([operand.offset & 0xFFFFFFFFFFFFFFFF], np.uint64)
        if source.convert is None:
            slot = source.slot
            return lambda group: group.registers[slot] + offset
        read = source.read
        return lambda group: read(group) + offset

    def _address_register(self, operand: Operand) -> Source:
        register = self.register(operand)
        return Source(register.index, resize(register.bits, 64, False))

    def guard(self, instruction: Instruction) -> tuple[int, bool] | None:
        """Slot and negation of the guard."""
        if instruction.guard is None:
            return None
        return instruction.guard.register.index, instruction.guard.negated

    # ------------------------------------------------------------------------------ pure instructions

    def _pure(self, instruction: Instruction) -> Step:
        operands = instruction.operands
        if instruction.opcode not in FORMS:
            raise UnsupportedInstruction(f"instruction {instruction.opcode!r} is not supported")
        found = operation(instruction.opcode, instruction.modifiers, max(0, len(operands) - 1))
        count = len(found.operand_types)
        if len(operands) != count + 1:
            raise UnsupportedInstruction(
                f"{instruction.spelling} takes {count + 1} operands, {len(operands)} are given"
            )
        sources = [self.source(o, t) for o, t in zip(operands[1:], found.operand_types)]
        results = self._results(operands[0], found)
        guard = self.guard(instruction)
        if (
            guard is None
            and not found.reads_carry
            and not found.writes_carry
            and all(source.convert is None for source in sources)
            and len(results) == 1
            and (first := results[0]) is not None
            and first.convert is None
        ):
            step = _fast(found, [s.slot for s in sources], first)
            if step is not None:
                return step
        return self._general(found, sources, results, guard)

    def _results(self, operand: Operand, found: Operation) -> list[Destination | None]:
        """Destinations in the order of the operation's results; trailing ones may be missing."""
        if isinstance(operand, Pair):
            names = [operand.first, operand.second]
        elif isinstance(operand, Tuple):
            names = list(operand.elements)
        else:
            names = [operand]
        if len(names) > len(found.result_types):
            raise UnsupportedInstruction(f"{len(found.result_types)} results are possible here")
        return [self.destination(n, t) for n, t in zip(names, found.result_types)]

    def _general(
        self,
        found: Operation,
        sources: list[Source],
        results: list[Destination | None],
        guard: tuple[int, bool] | None,
    ) -> Step:
        fn = found.unguarded
        carry = self.carry
        if found.reads_carry:
            sources = [*sources, Source(carry)]
        if found.writes_carry:
            results = [*results, Destination(carry)]  # it is the last result
        reads = [source.read for source in sources]

        def step(group: Group) -> None:
            for result, value in zip(results, fn(*[read(group) for read in reads])):
                if result is not None:
                    result.write(group, value)

        if guard is None:
            return step
        slot, negated = guard

        def guarded(group: Group) -> None:
            predicate = group.registers[slot]
            if predicate.size == 1:
                if bool(predicate[0]) != negated:
                    step(group)
                return
            chosen = ~predicate if negated else predicate
            for result, value in zip(results, fn(*[read(group) for read in reads])):
                if result is not None:
                    result.write_where(group, value, chosen)

        return guarded


def _fast(found: Operation, slots: list[int], result: Destination) -> Step | None:
    """The closure of a plain instruction with one to three operands."""
    fn, d, bit = found.unguarded, result.slot, result.bit
    if len(slots) == 1:
        (a,) = slots

        def unary(group: Group) -> None:
            r = group.registers
            value = fn(r[a])[0]
            if group.protect & bit:
                value = group.select(value, r[d])
            r[d] = value

        return unary
    if len(slots) == 2:
        a, b = slots

        def binary(group: Group) -> None:
            r = group.registers
            value = fn(r[a], r[b])[0]
            if group.protect & bit:
                value = group.select(value, r[d])
            r[d] = value

        return binary
    if len(slots) == 3:
        a, b, c = slots

        def ternary(group: Group) -> None:
            r = group.registers
            value = fn(r[a], r[b], r[c])[0]
            if group.protect & bit:
                value = group.select(value, r[d])
            r[d] = value

        return ternary
    return None
