"""Barriers of blocks, warps and clusters.

Threads that arrive park their group; whoever completes a barrier lets the parked lanes run again. When all
live lanes of a wave arrive together, which is nearly always so, nothing happens at all.

A barrier without a count waits for the threads of the block that have not exited. With a count it waits for
that many threads, where a warp whose threads have all arrived counts as 32 (hardware counts warps, and the
last warp of a block may be short).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ._lanes import merge

if TYPE_CHECKING:
    from ._code import CodeBlock
    from ._lanes import Array, Group
    from ._translate import Destination, Source
    from ._wave import Wave

__all__ = ["Barriers"]

_HIGHEST = 15


class _Waiting:
    """A parked group, and what it gets when it goes on."""

    __slots__ = ("destination", "group", "reduction")

    def __init__(self, group: Group, reduction: str = "", destination: Destination | None = None) -> None:
        self.group = group
        self.reduction = reduction
        self.destination = destination


class _Barrier:
    """One numbered barrier of all blocks of a wave."""

    __slots__ = ("arrived", "expected", "number", "predicates", "waiting")

    def __init__(self, number: int, lanes: int, blocks: int) -> None:
        self.number = number
        self.arrived: NDArray[np.bool_] = np.zeros(lanes, np.bool_)
        self.predicates: NDArray[np.bool_] = np.zeros(lanes, np.bool_)
        self.expected: NDArray[np.int64] = np.zeros(blocks, np.int64)
        self.waiting: list[_Waiting] = []


class Barriers:
    """All barriers of a wave."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self._numbered: dict[int, _Barrier] = {}
        self._warp_waiting: list[_Waiting] = []
        self._cluster_waiting: list[_Waiting] = []
        self._cluster_count = max(1, wave.blocks // wave.blocks_per_cluster)

    # Few kernels use these: they are made when first asked for.

    @cached_property
    def _warp_arrived(self) -> NDArray[np.bool_]:
        return np.zeros(self._wave.size, np.bool_)

    @cached_property
    def _warp_masks(self) -> NDArray[np.uint32]:
        return np.zeros(self._wave.size, np.uint32)

    @cached_property
    def _cluster_arrived(self) -> NDArray[np.bool_]:
        return np.zeros(self._wave.size, np.bool_)

    @cached_property
    def _cluster_phase(self) -> NDArray[np.int64]:
        return np.zeros(self._cluster_count, np.int64)

    @cached_property
    def _lane_phase(self) -> NDArray[np.int64]:
        return np.full(self._wave.size, -1)

    # ------------------------------------------------------------------------------ blocks

    def sync(
        self, group: Group, number: Source, count: Source | None, following: CodeBlock
    ) -> CodeBlock | None:
        """bar.sync."""
        return self._arrive(group, number, count, following, None, "", None)

    def reduce(
        self,
        group: Group,
        number: Source,
        count: Source | None,
        predicate: Array,
        reduction: str,
        destination: Destination | None,
        following: CodeBlock,
    ) -> CodeBlock | None:
        """bar.red: the destination gets the count, conjunction or disjunction of all predicates."""
        return self._arrive(group, number, count, following, predicate, reduction, destination)

    def arrive(self, group: Group, number: Source, count: Source, following: CodeBlock) -> CodeBlock | None:
        """bar.arrive: count, and go on."""
        found = self._number_and_count(group, number, count)
        if found is None:
            return None
        barrier = self._barrier(group, found[0])
        lanes = group.active_lanes()
        self._mark(barrier, lanes, found[1])
        self._complete(barrier)
        return following

    def _arrive(
        self,
        group: Group,
        number: Source,
        count: Source | None,
        following: CodeBlock,
        predicate: Array | None,
        reduction: str,
        destination: Destination | None,
    ) -> CodeBlock | None:
        wave = self._wave
        found = self._number_and_count(group, number, count)
        if found is None:
            return None
        barrier = self._barrier(group, found[0])
        if (
            group.count == wave.live_count
            and predicate is None
            and found[1] in (0, wave.threads_per_block, wave.lanes_per_block)
            and not barrier.waiting
        ):
            barrier.arrived[:] = False
            if wave.watch is not None:
                wave.watch.meet_blocks(wave, None)
            return following
        lanes = group.active_lanes()
        if predicate is not None:
            barrier.predicates = np.where(lanes, group.spread(predicate), barrier.predicates)
        wave.park(group, following)
        barrier.waiting.append(_Waiting(group, reduction, destination))
        self._mark(barrier, lanes, found[1])
        self._complete(barrier)
        return None

    def _number_and_count(self, group: Group, number: Source, count: Source | None) -> tuple[int, int] | None:
        """The operands; None after lanes that name another barrier were split off."""
        wave = self._wave
        values = []
        for source in (number, count):
            if source is None:
                values.append(0)
                continue
            value = source.read(group)
            same = wave.first_value(group, value)
            if same is None:
                wave.diverge_here(group, value)
                return None
            values.append(same)
        return values[0], values[1]

    def _barrier(self, group: Group, number: int) -> _Barrier:
        barrier = self._numbered.get(number)
        if barrier is None:
            if number > _HIGHEST:
                self._wave.fail(group, f"barrier {number}; barriers are numbered 0 to {_HIGHEST}")
            barrier = _Barrier(number, self._wave.size, self._wave.blocks)
            self._numbered[number] = barrier
        return barrier

    def _mark(self, barrier: _Barrier, lanes: NDArray[np.bool_], count: int) -> None:
        barrier.arrived |= lanes
        touched = lanes.reshape(self._wave.blocks, -1).any(axis=1)
        barrier.expected[touched] = count

    def _complete(self, barrier: _Barrier) -> None:
        """Let the blocks go on for which the barrier is complete."""
        wave = self._wave
        arrived = barrier.arrived.reshape(wave.blocks, -1, 32)
        gone = ~wave.live.reshape(arrived.shape)
        per_warp = np.count_nonzero(arrived, axis=2)
        whole: Array = np.all(arrived | gone, axis=2)
        everyone: Array = np.all(whole, axis=1)
        threads = np.where(whole & (per_warp > 0), 32, per_warp).sum(axis=1)
        present = per_warp.sum(axis=1) > 0
        done = present & np.where(barrier.expected > 0, threads >= barrier.expected, everyone)
        if not done.any():
            return
        if wave.watch is not None:
            wave.watch.meet_blocks(wave, np.flatnonzero(done))
        lanes = np.repeat(done, wave.lanes_per_block)
        self._release(barrier.waiting, lanes, barrier)
        barrier.arrived &= ~lanes
        barrier.expected[done] = 0

    def _reduced(self, barrier: _Barrier, reduction: str) -> Array:
        """Per lane of the wave the reduction of its block's predicates."""
        wave = self._wave
        arrived = barrier.arrived.reshape(wave.blocks, -1)
        values = barrier.predicates.reshape(wave.blocks, -1)
        if reduction == "popc":
            result: Array = np.count_nonzero(values & arrived, axis=1).astype(np.uint32)
        elif reduction == "and":
            result = np.all(values | ~arrived, axis=1)
        else:
            result = np.any(values & arrived, axis=1)
        return np.repeat(result, wave.lanes_per_block)

    def _release(
        self, waiting: list[_Waiting], lanes: NDArray[np.bool_], barrier: _Barrier | None = None
    ) -> None:
        """Let the parked lanes among `lanes` run again."""
        wave = self._wave
        for parked in waiting.copy():
            group = parked.group
            ready = group.active_lanes() & lanes
            count = int(np.count_nonzero(ready))
            if count == 0:
                continue
            if count == group.count:
                waiting.remove(parked)
                part = group
            else:
                part = wave.split(group, ready if group.lanes is None else ready[group.lanes], count)
            if barrier is not None and parked.destination is not None:
                value = self._reduced(barrier, parked.reduction)
                _write_masked(part, parked.destination, value)
            wave.queue(part)

    # ------------------------------------------------------------------------------ warps

    def sync_warp(self, group: Group, mask: Array, following: CodeBlock) -> CodeBlock | None:
        """bar.warp.sync: wait for the lanes of the mask, wherever they wait for this warp."""
        wave = self._wave
        if group.count == wave.live_count:
            if wave.watch is not None:
                wave.watch.meet_warps(wave, None)
            return following
        lanes = group.active_lanes()
        self._warp_arrived |= lanes
        self._warp_masks = np.where(lanes, mask if mask.size == 1 else group.spread(mask), self._warp_masks)
        wave.park(group, following)
        self._warp_waiting.append(_Waiting(group))
        self._complete_warps()
        return None

    def _complete_warps(self) -> None:
        wave = self._wave
        arrived = self._warp_arrived.reshape(-1, 32)
        weights = np.uint32(1) << np.arange(32, dtype=np.uint32)
        here = (arrived * weights).sum(axis=1, dtype=np.uint32)
        live = (wave.live.reshape(-1, 32) * weights).sum(axis=1, dtype=np.uint32)
        # A lane goes on when the lanes its mask names are here (or gone).
        missing = self._warp_masks.reshape(-1, 32) & (live & ~here)[:, None]
        ready = (arrived & (missing == 0)).reshape(-1)
        if ready.any():
            if wave.watch is not None:
                wave.watch.meet_warps(wave, ready)
            self._warp_arrived &= ~ready
            self._release(self._warp_waiting, ready)

    # ------------------------------------------------------------------------------ clusters

    def arrive_cluster(self, group: Group, following: CodeBlock) -> CodeBlock | None:
        """barrier.cluster.arrive: count, and go on."""
        lanes = group.active_lanes()
        phase = np.repeat(self._cluster_phase, self._lanes_per_cluster)
        self._lane_phase = np.where(lanes, phase, self._lane_phase)
        self._cluster_arrived |= lanes
        self._complete_clusters()
        return following

    def wait_cluster(self, group: Group, following: CodeBlock) -> CodeBlock | None:
        """barrier.cluster.wait: wait until all threads of the cluster have arrived."""
        lanes = group.active_lanes()
        pending = lanes & (self._lane_phase >= np.repeat(self._cluster_phase, self._lanes_per_cluster))
        if not pending.any():
            return following
        self._wave.park(group, following)
        waiting = _Waiting(group)
        self._cluster_waiting.append(waiting)
        self._release([waiting], lanes & ~pending)
        if waiting.group.count and not (waiting.group.active_lanes() & pending).any():
            self._cluster_waiting.remove(waiting)
        return None

    @property
    def _lanes_per_cluster(self) -> int:
        return self._wave.size // self._cluster_phase.size

    def _complete_clusters(self) -> None:
        wave = self._wave
        arrived = self._cluster_arrived.reshape(self._cluster_phase.size, -1)
        live = wave.live.reshape(arrived.shape)
        done = (arrived | ~live).all(axis=1) & arrived.any(axis=1)
        if not done.any():
            return
        if wave.watch is not None:
            wave.watch.meet_clusters(wave, np.flatnonzero(done))
        self._cluster_phase += done
        lanes = np.repeat(done, self._lanes_per_cluster)
        self._cluster_arrived &= ~lanes
        self._release(self._cluster_waiting, lanes)

    # ------------------------------------------------------------------------------ all

    def threads_left(self) -> None:
        """Some threads have exited: barriers may be complete without them."""
        for barrier in self._numbered.values():
            if barrier.waiting:
                self._complete(barrier)
        if self._warp_waiting:
            self._complete_warps()
        if self._cluster_waiting:
            self._complete_clusters()

    def describe(self) -> list[tuple[Group, str]]:
        """Who waits, for the message about a deadlock."""
        found = [
            (parked.group, f"barrier {barrier.number}")
            for barrier in self._numbered.values()
            for parked in barrier.waiting
        ]
        found += [(parked.group, "a warp barrier") for parked in self._warp_waiting]
        found += [(parked.group, "a cluster barrier") for parked in self._cluster_waiting]
        return found


def _write_masked(group: Group, destination: Destination, value: Array) -> None:
    own = value if group.lanes is None else value[group.lanes]
    if destination.convert is not None:
        own = destination.convert(own)
    registers = group.registers
    old = registers[destination.slot]
    registers[destination.slot] = own if group.mask is None else merge(group.mask, own, old)
