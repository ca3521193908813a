"""Tiles and hints for matrix products and attention, by architecture, element type and size.

A tile as large as registers and shared memory allow reads its factors least often; it pays once there are enough tiles
for all multiprocessors. Measured on one H100: bfloat16 8192^3 at 760 TFLOP/s with (256, 256, 64), two CTAs and eight
warps, and at 46 with (128, 256, 64) and no hints; attention over 4096 keys of 128 at 611 with (128, 128), one
block per multiprocessor and eight warps. For the other architectures the tiles fit their shared memory and are not
measured; `tk.tune` finds better ones for a size that matters.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ..jit import ByTarget
from ._operands import power_of_two

if TYPE_CHECKING:
    from cuda_async import Tensor

__all__ = ["AttentionPlan", "ProductPlan", "attention_plan", "multiprocessors", "product_plan"]

PAIRS = ByTarget(sm_90=2, sm_100=2, sm_103=2)
"""Two CTAs share a large tile where clusters are worth it."""

EIGHT_WARPS = ByTarget(sm_90=8)
ONE_BLOCK = ByTarget(sm_90=1, sm_100=1, sm_103=1)


class ProductPlan(NamedTuple):
    """Tile of a matrix product, and its hints."""

    rows: int
    columns: int
    depth: int
    num_ctas: ByTarget | None = None
    num_worker_warps: ByTarget | None = None

    def tiles(self, m: int, n: int) -> int:
        """How many tiles a product of that size has."""
        return -(-m // self.rows) * -(-n // self.columns)


class AttentionPlan(NamedTuple):
    """Queries and keys of a tile, and hints."""

    queries: int
    keys: int
    occupancy: ByTarget | None = None
    num_worker_warps: ByTarget | None = None


_HOPPER = (
    ProductPlan(256, 256, 64, PAIRS, EIGHT_WARPS),
    ProductPlan(128, 256, 64, None, EIGHT_WARPS),
    ProductPlan(128, 128, 64),
    ProductPlan(64, 128, 64),
    ProductPlan(64, 64, 64),
)
_SMALL_SHARED_MEMORY = (
    ProductPlan(128, 128, 32),
    ProductPlan(128, 64, 32),
    ProductPlan(64, 64, 32),
)
_FLOAT32 = (ProductPlan(128, 64, 32), ProductPlan(64, 64, 32), ProductPlan(32, 64, 32))


def multiprocessors(tensor: Tensor) -> int:
    """Of the device that has the tensor."""
    return tensor.device.limits.multiprocessors


def product_plan(like: Tensor, m: int, n: int, k: int) -> ProductPlan:
    """For (m, k) @ (k, n) of the type and on the device of `like`."""
    device = like.device
    generation, _ = device.compute_capability
    return _product_plan(like.dtype.itemsize, generation, device.limits.multiprocessors, m, n, k)


@lru_cache(maxsize=1024)
def _product_plan(itemsize: int, generation: int, enough: int, m: int, n: int, k: int) -> ProductPlan:
    plans: tuple[ProductPlan, ...]
    if itemsize == 4:
        plans = _FLOAT32
    elif generation in (9, 10):
        plans = _HOPPER
    else:
        plans = _SMALL_SHARED_MEMORY
    for plan in plans:
        if plan.tiles(m, n) * (2 if plan.num_ctas is not None else 1) >= enough:
            break
    # no side much larger than what there is; 16 is what tensor cores take
    return plan._replace(
        rows=min(plan.rows, max(16, power_of_two(m))),
        columns=min(plan.columns, max(16, power_of_two(n))),
        depth=min(plan.depth, max(16, power_of_two(k))),
    )


def attention_plan(like: Tensor, queries: int, keys: int, size: int) -> AttentionPlan:
    """For that many queries and keys of `size` elements, of the type and on the device of `like`."""
    if like.dtype.itemsize == 4:
        plan = AttentionPlan(64, 32)
    elif like.device.compute_capability[0] in (9, 10):
        plan = AttentionPlan(128, 128, ONE_BLOCK, EIGHT_WARPS)
    else:
        plan = AttentionPlan(128 if size <= 64 else 64, 64)
    if queries <= 64:
        plan = AttentionPlan(max(16, power_of_two(queries)), min(plan.keys, 64))
    return plan._replace(keys=min(plan.keys, max(16, power_of_two(keys))))
