"""Launching raw kernels: the operation, and its bound form.

The path of a launch is short because everything that can be is worked out once: the packing plan per kernel and
argument types, the checked (grid, block, shared) triples, the argument block and its pointer array. What remains per
launch: the operands' device and lifetime, aliasing, ordering, packing, and one driver call, the last three under the
device's lock.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ..driver import ArgumentBlock
from ..errors import AliasError, LaunchError
from ..memory import Mut, Read, Tensor, extent
from ..scheduling import order_uses
from ._arguments import ADDRESS, write_unpack
from ._context import check_operand
from ._op import DeviceOp
from ._unprepared import UNPREPARED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..memory import Buffer
    from ..scheduling import Device, Stream
    from ._arguments import LaunchPlan
    from ._context import ExecutionContext
    from ._module import Function, LoadedFunction

__all__ = [
    "BoundLaunch",
    "Dimensions",
    "Launch",
    "LaunchConfig",
    "as_dimensions",
    "check_aliases",
    "check_argument_aliases",
    "launch_step_by_step",
]

MAX_STREAMS = 64
"""Streams that the launches of a bound kernel are remembered for."""
Dimensions = tuple[int, int, int]
LaunchConfig = tuple[Dimensions, Dimensions, int]
"""Grid, block, dynamic shared bytes."""


def as_dimensions(dims: object, what: str) -> Dimensions:
    """(x, y, z) from an int or 1 to 3 ints; missing axes are 1.

    Raises:
        TypeError: something that is no integer. LaunchError: no or more than three axes.
    """
    if type(dims) is int:
        return dims, 1, 1
    if type(dims) is tuple and len(dims) == 3:
        x, y, z = dims
        if type(x) is int and type(y) is int and type(z) is int:
            return dims
    axes: tuple[object, ...]
    if hasattr(dims, "__index__") and not hasattr(dims, "__len__"):
        axes = (dims,)
    elif isinstance(dims, (tuple, list)):
        axes = tuple(dims)
    else:
        raise TypeError(f"{what} is {dims!r}; expected an int or 1 to 3 ints")
    if not 1 <= len(axes) <= 3:
        raise LaunchError(f"{what} {tuple(axes)} has {len(axes)} axes; the limit is 3, and at least 1")
    try:
        sizes = [operator.index(a) for a in axes]  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} {tuple(axes)!r} must hold integers") from None
    sizes += [1] * (3 - len(sizes))
    return sizes[0], sizes[1], sizes[2]


def _byte_range(tensor: Tensor) -> tuple[int, int]:
    low, high = extent(tensor.shape, tensor.strides)
    size = tensor.dtype.itemsize
    return tensor._address + low * size, tensor._address + high * size


def check_aliases(
    what: str, writes: Sequence[Tensor], reads: Sequence[Tensor], labels: Sequence[str] = ()
) -> None:
    """Exclusive operands must share no element with any other operand.

    Args:
        labels: what messages call them, the writes first.
    Raises:
        AliasError: they do; nothing was enqueued.
    """
    operands = [*writes, *reads]
    for i, written in enumerate(writes):
        for j, other in enumerate(operands[i + 1 :], i + 1):
            # Borrowed memory may come in through two buffers.
            if written._buffer is not other._buffer and not (
                written._buffer.retained_on_use and other._buffer.retained_on_use
            ):
                continue
            if _share_memory(written, other):
                also = "exclusive too" if j < len(writes) else "read"
                one, two = (f"{labels[n]}, " if labels else "" for n in (i, j))
                raise AliasError(
                    f"{what}: the same memory is exclusive (mut or a partition) and {also} in one launch: "
                    f"{one}{written!r} and {two}{other!r}; copy one of them first, or pass disjoint views"
                )


def _share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have an element's byte in common."""
    low_a, high_a = _byte_range(a)
    low_b, high_b = _byte_range(b)
    if low_a >= high_b or low_b >= high_a:
        return False
    if a.is_contiguous and b.is_contiguous:
        return True
    # A strided view may lie in the other's gaps; NumPy has the exact test.
    import numpy as np

    start = min(low_a, low_b)
    memory = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), (max(high_a, high_b) - start,), (1,))

    def stand_in(t: Tensor) -> np.ndarray[Any, Any]:
        return np.ndarray(
            t.shape,
            t.dtype,
            memory.data,
            t._address - start,
            tuple(s * t.dtype.itemsize for s in t.strides),
        )

    try:
        most: Any = 10_000  # NumPy 2.4's stubs know no numbers but -1 and 0
        return np.shares_memory(stand_in(a), stand_in(b), max_work=most)
    except np.exceptions.TooHardError:
        return True


class Launch(DeviceOp[tuple[Any, ...]]):
    """A kernel launch. Made by `Function.launch()`; yields its arguments."""

    _reports_unprepared = True
    _cluster: Dimensions | None = None
    _cooperative = False
    _uses: Sequence[Read | Mut] = ()
    _has_options = False

    _function: Function
    _config: LaunchConfig
    _args: tuple[Any, ...]

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("launches are made by Function.launch()")

    def _set_options(self, cluster: Dimensions | None, cooperative: bool, uses: Sequence[Read | Mut]) -> None:
        self._cluster = cluster
        self._cooperative = cooperative
        self._uses = uses
        self._has_options = True

    def _arity(self) -> int:
        return len(self._args)

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        return ctx.device not in self._function._loaded

    def prepare(self, ctx: ExecutionContext) -> None:
        self._function.load(ctx.device)

    def execute(self, ctx: ExecutionContext) -> Any:
        loaded = self._function._loaded.get(ctx.device)
        if loaded is None:
            return UNPREPARED
        if self._has_options:
            return launch_step_by_step(
                loaded, self._args, ctx, self._config, self._uses, self._cluster, self._cooperative
            )
        return loaded.launch(self._args, ctx, self._config)


def launch_step_by_step(
    loaded: LoadedFunction,
    args: tuple[Any, ...],
    ctx: ExecutionContext,
    config: LaunchConfig,
    uses: Sequence[Read | Mut] = (),
    cluster: Dimensions | None = None,
    cooperative: bool = False,
) -> tuple[Any, ...]:
    """What a written-out launch does, for `uses`, clusters, cooperative launches, addresses and an empty grid."""
    device = ctx.device
    if config != loaded.checked[0]:
        loaded.check_config(config)
    plan = loaded.plan(tuple(map(type, args)))
    values, outputs, reads, writes = write_unpack(plan)(args, device)
    if uses:
        reads, writes = _add_uses(loaded, uses, reads, writes)
    elif plan.has_addresses:
        _refuse_addresses(plan, args)
    check_argument_aliases(loaded, args, uses)
    grid, block, shared_bytes = config
    result: tuple[Any, ...] = outputs
    if 0 in grid:
        return result
    stream = ctx.stream
    driver = loaded.driver
    with device._lock:
        order_uses(stream, reads, writes)
        plan.struct.pack_into(loaded.block.buffer, 0, *values)
        if cluster is not None or cooperative:
            driver.launch_with_attributes(
                loaded.handle,
                grid,
                block,
                shared_bytes,
                stream.handle,
                loaded.block,
                cluster=cluster,
                cooperative=cooperative,
            )
        else:
            driver.launch(loaded.handle, grid, block, shared_bytes, stream.handle, loaded.block)
        stream._retained.append(loaded)
    return result


def _add_uses(
    loaded: LoadedFunction, uses: Sequence[Read | Mut], reads: tuple[Buffer, ...], writes: tuple[Buffer, ...]
) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    for use in uses:
        if not isinstance(use, (Read, Mut)):
            raise TypeError(
                f"{loaded.name}: uses=[...] takes read(tensor) and mut(tensor), got {type(use).__name__}"
            )
        buffer = check_operand(use.tensor, loaded.device, f"{loaded.name}: a tensor in uses")
        if isinstance(use, Read):
            reads = (*reads, buffer)
        else:
            writes = (*writes, buffer)
    return reads, writes


def _refuse_addresses(plan: LaunchPlan, args: Sequence[Any]) -> None:
    for (code, _, _, _, name), arg in zip(plan.steps, args):
        if code == ADDRESS and arg != 0:
            raise TypeError(
                f"{plan.kernel}: {name} was given an address as an integer; pass read(tensor) or mut(tensor), "
                "or name the memory it points to with uses=[read(t), mut(t)]"
            )


def check_argument_aliases(loaded: LoadedFunction, args: Sequence[Any], uses: Sequence[Any]) -> None:
    """`check_aliases` over the tensors among a launch's arguments."""
    steps = loaded.plan(tuple(map(type, args))).steps
    named = [(step[4], arg) for step, arg in zip(steps, args)]
    named += [(f"uses[{i}]", use) for i, use in enumerate(uses)]
    writes = [(name, a.tensor) for name, a in named if isinstance(a, Mut)]
    reads = [(name, a.tensor) for name, a in named if isinstance(a, Read)]
    check_aliases(
        loaded.name, [t for _, t in writes], [t for _, t in reads], [name for name, _ in (*writes, *reads)]
    )


class BoundLaunch:
    """A launch whose arguments are packed once. Made by `Function.bind()`.

    It keeps its tensors alive. Used from several threads and tasks at once.
    """

    def __init__(
        self,
        loaded: LoadedFunction,
        grid: Dimensions,
        block: Dimensions,
        args: tuple[Any, ...],
        shared_bytes: int,
    ) -> None:
        device = loaded.device
        config = (grid, block, shared_bytes)
        loaded.check_config(config)
        plan = loaded.plan(tuple(map(type, args)))
        values, outputs, reads, writes = write_unpack(plan)(args, device)
        if plan.has_addresses:
            _refuse_addresses(plan, args)
        check_argument_aliases(loaded, args, ())
        self.loaded = loaded
        self.config = config
        self.arguments = ArgumentBlock(loaded.info.parameters)
        plan.struct.pack_into(self.arguments.buffer, 0, *values)
        self.outputs: tuple[Any, ...] = outputs  # the tensors among them stay alive
        self.reads: tuple[Buffer, ...] = reads
        self.writes: tuple[Buffer, ...] = writes
        self.buffers = self.reads + self.writes
        self.is_empty = 0 in grid
        self._launches: dict[Stream, Callable[[], tuple[Any, ...]]] = {}

    is_kernel = True

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.loaded.name

    def enqueue(self, stream: Stream) -> None:
        """Lock held, ordered: launch on `stream`."""
        launch = self._launches.get(stream)
        if launch is None:
            loaded = self.loaded
            grid, block, shared_bytes = self.config
            launch = loaded.driver.bind_launch(
                loaded.handle, grid, block, shared_bytes, stream.handle, self.arguments
            )
            if len(self._launches) >= MAX_STREAMS:
                self._launches.clear()
            self._launches[stream] = launch
        result = launch()
        if result[0]:
            self.loaded.driver.launch_failed(result)
        stream._retained.append(self)

    def launch(self) -> DeviceOp[tuple[Any, ...]]:
        """An operation that launches it; yields the arguments, as `Function.launch` does."""
        return _BoundLaunchOp(self)


class _BoundLaunchOp(DeviceOp[tuple[Any, ...]]):
    _reports_unprepared = True  # it never is

    def __init__(self, bound: BoundLaunch) -> None:
        self._bound = bound

    def _arity(self) -> int:
        return len(self._bound.outputs)

    def _device_hint(self) -> Device:
        return self._bound.loaded.device

    def execute(self, ctx: ExecutionContext) -> tuple[Any, ...]:
        bound = self._bound
        device = ctx.device
        if bound.loaded.device is not device:
            raise LaunchError(
                f"{bound.loaded.name} was bound on {bound.loaded.device}, but this runs on {device}"
            )
        for buffer in bound.buffers:
            if buffer.address < 0:
                buffer.check_usable()
        if bound.is_empty:
            return bound.outputs
        stream = ctx.stream
        device._acquire()
        try:
            order_uses(stream, bound.reads, bound.writes)
            bound.enqueue(stream)
        finally:
            device._release()
        return bound.outputs
