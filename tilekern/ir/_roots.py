"""Which parameters of a kernel the memory behind a tensor, view or pointer may belong to.

An address is made from an address, never from a number, so every one of them comes from parameters. What is
made from several (a choice between two pointers, a variable that a loop carries) may belong to each.
"""

from __future__ import annotations

from ._control import BreakOp, ContinueOp, ForOp, IfOp, LoopOp
from ._op import Block, Function, Op, Value, walk
from ._types import PointerType, SparseViewType, TensorType, TileType, ViewType

__all__ = ["memory_roots"]

Roots = dict[Value, tuple[Value, ...]]


def memory_roots(function: Function) -> Roots:
    """For each tensor, view and pointer, the entry parameters its memory may belong to, in their order."""
    parameters = function.body.arguments
    position = {value: number for number, value in enumerate(parameters)}
    found: dict[Value, set[Value]] = {value: {value} for value in parameters if _is_address(value)}
    changed = True

    def flow(targets: list[Value] | tuple[Value, ...], sources: tuple[Value, ...]) -> None:
        nonlocal changed
        for target, source in zip(targets, sources, strict=True):
            if _is_address(target):
                known = found.setdefault(target, set())
                more = found.get(source, set())
                if not more <= known:
                    known |= more
                    changed = True

    while changed:  # once, and again where a loop carries pointers
        changed = False
        for op in walk(function.body):
            if isinstance(op, IfOp):
                for region in op.regions:
                    if region.ops[-1].mnemonic == "yield":
                        flow(op.merged, region.ops[-1].operands)
            elif isinstance(op, ForOp | LoopOp):
                carried = op.body.arguments[1:] if isinstance(op, ForOp) else op.body.arguments
                flow(carried, op.initial)
                for end in _ends(op.body):
                    flow(carried if isinstance(end, ContinueOp) else op.final, end.operands)
                if isinstance(op, ForOp):
                    flow(op.final, tuple(carried))
            else:
                sources = tuple([v for v in op.operands if _is_address(v)])
                for result in op.results:
                    for source in sources:
                        flow((result,), (source,))
    return {value: tuple(sorted(roots, key=position.__getitem__)) for value, roots in found.items()}


def _is_address(value: Value) -> bool:
    kind = value.type
    if isinstance(kind, TileType):
        return isinstance(kind.dtype, PointerType)
    return isinstance(kind, TensorType | ViewType | SparseViewType)


def _ends(body: Block) -> list[Op]:
    """What ends turns of a loop, that of loops inside not counted."""
    found: list[Op] = []
    for op in body.ops:
        if isinstance(op, ContinueOp | BreakOp):
            found.append(op)
        elif isinstance(op, IfOp):
            for region in op.regions:
                found += _ends(region)
    return found
