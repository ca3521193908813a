"""ld, st, cp.async, and what steers caches (which does nothing here)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import MemoryFault
from ._lanes import ParameterBytes, expand_mask
from ._semantics import UnsupportedInstruction
from ._spaces import GENERIC, GLOBAL, LOCAL, PARAM, SHARED, Space
from ._syntax import (
    TYPE_BITS,
    Address,
    Immediate,
    Instruction,
    Operand,
    RegisterOperand,
    Symbol,
    Tuple,
    Variable,
)
from ._translate import Destination, Handler, Source, Translator, unsigned

if TYPE_CHECKING:
    from ._code import Step
    from ._lanes import Array, Group, Lanes

__all__ = ["HANDLERS", "IGNORED_ACCESS_MODIFIERS", "named_space", "spaces_of"]

SPACES: dict[str, Space] = {
    "global": GLOBAL,
    "const": GLOBAL,
    "shared": SHARED,
    "shared::cta": SHARED,
    "shared::cluster": SHARED,
    "local": LOCAL,
    "param": PARAM,
    "param::entry": PARAM,
    "param::func": PARAM,
}
_ORDERING = {"weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "sc"}
_SCOPE = {"cta", "cluster", "gpu", "sys", "gl"}
_CACHING = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified"}
IGNORED_ACCESS_MODIFIERS = frozenset(_ORDERING | _SCOPE | _CACHING)
"""Ordering, scope and caching: every access is seen by all at once, in the order of execution."""

_WIDE_UNIT = np.dtype(np.complex128)
"""Sixteen bytes that NumPy moves as one element."""


def spaces_of(modifiers: tuple[str, ...], allowed: frozenset[str] = frozenset()) -> tuple[Space, list[str]]:
    """The state space named, and the modifiers that remain after it, caching and ordering.

    `allowed` modifiers are kept although they would be dropped.
    """
    space: Space = GENERIC
    rest = []
    for modifier in modifiers:
        if modifier in SPACES and space is GENERIC:
            space = SPACES[modifier]
        elif modifier in allowed:
            rest.append(modifier)
        elif modifier in IGNORED_ACCESS_MODIFIERS or modifier.startswith(("L1::", "L2::", "level::")):
            continue
        else:
            rest.append(modifier)
    return space, rest


def named_space(space: Space, address: Operand) -> Space:
    """Without a state space, a variable named in the address tells it."""
    if space is GENERIC and isinstance(address, Address) and isinstance(address.base, Symbol):
        target = address.base.target
        if isinstance(target, Variable) and target.space in SPACES:
            return SPACES[target.space]
    return space


def _vector(rest: list[str], spelling: str) -> tuple[str, int]:
    """Element type and count from what is left of the modifiers."""
    count = 1
    if rest and rest[0] in ("v2", "v4", "v8"):
        count = int(rest[0][1:])
        rest = rest[1:]
    if len(rest) != 1 or rest[0] not in TYPE_BITS:
        raise UnsupportedInstruction(f"the modifiers of {spelling} are not known")
    return rest[0], count


def _elements(operand: Operand, ptx_type: str, count: int) -> tuple[list[Operand], str]:
    """The registers of a scalar or vector operand; 128-bit scalars are two halves."""
    if ptx_type == "b128":
        if count == 1 and isinstance(operand, Tuple) and len(operand.elements) == 2:
            return list(operand.elements), "b64"
        raise UnsupportedInstruction("vectors of .b128")
    if count == 1:
        if isinstance(operand, Tuple):
            if len(operand.elements) != 1:
                raise UnsupportedInstruction("one register is expected here")
            return [operand.elements[0]], ptx_type
        return [operand], ptx_type
    if not isinstance(operand, Tuple) or len(operand.elements) != count:
        raise UnsupportedInstruction(f"a vector of {count} registers is expected here")
    return list(operand.elements), ptx_type


class _Layout:
    """How a scalar or vector of `count` elements is moved: as units of up to 16 bytes."""

    __slots__ = ("count", "element", "size", "unit", "units")

    def __init__(self, bits: int, count: int) -> None:
        self.element = unsigned(bits)
        self.count = count
        self.size = self.element.itemsize * count
        unit = min(self.size, 16)
        self.unit = _WIDE_UNIT if unit == 16 else np.dtype(f"u{unit}")
        self.units = self.size // unit

    def split(self, values: list[Array]) -> list[Array]:
        """Elements from loaded units."""
        if self.units == 1:
            table = values[0].view(self.element).reshape(-1, self.count)
        else:
            table = np.concatenate([v.view(self.element).reshape(v.size, -1) for v in values], axis=1)
        return [np.ascontiguousarray(table[:, number]) for number in range(self.count)]

    def join(self, values: list[Array], size: int) -> list[Array]:
        """Units to store from elements of `size` lanes, or of one where all are the same."""
        table = np.empty((size, self.count), self.element)
        for number, value in enumerate(values):
            table[:, number] = value
        if self.units == 1:
            return [table.view(self.unit).reshape(-1)]
        wide = table.view(self.unit).reshape(size, self.units)
        return [np.ascontiguousarray(wide[:, number]) for number in range(self.units)]


def _check_alignment(group: Group, address: Array, where: Lanes | None, size: int, access: str) -> None:
    """Vectors of more than 16 bytes are aligned to their size too."""
    chosen = address if where is None or address.size == 1 else address[where]
    bad = (chosen & np.uint64(size - 1)) != 0
    if bad.any():
        group.wave.accessed = where
        index = int(bad.argmax())
        reason = "misaligned; vectors are aligned to their size"
        raise MemoryFault(int(chosen[index]), size, access, reason, index=index)


# ------------------------------------------------------------------------------------- loads


def _load(t: Translator, instruction: Instruction) -> Step:
    space, rest = spaces_of(instruction.modifiers)
    ptx_type, count = _vector(rest, instruction.spelling)
    operands = instruction.operands
    if len(operands) < 2:
        raise UnsupportedInstruction("a destination and an address are expected")
    names, ptx_type = _elements(operands[0], ptx_type, count)
    destinations = [t.destination(name, ptx_type) for name in names]
    layout = _Layout(TYPE_BITS[ptx_type], len(names))
    guard = t.guard(instruction)
    address = operands[1]
    space = named_space(space, address)
    if space is PARAM and isinstance(address, Address):
        named = _load_parameter(t, address, destinations, layout, guard)
        if named is not None:
            return named
        if not t.function.is_entry:
            space = LOCAL
    locate = t.address(address)
    if layout.count == 1 and guard is None and destinations[0] is not None:
        return _plain_load(space, locate, destinations[0], layout.unit)
    unit, units, size = layout.unit, layout.units, layout.size

    def step(group: Group) -> None:
        where = group.active if guard is None else group.selected(group.registers[guard[0]], guard[1])
        if where is not None and not where.size:
            return
        addresses = locate(group)
        if units > 1:
            _check_alignment(group, addresses, where, size, "read")
        loaded = [
            space.load(group, addresses + np.uint64(16 * number) if number else addresses, where, unit)
            for number in range(units)
        ]
        for destination, value in zip(destinations, layout.split(loaded)):
            if destination is not None:
                _deliver(group, destination, where, value, guard is not None)

    return step


def _deliver(group: Group, destination: Destination, where: Lanes | None, value: Array, keep: bool) -> None:
    if where is not None and value.size == 1 and not keep:
        destination.write(group, value)  # one value for all who are active
    else:
        destination.scatter(group, where, value, keep)


def _plain_load(
    space: Space, locate: Callable[[Group], Array], destination: Destination, unit: np.dtype[Any]
) -> Step:
    load = space.load
    slot, convert = destination.slot, destination.convert

    def step(group: Group) -> None:
        if group.mask is None:
            value = load(group, locate(group), None, unit)
            group.registers[slot] = value if convert is None else convert(value)
            return
        where = group.active
        _deliver(group, destination, where, load(group, locate(group), where, unit), False)

    return step


def _load_parameter(
    t: Translator,
    address: Address,
    destinations: list[Destination | None],
    layout: _Layout,
    guard: tuple[int, bool] | None,
) -> Step | None:
    """A load from a named parameter; None where the address is a register or lies in local memory."""
    base = address.base
    if not isinstance(base, Symbol) or not isinstance(base.target, Variable):
        return None
    variable = base.target
    first = base.offset + address.offset
    size = layout.element.itemsize
    offsets = [first + size * number for number in range(layout.count)]
    if t.function.is_entry and variable in t.function.parameters:
        start = t.program.address_of(variable)
        if first < 0 or (variable.size_bytes and offsets[-1] + size > variable.size_bytes):
            raise UnsupportedInstruction(
                f"bytes {first} to {offsets[-1] + size} of parameter {variable.name}, which has "
                f"{variable.size_bytes}"
            )
        return _load_constants(destinations, [start + offset for offset in offsets], layout.element, guard)
    if t.local_offset(variable) is not None:
        return None
    return _load_argument(t, variable, destinations, offsets, layout.element, guard)


def _load_constants(
    destinations: list[Destination | None],
    offsets: list[int],
    dtype: np.dtype[Any],
    guard: tuple[int, bool] | None,
) -> Step:
    def step(group: Group) -> None:
        for destination, offset in zip(destinations, offsets):
            if destination is None:
                continue
            value = group.wave.launch.parameter(offset, dtype)
            if guard is None:
                destination.write(group, value)
            else:
                chosen = group.registers[guard[0]]
                destination.write_where(group, value, ~chosen if guard[1] else chosen)

    return step


def _load_argument(
    t: Translator,
    variable: Variable,
    destinations: list[Destination | None],
    offsets: list[int],
    dtype: np.dtype[Any],
    guard: tuple[int, bool] | None,
) -> Step:
    """Read a device function's own parameter, or what a call has returned."""
    own = variable in t.function.parameters
    empty = ParameterBytes()

    def step(group: Group) -> None:
        frame = group.frame
        if own:
            source = frame.parameters.get(variable, empty)
        else:
            source = frame.returned.get(variable) or group.outgoing.get(variable, empty)
        from_frame = own or variable in frame.returned
        for destination, offset in zip(destinations, offsets):
            if destination is None:
                continue
            value = source.read(offset, dtype)
            if group.origin is not None and from_frame and value.size > 1:
                value = value[group.origin]
            if guard is None:
                destination.write(group, value)
            else:
                chosen = group.registers[guard[0]]
                destination.write_where(group, value, ~chosen if guard[1] else chosen)

    return step


# ------------------------------------------------------------------------------------ stores


def _store(t: Translator, instruction: Instruction) -> Step:
    if instruction.modifiers[:1] in (("async",), ("bulk",)):
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    space, rest = spaces_of(instruction.modifiers)
    ptx_type, count = _vector(rest, instruction.spelling)
    operands = instruction.operands
    if len(operands) < 2:
        raise UnsupportedInstruction("an address and a source are expected")
    names, ptx_type = _elements(operands[1], ptx_type, count)
    sources = [t.source(name, ptx_type) for name in names]
    layout = _Layout(TYPE_BITS[ptx_type], len(names))
    guard = t.guard(instruction)
    address = operands[0]
    space = named_space(space, address)
    if space is PARAM and isinstance(address, Address):
        named = _store_parameter(t, address, sources, layout, guard)
        if named is not None:
            return named
        if not t.function.is_entry:
            space = LOCAL
    locate = t.address(address)
    if layout.count == 1 and guard is None:
        return _plain_store(space, locate, sources[0])
    size, units = layout.size, layout.units
    reads = [source.read for source in sources]

    def step(group: Group) -> None:
        where = group.active if guard is None else group.selected(group.registers[guard[0]], guard[1])
        if where is not None and not where.size:
            return
        addresses = locate(group)
        if units > 1:
            _check_alignment(group, addresses, where, size, "write")
        values = [read(group) for read in reads]
        if where is not None:
            values = [v if v.size == 1 else v[where] for v in values]
        lanes = max(v.size for v in values)
        for number, unit in enumerate(layout.join(values, lanes)):
            place = addresses + np.uint64(16 * number) if number else addresses
            space.store(group, place, where, unit)

    return step


def _plain_store(space: Space, locate: Callable[[Group], Array], source: Source) -> Step:
    read, store = source.read, space.store

    def step(group: Group) -> None:
        value = read(group)
        if group.mask is None:
            store(group, locate(group), None, value)
            return
        where = group.active
        store(group, locate(group), where, value if value.size == 1 else value[where])

    return step


def _store_parameter(
    t: Translator,
    address: Address,
    sources: list[Source],
    layout: _Layout,
    guard: tuple[int, bool] | None,
) -> Step | None:
    """Write an argument of the next call, or a return value."""
    base = address.base
    if not isinstance(base, Symbol) or not isinstance(base.target, Variable):
        return None
    variable = base.target
    if t.local_offset(variable) is not None:
        return None
    if t.function.is_entry and variable in t.function.parameters:
        raise UnsupportedInstruction("parameters of a kernel are read-only")
    offset = base.offset + address.offset
    size = layout.element.itemsize
    result = variable in t.function.returns or variable in t.function.parameters
    pairs = [(offset + size * number, source.read) for number, source in enumerate(sources)]
    own = variable in t.function.parameters

    def step(group: Group) -> None:
        if result:
            _store_result(group, variable, pairs, guard, own)
            return
        holder = group.outgoing.get(variable)
        if holder is None:
            holder = group.outgoing[variable] = ParameterBytes()
        mask = None
        if guard is not None:
            chosen = group.registers[guard[0]]
            mask = np.broadcast_to(~chosen if guard[1] else chosen, (group.size,))
        for place, read in pairs:
            holder.write(place, read(group), mask)

    return step


def _store_result(
    group: Group,
    variable: Variable,
    pairs: Sequence[tuple[int, Callable[[Group], Array]]],
    guard: tuple[int, bool] | None,
    own: bool,
) -> None:
    """Write into the frame, for the active lanes."""
    frame = group.frame
    holders = frame.parameters if own else frame.results
    holder = holders.get(variable)
    if holder is None:
        holder = holders[variable] = ParameterBytes()
    where = group.active if guard is None else group.selected(group.registers[guard[0]], guard[1])
    if where is None and group.origin is None:
        for place, read in pairs:
            holder.write(place, read(group))
        return
    for place, read in pairs:
        value = read(group)
        if where is not None and value.size > 1:
            value = value[where]
        positions = where if where is not None else np.arange(group.size)
        if group.origin is not None:
            positions = group.origin[positions]
        if len(frame.members) == 1 and value.size == 1 and guard is None:
            holder.write(place, value)  # nobody else is in this frame any more
            continue
        full = np.zeros(frame.size, value.dtype)
        full[positions] = value
        holder.write(place, full, expand_mask(frame.size, positions))


# ------------------------------------------------------------------------------------ copies


def _copy_async(t: Translator, instruction: Instruction) -> Step | None:
    """cp.async: the copy happens at once, which every later wait allows."""
    modifiers = instruction.modifiers
    if modifiers[:1] != ("async",):
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    if modifiers[1:2] in (("commit_group",), ("wait_group",), ("wait_all",)):
        return None
    if "mbarrier" in modifiers or "bulk" in modifiers:
        from ._ops_mbarrier import copy_bulk

        return copy_bulk(t, instruction)
    if "reduce" in modifiers:
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    known = {"ca", "cg", "shared", "shared::cta", "global"}
    if any(m not in known and not m.startswith(("L1::", "L2::")) for m in modifiers[1:]):
        raise UnsupportedInstruction(f"the modifiers of {instruction.spelling} are not known")
    operands = list(instruction.operands)
    if len(operands) < 3 or not isinstance(operands[2], Immediate):
        raise UnsupportedInstruction("a destination, a source and a size are expected")
    if "L2::cache_hint" in modifiers:
        operands.pop()
    size = operands[2].value
    if size not in (4, 8, 16):
        raise UnsupportedInstruction("cp.async copies 4, 8 or 16 bytes")
    unit = _WIDE_UNIT if size == 16 else np.dtype(f"u{size}")
    to, origin = t.address(operands[0]), t.address(operands[1])
    kept = t.source(operands[3], "b32") if len(operands) > 3 and not _is_predicate(operands[3]) else None
    ignored = t.source(operands[3], "pred") if len(operands) > 3 and _is_predicate(operands[3]) else None
    guard = t.guard(instruction)

    def step(group: Group) -> None:
        where = group.active if guard is None else group.selected(group.registers[guard[0]], guard[1])
        if where is not None and not where.size:
            return
        target, source = to(group), origin(group)
        taken = None
        if kept is not None:
            taken = kept.read(group)
        elif ignored is not None:
            taken = np.where(ignored.read(group), np.uint32(0), np.uint32(size))
        if taken is None or (taken.size == 1 and int(taken[0]) == size):
            values = GLOBAL.load(group, source, where, unit)
        else:
            values = _load_partly(group, source, where, size, taken, unit)
        SHARED.store(group, target, where, values)

    return step


def _is_predicate(operand: Operand) -> bool:
    return isinstance(operand, RegisterOperand) and operand.register.type == "pred"


def _load_partly(
    group: Group, source: Array, where: Lanes | None, size: int, taken: Array, unit: np.dtype[Any]
) -> Array:
    """Only the first `taken` bytes come from the source, the rest are zeros."""
    positions = np.arange(group.size) if where is None else where
    taken = np.broadcast_to(taken, (group.size,))[positions]
    address = np.broadcast_to(source, (group.size,))
    values = np.zeros((positions.size, size), np.uint8)
    whole = np.flatnonzero(taken >= size)
    if whole.size:
        loaded = GLOBAL.load(group, address, positions[whole], unit)
        values[whole] = loaded.view(np.uint8).reshape(whole.size, size)
    for number in range(size):
        part = np.flatnonzero((taken > number) & (taken < size))
        if part.size:
            place = address + np.uint64(number)
            values[part, number] = GLOBAL.load(group, place, positions[part], np.dtype(np.uint8))
    return values.view(unit).reshape(-1)


def _sleep(t: Translator, instruction: Instruction) -> Step | None:
    """nanosleep: others run at the next turn of the loop around it."""
    if instruction.modifiers != ("u32",):
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")

    def step(group: Group) -> None:
        group.turns = 1 << 30

    return step


def _policy(t: Translator, instruction: Instruction) -> Step | None:
    """createpolicy: a number that steers caches."""
    destination = t.destination(instruction.operands[0], "b64")
    if destination is None:
        return None
    slot = t.constant(0, np.dtype(np.uint64))
    return lambda group: destination.write(group, group.registers[slot])


def _nothing(t: Translator, instruction: Instruction) -> Step | None:
    """Fences and cache hints: memory is sequentially consistent here."""
    return None


HANDLERS: dict[str, Handler] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "cp": _copy_async,
    "nanosleep": _sleep,
    "createpolicy": _policy,
    "membar": _nothing,
    "fence": _nothing,
    "prefetch": _nothing,
    "prefetchu": _nothing,
    "applypriority": _nothing,
    "discard": _nothing,
    "pmevent": _nothing,
    "griddepcontrol": _nothing,
    "setmaxnreg": _nothing,
}
