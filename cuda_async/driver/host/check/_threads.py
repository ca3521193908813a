"""Which accesses of one kernel are ordered: of one thread, over a barrier, over a fence.

Accesses are numbered as they happen. A barrier of a block, warp or cluster is remembered by the number that the next
access will have: an earlier access of the same block (warp, cluster) has a smaller one, and is ordered before what
comes now. Blocks of one launch are ordered by no barrier. They may tell each other things through memory: one writes,
then *releases* (a fence, or an access with release semantics); the other *acquires* (an atomic, a volatile access, a
fence) and reads. Which release an acquire has seen is not followed up: a release after the first access and an acquire
before the second are taken to order the two. The same goes for threads of one block. That errs on the side of silence.

Who made an access is one number: a thread's, from 0 over the whole grid, with blocks padded to whole warps;
`SEVERAL_BLOCKS`; or `-2 - block` for several threads of one block. A block of a tile kernel is one thread.
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
            self._warp_times = np.zeros(self.blocks * max(1, self.lanes // 32), np.int64)
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
            warp = np.maximum(who, 0) // 32
            bad &= ~((earlier >= 0) & (earlier // 32 == who // 32) & (self._warp_times[warp] > number))
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
        found: NDArray[np.int64] = np.where(np.asarray(who) >= 0, who // self.lanes, -2 - who)
        return found

    def together(self, earlier: NDArray[np.int32], who: Who) -> NDArray[np.int32]:
        """Who made an access that both made."""
        if self.lanes == 1:
            return np.where(earlier == who, earlier, np.int32(SEVERAL_BLOCKS))
        block, other = self._block_of(who), self._block_of(earlier)
        several = np.where((other == block) & (block >= 0), -2 - block, SEVERAL_BLOCKS)
        alone = (earlier == who) & (earlier >= 0)
        found: NDArray[np.int32] = np.where(alone, earlier, several).astype(np.int32)
        return found

    def all_of(self, lanes: NDArray[Any]) -> int:
        """Who made an access that all these threads made."""
        first = int(lanes[0])
        if lanes.size == 1:
            return first
        blocks = lanes // self.lanes
        block = int(blocks[0])
        return -2 - block if not np.count_nonzero(blocks != block) else SEVERAL_BLOCKS

    # ---------------------------------------------------------------------------- in words

    def block_and_thread(self, who: int) -> tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]:
        """The indices of a block and of a thread in it; None where there are several."""
        if who == SEVERAL_BLOCKS:
            return None, None
        block = who // self.lanes if who >= 0 else -2 - who
        thread = _axes(who % self.lanes, self.block) if who >= 0 and self.lanes > 1 else None
        return _axes(block, self.grid), thread


def _axes(number: int, extents: tuple[int, int, int]) -> tuple[int, int, int]:
    rest, x = divmod(number, extents[0])
    z, y = divmod(rest, extents[1])
    return x, y, z
