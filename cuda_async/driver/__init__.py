"""The interface to a device, and its two implementations.

`_protocol.py` is the interface; `cuda/` talks to the CUDA driver; `host/` is the simulated device. What graphs are
made of has a door of its own, `driver.graph`, which only programs that have graphs import.
"""

from ._arguments import ArgumentBlock, DeclaredUse, DeclaredUses
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
    "DeclaredUse",
    "DeclaredUses",
    "DeviceLimits",
    "DeviceProperties",
    "Driver",
    "EventHandle",
    "FunctionHandle",
    "FunctionInfo",
    "HostFunction",
    "HostImage",
    "HostLaunch",
    "ModuleHandle",
    "ParameterInfo",
    "ParameterKind",
    "PoolStatistics",
    "StreamHandle",
]
