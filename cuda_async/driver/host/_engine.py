"""The engine of the host device: queues of entries, advanced side by side in small steps.

Theory. A queue is a stream: first in, first out. Only its first entry can advance. The queue is *ready* when
that entry can take a step, and *blocked* when it is a wait for a record that is not done; an empty queue is
neither. One place (`_order.py`) decides which ready queue takes the next step.

One thread runs the steps of a threaded engine: a daemon, started by the first entry that needs it, asleep
while nothing is ready (see `Bell`). A stepped engine has no thread: whoever calls `step` runs one.

Who writes what. `_lock` guards queues, the ready set and the completion of records; it is never held while a
step runs. Steps run one at a time; anybody may append. An entry stays at the head of its queue while it runs,
so "empty" means that nothing is under way, and an immediate entry (an event record, an allocation) that
meets an empty queue is done on the spot, by the thread that enqueues it. A record's `done` is written last:
it is read without the lock. A record may be waited for by a queue of another engine; that engine is told
after the lock is released, so nobody ever holds two engines' locks.

Being polite. Python threads share one interpreter lock. After 2 ms of steps the engine sleeps for a moment,
so that an event loop's thread gets that lock at once, instead of asking for it for 5 ms. A sleep costs
60 us: 3 %.

Failures. When an entry raises, its queue keeps the failure. Entries behind it are skipped, except those that
keep books (allocation, free, waits, records), up to the next event record, which is done *with* the failure;
then the queue works normally again. Who asks for that record gets the error, each time; who synchronizes
with the queue gets it once, unless somebody had it already. A wait for a failed record hands the failure
to the waiting queue; so does a `HandOnEntry`, which does not wait. A CUDA device does not come back after a
fault: `stop` does that here, on request.

Interrupts. Whoever enqueues may be the main thread, which a `KeyboardInterrupt` ends between any two calls, or be
near the limit of recursion, or have a signal handler that raises whatever it likes: what is no `CudaAsyncError` is not
the work's. Then the head of the queue is made ready and gone through again, so what a repeatable entry does, and
`_finish`, may be done twice: the entry leaves the queue last.

Fork. Only the forking thread lives on in the child. The child keeps its queues, empty: what was pending is
abandoned, its records fail with an error that says so, and the next entry starts a new thread. The locks are
held over the fork, so what they guard is whole in the child.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import sys
import threading
import time
import weakref
from traceback import TracebackException, clear_frames
from typing import TYPE_CHECKING

from ...errors import ClosedError, ContextError, CudaAsyncError, KernelError, MemoryFault, ReentrancyError
from .._bell import Bell, call_each
from ._entries import Entry, EventRecord, Failure, HandOnEntry, WaitEntry
from ._fork import Level, fork_safe_lock, restart_in_child
from ._order import FairOrder, Order
from ._queue import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .check import Checker

__all__ = ["Engine", "failed_work"]

MOST_CAUSES = 16
"""Of an error, as its failure tells them."""
MOST_CHARACTERS = 4000
"""Of the text of somebody's error in ours."""

_POLITE_AFTER_S = 0.002
_POLITE_SLEEP_S = 5e-6  # the system makes some 60 us of it
_EXIT_PATIENCE_S = 1.0


class _Step:
    """A step under way.

    Attributes:
        queue, entry: whose, once it is under way. steps: of the entry, if it has several.
        skips: the entry is passed by. time_s: when it began. began: the entry was touched.
        done: it has no further step. error: what it failed with. interrupt: that came while it ran.
        is_last: it completed the entry. leftover: steps that nobody takes.
        due: who asked to be told of records that are done.
    """

    __slots__ = (
        "began",
        "done",
        "due",
        "entry",
        "error",
        "interrupt",
        "is_last",
        "leftover",
        "queue",
        "skips",
        "steps",
        "time_s",
    )

    def __init__(self) -> None:
        self.queue: Queue | None = None
        self.entry: Entry | None = None
        self.steps: Iterator[None] | None = None
        self.skips = False
        self.time_s = time.perf_counter()
        self.began = False
        self.done = True
        self.error: CudaAsyncError | None = None
        self.interrupt: BaseException | None = None
        self.is_last = False
        self.leftover: Iterator[None] | None = None
        self.due: list[Callable[[], object]] = []


class Engine:
    """Advances queues.

    Args:
        order: decides which ready queue goes next.
        threaded: run steps in a thread of the engine's own; otherwise whoever calls `step` does.
        idle_s: end the thread after so long without work; the next entry starts another. None: it stays.
    Attributes:
        checker: looks for races (`check/`), where that is wanted.
    """

    checker: Checker | None = None

    def __init__(
        self, order: Order | None = None, *, threaded: bool = True, idle_s: float | None = None
    ) -> None:
        self.order: Order = order if order is not None else FairOrder()
        self.threaded = threaded
        self._idle_s = idle_s
        self._lock = fork_safe_lock(Level.ENGINE)
        self._work = Bell()  # for the thread
        self._watchers: dict[Bell, None] = {}  # of threads that wait for a change
        self._queues: dict[Queue, None] = {}
        self._numbers = itertools.count()
        self._ready: dict[Queue, None] = {}
        self._unmended: dict[Queue, None] = {}
        self._outbox: list[tuple[Engine, Queue, EventRecord]] = []
        self._due: list[Callable[[], object]] = []
        self._thread: threading.Thread | None = None
        self._asleep = False
        self._current: Queue | None = None
        self._stepping: int | None = None  # the thread that runs a step
        self._closed = False
        self._level_s = 0.0
        self._dropped: list[Iterator[None]] = []
        self._abandoned: list[object] = []
        restart_in_child(self)
        _engines.add(self)

    # ---------------------------------------------------------------------------- queues

    def add_queue(self, owner: object = None, priority: int = 0) -> Queue:
        """A new, empty queue."""
        with self._lock:
            queue = Queue(owner, priority, next(self._numbers))
            if self._closed:
                queue.refusal = _exiting
            self._queues[queue] = None
        return queue

    def remove_queue(self, queue: Queue) -> None:
        """No more entries will come; what is in the queue still runs."""
        with self._lock:
            queue.orphan = True
            if not queue.entries:
                self._queues.pop(queue, None)

    def queues_of(self, owner: object) -> list[Queue]:
        """All queues of a device, removed ones too as long as they hold entries."""
        with self._lock:
            return [queue for queue in self._queues if queue.owner is owner]

    def kernels_of(self, owner: object) -> tuple[str, ...]:
        """Names of the kernels a device has not completed, the ones under way first."""
        with self._lock:
            queues = sorted(self.queues_of(owner), key=lambda queue: queue.steps is None)
            waiting = [entry.kernel for queue in queues for entry in list(queue.entries)[1:]]
            first = [queue.entries[0].kernel for queue in queues if queue.entries]
        return tuple(dict.fromkeys(name for name in first + waiting if name))

    def enqueue(self, queue: Queue, entry: Entry) -> None:
        """Append `entry`; raises what the queue was told to refuse with."""
        with self._lock:
            if self._unmended:
                self._mend()
            if queue.refusal is not None:
                raise queue.refusal()
            if self.checker is not None:
                self.checker.enqueued(queue, entry)
            try:
                queue.enqueued += 1
                queue.entries.append(entry)
                if len(queue.entries) == 1:
                    if self.threaded and entry.immediate and _can_start(entry):
                        self._run_immediate(queue, entry)
                    else:
                        self._head_changed(queue)
                        self._wake()
                if self._watchers:
                    self._tell_watchers()
            except BaseException:
                self._unmended[queue] = None  # needs no call: near the limit of recursion there is none
                self._mend()
                raise
        if self._outbox:
            self._deliver()

    def _mend(self) -> None:
        """Lock held. Something was raised within an enqueueing: what stands in that queue is gone through again."""
        for queue in list(self._unmended):
            if queue.entries:
                if queue not in self._ready:
                    queue.blocked_on = None
                    self._head_changed(queue)
                self._wake()
            self._tell_watchers()
            self._unmended.pop(queue, None)

    def block_picker(self) -> Callable[[int], int] | None:
        """What chooses among the blocks of a launch, where that is not the launch's own affair."""
        return None

    def look(self, subject: object) -> None:
        """The program looks at a record, a queue or the pool. A seeded engine may advance first."""

    # ---------------------------------------------------------------------------- waiting

    def wait_record(self, record: EventRecord) -> None:
        """Block this thread until the record is done; raises its error."""
        if not record.done:
            self._wait_until(lambda: record.done)
        if self.checker is not None:
            self.checker.observed(record)
        if record.failure is not None:
            raise record.failure.tell()

    def notify(self, record: EventRecord, callback: Callable[[], object]) -> bool:
        """Call `callback` once the record is done, from the thread that completes it; False when it is already."""
        with self._lock:
            if record.done:
                if self.checker is not None:
                    self.checker.observed(record)
                return False
            self.check_not_in_step()
            if self._unmended:
                self._mend()
            record.callbacks.append(callback)
        return True

    def wait_queue(self, queue: Queue) -> None:
        """Block this thread until what is in the queue now is done; raises an error nobody has had yet."""
        target = queue.enqueued
        self._wait_until(lambda: queue.completed >= target)
        if self.checker is not None:
            self.checker.observed_queue(queue)
        if queue.refusal is not None:
            raise queue.refusal()
        self.raise_failure(queue)

    def raise_failure(self, queue: Queue) -> None:
        """Raise the queue's failure, if there is one to tell, and clear it: later entries run again."""
        with self._lock:
            reported, queue.reported = queue.reported, None
            failure, queue.failure = queue.failure, None
        if reported is not None and not reported.observed:
            raise reported.tell()
        if failure is not None:
            raise failure.tell()

    def wait_enqueued(self, queue: Queue, count: int, timeout_s: float | None) -> bool:
        """Block this thread until the queue holds at least `count` entries; False when it took too long."""
        return self._wait_until(lambda: len(queue.entries) >= count, timeout_s)

    def check_not_in_step(self) -> None:
        """Raises `ReentrancyError` on a thread that is running a step, which would wait for itself."""
        if self._stepping == threading.get_ident():
            raise ReentrancyError(
                "work on the host device cannot wait for the host device, which would never get to it; "
                "enqueue what comes next instead"
            )

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        change = Bell()
        try:
            while True:
                with self._lock:
                    if self._unmended:
                        self._mend()
                    if condition():
                        return True
                    self.check_not_in_step()
                    self._watchers[change] = None
                left_s = None if until is None else until - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                change.wait(left_s)
        finally:
            self._watchers.pop(change, None)

    def _tell_watchers(self) -> None:
        """Lock held. What they wait for may have come."""
        for change in list(self._watchers):
            change.ring()

    # ---------------------------------------------------------------------------- advancing

    def step(self, queue: Queue | None = None) -> Entry | None:
        """Run one step of `queue`, or of the one the order chooses.

        Returns:
            The entry when this step completed it.
        Raises:
            LookupError: nothing can advance.
        """
        step = _Step()
        try:
            self._begin(step, queue)
            self._take(step)
            self._end(step)
        except BaseException:  # an interrupt came between: the next step shall not find this one under way
            self._end(step)
            self._announce(step)
            raise
        self._announce(step)
        if step.interrupt is not None:
            raise step.interrupt
        return step.entry if step.is_last else None

    def _begin(self, step: _Step, queue: Queue | None) -> None:
        with self._lock:
            if queue is None:
                if not self._ready:
                    raise LookupError("no stream can advance: all are empty or wait for events")
                queue = self.order.next_queue(tuple(self._ready))
            elif queue not in self._ready:
                raise LookupError("the stream cannot advance: it is empty or waits for an event")
            if self._current is not None:
                raise RuntimeError("another thread is running a step; advance from one thread at a time")
            step.entry = queue.entries[0]
            step.steps = queue.steps
            step.skips = queue.failure is not None and step.entry.skippable
            step.queue = queue
            self._current = queue
            self._stepping = threading.get_ident()

    def _take(self, step: _Step) -> None:
        """Lock not held. Whatever comes of it is noted in `step`."""
        queue, entry = step.queue, step.entry
        assert queue is not None
        assert entry is not None
        checker = self.checker
        outer = checker.enter(queue, entry) if checker is not None else None
        handled = sys.exc_info()[1]
        try:
            step.began = True
            if not step.skips:
                if step.steps is None:
                    step.steps = entry.start()  # of an immediate entry, there is nothing more
                if step.steps is not None:
                    next(step.steps)
                    step.done = False
        except StopIteration:
            pass
        except BaseException as problem:  # the engine lives on, whatever a kernel raises
            repeats = entry.repeatable and not isinstance(problem, CudaAsyncError)
            if not self.threaded and (repeats or isinstance(problem, KeyboardInterrupt)):
                step.interrupt = problem
            step.done = step.interrupt is None or not repeats
            if step.done:
                step.error = failed_work(entry.kernel)  # where it cannot be explained
                with contextlib.suppress(Exception):
                    step.error = _explained(problem, entry, handled)
        if checker is not None and outer is not None:
            checker.leave(outer)

    def _end(self, step: _Step) -> None:
        """Lock not held. As `_finish`, this may be done twice."""
        with self._lock:
            queue, entry = step.queue, step.entry
            if queue is None or entry is None or queue is not self._current:
                return
            if step.began:
                cleared = not queue.entries or queue.entries[0] is not entry
                step.is_last = step.done and not cleared
                if cleared or step.skips:
                    step.leftover = step.steps
                if not cleared:
                    now = time.perf_counter()
                    self._level_s = queue.used_s = queue.used_s + now - step.time_s
                    step.time_s = queue.ready_since = now
                    if step.done:
                        self._finish(queue, entry, step.error)
                    else:
                        queue.steps = step.steps
            self._current = None
            self._stepping = None
            step.due, self._due = self._due, []

    def _announce(self, step: _Step) -> None:
        """Lock not held. Others hear of what is done."""
        if step.leftover is not None:
            _close(step.leftover)
        if self._outbox:
            self._deliver()
        due, step.due = step.due, []
        if due:
            self._tell(due)

    def _tell(self, due: list[Callable[[], object]]) -> None:
        """Lock not held. Call those who asked to be told of records that are done."""
        try:
            call_each(due)
        finally:  # behind an interrupt in there: who is left
            call_each(due)

    def is_ready(self, queue: Queue) -> bool:
        """Whether `step(queue)` can do something."""
        return queue in self._ready

    def _run_immediate(self, queue: Queue, entry: Entry) -> None:
        """Lock held. The queue holds only this entry."""
        error: CudaAsyncError | None = None
        checker = self.checker
        outer = checker.enter(queue, entry) if checker is not None else None
        handled = sys.exc_info()[1]
        try:
            entry.start()
        except CudaAsyncError as problem:  # anything else is not the work's, which is begun again
            error = _explained(problem, entry, handled)
        finally:
            if checker is not None and outer is not None:
                checker.leave(outer)
        self._finish(queue, entry, error)

    def _finish(self, queue: Queue, entry: Entry, error: CudaAsyncError | None) -> None:
        """Lock held. The first entry of the queue is done."""
        if self.checker is not None:
            error = self.checker.finished(queue, entry, error)
        queue.steps = None
        if error is not None and queue.failure is None:
            queue.failure = Failure(error)
        record = entry.completes
        if record is entry and not record.done:
            failure, queue.failure = queue.failure, None
            if failure is not None:
                queue.reported = failure
            self._complete(record, failure)
        elif record is not None:
            self._complete(record, None)
        elif isinstance(entry, HandOnEntry) and queue.failure is None and entry.record.failure is not None:
            queue.failure = entry.record.failure.handed_on()
        queue.entries.popleft()
        if queue.entries:
            self._head_changed(queue)
        else:
            self._ready.pop(queue, None)
            if queue.orphan:
                self._queues.pop(queue, None)
        if self._watchers:
            self._tell_watchers()

    def _complete(self, record: EventRecord, failure: Failure | None) -> None:
        """Lock held. `done` comes last: it is read without the lock."""
        record.failure = failure
        record.time_s = time.perf_counter()
        record.done = True
        if record.callbacks:
            self._due.extend(record.callbacks)
            record.callbacks.clear()
        waiters = record.waiters
        while waiters:
            engine, queue = waiters[-1]
            if engine is self:
                self._unblock(queue, record)
            else:
                self._outbox.append((engine, queue, record))
            waiters.pop()

    def _deliver(self) -> None:
        """Lock not held. Tell other engines of records that are done."""
        while True:
            try:
                engine, queue, record = self._outbox.pop()
            except IndexError:
                return
            with engine._lock:
                engine._unblock(queue, record)

    def _unblock(self, queue: Queue, record: EventRecord) -> None:
        """Lock held."""
        if queue.blocked_on is record:
            self._set_ready(queue)
            self._wake()
            queue.blocked_on = None

    def _head_changed(self, queue: Queue) -> None:
        """Lock held. Decide whether the queue's new first entry can advance."""
        entry = queue.entries[0]
        if not _can_start(entry):
            assert isinstance(entry, WaitEntry)
            queue.blocked_on = entry.record
            self._ready.pop(queue, None)
            entry.record.waiters.append((self, queue))
            if not _can_start(entry):  # looked at again: another engine may have missed the new waiter
                return
            queue.blocked_on = None
        self._set_ready(queue)

    def _set_ready(self, queue: Queue) -> None:
        """Lock held. A queue that was idle gets no credit for it."""
        if queue not in self._ready:
            level = min((other.used_s for other in self._ready), default=self._level_s)
            queue.used_s = max(queue.used_s, level)
            queue.ready_since = time.perf_counter()
            self._ready[queue] = None

    # ---------------------------------------------------------------------------- the thread

    def _wake(self) -> None:
        """Lock held. Something may have become ready."""
        if self._asleep:
            self._work.ring()
        elif self._thread is None and self.threaded and not self._closed:
            thread = threading.Thread(target=self._run, name="cuda-async-host-engine", daemon=True)
            self._thread = thread
            try:
                thread.start()  # raises once the interpreter is exiting
            except BaseException:
                self._thread = None  # if it runs all the same, it sees that it is not the one
                raise

    def _run(self) -> None:
        busy_since = time.perf_counter()
        while True:
            with self._lock:
                if self._closed or self._thread is not threading.current_thread():
                    return
                sleeps = self._asleep = not self._ready
            if sleeps:
                is_rung = self._work.wait(self._idle_s)
                with self._lock:
                    self._asleep = False
                    if not is_rung and not self._ready and self._thread is threading.current_thread():
                        self._thread = None
                        return
                busy_since = time.perf_counter()
                continue
            try:
                self.step()
            except LookupError:  # cleared between the look and the step
                continue
            except (
                BaseException
            ):  # of a callback, which should raise nothing; another thread takes this one's place
                with self._lock:
                    if self._thread is threading.current_thread():
                        self._thread = None
                        if self._ready:
                            self._wake()
                raise
            if time.perf_counter() - busy_since > _POLITE_AFTER_S:
                time.sleep(_POLITE_SLEEP_S)
                busy_since = time.perf_counter()

    # ---------------------------------------------------------------------------- the end

    def stop(self, owner: object, refusal: Callable[[], CudaAsyncError]) -> None:
        """Drop all entries of a device's queues and refuse new ones; pending records fail with that error."""
        with self._lock:
            failure = Failure(refusal())
            for queue in self.queues_of(owner):
                queue.refusal = refusal
                self._clear(queue, failure)
                self._queues.pop(queue, None)
            self._tell_watchers()
            due, self._due = self._due, []
        self._deliver()
        for callback in due:
            callback()
        self._close_dropped()

    def close(self) -> None:
        """Drop everything and end the thread, waiting for it only so long. At interpreter exit; for tests."""
        with self._lock:
            self._closed = True
            for queue in list(self._queues):
                queue.refusal = queue.refusal or _exiting
                self._clear(queue, Failure(_exiting()))
            self._work.ring()
            self._tell_watchers()
            thread = self._thread
            due, self._due = self._due, []
        self._deliver()
        for callback in due:
            callback()
        self._close_dropped()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_EXIT_PATIENCE_S)

    def _clear(self, queue: Queue, failure: Failure) -> None:
        """Lock held. A step under way notices that its entry is gone."""
        entries = list(queue.entries)
        queue.entries.clear()
        queue.blocked_on = queue.failure = queue.reported = None
        self._ready.pop(queue, None)
        if queue.steps is not None and queue is not self._current:
            self._dropped.append(queue.steps)
        queue.steps = None
        for entry in entries:
            if entry.completes is not None:
                self._complete(entry.completes, failure)
            if entry.completes is not entry:
                with contextlib.suppress(Exception):  # the books of a dead queue: nobody to tell
                    entry.abandon()
        if queue.orphan:
            self._queues.pop(queue, None)

    def _close_dropped(self) -> None:
        """Lock not held: ending a generator runs its `finally` blocks."""
        while self._dropped:
            _close(self._dropped.pop())

    def _restart_in_child(self) -> None:
        """After a fork, in the child, lock held: the thread and the steps under way are not here."""
        self._work = Bell()
        self._thread = None
        self._asleep = False
        self._current = None
        self._stepping = None
        self._watchers = {}
        for queue in list(self._queues):
            if queue.steps is not None:
                self._abandoned.append(queue.steps)  # may be running in the parent: never to be touched
                queue.steps = None
            if queue.entries:
                self._clear(queue, Failure(_forked()))


def _can_start(entry: Entry) -> bool:
    return not isinstance(entry, WaitEntry) or entry.record.done


def _explained(problem: BaseException, entry: Entry, handled: BaseException | None) -> CudaAsyncError:
    """The error that a failed entry hands on: our own as they are, others as the cause of a `KernelError`.

    Where the thread was handling an error, that has nothing to do with it, and would be kept by it with all its frames.
    Events and queues keep the error, so it must not keep what the frames refer to that it came through, nor its causes:
    `failed_work` tells them in words.
    """
    seen: set[int] = set()  # they may refer to each other in a ring
    inner: BaseException | None = problem
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        context = _CONTEXT.__get__(inner)
        if context is not None and context is handled:
            _CONTEXT.__set__(inner, None)
            break
        inner = context
    traceback = _TRACEBACK.__get__(problem)
    traceback = traceback.tb_next if traceback is not None else None  # without `step` itself
    _TRACEBACK.__set__(problem, traceback)
    if isinstance(problem, (KernelError, MemoryFault)):
        problem.kernel = problem.kernel or entry.kernel
    chained: list[BaseException | None]
    if isinstance(problem, CudaAsyncError):
        clear_frames(traceback)
        error: CudaAsyncError = problem
        chained = [_CAUSE.__get__(problem), _CONTEXT.__get__(problem)]
    else:
        error = failed_work(entry.kernel, problem)
        error.__cause__ = problem
        chained = [problem]
    seen.clear()
    while chained:
        found = chained.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        _TRACEBACK.__set__(found, None)
        chained += [_CAUSE.__get__(found), _CONTEXT.__get__(found)]
        if isinstance(found, BaseExceptionGroup):
            chained += _EXCEPTIONS.__get__(found)
    return error


# What exceptions refer to, also those whose class defines these names anew.
_TRACEBACK, _CONTEXT, _CAUSE = (
    vars(BaseException)[name] for name in ("__traceback__", "__context__", "__cause__")
)
_EXCEPTIONS = vars(BaseExceptionGroup)["exceptions"]


def failed_work(kernel: str, problem: BaseException | None = None) -> KernelError:
    """The error for what failed with `problem`, whose own text may be not to be had; a note tells where it was."""
    said = ""
    if problem is not None:
        try:
            said = f": {type(problem).__name__}: {_shortened(str(problem))}"
        except Exception as another:
            said = f": {type(problem).__name__}, which cannot be told: its text is a {type(another).__name__}"
    error = KernelError(f"{f'kernel {kernel}' if kernel else 'work'} failed on the host device{said}", kernel)
    if problem is not None:
        with contextlib.suppress(Exception):
            error.add_note(_told(problem))
    return error


class _Told(str):
    """A note of ours."""

    __slots__ = ()


def _told(problem: BaseException) -> _Told:
    """It and its causes, without notes that are such texts.

    Failures may refer to the last one each, which does the same: what is told of them does not grow with that.
    """
    told = TracebackException.from_exception(problem)
    parts: list[tuple[TracebackException | None, int]] = [(told, 0)]
    while parts:
        part, depth = parts.pop()
        if part is None:
            continue
        notes = part.__notes__
        if isinstance(notes, list):
            part.__notes__ = [note for note in notes if not isinstance(note, _Told)]
        if depth == MOST_CAUSES:
            part.__cause__ = part.__context__ = None
        inner = (part.__cause__, part.__context__, *(part.exceptions or ()))
        parts += [(found, depth + 1) for found in inner]
    return _Told("".join(told.format()).rstrip())


def _shortened(text: str) -> str:
    """What somebody's error says, which may be another's of ours in other words, and so on."""
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


def _close(steps: Iterator[None]) -> None:
    """End a generator that will not be advanced again; what it raises then concerns nobody."""
    close = getattr(steps, "close", None)
    if close is not None:
        with contextlib.suppress(Exception):
            close()


def _exiting() -> CudaAsyncError:
    return ClosedError("the host device is closed: the interpreter is exiting")


def _forked() -> CudaAsyncError:
    return ContextError(
        "this work was in flight on the host device when the process forked, and is not done in the child; "
        'await it in the parent, or start workers with multiprocessing.get_context("spawn")'
    )


# -------------------------------------------------------------------------------- whole process

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for engine in list(_engines):
        engine.close()
