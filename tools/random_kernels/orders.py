"""Running a kernel's operations in another order that its tokens allow, to see that they allow no wrong one.

What is compiled for a GPU says by tokens alone which access to memory comes after which; the interpreter runs in
program order and would not notice one that is missing. Here the IR is that of a GPU, assumptions included, which the
interpreter checks, and the operations of each block are put into another order that their operands allow: the
latest first, which turns round whatever is free, or any.

Turns of a loop that no token keeps in order run from the last to the first.

Branches that leave their block early stay where they are, with everything on its side of them, and what neither
computes nor accesses memory keeps its order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilekern.ir import (
    AddOp,
    Block,
    ConstantOp,
    ContinueOp,
    ForOp,
    Function,
    JoinTokensOp,
    LoopOp,
    Op,
    ReturnOp,
    SubOp,
    TokenType,
    Value,
    YieldOp,
    walk,
)
from tilekern.jit import _compile
from tilekern.passes import Pass


@dataclass(frozen=True)
class AnotherOrder(Pass):
    """Put the operations of every block into another order that keeps what each one needs before it.

    Attributes:
        seed: of a random order; None for the latest operation first, where it can be.
    """

    name = "another-order"
    seed: int | None = None

    def run(self, function: Function) -> bool:
        self._block(function.body, random.Random(self.seed))
        return True

    def _block(self, block: Block, r: random.Random) -> None:
        makers = {value: op for op in block.ops for value in op.results}
        for op in list(block.ops):
            for region in op.regions:
                self._block(region, r)
            if isinstance(op, ForOp) and _is_free(op):
                step = makers.get(op.step)
                if isinstance(step, ConstantOp) and step.value == 1:
                    place = block.ops.index(op)
                    block.ops[place:place] = _turned_round(op, step)
        ordered: list[Op] = []
        part: list[Op] = []
        for op in block.ops:
            if op.terminator or _leaves(op):
                ordered += [*self._order(part, r), op]
                part = []
            else:
                part.append(op)
        block.ops = ordered + self._order(part, r)

    def _order(self, ops: list[Op], r: random.Random) -> list[Op]:
        makers = {value: k for k, op in enumerate(ops) for value in op.results}
        needs = [{makers[v] for v in _uses(op) if v in makers} for op in ops]
        fixed = [k for k, op in enumerate(ops) if op.effect == "control" and not op.regions]
        for one, two in itertools.pairwise(fixed):
            needs[two].add(one)
        done: list[int] = []
        left = set(range(len(ops)))
        while left:
            ready = sorted(k for k in left if not needs[k] & left)
            chosen = ready[-1] if self.seed is None else r.choice(ready)
            done.append(chosen)
            left.remove(chosen)
        return [ops[k] for k in done]


def _is_free(loop: ForOp) -> bool:
    """True where a loop carries nothing but tokens, and nothing in a turn comes after another turn."""
    carried = set(loop.body.arguments[1:])
    if not all(isinstance(value.type, TokenType) for value in carried):
        return False
    for op in walk(loop.body):
        if carried & set(op.operands):
            if isinstance(op, JoinTokensOp):
                carried.add(op.result)
            elif not isinstance(op, ContinueOp):
                return False
    return not any(op.effect == "control" and not op.regions and not op.terminator for op in walk(loop.body))


def _turned_round(loop: ForOp, one: ConstantOp) -> list[Op]:
    """Count down: the counter becomes lower + upper - 1 less what it is. What has to stand before the loop."""
    counter = loop.body.arguments[0]
    both = AddOp(lhs=loop.lower, rhs=loop.upper, result=Value(counter.type))
    last = SubOp(lhs=both.result, rhs=one.result, result=Value(counter.type))
    down = SubOp(lhs=last.result, rhs=counter, result=Value(counter.type))
    for op in walk(loop.body):
        op.replace_operands({counter: down.result})
    loop.body.ops.insert(0, down)
    return [both, last]


def _uses(op: Op) -> set[Value]:
    found = set(op.operands)
    for region in op.regions:
        for inner in walk(region):
            found |= set(inner.operands)
    return found


def _leaves(op: Op, in_loop: bool = False) -> bool:
    """True for what may end its block before the last operation."""
    inside = in_loop or isinstance(op, ForOp | LoopOp)
    for region in op.regions:
        last = region.terminator
        if isinstance(last, ReturnOp) or (last is not None and not isinstance(last, YieldOp) and not inside):
            return True
        if any(_leaves(inner, inside) for inner in region.ops):
            return True
    return False


@contextmanager
def another_order(seed: int | None) -> Iterator[None]:
    """Kernels of the host device are compiled as for a GPU, and run in another order."""
    compiling: Any = _compile
    usual = compiling.pipeline

    def changed(check: Any, **how: Any) -> tuple[Pass, ...]:
        return (*usual(check, **{**how, "for_device": True}), AnotherOrder(seed))

    compiling.pipeline = changed
    try:
        yield
    finally:
        compiling.pipeline = usual
