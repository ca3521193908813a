"""What the functions of this package share: operands that may still be operations, outputs, checks, tile sides."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import cuda_async as ca
from cuda_async import DeviceOp, Tensor
from cuda_async.ops import check_aliases

from ..errors import KernelArgumentError
from ..jit._specialize import layout_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..jit import ByTarget, Kernel

__all__ = [
    "FLOATS",
    "INT32",
    "INTEGERS",
    "LARGEST_FLOAT32",
    "LONGEST_ROW",
    "Operand",
    "check_choice",
    "check_dtype",
    "check_flags",
    "check_rows",
    "check_shape",
    "first_of",
    "floor_power_of_two",
    "following",
    "is_count",
    "is_number",
    "key_of",
    "mutable",
    "occupancy_of",
    "output",
    "power_of_two",
    "row_tile",
    "rows_of",
    "shape_error",
    "tuned",
    "vector_tile",
    "viewed",
    "with_later",
    "with_tensors",
]

T = TypeVar("T")

Operand = Tensor | DeviceOp[Tensor]
"""A tensor, or an operation that yields one, which then runs first, on the same stream."""

Types = tuple[np.dtype[np.generic], ...]

FLOATS: Types = (ca.bfloat16, ca.float32, ca.float16)
INT32: Types = (ca.int32,)
INTEGERS: Types = (ca.int32, ca.int64)

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

LONGEST_ROW = 8192
"""Columns that one tile holds; longer rows are gone over in chunks."""


def with_tensors(
    name: str,
    build: Callable[..., DeviceOp[T]],
    written: Mapping[str, Tensor | None],
    *,
    optional: int = 0,
    in_place: bool = False,
    **operands: Operand | None,
) -> DeviceOp[T]:
    """`build(*tensors)`: now if all operands are tensors, so that mistakes show at the call, else when they are there.

    What a kernel would refuse of memory is refused before: the kernel knows only its own names, and the second one
    of a function is built when the first is under way. See `check_operands`.

    Args:
        name: the function, as messages call it; the keywords are what they call its parameters.
        written: tensors to write, where the caller gave some, by parameter.
        operands: what it reads, in the order that `build` takes.
        optional: how many of them, the last ones, may be None, and stay it.
        in_place: the first of them is written.
    """
    outputs: dict[str, Tensor] = {}
    for parameter, tensor in written.items():
        if isinstance(tensor, Tensor):
            outputs[parameter] = tensor
        elif tensor is not None:
            raise TypeError(f"{name}: {parameter} is a tensor that exists, got {type(tensor).__name__}")
    there: dict[str, Tensor] = {}
    pending: list[DeviceOp[Tensor]] = []
    for position, (parameter, operand) in enumerate(operands.items()):
        if type(operand) is Tensor:
            there[parameter] = operand
        elif isinstance(operand, DeviceOp):
            pending.append(operand)
        elif operand is not None or position < len(operands) - optional:
            hint = ""
            if isinstance(operand, ca.Partition | ca.MappedPartition | ca.Mut):
                hint = "; get the tensor back with .unpartition() (the kernels in tilekern.kernels.raw take partitions)"
            elif isinstance(operand, np.ndarray):
                hint = "; bring it over with ca.from_host(array)"
            elif isinstance(operand, ca.DeviceFuture):
                hint = "; await it first, or give the operation in place of its start()"
            raise _no_operand(name, parameter, "got", operand, hint)
    changed = next(iter(operands)) if in_place else None
    check_operands(name, outputs, there, changed)
    if not pending:
        return build(*operands.values())

    def resolved(values: list[Tensor]) -> DeviceOp[T]:
        made = iter(values)
        tensors = {p: next(made) if isinstance(o, DeviceOp) else o for p, o in operands.items()}
        for parameter, value in tensors.items():
            if type(value) is Tensor or operands[parameter] is None:
                continue
            hint = ""
            if value is None:
                hint = "; .map(lambda _: tensor) goes on with the tensor that it wrote"
            elif isinstance(value, tuple | list):
                hint = "; .first(), .last() or [i] takes one of them"
            elif isinstance(value, ca.Partition | ca.MappedPartition):
                hint = "; .unpartition() makes a tensor of it"
            elif isinstance(value, np.ndarray):
                hint = "; leave .to_host() out"
            raise _no_operand(name, parameter, "got one that yields", value, hint)
        check_operands(name, outputs, {p: t for p, t in tensors.items() if t is not None}, changed)
        return build(*tensors.values())

    return ca.collect(pending).then(resolved)


def _no_operand(name: str, parameter: str, given: str, value: object, hint: str) -> TypeError:
    what = f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
    return TypeError(
        f"{name}, {parameter}: operands are tensors or operations that yield them, {given} {what}{hint}"
    )


def check_operands(
    name: str, outputs: dict[str, Tensor], operands: dict[str, Tensor], changed: str | None = None
) -> None:
    """Refuse memory that a kernel would: what is written shared or not to be written, several devices, strides.

    Args:
        changed: the one of the operands that is written.
    Raises:
        AliasError, ClosedError, ContextError, KernelArgumentError (strides), ValueError (memory of others that may not
            be written): each names the function and its parameters.
    """
    device, first = None, ""
    for group in (operands, outputs):
        for parameter, tensor in group.items():
            buffer = tensor._buffer
            if buffer.device is not device:
                if device is not None:
                    device._check_not_closed()
                    buffer.device._check_not_closed()
                    raise ca.ContextError(
                        f"{name}: {first} is on {device}, {parameter} on {tensor.device}; "
                        "copy one over through the host"
                    )
                device, first = buffer.device, parameter
            if buffer.address < 0 and buffer.is_freed:
                raise ca.ClosedError(f"{name}: the memory of {parameter} was freed")
            is_written = group is outputs or parameter == changed
            if is_written and buffer.read_only:
                raise ValueError(f"{name}: {parameter} is over read-only memory of another library")
            if not tensor.is_contiguous or 0 in tensor.shape:
                problem = layout_problem(tensor.shape, tensor.strides, is_written)
                if problem is not None:
                    advice = "pass a contiguous one" if is_written else f"copy it first: ca.copy({parameter})"
                    raise KernelArgumentError(f"{name}: {parameter} {problem}; {advice}")
    if outputs or changed in operands:
        written = {p: t for p, t in operands.items() if p == changed} | outputs
        read = {p: t for p, t in operands.items() if p != changed}
        check_aliases(name, list(written.values()), list(read.values()), [*written, *read])


class _WithLater(DeviceOp[T]):
    """`with_later(name, make, ...)`."""

    _composite = True

    def __init__(self, name: str, make: Callable[[], DeviceOp[T]], later: dict[str, Tensor]) -> None:
        self._name = name
        self._make = make
        self._later = later
        self._made: DeviceOp[T] | None = make()

    def _enter(self, execution: Any) -> DeviceOp[T]:
        stream = execution.ctx.stream
        for parameter, tensor in self._later.items():
            buffer = tensor._buffer
            if buffer.address < 0 or buffer.is_recorded:
                try:
                    if stream._recorder is None:
                        buffer.check_filled()
                    else:
                        buffer.check_usable()
                except ca.CudaAsyncError as error:
                    raise type(error)(f"{self._name}: {parameter}: {error}") from None
        made, self._made = self._made, None
        return (self._make() if made is None else made)._take()


def with_later(name: str, make: Callable[[], DeviceOp[T]], **later: Tensor | None) -> DeviceOp[T]:
    """`make()`, of several kernels: what only a later one takes is checked to be there yet when the first is to run.

    Memory may be freed after the call, and a graph's output be overwritten by its next launch. It is made now, so that
    mistakes show at the call, and anew where it runs again, as a shared operation whose recording was given up does:
    what the later kernels take may be operations, and these run once.

    Raises:
        ClosedError, StaleOutputError, NotFilledYetError: when it runs; nothing was enqueued.
    """
    return _WithLater(name, make, {parameter: t for parameter, t in later.items() if t is not None})


def output(
    name: str,
    out: Tensor | None,
    shape: Sequence[int],
    dtype: np.dtype[np.generic],
    *,
    view: tuple[int, ...] | None = None,
    parameter: str = "out",
) -> Tensor | DeviceOp[Tensor]:
    """Where the result goes: `out`, if it fits, or new memory; seen as `view`, if that is given.

    Args:
        parameter: what messages call `out`.
    """
    if out is None:
        return ca.empty((math.prod(shape),) if view == (-1,) else view or tuple(shape), dtype)
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
        raise ValueError(
            f"{name}: {parameter} is {out.dtype.name} {tuple(out.shape)}, the result is {dtype.name} {tuple(shape)}"
        )
    return out if view is None else _view(name, parameter, out, view, "pass a contiguous one")


def first_of(op: DeviceOp[tuple[Any, ...]], shape: tuple[int, ...] | None = None) -> DeviceOp[Tensor]:
    """The tensor whose partition a kernel yields first, as a view of `shape` if that is given."""

    def taken(made: tuple[Any, ...]) -> Tensor:
        tensor: Tensor = made[0].unpartition()
        return tensor if shape is None or tensor.shape == shape else tensor.reshape(shape)

    return op.map(taken)


def mutable(tensor: Tensor | DeviceOp[Tensor]) -> ca.Mut | DeviceOp[ca.Mut]:
    """The tensor as an operand that a kernel writes."""
    return tensor.map(ca.mut) if isinstance(tensor, DeviceOp) else ca.mut(tensor)


def check_dtype(name: str, allowed: Types, **tensors: Tensor | None) -> None:
    """Refuse other element types.

    Raises:
        TypeError: names the tensor, its type, and those that are taken.
    """
    for parameter, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in allowed:
            taken = ", ".join(dtype.name for dtype in allowed)
            raise TypeError(
                f"{name}: {parameter} is {tensor.dtype.name}; it takes {taken}: convert it with .astype()"
            )


def check_shape(name: str, expected: Sequence[int | str], **tensors: Tensor | None) -> None:
    """Refuse other shapes; a word names an axis of any extent.

    Raises:
        ValueError: names the tensor, its shape, what it must be, and a view that is so, if reshaping makes one.
    """
    for parameter, tensor in tensors.items():
        if tensor is None or tensor.shape == expected or _fits(tensor.shape, expected):
            continue
        shape, count = tuple(tensor.shape), len(expected)
        more = len(shape) - count
        seen = (1,) * -more + shape if more < 0 else (math.prod(shape[: more + 1]), *shape[more + 1 :])
        advice = f"; pass {parameter}.reshape({seen})" if more and _fits(seen, expected) else ""
        wanted = ", ".join(map(str, expected)) + ("," if count == 1 else "")
        raise ValueError(f"{name}: {parameter} has the shape {shape}, it must be ({wanted}){advice}")


def _fits(shape: Sequence[int], expected: Sequence[int | str]) -> bool:
    return len(shape) == len(expected) and all(
        isinstance(e, str) or s == e for s, e in zip(shape, expected, strict=True)
    )


def shape_error(name: str, axes: Mapping[str, str], **tensors: Tensor) -> ValueError:
    """Shapes that do not go together, and why.

    Args:
        axes: of each tensor, by parameter, the names of its axes, as in "m, k"; those of one name have one extent.
            Before the others, "..." stands for any.
    """
    given = ", ".join(f"{parameter} {tuple(t.shape)}" for parameter, t in tensors.items())
    meant = " and ".join(f"{parameter} is ({axes[parameter]})" for parameter in tensors)
    return ValueError(
        f"{name}: these shapes do not go together: {given}; {meant}, but {_conflict(axes, tensors)}"
    )


def _conflict(axes: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    found: dict[str, tuple[str, int]] = {}
    for parameter, tensor in tensors.items():
        names, shape = axes[parameter].split(", "), tensor.shape
        if names[0] == "...":
            names, shape = names[1:], shape[1 - len(names) :]
        if len(shape) != len(names):
            return f"{parameter} has {tensor.ndim} {'axis' if tensor.ndim == 1 else 'axes'}"
        for axis, extent in zip(names, shape, strict=True):
            first, before = found.setdefault(axis, (parameter, extent))
            if before != extent:
                return f"{axis} is {before} in {first} and {extent} in {parameter}"
    raise AssertionError(f"{tensors} go together as {axes}")


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


def is_number(value: object) -> bool:
    """Whether it is a real number of Python or NumPy, not too large for a float."""
    if isinstance(value, int):
        return abs(value) < 1 << 1023
    return isinstance(value, float | np.integer | np.floating)


def check_flags(name: str, **flags: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: names the function and the parameter.
    """
    for parameter, value in flags.items():
        if value is not True and value is not False and not isinstance(value, np.bool_):
            raise TypeError(f"{name}: {parameter} is True or False, got {value!r}")


def check_choice(name: str, parameter: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is none of the words.

    Raises:
        ValueError: names the function, the parameter and the words.
    """
    if not isinstance(value, str) or value not in choices:
        words = [f'"{choice}"' for choice in choices]
        raise ValueError(f"{name}: {parameter} is {', '.join(words[:-1])} or {words[-1]}, got {value!r}")


def is_count(value: object) -> bool:
    """Whether it is a whole number from 1 on that an int32 holds, of Python or NumPy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= int(value) < 1 << 31


def floor_power_of_two(n: int) -> int:
    """The largest power of two that is at most `n`, at least 1."""
    return 1 << max(0, n.bit_length() - 1)


def vector_tile(size: int, most: int = 2048) -> int:
    """Elements of a tile of an elementwise kernel, up to `most` of them where there are many."""
    return min(most if size >= 1 << 20 else 1024, power_of_two(size))


def row_tile(rows: int, columns: int) -> tuple[int, int]:
    """A tile of whole rows: a few short ones together, as long as many blocks are left."""
    side = power_of_two(columns)
    return min(max(1, 2048 // side), floor_power_of_two(rows // 1024)), side


def check_rows(name: str, x: Tensor) -> None:
    """Refuse a tensor without axes: there is no row in it."""
    if not x.ndim:
        raise ValueError(
            f"{name}: takes (..., columns), got a tensor of the shape (); x.reshape(1) has a row"
        )


def rows_of(name: str, **tensor: Tensor) -> Tensor:
    """The one tensor, given by its parameter's name, as (rows, columns), a view. See `viewed`."""
    (x,) = tensor.values()
    return x if x.ndim == 2 else viewed(name, (math.prod(x.shape[:-1]), x.shape[-1]), **tensor)


def viewed(name: str, shape: tuple[int, ...], **tensor: Tensor) -> Tensor:
    """The one tensor, given by its parameter's name, as a view of that shape, which has as many elements.

    Raises:
        ValueError: its strides have no such view; names the function and the parameter.
    """
    ((parameter, x),) = tensor.items()
    return _view(name, parameter, x, shape, f"copy it first: ca.copy({parameter})")


def _view(name: str, parameter: str, x: Tensor, shape: tuple[int, ...], advice: str) -> Tensor:
    try:
        return x.reshape(shape)
    except ValueError:
        taken = (x.size,) if shape == (-1,) else shape
        raise ValueError(
            f"{name}: {parameter}, {tuple(x.shape)} with the strides {tuple(x.strides)}, is gone over as {taken}, "
            f"and has no such view; {advice}"
        ) from None


def key_of(name: str, seed: int) -> tuple[np.uint32, np.uint32]:
    """A seed as the two halves of Philox's key."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 64:
        raise ValueError(f"{name}: a seed is a whole number from 0 to 2**64 - 1, got {seed!r}")
    return np.uint32(int(seed) & 0xFFFFFFFF), np.uint32(int(seed) >> 32)


def occupancy_of(elements: int) -> int:
    """Blocks that a multiprocessor shall run at once, of a kernel that is bound by memory, by elements of a tile.

    Where a tile goes through the tensor memory accelerator, the assembler for sm_90 gives a thread 255 registers unless
    told otherwise, and one block fills the multiprocessor: too few to hide the time that memory takes. These
    are as many as need no spills.
    """
    return 8 if elements <= 2048 else 4 if elements <= 4096 else 2


def following(kernel: Kernel) -> Kernel:
    """The second kernel of a function: it may begin while the first one ends, and waits by itself for its results."""
    return tuned(kernel, programmatic_dependent_launch=True)


@lru_cache(maxsize=256)
def tuned(kernel: Kernel, **options: int | bool | ByTarget | None) -> Kernel:
    """The kernel with these options, the same object each time, since it keeps what it compiled."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return kernel.with_options(**given) if given else kernel
