"""What every `Driver` does, held to both: the host device here, the CUDA driver on a machine with a GPU.

The same statements about the same values, so that the simulation cannot lie.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from cuda_async.driver._arguments import ArgumentBlock
from cuda_async.driver._protocol import ParameterKind
from cuda_async.errors import CompileError, DriverError, OutOfMemoryError

PTX = """.version 7.0
.target sm_75
.address_size 64

.visible .global .align 4 .u32 counter = 7;
.visible .const .align 8 .f64 table[3] = {0d3FF0000000000000, 0d4000000000000000, 0d4008000000000000};

// Waits until the word at `flag` is not 0.
.visible .entry latch(.param .u64 flag)
{
    .reg .pred %p;
    .reg .b32 %r;
    .reg .b64 %rd;
    ld.param.u64 %rd, [flag];
$L_wait:
    ld.volatile.global.u32 %r, [%rd];
    setp.eq.u32 %p, %r, 0;
    @%p bra $L_wait;
    ret;
}

// x[i] = a * i + c for i < n, and z[i] = x for a struct of three words
.visible .entry ramp(.param .u64 x, .param .u32 n, .param .f32 a, .param .align 4 .b8 c[12])
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .reg .f32 %f<4>;
    ld.param.u64 %rd0, [x];
    ld.param.u32 %r0, [n];
    ld.param.f32 %f0, [a];
    ld.param.f32 %f1, [c+8];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra $L_done;
    cvt.rn.f32.u32 %f2, %r4;
    fma.rn.f32 %f3, %f0, %f2, %f1;
    mul.wide.u32 %rd1, %r4, 4;
    add.u64 %rd2, %rd0, %rd1;
    st.global.f32 [%rd2], %f3;
$L_done:
    ret;
}

// Each thread writes its coordinates, linearised, at its place in a 3-D launch.
.visible .entry coordinates(.param .u64 x)
{
    .reg .b32 %r<24>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %tid.y;
    mov.u32 %r2, %tid.z;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %ntid.y;
    mov.u32 %r5, %ntid.z;
    mov.u32 %r6, %ctaid.x;
    mov.u32 %r7, %ctaid.y;
    mov.u32 %r8, %ctaid.z;
    mov.u32 %r9, %nctaid.x;
    mov.u32 %r10, %nctaid.y;
    mad.lo.u32 %r11, %r8, %r10, %r7;
    mad.lo.u32 %r11, %r11, %r9, %r6;
    mad.lo.u32 %r12, %r2, %r4, %r1;
    mad.lo.u32 %r12, %r12, %r3, %r0;
    mul.lo.u32 %r13, %r3, %r4;
    mul.lo.u32 %r13, %r13, %r5;
    mad.lo.u32 %r14, %r11, %r13, %r12;
    mul.wide.u32 %rd1, %r14, 4;
    add.u64 %rd2, %rd0, %rd1;
    shl.b32 %r15, %r8, 16;
    shl.b32 %r16, %r2, 8;
    or.b32 %r17, %r15, %r16;
    or.b32 %r17, %r17, %r0;
    st.global.u32 [%rd2], %r17;
    ret;
}

// Reverses a block's words through dynamic shared memory.
.extern .shared .align 16 .b8 scratch[];
.visible .entry reverse(.param .u64 x)
{
    .reg .b32 %r<10>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ntid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.u32 %r2, [%rd2];
    mov.u32 %r3, scratch;
    shl.b32 %r4, %r0, 2;
    add.u32 %r5, %r3, %r4;
    st.shared.u32 [%r5], %r2;
    bar.sync 0;
    sub.u32 %r6, %r1, %r0;
    sub.u32 %r6, %r6, 1;
    shl.b32 %r7, %r6, 2;
    add.u32 %r8, %r3, %r7;
    ld.shared.u32 %r9, [%r8];
    st.global.u32 [%rd2], %r9;
    ret;
}

.visible .entry bump(.param .u64 unused)
.reqntid 32, 1, 1
{
    .reg .pred %p<1>;
    .reg .b32 %r<3>;
    mov.u32 %r2, %tid.x;
    setp.ne.u32 %p0, %r2, 0;
    @%p0 ret;
    ld.global.u32 %r0, [counter];
    add.u32 %r1, %r0, 1;
    st.global.u32 [counter], %r1;
    ret;
}
"""


class Bench:
    """A driver with a stream, and short ways to say what the tests do."""

    def __init__(self, driver):
        self.driver = driver
        self.stream = driver.stream_create()
        self._pinned: list[int] = []
        self.flag = self.pinned(16)

    def pinned(self, size_bytes):
        address = self.driver.pinned_alloc(size_bytes)
        self._pinned.append(address)
        return address

    def close(self):
        self.driver.synchronize()
        for address in self._pinned:
            self.driver.pinned_free(address)
        self.driver.stream_destroy(self.stream)

    @functools.cached_property
    def module(self):
        return self.driver.module_load(PTX.encode(), "contract.ptx")

    def function(self, name):
        return self.driver.module_function(self.module, name)

    def block(self, name, *values):
        """The argument block of a kernel, its values packed as the parameters say."""
        info = self.driver.function_info(self.function(name))
        block = ArgumentBlock(info.parameters)
        for parameter, value in zip(info.parameters, values, strict=True):
            raw = value if isinstance(value, bytes) else value.to_bytes(parameter.size_bytes, "little")
            assert len(raw) == parameter.size_bytes
            block.buffer[parameter.offset_bytes : parameter.offset_bytes + len(raw)] = raw
        return block

    def launch(self, name, grid, threads, *values, shared_bytes=0, stream=None):
        block = self.block(name, *values)
        function = self.function(name)
        self.driver.bind()
        self.driver.launch(function, grid, threads, shared_bytes, stream or self.stream, block)

    def upload(self, array, stream=None):
        """A device copy of a host array; the caller frees it."""
        array = np.ascontiguousarray(array)
        staging = self.pinned(max(array.nbytes, 1))
        ctypes.memmove(staging, array.ctypes.data, array.nbytes)
        self.driver.bind()
        address = self.driver.memory_alloc_async(max(array.nbytes, 1), stream or self.stream)
        self.driver.copy_host_to_device_async(address, staging, array.nbytes, stream or self.stream)
        return address

    def download(self, address, shape, dtype, stream=None):
        result = np.empty(shape, dtype)
        staging = self.pinned(max(result.nbytes, 1))
        self.driver.bind()
        self.driver.copy_device_to_host_async(staging, address, result.nbytes, stream or self.stream)
        self.driver.stream_synchronize(stream or self.stream)
        ctypes.memmove(result.ctypes.data, staging, result.nbytes)
        return result

    def free(self, *addresses):
        self.driver.bind()
        for address in addresses:
            self.driver.memory_free_async(address, self.stream)

    @contextmanager
    def held(self, stream=None):
        """Inside, `stream` does not get past this point. Nothing in here may allocate pinned memory."""
        # The first use of a kernel may need the device: not while a stream of it waits.
        self.write_flag(1)
        self.launch("latch", (1, 1, 1), (1, 1, 1), self.flag, stream=stream)
        self.driver.stream_synchronize(stream or self.stream)
        self.write_flag(0)
        self.launch("latch", (1, 1, 1), (1, 1, 1), self.flag, stream=stream)
        try:
            yield
        finally:
            self.write_flag(1)

    def write_flag(self, value):
        ctypes.c_uint32.from_address(self.flag).value = value


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def bench(request):
    if request.param == "host":
        from cuda_async.driver.host import open_host_driver

        driver = open_host_driver(0)
    else:
        from cuda_async.driver.cuda import open_cuda_driver

        driver = open_cuda_driver(0)
    bench = Bench(driver)
    yield bench
    bench.close()


# --------------------------------------------------------------------------------------- device


def test_properties_make_sense(bench):
    properties = bench.driver.properties
    limits = properties.limits
    assert bench.driver.kind in ("cuda", "host")
    assert properties.name
    assert properties.uuid
    assert properties.compute_capability >= (7, 5)
    assert properties.driver_version >= (12, 0)
    assert properties.total_memory_bytes > 1 << 28
    assert limits.max_threads_per_block == 1024
    assert limits.max_block == (1024, 1024, 64)
    assert limits.max_grid == (2**31 - 1, 65535, 65535)
    assert limits.max_shared_bytes_per_block == 48 << 10
    assert limits.max_shared_bytes_per_block_optin >= limits.max_shared_bytes_per_block
    assert limits.warp_size == 32
    assert limits.multiprocessors > 0
    assert limits.max_cluster_blocks in (1, 8, 16)
    assert limits.stream_priorities[0] >= limits.stream_priorities[1]


# --------------------------------------------------------------------------- streams and events


def test_stream_is_done_when_its_work_is(bench):
    driver = bench.driver
    event = driver.event_create()
    assert driver.event_query(event)  # never recorded
    with bench.held():
        driver.event_record(event, bench.stream)
        assert not driver.stream_query(bench.stream)
        assert not driver.event_query(event)
    driver.event_synchronize(event)
    assert driver.event_query(event)
    driver.stream_synchronize(bench.stream)
    assert driver.stream_query(bench.stream)
    driver.event_destroy(event)


def test_streams_do_not_wait_for_each_other(bench):
    driver = bench.driver
    other = driver.stream_create()
    driver.fill_async(bench.flag + 8, b"\0\0\0\0", 1, other)  # the first use of a call may need the device
    driver.stream_synchronize(other)
    with bench.held():
        driver.fill_async(bench.flag + 8, b"\5\0\0\0", 1, other)
        driver.stream_synchronize(other)
        assert ctypes.c_uint32.from_address(bench.flag + 8).value == 5
        assert not driver.stream_query(bench.stream)
    driver.stream_destroy(other)


def test_event_orders_two_streams(bench):
    driver = bench.driver
    other, event = driver.stream_create(), driver.event_create()
    source = bench.upload(np.zeros(4, "i4"))
    target = bench.upload(np.zeros(4, "i4"))
    driver.fill_async(source, b"\0\0\0\0", 4, bench.stream)
    driver.stream_synchronize(bench.stream)
    with bench.held():
        driver.fill_async(source, struct.pack("<i", 42), 4, bench.stream)
        driver.event_record(event, bench.stream)
        driver.stream_wait_event(other, event)
        driver.copy_device_to_device_async(target, source, 16, other)
        assert not driver.stream_query(other)
    assert bench.download(target, 4, "i4", other).tolist() == [42] * 4
    bench.free(source, target)
    driver.event_destroy(event)
    driver.stream_destroy(other)


def test_wait_takes_the_record_before_it(bench):
    """Recording the event again later changes nothing for who already waits."""
    driver = bench.driver
    other, event = driver.stream_create(), driver.event_create()
    driver.event_record(event, bench.stream)
    driver.stream_synchronize(bench.stream)
    with bench.held():
        driver.stream_wait_event(other, event)
        driver.event_record(event, bench.stream)
        driver.stream_synchronize(other)
        assert not driver.event_query(event)
    driver.event_synchronize(event)
    driver.event_destroy(event)
    driver.stream_destroy(other)


def test_waiting_for_an_unrecorded_event_is_nothing(bench):
    event = bench.driver.event_create()
    bench.driver.stream_wait_event(bench.stream, event)
    bench.driver.stream_synchronize(bench.stream)
    bench.driver.event_destroy(event)


def test_destroyed_event_still_orders(bench):
    driver = bench.driver
    other, event = driver.stream_create(), driver.event_create()
    with bench.held():
        driver.event_record(event, bench.stream)
        driver.stream_wait_event(other, event)
        driver.event_destroy(event)
        assert not driver.stream_query(other)
    driver.stream_synchronize(other)
    driver.stream_destroy(other)


def test_destroyed_stream_finishes_its_work(bench):
    driver = bench.driver
    other, event = driver.stream_create(), driver.event_create()
    with bench.held(other):
        driver.event_record(event, other)
        driver.stream_destroy(other)
        assert not driver.event_query(event)
    driver.event_synchronize(event)
    driver.event_destroy(event)


def test_elapsed_time(bench):
    driver = bench.driver
    start, end = driver.event_create(timing=True), driver.event_create(timing=True)
    driver.event_record(start, bench.stream)
    with bench.held():
        driver.event_record(end, bench.stream)
        began = time.perf_counter()
        while time.perf_counter() - began < 0.02:
            pass
    driver.event_synchronize(end)
    assert 19 < driver.event_elapsed_ms(start, end) < 20_000
    driver.event_destroy(start)
    driver.event_destroy(end)


def test_elapsed_time_refusals(bench):
    driver = bench.driver
    timing, late, plain = (
        driver.event_create(timing=True),
        driver.event_create(timing=True),
        driver.event_create(),
    )
    driver.event_record(timing, bench.stream)
    driver.event_record(plain, bench.stream)
    driver.stream_synchronize(bench.stream)
    with pytest.raises(DriverError, match=r"INVALID_HANDLE.*timing"):
        driver.event_elapsed_ms(timing, plain)
    with pytest.raises(DriverError, match=r"INVALID_HANDLE.*never recorded"):
        driver.event_elapsed_ms(timing, late)
    with bench.held():
        driver.event_record(late, bench.stream)
        with pytest.raises(DriverError, match=r"NOT_READY.*synchronize with it first"):
            driver.event_elapsed_ms(timing, late)
    for event in (timing, late, plain):
        driver.event_destroy(event)


def test_stream_priorities_are_taken(bench):
    least, greatest = bench.driver.properties.limits.stream_priorities
    for priority in (least, greatest, greatest - 100, least + 100):
        stream = bench.driver.stream_create(priority)
        bench.driver.stream_synchronize(stream)
        bench.driver.stream_destroy(stream)


@pytest.mark.parametrize("what", ["stream", "event", "module", "function"])
def test_stale_handle_is_an_error(bench, what):
    driver = bench.driver
    stream, event = driver.stream_create(), driver.event_create()
    module = driver.module_load(PTX.encode())
    function = driver.module_function(module, "bump")
    driver.stream_destroy(stream)
    driver.event_destroy(event)
    driver.module_unload(module)
    use = {
        "stream": lambda: driver.stream_synchronize(stream),
        "event": lambda: driver.event_synchronize(event),
        "module": lambda: driver.module_function_names(module),
        "function": lambda: driver.function_info(function),
    }
    with pytest.raises(DriverError, match="INVALID_HANDLE") as caught:
        use[what]()
    assert caught.value.code == 400


def test_threads_share_the_driver(bench):
    """Every thread binds for itself; streams and memory are usable from all."""
    failures = []

    def work(seed):
        try:
            own = Bench(bench.driver)
            values = np.random.default_rng(seed).integers(0, 1 << 30, 1000, dtype=np.int32)
            for _ in range(20):
                address = own.upload(values)
                copy = own.upload(np.zeros(1000, "i4"))
                own.driver.bind()
                own.driver.copy_device_to_device_async(copy, address, 4000, own.stream)
                assert np.array_equal(own.download(copy, 1000, "i4"), values)
                own.free(address, copy)
            own.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --------------------------------------------------------------------------------------- memory


def test_pool_counts_and_aligns(bench):
    driver = bench.driver
    driver.synchronize()
    before = driver.pool_statistics()
    driver.bind()
    addresses = [driver.memory_alloc_async(size, bench.stream) for size in (1, 1000, 1 << 20)]
    during = driver.pool_statistics()
    assert all(address % 256 == 0 for address in addresses)
    assert during.used_bytes - before.used_bytes >= 1 + 1000 + (1 << 20)
    assert during.used_high_bytes >= during.used_bytes
    assert during.reserved_bytes >= during.used_bytes
    for address in addresses:
        driver.memory_free_async(address, bench.stream)
    driver.stream_synchronize(bench.stream)
    assert driver.pool_statistics().used_bytes == before.used_bytes


def test_freed_memory_is_used_again_in_its_stream(bench):
    driver = bench.driver
    size = 48 << 20
    driver.bind()
    first = driver.memory_alloc_async(size, bench.stream)
    reserved = driver.pool_statistics().reserved_bytes
    with bench.held():
        driver.memory_free_async(first, bench.stream)
        second = driver.memory_alloc_async(size, bench.stream)
        assert driver.pool_statistics().reserved_bytes == reserved
    driver.memory_free_async(second, bench.stream)
    driver.stream_synchronize(bench.stream)


def test_trim_gives_memory_back(bench):
    driver = bench.driver
    driver.pool_set_release_threshold((1 << 64) - 1)
    driver.bind()
    address = driver.memory_alloc_async(64 << 20, bench.stream)
    driver.memory_free_async(address, bench.stream)
    driver.stream_synchronize(bench.stream)
    cached = driver.pool_statistics().reserved_bytes
    assert cached >= 64 << 20
    driver.pool_trim()
    assert driver.pool_statistics().reserved_bytes <= cached - (64 << 20)


def test_too_much_memory_is_refused(bench):
    driver = bench.driver
    before = driver.pool_statistics().used_bytes
    size = 2 * driver.properties.total_memory_bytes
    driver.bind()
    with pytest.raises(OutOfMemoryError, match=str(size)) as caught:
        driver.memory_alloc_async(size, bench.stream)
    assert caught.value.requested_bytes == size
    assert caught.value.used_bytes == before
    assert 0 < caught.value.limit_bytes <= driver.properties.total_memory_bytes
    assert driver.pool_statistics().used_bytes == before


@pytest.mark.parametrize("size", [1, 3, 4096, 1_000_003])
def test_copies_keep_every_byte(bench, size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    first = bench.upload(data)
    second = bench.upload(np.zeros_like(data))
    bench.driver.copy_device_to_device_async(second, first, size, bench.stream)
    assert np.array_equal(bench.download(second, size, "u1"), data)
    bench.free(first, second)


@pytest.mark.parametrize(
    "pattern", [b"\x81", b"\x01\x82", b"\x01\x02\x03\x84", b"\x01\x02\x03\x04\x05\x06\x07\x88"]
)
def test_fill(bench, pattern):
    size = len(pattern)
    address = bench.upload(np.zeros(4096, "u1"))
    bench.driver.fill_async(address + 8, pattern, 300, bench.stream)
    result = bench.download(address, 4096, "u1").tobytes()
    assert result == bytes(8) + pattern * 300 + bytes(4096 - 8 - 300 * size)
    bench.free(address)


def test_fill_refusals(bench):
    address = bench.upload(np.zeros(64, "u1"))
    for pattern, at, count in ((b"abc", address, 1), (b"abcd", address + 2, 1), (b"ab", address, -1)):
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            bench.driver.fill_async(at, pattern, count, bench.stream)
    bench.driver.fill_async(address, b"a", 0, bench.stream)
    assert not bench.download(address, 64, "u1").any()
    bench.free(address)


# ------------------------------------------------------------------------------- strided copies

STRIDED = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(2, 0, 1),
    "every second": lambda x: x[:, ::2, ::3],
    "backwards": lambda x: x[::-1, :, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:, :1, :], x.shape),
    "one element": lambda x: x[2:3, 3:4, 1:2],
    "last column": lambda x: x[..., -1],
    "row of planes": lambda x: x[:, 1],
    "empty": lambda x: x[:, 5:5],
}


@pytest.mark.parametrize("view", STRIDED, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "c16", "S3"])
def test_strided_source(bench, view, dtype):
    count = 4 * 6 * 9
    array = np.arange(count * np.dtype(dtype).itemsize, dtype=np.uint8).view(dtype).reshape(4, 6, 9)
    source = STRIDED[view](array)
    expected = np.ascontiguousarray(source)
    base = bench.upload(array)
    target = bench.upload(np.zeros(max(expected.nbytes, 1), "u1"))
    offset = source.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    bench.driver.copy_strided_async(
        target, expected.strides, base + offset, source.strides, source.shape, array.itemsize, bench.stream
    )
    assert bench.download(target, expected.nbytes, "u1").tobytes() == expected.tobytes()
    bench.free(base, target)


@pytest.mark.parametrize("view", ["transposed", "every second", "backwards", "row of planes"])
def test_strided_destination(bench, view):
    array = np.zeros((4, 6, 9), "f4")
    target = STRIDED[view](array)
    values = np.random.default_rng(0).standard_normal(target.shape).astype("f4")
    base, source = bench.upload(array), bench.upload(values)
    offset = target.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    bench.driver.copy_strided_async(
        base + offset, target.strides, source, values.strides, target.shape, 4, bench.stream
    )
    target[...] = values
    assert np.array_equal(bench.download(base, array.shape, "f4"), array)
    bench.free(base, source)


def test_strided_long_rows(bench):
    """Long enough for a copy engine."""
    array = np.random.default_rng(0).integers(0, 256, (7, 5000), dtype=np.uint8)
    base = bench.upload(array)
    target = bench.upload(np.zeros((7, 6000), "u1"))
    bench.driver.copy_strided_async(target + 3, (6000, 1), base + 100, (5000, 1), (7, 4003), 1, bench.stream)
    expected = np.zeros((7, 6000), "u1")
    expected[:, 3:4006] = array[:, 100:4103]
    assert np.array_equal(bench.download(target, (7, 6000), "u1"), expected)
    bench.free(base, target)


def test_strided_many_axes(bench):
    shape = (2,) * 10
    array = np.arange(1024, dtype=np.int32).reshape(shape)
    source = array.transpose(9, 2, 5, 0, 7, 4, 1, 8, 3, 6)
    base, target = bench.upload(array), bench.upload(np.zeros(1024, "i4"))
    contiguous = np.ascontiguousarray(source)
    bench.driver.copy_strided_async(target, contiguous.strides, base, source.strides, shape, 4, bench.stream)
    assert np.array_equal(bench.download(target, shape, "i4"), contiguous)
    bench.free(base, target)


def test_strided_refusals(bench):
    address = bench.upload(np.zeros(64, "u1"))
    copy = functools.partial(bench.driver.copy_strided_async, address)
    for arguments in (
        ((4,), address, (4, 4), (2, 2), 4),
        ((0, 4), address, (4, 4), (2, 2), 4),
        ((4,), address, (4,), (-1,), 4),
    ):
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            copy(*arguments, bench.stream)
    bench.free(address)


# ---------------------------------------------------------------------------------- conversions

TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "e4m3fn", "e5m2"),
)


@pytest.mark.parametrize("src", TYPES)
def test_conversions(bench, conversions, src):
    values = conversions.samples(src)
    source = bench.upload(values)
    target = bench.upload(np.zeros(values.size * 8 + 8, "u1"))
    for dst, dtype in conversions.types.items():
        bench.driver.convert_prepare(dtype, values.dtype)
        bench.driver.convert_async(target, dtype, source, values.dtype, values.size, bench.stream)
        conversions.check(bench.download(target, values.size, dtype), values, src, dst)
    bench.free(source, target)


def test_conversion_touches_only_its_elements(bench):
    values = np.arange(1000, dtype="f4")
    source, target = bench.upload(values), bench.upload(np.full(1010, -1, "i2"))
    bench.driver.convert_async(target + 8, np.dtype("i2"), source, np.dtype("f4"), 1000, bench.stream)
    result = bench.download(target, 1010, "i2")
    assert result.tolist() == [-1] * 4 + list(range(1000)) + [-1] * 6
    bench.driver.convert_async(target, np.dtype("i2"), source, np.dtype("f4"), 0, bench.stream)
    bench.free(source, target)


def test_conversion_of_other_types_is_refused(bench):
    with pytest.raises(DriverError, match=r"INVALID_VALUE.*complex64"):
        bench.driver.convert_prepare(np.dtype("f4"), np.dtype("c8"))


# -------------------------------------------------------------------------------------- modules


def test_module_lists_its_kernels(bench):
    names = bench.driver.module_function_names(bench.module)
    assert set(names) == {"latch", "ramp", "coordinates", "reverse", "bump"}


def test_unknown_names_are_lookup_errors(bench):
    with pytest.raises(LookupError, match="no_such_kernel"):
        bench.driver.module_function(bench.module, "no_such_kernel")
    with pytest.raises(LookupError, match="no_such_global"):
        bench.driver.module_global(bench.module, "no_such_global")


def test_function_info_of_ptx(bench):
    info = bench.driver.function_info(bench.function("ramp"))
    assert info.name == "ramp"
    assert [(p.offset_bytes, p.size_bytes, p.kind) for p in info.parameters] == [
        (0, 8, ParameterKind.INTEGER),
        (8, 4, ParameterKind.INTEGER),
        (12, 4, ParameterKind.FLOAT),
        (16, 12, ParameterKind.STRUCT),
    ]
    assert 32 <= info.max_threads_per_block <= 1024
    assert info.static_shared_bytes == 0
    assert bench.driver.function_info(bench.function("bump")).required_block == (32, 1, 1)


def test_global_variables(bench):
    address, size = bench.driver.module_global(bench.module, "counter")
    assert size == 4
    assert bench.download(address, 1, "u4").tolist() == [7]
    bench.launch("bump", (1, 1, 1), (32, 1, 1), 0)
    assert bench.download(address, 1, "u4").tolist() == [8]
    address, size = bench.driver.module_global(bench.module, "table")
    assert bench.download(address, size // 8, "f8").tolist() == [1, 2, 3]


def test_modules_have_their_own_globals(bench):
    second = bench.driver.module_load(PTX.encode())
    first_address, _ = bench.driver.module_global(bench.module, "counter")
    second_address, _ = bench.driver.module_global(second, "counter")
    assert first_address != second_address
    bench.driver.module_unload(second)


@pytest.mark.parametrize("image", [b"", b"\0", b"\n \0"])
def test_empty_image(bench, image):
    with pytest.raises(CompileError, match="empty"):
        bench.driver.module_load(image, "nothing")


def test_syntax_error_names_the_line(bench):
    text = b".version 8.0\n.target sm_80\n.address_size 64\n.entry f()\n{\n    bogus.instruction %r1;\n    ret;\n}\n"
    with pytest.raises(CompileError, match=r"line 6|:6:") as caught:
        bench.driver.module_load(text, "bad.ptx")
    assert "bad.ptx" in str(caught.value)


def test_ptx_from_the_future(bench):
    with pytest.raises(CompileError, match=r"99\.0.*\b\d+\.\d"):
        bench.driver.module_load(b".version 99.0\n.target sm_80\n.address_size 64\n.entry f() { ret; }\n")


def test_something_else_is_no_module(bench):
    with pytest.raises(CompileError, match="PTX"):
        bench.driver.module_load(b"\x89PNG\r\n\x1a\n\xff\xfe\xfd", "picture.png")


# ------------------------------------------------------------------------------------- launches


def f4(value):
    return struct.pack("<f", value)


def test_launch_gets_its_arguments(bench):
    address = bench.upload(np.full(300, -1, "f4"))
    bench.launch("ramp", (3, 1, 1), (96, 1, 1), address, 270, f4(0.5), struct.pack("<fff", 9, 9, -2))
    expected = np.full(300, -1, "f4")
    expected[:270] = 0.5 * np.arange(270) - 2
    assert np.array_equal(bench.download(address, 300, "f4"), expected)
    bench.free(address)


def test_arguments_are_copied_by_the_launch(bench):
    """One block serves launch after launch, while the stream still holds the first."""
    driver = bench.driver
    addresses = [bench.upload(np.zeros(4, "f4")) for _ in range(3)]
    function, block = bench.function("ramp"), bench.block("ramp", 0, 4, f4(1), bytes(12))
    bench.launch("ramp", (1, 1, 1), (4, 1, 1), addresses[0], 4, f4(0), bytes(12))
    with bench.held():
        for i, address in enumerate(addresses):
            struct.pack_into("<Qifff", block.buffer, 0, address, 4, 1.0, 0, 0)
            struct.pack_into("<f", block.buffer, 24, 10.0 * i)
            driver.launch(function, (1, 1, 1), (4, 1, 1), 0, bench.stream, block)
        block.buffer[:] = bytes(len(block.buffer))
    for i, address in enumerate(addresses):
        assert bench.download(address, 4, "f4").tolist() == [10.0 * i + k for k in range(4)]
    bench.free(*addresses)


def test_bound_launch_takes_what_the_block_holds_then(bench):
    driver = bench.driver
    address = bench.upload(np.zeros(8, "f4"))
    block = bench.block("ramp", address, 4, f4(1), bytes(12))
    launch = driver.bind_launch(bench.function("ramp"), (2, 1, 1), (4, 1, 1), 0, bench.stream, block)
    with bench.held():
        assert not launch()
        struct.pack_into("<Qi", block.buffer, 0, address + 16, 4)
        struct.pack_into("<f", block.buffer, 24, 100.0)
        assert not launch()
    assert bench.download(address, 8, "f4").tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    bench.free(address)


def test_three_dimensional_launch(bench):
    grid, block = (2, 3, 2), (4, 2, 3)
    count = 2 * 3 * 2 * 4 * 2 * 3
    address = bench.upload(np.zeros(count, "u4"))
    bench.launch("coordinates", grid, block, address)
    expected = [
        cz << 16 | tz << 8 | tx
        for cz in range(2)
        for _cy in range(3)
        for _cx in range(2)
        for tz in range(3)
        for _ty in range(2)
        for tx in range(4)
    ]
    assert bench.download(address, count, "u4").tolist() == expected
    bench.free(address)


@pytest.mark.parametrize("shared_bytes", [4 * 64, 48 << 10, 64 << 10])
def test_dynamic_shared_memory(bench, shared_bytes):
    driver = bench.driver
    if shared_bytes > driver.properties.limits.max_shared_bytes_per_block_optin:
        pytest.skip("this device has less")
    address = bench.upload(np.arange(64, dtype="u4"))
    driver.function_allow_shared_bytes(bench.function("reverse"), shared_bytes)
    bench.launch("reverse", (1, 1, 1), (64, 1, 1), address, shared_bytes=shared_bytes)
    assert bench.download(address, 64, "u4").tolist() == list(range(63, -1, -1))
    bench.free(address)


def test_too_much_shared_memory_is_refused(bench):
    driver = bench.driver
    too_much = driver.properties.limits.max_shared_bytes_per_block_optin + 1024
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        driver.function_allow_shared_bytes(bench.function("reverse"), too_much)
    address = bench.upload(np.arange(4, dtype="u4"))
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        bench.launch("reverse", (1, 1, 1), (4, 1, 1), address, shared_bytes=too_much)
    assert bench.download(address, 4, "u4").tolist() == [0, 1, 2, 3]
    bench.free(address)


@pytest.mark.parametrize(
    ("grid", "block"),
    [((1, 1, 1), (2048, 1, 1)), ((1, 1, 1), (1, 1, 65)), ((1, 65536, 1), (1, 1, 1)), ((0, 1, 1), (1, 1, 1))],
)
def test_refused_launch_changes_nothing(bench, grid, block):
    address = bench.upload(np.full(4, -1, "f4"))
    arguments = (address, 4, f4(1), bytes(12))
    with pytest.raises(DriverError, match="INVALID_VALUE") as caught:
        bench.launch("ramp", grid, block, *arguments)
    assert caught.value.code == 1
    assert bench.download(address, 4, "f4").tolist() == [-1] * 4
    bench.launch("ramp", (1, 1, 1), (4, 1, 1), *arguments)
    assert bench.download(address, 4, "f4").tolist() == [0, 1, 2, 3]
    bench.free(address)


@pytest.mark.parametrize(
    "attributes",
    [
        {"cluster": None, "cooperative": True},
        {"cluster": (2, 1, 1), "cooperative": False},
        {"cluster": None, "cooperative": False},
    ],
)
def test_launch_with_attributes(bench, attributes):
    driver = bench.driver
    if attributes["cluster"] and driver.properties.limits.max_cluster_blocks == 1:
        pytest.skip("this device has no clusters")
    address = bench.upload(np.zeros(128, "f4"))
    block = bench.block("ramp", address, 128, f4(2), bytes(12))
    for _ in range(2):
        driver.launch_with_attributes(
            bench.function("ramp"), (4, 1, 1), (32, 1, 1), 0, bench.stream, block, **attributes
        )
    assert bench.download(address, 128, "f4").tolist() == [2.0 * i for i in range(128)]
    bench.free(address)


def test_grid_that_is_no_multiple_of_the_cluster_is_refused(bench):
    if bench.driver.properties.limits.max_cluster_blocks == 1:
        pytest.skip("this device has no clusters")
    block = bench.block("ramp", 0, 0, f4(2), bytes(12))
    with pytest.raises(DriverError, match="cluster"):
        bench.driver.launch_with_attributes(
            bench.function("ramp"),
            (3, 1, 1),
            (32, 1, 1),
            0,
            bench.stream,
            block,
            cluster=(2, 1, 1),
            cooperative=False,
        )
    bench.driver.stream_synchronize(bench.stream)


def test_cooperative_launch_that_does_not_fit_is_refused(bench):
    block = bench.block("ramp", 0, 0, f4(2), bytes(12))
    with pytest.raises(DriverError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        bench.driver.launch_with_attributes(
            bench.function("ramp"),
            (1_000_000, 1, 1),
            (1024, 1, 1),
            0,
            bench.stream,
            block,
            cluster=None,
            cooperative=True,
        )
    bench.driver.stream_synchronize(bench.stream)
