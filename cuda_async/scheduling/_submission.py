"""Submissions: the numbered pieces of a stream, each closed by one event.

Theory. Work enqueued on a stream belongs to the stream's open number. `Stream._record` closes it: it records
an event and gives the next number. Work may be waited for by (stream, number); the first event whose number is
not smaller covers it. A submission is retired once the device has passed its event; what it retained (staging
memory, borrowed memory, kernels) is released then, and whoever waits is called.

Invariants, all under the device's lock:
- `_pending` of a stream is in ascending number order; everything before its first entry is done.
- An event goes back to the device's cache when its submission is retired and no thread sleeps on it.
- Retained objects and callbacks are dropped and called outside the lock: they may run anybody's code.
"""

from __future__ import annotations

import copy
import functools
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

from ..driver._bell import Bell, call_each
from ..errors import CudaAsyncError, DeviceLostError
from ._kept_errors import note_kept_error
from ._lookout import LOOK_S
from ._watchdog import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, TracebackType

    from ..driver import EventHandle
    from ._device import Device
    from ._stream import Stream

__all__ = ["CAPTURE_UNSUPPORTED", "Failure", "Submission", "look_at", "raise_first_error"]

CAPTURE_UNSUPPORTED = 900
"""A driver call's answer while some thread captures a graph in the mode that forbids that call to all threads."""

NO_THREAD_LOOK_S = 1e-3
"""How often a thread looks that nobody can call."""


def _elsewhere(traceback: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is not of this thread's stack, whose frames would be kept alive."""
    here = sys._getframe()
    while traceback is not None:
        frame: FrameType | None = traceback.tb_frame
        while frame is not None and frame is not here.f_back:
            frame = frame.f_back
        if frame is None:
            break
        traceback = traceback.tb_next
    return traceback


class Failure:
    """What a stream remembers of work that failed: its number, and the error without the frames that it came through.

    Attributes:
        reported: somebody has had the error, or has waited for later work since; under the device's lock.
    """

    __slots__ = ("_error", "device", "number", "reported")

    def __init__(self, device: Device, number: int, error: BaseException, reported: bool) -> None:
        self.device = device
        self.number = number
        self.reported = reported
        self._error = _without_frames(error)

    def as_submission(self, stream: Stream) -> Submission:
        """For who enqueued in that number, which others have closed and the device has passed meanwhile."""
        submission = Submission(stream, self.number, None, [], [])
        submission.done = True
        submission.error = self.new_error()
        return submission

    def new_error(self) -> BaseException:
        """The error, to be raised: a copy each time, for it keeps the frames that it is raised through."""
        return _without_frames(self._error)


def _without_frames(error: BaseException) -> BaseException:
    try:
        return copy.copy(error)
    except Exception:  # a class of the caller's that does not let itself be copied
        return CudaAsyncError(f"{type(error).__name__}: {error}")


def _poll(reference: weakref.ref[Submission]) -> None:
    submission = reference()
    if submission is not None:
        submission.poll()


def look_at(submissions: Sequence[Submission]) -> None:
    """Who has an operation's outcome has looked at all its submissions: nobody else shall hear of their errors."""
    for submission in submissions:
        submission.poll()
        submission.note_looked_at()
        if submission.error is not None:
            submission.note_reported()


def raise_first_error(submissions: Sequence[Submission]) -> None:
    """Raise the first error of an operation's submissions. Who has that hears of no other, later ones included."""
    look_at(submissions)
    first = next((submission for submission in submissions if submission.error is not None), None)
    if first is not None:
        for submission in submissions:
            submission.note_heard_of()
        first.raise_error()


class Submission:
    """One closed number of a stream.

    Attributes:
        event: the driver's; None where it was done from the start. events: those that it goes back to.
        done: the device is past it, or it failed.
        error: what the device reported for it, or None. reported: somebody has had it, or need not have it.
        traceback: of the error, as it was reported; each raise starts from it, or the traceback would grow.
    """

    __slots__ = (
        "__weakref__",
        "callbacks",
        "done",
        "error",
        "event",
        "events",
        "number",
        "reported",
        "retained",
        "sleepers",
        "stream",
        "traceback",
    )

    def __init__(
        self, stream: Stream, number: int, event: Any, retained: list[Any], events: list[EventHandle]
    ) -> None:
        self.stream = stream
        self.number = number
        self.event = event
        self.events = events
        self.retained = retained
        self.done = False
        self.error: BaseException | None = None
        self.reported = False
        self.traceback: TracebackType | None = None
        self.callbacks: list[Callable[[], None]] | None = None
        self.sleepers = 0

    def poll(self, passed: bool = False) -> bool:
        """Ask the device; True when done. Cheap, never waits, any thread. `passed`: known to be done."""
        if self.done:
            return True
        device = self.stream.device
        released: list[Any] = []
        callbacks: list[Callable[[], None]] = []
        try:
            with device._lock:
                stream = self.stream
                if not self.done and stream._advance(
                    self.number, released, callbacks, self if passed else None
                ):
                    stream._ask_sources(released, callbacks)
        finally:  # after an interrupt too: who waits would wait for ever
            if callbacks:
                try:
                    call_each(callbacks)
                finally:
                    call_each(callbacks)
            released.clear()  # an error that came out of here keeps this frame
        return self.done

    def synchronize(self) -> None:
        """Block this thread until done; raises the submission's error."""
        self.block()
        self.raise_error()

    def block(self) -> None:
        """Block this thread until done or failed: look for a while first, as a sleep costs more than a short wait."""
        device = self.stream.device
        began = time.perf_counter()
        poll_until = began + device._poll_budget_s()
        while time.perf_counter() < poll_until:
            if self.poll():
                break
        driver = device._driver
        if driver is not None and not driver.notifies:
            sleeps = not self.done
            if sleeps:
                self._sleep_till_called()
        else:
            with device._lock:
                sleeps = not self.done
                if sleeps:
                    self.sleepers += 1  # while a thread sleeps on the event it must not be reused
            if sleeps:
                self._sleep()
        device._note_wait(time.perf_counter() - began, sleeps)

    def _sleep_till_called(self) -> None:
        """The stream's thread sleeps in the driver, and calls; this one can be interrupted, and looks now and then."""
        bell = Bell()
        look_s = LOOK_S
        with waiting(self, str):
            try:
                if not self.add_callback(bell.ring):
                    return
            except (RuntimeError, MemoryError):  # there is no such thread to be had
                look_s = NO_THREAD_LOOK_S
            try:
                while not bell.wait(look_s) and not self.poll():
                    pass
            finally:
                self.remove_callback(bell.ring)

    def _sleep(self) -> None:
        device = self.stream.device
        passed = False
        try:
            with waiting(self, str):
                device.driver.event_synchronize(self.event)
            passed = True
        except CudaAsyncError:
            # What the device has to report, the poll gets too, and notes it. Anything else is not about this
            # submission: the waiting failed.
            if not self.poll():
                raise
        finally:  # after an interrupt too
            self.poll(passed)
            self._wake_up()

    def _wake_up(self) -> None:
        """The sleeping thread is back: the event may be reused once the submission is done."""
        device = self.stream.device
        with device._lock:
            self.sleepers -= 1
            if self.done and not self.sleepers:
                self.events.append(self.event)

    def note_looked_at(self) -> None:
        """Whoever has waited for this has looked at it, and at what was before it."""
        if self.stream._failures:
            self.stream._note_looked_at(self.number)

    def raise_error(self) -> None:
        """Raise what the device reported, if anything."""
        self.note_looked_at()
        if self.error is not None:
            self.note_reported()
            raise self.error.with_traceback(self.traceback)

    def note_reported(self) -> None:
        """Somebody has the error now. It keeps the frames alive that it comes through, so nobody else shall keep it."""
        self.note_heard_of()
        stream = self.stream
        with stream.device._lock:
            if stream._last is self:
                stream._last = None

    def note_heard_of(self) -> None:
        """Nobody needs to be told of its error, should it have one, or get one."""
        self.reported = True  # first: who notes a failure later looks at it
        stream = self.stream
        with stream.device._lock:
            for failure in stream._failures:
                if failure.number == self.number:
                    failure.reported = True

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call `callback` once, from some thread, when done; False (and no call) when that is so already."""
        device = self.stream.device
        with device._lock:
            if self.done:
                return False
            if device.driver.notifies:
                device.driver.check_may_wait()
            first = self.callbacks is None
            if self.callbacks is None:
                self.callbacks = []
            self.callbacks.append(callback)
            try:
                if not device.driver.notifies:
                    self.stream._wake_waiter()
                    return True
                # Weak: told late, it must not keep what failed. While somebody waits, the stream has it.
                tell = functools.partial(_poll, weakref.ref(self))
                passed = first and not device.driver.event_notify(self.event, tell)
            except BaseException:
                self.callbacks.remove(callback)
                if first:  # nobody would tell the next who waits
                    self.callbacks = None
                raise
        if passed:
            self.poll()
        return True

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Forget a callback; fine when it was called already."""
        with self.stream.device._lock:
            if self.callbacks is not None and callback in self.callbacks:
                self.callbacks.remove(callback)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels in this submission, in order."""
        return tuple(r.name for r in self.retained if getattr(r, "is_kernel", False))

    def _tell_retained(self, error: BaseException) -> None:
        """Lock held. Its work failed: graphs hear that their launch did."""
        for thing in self.retained:
            note_failed = getattr(thing, "note_failed", None)
            if note_failed is not None:
                note_failed(self.stream, self.number, error)

    def _finish(
        self, error: BaseException | None, released: list[Any], callbacks: list[Callable[[], None]]
    ) -> None:
        """Retire; the lock is held, the caller drops `released` and calls `callbacks` outside it."""
        self.error = error
        if error is not None:
            self.traceback = _elsewhere(error.__traceback__)
            note_kept_error(self)
        self.done = True
        if self.callbacks is not None:
            callbacks.extend(self.callbacks)  # before anything that an interrupt may keep from happening
            self.callbacks = None
        released.append(self.retained)
        self.retained = []
        if not self.sleepers and not isinstance(error, DeviceLostError):
            self.events.append(self.event)
