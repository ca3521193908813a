"""Values, operations, blocks and functions: the frame every IR operation fits in.

An operation is a class whose annotated fields say what it has:

    class AddOp(Op, mnemonic="add"):
        lhs: Operand                  # a value it reads
        rest: Operands                # any number of them
        token: OptionalOperand = None
        axis: int                     # anything else is an attribute
        body: Region                  # a nested block
        result: Result                # a value it defines

The base class collects the fields when the subclass is made (a dataclass without generated code: 70
generated classes would cost more to import than the rest of the package). Operands come before results
and keep their order everywhere: in the printed form, in `operands` and in what handlers are given.

Invariants a verified function keeps: a value is defined once, by a block argument or an operation, before
its uses and in a block that encloses them; every block ends with a terminator and has no other one.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Literal, NamedTuple, TypeAlias, dataclass_transform

from ..errors import VerifyError
from ._location import Location
from ._types import Type

__all__ = [
    "OPERATIONS",
    "Block",
    "Effect",
    "Field",
    "Function",
    "Op",
    "Operand",
    "Operands",
    "OptionalOperand",
    "Region",
    "Result",
    "Results",
    "Value",
    "structurally_equal",
    "walk",
]


class Value:
    """Something an operation or block argument defines and others use. Compared by identity.

    `name` is a hint for printing; it need not be unique.
    """

    __slots__ = ("name", "type")

    def __init__(self, kind: Type, name: str = "") -> None:
        self.type = kind
        self.name = name

    def __repr__(self) -> str:
        return f"%{self.name or '?'}: {self.type}"


class Block:
    """Operations in order, with the values they are given on entry."""

    __slots__ = ("arguments", "ops")

    def __init__(self, arguments: list[Value] | None = None) -> None:
        self.arguments: list[Value] = arguments or []
        self.ops: list[Op] = []

    @property
    def terminator(self) -> Op | None:
        """The last operation if it is a terminator; blocks under construction have none."""
        return self.ops[-1] if self.ops and self.ops[-1].terminator else None


Operand: TypeAlias = Value
Operands: TypeAlias = tuple[Value, ...]
OptionalOperand: TypeAlias = Value | None
Result: TypeAlias = Value
Results: TypeAlias = tuple[Value, ...]
Region: TypeAlias = Block

FieldKind = Literal["operand", "operands", "optional", "result", "results", "region", "attribute"]
Effect = Literal["none", "read", "write", "control"]

_KINDS: dict[str, FieldKind] = {
    "Operand": "operand",
    "Operands": "operands",
    "OptionalOperand": "optional",
    "Result": "result",
    "Results": "results",
    "Region": "region",
}


class Field(NamedTuple):
    """One annotated field of an operation class."""

    name: str
    kind: FieldKind


OPERATIONS: dict[str, type[Op]] = {}
"""Every operation class by mnemonic."""


@dataclass_transform(kw_only_default=True, eq_default=False)
class Op:
    """Base of all operations; see the module. Subclasses with a `mnemonic` are registered.

    Class keywords:
        mnemonic: name in printed IR; left out by abstract bases.
        effect: "none" (may be removed, merged, moved), "read" or "write" of memory, "control" (anything
            else that must stay where it is).
        terminator: ends its block.
    """

    mnemonic: ClassVar[str] = ""
    effect: ClassVar[Effect] = "none"
    terminator: ClassVar[bool] = False
    fields: ClassVar[tuple[Field, ...]] = ()
    _result_fields: ClassVar[tuple[Field, ...]] = ()
    _region_fields: ClassVar[tuple[str, ...]] = ()
    _operand_fields: ClassVar[tuple[Field, ...]] = ()
    # where each field is one value, they are read in one go: passes ask all the time
    _only_result: ClassVar[str] = ""
    _read_results: ClassVar[attrgetter[tuple[Value, ...]] | None] = None
    _only_operand: ClassVar[str] = ""
    _read_operands: ClassVar[attrgetter[tuple[Value, ...]] | None] = None
    _has_attributes: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, mnemonic: str = "", effect: Effect | None = None, terminator: bool = False
    ) -> None:
        own = [
            Field(name, _KINDS.get(annotation, "attribute"))
            for name, annotation in inspect.get_annotations(cls).items()
            if not annotation.startswith("ClassVar")
        ]
        cls.fields = (*cls.fields, *own)
        cls._result_fields = tuple([f for f in cls.fields if f.kind in ("result", "results")])
        cls._region_fields = tuple([f.name for f in cls.fields if f.kind == "region"])
        cls._operand_fields = tuple([f for f in cls.fields if f.kind in ("operand", "operands", "optional")])
        cls._only_result, cls._read_results = _reader(cls._result_fields, "result")
        cls._only_operand, cls._read_operands = _reader(cls._operand_fields, "operand")
        cls._has_attributes = any(f.kind == "attribute" for f in cls.fields)
        if effect is not None:
            cls.effect = effect
        cls.terminator = terminator or cls.terminator
        if mnemonic:
            cls.mnemonic = mnemonic
            OPERATIONS[mnemonic] = cls

    def __init__(self, **values: object) -> None:
        self.location: Location | None = None
        cls = type(self)
        for name, _ in cls.fields:
            if name in values:
                setattr(self, name, values.pop(name))
            elif not hasattr(cls, name):
                raise TypeError(f"{cls.__name__} needs {name}")
        if values:
            raise TypeError(f"{cls.__name__} has no {', '.join(values)}")

    def verify(self) -> None:
        """Check the operation's own rule; raises `VerifyError`."""

    def fail(self, message: str) -> VerifyError:
        """The error for a broken rule, to be raised by `verify`."""
        from ._printer import format_op

        where = f" ({self.location})" if self.location else ""
        return VerifyError(f"{self.mnemonic}{where}: {message}", format_op(self))

    @property
    def operands(self) -> tuple[Value, ...]:
        """All values read, in field order."""
        if only := self._only_operand:
            return (getattr(self, only),)
        if (read := self._read_operands) is not None:
            return read(self)
        found: list[Value] = []
        for name, kind in self._operand_fields:
            if kind == "operand":
                found.append(getattr(self, name))
            elif kind == "operands":
                found.extend(getattr(self, name))
            else:
                value = getattr(self, name)
                if value is not None:
                    found.append(value)
        return tuple(found)

    @property
    def results(self) -> tuple[Value, ...]:
        """All values defined, in field order."""
        if only := self._only_result:
            return (getattr(self, only),)
        if (read := self._read_results) is not None:
            return read(self)
        found: list[Value] = []
        for name, kind in self._result_fields:
            if kind == "result":
                found.append(getattr(self, name))
            else:
                found.extend(getattr(self, name))
        return tuple(found)

    @property
    def regions(self) -> tuple[Block, ...]:
        """The nested blocks, in field order."""
        names = self._region_fields
        return tuple([getattr(self, name) for name in names]) if names else ()

    @property
    def attributes(self) -> dict[str, object]:
        """What is neither value nor block, by field name."""
        if not self._has_attributes:
            return {}
        return {name: getattr(self, name) for name, kind in self.fields if kind == "attribute"}

    def replace_operands(self, mapping: Mapping[Value, Value]) -> None:
        """Read `mapping[v]` in place of every operand v it has."""
        for name, kind in self._operand_fields:
            if kind in ("operand", "optional"):
                value = getattr(self, name)
                if value in mapping:
                    setattr(self, name, mapping[value])
            else:
                values = getattr(self, name)
                if any(value in mapping for value in values):
                    setattr(self, name, tuple(mapping.get(value, value) for value in values))


def _reader(fields: tuple[Field, ...], kind: FieldKind) -> tuple[str, attrgetter[tuple[Value, ...]] | None]:
    """The one field, or what reads several, if each is one value; else neither."""
    names = [field.name for field in fields]
    if not names or any(field.kind != kind for field in fields):
        return "", None
    return (names[0], None) if len(names) == 1 else ("", attrgetter(*names))


@dataclass(eq=False)
class Function:
    """A kernel: an entry block whose arguments are the launch parameters, all of rank 0.

    Attributes:
        name: symbol of the entry.
        body: ends with `return`.
        hints: entry hints by name, such as {"num_ctas": 2}.
        location: where it is defined.
    """

    name: str
    body: Block
    hints: dict[str, int]
    location: Location | None = None

    def verify(self) -> None:
        """Check every operation and the structure around them; raises `VerifyError`."""
        from ._verifier import verify_function

        verify_function(self)

    def __str__(self) -> str:
        from ._printer import format_function

        return format_function(self)


def walk(block: Block) -> Iterator[Op]:
    """Every operation in `block`, an operation before those nested in it."""
    for op in block.ops:
        yield op
        for region in op.regions:
            yield from walk(region)


def structurally_equal(a: Function, b: Function) -> bool:
    """True when the two differ in nothing but value names and locations."""
    if a.name != b.name or a.hints != b.hints:
        return False
    same: dict[Value, Value] = {}

    def defined(left: list[Value] | Results, right: list[Value] | Results) -> bool:
        if [v.type for v in left] != [v.type for v in right]:
            return False
        same.update(zip(left, right, strict=True))
        return True

    def blocks(left: Block, right: Block) -> bool:
        if not defined(left.arguments, right.arguments) or len(left.ops) != len(right.ops):
            return False
        return all(ops(x, y) for x, y in zip(left.ops, right.ops, strict=True))

    def ops(left: Op, right: Op) -> bool:
        if type(left) is not type(right) or repr(left.attributes) != repr(right.attributes):
            return False
        if [same.get(v) for v in left.operands] != list(right.operands):
            return False
        if not all(blocks(x, y) for x, y in zip(left.regions, right.regions, strict=True)):
            return False
        return defined(left.results, right.results)

    return blocks(a.body, b.body)
