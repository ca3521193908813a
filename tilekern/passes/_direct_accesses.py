"""Keeping accesses away from the tensor memory accelerator that it would get wrong.

Theory. A kernel that uses the accelerator is split by the assembler (tileiras 13.5) into groups of warps, one of which
loads, one computes and one stores, and accesses that come one after another get into different groups. What orders
them there is not what their tokens say:

- The accelerator writes a tile behind the kernel's back. A group waits until it has read the tile (it must, to use its
  shared memory again), `cp.async.bulk.wait_group.read`, not until it has written it. Seen on an H200: of a tile that
  is stored, gathered by rows and stored again, nothing of the first store was left.
- What threads wrote, the accelerator sees only behind a fence between the two ways to memory, which the threads that
  wrote have to pass (PTX ISA, "Async proxy"), and only those that load pass it. Seen on an H200: a tile that was
  loaded, stored with one added, and loaded again, was the old one.
- A group that stores waits for other groups' stores, but not for their loads, unless it needs what they loaded. Seen
  on an H200: a tile that was loaded and stored over had the new numbers, by the accelerator's store and by another.

So a kernel in which one access has to come after another uses no accelerator, whatever its hints say: then all
accesses are of one group, and its barriers order them. A store of what was computed from the load before it may have
one: it cannot be early. Most kernels are like that; they load tensors and store others.

A tile that a loop carries as it was loaded, to its next turn or out of it, is loaded directly. Where the accelerator
loads it, the assembler carries the place in shared memory, not what is in it, and the next turn's load goes to the same
place: of rows loaded a turn ahead of their use, each was the row after it (seen on an H200), others hung, and some were
not assembled at all. A tile of numbers computed from the load is carried in registers.

A store in a loop of what is the same in all its turns is a direct one. The assembler puts such a tile into shared
memory once, in front of the loop, and uses it for other stores of the same numbers, which look for their parts where
their own copy would have them (seen on an H200: a store behind such a loop wrote what was elsewhere in shared memory,
or stopped).

Reductions into memory take the accelerator too, and Tile IR has no hint for them: they get a view whose base nobody
knows to be aligned, since a number was added that is always 0, but not by what the assembler knows. That the
accelerator cannot serve.

Stores of a part of a tile write directly, whatever comes after them: from where a loaded tile lies in shared memory,
the accelerator is told to take the part, at an address that is not aligned as it needs (seen on an H200 as a
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
    BreakOp,
    BroadcastOp,
    CatOp,
    ConstantOp,
    ContinueOp,
    ExtractOp,
    ForOp,
    Function,
    IfOp,
    InsertOp,
    LoadOp,
    LoadSparseOp,
    LoopOp,
    MakeTensorOp,
    MakeViewOp,
    MemoryOp,
    NumBlocksOp,
    OffsetOp,
    Op,
    PackOp,
    PermuteOp,
    ReshapeOp,
    ShiftRightOp,
    StoreOp,
    StoreSparseOp,
    UnpackOp,
    Value,
    YieldOp,
    scalar,
    walk,
)
from ._pass import Pass
from ._token_flow import TokenFlow

__all__ = ["DirectAccesses"]

_HINTED = (LoadOp, LoadSparseOp, StoreOp, StoreSparseOp)
_REARRANGES = (BitcastOp, BroadcastOp, CatOp, ExtractOp, InsertOp, PackOp, PermuteOp, ReshapeOp, UnpackOp)
"""What moves elements and computes nothing."""


@dataclass(frozen=True)
class DirectAccesses(Pass):
    """Forbid the tensor memory accelerator where it would get an access wrong, or where it was asked to.

    That is in kernels whose accesses have an order, for stores of parts, for loads of tiles that loops carry,
    and for stores of what is the same in all turns.
    """

    name = "direct-accesses"
    everywhere: bool = False
    """All loads and stores that do not allow it themselves."""

    def run(self, function: Function) -> bool:
        return _Direct(function, self.everywhere).block(function.body)


class _Direct:
    def __init__(self, function: Function, everywhere: bool) -> None:
        self._everywhere = everywhere
        self._made: dict[Value, Op] = {}
        self._users: dict[Value, list[Op]] = {}
        for op in walk(function.body):
            for result in op.results:
                self._made[result] = op
            for operand in op.operands:
                self._users.setdefault(operand, []).append(op)
        self._flow = TokenFlow(function)
        self._are_ordered = any(
            not self._has_to_wait(behind, op)
            for op in walk(function.body)
            if isinstance(op, MemoryOp)
            for behind in self._flow.behind(op.result_token)
        )
        self._alone = self._loads_that_loops_carry(function)
        for op in walk(function.body):
            if isinstance(op, ForOp | LoopOp):
                self._alone |= _stores_of_the_same(op)

    def _loads_that_loops_carry(self, function: Function) -> set[Op]:
        """Those whose tile goes into a loop, on to its next turn, or out of it, as it was loaded."""
        carried: list[Value] = []
        for op in walk(function.body):
            if isinstance(op, ContinueOp | BreakOp):
                carried += op.values
            elif isinstance(op, ForOp | LoopOp):
                carried += op.initial
        made = {self._made.get(value) for value in self._origins(carried)}
        return {op for op in made if isinstance(op, LoadOp | LoadSparseOp)}

    def _origins(self, values: list[Value]) -> list[Value]:
        """What tiles are, but for their shape and order and for the branch that is taken."""
        waiting = list(values)
        found: list[Value] = []
        seen: set[Value] = set()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            made = self._made.get(value)
            if isinstance(made, _REARRANGES):
                waiting += made.operands
            elif isinstance(made, IfOp):
                place = made.merged.index(value)
                ends = (made.then.terminator, made.otherwise.terminator)
                waiting += [end.values[place] for end in ends if isinstance(end, YieldOp)]
            else:
                found.append(value)
        return found

    def _has_to_wait(self, access: MemoryOp, first: MemoryOp) -> bool:
        """Whether `access` writes, and what it writes was computed from what `first` has just loaded."""
        if first.effect != "read" or access.effect != "write":
            return False
        known = {result for result in first.results if result is not first.result_token}
        waiting = list(known)
        while waiting:
            for user in self._users.get(waiting.pop(), ()):
                if user is access:
                    return True
                for value in self._computed(user, known):
                    if value not in known:
                        known.add(value)
                        waiting.append(value)
        return False

    def _computed(self, user: Op, known: set[Value]) -> list[Value]:
        """Results of an operation, and arguments of a loop, that depend on a load whatever is done, as `known` do."""
        if user.effect == "none":
            return list(user.results)
        loop = self._flow.around(user) if isinstance(user, ContinueOp) else user
        if not isinstance(loop, ForOp):
            return []
        # A loop's result is computed from what the loop began with if each turn's is from the last one's.
        begun = [i for i, value in enumerate(loop.initial) if value in known]
        ends = self._flow.ends(loop)
        return [loop.body.arguments[1 + i] for i in begun] + [
            loop.final[i] for i in begun if all(end.operands[i] in known for end in ends)
        ]

    def block(self, block: Block) -> bool:
        changed = False
        ops: list[Op] = []
        for op in block.ops:
            if isinstance(op, AtomicReduceOp) and self._are_ordered:
                changed |= self._without_alignment(op, ops)
            elif isinstance(op, _HINTED) and op.allow_tma is not False and self._keeps_away(op):
                op.allow_tma = False
                changed = True
            for region in op.regions:
                changed |= self.block(region)
            ops.append(op)
        block.ops = ops
        return changed

    def _keeps_away(self, op: LoadOp | LoadSparseOp | StoreOp | StoreSparseOp) -> bool:
        is_part = isinstance(op, StoreOp | StoreSparseOp) and self._is_part(op.tile)
        return (
            self._are_ordered or is_part or op in self._alone or (self._everywhere and op.allow_tma is None)
        )

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


def _stores_of_the_same(loop: ForOp | LoopOp) -> set[Op]:
    """The stores of a loop's turn, not of loops in it, whose tile does not depend on the turn."""
    own: set[Value] = set(loop.body.arguments)
    found: set[Op] = set()

    def look(block: Block) -> None:
        for op in block.ops:
            if isinstance(op, StoreOp | StoreSparseOp) and op.tile not in own:
                found.add(op)
            if isinstance(op, ForOp | LoopOp):
                own.update(op.results)
                continue
            for region in op.regions:
                look(region)
            if op.effect != "none" or not own.isdisjoint(op.operands):
                own.update(op.results)

    look(loop.body)
    return found
