"""What a CUDA result code means: which exception it becomes, and what a user can do about it.

Three kinds. Most codes are the failure of one call (`DriverError`). An allocation that did not fit is
`OutOfMemoryError`, made where the size is known. Sticky codes are faults of the device: the driver
answers every later call on the context with the same code until the process ends, so they become
`DeviceLostError`.

Source: CUDA Driver API, `CUresult`.
"""

from __future__ import annotations

from typing import Any

from ...errors import DriverError

__all__ = [
    "INVALID_VALUE",
    "NOT_FOUND",
    "NOT_READY",
    "OUT_OF_MEMORY",
    "STICKY",
    "describe_code",
    "driver_error",
    "invalid_value",
    "unknown_handle",
]

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
INVALID_HANDLE = 400
NOT_FOUND = 500
NOT_READY = 600

STICKY = frozenset(
    {
        214,  # ECC_UNCORRECTABLE
        220,  # NVLINK_UNCORRECTABLE
        226,  # CONTAINED
        700,  # ILLEGAL_ADDRESS
        702,  # LAUNCH_TIMEOUT
        709,  # CONTEXT_IS_DESTROYED
        710,  # ASSERT
        714,  # HARDWARE_STACK_ERROR
        715,  # ILLEGAL_INSTRUCTION
        716,  # MISALIGNED_ADDRESS
        717,  # INVALID_ADDRESS_SPACE
        718,  # INVALID_PC
        719,  # LAUNCH_FAILED
        721,  # TENSOR_MEMORY_LEAK
        911,  # EXTERNAL_DEVICE
    }
)
"""Codes after which the context answers nothing else."""

# By code alone; `(call, code)` below wins where a call gives the code a narrower meaning.
_HINTS: dict[int, str] = {
    1: "an argument is out of range or an address is not one the driver knows",
    3: "the driver was not initialised in this process; CUDA does not survive a fork, so start worker "
    'processes with the "spawn" method',
    4: "the process is shutting down; close devices before the interpreter exits",
    34: "the libcuda found is the linker's stub; remove the toolkit's lib64/stubs from the library path",
    36: "the driver is older than this call; update the NVIDIA driver",
    46: "another process uses the device exclusively",
    101: "there is no device of that number",
    201: "no context is current on this thread, or the current one was destroyed by another library",
    304: "the operating system refused; check the permissions of the device files",
    400: "the handle was closed, or it belongs to another device or context",
    214: "the device's memory is damaged; reset the device or exchange it",
    700: "a kernel used an address it may not; compute-sanitizer finds the place",
    702: "a kernel ran longer than the system allows a device that also drives a display",
    710: "a kernel's assert() failed; its message is on the standard output",
    716: "a kernel used an address that is not aligned to what it loads or stores",
    719: "a kernel failed; compute-sanitizer finds the place",
    701: "the launch asks for more registers or shared memory than a multiprocessor has; use a smaller block",
    720: "a cooperative launch must fit on the device all at once; use a smaller grid",
    800: "the operation is not permitted here",
    801: "the device or the driver does not support this",
    802: "the system is not ready; where there is NVSwitch, start the fabric manager",
    803: "the driver's user and kernel parts have different versions; reboot after a driver update",
    804: "this device does not support forward compatibility; remove the compat libraries from the path",
    900: "the operation cannot be part of a graph capture",
    901: "an earlier error made the graph capture invalid; end it and capture again",
    906: "the operation would wait for work that is being captured",
    907: "the event was last recorded inside a graph capture",
    908: "the capture was begun by another thread",
}

_CALL_HINTS: dict[tuple[str, int], str] = {
    ("cuEventElapsedTime", 400): "an event was created without timing=True, or was never recorded",
    (
        "cuEventElapsedTime",
        600,
    ): "the device has not reached one of the events yet; synchronize with it first",
    ("cuLaunchKernel", 1): "the grid, the block or the shared memory is beyond the device's limits, or the "
    "arguments do not fit the kernel",
    ("cuLaunchKernelEx", 1): "the grid, the block, the cluster or the shared memory is beyond the device's "
    "limits, or the grid is not a multiple of the cluster",
    ("cuLaunchKernelEx", 912): "no multiprocessor group can hold such a cluster; use a smaller one",
    ("cuMemFreeAsync", 1): "the address was not allocated from this pool, or was freed before",
    ("cuFuncSetAttribute", 1): "the device allows a kernel less dynamic shared memory than that",
    ("cuMemHostAlloc", 1): "the size must be positive",
}


def _text(answer: tuple[Any, ...]) -> str:
    """The string of a `(code, bytes)` answer; empty where there is none."""
    code, value = answer[0], answer[1]
    if code or value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _name_and_meaning(api: Any, code: Any) -> tuple[str, str]:
    try:
        name = _text(api.cuGetErrorName(code))
        meaning = _text(api.cuGetErrorString(code))
    except Exception:  # describing an error must not raise another
        name = meaning = ""
    return name or getattr(code, "name", "") or "unknown code", meaning or "the driver has no description"


def describe_code(api: Any, code: Any) -> str:
    """`NAME (code): meaning` of a result code."""
    name, meaning = _name_and_meaning(api, code)
    return f"{name} ({int(code)}): {meaning}"


def driver_error(api: Any, call: str, code: Any) -> DriverError:
    """The exception for a failed call, with a hint where the code alone does not tell the cause."""
    name, meaning = _name_and_meaning(api, code)
    hint = _CALL_HINTS.get((call, int(code))) or _HINTS.get(int(code), "")
    return DriverError(call, int(code), name, meaning, hint)


def invalid_value(call: str, hint: str) -> DriverError:
    """What the driver would answer to arguments that are refused before it is called."""
    return DriverError(call, INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "an argument is not acceptable", hint)


def unknown_handle(what: str, handle: int) -> DriverError:
    """A handle was never given out, or was destroyed; the driver would take it for a pointer."""
    return DriverError(
        f"looking up a {what}",
        INVALID_HANDLE,
        "CUDA_ERROR_INVALID_HANDLE",
        "the handle is not one of this device's",
        f"{what} {handle:#x} was destroyed, or belongs to another device; close handles only after their last use",
    )
