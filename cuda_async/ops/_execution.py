"""Running an operation: a machine with an explicit stack, which can stop and go on.

Theory. A tree of operations is evaluated without Python recursion, so a `.then` chain may have any length. Composite
operations push a frame and name the child that comes next; leaves enqueue and give a value; the value goes to the
topmost frame. All of this happens in one go, without giving up the loop.

Three things can stop it, and none blocks the loop: an operation that must be prepared first (`Prepare`), a shared
operation that another task is still running (`GateWait`), and a callback that wants to look at host data which is
still being copied (`DeviceWait`). The machine then returns with `block` set; whoever drives it waits in its own way
(`run_async`, `run_sync`, or a worker thread for `start`) and calls `run` again.

While the machine runs, callbacks may only enqueue: a nested run in the same context is a `ReentrancyError`. The mark
is an object that a finished burst switches off, so tasks and threads made by a callback are free afterwards.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import (
    CudaAsyncError,
    DeviceLostError,
    OperationCancelledError,
    SchedulingError,
)
from ..scheduling import (
    Burst,
    LeastLoaded,
    PriorityStreams,
    SingleStream,
    Stream,
    StreamPoolRoundRobin,
    Unfinished,
    WaitElsewhere,
    WorkerTask,
    as_callback,
    check_not_in_callback,
    checked_open,
    checkpoint,
    current_burst,
    current_device,
    default_device_if_known,
    do_what_was_put_off,
    note_kept_error,
    policy_in_force,
    put_off,
    raise_first_error,
    run_in_worker,
    running_library,
    wait_for_callback,
    wait_until_done,
    waiting,
    waiting_elsewhere,
)
from ._context import ExecutionContext, context_on
from ._turns import MAX_ENQUEUEING_S, current_turn
from ._unprepared import UNPREPARED

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..scheduling import Device, SchedulingPolicy, Submission
    from ._op import DeviceOp
    from ._shared import Gate

    # Told of the end of a detached execution: what closes the work, if there is any, or the error.
    Finished = Callable[[Submission | None, BaseException | None], None]

__all__ = [
    "Block",
    "DeviceWait",
    "Execution",
    "check_not_in_callback",
    "check_stream",
    "common",
    "device_hint",
    "interrupted",
    "next_stream",
    "run_async",
    "run_sync",
]


class _CommonTypes:
    """The two commonest steps, told apart by their exact type: in CPython 3.12 reading a class's attribute through an
    instance costs three times as much. Set by the modules that define them, which import this one.
    """

    then: Any
    launch: Any


common = _CommonTypes()


class Block(Protocol):
    """What stopped an execution, and how to wait for it in each way."""

    def begin(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once when it is over, from any thread; returns how to give up."""
        ...

    def run_blocking(self) -> None:
        """Wait for it (or do it) on this thread."""
        ...

    async def wait(self) -> None:
        """Wait for it in the running task."""
        ...

    def raise_error(self) -> None:
        """Raise what went wrong meanwhile."""
        ...

    def describe(self) -> str:
        """What it is, in words."""
        ...


class _WorkerBlock:
    """Slow host work, done by a worker thread for asynchronous drivers."""

    __slots__ = ("__weakref__", "_context", "error", "work")

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.error: BaseException | None = None
        self._context = contextvars.copy_context()

    def begin(self, wake: Callable[[], None]) -> Callable[[], None]:
        return WorkerTask(self._run_in_worker, wake).abandon

    def _run_in_worker(self) -> None:
        with waiting_elsewhere(True):
            self._run()

    def run_blocking(self) -> None:
        with waiting_elsewhere(False), waiting(None, self.describe):
            self._run()

    def describe(self) -> str:
        prepares = getattr(getattr(self.work, "func", None), "__self__", None)
        return f"the preparation of {type(prepares).__name__}" if prepares else "the first use of a device"

    def _run(self) -> None:
        try:
            self._context.run(self.work)
        except WaitElsewhere:
            raise
        except BaseException as error:
            self.error = error
            note_kept_error(self)
        self.work = _nothing  # it is done once, and holds memory

    async def wait(self) -> None:
        await wait_for_callback(self.begin, self.describe)

    def raise_error(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # the traceback has this frame, which would keep it, and whatever its frames hold


class DeviceWait:
    """Wait until the device is past a submission, behind which something is looked at; several may have failed."""

    __slots__ = ("submission", "submissions")

    def __init__(self, submission: Submission, submissions: list[Submission]) -> None:
        self.submission = submission
        self.submissions = submissions

    def begin(self, wake: Callable[[], None]) -> Callable[[], None]:
        if not self.submission.add_callback(wake):
            wake()
        return lambda: self.submission.remove_callback(wake)

    def run_blocking(self) -> None:
        self.submission.block()

    async def wait(self) -> None:
        await wait_until_done(self.submission)

    def raise_error(self) -> None:
        raise_first_error(self.submissions)

    def describe(self) -> str:
        return f"host data of {self.submission.stream!r}"


def _nothing() -> None:
    pass


def check_stream(stream: object) -> None:
    """Raises `TypeError` for what is no stream."""
    if not isinstance(stream, Stream):
        raise TypeError(
            f"expected a Stream, got {type(stream).__name__}; make one with device.create_stream()"
        )


def next_stream(policy: SchedulingPolicy, wanted: Device | None = None) -> Stream:
    """What a policy chooses, which may be anybody's code; an open stream of a usable device.

    One that is not on the device `wanted`, where that is said, is given as it is.
    """
    stream = policy.next_stream() if type(policy) in OWN_POLICIES else _ask(policy)
    if not isinstance(stream, Stream):
        raise SchedulingError(
            f"{type(policy).__name__}.next_stream() returned {type(stream).__name__}, expected a Stream"
        )
    if stream._closed or stream.device._lost is not None or stream.device._forked:
        if wanted is not None and stream.device is not wanted:
            return stream
        stream._check_open()
    return stream


OWN_POLICIES = frozenset((LeastLoaded, PriorityStreams, SingleStream, StreamPoolRoundRobin))
"""They run nothing."""


def _ask(policy: SchedulingPolicy) -> Stream:
    # running an operation there would ask it again, without end
    with as_callback(
        f"{type(policy).__name__}.next_stream(): a policy only chooses a stream; make it before"
    ):
        return policy.next_stream()


def device_hint(op: DeviceOp[Any]) -> Device | None:
    """The device of the first part of `op` that is bound to one. Without recursion: operations nest deeply."""
    if not op._composite:
        return op._device_hint()
    parts: list[Any] = [op]
    then = common.then
    while parts:
        part = parts.pop()
        while type(part) is then or part._has_source:
            part = part._source
        if part._composite:
            parts.extend(reversed(part._parts()))
        hint: Device | None = part._device_hint()
        if hint is not None:
            return hint
    return None


NOT_STANDING: list[None] = []
"""Of executions that are at work, or not detached; nothing is put into it."""


def _take(standing: list[None]) -> bool:
    """Whether nobody has taken it; one call on one of all threads."""
    try:
        standing.pop()
    except IndexError:
        return False
    return True


class Execution:
    """One run of one operation.

    Attributes:
        ctx: current context; changes inside `parallel`.
        chosen_by: the policy that chose the stream; None where the stream was given.
        frames: what waits for a value, innermost last.
        value: the value a frame produced, and the result in the end.
        block: what stopped it, or None.
        enqueued: the number that the stream stood at when this enqueued there what no event closes yet; 0 where there
            is nothing of the kind. In a recording it means nothing.
        host_pending: host arrays were handed out whose copy may still run; in a recording, where there are none, that
            callbacks are a place to stop at.
        owner: the gate of the shared operation that this is the run of, if any.
        sources: submissions whose errors are this execution's: what it enqueued before it stopped, or on other streams,
            and shared operations that were used. The current stream has been told to wait for all of them.
        cancelled: enqueue nothing further; looked at before each step of a chain, so a run on another thread ends with
            the step that it is at.
        detached: since it went on on worker threads: what `drain()` waits for. Of a shared operation's run in a
            recording from the start.
        standing: has an item while a detached one waits to go on: who takes it does so, or gives it up.
    """

    __slots__ = (
        "_asked",
        "_expect_prepared",
        "_op",
        "_policy",
        "block",
        "cancelled",
        "chosen_by",
        "context",
        "ctx",
        "detached",
        "enqueued",
        "frames",
        "host_pending",
        "owner",
        "sources",
        "standing",
        "value",
    )

    ctx: ExecutionContext

    def __init__(
        self, op: DeviceOp[Any], *, policy: SchedulingPolicy | None = None, stream: Stream | None = None
    ) -> None:
        if put_off:
            do_what_was_put_off()
        self._op: DeviceOp[Any] | None = op
        self.frames: list[Any] = []
        self.value: Any = None
        self.enqueued = 0
        self.host_pending = False
        self.owner: Gate | None = None
        self.sources: list[Submission] = []
        self._expect_prepared: DeviceOp[Any] | None = None
        self._policy = policy
        self._asked = False
        self.chosen_by: SchedulingPolicy | None = None
        self.block: Block | None = None
        self.cancelled = False
        self.detached: Unfinished | None = None
        self.standing: list[None] = NOT_STANDING
        self.context: contextvars.Context | None = None
        if stream is not None:
            stream._check_open()
            self.ctx = context_on(stream)
        else:
            self._choose_stream(op)

    def _choose_stream(self, op: DeviceOp[Any]) -> None:
        """Take the policy's next stream, or set a block that makes the device ready first."""
        bound: Device | None = None
        policy = self._policy or op._scheduling_policy
        if policy is None:
            bound = device_hint(op)
            policy = policy_in_force()
        if policy is not None:
            if not self._asked and not getattr(policy, "is_ready", True):
                self.block = _WorkerBlock(functools.partial(self._ask, policy))
                return
            stream = next_stream(policy, bound)
        is_elsewhere = policy is not None and bound is not None and stream.device is not bound
        if policy is None or is_elsewhere:
            device = bound or default_device_if_known()
            policy = device._policy if device is not None and device._driver is not None else None
            if device is None or policy is None:
                self.block = _WorkerBlock(functools.partial(_make_ready, device))
                return
            if device._lost is not None or device._closed_because or device._forked:
                device._check_usable()
            stream = next_stream(policy)
        self.chosen_by = policy
        self.ctx = ExecutionContext(stream.device, stream)

    def _ask(self, policy: SchedulingPolicy) -> None:
        _ask(policy)
        self._asked = True

    def run(self) -> bool:
        """Go on until done (True) or stopped (False: `block` is set, or it was cancelled). Raises the first error."""
        op = self._op
        if op is not None and op._reports_unprepared and not self.frames:
            return self._run_or_note_loss()  # one of ours alone, which calls nobody
        burst = Burst()
        before = current_burst.get()
        try:  # an interrupt may come as soon as the mark is set
            current_burst.set(burst)
            return self._run_or_note_loss()
        finally:
            burst.active = False
            current_burst.set(before)

    def _run_or_note_loss(self) -> bool:
        try:
            finished = self._run()
            if not finished:  # others may enqueue here before this goes on
                self.close_part()
            return finished
        except DeviceLostError as lost:
            ctx = getattr(self, "ctx", None)
            if ctx is not None and ctx.device._lost is None and ctx.device._is_own(lost):
                raise ctx.device._note_lost(lost) from lost
            raise

    def _run(self) -> bool:
        op: Any = self._op  # of any kind: what its kind has besides is asked for
        value = self.value
        block = self.block
        if block is not None:
            self.block = None
            block.raise_error()
            if not hasattr(self, "ctx"):
                assert op is not None
                self._choose_stream(op)
                if self.block is not None:  # the device was closed meanwhile
                    return False
        self.ctx._driver.bind()
        frames = self.frames
        then = common.then
        launch = common.launch
        while True:
            if op is not None:
                while type(op) is then:
                    frames.append(op)
                    op = op._source
                if type(op) is launch:
                    if not self.enqueued:
                        self.enqueued = self.ctx.stream._next
                    value = op._launch(op._args, self.ctx, op._config)
                    if value is UNPREPARED:
                        return self._prepare(op)
                elif op._has_source:
                    frames.append(op)
                    op = op._source
                    continue
                elif op._composite:
                    op = op._enter(self)
                    if op is not None:
                        continue
                    if self.block is not None:
                        self._op = None
                        return False
                    value = self.value
                elif op._reports_unprepared:
                    if not self.enqueued:
                        self.enqueued = self.ctx.stream._next
                    value = op.execute(self.ctx)
                    if value is UNPREPARED:
                        return self._prepare(op)
                else:
                    ctx = self.ctx
                    if op.needs_prepare(ctx) and self._expect_prepared is not op:
                        return self._prepare(op)
                    if op._enqueues and not self.enqueued:
                        self.enqueued = ctx.stream._next
                    if op._yields_host_data:
                        self.host_pending = True
                    self._expect_prepared = None
                    try:
                        value = op.execute(ctx)
                    finally:
                        if ctx._noted_in:
                            ctx._settle()
                    if op._checks_output:
                        op._check_output(value)
            if not frames:
                self._op = None
                self.value = value
                return True
            if self.cancelled:  # by another thread, meanwhile
                self._op = None
                self.value = value
                return False
            frame = frames.pop()
            if type(frame) is then and not self.host_pending:
                # Then._resume, written out: there is one between any two launches of a chain.
                op = frame._f(value)
                if type(op) is launch and not op._consumed:
                    op._consumed = True
                else:
                    op = frame._checked(op)
                continue
            op = frame._resume(self, value)
            if op is None:
                if self.block is not None:
                    self._op = None
                    return False
                value = self.value

    def _prepare(self, op: DeviceOp[Any]) -> bool:
        """Stop until the operation is prepared."""
        self._op = self._expect_prepared = op
        self.block = _WorkerBlock(functools.partial(op.prepare, self.ctx))
        return False

    def wait_for_host_data(self, frame: Any, value: Any) -> bool:
        """True when `value` holds host data in flight: `frame` will get it again once it has arrived."""
        recorder = self.ctx.stream._recorder
        if recorder is not None:
            return recorder.pause(self, frame, value)
        if not holds_arrays(value):
            return False
        submission = self.submit()
        self.host_pending = False
        if submission is None:
            return False
        if submission not in self.sources:
            self.sources.append(submission)
        if submission.poll():
            raise_first_error(self.sources)
            return False
        self.frames.append(frame)
        self.value = value
        self.block = DeviceWait(submission, list(self.sources))
        return True

    def raise_error(self, last: Submission) -> None:
        """Once the device is past `last`, which `submit` gave: raise what it reported first, if anything."""
        if self.sources:
            raise_first_error([*self.sources, last])
        else:
            last.raise_error()

    def submit(self) -> Submission | None:
        """Close what is open; what to wait for, or None when the device is past everything, or nothing was enqueued."""
        last = self._close() if self.enqueued else None
        if last is None and self.sources:
            pending = [source for source in self.sources if not source.done]
            if not pending:
                return self.sources[-1]
            stream = self.ctx.stream
            last = max(pending, key=lambda source: source.number)
            if all(source.stream is stream for source in pending):
                return last
            # They end in any order. The stream waits for all of them already, so an event on it is behind them.
            last = self._close(anew=True) or last
        return last

    def note_enqueueing(self) -> None:
        """Something may be enqueued on the current stream next."""
        if not self.enqueued:
            self.enqueued = self.ctx.stream._next

    def close_part(self) -> None:
        """Close what is open before others enqueue on the stream, or this goes on on another one."""
        last = self._close() if self.enqueued else None
        if last is not None:
            self.sources.append(last)

    def _close(self, *, anew: bool = False) -> Submission | None:
        """Close what is open; the last submission that it is in, or None where the device has passed all of it well.

        It is in several where others closed some: another thread at work on the stream, or one that waits for it.

        Args:
            anew: nothing is open, and an event shall be recorded all the same.
        """
        first = self.enqueued
        stream = self.ctx.stream
        if stream._recorder is not None:
            return None
        device = self.ctx.device
        last: Submission | None = None
        try:
            with device._lock:  # the context is bound: this follows a run on the same thread
                if stream._closed:
                    device._check_usable()  # it waits for nothing when it is closed; a stream does
                    if anew:
                        return None
                elif anew:
                    first = stream._next
                    stream._dirty = True
                    last = stream._record()
                elif stream._dirty or stream._handed_out:
                    last = stream._record()
                if last is None or last.number != first:
                    closed = stream._closed_from(first)
                    self.sources += closed[:-1]
                    last = closed[-1] if closed else None
        except DeviceLostError as lost:
            raise device._note_lost(lost) from lost
        self.enqueued = 0
        return last

    def cancel(self) -> bool:
        """Enqueue nothing further. From any thread: False where another one is at work on it, and ends its step."""
        self.cancelled = True
        stands = _take(self.standing)
        if stands:
            self.abandon()
        return stands

    def abandon(self) -> None:
        """After an error or a cancel: what was enqueued still gets its event, so that it is released in time."""
        if self.enqueued and self.ctx.device.is_healthy:
            # The error that led here is the one to report; near the limit of recursion it is that again.
            with contextlib.suppress(CudaAsyncError, RecursionError):
                self.close_part()
        if any(source.error is not None for source in self.sources):
            for source in self.sources:  # who has that hears of no other: see raise_first_error
                source.note_heard_of()
        for frame in self.frames:
            given_up = getattr(frame, "given_up", None)
            if given_up is not None:
                given_up()
        self.frames.clear()
        self._op = None
        self.block = None


def _make_ready(device: Device | None) -> None:
    """First use: find the default device, load its driver, make its default streams."""
    chosen = checked_open(device or current_device())
    try:
        _ask(chosen.policy)
    except DeviceLostError as lost:
        raise chosen._note_lost(lost) from lost


def holds_arrays(value: object, depth: int = 3) -> bool:
    import numpy as np

    if isinstance(value, np.ndarray):
        return True
    return bool(depth) and isinstance(value, (tuple, list)) and any(holds_arrays(v, depth - 1) for v in value)


# ---------------------------------------------------------------------------------- drivers


async def run_async(op: DeviceOp[Any]) -> Any:
    """Run an operation in the running task; cancelling stops the waiting, never the device."""
    if running_library() == "trio":
        await checkpoint()
    turn = current_turn()
    if turn.spent_s > MAX_ENQUEUEING_S:
        await turn.give_way()
    execution = Execution(op)
    try:
        while True:
            if turn.spent_s > MAX_ENQUEUEING_S:
                await turn.give_way()
            began = time.perf_counter()
            finished = execution.run()
            if finished:
                submission = execution.submit()
            turn.spend(time.perf_counter() - began)
            if finished:
                break
            assert execution.block is not None
            await execution.block.wait()
    except GeneratorExit:
        # Left behind by a closed loop, and maybe being collected inside a device's lock: no lock may be taken.
        put_off.append(execution.abandon)
        raise
    except BaseException:
        execution.abandon()
        raise
    if submission is not None:
        await wait_until_done(submission)
        execution.raise_error(submission)
    return execution.value


def run_sync(execution: Execution) -> Any:
    """Drive an execution on this thread and block until the device is done."""
    try:
        while not execution.run():
            assert execution.block is not None
            execution.block.run_blocking()
        submission = execution.submit()
    except BaseException:
        execution.abandon()
        raise
    if submission is not None:
        submission.block()
        execution.raise_error(submission)
    return execution.value


def run_detached(execution: Execution, finished: Finished) -> None:
    """Drive an execution on this thread as far as it goes, and on worker threads from there.

    `finished` is called once, with what closes it when everything is enqueued, or with the first error; not after a
    cancel, and maybe not when an interrupt comes out.
    """
    if execution.context is None:
        execution.context = contextvars.copy_context()
    ended = True
    try:
        ended = _advance_detached(execution, finished, threading.get_ident())
    finally:  # after an interrupt too: `drain()` would wait for ever
        if ended and execution.detached is not None:
            execution.detached.finish()


MAX_NESTED = 16
"""How many shared operations may start one another on one thread's stack."""


class _Nesting(threading.local):
    depth = 0


_nesting = _Nesting()


def run_nested(execution: Execution, finished: Finished) -> None:
    """`run_detached`, from within a run. Beyond a certain depth it goes on on a worker thread, whose stack is empty."""
    if _nesting.depth >= MAX_NESTED:
        execution.context = contextvars.copy_context()
        execution.standing = [None]
        try:
            _go_on_in_worker(execution, finished)()
        except BaseException:
            if execution.detached is not None:
                execution.detached.finish()
            raise
        return
    _nesting.depth += 1
    try:
        run_detached(execution, finished)
    finally:
        _nesting.depth -= 1


class _Resumption:
    """Goes on with a detached execution, once. By the time `drain()` hears that it is over, nothing here holds it."""

    __slots__ = ("_what",)

    def __init__(self, execution: Execution, finished: Finished) -> None:
        self._what = [(execution, finished)]

    def __call__(self) -> None:
        if not self._what:  # an interrupt came while it was told, so it is told again
            return
        execution, finished = self._what.pop()
        detached = execution.detached
        ended = not _take(execution.standing) or _advance_detached(execution, finished, 0)
        del execution, finished
        if ended and detached is not None:
            detached.finish()


def _go_on_in_worker(execution: Execution, finished: Finished) -> Callable[[], None]:
    """What goes on with it on a worker thread when called; `drain()` waits for that."""
    if execution.detached is None:
        execution.detached = Unfinished()
    execution.detached.abandon()  # nobody else waits for it: `finished` is told
    resumption = _Resumption(execution, finished)
    return lambda: run_in_worker(resumption)


def interrupted(interrupt: BaseException) -> OperationCancelledError:
    ended = OperationCancelledError(
        f"a {type(interrupt).__name__} ended this operation before everything was enqueued; build it anew"
    )
    ended.__cause__ = interrupt
    return ended


def _advance_detached(execution: Execution, finished: Finished, origin: int) -> bool:
    """Go on until it stops; True when that was for good."""
    if execution.cancelled:
        execution.abandon()
        return True
    submission: Submission | None = None
    try:
        if threading.get_ident() == origin:
            done = execution.run()
        else:
            assert execution.context is not None
            done = execution.context.run(execution.run)
        if done:
            submission = execution.submit()
    except BaseException as error:
        execution.abandon()
        if threading.get_ident() == origin and isinstance(error, (KeyboardInterrupt, SystemExit)):
            # It is this thread's, and comes out here. Who else waits for the work hears that it ended.
            finished(None, interrupted(error))
            raise
        finished(None, error)
        return True
    if done:
        finished(submission, None)
        return True
    block = execution.block
    execution.standing = standing = [None]
    if execution.cancelled:
        if _take(standing):
            execution.abandon()
        return True
    assert block is not None
    try:
        block.begin(_go_on_in_worker(execution, finished))
    except BaseException as error:  # no thread to be had, for instance: whoever waits must know
        if _take(standing):
            execution.abandon()
        if threading.get_ident() == origin and isinstance(error, (KeyboardInterrupt, SystemExit)):
            execution.cancelled = True  # maybe a thread has it already
            finished(None, interrupted(error))
            raise
        finished(None, error)
        return True
    return False
