"""Functions that kernels apply to a tile before they store it."""

from __future__ import annotations

import math

import tilekern as tk

__all__ = ["ACTIVATIONS", "activated", "erf", "gelu_of", "gelu_tanh_of", "silu_of"]

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
"""What `activated` knows by name."""


def erf(x: tk.Tile) -> tk.Tile:
    """The error function of a float32 tile, to within 3e-7.

    1 - t (a1 + t (a2 + ...)) exp(-x^2) with t = 1 / (1 + p |x|); Abramowitz and Stegun, "Handbook of
    Mathematical Functions", 7.1.26.
    """
    size = tk.abs(x)
    # Half of the time of a product with this behind it went into rounding a division and an exponential exactly.
    t = tk.truediv(1.0, 1.0 + 0.3275911 * size, rounding_mode=tk.RoundingMode.APPROX, flush_to_zero=True)
    series = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    value = 1.0 - t * series * tk.exp2(size * size * -math.log2(math.e), flush_to_zero=True)
    return tk.where(x < 0.0, -value, value)


def gelu_of(x: tk.Tile) -> tk.Tile:
    """x times the share of a normal distribution below x."""
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


def gelu_tanh_of(x: tk.Tile) -> tk.Tile:
    """The approximation of `gelu_of` by a hyperbolic tangent (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1.0 + tk.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def silu_of(x: tk.Tile) -> tk.Tile:
    """x times its logistic function."""
    return x / (1.0 + tk.exp(-x))


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
