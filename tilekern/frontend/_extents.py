"""Dimensions of tensor parameters, as the launch knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._terms import Term, argument, constant, quotient

if TYPE_CHECKING:
    from ._values import OwnedTileValue, TensorValue

__all__ = ["dimension", "tile_count"]


def dimension(tensor: TensorValue, axis: int) -> Term:
    """The dimension along an axis."""
    extent, flat = tensor.shape[axis], tensor.flat[axis]
    if flat is not None:
        return argument(flat, f"{tensor.name}_shape{axis}")
    assert isinstance(extent, int)
    return constant(extent)


def tile_count(out: OwnedTileValue, axis: int) -> Term:
    """The number of a partition's tiles along an axis."""
    return quotient(dimension(out.tensor, axis), constant(out.tile_shape[axis]), up=True)
