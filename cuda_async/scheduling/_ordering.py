"""Automatic ordering: work that shares memory is ordered across streams by events, and costs nothing on one.

The rules, for work enqueued on stream S (all under the device's lock, check and enqueue in one go):
- a read waits for the last write, when that was on another stream;
- a write waits for the last write and for every read since, when those were on other streams;
- a wait is for the first event that covers the use; one is recorded only if none does yet.
Afterwards the use is noted with S's open number, which the next event on S closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..memory import Buffer, Usage
    from ._stream import Stream

__all__ = ["order_enqueued", "order_read", "order_uses", "order_write"]

MANY_READERS = 8
"""From so many reading streams on, and whenever their number has doubled, those that are done are forgotten: memory
that is only read (weights) would else know every stream there ever was."""


def order_read(stream: Stream, buffer: Buffer) -> None:
    """Lock held: what is enqueued next on `stream` reads the buffer.

    Raises:
        ClosedError, StaleOutputError: since it was checked, another thread has freed it, or launched its graph.
    """
    usage = buffer.usage
    writer = usage.write_stream
    if writer is not stream:  # never on a recording stream
        if stream._recorder is not None:
            stream._recorder.note_read(stream, buffer)
            return
        if writer is not None:
            stream._wait_for(writer, usage.write_number)
    if buffer.address < 0:
        buffer.check_usable()
    reader = usage.read_stream
    if reader is stream or reader is None or reader._done >= usage.read_number:
        # A read that is done gives its place away, so that the next one from this stream is found at once: memory that
        # is only read (weights) would else stay with the stream that was first.
        if usage.more_reads is not None:
            usage.more_reads.pop(stream, None)
        usage.quick_reader = None  # first: an interrupt may come
        usage.read_stream = stream
        usage.read_number = stream._next
        if not _may_be_told(stream, usage):
            usage.quick_reader = stream
    else:
        usage.add_read(stream, stream._next)
        others = usage.more_reads
        if others is not None and len(others) >= MANY_READERS and len(others) & (len(others) - 1) == 0:
            usage.forget_reads(_is_past)
    if buffer.retained_on_use:
        _retain(stream, buffer)


def _may_be_told(stream: Stream, usage: Usage) -> bool:
    """The last write is another stream's, and may fail: each read behind it is to fail too, not only the first here."""
    writer = usage.write_stream
    return (
        writer is not None
        and writer is not stream
        and stream.device.driver.hands_failures_on
        and writer._done < usage.write_number
    )


def _is_past(stream: Stream, number: int) -> bool:
    return stream._closed or stream._done >= number


def order_write(stream: Stream, buffer: Buffer) -> None:
    """Lock held: what is enqueued next on `stream` writes the buffer.

    Raises:
        ClosedError, StaleOutputError: as for reads.
        ValueError: the memory is borrowed from an owner who does not allow that.
    """
    if buffer.retained_on_use and buffer.read_only:
        raise ValueError(
            "this tensor is over read-only memory of another library and cannot be written; "
            "copy it first with ca.copy(tensor)"
        )
    usage = buffer.usage
    writer = usage.write_stream
    if writer is not stream:
        if stream._recorder is not None:
            stream._recorder.note_write(stream, buffer)
            return
        if writer is not None:
            stream._wait_for(writer, usage.write_number)
    if buffer.address < 0:
        buffer.check_usable()
    reader = usage.read_stream
    if reader is not None:
        if reader is not stream:
            stream._wait_for(reader, usage.read_number)
        if usage.more_reads is not None:
            for other, number in usage.more_reads.items():
                stream._wait_for(other, number)
    usage.set_write(stream, stream._next)
    if buffer.retained_on_use:
        _retain(stream, buffer)


def _retain(stream: Stream, buffer: Buffer) -> None:
    """Lock held."""
    if buffer.is_recorded:
        buffer.check_filled()
    stream._retained.append(buffer)


def order_uses(stream: Stream, reads: Iterable[Buffer], writes: Iterable[Buffer]) -> None:
    """Lock held: what is enqueued next on `stream` reads and writes these buffers."""
    for buffer in reads:
        order_read(stream, buffer)
    for buffer in writes:
        order_write(stream, buffer)
    stream._dirty = True


def order_enqueued(stream: Stream, buffer: Buffer, *, is_write: bool) -> None:
    """Lock held: what was enqueued on `stream` may use the buffer, and others' uses may have come in between.

    What they were not ordered with, nobody can order now. What is enqueued next is behind it all, and so is the free
    of memory that was freed meanwhile.
    """
    usage = buffer.usage
    uses = usage.uses() if is_write else [(usage.write_stream, usage.write_number)]
    for source, number in uses:
        if source is not None:
            stream._wait_for(source, number)
    if is_write:
        usage.set_write(stream, stream._next)
    else:
        usage.add_read(stream, stream._next)
    if buffer.retained_on_use:
        stream._retained.append(buffer)
