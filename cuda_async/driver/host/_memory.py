"""`HostMemory`: the address space of one host device.

Addresses are real process addresses, so that NumPy, DLPack and ctypes see the same memory:

- the arena: one anonymous mapping that the system commits page by page as it is touched. Allocations are
  cut out of it;
- foreign memory: borrowed from other owners (NumPy arrays imported without a copy), see `add_foreign`;
- pinned memory: outside all arenas, and visible to every device of the process.

An access must lie within one live allocation and be aligned to its element's size, as on a GPU; anything
else is a `MemoryFault`. Live means: exists at this point of the execution. For immediate allocations
(`allocate`) that is from `allocate` to `release`; for stream-ordered ones the engine calls `activate` and
`deactivate` when it executes the allocation and the free, so an access that is not ordered against them is
caught. Bounds are those asked for, not those rounded up to.

Speed: a kernel's gather touches one allocation nearly always. So the block of the first address is looked
up; one subtraction, a maximum and an or tell whether all addresses lie in it and are aligned; and one fancy
index into a typed window of that block does the rest: 9 us for 1024 addresses. Addresses over several
blocks are told apart by `np.searchsorted`.

Any thread may call anything. Element accesses themselves are as atomic as NumPy's: not, between threads. The
engine of a device runs one step at a time, so kernels of one device never race.
"""

from __future__ import annotations

import math
import mmap
import weakref
from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import MemoryFault, OutOfMemoryError
from ._blocks import Access, Block, BlockTable, RawMemory, Span
from ._fork import Level
from ._mapping import map_arena, map_pages
from ._ranges import FreeRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

    from .check import Checker

__all__ = [
    "Access",
    "ForeignRange",
    "HostMemory",
    "Region",
    "memory_array",
    "memory_window",
    "note_array",
    "pinned_allocate",
    "pinned_release",
]

_GRANULE = 256
"""Allocations start on multiples of this, as `cuMemAlloc`'s do."""
_NULL_PAGE = 4096
_GIVE_BACK_PIECE = 8 << 20
_U64 = np.dtype(np.uint64)


class Region(NamedTuple):
    """Part of a set of addresses that lies in one piece of memory."""

    window: NDArray[Any]
    """Live memory as elements of the dtype asked for."""
    elements: NDArray[np.int64]
    """For each address of this part its element in `window`."""
    which: NDArray[np.int64] | None
    """Flat positions of this part among the addresses; None for all of them, then `index` has their shape."""


_LOOKED_AT = 8
"""Imports of one address, for one that covers another: where there are more, what it touches is made anew."""


class ForeignRange(NamedTuple):
    """One import of foreign memory."""

    address: int
    size_bytes: int
    owner: object
    writable: bool
    own: bool
    """It is not foreign at all: the device can access it anyway."""


class HostMemory:
    """Memory of one host device: load, store, views and allocation, all checked.

    Attributes:
        size_bytes: size of the arena, which is the device's memory.
        base: address of the arena.
        checker: is told what comes, goes and is touched, where that is wanted (`check/`).
        program_knows_all: the program advances the device itself, so it knows what is done when it looks at memory.
    """

    checker: Checker | None = None
    program_knows_all = False

    def __init__(self, size_bytes: int | None = None) -> None:
        """Map an arena of `size_bytes`; without it, of what the environment or the default says."""
        self._mapping = map_arena(size_bytes)
        self._arena: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self.size_bytes = self._arena.size
        self.base: int = self._arena.ctypes.data
        self._end = self.base + self.size_bytes
        self._arena_views: dict[np.dtype[Any], NDArray[Any]] = {}
        self._blocks = BlockTable()
        self._lock = self._blocks.lock
        self._free = FreeRanges()
        self._free.add(self.base, self.size_bytes)
        self._touched_end = self.base
        self._immediate: dict[int, int] = {}
        self._foreign: list[ForeignRange] = []  # by address
        self._foreign_unsure = False  # an interrupt came into a change
        self._foreign_changes: deque[tuple[ForeignRange | None, ForeignRange | None]] = deque()
        self._changing_foreign = False
        self._freed: deque[tuple[int, int]] = deque(maxlen=256)
        _arenas.add(self)

    def __repr__(self) -> str:
        return f"<HostMemory of {self.size_bytes} bytes at {self.base:#x}, {len(self._blocks)} live blocks>"

    # ---------------------------------------------------------------------------- element access

    def load(self, addresses: NDArray[np.uint64], dtype: DTypeLike) -> NDArray[Any]:
        """The elements at `addresses` (any shape), as an array of that shape.

        Args:
            addresses: byte addresses, each a multiple of the element size.
            dtype: element type; sizes that are powers of two.
        Raises:
            MemoryFault: the first address at fault, in flat order.
        """
        regions = self.regions(addresses, dtype, "read")
        if len(regions) == 1 and regions[0].which is None:
            window, index, _ = regions[0]
            result = window[index]
            return result if index.ndim else np.asarray(result)
        result = np.empty(addresses.size, np.dtype(dtype))
        for window, index, which in regions:
            result[which] = window[index]
        return result.reshape(addresses.shape)

    def store(self, addresses: NDArray[np.uint64], values: NDArray[Any]) -> None:
        """Write `values` at `addresses` (of one shape, or values that broadcast to it).

        Nothing is written when any address is at fault. An address given twice gets the last value.

        Raises:
            MemoryFault: the first address at fault, in flat order.
        """
        regions = self.regions(addresses, values.dtype, "write")
        if len(regions) == 1 and regions[0].which is None:
            regions[0].window[regions[0].elements] = values
            return
        flat = np.broadcast_to(values, addresses.shape).reshape(-1)
        for window, index, which in regions:
            window[index] = flat[which]

    def regions(self, addresses: NDArray[np.uint64], dtype: DTypeLike, access: Access) -> list[Region]:
        """Where `addresses` lie, as windows and indices: for atomics and other read-modify-write.

        One region (with `which` None) when one allocation, or the arena, holds them all; otherwise one per
        allocation; no addresses give an empty window.

        Raises:
            MemoryFault: the first address at fault, in flat order.
        """
        dtype = np.dtype(dtype)
        item = dtype.itemsize
        if item == 0 or item & (item - 1):
            raise TypeError(
                f"elements of {item} bytes ({dtype}) cannot be accessed; use a size that is a power of two"
            )
        if addresses.dtype != _U64:
            addresses = addresses.astype(np.uint64)
        if not addresses.size:
            return [Region(np.empty(1, dtype), addresses.astype(np.int64), None)]
        block = self._candidate(addresses.item(0))
        if block is not None:
            window, base = block.window(dtype)
            offset = np.subtract(addresses, np.uint64(base))
            flat = offset if offset.ndim == 1 else offset.reshape(-1)
            if (
                np.maximum.reduce(flat) <= (window.size - 1) * item
                and (item == 1 or not np.bitwise_or.reduce(flat) & (item - 1))
                and block.live
                and (block.writable or access == "read")
            ):
                index = np.right_shift(offset, item.bit_length() - 1)
                return [Region(window, np.asarray(index).view(np.int64), None)]
        return self._regions_of_many(addresses, dtype, access)

    def _candidate(self, address: int) -> Block | None:
        block = self._blocks.candidate(address)
        if block is not None and block.start <= address < block.end:
            return block
        return _pinned.candidate(address)

    def _regions_of_many(
        self, addresses: NDArray[np.uint64], dtype: np.dtype[Any], access: Access
    ) -> list[Region]:
        item = dtype.itemsize
        flat = addresses.reshape(-1)
        with self._lock:
            blocks = [*self._blocks.snapshot(), *_pinned.snapshot()]
            blocks.sort(key=_start_of)
        owner, bad = _spans_of(flat, item, [(block.start, block.end) for block in blocks])
        bad |= (flat & np.uint64(item - 1)) != 0
        if access == "write" and not all(block.writable for block in blocks):
            bad |= _spans_of(flat, item, [span for block in blocks for span in block.writable_spans])[1]
        if bad.any():
            index = int(bad.argmax())
            raise self.fault(int(flat[index]), item, access, index=index)
        if int(flat.min()) >= self.base and int(flat.max()) < self._end:
            offset = addresses - np.uint64(self.base)
            index_in_arena = np.asarray(offset >> np.uint64(item.bit_length() - 1)).view(np.int64)
            return [Region(self._arena_as(dtype), index_in_arena, None)]
        regions = []
        for number in np.unique(owner).tolist():
            which = np.flatnonzero(owner == number)
            window, base = blocks[number].window(dtype)
            inside = (flat[which] - np.uint64(base)) >> np.uint64(item.bit_length() - 1)
            regions.append(Region(window, inside.view(np.int64), which))
        return regions

    def _arena_as(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        view = self._arena_views.get(dtype)
        if view is None:
            whole = self.size_bytes // dtype.itemsize * dtype.itemsize
            view = self._arena_views[dtype] = self._arena[:whole].view(dtype)
        return view

    # ---------------------------------------------------------------------------- ranges

    def view(self, address: int, size_bytes: int, access: Access = "read") -> NDArray[np.uint8]:
        """A window onto live memory: `size_bytes` bytes within one allocation.

        The window stays valid as memory when the allocation is freed, but is nobody's then.

        Raises:
            MemoryFault: not within one live allocation, or read-only memory and `access` is `"write"`.
        """
        if size_bytes < 0:
            raise ValueError(f"a view of {size_bytes} bytes; sizes are not negative")
        block = self._candidate(address)
        if block is None or not block.start <= address < block.end or not block.live:
            block = self._blocks.find(address) or _pinned.find(address)
        end = address + size_bytes
        if block is None or end > block.end or not block.allows(access, address, end):
            if size_bytes == 0:
                return np.empty(0, np.uint8)
            raise self.fault(address, size_bytes, access)
        if self.checker is not None and self.checker.is_program():
            self.checker.touch_by_program(
                block, address, size_bytes, access, knows_all=self.program_knows_all
            )
        return block.bytes[address - block.start : address - block.start + size_bytes]

    def array(
        self,
        address: int,
        dtype: DTypeLike,
        shape: Sequence[int],
        strides_bytes: Sequence[int] | None = None,
        access: Access = "read",
    ) -> NDArray[Any]:
        """A strided window onto live memory; all of its extent lies within one allocation.

        Args:
            address: of the element with index (0, ..., 0); a multiple of the dtype's alignment.
            strides_bytes: may be 0 or negative; C-contiguous when left out.
        Raises:
            MemoryFault: as for `view`, or misaligned.
        """
        dtype = np.dtype(dtype)
        shape = tuple(shape)
        if strides_bytes is None:
            strides = [dtype.itemsize] * len(shape)
            for axis in range(len(shape) - 2, -1, -1):
                strides[axis] = strides[axis + 1] * shape[axis + 1]
        else:
            strides = list(strides_bytes)
            if len(strides) != len(shape):
                raise ValueError(f"{len(strides)} strides for {len(shape)} axes; give one per axis")
        if math.prod(shape) == 0:
            return np.empty(shape, dtype)
        spans = [stride * (extent - 1) for stride, extent in zip(strides, shape)]
        below = sum(span for span in spans if span < 0)
        above = sum(span for span in spans if span > 0) + dtype.itemsize
        if any(part % dtype.alignment for part in (address, *spans)):
            raise MemoryFault(address, dtype.itemsize, access, f"misaligned for elements of {dtype}")
        memory = self.view(address + below, above - below, access)
        return np.ndarray(shape, dtype, buffer=memory.data, offset=-below, strides=tuple(strides))

    def fault(
        self, address: int, size_bytes: int, access: Access, *, index: int | None = None
    ) -> MemoryFault:
        """The error for an access that is not allowed, with the reason looked up. Returned, not raised."""
        with self._lock:
            reason = self._reason(address, size_bytes, access)
        if self.checker is not None:
            reason = self.checker.faulted(address, size_bytes, access, reason)
        return MemoryFault(address, size_bytes, access, reason, index=index)

    def _reason(self, address: int, size_bytes: int, access: Access) -> str:
        if 0 <= address < _NULL_PAGE:
            return "null pointer, or an offset from one"
        block = self._blocks.find(address) or _pinned.find(address)
        if block is not None:
            where = f"the {block.what} {_bounds(block)}"
            if address + size_bytes > block.end:
                return f"{address + size_bytes - block.end} bytes past the end of {where}"
            if not block.allows(access, address, address + size_bytes):
                return f"{where} is read-only{' there' if block.writable_spans else ''}"
            return f"misaligned; accesses are aligned to their size ({where})"
        freed = next((f for f in reversed(list(self._freed)) if f[0] <= address < f[1]), None)
        nearest = min(
            [*self._blocks.snapshot(), *_pinned.snapshot()],
            key=lambda b: b.start - address if address < b.start else address - b.end,
            default=None,
        )
        if nearest is None:
            where = "there is none"
        elif address < nearest.start:
            where = f"the nearest, {_bounds(nearest)}, begins {nearest.start - address} bytes after it"
        else:
            where = f"the nearest, {_bounds(nearest)}, ends {address - nearest.end} bytes before it"
        if freed is not None and nearest is not None and freed[0] <= nearest.start and nearest.end <= address:
            return (
                f"{address - nearest.end} bytes past the end of the {nearest.what} {_bounds(nearest)}, or freed: "
                f"it was in the allocation [{freed[0]:#x}, {freed[1]:#x})"
            )
        if freed is not None:
            return (
                f"freed; it was in the allocation [{freed[0]:#x}, {freed[1]:#x}); of the live ones, {where}"
            )
        return f"{'' if nearest is None else 'out of bounds, '}not in a live allocation; {where}"

    def note_lent(self, address: int) -> None:
        """The program may write the allocation at `address` by itself from now on."""
        if self.checker is not None:
            block = self.block_of(address)
            if block is not None:
                self.checker.touch_by_program(block, address, 0, "write", knows_all=True)

    # ---------------------------------------------------------------------------- allocation

    def allocate(self, size_bytes: int, alignment: int = _GRANULE) -> int:
        """Memory that is live at once; not cleared. Give it back with `release`.

        Raises:
            OutOfMemoryError: the arena has no free range of this size.
        """
        if size_bytes <= 0:
            raise ValueError(f"an allocation of {size_bytes} bytes; sizes are positive")
        address = self.reserve(size_bytes, alignment)
        if address is None:
            used = self.size_bytes - self._free.total_bytes
            raise OutOfMemoryError(
                f"out of memory on the host device: {size_bytes} bytes asked for, "
                f"{used} of {self.size_bytes} in use; free tensors, or set CUDA_ASYNC_HOST_MEMORY higher",
                size_bytes,
                used,
                self.size_bytes,
            )
        with self._lock:
            self._immediate[address] = size_bytes
        self.activate(address, size_bytes)
        return address

    def release(self, address: int) -> None:
        """Free what `allocate` returned, at once."""
        with self._lock:
            size = self._immediate.pop(address, None)
        if size is None:
            raise ValueError(f"{address:#x} is not what allocate() returned, or was released already")
        self.deactivate(address)
        self.unreserve(address, size)

    def reserve(self, size_bytes: int, alignment: int = _GRANULE) -> int | None:
        """Take addresses out of the arena without making them live; None when nothing fits."""
        size = _rounded(size_bytes)
        with self._lock:
            address = self._free.take(size, max(alignment, _GRANULE))
            if address is not None:
                self._touched_end = max(self._touched_end, address + size)
        return address

    def unreserve(self, address: int, size_bytes: int) -> None:
        """Give addresses back to the arena: all or part of what `reserve` took."""
        with self._lock:
            self._free.add(address, _rounded(size_bytes))

    @property
    def unreserved_bytes(self) -> int:
        """What is left of the arena, in one piece or many."""
        return self._free.total_bytes

    def activate(self, address: int, size_bytes: int) -> None:
        """Reserved addresses become a live allocation."""
        offset = address - self.base
        block = Block(address, self._arena[offset : offset + size_bytes])
        if self.checker is not None:
            self.checker.activated(block, is_pool=address not in self._immediate)
        self._blocks.add(block)

    def deactivate(self, address: int, *, poison: bool = False) -> None:
        """The live allocation at `address` ends; accesses to it are faults from now on."""
        block = self._blocks.starting_at(address)
        if block is None:
            raise self.fault(address, 1, "write")
        self._freed.append((block.start, block.end))
        if self.checker is not None:
            self.checker.deactivated(block)
        if poison:
            block.bytes.fill(0xDD)
        self._blocks.remove(address)  # last: where an interrupt comes before, all of it is done again

    def retire(self) -> None:
        """No work will look for memory of this device any more. What somebody refers to stays."""
        _arenas.discard(self)

    def block_of(self, address: int) -> Block | None:
        """The live memory that `address` lies in, the device's, foreign or pinned."""
        return self._blocks.find(address) or _pinned.find(address)

    def is_live(self, address: int) -> bool:
        """Whether a live allocation starts at `address`."""
        return self._blocks.starting_at(address) is not None

    def contains(self, address: int) -> bool:
        """Whether `address` is in the arena, live or not."""
        return self.base <= address < self._end

    def give_back_pages(self, address: int, size_bytes: int) -> None:
        """Let the system take back the whole pages of a range that is not live. Contents are lost."""
        if not hasattr(self._mapping, "madvise"):
            return
        first = -(-(address - self.base) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (address + size_bytes - self.base) // mmap.PAGESIZE * mmap.PAGESIZE
        # In pieces: the interpreter lock is not released inside a call, but may be between two.
        for start in range(first, last, _GIVE_BACK_PIECE):
            self._mapping.madvise(mmap.MADV_DONTNEED, start, min(_GIVE_BACK_PIECE, last - start))

    def trim(self) -> None:
        """Give the pages of all free addresses back to the system."""
        with self._lock:
            for start, size in self._free:
                if start < self._touched_end:
                    self.give_back_pages(start, min(size, self._touched_end - start))

    # ---------------------------------------------------------------------------- foreign memory

    def add_foreign(
        self, address: int, size_bytes: int, owner: object, *, writable: bool = True
    ) -> ForeignRange:
        """Let the device access memory outside the arena. `owner` is kept alive until `remove_foreign`.

        Ranges may overlap and be added more than once; each addition needs its removal. A part is writable where one of
        them is. Memory that the device can access anyway (its own, and pinned) may be added too: that keeps the owner,
        and changes nothing else.

        Returns:
            What to give to `remove_foreign`.
        """
        if size_bytes <= 0:
            raise ValueError(f"foreign memory of {size_bytes} bytes; sizes are positive")
        end = address + size_bytes
        own = self.base <= address and end <= self._end
        if not own and address < self._end and end > self.base:
            raise ValueError(f"[{address:#x}, {end:#x}) lies only partly in the device's own memory")
        block = _pinned.find(address)
        own = own or (block is not None and end <= block.end)
        added = ForeignRange(address, size_bytes, owner, writable, own)
        self._change_foreign(added, None)
        return added

    def remove_foreign(self, added: ForeignRange) -> None:
        """Undo one `add_foreign`. Finalizers may call it, at any moment."""
        self._change_foreign(None, added)

    def _change_foreign(self, added: ForeignRange | None, removed: ForeignRange | None) -> None:
        """A finalizer may call this in the middle of itself: then the outer call does the inner one's work."""
        self._foreign_changes.append((added, removed))
        with self._lock:
            if self._changing_foreign:
                return
            self._changing_foreign = True
            try:
                while self._foreign_changes:
                    self._make_foreign_change(*self._foreign_changes.popleft())
            finally:
                self._changing_foreign = False

    def _make_foreign_change(self, added: ForeignRange | None, removed: ForeignRange | None) -> None:
        """Blocks are the unions of overlapping ranges: an access may span two imports of one array. Only those are made
        anew that the change touches; behind an interrupt in here, all."""
        entries = self._foreign
        place = None if removed is None else _place_of(removed, entries)
        changed = added or removed
        assert changed is not None
        if not self._foreign_unsure and self._is_covered(changed, place):
            if place is not None:
                del entries[place]
            else:
                insort(entries, changed, key=_address)
            return
        if self._foreign_unsure:
            blocks = [block for block in self._blocks.snapshot() if not self.contains(block.start)]
            touched = list(entries)
        else:
            start, end = changed.address, changed.address + changed.size_bytes
            blocks = [b for b in self._blocks.overlapping(start, end) if not self.contains(b.start)]
            start = min([start, *(block.start for block in blocks)])
            end = max([end, *(block.end for block in blocks)])
            touched = entries[
                bisect_left(entries, start, key=_address) : bisect_left(entries, end, key=_address)
            ]
        touched = [entry for entry in touched if entry is not removed]
        if added is not None:
            touched.append(added)
        self._foreign_unsure = True
        self._replace_foreign(blocks, touched)
        if place is not None:
            del entries[place]
        if added is not None:
            insort(entries, added, key=_address)
        self._foreign_unsure = False

    def _is_covered(self, changed: ForeignRange, place: int | None) -> bool:
        """Whether another import says all that this one does, which is at that place if it is there."""
        entries = self._foreign
        first = bisect_left(entries, changed.address, key=_address)
        for i in range(first, min(first + _LOOKED_AT, len(entries))):
            other = entries[i]
            is_alike = i != place and (other.address, other.own) == (changed.address, changed.own)
            if is_alike and other.size_bytes >= changed.size_bytes and other.writable >= changed.writable:
                return True
        return False

    def _replace_foreign(self, blocks: list[Block], entries: list[ForeignRange]) -> None:
        wanted = {united.start: united for united in _united(entries)}
        for block in blocks:
            united = wanted.get(block.start)
            if united is None or (united.end, united.writable_spans) != (block.end, block.writable_spans):
                self._blocks.remove(block.start)
        for start, (_, end, owners, spans) in wanted.items():
            if self._blocks.starting_at(start) is None:
                raw = np.asarray(RawMemory(start, end - start, owners, writable=bool(spans)))
                self._blocks.add(Block(start, raw, "foreign memory", writable_spans=spans))


def _address(entry: ForeignRange) -> int:
    return entry.address


def _place_of(removed: ForeignRange, entries: list[ForeignRange]) -> int:
    """In the entries, which are sorted by address."""
    for place in range(bisect_left(entries, removed.address, key=_address), len(entries)):
        if entries[place] is removed:
            return place
        if entries[place].address != removed.address:
            break
    raise ValueError(f"{removed.address:#x} is not foreign memory, or was removed already")


class _United(NamedTuple):
    """Ranges that overlap."""

    start: int
    end: int
    owners: tuple[object, ...]
    writable_spans: tuple[Span, ...]


def _united(entries: list[ForeignRange]) -> list[_United]:
    """The unions of ranges that overlap, by address."""
    united: list[_United] = []
    owners: list[object] = []
    spans: list[Span] = []
    start = last = 0

    def note() -> None:
        if owners:
            united.append(_United(start, last, tuple(owners), tuple(spans)))

    others = [entry for entry in entries if not entry.own]
    for address, size, owner, writable, _ in sorted(others, key=lambda entry: entry[:2]):
        end = address + size
        if not owners or address >= last:
            note()
            owners, spans, start, last = [], [], address, end
        owners.append(owner)
        last = max(last, end)
        if writable and spans and address <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        elif writable:
            spans.append((address, end))
    note()
    return united


def _spans_of(
    flat: NDArray[np.uint64], item: int, spans: Sequence[Span]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For each address the number of the last span that begins before it, and whether `item` bytes there leave that."""
    starts = np.fromiter((start for start, _ in spans), np.uint64, len(spans))
    ends = np.fromiter((end for _, end in spans), np.uint64, len(spans))
    owner = np.searchsorted(starts, flat, "right") - 1
    bad = owner < 0
    if spans:
        room = ends[owner] - flat  # wraps past the end of a span
        bad |= (room > ends[owner] - starts[owner]) | (room < item)
    return owner, bad


# -------------------------------------------------------------------------------- whole process

_arenas: weakref.WeakSet[HostMemory] = weakref.WeakSet()
_pinned = BlockTable(Level.PINNED)


def pinned_allocate(size_bytes: int) -> int:
    """Page-aligned memory that every host device of the process can access."""
    if size_bytes <= 0:
        raise ValueError(f"a pinned allocation of {size_bytes} bytes; sizes are positive")
    memory = np.frombuffer(map_pages(size_bytes), np.uint8)
    _pinned.add(Block(memory.ctypes.data, memory, "pinned allocation"))
    return int(memory.ctypes.data)


def pinned_release(address: int) -> None:
    """Free what `pinned_allocate` returned. The pages go when the last NumPy window onto them does."""
    if _pinned.remove(address) is None:
        raise ValueError(f"{address:#x} is not pinned memory, or was freed already")


def memory_window(memory: HostMemory, address: int, size_bytes: int, access: Access) -> NDArray[np.uint8]:
    """`memory.view` for work of any host device of the process: copies go between devices by address."""
    holder = _holder(memory, address)
    window = holder.view(address, size_bytes, access)
    if memory.checker is not None and size_bytes:
        block = holder.block_of(address)
        if block is not None:
            memory.checker.touch_range(block, address, size_bytes, access)
    return window


def memory_array(
    memory: HostMemory,
    address: int,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    strides_bytes: Sequence[int] | None,
    access: Access,
) -> NDArray[Any]:
    """`memory.array` for work of any host device of the process."""
    return _holder(memory, address).array(address, dtype, shape, strides_bytes, access)


def note_array(
    memory: HostMemory,
    address: int,
    item: int,
    shape: Sequence[int],
    strides_bytes: Sequence[int],
    access: Access,
) -> None:
    """Where a checker is told: work reads or writes this array."""
    if memory.checker is not None:
        block = _holder(memory, address).block_of(address)
        if block is not None:
            memory.checker.touch_array(block, address, shape, strides_bytes, item, access)


def _holder(memory: HostMemory, address: int) -> HostMemory:
    """The device whose arena `address` is in; otherwise `memory`, which knows about all the rest."""
    if not memory.contains(address):
        for other in list(_arenas):
            if other.contains(address):
                return other
    return memory


def _bounds(block: Block) -> str:
    return f"[{block.start:#x}, {block.end:#x})"


def _start_of(block: Block) -> int:
    return block.start


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // _GRANULE) * _GRANULE
