"""Tiles and hints for matrix products and attention, by architecture, element type and size.

A tile as large as registers and shared memory allow reads its factors least often; it pays once there are enough tiles
for all multiprocessors, and enough steps along the common axis for its beginning and end not to count. For sm_90 and
sm_100, `_estimate` weighs that: the constants were fitted to sweeps of tiles and hints on an H200, over products of
two models (512 and 4096 rows, common axes of 384 to 1536) and of 4096^3 and 8192^3. There, blocks that walk all tiles
of 128 by 128 and more beat a block for each, and smaller tiles want as many blocks at once as they have left over.
Two tiles that make three times a power of two of columns save a round where the result has such a width, and with a
short common axis it pays to keep the columns of the second factor in shared memory.
Attention of two bytes an element ran fastest with (64, 128) and two blocks per multiprocessor: over 512 keys, over 4096
of 64 in 1.44 ms against 1.65 for (128, 128) with eight warps, over 4096 of 128 in 2.13 against 2.18. Float32 in three
products ran fastest with the tiles below, of heads of 128 with (128, 32), though they do not fit into registers. The
others are those that `kernel.resources(...)` shows to keep all in registers on their architecture; `tk.tune` finds
better ones for a size that matters.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..jit import ByTarget
from ._operands import power_of_two

if TYPE_CHECKING:
    from cuda_async import Tensor

__all__ = [
    "AttentionPlan",
    "ProductPlan",
    "attention_plan",
    "copy_pays",
    "matvec_tile",
    "multiprocessors",
    "precision_of",
    "product_plan",
]

HOPPER = (9, 10)
"""Generations with large shared memory and clusters: sm_90, sm_100."""

PAIRS = ByTarget(sm_90=2, sm_100=2, sm_103=2)
"""Two CTAs share a large tile where clusters are worth it."""

EIGHT_WARPS = ByTarget(sm_90=8)


# Tensor cores of sm_90 take factors of four bytes along the common axis only; others are turned tile by tile. A copy of
# E elements takes 4 us and as long as E * 175 (with one product in place of three, E * 600) multiplications gain by it.
_COPY = (175, 3.3e8)
_COPY_TF32 = (600, 1e9)


Form = Literal["blocks", "persistent", "pair", "stationary"]
"""A block for each tile; blocks that walk the tiles; a block for two tiles side by side; blocks that keep columns of
the second factor and go down the rows of the first. For each there is a kernel in `raw`."""


TILED: tuple[Form, ...] = ("blocks", "persistent")
ALL_FORMS: tuple[Form, ...] = ("blocks", "persistent", "pair", "stationary")


class ProductPlan(NamedTuple):
    """Tile of a matrix product, and its hints. A pair's second tile has half the columns of the first.

    `latency` is the hint of the loads within the loop: how many steps ahead they begin.
    """

    rows: int
    columns: int
    depth: int
    num_ctas: ByTarget | None = None
    num_worker_warps: ByTarget | int | None = None
    occupancy: int | None = None
    form: Form = "blocks"
    latency: int | None = None

    @property
    def ctas(self) -> int:
        """How many share a tile."""
        return 1 if self.num_ctas is None else 2

    @property
    def width(self) -> int:
        """Columns of the result that a block makes at once."""
        return self.columns + self.columns // 2 if self.form == "pair" else self.columns

    def tiles(self, m: int, n: int) -> int:
        """How many tiles, or pairs of them, a product of that size has."""
        return -(-m // self.rows) * -(-n // self.width)

    def sharing(self, m: int, n: int, enough: int) -> int:
        """How many blocks share the rows of a stationary product, so that there is one for each multiprocessor."""
        return max(1, min(-(-m // self.rows), enough // -(-n // self.columns)))


class AttentionPlan(NamedTuple):
    """Queries and keys of a tile, and hints."""

    queries: int
    keys: int
    occupancy: int | None = None
    num_worker_warps: int | None = None
    latency: int | None = None


class _Choice(NamedTuple):
    """A plan, with what `_estimate` knows of it.

    `rate`: millions of products that a multiprocessor makes in a microsecond. `ends`: what the beginning and end of a
    tile cost, in elements of the common axis. `overlap`: of so many tiles at once, or one after another, one pays that.
    """

    plan: ProductPlan
    rate: float
    ends: int
    overlap: int


_HOPPER = (
    _Choice(ProductPlan(256, 256, 64, PAIRS, EIGHT_WARPS, form="persistent"), 3.2, 640, 3),
    _Choice(ProductPlan(128, 256, 64, None, EIGHT_WARPS, form="persistent"), 3.1, 640, 3),
    _Choice(ProductPlan(128, 128, 64, occupancy=2, form="persistent", latency=2), 2.94, 441, 4),
    _Choice(ProductPlan(64, 128, 64), 2.35, 450, 2),
    _Choice(ProductPlan(64, 64, 64), 2.1, 1090, 3),
)
_FEW_TILES = (  # where each has a multiprocessor, and its shared memory, for itself
    _Choice(ProductPlan(64, 64, 128, latency=4), 2.77, 1534, 1),
)
_WHOLE_WIDTHS = (  # where the widths go into the result's without a rest
    _Choice(ProductPlan(128, 128, 64, form="pair"), 2.8, 300, 1),
    _Choice(ProductPlan(64, 128, 64, form="pair", latency=5), 2.5, 425, 1),
)
_SHORT_AXES = (  # where shared memory holds `columns` of the second factor, beside tiles of the first
    _Choice(ProductPlan(64, 128, 128, None, EIGHT_WARPS, form="stationary", latency=5), 2.9, 720, 1 << 30),
    _Choice(ProductPlan(64, 64, 128, form="stationary"), 2.36, 1110, 1 << 30),
)
_KEPT_ELEMENTS = 48 << 10
"""What a stationary product keeps in shared memory, of two bytes each."""
_FEW_ROWS = (ProductPlan(16, 128, 64, occupancy=4), ProductPlan(16, 32, 128))
_SMALL_SHARED_MEMORY = (
    ProductPlan(128, 128, 32),
    ProductPlan(128, 64, 32),
    ProductPlan(64, 64, 32),
)
# Float32 in three products, each with how many tiles there have to be for a multiprocessor.
_FLOAT32_HOPPER = (  # more blocks at once hide that each waits for its own
    (ProductPlan(64, 128, 32, occupancy=2), 8),
    (ProductPlan(64, 64, 32, occupancy=3), 2),
    (ProductPlan(64, 32, 64, occupancy=3), 0),
)
_FLOAT32 = ((ProductPlan(64, 64, 32, None, 8), 1), (ProductPlan(64, 32, 32, None, 8), 0))
_FLOAT32_FEW_ROWS = ProductPlan(16, 64, 64)
_TFLOAT32 = (ProductPlan(128, 128, 32, None, 8), ProductPlan(64, 64, 32))


def precision_of(like: Tensor, tf32: bool) -> str:
    """How products of that type are made: "ieee", "tf32" or "tf32x3", as the kernels in `raw` take it."""
    return "ieee" if like.dtype.itemsize != 4 else "tf32" if tf32 else "tf32x3"


def copy_pays(factor: Tensor, axis: int, times: int, *, tf32: bool) -> bool:
    """Whether a factor of a product should first be copied to lie along the common axis, which is `axis`.

    Args:
        times: rows or columns of the other factor that each of its own is multiplied with.
    """
    if factor.dtype.itemsize != 4 or factor.strides[axis] == 1 or factor.device.compute_capability[0] != 9:
        return False
    free, gain = _COPY_TF32 if tf32 else _COPY
    return factor.size * (times - free) >= gain


def multiprocessors(tensor: Tensor) -> int:
    """Of the device that has the tensor."""
    return tensor.device.limits.multiprocessors


def product_plan(
    like: Tensor,
    m: int,
    n: int,
    k: int,
    *,
    tf32: bool = False,
    forms: tuple[Form, ...] = TILED,
    count: int = 1,
) -> ProductPlan:
    """For `count` products (m, k) @ (k, n) of the type and on the device of `like`, in one of `forms`."""
    device = like.device
    generation, _ = device.compute_capability
    is_float32 = like.dtype.itemsize == 4
    return _product_plan(is_float32, tf32, generation, device.limits.multiprocessors, m, n, k, forms, count)


@lru_cache(maxsize=1024)
def _product_plan(
    is_float32: bool,
    tf32: bool,
    generation: int,
    enough: int,
    m: int,
    n: int,
    k: int,
    forms: tuple[Form, ...] = TILED,
    count: int = 1,
) -> ProductPlan:
    def tiles(plan: ProductPlan) -> int:
        return count * plan.tiles(m, n)

    if is_float32 and not tf32 and m <= 16:
        plan = _FLOAT32_FEW_ROWS
    elif is_float32 and not tf32:
        plans_for = _FLOAT32_HOPPER if generation in HOPPER else _FLOAT32
        plan = next(plan for plan, least in plans_for if tiles(plan) >= least * enough)
    elif not is_float32 and m <= 16:
        plan = next((plan for plan in _FEW_ROWS if tiles(plan) >= 2 * enough), _FEW_ROWS[-1])
    elif not is_float32 and generation in HOPPER:
        choices = [
            *_HOPPER,
            *(c for c in _FEW_TILES if forms == ALL_FORMS and tiles(c.plan) <= enough),
            *(c for c in _WHOLE_WIDTHS if c.plan.form in forms and n % c.plan.width == 0),
            *(c for c in _SHORT_AXES if c.plan.form in forms and k * c.plan.columns <= _KEPT_ELEMENTS),
        ]
        plan = min(choices, key=lambda choice: _estimate(choice, enough, m, n, k, count)).plan
        if plan.form == "pair" or (plan.form == "blocks" and tiles(plan) > enough):
            plan = plan._replace(occupancy=min(3, -(-tiles(plan) // enough)))
    else:
        plans = _TFLOAT32 if is_float32 else _SMALL_SHARED_MEMORY
        plan = next((plan for plan in plans if tiles(plan) >= enough), plans[-1])
    # no side much larger than what there is; 16 is what tensor cores take
    return plan._replace(
        rows=min(plan.rows, max(16, power_of_two(m))),
        columns=min(plan.columns, max(16, power_of_two(n))),
        depth=min(plan.depth, max(16, power_of_two(k))),
    )


def _estimate(choice: _Choice, enough: int, m: int, n: int, k: int, count: int) -> float:
    """What the products take, in millionths of a microsecond: rounds of tiles over all multiprocessors."""
    plan, rate, ends, overlap = choice
    rounds = -(-count * plan.tiles(m, n) * plan.ctas // enough)
    if plan.form == "stationary":
        strips, down = -(-n // plan.columns), -(-m // plan.rows)
        rounds = -(-strips // enough) * -(-down // plan.sharing(m, n, enough))
    paid = 1 + (rounds - 1) / overlap if plan.form == "persistent" else -(-rounds // overlap)
    along = rounds * k + paid * ends
    return plan.rows * plan.width / plan.ctas * along / rate


def matvec_tile(m: int, n: int, k: int, enough: int) -> tuple[int, int]:
    """Rows of the matrix (n, k) and elements of each that a block takes at once, for m vectors.

    4096 elements, so that eight blocks of a multiprocessor hold them in registers: long pieces of few rows, as one
    read brings them, but no longer than leaves little of them empty, as far as there are blocks for all.
    """
    most = max(4, 4096 // power_of_two(m))
    best, least = (1, most), math.inf
    for depth in (1024, 512, 256, 128, 64):
        columns = max(1, most // depth)
        padded = -(-k // depth) * depth
        if depth < 1024 and (-(-n // columns) < 4 * enough or padded > 0.8 * least):
            continue
        best, least = (columns, depth), padded
    columns, depth = best
    if columns > 1 and k > depth and -(-n // columns) < 2 * enough:
        columns, depth = 1, 2 * depth  # few rows: each by a block
    return min(columns, power_of_two(n)), min(depth, power_of_two(k))


def attention_plan(
    like: Tensor, heads: int, queries: int, keys: int, size: int, *, tf32: bool = False
) -> AttentionPlan:
    """For `heads` times that many queries and keys of `size` elements, of the type and device of `like`."""
    generation, _ = like.device.compute_capability
    are_few = 2 * heads * -(-queries // 128) <= like.device.limits.multiprocessors
    return _attention_plan(like.dtype.itemsize == 4, tf32, generation, are_few, queries, keys, size)


@lru_cache(maxsize=1024)
def _attention_plan(
    is_float32: bool, tf32: bool, generation: int, are_few: bool, queries: int, keys: int, size: int
) -> AttentionPlan:
    is_wide = size > 64
    if is_float32 and not tf32:
        is_hopper = generation in HOPPER
        if is_wide:
            plan = AttentionPlan(128, 32, None, 8) if is_hopper else AttentionPlan(16, 32)
        elif are_few or queries <= 64:
            plan = AttentionPlan(16, 64, 2) if is_hopper else AttentionPlan(16, 32)
        elif is_hopper:
            plan = AttentionPlan(128, 32, None, 8)
        else:
            plan = AttentionPlan(64 if size <= 32 else 32, 32, None, 8)
    elif is_float32:
        side = 64 if not is_wide or generation in HOPPER else 32
        plan = AttentionPlan(side, side, None, 8) if is_wide else AttentionPlan(side, side, 2)
    elif generation in HOPPER:
        if 32 < size <= 128 < keys:
            plan = AttentionPlan(64, 128, 2, latency=3)
        else:
            plan = AttentionPlan(64, 64, 2 if is_wide else 4)
    elif generation == 12:
        plan = AttentionPlan(64, 64, 2) if is_wide else AttentionPlan(128, 128, 1, 8)
    else:
        plan = AttentionPlan(64, 64) if is_wide else AttentionPlan(128, 64, None, 8 if size <= 32 else None)
    # 16 x 16 spills on tensor cores; with 32 keys, half of them masked, it does not, but for wide heads in tf32
    least = 16 if tf32 and is_float32 and is_wide else 32
    return plan._replace(
        queries=min(plan.queries, max(16, power_of_two(queries))),
        keys=min(plan.keys, max(least, power_of_two(keys))),
    )
