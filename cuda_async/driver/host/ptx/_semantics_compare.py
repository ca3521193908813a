"""Comparison and selection: set, setp, selp, slct (section 9.7.6 and 9.7.7).

The plain floating-point comparisons are false where an operand is NaN, `ne` included; their `u` forms are
true there. Each `u` form is the complement of the opposite plain one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._semantics_forms import Array, Form, Operation, Picks, bits_dtype, form, same_lanes, value_dtype
from ._semantics_values import bf16_to_f32, f16_to_f32, flush_f32

__all__ = ["FORMS"]

_Relation = Callable[[Array, Array], Array]

_INTEGER: dict[str, _Relation] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_FLOAT: dict[str, _Relation] = {
    **{name: _INTEGER[name] for name in ("eq", "lt", "le", "gt", "ge")},
    "ne": lambda a, b: (a < b) | (a > b),
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}
_COMBINE: dict[str, _Relation] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _relation(picks: Picks) -> _Relation:
    """The comparison on registers of the source type; on packed types, on their 16-bit parts."""
    stype, flush = picks["stype"], "ftz" in picks
    if stype[0] in "bsu" and not stype.startswith("bf16"):
        compare, value = _INTEGER[picks["cmp"]], value_dtype(stype)
        if stype[0] in "bu":
            return compare
        return lambda a, b: compare(a.view(value), b.view(value))
    compare = _FLOAT[picks["cmp"]]
    if stype == "f64":
        return lambda a, b: compare(a.view(np.float64), b.view(np.float64))
    if stype == "f32":
        if flush:
            return lambda a, b: compare(flush_f32(a).view(np.float32), flush_f32(b).view(np.float32))
        return lambda a, b: compare(a.view(np.float32), b.view(np.float32))
    if stype.startswith("bf16"):
        return lambda a, b: compare(bf16_to_f32(a), bf16_to_f32(b))
    if flush:
        return lambda a, b: compare(_flushed_f16(a), _flushed_f16(b))
    return lambda a, b: compare(f16_to_f32(a), f16_to_f32(b))


def _flushed_f16(bits: Array) -> Array:
    return f16_to_f32(np.where((bits & np.uint16(0x7C00)) == 0, bits & np.uint16(0x8000), bits))


def _set_predicate(picks: Picks) -> Operation:
    """setp: (p, q), q being made from the complement (packed types: from the upper half)."""
    stype, relation = picks["stype"], _relation(picks)
    combine = _COMBINE.get(picks.get("boolop", ""))
    results = ("pred", "pred")
    if stype.endswith("x2"):

        def both(a: Array, b: Array) -> tuple[Array, ...]:
            a, b = same_lanes(a, b)
            t = relation(a.view(np.uint16), b.view(np.uint16))
            return t[0::2], t[1::2]

        if combine is None:
            return Operation(both, (stype, stype), results)

        def both_combined(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
            low, high = both(a, b)
            return combine(low, c), combine(high, c)

        return Operation(both_combined, (stype, stype, "pred"), results)
    if combine is None:

        def plain(a: Array, b: Array) -> tuple[Array, ...]:
            t = relation(a, b)
            return t, ~t

        return Operation(plain, (stype, stype), results)

    def combined(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        t = relation(a, b)
        return combine(t, c), combine(~t, c)

    return Operation(combined, (stype, stype, "pred"), results)


_TRUE = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}


def _set(picks: Picks) -> Operation:
    """set: all ones (integers) or 1.0 (floats) where true, each half by itself for packed sources."""
    stype, dtype, relation = picks["stype"], picks["dtype"], _relation(picks)
    combine = _COMBINE.get(picks.get("boolop", ""))
    packed = stype.endswith("x2")
    lane = np.dtype(np.uint16) if packed else bits_dtype(dtype)
    true = lane.type(_TRUE.get(dtype, np.iinfo(lane).max))

    def run(a: Array, b: Array, *c: Array) -> tuple[Array, ...]:
        if packed:
            a, b = (v.view(np.uint16) for v in same_lanes(a, b))
        t = relation(a, b)
        if combine is not None:
            flags = c[0] if not packed or c[0].size == 1 else c[0].repeat(2)
            t = combine(t, flags)
        value = t * true
        return (value.view(np.uint32) if packed else value,)

    operands = (stype, stype) if combine is None else (stype, stype, "pred")
    return Operation(run, operands, (dtype,))


def _select(picks: Picks) -> Operation:
    ptx_type = picks["type"]

    def run(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        return (np.where(c, a, b),)

    return Operation(run, (ptx_type, ptx_type, "pred"), (ptx_type,))


def _select_by_sign(picks: Picks) -> Operation:
    ptx_type, flush = picks["type"], "ftz" in picks

    def by_integer(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        return (np.where(c.view(np.int32) >= 0, a, b),)

    def by_float(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        value = (flush_f32(c) if flush else c).view(np.float32)
        return (np.where(value >= 0, a, b),)

    fn = by_integer if picks["stype"] == "s32" else by_float
    return Operation(fn, (ptx_type, ptx_type, picks["stype"]), (ptx_type,))


_EQUALITY = "eq ne"
_UNSIGNED = "eq ne lt le gt ge lo ls hi hs"
_ORDER = "eq ne lt le gt ge"
_FLOATS = " ".join(_FLOAT)
_BOOLEAN = "and or xor"
_SCALARS = "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64"


_SET_SOURCES = [
    (".cmp{.boolop}", _EQUALITY, "b16 b32 b64"),
    (".cmp{.boolop}", _UNSIGNED, "u16 u32 u64"),
    (".cmp{.boolop}", _ORDER, "s16 s32 s64"),
    (".cmp{.boolop}{.ftz}", _FLOATS, "f32"),
    (".cmp{.boolop}", _FLOATS, "f64"),
]
# (modifiers, comparisons, destination types, source types)
_SET_LINES = [
    *((head, relations, "u32 s32 f32 f16", stypes) for head, relations, stypes in _SET_SOURCES),
    *((".cmp{.boolop}", relations, "bf16", stypes) for _, relations, stypes in _SET_SOURCES),
    (".cmp{.boolop}{.ftz}", _FLOATS, "u16 s16 u32 s32 f16", "f16"),
    (".cmp{.boolop}", _FLOATS, "bf16", "f16"),
    (".cmp{.boolop}", _FLOATS, "u16 s16 u32 s32 bf16", "bf16"),
    (".cmp{.boolop}{.ftz}", _FLOATS, "u32 s32 f16x2", "f16x2"),
    (".cmp{.boolop}", _FLOATS, "u32 s32 bf16x2", "bf16x2"),
]

FORMS: list[Form] = [
    *form("setp", ".cmp{.boolop}.stype", _set_predicate, cmp=_ORDER, boolop=_BOOLEAN, stype="s16 s32 s64"),
    *form("setp", ".cmp{.boolop}.stype", _set_predicate, cmp=_UNSIGNED, boolop=_BOOLEAN, stype="u16 u32 u64"),
    *form("setp", ".cmp{.boolop}.stype", _set_predicate, cmp=_EQUALITY, boolop=_BOOLEAN, stype="b16 b32 b64"),
    *form(
        "setp",
        ".cmp{.boolop}{.ftz}.stype",
        _set_predicate,
        cmp=_FLOATS,
        boolop=_BOOLEAN,
        stype="f32 f16 f16x2",
    ),
    *form(
        "setp", ".cmp{.boolop}.stype", _set_predicate, cmp=_FLOATS, boolop=_BOOLEAN, stype="f64 bf16 bf16x2"
    ),
    *(
        item
        for head, relations, dtypes, stypes in _SET_LINES
        for item in form(
            "set", head + ".dtype.stype", _set, cmp=relations, boolop=_BOOLEAN, dtype=dtypes, stype=stypes
        )
    ),
    *form("selp", ".type", _select, type=_SCALARS),
    *form("slct", ".type.stype", _select_by_sign, type=_SCALARS, stype="s32"),
    *form("slct", "{.ftz}.type.stype", _select_by_sign, type=_SCALARS, stype="f32"),
]
