"""Memory that other libraries know too: lent to them (exports), or borrowed from them (imports).

Lending. The consumer names its stream while it takes the memory, and the stream is made to wait for our last write then
and there. Freeing must come after the consumer's work in that stream; but its owner may have destroyed it by then, and
touching a destroyed stream ends the process (seen with driver 580). So it is asked again only if something is known to
keep it alive:

- the default streams always exist; a per-thread one has no name in other threads, but the legacy one waits for them;
- torch never destroys the streams of its pools;
- CuPy destroys a stream with its object, so the object is kept.

For other streams the driver has an event behind everything that the context holds. Asking for it breaks every capture
that is under way, in whatever stream (seen with driver 580, in all capture modes). So memory lent to such streams is
only freed when somebody asks for all of it (`drain()`, `synchronize()`, `trim()`), or when memory runs out.

Frees of lent memory go to a stream of their own, so that nothing of ours is held up. On the host device there is no
stream to wait in, so memory whose last write is not done is not lent.

Borrowing. The producer makes a stream of ours wait for its work; we note that as a write by that stream, so whatever
uses the memory next is ordered behind it. The same memory may come in more than once, and may be memory that we lent
before: all buffers over the same bytes share one `Usage`, so they are ordered as if they were one. So do those that are
joined by others only, and those that were freed while work that uses them is under way.

Work that the other side enqueues later is not seen here: `foreign()` runs it in our order.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..driver import Driver, StreamHandle
from ..errors import ContextError, DriverError

if TYPE_CHECKING:
    from ..driver import EventHandle
    from ..memory import Buffer, Usage
    from ._device import Device
    from ._stream import Stream

__all__ = [
    "LEGACY_STREAM",
    "PER_THREAD_STREAM",
    "adopt",
    "foreign_calls",
    "is_untraceable",
    "lend",
    "lend_to_anyone",
    "wait_for_borrowers",
    "wait_for_producer",
]

LEGACY_STREAM = 1
"""The default stream that all threads share: it waits for the other default streams, and they for it."""
PER_THREAD_STREAM = 2
"""In every thread that says it, that thread's own default stream."""
NO_ORDERING = -1
ALWAYS_THERE = "the default stream"


class ForeignCalls(Driver, Protocol):
    """What the CUDA driver has beside the protocol; the host device has no foreign streams."""

    def stream_borrow(self, address: int) -> StreamHandle: ...
    def stream_is_capturing(self, stream: StreamHandle) -> bool: ...
    def event_record_context(self, event: EventHandle) -> None: ...
    def pointer_device(self, address: int) -> int: ...


def foreign_calls(device: Device) -> ForeignCalls:
    """The driver of a CUDA device, for what other libraries enqueue.

    Raises:
        ContextError: a simulated device.
    """
    if device.kind != "cuda":
        raise ContextError(f"{device} is simulated: no stream of another library can be used with it")
    return cast("ForeignCalls", device.driver)


# ---------------------------------------------------------------------------------------- lending


def lend(device: Device, buffer: Buffer, holder: int, stream: int | None) -> None:
    """Let another library use `buffer`, until `holder` is taken out of `buffer.holders`.

    Args:
        stream: the consumer's stream; None is the legacy default one, -1 asks for no ordering.
    Raises:
        ClosedError: another thread has freed it meanwhile.
        BufferError: no such stream; or, on the host device, the last write is not done.
    """
    device._check_usable()
    if device.kind != "cuda":
        if stream is not None:
            raise BufferError(f"stream is {stream}, but {device} has none that others could use; pass None")
        _check_written(buffer)
        if (memory := getattr(device.driver, "memory", None)) is not None:
            memory.note_lent(buffer.address)
    elif stream is None or stream > 0:
        _lend_to_stream(device, buffer, LEGACY_STREAM if stream is None else stream)
    elif stream != NO_ORDERING:
        raise BufferError(
            f"stream is {stream}; expected None or 1 (legacy default), 2 (per-thread default), -1 (no ordering) "
            "or a stream's address"
        )
    with device._lock:
        if buffer.holders is None:
            buffer.holders = set()
        buffer.holders.add(holder)
        buffer.check_usable()  # again: `free()` asks for holders, and marks it
        buffer.note_shared()
        device._outside.add(buffer)


def _check_written(buffer: Buffer) -> None:
    usage = buffer.usage
    writer: Stream | None = usage.write_stream
    if writer is None:
        return
    with writer.device._lock:
        submission = writer._covering(usage.write_number)
    if submission is not None and not submission.poll():
        raise BufferError(
            "the tensor's contents are still being written, and a consumer on the host would not wait for them; "
            "await the operation that writes it first"
        )


def _lend_to_stream(device: Device, buffer: Buffer, address: int) -> None:
    """The stream at `address` waits for our last write; freeing will wait for what it does with the memory."""
    device._exchange_stream()  # freeing needs it, under the lock
    driver = foreign_calls(device)
    driver.bind()
    if address == PER_THREAD_STREAM:
        address = LEGACY_STREAM
    keeper = _keeper(device, address)
    with device._lock:
        usage = buffer.usage
        writer: Stream | None = usage.write_stream
        own = device._stream_at(address)
        if writer is not None and own is not None:
            own._wait_for(writer, usage.write_number)
        elif writer is not None:
            submission = writer._covering(usage.write_number)
            if submission is not None:
                handle = driver.stream_borrow(address)
                try:
                    if driver.stream_is_capturing(handle):
                        raise BufferError(
                            "the tensor's contents are still being written, and a stream that is being captured "
                            "cannot wait for them; await the operation that writes it first"
                        )
                    driver.stream_wait_event(handle, submission.event)
                finally:
                    driver.stream_destroy(handle)  # only ends the loan
        _note_lent(usage, address, keeper)


def _note_lent(usage: Usage, address: int, keeper: Any) -> None:
    if usage.lent is None:
        usage.lent = {}
    usage.lent[address] = keeper


# Any: these libraries are optional, and ship no types that we could name.
def _keeper(device: Device, address: int) -> Any:
    """What keeps the stream alive that is named right now, where that is known."""
    if address == LEGACY_STREAM:
        return ALWAYS_THERE
    return _current_streams(device).get(address)


def _current_streams(device: Device) -> dict[int, Any]:
    """This thread's current streams in torch and CuPy, by address, of those that last or that we can make last."""
    found: dict[int, Any] = {}
    # Another thread may be importing them right now: then they are not in use yet.
    torch = sys.modules.get("torch")
    is_initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    if torch is not None and is_initialized is not None and is_initialized():
        stream = torch.cuda.current_stream(device.ordinal)
        if stream.stream_id != stream.cuda_stream:  # else it is somebody else's, which torch only borrows
            found[int(stream.cuda_stream)] = stream
    of_cupy = getattr(sys.modules.get("cupy"), "cuda", None)
    current, owned = (getattr(of_cupy, name, None) for name in ("get_current_stream", "Stream"))
    if current is not None and owned is not None:
        stream = current(device.ordinal)
        if isinstance(stream, owned):  # an ExternalStream is borrowed there too
            found[int(stream.ptr)] = stream
    return {address: keeper for address, keeper in found.items() if address > PER_THREAD_STREAM}


def lend_to_anyone(device: Device, buffer: Buffer) -> int | None:
    """Some library may use `buffer` for as long as it keeps our tensor, on its current stream or the default one.

    Returns:
        The stream to order that behind; None when nothing is being written.
    """
    device._check_usable()
    device._exchange_stream()  # freeing needs it, under the lock
    streams = _current_streams(device)
    with device._lock:
        usage = buffer.usage
        _note_lent(usage, LEGACY_STREAM, ALWAYS_THERE)
        for address, keeper in streams.items():
            _note_lent(usage, address, keeper)
        buffer.note_shared()
        device._outside.add(buffer)
        writer: Stream | None = usage.write_stream
        if writer is None or writer._closed or writer._done >= usage.write_number:
            return None
        return int(writer._handle)


def wait_for_borrowers(device: Device, stream: Stream, usage: Usage) -> bool:
    """Lock held: later work on `stream`, which the caller enqueues, waits for what consumers of lent memory enqueued.

    False when that cannot be asked for now, because a stream is being captured.
    """
    assert usage.lent is not None
    driver = foreign_calls(device)
    event = device._events.pop() if device._events else driver.event_create()
    try:
        if is_untraceable(usage):
            try:
                driver.event_record_context(event)
            except DriverError:
                return False
            driver.stream_wait_event(stream._handle, event)
            return True
        for address in usage.lent:
            own = device._stream_at(address)
            handle = driver.stream_borrow(address) if own is None else own._handle
            try:
                if driver.stream_is_capturing(handle):
                    return False
                driver.event_record(event, handle)
                driver.stream_wait_event(stream._handle, event)
            finally:
                if own is None:
                    driver.stream_destroy(handle)  # only ends the loan
    finally:
        device._events.append(event)
    return True


def is_untraceable(usage: Usage) -> bool:
    """Whether memory was lent to a stream that may be gone by now."""
    return usage.lent is not None and None in usage.lent.values()


# -------------------------------------------------------------------------------------- borrowing


def wait_for_producer(device: Device, stream: Stream, address: int) -> None:
    """Later work on `stream` waits for what another library's stream holds now."""
    driver = foreign_calls(device)
    if address == PER_THREAD_STREAM:
        address = LEGACY_STREAM
    driver.bind()
    with device._lock:
        own = device._stream_at(address)
        handle = driver.stream_borrow(address) if own is None else own._handle
        event = device._events.pop() if device._events else driver.event_create()
        try:
            driver.event_record(event, handle)
            driver.stream_wait_event(stream._handle, event)
        finally:
            device._events.append(event)
            if own is None:
                driver.stream_destroy(handle)  # only ends the loan


def adopt(device: Device, buffer: Buffer, stream: Stream | None = None) -> None:
    """Take in a buffer over other libraries' memory: all buffers over the same bytes are ordered as one.

    Args:
        stream: waits for the producer's work by now, so it counts as the last writer.
    """
    if not buffer.size_bytes:
        return
    device.driver.bind()
    sharers: list[Buffer] = []  # outlives the lock: dropping one may run anybody's code
    with device._lock:
        start, end = buffer.address, buffer.address + buffer.size_bytes
        sharers.extend(device._outside)
        sharing = [b for b in sharers if b.start < end and start < b.start + b.size_bytes]
        usages = {id(b.usage): b.usage for b in sharing}
        if stream is None and len(usages) > 1:
            stream = device._reclaim_stream()
        if stream is not None:
            merged = buffer.usage
            for usage in usages.values():
                for source, number in usage.uses():
                    stream._wait_for(source, number)
                for address, keeper in (usage.lent or {}).items():
                    _note_lent(merged, address, keeper)
            written_by = [graph for usage in usages.values() for graph in getattr(usage, "written_by", ())]
            if written_by:
                merged.written_by, merged.is_joined = written_by, True
            stream._dirty = True
            merged.set_write(stream, stream._next)
            # Those too that are over other bytes: what they share with these is ordered by it.
            for other in sharers:
                if id(other.usage) in usages:
                    other.usage = merged
            device._usages_joined += 1
        elif usages:
            (buffer.usage,) = usages.values()
        device._outside.add(buffer)
