"""What only a real CUDA device can show: faults, foreign contexts and streams, images for it and for others."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver._ptx_signature import read_ptx_header
from cuda_async.driver.cuda import (
    borrow_context,
    compile_cuda_program,
    compile_cuda_source,
    cuda_device_count,
    cuda_unavailable_reason,
    nvrtc_version,
    open_cuda_driver,
)
from cuda_async.errors import CompileError, ContextError, DriverError

pytestmark = pytest.mark.gpu

SCALE = 'extern "C" __global__ void scale(float *x, int n, float f) { int i = threadIdx.x; if (i < n) x[i] *= f; }\n'


@pytest.fixture
def driver():
    return open_cuda_driver(0)


def architecture(driver, suffix=""):
    major, minor = driver.properties.compute_capability
    return f"sm_{major}{minor}{suffix}"


def run_scale(driver, module):
    """Scale eight numbers on the device; what comes back."""
    function = driver.module_function(module, "scale")
    info = driver.function_info(function)
    assert [(p.offset_bytes, p.size_bytes) for p in info.parameters] == [(0, 8), (8, 4), (12, 4)]
    stream, pinned = driver.stream_create(), driver.pinned_alloc(32)
    host = np.frombuffer((ctypes.c_float * 8).from_address(pinned), "f4")
    host[:] = np.arange(8)
    driver.bind()
    address = driver.memory_alloc_async(32, stream)
    driver.copy_host_to_device_async(address, pinned, 32, stream)
    block = ArgumentBlock(info.parameters)
    struct.pack_into("<Qif", block.buffer, 0, address, 6, 10.0)
    driver.launch(function, (1, 1, 1), (32, 1, 1), 0, stream, block)
    driver.copy_device_to_host_async(pinned, address, 32, stream)
    driver.memory_free_async(address, stream)
    driver.stream_synchronize(stream)
    result = host.tolist()
    driver.pinned_free(pinned)
    driver.stream_destroy(stream)
    return result


SCALED = [0, 10, 20, 30, 40, 50, 6, 7]


def test_device_is_found(driver):
    assert cuda_device_count() >= 1
    assert cuda_unavailable_reason() is None
    assert open_cuda_driver(0) is driver
    assert driver.properties.uuid.startswith("GPU-")
    with pytest.raises(ContextError, match="does not exist"):
        open_cuda_driver(cuda_device_count())


def test_nvrtc_cubin_runs(driver):
    image = compile_cuda_source(SCALE, "scale.cu", arch=architecture(driver), output="cubin")
    module = driver.module_load(image, "scale.cu")
    assert driver.module_function_names(module) == ["scale"]
    assert run_scale(driver, module) == SCALED
    driver.module_unload(module)


def test_nvrtc_template_runs(driver):
    source = "template <class T> __global__ void scale(T *x, T f) { x[threadIdx.x] *= f; }\n"
    result = compile_cuda_program(
        source, "t.cu", arch=architecture(driver), output="cubin", name_expressions=["scale<float>"]
    )
    module = driver.module_load(result.image, "t.cu")
    assert driver.module_function_names(module) == [result.lowered_names["scale<float>"]]
    driver.module_unload(module)


def test_nvrtc_ptx_runs_or_says_both_versions(driver):
    """NVRTC may be newer than the driver."""
    image = compile_cuda_source(SCALE, "scale.cu", arch="compute_80", output="ptx")
    version, _ = read_ptx_header(image.decode())
    if nvrtc_version() <= driver.properties.driver_version:
        assert run_scale(driver, driver.module_load(image, "scale.ptx")) == SCALED
        return
    with pytest.raises(
        CompileError, match=rf"PTX {version[0]}\.{version[1]}, and the driver .* takes up to \d"
    ):
        driver.module_load(image, "scale.ptx")


def test_cubin_for_another_architecture(driver):
    other = 80 if driver.properties.compute_capability[0] != 8 else 90
    image = compile_cuda_source(SCALE, "scale.cu", arch=f"sm_{other}", output="cubin")
    with pytest.raises(CompileError, match=f"cubin for sm_{other}, and cuda:0 .*{architecture(driver)}"):
        driver.module_load(image, "scale.cubin")


def test_damaged_cubin(driver):
    image = compile_cuda_source(SCALE, "scale.cu", arch=architecture(driver), output="cubin")
    with pytest.raises(CompileError, match=r"broken\.cubin"):
        driver.module_load(image[:64] + bytes(100), "broken.cubin")
    assert run_scale(driver, driver.module_load(image)) == SCALED


def test_launch_works_after_another_library_changed_the_context(driver):
    """The other context stays current outside our calls; ours is bound on entry."""
    api = driver._api
    code, device = api.cuDeviceGet(0)
    assert not code
    code, context = api.cuCtxCreate(None, 0, device)
    assert not code
    try:
        image = compile_cuda_source(SCALE, "scale.cu", arch=architecture(driver), output="cubin")
        assert run_scale(driver, driver.module_load(image)) == SCALED
    finally:
        assert not api.cuCtxDestroy(context)[0]
        driver.bind()


def test_borrowed_context(driver):
    """Another library's context works like our own, and is left alone."""
    api = driver._api
    code, device = api.cuDeviceGet(0)
    code, context = api.cuCtxCreate(None, 0, device)
    assert not code
    assert not api.cuCtxPopCurrent()[0]
    borrowed = borrow_context(int(context))
    assert borrowed is not driver
    assert borrowed.ordinal == 0
    image = compile_cuda_source(SCALE, "scale.cu", arch=architecture(driver), output="cubin")
    assert run_scale(borrowed, borrowed.module_load(image)) == SCALED
    borrowed.close()
    assert not api.cuCtxSetCurrent(context)[0]
    assert not api.cuCtxSynchronize()[0]
    assert not api.cuCtxDestroy(context)[0]
    driver.bind()


def test_borrowing_the_primary_context_is_opening_the_device(driver):
    assert borrow_context(int(driver._context)) is driver
    with pytest.raises(ContextError, match="not a usable CUDA context"):
        borrow_context(0)


def test_borrowed_stream(driver):
    api = driver._api
    driver.bind()
    code, foreign = api.cuStreamCreate(1)
    assert not code
    stream = driver.stream_borrow(int(foreign))
    pinned = driver.pinned_alloc(16)
    driver.fill_async(pinned, b"\7", 16, stream)
    driver.stream_synchronize(stream)
    assert bytes((ctypes.c_ubyte * 16).from_address(pinned)) == b"\7" * 16
    driver.stream_destroy(stream)
    assert not api.cuStreamQuery(foreign)[0]  # still theirs
    assert not api.cuStreamDestroy(foreign)[0]
    driver.pinned_free(pinned)


@pytest.mark.parametrize("address", [1, 2])
def test_default_streams_can_be_borrowed(driver, address):
    """1 is the legacy default stream, 2 the per-thread one."""
    stream = driver.stream_borrow(address)
    driver.stream_synchronize(stream)
    driver.stream_destroy(stream)


def test_cluster_of_sixteen(driver):
    if driver.properties.limits.max_cluster_blocks < 16:
        pytest.skip("this device has clusters of 8 blocks at most")
    source = 'extern "C" __global__ void count(int *x) { atomicAdd(x, 1); }\n'
    module = driver.module_load(
        compile_cuda_source(source, "c.cu", arch=architecture(driver), output="cubin")
    )
    function = driver.module_function(module, "count")
    block = ArgumentBlock(driver.function_info(function).parameters)
    stream, pinned = driver.stream_create(), driver.pinned_alloc(4)
    ctypes.c_int.from_address(pinned).value = 0
    struct.pack_into("<Q", block.buffer, 0, pinned)
    driver.launch_with_attributes(
        function, (32, 1, 1), (32, 1, 1), 0, stream, block, cluster=(16, 1, 1), cooperative=False
    )
    driver.stream_synchronize(stream)
    assert ctypes.c_int.from_address(pinned).value == 32 * 32
    driver.pinned_free(pinned)
    driver.stream_destroy(stream)


def test_streams_close_while_others_work(driver):
    """Closing streams beside other threads' calls has crashed libcuda; ours are kept instead."""
    stop = threading.Event()
    failures = []

    def work():
        try:
            stream, event = driver.stream_create(), driver.event_create()
            driver.bind()
            while not stop.is_set():
                address = driver.memory_alloc_async(1024, stream)
                driver.event_record(event, stream)
                driver.event_query(event)
                driver.memory_free_async(address, stream)
            driver.stream_synchronize(stream)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(500):
        driver.stream_destroy(driver.stream_create(-1))
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


# --------------------------------------------------------------------------- faults, in processes of their own

FAULT = """
import ctypes, struct, sys, time
from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver.cuda import open_cuda_driver
from cuda_async.errors import DeviceLostError, DriverError

PTX = b'''.version 7.0
.target sm_75
.address_size 64
.visible .entry store(.param .u64 address)
{
    .reg .b64 %rd;
    ld.param.u64 %rd, [address];
    st.global.u32 [%rd], 1;
    ret;
}
'''
driver = open_cuda_driver(0)
stream, event = driver.stream_create(), driver.event_create()
pinned = driver.pinned_alloc(64)
module = driver.module_load(PTX)
function = driver.module_function(module, "store")
block = ArgumentBlock(driver.function_info(function).parameters)
struct.pack_into("<Q", block.buffer, 0, 8)
driver.bind()
address = driver.memory_alloc_async(1024, stream)
driver.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, block)
driver.event_record(event, stream)
first = None
began = time.monotonic()
try:
    driver.event_synchronize(event)
except DeviceLostError as error:
    first = error
assert isinstance(first, DeviceLostError), first
assert isinstance(first.__cause__, DriverError)
assert first.__cause__.code in (700, 719), first.__cause__
for call in (
    lambda: driver.event_query(event),
    lambda: driver.stream_query(stream),
    lambda: driver.memory_alloc_async(16, stream),
    lambda: driver.stream_create(),
    lambda: driver.module_load(PTX),
    lambda: driver.launch(function, (1, 1, 1), (1, 1, 1), 0, stream, block),
    driver.bind,
):
    try:
        call()
    except DeviceLostError as error:
        assert error.__cause__ is first.__cause__
    else:
        raise AssertionError("a lost device took a call")
assert time.monotonic() - began < 2
driver.memory_free_async(address, stream)
driver.event_destroy(event)
driver.stream_destroy(stream)
driver.pinned_free(pinned)
driver.module_unload(module)
assert open_cuda_driver(0) is driver
print("lost:", first)
"""


def run_script(code: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout_s)


@pytest.mark.parametrize(("interrupts", "call"), [(False, "cuEventQuery"), (True, "cuEventSynchronize")])
def test_fault_loses_the_device_and_the_process_ends_cleanly(interrupts, call):
    began = time.monotonic()
    fault = FAULT.replace("driver.event_create()", f"driver.event_create(interrupts={interrupts})")
    done = run_script(fault + "driver.close()\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"lost: cuda:0: {call}: CUDA_ERROR" in done.stdout
    assert time.monotonic() - began < 30


def test_process_with_a_fault_ends_without_closing_anything():
    done = run_script(FAULT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_process_ends_with_work_in_flight():
    code = """
from cuda_async.driver.cuda import open_cuda_driver
driver = open_cuda_driver(0)
stream = driver.stream_create()
driver.bind()
address = driver.memory_alloc_async(1 << 30, stream)
for _ in range(200):
    driver.fill_async(address, b"abcd1234", 1 << 27, stream)
driver.close()
print("closed")
"""
    done = run_script(code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "closed" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_is_told_and_the_parent_goes_on():
    code = """
import os
from cuda_async.driver.cuda import open_cuda_driver
from cuda_async.errors import ContextError
driver = open_cuda_driver(0)
stream = driver.stream_create()
query = driver.stream_query  # bound before the fork
pid = os.fork()
if pid == 0:
    told = 0
    for call in (lambda: open_cuda_driver(0), lambda: driver.stream_create(), lambda: query(stream)):
        try:
            call()
        except ContextError as error:
            told += "fork" in str(error) and "spawn" in str(error)
    os._exit(told)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
driver.stream_synchronize(stream)
driver.stream_create()
print("parent goes on")
"""
    done = run_script(code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "parent goes on" in done.stdout


def test_reopening_after_close():
    code = """
from cuda_async.driver.cuda import open_cuda_driver
from cuda_async.errors import ClosedError
first = open_cuda_driver(0)
stream = first.stream_create()
first.bind()
first.memory_free_async(first.memory_alloc_async(1 << 20, stream), stream)
first.close()
try:
    first.bind()
except ClosedError:
    pass
second = open_cuda_driver(0)
assert second is not first
stream = second.stream_create()
second.bind()
second.memory_free_async(second.memory_alloc_async(1 << 20, stream), stream)
second.synchronize()
second.close()
print("reopened")
"""
    done = run_script(code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reopened" in done.stdout


def test_no_visible_device():
    code = """
from cuda_async.driver.cuda import cuda_device_count, cuda_unavailable_reason
print(cuda_device_count(), cuda_unavailable_reason())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.stdout.startswith("0 no CUDA device was found (CUDA_VISIBLE_DEVICES is '')"), done.stderr


def test_bad_free_is_an_error(driver):
    stream = driver.stream_create()
    driver.bind()
    with pytest.raises(DriverError, match="cuMemFreeAsync"):
        driver.memory_free_async(0x1000, stream)
    driver.stream_synchronize(stream)
    driver.stream_destroy(stream)


FIRST_LAUNCHES = r'''
import asyncio
import numpy as np
import cuda_async as ca

SCALE = """extern "C" __global__ void scale(float *y, const float *x, int n, float f) {
    int i = threadIdx.x;
    if (i < n) y[i] = x[i] * f;
}"""

async def main():
    scale = ca.Module.from_cuda_source(SCALE).function("scale")
    x = await ca.from_host(np.arange(64, dtype="f4"))

    def scaled(factor):
        return ca.empty(64).then(lambda y: scale.launch(1, 64, ca.mut(y), ca.read(x), 64, factor).first())

    def step(factor):
        both = ca.parallel(scaled(factor), scaled(2 * factor))
        return both.then(lambda ab: ca.copy(ab[1]).map(lambda copied: (ab[0], copied)))

    for i in range(60):
        async with await step(float(i)).graph() as graph:
            for _ in range(3):
                a, b = await graph.launch()
            assert (await a.to_host() == i * np.arange(64)).all(), i
            assert (await b.to_host() == 2 * i * np.arange(64)).all(), i

with ca.use_device("cuda:0"):
    asyncio.run(main())
print("all right")
'''


def test_first_launches_wait_for_the_upload_where_processes_share_the_device():
    """Launched before it was uploaded, a graph hung, in each of four processes, within its first fifteen graphs."""
    processes = [
        subprocess.Popen([sys.executable, "-c", FIRST_LAUNCHES], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    try:
        said = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert said == ["all right\n"] * 6
