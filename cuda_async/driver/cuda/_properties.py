"""Asking the driver what a device is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._protocol import DeviceLimits, DeviceProperties

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["read_properties"]

PORTABLE_CLUSTER_BLOCKS = 8
LARGEST_CLUSTER_BLOCKS = 16


def read_properties(api: Any, call: Callable[..., Any], device: Any) -> DeviceProperties:
    """Everything that does not change about `device`, whose context is the current one.

    Args:
        api: the module `cuda.bindings.driver`.
        call: `DriverCalls._call`.
        device: the `CUdevice`.
    """
    attributes = api.CUdevice_attribute

    def get(name: str) -> int:
        return int(call("cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    version = int(call("cuDriverGetVersion"))
    capability = (get("COMPUTE_CAPABILITY_MAJOR"), get("COMPUTE_CAPABILITY_MINOR"))
    least, greatest = call("cuCtxGetStreamPriorityRange")
    name = call("cuDeviceGetName", 256, device).partition(b"\0")[0].decode("utf-8", "replace").strip()
    limits = DeviceLimits(
        max_threads_per_block=get("MAX_THREADS_PER_BLOCK"),
        max_block=(get("MAX_BLOCK_DIM_X"), get("MAX_BLOCK_DIM_Y"), get("MAX_BLOCK_DIM_Z")),
        max_grid=(get("MAX_GRID_DIM_X"), get("MAX_GRID_DIM_Y"), get("MAX_GRID_DIM_Z")),
        max_shared_bytes_per_block=get("MAX_SHARED_MEMORY_PER_BLOCK"),
        max_shared_bytes_per_block_optin=get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        warp_size=get("WARP_SIZE"),
        multiprocessors=get("MULTIPROCESSOR_COUNT"),
        max_cluster_blocks=_max_cluster_blocks(capability, bool(get("CLUSTER_LAUNCH"))),
        l2_cache_bytes=get("L2_CACHE_SIZE"),
        stream_priorities=(int(least), int(greatest)),
    )
    return DeviceProperties(
        name=name,
        compute_capability=capability,
        total_memory_bytes=int(call("cuDeviceTotalMem", device)),
        driver_version=(version // 1000, version % 1000 // 10),
        limits=limits,
        uuid=_uuid_text(call("cuDeviceGetUuid", device)),
    )


def _max_cluster_blocks(capability: tuple[int, int], clusters: bool) -> int:
    """8 blocks everywhere clusters exist; 16 on the data centre parts that allow it by opting in.

    Source: CUDA C++ Programming Guide, "Thread Block Clusters".
    """
    if not clusters:
        return 1
    return LARGEST_CLUSTER_BLOCKS if capability[0] in (9, 10) else PORTABLE_CLUSTER_BLOCKS


def _uuid_text(uuid: Any) -> str:
    """As nvidia-smi prints it: GPU-8-4-4-4-12 hexadecimal digits."""
    digits = bytes(uuid.bytes)[:16].hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
