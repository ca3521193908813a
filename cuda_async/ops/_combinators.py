"""The composite operations: each pushes itself on the execution's stack and says what runs next."""

from __future__ import annotations

from collections.abc import Iterable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..errors import ConsumedError, SchedulingError
from ..memory._hints import instead_of_a_value
from ..scheduling import policy_in_force
from ._context import context_on
from ._execution import common, next_stream
from ._op import DeviceOp, refuse_attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..scheduling import SchedulingPolicy, Stream, Submission
    from ._context import ExecutionContext
    from ._execution import Execution

__all__ = [
    "Inspect",
    "Item",
    "Map",
    "Scheduled",
    "Then",
    "ThenWithContext",
    "check_function",
    "collect",
    "method_of",
    "parallel",
    "refuse_coroutine",
    "value",
    "with_context",
    "zip_ops",
]

T = TypeVar("T")
U = TypeVar("U")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
T6 = TypeVar("T6")
T7 = TypeVar("T7")
T8 = TypeVar("T8")


def check_function(f: object, method: str) -> None:
    """Refuse what no combinator can call, when it is given: by the time it runs, others would be enqueued."""
    if callable(f):
        return
    hint = ""
    if isinstance(f, DeviceOp):
        hint = "; for an operation that needs nothing of this one, .then(lambda _: op)"
    raise TypeError(f".{method}() takes a function, got {type(f).__name__}{hint}")


def next_op(result: object, f: object, method: str) -> DeviceOp[Any]:
    """What a callback returned must be a fresh operation."""
    if not isinstance(result, DeviceOp):
        refuse_coroutine(result, f)
        name = getattr(f, "__qualname__", repr(f))
        raise TypeError(
            f"the function given to .{method}() must return a DeviceOp, but {name} returned "
            f"{type(result).__name__}{instead_of_a_value(result) or '; use .map() for a plain value'}"
        )
    return result._take()


def _next_op_with_context(
    execution: Execution, f: Callable[..., object], method: str, *values: object
) -> DeviceOp[Any]:
    """What a callback that may enqueue by itself returned; what it enqueued counts, though it raises."""
    execution.note_enqueueing()
    try:
        result = f(execution.ctx, *values)
    finally:
        if execution.ctx._noted_in:
            execution.ctx._settle()
    return next_op(result, f, method)


def refuse_coroutine(result: object, f: object) -> None:
    """A callback is called while enqueueing, so it cannot be a coroutine function."""
    if isinstance(result, (CoroutineType, AsyncGeneratorType)):
        if isinstance(result, CoroutineType):
            result.close()  # or Python warns of it too
        name = getattr(f, "__qualname__", repr(f))
        raise TypeError(
            f"{name} is an async function, and callbacks cannot be async: "
            "return an operation from .then() for what comes next on the device, or await this one first"
        )


def _refuse_unrun(result: object, f: object) -> None:
    """What a callback of `inspect` returns is dropped, so nothing that is yet to run may be."""
    if isinstance(result, GeneratorType) or (isinstance(result, DeviceOp) and not result._consumed):
        name = getattr(f, "__qualname__", repr(f))
        raise TypeError(
            f"the function given to .inspect() only looks, but {name} returned a {type(result).__name__}, which would "
            "never run; use .then() to go on with an operation"
        )


class Value(DeviceOp[T]):
    """An operation that is already complete. Made by `value(x)`."""

    _enqueues = False
    _checks_output = False

    def __init__(self, value: T) -> None:
        self._value = value

    def execute(self, ctx: ExecutionContext) -> T:
        return self._value

    def needs_prepare(self, ctx: ExecutionContext) -> bool:
        return False

    def _arity(self) -> int | None:
        return len(self._value) if isinstance(self._value, tuple) else None


def value(x: T) -> DeviceOp[T]:
    """An operation that yields `x`, whatever that is, and does nothing."""
    return Value(x)


class _OnSource(DeviceOp[T]):
    """A composite with one source whose output it handles."""

    __slots__ = ()

    _composite = True
    _has_source = True

    def _parts(self) -> Sequence[DeviceOp[Any]]:
        return (self._source,)


class Then(_OnSource[U]):
    """`source.then(f)`."""

    __slots__ = ("__weakref__", "_consumed", "_f", "_source")

    _f: Callable[[Any], DeviceOp[U]]

    def _resume(self, execution: Execution, value: Any) -> DeviceOp[Any] | None:
        if execution.host_pending and execution.wait_for_host_data(self, value):
            return None
        return self._checked(self._f(value))

    def _checked(self, result: object) -> DeviceOp[Any]:
        return next_op(result, self._f, "then")


common.then = Then


class ThenWithContext(_OnSource[U]):
    """`source.then_with_context(f)`."""

    def __init__(self, source: DeviceOp[T], f: Callable[[ExecutionContext, T], DeviceOp[U]]) -> None:
        self._source = source
        self._f = f

    def _resume(self, execution: Execution, value: Any) -> DeviceOp[Any] | None:
        if execution.host_pending and execution.wait_for_host_data(self, value):
            return None
        return _next_op_with_context(execution, self._f, "then_with_context", value)


class Map(_OnSource[U]):
    """`source.map(f)`."""

    def __init__(self, source: DeviceOp[T], f: Callable[[T], U]) -> None:
        self._source = source
        self._f = f

    def _resume(self, execution: Execution, value: Any) -> None:
        if execution.host_pending and execution.wait_for_host_data(self, value):
            return
        result = self._f(value)
        if isinstance(result, DeviceOp):
            raise TypeError(
                f"the function given to .map() returned a DeviceOp ({type(result).__name__}), which would never "
                "run; use .then() to go on with an operation"
            )
        kind = type(result)
        if kind is CoroutineType or kind is AsyncGeneratorType:
            refuse_coroutine(result, self._f)
        execution.value = result


class Inspect(_OnSource[T]):
    """`source.inspect(f)`."""

    def __init__(self, source: DeviceOp[T], f: Callable[[T], object]) -> None:
        self._source = source
        self._f = f

    def _resume(self, execution: Execution, value: Any) -> None:
        if execution.host_pending and execution.wait_for_host_data(self, value):
            return
        result = self._f(value)
        if result is not None:
            refuse_coroutine(result, self._f)
            _refuse_unrun(result, self._f)
        execution.value = value


class Item(_OnSource[Any]):
    """`source[index]`."""

    def __init__(self, source: DeviceOp[Any], index: Any) -> None:
        self._source = source
        self._index = index

    def _resume(self, execution: Execution, value: Any) -> None:
        if execution.host_pending and execution.wait_for_host_data(self, value):
            return
        if not hasattr(value, "__getitem__"):
            raise TypeError(
                f"a component was asked of an operation that yields {_describe(value)}, which has none: "
                ".first(), .last() and [i] are for tuples, lists and tensors"
            )
        index = self._index
        if isinstance(value, (tuple, list)) and type(index) is int and not -len(value) <= index < len(value):
            raise IndexError(f"component {index} was asked of an operation that yields {len(value)} of them")
        execution.value = value[index]


class TensorMethod(_OnSource[Any]):
    """A method of what the source yields: `reshape`, `partition`, ..."""

    __getattr__ = refuse_attribute

    def __init__(self, source: DeviceOp[Any], name: str, arguments: Sequence[Any]) -> None:
        self._source = source
        self._name = name
        self._arguments = arguments

    def _resume(self, execution: Execution, value: Any) -> None:
        if execution.host_pending and execution.wait_for_host_data(self, value):
            return
        method = getattr(value, self._name, None)
        if method is None:
            raise TypeError(
                f".{self._name}() was asked of an operation that yields {_describe(value)}, "
                f"which has no {self._name}; pick a component first, with .first(), .last() or [i]"
            )
        execution.value = method(*self._arguments)


def method_of(source: DeviceOp[Any], name: str, arguments: Sequence[Any]) -> DeviceOp[Any]:
    """The operation behind `op.reshape(...)` and its kin."""
    return TensorMethod(source._take(), name, arguments)


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"


class WithContext(DeviceOp[T]):
    """`with_context(f)`."""

    _composite = True

    def __init__(self, f: Callable[[ExecutionContext], DeviceOp[T]]) -> None:
        self._f = f

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        return _next_op_with_context(execution, self._f, "with_context")


def with_context(f: Callable[[ExecutionContext], DeviceOp[T]]) -> DeviceOp[T]:
    """Go on with the operation that `f(ctx)` returns: the way to raw driver calls on the right stream."""
    check_function(f, "with_context")
    return WithContext(f)


# ------------------------------------------------------------------------------- several at once


class Zip(DeviceOp[Any]):
    """Several operations one after the other, on one stream."""

    __getattr__ = refuse_attribute
    _composite = True

    def __init__(self, ops: Iterable[DeviceOp[Any]], *, as_list: bool) -> None:
        self._ops = _taken(ops)
        self._as_list = as_list

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        if not self._ops:
            execution.value = [] if self._as_list else ()
            return None
        execution.frames.append(_ZipFrame(self._ops, self._as_list))
        return self._ops[0]

    def _arity(self) -> int | None:
        return len(self._ops)

    def _parts(self) -> Sequence[DeviceOp[Any]]:
        return self._ops


class _ZipFrame:
    __slots__ = ("as_list", "ops", "results")

    def __init__(self, ops: list[DeviceOp[Any]], as_list: bool) -> None:
        self.ops = ops
        self.as_list = as_list
        self.results: list[Any] = []

    def _resume(self, execution: Execution, value: Any) -> DeviceOp[Any] | None:
        results = self.results
        results.append(value)
        if len(results) < len(self.ops):
            execution.frames.append(self)
            return self.ops[len(results)]
        execution.value = results if self.as_list else tuple(results)
        return None


def _taken(ops: Iterable[DeviceOp[Any]]) -> list[DeviceOp[Any]]:
    """Consume all, or none."""
    if not isinstance(ops, Iterable) or isinstance(ops, DeviceOp):
        raise TypeError(
            f"expected operations, in a list for instance, got {type(ops).__name__}; zip(a, b) takes them singly"
        )
    checked = [_checked(op) for op in ops]
    for position, op in enumerate(checked):
        try:
            op._take()
        except ConsumedError:
            for earlier in checked[:position]:
                earlier._consumed = False
            raise
    return checked


def _checked(op: object) -> DeviceOp[Any]:
    if not isinstance(op, DeviceOp):
        hint = instead_of_a_value(op) or "; wrap a plain value with value(x)"
        raise TypeError(f"expected a DeviceOp, got {type(op).__name__}{hint}")
    return op


@overload
def zip_ops() -> DeviceOp[tuple[()]]: ...
@overload
def zip_ops(a: DeviceOp[T1], /) -> DeviceOp[tuple[T1]]: ...
@overload
def zip_ops(a: DeviceOp[T1], b: DeviceOp[T2], /) -> DeviceOp[tuple[T1, T2]]: ...
@overload
def zip_ops(a: DeviceOp[T1], b: DeviceOp[T2], c: DeviceOp[T3], /) -> DeviceOp[tuple[T1, T2, T3]]: ...
@overload
def zip_ops(
    a: DeviceOp[T1], b: DeviceOp[T2], c: DeviceOp[T3], d: DeviceOp[T4], /
) -> DeviceOp[tuple[T1, T2, T3, T4]]: ...
@overload
def zip_ops(
    a: DeviceOp[T1], b: DeviceOp[T2], c: DeviceOp[T3], d: DeviceOp[T4], e: DeviceOp[T5], /
) -> DeviceOp[tuple[T1, T2, T3, T4, T5]]: ...
@overload
def zip_ops(
    a: DeviceOp[T1],
    b: DeviceOp[T2],
    c: DeviceOp[T3],
    d: DeviceOp[T4],
    e: DeviceOp[T5],
    f: DeviceOp[T6],
    /,
) -> DeviceOp[tuple[T1, T2, T3, T4, T5, T6]]: ...
@overload
def zip_ops(
    a: DeviceOp[T1],
    b: DeviceOp[T2],
    c: DeviceOp[T3],
    d: DeviceOp[T4],
    e: DeviceOp[T5],
    f: DeviceOp[T6],
    g: DeviceOp[T7],
    /,
) -> DeviceOp[tuple[T1, T2, T3, T4, T5, T6, T7]]: ...
@overload
def zip_ops(
    a: DeviceOp[T1],
    b: DeviceOp[T2],
    c: DeviceOp[T3],
    d: DeviceOp[T4],
    e: DeviceOp[T5],
    f: DeviceOp[T6],
    g: DeviceOp[T7],
    h: DeviceOp[T8],
    /,
) -> DeviceOp[tuple[T1, T2, T3, T4, T5, T6, T7, T8]]: ...
@overload
def zip_ops(*ops: DeviceOp[Any]) -> DeviceOp[tuple[Any, ...]]: ...
def zip_ops(*ops: DeviceOp[Any]) -> DeviceOp[Any]:
    """Run operations in order on one stream; yields the tuple of their outputs."""
    return Zip(ops, as_list=False)


def collect(ops: Iterable[DeviceOp[T]]) -> DeviceOp[list[T]]:
    """Run operations in order on one stream; yields the list of their outputs."""
    return Zip(ops, as_list=True)


class Parallel(DeviceOp[Any]):
    """`parallel(*ops)`."""

    _composite = True

    def __init__(self, ops: Sequence[DeviceOp[Any]]) -> None:
        self._ops = _taken(ops)

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        if not self._ops:
            execution.value = ()
            return None
        frame = _Fork(execution, self._ops, None)
        return frame.begin(execution)

    def _arity(self) -> int | None:
        return len(self._ops)

    def _parts(self) -> Sequence[DeviceOp[Any]]:
        return self._ops


@overload
def parallel() -> DeviceOp[tuple[()]]: ...
@overload
def parallel(a: DeviceOp[T1], /) -> DeviceOp[tuple[T1]]: ...
@overload
def parallel(a: DeviceOp[T1], b: DeviceOp[T2], /) -> DeviceOp[tuple[T1, T2]]: ...
@overload
def parallel(a: DeviceOp[T1], b: DeviceOp[T2], c: DeviceOp[T3], /) -> DeviceOp[tuple[T1, T2, T3]]: ...
@overload
def parallel(
    a: DeviceOp[T1], b: DeviceOp[T2], c: DeviceOp[T3], d: DeviceOp[T4], /
) -> DeviceOp[tuple[T1, T2, T3, T4]]: ...
@overload
def parallel(
    a: DeviceOp[T1], b: DeviceOp[T2], c: DeviceOp[T3], d: DeviceOp[T4], e: DeviceOp[T5], /
) -> DeviceOp[tuple[T1, T2, T3, T4, T5]]: ...
@overload
def parallel(
    a: DeviceOp[T1],
    b: DeviceOp[T2],
    c: DeviceOp[T3],
    d: DeviceOp[T4],
    e: DeviceOp[T5],
    f: DeviceOp[T6],
    /,
) -> DeviceOp[tuple[T1, T2, T3, T4, T5, T6]]: ...
@overload
def parallel(
    a: DeviceOp[T1],
    b: DeviceOp[T2],
    c: DeviceOp[T3],
    d: DeviceOp[T4],
    e: DeviceOp[T5],
    f: DeviceOp[T6],
    g: DeviceOp[T7],
    /,
) -> DeviceOp[tuple[T1, T2, T3, T4, T5, T6, T7]]: ...
@overload
def parallel(
    a: DeviceOp[T1],
    b: DeviceOp[T2],
    c: DeviceOp[T3],
    d: DeviceOp[T4],
    e: DeviceOp[T5],
    f: DeviceOp[T6],
    g: DeviceOp[T7],
    h: DeviceOp[T8],
    /,
) -> DeviceOp[tuple[T1, T2, T3, T4, T5, T6, T7, T8]]: ...
@overload
def parallel(*ops: DeviceOp[Any]) -> DeviceOp[tuple[Any, ...]]: ...
def parallel(*ops: DeviceOp[Any]) -> DeviceOp[Any]:
    """Run operations side by side, each on a stream of the policy, and join; yields the tuple of their outputs.

    Each branch starts after what came before on the chain's stream, and the chain goes on after all of them.
    """
    return Parallel(ops)


class _Fork:
    """Branches on other streams: each starts behind the chain's stream and is joined by it."""

    __slots__ = ("before", "behind", "home", "is_given", "ops", "policy", "results", "used")

    def __init__(
        self, execution: Execution, ops: list[DeviceOp[Any]], policy: SchedulingPolicy | None
    ) -> None:
        self.home = execution.ctx
        self.ops = ops
        self.is_given = policy is not None
        self.policy = policy or policy_in_force() or execution.ctx.device.policy
        self.results: list[Any] = []
        self.used: list[Stream] = []
        execution.close_part()
        self.before = len(execution.sources)
        self.behind = self._last_at_home(execution)

    def _last_at_home(self, execution: Execution) -> Submission | None:
        """What branches start behind: all that is on the chain's stream now, whoever enqueued it.

        A wait hands a failure on, and that of others' work is not for the branches: then it is for an event behind it.
        """
        stream = self.home.stream
        if stream._recorder is not None:
            return None
        with self.home.device._lock:
            last = stream._last
            if last is not None and not last.done and last not in execution.sources[-1:]:
                stream._dirty = True
            return stream._record() if stream._dirty or last is not None else None

    def begin(self, execution: Execution) -> DeviceOp[Any]:
        """Enter the next branch."""
        home = self.home
        recorder = home.stream._recorder
        stream = recorder.fork(home.stream) if recorder is not None else self._next_stream()
        self.used.append(stream)
        execution.ctx = context_on(stream)
        if self.behind is not None:
            execution.enqueued = stream._next
            with home.device._lock:
                stream._wait_for(home.stream, self.behind.number)
                if not stream._dirty:
                    execution.enqueued = 0
        execution.frames.append(self)
        return self.ops[len(self.results)]

    def _next_stream(self) -> Stream:
        """What the policy chooses; a stream of the chain's device."""
        home = self.home
        stream = next_stream(self.policy, None if self.is_given else home.device)
        if stream.device is not home.device and not self.is_given:  # of `use_policy`, for another device
            self.policy = home.device.policy
            stream = next_stream(self.policy)
        if stream.device is not home.device:
            raise SchedulingError(
                f"an operation in a chain was given {stream!r}, but the chain runs on {home.device}; a chain runs on "
                "one device: schedule all of it there, with .schedule() at its end or in `with use_device(...)`"
            )
        home.driver.bind()
        return stream

    def _resume(self, execution: Execution, value: Any) -> DeviceOp[Any] | None:
        self.results.append(value)
        execution.close_part()
        if len(self.results) < len(self.ops):
            return self.begin(execution)
        home = self.home
        execution.ctx = home
        execution.enqueued = home.stream._next
        if home.stream._recorder is not None:
            home.stream._recorder.join(home.stream, self.used)
        else:
            self._join(execution.sources[self.before :])
        execution.value = tuple(self.results)
        return None

    def _join(self, closed: Sequence[Submission]) -> None:
        """What the chain enqueues next waits for the last submission of each branch."""
        home = self.home
        last: dict[Stream, int] = {}
        for submission in closed:  # shared operations bring earlier ones
            last[submission.stream] = max(submission.number, last.get(submission.stream, 0))
        with home.device._lock:
            for stream in self.used:
                number = last.get(stream, 0)
                home.stream._wait_for(stream, number)
                if stream is not home.stream and stream._done < number:
                    # Where it had waited already, nothing is new, but who joins this stream needs an event behind that.
                    home.stream._dirty = True


class Scheduled(DeviceOp[T]):
    """`source.schedule(policy)`: its own choice of stream; inside a chain, one forked branch."""

    _composite = True

    def __init__(self, source: DeviceOp[T], policy: SchedulingPolicy) -> None:
        self._source = source
        self._scheduling_policy = policy

    def _parts(self) -> Sequence[DeviceOp[Any]]:
        return (self._source,)

    def _arity(self) -> int | None:
        return self._source._arity()

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        if execution.chosen_by is self._scheduling_policy and not execution.frames and not execution.enqueued:
            return self._source  # the whole run is scheduled so
        execution.frames.append(_FirstOfOne())
        return _Fork(execution, [self._source], self._scheduling_policy).begin(execution)


class _FirstOfOne:
    __slots__ = ()

    def _resume(self, execution: Execution, value: Any) -> None:
        execution.value = value[0]
