"""mbarrier objects in shared memory, and the bulk copies that complete on them.

The 64 bits of an object are opaque to programs, so the layout is ours: from the lowest bit, 20 bits of
arrivals still pending in this phase, 20 bits of arrivals a phase expects, 22 bits of bytes still to come
(biased, as completions may come before they are announced), and the parity of the phase. A phase ends when
nothing is pending; then the expected count is pending again. The state that `arrive` gives, and that
`test_wait` takes, is the word as it was.

Copies are done at once, so `try_wait` finds them complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ._ops_memory import spaces_of
from ._semantics import UnsupportedInstruction
from ._spaces import GENERIC, GLOBAL, SHARED
from ._syntax import Address, Instruction, Operand, Sink
from ._translate import Handler, Source, Translator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._code import Step
    from ._lanes import Array, Group, Lanes
    from ._spaces import Space

__all__ = ["HANDLERS", "copy_bulk"]

_WORD = np.dtype(np.uint64)
_COUNT_BITS = 20
_BYTES_BITS = 22
_COUNT = (1 << _COUNT_BITS) - 1
_BIAS = 1 << (_BYTES_BITS - 1)
_PHASE_BIT = 2 * _COUNT_BITS + _BYTES_BITS


def _pack(pending: int, expected: int, to_come: int, phase: int) -> int:
    if pending == 0 and to_come == 0:
        pending, phase = expected, phase ^ 1
    bytes_field = (to_come + _BIAS) & ((1 << _BYTES_BITS) - 1)
    return pending | expected << _COUNT_BITS | bytes_field << (2 * _COUNT_BITS) | phase << _PHASE_BIT


def _unpack(word: int) -> tuple[int, int, int, int]:
    to_come = (word >> (2 * _COUNT_BITS) & ((1 << _BYTES_BITS) - 1)) - _BIAS
    return word & _COUNT, word >> _COUNT_BITS & _COUNT, to_come, word >> _PHASE_BIT & 1


def _each(
    group: Group, space: Space, address: Array, where: Lanes | None, change: Callable[[int, int], int]
) -> Array:
    """Change the words at the addresses, lane after lane; gives the old words."""
    count = group.size if where is None else where.size
    old = np.zeros(count, np.uint64)
    for window, index, which in space.regions(group, group.full(address), where, _WORD, "write"):
        lanes = range(count) if which is None else which.tolist()
        for lane, place in zip(lanes, index.tolist()):
            before = int(window[place])
            old[lane] = before
            window[place] = change(before, lane)
    return old


def _arrive(word: int, count: int, announced: int = 0) -> int:
    pending, expected, to_come, phase = _unpack(word)
    return _pack(max(0, pending - count), expected, to_come + announced, phase)


def _announce(word: int, announced: int) -> int:
    pending, expected, to_come, phase = _unpack(word)
    return _pack(pending, expected, to_come + announced, phase)


def _value(group: Group, source: Source | None, where: Lanes | None, default: int) -> list[int]:
    """An operand as one number per lane that takes part."""
    count = group.size if where is None else where.size
    if source is None:
        return [default] * count
    value = group.full(source.read(group))
    values: list[int] = (value if where is None else value[where]).tolist()
    return values


_IGNORED = frozenset(("b64", "release", "acquire", "relaxed", "cta", "cluster"))


def _mbarrier(t: Translator, instruction: Instruction) -> Step:
    space, rest = spaces_of(instruction.modifiers)
    words = [m for m in rest if m not in _IGNORED]
    operands = list(instruction.operands)
    guard = t.guard(instruction)

    def lanes(group: Group) -> Lanes | None:
        return group.active if guard is None else group.selected(group.registers[guard[0]], guard[1])

    match words:
        case ["init"]:
            return _init(t, operands, space, lanes)
        case ["inval"]:
            return lambda group: None
        case ["arrive"] | ["arrive", "noComplete"] | ["arrive", "expect_tx"]:
            return _arrive_step(t, operands, space, lanes, "expect_tx" in words, guard is not None)
        case ["arrive_drop"] | ["arrive_drop", "noComplete"] | ["arrive_drop", "expect_tx"]:
            return _arrive_step(t, operands, space, lanes, "expect_tx" in words, guard is not None, drop=True)
        case ["expect_tx"] | ["complete_tx"]:
            sign = 1 if words == ["expect_tx"] else -1
            locate, amount = t.address(operands[0]), t.source(operands[1], "b32")

            def announce(group: Group) -> None:
                where = lanes(group)
                values = _value(group, amount, where, 0)
                _each(group, space, locate(group), where, lambda w, n: _announce(w, sign * values[n]))

            return announce
        case ["test_wait" | "try_wait"] | ["test_wait" | "try_wait", "parity"]:
            return _wait(t, operands, space, lanes, words[-1] == "parity", guard is not None)
        case ["pending_count"]:
            destination, state = t.destination(operands[0], "b32"), t.source(operands[1], "b64")

            def pending(group: Group) -> None:
                value = (state.read(group) & np.uint64(_COUNT)).astype(np.uint32)
                if destination is not None:
                    destination.write(group, value)

            return pending
    raise UnsupportedInstruction(f"{instruction.spelling} is not supported")


def _init(
    t: Translator, operands: list[Operand], space: Space, lanes: Callable[[Group], Lanes | None]
) -> Step:
    locate, count = t.address(operands[0]), t.source(operands[1], "b32")

    def step(group: Group) -> None:
        where = lanes(group)
        values = _value(group, count, where, 1)
        # A fresh object waits for all its arrivals in phase 0.
        _each(
            group,
            space,
            locate(group),
            where,
            lambda _, n: values[n] | values[n] << _COUNT_BITS | _BIAS << (2 * _COUNT_BITS),
        )

    return step


def _arrive_step(
    t: Translator,
    operands: list[Operand],
    space: Space,
    lanes: Callable[[Group], Lanes | None],
    announces: bool,
    keep: bool,
    drop: bool = False,
) -> Step:
    has_state = not isinstance(operands[0], Address)
    destination = None
    if has_state and not isinstance(operands[0], Sink):
        destination = t.destination(operands[0], "b64")
    address, *amounts = operands[1:] if has_state else operands
    locate = t.address(address)
    amount = t.source(amounts[0], "b32") if amounts else None

    def step(group: Group) -> None:
        where = lanes(group)
        values = _value(group, amount, where, 0 if announces else 1)

        def change(word: int, lane: int) -> int:
            if drop:
                word -= (1 if announces else values[lane]) << _COUNT_BITS
            return _arrive(word, 1, values[lane]) if announces else _arrive(word, values[lane])

        old = _each(group, space, locate(group), where, change)
        if destination is not None:
            destination.scatter(group, where, old, keep)

    return step


def _wait(
    t: Translator,
    operands: list[Operand],
    space: Space,
    lanes: Callable[[Group], Lanes | None],
    by_parity: bool,
    keep: bool,
) -> Step:
    destination = t.destination(operands[0], "pred")
    locate = t.address(operands[1])
    wanted = t.source(operands[2], "b32" if by_parity else "b64")

    def step(group: Group) -> None:
        where = lanes(group)
        if where is not None and not where.size:
            return
        words = space.load(group, group.full(locate(group)), where, _WORD)
        parity = (words >> np.uint64(_PHASE_BIT)) & np.uint64(1)
        value = group.full(wanted.read(group))
        if where is not None:
            value = value[where]
        seen = value & 1 if by_parity else (value >> np.uint64(_PHASE_BIT)) & np.uint64(1)
        done = parity != seen
        if destination is not None:
            destination.scatter(group, where, np.ascontiguousarray(done), keep)

    return step


# -------------------------------------------------------------------------------- bulk copies


def copy_bulk(t: Translator, instruction: Instruction) -> Step | None:
    """cp.async.bulk between global and shared memory, and cp.async.mbarrier.arrive."""
    words = [m for m in instruction.modifiers[1:] if not m.startswith("L2::")]
    operands = list(instruction.operands)
    guard = t.guard(instruction)

    def lanes(group: Group) -> Lanes | None:
        return group.active if guard is None else group.selected(group.registers[guard[0]], guard[1])

    if words[:2] == ["mbarrier", "arrive"]:
        if "noinc" not in words:
            return None  # it adds one arrival to wait for, which is over at once
        locate = t.address(operands[0])
        space = SHARED if any(w.startswith("shared") for w in words) else GENERIC
        return lambda group: _each(group, space, locate(group), lanes(group), lambda w, _: _arrive(w, 1))
    if words in (["bulk", "commit_group"], ["bulk", "wait_group"], ["bulk", "wait_group", "read"]):
        return None
    spaces = [w for w in words if w in ("global", "shared::cta", "shared::cluster")]
    rest = [w for w in words if w not in spaces]
    if rest not in (["bulk", "mbarrier::complete_tx::bytes"], ["bulk", "bulk_group"]) or len(spaces) != 2:
        raise UnsupportedInstruction(f"{instruction.spelling}: tensor copies are not supported")
    to = GLOBAL if spaces[0] == "global" else SHARED
    origin = GLOBAL if spaces[1] == "global" else SHARED
    destination, source = t.address(operands[0]), t.address(operands[1])
    size = t.source(operands[2], "b32")
    barrier = t.address(operands[3]) if len(rest) == 2 and rest[1].startswith("mbarrier") else None
    unit = np.dtype(np.complex128)

    def step(group: Group) -> None:
        where = lanes(group)
        positions = np.arange(group.size) if where is None else where
        sizes = _value(group, size, where, 0)
        target, start = group.full(destination(group)), group.full(source(group))
        for position, count in zip(positions.tolist(), sizes):
            here = np.array([position])
            steps = np.arange(0, count, 16, dtype=np.uint64)
            for offset in steps:
                values = origin.load(group, start + offset, here, unit)
                to.store(group, target + offset, here, values)
        if barrier is not None:
            _each(group, SHARED, barrier(group), where, lambda w, n: _announce(w, -sizes[n]))

    return step


HANDLERS: dict[str, Handler] = {"mbarrier": _mbarrier}
