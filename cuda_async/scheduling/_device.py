"""`Device`: one device of the process, its streams, memory and lock; and which one is current.

The device's lock guards submission numbers, usages, the allocator's counts and the event cache. It is held for
a few driver calls at most and never over user code: what the lock's holders release is dropped after it.

Freeing: finalizers leave `FreeNote`s; whoever enters the device next (`_collect`) frees that memory in stream
order behind its last uses. No thread waits for it.
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..driver._bell import Bell, call_each
from ..driver._switches import longest_poll_s, poison_freed
from ..errors import (
    ClosedError,
    ContextError,
    CudaAsyncError,
    DeviceLostError,
    DriverError,
    OutOfMemoryError,
    SchedulingError,
)
from ..memory import Buffer, FreeNote, PinnedPool, Usage
from . import _opening
from ._dropped import destroy_dropped
from ._kept_errors import collect_kept_errors, errors_of_work_aside
from ._ordering import order_uses
from ._sharing import (
    LEGACY_STREAM,
    PER_THREAD_STREAM,
    foreign_calls,
    is_untraceable,
    lend,
    lend_to_anyone,
    wait_for_borrowers,
)
from ._statistics import MemoryStatistics
from ._submission import CAPTURE_UNSUPPORTED
from ._watchdog import start_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ..driver import DeviceLimits, DeviceProperties, Driver, EventHandle
    from ..driver.graph import GraphHandle
    from ._policies import SchedulingPolicy
    from ._stream import Stream
    from ._submission import Submission

__all__ = [
    "Device",
    "all_open_devices",
    "checked_open",
    "devices",
    "resolve_default_device",
]

MAX_POLLERS = 16
"""With more tasks polling at once, each look comes too late to be worth it."""


_registry: dict[str, Device] = {}
_registry_lock = threading.Lock()
_all_devices: WeakSet[Device] = WeakSet()
"""Those too that are in no registry."""


MAPPED_AHEAD_BYTES = 16 << 20
"""Allocations from this size on have their memory mapped on a worker thread, where the pool has to grow for them."""


class Device:
    """`Device("cuda:0")`, `Device("host:0")`: one device, the same object each time.

    Naming one is free; the first use of it loads the driver and makes a context, which is slow: operations do
    that on a worker thread.
    """

    def __new__(cls, name: str) -> Device:
        kind, _, number = name.partition(":") if isinstance(name, str) else ("", "", "")
        if kind not in ("cuda", "host") or (number and not (number.isascii() and number.isdecimal())):
            raise ValueError(f'a device is "cuda:N" or "host:N", got {name!r}')
        ordinal = int(number or 0)
        key = f"{kind}:{ordinal}"
        with _registry_lock:
            device = _registry.get(key)
            if device is None:
                device = _registry[key] = cls._make(kind, ordinal, None)
            return device

    @classmethod
    def _make(cls, kind: str, ordinal: int, driver: Driver | None) -> Device:
        """A device object; tests pass a driver of their own, which is not registered."""
        self = object.__new__(cls)
        self.kind = kind
        self.ordinal = ordinal
        self._driver = driver
        self._setup()
        return self

    kind: str
    """`"cuda"` or `"host"`."""
    ordinal: int
    """Which one of its kind, from 0."""
    _driver: Driver | None

    def _setup(self) -> None:
        _all_devices.add(self)
        self._set_lock()
        self._open_lock = threading.Lock()
        self._close_lock = threading.RLock()
        self._pool_lock = threading.RLock()
        self._streams: list[Stream] = []
        self._exchange: Stream | None = None
        self._reclaim: Stream | None = None
        self._outside: WeakSet[Buffer] = WeakSet()
        self._usages_joined = 0  # how often buffers were given another usage, which others have too
        self._events: list[EventHandle] = []  # that lie ready
        self._interrupting_events: list[EventHandle] = []
        self._notes: deque[FreeNote] = deque()
        self._held_notes: list[FreeNote] = []  # of memory lent to streams that may be gone (`_sharing`)
        self._dropped_events: deque[EventHandle] = deque()
        self._dropped_graphs: deque[GraphHandle] = deque()
        self._lost: DeviceLostError | None = None
        self._forked = False
        self._closed_because = ""
        self._used = 0
        self._used_high = 0
        self._limit: int | None = None
        self._policy: SchedulingPolicy | None = None
        self._pinned: PinnedPool | None = None
        self._poison = poison_freed()
        self._pollers: list[None] = []  # one for each: a list changes in one step, on every thread
        self._wait_average_s = 0.0
        self._sleep_average = 0.0  # of the latest waits, those that did not end while polling
        self._interrupts = self._interrupts_lost = False
        self._lookout = False  # there is a thread that looks at what others sleep for
        self._max_poll_s = longest_poll_s(self.kind)
        start_from_environment()

    def _set_lock(self) -> None:
        self._lock = lock = threading.Lock()
        # The same lock for the `with` of a launch: its methods are bound already, which saves making two objects.
        bound = {"__enter__": lock.acquire, "__exit__": lock.__exit__}
        self._launch_lock: Any = type("LaunchLock", (), bound)()

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __str__(self) -> str:
        return f"{self.kind}:{self.ordinal}"

    def __reduce__(self) -> tuple[type[Device], tuple[str]]:
        return Device, (str(self),)

    # -- first use

    @property
    def is_open(self) -> bool:
        """True once the driver is loaded and the context made."""
        return self._driver is not None

    def open(self) -> Device:
        """Load the driver and make the context now; slow the first time, so not for an event loop's thread.

        Raises:
            ContextError: there is no such device here; the message says what is missing.
            DeviceLostError: it was lost in this process.
        """
        if self._driver is None:
            opened = False
            with self._open_lock:
                if self._driver is None:
                    opened = True
                    self._check_fork()
                    self._check_not_closed()
                    if self.kind == "cuda":
                        from ..driver.cuda import open_cuda_driver

                        driver = self._driver = open_cuda_driver(self.ordinal)
                        try:
                            driver.bind()
                        except DeviceLostError as lost:
                            raise self._note_lost(lost) from lost
                    else:
                        from ..driver.host import open_host_driver

                        host_driver = self._driver = open_host_driver(self.ordinal)
                        if host_driver.checker is not None:
                            from ._findings import print_at_exit

                            print_at_exit(self, host_driver)
                    if self._closed_because:  # meanwhile
                        closed, self._driver = self._driver, None
                        if closed is not None:  # or who closes the device has found it
                            closed.close()
                        self._check_not_closed()
            if opened and self.kind == "cuda":
                for get_ready in _opening.behind_opening:
                    with contextlib.suppress(Exception):  # whoever needs it meets the error himself
                        get_ready()
        return self

    @property
    def driver(self) -> Driver:
        """The driver layer, opened when needed."""
        driver = self._driver
        while driver is None:  # after open() another thread may close it at once; then the next one says so
            driver = self.open()._driver
        return driver

    @property
    def properties(self) -> DeviceProperties:
        """Everything that does not change."""
        return self.driver.properties

    @property
    def name(self) -> str:
        """The maker's name."""
        return self.driver.properties.name

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return self.driver.properties.compute_capability

    @property
    def limits(self) -> DeviceLimits:
        """What a launch may ask for."""
        return self.driver.properties.limits

    @property
    def is_healthy(self) -> bool:
        """False once a fault has made the device unusable in this process, or it was closed."""
        return self._lost is None and not self._forked and not self._closed_because

    # -- streams

    def create_stream(self, *, priority: int = 0, name: str = "") -> Stream:
        """A new stream; smaller `priority` numbers go first (`limits.stream_priorities`).

        Raises:
            SchedulingError: the priority is outside the device's range. TypeError: it is no integer, or the name is no
                str.
        """
        from ._stream import Stream

        self._check_usable()
        try:
            number = operator.index(priority)
        except TypeError:
            raise TypeError(f"a stream's priority is an int, got {priority!r}") from None
        least, greatest = self.limits.stream_priorities
        if not greatest <= number <= least:
            raise SchedulingError(
                f"stream priority is {priority}; {self} takes {greatest} (first) to {least}"
            )
        if not isinstance(name, str):
            raise TypeError(f"a stream's name is a str, got {name!r}")
        handle = self.driver.stream_create(number)
        with self._lock:
            stream = Stream._make(self, handle, number, name or f"stream {len(self._streams)}")
            self._streams.append(stream)
        return stream

    def borrow_stream(self, stream: object) -> Stream:
        """Another library's stream, for running operations on it in its order (`op.sync_on(...)`, `SingleStream`).

        The same stream gives the same object, until `Stream.close()` ends the loan.

        Args:
            stream: an object with `__cuda_stream__`, which is kept alive; or a stream's address, and then the stream
                must live until the loan is ended. 0 and 1 are the legacy default stream; 2, the per-thread one,
                is taken for the legacy one, which is ordered with it.
        Raises:
            TypeError: neither of these. ContextError: a simulated device.
        """
        from ._stream import Stream

        if isinstance(stream, Stream) and stream.device is self:
            return stream
        owner: object = None
        if hasattr(stream, "__cuda_stream__"):
            owner = stream
            address = int(stream.__cuda_stream__()[1])
        elif isinstance(stream, int) and stream >= 0:
            address = int(stream)
        else:
            raise TypeError(f"expected a stream's address or an object with __cuda_stream__, got {stream!r}")
        self._check_usable()
        driver = foreign_calls(self)
        if address in (0, PER_THREAD_STREAM):
            address = LEGACY_STREAM
        with self._lock:
            found = self._stream_at(address)
            if found is None:
                handle = driver.stream_borrow(address)
                found = Stream._make(self, handle, 0, f"borrowed {address:#x}", borrowed=True, owner=owner)
                self._streams.append(found)
        return found

    def _stream_at(self, address: int) -> Stream | None:
        return next((s for s in self._streams if s._handle == address), None)

    def _exchange_stream(self) -> Stream:
        """The stream that waits for other libraries: imports come in on it, lent memory is freed on it."""
        stream = self._exchange
        if stream is None or stream._closed:
            with self._pool_lock:
                stream = self._exchange
                if stream is None or stream._closed:
                    stream = self._exchange = self.create_stream(name="exchange")
        return stream

    def _reclaim_stream(self) -> Stream:
        """Lock held. The stream that frees memory which several streams used; no work runs on it."""
        stream = self._reclaim
        if stream is None or stream._closed:
            from ._stream import Stream

            stream = self._reclaim = Stream._make(self, self.driver.stream_create(0), 0, "reclaim")
            self._streams.append(stream)
        return stream

    @property
    def policy(self) -> SchedulingPolicy:
        """What chooses streams on this device when nothing else was said."""
        policy = self._policy
        if policy is None:
            from ._policies import StreamPoolRoundRobin

            with self._pool_lock:
                if self._policy is None:
                    self._policy = StreamPoolRoundRobin(device=self)
                policy = self._policy
        return policy

    @policy.setter
    def policy(self, policy: SchedulingPolicy) -> None:
        self._policy = policy

    def synchronize(self) -> None:
        """Block this thread until everything enqueued on this device is done, and free what was dropped.

        What kernels printed is on the standard output then. Raises what failed since the last look.
        """
        if self._lost is not None:
            raise self._lost_again()
        first: BaseException | None = None
        streams = [s for s in list(self._streams) if s is not self._reclaim]
        for stream in streams:
            try:
                submission = stream._submit()
                if submission is not None:
                    submission.block()
                stream._raise_unreported(submission)
                # What kernels printed comes out when a wait ends, not when a look finds the end; and others may have
                # enqueued by the handle of a stream of ours.
                is_known = stream._borrowed or not stream._handed_out
                if not (submission is None and is_known):
                    with stream._in_use() as handle:
                        if handle is not None:
                            self.driver.stream_synchronize(handle)
            except DeviceLostError:
                raise
            except CudaAsyncError as error:
                first = first or error
        self.collect(everything=True)
        if self._reclaim is not None:
            submission = self._reclaim._submit()
            if submission is not None:
                submission.block()  # what other streams handed on to it, they have reported
        if first is not None:
            raise first

    # -- memory

    @property
    def pinned(self) -> PinnedPool:
        """Page-locked staging memory."""
        pool = self._pinned
        if pool is None:
            driver = self.driver
            with self._open_lock:
                if self._pinned is None:
                    self._pinned = PinnedPool(driver)
                pool = self._pinned
        return pool

    def memory_stats(self) -> MemoryStatistics:
        """How much memory is used, after freeing what was dropped. Never waits."""
        self.collect()
        reserved = self.driver.pool_statistics().reserved_bytes if self.is_healthy else 0
        return MemoryStatistics(
            used_bytes=self._used,
            used_high_bytes=self._used_high,
            reserved_bytes=reserved,
            limit_bytes=self._limit,
            pinned_bytes=self._pinned.reserved_bytes if self._pinned is not None else 0,
        )

    @property
    def memory_limit(self) -> int | None:
        """The most bytes that may be live at once, or None. Asking for more is `OutOfMemoryError`."""
        return self._limit

    @memory_limit.setter
    def memory_limit(self, size_bytes: int | None) -> None:
        try:
            if isinstance(size_bytes, bool):
                raise TypeError
            limit = None if size_bytes is None else operator.index(size_bytes)
        except TypeError:
            raise TypeError(f"a memory limit is a number of bytes or None, got {size_bytes!r}") from None
        if limit is not None and limit < 0:
            raise ValueError(f"a memory limit is a number of bytes or None, got {limit}")
        self._limit = limit

    def collect(self, *, everything: bool = False) -> None:
        """Free, in stream order, the memory of tensors that were dropped; retire what is done. Never waits.

        Args:
            everything: also what was exported to a stream that may not exist any more. That invalidates captures of
                CUDA graphs that are under way, in any library.
        """
        if self._driver is None:
            return
        for stream in list(self._streams):
            stream._refresh()
        if not self.is_healthy:
            with self._lock:
                forgotten = self._forget_notes()
            del forgotten  # outside the lock: it may run anybody's code
            return
        self.driver.bind()
        with self._lock:
            self._collect(everything=everything)

    def trim(self) -> None:
        """Give cached memory back to the system, pinned memory too. Slow."""
        self.collect(everything=True)
        self.driver.pool_trim(0)
        if self._pinned is not None:
            self._pinned.trim()

    def _collect(self, *, everything: bool = False) -> None:
        """Lock held, context bound."""
        # An interrupt comes as a function begins or a call of C is back, and a finalizer may leave a note at any time.
        # So a note stays the first until it is dealt with, and goes by a statement that calls nothing.
        notes = self._notes
        if everything:
            held, self._held_notes = self._held_notes, []
            notes.extend(held)
        driver = self.driver
        for _ in range(len(notes)):  # what cannot be freed now goes to the end
            note = notes[0]
            usage = note.usage
            if usage.lent is not None and not everything and note.owner is None and is_untraceable(usage):
                self._held_notes += [note]
                del notes[0]
                continue
            try:
                stream = self._stream_that_frees(note)
                if note.owner is not None:
                    stream._retained.append(note.owner)
                    stream._dirty = True
                    stream._record()
                    del notes[0]
                    continue
                if usage.lent is not None and not wait_for_borrowers(self, stream, usage):
                    notes.rotate(-1)
                    continue
                if self._poison:
                    driver.fill_async(note.address, b"\xdd", note.size_bytes, stream._handle)
                stream._dirty = True
                handle = stream._handle
            except CudaAsyncError:
                notes.rotate(-1)  # for the next who collects
                raise
            try:
                driver.memory_free_async(note.address, handle)
            except CudaAsyncError as error:
                notes.rotate(-1)
                if isinstance(error, DriverError) and error.code == CAPTURE_UNSUPPORTED:
                    continue
                raise
            except BaseException:  # an interrupt: maybe it is freed already, so it must not be freed again
                del notes[0]
                self._used -= note.size_bytes
                raise
            del notes[0]
            self._used -= note.size_bytes
        destroy_dropped(self)

    def _stream_that_frees(self, note: FreeNote) -> Stream:
        """Lock held. A stream that is behind all uses of the memory."""
        usage = note.usage
        uses = list(usage.uses())
        streams = {source for source, _ in uses}
        stream = self._exchange if usage.lent else streams.pop() if len(streams) == 1 else None
        if stream is None or stream._closed or stream._borrowed or stream.device is not self:
            # Memory that several streams used: waiting on a stream of work would hand on to it what failed on the
            # others.
            stream = self._reclaim_stream()
        for source, number in uses:
            stream._wait_for(source, number)
        return stream

    def _forget_notes(self) -> list[FreeNote]:
        forgotten = []
        self._notes.extend(self._held_notes)
        self._held_notes.clear()
        while self._notes:
            forgotten.append(self._notes.popleft())
            self._used -= forgotten[-1].size_bytes
        self._dropped_events.clear()
        self._dropped_graphs.clear()
        return forgotten

    def _allocate(self, size_bytes: int, stream: Stream, *, is_retry: bool = False) -> Buffer:
        """Memory that exists from now on in `stream`'s order; the context is bound.

        Raises:
            OutOfMemoryError: also after cached memory was given back, and what kept errors held; nothing was enqueued.
        """
        if stream._recorder is not None:
            return stream._recorder.allocate(size_bytes, stream)
        if size_bytes == 0:
            return Buffer(self, 0, 0, Usage(stream, 0))
        driver = self.driver
        try:
            with self._lock:
                if self._notes:
                    self._collect()
                limit = self._limit
                if limit is not None and self._used + size_bytes > limit and self._held_notes:
                    self._collect(everything=True)
                if limit is not None and self._used + size_bytes > limit:
                    raise OutOfMemoryError(
                        f"{self}: out of memory: asked for {size_bytes} bytes, {self._used} are used of a limit of "
                        f"{limit}; drop tensors or raise device.memory_limit",
                        size_bytes,
                        self._used,
                        limit,
                    )
                try:
                    address = driver.memory_alloc_async(size_bytes, stream._handle)
                except OutOfMemoryError:
                    self._collect(everything=True)
                    driver.pool_trim(0)
                    try:
                        address = driver.memory_alloc_async(size_bytes, stream._handle)
                    except OutOfMemoryError:
                        driver.pool_trim(
                            0
                        )  # a CUDA pool keeps what it had got before it found that there is too little
                        raise
                self._used += size_bytes
                if self._used > self._used_high:
                    self._used_high = self._used
                stream._dirty = True
                buffer: Buffer | None = None
                try:
                    buffer = Buffer(self, address, size_bytes, Usage(stream, stream._next))
                    buffer._notes = self._notes  # from here on its finalizer frees the memory
                    return buffer
                except BaseException:  # an interrupt
                    if buffer is None or buffer._notes is None:
                        self._notes.append(FreeNote(address, size_bytes, Usage(stream, stream._next)))
                    raise
        except OutOfMemoryError:
            if is_retry or not collect_kept_errors():
                raise
        return self._allocate(size_bytes, stream, is_retry=True)

    def _would_map(self, size_bytes: int) -> bool:
        """Whether an allocation would make the pool map new memory; the context is bound."""
        if size_bytes < MAPPED_AHEAD_BYTES:
            return False
        if self._notes:
            with self._lock:
                self._collect()
        if self._limit is not None and self._used + size_bytes > self._limit:
            return False  # it will be refused
        pool = self.driver.pool_statistics()
        # What is cached may lie in pieces, or belong to other streams still: only twice as much is taken for enough.
        return pool.reserved_bytes - pool.used_bytes < 2 * size_bytes

    def _map_ahead(self, size_bytes: int, stream: Stream) -> None:
        """Let the pool map memory now, for an allocation of that size on `stream` that comes next.

        For worker threads: on an H100's host, 256 MiB took up to 60 ms. Where it does not fit nothing happens; the
        allocation itself makes room, or says so.
        """
        driver = self.driver
        driver.bind()
        with stream._in_use() as handle:
            if handle is None:
                return
            try:
                address = driver.memory_alloc_async(size_bytes, handle)
            except OutOfMemoryError:
                driver.pool_trim(0)
                return
            driver.memory_free_async(address, handle)

    # -- other libraries, used by the memory layer

    def _lend(self, buffer: Buffer, holder: int, stream: int | None) -> None:
        lend(self, buffer, holder, stream)

    def _lend_to_anyone(self, buffer: Buffer) -> int | None:
        return lend_to_anyone(self, buffer)

    # -- ordering, used by operations (context bound)

    def _order(self, stream: Stream, reads: list[Buffer], writes: list[Buffer]) -> None:
        """Lock held. What is enqueued next on `stream` reads and writes these."""
        order_uses(stream, reads, writes)

    # -- faults

    def _check_usable(self) -> None:
        if self._lost is not None:
            raise self._lost_again()
        if self._forked:
            self._check_fork()
        self._check_not_closed()

    def _check_not_closed(self) -> None:
        if self._closed_because:
            raise ClosedError(f"{self} is closed: {self._closed_because}")

    def _lost_again(self) -> DeviceLostError:
        """One to raise. The device keeps its own, which is never raised: it would keep the frames it came through."""
        assert self._lost is not None
        error = DeviceLostError(str(self._lost), self._lost.kernels)
        error.__cause__ = self._lost.__cause__
        error._driver = self._lost._driver
        return error

    def _is_own(self, lost: DeviceLostError) -> bool:
        """Not one of another device, whose results somebody's code asked for in the middle of work of this one."""
        return lost._driver is None or lost._driver() is self._driver

    def _check_fork(self) -> None:
        if self._forked or _forked:
            raise ContextError(
                f"{self} cannot be used in a process made by fork(): devices do not survive it; "
                'start worker processes with multiprocessing.get_context("spawn")'
            )

    def _lose(
        self,
        lost: DeviceLostError,
        submission: Submission | None = None,
        released: list[Any] | None = None,
        callbacks: list[Callable[[], None]] | None = None,
    ) -> None:
        """Lock held. The device is gone: everything pending fails with one error that names the kernels."""
        released = [] if released is None else released
        callbacks = [] if callbacks is None else callbacks
        open_streams = [stream for stream in self._streams if not stream._closed]
        if self._lost is None:
            names = list(dict.fromkeys([*(submission.kernels if submission else ()), *lost.kernels]))
            for stream in open_streams:
                for pending in stream._pending:
                    names.extend(n for n in pending.kernels if n not in names)
                names.extend(
                    r.name for r in stream._retained if getattr(r, "is_kernel", False) and r.name not in names
                )
            running = f"; kernels in flight: {', '.join(names)}" if names else ""
            cause = lost.__cause__ or lost  # the driver's own error names the device and kernels too
            error = DeviceLostError(
                f"{self} is lost: {cause}{running}. Nothing more can run on it in this process; restart the process",
                tuple(names),
            )
            error.__cause__ = lost.__cause__ or DeviceLostError(str(lost), lost.kernels)
            self._lost = error._said_by(self._driver)
        for stream in open_streams:
            stream._fail_pending(self._lost_again, released, callbacks)
            stream._done = stream._next
            released.append(stream._retained)
            stream._retained = []

    def _note_lost(self, lost: DeviceLostError) -> DeviceLostError:
        """A driver call reported the loss: make it known everywhere; returns the error to raise."""
        released: list[Any] = []
        callbacks: list[Callable[[], None]] = []
        try:
            with self._lock:
                self._lose(lost, None, released, callbacks)
            call_each(callbacks)
        finally:  # behind an interrupt in there: who is left
            call_each(callbacks)
        return self._lost_again()

    # -- how long to poll

    def _poll_budget_s(self) -> float:
        longest = self._max_poll_s
        if len(self._pollers) >= MAX_POLLERS or self._wait_average_s > longest:
            return 0.0
        return longest

    def _note_wait(self, seconds: float, slept: bool) -> None:
        """A wait took so long. Where most end in a sleep, events interrupt the host, which costs it less than looking.

        A device that calls back needs no interrupts.
        """
        self._wait_average_s += 0.1 * (seconds - self._wait_average_s)
        self._sleep_average += 0.1 * (slept - self._sleep_average)
        driver = self._driver
        sleeps = self._sleep_average > 0.5 and driver is not None and not driver.notifies
        self._interrupts = sleeps and not self._interrupts_lost

    # -- closing

    async def aclose(self) -> None:
        """Wait for the device's work, then give back its memory and streams. Closing twice is fine.

        Everything on it is closed with it: using its tensors, streams and bound launches is a `ClosedError`, and so is
        using this object. `Device(name)` makes another one.
        """
        from ._waiting import wait_for_submission

        for submission in self._submit_all():
            with errors_of_work_aside():
                await wait_for_submission(submission)
        self.close()

    def close(self) -> None:
        """`aclose()`, blocking this thread."""
        for submission in self._submit_all():
            with errors_of_work_aside():
                submission.synchronize()
        if self.is_open and self.is_healthy:
            self.collect(everything=True)
        self._close("it was given back with close(); Device(name) makes another one")

    async def __aenter__(self) -> Device:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _submit_all(self) -> list[Submission]:
        """The last submission of each stream that has work."""
        found: list[Submission] = []
        if not self.is_open or not self.is_healthy:
            return found
        self.collect(everything=True)
        for stream in list(self._streams):
            try:
                submission = stream._submit()
            except DeviceLostError as lost:
                self._note_lost(lost)
                break
            if submission is not None:
                found.append(submission)
        return found

    def _close(self, reason: str) -> None:
        """Refuse everything from now on; waits for nothing."""
        with self._close_lock:  # who comes second returns when it is done
            if self._closed_because:
                return
            self._closed_because = reason
            try:
                self._give_back()
            finally:
                self._forget()

    def _forget(self) -> None:
        """Its name is free for another one, which must not get the driver of this one."""
        global _default
        with _registry_lock:
            if _registry.get(str(self)) is self:
                del _registry[str(self)]
            if _default is self:
                _default = None

    def _give_back(self) -> None:
        driver, self._driver = self._driver, None  # whoever is opening it closes what comes of it
        self._policy = None

        def was_closed() -> ClosedError:
            return ClosedError(f"{self} was closed before this was done")

        released: list[Any] = []
        callbacks: list[Callable[[], None]] = []
        try:
            with self._lock:
                is_idle = not any(stream._pending for stream in self._streams)
                for stream in self._streams:
                    stream._fail_pending(was_closed, released, callbacks)  # of another thread, meanwhile
                    if not stream._closed:
                        released.append(stream._close())
            call_each(callbacks)
        finally:  # behind an interrupt in there: who is left
            call_each(callbacks)
        if driver is not None:
            driver.close()
        if self._pinned is not None and is_idle:
            self._pinned.leave()


# ------------------------------------------------------------------------- which there are

_default: Device | None = None


def resolve_default_device() -> Device:
    """The default device by `CUDA_ASYNC_DRIVER`: `auto` (CUDA where there is a GPU), `cuda` or `host`.

    Slow the first time, because it asks the CUDA driver.
    """
    global _default
    found = _default
    if found is None:
        choice = os.environ.get("CUDA_ASYNC_DRIVER", "auto") or "auto"
        if choice not in ("auto", "cuda", "host"):
            raise ContextError(f"CUDA_ASYNC_DRIVER is {choice!r}; expected auto, cuda or host")
        if choice == "auto":
            from ..driver.cuda import cuda_device_count

            choice = "cuda" if cuda_device_count() else "host"
        found = Device(f"{choice}:0")
        with _registry_lock:
            if not found._closed_because:  # by another thread, meanwhile
                _default = found
    return found


def devices() -> list[Device]:
    """Every device of this process, the default kind first. Asks the CUDA driver, so slow the first time."""
    from ..driver.cuda import cuda_device_count
    from ..driver.host import host_device_count

    cuda = [Device(f"cuda:{n}") for n in range(cuda_device_count())]
    host = [Device(f"host:{n}") for n in range(host_device_count())]
    return host + cuda if resolve_default_device().kind == "host" else cuda + host


# ------------------------------------------------------------------------------- fork and exit

_forked = False


def _after_fork() -> None:
    global _forked, _registry_lock
    _registry_lock = threading.Lock()  # another thread of the parent's may have held it
    for device in _all_devices:
        # The parent's threads do not exist here, and may have held these.
        device._open_lock = threading.Lock()
        device._close_lock = threading.RLock()
        device._pool_lock = threading.RLock()
        if device.is_open:
            _forked = True
            device._forked = True
            device._set_lock()
            for stream in device._streams:
                stream._bell = Bell()
                stream._waiter = stream._asleep_for = None
            device._lookout = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def checked_open(device: Device) -> Device:
    """`device`, open and usable; raises `DeviceLostError` or `ContextError`."""
    device._check_usable()
    return device.open()


def all_open_devices() -> list[Device]:
    """Devices that were used in this process."""
    return [d for d in list(_registry.values()) if d.is_open]
