"""Elementwise kernels. Each block computes its own tile of the output."""

from __future__ import annotations

import tilekern as tk

__all__ = ["add", "saxpy"]


@tk.kernel
def add(out: tk.Tile1D, x: tk.Tensor1D, y: tk.Tensor1D) -> None:
    """out = x + y, of tensors of one length."""
    out.store(tk.load_like(x, out) + tk.load_like(y, out))


@tk.kernel
def saxpy(y: tk.Tile1D, a: float, x: tk.Tensor1D) -> None:
    """y = a * x + y, in place; `a` is rounded to the type of the tensors."""
    y.store(a * tk.load_like(x, y) + y.load())
