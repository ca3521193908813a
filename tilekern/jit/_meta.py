"""Stand-ins for tensors, to compile a kernel without any memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike

from cuda_async.memory import as_dtype, as_shape

from ..dtypes import DType, float4_e2m1fn

__all__ = ["Meta", "MetaMapped", "MetaMut", "MetaPartition", "make_meta"]


@dataclass(frozen=True)
class Meta:
    """A tensor without memory: shape, strides in elements, element type, what its address is a multiple of.

    Made by `meta`. Stands for a tensor in `kernel.compile`, `kernel.ir` and `kernel.tile_ir`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    strides: tuple[int, ...]
    alignment: int = 256

    def partition(self, tile_shape: Sequence[int] | int) -> MetaPartition:
        """As `Tensor.partition`."""
        shape = as_shape(tile_shape)
        if len(shape) != len(self.shape) or not all(side > 0 for side in shape):
            raise ValueError(f"tile shape {shape} does not fit a tensor of shape {self.shape}")
        return MetaPartition(self, shape)

    def partition_prefix(self, tile_shape: Sequence[int] | int) -> MetaPartition:
        """As `Tensor.partition_prefix`."""
        return replace(self.partition(tile_shape), prefix=True)

    def mut(self) -> MetaMut:
        """As `ca.mut(tensor)`."""
        return MetaMut(self)


@dataclass(frozen=True)
class MetaPartition:
    """A partition without memory; made by `Meta.partition`."""

    tensor: Meta
    tile_shape: tuple[int, ...]
    prefix: bool = False

    @property
    def grid(self) -> tuple[int, ...]:
        """Tiles per axis."""
        return tuple([-(-n // t) for n, t in zip(self.tensor.shape, self.tile_shape, strict=True)])

    def map(self, map_shape: Sequence[int] | int, tile_blocks: int = 1) -> MetaMapped:
        """As `Partition.map`."""
        shape = as_shape(map_shape)
        if len(shape) != len(self.tile_shape) or not any(shape):
            raise ValueError(f"map shape {shape} must have {len(self.tile_shape)} axes, not all of them 0")
        return MetaMapped(self, shape, tile_blocks)


@dataclass(frozen=True)
class MetaMapped:
    """A mapped partition without memory; made by `MetaPartition.map`."""

    partition: MetaPartition
    map_shape: tuple[int, ...]
    tile_blocks: int

    @property
    def tensor(self) -> Meta:
        """The tensor that is cut."""
        return self.partition.tensor

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Elements per tile and axis."""
        return self.partition.tile_shape

    @property
    def grid(self) -> tuple[int, ...]:
        """The launch grid."""
        return (self.tile_blocks, 1, 1)


@dataclass(frozen=True)
class MetaMut:
    """A tensor without memory given for writing; made by `Meta.mut`."""

    tensor: Meta


def make_meta(
    shape: Sequence[int] | int,
    dtype: DType | DTypeLike,
    strides: Sequence[int] | None = None,
    alignment: int = 256,
) -> Meta:
    """`meta`, as users call it."""
    sides = as_shape(shape)
    if strides is None:
        strides = [math.prod(sides[axis + 1 :]) for axis in range(len(sides))]
    if len(strides) != len(sides):
        raise ValueError(f"{len(strides)} strides for {len(sides)} axes; give one per axis")
    kind = dtype.dtype if isinstance(dtype, DType) else dtype
    if kind == float4_e2m1fn.dtype:
        raise TypeError(
            "in memory two float4_e2m1fn share a byte, and NumPy gives each its own; give the packed bytes as uint8, "
            "and use tk.unpack_from_bytes(tile, tk.float4_e2m1fn)"
        )
    kind = as_dtype(kind)
    return Meta(sides, kind, tuple(map(operator.index, strides)), alignment)
