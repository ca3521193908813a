"""What a specialised kernel knows of each argument: the part of it that is compiled in.

Two calls whose specs are equal run the same code. The flat parameters of the compiled entry follow from
them, in order:

    tensor, partition   address, then the dimensions, then the strides that are not known already
    pointer             address
    scalar              the value
    constant            nothing
    group               those of its parts
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType

__all__ = [
    "ConstantSpec",
    "GroupSpec",
    "ParameterSpec",
    "PartitionSpec",
    "PointerSpec",
    "ScalarSpec",
    "TensorSpec",
]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor.

    Attributes:
        dtype: element type.
        shape: known dimensions; None is a parameter of the launch.
        strides: known strides in elements; None is a parameter of the launch.
        writable: given as `mut`.
        index_dtype: int32 or int64, the type of the dimensions and strides passed.
        alignment: bytes the address is a multiple of, a power of two.
        shape_divisors: power of two each dimension is a multiple of.
        stride_divisors: power of two each stride is a multiple of.
    """

    dtype: DType
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    writable: bool
    index_dtype: DType
    alignment: int
    shape_divisors: tuple[int, ...]
    stride_divisors: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A tensor cut into tiles of `tile_shape`, one for each block, or walked by all blocks in groups of `map_shape`."""

    tensor: TensorSpec
    tile_shape: tuple[int, ...]
    map_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PointerSpec:
    """The address of a tensor's first element.

    Attributes:
        dtype: of what is there.
        writable: given as `mut`.
        alignment: bytes the address is a multiple of, a power of two.
    """

    dtype: DType
    writable: bool
    alignment: int


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A number passed at launch.

    Attributes:
        dtype: how it is passed.
        loose: a Python number, which takes its type from what it meets.
    """

    dtype: DType
    loose: bool = False


@dataclass(frozen=True, slots=True)
class ConstantSpec:
    """A value compiled in."""

    value: object


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Several arguments in one: a tuple, named tuple, dict or frozen dataclass.

    Attributes:
        cls: the class of a named tuple or dataclass.
        keys: of a dict.
        parts: what is known of each part, in order.
    """

    cls: type | None
    keys: tuple[object, ...] | None
    parts: tuple[ParameterSpec, ...]


ParameterSpec = TensorSpec | PartitionSpec | PointerSpec | ScalarSpec | ConstantSpec | GroupSpec
