"""The `Driver` protocol on the host device: work, events, errors, modules, launches, several devices."""

import asyncio
import struct
import threading
import time
from typing import ClassVar

import numpy as np
import pytest

from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver._protocol import FunctionInfo, HostImage, ParameterInfo
from cuda_async.driver.host import HostDriver, host_device_count, open_host_driver
from cuda_async.errors import (
    ClosedError,
    CompileError,
    ContextError,
    DeviceLostError,
    DriverError,
    KernelError,
    MemoryFault,
)

MIB = 1 << 20


class Kernel:
    """A host function from a Python generator function of the launch."""

    def __init__(self, body, name="kernel", parameters=(), **info):
        self.info = FunctionInfo(
            name=name, parameters=parameters, max_threads_per_block=info.pop("max_threads", 1024), **info
        )
        self.body = body

    def start(self, launch):
        return self.body(launch)


def load(driver, kernel):
    module = driver.module_load(HostImage(functions={kernel.info.name: kernel}))
    return driver.module_function(module, kernel.info.name)


def launch(driver, function, stream, grid=(1, 1, 1), block=(1, 1, 1), shared=0):
    driver.launch(function, grid, block, shared, stream, ArgumentBlock(()))


@pytest.fixture
def host():
    driver = HostDriver(memory_bytes=256 * MIB)
    yield driver
    driver.close()


@pytest.fixture
def stream(host):
    return host.stream_create()


@pytest.fixture
def gate(host):
    """(function, event): a kernel that runs until the event is set."""
    event = threading.Event()

    def body(_):
        while not event.is_set():
            yield

    yield load(host, Kernel(body, "gate")), event
    event.set()


def read(host, stream, address, dtype, count):
    size = np.dtype(dtype).itemsize * count
    pinned = host.pinned_alloc(size)
    host.copy_device_to_host_async(pinned, address, size, stream)
    host.stream_synchronize(stream)
    result = host.memory.array(pinned, dtype, (count,)).copy()
    host.pinned_free(pinned)
    return result


def write(host, stream, values):
    values = np.ascontiguousarray(values)
    address = host.memory_alloc_async(values.nbytes, stream)
    pinned = host.pinned_alloc(values.nbytes)
    host.memory.array(pinned, values.dtype, values.shape, access="write")[...] = values
    host.copy_host_to_device_async(address, pinned, values.nbytes, stream)
    host.stream_synchronize(stream)
    host.pinned_free(pinned)
    return address


# -------------------------------------------------------------------------------- copies and fills


@pytest.mark.parametrize("size", [1, 4096, 9 * MIB + 3])
def test_round_trip_through_the_device(host, stream, size):
    values = np.random.default_rng(0).integers(0, 256, size).astype("u1")
    a = write(host, stream, values)
    b = host.memory_alloc_async(size, stream)
    host.copy_device_to_device_async(b, a, size, stream)
    np.testing.assert_array_equal(read(host, stream, b, "u1", size), values)


@pytest.mark.parametrize("shift", [MIB, -MIB, 3, -3])
def test_overlapping_copies(host, stream, shift):
    """Undefined on CUDA; here they are right."""
    values = np.random.default_rng(0).integers(0, 256, 16 * MIB).astype("u1")
    a = write(host, stream, values)
    src, dst = max(0, -shift), max(0, shift)
    size = 16 * MIB - abs(shift)
    host.copy_device_to_device_async(a + dst, a + src, size, stream)
    np.testing.assert_array_equal(
        read(host, stream, a, "u1", 16 * MIB)[dst : dst + size], values[src : src + size]
    )


@pytest.mark.parametrize("pattern", [b"\x7f", b"\x01\x02", b"abcd", b"12345678"])
@pytest.mark.parametrize("count", [1, 3, 1_000_001])
def test_fill_writes_the_pattern(host, stream, pattern, count):
    a = write(host, stream, np.zeros((count + 1) * len(pattern), "u1"))
    host.fill_async(a, pattern, count, stream)
    result = read(host, stream, a, "u1", (count + 1) * len(pattern))
    assert result.tobytes() == pattern * count + b"\0" * len(pattern)


@pytest.mark.parametrize(
    ("pattern", "shift", "count"), [(b"abc", 0, 1), (b"", 0, 1), (b"ab", 1, 1), (b"a", 0, -1)]
)
def test_bad_fills_are_refused(host, stream, pattern, shift, count):
    a = host.memory_alloc_async(64, stream)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        host.fill_async(a + shift, pattern, count, stream)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "c16", "V3", "V12"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, 1::2],
        lambda x: x[::-1, ::-2],
        lambda x: x.T,
        lambda x: np.broadcast_to(x[2], x.shape),
        lambda x: x[3, 4, ...],
        lambda x: x[:0],
    ],
    ids=["columns", "backwards", "transposed", "broadcast", "scalar", "empty"],
)
def test_strided_copies(host, stream, dtype, view):
    x = np.random.default_rng(0).integers(0, 256, 60 * np.dtype(dtype).itemsize).astype("u1")
    x = x.view(dtype).reshape(6, 10)
    source = view(x)
    src = write(host, stream, x) + source.__array_interface__["data"][0] - x.__array_interface__["data"][0]
    want = np.array(source, order="C")
    dst = write(host, stream, np.zeros(max(1, want.nbytes), "u1"))
    host.copy_strided_async(dst, want.strides, src, source.strides, source.shape, x.itemsize, stream)
    assert read(host, stream, dst, "u1", want.nbytes or 1)[: want.nbytes].tobytes() == want.tobytes()


@pytest.mark.parametrize("shape", [(3000, 1000), (1, 3_000_000), (3_000_000, 1), (50, 60, 5, 200)])
def test_large_strided_copies_go_in_pieces(host, stream, shape):
    x = np.arange(3_000_000, dtype="i4").reshape(shape)
    src, dst = write(host, stream, x), host.memory_alloc_async(x.nbytes, stream)
    turned = x.transpose()
    want = np.ascontiguousarray(turned)
    host.copy_strided_async(dst, want.strides, src, turned.strides, turned.shape, 4, stream)
    np.testing.assert_array_equal(read(host, stream, dst, "i4", x.size), want.reshape(-1))


@pytest.mark.parametrize(
    ("dst_strides", "src_strides", "shape", "itemsize"),
    [((4,), (4, 4), (3,), 4), ((0,), (4,), (3,), 4), ((4,), (4,), (-1,), 4), ((4,), (4,), (3,), 0)],
)
def test_bad_strided_copies_are_refused(host, stream, dst_strides, src_strides, shape, itemsize):
    a = host.memory_alloc_async(64, stream)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        host.copy_strided_async(a, dst_strides, a, src_strides, shape, itemsize, stream)


def test_conversion_of_many_elements(host, stream):
    values = np.random.default_rng(0).normal(size=700_000)
    src, dst = write(host, stream, values), host.memory_alloc_async(4 * values.size, stream)
    host.convert_async(dst, np.dtype("f4"), src, np.dtype("f8"), values.size, stream)
    np.testing.assert_array_equal(read(host, stream, dst, "f4", values.size), values.astype("f4"))


def test_conversion_of_unknown_types_is_refused(host, stream):
    with pytest.raises(DriverError, match="complex64"):
        host.convert_async(0, np.dtype("c8"), 0, np.dtype("f4"), 1, stream)


def test_pageable_memory_is_not_copied(host, stream):
    array, a = np.zeros(16, "u1"), host.memory_alloc_async(16, stream)
    host.copy_host_to_device_async(a, array.ctypes.data, 16, stream)
    with pytest.raises(MemoryFault, match="read of 16 bytes"):
        host.stream_synchronize(stream)


def test_kernels_may_use_imported_numpy_memory(host, stream):
    array, a = np.arange(16, dtype="u1"), host.memory_alloc_async(16, stream)
    borrowed = host.memory.add_foreign(array.ctypes.data, 16, array)
    host.copy_device_to_device_async(a, array.ctypes.data, 16, stream)
    assert read(host, stream, a, "u1", 16).tolist() == list(range(16))
    host.memory.remove_foreign(borrowed)


# -------------------------------------------------------------------------------- events and streams


def test_event_is_done_when_the_stream_is_past_it(host, stream, gate):
    event = host.event_create()
    assert host.event_query(event), "an event that was never recorded is done"
    launch(host, gate[0], stream)
    host.event_record(event, stream)
    assert not host.event_query(event)
    assert not host.stream_query(stream)
    gate[1].set()
    host.event_synchronize(event)
    assert host.event_query(event)
    host.stream_synchronize(stream)
    assert host.stream_query(stream)


def test_event_means_its_last_record(host, stream, gate):
    event, other = host.event_create(), host.stream_create()
    host.event_record(event, stream)
    assert host.event_query(event)
    launch(host, gate[0], other)
    host.event_record(event, other)
    assert not host.event_query(event)


def test_wait_refers_to_the_record_at_the_call(host, stream, gate):
    """A later record of the same event does not hold who waited before."""
    event, other = host.event_create(), host.stream_create()
    host.event_record(event, stream)
    host.stream_wait_event(other, event)
    launch(host, gate[0], stream)
    host.event_record(event, stream)
    host.stream_synchronize(other)


def test_wait_orders_streams(host, stream, gate):
    event, other = host.event_create(), host.stream_create()
    a = write(host, stream, np.zeros(4, "u1"))
    launch(host, gate[0], stream)
    host.fill_async(a, b"\5", 4, stream)
    host.event_record(event, stream)
    host.stream_wait_event(other, event)
    b = host.memory_alloc_async(4, other)
    host.copy_device_to_device_async(b, a, 4, other)
    assert not host.stream_query(other)
    gate[1].set()
    assert read(host, other, b, "u1", 4).tolist() == [5, 5, 5, 5]


def test_small_work_passes_a_long_kernel(host, stream, gate):
    launch(host, gate[0], stream)
    other = host.stream_create()
    assert read(host, other, write(host, other, np.arange(5, dtype="u1")), "u1", 5).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert not host.stream_query(stream)


def test_timing_events_measure(host, stream):
    start, end = (host.event_create(timing=True) for _ in range(2))

    def body(_):
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            yield

    host.event_record(start, stream)
    launch(host, load(host, Kernel(body)), stream)
    host.event_record(end, stream)
    host.event_synchronize(end)
    assert 20 <= host.event_elapsed_ms(start, end) < 20_000


def test_timing_errors_say_why(host, stream, gate):
    plain, timing = host.event_create(), host.event_create(timing=True)
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_HANDLE \(400\).*without timing"):
        host.event_elapsed_ms(plain, timing)
    with pytest.raises(DriverError, match="never recorded"):
        host.event_elapsed_ms(timing, timing)
    launch(host, gate[0], stream)
    host.event_record(timing, stream)
    with pytest.raises(DriverError, match=r"CUDA_ERROR_NOT_READY \(600\)"):
        host.event_elapsed_ms(timing, timing)


def test_stream_destroyed_with_work_still_does_it(host, stream, gate):
    event = host.event_create()
    a = write(host, stream, np.zeros(1, "u1"))
    launch(host, gate[0], stream)
    host.fill_async(a, b"\7", 1, stream)
    host.event_record(event, stream)
    host.stream_destroy(stream)
    gate[1].set()
    host.event_synchronize(event)
    assert host.memory.view(a, 1)[0] == 7


def test_synchronize_waits_for_destroyed_streams(host, stream, gate):
    launch(host, gate[0], stream)
    host.stream_destroy(stream)
    threading.Timer(0.01, gate[1].set).start()
    host.synchronize()
    assert gate[1].is_set()


def test_stale_handles_are_errors(host, stream):
    event = host.event_create()
    host.event_destroy(event)
    host.stream_destroy(stream)
    for use in (
        lambda: host.event_query(event),
        lambda: host.stream_query(stream),
        lambda: host.fill_async(0, b"a", 1, stream),
        lambda: host.stream_destroy(stream),
        lambda: host.module_unload(5),
        lambda: host.function_info(5),
    ):
        with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_HANDLE"):
            use()


# -------------------------------------------------------------------------------- failures


def faulty(host):
    def body(launch):
        launch.memory.store(np.array([64], np.uint64), np.array([1], "i4"))
        yield

    return load(host, Kernel(body, "faulty"))


def test_fault_names_the_kernel_and_the_stream_goes_on(host, stream):
    event = host.event_create()
    launch(host, faulty(host), stream)
    host.event_record(event, stream)
    with pytest.raises(MemoryFault, match="kernel faulty: write of 4 bytes at 0x40: null") as caught:
        host.event_synchronize(event)
    assert (caught.value.kernel, caught.value.address, caught.value.access) == ("faulty", 64, "write")
    with pytest.raises(MemoryFault):
        host.event_query(event)
    assert read(host, stream, write(host, stream, np.arange(3, dtype="u1")), "u1", 3).tolist() == [0, 1, 2]


def test_failure_reaches_streams_that_wait(host, stream):
    event, other, second = host.event_create(), host.stream_create(), host.event_create()
    launch(host, faulty(host), stream)
    host.event_record(event, stream)
    host.stream_wait_event(other, event)
    host.event_record(second, other)
    with pytest.raises(MemoryFault, match="faulty"):
        host.event_synchronize(second)


def test_failure_reaches_a_stream_that_waits_for_what_came_later(host, stream):
    """The event behind the work that failed has it alone; where that is waited for already, it is handed on."""
    other = host.stream_create()
    failed, later, unaware, aware = (host.event_create() for _ in range(4))
    launch(host, faulty(host), stream)
    host.event_record(failed, stream)
    host.event_record(later, stream)
    host.stream_wait_event(other, later)
    host.event_record(unaware, other)
    host.stream_hand_on(other, failed)
    host.event_record(aware, other)
    host.event_synchronize(unaware)
    with pytest.raises(MemoryFault, match="faulty"):
        host.event_synchronize(aware)


def test_handing_a_failure_on_waits_for_nothing(host, stream, gate):
    other, held, free = host.stream_create(), host.event_create(), host.event_create()
    launch(host, gate[0], stream)
    host.event_record(held, stream)
    host.stream_hand_on(other, held)
    host.event_record(free, other)
    host.event_synchronize(free)
    assert not host.event_query(held)
    gate[1].set()
    host.event_synchronize(held)


def test_any_exception_of_a_kernel_becomes_its_error(host, stream):
    def body(_):
        yield
        raise ZeroDivisionError("oops")

    launch(host, load(host, Kernel(body, "divides")), stream)
    with pytest.raises(
        KernelError, match="kernel divides failed on the host device: ZeroDivisionError: oops"
    ) as c:
        host.stream_synchronize(stream)
    assert c.value.kernel == "divides"
    assert isinstance(c.value.__cause__, ZeroDivisionError)


def test_lost_device_fails_everything(host, stream, gate):
    event, cause = host.event_create(), RuntimeError("cosmic ray")
    launch(host, gate[0], stream)
    host.fill_async(8, b"a", 1, stream)
    host.event_record(event, stream)
    host.fail_device(cause)
    for use in (
        lambda: host.event_query(event),
        lambda: host.event_synchronize(event),
        lambda: host.stream_synchronize(stream),
        lambda: host.stream_query(stream),
        lambda: host.synchronize(),
        lambda: host.stream_create(),
        lambda: host.memory_alloc_async(64, stream),
        lambda: launch(host, gate[0], stream),
        lambda: host.pool_statistics(),
    ):
        with pytest.raises(DeviceLostError, match="cosmic ray") as caught:
            use()
        assert caught.value.__cause__ is cause
        assert caught.value.kernels == ("gate",)


def test_losing_a_device_wakes_those_who_wait(host, stream, gate):
    event, seen = host.event_create(), []
    launch(host, gate[0], stream)
    host.event_record(event, stream)

    def wait():
        try:
            host.event_synchronize(event)
        except DeviceLostError as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    host.fail_device(RuntimeError("gone"))
    thread.join(10)
    assert len(seen) == 1


def test_other_devices_survive_a_lost_one(host, stream):
    lost = HostDriver(1, memory_bytes=MIB)
    lost.stream_create()
    lost.fail_device(RuntimeError("gone"))
    assert read(host, stream, write(host, stream, np.arange(3, dtype="u1")), "u1", 3).tolist() == [0, 1, 2]
    lost.close()


def test_closed_device_refuses(host, stream, gate):
    launch(host, gate[0], stream)
    host.close()
    host.close()
    for use in (
        lambda: host.stream_query(stream),
        lambda: host.memory_alloc_async(4, stream),
        host.synchronize,
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()


# -------------------------------------------------------------------------------- modules and launches


def test_kernel_gets_its_launch(host, stream):
    seen = []

    def body(launch):
        seen.append(launch)
        yield

    parameters = (
        ParameterInfo(name="n", offset_bytes=0, size_bytes=4),
        ParameterInfo(name="x", offset_bytes=8, size_bytes=8),
    )
    function = load(host, Kernel(body, parameters=parameters))
    block = ArgumentBlock(parameters)
    layout = struct.Struct("<i4xd")
    block.pack_into(layout, 5, 0.5)
    host.launch(function, (2, 3, 4), (32, 2, 1), 100, stream, block)
    block.pack_into(layout, 0, 0.0)  # the block was copied: it may be used for the next launch at once
    host.stream_synchronize(stream)
    assert layout.unpack(seen[0].arguments) == (5, 0.5)
    assert (seen[0].grid, seen[0].block, seen[0].shared_bytes) == ((2, 3, 4), (32, 2, 1), 100)
    assert seen[0].memory is host.memory


def test_module_lists_and_finds_functions(host):
    functions = {name: Kernel(None, name) for name in ("a", "b")}
    module = host.module_load(HostImage(functions=functions, name="two"))
    assert host.module_function_names(module) == ["a", "b"]
    assert host.module_function(module, "a") == host.module_function(module, "a")
    assert host.function_info(host.module_function(module, "b")).name == "b"
    with pytest.raises(LookupError, match="'c' in two"):
        host.module_function(module, "c")
    with pytest.raises(LookupError, match="'c' in two"):
        host.module_global(module, "c")


def test_unloaded_module_cannot_launch(host, stream):
    module = host.module_load(HostImage(functions={"a": Kernel(lambda launch: iter(()), "a")}))
    function = host.module_function(module, "a")
    host.module_unload(module)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_HANDLE"):
        launch(host, function, stream)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (b"\x7fELF\x02\x01", "m.cubin is a cubin.*PTX only.*nvcc -ptx"),
        (b"\x50\xed\x55\xba\x01", "is a fatbin"),
        (b"\x7fTileIR\0", "is Tile IR bytecode"),
        (b"\xff\xfe\x00", "not UTF-8 at byte 0"),
        (b"", "m.cubin is empty"),
        (b" \n\0", "m.cubin is empty"),
    ],
)
def test_images_that_are_not_ptx(host, image, words):
    with pytest.raises(CompileError, match=words):
        host.module_load(image, "m.cubin")


@pytest.mark.parametrize(
    ("grid", "block", "shared", "words"),
    [
        ((0, 1, 1), (1, 1, 1), 0, "grid axis x is 0"),
        ((1, 70000, 1), (1, 1, 1), 0, "grid axis y is 70000; 1 to 65535"),
        ((2**31, 1, 1), (1, 1, 1), 0, "grid axis x is 2147483648; 1 to 2147483647"),
        ((1, 1, 1), (2048, 1, 1), 0, "block axis x is 2048; 1 to 1024"),
        ((1, 1, 1), (1, 1, 65), 0, "block axis z is 65; 1 to 64"),
        ((1, 1, 1), (64, 32, 1), 0, "2048 threads per block; the limit is 1024"),
        ((1, 1, 1), (1, 1, 1), 49153, "49153 bytes of dynamic shared memory.*49152 are allowed.*232448"),
        ((1, 1, 1), (1, 1, 1), -1, "-1 bytes of dynamic shared memory"),
    ],
)
def test_impossible_launches_are_refused(host, stream, grid, block, shared, words):
    function = load(host, Kernel(lambda launch: iter(())))
    with pytest.raises(DriverError, match=r"cuLaunchKernel: CUDA_ERROR_INVALID_VALUE \(1\).*" + words):
        launch(host, function, stream, grid, block, shared)
    launch(host, function, stream)


def test_kernels_own_limits(host, stream):
    body = lambda launch: iter(())  # noqa: E731
    small = load(host, Kernel(body, max_threads=128))
    with pytest.raises(DriverError, match=r"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES \(701\).*256 threads"):
        launch(host, small, stream, block=(256, 1, 1))
    fixed = load(host, Kernel(body, required_block=(64, 2, 1)))
    with pytest.raises(DriverError, match=r"block \(32, 1, 1\); the kernel is compiled for \(64, 2, 1\)"):
        launch(host, fixed, stream, block=(32, 1, 1))
    launch(host, fixed, stream, block=(64, 2, 1))


def test_shared_memory_by_opting_in(host, stream):
    function = load(host, Kernel(lambda launch: iter(()), static_shared_bytes=1024))
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        launch(host, function, stream, shared=48 << 10)
    host.function_allow_shared_bytes(function, 226 << 10)
    launch(host, function, stream, shared=226 << 10)
    with pytest.raises(DriverError, match="it can have 231424"):
        host.function_allow_shared_bytes(function, 227 << 10)


def test_cluster_and_cooperative_launches(host, stream):
    function = load(host, Kernel(lambda launch: iter(())))

    def go(grid, block, cluster, cooperative):
        host.launch_with_attributes(
            function, grid, block, 0, stream, ArgumentBlock(()), cluster=cluster, cooperative=cooperative
        )

    go((4, 2, 1), (32, 1, 1), (2, 2, 1), False)
    go((132 * 2, 1, 1), (1024, 1, 1), None, True)
    with pytest.raises(DriverError, match=r"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE \(720\).*264"):
        go((132 * 2 + 1, 1, 1), (1024, 1, 1), None, True)
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_CLUSTER_SIZE.*1 to 8"):
        go((16, 1, 1), (32, 1, 1), (16, 1, 1), False)
    with pytest.raises(DriverError, match="not a multiple"):
        go((3, 1, 1), (32, 1, 1), (2, 1, 1), False)


# -------------------------------------------------------------------------------- devices


def test_properties_are_those_of_an_h100(host):
    limits = host.properties.limits
    assert (host.kind, host.properties.name) == ("host", "Simulated device")
    assert host.properties.compute_capability == (9, 0)
    assert limits.max_grid == (2**31 - 1, 65535, 65535)
    assert (limits.max_shared_bytes_per_block, limits.max_shared_bytes_per_block_optin) == (49152, 232448)
    assert host.properties.total_memory_bytes == 256 * MIB


def test_drivers_are_one_per_ordinal(monkeypatch):
    monkeypatch.setenv("CUDA_ASYNC_HOST_DEVICES", "2")
    assert host_device_count() == 2
    zero, one = open_host_driver(0), open_host_driver(1)
    assert zero is open_host_driver(0) is not one
    assert (zero.ordinal, one.ordinal) == (0, 1)
    assert zero.properties.uuid != one.properties.uuid
    with pytest.raises(ContextError, match="no host device 2: there are 2"):
        open_host_driver(2)
    one.close()
    assert open_host_driver(1) is not one


@pytest.mark.parametrize("text", ["0", "two", "-1", "1000"])
def test_bad_device_counts_are_named(monkeypatch, text):
    monkeypatch.setenv("CUDA_ASYNC_HOST_DEVICES", text)
    with pytest.raises(ContextError, match="CUDA_ASYNC_HOST_DEVICES"):
        host_device_count()


def test_copies_between_devices(host, stream):
    other = HostDriver(1, memory_bytes=16 * MIB)
    values = np.random.default_rng(0).integers(0, 256, 6 * MIB).astype("u1")
    a = write(host, stream, values)
    far = other.stream_create()
    b = other.memory_alloc_async(values.size, far)
    other.stream_synchronize(far)
    host.copy_device_to_device_async(b, a, values.size, stream)
    host.stream_synchronize(stream)
    np.testing.assert_array_equal(read(other, far, b, "u1", values.size), values)
    other.close()


def test_kernels_do_not_reach_other_devices(host, stream):
    other = HostDriver(1, memory_bytes=MIB)
    address = other.memory.allocate(64)

    def body(launch):
        launch.memory.load(np.array([address], np.uint64), "u1")
        yield

    launch(host, load(host, Kernel(body)), stream)
    with pytest.raises(MemoryFault):
        host.stream_synchronize(stream)
    other.close()


def test_streams_wait_for_events_of_other_devices(host, stream, gate):
    other = HostDriver(1, memory_bytes=MIB)
    far, event = other.stream_create(), host.event_create()
    launch(host, gate[0], stream)
    host.event_record(event, stream)
    other.stream_wait_event(far, event)
    assert not other.stream_query(far)
    gate[1].set()
    other.stream_synchronize(far)
    assert host.event_query(event)
    other.close()


def test_pinned_memory_serves_all_devices(host, stream):
    other = HostDriver(1, memory_bytes=MIB)
    far, pinned = other.stream_create(), host.pinned_alloc(64)
    host.memory.view(pinned, 64, "write")[:] = 9
    a = other.memory_alloc_async(64, far)
    other.copy_host_to_device_async(a, pinned, 64, far)
    assert (read(other, far, a, "u1", 64) == 9).all()
    other.close()


# -------------------------------------------------------------------------------- beside an event loop


@pytest.mark.parametrize("work", ["python", "copies", "enqueueing"])
@pytest.mark.timing
def test_event_loop_ticks_while_the_device_works(host, stream, work):
    """The longest gap of a 1 ms ticker stays below 25 ms while the engine is busy for half a second."""
    stop = time.perf_counter() + 0.5

    def body(_):
        while time.perf_counter() < stop:
            until = time.perf_counter() + 0.002
            while time.perf_counter() < until:
                pass
            yield

    if work == "python":
        launch(host, load(host, Kernel(body)), stream)
    elif work == "copies":
        a, b = (host.memory_alloc_async(64 * MIB, stream) for _ in range(2))
        for _ in range(20):
            host.copy_device_to_device_async(b, a, 64 * MIB, stream)
    else:
        a = host.memory_alloc_async(64, stream)
        for _ in range(20_000):
            host.fill_async(a, b"a", 64, stream)
    event = host.event_create()
    host.event_record(event, stream)

    async def tick():
        gaps, last = [], time.perf_counter()
        while not host.event_query(event):
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
        return gaps

    gaps = asyncio.run(tick())
    assert gaps
    # One gap may be the machine's: others run tests on it too.
    assert sorted(gaps)[-2:][0] < 0.025, sorted(gaps)[-5:]


# -------------------------------------------------------------------------------- many threads


def worker(host, streams, seed, problems):
    """Random pipelines over random streams, ordered by events; every value that comes back is checked."""
    rng = np.random.default_rng(seed)
    try:
        for turn in range(40):
            size, value = int(rng.integers(1, 100_000)), (seed * 40 + turn) % 251
            first, second, third = (streams[i] for i in rng.integers(0, len(streams), 3))
            events = [host.event_create() for _ in range(3)]
            a = host.memory_alloc_async(size, first)
            host.fill_async(a, bytes([value]), size, first)
            host.event_record(events[0], first)
            host.stream_wait_event(second, events[0])
            b = host.memory_alloc_async(size, second)
            host.copy_device_to_device_async(b, a, size, second)
            host.event_record(events[1], second)
            host.stream_wait_event(third, events[1])
            host.memory_free_async(a, third)
            pinned = host.pinned_alloc(size)
            host.copy_device_to_host_async(pinned, b, size, third)
            host.memory_free_async(b, third)
            host.event_record(events[2], third)
            host.event_synchronize(events[2])
            if not (host.memory.view(pinned, size) == value).all():
                problems.append((seed, turn))
            host.pinned_free(pinned)
            for event in events:
                host.event_destroy(event)
    except Exception as error:
        problems.append((seed, repr(error)))


@pytest.mark.parametrize("poison", ["0", "1"])
def test_threads_and_streams_mix_without_harm(monkeypatch, poison):
    monkeypatch.setenv("CUDA_ASYNC_POISON_FREED", poison)
    host, problems = HostDriver(memory_bytes=64 * MIB), []
    streams = [host.stream_create(priority) for priority in (0, 0, -1, -5)]
    threads = [threading.Thread(target=worker, args=(host, streams, seed, problems)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    host.synchronize()
    assert host.pool_statistics().used_bytes == 0
    host.close()


# -------------------------------------------------------------------------------- PTX, with the parser's interface


@pytest.mark.parametrize("image", [b".version 8.0\n\0", ".version 8.0\n"], ids=["bytes", "text"])
def test_ptx_is_parsed_loaded_and_unloaded(host, monkeypatch, image):
    from cuda_async.driver.host import ptx

    log = []

    class Loaded:
        functions: ClassVar = {"k": Kernel(lambda launch: iter(()), "k")}
        globals: ClassVar = {"table": (4096, 16)}

        def unload(self):
            log.append("unload")

    class Parsed:
        def load(self, memory):
            log.append(memory)
            return Loaded()

    def parse_module(text, name):
        log.append((text.rstrip("\0"), name))
        return Parsed()

    monkeypatch.setattr(ptx, "parse_module", parse_module, raising=False)
    module = host.module_load(image, "m.ptx")
    assert host.module_function_names(module) == ["k"]
    assert host.module_global(module, "table") == (4096, 16)
    host.module_unload(module)
    assert log == [(".version 8.0\n", "m.ptx"), host.memory, "unload"]
