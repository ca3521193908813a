"""Elementwise kernels. Each block computes its own tile of the output.

All but `add` and `saxpy` compute in float32, whatever the type of the tensors (float64 for float64).
"""

from __future__ import annotations

import tilekern as tk

from ._activations import activated, silu_of

__all__ = ["activation", "add", "mul", "saxpy", "silu_mul"]


def wide(x: tk.Tile) -> tk.Tile:
    """The tile as float32; float64 stays as it is."""
    if x.dtype is tk.float64:
        return x
    return x.astype(tk.float32)


@tk.kernel
def add(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D) -> None:
    """out = x + y, of tensors of one length."""
    out.store(tk.load_like(x, out) + tk.load_like(y, out))


@tk.kernel
def saxpy(y: tk.Tile1D, a: float, x: tk.Tensor1D) -> None:
    """y = a * x + y, in place; `a` is rounded to the type of the tensors."""
    y.store(a * tk.load_like(x, y) + y.load())


@tk.kernel
def mul(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D) -> None:
    """out = x * y, of tensors of one length."""
    out.store(tk.load_like(x, out) * tk.load_like(y, out))


@tk.kernel
def activation(out: tk.Tile1D, x: tk.Tensor1D, function: tk.Constant[str]) -> None:
    """out = function(x), for "relu", "gelu", "gelu_tanh" or "silu"; tensors of one length."""
    out.store(activated(wide(tk.load_like(x, out)), function).astype(out.dtype))


@tk.kernel
def silu_mul(out: tk.Tile2D, gate: tk.Tensor2D, up: tk.Tensor2D) -> None:
    """out = silu(gate) * up, all (rows, columns): the middle of a gated feed-forward layer."""
    t = silu_of(wide(tk.load_like(gate, out))) * wide(tk.load_like(up, out))
    out.store(t.astype(out.dtype))
