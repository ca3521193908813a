"""Keeping stores that something in the kernel comes after away from the tensor memory accelerator.

Theory. The accelerator writes a tile behind the kernel's back. The assembler waits until it has read the tile (it
must, to use its shared memory again), not until it has written it: in what tileiras 13.5 makes of a store and a load
of the same memory, `cp.async.bulk.wait_group.read` stands between the two, whatever their tokens say. So the load may
find what was there before, and a second store may be overtaken by the first. Seen on an H200: of a tile that is
stored, gathered by rows and stored again, nothing of the first store was left.

A store is left to the accelerator where its token leads to no other access: that is what most kernels do with what
they yield. The others write directly, which a barrier orders. Reductions into memory take the accelerator too, and Tile
IR has no hint for them: they get a view whose base nobody knows to be aligned, since a number was added that is always
0, but not by what the assembler knows. That the accelerator cannot serve.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from ..dtypes import int32
from ..ir import (
    AtomicReduceOp,
    Block,
    BreakOp,
    ConstantOp,
    ContinueOp,
    ForOp,
    Function,
    IfOp,
    JoinTokensOp,
    LoopOp,
    MakeTensorOp,
    MakeViewOp,
    MemoryOp,
    NumBlocksOp,
    OffsetOp,
    Op,
    ShiftRightOp,
    StoreOp,
    StoreSparseOp,
    TokenType,
    Value,
    YieldOp,
    scalar,
    walk,
)
from ._pass import Pass

__all__ = ["DirectStores"]


@dataclass(frozen=True)
class DirectStores(Pass):
    """Forbid the tensor memory accelerator to stores and reductions that another access comes after."""

    name = "direct-stores"

    def run(self, function: Function) -> bool:
        return _Direct(function).block(function.body)


class _Direct:
    def __init__(self, function: Function) -> None:
        self._followed = _Followed(function)
        self._made = {result: op for op in walk(function.body) for result in op.results}

    def block(self, block: Block) -> bool:
        changed = False
        ops: list[Op] = []
        for op in block.ops:
            if isinstance(op, StoreOp | StoreSparseOp) and op.allow_tma is not False and self._followed(op):
                op.allow_tma = False
                changed = True
            elif isinstance(op, AtomicReduceOp) and self._followed(op):
                changed |= self._without_alignment(op, ops)
            for region in op.regions:
                changed |= self.block(region)
            ops.append(op)
        block.ops = ops
        return changed

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


class _Followed:
    """Tells whether an access comes after another one, by the tokens."""

    def __init__(self, function: Function) -> None:
        self._users: dict[Value, list[Op]] = {}
        self._inside: dict[Op, Op] = {}  # what ends a block -> the `if` or loop that it is in
        for op in walk(function.body):
            for operand in op.operands:
                if isinstance(operand.type, TokenType):
                    self._users.setdefault(operand, []).append(op)
            for region in op.regions:
                for inner in walk(region):
                    if isinstance(inner, BreakOp | ContinueOp) and isinstance(op, ForOp | LoopOp):
                        self._inside[inner] = op  # the innermost comes last
                    elif isinstance(inner, YieldOp) and inner is region.terminator:
                        self._inside[inner] = op

    def __call__(self, op: StoreOp | StoreSparseOp | AtomicReduceOp) -> bool:
        seen: set[Value] = set()
        waiting = [op.result_token]
        while waiting:
            token = waiting.pop()
            if token in seen:
                continue
            seen.add(token)
            for user in self._users.get(token, ()):
                if isinstance(user, MemoryOp):
                    return True
                waiting += self._behind(user, token)
        return False

    def _behind(self, user: Op, token: Value) -> list[Value]:
        """What stands for a token that is used by something that is no access."""
        if isinstance(user, JoinTokensOp):
            return [user.result]
        if isinstance(user, ForOp | LoopOp):
            counters = len(user.body.arguments) - len(user.initial)
            places = [i for i, value in enumerate(user.initial) if value is token]
            found = [user.body.arguments[counters + i] for i in places]
            return found + ([user.final[i] for i in places] if isinstance(user, ForOp) else [])
        around = self._inside.get(user)
        if around is None:
            return []
        places = [i for i, value in enumerate(user.operands) if value is token]
        if isinstance(around, IfOp):
            return [around.merged[i] for i in places]
        assert isinstance(around, ForOp | LoopOp)
        if isinstance(user, BreakOp):
            return [around.final[i] for i in places]
        counters = len(around.body.arguments) - len(around.initial)
        found = [around.body.arguments[counters + i] for i in places]
        return found + ([around.final[i] for i in places] if isinstance(around, ForOp) else [])
