"""mov, and what turns addresses of one state space into those of another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ._lanes import Array
from ._semantics import UnsupportedInstruction
from ._spaces import CLUSTER_SHIFT, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from ._syntax import TYPE_BITS, Instruction, Operand, RegisterOperand, Special, Tuple
from ._translate import Destination, Handler, Source, Translator, resize, unsigned

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._code import Step
    from ._lanes import Group

__all__ = ["HANDLERS"]


def _copy(t: Translator, instruction: Instruction, destination: Destination, source: Source) -> Step:
    """A register gets a value."""
    guard = t.guard(instruction)
    if guard is not None:
        slot, negated = guard

        def guarded(group: Group) -> None:
            predicate = group.registers[slot]
            if predicate.size == 1:
                if bool(predicate[0]) != negated:
                    destination.write(group, source.read(group))
                return
            destination.write_where(group, source.read(group), ~predicate if negated else predicate)

        return guarded
    if source.convert is None and destination.convert is None:
        a, d, bit = source.slot, destination.slot, destination.bit

        def plain(group: Group) -> None:
            r = group.registers
            value = r[a]
            if group.protect & bit:
                value = group.select(value, r[d])
            r[d] = value

        return plain
    return lambda group: destination.write(group, source.read(group))


def _mov(t: Translator, instruction: Instruction) -> Step | None:
    modifiers, operands = instruction.modifiers, instruction.operands
    if not modifiers or modifiers[-1] not in TYPE_BITS or len(operands) != 2:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    ptx_type = modifiers[-1]
    to, origin = operands
    if modifiers[:-1] in (("v2",), ("v4",), ("v8",)):
        return _repack(t, instruction, to, origin, int(modifiers[0][1:]) * TYPE_BITS[ptx_type])
    if len(modifiers) != 1:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    if isinstance(origin, Special) and origin.name in _CLOCKS:
        return _read_clock(t, instruction, to, origin, ptx_type)
    if isinstance(to, Tuple) or isinstance(origin, Tuple):
        return _repack(t, instruction, to, origin, TYPE_BITS[ptx_type])
    destination = t.destination(to, ptx_type)
    if destination is None:
        return None
    return _copy(t, instruction, destination, t.source(origin, ptx_type))


def _repack(t: Translator, instruction: Instruction, to: Operand, origin: Operand, total: int) -> Step:
    """`mov.b64 d, {a, b}` and `mov.b64 {a, b}, d`, the first element being the lowest bits."""
    writers = list(to.elements) if isinstance(to, Tuple) else [to]
    readers = list(origin.elements) if isinstance(origin, Tuple) else [origin]
    if total > 64 and 1 in (len(writers), len(readers)):
        raise UnsupportedInstruction(f"a scalar of {total} bits")
    write_bits, read_bits = total // len(writers), total // len(readers)
    destinations = [t.destination(w, f"b{write_bits}") for w in writers]
    sources = [t.source(r, f"b{read_bits}") for r in readers]
    guard = t.guard(instruction)
    regroup = _regroup(read_bits, len(readers), write_bits, len(writers))

    def step(group: Group) -> None:
        values = regroup([source.read(group) for source in sources])
        if guard is None:
            for destination, value in zip(destinations, values):
                if destination is not None:
                    destination.write(group, value)
            return
        chosen = group.registers[guard[0]]
        if guard[1]:
            chosen = ~chosen
        for destination, value in zip(destinations, values):
            if destination is not None:
                destination.write_where(group, value, chosen)

    return step


def _regroup(
    read_bits: int, readers: int, write_bits: int, writers: int
) -> Callable[[list[Array]], list[Array]]:
    if read_bits == write_bits:
        return lambda values: values
    if read_bits < write_bits:
        dtype, per = unsigned(write_bits), readers // writers
        shifts = [dtype.type(read_bits * number) for number in range(per)]

        def pack(values: list[Array]) -> list[Array]:
            packed = []
            for start in range(0, readers, per):
                whole: Array = values[start].astype(dtype)
                for number in range(1, per):
                    whole = whole | (values[start + number].astype(dtype) << shifts[number])
                packed.append(whole)
            return packed

        return pack
    narrow, source_dtype, per = unsigned(write_bits), unsigned(read_bits), writers // readers
    moves = [source_dtype.type(write_bits * number) for number in range(per)]

    def unpack(values: list[Array]) -> list[Array]:
        return [(value >> move).astype(narrow) for value in values for move in moves]

    return unpack


# ------------------------------------------------------------------------------------ clocks

_CLOCKS: dict[str, Callable[[], int]] = {
    "%clock": time.perf_counter_ns,
    "%clock_hi": lambda: time.perf_counter_ns() >> 32,
    "%clock64": time.perf_counter_ns,
    "%globaltimer": time.time_ns,
    "%globaltimer_lo": time.time_ns,
    "%globaltimer_hi": lambda: time.time_ns() >> 32,
}
"""Special registers that change while a kernel runs. A clock cycle is a nanosecond here."""


def _read_clock(
    t: Translator, instruction: Instruction, to: Operand, origin: Special, ptx_type: str
) -> Step | None:
    destination = t.destination(to, ptx_type)
    if destination is None:
        return None
    dtype = unsigned(TYPE_BITS[ptx_type])
    mask = (1 << 8 * dtype.itemsize) - 1
    read = _CLOCKS[origin.name]
    guard = t.guard(instruction)

    def step(group: Group) -> None:
        value = np.array([read() & mask], dtype)
        if guard is None:
            destination.write(group, value)
        else:
            chosen = group.registers[guard[0]]
            destination.write_where(group, value, ~chosen if guard[1] else chosen)

    return step


# ---------------------------------------------------------------------------------- addresses

_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "global": 0, "const": 0, "param": PARAM_WINDOW}


def _window(t: Translator, space: str) -> int:
    if space.startswith("param"):
        return PARAM_WINDOW if t.function.is_entry else LOCAL_WINDOW
    return _WINDOWS[space.split("::")[0]]


def _cvta(t: Translator, instruction: Instruction) -> Step | None:
    modifiers = list(instruction.modifiers)
    back = modifiers[:1] == ["to"]
    if back:
        modifiers.pop(0)
    if (
        len(modifiers) != 2
        or modifiers[0].split("::")[0] not in _WINDOWS
        or modifiers[1] not in ("u64", "u32", "b64")
        or len(instruction.operands) != 2
    ):
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    window = _window(t, modifiers[0])
    bits = TYPE_BITS[modifiers[1]]
    destination = t.destination(instruction.operands[0], "b64")
    if destination is None:
        return None
    to = instruction.operands[0]
    if isinstance(to, RegisterOperand):
        destination = Destination(to.register.index, resize(64, to.register.bits, False))
    source = t.source(instruction.operands[1], f"b{bits}")
    widen = resize(bits, 64, False)
    if not window and widen is None:
        return _copy(t, instruction, destination, source)
    change = np.uint64(window)

    def convert(value: Array) -> Array:
        whole = value if source.convert is None else source.convert(value)
        if widen is not None:
            whole = widen(whole)
        result: Array = (whole - change) if back else (whole + change)
        return result

    return _copy(t, instruction, destination, Source(source.slot, convert))


def _isspacep(t: Translator, instruction: Instruction) -> Step | None:
    if len(instruction.modifiers) != 1 or len(instruction.operands) != 2:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    space = instruction.modifiers[0].split("::")[0]
    destination = t.destination(instruction.operands[0], "pred")
    if destination is None:
        return None
    source = t.source(instruction.operands[1], "b64")
    constants = t.program.constant_ranges()

    def test(address: Array) -> Array:
        window = address >> np.uint64(60)
        if space in ("shared", "local", "param"):
            result: Array = window == _WINDOWS[space] >> 60
            return result
        is_constant = np.zeros(address.shape, np.bool_)
        for start, size in constants:
            is_constant |= (address - np.uint64(start)) < np.uint64(size)
        result = is_constant if space == "const" else (window == 0) & ~is_constant
        return result

    if space not in _WINDOWS:
        raise UnsupportedInstruction(f"the state space of {instruction.spelling}")

    def convert(value: Array) -> Array:
        return test(value if source.convert is None else source.convert(value))

    return _copy(t, instruction, destination, Source(source.slot, convert))


def _mapa(t: Translator, instruction: Instruction) -> Step | None:
    """The address of the same shared variable in another block of the cluster."""
    modifiers = [m for m in instruction.modifiers if m != "shared::cluster"]
    generic = len(modifiers) == len(instruction.modifiers)
    if modifiers not in (["u32"], ["u64"]) or len(instruction.operands) != 3:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    ptx_type = modifiers[0]
    destination = t.destination(instruction.operands[0], ptx_type)
    if destination is None:
        return None
    address = t.source(instruction.operands[1], ptx_type)
    rank = t.source(instruction.operands[2], "u32")
    guard = t.guard(instruction)
    dtype: np.dtype[Any] = unsigned(TYPE_BITS[ptx_type])
    keep = dtype.type((1 << CLUSTER_SHIFT) - 1)
    window = dtype.type(SHARED_WINDOW) if generic and ptx_type == "u64" else dtype.type(0)

    def step(group: Group) -> None:
        block = (rank.read(group).astype(dtype) + dtype.type(1)) << dtype.type(CLUSTER_SHIFT)
        value = (address.read(group) & keep) | block | window
        if guard is None:
            destination.write(group, value)
        else:
            chosen = group.registers[guard[0]]
            destination.write_where(group, value, ~chosen if guard[1] else chosen)

    return step


def _getctarank(t: Translator, instruction: Instruction) -> Step | None:
    """The rank of the block whose shared memory an address lies in."""
    modifiers = [m for m in instruction.modifiers if m != "shared::cluster"]
    if modifiers not in (["u32"], ["u64"]) or len(instruction.operands) != 2:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    destination = t.destination(instruction.operands[0], "u32")
    if destination is None:
        return None
    address = t.source(instruction.operands[1], modifiers[0])
    own = t.special("%cluster_ctarank", "")

    def step(group: Group) -> None:
        value = address.read(group).astype(np.uint64)
        rank = ((value >> np.uint64(CLUSTER_SHIFT)) & np.uint64(0xFF)).astype(np.uint32)
        destination.write(group, np.where(rank > 0, rank - np.uint32(1), group.registers[own]))

    if t.guard(instruction) is not None:
        raise UnsupportedInstruction("a guarded getctarank")
    return step


HANDLERS: dict[str, Handler] = {
    "mov": _mov,
    "cvta": _cvta,
    "isspacep": _isspacep,
    "mapa": _mapa,
    "getctarank": _getctarank,
}
