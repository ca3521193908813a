"""A stand-in for the module `cuda.bindings.driver` that records calls and answers as told.

It holds the driver's side of the contract with `cuda.bindings` (names, order of arguments, tuples as
answers); what a real device does is tested by the contract tests with `-m gpu`.
"""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_async.driver.cuda import CudaDriver

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "WARP_SIZE": 32,
    "MULTIPROCESSOR_COUNT": 132,
    "CLUSTER_LAUNCH": 1,
    "L2_CACHE_SIZE": 50 << 20,
}

NAMES = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    200: ("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
    209: ("CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"),
    218: ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    222: (
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the provided PTX was compiled with an unsupported toolchain.",
    ),
    400: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    600: ("CUDA_ERROR_NOT_READY", "device not ready"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
}


class Names:
    """An enum: its members are their own names, less the prefix that all share."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> str:
        return name.removeprefix(self._prefix)


ENTRY_POINTS = {
    b"cuCtxSetCurrent": 1,
    b"cuEventQuery": 1,
    b"cuEventRecord": 2,
    b"cuGraphLaunch": 2,
    b"cuStreamWaitEvent": 3,
    b"cuLaunchKernelEx": 4,
}
"""How many arguments functions have that are called by their address."""


class Native(int):
    """A `CUstream` and the like: not a plain int, so that tests see which one was passed."""


class FakeApi:
    """Functions answer `(0, *values)`; `answers[name]` replaces that, by a tuple or by a function."""

    CUdevice_attribute = Names("CU_DEVICE_ATTRIBUTE_")
    CUfunction_attribute = Names("CU_FUNC_ATTRIBUTE_")
    CUmemPool_attribute = Names("CU_MEMPOOL_ATTR_")
    CUjit_option = Names("CU_JIT_")
    CUmemLocationType = Names("CU_MEM_LOCATION_TYPE_")
    CUmemAllocationType = Names("CU_MEM_ALLOCATION_TYPE_")
    CUmemAllocationHandleType = Names("CU_MEM_HANDLE_TYPE_")
    CUmemorytype = Names("CU_MEMORYTYPE_")
    CUstreamCaptureStatus = Names("CU_STREAM_CAPTURE_STATUS_")
    CUlaunchAttributeID = Names("CU_LAUNCH_ATTRIBUTE_")

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}
        self._next = itertools.count(0x10000, 0x100)
        self._by_address: dict[int, Any] = {}
        self._entry_points: list[Any] = []
        new = self._new
        self.results: dict[str, Any] = {
            "cuDriverGetVersion": lambda: (0, 13000),
            "cuGetProcAddress": self._entry_point,
            "cuCtxGetStreamPriorityRange": lambda: (0, 0, -5),
            "cuDeviceGetName": lambda *_: (0, b"Fake GPU".ljust(256, b"\0")),
            "cuDeviceGetUuid": lambda *_: (0, SimpleNamespace(bytes=bytes(range(16)))),
            "cuDeviceTotalMem": lambda *_: (0, 80 << 30),
            "cuDeviceGetAttribute": lambda name, _: (0, ATTRIBUTES[name]),
            "cuMemPoolCreate": new,
            "cuMemPoolGetAttribute": lambda *_: (0, 4096),
            "cuMemGetInfo": lambda: (0, 1 << 30, 80 << 30),
            "cuMemAllocFromPoolAsync": new,
            "cuMemHostAlloc": new,
            "cuStreamCreateWithPriority": new,
            "cuStreamIsCapturing": lambda *_: (0, "NONE"),
            "cuEventCreate": new,
            "cuEventElapsedTime": lambda *_: (0, 1.5),
            "cuModuleLoadDataEx": new,
            "cuModuleGetFunction": new,
            "cuModuleGetGlobal": lambda *_: (0, 0xABC0, 64),
            "cuModuleGetFunctionCount": lambda *_: (0, 2),
            "cuModuleEnumerateFunctions": lambda *_: (0, [Native(1), Native(2)]),
            "cuFuncGetName": lambda function: (0, b"kernel_%d" % function),
            "cuFuncGetParamInfo": lambda *_: (1, None, None),
            "cuFuncGetAttribute": lambda *_: (0, 7),
            "cuGetErrorName": lambda code: self._describe(code, 0),
            "cuGetErrorString": lambda code: self._describe(code, 1),
        }

    def _new(self, *_: Any) -> tuple[int, Native]:
        return 0, Native(next(self._next))

    def _entry_point(self, name: bytes, version: int, flags: int) -> tuple[int, int, int]:
        """The address of a function of pointers and numbers, whose calls are recorded like all others."""

        def call(*arguments: int | None) -> int:
            given = [self._by_address.get(a or 0, a or 0) for a in arguments]
            return int(getattr(self, name.decode())(*given)[0])

        kinds = [ctypes.c_void_p] * ENTRY_POINTS[name]
        self._entry_points.append(ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(call))
        return 0, ctypes.cast(self._entry_points[-1], ctypes.c_void_p).value or 0, 0

    def CUlaunchConfig(self) -> SimpleNamespace:
        address = next(self._next)
        self._by_address[address] = config = SimpleNamespace(getPtr=lambda: address)
        return config

    @staticmethod
    def _describe(code: int, which: int) -> tuple[int, bytes | None]:
        return (0, NAMES[code][which].encode()) if code in NAMES else (1, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):  # a structure, or a wrapper of a value
            return lambda *values: (
                Native(values[0]) if values else SimpleNamespace(clusterDim=SimpleNamespace())
            )
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            if name == "cuuint64_t":
                return arguments[0]
            self.calls.append((name, *arguments))
            answer = self.answers.get(name, self.results.get(name, (0,)))
            return answer(*arguments) if callable(answer) else answer

        return call

    def fail(self, name: str, code: int, values: int = 0) -> None:
        """From now on `name` answers `code`."""
        self.answers[name] = (code, *(None,) * values)

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of every call of `name` so far."""
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def driver(api: FakeApi) -> CudaDriver:
    driver = CudaDriver(api, 0, Native(0xC0), Native(0))
    api.calls.clear()
    return driver
