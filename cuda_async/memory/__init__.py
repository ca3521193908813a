"""Device memory: buffers and their last uses, tensors and views, partitions, pinned staging, dtypes.

Nothing here enqueues work or knows streams: a `Usage` holds them as plain keys, and freeing is a note left
for the reaper (`cuda_async.scheduling`).
"""

from ._access import Mut, Read, mut, read
from ._buffer import Buffer, FreeNote
from ._dtypes import (
    DTYPES,
    DType,
    as_dtype,
    bfloat16,
    bool_,
    fill_pattern,
    float8_e4m3fn,
    float8_e5m2,
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
from ._layout import as_shape, contiguous_strides, extent
from ._op_factory import OpFactory, install
from ._partition import MappedPartition, Partition
from ._pinned import PinnedBlock, PinnedPool
from ._tensor import Tensor, host_view
from ._usage import Usage

__all__ = [
    "DTYPES",
    "Buffer",
    "DType",
    "FreeNote",
    "MappedPartition",
    "Mut",
    "OpFactory",
    "Partition",
    "PinnedBlock",
    "PinnedPool",
    "Read",
    "Tensor",
    "Usage",
    "as_dtype",
    "as_shape",
    "bfloat16",
    "bool_",
    "contiguous_strides",
    "extent",
    "fill_pattern",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "host_view",
    "install",
    "int8",
    "int16",
    "int32",
    "int64",
    "mut",
    "read",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
