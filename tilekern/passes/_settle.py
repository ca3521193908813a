"""Keeping what comes after a small tile from deciding how it is loaded.

Theory. The assembler spreads the elements of a tile over the threads of a block as the operations after it like best,
and hands that wish on to what the tile is made of, up to a load if the tile has fewer elements than the block has
threads. Where the wish comes from another shape or a part of the tile, tileiras 13.5 gets the load wrong: it loads
elements in one access that are no neighbours, at an address that is not aligned to it. Seen in its PTX, run on the
simulated device (`tools/differential.py --assembled`), and on an H200.

A reduction is where such a wish ends. So a small loaded tile of which a part is taken, or that gets another shape, is
put beside a copy of itself and reduced to one of the two.

Goes once tests/tilekern/lowering/test_small_tiles.py passes without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..dtypes import DType, bool_, uint8
from ..ir import (
    BitcastOp,
    Block,
    BroadcastOp,
    CatOp,
    ExtractOp,
    Function,
    InsertOp,
    LoadOp,
    LoadPointersOp,
    LoadSparseOp,
    Op,
    PermuteOp,
    ReduceWithOp,
    ReshapeOp,
    TileType,
    Value,
    YieldOp,
    scalar,
    walk,
)
from ._pass import Pass

__all__ = ["MOST_THREADS", "SettleLoads", "settled"]

MOST_THREADS = 512
"""Threads of a block at most."""

_Load = LoadOp | LoadSparseOp | LoadPointersOp


@dataclass(frozen=True)
class SettleLoads(Pass):
    """Keep other shapes and parts of small loaded tiles from changing how they are loaded."""

    name = "settle-loads"

    def run(self, function: Function) -> bool:
        settle = _Settle(function)
        return settle.any_moves and settle.block(function.body)


class _Settle:
    def __init__(self, function: Function) -> None:
        self._users: dict[Value, list[Op]] = {}
        self._moves = {op for op in walk(function.body) if _moves(op)}
        self.any_moves = bool(self._moves)
        for op in walk(function.body):
            for operand in op.operands:
                self._users.setdefault(operand, []).append(op)

    def block(self, block: Block) -> bool:
        ops: list[Op] = []
        changed = False
        for op in block.ops:
            for region in op.regions:
                changed |= self.block(region)
            ops.append(op)
            if isinstance(op, _Load) and _is_small(op.result) and self._is_moved(op.result):
                loaded, op.result = op.result, Value(op.result.type)
                _settle(op.result, loaded, ops)
                changed = True
        block.ops = ops
        return changed

    def _is_moved(self, value: Value) -> bool:
        """Whether elements computed with it are to lie elsewhere."""
        seen: set[Op] = set()
        waiting = list(self._users.get(value, ()))
        while waiting:
            op = waiting.pop()
            if op in seen:
                continue
            seen.add(op)
            if op in self._moves or op.regions or op.terminator:
                return True  # what a region, or what is behind it, does with it is not looked at
            if op.effect == "none":
                for result in op.results:
                    waiting += self._users.get(result, ())
        return False


def _moves(op: Op) -> bool:
    """Whether elements of its result lie elsewhere than those of its operands."""
    if isinstance(op, ReshapeOp):
        return _sides(op.source) != _sides(op.result)
    return isinstance(op, ExtractOp | CatOp | InsertOp | PermuteOp)


def _sides(value: Value) -> list[int]:
    return [side for side in value.type.shape if side > 1] if isinstance(value.type, TileType) else []


def _is_small(value: Value) -> bool:
    kind = value.type
    if not isinstance(kind, TileType) or not isinstance(kind.dtype, DType):
        return False
    return 1 < kind.size < MOST_THREADS and kind.number.bits in (1, 8, 16, 32, 64)


def _settle(tile: Value, result: Value, ops: list[Op]) -> None:
    """Add what makes `result` of a tile, the same with an end to the wishes of what comes after."""
    kind = tile.type
    assert isinstance(kind, TileType)
    if kind.number.is_float and kind.number.bits == 8:
        numbers = Value(kind.with_dtype(uint8))
        ops.append(BitcastOp(source=tile, result=numbers))
        settled_numbers = Value(numbers.type)
        _settle(numbers, settled_numbers, ops)
        ops.append(BitcastOp(source=settled_numbers, result=result))
        return
    one, two = (kind.with_shape((n, *kind.shape)) for n in (1, 2))
    beside = ReshapeOp(source=tile, result=Value(one))
    twice = BroadcastOp(source=beside.result, result=Value(two))
    element = scalar(kind.number)
    body = Block([Value(element), Value(element)])
    body.ops = [YieldOp(values=(body.arguments[1],))]
    zero = False if kind.number is bool_ else 0.0 if kind.number.is_float else 0
    reduced = ReduceWithOp(sources=(twice.result,), axis=0, identities=(zero,), body=body, combined=(result,))
    ops += [beside, twice, reduced]


def settled(tile: Value, emit: Callable[[Op], Value]) -> Value:
    """The same tile; if it is a small one, with an end to the wishes of what comes after."""
    if not _is_small(tile):
        return tile
    result, ops = Value(tile.type), list[Op]()
    _settle(tile, result, ops)
    for op in ops:
        emit(op)
    return result
