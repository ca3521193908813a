"""The stream-ordered memory pool of a host device, with CUDA's rules.

An allocation's address is known at once; the memory exists (is live) from the moment its stream executes the
allocation until a stream executes the free. So there are two sets of books: this pool's, kept in the order of
calls, and the liveness in `HostMemory`, kept in the order of execution.

A range of addresses is in one of these states:

    arena       not the pool's (`HostMemory` has it)
    used        given out, and not freed by a call yet
    pending     freed by a call on some stream, which has not executed the free yet: the same stream may have
                it again at once, because it executes the free first; others may not
    available   freed and passed: any stream may have it

and *reserved* is used + pending + available. An allocation takes the smallest range that fits, from the
stream's own pending ranges and the available ones; then from the arena; then from the arena again, with all
available ranges given back to it; then, as CUDA's pools may (`REUSE_ALLOW_INTERNAL_DEPENDENCIES`), a pending
range of another stream, and has its stream wait for that free.

Available ranges that touch are joined. Pending ones are not: each belongs to the free that will make it
available.

Unused memory goes back to the system when it is trimmed, or when somebody synchronizes and more than the
release threshold is reserved.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

from ...errors import OutOfMemoryError
from .._protocol import PoolStatistics
from ._fork import Level, fork_safe_lock
from ._ranges import FreeRanges

if TYPE_CHECKING:
    from ._entries import EventRecord
    from ._memory import HostMemory
    from ._queue import Queue

__all__ = ["FreeTicket", "Grant", "Pool", "UnknownAddressError"]


class UnknownAddressError(LookupError):
    """No allocation. A class of its own: a signal handler may raise a `LookupError` anywhere."""


KEEP_EVERYTHING = (1 << 64) - 1
"""A release threshold that is never passed. With CUDA's own default, 0, allocations after a synchronization pay for
their pages anew."""
_GRANULE = 256
_SMALLEST_RETURN = 64 << 10
"""Ranges below this are not worth a system call when they go back."""


class FreeTicket:
    """One free on its way: the ranges it will make available."""

    __slots__ = ("passed", "pieces", "queue")

    def __init__(self, queue: Queue, passed: EventRecord) -> None:
        self.queue = queue
        self.pieces: set[tuple[int, int]] = set()
        self.passed = passed
        """Done when the free is executed, for streams that wait for it."""


class Grant(NamedTuple):
    """An allocation: its address, and the free that its stream has to wait for, if any."""

    address: int
    wait_for: FreeTicket | None


class _Pending:
    """The pending ranges of one stream, by size."""

    __slots__ = ("by_size", "ticket_at")

    def __init__(self) -> None:
        self.by_size: list[tuple[int, int]] = []
        self.ticket_at: dict[int, FreeTicket] = {}

    def smallest(self, size: int) -> tuple[int, int] | None:
        """(size, address) of the smallest range of at least `size` bytes."""
        position = bisect_left(self.by_size, (size, 0))
        return self.by_size[position] if position < len(self.by_size) else None

    def add(self, address: int, size: int, ticket: FreeTicket) -> None:
        try:
            self.ticket_at[address] = ticket
            ticket.pieces.add((address, size))
            insort(self.by_size, (size, address))
        except BaseException:  # an interrupt, behind which it is there
            self.put_back(address, size, ticket)
            raise

    def put_back(self, address: int, size: int, ticket: FreeTicket, rest: int | None = None) -> None:
        """An interrupt came into taking this range, of which `rest` was to stay: it is there as before."""
        if rest is not None:
            self.ticket_at.pop(rest, None)
            ticket.pieces.discard((rest, address + size - rest))
        self.ticket_at[address] = ticket
        ticket.pieces.add((address, size))
        tickets = {id(t): t for t in self.ticket_at.values()}.values()
        self.by_size = sorted((size, address) for t in tickets for address, size in t.pieces)

    def remove(self, address: int, size: int) -> FreeTicket:
        del self.by_size[bisect_left(self.by_size, (size, address))]
        ticket = self.ticket_at.pop(address)
        ticket.pieces.remove((address, size))
        return ticket


class Pool:
    """The pool of one device. Any thread may call anything.

    Args:
        memory: the arena that ranges come from.
        name: the device, for messages.
    """

    def __init__(self, memory: HostMemory, name: str) -> None:
        self.memory = memory
        self.name = name
        self.release_threshold_bytes = KEEP_EVERYTHING
        self._lock = fork_safe_lock(Level.POOL)
        self._used_at: dict[int, int] = {}
        self._available = FreeRanges()
        self._pending: dict[Queue, _Pending] = {}
        self._used = self._used_high = 0
        self._reserved = self._reserved_high = 0

    # ---------------------------------------------------------------------------- in the order of calls

    def allocate(self, size_bytes: int, queue: Queue) -> Grant:
        """Addresses for `size_bytes` > 0, to be used in the order of `queue`.

        Raises:
            OutOfMemoryError: nothing fits; the pool is as it was, but for available memory given back.
        """
        size = _rounded(size_bytes)
        with self._lock:
            grant = self._take(size, queue)
            if grant is None:
                limit = self.memory.size_bytes
                raise OutOfMemoryError(
                    f"{self.name}: out of memory: {size_bytes} bytes asked for, {self._used} of {limit} in "
                    "use; drop tensors, or set CUDA_ASYNC_HOST_MEMORY higher",
                    size_bytes,
                    self._used,
                    limit,
                )
            self._used_at[grant.address] = size
            self._used += size
            self._used_high = max(self._used_high, self._used)
            return grant

    def free(self, address: int, queue: Queue, passed: EventRecord) -> FreeTicket:
        """The allocation at `address` is freed when `queue` gets there; `passed` is done then.

        Raises:
            UnknownAddressError: no allocation starts there, or it was freed already.
        """
        with self._lock:
            size = self._used_at.pop(address, None)
            if size is None:
                raise UnknownAddressError(
                    f"{address:#x} is not an allocation of {self.name}'s pool, or was freed already"
                )
            self._used -= size
            ticket = FreeTicket(queue, passed)
            self._pending.setdefault(queue, _Pending()).add(address, size, ticket)
            return ticket

    def ticket_of(self, passed: EventRecord) -> FreeTicket | None:
        """The free on its way that `passed` was given for."""
        with self._lock:
            tickets = [t for pending in self._pending.values() for t in pending.ticket_at.values()]
        return next((ticket for ticket in tickets if ticket.passed is passed), None)

    def _take(self, size: int, queue: Queue) -> Grant | None:
        own = self._pending.get(queue)
        pending = own.smallest(size) if own is not None else None
        available = self._available.smallest(size)
        if own is not None and pending is not None and (available is None or pending[0] <= available):
            return Grant(self._take_pending(own, pending, size), None)
        address = self._available.take(size) if available is not None else self._extend(size)
        if address is not None:
            return Grant(address, None)
        for start, cut in self._cut(self._available.total_bytes):
            self.memory.unreserve(start, cut)
        address = self._extend(size)
        if address is not None:
            return Grant(address, None)
        for other in self._pending.values():
            found = other.smallest(size)
            if found is not None:
                ticket = other.ticket_at[found[1]]
                return Grant(self._take_pending(other, found, size), ticket)
        return None

    def _extend(self, size: int) -> int | None:
        address = self.memory.reserve(size)
        if address is not None:
            self._reserved += size
            self._reserved_high = max(self._reserved_high, self._reserved)
        return address

    def _take_pending(self, pending: _Pending, found: tuple[int, int], size: int) -> int:
        """Take the first `size` bytes of a pending range; the rest stays with its free."""
        have, address = found
        ticket = pending.ticket_at[address]
        try:
            pending.remove(address, have)
            if have > size:
                pending.add(address + size, have - size, ticket)
        except BaseException:
            pending.put_back(address, have, ticket, address + size if have > size else None)
            raise
        return address

    # ---------------------------------------------------------------------------- in the order of execution

    def passed(self, ticket: FreeTicket) -> None:
        """The free was executed: what is left of it becomes available."""
        with self._lock:
            pending = self._pending.get(ticket.queue)
            if pending is None:  # all that the stream freed was taken again
                return
            for address, size in list(ticket.pieces):
                try:
                    pending.remove(address, size)
                    self._available.add(address, size)
                except BaseException:
                    if not any(start <= address < start + free for start, free in self._available):
                        pending.put_back(address, size, ticket)
                    raise
            if not pending.by_size:
                del self._pending[ticket.queue]

    # ---------------------------------------------------------------------------- giving back

    def trim(self, keep_bytes: int = 0) -> None:
        """Give available memory back to the system, keeping at least `keep_bytes` reserved.

        That takes the system a millisecond for every 8 MiB, and the lock is not held for it.
        """
        with self._lock:
            ranges = self._cut(self._reserved - keep_bytes)
        for start, size in ranges:
            if size >= _SMALLEST_RETURN:
                self.memory.give_back_pages(start, size)
            self.memory.unreserve(start, size)

    def synchronized(self) -> None:
        """Somebody synchronized: give back what is reserved beyond the release threshold."""
        if self._reserved > self.release_threshold_bytes and self._available.total_bytes:
            self.trim(self.release_threshold_bytes)

    def _cut(self, excess: int) -> list[tuple[int, int]]:
        """Lock held. Take (start, size) of available ranges out of the pool, at most `excess` bytes; largest first."""
        ranges = []
        excess = excess // _GRANULE * _GRANULE
        while excess > 0 and self._available.total_bytes:
            have, start = self._available.largest()
            self._available.take_range(start, have)
            size = min(have, excess)
            if size < have:
                self._available.add(start, have - size)
                start += have - size
            ranges.append((start, size))
            self._reserved -= size
            excess -= size
        return ranges

    def allocation_at(self, address: int) -> tuple[int, int] | None:
        """[start, end) of what is given out now and holds `address`."""
        with self._lock:
            for start, size in self._used_at.items():
                if start <= address < start + size:
                    return start, start + size
        return None

    def given_out(self) -> list[int]:
        """Addresses of all that is given out now and not freed by a call."""
        with self._lock:
            return list(self._used_at)

    def statistics(self) -> PoolStatistics:
        """A snapshot; sizes are rounded up to 256 bytes per allocation."""
        with self._lock:
            return PoolStatistics(
                used_bytes=self._used,
                used_high_bytes=self._used_high,
                reserved_bytes=self._reserved,
                reserved_high_bytes=self._reserved_high,
            )


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // _GRANULE) * _GRANULE
