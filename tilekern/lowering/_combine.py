"""Reductions with a function of the user's, and how such a function is lowered.

Tile IR hands the body (element, accumulator) for each source, one pair after the other; the IR all that is
there already, then all that comes to it.
"""

from __future__ import annotations

from ..ir import CombineOp, ReduceWithOp
from ..tileir import Body
from ._elementwise import dtype_of_value
from ._lowerer import Lowerer, lowers

__all__ = ["combine", "identities_of"]


@lowers(ReduceWithOp)
def _reduce(b: Lowerer, op: ReduceWithOp) -> None:
    combine(b, op, b.fn.reduce(b.all(op.sources), op.axis, identities_of(op)))


def identities_of(op: CombineOp) -> list[bool | int | float]:
    """As the bits of signless integers."""
    found: list[bool | int | float] = []
    for number, source in zip(op.identities, op.sources, strict=True):
        dtype = dtype_of_value(source)
        is_large = dtype.is_integer and number >= 1 << (dtype.bits - 1)
        found.append(number - (1 << dtype.bits) if is_large else number)
    return found


def combine(b: Lowerer, op: CombineOp, body: Body) -> None:
    with body:
        # The arguments come in pairs (element, accumulator), of which the first stands before the second.
        b.set_all(op.body.arguments, (*body.arguments[::2], *body.arguments[1::2]))
        b.block(op.body)
    b.set_all(op.combined, body.results)
