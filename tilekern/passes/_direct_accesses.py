"""Keeping accesses away from the tensor memory accelerator that it would get wrong.

Theory. The accelerator writes a tile behind the kernel's back. The assembler waits until it has read the tile (it
must, to use its shared memory again), not until it has written it: in what tileiras 13.5 makes of a store and a load
of the same memory, `cp.async.bulk.wait_group.read` stands between the two, whatever their tokens say. So the load may
find what was there before, and a second store may be overtaken by the first. Seen on an H200: of a tile that is
stored, gathered by rows and stored again, nothing of the first store was left.

A store is left to the accelerator where its token leads to no other access: that is what most kernels do with what
they yield. The others write directly, which a barrier orders. Reductions into memory take the accelerator too, and Tile
IR has no hint for them: they get a view whose base nobody knows to be aligned, since a number was added that is always
0, but not by what the assembler knows. That the accelerator cannot serve.

A load that a write comes before is not left to it either. What threads wrote, the accelerator sees only behind a fence
between the two ways to memory, which the threads that wrote have to pass (PTX ISA, "Async proxy"); where some warps
store and others load, tileiras 13.5 has only those that load pass it. Seen on an H200: a tile that was loaded, stored
with one added, and loaded again, was the old one.

So do stores of a part of a tile write directly, whatever comes after them: from where a loaded tile lies in shared
memory, the accelerator is told to take the part, at an address that is not aligned as it needs (seen on an H200 as a
misaligned address; and the place was of two bytes an element where it had one).

And where the kernel's option says so, every load and store that does not itself allow the accelerator keeps away from
it: setting it up takes longer than a small kernel.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from ..dtypes import int32
from ..ir import (
    AtomicReduceOp,
    BitcastOp,
    Block,
    ConstantOp,
    ExtractOp,
    Function,
    LoadOp,
    LoadSparseOp,
    MakeTensorOp,
    MakeViewOp,
    MemoryOp,
    NumBlocksOp,
    OffsetOp,
    Op,
    ReshapeOp,
    ShiftRightOp,
    StoreOp,
    StoreSparseOp,
    Value,
    scalar,
    walk,
)
from ._pass import Pass
from ._token_flow import TokenFlow

__all__ = ["DirectAccesses"]

_HINTED = (LoadOp, LoadSparseOp, StoreOp, StoreSparseOp)


@dataclass(frozen=True)
class DirectAccesses(Pass):
    """Forbid the tensor memory accelerator to writes before another access, or of parts, and to loads after writes."""

    name = "direct-accesses"
    everywhere: bool = False
    """All loads and stores that do not allow it themselves."""

    def run(self, function: Function) -> bool:
        return _Direct(function, self.everywhere).block(function.body)


class _Direct:
    def __init__(self, function: Function, everywhere: bool) -> None:
        self._everywhere = everywhere
        self._flow = TokenFlow(function)
        self._made = {result: op for op in walk(function.body) for result in op.results}
        self._after_writes: set[MemoryOp] = set()
        waiting = [op for op in walk(function.body) if isinstance(op, MemoryOp) and op.effect == "write"]
        while waiting:
            for behind in self._flow.behind(waiting.pop().result_token):
                if behind not in self._after_writes:
                    self._after_writes.add(behind)
                    waiting.append(behind)

    def block(self, block: Block) -> bool:
        changed = False
        ops: list[Op] = []
        for op in block.ops:
            if isinstance(op, StoreOp | StoreSparseOp | AtomicReduceOp) and (
                self._flow.behind(op.result_token) or self._is_part(op.tile)
            ):
                if isinstance(op, AtomicReduceOp):
                    changed |= self._without_alignment(op, ops)
                elif op.allow_tma is not False:
                    op.allow_tma = False
                    changed = True
            elif isinstance(op, LoadOp | LoadSparseOp) and op in self._after_writes:
                changed |= op.allow_tma is not False
                op.allow_tma = False
            if self._everywhere and isinstance(op, _HINTED) and op.allow_tma is None:
                op.allow_tma = False
                changed = True
            for region in op.regions:
                changed |= self.block(region)
            ops.append(op)
        block.ops = ops
        return changed

    def _is_part(self, tile: Value) -> bool:
        """Whether it was extracted from another one, but for its shape and type."""
        op = self._made.get(tile)
        while isinstance(op, ReshapeOp | BitcastOp):
            op = self._made.get(op.source)
        return isinstance(op, ExtractOp)

    def _without_alignment(self, op: AtomicReduceOp, ops: list[Op]) -> bool:
        """Let `op` go through a view of its own, made by what is added to `ops`, of a base without known alignment."""
        view = self._made.get(op.view)
        tensor = self._made.get(view.tensor) if isinstance(view, MakeViewOp) else None
        if not isinstance(view, MakeViewOp) or not isinstance(tensor, MakeTensorOp):
            return False
        moved = self._made.get(tensor.base)
        if isinstance(moved, OffsetOp) and isinstance(self._made.get(moved.elements), ShiftRightOp):
            return False  # it has been done
        number = scalar(int32)
        blocks = NumBlocksOp(axis=0, result=Value(number))
        places = ConstantOp(value=31, result=Value(number))
        zero = ShiftRightOp(lhs=blocks.result, rhs=places.result, result=Value(number))
        base = OffsetOp(pointers=tensor.base, elements=zero.result, result=Value(tensor.base.type))
        own_tensor, own_view = copy.copy(tensor), copy.copy(view)
        own_tensor.base, own_tensor.result = base.result, Value(tensor.result.type)
        own_view.tensor, own_view.result = own_tensor.result, Value(view.result.type)
        op.view = own_view.result
        ops += [blocks, places, zero, base, own_tensor, own_view]
        return True
