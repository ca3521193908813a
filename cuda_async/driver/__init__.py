"""The interface to a device, and its two implementations.

`_protocol.py` is the interface; `cuda/` talks to the CUDA driver; `host/` is the simulated device.
"""

from ._arguments import ArgumentBlock
from ._graph import (
    ChildNode,
    ConditionalNode,
    ConditionKind,
    ConvertNode,
    CopyNode,
    EmptyNode,
    FillNode,
    ForeignNode,
    GraphHandle,
    KernelNode,
    Node,
    StridedCopyNode,
    leaves,
)
from ._protocol import (
    DeviceLimits,
    DeviceProperties,
    Driver,
    EventHandle,
    FunctionHandle,
    FunctionInfo,
    HostFunction,
    HostImage,
    HostLaunch,
    ModuleHandle,
    ParameterInfo,
    ParameterKind,
    PoolStatistics,
    StreamHandle,
)

__all__ = [
    "ArgumentBlock",
    "ChildNode",
    "ConditionKind",
    "ConditionalNode",
    "ConvertNode",
    "CopyNode",
    "DeviceLimits",
    "DeviceProperties",
    "Driver",
    "EmptyNode",
    "EventHandle",
    "FillNode",
    "ForeignNode",
    "FunctionHandle",
    "FunctionInfo",
    "GraphHandle",
    "HostFunction",
    "HostImage",
    "HostLaunch",
    "KernelNode",
    "ModuleHandle",
    "Node",
    "ParameterInfo",
    "ParameterKind",
    "PoolStatistics",
    "StreamHandle",
    "StridedCopyNode",
    "leaves",
]
