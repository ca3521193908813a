"""Reductions and scans with a function of the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import language
from ...ir import Block, CombineOp, ReduceWithOp, ScanWithOp, TileType, Value, YieldOp, scalar, walk
from .._merge import Kind, coerce, fits
from .._promotion import as_tile, broadcast_shape
from .._promotion import broadcast_to as broadcast_value
from .._promotion import reshape as reshape_value
from .._values import describe, is_number, tile_type
from ._registry import implements

if TYPE_CHECKING:
    from .._translator import Translator

__all__: list[str] = []


def _sources(t: Translator, x: object, name: str) -> list[Value]:
    """The tiles of `x`, a tile or a tuple of them, in one shape."""
    values = [as_tile(t, part, f"what {name} combines") for part in (x if isinstance(x, tuple) else (x,))]
    if not values:
        raise t.wrong_value(f"{name} takes a tile or a tuple of tiles, got an empty tuple")
    shape: tuple[int, ...] = ()
    for value in values:
        kind = tile_type(value)
        if kind.number.restricted:
            raise t.wrong_type(
                f"{name} does not take {kind.number.name}; convert first, as in x.astype(tk.float32)"
            )
        shape = broadcast_shape(t, shape, kind.shape)
    return [broadcast_value(t, value, shape) for value in values]


def _identities(
    t: Translator, identity: object, sources: list[Value], name: str
) -> tuple[bool | int | float, ...]:
    """The numbers that change nothing, each as its tile's type holds it."""
    given = identity if isinstance(identity, tuple) else (identity,)
    if len(given) != len(sources):
        raise t.wrong_value(f"{name} of {len(sources)} tiles takes as many identities, got {len(given)}")
    found: list[bool | int | float] = []
    for number, source in zip(given, sources, strict=True):
        dtype = tile_type(source).number
        if not is_number(number):
            raise t.wrong_type(f"an identity is a number known at compile time, got {describe(number)}")
        if dtype.is_integer and isinstance(number, float) and number in (float("inf"), float("-inf")):
            raise t.wrong_value(
                f"{number} is no identity for {dtype.name}; use its {'largest' if number > 0 else 'smallest'} "
                f"number, {dtype.highest if number > 0 else dtype.lowest}"
            )
        found.append(t.held(number, dtype))
    return tuple(found)


def _body(t: Translator, func: object, kinds: list[TileType], name: str) -> Block:
    """`func` of two groups of scalars, as a region."""
    from .._calls import call

    there, comes = [[Value(kind, hint) for kind in kinds] for hint in ("there", "comes")]
    block = Block([*there, *comes])
    where = t.location
    with t.inside(block):
        result = call(t, func, (*there, *comes), {})
        t.builder.location = where
        parts = result if isinstance(result, tuple) else (result,)
        if len(parts) != len(kinds):
            raise t.wrong_value(
                f"the function of {name} gives {len(kinds)} scalars, one per tile, got {describe(result)}"
            )
        values = []
        for part, kind in zip(parts, kinds, strict=True):
            wanted = Kind(kind, loose=False)
            if not fits(part, wanted):
                raise t.wrong_type(
                    f"the function of {name} combines {kind.number.name} scalars into one of the same type, "
                    f"and gives {describe(part)}"
                )
            values.append(coerce(t, part, wanted))
        t.add(YieldOp(values=tuple(values)))
    for op in walk(block):
        if op.mnemonic not in ("if", "yield") and (op.effect != "none" or isinstance(op, CombineOp)):
            t.builder.location = op.location or where
            raise t.wrong_value(
                f"the function of {name} only computes scalars: no memory, assertions, printing, reductions, or "
                "loops whose length is known at run time only"
            )
    return block


def _combine(
    t: Translator,
    op: type[ReduceWithOp | ScanWithOp],
    x: object,
    axis: object,
    func: object,
    identity: object,
    **options: bool,
) -> tuple[list[Value], int]:
    """The combined tiles, and the axis along which."""
    name = "reduce" if op is ReduceWithOp else "scan"
    sources = _sources(t, x, name)
    shape = tile_type(sources[0]).shape
    position = t.axis(axis, len(shape))
    identities = _identities(t, identity, sources, name)
    kinds = [scalar(tile_type(value).number) for value in sources]
    where = t.location
    body = _body(t, func, kinds, name)
    t.builder.location = where
    made = shape[:position] + shape[position + 1 :] if op is ReduceWithOp else shape
    results = tuple([Value(kind.with_shape(made)) for kind in kinds])
    t.add(
        op(
            sources=tuple(sources),
            axis=position,
            identities=identities,
            body=body,
            combined=results,
            **options,
        )
    )
    return list(results), position


@implements(language.reduce)
def reduce(
    t: Translator, x: object, axis: object, func: object, identity: object, keepdims: object
) -> object:
    keep = t.static_bool(keepdims, "keepdims")
    results, position = _combine(t, ReduceWithOp, x, axis, func, identity)
    if keep:
        shape = list(tile_type(results[0]).shape)
        shape.insert(position, 1)
        results = [reshape_value(t, value, tuple(shape)) for value in results]
    return tuple(results) if isinstance(x, tuple) else results[0]


@implements(language.scan)
def scan(t: Translator, x: object, axis: object, func: object, identity: object, reverse: object) -> object:
    backwards = t.static_bool(reverse, "reverse")
    results, _ = _combine(t, ScanWithOp, x, axis, func, identity, reverse=backwards)
    return tuple(results) if isinstance(x, tuple) else results[0]
