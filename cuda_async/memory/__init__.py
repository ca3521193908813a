"""Device memory: buffers and their last uses, tensors and views, partitions, pinned staging, dtypes.

Nothing here enqueues work or knows streams: a `Usage` holds them as plain keys, and freeing is a note left
for the reaper (`cuda_async.scheduling`).
"""

from ._access import Mut, Read, mut, read
from ._array_interface import numpy_array, parse_cuda_array_interface
from ._buffer import Buffer, FreeNote
from ._dlpack import (
    CPU,
    CUDA,
    CUDA_MANAGED,
    CUDA_PINNED,
    ForeignArray,
    as_dlpack_device,
    import_capsule,
    request_capsule,
)
from ._dtypes import (
    DTYPES,
    EXPONENTS,
    DType,
    as_dtype,
    bfloat16,
    bool_,
    fill_pattern,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ._layout import ShapeLike, as_shape, contiguous_strides, extent, shares_elements
from ._op_factory import OpFactory, install
from ._partition import MappedPartition, Partition
from ._pinned import PinnedBlock, PinnedPool, free_left_behind
from ._tensor import Tensor, host_view
from ._usage import Usage

__all__ = [
    "CPU",
    "CUDA",
    "CUDA_MANAGED",
    "CUDA_PINNED",
    "DTYPES",
    "EXPONENTS",
    "Buffer",
    "DType",
    "ForeignArray",
    "FreeNote",
    "MappedPartition",
    "Mut",
    "OpFactory",
    "Partition",
    "PinnedBlock",
    "PinnedPool",
    "Read",
    "ShapeLike",
    "Tensor",
    "Usage",
    "as_dlpack_device",
    "as_dtype",
    "as_shape",
    "bfloat16",
    "bool_",
    "contiguous_strides",
    "extent",
    "fill_pattern",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "free_left_behind",
    "host_view",
    "import_capsule",
    "install",
    "int8",
    "int16",
    "int32",
    "int64",
    "mut",
    "numpy_array",
    "parse_cuda_array_interface",
    "read",
    "request_capsule",
    "shares_elements",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
