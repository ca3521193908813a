"""Operations: `DeviceOp`, its combinators, creation, copies, raw kernels, and how they are run.

`_op` is the base, `_execution` the machine that runs a tree of operations, `_future` what `start()` returns,
`_shared` the operations that run once; `_creation`, `_copies`, `_module`, `_launch` and `_foreign` are what enqueues.
"""

from ._combinators import collect, parallel, value, with_context, zip_ops
from ._context import ExecutionContext, check_operand
from ._copies import astype, copy, fill, memcpy, to_host
from ._creation import empty, from_host, full, ones, zeros
from ._foreign import foreign, from_cuda_array_interface, from_dlpack, from_foreign
from ._future import DeviceFuture
from ._launch import BoundLaunch, Launch, check_aliases
from ._module import Function, LoadedFunction, Module
from ._op import DeviceOp
from ._shared import SharedOp, shared

__all__ = [
    "BoundLaunch",
    "DeviceFuture",
    "DeviceOp",
    "ExecutionContext",
    "Function",
    "Launch",
    "LoadedFunction",
    "Module",
    "SharedOp",
    "astype",
    "check_aliases",
    "check_operand",
    "collect",
    "copy",
    "empty",
    "fill",
    "foreign",
    "from_cuda_array_interface",
    "from_dlpack",
    "from_foreign",
    "from_host",
    "full",
    "memcpy",
    "ones",
    "parallel",
    "shared",
    "to_host",
    "value",
    "with_context",
    "zeros",
    "zip_ops",
]
