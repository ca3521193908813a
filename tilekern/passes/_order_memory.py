"""Giving memory operations the order the program means, with tokens.

Theory. Operations of Tile IR that touch memory have no order but the one tokens give. The program's order
matters only between two accesses to one place of which one is a store. Places are told apart by the
parameter they are reached through: the launcher refuses memory that is given exclusively and once more
(`AliasError`), so a tensor that is stored to overlaps no other parameter.

Per parameter that is stored to ("root"), walking the program in order:

    a store comes after the last store and all loads since (the "front")
    a load comes after the last store; loads have no order among themselves
    a loop carries the front: its turns follow each other, and what follows the loop follows them
    an `if` yields the front of the side taken

Parameters that are only loaded from need no tokens at all, and loads from them move freely.

    store r        t1 = store r
    load r         x, t2 = load r, t1
    load r         y, t3 = load r, t1
    store r        t4 = join t2, t3; store r, t4

Waiting for the grids this one depends on counts as a store to all memory, and in a kernel that waits loads of
what is only read are ordered too. Letting dependents begin comes after what stands before it.

Loads and stores whose root is not known (a base address computed in the kernel) count as accesses to every
root that is stored to.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import (
    AssumeDivByOp,
    Block,
    BreakOp,
    ContinueOp,
    ForOp,
    Function,
    GridLaunchDependentsOp,
    GridWaitOp,
    IfOp,
    JoinTokensOp,
    LoadOp,
    LoopOp,
    MakeTensorOp,
    MakeTokenOp,
    MakeViewOp,
    Op,
    StoreOp,
    TokenType,
    Value,
    YieldOp,
    walk,
)
from ._pass import Pass

__all__ = ["OrderMemory"]


@dataclass(frozen=True)
class OrderMemory(Pass):
    """Add the tokens that keep loads and stores of the same memory in program order."""

    name = "order-memory"

    def run(self, function: Function) -> bool:
        roots = _roots(function)
        stored: list[Value] = []
        waits = any(isinstance(op, GridWaitOp) for op in walk(function.body))
        for op in walk(function.body):
            if isinstance(op, StoreOp) or (waits and isinstance(op, LoadOp)):
                stored += [r for r in roots[op.view] if r not in stored]
        if not stored:
            return False
        order = _Order(roots, stored)
        order.block(function.body, {root: _Front() for root in stored})
        return order.changed


def _roots(function: Function) -> dict[Value, tuple[Value, ...]]:
    """For each tensor and view, the entry parameters its memory may belong to."""
    parameters = tuple(function.body.arguments)
    roots: dict[Value, tuple[Value, ...]] = {value: (value,) for value in parameters}
    for op in walk(function.body):
        if isinstance(op, AssumeDivByOp):
            roots[op.result] = roots.get(op.source, ())
        elif isinstance(op, MakeTensorOp):
            roots[op.result] = roots.get(op.base, parameters)
        elif isinstance(op, MakeViewOp):
            roots[op.result] = roots.get(op.tensor, parameters)
    return roots


@dataclass
class _Front:
    """What a following access to a root must come after.

    Attributes:
        store: token of the last store, or of all that happened in a loop or branch before; None at the start.
        loads: tokens of the loads since.
    """

    store: Value | None = None
    loads: tuple[Value, ...] = ()

    @property
    def tokens(self) -> tuple[Value, ...]:
        if self.loads:
            return self.loads  # they come after the store themselves
        return () if self.store is None else (self.store,)


_Fronts = dict[Value, _Front]


class _Order:
    def __init__(self, roots: dict[Value, tuple[Value, ...]], stored: list[Value]) -> None:
        self._roots = roots
        self._stored = stored
        self._ops: list[Op] = []
        self._loops: list[list[Value]] = []  # roots carried by each loop around
        self.changed = False

    def block(self, block: Block, fronts: _Fronts) -> None:
        """Order a block, given what precedes it; `fronts` becomes what follows it must come after."""
        outer, self._ops = self._ops, []
        for op in block.ops:
            if isinstance(op, LoadOp | StoreOp):
                self._access(op, fronts)
            elif isinstance(op, GridWaitOp | GridLaunchDependentsOp):
                self._dependency(op, fronts)
            elif isinstance(op, IfOp):
                self._branch(op, fronts)
            elif isinstance(op, ForOp | LoopOp):
                self._loop(op, fronts)
            elif isinstance(op, ContinueOp | BreakOp) and self._loops:
                op.values += self._joined(self._loops[-1], fronts)
                self._ops.append(op)
            else:
                self._ops.append(op)
        block.ops = self._ops
        self._ops = outer

    def _access(self, op: LoadOp | StoreOp, fronts: _Fronts) -> None:
        touched = [root for root in self._roots[op.view] if root in fronts]
        before: list[Value] = []
        for root in touched:
            front = fronts[root]
            after = front.tokens if isinstance(op, StoreOp) else (front.store,)
            before += [t for t in after if t is not None and t not in before]
        op.token = self._join(before)
        self.changed |= op.token is not None
        self._ops.append(op)
        for root in touched:
            if isinstance(op, StoreOp):
                fronts[root] = _Front(op.result_token)
            else:
                fronts[root] = _Front(fronts[root].store, (*fronts[root].loads, op.result_token))

    def _dependency(self, op: GridWaitOp | GridLaunchDependentsOp, fronts: _Fronts) -> None:
        before = list(dict.fromkeys([token for front in fronts.values() for token in front.tokens]))
        op.token = self._join(before)
        self._ops.append(op)
        if isinstance(op, GridWaitOp):
            fronts.update({root: _Front(op.result_token) for root in fronts})
            self.changed |= bool(fronts)

    def _branch(self, op: IfOp, fronts: _Fronts) -> None:
        roots = self._touched(op)
        ends: list[_Fronts] = []
        for region in op.regions:
            inside = dict(fronts)
            self.block(region, inside)
            ends.append(inside)
        for region, inside in zip(op.regions, ends, strict=True):
            last = region.ops[-1]
            if isinstance(last, YieldOp):
                region.ops.pop()
                outer, self._ops = self._ops, region.ops
                last.values += self._joined(roots, inside)
                self._ops.append(last)
                self._ops = outer
        if any(isinstance(region.terminator, YieldOp) for region in op.regions):
            results = [Value(TokenType()) for _ in roots]
            op.merged += tuple(results)
            for root, token in zip(roots, results, strict=True):
                fronts[root] = _Front(token)
            self.changed |= bool(roots)
        self._ops.append(op)

    def _loop(self, op: ForOp | LoopOp, fronts: _Fronts) -> None:
        roots = self._touched(op)
        op.initial += self._joined(roots, fronts)
        arguments = [Value(TokenType()) for _ in roots]
        results = [Value(TokenType()) for _ in roots]
        op.body.arguments += arguments
        inside = dict(fronts)
        inside.update({root: _Front(token) for root, token in zip(roots, arguments, strict=True)})
        self._loops.append(roots)
        self.block(op.body, inside)
        self._loops.pop()
        op.final += tuple(results)
        fronts.update({root: _Front(token) for root, token in zip(roots, results, strict=True)})
        self.changed |= bool(roots)
        self._ops.append(op)

    def _touched(self, op: Op) -> list[Value]:
        """The stored-to roots that an operation's regions access."""
        found: list[Value] = []
        for region in op.regions:
            for inner in walk(region):
                if isinstance(inner, GridWaitOp):
                    return list(self._stored)
                if isinstance(inner, LoadOp | StoreOp):
                    found += [r for r in self._roots[inner.view] if r in self._stored and r not in found]
        return found

    def _joined(self, roots: list[Value], fronts: _Fronts) -> tuple[Value, ...]:
        """One token per root for all that came before."""
        tokens: list[Value] = []
        for root in roots:
            token = self._join(list(fronts[root].tokens))
            if token is None:
                made = MakeTokenOp(result=Value(TokenType()))
                self._ops.append(made)
                token = made.result
            tokens.append(token)
        return tuple(tokens)

    def _join(self, tokens: list[Value]) -> Value | None:
        if len(tokens) < 2:
            return tokens[0] if tokens else None
        joined = JoinTokensOp(tokens=tuple(tokens), result=Value(TokenType()))
        self._ops.append(joined)
        return joined.result
