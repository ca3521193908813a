"""The operations of Tile IR, and how each is laid out in the bytecode.

An instruction is: opcode, result types, flag word, attributes, operands, regions. What an op has of
these is in its `OpSpec`; three rules cover the rest.

- Flag word: present iff the op has a unit attribute, an optional attribute, or an optional operand in
  a SEGMENTED list. Its bits are those, in that order. It exists from the version its first bit does.
- An attribute that came later than its op is left out of older files, where it means `value_before`;
  any other value needs the newer version.
- Result types are preceded by their number iff `counts_results`. Operands are
    PLAIN      the ids, nothing else
    COUNTED    how many ids in total, then all ids
    SEGMENTED  single: id; variadic: count and ids; optional: id if its flag bit is set

Numbers verified with NVIDIA's assembler and disassembler 13.5.37.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from ._enums import (
    AtomicMode,
    ComparisonOrdering,
    ComparisonPredicate,
    IntegerOverflow,
    MemoryOrdering,
    MemoryScope,
    MultimemReduction,
    RoundingMode,
    Signedness,
)
from ._version import Version

__all__ = ["OPS", "OPS_BY_OPCODE", "AttributeKind", "AttributeSpec", "OpSpec", "OperandLayout", "Slot"]

_13_1: Version = (13, 1)


class AttributeKind(Enum):
    """What an attribute is in Python and how its value is written."""

    UNIT = "unit"
    """bool, held in a bit of the flag word."""
    ENUM = "enum"
    """Member of `AttributeSpec.enum`; varint."""
    INTEGER = "integer"
    """int >= 0; varint."""
    BOOL = "bool"
    """bool; one byte."""
    STRING = "string"
    """str; index into the string table."""
    DENSE = "dense"
    """bytes made by `encode_elements`; index into the constant table."""
    INTEGERS = "integers"
    """tuple of int; count, then four bytes each."""
    BOOLS = "bools"
    """tuple of bool; count, then one byte each."""
    TAGGED = "tagged"
    """an `Attribute`; tag, then payload."""
    TAGGED_ARRAY = "tagged array"
    """tuple of `Attribute`; count, then each tagged."""
    HINTS = "hints"
    """`Hints`, checked; a dictionary without its tag."""


class OperandLayout(Enum):
    """How operand ids are written; see the module's docstring."""

    PLAIN = "plain"
    COUNTED = "counted"
    SEGMENTED = "segmented"


class Arity(Enum):
    """How many values a slot holds: one, any number, or at most one."""

    SINGLE = "single"
    VARIADIC = "variadic"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True)
class Slot:
    """One named operand or result."""

    name: str
    arity: Arity = Arity.SINGLE
    since: Version = _13_1


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One attribute of an op."""

    name: str
    kind: AttributeKind
    enum: type[IntEnum] | None = None
    optional: bool = False
    since: Version = _13_1
    value_before: object = None
    """What files older than `since` mean; None where the attribute is as old as its op."""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation of the table."""

    name: str
    opcode: int
    since: Version
    operands: tuple[Slot, ...]
    layout: OperandLayout
    results: tuple[Slot, ...]
    counts_results: bool
    attributes: tuple[AttributeSpec, ...]
    regions: int
    flags: tuple[str, ...] = field(init=False)
    """Names of the flag word's bits, from bit 0."""
    flags_since: Version = field(init=False)

    def __post_init__(self) -> None:
        bits: list[AttributeSpec | Slot] = [
            a for a in self.attributes if a.kind is AttributeKind.UNIT or a.optional
        ]
        if self.layout is OperandLayout.SEGMENTED:
            bits += [slot for slot in self.operands if slot.arity is Arity.OPTIONAL]
        object.__setattr__(self, "flags", tuple(bit.name for bit in bits))
        object.__setattr__(self, "flags_since", max(self.since, min((b.since for b in bits), default=_13_1)))


OPS: dict[str, OpSpec] = {}
"""Every operation by name."""

OPS_BY_OPCODE: dict[int, OpSpec] = {}


def _slots(text: str) -> tuple[Slot, ...]:
    """ "view index* token?" as slots; `*` variadic, `?` optional, `@13.2` since that version."""
    slots = []
    for word in text.split():
        name, _, since = word.partition("@")
        arity = {"*": Arity.VARIADIC, "?": Arity.OPTIONAL}.get(name[-1], Arity.SINGLE)
        major, _, minor = (since or "13.1").partition(".")
        slots.append(Slot(name.rstrip("*?"), arity, (int(major), int(minor))))
    return tuple(slots)


def _op(
    opcode: int,
    name: str,
    operands: str = "",
    results: str = "result",
    *attributes: AttributeSpec,
    layout: OperandLayout = OperandLayout.PLAIN,
    counts_results: bool = False,
    regions: int = 0,
    since: Version = _13_1,
) -> None:
    spec = OpSpec(
        name, opcode, since, _slots(operands), layout, _slots(results), counts_results, attributes, regions
    )
    OPS[name] = OPS_BY_OPCODE[opcode] = spec


def _enum(
    name: str, enum: type[IntEnum], *, since: Version = _13_1, value_before: IntEnum | None = None
) -> AttributeSpec:
    return AttributeSpec(name, AttributeKind.ENUM, enum, False, since, value_before)


def _unit(name: str, since: Version = _13_1) -> AttributeSpec:
    return AttributeSpec(name, AttributeKind.UNIT, None, False, since, False if since > _13_1 else None)


def _plain(name: str, kind: AttributeKind) -> AttributeSpec:
    return AttributeSpec(name, kind)


_ROUNDING = _enum("rounding_mode", RoundingMode)
_FLUSH = _unit("flush_to_zero")
_OVERFLOW = _enum("overflow", IntegerOverflow)
_SIGNED = _enum("signedness", Signedness)
_ORDERING = _enum("memory_ordering_semantics", MemoryOrdering)
_SCOPE = _enum("memory_scope", MemoryScope)
_OPTIONAL_SCOPE = AttributeSpec("memory_scope", AttributeKind.ENUM, MemoryScope, optional=True)
_HINTS = AttributeSpec("optimization_hints", AttributeKind.HINTS, optional=True)
_IDENTITIES = _plain("identities", AttributeKind.TAGGED_ARRAY)
_PREDICATE = _enum("comparison_predicate", ComparisonPredicate)


def _inbounds(since: Version) -> AttributeSpec:
    """One bool per index; True promises that no element of that axis lies past the edge."""
    return AttributeSpec("inbounds", AttributeKind.BOOLS, None, False, since, ())


_COUNTED = OperandLayout.COUNTED
_SEGMENTED = OperandLayout.SEGMENTED

# Float arithmetic.
for _opcode, _name in ((0, "absf"), (13, "ceil"), (18, "cos"), (19, "cosh"), (39, "floor"), (63, "log"),
                       (64, "log2"), (79, "negf"), (98, "sin"), (99, "sinh"), (105, "tan")):  # fmt: skip
    _op(_opcode, _name, "source")
for _opcode, _name in ((2, "addf"), (20, "divf"), (76, "mulf"), (103, "subf")):
    _op(_opcode, _name, "lhs rhs", "result", _ROUNDING, _FLUSH)
for _opcode, _name in ((69, "maxf"), (71, "minf")):
    _op(_opcode, _name, "lhs rhs", "result", _unit("propagate_nan"), _FLUSH)
_op(14, "cmpf", "lhs rhs", "result", _PREDICATE, _enum("comparison_ordering", ComparisonOrdering))
_op(23, "exp", "source", "result",
    _enum("rounding_mode", RoundingMode, since=(13, 3), value_before=RoundingMode.FULL))  # fmt: skip
_op(24, "exp2", "source", "result", _FLUSH)
_op(40, "fma", "lhs rhs acc", "result", _ROUNDING, _FLUSH)
_op(84, "fpowf", "source exponent")
_op(89, "remf", "lhs rhs")
_op(93, "rsqrt", "source", "result", _FLUSH)
_op(100, "sqrt", "source", "result", _ROUNDING, _FLUSH)
_op(106, "tanh", "source", "result",
    _enum("rounding_mode", RoundingMode, since=(13, 2), value_before=RoundingMode.FULL))  # fmt: skip
_op(110, "atan2", "x y", since=(13, 2))
_op(121, "fpowi", "source exponent", since=(13, 4))

# Integer arithmetic.
for _opcode, _name in ((3, "addi"), (78, "muli"), (96, "shli"), (104, "subi")):
    _op(_opcode, _name, "lhs rhs", "result", _OVERFLOW)
for _opcode, _name in ((70, "maxi"), (72, "mini"), (90, "remi"), (97, "shri")):
    _op(_opcode, _name, "lhs rhs", "result", _SIGNED)
for _opcode, _name in ((4, "andi"), (82, "ori"), (108, "xori")):
    _op(_opcode, _name, "lhs rhs")
_op(1, "absi", "source")
_op(15, "cmpi", "lhs rhs", "result", _PREDICATE, _SIGNED)
_op(21, "divi", "lhs rhs", "result", _SIGNED, _enum("rounding", RoundingMode))
_op(77, "mulhii", "x y")
_op(80, "negi", "source", "result",
    _enum("overflow", IntegerOverflow, since=(13, 2), value_before=IntegerOverflow.NONE))  # fmt: skip

# Conversions.
_op(9, "bitcast", "source")
_op(37, "exti", "from", "to", _SIGNED)
_op(42, "ftof", "from", "to", _ROUNDING)
_op(43, "ftoi", "from", "to", _SIGNED, _ROUNDING, _unit("saturating", (13, 4)))
_op(59, "itof", "from", "to", _SIGNED, _ROUNDING)
_op(107, "trunci", "from", "to", _OVERFLOW)
_op(51, "int_to_ptr", "source")
_op(86, "ptr_to_int", "source")
_op(87, "ptr_to_ptr", "source")
_op(111, "pack", "source", since=(13, 3))
_op(112, "unpack", "source", since=(13, 3))

# Shapes, constants, ids.
_op(11, "broadcast", "source")
_op(12, "cat", "lhs rhs", "result", _plain("dim", AttributeKind.INTEGER))
_op(16, "constant", "", "result", _plain("value", AttributeKind.DENSE))
_op(38, "extract", "source indices*", layout=_COUNTED, counts_results=True)
_op(118, "insert", "source destination indices*", layout=_COUNTED, counts_results=True, since=(13, 4))
_op(58, "iota")
_op(81, "offset", "ptr offset")
_op(83, "permute", "source", "result", _plain("permutation", AttributeKind.INTEGERS))
_op(91, "reshape", "source")
_op(95, "select", "cond val_if_true val_if_false")
_op(6, "assume", "value", "result", _plain("predicate", AttributeKind.TAGGED))
_op(44, "get_global", "", "result", _plain("name", AttributeKind.STRING))
_op(46, "get_num_tile_blocks", "", "gridSize_x gridSize_y gridSize_z")
_op(48, "get_tile_block_id", "", "blockId_x blockId_y blockId_z")

# Matrix products, reductions.
_op(73, "mmaf", "lhs rhs acc", "result", _unit("fast_acc", (13, 3)))
_op(74, "mmai", "lhs rhs acc", "result",
    _enum("signedness_lhs", Signedness), _enum("signedness_rhs", Signedness))  # fmt: skip
_op(114, "mmaf_scaled", "lhs rhs acc lhs_scale rhs_scale", since=(13, 3))
_op(88, "reduce", "operands*", "results*", _plain("dim", AttributeKind.INTEGER), _IDENTITIES,
    layout=_COUNTED, counts_results=True, regions=1)  # fmt: skip
_op(94, "scan", "operands*", "results*", _plain("dim", AttributeKind.INTEGER),
    _plain("reverse", AttributeKind.BOOL), _IDENTITIES,
    layout=_COUNTED, counts_results=True, regions=1)  # fmt: skip

# Control flow.
for _opcode, _name in ((10, "break"), (17, "continue"), (92, "return"), (109, "yield")):
    _op(_opcode, _name, "operands*", "", layout=_COUNTED, counts_results=True)
_op(41, "for", "lowerBound upperBound step initValues*", "resultValues*", _unit("unsignedCmp", (13, 2)),
    layout=_COUNTED, counts_results=True, regions=1)  # fmt: skip
_op(50, "if", "condition", "results*", counts_results=True, regions=2)
_op(65, "loop", "initValues*", "resultValues*", layout=_COUNTED, counts_results=True, regions=1)
_op(5, "assert", "condition", "", _plain("message", AttributeKind.STRING))
_op(85, "print_tko", "args* token?@13.2", "result_token@13.2", _plain("str", AttributeKind.STRING),
    layout=_SEGMENTED, counts_results=True)  # fmt: skip

# Views.
_op(45, "get_index_space_shape", "src", "result*", counts_results=True)
_op(47, "get_tensor_shape", "src", "result*", counts_results=True)
_op(66, "make_partition_view", "tensor_view")
_op(115, "make_gather_scatter_view", "tensor_view", since=(13, 3))
_op(116, "make_strided_view", "tensor_view", since=(13, 3))
_op(67, "make_tensor_view", "base dynamicShape* dynamicStrides*", layout=_SEGMENTED, counts_results=True)
_op(62, "load_view_tko", "view index* token?", "tile result_token",
    _ORDERING, _OPTIONAL_SCOPE, _HINTS, _inbounds((13, 4)),
    layout=_SEGMENTED, counts_results=True)  # fmt: skip
_op(102, "store_view_tko", "tile view index* token?", "result_token",
    _ORDERING, _OPTIONAL_SCOPE, _HINTS, _inbounds((13, 4)),
    layout=_SEGMENTED, counts_results=True)  # fmt: skip
_op(117, "atomic_red_view_tko", "view index* value token?", "result_token",
    _ORDERING, _SCOPE, _enum("mode", AtomicMode), _inbounds((13, 5)),
    layout=_SEGMENTED, counts_results=True, since=(13, 3))  # fmt: skip
_op(123, "multimem_load_reduce_view_tko", "view index* token?", "reduced_values result_token",
    _ORDERING, _OPTIONAL_SCOPE, _enum("reduction", MultimemReduction), _inbounds((13, 5)),
    layout=_SEGMENTED, counts_results=True, since=(13, 5))  # fmt: skip
_op(124, "multimem_reduce_view_tko", "view tile index* token?", "result_token",
    _ORDERING, _SCOPE, _enum("reduction", MultimemReduction), _inbounds((13, 5)),
    layout=_SEGMENTED, counts_results=True, since=(13, 5))  # fmt: skip
_op(125, "multimem_store_view_tko", "view tile index* token?", "result_token",
    _ORDERING, _OPTIONAL_SCOPE, _inbounds((13, 5)),
    layout=_SEGMENTED, counts_results=True, since=(13, 5))  # fmt: skip

# Pointers and tokens.
_op(7, "atomic_cas_tko", "pointers cmp val mask? token?", "result result_token",
    _ORDERING, _SCOPE, layout=_SEGMENTED)  # fmt: skip
_op(8, "atomic_rmw_tko", "pointers arg mask? token?", "result result_token",
    _ORDERING, _SCOPE, _enum("mode", AtomicMode), layout=_SEGMENTED)  # fmt: skip
_op(61, "load_ptr_tko", "source mask? paddingValue? token?", "result result_token",
    _ORDERING, _OPTIONAL_SCOPE, _HINTS, layout=_SEGMENTED)  # fmt: skip
_op(101, "store_ptr_tko", "destination value mask? token?", "result_token",
    _ORDERING, _OPTIONAL_SCOPE, _HINTS, layout=_SEGMENTED)  # fmt: skip
_op(113, "alloca", "", "result", _plain("num_elem", AttributeKind.INTEGER),
    _plain("alignment", AttributeKind.INTEGER), _unit("global"), since=(13, 3))  # fmt: skip
_op(60, "join_tokens", "tokens*", layout=_COUNTED, counts_results=True)
_op(68, "make_token")
_op(119, "gdc_launch_dependents_tko", "token?", "result_token", layout=_COUNTED, since=(13, 4))
_op(120, "gdc_wait_tko", "token?", "result_token", layout=_COUNTED, since=(13, 4))
_op(122, "memory_fence_alias_tko", "token", "result_token", since=(13, 4))
