"""Basic blocks of a function, the order that makes diverged threads meet again, and live registers.

Blocks
    end at branches, calls, barriers and returns. Instructions that exchange values inside a warp begin a
    block, since threads may have to wait there for the rest of their warp. A guarded instruction of these
    kinds (`@p ret`) gets a block of its own, entered by a conditional branch.

Order
    Groups of threads that took different ways wait at block starts; the group at the lowest block runs. So
    the numbering decides where they meet. The text's order is not enough: compilers move unlikely code out of
    line. We number blocks by a weak topological order (`_loops`): a block comes after all that lead to it,
    except by back edges, and the blocks of a loop are adjacent. Then whoever leaves a branch or a loop early
    waits at its end until the others come. Among blocks that are not ordered by this the text's order holds.

Liveness
    A register that no waiting thread will read before writing it may be overwritten in all lanes at once,
    without a mask. That is true of most registers a compiler makes, so it is worth a data-flow analysis; sets
    of registers are Python integers with a bit per register.

Spinning
    A loop that reads memory with an atomic or an ordered load may be waiting for another thread. Threads in
    such a loop let others run after a few turns; other loops keep the machine much longer, as every switch
    breaks up a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ._loops import nest_loops
from ._syntax import (
    Address,
    Function,
    Immediate,
    LabelReference,
    Pair,
    RegisterOperand,
    Symbol,
    Tuple,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ._syntax import Instruction, Operand

__all__ = ["BasicBlock", "Ending", "FlowGraph", "build_flow_graph", "carry_bit", "has_destination"]


class Ending(Enum):
    """How a block ends."""

    FALL = "fall"
    JUMP = "jump"
    BRANCH = "branch"
    """Conditional: successors are (taken, not taken)."""
    INDEXED = "indexed"
    """`brx.idx`."""
    CALL = "call"
    BARRIER = "barrier"
    RETURN = "return"
    EXIT = "exit"
    TRAP = "trap"


@dataclass(slots=True, eq=False)
class BasicBlock:
    """Instructions that run one after another.

    Attributes:
        instructions: all but the one that ends the block.
        ender: the instruction that ends it, where one does.
        guard: predicate of a `BRANCH`; the ender may be the guarded instruction itself.
        successors: indices of blocks.
        order: position in the weak topological order.
        live_in: registers read later, at the block's start.
        spins: the head of a loop that may wait for other threads.
    """

    index: int
    instructions: list[Instruction] = field(default_factory=list)
    ending: Ending = Ending.FALL
    ender: Instruction | None = None
    guard: RegisterOperand | None = None
    successors: list[int] = field(default_factory=list)
    order: int = 0
    live_in: int = 0
    spins: bool = False


@dataclass(slots=True)
class FlowGraph:
    """The blocks of a function, and the registers that any instruction reads."""

    blocks: list[BasicBlock]
    read: int


_ENDERS = {
    "bra": Ending.JUMP,
    "brx": Ending.INDEXED,
    "ret": Ending.RETURN,
    "exit": Ending.EXIT,
    "trap": Ending.TRAP,
    "brkpt": Ending.TRAP,
    "call": Ending.CALL,
    "bar": Ending.BARRIER,
    "barrier": Ending.BARRIER,
}
_WARP_WIDE = frozenset(
    {"shfl", "vote", "match", "redux", "elect", "mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix"}
)
_NO_DESTINATION = frozenset(
    {"st", "red", "stmatrix", "prefetch", "prefetchu", "applypriority", "discard", "cp", "multimem"}
    | {"bar", "barrier", "membar", "fence", "nanosleep", "griddepcontrol", "setmaxnreg", "pmevent"}
    | {"bra", "brx", "ret", "exit", "trap", "brkpt", "stackrestore"}
)


def has_destination(instruction: Instruction) -> bool:
    """Whether the first operand is a result."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode in ("bar", "barrier"):
        return "red" in modifiers
    if opcode in ("mbarrier", "wmma"):
        return not isinstance(instruction.operands[0], Address)
    return opcode not in _NO_DESTINATION


def carry_bit(function: Function) -> int:
    """The bit of the carry flag, which counts as one more register."""
    return 1 << len(function.registers)


def build_flow_graph(function: Function) -> FlowGraph:
    """Cut a function's body into blocks and analyse them."""
    blocks = _cut(function)
    _number(blocks)
    read = _find_live(function, blocks)
    return FlowGraph(blocks, read)


# ------------------------------------------------------------------------------------ blocks


def _begins_block(instruction: Instruction) -> bool:
    return instruction.opcode in _WARP_WIDE


def _cut(function: Function) -> list[BasicBlock]:
    body = function.body or []
    leaders = {0, *(label.position for label in function.labels)}
    for position, instruction in enumerate(body):
        special = instruction.opcode in _ENDERS
        if special:
            leaders.add(position + 1)
        if _begins_block(instruction) or (special and instruction.guard and instruction.opcode != "bra"):
            leaders.add(position)
            if instruction.guard:
                leaders.add(position + 1)
    leaders.add(len(body))  # falling off the end returns
    blocks: list[BasicBlock] = []
    entry_at: dict[int, int] = {}
    guarded: list[BasicBlock] = []
    starts = sorted(leaders)
    for start, end in zip(starts, [*starts[1:], len(body) + 1]):
        first = body[start] if start < len(body) else None
        entry_at[start] = len(blocks)
        if (
            first is not None
            and first.guard is not None
            and first.opcode != "bra"
            and (first.opcode in _ENDERS or _begins_block(first))
        ):
            gate = BasicBlock(len(blocks), ending=Ending.BRANCH, guard=first.guard, ender=first)
            blocks.append(gate)
            guarded.append(gate)
        block = BasicBlock(len(blocks), body[start:end])
        blocks.append(block)
        if start == len(body):
            block.ending = Ending.RETURN
        elif block.instructions and block.instructions[-1].opcode in _ENDERS:
            block.ender = block.instructions.pop()
            block.ending = _ENDERS[block.ender.opcode]
            if block.ending is Ending.JUMP and block.ender.guard is not None:
                block.ending, block.guard = Ending.BRANCH, block.ender.guard
    for block in blocks:
        _connect(block, blocks, entry_at)
    return blocks


def _connect(block: BasicBlock, blocks: list[BasicBlock], entry_at: dict[int, int]) -> None:
    following = block.index + 1
    ender = block.ender
    if block.ending is Ending.BRANCH:
        assert ender is not None
        if ender.opcode == "bra":
            block.successors = [entry_at[_target(ender)], following]
        else:  # a guarded instruction: it stands in the next block, or is skipped
            block.successors = [following, following + 1]
    elif block.ending is Ending.JUMP:
        assert ender is not None
        block.successors = [entry_at[_target(ender)]]
    elif block.ending is Ending.INDEXED:
        assert ender is not None
        assert ender.targets is not None
        block.successors = [entry_at[label.position] for label in ender.targets.labels]
    elif block.ending in (Ending.FALL, Ending.CALL, Ending.BARRIER):
        block.successors = [following]


def _target(instruction: Instruction) -> int:
    operand = instruction.operands[0]
    assert isinstance(operand, LabelReference)
    return operand.label.position


# ------------------------------------------------------------------------------------- order


def _number(blocks: list[BasicBlock]) -> None:
    """Give every block its `order`, and mark the loops that may spin."""
    nest = nest_loops([block.successors for block in blocks])
    waits = [0]  # how many blocks before each position may wait
    for order, number in enumerate(nest.ordered):
        block = blocks[number]
        block.order = order
        waits.append(waits[-1] + any(map(_may_wait, _with_ender(block))))
    for head, end in nest.ends.items():
        blocks[head].spins = waits[end] > waits[blocks[head].order]


_ORDERED_LOADS = frozenset(("volatile", "relaxed", "acquire", "mmio", "cv"))


def _may_wait(instruction: Instruction) -> bool:
    """Whether a loop around this instruction may be waiting for another thread."""
    opcode = instruction.opcode
    if opcode == "atom":
        return True
    if opcode in ("nanosleep", "mbarrier"):
        return True
    if instruction.call is not None:
        callee = instruction.call.callee
        return isinstance(callee, Symbol) and isinstance(callee.target, Function) and _waits(callee.target)
    return opcode == "ld" and not _ORDERED_LOADS.isdisjoint(instruction.modifiers)


def _waits(function: Function) -> bool:
    """Whether a function may wait for another thread, or read what such a loop waits for."""
    function = function.resolved
    if function.may_wait is None:
        function.may_wait = False  # for functions that call themselves
        function.may_wait = any(_may_wait(instruction) for instruction in function.body or ())
    return function.may_wait


# ---------------------------------------------------------------------------------- liveness


def _find_live(function: Function, blocks: list[BasicBlock]) -> int:
    """Fill in `live_in`; gives the registers read anywhere."""
    carry = carry_bit(function)
    read_anywhere = 0
    reads = [0] * len(blocks)
    kills = [0] * len(blocks)
    for block in blocks:
        read = killed = 0
        for instruction in _with_ender(block):
            used, defined = _uses(instruction, carry)
            read_anywhere |= used
            read |= used & ~killed
            if instruction.guard is None:
                killed |= defined
            else:
                read |= defined & ~killed  # without the predicate the old value stays
        if block.guard is not None:
            read |= (1 << block.guard.register.index) & ~killed
            read_anywhere |= 1 << block.guard.register.index
        reads[block.index], kills[block.index] = read, killed
        block.live_in = read
    predecessors: list[list[int]] = [[] for _ in blocks]
    for block in blocks:
        for successor in block.successors:
            predecessors[successor].append(block.index)
    work = sorted(range(len(blocks)), key=lambda n: -blocks[n].order)
    queued = set(work)
    work.reverse()
    while work:
        number = work.pop()
        queued.discard(number)
        block = blocks[number]
        out = 0
        for successor in block.successors:
            out |= blocks[successor].live_in
        live = reads[number] | (out & ~kills[number])
        if live != block.live_in:
            block.live_in = live
        else:
            continue
        for predecessor in predecessors[number]:
            if predecessor not in queued:
                queued.add(predecessor)
                work.append(predecessor)
    return read_anywhere


def _with_ender(block: BasicBlock) -> Iterator[Instruction]:
    yield from block.instructions
    if block.ender is not None and block.ending is not Ending.BRANCH:
        yield block.ender


def _uses(instruction: Instruction, carry: int) -> tuple[int, int]:
    """Registers read and written, as bit sets."""
    read = written = 0
    operands: Sequence[Operand] = instruction.operands
    call = instruction.call
    if call is not None:
        read |= _bits((call.callee, *call.arguments))
        written |= _bits(call.returns)
    elif operands and has_destination(instruction):
        written |= _bits(operands[:1])
        read |= _bits(operands if instruction.opcode == "wgmma" else operands[1:])
    else:
        read |= _bits(operands)
    if instruction.guard is not None:
        read |= 1 << instruction.guard.register.index
    if instruction.opcode in ("addc", "subc", "madc"):
        read |= carry
    if "cc" in instruction.modifiers:
        written |= carry
    return read, written


def _bits(operands: Iterable[Operand | None]) -> int:
    bits = 0
    for operand in operands:
        if isinstance(operand, RegisterOperand):
            bits |= 1 << operand.register.index
        elif isinstance(operand, Tuple):
            bits |= _bits(operand.elements)
        elif isinstance(operand, Address):
            if operand.base is not None and not isinstance(operand.base, Immediate):
                bits |= _bits((operand.base,))
        elif isinstance(operand, Pair):
            bits |= _bits((operand.first, operand.second))
    return bits
