"""The driver errors that a host device gives, with the names and codes of the CUDA driver.

Source: CUDA Driver API, `CUresult`.
"""

from __future__ import annotations

from ...errors import DriverError

__all__ = ["driver_error", "unknown_handle"]

_CODES = {
    "CUDA_ERROR_INVALID_VALUE": (1, "an argument is not acceptable"),
    "CUDA_ERROR_INVALID_HANDLE": (400, "the handle is not one of this device's"),
    "CUDA_ERROR_NOT_READY": (600, "the work is not done yet"),
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": (701, "the launch needs more than the kernel can have"),
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": (720, "the blocks of a cooperative launch do not fit at once"),
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": (912, "the cluster is not possible"),
}


def driver_error(call: str, name: str, hint: str = "") -> DriverError:
    """A `DriverError` as the CUDA driver would give it."""
    code, meaning = _CODES[name]
    return DriverError(call, code, name, meaning, hint)


def unknown_handle(call: str, what: str, handle: int) -> DriverError:
    """A handle was never given out by this device, or was destroyed."""
    return driver_error(
        call, "CUDA_ERROR_INVALID_HANDLE", f"{what} {handle} was destroyed, or belongs to another device"
    )
