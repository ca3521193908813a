"""Special registers, with an element per lane of a wave or one for all.

`%laneid` and `%warpid` follow from the linear thread number, as on every GPU so far. Multiprocessors do not
exist here: `%smid` counts blocks. Those that change while a kernel runs (clocks) are in `_ops_moves`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ._lanes import Array
    from ._wave import Wave

__all__ = ["AXED_REGISTERS", "MULTIPROCESSORS", "special_bits", "special_register"]

MULTIPROCESSORS = 132
"""What `%nsmid` says, as on an H100."""

_WIDE = frozenset(("%clock64", "%globaltimer", "%gridid", "%current_graph_exec"))
AXED_REGISTERS = frozenset(
    f"%{name}"
    for name in (
        "tid",
        "ntid",
        "ctaid",
        "nctaid",
        "clusterid",
        "nclusterid",
        "cluster_ctaid",
        "cluster_nctaid",
    )
)
"""Special registers with parts .x, .y and .z."""

_AXES = {"x": 0, "y": 1, "z": 2}
_PER_LANE = frozenset(("%tid", "%laneid", "%warpid"))
_PER_BLOCK = frozenset(("%smid", "%ctaid", "%clusterid", "%cluster_ctaid", "%cluster_ctarank"))
_MOST_KNOWN = 64
"""Arrays of lane values kept from launch to launch."""


def special_bits(name: str) -> int:
    """Width of a special register."""
    if name == "%is_explicit_cluster":
        return 1
    return 64 if name in _WIDE or name.endswith("_64") else 32


def _one(value: int) -> Array:
    return np.array([value & 0xFFFFFFFF], np.uint32)


def special_register(wave: Wave, name: str, part: str) -> Array:
    """A special register's value in all lanes of a wave."""
    if name in _PER_LANE or name.startswith("%lanemask_"):
        launch = wave.launch
        known = launch.program.lane_values
        key = (launch.block, wave.blocks, name, part)
        value = known.get(key)
        if value is None:
            value = _per_lane_of_block(wave, name, part)
            if value.size > 1 and wave.blocks > 1:
                value = np.tile(value, wave.blocks)
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[key] = value
        return value
    if name in _PER_BLOCK:
        value = _per_block_of_wave(wave, name, part)
        return value if value.size == 1 else np.repeat(value, wave.lanes_per_block)
    return _per_launch(wave, name, part)


def _per_lane_of_block(wave: Wave, name: str, part: str) -> Array:
    launch = wave.launch
    index = np.arange(wave.lanes_per_block, dtype=np.uint32)
    if name == "%tid":
        if part == "w":
            return _one(0)
        axis = _AXES[part]
        x, y, _ = launch.block
        if launch.block[axis] == 1:
            return _one(0)
        values = (index % np.uint32(x), index // np.uint32(x) % np.uint32(y), index // np.uint32(x * y))
        return values[axis]
    lane = index % np.uint32(32)
    if name == "%laneid":
        return lane
    if name == "%warpid":
        return index // np.uint32(32) if wave.lanes_per_block > 32 else _one(0)
    own = np.uint32(1) << lane
    below = own - np.uint32(1)
    masks = {"eq": own, "lt": below, "le": below | own, "gt": ~(below | own), "ge": ~below}
    return masks[name.removeprefix("%lanemask_")]


def _per_block_of_wave(wave: Wave, name: str, part: str) -> Array:
    launch = wave.launch
    number = wave.first_block + np.arange(wave.blocks)
    if name == "%smid":
        return (number % MULTIPROCESSORS).astype(np.uint32)
    if part == "w":
        return _one(0)
    if not launch.has_clusters:
        if name == "%ctaid":
            x, y, _ = launch.grid
            axis = _AXES[part]
            if launch.grid[axis] == 1:
                return _one(0)
            return (number % x, number // x % y, number // (x * y))[axis].astype(np.uint32)
        if name == "%clusterid":
            return _per_block_of_wave(wave, "%ctaid", part)
        return _one(0)
    # Blocks are numbered cluster by cluster then, so that a cluster lies in one wave.
    cx, cy, cz = launch.cluster
    size = cx * cy * cz
    cluster, rank = number // size, number % size
    inside = (rank % cx, rank // cx % cy, rank // (cx * cy))
    gx, gy, _ = (g // c for g, c in zip(launch.grid, launch.cluster))
    outside = (cluster % gx, cluster // gx % gy, cluster // (gx * gy))
    if name == "%cluster_ctarank":
        return rank.astype(np.uint32)
    axis = _AXES[part]
    if name == "%cluster_ctaid":
        return inside[axis].astype(np.uint32)
    if name == "%clusterid":
        return outside[axis].astype(np.uint32)
    return (outside[axis] * launch.cluster[axis] + inside[axis]).astype(np.uint32)


def _per_launch(wave: Wave, name: str, part: str) -> Array:
    launch = wave.launch
    axis = _AXES.get(part, 3)
    if name == "%is_explicit_cluster":
        return np.array([launch.has_clusters])
    if name == "%gridid":
        return np.array([launch.number], np.uint64)
    if name in ("%ntid", "%nctaid", "%cluster_nctaid", "%nclusterid"):
        if axis == 3:
            return _one(1)
        if name == "%nclusterid":
            return _one(launch.grid[axis] // launch.cluster[axis])
        extents = {"%ntid": launch.block, "%nctaid": launch.grid, "%cluster_nctaid": launch.cluster}
        return _one(extents[name][axis])
    values = {
        "%nwarpid": launch.lanes_per_block // 32,
        "%nsmid": MULTIPROCESSORS,
        "%cluster_nctarank": launch.blocks_per_cluster,
        "%total_smem_size": launch.shared_bytes,
        "%aggr_smem_size": launch.shared_bytes,
        "%dynamic_smem_size": launch.dynamic_shared_bytes,
        # Where a cooperative grid finds the word its grid-wide barrier counts in.
        "%envreg1": launch.workspace >> 32,
        "%envreg2": launch.workspace,
    }
    value = values.get(name, 0)
    if special_bits(name) == 64:
        return np.array([value], np.uint64)
    return _one(value)
