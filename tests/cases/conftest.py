"""What the cases share: kernels for both devices, a latch that holds a stream, memory that is back at the end."""

from __future__ import annotations

import gc
import importlib.util
import struct
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver import FunctionInfo, HostFunction, HostImage, ParameterInfo

KERNELS = r"""
#define I int i = blockIdx.x * blockDim.x + threadIdx.x

extern "C" __global__ void fill_int(int* x, int n, int v) { I; if (i < n) x[i] = v; }
extern "C" __global__ void affine(float* x, int n, float a, float b) { I; if (i < n) x[i] = a * x[i] + b; }
extern "C" __global__ void copy_floats(const float* x, float* y, int n) { I; if (i < n) y[i] = x[i]; }
extern "C" __global__ void count(int* counter) { if (threadIdx.x == 0) atomicAdd(counter, 1); }
extern "C" __global__ void wild_write(long long address, int value) { *(volatile int*)address = value; }
"""

HOLD = r"""
// Until the host sets the word, or 20 s are over.
extern "C" __global__ void hold(volatile int* flag) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (*flag == 0 && now - began < 20000000000ull);
}
"""


class _HoldOnHost(HostFunction):
    """The host device's `hold`: the same, with an event of Python's for each number."""

    def __init__(self):
        self.gates = {}

    @property
    def info(self):
        number = ParameterInfo(name="number", offset_bytes=0, size_bytes=8)
        return FunctionInfo(name="hold", parameters=(number,), max_threads_per_block=1)

    def start(self, launch):
        (number,) = struct.unpack("<q", launch.arguments)
        gate = self.gates[number]
        while not gate.wait(2e-4):
            yield


_on_host = _HoldOnHost()
_kernels = ca.Module.from_cuda_source(KERNELS, name="cases.cu")
_hold = {
    "cuda": ca.Module.from_cuda_source(HOLD, name="hold.cu").function("hold"),
    "host": ca.Module.from_host_image(HostImage(functions={"hold": _on_host}, name="hold")).function("hold"),
}


class Latch:
    """Holds the stream that `hold()` runs on until `open()`."""

    def __init__(self, device):
        self._function = _hold[device.kind]
        self.is_open = False
        if device.kind == "cuda":
            self._block = device.pinned.take(4)
            self._flag = self._block.array((1,), np.dtype(np.int32))
            self._flag[0] = 0
            self._value = np.uint64(self._block.address)
        else:
            self._gate = threading.Event()
            self._value = np.uint64(len(_on_host.gates) + 1)
            _on_host.gates[int(self._value)] = self._gate

    def hold(self, *uses):
        """An operation that is done once the latch is open; `uses` are the operands it counts as using."""
        op = self._function.launch(1, 1, self._value, uses=uses)
        return op.then_with_context(self._keep) if hasattr(self, "_block") else op

    def _keep(self, ctx, value):
        ctx.retain(self._block)  # the kernel reads it
        return ca.value(value)

    def open(self):
        self.is_open = True
        _latches.discard(self)
        if hasattr(self, "_gate"):
            self._gate.set()
        else:
            self._flag[0] = 1


@pytest.fixture
def kernels_can_be_compiled():
    """NVRTC is installed, or the test is skipped."""
    try:
        found = importlib.util.find_spec("cuda.bindings.nvrtc")
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip("cuda.bindings.nvrtc is not installed, which compiles the kernels of this test")


@pytest.fixture
def kernels(device, kernels_can_be_compiled):
    """The kernels above by name, loaded: a CUDA device may wait for everything when it loads one."""
    functions = SimpleNamespace()
    for name in ("fill_int", "affine", "copy_floats", "count", "wild_write"):
        function = _kernels.function(name)
        function.load(device)
        setattr(functions, name, function)
    return functions


@pytest.fixture
def latch(device, request):
    """Makes latches; all are open at the end, and the device is idle."""
    if device.kind == "cuda":
        request.getfixturevalue("kernels_can_be_compiled")
    _hold[device.kind].load(device)

    def make():
        made = Latch(device)
        _latches.add(made)
        return made

    yield make
    _open_latches()
    device.synchronize()


_latches = set()


def _open_latches():
    while _latches:
        next(iter(_latches)).open()


@pytest.fixture
def memory_is_back(device):
    """The test leaves as many live bytes as it found."""
    ca.drain().sync()  # a worker thread may still be at the end of what another test left
    gc.collect()
    ca.drain().sync()
    before = device.memory_stats().used_bytes
    yield before
    _open_latches()
    gc.collect()
    ca.drain().sync()
    assert device.memory_stats().used_bytes == before
