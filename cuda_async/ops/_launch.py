"""Launching raw kernels: the operation, and its bound form.

The path of a launch is short because everything that can be is worked out once: the packing plan per kernel and
argument types, the checked (grid, block, shared) triples, the argument block and its pointer array. What remains per
launch: the operands' device and lifetime, aliasing, ordering, packing, and one driver call, the last three under the
device's lock.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn

from ..driver import ArgumentBlock
from ..errors import AliasError, LaunchError
from ..memory import Mut, Read, Tensor
from ..native import compiled
from ..scheduling import order_read, order_uses, order_write
from ._combinators import Then
from ._context import check_operand
from ._declared import byte_range, declare
from ._execution import common
from ._op import DeviceOp
from ._unprepared import UNPREPARED
from ._written import LaunchFunction, write_bound_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..memory import Buffer
    from ..scheduling import Device, Stream
    from ._context import ExecutionContext
    from ._module import Function, LoadedFunction

__all__ = [
    "BoundLaunch",
    "Dimensions",
    "Launch",
    "LaunchConfig",
    "LaunchWithOptions",
    "PlainLaunch",
    "as_dimensions",
    "as_shared_bytes",
    "check_aliases",
    "check_argument_aliases",
    "cluster_problem",
    "full_dimensions",
    "launch_step_by_step",
    "shared_memory_problem",
]

MAX_STREAMS = 64
"""Streams that the launches of a bound kernel are remembered for."""
Dimensions = tuple[int, int, int]
LaunchConfig = tuple[int | Dimensions, int | Dimensions, int]
"""Grid, block, dynamic shared bytes. An int stands for one axis: that is how most launches are written."""


def full_dimensions(dims: int | Dimensions) -> Dimensions:
    """(x, y, z) of a config's grid or block."""
    return (dims, 1, 1) if type(dims) is int else dims  # type: ignore[return-value]


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


def as_shared_bytes(size_bytes: object) -> int:
    """An amount of dynamic shared memory.

    Raises:
        TypeError: something that is no integer.
    """
    try:
        return operator.index(size_bytes)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"shared_mem_bytes is {size_bytes!r}; expected an int") from None


def shared_memory_problem(size_bytes: int, static_bytes: int, device: Device) -> str:
    """What is wrong with an amount of dynamic shared memory for a kernel with `static_bytes` of its own, or nothing."""
    if size_bytes < 0:
        return f"shared_mem_bytes is {size_bytes}; it cannot be negative"
    most = device.limits.max_shared_bytes_per_block_optin
    if static_bytes > most:
        return (
            f"the kernel declares {static_bytes} bytes of static shared memory, a block has at most {most} "
            f"on {device}; use less, or global memory"
        )
    limit = most - static_bytes
    if size_bytes > limit:
        less = f" ({most} less {static_bytes} static)" if static_bytes else ""
        return (
            f"asked for {size_bytes} bytes of dynamic shared memory, the limit on {device} is {limit}{less}"
        )
    return ""


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
    low_a, high_a = byte_range(a)
    low_b, high_b = byte_range(b)
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
    """A kernel launch. Made by `Function.launch()` and `BoundLaunch.launch()`; yields its arguments."""

    __slots__ = ("__weakref__", "_args", "_bound_on", "_config", "_consumed", "_function", "_launch")

    _reports_unprepared = True

    _function: Function
    _config: LaunchConfig | None
    _args: tuple[Any, ...]
    _launch: LaunchFunction
    _bound_on: Device | None

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("launches are made by Function.launch()")

    def _arity(self) -> int:
        return len(self._args)

    def _device_hint(self) -> Device | None:
        return self._bound_on

    def prepare(self, ctx: ExecutionContext) -> None:
        self._function.load(ctx.device)

    def execute(self, ctx: ExecutionContext) -> Any:
        return self._launch(self._args, ctx, self._config)


class PlainLaunch(Launch):
    """What `launch()` makes where it is given no options. A call of a class without `__init__` is the cheapest way."""

    __slots__ = ()
    __init__ = object.__init__


PlainLaunch.__name__ = PlainLaunch.__qualname__ = "Launch"  # what messages call it
common.launch = PlainLaunch
DeviceOp.then = compiled("MAKES_THEN", DeviceOp.then, Then, Then, PlainLaunch)  # type: ignore[method-assign]


class LaunchWithOptions(Launch):
    """A launch that names memory which is no argument, or with clusters, or cooperative."""

    _options: tuple[Sequence[Read | Mut], Dimensions | None, bool]

    @classmethod
    def _of(
        cls, plain: Launch, uses: Sequence[Read | Mut], cluster: Dimensions | None, cooperative: bool
    ) -> LaunchWithOptions:
        """What `plain` launches, with these options."""
        if not isinstance(uses, (tuple, list)):
            raise TypeError(
                f"uses=[...] takes a list of read(tensor) and mut(tensor), got {type(uses).__name__}"
            )
        self = object.__new__(cls)
        for name in ("_args", "_bound_on", "_config", "_consumed", "_function", "_launch"):
            setattr(self, name, getattr(plain, name))
        self._options = (uses, cluster, cooperative)
        return self

    def execute(self, ctx: ExecutionContext) -> Any:
        loaded = self._function._loaded.get(ctx.device)
        if loaded is None:
            return UNPREPARED
        assert self._config is not None
        return launch_step_by_step(loaded, self._args, ctx, self._config, *self._options)


def launch_step_by_step(
    loaded: LoadedFunction,
    args: tuple[Any, ...],
    ctx: ExecutionContext,
    config: LaunchConfig,
    uses: Sequence[Read | Mut] = (),
    cluster: Dimensions | None = None,
    cooperative: bool = False,
    programmatic: bool = False,
) -> tuple[Any, ...]:
    """What a written-out launch does, for `uses`, clusters, cooperative launches, addresses and an empty grid.

    A programmatic launch may begin before what precedes it has ended: the kernel itself waits before it
    touches memory.
    """
    device = ctx.device
    loaded.check_config(config)
    plan = loaded.plan(tuple(map(type, args)))
    values, outputs, reads, writes = plan.unpack(args, device)
    if uses:
        reads, writes = _add_uses(loaded, uses, reads, writes)
    elif plan.addresses:
        plan.refuse_addresses(args)
    check_argument_aliases(loaded, args, uses)
    grid, block, shared_bytes = full_dimensions(config[0]), full_dimensions(config[1]), config[2]
    if cluster is not None:
        _check_cluster(loaded, grid, cluster)
    result: tuple[Any, ...] = outputs
    if 0 in grid:
        return result
    stream = ctx.stream
    driver = ctx._driver
    with device._lock:
        order_uses(stream, reads, writes)
        plan.struct.pack_into(loaded.block.buffer, 0, *values)
        if getattr(driver, "checker", None) is not None:
            _declare_arguments(loaded.block, (*args, *uses))
        stream._retained.append(loaded)  # first: an interrupt may come behind the driver's call
        if cluster is not None or cooperative or programmatic:
            driver.launch_with_attributes(
                loaded.handle,
                grid,
                block,
                shared_bytes,
                stream._handle,
                loaded.block,
                cluster=cluster,
                cooperative=cooperative,
                programmatic=programmatic,
            )
        else:
            driver.launch(loaded.handle, grid, block, shared_bytes, stream._handle, loaded.block)
    return result


def _declare_arguments(block: ArgumentBlock, args: Sequence[Any]) -> None:
    declare(
        block,
        [a.tensor for a in args if isinstance(a, Read)],
        [a.tensor for a in args if isinstance(a, Mut)],
    )


def _check_cluster(loaded: LoadedFunction, grid: Dimensions, cluster: Dimensions) -> None:
    limit = loaded.device.limits.max_cluster_blocks
    blocks = cluster[0] * cluster[1] * cluster[2]
    if min(cluster) < 1 or blocks > limit:
        raise LaunchError(
            f"{loaded.name}: a cluster of {cluster} has {blocks} blocks, the limit on {loaded.device} is {limit} "
            "(and 1 the least on each axis)"
        )
    problem = cluster_problem(grid, cluster)
    if problem:
        raise LaunchError(f"{loaded.name}: {problem}")


def cluster_problem(grid: Dimensions, cluster: Dimensions) -> str:
    """Why a grid cannot consist of such clusters; "" where it can."""
    for axis, size, count in zip("xyz", cluster, grid):
        if count % size:
            return (
                f"grid axis {axis} is {count}, which clusters of {size} do not divide; launch more blocks and let the "
                "kernel leave those that are too many"
            )
    return ""


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
        outputs: tuple[Any, ...] | None = None,
    ) -> None:
        device = loaded.device
        config = (grid, block, shared_bytes)
        loaded.check_config(config)
        plan = loaded.plan(tuple(map(type, args)))
        values, given, reads, writes = plan.unpack(args, device)
        if plan.addresses:
            plan.refuse_addresses(args)
        check_argument_aliases(loaded, args, ())
        arguments = ArgumentBlock(loaded.info.parameters, loaded.signature)
        arguments.rule = loaded.block.rule
        plan.struct.pack_into(arguments.buffer, 0, *values)
        if getattr(loaded.driver, "checker", None) is not None:
            _declare_arguments(arguments, args)
        self._loaded = loaded
        self._outputs: tuple[Any, ...] = given if outputs is None else outputs  # keeps the tensors alive
        launches: dict[object, Callable[[], object]] = {}  # by the key of their stream

        def bind_on(stream: Stream) -> Callable[[], object]:
            """Lock held: the launch of the packed arguments on `stream`, made once."""
            if stream._recorder is not None:
                return stream._recorder.bind_launch(
                    stream, loaded.handle, grid, block, shared_bytes, arguments
                )
            if len(launches) >= MAX_STREAMS:
                launches.clear()
            launch = loaded.driver.bind_launch(
                loaded.handle, grid, block, shared_bytes, stream._handle, arguments
            )
            launches[stream._launch_key] = launch
            return launch

        def refuse_device(other: Device) -> NoReturn:
            raise LaunchError(f"{loaded.name} was bound on {device}, but this runs on {other}")

        def launch_nothing(_: Any, ctx: ExecutionContext, __: Any) -> tuple[Any, ...]:
            if ctx.device is not device:
                refuse_device(ctx.device)
            refuse_freed()
            return yielded

        tensors = [(i, a.tensor) for i, a in enumerate(args) if isinstance(a, (Read, Mut))]

        def refuse_freed() -> None:
            for index, tensor in tensors:
                plan.check_tensor(index, tensor, device)

        yielded = self._outputs
        self._launch: LaunchFunction = (
            launch_nothing
            if 0 in grid
            else write_bound_launch(
                loaded.name,
                reads,
                writes,
                {
                    "own_device": device,
                    "loaded": loaded,
                    "driver": loaded.driver,
                    "outputs": self._outputs,
                    "launches": launches,
                    "bind_on": bind_on,
                    "refuse_device": refuse_device,
                    "refuse_freed": refuse_freed,
                    "order_read": order_read,
                    "order_write": order_write,
                },
            )
        )

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._loaded.name

    def launch(self) -> DeviceOp[tuple[Any, ...]]:
        """An operation that launches it; yields the arguments, as `Function.launch` does."""
        op: Launch = PlainLaunch()
        op._consumed = False
        op._function = self._loaded.function
        op._config = None
        op._args = self._outputs
        op._launch = self._launch
        op._bound_on = self._loaded.device
        return op

    def __reduce__(self) -> NoReturn:
        raise TypeError("a BoundLaunch cannot be copied or pickled; make another one with Function.bind()")
