"""Functions that kernels apply to a tile before they store it."""

from __future__ import annotations

import math

import tilekern as tk

__all__ = ["ACTIVATIONS", "activated", "gelu_of", "gelu_tanh_of", "silu_of"]

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
"""What `activated` knows by name."""


def gelu_of(x: tk.Tile) -> tk.Tile:
    """x times the share of a normal distribution below x, to within 2e-7 of |x|.

    max(x, 0) - |x| h(|x|), where h(a), the share above a, is 2 to the power of a polynomial. That was fitted to have h
    right to within 1e-8 for a up to 5.5, and falls from there on, to where the power is 0 at 16.
    """
    size = tk.minimum(tk.abs(x), 16.0, propagate_nan=True)
    power = tk.fma(size, -3.06842867e-06, 4.20986507e-05)
    power = tk.fma(size, power, -0.000198686917)
    power = tk.fma(size, power, -0.000107932618)
    power = tk.fma(size, power, 0.00702744164)
    power = tk.fma(size, power, -0.0524729379)
    power = tk.fma(size, power, -0.459215134)
    power = tk.fma(size, power, -1.15110445)
    power = tk.fma(size, power, -1.0)
    return tk.fma(-size, tk.exp2(power, flush_to_zero=True), tk.maximum(x, 0.0))


def gelu_tanh_of(x: tk.Tile) -> tk.Tile:
    """The approximation of `gelu_of` by a hyperbolic tangent (Hendrycks and Gimpel 2016).

    (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)).
    """
    minus_2u = x * tk.fma(x * x, -2 * 0.044715 * math.sqrt(2 / math.pi), -2 * math.sqrt(2 / math.pi))
    above = 1.0 + tk.exp2(minus_2u * math.log2(math.e), flush_to_zero=True)
    return tk.truediv(x, above, rounding_mode=tk.RoundingMode.APPROX, flush_to_zero=True)


def silu_of(x: tk.Tile) -> tk.Tile:
    """x times its logistic function."""
    return tk.truediv(x, 1.0 + tk.exp(-x), rounding_mode=tk.RoundingMode.APPROX, flush_to_zero=True)


def activated(x: tk.Tile, activation: str) -> tk.Tile:
    """The function named `activation` of a float32 tile."""
    if activation == "relu":
        return tk.maximum(x, 0.0)
    if activation == "gelu":
        return gelu_of(x)
    if activation == "gelu_tanh":
        return gelu_tanh_of(x)
    if activation == "silu":
        return silu_of(x)
    tk.static_assert(activation == "none", "the activations are none, relu, gelu, gelu_tanh and silu")
    return x
