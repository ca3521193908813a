"""What the CUDA driver calls, and what it makes of the answers (no GPU: the bindings are a stand-in)."""

from __future__ import annotations

import ctypes
import runpy
import struct
import threading
import types
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver._protocol import HostImage, ParameterInfo, ParameterKind
from cuda_async.errors import (
    ClosedError,
    CompileError,
    ContextError,
    DeviceLostError,
    DriverError,
    OutOfMemoryError,
)

PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 s)
.reqntid 64, 2
{ ret; }
"""


def plain_launch(driver, function, stream):
    arguments = ArgumentBlock([ParameterInfo(name="x", offset_bytes=0, size_bytes=8)])
    driver.launch(function, (3, 2, 1), (64, 1, 1), 128, stream, arguments)
    return arguments


# ------------------------------------------------------------------------------------ properties


def test_properties_are_read_once(api, driver):
    properties = driver.properties
    assert properties.name == "Fake GPU"
    assert properties.compute_capability == (9, 0)
    assert properties.driver_version == (13, 0)
    assert properties.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert properties.limits.stream_priorities == (0, -5)
    assert properties.limits.max_grid == (2**31 - 1, 65535, 65535)
    assert properties.limits.max_cluster_blocks == 16
    assert not api.calls


def test_pool_is_own_and_keeps_memory(api):
    from cuda_async.driver.cuda import CudaDriver

    CudaDriver(api, 3, api.CUcontext(1), api.CUdevice(3))
    (created,) = api.named("cuMemPoolCreate")
    assert created[0].location.id == 3
    assert created[0].location.type == "DEVICE"
    assert created[0].allocType == "PINNED"
    assert api.named("cuMemPoolSetAttribute")[0][1:] == ("RELEASE_THRESHOLD", 2**64 - 1)


# ----------------------------------------------------------------------------------- hot methods


def test_hot_methods_make_one_call(api, driver):
    """They bind nothing: the caller has done it."""
    stream, event = driver.stream_create(), driver.event_create()
    function = driver.module_function(driver.module_load(PTX), "scale")
    api.calls.clear()

    driver.stream_wait_event(stream, event)
    driver.event_record(event, stream)
    driver.event_query(event)
    address = driver.memory_alloc_async(256, stream)
    driver.copy_host_to_device_async(address, 0x50, 8, stream)
    driver.copy_device_to_host_async(0x50, address, 8, stream)
    driver.copy_device_to_device_async(address, address + 8, 8, stream)
    driver.memory_free_async(address, stream)
    arguments = plain_launch(driver, function, stream)

    assert [call[0] for call in api.calls] == [
        "cuStreamWaitEvent",
        "cuEventRecord",
        "cuEventQuery",
        "cuMemAllocFromPoolAsync",
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuMemcpyDtoDAsync",
        "cuMemFreeAsync",
        "cuLaunchKernel",
    ]
    pointers = arguments.pointers_address
    assert api.calls[-1][1:] == (function, 3, 2, 1, 64, 1, 1, 128, stream, pointers, 0)


def test_other_methods_bind_the_context_first(api, driver):
    stream = driver.stream_create()
    api.calls.clear()
    driver.stream_synchronize(stream)
    assert [call[0] for call in api.calls] == ["cuCtxSetCurrent", "cuStreamSynchronize"]
    assert api.calls[0][1] == 0xC0


def test_native_handles_are_passed_on(api, driver):
    """Ints would be converted in every call."""
    stream = driver.stream_create()
    api.calls.clear()
    driver.memory_alloc_async(256, stream)
    (call,) = api.calls
    assert type(call[-1]).__name__ == "Native"
    assert type(stream) is int


def test_query_tells_not_ready_from_done(api, driver):
    stream, event = driver.stream_create(), driver.event_create()
    assert driver.event_query(event)
    assert driver.stream_query(stream)
    api.fail("cuEventQuery", 600)
    api.fail("cuStreamQuery", 600)
    assert not driver.event_query(event)
    assert not driver.stream_query(stream)


# --------------------------------------------------------------------------------------- errors


def test_error_has_call_code_name_meaning_and_hint(api, driver):
    event = driver.event_create()
    api.fail("cuEventElapsedTime", 400, 1)
    with pytest.raises(DriverError, match="never recorded") as caught:
        driver.event_elapsed_ms(event, event)
    error = caught.value
    assert (error.call, error.code) == ("cuEventElapsedTime", 400)
    assert (error.code_name, error.meaning) == ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle")


def test_unknown_code_is_still_an_error(api, driver):
    api.fail("cuCtxSynchronize", 12345)
    with pytest.raises(DriverError, match=r"cuCtxSynchronize: unknown code \(12345\)"):
        driver.synchronize()
    driver.bind()


def test_launch_refused_by_the_driver(api, driver):
    function = driver.module_function(driver.module_load(PTX), "scale")
    stream = driver.stream_create()
    api.fail("cuLaunchKernel", 1)
    with pytest.raises(DriverError, match="beyond the device's limits"):
        plain_launch(driver, function, stream)
    assert driver.is_usable


@pytest.mark.parametrize("code", [214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719])
def test_sticky_code_loses_the_device(api, driver, code):
    stream = driver.stream_create()
    api.fail("cuStreamSynchronize", code)
    with pytest.raises(DeviceLostError, match="cuda:0: cuStreamSynchronize: ") as caught:
        driver.stream_synchronize(stream)
    cause = caught.value.__cause__
    assert isinstance(cause, DriverError)
    assert cause.code == code


def test_lost_device_refuses_everything_with_the_first_cause(api, driver):
    stream = driver.stream_create()
    bound_before = driver.event_create
    api.fail("cuStreamSynchronize", 700)
    with pytest.raises(DeviceLostError) as first:
        driver.stream_synchronize(stream)
    api.calls.clear()
    refused = [
        driver.bind,
        driver.synchronize,
        driver.pool_statistics,
        lambda: driver.stream_create(),
        lambda: driver.memory_alloc_async(8, stream),
        lambda: driver.module_load(PTX),
        lambda: driver.pinned_alloc(8),
    ]
    for call in refused:
        with pytest.raises(DeviceLostError) as caught:
            call()
        assert caught.value.__cause__ is first.value.__cause__
        assert caught.value is not first.value
    assert not api.calls
    # A method bound earlier reaches the driver, which answers the same code.
    api.fail("cuCtxSetCurrent", 719)
    with pytest.raises(DeviceLostError) as caught:
        bound_before()
    assert caught.value.__cause__ is first.value.__cause__


def test_lost_device_can_be_cleaned_up(api, driver):
    stream, event = driver.stream_create(), driver.event_create()
    module = driver.module_load(PTX)
    address, pinned = driver.memory_alloc_async(8, stream), driver.pinned_alloc(8)
    api.fail("cuCtxSynchronize", 700)
    with pytest.raises(DeviceLostError):
        driver.synchronize()
    api.calls.clear()
    driver.memory_free_async(address, stream)
    driver.pinned_free(pinned)
    driver.event_destroy(event)
    driver.stream_destroy(stream)
    driver.module_unload(module)
    driver.pool_trim()
    driver.close()
    driver.close()
    assert not api.calls


def test_every_protocol_method_is_refused_or_quiet():
    from cuda_async.driver._protocol import Driver
    from cuda_async.driver.cuda import _driver

    methods = {name for name, value in vars(Driver).items() if callable(value) and not name.startswith("_")}
    assert methods - set(_driver._REFUSED) - set(_driver._QUIET) == set()


def test_losing_races_keep_one_cause(api, driver):
    api.fail("cuCtxSynchronize", 700)
    causes = []

    def lose():
        with pytest.raises(DeviceLostError) as caught:
            driver.synchronize()
        causes.append(caught.value.__cause__)

    threads = [threading.Thread(target=lose) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(causes) == 8
    assert len(set(map(id, causes))) == 1


def test_closed_driver_says_so(api, driver):
    driver.close()
    driver.close()
    assert len(api.named("cuMemPoolTrimTo")) == 1
    with pytest.raises(ClosedError, match="cuda:0 is closed"):
        driver.bind()


def test_close_never_raises(api, driver):
    def broken(*_):
        raise RuntimeError("the interpreter is shutting down")

    api.answers["cuMemPoolTrimTo"] = broken
    driver.close()
    assert not driver.is_usable


def test_forked_child_is_told(driver, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: -1)
    driver._api.fail("cuCtxSynchronize", 3)
    with pytest.raises(ContextError, match=r"forked.*spawn"):
        driver.synchronize()


# -------------------------------------------------------------------------------------- handles


def test_closed_handle_is_an_error_before_the_driver_sees_it(api, driver):
    stream, event = driver.stream_create(), driver.event_create()
    driver.event_destroy(event)
    api.calls.clear()
    with pytest.raises(DriverError, match=f"event {event:#x} was destroyed"):
        driver.event_record(event, stream)
    assert not api.calls


def test_streams_are_kept_for_the_next_of_their_priority(api, driver):
    low, high = driver.stream_create(0), driver.stream_create(-2)
    driver.stream_destroy(low)
    driver.stream_destroy(high)
    with pytest.raises(DriverError, match="stream"):
        driver.stream_query(low)
    assert driver.stream_create(-2) == high
    assert driver.stream_create(0) == low
    assert not api.named("cuStreamDestroy")


def test_busy_or_capturing_stream_is_not_given_again(api, driver):
    first = driver.stream_create()
    driver.stream_destroy(first)
    api.fail("cuStreamQuery", 600)
    second = driver.stream_create()
    assert second != first
    del api.answers["cuStreamQuery"]
    api.answers["cuStreamIsCapturing"] = (0, "INVALIDATED")
    assert driver.stream_create() not in (first, second)


def test_priority_is_clamped(api, driver):
    driver.stream_create(-99)
    driver.stream_create(7)
    assert api.named("cuStreamCreateWithPriority") == [(1, -5), (1, 0)]


def test_borrowed_stream_is_only_forgotten(api, driver):
    handle = driver.stream_borrow(0x7777)
    assert driver.stream_borrow(0x7777) == handle == 0x7777
    driver.stream_destroy(handle)
    driver.stream_synchronize(handle)  # the second loan
    driver.stream_destroy(handle)
    with pytest.raises(DriverError, match="stream 0x7777"):
        driver.stream_synchronize(handle)
    assert driver.stream_create() != handle


def test_own_stream_cannot_be_borrowed(driver):
    stream = driver.stream_create()
    with pytest.raises(ContextError, match="own"):
        driver.stream_borrow(stream)


def test_event_flags(api, driver):
    """CU_EVENT_BLOCKING_SYNC is 1, CU_EVENT_DISABLE_TIMING 2."""
    driver.event_create()
    driver.event_create(timing=True)
    driver.event_create(interrupts=True)
    driver.event_create(timing=True, interrupts=True)
    assert api.named("cuEventCreate") == [(2,), (0,), (3,), (1,)]


def test_only_an_event_that_interrupts_is_waited_for_in_the_driver(api, driver, monkeypatch):
    """For another one the driver would spin: it is looked at again after a pause."""
    event, interrupting = driver.event_create(), driver.event_create(interrupts=True)
    pauses = []
    api.fail("cuEventQuery", 600)

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 40:
            api.fail("cuEventQuery", 0)

    monkeypatch.setattr("cuda_async.driver.cuda._driver.time", types.SimpleNamespace(sleep=pause))
    driver.event_synchronize(event)
    assert len(pauses) == 40
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (50e-6, 250e-6)
    assert not api.named("cuEventSynchronize")
    driver.event_synchronize(interrupting)
    assert len(api.named("cuEventSynchronize")) == 1
    assert len(pauses) == 40
    driver.event_destroy(interrupting)
    assert interrupting not in driver._interrupting


@pytest.mark.timeout(20)
def test_queries_of_sanitized_programs_are_followed_by_the_driver_s_wait(api, driver, monkeypatch):
    """`tools/waited_queries.py`: a wait for a plain event, which is made of queries, too."""
    path = Path(__file__).resolve().parents[4] / "tools" / "waited_queries.py"
    for name in ("event_query", "stream_query"):  # undone behind the test
        monkeypatch.setattr(type(driver), name, getattr(type(driver), name))
    runpy.run_path(str(path))["wait_after_queries"]()
    stream, event = driver.stream_create(), driver.event_create()
    driver.event_synchronize(event)
    assert len(api.named("cuEventSynchronize")) == 1
    assert driver.event_query(event)
    assert len(api.named("cuEventSynchronize")) == 2
    assert driver.stream_query(stream)
    assert len(api.named("cuStreamSynchronize")) == 1
    api.fail("cuEventQuery", 600)
    api.fail("cuStreamQuery", 600)
    assert not driver.event_query(event)
    assert not driver.stream_query(stream)
    assert len(api.named("cuEventSynchronize")) == 2
    assert len(api.named("cuStreamSynchronize")) == 1


# --------------------------------------------------------------------------------------- memory


def test_out_of_memory_tells_request_use_and_limit(api, driver):
    stream = driver.stream_create()
    api.fail("cuMemAllocFromPoolAsync", 2, 1)
    with pytest.raises(OutOfMemoryError, match="1000000 bytes do not fit: 4096 bytes are in use") as caught:
        driver.memory_alloc_async(1_000_000, stream)
    error = caught.value
    assert (error.requested_bytes, error.used_bytes, error.limit_bytes) == (1_000_000, 4096, 80 << 30)
    assert driver.is_usable


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cuStreamCreateWithPriority", lambda driver: driver.stream_create()),
        ("cuEventCreate", lambda driver: driver.event_create()),
        ("cuModuleLoadDataEx", lambda driver: driver.module_load(PTX)),
        ("cuStreamSynchronize", lambda driver: driver.stream_synchronize(driver.stream_create())),
    ],
)
def test_what_finds_no_memory_gets_what_the_pool_has_cached(api, driver, name, call, stays):
    """The pool keeps what is freed: it may have all of the device's memory, and use none of it."""
    before = api.results.get(name, lambda *_: (0,))

    def answer(*arguments):
        if stays or not api.named("cuMemPoolTrimTo"):
            return 2, None
        return before(*arguments)

    api.answers[name] = answer
    if not stays:
        call(driver)
        assert len(api.named(name)) == 2
        return
    for statistics in ("cuMemPoolGetAttribute", "cuMemGetInfo"):
        api.fail(statistics, 2, 2)
    with pytest.raises(OutOfMemoryError, match=f"the driver found no memory for {name}") as caught:
        call(driver)
    assert len(api.named(name)) == 2
    assert caught.value.limit_bytes == 80 << 30
    assert driver.is_usable


def test_launch_that_finds_no_memory_is_no_other_error(api, driver):
    function = driver.module_function(driver.module_load(PTX), "scale")
    stream = driver.stream_create()
    api.fail("cuLaunchKernel", 2)
    with pytest.raises(OutOfMemoryError, match="cuLaunchKernel"):
        plain_launch(driver, function, stream)
    assert api.named("cuMemPoolTrimTo")
    plain = api.answers.pop("cuLaunchKernel")
    assert plain == (2,)
    plain_launch(driver, function, stream)


def test_launch_of_a_graph_is_made_again_with_what_was_cached(api, driver):
    stream = driver.stream_create()
    driver._graphs[0x900] = None
    api.answers["cuGraphLaunch"] = lambda *_: (0 if api.named("cuMemPoolTrimTo") else 2,)
    driver.graph_launch(0x900, stream)
    assert api.named("cuGraphLaunch") == [(0x900, stream)] * 2


def test_pool_for_which_there_is_no_memory_says_so(api):
    from cuda_async.driver.cuda import CudaDriver

    api.fail("cuMemPoolCreate", 2, 1)
    with pytest.raises(OutOfMemoryError, match="cuMemPoolCreate: CUDA_ERROR_OUT_OF_MEMORY"):
        CudaDriver(api, 0, api.CUcontext(1), api.CUdevice(0))


def test_closed_driver_gives_pinned_memory_back(api, driver):
    """Arrays made on it may outlive the device."""
    small, large, other = driver.pinned_alloc(4096), driver.pinned_alloc(16 << 20), driver.pinned_alloc(64)
    driver.close()
    driver.pinned_free(small)
    driver.pinned_free(large)
    assert api.named("cuMemFreeHost") == [(small,)]
    assert api.named("cuMemHostUnregister") == [(large,)]
    api.fail("cuMemFreeHost", 700, 1)
    with pytest.raises(ClosedError):  # whoever closed it leaves that aside
        driver.pinned_free(other)
    assert api.named("cuMemFreeHost") == [(small,), (other,)]


def test_pinned_memory_is_portable(api, driver):
    address = driver.pinned_alloc(4096)
    driver.pinned_free(address)
    assert api.named("cuMemHostAlloc") == [(4096, 1)]
    api.fail("cuMemHostAlloc", 2, 1)
    with pytest.raises(OutOfMemoryError, match="page-lock"):
        driver.pinned_alloc(4096)


def test_call_that_fails_because_of_a_close_says_closed(api, driver):
    """Another thread may close the driver between a call's start and its failure."""

    def closed_meanwhile(*_):
        driver.close()
        return 1, 0

    api.answers["cuStreamCreateWithPriority"] = closed_meanwhile
    with pytest.raises(ClosedError, match="cuda:0 is closed"):
        driver.stream_create()


def test_large_pinned_memory_is_made_page_by_page(api, driver):
    """`cuMemHostAlloc` of it would hold the process's memory map for 100 ms."""
    address = driver.pinned_alloc(16 << 20)
    assert api.named("cuMemHostAlloc") == []
    assert api.named("cuMemHostRegister") == [(address, 16 << 20, 1)]
    memory = (ctypes.c_ubyte * (16 << 20)).from_address(address)
    assert address % 4096 == memory[0] == memory[-1] == 0
    driver.pinned_free(address)
    assert api.named("cuMemHostUnregister") == [(address,)]
    assert api.named("cuMemFreeHost") == []
    api.fail("cuMemHostRegister", 1)
    other = driver.pinned_alloc(16 << 20)
    assert api.named("cuMemHostAlloc") == [(16 << 20, 1)]
    driver.pinned_free(other)
    assert api.named("cuMemFreeHost") == [(other,)]


@pytest.mark.parametrize(
    ("pattern", "call"),
    [
        (b"\x07", ("cuMemsetD8Async", 0x100, 7, 10)),
        (b"\x01\x02", ("cuMemsetD16Async", 0x100, 0x0201, 10)),
        (b"\x01\x02\x03\x04", ("cuMemsetD32Async", 0x100, 0x04030201, 10)),
        (b"\x01\x02\x03\x04" * 2, ("cuMemsetD32Async", 0x100, 0x04030201, 20)),
    ],
)
def test_fill_uses_memset(api, driver, pattern, call):
    stream = driver.stream_create()
    driver.fill_async(0x100, pattern, 10, stream)
    assert api.calls[-1] == (*call, stream)


@pytest.fixture
def launches(api, driver):
    """Every launch of the driver's own kernels: (name, blocks, its 64-bit arguments)."""
    seen = []

    def launch(function, gx, gy, gz, bx, by, bz, shared, stream, pointers, extra):
        kernel = next(text for handle, text in driver._kernels.values() if handle == function)
        addresses = (ctypes.c_uint64 * len(kernel.parameters)).from_address(pointers)
        values = []
        for address, parameter in zip(addresses, kernel.parameters, strict=True):
            values += struct.unpack(
                f"<{parameter.size_bytes // 8}Q", ctypes.string_at(address, parameter.size_bytes)
            )
        seen.append((kernel.name, gx, values))
        return (0,)

    api.answers["cuLaunchKernel"] = launch
    return seen


def test_fill_of_eight_bytes_uses_a_kernel(api, driver, launches):
    stream = driver.stream_create()
    driver.fill_async(0x100, struct.pack("<d", 1.5), 1000, stream)
    assert launches == [("ca_fill_64", 4, [0x100, 0x3FF8000000000000, 1000])]
    with pytest.raises(DriverError, match="align the address"):
        driver.fill_async(0x104, b"12345678", 1, stream)
    with pytest.raises(DriverError, match="a pattern of 3 bytes; give 1, 2, 4 or 8"):
        driver.fill_async(0x100, b"123", 1, stream)


def test_contiguous_strided_copy_is_a_plain_copy(api, driver):
    stream = driver.stream_create()
    driver.copy_strided_async(0x1000, (32, 4), 0x2000, (32, 4), (3, 8), 4, stream)
    assert api.calls[-1] == ("cuMemcpyDtoDAsync", 0x1000, 0x2000, 96, stream)


def test_long_rows_are_copied_by_the_copy_engine(api, driver):
    stream = driver.stream_create()
    driver.copy_strided_async(0x10000, (4096, 4), 0x20000, (8192, 4), (5, 512), 4, stream)
    name, copy, on = api.calls[-1]
    assert (name, on) == ("cuMemcpy2DAsync", stream)
    assert (copy.dstDevice, copy.dstPitch, copy.srcDevice, copy.srcPitch) == (0x10000, 4096, 0x20000, 8192)
    assert (copy.WidthInBytes, copy.Height) == (2048, 5)


def test_transposed_copy_uses_a_kernel(api, driver, launches):
    stream = driver.stream_create()
    driver.copy_strided_async(0x1000, (40, 4), 0x2000, (4, 40), (10, 10), 4, stream)
    table = [10, 4, 40, 10, 40, 4] + [0] * 18
    assert launches == [("ca_copy_strided_4_narrow", 1, [0x1000, 0x2000, 100, *table])]
    driver.copy_strided_async(0x1000, (40, 4), 0x2000, (4, 40), (10, 10), 4, stream)
    assert len(api.named("cuModuleLoadDataEx")) == 1


def test_negative_stride_is_passed_as_two_complement(driver, launches):
    stream = driver.stream_create()
    driver.copy_strided_async(0x1000, (4,), 0x2000, (-4,), (10,), 4, stream)
    table = [10, 4, 2**64 - 4] + [0] * 21
    assert launches == [("ca_copy_strided_4_narrow", 1, [0x1000, 0x2000, 10, *table])]


def test_empty_copy_enqueues_nothing(api, driver):
    stream = driver.stream_create()
    api.calls.clear()
    driver.copy_strided_async(0x1000, (0, 4), 0x2000, (0, 4), (0, 8), 4, stream)
    driver.fill_async(0x100, b"\0", 0, stream)
    driver.convert_async(1, np.dtype("f4"), 2, np.dtype("f8"), 0, stream)
    assert not api.calls


def test_conversion_is_compiled_once_and_ahead(api, driver, launches):
    stream = driver.stream_create()
    bf16 = np.dtype(ml_dtypes.bfloat16)
    driver.convert_prepare(np.dtype("f4"), bf16)
    driver.convert_async(0x1000, np.dtype("f4"), 0x2000, bf16, 5000, stream)
    assert launches == [("ca_convert_bfloat16_to_float32", 20, [0x1000, 0x2000, 5000])]
    assert len(api.named("cuModuleLoadDataEx")) == 1


def test_conversion_to_the_same_type_is_a_copy(api, driver):
    stream = driver.stream_create()
    driver.convert_prepare(np.dtype("f8"), np.dtype("f8"))
    driver.convert_async(0x1000, np.dtype("f8"), 0x2000, np.dtype("f8"), 5, stream)
    assert api.calls[-1] == ("cuMemcpyDtoDAsync", 0x1000, 0x2000, 40, stream)


def test_conversion_of_other_types_is_refused(driver):
    stream = driver.stream_create()
    with pytest.raises(DriverError, match="no conversion of complex64"):
        driver.convert_async(1, np.dtype("c8"), 2, np.dtype("f4"), 1, stream)


def test_huge_copy_divides_in_64_bits(driver, launches):
    stream = driver.stream_create()
    driver.copy_strided_async(0x1000, (2,), 0x20, (0,), (1 << 32,), 1, stream)
    ((name, blocks, _),) = launches
    assert name == "ca_copy_strided_1_wide"
    assert blocks == 132 * 16


def test_kernels_of_copies_are_compiled_ahead(api, driver, launches):
    driver.prepare()
    assert len(api.named("cuModuleLoadDataEx")) == 1
    stream = driver.stream_create()
    driver.copy_strided_async(0x1000, (40, 4), 0x2000, (4, 40), (10, 10), 4, stream)
    driver.fill_async(0x1000, b"abcdefgh", 1, stream)
    assert len(api.named("cuModuleLoadDataEx")) == 1


def test_own_kernel_is_loaded_by_one_thread(api, driver):
    barrier = threading.Barrier(4)

    def prepare():
        barrier.wait()
        driver.convert_prepare(np.dtype("i4"), np.dtype("f4"))

    threads = [threading.Thread(target=prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(api.named("cuModuleLoadDataEx")) == 1


# -------------------------------------------------------------------------------------- modules


def test_module_is_loaded_with_logs(api, driver):
    driver.module_load(b"\xef\xbb\xbf" + PTX + b"\0")
    ((image, count, names, values),) = api.named("cuModuleLoadDataEx")
    assert image == PTX + b"\0"
    assert count == len(names) == len(values) == 4
    assert names[0] == "ERROR_LOG_BUFFER"


def refuse_image(api, code, log=""):
    def load(image, count, names, values):
        values[0][: len(log)] = log.encode()
        return code, None

    api.answers["cuModuleLoadDataEx"] = load


def test_syntax_error_shows_log_line_and_source(api, driver):
    log = "ptxas application ptx input, line 3; error   : Parsing error near 'bogus': syntax error"
    refuse_image(api, 218, log)
    with pytest.raises(CompileError, match=r"my.ptx: .* at line 3: bogus stuff") as caught:
        driver.module_load(b".version 8.0\n.target sm_80\n  bogus stuff\n", "my.ptx")
    assert caught.value.log == log
    assert log in str(caught.value)
    assert isinstance(caught.value.__cause__, DriverError)


@pytest.mark.parametrize(
    "log",
    [
        "ptxas application ptx input, line 1; fatal   : Unsupported .version 99.0; current version is '9.0'",
        "",
    ],
)
def test_too_new_ptx_shows_both_versions(api, driver, log):
    refuse_image(api, 222, log)
    with pytest.raises(CompileError, match=r"is PTX 99\.0, and the driver \(CUDA 13\.0\) takes up to 9\.0"):
        driver.module_load(b"// made by hand\n.version 99.0\n.target sm_80\n")


def test_cubin_for_another_device_shows_both_architectures(api, driver):
    refuse_image(api, 209)
    cubin = bytearray(64)
    cubin[:8] = b"\x7fELF\x02\x01\x01\x41"
    struct.pack_into("<H", cubin, 18, 190)
    struct.pack_into("<I", cubin, 48, 0x06006402)
    with pytest.raises(CompileError, match=r"cubin for sm_100, and cuda:0 \(Fake GPU, sm_90\)"):
        driver.module_load(bytes(cubin))


def test_ptx_for_a_newer_target_shows_both(api, driver):
    refuse_image(api, 209)
    with pytest.raises(CompileError, match=r"PTX for sm_120a, and cuda:0 \(Fake GPU, sm_90\)"):
        driver.module_load(b".version 8.7\n.target sm_120a\n")


@pytest.mark.parametrize("image", [b"", b"\0", b" \n\0"])
def test_empty_image_is_refused(api, driver, image):
    with pytest.raises(CompileError, match=r"k\.ptx is empty"):
        driver.module_load(image, "k.ptx")
    assert not api.named("cuModuleLoadDataEx")


def test_host_image_is_refused(driver):
    with pytest.raises(TypeError, match="runs on the host device only"):
        driver.module_load(HostImage(functions={}))


def test_fault_while_loading_loses_the_device(api, driver):
    refuse_image(api, 700)
    with pytest.raises(DeviceLostError):
        driver.module_load(PTX)


def test_missing_names_are_lookup_errors(api, driver):
    module = driver.module_load(PTX)
    api.fail("cuModuleGetFunction", 500, 1)
    api.fail("cuModuleGetGlobal", 500, 2)
    with pytest.raises(LookupError, match="no kernel 'f'"):
        driver.module_function(module, "f")
    with pytest.raises(LookupError, match="no global variable 'g'"):
        driver.module_global(module, "g")


def test_kernel_names_are_listed(driver):
    assert driver.module_function_names(driver.module_load(PTX)) == ["kernel_1", "kernel_2"]


def parameters_answer(*layout):
    return lambda _, i: (0, *layout[i]) if i < len(layout) else (1, None, None)


def test_function_info_takes_kinds_from_the_ptx(api, driver):
    api.answers["cuFuncGetParamInfo"] = parameters_answer((0, 8), (8, 4))
    info = driver.function_info(driver.module_function(driver.module_load(PTX), "scale"))
    assert [(p.name, p.kind) for p in info.parameters] == [
        ("x", ParameterKind.INTEGER),
        ("s", ParameterKind.FLOAT),
    ]
    assert info.required_block == (64, 2, 1)
    assert info.name == "scale"


def test_function_info_trusts_the_driver_over_the_text(api, driver):
    """Where the text was misread only offsets and sizes remain."""
    api.answers["cuFuncGetParamInfo"] = parameters_answer((0, 8), (8, 8), (16, 12))
    info = driver.function_info(driver.module_function(driver.module_load(PTX), "scale"))
    assert [(p.offset_bytes, p.size_bytes, p.alignment_bytes) for p in info.parameters] == [
        (0, 8, 8),
        (8, 8, 8),
        (16, 12, 4),
    ]
    assert all(p.kind is ParameterKind.UNKNOWN for p in info.parameters)


def test_unloading_closes_functions(api, driver):
    module = driver.module_load(PTX)
    function = driver.module_function(module, "scale")
    assert driver.module_function(module, "other") != function
    driver.module_unload(module)
    with pytest.raises(DriverError, match="kernel"):
        driver.function_info(function)
    with pytest.raises(DriverError, match="module"):
        driver.module_function(module, "scale")


# ------------------------------------------------------------------------- launch with attributes


def launch_attributes(driver, function, stream, **attributes):
    arguments = ArgumentBlock([])
    options = {"cluster": None, "cooperative": False, **attributes}
    driver.launch_with_attributes(function, (8, 1, 1), (64, 1, 1), 16, stream, arguments, **options)


def test_cluster_and_cooperative_become_attributes(api, driver):
    function = driver.module_function(driver.module_load(PTX), "scale")
    stream = driver.stream_create()
    launch_attributes(driver, function, stream, cluster=(2, 1, 1), cooperative=True)
    config, launched, pointers, extra = api.named("cuLaunchKernelEx")[0]
    assert (launched, pointers, extra) == (function, 0, 0)
    assert (config.gridDimX, config.blockDimX, config.sharedMemBytes, config.hStream) == (8, 64, 16, stream)
    assert config.numAttrs == len(config.attrs) == 2
    cluster, cooperative = config.attrs
    assert cluster.id == "CLUSTER_DIMENSION"
    assert vars(cluster.value.clusterDim) == {"x": 2, "y": 1, "z": 1}
    assert (cooperative.id, cooperative.value.cooperative) == ("COOPERATIVE", 1)
    assert not api.named("cuFuncSetAttribute")


def test_launch_that_may_begin_early_has_an_attribute(api, driver):
    function = driver.module_function(driver.module_load(PTX), "scale")
    stream = driver.stream_create()
    launch_attributes(driver, function, stream, programmatic=True)
    launch_attributes(driver, function, stream)
    early, plain = (call[0] for call in api.named("cuLaunchKernelEx"))
    (attribute,) = early.attrs
    assert attribute.id == "PROGRAMMATIC_STREAM_SERIALIZATION"
    assert attribute.value.programmaticStreamSerializationAllowed == 1
    assert not plain.attrs


def test_equal_launches_share_a_config(api, driver):
    function = driver.module_function(driver.module_load(PTX), "scale")
    stream = driver.stream_create()
    for _ in range(2):
        launch_attributes(driver, function, stream, cooperative=True)
    first, second = api.named("cuLaunchKernelEx")
    assert first[0] is second[0]


def test_bound_launch_is_one_call(api, driver):
    function = driver.module_function(driver.module_load(PTX), "scale")
    stream = driver.stream_create()
    launch = driver.bind_launch(function, (3, 2, 1), (64, 1, 1), 128, stream, ArgumentBlock([]))
    api.calls.clear()
    launch()
    launch()
    ((first, *rest), second) = api.named("cuLaunchKernelEx")
    assert len(api.calls) == 2
    assert first is second[0]
    assert rest == [function, 0, 0]
    assert (first.gridDimX, first.gridDimY, first.blockDimX, first.sharedMemBytes) == (3, 2, 64, 128)
    assert (first.hStream, first.numAttrs) == (stream, 0)
    api.fail("cuLaunchKernelEx", 700)
    result = launch()
    assert result == 700
    with pytest.raises(DeviceLostError):
        driver.launch_failed(result)


def test_large_cluster_opts_in_once(api, driver):
    function = driver.module_function(driver.module_load(PTX), "scale")
    stream = driver.stream_create()
    for _ in range(2):
        launch_attributes(driver, function, stream, cluster=(16, 1, 1))
    assert api.named("cuFuncSetAttribute") == [(function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)]


def test_shared_memory_opt_in(api, driver):
    function = driver.module_function(driver.module_load(PTX), "scale")
    driver.function_allow_shared_bytes(function, 100_000)
    assert api.named("cuFuncSetAttribute") == [(function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", 100_000)]
