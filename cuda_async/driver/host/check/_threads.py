"""Which accesses of one kernel are ordered: of one thread, over a barrier, over a fence.

Accesses are numbered as they happen. A barrier of a block, warp or cluster is remembered by the number that the next
access will have: an earlier access of the same block (warp, cluster) has a smaller one, and is ordered before what
comes now. Blocks of one launch are ordered by no barrier. They may tell each other things through memory: one writes,
then *releases* (a fence, or an access with release semantics); the other *acquires* (an atomic, a volatile access, a
fence) and reads. Which release an acquire has seen is not followed up: a release after the first access and an acquire
before the second are taken to order the two. The same goes for threads of one block. That errs on the side of silence.

Who made an access is one number: a thread's, from 0 over the whole grid, with blocks padded to whole warps;
`SEVERAL_BLOCKS`; `-2 - block` for several threads of one block; behind those of all blocks, `-2 - blocks - warp` for
several threads of one warp. A block of a tile kernel is one thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SEVERAL_BLOCKS", "LaunchOrder"]

SEVERAL_BLOCKS = -1

# Numbers of threads or blocks, or one of them.
Who = Any


class LaunchOrder:
    """The blocks and threads of one launch.

    Args:
        grid, block: extents. lanes: threads of a block, padded to whole warps; 1 for a tile kernel.
        blocks_per_cluster: 1 without clusters.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int] = (1, 1, 1),
        lanes: int = 1,
        blocks_per_cluster: int = 1,
    ) -> None:
        self.grid = grid
        self.block = block
        self.lanes = lanes
        self.blocks = grid[0] * grid[1] * grid[2]
        self._warps = max(1, lanes // 32)  # of a block
        self._per_cluster = blocks_per_cluster
        self._block_times: NDArray[np.int64] | None = None
        self._warp_times: NDArray[np.int64] | None = None
        self._cluster_times: NDArray[np.int64] | None = None
        self._released: NDArray[np.int64] | None = None
        self._acquired: NDArray[np.int64] | None = None

    # ---------------------------------------------------------------------------- what happens

    def barrier(self, blocks: Who, time: int) -> None:
        """All threads of `blocks` have met."""
        if self._block_times is None:
            self._block_times = np.zeros(self.blocks, np.int64)
        self._block_times[blocks] = time

    def warp_barrier(self, warps: Who, time: int) -> None:
        """The threads of `warps` have met."""
        if self._warp_times is None:
            self._warp_times = np.zeros(self.blocks * self._warps, np.int64)
        self._warp_times[warps] = time

    def cluster_barrier(self, clusters: Who, time: int) -> None:
        """The threads of `clusters` have met."""
        if self._cluster_times is None:
            self._cluster_times = np.zeros(-(-self.blocks // self._per_cluster), np.int64)
        self._cluster_times[clusters] = time

    def release(self, blocks: Who, time: int) -> None:
        """What `blocks` have done may be seen by who acquires."""
        if self._released is None:
            self._released = np.zeros(self.blocks, np.int64)
        self._released[blocks] = time

    def acquire(self, blocks: Who, time: int) -> None:
        """`blocks` may have seen what others released."""
        if self._acquired is None:
            self._acquired = np.zeros(self.blocks, np.int64)
        self._acquired[blocks] = time

    # ---------------------------------------------------------------------------- what follows

    @property
    def has_no_order(self) -> bool:
        """Whether nothing that orders threads has happened yet."""
        return self._block_times is self._warp_times is self._cluster_times is self._acquired is None

    def unordered(self, number: int, earlier: NDArray[np.int32], who: Who) -> NDArray[np.bool_]:
        """Where the access `number` by `earlier` is not ordered before one that `who` makes now."""
        bad: NDArray[np.bool_] = (earlier != who) | (earlier < 0)
        if self.has_no_order or not bad.any():
            return bad
        block, other = self._block_of(who), self._block_of(earlier)
        here = np.maximum(block, 0)
        same = (other == block) & (other >= 0)
        if self._block_times is not None:
            bad &= ~(same & (self._block_times[here] > number))
        if self._warp_times is not None:
            warp = self._warp_of(who)
            met = self._warp_times[np.maximum(warp, 0)] > number
            bad &= ~((warp >= 0) & (self._warp_of(earlier) == warp) & met)
        if self._cluster_times is not None:
            cluster = here // self._per_cluster
            near = (block >= 0) & ((other < 0) | (other // self._per_cluster == cluster))
            bad &= ~(near & (self._cluster_times[cluster] > number))
        if self._acquired is not None and self._released is not None:
            seen = np.where(block >= 0, self._acquired[here], self._acquired.min()) > number
            bad &= ~(seen & ((other < 0) | (self._released[np.maximum(other, 0)] > number)))
        return bad

    def _block_of(self, who: Who) -> NDArray[np.int64]:
        """The block of a thread, or of several; -1 for several blocks."""
        of_several = -2 - np.asarray(who, np.int64)
        of_warp = (of_several - self.blocks) // self._warps
        of_several = np.where(of_several < self.blocks, of_several, of_warp)
        found: NDArray[np.int64] = np.where(np.asarray(who) >= 0, who // self.lanes, of_several)
        return found

    def _warp_of(self, who: Who) -> NDArray[np.int64]:
        """The warp of a thread, or of several; -1 for several warps."""
        of_several = -2 - self.blocks - np.asarray(who, np.int64)
        found: NDArray[np.int64] = np.where(np.asarray(who) >= 0, who // 32, np.maximum(of_several, -1))
        return found

    def together(self, earlier: NDArray[np.int32], who: Who) -> NDArray[np.int32]:
        """Who made an access that both made."""
        if self.lanes == 1:
            return np.where(earlier == who, earlier, np.int32(SEVERAL_BLOCKS))
        block, warp = self._block_of(who), self._warp_of(who)
        several = np.where((self._block_of(earlier) == block) & (block >= 0), -2 - block, SEVERAL_BLOCKS)
        is_warp = (warp >= 0) & (self._warp_of(earlier) == warp)
        several = np.where(is_warp, -2 - self.blocks - warp, several)
        alone = (earlier == who) & (earlier >= 0)
        found: NDArray[np.int32] = np.where(alone, earlier, several).astype(np.int32)
        return found

    def parties(self, lanes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Who made an access that all these threads made: one for each block, or for all while nothing orders them."""
        blocks = lanes // self.lanes
        if self.has_no_order and (blocks != blocks[0]).any():
            return np.array([SEVERAL_BLOCKS], np.int32)
        found, first = np.unique(blocks, return_index=True)
        # Threads are in order, so those of a block lie side by side.
        last = np.append(first[1:], lanes.size) - 1
        several = np.where(
            lanes[first] // 32 == lanes[last] // 32, -2 - self.blocks - lanes[first] // 32, -2 - found
        )
        return np.where(first == last, lanes[first], several).astype(np.int32)

    def coarsest_last(self, several: NDArray[np.int32]) -> NDArray[np.int64]:
        """An order in which warps come before blocks, and several blocks last."""
        return np.argsort(
            np.where(several == SEVERAL_BLOCKS, 1, np.where(several >= -1 - self.blocks, 0, -1)),
            kind="stable",
        )

    # ---------------------------------------------------------------------------- in words

    def block_and_thread(self, who: int) -> tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]:
        """The indices of a block and of a thread in it; None where there are several."""
        if who == SEVERAL_BLOCKS:
            return None, None
        block = int(self._block_of(who))
        thread = _axes(who % self.lanes, self.block) if who >= 0 and self.lanes > 1 else None
        return _axes(block, self.grid), thread


def _axes(number: int, extents: tuple[int, int, int]) -> tuple[int, int, int]:
    rest, x = divmod(number, extents[0])
    z, y = divmod(rest, extents[1])
    return x, y, z
