"""Which accesses come after which: tokens followed through joins, branches and turns of loops."""

from __future__ import annotations

from ..ir import (
    BreakOp,
    ContinueOp,
    ForOp,
    Function,
    IfOp,
    JoinTokensOp,
    LoopOp,
    MemoryOp,
    Op,
    TokenType,
    Value,
    YieldOp,
    walk,
)

__all__ = ["TokenFlow"]


class TokenFlow:
    """Tells which accesses come after which, by the tokens."""

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

    def around(self, end: Op) -> Op | None:
        """The `if` or loop that an operation ends a block of, or leaves."""
        return self._inside.get(end)

    def ends(self, loop: ForOp | LoopOp) -> list[Op]:
        """What goes on with the loop's next turn."""
        return [end for end, around in self._inside.items() if around is loop and isinstance(end, ContinueOp)]

    def behind(self, token: Value) -> list[MemoryOp]:
        """The accesses that come next after what `token` stands for: those after them are not looked for."""
        found: list[MemoryOp] = []
        seen: set[Value] = set()
        waiting = [token]
        while waiting:
            token = waiting.pop()
            if token in seen:
                continue
            seen.add(token)
            for user in self._users.get(token, ()):
                if isinstance(user, MemoryOp):
                    found.append(user)
                else:
                    waiting += self._same(user, token)
        return found

    def _same(self, user: Op, token: Value) -> list[Value]:
        """What stands for a token that is used by something that is no access."""
        if isinstance(user, JoinTokensOp):
            return [user.result]
        if isinstance(user, ForOp | LoopOp):
            return self._next_turn(user, [i for i, value in enumerate(user.initial) if value is token])
        around = self._inside.get(user)
        if around is None:
            return []
        places = [i for i, value in enumerate(user.operands) if value is token]
        if isinstance(around, IfOp):
            return [around.merged[i] for i in places]
        assert isinstance(around, ForOp | LoopOp)
        if isinstance(user, BreakOp):
            return [around.final[i] for i in places]
        return self._next_turn(around, places)

    def _next_turn(self, loop: ForOp | LoopOp, places: list[int]) -> list[Value]:
        """What a loop makes of the values that it is begun, or goes on, with at these places."""
        counters = len(loop.body.arguments) - len(loop.initial)
        found = [loop.body.arguments[counters + i] for i in places]
        return found + ([loop.final[i] for i in places] if isinstance(loop, ForOp) else [])
