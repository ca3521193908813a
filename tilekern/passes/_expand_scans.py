"""Scans written out in steps, where NVIDIA's assembler would get them wrong.

Theory. The assembler spreads a tile over threads as the operations before and after it like best, and tileiras 13.5
scans rightly only where the scanned tile lies as it was loaded. Its scan is wrong, accesses shared memory that it does
not have, or does not compile, where the tile was reshaped or permuted before, where it has three sides, and, with fewer
elements than a block has threads, where a part is taken or another shape given afterwards. All of it was seen in its
PTX, run on the simulated device (`tools/differential.py --assembled`), and the last also on an H200.

So a scan stays one only where its tile has 512 elements or more, two sides at most, and comes from loads and numbers by
operations element by element, reductions and repetitions. Any other is made of steps. Each step takes runs of elements
that are scanned already, eight neighbours at a time, combines the last elements of the runs one after the other, and
every element of a run with what the runs before it come to.

A function of the user's is applied to whole tiles then. One with a branch that stays one (`_select_branches.py`) cannot
be: its scan stays one, of a matrix, along its last side, settled before and after (`_settle.py`).

Goes once tests/tilekern/lowering/test_scans.py passes without.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TypeAlias

from ..dtypes import bool_, int32
from ..ir import (
    AddOp,
    ArgReduceOp,
    BinaryOp,
    BitcastOp,
    Block,
    BroadcastOp,
    CastOp,
    CompareOp,
    ConstantOp,
    ExtractOp,
    FmaOp,
    Function,
    IotaOp,
    LoadOp,
    LoadPointersOp,
    LoadSparseOp,
    MulOp,
    Op,
    PermuteOp,
    ReduceOp,
    ReduceWithOp,
    ReshapeOp,
    ScanOp,
    ScanWithOp,
    SelectOp,
    TileType,
    UnaryOp,
    Value,
    scalar,
    walk,
)
from ._pass import Pass
from ._settle import MOST_THREADS, settled

__all__ = ["ExpandScans"]

_Scan: TypeAlias = ScanOp | ScanWithOp

_ELEMENTWISE = UnaryOp | BinaryOp | FmaOp | CompareOp | SelectOp | CastOp | BitcastOp

_IN_PLACE = (
    _ELEMENTWISE
    | ArgReduceOp
    | BroadcastOp
    | ConstantOp
    | IotaOp
    | LoadOp
    | LoadPointersOp
    | LoadSparseOp
    | ReduceOp
    | ReduceWithOp
    | ScanOp
    | ScanWithOp
)
"""What leaves the elements of a tile with the threads that have them, or has none before it."""

_RUNS = 8
"""How many runs a step joins at most."""

_Runs: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class ExpandScans(Pass):
    """Make steps of the scans that the assembler gets wrong."""

    name = "expand-scans"

    def run(self, function: Function) -> bool:
        return _Expand(function).block(function.body)


class _Expand:
    def __init__(self, function: Function) -> None:
        self._made = {result: op for op in walk(function.body) for result in op.results}
        self._lies: dict[Value, bool] = {}

    def block(self, block: Block) -> bool:
        ops: list[Op] = []
        changed = False
        for op in block.ops:
            for region in op.regions:
                changed |= self.block(region)
            if not isinstance(op, _Scan) or self._is_right(op):
                ops.append(op)
                continue
            ops += _Steps(op).ops or _as_matrix(op)
            changed = True
        block.ops = ops
        return changed

    def _is_right(self, op: _Scan) -> bool:
        """Whether the assembler gets it right."""
        (kind, *_) = [s.type for s in _sources(op)]
        assert isinstance(kind, TileType)
        sides = [side for side in kind.shape if side > 1]
        return kind.size >= MOST_THREADS and len(sides) <= 2 and all(map(self._as_loaded, _sources(op)))

    def _as_loaded(self, value: Value) -> bool:
        """Whether a tile lies as it was loaded."""
        if value not in self._lies:
            self._lies[value] = True  # for loops, which give it to themselves
            self._lies[value] = self._asked(value)
        return self._lies[value]

    def _asked(self, value: Value) -> bool:
        op = self._made.get(value)
        if op is None or not isinstance(value.type, TileType) or value.type.size == 1:
            return isinstance(value.type, TileType) and value.type.size == 1
        if isinstance(op, ReshapeOp):
            before, after = op.source.type, op.result.type
            assert isinstance(before, TileType)
            assert isinstance(after, TileType)
            same = [s for s in before.shape if s > 1] == [s for s in after.shape if s > 1]
            return same and self._as_loaded(op.source)
        if isinstance(op, _Scan) and not self._is_right(op):
            return False
        tiles = [v for v in op.operands if isinstance(v.type, TileType)]
        return isinstance(op, _IN_PLACE) and all(map(self._as_loaded, tiles))


def _sources(op: _Scan) -> tuple[Value, ...]:
    return (op.source,) if isinstance(op, ScanOp) else op.sources


class _Steps:
    """The steps of one scan.

    Attributes:
        ops: the operations, which give the values that the scan gave; None where its function cannot be applied to
            tiles.
    """

    def __init__(self, op: _Scan) -> None:
        self._op = op
        self._made: list[Op] = []
        results = (op.result,) if isinstance(op, ScanOp) else op.combined
        kind = results[0].type
        assert isinstance(kind, TileType)
        tiles: list[Value] | None = list(_sources(op))
        before, length, behind = _sides(op, kind)
        run = 1
        while run < length and tiles is not None:
            runs = min(_RUNS, length // run)
            tiles = self._step(tiles, (before * length // (runs * run), runs, run, behind))
            run *= runs
        self.ops: list[Op] | None = None
        if tiles is not None:
            for tile, result in zip(tiles, results, strict=True):
                self._emit(ReshapeOp(source=tile, result=result))
            self.ops = self._made

    def _step(self, tiles: list[Value], shape: _Runs) -> list[Value] | None:
        """Join runs; `shape` is (groups of runs, runs of a group, elements of a run, lines)."""
        groups, runs, run, lines = shape
        is_reverse = self._op.reverse
        here = [self._reshaped(tile, shape) for tile in tiles]
        last = 0 if is_reverse else run - 1
        ends = [self._part(tile, (0, 0, last, 0), (groups, runs, 1, lines)) for tile in here]
        order = range(runs)[::-1] if is_reverse else range(runs)
        number = self._counted(runs)
        so_far: list[Value] | None = None
        before: list[Value] = []
        for i, run_before in zip(order[1:], order, strict=False):
            end = [self._part(tile, (0, run_before, 0, 0), (groups, 1, 1, lines)) for tile in ends]
            so_far = end if so_far is None else self._combined(so_far, end, (groups, 1, 1, lines))
            if so_far is None:
                return None
            wide = [self._repeated(tile, (groups, runs, 1, lines)) for tile in so_far]
            is_here = self._compared(number, "eq", i, (groups, runs, 1, lines))
            before = [self._chosen(is_here, a, b) for a, b in zip(wide, before or wide, strict=True)]
        combined = self._combined([self._repeated(tile, shape) for tile in before], here, shape)
        if combined is None:
            return None
        is_later = self._compared(number, "ne", order[0], shape)
        return [self._chosen(is_later, a, b) for a, b in zip(combined, here, strict=True)]

    def _part(self, tile: Value, place: tuple[int, ...], shape: _Runs) -> Value:
        if _shaped(tile, shape) == tile.type:
            return tile
        index = tuple(self._number(i) for i in place)
        return self._emit(ExtractOp(source=tile, index=index, result=Value(_shaped(tile, shape))))

    def _repeated(self, tile: Value, shape: tuple[int, ...]) -> Value:
        kind = _shaped(tile, shape)
        return tile if kind == tile.type else self._emit(BroadcastOp(source=tile, result=Value(kind)))

    def _chosen(self, condition: Value, if_true: Value, if_false: Value) -> Value:
        if if_true is if_false:
            return if_true
        op = SelectOp(condition=condition, if_true=if_true, if_false=if_false, result=Value(if_true.type))
        return self._emit(op)

    def _counted(self, runs: int) -> Value:
        counted = self._emit(IotaOp(result=Value(TileType(int32, (runs,)))))
        return self._reshaped(counted, (1, runs, 1, 1))

    def _compared(self, number: Value, predicate: str, value: int, shape: tuple[int, ...]) -> Value:
        kind = number.type
        assert isinstance(kind, TileType)
        other = self._emit(ConstantOp(value=value, result=Value(kind)))
        op = CompareOp(lhs=number, rhs=other, predicate=predicate, result=Value(kind.with_dtype(bool_)))
        return self._repeated(self._emit(op), shape)

    def _combined(self, there: list[Value], here: list[Value], shape: tuple[int, ...]) -> list[Value] | None:
        op = self._op
        if isinstance(op, ScanWithOp):
            return self._applied(op.body, [*there, *here], shape)
        result = Value(here[0].type)
        adds = AddOp if op.kind == "sum" else MulOp
        (a,), (b,) = there, here
        rounding, flush = op.rounding, op.flush_to_zero
        return [self._emit(adds(lhs=a, rhs=b, rounding=rounding, flush_to_zero=flush, result=result))]

    def _applied(self, body: Block, tiles: list[Value], shape: tuple[int, ...]) -> list[Value] | None:
        """The function of scalars applied to tiles, element by element."""
        known = dict(zip(body.arguments, tiles, strict=True))

        def wide(value: Value) -> Value:
            value = known.get(value, value)
            kind = value.type
            assert isinstance(kind, TileType)
            if kind.shape == shape:
                return value
            return self._repeated(self._reshaped(value, (1,) * len(shape)), shape)

        for op in body.ops:
            if op.terminator:
                return [wide(value) for value in op.operands]
            if op.regions or not all(isinstance(v.type, TileType) for v in (*op.operands, *op.results)):
                return None
            again = copy.copy(op)
            varies = any(_is_wide(known.get(v, v), shape) for v in op.operands)
            if varies and not isinstance(op, _ELEMENTWISE):
                return None
            again.replace_operands({v: wide(v) if varies else known.get(v, v) for v in op.operands})
            for field in op._result_fields:
                old = getattr(op, field.name)
                new = Value(_shaped(old, shape) if varies else old.type)
                setattr(again, field.name, new)
                known[old] = new
            self._emit(again)
        return None

    def _number(self, value: int) -> Value:
        return self._emit(ConstantOp(value=value, result=Value(scalar(int32))))

    def _reshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        kind = _shaped(value, shape)
        return value if value.type == kind else self._emit(ReshapeOp(source=value, result=Value(kind)))

    def _emit(self, op: Op) -> Value:
        op.location = op.location or self._op.location
        self._made.append(op)
        return op.results[0]


def _is_wide(value: Value, shape: tuple[int, ...]) -> bool:
    return isinstance(value.type, TileType) and value.type.shape == shape


def _shaped(value: Value, shape: tuple[int, ...]) -> TileType:
    assert isinstance(value.type, TileType)
    return value.type.with_shape(shape)


def _sides(op: _Scan, kind: TileType) -> tuple[int, int, int]:
    """How many elements there are before, along and behind the axis."""
    shape, axis = kind.shape, op.axis
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _as_matrix(op: _Scan) -> list[Op]:
    """The scan, of a matrix, along its last side; gives the values that it gave."""
    made: list[Op] = []

    def emit(new: Op) -> Value:
        new.location = op.location
        made.append(new)
        return new.results[0]

    def turned(tile: Value, cube: tuple[int, int, int], result: Value) -> Value:
        cubic = emit(ReshapeOp(source=tile, result=Value(_shaped(tile, cube))))
        a, b, c = cube
        turn = PermuteOp(source=cubic, order=(0, 2, 1), result=Value(_shaped(tile, (a, c, b))))
        return emit(ReshapeOp(source=emit(turn), result=result))

    scan = copy.copy(op)
    kind = _sources(op)[0].type
    assert isinstance(kind, TileType)
    before, length, behind = _sides(op, kind)
    flat = (before * behind, length)
    cube, turned_cube = (before, length, behind), (before, behind, length)
    sources = [settled(turned(v, cube, Value(_shaped(v, flat))), emit) for v in _sources(op)]
    results = (op.result,) if isinstance(op, ScanOp) else op.combined
    own = tuple([Value(_shaped(result, flat)) for result in results])
    scan.axis = 1
    if isinstance(scan, ScanOp):
        scan.source, scan.result = sources[0], own[0]
    else:
        scan.sources, scan.combined = tuple(sources), own
    made.append(scan)
    for value, result in zip(own, results, strict=True):
        turned(settled(value, emit), turned_cube, result)
    return made
