"""What a host device claims to be (an H100, as far as limits go), and the checks of a launch.

Source: CUDA Programming Guide, "Compute Capabilities" (9.0); CUDA Driver API, cuLaunchKernel.
"""

from __future__ import annotations

import math

from .._protocol import DeviceLimits, DeviceProperties, FunctionInfo
from ._codes import driver_error

__all__ = ["LIMITS", "check_launch", "device_properties"]

LIMITS = DeviceLimits(
    max_threads_per_block=1024,
    max_block=(1024, 1024, 64),
    max_grid=(2**31 - 1, 65535, 65535),
    max_shared_bytes_per_block=48 << 10,
    max_shared_bytes_per_block_optin=227 << 10,
    warp_size=32,
    multiprocessors=132,
    max_cluster_blocks=8,
    l2_cache_bytes=50 << 20,
    stream_priorities=(0, -5),
)
_THREADS_PER_MULTIPROCESSOR = 2048
_BLOCKS_PER_MULTIPROCESSOR = 32
_DRIVER_VERSION = (13, 5)
"""The toolkit whose PTX (9.5) is the newest that the interpreter is made for."""


def device_properties(ordinal: int, memory_bytes: int) -> DeviceProperties:
    """Properties of the host device `ordinal`."""
    return DeviceProperties(
        name="Simulated device",
        compute_capability=(9, 0),
        total_memory_bytes=memory_bytes,
        driver_version=_DRIVER_VERSION,
        limits=LIMITS,
        uuid=f"HOST-00000000-0000-0000-0000-{ordinal:012x}",
    )


def check_launch(
    info: FunctionInfo,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    allowed_shared_bytes: int,
    *,
    cluster: tuple[int, int, int] | None = None,
    cooperative: bool = False,
) -> None:
    """Raise what the CUDA driver would answer to a launch that cannot be."""
    threads = math.prod(block)
    problem = _shape_problem(grid, block, threads)
    if not problem and not 0 <= shared_bytes <= allowed_shared_bytes - info.static_shared_bytes:
        problem = (
            f"{shared_bytes} bytes of dynamic shared memory; with {info.static_shared_bytes} static ones, "
            f"{allowed_shared_bytes} are allowed, at most {LIMITS.max_shared_bytes_per_block_optin} by opting in"
        )
    if not problem and info.required_block is not None and tuple(block) != tuple(info.required_block):
        problem = f"block {block}; the kernel is compiled for {info.required_block}"
    if problem:
        raise driver_error("cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE", f"kernel {info.name}: {problem}")
    if threads > info.max_threads_per_block:
        raise driver_error(
            "cuLaunchKernel",
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
            f"kernel {info.name}: {threads} threads per block; it is compiled for {info.max_threads_per_block}",
        )
    if cluster is not None:
        _check_cluster(info, grid, cluster)
    if cooperative:
        per_processor = min(_BLOCKS_PER_MULTIPROCESSOR, _THREADS_PER_MULTIPROCESSOR // threads)
        most = LIMITS.multiprocessors * per_processor
        if math.prod(grid) > most:
            raise driver_error(
                "cuLaunchKernelEx",
                "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
                f"kernel {info.name}: {math.prod(grid)} blocks; {most} of {threads} threads fit",
            )


def _shape_problem(grid: tuple[int, int, int], block: tuple[int, int, int], threads: int) -> str:
    for what, given, limits in (("grid", grid, LIMITS.max_grid), ("block", block, LIMITS.max_block)):
        for axis, size, limit in zip("xyz", given, limits):
            if not 1 <= size <= limit:
                return f"{what} axis {axis} is {size}; 1 to {limit} are possible"
    if threads > LIMITS.max_threads_per_block:
        return f"{threads} threads per block; the limit is {LIMITS.max_threads_per_block}"
    return ""


def _check_cluster(info: FunctionInfo, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> None:
    blocks = math.prod(cluster)
    if min(cluster) < 1 or blocks > LIMITS.max_cluster_blocks:
        problem = f"cluster {cluster}; 1 to {LIMITS.max_cluster_blocks} blocks are possible"
    elif any(size % part for size, part in zip(grid, cluster)):
        problem = f"grid {grid} is not a multiple of the cluster {cluster}"
    else:
        return
    raise driver_error(
        "cuLaunchKernelEx", "CUDA_ERROR_INVALID_CLUSTER_SIZE", f"kernel {info.name}: {problem}"
    )
