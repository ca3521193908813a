"""The watchdog: which waits go on, for what, for how long; and a report of those that take long.

Off unless asked for, by `set_watchdog()` or `CUDA_ASYNC_WATCHDOG_S`: then every wait that does not end at once is
written down while it lasts, awaits and blocking calls alike, and a thread looks at them. It stops nothing: a wait that
never ends is a bug or a kernel that never ends, and the report says which work is behind it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..driver._bell import Bell
from ..errors import ContextError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ._stream import Stream
    from ._submission import Submission

__all__ = ["PendingWait", "pending_waits", "set_watchdog", "start_from_environment", "waiting"]

MAX_NAMES = 5
"""Kernels of one submission that a report names."""

END_S = 1.0
"""How long the end of the interpreter waits for a report that is being made."""


@dataclass(frozen=True, kw_only=True)
class PendingWait:
    """A wait that goes on: a snapshot.

    Attributes:
        what: what it is for, in words: an operation's preparation, work on a stream.
        who: the task, or the thread, that waits.
        seconds: how long it has lasted.
        device: the device whose work is waited for, None while work is prepared or enqueued on the host.
        stream: the stream's name, or None. submission: the number of the work in it that is waited for, or None.
        kernels: names of the kernels in that submission, in order.
        passed: the number of the last submission that the stream has passed, or None.
    """

    what: str
    who: str
    seconds: float
    device: str | None = None
    stream: str | None = None
    submission: int | None = None
    kernels: tuple[str, ...] = ()
    passed: int | None = None

    def __str__(self) -> str:
        return f"{self.who} has waited for {self.seconds:.1f} s for {self.what}"


class _Wait:
    __slots__ = ("began", "describe", "next_report_s", "submission", "who")

    def __init__(self, submission: Submission | None, describe: Callable[[], str], after_s: float) -> None:
        self.submission = submission
        self.describe = describe
        self.who = _who()
        self.began = time.monotonic()
        self.next_report_s = after_s

    def snapshot(self) -> PendingWait:
        seconds = time.monotonic() - self.began
        submission = self.submission
        if submission is None:
            return PendingWait(what=self.describe(), who=self.who, seconds=seconds)
        stream = submission.stream
        return PendingWait(
            what=_describe_submission(submission),
            who=self.who,
            seconds=seconds,
            device=str(stream.device),
            stream=stream.name,
            submission=submission.number,
            kernels=submission.kernels,
            passed=stream._done,
        )


class _Watchdog:
    """The waits that go on, and the thread that looks at them."""

    def __init__(self, after_s: float, report: Callable[[PendingWait], object]) -> None:
        self.after_s = after_s
        self.report = report
        self.waits: dict[int, _Wait] = {}
        self.stopped = False
        self._bell = Bell()
        self._thread = threading.Thread(target=self._run, name="cuda_async watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.stopped = True
        self._bell.ring()

    def end(self) -> None:
        """Stop, and wait for a report that is being made: a daemon thread that prints while the interpreter ends is a
        fatal error."""
        self.stop()
        self._thread.join(END_S)

    def _run(self) -> None:
        while True:
            self._bell.wait(self._until_next_s())
            if self.stopped:
                return
            now = time.monotonic()
            for wait in self.going_on():
                if now - wait.began < wait.next_report_s:
                    continue
                wait.next_report_s *= 2
                try:
                    self.report(wait.snapshot())
                except BaseException as error:
                    # It is somebody's function; the others are to be heard of all the same, whatever it raises.
                    # where standard error is closed, nobody is there to be told
                    with suppress(Exception):
                        print(f"cuda_async: the watchdog's report failed: {error!r}", file=sys.stderr)

    def _until_next_s(self) -> float:
        """Not longer than until a wait that begins now is due, so that it need not wake the thread."""
        now = time.monotonic()
        due = (max(0.0, wait.began + wait.next_report_s - now) for wait in self.going_on())
        return min([self.after_s, *due])

    def going_on(self) -> list[_Wait]:
        """The waits of now."""
        while True:
            try:
                return list(self.waits.values())
            except RuntimeError:  # another thread has changed them meanwhile
                continue


_current: _Watchdog | None = None
_lock = threading.Lock()


def set_watchdog(after_s: float | None, report: Callable[[PendingWait], object] | None = None) -> None:
    """Have every wait reported that lasts longer than `after_s` seconds; again after twice the time, and so on.

    Awaits and blocking calls of operations, futures, events, streams and devices count, from now on; what waits already
    is not seen. `CUDA_ASYNC_WATCHDOG_S=5` does it for a whole process. The cost is some microseconds for a wait
    that does not end at once.

    Args:
        after_s: seconds, more than 0 and at most `threading.TIMEOUT_MAX`; None switches it off.
        report: called with a `PendingWait` on a thread of its own; by default it is printed to standard error.
    Raises:
        ValueError: `after_s` is no such number. TypeError: `report` cannot be called.
    """
    global _current
    is_number = isinstance(after_s, (int, float)) and not isinstance(after_s, bool)
    if after_s is not None and not (is_number and 0 < after_s <= threading.TIMEOUT_MAX):
        raise ValueError(
            f"a watchdog reports after a number of seconds greater than 0 and up to {threading.TIMEOUT_MAX:.0f}, "
            f"got {after_s!r}"
        )
    if report is None:
        report = _print
    elif not callable(report):
        raise TypeError(f"a watchdog's report is a function of a PendingWait, got {report!r}")
    with _lock:
        before = _current
        _current = None if after_s is None else _Watchdog(float(after_s), report)
    if before is not None:
        before.stop()


def pending_waits() -> list[PendingWait]:
    """What is being waited for now, the longest first. Empty while the watchdog is off."""
    watchdog = _current
    if watchdog is None:
        return []
    return sorted((wait.snapshot() for wait in watchdog.going_on()), key=lambda wait: -wait.seconds)


def waiting(submission: Submission | None, describe: Callable[[], str]) -> AbstractContextManager[object]:
    """What runs inside waits for `submission`, or, where that is None, for what `describe()` says."""
    watchdog = _current
    return _NOBODY_LOOKS if watchdog is None else _Noted(watchdog, submission, describe)


class _Noted:
    """Takes no lock: a task that is left behind may be collected, and end its wait, inside any."""

    __slots__ = ("_wait", "_waits")

    def __init__(
        self, watchdog: _Watchdog, submission: Submission | None, describe: Callable[[], str]
    ) -> None:
        self._waits = watchdog.waits
        self._wait = _Wait(submission, describe, watchdog.after_s)

    def __enter__(self) -> None:
        self._waits[id(self._wait)] = self._wait

    def __exit__(self, *_: object) -> None:
        self._waits.pop(id(self._wait), None)


_NOBODY_LOOKS = nullcontext()


def start_from_environment() -> None:
    """Switch it on if `CUDA_ASYNC_WATCHDOG_S` says so and nobody has."""
    text = os.environ.get("CUDA_ASYNC_WATCHDOG_S", "").strip()
    if not text or _current is not None:
        return
    try:
        set_watchdog(float(text))
    except ValueError:
        raise ContextError(
            f"CUDA_ASYNC_WATCHDOG_S is {text!r}; write a number of seconds, such as 5, greater than 0 and up to "
            f"{threading.TIMEOUT_MAX:.0f}"
        ) from None


def _print(wait: PendingWait) -> None:
    print(f"cuda_async: {wait}", file=sys.stderr, flush=True)


def _who() -> str:
    modules = sys.modules
    thread = threading.current_thread().name
    current_task = getattr(modules.get("asyncio"), "current_task", None)
    running_loop = getattr(modules.get("asyncio"), "_get_running_loop", None)
    if current_task is not None and running_loop is not None and running_loop() is not None:
        task = current_task()
        if task is not None:
            return f"task {task.get_name()!r} on thread {thread!r}"
    in_trio_task = getattr(modules.get("trio.lowlevel"), "in_trio_task", None)
    if in_trio_task is not None and in_trio_task():
        return f"task {modules['trio.lowlevel'].current_task().name!r} on thread {thread!r}"
    return f"thread {thread!r}"


def _names(kernels: tuple[str, ...]) -> str:
    if not kernels:
        return "no kernels"
    more = f" and {len(kernels) - MAX_NAMES} more" if len(kernels) > MAX_NAMES else ""
    return f"kernels {', '.join(kernels[:MAX_NAMES])}{more}"


def _describe_submission(submission: Submission) -> str:
    """What the stream stands at. Without the device's lock, which whoever hangs may hold: a snapshot of parts."""
    stream = submission.stream
    text = (
        f"submission {submission.number} of {stream.name!r} on {stream.device} ({_names(submission.kernels)})"
    )
    if submission.done:
        return f"{text}, which is done: the waiter has not been run since"
    text += f"; the stream has passed submission {stream._done}"
    try:
        first = stream._pending[0]
    except IndexError:
        return text
    if first is not submission:
        text += f" and stands at {first.number} ({_names(first.kernels)})"
    others = _waited_for(stream)
    if others:
        text += f"; work on it waits for {', '.join(others)}"
    return text


def _waited_for(stream: Stream) -> list[str]:
    """Other streams that this one was told to wait for and that are not that far."""
    waited = [(other, number) for other, number in list(stream._waited.items()) if other._done < number]
    return [f"submission {number} of {other.name!r}{_kernels_of(other, number)}" for other, number in waited]


def _kernels_of(stream: Stream, number: int) -> str:
    """Of what must be past for that, in parentheses; "" where that cannot be told."""
    try:
        names = [name for pending in stream._pending if pending.number <= number for name in pending.kernels]
    except RuntimeError:  # it has changed meanwhile
        return ""
    return f" ({_names(tuple(dict.fromkeys(names)))})"


def _at_exit() -> None:
    watchdog = _current
    if watchdog is not None:
        watchdog.end()


atexit.register(_at_exit)


def _forget_thread() -> None:
    global _current, _lock
    _current = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_thread)
