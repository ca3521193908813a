"""Launch functions written out as straight-line code for the Python types of their arguments.

Checking, ordering, packing and launching are a few operations per argument. Done by loops over plans, the tuples and
calls between them cost as much as the launch itself; so the source of a function is written for each tuple of argument
types, and compiled once.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from ..memory import Buffer, Mut, Read, Tensor, Usage
from ..native import native
from ..scheduling import Stream
from ._arguments import INT, MUT, OTHER, READ
from ._context import ExecutionContext
from ._declared import declare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._arguments import LaunchPlan

__all__ = ["LaunchFunction", "Unpack", "write_bound_launch", "write_launch", "write_unpack"]

if native is not None:
    native.learn(Read, Mut, Tensor, Buffer, Usage, Stream, ExecutionContext)

Unpack = Callable[[Any, Any], tuple[Any, Any, Any, Any]]
"""(args, device) -> (values, outputs, read buffers, written buffers)."""
LaunchFunction = Callable[[Any, Any, Any], Any]
"""(args, ctx, config) -> outputs, or UNPREPARED. A careful one takes a checked config."""


def write_unpack(plan: LaunchPlan) -> Unpack:
    """Write the function that checks arguments of the plan's types and takes them apart."""
    code = _Lines(plan)
    if plan.steps:
        code.lines.append(f"{several([f'a{i}' for i in range(len(plan.steps))])} = args")
    code.check()
    code.lines.append(f"return {code.values}, {code.outputs}, {several(code.reads)}, {several(code.writes)}")
    unpack: Unpack = written_function(
        "unpack(args, device)", code.lines, code.names, f"launch of {plan.kernel}"
    )
    return unpack


def write_launch(
    plan: LaunchPlan, types: Sequence[type], names: dict[str, Any]
) -> tuple[LaunchFunction, LaunchFunction]:
    """Write the functions that check, order, pack and launch arguments of `types`: a quick one and a careful one.

    The quick one, (args, ctx, config) -> outputs, is for memory that nobody else knows and numbers that pack as they
    are. Given arguments of other types, another device, or another config than the one checked last, it hands over to
    `launch_anew`; otherwise, before anything is noted, to the careful one. That is (args, ctx, checked) -> outputs and
    asks nothing that another thread might have changed since: two threads with a config each would else send one
    another back for ever, as each waits for the lock in which the other goes on.

    `names` holds what they refer to: `own_device`, `loaded`, `driver`, `block`, `launch_anew`, `order_read`,
    `order_write`, `check_aliases`.
    """
    names = {**names, "pack_errors": (struct.error, OverflowError)}
    careful = _write_launch(plan, types, names, is_quick=False)
    names["launch_with_care"] = careful
    return _native_launch(plan, types, names) or _write_launch(plan, types, names, is_quick=True), careful


def _has_native() -> bool:
    return native is not None and native.knows(Tensor)


def _native_launch(plan: LaunchPlan, types: Sequence[type], names: dict[str, Any]) -> LaunchFunction | None:
    """The quick function as the compiled module has it; None where there is none for these types.

    It packs tensors, and what is exactly an int, a bool or a float, on devices that do not check.
    """
    loaded, block = names["loaded"], names["block"]
    if not _has_native() or len(types) > native.MAX_ARGUMENTS or block.size_bytes > native.MAX_BLOCK_BYTES:
        return None
    if getattr(names["driver"], "checker", None) is not None:
        return None
    steps = []
    for (code, low, high, _, _), cls, parameter in zip(plan.steps, types, loaded.info.parameters):
        place = parameter.size_bytes, parameter.offset_bytes
        if code in (READ, MUT):
            steps.append((cls, native.READS if code == READ else native.WRITES, *place, 0, 0, 0.0))
        elif code == INT and cls in (int, bool):
            steps.append((cls, native.INTEGER, *place, int(low), int(high), 0.0))
        elif code == OTHER and cls is float and high:
            steps.append((cls, native.FLOAT, *place, 0, 0, high))
        else:
            return None
    functions = (names[name] for name in ("launch_anew", "launch_with_care", "order_read", "order_write"))
    launch: LaunchFunction = native.QuickLaunch(
        loaded, names["own_device"], *functions, block.buffer, tuple(steps)
    )
    return launch


def _write_launch(
    plan: LaunchPlan, types: Sequence[type], names: dict[str, Any], *, is_quick: bool
) -> LaunchFunction:
    code = _Lines(plan)
    code.names.update(names)
    for i, cls in enumerate(types):
        code.names[f"type{i}"] = cls
    count = len(types)
    code.lines.append("device = ctx.device")
    if is_quick:
        code.lines += [
            "checked = loaded.checked",
            f"if config != checked[0] or device is not own_device or len(args) != {count}: "
            "return launch_anew(args, ctx, config)",
        ]
    if count:
        code.lines.append(f"{several([f'a{i}' for i in range(count)])} = args")
    if count and is_quick:
        others = " or ".join(f"type(a{i}) is not type{i}" for i in range(count))
        code.lines.append(f"if {others}: return launch_anew(args, ctx, config)")
    code.check(is_quick=is_quick)
    pairs = [f"{w} is {o}" for n, w in enumerate(code.writes) for o in (*code.writes[n + 1 :], *code.reads)]
    code.names["buffer"] = code.names["block"].buffer
    code.names["pack_into"] = plan.struct.pack_into
    pack = [f"pack_into(buffer, 0, {', '.join(code.value_list)})"] if count else []
    start = "result = (checked[1].get(stream._launch_key) or loaded.bind_on(stream, checked))()"
    declaring = []
    if getattr(names["driver"], "checker", None) is not None:
        code.names["declare"] = declare
        reads, writes = ([b.replace("b", "t") for b in some] for some in (code.reads, code.writes))
        declaring = [f"declare(block, {several(reads)}, {several(writes)})"]
    result = f"return {code.outputs}"
    if is_quick:
        enqueue = [*pack, *_order_lines(code.reads, code.writes, is_plain=True), *declaring, start]
        plain = [f"{b}.plain_on is device" for b in (*code.reads, *code.writes)]
        plain += [pair.replace(" is ", " is not ") for pair in pairs]
        lines = [*_enqueue_lines(enqueue), result]
        if plain:
            lines = [f"if {' and '.join(plain)}:", *(f"    {line}" for line in lines)]
        # Nothing but packing raises pack_errors.
        code.lines += [
            "try:",
            *(f"    {line}" for line in _under_lock(lines)),
            "except pack_errors: pass",
            "return launch_with_care(args, ctx, checked)",
        ]
    else:
        if len(code.reads) + len(code.writes) > 1:
            # Borrowed memory may come in through two buffers.
            pairs += [f"{w}.retained_on_use" for w in code.writes]
        if pairs:
            code.lines.append(f"if {' or '.join(pairs)}: check_aliases(loaded, args, ())")
        enqueue = [*_order_lines(code.reads, code.writes), *pack, *declaring, start]
        code.lines += [*_under_lock(_enqueue_lines(enqueue)), result]
    launch: LaunchFunction = written_function(
        f"launch(args, ctx, {'config' if is_quick else 'checked'})",
        code.lines,
        code.names,
        f"launch of {plan.kernel}",
    )
    return launch


def write_bound_launch(
    kernel: str, reads: Sequence[Buffer], writes: Sequence[Buffer], names: dict[str, Any]
) -> LaunchFunction:
    """Write the function that launches packed arguments over these buffers.

    `names` holds what it refers to: `own_device`, `loaded`, `driver`, `outputs`, `launches`, `bind_on`,
    `refuse_device`, `refuse_freed`, `order_read`, `order_write`.
    """
    read_names = [f"r{i}" for i in range(len(reads))]
    write_names = [f"w{i}" for i in range(len(writes))]
    names = {**names, **dict(zip(read_names, reads)), **dict(zip(write_names, writes))}
    lines = [
        "device = ctx.device",
        "if device is not own_device: refuse_device(device)",
        *(f"if {name}.address < 0: refuse_freed()" for name in (*read_names, *write_names)),
        *_under_lock(
            _enqueue_lines(
                [
                    *_order_lines(read_names, write_names),
                    "result = (launches.get(stream._launch_key) or bind_on(stream))()",
                ]
            )
        ),
        "return outputs",
    ]
    launch: LaunchFunction = written_function(
        "launch(args, ctx, config)", lines, names, f"bound launch of {kernel}"
    )
    if not _has_native() or len(reads) + len(writes) > native.MAX_ARGUMENTS:
        return launch
    others = (names[name] for name in ("order_read", "order_write", "outputs", "launches", "bind_on"))
    quick: LaunchFunction = native.QuickBoundLaunch(
        names["loaded"], names["own_device"], launch, *others, tuple(reads), tuple(writes)
    )
    return quick


def _under_lock(body: Sequence[str]) -> list[str]:
    # Not `acquire()` and `try`: a KeyboardInterrupt may come in between.
    return [
        "stream = ctx.stream",
        "with device._launch_lock:",
        *(f"    {line}" for line in body),
    ]


def _enqueue_lines(enqueue: Sequence[str]) -> list[str]:
    """Lines that enqueue a kernel, the last of them giving `result`, and note that it was."""
    *before, start = enqueue
    return [
        *before,
        "dirty = stream._dirty",
        "stream._dirty = True",  # both at once, as an interrupt may come behind the driver's call
        "stream._retained.append(loaded)",
        start,
        "if result:",
        "    stream._dirty = dirty",
        "    stream._retained.pop()",
        "    driver.launch_failed(result)",
    ]


def _order_lines(reads: Sequence[str], writes: Sequence[str], *, is_plain: bool = False) -> list[str]:
    """`order_uses`, with the case of one stream written out. `is_plain`: all are known to be, under the lock."""
    lines = ["number = stream._next"] if reads or writes else []
    for buffer in reads:
        alone = "" if is_plain else f" and {buffer}.plain_on is device"
        lines += [
            f"usage = {buffer}.usage",
            # A write clears quick_reader, so a read noted on this stream has waited for the last write.
            f"if usage.quick_reader is stream{alone}: usage.read_number = number",
            f"else: order_read(stream, {buffer})",
        ]
    for buffer in writes:
        alone = "" if is_plain else f" and {buffer}.plain_on is device"
        lines += [
            f"usage = {buffer}.usage",
            f"if usage.write_stream is stream and usage.read_stream is None{alone}: usage.write_number = number",
            f"else: order_write(stream, {buffer})",
        ]
    return lines


def several(items: Sequence[str]) -> str:
    """The source of a tuple."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


class _Lines:
    """The source of a function over arguments of known types."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"plan": plan}
        self.value_list: list[str] = []
        self.output_list: list[str] = []
        self.reads: list[str] = []
        self.writes: list[str] = []

    @property
    def values(self) -> str:
        return several(self.value_list)

    @property
    def outputs(self) -> str:
        return several(self.output_list)

    def check(self, *, is_quick: bool = False) -> None:
        """Lines that check each argument `a0`, `a1`, ... and name its value, output and buffer.

        The quick ones leave out what is seen while packing, or is asked of the buffers.
        """
        for i, (code, low, high, extra, _) in enumerate(self.plan.steps):
            if code in (READ, MUT):
                self.lines += [f"t{i} = a{i}.tensor", f"b{i} = t{i}._buffer"]
                if not is_quick:
                    self.lines.append(
                        f"if b{i}.device is not device or b{i}.address < 0: plan.check_tensor({i}, t{i}, device)"
                    )
                self.value_list.append(f"t{i}._address")
                self.output_list.append(f"t{i}")
                (self.reads if code == READ else self.writes).append(f"b{i}")
                continue
            self.output_list.append(f"a{i}")
            if code == OTHER:
                if is_quick and high:  # packing refuses a float that is too large
                    self.value_list.append(f"a{i}")
                    continue
                self.names[f"convert{i}"] = extra
                if high:  # a plain float in range needs no conversion
                    self.lines.append(f"v{i} = a{i} if {low!r} <= a{i} <= {high!r} else convert{i}(a{i})")
                else:
                    self.lines.append(f"v{i} = convert{i}(a{i})")
                self.value_list.append(f"v{i}")
            elif is_quick and high == extra:  # packing refuses a negative number, or one that is too large
                self.value_list.append(f"a{i}")
            else:
                self.lines.append(f"if not {low} <= a{i} <= {high}: raise plan.overflow({i}, a{i})")
                self.value_list.append(f"a{i} & {extra}" if low < 0 else f"a{i}")


@functools.lru_cache(512)
def _compiled(source: str, place: str) -> CodeType:
    """The code of the one function in `source`, as one inside of another: those at the top live for ever in 3.13t."""
    code = compile(f"def outer():\n    {source.replace(chr(10), chr(10) + '    ')}", place, "exec")
    for _ in range(2):
        code = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return code


def written_function(signature: str, lines: Sequence[str], names: dict[str, Any], what: str) -> Any:
    """The function with these lines as its body. Equal sources are compiled once."""
    source = f"def {signature}:\n    " + "\n    ".join(lines)
    return FunctionType(_compiled(source, f"<{what}>"), names, signature.partition("(")[0])
