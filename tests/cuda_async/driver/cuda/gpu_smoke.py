"""A first look at a GPU machine: every part of the CUDA driver once, one line each, with times.

    python tests/cuda_async/driver/cuda/gpu_smoke.py

It goes on after a failure, ends with a summary, and exits with 1 if anything failed. The tests proper are
`pytest -m gpu tests/cuda_async/driver`.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import time
import traceback

import ml_dtypes
import numpy as np

from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver.cuda import (
    compile_cuda_source,
    cuda_device_count,
    cuda_include_paths,
    cuda_unavailable_reason,
    nvrtc_version,
    open_cuda_driver,
)

SOURCE = """
#include <cuda_fp16.h>
extern "C" __global__ void axpy(float *y, const float *x, int n, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
extern "C" __global__ void nothing() {}
"""

failures: list[str] = []


def step(name):
    """Run a function now; print what it returns, how long it took, or how it failed."""

    def run(function):
        began = time.perf_counter()
        try:
            result = function()
        except BaseException:
            failures.append(name)
            print(f"FAIL {name}\n{traceback.format_exc()}")
            return None
        print(f"ok   {name} ({(time.perf_counter() - began) * 1e3:.1f} ms): {result}", flush=True)
        return result

    return run


@step("find")
def found():
    return cuda_device_count(), cuda_unavailable_reason(), nvrtc_version(), cuda_include_paths()


@step("open")
def driver():
    return open_cuda_driver(0)


if driver is None:
    sys.exit(1)


@step("properties")
def properties():
    return driver.properties


@step("streams and events")
def stream():
    stream, event = driver.stream_create(), driver.event_create(timing=True)
    end = driver.event_create(timing=True)
    driver.bind()
    driver.event_record(event, stream)
    driver.event_record(end, stream)
    driver.stream_wait_event(stream, event)
    driver.event_synchronize(end)
    print(f"     elapsed {driver.event_elapsed_ms(event, end)} ms")
    return stream


@step("pool")
def pool():
    driver.bind()
    address = driver.memory_alloc_async(1 << 20, stream)
    during = driver.pool_statistics()
    driver.memory_free_async(address, stream)
    driver.stream_synchronize(stream)
    driver.pool_trim()
    return during, driver.pool_statistics()


pinned = driver.pinned_alloc(1 << 22)
host = np.frombuffer((ctypes.c_ubyte * (1 << 22)).from_address(pinned), "u1")
driver.bind()
left = driver.memory_alloc_async(1 << 22, stream)
right = driver.memory_alloc_async(1 << 22, stream)


def back(address, count, dtype):
    """`count` elements at a device address."""
    size = count * np.dtype(dtype).itemsize
    driver.copy_device_to_host_async(pinned, address, size, stream)
    driver.stream_synchronize(stream)
    return host[:size].copy().view(dtype)


def there(address, array):
    """Upload."""
    host[: array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    driver.copy_host_to_device_async(address, pinned, array.nbytes, stream)
    driver.stream_synchronize(stream)


@step("copies")
def copies():
    data = np.random.default_rng(0).integers(0, 256, 1 << 22, dtype=np.uint8)
    there(left, data)
    driver.copy_device_to_device_async(right, left, data.nbytes, stream)
    assert np.array_equal(back(right, data.size, "u1"), data)


@step("fills")
def fills():
    for pattern in (b"a", b"ab", b"abcd", b"abcdabcd", b"abcdefgh"):
        driver.fill_async(left, pattern, 1000, stream)
        assert back(left, 1000 * len(pattern), "u1").tobytes() == pattern * 1000


@step("strided copies")
def strided():
    array = np.arange(60 * 70 * 8, dtype="f4").reshape(60, 70, 8)
    there(left, array)
    for view in (array.transpose(2, 0, 1), array[::-1, ::2], array[:, :, 3]):
        offset = view.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        packed = np.ascontiguousarray(view)
        driver.copy_strided_async(right, packed.strides, left + offset, view.strides, view.shape, 4, stream)
        assert np.array_equal(back(right, packed.size, "f4"), packed.reshape(-1))


@step("conversions")
def conversions():
    values = np.linspace(-300, 300, 10_000, dtype="f4")
    there(left, values)
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        dtype = np.dtype(getattr(ml_dtypes, name))
        driver.convert_async(right, dtype, left, values.dtype, values.size, stream)
        bits = f"u{dtype.itemsize}"
        assert np.array_equal(back(right, values.size, bits), values.astype(dtype).view(bits)), name


@step("NVRTC and launch")
def nvrtc():
    major, minor = driver.properties.compute_capability
    image = compile_cuda_source(SOURCE, "axpy.cu", arch=f"sm_{major}{minor}", output="cubin")
    module = driver.module_load(image, "axpy.cu")
    function = driver.module_function(module, "axpy")
    info = driver.function_info(function)
    there(left, np.ones(1000, "f4"))
    there(right, np.arange(1000, dtype="f4"))
    block = ArgumentBlock(info.parameters)
    struct.pack_into("<QQif", block.buffer, 0, left, right, 1000, 2.0)
    driver.launch(function, (4, 1, 1), (256, 1, 1), 0, stream, block)
    assert np.array_equal(back(left, 1000, "f4"), 1 + 2 * np.arange(1000, dtype="f4"))
    return module, info


@step("cooperative and cluster launch")
def attributes():
    nothing = driver.module_function(nvrtc[0], "nothing")
    block = ArgumentBlock(())
    for cluster, cooperative in ((None, True), ((2, 1, 1), False)):
        if cluster and driver.properties.limits.max_cluster_blocks == 1:
            continue
        driver.launch_with_attributes(
            nothing, (4, 1, 1), (32, 1, 1), 0, stream, block, cluster=cluster, cooperative=cooperative
        )
    driver.stream_synchronize(stream)


@step("cost of calls")
def costs():
    """Microseconds per call, best of 5 rounds of 1000, the stream drained between."""
    nothing = driver.module_function(nvrtc[0], "nothing")
    block, grid, threads = ArgumentBlock(()), (1, 1, 1), (32, 1, 1)
    event = driver.event_create()

    def allocate():
        driver.memory_free_async(driver.memory_alloc_async(4096, stream), stream)

    cases = {
        "launch": lambda: driver.launch(nothing, grid, threads, 0, stream, block),
        "bind": driver.bind,
        "event_record": lambda: driver.event_record(event, stream),
        "event_query": lambda: driver.event_query(event),
        "stream_wait_event": lambda: driver.stream_wait_event(stream, event),
        "alloc + free": allocate,
        "event_create + destroy": lambda: driver.event_destroy(driver.event_create()),
    }
    result = {}
    for name, call in cases.items():
        best = float("inf")
        for _ in range(5):
            driver.stream_synchronize(stream)
            began = time.perf_counter()
            for _ in range(1000):
                call()
            best = min(best, (time.perf_counter() - began) * 1e3)
        result[name] = round(best, 2)
    driver.stream_synchronize(stream)
    api, native, run_on = driver._api, driver._functions[nothing], driver._streams[stream]
    best = float("inf")
    for _ in range(5):
        driver.stream_synchronize(stream)
        began = time.perf_counter()
        for _ in range(1000):
            api.cuLaunchKernel(native, 1, 1, 1, 32, 1, 1, 0, run_on, 0, 0)
        best = min(best, (time.perf_counter() - began) * 1e3)
    result["cuda.bindings launch alone"] = round(best, 2)
    return result


@step("close")
def close():
    driver.close()


print("FAILED: " + ", ".join(failures) if failures else "PASS")
sys.exit(bool(failures))
