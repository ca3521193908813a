"""`DeviceFuture`: work that was submitted, to be awaited as often as one likes, from any loop.

Lifecycle, as a table: what may happen in which state, and what follows.
"""

from __future__ import annotations

import functools
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from ..driver._bell import call_each
from ..errors import ClosedError, CudaAsyncError, OperationCancelledError
from ..memory._hints import unlike_arrays
from ..scheduling import (
    block_on,
    check_not_forked,
    checkpoint,
    forks,
    log_unasked,
    look_at,
    note_kept_error,
    put_off,
    running_library,
    unasked_futures,
    wait_for_callback,
    wait_until_done,
)
from ._execution import check_not_in_callback, run_detached
from ._op import OF_ARRAYS, OF_TENSORS
from ._turns import MAX_ENQUEUEING_S, current_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from ..scheduling import Submission
    from ._execution import Execution

__all__ = ["DeviceFuture"]

T = TypeVar("T")


class State(Enum):
    """Where a future is in its life."""

    ENQUEUEING = "enqueueing"
    """Steps are being enqueued, or one is being prepared on a worker thread."""
    SUBMITTED = "submitted"
    """Everything is enqueued; the device is at it."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Move(Enum):
    """What can happen to a future."""

    SUBMIT = "submit"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


TRANSITIONS: dict[tuple[State, Move], State] = {
    (State.ENQUEUEING, Move.SUBMIT): State.SUBMITTED,
    (State.ENQUEUEING, Move.FAIL): State.FAILED,
    (State.ENQUEUEING, Move.CANCEL): State.CANCELLED,
    (State.SUBMITTED, Move.COMPLETE): State.DONE,
    (State.SUBMITTED, Move.FAIL): State.FAILED,
}
"""Everything else is refused: a finished future never changes."""


def _enqueueing() -> str:
    return "a future whose steps are still being prepared and enqueued"


def _is_of_closing(error: BaseException, execution: Execution) -> bool:
    """An interrupt ended it, which came out elsewhere, or its device was closed, which ends everything on it.

    As the interpreter exits, what a device needs may be closed before it.
    """
    ctx = getattr(execution, "ctx", None)
    is_exiting = not threading.main_thread().is_alive()
    is_closed = is_exiting or (ctx is not None and bool(ctx.device._closed_because))
    return isinstance(error, OperationCancelledError) or (is_closed and isinstance(error, ClosedError))


def _refuse_attribute(future: DeviceFuture[Any], name: str) -> NoReturn:
    raise AttributeError(
        f"a DeviceFuture has no {name!r}: await it (or call .result() once it is done), and ask what it gives"
    )


def _no_arithmetic(future: DeviceFuture[Any]) -> str:
    return "a DeviceFuture has no arithmetic: await it (or call .result() once it is done) for what it gives"


@unlike_arrays((*OF_TENSORS, *OF_ARRAYS), _refuse_attribute, _no_arithmetic)
class DeviceFuture(Generic[T]):
    """The result of work that was submitted with `start()`. Not tied to a loop, a task or a thread."""

    _instead_of_a_value = "; await it first, or go on with .then() of the operation in place of its start()"
    _lock: threading.Lock
    _forks: int
    _state: State
    _execution: Execution | None  # None once everything is enqueued: it holds operations and their operands
    _submission: Submission | None
    _failed: Submission | None  # what the error comes from, if it is the device's
    _sources: list[Submission]  # of shared operations that were used: their errors are this future's too
    _value: Any  # a T, once enqueued
    _error: BaseException | None
    _traceback: TracebackType | None  # of the error, as it was; each raise starts from it, or it would grow
    _callbacks: list[Callable[[], None]]
    _unasked: bool  # there is an error that the device does not know of, and nobody has had it

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("device futures are made by DeviceOp.start()")

    @classmethod
    def _start(cls, execution: Execution) -> DeviceFuture[T]:
        self = object.__new__(cls)
        self._lock = threading.Lock()
        self._forks = forks()
        self._state = State.ENQUEUEING
        self._execution = execution
        self._submission = None
        self._sources = []
        self._failed = None
        self._value = None
        self._error = None
        self._traceback = None
        self._callbacks = []
        self._unasked = False
        began = time.perf_counter()
        run_detached(execution, lambda submission, error: self._enqueued(execution, submission, error))
        current_turn().spend(time.perf_counter() - began)
        return self

    # -- moves

    def _move(self, move: Move) -> bool:
        """Lock held. Make a move if the state allows it."""
        following = TRANSITIONS.get((self._state, move))
        if following is None:
            return False
        self._state = following
        return True

    def _enqueued(
        self, execution: Execution, submission: Submission | None, error: BaseException | None
    ) -> None:
        callbacks: list[Callable[[], None]] = []
        try:
            with self._lock:
                if error is not None:
                    if self._move(Move.FAIL):
                        self._error = error
                        self._traceback = error.__traceback__
                        note_kept_error(self)
                        self._unasked = not _is_of_closing(error, execution)
                        if self._unasked:
                            unasked_futures.add(self)
                elif self._move(Move.SUBMIT):
                    self._submission = submission
                    self._sources = execution.sources
                    self._value = execution.value
                    if submission is None:
                        self._move(Move.COMPLETE)
                self._execution = None
                callbacks, self._callbacks = self._callbacks, []
            call_each(callbacks)
        finally:  # behind an interrupt in there: who is left
            call_each(callbacks)

    def _settle(self) -> None:
        """The device is past the work: done or failed."""
        submission = self._submission
        assert submission is not None
        for source in self._sources:
            source.poll()
        failed = next((s for s in (*self._sources, submission) if s.error is not None), None)
        with self._lock:
            if failed is None:
                self._move(Move.COMPLETE)
            elif self._move(Move.FAIL):
                self._error = failed.error
                self._traceback = failed.traceback
                self._failed = failed

    def _begin(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once everything is enqueued, has failed, or was cancelled.

        Raises:
            ContextError: that would be in the parent of this forked process.
        """
        check_not_forked(self._forks, "this future")
        with self._lock:
            waits = self._state is State.ENQUEUEING
            if waits:
                self._callbacks.append(wake)
        if not waits:
            wake()

        def give_up() -> None:
            with self._lock:
                if wake in self._callbacks:
                    self._callbacks.remove(wake)

        return give_up

    # -- public

    @property
    def state(self) -> str:
        """`"enqueueing"`, `"submitted"`, `"done"`, `"failed"` or `"cancelled"`. Never waits."""
        if self._state is State.SUBMITTED and self._submission is not None and self._submission.poll():
            self._settle()
        return self._state.value

    @property
    def done(self) -> bool:
        """True when there is a result, an error or a cancellation. Never waits."""
        return self.state in ("done", "failed", "cancelled")

    def result(self) -> T:
        """The result, or the error raised. Never waits.

        Raises:
            CudaAsyncError: not done yet; await the future, or use `sync()`.
        """
        if not self.done:
            raise CudaAsyncError(f"the operation is still {self.state}; await it, or use .sync()")
        return self._outcome()

    def _outcome(self) -> T:
        if self._state is State.CANCELLED:
            raise OperationCancelledError("this operation was cancelled before everything was enqueued")
        if self._error is not None:
            self._unasked = False
            if self._failed is not None and self._submission is not None:
                look_at([*self._sources, self._submission])
            raise self._error.with_traceback(self._traceback)
        result: T = self._value
        return result

    def cancel(self) -> bool:
        """Enqueue nothing further. False when everything is enqueued already: the device is never stopped.

        A worker thread that is enqueueing or preparing a step at this moment ends that step; `drain()` waits for it.
        """
        callbacks: list[Callable[[], None]] = []
        try:
            with self._lock:
                cancelled = self._move(Move.CANCEL)
                execution, self._execution = self._execution, None
                if cancelled:
                    callbacks, self._callbacks = self._callbacks, []
            if cancelled and execution is not None:
                execution.cancel()
            call_each(callbacks)
        finally:  # behind an interrupt in there: who is left
            call_each(callbacks)
        return cancelled

    def sync(self) -> T:
        """Block this thread until it is done; the result."""
        check_not_in_callback("sync()")
        if self._state is State.ENQUEUEING:
            block_on(self._begin, _enqueueing)
        if self._state is State.SUBMITTED and self._submission is not None:
            self._submission.block()
            self._settle()
        return self._outcome()

    def __await__(self) -> Generator[Any, Any, T]:
        check_not_in_callback("await")
        return self._wait().__await__()

    async def _wait(self) -> T:
        if running_library() == "trio":
            await checkpoint()
        turn = current_turn()
        if turn.spent_s > MAX_ENQUEUEING_S:
            # A task that only waits for what is done already would never suspend.
            await turn.give_way()
        if self._state is State.ENQUEUEING:
            await wait_for_callback(self._begin, _enqueueing)
        if self._state is State.SUBMITTED and self._submission is not None:
            await wait_until_done(self._submission)
            self._settle()
        return self._outcome()

    def _note_lost(self) -> None:
        """Nobody will ask for the error any more."""
        if self._unasked and self._error is not None:
            self._unasked = False
            put_off.append(functools.partial(log_unasked, self._error))

    def __del__(self) -> None:
        if getattr(self, "_unasked", False):
            self._note_lost()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DeviceFuture cannot be copied or pickled; it may be awaited as often as wanted")

    def __repr__(self) -> str:
        return f"<DeviceFuture {self.state}>"
