"""Giving memory operations the order the program means, with tokens.

Theory. Operations of Tile IR that touch memory have no order but the one tokens give. The program's order
matters only between two accesses to one place of which one is a store (an atomic is a store here). Places are
told apart by the parameter they are reached through: the launcher refuses memory that is given exclusively and
once more (`AliasError`), so a tensor that is stored to overlaps no other parameter. What is made of several
parameters counts as an access to each of them.

Per parameter that is stored to ("root"), walking the program in order, a "front" says what follows what:

    a store comes after everything before it
    a load comes after the last store, and after the last load that is not weak: of what other blocks write,
        it must not see less than that one; loads have no other order among themselves
    an `if` yields the front of the side taken
    a loop carries a token; what follows the loop comes after it

Parameters that are only loaded from need no tokens at all, and loads from them move freely.

    store r        t1 = store r
    load r         x, t2 = load r, t1
    load r         y, t3 = load r, t1
    store r        t4 = join t2, t3; store r, t4

Turns of a loop follow each other, unless they have nothing to do with each other (`_loop_distinct.py`): then
every turn comes after what is before the loop (a fork), and the carried token only collects what the turns
did, for what follows the loop (a join).

An access that acquires comes before every access after it, whatever its root; one that releases, after
every access before it. Waiting for the grids a kernel depends on is both, and orders also what is only
loaded: the grids waited for may have written it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..ir import (
    Block,
    BreakOp,
    ContinueOp,
    ForOp,
    Function,
    GridLaunchDependentsOp,
    GridWaitOp,
    IfOp,
    JoinTokensOp,
    LoopOp,
    MakeTokenOp,
    MemoryOp,
    Op,
    TokenType,
    Value,
    YieldOp,
    memory_roots,
    walk,
)
from ._loop_distinct import LoopDistinct
from ._pass import Pass

__all__ = ["OrderMemory"]


@dataclass(frozen=True)
class OrderMemory(Pass):
    """Add the tokens that keep accesses to the same memory in program order."""

    name = "order-memory"

    def run(self, function: Function) -> bool:
        roots = memory_roots(function)
        ordered: list[Value] = []
        waits = any(isinstance(op, GridWaitOp) for op in walk(function.body))
        for op in walk(function.body):
            if isinstance(op, MemoryOp) and (waits or op.effect == "write"):
                ordered += [r for r in roots[op.accessed] if r not in ordered]
        if not ordered:
            return False
        order = _Order(function, roots, ordered)
        order.block(function.body, {root: _Front() for root in ordered})
        return order.changed


@dataclass(frozen=True)
class _Front:
    """What a following access to a root must come after.

    Attributes:
        loads_after: tokens that a load comes after: the last store, or what stands for it.
        stores_after: tokens that a store comes after: those, or what came after them since.
    """

    loads_after: tuple[Value, ...] = ()
    stores_after: tuple[Value, ...] = ()

    @classmethod
    def of(cls, token: Value) -> _Front:
        """Where everything comes after one token."""
        return cls((token,), (token,))

    def with_load(self, token: Value) -> _Front:
        """After a load, which came after `loads_after` itself."""
        rest = tuple([t for t in self.stores_after if t not in self.loads_after])
        return _Front(self.loads_after, (*rest, token))

    def with_barrier(self, token: Value) -> _Front:
        """After an access elsewhere that everything else comes after, too."""
        return _Front((*self.loads_after, token), (*self.stores_after, token))


_Fronts = dict[Value, _Front]


class _Carried(NamedTuple):
    """A root that a loop carries a token for."""

    root: Value
    token: Value
    """In a turn."""
    before: _Front | None
    """The front before the loop, where turns have nothing to do with each other."""


class _Order:
    def __init__(
        self, function: Function, roots: dict[Value, tuple[Value, ...]], ordered: list[Value]
    ) -> None:
        self._roots = roots
        self._ordered = ordered
        self._distinct = LoopDistinct(function, roots)
        self._ops: list[Op] = []
        self._loops: list[list[_Carried]] = []  # what each loop around carries
        self.changed = False

    def block(self, block: Block, fronts: _Fronts) -> None:
        """Order a block, given what precedes it; `fronts` becomes what follows it must come after."""
        outer, self._ops = self._ops, []
        for op in block.ops:
            if isinstance(op, MemoryOp):
                self._access(op, fronts)
            elif isinstance(op, GridWaitOp | GridLaunchDependentsOp):
                self._grid(op, fronts)
            elif isinstance(op, IfOp):
                self._branch(op, fronts)
            elif isinstance(op, ForOp | LoopOp):
                self._loop(op, fronts)
            elif isinstance(op, ContinueOp | BreakOp) and self._loops:
                op.values += self._ends(self._loops[-1], fronts)
                self._ops.append(op)
            else:
                self._ops.append(op)
        block.ops = self._ops
        self._ops = outer

    def _access(self, op: MemoryOp, fronts: _Fronts) -> None:
        touched = [root for root in self._roots[op.accessed] if root in fronts]
        before: list[Value] = []
        for root, front in fronts.items():
            if op.releases or (root in touched and op.effect == "write"):
                before += front.stores_after
            elif root in touched:
                before += front.loads_after
        op.token = self._join(before)
        self.changed |= op.token is not None
        self._ops.append(op)
        token = op.result_token
        for root, front in fronts.items():
            if root in touched and op.effect == "write":
                fronts[root] = _Front.of(token)
            elif root in touched:
                after = front.with_load(token)
                fronts[root] = after if op.ordering == "weak" else _Front((token,), after.stores_after)
            elif op.acquires:
                fronts[root] = front.with_barrier(token)

    def _grid(self, op: GridWaitOp | GridLaunchDependentsOp, fronts: _Fronts) -> None:
        op.token = self._join([t for front in fronts.values() for t in front.stores_after])
        self.changed |= op.token is not None
        self._ops.append(op)
        if isinstance(op, GridWaitOp):
            fronts.update({root: _Front.of(op.result_token) for root in fronts})

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
                last.values += tuple([self._one(inside[root].stores_after) for root in roots])
                self._ops.append(last)
                self._ops = outer
        if any(isinstance(region.terminator, YieldOp) for region in op.regions):
            results = [Value(TokenType()) for _ in roots]
            op.merged += tuple(results)
            for root, token in zip(roots, results, strict=True):
                only_loads = not self._stores(op, root)
                fronts[root] = _Front(fronts[root].loads_after, (token,)) if only_loads else _Front.of(token)
            self.changed |= bool(roots)
        self._ops.append(op)

    def _stores(self, op: IfOp, root: Value) -> bool:
        """True when loads of the root may have to come after what a branch does."""
        return any(
            _is_barrier(inner)
            or (
                isinstance(inner, MemoryOp)
                and inner.effect == "write"
                and root in self._roots[inner.accessed]
            )
            for region in op.regions
            for inner in walk(region)
        )

    def _loop(self, op: ForOp | LoopOp, fronts: _Fronts) -> None:
        roots = self._touched(op)
        barrier = any(_is_barrier(inner) for inner in walk(op.body))
        apart = [not barrier and self._distinct.apart(op, root) for root in roots]
        op.initial += tuple([self._one(fronts[root].stores_after) for root in roots])
        carried = [
            _Carried(root, Value(TokenType()), fronts[root] if is_apart else None)
            for root, is_apart in zip(roots, apart, strict=True)
        ]
        op.body.arguments += [one.token for one in carried]
        inside = dict(fronts)
        inside.update({one.root: _Front.of(one.token) for one in carried if one.before is None})
        self._loops.append(carried)
        self.block(op.body, inside)
        self._loops.pop()
        for one in carried:
            result = Value(TokenType())
            op.final += (result,)
            if one.before is not None and not self._distinct.writes(op, one.root):
                fronts[one.root] = _Front(one.before.loads_after, (result,))
            else:
                fronts[one.root] = _Front.of(result)
        self.changed |= bool(roots)
        self._ops.append(op)

    def _ends(self, carried: list[_Carried], fronts: _Fronts) -> tuple[Value, ...]:
        """What a turn hands on, per root that the loop carries."""
        found: list[Value] = []
        for one in carried:
            tokens = fronts[one.root].stores_after
            if one.before is not None:
                old = (*one.before.stores_after, *one.before.loads_after)
                tokens = (one.token, *[t for t in tokens if t not in old])
            found.append(self._one(tokens))
        return tuple(found)

    def _touched(self, op: Op) -> list[Value]:
        """The ordered roots that an operation's regions access."""
        found: list[Value] = []
        for region in op.regions:
            for inner in walk(region):
                if _is_barrier(inner):
                    return list(self._ordered)
                if isinstance(inner, MemoryOp):
                    found += [r for r in self._roots[inner.accessed] if r in self._ordered and r not in found]
        return found

    def _one(self, tokens: tuple[Value, ...]) -> Value:
        """One token for all of these; of none, one that comes after nothing."""
        token = self._join(list(tokens))
        if token is None:
            made = MakeTokenOp(result=Value(TokenType()))
            self._ops.append(made)
            token = made.result
        return token

    def _join(self, tokens: list[Value]) -> Value | None:
        tokens = list(dict.fromkeys(tokens))
        if len(tokens) < 2:
            return tokens[0] if tokens else None
        joined = JoinTokensOp(tokens=tuple(tokens), result=Value(TokenType()))
        self._ops.append(joined)
        return joined.result


def _is_barrier(op: Op) -> bool:
    """True for what orders accesses other than its own."""
    return isinstance(op, GridWaitOp | GridLaunchDependentsOp) or (
        isinstance(op, MemoryOp) and (op.acquires or op.releases)
    )
