"""How blocks end: branches, calls, returns, barriers, traps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ._builtins import BUILTINS
from ._control_flow import BasicBlock, Ending
from ._semantics import UnsupportedInstruction
from ._syntax import Function, Instruction, RegisterOperand, Symbol, Variable
from ._translate import Source, Translator

if TYPE_CHECKING:
    from ._code import CodeBlock, Finish
    from ._lanes import Group

__all__ = ["finish"]


def finish(t: Translator, basic: BasicBlock) -> Finish:
    """The callable that ends a block."""
    targets = [t.blocks[index] for index in basic.successors]
    match basic.ending:
        case Ending.FALL | Ending.JUMP:
            (target,) = targets
            return lambda group: target
        case Ending.BRANCH:
            assert basic.guard is not None
            return _branch(basic.guard.register.index, basic.guard.negated, *targets)
        case Ending.INDEXED:
            assert basic.ender is not None
            return _indexed(t, basic.ender, targets)
        case Ending.RETURN:
            return lambda group: group.wave.leave(group)
        case Ending.EXIT:
            return _exit
        case Ending.TRAP:
            assert basic.ender is not None
            return _trap(basic.ender)
        case Ending.CALL:
            assert basic.ender is not None
            return _call(t, basic.ender, targets[0])
        case Ending.BARRIER:
            assert basic.ender is not None
            return _barrier(t, basic.ender, targets[0])


def _branch(slot: int, negated: bool, taken: CodeBlock, other: CodeBlock) -> Finish:
    if taken is other:
        return lambda group: taken
    if negated:
        taken, other = other, taken

    def step(group: Group) -> CodeBlock | None:
        predicate = group.registers[slot]
        if predicate.size == 1:
            return taken if predicate[0] else other
        chosen = predicate if group.mask is None else predicate & group.mask
        count = int(np.count_nonzero(chosen))
        if count == group.count:
            return taken
        if count == 0:
            return other
        return group.wave.diverge(group, chosen, count, taken, other)

    return step


def _indexed(t: Translator, instruction: Instruction, targets: list[CodeBlock]) -> Finish:
    index = t.source(instruction.operands[0], "u32")

    def step(group: Group) -> CodeBlock | None:
        value = index.read(group)
        if value.size > 1:
            active = group.active
            used = value if active is None else value[active]
            if int(used.min()) != int(used.max()):
                return group.wave.diverge_many(group, value, targets)
            value = used
        number = int(value[0])
        if number >= len(targets):
            group.wave.fail(group, f"brx.idx with index {number}; there are {len(targets)} branch targets")
        return targets[number]

    return step


def _exit(group: Group) -> None:
    group.wave.exit(group)


def _trap(instruction: Instruction) -> Finish:
    def step(group: Group) -> CodeBlock | None:
        group.wave.fail(group, f"the kernel executed {instruction.opcode!r}")

    return step


# ------------------------------------------------------------------------------------- calls


def _call(t: Translator, instruction: Instruction, following: CodeBlock) -> Finish:
    call = instruction.call
    assert call is not None
    arguments: list[Variable | Source] = []
    for operand in call.arguments:
        if isinstance(operand, Symbol) and isinstance(operand.target, Variable):
            arguments.append(operand.target)
        elif isinstance(operand, RegisterOperand):
            arguments.append(t.source(operand, operand.register.type))
        else:
            arguments.append(t.source(operand, "b32"))
    results: list[Variable | int | None] = []
    for operand in call.returns:
        if isinstance(operand, Symbol) and isinstance(operand.target, Variable):
            results.append(operand.target)
        elif isinstance(operand, RegisterOperand):
            results.append(operand.register.index)
        else:
            results.append(None)
    returns = tuple(results)
    callee = call.callee
    if isinstance(callee, Symbol) and isinstance(callee.target, Function):
        function = callee.target.resolved
        if function.body is None:
            return _builtin(t, instruction, function, arguments, returns, following)
        if not _fits(function, len(arguments)) or len(returns) > len(function.returns):
            raise UnsupportedInstruction(
                f"{function.name} takes {len(function.parameters)} arguments and gives "
                f"{len(function.returns)} results; {len(arguments)} and {len(returns)} are written"
            )
        code = t.program.code_of(function)
        return lambda group: group.wave.call(group, code, arguments, returns, following)
    if isinstance(callee, Symbol):
        raise UnsupportedInstruction(f"{callee.target.name} is not a function")
    pointer = t.source(callee, "b64")

    def indirect(group: Group) -> CodeBlock | None:
        value = pointer.read(group)
        active = group.active
        used = value if active is None or value.size == 1 else value[active]
        first = int(used[0])
        if used.size > 1 and (used != used[0]).any():
            # Lanes that call another function wait here, and call it next.
            group.wave.diverge_here(group, value)
            return None
        code = group.wave.launch.program.function_at(first)
        if code is None:
            group.wave.fail(group, f"a call of {first:#x}, which is not the address of a function")
        if not _fits(code.function, len(arguments)):
            group.wave.fail(
                group,
                f"a call of {code.name} with {len(arguments)} arguments; "
                f"it takes {len(code.function.parameters)}",
            )
        return group.wave.call(group, code, arguments, returns, following)

    return indirect


def _fits(function: Function, count: int) -> bool:
    """Whether a call with this many arguments is one of the function: nobody passes an empty `[]`."""
    formal = len(function.parameters)
    return count == formal or (function.is_variadic and count == formal - 1)


def _builtin(
    t: Translator,
    instruction: Instruction,
    function: Function,
    arguments: list[Variable | Source],
    returns: tuple[Variable | int | None, ...],
    following: CodeBlock,
) -> Finish:
    run = BUILTINS.get(function.name)
    if run is None:
        raise UnsupportedInstruction(
            f"function {function.name!r} is not defined in this module, and the host device has none of "
            f"that name; it has {', '.join(sorted(BUILTINS))}"
        )
    parameters = function.parameters
    if len(arguments) != len(parameters):
        raise UnsupportedInstruction(
            f"{function.name} takes {len(parameters)} arguments; {len(arguments)} are written"
        )

    def step(group: Group) -> CodeBlock | None:
        values = []
        for argument, parameter in zip(arguments, parameters):
            if isinstance(argument, Source):
                values.append(argument.read(group))
            else:
                dtype = np.dtype(f"u{parameter.element_bytes}")
                values.append(group.outgoing[argument].read(0, dtype))
        result = run(group, values)
        group.outgoing = {}
        group.wave.deliver(group, returns, [result])
        return following

    return step


# ---------------------------------------------------------------------------------- barriers


def _barrier(t: Translator, instruction: Instruction, following: CodeBlock) -> Finish:
    modifiers = [m for m in instruction.modifiers if m not in ("aligned", "cta")]
    operands = instruction.operands
    if modifiers[:1] == ["warp"]:
        if modifiers != ["warp", "sync"] or len(operands) != 1:
            raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
        mask = t.source(operands[0], "b32")
        return lambda group: group.wave.barriers.sync_warp(group, mask.read(group), following)
    if modifiers[:1] == ["cluster"]:
        kind = [m for m in modifiers[1:] if m not in ("acquire", "release", "relaxed")]
        if kind == ["arrive"]:
            return lambda group: group.wave.barriers.arrive_cluster(group, following)
        if kind == ["wait"]:
            return lambda group: group.wave.barriers.wait_cluster(group, following)
        raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
    if modifiers == ["sync"] and 1 <= len(operands) <= 2:
        number = t.source(operands[0], "b32")
        count = t.source(operands[1], "b32") if len(operands) > 1 else None
        return lambda group: group.wave.barriers.sync(group, number, count, following)
    if modifiers == ["arrive"] and len(operands) == 2:
        which, threads = t.source(operands[0], "b32"), t.source(operands[1], "b32")
        return lambda group: group.wave.barriers.arrive(group, which, threads, following)
    if modifiers[:1] == ["red"] and tuple(modifiers[1:]) in (
        ("popc", "u32"),
        ("and", "pred"),
        ("or", "pred"),
    ):
        if not 3 <= len(operands) <= 4:
            raise UnsupportedInstruction(f"{instruction.spelling} takes 3 or 4 operands")
        destination = t.destination(operands[0], modifiers[2])
        number = t.source(operands[1], "b32")
        count = t.source(operands[2], "b32") if len(operands) == 4 else None
        predicate = t.source(operands[-1], "pred")
        reduction = modifiers[1]
        return lambda group: group.wave.barriers.reduce(
            group, number, count, predicate.read(group), reduction, destination, following
        )
    raise UnsupportedInstruction(f"{instruction.spelling} is not supported")
