"""asyncio-native GPU execution: lazy operations, awaited, on a GPU or on a simulated device.

`import cuda_async as ca`. Operations (`DeviceOp`) come from `empty`, `from_host`, `Function.launch` and their
like, are combined with `.then`, `zip`, `parallel` and `.shared`, and run with `await`, `.sync()` or `.start()`.
Which device they run on is `current_device()`; `use_device(...)` changes it.

Layout: `driver` (the device interface), `memory`, `scheduling`, `ops`, `graph`; each imports only those before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import errors
from .errors import (
    AliasError,
    CaptureError,
    ClosedError,
    CompileError,
    ConsumedError,
    ContextError,
    CudaAsyncError,
    DeviceLostError,
    DriverError,
    LaunchError,
    OperationCancelledError,
    OutOfMemoryError,
    ReentrancyError,
    SchedulingError,
    StaleOutputError,
)
from .memory import (
    MappedPartition,
    Mut,
    Partition,
    Read,
    Tensor,
    bfloat16,
    bool_,
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
    mut,
    read,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .ops import (
    BoundLaunch,
    DeviceFuture,
    DeviceOp,
    ExecutionContext,
    Function,
    Launch,
    Module,
    SharedOp,
    astype,
    collect,
    copy,
    empty,
    fill,
    foreign,
    from_cuda_array_interface,
    from_dlpack,
    from_foreign,
    from_host,
    full,
    memcpy,
    ones,
    parallel,
    shared,
    to_host,
    value,
    with_context,
    zeros,
)
from .ops import zip_ops as zip  # noqa: A004 - ca.zip; nothing here uses the builtin
from .scheduling import (
    Device,
    Event,
    LeastLoaded,
    MemoryStatistics,
    PendingWait,
    PriorityStreams,
    SchedulingPolicy,
    SingleStream,
    Stream,
    StreamPoolRoundRobin,
    current_device,
    devices,
    drain,
    pending_waits,
    set_watchdog,
    use_device,
    use_policy,
)
from .scheduling import call_behind_opening as _call_behind_opening

if TYPE_CHECKING:
    from .graph import CudaGraph, GraphCache, GraphNode, graph_input, if_else, while_loop

_OF_GRAPH = ("CudaGraph", "GraphCache", "GraphNode", "graph_input", "if_else", "while_loop")
"""Names that are imported on first use: many programs have no graph."""

__all__ = [
    "AliasError",
    "BoundLaunch",
    "CaptureError",
    "ClosedError",
    "CompileError",
    "ConsumedError",
    "ContextError",
    "CudaAsyncError",
    "CudaGraph",
    "Device",
    "DeviceFuture",
    "DeviceLostError",
    "DeviceOp",
    "DriverError",
    "Event",
    "ExecutionContext",
    "Function",
    "GraphCache",
    "GraphNode",
    "Launch",
    "LaunchError",
    "LeastLoaded",
    "MappedPartition",
    "MemoryStatistics",
    "Module",
    "Mut",
    "OperationCancelledError",
    "OutOfMemoryError",
    "Partition",
    "PendingWait",
    "PriorityStreams",
    "Read",
    "ReentrancyError",
    "SchedulingError",
    "SchedulingPolicy",
    "SharedOp",
    "SingleStream",
    "StaleOutputError",
    "Stream",
    "StreamPoolRoundRobin",
    "Tensor",
    "astype",
    "bfloat16",
    "bool_",
    "collect",
    "copy",
    "current_device",
    "devices",
    "drain",
    "empty",
    "errors",
    "fill",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "foreign",
    "from_cuda_array_interface",
    "from_dlpack",
    "from_foreign",
    "from_host",
    "full",
    "graph_input",
    "if_else",
    "int8",
    "int16",
    "int32",
    "int64",
    "memcpy",
    "mut",
    "ones",
    "parallel",
    "pending_waits",
    "read",
    "set_watchdog",
    "shared",
    "to_host",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "use_device",
    "use_policy",
    "value",
    "while_loop",
    "with_context",
    "zeros",
    "zip",
]


def _import_graph() -> object:
    from . import graph

    return graph


_call_behind_opening(_import_graph)


def __getattr__(name: str) -> object:
    if name in _OF_GRAPH:
        value: object = getattr(_import_graph(), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_OF_GRAPH]
