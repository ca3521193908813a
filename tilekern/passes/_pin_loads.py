"""Keeping loads before the stores that come after them.

Theory. Where two users of a loaded tile want its elements in different threads, the assembler may load it twice, once
for each, and it puts the second load where that user is, even behind a store to the same memory that the tokens put
after the load (tileiras 13.5, at any optimisation level, whatever the order and the scope of the load). The user then
computes with what was stored. Seen on an H200: a tile is loaded, stored over, and the loaded one scanned and yielded.

What is loaded inside a branch stays in it. So a load is put into a branch that is always taken, which the assembler
cannot know, where a write of the same memory comes after it, and its value is used behind that write: by another
access, or by what leaves a block or prints. What is only computed with it has no place of its own.

A kernel that loads, computes and stores in place needs none: nothing uses the loaded value behind the store.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType, bool_, int32
from ..ir import (
    Block,
    BreakOp,
    CompareOp,
    ConstantOp,
    ContinueOp,
    Function,
    IfOp,
    LoadOp,
    LoadPointersOp,
    LoadSparseOp,
    MakeTokenOp,
    NumBlocksOp,
    Op,
    TileType,
    TokenType,
    Value,
    YieldOp,
    scalar,
    walk,
)
from ._pass import Pass
from ._token_flow import TokenFlow

__all__ = ["PinLoads"]

_Load = LoadOp | LoadSparseOp | LoadPointersOp


@dataclass(frozen=True)
class PinLoads(Pass):
    """Put loads whose value is used behind a write of the same memory into a branch that is always taken."""

    name = "pin-loads"

    def run(self, function: Function) -> bool:
        return _Pin(function).run()


class _Pin:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._flow = TokenFlow(function)
        self._places: dict[Op, int] = {}
        self._users: dict[Value, list[Op]] = {}
        for place, op in enumerate(walk(function.body)):
            self._places[op] = place
            for operand in op.operands:
                self._users.setdefault(operand, []).append(op)

    def run(self) -> bool:
        loads = [op for op in walk(self._function.body) if isinstance(op, _Load) and self._may_move(op)]
        if not loads:
            return False
        blocks = NumBlocksOp(axis=0, result=Value(scalar(int32)))
        zero = ConstantOp(value=0, result=Value(scalar(int32)))
        always = CompareOp(
            lhs=blocks.result, rhs=zero.result, predicate="gt", result=Value(scalar(bool_), "always")
        )
        self._wrap(self._function.body, set(loads), always.result)
        self._function.body.ops[:0] = [blocks, zero, always]
        return True

    def _may_move(self, op: _Load) -> bool:
        kind = op.result.type
        if not isinstance(kind, TileType) or not isinstance(kind.dtype, DType) or kind.size == 1:
            return False  # a single element has no threads to be spread over
        own = self._places[op]
        writes = [self._places[o] for o in self._flow.behind(op.result_token) if o.effect == "write"]
        if not writes:
            return False
        behind = [place for place in writes if place > own]
        first = min(behind, default=None)
        return any(
            isinstance(user, YieldOp | ContinueOp | BreakOp)
            or (first is not None and self._places[user] > first)
            for user in self._lasting_users(op.result)
        )

    def _lasting_users(self, value: Value) -> list[Op]:
        """The operations with a place in the program that use a value or what is computed with it."""
        found: list[Op] = []
        seen: set[Op] = set()
        waiting = list(self._users.get(value, ()))
        while waiting:
            user = waiting.pop()
            if user in seen:
                continue
            seen.add(user)
            if user.effect != "none":
                found.append(user)
                continue
            for result in user.results:
                waiting += self._users.get(result, ())
        return found

    def _wrap(self, block: Block, loads: set[_Load], always: Value) -> None:
        ops: list[Op] = []
        for op in block.ops:
            for region in op.regions:
                self._wrap(region, loads, always)
            ops.append(self._branch(op, always) if isinstance(op, _Load) and op in loads else op)
        block.ops = ops

    def _branch(self, load: _Load, always: Value) -> IfOp:
        """`if always { yield the load } else { yield zeros }`; the values it gives are those that the load gave."""
        result, token = load.result, load.result_token
        kind = result.type
        assert isinstance(kind, TileType)
        load.result, load.result_token = Value(kind), Value(TokenType())
        then, otherwise = Block(), Block()
        then.ops = [load, YieldOp(values=(load.result, load.result_token))]
        number = kind.number
        zeros = ConstantOp(
            value=False if number is bool_ else 0.0 if number.is_float else 0, result=Value(kind)
        )
        before = MakeTokenOp(result=Value(TokenType()))
        otherwise.ops = [zeros, before, YieldOp(values=(zeros.result, before.result))]
        branch = IfOp(condition=always, then=then, otherwise=otherwise, merged=(result, token))
        branch.location = load.location
        return branch
