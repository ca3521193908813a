"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import cuda_async as ca

from . import raw
from ._operands import (
    FLOATS,
    Operand,
    check_choice,
    check_dtype,
    check_flags,
    check_shape,
    first_of,
    following,
    is_count,
    mutable,
    output,
    power_of_two,
    rows_of,
    shape_error,
    tuned,
    with_later,
    with_tensors,
)
from ._plans import (
    ALL_FORMS,
    EIGHT_WARPS,
    ProductPlan,
    copy_pays,
    matvec_tile,
    multiprocessors,
    precision_of,
    product_plan,
)
from ._rows import transpose
from .raw._activations import ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cuda_async import DeviceOp, Tensor

    from ..jit import Kernel

__all__ = ["batched_matmul", "linear", "matmul", "matvec"]

FEW_ROWS = 4
"""Up to so many rows a product is done without tensor cores, where they do not take the type; one row always."""

GROUP = (8, 8)
"""Tiles that blocks which walk them take one group after the other, for their factors to stay in the L2 cache."""

SUM_TILE = (8, 64)
"""What a block adds up of a product in parts: there are few tiles of the product's own."""

_SLOW = ("gelu", "gelu_tanh")
"""Activations that a tile is done sooner with by more warps."""


def matmul(
    a: Operand,
    b: Operand,
    *,
    bias: Operand | None = None,
    activation: str = "none",
    residual: Operand | None = None,
    splits: int | None = None,
    persistent: bool | None = None,
    tf32: bool = False,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """activation(a @ b + bias) + residual, summed in float32 and rounded once.

    Args:
        a: (m, k). b: (k, n), of the same type. Either may be a transposed view, such as `weight.T`.
        bias: (n,). residual: (m, n). Any float type.
        activation: "none", "relu", "gelu", "gelu_tanh" or "silu".
        splits: parts that k is cut into, computed side by side in float32 and then added in order; chosen if left out.
        persistent: a fixed number of blocks walks the tiles of the result, instead of a block for each. Left out,
            these and two other forms are chosen from, by size.
        tf32: float32 factors are rounded to tfloat32. Else three products of parts of them make one that is as exact
            as float32 arithmetic.
        out: where the result goes; new memory if not given.
    Raises:
        ValueError: shapes that do not go together, an unknown activation. TypeError: an element type.
    """
    check_choice("matmul", "activation", activation, ACTIVATIONS)
    if splits is not None and not is_count(splits):
        raise ValueError(f"matmul: splits is a whole number from 1 on, got {splits!r}")
    check_flags("matmul", tf32=tf32)
    if persistent is not None:
        check_flags("matmul", persistent=persistent)
    if persistent and splits not in (None, 1):
        raise ValueError("matmul: persistent walks whole tiles; splits is for few tiles")
    multiply = _multiplied("matmul", ("a", "b"), activation, splits, persistent, tf32, out)
    return with_tensors("matmul", multiply, {"out": out}, optional=2, a=a, b=b, bias=bias, residual=residual)


def _multiplied(
    name: str,
    factors: tuple[str, str],
    activation: str,
    splits: int | None,
    persistent: bool | None,
    tf32: bool,
    out: Tensor | None,
) -> Callable[[Tensor, Tensor, Tensor | None, Tensor | None], DeviceOp[Tensor]]:
    """What `matmul` does with its tensors; `name` and `factors` are what messages call it and the first two."""

    def launch(a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None) -> DeviceOp[Tensor]:
        check_dtype(name, FLOATS, a=a, bias=bias, residual=residual)
        check_dtype(name, (a.dtype,), b=b)
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise shape_error(name, {"a": "m, k", "b": "k, n"}, a=a, b=b)
        (m, k), n = a.shape, b.shape[1]
        check_shape(name, (n,), bias=bias)
        check_shape(name, (m, n), residual=residual)
        plan = product_plan(a, m, n, k, tf32=tf32)
        product = _Product(a, b, bias, residual, activation, precision_of(a, tf32))
        steps = -(-k // plan.depth)  # a share has one at least: more shares would be sums of nothing
        parts = 1 if persistent else int(splits or 0) or _splits(plan, m, n, k, multiprocessors(a))
        parts = min(parts, max(1, steps))
        if persistent is not None:
            plan = plan._replace(form="persistent" if persistent else "blocks")
        elif parts == 1 and splits is None and m and n and k:
            plan = product_plan(a, m, n, k, tf32=tf32, forms=ALL_FORMS)
        if plan.num_worker_warps is None and plan.form == "persistent" and activation in _SLOW:
            plan = plan._replace(num_worker_warps=EIGHT_WARPS, occupancy=None, latency=None)
        later = {"bias": bias, "residual": residual, "out": out}
        copied = _copied(a, b, tf32)

        def made() -> DeviceOp[Tensor]:
            place = output(name, out, (m, n), a.dtype)
            return _along_rows(
                a, b, copied, lambda a, b: _made(plan, parts, place, product._replace(a=a, b=b))
            )

        if any(copied):
            later |= dict(zip(factors, (a, b), strict=True))
        return with_later(name, made, **later) if any(copied) or parts > 1 else made()

    return launch


def _made(
    plan: ProductPlan, parts: int, place: Tensor | DeviceOp[Tensor], product: _Product
) -> DeviceOp[Tensor]:
    """The product by what the plan says."""
    a, b, bias, residual, activation, precision = product
    (m, k), n = a.shape, b.shape[1]
    if parts > 1:
        return _in_parts(plan, parts, place, product)
    if plan.form == "pair":
        return _by_pairs(plan, place, product)
    if plan.form == "stationary":
        tile = (plan.rows, plan.columns, plan.depth)
        grid = (plan.sharing(m, n, multiprocessors(a)), -(-n // plan.columns))
        kernel = _hinted(raw.matmul_stationary, plan)
        more = (tile, -(-k // plan.depth), activation, precision, plan.latency)
        return kernel(mutable(place), a, b, bias, residual, *more).grid(grid).first()
    tiles = place.partition((plan.rows, plan.columns))
    rest = (a, b, bias, residual, plan.depth, activation, precision)
    if plan.form == "persistent":
        walk = _walked(tiles, GROUP, plan, plan.tiles(m, n), multiprocessors(a))
        return first_of(_hinted(raw.matmul_persistent, plan)(walk, *rest, plan.latency))
    return first_of(_hinted(raw.matmul_epilogue, plan)(tiles, *rest, plan.latency))


def _copied(a: Tensor, b: Tensor, tf32: bool) -> tuple[bool, bool]:
    """Whether the product of (..., m, k) and (..., k, n) is sooner done of copies that lie along the common axis."""
    return copy_pays(a, -1, b.shape[-1], tf32=tf32), copy_pays(b, -2, a.shape[-2], tf32=tf32)


def _along_rows(
    a: Tensor,
    b: Tensor,
    copied: tuple[bool, bool],
    multiply: Callable[[Tensor, Tensor], DeviceOp[Tensor]],
) -> DeviceOp[Tensor]:
    """`multiply(a, b)`, of copies where `_copied` says so."""
    copy_a, copy_b = copied
    if not copy_a and not copy_b:
        return multiply(a, b)
    first = transpose(_swapped(a)) if copy_a else ca.value(a)
    second = transpose(b).map(_swapped) if copy_b else ca.value(b)
    return ca.zip(first, second).then(lambda factors: multiply(*factors))


def _swapped(x: Tensor) -> Tensor:
    """(..., n, m) of (..., m, n)."""
    return x.permute(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)


class _Product(NamedTuple):
    """activation(a @ b + bias) + residual; shapes as for `matmul`."""

    a: Tensor
    b: Tensor
    bias: Tensor | None
    residual: Tensor | None
    activation: str
    precision: str


def _hinted(kernel: Kernel, plan: ProductPlan) -> Kernel:
    return tuned(
        kernel,
        num_ctas=plan.num_ctas,
        num_worker_warps=plan.num_worker_warps,
        occupancy=plan.occupancy,
    )


def _walked(tiles: Any, group: tuple[int, ...], plan: ProductPlan, count: int, enough: int) -> Any:
    """The `count` tiles, or the operation that gives them, for as many blocks to walk as the device runs at once."""
    blocks = min(max(1, count), enough * (plan.occupancy or 1) // plan.ctas or 1)
    if isinstance(tiles, ca.DeviceOp):
        return tiles.map(lambda tiles: tiles.map(group, blocks))
    return tiles.map(group, blocks)


def _in_parts(
    plan: ProductPlan,
    parts: int,
    place: Tensor | DeviceOp[Tensor],
    product: _Product,
) -> DeviceOp[Tensor]:
    """The common axis in parts, which are added then."""
    a, b, bias, residual, activation, precision = product
    shape = (parts, a.shape[0], b.shape[1])
    shares = ca.empty(shape, "float32").partition((1, plan.rows, plan.columns))
    made = _hinted(raw.matmul_split_k, plan)(shares, a, b, plan.depth, precision)
    whole = (plan.rows, plan.columns)
    # small tiles of a very wide product would be more than a grid has, and found so behind the first kernel
    is_wide = -(-shape[2] // SUM_TILE[1]) > a._buffer.device.limits.max_grid[1]
    tiles = place.partition(whole if is_wide else tuple(map(min, SUM_TILE, whole)))
    return first_of(following(raw.sum_splits)(tiles, first_of(made), bias, residual, activation))


def _by_pairs(
    plan: ProductPlan,
    place: Tensor | DeviceOp[Tensor],
    product: _Product,
) -> DeviceOp[Tensor]:
    """The first two thirds of the columns by a block's first tile, the others by its second."""
    a, b, bias, residual, activation, precision = product
    cut = b.shape[1] // plan.width * plan.columns
    first, second = slice(cut), slice(cut, None)
    kernel = _hinted(raw.matmul_pair, plan)

    def columns(tensor: Tensor | None, part: slice) -> Tensor | None:
        return None if tensor is None else tensor[..., part]

    def launch(place: Tensor) -> DeviceOp[Tensor]:
        return kernel(
            place[:, first].partition((plan.rows, plan.columns)),
            place[:, second].partition((plan.rows, plan.columns // 2)),
            a,
            *(columns(tensor, part) for tensor in (b, bias, residual) for part in (first, second)),
            plan.depth,
            activation,
            precision,
            plan.latency,
        ).map(lambda _: place)

    return place.then(launch) if isinstance(place, ca.DeviceOp) else launch(place)


def _splits(plan: ProductPlan, m: int, n: int, k: int, enough: int) -> int:
    """Parts of a product with too few tiles for the device; each keeps at least 16 steps."""
    return max(1, min(enough // max(1, plan.tiles(m, n)), -(-k // plan.depth) // 16, 16))


def linear(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    activation: str = "none",
    residual: Operand | None = None,
    tf32: bool = False,
    out: Tensor | None = None,
) -> DeviceOp[Tensor]:
    """activation(x @ weight.T + bias) + residual: a layer with its weight as models store it.

    With one row of x, as when a model generates token by token, it is a matrix-vector product that reads the weight
    once; with float32 numbers so it is with up to 4. Else it is `matmul`.

    Args:
        x: (..., k). weight: (n, k), of the same type; contiguous. bias: (n,). residual: (..., n).
        activation, tf32, out: as for `matmul`; the result is (..., n).
    """
    check_choice("linear", "activation", activation, ACTIVATIONS)
    check_flags("linear", tf32=tf32)
    return with_tensors(
        "linear",
        _layer("linear", activation, tf32, out),
        {"out": out},
        optional=2,
        x=x,
        weight=weight,
        bias=bias,
        residual=residual,
    )


def _layer(
    name: str, activation: str, tf32: bool, out: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor | None, Tensor | None], DeviceOp[Tensor]]:
    """What `linear` does with its tensors; `name` is what messages call it."""

    def launch(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> DeviceOp[Tensor]:
        check_dtype(name, FLOATS, x=x, bias=bias, residual=residual)
        check_dtype(name, (x.dtype,), weight=weight)
        if not x.ndim or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
            raise shape_error(name, {"x": "..., k", "weight": "n, k"}, x=x, weight=weight)
        n, k = weight.shape
        shape = (*x.shape[:-1], n)
        check_shape(name, (n,), bias=bias)
        check_shape(name, shape, residual=residual)
        rows = rows_of(name, x=x)
        m = rows.shape[0]
        more = None if residual is None else rows_of(name, residual=residual)
        if m <= (FEW_ROWS if x.dtype.itemsize == 4 else 1):
            place = output(name, out, shape, x.dtype, view=(m, n))
            columns, depth = matvec_tile(m, n, k, multiprocessors(x))
            tiles = place.partition((power_of_two(m), columns))
            kernel = tuned(raw.matvec, occupancy=8 if x.dtype.itemsize == 2 else 4, allow_tma=False)
            op = first_of(kernel(tiles, rows, weight, bias, more, depth, activation))
        else:
            place_now = None if out is None else output(name, out, shape, x.dtype, view=(m, n))
            assert not isinstance(place_now, ca.DeviceOp)
            op = _multiplied(name, ("x", "weight"), activation, None, None, tf32, place_now)(
                rows, weight.T, bias, more
            )
        return op if len(shape) == 2 else op.reshape(shape)

    return launch


def matvec(
    weight: Operand, x: Operand, bias: Operand | None = None, *, out: Tensor | None = None
) -> DeviceOp[Tensor]:
    """weight @ x + bias for a matrix (n, k) and a vector (k,): (n,). See `linear`."""

    def launch(weight: Tensor, x: Tensor, bias: Tensor | None) -> DeviceOp[Tensor]:
        if x.ndim != 1:
            raise shape_error("matvec", {"weight": "n, k", "x": "k"}, weight=weight, x=x)
        return _layer("matvec", "none", False, out)(x, weight, bias, None)

    return with_tensors("matvec", launch, {"out": out}, optional=1, weight=weight, x=x, bias=bias)


def batched_matmul(
    a: Operand, b: Operand, *, tf32: bool = False, out: Tensor | None = None
) -> DeviceOp[Tensor]:
    """a[i] @ b[i] for each i, summed in float32.

    Args:
        a: (batch, m, k). b: (batch, k, n), of the same type; any strides.
        tf32, out: as for `matmul`; the result is (batch, m, n).
    """
    check_flags("batched_matmul", tf32=tf32)

    def launch(a: Tensor, b: Tensor) -> DeviceOp[Tensor]:
        check_dtype("batched_matmul", FLOATS, a=a)
        check_dtype("batched_matmul", (a.dtype,), b=b)
        if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
            raise shape_error("batched_matmul", {"a": "batch, m, k", "b": "batch, k, n"}, a=a, b=b)
        (count, m, k), n = a.shape, b.shape[2]
        plan = product_plan(a, m, n, k, tf32=tf32, count=count)
        copied = _copied(a, b, tf32)

        def made() -> DeviceOp[Tensor]:
            place = output("batched_matmul", out, (count, m, n), a.dtype)
            tiles = place.partition((1, plan.rows, plan.columns))

            def multiply(a: Tensor, b: Tensor) -> DeviceOp[Tensor]:
                rest = (a, b, plan.depth, precision_of(a, tf32))
                if plan.form == "persistent":
                    walk = _walked(tiles, (1, *GROUP), plan, count * plan.tiles(m, n), multiprocessors(a))
                    kernel = _hinted(raw.batched_matmul_persistent, plan)
                    return first_of(kernel(walk, *rest, plan.latency))
                return first_of(_hinted(raw.batched_matmul, plan)(tiles, *rest))

            return _along_rows(a, b, copied, multiply)

        return with_later("batched_matmul", made, a=a, b=b, out=out) if any(copied) else made()

    return with_tensors("batched_matmul", launch, {"out": out}, a=a, b=b)
