"""torch and CuPy on a GPU, both ways: types, shapes, order, and memory that outlives the consumer's stream."""

from __future__ import annotations

import gc
import threading

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.memory import DTYPES

pytestmark = pytest.mark.gpu

SHAPES = [(), (5,), (2, 3), (0,), (0, 3), (3, 0)]
NUMPY_TYPES = [name for name, dtype in DTYPES.items() if dtype.isbuiltin == 1]
SLEEP_CYCLES = 100_000_000  # about 60 ms on an H100


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(autouse=True)
def device():
    with ca.use_device("cuda:0") as device:
        device.open()
        device.policy.next_stream()
        yield device
        device.synchronize()


def numbers(name: str) -> np.ndarray:
    return np.arange(12).reshape(3, 4).astype(DTYPES[name])


# ---------------------------------------------------------------------------------- types and shapes


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "float8_e8m0fnu"])
def test_torch_every_type_goes_and_comes_back(torch, name):
    array = numbers(name)
    t = ca.from_host(array).sync()
    theirs = torch.from_dlpack(t)
    assert (str(theirs.dtype), theirs.device.type) == (f"torch.{name}", "cuda")
    assert theirs.data_ptr() == t._address
    assert theirs.cpu().to(torch.float64).tolist() == array.astype(np.float64).tolist()
    back = ca.from_dlpack(theirs.clone()[:, 1::2])
    assert (back.dtype, back.strides, back.device) == (t.dtype, (4, 2), t.device)
    np.testing.assert_array_equal(back.to_host().sync(), array[:, 1::2])


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_cupy_every_type_goes_and_comes_back(cupy, name):
    array = numbers(name)
    t = ca.from_host(array).sync()
    theirs = cupy.from_dlpack(t)
    assert theirs.dtype == array.dtype
    assert theirs.data.ptr == t._address
    np.testing.assert_array_equal(theirs.get(), array)
    back = ca.from_dlpack(theirs.copy()[:, 1::2])
    assert (back.dtype, back.strides) == (t.dtype, (4, 2))
    np.testing.assert_array_equal(back.to_host().sync(), array[:, 1::2])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_goes_and_comes_back(torch, cupy, shape):
    t = ca.full(shape, 3, "int16").sync()
    for consume, copy in ((torch.from_dlpack, lambda a: a.clone()), (cupy.from_dlpack, lambda a: a.copy())):
        theirs = consume(t)
        assert tuple(theirs.shape) == shape
        back = ca.from_dlpack(copy(theirs))
        assert (back.shape, back.dtype) == (shape, t.dtype)
        assert (back.to_host().sync() == 3).all()


def test_bfloat16_bits_are_exact(torch):
    values = np.array([0.5, -1.5, 3.0, 257.0]).astype(ml_dtypes.bfloat16)
    theirs = torch.from_dlpack(ca.from_host(values).sync())
    bits = [0x3F00, 0xBFC0 - 0x10000, 0x4040, 0x4380]
    assert theirs.view(torch.int16).cpu().tolist() == bits
    assert ca.from_dlpack(theirs).to_host().sync().view(np.int16).tolist() == bits


def test_unknown_type_is_named(torch):
    with pytest.raises(TypeError, match=r"code 5 \(complex\), 64 bits, 1 lanes is not supported"):
        ca.from_dlpack(torch.zeros(3, dtype=torch.complex64, device="cuda"))


def test_memory_of_the_gpu_is_not_the_hosts(torch):
    with pytest.raises(ca.ContextError, match="the array is on cuda:0, not on host:0"):
        ca.from_dlpack(torch.zeros(3, device="cuda"), device="host:0")
    with pytest.raises(ca.ContextError, match=r"copy it over with from_host\(\)"):
        ca.from_dlpack(torch.zeros(3), device="cuda:0")


# ------------------------------------------------------------------------------ the array interface


def test_array_interface_both_ways(torch, cupy, device):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    t = ca.from_host(array).sync()
    np.testing.assert_array_equal(cupy.asarray(t[::2, 1:]).get(), array[::2, 1:])
    assert torch.as_tensor(t, device="cuda").data_ptr() == t._address
    for theirs in (cupy.asarray(array), torch.from_numpy(array).cuda()):
        ours = ca.from_cuda_array_interface(theirs)
        assert ours.device is device
        np.testing.assert_array_equal(ours[1:].to_host().sync(), array[1:])


def test_host_memory_is_refused_by_its_address():
    class Wrong:
        __cuda_array_interface__ = {  # noqa: RUF012 - the protocol wants a plain dict
            "version": 3,
            "shape": (3,),
            "typestr": "<f4",
            "data": (np.zeros(3, np.float32).ctypes.data, False),
        }

    with pytest.raises(ca.ContextError, match="not in the memory of any CUDA device"):
        ca.from_cuda_array_interface(Wrong())


# ------------------------------------------------------------------------------------------ order


def test_consumer_sees_our_slow_write(torch, device):
    stream = device.create_stream()
    held = torch.cuda.ExternalStream(int(stream.handle))
    for n in range(5):
        t = ca.zeros((1 << 20,), "int32").sync()
        with torch.cuda.stream(held):
            torch.cuda._sleep(SLEEP_CYCLES)
        future = ca.fill(t, n).start(ca.SingleStream(stream))
        assert not future.done
        with torch.cuda.stream(torch.cuda.Stream()):
            theirs = torch.from_dlpack(t)
            assert int((theirs == n).sum()) == 1 << 20
    stream.close()


def test_we_see_the_producers_slow_write(torch, cupy):
    for n in range(5):
        with torch.cuda.stream(torch.cuda.Stream()):
            theirs = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
            torch.cuda._sleep(SLEEP_CYCLES)
            theirs.fill_(n)
            ours = ca.from_dlpack(theirs)
        assert (ours.to_host().sync() == n).all()
        interface = cupy.empty(1 << 20, "int32")
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch.cuda._sleep(SLEEP_CYCLES)
            interface.fill(n)
            ours = ca.from_cuda_array_interface(interface)
        assert (ours.to_host().sync() == n).all()


def stream_of(cupy, kind: str):
    """(stream to work on, what destroys it)."""
    if kind == "default":
        return cupy.cuda.Stream.null, lambda: None
    if kind == "CuPy's":
        return cupy.cuda.Stream(non_blocking=True), lambda: None
    address = cupy.cuda.runtime.streamCreateWithFlags(1)
    return cupy.cuda.ExternalStream(address), lambda: cupy.cuda.runtime.streamDestroy(address)


@pytest.mark.filterwarnings("ignore:ExternalStream is deprecated")  # its successor destroys the stream itself
@pytest.mark.parametrize("kind", ["default", "CuPy's", "destroyed"])
def test_freeing_comes_after_the_consumers_work(torch, cupy, device, kind):
    """The memory goes while the consumer still reads it, and is taken and overwritten at once."""
    gc.collect()
    before = device.memory_stats().used_bytes
    size = 1 << 22
    for n in range(10):
        t = ca.full((size,), n, "int32").sync()
        stream, destroy = stream_of(cupy, kind)
        result = cupy.empty(size, "int32")
        cupy.cuda.Device().synchronize()
        same = torch.cuda.ExternalStream(stream.ptr) if stream.ptr else torch.cuda.default_stream()
        with stream, torch.cuda.stream(same):
            theirs = cupy.from_dlpack(t)
            torch.cuda._sleep(SLEEP_CYCLES)
            cupy.copyto(result, theirs)
            del theirs
        destroy()
        del stream, same, t
        gc.collect()
        if kind == "destroyed":
            assert device.memory_stats().used_bytes == before + 4 * size, "held, because the stream is gone"
            device.trim()
        assert device.memory_stats().used_bytes == before
        others = [ca.full((size,), -1, "int32").sync() for _ in range(4)]
        cupy.cuda.Device().synchronize()
        assert int((result != n).sum()) == 0
        del others
    gc.collect()
    device.synchronize()
    assert device.memory_stats().used_bytes == before


# In the "global" mode no thread of the process may allocate or free anything.
@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_freeing_during_another_librarys_capture(torch, device, mode):
    """The capture stays valid, and the memory is freed after it."""
    gc.collect()
    before = device.memory_stats().used_bytes
    t = ca.full((1000,), 3, "int32").sync()
    with torch.cuda.stream(torch.cuda.Stream()):
        theirs = torch.from_dlpack(t)
    output = torch.zeros(1000, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        output += 1
        del t, theirs
        gc.collect()
        thread = threading.Thread(target=device.collect)
        thread.start()
        thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert output.tolist() == [1] * 1000
    device.synchronize()
    assert device.memory_stats().used_bytes == before


def test_tensor_is_used_inside_a_capture(torch, device):
    t = ca.full((1000,), 3, "int32").sync()
    output = torch.zeros(1000, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output.copy_(torch.from_dlpack(t))
    ca.fill(t, 4).sync()
    graph.replay()
    torch.cuda.synchronize()
    assert output.tolist() == [4] * 1000


def test_operations_on_a_borrowed_stream_are_in_its_order(torch, cupy, device):
    theirs = torch.cuda.Stream()
    stream = device.borrow_stream(theirs.cuda_stream)
    t = ca.zeros((1 << 20,), "int32").sync()
    with torch.cuda.stream(theirs):
        array = torch.from_dlpack(t)
        torch.cuda._sleep(SLEEP_CYCLES)
        array.fill_(5)
        ca.fill(t[: 1 << 19], 6).start(ca.SingleStream(stream))
        array += 1
    found = t.to_host().sync_on(stream)
    assert (found[: 1 << 19] == 7).all()
    assert (found[1 << 19 :] == 6).all()
    stream.close()
    with cupy.cuda.Stream(non_blocking=True) as named:
        other = device.borrow_stream(int(named.ptr))
        assert ca.fill(t, 1).sync_on(other) is t
        other.close()


def test_error_in_flight_survives_the_deleter(torch):
    with pytest.raises(TypeError, match="argument 'other'"):
        torch.add(torch.from_dlpack(ca.ones((3,)).sync()), "x")
