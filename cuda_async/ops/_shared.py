"""Shared operations: run once, used by many; and the components of a tuple as operations of their own.

A gate holds the source. The first consumer, on whatever thread, task, loop or stream, starts it, on its own stream, as
a detached execution: it belongs to nobody, so a consumer that is cancelled takes nothing with it. Others that come
meanwhile wait until everything is enqueued, not until the device is done; then every consumer gets the same value, or
the same exception, and a consumer on another stream makes its stream wait for the source's. What the device reports
for the source comes out of every consumer too, so a consumer's completion looks at its sources' submissions.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import operator
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import (
    CaptureError,
    ConsumedError,
    CudaAsyncError,
    NotFilledYetError,
    ReentrancyError,
    StillReferredError,
)
from ..memory import MappedPartition, Mut, Partition, Read, Tensor
from ..scheduling import (
    Unfinished,
    block_on,
    check_not_forked,
    forks,
    note_kept_error,
    raise_first_error,
    wait_for_callback,
)
from ._execution import DeviceWait, Execution, device_hint, holds_arrays, interrupted, run_nested
from ._op import DeviceOp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from ..scheduling import Device, Submission
    from ..scheduling._recorder import Recorder
    from ._execution import Block

__all__ = ["SharedOp", "shared", "unzip"]

T = TypeVar("T")

MAX_DEPTH = 64
"""Of what a shared operation yields, one in the other."""


def _tensors_in(value: Any, depth: int = MAX_DEPTH) -> Iterator[Tensor]:
    """The tensors of what an operation yields, where graphs look for them too."""
    if isinstance(value, Tensor):
        yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, (Partition, Mut, Read)):
        parts = (value.tensor,)
    elif isinstance(value, MappedPartition):
        parts = (value.partition,)
    elif isinstance(value, (tuple, list)):
        parts = value
    elif isinstance(value, dict):
        parts = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name) for field in dataclasses.fields(value))
    if depth:
        for part in parts:
            yield from _tensors_in(part, depth - 1)


def _device_of(value: Any) -> Device | None:
    """Where its first tensor is. What yields a number or a host array is bound to no device, wherever it was made."""
    return next((tensor.device for tensor in _tensors_in(value)), None)


NO_OUTCOME = (NotFilledYetError, StillReferredError)
"""Errors after which a shared operation counts as not run."""


def repeated(error: BaseException) -> BaseException:
    """Another one that says the same, without a traceback; itself where its class, of somebody's own, forbids it."""
    try:
        return copy.copy(error)
    except Exception:
        return error


def given_up_meanwhile() -> NotFilledYetError:
    """What a consumer gets where another thread gives the recording up that has the source's run."""
    return NotFilledYetError(
        "the recording that had run this shared operation was given up at this moment; use it again"
    )


class Gate:
    """The one run of a shared source.

    Attributes:
        device: of the first tensor in the value; looked for once, as a value may be a long list.
        submission: closes what the source enqueued, or None where it enqueued nothing.
        is_recorded: a recording, or the graph that came of it, has what the source enqueued, or what it builds on.
        check_filled: of such a graph: raises where it was never launched.
        sources: submissions of other gates that the value comes from.
        waits_for: the gate that the source is blocked on.
        forks: `forks()` when the source was started. running: the run, until it has settled.

    What is run in the recording of a graph is run for good when the graph is made: till then `_recorder` says where,
    and what others build on it is not run for good either. `_again` is the source, as long as that may be run again: by
    one execution at a time, so not before `_left`, a run that was given up, is over.
    """

    def __init__(self, source: DeviceOp[Any] | None) -> None:
        self.source = source
        self.lock = threading.Lock()
        self.settled = source is None
        self.value: Any = None
        self.device: Device | None = None
        self.error: BaseException | None = None
        self.traceback: TracebackType | None = None  # each raise starts from it, or the traceback would grow
        self.submission: Submission | None = None
        self.sources: list[Submission] = []
        self.waits_for: Gate | None = None
        self.forks = 0
        self.running: Execution | None = None
        self.is_recorded = False
        self.check_filled: Callable[[], None] = _nothing
        self._has_ended: Callable[[], bool] = _never
        self._nodes_before = 0
        self._again: DeviceOp[Any] | None = None
        self._left: Unfinished | None = None
        self._recorder: Recorder | None = None
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, execution: Execution, frame: Any, *, is_back: bool = False) -> bool:
        """Start the source if nobody has; True when settled, else the execution is blocked on it.

        Args:
            is_back: it was blocked on it, and takes what has come of it.
        """
        starts = False
        source: DeviceOp[Any] | None = None
        owner = execution.owner
        recorder = self._recorder
        if recorder is not None:
            recorder.discard_abandoned()
        try:
            with self.lock:
                if self.settled and self._again is not None and not is_back and self._is_undone():
                    self._forget()
                if self._left is not None and self._left.done:
                    self._left = None
                if self._left is None:
                    starts = self.source is not None
                    source, self.source = self.source, None
            if source is not None:
                self.forks = forks()
                if owner is not None:
                    owner.waits_for = self
                self._run(source, execution)
        except BaseException as interrupt:
            if starts:  # nobody else will: who waits must know
                self._set(None, [], None, interrupted(interrupt))
            if owner is not None:
                owner.waits_for = None
            raise
        if self.settled:
            if owner is not None:
                owner.waits_for = None
                owner.is_recorded |= self.is_recorded and owner._recorder is not None
            recorder = execution.ctx.stream._recorder
            if recorder is not None and self._recorder is not None:
                recorder.check_shared(execution.ctx.stream, self)
            return not self._is_ahead_of(execution, frame)
        if owner is not None:
            owner.waits_for = self
            self._check_not_behind(owner)
        execution.frames.append(frame)
        execution.block = GateWait(self)
        return False

    def _run(self, source: DeviceOp[Any], execution: Execution) -> None:
        """Start the source, on the consumer's stream."""
        try:
            execution.close_part()
            inner = Execution(source, stream=execution.ctx.stream)
        except CudaAsyncError as error:  # the device is lost, for instance
            self._set(None, [], None, error)
            return
        inner.owner = self
        self.running = inner
        self._again = source
        recorder = execution.ctx.stream._recorder
        if recorder is not None:
            inner.detached = Unfinished()
            self._recorder = recorder
            self._nodes_before = recorder.node_count
            recorder.note_shared(execution.ctx.stream, self)
        if not execution.frames and not execution.enqueued:
            inner.chosen_by = execution.chosen_by
        run_nested(inner, functools.partial(self._settle, inner))

    def _check_not_behind(self, owner: Gate) -> None:
        """Raises when this gate waits for `owner`, which is about to wait for this gate.

        Each waiter is noted before it looks, so of several that close a ring the last one sees it.
        """
        if self.is_behind(owner):
            owner.waits_for = None
            raise ReentrancyError(
                "a shared operation uses itself, directly or through others, so it would wait for ever; "
                "its callback must return another operation"
            )

    def is_behind(self, other: Gate | None) -> bool:
        """Whether this is `other`, or waits for it, directly or through others."""
        gate: Gate | None = self
        while gate is not None and gate is not other:
            gate = gate.waits_for
        return gate is not None

    def _is_ahead_of(self, execution: Execution, frame: Any) -> bool:
        """Block a consumer whose stream cannot wait for the source's until the device is past that.

        It is on another device, or it only records: what a graph is made of must be there already.
        """
        submission = self.submission
        ctx = execution.ctx
        if submission is None:
            return False
        if (submission.stream.device is ctx.device and ctx.stream._recorder is None) or submission.poll():
            return False
        execution.frames.append(frame)
        execution.block = DeviceWait(submission, [submission])
        return True

    def _settle(self, inner: Execution, submission: Submission | None, error: BaseException | None) -> None:
        if self.running is inner or self.settled:  # and it was not undone
            recorder = self._recorder
            if recorder is not None:
                # one execution at a time is recorded; what only allocates makes no nodes
                self.is_recorded |= recorder.node_count > self._nodes_before or any(
                    tensor._buffer.is_recorded for tensor in _tensors_in(inner.value)
                )
                if error is not None and recorder.has_failed:  # whatever came of that is not the source's own
                    error = given_up_meanwhile()
            self._set(submission, inner.sources, inner.value, error)

    def _set(
        self,
        submission: Submission | None,
        sources: list[Submission],
        value: Any,
        error: BaseException | None,
    ) -> None:
        """Settle, once. Called again after an interrupt it only wakes who was left out."""
        with self.lock:
            if not self.settled and self.source is None:
                self.value = value
                self.device = _device_of(value)
                # frames would keep what it waits for to end
                if isinstance(error, NO_OUTCOME):
                    self.error = repeated(error)
                elif error is not None:
                    self.error = error
                    self.traceback = error.__traceback__
                    note_kept_error(self)
                self.submission = submission
                self.sources = sources
                self.running = None
                self.settled = True
                if self._recorder is None and not isinstance(error, NO_OUTCOME):
                    self._again = None
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            with self.lock:
                wake = self._waiting[0] if self._waiting else _nothing
            wake()
            with self.lock:
                if self._waiting and self._waiting[0] is wake:
                    del self._waiting[0]

    def keep(self, value: Any, check_filled: Callable[[], None], has_ended: Callable[[], bool]) -> None:
        """The graph that the source became part of is made, and not launched yet.

        Args:
            value: what others get, as an output of it.
            has_ended: whether it never will be.
        """
        with self.lock:
            self.value = value
            self.check_filled = check_filled
            self._has_ended = has_ended
            self._recorder = None
            if not (self.is_recorded if self.error is None else isinstance(self.error, NO_OUTCOME)):
                self._again = None

    def note_launched(self) -> None:
        """The graph was launched: the source has run."""
        with self.lock:
            source = self._again
            if self._recorder is None:
                self._again = None
        del source  # whatever it holds goes with no lock held

    def undo(self, recorder: object, leaving: list[Unfinished]) -> None:
        """`recorder` is given up, and if the source was run there, whoever comes next runs it anew.

        Where another thread is at a step of this run, or prepares one, they wait for the end of that. Said twice, as
        after an interrupt, it leaves alone what others have begun meanwhile.

        Args:
            leaving: gets what ends with the step that another thread is at in the recording, if one is.
        """
        with self.lock:
            if self._recorder is not recorder:
                return
            if self.error is not None and not isinstance(self.error, (CaptureError, *NO_OUTCOME)):
                self._again = None
            if self._again is None:
                self._recorder = None
                return
            running = self.running
            left = self._left = None if running is None else running.detached
            if left is not None and left not in leaving:
                leaving.append(left)
            self._forget()
            self.running = self._recorder = None  # last: an interrupt may come before
        try:
            # it would go on into the recording
            if running is not None and running.cancel() and left in leaving:
                leaving.remove(left)
            self._wake()
        finally:  # after an interrupt too: what waits here ends what others wait for
            self._wake()

    @property
    def has_run(self) -> bool:
        """For good."""
        return self.settled and self._again is None and self._recorder is None

    def _is_undone(self) -> bool:
        """Settled: it failed by what is no outcome, or its graph has ended without a launch."""
        return self._recorder is None and (self.error is not None or self._has_ended())

    def _forget(self) -> None:
        """Lock held. It has not run."""
        self.source, self._again = self._again, None
        self.settled = False
        self.value = self.error = self.traceback = self.submission = None
        self.sources = []
        self.is_recorded = False

    def deliver(self, execution: Execution) -> Any:
        """The value, ordered behind the source on the consumer's stream; or the source's exception."""
        with self.lock:  # a recording that another thread gives up takes all of it back
            settled, value, error, traceback = self.settled, self.value, self.error, self.traceback
            submission, sources, recorder = self.submission, self.sources, self._recorder
            is_recorded = self.is_recorded
        if not settled:
            raise given_up_meanwhile()
        if error is not None:
            execution.sources += sources
            raise repeated(error) if isinstance(error, NO_OUTCOME) else error.with_traceback(traceback)
        if is_recorded or recorder is not None:
            self._check_filled(execution, value, recorder, is_recorded)
        if submission is not None:
            if submission.poll():
                ended = [*sources, submission]
                if any(one.error is not None for one in ended):
                    execution.sources += ended
                raise_first_error(ended)
            else:
                self._order(execution, submission, sources, value)
        return value

    def _check_filled(
        self, execution: Execution, value: Any, recorder: Recorder | None, is_recorded: bool
    ) -> None:
        """Refuse what a graph is to fill that is recorded elsewhere, or was not launched."""
        if recorder is not None and recorder is execution.ctx.stream._recorder:
            return
        if recorder is None:
            self.check_filled()
            return
        # A buffer may be given up at this moment.
        buffers = (tensor._buffer for tensor in _tensors_in(value))
        if is_recorded or any(buffer.is_recorded or buffer.address < 0 for buffer in buffers):
            raise NotFilledYetError(
                "this shared operation belongs to a graph that is being recorded, and holds nothing yet; use it in the "
                "recording, or when that is over"
            )

    @staticmethod
    def _order(execution: Execution, submission: Submission, sources: list[Submission], value: Any) -> None:
        """The consumer goes on behind the source, and its own completion will look at the source's."""
        ctx = execution.ctx
        stream = ctx.stream
        if submission.stream is not stream:
            ctx._driver.bind()
            execution.note_enqueueing()
            with ctx.device._lock:
                stream._wait_for(submission.stream, submission.number)
                # Where it had waited already, nothing is new, but who joins this stream needs an event behind that.
                stream._dirty = True
        execution.sources += [*sources, submission]
        if not execution.host_pending:
            execution.host_pending = holds_arrays(value)

    def begin(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once settled; returns how to give up.

        Raises:
            ContextError: that would be in the parent of this forked process.
        """
        check_not_forked(self.forks, "this shared operation")
        with self.lock:
            left = self._left
            # Where its recording was given up since somebody asked, nobody runs it: who waits shall.
            waits = not self.settled and self.source is None
            if waits:
                self._waiting.append(wake)
        if left is not None:
            return left.begin_waiting(wake)
        if not waits:
            wake()

        def give_up() -> None:
            with self.lock:
                if wake in self._waiting:
                    self._waiting.remove(wake)

        return give_up


def _nothing() -> None:
    pass


def _never() -> bool:
    return False


class GateWait:
    """The run of the source, which may be another consumer's, is not through yet."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def begin(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._gate.begin(wake)

    def run_blocking(self) -> None:
        block_on(self._gate.begin, self.describe)

    async def wait(self) -> None:
        await wait_for_callback(self._gate.begin, self.describe)

    def raise_error(self) -> None:
        """The gate's error comes out where its value would have."""

    def describe(self) -> str:
        """What the run stands at, through shared operations that wait for one another."""
        gate: Gate | None = self._gate
        seen: set[Gate] = set()
        block: Block | None = None
        while gate is not None and gate not in seen:
            seen.add(gate)
            running = gate.running
            block = None if running is None else running.block
            gate = block._gate if isinstance(block, GateWait) else None
        at = "" if block is None or isinstance(block, GateWait) else f", which stands at {block.describe()}"
        return f"the run of a shared operation{at}"


class SharedOp(DeviceOp[T]):
    """An operation that runs once, however often it is used, awaited or composed. Made by `.shared()`."""

    _composite = True
    _gate: Gate
    _hint: Device | None
    _count: int | None

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("shared operations are made by DeviceOp.shared() or shared(value)")

    @classmethod
    def _of(cls, source: DeviceOp[T]) -> SharedOp[T]:
        self = object.__new__(cls)
        self._gate = Gate(source)
        self._hint = device_hint(source)
        self._scheduling_policy = source._scheduling_policy
        self._count = source._arity()
        return self

    @classmethod
    def _done(cls, value: T) -> SharedOp[T]:
        self = object.__new__(cls)
        self._gate = Gate(None)
        self._gate.value = value
        self._gate.device = _device_of(value)
        self._hint = None
        self._count = len(value) if isinstance(value, tuple) else None
        return self

    def _take(self) -> SharedOp[T]:
        return self

    def shared(self) -> SharedOp[T]:
        """Itself."""
        return self

    def _device_hint(self) -> Device | None:
        gate = self._gate
        if not gate.settled:
            return self._hint
        return gate.device

    def _arity(self) -> int | None:
        return self._count

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        if self._gate.enter(execution, self):
            execution.value = self._gate.deliver(execution)
        return None

    def _resume(self, execution: Execution, value: Any) -> None:
        if self._gate.enter(execution, self, is_back=True):
            execution.value = self._gate.deliver(execution)

    def unwrap_shared(self) -> DeviceOp[T]:
        """An operation that takes the value out for good, as its sole owner.

        Raises (when it runs):
            ConsumedError: other references to this shared operation exist. References to values that it gave to
                others before are not looked for.
        """
        return _Unwrap(self)


def shared(value: T) -> SharedOp[T]:
    """A value that exists already, as a shared operation.

    Raises:
        TypeError: it is an operation itself, whose method `shared()` makes that.
    """
    if isinstance(value, DeviceOp):
        raise TypeError(
            f"shared() takes a value, got the operation {type(value).__name__}; call its method, op.shared()"
        )
    return SharedOp._done(value)


class _Unwrap(DeviceOp[T]):
    """`shared_op.unwrap_shared()`."""

    _composite = True

    def __init__(self, shared_op: SharedOp[T]) -> None:
        self._shared: SharedOp[T] | None = shared_op

    def _parts(self) -> Sequence[DeviceOp[Any]]:
        return (self._shared,) if self._shared is not None else ()

    def _enter(self, execution: Execution) -> DeviceOp[Any] | None:
        if self._shared is None:  # in a shared operation that is run again
            raise ConsumedError("the value of this shared operation was taken by unwrap_shared()")
        execution.frames.append(self)
        return self._shared

    def _resume(self, execution: Execution, value: Any) -> None:
        assert self._shared is not None
        gate = self._shared._gate
        # Referrers of the shared op here: the list and getrefcount's argument. (Python 3.14 may not count a local.)
        holder, self._shared = [self._shared], None
        others = sys.getrefcount(holder[0]) - 2
        if others > 0:
            # Those of an error that is nobody's any more, and, in a free-threaded Python, of what others have let go.
            gc.collect()
            others = sys.getrefcount(holder[0]) - 2
        if others > 0:
            self._shared = holder[0]
            raise StillReferredError(
                f"unwrap_shared() needs the only reference to the shared operation, but there are {others} more; "
                "drop them first"
            )
        execution.value = value
        if execution.ctx.stream._recorder is not None:
            self._shared = holder[0]  # where the recording fails, this comes once more
            return
        gate.value = None
        gate.traceback = None
        gate.error = ConsumedError("the value of this shared operation was taken by unwrap_shared()")


class _Component(DeviceOp[Any]):
    """One component of an unzipped operation."""

    _composite = True

    def __init__(self, gate: Gate, index: int, count: int, hint: Device | None) -> None:
        self._gate = gate
        self._index = index
        self._count = count
        self._hint = hint

    def _device_hint(self) -> Device | None:
        return self._hint

    def _enter(self, execution: Execution, *, is_back: bool = False) -> DeviceOp[Any] | None:
        if self._gate.enter(execution, self, is_back=is_back):
            value = self._gate.deliver(execution)
            if not isinstance(value, (tuple, list)):
                raise TypeError(f"unzip() of an operation that yields a {type(value).__name__}, not a tuple")
            if len(value) != self._count:
                raise ValueError(f"unzip({self._count}) of an operation that yields {len(value)} components")
            execution.value = value[self._index]
        return None

    def _resume(self, execution: Execution, value: Any) -> None:
        self._enter(execution, is_back=True)


MOST_COMPONENTS = 1 << 20
"""An operation is made for each at once."""


def unzip(op: DeviceOp[Any], count: int | None) -> tuple[DeviceOp[Any], ...]:
    """The operations behind `op.unzip()`."""
    known = op._arity()
    if count is not None and not hasattr(count, "__index__"):
        raise TypeError(f"unzip() takes a number of components, got {count!r}")
    if known is None and count is None:
        raise CudaAsyncError(
            f"unzip() cannot know how many components {type(op).__name__} yields before it runs; say unzip(count)"
        )
    if known is not None and count is not None and known != count:
        raise ValueError(f"unzip({count}) of an operation that yields {known} components")
    length = operator.index(count) if count is not None else known or 0
    if not 0 <= length <= MOST_COMPONENTS:
        raise ValueError(f"unzip({count}): a number of components is 0 to {MOST_COMPONENTS}")
    gate = Gate(op._take())
    hint = device_hint(op)
    return tuple(_Component(gate, i, length, hint) for i in range(length))
