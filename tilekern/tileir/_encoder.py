"""A module as bytecode.

A file is a header, sections and an end byte. Bodies refer to strings, types, constants and debug
attributes by index, so functions are written first, filling the tables as they go, and the tables after:

    func, global, constant, debug, producer, type, string      (any order is legal)

Values are numbered per function: arguments, then results in order of appearance. The results of an op
with regions are numbered after its regions, and the numbers used inside a region are free again behind
it, so that sibling regions overlap and whatever is outside stays visible inside.

Debug entries are per function: its own location, then one per op in the order the opcodes are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import _attributes as attributes
from . import types
from ._debug import (
    CallSite,
    CompileUnit,
    DebugAttribute,
    File,
    LexicalBlock,
    Location,
    Subprogram,
)
from ._module import Block, Function, Global, Module, Operation, Region, Value
from ._op_table import AttributeKind, AttributeSpec, OperandLayout
from ._operation import check_type_version
from ._primitives import ByteWriter
from ._version import Version
from .errors import BytecodeError

__all__ = ["DYNAMIC_SENTINEL", "MAGIC", "Section", "encode_module"]

MAGIC = b"\x7fTileIR\x00"
DYNAMIC_SENTINEL = -(1 << 63)
"""Stands for a run-time dimension or stride in a tensor_view type."""


class Section:
    """Section ids."""

    END = 0
    STRING = 1
    FUNC = 2
    DEBUG = 3
    CONSTANT = 4
    TYPE = 5
    GLOBAL = 6
    PRODUCER = 7


def encode_module(module: Module) -> bytes:
    """The bytes of `module`, in the version it names.

    Raises:
        BytecodeError: an operation uses a value that is not visible where it stands, or a type is too
            new for the version.
    """
    return _Encoder(module.version).module(module)


class _Encoder:
    def __init__(self, version: Version) -> None:
        self.version = version
        self.strings: dict[str, int] = {}
        self.type_blobs: list[bytes] = []
        self.type_ids: dict[types.Type, int] = {}
        self.constants: dict[bytes, int] = {}
        self.debug_blobs: list[bytes] = []
        self.debug_ids: dict[DebugAttribute, int] = {}

    def module(self, module: Module) -> bytes:
        has_debug = any(f.location is not None for f in module.functions)
        func = self._functions(module.functions, has_debug)
        sections: list[tuple[int, ByteWriter, int]] = [(Section.FUNC, func, 8)]
        if module.globals:
            sections.append((Section.GLOBAL, self._globals(module.globals), 0))
        if has_debug:
            debug = self._debug(module.functions)
        if self.constants:
            blobs = []
            for data in self.constants:
                blob = ByteWriter()
                blob.varint(len(data))
                blob.raw(data)
                blobs.append(bytes(blob.data))
            sections.append((Section.CONSTANT, _table(blobs, 8), 8))
        if has_debug:
            sections.append((Section.DEBUG, debug, 8))
        if module.producer and self.version >= (13, 3):
            payload = ByteWriter()
            payload.varint(self.string(module.producer))
            sections.append((Section.PRODUCER, payload, 0))
        sections.append((Section.TYPE, _table(self.type_blobs, 4), 4))
        sections.append((Section.STRING, _table([s.encode() for s in self.strings], 4), 4))

        out = ByteWriter()
        out.raw(MAGIC)
        out.byte(self.version[0])
        out.byte(self.version[1])
        out.u16(0)
        for number, payload, alignment in sections:
            out.byte(number | (0x80 if alignment else 0))
            out.varint(len(payload))
            if alignment:
                out.varint(alignment)
                out.align(alignment)
            out.raw(payload.data)
        out.byte(Section.END)
        return bytes(out.data)

    # Tables.

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def constant(self, data: bytes) -> int:
        return self.constants.setdefault(data, len(self.constants))

    def type(self, kind: types.Type) -> int:
        known = self.type_ids.get(kind)
        if known is None:
            # Components get their index first: a type may only refer to what it is made of.
            blob = self._type_blob(kind)
            known = self.type_ids[kind] = len(self.type_blobs)
            self.type_blobs.append(blob)
        return known

    def _type_blob(self, kind: types.Type) -> bytes:
        out = ByteWriter()
        has_flags = self.version >= (13, 4)
        match kind:
            case types.NumberType():
                check_type_version(kind, self.version, "module")
                out.varint(kind.tag)
            case types.PointerType():
                pointee = self.type(kind.pointee)
                out.varint(12)
                if has_flags:
                    out.varint(int(kind.kind != 0))
                out.varint(pointee)
                if has_flags and kind.kind:
                    out.varint(kind.kind)
            case types.TileType():
                element = self.type(kind.element)
                out.varint(13)
                out.varint(element)
                _write_i64s(out, kind.shape)
            case types.TensorViewType():
                element = self.type(kind.element)
                out.varint(14)
                if has_flags:
                    out.varint(int(kind.pointer_kind != 0))
                out.varint(element)
                _write_i64s(out, kind.shape)
                _write_i64s(out, kind.strides)
                if has_flags and kind.pointer_kind:
                    out.varint(kind.pointer_kind)
            case types.PartitionViewType():
                view = self.type(kind.tensor_view)
                out.varint(15)
                if self.version >= (13, 3):
                    out.varint(int(kind.padding is not None))
                _write_i32s(out, kind.tile_shape)
                out.varint(view)
                _write_i32s(out, kind.dim_map)
                if self.version < (13, 3):
                    out.byte(int(kind.padding is not None))
                if kind.padding is not None:
                    out.varint(kind.padding)
            case types.FunctionType():
                inputs = [self.type(t) for t in kind.inputs]
                results = [self.type(t) for t in kind.results]
                out.varint(16)
                _write_varints(out, inputs)
                _write_varints(out, results)
            case types.TokenType():
                out.varint(17)
            case types.GatherScatterViewType():
                view = self.type(kind.tensor_view)
                out.varint(20)
                out.varint(int(kind.padding is not None))
                _write_i32s(out, kind.tile_shape)
                out.varint(view)
                out.varint(kind.sparse_dim)
                if kind.padding is not None:
                    out.varint(kind.padding)
            case types.StridedViewType():
                view = self.type(kind.tensor_view)
                out.varint(21)
                out.varint(int(kind.padding is not None))
                _write_i32s(out, kind.tile_shape)
                _write_i32s(out, kind.traversal_strides)
                out.varint(view)
                _write_i32s(out, kind.dim_map)
                if kind.padding is not None:
                    out.varint(kind.padding)
            case _:
                raise BytecodeError(f"no encoding for type {kind!r}")
        return bytes(out.data)

    # Sections.

    def _globals(self, globals_: list[Global]) -> ByteWriter:
        out = ByteWriter()
        out.varint(len(globals_))
        for item in globals_:
            out.varint(self.string(item.name))
            out.varint(self.type(item.type))
            out.varint(self.constant(item.data))
            out.varint(item.alignment)
            if self.version >= (13, 3):
                out.varint(int(item.is_private))
                out.varint(int(item.is_constant))
        return out

    def _functions(self, functions: list[Function], has_debug: bool) -> ByteWriter:
        out = ByteWriter()
        out.varint(len(functions))
        for position, function in enumerate(functions):
            out.varint(self.string(function.name))
            out.varint(self.type(types.func([a.type for a in function.body.arguments])))
            is_new = self.version >= (13, 5)
            has_hints = bool(function.hints)
            out.byte(0x02 | (0x04 if has_hints and not is_new else 0))
            out.varint(position + 1 if has_debug else 0)
            if has_hints or is_new:
                self.tagged(out, attributes.HintsAttribute(function.hints))
            if is_new:
                self.tagged(out, attributes.ArrayAttribute(function.argument_attributes))
            body = ByteWriter()
            _BodyEncoder(self, body).function(function)
            out.varint(len(body))
            out.raw(body.data)
        return out

    def _debug(self, functions: list[Function]) -> ByteWriter:
        starts: list[int] = []
        entries: list[int] = []
        for function in functions:
            starts.append(len(entries))
            entries.append(self.debug(function.location))
            entries += [self.debug(operation.location) for operation in function.operations()]
        out = ByteWriter()
        out.varint(len(starts))
        out.align(4)
        for start in starts:
            out.u32(start)
        out.varint(len(entries))
        out.align(8)
        for entry in entries:
            out.u64(entry)
        _write_table(out, self.debug_blobs, 4)
        return out

    def debug(self, item: DebugAttribute | None) -> int:
        """The 1-based id of a debug attribute; 0 for none."""
        if item is None:
            return 0
        known = self.debug_ids.get(item)
        if known is None:
            blob = self._debug_blob(item)
            self.debug_blobs.append(blob)
            known = self.debug_ids[item] = len(self.debug_blobs)
        return known

    def _debug_blob(self, item: DebugAttribute) -> bytes:
        match item:
            case CompileUnit():
                fields = [1, self.debug(item.file)]
            case File():
                fields = [2, self.string(item.name), self.string(item.directory)]
            case LexicalBlock():
                fields = [3, self.debug(item.scope), self.debug(item.file), item.line, item.column]
            case Location():
                fields = [4, self.debug(item.scope), self.string(item.file_name), item.line, item.column]
            case Subprogram():
                names = [self.string(item.name), self.string(item.linkage_name)]
                unit = self.debug(item.compile_unit)
                fields = [5, self.debug(item.file), item.line, *names, unit, item.scope_line]
                if self.version >= (13, 5):
                    fields.append(0)
            case CallSite():
                fields = [6, self.debug(item.callee), self.debug(item.caller)]
        out = ByteWriter()
        for value in fields:
            out.varint(value)
        return bytes(out.data)

    # Tagged attributes.

    def tagged(self, out: ByteWriter, item: attributes.Attribute) -> None:
        match item:
            case attributes.IntegerAttribute():
                out.varint(1)
                out.varint(self.type(item.type))
                out.varint(item.value & ((1 << item.type.bits) - 1))
            case attributes.FloatAttribute():
                out.varint(2)
                out.varint(self.type(item.type))
                if item.type.bits <= 8:
                    out.byte(item.bits)
                else:
                    # Read as a signed 64-bit integer: the pattern of a negative f64 is negative.
                    out.signed_varint(item.bits - (1 << 64) if item.bits >> 63 else item.bits)
            case attributes.BoolAttribute():
                out.varint(3)
                out.byte(int(item.value))
            case attributes.TypeAttribute():
                out.varint(4)
                out.varint(self.type(item.type))
            case attributes.StringAttribute():
                out.varint(5)
                out.varint(self.string(item.value))
            case attributes.ArrayAttribute():
                out.varint(6)
                out.varint(len(item.items))
                for inner in item.items:
                    self.tagged(out, inner)
            case attributes.DenseAttribute():
                out.varint(7)
                out.varint(self.type(item.type))
                out.varint(self.constant(item.data))
            case attributes.DivBy():
                out.varint(8)
                out.varint(item.divisor)
                out.byte((item.every is not None) | (item.along is not None) << 1)
                for value in (item.every, item.along):
                    if value is not None:
                        out.signed_varint(value)
            case attributes.SameElements():
                out.varint(9)
                _write_i64s(out, item.groups)
            case attributes.DictionaryAttribute():
                out.varint(10)
                self.dictionary(out, item.items)
            case attributes.HintsAttribute():
                out.varint(11)
                self.dictionary(out, item.items)
            case attributes.Bounded():
                out.varint(12)
                out.byte((item.lower is not None) | (item.upper is not None) << 1)
                for value in (item.lower, item.upper):
                    if value is not None:
                        out.signed_varint(value)
            case _:
                raise BytecodeError(f"no encoding for attribute {item!r}")

    def dictionary(self, out: ByteWriter, items: tuple[tuple[str, attributes.Attribute], ...]) -> None:
        out.varint(len(items))
        for key, value in items:
            out.varint(self.string(key))
            self.tagged(out, value)


class _BodyEncoder:
    """Instructions of one function, with its value numbers."""

    def __init__(self, tables: _Encoder, out: ByteWriter) -> None:
        self.tables = tables
        self.out = out
        self.ids: dict[Value, int] = {}

    def function(self, function: Function) -> None:
        self._define(function.body.arguments)
        for operation in function.body.operations:
            self._operation(operation)

    def _define(self, values: Iterable[Value]) -> None:
        for value in values:
            self.ids[value] = len(self.ids)

    def _operation(self, op: Operation) -> None:
        out, spec = self.out, op.spec
        out.varint(spec.opcode)
        if spec.counts_results:
            out.varint(len(op.results))
        for result in op.results:
            out.varint(self.tables.type(result.type))
        if spec.flags and self.tables.version >= spec.flags_since:
            out.varint(self._flag_word(op))
        for attribute in spec.attributes:
            if attribute.since <= self.tables.version and attribute.name in op.attributes:
                self._attribute(attribute, op.attributes[attribute.name])
        self._operands(op)
        if spec.regions:
            out.varint(len(op.regions))
            for region in op.regions:
                self._region(region)
        self._define(op.results)

    def _flag_word(self, op: Operation) -> int:
        present = {name for name, value in op.attributes.items() if value is not False}
        present |= {slot.name for slot, value in zip(op.spec.operands, op.operands) if value is not None}
        return sum(1 << bit for bit, name in enumerate(op.spec.flags) if name in present)

    def _attribute(self, spec: AttributeSpec, value: Any) -> None:  # as AttributeKind says
        out = self.out
        match spec.kind:
            case AttributeKind.UNIT:
                pass
            case AttributeKind.ENUM | AttributeKind.INTEGER:
                out.varint(int(value))
            case AttributeKind.BOOL:
                out.byte(int(value))
            case AttributeKind.STRING:
                out.varint(self.tables.string(value))
            case AttributeKind.DENSE:
                out.varint(self.tables.constant(value))
            case AttributeKind.INTEGERS:
                _write_i32s(out, value)
            case AttributeKind.BOOLS:
                out.varint(len(value))
                out.raw(bytes(value))
            case AttributeKind.TAGGED:
                self.tables.tagged(out, value)
            case AttributeKind.TAGGED_ARRAY:
                out.varint(len(value))
                for item in value:
                    self.tables.tagged(out, item)
            case AttributeKind.HINTS:
                self.tables.dictionary(out, value)

    def _operands(self, op: Operation) -> None:
        if op.spec.layout is OperandLayout.COUNTED:
            ids = [self._id(op, value) for value in op.values()]
            _write_varints(self.out, ids)
            return
        for operand in op.operands:
            if isinstance(operand, tuple):
                _write_varints(self.out, [self._id(op, value) for value in operand])
            elif operand is not None:
                self.out.varint(self._id(op, operand))

    def _id(self, op: Operation, value: Value) -> int:
        number = self.ids.get(value)
        if number is None:
            raise BytecodeError(
                f"{op.name}: an operand of {value.type} is not visible here; a value can be used after the "
                "operation that makes it, in the same block or in regions inside it",
                op.name,
            )
        return number

    def _region(self, region: Region) -> None:
        self.out.varint(len(region.blocks))
        for block in region.blocks:
            self._block(block)

    def _block(self, block: Block) -> None:
        outer = len(self.ids)
        self._define(block.arguments)
        _write_varints(self.out, [self.tables.type(a.type) for a in block.arguments])
        self.out.varint(len(block.operations))
        for operation in block.operations:
            self._operation(operation)
        # Insertion order is definition order, so what this block defined is at the end.
        while len(self.ids) > outer:
            self.ids.popitem()


def _write_varints(out: ByteWriter, values: Iterable[int]) -> None:
    numbers = list(values)
    out.varint(len(numbers))
    for number in numbers:
        out.varint(number)


def _write_i64s(out: ByteWriter, values: Iterable[int | None]) -> None:
    numbers = list(values)
    out.varint(len(numbers))
    for number in numbers:
        out.i64(DYNAMIC_SENTINEL if number is None else number)


def _write_i32s(out: ByteWriter, values: Iterable[int]) -> None:
    numbers = list(values)
    out.varint(len(numbers))
    for number in numbers:
        out.i32(number)


def _table(blobs: list[bytes], width: int) -> ByteWriter:
    out = ByteWriter()
    _write_table(out, blobs, width)
    return out


def _write_table(out: ByteWriter, blobs: list[bytes], width: int) -> None:
    """Count, padding, one offset per blob relative to the first blob, blobs."""
    out.varint(len(blobs))
    out.align(width)
    offset = 0
    for blob in blobs:
        out.raw(offset.to_bytes(width, "little"))
        offset += len(blob)
    for blob in blobs:
        out.raw(blob)
