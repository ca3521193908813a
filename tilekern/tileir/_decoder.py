"""Bytecode back into a `Module`: the encoder read the other way round, to the last byte.

Everything must be consumed: a section, table entry or body with bytes left over is damage. A module that
was written by `encode_module` is written again to the same bytes; other writers may order their tables
differently, which the module does not keep.
"""

from __future__ import annotations

import builtins
from itertools import pairwise
from typing import Any, TypeVar

from . import _attributes as attributes
from . import types
from ._debug import (
    CallSite,
    CompileUnit,
    DebugAttribute,
    DebugLocation,
    File,
    LexicalBlock,
    Location,
    Subprogram,
)
from ._encoder import DYNAMIC_SENTINEL, MAGIC, Section
from ._enums import PaddingValue, PointerKind
from ._module import Block, Function, Global, Module, Operand, Operation, Region, Value
from ._op_table import OPS_BY_OPCODE, Arity, AttributeKind, AttributeSpec, OperandLayout, OpSpec
from ._primitives import ByteReader
from ._version import SUPPORTED_VERSIONS, Version, version_text
from .errors import BytecodeError, DecodeError

__all__ = ["decode_module"]

_T = TypeVar("_T")

_NUMBER_TYPES = {kind.tag: kind for kind in types.NUMBER_TYPES.values()}


def decode_module(data: bytes) -> Module:
    """The module in a bytecode file.

    Raises:
        DecodeError: not Tile IR bytecode, of an unknown version, damaged, or with features this reader
            does not know (functions that are no kernel entries among them).
    """
    reader = ByteReader(data)
    if data[: len(MAGIC)] != MAGIC:
        raise DecodeError(f"not Tile IR bytecode: it starts with {data[:8]!r}", 0)
    reader.raw(len(MAGIC))
    version = (reader.byte(), reader.byte())
    if version not in SUPPORTED_VERSIONS:
        raise DecodeError(f"bytecode version {version_text(version)} is not known", len(MAGIC))
    reader.u16()
    try:
        return _Decoder(data, version, _sections(reader)).module()
    except RecursionError:
        raise DecodeError("regions or attributes are nested too deep", reader.offset) from None


def _sections(reader: ByteReader) -> dict[int, ByteReader]:
    sections: dict[int, ByteReader] = {}
    while (head := reader.byte()) != Section.END:
        number = head & 0x7F
        if not Section.STRING <= number <= Section.PRODUCER or number in sections:
            raise DecodeError(f"section {number} is unknown or there twice", reader.offset - 1)
        length = reader.varint()
        if head & 0x80:
            alignment = reader.varint()
            if alignment not in (1, 2, 4, 8, 16, 32, 64):
                raise DecodeError(f"section {number} is aligned to {alignment} bytes", reader.offset)
            reader.align(alignment)
        begin = reader.offset
        reader.raw(length)
        sections[number] = ByteReader(reader.data, begin, reader.offset)
    if not reader.at_end:
        raise DecodeError("there is something behind the end marker", reader.offset)
    return sections


class _Decoder:
    def __init__(self, data: bytes, version: Version, sections: dict[int, ByteReader]) -> None:
        self.version = version
        self.sections = sections
        self.strings = [self._text(r) for r in self._table(Section.STRING, 4)]
        self.constants = [self._constant(r) for r in self._table(Section.CONSTANT, 8)]
        self._type_readers = self._table(Section.TYPE, 4)
        self._types: list[types.Type] = []
        for blob in self._type_readers:
            self._types.append(self._type(blob))
            _finish(blob, "a type")
        self._debug_readers: list[ByteReader] = []
        self._debug: dict[int, DebugAttribute] = {}

    def module(self) -> Module:
        functions = self._functions()
        globals_ = self._globals()
        producer = None
        if (section := self.sections.get(Section.PRODUCER)) is not None:
            producer = self.string(section)
        return Module(self.version, functions, globals_, producer)

    # Tables.

    def _table(self, number: int, width: int) -> list[ByteReader]:
        section = self.sections.get(number)
        return [] if section is None else _read_table(section, width)

    @staticmethod
    def _text(blob: ByteReader) -> str:
        try:
            return blob.raw(blob.end - blob.start).decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"a string that is not UTF-8: {error}", blob.start) from None

    @staticmethod
    def _constant(blob: ByteReader) -> bytes:
        data = blob.raw(blob.varint())
        _finish(blob, "a constant")
        return data

    def string(self, reader: ByteReader) -> str:
        return _pick(self.strings, reader, "string")

    def constant(self, reader: ByteReader) -> bytes:
        return _pick(self.constants, reader, "constant")

    def type(self, reader: ByteReader) -> types.Type:
        return _pick(self._types, reader, "type")

    def _value_type(self, reader: ByteReader) -> types.Type:
        """No function's: of these each could have the one before twice, and their texts would grow without bound."""
        kind = self.type(reader)
        if isinstance(kind, types.FunctionType):
            raise DecodeError("a function type is used as the type of a value", reader.offset)
        return kind

    def number_type(self, reader: ByteReader) -> types.NumberType:
        kind = self.type(reader)
        if not isinstance(kind, types.NumberType):
            raise DecodeError(f"a number type is needed, got {kind}", reader.offset)
        return kind

    def _view(self, reader: ByteReader) -> types.TensorViewType:
        kind = self.type(reader)
        if not isinstance(kind, types.TensorViewType):
            raise DecodeError(f"a tensor_view is needed, got {kind}", reader.offset)
        return kind

    def _type(self, reader: ByteReader) -> types.Type:
        begin = reader.offset
        tag = reader.varint()
        if tag in _NUMBER_TYPES:
            return _NUMBER_TYPES[tag]
        try:
            return self._compound_type(tag, reader)
        except BytecodeError as error:
            raise DecodeError(str(error), begin) from None

    def _compound_type(self, tag: int, reader: ByteReader) -> types.Type:
        # From 13.4 on pointers and tensor views start with flags, from 13.3 on views do.
        has_flags = self.version >= ((13, 4) if tag in (12, 14) else (13, 3))
        flags = reader.varint() if tag in (12, 14, 15, 20, 21) and has_flags else 0
        match tag:
            case 12:
                pointee = self.number_type(reader)
                return types.PointerType(pointee, self._pointer_kind(reader, flags))
            case 13:
                element = self.type(reader)
                if not isinstance(element, (types.NumberType, types.PointerType)):
                    raise DecodeError(f"a tile of {element}", reader.offset)
                return types.TileType(element, tuple(_i64s(reader)))
            case 14:
                number = self.number_type(reader)
                shape, strides = (
                    tuple(None if value == DYNAMIC_SENTINEL else value for value in _i64s(reader))
                    for _ in range(2)
                )
                return types.TensorViewType(number, shape, strides, self._pointer_kind(reader, flags))
            case 15:
                tile, view, dim_map = _i32s(reader), self._view(reader), _i32s(reader)
                if self.version < (13, 3):
                    flags = reader.byte()
                return types.PartitionViewType(tile, view, dim_map, _padding(reader, flags))
            case 16:
                inputs, results = (
                    tuple(self._value_type(reader) for _ in range(reader.varint())) for _ in range(2)
                )
                return types.FunctionType(inputs, results)
            case 17:
                return types.token
            case 20:
                tile, view, sparse = _i32s(reader), self._view(reader), reader.varint()
                return types.GatherScatterViewType(tile, view, sparse, _padding(reader, flags))
            case 21:
                tile, steps, view, dim_map = _i32s(reader), _i32s(reader), self._view(reader), _i32s(reader)
                return types.StridedViewType(tile, steps, view, dim_map, _padding(reader, flags))
            case _:
                raise DecodeError(f"type tag {tag} is not known", reader.offset)

    @staticmethod
    def _pointer_kind(reader: ByteReader, flags: int) -> PointerKind:
        return _member(PointerKind, reader) if flags & 1 else PointerKind.DEFAULT

    # Sections.

    def _globals(self) -> list[Global]:
        section = self.sections.get(Section.GLOBAL)
        if section is None:
            return []
        found = []
        for _ in range(section.varint()):
            name, kind, data = self.string(section), self.type(section), self.constant(section)
            if not isinstance(kind, types.TileType):
                raise DecodeError(f"global {name} is of {kind}, no tile", section.offset)
            alignment = section.varint()
            flags = (section.varint(), section.varint()) if self.version >= (13, 3) else (0, 0)
            found.append(Global(name, kind, data, alignment, bool(flags[0]), bool(flags[1])))
        return found

    def _functions(self) -> list[Function]:
        section = self.sections.get(Section.FUNC)
        if section is None:
            raise DecodeError("there is no function section", 0)
        locations = self._locations()
        return [self._function(section, locations) for _ in range(section.varint())]

    def _function(self, reader: ByteReader, locations: list[list[DebugLocation | None]]) -> Function:
        name, signature = self.string(reader), self.type(reader)
        if not isinstance(signature, types.FunctionType):
            raise DecodeError(f"function {name} has the signature {signature}", reader.offset)
        flags = reader.byte()
        if flags & ~0x04 != 0x02:
            raise DecodeError(f"function {name} is no public kernel entry (flags {flags:#x})", reader.offset)
        location_id = reader.varint()
        is_new = self.version >= (13, 5)
        hints: tuple[tuple[str, attributes.Attribute], ...] = ()
        arguments: tuple[attributes.Attribute, ...] = ()
        if flags & 0x04 or is_new:
            found = self.tagged(reader)
            if not isinstance(found, attributes.HintsAttribute):
                raise DecodeError(f"hints of {name} are {found}", reader.offset)
            hints = found.items
        if is_new:
            array = self.tagged(reader)
            if not isinstance(array, attributes.ArrayAttribute):
                raise DecodeError(f"argument attributes of {name} are {array}", reader.offset)
            arguments = array.items
        begin = reader.offset
        length = reader.varint()
        begin = reader.offset
        reader.raw(length)
        if location_id > len(locations):
            raise DecodeError(f"function {name} has no debug entry {location_id}", begin)
        entries = locations[location_id - 1] if location_id else []
        body = ByteReader(reader.data, begin, begin + length)
        block = _BodyDecoder(self, body, entries[1:]).function(signature)
        return Function(name, block, hints, entries[0] if entries else None, arguments)

    # Debug section.

    def _locations(self) -> list[list[DebugLocation | None]]:
        """Per function: its own location, then one per operation."""
        section = self.sections.get(Section.DEBUG)
        if section is None:
            return []
        count = section.varint()
        section.align(4)
        starts = [section.u32() for _ in range(count)]
        total = section.varint()
        section.align(8)
        entries = [section.u64() for _ in range(total)]
        self._debug_readers = _read_table(section, 4)
        ends = [*starts[1:], total]
        if any(start > end for start, end in zip(starts, ends)):
            raise DecodeError("the locations of functions are not in order", section.start)
        return [
            [self._debug_location(entry) for entry in entries[start:end]] for start, end in zip(starts, ends)
        ]

    def _debug_location(self, number: int) -> DebugLocation | None:
        return None if number == 0 else self._debug_as(number, Location, CallSite)

    def _debug_as(self, number: int, *kinds: builtins.type) -> Any:  # one of `kinds`, checked
        if not 0 < number <= len(self._debug_readers):
            raise DecodeError(f"debug attribute {number} does not exist", self.sections[Section.DEBUG].start)
        if number not in self._debug:
            self._debug[number] = self._debug_attribute(self._debug_readers[number - 1])
        found = self._debug[number]
        if not isinstance(found, kinds):
            raise DecodeError(
                f"debug attribute {number} is a {type(found).__name__}", self._debug_readers[number - 1].start
            )
        return found

    def _debug_attribute(self, reader: ByteReader) -> DebugAttribute:
        # Taken from the start and never reset: an attribute that contains itself runs out of bytes.
        tag = reader.varint()
        match tag:
            case 1:
                return CompileUnit(self._debug_as(reader.varint(), File))
            case 2:
                return File(self.string(reader), self.string(reader))
            case 3:
                scope = self._debug_as(reader.varint(), Subprogram, LexicalBlock)
                file = self._debug_as(reader.varint(), File)
                return LexicalBlock(scope, file, reader.varint(), reader.varint())
            case 4:
                scope = self._debug_as(reader.varint(), Subprogram, LexicalBlock)
                return Location(scope, self.string(reader), reader.varint(), reader.varint())
            case 5:
                file, line = self._debug_as(reader.varint(), File), reader.varint()
                name, linkage_name = self.string(reader), self.string(reader)
                unit, scope_line = self._debug_as(reader.varint(), CompileUnit), reader.varint()
                if self.version >= (13, 5):
                    reader.varint()
                return Subprogram(file, line, name, linkage_name, unit, scope_line)
            case 6:
                callee, caller = (self._debug_as(reader.varint(), Location, CallSite) for _ in range(2))
                return CallSite(callee, caller)
            case _:
                raise DecodeError(f"debug tag {tag} is not known", reader.start)

    # Tagged attributes.

    def tagged(self, reader: ByteReader) -> attributes.Attribute:
        tag = reader.varint()
        match tag:
            case 1:
                return attributes.IntegerAttribute(self.number_type(reader), reader.varint())
            case 2:
                kind = self.number_type(reader)
                bits = reader.byte() if kind.bits <= 8 else reader.signed_varint() & ((1 << 64) - 1)
                return attributes.FloatAttribute(kind, bits)
            case 3:
                return attributes.BoolAttribute(bool(reader.byte()))
            case 4:
                return attributes.TypeAttribute(self.type(reader))
            case 5:
                return attributes.StringAttribute(self.string(reader))
            case 6:
                return attributes.ArrayAttribute(tuple(self.tagged(reader) for _ in range(reader.varint())))
            case 7:
                return attributes.DenseAttribute(self.type(reader), self.constant(reader))
            case 8:
                divisor, flags = reader.varint(), reader.byte()
                every = reader.signed_varint() if flags & 1 else None
                along = reader.signed_varint() if flags & 2 else None
                try:
                    return attributes.DivBy(divisor, every, along)
                except BytecodeError as error:
                    raise DecodeError(str(error), reader.offset) from None
            case 9:
                return attributes.SameElements(tuple(_i64s(reader)))
            case 10:
                return attributes.DictionaryAttribute(self.dictionary(reader))
            case 11:
                return attributes.HintsAttribute(self.dictionary(reader))
            case 12:
                flags = reader.byte()
                lower = reader.signed_varint() if flags & 1 else None
                upper = reader.signed_varint() if flags & 2 else None
                return attributes.Bounded(lower, upper)
            case _:
                raise DecodeError(f"attribute tag {tag} is not known", reader.offset)

    def dictionary(self, reader: ByteReader) -> tuple[tuple[str, attributes.Attribute], ...]:
        return tuple((self.string(reader), self.tagged(reader)) for _ in range(reader.varint()))


class _BodyDecoder:
    """Instructions of one function, with its values by number."""

    def __init__(self, tables: _Decoder, reader: ByteReader, locations: list[DebugLocation | None]) -> None:
        self.tables = tables
        self.reader = reader
        self.locations = locations
        self.has_locations = bool(locations)
        self.next_location = 0
        self.values: list[Value] = []

    def function(self, signature: types.FunctionType) -> Block:
        block = Block(tuple(Value(kind) for kind in signature.inputs))
        self.values.extend(block.arguments)
        while not self.reader.at_end:
            block.operations.append(self._operation())
        if self.next_location != len(self.locations):
            raise DecodeError("a function has more locations than operations", self.reader.start)
        return block

    def _location(self) -> DebugLocation | None:
        if not self.has_locations:
            return None
        if self.next_location == len(self.locations):
            raise DecodeError("a function has fewer locations than operations", self.reader.offset)
        self.next_location += 1
        return self.locations[self.next_location - 1]

    def _operation(self) -> Operation:
        reader, version = self.reader, self.tables.version
        begin = reader.offset
        opcode = reader.varint()
        spec = OPS_BY_OPCODE.get(opcode)
        if spec is None or spec.since > version:
            raise DecodeError(f"opcode {opcode} is not known in bytecode {version_text(version)}", begin)
        location = self._location()
        count = reader.varint() if spec.counts_results else len(spec.results)
        results = tuple(Value(self.tables.type(reader)) for _ in range(count))
        has_flags = spec.flags and version >= spec.flags_since
        word = reader.varint() if has_flags else 0
        flags = {name for bit, name in enumerate(spec.flags) if word >> bit & 1}
        values: dict[str, Any] = {}  # as AttributeKind says
        for attribute in spec.attributes:
            if attribute.kind is AttributeKind.UNIT:
                values[attribute.name] = attribute.name in flags
            elif attribute.since > version:
                values[attribute.name] = attribute.value_before
            elif not attribute.optional or attribute.name in flags:
                values[attribute.name] = self._attribute(attribute)
        operands = self._operands(spec, flags)
        regions: tuple[Region, ...] = ()
        if spec.regions:
            regions = tuple(self._region() for _ in range(reader.varint()))
        self.values.extend(results)
        return Operation(spec, operands, values, results, regions, location)

    def _attribute(self, spec: AttributeSpec) -> Any:  # as AttributeKind says
        reader, tables = self.reader, self.tables
        match spec.kind:
            case AttributeKind.ENUM if spec.enum is not None:
                return _member(spec.enum, reader)
            case AttributeKind.INTEGER:
                return reader.varint()
            case AttributeKind.BOOL:
                return bool(reader.byte())
            case AttributeKind.STRING:
                return tables.string(reader)
            case AttributeKind.DENSE:
                return tables.constant(reader)
            case AttributeKind.INTEGERS:
                return _i32s(reader)
            case AttributeKind.BOOLS:
                return tuple(bool(byte) for byte in reader.raw(reader.varint()))
            case AttributeKind.TAGGED:
                return tables.tagged(reader)
            case AttributeKind.TAGGED_ARRAY:
                return tuple(tables.tagged(reader) for _ in range(reader.varint()))
            case _:
                return tables.dictionary(reader)

    def _operands(self, spec: OpSpec, flags: set[str]) -> tuple[Operand, ...]:
        if spec.layout is OperandLayout.COUNTED:
            return self._counted_operands(spec)
        slots: list[Operand] = []
        for slot in spec.operands:
            if slot.arity is Arity.VARIADIC:
                slots.append(tuple(self._value() for _ in range(self.reader.varint())))
            elif slot.arity is Arity.SINGLE or slot.name in flags:
                slots.append(self._value())
            else:
                slots.append(None)
        return tuple(slots)

    def _counted_operands(self, spec: OpSpec) -> tuple[Operand, ...]:
        begin = self.reader.offset
        values = [self._value() for _ in range(self.reader.varint())]
        slots: list[Operand] = []
        for slot in spec.operands:
            if slot.arity is Arity.VARIADIC:
                slots.append(tuple(values))
                values = []
            elif values:
                slots.append(values.pop(0))
            elif slot.arity is Arity.OPTIONAL:
                slots.append(None)
            else:
                raise DecodeError(f"{spec.name} has no operand {slot.name!r}", begin)
        if values:
            raise DecodeError(f"{spec.name} has {len(values)} operands too many", begin)
        return tuple(slots)

    def _value(self) -> Value:
        return _pick(self.values, self.reader, "value")

    def _region(self) -> Region:
        return Region([self._block() for _ in range(self.reader.varint())])

    def _block(self) -> Block:
        outer = len(self.values)
        arguments = tuple(Value(self.tables.type(self.reader)) for _ in range(self.reader.varint()))
        self.values.extend(arguments)
        block = Block(arguments, [self._operation() for _ in range(self.reader.varint())])
        del self.values[outer:]
        return block


def _read_table(section: ByteReader, width: int) -> list[ByteReader]:
    """A cursor for each blob of a table that fills the rest of its section."""
    count = section.varint()
    section.align(width)
    offsets = [int.from_bytes(section.raw(width), "little") for _ in range(count)]
    base = section.offset
    size = section.end - base
    bounds = [*offsets, size]
    if (offsets and offsets[0] != 0) or any(a > b for a, b in pairwise(bounds)):
        raise DecodeError("the offsets of a table are not in order", base)
    section.offset = section.end
    return [ByteReader(section.data, base + a, base + b) for a, b in pairwise(bounds)]


def _pick(items: list[_T], reader: ByteReader, what: str) -> _T:
    begin = reader.offset
    index = reader.varint()
    if index >= len(items):
        raise DecodeError(f"{what} {index} does not exist, there are {len(items)}", begin)
    return items[index]


def _member(enum: Any, reader: ByteReader) -> Any:  # an IntEnum class, and a member of it
    begin = reader.offset
    value = reader.varint()
    try:
        return enum(value)
    except ValueError:
        raise DecodeError(f"{enum.__name__} has no member {value}", begin) from None


def _padding(reader: ByteReader, flags: int) -> PaddingValue | None:
    return _member(PaddingValue, reader) if flags & 1 else None


def _i32s(reader: ByteReader) -> tuple[int, ...]:
    return tuple(reader.i32() for _ in range(reader.varint()))


def _i64s(reader: ByteReader) -> list[int]:
    return [reader.i64() for _ in range(reader.varint())]


def _finish(reader: ByteReader, what: str) -> None:
    if not reader.at_end:
        raise DecodeError(f"{what} is longer than it should be", reader.offset)
