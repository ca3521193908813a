"""`Stream`: a queue of device work, its submission numbers, and the thread that sleeps for it."""

from __future__ import annotations

import _thread
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

from ..driver import StreamHandle
from ..driver._bell import Bell
from ..errors import ClosedError, ContextError, CudaAsyncError, DeviceLostError, DriverError, OutOfMemoryError
from ._dropped import destroy_dropped
from ._event import Event
from ._lookout import look_out
from ._submission import CAPTURE_UNSUPPORTED, Failure, Submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from ._device import Device
    from ._recorder import Recorder

__all__ = ["Stream"]

RETRY_S = 1e-3
"""When a waiter thread asks again whose sleep in the driver was refused."""
MAX_FAILURES = 32
"""Failures that a stream remembers, for who synchronizes or closes it."""
WAITER_IDLE_S = 5.0
"""A stream's waiter thread ends after so long without anything to wait for."""


class Stream:
    """A first-in, first-out queue of work on one device. Made by `Device.create_stream()` and `borrow_stream()`.

    Attributes:
        device: where it runs.
        priority: as given; smaller numbers go first.
    """

    __slots__ = (
        "__weakref__",
        "_asleep_for",
        "_bell",
        "_borrowed",
        "_closed",
        "_dirty",
        "_done",
        "_failures",
        "_handed_out",
        "_handle",
        "_last",
        "_launch_key",
        "_next",
        "_owner",
        "_pending",
        "_recorder",
        "_retained",
        "_users",
        "_waited",
        "_waiter",
        "device",
        "name",
        "priority",
    )

    device: Device
    priority: int
    name: str
    # What operations of ours hand to the driver (on a recording stream not `handle`), what they find their bound
    # launches by, and what the device may still use. A closed stream has none of them, so that nothing reaches the
    # driver with what was given back, and nothing is kept for work that never comes.
    _handle: StreamHandle
    _launch_key: object
    _retained: list[Any]
    _recorder: Recorder | None  # takes what is enqueued, on a stream that only records
    _borrowed: bool
    _handed_out: bool  # others may enqueue here, and nobody tells
    _closed: bool
    _next: int  # the number that the next event closes
    _done: int  # everything up to here has passed
    _dirty: bool  # something was enqueued since the last event
    _last: Submission | None
    _pending: deque[Submission]
    _failures: deque[Failure]  # of its work, the newest
    _users: int  # threads inside of a call that was given the handle, without the lock
    _owner: object  # what a borrowed stream belongs to, kept alive
    _waited: dict[Stream, int]  # numbers of other streams that this one waits for already
    _bell: Bell  # for the thread in _wait_loop
    _waiter: object  # that thread's token; None where there is none
    _asleep_for: Submission | None  # what it sleeps for in the driver

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("streams are made by Device.create_stream() and Device.borrow_stream()")

    @classmethod
    def _make(
        cls,
        device: Device,
        handle: StreamHandle,
        priority: int,
        name: str,
        *,
        borrowed: bool = False,
        owner: object = None,
    ) -> Stream:
        self = object.__new__(cls)
        self.device = device
        self._handle = handle
        self._launch_key = object()
        self._recorder = None
        self.priority = priority
        self.name = name
        self._borrowed = self._handed_out = borrowed
        self._owner = owner
        self._closed = False
        self._next = 1
        self._done = 0
        self._dirty = False
        self._last = None
        self._pending = deque()
        self._failures = deque(maxlen=MAX_FAILURES)
        self._retained = []
        self._users = 0
        self._waited = {}
        self._bell = Bell()
        self._waiter = None
        self._asleep_for = None
        return self

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Stream({self.name!r} on {self.device}, priority {self.priority}{state})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Asked for what is not there: an operation was at work when its stream was closed."""
            if name in ("_handle", "_launch_key", "_retained") and self._closed:
                self._check_open()
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Stream cannot be copied or pickled; make another one with device.create_stream()")

    def __cuda_stream__(self) -> tuple[int, int]:
        """The stream protocol: (version, address)."""
        if self.device.kind != "cuda":
            raise ContextError(f"{self!r} is on a simulated device; other CUDA libraries cannot use it")
        return 0, int(self.handle)

    # -- public

    @property
    def handle(self) -> StreamHandle:
        """The driver's handle, an address for other CUDA libraries.

        From then on, what they enqueue by it counts: each number is closed by an event though nothing of ours is new.
        """
        self._handed_out = True
        return self._handle

    def synchronize(self) -> None:
        """Block this thread until everything enqueued so far is done; raises what failed since the last look."""
        submission = self._submit(theirs=True)
        if submission is not None:
            submission.block()
        self._raise_unreported(submission)

    @property
    def is_done(self) -> bool:
        """True when everything enqueued so far is done. Never waits."""
        if self._handed_out and not self._closed:
            self.device._check_usable()
            driver = self.device.driver
            driver.bind()
            with self.device._lock:
                if not self._closed and not driver.stream_query(self._handle):
                    return False  # an event that is recorded now would need its time
        submission = self._submit()
        return submission is None or submission.poll()

    def record(self) -> Event:
        """An event behind everything enqueued so far; it can time, be waited for and be awaited."""
        self._check_open()
        device = self.device
        driver = device.driver
        driver.bind()
        handle = driver.event_create(timing=True)
        try:
            with device._lock:
                destroy_dropped(device)
                driver.event_record(handle, self._handle)
                self._dirty = True
                submission = self._record()
        except BaseException:
            device._dropped_events.append(handle)
            raise
        return Event._make(handle, submission)

    def wait(self, event: Event) -> None:
        """Later work on this stream waits for `event`, on the device.

        Raises:
            ContextError: the event is on another device.
        """
        self._check_open()
        if not isinstance(event, Event):
            raise TypeError(f"expected an Event, got {type(event).__name__}; stream.record() makes one")
        source = event._submission.stream
        if source.device is not self.device:
            raise ContextError(
                f"{self!r} cannot wait for an event of {source.device}; await the event instead"
            )
        self.device.driver.bind()
        with self.device._lock:
            self._wait_for(source, event._submission.number)

    async def aclose(self) -> None:
        """Wait for the stream's work and give it back. Closing twice is fine; so is closing on a lost device.

        An operation that goes on to enqueue here afterwards fails with `ClosedError`.
        """
        from ._waiting import checkpoint, wait_until_done

        while True:
            submission: Submission | None = None
            try:
                submission = self._submit_rest()
                if submission is not None:  # cancelled in here, the stream stays open: it still has work
                    await wait_until_done(submission)
            except ClosedError:
                if not self._is_over:
                    raise
            if self._finish_closing(submission):
                return
            await checkpoint()  # somebody enqueued meanwhile

    def close(self) -> None:
        """Block until the stream is empty and give it back. Closing twice is fine; so is closing on a lost device.

        An operation that goes on to enqueue here afterwards fails with `ClosedError`.
        """
        while True:
            submission: Submission | None = None
            try:
                submission = self._submit_rest()
                if submission is not None:
                    submission.block()  # interrupted here, the stream stays open: it still has work
            except ClosedError:
                if not self._is_over:
                    raise
            if self._finish_closing(submission):
                return

    def _finish_closing(self, waited: Submission | None) -> bool:
        """What closing does once it has waited: True when it is over. Raises what nobody has heard of."""
        error = None if waited is None else waited.error
        if waited is not None and error is not None and self._done < waited.number and self.device.is_healthy:
            waited.raise_error()  # the driver failed to say whether the work is done
        try:
            if not self._is_over and not self._end():
                return False
        except CudaAsyncError:
            self._raise_unreported()
            raise
        self._raise_unreported()
        if waited is not None and isinstance(error, DeviceLostError):
            waited.raise_error()
        return True

    @property
    def _is_over(self) -> bool:
        """The stream was closed, by itself or with its device."""
        return self._closed or bool(self.device._closed_because)

    def _submit_rest(self) -> Submission | None:
        """What closing has to wait for: work of others too, but not on a borrowed stream, which goes on without us."""
        if self._closed or not self.device.is_healthy:
            return None
        is_theirs = False
        if self._handed_out and not self._borrowed:
            try:
                is_theirs = not self.is_done
            except CudaAsyncError:  # which comes out once the stream is closed
                is_theirs = True
        return self._submit(theirs=is_theirs)

    def _end(self) -> bool:
        """Give the stream back, once, if nothing is left on it or its device is lost; False if something is."""
        device = self.device
        with device._lock:
            if self._closed:
                return True
            if device.is_healthy and (self._dirty or any(not s.done for s in self._pending)):
                return False  # somebody enqueued meanwhile
            handle, retained = self._close()
            owner, self._owner = self._owner, None
            if self in device._streams:
                device._streams.remove(self)
            for other in device._streams:
                other._waited.pop(self, None)
            is_in_use = self._users > 0
        if not is_in_use:
            self._give_back(handle)
        del owner, retained  # outside the lock: it may run anybody's code
        return True

    def _close(self) -> tuple[StreamHandle, list[Any]]:
        """Lock held. From now on nothing is enqueued here.

        Returns the handle, which is the caller's to give back, and what an operation that failed retained, to drop.
        """
        handle, retained = self._handle, self._retained
        self._closed = True
        self._last = None  # which may have failed, and keep what the frames of its error hold
        del self._handle, self._launch_key, self._retained
        self._bell.ring()
        return handle, retained

    def _give_back(self, handle: StreamHandle) -> None:
        device = self.device
        try:
            if device.is_healthy:
                device.driver.stream_destroy(handle)  # only ends the loan of a borrowed one
        except ClosedError:  # of the device, meanwhile
            pass
        except DeviceLostError as lost:
            raise device._note_lost(lost) from lost

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[StreamHandle | None]:
        """The handle for a call that takes long: closing the stream leaves giving it back to who is inside.

        None when it is closed.
        """
        lock = self.device._lock
        with lock:
            handle = None if self._closed else self._handle
            self._users += handle is not None
        if handle is None:
            yield None
            return
        try:
            yield handle
        finally:
            with lock:
                self._users -= 1
                is_left_to_us = self._closed and not self._users
            if is_left_to_us:
                self._give_back(handle)

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _refresh(self) -> None:
        """Retire what is done, so that the number of pending submissions is current."""
        try:
            newest = self._pending[-1]
        except IndexError:  # maybe by another thread meanwhile
            return
        newest.poll()

    # -- submissions (the device's lock is held in the ones that say so)

    def _check_open(self) -> None:
        self.device._check_usable()
        if self._closed:
            raise ClosedError(f"{self!r} is closed; create another with device.create_stream()")

    def _submit(self, *, theirs: bool = False) -> Submission | None:
        """Close what is open; None when nothing was ever enqueued or all is done.

        Args:
            theirs: what others enqueued counts too, whose stream it is or who asked for its handle.
        """
        if self._closed:
            return None
        device = self.device
        device._check_usable()
        try:
            device.driver.bind()
            with device._lock:
                if self._closed:
                    return None
                if self._handed_out and not theirs and not self._dirty:
                    return self._last
                return self._record() if self._dirty or self._handed_out or self._last is not None else None
        except DeviceLostError as lost:
            raise device._note_lost(lost) from lost

    def _record(self) -> Submission:
        """Lock held. Close the open number with an event; the last submission when nothing is new.

        What is new on a stream that others use, nobody here knows.
        """
        last = self._last
        if not self._dirty and last is not None and not self._handed_out:
            return last
        device = self.device
        interrupts = device._interrupts
        events = device._interrupting_events if interrupts else device._events
        event = events.pop() if events else device.driver.event_create(interrupts=interrupts)
        try:
            device.driver.event_record(event, self._handle)
        except BaseException:
            events.append(event)
            raise
        number = self._next
        submission = Submission(self, number, event, self._retained, events)
        self._next = number + 1
        self._retained = []
        self._dirty = False
        self._last = submission
        self._pending.append(submission)
        return submission

    def _closed_from(self, first: int) -> list[Submission]:
        """Lock held. The closed numbers from `first` on, but those that the device has passed without a failure."""
        if self._next <= first:
            return []
        failed = [failure.as_submission(self) for failure in self._failures if failure.number >= first]
        return [*failed, *(s for s in self._pending if s.number >= first)]

    def _covering(self, number: int) -> Submission | None:
        """Lock held. The first submission that covers `number`; None when the device is past it."""
        if self._done >= number or self._closed:
            return None
        if number >= self._next:
            return self._record()
        # Nothing pending covers it where the driver failed to say whether an event is passed.
        return next((s for s in self._pending if s.number >= number), None) or self._record()

    def _wait_for(self, source: Stream, number: int) -> None:
        """Lock held. Work enqueued here from now on waits for `source`'s work numbered `number`."""
        if source is self:
            return
        driver = self.device.driver
        has_waited = self._waited.get(source, 0) >= number
        if has_waited and not driver.hands_failures_on:
            return
        submission = source._covering(number)
        if submission is None:
            return
        if has_waited:  # maybe for what came later: a failure is told by the event behind it alone
            driver.stream_hand_on(self._handle, submission.event)
        else:
            driver.stream_wait_event(self._handle, submission.event)
            self._waited[source] = submission.number
        self._dirty = True

    def _advance(
        self,
        number: int,
        released: list[Any],
        callbacks: list[Callable[[], None]],
        passed: Submission | None = None,
    ) -> bool:
        """Lock held. Retire what the device has passed, at most up to `number`; it need not be asked about `passed`.

        True when some of it failed: maybe by what failed on streams that this one waited for (`_ask_sources`).
        """
        has_failed = False
        device = self.device
        driver = device._driver
        if driver is None:
            return False  # it is being closed by another thread, which will tell who waits
        pending = self._pending
        while pending and pending[0].number <= number:
            submission = pending[0]
            if submission.done:  # an interrupt came before it was taken out
                pending.popleft()
                continue
            error: BaseException | None = None
            is_asked = False
            try:
                if submission is not passed:
                    driver.bind()
                    is_asked = True
                    if not driver.event_query(submission.event):
                        return has_failed
            except DeviceLostError as lost:
                device._lose(lost, submission, released, callbacks)
                return False
            except CudaAsyncError as failure:  # anything else is an interrupt, and says nothing of the work
                if isinstance(failure, DriverError) and failure.code == CAPTURE_UNSUPPORTED:
                    return has_failed  # another library is capturing, and forbids to ask
                if not is_asked or isinstance(failure, (DriverError, OutOfMemoryError)):
                    # The call failed, not the work: who waits is told, but what the work uses is in use until a later
                    # event says otherwise.
                    self._retained[:0] = submission.retained
                    submission.retained = []
                    self._dirty = True
                    submission._finish(failure, released, callbacks)
                    pending.popleft()
                    continue
                error = failure
                has_failed = True
                self._failures.append(Failure(device, submission.number, failure, submission.reported))
                submission._tell_retained(failure)
            self._done = submission.number
            submission._finish(error, released, callbacks)
            pending.popleft()  # behind it: what is not in here any more nobody finishes
        return has_failed

    def _ask_sources(self, released: list[Any], callbacks: list[Callable[[], None]]) -> None:
        """Lock held. Work here failed: what it waited for elsewhere may have, and nobody may ever wait for that.

        Graphs hear of it so, before who waits here goes on: what such a launch was to fill holds old numbers.
        """
        failed = {self: None}  # a set in the order that it was filled in, or seeds would not repeat
        while failed:
            for source, number in failed.popitem()[0]._waited.items():
                if source._advance(number, released, callbacks):
                    failed[source] = None

    def _note_looked_at(self, number: int) -> None:
        """Somebody has waited for work of that number: what failed up to there is no news any more."""
        with self.device._lock:
            for failure in self._failures:
                if failure.number <= number:
                    failure.reported = True

    def _raise_unreported(self, last: Submission | None = None) -> None:
        """Raise the first failure that nobody has had or waited past, and take all for reported.

        `last` was waited for: its own error has a traceback. A lost device is told again and again.
        """
        with self.device._lock:
            failures = [failure for failure in self._failures if not failure.reported]
            for failure in failures:
                failure.reported = True
        if last is not None and last.error is not None:
            is_its_own = bool(failures) and failures[0].number == last.number
            # The driver did not tell whether the work is done, which is no failure of the work.
            is_unsaid = self._done < last.number and not last.reported
            if is_its_own or is_unsaid or isinstance(last.error, DeviceLostError):
                last.raise_error()
        if failures:
            raise failures[0].new_error()

    def _fail_pending(
        self,
        error: Callable[[], BaseException],
        released: list[Any],
        callbacks: list[Callable[[], None]],
    ) -> None:
        """Lock held. The device is past nothing of this any more; each gets an error of its own."""
        while self._pending:
            if not self._pending[0].done:
                self._pending[0]._finish(error(), released, callbacks)
            self._pending.popleft()

    # -- the thread that sleeps for callbacks

    def _wake_waiter(self) -> None:
        """Lock held. Make sure a thread sleeps on the first submission that somebody waits for."""
        asleep, first = self._asleep_for, self._first_awaited()
        is_late = asleep is not None and first is not None and first.number < asleep.number
        if self._waiter is not None and not is_late:
            if not self._bell.is_rung:  # it may be busy for long
                self._bell.ring()
            return
        before = self._waiter
        self._asleep_for = None
        self._waiter = token = object()  # first: an interrupt may come when the thread is there
        try:
            _thread.start_new_thread(self._wait_loop, (token,))  # Thread.start() would wait until it runs
        except (RuntimeError, MemoryError):  # there is none to be had: others rely on the one that sleeps
            self._waiter, self._asleep_for = before, asleep
            raise

    def _give_up_waiter(self) -> bool:
        """Lock held. The thread sleeps on, though the device is past what it sleeps for: another takes its place.

        False where there is none to be had.
        """
        before, asleep = self._waiter, self._asleep_for
        self._waiter = self._asleep_for = None
        if self._first_awaited() is not None:
            try:
                self._wake_waiter()
            except (RuntimeError, MemoryError):
                self._waiter, self._asleep_for = before, asleep
                return False
        return True

    def _wait_loop(self, token: object) -> None:
        device = self.device
        is_called = True  # maybe for nothing
        while True:
            with device._lock:
                if self._waiter is not token:  # given up
                    return
                submission = self._first_awaited()
                if submission is not None:
                    submission.sleepers += 1
                    self._asleep_for = submission
                    if submission.events is device._interrupting_events:
                        look_out(device)
                elif self._closed or not is_called:
                    self._waiter = None
                    return
            if submission is None:
                is_called = self._bell.wait(WAITER_IDLE_S)
                continue
            is_called = True
            failed = False
            try:
                device.driver.event_synchronize(submission.event)
            except Exception:  # the poll below gets the same error and notes it
                failed = True
            with device._lock:
                is_given_up = self._waiter is not token
                if not is_given_up:
                    self._asleep_for = None
            try:
                if not submission.poll() and failed and not is_given_up:  # else the bell is another's
                    self._bell.wait(RETRY_S)
                submission._wake_up()
            except (
                BaseException
            ):  # a callback raised, which it should not; the next who waits starts another thread
                with device._lock:
                    if self._waiter is token:
                        self._waiter = None
                raise
            del submission

    def _first_awaited(self) -> Submission | None:
        return next((s for s in self._pending if s.callbacks), None)
