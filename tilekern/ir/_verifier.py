"""Whole-function rules: definitions before uses, terminators where they belong."""

from __future__ import annotations

from ..dtypes import float4_e2m1fn
from ..errors import VerifyError
from ._combine import CombineOp
from ._control import BreakOp, ContinueOp, ForOp, IfOp, LoopOp, ReturnOp, YieldOp
from ._op import Block, Function, Op, Value
from ._types import TileType

__all__ = ["verify_function"]

_LOOPS = (ForOp, LoopOp)


def verify_function(function: Function) -> None:
    """Check `function`; raises `VerifyError` naming the first operation at fault."""
    for argument in function.body.arguments:
        if not isinstance(argument.type, TileType) or argument.type.shape:
            raise VerifyError(f"{function.name}: parameter {argument!r} is no scalar")
    _verify_block(function.body, set(), [])


def _verify_block(block: Block, visible: set[Value], enclosing: list[Op]) -> None:
    """`visible` are the values defined before; `enclosing` the operations around, outermost first."""
    if not block.ops:
        owner = enclosing[-1].mnemonic if enclosing else "the function"
        raise VerifyError(f"a block of {owner} is empty; it needs a terminator")
    visible = visible | set(block.arguments)
    last = block.ops[-1]
    for op in block.ops:
        if not visible.issuperset(operands := op.operands):
            value = next(value for value in operands if value not in visible)
            raise op.fail(f"uses {value!r}, which is not defined before it")
        if op.terminator != (op is last):
            raise op.fail("ends its block early" if op.terminator else "ends a block, but is no terminator")
        if op.terminator:
            _verify_terminator(op, enclosing)
        op.verify()
        for region in op.regions:
            _verify_block(region, visible, [*enclosing, op])
        for value in op.results:
            kind = value.type
            if type(kind) is TileType and kind.dtype is float4_e2m1fn and kind.size % 2:
                raise op.fail(f"tiles of {kind.dtype} have an even number of elements, got {kind}")
            if value in visible:
                raise op.fail(f"defines {value!r} a second time")
            visible.add(value)


def _verify_terminator(op: Op, enclosing: list[Op]) -> None:
    """Check that `op` may end a block here and hands over the types its target takes."""
    owner = enclosing[-1] if enclosing else None
    loop = next((o for o in reversed(enclosing) if not isinstance(o, IfOp)), None)
    if isinstance(op, YieldOp):
        if isinstance(owner, CombineOp):
            _check_types(op, op.values, tuple(owner.body.arguments[: len(owner.sources)]))
            return
        if not isinstance(owner, IfOp):
            raise op.fail("only a branch of `if` or the body of a reduction or scan ends with yield")
        _check_types(op, op.values, owner.results)
    elif isinstance(op, ContinueOp):
        if not isinstance(loop, _LOOPS):
            raise op.fail("continue outside of a loop")
        _check_types(op, op.values, loop.initial)
    elif isinstance(op, BreakOp):
        if not isinstance(loop, LoopOp):
            raise op.fail("break outside of `loop`")
        _check_types(op, op.values, loop.results)
    elif isinstance(op, ReturnOp) and loop is not None:
        raise op.fail("return inside of a loop")


def _check_types(op: Op, given: tuple[Value, ...], wanted: tuple[Value, ...]) -> None:
    have, need = [v.type for v in given], [v.type for v in wanted]
    if have != need:
        raise op.fail(
            f"hands over ({', '.join(map(str, have))}), its target takes ({', '.join(map(str, need))})"
        )
