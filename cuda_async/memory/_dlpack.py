"""DLPack: lending tensors to other array libraries, and borrowing theirs, without a copy.

Exporting. A capsule's destructor and the deleter in it are C functions that may be called on any thread, with an
exception in flight, at interpreter exit. A `ctypes` callback cannot be that: it loses the exception (a consumer that
refuses an element type then fails with a `SystemError`). NumPy has such functions. So the capsule is one that NumPy
makes of an array over the tensor's address, and the device and element type in it, which NumPy does not know, are
written over. NumPy never looks at the memory. Its deleter drops the array, and with it the `_Export` that keeps the
tensor's buffer.

Importing. The capsule is read through `ctypes` and marked as used, as the protocol wants; `_Borrowed` owns what was in
it and calls its deleter once, when the last user of the memory is gone.

Source: dlpack.h of DLPack 1.1; the Python array API standard, `__dlpack__`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _dtypes
from ._layout import MAX_AXES, check_reach, contiguous_strides

if TYPE_CHECKING:
    from ._buffer import Buffer
    from ._dtypes import DType
    from ._tensor import Tensor

__all__ = [
    "CPU",
    "CUDA",
    "CUDA_MANAGED",
    "CUDA_PINNED",
    "ForeignArray",
    "as_dlpack_device",
    "dlpack_device",
    "export_capsule",
    "import_capsule",
    "request_capsule",
]

CPU, CUDA, CUDA_PINNED, CUDA_MANAGED = 1, 2, 3, 13
"""Device types of DLPack that hold memory we can use."""
_HOSTS, _CUDAS = (CPU, CUDA_PINNED), (CUDA, CUDA_MANAGED)

NEWEST = (1, 1)
"""The version asked of producers: 1.1 has the 8-bit floats."""

_FLAG_READ_ONLY = 1

# type code of DLPack and the NumPy type of the same size that stands in for it
_TYPES: dict[str, tuple[int, str]] = {
    "bool": (6, "|b1"),
    **{f"int{8 * n}": (0, f"<i{n}") for n in (2, 4, 8)},
    **{f"uint{8 * n}": (1, f"<u{n}") for n in (2, 4, 8)},
    "int8": (0, "|i1"),
    "uint8": (1, "|u1"),
    **{f"float{8 * n}": (2, f"<f{n}") for n in (2, 4, 8)},
    "bfloat16": (4, "<u2"),
    "float8_e4m3fn": (10, "|u1"),
    "float8_e5m2": (12, "|u1"),
    "float8_e8m0fnu": (14, "|u1"),
}
_DTYPES: dict[tuple[int, int], DType] = {
    (code, 8 * _dtypes.DTYPES[name].itemsize): _dtypes.DTYPES[name] for name, (code, _) in _TYPES.items()
}
_CODE_NAMES = (
    *("int", "uint", "float", "opaque handle", "bfloat", "complex", "bool"),
    *(f"float8_{kind}" for kind in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")),
    *("float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
)


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor, of DLPack before 1.0."""

    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
_VERSIONED_NAME, _USED_VERSIONED_NAME = b"dltensor_versioned", b"used_dltensor_versioned"

# Prototypes of our own: the attributes of `ctypes.pythonapi` are shared with everybody.
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


# -------------------------------------------------------------------------------------- exporting


class _Export:
    """An array for NumPy over a tensor's memory, for as long as the consumer of a capsule holds it."""

    __slots__ = ("__array_interface__", "__weakref__", "_buffer")

    def __init__(self, tensor: Tensor, typestr: str) -> None:
        self._buffer: Buffer = tensor._buffer
        itemsize = tensor.dtype.itemsize
        # NumPy allocates where it is given no address; an empty array's is not looked at, only aligned.
        address = tensor._address if tensor.size else 256
        self.__array_interface__ = {
            "version": 3,
            "data": (address, self._buffer.read_only),
            "shape": tensor.shape,
            "strides": tuple(
                abs(s) * itemsize for s in tensor.strides
            ),  # < 0 only where there is one element
            "typestr": typestr,
        }

    def __del__(self) -> None:
        buffer = getattr(self, "_buffer", None)  # None where an interrupt came before it was made
        holders = None if buffer is None else buffer.holders
        if holders is not None:
            holders.discard(id(self))


def dlpack_device(tensor: Tensor) -> tuple[int, int]:
    """(type, number): the CPU for every simulated device."""
    device = tensor.device
    return (CUDA, device.ordinal) if device.kind == "cuda" else (CPU, 0)


def as_dlpack_device(value: Any, what: str) -> tuple[int, int]:
    """(type, number), from what a caller or another library gave; libraries give enumerations too.

    Raises:
        TypeError: no such pair; `what` begins the message.
    """
    try:
        kind, number = value
        return int(kind), int(number)
    except (TypeError, ValueError):
        raise TypeError(
            f"{what} {value!r}; expected a pair of whole numbers, DLPack's device type and the device's number"
        ) from None


def export_capsule(
    tensor: Tensor,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """What `Tensor.__dlpack__` returns."""
    here = dlpack_device(tensor)
    if dl_device is not None:
        wanted = as_dlpack_device(dl_device, "dl_device is")
        if wanted != here:
            raise BufferError(
                f"the tensor is on device {here} of DLPack's numbering, not on {wanted}; "
                "copy it over first, through the host with to_host()"
            )
    if copy:
        raise BufferError("exporting never copies; copy first with ca.copy(tensor), and export the copy")
    if any(n > 1 and stride < 0 for n, stride in zip(tensor.shape, tensor.strides)) and tensor.size:
        raise BufferError(
            f"strides {tensor.strides} are negative, which consumers do not take (torch 2.13 ends the process); "
            "copy first with ca.copy(tensor)"
        )
    buffer = tensor._buffer
    buffer.check_usable()
    code, typestr = _TYPES[tensor.dtype.name]
    export = _Export(tensor, typestr)
    tensor.device._lend(buffer, id(export), stream)
    capsule: object = np.asarray(export).__dlpack__(max_version=max_version)
    managed = _managed_of(capsule)
    inner = managed.tensor
    inner.device_type, inner.device_id = here
    inner.code = code
    if not tensor.size:
        inner.data = None
    if isinstance(managed, _Versioned) and tensor.dtype.name.startswith("float8"):
        managed.minor = max(managed.minor, NEWEST[1])
    return capsule


def _managed_of(capsule: object) -> _Managed | _Versioned:
    """The structure in a capsule.

    Raises:
        TypeError: it is none. BufferError: it was consumed already, or holds something else.
    """
    for name, layout in ((_VERSIONED_NAME, _Versioned), (_NAME, _Managed)):
        if _capsule_is_valid(capsule, name):
            return layout.from_address(_capsule_pointer(capsule, name))
    kind = type(capsule).__name__
    wrong = BufferError if kind == "PyCapsule" else TypeError
    raise wrong(f"expected a DLPack capsule that was not consumed yet, got {capsule!r}")


# -------------------------------------------------------------------------------------- importing


@dataclass(frozen=True, slots=True)
class ForeignArray:
    """An array in another library's memory.

    Attributes:
        address: of the first element. strides: in elements.
        owner: keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    read_only: bool
    owner: object


class _Borrowed:
    """What was in a consumed capsule. Calls the producer's deleter when it goes."""

    __slots__ = ("_address", "_deleter")

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address = address
        self._deleter = _Deleter(deleter) if deleter else None

    def __del__(self) -> None:
        deleter = getattr(self, "_deleter", None)
        if deleter is not None:
            self._deleter = None
            deleter(self._address)


def request_capsule(array: Any, stream: int | None) -> object:
    """Ask a producer for a capsule, of the newest version it has. `stream` is None for memory of the host."""
    arguments = {} if stream is None else {"stream": stream}
    try:
        return array.__dlpack__(max_version=NEWEST, **arguments)
    except TypeError:  # a producer from before DLPack 1.0
        return array.__dlpack__(**arguments)


def _same_memory(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether devices agree. Libraries differ in what they call pinned and managed memory; numbers count on CUDA."""
    if one[0] in _HOSTS:
        return other[0] in _HOSTS
    return (
        one[0] in _CUDAS and other[0] in _CUDAS and (one[1] == other[1] or CUDA_MANAGED in (one[0], other[0]))
    )


def import_capsule(capsule: object, device: tuple[int, int]) -> ForeignArray:
    """Take over what is in a capsule.

    Args:
        device: where the producer said that the array is.
    Raises:
        TypeError: an element type that is not supported. BufferError: a version that is not, a capsule of an array
            elsewhere, or a shape, strides or an address that no memory can have.
    """
    managed = _managed_of(capsule)
    read_only = False
    if isinstance(managed, _Versioned):
        if managed.major != NEWEST[0]:
            raise BufferError(
                f"the producer speaks DLPack {managed.major}.{managed.minor}; versions below 2 are understood"
            )
        read_only = bool(managed.flags & _FLAG_READ_ONLY)
    inner = managed.tensor
    found = (inner.device_type, inner.device_id)
    if not _same_memory(found, device):
        raise BufferError(
            f"__dlpack_device__() of the array says {device}, its capsule says {found} (DLPack's device type, and the "
            "device's number): the library that made them is wrong in one of them"
        )
    dtype = _DTYPES.get((inner.code, inner.bits)) if inner.lanes == 1 else None
    if dtype is None:
        name = _CODE_NAMES[inner.code] if inner.code < len(_CODE_NAMES) else "unknown"
        raise TypeError(
            f"DLPack element type with code {inner.code} ({name}), {inner.bits} bits, {inner.lanes} lanes "
            f"is not supported; these are, with 1 lane: {', '.join(_dtypes.DTYPES)}"
        )
    if not 0 <= inner.ndim <= MAX_AXES or (inner.ndim and not inner.shape):
        raise BufferError(f"the array has {inner.ndim} axes{'' if inner.shape else ' and no shape'}")
    shape = tuple(inner.shape[i] for i in range(inner.ndim))
    if inner.strides and 0 not in shape:
        strides = tuple(inner.strides[i] for i in range(inner.ndim))
    else:
        strides = contiguous_strides(shape)
    address = inner.data + inner.byte_offset if inner.data else 0
    check_reach(address, shape, strides, dtype.itemsize)
    if 0 not in shape and address % dtype.itemsize:
        raise BufferError(f"the array's address {address:#x} is not aligned for {dtype.name}; copy it first")
    used = _USED_VERSIONED_NAME if isinstance(managed, _Versioned) else _USED_NAME
    _capsule_set_name(capsule, used)
    owner = _Borrowed(ctypes.addressof(managed), managed.deleter)
    return ForeignArray(address, shape, strides, dtype, read_only, owner)
