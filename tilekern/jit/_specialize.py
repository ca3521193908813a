"""What of a call's arguments is compiled in, and how they are passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from cuda_async import DeviceFuture, DeviceOp, MappedPartition, Mut, Partition, Read, Tensor

from ..dtypes import DType, bfloat16, bool_, dtype_of, float64, int32, int64, uint64
from ..errors import KernelArgumentError
from ..frontend import (
    ConstantSpec,
    GroupSpec,
    ParameterSpec,
    PartitionSpec,
    PointerSpec,
    ScalarSpec,
    TensorSpec,
)
from ..language import ArrayAnnotation
from ._meta import Meta, MetaMapped, MetaMut, MetaPartition
from ._parameters import Parameter
from ._written import IMPLICIT_CONSTANTS, Slot

__all__ = ["as_scalar", "flat_slots", "layout_problem", "packed", "specialize"]

_PARTITIONS = (Partition, MetaPartition, MappedPartition, MetaMapped)
_TENSORS = (Tensor, Read, Mut, Meta, MetaMut, *_PARTITIONS)


# ------------------------------------------------------------------ specs


def specialize(
    kernel: str, parameters: Sequence[Parameter], args: Sequence[object], max_divisibility: int
) -> tuple[ParameterSpec, ...]:
    """The specs of a call's arguments.

    Raises:
        KernelArgumentError: an argument its parameter does not take.
        OverflowError: an integer that fits no type its parameter can have.
    """
    return tuple([_spec(kernel, p, arg, max_divisibility) for p, arg in zip(parameters, args, strict=True)])


def _spec(kernel: str, parameter: Parameter, arg: object, limit: int) -> ParameterSpec:
    where = f"{kernel}: {parameter.name}"
    if parameter.kind == "constant":
        return _constant(where, parameter, arg)
    if isinstance(arg, _TENSORS):
        if parameter.kind == "group":
            raise KernelArgumentError(f"{where} is declared {parameter.declared}, got a tensor")
        if parameter.kind == "scalar":
            raise KernelArgumentError(f"{where} is declared {parameter.declared}, a number; got a tensor")
        if parameter.kind == "pointer":
            return _pointer_argument(where, parameter, arg, limit)
        return _tensor_argument(where, parameter, arg, limit)
    if parameter.kind in ("tensor", "partition", "pointer"):
        raise KernelArgumentError(f"{where} is declared {parameter.declared}, got {_describe(arg)}")
    if parameter.kind == "group":
        raise KernelArgumentError(f"{where} is declared {parameter.declared}, got {_describe(arg)}")
    if parameter.kind == "any" and isinstance(arg, IMPLICIT_CONSTANTS):
        return ConstantSpec(arg)
    dtype = as_scalar(where, parameter, arg)[0]
    return ScalarSpec(dtype, parameter.dtype is None and _is_loose(arg, dtype))


def _is_loose(arg: object, passed_as: DType) -> bool:
    """True for Python's ints and floats, and for what a parameter declared `int` or `float` makes one of."""
    if isinstance(arg, np.generic):
        return dtype_of(arg.dtype) is not passed_as
    return passed_as is not bool_


def _describe(arg: object) -> str:
    if isinstance(arg, np.ndarray):
        return "a NumPy array; bring it over with from_host()"
    if hasattr(arg, "__dlpack__") or hasattr(arg, "__cuda_array_interface__"):
        return f"a {type(arg).__module__}.{type(arg).__name__}; borrow it with from_dlpack()"
    if isinstance(arg, DeviceOp):
        return "an operation, which has not run; give the tensor it yields, or tk.meta(shape, dtype) in its place"
    if isinstance(arg, DeviceFuture):
        return "a DeviceFuture; await it, or give its operation in its place"
    if isinstance(arg, set | frozenset):
        return f"a {type(arg).__name__}; give a tuple"
    if hasattr(arg, "__dataclass_fields__"):
        return f"a {type(arg).__name__}, which can change; mark it @dataclass(frozen=True)"
    return f"{type(arg).__name__} {arg!r}"


def _constant(where: str, parameter: Parameter, arg: object) -> ConstantSpec:
    if parameter.group is not None and not isinstance(arg, parameter.group):
        raise KernelArgumentError(f"{where} is declared {parameter.declared}, got {_describe(arg)}")
    try:
        hash(arg)
    except TypeError:
        raise KernelArgumentError(
            f"{where} is a constant and must be hashable, got {type(arg).__name__}; use a tuple in place of a list"
        ) from None
    if isinstance(arg, _TENSORS):
        raise KernelArgumentError(f"{where} is a compile-time constant, got a tensor")
    return ConstantSpec(arg)


def _tensor_argument(where: str, parameter: Parameter, arg: object, limit: int) -> TensorSpec | PartitionSpec:
    is_partition = isinstance(arg, _PARTITIONS)
    is_mapped = isinstance(arg, MappedPartition | MetaMapped)
    tensor = arg if isinstance(arg, Tensor | Meta) else arg.tensor  # type: ignore[attr-defined]
    if parameter.kind == "mapped" and not is_mapped:
        raise KernelArgumentError(
            f"{where} is declared {parameter.declared}, tiles that a number of blocks walks; give it as "
            "tensor.partition(tile_shape).map(map_shape, tile_blocks)"
        )
    if parameter.kind == "partition" and is_mapped:
        raise KernelArgumentError(
            f"{where} is declared {parameter.declared}, one tile for each block, got a mapped partition; declare it "
            "tk.Tiles2D (or 1D, 3D), or give it without .map(...)"
        )
    if parameter.kind == "partition" and not is_partition:
        raise KernelArgumentError(
            f"{where} is declared {parameter.declared}, one tile for each block; give it as "
            "tensor.partition(tile_shape)"
        )
    if parameter.kind == "tensor" and is_partition:
        raise KernelArgumentError(
            f"{where} is declared {parameter.declared}, got a partition; declare it tk.Tile2D (or 1D, 3D), or "
            "give the tensor, with mut() to store to it"
        )
    rank = len(tensor.shape)
    if parameter.rank is not None and rank != parameter.rank:
        raise KernelArgumentError(
            f"{where} is declared {parameter.declared}, got a tensor of shape {tensor.shape}"
        )
    if rank == 0:
        raise KernelArgumentError(f"{where}: kernels take tensors of rank 1 and more; reshape it to (1,)")
    writable = is_partition or isinstance(arg, Mut | MetaMut)
    spec = _tensor_spec(where, tensor, writable, limit, parameter.array)
    if isinstance(arg, MappedPartition | MetaMapped):
        return PartitionSpec(spec, tuple(arg.tile_shape), tuple(arg.map_shape))
    if isinstance(arg, Partition | MetaPartition):
        return PartitionSpec(spec, tuple(arg.tile_shape))
    return spec


def _pointer_argument(where: str, parameter: Parameter, arg: object, limit: int) -> PointerSpec:
    if isinstance(arg, Partition | MetaPartition):
        raise KernelArgumentError(
            f"{where} is declared {parameter.declared}, got a partition; give the tensor, with mut() to store to it"
        )
    tensor: Any = arg if isinstance(arg, Tensor | Meta) else arg.tensor  # type: ignore[attr-defined]
    dtype = _element_type(where, tensor)
    if parameter.dtype is not None and dtype is not parameter.dtype:
        raise KernelArgumentError(
            f"{where} is declared {parameter.declared}, got a tensor of {dtype.name}; reinterpret it, or declare it "
            f"tk.Pointer[tk.{dtype.name}]"
        )
    return PointerSpec(dtype, isinstance(arg, Mut | MetaMut), _alignment(tensor, dtype, limit))


def _element_type(where: str, tensor: Any) -> DType:
    try:
        dtype = dtype_of(tensor.dtype)
    except TypeError as error:
        raise KernelArgumentError(f"{where}: {error}") from None
    return dtype


def _alignment(tensor: Any, dtype: DType, limit: int) -> int:
    """Bytes that the address is known to be a multiple of."""
    address = tensor.alignment if isinstance(tensor, Meta) else tensor._address
    return max(dtype.itemsize, min(limit, 16 if address % 16 == 0 else address & -address))


def _may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True unless every element is known to be memory of its own: each stride beyond all that smaller ones reach."""
    reached = 0
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent > 1 and stride <= reached:
            return True
        reached += stride * (extent - 1) if extent > 1 else 0
    return False


def layout_problem(shape: Sequence[int], strides: Sequence[int], is_written: bool) -> str | None:
    """Why a kernel takes no tensor of these strides, as what is said of it, or None if it does."""
    # the compiler knows no strides below 1; those of axes of length 0 and 1 do not matter
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if stride < 0 and extent > 1:
            return f"has a negative stride along axis {axis}"
    if is_written and 0 not in shape and _may_overlap(shape, strides):
        return (
            f"is stored to, and with shape {tuple(shape)} and strides {tuple(strides)} some of its elements "
            "may be the same memory"
        )
    return None


def _tensor_spec(
    where: str, tensor: Any, writable: bool, limit: int, declared: ArrayAnnotation | None
) -> TensorSpec:
    dtype = _element_type(where, tensor)
    shape, strides = tensor.shape, tensor.strides
    problem = layout_problem(shape, strides, writable)
    if problem is not None:
        raise KernelArgumentError(f"{where} {problem}; copy it first")
    span = sum(abs(stride) * max(extent - 1, 0) for extent, stride in zip(shape, strides, strict=True))
    narrow = max(span, *shape, *map(abs, strides)) <= int32.highest
    itemsize = dtype.itemsize
    index_dtype = int32 if narrow else int64
    static_shape: frozenset[int] = frozenset()
    known_strides = {axis for axis, stride in enumerate(strides) if stride == 1}
    if declared is not None:
        static_shape = _declared_axes(where, "static_shape_dims", declared.static_shape_dims, len(shape))
        if declared.static_stride_dims:
            axes = _declared_axes(where, "static_stride_dims", declared.static_stride_dims, len(shape))
            known_strides = {axis for axis in axes if strides[axis] > 0}
        if declared.index_dtype is int32 and not narrow:
            raise KernelArgumentError(
                f"{where} is declared with 32-bit indices, and its shape {tensor.shape} with strides {tensor.strides} "
                "needs 64 bits; leave index_dtype out, or say tk.int64"
            )
        index_dtype = declared.index_dtype or index_dtype
    return TensorSpec(
        dtype=dtype,
        shape=tuple([extent if axis in static_shape else None for axis, extent in enumerate(shape)]),
        strides=tuple([stride if axis in known_strides else None for axis, stride in enumerate(strides)]),
        writable=writable,
        index_dtype=index_dtype,
        alignment=_alignment(tensor, dtype, limit),
        shape_divisors=tuple([_divisor(extent, itemsize, limit) for extent in shape]),
        # a stride of 0 is a multiple of everything, but no stride that a tensor map of the GPU can have
        stride_divisors=tuple([_divisor(stride or 1, itemsize, limit) for stride in strides]),
    )


def _declared_axes(where: str, what: str, axes: tuple[int, ...], rank: int) -> frozenset[int]:
    for axis in axes:
        if not -rank <= axis < rank:
            raise KernelArgumentError(f"{where}: {what} names axis {axis} of a tensor with {rank} axes")
    return frozenset([axis % rank for axis in axes])


def _divisor(number: int, itemsize: int, limit: int) -> int:
    """16, what makes 16 bytes, or 1: the largest that `number` is known to be a multiple of."""
    for divisor in (16, 16 // itemsize if itemsize < 16 else 1):
        if divisor <= limit and number % divisor == 0:
            return divisor
    return 1


# ------------------------------------------------------------------ scalars


def as_scalar(where: str, parameter: Parameter, arg: object) -> tuple[DType, bool | int | float]:
    """The type and the value a number is passed with.

    Raises:
        KernelArgumentError: no number, or not of the declared kind.
        OverflowError: an integer that does not fit.
    """
    declared = parameter.dtype
    if isinstance(arg, np.generic):
        try:
            own = dtype_of(arg.dtype)
        except TypeError as error:
            raise KernelArgumentError(f"{where}: {error}") from None
        number: bool | int | float = float(arg) if own.is_float else arg.item()
        if declared is None and parameter.number is None:
            return own, number
        if declared is None and own.is_float == (parameter.number is float) and own is not bool_:
            return own, number
        arg = number
    if parameter.number is bool or declared is bool_:
        if type(arg) is not bool:
            raise KernelArgumentError(f"{where} is declared {parameter.declared}, got {_describe(arg)}")
        return bool_, arg
    if parameter.number is float or (declared is not None and declared.is_float):
        if not isinstance(arg, int | float):
            raise KernelArgumentError(f"{where} is declared {parameter.declared}, got {_describe(arg)}")
        try:
            return declared or float64, float(arg)
        except OverflowError:
            raise OverflowError(f"{where} is an int too large for {(declared or float64).name}") from None
    if isinstance(arg, bool) and declared is None and parameter.number is None:
        return bool_, arg
    if isinstance(arg, float) and declared is None and parameter.number is None:
        return float64, arg
    if not isinstance(arg, int):
        hint = (
            f"is declared {parameter.declared}, got"
            if parameter.declared
            else "takes tensors and numbers, got"
        )
        raise KernelArgumentError(f"{where} {hint} {_describe(arg)}")
    number = int(arg)
    choices = (int32, int64, uint64) if declared is None else (declared,)
    for dtype in choices:
        if dtype.holds(number):
            return dtype, number
    names = " or ".join(d.name for d in choices)
    raise OverflowError(f"{where} is {number}, which does not fit {names}")


def packed(dtype: DType, number: bool | int | float) -> bool | int | float:
    """A scalar as it is packed: a bfloat16 goes as its bits."""
    if dtype is bfloat16:
        return int(np.asarray(dtype.rounded(number), dtype.dtype).view(np.uint16))
    return number


# ------------------------------------------------------------------ flat arguments


def flat_slots(
    kernel: str,
    parameters: Sequence[Parameter],
    specs: Sequence[ParameterSpec],
    args: Sequence[Any],
) -> list[Slot]:
    """The flat arguments of a call: what belongs to its key as numbers, the others by the argument they are of."""
    slots: list[Slot] = []
    for index, (parameter, spec, arg) in enumerate(zip(parameters, _parts(specs), args, strict=True)):
        if isinstance(spec, ConstantSpec):
            continue
        if isinstance(spec, ScalarSpec):
            # an int without a declared type goes as it is: its range is part of the key
            plain = type(arg) is int and spec.loose and not spec.dtype.is_float
            convert = None if plain else _scalar_converter(f"{kernel}: {parameter.name}", parameter)
            slots.append(Slot(argument=index, convert=convert))
            continue
        assert not isinstance(spec, GroupSpec), "groups are taken apart"
        if isinstance(spec, PointerSpec):
            slots.append(Slot(argument=index))
            continue
        tensor_spec = spec.tensor if isinstance(spec, PartitionSpec) else spec
        tensor = arg if isinstance(arg, Tensor) else arg.tensor
        slots.append(Slot(argument=index, is_tensor=True))
        slots += [Slot(n) for n, known in zip(tensor.shape, tensor_spec.shape, strict=True) if known is None]
        slots += [
            Slot(n) for n, known in zip(tensor.strides, tensor_spec.strides, strict=True) if known is None
        ]
    return slots


def _parts(specs: Sequence[ParameterSpec]) -> Iterator[ParameterSpec]:
    for spec in specs:
        if isinstance(spec, GroupSpec):
            yield from _parts(spec.parts)
        else:
            yield spec


def _scalar_converter(where: str, parameter: Parameter) -> Callable[[Any], Any]:
    def convert(arg: object) -> bool | int | float:
        return packed(*as_scalar(where, parameter, arg))

    return convert
