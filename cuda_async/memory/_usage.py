"""Who used a piece of memory last: the facts that ordering and freeing are decided from.

A `Usage` is plain data, changed under its device's lock by `scheduling._ordering`. It outlives the `Buffer`
that owns it: the finalizer hands it to the reaper, which frees the memory behind the last use.

A use is a pair (stream, number): the work lies before the event that closes that number on that stream. What
other libraries do with memory they know has no number: `lent` says where it may be.
Most memory lives on one stream, so one reader is kept in two slots and a dict is made for the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Usage"]

# A stream is any object here: this layer knows nothing of scheduling.
StreamLike = Any


class Usage:
    """The last write and the reads since, as (stream, number).

    Attributes:
        lent: streams that consumers of the memory named, by address, with what is known to keep the stream alive;
            None when it was never lent.
        written_by: weak references to the states of graphs that write the memory, in a list that is replaced and never
            changed; not there before the first.
        quick_reader: the stream of `read_stream`, where its next read needs no look at the last write, else None. Who
            finds itself here may note a read by its number alone.
        is_joined: those were of several usages; not there before either.
    """

    __slots__ = (
        "is_joined",
        "lent",
        "more_reads",
        "quick_reader",
        "read_number",
        "read_stream",
        "write_number",
        "write_stream",
        "written_by",
    )

    written_by: list[Any]
    is_joined: bool

    def __init__(self, stream: StreamLike = None, number: int = 0) -> None:
        self.write_stream: StreamLike = stream
        self.write_number = number
        self.read_stream: StreamLike = None
        self.read_number = 0
        self.quick_reader: StreamLike = None
        self.more_reads: dict[StreamLike, int] | None = None
        self.lent: dict[int, Any] | None = None

    def add_read(self, stream: StreamLike, number: int) -> None:
        """Note a read; the latest number of each stream is kept."""
        if self.read_stream is stream or self.read_stream is None:
            self.quick_reader = None
            self.read_stream = stream
            self.read_number = number
            return
        if self.more_reads is None:
            self.more_reads = {}
        self.more_reads[stream] = number

    def forget_reads(self, is_past: Callable[[StreamLike, int], bool]) -> None:
        """Drop reads that nothing has to wait for any more."""
        assert self.more_reads is not None
        self.more_reads = {s: n for s, n in self.more_reads.items() if not is_past(s, n)}

    def set_write(self, stream: StreamLike, number: int) -> None:
        """Note a write; it is ordered behind all earlier uses, so they are forgotten."""
        self.quick_reader = None
        self.write_stream = stream
        self.write_number = number
        self.read_stream = None
        self.more_reads = None

    def uses(self) -> Iterator[tuple[StreamLike, int]]:
        """All uses that later work may have to wait for."""
        if self.write_stream is not None:
            yield self.write_stream, self.write_number
        if self.read_stream is not None:
            yield self.read_stream, self.read_number
        if self.more_reads is not None:
            yield from self.more_reads.items()
