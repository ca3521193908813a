"""State spaces: every load, store and atomic of a kernel goes through here.

Generic addresses
    Device memory has process addresses, all below 2**48. The other spaces have windows far above them, told
    apart by the top four bits: shared memory at 1 << 60, local memory at 2 << 60, parameters at 3 << 60;
    addresses of functions are in 4 << 60. Within its window an address is the offset that the space's own
    instructions use, the same in every block or thread. Constants lie in device memory, so `.const` addresses
    are generic addresses already.

    In a cluster a shared address may name another block of it: bits 24 to 31 then hold its rank plus one,
    which is what `mapa` yields.

Shapes
    `address` is a register: an element per position of the group, or one for all. `where` lists the positions
    that take part, None being all. Values come back with an element per entry of `where` (or per position),
    or one where all are known to be the same; stored values are given in the same shapes.

Checks
    An access outside the space's memory, or not aligned to its size, is a `MemoryFault`; the engine adds the
    place. The checking mode (`check/`) is told here of every access to global and shared memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import MemoryFault
from .._memory import Access, Region

if TYPE_CHECKING:
    from ._lanes import Array, Group, Lanes

__all__ = [
    "CLUSTER_SHIFT",
    "FUNCTION_WINDOW",
    "GENERIC",
    "GLOBAL",
    "LOCAL",
    "LOCAL_WINDOW",
    "PARAM",
    "PARAM_WINDOW",
    "SHARED",
    "SHARED_WINDOW",
    "Space",
]

SHARED_WINDOW = 1 << 60
LOCAL_WINDOW = 2 << 60
PARAM_WINDOW = 3 << 60
FUNCTION_WINDOW = 4 << 60
CLUSTER_SHIFT = 24

_WINDOW_SHIFT = np.uint64(60)
_FIRST_WINDOW = np.uint64(SHARED_WINDOW)
_OFFSET = np.uint64(0xFFFFFFFF)
_BLOCK_OFFSET = np.int64((1 << CLUSTER_SHIFT) - 1)


class Space:
    """Memory as one kind of address sees it."""

    name = ""

    def load(self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any]) -> Array:
        """The values at the addresses."""
        raise NotImplementedError

    def store(self, group: Group, address: Array, where: Lanes | None, values: Array) -> None:
        """Write; where an address is given twice the last value stays."""
        raise NotImplementedError

    def regions(
        self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any], access: Access
    ) -> list[Region]:
        """Windows onto the memory and indices into them, for read-modify-write. `address` is full."""
        raise NotImplementedError


class _Global(Space):
    name = "global"

    def load(self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any]) -> Array:
        wave = group.wave
        wave.accessed = where
        if wave.watch is not None:
            wave.watch.touch_global(group, address, where, dtype.itemsize, "read")
        return wave.memory.load(address if where is None or address.size == 1 else address[where], dtype)

    def store(self, group: Group, address: Array, where: Lanes | None, values: Array) -> None:
        wave = group.wave
        wave.accessed = where
        if wave.watch is not None:
            wave.watch.touch_global(group, address, where, values.itemsize, "write", values)
        if address.size == 1:
            wave.memory.store(address, values[-1:])
        else:
            wave.memory.store(address if where is None else address[where], values)

    def regions(
        self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any], access: Access
    ) -> list[Region]:
        wave = group.wave
        wave.accessed = where
        if wave.watch is not None:
            wave.watch.touch_global(group, address, where, dtype.itemsize, "update")
        return wave.memory.regions(address if where is None else address[where], dtype, access)


class _Shared(Space):
    name = "shared"

    def load(self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any]) -> Array:
        wave = group.wave
        offset = self._offsets(group, address, where, dtype.itemsize, "read")
        shift = dtype.itemsize.bit_length() - 1
        view = wave.shared_view(dtype)
        if wave.watch is not None:
            wave.watch.touch_shared(group, self._places(group, offset, where), where, dtype.itemsize, "read")
        if group.rows is None:
            found: Array = view[offset >> shift]
            return found
        if offset.size == 1 and where is None and group.lanes is None and not wave.clusters:
            column: Array = view.reshape(wave.blocks, -1)[:, int(offset[0]) >> shift]
            return np.repeat(column, wave.lanes_per_block)
        values: Array = view[self._in_rows(group, offset, where) >> shift]
        return values

    def store(self, group: Group, address: Array, where: Lanes | None, values: Array) -> None:
        wave = group.wave
        offset = self._offsets(group, address, where, values.itemsize, "write")
        view = wave.shared_view(values.dtype)
        shift = values.itemsize.bit_length() - 1
        if wave.watch is not None:
            places = self._places(group, offset, where)
            wave.watch.touch_shared(group, places, where, values.itemsize, "write", values)
        if group.rows is None:
            view[offset >> shift] = values if offset.size > 1 else values[-1:]
        else:
            view[self._in_rows(group, offset, where) >> shift] = values

    def regions(
        self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any], access: Access
    ) -> list[Region]:
        offset = self._offsets(group, address, where, dtype.itemsize, access)
        offset = self._places(group, offset, where)
        if group.wave.watch is not None:
            group.wave.watch.touch_shared(group, offset, where, dtype.itemsize, "update")
        return [Region(group.wave.shared_view(dtype), offset >> (dtype.itemsize.bit_length() - 1), None)]

    def load_at(self, group: Group, address: Array, lanes: Lanes, dtype: np.dtype[Any]) -> Array:
        """Values at addresses that come with the lanes of the wave in whose blocks they are."""
        offset = self._offsets(group, address, None, dtype.itemsize, "read")
        wave = group.wave
        if wave.watch is not None:
            wave.watch.touch_shared_at(wave, wave.rows[lanes] + offset, lanes, dtype.itemsize)
        place = (wave.rows[lanes] + offset) >> (dtype.itemsize.bit_length() - 1)
        found: Array = wave.shared_view(dtype)[place]
        return found

    def _offsets(self, group: Group, address: Array, where: Lanes | None, size: int, access: Access) -> Lanes:
        wave = group.wave
        wave.accessed = where
        offset: Lanes = (address & _OFFSET).view(np.int64)
        if where is not None and offset.size > 1:
            offset = offset[where]
        if offset.size == 0:
            return offset
        inside = offset & _BLOCK_OFFSET if wave.clusters else offset
        if np.maximum.reduce(inside) + size > wave.shared_bytes or (
            size > 1 and np.bitwise_or.reduce(inside) & (size - 1)
        ):
            bad = (inside + size > wave.shared_bytes) | (inside & (size - 1) != 0)
            index = int(bad.argmax())
            raise _outside("shared", int(inside[index]), size, access, wave.shared_bytes, index)
        return offset

    def _places(self, group: Group, offset: Lanes, where: Lanes | None) -> Lanes:
        """Offsets into the shared memory of all blocks of the wave."""
        return offset if group.rows is None else self._in_rows(group, offset, where)

    def _in_rows(self, group: Group, offset: Lanes, where: Lanes | None) -> Lanes:
        rows = group.rows
        assert rows is not None
        if where is not None:
            rows = rows[where]
        wave = group.wave
        if wave.clusters:
            rank = offset >> CLUSTER_SHIFT
            if np.count_nonzero(rank):
                block = wave.block_of_rank(group, rank - 1, where)
                rows = np.where(rank > 0, block * wave.shared_stride, rows)
                offset = offset & _BLOCK_OFFSET
        return rows + offset


class _Local(Space):
    name = "local"

    def load(self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any]) -> Array:
        wave = group.wave
        offset = self._offsets(group, address, where, dtype.itemsize, "read")
        shift = dtype.itemsize.bit_length() - 1
        view = wave.local_view(dtype)
        if offset.size == 1:
            column: Array = view[:, int(offset[0]) >> shift]
            lanes = group.wave_lanes(where) if where is not None else group.lanes
            return np.ascontiguousarray(column) if lanes is None else column[lanes]
        values: Array = view[self._lanes(group, where), offset >> shift]
        return values

    def store(self, group: Group, address: Array, where: Lanes | None, values: Array) -> None:
        wave = group.wave
        offset = self._offsets(group, address, where, values.itemsize, "write")
        shift = values.itemsize.bit_length() - 1
        view = wave.local_view(values.dtype)
        if offset.size == 1:
            lanes = group.wave_lanes(where) if where is not None else group.lanes
            view[slice(None) if lanes is None else lanes, int(offset[0]) >> shift] = values
        else:
            view[self._lanes(group, where), offset >> shift] = values

    def regions(
        self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any], access: Access
    ) -> list[Region]:
        offset = self._offsets(group, address, where, dtype.itemsize, access)
        view = group.wave.local_view(dtype)
        index = self._lanes(group, where) * view.shape[1] + (offset >> (dtype.itemsize.bit_length() - 1))
        return [Region(view.reshape(-1), index, None)]

    def _lanes(self, group: Group, where: Lanes | None) -> Lanes:
        lanes = group.wave_lanes(where) if where is not None else group.lanes
        return np.arange(group.size) if lanes is None else lanes

    def _offsets(self, group: Group, address: Array, where: Lanes | None, size: int, access: Access) -> Lanes:
        wave = group.wave
        wave.accessed = where
        offset: Lanes = (address & _OFFSET).view(np.int64)
        if where is not None and offset.size > 1:
            offset = offset[where]
        if offset.size and (
            np.maximum.reduce(offset) + size > wave.local_bytes
            or (size > 1 and np.bitwise_or.reduce(offset) & (size - 1))
        ):
            bad = (offset + size > wave.local_bytes) | (offset & (size - 1) != 0)
            index = int(bad.argmax())
            raise _outside("local", int(offset[index]), size, access, wave.local_bytes, index)
        return offset


class _Param(Space):
    """Parameters of the entry, read at computed addresses."""

    name = "param"

    def load(self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any]) -> Array:
        wave = group.wave
        wave.accessed = where
        offset = (address & _OFFSET).view(np.int64)
        if where is not None and offset.size > 1:
            offset = offset[where]
        size, buffer = dtype.itemsize, wave.launch.parameters
        bad = (offset + size > wave.launch.parameter_bytes) | (offset & (size - 1) != 0)
        if bad.any():
            index = int(bad.argmax())
            raise _outside("param", int(offset[index]), size, "read", wave.launch.parameter_bytes, index)
        values: Array = buffer.view(dtype)[offset >> (size.bit_length() - 1)]
        return values

    def store(self, group: Group, address: Array, where: Lanes | None, values: Array) -> None:
        group.wave.accessed = where
        raise MemoryFault(
            int(address[0]), values.itemsize, "write", "parameters of a kernel are read-only", index=0
        )

    def regions(
        self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any], access: Access
    ) -> list[Region]:
        group.wave.accessed = where
        raise MemoryFault(
            int(address[0]), dtype.itemsize, "write", "parameters of a kernel are read-only", index=0
        )


class _Generic(Space):
    name = "generic"

    def _pieces(
        self, group: Group, address: Array, where: Lanes | None
    ) -> list[tuple[Space, Lanes | None, Array | None]]:
        """The spaces the addresses lie in: (space, its positions, their places among `where`)."""
        chosen = address if where is None or address.size == 1 else address[where]
        windows = (chosen >> _WINDOW_SHIFT).astype(np.uint8)
        first = int(windows[0])
        if windows.size == 1 or not np.count_nonzero(windows != first):
            return [(self._space(group, first, int(chosen[0]), where), where, None)]
        pieces: list[tuple[Space, Lanes | None, Array | None]] = []
        positions = np.arange(address.size) if where is None else where
        for number in np.unique(windows).tolist():
            places = np.flatnonzero(windows == number)
            part = positions[places]
            pieces.append((self._space(group, number, int(address[part[0]]), part), part, places))
        return pieces

    def _space(self, group: Group, number: int, address: int, where: Lanes | None) -> Space:
        if number < len(_BY_WINDOW):
            return _BY_WINDOW[number]
        group.wave.accessed = where
        what = "the address of a function" if number == 4 else "not in any memory"
        raise MemoryFault(address, 1, "read", what, index=0)

    def load(self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any]) -> Array:
        if where is None and np.maximum.reduce(address) < _FIRST_WINDOW:
            return GLOBAL.load(group, address, where, dtype)
        if where is not None and not where.size:
            return np.empty(0, dtype)
        pieces = self._pieces(group, address, where)
        if len(pieces) == 1:
            return pieces[0][0].load(group, address, where, dtype)
        values = np.empty(address.size if where is None else where.size, dtype)
        for space, part, places in pieces:
            values[places] = space.load(group, address, part, dtype)
        return values

    def store(self, group: Group, address: Array, where: Lanes | None, values: Array) -> None:
        if where is None and np.maximum.reduce(address) < _FIRST_WINDOW:
            GLOBAL.store(group, address, where, values)
            return
        if where is not None and not where.size:
            return
        for space, part, places in self._pieces(group, address, where):
            space.store(
                group, address, part, values if places is None or values.size == 1 else values[places]
            )

    def regions(
        self, group: Group, address: Array, where: Lanes | None, dtype: np.dtype[Any], access: Access
    ) -> list[Region]:
        found: list[Region] = []
        for space, part, places in self._pieces(group, address, where):
            for window, index, which in space.regions(group, address, part, dtype, access):
                if places is not None:
                    which = places if which is None else places[which]
                found.append(Region(window, index, which))
        return found


def _outside(space: str, offset: int, size: int, access: Access, limit: int, index: int) -> MemoryFault:
    owner = {"shared": "the block", "local": "the thread", "param": "the kernel"}[space]
    if offset + size <= limit:
        reason = f"misaligned {space} address; accesses are aligned to their size"
    else:
        reason = f"out of bounds: {owner} has {limit} bytes of {space} memory"
    return MemoryFault(offset, size, access, reason, index=index)


GLOBAL = _Global()
SHARED = _Shared()
LOCAL = _Local()
PARAM = _Param()
GENERIC = _Generic()
_BY_WINDOW: tuple[Space, ...] = (GLOBAL, SHARED, LOCAL, PARAM)
