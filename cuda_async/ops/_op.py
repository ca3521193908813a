"""`DeviceOp`: a lazy, typed, single-use description of device work, and its combinators."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, NoReturn, TypeVar, overload

from ..errors import ConsumedError
from ..memory._hints import unlike_arrays
from ..scheduling import check_policy
from ._execution import Execution, check_not_in_callback, check_stream, run_async, run_sync

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from numpy.typing import NDArray

    from ..graph import CudaGraph
    from ..memory import MappedPartition, Partition, ShapeLike, Tensor
    from ..scheduling import Device, SchedulingPolicy, Stream
    from ._context import ExecutionContext
    from ._future import DeviceFuture
    from ._shared import SharedOp

__all__ = ["DeviceOp"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")


def _written_elsewhere(cls: type) -> list[type]:
    """Those of a class and its bases that users wrote."""
    return [
        base for base in cls.__mro__ if base.__module__.partition(".")[0] not in ("cuda_async", "tilekern")
    ]


def refuse_attribute(op: DeviceOp[Any], name: str) -> NoReturn:
    """`__getattr__` of operations that values are made by, and said of what tensors and arrays have by all of them.

    Not the `__getattr__` of all: where there is one, CPython looks up every attribute more slowly, and a chain is made
    of the others.
    """
    kind = type(op).__name__
    if name.startswith("_"):
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")
    raise AttributeError(
        f"a {kind} is an operation, which has no {name!r}: await it (or call .sync()), and ask what it yields; or go "
        "on with .then(f) or .map(f)"
    )


def _no_arithmetic(op: DeviceOp[Any]) -> str:
    return (
        f"a {type(op).__name__} is an operation, which has no arithmetic: await it (or call .sync()) for what it "
        "yields; what the device computes is a kernel (tilekern.kernels.add and others)"
    )


OF_TENSORS = ("T", "device", "dtype", "nbytes", "ndim", "permute", "shape", "size", "strides")
OF_ARRAYS = ("cpu", "item", "max", "mean", "min", "numpy", "sum", "tolist")


@unlike_arrays((*OF_TENSORS, *OF_ARRAYS), refuse_attribute, _no_arithmetic)
class DeviceOp(Generic[T_co]):
    """Device work that yields a `T` once it is awaited, or run with `sync()` or `start()`.

    Building one touches no device and allocates nothing. It is used once: running or composing consumes it.

    A subclass writes `execute(ctx)`: enqueue on `ctx.stream` and return the output at once, with addresses
    from `ctx.read(tensor)` and `ctx.write(tensor)`. If it has slow host work to do first (compile, load a module,
    stage host memory) it writes `prepare(ctx)` too, which runs on a worker thread when the caller is on an event
    loop, maybe for several operations at once; `needs_prepare(ctx)` may say that it is already done.
    """

    # Users subclass this freely, and theirs have a __dict__. Then and Launch have slots alone: a chain is made of them,
    # and one without a __dict__ costs 0.1 us less.
    __slots__ = ()

    _consumed: Any = False  # a bool; for mypy, what slots do not name cannot be set
    _composite = False  # composite operations have _enter and _resume instead of execute
    _scheduling_policy: SchedulingPolicy | None = None  # what chooses the stream, where it was said
    _has_source = False  # True: a composite whose only child is _source, and whose frame is itself
    _source: DeviceOp[Any]
    _enqueues = True  # False: execute touches no device
    _reports_unprepared = False  # True: execute returns UNPREPARED instead of being asked with needs_prepare
    _yields_host_data = False  # True: the output is a host array whose copy may still run
    _checks_output = True  # False: execute is one of ours, and may yield anything
    _instead_of_a_value = "; await it first, or go on with .then()"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        theirs = _written_elsewhere(cls)
        if cls in theirs:
            taken = sorted({name for base in theirs for name in _INTERNAL.intersection(vars(base))})
            if taken:
                raise TypeError(
                    f"{cls.__name__} defines {', '.join(taken)}, which DeviceOp uses itself; choose other names"
                )
            if not cls.__dictoffset__:
                raise TypeError(
                    f"{cls.__name__} has __slots__ alone, and so no place for what DeviceOp notes on an operation; "
                    'leave them out, or add "__dict__" to them'
                )
        for name in ("execute", "prepare", "needs_prepare"):
            written = vars(cls).get(name)
            if inspect.isgeneratorfunction(written):
                raise TypeError(
                    f"{cls.__name__}.{name} has a yield in it, so a call would run nothing; return the output instead"
                )
            if inspect.iscoroutinefunction(written) or inspect.isasyncgenfunction(written):
                called = "on a worker thread" if name == "prepare" else "while enqueueing"
                raise TypeError(
                    f"{cls.__name__}.{name} is an async function, but it is called {called}, where nobody awaits it; "
                    "make it a plain one: slow host work may block in prepare(), what needs the loop comes before the "
                    "operation is built"
                )

    # -- written by subclasses

    def execute(self, ctx: ExecutionContext) -> T_co:
        """Enqueue on `ctx.stream` and return the output handle; never wait for the device."""
        raise TypeError(f"{type(self).__name__} does not define execute(ctx)")

    def prepare(self, ctx: ExecutionContext) -> None:
        """Slow host work to do before `execute`; enqueues nothing. Runs off the event loop."""

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        """Whether `prepare` has to run; by default always when a subclass defines it."""
        return type(self).prepare is not DeviceOp.prepare

    # -- internal

    def _device_hint(self) -> Device | None:
        """The device the operation is bound to by what it works on, if any; of a composite, see `_parts`."""
        return None

    def _parts(self) -> Sequence[DeviceOp[Any]]:
        """The operations that a composite is made of, in the order in which they say where it runs."""
        return ()

    def _arity(self) -> int | None:
        """Length of the tuple it yields, when that is known beforehand."""
        return None

    def _take(self) -> DeviceOp[T_co]:
        """Consume it."""
        if self._consumed:
            raise ConsumedError(
                f"this {type(self).__name__} was already run or made part of another operation; "
                "build it anew, or make it reusable with .shared()"
            )
        self._note_consumed()
        return self

    def _note_consumed(self) -> None:
        try:
            self._consumed = True
        except AttributeError:  # a frozen dataclass
            object.__setattr__(self, "_consumed", True)

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        raise AssertionError("not a composite operation")

    def _check_output(self, output: object) -> None:
        """Refuse what `execute` returned where nothing would ever run it."""
        if inspect.iscoroutine(output):
            output.close()  # or Python warns of it too
            what = "a coroutine"
        elif isinstance(output, DeviceOp):
            what = f"an operation ({type(output).__name__})"
        else:
            return
        raise TypeError(
            f"{type(self).__name__}.execute(ctx) returned {what}, which would never run: it enqueues on ctx.stream and "
            "returns the output; to go on with another operation use then_with_context() or with_context()"
        )

    # -- running

    def __await__(self) -> Generator[Any, Any, T_co]:
        """Run, and suspend the task until the device is done."""
        check_not_in_callback("await")
        return run_async(self._take()).__await__()

    def sync(self) -> T_co:
        """Run, and block this thread until the device is done."""
        check_not_in_callback("sync()")
        result: T_co = run_sync(Execution(self._take()))
        return result

    def sync_on(self, stream: Stream) -> T_co:
        """`sync()` on a given stream."""
        check_not_in_callback("sync_on()")
        check_stream(stream)
        result: T_co = run_sync(Execution(self._take(), stream=stream))
        return result

    def start(self, policy: SchedulingPolicy | None = None) -> DeviceFuture[T_co]:
        """Submit now and return a future that may be awaited many times, from any loop.

        Where a step must be prepared first, the rest of the chain, callbacks too, goes on on a worker thread, and what
        is started meanwhile goes first, on the same stream too: what must come in order is one operation, or awaited.
        """
        from ._future import DeviceFuture

        check_not_in_callback("start()")
        if policy is not None:
            check_policy(policy)
        return DeviceFuture._start(Execution(self._take(), policy=policy))

    def schedule(self, policy: SchedulingPolicy) -> DeviceOp[T_co]:
        """The same operation on a stream of `policy`; as part of a chain, forked off and joined again."""
        check_policy(policy)
        return _combinators.Scheduled(self._take(), policy)

    def graph(self, *, inputs: Mapping[str, Tensor] | None = None) -> DeviceOp[CudaGraph[T_co]]:
        """An operation that captures this one as a graph and yields that; nothing of it runs.

        What it allocates belongs to the graph. What is slow is done off the loop.

        Args:
            inputs: tensors that the operation reads, by the names by which `CudaGraph.replay()` sets them.
        Raises (when it runs):
            CaptureError: a step cannot be part of a graph, or nothing uses an input; the message names it.
        """
        from ..graph import Capture

        return Capture(self, None, inputs)

    def graph_on(
        self, stream: Stream, *, inputs: Mapping[str, Tensor] | None = None
    ) -> DeviceOp[CudaGraph[T_co]]:
        """`graph()`, for a given stream: its device, and the order in which the graph's memory is allocated."""
        from ..graph import Capture

        check_stream(stream)
        return Capture(self, stream, inputs)

    # -- composing

    def then(self, f: Callable[[T_co], DeviceOp[U]]) -> DeviceOp[U]:
        """Go on with the operation that `f` returns, on the same stream.

        `f` runs while enqueueing: the device may still be producing what it is given, so it may enqueue, not look.
        (Host arrays are the exception: after `to_host()` the chain waits for the data before calling `f`.)
        """
        if type(f) is not FunctionType:
            _combinators.check_function(f, "then")
        if self._consumed:
            self._take()
        try:
            self._consumed = True
        except AttributeError:
            self._note_consumed()
        op: _combinators.Then[U] = _combinators.Then()
        op._consumed = False  # the slot hides the class's
        op._source = self
        op._f = f
        return op

    def then_with_context(self, f: Callable[[ExecutionContext, T_co], DeviceOp[U]]) -> DeviceOp[U]:
        """`then`, with the execution context as `f`'s first argument."""
        _combinators.check_function(f, "then_with_context")
        return _combinators.ThenWithContext(self._take(), f)

    def map(self, f: Callable[[T_co], U], *more: Never) -> DeviceOp[U]:
        """Transform the output on the host, at enqueue time; after `to_host()`, once the data is there.

        What `f` returns is the output, a generator too: its body runs when somebody iterates over it. An operation, and
        a coroutine, which would never run, are refused.
        """
        if more:
            raise TypeError(
                f"map() takes a function of the output, got {1 + len(more)} arguments; a partition that an operation "
                "yields is mapped with .map_partition(map_shape, tile_blocks)"
            )
        _combinators.check_function(f, "map")
        return _combinators.Map(self._take(), f)

    def inspect(self, f: Callable[[T_co], object]) -> DeviceOp[T_co]:
        """Show the output to `f` and pass it on."""
        _combinators.check_function(f, "inspect")
        return _combinators.Inspect(self._take(), f)

    def shared(self: DeviceOp[T]) -> SharedOp[T]:
        """An operation that runs once and may be used any number of times, from anywhere."""
        from ._shared import SharedOp

        return SharedOp._of(self._take())

    # The first is for tuples of Any: nothing else fits Never.
    @overload
    def unzip(  # type: ignore[overload-overlap]
        self: DeviceOp[tuple[Never, ...]], count: int | None = None
    ) -> tuple[DeviceOp[Any], ...]: ...
    @overload
    def unzip(self: DeviceOp[tuple[A]], count: int | None = None) -> tuple[DeviceOp[A]]: ...
    @overload
    def unzip(self: DeviceOp[tuple[A, B]], count: int | None = None) -> tuple[DeviceOp[A], DeviceOp[B]]: ...
    @overload
    def unzip(
        self: DeviceOp[tuple[A, B, C]], count: int | None = None
    ) -> tuple[DeviceOp[A], DeviceOp[B], DeviceOp[C]]: ...
    @overload
    def unzip(
        self: DeviceOp[tuple[A, B, C, D]], count: int | None = None
    ) -> tuple[DeviceOp[A], DeviceOp[B], DeviceOp[C], DeviceOp[D]]: ...
    @overload
    def unzip(
        self: DeviceOp[tuple[A, B, C, D, E]], count: int | None = None
    ) -> tuple[DeviceOp[A], DeviceOp[B], DeviceOp[C], DeviceOp[D], DeviceOp[E]]: ...
    @overload
    def unzip(
        self: DeviceOp[tuple[A, B, C, D, E, F]], count: int | None = None
    ) -> tuple[DeviceOp[A], DeviceOp[B], DeviceOp[C], DeviceOp[D], DeviceOp[E], DeviceOp[F]]: ...
    @overload
    def unzip(
        self: DeviceOp[tuple[A, B, C, D, E, F, G]], count: int | None = None
    ) -> tuple[DeviceOp[A], DeviceOp[B], DeviceOp[C], DeviceOp[D], DeviceOp[E], DeviceOp[F], DeviceOp[G]]: ...
    @overload
    def unzip(
        self: DeviceOp[tuple[A, B, C, D, E, F, G, H]], count: int | None = None
    ) -> tuple[
        DeviceOp[A], DeviceOp[B], DeviceOp[C], DeviceOp[D], DeviceOp[E], DeviceOp[F], DeviceOp[G], DeviceOp[H]
    ]: ...
    @overload
    def unzip(self: DeviceOp[tuple[A, ...]], count: int | None = None) -> tuple[DeviceOp[A], ...]: ...
    def unzip(self, count: int | None = None) -> Any:
        """One operation per component of the tuple it yields; it runs once, with the first of them.

        `count` is needed only where the length cannot be known beforehand (after `then` or `map`).
        """
        from ._shared import unzip

        return unzip(self, count)

    @overload
    def first(self: DeviceOp[tuple[A, *tuple[Any, ...]]]) -> DeviceOp[A]: ...
    @overload
    def first(self: DeviceOp[tuple[A, ...]]) -> DeviceOp[A]: ...
    @overload
    def first(self: DeviceOp[Any]) -> DeviceOp[Any]: ...
    def first(self) -> DeviceOp[Any]:
        """The first component of the tuple it yields; the others are dropped."""
        return self[0]

    @overload
    def last(self: DeviceOp[tuple[*tuple[Any, ...], A]]) -> DeviceOp[A]: ...
    @overload
    def last(self: DeviceOp[tuple[A, ...]]) -> DeviceOp[A]: ...
    @overload
    def last(self: DeviceOp[Any]) -> DeviceOp[Any]: ...
    def last(self) -> DeviceOp[Any]:
        """The last component of the tuple it yields; the others are dropped."""
        return self[-1]

    @overload
    def __getitem__(self: DeviceOp[Never], index: Any) -> DeviceOp[Any]: ...  # for Any, as in unzip
    @overload
    def __getitem__(self: DeviceOp[Tensor], index: Any) -> DeviceOp[Tensor]: ...
    @overload
    def __getitem__(self: DeviceOp[tuple[A, *tuple[Any, ...]]], index: Literal[0]) -> DeviceOp[A]: ...
    @overload
    def __getitem__(self: DeviceOp[tuple[Any, A, *tuple[Any, ...]]], index: Literal[1]) -> DeviceOp[A]: ...
    @overload
    def __getitem__(
        self: DeviceOp[tuple[Any, Any, A, *tuple[Any, ...]]], index: Literal[2]
    ) -> DeviceOp[A]: ...
    @overload
    def __getitem__(self: DeviceOp[tuple[*tuple[Any, ...], A]], index: Literal[-1]) -> DeviceOp[A]: ...
    @overload
    def __getitem__(self, index: Any) -> DeviceOp[Any]: ...
    def __getitem__(self, index: Any) -> DeviceOp[Any]:
        """`value[index]` of what it yields: a component of a tuple, or a view of a tensor."""
        return _combinators.Item(self._take(), index)

    if TYPE_CHECKING:
        __iter__ = None
    else:

        def __array__(self, *_: object, **__: object) -> NoReturn:
            raise TypeError(
                f"a {type(self).__name__} is an operation, and no array: await it first, and then `t.to_host()` of the "
                "tensor that it yields (or go on with .to_host(), and await that)"
            )

        def __iter__(self) -> NoReturn:  # with __getitem__ alone Python would iterate without end
            raise TypeError(
                f"a {type(self).__name__} is an operation, and not iterable: await it first (or call .sync()), or take "
                "its components with .unzip(), .first(), .last() or [i]"
            )

    # -- on operations that yield tensors

    def reshape(self: DeviceOp[Tensor], *shape: ShapeLike) -> DeviceOp[Tensor]:
        """`Tensor.reshape` of what it yields."""
        return _combinators.method_of(self, "reshape", shape)

    def partition(self: DeviceOp[Tensor], tile_shape: ShapeLike) -> DeviceOp[Partition]:
        """`Tensor.partition` of what it yields."""
        return _combinators.method_of(self, "partition", (tile_shape,))

    def partition_prefix(self: DeviceOp[Tensor], tile_shape: ShapeLike) -> DeviceOp[Partition]:
        """`Tensor.partition_prefix` of what it yields."""
        return _combinators.method_of(self, "partition_prefix", (tile_shape,))

    def try_partition(self: DeviceOp[Tensor], tile_shape: ShapeLike) -> DeviceOp[Partition]:
        """`Tensor.try_partition` of what it yields."""
        return _combinators.method_of(self, "try_partition", (tile_shape,))

    def map_partition(
        self: DeviceOp[Partition], map_shape: ShapeLike, tile_blocks: int
    ) -> DeviceOp[MappedPartition]:
        """`Partition.map` of what it yields, for persistent kernels; `map` itself is that of operations."""
        return _combinators.method_of(self, "map", (map_shape, tile_blocks))

    def unpartition(self: DeviceOp[Partition] | DeviceOp[MappedPartition]) -> DeviceOp[Tensor]:
        """The tensor of the partition it yields."""
        return _combinators.method_of(self, "unpartition", ())

    def to_host(self: DeviceOp[Tensor]) -> DeviceOp[NDArray[Any]]:
        """Go on by copying the tensor it yields to a new NumPy array."""
        from ._copies import to_host_of

        return to_host_of(self)

    def astype(self: DeviceOp[Tensor], dtype: object) -> DeviceOp[Tensor]:
        """Go on by converting the tensor it yields to another element type."""
        from ._copies import astype_of

        return astype_of(self, dtype)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled; build another one, or use .shared()"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{', consumed' if self._consumed else ''}>"


_INTERNAL = frozenset(name for name in vars(DeviceOp) if name.startswith("_") and not name.endswith("__"))

# The combinators derive from DeviceOp, and its methods make them: the module is imported last, and once, since an
# import inside a method costs half a microsecond per call.
from . import _combinators  # noqa: E402
