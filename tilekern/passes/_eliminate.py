"""Doing nothing twice, and nothing for nobody: common subexpressions and dead code."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Block, ForOp, Function, IfOp, Op, Value
from ._pass import Pass

__all__ = ["EliminateCommon", "EliminateDead"]


@dataclass(frozen=True)
class EliminateCommon(Pass):
    """Use an earlier result where an operation without effects would compute it again.

    Matches operations of one class, operands, attributes and result types, the earlier one in the same
    block or one around it. Refuses operations with regions, and everything with an effect.
    """

    name = "eliminate-common"

    def run(self, function: Function) -> bool:
        replaced: dict[Value, Value] = {}
        _common(function.body, {}, replaced)
        return bool(replaced)


def _common(block: Block, known: dict[object, Op], replaced: dict[Value, Value]) -> None:
    known = dict(known)
    kept: list[Op] = []
    for op in block.ops:
        op.replace_operands(replaced)
        for region in op.regions:
            _common(region, known, replaced)
        if op.effect == "none" and not op.regions and op.results:
            types = tuple([v.type for v in op.results])
            # repr tells 1 from 1.0 and True, and 0.0 from -0.0
            attributes = op.attributes
            key = (type(op), op.operands, repr(attributes) if attributes else "", types)
            first = known.get(key)
            if first is not None:
                replaced.update(zip(op.results, first.results, strict=True))
                continue
            known[key] = op
        kept.append(op)
    block.ops = kept


@dataclass(frozen=True)
class EliminateDead(Pass):
    """Remove operations whose results nobody uses.

    Matches operations without effects, loads, and `if` and `for` that hold nothing else. Refuses stores,
    assertions, and `loop`, which might not end.
    """

    name = "eliminate-dead"

    def run(self, function: Function) -> bool:
        changed = False
        while _dead(function.body, _uses(function.body)):
            changed = True
        return changed


def _uses(block: Block) -> set[Value]:
    used: set[Value] = set()
    for op in block.ops:
        used.update(op.operands)
        for region in op.regions:
            used |= _uses(region)
    return used


def _dead(block: Block, used: set[Value]) -> bool:
    changed = False
    kept: list[Op] = []
    for op in reversed(block.ops):
        if _is_removable(op) and used.isdisjoint(op.results):
            changed = True
            continue
        for region in op.regions:
            changed |= _dead(region, used)
        kept.append(op)
    kept.reverse()
    block.ops = kept
    return changed


def _is_removable(op: Op) -> bool:
    if isinstance(op, IfOp | ForOp):
        return all(
            inner.mnemonic in ("yield", "continue") or _is_removable(inner)
            for region in op.regions
            for inner in region.ops
        ) and not (isinstance(op, IfOp) and any(_leaves(region) for region in op.regions))
    return op.effect in ("none", "read")


def _leaves(block: Block) -> bool:
    """True when a branch goes on with a loop's next turn instead of behind its `if`."""
    last = block.terminator
    return last is not None and last.mnemonic != "yield"
