"""A kernel's accesses, as the interpreters tell them.

`PtxWatch` is told by the state spaces and barriers of the PTX interpreter, which run many threads at once; `TileWatch`
by the loads and stores of the tile interpreter, which run many blocks at once. Both turn that into cells of shadows and
numbers of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._checker import shadow_of
from ._shadow import Shadow
from ._threads import SEVERAL_BLOCKS, LaunchOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from .._blocks import Block
    from .._memory import HostMemory
    from ..ptx._lanes import Group
    from ..ptx._launch import Launch
    from ..ptx._syntax import Instruction
    from ..ptx._wave import Wave
    from ._checker import Checker
    from ._words import Place

__all__ = ["PtxWatch", "Stored", "TileWatch"]

_STRONG = frozenset(("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio", "sc"))
_ACQUIRING = frozenset(("volatile", "relaxed", "acquire", "acq_rel", "mmio", "sc"))
_RELEASING = frozenset(("volatile", "release", "acq_rel", "mmio", "sc"))


class Stored:
    """What a kernel is about to store: two threads that store the same at one place do no harm."""

    __slots__ = ("_each", "_load", "_values")

    def __init__(self, load: Callable[[], NDArray[Any]], values: NDArray[Any], count: int) -> None:
        self._load = load
        self._values = np.broadcast_to(values, (count,))
        self._each = 1

    def with_cells(self, each: int) -> Stored:
        """The same, for elements of several cells each."""
        self._each = each
        return self

    def unchanged(self) -> NDArray[np.bool_]:
        """Where memory holds it already."""
        old = np.ascontiguousarray(self._load()).view(np.uint8).reshape(self._values.size, -1)
        new = np.ascontiguousarray(self._values).view(np.uint8).reshape(self._values.size, -1)
        return np.repeat((old == new).all(axis=1), self._each)

    def are_equal(self, one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
        """Whether the stores to these cells and to those are of the same values."""
        data = np.ascontiguousarray(self._values).view(np.uint8).reshape(self._values.size, -1)
        return bool((data[one // self._each] == data[other // self._each]).all())


class PtxWatch:
    """Watches one launch of a PTX kernel."""

    def __init__(self, checker: Checker, launch: Launch) -> None:
        self.checker = checker
        self.memory: HostMemory = launch.memory
        self.lanes = launch.lanes_per_block
        self.order = LaunchOrder(launch.grid, launch.block, self.lanes, launch.blocks_per_cluster)
        self.work = checker.begin_launch(self.order, launch.program.module_name)

    # ---------------------------------------------------------------------------- accesses

    def touch_global(
        self,
        group: Group,
        address: NDArray[np.uint64],
        where: NDArray[np.int64] | None,
        item: int,
        access: str,
        values: NDArray[Any] | None = None,
    ) -> None:
        """Threads access device memory. `address` is a register; `values` are what is stored."""
        chosen = address if where is None or address.size == 1 else address[where]
        who = self._threads(group, where)
        for block, which in self._blocks_of(chosen):
            part = chosen if which is None else chosen[which]
            offsets = (part - np.uint64(block.start)).view(np.int64)
            mine = who if which is None or chosen.size == 1 else who[which]
            what = values if which is None or values is None or values.size == 1 else values[which]
            self._touch(
                group,
                shadow_of(block),
                offsets,
                item,
                access,
                mine,
                what,
                lambda part=part, what=what: self.memory.load(part, what.dtype),  # type: ignore[misc]
            )

    def touch_shared(
        self,
        group: Group,
        places: NDArray[np.int64],
        where: NDArray[np.int64] | None,
        item: int,
        access: str,
        values: NDArray[Any] | None = None,
    ) -> None:
        """Threads access shared memory, at byte offsets into that of all blocks of the wave."""
        wave = group.wave
        who = self._threads(group, where)
        view = wave.shared_view(values.dtype) if values is not None else None
        shift = item.bit_length() - 1
        self._touch(
            group,
            self._shared_shadow(wave),
            places,
            item,
            access,
            who,
            values,
            lambda: view[places >> shift],  # type: ignore[index]
        )

    def touch_shared_at(
        self, wave: Wave, places: NDArray[np.int64], lanes: NDArray[np.int64], item: int
    ) -> None:
        """Lanes of the wave read shared memory."""
        who = (lanes + wave.first_block * self.lanes).astype(np.int32)
        self.checker.touch_elements(
            self._shared_shadow(wave), places, item, "read", who, wave.instruction, self.work
        )

    def _touch(
        self,
        group: Group,
        shadow: Shadow,
        offsets: NDArray[np.int64],
        item: int,
        access: str,
        who: NDArray[np.int32],
        values: NDArray[Any] | None,
        load: Callable[[], NDArray[Any]],
    ) -> None:
        instruction: Instruction | None = group.wave.instruction
        is_atomic = access == "update"
        is_barrier = False
        modifiers: Sequence[str] = ()
        if instruction is not None:
            modifiers = instruction.modifiers
            is_barrier = instruction.opcode == "mbarrier"
            is_atomic = is_atomic or is_barrier or not _STRONG.isdisjoint(modifiers)
            if is_barrier and access == "update":
                access = "write"  # what an object held before says nothing
            elif access == "update" and "cas" in modifiers:
                access = "compare and swap"
        threads: Any = who
        stored = None
        if offsets.size == 1 and who.size > 1:
            if values is not None and values.size > 1 and (values != values[0]).any():
                offsets = np.repeat(offsets, who.size)
                stored = Stored(lambda: np.repeat(load(), who.size), values, who.size)
            else:
                parties = self.order.parties(who)
                offsets = np.repeat(offsets, parties.size)
                threads = parties if parties.size > 1 else int(parties[0])
                if values is not None:
                    count = parties.size
                    stored = Stored(lambda: np.repeat(load(), count), values[:1], count)
        if values is not None and stored is None:
            stored = Stored(load, values[:1] if offsets.size == 1 else values, offsets.size)
        self.checker.touch_elements(
            shadow,
            offsets,
            item,
            access,
            threads,
            instruction or "",
            self.work,
            is_atomic=is_atomic,
            stored=stored,
        )
        if is_atomic and not is_barrier:
            self._synchronize(who, access, modifiers)

    def _synchronize(self, who: NDArray[np.int32], access: str, modifiers: Sequence[str]) -> None:
        acquires = access != "write" and (access != "read" or not _ACQUIRING.isdisjoint(modifiers))
        releases = access != "read" and not _RELEASING.isdisjoint(modifiers)
        if not (acquires or releases):
            return
        time = self.checker.time(self.work)
        blocks = np.unique(who // self.lanes)
        if acquires:
            self.order.acquire(blocks, time)
        if releases:
            self.order.release(blocks, time)

    def give(self, address: int) -> None:
        """The device itself has written this allocation, before the kernel began."""
        block = self.memory.block_of(address)
        assert block is not None
        shadow_of(block).given = True

    # ---------------------------------------------------------------------------- barriers and fences

    def frees(self, group: Group, lane: int) -> None:
        """A thread is about to free memory."""
        self.checker.note_thread(int(self._threads(group, np.array([lane]))[0]))

    def fence(self, group: Group) -> None:
        """Threads execute a fence."""
        blocks = np.unique(self._threads(group, None) // self.lanes)
        time = self.checker.time(self.work)
        self.order.release(blocks, time)
        self.order.acquire(blocks, time)

    def meet_blocks(self, wave: Wave, blocks: NDArray[np.int64] | None) -> None:
        """All threads of blocks of the wave (None: of all) have met."""
        first = wave.first_block
        numbers: Any = slice(first, first + wave.blocks) if blocks is None else blocks + first
        self.order.barrier(numbers, self.checker.time(self.work))

    def meet_warps(self, wave: Wave, lanes: NDArray[np.bool_] | None) -> None:
        """Lanes of the wave (None: all) have met the others of their warps."""
        first = wave.first_block * self.lanes // 32
        numbers: Any = slice(first, first + wave.size // 32)
        if lanes is not None:
            numbers = np.flatnonzero(lanes.reshape(-1, 32).any(axis=1)) + first
        self.order.warp_barrier(numbers, self.checker.time(self.work))

    def meet_clusters(self, wave: Wave, clusters: NDArray[np.int64]) -> None:
        """All threads of clusters of the wave have met."""
        first = wave.first_block // wave.blocks_per_cluster
        self.order.cluster_barrier(clusters + first, self.checker.time(self.work))

    def after_warp_operation(self, group: Group) -> None:
        """A warp has exchanged values: its lanes have met."""
        self.meet_warps(group.wave, None if group.count == group.wave.size else group.active_lanes())

    def after_mbarrier(self, group: Group) -> None:
        """Threads have arrived at, or looked at, an mbarrier: taken as a barrier of the block."""
        blocks = np.unique(self._threads(group, None) // self.lanes)
        self.order.barrier(blocks, self.checker.time(self.work))

    # ---------------------------------------------------------------------------- inside

    def _threads(self, group: Group, where: NDArray[np.int64] | None) -> NDArray[np.int32]:
        wave = group.wave
        lanes = group.wave_lanes(where)
        every = np.arange(wave.size) if lanes is None else lanes
        return (every + wave.first_block * self.lanes).astype(np.int32)

    def _shared_shadow(self, wave: Wave) -> Shadow:
        if wave.shared_shadow is None:
            wave.shared_shadow = _SharedShadow(wave, self.order)
        return wave.shared_shadow

    def _blocks_of(self, addresses: NDArray[np.uint64]) -> list[tuple[Block, NDArray[np.int64] | None]]:
        """The allocations that addresses lie in, each with the positions of its own; None for all."""
        flat = addresses.reshape(-1)
        if not flat.size:
            return []
        block = self.memory.block_of(int(flat[0]))
        if block is not None and int(flat.min()) >= block.start and int(flat.max()) < block.end:
            return [(block, None)]
        found: list[tuple[Block, NDArray[np.int64] | None]] = []
        left = np.arange(flat.size)
        while left.size:
            block = self.memory.block_of(int(flat[left[0]]))
            if block is None:  # the access itself is refused
                return []
            inside = (flat[left] >= np.uint64(block.start)) & (flat[left] < np.uint64(block.end))
            found.append((block, left[inside]))
            left = left[~inside]
        return found


class _SharedShadow(Shadow):
    """Of the shared memory of a wave's blocks, one behind the other, which has no addresses."""

    __slots__ = ("_first_block", "_order", "_stride")

    def __init__(self, wave: Wave, order: LaunchOrder) -> None:
        super().__init__(0, wave.blocks * wave.shared_stride, "shared memory", given=False)
        self._stride = wave.shared_stride
        self._first_block = wave.first_block
        self._order = order

    def describe(self, offset: int | None) -> str:
        if offset is None:
            return f"the {self.what} of the kernel's blocks"
        block, byte = divmod(offset, self._stride)
        index, _ = self._order.block_and_thread((self._first_block + block) * self._order.lanes)
        return f"byte {byte} of the {self.what} of block {index}"


class TileWatch:
    """Watches one launch of a tile kernel. Its blocks are told apart by their numbers, x running fastest."""

    def __init__(self, checker: Checker, memory: HostMemory, grid: tuple[int, int, int]) -> None:
        self.checker = checker
        self.memory = memory
        self.order = LaunchOrder(grid)
        self.work = checker.begin_launch(self.order)

    def touch_box(
        self,
        place: Place,
        blocks: NDArray[Any],
        address: int,
        shape: Sequence[int],
        strides_bytes: Sequence[int],
        item: int,
        access: str,
        *,
        is_strong: bool = False,
    ) -> None:
        """These blocks access a strided array, all of them the same; strong accesses are like atomics."""
        block = self.memory.block_of(address)
        if block is None:
            return
        for who in self._stand_ins(blocks, access):
            self.checker.touch_array(
                block,
                address,
                shape,
                strides_bytes,
                item,
                access,
                who=who,
                place=place,
                is_atomic=is_strong or access not in ("read", "write"),
                work=self.work,
            )

    def touch_elements(
        self,
        place: Place,
        blocks: NDArray[Any],
        addresses: NDArray[np.int64],
        item: int,
        access: str,
        *,
        is_strong: bool = False,
    ) -> None:
        """A block accesses elements at addresses: `blocks` has one number for each, or one for all."""
        flat = addresses.reshape(-1)
        left = np.arange(flat.size)
        who = np.broadcast_to(blocks, flat.shape).astype(np.int32)
        while left.size:
            block = self.memory.block_of(int(flat[left[0]]))
            if block is None:
                return
            inside = (flat[left] >= block.start) & (flat[left] < block.end)
            mine = left[inside]
            self.checker.touch_elements(
                shadow_of(block),
                flat[mine] - block.start,
                item,
                access,
                who[mine],
                place,
                self.work,
                is_atomic=is_strong or access not in ("read", "write"),
            )
            left = left[~inside]

    def synchronize(self, blocks: NDArray[Any], *, acquires: bool, releases: bool) -> None:
        """Blocks have made an access that others may have waited for."""
        if not (acquires or releases):
            return
        time = self.checker.time(self.work)
        if acquires:
            self.order.acquire(blocks, time)
        if releases:
            self.order.release(blocks, time)

    def _stand_ins(self, blocks: NDArray[Any], access: str) -> list[int]:
        """Who stands for several blocks that do the same: two of them where it matters who they are."""
        if len(blocks) == 1:
            return [int(blocks[0])]
        if access == "read" and self.order.has_no_order:
            return [SEVERAL_BLOCKS]
        return [int(blocks[0]), int(blocks[-1])]
