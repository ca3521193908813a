"""Elementwise functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from . import raw
from ._operands import (
    FLOATS,
    Operand,
    check_choice,
    check_dtype,
    check_rows,
    check_shape,
    first_of,
    is_number,
    key_of,
    occupancy_of,
    output,
    power_of_two,
    rows_of,
    tuned,
    vector_tile,
    viewed,
    with_tensors,
)

if TYPE_CHECKING:
    from cuda_async import DeviceOp, Tensor

    from ..jit import Kernel

__all__ = ["add", "dropout", "gelu", "mul", "silu_mul"]


def add(x: Operand, y: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """x + y, of tensors of one shape and element type; contiguous.

    Args:
        out: where the result goes; new memory if not given.
    Raises:
        ValueError: shapes differ. TypeError: an element type other than float16, bfloat16 and float32.
    """
    return with_tensors("add", lambda x, y: _both("add", raw.add, x, y, out), {"out": out}, x=x, y=y)


def mul(x: Operand, y: Operand, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """x * y, element by element; see `add`."""
    return with_tensors("mul", lambda x, y: _both("mul", raw.mul, x, y, out), {"out": out}, x=x, y=y)


def _both(name: str, kernel: Kernel, x: Tensor, y: Tensor, out: Tensor | None) -> DeviceOp[Tensor]:
    check_dtype(name, FLOATS, x=x)
    check_dtype(name, (x.dtype,), y=y)
    check_shape(name, x.shape, y=y)
    place = output(name, out, x.shape, x.dtype, view=(-1,)).partition(vector_tile(x.size))
    return first_of(kernel(place, viewed(name, (-1,), x=x), viewed(name, (-1,), y=y)), x.shape)


def gelu(
    x: Operand, *, approximate: Literal["none", "tanh"] = "none", out: Tensor | None = None
) -> DeviceOp[Tensor]:
    """x times the share of a normal distribution that lies below x, element by element; contiguous.

    Args:
        approximate: "tanh" is the usual approximation of it; "none" is right to within 2e-7 of |x|.
        out: where the result goes; new memory if not given.
    """
    check_choice("gelu", "approximate", approximate, ("none", "tanh"))
    function = "gelu" if approximate == "none" else "gelu_tanh"

    def launch(x: Tensor) -> DeviceOp[Tensor]:
        check_dtype("gelu", FLOATS, x=x)
        place = output("gelu", out, x.shape, x.dtype, view=(-1,)).partition(vector_tile(x.size, 1024))
        kernel = tuned(raw.activation, occupancy=8)
        return first_of(kernel(place, viewed("gelu", (-1,), x=x), function), x.shape)

    return with_tensors("gelu", launch, {"out": out}, x=x)


def silu_mul(gate: Operand, up: Operand | None = None, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """gate / (1 + exp(-gate)) * up: the middle of a gated feed-forward layer.

    Args:
        gate, up: (..., columns), of one shape and element type; rows may have gaps between them. Without `up`, `gate`
            is (..., 2 * columns) and holds both, as one matrix product for the two makes them.
        out: where the result goes; new memory if not given.
    """

    def launch(gate: Tensor, up: Tensor | None) -> DeviceOp[Tensor]:
        check_dtype("silu_mul", FLOATS, gate=gate, up=up)
        check_rows("silu_mul", gate)
        rows = rows_of("silu_mul", gate=gate)
        if up is None:
            if gate.shape[-1] % 2:
                raise ValueError(
                    f"silu_mul: gate {gate.shape} has an odd number of columns; it holds two halves"
                )
            half = gate.shape[-1] // 2
            rows, others = rows[:, :half], rows[:, half:]
        else:
            check_shape("silu_mul", gate.shape, up=up)
            check_dtype("silu_mul", (gate.dtype,), up=up)
            others = rows_of("silu_mul", up=up)
        count, columns = rows.shape
        width = min(1024, power_of_two(columns))
        tile = (min(max(1, 1024 // width), power_of_two(count)), width)
        shape = (*gate.shape[:-1], columns)
        place = output("silu_mul", out, shape, gate.dtype, view=(count, columns)).partition(tile)
        kernel = tuned(raw.silu_mul, occupancy=occupancy_of(2048))
        return first_of(kernel(place, rows, others), shape)

    return with_tensors("silu_mul", launch, {"out": out}, optional=1, gate=gate, up=up)


def dropout(x: Operand, share: float, seed: int, *, out: Tensor | None = None) -> DeviceOp[Tensor]:
    """x with each element made 0 with the chance `share`, the others divided by 1 - share; contiguous.

    Which elements is decided by the seed and the element's place alone: the same call on the gradient is the
    way back. Philox 4x32-10, the numbers of `tk.rand(x.shape, seed=seed)`; those below `share` are dropped.

    Args:
        share: from 0 to below 1. seed: from 0 to 2**64 - 1.
        out: where the result goes; new memory if not given.
    """
    if not is_number(share) or not 0.0 <= share < 1.0:
        raise ValueError(f"dropout: share is a number from 0 to below 1, got {share!r}")
    k0, k1 = key_of("dropout", seed)

    def launch(x: Tensor) -> DeviceOp[Tensor]:
        check_dtype("dropout", FLOATS, x=x)
        tile = max(4, vector_tile(x.size))  # Philox makes four numbers at once
        place = output("dropout", out, x.shape, x.dtype, view=(-1,)).partition(tile)
        return first_of(raw.dropout(place, viewed("dropout", (-1,), x=x), float(share), k0, k1), x.shape)

    return with_tensors("dropout", launch, {"out": out}, x=x)
